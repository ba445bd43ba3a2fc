//! Words of the threads of programs that the library loads, and how these create threads.
//!
//! The program's thread-local storage has no place for them: GS points to a thread's words.
//! The dispatcher prepares them before the thread exists, with a copy of the call's frame on the
//! thread's stack. The entry performs the call with that copy as the stack ([`Next::Thread`]): so
//! the thread begins in the entry, sets GS, and returns from the call like its parent.
//!
//! Invariants
//! - All signals are blocked from before the call until both threads have their own GS: no handler
//!   runs with the words of another thread.
//! - A place belongs to one thread. It passes on when its owner is dead, or after a failed call.

use crate::abi::entry::{NATIVE, Next, Verdict};
use crate::abi::thread_words::{ThreadWords, thread_words};
use crate::abi::{sys, user_memory};
use crate::call::Call;
use crate::loading::{armed_threads, hot_sites};
use crate::process::clone_call::CloneCall;
use crate::stack::{self, is_alive};
use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI64, AtomicUsize};
use posix::{Errno, Result};

/// Maximum number of threads.
const PLACES: usize = 4096;
/// What a thread needs before its first call. All zero is a free place.
#[repr(C)]
pub struct ThreadPlace {
    words: UnsafeCell<ThreadWords>,
    /// The thread; zero: none; [`STARTING`].
    owner: AtomicI64,
    start: UnsafeCell<ThreadStart>,
}

/// The call that creates the thread, for the entry.
#[repr(C)]
struct ThreadStart {
    /// The signals that the thread begins with.
    mask: u64,
    number: i64,
    arguments: [u64; 6],
    call: MaybeUninit<CloneCall>,
}

/// Offset of the owner in a place.
const OWNER_OFFSET: usize = offset_of!(ThreadPlace, owner);
/// Offset of the mask in a place.
const MASK_OFFSET: usize = offset_of!(ThreadPlace, start) + offset_of!(ThreadStart, mask);
/// Offset of the number in a place; the arguments follow.
const NUMBER_OFFSET: usize = offset_of!(ThreadPlace, start) + offset_of!(ThreadStart, number);
const _: () = assert!(offset_of!(ThreadPlace, words) == 0);
const _: () = assert!(offset_of!(ThreadStart, arguments) == offset_of!(ThreadStart, number) + 8);

/// In place of the owner, from the claim of a place until the call has returned in the parent.
const STARTING: i64 = -1;

struct Places([ThreadPlace; PLACES]);
// SAFETY: see the module's invariant; the owner is atomic.
unsafe impl Sync for Places {}
// SAFETY: integers only, for which zero is valid.
static ALL: Places = unsafe { core::mem::zeroed() };
/// Where the search for a free place begins.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Gives the first thread its words; false if the kernel refuses.
///
/// # Safety
/// Called once, before any other code of the library.
pub unsafe fn begin() -> bool {
    let place = &ALL.0[0];
    // SAFETY: the first thread's words, without other users.
    unsafe { (*place.words.get()).this = place.words.get() as u64 };
    // SAFETY: nothing uses GS yet.
    let result = unsafe { sys::call(libc::SYS_arch_prctl, [ARCH_SET_GS, place.words.get() as u64, 0, 0, 0, 0]) };
    place.owner.store(i64::from(sys::thread_id()), Release);
    result == 0
}

/// In the child of a fork: the present thread has another number.
pub fn continue_in_child() {
    // SAFETY: the words lie at the start of a place of this thread.
    let place = unsafe { &*thread_words().cast::<ThreadPlace>() };
    place.owner.store(i64::from(sys::thread_id()), Release);
}

/// Before the first thread is created: from now on threads end without use of their stacks.
pub fn prepare_ends() {
    hot_sites::replace_ends(directfs_end_thread as *const () as u64);
}

/// On the stack of a thread that ends: leaves the engine.
extern "C" fn leave() {
    // SAFETY: `directfs_end_thread` runs on this thread's own stack.
    unsafe { stack::context() }.leave();
}

/// Has the entry create a thread.
pub fn prepare(call: &Call<'_>, clone: &CloneCall) -> Result<Verdict> {
    if clone.stack == 0 {
        return Err(Errno::EINVAL);
    }
    let frame = call.frame.move_to(clone.stack).ok_or(user_memory::EFAULT)?;
    let place = claim().ok_or(Errno::EAGAIN)?;
    // SAFETY: the place was just claimed, so nothing else uses it.
    let (words, start) = unsafe { (&mut *place.words.get(), &mut *place.start.get()) };
    // SAFETY: integers only, for which zero is valid.
    *words = unsafe { core::mem::zeroed() };
    words.this = &raw const *words as u64;
    // SAFETY: the words are this thread's.
    words.masked = unsafe { (*thread_words()).masked };
    (start.number, start.arguments) = start.call.write(*clone).with_stack(frame);
    Ok(Verdict { result: &raw const *place as i64, next: Next::Thread })
}

fn claim() -> Option<&'static ThreadPlace> {
    let process = sys::process_id() as u64;
    let first = NEXT.load(Relaxed);
    let mut candidates = (first..first + PLACES).map(|index| (index, &ALL.0[index % PLACES]));
    let (index, place) = candidates.find(|(_, place)| {
        let owner = place.owner.load(Acquire);
        let is_free = owner == 0 || (owner > 0 && !is_alive(process, owner as u64));
        is_free && place.owner.compare_exchange(owner, STARTING, AcqRel, Relaxed).is_ok()
    })?;
    NEXT.store((index + 1) % PLACES, Relaxed);
    Some(place)
}

// Creates a thread by the place in rdi, for the call with the frame in rbx. The thread begins with
// the copy of the frame as its stack pointer. rbp keeps the place; r12 to r15 are the program's.
global_asm!(
    r#"
    .section .text.directfs_create_thread,"ax",@progbits
    .p2align 4
    .globl directfs_create_thread
    .hidden directfs_create_thread
    .type directfs_create_thread, @function
directfs_create_thread:
    mov rbp, rdi
    push -1
    push rax
    mov eax, {rt_sigprocmask}
    mov edi, {sig_setmask}
    lea rsi, [rsp + 8]
    mov rdx, rsp
    mov r10d, 8
    syscall
    mov rax, qword ptr [rsp]
    mov qword ptr [rbp + {mask}], rax
    mov rax, qword ptr [rbp + {number}]
    mov rdi, qword ptr [rbp + {number} + 8]
    mov rsi, qword ptr [rbp + {number} + 16]
    mov rdx, qword ptr [rbp + {number} + 24]
    mov r10, qword ptr [rbp + {number} + 32]
    mov r8, qword ptr [rbp + {number} + 40]
    mov r9, qword ptr [rbp + {number} + 48]
    syscall
    test rax, rax
    jz 2f
    mov qword ptr [rsp + 8], rax
    jns 1f
    xor eax, eax
1:  mov qword ptr [rbp + {owner}], rax
    mov eax, {rt_sigprocmask}
    mov edi, {sig_setmask}
    mov rsi, rsp
    xor edx, edx
    mov r10d, 8
    syscall
    pop rdi
    pop rdi
    jmp directfs_entry_done
2:  mov rbx, rsp
    mov eax, {arch_prctl}
    mov edi, {set_gs}
    mov rsi, rbp
    syscall
    mov eax, {prctl}
    mov edi, {dispatch}
    mov esi, {on}
    mov rdx, qword ptr [rip + {exempt}]
    mov r10, qword ptr [rip + {exempt} + 8]
    xor r8d, r8d
    syscall
    mov eax, {rt_sigprocmask}
    mov edi, {sig_setmask}
    lea rsi, [rbp + {mask}]
    xor edx, edx
    mov r10d, 8
    syscall
    xor edi, edi
    jmp directfs_entry_done
    .size directfs_create_thread, . - directfs_create_thread

    // Ends the thread, with its status in edi. The program's stack is not used.
    .p2align 4
    .globl directfs_end_thread
    .hidden directfs_end_thread
    .type directfs_end_thread, @function
directfs_end_thread:
    mov ebx, edi
    mov rax, qword ptr gs:[{top}]
    test rax, rax
    jz 3f
    mov qword ptr gs:[{top}], 0
    mov rsp, rax
    and rsp, -64
    call {leave}
3:  mov edi, ebx
    mov eax, {exit}
    syscall
    ud2
    .size directfs_end_thread, . - directfs_end_thread
    "#,
    top = const offset_of!(ThreadWords, top),
    leave = sym leave,
    exit = const libc::SYS_exit,
    mask = const MASK_OFFSET,
    number = const NUMBER_OFFSET,
    owner = const OWNER_OFFSET,
    exempt = sym armed_threads::DIRECTFS_EXEMPT,
    dispatch = const armed_threads::PR_SET_SYSCALL_USER_DISPATCH,
    on = const armed_threads::PR_SYS_DISPATCH_ON,
    set_gs = const ARCH_SET_GS,
    arch_prctl = const libc::SYS_arch_prctl,
    prctl = const libc::SYS_prctl,
    rt_sigprocmask = const libc::SYS_rt_sigprocmask,
    sig_setmask = const libc::SIG_SETMASK,
);

unsafe extern "C" {
    /// Not a callable function.
    fn directfs_end_thread();
}

const ARCH_SET_GS: u64 = 0x1001;

/// arch_prctl(code, address): GS is the library's.
pub fn arch_prctl(call: &mut Call<'_>) -> Result<Verdict> {
    const ARCH_GET_GS: u64 = 0x1004;
    match call.frame.rdi as u32 as u64 {
        ARCH_SET_GS | ARCH_GET_GS => {
            sys::refuse(&[b"this program uses the register GS, which `directfs run` needs; use `directfs mount`"])
        }
        _ => Ok(NATIVE),
    }
}
