//! When memory is provided in huge pages: while they cost less than single pages.
//!
//! A huge page saves 511 page faults of each process that touches it, and misses of the TLB. It
//! costs no more than the single pages in its place, if the kernel has one. Otherwise the kernel
//! compacts memory. Or, on a virtual machine that reports its free memory to the host, each huge
//! page is one that the host takes back and clears, while single pages come from what the kernel
//! freed just before. Then a huge page takes up to five times as long as 512 single pages.
//!
//! So a process measures: what an eighth of a huge page costs in single pages, and then what a huge
//! page costs. One that is dear, or that there is not, makes it leave out the next ones, at first 4
//! and at last 64 of them. Then it measures both again.
//!
//! Time is that of the processor: what a thread waits for others says nothing of the pages.
//!
//! The allocating thread collapses pages (`MADV_COLLAPSE`) from the second 2 MiB of each area on.
//! *Reason:* with a million files on a Xeon 2.8 GHz, stat fell from 673 to 406 ns, create from
//! 1,117 to 933, unlink from 1,299 to 725. But on a virtual machine that reports free pages to its
//! host, collapsing 2 MiB cost up to 3 ms: 60 % of the time of `tar -x` into a fresh image. There,
//! with measurements, the first `tar -x` of 180 MB is as fast as without huge pages, and later ones
//! take a tenth less.
//!
//! *Rejected:* the first 2 MiB as well (within the noise); populating 8 to 128 small pages at a
//! fault (no faster by the page); populating the pages of block groups (later rounds took 19 to 25
//! µs a file of 32 KiB instead of 6, since each later program pays its own faults).

use crate::host::{collapse, populate};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use engine::dram::HUGE_PAGE_BYTES;
use rustix::time::{ClockId, clock_gettime};

/// What is measured in single pages: so much of a huge page.
const SAMPLE: u64 = 8;
/// Huge pages that are left out after a dear one: at first, and at most.
const PAUSE: [u64; 2] = [4, 64];

/// What a process knows of huge pages. Threads that meet here lose a measurement at most.
pub(crate) struct HugePages {
    /// Cost of a huge page's bytes in single pages; zero: not measured.
    single_ns: AtomicU64,
    /// Huge pages still to be left out.
    left_out: AtomicU64,
    /// Huge pages left out after the last dear one; zero: the last one was not dear.
    pause: AtomicU64,
}

pub(crate) static HUGE_PAGES: HugePages = HugePages::new();

impl HugePages {
    const fn new() -> HugePages {
        HugePages { single_ns: AtomicU64::new(0), left_out: AtomicU64::new(0), pause: AtomicU64::new(0) }
    }

    /// Provides a huge page at an address, unless they are dear. Returns whether it has one.
    pub(crate) fn provide(&self, address: *mut u8) -> bool {
        if !self.is_due() {
            return false;
        }
        if self.single_ns.load(Relaxed) == 0 {
            let bytes = HUGE_PAGE_BYTES / SAMPLE;
            // Its last part is touched last.
            let sample = address.wrapping_add((HUGE_PAGE_BYTES - bytes) as usize);
            let (_, cost_ns) = timed(|| populate(sample, bytes as usize));
            self.single_ns.store(cost_ns * SAMPLE, Relaxed);
        }
        let (is_made, cost_ns) = timed(|| collapse(address, HUGE_PAGE_BYTES as usize));
        self.judge(is_made.then_some(cost_ns));
        is_made
    }

    /// Whether to try the next huge page, which is counted.
    fn is_due(&self) -> bool {
        let left_out = self.left_out.load(Relaxed);
        self.left_out.store(left_out.saturating_sub(1), Relaxed);
        left_out == 0
    }

    /// Records the cost of a huge page; none: there was none.
    fn judge(&self, cost_ns: Option<u64>) {
        let single_ns = self.single_ns.load(Relaxed);
        // What it saves later is worth half of that.
        if cost_ns.is_some_and(|cost_ns| cost_ns <= single_ns + single_ns / 2) {
            self.pause.store(0, Relaxed);
            return;
        }
        let pause = (self.pause.load(Relaxed) * 2).clamp(PAUSE[0], PAUSE[1]);
        self.pause.store(pause, Relaxed);
        self.left_out.store(pause, Relaxed);
        self.single_ns.store(0, Relaxed);
    }
}

/// A result, and the time of the processor that it took.
fn timed<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let now_ns = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
    };
    let began_ns = now_ns();
    let result = work();
    (result, now_ns().saturating_sub(began_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of huge pages that are left out until one is tried.
    fn left_out(pages: &HugePages) -> u64 {
        (0..1000).find(|_| pages.is_due()).unwrap()
    }

    fn with_single_pages_for(single_ns: u64) -> HugePages {
        let pages = HugePages::new();
        pages.single_ns.store(single_ns, Relaxed);
        pages
    }

    #[test]
    fn huge_pages_are_used_while_they_cost_as_much_as_single_pages() {
        let pages = with_single_pages_for(1000);
        for cost_ns in [300, 1000, 1500] {
            assert_eq!(left_out(&pages), 0);
            pages.judge(Some(cost_ns));
        }
        assert_eq!((left_out(&pages), pages.single_ns.load(Relaxed)), (0, 1000));
    }

    #[test]
    fn dear_huge_pages_are_left_out_ever_longer_and_measured_again() {
        let pages = HugePages::new();
        for pause in [4, 8, 16, 32, 64, 64] {
            pages.single_ns.store(1000, Relaxed);
            pages.judge(Some(1501));
            assert_eq!(pages.single_ns.load(Relaxed), 0, "single pages may cost more by now");
            assert_eq!(left_out(&pages), pause);
        }
        pages.single_ns.store(1000, Relaxed);
        pages.judge(Some(900));
        assert_eq!(left_out(&pages), 0);
        pages.judge(None);
        assert_eq!(left_out(&pages), 4, "none at all counts as a dear one, and the cheap one ended the row");
    }
}
