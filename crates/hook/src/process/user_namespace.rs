//! The user namespace of this process: the maps between its ids and those of the image.
//!
//! A process learns of its namespace when it enters one (unshare, setns, clone), and passes the
//! maps on to programs in an entry of the environment: /proc shows a map only relative to the
//! parent namespace, so several levels must be composed on the way. A process in the initial
//! namespace pays for one load.
//!
//! A thread whose ids have no number in its namespace has them still. The *ids at entry* stand for
//! them: such an id was the thread's when the process entered, because no call sets an id without
//! number.
//!
//! Invariants
//! - A namespace replaces the previous one only while the process has one thread, which the kernel
//!   demands as well. Its memory is never unmapped.
//! - Of a map that cannot be read, no id is known. Once a thread has changed its ids there, it owns
//!   nothing in the image.

use crate::abi::sys;
use crate::handoff::{self, write_number};
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr};
use posix::{IdMap, UserNamespace};

/// Maximum number of groups that are known by their ids at entry; further ones are dropped.
pub const GROUPS_AT_ENTRY: usize = 64;
/// An owner of nothing.
const NO_OWNER: u32 = u32::MAX - 1;

/// Ids of the image that a thread had when the process entered the namespace.
#[derive(Debug, Clone, Copy)]
pub struct IdsAtEntry {
    /// Real user and group.
    pub real: (u32, u32),
    /// User and group that count for files.
    pub effective: (u32, u32),
    /// Groups.
    pub groups: [u32; GROUPS_AT_ENTRY],
    /// Number of groups.
    pub count: usize,
}

/// The namespace of the process, which is not the initial one.
pub struct Namespace {
    /// The maps.
    pub maps: UserNamespace,
    /// The maps of the parent namespace, unless that is the initial one: needed until `maps` are
    /// written.
    outer: UserNamespace,
    is_nested: bool,
    at_entry: IdsAtEntry,
    /// Whether ids were changed while a map could not be read.
    is_unknown: AtomicBool,
}

static CURRENT: AtomicPtr<Namespace> = AtomicPtr::new(core::ptr::null_mut());

/// The namespace; `None`: the initial one.
#[inline]
pub fn current() -> Option<&'static Namespace> {
    // SAFETY: null, or published after it was written; the memory is never unmapped.
    unsafe { CURRENT.load(Acquire).as_ref() }
}

/// A namespace that the process is about to enter: entering cannot fail afterwards.
pub struct Prepared(*mut Namespace);

/// Prepares for a namespace below the present one.
pub fn prepare(at_entry: IdsAtEntry) -> Result<Prepared, i64> {
    let prepared = Prepared::new()?;
    // SAFETY: new memory, which nothing else refers to.
    let new = unsafe { &mut *prepared.0 };
    new.at_entry = at_entry;
    if let Some(now) = current() {
        new.is_nested = true;
        new.outer.users.fill(now.maps.users.lines());
        new.outer.groups.fill(now.maps.groups.lines());
    }
    Ok(prepared)
}

impl Prepared {
    fn new() -> Result<Prepared, i64> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = sys::map(size_of::<Namespace>(), libc::PROT_READ | libc::PROT_WRITE, flags, -1)?;
        // It is large enough, and aligned to pages; all zero is a valid namespace.
        Ok(Prepared(memory.cast()))
    }

    /// The process, or a child with a copy of its memory, has entered the namespace.
    pub fn enter(&self) {
        CURRENT.store(self.0, Release);
    }

    /// The process did not enter it.
    pub fn discard(self) {
        // SAFETY: its memory, which nothing else refers to.
        unsafe { sys::unmap(self.0.cast(), size_of::<Namespace>()) };
    }
}

impl Namespace {
    /// Whether both maps are known.
    pub fn is_complete(&self) -> bool {
        self.maps.users.is_written() && self.maps.groups.is_written()
    }

    /// Reads the maps that are not known yet; returns whether the kernel showed both.
    pub fn read_maps(&self) -> bool {
        let outer = self.is_nested.then_some(&self.outer);
        let users = read_map(b"/proc/self/uid_map\0", &self.maps.users, outer.map(|outer| &outer.users));
        let groups = read_map(b"/proc/self/gid_map\0", &self.maps.groups, outer.map(|outer| &outer.groups));
        users && groups
    }

    /// A thread has changed its ids, or may have, while a map could not be read.
    pub fn lose_ids(&self) {
        self.is_unknown.store(true, Release);
    }

    /// The ids at entry, for the numbers that have no id.
    pub fn at_entry(&self) -> IdsAtEntry {
        let no_owner = (NO_OWNER, NO_OWNER);
        match self.is_unknown.load(Acquire) {
            false => self.at_entry,
            true => IdsAtEntry { real: no_owner, effective: no_owner, count: 0, ..self.at_entry },
        }
    }
}

/// Reads a map, unless it is known; returns whether the kernel showed it.
fn read_map(path: &[u8], map: &IdMap, outer: Option<&IdMap>) -> bool {
    /// Lines of 33 bytes; the kernel writes at most 340.
    const BYTES_MAX: usize = 12 << 10;
    if map.is_written() {
        return true;
    }
    let Ok(file) = sys::open(path, libc::O_RDONLY) else { return false };
    if !file.is_of_proc() {
        return false;
    }
    let mut text = [0u8; BYTES_MAX];
    let mut length = 0;
    while let Some(room) = text.get_mut(length..).filter(|room| !room.is_empty()) {
        match file.read(room) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(_) => return false,
        }
    }
    map.fill_from(&text[..length], outer);
    true
}

// The way to programs.

/// The entry for a program that a thread with these ids starts: ids, groups, and the lines of each
/// map, separated by semicolons. Returns its length with a zero byte; `None`: too long, or there is
/// nothing to pass on.
pub fn write_entry(ids: &IdsAtEntry, into: &mut [u8]) -> Option<usize> {
    let namespace = current()?;
    let outer = [&namespace.outer.users, &namespace.outer.groups];
    let own = [&namespace.maps.users, &namespace.maps.groups];
    let mut text = Text { bytes: into, length: 0 };
    text.push(handoff::IDS)?;
    let flags = u32::from(namespace.is_nested) | u32::from(namespace.is_unknown.load(Acquire)) << 1;
    [flags, ids.real.0, ids.effective.0, ids.real.1, ids.effective.1].iter().try_for_each(|&id| text.number(id))?;
    text.push(b";")?;
    ids.groups[..ids.count].iter().try_for_each(|&id| text.number(id))?;
    for map in own.into_iter().chain(outer) {
        text.push(b";")?;
        map.lines().flatten().try_for_each(|field| text.number(field))?;
    }
    text.push(b"\0")?;
    Some(text.length)
}

struct Text<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl Text<'_> {
    fn push(&mut self, part: &[u8]) -> Option<()> {
        self.bytes.get_mut(self.length..self.length + part.len())?.copy_from_slice(part);
        self.length += part.len();
        Some(())
    }

    /// A number with a comma before it, unless it is the first.
    fn number(&mut self, number: u32) -> Option<()> {
        if self.bytes[self.length - 1].is_ascii_digit() {
            self.push(b",")?;
        }
        let mut digits = [0u8; 20];
        let count = write_number(number.into(), &mut digits);
        self.push(&digits[..count])
    }
}

/// For the constructor: takes up the namespace of the previous program from the value of its entry.
pub fn adopt(value: &[u8]) {
    let mut parts = value.split(|&byte| byte == b';').map(numbers);
    let mut next = || parts.next();
    let Some(mut first) = next() else { return };
    let mut id = || first.next().unwrap_or(NO_OWNER);
    let (flags, real, effective, real_group, effective_group) = (id(), id(), id(), id(), id());
    let mut at_entry = IdsAtEntry {
        real: (real, real_group),
        effective: (effective, effective_group),
        groups: [0; GROUPS_AT_ENTRY],
        count: 0,
    };
    for group in next().into_iter().flatten().take(GROUPS_AT_ENTRY) {
        at_entry.groups[at_entry.count] = group;
        at_entry.count += 1;
    }
    let Ok(prepared) = Prepared::new() else { sys::refuse(&[b"not enough memory to start this program"]) };
    // SAFETY: new memory, which nothing else refers to.
    let namespace = unsafe { &mut *prepared.0 };
    namespace.at_entry = at_entry;
    namespace.is_nested = flags & 1 != 0;
    namespace.is_unknown.store(flags & 2 != 0, Release);
    let [own, outer] = [&namespace.maps, &namespace.outer];
    for map in [&own.users, &own.groups, &outer.users, &outer.groups] {
        let mut fields = next().into_iter().flatten();
        map.fill(core::iter::from_fn(|| Some([fields.next()?, fields.next()?, fields.next()?])));
    }
    prepared.enter();
}

fn numbers(text: &[u8]) -> impl Iterator<Item = u32> {
    text.split(|&byte| byte == b',').filter_map(handoff::number).filter_map(|number| u32::try_from(number).ok())
}

// Entering.

fn ioctl(fd: u64, request: u64) -> i64 {
    // SAFETY: the requests here take no memory.
    unsafe { sys::call(libc::SYS_ioctl, [fd, request, 0, 0, 0, 0]) }
}

/// The kind of a namespace that a descriptor stands for, as a flag of clone; zero: none.
pub fn kind(fd: u64) -> u64 {
    const NS_GET_NSTYPE: u64 = 0xb703;
    ioctl(fd, NS_GET_NSTYPE).max(0) as u64
}

/// The user namespace behind a descriptor given to setns: a descriptor of it, or an error. `None`:
/// another namespace.
fn behind(fd: u64) -> Option<i64> {
    /// Linux 6.11.
    const PIDFD_GET_USER_NAMESPACE: u64 = 0xff09;
    match kind(fd) {
        0 => Some(ioctl(fd, PIDFD_GET_USER_NAMESPACE)),
        kind if kind == libc::CLONE_NEWUSER as u64 => {
            // SAFETY: creates a descriptor.
            Some(unsafe { sys::call(libc::SYS_fcntl, [fd, libc::F_DUPFD_CLOEXEC as u64, 0, 0, 0, 0]) })
        }
        _ => None,
    }
}

/// What a call of setns does to the user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered {
    /// It stays.
    Same,
    /// A child of the present one.
    Child,
    /// Another one, whose maps cannot be known.
    Other,
}

/// What setns with these arguments would do.
pub fn entered_by(fd: u64, kinds: u64) -> Entered {
    const NS_GET_PARENT: u64 = 0xb702;
    let user = libc::CLONE_NEWUSER as u64;
    if kinds != 0 && kinds & user == 0 {
        return Entered::Same;
    }
    let Some(target) = behind(fd) else { return Entered::Same };
    if target < 0 {
        // Nothing that setns would enter; or a process, on an older kernel.
        return if kinds == 0 { Entered::Same } else { Entered::Other };
    }
    let parent = ioctl(target as u64, NS_GET_PARENT);
    let own = sys::open(b"/proc/self/ns/user\0", libc::O_RDONLY).and_then(|own| own.status());
    let identity = |status: &libc::stat| (status.st_dev, status.st_ino);
    let is_child = match (sys::status(parent as i32), &own) {
        (Ok(parent), Ok(own)) => identity(&parent) == identity(own),
        _ => false,
    };
    for fd in [target, parent].into_iter().filter(|&fd| fd >= 0) {
        // SAFETY: descriptors of this function.
        unsafe { sys::call(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]) };
    }
    if is_child { Entered::Child } else { Entered::Other }
}
