//! The lab: the file systems that DirectFS is compared with, for real.
//!
//! A system is a [`front`] over a [`physical`] file system, as in a kernel a VFS is over a file system:
//!
//! ```text
//!   Calls by path            calls::Calls         one experiment runs over all
//!   path walk, caches,       front::{Conventional, ByVfs, Cachelet}
//!   locks, open files
//!   inodes, names, data      physical::PhysicalFs implemented by nova::Nova, pmfs::Pmfs, soupfs::SoupFs
//!   image, free blocks       substrate            on pmem's Region: flushes, fences, delays, recorder
//! ```
//!
//! Each physical file system has its own image format with its own magic, is made by `mkfs`, mounted, crashed and recovered.
//! Unlike DirectFS these are systems of one process: their caches are in its heap.
//!
//! Everybody is written as well as its paper allows. Where Linux is the model (locks, caches), what is here does what Linux
//! does, including its lock-free path walk.

pub mod ablation;
pub mod calls;
pub mod crash;
pub mod directfs;
pub mod error;
pub mod experiments;
pub mod front;
pub mod inode;
mod locks;
pub mod mount;
pub mod multicore;
pub mod nova;
pub mod physical;
pub mod pmfs;
pub mod soupfs;
pub mod substrate;

pub use error::{Error, Result};
