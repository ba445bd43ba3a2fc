//! DirectFS for C: what `include/directfs.h` declares, over the Rust library.
//!
//! Invariants
//! - No panic leaves a function ([`error::call`]).
//! - A handle is a number that a table knows, also where C sees a pointer: none is dereferenced, so
//!   a stale one is EBADF.
//! - A failed function returns -1 or NULL, sets errno, and keeps the message for its thread.
//! - Pointers of the caller are checked for NULL (EFAULT). That they are otherwise valid is the
//!   contract of each function, as of those of the C library.
#![allow(non_camel_case_types, reason = "names of types in the header")]
#![allow(clippy::missing_safety_doc, reason = "the contract of all functions is above")]

mod attributes;
mod directories;
mod error;
mod files;
mod handles;
mod images;
mod locks;
mod names;
mod pointers;
mod xattrs;
