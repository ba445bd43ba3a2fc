//! A library as its program headers describe it: mapped by the loader, or its file in memory.
//!
//! Invariant: nothing in a library is trusted; each range is checked against its segment.

use core::marker::PhantomData;
use core::ops::Range;
use libc::{PF_R, PF_X, PT_GNU_EH_FRAME, PT_LOAD};

/// Bytes at the start of a library that hold its headers.
pub const HEAD_BYTES: usize = 4096;
const HEADER_BYTES: usize = 56;
const FILE_HEADER_BYTES: usize = 64;
/// As many as that many bytes can describe. Linkers make four to eight; tools that edit libraries
/// (patchelf) add more.
const LOADS_MAX: usize = (HEAD_BYTES - FILE_HEADER_BYTES) / HEADER_BYTES;

/// Part of a library.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    /// Address by the headers.
    address: usize,
    offset: usize,
    bytes: usize,
    /// Where it is in memory.
    place: usize,
    is_code: bool,
}

/// A library.
pub struct ElfImage<'m> {
    loads: [Load; LOADS_MAX],
    /// The linker's table of functions: address and bytes.
    functions: Option<(usize, &'m [u8])>,
    memory: PhantomData<&'m [u8]>,
}

/// One of its segments with code.
#[derive(Debug, Clone, Copy)]
pub struct Code<'m> {
    /// Address by the headers.
    pub address: usize,
    /// Offset in the file.
    pub offset: usize,
    /// The segment's bytes in the file.
    pub bytes: &'m [u8],
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes) as usize)
}

impl<'m> ElfImage<'m> {
    /// A library that the loader mapped. `None`: it is laid out in an unusual way.
    ///
    /// # Safety
    /// `base`: where the loader mapped its first page, and its segments by their addresses, all
    /// until `'m` ends.
    pub unsafe fn in_memory(base: usize) -> Option<ElfImage<'m>> {
        // SAFETY: by the caller's promise.
        let head = unsafe { core::slice::from_raw_parts(base as *const u8, HEAD_BYTES) };
        // SAFETY: as above.
        unsafe { Self::parse(head, |load| Some(base.wrapping_add(load.address))) }
    }

    /// A library's file.
    pub fn in_file(file: &'m [u8]) -> Option<ElfImage<'m>> {
        let place = |load: &Load| {
            let end = load.offset.checked_add(load.bytes)?;
            (end <= file.len()).then_some(file.as_ptr() as usize + load.offset)
        };
        // SAFETY: the places are parts of the file (checked).
        unsafe { Self::parse(file.get(..HEAD_BYTES)?, place) }
    }

    /// The headers alone.
    pub fn headers(head: &'m [u8; HEAD_BYTES]) -> Option<ElfImage<'m>> {
        // SAFETY: segments without bytes.
        unsafe {
            Self::parse(head, |_| Some(head.as_ptr() as usize)).map(|image| ElfImage {
                loads: [Load::default(); LOADS_MAX],
                functions: None,
                ..image
            })
        }
    }

    /// # Safety
    /// `place` returns where a segment is in memory, readable until `'m` ends.
    unsafe fn parse(head: &[u8], place: impl Fn(&Load) -> Option<usize>) -> Option<ElfImage<'m>> {
        let (first, count) = (long(head, 32)?, (word(head, 56)? & 0xffff) as usize);
        let end = first.checked_add(count * HEADER_BYTES)?;
        if !head.starts_with(b"\x7fELF\x02\x01") || end > head.len() {
            return None;
        }
        let mut image = ElfImage { loads: [Load::default(); LOADS_MAX], functions: None, memory: PhantomData };
        let (mut used, mut functions) = (0, None);
        for at in (first..end).step_by(HEADER_BYTES) {
            let (kind, flags) = (word(head, at)?, word(head, at + 4)?);
            let (offset, address, bytes) = (long(head, at + 8)?, long(head, at + 16)?, long(head, at + 32)?);
            address.checked_add(bytes)?;
            match kind {
                PT_LOAD if flags & PF_R != 0 => {
                    let mut load = Load { address, offset, bytes, place: 0, is_code: flags & PF_X != 0 };
                    load.place = place(&load)?;
                    *image.loads.get_mut(used)? = load;
                    used += 1;
                }
                PT_GNU_EH_FRAME => functions = Some((address, bytes)),
                _ => {}
            }
        }
        image.functions = functions.and_then(|(address, bytes)| Some((address, image.at(address, bytes)?)));
        Some(image)
    }

    /// The segments with code.
    pub fn code(&self) -> impl Iterator<Item = Code<'m>> {
        self.loads.into_iter().filter(|load| load.is_code && load.bytes > 0).map(|load| Code {
            address: load.address,
            offset: load.offset,
            // SAFETY: the promise of the constructing functions.
            bytes: unsafe { core::slice::from_raw_parts(load.place as *const u8, load.bytes) },
        })
    }

    /// Bytes by their address.
    fn at(&self, address: usize, bytes: usize) -> Option<&'m [u8]> {
        let inside = |load: &&Load| address.checked_sub(load.address).is_some_and(|skip| skip <= load.bytes);
        let load = self.loads.iter().find(inside)?;
        let skip = address - load.address;
        // SAFETY: inside the segment (checked); the promise of the constructing functions.
        (bytes <= load.bytes - skip)
            .then(|| unsafe { core::slice::from_raw_parts((load.place + skip) as *const u8, bytes) })
    }

    /// The function that contains an address, by the linker's table and the function's own record,
    /// in the encoding that linkers and compilers use.
    pub fn function_at(&self, address: usize) -> Option<Range<usize>> {
        const ENCODINGS: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
        const TABLE: usize = 12;
        let (start, table) = self.functions.filter(|(_, table)| table.get(..4) == Some(&ENCODINGS))?;
        let entry = |at: usize| word(table, at).map(|offset| start.wrapping_add_signed(offset as i32 as isize));
        let (mut low, mut high) = (0, word(table, 8)? as usize);
        while low < high {
            let middle = low.midpoint(high);
            if entry(TABLE + 8 * middle)? <= address { low = middle + 1 } else { high = middle }
        }
        let index = low.checked_sub(1)?;
        let (begin, record) = (entry(TABLE + 8 * index)?, entry(TABLE + 8 * index + 4)?);
        // Length, common part, start relative to itself, length of the function.
        let fields = self.at(record, 16)?;
        let named = (record + 8).wrapping_add_signed(word(fields, 8)? as i32 as isize);
        let function = begin..begin.checked_add(word(fields, 12)? as usize)?;
        (named == begin && function.contains(&address)).then_some(function)
    }
}
