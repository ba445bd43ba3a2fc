//! Addresses of mappings, with an inaccessible page before and behind each.
//!
//! Without these pages, a store of the program that runs over the end of its own memory can reach
//! a region that the kernel placed beside it.
//!
//! Invariants
//! - The guard pages belong to the mapping: they are reserved with its addresses, before it is made
//!   inside, and go with it.
//! - A mapping of at least a huge page begins at a multiple of one. Only there can a shared mapping
//!   be collapsed to huge pages, and with huge shmem off the kernel does not choose such an address
//!   itself.
//! - Where addresses are short (`ulimit -v`), the kernel chooses, and there are no guard pages. It
//!   also chooses for a DAX device, because it knows what alignment that needs.

use crate::map::{HUGE_PAGE_BYTES, PAGE_BYTES};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::ptr;

/// What a mapping occupies; unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct Addresses {
    start: *mut c_void,
    length: usize,
}

impl Addresses {
    /// A mapping without guard pages.
    pub(crate) fn of(start: *mut c_void, length: u64) -> Addresses {
        Addresses { start, length: length as usize }
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: the owner of the addresses lets no region outlive them; the range is exactly what
        // was mapped. After a failure the memory stays mapped, which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.start, self.length) };
    }
}

/// Makes a mapping of `length` bytes (whole pages) between guard pages. `map` maps at an address,
/// with these flags besides its own. Returns where the mapping begins, and what it occupies.
pub(crate) fn map_guarded(
    length: u64,
    map: impl FnOnce(*mut c_void, MapFlags) -> Result<*mut c_void, Errno>,
) -> Result<(*mut c_void, Addresses), Errno> {
    let (length, page) = (length as usize, PAGE_BYTES as usize);
    let align = if length < HUGE_PAGE_BYTES as usize { page } else { HUGE_PAGE_BYTES as usize };
    let wide = page + align + length + page;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new inaccessible mapping at an address of the kernel's choice.
    let Ok(start) = (unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), wide, ProtFlags::empty(), flags) }) else {
        let at = map(ptr::null_mut(), MapFlags::empty())?;
        return Ok((at, Addresses::of(at, length as u64)));
    };
    let first = start.wrapping_byte_add(page);
    let at = first.wrapping_byte_add(first.cast::<u8>().align_offset(align));
    let behind = at.wrapping_byte_add(length);
    match map(at, MapFlags::FIXED) {
        Ok(at) => Ok((at, Addresses { start, length: wide })),
        Err(errno) => {
            // A mapping that fails may leave a gap, which another thread can have filled since.
            drop(Addresses { start, length: at.addr() - start.addr() });
            drop(Addresses { start: behind, length: start.addr() + wide - behind.addr() });
            Err(errno)
        }
    }
}
