//! Files of the image in the memory of programs.
//!
//! A shared mapping consists of the image's own blocks, piece by piece inside one reservation. So
//! all processes that map, read or write the file see the same bytes. It is recorded before it is
//! created, which keeps the blocks in place. A short private mapping is a copy; a long one consists
//! of the image's blocks too, and the kernel copies pages that are written.
//!
//! The range beyond the end of the file is mapped from beyond the end of the image: accesses there
//! raise SIGBUS, as required. Two differences from other file systems: after a file was truncated
//! under a mapping, the lost range reads as zeros; a mapping does not grow with its file until it
//! is created anew.

use crate::hook::abi::entry::{DIRECTFS_FD_COUNT, Next, Verdict};
use crate::hook::abi::{sys, user_memory};
use crate::hook::call::{Call, native_with};
use crate::hook::context::Inside;
use crate::hook::descriptors::host_verdict;
use crate::hook::dispatch::{NATIVE, done};
use crate::hook::loading::library_syscalls::{self, NewMapping};
use crate::hook::process::environment;
use crate::hook::process::processes::Session;
use crate::hook::server::{self, Server};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use engine::format::FileKind;
use engine::{FileFlags, Node};
use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE};
use posix::process::FileMapping;
use posix::{Errno, OpenFile, Result};

const PAGE_BYTES: u64 = 4096;
/// Private mappings up to this size are copies.
const COPY_BYTES_MAX: u64 = 1 << 20;

/// Arguments of a mapping.
#[derive(Debug, Clone, Copy)]
struct Request {
    address: u64,
    length: u64,
    protection: u64,
    flags: i32,
    offset: u64,
}

/// Whether this process has mapped a file of the image: from then on the dispatcher sees calls
/// about addresses.
static HAS_MAPPED: AtomicBool = AtomicBool::new(false);

/// Makes calls about addresses reach the dispatcher.
pub fn watch() {
    if !HAS_MAPPED.swap(true, AcqRel) {
        // Permanently one more than the number of descriptors.
        DIRECTFS_FD_COUNT.fetch_add(1, Relaxed);
    }
}

/// mmap(address, length, protection, flags, fd, offset).
pub fn mmap(call: &mut Call<'_>) -> Result<Verdict> {
    let [_, _, protection, flags, fd, _] = call.arguments();
    let flags = flags as i32;
    if flags & MAP_ANONYMOUS != 0 {
        return replace(call);
    }
    let is_code = protection & libc::PROT_EXEC as u64 != 0 && flags & libc::MAP_TYPE == MAP_PRIVATE;
    if server::is_pending() {
        let verdict = host_verdict(fd as u32)?;
        return if is_code { map_code(call, verdict) } else { Ok(verdict) };
    }
    let verdict = map_file(call)?;
    if is_code { map_code(call, verdict) } else { Ok(verdict) }
}

/// Maps code, unless that is done, and changes its own system calls.
fn map_code(call: &mut Call<'_>, verdict: Verdict) -> Result<Verdict> {
    let [_, length, _, _, fd, offset] = call.arguments();
    let verdict = if verdict == NATIVE { native_with(call.frame, call.arguments()) } else { verdict };
    let start = verdict.result as usize;
    if verdict.next != Next::Done || (-4095..0).contains(&verdict.result) {
        return Ok(verdict);
    }
    let Some(end) = start.checked_add(length as usize) else { return Ok(verdict) };
    let mapping = NewMapping { addresses: start..end, offset: offset as usize };
    if !server::is_pending() {
        let Inside { session, .. } = call.begin()?;
        let thread = session.caller.thread;
        if let Some(file) = session.process.file(thread, fd as u32) {
            let bytes = session.caller.stat(file.node())?.size_bytes;
            let read = &mut |offset, into: &mut [u8]| thread.read(file.node(), offset, into).unwrap_or(0);
            library_syscalls::patch_mapped(&mapping, bytes, read);
            return Ok(verdict);
        }
    }
    let Ok(status) = sys::status(fd as i32) else { return Ok(verdict) };
    library_syscalls::patch_mapped(&mapping, status.st_size as u64, &mut |offset, into| {
        let arguments = [fd, into.as_mut_ptr() as u64, into.len() as u64, offset, 0, 0];
        // SAFETY: the kernel writes into the buffer, which is borrowed for writing.
        let count = unsafe { sys::call(libc::SYS_pread64, arguments) };
        usize::try_from(count).unwrap_or(0)
    });
    Ok(verdict)
}

/// mmap of a file.
fn map_file(call: &mut Call<'_>) -> Result<Verdict> {
    let [address, length, protection, flags, fd, offset] = call.arguments();
    let flags = flags as i32;
    let server = call.server;
    let Inside { session, .. } = call.begin()?;
    let Some(file) = session.process.file(session.caller.thread, fd as u32) else {
        return if crate::hook::descriptors::is_hidden(fd) { Err(Errno::EBADF) } else { replace(call) };
    };
    if offset % PAGE_BYTES != 0 {
        return Err(Errno::EINVAL);
    }
    if file.is_path() {
        return Err(Errno::EBADF);
    }
    if length == 0 {
        return Err(Errno::EINVAL);
    }
    let is_shared = check(&file, protection, flags)?;
    let length = length.checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::ENOMEM)?;
    offset.checked_add(length).filter(|&end| end <= i64::MAX as u64).ok_or(Errno::EOVERFLOW)?;
    let request = Request { address, length, protection, flags, offset };
    let writable = file.writes();
    let node = file.node();
    if is_shared && writable {
        check_flags(&session, node, protection)?;
    }
    if !is_shared && length <= COPY_BYTES_MAX {
        return copy(&session, node, &request).map(|start| done(start as i64));
    }
    match by_blocks(server, &session, node, &request, is_shared, writable) {
        // Code may not run where the image lies; a private mapping can use a copy instead.
        Err(Errno::EPERM | Errno::EACCES) if !is_shared => {
            copy(&session, node, &request).map(|start| done(start as i64))
        }
        result => result.map(|start| done(start as i64)),
    }
}

/// Whether a mapping is shared, if the open file description permits it.
fn check(file: &OpenFile, protection: u64, flags: i32) -> Result<bool> {
    /// Flags that are valid with MAP_SHARED_VALIDATE: all but MAP_SYNC.
    const KNOWN: i32 = MAP_SHARED
        | libc::MAP_SHARED_VALIDATE
        | MAP_FIXED
        | libc::MAP_FIXED_NOREPLACE
        | libc::MAP_32BIT
        | libc::MAP_POPULATE
        | libc::MAP_NONBLOCK
        | libc::MAP_LOCKED
        | MAP_NORESERVE
        | libc::MAP_GROWSDOWN
        | libc::MAP_DENYWRITE
        | libc::MAP_EXECUTABLE
        | libc::MAP_STACK;
    let is_shared = match flags & libc::MAP_TYPE {
        MAP_SHARED => true,
        libc::MAP_SHARED_VALIDATE if flags & !KNOWN == 0 => true,
        libc::MAP_SHARED_VALIDATE => return Err(Errno::EOPNOTSUPP),
        MAP_PRIVATE => false,
        _ => return Err(Errno::EINVAL),
    };
    let stores = is_shared && protection & PROT_WRITE as u64 != 0;
    if !file.reads() || (stores && !file.writes()) {
        return Err(Errno::EACCES);
    }
    if file.kind() != FileKind::Regular { Err(Errno::ENODEV) } else { Ok(is_shared) }
}

/// EACCES for a shared mapping of an append-only file by a description that writes. EPERM if the
/// file became immutable after it was opened: stores into a mapping could not be refused.
fn check_flags(session: &Session<'_>, node: Node, protection: u64) -> Result<()> {
    let flags = session.caller.thread.protection(node)?.flags;
    if flags.has_any(FileFlags::APPEND_ONLY) {
        return Err(Errno::EACCES);
    }
    let stores = protection & PROT_WRITE as u64 != 0;
    if stores && flags.has_any(FileFlags::IMMUTABLE) { Err(Errno::EPERM) } else { Ok(()) }
}

fn map(address: u64, length: u64, protection: u64, flags: i32, fd: i32, offset: u64) -> Result<u64> {
    let arguments = [address, length, protection, flags as u64, fd as u64, offset];
    // SAFETY: maps at the address that the program requested, or inside a range that was reserved
    // for it.
    let result = unsafe { sys::call(libc::SYS_mmap, arguments) };
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result as u64) }
}

fn unmap(address: u64, length: u64) {
    // SAFETY: a range that was mapped here, and that the program does not know yet.
    unsafe { sys::unmap(address as *mut u8, length as usize) };
}

/// Flags that control a mapping's address.
const PLACING: i32 = MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT;

/// Maps a copy.
fn copy(session: &Session<'_>, node: Node, request: &Request) -> Result<u64> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | request.flags & (PLACING | MAP_NORESERVE);
    let start = map(request.address, request.length, (PROT_READ | PROT_WRITE) as u64, flags, -1, 0)?;
    let mut filled = 0;
    while filled < request.length {
        // SAFETY: mapped above, readable and writable, without other users yet.
        let into = unsafe { user_memory::bytes_to_fill(start + filled, request.length - filled)? };
        match session.caller.thread.read(node, request.offset + filled, into) {
            Ok(0) => break,
            Ok(count) => filled += count as u64,
            Err(error) => {
                unmap(start, request.length);
                return Err(error.into());
            }
        }
    }
    if request.protection as i32 != PROT_READ | PROT_WRITE {
        // SAFETY: as above.
        let protected = unsafe { sys::protect(start as usize, request.length as usize, request.protection as i32) };
        if let Err(error) = protected {
            unmap(start, request.length);
            return Err(Errno(-error as i32));
        }
    }
    Ok(start)
}

/// Maps the image's blocks.
fn by_blocks(
    server: &Server,
    session: &Session<'_>,
    node: Node,
    request: &Request,
    is_shared: bool,
    writable: bool,
) -> Result<u64> {
    let reserve = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | request.flags & PLACING;
    let start = map(request.address, request.length, PROT_NONE as u64, reserve, -1, 0)?;
    watch();
    let record = FileMapping {
        address: start,
        length: request.length,
        offset: request.offset,
        node,
        shared: is_shared,
        writable: is_shared && writable,
        stores: is_shared && request.protection & PROT_WRITE as u64 != 0,
        inherited: false,
    };
    let thread = session.caller.thread;
    let made = session
        .process
        .add_mapping(thread, &record)
        .and_then(|()| fill(server, session, node, request, start, is_shared));
    if let Err(error) = made {
        unmap(start, request.length);
        let _ = session.process.remove_mappings(thread, start, request.length);
        return Err(error);
    }
    Ok(start)
}

fn fill(
    server: &Server,
    session: &Session<'_>,
    node: Node,
    request: &Request,
    start: u64,
    is_shared: bool,
) -> Result<()> {
    let Some(handoff) = environment::handoff() else { return Err(Errno::ENODEV) };
    let kept = request.flags & (libc::MAP_POPULATE | libc::MAP_NONBLOCK | libc::MAP_LOCKED | MAP_NORESERVE);
    let kind = if is_shared { MAP_SHARED } else { MAP_PRIVATE };
    let allocate = is_shared && !server.fs.is_read_only();
    let mut failed = None;
    let mut mapped = 0;
    session.caller.thread.map_extents(node, request.offset, request.length, allocate, &mut |extent| {
        let from = extent.offset.max(request.offset) - request.offset;
        let skipped = request.offset.saturating_sub(extent.offset);
        let length = (extent.length - skipped).min(request.length - from);
        let piece = match extent.address.filter(|_| !extent.unwritten) {
            Some(address) => {
                map(start + from, length, request.protection, kind | MAP_FIXED | kept, handoff.image, address + skipped)
            }
            None => {
                let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
                map(start + from, length, request.protection, flags, -1, 0)
            }
        };
        failed = failed.or(piece.err());
        mapped = from + length;
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    if mapped < request.length {
        let behind = handoff.mapped_bytes().next_multiple_of(PAGE_BYTES);
        map(start + mapped, request.length - mapped, request.protection, kind | MAP_FIXED, handoff.image, behind)?;
    }
    Ok(())
}

/// mmap of anything else: it may replace a mapping of the image.
fn replace(call: &mut Call<'_>) -> Result<Verdict> {
    let flags = call.frame.r10 as i32;
    if flags & MAP_FIXED == 0 || flags & libc::MAP_FIXED_NOREPLACE != 0 { Ok(NATIVE) } else { end_mappings(call) }
}

/// munmap(address, length).
pub fn munmap(call: &mut Call<'_>) -> Result<Verdict> {
    end_mappings(call)
}

/// Has the kernel perform a call that ends the mappings of a range (address, length, ...).
fn end_mappings(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, length) = (call.frame.rdi, call.frame.rsi);
    // A thread of musl unmaps its own stack before it ends: nothing may be read there afterwards.
    let has_frame = (&raw const *call.frame as u64).wrapping_sub(address) < length;
    if !HAS_MAPPED.load(Relaxed) || has_frame {
        return Ok(NATIVE);
    }
    let verdict = native_with(call.frame, call.arguments());
    if verdict.result >= 0 && !call.context.is_child() {
        let session = call.begin()?.session;
        let length = length.checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::EINVAL)?;
        session.process.remove_mappings(session.caller.thread, address, length)?;
    }
    Ok(verdict)
}

/// mremap(address, old length, new length, flags, new address). A mapping of the image is created
/// anew, because it consists of several pieces.
pub fn mremap(call: &mut Call<'_>) -> Result<Verdict> {
    let [address, old_length, new_length, flags, new_address, _] = call.arguments();
    if !HAS_MAPPED.load(Relaxed) {
        return Ok(NATIVE);
    }
    let server = call.server;
    let session = call.begin()?.session;
    let thread = session.caller.thread;
    let Some(found) = session.process.mapping_at(thread, address)? else { return Ok(NATIVE) };
    let flags = flags as i32;
    let (old_length, new_length) = (old_length.next_multiple_of(PAGE_BYTES), new_length.next_multiple_of(PAGE_BYTES));
    if address % PAGE_BYTES != 0 || new_length == 0 || flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) != 0 {
        return Err(Errno::EINVAL);
    }
    if new_length <= old_length && flags & libc::MREMAP_FIXED == 0 {
        if new_length < old_length {
            unmap(address + new_length, old_length - new_length);
            session.process.remove_mappings(thread, address + new_length, old_length - new_length)?;
        }
        return Ok(done(address as i64));
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return Err(Errno::ENOMEM);
    }
    let protection = if found.stores { PROT_READ | PROT_WRITE } else { PROT_READ } as u64;
    let fixed = flags & libc::MREMAP_FIXED;
    let request = Request {
        address: if fixed != 0 { new_address } else { 0 },
        length: new_length,
        protection,
        flags: if fixed != 0 { MAP_FIXED } else { 0 },
        offset: found.offset + (address - found.address),
    };
    if !found.shared {
        // Its own written pages cannot be told from the file's.
        return Err(Errno::ENOMEM);
    }
    let start = by_blocks(server, &session, found.node, &request, true, found.writable)?;
    unmap(address, old_length);
    session.process.remove_mappings(thread, address, old_length)?;
    Ok(done(start as i64))
}

/// remap_file_pages(address, length, 0, page, flags): replaces pages of a shared mapping by other
/// pages of its file. The kernel would take them from the image.
pub fn remap_file_pages(call: &mut Call<'_>) -> Result<Verdict> {
    let [address, length, protection, page, ..] = call.arguments();
    if !HAS_MAPPED.load(Relaxed) {
        return Ok(NATIVE);
    }
    let server = call.server;
    let session = call.begin()?.session;
    let (address, length) = (address & !(PAGE_BYTES - 1), length & !(PAGE_BYTES - 1));
    let Some(found) = session.process.mapping_at(session.caller.thread, address)? else { return Ok(NATIVE) };
    let end = address.checked_add(length).filter(|&end| length > 0 && end <= found.address + found.length);
    let offset = page
        .checked_mul(PAGE_BYTES)
        .filter(|offset| offset.checked_add(length).is_some_and(|end| end <= i64::MAX as u64));
    let (Some(_), Some(offset), true, 0) = (end, offset, found.shared, protection) else { return Err(Errno::EINVAL) };
    let protection = if found.stores { PROT_READ | PROT_WRITE } else { PROT_READ } as u64;
    let request = Request { address, length, protection, flags: MAP_FIXED, offset };
    by_blocks(server, &session, found.node, &request, true, found.writable).map(|_| done(0))
}

/// mprotect(address, length, protection), pkey_mprotect(address, length, protection, key): the
/// right to store, from now on.
pub fn mprotect(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, length, protection) = (call.frame.rdi, call.frame.rsi, call.frame.rdx as i32);
    // The kernel refuses an address within a page (EINVAL) before it inspects the mappings there.
    let may_be_ours = protection & PROT_WRITE != 0 && address.is_multiple_of(PAGE_BYTES);
    if may_be_ours && HAS_MAPPED.load(Relaxed) {
        let session = call.begin()?.session;
        session.process.allow_stores(session.caller.thread, address, length)?;
    }
    Ok(NATIVE)
}

/// msync(address, length, flags).
pub fn msync(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, length, flags) = (call.frame.rdi, call.frame.rsi, call.frame.rdx as i32);
    if !HAS_MAPPED.load(Relaxed) {
        return Ok(NATIVE);
    }
    let verdict = native_with(call.frame, call.arguments());
    if verdict.result < 0 || verdict.next != Next::Done {
        return Ok(verdict);
    }
    let durable = flags & libc::MS_SYNC != 0;
    let session = call.begin()?.session;
    if session.process.sync_mappings(session.caller.thread, address, length, durable)? && durable {
        environment::sync_image(session.caller.thread)?;
    }
    Ok(verdict)
}
