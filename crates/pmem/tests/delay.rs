//! The waits that slow memory causes: when they happen, and how long they are.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pmem::{Delayed, Delays, MappedRegion, Mapping, Spin, Wait};

/// Records the requested waits instead of waiting.
#[derive(Default)]
struct Waits(Mutex<Vec<u64>>);

impl Wait for Waits {
    fn wait(&self, ns: u64) {
        self.0.lock().unwrap().push(ns);
    }
}

impl Waits {
    fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn slow(read_ns: u64, write_ns: u64) -> (MappedRegion<Delayed<Arc<Waits>>>, Arc<Waits>) {
    let waits = Arc::new(Waits::default());
    let memory = Delayed::with_wait(Delays { read_ns, write_ns }, Arc::clone(&waits));
    (Arc::new(Mapping::anonymous(8192).unwrap()).region(memory).unwrap(), waits)
}

#[test]
fn writes_are_paid_for_at_the_fence_by_the_flushed_line() {
    let (region, waits) = slow(0, 100);
    let dirty = region.write_bytes(60, &[1; 8]).unwrap();
    assert!(waits.take().is_empty(), "a store goes to the cache");
    let flushed = region.flush(dirty);
    assert!(waits.take().is_empty(), "a flush returns at once");
    let _ = region.fence(flushed);
    assert_eq!(waits.take(), [200], "two lines");
    let _ = region.fence(pmem::Flushed::nothing());
    assert!(waits.take().is_empty(), "nothing was flushed since");
}

#[test]
fn streamed_lines_cost_like_flushed_ones() {
    let (region, waits) = slow(0, 100);
    let flushed = region.stream_bytes(0, &[1; 4096]).unwrap();
    let _ = region.fence(flushed);
    assert_eq!(waits.take(), [6400]);
}

#[test]
fn reads_are_paid_for_at_once_by_the_touched_line() {
    let (region, waits) = slow(300, 0);
    region.report_read(64, 64);
    region.report_read(64, 65);
    region.report_read(63, 2);
    region.report_read(64, 0);
    region.read_bytes(0, &mut [0; 256]).unwrap();
    assert_eq!(waits.take(), [300, 600, 600, 1200]);
}

#[test]
fn no_delay_is_no_wait() {
    let (region, waits) = slow(0, 0);
    let flushed = region.stream_bytes(0, &[1; 4096]).unwrap();
    let _ = region.fence(flushed);
    region.read_bytes(0, &mut [0; 256]).unwrap();
    assert!(waits.take().is_empty());
}

#[test]
fn a_thread_pays_for_its_own_flushes_only() {
    let (region, waits) = slow(0, 100);
    region.flush_range(0, 64).unfenced();
    thread::scope(|scope| {
        scope.spawn(|| region.fence(pmem::Flushed::nothing()));
    });
    assert!(waits.take().is_empty());
    let _ = region.fence(pmem::Flushed::nothing());
    assert_eq!(waits.take(), [100]);
}

#[test]
fn spinning_takes_at_least_about_as_long_as_asked() {
    let spin = Spin::new();
    let start = Instant::now();
    spin.wait(20_000_000);
    // No upper bound: the machine may be busy. Calibration may be slightly off.
    assert!(start.elapsed() > Duration::from_millis(18), "{:?}", start.elapsed());
}
