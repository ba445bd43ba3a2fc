//! Append-only and immutable files in the model: chattr(1).

use super::{At, FileType, Model, Outcome, USERS};
use libc::{EACCES, ENOTTY, EPERM};

/// FS_IMMUTABLE_FL.
pub(super) const IMMUTABLE: u32 = 0x10;
/// FS_APPEND_FL.
pub(super) const APPEND_ONLY: u32 = 0x20;
/// FS_NODUMP_FL, which new files inherit.
pub(super) const NO_DUMP: u32 = 0x40;
/// Flags of a file that keeps its names and attributes.
pub(super) const KEEPS: u32 = IMMUTABLE | APPEND_ONLY;

/// A mode of fallocate that only adds: all but FALLOC_FL_KEEP_SIZE is zero.
const ADDS: i32 = 1;

impl Model {
    /// Whether a user has these rights, and the file may be written if they include that.
    pub(super) fn may(&self, user: u8, number: usize, want: u32) -> Outcome {
        match () {
            () if want & 2 != 0 && self.files[&number].flags & IMMUTABLE != 0 => Err(EPERM),
            () if !self.grants(user, number, want) => Err(EACCES),
            () => Ok(()),
        }
    }

    /// EPERM if a name must stay because of the flags of its directory or file.
    pub(super) fn may_go(&self, directory: usize, file: usize) -> Outcome {
        let stays = self.files[&directory].flags & APPEND_ONLY | self.files[&file].flags & KEEPS;
        if stays == 0 { Ok(()) } else { Err(EPERM) }
    }

    /// EPERM if a file has any of these flags.
    pub(super) fn has_none(&self, number: usize, flags: u32) -> Outcome {
        if self.files[&number].flags & flags == 0 { Ok(()) } else { Err(EPERM) }
    }

    /// EPERM if a file that is open for writing, not for appending, keeps its content from a
    /// fallocate.
    pub(super) fn may_allocate(&self, number: usize, mode: i32) -> Outcome {
        self.has_none(number, if mode & !ADDS == 0 { IMMUTABLE } else { KEEPS })
    }

    pub(super) fn set_flags(&mut self, user: u8, at: At, flags: u32) -> Option<Outcome> {
        let number = self.find(at)?;
        let uid = USERS[user as usize].0;
        let file = self.at(number);
        Some(match () {
            () if !matches!(file.kind, FileType::File | FileType::Directory) => Err(ENOTTY),
            () if uid != 0 && uid != file.uid => Err(EPERM),
            () if uid != 0 && (file.flags ^ flags) & KEEPS != 0 => Err(EPERM),
            () => {
                file.flags = flags;
                Ok(())
            }
        })
    }
}
