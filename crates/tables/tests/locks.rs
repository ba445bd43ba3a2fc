//! Locks compared with the kernel's: the same random calls by two processes on this file system and
//! on a kernel file, with the same answers.

#[path = "../../posix/tests/common/mod.rs"]
mod common;

use common::{ROOT, Scratch, Session};
use posix::{Errno, Result};
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use tables::process::{Fork, LockKind, LockRange, Locked, Process, Processes};

/// A call, as it is sent to the other process: operation, descriptor, kind, start, length.
type Call = [i64; 5];
/// Result or errno, then the output of F_GETLK.
type Answer = [i64; 5];

const FLOCK: i64 = 0;
const SET: i64 = 1;
const SET_OF_DESCRIPTION: i64 = 2;
const GET: i64 = 3;
const GET_OF_DESCRIPTION: i64 = 4;
const CLOSE: i64 = 5;
const OPEN: i64 = 6;
const DUPLICATE: i64 = 7;

/// First of the descriptor numbers that calls use.
const FIRST: i64 = 200;
const COUNT: i64 = 4;
const NAMES: [&str; 2] = ["one", "two"];

fn fds(call: &Call) -> (u32, u32) {
    (call[1] as u32, call[4] as u32)
}

/// How a descriptor is opened, by the number in the call.
fn opening(call: &Call) -> (&'static str, i32) {
    let flags = [libc::O_RDWR, libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR][call[2] as usize & 3];
    (NAMES[call[3] as usize & 1], flags)
}

/// The kernel's answer.
fn by_kernel(directory: &std::path::Path, call: &Call) -> Answer {
    let (fd, to) = (fds(call).0 as i32, fds(call).1 as i32);
    let code =
        |result: i32| if result < 0 { -std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 } as i64;
    let kind = [libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK][call[2] as usize % 3] as libc::c_short;
    let mut range = libc::flock { l_type: kind, l_whence: 0, l_start: call[3], l_len: call[4], l_pid: 0 };
    // SAFETY: each call gets numbers, or a complete lock description.
    unsafe {
        match call[0] {
            FLOCK => {
                let how = [libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN][call[2] as usize % 3];
                [code(libc::flock(fd, how | libc::LOCK_NB)), 0, 0, 0, 0]
            }
            SET => [code(libc::fcntl(fd, libc::F_SETLK, &raw const range)), 0, 0, 0, 0],
            SET_OF_DESCRIPTION => [code(libc::fcntl(fd, libc::F_OFD_SETLK, &raw const range)), 0, 0, 0, 0],
            GET | GET_OF_DESCRIPTION => {
                let what = if call[0] == GET { libc::F_GETLK } else { libc::F_OFD_GETLK };
                let result = code(libc::fcntl(fd, what, &raw mut range));
                if result < 0 || range.l_type == libc::F_UNLCK as libc::c_short {
                    return [result, libc::F_UNLCK as i64, 0, 0, 0];
                }
                [0, range.l_type as i64, range.l_start, range.l_len, (range.l_pid == -1) as i64]
            }
            CLOSE => [code(libc::close(fd)), 0, 0, 0, 0],
            DUPLICATE => [code(libc::dup2(fd, to)), 0, 0, 0, 0],
            _ => {
                let (name, flags) = opening(call);
                let path = std::ffi::CString::new(directory.join(name).to_str().unwrap()).unwrap();
                let opened = libc::open(path.as_ptr(), flags | libc::O_CREAT, 0o644);
                assert!(opened >= 0 && libc::dup2(opened, fd) == fd && libc::close(opened) == 0);
                [0; 5]
            }
        }
    }
}

/// This file system's answer.
fn by_us(process: &Process<'_>, session: &Session<'_, '_>, call: &Call) -> Answer {
    let thread = session.caller.thread;
    let (fd, to) = fds(call);
    let kind = [Some(LockKind::Shared), Some(LockKind::Exclusive), None][call[2] as usize % 3];
    let code = |result: Result<Locked>| match result {
        Ok(Locked::Done) => 0,
        Ok(Locked::Blocked(_)) => -libc::EAGAIN as i64,
        Err(Errno(errno)) => -errno as i64,
    };
    let answer = || -> Result<Answer> {
        Ok(match call[0] {
            FLOCK => [code(process.flock(thread, fd, kind)), 0, 0, 0, 0],
            SET | SET_OF_DESCRIPTION => {
                if process.descriptor(fd).is_none() {
                    return Err(Errno::EBADF);
                }
                let range = LockRange::new(0, call[3], call[4])?;
                let of_description = call[0] == SET_OF_DESCRIPTION;
                [code(process.lock_range(thread, fd, range, kind, of_description, false)), 0, 0, 0, 0]
            }
            GET | GET_OF_DESCRIPTION => {
                if process.descriptor(fd).is_none() {
                    return Err(Errno::EBADF);
                }
                let range = LockRange::new(0, call[3], call[4])?;
                match process.conflict(thread, fd, range, kind, call[0] == GET_OF_DESCRIPTION)? {
                    None => [0, libc::F_UNLCK as i64, 0, 0, 0],
                    Some(found) => {
                        let kind = if found.kind == LockKind::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
                        let length = match found.range.last {
                            last if last == i64::MAX as u64 => 0,
                            last => last - found.range.start + 1,
                        };
                        [0, kind as i64, found.range.start as i64, length as i64, (found.pid == -1) as i64]
                    }
                }
            }
            CLOSE => [if process.remove(thread, fd) { 0 } else { -libc::EBADF as i64 }, 0, 0, 0, 0],
            DUPLICATE => {
                process.duplicate(thread, fd, to, false)?;
                [0; 5]
            }
            _ => {
                let (name, flags) = opening(call);
                let file = session.open(name, flags | libc::O_CREAT)?;
                // As on the kernel's side: opened elsewhere, then moved here. The close in between
                // releases the process's locks on the file.
                process.install(thread, 100, &file, false)?;
                process.duplicate(thread, 100, fd, false)?;
                process.remove(thread, 100);
                [0; 5]
            }
        })
    };
    answer().unwrap_or_else(|Errno(errno)| {
        let shown = if matches!(call[0], GET | GET_OF_DESCRIPTION) { libc::F_UNLCK as i64 } else { 0 };
        [-errno as i64, shown, 0, 0, 0]
    })
}

/// Whether both answers are equal; prints the call if not.
fn both(place: &std::path::Path, process: &Process<'_>, session: &Session<'_, '_>, call: &Call) -> bool {
    let (kernel, ours) = (by_kernel(place, call), by_us(process, session, call));
    if kernel != ours {
        eprintln!("{call:?}: the kernel returns {kernel:?}, this file system {ours:?}");
    }
    kernel == ours
}

fn bytes(call: &Call) -> Vec<u8> {
    call.iter().flat_map(|word| word.to_le_bytes()).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as i64) % end
    }

    fn call(&mut self) -> Call {
        let fd = FIRST + self.below(COUNT);
        match self.below(20) {
            0 => [CLOSE, fd, 0, 0, 0],
            1 => [DUPLICATE, fd, 0, 0, FIRST + self.below(COUNT)],
            2 | 3 => [OPEN, fd, self.below(4), self.below(2), 0],
            4..=6 => [FLOCK, fd, self.below(3), 0, 0],
            7..=13 => [SET, fd, self.below(3), self.below(24) - 1, self.below(14) - 3],
            14..=15 => [SET_OF_DESCRIPTION, fd, self.below(3), self.below(24), self.below(12)],
            16..=18 => [GET, fd, self.below(3), self.below(24), self.below(12)],
            _ => [GET_OF_DESCRIPTION, fd, self.below(3), self.below(24), self.below(12)],
        }
    }
}

/// Runs in the other process: makes the calls that it receives.
fn obey(mut orders: std::fs::File, mut answers: std::fs::File, mut make: impl FnMut(&Call) -> bool) -> bool {
    let mut buffer = [0u8; 40];
    while orders.read_exact(&mut buffer).is_ok() {
        let call: Call = std::array::from_fn(|at| i64::from_le_bytes(buffer[at * 8..at * 8 + 8].try_into().unwrap()));
        if answers.write_all(&[make(&call) as u8]).is_err() {
            break;
        }
    }
    true
}

fn pipe() -> (std::fs::File, std::fs::File) {
    let mut ends = [0; 2];
    // SAFETY: space for two descriptors, which become files that own them.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        (std::fs::File::from_raw_fd(ends[0]), std::fs::File::from_raw_fd(ends[1]))
    }
}

fn story(seed: u64, calls: usize) {
    let scratch = Scratch::new();
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    {
        let fs = scratch.image.fs();
        let thread = fs.enter().unwrap();
        let root = thread.root().unwrap();
        let session = Session::new(&thread, root, ROOT);
        let all = Processes::new(fs).unwrap();
        let process = all.register(&thread, 0).unwrap();
        let (mut random, mut sent) = (Random(seed), Vec::new());
        // Both processes share the descriptors from before the fork.
        for fd in FIRST..FIRST + COUNT / 2 {
            assert!(both(place.path(), &process, &session, &[OPEN, fd, 0, fd, 0]));
        }
        let child = process.prepare_fork(&thread, Fork::default()).unwrap();
        let ((orders, mut order), (mut answer, answers)) = (pipe(), pipe());
        // SAFETY: the child uses only its own resources, and exits without running the parent's
        // code.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop((order, answer));
            let thread = fs.enter().unwrap();
            let child = Processes::new(fs).unwrap().adopt(child).unwrap();
            let session = Session::new(&thread, root, ROOT);
            obey(orders, answers, |call| both(place.path(), &child, &session, call));
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        drop((orders, answers));
        for at in 0..calls {
            let call = random.call();
            let other = random.below(2) == 1;
            sent.push((other, call));
            let same = match other {
                false => both(place.path(), &process, &session, &call),
                true => {
                    order.write_all(&bytes(&call)).unwrap();
                    let mut byte = [0u8];
                    answer.read_exact(&mut byte).unwrap();
                    byte[0] == 1
                }
            };
            assert!(same, "seed {seed}, call {at} of {:?}", &sent[sent.len().saturating_sub(12)..]);
        }
        drop(order);
        // SAFETY: a child of this process; descriptors of this test.
        unsafe {
            libc::waitpid(pid, std::ptr::null_mut(), 0);
            (FIRST..FIRST + COUNT).for_each(|fd| _ = libc::close(fd as i32));
        }
        all.reap(&thread).unwrap();
        process.exit(&thread);
        assert_eq!(all.usage().unwrap(), Default::default(), "seed {seed}");
        thread.release(root, 1);
    }
    scratch.image.close().unwrap();
}

#[test]
fn two_processes_lock_as_on_the_kernel_s_own_files() {
    // The kernel's half uses fixed descriptor numbers of this process: one run at a time.
    for seed in 1..=12 {
        story(seed, 3000);
    }
}
