//! Directories that the benchmark creates and removes again, and checks of the room in them.

use crate::units;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The directory created in a directory of the user.
const INNER: &str = ".directfs-bench";

/// A directory of the benchmark, removed with its content when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates one inside a directory of the user, which must be empty and writable.
    pub fn in_empty(parent: &Path) -> Result<Scratch> {
        let shown = parent.display();
        let mut names = std::fs::read_dir(parent)
            .with_context(|| format!("cannot read {shown}; use an existing directory that you may read and write"))?;
        if let Some(name) = names.next() {
            let name = name.with_context(|| format!("cannot read {shown}"))?.file_name();
            bail!(
                "{shown} is not empty (it contains {name:?}); specify an empty directory, for example a new one (mkdir)"
            );
        }
        Scratch::make(parent, INNER)
    }

    /// Creates one with a unique name in a directory that may have other content.
    pub fn beside_others(parent: &Path, what: &str) -> Result<Scratch> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        Scratch::make(parent, &format!("directfs-bench.{}.{what}{number}", std::process::id()))
    }

    fn make(parent: &Path, name: &str) -> Result<Scratch> {
        let shown = parent.display();
        // An absolute path, because a worker may be in any directory.
        let path = parent.canonicalize().with_context(|| format!("cannot find {shown}"))?.join(name);
        std::fs::create_dir(&path).with_context(|| {
            format!(
                "cannot write to {shown}; specify a directory that you may write, on a file system that is not read-only"
            )
        })?;
        Ok(Scratch { path })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The place for a mount.
    pub fn mount_point(&self) -> PathBuf {
        self.path.join("mount")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if crate::mounts::at(&self.mount_point()).is_some() {
            // Never through a remaining mount, whose files must not be removed.
            let shown = self.path.display();
            eprintln!("warning: {shown}/mount is still mounted; unmount it (umount -l) and remove {shown}");
            return;
        }
        // An orphaned worker may have removed it.
        if let Err(error) = std::fs::remove_dir_all(&self.path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("warning: cannot remove {} ({error}); remove it manually", self.path.display());
        }
    }
}

/// The room that a workload needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpaceNeeded {
    /// Bytes.
    pub bytes: u64,
    /// Files and directories.
    pub files: u64,
}

impl SpaceNeeded {
    /// The room for both at a time.
    pub fn and(self, other: SpaceNeeded) -> SpaceNeeded {
        SpaceNeeded { bytes: self.bytes + other.bytes, files: self.files + other.files }
    }

    /// An error unless a directory's file system has the room.
    pub fn require(self, directory: &Path) -> Result<()> {
        let shown = directory.display();
        let space = rustix::fs::statvfs(directory).with_context(|| format!("cannot read the free space of {shown}"))?;
        let free = space.f_bavail * space.f_frsize;
        ensure!(
            // Totals of zero: a file system that does not count, or that needs no room for names.
            space.f_blocks == 0 || free >= self.bytes,
            "{shown} has {} free but the benchmark needs about {} there; make room, specify another directory, or measure less (--sizes, --only, --quick)",
            units::size(free),
            units::size(self.bytes)
        );
        ensure!(
            space.f_files == 0 || space.f_favail > self.files,
            "{shown} has {} inodes free but {} are needed; specify another directory or measure fewer files (--sizes)",
            units::count(space.f_favail),
            units::count(self.files)
        );
        Ok(())
    }
}

/// An error unless that much memory is available.
pub fn require_memory(needed: u64) -> Result<()> {
    // If the available memory is unknown, running out of it is a separate error.
    let available = available_memory().unwrap_or(u64::MAX);
    ensure!(
        needed <= available,
        "the benchmark needs about {} of memory but {} are available; measure less (--sizes, --only, --quick) or stop other programs",
        units::size(needed),
        units::size(available)
    );
    Ok(())
}

fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_use_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        std::fs::write(parent.path().join("precious"), "data").unwrap();
        let error = Scratch::in_empty(parent.path()).unwrap_err().to_string();
        assert!(error.contains("not empty") && error.contains("precious"), "{error}");
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_does_not_fit_is_refused_before() {
        let error = SpaceNeeded { bytes: 1 << 62, files: 0 }.require(Path::new("/")).unwrap_err().to_string();
        assert!(error.contains("free") && error.contains("make room"), "{error}");
        let error = require_memory(1 << 60).unwrap_err().to_string();
        assert!(error.contains("of memory"), "{error}");
    }
}
