//! Holding names: while a thread makes, removes or moves a name, no other thread does.
//!
//! Invariants
//! - The entry of a held name has [`HELD`] and its holder's ticket in the place of the target. Its
//!   key names the dentry or, while there is no such name, is [`ABSENT`].
//! - An entry becomes held under its bucket's lock. From then on only its holder (or the reaper of
//!   that) changes it, without the lock, one word at a time. So the lock is held for a few
//!   instructions, and a thread that is stopped while it holds a name blocks that name alone.
//! - The holder's slot records the entry from before it is held until after its release.
//! - Readers take a held entry for what its key says, and find the file by the dentry.
//!
//! Decision: docs/decisions/names.md, "A name is published after its fence, and held in its entry".

use super::placement::NameGuard;
use super::{CHAIN_MAX, Hit, LOW_40, NameHash, Target, is_of, was_stable};
use crate::components::NameIndex;
use crate::death::{dead, may_die_here};
use crate::dram::{Bucket, BucketEntry};
use crate::error::{Error, Result};
use crate::format::Dentry;
use crate::fs::Fs;
use crate::lock::{NAME_WAITING, NameWait};
use crate::sync::AtomicU64;
use core::cell::Cell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::{Memory, Pm};

/// In the value of an entry: the name is held, and the low half is its holder's ticket.
pub(super) const HELD: u64 = 1 << 38;
/// The low bits of a held entry's key while there is no such name. No dentry lies there.
pub(super) const ABSENT: u64 = LOW_40;
/// In a slot's record of a held entry: the name is the second of its operation.
pub(crate) const SECOND: u64 = 1;

/// A name in a directory.
#[derive(Clone, Copy)]
pub(crate) struct NameKey<'n> {
    /// The directory's inode number.
    pub parent: u64,
    /// The name.
    pub name: &'n [u8],
    /// Of both.
    pub hash: NameHash,
}

/// The dentry that the key of an entry names.
#[inline(always)]
fn offset_of_dentry(key: u64) -> u64 {
    (key & LOW_40) << 6
}

/// A held name, whether it exists or not. Dropping it releases the name.
pub(crate) struct HeldName<'f, M: Memory> {
    fs: &'f Fs<M>,
    main: &'f Bucket,
    entry: &'f BucketEntry,
    hash: NameHash,
    /// The dentry of the name as it was found.
    found: Option<&'f Dentry>,
    /// That dentry's offset; zero without one.
    found_offset: u64,
    /// What the entry leads to when it is released, as in an entry's value.
    target: Cell<u64>,
    /// The record of the slot that names the entry.
    record: &'f AtomicU64,
    _guard: NameGuard<'f>,
}

impl<'f, M: Memory> HeldName<'f, M> {
    /// The name as it was found, before any change by the holder.
    #[inline(always)]
    pub(crate) fn found(&self) -> Option<Hit<'f>> {
        let target = Target::from_value(self.target.get());
        self.found.map(|dentry| Hit { dentry, dentry_offset: self.found_offset, target })
    }

    #[cfg(test)]
    pub(crate) fn bucket(&self) -> &'f Bucket {
        self.main
    }

    fn is_absent(&self) -> bool {
        self.entry.key.load(Relaxed) & LOW_40 == ABSENT
    }

    #[cold]
    fn wake_waiters(&self) {
        self.main.waiters.fetch_and(!NAME_WAITING, Relaxed);
        if let Ok(word) = self.fs.dram_word(self.fs.dram.region().offset_of(&self.entry.value)) {
            self.fs.platform.wake(word);
        }
    }

    /// Makes the name lead to a dentry and its file. One store: a reader sees all of it or nothing.
    fn set(&self, dentry_offset: u64, target: Target) {
        self.target.set(target.bits());
        self.entry.key.store(dentry_offset >> 6 | self.hash.key_bits(), Release);
        may_die_here();
    }
}

impl<M: Memory> Drop for HeldName<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        if dead() {
            return;
        }
        may_die_here();
        match self.is_absent() {
            true => self.entry.key.store(0, Release),
            false => self.entry.value.store(self.target.get() | self.hash.value_bits(), Release),
        }
        may_die_here();
        self.record.store(0, Release);
        if self.main.waiters.load(Relaxed) & NAME_WAITING != 0 {
            self.wake_waiters();
        }
    }
}

/// The state of a name in its bucket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It exists.
    Found,
    /// It does not.
    Absent,
    /// Another thread holds it.
    Taken,
    /// A holder changed its entry between the reads of value and key.
    Torn,
}

/// What a look at a bucket saw of a name.
// Words side by side, not an enum with fields: that would be built and copied in memory, in pieces
// that defeat store forwarding.
#[derive(Clone, Copy)]
struct Look<'f> {
    state: State,
    /// The name's entry; of an absent one an empty entry, if there is one.
    entry: Option<&'f BucketEntry>,
    /// The entry's words; zero if it is empty.
    key: u64,
    value: u64,
    /// The dentry of a name that exists.
    dentry: Option<&'f Dentry>,
}

impl Look<'_> {
    /// Whether the entry is as it was seen.
    #[inline(always)]
    fn stands(&self) -> bool {
        match (self.state, self.entry) {
            (State::Found, Some(entry)) => {
                entry.key.load(Relaxed) == self.key && entry.value.load(Relaxed) == self.value
            }
            (State::Absent, free) => free.is_none_or(|entry| entry.key.load(Relaxed) == 0),
            _ => false,
        }
    }
}

impl<'f, M: Memory> NameIndex<'_, 'f, M> {
    /// Holds a name, which need not exist. Has reserved room for it, so that making it after a
    /// fence cannot fail.
    #[inline(always)]
    pub(crate) fn hold_name(self, key: &NameKey<'_>) -> Result<HeldName<'f, M>> {
        let guard = self.guard_name(key.hash)?;
        let is_it = |dentry: &Dentry, offset| self.owner.fs.names(dentry, offset, key.parent, key.name);
        self.hold(0, key.hash, guard, true, is_it)?.ok_or(Error::Busy)
    }

    /// Holds a name if it exists.
    #[inline(always)]
    pub(crate) fn hold_existing(self, key: &NameKey<'_>) -> Result<Option<HeldName<'f, M>>> {
        let guard = self.guard_name(key.hash)?;
        self.hold(0, key.hash, guard, false, |dentry, offset| self.owner.fs.names(dentry, offset, key.parent, key.name))
    }

    /// Holds the name of a dentry: one that is in the mindex, or (`absent`) that is not in it yet.
    pub(crate) fn hold_dentry(
        self,
        hash: NameHash,
        dentry_offset: u64,
        absent: bool,
    ) -> Result<Option<HeldName<'f, M>>> {
        let guard = self.guard_name(hash)?;
        self.hold(0, hash, guard, absent, |_, offset| offset == dentry_offset)
    }

    /// Holds two names, in an order that all threads share.
    pub(crate) fn hold_both(
        self,
        first: &NameKey<'_>,
        second: &NameKey<'_>,
    ) -> Result<(HeldName<'f, M>, HeldName<'f, M>)> {
        let [guard_first, guard_second] = self.guard_names([first.hash, second.hash])?;
        if first.hash.word() <= second.hash.word() {
            let held = self.hold_tagged(0, first, guard_first)?;
            return Ok((held, self.hold_tagged(SECOND, second, guard_second)?));
        }
        let held = self.hold_tagged(SECOND, second, guard_second)?;
        Ok((self.hold_tagged(0, first, guard_first)?, held))
    }

    /// One of two names. Not inlined: four copies in [`NameIndex::hold_both`] would not stay in the
    /// instruction cache.
    #[inline(never)]
    fn hold_tagged(self, tag: u64, key: &NameKey<'_>, guard: NameGuard<'f>) -> Result<HeldName<'f, M>> {
        let is_it = |dentry: &Dentry, offset| self.owner.fs.names(dentry, offset, key.parent, key.name);
        self.hold(tag, key.hash, guard, true, is_it)?.ok_or(Error::Busy)
    }

    /// Looks without the lock, then locks the bucket to take what it found. So the lock is held for
    /// a few instructions on lines that are in the cache. If the bucket has changed meanwhile,
    /// looks again under the lock. Waits while another thread holds the name. `None`: there is no
    /// such name, and an absent one is not wanted.
    #[inline(always)]
    fn hold(
        self,
        tag: u64,
        hash: NameHash,
        guard: NameGuard<'f>,
        absent: bool,
        is_it: impl Fn(&Dentry, u64) -> bool,
    ) -> Result<Option<HeldName<'f, M>>> {
        let fs = self.owner.fs;
        let mut wait = NameWait::default();
        loop {
            let header = fs.header()?;
            let index = fs.bucket_to_change(hash, header);
            let main = fs.dram.bucket(index)?;
            let version = main.version.load(Acquire);
            let mut look = self.look(main, hash, &is_it);
            match look.state {
                State::Taken => {
                    self.wait_for(&mut wait, main, &look)?;
                    continue;
                }
                State::Absent if !absent && was_stable(main, version) && fs.is_still_bucket(hash, header, index) => {
                    return Ok(None);
                }
                _ => {}
            }
            let Some(locked) = self.lock_bucket(main)? else { continue };
            if !fs.is_still_bucket(hash, header, index) {
                continue;
            }
            if !was_stable(main, version) || !look.stands() {
                look = self.look_again(main, hash, &is_it)?;
                if look.state == State::Taken {
                    drop(locked);
                    self.wait_for(&mut wait, main, &look)?;
                    continue;
                }
            }
            if look.state == State::Absent && !absent {
                return Ok(None);
            }
            return self.take(tag, hash, guard, main, &look).map(Some);
        }
    }

    /// Waits for the holder of a name.
    #[cold]
    #[inline(never)]
    fn wait_for(self, wait: &mut NameWait, main: &Bucket, look: &Look<'_>) -> Result<()> {
        let entry = look.entry.ok_or(Error::Busy)?;
        self.owner.wait_for_name(wait, &main.waiters, &entry.value, look.value)
    }

    /// Takes a name, in a bucket that this thread has locked.
    #[inline(always)]
    fn take(
        self,
        tag: u64,
        hash: NameHash,
        guard: NameGuard<'f>,
        main: &'f Bucket,
        look: &Look<'f>,
    ) -> Result<HeldName<'f, M>> {
        let exists = look.state == State::Found;
        let entry = match look.entry {
            Some(entry) => entry,
            None => self.reserve_in(main)?,
        };
        let record = self.owner.free_record().ok_or(Error::Busy)?;
        record.store(self.owner.fs.dram.region().offset_of(entry) | tag, Relaxed);
        may_die_here();
        if exists {
            entry.value.store(self.held_value(hash), Relaxed);
            may_die_here();
        } else {
            main.change(|| {
                entry.value.store(self.held_value(hash), Relaxed);
                may_die_here();
                entry.key.store(ABSENT | hash.key_bits(), Relaxed);
                may_die_here();
            });
        }
        let target = if exists { self.owner.fs.target_of(look.value) } else { Target::UNKNOWN };
        Ok(HeldName {
            fs: self.owner.fs,
            main,
            entry,
            hash,
            found: look.dentry,
            found_offset: if exists { offset_of_dentry(look.key) } else { 0 },
            target: Cell::new(target.bits()),
            record,
            _guard: guard,
        })
    }

    /// A look under the lock, at a bucket that has changed since the first one.
    #[cold]
    #[inline(never)]
    fn look_again(self, main: &'f Bucket, hash: NameHash, is_it: &impl Fn(&Dentry, u64) -> bool) -> Result<Look<'f>> {
        let look = self.look(main, hash, is_it);
        // Under the lock an entry is not torn, except in a region that was overwritten.
        if look.state == State::Torn {
            self.check_chain(main)?;
            return Err(Error::Busy);
        }
        Ok(look)
    }

    /// An error if a chain leads out of the region.
    fn check_chain(self, main: &'f Bucket) -> Result<()> {
        let mut bucket = main;
        for _ in 0..CHAIN_MAX {
            match bucket.overflow.load(Relaxed) {
                0 => break,
                next => bucket = self.owner.fs.dram.overflow(next)?,
            }
        }
        Ok(())
    }

    /// Looks for a name in a chain. Without the lock the result counts only if it still stands and
    /// the version has not changed. A chain that is too long or leads nowhere counts as torn.
    #[inline(always)]
    fn look(self, main: &'f Bucket, hash: NameHash, is_it: &impl Fn(&Dentry, u64) -> bool) -> Look<'f> {
        let fs = self.owner.fs;
        let (mut bucket, mut free) = (main, None);
        let torn = Look { state: State::Torn, entry: None, key: 0, value: 0, dentry: None };
        for _ in 0..CHAIN_MAX {
            for entry in &bucket.entries {
                // In this order: under the lock the key of a name that is not held cannot change.
                let value = entry.value.load(Acquire);
                let key = entry.key.load(Acquire);
                if key == 0 {
                    free = free.or(Some(entry));
                }
                if !is_of(hash, key, value) {
                    continue;
                }
                let seen = Look { state: State::Found, entry: Some(entry), key, value, dentry: None };
                if value & HELD != 0 {
                    // Its own is another name with the same hash.
                    if value as u32 == self.owner.ticket() {
                        continue;
                    }
                    return Look { state: State::Taken, ..seen };
                }
                if key & LOW_40 == ABSENT {
                    return torn;
                }
                fs.prefetch_target(fs.target_of(value));
                let dentry_offset = offset_of_dentry(key);
                let Ok(dentry) = fs.pm.get(Pm::<Dentry>::new(dentry_offset)) else { continue };
                if is_it(dentry, dentry_offset) {
                    return Look { dentry: Some(dentry), ..seen };
                }
            }
            let next = bucket.overflow.load(Relaxed);
            if next == 0 {
                return Look { state: State::Absent, entry: free, ..torn };
            }
            let Ok(next) = fs.dram.overflow(next) else { return torn };
            bucket = next;
        }
        torn
    }

    fn held_value(self, hash: NameHash) -> u64 {
        hash.value_bits() | HELD | self.owner.ticket() as u64
    }

    /// Makes a held name. Plain stores only.
    pub(crate) fn insert_entry(self, held: &HeldName<'f, M>, dentry_offset: u64, target: Target) {
        held.set(dentry_offset, target);
        self.count_names(1);
    }

    /// Makes a held name lead to another dentry.
    pub(crate) fn replace_entry(self, held: &HeldName<'f, M>, dentry_offset: u64, target: Target) {
        held.set(dentry_offset, target);
    }

    /// Removes a held name. It stays held. Plain stores only.
    pub(crate) fn remove_entry(self, held: &HeldName<'f, M>) {
        held.entry.key.store(ABSENT | held.hash.key_bits(), Release);
        may_die_here();
        self.count_names(-1);
    }

    /// Releases a name that was removed. Otherwise all lookups of absent names would read the
    /// continuation of its bucket that it may have left empty. No error: the removal has happened.
    #[inline]
    pub(crate) fn release_removed(self, held: HeldName<'f, M>) {
        let (main, entry) = (held.main, held.entry);
        drop(held);
        if !self.owner.fs.has_growing_table() || main.entries.as_ptr_range().contains(&core::ptr::from_ref(entry)) {
            return;
        }
        // A thread that has the bucket now leaves the chain as it is; a later removal trims it.
        if let Some(_locked) = self.owner.try_lock(&main.lock, &main.waiters)
            && main.change(|| self.trim_chain(main)).is_err()
        {
            self.owner.fs.mark_unclean();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::FileKind;
    use crate::testing::{Attached, TestPlatform, new_image, new_node};
    use std::format;
    use std::time::Duration;

    fn key<'n, M: Memory>(fs: &crate::fs::Fs<M>, parent: u64, name: &'n [u8]) -> NameKey<'n> {
        NameKey { parent, name, hash: fs.hash_name(parent, name) }
    }

    #[test]
    fn a_stopped_holder_of_a_name_keeps_no_thread_from_the_other_names_of_its_bucket() {
        let image = new_image(8 << 20, 0);
        let fs = Attached::new(&image).expect("attaches");
        // All names share two buckets.
        fs.header().expect("a header").buckets.store(2, Relaxed);
        let (stopped, thread) = (fs.enter().expect("enters"), fs.enter().expect("enters"));
        let root = thread.root().expect("a root");
        let new = new_node(FileKind::Regular);
        let file = thread.create(root, b"present", &new).expect("creates");
        thread.release(file, 1);
        let absent = stopped.names().hold_name(&key(&fs, root.number, b"absent")).expect("holds");
        let present =
            stopped.names().hold_existing(&key(&fs, root.number, b"present")).expect("holds").expect("exists");
        for round in 0..3 {
            for number in 0..40 {
                let file = thread.create(root, format!("{round} {number}").as_bytes(), &new).expect("creates");
                thread.release(file, 1);
            }
            let from = |number: u32| format!("{round} {number}").into_bytes();
            let rename = |from: &[u8], to: &[u8]| {
                thread.rename((root, from), (root, to), Default::default(), |_, _| Ok(())).expect("renames");
            };
            rename(&from(0), b"moved");
            rename(&from(1), &from(2));
            thread.unlink(root, b"moved", |_| Ok(())).expect("removes");
            for number in 2..40 {
                thread.unlink(root, &from(number), |_| Ok(())).expect("removes");
            }
        }
        // Readers see a held name as it is.
        assert!(thread.stat_name(root, b"present").is_ok());
        assert_eq!(thread.stat_name(root, b"absent").err(), Some(Error::NotFound));
        drop((absent, present));
        thread.unlink(root, b"present", |_| Ok(())).expect("removes");
        thread.create(root, b"absent", &new).expect("creates");
        super::super::check_names(&fs);
    }

    #[test]
    fn a_held_name_is_waited_for_until_its_holder_releases_it() {
        static PLATFORM: TestPlatform = TestPlatform::new();
        let image = new_image(4 << 20, 0);
        let fs = Attached::with(&image, &PLATFORM, &Default::default(), 1).expect("attaches");
        let holder = fs.enter().expect("enters");
        let root = holder.root().expect("a root");
        let name = key(&fs, root.number, b"name");
        let held = holder.names().hold_name(&name).expect("holds");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let thread = fs.enter().expect("enters");
                thread.create(root, b"name", &new_node(FileKind::Regular)).map(|file| thread.release(file, 1))
            });
            while held.main.waiters.load(Relaxed) & NAME_WAITING == 0 {
                std::thread::sleep(Duration::from_micros(100));
            }
            assert!(!waiter.is_finished());
            drop(held);
            assert_eq!(waiter.join().expect("no panic"), Ok(()));
        });
        assert!(holder.stat_name(root, b"name").is_ok());
    }

    #[test]
    fn a_held_name_does_not_move_when_its_bucket_is_split() {
        let image = new_image(8 << 20, 0);
        let fs = Attached::new(&image).expect("attaches");
        let header = fs.header().expect("a header");
        header.buckets.store(2, Relaxed);
        let (holder, thread) = (fs.enter().expect("enters"), fs.enter().expect("enters"));
        let root = holder.root().expect("a root");
        // Its bucket of two and of four differ.
        let names = (0..).map(|number| format!("{number}"));
        let moving = names.into_iter().find(|name| fs.hash_name(root.number, name.as_bytes()).bucket(4) == 2);
        let moving = moving.expect("one of four");
        let held = holder.names().hold_name(&key(&fs, root.number, moving.as_bytes())).expect("holds");
        thread.names().grow(6).expect("grows");
        assert_eq!(header.buckets.load(Relaxed), 2, "the bucket to split has the held name");
        drop(held);
        thread.names().grow(6).expect("grows");
        assert_eq!(header.buckets.load(Relaxed), 4);
    }
}
