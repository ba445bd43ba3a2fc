//! Handlers of calls by path, and of calls on open files.

pub mod attributes;
pub mod copy_calls;
pub mod files;
pub mod handles;
pub mod kernel_objects;
pub mod landlock;
pub mod locks;
pub mod mapping;
pub mod names;
pub mod open;
pub mod parent_listing;
pub mod renames;
pub mod seccomp;
pub mod sockets;
