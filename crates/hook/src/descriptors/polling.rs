//! poll, while the process may have descriptors with O_PATH.
//!
//! The kernel polls: a placeholder is as ready as any file. Only a descriptor with O_PATH is as one
//! that is not open, and the kernel cannot distinguish its placeholders.

use crate::abi::entry::{NATIVE, Verdict};
use crate::abi::user_memory;
use crate::call::{Call, native_with};
use crate::descriptors::{fd_numbers, marks};
use crate::process::limits;
use posix::Result;

/// Added to the number of a descriptor: the kernel gives out none of that size.
const NOT_OPEN: i32 = 1 << 30;

/// poll(descriptors, count, ...) and ppoll.
pub fn poll(call: &mut Call<'_>) -> Result<Verdict> {
    fd_numbers::release_cached();
    let (address, count) = (call.frame.rdi, call.frame.rsi as u32);
    if !fd_numbers::may_be_paths() || count > limits::descriptors() {
        return Ok(NATIVE);
    }
    // With one of them the kernel does not wait: no handler of the program sees these numbers.
    let verdict = match replace(call, address, count, 0, NOT_OPEN) {
        Ok(false) => return Ok(NATIVE),
        Ok(true) => Ok(native_with(call.frame, call.frame.arguments())),
        Err(error) => Err(error),
    };
    // Where the first pass ended at an unreadable page, so does this one.
    let restored = replace(call, address, count, NOT_OPEN, -NOT_OPEN);
    verdict.and_then(|verdict| restored.map(|_| verdict))
}

/// Adds `change` to the numbers of all descriptors with O_PATH, which are higher by `offset`.
/// Returns whether there is one.
fn replace(call: &mut Call<'_>, address: u64, count: u32, offset: i32, change: i32) -> Result<bool> {
    let mut is_any = false;
    for at in (0..u64::from(count)).map(|at| address.wrapping_add(at * size_of::<libc::pollfd>() as u64)) {
        let given: i32 = user_memory::read(at)?;
        let fd = given.wrapping_sub(offset) as u32;
        if !marks::is_marked(fd) {
            continue;
        }
        let process = call.begin()?.session.process;
        if process.descriptor(fd).is_some_and(|descriptor| process.is_path(&descriptor)) {
            user_memory::write(at, &given.wrapping_add(change))?;
            is_any = true;
        }
    }
    Ok(is_any)
}
