//! The FUSE server: mounts an image for every program on the machine.
//!
//! - Only the server maps the image, and the kernel separates users: mounts always have
//!   `default_permissions`, and this crate sets ownership.
//! - The kernel's writeback cache is never enabled: a completed `write` is on the image.
//! - If the server is alone on the image ([`Cache::Exclusive`]), the kernel caches names,
//!   attributes, listings and content until it changes them itself. Otherwise ([`Cache::None`]) it
//!   sends every request, so that changes by other processes are visible immediately.
//!
//! `files` is the file system behind a mount, independent of the protocol; `adapter` translates
//! from and to `protocol`'s messages; `session` connects with the kernel, `workers` are the threads
//! that exchange messages with it, by the device or by `ring`; `server` mounts and unmounts;
//! `keeper` starts another server when one dies.

mod adapter;
mod error;
mod files;
mod generations;
mod helper;
mod inherited;
mod keeper;
mod leases;
mod locks;
mod mapped_pages;
mod messages;
mod mounting;
mod nodes;
mod one_file;
mod options;
mod orders;
mod other;
mod privileges;
mod protocol;
mod renames;
mod requests;
mod ring;
mod server;
mod session;
mod signals;
mod workers;

pub use error::{MountError, OptionError};
pub use inherited::{Inherited, NAME as INHERITED_NAME};
pub use messages::{Destination, report_error, send_messages_to};
pub use mounting::{mount_device, open_device, remount};
pub use one_file::{Content, FILE, MESSAGES, remove_dead, serve_file};
pub use options::{Cache, DESCRIPTIONS as OPTION_DESCRIPTIONS, MEMORY_BYTES_LEAST, MountOptions};
pub use orders::ATTRIBUTE as ORDER_ATTRIBUTE;
pub use other::serve_other;
pub use privileges::ATTRIBUTE as PRIVILEGES_ATTRIBUTE;
pub use requests::{ATTRIBUTE as REQUESTS_ATTRIBUTE, LATENCIES_ATTRIBUTE, SIZE_ATTRIBUTE};
pub use ring::THREAD as RING_THREAD;
pub use server::{Ended, Role, Server, Stopper, serve, serve_device, threads};
