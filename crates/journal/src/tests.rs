//! Tests of the journal: the explorer over a number of seeds, the defects that it must find, and
//! single promises.

use crate::explorer::{
    Event, IMAGE_BYTES, LOG_BYTES, Random, SimulatedDisk, UUID, World, examine, examine_deaths, recover,
};
use crate::injected::{DEFECTS, inject};
use crate::{CHUNK_BYTES_MIN, HeaderError, Journal, JournalError};
use std::cell::Cell;

/// Seeds that a run of the tests examines; `JOURNAL_SEEDS` sets another number.
fn seeds() -> u64 {
    std::env::var("JOURNAL_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(8)
}

#[test]
fn every_crash_state_recovers_to_a_committed_one() {
    let mut states = 0;
    for seed in 1..=seeds() {
        for failures in [false, true] {
            states += examine(seed, failures).unwrap_or_else(|| panic!("seed {seed}, failing calls: {failures}"));
        }
    }
    println!("{states} crash states, 0 violations");
    assert!(states > 10_000);
}

#[test]
fn a_process_that_dies_at_any_step_leaves_a_state_that_fits_its_disk_and_no_older_one() {
    for seed in 1..=seeds() {
        for failures in [false, true] {
            let refused = examine_deaths(seed, failures);
            assert!(
                refused.is_some_and(|refused| refused > 100),
                "seed {seed}, failing calls: {failures}: {refused:?}"
            );
        }
    }
}

#[test]
fn each_injected_defect_is_found() {
    let missed: Vec<_> = DEFECTS
        .iter()
        .filter(|&&defect| {
            inject(Some(defect));
            // A defect may also end in a panic or an error.
            let found = (1..=60).any(|seed| {
                let holds = |failures| std::panic::catch_unwind(|| examine(seed, failures).is_some()).unwrap_or(false);
                !holds(false) || !holds(true)
            });
            inject(None);
            !found
        })
        .collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn an_unchanged_region_writes_nothing() {
    let mut world = World::new(3);
    world.change();
    world.commit().expect("commits");
    let before = world.disk.events.borrow().len();
    world.commit().expect("commits");
    assert_eq!(world.disk.events.borrow().len(), before + 2, "only the notes of the test");
}

#[test]
fn a_small_change_is_one_block_and_one_flush() {
    let mut world = World::new(3);
    let _ = world.region.persist(world.region.write_bytes(640, &[7; 200]).expect("inside"));
    world.commit().expect("commits");
    let events = world.disk.events.borrow();
    let [Event::Began(_), Event::Write(_, bytes), Event::Flush, Event::Stored(_), Event::Acknowledged(_)] = &events[..]
    else {
        panic!("{} events", events.len());
    };
    assert_eq!(bytes.len(), 4096);
}

#[test]
fn a_commit_longer_than_the_log_is_whole() {
    let mut world = World::new(3);
    let bytes: Vec<u8> = (0..IMAGE_BYTES).map(|index| (index * 7) as u8).collect();
    for _ in 0..2 {
        let _ = world.region.stream_bytes(0, &bytes).expect("inside");
        world.commit().expect("commits");
    }
    assert!(world.state.get().used_bytes > LOG_BYTES);
    let disk = SimulatedDisk::of(world.disk.bytes.borrow().clone());
    recover(&disk).expect("recovers");
    assert_eq!(disk.image(), bytes);
}

#[test]
fn a_chunk_that_exceeds_the_buffer_is_not_taken_for_the_end_of_the_log() {
    let mut world = World::new(3);
    world.buffer = vec![0; 4 * CHUNK_BYTES_MIN];
    let bytes = vec![7; 2 * CHUNK_BYTES_MIN];
    let _ = world.region.stream_bytes(0, &bytes).expect("inside");
    world.commit().expect("commits");
    let error = recover(&world.disk).expect_err("the buffer is short");
    assert!(matches!(error, JournalError::ShortBuffer { needed } if needed as usize > CHUNK_BYTES_MIN), "{error:?}");
    let (journal, state) = Journal::open(&world.disk, UUID, IMAGE_BYTES as u64).expect("opens");
    journal.recover(&Cell::new(state), &mut world.buffer).expect("recovers");
    assert_eq!(world.disk.image()[..bytes.len()], bytes);
}

#[test]
fn a_journal_that_is_not_the_images_is_refused() {
    let world = World::new(3);
    let open = |uuid, length| Journal::open(&world.disk, uuid, length).map(drop).expect_err("refused");
    assert_eq!(open(*b"another uuid....", IMAGE_BYTES as u64), HeaderError::Foreign.into());
    assert_eq!(open(UUID, IMAGE_BYTES as u64 / 2), HeaderError::Absent.into());
    let newest = IMAGE_BYTES + 4096;
    world.disk.bytes.borrow_mut()[newest + 8] = 2;
    assert_eq!(open(UUID, IMAGE_BYTES as u64), HeaderError::Version { found: 2, features: 0 }.into());
    world.disk.bytes.borrow_mut()[newest + 8] = 1;
    world.disk.bytes.borrow_mut()[newest + 20] ^= 1;
    assert_eq!(open(UUID, IMAGE_BYTES as u64), HeaderError::Damaged.into());
    world.disk.bytes.borrow_mut().truncate(IMAGE_BYTES);
    assert_eq!(open(UUID, IMAGE_BYTES as u64), HeaderError::Absent.into());
}

#[test]
fn a_log_of_arbitrary_bytes_is_never_applied_and_never_panics() {
    let mut random = Random(0x5eed);
    for _ in 0..300 {
        let mut world = World::new(random.next());
        world.change();
        world.commit().expect("commits");
        let log = IMAGE_BYTES + 2 * 4096;
        let before = world.disk.image();
        for _ in 0..1 + random.below(4) {
            let at = log + random.below(4096) as usize;
            world.disk.bytes.borrow_mut()[at] ^= 1 << random.below(8);
        }
        recover(&world.disk).expect("recovers");
        let after = world.disk.image();
        assert!(after == before || after == world.snapshots[1], "half of a commit was applied");
    }
}
