//! The kernel's mount table.
//!
//! Any user may mount a FUSE file system whose type and source read like those of an image's mount.
//! So a mount counts as one of an image only if root or this user made it: the kernel shows the
//! maker as `user_id`. And the source is a text, so the server is asked which image it has.

use crate::asking;
use image::{SERVED_ATTRIBUTE, Served};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time for a server to say which image it has. One that is silent is reported where it is needed.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where programs under `run` see the image by default.
pub const RUN_DIRECTORY: &str = "/mnt/directfs";

/// Links that are followed from one name to a mount point.
const LINKS_MAX: usize = 40;

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
    /// Whether set-user-ID programs have no effect.
    pub nosuid: bool,
    /// Whether devices cannot be opened.
    pub nodev: bool,
    /// Whether nothing can be changed.
    pub read_only: bool,
    /// The user that made it, if it is served by FUSE.
    pub maker: Option<u32>,
}

/// All mounts visible to this process, in the order of their creation.
pub fn all() -> Vec<Mount> {
    of_process("self").into_iter().map(|(_, mount)| mount).collect()
}

/// The mounts that a process sees, each with its number.
pub fn of_process(pid: impl std::fmt::Display) -> Vec<(u64, Mount)> {
    // Names are bytes: one that is not UTF-8 must not hide the other mounts.
    let table = std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    table.split(|&byte| byte == b'\n').filter_map(parse).collect()
}

impl Mount {
    /// Whether root, this user or one of `others` made it for an image. `image`: its path without
    /// links.
    pub fn is_of(&self, image: &Path, others: &[u32]) -> bool {
        self.is_trusted(others) && self.source == image
    }

    /// Whether it is a mount of this file system that root, this user or one of `others` made.
    fn is_trusted(&self, others: &[u32]) -> bool {
        let trusted = [0, rustix::process::geteuid().as_raw()];
        let is_trusted = self.maker.is_some_and(|maker| trusted.contains(&maker) || others.contains(&maker));
        is_trusted && self.kind == "fuse.directfs"
    }

    /// The image that its server has. `None`: the server does not say, or another user made it.
    pub fn served(&self) -> Option<Served> {
        let value = self.is_trusted(&[]).then(|| asking::attribute_within(&self.point, SERVED_ATTRIBUTE, PATIENCE));
        Served::of_value(&value?.ok()?)
    }
}

/// The mounts of an image that this process sees, and that root or this user made. What a server
/// says counts, else the source.
pub fn of_image(path: &Path) -> Vec<Mount> {
    let Ok(image) = path.canonicalize() else { return Vec::new() };
    let identity = asking::identity(&image).ok();
    let (named, others): (Vec<_>, Vec<_>) =
        all().into_iter().filter(|mount| mount.is_trusted(&[])).partition(|mount| mount.source == image);
    let named = named.into_iter().filter(|mount| mount.served().is_none_or(|served| identity == Some(served.identity)));
    let found: Vec<_> = named.collect();
    if !found.is_empty() || !is_in_use(&image) {
        return found;
    }
    others.into_iter().filter(|mount| mount.served().is_some_and(|served| identity == Some(served.identity))).collect()
}

/// Whether a process uses an image. If that cannot be known, none does.
fn is_in_use(image: &Path) -> bool {
    std::fs::File::open(image).is_ok_and(|file| image::users(&file).is_ok_and(|users| !users.none()))
}

/// The mount of the run in which this process is. The preload library hides its entries from the
/// environment of a program, but not from the kernel's view.
pub fn surrounding() -> Option<OsString> {
    let environment = std::fs::read("/proc/self/environ").ok()?;
    let value = |name: &[u8]| environment.split(|&byte| byte == 0).find_map(|entry| entry.strip_prefix(name));
    value(b"DIRECTFS_IMAGE=").and(value(b"DIRECTFS_MOUNT=")).map(|mount| OsStr::from_bytes(mount).to_owned())
}

/// The mount that contains a path.
pub fn covering(path: &Path) -> Option<Mount> {
    let path = path.canonicalize().ok()?;
    all().into_iter().filter(|mount| path.starts_with(&mount.point)).max_by_key(|mount| mount.point.as_os_str().len())
}

/// The topmost mount at a path, or where links lead from there. The mount itself is not accessed:
/// that hangs or fails if its server is stopped or dead.
pub fn at(path: &Path) -> Option<Mount> {
    let mounts = all();
    let mut place = absolute(path);
    for _ in 0..LINKS_MAX {
        if let Some(mount) = mounts.iter().rfind(|mount| mount.point == place) {
            return Some(mount.clone());
        }
        let target = asking::link_target(&place).ok()?;
        place = absolute(&place.parent()?.join(target));
    }
    None
}

/// The path with its directory resolved and its last component unchanged.
fn absolute(path: &Path) -> PathBuf {
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return path.to_owned(),
    };
    match (asking::real_path(parent), path.file_name()) {
        (Ok(parent), Some(name)) => parent.join(name),
        _ => asking::real_path(path).unwrap_or_else(|_| path.to_owned()),
    }
}

/// Parses a line of mountinfo: the number is the first field and the mount point the fifth; type,
/// source and options follow a single dash.
fn parse(line: &[u8]) -> Option<(u64, Mount)> {
    let dash = line.windows(3).position(|bytes| bytes == b" - ")?;
    let mut before = line[..dash].split(|&byte| byte == b' ');
    let mut after = line[dash + 3..].split(|&byte| byte == b' ');
    let number = text(before.next()?)?.parse().ok()?;
    let (major, minor) = text(before.nth(1)?)?.split_once(':')?;
    let (point, kind, source) = (before.nth(1)?, after.next()?, after.next()?);
    let flags: Vec<_> = before.next()?.split(|&byte| byte == b',').collect();
    let mut options = after.next().unwrap_or_default().split(|&byte| byte == b',');
    let mount = Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        point: unescape(point),
        kind: String::from_utf8_lossy(kind).into_owned(),
        source: unescape(source),
        nosuid: flags.contains(&&b"nosuid"[..]),
        nodev: flags.contains(&&b"nodev"[..]),
        read_only: flags.contains(&&b"ro"[..]),
        maker: options.find_map(|option| text(option.strip_prefix(b"user_id=")?)?.parse().ok()),
    };
    Some((number, mount))
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// Blanks, tabs, newlines and backslashes are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let digits = field.get(at + 1..at + 4).filter(|_| field[at] == b'\\').and_then(text);
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                at += 4;
            }
            None => {
                plain.push(field[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(line: &[u8]) -> Mount {
        parse(line).unwrap().1
    }

    #[test]
    fn a_line_is_parsed_with_escapes_and_optional_fields() {
        let line =
            br"36 35 0:34 / /mnt/my\040work rw,nosuid shared:1 master:2 - fuse.directfs /tmp/a\134b.img rw,user_id=0";
        let mount = mount(line);
        assert_eq!(mount.point, Path::new("/mnt/my work"));
        assert_eq!(mount.kind, "fuse.directfs");
        assert_eq!(mount.source, Path::new(r"/tmp/a\b.img"));
        assert_eq!(mount.device, (0, 34));
        assert!(mount.nosuid && !mount.nodev && !mount.read_only);
        assert_eq!(parse(b"nonsense"), None);
    }

    #[test]
    fn names_are_bytes() {
        let mount = mount(b"36 35 0:34 / /mnt/\xff rw - fuse.directfs /tmp/\xfe.img rw,user_id=0");
        assert_eq!(mount.point.as_os_str().as_bytes(), b"/mnt/\xff");
        assert!(mount.is_of(Path::new(OsStr::from_bytes(b"/tmp/\xfe.img")), &[]));
    }

    #[test]
    fn only_mounts_of_root_and_of_this_user_count() {
        let own = rustix::process::geteuid().as_raw();
        let is_trusted = |options: &str| {
            let line = format!("36 35 0:34 / /mnt rw - fuse.directfs /tmp/a.img {options}");
            mount(line.as_bytes()).is_of(Path::new("/tmp/a.img"), &[])
        };
        assert!(is_trusted("rw,user_id=0,group_id=0"));
        assert!(is_trusted(&format!("rw,user_id={own}")));
        assert!(!is_trusted(&format!("rw,user_id={}", own.max(1) + 1)));
        assert!(!is_trusted("rw"), "no FUSE mount");
    }

    #[test]
    fn the_root_is_covered() {
        assert!(covering(Path::new("/")).is_some());
        assert_eq!(at(Path::new("/surely/not/mounted")), None);
    }
}
