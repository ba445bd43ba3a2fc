//! Arrays of slots with stable addresses, like a kernel's slab with `SLAB_TYPESAFE_BY_RCU`. A
//! reader without a lock may see a slot that was reused meanwhile. It finds a slot of the same
//! type, and a count in the slot reveals the reuse.

use crate::error::{Error, Result};
use crate::locks;
use crate::multicore::named_memory::NamedMemory;
use crate::substrate::shard;
use pmem::{Direct, Layout, MappedRegion, Mapping, Pm};
use posix::Errno;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

/// Unused slots that a thread takes at once.
const BATCH: u32 = 32;
/// Number of lists of free slots.
const SHARDS: usize = 16;

/// Process memory for arrays of cells, reserved at once and touched on demand.
pub(super) fn reserve(bytes: u64) -> Result<MappedRegion<Direct>> {
    let mapping = Mapping::anonymous(bytes).map_err(|_| Error::Errno(Errno::ENOMEM))?;
    Arc::new(mapping).region(Direct).map_err(|_| Error::Errno(Errno::ENOMEM))
}

/// An array of zero-initialised elements.
pub(super) struct Array<T: Layout> {
    region: MappedRegion<Direct>,
    length: u32,
    of: PhantomData<fn() -> T>,
}

impl<T: Layout> Array<T> {
    pub(super) fn new(length: u32) -> Result<Array<T>> {
        let size = size_of::<T>() as u64;
        Ok(Array { region: reserve((length as u64 + 1) * size + 64)?, length, of: PhantomData })
    }

    pub(super) fn length(&self) -> u32 {
        self.length
    }

    /// An element. Indices come from the VFS layer itself; an index past the end is a defect and
    /// yields the last element.
    #[inline(always)]
    pub(super) fn at(&self, index: u32) -> &T {
        debug_assert!(index < self.length, "{index} of {}", self.length);
        // Offset zero is invalid in a region, hence the extra element.
        let index = index.min(self.length - 1) as u64 + 1;
        let at = Pm::new(index * size_of::<T>() as u64);
        self.region.get(at).expect("the array is as long as it says, and aligned")
    }

    /// Its memory area, with one part per element.
    pub(super) fn place(&self, name: &str) -> NamedMemory {
        let start = self.at(0) as *const T as u64;
        NamedMemory::at(name, start, self.length as u64 * size_of::<T>() as u64).each(size_of::<T>() as u64)
    }

    /// Touches the memory of the first `count` elements, to avoid page faults later.
    pub(super) fn touch(&self, count: u32) {
        let end = (count.min(self.length) as u64 + 1) * size_of::<T>() as u64;
        // Only an optimisation: on failure the pages are touched on first use.
        let _ = self.region.mapping().populate_huge(0..end);
    }
}

/// An array of slots that are allocated and freed. Slot zero is never allocated.
pub(super) struct Arena<T: Layout> {
    slots: Array<T>,
    free: [Mutex<Vec<u32>>; SHARDS],
    next: AtomicU32,
}

impl<T: Layout> Arena<T> {
    pub(super) fn new(length: u32) -> Result<Arena<T>> {
        let length = length.max(2 * BATCH).saturating_add(1);
        Ok(Arena { slots: Array::new(length)?, free: Default::default(), next: AtomicU32::new(1) })
    }

    #[inline(always)]
    pub(super) fn at(&self, slot: u32) -> &T {
        self.slots.at(slot)
    }

    pub(super) fn touch(&self, count: u32) {
        self.slots.touch(count);
    }

    fn list(&self, shard: usize) -> MutexGuard<'_, Vec<u32>> {
        locks::lock(&self.free[shard])
    }

    /// Allocates a slot; none if all are in use.
    pub(super) fn take(&self) -> Option<u32> {
        let mine = shard(SHARDS);
        {
            let mut list = self.list(mine);
            if let Some(slot) = list.pop() {
                return Some(slot);
            }
            let start = self.next.fetch_update(Relaxed, Relaxed, |next| {
                (next < self.slots.length()).then(|| (next + BATCH).min(self.slots.length()))
            });
            if let Ok(start) = start {
                let end = (start + BATCH).min(self.slots.length());
                list.extend((start + 1..end).rev());
                return Some(start);
            }
        }
        (1..SHARDS).find_map(|step| self.list((mine + step) % SHARDS).pop())
    }

    /// The memory areas of its slots and lists of free slots.
    pub(super) fn named_memory(&self, name: &str, fields: &[(usize, &'static str)]) -> Vec<NamedMemory> {
        vec![
            self.slots.place(name).fields(fields),
            NamedMemory::of(format!("list of free slots of {name}"), &self.free)
                .each(size_of::<Mutex<Vec<u32>>>() as u64),
            NamedMemory::of(format!("first unused {name}"), &self.next),
        ]
    }

    /// Frees a slot. Readers that still see it must be able to detect this.
    pub(super) fn give(&self, slot: u32) {
        self.list(shard(SHARDS)).push(slot);
    }

    /// One past the highest slot ever allocated.
    pub(super) fn high(&self) -> u32 {
        self.next.load(Relaxed)
    }
}
