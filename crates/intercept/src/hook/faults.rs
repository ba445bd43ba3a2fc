//! Faults of the processor while a call is served: bad pointers of programs, and images that were cut off.
//!
//! What the kernel does for its own accesses to a program's memory is done here: the few pieces of code that follow a program's pointers are known by their addresses, and
//! the handler of the signal goes on behind the access that failed. Nothing is checked before, so pointers that are good cost nothing.
//!
//! | code | what a fault in it becomes |
//! | --- | --- |
//! | the filter ([`entry`](super::entry)) | the call goes to the kernel, which says EFAULT |
//! | copies and looks of [`user_memory`](super::user_memory) | an error |
//! | copies out of the image, `memcpy` and its kin | they end there; the call ends with EFAULT |
//! | anything that follows the image or the shared memory, where the file behind it has become shorter | the page reads as zeros, and the file system is given up: EIO from then on |
//!
//! Invariants
//! - The pieces of code are leaves without a frame: what is on top of the stack is where they return to.
//! - A fault that is none of these is the program's own affair: its handler is called, or it ends as it would have.

use super::entry::{directfs_entry, directfs_entry_native, thread_words};
use super::server::{self, Server};
use super::{inline_syscalls, sys, user_memory};
use core::ops::Range;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use libc::{siginfo_t, ucontext_t};

/// `memcpy` and its kin, which the linked library brings.
static MEMORY_CODE: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// For the constructor: where `memcpy` and its kin are.
pub fn record_memory_code(code: Range<usize>) {
    MEMORY_CODE[0].store(code.start, Relaxed);
    MEMORY_CODE[1].store(code.end, Relaxed);
}

/// Whether a fault was one of ours, and the program can go on.
///
/// # Safety
/// Called by the handler of a fault, with what the kernel gave it.
pub unsafe fn recover_fault(signal: i32, info: *const siginfo_t, context: *mut ucontext_t) -> bool {
    if signal == libc::SIGSYS {
        // SAFETY: by the caller's promise.
        return unsafe { inline_syscalls::redirect(info, context) };
    }
    // SAFETY: the kernel made both.
    let (address, registers) = unsafe { ((*info).si_addr() as usize, &mut (*context).uc_mcontext.gregs) };
    if signal == libc::SIGBUS
        && let Some(server) = server::get()
        && is_mapped_file(server, address)
    {
        server::fail();
        return put_page(address);
    }
    let at = registers[libc::REG_RIP as usize] as usize;
    if (directfs_entry as *const () as usize..directfs_entry_native as *const () as usize).contains(&at) {
        registers[libc::REG_RIP as usize] = directfs_entry_native as *const () as i64;
        return true;
    }
    let is_look = user_memory::code().contains(&at);
    let memory = MEMORY_CODE[0].load(Relaxed)..MEMORY_CODE[1].load(Relaxed);
    if !is_look && !memory.contains(&at) && !pmem::load_code().contains(&at) {
        return false;
    }
    if is_look {
        // How far it came.
        registers[libc::REG_RAX as usize] = registers[libc::REG_RDI as usize] | user_memory::FAILED as i64;
    } else {
        const STORE_STRING: [u8; 2] = [0xf3, 0xaa];
        // SAFETY: an instruction of ours, which was just executed.
        if unsafe { (at as *const [u8; 2]).read() } == STORE_STRING {
            // Its result is elsewhere while the register holds what is stored.
            registers[libc::REG_RAX as usize] = registers[libc::REG_R8 as usize];
        }
        // SAFETY: the words are this thread's.
        unsafe { (*thread_words()).fault = address as u64 | 1 };
    }
    // As the instruction `ret` does.
    let stack = registers[libc::REG_RSP as usize];
    // SAFETY: the module's invariant: on top of the stack is where the code returns to.
    registers[libc::REG_RIP as usize] = unsafe { (stack as *const i64).read() };
    registers[libc::REG_RSP as usize] = stack + 8;
    true
}

/// Whether a copy was given up since this was asked last.
#[inline]
pub fn take() -> bool {
    // SAFETY: the words are this thread's; a handler that changes them has returned.
    unsafe {
        let fault = &raw mut (*thread_words()).fault;
        let found = fault.read_volatile() != 0;
        if found {
            fault.write_volatile(0);
        }
        found
    }
}

fn is_mapped_file(server: &Server, address: usize) -> bool {
    server.regions().into_iter().any(|region| region.contains(&address))
}

/// Puts a page of zeros where the file has none any more.
fn put_page(address: usize) -> bool {
    const PAGE_BYTES: usize = 4096;
    let page = (address & !(PAGE_BYTES - 1)) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    // SAFETY: replaces a page that cannot be accessed, of a mapping that is not used for anything from now on but by what is under way.
    unsafe { sys::call(libc::SYS_mmap, [page, PAGE_BYTES as u64, protection, flags, u64::MAX, 0]) == page as i64 }
}
