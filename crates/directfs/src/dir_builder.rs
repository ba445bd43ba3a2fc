//! Directories with options.

use crate::{FileSystem, Result};
use std::path::Path;

/// How to create a directory. The methods mean the same as those of [`std::fs::DirBuilder`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let fs = directfs::Image::in_memory(16 << 20)?.file_system();
/// directfs::DirBuilder::new().recursive(true).mode(0o700).create(&fs, "mail/new")?;
/// assert_eq!(fs.metadata("mail/new")?.permissions().mode(), 0o700);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct DirBuilder {
    recursive: bool,
    mode: u32,
}

impl Default for DirBuilder {
    fn default() -> DirBuilder {
        DirBuilder { recursive: false, mode: 0o777 }
    }
}

impl DirBuilder {
    /// Permission bits 0o777, which the umask reduces.
    pub fn new() -> DirBuilder {
        DirBuilder::default()
    }

    /// Also create missing parents. An existing directory is then no error.
    pub fn recursive(&mut self, recursive: bool) -> &mut DirBuilder {
        self.recursive = recursive;
        self
    }

    /// Permission bits of all created directories, which the umask reduces.
    pub fn mode(&mut self, mode: u32) -> &mut DirBuilder {
        self.mode = mode;
        self
    }

    /// Creates the directory.
    ///
    /// # Errors
    /// As [`FileSystem::create_dir`] and [`FileSystem::create_dir_all`].
    pub fn create(&self, fs: &FileSystem, path: impl AsRef<Path>) -> Result<()> {
        match self.recursive {
            true => fs.create_all_with_mode(path.as_ref(), self.mode),
            false => fs.create_dir_with_mode(path, self.mode),
        }
    }
}
