//! How a process joins the image: when it starts, or at its first call that concerns the image.
//!
//! A program that inherits no descriptor of the image, at most its working directory, keeps the
//! process slot, and the liveness lock of its number. It maps neither region until a call may
//! concern the file system, a child or thread is started, or a right that attaching needs is given
//! up. *Reason:* mapping both regions and joining the image costs every program, also one that
//! never uses the mount.

use crate::abi::sys;
use crate::calls::{kernel_objects, mapping};
use crate::descriptors::fd_numbers;
use crate::process::session::{all, set_main};
use crate::process::working_directory::record_directory;
use crate::process::{environment, identity};
use crate::server::{self, Server};
use crate::{context, stack};
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicU32};
use posix::path::{LastLink, Outcome, PathBuffer, WalkStart};
use posix::{Errno, Result};

/// Origin of this process.
#[derive(Debug, Clone, Copy)]
pub enum Origin {
    /// It was started by a program that passed the number of the slot, or by the launcher.
    Exec(Option<u32>),
    /// It exists already, in that slot.
    Joined(u32),
}

/// The slot of a process that has not attached yet, plus one.
static POSTPONED: AtomicU32 = AtomicU32::new(0);

/// For the constructor of a program that has at most its working directory in the image
/// (`is_inside`): it attaches when it needs to. Until then its slot stays as the program before
/// left it, with the reference to the directory, and the descriptor that it inherited holds the
/// lock of its number.
pub fn postpone(server: &'static Server, slot: u32, is_inside: bool) {
    POSTPONED.store(slot + 1, Relaxed);
    record_directory(server, is_inside);
}

/// Whether a thread has started to attach.
static ATTACHING: AtomicBool = AtomicBool::new(false);

/// Attaches now. If that fails, all accesses to the mount are errors from now on.
#[cold]
pub fn attach_now(server: &'static Server, context: &mut context::Context) {
    // Threads exist already if the program has created them by instructions of its own.
    if ATTACHING.swap(true, AcqRel) {
        while server::is_pending() {
            // SAFETY: takes no memory.
            unsafe { sys::call(libc::SYS_sched_yield, [0; 6]) };
        }
        return;
    }
    let slot = POSTPONED.load(Relaxed).checked_sub(1);
    let handoff = environment::handoff().ok_or(&b"this program lost its descriptors"[..]);
    // SAFETY: the first attempt (checked), and calls of other threads wait for its end.
    let attached = handoff.and_then(|handoff| unsafe { server::attach(&handoff, 0, slot) });
    let result = attached.and_then(|()| take(server, context, Origin::Exec(slot), None).map_err(reason));
    match result {
        Ok(()) => server::serve(),
        Err(_) => server::lose(),
    }
    if let Err(reason) = result {
        sys::print(&[reason]);
        sys::print(&[b"every access to the mount now returns EIO; restart the program"]);
    }
}

fn reason(error: Errno) -> &'static [u8] {
    match error {
        Errno(libc::ENFILE) => b"too many processes use the file system; end some of them",
        Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES => b"cannot enter the working directory; check its permissions",
        _ => b"this process cannot join the file system; free memory or end some processes",
    }
}

/// For the constructor: takes the process's slot, or a new one.
pub fn start(server: &'static Server, origin: Origin, directory: Option<&[u8]>) {
    stack::prepare();
    // SAFETY: just prepared, and not in use before the first call.
    let context = unsafe { stack::context() };
    if let Err(error) = take(server, context, origin, directory) {
        sys::refuse(&[reason(error)]);
    }
    server::serve();
}

fn take(
    server: &'static Server,
    context: &mut context::Context,
    origin: Origin,
    directory: Option<&[u8]>,
) -> Result<()> {
    let thread = context.thread(server)?;
    let processes = all(server)?;
    let found = match origin {
        Origin::Exec(index) => processes.resume(thread, index)?,
        Origin::Joined(index) => Some(processes.rejoin(index)?),
    };
    let process = match found {
        Some(process) => process,
        None => processes.register(thread, identity::query_umask())?,
    };
    set_main(process);
    if let (Some(path), Origin::Exec(_)) = (directory, origin) {
        let inside = context.begin(server)?;
        let caller = inside.session.caller;
        let walk_start = WalkStart { root: server.root, start: server.root, can_leave: false };
        let buffer: &mut PathBuffer = inside.walk;
        let Outcome::Inside(found) = caller.paths().resolve(&walk_start, path, LastLink::Follow, buffer)? else {
            return Err(Errno::ENOENT);
        };
        caller.paths().check_enter(found.node())?;
        kernel_objects::leave_host_directory()?;
        process.set_directory(caller.thread, Some(found.node()))?;
    }
    record_directory(server, process.directory().is_some());
    process.mappings(context.thread(server)?, &mut mapping::watch_mapping)?;
    process.descriptors(&mut |fd, descriptor| {
        fd_numbers::mark(fd);
        if process.is_path(&descriptor) {
            fd_numbers::record_path_descriptor();
        }
        true
    });
    Ok(())
}
