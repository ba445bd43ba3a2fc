//! What a thread needs while it serves calls: its place inside the engine, and room for paths.
//!
//! Invariants: a context lies at the upper end of its thread's stack for the dispatcher, and is used by that thread alone, one call at a time. A call that
//! interrupts another on the same thread (in the handler of a fault) gets a context of its own. A context that a fork copied is
//! entered anew: the slot in the engine is still the parent's.

use super::processes::{self, Session};
use super::server::{self, Server};
use super::{identity, sys, user_memory};
use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use engine::Thread;
use pmem::Direct;
use posix::path::PathBuffer;
use posix::process::{ChildNumber, Process};
use posix::{CachedReference, Caller, Credentials, Errno, PathCache, Result};

/// Bytes of a buffer for a path: with room for what is put before or behind it.
pub const PATH_ROOM_BYTES: usize = 2 * user_memory::PATH_BYTES_MAX;
/// Bytes that are copied at a time.
pub const COPY_BYTES: usize = 64 << 10;

/// Raised in a child of a fork: contexts of before are copies of the parent's.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// Where a thread serves calls. All zero is a valid one that has not been entered.
pub struct Context {
    thread: MaybeUninit<Thread<'static, Direct>>,
    /// Generation in which `thread` was entered; zero: not.
    entered: u32,
    /// Whether the thread may have learned from the kernel that a process has ended, since it was here.
    has_waited: bool,
    /// As `entered`, of `suspended`.
    suspended_entered: u32,
    /// What a parent keeps while its child runs in the same memory.
    suspended: MaybeUninit<Thread<'static, Direct>>,
    /// The slot that a parent made for a child in the same memory.
    prepared: u32,
    /// That child's process number.
    child_number: ChildNumber,
    /// Whether that child has taken it.
    adopted: bool,
    /// The process of a child that runs in its parent's memory, while it does.
    child: Option<Process<'static>>,
    /// The process as this thread of several sees it, if there was room for that.
    own: Option<Process<'static>>,
    /// Generation in which `own` was asked for; zero: not.
    own_entered: u32,
    /// In `thread`: its reference to the working directory.
    cached_directory: CachedReference,
    /// In `thread`: its reference to the directory of the last path.
    cached_parent: CachedReference,
    path_cache: PathCache,
    walk: PathBuffer,
    path: [u8; PATH_ROOM_BYTES],
    second: [u8; PATH_ROOM_BYTES],
    host: [u8; PATH_ROOM_BYTES],
    copy: [u8; COPY_BYTES],
}

/// The parts of a context in use.
pub struct Inside<'c> {
    /// Who calls.
    pub session: Session<'c>,
    /// For walks.
    pub walk: &'c mut PathBuffer,
    /// For the call's path.
    pub path: &'c mut [u8; PATH_ROOM_BYTES],
    /// For its second path.
    pub second: &'c mut [u8; PATH_ROOM_BYTES],
    /// For paths of the kernel's.
    pub host: &'c mut [u8; PATH_ROOM_BYTES],
    /// For content.
    pub copy: &'c mut [u8; COPY_BYTES],
}

impl Context {
    #[inline]
    fn enter(&mut self, server: &'static Server) -> engine::Result<()> {
        let generation = GENERATION.load(Relaxed);
        if self.entered != generation {
            self.thread.write(server.fs.enter()?);
            self.entered = generation;
            self.discard_cached();
        }
        if self.has_waited {
            self.recover_dead_threads(server)?;
        }
        Ok(())
    }

    /// What this process had in the shared tables is another's by now. From here on each call that
    /// might be about a file of the mount is an error (see `failed`), and none of them goes to what
    /// the kernel has under that name or number.
    #[cold]
    fn lose() -> Errno {
        if !server::has_failed() {
            server::lose();
            sys::print(&[
                b"this process was taken for dead by another one: its files in the mount are lost to it (EIO)",
            ]);
        }
        Errno::EIO
    }

    /// The thread waits for processes: what those were doing that it sees end is to have happened, or not, when it comes back.
    pub fn will_wait(&mut self) {
        self.has_waited = true;
    }

    #[cold]
    fn recover_dead_threads(&mut self, server: &'static Server) -> engine::Result<()> {
        self.has_waited = false;
        server.fs.recover_dead_threads()
    }

    /// This thread's place inside the engine, which it enters if need be.
    pub fn thread(&mut self, server: &'static Server) -> engine::Result<&Thread<'static, Direct>> {
        self.enter(server)?;
        // SAFETY: entered, in this generation.
        Ok(unsafe { self.thread.assume_init_ref() })
    }

    /// Enters the engine, if that has not been done.
    // Part of its callers, which need little of what it gives: all of it would go through memory, in pieces that do not match.
    #[inline(always)]
    pub fn begin(&mut self, server: &'static Server) -> Result<Inside<'_>> {
        self.enter(server)?;
        if processes::has_threads() && self.own_entered != self.entered {
            self.enter_multithreaded();
        }
        // SAFETY: entered, in this generation.
        let thread = unsafe { self.thread.assume_init_ref() };
        let credentials: Credentials<'static> = identity::credentials();
        let process = match (&self.child, &self.own) {
            (Some(child), _) => child,
            (None, Some(own)) => own,
            (None, None) => processes::main(),
        };
        if process.is_lost() {
            return Err(Self::lose());
        }
        Ok(Inside {
            session: Session {
                caller: Caller::new(thread, credentials)
                    .with_path_cache(&self.path_cache)
                    .with_parent(&self.cached_parent),
                process,
                is_child: self.child.is_some(),
                cached_directory: &self.cached_directory,
            },
            walk: &mut self.walk,
            path: &mut self.path,
            second: &mut self.second,
            host: &mut self.host,
            copy: &mut self.copy,
        })
    }

    /// One of several threads from now on.
    #[cold]
    fn enter_multithreaded(&mut self) {
        // What a fork copied is the parent's.
        self.own = processes::main().for_thread();
        self.own_entered = self.entered;
    }

    /// Leaves the engine: the thread ends, or another one takes over.
    pub fn leave(&mut self) {
        let entered = core::mem::take(&mut self.entered);
        let own_entered = core::mem::take(&mut self.own_entered);
        if let Some(own) = self.own.take()
            && self.child.is_none()
            && own_entered == GENERATION.load(Relaxed)
        {
            own.end_thread();
        }
        if entered != 0 && entered == GENERATION.load(Relaxed) {
            // SAFETY: entered in this generation.
            self.release_cached(unsafe { self.thread.assume_init_ref() });
            // SAFETY: as above, and not used from now on.
            unsafe { self.thread.assume_init_drop() };
        }
    }

    fn release_cached(&self, thread: &Thread<'static, Direct>) {
        self.cached_directory.release(thread);
        self.cached_parent.release(thread);
    }

    fn discard_cached(&self) {
        self.cached_directory.discard();
        self.cached_parent.discard();
    }

    /// Puts the thread's place away, for a child that shares memory with its parent and takes the slot `prepared`: it enters a place of its own.
    pub fn suspend(&mut self, prepared: u32, child_number: ChildNumber) {
        if self.entered == GENERATION.load(Relaxed) {
            // SAFETY: entered, in this generation.
            self.release_cached(unsafe { self.thread.assume_init_ref() });
        }
        core::mem::swap(&mut self.thread, &mut self.suspended);
        self.suspended_entered = core::mem::take(&mut self.entered);
        (self.prepared, self.child_number, self.adopted, self.child) = (prepared, child_number, false, None);
    }

    /// The parent goes on. What the child entered is left to be found: the child has gone, or has left it itself. The slot, if the child
    /// never took it; and the child's number.
    pub fn resume(&mut self) -> (Option<u32>, ChildNumber) {
        core::mem::swap(&mut self.thread, &mut self.suspended);
        self.entered = core::mem::take(&mut self.suspended_entered);
        // What is kept now is the child's.
        self.discard_cached();
        self.child = None;
        ((!self.adopted).then_some(self.prepared), self.child_number)
    }

    /// In the child: takes its slot, once.
    pub fn adopt(&mut self, server: &'static Server) -> Result<()> {
        if self.adopted {
            return Ok(());
        }
        let (prepared, child) = (self.prepared, self.child_number);
        if child.description.is_some() && !server.fs.add_child_number(child.number) {
            // Too many such children: no thread of the process is taken for dead any more.
            server.fs.share_process_number();
        }
        let process = processes::all(server)?.adopt(self.thread(server)?, prepared)?;
        (self.adopted, self.child) = (true, Some(process));
        Ok(())
    }

    /// In the child of a fork, which has memory of its own now.
    pub fn become_main(&mut self) {
        (self.child, self.own, self.suspended_entered) = (None, None, 0);
    }

    /// The descriptor that holds the lock of such a child, if it has one of its own.
    pub fn child_description(&self) -> Option<i32> {
        self.child.as_ref().and(self.child_number.description)
    }

    /// Whether this is a child that runs in its parent's memory.
    pub fn is_child(&self) -> bool {
        self.child.is_some()
    }
}

/// In the child of a fork: what was entered before is the parent's.
pub fn forget_all() {
    GENERATION.fetch_add(1, Relaxed);
}

/// A context for a call that interrupts another one of its thread, and for threads beyond all stacks.
pub fn with_new<R>(call: impl FnOnce(&mut Context) -> R) -> Option<R> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let start = sys::map(size_of::<Context>(), libc::PROT_READ | libc::PROT_WRITE, flags, -1).ok()?;
    // SAFETY: new zeroed memory, large enough and aligned to pages, that nobody else knows; zero is a valid context.
    let result = unsafe {
        let context = &mut *start.cast::<Context>();
        let result = call(context);
        context.leave();
        result
    };
    // SAFETY: the reference has ended.
    unsafe { sys::unmap(start, size_of::<Context>()) };
    Some(result)
}
