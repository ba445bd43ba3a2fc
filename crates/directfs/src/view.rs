//! Views of files: the blocks of a file as memory of this process, without a copy.
//!
//! Invariants
//! - A view is recorded as a mapping of its process ([`FileMapping`]) from before its blocks are
//!   mapped until after they are unmapped. So the blocks stay in place and belong to the file, also
//!   if it is truncated or removed meanwhile: what is cut off reads as zeros.
//! - The memory is a private mapping of the image's file. No store through it reaches the image.
//! - An image is not closed while a view of it lives ([`Shared::close`]).
//! - In the child of a fork the record belongs to the parent: a view only unmaps its memory.

use crate::session::{Inside, Shared};
use engine::{Extent, MapMode};
use posix::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File as ImageFile;
use std::sync::Arc;
use tables::process::FileMapping;

const PAGE_BYTES: u64 = 4096;

/// The content of a file as memory, without a copy: see [`File::view`](crate::File::view). Dropping
/// it unmaps the memory.
pub struct View {
    /// Until it is dropped.
    memory: Option<Memory>,
    length: usize,
    shared: Arc<Shared>,
}

/// A range of addresses that this process owns.
struct Memory {
    address: *mut c_void,
    length: usize,
}

// SAFETY: the value owns the range of addresses, and no method stores into it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeros, in place of which blocks are mapped.
    fn reserve(length: usize) -> posix::Result<Memory> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: at an address that the kernel chooses.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags) };
        mapped.map(|address| Memory { address, length }).map_err(errno)
    }

    /// Maps an extent of the image in place of zeros.
    fn map(&self, extent: &Extent, image: &ImageFile) -> posix::Result<()> {
        let Some(block) = extent.address.filter(|_| !extent.unwritten) else { return Ok(()) };
        let (at, length) = (extent.offset as usize, extent.length as usize);
        if at.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(Errno::EIO);
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a range within that of this value, which nothing else uses yet.
        let mapped =
            unsafe { mmap(self.address.byte_add(at), length, protection, flags | MapFlags::FIXED, image, block) };
        mapped.map(drop).map_err(errno)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the range belongs to this value. An error cannot occur for a whole range.
        let _ = unsafe { munmap(self.address, self.length) };
    }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

impl Inside<'_> {
    /// Maps the blocks of a regular file that has this length, and records it. Between the end of a
    /// mapping and that of its record no other one may begin ([`Shared::map`]).
    fn map(&self, node: engine::Node, length: u64) -> Result<Memory> {
        let mapping = self.image.mapping();
        let image = mapping.file().ok_or(Errno::EOPNOTSUPP)?;
        if pmem::coarse_alignment_bytes(image).is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        let whole = usize::try_from(length.next_multiple_of(PAGE_BYTES)).map_err(|_| Errno::ENOMEM)?;
        let memory = Memory::reserve(whole)?;
        let (address, length) = (memory.address as u64, memory.length as u64);
        let record = FileMapping {
            address,
            length,
            offset: 0,
            node,
            shared: true,
            writable: false,
            stores: false,
            protection: libc::PROT_READ as u8,
            inherited: false,
        };
        self.process.add_mapping(self.thread, &record)?;
        let mut mapped = Ok(());
        let found = self.thread.files().map_extents(node, 0, length, MapMode::Loads, &mut |extent| {
            if mapped.is_ok() {
                mapped = memory.map(&extent, image);
            }
        });
        if let Err(error) = found.map_err(Errno::from).and(mapped) {
            drop(memory);
            let _ = self.process.remove_mappings(self.thread, address, length);
            return Err(error);
        }
        Ok(memory)
    }
}

impl View {
    /// Maps the open file of a number, which the caller may read.
    pub(crate) fn new(shared: &Arc<Shared>, file: impl Fn(&Inside<'_>) -> Result<(engine::Node, u64)>) -> Result<View> {
        let (mut memory, mut length) = (None, 0);
        shared.map(|inside| {
            let (node, bytes) = file(&inside)?;
            length = bytes as usize;
            memory = if bytes > 0 { Some(inside.map(node, bytes)?) } else { None };
            Ok(())
        })?;
        Ok(View { memory, length, shared: Arc::clone(shared) })
    }

    /// Number of bytes: the length that the file had when the view was made.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the file was empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The memory, which can be read for as long as the view lives. Other threads and processes may
    /// change it at any moment, so it is no slice.
    pub fn as_ptr(&self) -> *const u8 {
        self.memory.as_ref().map_or(std::ptr::dangling(), |memory| memory.address.cast_const().cast())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let memory = self.memory.take();
        self.shared.unmap(|| {
            let memory = memory?;
            let range = (memory.address as u64, memory.length as u64);
            drop(memory);
            Some(range)
        });
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("length", &self.length).finish_non_exhaustive()
    }
}
