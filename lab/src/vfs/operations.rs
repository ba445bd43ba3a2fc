//! Calls that change names and attributes: they lock, check permissions, call the physical file
//! system, then update the caches.

use super::names::{Known, MadeName, Moved, Names};
use super::walk::{Last, Parent};
use super::{FileRef, Vfs};
use crate::error::{Error, Result};
use crate::physical::{DirectoryEntry, Name, NewFile, PhysicalFs, Renaming};
use crate::virtual_time::held::now_ns;
use engine::format::FileKind;
use engine::{Attributes, Changes, RenameFlags};
use posix::{Credentials, Errno, LINKS_MAX, Want};

/// Maximum depth of directories: more than any path can name.
pub(super) const DEPTH_MAX: usize = 1 << 20;

/// The arguments of a create. The directory can change group and permissions.
#[derive(Debug, Clone, Copy)]
pub struct CreateArguments<'a> {
    /// Kind of file.
    pub kind: FileKind,
    /// Permissions.
    pub permissions: u32,
    /// Device number.
    pub device: u32,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

impl CreateArguments<'_> {
    /// A file without content.
    pub const fn of(kind: FileKind, permissions: u32) -> CreateArguments<'static> {
        CreateArguments { kind, permissions, device: 0, target: b"" }
    }
}

/// The file of a name: created or found.
pub(super) enum MadeOrFound<'f, P: PhysicalFs, N: Names<P>> {
    New(FileRef<'f, P, N>),
    There(FileRef<'f, P, N>),
}

fn new_file<'a>(credentials: &Credentials<'_>, directory: &Attributes, arguments: &CreateArguments<'a>) -> NewFile<'a> {
    let inherits = directory.mode & libc::S_ISGID != 0;
    let gid = if inherits { directory.gid } else { credentials.gid };
    let mut permissions = arguments.permissions & 0o7777;
    let runs_as_group = permissions & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP;
    match arguments.kind {
        FileKind::Directory if inherits => permissions |= libc::S_ISGID,
        FileKind::Symlink => permissions = 0o777,
        FileKind::Directory => {}
        _ if inherits && runs_as_group && !credentials.keeps_set_gid((directory.uid, gid)) => {
            permissions &= !libc::S_ISGID
        }
        _ => {}
    }
    NewFile {
        kind: arguments.kind,
        permissions,
        uid: credentials.uid,
        gid,
        device: arguments.device,
        target: arguments.target,
    }
}

/// Checks that names of a directory may be changed: it still exists, and the mode allows it.
fn may_change(credentials: &Credentials<'_>, directory: &Attributes) -> Result<()> {
    if directory.links == 0 {
        return Err(Errno::ENOENT.into());
    }
    Ok(credentials.check(&directory.protection(), Want::CHANGE_NAMES)?)
}

impl<P: PhysicalFs, N: Names<P>> Vfs<P, N> {
    /// Attributes of a file.
    pub fn stat_held(&self, file: &FileRef<'_, P, N>) -> Attributes {
        self.attributes(file.at)
    }

    /// The file of a name, `.` and `..` included.
    pub fn lookup<'f>(
        &'f self,
        credentials: &Credentials<'_>,
        directory: &FileRef<'f, P, N>,
        name: &[u8],
    ) -> Result<FileRef<'f, P, N>> {
        let attributes = self.attributes(directory.at);
        if attributes.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        credentials.check(&attributes.protection(), Want::EXECUTE)?;
        self.step(directory, name)
    }

    /// Creates a file of any type.
    pub fn make<'f>(
        &'f self,
        credentials: &Credentials<'_>,
        directory: &FileRef<'f, P, N>,
        name: &[u8],
        arguments: &CreateArguments<'_>,
    ) -> Result<FileRef<'f, P, N>> {
        match self.make_or_find(credentials, directory, name, arguments)? {
            MadeOrFound::New(held) => Ok(held),
            MadeOrFound::There(_) => Err(Errno::EEXIST.into()),
        }
    }

    pub(super) fn make_or_find<'f>(
        &'f self,
        credentials: &Credentials<'_>,
        directory: &FileRef<'f, P, N>,
        name: &[u8],
        arguments: &CreateArguments<'_>,
    ) -> Result<MadeOrFound<'f, P, N>> {
        if name.len() > P::NAME_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        self.make_room()?;
        let mut locked = self.inodes.write(directory.at.inode);
        if let Some(known) = N::find_locked(self, directory.at, locked.shared()?, name)? {
            return Ok(MadeOrFound::There(self.held(known.at)));
        }
        let mut exclusive = locked.exclusive()?;
        let attributes = exclusive.attributes.get();
        may_change(credentials, &attributes)?;
        if arguments.kind == FileKind::Directory && attributes.links >= LINKS_MAX {
            return Err(Errno::EMLINK.into());
        }
        let new = new_file(credentials, &attributes, arguments);
        let made = self.fs.create(&mut exclusive, Name::new(name), &new, now_ns())?;
        let inode = self.inodes.insert(&self.fs, made.file)?;
        let fresh = arguments.kind == FileKind::Directory;
        let locked = locked.shared()?;
        let at = N::made(self, MadeName { directory: directory.at, locked, name, inode, entry: made.entry, fresh })?;
        Ok(MadeOrFound::New(self.held(at)))
    }

    /// Adds a name to a file.
    pub fn link_held(
        &self,
        credentials: &Credentials<'_>,
        file: &FileRef<'_, P, N>,
        directory: &FileRef<'_, P, N>,
        name: &[u8],
    ) -> Result<()> {
        if name.len() > P::NAME_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        self.make_room()?;
        let mut locked = self.inodes.write(directory.at.inode);
        if let Some(known) = N::find_locked(self, directory.at, locked.shared()?, name)? {
            drop(locked);
            drop(self.held(known.at));
            return Err(Errno::EEXIST.into());
        }
        may_change(credentials, &self.attributes(directory.at))?;
        if self.attributes(file.at).kind == FileKind::Directory {
            return Err(Errno::EPERM.into());
        }
        let mut file_locked = self.inodes.write(file.at.inode);
        match self.attributes(file.at).links {
            0 => return Err(Errno::ENOENT.into()),
            links if links >= LINKS_MAX => return Err(Errno::EMLINK.into()),
            _ => {}
        }
        let (mut one, mut two) = (file_locked.exclusive()?, locked.exclusive()?);
        let entry = self.fs.link(&mut one, &mut two, Name::new(name), now_ns())?;
        drop(file_locked);
        self.inodes.retain(file.at.inode);
        let making = MadeName {
            directory: directory.at,
            locked: locked.shared()?,
            name,
            inode: file.at.inode,
            entry,
            fresh: false,
        };
        let at = N::made(self, making)?;
        N::release(self, at)
    }

    /// Removes a name: of a directory if `is_directory`, otherwise of any other file.
    pub fn remove(
        &self,
        credentials: &Credentials<'_>,
        directory: &FileRef<'_, P, N>,
        name: &[u8],
        is_directory: bool,
    ) -> Result<()> {
        if name.len() > P::NAME_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        // Dropped after the locks, since the last reference frees the file.
        let file;
        let mut locked = self.inodes.write(directory.at.inode);
        let known = N::find_locked(self, directory.at, locked.shared()?, name)?.ok_or(Errno::ENOENT)?;
        file = self.held(known.at);
        let above = self.attributes(directory.at);
        let attributes = self.attributes(file.at);
        let refused = may_change(credentials, &above)
            .err()
            .or_else(|| self.may_remove(credentials, &above, &attributes, is_directory));
        let removed = match refused {
            Some(error) => Err(error),
            None => self.remove_locked(&mut locked, name, &known, is_directory),
        };
        if removed.is_ok() {
            N::removed(self, directory.at, name, file.at, known.entry)?;
        }
        drop(locked);
        drop(file);
        removed
    }

    fn may_remove(
        &self,
        credentials: &Credentials<'_>,
        above: &Attributes,
        file: &Attributes,
        is_directory: bool,
    ) -> Option<Error> {
        if let Err(errno) = credentials.check_sticky(&above.protection(), (file.uid, file.gid)) {
            return Some(errno.into());
        }
        match (is_directory, file.kind == FileKind::Directory) {
            (true, false) => Some(Errno::ENOTDIR.into()),
            (false, true) => Some(Errno::EISDIR.into()),
            _ => None,
        }
    }

    fn remove_locked(
        &self,
        locked: &mut super::icache::WriteLocked<'_, P::Info>,
        name: &[u8],
        known: &Known,
        is_directory: bool,
    ) -> Result<()> {
        let mut file = self.inodes.write(known.at.inode);
        let (mut above, mut file) = (locked.exclusive()?, file.exclusive()?);
        let name = Name { bytes: name, entry: known.entry };
        if is_directory {
            self.fs.rmdir(&mut above, name, &mut file, now_ns())
        } else {
            self.fs.unlink(&mut above, name, &mut file, now_ns())
        }
    }

    /// The directories from one up to the root, by slot.
    fn ancestry(&self, directory: &FileRef<'_, P, N>) -> Result<Vec<u32>> {
        let mut slots = vec![directory.at.inode];
        let mut here = directory.clone();
        while here.at.inode != self.root.inode && self.attributes(here.at).links != 0 {
            here = self.held(N::parent(self, here.at)?);
            slots.push(here.at.inode);
            // Only a damaged image has an endless chain of parents.
            if slots.len() > DEPTH_MAX {
                return Err(Errno::EUCLEAN.into());
            }
        }
        Ok(slots)
    }

    /// Renames, with the semantics of renameat2(2).
    pub fn rename_held(
        &self,
        credentials: &Credentials<'_>,
        from: (&FileRef<'_, P, N>, &[u8]),
        to: (&FileRef<'_, P, N>, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        if from.1.len() > P::NAME_MAX || to.1.len() > P::NAME_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        if flags.whiteout.is_some() {
            return Err(Errno::EINVAL.into());
        }
        self.make_room()?;
        let is_move = from.0.at.inode != to.0.at.inode;
        let _renames = is_move.then(|| self.lock_renames());
        let (above_from, above_to) =
            if is_move { (self.ancestry(from.0)?, self.ancestry(to.0)?) } else { Default::default() };
        let from_first = if above_to.contains(&from.0.at.inode) {
            true
        } else {
            !above_from.contains(&to.0.at.inode) && from.0.at.inode < to.0.at.inode
        };
        // Dropped after the locks.
        let (file, other);
        let (mut from_locked, mut to_locked);
        if !is_move {
            (from_locked, to_locked) = (self.inodes.write(from.0.at.inode), None);
        } else if from_first {
            from_locked = self.inodes.write(from.0.at.inode);
            to_locked = Some(self.inodes.write(to.0.at.inode));
        } else {
            to_locked = Some(self.inodes.write(to.0.at.inode));
            from_locked = self.inodes.write(from.0.at.inode);
        }
        let (above, below) = (self.attributes(from.0.at), self.attributes(to.0.at));
        let found = N::find_locked(self, from.0.at, from_locked.shared()?, from.1)?.ok_or(Errno::ENOENT)?;
        file = self.held(found.at);
        let there = to_locked.as_ref().unwrap_or(&from_locked).shared()?;
        let found_other = N::find_locked(self, to.0.at, there, to.1)?;
        other = found_other.as_ref().map(|known| self.held(known.at));
        let plan =
            self.plan_rename(credentials, (&above, &above_from), (&below, &above_to), &file, other.as_ref(), flags);
        let result = match plan {
            Ok(false) => Ok(()),
            Ok(true) => {
                let known = (&found, found_other.as_ref());
                self.rename_locked(from, to, &mut from_locked, to_locked.as_mut(), known, flags.exchange)
            }
            Err(error) => Err(error),
        };
        drop((from_locked, to_locked));
        drop((file, other));
        result
    }

    /// Checks all conditions of a rename. Returns false if there is nothing to do.
    fn plan_rename(
        &self,
        credentials: &Credentials<'_>,
        (from, above_from): (&Attributes, &[u32]),
        (to, above_to): (&Attributes, &[u32]),
        file: &FileRef<'_, P, N>,
        other: Option<&FileRef<'_, P, N>>,
        flags: RenameFlags,
    ) -> Result<bool> {
        let is_move = from.number != to.number;
        let moving = self.attributes(file.at);
        if flags.no_replace && other.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if flags.exchange && other.is_none() {
            return Err(Errno::ENOENT.into());
        }
        if above_to.contains(&file.at.inode) {
            return Err(Errno::EINVAL.into());
        }
        if let Some(other) = other
            && above_from.contains(&other.at.inode)
        {
            return Err(if flags.exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into());
        }
        if other.is_some_and(|other| other.at.inode == file.at.inode) {
            return Ok(false);
        }
        may_change(credentials, from)?;
        may_change(credentials, to)?;
        credentials.check_sticky(&from.protection(), (moving.uid, moving.gid))?;
        let is_directory = moving.kind == FileKind::Directory;
        if is_move && is_directory {
            credentials.check(&moving.protection(), Want::WRITE)?;
        }
        let Some(other) = other else {
            let full = is_move && is_directory && to.links >= LINKS_MAX;
            return if full { Err(Errno::EMLINK.into()) } else { Ok(true) };
        };
        let replaced = self.attributes(other.at);
        credentials.check_sticky(&to.protection(), (replaced.uid, replaced.gid))?;
        let other_is_directory = replaced.kind == FileKind::Directory;
        match (is_directory, other_is_directory) {
            _ if flags.exchange => {
                if is_move && other_is_directory {
                    credentials.check(&replaced.protection(), Want::WRITE)?;
                }
                Ok(true)
            }
            (true, false) => Err(Errno::ENOTDIR.into()),
            (false, true) => Err(Errno::EISDIR.into()),
            _ => Ok(true),
        }
    }

    fn rename_locked(
        &self,
        from: (&FileRef<'_, P, N>, &[u8]),
        to: (&FileRef<'_, P, N>, &[u8]),
        from_locked: &mut super::icache::WriteLocked<'_, P::Info>,
        to_locked: Option<&mut super::icache::WriteLocked<'_, P::Info>>,
        (file, other): (&Known, Option<&Known>),
        exchange: bool,
    ) -> Result<()> {
        let renamed = {
            let other_slot = other.map(|other| other.at.inode);
            let lock_other = || other_slot.map(|slot| self.inodes.write(slot));
            let (mut file_locked, mut other_locked);
            if other_slot.is_some_and(|slot| slot < file.at.inode) {
                other_locked = lock_other();
                file_locked = self.inodes.write(file.at.inode);
            } else {
                file_locked = self.inodes.write(file.at.inode);
                other_locked = lock_other();
            }
            let mut from_exclusive = from_locked.exclusive()?;
            let mut to_exclusive = to_locked.map(|locked| locked.exclusive()).transpose()?;
            let mut file_exclusive = file_locked.exclusive()?;
            let mut other_exclusive = other_locked.as_mut().map(|locked| locked.exclusive()).transpose()?;
            self.fs.rename(Renaming {
                from: &mut from_exclusive,
                from_name: Name { bytes: from.1, entry: file.entry },
                to: to_exclusive.as_mut(),
                to_name: Name { bytes: to.1, entry: other.and_then(|other| other.entry) },
                file: &mut file_exclusive,
                other: other_exclusive.as_mut(),
                exchange,
                now_ns: now_ns(),
            })?
        };
        N::moved(
            self,
            &Moved {
                from: from.0.at,
                from_name: from.1,
                to: to.0.at,
                to_name: to.1,
                file: file.at,
                other: other.map(|other| other.at),
                exchange,
                entries: [file.entry, other.and_then(|other| other.entry)],
                renamed,
            },
        )
    }

    /// Changes attributes as `decide` says. It sees the present attributes under the file's lock
    /// and may refuse.
    pub fn change(
        &self,
        file: &FileRef<'_, P, N>,
        decide: impl FnOnce(&Attributes) -> std::result::Result<Changes, Errno>,
    ) -> Result<Attributes> {
        let mut locked = self.inodes.write(file.at.inode);
        let mut exclusive = locked.exclusive()?;
        let changes = decide(&exclusive.attributes.get())?;
        self.fs.change(&mut exclusive, &changes, now_ns())?;
        Ok(exclusive.attributes.get())
    }

    /// Visits the names of a directory after a cookie.
    pub fn read_directory_held(
        &self,
        directory: &FileRef<'_, P, N>,
        cookie: u64,
        visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        if self.attributes(directory.at).kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let locked = self.inodes.read(directory.at.inode);
        self.fs.read_directory(locked.shared()?, cookie, visit)
    }

    /// Reads the target of a symbolic link.
    pub fn read_link_held(&self, link: &FileRef<'_, P, N>) -> Result<Vec<u8>> {
        let attributes = self.attributes(link.at);
        if attributes.kind != FileKind::Symlink {
            return Err(Errno::EINVAL.into());
        }
        let mut target = vec![0; 4096];
        let locked = self.inodes.read(link.at.inode);
        let length = self.fs.read_link(locked.shared()?, &mut target)?;
        target.truncate(length);
        Ok(target)
    }

    /// Parent and name for a call that creates a name. Only a directory's name may have a trailing
    /// slash.
    pub(super) fn resolve_new<'f, 'p>(
        &'f self,
        credentials: &Credentials<'_>,
        path: &'p [u8],
        is_directory: bool,
    ) -> Result<Parent<'f, 'p, P, N>> {
        let parent = self.resolve_parent(credentials, path)?;
        if parent.last != Last::Name {
            return Err(Errno::EEXIST.into());
        }
        if parent.slash && !is_directory {
            let there = self.step(&parent.directory, parent.name()).is_ok();
            return Err(if there { Errno::EEXIST } else { Errno::ENOENT }.into());
        }
        Ok(parent)
    }
}
