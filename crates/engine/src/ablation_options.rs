//! Which parts of the engine a measurement replaces or leaves out. `ablation` applies it.

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
