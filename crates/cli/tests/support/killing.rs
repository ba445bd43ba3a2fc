//! Kills a program at a chosen system call that changes a file.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

/// Rounds at once: most of their time is waits for one another's processes.
const ROUNDS_AT_ONCE: usize = 4;

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
    let mut seen = 0;
    traced(command, &mut |pid| {
        seen += usize::from(CHANGING.contains(&call_of(pid)));
        seen == nth
    })
}

/// Calls `round` with the numbers 1, 2, 3 ... of the call to kill at, several at once, until one
/// says that nothing was killed. Returns the results of all rounds up to that one, in order.
pub fn for_each_call<T: Send>(round: impl Fn(usize) -> (T, bool) + Sync) -> Vec<T> {
    let (next, last) = (AtomicUsize::new(1), AtomicUsize::new(usize::MAX));
    let results = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..ROUNDS_AT_ONCE {
            scope.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, SeqCst);
                    if nth > last.load(SeqCst) {
                        return;
                    }
                    let (result, was_killed) = round(nth);
                    if !was_killed {
                        last.fetch_min(nth, SeqCst);
                    }
                    results.lock().unwrap().insert(nth, result);
                }
            });
        }
    });
    let last = last.into_inner();
    results.into_inner().unwrap().into_iter().filter(|(nth, _)| *nth <= last).map(|(_, result)| result).collect()
}

/// Runs a program to its end. Returns the system calls of its first thread: number and the first
/// three arguments of each.
pub fn calls_of(command: &mut Command) -> Vec<[u64; 4]> {
    let mut calls = Vec::new();
    traced(command, &mut |pid| {
        let registers = registers_of(pid);
        calls.push([registers.orig_rax, registers.rdi, registers.rsi, registers.rdx]);
        false
    });
    calls
}

/// Runs a program, and calls `ends` with its process when its first thread is about to perform a
/// system call. Kills it if that says so, and returns whether that was so.
fn traced(command: &mut Command, ends: &mut dyn FnMut(i32) -> bool) -> bool {
    // SAFETY: one plain system call between fork and exec.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    let mut child = command.spawn().expect("it starts");
    let pid = child.id() as i32;
    let mut is_entry = true;
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
            if is_entry && ends(pid) {
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
    // If it has ended, the status is taken already.
    let _ = child.wait();
    is_alive
}

/// The number of the call that a stopped process is in.
pub fn call_of(pid: i32) -> i64 {
    registers_of(pid).orig_rax as i64
}

fn registers_of(pid: i32) -> libc::user_regs_struct {
    // SAFETY: zeros are a valid value of this plain structure.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the process is stopped, and the structure belongs to this function.
    unsafe { libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut registers) };
    registers
}
