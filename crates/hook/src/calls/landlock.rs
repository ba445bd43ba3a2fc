//! Landlock: rules of a program for itself on which files it may use.
//!
//! The kernel enforces them where it sees the calls, which is not in the mount. A program would
//! believe itself confined and would not be. So the library refuses rule sets about files, like a
//! kernel in which Landlock is switched off. Rule sets about the network alone are the kernel's.

use crate::abi::entry::Verdict;
use crate::abi::user_memory;
use crate::call::Call;
use crate::descriptors;
use posix::{Errno, Result};

/// landlock_create_ruleset(attributes, their size, flags).
pub fn create_ruleset(call: &mut Call<'_>) -> Result<Verdict> {
    let [attributes, bytes, flags, ..] = call.arguments();
    // The version that the kernel has, or the first word: accesses to files that the rules handle.
    if flags != 0 || bytes < 8 || user_memory::read::<u64>(attributes)? != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    descriptors::with_numbers(call)
}
