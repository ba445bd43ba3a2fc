//! 32-bit system calls (`int 0x80`) of 64-bit programs.
//!
//! Numbers and some structures are other ones, and the kernel would perform such a call on the
//! machine's files. They trap as in [`inline_syscalls`](super::inline_syscalls) and
//! [`library_syscalls`](super::library_syscalls), and the first one ends the program.

use crate::abi::sys;

/// The instruction.
pub const INSTRUCTION: [u8; 2] = [0xcd, 0x80];

/// Ends a program that makes the call with this number.
pub fn refuse(number: u32) -> ! {
    let mut digits = [0u8; 20];
    let count = crate::handoff::write_number(u64::from(number), &mut digits);
    sys::refuse(&[
        b"this program makes the 32-bit system call ",
        &digits[..count],
        b" (`int 0x80`), which `directfs run` does not serve; use `directfs mount`",
    ])
}
