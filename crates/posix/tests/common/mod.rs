//! An image in a scratch directory, and short forms of calls on it.
#![allow(dead_code)]

pub mod disk;

use engine::format::FileKind;
use engine::{Attributes, Node, Thread};
use image::{Image, MakeOptions, OpenImage, make};
use posix::path::{LastLink, Outcome, PathBuffer, WalkStart};
use posix::{Caller, Credentials, Errno, OpenFile, Result};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

pub const IMAGE_BYTES: u64 = 32 << 20;

/// A fresh image in use.
pub struct Scratch {
    pub image: Image,
    pub path: PathBuf,
    pub options: OpenImage,
    pub directory: TempDir,
}

pub fn options_in(directory: &TempDir) -> OpenImage {
    OpenImage {
        dram_directory: directory.path().to_owned(),
        // The bound is against a hang: another process may attach on a slow disk meanwhile.
        timeout: Duration::from_secs(300),
        ..OpenImage::default()
    }
}

/// An open that fails because the image is in use.
pub fn brief(options: &OpenImage) -> OpenImage {
    OpenImage { timeout: Duration::from_millis(50), ..options.clone() }
}

/// A scratch directory on a disk: the usual one may be in memory.
pub fn on_disk() -> TempDir {
    let usual = tempfile::tempdir().unwrap();
    let is_in_memory = rustix::fs::statfs(usual.path()).is_ok_and(|found| found.f_type == libc::TMPFS_MAGIC);
    if is_in_memory { tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() } else { usual }
}

impl Scratch {
    pub fn new() -> Scratch {
        // /dev/shm is fast, and supports holes and locks.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let path = directory.path().join("image");
        let arguments = MakeOptions { length: IMAGE_BYTES, permissions: 0o777, ..MakeOptions::default() };
        make(&path, &arguments).unwrap();
        let options = options_in(&directory);
        let image = Image::open(&path, &options).unwrap();
        Scratch { image, path, options, directory }
    }
}

/// A caller whose paths begin at the image's root.
pub struct Session<'t, 'f> {
    pub caller: Caller<'t, 'f>,
    pub walk_start: WalkStart,
}

pub const ROOT: Credentials<'static> = Credentials::user(0, 0, &[]);
pub const ALICE: Credentials<'static> = Credentials::user(1000, 1000, &[50]);
pub const BOB: Credentials<'static> = Credentials::user(1001, 1001, &[50, 60]);

/// Runs calls inside an image.
pub fn inside(test: impl FnOnce(&Thread<'_>, Node)) {
    let scratch = Scratch::new();
    {
        let thread = scratch.image.fs().enter().unwrap();
        let root = thread.root().unwrap();
        test(&thread, root);
        thread.release(root, 1);
    }
    scratch.image.close().unwrap();
}

fn unwrap<T>(outcome: Outcome<T>) -> T {
    match outcome {
        Outcome::Inside(found) => found,
        Outcome::Left(exit) => panic!("left the mount: {exit:?}"),
    }
}

impl<'t, 'f> Session<'t, 'f> {
    pub fn new(thread: &'t Thread<'f>, root: Node, credentials: Credentials<'t>) -> Self {
        Session {
            caller: Caller::new(thread, credentials),
            walk_start: WalkStart { root, start: root, can_leave: false },
        }
    }

    pub fn mkdir(&self, path: &str, mode: u32) -> Result<()> {
        self.mkdir_masked(path, mode, 0)
    }

    pub fn mkdir_masked(&self, path: &str, mode: u32, umask: u32) -> Result<()> {
        let mut buffer = PathBuffer::new();
        self.caller.mkdir_path(&self.walk_start, path.as_bytes(), mode, umask, &mut buffer).map(unwrap)
    }

    pub fn symlink(&self, target: &str, path: &str) -> Result<()> {
        let mut buffer = PathBuffer::new();
        self.caller.symlink_path(target.as_bytes(), &self.walk_start, path.as_bytes(), &mut buffer).map(unwrap)
    }

    pub fn mknod(&self, path: &str, mode: u32) -> Result<()> {
        self.mknod_masked(path, mode, 0)
    }

    pub fn mknod_masked(&self, path: &str, mode: u32, umask: u32) -> Result<()> {
        let mut buffer = PathBuffer::new();
        self.caller.mknod_path(&self.walk_start, path.as_bytes(), (mode, umask), 0x103, &mut buffer).map(unwrap)
    }

    pub fn open(&self, path: &str, flags: i32) -> Result<OpenFile> {
        self.open_mode(path, flags, 0o644)
    }

    pub fn open_mode(&self, path: &str, flags: i32, mode: u32) -> Result<OpenFile> {
        let mut buffer = PathBuffer::new();
        let opened = self.caller.opens().open_path(&self.walk_start, path.as_bytes(), flags, (mode, 0), &mut buffer)?;
        Ok(unwrap(opened).file)
    }

    pub fn try_open(&self, path: &str, flags: i32) -> Result<()> {
        self.open(path, flags).map(|file| self.caller.opens().close(&file))
    }

    /// Creates an empty file.
    pub fn touch(&self, path: &str, mode: u32) -> Result<()> {
        let file = self.open_mode(path, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, mode)?;
        self.caller.opens().close(&file);
        Ok(())
    }

    pub fn unlink(&self, path: &str) -> Result<()> {
        let mut buffer = PathBuffer::new();
        self.caller.unlink_path(&self.walk_start, path.as_bytes(), &mut buffer).map(unwrap)
    }

    pub fn rmdir(&self, path: &str) -> Result<()> {
        let mut buffer = PathBuffer::new();
        self.caller.rmdir_path(&self.walk_start, path.as_bytes(), &mut buffer).map(unwrap)
    }

    pub fn rename(&self, from: &str, to: &str, flags: u32) -> Result<()> {
        let mut buffer = PathBuffer::new();
        let (from, to) = ((&self.walk_start, from.as_bytes()), (&self.walk_start, to.as_bytes()));
        self.caller.rename_path(from, to, flags, &mut buffer).map(unwrap)
    }

    pub fn link(&self, from: &str, to: &str) -> Result<()> {
        let mut buffer = PathBuffer::new();
        let found =
            unwrap(self.caller.paths().resolve(&self.walk_start, from.as_bytes(), LastLink::Stay, &mut buffer)?);
        let linked = self.caller.link_path(found.node(), false, &self.walk_start, to.as_bytes(), &mut buffer);
        linked.map(unwrap)
    }

    pub fn at<T>(&self, path: &str, call: impl FnOnce(Node) -> Result<T>) -> Result<T> {
        self.at_link(path, LastLink::Follow, call)
    }

    pub fn at_link<T>(&self, path: &str, last: LastLink, call: impl FnOnce(Node) -> Result<T>) -> Result<T> {
        let mut buffer = PathBuffer::new();
        self.caller.at_path(&self.walk_start, path.as_bytes(), last, &mut buffer, call).map(unwrap)
    }

    pub fn stat(&self, path: &str) -> Result<Attributes> {
        self.at(path, |node| self.caller.stat(node))
    }

    pub fn lstat(&self, path: &str) -> Result<Attributes> {
        self.at_link(path, LastLink::Stay, |node| self.caller.stat(node))
    }

    pub fn kind(&self, path: &str) -> Result<FileKind> {
        Ok(self.stat(path)?.kind)
    }

    pub fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        self.at(path, |node| self.caller.chmod(node, mode)).map(drop)
    }

    pub fn chown(&self, path: &str, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.at_link(path, LastLink::Stay, |node| self.caller.chown(node, uid, gid)).map(drop)
    }

    /// The names of a directory, with `.` and `..`, in the order of cookies.
    pub fn list(&self, path: &str) -> Result<Vec<String>> {
        let file = self.open(path, libc::O_RDONLY | libc::O_DIRECTORY)?;
        let mut names = Vec::new();
        let read = self.caller.read_directory(&file, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        });
        self.caller.opens().close(&file);
        read.map(|()| names)
    }
}

/// Compares results by their errno only.
#[track_caller]
pub fn assert_errno<T>(result: Result<T>, expected: Errno) {
    match result {
        Ok(_) => panic!("succeeded instead of {expected:?}"),
        Err(found) => assert_eq!(found, expected),
    }
}
