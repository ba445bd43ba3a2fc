//! Credentials of a caller, and the permissions that they grant. The only place where a mode
//! decides.

use crate::user_namespace::{OVERFLOW_ID, UserNamespace};
use engine::Protection;
use tables::{Errno, Result};

/// The capabilities relevant to a file system, as a set of bits with the kernel's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// None.
    pub const NONE: Capabilities = Capabilities(0);
    /// Change owners and groups at will.
    pub const CHOWN: Capabilities = Capabilities(1 << 0);
    /// Ignore permission bits.
    pub const DAC_OVERRIDE: Capabilities = Capabilities(1 << 1);
    /// Ignore permission bits for reading and searching.
    pub const DAC_READ_SEARCH: Capabilities = Capabilities(1 << 2);
    /// Do what is otherwise reserved to the owner.
    pub const FOWNER: Capabilities = Capabilities(1 << 3);
    /// Change the root directory.
    pub const SYS_CHROOT: Capabilities = Capabilities(1 << 18);
    /// Keep set-id bits when changing files.
    pub const FSETID: Capabilities = Capabilities(1 << 4);
    /// Set and clear the flags of append-only and immutable files.
    pub const LINUX_IMMUTABLE: Capabilities = Capabilities(1 << 9);
    /// Use `trusted.` attributes.
    pub const SYS_ADMIN: Capabilities = Capabilities(1 << 21);
    /// Take the blocks that are reserved for root.
    pub const SYS_RESOURCE: Capabilities = Capabilities(1 << 24);
    /// Make device nodes.
    pub const MKNOD: Capabilities = Capabilities(1 << 27);
    /// Take leases on the files of others.
    pub const LEASE: Capabilities = Capabilities(1 << 28);
    /// Set file capabilities.
    pub const SETFCAP: Capabilities = Capabilities(1 << 31);
    /// All of them: root.
    pub const ALL: Capabilities = Capabilities(!0);

    /// Whether all of `wanted` are in the set.
    #[inline]
    pub const fn has(self, wanted: Capabilities) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// The union of both sets.
    pub const fn with(self, more: Capabilities) -> Capabilities {
        Capabilities(self.0 | more.0)
    }
}

/// Requested access: bits as in a mode's last digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want(pub u32);

impl Want {
    /// Execute, or search a directory.
    pub const EXECUTE: Want = Want(1);
    /// Write.
    pub const WRITE: Want = Want(2);
    /// Read.
    pub const READ: Want = Want(4);
    /// Change the names of a directory.
    pub const CHANGE_NAMES: Want = Want(3);
    /// Existence only.
    pub const NOTHING: Want = Want(0);

    fn includes(self, other: Want) -> bool {
        self.0 & other.0 != 0
    }
}

/// Credentials of a call: the ids that apply to files (fsuid, fsgid), groups and capabilities.
#[derive(Debug, Clone, Copy)]
pub struct Credentials<'a> {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a [u32],
    /// Effective capabilities, in the caller's user namespace.
    pub capabilities: Capabilities,
    /// That namespace; `None`: the initial one. All ids here are those of the image.
    pub namespace: Option<&'a UserNamespace>,
    /// The kernel has already checked permissions; only ownership of new files remains.
    pub checked: bool,
}

impl<'a> Credentials<'a> {
    /// A user with groups; user 0 has all capabilities.
    pub const fn user(uid: u32, gid: u32, groups: &'a [u32]) -> Credentials<'a> {
        let capabilities = if uid == 0 { Capabilities::ALL } else { Capabilities::NONE };
        Credentials { uid, gid, groups, capabilities, namespace: None, checked: false }
    }

    /// A caller whose permissions the kernel has already checked (a mount with
    /// `default_permissions`). The owner of a new file and the clearing of set-id bits remain.
    pub const fn kernel_checked(uid: u32, gid: u32) -> Credentials<'a> {
        Credentials { checked: true, ..Credentials::user(uid, gid, &[]) }
    }

    /// Whether the capability is present over the whole system, or need not be checked.
    pub fn may(&self, wanted: Capabilities) -> bool {
        self.checked || self.has(wanted)
    }

    /// Whether the capability is present over the whole system.
    pub fn has(&self, wanted: Capabilities) -> bool {
        self.namespace.is_none() && self.capabilities.has(wanted)
    }

    /// Whether the capability is present over a file with this owner and group.
    pub fn has_over(&self, wanted: Capabilities, (uid, gid): (u32, u32)) -> bool {
        self.capabilities.has(wanted) && self.namespace.is_none_or(|namespace| namespace.has_both(uid, gid))
    }

    /// The numbers of an owner and a group in the caller's namespace.
    pub fn numbers_of(&self, (uid, gid): (u32, u32)) -> (u32, u32) {
        let Some(namespace) = self.namespace else { return (uid, gid) };
        let known = (namespace.users.number_of(uid), namespace.groups.number_of(gid));
        (known.0.unwrap_or(OVERFLOW_ID), known.1.unwrap_or(OVERFLOW_ID))
    }

    /// The user of the image with this number in the caller's namespace; EINVAL if there is none.
    pub fn user_of(&self, number: u32) -> Result<u32> {
        let Some(namespace) = self.namespace else { return Ok(number) };
        namespace.users.to_image(number).ok_or(Errno::EINVAL)
    }

    /// [`Credentials::user_of`] for a group.
    pub fn group_of(&self, number: u32) -> Result<u32> {
        let Some(namespace) = self.namespace else { return Ok(number) };
        namespace.groups.to_image(number).ok_or(Errno::EINVAL)
    }

    /// Whether the caller is in a group.
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the caller may search every directory, whatever its mode.
    #[inline]
    pub(crate) fn searches_everywhere(&self) -> bool {
        let overrides = Capabilities::DAC_OVERRIDE.with(Capabilities::DAC_READ_SEARCH);
        self.checked || (self.namespace.is_none() && self.capabilities.0 & overrides.0 != 0)
    }

    /// Whether the caller may do what is reserved to the owner of a file.
    pub fn owns(&self, owner_uid: u32) -> bool {
        let has_number = || self.namespace.is_none_or(|namespace| namespace.users.number_of(owner_uid).is_some());
        self.checked || self.uid == owner_uid || (self.capabilities.has(Capabilities::FOWNER) && has_number())
    }

    /// Whether the caller may keep the set-group-id bit on a file with this owner and group.
    pub fn keeps_set_gid(&self, owners: (u32, u32)) -> bool {
        self.is_in_group(owners.1) || self.has_over(Capabilities::FSETID, owners)
    }

    /// Checks permissions by the mode alone; EACCES if they are missing.
    /// [`Permissions::permit`](crate::Permissions) also applies access lists.
    pub fn check(&self, file: &Protection, want: Want) -> Result<()> {
        if self.checked || want.0 & !self.granted_by_mode(file) == 0 || self.overrides(file, want) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// The permission bits that the mode grants: those of the first class that matches the caller,
    /// not of the best one.
    fn granted_by_mode(&self, file: &Protection) -> u32 {
        let class = if self.uid == file.uid {
            6
        } else if self.is_in_group(file.gid) {
            3
        } else {
            0
        };
        (file.mode >> class) & 7
    }

    /// Whether a capability replaces the missing bits. Even root may execute only a file with some
    /// execute bit.
    pub(crate) fn overrides(&self, file: &Protection, want: Want) -> bool {
        let is_directory = file.is_directory();
        let executable = is_directory || !want.includes(Want::EXECUTE) || file.mode & 0o111 != 0;
        let owners = (file.uid, file.gid);
        if executable && self.has_over(Capabilities::DAC_OVERRIDE, owners) {
            return true;
        }
        let read_only = !want.includes(Want::WRITE) && (is_directory || !want.includes(Want::EXECUTE));
        read_only && self.has_over(Capabilities::DAC_READ_SEARCH, owners)
    }

    /// The sticky rule (EPERM): in a sticky directory only the owner of the file or of the
    /// directory removes or renames a name.
    ///
    /// `owners`: owner and group of the file.
    pub fn check_sticky(&self, directory: &Protection, owners: (u32, u32)) -> Result<()> {
        let owns = || self.checked || self.uid == owners.0 || self.has_over(Capabilities::FOWNER, owners);
        let free = directory.mode & libc::S_ISVTX == 0 || self.uid == directory.uid || owns();
        if free { Ok(()) } else { Err(Errno::EPERM) }
    }
}
