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
//! Decision: docs/decisions/run-calls.md, "Forks run in the dispatcher, vforks at their site".

use crate::abi::entry::{DIRECTFS_ALL, NATIVE, Next, Verdict, done};
use crate::abi::sys;
use crate::abi::thread_words::thread_words;
use crate::call::{Call, native_with};
use crate::calls::mapping;
use crate::context::{self, Place, Prepared};
use crate::descriptors::{fd_numbers, hidden_numbers, marks};
use crate::handoff;
use crate::loading::{armed_threads, hot_sites, site_slots};
use crate::process::clone_call::CloneCall;
use crate::process::session::{all, has_threads, set_main, set_shares_directory, set_threads};
#[cfg(feature = "loader")]
use crate::process::thread_places;
use crate::process::user_namespace::{self, Entered};
use crate::process::working_directory::record_directory;
use crate::process::{identity, leak_tracer, limits};
use crate::server::{self, Server};
use core::sync::atomic::Ordering::Relaxed;
use libc::{CLONE_FILES, CLONE_FS, CLONE_THREAD, CLONE_VFORK, CLONE_VM};
use posix::{Errno, Result};
use tables::child_numbers;
use tables::process::{ChildNumber, Fork, Process};

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
    make(call, CloneCall::of_clone(call.arguments()))
}

/// clone3(arguments, their size).
pub fn clone3(call: &mut Call<'_>) -> Result<Verdict> {
    match CloneCall::of_clone3(call.frame.rdi, call.frame.rsi)? {
        Some(clone) => make(call, clone),
        None => Ok(NATIVE),
    }
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
        set_threads(true);
        #[cfg(feature = "loader")]
        return thread_places::prepare(call, &clone);
        #[cfg(not(feature = "loader"))]
        return Ok(NATIVE);
    }
    if has(CLONE_VM) {
        let is_inline = site_slots::native_of_children(call.frame.native.get()).is_some();
        if leak_tracer::begins(flags, clone.stack, is_inline) {
            return Ok(NATIVE);
        }
        // Without waiting, both would use this thread's stack and words at the same time.
        if !has(CLONE_VFORK) {
            return Err(Errno::ENOSYS);
        }
        if has(CLONE_FS) {
            return Err(Errno::EINVAL);
        }
        if !call.context.is_child() && !has(libc::CLONE_NEWUSER) {
            return child_in_shared_memory(call, flags);
        }
    }
    if has(CLONE_FS) {
        set_shares_directory();
    }
    if has(CLONE_FILES) {
        // What is known about numbers is in each memory, and the other one opens and closes. From
        // now on the common table decides.
        DIRECTFS_ALL.store(1, Relaxed);
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
    Fork { number: child.number, shares_memory: has(CLONE_VM), shares_files: has(CLONE_FILES) }
}

/// A process number for a child. A child that uses its parent's descriptor table cannot hold its
/// own lock: the kernel would drop the lock with the table, not with the child.
fn take_child_number(server: &Server, process: &Process<'_>, flags: u64) -> Result<ChildNumber> {
    if flags & CLONE_FILES as u64 != 0 {
        return Ok(process.share_number());
    }
    // It could not put its lock at the usual number.
    let usual = server.fs.processes().liveness_description();
    if usual.is_some_and(|usual| !limits::permits(usual)) {
        return Ok(process.share_number());
    }
    let child = process.take_child_number(handoff::DESCRIPTORS_FROM)?;
    // Unless the program runs while the descriptor is there, its byte needs no change, which would
    // copy a page in the parent and in the child.
    if let Some(description) = child.description
        && (flags & CLONE_VM as u64 != 0 || has_threads())
    {
        marks::protect(description);
    }
    Ok(child)
}

/// In the parent, after the attempt to create the child: the child alone holds its lock.
pub fn give_child_number(child: ChildNumber) {
    if let Some(description) = child.description {
        // In this order: another thread may get the number as soon as it is free.
        fd_numbers::unprotect(description);
        marks::close_placeholder(description as u32);
    }
}

/// In a child with its own memory: its number, and its lock at the usual descriptor.
fn take_up_child_number(server: &'static Server, child: ChildNumber) {
    if let (Some(description), Some(usual)) = (child.description, server.fs.processes().liveness_description()) {
        let flags = libc::O_CLOEXEC as u64;
        let put = || marks::kernel(libc::SYS_dup3, description as u64, usual as u64, flags);
        let moved = tables::host::with_number(usual, put);
        // Otherwise it holds the lock where it is.
        if moved >= 0 {
            give_child_number(child);
        } else {
            marks::protect(description);
        }
    }
    server.fs.processes().set_process_number(child.number, child.description.is_none());
}

/// Prepares all that a child needs to join the file system: whatever is missing fails the call in
/// the parent.
fn prepare(server: &'static Server, place: &Place<'_>, flags: u64) -> Result<Prepared> {
    let number = take_child_number(server, &place.process, flags)?;
    // First the slot of the process: that also reaps dead processes, and would then query whether
    // the owner of the thread slot lives.
    let prepared = place.process.prepare_fork(place.thread, fork_of(flags, number)).and_then(|slot| {
        let thread_slot = server.fs.reserve_slot(number.number);
        let thread_slot = thread_slot.inspect_err(|_| place.process.cancel_fork(place.thread, slot))?;
        Ok(Prepared { slot, number, thread_slot })
    });
    prepared.inspect_err(|_| give_child_number(number))
}

/// Creates a child with a copy of this memory, here: parent and child both continue after it.
fn child_with_own_memory(call: &mut Call<'_>, flags: u64, run: &mut dyn FnMut() -> i64) -> Result<Verdict> {
    let namespace = prepare_user_namespace(call, flags)?;
    let Call { server, context, .. } = call;
    share_numbers(flags, context.is_child());
    let place = context.place(server)?;
    let prepared = prepare(server, &place, flags)?;
    let child = prepared.number;
    // SAFETY: the words are this thread's.
    let (owned, masked) = unsafe { ((*thread_words()).owned, (*thread_words()).masked) };
    let parent = child_numbers::are_any().then(sys::process_id);
    let result = run();
    if result != 0 {
        if result < 0 {
            place.process.cancel_fork(place.thread, prepared.slot);
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
    if child_numbers::are_any() {
        hidden_numbers::settle(parent.unwrap_or(0));
    }
    take_up_child_number(server, child);
    #[cfg(feature = "loader")]
    thread_places::continue_in_child();
    if armed_threads::is_armed() {
        armed_threads::arm_thread();
    }
    context::forget_all();
    // The call may have changed the thread pointer, and with it the place of the words. SAFETY: the
    // words are this thread's.
    unsafe {
        let words = thread_words();
        ((*words).owned, (*words).masked, (*words).forked_by) = (owned, masked, 0);
    }
    let had_threads = set_threads(false);
    let entered = context.enter_prepared(server, prepared).map_err(Errno::from);
    match entered.and_then(|()| all(server)?.adopt(prepared.slot)) {
        Ok(process) => {
            leak_tracer::forget();
            set_main(process);
            fd_numbers::begin_again(&process, had_threads);
            mapping::missing::begin_in_child();
            hot_sites::begin_in_child();
            site_slots::begin_in_child();
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
    share_numbers(flags, context.is_child());
    let prepared = prepare(server, &context.place(server)?, flags)?;
    fd_numbers::begin_memory_sharing();
    context.suspend(prepared);
    // SAFETY: the words are this thread's, and no reference to them exists.
    unsafe {
        (*thread_words()).forked_by = i64::from(sys::process_id());
        (*thread_words()).child_runs = 0;
    }
    if let Some(native) = site_slots::native_of_children(call.frame.native.get()) {
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
    let moved_by = context.take_moved();
    let Ok(place) = context.place(server) else { return };
    if let Some(child) = moved_by {
        hidden_numbers::forget(child, &place.process);
    }
    if !adopted {
        place.process.cancel_fork(place.thread, prepared.slot);
    }
    record_directory(server, place.process.directory().is_some());
}

/// exit_group(status): releases what the process holds. The kernel does the rest.
pub fn exit_group(call: &mut Call<'_>) -> Result<Verdict> {
    if server::is_pending() {
        return Ok(NATIVE);
    }
    if let Ok(place) = call.context.place(call.server) {
        place.process.exit(place.thread);
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
