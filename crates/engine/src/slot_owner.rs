//! The owner of a thread slot: what the components of a thread share, and all that they know of it.
//!
//! It takes locks (`lock`), changes several words as one (`redo`), pins the reclamation epoch
//! (`epoch`), and says for which owner, and leaving which reserve, blocks are allocated. Calls on
//! names and directories are methods of [`Thread`], and out of reach of its components.
//!
//! [`Thread`]: crate::Thread

use crate::alloc::owned_by_slot;
use crate::dram::{Cachelet, ThreadSlot};
use crate::error::{Error, Result};
use crate::fs::{Fs, Node};
use crate::platform::Reporter;
use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use pmem::{Direct, Memory};

/// See the module.
pub struct SlotOwner<'f, M: Memory = Direct> {
    pub(crate) fs: &'f Fs<M>,
    pub(crate) index: u32,
    pub(crate) slot: &'f ThreadSlot,
    /// The owner word for blocks that the thread allocates; zero: this slot. The cell also keeps
    /// the type from being `Sync`, because a slot has one writer.
    block_owner: Cell<u64>,
    /// Whether the thread acts for a user that may not take the last blocks.
    leaves_reserve: Cell<bool>,
    /// Whether the thread makes a change that may take space for long.
    leaves_spare: Cell<bool>,
    /// See [`SlotOwner::act_for`].
    requester: Cell<u32>,
}

impl<'f, M: Memory> SlotOwner<'f, M> {
    pub(crate) fn new(fs: &'f Fs<M>, index: u32) -> Result<SlotOwner<'f, M>> {
        Ok(SlotOwner {
            fs,
            index,
            slot: fs.dram.slot(index)?,
            block_owner: Cell::new(0),
            leaves_reserve: Cell::new(false),
            leaves_spare: Cell::new(false),
            requester: Cell::new(0),
        })
    }

    /// The file system.
    pub fn fs(&self) -> &'f Fs<M> {
        self.fs
    }

    /// The index of this thread's slot: unique among the threads inside.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// This thread's slot as it stands in lock words: index + 1.
    pub(crate) fn ticket(&self) -> u32 {
        self.index + 1
    }

    /// Whether the thread acts for a user that leaves the blocks that are reserved for root. At
    /// first it does not: the engine's own work needs them.
    #[inline(always)]
    pub fn set_leaves_reserve(&self, leaves: impl FnOnce() -> bool) {
        if self.fs.reserved_blocks != 0 {
            self.leaves_reserve.set(leaves());
        }
    }

    #[inline]
    pub(crate) fn leaves_reserve(&self) -> bool {
        self.leaves_reserve.get()
    }

    /// Runs a change that may take space for long: it leaves the spare blocks. At first a thread
    /// does not, and so a full image can be cleared up.
    pub(crate) fn leaving_spare<R>(&self, change: impl FnOnce() -> R) -> R {
        let before = self.leaves_spare.replace(true);
        let result = change();
        self.leaves_spare.set(before);
        result
    }

    /// Runs an operation, and once more if it found no space but recycling freed some. Not pinned.
    pub(crate) fn retry_after_recycling<R>(&self, operation: impl Fn() -> Result<R>) -> Result<R> {
        self.recycler().make_room()?;
        match operation() {
            Err(Error::NoSpace | Error::NoInodes) if self.recycler().reclaim_space()? => operation(),
            result => result,
        }
    }

    /// The spare blocks that the thread must leave.
    #[inline]
    pub(crate) fn spare_left(&self) -> u64 {
        if self.leaves_spare.get() { self.fs.spare_blocks } else { 0 }
    }

    /// The thread acts for a thread of another process with this number, which events name as the
    /// one that makes a change. Zero: for itself.
    pub fn act_for(&self, requester: u32) {
        self.requester.set(requester);
    }

    /// What the layer above needs to report a change that the thread makes.
    pub fn reporter(&self) -> Reporter<'f> {
        let lock_file = self.fs.liveness.description.load(Relaxed);
        Reporter { dram: &self.fs.dram, platform: self.fs.platform, lock_file, requester: self.requester.get() }
    }

    /// The owner word for blocks that are allocated now.
    pub(crate) fn block_owner(&self) -> u64 {
        match self.block_owner.get() {
            0 => owned_by_slot(self.ticket()),
            owner => owner,
        }
    }

    /// Runs `work`, which allocates blocks for `owner`.
    pub(crate) fn as_owner<R>(&self, owner: u64, work: impl FnOnce() -> R) -> R {
        let before = self.block_owner.replace(owner);
        let result = work();
        self.block_owner.set(before);
        result
    }

    /// The cachelet of a node.
    pub(crate) fn cachelet(&self, node: Node) -> Result<&'f Cachelet> {
        self.fs.dram.cachelet(node.cachelet)
    }
}
