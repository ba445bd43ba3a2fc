//! Files of the image in the memory of programs.
//!
//! A shared mapping consists of the image's own blocks, piece by piece. So all processes that map,
//! read or write the file see the same bytes. It is recorded before it is created, which keeps the
//! blocks in place. A short private mapping is a copy ([`copies`]); a long one consists of the
//! image's blocks too, and the kernel copies pages that are written. What has no block yet is
//! supplied when it is used ([`missing`]).
//!
//! One difference from other file systems: after a file was truncated under a mapping, the lost
//! range reads as zeros.

pub mod advice;
pub mod copies;
pub mod missing;
pub mod moves;
mod pieces;

use crate::abi::entry::{DIRECTFS_FD_COUNT, NATIVE, Next, Verdict, done};
use crate::abi::{sys, user_memory};
use crate::call::{Call, native_with};
use crate::context::Inside;
use crate::descriptors::marks::{self, host_verdict};
use crate::extensions;
use crate::loading::file_identity;
use crate::loading::library_syscalls::{self, NewMapping};
use crate::process::environment;
use crate::process::image_sync::{self, is_on_device};
use crate::process::session::Session;
use crate::server::{self, Server};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicU64};
use engine::format::FileKind;
use engine::{FileFlags, MapMode, Node};
use libc::{MAP_ANONYMOUS, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE};
use missing::NOWHERE;
use pieces::{PAGE_BYTES, Pieces, map};
use posix::{Errno, OpenFile, Result, Scope};
use tables::process::FileMapping;

/// The kernel leaves programs this many addresses.
const ADDRESSES_BYTES: u64 = (1 << 47) - PAGE_BYTES;

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

/// Addresses of mappings of the image: between these.
static BOUNDS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Makes calls about an address range reach the dispatcher.
pub fn watch(address: u64, length: u64) {
    // Kept as its complement: zero is the initial state.
    BOUNDS[0].fetch_max(!address, AcqRel);
    BOUNDS[1].fetch_max(address.saturating_add(length), AcqRel);
    if !HAS_MAPPED.swap(true, AcqRel) {
        // Permanently one more than the number of descriptors.
        DIRECTFS_FD_COUNT.fetch_add(1, Relaxed);
    }
}

/// `watch` for a mapping that another copy of this library has made in this process.
pub fn watch_mapping(mapping: &FileMapping) {
    missing::record(mapping.address..mapping.address.saturating_add(mapping.length));
    watch(mapping.address, mapping.length);
}

/// Whether a mapping of the image may lie in an address range.
fn may_be_mapped(address: u64, length: u64) -> bool {
    address < BOUNDS[1].load(Acquire) && !BOUNDS[0].load(Acquire) < address.saturating_add(length)
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
    if marks::is_ring(fd as u32) {
        return Ok(extensions::map(call, verdict));
    }
    if is_code { map_code(call, verdict) } else { Ok(verdict) }
}

/// Maps code, unless that is done, and changes its own system calls.
fn map_code(call: &mut Call<'_>, verdict: Verdict) -> Result<Verdict> {
    let [_, length, _, _, fd, offset] = call.arguments();
    let (table, server) = (call.table, call.server);
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
            let status = file_identity::status_of(server, &session.caller, file.node()).ok_or(Errno(libc::EIO))?;
            let read = &mut |offset, into: &mut [u8]| thread.files().read(file.node(), offset, into).unwrap_or(0);
            library_syscalls::patch_mapped(&mapping, &table.routes, &status, read);
            return Ok(verdict);
        }
    }
    let Ok(status) = sys::status(fd as i32) else { return Ok(verdict) };
    library_syscalls::patch_mapped(&mapping, &table.routes, &status, &mut |offset, into| {
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
    let is_ours = {
        let session = call.begin()?.session;
        session.process.file(session.caller.thread, fd as u32).is_some()
    };
    if !is_ours {
        return if marks::is_hidden(fd) { Err(Errno::EBADF) } else { replace(call) };
    }
    // The kernel has large pages for files of hugetlbfs only.
    if flags & libc::MAP_HUGETLB != 0 {
        return Err(Errno::EINVAL);
    }
    let _held = missing::hold(call.context);
    let is_child = call.context.is_child();
    let session = call.begin()?.session;
    let file = session.process.file(session.caller.thread, fd as u32).ok_or(Errno::EBADF)?;
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
    let length = length.checked_next_multiple_of(PAGE_BYTES).filter(|&length| length < ADDRESSES_BYTES);
    let length = length.ok_or(Errno::ENOMEM)?;
    offset.checked_add(length).filter(|&end| end <= i64::MAX as u64).ok_or(Errno::EOVERFLOW)?;
    let request = Request { address, length, protection, flags, offset };
    let writable = file.writes();
    let node = file.node();
    if is_shared && writable {
        check_flags(&session, node, protection)?;
    }
    let copied = || copy(&session, node, &request, !is_child).map(|start| done(start as i64));
    if !is_shared && copies::suits(session.caller.stat(node)?.size_bytes, offset, length, flags) {
        return copied();
    }
    match by_blocks(server, &session, node, &request, is_shared, writable) {
        // Code may not run where the image lies; a private mapping can use a copy instead.
        Err(Errno::EPERM | Errno::EACCES) if !is_shared => copied(),
        // The pages of the device are larger than blocks, so that none can be mapped alone.
        Err(Errno::EINVAL) if is_on_device() => {
            if is_shared {
                Err(Errno::ENODEV)
            } else {
                copied()
            }
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

fn unmap(address: u64, length: u64) {
    // SAFETY: a range that was mapped here, and that the program does not know yet.
    unsafe { sys::unmap(address as *mut u8, length as usize) };
}

/// Flags that control a mapping's address.
const PLACING: i32 = MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT;

/// Maps a copy, and adds it to the list if `is_listed`.
fn copy(session: &Session<'_>, node: Node, request: &Request, is_listed: bool) -> Result<u64> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | request.flags & (PLACING | MAP_NORESERVE);
    let start = map(request.address, request.length, (PROT_READ | PROT_WRITE) as u64, flags, -1, 0)?;
    let mut filled = 0;
    while filled < request.length {
        let into = user_memory::to_fill(start + filled, request.length - filled)?;
        match session.caller.thread.files().read(node, request.offset + filled, into) {
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
    if request.flags & MAP_FIXED != 0 {
        session.process.remove_mappings(session.caller.thread, start, request.length)?;
    }
    if is_listed {
        let Request { length, offset, .. } = *request;
        let generation = session.caller.stat(node)?.generation;
        watch(start, length);
        copies::add(&copies::FileCopy { address: start, length, offset, node, generation });
    }
    Ok(start)
}

/// Maps the image's blocks. The caller holds the lock of [`missing`].
fn by_blocks(
    server: &Server,
    session: &Session<'_>,
    node: Node,
    request: &Request,
    is_shared: bool,
    writable: bool,
) -> Result<u64> {
    let Some(handoff) = environment::handoff() else { return Err(Errno::ENODEV) };
    let kind = if is_shared { MAP_SHARED } else { MAP_PRIVATE };
    let flags = kind | MAP_NORESERVE | request.flags & PLACING;
    let start = map(request.address, request.length, request.protection, flags, handoff.image, NOWHERE)?;
    watch(start, request.length);
    if !session.is_child {
        copies::remove(start, request.length);
    }
    let record = FileMapping {
        address: start,
        length: request.length,
        offset: request.offset,
        node,
        shared: is_shared,
        writable: is_shared && writable,
        stores: is_shared && request.protection & PROT_WRITE as u64 != 0,
        protection: (request.protection & 7) as u8,
        inherited: false,
    };
    let thread = session.caller.thread;
    let made =
        session.process.add_mapping(thread, &record).and_then(|()| fill(server, session, &record, request.flags));
    if let Err(error) = made {
        unmap(start, request.length);
        let _ = session.process.remove_mappings(thread, start, request.length);
        return Err(error);
    }
    Ok(start)
}

/// Maps what the file has of a mapping, and records whether pages are missing.
fn fill(server: &Server, session: &Session<'_>, mapping: &FileMapping, flags: i32) -> Result<()> {
    let thread = session.caller.thread;
    let may_allocate = mapping.shared && !server.fs.is_read_only();
    let attempt = |mode| -> Result<(u64, u64)> {
        let range = mapping.address..mapping.address + mapping.length;
        let mut pieces = Pieces::of(mapping, range)?;
        pieces.flags |= flags & (libc::MAP_POPULATE | libc::MAP_NONBLOCK | libc::MAP_LOCKED | MAP_NORESERVE);
        let zeros = mode == MapMode::Loads;
        thread.files().map_extents(mapping.node, mapping.offset, mapping.length, mode, &mut |extent| {
            pieces.map(&extent, zeros);
        })?;
        let missing = pieces.missing;
        Ok((pieces.finish()?, missing))
    };
    let is_populated = flags & (libc::MAP_POPULATE | libc::MAP_LOCKED) != 0;
    let (mut mapped, mut missing) = match (may_allocate, is_populated) {
        (false, _) => attempt(MapMode::Loads)?,
        (true, true) => attempt(MapMode::Stores)?,
        (true, false) => attempt(MapMode::Written)?,
    };
    if mapping.stores
        && (1..=missing::WINDOW_BYTES_MIN).contains(&missing)
        && let Ok(all) = attempt(MapMode::Stores)
    {
        (mapped, missing) = all;
    }
    if mapped < mapping.length || missing > 0 {
        missing::record(mapping.address..mapping.address + mapping.length);
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

/// shmat(segment, address, flags): with SHM_REMAP it may replace mappings of the image.
pub fn shmat(call: &mut Call<'_>) -> Result<Verdict> {
    const SHM_REMAP: u64 = 0o40000;
    let [segment, address, flags, ..] = call.arguments();
    if flags & SHM_REMAP == 0 || !HAS_MAPPED.load(Relaxed) {
        return Ok(NATIVE);
    }
    // SAFETY: integers and reserved words, of which zero is a value; the kernel fills them.
    let mut status: libc::shmid_ds = unsafe { core::mem::zeroed() };
    let arguments = [segment, libc::IPC_STAT as u64, &raw mut status as u64, 0, 0, 0];
    // SAFETY: the kernel writes the structure, which is borrowed for writing.
    if unsafe { sys::call(libc::SYS_shmctl, arguments) } < 0 {
        return Ok(NATIVE);
    }
    // SHM_RND rounds down; without it such an address is refused.
    let length = (status.shm_segsz as u64).next_multiple_of(PAGE_BYTES);
    let _held = missing::hold(call.context);
    replace_range(call, address & !(PAGE_BYTES - 1), length)
}

/// Has the kernel perform a call that ends the mappings of a range (address, length, ...).
fn end_mappings(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, length) = (call.frame.rdi, call.frame.rsi);
    // A thread of musl unmaps its own stack before it ends: nothing may be read there afterwards.
    let has_frame = (&raw const *call.frame as u64).wrapping_sub(address) < length;
    if has_frame || !may_be_mapped(address, length) {
        return Ok(NATIVE);
    }
    let _held = missing::hold(call.context);
    replace_range(call, address, length)
}

/// Has the kernel perform a call that puts something else, or nothing, in the place of a range. The
/// caller holds the lock of [`missing`].
fn replace_range(call: &mut Call<'_>, address: u64, length: u64) -> Result<Verdict> {
    // SAFETY: the program requested it. Handlers wait meanwhile: one may need the lock.
    let result = unsafe { sys::call(i64::from(call.frame.number as u32), call.arguments()) };
    forget_replaced(call, result, address, length)?;
    Ok(done(result))
}

/// After the kernel's call with that result: removes the records of a range. One that stays would
/// map its file over the program's own memory there.
fn forget_replaced(call: &mut Call<'_>, result: i64, address: u64, length: u64) -> Result<()> {
    // The kernel can have emptied the range before it failed.
    let has_replaced = !(-4095..0).contains(&result) || is_empty(address);
    if has_replaced && !call.context.is_child() {
        let session = call.begin()?.session;
        let length = length.checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::EINVAL)?;
        session.process.remove_mappings(session.caller.thread, address, length)?;
        copies::remove(address, length);
    }
    Ok(())
}

/// Whether nothing is mapped at the page of an address.
fn is_empty(address: u64) -> bool {
    let mut residency = 0u8;
    // SAFETY: the kernel writes one byte, for the one page.
    let result = unsafe { sys::call(libc::SYS_mincore, [address, 1, &raw mut residency as u64, 0, 0, 0]) };
    result == -i64::from(libc::ENOMEM)
}

/// remap_file_pages(address, length, 0, page, flags): replaces pages of a shared mapping by other
/// pages of its file. The kernel would take them from the image.
pub fn remap_file_pages(call: &mut Call<'_>) -> Result<Verdict> {
    let [address, length, protection, page, ..] = call.arguments();
    if !may_be_mapped(address, length) {
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
    let request = Request { address, length, protection: u64::from(found.protection), flags: MAP_FIXED, offset };
    let _held = missing::hold(call.context);
    let session = call.begin()?.session;
    by_blocks(server, &session, found.node, &request, true, found.writable).map(|_| done(0))
}

/// mprotect(address, length, protection), pkey_mprotect(address, length, protection, key): the
/// right to store, from now on.
pub fn mprotect(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, length, protection) = (call.frame.rdi, call.frame.rsi, call.frame.rdx as i32);
    // The kernel refuses an address within a page (EINVAL) before it inspects the mappings there.
    if !address.is_multiple_of(PAGE_BYTES) || !may_be_mapped(address, length) {
        return Ok(NATIVE);
    }
    let _held = missing::hold(call.context);
    let session = call.begin()?.session;
    let rounded = length.checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::ENOMEM)?;
    session.process.protect(session.caller.thread, address, rounded, (protection & 7) as u8)?;
    // SAFETY: the program requested it. Handlers wait meanwhile: one may need the lock.
    Ok(done(unsafe { sys::call(i64::from(call.frame.number as u32), call.arguments()) }))
}

/// msync(address, length, flags).
pub fn msync(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, length, flags) = (call.frame.rdi, call.frame.rsi, call.frame.rdx as i32);
    if !HAS_MAPPED.load(Relaxed) {
        return Ok(NATIVE);
    }
    let durable = flags & libc::MS_SYNC != 0;
    let mut verdict = native_with(call.frame, call.arguments());
    if verdict.result == -i64::from(libc::EINVAL) && durable && is_on_device() {
        verdict = sync_on_device(call)?;
    }
    if !is_synced(&verdict) || verdict.next != Next::Done {
        return Ok(verdict);
    }
    let session = call.begin()?.session;
    if session.process.sync_mappings(session.caller.thread, address, length, durable)? && durable {
        image_sync::sync(session.caller.thread, Scope::Calls)?;
    }
    Ok(verdict)
}

/// Whether the kernel has synced what is mapped. For a range with holes it then returns ENOMEM.
fn is_synced(verdict: &Verdict) -> bool {
    verdict.result >= 0 || verdict.result == -i64::from(libc::ENOMEM)
}

/// msync with MS_SYNC, where the image lies on a DAX device. The kernel cannot sync a device, and
/// fails. So it checks the range, and syncs what is not the image.
fn sync_on_device(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, length, flags) = (call.frame.rdi, call.frame.rsi, call.frame.rdx);
    if flags & libc::MS_ASYNC as u64 != 0 {
        return Err(Errno::EINVAL);
    }
    let checked = flags & !(libc::MS_SYNC as u64) | libc::MS_ASYNC as u64;
    let verdict = native_with(call.frame, [address, length, checked, 0, 0, 0]);
    let (mut at, end) = (address, address.saturating_add(length));
    while at < end && is_synced(&verdict) {
        let session = call.begin()?.session;
        let (process, thread) = (session.process, session.caller.thread);
        if let Some(mapping) = process.mapping_at(thread, at)? {
            at = mapping.address + mapping.length;
            continue;
        }
        let mut next = end;
        process.mappings(thread, &mut |mapping| {
            if mapping.address > at {
                next = next.min(mapping.address);
            }
        })?;
        let others = native_with(call.frame, [at, next - at, flags, 0, 0, 0]);
        if !is_synced(&others) {
            return Ok(others);
        }
        at = next;
    }
    Ok(verdict)
}
