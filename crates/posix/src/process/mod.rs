//! What the processes of one image share about open files, so that unmodified programs can have the file system inside them: descriptor
//! tables, open file descriptions, working directories, mappings, locks, descriptors on their way between processes.
//!
//! All of it is in the `upper` area of the DRAM region: a [`Processes`] is a view of that, a [`Process`] one slot in it. The kernel
//! hands out descriptor numbers; this layer knows what is behind them.
//!
//! # References and death
//! A process may be killed at any instruction, and all that it held must come back. So a process holds nothing by a count alone: every
//! reference is an entry in its slot (descriptor, working directory, mapping, use in flight), and every change of an entry is an operation with
//! an *intent*, written in the slot step by step, from which another process finishes or undoes it.
//! What this layer holds in the engine is a mark on the file (`Thread::set_held`), not a count: to set it twice is to set it once.
//!
//! # Who calls
//! Methods that may give up a file take the engine's [`Thread`]. The calls of one process may come from several of its threads, if it was told so
//! ([`Process::set_threads`]). A signal handler must not call this layer while the thread it interrupted is inside: the front defers it.

use crate::errno::{Errno, Result};
use crate::open_file::OpenFile;
use engine::{Fs, Node, Thread};
use pmem::{Direct, Memory};

/// Descriptors that a process can have.
pub const DESCRIPTORS_MAX: u32 = 1 << 20;

/// The processes of a file system: a view of the shared tables. Cheap to make and to copy.
pub struct Processes<'f, M: Memory = Direct> {
    fs: &'f Fs<M>,
}

/// A process that uses the file system: a slot in the tables. All threads of the process may use it.
///
/// A copy of the value is the same process. What it names ends with [`Process::exit`], or when the process dies.
pub struct Process<'f, M: Memory = Direct> {
    all: Processes<'f, M>,
    index: u32,
}

/// How a child is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fork {
    /// It runs in the parent's memory (CLONE_VM without CLONE_THREAD: vfork, posix_spawn): the mappings stay the parent's.
    pub shares_memory: bool,
    /// It uses the parent's descriptor table (CLONE_FILES without CLONE_THREAD).
    pub shares_files: bool,
    /// It uses the parent's working directory and umask (CLONE_FS without CLONE_THREAD). Not supported: EINVAL.
    pub shares_directory: bool,
}

/// What a descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Number of the open file description: equal for descriptors that share one, in all processes.
    pub file: u32,
    /// Whether exec closes it.
    pub cloexec: bool,
}

/// An open file description in use by a call: it stays what it is until this is dropped, even if another thread closes the descriptor.
/// It may be kept for the time of a call that ends soon, but not while waiting for a lock ([`Process::wait_for_lock`] tells how).
pub struct Using<'u, 'f, M: Memory = Direct> {
    process: &'u Process<'f, M>,
    thread: &'u Thread<'f, M>,
    file: &'f OpenFile,
    index: u32,
}

/// Who holds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockOwner {
    /// A process (fcntl F_SETLK): its slot, [`Process::index`].
    Process(u32),
    /// An open file description (flock, F_OFD_SETLK): its number, [`Descriptor::file`].
    Description(u32),
    /// Somebody whom another front knows by a number of its own (the lock owner of a FUSE request). Whoever registers such locks takes
    /// them away: death of that front's process does too.
    Foreign {
        /// Slot of the front's process.
        front: u32,
        /// The front's number.
        number: u32,
    },
}

/// What a lock admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Others may share it.
    Shared,
    /// Nobody else.
    Exclusive,
}

/// The bytes `start..=last`; `last` is `i64::MAX` for a lock to the end whatever that will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub last: u64,
}

/// A lock that is in the way (F_GETLK).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    /// Its kind.
    pub kind: LockKind,
    /// Its bytes.
    pub range: LockRange,
    /// Whose it is.
    pub owner: LockOwner,
    /// As F_GETLK tells it: the process, or -1 for a lock of a description.
    pub pid: i32,
}

/// What an attempt to lock came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locked {
    /// It is held (or given up, if that was asked for).
    Done,
    /// Somebody is in the way. Without waiting that is EAGAIN; otherwise see [`Process::wait_for_lock`].
    Blocked(Blocked),
}

/// What a blocked attempt saw: to be handed to [`Process::wait_for_lock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocked {
    node: Node,
    version: u32,
    blocker: LockOwner,
}

/// A descriptor on its way to another process: how that one finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Entry of the table: 0 to [`TOKENS_MAX`].
    pub index: u32,
    /// A number that nobody can guess.
    pub secret: u64,
}

/// Descriptors that can be on their way at a time.
pub const TOKENS_MAX: u32 = 4096;

/// A range of a process's addresses that shows a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMapping {
    /// First address; of a page.
    pub address: u64,
    /// Bytes; whole pages.
    pub length: u64,
    /// What it shows there.
    pub offset: u64,
    /// The file. While the record exists it holds a reference.
    pub node: Node,
    /// MAP_SHARED.
    pub shared: bool,
    /// Stores reach the file: shared, and opened for writing (so mprotect may make it writable).
    pub writable: bool,
}

impl<M: Memory> Clone for Processes<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Memory> Copy for Processes<'_, M> {}

impl<M: Memory> Clone for Process<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Memory> Copy for Process<'_, M> {}

impl<'f, M: Memory> Processes<'f, M> {
    /// The processes of a file system.
    pub fn new(fs: &'f Fs<M>) -> Result<Self> {
        Ok(Processes { fs })
    }

    /// The calling process, new here: an empty table, no working directory in the mount, umask as given. ENFILE: too many processes.
    /// Looks for dead processes on the way.
    pub fn register(&self, thread: &Thread<'f, M>, umask: u32) -> Result<Process<'f, M>> {
        let _ = (thread, umask, self.fs);
        Err(Errno::ENOSYS)
    }

    /// After exec: the slot that the calling process had before, if it had one. `index` is where to look first (from the environment). Closes
    /// what exec closes, forgets the mappings of the program before, and puts in order what its other threads were at when exec ended them.
    pub fn resume(&self, thread: &Thread<'f, M>, index: Option<u32>) -> Result<Option<Process<'f, M>>> {
        let _ = (thread, index);
        Err(Errno::ENOSYS)
    }

    /// In the child, before anything else: takes what [`Process::prepare_fork`] made. ESRCH if somebody took it for dead (the parent died
    /// before anybody knew of the child).
    pub fn adopt(&self, thread: &Thread<'f, M>, child: u32) -> Result<Process<'f, M>> {
        let _ = (thread, child);
        Err(Errno::ENOSYS)
    }

    /// Gives back all that dead processes held; how many there were.
    pub fn reap(&self, thread: &Thread<'f, M>) -> Result<u32> {
        let _ = thread;
        Err(Errno::ENOSYS)
    }

    /// Takes descriptors out of transit that nobody can receive any more: those of which `in_flight` says no. (A front that sends an own
    /// descriptor along, with a lock on a byte of the image for each index, can ask the kernel: the lock lives in queues too.) How many.
    pub fn reap_transit(&self, thread: &Thread<'f, M>, in_flight: &mut dyn FnMut(u32) -> bool) -> Result<u32> {
        let _ = (thread, in_flight);
        Err(Errno::ENOSYS)
    }
}

/// Birth and death.
impl<'f, M: Memory> Process<'f, M> {
    /// The slot: what a child and a new program image need to find it again.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether other threads of the process (or a process that shares the table) may make calls at the same time. Lookups cost a little more
    /// then. To be said before the first such thread is made; never taken back but by exec.
    pub fn set_threads(&self) {}

    /// Before a fork: makes the child's slot with copies of everything that it inherits; its index. ENFILE: too many processes.
    pub fn prepare_fork(&self, thread: &Thread<'f, M>, fork: Fork) -> Result<u32> {
        let _ = (thread, fork);
        Err(Errno::ENOSYS)
    }

    /// Where the kernel is to store the child's pid: pass it as `parent_tid` of clone with CLONE_PARENT_SETTID. So it is known before the child
    /// runs and before the parent can die. Where that is not possible (the program uses it itself), call [`Process::note_child`] after the fork.
    pub fn child_pid_word(&self, child: u32) -> Result<*mut i32> {
        let _ = child;
        Err(Errno::ENOSYS)
    }

    /// In the parent after a fork whose child's pid the kernel did not store.
    pub fn note_child(&self, child: u32, pid: i32) {
        let _ = (child, pid);
    }

    /// The fork failed: undoes [`Process::prepare_fork`].
    pub fn abandon(&self, thread: &Thread<'f, M>, child: u32) {
        let _ = (thread, child);
    }

    /// The process ends: gives everything back. (Whoever does not say so is reaped later.)
    pub fn exit(self, thread: &Thread<'f, M>) {
        let _ = thread;
    }

    /// The umask.
    pub fn umask(&self) -> u32 {
        0
    }

    /// Sets the umask; the one before.
    pub fn set_umask(&self, umask: u32) -> u32 {
        umask
    }

    /// The working directory, if it is in the mount. It stays referenced until it is changed: a caller with other threads retains it for itself
    /// (`thread.retain`) if it uses it beyond its next look.
    pub fn directory(&self) -> Option<Node> {
        None
    }

    /// chdir: into the mount, or out of it. Takes a reference of its own.
    pub fn set_directory(&self, thread: &Thread<'f, M>, directory: Option<Node>) -> Result<()> {
        let _ = (thread, directory);
        Err(Errno::ENOSYS)
    }
}

/// Descriptors.
impl<'f, M: Memory> Process<'f, M> {
    /// What a descriptor is; none if it is not one of this file system.
    #[inline]
    pub fn descriptor(&self, fd: u32) -> Option<Descriptor> {
        let _ = fd;
        None
    }

    /// The description behind a descriptor, for the time of a call; none if it is not one of this file system.
    #[inline]
    pub fn file<'u>(&'u self, thread: &'u Thread<'f, M>, fd: u32) -> Option<Using<'u, 'f, M>> {
        let _ = (thread, fd);
        None
    }

    /// Puts an open file behind a descriptor, in place of what was there. The description takes over the reference of `file`, also when this
    /// fails (then it is given back). EBADF: the number is too large; ENFILE: too many open files.
    pub fn install(&self, thread: &Thread<'f, M>, fd: u32, file: OpenFile, cloexec: bool) -> Result<()> {
        let _ = (fd, cloexec);
        thread.release(file.node(), 1);
        Err(Errno::ENOSYS)
    }

    /// dup, dup2, dup3, F_DUPFD, once the kernel has named `to`: `to` becomes what `from` is, in place of what was there. EBADF: `from` is not ours.
    pub fn duplicate(&self, thread: &Thread<'f, M>, from: u32, to: u32, cloexec: bool) -> Result<()> {
        let _ = (thread, from, to, cloexec);
        Err(Errno::ENOSYS)
    }

    /// close. Whether there was something. Releases the process's record locks on the file, as any close does.
    pub fn remove(&self, thread: &Thread<'f, M>, fd: u32) -> bool {
        let _ = (thread, fd);
        false
    }

    /// FD_CLOEXEC on or off; whether the descriptor is ours.
    pub fn set_cloexec(&self, fd: u32, cloexec: bool) -> bool {
        let _ = (fd, cloexec);
        false
    }

    /// close_range: closes our descriptors `first..=last`, or with `only_mark` sets FD_CLOEXEC on them. CLOSE_RANGE_UNSHARE is the front's
    /// matter: threads that unshare tables are not supported.
    pub fn close_range(&self, thread: &Thread<'f, M>, first: u32, last: u32, only_mark: bool) {
        let _ = (thread, first, last, only_mark);
    }

    /// Gives all our descriptors to `each`, in order, until it returns false.
    pub fn descriptors(&self, each: &mut dyn FnMut(u32, Descriptor) -> bool) {
        let _ = each;
    }

    /// Puts a descriptor into transit (SCM_RIGHTS): the token keeps the description open until it is taken out with `last`, or
    /// [`Processes::reap_transit`] finds that nobody can. EBADF: not ours. ETOOMANYREFS: the table is full (reap transit and try again).
    pub fn export(&self, thread: &Thread<'f, M>, fd: u32) -> Result<Token> {
        let _ = (thread, fd);
        Err(Errno::ENOSYS)
    }

    /// Puts a description in transit behind a descriptor of this process. `last`: take it out of transit (no when the message was only peeked at).
    /// EBADF: no such token.
    pub fn import(&self, thread: &Thread<'f, M>, token: Token, fd: u32, cloexec: bool, last: bool) -> Result<()> {
        let _ = (thread, token, fd, cloexec, last);
        Err(Errno::ENOSYS)
    }
}

impl LockRange {
    /// The bytes of a `struct flock`, whose `l_whence` has become `base` (0, position or length): EINVAL before the start, EOVERFLOW beyond what
    /// offsets can say. A length of zero means to the end; a negative one the bytes before.
    pub fn new(base: u64, start: i64, length: i64) -> Result<LockRange> {
        let _ = (base, start, length);
        Err(Errno::ENOSYS)
    }
}

/// Locks. Blocking calls are a loop of the front: attempt; if blocked, [`Process::wait_for_lock`]; if a signal came, EINTR; again from looking the
/// descriptor up, since it may be closed meanwhile.
impl<'f, M: Memory> Process<'f, M> {
    /// flock(2): `None` unlocks. A conversion that is blocked has lost the lock before, as on Linux.
    pub fn flock(&self, thread: &Thread<'f, M>, fd: u32, kind: Option<LockKind>) -> Result<Locked> {
        let _ = (thread, fd, kind);
        Err(Errno::ENOSYS)
    }

    /// fcntl(F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW): `None` unlocks. `of_description`: an OFD lock. EBADF: not ours, or not opened for that;
    /// ENOLCK: too many locks; EDEADLK (if `waits`, and not for OFD locks): to wait would be for ever.
    pub fn lock_range(
        &self,
        thread: &Thread<'f, M>,
        fd: u32,
        range: LockRange,
        kind: Option<LockKind>,
        of_description: bool,
        waits: bool,
    ) -> Result<Locked> {
        let _ = (thread, fd, range, kind, of_description, waits);
        Err(Errno::ENOSYS)
    }

    /// fcntl(F_GETLK, F_OFD_GETLK): the first lock in the way.
    pub fn conflict(
        &self,
        thread: &Thread<'f, M>,
        fd: u32,
        range: LockRange,
        kind: LockKind,
        of_description: bool,
    ) -> Result<Option<Conflict>> {
        let _ = (thread, fd, range, kind, of_description);
        Err(Errno::ENOSYS)
    }

    /// Sleeps until the locks of the file change, a signal comes, or a short time has passed (100 ms: after that somebody looks whether
    /// the blocker still lives). The caller then attempts again, unless a signal came. Holds no [`Using`].
    pub fn wait_for_lock(&self, thread: &Thread<'f, M>, blocked: &Blocked) {
        let _ = (thread, blocked.node, blocked.version, blocked.blocker);
    }

    /// The wait is over (locked, interrupted, given up): to be called at the end of every loop that waited.
    pub fn end_wait(&self) {}
}

/// Mappings.
impl<'f, M: Memory> Process<'f, M> {
    /// Records a mapping *before* it is made; parts of others at the same addresses are gone then (MAP_FIXED; the front has taken care that no
    /// thread relies on them). From here on the file is changed in place, and no block of it is used for anything else. ENOMEM: too many.
    pub fn add_mapping(&self, thread: &Thread<'f, M>, mapping: &FileMapping) -> Result<()> {
        let _ = (thread, mapping);
        Err(Errno::ENOSYS)
    }

    /// Forgets the mappings of an address range, *after* it was unmapped or replaced; parts of a mapping outside stay. ENOMEM: too many.
    pub fn remove_mappings(&self, thread: &Thread<'f, M>, address: u64, length: u64) -> Result<()> {
        let _ = (thread, address, length);
        Err(Errno::ENOSYS)
    }

    /// The mapping at an address, if it is of this file system (for faults, msync, mprotect, mremap).
    pub fn mapping_at(&self, address: u64) -> Option<FileMapping> {
        let _ = address;
        None
    }

    /// Gives all mappings to `each`, in no order.
    pub fn mappings(&self, each: &mut dyn FnMut(&FileMapping)) {
        let _ = each;
    }
}

impl<M: Memory> core::ops::Deref for Using<'_, '_, M> {
    type Target = OpenFile;
    fn deref(&self) -> &OpenFile {
        self.file
    }
}

impl<M: Memory> Using<'_, '_, M> {
    /// Number of the description.
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl<M: Memory> Drop for Using<'_, '_, M> {
    fn drop(&mut self) {
        let _ = (self.process, self.thread);
    }
}
