//! An image in a scratch directory.
#![allow(dead_code)]

use directfs::{Credentials, FileSystem, Image};
use std::path::PathBuf;
use tempfile::TempDir;

pub const IMAGE_BYTES: u64 = 32 << 20;

/// A fresh image in use.
pub struct Scratch {
    pub image: Image,
    pub fs: FileSystem,
    pub path: PathBuf,
    pub directory: TempDir,
}

/// A directory in memory if possible: fast, and with locks and holes.
pub fn scratch_directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a scratch directory")
}

impl Scratch {
    pub fn new() -> Scratch {
        let directory = scratch_directory();
        let path = directory.path().join("image");
        let image = Image::create(&path).size(IMAGE_BYTES).root_mode(0o777).create().expect("creates");
        let fs = image.file_system();
        Scratch { image, fs, path, directory }
    }

    pub fn as_root(&self) -> FileSystem {
        self.fs.with_credentials(Credentials::new(0, 0, &[]))
    }

    pub fn as_user(&self, uid: u32) -> FileSystem {
        self.fs.with_credentials(Credentials::new(uid, uid, &[]))
    }
}

/// The errno of a failure.
pub fn errno<T>(result: directfs::Result<T>) -> Option<i32> {
    result.err().map(|error| error.errno())
}
