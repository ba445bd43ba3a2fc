//! The FUSE server: mounts an image for every program on the machine.
//!
//! - Only the server maps the image, and the kernel separates users: mounts always have
//!   `default_permissions`, and this crate sets ownership.
//! - The kernel's writeback cache is never enabled: a completed `write` is on the image.
//! - If the server is alone on the image ([`Cache::Exclusive`]), the kernel may cache names,
//!   attributes and content for a while, which makes a repeated stat 25 times faster. Otherwise
//!   ([`Cache::None`]) it sends every request, so that changes by other processes are visible
//!   immediately.
//!
//! `files` is the file system behind a mount, independent of the protocol; `adapter` translates
//! from the `fuser` crate; `server` mounts and unmounts.

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
