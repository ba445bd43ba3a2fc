//! Flags of files, as chattr(1) sets them.

use crate::{FileSystem, Result};
use std::path::Path;

/// Flags of a regular file or a directory. They are on the image, and hold for every program.
///
/// More flags may come. So begin with those of a file, or with none:
///
/// ```
/// let mut flags = directfs::FileFlags::default();
/// flags.append_only = true;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FileFlags {
    /// The file cannot be changed, removed, renamed or linked; a directory's names stay.
    pub immutable: bool,
    /// The file only grows; a directory only gets more names.
    pub append_only: bool,
    /// dump(8) leaves the file out. New files of a directory inherit it.
    pub no_dump: bool,
    /// Reads leave the access time as it is. New files of a directory inherit it.
    pub no_access_time: bool,
}

impl FileFlags {
    fn each(&mut self) -> [(&mut bool, engine::FileFlags); 4] {
        [
            (&mut self.immutable, engine::FileFlags::IMMUTABLE),
            (&mut self.append_only, engine::FileFlags::APPEND_ONLY),
            (&mut self.no_dump, engine::FileFlags::NO_DUMP),
            (&mut self.no_access_time, engine::FileFlags::NO_ACCESS_TIME),
        ]
    }
}

impl FileSystem {
    /// The flags of a file. Symbolic links are followed.
    ///
    /// # Errors
    /// ENOTTY: neither a regular file nor a directory. As [`metadata`](Self::metadata).
    pub fn flags(&self, path: impl AsRef<Path>) -> Result<FileFlags> {
        let found = self.on_file("read the flags of", path.as_ref(), |caller, node| caller.file_flags(node))?;
        let mut flags = FileFlags::default();
        flags.each().into_iter().for_each(|(flag, bit)| *flag = found.has_any(bit));
        Ok(flags)
    }

    /// Sets all flags of a file. Calls that a flag forbids are EPERM, also for root.
    ///
    /// The first flag on an image makes older programs refuse to write it.
    ///
    /// # Errors
    /// EPERM: the caller does not own the file, or changes `immutable` or `append_only` without
    /// CAP_LINUX_IMMUTABLE, which root has. EROFS. As [`flags`](Self::flags).
    pub fn set_flags(&self, path: impl AsRef<Path>, mut flags: FileFlags) -> Result<()> {
        let set = flags.each().into_iter().filter(|(flag, _)| **flag);
        let bits = set.fold(engine::FileFlags::NONE, |bits, (_, bit)| bits.with(bit));
        self.on_file("set the flags of", path.as_ref(), |caller, node| caller.set_file_flags(node, bits))
    }
}
