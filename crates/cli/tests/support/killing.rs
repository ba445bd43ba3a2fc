//! Kills a program at a chosen system call that changes a file.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// The calls that count.
const CHANGING: [i64; 12] = [
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_msync,
    libc::SYS_munmap,
    libc::SYS_linkat,
    libc::SYS_rename,
    libc::SYS_unlink,
];

/// Runs a program, and kills it when its first thread is about to perform its `nth` changing call.
/// Returns whether it was killed; otherwise it has ended before.
pub fn killed_at(command: &mut Command, nth: usize) -> bool {
    // SAFETY: one plain system call between fork and exec.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    let mut child = command.spawn().expect("it starts");
    let pid = child.id() as i32;
    let (mut seen, mut is_entry) = (0, true);
    let is_alive = loop {
        let mut status = 0;
        // SAFETY: waits for the child of this function.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            break false;
        }
        let mut signal = libc::WSTOPSIG(status);
        if signal == libc::SIGTRAP {
            signal = 0;
            seen += usize::from(is_entry && CHANGING.contains(&call_of(pid)));
            if is_entry && seen == nth {
                break true;
            }
            is_entry = !is_entry;
        }
        // SAFETY: continues the child of this function, which is stopped.
        unsafe { libc::ptrace(libc::PTRACE_SYSCALL, pid, 0, signal) };
    };
    if is_alive {
        child.kill().expect("it is there");
    }
    // Of one that has ended the status is taken already.
    let _ = child.wait();
    is_alive
}

/// The number of the call that a stopped process is in.
pub fn call_of(pid: i32) -> i64 {
    // SAFETY: zeros are a valid value of this plain structure.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the process is stopped, and the structure belongs to this function.
    unsafe { libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut registers) };
    registers.orig_rax as i64
}
