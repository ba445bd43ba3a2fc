//! The FUSE front: an image as a mount that every program on the machine can use.
//!
//! The server is the only one that maps the image, so users are kept apart by the kernel: mounts have `default_permissions` always, and this
//! crate sees to ownership. The kernel's writeback cache is never on: what a program has written is on the image when `write` returns.
//!
//! Alone on the image ([`Cache::Alone`]) the kernel may keep names, attributes and content for a while, which makes a repeated stat 25 times
//! faster. Otherwise ([`Cache::None`]) every question is asked, so that what other processes change on the image is seen at once.
//!
//! `files` is the file system as a mount asks for it, without any protocol; `adapter` translates from the `fuser` crate; `server` mounts
//! and unmounts.

mod adapter;
mod error;
mod files;
mod handles;
mod inherited;
mod mounting;
mod nodes;
mod options;
mod server;
mod signals;

pub use error::{MountError, OptionError};
pub use inherited::{Inherited, NAME as INHERITED_NAME};
pub use mounting::{mount_device, open_device, remount};
pub use options::{Cache, MountOptions};
pub use server::{Ended, Server, Stopper, serve, serve_device, serve_other};
