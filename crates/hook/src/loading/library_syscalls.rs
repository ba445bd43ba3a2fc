//! System calls by instructions of libraries: of those that a program loads at its start, and of
//! those that it maps later (dlopen).
//!
//! Each such instruction is replaced by one that traps (`hlt`): both have two bytes with a `nop`,
//! so no other code moves. The handler of the fault sends the thread to a slot, as if there were a
//! jump at the site. Threads need no preparation for it. A trap costs some microseconds; one that
//! repeats becomes a jump ([`hot_sites`](crate::loading::hot_sites)).
//!
//! Libraries are scanned once per content: see [`answers`].
//!
//! Not seen: code that is generated at run time or mapped without a file, and libraries of which
//! the instruction cannot be distinguished from data ([`Scan`]).
//!
//! Invariants
//! - Only bytes that are an instruction for certain are changed: data changed by mistake would
//!   corrupt the program.
//! - A site has its slot before its bytes change. Its pages are the process's own (MAP_PRIVATE),
//!   and nothing executes there yet.

use crate::abi::sys;
use crate::loading::answers::{self, Answers, Scanned};
use crate::loading::elf_image::{Code, ElfImage};
use crate::loading::file_identity::{self, FileId, HEAD_BYTES};
use crate::loading::inline_syscalls::{self, CALL, next_pair, number_after};
use crate::loading::loaded::LoadedProgram;
use crate::loading::{hot_sites, instruction_lengths, narrow_calls, patch, site_slots};
use crate::process::environment;
use crate::routes::Routes;
use crate::signals;
use core::ops::Range;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};

/// What replaces an instruction: `hlt`, which only the kernel may execute, and `nop`; or, of
/// `int 0x80`, its second byte.
const TRAPS: [([u8; 2], [u8; 2]); 2] = [(CALL, [0xf4, 0x90]), (narrow_calls::INSTRUCTION, [0xf4, 0x80])];
/// Maximum size of a library's file that is scanned.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Whether this copy of the library patches others: an early copy leaves them to its successor.
static IS_ACTIVE: AtomicBool = AtomicBool::new(false);

/// Changes the sites of the libraries that the loader has mapped.
///
/// # Safety
/// Only for the constructor; `environment` is the program's.
pub unsafe fn patch_loaded(
    environment: *const *const u8,
    routes: &Routes,
    answers: &mut Answers,
    makes_calls: impl Fn(&[u8]) -> bool,
) {
    const TOGETHER: usize = 16;
    IS_ACTIVE.store(true, Relaxed);
    let mut found = [Library::default(); TOGETHER];
    let (mut count, mut has_sanitizer) = (0, false);
    // SAFETY: by the caller's promise; the libraries stay mapped meanwhile.
    unsafe {
        let Some(program) = LoadedProgram::find(environment) else { return };
        program.each_library(|base, name| {
            if makes_calls(name) || name == environment::library() {
                return;
            }
            has_sanitizer |= is_sanitizer(name);
            let (id, keeps_traps) = (file_identity::of_library(name, base), is_any_sanitizer(name));
            found[count] = Library { base, id, has_sites: None, keeps_traps };
            count += 1;
            if count == TOGETHER {
                patch_some(&mut found[..core::mem::take(&mut count)], routes, answers);
            }
        });
        patch_some(&mut found[..count], routes, answers);
        if has_sanitizer {
            program.give_way();
        }
    }
}

/// Whether a library is the runtime of AddressSanitizer.
fn is_sanitizer(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    name.starts_with(b"libasan.so") || name.starts_with(b"libclang_rt.asan")
}

/// Whether a library is the runtime of a sanitizer: the tracer of LeakSanitizer makes its calls.
fn is_any_sanitizer(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    name.starts_with(b"libclang_rt.") || name.windows(6).any(|part| part == b"san.so")
}

/// # Safety
/// The libraries are mapped at their bases.
unsafe fn patch_some(libraries: &mut [Library], routes: &Routes, answers: &mut Answers) {
    if libraries.is_empty() {
        return;
    }
    for library in libraries.iter_mut() {
        library.has_sites = library.id.and_then(|id| answers.find(Scanned::Library, id));
    }
    for library in libraries.iter().filter(|library| library.has_sites != Some(false)) {
        // SAFETY: by the caller's promise.
        unsafe { scan(library, routes) };
    }
}

/// Its buffers are not to enlarge the start's part of the stack: most starts scan nothing.
///
/// # Safety
/// The library is mapped at its base.
#[cold]
#[inline(never)]
unsafe fn scan(library: &Library, routes: &Routes) {
    // SAFETY: by the caller's promise.
    if let Some(image) = unsafe { ElfImage::in_memory(library.base) } {
        let place = |code: &Code<'_>| Some(library.base.wrapping_add(code.address));
        let has_sites = patch_sites(&image, routes, place);
        if has_sites && !library.keeps_traps {
            record_code(&image, place);
        }
        library.remember(has_sites);
    }
}

/// A mapping that the kernel has just made of a file.
#[derive(Debug, Clone)]
pub struct NewMapping {
    /// Where it is.
    pub addresses: Range<usize>,
    /// Offset of its start in the file.
    pub offset: usize,
}

/// Changes the sites in a new private mapping of code. `read` reads from an offset of the file with
/// that status; returns the number of bytes.
pub fn patch_mapped(
    mapping: &NewMapping,
    routes: &Routes,
    status: &libc::stat,
    read: &mut dyn FnMut(u64, &mut [u8]) -> usize,
) {
    if !IS_ACTIVE.load(Relaxed) {
        return;
    }
    site_slots::release(&mapping.addresses);
    hot_sites::forget(&mapping.addresses);
    let mut head = [0u8; HEAD_BYTES];
    let file_bytes = status.st_size as u64;
    if !(HEAD_BYTES as u64..FILE_BYTES_MAX).contains(&file_bytes) || read(0, &mut head) < HEAD_BYTES {
        return;
    }
    if ElfImage::headers(&head).is_none() {
        return;
    }
    let id = Some(file_identity::of(status, Some(&head)));
    let mut library = Library { base: 0, id, has_sites: None, keeps_traps: false };
    library.has_sites = library.id.and_then(|id| Answers::default().find(Scanned::Library, id));
    if library.has_sites == Some(false) {
        return;
    }
    let bytes = file_bytes as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let Ok(start) = sys::map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1) else { return };
    // SAFETY: new memory without other users, until the end of the reference.
    let file = unsafe { core::slice::from_raw_parts_mut(start, bytes) };
    let mut filled = 0;
    while filled < bytes {
        match read(filled as u64, &mut file[filled..]) {
            0 => break,
            count => filled += count,
        }
    }
    if let Some(image) = ElfImage::in_file(file) {
        let place = |code: &Code<'_>| {
            let start = mapping.addresses.start.checked_add_signed(code.offset as isize - mapping.offset as isize)?;
            (start < mapping.addresses.end && start + code.bytes.len() > mapping.addresses.start).then_some(start)
        };
        let has_sites = patch_sites(&image, routes, place);
        if has_sites {
            record_code(&image, |code| place(code).filter(|start| is_whole(&mapping.addresses, *start, code)));
        }
        library.remember(has_sites);
    }
    // SAFETY: the reference has ended.
    unsafe { sys::unmap(start, bytes) };
}

/// Changes the sites of a library; returns whether it has any. `place`: where a segment is mapped;
/// `None`: it is not.
fn patch_sites(image: &ElfImage<'_>, routes: &Routes, place: impl Fn(&Code<'_>) -> Option<usize>) -> bool {
    let mut memory = None;
    let mut found = false;
    for code in image.code() {
        for (call, trap) in TRAPS {
            let mut scan = Scan { routes, function: 0..0, at: 0, number: None };
            let mut from = 0;
            while let Some(at) = next_pair(code.bytes, call, from) {
                from = at + 1;
                if !scan.is_site(image, &code, call, at) {
                    continue;
                }
                found = true;
                let Some(start) = place(&code) else { continue };
                if memory.is_none() {
                    memory = Some(sys::open(b"/proc/self/mem\0", libc::O_RDWR));
                }
                if let Some(Ok(memory)) = &memory {
                    patch_site(memory, start + at, trap);
                }
            }
        }
    }
    found
}

/// Whether a mapping holds all code of a segment that begins there.
fn is_whole(addresses: &Range<usize>, start: usize, code: &Code<'_>) -> bool {
    addresses.start <= start && start + code.bytes.len() <= addresses.end
}

/// Lets sites be replaced that are used again and again.
fn record_code(image: &ElfImage<'_>, place: impl Fn(&Code<'_>) -> Option<usize>) {
    for code in image.code() {
        if let Some(start) = place(&code) {
            hot_sites::record_near(start..start + code.bytes.len(), None);
        }
    }
}

/// Changes one instruction, by a way that needs no right to write code.
fn patch_site(memory: &sys::Fd, address: usize, trap: [u8; 2]) {
    if !patch::prepare_site_slots() || !site_slots::claim((address + trap.len()) as u64) {
        return;
    }
    if memory.write_at(address as u64, &trap) && !site_slots::HAS_SITES.swap(true, AcqRel) {
        signals::let_faults_nest();
    }
}

/// A scan of a segment. An instruction is a site if its bytes are certainly one, and its number may
/// concern the image. They are certain if the instructions of the function that contains them lead
/// there, or if an instruction before or after them says so: the number, or the comparison with the
/// highest error.
#[derive(Debug)]
struct Scan<'r> {
    routes: &'r Routes,
    function: Range<usize>,
    /// Address of the next instruction.
    at: usize,
    /// The number in the call's register there, if it is known.
    number: Option<u32>,
}

impl Scan<'_> {
    /// `offset`: where the bytes of the instruction are, after all earlier ones.
    fn is_site(&mut self, image: &ElfImage<'_>, code: &Code<'_>, call: [u8; 2], offset: usize) -> bool {
        let number = match self.by_function(image, code, offset) {
            Some(Some(number)) => number,
            Some(None) => return false,
            None => match by_context(code.bytes, offset) {
                Some(number) => number,
                None => return false,
            },
        };
        // Tables of constants hold the bytes more often than functions hold `int 0x80`.
        (call == CALL || number.is_some()) && inline_syscalls::is_relevant(call, number, self.routes)
    }

    /// Follows the instructions of a function. `None`: they are not known; `Some(None)`: the bytes
    /// belong to another instruction.
    fn by_function(&mut self, image: &ElfImage<'_>, code: &Code<'_>, offset: usize) -> Option<Option<Option<u32>>> {
        let address = code.address + offset;
        if !self.function.contains(&address) {
            self.function = image.function_at(address)?;
            (self.at, self.number) = (self.function.start, None);
        }
        while self.at < address {
            let rest = code.bytes.get(self.at.checked_sub(code.address)?..)?;
            let Some(length) = instruction_lengths::length(rest) else {
                self.function = 0..0;
                return None;
            };
            self.number = number_after(&rest[..length], self.number);
            self.at += length;
        }
        Some((self.at == address).then_some(self.number))
    }
}

/// Whether the instructions around the bytes show that they are a call; its number, if known.
fn by_context(code: &[u8], offset: usize) -> Option<Option<u32>> {
    const BEHIND: [[u8; 6]; 2] = [[0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff], [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff]];
    let before = &code[..offset];
    let number = before.last_chunk().map(|bytes| u32::from_le_bytes(*bytes)).filter(|&number| number < 512);
    let opcode = &before[..offset.saturating_sub(4)];
    if number.is_some() && opcode.last() == Some(&0xb8) {
        // With a prefix it may be the number of another register.
        let is_plain = opcode.iter().rev().nth(1).is_none_or(|prefix| !(0x40..0x50).contains(prefix));
        return Some(number.filter(|_| is_plain));
    }
    if number.is_some() && opcode.ends_with(&[0x48, 0xc7, 0xc0]) {
        return Some(number);
    }
    // Go's vfork has taken its return address from the stack, and puts it back first.
    let behind = match code.get(offset + 2..)? {
        [0x41, 0x50..=0x57, rest @ ..] | [0x50..=0x57, rest @ ..] => rest,
        rest => rest,
    };
    BEHIND.iter().any(|part| behind.starts_with(part)).then_some(None)
}

/// A library, and the answer of an earlier scan.
#[derive(Debug, Clone, Copy, Default)]
struct Library {
    /// Where it is mapped.
    base: usize,
    id: Option<FileId>,
    has_sites: Option<bool>,
    /// Whether its sites must continue to trap.
    keeps_traps: bool,
}

impl Library {
    /// Keeps an answer that was not known, for later programs.
    fn remember(&self, has_sites: bool) {
        if let (Some(id), None) = (self.id, self.has_sites) {
            answers::remember(Scanned::Library, id, has_sites);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_instructions_show_a_call() {
        let at = |code: &[u8]| by_context(code, code.windows(2).position(|pair| pair == [0x0f, 5]).unwrap());
        assert_eq!(at(&[0x90, 0xb8, 2, 0, 0, 0, 0x0f, 5, 0xc3]), Some(Some(2)));
        assert_eq!(at(&[0x48, 0xc7, 0xc0, 1, 0, 0, 0, 0x0f, 5]), Some(Some(1)));
        assert_eq!(at(&[0x41, 0xb8, 2, 0, 0, 0, 0x0f, 5, 0xc3]), Some(None), "another register");
        assert_eq!(at(&[0x0f, 5, 0x48, 0x3d, 1, 0xf0, 0xff, 0xff]), Some(None));
        assert_eq!(at(&[0x0f, 5, 0x41, 0x54, 0x48, 0x3d, 1, 0xf0, 0xff, 0xff]), Some(None), "with a push before it");
        assert_eq!(at(&[0xb8, 0, 0x10, 0, 0, 0x0f, 5, 0xc3]), None, "no call has this number");
        assert_eq!(at(&[0x0f, 5]), None);
        assert_eq!(at(&[0x66, 0xc7, 7, 0x0f, 5, 0xc3]), None, "part of another instruction");
    }
}
