//! Processor faults while a call is served: bad pointers of programs, and truncated images.
//!
//! The kernel's own accesses to a program's memory survive faults; so do this library's. The few
//! pieces of code that follow a program's pointers are known by their addresses, and the signal
//! handler continues after the access that failed. Nothing is checked in advance, so good pointers
//! cost nothing.
//!
//! | code | effect of a fault |
//! | --- | --- |
//! | the filter ([`entry_code`](crate::entry_code)) | the call goes to the kernel, which returns EFAULT |
//! | copies and reads of [`user_memory`] | an error |
//! | copies out of the image, from and to the program's buffers, `memcpy` and the like | they end there; the call fails with EFAULT |
//! | sites of libraries ([`library_syscalls`]) | none: they are system calls |
//! | [missing pages](crate::calls::mapping::missing) | they are supplied, and the access repeats |
//! | loads of content of files from memory with an error | the load ends; the call fails with EIO |
//! | any other access to the image or the shared memory beyond the end of a truncated file, to a removed device, or to memory with an error | the page reads as zeros, and the file system fails: EIO from then on |
//!
//! Invariants
//! - The pieces of code are leaves without a frame: the top of the stack holds their return
//!   address.
//! - Any other fault is the program's own: its handler is called, or the program ends as it would
//!   without the library.
//!
//! Buffers that the engine reads amid a change are touched once per page first. *Rejected:*
//! checking pointers before use (each costs a system call or a table walk); a jump out of the
//! handler (the engine may hold locks).

use crate::abi::entry::{directfs_entry, directfs_entry_native};
use crate::abi::thread_words::{ThreadWords, thread_words};
use crate::abi::{sys, user_memory};
use crate::calls::mapping::missing;
use crate::loading::{redirection, site_slots};
use crate::server;
use crate::signals::is_own_code;
use core::ops::Range;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use libc::{siginfo_t, ucontext_t};
use pmem::{ContentLoad, Loss};

/// `memcpy` and the like, which the linked library contains.
static MEMORY_CODE: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// For the constructor: records where `memcpy` and the like are.
pub fn record_memory_code(code: Range<usize>) {
    MEMORY_CODE[0].store(code.start, Relaxed);
    MEMORY_CODE[1].store(code.end, Relaxed);
}

/// Whether a fault was one of the library's, so that the program can continue.
///
/// # Safety
/// Only for the handler of a fault, with the arguments from the kernel.
pub unsafe fn recover_fault(signal: i32, info: *const siginfo_t, context: *mut ucontext_t) -> bool {
    if signal == libc::SIGSYS {
        // SAFETY: by the caller's promise.
        return unsafe { redirection::redirect(info, context) };
    }
    // SAFETY: the kernel made both.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    // SAFETY: as above.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as usize;
    if signal == libc::SIGBUS
        && let Some(server) = server::attached()
        && let Some(region) = server.regions().into_iter().find(|region| region.contains(&address))
    {
        let loss = pmem::Loss::of_code(code);
        let load = ContentLoad::in_progress(at, registers[libc::REG_RAX as usize] as u64);
        if let (Loss::MemoryError, Some(load)) = (loss, load) {
            server::expect_memory_errors(load == ContentLoad::Wanted);
            registers[libc::REG_RAX as usize] = pmem::LOAD_LOST.into();
            // SAFETY: the code of loads is a leaf.
            unsafe { return_from_leaf(registers) };
            return true;
        }
        server::fail(loss);
        return put_zeros(address, region);
    }
    if signal == libc::SIGBUS && !is_own_code(at) && missing::redirect(code, address as u64, registers) {
        return true;
    }
    if signal == libc::SIGSEGV && site_slots::has_sites() && redirection::redirect_trap(registers) {
        return true;
    }
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
        // The progress of the access.
        registers[libc::REG_RAX as usize] = registers[libc::REG_RDI as usize] | user_memory::FAILED as i64;
    } else {
        const STORE_STRING: [u8; 2] = [0xf3, 0xaa];
        // SAFETY: an instruction of the library, which was just executed.
        if unsafe { (at as *const [u8; 2]).read() } == STORE_STRING {
            // Its result is in another register while this one holds the stored value.
            registers[libc::REG_RAX as usize] = registers[libc::REG_R8 as usize];
        }
        // SAFETY: the words are this thread's.
        unsafe { (*thread_words()).fault = address as u64 | 1 };
    }
    // SAFETY: the module's invariant.
    unsafe { return_from_leaf(registers) };
    true
}

/// Equivalent to the instruction `ret`.
///
/// # Safety
/// The top of the stack holds the return address.
unsafe fn return_from_leaf(registers: &mut [i64; 23]) {
    let stack = registers[libc::REG_RSP as usize];
    // SAFETY: by contract.
    registers[libc::REG_RIP as usize] = unsafe { (stack as *const i64).read() };
    registers[libc::REG_RSP as usize] = stack + 8;
}

/// Whether a copy was cut short since the last query.
pub fn take() -> bool {
    // SAFETY: the words are this thread's.
    unsafe { take_from(thread_words()) }
}

/// `take` for a caller that knows the thread's words.
///
/// # Safety
/// The words are this thread's.
#[inline(always)]
pub unsafe fn take_from(words: *mut ThreadWords) -> bool {
    // SAFETY: by contract, and a handler that changes them has returned.
    unsafe {
        let fault = &raw mut (*words).fault;
        let found = fault.read_volatile() != 0;
        if found {
            fault.write_volatile(0);
        }
        found
    }
}

/// Maps zeros where the file no longer has a page, or the device is gone.
fn put_zeros(address: usize, mapping: Range<usize>) -> bool {
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE) as u64;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    pmem::dax_units_around(address, mapping).any(|unit| {
        let arguments = [unit.start as u64, unit.len() as u64, protection, flags, u64::MAX, 0];
        // SAFETY: replaces inaccessible memory, of a mapping that only the operations in progress
        // still use.
        unsafe { sys::call(libc::SYS_mmap, arguments) == unit.start as i64 }
    })
}
