//! The thin commands: each turns arguments into one library call and prints its result.

pub mod completions;
pub mod dump;
pub mod fsck;
pub mod info;
pub mod manual;
pub mod mkfs;
pub mod mount;
mod mount_replica;
pub mod replicate;
pub mod resize;
pub mod snapshot;
pub mod stores;
pub mod transfer;
pub mod trim;
pub mod umount;
