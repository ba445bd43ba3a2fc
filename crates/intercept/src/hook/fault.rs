//! Memory of the program's that may not be there: a fault while we look is an answer, not the end of the program.
//!
//! Only two places look at memory of which nothing is known: the filter of the entry (at a path's first bytes) and the functions here. What faults there goes on
//! elsewhere: a call of the filter at the kernel, which refuses it, and a look here with the address that could not be reached.
//! Everything else uses memory that was looked at before. (Who takes it away meanwhile, in another thread, gets the signal.)
//!
//! Invariant: between the labels of a range the stack stands as the place expects at which it goes on.

use core::arch::global_asm;

unsafe extern "C" {
    fn directfs_readable(first: u64, last: u64) -> u64;
    fn directfs_writable(first: u64, last: u64) -> u64;
    static directfs_looks: [u8; 0];
    static directfs_looks_end: [u8; 0];
    static directfs_unreachable: [u8; 0];
    static directfs_filter: [u8; 0];
    static directfs_filter_end: [u8; 0];
    static directfs_filter_native: [u8; 0];
    /// What a handler of ours returns to.
    pub(super) fn directfs_restore();
}

global_asm!(
    r#"
    .section .text.directfs_fault,"ax",@progbits
    .hidden directfs_readable, directfs_writable, directfs_looks, directfs_looks_end, directfs_unreachable, directfs_restore
    .globl directfs_readable, directfs_writable, directfs_looks, directfs_looks_end, directfs_unreachable, directfs_restore
    .type directfs_readable, @function
    .type directfs_writable, @function
    .type directfs_unreachable, @function
    .type directfs_restore, @function
    // Each takes the first and last address of a range and touches a byte of every page in it: the address of the first byte that cannot be reached, or zero.
directfs_looks:
directfs_readable:
    .cfi_startproc
1:  mov al, byte ptr [rdi]
    or rdi, 4095
    inc rdi
    cmp rdi, rsi
    jbe 1b
    xor eax, eax
    ret
    .cfi_endproc
directfs_writable:
    .cfi_startproc
    // Locked, so that what another thread stores there at this moment is not lost.
1:  lock or byte ptr [rdi], 0
    or rdi, 4095
    inc rdi
    cmp rdi, rsi
    jbe 1b
    xor eax, eax
    ret
    .cfi_endproc
directfs_looks_end:
directfs_unreachable:
    .cfi_startproc
    mov rax, rdi
    ret
    .cfi_endproc
    // In the form by which debuggers and unwinders know the end of a signal frame.
directfs_restore:
    mov rax, 15
    syscall
    "#
);

/// Where what faults at an address goes on; none if it is not for us to say.
pub fn continuation(address: u64) -> Option<u64> {
    let is_in = |start: &'static [u8; 0], end: &'static [u8; 0]| {
        (start.as_ptr() as u64..end.as_ptr() as u64).contains(&address)
    };
    // SAFETY: labels of this library's code, of which only the addresses are taken.
    unsafe {
        if is_in(&directfs_looks, &directfs_looks_end) {
            Some(directfs_unreachable.as_ptr() as u64)
        } else if is_in(&directfs_filter, &directfs_filter_end) {
            Some(directfs_filter_native.as_ptr() as u64)
        } else {
            None
        }
    }
}

/// How many of these bytes can be read, from the first on. There is at least one.
#[inline]
pub fn readable(address: u64, bytes: u64) -> u64 {
    // SAFETY: reads one byte of each page; what cannot be read is told. The caller has seen that the range does not wrap around.
    match unsafe { directfs_readable(address, address + (bytes - 1)) } {
        0 => bytes,
        unreachable => unreachable - address,
    }
}

/// The same for writing. Nothing changes.
#[inline]
pub fn writable(address: u64, bytes: u64) -> u64 {
    // SAFETY: as in `readable`; each byte is written as it is, in one step.
    match unsafe { directfs_writable(address, address + (bytes - 1)) } {
        0 => bytes,
        unreachable => unreachable - address,
    }
}
