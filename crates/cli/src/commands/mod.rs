//! The commands that are thin: each turns arguments into one call of a library and its answer into words.

pub mod dump;
pub mod fsck;
pub mod info;
pub mod lab;
pub mod mkfs;
pub mod mount;
pub mod shell;
pub mod umount;
