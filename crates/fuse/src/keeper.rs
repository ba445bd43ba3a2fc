//! The keeper of a mount (`-o keep`): a process without threads that holds the mount's device, and
//! starts another server when one dies. Programs on the mount wait meanwhile.
//!
//! The servers are children of the keeper, which never opens the image. What a server has read and
//! not answered stays with the device; the next server has the kernel send it again (Linux 6.9 and
//! later). On older kernels each server has devices of its own, and such requests fail with
//! ECONNABORTED.
//!
//! Invariant: a server that continues an exclusive mount is the next user of the image after the
//! dead one. Otherwise the kernel's cache would not describe the image, and the mount ends.
//!
//! A repeated creation that finds EEXIST, or removal that finds ENOENT, has happened. Servers share
//! a table of generations, so reused numbers are ESTALE. The mount ends if another process used the
//! image in between (its epoch shows that), or after ten servers that each handled fewer than 16
//! requests.
//!
//! *Reason:* the death of a server ended its mount, with ENOTCONN for all open files. *Rejected:* a
//! supervisor that mounts again: open files stay dead. *Limit:* an append with `cache=0` may act
//! twice.

use crate::error::MountError;
use crate::files::Files;
use crate::generations;
use crate::messages::report_error;
use crate::mounting::{self, Mounted};
use crate::options::MountOptions;
use crate::renames::Renames;
use crate::server::{Ended, Role, Server, open_image};
use crate::signals::Signals;
use rustix::fd::OwnedFd;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Deaths in a row after which the keeper gives up, if each server answered fewer requests than
/// [`ANSWERS_LEAST`]: a request that ends every server is sent again to the next.
const DEATHS_MAX: u32 = 10;
const ANSWERS_LEAST: u64 = 16;

/// How a server's process ended.
const EXIT_CLEANLY: i32 = 0;
const EXIT_FAILED: i32 = 1;
const EXIT_UNCLEAN: i32 = 3;

/// What the servers of a mount leave to their successors, in memory that they share.
#[repr(C)]
struct Session {
    /// The capabilities of the session; zero: not established.
    capabilities: AtomicU64,
    /// The requests that the last server has answered.
    answered: AtomicU64,
    /// The epoch of the image under the last server that reported it.
    epoch: AtomicU32,
    /// Servers since then that died before they reported theirs.
    silent: AtomicU32,
    renames: Renames,
}

/// What a server with a keeper knows of the session.
pub(crate) struct Kept {
    /// Its capabilities, if an earlier server established it.
    pub capabilities: Option<u64>,
    /// Counts the answered requests.
    pub answered: &'static AtomicU64,
    /// The renames that must not be done twice.
    pub renames: &'static Renames,
}

impl Session {
    /// Shared memory of this process and its children, which is never freed.
    fn shared() -> io::Result<&'static Session> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Session>(), protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping is aligned, long enough, zeroed (a valid value) and stays mapped;
        // all fields are atomic.
        Ok(unsafe { &*memory.cast::<Session>() })
    }
}

/// A mount with its keeper.
struct Keeper<'a> {
    image: &'a Path,
    options: MountOptions,
    mount: Mounted,
    session: &'static Session,
    generations: OwnedFd,
    signals: Signals,
}

/// Serves an image as [`crate::serve`] does, by servers that replace each other.
pub(crate) fn serve(
    image: &Path,
    mount_point: &Path,
    options: &MountOptions,
    ready: impl FnOnce(Role),
) -> Result<Ended, MountError> {
    let path = mounting::check_mount_point(mount_point)?;
    let broken = |source| MountError::Session { path: path.clone(), source };
    let mut options = options.clone();
    options.distrust(mounting::is_writable_by_others(image));
    let signals = Signals::block_with_children();
    let source = options.source.clone().map_or_else(|| image.as_os_str().to_owned(), OsString::from);
    let session = Session::shared().map_err(broken)?;
    let generations = generations::create().map_err(broken)?;
    let mount = mounting::mount(&source, &path, &options)?;
    Keeper { image, options, mount, session, generations, signals }.keep(ready)
}

impl Keeper<'_> {
    fn keep(self, ready: impl FnOnce(Role)) -> Result<Ended, MountError> {
        let broken = |source| MountError::Session { path: self.mount.path.clone(), source };
        let (begun, begin) = io::pipe().map_err(broken)?;
        let mut ready = Some(ready);
        let mut server = match self.fork().map_err(broken)? {
            0 => {
                drop(begun);
                self.run_server(|| {
                    // The keeper may be dead; the mount stays.
                    let _ = File::from(std::os::fd::OwnedFd::from(begin)).write_all(b"+");
                    if let Some(ready) = ready.take() {
                        ready(Role::Server);
                    }
                })
            }
            server => server,
        };
        drop(begin);
        let has_begun = matches!(File::from(std::os::fd::OwnedFd::from(begun)).read(&mut [0]), Ok(1));
        if let Some(ready) = ready.take().filter(|_| has_begun) {
            ready(Role::Keeper);
        }
        let mut deaths = 0;
        loop {
            match self.wait_for(server).map_err(broken)? {
                Some(EXIT_CLEANLY) => return Ok(Ended::Cleanly(image::Closed::Last)),
                Some(EXIT_UNCLEAN) => return Ok(Ended::Unclean),
                Some(_) => return Err(self.give_up("the server failed, and its message says why")),
                None if !mounting::is_mounted(&self.mount.device) => return Ok(Ended::Unclean),
                None => {}
            }
            if !has_begun {
                return Err(self.give_up("the first server died before the mount answered"));
            }
            deaths = if self.session.answered.swap(0, Relaxed) >= ANSWERS_LEAST { 1 } else { deaths + 1 };
            if deaths >= DEATHS_MAX {
                return Err(self.give_up("servers die again and again; check the image (directfs fsck)"));
            }
            server = match self.fork().map_err(broken)? {
                0 => self.run_server(|| {}),
                server => server,
            };
        }
    }

    /// Ends the mount, on which programs would wait forever.
    fn give_up(&self, cause: &str) -> MountError {
        let _ = self.mount.stop();
        MountError::Session { path: self.mount.path.clone(), source: io::Error::other(cause.to_owned()) }
    }

    /// Zero in the child.
    fn fork(&self) -> io::Result<libc::pid_t> {
        // SAFETY: this process has one thread, so the child may do whatever the parent may.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // The terminal's signals reach the keeper, which passes them on once.
                // SAFETY: a plain system call.
                unsafe { libc::setpgid(0, 0) };
                Ok(0)
            }
            child => Ok(child),
        }
    }

    /// Waits until a server has ended, and passes signals on to it. Returns its exit code, or
    /// `None` if a signal killed it.
    fn wait_for(&self, server: libc::pid_t) -> io::Result<Option<i32>> {
        loop {
            let mut status = 0;
            // SAFETY: a child of this process, and a place for its status.
            match unsafe { libc::waitpid(server, &raw mut status, libc::WNOHANG) } {
                0 => {}
                -1 => return Err(io::Error::last_os_error()),
                _ if libc::WIFEXITED(status) => return Ok(Some(libc::WEXITSTATUS(status))),
                _ => return Ok(None),
            }
            let signal = self.signals.next()?;
            if signal != libc::SIGCHLD {
                // SAFETY: a child that has not been waited for, so the number is its own.
                unsafe { libc::kill(server, signal) };
            }
        }
    }

    /// Serves in the child, which then ends.
    fn run_server(&self, ready: impl FnOnce()) -> ! {
        let code = match self.serve(ready) {
            Ok(Ended::Cleanly(_)) => EXIT_CLEANLY,
            Ok(Ended::Unclean) => EXIT_UNCLEAN,
            Err(error) => {
                report_error(format_args!("{error}"));
                EXIT_FAILED
            }
        };
        std::process::exit(code)
    }

    fn serve(&self, ready: impl FnOnce()) -> Result<Ended, MountError> {
        let path: &PathBuf = &self.mount.path;
        let failed = |source| MountError::Session { path: path.clone(), source };
        let signals = Signals::block();
        let silent = self.session.silent.fetch_add(1, Relaxed);
        let image = open_image(self.image, &self.options)?;
        let mut options = self.options.clone();
        options.distrust(image.is_writable_by_others());
        if options.kernel_flags != self.options.kernel_flags {
            return Err(failed(io::Error::other("the image was replaced while it was mounted; mount it again")));
        }
        let before = self.session.capabilities.load(Acquire);
        let epoch = image.fs().epoch();
        let expected = self.session.epoch.swap(epoch, Release).wrapping_add(1);
        self.session.silent.store(0, Relaxed);
        // A server that died silently may have attached. It left the image unclean, as no other
        // process does that ends.
        let further = epoch.wrapping_sub(expected);
        let is_next = further == 0 || (further <= silent && image.report().is_some_and(|report| report.scanned));
        if before != 0 && self.options.cache.is_exclusive() && !is_next {
            let cause = "another process used the image after the server's death, so the kernel's cache is not valid";
            return Err(failed(io::Error::other(cause)));
        }
        let files = Files::new(image, &self.options)?.keep(&self.generations).map_err(failed)?;
        let device = self.mount.device.try_clone().map_err(failed)?;
        let mount = Mounted { path: path.clone(), device, by_helper: self.mount.by_helper };
        let Session { answered, renames, .. } = self.session;
        let kept = Kept { capabilities: (before != 0).then_some(before), answered, renames };
        let server = Server::begin(files, mount, &self.options, Some(&kept))?;
        self.session.capabilities.store(server.capabilities, Release);
        server.serve_until_signals(&signals, ready)
    }
}
