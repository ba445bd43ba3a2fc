//! The identity for which a thread acts: its ids, groups and capabilities, as the kernel reports
//! them, with the ids as in the image.
//!
//! Each thread's [`Context`](crate::context::Context) has the identity of that thread. The
//! kernel is asked at its first call, and again after any thread has made a call that changes an
//! identity: so a thread that changes its own alone (setfsuid, or setresuid without the C library)
//! acts alone with it.
//!
//! A filter of system calls may forbid these queries. So the thread that installs one leaves its
//! identity for threads that have not asked.
//!
//! Invariant: an identity is overwritten only by its thread, between two calls.
//!
//! The identity that is left carries the number of identity changes; other threads take it while
//! that is current. *Rejected:* asking when a thread begins (it costs six calls, and threads that
//! exist when a filter comes for all, TSYNC, have not asked); `/proc/self/status` (filters forbid
//! that, too).

use crate::abi::sys;
use crate::process::session::has_threads;
use crate::process::user_namespace::{self, GROUPS_AT_ENTRY, IdsAtEntry, Namespace};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
use posix::{Capabilities, Credentials, OVERFLOW_ID};

/// Maximum number of groups without separate memory.
const GROUPS_FEW: usize = GROUPS_AT_ENTRY;

/// Twice the number of changes of identities in this process. It begins with zero: the library has
/// no initialised data.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// Whether threads may differ: one of several has changed its identity.
static MAY_DIFFER: AtomicBool = AtomicBool::new(false);

/// The identity of the thread that installed a filter. A value of `CHANGES` belongs to one identity
/// unless threads differ, so pieces of two snapshots with the same value are pieces of the same.
struct Snapshot {
    /// As in [`Identity`]; zero: there is none.
    asked_at: AtomicU32,
    /// Effective ids, real ids, both capabilities, the number of groups.
    words: [AtomicU64; 5],
    groups: [AtomicU32; GROUPS_FEW],
}

static AT_FILTER: Snapshot = Snapshot {
    asked_at: AtomicU32::new(0),
    words: [const { AtomicU64::new(0) }; 5],
    groups: [const { AtomicU32::new(0) }; GROUPS_FEW],
};

/// What a thread acts as. All zero is valid: not asked yet.
pub struct Identity {
    /// Value of `CHANGES` when the kernel was asked, plus one; zero: ask.
    asked_at: u32,
    effective: (u32, u32),
    real: (u32, u32),
    capabilities: u64,
    /// Capabilities of access(2), which uses the real ids.
    real_capabilities: u64,
    groups: [u32; GROUPS_FEW],
    count: usize,
    /// Address of the groups beyond `GROUPS_FEW`, and its number of bytes: memory of this identity.
    many: (usize, usize),
}

impl Identity {
    /// Asks the kernel if it must be asked.
    #[inline(always)]
    pub fn refresh(&mut self) {
        if self.asked_at != CHANGES.load(Acquire) | 1 {
            self.query();
        }
    }

    /// Distinguishes queries of the kernel between which an identity of the process changed; zero:
    /// none yet.
    pub fn query_number(&self) -> u32 {
        self.asked_at
    }

    /// The effective ids for files.
    #[inline]
    pub fn credentials(&self) -> Credentials<'_> {
        let (uid, gid) = self.effective;
        let capabilities = Capabilities(self.capabilities);
        let namespace = user_namespace::current().map(|namespace| &namespace.maps);
        Credentials { uid, gid, groups: self.groups(), capabilities, namespace, checked: false }
    }

    /// The real ids, which access(2) uses.
    pub fn real(&self) -> RealIds {
        RealIds { ids: self.real, capabilities: Capabilities(self.real_capabilities) }
    }

    #[inline]
    fn groups(&self) -> &[u32] {
        match self.many {
            (0, _) => &self.groups[..self.count],
            // SAFETY: memory of this identity with at least this many groups.
            (many, _) => unsafe { core::slice::from_raw_parts(many as *const u32, self.count) },
        }
    }

    /// The ids for a namespace or program that the thread enters.
    pub fn at_entry(&mut self) -> IdsAtEntry {
        self.refresh();
        let mut groups = [0; GROUPS_AT_ENTRY];
        let count = self.count.min(GROUPS_AT_ENTRY);
        groups[..count].copy_from_slice(&self.groups()[..count]);
        IdsAtEntry { real: self.real, effective: self.effective, groups, count }
    }

    /// The thread is about to install a filter of system calls.
    pub fn leave_for_others(&mut self) {
        self.refresh();
        let pair = |(one, other): (u32, u32)| u64::from(one) | u64::from(other) << 32;
        if self.many.0 != 0 || MAY_DIFFER.load(Relaxed) {
            return;
        }
        AT_FILTER.asked_at.store(0, Relaxed);
        fence(Release);
        let words =
            [pair(self.effective), pair(self.real), self.capabilities, self.real_capabilities, self.count as u64];
        AT_FILTER.words.iter().zip(words).for_each(|(to, word)| to.store(word, Relaxed));
        AT_FILTER.groups.iter().zip(self.groups).for_each(|(to, group)| to.store(group, Relaxed));
        AT_FILTER.asked_at.store(self.asked_at, Release);
    }

    /// Takes what the thread left that installed a filter; returns whether it is this thread's.
    fn take_left(&mut self) -> bool {
        // Nothing was left, and its page stays untouched.
        if !tables::host::expects_filter() {
            return false;
        }
        let now = CHANGES.load(Acquire) | 1;
        if AT_FILTER.asked_at.load(Acquire) != now || MAY_DIFFER.load(Relaxed) {
            return false;
        }
        let [effective, real, capabilities, real_capabilities, count] =
            [0, 1, 2, 3, 4].map(|index: usize| AT_FILTER.words[index].load(Relaxed));
        let pair = |word: u64| (word as u32, (word >> 32) as u32);
        self.release_many();
        (self.effective, self.real) = (pair(effective), pair(real));
        (self.capabilities, self.real_capabilities) = (capabilities, real_capabilities);
        self.count = (count as usize).min(GROUPS_FEW);
        self.groups.iter_mut().zip(&AT_FILTER.groups).for_each(|(group, left)| *group = left.load(Relaxed));
        fence(Acquire);
        let is_whole = AT_FILTER.asked_at.load(Relaxed) == now && CHANGES.load(Relaxed) | 1 == now;
        self.asked_at = if is_whole { now } else { 0 };
        is_whole
    }

    #[cold]
    #[inline(never)]
    fn query(&mut self) {
        if self.take_left() {
            return;
        }
        // In this order: a change meanwhile leads to another query.
        self.asked_at = CHANGES.load(Acquire) | 1;
        let ids = KernelIds::query();
        self.query_groups();
        let translated = match user_namespace::current() {
            None => (ids.real, ids.effective),
            Some(namespace) => {
                namespace.read_maps();
                if !namespace.is_complete() {
                    self.asked_at = 0;
                }
                self.translate(namespace, &ids)
            }
        };
        (self.real, self.effective) = translated;
        self.capabilities = ids.capabilities;
        self.real_capabilities = if ids.real.0 == 0 { ids.permitted } else { 0 };
    }

    /// Replaces numbers of a namespace by ids of the image; returns the real and effective ones.
    fn translate(&mut self, namespace: &Namespace, ids: &KernelIds) -> ((u32, u32), (u32, u32)) {
        let at_entry = namespace.at_entry();
        if !namespace.is_complete() {
            // Without maps no call can have changed an id.
            (self.groups, self.count, self.many.0) = (at_entry.groups, at_entry.count, self.release_many());
            return (at_entry.real, at_entry.effective);
        }
        let maps = &namespace.maps;
        let both = |(uid, gid), other: (u32, u32)| {
            (maps.users.to_image(uid).unwrap_or(other.0), maps.groups.to_image(gid).unwrap_or(other.1))
        };
        self.translate_groups(namespace, &at_entry);
        (both(ids.real, at_entry.real), both(ids.effective, at_entry.effective))
    }

    /// Groups without a number have been there since the entry, if all of those have.
    fn translate_groups(&mut self, namespace: &Namespace, at_entry: &IdsAtEntry) {
        let map = &namespace.maps.groups;
        let known = &at_entry.groups[..at_entry.count];
        let shown = known.iter().map(|&group| map.number_of(group).unwrap_or(OVERFLOW_ID));
        if self.count == known.len() && self.groups().iter().copied().eq(shown) {
            self.groups = at_entry.groups;
            return;
        }
        let mut kept = 0;
        for index in 0..self.count {
            if let Some(group) = map.to_image(self.groups()[index]) {
                self.set_group(kept, group);
                kept += 1;
            }
        }
        self.count = kept;
    }

    fn set_group(&mut self, index: usize, group: u32) {
        match self.many.0 {
            0 => self.groups[index] = group,
            // SAFETY: as in `groups`; the index is below the count.
            many => unsafe { (many as *mut u32).add(index).write(group) },
        }
    }

    fn query_groups(&mut self) {
        self.release_many();
        self.count = 0;
        // SAFETY: queries a number, and then as many groups as there is room for.
        unsafe {
            let count = sys::call(libc::SYS_getgroups, [0; 6]).max(0) as usize;
            let mut room = self.groups.as_mut_ptr() as u64;
            if count > GROUPS_FEW {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let Ok(memory) = sys::map(count * 4, libc::PROT_READ | libc::PROT_WRITE, flags, -1) else { return };
                self.many = (memory as usize, count * 4);
                room = memory as u64;
            }
            let result = sys::call(libc::SYS_getgroups, [count as u64, room, 0, 0, 0, 0]);
            self.count = result.clamp(0, count as i64) as usize;
        }
    }

    fn release_many(&mut self) -> usize {
        if let (many @ 1.., bytes) = core::mem::take(&mut self.many) {
            // SAFETY: memory of this identity, which nothing refers to between calls.
            unsafe { sys::unmap(many as *mut u8, bytes) };
        }
        0
    }

    /// The thread ends: another one may get its context.
    pub fn discard(&mut self) {
        self.release_many();
        self.asked_at = 0;
    }
}

/// The real ids of a thread: a real root has all permitted capabilities, and any other user has
/// none.
#[derive(Debug, Clone, Copy)]
pub struct RealIds {
    ids: (u32, u32),
    capabilities: Capabilities,
}

impl RealIds {
    /// The thread's credentials with these ids.
    pub fn of<'c>(self, credentials: Credentials<'c>) -> Credentials<'c> {
        let (uid, gid) = self.ids;
        Credentials { uid, gid, capabilities: self.capabilities, ..credentials }
    }
}

/// The ids and capabilities of the calling thread, as the kernel shows them.
struct KernelIds {
    real: (u32, u32),
    effective: (u32, u32),
    capabilities: u64,
    permitted: u64,
}

impl KernelIds {
    fn query() -> KernelIds {
        let ask = |number: i64, arguments: [u64; 3]| {
            let [a, b, c] = arguments;
            // SAFETY: these calls only query, and write into locals of this function that are large
            // enough.
            unsafe { sys::call(number, [a, b, c, 0, 0, 0]) }
        };
        let unchanged = u64::from(u32::MAX);
        let mut ids = [[0u32; 3]; 2];
        for (number, [real, effective, saved]) in [libc::SYS_getresuid, libc::SYS_getresgid].into_iter().zip(&mut ids) {
            ask(number, [real as *mut u32 as u64, effective as *mut u32 as u64, saved as *mut u32 as u64]);
        }
        let header = [CAPABILITY_VERSION, 0];
        let mut sets = [[0u32; 3]; 2];
        ask(libc::SYS_capget, [header.as_ptr() as u64, sets.as_mut_ptr() as u64, 0]);
        KernelIds {
            real: (ids[0][0], ids[1][0]),
            effective: (
                ask(libc::SYS_setfsuid, [unchanged, 0, 0]) as u32,
                ask(libc::SYS_setfsgid, [unchanged, 0, 0]) as u32,
            ),
            capabilities: u64::from(sets[0][0]) | u64::from(sets[1][0]) << 32,
            permitted: u64::from(sets[0][1]) | u64::from(sets[1][1]) << 32,
        }
    }
}

/// Records that a thread has changed its identity, or may have, by a call with this result.
pub fn changed(result: i64) {
    if let Some(namespace) = user_namespace::current()
        && !namespace.is_complete()
        && !namespace.read_maps()
        && result >= 0
    {
        namespace.lose_ids();
    }
    if has_threads() {
        MAY_DIFFER.store(true, Relaxed);
    }
    CHANGES.fetch_add(2, AcqRel);
}

/// Queries the umask, which the kernel reports only when it changes: what is created meanwhile gets
/// fewer permissions.
pub fn query_umask() -> u32 {
    // SAFETY: changes the umask, and changes it back.
    unsafe {
        let umask = sys::call(libc::SYS_umask, [0o077, 0, 0, 0, 0, 0]);
        sys::call(libc::SYS_umask, [umask as u64, 0, 0, 0, 0, 0]);
        umask as u32
    }
}

/// Version 3 of the capability calls: two words for each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Acts with the rights that a program has when it starts: only root's capabilities survive an
/// exec. Ambient ones do, too, but are ignored here.
pub fn as_after_exec<R>(act: impl FnOnce() -> R) -> R {
    // As this user namespace shows it: that is what decides at an exec.
    if sys::effective_user() == 0 {
        return act();
    }
    let header = [CAPABILITY_VERSION, 0];
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: the first call writes two sets, for which there is room; the others change this
    // thread's effective capabilities, and change them back.
    unsafe {
        let call = |number, sets: *const [u32; 3]| sys::call(number, [header.as_ptr() as u64, sets as u64, 0, 0, 0, 0]);
        if call(libc::SYS_capget, sets.as_mut_ptr()) != 0 || sets.iter().all(|set| set[0] == 0) {
            return act();
        }
        let without = sets.map(|[_, permitted, inheritable]| [0, permitted, inheritable]);
        call(libc::SYS_capset, without.as_ptr());
        let result = act();
        call(libc::SYS_capset, sets.as_ptr());
        result
    }
}
