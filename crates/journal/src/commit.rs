//! Commits: the lines that changed, at a cut, as chunks of the log.
//!
//! [`Tracking`] has the marks of changed lines, and the proof that a cut copies a state which a
//! crash could leave. `posix::commits` decides which process commits, and holds the lock.

use crate::chunk::ChunkBuilder;
use crate::disk::{Disk, DiskError};
use crate::is_injected;
use crate::log::{Journal, JournalError, State, StateStore};
use core::ops::ControlFlow;
use pmem::{BLOCK_BYTES, Cell64, LINE_BYTES, MarkedPage, Memory, Pm, Region, Tracking};

/// Passes over the marks while programs run, before the cut.
const PASSES: u32 = 4;
/// So few lines are copied at the cut itself: some microseconds.
const QUIET_LINES: u64 = 256;
/// Cuts that may be cancelled before a commit fails.
const ATTEMPTS: u32 = 12;
const LINE_WORDS: u64 = LINE_BYTES / 8;

/// A commit that is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Lines that it wrote; zero: nothing changed, and nothing was written.
    pub lines: u64,
    /// Bytes that it added to the log.
    pub bytes: u64,
}

/// The chunks of a commit in the making.
struct Writer<'w, D> {
    journal: &'w Journal<D>,
    chunk: ChunkBuilder<'w>,
    /// The state behind the chunks that were written.
    end: State,
    lines: u64,
}

impl<D: Disk> Journal<D> {
    /// Commits what changed in a tracked region. Every call of the engine that returned before is
    /// durable when this returns. One thread at a time: the caller holds the lock of commits.
    ///
    /// After an error the next commit repeats what this one left undone.
    pub fn commit<M: Memory>(
        &self,
        store: &dyn StateStore,
        region: &Region<M>,
        buffer: &mut [u8],
    ) -> Result<Committed, JournalError> {
        let tracking = *region.tracking().ok_or(JournalError::NotTracked)?;
        tracking.covers(self.image_bytes)?;
        // The image may have grown since this process looked at its size.
        if !region.contains(0, self.image_bytes) {
            return Err(JournalError::NotTracked);
        }
        if store.load().needs_trim {
            self.checkpoint(store, buffer)?;
        }
        let begin = store.load();
        if !is_injected!(DrainedForgotten) {
            tracking.restore_pending();
        }
        for _ in 0..ATTEMPTS {
            let mut writer = Writer { journal: self, chunk: ChunkBuilder::new(buffer), end: begin, lines: 0 };
            if writer.collect(region, &tracking)? {
                return writer.finish(store, &tracking);
            }
            tracking.restore_pending();
        }
        Err(JournalError::Starved)
    }
}

impl<D: Disk> Writer<'_, D> {
    /// Copies the marked lines, the last ones at a cut. `false`: the cut was cancelled.
    fn collect<M: Memory>(&mut self, region: &Region<M>, tracking: &Tracking) -> Result<bool, JournalError> {
        for _ in 0..PASSES {
            let before = self.lines;
            self.drain(region, tracking)?;
            if self.lines - before <= QUIET_LINES {
                break;
            }
        }
        if self.chunk.is_half_full() {
            self.write_chunk(false)?;
        }
        let raised = tracking.raise_cut();
        let drained = self.drain(region, tracking);
        let is_whole = tracking.lower_cut(raised);
        drained.map(|()| is_whole)
    }

    fn drain<M: Memory>(&mut self, region: &Region<M>, tracking: &Tracking) -> Result<(), JournalError> {
        let flow = tracking.drain(&mut |page| match self.add(region, page) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        });
        match flow {
            ControlFlow::Break(error) => Err(error),
            ControlFlow::Continue(()) => Ok(()),
        }
    }

    /// Copies the marked lines of a page.
    fn add<M: Memory>(&mut self, region: &Region<M>, page: MarkedPage) -> Result<(), JournalError> {
        // The image has the bytes of a page that is not resident; nothing was stored to it.
        let length = BLOCK_BYTES.min(region.length().saturating_sub(page.offset));
        if !region.is_resident(page.offset, length) {
            return Ok(());
        }
        let mut left = page.lines;
        while left != 0 {
            let first = left.trailing_zeros() as u64;
            let count = (left >> first).trailing_ones() as u64;
            left &= !(u64::MAX >> (64 - count) << first);
            let offset = page.offset + first * LINE_BYTES;
            // The last page of a region may have fewer lines.
            let count = count.min(region.length().saturating_sub(offset).div_ceil(LINE_BYTES));
            if count == 0 {
                break;
            }
            self.add_run(region, offset, count)?;
        }
        Ok(())
    }

    fn add_run<M: Memory>(&mut self, region: &Region<M>, offset: u64, count: u64) -> Result<(), JournalError> {
        let words = region.slice(Pm::<Cell64>::new(offset), count * LINE_WORDS)?;
        let line = offset / LINE_BYTES;
        let room = match self.chunk.add(line, count as usize) {
            Some(room) => room,
            None => {
                self.write_chunk(false)?;
                // An empty chunk has room for a page.
                self.chunk.add(line, count as usize).ok_or(JournalError::NotTracked)?
            }
        };
        // Word by word: a word of the region never tears.
        for (word, bytes) in words.iter().zip(room.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load().to_le_bytes());
        }
        self.lines += count;
        Ok(())
    }

    fn write_chunk(&mut self, is_last: bool) -> Result<(), DiskError> {
        if self.chunk.is_empty() && !is_last {
            return Ok(());
        }
        let (bytes, checksum) = self.chunk.complete(self.end.sequence, self.end.chain, is_last);
        self.journal.disk.write(self.journal.log_at(self.end.used_bytes), bytes)?;
        self.end.used_bytes += bytes.len() as u64;
        self.end.chain = checksum;
        Ok(())
    }

    /// Completes the commit, and waits until it is on the disk.
    fn finish(mut self, store: &dyn StateStore, tracking: &Tracking) -> Result<Committed, JournalError> {
        if self.lines == 0 {
            return Ok(Committed { lines: 0, bytes: 0 });
        }
        if is_injected!(ForgottenBeforeWritten) {
            tracking.clear_pending();
        }
        self.write_chunk(true)?;
        self.end.sequence += 1;
        let before = store.load();
        debug_assert_eq!(before.sequence + 1, self.end.sequence, "another thread commits at the same time");
        debug_assert!(before.used_bytes < self.end.used_bytes && !before.needs_trim, "it lies behind all others");
        debug_assert_eq!(before.generation, self.end.generation, "no checkpoint has trimmed the log meanwhile");
        if is_injected!(EndMovedBeforeFlush) {
            store.store(&self.end);
        }
        if !is_injected!(CommitNotFlushed) {
            self.journal.disk.flush()?;
        }
        let bytes = self.end.used_bytes - store.load().used_bytes;
        store.store(&self.end);
        tracking.clear_pending();
        Ok(Committed { lines: self.lines, bytes })
    }
}
