//! A profile of the calls that the image serves: how often they are made, how long they take, and
//! with which paths. Only for programs that are started with a file for it.
//!
//! Invariants
//! - The profile lies in a file that all programs of a run map. Its words are atomics, of which
//!   each only grows while the programs run.
//! - The length of a path is stored after its bytes. Until then they are not read.

use crate::abi::entry::Frame;
use crate::abi::{sys, user_memory};
use crate::routes::{NUMBERS, Route};
use core::arch::x86_64::_rdtsc;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU64};
use posix::Errno;

/// Paths that have a record.
pub const PATHS: usize = 4096;
/// Bytes of a path; longer ones have no record.
pub const PATH_BYTES: usize = 224;
/// Records in which a path is searched.
const PROBES: usize = 16;

/// Calls of one kind.
#[repr(C)]
pub struct Total {
    /// Calls.
    pub count: AtomicU64,
    /// Ticks of the processor's time stamp counter in them, waits included.
    pub ticks: AtomicU64,
}

/// Calls with one path.
#[repr(C)]
pub struct PathRecord {
    /// Hash of the path; zero: the record is free.
    pub hash: AtomicU64,
    /// Bytes of the path; zero: not written yet.
    pub length: AtomicU64,
    /// All calls with it.
    pub total: Total,
    /// The path: from the root, if it leads into the image from there.
    pub bytes: [AtomicU64; PATH_BYTES / 8],
}

/// The content of the file.
#[repr(C)]
pub struct Profile {
    /// Programs that were started.
    pub programs: AtomicU64,
    /// Calls with a path that has no record.
    pub without_record: AtomicU64,
    /// By number.
    pub calls: [Total; NUMBERS],
    /// A hash table.
    pub paths: [PathRecord; PATHS],
}

static PROFILE: AtomicPtr<Profile> = AtomicPtr::new(null_mut());

/// Starts to profile into a file, whose path ends with a zero byte. Without that file, for example
/// in a program of another user, the program runs without a profile.
pub fn open(path: &[u8]) {
    let Ok(file) = sys::open(path, libc::O_RDWR) else { return };
    if file.status().is_ok_and(|status| status.st_size as usize == size_of::<Profile>())
        && let Ok(start) = file.map(size_of::<Profile>(), libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)
    {
        PROFILE.store(start.cast(), Relaxed);
        if let Some(profile) = get() {
            profile.programs.fetch_add(1, Relaxed);
        }
    }
}

/// The profile of this program.
#[inline]
pub fn get() -> Option<&'static Profile> {
    // SAFETY: null, or a mapping of the whole file that is never removed; it consists of atomics.
    unsafe { PROFILE.load(Relaxed).as_ref() }
}

impl Profile {
    /// Records a call that the image served. `directory` writes the path of the directory from
    /// which a relative path starts, which a descriptor names or is the working directory, and
    /// returns its length, unless it lies outside of the image. It is asked after the call: calls
    /// that change the working directory have no record by path.
    #[cold]
    #[inline(never)]
    pub fn record(
        &self,
        frame: &Frame,
        ticks: u64,
        directory: impl FnOnce(Option<u32>, &mut [u8; PATH_BYTES]) -> Option<usize>,
    ) {
        let number = frame.number as u32 as usize;
        let Some(total) = self.calls.get(number) else { return };
        total.add(ticks);
        let Some((from, argument)) = path_argument(crate::call_table::route(number as u64)) else { return };
        let mut bytes = [0; PATH_BYTES];
        let arguments = frame.arguments();
        let record = match user_memory::copy_string(arguments[argument], &mut bytes) {
            // The call is about a descriptor.
            Ok(0) | Err(Errno(libc::EFAULT)) => return,
            Ok(length) if bytes[0] == b'/' => self.path(&bytes, length),
            Ok(length) => {
                let fd = from.map(|from| arguments[from] as i32).filter(|fd| *fd != libc::AT_FDCWD);
                let mut whole = [0; PATH_BYTES];
                let start = directory(fd.map(|fd| fd as u32), &mut whole);
                join(&mut whole, start, &bytes[..length]).and_then(|length| self.path(&whole, length))
            }
            Err(_) => None,
        };
        match record {
            Some(record) => record.total.add(ticks),
            None => drop(self.without_record.fetch_add(1, Relaxed)),
        }
    }

    /// The record of a path; `None`: there is no room.
    fn path(&self, bytes: &[u8; PATH_BYTES], length: usize) -> Option<&PathRecord> {
        let mix = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        let hash = bytes[..length].iter().fold(0xCBF2_9CE4_8422_2325, mix) | 1;
        for probe in 0..PROBES {
            let record = &self.paths[(hash as usize / 2 + probe) % PATHS];
            match record.hash.compare_exchange(0, hash, Relaxed, Relaxed) {
                Ok(_) => {
                    for (word, bytes) in record.bytes.iter().zip(bytes.as_chunks().0) {
                        word.store(u64::from_ne_bytes(*bytes), Relaxed);
                    }
                    record.length.store(length as u64, Release);
                    return Some(record);
                }
                Err(found) if found == hash => return Some(record),
                Err(_) => {}
            }
        }
        None
    }
}

impl Total {
    fn add(&self, ticks: u64) {
        self.count.fetch_add(1, Relaxed);
        self.ticks.fetch_add(ticks, Relaxed);
    }
}

impl PathRecord {
    /// The path, if it is written: its length, and words that hold it.
    pub fn path(&self) -> Option<(usize, [u64; PATH_BYTES / 8])> {
        let length = self.length.load(Acquire) as usize;
        (1..=PATH_BYTES).contains(&length).then(|| (length, core::array::from_fn(|at| self.bytes[at].load(Relaxed))))
    }
}

/// The processor's time stamp counter.
pub fn now() -> u64 {
    // SAFETY: x86-64 has the instruction, and it touches no memory.
    unsafe { _rdtsc() }
}

/// Adds a path to that of a directory; without one it stays as it is. `None`: it is too long. No
/// component of the directory is a symbolic link, so each `..` at the start takes one away.
fn join(whole: &mut [u8; PATH_BYTES], directory: Option<usize>, mut path: &[u8]) -> Option<usize> {
    let mut length = directory.unwrap_or(0);
    while directory.is_some() {
        let first = path.split(|&byte| byte == b'/').next().unwrap_or(b"");
        match first {
            b"." => {}
            b".." => length = whole[..length].iter().rposition(|&byte| byte == b'/').unwrap_or(0),
            _ => break,
        }
        path = path.get(first.len() + 1..).unwrap_or(b"");
    }
    if directory.is_some() && !path.is_empty() {
        *whole.get_mut(length)? = b'/';
        length += 1;
    }
    whole.get_mut(length..length + path.len())?.copy_from_slice(path);
    Some(length + path.len())
}

/// The argument with a call's (first) path, behind that with the directory in which it starts.
fn path_argument(route: Route) -> Option<(Option<usize>, usize)> {
    match route {
        Route::Path | Route::PathPath | Route::PathNumbers => Some((None, 0)),
        Route::PathSecond => Some((None, 1)),
        Route::At | Route::AtAt | Route::AtNumbers => Some((Some(0), 1)),
        Route::AtSecond => Some((Some(1), 2)),
        _ => None,
    }
}
