//! A mounted image grows: [`crate::SIZE_ATTRIBUTE`] is read and set.

use super::{Files, Requester};
use posix::image::ImageError;
use posix::{Errno, Result};

impl Files {
    /// Bytes of the image, and the most that it can have while it is mounted.
    pub(crate) fn image_sizes(&self) -> String {
        format!("{} {}", self.image.length(), self.image.fs().image_bytes_max())
    }

    /// Makes the image larger, for root and for the server's own user.
    pub(crate) fn grow_image(&self, requester: Requester, bytes: u64) -> Result<()> {
        self.check_whole()?;
        if ![0, rustix::process::geteuid().as_raw()].contains(&requester.uid) {
            return Err(Errno(libc::EPERM));
        }
        let grown = self.image.grow(bytes).map(drop);
        grown.map_err(|error| match error {
            ImageError::BeyondCapacity { .. } => Errno(libc::EFBIG),
            ImageError::ShrinksUnused { .. } | ImageError::GrowthTooSmall { .. } => Errno(libc::EINVAL),
            ImageError::GrowsUnused { .. } => Errno(libc::EOPNOTSUPP),
            ImageError::NoSpace { .. } | ImageError::NoScratch { .. } => Errno(libc::ENOSPC),
            ImageError::Changing { .. } => Errno(libc::EBUSY),
            ImageError::Engine { source, .. } => source.into(),
            ImageError::File { source, .. } => Errno(source.raw_os_error().unwrap_or(libc::EIO)),
            _ => Errno(libc::EIO),
        })
    }
}
