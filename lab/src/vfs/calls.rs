//! Calls by path, for every VFS layer.

use super::Vfs;
use super::names::Names;
use super::operations::CreateArguments;
use super::walk::Last;
use crate::calls::{Calls, Handle, System};
use crate::error::Error;
use crate::physical::PhysicalFs;
use engine::format::FileKind;
use engine::{Attributes, Changes, RenameFlags};
use posix::{Errno, Result, Want};

impl<P: PhysicalFs, N: Names<P>> Vfs<P, N> {
    fn remove_path(&self, path: &[u8], is_directory: bool) -> Result<()> {
        let credentials = &self.options.credentials;
        let parent = self.resolve_parent(credentials, path).map_err(Error::errno)?;
        match (parent.last, is_directory) {
            (Last::Name, _) => {}
            (Last::Here, true) if parent.name() == b"." => return Err(Errno::EINVAL),
            (Last::Here, true) => return Err(Errno::EBUSY),
            (Last::Up, true) => return Err(Errno::ENOTEMPTY),
            (_, false) => return Err(Errno::EISDIR),
        }
        if parent.slash && !is_directory {
            let found = self.step(&parent.directory, parent.name()).map_err(Error::errno)?;
            let is_directory = self.attributes(found.at).kind == FileKind::Directory;
            return Err(if is_directory { Errno::EISDIR } else { Errno::ENOTDIR });
        }
        self.remove(credentials, &parent.directory, parent.name(), is_directory).map_err(Error::errno)
    }

    fn make_path(&self, path: &[u8], arguments: &CreateArguments<'_>) -> Result<()> {
        let credentials = &self.options.credentials;
        let parent =
            self.resolve_new(credentials, path, arguments.kind == FileKind::Directory).map_err(Error::errno)?;
        self.make(credentials, &parent.directory, parent.name(), arguments).map(drop).map_err(Error::errno)
    }
}

fn rename_flags(flags: u32) -> Result<RenameFlags> {
    let no_replace = flags & libc::RENAME_NOREPLACE != 0;
    let exchange = flags & libc::RENAME_EXCHANGE != 0;
    if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 || no_replace && exchange {
        return Err(Errno::EINVAL);
    }
    Ok(RenameFlags { no_replace, exchange, ..RenameFlags::default() })
}

impl<P: PhysicalFs, N: Names<P>> System for Vfs<P, N> {
    type Session<'s> = &'s Vfs<P, N>;

    fn session(&self) -> Result<&Vfs<P, N>> {
        Ok(self)
    }
}

impl<P: PhysicalFs, N: Names<P>> Calls for Vfs<P, N> {
    fn open(&self, path: &[u8], flags: i32, mode: u32) -> Result<Handle> {
        self.open_path(&self.options.credentials, path, flags, mode).map_err(Error::errno)
    }

    fn close(&self, file: Handle) -> Result<()> {
        self.close_open(file).map_err(Error::errno)
    }

    fn read(&self, file: Handle, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.read_at(file, offset, into).map_err(Error::errno)
    }

    fn write(&self, file: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.write_at(file, Some(offset), bytes).map_err(Error::errno)
    }

    fn append(&self, file: Handle, bytes: &[u8]) -> Result<usize> {
        self.write_at(file, None, bytes).map_err(Error::errno)
    }

    fn truncate(&self, file: Handle, length: u64) -> Result<()> {
        self.truncate_open(file, length).map_err(Error::errno)
    }

    fn sync_file(&self, file: Handle) -> Result<()> {
        self.sync_open(file).map_err(Error::errno)
    }

    fn sync(&self) -> Result<()> {
        self.fs.sync().map_err(Error::errno)
    }

    #[inline]
    fn stat(&self, path: &[u8]) -> Result<Attributes> {
        self.stat_path(&self.options.credentials, path, true).map_err(Error::errno)
    }

    fn stat_link(&self, path: &[u8]) -> Result<Attributes> {
        self.stat_path(&self.options.credentials, path, false).map_err(Error::errno)
    }

    fn access(&self, path: &[u8], mode: u32) -> Result<()> {
        let attributes = self.stat(path)?;
        self.options.credentials.check(&attributes.protection(), Want(mode & 7))
    }

    fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        self.make_path(path, &CreateArguments::of(FileKind::Directory, mode & 0o1777))
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.remove_path(path, false)
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.remove_path(path, true)
    }

    fn rename(&self, from: &[u8], to: &[u8], flags: u32) -> Result<()> {
        let flags = rename_flags(flags)?;
        let credentials = &self.options.credentials;
        let one = self.resolve_parent(credentials, from).map_err(Error::errno)?;
        let two = self.resolve_parent(credentials, to).map_err(Error::errno)?;
        if one.last != Last::Name {
            return Err(Errno::EBUSY);
        }
        if two.last != Last::Name {
            return Err(if flags.no_replace { Errno::EEXIST } else { Errno::EBUSY });
        }
        if one.slash || two.slash {
            let file = self.step(&one.directory, one.name()).map_err(Error::errno)?;
            if self.attributes(file.at).kind != FileKind::Directory {
                return Err(Errno::ENOTDIR);
            }
        }
        self.rename_held(credentials, (&one.directory, one.name()), (&two.directory, two.name()), flags)
            .map_err(Error::errno)
    }

    fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let credentials = &self.options.credentials;
        let file = self.resolve(credentials, from, false).map_err(Error::errno)?;
        let parent = self.resolve_new(credentials, to, false).map_err(Error::errno)?;
        self.link_held(credentials, &file, &parent.directory, parent.name()).map_err(Error::errno)
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        match target.len() {
            0 => return Err(Errno::ENOENT),
            4096.. => return Err(Errno::ENAMETOOLONG),
            _ => {}
        }
        self.make_path(path, &CreateArguments { kind: FileKind::Symlink, permissions: 0o777, device: 0, target })
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        let link = self.resolve(&self.options.credentials, path, false).map_err(Error::errno)?;
        self.read_link_held(&link).map_err(Error::errno)
    }

    fn chmod(&self, path: &[u8], mode: u32) -> Result<()> {
        let credentials = &self.options.credentials;
        let file = self.resolve(credentials, path, true).map_err(Error::errno)?;
        let changed = self.change(&file, |attributes| {
            if !credentials.owns(attributes.uid) {
                return Err(Errno::EPERM);
            }
            Ok(Changes { permissions: Some(mode & 0o7777), ..Changes::default() })
        });
        changed.map(drop).map_err(Error::errno)
    }

    fn read_directory(&self, path: &[u8], visit: &mut dyn FnMut(&[u8], u64)) -> Result<()> {
        let credentials = &self.options.credentials;
        let directory = self.resolve(credentials, path, true).map_err(Error::errno)?;
        credentials.check(&self.attributes(directory.at).protection(), Want::READ)?;
        let result = self.read_directory_held(&directory, 0, &mut |entry| {
            visit(entry.name, entry.number);
            true
        });
        result.map_err(Error::errno)
    }

    fn path_of(&self, directory: &[u8]) -> Result<Vec<u8>> {
        let directory = self.resolve(&self.options.credentials, directory, true).map_err(Error::errno)?;
        self.path_of_held(&directory).map_err(Error::errno)
    }

    fn drop_caches(&self) -> Result<()> {
        self.shrink_all().map_err(Error::errno)
    }
}
