//! The lab: working implementations of the file systems that DirectFS is compared with.
//!
//! A system is a [`vfs`] (the VFS layer) over a [`physical`] file system, like a kernel's VFS
//! over a file system:
//!
//! ```text
//!   Calls by path            calls::Calls         one experiment runs over all
//!   path walk, caches,       vfs::{Conventional, ByVfs, Cachelet}
//!   locks, open files
//!   inodes, names, data      physical::PhysicalFs implemented by nova::Nova, pmfs::Pmfs,
//!                            soupfs::SoupFs, squirrelfs::SquirrelFs
//!   image, free blocks       substrate            on pmem's Region: flushes, fences, delays,
//!                                                 recorder
//! ```
//!
//! Each physical file system has its own image format and magic. It supports mkfs, mount, crash and
//! recovery. Unlike DirectFS, these systems serve one process: their caches are in its heap.
//!
//! Each system is implemented as well as its paper allows. Where Linux is the model (locks,
//! caches), the code does what Linux does, including its lock-free path walk.

pub mod ablation;
pub mod calls;
pub mod crash;
pub mod directfs;
pub mod error;
pub mod experiments;
pub mod host;
pub mod inode;
mod locks;
pub mod mount;
pub mod multicore;
pub mod nova;
pub mod physical;
pub mod pmfs;
pub mod soupfs;
pub mod squirrelfs;
pub mod substrate;
pub mod vfs;
pub mod virtual_time;
pub mod ycsb;

pub use error::{Error, Result};
