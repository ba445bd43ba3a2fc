//! A profile of the calls that the image serves: how often they are made, how long they take, and
//! with which paths. Only for programs that are started with a file for it.
//!
//! Invariants
//! - The profile lies in a file that all programs of a run map. Its words are atomics, of which
//!   each only grows while the programs run.
//! - The length of a path is stored after its bytes. Until then they are not read.

use crate::abi::entry::{Frame, Next, Verdict};
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
    /// The path, as the program named it.
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
    /// Makes a call, and records it if the image serves it.
    #[cold]
    #[inline(never)]
    pub fn record(&self, frame: &Frame, make: impl FnOnce() -> Verdict) -> Verdict {
        let began = now();
        let verdict = make();
        let ticks = now().saturating_sub(began);
        let number = frame.number as u32 as usize;
        if let Some(total) = self.calls.get(number).filter(|_| verdict.next == Next::Done) {
            total.add(ticks);
            self.record_path(frame, number, ticks);
        }
        verdict
    }

    fn record_path(&self, frame: &Frame, number: usize, ticks: u64) {
        let Some(argument) = path_argument(crate::call_table::route(number as u64)) else { return };
        let mut bytes = [0; PATH_BYTES];
        let record = match user_memory::copy_string(frame.arguments()[argument], &mut bytes) {
            // The call is about a descriptor.
            Ok(0) | Err(Errno(libc::EFAULT)) => return,
            Ok(length) => self.path(&bytes, length),
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

/// The argument with a call's (first) path.
fn path_argument(route: Route) -> Option<usize> {
    match route {
        Route::Path | Route::PathPath | Route::PathNumbers => Some(0),
        Route::At | Route::AtAt | Route::AtNumbers | Route::PathSecond => Some(1),
        Route::AtSecond => Some(2),
        _ => None,
    }
}
