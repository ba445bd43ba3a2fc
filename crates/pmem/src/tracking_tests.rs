//! Tests of marks and of the cut flag.

use crate::{Direct, LINE_BYTES, MarkedPage, Region, Sleeping, Tracking};
use core::ops::ControlFlow;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::collections::HashMap;
use std::ptr::NonNull;

const REGION_BYTES: usize = 64 << 20;

static SLEEPING: Sleeping = Sleeping {
    wait: |_, _, ms| std::thread::sleep(std::time::Duration::from_millis(ms.into())),
    wake: |_| {},
    now_ns: || 0,
};

/// Zeroed memory that starts at a page and lives as long as the tests.
fn pages(bytes: usize) -> *mut u8 {
    let layout = std::alloc::Layout::from_size_align(bytes, 4096).expect("a page");
    // SAFETY: the size is not zero.
    unsafe { std::alloc::alloc_zeroed(layout) }
}

fn tracked() -> Region<Direct> {
    let (base, area) = (pages(REGION_BYTES), pages(Tracking::area_bytes(REGION_BYTES as u64) as usize));
    // SAFETY: both are leaked, zeroed and of the right size.
    unsafe {
        let tracking = Tracking::new(NonNull::new(area).expect("memory"), REGION_BYTES as u64, &SLEEPING);
        Region::new(base, REGION_BYTES as u64, Direct).without_flushes().tracked(tracking).expect("fits")
    }
}

fn drain(tracking: &Tracking) -> Vec<MarkedPage> {
    let mut found = Vec::new();
    let _ = tracking.drain::<()>(&mut |page| {
        found.push(page);
        ControlFlow::Continue(())
    });
    found
}

#[test]
fn exactly_the_flushed_lines_are_marked_once() {
    let region = tracked();
    let tracking = region.tracking().expect("tracked");
    let last = REGION_BYTES as u64 - 1;
    for (offset, length) in [(0, 1), (4096 + 63, 2), (1 << 20, 3 * 4096), (last, 1)] {
        let dirty = region.write_bytes(offset, &vec![7; length as usize]).expect("inside");
        let _ = region.flush(dirty);
    }
    let page = |offset: u64, lines: u64| MarkedPage { offset, lines };
    let whole = [0, 1, 2].map(|index| page((1 << 20) + index * 4096, u64::MAX));
    let expected = [vec![page(0, 1), page(4096, 3)], whole.to_vec(), vec![page(REGION_BYTES as u64 - 4096, 1 << 63)]];
    assert_eq!(tracking.marked_bytes(), (1 + 2 + 3 * 64 + 1) * LINE_BYTES);
    assert_eq!(drain(tracking), expected.concat());
    assert_eq!(drain(tracking), []);
}

#[test]
fn streamed_and_copied_bytes_are_marked() {
    let region = tracked();
    let _ = region.stream_bytes(128, &[1; 64]).expect("inside");
    let _ = region.stream_within(128, 1 << 20, 64).expect("inside");
    let _ = region.stream_zeros(8 << 20, 4096).expect("inside");
    let found: Vec<_> =
        drain(region.tracking().expect("tracked")).iter().map(|page| (page.offset, page.lines)).collect();
    assert_eq!(found, [(0, 4), (1 << 20, 1), (8 << 20, u64::MAX)]);
}

#[test]
fn what_a_failed_commit_drained_is_marked_again() {
    let region = tracked();
    let tracking = region.tracking().expect("tracked");
    let touch = |offset: u64| drop(region.stream_bytes(offset, &[1; 64]).expect("inside"));
    [0, 64, 5 << 20, 40 << 20].into_iter().for_each(touch);
    let before = drain(tracking);
    touch(128);
    tracking.restore_pending();
    let after = drain(tracking);
    assert_eq!(after[0], MarkedPage { offset: 0, lines: 7 });
    assert_eq!(after[1..], before[1..]);
    tracking.clear_pending();
    tracking.restore_pending();
    assert_eq!(drain(tracking), []);
}

#[test]
fn an_area_has_marks_until_what_was_drained_is_on_the_disk() {
    let region = tracked();
    let tracking = region.tracking().expect("tracked");
    let touch = |offset: u64| drop(region.stream_bytes(offset, &[1; 64]).expect("inside"));
    assert!(!tracking.has_marks());
    touch(40 << 20);
    assert!(tracking.has_marks());
    for ends_early in [true, false] {
        let flow = tracking.drain(&mut |_| {
            assert!(tracking.has_marks(), "no other call may take the drained line for a committed one");
            if ends_early { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(flow.is_break(), ends_early);
        assert!(tracking.has_marks());
    }
    touch(0);
    tracking.clear_pending();
    assert!(tracking.has_marks(), "the line marked since");
    drain(tracking);
    tracking.clear_pending();
    assert!(!tracking.has_marks());
}

#[test]
fn a_drain_that_stops_leaves_the_rest_marked() {
    let region = tracked();
    let tracking = region.tracking().expect("tracked");
    let offsets: Vec<u64> = (0..40).map(|index| index * (1 << 20) + (index % 3) * 4096).collect();
    offsets.iter().for_each(|&offset| drop(region.stream_bytes(offset, &[1; 64]).expect("inside")));
    let mut seen = Vec::new();
    while tracking
        .drain(&mut |page| {
            // Every third one stops the drain, and is seen again.
            if seen.len() % 3 == 2 && seen.last() != Some(&page.offset) {
                seen.push(page.offset);
                return ControlFlow::Break(());
            }
            seen.push(page.offset);
            ControlFlow::Continue(())
        })
        .is_break()
    {}
    seen.dedup();
    assert_eq!(seen, offsets);
}

#[test]
fn a_fence_waits_for_the_flag_and_cancels_a_cut_that_lasts() {
    let region = tracked();
    let tracking = region.tracking().expect("tracked");
    let raised = tracking.raise_cut();
    let passed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = region.persist(region.write_bytes(0, &[1]).expect("inside"));
            passed.store(true, Release);
        });
        // The commit is stopped: nothing lowers the flag.
        while !passed.load(Acquire) {
            std::thread::yield_now();
        }
    });
    assert!(!tracking.lower_cut(raised), "the cut was cancelled");
    assert_eq!(tracking.waits().iter().sum::<u64>(), 1);
    let raised = tracking.raise_cut();
    assert!(tracking.lower_cut(raised));
}

/// A few under Miri, which is slow, and gives loads old values as often as the orderings permit.
const CUTS: u32 = if cfg!(miri) { 40 } else { 2000 };

/// Threads store pairs of counters, the second after the fence of the first. No cut shows a second
/// counter that is ahead of the first one.
#[test]
fn a_cut_holds_what_was_fenced_before_anything_that_follows_it() {
    let region = tracked();
    let tracking = region.tracking().expect("tracked");
    let cell = |offset: u64| region.get(crate::Pm::<crate::Cell64>::new(offset)).expect("inside");
    // The first counter of a pair is copied before the second one.
    let pairs = [1, 3].map(|place: u64| [place, place + 1].map(|place| place * (3 << 20)));
    let stop = AtomicBool::new(false);
    let mut copy = HashMap::new();
    let mut violation = None;
    std::thread::scope(|scope| {
        for [first, second] in pairs {
            let (region, stop) = (&region, &stop);
            scope.spawn(move || {
                for count in 1.. {
                    let _ = region.persist(region.set64(cell(first), count));
                    let _ = region.persist(region.set64(cell(second), count));
                    if stop.load(Relaxed) {
                        return;
                    }
                }
            });
        }
        let take = |copy: &mut HashMap<u64, u64>| {
            let _ = tracking.drain::<()>(&mut |page| {
                copy.insert(page.offset, cell(page.offset).load());
                ControlFlow::Continue(())
            });
        };
        let mut cuts = 0;
        while cuts < CUTS && violation.is_none() {
            take(&mut copy);
            let raised = tracking.raise_cut();
            take(&mut copy);
            if !tracking.lower_cut(raised) {
                tracking.restore_pending();
                continue;
            }
            tracking.clear_pending();
            cuts += 1;
            let counts = pairs.map(|pair| pair.map(|offset| copy.get(&offset).copied().unwrap_or(0)));
            violation = counts.into_iter().find(|[first, second]| first < second);
        }
        stop.store(true, Relaxed);
    });
    assert_eq!(violation, None, "a second counter without the first one");
}
