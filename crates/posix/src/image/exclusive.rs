//! Exclusive access to the bytes of an image, for programs that change it from outside the file
//! system (fsck). No other process can attach meanwhile.

use super::locks::{Byte, Lock, LockGuard};
use super::working::{Base, map_base};
use super::{ImageError, RUNTIME_PARENT, lock_error, open_file};
use pmem::Mapping;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// An image that only this process uses. Its content is not checked: it may be damaged, or no image
/// at all. The locks end when this is dropped.
pub struct ExclusiveImage {
    mapping: Arc<Mapping>,
    // No process is attached, and none can attach.
    _locks: [LockGuard<File>; 2],
}

impl ExclusiveImage {
    /// Locks and maps an image, after recovery of its journal if it has one. Fails at once if
    /// another process uses it.
    pub fn open(path: impl AsRef<Path>) -> Result<ExclusiveImage, ImageError> {
        let path = path.as_ref();
        let (file, access) = open_file(path, false)?;
        let failed = |source| lock_error(path, source);
        let take = |byte| -> Result<LockGuard<File>, ImageError> {
            let file = file.try_clone().map_err(failed)?;
            let held = LockGuard::take(file, byte, Lock::Exclusive).map_err(failed)?;
            held.ok_or_else(|| match byte {
                Byte::Attaching => ImageError::Changing { path: path.to_owned() },
                _ => ImageError::NotExclusive { path: path.to_owned() },
            })
        };
        let locks = [take(Byte::Attaching)?, take(Byte::Attached)?];
        Base { file: &file, path, runtime_parent: Path::new(RUNTIME_PARENT) }.recover()?;
        let mapping = Arc::new(map_base(file, path, access)?);
        Ok(ExclusiveImage { mapping, _locks: locks })
    }

    /// The mapping of the image.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}
