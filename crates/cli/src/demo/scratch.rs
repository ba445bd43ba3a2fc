//! A directory in memory for everything that the demonstration makes, removed at its end however it ends (but by SIGKILL).

use super::tree::Tree;
use crate::{interrupt, units};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// Blocks of directory logs, maps and dentries beside the contents.
const BESIDE_BYTES: u64 = 64 << 20;

/// The directory.
pub struct Scratch {
    root: PathBuf,
}

impl Scratch {
    /// Makes it inside `parent`, if an image and a copy of the tree fit there.
    pub fn make(parent: &Path, tree: &Tree) -> Result<Scratch> {
        let shown = parent.display();
        let space = rustix::fs::statvfs(parent)
            .with_context(|| format!("cannot use {shown}; name a directory in memory with --scratch"))?;
        let (free, needed) = (space.f_bavail * space.f_frsize, tree.block_bytes() + Scratch::image_bytes(tree));
        ensure!(
            free >= needed,
            "{shown} has {} free and an image and a copy of this tree need {}; make room, choose a smaller tree, or name another \
             directory with --scratch",
            units::size(free),
            units::size(needed)
        );
        let root = parent.join(format!("directfs-demo.{}", std::process::id()));
        std::fs::create_dir(&root).with_context(|| {
            format!("cannot make {}; name a directory that you may write with --scratch", root.display())
        })?;
        let scratch = Scratch { root };
        for directory in [scratch.mount_point(), scratch.peer()] {
            std::fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        interrupt::check()?;
        Ok(scratch)
    }

    /// Bytes of an image that holds the tree, with room for what waits to be recycled.
    pub fn image_bytes(tree: &Tree) -> u64 {
        (tree.block_bytes() * 3 / 2 + tree.entries.len() as u64 * 2048 + BESIDE_BYTES).next_multiple_of(2 << 20)
    }

    /// Where the image is.
    pub fn image(&self) -> PathBuf {
        self.root.join("image")
    }

    /// Where it is mounted.
    pub fn mount_point(&self) -> PathBuf {
        self.root.join("mount")
    }

    /// Where the copy lies to which it is compared.
    pub fn peer(&self) -> PathBuf {
        self.root.join("peer")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Never through a mount that is still there: its files are not ours to remove by walking.
        if crate::mounts::at(&self.mount_point()).is_some() {
            eprintln!(
                "warning: {} is still mounted; unmount it (umount -l) and remove {}",
                self.mount_point().display(),
                self.root.display()
            );
            return;
        }
        if let Err(error) = std::fs::remove_dir_all(&self.root) {
            eprintln!("warning: cannot remove {} ({error}); remove it by hand", self.root.display());
        }
    }
}
