//! Free space: lines of 64 bytes and whole pages, from one untyped pool.
//!
//! A bitmap in memory, one word per page, says what is in use. The allocation table on the image is
//! its conservative shadow:
//!
//! - Before a persister makes anything reachable, it makes the table's bits for it durable
//!   ([`Space::store_marks`]). No bit is cleared while the image is mounted.
//! - So after a crash, everything that the table calls free is free at once. What it calls in use
//!   may be a leak for the scan to find.
//! - None of this is on the path of a system call, and a marked line costs no second flush.

use super::format::{PAGE_LINES, TABLE};
use crate::error::{Error, Result};
use crate::locks::lock;
use crate::substrate::BlockRange;
use pmem::{BLOCK_BYTES, Cell64, Flushed, LINE_BYTES, Memory, Pm, Region};
use smallvec::SmallVec;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// All lines of a page.
const WHOLE: u64 = u64::MAX;
/// Partially free pages to try for one allocation.
const PARTIAL_PAGES_TRIED: u32 = 4;

/// The pool.
#[derive(Debug)]
pub struct Space {
    /// Lines in use, by page.
    used: Vec<AtomicU64>,
    /// Lines in the table's durable words, by page.
    durable: Vec<AtomicU64>,
    first_page: u64,
    hands: Mutex<Hands>,
    marking: Mutex<()>,
}

#[derive(Debug)]
struct Hands {
    /// Free pages; the last one is taken first.
    pages: Vec<u32>,
    /// Pages that had a free line when they were added.
    partial: Vec<u32>,
    /// Whether a page is in `partial`, by page.
    is_partial: Vec<bool>,
    /// The page that lines are taken from; zero: none.
    current: u64,
    /// While a scan runs: freed lines that must not be reused before its end.
    held: Option<Vec<(u64, u64)>>,
}

/// Pages and the bits of the table that they need; after they were stored, the stored words.
#[derive(Debug, Default)]
pub struct Marks(SmallVec<[(u64, u64); 8]>);

impl Marks {
    /// Whether the table has all bits durably.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The lowest run of `count` clear bits.
fn run(word: u64, count: u64) -> Option<u64> {
    let mut starts = !word;
    for step in 1..count {
        starts &= !word >> step;
    }
    (starts != 0).then(|| starts.trailing_zeros() as u64)
}

/// `count` bits from bit `first` on.
pub fn bits(first: u64, count: u64) -> u64 {
    if count >= PAGE_LINES { WHOLE } else { ((1 << count) - 1) << first }
}

/// The page of an offset, and the bits of `lines` lines there.
pub fn place(offset: u64, lines: u64) -> (u64, u64) {
    (offset / BLOCK_BYTES, bits(offset % BLOCK_BYTES / LINE_BYTES, lines))
}

impl Space {
    /// Loads the pool from the allocation table.
    pub fn load<M: Memory>(region: &Region<M>, pages: u64, first_page: u64) -> Result<Space> {
        let table = region.slice::<Cell64>(Pm::new(TABLE), pages)?;
        region.report_read(TABLE, pages * 8);
        let words = || table.iter().map(|word| AtomicU64::new(word.load())).collect();
        let space = Space {
            used: words(),
            durable: words(),
            first_page,
            marking: Mutex::default(),
            hands: Mutex::new(Hands {
                pages: Vec::new(),
                partial: Vec::new(),
                is_partial: vec![false; pages as usize],
                current: 0,
                held: None,
            }),
        };
        space.sort_pages(&mut lock(&space.hands));
        Ok(space)
    }

    /// Rebuilds the lists of pages with free lines.
    fn sort_pages(&self, hands: &mut Hands) {
        (hands.pages, hands.partial, hands.current) = (Vec::new(), Vec::new(), 0);
        hands.is_partial.fill(false);
        // The last page is taken first, so low pages are used first.
        for page in (self.first_page..self.used.len() as u64).rev() {
            match self.used[page as usize].load(Relaxed) {
                0 => hands.pages.push(page as u32),
                WHOLE => {}
                _ => hands.keep_partial(page),
            }
        }
    }

    /// Takes `lines` consecutive lines within a page. Returns their offset, or none if there is no
    /// space.
    pub fn take_lines(&self, lines: u64) -> Option<u64> {
        let mut hands = lock(&self.hands);
        let mut tries = PARTIAL_PAGES_TRIED;
        loop {
            let page = hands.current;
            if page != 0 {
                let word = self.used[page as usize].load(Relaxed);
                if let Some(first) = run(word, lines) {
                    self.used[page as usize].fetch_or(bits(first, lines), Relaxed);
                    return Some(page * BLOCK_BYTES + first * LINE_BYTES);
                }
                if word != WHOLE {
                    hands.keep_partial(page);
                }
                hands.current = 0;
            }
            let partial = if tries > 0 { hands.pop_partial() } else { None };
            tries = tries.saturating_sub(1);
            hands.current = match partial {
                // The page may have become empty and been reused since it was added.
                Some(page) if ![0, WHOLE].contains(&self.used[page as usize].load(Relaxed)) => page,
                Some(_) => 0,
                None => match hands.pages.pop() {
                    Some(page) => page as u64,
                    None => return self.take_lines_anywhere(&mut hands, lines),
                },
            };
        }
    }

    /// The last resort: tries every page with free lines.
    #[cold]
    fn take_lines_anywhere(&self, hands: &mut Hands, lines: u64) -> Option<u64> {
        for page in std::mem::take(&mut hands.partial) {
            hands.is_partial[page as usize] = false;
            let word = self.used[page as usize].load(Relaxed);
            if word == 0 || word == WHOLE {
                continue;
            }
            match run(word, lines) {
                Some(_) if hands.current == 0 => hands.current = page as u64,
                _ => hands.keep_partial(page as u64),
            }
        }
        let page = hands.current;
        let first = run(self.used[page as usize].load(Relaxed), lines).filter(|_| page != 0)?;
        self.used[page as usize].fetch_or(bits(first, lines), Relaxed);
        Some(page * BLOCK_BYTES + first * LINE_BYTES)
    }

    /// Takes a page. Returns its offset.
    pub fn take_page(&self) -> Option<u64> {
        let mut hands = lock(&self.hands);
        let page = hands.pages.pop()?;
        self.used[page as usize].store(WHOLE, Relaxed);
        Some(page as u64 * BLOCK_BYTES)
    }

    /// Takes `count` pages, or none.
    pub fn take_pages(&self, count: u64) -> Option<Vec<u64>> {
        let mut hands = lock(&self.hands);
        let rest = (hands.pages.len() as u64).checked_sub(count)?;
        let pages = hands.pages.split_off(rest as usize);
        pages.iter().for_each(|page| self.used[*page as usize].store(WHOLE, Relaxed));
        Some(pages.into_iter().rev().map(|page| page as u64 * BLOCK_BYTES).collect())
    }

    /// Frees lines that no persister has seen.
    pub fn give_back(&self, offset: u64, lines: u64) {
        self.free_now(&mut lock(&self.hands), offset, lines);
    }

    /// Frees pages that no persister has seen.
    pub fn give_back_pages(&self, run: BlockRange) {
        let mut hands = lock(&self.hands);
        let pages = (run.start..run.start + run.count).rev();
        pages.for_each(|page| self.free_now(&mut hands, page * BLOCK_BYTES, PAGE_LINES));
    }

    /// Frees pages that were reachable and durably are no more. The first one is taken first.
    pub fn free_all_pages(&self, pages: &[u64]) {
        let mut hands = lock(&self.hands);
        match &mut hands.held {
            // The scan may be reading them.
            Some(held) => held.extend(pages.iter().map(|page| (*page, PAGE_LINES))),
            None => pages.iter().rev().for_each(|page| self.free_now(&mut hands, *page, PAGE_LINES)),
        }
    }

    /// Frees lines that were reachable and durably are no more.
    pub fn free(&self, offset: u64, lines: u64) {
        let mut hands = lock(&self.hands);
        match &mut hands.held {
            // The scan may be reading them.
            Some(held) => held.push((offset, lines)),
            None => self.free_now(&mut hands, offset, lines),
        }
    }

    fn free_now(&self, hands: &mut Hands, offset: u64, lines: u64) {
        let (page, mask) = place(offset, lines);
        if page < self.first_page || page >= self.used.len() as u64 {
            debug_assert!(false, "{offset:#x} is not in the pool");
            return;
        }
        let left = self.used[page as usize].fetch_and(!mask, Relaxed) & !mask;
        if page == hands.current {
            return;
        }
        match left {
            0 => hands.pages.push(page as u32),
            _ => hands.keep_partial(page),
        }
    }

    /// Notes that the table needs the bits of some lines before the lines become reachable. The
    /// caller stores all of them together ([`store_marks`](Self::store_marks)), fences, and calls
    /// [`mark_durable`](Self::mark_durable).
    pub fn mark(&self, offset: u64, lines: u64, marks: &mut Marks) -> Result<()> {
        let (page, mask) = place(offset, lines);
        let durable =
            self.durable.get(page as usize).ok_or_else(|| Error::damaged("a link points outside the image", offset))?;
        if durable.load(Acquire) & mask != mask {
            marks.0.push((page, mask));
        }
        Ok(())
    }

    /// Stores and flushes the noted bits, each line once: pages in sequence have their words in one
    /// line.
    pub fn store_marks<M: Memory>(&self, region: &Region<M>, marks: &mut Marks) -> Result<Flushed> {
        let table = region.slice::<Cell64>(Pm::new(TABLE), self.used.len() as u64)?;
        {
            // The lock makes sure that a word only gains bits.
            let _marking = lock(&self.marking);
            for (page, bits) in &mut marks.0 {
                let word = &table[*page as usize];
                *bits |= word.load() | self.used[*page as usize].load(Relaxed);
                region.set64(word, *bits).unflushed();
            }
        }
        marks.0.sort_unstable();
        let (mut flushed, mut last) = (Flushed::nothing(), 0);
        for (page, _) in &marks.0 {
            let line = (TABLE + page * 8) / LINE_BYTES;
            if line != last {
                flushed = flushed.and(region.flush_range(line * LINE_BYTES, LINE_BYTES));
                last = line;
            }
        }
        Ok(flushed)
    }

    /// Records that the marks are durable.
    pub fn mark_durable(&self, marks: Marks, _fenced: pmem::Durable) {
        for (page, value) in marks.0 {
            self.durable[page as usize].fetch_or(value, Release);
        }
    }

    /// A copy of the bitmap.
    pub fn snapshot(&self) -> Vec<u64> {
        self.used.iter().map(|word| word.load(Relaxed)).collect()
    }

    /// From here on freed lines are held back.
    pub fn begin_scan(&self) {
        lock(&self.hands).held.get_or_insert_default();
    }

    /// Frees the lines that were held back, and `leaked`: unreachable lines, by page.
    pub fn end_scan(&self, leaked: impl Iterator<Item = (u64, u64)>) {
        let mut hands = lock(&self.hands);
        for (offset, lines) in hands.held.take().unwrap_or_default() {
            let (page, mask) = place(offset, lines);
            self.used[page as usize].fetch_and(!mask, Relaxed);
        }
        for (page, mask) in leaked {
            self.used[page as usize].fetch_and(!mask, Relaxed);
        }
        self.sort_pages(&mut hands);
    }

    /// Number of completely free pages.
    pub fn free_pages(&self) -> u64 {
        lock(&self.hands).pages.len() as u64
    }

    /// Number of pages of the pool.
    pub fn pages(&self) -> u64 {
        self.used.len() as u64 - self.first_page
    }

    /// Makes the table exact. Requires exclusive use of the volume.
    pub fn store<M: Memory>(&self, region: &Region<M>) -> Result<Flushed> {
        let table = region.slice::<Cell64>(Pm::new(TABLE), self.used.len() as u64)?;
        let mut flushed = Flushed::nothing();
        for (word, used) in table.iter().zip(&self.used) {
            let used = used.load(Relaxed);
            if word.load() != used {
                flushed = flushed.and(region.flush(region.set64(word, used)));
            }
        }
        Ok(flushed)
    }
}

impl Hands {
    fn keep_partial(&mut self, page: u64) {
        if !std::mem::replace(&mut self.is_partial[page as usize], true) {
            self.partial.push(page as u32);
        }
    }

    fn pop_partial(&mut self) -> Option<u64> {
        let page = self.partial.pop()?;
        self.is_partial[page as usize] = false;
        Some(page as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_lines_are_found_where_they_fit() {
        assert_eq!(run(0, 64), Some(0));
        assert_eq!(run(1, 64), None);
        assert_eq!(run(0b1011, 1), Some(2));
        assert_eq!(run(0b1011, 2), Some(4));
        assert_eq!(run(!(0b111 << 61), 3), Some(61));
        assert_eq!(run(!(0b11 << 62), 3), None, "no run goes beyond the page");
        assert_eq!(run(WHOLE, 1), None);
    }
}
