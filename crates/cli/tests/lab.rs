//! `directfs lab` on the command line.

mod support;

use std::fs;
use support::{directfs, scratch, stderr, stdout};

#[test]
fn the_list_names_every_experiment_and_an_unknown_one_is_answered_with_it() {
    let listed = directfs(&["lab", "list"]);
    assert!(listed.status.success(), "{}", stderr(&listed));
    let unknown = directfs(&["lab", "directfs-table9"]);
    assert_eq!(unknown.status.code(), Some(1));
    for experiment in lab::experiments::CATALOGUE {
        assert!(stdout(&listed).contains(experiment.name), "{}", stdout(&listed));
        assert!(stderr(&unknown).contains(experiment.name), "{}", stderr(&unknown));
    }
}

#[test]
fn all_experiments_need_a_place_for_their_report() {
    let refused = directfs(&["lab", "all"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("--out"), "{}", stderr(&refused));
}

#[test]
fn an_experiment_prints_its_numbers_and_leaves_a_report_that_is_not_overwritten() {
    let directory = scratch();
    let out = directory.path().join("report");
    let arguments = ["lab", "soupfs-fig3", "--quick", "--out", out.to_str().unwrap()];
    let done = directfs(&arguments);
    assert!(done.status.success(), "{}", stderr(&done));
    assert!(stdout(&done).contains("unlink") && stdout(&done).contains("SoupFS"), "{}", stdout(&done));
    let report = fs::read_to_string(out.join("index.html")).unwrap();
    assert!(report.contains("<svg") && report.contains("soupfs-fig3"));
    let numbers = fs::read_to_string(out.join("soupfs-fig3.tsv")).unwrap();
    assert!(numbers.lines().count() > 12, "{numbers}");
    assert!(fs::read_to_string(out.join("soupfs-fig3.svg")).unwrap().starts_with("<svg"));

    let again = directfs(&arguments);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("--force"), "{}", stderr(&again));
    assert_eq!(fs::read_to_string(out.join("index.html")).unwrap(), report, "as it was");
    let forced = directfs(&[&arguments[..], &["--force"]].concat());
    assert!(forced.status.success(), "{}", stderr(&forced));
}
