//! The kernel's mount table.

use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The mount point.
    pub point: PathBuf,
    /// The type, with its subtype after a dot.
    pub kind: String,
    /// The source; for an image its path.
    pub source: PathBuf,
    /// Major and minor device numbers of the mount's files.
    pub device: (u32, u32),
}

/// All mounts visible to this process, in the order of their creation.
pub fn all() -> Vec<Mount> {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines().filter_map(parse).collect()
}

impl Mount {
    /// Whether an image is mounted there. `image`: its path without links.
    pub fn is_of(&self, image: &Path) -> bool {
        self.kind == "fuse.directfs" && self.source == image
    }
}

/// The mounts of an image that this process sees.
pub fn of_image(path: &Path) -> Vec<Mount> {
    let Ok(image) = path.canonicalize() else { return Vec::new() };
    all().into_iter().filter(|mount| mount.is_of(&image)).collect()
}

/// The mount that contains a path.
pub fn covering(path: &Path) -> Option<Mount> {
    let path = path.canonicalize().ok()?;
    all().into_iter().filter(|mount| path.starts_with(&mount.point)).max_by_key(|mount| mount.point.as_os_str().len())
}

/// The topmost mount exactly at a path. It does not access the path, which hangs or fails if the
/// mount's server is dead.
pub fn at(path: &Path) -> Option<Mount> {
    let path = absolute(path);
    all().into_iter().rfind(|mount| mount.point == path)
}

/// The path with its directory resolved and its last component unchanged.
fn absolute(path: &Path) -> PathBuf {
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return path.to_owned(),
    };
    match (parent.canonicalize(), path.file_name()) {
        (Ok(parent), Some(name)) => parent.join(name),
        _ => path.canonicalize().unwrap_or_else(|_| path.to_owned()),
    }
}

/// Parses a line of mountinfo: the mount point is the fifth field; type and source follow a single
/// dash.
pub fn parse(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut after = after.split(' ');
    let mut before = before.split(' ').skip(2);
    let (major, minor) = before.next()?.split_once(':')?;
    Some(Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        point: unescape(before.nth(1)?),
        kind: after.next()?.to_owned(),
        source: unescape(after.next()?),
    })
}

/// Blanks, tabs, newlines and backslashes are written as a backslash and three octal digits.
fn unescape(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = field.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                at += 4;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_with_escapes_and_optional_fields() {
        let line =
            r"36 35 0:34 / /mnt/my\040work rw,nosuid shared:1 master:2 - fuse.directfs /tmp/a\134b.img rw,user_id=0";
        let mount = parse(line).unwrap();
        assert_eq!(mount.point, Path::new("/mnt/my work"));
        assert_eq!(mount.kind, "fuse.directfs");
        assert_eq!(mount.source, Path::new(r"/tmp/a\b.img"));
        assert_eq!(mount.device, (0, 34));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn the_root_is_covered() {
        assert!(covering(Path::new("/")).is_some());
        assert_eq!(at(Path::new("/surely/not/mounted")), None);
    }
}
