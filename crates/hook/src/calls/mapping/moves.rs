//! mremap of mappings of the image.
//!
//! A mapping by blocks consists of several of the kernel's mappings, which mremap moves only one at
//! a time. So a shared one is created again, and the pieces of a private one move one by one: they
//! hold pages that the program has written.

use super::pieces::PAGE_BYTES;
use super::{Request, by_blocks, copies, forget_replaced, may_be_mapped, missing, replace_range, unmap};
use crate::abi::entry::{NATIVE, Verdict, done};
use crate::abi::sys;
use crate::call::Call;
use crate::process::session::Session;
use crate::server::Server;
use core::ops::Range;
use libc::{MAP_FIXED, MAP_FIXED_NOREPLACE, MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE};
use posix::{Errno, Result};
use tables::process::FileMapping;

/// Arguments of mremap, in whole pages.
#[derive(Debug, Clone, Copy)]
struct Move {
    address: u64,
    old_length: u64,
    new_length: u64,
    flags: i32,
    new_address: u64,
}

impl Move {
    fn of(arguments: [u64; 6]) -> Result<Move> {
        let [address, old_length, new_length, flags, new_address, _] = arguments;
        let pages = |length: u64| length.checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::EINVAL);
        let (old_length, new_length, flags) = (pages(old_length)?, pages(new_length)?, flags as i32);
        let has = |flag: i32| flags & flag != 0;
        let is_valid = address.is_multiple_of(PAGE_BYTES)
            && new_length != 0
            && flags & !(MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP) == 0
            && (has(MREMAP_MAYMOVE) || !has(MREMAP_FIXED | MREMAP_DONTUNMAP))
            && (!has(MREMAP_DONTUNMAP) || old_length == new_length);
        let overlaps =
            new_address < address.saturating_add(old_length) && address < new_address.saturating_add(new_length);
        if !is_valid || has(MREMAP_FIXED) && (overlaps || !new_address.is_multiple_of(PAGE_BYTES)) {
            return Err(Errno::EINVAL);
        }
        Ok(Move { address, old_length, new_length, flags, new_address })
    }

    fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    fn old(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.old_length)
    }
}

/// mremap(address, old length, new length, flags, new address).
pub fn mremap(call: &mut Call<'_>) -> Result<Verdict> {
    let [address, old_length, new_length, flags, new_address, _] = call.arguments();
    let replaces = flags as i32 & MREMAP_FIXED != 0 && may_be_mapped(new_address, new_length.max(1));
    if !may_be_mapped(address, old_length.max(1)) && !replaces {
        return Ok(NATIVE);
    }
    let _held = missing::hold(call.context);
    if let Some(copy) = copies::first_in(address, 1) {
        return move_copy(call, &Move::of(call.arguments())?, &copy);
    }
    let (server, wanted) = (call.server, Move::of(call.arguments()));
    let session = call.begin()?.session;
    let Some(found) = session.process.mapping_at(session.caller.thread, address)? else {
        // The kernel's own memory, which may go where the image is mapped. Kernels since 6.17 move
        // several mappings at once, and would move a file behind the back of its record.
        if has_files(&session, address, old_length)? {
            return Err(Errno(libc::EFAULT));
        }
        return if replaces { replace_range(call, new_address, new_length) } else { Ok(NATIVE) };
    };
    move_blocks(server, &session, &wanted?, &found).map(|start| done(start as i64))
}

/// Whether a file of the image is mapped in a range.
pub fn has_files(session: &Session<'_>, address: u64, length: u64) -> Result<bool> {
    let end = address.saturating_add(length);
    let mut found = copies::first_in(address, length).is_some();
    session.process.mappings(session.caller.thread, &mut |mapping| {
        found |= mapping.address < end && address < mapping.address + mapping.length;
    })?;
    Ok(found)
}

fn move_blocks(server: &Server, session: &Session<'_>, wanted: &Move, found: &FileMapping) -> Result<u64> {
    let thread = session.caller.thread;
    let old = wanted.old();
    if !covers(session, found, &old)? {
        return Err(Errno(libc::EFAULT));
    }
    let stays = !wanted.has(MREMAP_FIXED | MREMAP_DONTUNMAP);
    if wanted.new_length <= wanted.old_length && stays {
        let surplus = wanted.old_length - wanted.new_length;
        if surplus > 0 {
            unmap(wanted.address + wanted.new_length, surplus);
            session.process.remove_mappings(thread, wanted.address + wanted.new_length, surplus)?;
        }
        return Ok(wanted.address);
    }
    let request = |address, from: u64, length, flags| Request {
        address,
        length,
        protection: u64::from(found.protection),
        flags,
        offset: found.offset + (wanted.address - found.address) + from,
    };
    if stays && wanted.old_length > 0 {
        let more = request(old.end, wanted.old_length, wanted.new_length - wanted.old_length, MAP_FIXED_NOREPLACE);
        if by_blocks(server, session, found.node, &more, found.shared, found.writable).is_ok() {
            return Ok(wanted.address);
        }
    }
    if !wanted.has(MREMAP_MAYMOVE) {
        return Err(Errno::ENOMEM);
    }
    if !found.shared && wanted.old_length == 0 {
        return Err(Errno::EINVAL);
    }
    let (new_address, flags) = if wanted.has(MREMAP_FIXED) { (wanted.new_address, MAP_FIXED) } else { (0, 0) };
    let anew = request(new_address, 0, wanted.new_length, flags);
    let start = by_blocks(server, session, found.node, &anew, found.shared, found.writable)?;
    if !found.shared {
        let moved = wanted.old_length.min(wanted.new_length);
        if let Err(error) = move_pieces(wanted.address, start, moved) {
            let _ = move_pieces(start, wanted.address, moved);
            unmap(start, wanted.new_length);
            session.process.remove_mappings(thread, start, wanted.new_length)?;
            return Err(error);
        }
        if wanted.has(MREMAP_DONTUNMAP) {
            let again = request(wanted.address, 0, wanted.old_length, MAP_FIXED);
            by_blocks(server, session, found.node, &again, false, false)?;
        }
    }
    if !wanted.has(MREMAP_DONTUNMAP) {
        unmap(wanted.address, wanted.old_length);
        session.process.remove_mappings(thread, wanted.address, wanted.old_length)?;
    }
    Ok(start)
}

/// Whether mappings of one file, in its order, cover a range.
fn covers(session: &Session<'_>, first: &FileMapping, range: &Range<u64>) -> Result<bool> {
    let mut last = *first;
    loop {
        let end = last.address + last.length;
        if end >= range.end {
            return Ok(true);
        }
        let next = session.process.mapping_at(session.caller.thread, end)?;
        let goes_on = |next: &FileMapping| {
            next.address == end
                && next.node == first.node
                && next.shared == first.shared
                && next.offset == last.offset + last.length
        };
        match next.filter(goes_on) {
            Some(next) => last = next,
            None => return Ok(false),
        }
    }
}

/// Has the kernel move a range, in pieces of which each lies in one of its mappings.
fn move_pieces(from: u64, to: u64, length: u64) -> Result<()> {
    let (mut at, mut step) = (0, length);
    while at < length {
        step = step.min(length - at);
        let flags = (MREMAP_MAYMOVE | MREMAP_FIXED) as u64;
        // SAFETY: the program requested the move; the target was mapped for it.
        let result = unsafe { sys::call(libc::SYS_mremap, [from + at, step, step, flags, to + at, 0]) };
        if !(-4095..0).contains(&result) {
            (at, step) = (at + step, step * 2);
        } else if step > PAGE_BYTES {
            step = (step / 2).next_multiple_of(PAGE_BYTES);
        } else {
            return Err(Errno(-result as i32));
        }
    }
    Ok(())
}

/// Has the kernel move or grow a copy, and writes the file's bytes into what is new.
fn move_copy(call: &mut Call<'_>, wanted: &Move, copy: &copies::FileCopy) -> Result<Verdict> {
    let Move { address, old_length, new_length, .. } = *wanted;
    // SAFETY: the program requested it. Handlers wait meanwhile: one may need the lock.
    let result = unsafe { sys::call(libc::SYS_mremap, call.arguments()) };
    if wanted.has(MREMAP_FIXED) {
        forget_replaced(call, result, wanted.new_address, new_length)?;
    }
    if (-4095..0).contains(&result) || call.context.is_child() {
        return Ok(done(result));
    }
    let start = result as u64;
    let moved = copies::FileCopy {
        address: start,
        length: new_length,
        offset: copy.offset + (address - copy.address),
        ..*copy
    };
    let mut inside = call.begin()?;
    if wanted.has(MREMAP_DONTUNMAP) {
        if let Some(left) = copies::first_in(address, old_length) {
            copies::refill(&mut inside, &left)?;
        }
    } else {
        copies::remove(address, old_length);
    }
    copies::add(&moved);
    super::watch(start, new_length);
    if let Some(more) = moved.part(start + old_length, u64::MAX) {
        copies::refill(&mut inside, &more)?;
    }
    Ok(done(result))
}
