//! fusermount3, which mounts and unmounts for users other than root.

use crate::options::MountOptions;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The helper may be missing in a short PATH.
const PLACES: [&str; 2] = ["/usr/bin/fusermount3", "/bin/fusermount3"];

fn command() -> Command {
    let place = PLACES.into_iter().find(|place| Path::new(place).exists());
    Command::new(place.unwrap_or("fusermount3"))
}

/// Mounts; returns the device that delivers the kernel's requests. NotFound: there is no helper.
pub(crate) fn mount(source: &OsStr, path: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut helper = command();
    helper.arg("-o").arg(option_list(source, options)).arg("--").arg(path);
    // This process is the only one with threads or not; the helper inherits one descriptor.
    let inherited = theirs.as_raw_fd();
    helper.env("_FUSE_COMMFD", inherited.to_string()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: a plain system call between fork and exec, on a descriptor that is open until then.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut helper, move || {
            let inherited = rustix::fd::BorrowedFd::borrow_raw(inherited);
            Ok(fcntl_setfd(inherited, FdFlags::empty())?)
        });
    }
    let helper = helper.spawn()?;
    drop(theirs);
    let device = receive(&ours);
    let output = helper.wait_with_output()?;
    device.ok_or_else(|| failure(&output))
}

/// Unmounts. A mount in use is hidden at once and ends with its last user.
pub(crate) fn unmount(path: &Path) -> io::Result<()> {
    unmount_with(&["-u", "-q", "-z", "--"], path)
}

/// Unmounts, unless the mount is in use.
pub(crate) fn unmount_unused(path: &Path) -> io::Result<()> {
    unmount_with(&["-u", "-q", "--"], path)
}

fn unmount_with(options: &[&str], path: &Path) -> io::Result<()> {
    let output = command().args(options).arg(path).output()?;
    if output.status.success() { Ok(()) } else { Err(failure(&output)) }
}

fn failure(output: &Output) -> io::Error {
    io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// The descriptor that the helper sends.
fn receive(socket: &impl AsFd) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut messages = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut messages, RecvFlags::CMSG_CLOEXEC).ok()?;
    messages.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

/// The helper adds nosuid and nodev itself.
fn option_list(source: &OsStr, options: &MountOptions) -> OsString {
    let mut list = b"fsname=".to_vec();
    for &byte in source.as_bytes() {
        // Commas separate options; a backslash makes them part of one.
        if matches!(byte, b'\\' | b',') {
            list.push(b'\\');
        }
        list.push(byte);
    }
    let mut list = OsString::from_vec(list);
    list.push(",subtype=directfs,default_permissions");
    list.push(if options.read_only { ",ro" } else { ",rw" });
    if options.allow_other == Some(true) {
        list.push(",allow_other");
    }
    let flags = [
        (libc::MS_NOEXEC, ",noexec"),
        (libc::MS_NOATIME, ",noatime"),
        (libc::MS_SYNCHRONOUS, ",sync"),
        (libc::MS_DIRSYNC, ",dirsync"),
    ];
    for (flag, option) in flags {
        if options.kernel_flags & flag != 0 {
            list.push(option);
        }
    }
    list
}
