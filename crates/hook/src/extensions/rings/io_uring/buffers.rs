//! Bounds of a ring's registered buffers, for transfers that the library performs.
//!
//! A ring's record has the address of a list in memory of the library, with the address and length
//! of each buffer, behind an item with the list's size. The list is read and replaced under the
//! ring's lock.

use super::{Ring, ring};
use crate::abi::entry::{NATIVE, Verdict};
use crate::abi::{sys, user_memory};
use crate::call::{Call, native_with};
use core::sync::atomic::Ordering::Relaxed;
use posix::{Errno, Result};

/// The most that the kernel registers.
const BUFFERS_MAX: u32 = 1 << 14;
/// In place of a number of buffers: they are not known.
const UNKNOWN: u32 = u32::MAX;
/// Size of an address and a length.
const ITEM_BYTES: u64 = 16;

/// A new ring has no buffers. No other thread uses its record yet.
pub fn forget(ring: &Ring) {
    replace(ring, 0, 0);
}

/// Replaces the list, and unmaps the one before. The caller holds the ring's lock.
fn replace(ring: &Ring, list: u64, count: u32) {
    let before = ring.buffers.swap(list, Relaxed);
    ring.buffer_count.store(count, Relaxed);
    if before != 0
        && let Ok(bytes) = user_memory::read::<u64>(before)
    {
        // SAFETY: the library's mapping of this size, to which nothing refers any more.
        unsafe { sys::unmap(before as *mut u8, bytes as usize) };
    }
}

/// Where the list has the buffer with an index.
fn item(list: u64, index: u32) -> u64 {
    list + ITEM_BYTES * (u64::from(index) + 1)
}

/// The buffer with an index. EFAULT, as in the kernel: there is none.
fn buffer(ring: &Ring, index: u32) -> Result<(u64, u64)> {
    let count = ring.buffer_count.load(Relaxed);
    if count == UNKNOWN {
        return Err(Errno::EOPNOTSUPP);
    }
    if index >= count {
        return Err(user_memory::EFAULT);
    }
    let [address, length]: [u64; 2] = user_memory::read(item(ring.buffers.load(Relaxed), index))?;
    Ok((address, length))
}

/// EFAULT unless a transfer lies within a buffer. Of a list of transfers each must.
pub fn check(fd: u32, index: u32, (address, length): (u64, u64), is_list: bool) -> Result<()> {
    let ring = ring(fd).ok_or(Errno::EOPNOTSUPP)?;
    let (start, bytes) = buffer(ring, index)?;
    let within = |address: u64, length: u64| {
        let end = address.checked_add(length);
        address >= start && end.is_some_and(|end| end <= start.saturating_add(bytes))
    };
    let mut parts = (0..if is_list { length } else { 0 }).map(|part| {
        user_memory::read::<[u64; 2]>(address.wrapping_add(ITEM_BYTES * part))
            .is_ok_and(|[address, length]| within(address, length))
    });
    match if is_list { parts.all(|is_within| is_within) } else { within(address, length) } {
        true => Ok(()),
        false => Err(user_memory::EFAULT),
    }
}

/// The operations of io_uring_register on buffers: the kernel performs them.
pub fn register(call: &mut Call<'_>, operation: u32) -> Result<Verdict> {
    const BUFFERS: u32 = 0;
    const UNREGISTER: u32 = 1;
    const BUFFERS2: u32 = 15;
    const BUFFERS_UPDATE: u32 = 16;
    const CLONE_BUFFERS: u32 = 30;
    let [fd, _, argument, count, ..] = call.arguments();
    let Some(ring) = ring(fd as u32) else { return Ok(NATIVE) };
    let (first, list, count) = match operation {
        BUFFERS => (None, argument, count as u32),
        BUFFERS2 => {
            let [head, _, list]: [u64; 3] = user_memory::read(argument)?;
            (None, list, head as u32)
        }
        BUFFERS_UPDATE => {
            let [first, list, _, numbers]: [u64; 4] = user_memory::read(argument)?;
            (Some(first as u32), list, numbers as u32)
        }
        UNREGISTER | CLONE_BUFFERS => {
            let verdict = native_with(call.frame, call.arguments());
            if verdict.result >= 0 {
                let _held = ring.hold()?;
                replace(ring, 0, if operation == UNREGISTER { 0 } else { UNKNOWN });
            }
            return Ok(verdict);
        }
        _ => return Ok(NATIVE),
    };
    let verdict = native_with(call.frame, call.arguments());
    if verdict.result >= 0 {
        let count = if first.is_some() { verdict.result as u32 } else { count };
        let _held = ring.hold()?;
        if record(ring, first, (list, count)).is_err() {
            replace(ring, 0, UNKNOWN);
        }
    }
    Ok(verdict)
}

/// Records buffers from an index on, or all of them. Without a list, they have no length.
fn record(ring: &Ring, first: Option<u32>, (list, count): (u64, u32)) -> Result<()> {
    let before = first.map_or(0, |_| ring.buffer_count.load(Relaxed));
    let (first, old) = (first.unwrap_or(0), ring.buffers.load(Relaxed));
    let total = before.max(first.saturating_add(count));
    if before == UNKNOWN || total > BUFFERS_MAX {
        return Err(Errno::EINVAL);
    }
    let bytes = ITEM_BYTES * (u64::from(total) + 1);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let new = sys::map(bytes as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
        .map_err(|error| Errno(-error as i32))? as u64;
    user_memory::write(new, &bytes)?;
    for index in 0..total {
        let from = match index.wrapping_sub(first) < count {
            true if list == 0 => continue,
            true => list.wrapping_add(ITEM_BYTES * u64::from(index - first)),
            false => item(old, index),
        };
        // What the kernel has read a moment ago may be gone: then the buffer has no length.
        let bounds: [u64; 2] = user_memory::read(from).unwrap_or_default();
        user_memory::write(item(new, index), &bounds)?;
    }
    replace(ring, new, total);
    Ok(())
}
