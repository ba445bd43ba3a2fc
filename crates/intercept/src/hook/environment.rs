//! What the launcher tells the library, and what every program that is started from here must be told again.
//!
//! Invariant: written by the constructor alone, before other threads and hooked calls; later only read.

use core::cell::UnsafeCell;
use core::ffi::CStr;

/// The loader's list of libraries.
pub const LD_PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Path of this library; the tables lie beside it.
pub const RUN: &[u8] = b"DIRECTFS_RUN=";
/// File for counters; absent when nobody counts.
pub const COUNTS: &[u8] = b"DIRECTFS_COUNTS=";
/// Longest value, with its name.
pub const ENTRY_BYTES_MAX: usize = 4096 + 32;

/// An entry of the environment, name and value and the zero behind them.
struct Entry(UnsafeCell<[u8; ENTRY_BYTES_MAX]>);
// SAFETY: see the module's invariant.
unsafe impl Sync for Entry {}

static RUN_ENTRY: Entry = Entry(UnsafeCell::new([0; ENTRY_BYTES_MAX]));
static COUNTS_ENTRY: Entry = Entry(UnsafeCell::new([0; ENTRY_BYTES_MAX]));

/// The entries of an environment.
///
/// # Safety
/// `environment` is null or points to pointers to strings, of which the last is null, all valid while the iterator is used.
pub unsafe fn entries(environment: *const *const u8) -> impl Iterator<Item = &'static [u8]> {
    let mut next = environment;
    core::iter::from_fn(move || {
        // SAFETY: the list goes on until its null (the caller's promise), which is never passed.
        let entry = if next.is_null() { core::ptr::null() } else { unsafe { *next } };
        if entry.is_null() {
            return None;
        }
        // SAFETY: as above; the entry was not the last.
        next = unsafe { next.add(1) };
        // SAFETY: the entry is a string (the caller's promise).
        Some(unsafe { CStr::from_ptr(entry.cast()) }.to_bytes_with_nul())
    })
}

/// Keeps what the launcher set; false if it set nothing, or too much.
///
/// # Safety
/// As for [`entries`]; and this is the constructor.
pub unsafe fn adopt(environment: *const *const u8) -> bool {
    // SAFETY: by the caller's promise.
    for entry in unsafe { entries(environment) } {
        for (name, kept) in [(RUN, &RUN_ENTRY), (COUNTS, &COUNTS_ENTRY)] {
            if entry.starts_with(name) && entry.len() <= ENTRY_BYTES_MAX {
                // SAFETY: nobody else runs yet (the module's invariant).
                let room = unsafe { &mut *kept.0.get() };
                room[..entry.len()].copy_from_slice(entry);
            }
        }
    }
    run_entry().is_some()
}

fn get(entry: &'static Entry) -> Option<&'static [u8]> {
    // SAFETY: only read from now on (the module's invariant).
    let bytes = unsafe { &*entry.0.get() };
    let end = bytes.iter().position(|&byte| byte == 0)?;
    (end > 0).then(|| &bytes[..=end])
}

/// The entry that names this library, with the zero behind it.
pub fn run_entry() -> Option<&'static [u8]> {
    get(&RUN_ENTRY)
}

/// The entry that names the file of counters.
pub fn counts_entry() -> Option<&'static [u8]> {
    get(&COUNTS_ENTRY)
}

/// Path of this library, without a zero behind it.
pub fn library() -> &'static [u8] {
    run_entry().map_or(&[], |entry| &entry[RUN.len()..entry.len() - 1])
}
