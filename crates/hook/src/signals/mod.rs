//! Signals while a call is served.
//!
//! A handler must not run while its thread is inside the engine. The thread may hold a lock there
//! that the handler's own calls would wait for, and a handler may leave by a jump. So the kernel
//! calls a function of the library instead of handlers, which checks where the thread is. Outside
//! the engine it calls the program's handler. Inside it sends the signal to the thread again,
//! leaves it blocked, and returns; after the call it is unblocked and delivered again. This
//! preserves the kernel's information on the signal (sender, value, order).
//!
//! Not deferred: signals that the processor raises (a fault would repeat at once), and all signals
//! while the kernel performs a call for the dispatcher that may block, because the thread then
//! holds nothing.
//!
//! The signals of bad pointers and truncated images (SIGSEGV, SIGBUS) always reach the library
//! first, and are never blocked: see [`faults`]. The library keeps the program's own
//! actions and masks for them.
//!
//! A handler on a signal stack (sigaltstack) has its frame at that stack's top. The kernel puts the
//! next frame there too, if the thread is on another stack. So while the dispatcher's stack serves
//! a call of such a handler, the signal stack is disabled, and signals use the dispatcher's stack.
//!
//! Invariants
//! - A query of the program returns the actions that it set.
//! - A signal is in `deferred` of a thread's words exactly as long as the library has it blocked.
//! - A child in its parent's memory has its own actions in the kernel, but not here: it sets them
//!   without the library.
//!
//! Waits for file locks end with EINTR or restart. A call from a handler on a signal stack costs
//! six kernel calls more. *Rejected:* masking around each call (0.5 µs); SS_AUTODISARM (a handler
//! that leaves by a jump never has it back); serving calls on the program's signal stack (it has a
//! few KiB).

pub mod faults;

use crate::abi::entry::{NATIVE, SLOT_BYTES, SLOTS, Verdict, directfs_entry, directfs_slots, done};
use crate::abi::thread_words::thread_words;
use crate::abi::{sys, user_memory};
use crate::call::{Call, native_with};
use crate::calls::mapping::missing;
use crate::loading::{armed_threads, proc_maps, site_slots};
use core::arch::global_asm;
use core::ffi::c_void;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use libc::{SA_NODEFER, SA_RESETHAND, SA_RESTART, SA_SIGINFO, siginfo_t};
use posix::{Errno, Result};

/// Signals are numbered from 1 to this.
const SIGNALS: usize = 64;
/// Size of the kernel's sets.
const SET_BYTES: u64 = 8;

/// `struct sigaction` of the kernel.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

/// The action that the program set.
struct ProgramAction {
    handler: AtomicU64,
    flags: AtomicU64,
    mask: AtomicU64,
}

impl ProgramAction {
    const fn new() -> ProgramAction {
        ProgramAction { handler: AtomicU64::new(0), flags: AtomicU64::new(0), mask: AtomicU64::new(0) }
    }

    fn get(&self) -> [u64; 3] {
        [self.handler.load(Acquire), self.flags.load(Acquire), self.mask.load(Acquire)]
    }

    fn set(&self, [handler, flags, mask]: [u64; 3]) {
        self.mask.store(mask, Release);
        self.flags.store(flags, Release);
        self.handler.store(handler, Release);
    }
}

static ACTIONS: [ProgramAction; SIGNALS + 1] = [const { ProgramAction::new() }; SIGNALS + 1];

/// The set of signals of faults and of inline syscalls.
pub const FAULTS: u64 = bit(libc::SIGSEGV) | bit(libc::SIGBUS) | bit(libc::SIGSYS);

/// The signals that the library handles first in this program.
fn guarded() -> u64 {
    if armed_threads::is_armed() { FAULTS } else { FAULTS & !bit(libc::SIGSYS) }
}
const SA_RESTORER: u64 = 0x0400_0000;

/// The code of this library, and the kernel's code that runs in user space.
static OWN_CODE: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
static KERNEL_CODE: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// For the constructor: records a mapping of code.
pub fn record(mapping: &proc_maps::Mapping<'_>) {
    let own = mapping.is_code && (mapping.start..mapping.end).contains(&(directfs_entry as *const () as usize));
    let range = match own {
        true => &OWN_CODE,
        false if mapping.path == b"[vdso]" => &KERNEL_CODE,
        false => return,
    };
    range[0].store(mapping.start, Relaxed);
    range[1].store(mapping.end, Relaxed);
}

/// Whether an address is in this library's code, other than the slots with instructions of others.
pub fn is_own_code(address: usize) -> bool {
    let slots = &raw const directfs_slots as usize;
    is_in(&OWN_CODE, address) && !(slots..slots + SLOTS * SLOT_BYTES).contains(&address)
}

fn is_in(range: &[AtomicUsize; 2], address: usize) -> bool {
    (range[0].load(Relaxed)..range[1].load(Relaxed)).contains(&address)
}

/// rt_sigaction(signal, new, old, size).
pub fn rt_sigaction(call: &mut Call<'_>) -> Result<Verdict> {
    let [signal, new, old, size, ..] = call.arguments();
    let frame = call.frame;
    let Some(known) = ACTIONS.get(signal as u32 as usize).filter(|_| signal as u32 > 0) else { return Ok(NATIVE) };
    if size != SET_BYTES {
        return Ok(NATIVE);
    }
    let before = known.get();
    if call.context.is_child() {
        // Without the action, the next inline syscall of this child would end it.
        let brings_calls = match signal as i32 {
            libc::SIGSYS => armed_threads::is_armed(),
            libc::SIGSEGV => site_slots::has_sites(),
            _ => false,
        };
        return if brings_calls { pretend(old, before) } else { Ok(NATIVE) };
    }
    let trampoline = directfs_signal as *const () as u64;
    let is_fault = guarded() & bit(signal as i32) != 0;
    let mut arguments = frame.arguments();
    let mut guard = None;
    if new != 0 {
        let wanted: Action = user_memory::read(new)?;
        let has_handler = wanted.handler > libc::SIG_IGN as u64;
        if has_handler || is_fault {
            known.set([wanted.handler, wanted.flags, wanted.mask]);
            // Blocked while it runs in any case: a signal that is sent again from there must wait.
            let mut action = Action { handler: trampoline, mask: wanted.mask & !guarded(), ..wanted };
            action.flags = wanted.flags & !(SA_NODEFER as u64) | SA_SIGINFO as u64 | nesting(signal as i32);
            if cfg!(feature = "loader") {
                // The program's own would be an inline syscall.
                action.restorer = directfs_restore as *const () as u64;
                action.flags |= SA_RESTORER;
            }
            if is_fault {
                action.flags &= !(SA_RESETHAND as u64);
            }
            if !has_handler {
                action = guard_action(signal as i32);
            } else if is_small_stack_call(signal as i32) {
                action.flags |= libc::SA_ONSTACK as u64;
                action.mask = !guarded();
            }
            arguments[1] = &raw const *guard.insert(action) as u64;
        }
    }
    let mut result = Action { handler: 0, flags: 0, restorer: 0, mask: 0 };
    arguments[2] = &raw mut result as u64;
    let verdict = native_with(frame, arguments);
    if verdict.result < 0 {
        if guard.is_some() {
            known.set(before);
        }
        return Ok(verdict);
    }
    if old != 0 {
        if result.handler == trampoline {
            [result.handler, result.flags, result.mask] = before;
            if result.flags & SA_RESTORER == 0 {
                result.restorer = 0;
            }
        }
        user_memory::write(old, &result)?;
    }
    Ok(verdict)
}

/// Changes nothing, and reports the program's action.
fn pretend(old: u64, [handler, flags, mask]: [u64; 3]) -> Result<Verdict> {
    if old != 0 {
        user_memory::write(old, &Action { handler, flags, restorer: 0, mask })?;
    }
    Ok(done(0))
}

/// The action that brings faults to the library while the program has no handler of its own. It
/// does not use the program's signal stack, which may be in use already.
fn guard_action(signal: i32) -> Action {
    let is_call = is_small_stack_call(signal);
    let stack = if is_call { libc::SA_ONSTACK as u64 } else { 0 };
    Action {
        handler: directfs_signal as *const () as u64,
        flags: SA_SIGINFO as u64 | SA_RESTORER | nesting(signal) | stack,
        restorer: directfs_restore as *const () as u64,
        mask: if is_call { !guarded() } else { 0 },
    }
}

/// Whether a signal reports inline syscalls that may be made on a small stack (Go). Its handler
/// uses the program's signal stack. Other handlers wait meanwhile: they may need a larger one.
fn is_small_stack_call(signal: i32) -> bool {
    cfg!(feature = "loader") && signal == libc::SIGSYS
}

/// Handlers that interrupt the handler of an inline syscall may perform inline syscalls, too.
fn nesting(signal: i32) -> u64 {
    let nests = match signal {
        libc::SIGSYS => armed_threads::is_armed(),
        libc::SIGSEGV => site_slots::has_sites(),
        _ => false,
    };
    if nests { SA_NODEFER as u64 } else { 0 }
}

/// From now on libraries trap by SIGSEGV, which the kernel's action must permit in its handler.
pub fn let_faults_nest() {
    let mut action = Action { handler: 0, flags: 0, restorer: 0, mask: 0 };
    let action = &raw mut action;
    // SAFETY: an action of this function.
    unsafe {
        let query = [libc::SIGSEGV as u64, 0, action as u64, SET_BYTES, 0, 0];
        let found = sys::call(libc::SYS_rt_sigaction, query);
        // Otherwise the constructor has yet to install it.
        if found == 0 && (*action).handler == directfs_signal as *const () as u64 {
            (*action).flags |= SA_NODEFER as u64;
            sys::call(libc::SYS_rt_sigaction, [libc::SIGSEGV as u64, action as u64, 0, SET_BYTES, 0, 0]);
        }
    }
}

/// For the constructor: from now on faults reach the library first.
pub fn guard() {
    tables::host::set_signal_check(|| deferred() != 0);
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGSYS] {
        if guarded() & bit(signal) == 0 {
            continue;
        }
        let guard = guard_action(signal);
        let mut before = Action { handler: 0, flags: 0, restorer: 0, mask: 0 };
        let arguments = [signal as u64, &raw const guard as u64, &raw mut before as u64, SET_BYTES, 0, 0];
        // SAFETY: actions of this function; a handler is installed.
        unsafe { sys::call(libc::SYS_rt_sigaction, arguments) };
        ACTIONS[signal as usize].set([before.handler, before.flags, before.mask]);
    }
    let (unblocked, mut before) = (guarded(), 0u64);
    let arguments = [libc::SIG_UNBLOCK as u64, &raw const unblocked as u64, &raw mut before as u64, SET_BYTES, 0, 0];
    // SAFETY: sets of this function; the words are this thread's.
    unsafe {
        sys::call(libc::SYS_rt_sigprocmask, arguments);
        (*thread_words()).masked = before & guarded();
    }
}

/// rt_sigprocmask(how, new, old, size), by a thread that blocks signals of faults, or believes that
/// it does.
pub fn rt_sigprocmask(call: &mut Call<'_>) -> Result<Verdict> {
    let [how, new, old, size, ..] = call.arguments();
    if size != SET_BYTES {
        return Ok(NATIVE);
    }
    let mut set: u64 = if new == 0 { 0 } else { user_memory::read(new)? };
    let wanted = set & guarded();
    set &= !guarded();
    let mut result = 0u64;
    let mut arguments = call.frame.arguments();
    arguments[1] = if new == 0 { 0 } else { &raw const set as u64 };
    arguments[2] = &raw mut result as u64;
    let verdict = native_with(call.frame, arguments);
    if verdict.result < 0 {
        return Ok(verdict);
    }
    // SAFETY: the words are this thread's.
    let masked = unsafe { &mut (*thread_words()).masked };
    let postponed = result & guarded();
    result |= *masked;
    match how as i32 {
        _ if new == 0 => {}
        libc::SIG_BLOCK => *masked |= wanted,
        libc::SIG_UNBLOCK => *masked &= !wanted,
        _ => *masked = wanted,
    }
    // Postponed signals (see `postpone`) that are no longer masked arrive now. The result has what
    // was blocked.
    let arriving = postponed & !*masked;
    if arriving != 0 {
        // SAFETY: inside the library signals wait until the call is done.
        unsafe { set_mask(libc::SIG_UNBLOCK, arriving) };
    }
    if old != 0 {
        user_memory::write(old, &result)?;
    }
    Ok(verdict)
}

// This code is glibc's, by which debuggers recognise the frame.
global_asm!(
    r#"
    .section .text.directfs_restore,"ax",@progbits
    .p2align 4
    .globl directfs_restore
    .hidden directfs_restore
    .type directfs_restore, @function
    nop
directfs_restore:
    mov rax, 15
    syscall
    .size directfs_restore, . - directfs_restore
    "#
);
unsafe extern "C" {
    fn directfs_restore();
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The set of this thread's signals that wait until its call is done.
pub fn deferred() -> u64 {
    // SAFETY: the words are this thread's; a handler that changes them has returned.
    unsafe { (&raw const (*thread_words()).deferred).read_volatile() }
}

/// How waiting signals end a call that blocks; `None` without such signals: it continues.
pub fn interruption() -> Option<Result<Verdict>> {
    let deferred = deferred();
    if deferred == 0 {
        return None;
    }
    let restarts = (1..=SIGNALS)
        .filter(|signal| deferred & bit(*signal as i32) != 0)
        .all(|signal| ACTIONS[signal].flags.load(Relaxed) & SA_RESTART as u64 != 0);
    let again = Verdict { result: 0, next: crate::abi::entry::Next::Restart };
    Some(if restarts { Ok(again) } else { Err(Errno(libc::EINTR)) })
}

/// Whether the thread is inside the library.
fn is_inside(context: *const c_void) -> bool {
    let words = thread_words();
    // SAFETY: the words are this thread's; the kernel made the context.
    let (in_use, passive, address) = unsafe {
        let registers = &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let in_use = (*words).owned != 0 && (*words).top == 0;
        (in_use, (*words).passive != 0, registers[libc::REG_RIP as usize] as usize)
    };
    in_use && !passive && (is_in(&OWN_CODE, address) || is_in(&KERNEL_CODE, address))
}

/// Whether the processor raised a signal, which would then only repeat.
fn is_fault(signal: i32, info: *const siginfo_t) -> bool {
    let kind =
        matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS);
    // SAFETY: the kernel made it.
    kind && unsafe { (*info).si_code > 0 }
}

/// The kernel calls this for every signal with a handler of the program.
///
/// # Safety
/// Only for the kernel.
pub unsafe extern "C" fn directfs_signal(signal: i32, info: *mut siginfo_t, context: *mut c_void) {
    if !is_fault(signal, info) && is_inside(context) {
        // SAFETY: the kernel made info and context; the words are this thread's.
        unsafe { defer(signal, info, context) };
        return;
    }
    let is_guarded = guarded() & bit(signal) != 0;
    // SAFETY: as above.
    if is_guarded && !is_fault(signal, info) && unsafe { postpone(signal, info, context) } {
        return;
    }
    // SAFETY: as called by the kernel.
    if is_guarded && is_fault(signal, info) && unsafe { faults::recover_fault(signal, info, context.cast()) } {
        return;
    }
    let Some(known) = ACTIONS.get(signal as usize) else { return };
    let (handler, flags) = (known.handler.load(Acquire), known.flags.load(Acquire));
    if is_guarded && (handler == libc::SIG_DFL as u64 || (handler == libc::SIG_IGN as u64 && is_fault(signal, info))) {
        // SAFETY: as called by the kernel.
        unsafe { end_by_signal(signal, info) };
        return;
    }
    if flags & SA_RESETHAND as u64 != 0 {
        known.handler.store(libc::SIG_DFL as u64, Release);
    }
    if handler <= libc::SIG_IGN as u64 {
        return;
    }
    if flags & SA_NODEFER as u64 != 0 {
        // SAFETY: changes no memory; from here on a handler with SA_NODEFER may interrupt itself.
        unsafe { set_mask(libc::SIG_UNBLOCK, bit(signal)) };
    }
    if armed_threads::is_armed() || site_slots::has_sites() {
        // The kernel blocks the signals of a wait with its own mask (sigsuspend, ppoll). It would
        // end a program that performs an inline syscall with its signal blocked. SAFETY: changes no
        // memory; these signals are not blocked otherwise.
        unsafe { set_mask(libc::SIG_UNBLOCK, guarded()) };
    }
    // SAFETY: the program registered this address as a handler. (A handler without SA_SIGINFO
    // ignores the second and third argument.) The words are this thread's.
    unsafe {
        let words = thread_words();
        // The interrupted code may continue to wait, or be a handler on that stack.
        let (passive, alternate) = ((*words).passive, ((*words).alternate, (*words).alternate_end));
        // Or it is on its way to request a missing page.
        let missing = ((*words).missing, (*words).missing_from);
        if let Some(range) = alternate_stack(context) {
            ((*words).alternate, (*words).alternate_end) = range;
        }
        // The thread may have been interrupted before it recorded that its child has ended.
        (*words).child_runs = 0;
        let handler: extern "C" fn(i32, *mut siginfo_t, *mut c_void) = core::mem::transmute(handler as usize);
        handler(signal, info, context);
        (*words).passive = passive;
        ((*words).alternate, (*words).alternate_end) = alternate;
        ((*words).missing, (*words).missing_from) = missing;
    }
}

/// Start and end of the program's signal stack, if this thread is on it and the kernel believes it
/// in use.
unsafe fn alternate_stack(context: *const c_void) -> Option<(u64, u64)> {
    /// The kernel disables it itself while a handler runs.
    const SS_AUTODISARM: i32 = 1 << 31;
    // SAFETY: the kernel made it.
    let set = unsafe { (*context.cast::<libc::ucontext_t>()).uc_stack };
    let start = set.ss_sp as u64;
    let range = start..start.checked_add(set.ss_size as u64)?;
    let here = &raw const set as u64;
    (set.ss_flags & SS_AUTODISARM == 0 && range.contains(&here)).then_some((range.start, range.end))
}

/// Serves a call with the program's signal stack disabled.
///
/// # Safety
/// The caller is not on that stack, all signals are blocked, and the thread's words hold the
/// signals that the program had blocked.
pub unsafe fn without_alternate(serve: impl FnOnce() -> Verdict) -> Verdict {
    let none = libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    let mut before = none;
    let all = u64::MAX;
    // SAFETY: sets and stacks of this function; the words are this thread's, where the entry stores
    // and reads the program's signals.
    unsafe {
        let held = &raw mut (*thread_words()).held;
        sys::call(libc::SYS_sigaltstack, [&raw const none as u64, &raw mut before as u64, 0, 0, 0, 0]);
        set_mask(libc::SIG_SETMASK, held.read());
        let verdict = serve();
        let arguments = [libc::SIG_SETMASK as u64, &raw const all as u64, held as u64, SET_BYTES, 0, 0];
        sys::call(libc::SYS_rt_sigprocmask, arguments);
        sys::call(libc::SYS_sigaltstack, [&raw const before as u64, 0, 0, 0, 0, 0]);
        verdict
    }
}

/// Ends the program by a signal as without the library: by the fault, which repeats when the
/// handler returns, or by sending the signal again.
unsafe fn end_by_signal(signal: i32, info: *mut siginfo_t) {
    let default = Action { handler: libc::SIG_DFL as u64, flags: 0, restorer: 0, mask: 0 };
    // SAFETY: an action of this function, and arguments from the kernel.
    unsafe {
        sys::call(libc::SYS_rt_sigaction, [signal as u64, &raw const default as u64, 0, SET_BYTES, 0, 0]);
        // A call that the program's seccomp filter refused does not repeat.
        if !is_fault(signal, info) || signal == libc::SIGSYS {
            let (process, thread) = (sys::process_id() as u64, sys::thread_id() as u64);
            sys::call(libc::SYS_rt_tgsigqueueinfo, [process, thread, signal as u64, info as u64, 0, 0]);
        }
    }
}

unsafe fn set_mask(how: i32, set: u64) {
    // SAFETY: the set is a local; the caller vouches for interruptions.
    unsafe { sys::call(libc::SYS_rt_sigprocmask, [how as u64, &raw const set as u64, 0, SET_BYTES, 0, 0]) };
}

/// Sends a signal again and keeps it blocked after the handler returns.
unsafe fn defer(signal: i32, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: as in `directfs_signal`. The kernel takes the mask from the context when the handler
    // returns; its sets have 64 bits.
    unsafe {
        let words = thread_words();
        if nesting(signal) != 0 {
            set_mask(libc::SIG_BLOCK, bit(signal));
        }
        (*words).deferred |= bit(signal);
        let mask = (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
        *mask |= bit(signal);
        let (process, thread) = (sys::process_id() as u64, sys::thread_id() as u64);
        sys::call(libc::SYS_rt_tgsigqueueinfo, [process, thread, signal as u64, info as u64, 0, 0]);
    }
}

/// Keeps a signal of faults that was sent, not raised, while the program believes it blocked: sends
/// it again, and has the kernel block it until [`rt_sigprocmask`] unblocks it. False: it arrives.
/// It also does where traps need it.
///
/// # Safety
/// As for [`directfs_signal`].
unsafe fn postpone(signal: i32, info: *mut siginfo_t, context: *mut c_void) -> bool {
    let is_needed = match signal {
        libc::SIGSEGV => site_slots::has_sites(),
        libc::SIGBUS => missing::exist(),
        _ => armed_threads::is_armed(),
    };
    // SAFETY: by the caller's promise, as in `defer`; the words are this thread's.
    unsafe {
        if is_needed || (*thread_words()).masked & bit(signal) == 0 {
            return false;
        }
        let mask = (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
        *mask |= bit(signal);
        // Otherwise it would arrive in this handler.
        set_mask(libc::SIG_BLOCK, bit(signal));
        let (process, thread) = (sys::process_id() as u64, sys::thread_id() as u64);
        sys::call(libc::SYS_rt_tgsigqueueinfo, [process, thread, signal as u64, info as u64, 0, 0]);
    }
    true
}

/// Delivers the waiting signals, in the middle of a call that holds nothing in the engine. From
/// then on until the next call handlers run at once.
///
/// # Safety
/// The thread holds nothing in the engine, and a handler may leave by a jump.
pub unsafe fn deliver_now() {
    // SAFETY: the words are this thread's.
    unsafe { (*thread_words()).passive = 1 };
    if deferred() != 0 {
        // SAFETY: by the caller's promise.
        unsafe { directfs_deliver() };
    }
}

/// Delivers the signals that waited for a call.
///
/// # Safety
/// Called by the entry, when the thread's stack is free again.
pub unsafe extern "C" fn directfs_deliver() {
    let words = thread_words();
    // SAFETY: the words are this thread's. Signals after this are not deferred.
    let set = unsafe { core::mem::take(&mut (*words).deferred) };
    // SAFETY: the caller's promise: handlers may run.
    unsafe { set_mask(libc::SIG_UNBLOCK, set) };
}
