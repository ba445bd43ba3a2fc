//! Working copies that killed processes left, and that may hold what is on no disk.
//!
//! The next use of its image commits such a copy. Other images' processes see it, too, when they
//! remove leftovers. They cannot know whether its image exists: a directory may have been renamed,
//! and another mount namespace with the same `/dev/shm` has other paths. So they keep it. It is
//! removed when its image is used, by a user's command, or [`KEPT_DAYS`] after it was first seen
//! unused.
//!
//! Invariant: before that time, only a copy that says that the disk holds all of it
//! ([`Commits::is_unsaved`]), or that was never whole, is removed without a command.

use super::runtime::{self, Unused};
use super::working_file;
use posix::commits::Commits;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

/// How long a copy is kept that nothing asks for.
pub const KEPT_DAYS: u64 = 30;
/// A file in the runtime directory, as old as the time for which the copy is known to be unused.
pub(super) const SEEN: &str = "left";

/// A working copy that its processes left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftCopy {
    /// Name of its runtime directory.
    pub name: String,
    /// Path by which its image was opened; none: unknown.
    pub image: Option<PathBuf>,
    /// Bytes of memory or disk that it takes.
    pub bytes: u64,
    /// How long it is known to be unused.
    pub unused_for: Duration,
}

/// The working copies of this user that no process uses and that are kept; for root, those of all
/// users. `parent`: see [`RUNTIME_PARENT`](super::RUNTIME_PARENT).
pub fn left_copies(parent: &Path) -> io::Result<Vec<LeftCopy>> {
    let above = runtime::open_parent(parent)?;
    let mut found = Vec::new();
    runtime::for_each_own(&above, &mut |name, directory| {
        let is_unused = Unused::lock(directory).is_some();
        if is_unused && is_unsaved(directory, name) {
            let bytes =
                open(directory, name).ok().and_then(|file| file.metadata().ok()).map_or(0, |file| file.blocks() * 512);
            let image = runtime::named_image(directory).map(|(_, path)| path);
            let unused_for = age(directory).unwrap_or_default();
            found.push(LeftCopy { name: name.to_owned(), image, bytes, unused_for });
        }
    });
    Ok(found)
}

/// Removes a working copy that its processes left, with all that no disk holds. `false`: there is
/// none of that name, or a process uses it.
pub fn remove_left_copy(parent: &Path, name: &str) -> io::Result<bool> {
    let above = runtime::open_parent(parent)?;
    let mut is_removed = false;
    runtime::for_each_own(&above, &mut |other, directory| {
        if other == name && is_unsaved(directory, name) {
            is_removed = runtime::remove_if_unused(&above, name, directory, true);
        }
    });
    Ok(is_removed)
}

/// Whether a runtime directory that no process uses is to be kept.
pub(super) fn is_kept(directory: &OwnedFd, name: &str) -> bool {
    if !is_unsaved(directory, name) {
        return false;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // It exists from the second time on.
    let _ = rustix::fs::openat(directory, SEEN, flags, Mode::RUSR | Mode::WUSR);
    age(directory).is_none_or(|age| age < Duration::from_secs(KEPT_DAYS * 86_400))
}

/// Whether its working copy may hold what is on no disk.
fn is_unsaved(directory: &OwnedFd, name: &str) -> bool {
    match open(directory, name) {
        Ok(file) => Commits::is_unsaved(&file),
        // A hidden file may be where only another mount namespace sees it.
        Err(_) => rustix::fs::statat(directory, working_file::WORKING, AtFlags::SYMLINK_NOFOLLOW).is_ok(),
    }
}

fn open(directory: &OwnedFd, name: &str) -> Result<File, Errno> {
    working_file::open_left(directory.as_fd(), runtime::number_of(name)).map(File::from)
}

/// How long a copy is known to be unused. A clock that was set back makes it younger.
fn age(directory: &OwnedFd) -> Option<Duration> {
    let seen = rustix::fs::statat(directory, SEEN, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let seen = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seen.st_mtime).ok()?);
    Some(SystemTime::now().duration_since(seen).unwrap_or_default())
}

/// What a use that meets a working copy does with the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Reads,
    Writes,
}

/// Reports a line about an image once in this process, as long as the image names that runtime
/// directory.
fn report((image, name): (&Path, u64), line: &str) {
    static REPORTED: Mutex<BTreeSet<(u64, String)>> = Mutex::new(BTreeSet::new());
    let line = format!("directfs: {}: {line}", image.display());
    if REPORTED.lock().is_ok_and(|mut reported| reported.insert((name, line.clone()))) {
        // Standard error may be a pipe that is closed.
        let _ = writeln!(io::stderr(), "{line}");
    }
}

/// Reports that a working copy does not continue the state of its image's file.
pub(super) fn report_set_aside(image: (&Path, u64), copy: &Path) {
    let name = copy.file_name().unwrap_or_default().display();
    let line = format!(
        "processes were killed while they used this image, and then its file was replaced or restored. Their \
         newest state does not continue this file, so it is not used. {} keeps it: `directfs ps --left` lists such states, \
         and `directfs ps --left --remove {name}` removes this one",
        copy.display()
    );
    report(image, &line);
}

/// Reports a working copy of a user that may not write the image: its owner, group or mode was
/// changed, or this is a copy of that user's image. It is no error: any user that can read the
/// image can make a directory of that name once the real one is gone.
pub(super) fn report_foreign(image: (&Path, u64), (copy, user): (&Path, u32), used: Use) {
    let name = copy.file_name().unwrap_or_default().display();
    let remedy = match used {
        Use::Reads => {
            "Give the file back to that user (chown) and use it once before anybody writes it; or give that state up"
        }
        Use::Writes => {
            "It cannot be used any more: where an image gets another owner, use it once before that. Free its memory"
        }
    };
    let line = format!(
        "it was not left cleanly, and its newest state is in {}, of user {user}, who may not write this file. \
         So that state is not used. {remedy}: `directfs ps --left --remove {name}`, as that user or root",
        copy.display()
    );
    report(image, &line);
}

/// Reports a working copy that is gone.
pub(super) fn report_gone(image: (&Path, u64)) {
    report(
        image,
        "it was not left cleanly, and what was done after the last commit is not used: it was in a working copy that is gone \
         with a restart or a logout, or that is named only in the /dev/shm of another container",
    );
}
