//! Starts unmodified programs with DirectFS inside.
//!
//! A library that the loader puts into a program (`LD_PRELOAD`) replaces the instructions by which
//! the C library and the loader make system calls (crate `hook`). Disassembly finds the safe places
//! once for each build of those libraries ([`analysis`]), and a table (`hook::table`) beside the
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
//! It is crate `hook` with a few symbols (`preload/lib.rs`), which the build script builds and
//! [`cache`] embeds as bytes. With the feature `loader` it becomes a program that loads others
//! (`hook::loading::program_loader`). *Rejected:* the `directfs` binary as a library (the loader
//! refuses position-independent programs, and each process would map and relocate all of it);
//! artifact dependencies (not in stable cargo); direct calls of rustc (the library needs the
//! engine's crates, and cargo can build them).
//!
//! Decision: docs/decisions/foundations.md, "A library in user space".

pub mod analysis;
pub mod cache;
pub mod elf;
pub mod launch;
pub mod trusted_directory;
