//! Which lines of a region changed since the last commit to a disk, and the cut that a commit
//! needs.
//!
//! A region whose bytes live in memory while a disk holds committed states of it marks each line
//! that it flushes. A commit drains the marks and copies the lines while programs run. Then it
//! raises the *cut flag*, drains what was marked meanwhile, and lowers the flag. A thread that
//! reaches a fence while the flag is up waits.
//!
//! The copied lines are a crash state that the order of persistence permits. Let store X be flushed
//! and fenced before store Y. A thread that stores Y passed the fence after X before the flag rose,
//! or after the flag fell. In the first case the mark of X precedes the rise, so the last drain
//! copies X, whether or not it copies Y. In the second case it copies neither, or X alone.
//!
//! Invariants
//! - A mark is a locked instruction after the stores that it stands for. So a drain that clears the
//!   mark reads these stores, and the check of the flag comes after the mark.
//! - Clearing goes from the coarse level to the fine one, marking from the fine one to the coarse
//!   one. So no mark is lost between two levels.
//! - A drain moves marks to the *pending* map before it clears them. So a commit that fails, or
//!   whose process dies, loses none: the next one restores them.
//! - No thread waits for a stopped commit: a thread that waits too long cancels the cut, and the
//!   commit notices.

use core::ops::ControlFlow;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::region::BadOffset;
use crate::{BLOCK_BYTES, LINE_BYTES};

/// Bytes before the maps: the header.
const HEADER_BYTES: u64 = 4096;
/// The cut flag is up while this bit is set. The bits above it count cuts.
const UP: u32 = 1;
/// Checks of the flag before a thread sleeps.
const SPINS: u32 = 200;
/// Sleeps of 1 ms before a thread cancels a cut, at first.
const PATIENCE_MS: u32 = 4;
/// The most that a commit may ask for.
const PATIENCE_MS_MAX: u32 = 256;

/// Classes of waits: the last one has all that take about a quarter of a second or more.
pub const WAIT_CLASSES: usize = 30;

/// The first page of a tracking area.
#[repr(C, align(4096))]
pub struct TrackingHeader {
    /// The cut flag and a count of cuts.
    pub(crate) cut: AtomicU32,
    /// 1: a thread waits for the flag to fall.
    pub(crate) waiting: AtomicU32,
    /// 1: flushed lines are marked.
    active: AtomicU32,
    /// Sleeps of 1 ms before a thread cancels a cut.
    pub(crate) patience_ms: AtomicU32,
    /// What processes want of the one that commits at intervals; it sleeps on this word.
    pub service: AtomicU32,
    /// Raised when a commit has ended; calls that wait for one sleep on this word.
    pub wakes: AtomicU32,
    /// Words of the commit's own state; their meaning is the user's.
    pub words: [AtomicU64; 32],
    /// Waits at the flag: element n counts those below 2^n ns that no lower element counts.
    pub(crate) waits: [AtomicU64; WAIT_CLASSES],
    /// More words of the commit's own state.
    pub more_words: [AtomicU64; 4],
}

/// How threads sleep on a word that processes share.
#[derive(Debug, Clone, Copy)]
pub struct Sleeping {
    /// Sleeps while the word has this value, at most that many milliseconds.
    pub wait: fn(&AtomicU32, u32, u32),
    /// Wakes all that sleep on the word.
    pub wake: fn(&AtomicU32),
    /// A clock, in ns.
    pub now_ns: fn() -> u64,
}

/// Marks in three levels: a bit per line, a bit per page with marked lines, a bit per 64 pages.
#[derive(Debug, Clone, Copy)]
struct MarkMap {
    pages: *const AtomicU64,
    groups: *const AtomicU64,
    tops: *const AtomicU64,
}

/// Words of each level for a region of that many bytes.
const fn levels(region_bytes: u64) -> [u64; 3] {
    let pages = if region_bytes == 0 { 1 } else { region_bytes.div_ceil(BLOCK_BYTES) };
    let groups = pages.div_ceil(64);
    [pages, groups, groups.div_ceil(64)]
}

/// The tracking area of a region, as this process sees it. It lies in memory that all processes of
/// the region share.
#[derive(Debug, Clone, Copy)]
pub struct Tracking {
    header: NonNull<TrackingHeader>,
    /// A page for the header; the marked and the pending map follow.
    area: NonNull<u8>,
    region_bytes: u64,
    sleeping: &'static Sleeping,
}

// SAFETY: all memory behind the pointers is accessed as atomics.
unsafe impl Send for Tracking {}
// SAFETY: as above.
unsafe impl Sync for Tracking {}

/// Proof that the cut flag is up, by this thread.
#[must_use = "the flag is up, and threads wait"]
#[derive(Debug)]
pub struct RaisedCut {
    up: u32,
}

/// A page with marked lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkedPage {
    /// Bytes from the start of the region.
    pub offset: u64,
    /// A bit per line, the lowest one for the first line.
    pub lines: u64,
}

impl Tracking {
    /// Bytes of the tracking area of a region.
    pub const fn area_bytes(region_bytes: u64) -> u64 {
        let [pages, groups, tops] = levels(region_bytes);
        HEADER_BYTES + (2 * (pages + groups + tops) * 8).next_multiple_of(BLOCK_BYTES)
    }

    /// The view of an area.
    ///
    /// # Safety
    /// [`Tracking::area_bytes`] bytes at `base` are mapped, readable and writable for as long as
    /// the view and every region with it live. `base` is aligned to a page. Zeros are an empty
    /// area.
    pub const unsafe fn new(base: NonNull<u8>, region_bytes: u64, sleeping: &'static Sleeping) -> Tracking {
        Tracking { header: base.cast(), area: base, region_bytes, sleeping }
    }

    /// A tracking area with its header elsewhere: each store to the region reads it, so it had best
    /// lie with what every process touches.
    ///
    /// # Safety
    /// A page at `header` is mapped, readable and writable for as long as the view and every region
    /// with it live. Zeros are an empty header.
    pub const unsafe fn with_header(self, header: NonNull<u8>) -> Tracking {
        Tracking { header: header.cast(), ..self }
    }

    /// The memory with the marks of a range of the region, as addresses and bytes: for callers that
    /// provide it before the first mark.
    pub fn marks_of(&self, offset: u64, length: u64) -> [(*mut u8, usize); 6] {
        let ends = [offset, offset + length.max(1) - 1].map(|at| at / BLOCK_BYTES);
        let words = |level: *const AtomicU64, pages: u64| {
            let [first, last] = ends.map(|page| page / pages);
            (level.wrapping_add(first as usize).cast_mut().cast(), (last - first + 1) as usize * 8)
        };
        let [marked, pending] = [self.marked(), self.pending()];
        let [one, other] =
            [marked, pending].map(|map| [words(map.pages, 1), words(map.groups, 64), words(map.tops, 64 * 64)]);
        [one[0], one[1], one[2], other[0], other[1], other[2]]
    }

    /// What is marked.
    #[inline]
    fn marked(&self) -> MarkMap {
        self.map(0)
    }

    /// What was drained and is not known to be on the disk.
    #[inline]
    fn pending(&self) -> MarkMap {
        self.map(levels(self.region_bytes).iter().sum())
    }

    /// The map whose first word has that number.
    #[inline]
    fn map(&self, first: u64) -> MarkMap {
        let [pages, groups, _] = levels(self.region_bytes);
        // SAFETY: both maps lie within the area, behind the header.
        unsafe {
            let words = self.area.as_ptr().add(HEADER_BYTES as usize).cast::<AtomicU64>().cast_const();
            let at = words.add(first as usize);
            MarkMap { pages: at, groups: at.add(pages as usize), tops: at.add((pages + groups) as usize) }
        }
    }

    /// The header.
    #[inline(always)]
    pub fn header(&self) -> &TrackingHeader {
        // SAFETY: mapped by the contract of `new` or `with_header`; atomics only.
        unsafe { self.header.as_ref() }
    }

    /// A word of a level.
    #[inline(always)]
    fn word(&self, level: *const AtomicU64, index: u64) -> &AtomicU64 {
        // SAFETY: callers derive the index from an offset within the region, or by `below` with the
        // number of the level's words.
        unsafe { &*level.add(index as usize) }
    }

    /// Whether flushed lines are marked.
    #[inline(always)]
    pub fn is_active(&self) -> bool {
        self.header().active.load(Relaxed) != 0
    }

    /// Begins or ends the marking. Until every processor has passed a memory barrier after the
    /// beginning, a thread may flush a line without a mark; the line's stores then precede that
    /// barrier. Marks may follow the end.
    pub fn set_active(&self, active: bool) {
        self.header().active.store(active.into(), SeqCst);
    }

    /// Forgets all marks.
    pub fn clear(&self) {
        let _ = self.drain::<()>(&mut |_| ControlFlow::Continue(()));
        self.clear_pending();
    }

    /// The memory of the area.
    pub fn memory(&self) -> (*mut u8, usize) {
        (self.area.as_ptr(), Tracking::area_bytes(self.region_bytes) as usize)
    }

    /// What of it is used while the region has that many bytes, as addresses and bytes: the header,
    /// and of each map the marks of these bytes and both levels above.
    pub fn memory_for(&self, region_bytes: u64) -> [(*mut u8, usize); 5] {
        let [_, groups, tops] = levels(self.region_bytes);
        let [pages, ..] = levels(region_bytes.min(self.region_bytes));
        let words = |level: *const AtomicU64, count: u64| (level.cast_mut().cast(), count as usize * 8);
        let [marked, pending] = [self.marked(), self.pending()];
        [
            (self.header.as_ptr().cast(), HEADER_BYTES as usize),
            words(marked.pages, pages),
            words(marked.groups, groups + tops),
            words(pending.pages, pages),
            words(pending.groups, groups + tops),
        ]
    }

    /// Marks the lines of a range, which was stored to. The region checks bounds.
    #[inline]
    pub(crate) fn mark(&self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let marked = self.marked();
        let (first, last) = (offset / LINE_BYTES, (offset + length - 1) / LINE_BYTES);
        for page in first / 64..=last / 64 {
            let from = if page == first / 64 { first % 64 } else { 0 };
            let to = if page == last / 64 { last % 64 } else { 63 };
            self.mark_lines(&marked, page, u64::MAX << from & u64::MAX >> (63 - to));
        }
    }

    #[inline]
    fn mark_lines(&self, map: &MarkMap, page: u64, lines: u64) {
        self.word(map.pages, page).fetch_or(lines, SeqCst);
        for (level, index) in [(map.groups, page), (map.tops, page / 64)] {
            let (word, bit) = (self.word(level, index / 64), 1 << (index % 64));
            // Behind the locked instruction above, so the load is not earlier.
            if word.load(SeqCst) & bit == 0 {
                word.fetch_or(bit, SeqCst);
            }
        }
    }

    /// At a fence: waits while the flag is up.
    #[inline(always)]
    pub(crate) fn pass_fence(&self) {
        // Behind the mark in the one order of all sequentially consistent accesses; a plain load on
        // x86-64.
        let cut = self.header().cut.load(SeqCst);
        if cut & UP != 0 {
            self.wait_for_fall(cut);
        }
    }

    /// Waits for the end of the cut that was seen. A later one does not concern this fence: the
    /// marks of the stores before it precede the rise.
    #[cold]
    fn wait_for_fall(&self, seen: u32) {
        let began_ns = (self.sleeping.now_ns)();
        self.sleep_until_fall(seen);
        let waited_ns = (self.sleeping.now_ns)().saturating_sub(began_ns);
        let class = (u64::BITS - waited_ns.leading_zeros()) as usize;
        self.header().waits[class.min(WAIT_CLASSES - 1)].fetch_add(1, Relaxed);
    }

    fn sleep_until_fall(&self, seen: u32) {
        let header = self.header();
        for _ in 0..SPINS {
            if header.cut.load(Acquire) != seen {
                return;
            }
            core::hint::spin_loop();
        }
        for _ in 0..header.patience_ms.load(Relaxed).clamp(PATIENCE_MS, PATIENCE_MS_MAX) {
            header.waiting.store(1, SeqCst);
            (self.sleeping.wait)(&header.cut, seen, 1);
            if header.cut.load(Acquire) != seen {
                return;
            }
        }
        // The process that raised it is stopped or dead: go on, and let its commit start again.
        if header.cut.compare_exchange(seen, seen.wrapping_add(1), AcqRel, Relaxed).is_ok() {
            (self.sleeping.wake)(&header.cut);
        }
    }

    /// The waits of threads at the flag so far: element n counts those that took below 2^n ns and
    /// at least half of that. The last one has no upper bound.
    pub fn waits(&self) -> [u64; WAIT_CLASSES] {
        core::array::from_fn(|class| self.header().waits[class].load(Relaxed))
    }

    /// Raises the flag. Only one thread at a time commits; a flag that is up was left by a commit
    /// that died, and belongs to the caller now.
    pub fn raise_cut(&self) -> RaisedCut {
        let cut = &self.header().cut;
        let mut before = cut.load(Acquire);
        loop {
            // A count of its own, so that a cancelled cut is distinguished from this one.
            let up = before.wrapping_add(2) | UP;
            match cut.compare_exchange(before, up, SeqCst, Acquire) {
                Ok(_) => return RaisedCut { up },
                Err(now) => before = now,
            }
        }
    }

    /// Lowers the flag and wakes the threads that wait. `false`: a thread cancelled the cut, so
    /// what was copied since is no crash state; the next cut gets more time.
    pub fn lower_cut(&self, raised: RaisedCut) -> bool {
        let header = self.header();
        let is_whole = header.cut.compare_exchange(raised.up, raised.up.wrapping_add(1), AcqRel, Relaxed).is_ok();
        let patience_ms = header.patience_ms.load(Relaxed).clamp(PATIENCE_MS, PATIENCE_MS_MAX);
        header.patience_ms.store(if is_whole { PATIENCE_MS } else { patience_ms * 2 }, Relaxed);
        if header.waiting.swap(0, SeqCst) != 0 {
            (self.sleeping.wake)(&header.cut);
        }
        is_whole
    }

    /// Moves all marks to the pending map, page by page, and passes each page to `each`, which may
    /// then copy its lines. Stops early if `each` says so; that page and the rest stay marked.
    pub fn drain<B>(&self, each: &mut dyn FnMut(MarkedPage) -> ControlFlow<B>) -> ControlFlow<B> {
        let (marked, pending) = (self.marked(), self.pending());
        let [pages, groups, tops] = levels(self.region_bytes);
        for top in 0..tops {
            let in_top = self.take(marked.tops, pending.tops, top);
            for group in below(in_top, top, groups) {
                let in_group = self.take(marked.groups, pending.groups, group);
                for page in below(in_group, group, pages) {
                    let lines = self.take(marked.pages, pending.pages, page);
                    if lines == 0 {
                        continue;
                    }
                    let flow = each(MarkedPage { offset: page * BLOCK_BYTES, lines });
                    if flow.is_break() {
                        self.mark_lines(&marked, page, lines);
                        // The levels above were cleared for pages that are still marked.
                        self.word(marked.groups, group).fetch_or(in_group, SeqCst);
                        self.word(marked.tops, top).fetch_or(in_top, SeqCst);
                        return flow;
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Moves a word of marks to the pending map, which gets them before they are cleared.
    fn take(&self, marked: *const AtomicU64, pending: *const AtomicU64, index: u64) -> u64 {
        // Behind the rise of the flag, and behind the clearing of the level above.
        let found = self.word(marked, index).load(SeqCst);
        if found != 0 {
            self.word(pending, index).fetch_or(found, SeqCst);
            self.word(marked, index).fetch_and(!found, SeqCst);
        }
        found
    }

    /// Marks again what an earlier commit drained and did not complete, whether it failed or died.
    pub fn restore_pending(&self) {
        let (marked, pending) = (self.marked(), self.pending());
        let [pages, groups, tops] = levels(self.region_bytes);
        for top in 0..tops {
            let in_top = self.word(pending.tops, top).load(Acquire);
            for group in below(in_top, top, groups) {
                // A drain that died may have moved the mark of the group and not those of its
                // pages.
                let drained = self.word(pending.groups, group).load(Acquire);
                for page in below(drained, group, pages) {
                    let lines = self.word(pending.pages, page).load(Acquire);
                    self.word(marked.pages, page).fetch_or(lines, SeqCst);
                }
                self.word(marked.groups, group).fetch_or(drained, SeqCst);
            }
            self.word(marked.tops, top).fetch_or(in_top, SeqCst);
        }
        self.clear_pending();
    }

    /// Forgets what was drained: it is on the disk.
    pub fn clear_pending(&self) {
        let pending = self.pending();
        let [pages, groups, tops] = levels(self.region_bytes);
        for top in 0..tops {
            let in_top = self.word(pending.tops, top).load(Acquire);
            for group in below(in_top, top, groups) {
                let in_group = self.word(pending.groups, group).load(Acquire);
                for page in below(in_group, group, pages) {
                    self.word(pending.pages, page).store(0, SeqCst);
                }
                self.word(pending.groups, group).store(0, SeqCst);
            }
            self.word(pending.tops, top).store(0, SeqCst);
        }
    }

    /// Whether a line may be marked, or was drained and is not known to be on the disk. A call that
    /// counts commits itself knows whether one moves marks meanwhile.
    pub fn has_marks(&self) -> bool {
        let [.., tops] = levels(self.region_bytes);
        let any = |map: MarkMap| (0..tops).any(|top| self.word(map.tops, top).load(SeqCst) != 0);
        // In the order in which a drain moves them.
        any(self.marked()) || any(self.pending())
    }

    /// Bytes of marked lines: what a power failure would undo. Other threads may change it
    /// meanwhile.
    pub fn marked_bytes(&self) -> u64 {
        let marked = self.marked();
        let [pages, groups, tops] = levels(self.region_bytes);
        let mut lines = 0;
        for top in 0..tops {
            for group in below(self.word(marked.tops, top).load(Relaxed), top, groups) {
                for page in below(self.word(marked.groups, group).load(Relaxed), group, pages) {
                    lines += u64::from(self.word(marked.pages, page).load(Relaxed).count_ones());
                }
            }
        }
        lines * LINE_BYTES
    }

    /// Bytes of the tracked region.
    pub const fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Fails unless the area has marks for a region that reaches so far.
    pub fn covers(&self, region_bytes: u64) -> Result<(), BadOffset> {
        if self.region_bytes >= region_bytes { Ok(()) } else { Err(BadOffset { offset: 0, length: region_bytes }) }
    }
}

/// What the set bits of word `index` of a level stand for in the level below, which has `count`
/// words.
fn below(mut word: u64, index: u64, count: u64) -> impl Iterator<Item = u64> {
    let bits = core::iter::from_fn(move || {
        let bit = word.trailing_zeros() as u64;
        word &= word.wrapping_sub(1);
        (bit < 64).then_some(bit)
    });
    bits.map(move |bit| index * 64 + bit).filter(move |&below| below < count)
}
