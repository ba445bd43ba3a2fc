//! A directory in memory for all files of the demonstration. It is removed at the end, also after
//! errors, but not after SIGKILL.

use super::tree::Tree;
use crate::{interrupt, units};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// Additional blocks for directory logs, maps and dentries.
const BESIDE_BYTES: u64 = 64 << 20;

/// The directory.
pub struct Scratch {
    root: PathBuf,
}

impl Scratch {
    /// Creates it inside `parent`, if an image and a copy of the tree fit there.
    pub fn make(parent: &Path, tree: &Tree) -> Result<Scratch> {
        let shown = parent.display();
        let space = rustix::fs::statvfs(parent)
            .with_context(|| format!("cannot use {shown}; specify a directory in memory with --scratch"))?;
        let (free, needed) = (space.f_bavail * space.f_frsize, tree.block_bytes() + Scratch::image_bytes(tree));
        ensure!(
            free >= needed,
            "{shown} has {} free but an image and a copy of this tree need {}; make room, choose a smaller tree, or specify another \
             directory with --scratch",
            units::size(free),
            units::size(needed)
        );
        let root = parent.join(format!("directfs-demo.{}", std::process::id()));
        std::fs::create_dir(&root).with_context(|| {
            format!("cannot create {}; specify a directory that you may write with --scratch", root.display())
        })?;
        let scratch = Scratch { root };
        for directory in [scratch.mount_point(), scratch.peer()] {
            std::fs::create_dir(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        }
        interrupt::check()?;
        Ok(scratch)
    }

    /// Length of an image for the tree, with room for items that wait to be recycled.
    pub fn image_bytes(tree: &Tree) -> u64 {
        (tree.block_bytes() * 3 / 2 + tree.entries.len() as u64 * 2048 + BESIDE_BYTES).next_multiple_of(2 << 20)
    }

    /// The path of the image.
    pub fn image(&self) -> PathBuf {
        self.root.join("image")
    }

    /// The mount point.
    pub fn mount_point(&self) -> PathBuf {
        self.root.join("mount")
    }

    /// The copy on the peer.
    pub fn peer(&self) -> PathBuf {
        self.root.join("peer")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Never through a remaining mount, whose files must not be removed.
        if crate::mounts::at(&self.mount_point()).is_some() {
            eprintln!(
                "warning: {} is still mounted; unmount it (umount -l) and remove {}",
                self.mount_point().display(),
                self.root.display()
            );
            return;
        }
        if let Err(error) = std::fs::remove_dir_all(&self.root) {
            eprintln!("warning: cannot remove {} ({error}); remove it manually", self.root.display());
        }
    }
}
