//! The program's memory, as its pointers reach it.
//!
//! Pointers into the first page or the kernel's half are refused at once. The few assembly
//! functions below follow all others, and so do copies that end at an inaccessible page:
//! [`faults`](crate::signals::faults) handles such faults. So a good pointer is not checked
//! in advance, with one exception: if the engine will read from it in the middle of a change, each
//! page is touched once before.
//!
//! Invariants: strings are copied once and then inspected; structures are copied by value. The
//! assembly functions are leaves without a frame; a fault in one of them makes it return [`FAILED`]
//! together with rdi.

use core::arch::global_asm;
use core::mem::MaybeUninit;
use core::ops::Range;
use pmem::{UserBytes, UserBytesMut};
use posix::{Errno, Result};

/// EFAULT, of which only this crate is the cause.
pub const EFAULT: Errno = Errno(libc::EFAULT);
/// Maximum length of a path, its zero byte included.
pub const PATH_BYTES_MAX: usize = posix::path::PATH_BYTES_MAX;

/// Programs have no memory below this address.
pub const FIRST_PAGE: u64 = 4096;

/// EFAULT if a range begins or ends where no program has memory.
#[inline]
pub fn check(address: u64, bytes: u64) -> Result<()> {
    const KERNEL: u64 = 1 << 47;
    let fits = (FIRST_PAGE..KERNEL).contains(&address) && bytes <= KERNEL - address;
    if fits { Ok(()) } else { Err(EFAULT) }
}

/// Set in the results of the functions below: an address could not be accessed.
pub const FAILED: u64 = 1 << 63;
/// The result of `directfs_user_string` for a string that is too long.
const TOO_LONG: u64 = 1 << 62;

unsafe extern "C" {
    fn directfs_user();
    fn directfs_user_end();
    /// Copies; returns zero.
    fn directfs_user_copy(to: u64, from: u64, length: u64) -> u64;
    /// `directfs_user_copy` for whole words, at least one, each loaded and stored separately.
    fn directfs_user_copy_words(to: u64, from: u64, length: u64) -> u64;
    /// The length of a string that has a zero byte among its first `limit` bytes.
    fn directfs_user_string(address: u64, unused: u64, limit: u64) -> u64;
    /// Reads a byte of each page of a range that is not empty; returns zero.
    fn directfs_user_read(address: u64, length: u64) -> u64;
    /// `directfs_user_read` with a store that changes nothing.
    fn directfs_user_write(address: u64, length: u64) -> u64;
}

/// The address range of the functions.
pub fn code() -> Range<usize> {
    directfs_user as *const () as usize..directfs_user_end as *const () as usize
}

global_asm!(
    r#"
    .section .text.directfs_user,"ax",@progbits
    .p2align 5
    .macro LEAF name
    .globl \name
    .hidden \name
    .type \name, @function
    .p2align 4
\name:
    .endm
    LEAF directfs_user
    .cfi_startproc
    LEAF directfs_user_copy
    cmp rdx, 16
    jb 2f
    movdqu xmm1, xmmword ptr [rsi + rdx - 16]
    mov ecx, 16
    add rsi, rdx
    add rdi, rdx
    sub rcx, rdx
    jz 7f
1:  movdqu xmm0, xmmword ptr [rsi + rcx - 16]
    movdqu xmmword ptr [rdi + rcx - 16], xmm0
    add rcx, 16
    js 1b
7:  movdqu xmmword ptr [rdi - 16], xmm1
    xor eax, eax
    ret
2:  cmp edx, 8
    jb 3f
    mov rax, qword ptr [rsi]
    mov rcx, qword ptr [rsi + rdx - 8]
    mov qword ptr [rdi], rax
    mov qword ptr [rdi + rdx - 8], rcx
    xor eax, eax
    ret
3:  cmp edx, 4
    jb 4f
    mov eax, dword ptr [rsi]
    mov ecx, dword ptr [rsi + rdx - 4]
    mov dword ptr [rdi], eax
    mov dword ptr [rdi + rdx - 4], ecx
    xor eax, eax
    ret
4:  test edx, edx
    jz 6f
5:  movzx ecx, byte ptr [rsi + rdx - 1]
    mov byte ptr [rdi + rdx - 1], cl
    dec edx
    jnz 5b
6:  xor eax, eax
    ret

    LEAF directfs_user_copy_words
    add rsi, rdx
    add rdi, rdx
    neg rdx
8:  mov rax, qword ptr [rsi + rdx]
    mov qword ptr [rdi + rdx], rax
    add rdx, 8
    jnz 8b
    xor eax, eax
    ret

    // Aligned pieces only, none of which crosses a page: the first contains the string's first
    // byte, every other follows one without a zero byte.
    LEAF directfs_user_string
    mov r9, rdi
    and r9, -16
    mov ecx, edi
    and ecx, 15
    pxor xmm1, xmm1
    movdqa xmm0, xmmword ptr [r9]
    pcmpeqb xmm0, xmm1
    pmovmskb eax, xmm0
    shr eax, cl
    shl eax, cl
1:  test eax, eax
    jnz 2f
    add r9, 16
    mov rcx, r9
    sub rcx, rdi
    cmp rcx, rdx
    jae 3f
    movdqa xmm0, xmmword ptr [r9]
    pcmpeqb xmm0, xmm1
    pmovmskb eax, xmm0
    jmp 1b
2:  bsf eax, eax
    add rax, r9
    sub rax, rdi
    cmp rax, rdx
    jae 3f
    ret
3:  mov rax, {too_long}
    ret

    LEAF directfs_user_read
    lea rdx, [rdi + rsi - 1]
1:  movzx eax, byte ptr [rdi]
    or rdi, 4095
    inc rdi
    cmp rdi, rdx
    jbe 1b
    xor eax, eax
    ret

    LEAF directfs_user_write
    lea rdx, [rdi + rsi - 1]
1:  lock or byte ptr [rdi], 0
    or rdi, 4095
    inc rdi
    cmp rdi, rdx
    jbe 1b
    xor eax, eax
    ret
    .cfi_endproc
    LEAF directfs_user_end
    "#,
    too_long = const TOO_LONG,
);

fn check_result(result: u64) -> Result<()> {
    if result & FAILED == 0 { Ok(()) } else { Err(EFAULT) }
}

/// The length of a string that has a zero byte among its first `limit` bytes.
#[inline]
pub fn string_length(address: u64, limit: usize) -> Result<usize> {
    check(address, 1)?;
    // SAFETY: reads only; a fault is reported.
    match unsafe { directfs_user_string(address, 0, limit as u64) } {
        TOO_LONG => Err(Errno::ENAMETOOLONG),
        length if length & FAILED != 0 => Err(EFAULT),
        length => Ok(length as usize),
    }
}

/// Copies a string, without its zero byte, into `into`; returns its length. ENAMETOOLONG if it does
/// not fit with its zero byte.
#[inline]
pub fn copy_string(address: u64, into: &mut [u8]) -> Result<usize> {
    let length = string_length(address, into.len())?;
    // SAFETY: this many bytes fit; if another thread changes them meanwhile, the content differs,
    // but not the length.
    check_result(unsafe { directfs_user_copy(into.as_mut_ptr() as u64, address, length as u64) })?;
    into[length] = 0;
    Ok(length)
}

/// Copies a structure.
#[inline]
pub fn read<T: Copy>(address: u64) -> Result<T> {
    check(address, size_of::<T>() as u64)?;
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the value has room for itself; a fault is reported.
    check_result(unsafe { directfs_user_copy(value.as_mut_ptr() as u64, address, size_of::<T>() as u64) })?;
    // SAFETY: all of it was copied; callers only use types for which every bit pattern is valid.
    Ok(unsafe { value.assume_init() })
}

/// Stores a structure.
#[inline]
pub fn write<T: Copy>(address: u64, value: &T) -> Result<()> {
    check(address, size_of::<T>() as u64)?;
    // SAFETY: the program vouches for the room, and a fault is reported.
    check_result(unsafe { directfs_user_copy(address, &raw const *value as u64, size_of::<T>() as u64) })
}

/// Stores words, one by one.
#[inline]
pub fn write_words<const COUNT: usize>(address: u64, words: &[u64; COUNT]) -> Result<()> {
    const { assert!(COUNT != 0) };
    check(address, size_of_val(words) as u64)?;
    // SAFETY: the program vouches for the room, and a fault is reported.
    check_result(unsafe { directfs_user_copy_words(address, words.as_ptr() as u64, size_of_val(words) as u64) })
}

/// Stores bytes.
pub fn fill(address: u64, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    check(address, bytes.len() as u64)?;
    // SAFETY: as in `write`.
    check_result(unsafe { directfs_user_copy(address, bytes.as_ptr() as u64, bytes.len() as u64) })
}

/// A range of the program's memory that its other threads may change at any time. So there is no
/// reference to it: bytes are copied out, inspected, and copied in. EFAULT where it ends or cannot
/// be accessed.
#[derive(Clone, Copy)]
pub struct UserSlice {
    address: u64,
    bytes: usize,
}

impl UserSlice {
    /// EFAULT where no program has memory; an empty range may be anywhere.
    pub fn new(address: u64, bytes: usize) -> Result<UserSlice> {
        if bytes != 0 {
            check(address, bytes as u64)?;
        }
        Ok(UserSlice { address, bytes })
    }

    /// Its length.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// The address of a part.
    fn part(self, at: usize, bytes: usize) -> Result<u64> {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        if fits { Ok(self.address + at as u64) } else { Err(EFAULT) }
    }

    /// Copies a structure out.
    pub fn read<T: Copy>(self, at: usize) -> Result<T> {
        read(self.part(at, size_of::<T>())?)
    }

    /// Copies bytes out.
    pub fn copy_to(self, at: usize, into: &mut [u8]) -> Result<()> {
        let from = self.part(at, into.len())?;
        // SAFETY: the bytes have room; a fault is reported.
        check_result(unsafe { directfs_user_copy(into.as_mut_ptr() as u64, from, into.len() as u64) })
    }

    /// Moves a part towards the start.
    pub fn move_down(self, range: Range<usize>, mut to: usize) -> Result<()> {
        debug_assert!(to <= range.start, "a part moves towards the start");
        if to == range.start {
            return Ok(());
        }
        let mut piece = [0u8; 256];
        for at in range.clone().step_by(piece.len()) {
            let piece = &mut piece[..(range.end - at).min(256)];
            self.copy_to(at, piece)?;
            fill(self.part(to, piece.len())?, piece)?;
            to += piece.len();
        }
        Ok(())
    }
}

/// The bytes of a range up to the first page that `access` cannot access: EFAULT if there are none.
/// An empty range may be anywhere.
#[inline(always)]
fn accessible(address: u64, length: u64, access: unsafe extern "C" fn(u64, u64) -> u64) -> Result<u64> {
    if length == 0 {
        return Ok(0);
    }
    check(address, length)?;
    // SAFETY: it reads, or writes the present values, each as one operation; a fault is reported.
    let result = unsafe { access(address, length) };
    let bytes = if result & FAILED == 0 { length } else { (result & !FAILED).saturating_sub(address) };
    if bytes == 0 { Err(EFAULT) } else { Ok(bytes) }
}

/// The program's buffer, for reading during the call: EFAULT if a page of it cannot be read. If
/// another thread unmaps it meanwhile, copies to ordinary memory end early, and the call fails with
/// EFAULT whatever it has done; a copy to the image is a signal for the program.
pub fn readable(address: u64, length: u64) -> Result<UserBytes<'static>> {
    let found = readable_part(address, length)?;
    if found.len() as u64 == length { Ok(found) } else { Err(EFAULT) }
}

/// [`readable`] up to the first unreadable page: EFAULT if nothing is readable.
#[inline]
pub fn readable_part(address: u64, length: u64) -> Result<UserBytes<'static>> {
    let readable = accessible(address, length, directfs_user_read)?;
    // SAFETY: a byte of every page was read just now. The program keeps them during the call, or
    // faults are handled as `readable` says. Buffers of programs are in no region, and the library
    // makes no reference to them.
    Ok(unsafe { UserBytes::new(address as *const u8, readable as usize) })
}

/// The first address of a range, which is not empty, that cannot be read.
pub fn first_unreadable(address: u64, length: u64) -> Option<u64> {
    if check(address, length).is_err() {
        return Some(address);
    }
    // SAFETY: reads only; a fault is reported.
    let result = unsafe { directfs_user_read(address, length) };
    (result & FAILED != 0).then_some(result & !FAILED)
}

/// EFAULT if a byte of a range cannot be written.
pub fn check_writable(address: u64, length: u64) -> Result<()> {
    if accessible(address, length, directfs_user_write)? == length { Ok(()) } else { Err(EFAULT) }
}

/// The program's buffer, for writing during the call, up to the first unwritable page: EFAULT if
/// nothing is writable.
pub fn writable_part(address: u64, length: u64) -> Result<UserBytesMut<'static>> {
    let writable = accessible(address, length, directfs_user_write)?;
    // SAFETY: a byte of every page was written just now, and the handler of faults ends copies. The
    // library makes no reference to buffers of programs.
    Ok(unsafe { UserBytesMut::new(address as *mut u8, writable as usize) })
}

/// [`writable_part`] without any check: the buffer may be shorter than `length` if less is written.
/// The copies end where it cannot be written. Then the call fails with EFAULT, or starts again with
/// the length from [`writable_part`].
#[inline]
pub fn to_fill(address: u64, length: u64) -> Result<UserBytesMut<'static>> {
    if length != 0 {
        // The first page is invalid only for bytes that are written there.
        check(address.max(FIRST_PAGE), length)?;
    }
    // SAFETY: the handler of faults ends copies where there is no room. The library makes no
    // reference to buffers of programs.
    Ok(unsafe { UserBytesMut::new(address as *mut u8, length as usize) })
}

/// Counts the strings of a list that ends with null; EFAULT if it cannot be read. Null is an empty
/// list.
pub fn check_list(list: u64) -> Result<usize> {
    if list == 0 {
        return Ok(0);
    }
    let mut count = 0;
    loop {
        let string: u64 = read(list.wrapping_add(8 * count as u64))?;
        if string == 0 {
            return Ok(count);
        }
        string_length(string, 1 << 31)?;
        count += 1;
    }
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
        let pages = crate::abi::sys::map(8192, libc::PROT_READ | libc::PROT_WRITE, flags, -1).unwrap();
        // SAFETY: two new pages, the second of which is unmapped.
        unsafe {
            crate::abi::sys::unmap(pages.add(4096), 4096);
            pages.add(4093).copy_from(c"ab".as_ptr().cast(), 3);
        }
        let mut copy = [0u8; 16];
        assert_eq!(copy_string(pages as u64 + 4093, &mut copy), Ok(2));
    }

    #[test]
    fn parts_of_a_slice_move_down_whole_and_end_with_it() {
        let mut bytes: [u8; 1000] = core::array::from_fn(|index| index as u8);
        let expected: [u8; 1000] =
            core::array::from_fn(|index| if (10..710).contains(&index) { index + 20 } else { index } as u8);
        let slice = UserSlice::new(&raw mut bytes as u64, 1000).unwrap();
        slice.move_down(30..730, 10).unwrap();
        let mut copy = [0u8; 1000];
        slice.copy_to(0, &mut copy).unwrap();
        assert_eq!(copy, expected);
        assert_eq!(slice.read::<u16>(998), Ok(u16::from_le_bytes([copy[998], copy[999]])));
        assert_eq!(slice.read::<u16>(999), Err(EFAULT));
        assert_eq!(slice.move_down(990..1001, 0), Err(EFAULT));
        assert_eq!(slice.copy_to(usize::MAX, &mut copy), Err(EFAULT));
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
}
