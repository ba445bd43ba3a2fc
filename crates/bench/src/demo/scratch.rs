//! A directory in memory for all files of the demonstration. It is removed at the end, also after
//! errors; after SIGKILL the orphaned workers remove it.

use super::tree::Tree;
use crate::{interrupt, units};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// Additional blocks of an image for directory logs, maps and dentries.
const BESIDE_BYTES: u64 = 64 << 20;

/// The directory.
pub struct Scratch {
    root: PathBuf,
}

impl Scratch {
    /// Creates it inside `parent`, if so many images and a copy of the tree fit there.
    pub fn make(parent: &Path, tree: &Tree, images: u64) -> Result<Scratch> {
        let shown = parent.display();
        let remedy = || format!("cannot use {shown}; specify a directory in memory with --scratch");
        let space = rustix::fs::statvfs(parent).with_context(remedy)?;
        let free = space.f_bavail * space.f_frsize;
        let needed = tree.block_bytes() + images * Scratch::image_bytes(tree);
        ensure!(
            free >= needed,
            "{shown} has {} free but the images and a copy of this tree need {}; make room, choose a smaller tree, or specify another \
             directory with --scratch",
            units::size(free),
            units::size(needed)
        );
        // Workers run in other directories.
        let root = parent.canonicalize().with_context(remedy)?.join(format!("directfs-demo.{}", std::process::id()));
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

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// The image for `run`.
    pub fn image(&self) -> PathBuf {
        self.root.join("image")
    }

    /// The image for the mount.
    pub fn mounted_image(&self) -> PathBuf {
        self.root.join("mounted-image")
    }

    /// The mount point.
    pub fn mount_point(&self) -> PathBuf {
        self.root.join("mount")
    }

    /// The directory for the copy to compare with.
    pub fn peer(&self) -> PathBuf {
        self.root.join("peer")
    }

    /// The list of the tree's entries.
    pub fn list(&self) -> PathBuf {
        self.root.join("list")
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
        if let Err(error) = std::fs::remove_dir_all(&self.root)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("warning: cannot remove {} ({error}); remove it manually", self.root.display());
        }
    }
}
