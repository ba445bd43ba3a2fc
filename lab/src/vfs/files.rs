//! Open files.

use super::arena::Arena;
use super::names::{At, Names};
use super::operations::{CreateArguments, MadeOrFound};
use super::walk::Last;
use super::{FileRef, Vfs};
use crate::calls::Handle;
use crate::error::{Error, Result};
use crate::physical::PhysicalFs;
use crate::virtual_time::held::now_ns;
use engine::format::FileKind;
use pmem::Layout;
use posix::{Credentials, Errno, Want, open_flags_valid};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// An open file. `state` is one while it is open.
#[repr(C)]
struct Open {
    state: AtomicU32,
    inode: AtomicU32,
    name: AtomicU32,
    flags: AtomicU32,
}
// SAFETY: `repr(C)`; four atomics of 4 bytes without padding; every bit pattern is valid.
unsafe impl Layout for Open {}

/// All open files.
pub(super) struct OpenFiles(Arena<Open>);

impl OpenFiles {
    pub(super) fn new(files_max: u32) -> Result<OpenFiles> {
        Ok(OpenFiles(Arena::new(files_max)?))
    }
}

fn wanted(flags: i32) -> Want {
    let access = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Want::READ.0,
        libc::O_WRONLY => Want::WRITE.0,
        _ => Want::READ.0 | Want::WRITE.0,
    };
    Want(if flags & libc::O_TRUNC != 0 { access | Want::WRITE.0 } else { access })
}

impl<P: PhysicalFs, N: Names<P>> Vfs<P, N> {
    /// Opens a file by path.
    pub fn open_path(&self, credentials: &Credentials<'_>, path: &[u8], flags: i32, mode: u32) -> Result<Handle> {
        let flags = open_flags_valid(flags)?;
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if flags & libc::O_CREAT == 0 {
            let file = self.resolve(credentials, path, flags & libc::O_NOFOLLOW == 0)?;
            return self.open_held(credentials, file, flags);
        }
        let exclusive = flags & libc::O_EXCL != 0;
        let mut parent = self.resolve_parent(credentials, path)?;
        loop {
            match parent.last {
                Last::Name if parent.slash => return Err(Errno::EISDIR.into()),
                Last::Name => {}
                _ => return Err(if exclusive { Errno::EEXIST } else { Errno::EISDIR }.into()),
            }
            let file = match self.open_or_make(credentials, &parent.directory, parent.name(), flags, mode)? {
                MadeOrFound::New(file) => return self.keep(file, flags),
                MadeOrFound::There(_) if exclusive => return Err(Errno::EEXIST.into()),
                MadeOrFound::There(file) => file,
            };
            match self.attributes(file.at).kind {
                FileKind::Symlink if flags & libc::O_NOFOLLOW != 0 => return Err(Errno::ELOOP.into()),
                FileKind::Symlink => parent = self.follow_last(credentials, parent, &file)?,
                FileKind::Directory => return Err(Errno::EISDIR.into()),
                _ => return self.open_held(credentials, file, flags),
            }
        }
    }

    /// The file of a name, created if it does not exist. Without O_EXCL it usually exists, which
    /// needs no exclusive lock.
    fn open_or_make<'f>(
        &'f self,
        credentials: &Credentials<'_>,
        directory: &FileRef<'f, P, N>,
        name: &[u8],
        flags: i32,
        mode: u32,
    ) -> Result<MadeOrFound<'f, P, N>> {
        if flags & libc::O_EXCL == 0 {
            match self.step(directory, name) {
                Ok(found) => return Ok(MadeOrFound::There(found)),
                Err(Error::Errno(Errno::ENOENT)) => {}
                Err(other) => return Err(other),
            }
        }
        self.make_or_find(credentials, directory, name, &CreateArguments::of(FileKind::Regular, mode & 0o7777))
    }

    /// Opens a referenced file.
    pub fn open_held(&self, credentials: &Credentials<'_>, file: FileRef<'_, P, N>, flags: i32) -> Result<Handle> {
        let attributes = self.attributes(file.at);
        if flags & libc::O_DIRECTORY != 0 && attributes.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        if flags & libc::O_PATH == 0 {
            match attributes.kind {
                FileKind::Symlink => return Err(Errno::ELOOP.into()),
                FileKind::Directory if wanted(flags).0 & Want::WRITE.0 != 0 => return Err(Errno::EISDIR.into()),
                _ => credentials.check(&attributes.protection(), wanted(flags))?,
            }
            if flags & libc::O_TRUNC != 0 && attributes.kind == FileKind::Regular {
                let mut locked = self.inodes.write(file.at.inode);
                self.fs.truncate(&mut locked.exclusive()?, 0, now_ns())?;
            }
        }
        self.keep(file, flags)
    }

    fn keep(&self, file: FileRef<'_, P, N>, flags: i32) -> Result<Handle> {
        let handle = self.files.0.take().ok_or(Errno::ENOMEM)?;
        let open = self.files.0.at(handle);
        let at = file.into_at();
        open.inode.store(at.inode, Relaxed);
        open.name.store(at.name, Relaxed);
        open.flags.store(flags as u32, Relaxed);
        open.state.store(1, Release);
        Ok(handle)
    }

    fn opened(&self, handle: Handle) -> Result<(At, i32)> {
        if handle == 0 || handle >= self.files.0.high() {
            return Err(Errno::EBADF.into());
        }
        let open = self.files.0.at(handle);
        if open.state.load(Acquire) != 1 {
            return Err(Errno::EBADF.into());
        }
        let at = At { inode: open.inode.load(Relaxed), name: open.name.load(Relaxed) };
        Ok((at, open.flags.load(Relaxed) as i32))
    }

    /// Closes a file.
    pub fn close_open(&self, handle: Handle) -> Result<()> {
        let (at, _) = self.opened(handle)?;
        if self.files.0.at(handle).state.swap(0, AcqRel) != 1 {
            return Err(Errno::EBADF.into());
        }
        self.files.0.give(handle);
        N::release(self, at)
    }

    pub(super) fn close_all(&self) -> Result<()> {
        for handle in 1..self.files.0.high() {
            if self.files.0.at(handle).state.load(Acquire) == 1 {
                self.close_open(handle)?;
            }
        }
        Ok(())
    }

    fn for_io(&self, handle: Handle, write: bool) -> Result<(At, i32)> {
        let (at, flags) = self.opened(handle)?;
        let refused = if write { libc::O_RDONLY } else { libc::O_WRONLY };
        if flags & libc::O_PATH != 0 || flags & libc::O_ACCMODE == refused {
            return Err(Errno::EBADF.into());
        }
        match self.attributes(at).kind {
            FileKind::Regular => Ok((at, flags)),
            FileKind::Directory => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// Reads at an offset.
    pub fn read_at(&self, handle: Handle, offset: u64, into: &mut [u8]) -> Result<usize> {
        let (at, _) = self.for_io(handle, false)?;
        let locked = self.inodes.read(at.inode);
        self.fs.read(locked.shared()?, offset, into)
    }

    /// Writes at an offset. Writes at the end if there is no offset or the file was opened with
    /// O_APPEND.
    pub fn write_at(&self, handle: Handle, offset: Option<u64>, bytes: &[u8]) -> Result<usize> {
        let (at, flags) = self.for_io(handle, true)?;
        let mut locked = self.inodes.write(at.inode);
        let mut file = locked.exclusive()?;
        let attributes = file.attributes.get();
        let offset = match offset {
            Some(offset) if flags & libc::O_APPEND == 0 => offset,
            _ => attributes.size_bytes,
        };
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= i64::MAX as u64);
        if end.is_none() {
            return Err(Errno::EFBIG.into());
        }
        if !bytes.is_empty() {
            self.fs.write(&mut file, offset, bytes, now_ns())?;
        }
        Ok(bytes.len())
    }

    /// Sets the length of a referenced file. The caller checks permissions.
    pub fn truncate_held(&self, file: &FileRef<'_, P, N>, length: u64) -> Result<()> {
        match self.attributes(file.at).kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        if length > i64::MAX as u64 {
            return Err(Errno::EFBIG.into());
        }
        let mut locked = self.inodes.write(file.at.inode);
        self.fs.truncate(&mut locked.exclusive()?, length, now_ns())
    }

    /// Sets the length of an open file.
    pub fn truncate_open(&self, handle: Handle, length: u64) -> Result<()> {
        if length > i64::MAX as u64 {
            return Err(Errno::EINVAL.into());
        }
        let (at, _) = self.for_io(handle, true).map_err(|error| match error {
            Error::Errno(Errno::EBADF) if self.opened(handle).is_ok() => Errno::EINVAL.into(),
            other => other,
        })?;
        let mut locked = self.inodes.write(at.inode);
        self.fs.truncate(&mut locked.exclusive()?, length, now_ns())
    }

    /// fsync.
    pub fn sync_open(&self, handle: Handle) -> Result<()> {
        let (at, _) = self.opened(handle)?;
        let mut locked = self.inodes.write(at.inode);
        self.fs.sync_file(&mut locked.exclusive()?)
    }
}
