//! A sample of the crash exploration that `torture` runs for hours; it takes a minute.

use torture::campaign;
use torture::catalogue::{OPERATIONS, SETUPS};
use torture::explore::{Effort, Explorer, NotPassed};
use torture::injected::DEFECTS;
use torture::recording::Source;
use torture::workload::{Group, Workload};

const SEED: u64 = 7;
/// Operations that are refused on purpose.
const REFUSED: &[&str] = &["rmdir-full", "rename-dir-into-itself"];

fn explore(workloads: impl Iterator<Item = Workload>) {
    let mut explorer = Explorer::new(Effort::QUICK, SEED);
    let violations: Vec<_> = workloads.filter_map(|workload| explorer.explore(&workload).err()).collect();
    let text: String = violations.iter().map(|violation| format!("\n{violation}")).collect();
    assert!(violations.is_empty(), "{text}");
    assert!(explorer.counts.states > explorer.counts.fences, "{:?}", explorer.counts);
}

#[test]
fn crashes_during_single_operations() {
    explore(Group::Singles.workloads().into_iter());
}

#[test]
fn crashes_on_other_file_systems() {
    explore(Group::Setups.workloads().into_iter().step_by(9));
}

#[test]
fn crashes_at_the_ends_of_pages_and_in_compactions() {
    explore(Group::Pages.workloads().into_iter().step_by(31));
}

#[test]
fn crashes_during_second_operations() {
    explore(Group::Pairs.workloads().into_iter().step_by(97));
    explore(Group::Threads.workloads().into_iter().step_by(211));
}

#[test]
fn every_injected_defect_is_found() {
    let missed: Vec<_> = campaign::injected(Source::Recorder, Effort::FULL, SEED)
        .into_iter()
        .filter_map(|(name, violation)| if violation.is_none() { Some(name) } else { None })
        .collect();
    assert!(missed.is_empty(), "{missed:?}");
    assert!(DEFECTS.len() >= 20);
}

#[test]
fn a_violation_comes_back_by_its_id() {
    let defect = &DEFECTS[0];
    let workload = defect.workload.parse().expect("a workload");
    let mut explorer = Explorer::new(Effort::QUICK, SEED);
    let violation = explorer.explore_injected(&workload, Some(defect)).expect_err("a violation");
    let mut other = Explorer::new(Effort::FULL, 0);
    let again = other.replay(&violation.id, Some(defect), &mut |_| {});
    assert_eq!(again, Err(NotPassed::Violation(violation.what)));
    assert!(other.replay(&violation.id, None, &mut |_| {}).is_ok(), "without the defect it passes");
}

#[test]
fn operations_do_what_their_names_mean() {
    let mut explorer = Explorer::new(Effort::QUICK, SEED);
    for workload in Group::Singles.workloads() {
        let results = explorer.record(&workload).expect("runs").results;
        let name = workload.operations[0].name;
        assert_eq!(results[0].is_err(), REFUSED.contains(&name), "{name}: {results:?}");
    }
}

#[test]
fn names_are_unique_and_ids_lead_back() {
    let mut ids: Vec<_> = Group::ALL.iter().flat_map(|group| group.workloads()).map(|each| each.to_string()).collect();
    for id in &ids {
        assert_eq!(id.parse::<Workload>().map(|workload| workload.to_string()).as_ref(), Ok(id));
    }
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count);
    assert!(count > 5000, "{count} workloads");
    assert!(OPERATIONS.len() > 80 && SETUPS.len() > 8);
}
