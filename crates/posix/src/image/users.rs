//! Whether processes use an image, queried without taking a lock.

use super::device;
use super::locks::{Byte, is_held_by_others, retry_until};
use std::fs::File;
use std::io;
use std::time::Duration;

/// How long a process may take to leave. After a death of all programs it is the committer, which
/// puts what they did on the disk.
pub(super) const LEAVING: Duration = Duration::from_secs(5);

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
pub fn users(file: &File) -> io::Result<Users> {
    let file = device::with_locks(file.try_clone()?, false)?;
    Ok(Users {
        attached: is_held_by_others(&file, Byte::Attached)?,
        writing: is_held_by_others(&file, Byte::Writing)?,
        changing: is_held_by_others(&file, Byte::Attaching)?,
    })
}

/// As [`users`], once no process uses the image, or `is_leaving` returns false for those that do,
/// or they have had the time to leave.
pub fn users_that_stay(file: &File, mut is_leaving: impl FnMut() -> bool) -> io::Result<Users> {
    let mut last = Users::default();
    let stay = retry_until(LEAVING, || {
        last = users(file)?;
        Ok::<_, io::Error>((!last.writing && !last.changing || !is_leaving()).then_some(last))
    })?;
    Ok(stay.unwrap_or(last))
}
