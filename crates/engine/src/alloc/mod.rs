//! What is free: blocks, dentry lines, inodes, cachelets. All of it is DRAM state, held by shards in advance, so that allocation meets nobody.
//!
//! Invariants
//! - What is handed out was free for a whole grace period, and on the image nothing names it.
//! - The maps of free things are rebuilt by recovery, or loaded from what a clean detach left ([`snapshot`]).

mod blocks;
mod cachelets;
mod inodes;
mod lines;
pub(crate) mod snapshot;
#[cfg(test)]
mod tests;

pub(crate) use blocks::{BlockRun, OWNED_FOR_GOOD, owned_by_slot};
pub(crate) use lines::{SLAB_FULL, SLAB_LISTED, line_mask};
