//! Directories that the benchmark makes and removes again, and whether they have room for what it does in them.

use crate::units;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};

/// What is made in a directory that the user named.
const INNER: &str = ".directfs-bench";

/// A directory of the benchmark's, removed with all that is in it when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes one inside a directory that the user named, which must be empty and writable.
    pub fn in_empty(parent: &Path) -> Result<Scratch> {
        let shown = parent.display();
        let mut names = std::fs::read_dir(parent)
            .with_context(|| format!("cannot read {shown}; name an existing directory that you may read and write"))?;
        if let Some(name) = names.next() {
            let name = name.with_context(|| format!("cannot read {shown}"))?.file_name();
            bail!(
                "{shown} is not empty (it holds {name:?}); name an empty directory, for example a new one made with mkdir"
            );
        }
        Scratch::make(parent, INNER)
    }

    /// Makes one of a name of its own beside whatever is in a directory.
    pub fn beside_others(parent: &Path, what: &str) -> Result<Scratch> {
        Scratch::make(parent, &format!("directfs-bench.{}.{what}", std::process::id()))
    }

    fn make(parent: &Path, name: &str) -> Result<Scratch> {
        let shown = parent.display();
        // Found again from whatever directory a worker stands in.
        let path = parent.canonicalize().with_context(|| format!("cannot find {shown}"))?.join(name);
        std::fs::create_dir(&path).with_context(|| {
            format!(
                "cannot write to {shown}; name a directory that you may write, on a file system that is not read-only"
            )
        })?;
        Ok(Scratch { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A worker that was left alone may have removed it.
        if let Err(error) = std::fs::remove_dir_all(&self.path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("warning: cannot remove {} ({error}); remove it by hand", self.path.display());
        }
    }
}

/// What a workload needs where it works.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Files and directories.
    pub files: u64,
}

impl Room {
    /// Enough for both at a time.
    pub fn and(self, other: Room) -> Room {
        Room { bytes: self.bytes + other.bytes, files: self.files + other.files }
    }

    /// An error unless a directory's file system has it.
    pub fn require(self, directory: &Path) -> Result<()> {
        let shown = directory.display();
        let space =
            rustix::fs::statvfs(directory).with_context(|| format!("cannot learn how much room {shown} has"))?;
        let free = space.f_bavail * space.f_frsize;
        ensure!(
            // Zero of all: a file system that does not count, or needs no room for names.
            space.f_blocks == 0 || free >= self.bytes,
            "{shown} has {} free and the benchmark needs about {} there; make room, name another directory, or measure less (--sizes, --only, --quick)",
            units::size(free),
            units::size(self.bytes)
        );
        ensure!(
            space.f_files == 0 || space.f_favail > self.files,
            "{shown} has {} inodes free and {} are needed; name another directory or measure fewer files (--sizes)",
            units::count(space.f_favail),
            units::count(self.files)
        );
        Ok(())
    }
}

/// An error unless that much memory can be had without pressing others out.
pub fn require_memory(needed: u64) -> Result<()> {
    // Where nobody knows, running out of it is an error of its own.
    let available = available_memory().unwrap_or(u64::MAX);
    ensure!(
        needed <= available,
        "the benchmark needs about {} of memory and {} are available; measure less (--sizes, --only, --quick) or end other programs",
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
        let error = Room { bytes: 1 << 62, files: 0 }.require(Path::new("/")).unwrap_err().to_string();
        assert!(error.contains("free") && error.contains("make room"), "{error}");
        let error = require_memory(1 << 60).unwrap_err().to_string();
        assert!(error.contains("of memory"), "{error}");
    }
}
