//! Inodes in memory, and dependency nodes: what system calls leave for the persisters.
//!
//! # What each node orders
//!
//! | node | left by | what must be durable before | the step | what comes after it is durable |
//! | --- | --- | --- | --- | --- |
//! | entry added | create, mkdir, symlink, link, rename | the directory's own name; the inode (with a link count that counts the name), a directory's buckets, a link's target, the entry, their bits in the allocation table; of a directory that is renamed: its earlier entry; of an inode that is replaced: its other names that are on their way | the list's link leads to the entry (past the one that it replaces) | a renamed directory's inode names the entry; the replaced inode's link count falls |
//! | entry removed | unlink, rmdir, rename | the inode's other names that are on their way, of a rename the new one; of a removed directory: its own nodes | the list's link leads past the entry | the link count falls; the entry is free, the inode if it was the last |
//! | size changed | write, truncate | shrinking: the smaller size, then the pointers' removal. Growing: the data, new pointer pages and their bits, then the pointers | the size | blocks cut off are free |
//! | attributes changed | chmod, chown, utimes, and every change of times | of chown with chmod: first the permissions that both allow | the words | |
//!
//! Nodes of one inode are handled in order; a run of them shares its fences, since each leaves a list in which whatever was not removed is reachable. A node is
//! numbered, and waits for nodes of smaller numbers only, so no two wait for each other.
//!
//! An added entry is *done* when it is durable and its directory has a durable name, so a name that is done can be reached. A node that nobody took may be taken back by the
//! call that removes the entry again, unless something waits for it; and what waits for an entry waits for the names of the directories above.

use super::chain::Buckets;
use crate::locks::lock;
use engine::Attributes;
use engine::format::FileKind;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};

/// An inode that is in use, or has changes that are not in the consistent view.
#[derive(Debug)]
pub struct Inode {
    /// Offset of its lines.
    pub offset: u64,
    /// Kind of file.
    pub kind: FileKind,
    /// What programs see, and what is to be done about it.
    pub state: Mutex<State>,
    /// A regular file's content in the latest view.
    pub file: RwLock<FileState>,
    /// Held by who moves this inode's changes to the consistent view. Nobody who holds one waits for another's.
    pub persisting: Mutex<()>,
    /// What its first line on the image holds. Taken before `state` where both are needed, and for the time of a few stores.
    pub line: Mutex<Line>,
}

/// The latest state.
#[derive(Debug)]
pub struct State {
    /// Attributes as of the last operation that changed any.
    pub attributes: Attributes,
    /// Of a directory, its parent's inode.
    pub parent: u64,
    /// What is to be done, oldest first.
    pub nodes: VecDeque<Node>,
    /// There is a size node.
    pub size_noted: bool,
    /// There is an attributes node.
    pub attributes_noted: bool,
    /// It is on the dirty list.
    pub listed: bool,
    /// Somebody took its nodes and has not finished.
    pub busy: bool,
    /// The front has it loaded.
    pub loaded: bool,
    /// The front gave it up for good: to be freed when its last name is durably gone.
    pub evicted: bool,
    /// It was freed.
    pub freed: bool,
    /// Nodes of directories that name it, and that nobody has finished.
    pub naming_nodes: u32,
    /// Entries that were added for it and may not be durable, the last one last.
    pub added: Vec<Added>,
    /// What the front's part was, while it is not loaded.
    pub buckets: Buckets,
}

/// An entry that may not yet be in the consistent view.
#[derive(Debug, Clone)]
pub struct Added {
    /// The entry.
    pub entry: u64,
    /// How far it is.
    pub mark: Arc<AddMark>,
    /// Nothing waits for it: if no persister has seen it, it may be taken back.
    pub is_cancellable: bool,
}

/// How far an added entry is. Whoever needs it durable waits for this.
#[derive(Debug)]
pub struct AddMark {
    /// The directory that has the node.
    pub directory: Weak<Inode>,
    /// The node's number.
    pub sequence: u64,
    step: AtomicU8,
}

const PENDING: u8 = 0;
const TAKEN: u8 = 1;
const DONE: u8 = 2;

impl AddMark {
    /// A node that nobody has taken.
    pub fn new(directory: &Arc<Inode>, sequence: u64) -> Arc<AddMark> {
        Arc::new(AddMark { directory: Arc::downgrade(directory), sequence, step: AtomicU8::new(PENDING) })
    }

    /// A persister takes the node, unless it was cancelled.
    pub fn take(&self) -> bool {
        self.step.compare_exchange(PENDING, TAKEN, AcqRel, Acquire).is_ok()
    }

    /// A system call takes it back; false if a persister has it.
    pub fn cancel(&self) -> bool {
        self.step.compare_exchange(PENDING, DONE, AcqRel, Acquire).is_ok()
    }

    /// The entry can be reached after a crash.
    pub fn finish(&self) {
        self.step.store(DONE, Release);
    }

    /// Whether there is nothing to wait for any more.
    pub fn is_done(&self) -> bool {
        self.step.load(Acquire) == DONE
    }
}

/// What a system call changed, by meaning.
#[derive(Debug)]
pub struct Node {
    /// Grows with time, over the whole file system.
    pub sequence: u64,
    /// What it was.
    pub change: Change,
}

/// Kinds of nodes.
#[derive(Debug)]
pub enum Change {
    /// An entry is in the directory's list.
    EntryAdded {
        /// The entry.
        entry: u64,
        /// The latest view's bucket that it is in.
        bucket: u32,
        /// What it names.
        inode: Arc<Inode>,
        /// For others to wait for.
        mark: Arc<AddMark>,
        /// The entry whose place it took, and what that named.
        replaced: Option<(u64, Arc<Inode>)>,
        /// To be durable before: earlier entries of a directory that was renamed, other entries of an inode that is replaced.
        after: Vec<Arc<AddMark>>,
    },
    /// An entry is no longer in the list.
    EntryRemoved {
        /// The entry.
        entry: u64,
        /// The latest view's bucket that it was in.
        bucket: u32,
        /// What it named.
        inode: Arc<Inode>,
        /// The other names that it was given and that may not be durable: they have to be before.
        after: Vec<Arc<AddMark>>,
    },
    /// Content, block pointers or size.
    SizeChanged,
    /// Anything else.
    AttributesChanged,
}

/// What the inode's first line holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Its link count.
    pub links: u32,
    /// Entries in the consistent view that name it; a directory's count separately from its links.
    pub names: u32,
    /// Length of a file.
    pub size_bytes: u64,
    /// Whether the line was ever written.
    pub is_written: bool,
}

/// A file's content in the latest view: what differs from the consistent block pointers.
#[derive(Debug, Default)]
pub struct FileState {
    /// The size. Kept here too, so that a persister takes size and blocks of one moment.
    pub size_bytes: u64,
    /// Since a persister last came.
    pub now: Overlay,
    /// What a persister is moving to the consistent view.
    pub moving: Overlay,
    /// Ranges of the image that were written and not flushed.
    pub unflushed: Vec<(u64, u64)>,
    /// Pages for pointers that the overlay will need, so that a persister never runs out of space.
    pub spare: Vec<u64>,
    /// The nodes of the pointer tree that these are for: level and number.
    pub planned: BTreeSet<(u32, u64)>,
}

/// Block pointers that hold instead of those below.
#[derive(Debug, Default)]
pub struct Overlay {
    /// Pages by block number.
    pub blocks: BTreeMap<u64, u64>,
    /// What lies below counts only up to this size: the smallest that the file had.
    pub cut_bytes: Option<u64>,
}

impl Inode {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.offset / pmem::LINE_BYTES
    }

    /// The latest state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// What is on the image.
    pub fn line(&self) -> MutexGuard<'_, Line> {
        lock(&self.line)
    }

    /// Somebody depends on its names that are on their way: from now on they, and those of the directories above, cannot be taken back.
    pub fn hold_names(&self) {
        let mut above = self.state().hold_names();
        while let Some(directory) = above.pop() {
            above.extend(directory.state().hold_names());
        }
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// A new one.
    pub fn new(attributes: Attributes, parent: u64, line: Line) -> Arc<Inode> {
        Arc::new(Inode {
            offset: attributes.number * pmem::LINE_BYTES,
            kind: attributes.kind,
            state: Mutex::new(State {
                attributes,
                parent,
                nodes: VecDeque::new(),
                size_noted: false,
                attributes_noted: false,
                listed: false,
                busy: false,
                loaded: true,
                evicted: false,
                freed: false,
                naming_nodes: 0,
                added: Vec::new(),
                buckets: Buckets::default(),
            }),
            file: RwLock::new(FileState { size_bytes: attributes.size_bytes, ..FileState::default() }),
            persisting: Mutex::default(),
            line: Mutex::new(line),
        })
    }
}

impl State {
    /// The names that are on their way.
    pub fn names_to_come(&self) -> impl Iterator<Item = &Arc<AddMark>> {
        self.added.iter().map(|added| &added.mark).filter(|mark| !mark.is_done())
    }

    /// Lets none of the names that are on their way be taken back; the directories of those for which this is new.
    fn hold_names(&mut self) -> Vec<Arc<Inode>> {
        let free = self.added.iter_mut().filter(|added| added.is_cancellable);
        free.filter_map(|added| {
            added.is_cancellable = false;
            added.mark.directory.upgrade()
        })
        .collect()
    }

    /// Whether everything about it is in the consistent view.
    pub fn is_settled(&self) -> bool {
        self.nodes.is_empty() && !self.busy && self.naming_nodes == 0
    }
}

/// What the front keeps for a file.
#[derive(Debug)]
pub struct Info {
    pub(super) inode: Arc<Inode>,
    /// A directory's latest buckets.
    pub(super) buckets: Buckets,
}
