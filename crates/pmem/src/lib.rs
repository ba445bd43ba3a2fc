//! Memory regions in which every link is an offset, and the order in which stores to them become
//! persistent.
//!
//! A [`Region`] is a base address and a length. Its structures are reached by typed offsets
//! ([`Pm<T>`]), whose bounds and alignment are checked at every use: nothing in a region is
//! trusted. Fields are cells ([`Cell32`], [`Cell64`]), read and written as relaxed or
//! acquire/release atomics. The reasons: another process may access the same bytes, and compilers
//! may tear plain stores.
//!
//! # Order of persistence
//!
//! A store is first in the cache. It is *durable* once its line is flushed and a fence follows. A
//! word that makes other words count after a crash (a log slot, a valid word, a head) is a
//! [`Commit64`] and has no plain store. It may be stored for one of five reasons, and each demands
//! its evidence:
//!
//! | reason | evidence | call |
//! | --- | --- | --- |
//! | all that it refers to is durable | [`Durable`], from a fence | [`Region::commit`] |
//! | it names a record that certifies itself | [`Sealed`], from a flushed record | [`Region::commit`] |
//! | it is part of a record that certifies itself | a [`Checksummed`] record | [`Region::commit_record`] |
//! | no crash state reaches it | [`Unreachable`], from an allocation | [`Region::commit_unreachable`] |
//! | recovery stores it again | a [`Recomputed`] word | [`Region::commit_recomputed`] |
//!
//! In the last three the evidence leads to the word, so it cannot serve for another one. A store
//! that shows nothing needs no evidence ([`Region::retract`]).
//!
//! ```
//! # use pmem::*;
//! # #[repr(C, align(64))] struct Record { value: Cell64, head: Commit64, rest: [Cell64; 6] }
//! # unsafe impl Layout for Record {}
//! # fn example(pm: &Region, at: Pm<Record>) -> Result<(), BadOffset> {
//! let record = pm.get(at)?;
//! let dirty = pm.set64(&record.value, 7);
//! let flushed = pm.flush(dirty);
//! let durable = pm.fence(flushed);
//! let dirty = pm.commit(&record.head, 1, durable);
//! let _ = pm.persist(dirty);
//! # Ok(()) }
//! ```
//!
//! Without the fence it does not compile:
//!
//! ```compile_fail,E0277
//! # use pmem::*;
//! # fn example(pm: &Region, value: &Cell64, head: &Commit64) {
//! let flushed = pm.flush(pm.set64(value, 7));
//! let _ = pm.commit(head, 1, flushed);
//! # }
//! ```
//!
//! Nor without the flush:
//!
//! ```compile_fail,E0308
//! # use pmem::*;
//! # fn example(pm: &Region, value: &Cell64, head: &Commit64) {
//! let durable = pm.fence(pm.set64(value, 7));
//! # }
//! ```
#![cfg_attr(not(feature = "std"), no_std)]

mod cell;
mod checksum;
mod copy;
#[cfg(test)]
mod copy_tests;
mod flush;
mod loss;
mod memory;
mod processor;
mod region;
mod residency;
mod token;
mod tracking;
#[cfg(test)]
mod tracking_tests;
mod user_bytes;

#[cfg(feature = "std")]
mod backing;
#[cfg(feature = "std")]
mod crash;
#[cfg(feature = "std")]
mod dax;
#[cfg(feature = "std")]
mod delay;
#[cfg(feature = "std")]
mod guarded;
#[cfg(feature = "std")]
mod map;
#[cfg(feature = "std")]
mod recorder;
#[cfg(feature = "std")]
mod truncation;

#[cfg(feature = "std")]
pub use backing::{Backing, Medium, Persistence};
pub use cell::{Cell32, Cell64, Commit64, Layout, Pm};
pub use checksum::{crc32c, crc32c_words, flipped_bit};
pub use copy::{ContentLoad, LOAD_LOST, load_code};
#[cfg(feature = "std")]
pub use crash::{CrashImage, CrashState, Grain, InFlightLine, StateId, StateIdError, WordChange};
#[cfg(feature = "std")]
pub use dax::coarse_alignment_bytes;
#[cfg(feature = "std")]
pub use delay::{Delayed, Delays, Spin, Wait};
pub use flush::FlushKind;
pub use loss::{CONTENT_LOST, Loss, dax_units_around, expect_memory_errors, expects_memory_errors};
#[cfg(feature = "std")]
pub use map::{Access, MapError, MappedRegion, Mapping, length_bytes};
pub use memory::{Direct, Memory};
pub use processor::{adopt_features, features};
#[cfg(feature = "std")]
pub use recorder::{Bytes, Event, Recorded, Recorder};
pub use region::{BadOffset, Region, prefetch_for_write};
pub use residency::{LoadError, ReadAt, Residency};
pub use token::{
    Allocation, Checksummed, Dirty, Durable, Flushed, FlushedRecord, Proof, Recomputed, Sealed, Unreachable,
};
pub use tracking::{MarkedPage, RaisedCut, Sleeping, Tracking, TrackingHeader, WAIT_CLASSES};
#[cfg(feature = "std")]
pub use truncation::{any_content_lost, any_loss, forget_kept_mappings, survive_truncations};
pub use user_bytes::{UserBytes, UserBytesMut};

/// Advice to madvise: huge pages at once. Linux 6.1; the crate libc lacks it for musl.
pub const MADV_COLLAPSE: i32 = 25;
/// Bytes of a cache line: the unit of flushes, and the alignment of every structure in an image.
pub const LINE_BYTES: u64 = 64;
/// Bytes of a block: the unit of allocation and of program mappings.
pub const BLOCK_BYTES: u64 = 4096;
