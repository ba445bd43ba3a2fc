//! Extensions: calls that few programs make, with what they add to calls that all make. One module
//! each has io_uring and AIO, inotify and fanotify, and leases.
//!
//! Invariant: the modules are private, so the rest of the library uses what is named here, and
//! nothing else of an extension. Beyond its calls an extension has no work at the end of a process,
//! at fork or at exec: its descriptors have descriptions in the shared tables, or are the kernel's.

mod leases;
mod rings;
mod watches;

pub use leases::{complete_open, fcntl as lease, is_command as is_lease_command, truncate as truncate_leased};
pub use rings::{CALLS as RING_CALLS, record_mapping as record_ring_mapping, release_of_closed as close_ring};
pub use watches::{
    CALLS as WATCH_CALLS, bytes_to_read, or_else as or_events, read as read_events, received_key as received_watcher,
};
