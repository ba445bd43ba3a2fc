//! The program and its libraries in memory, by the kernel's auxiliary vector and the loader's list:
//! without /proc, whose maps cost as much as a tenth of a program's start.
//!
//! Invariant: what is found here is complete, or nothing is found and /proc/self/maps is read.

use crate::loading::proc_maps::Mapping;
use core::ffi::CStr;
use libc::{AT_PHDR, AT_PHENT, AT_PHNUM, AT_SYSINFO_EHDR, PF_R, PF_W, PF_X, PT_DYNAMIC, PT_LOAD, PT_PHDR};

const PAGE_BYTES: usize = 4096;
/// Maximum size of a library that makes calls for others.
const LIBRARY_BYTES_MAX: usize = 64 << 20;
/// Type and flags, offset, address, address, bytes in the file, bytes in memory, alignment.
type Header = [u64; 7];

unsafe extern "C" {
    /// This library's first byte in memory; the linker defines it.
    static __ehdr_start: u8;
}

/// What the kernel says about a program.
pub struct LoadedProgram {
    /// Difference between addresses in memory and in the file.
    bias: usize,
    headers: &'static [Header],
    /// The kernel's code that runs in user space; zero if there is none.
    kernel_code: usize,
    /// Whether the bias is known for certain.
    is_sure: bool,
}

impl LoadedProgram {
    /// Finds it through the auxiliary vector after the environment.
    ///
    /// # Safety
    /// Only for the constructor; `environment` is the program's.
    pub unsafe fn find(environment: *const *const u8) -> Option<LoadedProgram> {
        let (mut address, mut count, mut kernel_code) = (0u64, 0u64, 0u64);
        // SAFETY: by the caller's promise: a list of pointers that ends with null, then pairs that
        // end with zero.
        unsafe {
            let mut next = environment;
            while !(*next).is_null() {
                next = next.add(1);
            }
            let mut pair = next.add(1).cast::<[u64; 2]>();
            while (*pair)[0] != 0 {
                match *pair {
                    [AT_PHDR, value] => address = value,
                    [AT_PHNUM, value] => count = value,
                    [AT_SYSINFO_EHDR, value] => kernel_code = value,
                    [AT_PHENT, value] if value != size_of::<Header>() as u64 => return None,
                    _ => {}
                }
                pair = pair.add(1);
            }
        }
        if address == 0 || address % 8 != 0 {
            return None;
        }
        // SAFETY: the kernel reports the address and number of the program's headers; they stay.
        let headers = unsafe { core::slice::from_raw_parts(address as *const Header, count as usize) };
        let own = headers.iter().find(|header| header[0] as u32 == PT_PHDR);
        let bias = own.map_or(0, |own| (address as usize).wrapping_sub(own[2] as usize));
        Some(LoadedProgram { bias, headers, kernel_code: kernel_code as usize, is_sure: own.is_some() })
    }

    /// The first segment of this kind: `is_it` gets type and flags.
    pub fn segment(&self, is_it: impl Fn(u32, u32) -> bool) -> Option<&'static [u8]> {
        let header = self.headers.iter().find(|header| is_it(header[0] as u32, (header[0] >> 32) as u32))?;
        Some(self.bytes_of(header))
    }

    fn bytes_of(&self, header: &Header) -> &'static [u8] {
        let start = self.bias.wrapping_add(header[2] as usize);
        // SAFETY: the loader mapped this many bytes of the file there, readable, and nothing writes
        // them.
        unsafe { core::slice::from_raw_parts(start as *const u8, header[4] as usize) }
    }

    /// The last segment that is neither code nor writable: constants, if the linker kept them
    /// apart.
    pub fn constants(&self) -> Option<&'static [u8]> {
        let has = |header: &Header, flags: u32| header[0] as u32 == PT_LOAD && (header[0] >> 32) as u32 & flags != 0;
        let code = self.headers.iter().position(|header| has(header, PF_X))?;
        let last = self.headers.iter().rposition(|header| has(header, PF_R) && !has(header, PF_W | PF_X))?;
        (last > code).then(|| self.bytes_of(&self.headers[last]))
    }

    /// Calls `visit` for the mappings of the libraries that `is_wanted` by their names, of this
    /// library, whose path is `own`, and of the kernel: for each the whole, then its code. `None`:
    /// the loader's list is not known.
    ///
    /// # Safety
    /// Only for the constructor, in the program's own namespace of libraries.
    pub unsafe fn libraries(
        &self,
        own: &'static [u8],
        is_wanted: impl Fn(&[u8]) -> bool,
        visit: &mut impl FnMut(&Mapping<'_>),
    ) -> Option<()> {
        let own_base = &raw const __ehdr_start as usize;
        // SAFETY: by the caller's promise.
        let mut next = unsafe { self.list() }?;
        while !next.is_null() {
            // SAFETY: the loader's list, which nothing changes meanwhile; names are strings.
            let (entry, name) = unsafe { (&*next, CStr::from_ptr((*next).name.cast()).to_bytes()) };
            if entry.base != own_base && is_wanted(name) {
                // A library that was linked for another address does not begin at its base.
                if entry.dynamic.wrapping_sub(entry.base) > LIBRARY_BYTES_MAX {
                    return None;
                }
                // SAFETY: it begins there.
                unsafe { visit_library(entry.base, name, visit) }?;
            }
            next = entry.next;
        }
        // SAFETY: this library and the kernel's begin there.
        unsafe {
            visit_library(own_base, own, visit)?;
            if self.kernel_code != 0 {
                visit_library(self.kernel_code, b"[vdso]", visit)?;
            }
        }
        Some(())
    }

    /// Calls `visit` with the base and the path of each library that the loader has mapped in the
    /// usual layout.
    ///
    /// # Safety
    /// As for [`LoadedProgram::libraries`].
    pub unsafe fn each_library(&self, mut visit: impl FnMut(usize, &'static [u8])) {
        /// Distance of a library's dynamic section from its start.
        const DYNAMIC_MAX: usize = 1 << 30;
        // SAFETY: by the caller's promise.
        let mut next = unsafe { self.list() }.unwrap_or(core::ptr::null());
        while !next.is_null() {
            // SAFETY: as in `libraries`.
            let (entry, name) = unsafe { (&*next, CStr::from_ptr((*next).name.cast()).to_bytes()) };
            let is_usual = entry.base != 0
                && entry.base.is_multiple_of(PAGE_BYTES)
                && entry.dynamic.wrapping_sub(entry.base) < DYNAMIC_MAX;
            // The program itself has no name.
            if is_usual && !name.is_empty() && entry.base != self.kernel_code {
                visit(entry.base, name);
            }
            next = entry.next;
        }
    }

    /// Moves this library to the end of the loader's list: AddressSanitizer insists on being the
    /// first one there. Nothing depends on the order, because other lists serve the search of
    /// symbols.
    ///
    /// # Safety
    /// As for [`LoadedProgram::libraries`].
    pub unsafe fn give_way(&self) {
        let own_base = &raw const __ehdr_start as usize;
        // SAFETY: by the caller's promise: the loader's list, which nothing else uses meanwhile.
        // The first entry is the program's, and the loader's memory is writable.
        unsafe {
            let Some(first) = self.list() else { return };
            let (mut own, mut last) = (core::ptr::null_mut::<LinkMap>(), first.cast_mut());
            let mut next = (*first).next.cast_mut();
            while !next.is_null() {
                if (*next).base == own_base {
                    own = next;
                }
                last = next;
                next = (*next).next.cast_mut();
            }
            if own.is_null() || own == last || (*own).previous.is_null() {
                return;
            }
            let (previous, behind) = ((*own).previous.cast_mut(), (*own).next.cast_mut());
            ((*previous).next, (*behind).previous) = (behind, previous);
            ((*own).previous, (*own).next) = (last, core::ptr::null());
            (*last).next = own;
        }
    }

    /// The loader's list, which its dynamic section leads to.
    ///
    /// # Safety
    /// As for [`LoadedProgram::libraries`].
    unsafe fn list(&self) -> Option<*const LinkMap> {
        const DT_DEBUG: u64 = 21;
        let dynamic = self.is_sure.then(|| self.segment(|kind, _| kind == PT_DYNAMIC)).flatten()?;
        let (pairs, _) = dynamic.as_chunks::<16>();
        let word = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        let debug = pairs.iter().find(|pair| word(&pair[..]) == Some(DT_DEBUG)).and_then(|pair| word(&pair[8..]))?;
        if debug == 0 {
            return None;
        }
        // SAFETY: the loader stored the address of its record there before it ran constructors.
        let debug = unsafe { &*(debug as *const Debug) };
        (debug.version >= 1 && !debug.list.is_null()).then_some(debug.list)
    }
}

/// Calls `visit` for the mappings of this library and of the kernel, as
/// [`LoadedProgram::libraries`] does.
///
/// # Safety
/// `kernel_code`: where the kernel's code is; zero if there is none.
#[cfg(feature = "loader")]
pub unsafe fn visit_own(kernel_code: usize, own: &[u8], visit: &mut impl FnMut(&Mapping<'_>)) {
    // SAFETY: by the caller's promise; the linker defines the other address.
    unsafe {
        visit_library(&raw const __ehdr_start as usize, own, visit);
        if kernel_code != 0 {
            visit_library(kernel_code, b"[vdso]", visit);
        }
    }
}

/// `struct r_debug`, as debuggers see it.
#[repr(C)]
struct Debug {
    version: i32,
    list: *const LinkMap,
}

/// `struct link_map`, as debuggers see it.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const u8,
    dynamic: usize,
    next: *const LinkMap,
    previous: *const LinkMap,
}

/// Visits a library, and its code. `None`: it is laid out in an unusual way.
///
/// # Safety
/// The library's first page is mapped at `base`.
unsafe fn visit_library(base: usize, path: &[u8], visit: &mut impl FnMut(&Mapping<'_>)) -> Option<()> {
    const MAGIC: &[u8] = b"\x7fELF";
    if !base.is_multiple_of(PAGE_BYTES) {
        return None;
    }
    // SAFETY: by the caller's promise.
    let head = unsafe { core::slice::from_raw_parts(base as *const u8, PAGE_BYTES) };
    let word = |at: usize| head.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
    let (first, count) = (word(32)? as usize, (word(56)? & 0xffff) as usize);
    let end = first.checked_add(count * size_of::<Header>())?;
    if !head.starts_with(MAGIC) || first % 8 != 0 || end > PAGE_BYTES {
        return None;
    }
    // SAFETY: inside the page and aligned (checked); nothing writes it.
    let headers = unsafe { core::slice::from_raw_parts((base + first) as *const Header, count) };
    let (mut last, mut code) = (base, None);
    for header in headers.iter().filter(|header| header[0] as u32 == PT_LOAD) {
        let [kind, offset, address, _, bytes, memory_bytes, _] = *header;
        let start = base + (address as usize & !(PAGE_BYTES - 1));
        last = last.max(base + (address + memory_bytes) as usize);
        if (kind >> 32) as u32 & PF_X != 0 && code.is_none() {
            let end = base + ((address + bytes) as usize).next_multiple_of(PAGE_BYTES);
            code = Some((start, end, offset & !(PAGE_BYTES as u64 - 1)));
        }
    }
    let (start, code_end, offset) = code?;
    let end = last.next_multiple_of(PAGE_BYTES);
    visit(&Mapping { start: base, end, offset: 0, path, is_code: false, is_accessible: true });
    visit(&Mapping { start, end: code_end, offset, path, is_code: true, is_accessible: true });
    Some(())
}
