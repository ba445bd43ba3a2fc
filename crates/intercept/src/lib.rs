//! DirectFS inside unmodified programs.
//!
//! A library that the loader puts into a program (`LD_PRELOAD`) replaces the instructions by which
//! the C library and the loader make system calls ([`hook`]). Disassembly finds the safe places
//! once for each build of those libraries ([`analysis`]), and a table ([`table`]) beside the
//! library ([`cache`]) stores them. [`launch`] does all that and starts a program.
//!
//! Invariants:
//!
//! - In a program either all calls of its C library and loader are intercepted, or the program does
//!   not start: it never silently works on another file system.
//! - Programs, and programs that they start, behave as without the library, except for files of the
//!   image.
//!
//! # How the library gets into the binary
//!
//! It is this crate without its default feature, in its own package (`preload`), which the build
//! script builds and [`cache`] embeds as bytes. With the feature `loader` it becomes a program that
//! loads others (`hook::loading::program_loader`). *Rejected:* the `directfs` binary as a library
//! (the loader refuses position-independent programs, and each process would map and relocate all
//! of it); artifact dependencies (not in stable cargo); direct calls of rustc (the library needs
//! the engine's crates, and cargo can build them).
//!
//! Decision: docs/decisions/foundations.md, "A library in user space".
#![cfg_attr(not(feature = "launcher"), no_std)]

#[cfg(feature = "launcher")]
pub mod analysis;
#[cfg(feature = "launcher")]
pub mod cache;
pub mod calls;
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

/// What follows the library's name in that of the program that loads others.
pub const LOADER_ENDING: &str = "-loader";
/// File name suffix of tables; it includes the version of their layout.
pub const TABLE_ENDING: &str = ".sites-2";
