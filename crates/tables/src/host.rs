//! The engine's platform on this machine: time, sleeping, and liveness of threads and processes.
//! Safe to call in a signal handler: system calls only.
//!
//! The liveness lock (`engine::Liveness`) is a lock of an open file description (`F_OFD_SETLK`) on
//! a directory that all processes of the image can open. A directory permits only read locks. Each
//! number still has one holder, because numbers are never assigned twice. The kernel searches the
//! locks of a file one by one, so 32 *lock directories* share them: a number's remainder chooses
//! its directory. They lie in one directory, and each is found from any other.

use crate::child_numbers;
use crate::huge_pages::HUGE_PAGES;
use crate::watch::{FileId, WATCHES_AT, Watches};
use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};
use engine::dram::{HUGE_PAGE_BYTES, Owner};
use engine::format::FileKind;
use engine::{Platform, Reporter};
use pmem::Sleeping;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::{DupFlags, Errno};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The engine's platform on Linux.
#[derive(Debug, Default)]
pub struct LinuxPlatform;

/// The platform of this process.
pub static PLATFORM: LinuxPlatform = LinuxPlatform;

/// How threads sleep at the flag of a cut.
pub static SLEEPING: Sleeping = Sleeping {
    wait: |word, expected, timeout_ms| PLATFORM.wait(word, expected, timeout_ms),
    wake: |word| PLATFORM.wake(word),
    now_ns: monotonic_ns,
};

/// Whether a filter of system calls may end this process for a call that it does not expect.
static IS_FILTERED: AtomicBool = AtomicBool::new(false);

/// Before the process installs a filter of system calls: from now on memory is touched without a
/// question whether there is room.
pub fn expect_filter() {
    IS_FILTERED.store(true, Relaxed);
}

/// Whether a seccomp filter may be installed.
pub fn expects_filter() -> bool {
    IS_FILTERED.load(Relaxed)
}

/// Whether a limit on descriptors that permits a number can be set.
pub fn is_within_hard_limit(fd: i32) -> bool {
    getrlimit(Resource::Nofile).maximum.is_none_or(|highest| highest > fd as u64)
}

/// Runs with a limit on descriptors that permits a number. Only while the process has one thread:
/// others could exceed the limit meanwhile.
pub fn within_limit<R>(fd: i32, run: impl FnOnce() -> R) -> R {
    let limit = getrlimit(Resource::Nofile);
    let is_above = limit.current.is_some_and(|current| current <= fd as u64);
    if is_above {
        // If not possible, the call that needs it fails.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(fd as u64 + 1), ..limit });
    }
    let result = run();
    if is_above {
        let _ = setrlimit(Resource::Nofile, limit);
    }
    result
}

/// Has the kernel put something at a number: within the limit on descriptors, or else as
/// [`within_limit`] does. `put` returns the kernel's answer.
pub fn with_number(fd: i32, put: impl Fn() -> i64) -> i64 {
    match put() {
        result if result == -i64::from(libc::EBADF) => within_limit(fd, put),
        result => result,
    }
}

/// Offset in the lock file at which the processes' locks begin: the byte of number zero.
const LOCKS_AT: i64 = 1 << 40;
/// Lock directories of an image. The first process of each pays for making it.
const LOCK_DIRECTORIES: u32 = 32;
/// Beginning of their names.
const LOCK_DIRECTORY: &[u8] = b"lock-";
/// How they are opened.
const LOCK_DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Wall-clock time for timestamps: that of the last timer tick, which needs no read of a hardware
/// clock.
pub fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

/// Time for measurements, in ns: reads a hardware clock.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Returns after every processor has passed a memory barrier. What a thread stored before it loaded
/// an older value of a word that the caller stored is visible then.
#[cfg(feature = "std")]
pub fn pass_barrier_everywhere() {
    /// `MEMBARRIER_CMD_GLOBAL`.
    const GLOBAL: u64 = 1;
    // SAFETY: the call changes nothing.
    let done = unsafe { system_call(libc::SYS_membarrier, [GLOBAL, 0, 0]) };
    if done != 0 {
        // Not on this kernel, or filtered. No processor keeps a store to itself for so long.
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// A system call without a binding, or that must bypass one.
///
/// # Safety
/// As for the call itself: its arguments must be valid, and it must not change memory that Rust
/// assumes unchanged.
unsafe fn system_call(number: i64, [a, b, c]: [u64; 3]) -> i64 {
    let result: i64;
    // SAFETY: the clobbered registers are those of the system call; the caller guarantees the rest.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Applies an madvise that preserves content; returns whether it succeeded.
fn advise(address: *mut u8, length: usize, advice: i32) -> bool {
    // SAFETY: madvise with an advice that changes no content (callers pass no other) does not touch
    // Rust's memory; the kernel rejects unmapped ranges.
    unsafe { system_call(libc::SYS_madvise, [address as u64, length as u64, advice as u64]) == 0 }
}

/// Populates mapped memory for stores.
pub(crate) fn populate(address: *mut u8, length: usize) -> bool {
    advise(address, length, libc::MADV_POPULATE_WRITE)
}

/// Makes huge pages of mapped memory, whatever they cost, and fills all of it. Address and length
/// are multiples of 2 MiB. Returns whether it succeeded.
pub fn collapse(address: *mut u8, length: usize) -> bool {
    // The kernel makes a huge page only where a page is present.
    let mut pages = (0..length).step_by(HUGE_PAGE_BYTES as usize);
    pages.all(|at| populate(address.wrapping_add(at), 4096)) && advise(address, length, pmem::MADV_COLLAPSE)
}

/// A lock operation on the bytes of a range of numbers; returns what the kernel wrote back, or the
/// error.
fn lock_numbers(description: i32, command: i32, kind: i32, (first, count): (i64, i64)) -> Result<libc::flock, Errno> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: LOCKS_AT + first,
        l_len: count,
        l_pid: 0,
    };
    // SAFETY: a complete lock description, which the call may overwrite.
    let result = unsafe { system_call(libc::SYS_fcntl, [description as u64, command as u64, &raw mut lock as u64]) };
    if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(lock) }
}

/// Whether any process holds a liveness lock below the directory of lock directories. `true` if the
/// kernel cannot know.
#[cfg(feature = "std")]
pub fn is_any_liveness_held(meeting: BorrowedFd<'_>) -> bool {
    const TO_THE_END: i64 = 0;
    let Ok(mut entries) = reopen_directory(meeting).and_then(rustix::fs::Dir::new) else { return true };
    entries.any(|entry| match entry {
        Ok(entry) if is_lock_directory(entry.file_name().to_bytes()) => {
            let opened = rustix::fs::openat(meeting, entry.file_name(), LOCK_DIRECTORY_FLAGS, Mode::empty());
            is_any_held(opened, (0, TO_THE_END))
        }
        entry => entry.is_err(),
    })
}

/// Whether an entry of the directory above has a name that [`open_lock_directory`] gives.
#[cfg(feature = "std")]
fn is_lock_directory(name: &[u8]) -> bool {
    let digits = name.strip_prefix(LOCK_DIRECTORY).unwrap_or_default();
    digits.len() == 2 && digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a lock in a range of numbers is held in a lock directory, which may not exist.
fn is_any_held(directory: Result<OwnedFd, Errno>, numbers: (i64, i64)) -> bool {
    match directory {
        Ok(directory) => lock_numbers(directory.as_raw_fd(), libc::F_OFD_GETLK, libc::F_WRLCK, numbers)
            .map_or(true, |found| found.l_type != libc::F_UNLCK as libc::c_short),
        Err(errno) => errno != Errno::NOENT,
    }
}

/// Opens the lock directory of a number, relative to the directory above it. `create`: creates it
/// if necessary.
fn lock_directory(meeting: BorrowedFd<'_>, number: u32, create: bool) -> Result<OwnedFd, Errno> {
    open_lock_directory(meeting, b"", number, create)
}

/// `lock_directory` relative to any lock directory.
fn other_lock_directory(description: BorrowedFd<'_>, number: u32, create: bool) -> Result<OwnedFd, Errno> {
    open_lock_directory(description, b"../", number, create)
}

fn open_lock_directory(base: BorrowedFd<'_>, up: &[u8], number: u32, create: bool) -> Result<OwnedFd, Errno> {
    let mut name = [0u8; 16];
    let index = number % LOCK_DIRECTORIES;
    let digits = [index / 16, index % 16].map(|digit| b"0123456789abcdef"[digit as usize]);
    let mut length = 0;
    for part in [up, LOCK_DIRECTORY, &digits] {
        name[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    }
    let name = CStr::from_bytes_until_nul(&name).map_err(|_| Errno::INVAL)?;
    match rustix::fs::openat(base, name, LOCK_DIRECTORY_FLAGS, Mode::empty()) {
        Err(Errno::NOENT) if create => {}
        opened => return opened,
    }
    match rustix::fs::mkdirat(base, name, Mode::from_raw_mode(0o755)) {
        // Not by the mode of mkdir, which the umask restricts: programs of other users read it.
        Ok(()) => rustix::fs::chmodat(base, name, Mode::from_raw_mode(0o755), AtFlags::empty())?,
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    rustix::fs::openat(base, name, LOCK_DIRECTORY_FLAGS, Mode::empty())
}

/// A description for a process that has no number yet, in the directory of lock directories.
pub fn open_description(meeting: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    lock_directory(meeting, 0, true)
}

/// A description for the process that is to have a number, from one of another process.
pub(crate) fn open_description_for(description: BorrowedFd<'_>, number: u32) -> Result<OwnedFd, Errno> {
    other_lock_directory(description, number, true)
}

/// Opens a new description of a descriptor's directory.
pub fn reopen_directory(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(directory, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The function of [`set_signal_check`]; null: none.
static SIGNAL_CHECK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// For a front that runs inside a program and lets signal handlers run only after its calls:
/// `check` returns whether one waits for the end of the calling thread's call.
pub fn set_signal_check(check: fn() -> bool) {
    SIGNAL_CHECK.store(check as *mut (), Relaxed);
}

fn is_signal_pending() -> bool {
    let check = SIGNAL_CHECK.load(Relaxed);
    // SAFETY: only `set_signal_check` stores a pointer, that of a function of this type.
    !check.is_null() && unsafe { core::mem::transmute::<*mut (), fn() -> bool>(check)() }
}

impl Platform for LinuxPlatform {
    fn now_ns(&self) -> i64 {
        now_ns()
    }

    fn wait(&self, word: &AtomicU32, expected: u32, timeout_ms: u32) {
        self.wait_interruptibly(word, expected, timeout_ms);
    }

    fn wait_interruptibly(&self, word: &AtomicU32, expected: u32, timeout_ms: u32) -> bool {
        let timeout = Timespec { tv_sec: (timeout_ms / 1000) as i64, tv_nsec: (timeout_ms % 1000) as i64 * 1_000_000 };
        // Not a private futex: other processes wait on the same page. Every result means: check
        // again.
        futex::wait(word, futex::Flags::empty(), expected, Some(&timeout)) == Err(Errno::INTR) || is_signal_pending()
    }

    fn wake(&self, word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    fn sleeping(&self) -> &'static Sleeping {
        &SLEEPING
    }

    fn process_id(&self) -> u32 {
        rustix::process::getpid().as_raw_nonzero().get() as u32
    }

    fn thread_id(&self) -> u32 {
        // Not cached: after a fork a cached value would be the parent's.
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    fn process_of(&self, thread_id: u32) -> u32 {
        process_of(thread_id).unwrap_or(thread_id)
    }

    fn is_thread_alive(&self, process_id: u32, thread_id: u32) -> bool {
        // SAFETY: signal 0 is not delivered; the call changes nothing.
        let result = unsafe { system_call(libc::SYS_tgkill, [process_id as u64, thread_id as u64, 0]) };
        if result == -i64::from(libc::ESRCH) {
            return false;
        }
        // The first thread of a process stays as a zombie until the others have ended. If a thread
        // asks about itself, no file of /proc is read, which takes microseconds.
        thread_id != process_id
            || thread_id == self.thread_id()
            || thread_state(thread_id).is_none_or(|state| !matches!(state, b'Z' | b'X' | b'x'))
    }

    fn hold_liveness(&self, description: i32, number: u32) -> bool {
        lock_numbers(description, libc::F_OFD_SETLK, libc::F_RDLCK, (number.into(), 1)).is_ok()
    }

    fn is_liveness_held(&self, description: i32, number: u32) -> bool {
        // SAFETY: the caller's descriptor is open for the duration of this call.
        let own = unsafe { BorrowedFd::borrow_raw(child_numbers::own(description)) };
        // After the image was closed and its directories removed, nothing can be known.
        is_any_held(other_lock_directory(own, number, false), (number.into(), 1))
            || rustix::fs::fstat(own).map_or(true, |stat| stat.st_nlink == 0)
    }

    fn take_liveness(&self, description: i32, number: u32) -> Option<i32> {
        // SAFETY: the caller's descriptor is open for the duration of this call.
        let own = unsafe { BorrowedFd::borrow_raw(child_numbers::own(description)) };
        let fresh = other_lock_directory(own, number, true).ok()?;
        self.hold_liveness(fresh.as_raw_fd(), number).then(|| fresh.into_raw_fd())
    }

    fn replace_description(&self, description: i32, by: i32) {
        // SAFETY: `by` comes from `take_liveness` and is given up here; the other one is open.
        let (by, old) = unsafe { (OwnedFd::from_raw_fd(by), BorrowedFd::borrow_raw(description)) };
        let flags = rustix::io::fcntl_getfd(old).unwrap_or(rustix::io::FdFlags::CLOEXEC);
        let flags = if flags.contains(rustix::io::FdFlags::CLOEXEC) { DupFlags::CLOEXEC } else { DupFlags::empty() };
        // SAFETY: the number stays the caller's; only the description behind it is closed.
        let mut place = core::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(description) });
        let replaced = within_limit(description, || rustix::io::dup3(&by, &mut place, flags));
        if replaced.is_err() {
            // It holds the lock where it is.
            let _ = by.into_raw_fd();
        }
    }

    fn close_description(&self, description: i32) {
        // SAFETY: it comes from `take_liveness` and is given up here.
        drop(unsafe { OwnedFd::from_raw_fd(description) });
    }

    fn report_wait(&self, owner: Option<Owner>, reason: &str) {
        let mut text = Line::<256> { bytes: [0; 256], length: 0 };
        // A cut line is still written.
        let _ = write_wait(&mut text, owner, reason);
        // SAFETY: the descriptor is not closed by this function.
        let stderr = unsafe { BorrowedFd::borrow_raw(2) };
        if takes_messages(stderr) {
            let _ = rustix::io::write(stderr, &text.bytes[..text.length]);
        }
    }

    fn inode_ended(&self, by: Reporter<'_>, number: u64, generation: u32, kind: Option<FileKind>) {
        Watches::inode_ended(by, FileId { number, generation }, kind);
    }

    fn upper_lock_reason(&self, offset: u64) -> Option<&'static str> {
        // The first word of the tables.
        (offset == WATCHES_AT).then_some("is changing watches")
    }

    fn random(&self) -> u64 {
        let mut bytes = [0u8; 8];
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(8) => u64::from_ne_bytes(bytes),
            // Without the call (in a strict sandbox), a number that at least differs between runs.
            _ => (now_ns() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (&raw const bytes as u64),
        }
    }

    fn provide(&self, address: *mut u8, length: usize) -> bool {
        const POPULATE: u64 = libc::MADV_POPULATE_WRITE as u64;
        if IS_FILTERED.load(Relaxed) {
            return true;
        }
        loop {
            // SAFETY: populating changes no bytes; the kernel rejects unmapped ranges.
            let result = unsafe { system_call(libc::SYS_madvise, [address as u64, length as u64, POPULATE]) };
            match -result as i32 {
                libc::EINTR | libc::EAGAIN => continue,
                // Blocks with memory errors are found and left out one by one.
                libc::EFAULT | libc::EHWPOISON => return pmem::expects_memory_errors(),
                libc::ENOMEM | libc::ENOSPC | libc::EDQUOT => return false,
                // A kernel before 5.14.
                libc::EINVAL => return provide_each(address, length),
                // A filter.
                _ => return true,
            }
        }
    }

    fn provide_huge(&self, address: *mut u8, length: usize) -> bool {
        if IS_FILTERED.load(Relaxed) {
            return false;
        }
        // The last one first: its pages are touched least.
        let mut pages = (0..length).step_by(HUGE_PAGE_BYTES as usize).rev();
        pages.all(|at| HUGE_PAGES.provide(address.wrapping_add(at)))
    }
}

/// Has the kernel make each page of a range writable, by an atomic addition of zero that can fail.
/// Returns whether all of them are: an ordinary store to one that cannot be would raise SIGBUS.
#[cold]
fn provide_each(address: *mut u8, length: usize) -> bool {
    use futex::{Flags, WakeOp, WakeOpCmp};
    let page = |at: usize| address.wrapping_add(at).cast::<AtomicU32>();
    (0..length).step_by(4096).map(page).all(|word| {
        // SAFETY: callers pass mapped pages, aligned; no thread waits for the word, and its value
        // does not change.
        let added = unsafe {
            let word = &*word;
            futex::wake_op(word, Flags::PRIVATE, 0, 0, word, WakeOp::Add, WakeOpCmp::Eq, 0, 0)
        };
        added != Err(Errno::FAULT)
    })
}

/// A short text in a buffer on the stack.
struct Line<const BYTES: usize> {
    bytes: [u8; BYTES],
    length: usize,
}

impl<const BYTES: usize> Write for Line<BYTES> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        // The last byte stays zero as terminator.
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

/// Whether a message may be written to the number of standard error, now and without a wait. A
/// program that started without a standard error may have a file of its own there: one that it
/// also reads is no log.
fn takes_messages(stderr: BorrowedFd<'_>) -> bool {
    let (Ok(status), Ok(flags)) = (rustix::fs::fstat(stderr), rustix::fs::fcntl_getfl(stderr)) else { return false };
    let is_own_file = match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => flags & OFlags::RWMODE != OFlags::WRONLY,
        FileType::BlockDevice | FileType::Directory => true,
        _ => false,
    };
    // Neither a full pipe nor one without a reader may end in a second wait or a signal.
    let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
    !is_own_file
        && rustix::event::poll(&mut polled, Some(&Timespec::default())) == Ok(1)
        && polled[0].revents() == PollFlags::OUT
}

/// Writes the line of [`Platform::report_wait`].
fn write_wait(text: &mut impl Write, owner: Option<Owner>, reason: &str) -> core::fmt::Result {
    text.write_str("directfs: waiting for ")?;
    let mut state = None;
    match owner {
        None => text.write_str("another thread")?,
        Some(owner) => {
            let mut stat = [0u8; 512];
            let length = match is_neighbour(owner.thread) {
                true => read_proc(format_args!("/proc/{}/stat", owner.thread), &mut stat).unwrap_or(0),
                false => 0,
            };
            state = parse_state(&stat[..length]);
            match parse_command(&stat[..length]) {
                Some(command) => {
                    write!(text, "process {} (", owner.thread)?;
                    // Any process chooses its name: no byte of it may control a terminal.
                    for &byte in command {
                        text.write_char(if (b' '..=b'~').contains(&byte) { byte.into() } else { '?' })?;
                    }
                    text.write_char(')')?;
                }
                // In another PID namespace, or of another user.
                None => write!(text, "a process that is not visible here (process number {})", owner.process)?,
            }
        }
    }
    write!(text, ", which {reason}")?;
    text.write_str(match state {
        Some(b'T') => " and is stopped; continue it (kill -CONT) or end it\n",
        Some(b't') => " and is stopped by a debugger; continue it or end it\n",
        _ => " and makes no progress; if it is stopped or frozen, continue it or end it\n",
    })
}

/// Whether a thread of this PID namespace uses an image. The thread ids of other namespaces may be
/// those of any process here.
fn is_neighbour(thread_id: u32) -> bool {
    let Some(file) = open_proc(format_args!("/proc/{thread_id}/maps")) else { return false };
    let mut text = [0u8; 4096];
    while let Ok(length @ 1..) = rustix::io::read(&file, &mut text) {
        // The kernel returns whole lines.
        if names_region(&text[..length]) {
            return true;
        }
    }
    false
}

/// Whether lines of /proc/PID/maps name a region: a file in memory, or memory of a private image.
fn names_region(lines: &[u8]) -> bool {
    let has = |name: &[u8]| lines.windows(name.len()).any(|part| part == name);
    has(b"/directfs-") || has(b"/memfd:directfs-")
}

/// Opens a file of /proc.
fn open_proc(path: core::fmt::Arguments<'_>) -> Option<OwnedFd> {
    let mut text = Line::<64> { bytes: [0; 64], length: 0 };
    text.write_fmt(path).ok()?;
    let path = CStr::from_bytes_until_nul(&text.bytes).ok()?;
    rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Reads the beginning of a file of /proc.
fn read_proc(path: core::fmt::Arguments<'_>, into: &mut [u8]) -> Option<usize> {
    rustix::io::read(open_proc(path)?, into).ok()
}

/// The command of a line of /proc/PID/stat.
fn parse_command(text: &[u8]) -> Option<&[u8]> {
    let begin = text.iter().position(|&byte| byte == b'(')? + 1;
    let end = text.iter().rposition(|&byte| byte == b')')?;
    text.get(begin..end)
}

/// The state of a thread of this process, if /proc belongs to this pid namespace.
fn thread_state(thread_id: u32) -> Option<u8> {
    let mut text = [0u8; 512];
    let length = read_proc(format_args!("/proc/self/task/{thread_id}/stat"), &mut text)?;
    parse_state(&text[..length])
}

/// The PID namespace of this process: an inode number; zero: unknown.
pub fn pid_namespace() -> u64 {
    rustix::fs::statat(CWD, c"/proc/self/ns/pid", AtFlags::empty()).map_or(0, |found| found.st_ino)
}

/// Whether a process is stopped, or frozen by its control group (version 2).
pub fn is_stopped(process_id: u32) -> bool {
    let mut text = [0u8; 512];
    let length = read_proc(format_args!("/proc/{process_id}/stat"), &mut text).unwrap_or(0);
    if matches!(parse_state(&text[..length]), Some(b'T' | b't')) {
        return true;
    }
    let length = read_proc(format_args!("/proc/{process_id}/wchan"), &mut text).unwrap_or(0);
    // The second is what the first may be inlined into.
    [&b"do_freezer_trap"[..], b"get_signal"].iter().any(|name| text[..length].starts_with(name))
}

/// The process of a thread, by /proc/THREAD/status.
fn process_of(thread_id: u32) -> Option<u32> {
    let mut text = [0u8; 512];
    let length = read_proc(format_args!("/proc/{thread_id}/status"), &mut text)?;
    let line = text[..length].split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"))?;
    core::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// The field after the command, which may contain any bytes, including spaces and parentheses.
fn parse_state(text: &[u8]) -> Option<u8> {
    let command_end = text.iter().rposition(|&byte| byte == b')')?;
    text.get(command_end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::{Acquire, Release};
    use rustix::fd::AsFd;

    #[test]
    fn a_region_is_known_by_its_file_or_by_the_memory_of_a_private_image() {
        let named =
            ["7f0-7f1 rw-s 0 00:01 9 /dev/shm/directfs-0123/region", "7f0-7f1 rw-s 0 00:01 9 /memfd:directfs-dram"];
        assert!(named.iter().all(|line| names_region(line.as_bytes())));
        assert!(!names_region(b"7f0-7f1 r-xp 0 fe:00 9 /var/cache/directfs/preload-0123.so"));
    }

    #[test]
    fn a_state_is_parsed_behind_an_odd_command() {
        assert_eq!(parse_state(b"77 (a) R (b c) S 1 2 3"), Some(b'S'));
        assert_eq!(parse_state(b"77 (cut"), None);
        assert_eq!(parse_state(b"77 (cut)"), None);
    }

    /// Tests that map such a file take turns: this process counts as a neighbour meanwhile.
    static MAPS: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn a_wait_names_a_visible_process_and_what_to_do() {
        let _alone = MAPS.lock().unwrap();
        let report = |owner| {
            let mut text = Line::<256> { bytes: [0; 256], length: 0 };
            write_wait(&mut text, owner, "is moving a directory").unwrap();
            String::from_utf8(text.bytes[..text.length].to_vec()).unwrap()
        };
        let directory = tempfile::Builder::new().prefix("directfs-").tempdir().unwrap();
        let path = directory.path().join("dram");
        std::fs::write(&path, [0; 4096]).unwrap();
        let own = Owner { process: 7, thread: PLATFORM.thread_id() };
        assert_eq!(
            report(Some(own)),
            "directfs: waiting for a process that is not visible here (process number 7), which is moving a \
             directory and makes no progress; if it is stopped or frozen, continue it or end it\n"
        );
        let mapping = pmem::Mapping::open(&path, pmem::Access::ReadWrite).unwrap();
        let text = report(Some(own));
        drop(mapping);
        assert!(text.starts_with(&format!("directfs: waiting for process {} (", own.thread)), "{text}");
        assert!(report(None).starts_with("directfs: waiting for another thread, which is moving a directory"));
    }

    #[test]
    fn a_name_of_a_process_cannot_control_a_terminal() {
        let _alone = MAPS.lock().unwrap();
        assert_eq!(parse_command(b"77 (a) R (b\x1b) S 1 2 3"), Some(&b"a) R (b\x1b"[..]));
        let directory = tempfile::Builder::new().prefix("directfs-").tempdir().unwrap();
        let path = directory.path().join("dram");
        std::fs::write(&path, [0; 4096]).unwrap();
        let _mapping = pmem::Mapping::open(&path, pmem::Access::ReadWrite).unwrap();
        let text = std::thread::spawn(|| {
            rustix::thread::set_name(c"a\x1b[2J\xff\n").unwrap();
            let mut text = Line::<256> { bytes: [0; 256], length: 0 };
            let own = Owner { process: 7, thread: PLATFORM.thread_id() };
            write_wait(&mut text, Some(own), "is moving a directory").unwrap();
            String::from_utf8(text.bytes[..text.length].to_vec()).unwrap()
        });
        let text = text.join().unwrap();
        assert!(text.contains(" (a?[2J??), which is moving"), "{text}");
    }

    #[test]
    fn messages_go_to_logs_and_never_into_a_file_that_the_program_reads() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = |read| std::fs::File::options().read(read).write(true).open(file.path()).unwrap();
        assert!(takes_messages(open(false).as_fd()));
        assert!(!takes_messages(open(true).as_fd()), "as a database opens its file");
        assert!(!takes_messages(std::fs::File::open(file.path()).unwrap().as_fd()));
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(takes_messages(writer.as_fd()));
        drop(reader);
        assert!(!takes_messages(writer.as_fd()), "a write would be a signal");
    }

    #[test]
    fn this_thread_lives_and_unknown_ones_do_not() {
        let (process, thread) = (PLATFORM.process_id(), PLATFORM.thread_id());
        assert!(PLATFORM.is_thread_alive(process, thread) && PLATFORM.is_thread_alive(process, process));
        assert!(!PLATFORM.is_thread_alive(process, 0x3fff_fff0));
        assert!(!PLATFORM.is_thread_alive(0x3fff_fff0, thread));
    }

    #[test]
    fn an_ended_thread_is_dead() {
        let thread = std::thread::spawn(|| PLATFORM.thread_id()).join().unwrap();
        // After join the kernel may take a moment to remove the thread.
        let ended = (0..60_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            !PLATFORM.is_thread_alive(PLATFORM.process_id(), thread)
        });
        assert!(ended);
    }

    #[test]
    fn a_liveness_lock_ends_with_the_last_descriptor_of_its_description() {
        let directory = tempfile::tempdir().unwrap();
        let meeting = std::fs::File::open(directory.path()).unwrap();
        let own = lock_directory(meeting.as_fd(), 7, true).unwrap();
        let other = open_description(meeting.as_fd()).unwrap();
        assert!(PLATFORM.hold_liveness(own.as_raw_fd(), 7));
        let is_held = |number| PLATFORM.is_liveness_held(other.as_raw_fd(), number);
        assert!(is_held(7) && !is_held(6) && !is_held(8));
        // Others may put what they like into a directory that programs share.
        for name in ["lock-", "lock-zz", "lock-0g0", "other"] {
            std::os::unix::fs::symlink("nowhere", directory.path().join(name)).unwrap();
        }
        assert!(is_any_liveness_held(meeting.as_fd()));
        let duplicate = own.try_clone().unwrap();
        drop(own);
        assert!(is_held(7));
        drop(duplicate);
        assert!(!is_held(7) && !is_any_liveness_held(meeting.as_fd()));
    }

    #[test]
    fn a_number_is_held_before_its_description_takes_the_place_of_another() {
        let directory = tempfile::tempdir().unwrap();
        let meeting = std::fs::File::open(directory.path()).unwrap();
        let own = lock_directory(meeting.as_fd(), 7, true).unwrap();
        let other = open_description(meeting.as_fd()).unwrap();
        let is_held = |number| PLATFORM.is_liveness_held(other.as_raw_fd(), number);
        assert!(PLATFORM.hold_liveness(own.as_raw_fd(), 7));
        let dropped = PLATFORM.take_liveness(own.as_raw_fd(), 9).unwrap();
        let fresh = PLATFORM.take_liveness(own.as_raw_fd(), 8).unwrap();
        assert!(is_held(7) && is_held(8) && is_held(9));
        PLATFORM.close_description(dropped);
        assert!(is_held(7) && is_held(8) && !is_held(9));
        PLATFORM.replace_description(own.as_raw_fd(), fresh);
        assert!(is_held(8) && !is_held(7), "the old description is closed");
        drop(own);
        assert!(!is_held(8), "and the new one is at its descriptor alone");
    }

    #[test]
    fn pages_that_the_file_cannot_have_are_not_provided_one_by_one() {
        let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = scratch.path().join("pages");
        let mapping = pmem::Mapping::create(&path, 4 * 4096, 0o600).unwrap();
        assert!(provide_each(mapping.address(), 4 * 4096));
        let allocated = |file: &std::fs::File| std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        assert_eq!(allocated(&file), 4 * 8, "the holes are filled");
        file.set_len(2 * 4096).unwrap();
        assert!(provide_each(mapping.address(), 2 * 4096));
        assert!(!provide_each(mapping.address(), 4 * 4096));
    }

    #[test]
    fn a_wait_ends_by_wake_or_time() {
        let word = AtomicU32::new(0);
        PLATFORM.wait(&word, 1, 10_000); // another value: returns at once
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
