//! Inodes in memory, and dependency nodes: the work that system calls leave for the persisters.
//!
//! # What each node orders
//!
//! | node | left by | what must be durable before | the step | what comes after it is durable |
//! | --- | --- | --- | --- | --- |
//! | entry added | create, mkdir, symlink, link, rename | the directory's own name; the inode (with a link count that includes the name), a directory's buckets, a link's target, the entry, their bits in the allocation table; for a renamed directory: its earlier entry; for a replaced inode: its other pending names | the list's link leads to the entry (past the one that it replaces) | a renamed directory's inode refers to the entry; the replaced inode's link count falls |
//! | entry removed | unlink, rmdir, rename | the inode's other pending names, for a rename the new one; for a removed directory: its own nodes | the list's link leads past the entry | the link count falls; the entry is free, and the inode too if this was the last name |
//! | size changed | write, truncate | shrinking: the smaller size, then the removal of pointers. Growing: the data, new pointer pages and their bits, then the pointers | the size | blocks cut off are free |
//! | attributes changed | chmod, chown, utimes, and every change of times | for chown with chmod: first the permissions that both modes allow | the words | |
//!
//! Nodes of one inode are processed in order. A run of them shares its fences: every mixture of old
//! and new links in the list reaches all entries that the run does not remove. Nodes are numbered,
//! and a node waits only for smaller numbers, so there are no cycles.
//!
//! An added entry is *done* when it is durable and its directory has a durable name; a done name is
//! reachable. If no persister has taken a node, the call that removes the entry may cancel it,
//! unless another node waits for it. A node that waits for an entry also waits for the names of the
//! directories above.

use super::list::Buckets;
use crate::locks::lock;
use crate::substrate::Extents;
use engine::Attributes;
use engine::format::FileKind;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};

/// An inode that is in use, or has changes that are not in the consistent view.
#[derive(Debug)]
pub struct Inode {
    /// Offset of its lines.
    pub offset: u64,
    /// File type.
    pub kind: FileKind,
    /// What programs see, and the pending nodes.
    pub state: Mutex<State>,
    /// A regular file's content in the latest view.
    pub file: RwLock<FileState>,
    /// Held while this inode's changes move to the consistent view. A thread holds at most one of
    /// these locks.
    pub persisting: Mutex<()>,
    /// Content of its first line on the image. Locked before `state` where both are needed, and
    /// only for a few stores.
    pub line: Mutex<Line>,
}

/// The latest state.
#[derive(Debug)]
pub struct State {
    /// Attributes as of the last operation that changed any.
    pub attributes: Attributes,
    /// For a directory: its parent's inode.
    pub parent: u64,
    /// Pending nodes, oldest first.
    pub nodes: VecDeque<Node>,
    /// Whether there is a size node.
    pub size_noted: bool,
    /// Whether there is an attributes node.
    pub attributes_noted: bool,
    /// Whether it is on the dirty list.
    pub listed: bool,
    /// Whether a thread took its nodes and has not finished.
    pub busy: bool,
    /// Whether the VFS layer has it loaded.
    pub loaded: bool,
    /// Whether the VFS layer evicted it. It is freed when its last name is durably removed.
    pub evicted: bool,
    /// Whether it was freed.
    pub freed: bool,
    /// Unfinished nodes of directories that name it.
    pub naming_nodes: u32,
    /// Added entries that may not be durable, newest last.
    pub added: Vec<Added>,
    /// The latest buckets, while the VFS layer does not have it loaded.
    pub buckets: Buckets,
}

/// An entry that may not yet be in the consistent view.
#[derive(Debug, Clone)]
pub struct Added {
    /// The entry.
    pub entry: u64,
    /// Its progress.
    pub mark: Arc<AddMark>,
    /// Whether no node waits for it. Then the addition can be cancelled until a persister takes it.
    pub is_cancellable: bool,
}

/// Progress of an added entry, for waiters.
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
    /// The mark of a node that no persister has taken.
    pub fn new(directory: &Arc<Inode>, sequence: u64) -> Arc<AddMark> {
        Arc::new(AddMark { directory: Arc::downgrade(directory), sequence, step: AtomicU8::new(PENDING) })
    }

    /// Called by a persister: takes the node. Returns false if it was cancelled.
    pub fn take(&self) -> bool {
        self.step.compare_exchange(PENDING, TAKEN, AcqRel, Acquire).is_ok()
    }

    /// Called by a system call: cancels the node. Returns false if a persister has it.
    pub fn cancel(&self) -> bool {
        self.step.compare_exchange(PENDING, DONE, AcqRel, Acquire).is_ok()
    }

    /// Records that the entry is reachable after a crash.
    pub fn finish(&self) {
        self.step.store(DONE, Release);
    }

    /// Whether there is nothing left to wait for.
    pub fn is_done(&self) -> bool {
        self.step.load(Acquire) == DONE
    }
}

/// A change by a system call, in semantic terms.
#[derive(Debug)]
pub struct Node {
    /// Increases over the whole file system.
    pub sequence: u64,
    /// The change.
    pub change: Change,
}

/// Kinds of nodes.
#[derive(Debug)]
pub enum Change {
    /// An entry is in the directory's list.
    EntryAdded {
        /// The entry.
        entry: u64,
        /// Its bucket in the latest view.
        bucket: u32,
        /// The inode that it names.
        inode: Arc<Inode>,
        /// For waiters.
        mark: Arc<AddMark>,
        /// The entry that it replaced, and the inode which that named.
        replaced: Option<(u64, Arc<Inode>)>,
        /// Marks that must be done before: earlier entries of a renamed directory, other entries of
        /// a replaced inode.
        after: Vec<Arc<AddMark>>,
    },
    /// An entry was removed from the list.
    EntryRemoved {
        /// The entry.
        entry: u64,
        /// Its bucket in the latest view.
        bucket: u32,
        /// The inode that it named.
        inode: Arc<Inode>,
        /// The inode's other names that may not be durable. They must be done before.
        after: Vec<Arc<AddMark>>,
    },
    /// Content, block pointers or size changed.
    SizeChanged,
    /// Any other change.
    AttributesChanged,
}

/// Content of the inode's first line on the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Its link count.
    pub links: u32,
    /// Entries in the consistent view that name it. For directories this differs from the links.
    pub names: u32,
    /// Length of a file.
    pub size_bytes: u64,
    /// Whether the line was ever written.
    pub is_written: bool,
}

/// A file's content in the latest view, as far as it differs from the consistent block pointers.
#[derive(Debug, Default)]
pub struct FileState {
    /// The size. It is repeated here so that a persister gets consistent size and blocks.
    pub size_bytes: u64,
    /// Changes since a persister last took them.
    pub now: Overlay,
    /// Changes that a persister is moving to the consistent view.
    pub moving: Overlay,
    /// Reserved pages for pointers that the overlay will need, so that a persister never runs out
    /// of space.
    pub spare: Vec<u64>,
    /// The nodes of the pointer tree that these pages are for: level and index.
    pub planned: Planned,
}

/// Nodes of a pointer tree: level and index. A write has few.
pub type Planned = SmallVec<[(u32, u64); 2]>;

/// Block pointers that override those below.
#[derive(Debug, Default)]
pub struct Overlay {
    /// Where the file's blocks are.
    pub blocks: Extents,
    /// Lower layers are valid only up to this size: the smallest size since.
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

    /// The content of its first line on the image.
    pub fn line(&self) -> MutexGuard<'_, Line> {
        lock(&self.line)
    }

    /// Pins its pending names for a dependent node: they, and those of the directories above, can
    /// no longer be cancelled.
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

    /// Creates an inode.
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
    /// The pending names.
    pub fn names_to_come(&self) -> impl Iterator<Item = &Arc<AddMark>> {
        self.added.iter().map(|added| &added.mark).filter(|mark| !mark.is_done())
    }

    /// Makes all pending names uncancellable. Returns the directories of those that were
    /// cancellable.
    fn hold_names(&mut self) -> Vec<Arc<Inode>> {
        let free = self.added.iter_mut().filter(|added| added.is_cancellable);
        free.filter_map(|added| {
            added.is_cancellable = false;
            added.mark.directory.upgrade()
        })
        .collect()
    }

    /// Whether all of its changes are in the consistent view.
    pub fn is_settled(&self) -> bool {
        self.nodes.is_empty() && !self.busy && self.naming_nodes == 0
    }
}

/// The state that the VFS layer keeps for a file.
#[derive(Debug)]
pub struct Info {
    pub(super) inode: Arc<Inode>,
    /// A directory's latest buckets.
    pub(super) buckets: Buckets,
}
