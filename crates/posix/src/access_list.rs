//! Permissions: by mode, and by POSIX access control lists, `system.posix_acl_access` and
//! `system.posix_acl_default` (acl(5), in the kernel's layout of the attribute).
//!
//! Invariants
//! - A list is stored as an extended attribute, sorted by tag. It has a mask if it has named
//!   entries. Owner, mask and others come from the mode alone, so chmod need not change the list;
//!   reads of the list fill in these entries from the mode.
//! - An access list equivalent to a mode is not stored.
//! - A file whose attributes hold a list has [`FileFlags::ACCESS_LIST`], durably before the
//!   list exists. It may stay set without one.

use crate::caller::NodeRef;
use crate::components::Permissions;
use crate::credentials::{Credentials, Want};
use crate::file_flags::KEEP_ATTRIBUTES;
use engine::format::FileKind;
use engine::{Attributes, Changes, Error, FileFlags, NewNode, Node, Protection};
use pmem::{Memory, UserBytes, UserBytesMut};
use tables::{Errno, Result};

/// Attribute of the list that grants access.
pub(crate) const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// Attribute of the list that new entries of a directory inherit.
pub(crate) const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

/// Bytes of the version at the start.
const HEADER_BYTES: usize = 4;
/// The only defined version.
const VERSION: u32 = 2;
/// Tag (2 bytes), permissions (2), id (4).
const ENTRY_BYTES: usize = 8;
/// The longest list: 511 entries. Longer ones fail with ENOSPC, as on other file systems.
const LIST_BYTES_MAX: usize = HEADER_BYTES + 511 * ENTRY_BYTES;
/// The id of entries without one.
const NO_ID: u32 = u32::MAX;
/// The permission bits of a mode.
const MODE_BITS: u32 = 0o777;

/// Subject of an entry; the numbers are those of the attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
enum Tag {
    Owner = 1,
    User = 2,
    OwningGroup = 4,
    Group = 8,
    Mask = 16,
    Others = 32,
}

impl Tag {
    fn from_raw(raw: u16) -> Option<Tag> {
        [Tag::Owner, Tag::User, Tag::OwningGroup, Tag::Group, Tag::Mask, Tag::Others]
            .into_iter()
            .find(|tag| *tag as u16 == raw)
    }

    /// Position of the entry's permissions in a mode, if the mode holds them.
    fn mode_shift(self) -> Option<u32> {
        match self {
            Tag::Owner => Some(6),
            Tag::Mask => Some(3),
            Tag::Others => Some(0),
            Tag::User | Tag::OwningGroup | Tag::Group => None,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct AccessListEntry {
    tag: Tag,
    permissions: u32,
    id: u32,
}

/// A list.
struct AccessList {
    bytes: [u8; LIST_BYTES_MAX],
    length: usize,
}

impl AccessList {
    /// From an attribute's value; `None` for an empty list. EOPNOTSUPP: another version; EINVAL:
    /// not a sequence of entries. [`AccessList::check`] validates the entries later, because a
    /// missing permission takes precedence.
    fn from_value(value: UserBytes<'_>) -> Result<Option<AccessList>> {
        let length = value.len().min(LIST_BYTES_MAX);
        let mut list = AccessList { bytes: [0; LIST_BYTES_MAX], length };
        value.part(0..length).copy_to(&mut list.bytes[..length]);
        let version = list.value().first_chunk().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        let entries_bytes = value.len() - HEADER_BYTES;
        if !entries_bytes.is_multiple_of(ENTRY_BYTES) {
            return Err(Errno::EINVAL);
        }
        if entries_bytes == 0 {
            return Ok(None);
        }
        if value.len() > LIST_BYTES_MAX {
            return Err(Errno::ENOSPC);
        }
        for index in 0..list.count() {
            let (tag, _) = list.raw(index).ok_or(Errno::EINVAL)?;
            let tag = Tag::from_raw(tag).ok_or(Errno::EINVAL)?;
            if !matches!(tag, Tag::User | Tag::Group) {
                list.set_id(index, NO_ID);
            }
        }
        Ok(Some(list))
    }

    fn value(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn count(&self) -> usize {
        self.length.saturating_sub(HEADER_BYTES) / ENTRY_BYTES
    }

    /// `None` for an invalid entry.
    fn entry(&self, index: usize) -> Option<AccessListEntry> {
        let (tag, rest) = self.raw(index)?;
        let [permissions0, permissions1, id @ ..] = rest;
        let permissions = u16::from_le_bytes([permissions0, permissions1]) as u32;
        let tag = Tag::from_raw(tag)?;
        (permissions <= 7).then_some(AccessListEntry { tag, permissions, id: u32::from_le_bytes(id) })
    }

    /// The tag of an entry, and the bytes after it.
    fn raw(&self, index: usize) -> Option<(u16, [u8; 6])> {
        let entry = self.value().get(HEADER_BYTES + index * ENTRY_BYTES..)?.first_chunk::<ENTRY_BYTES>()?;
        let [tag0, tag1, rest @ ..] = *entry;
        Some((u16::from_le_bytes([tag0, tag1]), rest))
    }

    fn entries(&self) -> impl Iterator<Item = AccessListEntry> {
        (0..self.count()).filter_map(|index| self.entry(index))
    }

    fn set_id(&mut self, index: usize, id: u32) {
        let at = HEADER_BYTES + index * ENTRY_BYTES + 4;
        self.bytes[at..at + 4].copy_from_slice(&id.to_le_bytes());
    }

    /// Replaces the ids of users and groups.
    fn translate(&mut self, by: impl Fn(Tag, u32) -> Result<u32>) -> Result<()> {
        for index in 0..self.count() {
            if let Some(entry) = self.entry(index)
                && matches!(entry.tag, Tag::User | Tag::Group)
            {
                self.set_id(index, by(entry.tag, entry.id)?);
            }
        }
        Ok(())
    }

    fn set_permissions(&mut self, index: usize, permissions: u32) {
        let at = HEADER_BYTES + index * ENTRY_BYTES + 2;
        self.bytes[at..at + 2].copy_from_slice(&(permissions as u16).to_le_bytes());
    }

    /// Checks that all entries are valid and in order: owner, users, owning group, groups, mask,
    /// others; with a mask if there are named entries.
    fn check(&self) -> Result<()> {
        let mut allowed: &[Tag] = &[Tag::Owner];
        let mut masked = true;
        let mut complete = false;
        for index in 0..self.count() {
            let entry = self.entry(index).ok_or(Errno::EINVAL)?;
            let named = matches!(entry.tag, Tag::User | Tag::Group);
            if !allowed.contains(&entry.tag) || (named && entry.id == NO_ID) || (entry.tag == Tag::Others && !masked) {
                return Err(Errno::EINVAL);
            }
            masked = (masked && !named) || entry.tag == Tag::Mask;
            complete = entry.tag == Tag::Others;
            allowed = match entry.tag {
                Tag::Owner | Tag::User => &[Tag::User, Tag::OwningGroup],
                Tag::OwningGroup | Tag::Group => &[Tag::Group, Tag::Mask, Tag::Others],
                Tag::Mask => &[Tag::Others],
                Tag::Others => &[],
            };
        }
        if complete { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// The equivalent permission bits; with named entries or a mask, the most that the list grants.
    fn mode(&self) -> u32 {
        let of = |tag| self.entries().find(|entry| entry.tag == tag).map(|entry| entry.permissions);
        let group = of(Tag::Mask).or(of(Tag::OwningGroup)).unwrap_or(0);
        of(Tag::Owner).unwrap_or(0) << 6 | group << 3 | of(Tag::Others).unwrap_or(0)
    }

    /// Whether a mode expresses the whole list.
    fn is_mode(&self) -> bool {
        !self.entries().any(|entry| matches!(entry.tag, Tag::User | Tag::Group | Tag::Mask))
    }

    /// Copies the permissions of the mode into the list.
    fn follow_mode(&mut self, mode: u32) {
        for index in 0..self.count() {
            if let Some(entry) = self.entry(index)
                && let Some(shift) = entry.tag.mode_shift()
            {
                self.set_permissions(index, mode >> shift & 7);
            }
        }
    }

    /// Whether a user other than the owner is granted access, by acl(5): by the user's own entry,
    /// otherwise by that of any of the user's groups, otherwise as others.
    fn grants(&self, credentials: &Credentials<'_>, file: &Protection, want: Want) -> bool {
        let masked = |permissions: u32| permissions & (file.mode >> 3) & want.0 == want.0;
        if let Some(entry) = self.entries().find(|entry| entry.tag == Tag::User && entry.id == credentials.uid) {
            return masked(entry.permissions);
        }
        let mut is_member = false;
        for entry in self.entries() {
            let applies = match entry.tag {
                Tag::OwningGroup => credentials.is_in_group(file.gid),
                Tag::Group => credentials.is_in_group(entry.id),
                _ => false,
            };
            is_member |= applies;
            if applies && entry.permissions & want.0 == want.0 {
                return masked(entry.permissions);
            }
        }
        !is_member && file.mode & want.0 == want.0
    }
}

impl<M: Memory> Permissions<'_, '_, M> {
    /// EROFS if the file system is read-only.
    pub(crate) fn check_writable(self) -> Result<()> {
        if self.thread.fs().is_read_only() { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Attributes and a permission check in one. Writing a read-only file system fails with EROFS
    /// before the mode is checked. Exempt are devices, pipes and sockets, whose data lie elsewhere.
    pub(crate) fn check(self, node: Node, want: Want) -> Result<Attributes> {
        let attributes = self.thread.stat(node)?;
        self.check_protection(&attributes.protection(), want)?;
        Ok(attributes)
    }

    /// [`Permissions::check`] for known protection.
    pub(crate) fn check_protection(self, file: &Protection, want: Want) -> Result<()> {
        let ours = matches!(file.kind(), Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink));
        if ours && want.0 & Want::WRITE.0 != 0 {
            self.check_writable()?;
        }
        self.permit(file, want)
    }

    /// Checks that `directory` is a directory and may be searched. For a checked caller the kernel
    /// has done so.
    // Inlined: the result would go through memory, in pieces that defeat store forwarding.
    #[inline(always)]
    pub(crate) fn check_search(self, directory: Node) -> Result<Protection> {
        // Not all attributes: the others share a line with what each create writes, so reading them
        // would wait for that line.
        let here = self.thread.protection(directory)?;
        if !here.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        self.permit(&here, Want::EXECUTE)?;
        Ok(here)
    }

    /// Checks permissions by mode and access list; EACCES if they are missing.
    /// EPERM to write what is immutable, whatever the credentials.
    #[inline]
    pub(crate) fn permit(self, file: &Protection, want: Want) -> Result<()> {
        if file.flags.has_any(FileFlags::IMMUTABLE) && want.0 & Want::WRITE.0 != 0 {
            return Err(Errno::EPERM);
        }
        // If the mode grants its group nothing, the list grants nothing.
        let by_mode = !file.flags.has_any(FileFlags::ACCESS_LIST)
            || self.credentials.checked
            || self.credentials.uid == file.uid
            || file.mode & libc::S_IRWXG == 0;
        if by_mode { self.credentials.check(file, want) } else { self.permit_by_list(file, want) }
    }

    #[cold]
    #[inline(never)]
    fn permit_by_list(self, file: &Protection, want: Want) -> Result<()> {
        // A separate reference; the file is in use, so its cachelet is present.
        let node = NodeRef::owned(self.thread, self.thread.node(file.number, Some(file.generation))?);
        let Some(list) = self.list(node.node(), ACCESS_LIST)? else { return self.credentials.check(file, want) };
        let granted = list.grants(self.credentials, file, want) || self.credentials.overrides(file, want);
        if granted { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// A list as stored.
    fn list(self, node: Node, name: &[u8]) -> Result<Option<AccessList>> {
        let mut list = AccessList { bytes: [0; LIST_BYTES_MAX], length: 0 };
        match self.thread.files().xattr(node, name, &mut list.bytes) {
            Ok(length) => list.length = length,
            Err(Error::NoAttribute) => return Ok(None),
            Err(other) => return Err(other.into()),
        }
        // A process that can write the image can store any bytes.
        list.check().map_err(|_| Errno::EUCLEAN)?;
        Ok(Some(list))
    }

    /// getxattr of a list.
    pub(crate) fn get_list(self, node: Node, name: &[u8], value: UserBytesMut<'_>) -> Result<usize> {
        let file = self.thread.stat(node)?;
        if file.kind == FileKind::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        if !file.flags.has_any(FileFlags::ACCESS_LIST) {
            return Err(Errno::ENODATA);
        }
        let mut list = self.list(node, name)?.ok_or(Errno::ENODATA)?;
        if name == ACCESS_LIST {
            list.follow_mode(file.mode);
        }
        list.translate(|tag, id| {
            let numbers = self.credentials.namespace.map(|namespace| match tag {
                Tag::User => namespace.users.number_of(id),
                _ => namespace.groups.number_of(id),
            });
            Ok(numbers.map_or(id, |number| number.unwrap_or(NO_ID)))
        })?;
        match value.len() {
            0 => {}
            room if room < list.length => return Err(Errno::ERANGE),
            _ => value.part(0..list.length).copy_from(list.value()),
        }
        Ok(list.length)
    }

    /// setxattr of a list; an empty one removes it. The flags of setxattr have no effect here.
    pub(crate) fn set_list(self, node: Node, name: &[u8], value: UserBytes<'_>) -> Result<()> {
        let mut list = AccessList::from_value(value)?;
        if let Some(list) = &mut list {
            list.translate(|tag, number| match tag {
                Tag::User => self.credentials.user_of(number),
                _ => self.credentials.group_of(number),
            })?;
        }
        self.change_list(node, name, list.as_ref())
    }

    /// removexattr of a list; a missing list is no error.
    pub(crate) fn remove_list(self, node: Node, name: &[u8]) -> Result<()> {
        self.change_list(node, name, None)
    }

    fn change_list(self, node: Node, name: &[u8], list: Option<&AccessList>) -> Result<()> {
        self.check_writable()?;
        let file = self.thread.stat(node)?;
        if file.kind == FileKind::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        if name == DEFAULT_LIST && file.kind != FileKind::Directory {
            return if list.is_some() { Err(Errno::EACCES) } else { Ok(()) };
        }
        if !self.credentials.owns(file.uid) || file.flags.has_any(KEEP_ATTRIBUTES) {
            return Err(Errno::EPERM);
        }
        if let Some(list) = list {
            list.check()?;
        }
        match list {
            Some(list) if name == ACCESS_LIST => self.replace_access_list(node, list),
            Some(list) => {
                self.set_permissions(node, |mode| mode)?;
                Ok(self.thread.files().set_xattr(node, name, list.value(), false, false)?)
            }
            None => match self.thread.files().remove_xattr(node, name) {
                Ok(()) | Err(Error::NoAttribute) => Ok(()),
                Err(other) => Err(other.into()),
            },
        }
    }

    /// List and mode are two commits. Meanwhile the mask is the intersection of both, so that a
    /// crash between them never grants more than the old and the new list.
    fn replace_access_list(self, node: Node, list: &AccessList) -> Result<()> {
        let new = list.mode();
        self.set_permissions(node, |old| old & !0o070 | old & new & 0o070)?;
        match list.is_mode() {
            true => match self.thread.files().remove_xattr(node, ACCESS_LIST) {
                Ok(()) | Err(Error::NoAttribute) => {}
                Err(other) => return Err(other.into()),
            },
            false => self.thread.files().set_xattr(node, ACCESS_LIST, list.value(), false, false)?,
        }
        self.set_permissions(node, |_| new)
    }

    /// Changes the permission bits and records that there may be a list.
    fn set_permissions(self, node: Node, bits: impl Fn(u32) -> u32) -> Result<()> {
        let credentials = self.credentials;
        self.thread.change(node, |file| {
            let mut permissions = file.mode & 0o7777 & !MODE_BITS | bits(file.mode & MODE_BITS);
            if !credentials.checked && !credentials.keeps_set_gid((file.uid, file.gid)) {
                permissions &= !libc::S_ISGID;
            }
            Ok(Changes { permissions: Some(permissions), access_list: Some(true), ..Changes::default() })
        })?;
        Ok(())
    }

    /// Creates a file, through `create`, in a directory that may have a default list: the list
    /// replaces the umask.
    #[cold]
    #[inline(never)]
    pub(crate) fn make_inheriting<R>(
        self,
        directory: Node,
        new: NewNode<'_>,
        umask: u32,
        create: impl FnOnce(&NewNode<'_>) -> Result<R>,
    ) -> Result<R> {
        let Some(inherited) = self.list(directory, DEFAULT_LIST)? else {
            return create(&NewNode { permissions: new.permissions & !umask, ..new });
        };
        // The intersection of the list and the requested mode.
        let permissions = new.permissions & (inherited.mode() | !MODE_BITS);
        let lists = [(ACCESS_LIST, inherited.value()), (DEFAULT_LIST, inherited.value())];
        let first = usize::from(inherited.is_mode());
        let end = if new.kind == FileKind::Directory { 2 } else { 1 };
        let extended = lists.get(first..end).unwrap_or(&[]);
        let has_list = if extended.is_empty() { FileFlags::NONE } else { FileFlags::ACCESS_LIST };
        let flags = new.flags.with(has_list);
        create(&NewNode { permissions, extended, flags, ..new })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn refusal(entries: &[(u16, u16, u32)]) -> Option<Errno> {
        AccessList::from_value((&value(entries)).into()).and_then(|list| list.map_or(Ok(()), |list| list.check())).err()
    }

    const OWNER: (u16, u16, u32) = (1, 7, 0);
    const GROUP: (u16, u16, u32) = (4, 5, 0);
    const MASK: (u16, u16, u32) = (16, 5, 0);
    const OTHERS: (u16, u16, u32) = (32, 4, 0);

    #[test]
    fn only_lists_in_order_and_with_a_mask_for_the_named_are_lists() {
        assert_eq!(refusal(&[OWNER, GROUP, OTHERS]), None);
        assert_eq!(refusal(&[OWNER, (2, 7, 5), (2, 6, 6), GROUP, (8, 7, 5), MASK, OTHERS]), None);
        for wrong in [
            &[OWNER, GROUP][..],
            &[GROUP, OWNER, OTHERS],
            &[OWNER, OWNER, GROUP, OTHERS],
            &[OWNER, (2, 7, 5), GROUP, OTHERS],
            &[OWNER, GROUP, (8, 7, 5), OTHERS],
            &[OWNER, (2, 7, NO_ID), GROUP, MASK, OTHERS],
            &[OWNER, GROUP, MASK, MASK, OTHERS],
            &[OWNER, GROUP, OTHERS, OTHERS],
            &[OWNER, GROUP, (32, 8, 0)],
            &[OWNER, GROUP, (33, 4, 0)],
        ] {
            assert_eq!(refusal(wrong), Some(Errno::EINVAL), "{wrong:?}");
        }
        let mut other = value(&[OWNER, GROUP, OTHERS]);
        other[0] = 3;
        assert_eq!(AccessList::from_value((&other).into()).err(), Some(Errno::EOPNOTSUPP));
        assert_eq!(AccessList::from_value((&value(&[])).into()).map(|list| list.is_none()), Ok(true));
        assert_eq!(AccessList::from_value((&[2, 0, 0]).into()).err(), Some(Errno::EINVAL));
        assert_eq!(AccessList::from_value((&value(&[OWNER; 512])).into()).err(), Some(Errno::ENOSPC));
    }

    #[test]
    fn the_mode_stands_for_owner_mask_and_others() {
        let list = AccessList::from_value((&value(&[OWNER, (2, 7, 5), GROUP, MASK, OTHERS])).into()).unwrap();
        let mut list = list.unwrap();
        assert_eq!((list.mode(), list.is_mode()), (0o754, false));
        list.follow_mode(0o610);
        assert_eq!(list.value(), value(&[(1, 6, NO_ID), (2, 7, 5), (4, 5, NO_ID), (16, 1, NO_ID), (32, 0, NO_ID)]));
    }
}
