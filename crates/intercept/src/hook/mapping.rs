//! Files of ours in the memory of programs.

use super::call::Call;
use super::dispatch::NATIVE;
use super::entry::Verdict;
use posix::{Errno, Result};

/// mmap(address, length, protection, flags, fd, offset).
pub fn mmap(call: &mut Call<'_>) -> Result<Verdict> {
    let fd = call.frame.r8 as u32;
    let who = call.begin()?.who;
    match who.process.descriptor(fd) {
        Some(_) => Err(Errno::ENODEV),
        None => Ok(NATIVE),
    }
}
