//! Rings of io_uring and lists of AIO: calls that a program makes by entries in its memory.

mod aio;
mod entries;
mod io_uring;
mod ring_files;

pub use io_uring::record_mapping;
pub use ring_files::release_of_closed;

use crate::call::OnFailure::Handle;
use crate::call_table::{Entry, call, kernel};
use libc::*;

/// The calls.
pub const CALLS: &[Entry] = &[
    kernel!(SYS_io_setup),
    call!(SYS_io_submit, Always, Other, aio::submit, Handle),
    call!(SYS_io_uring_setup, Always, Other, io_uring::setup, Handle),
    call!(SYS_io_uring_enter, Always, Other, io_uring::enter, Handle),
    call!(SYS_io_uring_register, Always, Other, io_uring::register, Handle),
];
