//! What is asked of a server itself, by attributes: to make the image larger
//! ([`crate::SIZE_ATTRIBUTE`]), to copy and trim it ([`crate::ORDER_ATTRIBUTE`]), to permit
//! privileges ([`crate::PRIVILEGES_ATTRIBUTE`]), and to name it ([`image::SERVED_ATTRIBUTE`]).

use super::{Files, Requester};
use crate::orders::{Orders, Task};
use crate::privileges;
use image::{ImageError, Watch};
use posix::{Errno, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

impl Files {
    /// What others ask of the server.
    pub(crate) fn orders(&self) -> &Orders {
        &self.orders
    }

    /// The flags of the mount whose loss root permits.
    pub(crate) fn permitted(&self) -> &Arc<AtomicU64> {
        &self.permitted
    }

    /// Permits the mount to lose `nosuid` or `nodev`, for root.
    pub(crate) fn permit_privileges(&self, requester: Requester, value: &[u8]) -> Result<()> {
        if requester.uid != 0 {
            return Err(Errno(libc::EPERM));
        }
        self.permitted.fetch_or(privileges::permitted_by(value).ok_or(Errno::EINVAL)?, Relaxed);
        Ok(())
    }

    /// Begins to perform an order.
    pub(crate) fn give_order(self: &Arc<Files>, requester: Requester, text: &[u8]) -> Result<()> {
        self.check_master(requester)?;
        let files = Arc::clone(self);
        let perform = move |task: &Task, watch: Watch<'_>| match task {
            Task::Copy(file) => files.image.copy_into(file, watch).map(|()| None),
            Task::Trim => files.image.trim(watch).map(Some),
        };
        self.orders.begin(requester.pid, text, Box::new(perform))
    }

    /// Ends what still waits, after the mount has ended.
    pub(crate) fn finish(&self) {
        self.orders.finish();
        self.leases.finish();
        if let Some(locks) = &self.locks {
            locks.finish(self);
        }
    }

    /// Bytes of the image, and the most that it can have while it is mounted.
    pub(crate) fn image_sizes(&self) -> String {
        format!("{} {}", self.image.length(), self.image.fs().image_bytes_max())
    }

    /// Names the image's file, for those that may decide about it.
    pub(crate) fn served(&self, requester: Requester) -> Result<Vec<u8>> {
        self.check_master(requester)?;
        self.image.served().map(|served| served.value()).ok_or(Errno::EIO)
    }

    /// Fails unless a requester may decide about the image: root, the server's user, the owner.
    pub(crate) fn check_master(&self, requester: Requester) -> Result<()> {
        let is_master = [0, rustix::process::geteuid().as_raw()].contains(&requester.uid)
            || self.image.owner().is_some_and(|owner| owner == requester.uid);
        if is_master { Ok(()) } else { Err(Errno(libc::EPERM)) }
    }

    /// Makes the image larger.
    pub(crate) fn grow_image(&self, requester: Requester, bytes: u64) -> Result<()> {
        self.check_whole()?;
        self.check_master(requester)?;
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
