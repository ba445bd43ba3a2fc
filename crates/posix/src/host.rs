//! This machine, as the engine wants to know it: time, sleeping, and who is alive. Callable inside a signal handler: system calls only.

use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use engine::Platform;
use engine::dram::{HUGE_PAGE_BYTES, Owner};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The engine's platform on Linux.
#[derive(Debug, Default)]
pub struct LinuxPlatform {
    /// The process that `started` is of; another one after a fork.
    pid: AtomicU32,
    /// When it started, in clock ticks since boot.
    started: AtomicU64,
}

/// The one of this process.
pub static PLATFORM: LinuxPlatform = LinuxPlatform { pid: AtomicU32::new(0), started: AtomicU64::new(0) };

/// Wall-clock time as file systems stamp it: of the last timer tick, which takes no reading of hardware.
pub fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

/// Asks the kernel to do something about mapped memory that leaves its content as it is; whether it did. By the bare system call, since the advice
/// to collapse is in no binding.
fn advise(address: *mut u8, length: usize, advice: i32) -> bool {
    let result: isize;
    // SAFETY: madvise with an advice that changes no content (the callers pass no other) touches no memory of Rust's; the kernel refuses what is not
    // mapped. The clobbered registers are those of the system call.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_madvise as isize => result,
            in("rdi") address,
            in("rsi") length,
            in("rdx") advice as isize,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

impl Platform for LinuxPlatform {
    fn now_ns(&self) -> i64 {
        now_ns()
    }

    fn wait(&self, word: &AtomicU32, expected: u32, timeout_ms: u32) {
        let timeout = Timespec { tv_sec: (timeout_ms / 1000) as i64, tv_nsec: (timeout_ms % 1000) as i64 * 1_000_000 };
        // Not a private futex: others wait on the same page in other processes. Every outcome means: look again.
        let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&timeout));
    }

    fn wake(&self, word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    fn identity(&self) -> Owner {
        // Asked anew each time: a value kept for the thread would be the parent's after a fork.
        let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        if self.pid.load(Acquire) != pid {
            let started = process_status(pid, None).map_or(0, |status| status.started);
            self.started.store(started, Relaxed);
            self.pid.store(pid, Release);
        }
        Owner { pid, tid, started: self.started.load(Relaxed) }
    }

    fn is_alive(&self, owner: Owner) -> bool {
        match process_status(owner.pid, None) {
            Ok(process) if owner.started != 0 && process.started != owner.started => return false,
            Ok(_) => {}
            Err(Errno::NOENT | Errno::SRCH) => return exists_unseen(owner.pid),
            // Out of descriptors, say: then nobody is declared dead.
            Err(_) => return true,
        }
        match process_status(owner.pid, Some(owner.tid)) {
            Ok(thread) => !matches!(thread.state, b'Z' | b'X' | b'x'),
            Err(Errno::NOENT | Errno::SRCH) => false,
            Err(_) => true,
        }
    }

    fn is_process_alive(&self, owner: Owner) -> bool {
        match process_status(owner.pid, None) {
            Ok(process) if owner.started != 0 && process.started != owner.started => false,
            // The first thread may have ended before others.
            Ok(process) => !matches!(process.state, b'Z' | b'X' | b'x') || process.threads > 1,
            Err(Errno::NOENT | Errno::SRCH) => exists_unseen(owner.pid),
            Err(_) => true,
        }
    }

    fn random(&self) -> u64 {
        let mut bytes = [0u8; 8];
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(8) => u64::from_ne_bytes(bytes),
            // Without the call (a strict sandbox) a number that at least differs from run to run.
            _ => (now_ns() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (&raw const bytes as u64),
        }
    }

    fn provide_huge(&self, address: *mut u8, length: usize) {
        for huge in (0..length).step_by(HUGE_PAGE_BYTES as usize) {
            // A huge page is made only where there is a page to begin with.
            if !advise(address.wrapping_add(huge), 4096, libc::MADV_POPULATE_WRITE) {
                return;
            }
        }
        advise(address, length, libc::MADV_COLLAPSE);
    }
}

/// Whether a process exists that /proc does not show (hidepid, or no /proc at all).
fn exists_unseen(pid: u32) -> bool {
    match Pid::from_raw(pid as i32) {
        Some(pid) => !matches!(test_kill_process(pid), Err(Errno::SRCH)),
        None => false,
    }
}

/// What /proc says of a process or thread.
struct Status {
    state: u8,
    threads: u64,
    started: u64,
}

/// A short path in a buffer on the stack.
struct ProcPath {
    bytes: [u8; 64],
    length: usize,
}

impl Write for ProcPath {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        // One byte stays zero: the end.
        let room = self.bytes.len() - 1;
        let end = self.length + text.len();
        if end > room {
            return Err(core::fmt::Error);
        }
        self.bytes[self.length..end].copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

fn process_status(pid: u32, tid: Option<u32>) -> Result<Status, Errno> {
    let mut path = ProcPath { bytes: [0; 64], length: 0 };
    let written = match tid {
        None => write!(path, "/proc/{pid}/stat"),
        Some(tid) => write!(path, "/proc/{pid}/task/{tid}/stat"),
    };
    written.map_err(|_| Errno::NAMETOOLONG)?;
    let path = CStr::from_bytes_until_nul(&path.bytes).map_err(|_| Errno::INVAL)?;
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = [0u8; 512];
    let length = rustix::io::read(&file, &mut text)?;
    parse_status(&text[..length]).ok_or(Errno::INVAL)
}

/// The fields behind the command, which may itself hold anything, spaces and parentheses included.
fn parse_status(text: &[u8]) -> Option<Status> {
    let command_end = text.iter().rposition(|&byte| byte == b')')?;
    let mut fields = text.get(command_end + 2..)?.split(|&byte| byte == b' ');
    let state = *fields.next()?.first()?;
    let mut number = |skipped| core::str::from_utf8(fields.nth(skipped)?).ok()?.parse().ok();
    // State is field 3, the number of threads field 20, the start time field 22.
    let threads = number(16)?;
    let started = number(1)?;
    Some(Status { state, threads, started })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_parsed_behind_an_odd_command() {
        let line = b"77 (a) R (b c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21\n";
        let status = parse_status(line).unwrap();
        assert_eq!((status.state, status.threads, status.started), (b'S', 17, 4711));
        assert!(parse_status(b"77 (cut").is_none());
        assert!(parse_status(b"77 (cut) S 1 2").is_none());
    }

    #[test]
    fn this_thread_lives_and_strangers_do_not() {
        let me = PLATFORM.identity();
        assert_ne!(me.started, 0);
        assert!(PLATFORM.is_alive(me));
        assert!(!PLATFORM.is_alive(Owner { started: me.started + 1, ..me }), "an earlier process of the same pid");
        assert!(!PLATFORM.is_alive(Owner { pid: 0x3fff_fff0, ..me }));
        assert!(!PLATFORM.is_alive(Owner { tid: 0x3fff_fff0, ..me }));
    }

    #[test]
    fn an_ended_thread_is_dead() {
        let owner = std::thread::spawn(|| PLATFORM.identity()).join().unwrap();
        // The kernel may take a moment to take the thread down after join.
        let gone = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            !PLATFORM.is_alive(owner)
        });
        assert!(gone);
    }

    #[test]
    fn a_wait_ends_by_wake_or_time() {
        let word = AtomicU32::new(0);
        PLATFORM.wait(&word, 1, 10_000); // another value: at once
        PLATFORM.wait(&word, 0, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Acquire) == 0 {
                    PLATFORM.wait(&word, 0, 10_000);
                }
            });
            word.store(1, Release);
            PLATFORM.wake(&word);
        });
    }
}
