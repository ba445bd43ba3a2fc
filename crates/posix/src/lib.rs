//! POSIX semantics on the engine: the layer between a VFS layer (mount, interception, library) and
//! operations by inode.
//!
//! A [`Caller`] is a thread inside the engine with [`Credentials`]. Every call is a method on it,
//! by node and name, and often by path ([`path`]). VFS layers only translate calls. What
//! processes share of open files is in crate `tables`.
//!
//! Without the feature `std` the crate needs no heap, so that it can run inside a signal handler or
//! an intercepted `malloc`. Crate `image` opens images.
#![cfg_attr(not(feature = "std"), no_std)]

mod access_list;
mod attributes;
mod cached_reference;
pub mod call_classes;
mod caller;
pub mod commits;
mod components;
mod credentials;
mod data;
mod directory;
mod fast_path;
mod file_flags;
mod names;
#[cfg(feature = "std")]
mod observed_path;
mod open;
pub mod path;
mod path_cache;
mod storage;
mod user_namespace;
mod xattr;

pub use attributes::{FileSystemStatus, TimeToSet};
pub use cached_reference::CachedReference;
pub use caller::{Caller, NodeRef};
pub use components::{Data, Opens, Paths, Permissions, Xattrs};
pub use credentials::{Capabilities, Credentials, Want};
pub use data::{Append, Whence};
pub use directory::{COOKIE_DOT, COOKIE_DOT_DOT, ListedName};
pub use fast_path::FileQuery;
pub use file_flags::{
    ExtendedFlags, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FSXATTR_WORDS,
};
pub use names::LINKS_MAX;
#[cfg(feature = "std")]
pub use observed_path::path_of_inode;
pub use open::{Opened, open_flags_valid};
pub use path_cache::PathCache;
pub use storage::{Scope, Storage};
pub use tables::{Errno, OpenFile, Result};
pub use user_namespace::{IdMap, OVERFLOW_ID, UserNamespace};
pub use xattr::{LIST_BYTES_MAX, VALUE_BYTES_MAX, XATTR_NAME_BYTES_MAX};
