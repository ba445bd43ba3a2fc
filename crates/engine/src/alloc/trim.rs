//! Free blocks for callers that give their memory back to the system.
//!
//! Invariant: a block is passed on only while its group is locked and its bit says free. So no
//! thread of any process can have it meanwhile, nothing on the image names it, and losing its
//! content equals a store by the thread that allocates it next. If the caller dies, the lock is
//! recovered as that of any thread.
//!
//! Each process that opened an image by its path has a thread that looks once a second. If it can
//! get 64 MiB, and free space did not shrink since the last look, it recycles the queues of shards
//! without a thread, and punches; `directfs trim` does so at once. An image that mkfs reserved is
//! not punched by itself, because a hole ends the reservation. Two kinds of files are punched on
//! request only: a working copy on disk, and the file of an image on a disk while it is unused and
//! clean, since its committed state could name a block that is free in the working copy.
//!
//! *Rejected:* punching in the call that frees (a kernel call per file, and page faults at the next
//! use), and when a process ends (a server never ends).

use super::blocks::FreeMap;
use crate::dram::GROUP_BLOCKS;
use crate::error::Result;
use crate::format::{ListPage, Snapshot};
use crate::fs::{Fs, Thread};
use core::sync::atomic::Ordering::Acquire;
use pmem::{BLOCK_BYTES, Memory, Pm};

impl<M: Memory> Fs<M> {
    /// Bytes of a group of blocks.
    pub const fn group_bytes() -> u64 {
        GROUP_BLOCKS * BLOCK_BYTES
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> Result<u64> {
        Ok(self.block_map().blocks_free()? * BLOCK_BYTES)
    }

    /// Passes the blocks of a clean image that its block map calls free, although the snapshot uses
    /// them: offsets.
    pub fn each_snapshot_page(&self, each: &mut dyn FnMut(u64)) -> Result<()> {
        let superblock = self.superblock()?;
        let figures = Snapshot::from_words(&core::array::from_fn(|index| superblock.snapshot[index].load()));
        let mut at = figures.list_page;
        for _ in 0..figures.list_pages.min(self.blocks()) {
            if at == 0 {
                break;
            }
            each(at);
            at = self.pm.get(Pm::<ListPage>::new(at))?.next.load();
        }
        Ok(())
    }
}

impl<M: Memory> Thread<'_, M> {
    /// Recycles what waits in this shard and in shards without a thread, as far as grace periods
    /// are over. Not pinned.
    pub fn recycle_idle_shards(&self) -> Result<()> {
        self.recycler().recycle(usize::MAX)?;
        self.recycler().for_idle_shards(|idle| idle.recycler().recycle(usize::MAX).map(drop))
    }

    /// Passes the runs of at least `least` free blocks of a group: offset and length in bytes.
    /// Returns `false` if a stopped thread holds the group.
    pub fn visit_free_runs(&self, group: u64, least: u64, each: &mut dyn FnMut(u64, u64)) -> Result<bool> {
        let state = self.fs.dram.group(group)?;
        if u64::from(state.free.load(Acquire)) < least.max(1) {
            return Ok(true);
        }
        let Some(_held) = self.lock_briefly(&state.lock, &state.waiters)? else { return Ok(false) };
        let map: FreeMap = self.fs.block_map().free_map(group)?;
        let mut at = map.next(0, true);
        while at < GROUP_BLOCKS {
            let end = map.next(at, false);
            if end - at >= least {
                // Before the blocks may become holes: a death leaves them to be provided again.
                self.fs.provider().forget_provided(state, (at, end - at));
                each((group * GROUP_BLOCKS + at) * BLOCK_BYTES, (end - at) * BLOCK_BYTES);
            }
            at = map.next(end, true);
        }
        Ok(true)
    }
}
