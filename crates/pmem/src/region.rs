//! A region: mapped memory with checked offsets, cells, flushes and fences.
//!
//! Decision: docs/decisions/foundations.md, "Flush only where memory survives a power failure".

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use core::{mem, slice};

use crate::cell::{Cell32, Cell64, Commit64, Layout, Pm};
use crate::memory::{Direct, Memory};
use crate::residency::{EFAULT, LoadError, Residency};
use crate::token::{Allocation, Checksummed, Dirty, Durable, Flushed, FlushedRecord, Proof, Recomputed, Unreachable};
use crate::tracking::Tracking;
use crate::{BLOCK_BYTES, ContentLoad, UserBytes, UserBytesMut, copy, flush};

/// An offset, length or alignment that does not fit the region: the image is corrupt, or the
/// caller's arithmetic is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadOffset {
    /// Bytes from the start of the region.
    pub offset: u64,
    /// Bytes requested there.
    pub length: u64,
}

/// Mapped memory. The creator of a region guarantees that the mapping outlives it.
///
/// A region may grow: see [`Region::reaching`].
pub struct Region<M: Memory = Direct> {
    base: *mut u8,
    /// Bytes that may be accessed, as far as this process knows. It never shrinks.
    length: AtomicU64,
    /// The most that `length` becomes.
    reach: u64,
    /// The word with the present size, if the region may grow.
    size: Option<NonNull<AtomicU64>>,
    memory: M,
    /// Whether lines must leave the cache to be durable.
    flushes: bool,
    /// Where flushed lines are marked for commits to a disk, if the region has one.
    tracking: Option<Tracking>,
    /// Which pages are in the memory, if not all are.
    residency: Option<Residency>,
}

// SAFETY: everything behind `base` is accessed as atomics or by the block copies of `copy`, which
// allow races, so threads may share it.
unsafe impl<M: Memory> Send for Region<M> {}
// SAFETY: as above.
unsafe impl<M: Memory> Sync for Region<M> {}

/// Prefetches the line of something that is about to be changed, in exclusive state, so that no
/// other processor keeps it. A line that is loaded for reading and then changed is transferred from
/// another processor twice: that took create and close of two threads 714 ns, now 688. No effect on
/// the value read.
#[inline(always)]
pub fn prefetch_for_write<T>(place: &T) {
    prefetch_line(core::ptr::from_ref(place).cast());
}

/// Assembly, because for the compiler this is a target feature, without which it emits the prefetch
/// for reading. (Processors without the instruction execute it as no operation.)
#[inline(always)]
fn prefetch_line(address: *const u8) {
    if !cfg!(miri) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) };
    }
}

impl<M: Memory> Region<M> {
    /// A region over mapped memory.
    ///
    /// # Safety
    /// `base .. base + length` stays mapped, readable and writable for as long as the region lives.
    /// `base` is aligned to a page. Rust references to its bytes in this process exist only through
    /// regions.
    pub const unsafe fn new(base: *mut u8, length: u64, memory: M) -> Self {
        let (size, flushes, tracking, residency) = (None, true, None, None);
        Region { base, length: AtomicU64::new(length), reach: length, size, memory, flushes, tracking, residency }
    }

    /// This region, which may grow to `reach` bytes once it [follows](Region::following) a size.
    /// Until then bytes behind its length are not accessed.
    ///
    /// # Safety
    /// `base .. base + reach` stays mapped for as long as the region lives.
    pub unsafe fn reaching(mut self, reach: u64) -> Self {
        self.reach = reach.max(self.length());
        self
    }

    /// This region, whose size is in a word that processes share: bytes, and in the bits of the
    /// remainder by [`BLOCK_BYTES`] what the region ignores. When an offset behind the known length
    /// comes, the region looks at the word.
    ///
    /// # Safety
    /// The word stays mapped for as long as the region lives. What it says is there, as far as the
    /// region reaches: the memory was made longer before.
    pub unsafe fn following(mut self, size: NonNull<AtomicU64>) -> Self {
        self.size = (self.reach > self.length()).then_some(size);
        self
    }

    /// Bytes that the region can have without a new mapping.
    pub fn reach(&self) -> u64 {
        self.reach
    }

    /// This region for memory where a flush adds no safety: its pages survive, with the bytes that
    /// the caches hold. Nothing is flushed or streamed then. A fence keeps the order of stores,
    /// which is all that a process death can observe. The memory hooks are called as usual.
    pub fn without_flushes(mut self) -> Self {
        self.flushes = false;
        self
    }

    /// This region, whose flushed lines are marked in a tracking area: see [`Tracking`]. The area
    /// must belong to a region that reaches at least as far.
    pub fn tracked(self, tracking: Tracking) -> Result<Self, BadOffset> {
        let region = self.trackable(tracking)?;
        tracking.set_active(true);
        Ok(region)
    }

    /// [`Region::tracked`], but lines are marked only while the area is active. Until then it costs
    /// a load per flush and fence.
    pub fn trackable(mut self, tracking: Tracking) -> Result<Self, BadOffset> {
        tracking.covers(self.reach)?;
        self.tracking = Some(tracking);
        Ok(self)
    }

    /// Where flushed lines are marked, if they are.
    pub fn tracking(&self) -> Option<&Tracking> {
        self.tracking_area().filter(|tracking| tracking.is_active())
    }

    /// Where flushed lines are marked while the area is active.
    pub fn tracking_area(&self) -> Option<&Tracking> {
        self.tracking.as_ref()
    }

    /// This region, of whose pages only some are in the memory: see [`Residency`], which must have
    /// bits for a region that reaches at least as far.
    pub fn partly_resident(mut self, residency: Residency) -> Result<Self, BadOffset> {
        residency.covers(self.reach)?;
        self.residency = Some(residency);
        Ok(self)
    }

    /// Which pages are in the memory, if not all are.
    #[inline(always)]
    pub fn residency(&self) -> Option<&Residency> {
        self.residency.as_ref()
    }

    /// Whether the pages of a range are in the memory. False if out of bounds.
    pub fn is_resident(&self, offset: u64, length: u64) -> bool {
        self.contains(offset, length)
            && self.residency.as_ref().is_none_or(|residency| residency.is_resident(offset, length))
    }

    /// Declares the pages of a range resident: their bytes mean nothing yet.
    #[inline(always)]
    pub fn set_resident(&self, offset: u64, length: u64) {
        if let Some(residency) = &self.residency
            && self.contains(offset, length)
        {
            residency.set_resident(offset, length);
        }
    }

    /// Loads the pages of a range that are not resident. The caller keeps other threads from
    /// storing to them: see [`Residency`].
    pub fn load(&self, offset: u64, length: u64) -> Result<(), LoadError> {
        if !self.contains(offset, length) {
            return Err(BadOffset { offset, length }.into());
        }
        match (&self.residency, NonNull::new(self.base)) {
            (Some(residency), Some(base)) => residency.load(base, offset..offset + length),
            _ => Ok(()),
        }
    }

    /// [`Region::read_bytes`], also where pages are not resident: those bytes come from the disk.
    /// Returns whether there were any.
    #[inline(always)]
    pub fn read_through<'a>(&self, offset: u64, into: impl Into<UserBytesMut<'a>>) -> Result<bool, LoadError> {
        let into = into.into();
        match &self.residency {
            None => self.read_content(offset, into).map(|()| false),
            Some(residency) => self.read_parts(residency, offset, into),
        }
    }

    #[inline(never)]
    fn read_parts(&self, residency: &Residency, offset: u64, into: UserBytesMut<'_>) -> Result<bool, LoadError> {
        let length = into.len() as u64;
        if !self.contains(offset, length) {
            return Err(BadOffset { offset, length }.into());
        }
        let mut from_disk = false;
        residency.split(offset..offset + length, |part, is_resident| {
            let bytes = into.part((part.start - offset) as usize..(part.end - offset) as usize);
            if is_resident {
                return self.read_content(part.start, bytes);
            }
            from_disk = true;
            let start = NonNull::new(bytes.start).ok_or(EFAULT);
            start.and_then(|start| residency.read_disk(part.start, start, bytes.len())).map_err(|errno| {
                // A bad pointer of a program shows as it does at resident pages: by a fault in the
                // copy. (What the copy reads means nothing.)
                // SAFETY: both ranges have this length, and the source is in bounds.
                unsafe { copy::load_bytes(self.base.add(part.start as usize), bytes.start, bytes.len()) };
                LoadError::Disk(errno)
            })
        })?;
        Ok(from_disk)
    }

    /// [`Region::read_bytes`] of content of a file: where the memory has an error, that is an error
    /// of this read alone.
    #[inline(always)]
    fn read_content(&self, offset: u64, into: UserBytesMut<'_>) -> Result<(), LoadError> {
        let length = into.len() as u64;
        if !self.contains(offset, length) {
            return Err(BadOffset { offset, length }.into());
        }
        self.report_read(offset, length);
        debug_assert!(self.is_resident(offset, length), "{offset:#x} is not in the memory");
        // SAFETY: the source is in bounds. The destination can be written, and is in no region, by
        // the contract of `UserBytesMut::new`, so they do not overlap.
        let is_there =
            unsafe { copy::load_content(self.base.add(offset as usize), into.start, into.len(), ContentLoad::Wanted) };
        if is_there { Ok(()) } else { Err(LoadError::Lost) }
    }

    /// The first page that a range within the region touches whose memory has an error.
    #[cold]
    pub fn first_lost(&self, offset: u64, length: u64, kind: ContentLoad) -> Option<u64> {
        let pages = offset / BLOCK_BYTES..offset.saturating_add(length).div_ceil(BLOCK_BYTES);
        let mut pages = pages.map(|page| page * BLOCK_BYTES).filter(|&page| self.contains(page, 1));
        // SAFETY: the byte is in bounds; the copy allows races.
        pages.find(|&page| unsafe { !copy::load_content(self.base.add(page as usize), &mut 0, 1, kind) })
    }

    /// Before stores to content, and loads that cannot fail: an error if the memory of a range
    /// within the region is known to have one.
    #[inline(always)]
    pub fn check_memory(&self, offset: u64, length: u64) -> Result<(), LoadError> {
        match crate::expects_memory_errors() && self.first_lost(offset, length, ContentLoad::Wanted).is_some() {
            true => Err(LoadError::Lost),
            false => Ok(()),
        }
    }

    /// [`Region::stream_within`] of content, also where the pages of the source are not resident.
    #[inline(always)]
    pub fn stream_through(&self, from: u64, to: u64, length: u64) -> Result<Flushed, LoadError> {
        match &self.residency {
            Some(residency) if self.contains(from, length) && !residency.is_resident(from, length) => {
                self.stream_absent(from, to, length)
            }
            _ => {
                self.check_memory(from, length)?;
                Ok(self.stream_within(from, to, length)?)
            }
        }
    }

    #[inline(never)]
    fn stream_absent(&self, from: u64, to: u64, length: u64) -> Result<Flushed, LoadError> {
        let mut buffer = [0u8; 4096];
        let mut flushed = Flushed(());
        let mut done = 0;
        while done < length {
            let step = (length - done).min(buffer.len() as u64);
            let part = &mut buffer[..step as usize];
            self.read_through(from + done, &mut *part)?;
            flushed = flushed.and(self.stream_bytes(to + done, &*part)?);
            done += step;
        }
        Ok(flushed)
    }

    /// Marks a range, whose bytes were stored, for the next commit.
    #[inline(always)]
    fn mark(&self, offset: u64, length: u64) {
        if let Some(tracking) = self.tracking() {
            tracking.mark(offset, length);
        }
    }

    /// Whether lines are flushed: see [`Region::without_flushes`].
    pub fn flushes(&self) -> bool {
        self.flushes
    }

    /// Length of the region in bytes, as far as this process knows.
    #[inline(always)]
    pub fn length(&self) -> u64 {
        self.length.load(Ordering::Relaxed)
    }

    /// The memory hooks of this region.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Whether `length` bytes at `offset` lie inside.
    #[inline(always)]
    pub fn contains(&self, offset: u64, length: u64) -> bool {
        let now = self.length();
        offset <= now && length <= now - offset || self.contains_after_growth(offset, length)
    }

    /// `contains` after a look at the present size.
    #[cold]
    #[inline(never)]
    fn contains_after_growth(&self, offset: u64, length: u64) -> bool {
        let Some(size) = self.size else { return false };
        // SAFETY: mapped by the contract of `following`.
        let size = unsafe { size.as_ref() }.load(Ordering::Acquire);
        let now = (size / BLOCK_BYTES * BLOCK_BYTES).min(self.reach);
        self.length.fetch_max(now, Ordering::Relaxed);
        offset <= now && length <= now - offset
    }

    /// The structure at `at`, after a check of bounds and alignment. Its content is not checked.
    #[inline(always)]
    pub fn get<T: Layout>(&self, at: Pm<T>) -> Result<&T, BadOffset> {
        let size = mem::size_of::<T>() as u64;
        let offset = at.offset();
        if offset == 0 || !self.contains(offset, size) || offset & (mem::align_of::<T>() as u64 - 1) != 0 {
            return Err(BadOffset { offset, length: size });
        }
        if M::WATCHED {
            self.memory.reached(offset);
        }
        debug_assert!(self.is_resident(offset, size), "{offset:#x} is not in the memory");
        // SAFETY: in bounds and aligned by the check above (`base` is page-aligned); mapped for as
        // long as `self` by the contract of `new`; any bytes are a `T` whose fields are atomics by
        // the contract of `Layout`.
        Ok(unsafe { &*self.base.add(offset as usize).cast::<T>() })
    }

    /// The structure at offset zero (superblock, header).
    #[inline(always)]
    pub fn first<T: Layout>(&self) -> Result<&T, BadOffset> {
        if mem::size_of::<T>() as u64 > self.length() {
            return Err(BadOffset { offset: 0, length: mem::size_of::<T>() as u64 });
        }
        // SAFETY: as in `get`; offset zero is aligned for every layout.
        Ok(unsafe { &*self.base.cast::<T>() })
    }

    /// `count` consecutive structures.
    #[inline(always)]
    pub fn slice<T: Layout>(&self, at: Pm<T>, count: u64) -> Result<&[T], BadOffset> {
        let offset = at.offset();
        let bad = BadOffset { offset, length: u64::MAX };
        let length = count.checked_mul(mem::size_of::<T>() as u64).ok_or(bad)?;
        if !self.contains(offset, length) || offset & (mem::align_of::<T>() as u64 - 1) != 0 {
            return Err(BadOffset { offset, length });
        }
        debug_assert!(self.is_resident(offset, length), "{offset:#x} is not in the memory");
        // SAFETY: as in `get`, for `count` elements without padding between them.
        Ok(unsafe { slice::from_raw_parts(self.base.add(offset as usize).cast::<T>(), count as usize) })
    }

    /// The offset of a structure that was reached through this region.
    #[inline(always)]
    pub fn offset_of<T: Layout>(&self, thing: &T) -> u64 {
        let offset = (thing as *const T as usize).wrapping_sub(self.base as usize) as u64;
        debug_assert!(self.contains(offset, mem::size_of::<T>() as u64), "not of this region");
        offset
    }

    /// Stores an ordinary field.
    #[inline(always)]
    pub fn set64(&self, cell: &Cell64, value: u64) -> Dirty {
        let offset = self.offset_of(cell);
        cell.0.store(value, Ordering::Relaxed);
        self.report_stored(offset, &value.to_le_bytes());
        Dirty { start: offset, end: offset + 8 }
    }

    /// Stores consecutive ordinary fields in ascending order.
    #[inline(always)]
    pub fn set_all<const N: usize>(&self, cells: &[Cell64; N], values: &[u64; N]) -> Dirty {
        let start = self.offset_of(cells);
        for (cell, value) in cells.iter().zip(values) {
            let _ = self.set64(cell, *value);
        }
        Dirty { start, end: start + 8 * N as u64 }
    }

    /// Stores an ordinary field of four bytes.
    #[inline(always)]
    pub fn set32(&self, cell: &Cell32, value: u32) -> Dirty {
        let offset = self.offset_of(cell);
        cell.0.store(value, Ordering::Relaxed);
        self.report_stored(offset, &value.to_le_bytes());
        Dirty { start: offset, end: offset + 4 }
    }

    /// [`set64`](Self::set64), if the field still is `old`.
    #[inline]
    pub fn exchange64(&self, cell: &Cell64, old: u64, new: u64) -> Option<Dirty> {
        let offset = self.offset_of(cell);
        cell.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).ok()?;
        self.report_stored(offset, &new.to_le_bytes());
        Some(Dirty { start: offset, end: offset + 8 })
    }

    /// Replaces `old` by `new` in a field whose value means nothing after a crash (an nv pointer);
    /// returns whether it did. Deliberately never flushed.
    #[inline]
    pub fn exchange_volatile(&self, cell: &Cell64, old: u64, new: u64) -> bool {
        let offset = self.offset_of(cell);
        let done = cell.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if done {
            self.report_stored(offset, &new.to_le_bytes());
        }
        done
    }

    /// Stores a word that makes other bytes valid, given the proof that they are durable or certify
    /// themselves. As with every commit this is a release store: an acquire load of the word sees
    /// everything it refers to.
    #[inline(always)]
    pub fn commit(&self, cell: &Commit64, value: u64, _proof: impl Proof) -> Dirty {
        self.store_commit(cell, value)
    }

    /// [`commit`](Self::commit), if the word still is `old`.
    #[inline]
    pub fn commit_if(&self, cell: &Commit64, old: u64, value: u64, _proof: impl Proof) -> Option<Dirty> {
        self.exchange_commit(cell, old, value)
    }

    /// Stores the word that makes a record count, which recovery heeds only if the record's
    /// checksum verifies. The caller flushes it with the record.
    #[inline(always)]
    pub fn commit_record<T: Checksummed>(&self, record: &T, value: u64) -> Dirty {
        self.store_commit(record.commit_word(), value)
    }

    /// The structure at the start of memory that was just allocated: see [`Unreachable`].
    #[inline(always)]
    pub fn unreachable<T: Layout>(&self, allocation: impl Allocation) -> Result<Unreachable<'_, T>, BadOffset> {
        self.get(Pm::new(allocation.offset())).map(Unreachable)
    }

    /// Stores a word of a structure that no crash state reaches. `word` selects it.
    #[inline(always)]
    pub fn commit_unreachable<T: Layout>(
        &self,
        record: &Unreachable<'_, T>,
        word: impl FnOnce(&T) -> &Commit64,
        value: u64,
    ) -> Dirty {
        self.store_commit(word(record), value)
    }

    /// Stores a word that recovery stores again.
    #[inline(always)]
    pub fn commit_recomputed(&self, recomputed: &impl Recomputed, value: u64) -> Dirty {
        self.store_commit(recomputed.word(), value)
    }

    #[inline(always)]
    fn store_commit(&self, cell: &Commit64, value: u64) -> Dirty {
        let offset = self.offset_of(cell);
        cell.0.store(value, Ordering::Release);
        self.report_stored(offset, &value.to_le_bytes());
        Dirty { start: offset, end: offset + 8 }
    }

    /// Stores zero, or another word that shows nothing beyond the present one, into a commit word:
    /// nothing can become visible by it.
    #[inline(always)]
    pub fn retract(&self, cell: &Commit64, nothing: u64) -> Dirty {
        let offset = self.offset_of(cell);
        cell.0.store(nothing, Ordering::Release);
        self.report_stored(offset, &nothing.to_le_bytes());
        Dirty { start: offset, end: offset + 8 }
    }

    /// Stores zero (or another word that refers to nothing) into a commit word if it still is
    /// `old`.
    #[inline]
    pub fn retract_if(&self, cell: &Commit64, old: u64, nothing: u64) -> Option<Dirty> {
        self.exchange_commit(cell, old, nothing)
    }

    #[inline]
    fn exchange_commit(&self, cell: &Commit64, old: u64, value: u64) -> Option<Dirty> {
        let offset = self.offset_of(cell);
        cell.0.compare_exchange(old, value, Ordering::AcqRel, Ordering::Acquire).ok()?;
        self.report_stored(offset, &value.to_le_bytes());
        Some(Dirty { start: offset, end: offset + 8 })
    }

    /// Issues flushes for the lines that `dirty` covers.
    #[inline(always)]
    pub fn flush(&self, dirty: Dirty) -> Flushed {
        self.flush_range(dirty.start, dirty.end - dirty.start)
    }

    /// Issues flushes for a record, from its first byte to the end of what `dirty` covers.
    #[inline(always)]
    pub fn flush_record<T: Layout>(&self, record: &T, dirty: Dirty) -> FlushedRecord<T> {
        debug_assert!(dirty.start == self.offset_of(record), "not flushed from the record's start");
        let Flushed(()) = self.flush(dirty);
        FlushedRecord(PhantomData)
    }

    /// Issues flushes for all lines of a structure, whichever of its fields were stored.
    #[inline(always)]
    pub fn flush_all<T: Layout>(&self, thing: &T) -> Flushed {
        self.flush_range(self.offset_of(thing), mem::size_of::<T>() as u64)
    }

    /// Issues flushes for the lines of a range. A range out of bounds is a defect of the caller;
    /// nothing is flushed then.
    #[inline(always)]
    pub fn flush_range(&self, offset: u64, length: u64) -> Flushed {
        if self.contains(offset, length) {
            // Reported first: another thread's store between the flush and the report must not
            // count as flushed.
            if M::WATCHED {
                self.memory.flushed(offset, length);
            }
            if self.flushes {
                // SAFETY: in bounds, hence mapped.
                unsafe { flush::flush_lines(self.base.add(offset as usize), length as usize) };
            }
            self.mark(offset, length);
        } else {
            debug_assert!(false, "flush outside the region");
        }
        Flushed(())
    }

    /// [`Region::flush_range`] for the pages of a range that are resident: nothing was stored to
    /// others.
    pub fn flush_resident(&self, offset: u64, length: u64) -> Flushed {
        let mut flushed = Flushed(());
        match &self.residency {
            Some(residency) if self.contains(offset, length) => {
                let _ = residency.split(offset..offset + length, |part, is_resident| {
                    if is_resident {
                        flushed = Flushed(()).and(self.flush_range(part.start, part.end - part.start));
                    }
                    Ok(())
                });
            }
            _ => flushed = self.flush_range(offset, length),
        }
        flushed
    }

    /// Makes this thread's flushes durable.
    #[inline(always)]
    pub fn fence(&self, _flushed: Flushed) -> Durable {
        if self.flushes {
            flush::store_fence();
        } else {
            // The processor keeps the order of ordinary stores.
            compiler_fence(Ordering::SeqCst);
        }
        if M::WATCHED {
            self.memory.fenced();
        }
        if let Some(tracking) = &self.tracking {
            tracking.pass_fence();
        }
        Durable(())
    }

    /// [`Region::fence`] for the flushes that this thread has left to a later fence
    /// ([`Flushed::unfenced`]).
    #[inline(always)]
    pub fn fence_unfenced(&self) -> Durable {
        self.fence(Flushed(()))
    }

    /// A fence as evidence for a word that shows nothing new: all that it leads to was durable
    /// before, or counts only after a later commit.
    #[inline(always)]
    pub fn fence_nothing_new(&self) -> Durable {
        self.fence(Flushed(()))
    }

    /// Flush and fence in one.
    #[inline(always)]
    pub fn persist(&self, dirty: Dirty) -> Durable {
        let flushed = self.flush(dirty);
        self.fence(flushed)
    }

    /// Stores bytes in place (names, inline targets) by relaxed atomics of the largest aligned
    /// pieces that fit.
    pub fn write_bytes(&self, offset: u64, bytes: &[u8]) -> Result<Dirty, BadOffset> {
        let length = bytes.len() as u64;
        if !self.contains(offset, length) {
            return Err(BadOffset { offset, length });
        }
        debug_assert!(self.is_resident(offset, length), "{offset:#x} is not in the memory");
        // SAFETY: the destination is in bounds, the source is a slice, and they do not overlap (by
        // the contract of `new` a caller's slice is not in a region).
        unsafe { copy::store_bytes(self.base.add(offset as usize), bytes.as_ptr(), bytes.len()) };
        self.report_stored(offset, bytes);
        Ok(Dirty { start: offset, end: offset + length })
    }

    /// Copies `bytes` into the region past the cache, in the fastest way for their length: durable
    /// at the next fence. Partial lines at the edges are flushed.
    #[inline(always)]
    pub fn stream_bytes<'a>(&self, offset: u64, bytes: impl Into<UserBytes<'a>>) -> Result<Flushed, BadOffset> {
        self.stream_user_bytes(offset, bytes.into())
    }

    fn stream_user_bytes(&self, offset: u64, bytes: UserBytes<'_>) -> Result<Flushed, BadOffset> {
        let length = bytes.len() as u64;
        if !self.contains(offset, length) {
            return Err(BadOffset { offset, length });
        }
        debug_assert!(self.is_resident(offset, length), "{offset:#x} is not in the memory");
        // SAFETY: the destination is in bounds. The source can be read and is in no region, by the
        // contract of `UserBytes::new`, so they do not overlap.
        unsafe { self.copy(offset, bytes.start, bytes.len()) };
        if M::WATCHED {
            self.memory.streamed(offset, bytes);
        }
        self.mark(offset, length);
        Ok(Flushed(()))
    }

    /// # Safety
    /// As for [`copy::stream`], for a range at `offset` in bounds.
    #[inline(always)]
    unsafe fn copy(&self, offset: u64, from: *const u8, length: usize) {
        // SAFETY: by contract.
        unsafe {
            let to = self.base.add(offset as usize);
            if self.flushes { copy::stream(to, from, length) } else { copy::store(to, from, length) }
        }
    }

    /// Fills a range with zeros past the cache: durable at the next fence.
    pub fn stream_zeros(&self, offset: u64, length: u64) -> Result<Flushed, BadOffset> {
        static ZEROS: [u8; 4096] = [0; 4096];
        if !self.contains(offset, length) {
            return Err(BadOffset { offset, length });
        }
        let mut flushed = Flushed(());
        let mut done = 0;
        while done < length {
            let step = (length - done).min(4096);
            flushed = flushed.and(self.stream_bytes(offset + done, &ZEROS[..step as usize])?);
            done += step;
        }
        Ok(flushed)
    }

    /// Copies bytes within the region (a block's unchanged part into its copy): durable at the next
    /// fence. The ranges must not overlap.
    pub fn stream_within(&self, from: u64, to: u64, length: u64) -> Result<Flushed, BadOffset> {
        for offset in [from, to] {
            if !self.contains(offset, length) {
                return Err(BadOffset { offset, length });
            }
        }
        if from.abs_diff(to) < length {
            return Err(BadOffset { offset: to, length });
        }
        debug_assert!(self.is_resident(from, length) && self.is_resident(to, length), "not in the memory");
        if M::WATCHED {
            return self.stream_within_watched(from, to, length);
        }
        // SAFETY: both ranges are in bounds and do not overlap by the checks above; the copy allows
        // concurrent writes.
        unsafe { self.copy(to, self.base.add(from as usize), length as usize) };
        self.mark(to, length);
        Ok(Flushed(()))
    }

    /// `stream_within` through a buffer: the memory hooks must see exactly the bytes stored, even
    /// if the source changes concurrently.
    fn stream_within_watched(&self, from: u64, to: u64, length: u64) -> Result<Flushed, BadOffset> {
        let mut buffer = [0u8; 512];
        let mut flushed = Flushed(());
        let mut done = 0;
        while done < length {
            let step = (length - done).min(buffer.len() as u64);
            let part = &mut buffer[..step as usize];
            self.read_bytes(from + done, part)?;
            flushed = flushed.and(self.stream_bytes(to + done, &*part)?);
            done += step;
        }
        Ok(flushed)
    }

    /// Copies bytes out of the region. A byte that is written concurrently may be old or new, each
    /// independently.
    #[inline]
    pub fn read_bytes(&self, offset: u64, into: &mut [u8]) -> Result<(), BadOffset> {
        let length = into.len() as u64;
        if !self.contains(offset, length) {
            return Err(BadOffset { offset, length });
        }
        self.report_read(offset, length);
        debug_assert!(self.is_resident(offset, length), "{offset:#x} is not in the memory");
        // SAFETY: the source is in bounds, the destination is a slice outside of any region. The
        // copy allows races.
        unsafe { copy::load_bytes(self.base.add(offset as usize), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Whether the region's bytes at `offset` equal `bytes`. False if out of bounds.
    #[inline]
    pub fn bytes_equal(&self, offset: u64, bytes: &[u8]) -> bool {
        if !self.contains(offset, bytes.len() as u64) {
            return false;
        }
        // SAFETY: in bounds by the check above.
        unsafe { copy::equal(self.base.add(offset as usize), bytes) }
    }

    /// Prefetches the line at `offset`. No effect on the value read.
    #[inline(always)]
    pub fn prefetch(&self, offset: u64) {
        self.prefetch_by(offset, |address| {
            // SAFETY: a prefetch of any address is harmless.
            unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast()) }
        });
    }

    /// `prefetch` for a line that is about to be changed, see [`prefetch_for_write`].
    #[inline(always)]
    pub fn prefetch_for_write(&self, offset: u64) {
        self.prefetch_by(offset, prefetch_line);
    }

    #[inline(always)]
    fn prefetch_by(&self, offset: u64, prefetch: impl FnOnce(*const u8)) {
        if offset < self.length() {
            // SAFETY: in bounds.
            prefetch(unsafe { self.base.add(offset as usize) });
            if M::WATCHED {
                self.memory.prefetched(offset);
            }
        }
    }

    /// Reports to the memory that `length` bytes at `offset` are read from the medium; waits if
    /// reads are slow.
    #[inline(always)]
    pub fn report_read(&self, offset: u64, length: u64) {
        if M::WATCHED {
            self.memory.read(offset, length);
        }
    }

    /// The address of a range, for mappings and for system calls that take addresses.
    pub fn address(&self, offset: u64, length: u64) -> Result<*mut u8, BadOffset> {
        if !self.contains(offset, length) {
            return Err(BadOffset { offset, length });
        }
        // SAFETY: in bounds.
        Ok(unsafe { self.base.add(offset as usize) })
    }

    #[inline(always)]
    fn report_stored(&self, offset: u64, bytes: &[u8]) {
        if M::WATCHED {
            self.memory.stored(offset, bytes);
        }
    }
}
