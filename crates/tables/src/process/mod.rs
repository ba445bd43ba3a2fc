//! State that the processes of one image share about open files, so that unmodified programs can
//! run the file system in process. It consists of descriptor tables, open file descriptions,
//! working directories, mappings, locks and fd tokens.
//!
//! All of it lies in the `upper` area of the DRAM region. A [`Processes`] is a view of that area, a
//! [`Process`] one slot in it. The kernel assigns descriptor numbers; this layer maps them to
//! descriptions.
//!
//! # References and death
//! A process may be killed at any instruction, and all that it held must be reclaimed. So a process
//! holds nothing by a count alone: every reference is an entry in its slot (descriptor, working
//! directory, mapping, in-flight reference). Every change of an entry is a transaction with an
//! *intent*, written to the slot step by step, from which another process completes it or rolls it
//! back. In the engine this layer holds a file by a mark (`Thread::set_held`), not a count, so
//! setting it is idempotent.
//!
//! # Callers
//! Methods that may release a file take the engine's [`Thread`]. The calls of one process may come
//! from several of its threads after [`Process::set_threads`]. A signal handler must not call this
//! layer while the interrupted thread is inside: the VFS layer defers it.

mod descriptors;
mod fd_passing;
mod leases;
mod life;
mod lists;
mod locks;
mod mappings;
mod observe;
mod programs;
mod recovery;
mod shared_tables;
mod table_transaction;
mod usage;

pub use leases::{LeaseFileName, break_leases, leases_of, try_break_leases};
pub use observe::{ObservedDescriptor, ObservedLock, ObservedProcess, ObservedWait};
pub use programs::Program;
pub use shared_tables::prefetch_record;
pub use usage::Usage;

use crate::errno::Result;
use crate::open_file::OpenFile;
use engine::{Fs, Node, Platform, Thread};
use pmem::{Direct, Memory};
use shared_tables::{SharedTables, Slot};

/// Maximal number of descriptors of a process.
pub const DESCRIPTORS_MAX: u32 = 1 << 20;

/// The processes of a file system: a view of the shared tables. Cheap to make and to copy.
pub struct Processes<'f, M: Memory = Direct> {
    fs: &'f Fs<M>,
    tables: SharedTables<'f>,
    /// Ticket of the process that uses this view; zero: not registered.
    own_ticket: u32,
}

/// A process that uses the file system: a slot in the tables. All threads of the process may use
/// it.
///
/// A copy of the value denotes the same process. The slot ends with [`Process::exit`], or when the
/// process dies.
pub struct Process<'f, M: Memory = Direct> {
    processes: Processes<'f, M>,
    index: u32,
    /// The process number in the slot.
    number: u32,
    slot: &'f Slot,
    table_index: u32,
    /// The slot whose descriptor table it uses: its own, except with CLONE_FILES.
    table: &'f Slot,
    /// The slot of the thread that owns this copy: see [`Process::for_thread`].
    member: Option<(u32, &'f Slot)>,
}

/// The process number of a child that does not exist yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildNumber {
    /// The number.
    pub number: u32,
    /// The descriptor that holds its liveness lock; the parent closes it once the child exists.
    /// `None`: the number is the parent's, or the region is not shared.
    pub description: Option<i32>,
}

/// How a child is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fork {
    /// The process number taken for it. Zero: it takes one itself, and has the parent's until it
    /// adopts its slot.
    pub number: u32,
    /// It runs in the parent's memory (CLONE_VM without CLONE_THREAD: vfork, posix_spawn), so the
    /// mappings stay the parent's.
    pub shares_memory: bool,
    /// It uses the parent's descriptor table (CLONE_FILES without CLONE_THREAD).
    pub shares_files: bool,
}

/// Properties of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Number of the open file description: the same, in all processes, for descriptors that share
    /// it.
    pub file: u32,
    /// Whether exec closes it.
    pub cloexec: bool,
}

/// An open file description in use by a call. It stays valid until this is dropped, even if another
/// thread closes the descriptor. It may be kept for the duration of a short call, but not while
/// waiting for a lock (see [`Process::wait_for_lock`]).
pub struct InFlightFile<'u, 'f, M: Memory = Direct> {
    process: &'u Process<'f, M>,
    thread: &'u Thread<'f, M>,
    file: &'f OpenFile,
    index: u32,
    /// Which in-flight reference of the table.
    which: u32,
}

/// The owner of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockOwner {
    /// A process (fcntl F_SETLK): the slot of its descriptor table, which is [`Process::index`]
    /// except with CLONE_FILES.
    Process(u32),
    /// An open file description (flock, F_OFD_SETLK): its number, [`Descriptor::file`].
    Description(u32),
    /// An owner that another VFS layer knows by its own number (the lock owner of a FUSE request).
    /// The VFS layer releases the locks; so does its death.
    Foreign {
        /// Slot of the VFS layer's process.
        mount: u32,
        /// The VFS layer's number.
        number: u32,
    },
}

/// What a lock admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Other shared locks.
    Shared,
    /// No other lock.
    Exclusive,
}

/// The bytes `start..=last`; `last` is `i64::MAX` for a lock that extends to the end of the file,
/// however far that moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub last: u64,
}

/// A conflicting lock (F_GETLK).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    /// Its kind.
    pub kind: LockKind,
    /// Its bytes.
    pub range: LockRange,
    /// Its owner.
    pub owner: LockOwner,
    /// As F_GETLK reports it: the process, or -1 for a lock of a description.
    pub pid: i32,
}

/// Result of an attempt to lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locked {
    /// The lock is held (or released, if that was requested).
    Done,
    /// Another lock conflicts. A nonblocking call attempts again if [`Process::reap_blocker`] found
    /// its owner dead, and otherwise returns EAGAIN; a blocking one uses
    /// [`Process::wait_for_lock`].
    Blocked(Blocked),
}

/// State of a blocked attempt, for [`Process::wait_for_lock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocked {
    node: Node,
    version: u32,
    blocker: LockOwner,
}

impl Blocked {
    /// The owner of a lock that conflicts.
    pub fn blocker(&self) -> LockOwner {
        self.blocker
    }
}

/// A descriptor in transit: the key by which the receiving process finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FdToken {
    /// Index in the table, below [`FD_TOKENS_MAX`].
    pub index: u32,
    /// A random number that cannot be guessed.
    pub secret: u64,
}

/// Maximal number of descriptors in transit.
pub const FD_TOKENS_MAX: u32 = 4096;

/// An address range of a process that maps a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMapping {
    /// First address; page-aligned.
    pub address: u64,
    /// Bytes; whole pages.
    pub length: u64,
    /// Offset in the file.
    pub offset: u64,
    /// The file. The record holds a reference to it.
    pub node: Node,
    /// MAP_SHARED.
    pub shared: bool,
    /// Stores reach the file: shared, and opened for writing (so mprotect may make it writable).
    pub writable: bool,
    /// mmap or mprotect permitted stores, so there may have been some.
    pub stores: bool,
    /// What mmap or mprotect permitted last: PROT_READ, PROT_WRITE, PROT_EXEC.
    pub protection: u8,
    /// A copy of the parent's. The process that made the mapping updates the file's times when it
    /// ends: most children store nothing and run another program at once.
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
        Ok(Processes { fs, tables: SharedTables::new(fs)?, own_ticket: 0 })
    }

    fn platform(&self) -> &'static dyn Platform {
        self.fs.platform()
    }
}
