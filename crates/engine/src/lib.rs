//! The DirectFS engine: a file system by inode number on two memory regions.
//!
//! The *PM region* is the image and the source of truth ([`mod@format`]). The *DRAM region* holds
//! indexes and caches and can be discarded at any time ([`dram`]). Every link in them is an offset
//! or an index, so any number of processes can use them at once, each with its own base addresses
//! in an [`Fs`]. A thread that enters claims a slot and gets a [`Thread`], whose methods are all
//! operations.
//!
//! Not included: paths, permissions and file descriptors (the layer above), and the transport of
//! calls.
//!
//! # Durability
//! When a call that changes names or attributes returns, its effect is persistent and atomic. A
//! write is atomic as a whole and persistent when the call returns. What persistence means depends
//! on the memory behind the PM region.
#![no_std]
#[cfg(test)]
extern crate std;

mod ablation;
mod ablation_options;
mod alloc;
mod attach;
mod attributes;
mod backoff;
mod cache;
mod components;
mod death;
mod directory;
pub mod dram;
mod epoch;
mod error;
mod file;
mod file_flags;
pub mod format;
mod free_list;
mod fs;
mod liveness;
mod lock;
mod mindex;
mod platform;
mod process_numbers;
mod property;
mod provide;
mod reap;
#[cfg(test)]
mod reap_storm_tests;
#[cfg(test)]
mod reap_tests;
mod recycle;
mod redo;
mod regions;
#[cfg(test)]
mod schedule_tests;
mod size;
mod slot_owner;
mod spill;
pub mod statistics;
mod sync;
#[cfg(test)]
mod testing;
pub mod text;
mod times;

pub use ablation_options::{Ablation, LogLocks, Tree};
pub use attach::{
    AttachOptions, BlockUses, DESCRIPTION_BYTES, DescriptionChange, Growth, GrowthRefusal, ImageIdentity, ImageSize,
    MkfsOptions, Recovery, RecoveryReport, SNAPSHOT_FIGURES, changed_superblock, directory_secret, image_size,
    load_metadata, mkfs, mkfs_with_holes, set_identity, superblock_with,
};
pub use attributes::{Attributes, CacheReport, Changes, Protection, SpaceReport};
pub use components::{
    Allocator, BlockMap, Files, ImageRecovery, Maintenance, NameIndex, Provider, Reaper, Recycler, Renames,
};
pub use directory::{
    DirectoryEntry, DirectoryHint, NameLocation, NewNode, RenameFlags, ValidationStamp, Visit, VisitedFile,
};
pub use error::{Corruption, Error, Result};
pub use file::{
    AllocateMode, BLOCK_SHARED, BLOCK_UNWRITTEN, BodyPart, Extent, MapMode, SeekWhat, inline_extent_of_root, visit_body,
};
pub use file_flags::FileFlags;
pub use fs::{Fs, Node, Thread};
pub use liveness::Liveness;
pub use lock::{CommitGuard, LockGuard};
pub use platform::{Platform, Reporter};
pub use process_numbers::Processes;
pub use regions::Regions;
pub use slot_owner::SlotOwner;
