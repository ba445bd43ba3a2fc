//! Whether processes use an image, queried without taking a lock.

use super::locks::{Byte, is_held_by_others};
use rustix::fd::AsFd;
use std::io;

/// Users of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Users {
    /// A process has it attached.
    pub attached: bool,
    /// A process may write it.
    pub writing: bool,
    /// A process is attaching, recovering or detaching.
    pub changing: bool,
}

impl Users {
    /// No user at all.
    pub fn none(&self) -> bool {
        *self == Users::default()
    }
}

/// Queries the locks on an image and takes none. The file may be open for reading only.
pub fn users(file: impl AsFd) -> io::Result<Users> {
    Ok(Users {
        attached: is_held_by_others(&file, Byte::Attached)?,
        writing: is_held_by_others(&file, Byte::Writing)?,
        changing: is_held_by_others(&file, Byte::Attaching)?,
    })
}
