//! Processes: their slots across fork, exec and exit; the umask and the credentials.
//!
//! A child is recorded before it runs: the parent prepares its slot with copies of everything that
//! it inherits.
//!
//! - A child with its own memory is created here, inside the dispatcher, because both continue from
//!   the same place; it takes its slot at once. With a stack of its own it then moves there.
//! - A child in its parent's memory (vfork, posix_spawn) is created by the call at its site. Parent
//!   and child then share the library's state, while the parent's thread waits for the child.
//!   `forked_by` in the thread's words makes each of them check which one it is. The child gets its
//!   own process and place in the engine. It only adds to the filter's tables: a descriptor that it
//!   closes may still be the parent's. A byte too many costs a lookup in the true table.
//!
//! Invariant: [`main`] is set by the constructor, and by the child of a fork before it does
//! anything else; otherwise it is only read.

use crate::handoff;
use crate::hook::abi::entry::{Next, Verdict, thread_words};
use crate::hook::abi::{stack, sys, user_memory};
use crate::hook::call::{Call, native_with};
use crate::hook::calls::names::Calling;
use crate::hook::calls::{kernel_objects, mapping};
use crate::hook::context::Prepared;
use crate::hook::descriptors::fd_numbers;
use crate::hook::dispatch::{NATIVE, done};
use crate::hook::loading::inline_syscalls;
use crate::hook::process::identity::Identity;
#[cfg(feature = "loader")]
use crate::hook::process::thread_places;
use crate::hook::process::user_namespace::{self, Entered};
use crate::hook::process::working_directory::record_directory;
use crate::hook::process::{environment, identity, leak_tracer, limits};
use crate::hook::server::{self, Server};
use crate::hook::{context, descriptors};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicU32};
use engine::Node;
use libc::{CLONE_FILES, CLONE_FS, CLONE_THREAD, CLONE_VFORK, CLONE_VM};
use posix::path::{LastLink, Outcome, PathBuffer, WalkStart};
use posix::process::{ChildNumber, Fork, Process, Processes};
use posix::{CachedReference, Errno, Result};

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

struct MainProcess(UnsafeCell<MaybeUninit<Process<'static>>>);
// SAFETY: see the module's invariant.
unsafe impl Sync for MainProcess {}
static MAIN: MainProcess = MainProcess(UnsafeCell::new(MaybeUninit::uninit()));
static THREADS: AtomicBool = AtomicBool::new(false);

/// This process.
#[inline]
pub fn main() -> &'static Process<'static> {
    // SAFETY: set by the constructor before any call is served; and by the child of a fork, which
    // obtains it anew afterwards.
    unsafe { (*MAIN.0.get()).assume_init_ref() }
}

fn set_main(process: Process<'static>) {
    // SAFETY: the caller is the constructor or the only thread of a new process.
    unsafe { (*MAIN.0.get()).write(process) };
}

/// Whether the process may have several threads.
pub fn has_threads() -> bool {
    THREADS.load(Relaxed)
}

/// The processes of the file system.
pub fn all(server: &'static Server) -> Result<Processes<'static>> {
    Processes::new(&server.fs)
}

/// Origin of this process.
#[derive(Debug, Clone, Copy)]
pub enum Origin {
    /// It was started by a program that passed the number of the slot, or by the launcher.
    Exec(Option<u32>),
    /// It exists already, in that slot.
    Joined(u32),
}

/// For the constructor, before it enters: continues with the process number of the process's
/// existing slot. It gives up a number that it shared with others. A new process takes a number,
/// with its own description in place of the one that it inherited.
pub fn take_up_number(fs: &engine::Fs<pmem::Direct>, slot: Option<u32>) -> Result<()> {
    let processes = Processes::new(fs)?;
    let Some((index, (number, shared))) = slot.and_then(|index| Some((index, processes.number_of(index)?))) else {
        if !fs.processes().renew_process_number()? {
            fs.processes().share_process_number();
        }
        return Ok(());
    };
    if shared && fs.processes().renew_process_number()? {
        processes.change_number(index, number)?;
    } else {
        fs.processes().set_process_number(number, shared);
    }
    Ok(())
}

/// The slot of a process that has not attached yet, plus one.
#[unsafe(link_section = ".bss.directfs_start")]
static POSTPONED: AtomicU32 = AtomicU32::new(0);

/// For the constructor of a program that has nothing of the image: it attaches when it needs to.
/// Until then its slot stays as the program before left it, and the descriptor that it inherited
/// holds the lock of its number.
pub fn postpone(server: &'static Server, slot: u32) {
    POSTPONED.store(slot + 1, Relaxed);
    record_directory(server, false);
}

/// Whether a thread has begun to attach.
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
    process.descriptors(&mut |fd, _| {
        descriptors::mark(fd);
        true
    });
    Ok(())
}

// Children.

/// `struct clone_args` in its first version, a prefix of all others.
const CLONE_ARGS_BYTES_MIN: u64 = 64;
/// Maximum size of any version.
const CLONE_ARGS_WORDS_MAX: usize = 32;

/// A call of clone or clone3, for the child that it creates.
#[derive(Clone, Copy)]
pub struct CloneCall {
    flags: u64,
    /// The child's stack pointer; zero: the parent's.
    pub stack: u64,
    arguments: [u64; 6],
    /// The structure of clone3, and its size; zero: the call is clone.
    words: [u64; CLONE_ARGS_WORDS_MAX],
    bytes: u64,
}

impl CloneCall {
    /// Number and arguments of the same call with another stack pointer (zero: the parent's). The
    /// arguments may refer to this value.
    pub fn with_stack(&mut self, stack: u64) -> (i64, [u64; 6]) {
        /// Size that a structure names: the kernel adds it to the stack's start.
        const STACK_BYTES: u64 = 4096;
        if self.bytes == 0 {
            let [_, _, parent_tid, child_tid, tls, more] = self.arguments;
            return (libc::SYS_clone, [self.flags, stack, parent_tid, child_tid, tls, more]);
        }
        self.words[0] = self.flags;
        (self.words[5], self.words[6]) = if stack == 0 { (0, 0) } else { (stack - STACK_BYTES, STACK_BYTES) };
        (libc::SYS_clone3, [self.words.as_ptr() as u64, self.bytes, 0, 0, 0, 0])
    }
}

/// fork().
pub fn fork(call: &mut Call<'_>) -> Result<Verdict> {
    // SAFETY: a child with a copy of this memory continues from here, as the parent does.
    child_with_own_memory(call, 0, &mut || unsafe { sys::call(libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]) })
}

/// vfork().
pub fn vfork(call: &mut Call<'_>) -> Result<Verdict> {
    if call.context.is_child() {
        // Only one level of children in shared memory is supported: this child gets a copy, and the
        // caller waits for it all the same.
        let flags = (libc::SIGCHLD | CLONE_VFORK) as u64;
        // SAFETY: as in `fork`.
        return child_with_own_memory(call, 0, &mut || unsafe { sys::call(libc::SYS_clone, [flags, 0, 0, 0, 0, 0]) });
    }
    child_in_shared_memory(call, (CLONE_VM | CLONE_VFORK) as u64)
}

/// clone(flags, stack, parent_tid, child_tid, tls).
pub fn clone(call: &mut Call<'_>) -> Result<Verdict> {
    let arguments = call.arguments();
    let (flags, stack) = (arguments[0] & u64::from(u32::MAX), arguments[1]);
    make(call, CloneCall { flags, stack, arguments, words: [0; CLONE_ARGS_WORDS_MAX], bytes: 0 })
}

/// clone3(arguments, their size).
pub fn clone3(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, bytes) = (call.frame.rdi, call.frame.rsi);
    if !(CLONE_ARGS_BYTES_MIN..=8 * CLONE_ARGS_WORDS_MAX as u64).contains(&bytes) || bytes % 8 != 0 {
        return Ok(NATIVE);
    }
    let mut words = [0u64; CLONE_ARGS_WORDS_MAX];
    for (index, word) in words.iter_mut().take(bytes as usize / 8).enumerate() {
        *word = user_memory::read(address + 8 * index as u64)?;
    }
    let [flags, _, _, _, _, stack, stack_bytes, ..] = words;
    if (stack == 0) != (stack_bytes == 0) {
        // The kernel's error.
        return Ok(NATIVE);
    }
    make(call, CloneCall { flags, stack: stack.wrapping_add(stack_bytes), arguments: [0; 6], words, bytes })
}

fn make(call: &mut Call<'_>, mut clone: CloneCall) -> Result<Verdict> {
    let flags = clone.flags;
    let has = |flag: i32| flags & flag as u64 != 0;
    if has(CLONE_THREAD) {
        if flags & SHARED_BY_THREADS as u64 != (CLONE_FS | CLONE_FILES) as u64 {
            return Err(Errno::EINVAL);
        }
        if !call.server.fs.has_room_for_thread()? {
            return Err(Errno::EAGAIN);
        }
        call.begin()?.session.process.set_threads();
        #[cfg(feature = "loader")]
        if !has_threads() {
            thread_places::prepare_ends();
        }
        THREADS.store(true, Relaxed);
        #[cfg(feature = "loader")]
        return thread_places::prepare(call, &clone);
        #[cfg(not(feature = "loader"))]
        return Ok(NATIVE);
    }
    if has(CLONE_VM) {
        let is_inline = inline_syscalls::native_of_children(call.frame.native.get()).is_some();
        if leak_tracer::begins(flags, clone.stack, is_inline) {
            return Ok(NATIVE);
        }
        // Without waiting, both would use this thread's stack and words at the same time.
        if !has(CLONE_VFORK) {
            return Err(Errno::ENOSYS);
        }
        if !call.context.is_child() && !has(libc::CLONE_NEWUSER) {
            return child_in_shared_memory(call, flags);
        }
    }
    clone.flags = flags & !(CLONE_VM as u64);
    let (number, arguments) = clone.with_stack(0);
    // SAFETY: as in `fork`; the kernel's other effects are at the addresses that the program
    // passed.
    let verdict = child_with_own_memory(call, clone.flags, &mut || unsafe { sys::call(number, arguments) })?;
    if clone.stack == 0 || verdict != done(0) {
        return Ok(verdict);
    }
    // The child continues with its parent's registers on a stack of its own.
    let moved = call.frame.move_to(clone.stack).unwrap_or_else(|| end_by_fault());
    Ok(Verdict { result: moved as i64, next: Next::Moved })
}

/// Ends the process as an access to a stack that is not there does.
fn end_by_fault() -> ! {
    let default = [libc::SIG_DFL as u64, 0, 0, 0];
    loop {
        // SAFETY: sets an action of this function, and ends the process.
        unsafe {
            sys::call(libc::SYS_rt_sigaction, [libc::SIGSEGV as u64, default.as_ptr() as u64, 0, 8, 0, 0]);
            sys::call(libc::SYS_kill, [sys::process_id() as u64, libc::SIGSEGV as u64, 0, 0, 0, 0]);
        }
    }
}

fn fork_of(flags: u64, child: ChildNumber) -> Fork {
    let has = |flag: i32| flags & flag as u64 != 0;
    Fork {
        number: child.number,
        shares_memory: has(CLONE_VM),
        shares_files: has(CLONE_FILES),
        shares_directory: has(CLONE_FS),
    }
}

/// A process number for a child. A child that uses its parent's descriptor table cannot hold its
/// own lock: the kernel would drop the lock with the table, not with the child.
fn take_child_number(server: &Server, session: &Session<'_>, flags: u64) -> Result<ChildNumber> {
    if flags & CLONE_FILES as u64 != 0 {
        return Ok(session.process.share_number());
    }
    // It could not put its lock at the usual number.
    let usual = server.fs.processes().liveness_description();
    if usual.is_some_and(|usual| !limits::permits(usual)) {
        return Ok(session.process.share_number());
    }
    let child = session.process.take_child_number(handoff::DESCRIPTORS_FROM)?;
    if let Some(description) = child.description {
        descriptors::protect(description);
    }
    Ok(child)
}

/// In the parent, after the attempt to create the child: the child alone holds its lock.
pub fn give_child_number(child: ChildNumber) {
    if let Some(description) = child.description {
        // In this order: another thread may get the number as soon as it is free.
        descriptors::unprotect(description);
        descriptors::close_placeholder(description as u32);
    }
}

/// In a child with its own memory: its number, and its lock at the usual descriptor.
fn take_up_child_number(server: &'static Server, child: ChildNumber) {
    if let (Some(description), Some(usual)) = (child.description, server.fs.processes().liveness_description()) {
        let moved = posix::host::within_limit(usual, || {
            descriptors::kernel(libc::SYS_dup3, description as u64, usual as u64, 0)
        });
        // Otherwise it holds the lock where it is.
        if moved >= 0 {
            give_child_number(child);
        }
    }
    server.fs.processes().set_process_number(child.number, child.description.is_none());
}

/// Prepares all that a child needs to join the file system: whatever is missing fails the call in
/// the parent.
fn prepare(server: &'static Server, session: &Session<'_>, flags: u64) -> Result<Prepared> {
    let number = take_child_number(server, session, flags)?;
    let prepared = server.fs.reserve_slot(number.number).map_err(Errno::from).and_then(|thread_slot| {
        let slot = session.process.prepare_fork(session.caller.thread, fork_of(flags, number));
        let slot = slot.inspect_err(|_| server.fs.release_reserved(thread_slot, number.number))?;
        Ok(Prepared { slot, number, thread_slot })
    });
    prepared.inspect_err(|_| give_child_number(number))
}

/// Creates a child with a copy of this memory, here: parent and child both continue after it.
fn child_with_own_memory(call: &mut Call<'_>, flags: u64, run: &mut dyn FnMut() -> i64) -> Result<Verdict> {
    let namespace = prepare_user_namespace(call, flags)?;
    let Call { server, context, .. } = call;
    let session = context.begin(server)?.session;
    let thread = session.caller.thread;
    share_numbers(flags, session.is_child);
    let prepared = prepare(server, &session, flags)?;
    let child = prepared.number;
    // SAFETY: the words are this thread's.
    let (owned, masked) = unsafe { ((*thread_words()).owned, (*thread_words()).masked) };
    let result = run();
    if result != 0 {
        if result < 0 {
            session.process.cancel_fork(thread, prepared.slot);
            server.fs.release_reserved(prepared.thread_slot, child.number);
        }
        give_child_number(child);
        if let Some(namespace) = namespace {
            namespace.discard();
        }
        return Ok(done(result));
    }
    if let Some(namespace) = namespace {
        namespace.enter();
        identity::changed(0);
    }
    take_up_child_number(server, child);
    #[cfg(feature = "loader")]
    thread_places::continue_in_child();
    if inline_syscalls::is_armed() {
        inline_syscalls::arm_thread();
    }
    context::forget_all();
    // The call may have changed the thread pointer, and with it the place of the words. SAFETY: the
    // words are this thread's.
    unsafe {
        let words = thread_words();
        ((*words).owned, (*words).masked, (*words).forked_by) = (owned, masked, 0);
    }
    let had_threads = THREADS.swap(false, Relaxed);
    let entered = context.enter_prepared(server, prepared).and_then(|()| context.thread(server));
    match entered.map_err(Errno::from).and_then(|thread| all(server)?.adopt(thread, prepared.slot)) {
        Ok(process) => {
            leak_tracer::forget();
            set_main(process);
            fd_numbers::begin_anew(&process, had_threads);
            mapping::missing::begin_in_child();
        }
        Err(_) => sys::refuse(&[b"a new child process cannot join the file system and ends"]),
    }
    context.become_main();
    Ok(done(0))
}

/// Children and cached placeholders: a child that shares the table would not know of them, and one
/// that brings its own descriptor needs a number.
fn share_numbers(flags: u64, is_child: bool) {
    if is_child {
        return;
    }
    if flags & CLONE_FILES as u64 != 0 {
        fd_numbers::stop();
    }
    if flags & libc::CLONE_PIDFD as u64 != 0 {
        fd_numbers::release_cached();
    }
}

/// Has the call's site create a child, which runs in this memory while this thread waits.
fn child_in_shared_memory(call: &mut Call<'_>, flags: u64) -> Result<Verdict> {
    let Call { server, context, .. } = call;
    let session = context.begin(server)?.session;
    share_numbers(flags, session.is_child);
    let prepared = prepare(server, &session, flags)?;
    fd_numbers::begin_memory_sharing();
    context.suspend(prepared);
    // SAFETY: the words are this thread's, and no reference to them exists.
    unsafe {
        (*thread_words()).forked_by = i64::from(sys::process_id());
        (*thread_words()).child_runs = 0;
    }
    if let Some(native) = inline_syscalls::native_of_children(call.frame.native.get()) {
        call.frame.native.set(native);
    }
    Ok(NATIVE)
}

/// After a child was created in this memory: determines whether this is the child or the parent,
/// and sets the state accordingly.
#[cold]
pub fn after_shared_memory_child(server: &'static Server, context: &mut context::Context) {
    let words = thread_words();
    // SAFETY: as above.
    let (forked_by, child_runs) = unsafe { ((*words).forked_by, (*words).child_runs != 0) };
    if child_runs || i64::from(sys::process_id()) != forked_by {
        if context.adopt(server).is_err() {
            sys::refuse(&[b"a new child process cannot join the file system and ends"]);
        }
        return;
    }
    // SAFETY: as above.
    unsafe { (*words).forked_by = 0 };
    fd_numbers::end_memory_sharing();
    let (prepared, adopted) = context.resume();
    server.fs.processes().remove_child_number(prepared.number.number);
    if !adopted {
        server.fs.release_reserved(prepared.thread_slot, prepared.number.number);
    }
    give_child_number(prepared.number);
    let Ok(inside) = context.begin(server) else { return };
    if !adopted {
        inside.session.process.cancel_fork(inside.session.caller.thread, prepared.slot);
    }
    record_directory(server, inside.session.process.directory().is_some());
}

/// exit_group(status): releases what the process holds. The kernel does the rest.
pub fn exit_group(call: &mut Call<'_>) -> Result<Verdict> {
    if server::is_pending() {
        return Ok(NATIVE);
    }
    if let Ok(inside) = call.begin() {
        inside.session.process.exit(inside.session.caller.thread);
    }
    call.context.leave();
    Ok(NATIVE)
}

/// wait4 and waitid.
pub fn wait(call: &mut Call<'_>) -> Result<Verdict> {
    call.context.will_wait();
    Ok(NATIVE)
}

/// exit(status) of a thread.
pub fn exit(call: &mut Call<'_>) -> Result<Verdict> {
    call.context.leave();
    Ok(NATIVE)
}

// Attributes of a process.

/// umask(mask).
pub fn umask(call: &mut Call<'_>) -> Result<Verdict> {
    let frame = call.frame;
    let mask = frame.rdi as u32 & 0o777;
    call.begin()?.session.process.set_umask(mask);
    Ok(native_with(frame, frame.arguments()))
}

/// setuid and all other calls that change the identity of a thread: the kernel decides, and is
/// queried again.
pub fn change_identity(call: &mut Call<'_>) -> Result<Verdict> {
    let verdict = native_with(call.frame, call.arguments());
    identity::changed(verdict.result);
    Ok(verdict)
}

/// What a thread cannot have apart from the other threads of its process.
const SHARED_BY_THREADS: i32 = CLONE_FS | CLONE_FILES | libc::CLONE_NEWNS;

/// unshare(flags).
pub fn unshare(call: &mut Call<'_>) -> Result<Verdict> {
    let flags = call.frame.rdi as i32;
    if flags & SHARED_BY_THREADS != 0 && !is_only_thread() {
        return Err(Errno::EINVAL);
    }
    let prepared = prepare_user_namespace(call, flags as u64)?;
    let verdict = native_with(call.frame, call.arguments());
    after_entering(&verdict, prepared);
    Ok(verdict)
}

/// Whether the process has one thread.
fn is_only_thread() -> bool {
    // SAFETY: with this flag alone the call only checks.
    !has_threads() || unsafe { sys::call(libc::SYS_unshare, [CLONE_THREAD as u64, 0, 0, 0, 0, 0]) } == 0
}

/// Prepares for the user namespace that a call with these flags creates, if it creates one.
fn prepare_user_namespace(call: &mut Call<'_>, flags: u64) -> Result<Option<user_namespace::Prepared>> {
    if flags & libc::CLONE_NEWUSER as u64 == 0 {
        return Ok(None);
    }
    // The maps of a child in shared memory would be its parent's, too.
    if call.context.is_child() {
        return Err(Errno::EINVAL);
    }
    let ids = call.context.identity().at_entry();
    user_namespace::prepare(ids).map(Some).map_err(|_| Errno::ENOMEM)
}

fn after_entering(verdict: &Verdict, prepared: Option<user_namespace::Prepared>) {
    match prepared {
        Some(prepared) if verdict.result == 0 => prepared.enter(),
        Some(prepared) => prepared.discard(),
        None => {}
    }
    identity::changed(verdict.result);
}

/// setns(descriptor, kinds).
pub fn setns(call: &mut Call<'_>) -> Result<Verdict> {
    let (fd, kinds) = (call.frame.rdi, call.frame.rsi);
    let enters_mounts = (kinds | user_namespace::kind(fd)) & libc::CLONE_NEWNS as u64 != 0;
    let prepared = match user_namespace::entered_by(fd, kinds) {
        Entered::Same => None,
        Entered::Child => prepare_user_namespace(call, libc::CLONE_NEWUSER as u64)?,
        Entered::Other => {
            sys::print(&[
                b"setns: refused: the ids of this user namespace are not known, because it is not a direct child of this process's one, or /proc does not show that; enter one namespace after the other",
            ]);
            return Err(Errno::EPERM);
        }
    };
    let verdict = native_with(call.frame, call.arguments());
    after_entering(&verdict, prepared);
    // The kernel has moved the process to the root of the namespace.
    if enters_mounts && verdict.result == 0 {
        let session = call.begin()?.session;
        session.process.set_directory(session.caller.thread, None)?;
        record_directory(call.server, false);
    }
    Ok(verdict)
}
