//! Threads whose system calls the kernel brings here (Syscall User Dispatch), and how new ones arm
//! themselves.

use crate::abi::entry::{RED_ZONE_BYTES, directfs_entry};
use crate::abi::sys;
use crate::abi::thread_words::CHILD_RUNS_OFFSET;
use crate::loading::{patch, proc_maps};
use crate::process::environment;
use core::arch::global_asm;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU64};

/// Calls from this range raise no signal.
pub static DIRECTFS_EXEMPT: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Whether threads are to be armed.
static DIRECTFS_ARMED: AtomicU8 = AtomicU8::new(0);

/// A number of prctl.
pub const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
/// Its first argument.
pub const PR_SYS_DISPATCH_ON: u64 = 1;

// A new thread, or a child in its parent's memory, is not armed: it arms itself before anything
// else. Here such a child and its parent also record which of them runs: see `ThreadWords`. All
// registers are preserved except rcx and r11.
global_asm!(
    crate::abi::entry::thread_macros!(),
    r#"
    .section .text.directfs_begin,"ax",@progbits
    .p2align 4
    .globl directfs_begin
    .hidden directfs_begin
    .type directfs_begin, @function
directfs_begin:
    WORDS rcx
    test eax, eax
    jnz 2f
    OF_THREAD
    mov qword ptr [rcx + {child_runs}], 1
    cmp byte ptr [rip + {armed}], 0
    je 1f
    lea rsp, [rsp - {red_zone}]
    push rdi
    push rsi
    push rdx
    push r10
    push r8
    push r11
    mov edi, {dispatch}
    mov esi, {on}
    mov rdx, qword ptr [rip + {exempt}]
    mov r10, qword ptr [rip + {exempt} + 8]
    xor r8d, r8d
    mov eax, {prctl}
    syscall
    pop r11
    pop r8
    pop r10
    pop rdx
    pop rsi
    pop rdi
    lea rsp, [rsp + {red_zone}]
    xor eax, eax
1:  jmp r11
2:  OF_THREAD
    mov qword ptr [rcx + {child_runs}], 0
    jmp r11
    .size directfs_begin, . - directfs_begin
    .purgem WORDS
    .purgem OF_THREAD
    .purgem WORDS_ADDRESS
    .purgem THREAD
    .purgem PROC
    "#,
    red_zone = const RED_ZONE_BYTES,
    armed = sym DIRECTFS_ARMED,
    child_runs = const CHILD_RUNS_OFFSET,
    exempt = sym DIRECTFS_EXEMPT,
    dispatch = const PR_SET_SYSCALL_USER_DISPATCH,
    on = const PR_SYS_DISPATCH_ON,
    prctl = const libc::SYS_prctl,
);

/// Whether threads of this process are armed.
pub fn is_armed() -> bool {
    DIRECTFS_ARMED.load(Relaxed) != 0
}

/// For the constructor: extends the exempt range by a mapping of a library that performs calls for
/// others, or of this library (and its early copy).
pub fn record(mapping: &proc_maps::Mapping<'_>, makes_calls: bool) {
    let own = (mapping.start..mapping.end).contains(&(directfs_entry as *const () as usize));
    if !makes_calls && !own && mapping.path != environment::library() {
        return;
    }
    let start = DIRECTFS_EXEMPT[0].load(Relaxed);
    let end = start + DIRECTFS_EXEMPT[1].load(Relaxed);
    let (first, last) = (mapping.start as u64, mapping.end as u64);
    let (start, end) = if start == 0 { (first, last) } else { (start.min(first), end.max(last)) };
    DIRECTFS_EXEMPT[0].store(start, Relaxed);
    DIRECTFS_EXEMPT[1].store(end - start, Relaxed);
}

/// For the constructor: from now on this thread's calls from elsewhere come here.
pub fn arm() {
    if patch::prepare_site_slots() && arm_thread() {
        DIRECTFS_ARMED.store(1, Relaxed);
    }
}

/// Whether the kernel can redirect calls. Changes nothing: it refuses an address of its own.
pub fn is_supported() -> bool {
    const KERNEL: u64 = 1 << 63;
    let arguments = [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, KERNEL, 0];
    // SAFETY: the call fails.
    unsafe { sys::call(libc::SYS_prctl, arguments) == -i64::from(libc::EFAULT) }
}

/// Arms this thread; false if the kernel does not support that.
pub fn arm_thread() -> bool {
    let (start, bytes) = (DIRECTFS_EXEMPT[0].load(Relaxed), DIRECTFS_EXEMPT[1].load(Relaxed));
    let arguments = [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, start, bytes, 0, 0];
    // SAFETY: calls from elsewhere raise a signal from now on, which `redirect` handles.
    unsafe { sys::call(libc::SYS_prctl, arguments) == 0 }
}
