//! A process's view of a file system ([`Fs`]) and a thread's place in it ([`Thread`]).

use crate::dram::{Cachelet, Dram, DramHeader, GROUP_BLOCKS, HUGE_PAGE_BYTES, Owner, SLOTS_MAX, ThreadSlot};
use crate::error::{Corruption, Error, Result};
use crate::format::{Geometry, INODE_BYTES, INODES_PER_SEGMENT, Inode, Superblock};
use crate::platform::Platform;
use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use pmem::{BLOCK_BYTES, Commit64, Direct, Flushed, Memory, Pm, Region};

/// In [`ThreadSlot::owner`]: somebody is about to put his name there.
const CLAIMING: u64 = u64::MAX;

/// A file system as this process sees it: two base addresses and what never changes. Made by attaching; see `attach`.
pub struct Fs<M: Memory = Direct> {
    pub(crate) pm: Region<M>,
    pub(crate) dram: Dram,
    pub(crate) geometry: Geometry,
    pub(crate) platform: &'static dyn Platform,
    pub(crate) epoch: u32,
    pub(crate) hash_seed: u64,
    pub(crate) read_only: bool,
    /// Nothing at all is written to the image: the DRAM region was built by somebody who may only read. Who reads in a region that writers
    /// use takes part in what they do behind the scenes.
    pub(crate) untouched: bool,
}

/// A file that the holder has a counted reference to: it stays what it is until [`Thread::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Node {
    /// Index of its cachelet.
    pub cachelet: u32,
    /// Its inode number.
    pub number: u64,
}

/// A thread inside the file system. It owns a slot of the DRAM region until it is dropped; it may move between threads of the
/// process, but only one uses it at a time.
pub struct Thread<'f, M: Memory = Direct> {
    pub(crate) fs: &'f Fs<M>,
    pub(crate) index: u32,
    pub(crate) slot: &'f ThreadSlot,
    /// Not `Sync`: the slot has one writer.
    not_sync: PhantomData<core::cell::Cell<()>>,
}

impl<M: Memory> Fs<M> {
    /// The PM region.
    pub fn pm(&self) -> &Region<M> {
        &self.pm
    }

    /// The DRAM region.
    pub fn dram(&self) -> &Dram {
        &self.dram
    }

    /// The machine around it.
    pub fn platform(&self) -> &'static dyn Platform {
        self.platform
    }

    /// Where the image's areas are.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The image's epoch: counts the attaches that built a DRAM region.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Something was lost: whoever leaves the image last must not call it clean, so the next one in recovers it.
    pub fn abandon(&self) {
        if let Ok(header) = self.header() {
            header.abandoned.fetch_add(1, AcqRel);
        }
    }

    /// Whether the image is written in the DRAM region that this process uses, by itself or by others.
    pub fn is_written(&self) -> bool {
        !self.untouched
    }

    /// An allocator that goes through an area of the DRAM region upwards takes `bytes` of it (counted from the area's begin, which a huge page begins
    /// at). When it comes to another huge page, that one is provided as a whole: for less than the single pages would cost, and lookups
    /// miss the translation caches less. The first one stays as it is until a second one is wanted: small file systems take little memory.
    #[inline]
    pub(crate) fn enter_area(&self, area: u64, bytes: Range<u64>, area_bytes: u64) {
        let page = (bytes.end - 1) / HUGE_PAGE_BYTES;
        // Who takes the byte at which the page begins; if that comes in the middle of what he takes, he has been in the one before.
        if page > 0 && bytes.start <= page * HUGE_PAGE_BYTES && (page + 1) * HUGE_PAGE_BYTES <= area_bytes {
            let first = if page == 1 { 0 } else { page };
            provide_huge(
                self.platform,
                &self.dram.region,
                area + first * HUGE_PAGE_BYTES..area + (page + 1) * HUGE_PAGE_BYTES,
            );
        }
    }

    /// Provides huge pages for groups of blocks.
    #[cold]
    pub(crate) fn provide_groups(&self, groups: Range<u64>) {
        const { assert!(GROUP_BLOCKS * BLOCK_BYTES == HUGE_PAGE_BYTES) };
        provide_huge(self.platform, &self.pm, groups.start * HUGE_PAGE_BYTES..groups.end * HUGE_PAGE_BYTES);
    }

    pub(crate) fn header(&self) -> Result<&DramHeader> {
        self.dram.header()
    }

    pub(crate) fn superblock(&self) -> Result<&Superblock> {
        Ok(self.pm.first()?)
    }

    /// Claims a slot for the calling thread.
    pub fn enter(&self) -> Result<Thread<'_, M>> {
        let high = self.header()?.slots_high.load(Acquire).min(SLOTS_MAX);
        // Slots used before come first: their magazines are full and their lines warm.
        for index in (0..high).chain(high..SLOTS_MAX) {
            if let Some(thread) = self.enter_slot(index as u32)? {
                return Ok(thread);
            }
        }
        // Who ended without leaving (a process with several threads ends by one of them) left its slot behind.
        for index in 0..SLOTS_MAX {
            if let Some(thread) = self.enter_left_slot(index as u32)? {
                return Ok(thread);
            }
        }
        Err(Error::TooManyThreads)
    }

    /// Claims slot `index` for the calling thread, unless somebody has it.
    pub(crate) fn enter_slot(&self, index: u32) -> Result<Option<Thread<'_, M>>> {
        match self.dram.slot(index)?.owner.load(Relaxed) {
            0 => self.claim_slot_of(index, 0),
            _ => Ok(None),
        }
    }

    /// Claims slot `index` if its owner is dead and was not inside when it died. A slot whose owner died inside stays as it is: locks may name it.
    fn enter_left_slot(&self, index: u32) -> Result<Option<Thread<'_, M>>> {
        let slot = self.dram.slot(index)?;
        let owner = slot.owner.load(Acquire);
        let was_inside = slot.pinned.load(Acquire) != 0 || slot.pins.load(Relaxed) != 0;
        if was_inside || owner == 0 || owner == CLAIMING || self.slot_is_alive(index)? {
            return Ok(None);
        }
        self.claim_slot_of(index, owner)
    }

    fn claim_slot_of(&self, index: u32, owner: u64) -> Result<Option<Thread<'_, M>>> {
        let slot = self.dram.slot(index)?;
        let me = self.platform.identity();
        // Not ours at once: with the start of the last owner's process beside our name, we would look dead.
        if slot.owner.compare_exchange(owner, CLAIMING, AcqRel, Relaxed).is_err() {
            return Ok(None);
        }
        slot.started.store(me.started, Relaxed);
        slot.pins.store(0, Relaxed);
        slot.owner.store(me.pid as u64 | (me.tid as u64) << 32, Release);
        self.header()?.slots_high.fetch_max(index as u64 + 1, AcqRel);
        Ok(Some(Thread { fs: self, index, slot, not_sync: PhantomData }))
    }

    /// Who owns a slot, or none.
    pub fn slot_owner(&self, index: u32) -> Result<Option<Owner>> {
        let slot = self.dram.slot(index)?;
        let word = slot.owner.load(Acquire);
        let owner = Owner { pid: word as u32, tid: (word >> 32) as u32, started: slot.started.load(Acquire) };
        Ok((word != 0).then_some(owner))
    }

    /// The offset of an inode by its number, through the segment table.
    pub(crate) fn inode_offset(&self, number: u64) -> Result<u64> {
        if number == 0 || number >= self.geometry.inodes_max() {
            return Err(Corruption::Inode(number).into());
        }
        let segment = number / INODES_PER_SEGMENT;
        let first = self.segment_entry(segment)?.load_acquire();
        if first == 0 || first % BLOCK_BYTES != 0 {
            return Err(Corruption::Inode(number).into());
        }
        Ok(first + number % INODES_PER_SEGMENT * INODE_BYTES)
    }

    /// The entry of the segment table for a segment. It is written in `alloc::inodes`.
    pub(crate) fn segment_entry(&self, segment: u64) -> Result<&Commit64> {
        if segment >= self.geometry.segments_max {
            return Err(Corruption::Inode(segment * INODES_PER_SEGMENT).into());
        }
        Ok(self.pm.get(Pm::new(self.geometry.segment_table_block * BLOCK_BYTES + segment * 8))?)
    }

    /// The inode at an offset that `inode_offset` or a cachelet gave.
    pub(crate) fn inode_at(&self, offset: u64) -> Result<&Inode> {
        Ok(self.pm.get(Pm::new(offset))?)
    }

    /// The inode of a number.
    pub(crate) fn inode(&self, number: u64) -> Result<&Inode> {
        self.inode_at(self.inode_offset(number)?)
    }

    /// The time for stamps, in ns since 1970.
    pub(crate) fn now_ns(&self) -> i64 {
        self.platform.now_ns()
    }

    /// Refuses if nothing may change.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }
}

#[cold]
fn provide_huge<R: Memory>(platform: &dyn Platform, region: &Region<R>, range: Range<u64>) {
    let length = range.end - range.start;
    if let Ok(address) = region.address(range.start, length)
        && (address as u64).is_multiple_of(HUGE_PAGE_BYTES)
    {
        platform.provide_huge(address, length as usize);
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// The file system.
    pub fn fs(&self) -> &'f Fs<M> {
        self.fs
    }

    /// This thread's slot, as locks name it: index + 1.
    pub(crate) fn ticket(&self) -> u32 {
        self.index + 1
    }

    /// The cachelet of a node.
    pub(crate) fn cachelet(&self, node: Node) -> Result<&'f Cachelet> {
        self.fs.dram.cachelet(node.cachelet)
    }
}

impl<M: Memory> Drop for Thread<'_, M> {
    fn drop(&mut self) {
        // What this thread flushed last and left to a later fence must not wait for one that the slot's next owner cannot issue for it.
        self.fs.pm.fence(Flushed::nothing());
        self.slot.pinned.store(0, Release);
        self.slot.owner.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use crate::dram::SLOTS_MAX;
    use crate::error::Error;
    use crate::testing::{Attached, TestPlatform, new_image};
    use std::vec::Vec;

    #[test]
    fn the_slot_of_who_ended_without_leaving_is_used_when_there_is_no_other() {
        static MORTAL: TestPlatform = TestPlatform::new();
        let image = new_image(4 << 20, 0);
        let fs = Attached::with(&image, &MORTAL, &Default::default(), 1).expect("attaches");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                core::mem::forget(fs.enter().expect("enters"));
                MORTAL.kill();
            });
        });
        let threads: Vec<_> = (0..SLOTS_MAX).map(|_| fs.enter().expect("enters")).collect();
        assert_eq!(fs.enter().err(), Some(Error::TooManyThreads));
        drop(threads);
    }

    #[test]
    fn the_slot_of_who_died_inside_is_not_given_away() {
        static MORTAL: TestPlatform = TestPlatform::new();
        let image = new_image(4 << 20, 0);
        let fs = Attached::with(&image, &MORTAL, &Default::default(), 1).expect("attaches");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let thread = fs.enter().expect("enters");
                core::mem::forget(thread.pin());
                core::mem::forget(thread);
                MORTAL.kill();
            });
        });
        let threads: Vec<_> = (1..SLOTS_MAX).map(|_| fs.enter().expect("enters")).collect();
        assert_eq!(fs.enter().err(), Some(Error::TooManyThreads));
        drop(threads);
    }
}
