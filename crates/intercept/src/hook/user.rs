//! The program's memory: what its pointers lead to.
//!
//! Invariants: nothing that a pointer says is believed: strings are copied once and then looked at; structures are copied by value; and before memory is used it is tried, page by page
//! ([`fault`]). What cannot be accessed is EFAULT. Only a program that takes memory away from a call in another thread gets a signal.

use super::fault;
use core::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_load_si128, _mm_movemask_epi8, _mm_setzero_si128};
use posix::{Errno, Result};

/// EFAULT. Not among the names of the layer below, which has no user memory.
pub const EFAULT: Errno = Errno(libc::EFAULT);
/// Bytes of a path, its zero included.
pub const PATH_BYTES_MAX: usize = posix::path::PATH_BYTES_MAX;

/// EFAULT if a range begins or ends where no program has memory.
#[inline]
fn check(address: u64, bytes: u64) -> Result<()> {
    const FIRST_PAGE: u64 = 4096;
    const KERNEL: u64 = 1 << 47;
    let fits = (FIRST_PAGE..KERNEL).contains(&address) && bytes <= KERNEL - address;
    if fits { Ok(()) } else { Err(EFAULT) }
}

const PAGE_BYTES: u64 = 4096;

/// EFAULT unless all these bytes can be read.
#[inline]
fn readable(address: u64, bytes: u64) -> Result<()> {
    check(address, bytes)?;
    if bytes == 0 || fault::readable(address, bytes) == bytes { Ok(()) } else { Err(EFAULT) }
}

/// EFAULT unless all these bytes can be written.
#[inline]
fn writable(address: u64, bytes: u64) -> Result<()> {
    check(address, bytes)?;
    if bytes == 0 || fault::writable(address, bytes) == bytes { Ok(()) } else { Err(EFAULT) }
}

/// Copies a string, without its zero, into `into`; its length. ENAMETOOLONG if it does not fit with its zero.
#[inline]
pub fn copy_string(address: u64, into: &mut [u8]) -> Result<usize> {
    check(address, 1)?;
    let length = string_length(address, into.len())?;
    // SAFETY: so many bytes were read just now; if another thread changes them meanwhile, we get other bytes, but no more of them.
    unsafe { core::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), length) };
    into[length] = 0;
    Ok(length)
}

/// The length of a string that has a zero among its first `limit` bytes. Reads aligned pieces only, none of which crosses a page.
#[inline]
fn string_length(address: u64, limit: usize) -> Result<usize> {
    const PIECE: u64 = 16;
    let mut at = address & !(PIECE - 1);
    let mut skipped = (address - at) as u32;
    readable(address, 1)?;
    loop {
        // SAFETY: the piece lies in a page of which a byte could be read.
        let zeros = unsafe {
            let piece: __m128i = _mm_load_si128(at as *const __m128i);
            _mm_movemask_epi8(_mm_cmpeq_epi8(piece, _mm_setzero_si128())) as u32
        };
        let zeros = zeros >> skipped << skipped;
        if zeros != 0 {
            let length = (at + u64::from(zeros.trailing_zeros()) - address) as usize;
            return if length < limit { Ok(length) } else { Err(Errno::ENAMETOOLONG) };
        }
        skipped = 0;
        at += PIECE;
        if at - address >= limit as u64 {
            return Err(Errno::ENAMETOOLONG);
        }
        if at.is_multiple_of(PAGE_BYTES) {
            readable(at, 1)?;
        }
    }
}

/// Copies a structure.
pub fn read<T: Copy>(address: u64) -> Result<T> {
    readable(address, size_of::<T>() as u64)?;
    // SAFETY: the bytes can be read; callers ask only for types of which every bit pattern is a value.
    Ok(unsafe { (address as *const T).read_unaligned() })
}

/// Stores a structure.
pub fn write<T: Copy>(address: u64, value: &T) -> Result<()> {
    writable(address, size_of::<T>() as u64)?;
    // SAFETY: the bytes can be written, and the program says that there is room.
    unsafe { (address as *mut T).write_unaligned(*value) };
    Ok(())
}

/// The program's buffer, to read from: EFAULT unless all of it is there. Another thread of the program that writes it meanwhile gets what it deserves.
///
/// # Safety
/// Used only for as long as the call lasts.
pub unsafe fn bytes<'a>(address: u64, length: u64) -> Result<&'a [u8]> {
    // SAFETY: by the caller's promise.
    let bytes = unsafe { bytes_there(address, length)? };
    if bytes.len() as u64 == length { Ok(bytes) } else { Err(EFAULT) }
}

/// The program's buffer, to read from, as far as it is there: EFAULT if that is nowhere.
///
/// # Safety
/// As for [`bytes`].
pub unsafe fn bytes_there<'a>(address: u64, length: u64) -> Result<&'a [u8]> {
    if length == 0 {
        return Ok(&[]);
    }
    check(address, length)?;
    let length = Some(fault::readable(address, length)).filter(|&length| length > 0).ok_or(EFAULT)?;
    // SAFETY: so many bytes can be read; by the caller's promise nobody keeps them.
    Ok(unsafe { core::slice::from_raw_parts(address as *const u8, length as usize) })
}

/// The program's buffer, to write into, as far as it is there: EFAULT if that is nowhere.
///
/// # Safety
/// As for [`bytes`].
pub unsafe fn bytes_mut<'a>(address: u64, length: u64) -> Result<&'a mut [u8]> {
    if length == 0 {
        return Ok(&mut []);
    }
    check(address, length)?;
    let length = Some(fault::writable(address, length)).filter(|&length| length > 0).ok_or(EFAULT)?;
    // SAFETY: as in `bytes_there`.
    Ok(unsafe { core::slice::from_raw_parts_mut(address as *mut u8, length as usize) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_measured_at_every_alignment() {
        let mut bytes = [0xffu8; 200];
        for start in 0..32 {
            for length in 0..100 {
                bytes.fill(0xff);
                bytes[start + length] = 0;
                let mut copy = [0u8; 101];
                let address = &raw const bytes[start] as u64;
                assert_eq!(copy_string(address, &mut copy), Ok(length));
                assert_eq!(copy[..length], bytes[start..start + length]);
                assert_eq!(copy_string(address, &mut copy[..length + 1]), Ok(length));
                assert_eq!(copy_string(address, &mut copy[..length]), Err(Errno::ENAMETOOLONG));
            }
        }
    }

    #[test]
    fn a_string_may_end_with_its_page() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let pages = crate::hook::sys::map(8192, libc::PROT_READ | libc::PROT_WRITE, flags, -1).unwrap();
        // SAFETY: two new pages, of which the second goes away again.
        unsafe {
            crate::hook::sys::unmap(pages.add(4096), 4096);
            pages.add(4093).copy_from(c"ab".as_ptr().cast(), 3);
        }
        let mut copy = [0u8; 16];
        assert_eq!(copy_string(pages as u64 + 4093, &mut copy), Ok(2));
    }

    #[test]
    fn pointers_to_nowhere_are_refused() {
        for address in [0, 1, 4095, 1 << 47, u64::MAX] {
            assert_eq!(copy_string(address, &mut [0; 8]), Err(EFAULT));
            assert_eq!(read::<u64>(address), Err(EFAULT));
        }
        assert_eq!(check(4096, u64::MAX), Err(EFAULT));
        assert_eq!(check((1 << 47) - 8, 9), Err(EFAULT));
    }
    #[test]
    fn memory_that_is_not_there_is_an_answer() {
        crate::hook::signals::hear_of_faults();
        const NOWHERE: u64 = 0xdead_c0de;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let pages = crate::hook::sys::map(8192, libc::PROT_READ | libc::PROT_WRITE, flags, -1).unwrap();
        // SAFETY: two new pages, of which the second goes away again.
        unsafe {
            pages.write_bytes(b'x', 4096);
            crate::hook::sys::unmap(pages.add(4096), 4096);
        }
        let start = pages as u64;
        let mut copy = [0u8; 8192];
        for address in [NOWHERE, start + 4000] {
            assert_eq!(copy_string(address, &mut copy), Err(EFAULT));
        }
        assert_eq!(read::<u64>(start + 4092), Err(EFAULT));
        assert_eq!(write(start + 4092, &0u64), Err(EFAULT));
        assert_eq!(read::<u64>(start + 4088), Ok(u64::from_ne_bytes(*b"xxxxxxxx")));
        // SAFETY: used here only.
        unsafe {
            assert_eq!(bytes(start, 5000), Err(EFAULT));
            assert_eq!(bytes_there(start + 96, 5000).map(<[u8]>::len), Ok(4000));
            assert_eq!(bytes_mut(start + 96, 5000).map(|bytes| bytes.len()), Ok(4000));
            assert_eq!(bytes_mut(NOWHERE, 1), Err(EFAULT));
            assert_eq!(bytes_there(NOWHERE, 0), Ok(&[][..]));
        }
    }
}
