//! DirectFS as a library: a file system in one image, inside the process.
//!
//! An image is a file, a `/dev/dax*` device, or memory, and holds a whole POSIX file system. This
//! library maps it and works on it directly: no call on a file in it enters the kernel, and none
//! needs a mount or privileges. It suits work with many names and small files: mail spools, build
//! and package caches, indexes, test fixtures.
//!
//! ```
//! use directfs::{Closed, Image};
//! use std::io::Write;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("mail.img");
//! // A new image of 64 MiB. `Image::open` opens an existing one.
//! let image = Image::create(&path).size(64 << 20).label("mail").create()?;
//! let fs = image.file_system();
//!
//! // The functions of std::fs, with paths that begin at the root of the image.
//! fs.create_dir_all("inbox/new")?;
//! let mut message = fs.create("inbox/draft")?;
//! writeln!(message, "Subject: hello")?;
//! fs.rename("inbox/draft", "inbox/new/1")?;
//!
//! // Threads share the handle, and each has its own way into the image.
//! std::thread::scope(|scope| {
//!     for number in 2..10 {
//!         let fs = &fs;
//!         scope.spawn(move || fs.write(format!("inbox/new/{number}"), "Subject: more\n"));
//!     }
//! });
//! assert_eq!(fs.read_dir("inbox/new")?.count(), 9);
//! assert_eq!(fs.read_to_string("inbox/new/1")?, "Subject: hello\n");
//!
//! // Errors have an errno and a message with a remedy.
//! let error = fs.remove_dir("inbox").unwrap_err();
//! assert_eq!(error.kind(), std::io::ErrorKind::DirectoryNotEmpty);
//! println!("{error}");
//!
//! assert_eq!(image.close()?, Closed::Clean);
//! # Ok(())
//! # }
//! ```
//!
//! # Beside `std::fs`
//! Names and orders of arguments are those of [`std::fs`], as methods of [`FileSystem`]. So are
//! [`OpenOptions`], [`DirBuilder`], [`Permissions`] and [`FileTimes`]. [`File`] implements
//! [`Read`](std::io::Read), [`Write`](std::io::Write), [`Seek`](std::io::Seek) and
//! [`FileExt`](std::os::unix::fs::FileExt), so generic code takes it. [`Error`] converts into
//! [`std::io::Error`] with the kind of its errno.
//!
//! Four things differ. The converted error's own `raw_os_error` is `None`, because it carries the
//! [`Error`], whose [`raw_os_error`](Error::raw_os_error) has the number. Times of [`Metadata`]
//! are there without a `Result`. The time of creation has a call of its own,
//! [`FileSystem::created`]. There is no working directory, and so no `canonicalize`.
//!
//! Traits for virtual file systems (`vfs`, `cap-std`, `object_store`) have no adapter here. `vfs`
//! and `cap-std` fit [`FileSystem::root_at`] but hide atomic renames, locks and credentials, and
//! `object_store` is asynchronous; each would tie this crate's version to another's.
//!
//! # Durability
//! A call that changes something is atomic, and durable when it returns. What *durable* means
//! depends on what the image lies in; [`Image::durability`] reports it:
//!
//! | the image is | a returned call survives |
//! | --- | --- |
//! | a file on a DAX file system, a `/dev/dax*` device | a power failure |
//! | a file in memory (`/dev/shm`, tmpfs) | the death of every process, not a power failure |
//! | a file on a disk | the death of every process; a power failure if it was synced ([`File::sync_all`], [`Image::sync`]) or is older than the interval of commits (5 s) |
//! | a file on a disk, with [`ImageOptions::no_commit`] | the death of every process. **A power failure may destroy the image while it is open**; safe is what a clean close left |
//! | in memory without a name ([`Image::in_memory`]) | nothing after the process |
//!
//! A process that dies at any moment harms neither the image nor what other processes wrote. The
//! next process that meets its last call completes it or rolls it back, and the next open after the
//! death of all of them recovers the image. `directfs fsck` is not needed after a crash.
//!
//! # Sharing
//! Any number of processes of one machine may open an image at the same time, and programs under
//! `directfs run --image` take part. They see each other's changes at once, and file locks
//! ([`File::lock`]) hold among them. They trust each other: permissions in the image are checked
//! by the process that makes the call. Mounts with `-o cache=0` share the image and the locks, too.
//!
//! # Threads
//! [`Image`], [`FileSystem`] and [`File`] are `Send` and `Sync`. A thread's first call claims a
//! place in the image, its end releases it; 65,000 threads of all processes have room at a time.
//! Calls of different threads run side by side, also in one directory.
//!
//! # Truncation
//! If the file of an image is truncated while it is mapped, or a sparse image's file system has no
//! room left, the kernel ends the process by SIGBUS. [`survive_truncation`] makes calls fail with
//! EIO instead.
//!
//! # Platform
//! Linux on x86-64, Rust 1.95. Opening an image needs room in `/dev/shm` for an index that its
//! processes share: about 2 MiB for an empty image, and 200 bytes for each cached file.
#![warn(missing_docs)]

mod attributes;
mod classes;
mod credentials;
mod descriptors;
mod dir_builder;
mod error;
mod file;
mod file_system;
mod flags;
mod image;
mod metadata;
mod read_dir;
mod session;
mod size_limit;
mod view;

pub use attributes::SetXattr;
pub use credentials::Credentials;
pub use dir_builder::DirBuilder;
pub use error::{Error, Result};
pub use file::{File, LockedRange, OpenOptions};
pub use file_system::FileSystem;
pub use flags::FileFlags;
pub use image::{Closed, CreateImage, Durability, Image, ImageOptions};
pub use metadata::{FileTimes, FileType, Metadata, Permissions, Space};
#[doc(hidden)]
pub use pmem::{UserBytes, UserBytesMut};
pub use read_dir::{DirEntry, ReadDir};
pub use view::View;

/// Makes this process survive the truncation of an image in use: calls then fail with EIO, and the
/// image is not left clean.
///
/// It replaces the action for SIGBUS of the whole process, and ends the process as before for every
/// other cause of that signal. So only programs should call it, once at their start, and not
/// libraries.
pub fn survive_truncation() {
    pmem::survive_truncations();
}
