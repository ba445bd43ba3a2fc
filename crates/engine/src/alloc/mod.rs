//! Free space: blocks, dentry lines, inodes, cachelets. All of it is DRAM state that shards hold in
//! advance, so that allocations of different threads rarely meet.
//!
//! Invariants
//! - What is handed out was free for a whole grace period, and nothing on the image names it.
//! - The maps of free space are rebuilt by recovery, or loaded from the snapshot of a clean detach
//!   ([`snapshot`]).
//!
//! *Reason:* persistent maps would cost flushed lines for every create, and an order between map
//! and use.

mod blocks;
mod cachelets;
mod inodes;
mod lines;
pub(crate) mod snapshot;
#[cfg(test)]
mod tests;
mod trim;

pub(crate) use blocks::{BlockRun, OWNED_PERMANENTLY, owned_by_slot, spare_blocks};
pub(crate) use lines::{SLAB_FULL, SLAB_LISTED, line_mask};
