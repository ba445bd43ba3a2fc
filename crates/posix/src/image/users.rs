//! Whether somebody uses an image, asked without disturbing anybody.

use super::locks::{Byte, is_held_by_others};
use rustix::fd::AsFd;
use std::io;

/// Who uses an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Users {
    /// Somebody has it attached.
    pub attached: bool,
    /// Somebody may write it.
    pub writing: bool,
    /// Somebody is attaching, recovering or leaving just now.
    pub changing: bool,
}

impl Users {
    /// Nobody at all.
    pub fn none(&self) -> bool {
        *self == Users::default()
    }
}

/// Asks for the locks on an image, takes none. The file may be open for reading only.
pub fn users(file: impl AsFd) -> io::Result<Users> {
    Ok(Users {
        attached: is_held_by_others(&file, Byte::Attached)?,
        writing: is_held_by_others(&file, Byte::Writing)?,
        changing: is_held_by_others(&file, Byte::Attaching)?,
    })
}
