//! The users that may read and write the file of an image, by class.
//!
//! The mode of a file with an access list (acl(5)) does not say what its group may do: the bits of
//! the group are the list's *mask*, the most that any named user or group gets.

use super::ImageError;
use rustix::fs::Stat;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::Path;

const ACCESS_LIST: &str = "system.posix_acl_access";
/// The most that Linux lets an attribute hold.
const LIST_BYTES_MAX: usize = 64 << 10;
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// Tags of entries: the file's group, and the mask.
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;

/// The state of a file.
pub(super) fn stat(file: &File, path: &Path) -> Result<Stat, ImageError> {
    rustix::fs::fstat(file).map_err(|errno| failed(path, errno))
}

/// The state of an image's file. The group's bits of the mode are what the file's group may do.
pub(super) fn of(image: &File, path: &Path) -> Result<Stat, ImageError> {
    let mut stat = stat(image, path)?;
    // Without these bits the list gives the group nothing either.
    if stat.st_mode & 0o070 != 0 {
        let group = access_list(image).map_err(|errno| failed(path, errno))?.map(|list| group_in(&list));
        stat.st_mode &= group.map_or(!0, |bits| !0o070 | bits << 3);
    }
    Ok(stat)
}

fn failed(path: &Path, errno: Errno) -> ImageError {
    ImageError::File { action: "examine", path: path.to_owned(), source: io::Error::from(errno) }
}

fn access_list(file: &File) -> Result<Option<Vec<u8>>, Errno> {
    let mut list = vec![0; LIST_BYTES_MAX];
    match rustix::fs::fgetxattr(file, ACCESS_LIST, &mut list[..]) {
        Ok(length) => {
            list.truncate(length);
            Ok(Some(list))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// What an access list gives the file's group.
fn group_in(list: &[u8]) -> u32 {
    let entries = list.get(HEAD_BYTES..).unwrap_or_default().as_chunks::<ENTRY_BYTES>().0;
    let given = |wanted: u16| {
        let mut found = entries.iter().filter(|entry| entry[..2] == wanted.to_le_bytes());
        found.next().map(|entry| u32::from(u16::from_le_bytes([entry[2], entry[3]])))
    };
    given(GROUP).unwrap_or(0) & given(MASK).unwrap_or(0o7)
}
