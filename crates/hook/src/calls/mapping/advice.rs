//! madvise, mlock and mseal on mappings of the image.

use super::moves::has_files;
use super::pieces::PAGE_BYTES;
use super::{copies, may_be_mapped, missing};
use crate::abi::entry::{NATIVE, Verdict, done};
use crate::abi::{sys, user_memory};
use crate::call::Call;
use crate::loading::proc_maps;
use engine::AllocateMode;
use pmem::MADV_COLLAPSE;
use posix::{Errno, Result};

/// Linux 5.18.
const MADV_DONTNEED_LOCKED: i32 = 24;
/// Linux 6.13.
const MADV_GUARD_INSTALL: i32 = 102;

/// madvise(address, length, advice).
pub fn madvise(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, length, advice) = (call.frame.rdi, call.frame.rsi, call.frame.rdx as i32);
    give(call, address, length, advice)
}

/// process_madvise(pidfd, ranges, count, advice, flags): for the calling process itself Linux 6.13
/// takes each advice.
pub fn process_madvise(call: &mut Call<'_>) -> Result<Verdict> {
    /// The most that one call does.
    const BYTES_MAX: u64 = 0x7fff_f000;
    let [process, ranges, count, advice, flags, _] = call.arguments();
    // Advice that may also be given to another process changes no content.
    let is_harmless =
        matches!(advice as i32, libc::MADV_WILLNEED | libc::MADV_COLD | libc::MADV_PAGEOUT | MADV_COLLAPSE);
    if is_harmless || count > libc::UIO_MAXIOV as u64 || call.context.is_child() {
        return Ok(NATIVE);
    }
    missing::touch(call, ranges, count * size_of::<[u64; 2]>() as u64);
    let range = |index: u64| user_memory::read::<[u64; 2]>(ranges.wrapping_add(16 * index));
    let mut concerns_files = false;
    for index in 0..count {
        let [address, length] = range(index)?;
        concerns_files |= may_be_mapped(address, length);
    }
    if !concerns_files {
        return Ok(NATIVE);
    }
    // Without ranges the kernel checks all else: whether the process is this one, and the advice.
    // SAFETY: changes nothing.
    let checked = unsafe { sys::call(libc::SYS_process_madvise, [process, ranges, 0, advice, flags, 0]) };
    if checked < 0 {
        return Ok(done(checked));
    }
    let mut given = 0;
    for index in 0..count {
        let [address, length] = range(index)?;
        let length = length.min(BYTES_MAX - given);
        let result = give(call, address, length, advice as i32).and_then(|verdict| match verdict {
            NATIVE => advise(address, address.wrapping_add(length), advice as i32),
            _ => Ok(()),
        });
        match result {
            Ok(()) => given += length,
            Err(error) if given == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done(given as i64))
}

/// Gives an advice about a range; [`NATIVE`]: the kernel is to do it.
fn give(call: &mut Call<'_>, address: u64, length: u64, advice: i32) -> Result<Verdict> {
    let Some(length) = length.checked_next_multiple_of(PAGE_BYTES) else { return Ok(NATIVE) };
    if !address.is_multiple_of(PAGE_BYTES) || !may_be_mapped(address, length) || call.context.is_child() {
        return Ok(NATIVE);
    }
    match advice {
        libc::MADV_REMOVE => remove(call, address, length),
        libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED => discard(call, address, length, advice),
        // Not for mappings of files.
        libc::MADV_FREE | libc::MADV_WIPEONFORK if copies::first_in(address, length).is_some() => Err(Errno::EINVAL),
        // As before Linux 6.15. A guard would be lost when a missing page beside it is mapped, and
        // leave zeros in a copy.
        MADV_GUARD_INSTALL if has_files(&call.begin()?.session, address, length)? => Err(Errno::EINVAL),
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            missing::touch_all(call, address, length)?;
            Ok(NATIVE)
        }
        _ => Ok(NATIVE),
    }
}

/// mseal(address, length, flags). EPERM for shared mappings: a missing page could not be mapped.
pub fn mseal(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, length) = (call.frame.rdi, call.frame.rsi);
    if !may_be_mapped(address, length) || call.context.is_child() {
        return Ok(NATIVE);
    }
    let _held = missing::hold(call.context);
    let session = call.begin()?.session;
    let mut is_shared = false;
    session.process.mappings(session.caller.thread, &mut |mapping| {
        let end = mapping.address.saturating_add(mapping.length);
        is_shared |= mapping.shared && mapping.address < address.saturating_add(length) && address < end;
    })?;
    if is_shared { Err(Errno::EPERM) } else { Ok(NATIVE) }
}

/// mlock(address, length), mlock2(address, length, flags): the pages are used now.
pub fn mlock(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, length) = (call.frame.rdi, call.frame.rsi);
    let range = address as usize..address.saturating_add(length) as usize;
    // A program that locks all of its mappings, one after the other: see `mlockall`.
    if call.server.regions().into_iter().any(|region| region.start <= range.start && range.end <= region.end) {
        return Ok(done(0));
    }
    if missing::exist() {
        missing::touch(call, address, length);
    }
    Ok(NATIVE)
}

/// mlockall(flags). The kernel would supply each page of the sparse image and of the shared memory,
/// and count them for the program's limit. So the mappings are locked one by one.
pub fn mlockall(call: &mut Call<'_>) -> Result<Verdict> {
    const KNOWN: i32 = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    let flags = call.frame.rdi as i32;
    if flags & !KNOWN != 0 || flags & libc::MCL_CURRENT == 0 {
        return Ok(NATIVE);
    }
    let on_fault = flags & libc::MCL_ONFAULT;
    let regions = call.server.regions();
    let mode = if on_fault != 0 { u64::from(libc::MLOCK_ONFAULT) } else { 0 };
    let mut refused = None;
    let read = proc_maps::for_each(|mapping| {
        let (start, end) = (mapping.start, mapping.end);
        if regions.iter().any(|region| region.contains(&start)) || mapping.path.starts_with(b"[v") {
            return;
        }
        let arguments = [start as u64, (end - start) as u64, mode, 0, 0, 0];
        // SAFETY: locks memory, and changes nothing else.
        let result = unsafe { sys::call(libc::SYS_mlock2, arguments) };
        // ENOMEM: pages that nothing may access, or the limit, which the last answer is about.
        refused = (result < 0 && mapping.is_accessible).then_some(result).or(refused);
    });
    if let Some(error) = read.err().or(refused) {
        return Ok(done(error));
    }
    match flags & libc::MCL_FUTURE {
        0 => Ok(done(0)),
        // SAFETY: concerns later mappings only.
        future => Ok(done(unsafe { sys::call(libc::SYS_mlockall, [(future | on_fault) as u64, 0, 0, 0, 0, 0]) })),
    }
}

/// MADV_REMOVE: punches a hole into the files of shared mappings. The kernel would punch it into
/// the image.
fn remove(call: &mut Call<'_>, address: u64, length: u64) -> Result<Verdict> {
    if copies::first_in(address, length).is_some() {
        return Err(Errno::EACCES);
    }
    let session = call.begin()?.session;
    let (mut at, end) = (address, address.saturating_add(length));
    while at < end {
        let Some(found) = session.process.mapping_at(session.caller.thread, at)? else { break };
        if !found.shared || !found.writable {
            return Err(Errno::EACCES);
        }
        let until = (found.address + found.length).min(end);
        // Takes nothing from a shared mapping; EINVAL if its pages are locked.
        advise(at, until, libc::MADV_DONTNEED)?;
        let offset = found.offset + (at - found.address);
        session.caller.thread.files().allocate(found.node, AllocateMode::PunchHole, offset, until - at)?;
        at = until;
    }
    match at {
        _ if at == address => Ok(NATIVE),
        _ if at < end => Err(Errno::ENOMEM),
        _ => Ok(done(0)),
    }
}

/// MADV_DONTNEED: the next access finds the file's bytes.
fn discard(call: &mut Call<'_>, address: u64, length: u64, advice: i32) -> Result<Verdict> {
    let _held = missing::hold(call.context);
    let (mut at, end) = (address, address.saturating_add(length));
    while let Some(copy) = copies::first_in(at, end - at) {
        if copy.address > at {
            advise(at, copy.address, advice)?;
        }
        copies::refill(&mut call.begin()?, &copy)?;
        at = copy.address + copy.length;
    }
    if at < end || at == address {
        advise(at, end, advice)?;
    }
    Ok(done(0))
}

/// The kernel's madvise, which the program requested for this range.
fn advise(from: u64, to: u64, advice: i32) -> Result<()> {
    // SAFETY: the program may lose no more than by its own call.
    match unsafe { sys::call(libc::SYS_madvise, [from, to - from, advice as u64, 0, 0, 0]) } {
        error @ ..0 => Err(Errno(-error as i32)),
        _ => Ok(()),
    }
}
