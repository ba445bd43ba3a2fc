//! Reads into buffers that the kernel selects (IOSQE_BUFFER_SELECT).
//!
//! Which buffer a group gives, and what it has left, the kernel alone knows. So the library reads
//! the content into a file in memory, and the kernel reads it from there into the buffer: the
//! entry's length, flags and completion are its own.
//!
//! Invariant: the file is closed when the kernel has taken the entry or has refused it, so the
//! kernel must take it at once. Entries that it may take later are refused.

use super::operations::NO_OFFSET;
use crate::abi::sys;
use crate::call::Call;
use crate::extensions::rings::entries::serve_entry;
use posix::{Errno, Result};

/// The most that is read at once: a larger buffer gets an incomplete read.
const BYTES_MAX: u32 = 64 << 20;

/// The content for a buffer.
pub struct Selection {
    file: sys::Fd,
    length: u32,
    /// What the library has read.
    bytes: u64,
    /// The descriptor that was read at its position.
    at_position: Option<u32>,
}

impl Selection {
    /// Reads up to a length, for a buffer that may be shorter; zero: the buffer's length. `None`:
    /// the descriptor is not the image's.
    pub fn of(call: &mut Call<'_>, fd: u32, (offset, length): (u64, u32), flags: u32) -> Result<Option<Selection>> {
        let file = sys::memory_file(c"selected").map_err(error)?;
        let room = if length == 0 { BYTES_MAX } else { length.min(BYTES_MAX) };
        // Without this a worker of the kernel would perform the read, and later.
        file.never_wait().map_err(error)?;
        // SAFETY: it has no mapping.
        unsafe { file.resize(room.into()) }.map_err(error)?;
        let start = file.map(room as usize, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED).map_err(error)?;
        let list = [start as u64, room.into()];
        let arguments = [fd.into(), list.as_ptr() as u64, 1, offset, 0, flags.into()];
        let served = serve_entry(call, libc::SYS_preadv2, arguments);
        // SAFETY: the mapping of this function, of which nothing is left.
        unsafe { sys::unmap(start, room as usize) };
        let Some(result) = served? else { return Ok(None) };
        let bytes = u64::try_from(result).map_err(|_| error(result))?;
        let at_position = (offset == NO_OFFSET).then_some(fd);
        let selection = Selection { file, length, bytes, at_position };
        // SAFETY: as above.
        if let Err(failed) = unsafe { selection.file.resize(bytes) } {
            selection.settle(call);
            return Err(error(failed));
        }
        Ok(Some(selection))
    }

    /// The descriptor that the kernel reads.
    pub fn fd(&self) -> i32 {
        self.file.number()
    }

    /// The length that the program requested.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// The kernel has taken the entry, or has not: the position of the program's descriptor is
    /// behind what the kernel has read.
    pub fn settle(self, call: &mut Call<'_>) {
        let Some(fd) = self.at_position else { return };
        let read = u64::try_from(self.file.position()).unwrap_or_default();
        let excess = self.bytes.saturating_sub(read);
        if excess > 0 {
            let arguments = [fd.into(), excess.wrapping_neg(), libc::SEEK_CUR as u64, 0, 0, 0];
            let _ = serve_entry(call, libc::SYS_lseek, arguments);
        }
    }
}

fn error(result: i64) -> Errno {
    Errno(-result as i32)
}
