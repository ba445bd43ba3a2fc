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

mod descriptors;
mod fd_passing;
mod life;
mod lists;
mod locks;
mod mappings;
mod programs;
mod recovery;
mod shared_tables;
mod table_transaction;
mod usage;

pub use programs::Program;
pub(crate) use shared_tables::prefetch_record;
pub use usage::Usage;

use crate::errno::Result;
use crate::open_file::OpenFile;
use engine::{Fs, Node, Platform, Thread};
use pmem::{Direct, Memory};
use shared_tables::{SharedTables, Slot};

/// Descriptors that a process can have.
pub const DESCRIPTORS_MAX: u32 = 1 << 20;

/// The processes of a file system: a view of the shared tables. Cheap to make and to copy.
pub struct Processes<'f, M: Memory = Direct> {
    fs: &'f Fs<M>,
    tables: SharedTables<'f>,
    /// Ticket of the process that looks through it; zero: not registered.
    own_pid: u32,
}

/// A process that uses the file system: a slot in the tables. All threads of the process may use it.
///
/// A copy of the value is the same process. What it names ends with [`Process::exit`], or when the process dies.
pub struct Process<'f, M: Memory = Direct> {
    processes: Processes<'f, M>,
    index: u32,
    /// The process number that the slot has.
    number: u32,
    slot: &'f Slot,
    table_index: u32,
    /// The slot whose descriptor table it uses: its own, but with CLONE_FILES.
    table: &'f Slot,
    /// The slot of the thread that this copy is for: see [`Process::for_thread`].
    member: Option<(u32, &'f Slot)>,
}

/// The process number of a child that is not made yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildNumber {
    /// The number.
    pub number: u32,
    /// The descriptor that holds its liveness lock; the parent closes it once the child is made.
    /// None: the number is the parent's, or the region has no other processes.
    pub description: Option<i32>,
}

/// How a child is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fork {
    /// The process number that was taken for it; zero: it takes one itself, and is known by the
    /// parent's until it adopts its slot.
    pub number: u32,
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
pub struct InFlightFile<'u, 'f, M: Memory = Direct> {
    process: &'u Process<'f, M>,
    thread: &'u Thread<'f, M>,
    file: &'f OpenFile,
    index: u32,
    /// Which of the table's uses.
    which: u32,
}

/// Who holds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockOwner {
    /// A process (fcntl F_SETLK): the slot of its descriptor table, which is [`Process::index`] but with CLONE_FILES.
    Process(u32),
    /// An open file description (flock, F_OFD_SETLK): its number, [`Descriptor::file`].
    Description(u32),
    /// Somebody whom another front knows by a number of its own (the lock owner of a FUSE request). The front takes the locks away; its death
    /// does too.
    Foreign {
        /// Slot of the front's process.
        mount: u32,
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
pub struct FdToken {
    /// Entry of the table: 0 to [`FD_TOKENS_MAX`].
    pub index: u32,
    /// A number that nobody can guess.
    pub secret: u64,
}

/// Descriptors that can be on their way at a time.
pub const FD_TOKENS_MAX: u32 = 4096;

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
    /// The process was given leave to store, by mmap or mprotect, so it may have.
    pub stores: bool,
    /// A copy of the parent's. Who made the mapping answers for the file's times when it ends: most children store nothing, and run another program at once.
    pub inherited: bool,
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
        Ok(Processes { fs, tables: SharedTables::new(fs)?, own_pid: 0 })
    }

    fn platform(&self) -> &'static dyn Platform {
        self.fs.platform()
    }
}
