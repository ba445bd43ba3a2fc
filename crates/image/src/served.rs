//! Which image the server of a mount has: what the server answers, and commands understand.
//!
//! The source of a mount in the kernel's table is a text. It may be any name (`-o fsname=`), and
//! when the image is renamed, another file may have its name.

use crate::Image;
use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The attribute of every file of a mount that names its image. Root, the server's user and the
/// image's owner can read it.
pub const SERVED_ATTRIBUTE: &str = "system.directfs.image";

/// The file of an image that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Device and inode number.
    pub identity: (u64, u64),
    /// Its present path, as its server sees it.
    pub path: PathBuf,
}

impl Served {
    /// The value of the attribute: both numbers, and the bytes of the path.
    pub fn value(&self) -> Vec<u8> {
        let numbers = format!("{} {} ", self.identity.0, self.identity.1);
        [numbers.as_bytes(), self.path.as_os_str().as_bytes()].concat()
    }

    /// What a value says; `None`: it is none.
    pub fn of_value(value: &[u8]) -> Option<Served> {
        let mut parts = value.splitn(3, |&byte| byte == b' ');
        let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse().ok();
        let identity = (number()?, number()?);
        Some(Served { identity, path: PathBuf::from(OsStr::from_bytes(parts.next()?)) })
    }
}

impl Image {
    /// The image's file, for those that know it by a mount. `None`: it cannot be examined.
    pub fn served(&self) -> Option<Served> {
        let found = rustix::fs::fstat(&*self.file).ok()?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", self.file.as_raw_fd())).ok()?;
        Some(Served { identity: (found.st_dev, found.st_ino), path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_numbers_and_any_path() {
        let served = Served { identity: (64769, 12), path: PathBuf::from(OsStr::from_bytes(b"/a b/\xff 1.img")) };
        assert_eq!(Served::of_value(&served.value()), Some(served));
        for other in [&b""[..], b"1", b"1 2", b"a 2 /x", b"1 -2 /x"] {
            assert_eq!(Served::of_value(other), None, "{other:?}");
        }
    }
}
