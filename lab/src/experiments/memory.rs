//! Emulated slow memory behind a processor's caches.
//!
//! The papers' machines had caches in front of their slow memory, and several line transfers in
//! flight at once. Without these an emulation would charge costs that the papers' memory never had:
//! a system that keeps a name on the image only would pay for each lookup, one with a copy in DRAM
//! never. So:
//!
//! - A read line waits only if it is not in an emulated cache. The cache has the size of the
//!   last-level cache of the DirectFS paper's machine and is empty after each mount. Stores and
//!   flushes (CLWB) leave their lines in it; streaming stores evict them.
//! - Lines of one read, and streamed lines, wait in groups of ten: a core has that many fill
//!   buffers. Dependent reads are separate reads.
//! - A prefetched line (PREFETCH) arrives while its thread continues, up to ten at a time. A read
//!   waits for the rest of its transfer.
//! - Flushed lines wait in sequence, at the next fence, as in the papers that emulate memory.
//! - A store costs nothing, whether its line is cached or not.
//!
//! Accesses are also counted, by thread: these numbers are exact.
//!
//! Images and tables have huge pages from the start, as a kernel has. *Rejected:* charging each
//! read: warm stats, whose lines are cached, came out four times as slow.

use pmem::{Delays, LINE_BYTES, Memory, Spin, UserBytes, Wait};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Line transfers that a core has in flight at once: the fill buffers of the papers' processors.
const AT_ONCE: usize = 10;
/// Sets of the emulated cache; with [`WAYS`] lines each it holds 32 MiB.
const SETS: u64 = 1 << 17;
/// Lines of a set: tags packed in a word, the newest in the lowest bits.
const WAYS: u32 = 4;
const TAG_BITS: u32 = u64::BITS / WAYS;
const TAG: u64 = (1 << TAG_BITS) - 1;
/// A one in each way.
const ONES: u64 = u64::MAX / TAG;

/// A thread's accesses to images.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines read that were not in the cache.
    pub read: u64,
    /// Lines flushed.
    pub flushed: u64,
    /// Lines streamed.
    pub streamed: u64,
    /// Fences that waited for flushed or streamed lines.
    pub fences: u64,
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { read: 0, flushed: 0, streamed: 0, fences: 0 }) };
    /// Lines flushed and lines streamed since the last fence.
    static OWED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static UNDER_WAY: RefCell<UnderWay> = const { RefCell::new(UnderWay::new()) };
}

/// Returns and resets the calling thread's counts.
pub fn take_counts() -> Counts {
    COUNTS.take()
}

fn count(change: impl FnOnce(&mut Counts)) {
    let mut counts = COUNTS.get();
    change(&mut counts);
    COUNTS.set(counts);
}

/// A line of an image: the address of the image's `Emulated`, and the line's number.
type Line = (usize, u64);

/// A thread's prefetches, each in a fill buffer of its core. Times are in ticks.
#[derive(Debug)]
struct UnderWay {
    buffers: [(Option<Line>, u64); AT_ONCE],
    /// The buffer used longest ago.
    oldest: usize,
    /// Arrival of the last line; zero if all have arrived.
    last: u64,
}

impl UnderWay {
    const fn new() -> UnderWay {
        UnderWay { buffers: [(None, 0); AT_ONCE], oldest: 0, last: 0 }
    }

    /// Starts a transfer that takes `way`, as soon as a buffer is free. Returns the time until
    /// then.
    fn ask(&mut self, line: Line, now: u64, way: u64) -> u64 {
        let buffer = &mut self.buffers[self.oldest];
        let begin = now.max(buffer.1);
        *buffer = (Some(line), begin + way);
        self.last = self.last.max(begin + way);
        self.oldest = (self.oldest + 1) % AT_ONCE;
        begin - now
    }

    /// The remaining time of a line's transfer.
    #[inline]
    fn left(&mut self, line: Line, now: impl FnOnce() -> u64) -> u64 {
        if self.last == 0 {
            return 0;
        }
        let now = now();
        if now >= self.last {
            self.last = 0;
            return 0;
        }
        let buffer = self.buffers.iter().find(|buffer| buffer.0 == Some(line));
        buffer.map_or(0, |buffer| buffer.1.saturating_sub(now))
    }
}

/// The lines of a byte range.
fn lines(offset: u64, length: u64) -> Range<u64> {
    let end = if length == 0 { offset / LINE_BYTES } else { (offset + length).div_ceil(LINE_BYTES) };
    offset / LINE_BYTES..end
}

/// The cached lines of an image. In a set the oldest is evicted. Threads share it without
/// synchronisation: a lost update only causes another miss.
#[derive(Debug)]
struct Cache {
    sets: Box<[AtomicU64; SETS as usize]>,
}

impl Cache {
    fn new() -> Cache {
        let sets: Box<[AtomicU64]> = (0..SETS).map(|_| AtomicU64::new(0)).collect();
        Cache { sets: sets.try_into().expect("as many as there are sets") }
    }

    fn place(&self, line: u64) -> (&AtomicU64, u64) {
        // Zero is no line.
        (&self.sets[(line % SETS) as usize], (line / SETS + 1) & TAG)
    }

    /// Looks a line up and inserts it if it is missing. Returns whether it was missing.
    fn bring(&self, line: u64) -> bool {
        let (set, tag) = self.place(line);
        let word = set.load(Relaxed);
        // Tests all tags at once: the subtraction borrows through a field that is zero.
        let differing = word ^ (tag * ONES);
        let is_there = differing.wrapping_sub(ONES) & !differing & ONES << (TAG_BITS - 1) != 0;
        if !is_there {
            set.store(word << TAG_BITS | tag, Relaxed);
        }
        !is_there
    }

    fn take_out(&self, line: u64) {
        let (set, tag) = self.place(line);
        let word = set.load(Relaxed);
        let kept = |way: &u32| word >> (way * TAG_BITS) & TAG != tag;
        let rest = (0..WAYS).filter(kept).map(|way| word & TAG << (way * TAG_BITS)).sum();
        if rest != word {
            set.store(rest, Relaxed);
        }
    }
}

/// The memory type of experiments. Without delays it does nothing.
#[derive(Debug)]
pub struct Emulated {
    read_ns: AtomicU64,
    write_ns: AtomicU64,
    wait: Spin,
    /// Created when reads are delayed for the first time.
    cache: OnceLock<Cache>,
}

impl Default for Emulated {
    fn default() -> Emulated {
        Emulated { read_ns: AtomicU64::new(0), write_ns: AtomicU64::new(0), wait: Spin::new(), cache: OnceLock::new() }
    }
}

impl Emulated {
    /// Sets the delays and empties the cache. No other thread may use the memory.
    pub fn slow_down(&self, delays: Delays) {
        if delays.read_ns > 0 {
            self.cache.get_or_init(Cache::new).sets.iter().for_each(|set| set.store(0, Relaxed));
        }
        self.read_ns.store(delays.read_ns, Relaxed);
        self.write_ns.store(delays.write_ns, Relaxed);
    }

    /// The cache, if reads are delayed.
    #[inline]
    fn cache(&self) -> Option<&Cache> {
        if self.read_ns.load(Relaxed) == 0 { None } else { self.cache.get() }
    }

    /// Identifies a line across images.
    fn line(&self, line: u64) -> Line {
        (std::ptr::from_ref(self).addr(), line)
    }

    #[inline]
    fn is_slow_to_write(&self) -> bool {
        self.write_ns.load(Relaxed) > 0
    }
}

impl Memory for Emulated {
    const WATCHED: bool = true;

    #[inline]
    fn stored(&self, offset: u64, bytes: &[u8]) {
        if let Some(cache) = self.cache() {
            for line in lines(offset, bytes.len() as u64) {
                cache.bring(line);
            }
        }
    }

    #[inline]
    fn streamed(&self, offset: u64, bytes: UserBytes<'_>) {
        let lines = lines(offset, bytes.len() as u64);
        if let Some(cache) = self.cache() {
            lines.clone().for_each(|line| cache.take_out(line));
        }
        if self.is_slow_to_write() {
            let (flushed, streamed) = OWED.get();
            OWED.set((flushed, streamed + lines.count() as u64));
        }
    }

    #[inline]
    fn flushed(&self, offset: u64, length: u64) {
        if self.is_slow_to_write() {
            let (flushed, streamed) = OWED.get();
            OWED.set((flushed + lines(offset, length).count() as u64, streamed));
        }
    }

    #[inline]
    fn fenced(&self) {
        let (flushed, streamed) = OWED.take();
        if flushed + streamed > 0 {
            count(|counts| {
                counts.flushed += flushed;
                counts.streamed += streamed;
                counts.fences += 1;
            });
            self.wait.wait((flushed + streamed.div_ceil(AT_ONCE as u64)) * self.write_ns.load(Relaxed));
        }
    }

    #[inline]
    fn read(&self, offset: u64, length: u64) {
        let Some(cache) = self.cache() else { return };
        let (mut brought, mut left) = (0, 0);
        UNDER_WAY.with_borrow_mut(|under_way| {
            for line in lines(offset, length) {
                if cache.bring(line) {
                    brought += 1;
                } else {
                    left = left.max(under_way.left(self.line(line), || self.wait.now_ticks()));
                }
            }
        });
        if brought > 0 {
            count(|counts| counts.read += brought);
            left = left.max(self.wait.ticks_of(brought.div_ceil(AT_ONCE as u64) * self.read_ns.load(Relaxed)));
        }
        if left > 0 {
            self.wait.wait_ticks(left);
        }
    }

    #[inline]
    fn prefetched(&self, offset: u64) {
        let line = offset / LINE_BYTES;
        if self.cache().is_some_and(|cache| cache.bring(line)) {
            count(|counts| counts.read += 1);
            let way = self.wait.ticks_of(self.read_ns.load(Relaxed));
            let ask = |lines: &mut UnderWay| lines.ask(self.line(line), self.wait.now_ticks(), way);
            let until_sent = UNDER_WAY.with_borrow_mut(ask);
            if until_sent > 0 {
                self.wait.wait_ticks(until_sent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(work: impl FnOnce(&Emulated)) -> Counts {
        let memory = Emulated::default();
        memory.slow_down(Delays { read_ns: 1, write_ns: 1 });
        take_counts();
        work(&memory);
        take_counts()
    }

    #[test]
    fn a_line_is_brought_once_and_stays_until_it_is_streamed_to() {
        let read = |memory: &Emulated| memory.read(4000, 200);
        assert_eq!(counts(read).read, 4);
        assert_eq!(counts(|memory| (0..10).for_each(|_| read(memory))).read, 4);
        let streamed = |memory: &Emulated| {
            read(memory);
            memory.streamed(4096, (&[0; 64]).into());
            memory.fenced();
            read(memory);
        };
        assert_eq!(counts(streamed), Counts { read: 5, flushed: 0, streamed: 1, fences: 1 });
    }

    #[test]
    fn what_was_stored_need_not_be_brought() {
        let stored = |memory: &Emulated| {
            memory.stored(640, &[1; 64]);
            memory.flushed(640, 64);
            memory.fenced();
            memory.fenced();
            memory.read(640, 65);
        };
        assert_eq!(counts(stored), Counts { read: 1, flushed: 1, streamed: 0, fences: 1 });
    }

    #[test]
    fn of_more_lines_than_a_set_holds_the_oldest_are_brought_again() {
        let round = |memory: &Emulated, count: u64| (0..count).for_each(|at| memory.read(at * SETS * LINE_BYTES, 1));
        assert_eq!(counts(|memory| (0..3).for_each(|_| round(memory, 4))).read, 4);
        assert_eq!(counts(|memory| (0..3).for_each(|_| round(memory, 5))).read, 15);
    }

    #[test]
    fn a_line_asked_for_ahead_is_brought_once() {
        let ahead = |memory: &Emulated| {
            memory.prefetched(64);
            memory.prefetched(100);
            memory.read(64, 64);
        };
        assert_eq!(counts(ahead).read, 1);
    }

    #[test]
    fn lines_asked_for_ahead_are_under_way_at_once_as_far_as_there_are_buffers() {
        let mut lines = UnderWay::new();
        let waits: Vec<u64> = (0..AT_ONCE as u64 + 2).map(|line| lines.ask((1, line), 1000 + line, 300)).collect();
        assert_eq!(waits[..AT_ONCE], [0; AT_ONCE]);
        assert_eq!(waits[AT_ONCE..], [1300 - 1010, 1301 - 1011], "until the first ones have arrived");
        assert_eq!(lines.left((1, 5), || 1100), 205);
        assert_eq!(lines.left((1, 5), || 1305), 0);
        assert_eq!(lines.left((2, 6), || 1100), 0, "the line is of another image");
        assert_eq!(lines.left((1, 0), || 1310), 0, "its buffer was reused, so it has arrived");
        assert_eq!(lines.left((1, 11), || 1310), 291);
        assert_eq!(lines.left((1, 11), || 1601), 0, "all have arrived");
    }

    #[test]
    fn nothing_is_in_the_cache_when_the_delays_begin() {
        let again = |memory: &Emulated| {
            memory.read(0, 64);
            memory.slow_down(Delays { read_ns: 2, write_ns: 0 });
            memory.read(0, 64);
        };
        assert_eq!(counts(again).read, 2);
    }

    #[test]
    fn without_delays_nothing_is_counted() {
        let memory = Emulated::default();
        take_counts();
        memory.read(0, 4096);
        memory.flushed(0, 4096);
        memory.fenced();
        assert_eq!(take_counts(), Counts::default());
    }
}
