//! Rings of io_uring and lists of AIO: calls that a program makes by entries in its memory.

mod aio;
mod entries;
mod io_uring;
pub(super) mod message_ring;
mod ring_files;
mod ring_parameters;

use crate::call::OnFailure::Handle;
use crate::call::{call, kernel};
use crate::extensions::Extension;
use libc::*;

/// The extension.
pub const EXTENSION: Extension = Extension {
    calls: &[
        kernel!(SYS_io_setup),
        call!(SYS_io_submit, Always, Other, aio::submit, Handle),
        call!(SYS_io_uring_setup, Always, Other, io_uring::setup, Handle),
        call!(SYS_io_uring_enter, Always, Other, io_uring::enter, Handle),
        call!(SYS_io_uring_register, Always, Other, io_uring::register, Handle),
    ],
    close: ring_files::release_all,
    map: io_uring::record_mapping,
    ..Extension::NONE
};
