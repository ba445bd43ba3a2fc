//! Slots of one type that stay where they are: what a kernel's slab with `SLAB_TYPESAFE_BY_RCU` is. A reader without a lock may look at a slot that
//! was given to somebody else meanwhile; it finds a slot of the same type, and a count in it tells.

use crate::error::{Error, Result};
use crate::locks;
use crate::multicore::places::Place;
use crate::substrate::shard;
use pmem::{Direct, Layout, MappedRegion, Mapping, Pm};
use posix::Errno;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

/// Slots that a thread takes at once from where nobody has been yet.
const BATCH: u32 = 32;
/// Lists of free slots.
const SHARDS: usize = 16;

/// Memory of this process's own for arrays of cells, reserved whole and touched on demand.
pub(super) fn reserve(bytes: u64) -> Result<MappedRegion<Direct>> {
    let mapping = Mapping::anonymous(bytes).map_err(|_| Error::Errno(Errno::ENOMEM))?;
    Arc::new(mapping).region(Direct).map_err(|_| Error::Errno(Errno::ENOMEM))
}

/// An array that begins as zeros.
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

    /// An element. The indices that a front passes around come from itself; one beyond the end would be its defect and gives the last.
    #[inline(always)]
    pub(super) fn at(&self, index: u32) -> &T {
        debug_assert!(index < self.length, "{index} of {}", self.length);
        // Offset zero is no place for a structure in a region, hence the one more.
        let index = index.min(self.length - 1) as u64 + 1;
        let at = Pm::new(index * size_of::<T>() as u64);
        self.region.get(at).expect("the array is as long as it says, and aligned")
    }

    /// Its memory, element by element.
    pub(super) fn place(&self, name: &str) -> Place {
        let start = self.at(0) as *const T as u64;
        Place::at(name, start, self.length as u64 * size_of::<T>() as u64).each(size_of::<T>() as u64)
    }

    /// Touches the memory of the first `count` elements, so that nobody waits for the kernel later.
    pub(super) fn touch(&self, count: u32) {
        let end = (count.min(self.length) as u64 + 1) * size_of::<T>() as u64;
        // Only a saving of time: what fails here is done on first use.
        let _ = self.region.mapping().populate_huge(0..end);
    }
}

/// An array of which slots are taken and given back. Slot zero is nobody's.
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

    /// A slot; none if all are taken.
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

    /// Its slots, and the lists of free ones.
    pub(super) fn places(&self, name: &str, fields: &[(usize, &'static str)]) -> Vec<Place> {
        vec![
            self.slots.place(name).fields(fields),
            Place::of(format!("list of free slots of {name}"), &self.free).each(size_of::<Mutex<Vec<u32>>>() as u64),
            Place::of(format!("first unused {name}"), &self.next),
        ]
    }

    /// Gives a slot back. Readers that are still on it must be able to tell.
    pub(super) fn give(&self, slot: u32) {
        self.list(shard(SHARDS)).push(slot);
    }

    /// One past the highest slot that was ever taken.
    pub(super) fn high(&self) -> u32 {
        self.next.load(Relaxed)
    }
}
