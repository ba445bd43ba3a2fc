//! Buffers of programs, which their other threads may write during a call.
//!
//! In Rust a reference to such bytes, or a load of them that the compiler sees, is undefined
//! behaviour. So nothing refers to them. They are copied, by the copies that allow races in a
//! region, and only a copy is inspected. If another thread writes meanwhile, each byte of the copy
//! is old or new.
//!
//! Both types are like slices of relaxed atomics, so two values may stand for the same bytes. They
//! are made of slices by `into`.

use core::marker::PhantomData;
use core::ops::Range;

use crate::copy;

/// Bytes to read.
#[derive(Debug, Clone, Copy)]
pub struct UserBytes<'a> {
    pub(crate) start: *const u8,
    length: usize,
    borrow: PhantomData<&'a [u8]>,
}

/// Bytes to write.
#[derive(Debug, Clone, Copy)]
pub struct UserBytesMut<'a> {
    pub(crate) start: *mut u8,
    length: usize,
    borrow: PhantomData<&'a mut [u8]>,
}

impl<'a> UserBytes<'a> {
    /// Bytes at an address.
    ///
    /// # Safety
    /// During `'a` the bytes can be read. No `&mut` leads to them, and they are in no region. Where
    /// they are only copied to ordinary memory, a signal handler may end the copy instead
    /// ([`load_code`](crate::load_code)).
    #[inline(always)]
    pub const unsafe fn new(start: *const u8, length: usize) -> UserBytes<'a> {
        UserBytes { start, length, borrow: PhantomData }
    }

    /// Their number.
    #[inline(always)]
    pub const fn len(self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.length == 0
    }

    /// A part. It panics where the index of a slice would.
    #[inline(always)]
    pub fn part(self, range: Range<usize>) -> UserBytes<'a> {
        check(&range, self.length);
        UserBytes { start: self.start.wrapping_add(range.start), length: range.len(), ..self }
    }

    /// The first bytes, and the others. It panics where that of a slice would.
    #[inline(always)]
    pub fn split_at(self, middle: usize) -> (UserBytes<'a>, UserBytes<'a>) {
        (self.part(0..middle), self.part(middle..self.length))
    }

    /// Copies all bytes out. Panics if `into` has another length.
    #[inline]
    pub fn copy_to(self, into: &mut [u8]) {
        assert_eq!(self.length, into.len());
        // SAFETY: both sides have this length, by the contract of `new`. They do not overlap, as no
        // `&mut` leads to the source.
        unsafe { copy::load_bytes(self.start, into.as_mut_ptr(), self.length) };
    }

    /// A copy of all bytes.
    #[cfg(feature = "std")]
    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = vec![0; self.length];
        self.copy_to(&mut copy);
        copy
    }
}

impl<'a> UserBytesMut<'a> {
    /// Bytes at an address.
    ///
    /// # Safety
    /// During `'a` the bytes can be written, or a signal handler ends the copy
    /// ([`load_code`](crate::load_code)). No Rust reference leads to them, and they are in no
    /// region.
    #[inline(always)]
    pub const unsafe fn new(start: *mut u8, length: usize) -> UserBytesMut<'a> {
        UserBytesMut { start, length, borrow: PhantomData }
    }

    /// Their number.
    #[inline(always)]
    pub const fn len(self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.length == 0
    }

    /// A part. It panics where the index of a slice would.
    #[inline(always)]
    pub fn part(self, range: Range<usize>) -> UserBytesMut<'a> {
        check(&range, self.length);
        UserBytesMut { start: self.start.wrapping_add(range.start), length: range.len(), ..self }
    }

    /// The first bytes, and the others. It panics where that of a slice would.
    #[inline(always)]
    pub fn split_at(self, middle: usize) -> (UserBytesMut<'a>, UserBytesMut<'a>) {
        (self.part(0..middle), self.part(middle..self.length))
    }

    /// Copies bytes over all bytes. Panics if `from` has another length.
    #[inline]
    pub fn copy_from(self, from: &[u8]) {
        assert_eq!(self.length, from.len());
        // SAFETY: both sides have this length, by the contract of `new`, by which they do not
        // overlap either.
        unsafe { copy::load_bytes(from.as_ptr(), self.start, self.length) };
    }

    /// Sets all bytes to zero.
    #[inline]
    pub fn clear(self) {
        // SAFETY: by the contract of `new`.
        unsafe { copy::clear(self.start, self.length) };
    }
}

#[inline(always)]
fn check(part: &Range<usize>, length: usize) {
    if part.start > part.end || part.end > length {
        refuse(part.start, part.end, length);
    }
}

/// Apart, since a range that a message refers to would always be stored.
#[cold]
#[inline(never)]
fn refuse(start: usize, end: usize, length: usize) -> ! {
    panic!("{start}..{end} is no part of {length} bytes");
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for UserBytes<'a> {
    #[inline(always)]
    fn from(bytes: &'a T) -> UserBytes<'a> {
        let bytes = bytes.as_ref();
        // SAFETY: a slice, which is borrowed during `'a`.
        unsafe { UserBytes::new(bytes.as_ptr(), bytes.len()) }
    }
}

impl<'a, T: AsMut<[u8]> + ?Sized> From<&'a mut T> for UserBytesMut<'a> {
    #[inline(always)]
    fn from(bytes: &'a mut T) -> UserBytesMut<'a> {
        let bytes = bytes.as_mut();
        // SAFETY: a slice, which is borrowed during `'a`, and by nothing else.
        unsafe { UserBytesMut::new(bytes.as_mut_ptr(), bytes.len()) }
    }
}

impl Default for UserBytesMut<'_> {
    fn default() -> Self {
        (&mut []).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_copied_and_cleared_whole_and_alone() {
        let source: Vec<u8> = (1..=200).collect();
        let from = UserBytes::from(&source);
        for length in [0, 1, 3, 4, 7, 8, 15, 16, 17, 63, 64, 65, 150] {
            let mut bytes = [9u8; 200];
            let into = UserBytesMut::from(&mut bytes);
            into.part(20..20 + length).copy_from(&from.part(30..30 + length).to_vec());
            assert_eq!(bytes[20..20 + length], source[30..30 + length]);
            UserBytesMut::from(&mut bytes).part(20..20 + length).clear();
            assert!(
                bytes.iter().enumerate().all(|(at, &byte)| byte == if (20..20 + length).contains(&at) { 0 } else { 9 })
            );
        }
        let (before, after) = from.split_at(200);
        assert_eq!((before.to_vec(), after.is_empty()), (source.clone(), true));
    }

    #[test]
    #[should_panic(expected = "no part of 5 bytes")]
    fn a_part_does_not_reach_behind_the_end() {
        UserBytes::from(b"bytes").split_at(5).0.part(3..6);
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn a_copy_has_the_length_of_both_sides() {
        UserBytes::from(b"bytes").copy_to(&mut [0; 4]);
    }
}
