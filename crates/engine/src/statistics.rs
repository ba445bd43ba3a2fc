//! Statistics of the calls that each thread slot serves, for observers (`directfs stats`).
//!
//! Invariants
//! - Only the owner of a slot changes its words, so an addition is no locked instruction. Observers
//!   read them without stopping a thread.
//! - The words only grow, also when a slot changes its owner: observers use differences, or sums
//!   over all slots. They begin with zero with each DRAM region.
//! - Calls are counted by the number of the system call: a class would have to be looked up.
//!   Latencies are counted by class, and of few calls, so that the clock costs less than the calls.
//!
//! One call in 256 of a thread is timed, in classes of powers of two. *Reason:* that takes no time
//! for stat and 1 % for access. Counts by class took 3 % of the shortest calls. *Rejected:*
//! counting while an observer looks. There would be no totals.

use crate::dram::ThreadSlot;
use crate::error::Result;
use crate::fs::Fs;
use crate::slot_owner::SlotOwner;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};
use pmem::Memory;

/// Kinds of calls, by the purpose that a user sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum CallClass {
    /// open, creat, and their kin.
    Open,
    /// close.
    Close,
    /// read and its kin.
    Read,
    /// write and its kin.
    Write,
    /// lseek.
    Seek,
    /// stat and its kin.
    Stat,
    /// access.
    Access,
    /// getdents.
    List,
    /// readlink.
    ReadLink,
    /// mkdir, mknod.
    Make,
    /// unlink, rmdir.
    Remove,
    /// rename.
    Rename,
    /// link, symlink.
    Link,
    /// Changes of mode, owner, times and flags.
    Attributes,
    /// truncate, fallocate.
    Resize,
    /// Extended attributes.
    ExtendedAttributes,
    /// Copies between descriptors.
    Copy,
    /// fsync and its kin.
    Sync,
    /// Mappings.
    Map,
    /// Locks.
    Lock,
    /// Duplicates and state of descriptors.
    Descriptor,
    /// All others.
    Other,
}

/// Their number.
pub const CALL_CLASSES: usize = 22;

impl CallClass {
    /// All of them, in the order of their values.
    pub const ALL: [CallClass; CALL_CLASSES] = [
        CallClass::Open,
        CallClass::Close,
        CallClass::Read,
        CallClass::Write,
        CallClass::Seek,
        CallClass::Stat,
        CallClass::Access,
        CallClass::List,
        CallClass::ReadLink,
        CallClass::Make,
        CallClass::Remove,
        CallClass::Rename,
        CallClass::Link,
        CallClass::Attributes,
        CallClass::Resize,
        CallClass::ExtendedAttributes,
        CallClass::Copy,
        CallClass::Sync,
        CallClass::Map,
        CallClass::Lock,
        CallClass::Descriptor,
        CallClass::Other,
    ];

    /// What reports call it.
    pub const fn name(self) -> &'static str {
        match self {
            CallClass::Open => "open",
            CallClass::Close => "close",
            CallClass::Read => "read",
            CallClass::Write => "write",
            CallClass::Seek => "seek",
            CallClass::Stat => "stat",
            CallClass::Access => "access",
            CallClass::List => "list",
            CallClass::ReadLink => "readlink",
            CallClass::Make => "mkdir",
            CallClass::Remove => "remove",
            CallClass::Rename => "rename",
            CallClass::Link => "link",
            CallClass::Attributes => "attributes",
            CallClass::Resize => "resize",
            CallClass::ExtendedAttributes => "xattr",
            CallClass::Copy => "copy",
            CallClass::Sync => "sync",
            CallClass::Map => "map",
            CallClass::Lock => "lock",
            CallClass::Descriptor => "descriptor",
            CallClass::Other => "other",
        }
    }
}

/// What threads do beside their calls, which costs more than a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Event {
    /// The name of a file was not found by the path walk that stays in one place, and each of its
    /// components was looked up.
    PathWalk,
    /// All names of a directory were put into the index.
    DirectoryIndexed,
    /// A file's attributes were read from its inode.
    FileLoaded,
    /// A file or directory was evicted from memory.
    Evicted,
}

/// Their number.
pub const EVENTS: usize = 4;

/// Classes of latencies: element n counts calls of less than 2^(n + 6) ns that no lower element
/// counts, the last one all longer ones.
pub const LATENCY_CLASSES: usize = 16;

/// A number of ns below which all latencies of a class are, but for the last class.
pub const fn latency_bound_ns(class: usize) -> u64 {
    1 << (class + 6)
}

/// The class of a latency.
pub fn latency_class(ns: u64) -> usize {
    let bits = u64::BITS - (ns >> 6).leading_zeros();
    (bits as usize).min(LATENCY_CLASSES - 1)
}

/// Numbers of system calls that are counted.
pub const CALL_NUMBERS: usize = 512;

/// The counts of a thread slot, by number.
#[repr(C)]
pub struct CallCounts([AtomicU64; CALL_NUMBERS]);

/// The words of a thread slot, beside the counts of its calls.
#[repr(C)]
pub struct CallStatistics {
    /// By [`Event`].
    events: [AtomicU64; EVENTS],
    /// By [`CallClass`] and class of latency.
    latencies: [[AtomicU32; LATENCY_CLASSES]; CALL_CLASSES],
}

impl<M: Memory> SlotOwner<'_, M> {
    /// Counts a system call by its number, or another call as the system call that does the same.
    #[inline(always)]
    pub fn count_call(&self, number: usize) {
        add(&self.slot.calls.0[number % CALL_NUMBERS]);
    }

    /// Counts how long a call took.
    pub fn count_latency(&self, class: CallClass, ns: u64) {
        let counter = &self.slot.statistics.latencies[class as usize][latency_class(ns)];
        counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Counts an event.
    #[inline(always)]
    pub fn count_event(&self, event: Event) {
        add(&self.slot.statistics.events[event as usize]);
    }
}

impl<M: Memory> Fs<M> {
    /// Adds the statistics of a slot, of all its owners.
    pub fn add_statistics(&self, slot: u32, totals: &mut CallTotals) -> Result<()> {
        totals.add(self.dram().slot(slot)?);
        Ok(())
    }

    /// The slots that were ever in use.
    pub fn slots_used(&self) -> Result<u32> {
        Ok(self.dram().header()?.slots_high.load(Acquire) as u32)
    }
}

/// An addition by the only writer.
#[inline(always)]
fn add(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
}
/// The sum of statistics, or what was added between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallTotals {
    /// By number.
    pub calls: [u64; CALL_NUMBERS],
    /// By [`Event`].
    pub events: [u64; EVENTS],
    /// Counts of the calls whose latency was taken, by [`CallClass`] and class of latency.
    pub latencies: [[u64; LATENCY_CLASSES]; CALL_CLASSES],
}

impl Default for CallTotals {
    fn default() -> CallTotals {
        CallTotals { calls: [0; CALL_NUMBERS], events: [0; EVENTS], latencies: [[0; LATENCY_CLASSES]; CALL_CLASSES] }
    }
}

impl CallTotals {
    fn add(&mut self, slot: &ThreadSlot) {
        let plain = self.calls.iter_mut().chain(&mut self.events);
        for (sum, word) in plain.zip(slot.calls.0.iter().chain(&slot.statistics.events)) {
            *sum = sum.wrapping_add(word.load(Relaxed));
        }
        let latencies = self.latencies.as_flattened_mut().iter_mut();
        for (sum, word) in latencies.zip(slot.statistics.latencies.as_flattened()) {
            *sum += u64::from(word.load(Relaxed));
        }
    }

    /// What was added since an earlier reading.
    pub fn since(&self, earlier: &CallTotals) -> CallTotals {
        let mut added = *self;
        let plain = added.calls.iter_mut().chain(&mut added.events);
        for (sum, before) in plain.zip(earlier.calls.iter().chain(&earlier.events)) {
            *sum = sum.saturating_sub(*before);
        }
        let latencies = added.latencies.as_flattened_mut().iter_mut();
        for (sum, before) in latencies.zip(earlier.latencies.as_flattened()) {
            *sum = sum.saturating_sub(*before);
        }
        added
    }

    /// All calls.
    pub fn total(&self) -> u64 {
        self.calls.iter().sum()
    }

    /// The number of an event.
    pub fn events_of(&self, event: Event) -> u64 {
        self.events[event as usize]
    }
}

/// A number of ns below which so many of a thousand counted latencies are. `None` without
/// latencies, and if the number is above all bounds.
pub fn below_ns(latencies: &[u64; LATENCY_CLASSES], of_thousand: u64) -> Option<u64> {
    let needed = (latencies.iter().sum::<u64>() * of_thousand).div_ceil(1000);
    let mut found = 0;
    let class = latencies.iter().position(|count| {
        found += count;
        found >= needed
    })?;
    (needed > 0 && class < LATENCY_CLASSES - 1).then(|| latency_bound_ns(class))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::FileKind;
    use crate::testing::{Attached, new_image, new_node};
    use std::vec::Vec;

    #[test]
    fn cached_names_and_files_are_counted_at_once() {
        let image = new_image(8 << 20, 0);
        let attached = Attached::new(&image).expect("attaches");
        let threads = [0; 2].map(|_| attached.enter().expect("enters"));
        let root = threads[0].root().expect("a root");
        let counts = || attached.cached().map(|cached| (cached.names, cached.files)).expect("counts");
        let before = counts();
        for number in 0..700 {
            let name = std::format!("{number}");
            let thread = &threads[number % 2];
            thread.release(thread.create(root, name.as_bytes(), &new_node(FileKind::Regular)).expect("makes"), 1);
        }
        assert_eq!(counts(), (before.0 + 700, before.1 + 700));
        // Long lists of free ones go to the shared list.
        for number in 0..700 {
            threads[0].unlink(root, std::format!("{number}").as_bytes(), |_| Ok(())).expect("removes");
        }
        threads[0].recycler().drain().expect("recycles");
        assert_eq!(counts(), before);
        threads[0].release(root, 1);
    }

    #[test]
    fn classes_have_their_own_values_and_names() {
        for (value, class) in CallClass::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, value);
        }
        let mut names: Vec<_> = CallClass::ALL.into_iter().map(CallClass::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CALL_CLASSES);
    }

    #[test]
    fn latencies_fall_into_the_class_below_whose_bound_they_are() {
        for ns in [0, 1, 63, 64, 65, 127, 128, 1_000, 1_048_575, 1_048_576, 5_000_000, u64::MAX] {
            let class = latency_class(ns);
            assert!(class == LATENCY_CLASSES - 1 || ns < latency_bound_ns(class), "{ns}");
            assert!(class == 0 || ns >= latency_bound_ns(class - 1), "{ns}");
        }
    }

    #[test]
    fn totals_are_sums_over_slots_and_their_differences() {
        let image = new_image(8 << 20, 0);
        let fs = Attached::new(&image).expect("attaches");
        let threads = [fs.enter().expect("a slot"), fs.enter().expect("another")];
        let read = || {
            let mut totals = CallTotals::default();
            (0..fs.slots_used().expect("slots")).for_each(|slot| fs.add_statistics(slot, &mut totals).expect("a slot"));
            totals
        };
        threads[0].count_call(7);
        threads[1].count_latency(CallClass::Open, 100);
        let before = read();
        threads[1].count_call(7);
        threads[0].count_event(Event::Evicted);
        let after = read();
        assert_eq!((before.total(), after.calls[7]), (1, 2));
        let added = after.since(&before);
        assert_eq!((added.total(), added.events_of(Event::Evicted)), (1, 1));
        assert_eq!(added.latencies, [[0; LATENCY_CLASSES]; CALL_CLASSES]);
        assert_eq!(below_ns(&after.latencies[CallClass::Open as usize], 500), Some(128));
        assert_eq!(below_ns(&added.latencies[CallClass::Open as usize], 500), None);
        drop(threads);
        assert_eq!(read(), after, "counts outlive their threads");
    }
}
