//! The identity for which this process acts: its ids, groups and capabilities, as the kernel
//! reports them.
//!
//! The kernel is asked once, and again after every call that changes any of them. Threads of one
//! process that act for different users at the same time are not distinguished: the latest change
//! counts for all.
//!
//! Invariant: an identity that readers can see is overwritten only after several further changes.

use crate::hook::abi::sys;
use core::cell::UnsafeCell;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use posix::{Capabilities, Credentials};

/// Maximum number of groups without separate memory.
const GROUPS_FEW: usize = 64;
/// Number of identities that are used in turn.
const IDENTITIES_KEPT: usize = 16;

#[derive(Clone, Copy)]
struct Identity {
    effective: (u32, u32),
    real: (u32, u32),
    capabilities: u64,
    permitted: u64,
    groups: [u32; GROUPS_FEW],
    count: usize,
    /// Address of the groups beyond `GROUPS_FEW`: memory that is never unmapped.
    many: usize,
}

const NO_IDENTITY: Identity = Identity {
    effective: (0, 0),
    real: (0, 0),
    capabilities: 0,
    permitted: 0,
    groups: [0; GROUPS_FEW],
    count: 0,
    many: 0,
};

struct IdentityRing([UnsafeCell<Identity>; IDENTITIES_KEPT]);
// SAFETY: see the module's invariant; a writer claims its slot first, and the identity is published
// afterwards.
unsafe impl Sync for IdentityRing {}

/// Zero until it is published.
static IDENTITIES: IdentityRing = IdentityRing([const { UnsafeCell::new(NO_IDENTITY) }; IDENTITIES_KEPT]);
/// Slot + 1 of the present identity; zero: ask the kernel.
static PRESENT: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);

fn present() -> &'static Identity {
    let slot = match PRESENT.load(Acquire) {
        0 => query(),
        slot => slot,
    };
    // SAFETY: published, hence completely written; see the module's invariant.
    unsafe { &*IDENTITIES.0[slot - 1].get() }
}

fn groups(identity: &'static Identity) -> &'static [u32] {
    match identity.many {
        0 => &identity.groups[..identity.count],
        // SAFETY: memory with this many groups, written before the identity was published, and
        // never unmapped.
        many => unsafe { core::slice::from_raw_parts(many as *const u32, identity.count) },
    }
}

/// The effective ids for files.
#[inline]
pub fn credentials() -> Credentials<'static> {
    let identity = present();
    let (uid, gid) = identity.effective;
    let capabilities = Capabilities(identity.capabilities);
    Credentials { uid, gid, groups: groups(identity), capabilities, checked: false }
}

/// The real ids, which access(2) uses: a real root has all permitted capabilities, and any other
/// user has none.
pub fn real_credentials() -> Credentials<'static> {
    let identity = present();
    let (uid, gid) = identity.real;
    let capabilities = if uid == 0 { identity.permitted } else { 0 };
    Credentials { uid, gid, groups: groups(identity), capabilities: Capabilities(capabilities), checked: false }
}

/// Queries the umask, which the kernel reports only when it changes. For the constructor: nothing
/// creates files meanwhile.
pub fn query_umask() -> u32 {
    // SAFETY: changes the umask, and changes it back.
    unsafe {
        let umask = sys::call(libc::SYS_umask, [0o077, 0, 0, 0, 0, 0]);
        sys::call(libc::SYS_umask, [umask as u64, 0, 0, 0, 0, 0]);
        umask as u32
    }
}

/// Discards the known identity.
pub fn invalidate() {
    PRESENT.store(0, Release);
}

/// Version 3 of the capability calls: two words for each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Acts with the rights that a program has when it starts: only root's capabilities survive an
/// exec. Ambient ones do, too, but are ignored here.
pub fn as_after_exec<R>(act: impl FnOnce() -> R) -> R {
    let credentials = credentials();
    if credentials.uid == 0 || credentials.capabilities.0 == 0 {
        return act();
    }
    let header = [CAPABILITY_VERSION, 0];
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: the first call writes two sets, for which there is room; the others change this
    // thread's effective capabilities, and change them back.
    unsafe {
        let call = |number, sets: *const [u32; 3]| sys::call(number, [header.as_ptr() as u64, sets as u64, 0, 0, 0, 0]);
        if call(libc::SYS_capget, sets.as_mut_ptr()) != 0 {
            return act();
        }
        let without = sets.map(|[_, permitted, inheritable]| [0, permitted, inheritable]);
        call(libc::SYS_capset, without.as_ptr());
        let result = act();
        call(libc::SYS_capset, sets.as_ptr());
        result
    }
}

#[cold]
fn query() -> usize {
    let slot = NEXT.fetch_add(1, AcqRel) % IDENTITIES_KEPT;
    let mut identity = NO_IDENTITY;
    let ask = |number: i64, arguments: [u64; 3]| {
        let [a, b, c] = arguments;
        // SAFETY: these calls only query, and write into locals of this function that are large
        // enough.
        unsafe { sys::call(number, [a, b, c, 0, 0, 0]) }
    };
    let unchanged = u64::from(u32::MAX);
    let (mut real, mut effective, mut saved) = (0u32, 0u32, 0u32);
    ask(libc::SYS_getresuid, [&raw mut real as u64, &raw mut effective as u64, &raw mut saved as u64]);
    identity.real.0 = real;
    ask(libc::SYS_getresgid, [&raw mut real as u64, &raw mut effective as u64, &raw mut saved as u64]);
    identity.real.1 = real;
    identity.effective.0 = ask(libc::SYS_setfsuid, [unchanged, 0, 0]) as u32;
    identity.effective.1 = ask(libc::SYS_setfsgid, [unchanged, 0, 0]) as u32;
    let header = [CAPABILITY_VERSION, 0];
    let mut sets = [[0u32; 3]; 2];
    ask(libc::SYS_capget, [header.as_ptr() as u64, sets.as_mut_ptr() as u64, 0]);
    identity.capabilities = u64::from(sets[0][0]) | u64::from(sets[1][0]) << 32;
    identity.permitted = u64::from(sets[0][1]) | u64::from(sets[1][1]) << 32;
    query_groups(&mut identity);
    // SAFETY: the slot was claimed, and its last readers date from many changes before.
    unsafe { *IDENTITIES.0[slot].get() = identity };
    PRESENT.store(slot + 1, Release);
    slot + 1
}

fn query_groups(identity: &mut Identity) {
    // SAFETY: queries a number, and then as many groups as there is room for.
    unsafe {
        let count = sys::call(libc::SYS_getgroups, [0; 6]).max(0) as usize;
        let mut room = identity.groups.as_mut_ptr() as u64;
        if count > GROUPS_FEW {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let Ok(memory) = sys::map(count * 4, libc::PROT_READ | libc::PROT_WRITE, flags, -1) else { return };
            identity.many = memory as usize;
            room = memory as u64;
        }
        let result = sys::call(libc::SYS_getgroups, [count as u64, room, 0, 0, 0, 0]);
        identity.count = result.clamp(0, count as i64) as usize;
    }
}
