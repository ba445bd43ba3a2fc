//! Attributes: stat, access, chmod, chown, utimens, statfs; and the rules for clearing set-id bits.

use crate::caller::Caller;
use crate::components::Data;
use crate::credentials::{Capabilities, Credentials, Want};
use crate::file_flags::KEEP_ATTRIBUTES;
use crate::path::{LastLink, Outcome, PathBuffer, WalkStart, inside};
use engine::format::{FileKind, NAME_BYTES_MAX};
use engine::{Attributes, Changes, Error, FileFlags, Node, Protection};
use pmem::{BLOCK_BYTES, Memory};
use tables::watch::event;
use tables::{Errno, OpenFile, Result};

/// Permission bits that chmod changes.
const PERMISSIONS: u32 = 0o7777;
/// The attribute with a program's capabilities.
const FILE_CAPABILITIES: &[u8] = b"security.capability";
/// A read updates an access time older than this even if the file did not change (relatime).
const ACCESS_TIME_LAG_NS: i64 = 24 * 3600 * 1_000_000_000;

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeToSet {
    /// Leave it unchanged.
    Omit,
    /// The present time.
    Now,
    /// This time, in ns since 1970.
    At(i64),
}

impl TimeToSet {
    /// From a `timespec` of utimensat. EINVAL for ns out of range, and for years that 64 bits of ns
    /// cannot represent (before 1678, after 2262): rejected, never wrapped.
    pub fn from_timespec(seconds: i64, nanoseconds: i64) -> Result<TimeToSet> {
        match nanoseconds {
            libc::UTIME_NOW => Ok(TimeToSet::Now),
            libc::UTIME_OMIT => Ok(TimeToSet::Omit),
            0..=999_999_999 => {
                let at = seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(nanoseconds));
                at.map(TimeToSet::At).ok_or(Errno::EINVAL)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn resolve(self, now_ns: i64) -> Option<i64> {
        match self {
            TimeToSet::Omit => None,
            TimeToSet::Now => Some(now_ns),
            TimeToSet::At(at_ns) => Some(at_ns),
        }
    }
}

/// Result of statfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemStatus {
    /// Block size in bytes.
    pub block_bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Blocks that one new file can hold, with the nodes of its block map in the others.
    pub blocks_available: u64,
    /// Number of inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_bytes_max: u64,
}

/// The blocks of one new file, if so many are free.
fn available(free: u64) -> u64 {
    /// Blocks below a node.
    const NODE_BLOCKS: u64 = 512;
    /// For the file's name and inode.
    const OTHERS: u64 = 2;
    let (mut nodes, mut below) = (0, free);
    while below > 1 {
        below = below.div_ceil(NODE_BLOCKS);
        nodes += below;
    }
    free.saturating_sub(nodes + OTHERS)
}

/// The set-id bits to clear when a caller without FSETID changes a file: set-user-id always;
/// set-group-id if the group may execute the file, or if the caller is not in the group.
fn dropped_set_id_bits(credentials: &Credentials<'_>, file: &Attributes) -> u32 {
    let mut fallen = file.mode & libc::S_ISUID;
    let group_executes = file.mode & libc::S_IXGRP != 0;
    if file.mode & libc::S_ISGID != 0 && (group_executes || !credentials.keeps_set_gid((file.uid, file.gid))) {
        fallen |= libc::S_ISGID;
    }
    fallen
}

impl<M: Memory> Caller<'_, '_, M> {
    /// stat by node.
    pub fn stat(&self, node: Node) -> Result<Attributes> {
        Ok(self.thread.stat(node)?)
    }

    /// stat by path: returns the result of `report` on the attributes. `report` must not call the
    /// engine.
    #[inline]
    pub fn query_path<T>(
        &self,
        walk_start: &WalkStart,
        path: &[u8],
        last_link: LastLink,
        buffer: &mut PathBuffer,
        mut report: impl FnMut(&Attributes) -> Result<T>,
    ) -> Result<Outcome<T>> {
        if let Some(result) = self.paths().query_fast(walk_start, path, last_link, |_, attributes| report(attributes)) {
            return result;
        }
        Ok(match self.stat_slow(walk_start, path, last_link, buffer)? {
            Outcome::Inside(attributes) => Outcome::Inside(report(&attributes)?),
            Outcome::Left(exit) => Outcome::Left(exit),
        })
    }

    /// stat by path.
    #[inline]
    pub fn stat_path(
        &self,
        walk_start: &WalkStart,
        path: &[u8],
        last_link: LastLink,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<Attributes>> {
        self.query_path(walk_start, path, last_link, buffer, |attributes| Ok(*attributes))
    }

    /// stat by any path. Takes no reference to the file unless the last component is followed.
    #[cold]
    fn stat_slow(
        &self,
        walk_start: &WalkStart,
        path: &[u8],
        last_link: LastLink,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<Attributes>> {
        let found = inside!(self.paths().at_last(walk_start, path, buffer, |directory, name, slash| {
            if slash || matches!(name, b"" | b"." | b"..") {
                return Ok(None);
            }
            let attributes = self.thread.stat_name(directory, name)?;
            let is_end = attributes.kind != FileKind::Symlink || last_link == LastLink::Stay;
            Ok(is_end.then_some(attributes))
        })?);
        if let Some(attributes) = found {
            return Ok(Outcome::Inside(attributes));
        }
        self.at_path(walk_start, path, last_link, buffer, |node| self.stat(node))
    }

    /// stat by name, without taking a reference. Symbolic links are not followed.
    pub fn stat_name(&self, directory: Node, name: &[u8]) -> Result<Attributes> {
        if !self.credentials.checked {
            self.permissions().check_search(directory)?;
        }
        Ok(self.thread.stat_name(directory, name)?)
    }

    /// access(2), with this caller's ids. For access and faccessat the VFS layer passes the real
    /// ids (with root's capabilities only if the real user is root); for AT_EACCESS the effective
    /// ones.
    pub fn access(&self, node: Node, want: Want) -> Result<()> {
        if want.0 & !7 != 0 {
            return Err(Errno::EINVAL);
        }
        self.permissions().check(node, want).map(drop)
    }

    /// access(2) for a file with known protection.
    pub fn access_of(&self, file: &Protection, want: Want) -> Result<()> {
        if want.0 & !7 != 0 {
            return Err(Errno::EINVAL);
        }
        self.permissions().check_protection(file, want)
    }

    /// `access_of` for a file without a reference. `None`: an access list decides, and must be
    /// read.
    #[inline]
    pub fn access_by_mode(&self, file: &Protection, want: Want) -> Result<Option<()>> {
        let by_list = file.flags.has_any(FileFlags::ACCESS_LIST);
        if by_list { Ok(None) } else { self.access_of(file, want).map(Some) }
    }

    /// access(2) by path.
    #[inline]
    pub fn access_path(
        &self,
        walk_start: &WalkStart,
        path: &[u8],
        last_link: LastLink,
        want: Want,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        let by_mode = |_, file: &Protection| self.access_by_mode(file, want);
        match self.paths().query_fast(walk_start, path, last_link, by_mode) {
            Some(Ok(Outcome::Inside(Some(())))) => Ok(Outcome::Inside(())),
            Some(Err(refused)) => Err(refused),
            _ => self.at_path(walk_start, path, last_link, buffer, |node| self.access(node, want)),
        }
    }

    /// chmod.
    pub fn chmod(&self, node: Node, mode: u32) -> Result<Attributes> {
        self.permissions().check_writable()?;
        let credentials = self.credentials;
        let changed = self.thread.change(node, |file| {
            if file.kind == FileKind::Symlink {
                return Err(Error::NotSupported);
            }
            if file.flags.has_any(KEEP_ATTRIBUTES) || !credentials.owns(file.uid) {
                return Err(Errno::EPERM.refusal());
            }
            let mut permissions = mode & PERMISSIONS;
            if !credentials.checked && !credentials.keeps_set_gid((file.uid, file.gid)) {
                permissions &= !libc::S_ISGID;
            }
            Ok(Changes { permissions: Some(permissions), ..Changes::default() })
        })?;
        self.reports().notify_node(node, changed.kind == FileKind::Directory, event::ATTRIB);
        Ok(changed)
    }

    /// chown, with ids as in the caller's user namespace. Clears set-id bits of anything but a
    /// directory, even for root.
    pub fn chown(&self, node: Node, uid: Option<u32>, gid: Option<u32>) -> Result<Attributes> {
        let credentials = self.credentials;
        let uid = uid.map(|uid| credentials.user_of(uid)).transpose()?;
        let gid = gid.map(|gid| credentials.group_of(gid)).transpose()?;
        self.permissions().check_writable()?;
        let changed = self.thread.change(node, |file| {
            let keeps = file.flags.has_any(KEEP_ATTRIBUTES) && (uid.is_some() || gid.is_some());
            if keeps || !Self::may_chown(&credentials, file, uid, gid) {
                return Err(Errno::EPERM.refusal());
            }
            let fallen = if file.kind == FileKind::Directory { 0 } else { dropped_set_id_bits(&credentials, file) };
            let permissions = (fallen != 0).then_some(file.mode & PERMISSIONS & !fallen);
            Ok(Changes { permissions, uid, gid, ..Changes::default() })
        })?;
        if changed.kind == FileKind::Regular {
            self.data().drop_file_capabilities(node, &changed)?;
        }
        if uid.is_some() || gid.is_some() {
            self.reports().notify_node(node, changed.kind == FileKind::Directory, event::ATTRIB);
        }
        Ok(changed)
    }

    fn may_chown(credentials: &Credentials<'_>, file: &Attributes, uid: Option<u32>, gid: Option<u32>) -> bool {
        let is_owner = credentials.uid == file.uid;
        let uid_ok = uid.is_none_or(|uid| is_owner && uid == file.uid);
        let gid_ok = gid.is_none_or(|gid| is_owner && (gid == file.gid || credentials.is_in_group(gid)));
        (uid_ok && gid_ok) || credentials.checked || credentials.has_over(Capabilities::CHOWN, (file.uid, file.gid))
    }

    /// utimensat. With both times omitted the kernel does not even resolve the path, so the VFS
    /// layer returns earlier.
    pub fn set_times(&self, node: Node, accessed: TimeToSet, modified: TimeToSet) -> Result<Attributes> {
        if (accessed, modified) == (TimeToSet::Omit, TimeToSet::Omit) {
            return self.stat(node);
        }
        self.permissions().check_writable()?;
        let now_ns = tables::host::now_ns();
        let touch = (accessed, modified) == (TimeToSet::Now, TimeToSet::Now);
        let kept_by = if touch { FileFlags::IMMUTABLE } else { KEEP_ATTRIBUTES };
        let changed = self.thread.change(node, |file| {
            if file.flags.has_any(kept_by) {
                return Err(Errno::EPERM.refusal());
            }
            if !self.credentials.owns(file.uid) {
                let refused =
                    if touch { self.permissions().permit(&file.protection(), Want::WRITE) } else { Err(Errno::EPERM) };
                refused.map_err(Errno::refusal)?;
            }
            Ok(Changes {
                accessed_ns: accessed.resolve(now_ns),
                modified_ns: modified.resolve(now_ns),
                ..Changes::default()
            })
        })?;
        let mask = match (accessed, modified) {
            (_, TimeToSet::Omit) => event::ACCESS,
            (TimeToSet::Omit, _) => event::MODIFY,
            _ => event::ATTRIB,
        };
        self.reports().notify_node(node, changed.kind == FileKind::Directory, mask);
        Ok(changed)
    }

    /// statfs.
    pub fn statfs(&self) -> Result<FileSystemStatus> {
        let space = self.thread.space()?;
        Ok(FileSystemStatus {
            block_bytes: BLOCK_BYTES,
            blocks: space.blocks,
            blocks_free: space.blocks_free,
            blocks_available: available(space.blocks_free.saturating_sub(space.blocks_reserved)),
            files: space.inodes,
            files_free: space.inodes_free,
            name_bytes_max: NAME_BYTES_MAX as u64,
        })
    }
}

impl<M: Memory> Data<'_, '_, M> {
    /// Clears set-id bits and file capabilities, as a change of content must. Cheap if there are
    /// none. EPERM if the file keeps its content: it is immutable (also if it became so after it
    /// was opened), or has one of the flags `kept_by`.
    pub(crate) fn strip_privileges(self, node: Node, kept_by: FileFlags) -> Result<()> {
        let file = self.thread.stat(node)?;
        if file.flags.has_any(FileFlags::IMMUTABLE.with(kept_by)) {
            return Err(Errno::EPERM);
        }
        if file.kind != FileKind::Regular {
            return Ok(());
        }
        let credentials = self.credentials;
        if !credentials.has(Capabilities::FSETID) && dropped_set_id_bits(credentials, &file) != 0 {
            self.thread.change(node, |file| {
                let kept = file.mode & PERMISSIONS & !dropped_set_id_bits(credentials, file);
                Ok(Changes { permissions: Some(kept), ..Changes::default() })
            })?;
            self.reports().notify_node(node, false, event::ATTRIB);
        }
        self.drop_file_capabilities(node, &file)
    }

    /// Only executable files are checked for capabilities: elsewhere they have no effect, and a
    /// write need not pay for the query.
    fn drop_file_capabilities(self, node: Node, file: &Attributes) -> Result<()> {
        if file.mode & 0o111 == 0 {
            return Ok(());
        }
        match self.thread.files().xattr(node, FILE_CAPABILITIES, &mut []) {
            Ok(_) => Ok(self.thread.files().remove_xattr(node, FILE_CAPABILITIES)?),
            Err(Error::NoAttribute | Error::NotSupported) => Ok(()),
            Err(other) => Err(other.into()),
        }
    }

    /// Records a read through a description, unless O_NOATIME is set.
    pub(crate) fn record_read(self, file: &OpenFile) -> Result<()> {
        if file.flags() & libc::O_NOATIME != 0 { Ok(()) } else { self.record_access(file.node()) }
    }

    /// Updates the access time after a read, as rarely as relatime permits.
    pub(crate) fn record_access(self, node: Node) -> Result<()> {
        if self.thread.fs().is_read_only() {
            return Ok(());
        }
        let file = self.thread.stat(node)?;
        let now_ns = tables::host::now_ns();
        let stale = file.accessed_ns <= file.modified_ns
            || file.accessed_ns <= file.changed_ns
            || now_ns.saturating_sub(file.accessed_ns) >= ACCESS_TIME_LAG_NS;
        if stale && now_ns != file.accessed_ns && !file.flags.has_any(FileFlags::NO_ACCESS_TIME) {
            self.thread.touch_accessed(node, now_ns)?;
        }
        Ok(())
    }
}
