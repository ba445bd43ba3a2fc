//! DirectFS inside unmodified programs.
//!
//! A library that the loader puts into a program (`LD_PRELOAD`) replaces the instructions by which the C library and the loader make system
//! calls ([`hook`]). Where that is safe is found once for each build of those libraries by disassembling them ([`analysis`]), and kept in a table
//! ([`table`]) beside the library ([`cache`]). [`launch`] does all that and starts a program.
//!
//! Invariants:
//!
//! - A program either has all its libraries' calls in order, or does not start: never does it silently work on another file system.
//! - Programs, and what they start, behave as without the library but for files of ours.
//!
//! # How the library gets into the binary
//!
//! It is this crate without its default feature, in a package of its own (`preload`), which the build script builds and [`cache`] carries as bytes. *Rejected:*
//! the `directfs` binary as a library (the loader refuses position-independent programs, and each process would map and relocate all of it);
//! artifact dependencies (not in stable cargo); calling rustc by hand (the library needs the engine's crates, and cargo knows how to build them).
#![cfg_attr(not(feature = "launcher"), no_std)]

#[cfg(feature = "launcher")]
pub mod analysis;
#[cfg(feature = "launcher")]
pub mod cache;
#[cfg(feature = "launcher")]
pub mod elf;
pub mod handoff;
pub mod hook;
#[cfg(feature = "launcher")]
pub mod launch;
pub mod routes;
pub mod table;
#[cfg(feature = "launcher")]
pub mod trusted_directory;

/// Files with tables end so; the version of their layout is part of it.
pub const TABLE_ENDING: &str = ".sites-1";
