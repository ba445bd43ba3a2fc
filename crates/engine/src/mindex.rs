//! The mindex (paper III.C): one global hash from (parent inode, name) to the dentry and to the
//! cachelet or, before there is one, directly to the inode (the inode quick path).
//!
//! Main buckets are cache lines in an array that grows one bucket at a time (linear hashing):
//! memory and cache footprint follow the number of names, and no call ever pays for a rehash. A
//! full bucket continues in overflow buckets.
//!
//! Invariants
//! - A bucket's chain changes only under its lock, and only while its version is odd. Exceptions,
//!   each one word: the value of an entry, and the entry of a held name ([`hold`]).
//! - Readers take no lock. They are pinned, so a dentry or cachelet that an entry names is not
//!   reused; they read again if the version has changed. A miss counts only if the number of
//!   buckets still leads to the same bucket.
//! - Bucket `n` comes into use by splitting bucket `n - L`, L the highest power of two not above
//!   `n`, under the grow lock and that bucket's lock.
//!
//! The main bucket decides that a name is missing, unless a chain continues from it. So a create
//! hashes and searches its name once without a lock, then holds the name. *Reason* (Xeon with AMX):
//! stat of a missing name 943 to 746 instructions, create and close 5,210 to 4,364. *Limits:* if
//! the name appears in between, the create loses a log slot until the next compaction.
//!
//! *Rejected:* a denser array of hint words, which start the second load while the bucket comes.
//! With hints for two entries of each bucket, stat of 100,000 files took 252 instead of 286 ns, but
//! a create 2 to 6 % more and `du` of the kernel's source 2 to 8 % more.

mod growth;
mod hold;
mod placement;
mod repair;

pub(crate) use hold::{HeldName, NameKey, SECOND};
pub(crate) use repair::NameToRepair;

use crate::backoff::Backoff;
use crate::components::NameIndex;
use crate::death::may_die_here;
use crate::dram::{BUCKETS_MIN, Bucket, BucketEntry, Cachelet, FLAG_DEAD, FLAG_EVICTED, FLAG_RENAMING, References};
use crate::error::{Corruption, Error, Result};
#[cfg(test)]
use crate::format::Valid;
use crate::format::{DENTRY_HEADER_BYTES, Dentry};
use crate::fs::Fs;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::fence;
use hold::HELD;
use pmem::{Memory, Pm};

/// A longer chain means that the DRAM region was overwritten.
const CHAIN_MAX: usize = 4096;
/// (buckets, names): the table grows while it has fewer buckets per name. On average half of a
/// bucket's three entries are used, so few chains continue. With two names per bucket on average,
/// by arithmetic one bucket in five to seven would. Each continuation costs one more line from
/// memory, also in lookups of absent names.
const BUCKETS_PER_NAMES: (u64, u64) = (2, 3);
/// Names that a thread makes before it reports them and grows the table accordingly.
const REPORT_NAMES: i64 = 64;

const LOW_40: u64 = (1 << 40) - 1;
const IS_INODE: u64 = 1 << 39;

/// 48 bits of the hash of a name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameHash(u64);

impl NameHash {
    /// As one word, for an intent.
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    /// From the word of an intent.
    #[cfg(test)]
    pub(crate) fn from_intent(word: u64) -> NameHash {
        NameHash(word)
    }

    fn key_bits(self) -> u64 {
        self.0 >> 24 << 40
    }

    fn value_bits(self) -> u64 {
        (self.0 & 0xff_ffff) << 40
    }

    fn of_entry(key: u64, value: u64) -> NameHash {
        NameHash(key >> 40 << 24 | value >> 40)
    }

    /// The bucket of this hash when there are `buckets`.
    fn bucket(self, buckets: u64) -> u64 {
        let level = 1 << buckets.max(1).ilog2();
        let wide = self.0 & (2 * level - 1);
        if wide < buckets { wide } else { self.0 & (level - 1) }
    }
}

/// The target of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// A cachelet; it must be checked to be still that inode's.
    Cachelet(u32),
    /// The offset of the inode.
    Inode(u64),
}

impl Target {
    /// Unknown: the inode must be found by its number.
    pub(crate) const UNKNOWN: Target = Target::Cachelet(0);

    fn bits(self) -> u64 {
        match self {
            Target::Cachelet(index) => index as u64,
            Target::Inode(offset) => (offset >> 8) | IS_INODE,
        }
    }

    pub(crate) fn from_value(value: u64) -> Target {
        if value & HELD != 0 {
            return Target::UNKNOWN;
        }
        let bits = value & LOW_40;
        if bits & IS_INODE != 0 { Target::Inode((bits & !IS_INODE) << 8) } else { Target::Cachelet(bits as u32) }
    }
}

/// A name that was found.
#[derive(Clone, Copy)]
pub(crate) struct Hit<'f> {
    /// Its dentry.
    pub dentry: &'f Dentry,
    /// The dentry's offset.
    pub dentry_offset: u64,
    /// Its target.
    pub target: Target,
}

/// Result of a lookup in the main bucket of a name alone.
pub(crate) enum MainBucketLookup<'f> {
    /// The name leads to this cachelet of a file with that inode number; no operation is changing
    /// them.
    Found(u32, &'f Cachelet, u64),
    /// There is no such name.
    Absent,
    /// Undecided: the chain continues, or an operation is changing the bucket or the file.
    Unclear,
}

/// Whether the value of an entry names no cachelet: it names the inode, or the name is held.
#[inline(always)]
pub(crate) fn names_no_cachelet(value: u64) -> bool {
    value & (IS_INODE | HELD) != 0
}

/// Whether an entry belongs to a name with this hash (this one or another one of the same hash).
#[inline(always)]
fn is_of(hash: NameHash, key: u64, value: u64) -> bool {
    ((key ^ hash.key_bits()) | (value ^ hash.value_bits())) & !LOW_40 == 0 && key != 0
}

/// Whether a bucket has not changed since its version was read, so that the reads in between are
/// valid.
#[inline(always)]
fn was_stable(bucket: &Bucket, version: u32) -> bool {
    fence(Acquire);
    version & 1 == 0 && bucket.version.load(Relaxed) == version
}

/// Multiplies to 128 bits and folds: the mixing step of wyhash.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let wide = a as u128 * b as u128;
    wide as u64 ^ (wide >> 64) as u64
}

/// Up to seven bytes as a number; different bytes of the same length give different numbers. Uses
/// few loads, and no copy in memory.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        return u32::from_le_bytes(*first) as u64 | (u32::from_le_bytes(*last) as u64) << 32;
    }
    match bytes {
        [first, .., last] => *first as u64 | (bytes[bytes.len() / 2] as u64) << 8 | (*last as u64) << 16,
        [only] => *only as u64,
        [] => 0,
    }
}

impl<M: Memory> Fs<M> {
    /// The hash of a name, keyed by a random seed per DRAM region: colliding names cannot be chosen
    /// from outside.
    #[inline]
    pub(crate) fn hash_name(&self, parent: u64, name: &[u8]) -> NameHash {
        const A: u64 = 0x9e37_79b9_7f4a_7c15;
        const B: u64 = 0xd6e8_feb8_6659_fd93;
        // The length is mixed in by addition: no seed makes both factors zero for more than one
        // length.
        let mut state = fold((self.hash_seed ^ parent) | 1 << 63, A.wrapping_add(name.len() as u64));
        let (words, rest) = name.as_chunks::<8>();
        for chunk in words {
            state = fold(state ^ u64::from_le_bytes(*chunk), B ^ self.hash_seed);
        }
        state = fold(state ^ word(rest), A ^ self.hash_seed);
        NameHash(fold(state, B) >> 16)
    }

    /// Prepares an empty mindex in a fresh DRAM region.
    pub(crate) fn init_mindex(&self) -> Result<()> {
        let header = self.header()?;
        header.buckets.store(BUCKETS_MIN.min(self.dram.layout.buckets_max), Release);
        header.overflow_next.store(1, Release);
        Ok(())
    }

    /// Enters the area of main buckets, up to bucket `end`, exclusively.
    pub(crate) fn enter_buckets(&self, end: u64) {
        let (layout, bytes) = (&self.dram.layout, size_of::<Bucket>() as u64);
        for index in 0..end {
            self.enter_area(layout.buckets, index * bytes..(index + 1) * bytes, layout.buckets_max * bytes);
        }
    }

    /// Prefetches the line that a lookup of this hash will touch first.
    #[inline]
    pub(crate) fn prefetch_bucket(&self, hash: NameHash) {
        if let Some(bucket) = self.bucket_offset(hash) {
            self.dram.region().prefetch(bucket);
        }
    }

    /// [`Fs::prefetch_bucket`] for a caller that is going to hold the bucket.
    #[inline]
    pub(crate) fn prefetch_bucket_for_write(&self, hash: NameHash) {
        if let Some(bucket) = self.bucket_offset(hash) {
            self.dram.region().prefetch_for_write(bucket);
        }
    }

    /// Looks a name up. The caller is pinned.
    #[inline]
    pub(crate) fn find(&self, parent: u64, name: &[u8], hash: NameHash) -> Result<Option<Hit<'_>>> {
        let header = self.header()?;
        let mut backoff = Backoff::new();
        loop {
            let index = self.bucket_of(hash, header);
            let main = self.dram.bucket(index)?;
            let version = main.version.load(Acquire);
            if version & 1 == 1 {
                backoff.pause(self)?;
                continue;
            }
            let found = self.search(main, parent, name, hash);
            fence(Acquire);
            // Reads of a chain that changed meanwhile are invalid, also the result that it does not
            // end.
            if main.version.load(Relaxed) != version {
                continue;
            }
            match found? {
                Some((_, hit)) => return Ok(Some(hit)),
                None if self.is_still_bucket(hash, header, index) => return Ok(None),
                None => continue,
            }
        }
    }

    /// Looks a name up in its main bucket alone, which nearly always decides. The caller is pinned.
    /// `prefetch` receives the cachelet's index as soon as it is likely, so that the caller can
    /// prefetch more of the file beside the dentry and the cachelet's first line.
    #[inline(always)]
    pub(crate) fn find_in_main_bucket(
        &self,
        parent: u64,
        name: &[u8],
        hash: NameHash,
        prefetch: impl Fn(u32),
    ) -> MainBucketLookup<'_> {
        self.look_in_main_bucket(parent, name, hash, prefetch).unwrap_or(MainBucketLookup::Unclear)
    }

    #[inline(always)]
    fn look_in_main_bucket(
        &self,
        parent: u64,
        name: &[u8],
        hash: NameHash,
        prefetch: impl Fn(u32),
    ) -> Option<MainBucketLookup<'_>> {
        let header = self.header().ok()?;
        let bucket = self.bucket_of(hash, header);
        let main = self.dram.bucket(bucket).ok()?;
        let version = main.version.load(Acquire);
        for entry in &main.entries {
            let (key, value) = (entry.key.load(Relaxed), entry.value.load(Relaxed));
            if !is_of(hash, key, value) {
                continue;
            }
            let dentry_offset = (key & LOW_40) << 6;
            if let Some(index) = self.likely_cachelet(value) {
                self.dram.prefetch_cachelet_front(index);
                prefetch(index);
            }
            let dentry = self.pm.get(Pm::<Dentry>::new(dentry_offset)).ok()?;
            if self.is_indirect(value) || !self.names(dentry, dentry_offset, parent, name) {
                return None;
            }
            let number = dentry.number();
            let index = self.cachelet_of_entry(value, number)?;
            let cachelet = self.dram.cachelet(index).ok()?;
            let gone = References::flag(FLAG_RENAMING | FLAG_DEAD | FLAG_EVICTED);
            let is_number = cachelet.number.load(Acquire) == number;
            let state = cachelet.references.load(Acquire);
            let stands = is_number && state & gone == 0 && !self.is_unreadable(state);
            return (stands && index != 0 && was_stable(main, version))
                .then_some(MainBucketLookup::Found(index, cachelet, number));
        }
        let is_all = main.overflow.load(Relaxed) == 0;
        (is_all && was_stable(main, version) && self.is_still_bucket(hash, header, bucket))
            .then_some(MainBucketLookup::Absent)
    }

    /// Whether the main bucket alone shows that a name is absent. The caller is pinned.
    #[inline]
    pub(crate) fn is_absent(&self, hash: NameHash) -> bool {
        let Ok(header) = self.header() else { return false };
        let bucket = self.bucket_of(hash, header);
        let Ok(main) = self.dram.bucket(bucket) else { return false };
        let version = main.version.load(Acquire);
        let has = main.entries.iter().any(|entry| is_of(hash, entry.key.load(Relaxed), entry.value.load(Relaxed)));
        let is_all = main.overflow.load(Relaxed) == 0;
        !has && is_all && was_stable(main, version) && self.is_still_bucket(hash, header, bucket)
    }

    /// Whether a name exists; optimised for absent names. The caller is pinned.
    #[inline]
    pub(crate) fn has(&self, parent: u64, name: &[u8], hash: NameHash) -> Result<bool> {
        Ok(!self.is_absent(hash) && self.find(parent, name, hash)?.is_some())
    }

    /// The entry of a name in a chain. Always inlined: otherwise the result would pass through
    /// memory, in pieces of mismatched sizes.
    #[inline(always)]
    fn search<'f>(
        &'f self,
        main: &'f Bucket,
        parent: u64,
        name: &[u8],
        hash: NameHash,
    ) -> Result<Option<(&'f BucketEntry, Hit<'f>)>> {
        let mut bucket = main;
        for _ in 0..CHAIN_MAX {
            for entry in &bucket.entries {
                let (key, value) = (entry.key.load(Relaxed), entry.value.load(Relaxed));
                if !is_of(hash, key, value) {
                    continue;
                }
                let target = self.target_of(value);
                self.prefetch_target(target);
                let dentry_offset = (key & LOW_40) << 6;
                let Ok(dentry) = self.pm.get(Pm::<Dentry>::new(dentry_offset)) else { continue };
                if self.names(dentry, dentry_offset, parent, name) {
                    return Ok(Some((entry, Hit { dentry, dentry_offset, target })));
                }
            }
            let next = bucket.overflow.load(Relaxed);
            if next == 0 {
                return Ok(None);
            }
            bucket = self.dram.overflow(next)?;
        }
        Err(Error::Busy)
    }

    /// Whether a dentry is that of `name` in `parent`.
    #[inline(always)]
    fn names(&self, dentry: &Dentry, offset: u64, parent: u64, name: &[u8]) -> bool {
        self.pm.report_read(offset, DENTRY_HEADER_BYTES + name.len() as u64);
        dentry.parent.load() == parent
            && dentry.seal.load() as u8 as usize == name.len()
            && self.pm.bytes_equal(offset + DENTRY_HEADER_BYTES, name)
    }

    /// Prefetches the target, which is needed whenever the name matches, while the name is
    /// compared.
    #[inline(always)]
    fn prefetch_target(&self, target: Target) {
        match target {
            Target::Cachelet(index) => self.dram.prefetch_cachelet(index),
            Target::Inode(offset) => self.pm.prefetch(offset),
        }
    }
}

impl<'f, M: Memory> NameIndex<'_, 'f, M> {
    /// An empty entry of a bucket that this thread has locked.
    fn reserve_in(self, main: &'f Bucket) -> Result<&'f BucketEntry> {
        let mut bucket = main;
        for _ in 0..CHAIN_MAX {
            if let Some(entry) = bucket.entries.iter().find(|entry| entry.key.load(Relaxed) == 0) {
                return Ok(entry);
            }
            let next = bucket.overflow.load(Relaxed);
            if next == 0 {
                return Ok(&self.extend_chain(bucket)?.entries[0]);
            }
            bucket = self.owner.fs.dram.overflow(next)?;
        }
        Err(Error::Busy)
    }

    /// Makes the entry of a dentry lead to a cachelet, unless another thread changes the bucket or
    /// holds the name; then a later lookup does so.
    pub(crate) fn refine_entry(self, hash: NameHash, dentry_offset: u64, cachelet: u32) -> Result<()> {
        if !self.owner.fs.ablation.uses_targets() {
            return Ok(());
        }
        let header = self.owner.fs.header()?;
        let index = self.owner.fs.bucket_of(hash, header);
        let main = self.owner.fs.dram.bucket(index)?;
        let Some(_locked) = self.try_lock_bucket(main, hash)? else { return Ok(()) };
        if !self.owner.fs.is_still_bucket(hash, header, index) {
            return Ok(());
        }
        let key = dentry_offset >> 6 | hash.key_bits();
        self.each_of_chain(main, |entry| {
            // In this order: under the lock the key of a name that is not held cannot change.
            if entry.value.load(Acquire) & HELD == 0 && entry.key.load(Relaxed) == key {
                entry.value.store(Target::Cachelet(cachelet).bits() | hash.value_bits(), Release);
            }
        })
    }

    /// Counts names made (or removed) by this thread; `flush_name_count` reports them.
    fn count_names(self, change: i64) {
        let delta = (self.owner.slot.names_delta.load(Relaxed) as i64).wrapping_add(change);
        self.owner.slot.names_delta.store(delta as u64, Relaxed);
    }

    /// Reports the names gathered by `count_names` and grows the table as needed. Holds no bucket,
    /// so that a split can.
    pub(crate) fn flush_name_count(self) -> Result<()> {
        let delta = self.owner.slot.names_delta.load(Relaxed) as i64;
        if delta.abs() < REPORT_NAMES {
            return Ok(());
        }
        self.owner.slot.names_delta.store(0, Relaxed);
        let header = self.owner.fs.header()?;
        let names = header.names.fetch_add(delta as u64, AcqRel).wrapping_add(delta as u64);
        self.grow(names)
    }
}

impl Bucket {
    /// Runs `stores` while the version is odd; the caller has locked the bucket. Plain stores: no
    /// locked instruction between a flush and its fence.
    fn change<R>(&self, stores: impl FnOnce() -> R) -> R {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        fence(Release);
        may_die_here();
        let result = stores();
        may_die_here();
        self.version.store(version.wrapping_add(2), Release);
        result
    }
}

/// Copies the name of a dentry.
pub(crate) fn dentry_name<'b, M: Memory>(
    fs: &Fs<M>,
    offset: u64,
    length: u8,
    into: &'b mut [u8; 256],
) -> Result<&'b [u8]> {
    let name = &mut into[..length as usize];
    fs.pm.read_bytes(offset + DENTRY_HEADER_BYTES, name).map_err(|_| Error::Corrupt(Corruption::Dentry(offset)))?;
    Ok(name)
}

/// Checks that each name is in the mindex once and valid, while no thread is at work. Not for
/// directories that need a recount.
#[cfg(test)]
pub(crate) fn check_names<M: Memory>(fs: &Fs<M>) {
    let mut seen = std::collections::BTreeSet::new();
    for index in 0..fs.header().expect("a header").buckets.load(Relaxed) {
        let mut bucket = fs.dram.bucket(index).expect("a bucket");
        loop {
            for key in bucket.entries.iter().map(|entry| entry.key.load(Relaxed)).filter(|key| *key != 0) {
                let offset = (key & LOW_40) << 6;
                let dentry = fs.pm.get(Pm::<Dentry>::new(offset)).expect("a dentry");
                let parent = dentry.parent.load();
                assert!(seen.insert(offset), "a name in inode {parent} is twice in the mindex");
                let counts = Valid::from_word(dentry.valid.load()).valid;
                assert!(counts, "a name in inode {parent}, of inode {}, is in the mindex and gone", dentry.number());
            }
            match bucket.overflow.load(Relaxed) {
                0 => break,
                next => bucket = fs.dram.overflow(next).expect("a bucket"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::FileKind;
    use crate::testing::{Attached, new_image, new_node};
    use std::{format, string::String, vec::Vec};

    #[test]
    fn every_hash_has_exactly_one_bucket_and_moves_only_to_the_bucket_that_is_split_off() {
        for buckets in 1..200u64 {
            for hash in (0..4000u64).map(|n| NameHash(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16)) {
                let (before, after) = (hash.bucket(buckets), hash.bucket(buckets + 1));
                assert!(before < buckets && after <= buckets);
                let level = 1 << buckets.ilog2();
                assert!(before == after || (after == buckets && before == buckets - level));
            }
        }
    }

    #[test]
    fn names_that_are_gone_leave_no_chain_behind() {
        let image = new_image(32 << 20, 0);
        let attached = Attached::new(&image).expect("attaches");
        let thread = attached.enter().expect("enters");
        let root = thread.root().expect("a root");
        let header = attached.header().expect("a header");
        let chains = || {
            let main = (0..header.buckets.load(Relaxed)).map(|index| attached.dram.bucket(index).expect("a bucket"));
            main.filter(|bucket| bucket.overflow.load(Relaxed) != 0).count()
        };
        let names: Vec<String> = (0..5000).map(|number| format!("file {number}")).collect();
        for name in &names {
            let file = thread.create(root, name.as_bytes(), &new_node(FileKind::Regular)).expect("makes");
            thread.release(file, 1);
        }
        let crowded = chains();
        assert!(crowded > 50, "{crowded} of {} buckets have more names than entries", header.buckets.load(Relaxed));
        for name in &names {
            thread.unlink(root, name.as_bytes(), |_| Ok(())).expect("removes");
        }
        assert_eq!(chains(), 0);
    }

    #[test]
    fn an_entry_keeps_dentry_target_and_hash() {
        for target in [
            Target::Cachelet(7),
            Target::Cachelet(u32::MAX),
            Target::Inode(0x1234_5600),
            Target::Inode((1 << 46) - 256),
        ] {
            let hash = NameHash(0xabcd_ef01_2345);
            let (key, value) = ((1u64 << 45) >> 6 | hash.key_bits(), target.bits() | hash.value_bits());
            assert_eq!(Target::from_value(value), target);
            assert_eq!(NameHash::of_entry(key, value), hash);
            assert_eq!((key & LOW_40) << 6, 1 << 45);
        }
    }
}
