//! Virtual time: the same number in every run, and what it must show.

use lab::experiments::report::{Circumstances, Part, html};
use lab::experiments::{Bench, Findings, Size, Times, find};
use lab::virtual_time::memories::MEMORIES;

fn virtual_findings(name: &str) -> Findings {
    let bench = Bench { size: Size::Tiny, times: Times::Virtual, stop: &|| false, progress: &|_| {} };
    find(name).expect("it is in the catalogue").carry_out(&bench).unwrap_or_else(|failure| panic!("{name}: {failure}"))
}

fn maps_are_full_and_flushes_weigh_more_beside_a_faster_processor() {
    let findings = virtual_findings("sensitivity");
    let cells = || findings.maps.iter().flat_map(|map| &map.rows).flat_map(|(_, values)| values);
    assert!(!findings.maps.is_empty() && cells().count() == findings.maps.len() * 20);
    assert!(cells().all(Option::is_some), "a machine has no value");
    // SoupFS saves flushes and fences, which cost the same beside any processor.
    let map = findings.maps.iter().find(|map| map.title.contains("SoupFS") && map.title.contains("unlink"));
    for rows in map.expect("its map").rows.windows(2) {
        let [(faster, many), (slower, few)] = rows else { unreachable!("windows of two") };
        assert!(many.iter().zip(few).all(|(many, few)| many > few), "{faster} {many:?}, {slower} {few:?}");
    }
}

/// One test, since recordings hold the clock of the whole process.
#[test]
fn a_second_run_gives_the_same_digits_and_soupfs_waits_for_no_flush() {
    for name in ["soupfs-fig2", "soupfs-fig5"] {
        let first = virtual_findings(name);
        // Another history of the heap.
        let _shift: Vec<Box<[u8; 24]>> = (0..99).map(|_| Box::new([0; 24])).collect();
        let second = std::thread::spawn(move || virtual_findings(name)).join().expect("it does not panic");
        for (one, other) in first.measures.iter().zip(&second.measures) {
            let columns = first.memories.iter().filter(|medium| medium.is_virtual()).count();
            assert!(columns >= MEMORIES.len());
            assert_eq!(one.here.iter().flatten().count(), columns, "{name}: {one:?}");
            assert_eq!(one, other, "{name}");
        }
        assert_eq!(first.notes, second.notes);
        assert_eq!(first.work, second.work);
        assert!(!first.work.is_empty(), "{name}: nothing was counted");
        assert!(first.plots.iter().flat_map(|plot| &plot.here).all(|series| series.values.iter().all(Option::is_some)));
        let part = Part::new(find(name).expect("as above"), Ok(&first), 0.0);
        let report = html(&Circumstances::default(), &[part]);
        assert!(report.contains("virtual DRAM") && !report.contains("NaN"));
        assert!(first.claims.iter().all(|claim| !claim.sentence(&first.memories).contains("not measured")));
    }
    maps_are_full_and_flushes_weigh_more_beside_a_faster_processor();
    let delays = virtual_findings("soupfs-fig3");
    let columns = delays.memories.len() - 5..delays.memories.len();
    let unlink =
        |subject: &str| columns.clone().map(|memory| delays.here("unlink", subject, memory)).collect::<Vec<_>>();
    let (soupfs, nova) = (unlink("SoupFS"), unlink("NOVA"));
    assert!(soupfs.windows(2).all(|pair| pair[0] == pair[1]), "{soupfs:?}");
    assert!(nova.windows(2).all(|pair| pair[0] < pair[1]), "{nova:?}");
}
