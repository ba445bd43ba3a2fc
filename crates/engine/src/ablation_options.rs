//! Which parts of the engine a measurement replaces or leaves out. `ablation` applies it.

use crate::error::{Error, Result};
use core::marker::PhantomData;
use pmem::Memory;

/// The ablations of a file system. None by default.
#[derive(Clone, Copy, Default)]
pub struct Ablation {
    /// Ignores the targets of index entries: the inode is found by its number, and the cachelet
    /// through the inode.
    pub without_quick_path: bool,
    /// A structure in place of the hash table.
    pub tree: Option<&'static dyn Tree>,
    /// Locks around appends to directory logs.
    pub logs: Option<&'static dyn LogLocks>,
    /// Algorithm 1 and III-E to III-G as printed: a name is in the index, unreadable, until two
    /// fences have made it durable; the tail of a log is persisted; chmod takes no lock; removals
    /// leave their garbage to [`Thread::collect_garbage`](crate::Thread::collect_garbage).
    pub as_printed: bool,
}

/// The ablations of a file system in memory `M`. Its methods are all that the engine sees of them;
/// where memory is not instrumented they are constants.
pub(crate) struct Ablated<M> {
    ablation: Ablation,
    memory: PhantomData<fn() -> M>,
}

impl<M: Memory> Ablated<M> {
    /// No ablation.
    pub(crate) fn none() -> Ablated<M> {
        Ablated { ablation: Ablation::default(), memory: PhantomData }
    }

    /// The given ablations. Does not compile for memory that is not instrumented.
    pub(crate) fn by(ablation: Ablation) -> Ablated<M> {
        const { assert!(M::WATCHED, "the ablation would have no effect") };
        Ablated { ablation, memory: PhantomData }
    }

    /// Whether the targets of index entries are used: the inode quick path.
    #[inline(always)]
    pub(crate) fn uses_targets(&self) -> bool {
        !M::WATCHED || !self.ablation.without_quick_path
    }

    /// Whether steps follow the paper where the engine has others.
    #[inline(always)]
    pub(crate) fn is_as_printed(&self) -> bool {
        M::WATCHED && self.ablation.as_printed
    }

    /// The structure in place of the hash table, if any.
    #[inline(always)]
    pub(crate) fn tree(&self) -> Option<&'static dyn Tree> {
        if M::WATCHED { self.ablation.tree } else { None }
    }

    /// The locks of directories' logs, if any.
    #[inline(always)]
    pub(crate) fn logs(&self) -> Option<&'static dyn LogLocks> {
        if M::WATCHED { self.ablation.logs } else { None }
    }

    /// Fails in reapers if the mindex is not the hash table, which is all they know.
    #[inline(always)]
    pub(crate) fn check_reapable(&self) -> Result<()> {
        if self.tree().is_some() { Err(Error::NotSupported) } else { Ok(()) }
    }
}

/// A structure that leads from hashes to buckets.
pub trait Tree: Sync {
    /// Starts a new DRAM region without names. Returns the end of the range of bucket numbers that
    /// it may use.
    fn begin(&self) -> u64;
    /// For lookups: the bucket of a hash; if there is none, one that has never had an entry.
    fn bucket(&self, hash: u64) -> u64;
    /// For changes of names: the bucket whose lock guards the names of a hash.
    fn guard(&self, hash: u64) -> u64;
    /// The bucket of a hash, made if it is missing. Its guard is held.
    fn make(&self, hash: u64) -> u64;
}

/// Locks of directories' logs.
pub trait LogLocks: Sync {
    /// Takes the locks of these directories (by number; both may be the same) for the calling
    /// thread, which holds none.
    fn lock(&self, directories: [u64; 2]);
    /// Releases all locks that the calling thread holds, if any.
    fn unlock(&self);
}
