//! An image on a disk, what a power failure leaves of it, and processes that are killed.

use super::{IMAGE_BYTES, ROOT, Session, on_disk, options_in};
use image::{CommitPolicy, Image, MakeOptions, OpenImage, make};
use std::fs;
use std::path::PathBuf;

/// An image on the disk of the scratch directory.
pub struct Disk {
    pub directory: tempfile::TempDir,
    pub path: PathBuf,
    pub options: OpenImage,
}

impl Disk {
    pub fn new(commits: CommitPolicy) -> Disk {
        let directory = on_disk();
        let path = directory.path().join("image");
        make(&path, &MakeOptions { length: IMAGE_BYTES, ..MakeOptions::default() }).unwrap();
        let options = OpenImage { commits, ..options_in(&directory) };
        let disk = Disk { directory, path, options };
        assert!(disk.open().storage().is_disk(), "these tests need a scratch directory on a disk");
        disk
    }

    pub fn open(&self) -> Image {
        Image::open(&self.path, &self.options).unwrap()
    }

    /// What a power failure would leave now.
    pub fn after_power_failure(&self) -> Image {
        let copy = self.directory.path().join("copy");
        fs::copy(&self.path, &copy).unwrap();
        Image::open(&copy, &self.options).unwrap()
    }

    pub fn runtime_directories(&self) -> usize {
        let names = fs::read_dir(self.directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("directfs-")).count()
    }
}

pub fn with_root<T>(image: &Image, call: impl FnOnce(&Session<'_, '_>) -> T) -> T {
    let thread = image.fs().enter().unwrap();
    let root = thread.root().unwrap();
    let result = call(&Session::new(&thread, root, ROOT));
    thread.release(root, 1);
    result
}

pub fn touch(image: &Image, name: &str) {
    with_root(image, |session| session.touch(name, 0o644)).unwrap();
}

pub fn has(image: &Image, name: &str) -> bool {
    with_root(image, |session| session.stat(name)).is_ok()
}

/// Runs a process that ends like a killed one, with whatever it has open.
pub fn killed(run: impl FnOnce() -> Image) {
    // SAFETY: the child makes only the calls of this test, in its only thread, and does not return.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let _used = std::mem::ManuallyDrop::new(run());
        // SAFETY: ends this process at once.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    // SAFETY: waits for a child of this test.
    assert_eq!(unsafe { libc::waitpid(child, &mut 0, 0) }, child);
}
