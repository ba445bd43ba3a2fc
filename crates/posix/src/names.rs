//! Making, removing, linking and renaming names: permission rules and the order of errors around
//! the engine's atomic operations.
//!
//! The engine decides races. This layer checks permissions before the operation. Only after a
//! failure does it check again which error Linux reports first.

use crate::caller::{Caller, NodeRef};
use crate::credentials::{Capabilities, Want};
use crate::file_flags::{INHERITED, KEEP_NAME};
use crate::path::{Last, LastLink, Outcome, Parent, PathBuffer, WalkStart, inside};
use core::cell::Cell;
use engine::format::FileKind;
use engine::{Attributes, Error, FileFlags, NameLocation, NewNode, Node, Protection, RenameFlags};
use pmem::Memory;
use tables::{Errno, Result};

/// Maximal number of names of a file.
pub const LINKS_MAX: u32 = 65_000;

/// What to create at a name.
#[derive(Clone, Copy)]
pub(crate) struct CreateArguments<'a> {
    pub kind: FileKind,
    /// Permission bits before the umask.
    pub mode: u32,
    /// Bits of `mode` to clear, unless the directory's default list decides.
    pub umask: u32,
    pub device: u32,
    pub target: &'a [u8],
}

impl<'t, 'f, M: Memory> Caller<'t, 'f, M> {
    /// Owner and group of a new file: in a set-group-id directory the group is the directory's.
    fn new_owner(&self, directory: &Protection) -> (u32, u32) {
        let inherits = directory.mode & libc::S_ISGID != 0;
        (self.credentials.uid, if inherits { directory.gid } else { self.credentials.gid })
    }

    /// Owner, group and permissions of a new file before the umask. In a set-group-id directory
    /// new directories inherit the bit.
    fn new_node<'a>(&self, directory: &Protection, arguments: &CreateArguments<'a>) -> NewNode<'a> {
        let inherits = directory.mode & libc::S_ISGID != 0;
        let (uid, gid) = self.new_owner(directory);
        let mut permissions = arguments.mode & 0o7777;
        if arguments.kind == FileKind::Directory {
            permissions &= 0o1777;
            if inherits {
                permissions |= libc::S_ISGID;
            }
        } else if inherits && !self.credentials.checked {
            // No caller may create a program that runs with a foreign group.
            let runs_as_group = libc::S_ISGID | libc::S_IXGRP;
            if arguments.mode & runs_as_group == runs_as_group && !self.credentials.keeps_set_gid((directory.uid, gid))
            {
                permissions &= !libc::S_ISGID;
            }
        }
        if arguments.kind == FileKind::Symlink {
            permissions = 0o777;
        }
        let flags = match arguments.kind {
            FileKind::Regular | FileKind::Directory => directory.flags.only(INHERITED),
            _ => FileFlags::NONE,
        };
        let CreateArguments { kind, device, target, .. } = *arguments;
        NewNode { kind, permissions, uid, gid, device, target, extended: &[], flags }
    }

    /// Calls `create` with the new file, including all that it inherits from the directory.
    pub(crate) fn make_by<R>(
        &self,
        directory: Node,
        here: &Protection,
        arguments: &CreateArguments<'_>,
        create: impl FnOnce(&NewNode<'_>) -> Result<R>,
    ) -> Result<R> {
        let mut new = self.new_node(here, arguments);
        if here.flags.has_any(FileFlags::ACCESS_LIST) && arguments.kind != FileKind::Symlink {
            return self.permissions().make_inheriting(directory, new, arguments.umask, create);
        }
        new.permissions &= !arguments.umask;
        create(&new)
    }

    /// Creates a file of any kind at a name.
    pub(crate) fn make(
        &self,
        directory: Node,
        name: &[u8],
        arguments: &CreateArguments<'_>,
    ) -> Result<NodeRef<'t, 'f, M>> {
        let walk_start = self.thread.name_location(directory, name);
        self.thread.prefetch_name(&walk_start);
        self.make_at(&walk_start, false, arguments)
    }

    /// `make` for a prefetched or already checked location; `seems_absent` as for
    /// [`Thread::create_at`](engine::Thread::create_at).
    pub(crate) fn make_at(
        &self,
        walk_start: &NameLocation<'_>,
        seems_absent: bool,
        arguments: &CreateArguments<'_>,
    ) -> Result<NodeRef<'t, 'f, M>> {
        let directory = walk_start.directory();
        let here = self.permissions().check_search(directory)?;
        if let Err(refused) = self.permissions().check_protection(&here, Want::CHANGE_NAMES) {
            return Err(self.unless_exists(directory, walk_start.name(), refused));
        }
        let create = |new: &NewNode<'_>| Ok(self.thread.create_at(walk_start, seems_absent, new)?);
        let node = self.make_by(directory, &here, arguments, create)?;
        if self.reports().is_watched() {
            self.reports().notify_created(directory, walk_start.name(), node, arguments.kind == FileKind::Directory);
        }
        Ok(NodeRef::owned(self.thread, node))
    }

    /// The error that Linux reports if a name cannot be created: an existing or too long name takes
    /// precedence over the refusal.
    fn unless_exists(&self, directory: Node, name: &[u8], refused: Errno) -> Errno {
        match self.thread.stat_name(directory, name) {
            Ok(_) => Errno::EEXIST,
            Err(Error::NotFound) => refused,
            Err(other) => other.into(),
        }
    }

    /// mkdir.
    pub fn mkdir(&self, directory: Node, name: &[u8], mode: u32, umask: u32) -> Result<NodeRef<'t, 'f, M>> {
        // mkdir ignores set-id bits, but not the sticky bit.
        let arguments =
            CreateArguments { kind: FileKind::Directory, mode: mode & 0o1777, umask, device: 0, target: b"" };
        self.make(directory, name, &arguments)
    }

    /// mknod: regular files, FIFOs, sockets, and devices with the capability. `mode` includes the
    /// type.
    pub fn mknod(
        &self,
        directory: Node,
        name: &[u8],
        mode: u32,
        umask: u32,
        device: u32,
    ) -> Result<NodeRef<'t, 'f, M>> {
        let (kind, device) = self.node_kind(mode, device)?;
        let arguments = CreateArguments { kind, mode, umask, device, target: b"" };
        if matches!(kind, FileKind::Character | FileKind::Block) && !self.may_make_device(kind, device) {
            // Errors of the name take precedence over the missing capability.
            self.permissions().check_search(directory)?;
            self.permissions().check_writable().map_err(|refused| self.unless_exists(directory, name, refused))?;
            let refused = self.permissions().check(directory, Want::CHANGE_NAMES).err().unwrap_or(Errno::EPERM);
            return Err(self.unless_exists(directory, name, refused));
        }
        self.make(directory, name, &arguments)
    }

    /// The kind in mknod's mode; no type means a regular file.
    fn node_kind(&self, mode: u32, device: u32) -> Result<(FileKind, u32)> {
        if mode & libc::S_IFMT == 0 {
            return Ok((FileKind::Regular, 0));
        }
        match FileKind::from_mode(mode) {
            Some(FileKind::Directory) => Err(Errno::EPERM),
            Some(FileKind::Symlink) | None => Err(Errno::EINVAL),
            Some(kind @ (FileKind::Character | FileKind::Block)) => Ok((kind, device)),
            Some(kind) => Ok((kind, 0)),
        }
    }

    /// The character device 0:0 is an overlay's whiteout: no real device, so it needs no
    /// capability.
    fn may_make_device(&self, kind: FileKind, device: u32) -> bool {
        (kind == FileKind::Character && device == 0) || self.credentials.may(Capabilities::MKNOD)
    }

    /// symlink.
    pub fn symlink(&self, target: &[u8], directory: Node, name: &[u8]) -> Result<NodeRef<'t, 'f, M>> {
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target.len() >= crate::path::PATH_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let arguments = CreateArguments { kind: FileKind::Symlink, mode: 0o777, umask: 0, device: 0, target };
        self.make(directory, name, &arguments)
    }

    /// readlink; returns how many bytes of the target fit.
    pub fn readlink(&self, node: Node, target: &mut [u8]) -> Result<usize> {
        if self.thread.stat(node)?.kind != FileKind::Symlink {
            return Err(Errno::EINVAL);
        }
        let length = self.thread.read_link(node, target)?;
        self.data().record_access(node)?;
        Ok(length)
    }

    /// link. `unnamed`: a file without names may get one (it was opened by O_TMPFILE without
    /// O_EXCL).
    pub fn link(&self, node: Node, directory: Node, name: &[u8], unnamed: bool) -> Result<()> {
        let here = self.permissions().check_search(directory)?;
        if let Err(refused) = self.permissions().check_protection(&here, Want::CHANGE_NAMES) {
            return Err(self.unless_exists(directory, name, refused));
        }
        let file = self.thread.stat(node)?;
        let refused = match file.kind {
            _ if file.flags.has_any(KEEP_NAME) => Some(Errno::EPERM),
            FileKind::Directory => Some(Errno::EPERM),
            _ if file.links == 0 && !unnamed => Some(Errno::ENOENT),
            _ if file.links >= LINKS_MAX => Some(Errno::EMLINK),
            _ => None,
        };
        if let Some(refused) = refused {
            return Err(self.unless_exists(directory, name, refused));
        }
        self.thread.link(node, directory, name)?;
        if self.reports().is_watched() {
            self.reports().notify_linked(node, directory, name);
        }
        Ok(())
    }

    /// unlink.
    pub fn unlink(&self, directory: Node, name: &[u8]) -> Result<()> {
        self.remove(directory, name, false)
    }

    /// rmdir.
    pub fn rmdir(&self, directory: Node, name: &[u8]) -> Result<()> {
        self.remove(directory, name, true)
    }

    fn remove(&self, directory: Node, name: &[u8], is_directory: bool) -> Result<()> {
        if !self.reports().is_watched() {
            return self.remove_permitted(directory, name, is_directory, |_| {});
        }
        let removed = Cell::new(None);
        self.reports().remove_watched(directory, name, || {
            self.remove_permitted(directory, name, is_directory, |file| removed.set(Some(*file)))?;
            Ok(removed.get())
        })
    }

    /// Calls `seen` with what is about to be removed.
    #[inline(always)]
    fn remove_permitted(
        &self,
        directory: Node,
        name: &[u8],
        is_directory: bool,
        seen: impl Fn(&Attributes),
    ) -> Result<()> {
        let here = self.permissions().check_search(directory)?;
        self.permissions().check_writable()?;
        if let Err(refused) = self.permissions().permit(&here, Want::CHANGE_NAMES) {
            // A missing name takes precedence over the refusal.
            self.thread.stat_name(directory, name)?;
            return Err(refused);
        }
        let permit = |file: &Attributes| {
            seen(file);
            self.permit_removal(&here, file).map_err(Errno::refusal)
        };
        let removed = if is_directory {
            self.thread.remove_directory(directory, name, permit)
        } else {
            self.thread.unlink(directory, name, permit)
        };
        match removed {
            // The engine checks the kind before it calls `permit`; Linux checks the sticky bit
            // and flags first.
            Err(kind @ (Error::IsADirectory | Error::NotADirectory | Error::NotEmpty)) => {
                self.permit_removal(&here, &self.thread.stat_name(directory, name)?)?;
                Err(kind.into())
            }
            other => {
                if is_directory {
                    self.release_removed_parent();
                }
                Ok(other?)
            }
        }
    }

    /// Releases the cached parent directory if it was removed.
    fn release_removed_parent(&self) {
        if let Some(parent) = self.parent {
            parent.release_removed(self.thread);
        }
    }

    /// Whether a name of a directory may go: the sticky rule, and the flags of both.
    #[inline]
    fn permit_removal(&self, here: &Protection, file: &Attributes) -> Result<()> {
        self.credentials.check_sticky(here, (file.uid, file.gid))?;
        let keeps = here.flags.only(FileFlags::APPEND_ONLY).with(file.flags.only(KEEP_NAME));
        if keeps == FileFlags::NONE { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// renameat2. Unknown flags are EINVAL: ignoring one could destroy data.
    pub fn rename(&self, from: (Node, &[u8]), to: (Node, &[u8]), flags: u32) -> Result<()> {
        let flags = rename_flags(flags)?;
        if !self.reports().is_watched() {
            return self.rename_permitted(from, to, flags, |_, _| {});
        }
        let renamed = Cell::new(None);
        self.reports().rename_watched(from, to, flags, || {
            self.rename_permitted(from, to, flags, |old, new| renamed.set(Some((*old, new.copied()))))?;
            Ok(renamed.get())
        })
    }

    /// Calls `seen` with the file that is about to be moved, and the one at the new name.
    #[inline(always)]
    fn rename_permitted(
        &self,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
        flags: RenameFlags,
        seen: impl Fn(&Attributes, Option<&Attributes>),
    ) -> Result<()> {
        let here = self.permissions().check_search(from.0)?;
        let flags = RenameFlags { whiteout: flags.whiteout.map(|_| self.new_owner(&here)), ..flags };
        let there = self.permissions().check_search(to.0)?;
        self.permissions().check_writable()?;
        let allowed = self
            .permissions()
            .permit(&here, Want::CHANGE_NAMES)
            .and_then(|()| self.permissions().permit(&there, Want::CHANGE_NAMES));
        if let Err(refused) = allowed {
            return self.refuse_rename(from, to, flags, refused);
        }
        let moves = here.number != there.number;
        let permit = |old: &Attributes, new: Option<&Attributes>| {
            seen(old, new);
            self.permit_rename((&here, &there), old, new, moves, flags).map_err(Errno::refusal)
        };
        match self.thread.rename(from, to, flags, permit) {
            // The engine checks the kinds before it calls `permit`; Linux checks the sticky bits
            // and flags first.
            Err(kind @ (Error::IsADirectory | Error::NotADirectory | Error::NotEmpty)) => {
                for (directory, (node, name)) in [(&here, from), (&there, to)] {
                    self.permit_removal(directory, &self.thread.stat_name(node, name)?)?;
                }
                Err(kind.into())
            }
            other => {
                self.release_removed_parent();
                Ok(other?)
            }
        }
    }

    /// Sticky bits and flags on both sides. Moving a directory to another parent changes its `..`,
    /// which needs write permission on it.
    fn permit_rename(
        &self,
        (here, there): (&Protection, &Protection),
        old: &Attributes,
        new: Option<&Attributes>,
        moves: bool,
        flags: RenameFlags,
    ) -> Result<()> {
        self.permit_removal(here, old)?;
        if let Some(new) = new {
            self.permit_removal(there, new)?;
            if moves && flags.exchange && new.kind == FileKind::Directory {
                self.permissions().permit(&new.protection(), Want::WRITE)?;
            }
        }
        if moves && old.kind == FileKind::Directory {
            self.permissions().permit(&old.protection(), Want::WRITE)?;
        }
        Ok(())
    }

    /// The errors that Linux reports before it checks write permission on a directory.
    fn refuse_rename(&self, from: (Node, &[u8]), to: (Node, &[u8]), flags: RenameFlags, refused: Errno) -> Result<()> {
        let old = self.thread.stat_name(from.0, from.1)?;
        match self.thread.stat_name(to.0, to.1) {
            Ok(_) if flags.no_replace => Err(Errno::EEXIST),
            Ok(new) if new.number == old.number => Ok(()),
            Err(Error::NotFound) if flags.exchange => Err(Errno::ENOENT),
            Ok(_) | Err(Error::NotFound) => Err(refused),
            Err(other) => Err(other.into()),
        }
    }
}

fn rename_flags(flags: u32) -> Result<RenameFlags> {
    const NO_REPLACE: u32 = libc::RENAME_NOREPLACE;
    const EXCHANGE: u32 = libc::RENAME_EXCHANGE;
    const WHITEOUT: u32 = libc::RENAME_WHITEOUT;
    let has = |flag: u32| flags & flag != 0;
    if has(!(NO_REPLACE | EXCHANGE | WHITEOUT)) || has(EXCHANGE) && has(NO_REPLACE | WHITEOUT) {
        return Err(Errno::EINVAL);
    }
    // The owner is set once the directory is known.
    let whiteout = has(WHITEOUT).then_some((0, 0));
    Ok(RenameFlags { no_replace: has(NO_REPLACE), exchange: has(EXCHANGE), whiteout })
}

/// Calls by path: each resolves the parent, handles `.`, `..` and slashes, and then calls the
/// method by name.
impl<'t, 'f, M: Memory> Caller<'t, 'f, M> {
    /// Parent and name for a call that creates a name. Only a directory may be followed by a slash.
    fn resolve_new<'b>(
        &self,
        walk_start: &WalkStart,
        path: &[u8],
        directory_wanted: bool,
        buffer: &'b mut PathBuffer,
    ) -> Result<Outcome<Parent<'t, 'f, M>>> {
        let parent = inside!(self.paths().resolve_parent(walk_start, path, buffer)?);
        let Last::Name(name) = &parent.last else { return Err(Errno::EEXIST) };
        if parent.slash && !directory_wanted {
            return Err(self.unless_exists(parent.directory.node(), name.bytes(), Errno::ENOENT));
        }
        Ok(Outcome::Inside(parent))
    }

    /// mkdir by path.
    pub fn mkdir_path(
        &self,
        walk_start: &WalkStart,
        path: &[u8],
        mode: u32,
        umask: u32,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        if let Some((directory, name)) = self.paths().fast_parent(walk_start, path) {
            return self.mkdir(directory.node(), name, mode, umask).map(drop).map(Outcome::Inside);
        }
        let parent = inside!(self.resolve_new(walk_start, path, true, buffer)?);
        let directory = parent.directory.node();
        with_name(&parent.last, |name| self.mkdir(directory, name, mode, umask).map(drop)).map(Outcome::Inside)
    }

    /// mknod by path.
    pub fn mknod_path(
        &self,
        walk_start: &WalkStart,
        path: &[u8],
        (mode, umask): (u32, u32),
        device: u32,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        self.node_kind(mode, device)?;
        if let Some((directory, name)) = self.paths().fast_parent(walk_start, path) {
            return self.mknod(directory.node(), name, mode, umask, device).map(drop).map(Outcome::Inside);
        }
        let parent = inside!(self.resolve_new(walk_start, path, false, buffer)?);
        let directory = parent.directory.node();
        with_name(&parent.last, |name| self.mknod(directory, name, mode, umask, device).map(drop)).map(Outcome::Inside)
    }

    /// symlink by path.
    pub fn symlink_path(
        &self,
        target: &[u8],
        walk_start: &WalkStart,
        path: &[u8],
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if let Some((directory, name)) = self.paths().fast_parent(walk_start, path) {
            return self.symlink(target, directory.node(), name).map(drop).map(Outcome::Inside);
        }
        let parent = inside!(self.resolve_new(walk_start, path, false, buffer)?);
        let directory = parent.directory.node();
        with_name(&parent.last, |name| self.symlink(target, directory, name).map(drop)).map(Outcome::Inside)
    }

    /// link to a path, of a resolved node (the VFS layer knows whether links are followed there).
    pub fn link_path(
        &self,
        node: Node,
        unnamed: bool,
        walk_start: &WalkStart,
        path: &[u8],
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        if let Some((directory, name)) = self.paths().fast_parent(walk_start, path) {
            return self.link(node, directory.node(), name, unnamed).map(Outcome::Inside);
        }
        let parent = inside!(self.resolve_new(walk_start, path, false, buffer)?);
        let directory = parent.directory.node();
        with_name(&parent.last, |name| self.link(node, directory, name, unnamed)).map(Outcome::Inside)
    }

    /// link by paths that both qualify for the fast path, without following a symbolic link;
    /// otherwise `None`.
    #[inline]
    pub fn link_fast(
        &self,
        (from_start, from): (&WalkStart, &[u8]),
        (to_start, to): (&WalkStart, &[u8]),
    ) -> Option<Result<()>> {
        let (directory, name) = self.paths().fast_parent(to_start, to)?;
        // The line for the new name is fetched while the old name is looked up.
        self.thread.prefetch_name(&self.thread.name_location(directory.node(), name));
        match self
            .paths()
            .take_fast(from_start, from, LastLink::Stay, |file| self.thread.fs().prefetch_attributes(file))?
        {
            Ok((file, ..)) => Some(self.link(file.node(), directory.node(), name, false)),
            Err(error) => Some(Err(error)),
        }
    }

    /// unlink by path.
    pub fn unlink_path(&self, walk_start: &WalkStart, path: &[u8], buffer: &mut PathBuffer) -> Result<Outcome<()>> {
        if let Some((directory, name)) = self.paths().fast_parent(walk_start, path) {
            return self.unlink(directory.node(), name).map(Outcome::Inside);
        }
        let parent = inside!(self.paths().resolve_parent(walk_start, path, buffer)?);
        let Last::Name(name) = &parent.last else { return Err(Errno::EISDIR) };
        let directory = parent.directory.node();
        if parent.slash {
            self.permissions().check_writable()?;
            let kind = self.thread.stat_name(directory, name.bytes())?.kind;
            return Err(if kind == FileKind::Directory { Errno::EISDIR } else { Errno::ENOTDIR });
        }
        self.unlink(directory, name.bytes()).map(Outcome::Inside)
    }

    /// rmdir by path.
    pub fn rmdir_path(&self, walk_start: &WalkStart, path: &[u8], buffer: &mut PathBuffer) -> Result<Outcome<()>> {
        if let Some((directory, name)) = self.paths().fast_parent(walk_start, path) {
            return self.rmdir(directory.node(), name).map(Outcome::Inside);
        }
        let parent = inside!(self.paths().resolve_parent(walk_start, path, buffer)?);
        match &parent.last {
            Last::Name(name) => self.rmdir(parent.directory.node(), name.bytes()).map(Outcome::Inside),
            Last::Dot => Err(Errno::EINVAL),
            Last::DotDot => Err(Errno::ENOTEMPTY),
            Last::Root => Err(Errno::EBUSY),
        }
    }

    /// renameat2 by paths; `from` is walked first. If one of them leaves the mount, the VFS layer
    /// decides (mostly EXDEV).
    pub fn rename_path(
        &self,
        (from_start, from): (&WalkStart, &[u8]),
        (to_start, to): (&WalkStart, &[u8]),
        flags: u32,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        rename_flags(flags)?;
        if let Some(renamed) = self.rename_fast((from_start, from), (to_start, to), flags) {
            return renamed.map(Outcome::Inside);
        }
        let old = inside!(self.paths().resolve_parent(from_start, from, buffer)?);
        let new = inside!(self.paths().resolve_parent(to_start, to, buffer)?);
        self.rename_resolved(&old, &new, flags).map(Outcome::Inside)
    }

    /// renameat2 by paths that both qualify for the fast path; otherwise `None`.
    #[inline]
    pub fn rename_fast(
        &self,
        (from_start, from): (&WalkStart, &[u8]),
        (to_start, to): (&WalkStart, &[u8]),
        flags: u32,
    ) -> Option<Result<()>> {
        let (old, old_name) = self.paths().fast_parent(from_start, from)?;
        let (new, new_name) = self.paths().fast_second_parent(to_start, to)?;
        Some(self.rename((old.node(), old_name), (new.node(), new_name), flags))
    }

    /// renameat2 of two resolved paths, for VFS layers that walk them one by one.
    pub fn rename_resolved(&self, old: &Parent<'t, 'f, M>, new: &Parent<'t, 'f, M>, flags: u32) -> Result<()> {
        let known = rename_flags(flags)?;
        let Last::Name(old_name) = &old.last else { return Err(Errno::EBUSY) };
        let Last::Name(new_name) = &new.last else {
            return Err(if known.no_replace { Errno::EEXIST } else { Errno::EBUSY });
        };
        let from = (old.directory.node(), old_name.bytes());
        let to = (new.directory.node(), new_name.bytes());
        if old.slash || new.slash {
            self.check_rename_slashes(from, old.slash, to, new.slash, known)?;
        }
        self.rename(from, to, flags)
    }

    /// A slash after a name requires a directory: after the old name the existing file, after the
    /// new one the file that it becomes.
    fn check_rename_slashes(
        &self,
        from: (Node, &[u8]),
        from_slash: bool,
        to: (Node, &[u8]),
        to_slash: bool,
        flags: RenameFlags,
    ) -> Result<()> {
        self.permissions().check_writable()?;
        let is_directory = |at: (Node, &[u8])| self.thread.stat_name(at.0, at.1).map(|a| a.kind == FileKind::Directory);
        let old = is_directory(from)?;
        let new = is_directory(to);
        match new {
            Ok(_) if flags.no_replace => return Err(Errno::EEXIST),
            Ok(false) if flags.exchange && to_slash => return Err(Errno::ENOTDIR),
            Err(Error::NotFound) if flags.exchange => return Err(Errno::ENOENT),
            Err(Error::NotFound) | Ok(_) => {}
            Err(other) => return Err(other.into()),
        }
        let wrong = !old && (from_slash || (to_slash && !flags.exchange));
        if wrong { Err(Errno::ENOTDIR) } else { Ok(()) }
    }

    /// Calls `call` with the file of a path, for calls by node (stat, chmod, truncate, xattrs ...).
    pub fn at_path<T>(
        &self,
        walk_start: &WalkStart,
        path: &[u8],
        last_link: LastLink,
        buffer: &mut PathBuffer,
        call: impl FnOnce(Node) -> Result<T>,
    ) -> Result<Outcome<T>> {
        let found = inside!(self.paths().resolve(walk_start, path, last_link, buffer)?);
        call(found.node()).map(Outcome::Inside)
    }
}

fn with_name<T>(last: &Last, call: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
    match last {
        Last::Name(name) => call(name.bytes()),
        Last::Dot | Last::DotDot | Last::Root => Err(Errno::EEXIST),
    }
}
