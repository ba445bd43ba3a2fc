//! Extended attributes: the rules of their namespaces.

use crate::access_list::{ACCESS_LIST, DEFAULT_LIST};
use crate::components::{Permissions, Xattrs};
use crate::credentials::{Capabilities, Want};
use crate::file_flags::KEEP_ATTRIBUTES;
use engine::Node;
use engine::format::FileKind;
use pmem::{Memory, UserBytes, UserBytesMut};
use tables::watch::{Reports, event};
use tables::{Errno, Result};

/// Longest name of an attribute, with its namespace.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Longest value.
pub const VALUE_BYTES_MAX: usize = 65_536;
/// Longest list of names that listxattr returns, as on Linux.
pub const LIST_BYTES_MAX: usize = 65_536;

const FILE_CAPABILITIES: &[u8] = b"security.capability";
const CAPABILITIES_BYTES_MAX: usize = 24;

/// The namespace of an attribute, from its name's prefix; it decides permissions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Namespace {
    /// `user.`: permissions as for the file's content.
    User,
    /// `trusted.`: administrators only; hidden from others.
    Trusted,
    /// `security.`: readable by all, writable by administrators.
    Security,
}

/// Whether an attribute is an access control list, which has separate rules.
fn is_access_list(name: &[u8]) -> bool {
    name == ACCESS_LIST || name == DEFAULT_LIST
}

/// The namespace of a name. ERANGE: invalid length; EOPNOTSUPP: unknown namespace (including all
/// others with `system.`); EINVAL: a namespace without a name.
fn namespace(name: &[u8]) -> Result<Namespace> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Errno::ERANGE);
    }
    let known: [(&[u8], Namespace); 3] =
        [(b"user.", Namespace::User), (b"trusted.", Namespace::Trusted), (b"security.", Namespace::Security)];
    for (prefix, namespace) in known {
        if let Some(rest) = name.strip_prefix(prefix) {
            return if rest.is_empty() { Err(Errno::EINVAL) } else { Ok(namespace) };
        }
    }
    Err(Errno::EOPNOTSUPP)
}

/// A copy of file capabilities. EINVAL unless they have a version that the kernel takes, and its
/// length.
fn capabilities<'c>(value: UserBytes<'_>, copy: &'c mut [u8; CAPABILITIES_BYTES_MAX]) -> Result<&'c [u8]> {
    let copy = copy.get_mut(..value.len()).ok_or(Errno::EINVAL)?;
    value.copy_to(copy);
    let version = copy.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) >> 24);
    match (version, copy.len()) {
        (Some(2), 20) | (Some(3), CAPABILITIES_BYTES_MAX) => Ok(copy),
        _ => Err(Errno::EINVAL),
    }
}

impl<'c, 'f, M: Memory> Xattrs<'c, 'f, M> {
    fn permissions(self) -> Permissions<'c, 'f, M> {
        Permissions { thread: self.thread, credentials: self.credentials }
    }

    /// Checks whether an attribute may be read or written. A namespace hidden from the caller
    /// yields EPERM for writes, ENODATA for reads.
    fn check_attribute(self, node: Node, name: &[u8], want: Want) -> Result<()> {
        let namespace = namespace(name)?;
        let writes = want.0 & Want::WRITE.0 != 0;
        if writes {
            self.permissions().check_writable()?;
            if self.thread.protection(node)?.flags.has_any(KEEP_ATTRIBUTES) {
                return Err(Errno::EPERM);
            }
        }
        if self.credentials.checked {
            return Ok(());
        }
        let hidden = if writes { Errno::EPERM } else { Errno::ENODATA };
        match namespace {
            Namespace::Trusted if self.credentials.may(Capabilities::SYS_ADMIN) => Ok(()),
            Namespace::Trusted => Err(hidden),
            Namespace::Security if !writes => Ok(()),
            Namespace::Security => {
                let wanted = if name == FILE_CAPABILITIES { Capabilities::SETFCAP } else { Capabilities::SYS_ADMIN };
                if self.credentials.may(wanted) { Ok(()) } else { Err(Errno::EPERM) }
            }
            Namespace::User => {
                let file = self.thread.stat(node)?;
                let sticky = file.kind == FileKind::Directory && file.mode & libc::S_ISVTX != 0;
                if !matches!(file.kind, FileKind::Regular | FileKind::Directory) {
                    return Err(hidden);
                }
                if writes && sticky && !self.credentials.owns(file.uid) {
                    return Err(Errno::EPERM);
                }
                self.permissions().check_protection(&file.protection(), want)
            }
        }
    }

    /// getxattr: copies the value, or with an empty buffer returns its length; ERANGE if it does
    /// not fit.
    #[inline]
    pub fn get_attribute<'a>(self, node: Node, name: &[u8], value: impl Into<UserBytesMut<'a>>) -> Result<usize> {
        self.get_user_attribute(node, name, value.into())
    }

    fn get_user_attribute(self, node: Node, name: &[u8], value: UserBytesMut<'_>) -> Result<usize> {
        if is_access_list(name) {
            return self.permissions().get_list(node, name, value);
        }
        self.check_attribute(node, name, Want::READ)?;
        Ok(self.thread.files().xattr(node, name, value)?)
    }

    /// setxattr with XATTR_CREATE and XATTR_REPLACE.
    #[inline]
    pub fn set_attribute<'a>(self, node: Node, name: &[u8], value: impl Into<UserBytes<'a>>, flags: i32) -> Result<()> {
        self.set_user_attribute(node, name, value.into(), flags)
    }

    fn set_user_attribute(self, node: Node, name: &[u8], value: UserBytes<'_>, flags: i32) -> Result<()> {
        if flags & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) != 0 {
            return Err(Errno::EINVAL);
        }
        if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
            return Err(Errno::ERANGE);
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        if is_access_list(name) {
            self.permissions().set_list(node, name, value)?;
        } else {
            self.check_attribute(node, name, Want::WRITE)?;
            let create = flags & libc::XATTR_CREATE != 0;
            let replace = flags & libc::XATTR_REPLACE != 0;
            let mut copy = [0; CAPABILITIES_BYTES_MAX];
            let value = if name == FILE_CAPABILITIES { capabilities(value, &mut copy)?.into() } else { value };
            self.thread.files().set_xattr(node, name, value, create, replace)?;
        }
        self.notify_attributes(node);
        Ok(())
    }

    /// removexattr.
    pub fn remove_attribute(self, node: Node, name: &[u8]) -> Result<()> {
        if is_access_list(name) {
            self.permissions().remove_list(node, name)?;
        } else {
            self.check_attribute(node, name, Want::WRITE)?;
            self.thread.files().remove_xattr(node, name)?;
        }
        self.notify_attributes(node);
        Ok(())
    }

    fn notify_attributes(self, node: Node) {
        let reports = Reports { thread: self.thread };
        if reports.is_watched() {
            reports.notify_any(node, event::ATTRIB);
        }
    }

    /// listxattr: names, each followed by a zero byte; with an empty buffer only their total
    /// length; ERANGE if they do not fit. Attributes hidden from the caller are omitted.
    #[inline]
    pub fn list_attributes<'a>(self, node: Node, names: impl Into<UserBytesMut<'a>>) -> Result<usize> {
        self.list_user_attributes(node, names.into())
    }

    fn list_user_attributes(self, node: Node, names: UserBytesMut<'_>) -> Result<usize> {
        let trusted = self.credentials.has(Capabilities::SYS_ADMIN);
        let only_length = names.is_empty();
        let mut length = 0;
        let mut fits = true;
        self.thread.files().xattr_names(node, &mut |name| {
            // A hostile image may have names in no namespace, which no call can read.
            let is_hidden = match namespace(name) {
                Ok(namespace) => namespace == Namespace::Trusted && !trusted,
                Err(_) => !is_access_list(name),
            };
            if is_hidden {
                return;
            }
            let end = length + name.len() + 1;
            if !only_length {
                fits &= end <= names.len();
                if fits {
                    names.part(length..end - 1).copy_from(name);
                    names.part(end - 1..end).copy_from(&[0]);
                }
            }
            length = end;
        })?;
        if fits { Ok(length) } else { Err(Errno::ERANGE) }
    }

    /// What [`list_attributes`](Self::list_attributes) lists, however long it is. A call of a
    /// program gets at most [`LIST_BYTES_MAX`].
    #[cfg(feature = "std")]
    pub fn all_attributes(self, node: Node) -> Result<Vec<u8>> {
        loop {
            let mut names = vec![0; self.list_attributes(node, &mut [])?];
            match self.list_attributes(node, &mut names) {
                // Others were added meanwhile.
                Err(Errno::ERANGE) => {}
                length => {
                    names.truncate(length?);
                    return Ok(names);
                }
            }
        }
    }
}
