//! Programs that start others: those get the library too, whatever environment they are given.
//!
//! Invariants: the program's own list and strings are not touched; what is added lives on this stack, since a child of vfork must not
//! leave anything in the memory that it shares; and an environment that has all already goes to the kernel as it is.

use super::call::Call;
use super::dispatch::{NATIVE, done};
use super::entry::{Frame, Verdict};
use super::environment::{ADDED, ENTRY_BYTES_MAX, LD_PRELOAD, entries, handed_on, is_ours, library};
use super::{stack, sys};
use crate::contract;
use core::mem::MaybeUninit;
use posix::Result;

/// Entries of most environments: a list of 4 KiB.
const ENTRIES_FEW: usize = 512;
/// Entries of any environment that we pass on: a list of 128 KiB, half of our stack.
const ENTRIES_MAX: usize = 16384;
/// Addresses below are refused by the kernel.
const FIRST_PAGE: u64 = 4096;

/// execve(path, arguments, environment).
pub fn execve(call: &mut Call<'_>) -> Result<Verdict> {
    let process = call.begin()?.who.process.index();
    call.context.leave();
    Ok(inject(call.frame, 2, Some(process)))
}

/// execveat(directory, path, arguments, environment, flags).
pub fn execveat(call: &mut Call<'_>) -> Result<Verdict> {
    let process = call.begin()?.who.process.index();
    call.context.leave();
    Ok(inject(call.frame, 3, Some(process)))
}

/// Starts the program with an environment in which the library and all that it needs is named. `process` is the slot that it will take over.
pub fn inject(frame: &Frame, which: usize, process: Option<u32>) -> Verdict {
    let address = frame.arguments()[which];
    if address != 0 && address < FIRST_PAGE {
        return NATIVE;
    }
    let environment = address as *const *const u8;
    // SAFETY: a program gives a list of strings or null. What is neither is a fault of the program, which the kernel would report as an
    // error and we as a signal.
    let count = unsafe { entries(environment) }.count();
    let needed = count + ADDED + 1;
    if needed <= ENTRIES_FEW {
        with_list::<ENTRIES_FEW>(frame, which, environment, process)
    } else if needed <= ENTRIES_MAX {
        with_list::<ENTRIES_MAX>(frame, which, environment, process)
    } else {
        done(-i64::from(libc::E2BIG))
    }
}

/// Whether a value of LD_PRELOAD begins with this library.
fn names_us(value: &[u8]) -> bool {
    value.strip_prefix(library()).is_some_and(|rest| matches!(rest.first(), Some(0 | b':' | b' ')))
}

#[inline(never)]
fn with_list<const N: usize>(
    frame: &Frame,
    which: usize,
    environment: *const *const u8,
    process: Option<u32>,
) -> Verdict {
    let mut list: [MaybeUninit<*const u8>; N] = [const { MaybeUninit::uninit() }; N];
    let mut preload = [0u8; 2 * ENTRY_BYTES_MAX];
    let mut slot = [0u8; 64];
    let mut length = 0;
    let mut push = |entry: *const u8| {
        // The count was taken before: another thread that adds to the environment meanwhile is cut off, not followed.
        if length < N - ADDED - 1 {
            list[length].write(entry);
            length += 1;
        }
    };
    let mut others: &[u8] = b"\0";
    // SAFETY: as in `inject`.
    for entry in unsafe { entries(environment) } {
        match entry.strip_prefix(LD_PRELOAD) {
            Some(value) => others = value,
            None if is_ours(entry) => {}
            None => push(entry.as_ptr()),
        }
    }
    if !write_preload(&mut preload, others) {
        return done(-i64::from(libc::E2BIG));
    }
    let slot_entry = process.map(|process| {
        slot[..contract::PROCESS.len()].copy_from_slice(contract::PROCESS);
        contract::write_number(u64::from(process), &mut slot[contract::PROCESS.len()..]);
        slot.as_ptr()
    });
    let added = [Some(preload.as_ptr()), slot_entry].into_iter().flatten();
    for entry in added.chain(handed_on().map(<[u8]>::as_ptr)).chain([core::ptr::null()]) {
        list[length].write(entry);
        length += 1;
    }
    let mut arguments = frame.arguments();
    arguments[which] = list.as_ptr() as u64;
    stack::set_leaving(true);
    // SAFETY: the list and its strings live on this stack and in the library. The call returns only if it failed, and then changed nothing.
    let result = unsafe { sys::call(frame.number as u32 as i64, arguments) };
    stack::set_leaving(false);
    done(result)
}

/// The loader's list with this library before all others; false if it does not fit.
fn write_preload(into: &mut [u8], others: &[u8]) -> bool {
    let others = if names_us(others) { others.get(library().len() + 1..).unwrap_or_default() } else { others };
    let others = others.strip_suffix(b"\0").unwrap_or(others);
    let colon: &[u8] = if others.is_empty() { b"" } else { b":" };
    let mut length = 0;
    for part in [LD_PRELOAD, library(), colon, others, b"\0"] {
        let Some(room) = into.get_mut(length..length + part.len()) else { return false };
        room.copy_from_slice(part);
        length += part.len();
    }
    true
}
