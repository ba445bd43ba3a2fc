//! Locks of one image that is mounted twice.

use crate::common::{Mounted, can_mount};
use fuse::Server;
use image::Image;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Sets a lock on the first byte; `true`: it was free.
fn byte_lock(file: &File, command: libc::c_int, kind: libc::c_int) -> bool {
    // SAFETY: all zeros is a lock description.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_len) = (kind as libc::c_short, 1);
    // SAFETY: an open descriptor and a description that the call only reads.
    unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) == 0 }
}

#[test]
fn locks_on_two_mounts_of_an_image_exclude_each_other() {
    if !can_mount("locks_on_two_mounts_of_an_image_exclude_each_other") {
        return;
    }
    let mut first = Mounted::new("cache=0");
    let second = first.scratch.path().join("second");
    fs::create_dir(&second).unwrap();
    let image = Image::open(&first.image, &first.opening()).unwrap();
    let server = Server::start(image, &second, &first.options).unwrap();
    fs::write(first.path("f"), "locked").unwrap();
    let (one, two) = (open(&first.path("f")), open(&second.join("f")));

    flock(&one, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(flock(&two, FlockOperation::NonBlockingLockShared).is_err(), "flock is seen on the other mount");
    // A program that waits is killed; a wait that cannot be interrupted would never end here.
    let mut waiter = Command::new("flock").arg(second.join("f")).arg("true").spawn().unwrap();
    waiter.kill().unwrap();
    assert!(!waiter.wait().unwrap().success());
    let waiter = std::thread::spawn(move || flock(&two, FlockOperation::LockExclusive).map(|()| two));
    drop(one);
    let two = waiter.join().unwrap().expect("the close of the holder gives the lock to the waiter");
    flock(&two, FlockOperation::Unlock).unwrap();

    // The kernel reports the end of a description after `close` has returned.
    for other in [&second, &first.path("")] {
        for _ in 0..50 {
            let holder = open(&first.path("f"));
            flock(&holder, FlockOperation::NonBlockingLockExclusive).unwrap();
            drop(holder);
            let next = open(&other.join("f"));
            flock(&next, FlockOperation::NonBlockingLockExclusive).expect("the holder is closed");
        }
    }
    for command in [libc::F_SETLK, libc::F_OFD_SETLK] {
        let one = open(&first.path("f"));
        assert!(byte_lock(&one, command, libc::F_WRLCK));
        assert!(!byte_lock(&two, command, libc::F_RDLCK), "byte ranges are seen on the other mount");
        drop(one);
        assert!(byte_lock(&two, command, libc::F_RDLCK), "the close of the holder releases its bytes");
        assert!(byte_lock(&two, command, libc::F_UNLCK));
    }
    drop(two);
    server.stopper().stop().unwrap();
    server.wait().unwrap();
    first.unmount();
}
