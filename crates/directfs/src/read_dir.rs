//! Listings of directories.

use crate::error::{Error, Result};
use crate::session::OpenNumber;
use crate::{FileSystem, FileType, Metadata};
use engine::statistics::CallClass;
use posix::ListedName;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names read by one call.
const BATCH_NAMES: usize = 256;

/// The entries of a directory, in no particular order, without `.` and `..`.
///
/// Names that are created or removed during the listing may appear or not. All others appear
/// exactly once. After an error the listing ends.
pub struct ReadDir {
    file_system: FileSystem,
    directory: Arc<OpenNumber>,
    path: Arc<Path>,
    batch: VecDeque<(OsString, u64, FileType)>,
    cookie: u64,
    is_at_end: bool,
}

impl ReadDir {
    pub(crate) fn new(file_system: FileSystem, directory: OpenNumber, path: &Path) -> ReadDir {
        let (directory, path) = (Arc::new(directory), path.into());
        ReadDir { file_system, directory, path, batch: VecDeque::new(), cookie: 0, is_at_end: false }
    }

    /// Begins the listing again, with the names that are there then.
    pub fn rewind(&mut self) {
        self.batch.clear();
        (self.cookie, self.is_at_end) = (0, false);
    }

    /// The file system below this directory.
    pub(crate) fn root_here(&self) -> FileSystem {
        self.file_system.below(Arc::clone(&self.directory))
    }

    fn fill(&mut self) -> Result<()> {
        let ReadDir { file_system, directory, path, batch, cookie, is_at_end } = self;
        let read = file_system.shared.call(CallClass::List, |inside| {
            let file = inside.file(directory.number())?;
            let caller = inside.caller(file_system.credentials().as_posix());
            *is_at_end = true;
            caller.read_directory_at(&file, *cookie, &mut |found: ListedName<'_>| {
                if batch.len() == BATCH_NAMES {
                    *is_at_end = false;
                    return false;
                }
                *cookie = found.cookie;
                if !matches!(found.name, b"." | b"..") {
                    batch.push_back((OsString::from_vec(found.name.to_vec()), found.number, found.kind.into()));
                }
                true
            })
        });
        read.map_err(|errno| Error::call("list", &**path, errno))
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if self.batch.is_empty()
            && !self.is_at_end
            && let Err(error) = self.fill()
        {
            self.is_at_end = true;
            self.batch.clear();
            return Some(Err(error));
        }
        let (name, number, file_type) = self.batch.pop_front()?;
        let (file_system, directory) = (self.file_system.clone(), Arc::clone(&self.path));
        Some(Ok(DirEntry { file_system, directory, name, number, file_type }))
    }
}

impl std::fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadDir").field("path", &self.path).finish_non_exhaustive()
    }
}

/// An entry of a directory.
#[derive(Clone)]
pub struct DirEntry {
    file_system: FileSystem,
    directory: Arc<Path>,
    name: OsString,
    number: u64,
    file_type: FileType,
}

impl DirEntry {
    /// The name.
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// The path: that of the listing, and the name.
    pub fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// The kind of file, without a further call. A symbolic link is not followed.
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// The inode number, without a further call.
    pub fn ino(&self) -> u64 {
        self.number
    }

    /// Attributes of what has this path now. A symbolic link is not followed.
    pub fn metadata(&self) -> Result<Metadata> {
        self.file_system.symlink_metadata(self.path())
    }
}

impl std::fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DirEntry").field(&self.path()).finish()
    }
}
