//! The calling thread in its process: what a call acts as, and in which table.
//!
//! Invariant: [`main`] is set by the constructor, and by the child of a fork before it does
//! anything else; otherwise it is only read.

use crate::process::identity::{Identity, query_umask};
use crate::server::Server;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use engine::Node;
use posix::{CachedReference, Caller, Result};
use tables::process::{Process, Processes};

/// A thread with its credentials, in a program.
pub type Calling<'c> = Caller<'c, 'static>;

/// The calling thread with its credentials, in a process.
#[derive(Clone, Copy)]
pub struct Session<'c> {
    /// The thread.
    pub caller: Calling<'c>,
    /// What it acts as.
    pub identity: &'c Identity,
    /// The process.
    pub process: &'c Process<'static>,
    /// Whether it is a child that runs in its parent's memory.
    pub is_child: bool,
    /// In a process with several threads: this thread's reference to the working directory. It is
    /// taken once, so that calls of several threads share no counter.
    pub cached_directory: &'c CachedReference,
}

impl Session<'_> {
    /// The working directory, if it is in the image: it stays valid for the call, even if another
    /// thread changes it.
    #[inline]
    pub fn directory(&self) -> Option<Node> {
        let now = self.process.directory();
        if has_threads() && now != self.cached_directory.node() {
            return self.follow();
        }
        now
    }

    /// The bits that new files do not get.
    pub fn umask(&self) -> u32 {
        if shares_directory() { query_umask() } else { self.process.umask() }
    }

    /// Takes a reference to the present working directory.
    #[cold]
    fn follow(&self) -> Option<Node> {
        let thread = self.caller.thread;
        self.cached_directory.release(thread);
        loop {
            let visit = thread.visit();
            let now = self.process.directory()?;
            // During the visit its cachelet is not reused, even if the process has left the
            // directory since.
            let Some(taken) = visit.begin_at(now).ok().and_then(|seen| visit.take(seen)) else { continue };
            drop(visit);
            thread.record_reference(taken);
            self.cached_directory.replace(thread, taken);
            return Some(taken);
        }
    }
}

/// Whether another process has the kernel's working directory and umask in common with this one
/// (CLONE_FS). A directory in the image is each process's own, so neither can enter or leave it.
static SHARES_DIRECTORY: AtomicBool = AtomicBool::new(false);

/// See [`set_shares_directory`].
pub fn shares_directory() -> bool {
    SHARES_DIRECTORY.load(Relaxed)
}

/// A child is about to share the kernel's working directory and umask.
pub fn set_shares_directory() {
    SHARES_DIRECTORY.store(true, Relaxed);
}

struct MainProcess(UnsafeCell<MaybeUninit<Process<'static>>>);
// SAFETY: see the module's invariant.
unsafe impl Sync for MainProcess {}
static MAIN: MainProcess = MainProcess(UnsafeCell::new(MaybeUninit::uninit()));
/// Whether the process may have several threads: see [`has_threads`].
static THREADS: AtomicBool = AtomicBool::new(false);

/// This process.
#[inline]
pub fn main() -> &'static Process<'static> {
    // SAFETY: set by the constructor before any call is served; and by the child of a fork, which
    // obtains it again afterwards.
    unsafe { (*MAIN.0.get()).assume_init_ref() }
}

/// Sets what [`main`] returns.
pub fn set_main(process: Process<'static>) {
    // SAFETY: the caller is the constructor or the only thread of a new process.
    unsafe { (*MAIN.0.get()).write(process) };
}

/// Whether the process may have several threads.
pub fn has_threads() -> bool {
    THREADS.load(Relaxed)
}

/// Records whether the process may have several threads; returns what was recorded before.
pub fn set_threads(has_threads: bool) -> bool {
    THREADS.swap(has_threads, Relaxed)
}

/// The processes of the file system.
pub fn all(server: &'static Server) -> Result<Processes<'static>> {
    Processes::new(&server.fs)
}
