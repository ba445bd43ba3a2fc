//! The states that a crash may leave: stores through a region, or handmade logs, against the
//! model's expected outcomes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

use pmem::{Bytes, CrashImage, Direct, Event, Grain, MappedRegion, Mapping, Recorded, Recorder, Region};

const LENGTH: usize = 4096;
const ALL: u32 = 16;

fn region() -> MappedRegion<Recorder> {
    let region = Arc::new(Mapping::anonymous(LENGTH as u64).unwrap()).region(Recorder::new()).unwrap();
    region.memory().start();
    region
}

/// Stores a word without flushing it.
fn store(region: &Region<Recorder>, offset: u64, value: u64) {
    let _forgotten = region.write_bytes(offset, &value.to_le_bytes()).unwrap();
}

/// Stores a word and flushes its line without a fence.
fn store_and_flush(region: &Region<Recorder>, offset: u64, value: u64) {
    store(region, offset, value);
    region.flush_range(offset, 8).unfenced();
}

/// A fence for everything that this thread flushed.
fn fence(region: &Region<Recorder>) {
    let _ = region.fence(pmem::Flushed::nothing());
}

/// Every combination of values that the words at `offsets` may have after a crash at the end of the
/// log.
fn outcomes<const N: usize>(log: &[Recorded], grain: Grain, offsets: [usize; N]) -> BTreeSet<[u64; N]> {
    let mut crash = CrashImage::new(vec![0; LENGTH], log);
    while crash.advance() {}
    let mut image = crash.durable().to_vec();
    let mut seen = BTreeSet::new();
    for state in crash.states(grain, ALL, 0, 0) {
        state.apply(&mut image);
        seen.insert(offsets.map(|offset| u64::from_le_bytes(image[offset..offset + 8].try_into().unwrap())));
        state.undo(&mut image);
        assert_eq!(image, crash.durable(), "undone");
    }
    seen
}

fn set<const N: usize>(values: impl IntoIterator<Item = [u64; N]>) -> BTreeSet<[u64; N]> {
    values.into_iter().collect()
}

#[test]
fn an_unflushed_store_may_be_lost_even_after_a_fence() {
    let region = region();
    store(&region, 0, 7);
    fence(&region);
    assert_eq!(outcomes(&region.memory().take(), Grain::Line, [0]), set([[0], [7]]));
}

#[test]
fn a_flushed_store_may_be_lost_until_the_fence() {
    let region = region();
    store_and_flush(&region, 0, 7);
    assert_eq!(outcomes(&region.memory().take(), Grain::Line, [0]), set([[0], [7]]));
}

#[test]
fn a_fenced_store_is_there() {
    let region = region();
    store_and_flush(&region, 0, 7);
    fence(&region);
    assert_eq!(outcomes(&region.memory().take(), Grain::Word, [0]), set([[7]]));
}

#[test]
fn a_store_after_the_flush_is_not_covered_by_it() {
    let region = region();
    store_and_flush(&region, 0, 7);
    store(&region, 0, 8);
    store(&region, 8, 9);
    fence(&region);
    assert_eq!(outcomes(&region.memory().take(), Grain::Word, [0, 8]), set([[7, 0], [7, 9], [8, 0], [8, 9]]));
}

#[test]
fn a_neighbour_on_the_same_line_is_flushed_along_but_one_on_the_next_line_is_not() {
    let region = region();
    store(&region, 56, 1);
    store(&region, 64, 2);
    store_and_flush(&region, 0, 3);
    fence(&region);
    assert_eq!(outcomes(&region.memory().take(), Grain::Word, [0, 56, 64]), set([[3, 1, 0], [3, 1, 2]]));
}

#[test]
fn another_threads_fence_does_not_help() {
    let region = region();
    store_and_flush(&region, 0, 7);
    thread::scope(|scope| {
        scope.spawn(|| fence(&region));
    });
    assert_eq!(outcomes(&region.memory().take(), Grain::Line, [0]), set([[0], [7]]));
}

#[test]
fn a_thread_may_flush_and_fence_what_another_stored() {
    let region = region();
    store(&region, 0, 7);
    thread::scope(|scope| {
        scope.spawn(|| {
            region.flush_range(0, 8).unfenced();
            fence(&region);
        });
    });
    assert_eq!(outcomes(&region.memory().take(), Grain::Word, [0]), set([[7]]));
}

#[test]
fn an_older_flush_that_is_fenced_late_brings_nothing_back() {
    let region = region();
    store_and_flush(&region, 0, 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            store_and_flush(&region, 0, 2);
            fence(&region);
        });
    });
    fence(&region);
    assert_eq!(outcomes(&region.memory().take(), Grain::Word, [0]), set([[2]]));
}

#[test]
fn lines_persist_in_any_order() {
    let region = region();
    store(&region, 0, 1);
    store(&region, 64, 2);
    store(&region, 128, 3);
    let all = set((0..8).map(|bits: u64| [bits & 1, (bits >> 1 & 1) * 2, (bits >> 2) * 3]));
    assert_eq!(outcomes(&region.memory().take(), Grain::Line, [0, 64, 128]), all);
}

#[test]
fn a_line_tears_between_words_at_the_grain_of_words_only() {
    let region = region();
    store(&region, 0, 1);
    store(&region, 8, 2);
    let log = region.memory().take();
    assert_eq!(outcomes(&log, Grain::Line, [0, 8]), set([[0, 0], [1, 2]]));
    assert_eq!(outcomes(&log, Grain::Instant, [0, 8]), set([[0, 0], [1, 0], [1, 2]]), "in the order of the stores");
    assert_eq!(outcomes(&log, Grain::Word, [0, 8]), set([[0, 0], [1, 0], [0, 2], [1, 2]]));
}

#[test]
fn a_word_may_have_any_value_since_it_was_durable_and_none_from_before() {
    let region = region();
    store(&region, 0, 1);
    store_and_flush(&region, 0, 2);
    fence(&region);
    store(&region, 0, 3);
    store(&region, 0, 4);
    let log = region.memory().take();
    assert_eq!(outcomes(&log, Grain::Word, [0]), set([[2], [3], [4]]));
    assert_eq!(outcomes(&log, Grain::Line, [0]), set([[2], [4]]));
}

#[test]
fn a_word_never_tears_but_odd_bytes_arrive_piece_by_piece() {
    let region = region();
    store(&region, 0, u64::MAX);
    let _forgotten = region.write_bytes(64, &[1; 7]).unwrap();
    let log = region.memory().take();
    assert_eq!(outcomes(&log, Grain::Word, [0]), set([[0], [u64::MAX]]));
    let pieces = [0, 0x0101_0101, 0x0101_0101_0101, 0x01_0101_0101_0101];
    assert_eq!(outcomes(&log, Grain::Word, [64]), set(pieces.map(|value| [value])));
}

#[test]
fn a_streamed_block_needs_the_fence_and_nothing_else() {
    let region = region();
    region.stream_bytes(0, &[1; 1024]).unwrap().unfenced();
    let log = region.memory().take();
    assert_eq!(outcomes(&log, Grain::Line, [0]), set([[0], [0x0101_0101_0101_0101]]));

    region.memory().start();
    let flushed = region.stream_bytes(0, &[1; 1024]).unwrap();
    let _ = region.fence(flushed);
    let mut log = region.memory().take();
    let mut crash = CrashImage::new(vec![0; LENGTH], &log);
    assert_eq!(crash.lines().count(), 16);
    assert!(crash.advance());
    assert_eq!(crash.lines().count(), 0);
    assert_eq!(crash.durable()[..1024], [1; 1024]);
    // A streaming store covers nothing else of its line.
    log.insert(0, Recorded { thread: 0, event: Event::Store { offset: 1024 - 64, bytes: Bytes::from(&[2; 8][..]) } });
    log[1] = Recorded { thread: 0, event: Event::Stream { offset: 0, bytes: Bytes::from(&[1; 960][..]) } };
    assert_eq!(outcomes(&log, Grain::Word, [952, 960]).len(), 2);
}

#[test]
fn copies_within_a_region_are_seen_as_the_bytes_that_arrived() {
    let region = region();
    let flushed = region.stream_bytes(0, &[5; 1000]).unwrap().and(region.stream_within(0, 2048, 1000).unwrap());
    let _ = region.fence(flushed);
    let log = region.memory().take();
    let mut crash = CrashImage::new(vec![0; LENGTH], &log);
    assert!(crash.advance());
    assert_eq!(crash.durable()[2048..3048], [5; 1000]);
    assert_eq!(crash.durable()[3048], 0);
}

#[test]
fn the_crash_visits_every_fence_and_knows_which_operations_were_under_way() {
    let region = region();
    region.memory().mark(1);
    store_and_flush(&region, 0, 1);
    fence(&region);
    region.memory().mark(2);
    store_and_flush(&region, 0, 2);
    fence(&region);
    region.memory().mark(3);
    let log = region.memory().take();
    let mut crash = CrashImage::new(vec![0; LENGTH], &log);
    let mut visited = vec![(crash.fences(), crash.durable()[0], crash.marks().collect::<Vec<_>>())];
    while crash.advance() {
        visited.push((crash.fences(), crash.durable()[0], crash.marks().collect()));
    }
    assert_eq!(visited, [(0, 0, vec![(0, 1)]), (1, 1, vec![(0, 1), (0, 2)]), (2, 2, vec![(0, 1), (0, 2), (0, 3)]),]);
    assert_eq!(crash.position(), log.len());
}

#[test]
fn a_state_comes_back_by_its_id() {
    let region = region();
    for round in 0..3 {
        for line in 0..20 {
            store(&region, line * 64, round * 100 + line + 1);
            store(&region, line * 64 + 8, round * 100 + line + 2);
        }
        region.flush_range(0, 64 * 10).unfenced();
        fence(&region);
    }
    let log = region.memory().take();
    for grain in [Grain::Line, Grain::Instant, Grain::Word] {
        let mut crash = CrashImage::new(vec![0; LENGTH], &log);
        assert!(crash.advance_to(2));
        let states: Vec<_> = crash.states(grain, 4, 200, 42).collect();
        assert_eq!(states.len(), 200);
        assert!(states[0].changes().is_empty(), "all lost");
        assert_eq!(states[1].changes().len(), 40, "all persisted");
        let again: Vec<_> = crash.states(grain, 4, 200, 42).collect();
        assert_eq!(states, again, "the same seed draws the same");
        let different: BTreeSet<_> = states.iter().map(|state| format!("{:?}", state.changes())).collect();
        assert!(different.len() > 100, "the sample is {} different states", different.len());
        for state in states {
            let id = state.id().to_string();
            let mut later = CrashImage::new(vec![0; LENGTH], &log);
            assert!(later.advance_to(state.id().fence()));
            assert_eq!(later.state(id.parse().unwrap()), Some(state), "{id}");
        }
    }
}

#[test]
fn ids_are_short_and_foreign_ones_are_refused() {
    let region = region();
    store(&region, 0, 1);
    store(&region, 64, 1);
    let log = region.memory().take();
    let crash = CrashImage::new(vec![0; LENGTH], &log);
    let ids: Vec<_> = crash.states(Grain::Line, ALL, 0, 0).map(|state| state.id().to_string()).collect();
    assert_eq!(ids, ["f0:l0", "f0:l1", "f0:l2", "f0:l3"]);
    assert_eq!(crash.state("f0:l0b3".parse().unwrap()), None, "there are fewer lines");
    assert_eq!(crash.state("f1:l0".parse().unwrap()), None, "it belongs to another fence");
    for nonsense in ["", "f", "f1", "f1:", "f1:x0", "f1:l", "fx:l0", "f1:l~", "f1:lzz"] {
        let error = nonsense.parse::<pmem::StateId>().unwrap_err();
        assert!(error.to_string().contains("is not the id of a crash state"), "{nonsense}");
    }
}

#[test]
fn a_sample_tries_to_lose_each_line_alone() {
    let region = region();
    for line in 0..30 {
        store(&region, line * 64, 1);
    }
    let log = region.memory().take();
    let crash = CrashImage::new(vec![0; LENGTH], &log);
    let lost_alone: BTreeSet<_> = crash
        .states(Grain::Line, 10, 3000, 7)
        .filter(|state| state.changes().len() == 29)
        .map(|state| (0..30).find(|line| state.changes().iter().all(|change| change.offset != line * 64)).unwrap())
        .collect();
    assert_eq!(lost_alone.len(), 30);
}

#[test]
fn nothing_is_recorded_before_start_and_after_stop() {
    let region = Arc::new(Mapping::anonymous(LENGTH as u64).unwrap()).region(Recorder::new()).unwrap();
    store(&region, 0, 1);
    region.memory().start();
    store(&region, 0, 2);
    region.memory().stop();
    store(&region, 0, 3);
    let log = region.memory().take();
    let expected = Event::Store { offset: 0, bytes: Bytes::from(&2u64.to_le_bytes()[..]) };
    assert_eq!(log, [Recorded { thread: 0, event: expected }]);
    assert!(region.memory().take().is_empty(), "taken once");
}

#[test]
fn the_recorder_may_outlive_the_region() {
    let recorder = Arc::new(Recorder::new());
    let region = Arc::new(Mapping::anonymous(4096).unwrap()).region(Arc::clone(&recorder)).unwrap();
    recorder.start();
    let dirty = region.write_bytes(8, b"long enough for a box").unwrap();
    let _ = region.persist(dirty);
    let events: Vec<_> = recorder.take().into_iter().map(|recorded| recorded.event).collect();
    assert_eq!(
        events,
        [
            Event::Store { offset: 8, bytes: Bytes::from(&b"long enough for a box"[..]) },
            Event::Flush { offset: 8, length: 21 },
            Event::Fence
        ]
    );
}

/// The model stated the other way round: a word may have every value from the last one that some
/// flush and a later fence of the same thread covered.
fn allowed(log: &[Recorded], word: u64) -> BTreeSet<u64> {
    let stores: Vec<(usize, u64)> = log
        .iter()
        .enumerate()
        .filter_map(|(at, recorded)| match &recorded.event {
            Event::Store { offset, bytes } if *offset == word * 8 => {
                Some((at, u64::from_le_bytes(bytes[..].try_into().unwrap())))
            }
            _ => None,
        })
        .collect();
    let covered_until = log.iter().enumerate().filter_map(|(at, recorded)| match recorded.event {
        Event::Flush { offset, .. } if offset / 64 == word / 8 => {
            let fenced = log[at..].iter().any(|later| later.event == Event::Fence && later.thread == recorded.thread);
            fenced.then_some(at)
        }
        _ => None,
    });
    let durable = covered_until.max().map_or(0, |until| stores.partition_point(|(at, _)| *at < until));
    let oldest = if durable == 0 { 0 } else { stores[durable - 1].1 };
    std::iter::once(oldest).chain(stores[durable..].iter().map(|(_, value)| *value)).collect()
}

#[test]
fn words_have_exactly_the_values_that_the_rule_allows_in_any_log() {
    let mut random = 1u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for _ in 0..2000 {
        let log: Vec<Recorded> = (1..30)
            .map(|value: u64| {
                let event = match next(6) {
                    0..3 => Event::Store { offset: next(20) * 8, bytes: Bytes::from(&value.to_le_bytes()[..]) },
                    3 | 4 => Event::Flush { offset: next(20) * 8, length: 8 },
                    _ => Event::Fence,
                };
                Recorded { thread: next(3) as u32, event }
            })
            .collect();
        let mut crash = CrashImage::new(vec![0; LENGTH], &log);
        while crash.advance() {}
        for word in 0..20 {
            let line = crash.lines().find(|line| line.offset == word / 8 * 64);
            let durable: [u8; 8] = crash.durable()[word as usize * 8..][..8].try_into().unwrap();
            let values = line.map_or(vec![durable], |line| line.words[word as usize % 8].clone());
            let values: BTreeSet<u64> = values.into_iter().map(u64::from_le_bytes).collect();
            assert_eq!(values, allowed(&log, word), "word {word} of {log:?}");
        }
    }
}

#[test]
fn unwatched_copies_within_a_region_are_right_too() {
    let region = Arc::new(Mapping::anonymous(LENGTH as u64).unwrap()).region(Direct).unwrap();
    let bytes: Vec<u8> = (0..1000u32).map(|index| index as u8).collect();
    for (from, to, length) in [(0, 1024, 1000), (3, 1030, 700), (2050, 9, 64), (5, 6, 1)] {
        let flushed = region.stream_bytes(from, &bytes[..length as usize]).unwrap();
        let _ = region.fence(flushed.and(region.stream_within(from, to, length).unwrap()));
        assert!(region.bytes_equal(to, &bytes[..length as usize]));
    }
    assert!(region.stream_within(0, 10, 11).is_err(), "they overlap");
    assert!(region.stream_within(0, LENGTH as u64 - 10, 11).is_err(), "beyond the end");
    assert!(region.stream_within(u64::MAX, 0, 11).is_err());
    assert!(region.stream_zeros(u64::MAX, 2).is_err());
    assert!(region.stream_zeros(LENGTH as u64 - 10, 11).is_err());
}
