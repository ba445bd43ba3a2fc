//! State of a thread that serves calls: its place in the engine, and buffers for paths.
//!
//! Invariants: a context lies at the upper end of its thread's dispatcher stack. Only that thread
//! uses it, for one call at a time. A call that interrupts another call of the thread (in the
//! handler of a fault) gets its own context. A context that a fork copied is entered again, because
//! the slot in the engine is still the parent's.

use crate::abi::{sys, user_memory};
use crate::extensions::thread_state::ThreadState;
use crate::process::identity::Identity;
use crate::process::session::{self, Session};
use crate::server::{self, Server};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32};
use engine::Thread;
use engine::statistics::CallClass;
use pmem::Direct;
use posix::path::PathBuffer;
use posix::{CachedReference, Caller, Errno, PathCache, Result};
use tables::child_numbers;
use tables::process::{ChildNumber, Process};

/// Size of a path buffer: a path plus what is put before or after it.
pub const PATH_ROOM_BYTES: usize = 2 * user_memory::PATH_BYTES_MAX;
/// Size of a copy piece.
pub const COPY_BYTES: usize = 64 << 10;

/// Incremented in a child of a fork: earlier contexts are copies of the parent's.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// For the constructor: the first generation begins. A context that is zero is of none.
pub fn prepare() {
    GENERATION.store(1, Relaxed);
}

/// Whether each call is recorded from the first one on.
static RECORDS_ALL: AtomicBool = AtomicBool::new(false);

/// For the constructor: from now on each call is recorded.
pub fn record_all() {
    RECORDS_ALL.store(true, Relaxed);
}

/// A thread's state for serving calls. All zero is a valid context that has not been entered. What
/// each call uses comes first, since it shares a page with the upper end of the stack.
#[repr(C)]
pub struct Context {
    thread: MaybeUninit<Thread<'static, Direct>>,
    /// Generation in which `thread` was entered; zero if not entered.
    entered: u32,
    /// Generation in which `own` was requested; zero if it was not.
    own_entered: u32,
    /// Whether the kernel may have reported the end of a process to this thread since its last
    /// call.
    has_waited: bool,
    /// Calls until one is recorded.
    unrecorded: u8,
    /// Whether the child has adopted the slot that was prepared for it.
    adopted: bool,
    /// The process of a child that runs in its parent's memory, while it runs.
    child: Option<Process<'static>>,
    /// This thread's own view of the process, in a process of several threads, if there was a place
    /// for it.
    own: Option<Process<'static>>,
    /// Of `thread`: its cached reference to the working directory.
    cached_directory: CachedReference,
    /// Of `thread`: its cached reference to the parent directory of the last path.
    cached_parent: CachedReference,
    identity: Identity,
    /// The parent's thread while a child runs in the same memory.
    suspended: MaybeUninit<Thread<'static, Direct>>,
    /// As `entered`, for `suspended`.
    suspended_entered: u32,
    /// Which query of the kernel `identity` came from at that time.
    suspended_identity: u32,
    /// What a parent prepared for a child in the same memory.
    prepared: Prepared,
    /// That child, if it has hidden descriptors at other numbers than the memory says.
    moved_by: i32,
    of_extensions: ThreadState,
    path_cache: PathCache,
    walk: PathBuffer,
    path: [u8; PATH_ROOM_BYTES],
    second: [u8; PATH_ROOM_BYTES],
    host: [u8; PATH_ROOM_BYTES],
    copy: [u8; COPY_BYTES],
}

/// What a parent prepares for a child, so that the child cannot fail to join.
#[derive(Clone, Copy)]
pub struct Prepared {
    /// Its slot in the shared tables.
    pub slot: u32,
    /// Its process number.
    pub number: ChildNumber,
    /// The slot of its first thread.
    pub thread_slot: u32,
}

/// A thread and its process.
pub struct Place<'c> {
    /// The thread's place in the engine.
    pub thread: &'c Thread<'static, Direct>,
    /// The process.
    pub process: Process<'static>,
}

/// The parts of an entered context.
pub struct Inside<'c> {
    /// The calling process and thread.
    pub session: Session<'c>,
    /// Buffer for walks.
    pub walk: &'c mut PathBuffer,
    /// Buffer for the call's path.
    pub path: &'c mut [u8; PATH_ROOM_BYTES],
    /// Buffer for its second path.
    pub second: &'c mut [u8; PATH_ROOM_BYTES],
    /// Buffer for paths of the host.
    pub host: &'c mut [u8; PATH_ROOM_BYTES],
    /// Buffer for content.
    pub copy: &'c mut [u8; COPY_BYTES],
}

impl Context {
    #[inline(always)]
    fn enter(&mut self, server: &'static Server) -> engine::Result<()> {
        let generation = GENERATION.load(Relaxed);
        if self.entered == generation && !self.has_waited { Ok(()) } else { self.enter_slow(server, generation) }
    }

    #[cold]
    #[inline(never)]
    fn enter_slow(&mut self, server: &'static Server, generation: u32) -> engine::Result<()> {
        if self.entered != generation {
            self.thread.write(server.fs.enter()?);
            self.entered = generation;
            self.discard_cached();
        }
        if core::mem::take(&mut self.has_waited) {
            server.fs.recover_dead_threads()?;
        }
        Ok(())
    }

    /// The shared tables hold another process under this process's number. From now on each call
    /// that might concern a file of the mount is an error (see `failed_image`). None of them
    /// reaches the kernel's object with the same name or number.
    #[cold]
    fn lose() -> Errno {
        if !server::has_failed() {
            server::lose();
            sys::print(&[
                b"another process took this one for dead and released its files: every access to the mount now returns EIO; restart the program",
            ]);
        }
        Errno::EIO
    }

    /// In a child: takes the thread slot that its parent reserved.
    pub fn enter_prepared(&mut self, server: &'static Server, prepared: Prepared) -> engine::Result<()> {
        self.thread.write(server.fs.enter_reserved(prepared.thread_slot, prepared.number.number)?);
        self.entered = GENERATION.load(Relaxed);
        self.discard_cached();
        Ok(())
    }

    /// The thread is about to wait for processes. When it returns, the operations of processes
    /// whose end it sees must be completed or rolled back.
    pub fn will_wait(&mut self) {
        self.has_waited = true;
    }

    /// This thread's place in the engine; enters the engine if necessary.
    pub fn thread(&mut self, server: &'static Server) -> engine::Result<&Thread<'static, Direct>> {
        self.enter(server)?;
        // SAFETY: entered in this generation.
        Ok(unsafe { self.thread.assume_init_ref() })
    }

    /// This thread's place in the engine, if it has entered.
    #[inline(always)]
    fn entered(&self) -> Option<&Thread<'static, Direct>> {
        // SAFETY: entered in this generation.
        (self.entered == GENERATION.load(Relaxed)).then(|| unsafe { self.thread.assume_init_ref() })
    }

    /// Before each call: whether it is one that is recorded.
    #[inline(always)]
    pub fn records(&mut self) -> bool {
        let (rest, records) = self.unrecorded.overflowing_sub(1);
        self.unrecorded = rest;
        records
    }

    /// A thread begins: threads of few calls, too, record one call in 256, of all threads together.
    pub fn start_records(&mut self, calls: u8) {
        self.unrecorded = if RECORDS_ALL.load(Relaxed) { 0 } else { calls };
    }

    /// So many calls are not recorded.
    pub fn skip(&mut self, calls: u8) {
        self.unrecorded = calls;
    }

    /// Counts a call that the image served.
    #[inline(always)]
    pub fn count_call(&self, number: usize) {
        if let Some(thread) = self.entered() {
            thread.count_call(number);
        }
    }

    /// Counts its duration.
    pub fn count_latency(&self, class: CallClass, ns: u64) {
        if let Some(thread) = self.entered() {
            thread.count_latency(class, ns);
        }
    }

    /// Enters the engine, unless the thread has entered it.
    // Inlined into its callers, which use little of the result: a returned struct would go through
    // memory, in pieces that defeat store forwarding.
    #[inline(always)]
    pub fn begin(&mut self, server: &'static Server) -> Result<Inside<'_>> {
        self.enter(server)?;
        if session::has_threads() && self.own_entered != self.entered {
            self.enter_multithreaded();
        }
        self.identity.refresh();
        // SAFETY: entered in this generation.
        let thread = unsafe { self.thread.assume_init_ref() };
        let process = Self::process(&self.child, &self.own)?;
        Ok(Inside {
            session: Session {
                caller: Caller::new(thread, self.identity.credentials())
                    .with_path_cache(&self.path_cache)
                    .with_parent(&self.cached_parent),
                identity: &self.identity,
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

    /// This thread's place in the engine, and the process for which it acts: for calls whose result
    /// depends on no identity, so that the kernel need not be asked for one.
    pub fn place(&mut self, server: &'static Server) -> Result<Place<'_>> {
        self.enter(server)?;
        if session::has_threads() && self.own_entered != self.entered {
            self.enter_multithreaded();
        }
        // SAFETY: entered in this generation.
        Ok(Place { thread: unsafe { self.thread.assume_init_ref() }, process: *Self::process(&self.child, &self.own)? })
    }

    /// The process for which an entered thread acts.
    #[inline(always)]
    fn process<'c>(
        child: &'c Option<Process<'static>>,
        own: &'c Option<Process<'static>>,
    ) -> Result<&'c Process<'static>> {
        let process = match (child, own) {
            (Some(child), _) => child,
            (None, Some(own)) => own,
            (None, None) => session::main(),
        };
        if process.is_lost() { Err(Self::lose()) } else { Ok(process) }
    }

    /// The process has several threads from now on.
    #[cold]
    fn enter_multithreaded(&mut self) {
        // A view that a fork copied is the parent's.
        self.own = session::main().for_thread();
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
            // SAFETY: as above, and not used afterwards.
            unsafe { self.thread.assume_init_drop() };
        }
        // That of a child in its parent's memory may be the parent's: see `resume`.
        if self.child.is_none() {
            self.identity.discard();
        }
        self.of_extensions.leave();
    }

    /// What extensions keep with the thread.
    pub fn of_extensions(&mut self) -> &mut ThreadState {
        &mut self.of_extensions
    }

    /// Releases the directory of the last path, after a call found the DRAM region full: eviction
    /// needs directories without references.
    #[cold]
    pub fn release_for_eviction(&self) {
        if self.entered == GENERATION.load(Relaxed) {
            // SAFETY: entered in this generation.
            self.cached_parent.release(unsafe { self.thread.assume_init_ref() });
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

    /// Suspends the thread's place for a child that shares memory with its parent and adopts what
    /// was prepared.
    pub fn suspend(&mut self, prepared: Prepared) {
        if self.entered == GENERATION.load(Relaxed) {
            // SAFETY: entered in this generation.
            self.release_cached(unsafe { self.thread.assume_init_ref() });
        }
        core::mem::swap(&mut self.thread, &mut self.suspended);
        self.suspended_entered = core::mem::take(&mut self.entered);
        self.suspended_identity = self.identity.query_number();
        (self.prepared, self.adopted, self.child) = (prepared, false, None);
    }

    /// The parent resumes. The child's place needs no care: the child has ended, or has left the
    /// engine itself. Returns what was prepared, and whether the child adopted it.
    pub fn resume(&mut self) -> (Prepared, bool) {
        core::mem::swap(&mut self.thread, &mut self.suspended);
        self.entered = core::mem::take(&mut self.suspended_entered);
        // The references cached now are the child's, and so is an identity that it asked for.
        self.discard_cached();
        if self.identity.query_number() != self.suspended_identity {
            self.identity.discard();
        }
        self.child = None;
        (self.prepared, self.adopted)
    }

    /// In the child: adopts its slot, once.
    pub fn adopt(&mut self, server: &'static Server) -> Result<()> {
        if self.adopted {
            return Ok(());
        }
        let prepared = self.prepared;
        let child = prepared.number;
        if child.description.is_some() && !server.fs.processes().add_child_number(child.number) {
            // There are too many such children: threads of the process are no longer recovered as
            // dead.
            server.fs.processes().share_process_number();
        }
        self.enter_prepared(server, prepared)?;
        let process = session::all(server)?.adopt(prepared.slot)?;
        (self.adopted, self.child) = (true, Some(process));
        Ok(())
    }

    /// In the child of a fork, which has its own memory now.
    pub fn become_main(&mut self) {
        (self.child, self.own, self.suspended_entered) = (None, None, 0);
    }

    /// The descriptor that holds such a child's lock, if it has one of its own.
    pub fn child_description(&self) -> Option<i32> {
        self.child.as_ref().and(self.prepared.number.description).map(child_numbers::own)
    }

    /// In such a child: it has hidden descriptors at other numbers than the memory says.
    pub fn has_moved(&mut self, process: i32) {
        self.moved_by = process;
    }

    /// In its parent: the child, if it had.
    pub fn take_moved(&mut self) -> Option<i32> {
        Some(core::mem::take(&mut self.moved_by)).filter(|child| *child != 0)
    }

    /// The buffer for content from an offset on, between two uses of the context.
    pub fn copy_after(&mut self, offset: usize) -> &mut [u8] {
        &mut self.copy[offset..]
    }

    /// The identity for which the thread acts.
    pub fn identity(&mut self) -> &mut Identity {
        &mut self.identity
    }

    /// Whether this is a child that runs in its parent's memory.
    pub fn is_child(&self) -> bool {
        self.child.is_some()
    }
}

/// In the child of a fork: places entered earlier are the parent's.
pub fn forget_all() {
    GENERATION.fetch_add(1, Relaxed);
}

/// A context for a call that interrupts another call of its thread, and for threads beyond the last
/// stack.
pub fn with_new<R>(call: impl FnOnce(&mut Context) -> R) -> Option<R> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let start = sys::map(size_of::<Context>(), libc::PROT_READ | libc::PROT_WRITE, flags, -1).ok()?;
    // SAFETY: new zeroed memory, large enough and aligned to pages, without other references; zero
    // is a valid context.
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
