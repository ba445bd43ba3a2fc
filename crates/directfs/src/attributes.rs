//! Extended attributes of a file that a call has found.

use engine::Node;
use posix::{Caller, Errno, Result, VALUE_BYTES_MAX};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Which extended attributes may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetXattr {
    /// New and existing ones.
    #[default]
    Any,
    /// New ones: EEXIST if the file has it.
    New,
    /// Existing ones: ENODATA if the file does not have it.
    Existing,
}

impl SetXattr {
    pub(crate) fn flags(self) -> i32 {
        match self {
            SetXattr::Any => 0,
            SetXattr::New => libc::XATTR_CREATE,
            SetXattr::Existing => libc::XATTR_REPLACE,
        }
    }
}

pub(crate) fn read_attribute(caller: &Caller<'_, '_>, node: Node, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut value = vec![0; VALUE_BYTES_MAX];
    match caller.xattrs().get_attribute(node, name, &mut value) {
        Err(Errno::ENODATA) => Ok(None),
        Err(errno) => Err(errno),
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
    }
}

pub(crate) fn list_attributes(caller: &Caller<'_, '_>, node: Node) -> Result<Vec<OsString>> {
    let names = caller.xattrs().all_attributes(node)?;
    let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| OsStr::from_bytes(name).to_owned()).collect())
}
