//! The workflow on a tag, which publishes the packages, and the one that users copy.

use crate::{skipped, sources, text};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

const ON_A_TAG: &str = ".github/workflows/release.yml";
const OF_A_USER: &str = "packaging/workflow.yml";

fn tagged(tag: &str, maintainer: &str) -> Output {
    let mut command = Command::new(sources().join("packaging/tagged"));
    command.arg(tag).env("DEBEMAIL", maintainer);
    command.env("GITHUB_SERVER_URL", "https://forge").env("GITHUB_REPOSITORY", "ann/directfs");
    command.output().expect("packaging/tagged")
}

#[test]
fn a_tag_makes_a_release_only_of_this_version_with_dated_changes_and_a_maintainer() {
    let (tag, maintainer) = (concat!("v", env!("CARGO_PKG_VERSION")), "ann@example.org");
    let changes = std::fs::read_to_string(sources().join("CHANGELOG.md")).expect("CHANGELOG.md");
    let newest = changes.lines().find(|line| line.starts_with("## ")).expect("a version");
    assert!(newest.starts_with(concat!("## ", env!("CARGO_PKG_VERSION"), " (")), "{newest}");
    for (tag, maintainer, why) in [
        ("v9.9.9", maintainer, concat!("the version in Cargo.toml is ", env!("CARGO_PKG_VERSION"))),
        (tag, "", "DEBEMAIL is not set"),
    ] {
        let refused = tagged(tag, maintainer);
        assert!(!refused.status.success() && text(&refused.stderr).contains(why), "{tag}: {refused:?}");
    }
    let output = tagged(tag, maintainer);
    // Between releases the changes have no date.
    if newest.ends_with("(unreleased)") {
        assert!(!output.status.success() && text(&output.stderr).contains("has no line"), "{output:?}");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let page = text(&output.stdout);
    assert!(!page.contains("\n## ") && page.contains("\n### "), "the changes of one version: {page}");
    assert!(!page.contains("](docs/"), "links lead to the sources of the tag: {page}");
}

#[test]
fn workflows_call_what_exists() {
    let workflow = std::fs::read_to_string(sources().join(ON_A_TAG)).expect(ON_A_TAG);
    let words = workflow.split_whitespace().map(|word| word.trim_matches(['(', ')', '"']));
    let called: BTreeSet<&str> =
        words.filter(|word| word.starts_with("packaging/") || word.starts_with(".ci/")).collect();
    assert_eq!(called.into_iter().collect::<Vec<_>>(), [".ci/release", "packaging/tagged"]);
    for program in [".ci/release", "packaging/tagged"] {
        let found = sources().join(program).metadata().expect(program);
        assert!(found.permissions().mode() & 0o111 != 0, "{program} cannot be executed");
    }
    match Command::new("actionlint").args([ON_A_TAG, OF_A_USER]).current_dir(sources()).output() {
        Ok(output) => assert!(output.status.success(), "{}", text(&output.stdout)),
        Err(_) => skipped("the check of workflows", "actionlint is not on this machine"),
    }
}
