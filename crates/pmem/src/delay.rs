//! Memory with configurable delays, to emulate slow memory on machines with fast memory only.

use std::cell::Cell;
use std::hint;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::memory::Memory;
use crate::{LINE_BYTES, UserBytes};

/// Additional time over this machine's memory; zero means no delay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delays {
    /// Nanoseconds for each line that is read from the medium.
    pub read_ns: u64,
    /// Nanoseconds for each line that is written to the medium.
    pub write_ns: u64,
}

/// Passes time. The real implementation is [`Spin`]; a test may count instead.
pub trait Wait: Send + Sync + 'static {
    /// Returns `ns` nanoseconds later.
    fn wait(&self, ns: u64);
}

impl<W: Wait> Wait for std::sync::Arc<W> {
    fn wait(&self, ns: u64) {
        (**self).wait(ns);
    }
}

/// Waits by polling the time stamp counter. The waits are too short for a clock or a sleep; the
/// counter is exact to about 20 ns.
#[derive(Debug, Clone, Copy)]
pub struct Spin {
    // Fixed point: a division in every wait would cost as much as a short wait.
    ticks_per_1024_ns: u64,
}

impl Spin {
    /// Calibrates the counter against the clock on first use in a process (10 ms).
    pub fn new() -> Spin {
        static TICKS_PER_1024_NS: OnceLock<u64> = OnceLock::new();
        Spin { ticks_per_1024_ns: *TICKS_PER_1024_NS.get_or_init(calibrate) }
    }

    /// The counter's current value.
    #[inline]
    pub fn now_ticks(&self) -> u64 {
        ticks()
    }

    /// The number of counter ticks in `ns` nanoseconds.
    #[inline]
    pub fn ticks_of(&self, ns: u64) -> u64 {
        ((ns as u128 * self.ticks_per_1024_ns as u128) >> 10) as u64
    }

    /// Returns when the counter has advanced by `count`.
    #[inline]
    pub fn wait_ticks(&self, count: u64) {
        let start = ticks();
        // If the thread moves to a processor whose counter is behind, the difference wraps and the
        // wait ends early.
        while ticks().wrapping_sub(start) < count {
            hint::spin_loop();
        }
    }
}

impl Default for Spin {
    fn default() -> Spin {
        Spin::new()
    }
}

impl Wait for Spin {
    fn wait(&self, ns: u64) {
        self.wait_ticks(self.ticks_of(ns));
    }
}

fn ticks() -> u64 {
    // SAFETY: rdtsc is part of the x86-64 baseline and touches no memory. User space may execute it
    // unless the process has disabled it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

fn calibrate() -> u64 {
    let (clock, start) = (Instant::now(), ticks());
    while clock.elapsed() < Duration::from_millis(10) {
        hint::spin_loop();
    }
    let (ns, ticks) = (clock.elapsed().as_nanos() as u64, ticks().wrapping_sub(start));
    // At least one tick, so that a counter that does not advance (an emulator) causes short waits
    // rather than none.
    ((ticks as u128 * 1024 / ns as u128) as u64).max(1)
}

/// Memory with delays.
///
/// - A read that the engine reports ([`Region::report_read`](crate::Region::report_read), and
///   copies out of the region) waits `read_ns` for each touched line, immediately: a load cannot
///   continue without its data. The lines of one read are charged one after the other. A long copy,
///   which real memory would overlap, is therefore too slow rather than too fast.
/// - A flush or a streaming store waits `write_ns` for each line, **at the next fence** of the
///   thread. On real hardware a flush returns immediately and the fence waits until the lines have
///   left. Emulators of persistent memory charge writes this way. It rewards few lines and few
///   fences. Work between flush and fence does not shorten the wait, as it would on real hardware,
///   so an operation that overlaps well is too slow rather than too fast. A line that is flushed
///   twice is charged twice.
/// - A plain store costs nothing: it goes to the cache. A prefetch saves nothing.
///
/// Charges belong to the thread, not to the region, as with the fence itself: a fence on one region
/// also waits for the same thread's flushes on another.
#[derive(Debug)]
pub struct Delayed<W: Wait = Spin> {
    delays: Delays,
    wait: W,
}

thread_local! {
    static OWED_NS: Cell<u64> = const { Cell::new(0) };
}

impl Delayed {
    /// Delays by spinning.
    pub fn new(delays: Delays) -> Delayed {
        Delayed::with_wait(delays, Spin::new())
    }
}

impl<W: Wait> Delayed<W> {
    /// Delays by other means.
    pub fn with_wait(delays: Delays, wait: W) -> Delayed<W> {
        Delayed { delays, wait }
    }

    /// The configured delays.
    pub fn delays(&self) -> Delays {
        self.delays
    }

    fn owe(&self, offset: u64, length: u64) {
        let ns = self.delays.write_ns.saturating_mul(lines(offset, length));
        OWED_NS.set(OWED_NS.get().saturating_add(ns));
    }
}

/// The number of lines that `length` bytes at `offset` touch.
fn lines(offset: u64, length: u64) -> u64 {
    if length == 0 { 0 } else { (offset + length - 1) / LINE_BYTES - offset / LINE_BYTES + 1 }
}

impl<W: Wait> Memory for Delayed<W> {
    const WATCHED: bool = true;

    #[inline]
    fn stored(&self, _: u64, _: &[u8]) {}

    #[inline]
    fn streamed(&self, offset: u64, bytes: UserBytes<'_>) {
        self.owe(offset, bytes.len() as u64);
    }

    #[inline]
    fn flushed(&self, offset: u64, length: u64) {
        self.owe(offset, length);
    }

    #[inline]
    fn fenced(&self) {
        let ns = OWED_NS.replace(0);
        if ns > 0 {
            self.wait.wait(ns);
        }
    }

    #[inline]
    fn read(&self, offset: u64, length: u64) {
        let ns = self.delays.read_ns.saturating_mul(lines(offset, length));
        if ns > 0 {
            self.wait.wait(ns);
        }
    }
}
