//! Calls that install filters of system calls.

use crate::abi::entry::{NATIVE, Verdict};
use crate::call::Call;
use crate::descriptors::fd_numbers;
use posix::Result;

/// seccomp: a filter may forbid calls of the library that the program does not make.
pub fn seccomp(call: &mut Call<'_>) -> Result<Verdict> {
    if call.frame.rdi <= libc::SECCOMP_SET_MODE_FILTER.into() {
        expect_filter(call);
    }
    fd_numbers::release_cached();
    Ok(NATIVE)
}

/// prctl: concerns no file, but may install a filter.
pub fn prctl(call: &mut Call<'_>) -> Result<Verdict> {
    if call.frame.rdi as i32 == libc::PR_SET_SECCOMP {
        expect_filter(call);
    }
    Ok(NATIVE)
}

fn expect_filter(call: &mut Call<'_>) {
    tables::host::expect_filter();
    // A child in its parent's memory may have changed its identity, and the filter is its own.
    if !call.context.is_child() {
        call.context.identity().leave_for_others();
    }
}
