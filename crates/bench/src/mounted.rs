//! A mount that this process makes and ends, with its server; and the removal of files of which
//! some may be below such a mount.

use anyhow::{Context, Result, ensure};
use console::asking::{self, Unanswered};
use console::server::{Start, unmount};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

/// Attempts of an orphan to remove the files, 100 ms apart: the mount's server must end first.
const REMOVALS_MAX: u32 = 50;

/// A mount and its server.
pub struct Mounted {
    server: Option<Child>,
    /// The mount point.
    pub point: PathBuf,
}

impl Mounted {
    /// Mounts an image. The server ends with this process.
    pub fn begin(image: &Path, point: &Path, options: &[String]) -> Result<Mounted> {
        let mut start = Start::new(image, point);
        start.options(options).end_with_starter();
        Ok(Mounted { server: Some(start.start()?), point: point.to_owned() })
    }

    /// Unmounts, and waits until the image is clean.
    pub fn end(mut self) -> Result<()> {
        unmount(&self.point, false)?;
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let status = server.wait().context("cannot wait for the server")?;
        ensure!(status.success(), "the server exited with {status}: the image was not left cleanly");
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        if crate::mounts::at(&self.point).is_some() {
            // If it fails, the scratch directory cannot be removed and reports it.
            let _ = unmount(&self.point, true);
        }
    }
}

/// Removes the files of a program that was killed, together with other orphans of it.
pub fn remove_orphaned(owned: &Path) {
    for _ in 0..REMOVALS_MAX {
        let left: Vec<_> = crate::mounts::all().into_iter().filter(|mount| mount.point.starts_with(owned)).collect();
        if left.is_empty() {
            let _ = std::fs::remove_dir_all(owned);
        }
        if !owned.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
        // The server is dead, and its mount is left.
        left.iter().filter(|mount| is_dead(&mount.point)).for_each(|mount| {
            let _ = unmount(&mount.point, true);
        });
    }
}

fn is_dead(point: &Path) -> bool {
    asking::identity(point) == Err(Unanswered::Refused(rustix::io::Errno::NOTCONN))
}
