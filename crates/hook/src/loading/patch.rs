//! Patches a library's call sites, by its table.
//!
//! Invariants: patching happens once, before the program has threads, handlers or hooked calls. A
//! site is changed only if its bytes are those that were analysed. Every slot is completely written
//! before a site leads to it.
//!
//! Decision: docs/decisions/run-calls.md, "Each patched system call has a slot".

use crate::abi::entry::{SLOT_BYTES, SLOT_RETURN, SLOTS, directfs_begin, directfs_entry, directfs_slots};
use crate::abi::sys;
use crate::handoff;
use crate::loading::file_identity::FileId;
use crate::loading::shared_text::{self, SLOTS_PER_PAGE};
use crate::loading::{early, site_slots};
use crate::process::{environment, user_namespace};
use crate::table::{self, Header, NO_FIXUP, Site};
use core::ops::Range;
use libc::PT_NOTE;
use posix::OVERFLOW_ID;

/// A jump with a displacement of four bytes.
const JUMP: u8 = 0xe9;
/// Fills the rest of a window.
const TRAP: u8 = 0xcc;

/// A library in this process.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    /// Its load address.
    pub base: usize,
    /// Its code.
    pub code: (usize, usize),
    /// The identity of its file's content, if it is known.
    pub id: Option<FileId>,
}

/// Why sites are not patched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The library has no build-id.
    Unnamed,
    /// There is no table of the library, or the table is incomplete or not trusted.
    NoTable,
    /// The code differs from the analysed code.
    Changed,
    /// More sites than slots.
    TooMany,
    /// The library is too far away for a jump.
    TooFar,
    /// The kernel does not permit changes of code.
    Forbidden,
}

/// Patches the libraries; returns the next free slot, which begins a page. `may_share`: with code
/// that all processes share, if there is such code; if not, it is made if the libraries `may_fit`
/// other processes.
pub fn patch<'l>(
    libraries: impl Iterator<Item = &'l Library> + Clone,
    may_share: bool,
    may_fit: impl FnOnce() -> bool,
) -> Result<usize, Refusal> {
    if may_share && let Some(slots) = shared_text::map(libraries.clone())? {
        return Ok(slots);
    }
    let mut next = 0;
    for library in libraries.clone() {
        let build_id = build_id(library).ok_or(Refusal::Unnamed)?;
        next = with_sites(build_id, |sites| patch_all(library, sites, next)).ok_or(Refusal::NoTable)??;
    }
    if may_share && next > 0 && may_fit() {
        shared_text::make(libraries, next);
    }
    Ok(next)
}

/// Uses the sites in the table of a library. `None`: there is no such table.
pub fn with_sites<R>(build_id: &[u8], act: impl FnOnce(&[Site]) -> R) -> Option<R> {
    let words = open_table(build_id)?;
    let result = table::open(words, build_id).ok().map(|(_, sites)| act(sites));
    // SAFETY: the table was mapped for this, and no reference to it is left.
    unsafe { sys::unmap(words.as_ptr().cast_mut().cast(), size_of_val(words)) };
    result
}

/// Maps the table beside this library, if its owner is trusted.
fn open_table(build_id: &[u8]) -> Option<&'static [u64]> {
    /// Maximum size of a table, whatever a file says.
    const BYTES_MAX: u64 = 1 << 20;
    let mut path = [0u8; handoff::ENTRY_BYTES_MAX + 96];
    let directory = environment::library();
    let length = directory.iter().rposition(|&byte| byte == b'/')? + 1;
    path[..length].copy_from_slice(&directory[..length]);
    let version = directory[length..].strip_prefix(b"preload-")?.strip_suffix(b".so")?;
    let end = write_name(&mut path[length..], build_id, version)?;
    let file = sys::open(&path[..=length + end], libc::O_RDONLY | libc::O_NOFOLLOW).ok()?;
    let status = file.status().ok()?;
    let bytes = status.st_size as u64;
    if !is_trusted(&status) || !(size_of::<Header>() as u64..=BYTES_MAX).contains(&bytes) {
        return None;
    }
    let start = file.map(bytes as usize, libc::PROT_READ, libc::MAP_PRIVATE).ok()?;
    // SAFETY: the mapping has these bytes, is aligned to pages and stays until `with_sites` unmaps
    // it. If the file is truncated meanwhile, the process gets a signal; only the file's owner can
    // do that.
    Some(unsafe { core::slice::from_raw_parts(start.cast(), bytes as usize / 8) })
}

/// Whether a file belongs to root or the user, and no other user can write it. A user namespace
/// shows all owners alike that have no number in it. The launcher has checked the path before.
pub fn is_trusted(status: &libc::stat) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    let has_no_number = || user_namespace::current().is_some() && status.st_uid == OVERFLOW_ID;
    let is_ours = status.st_uid == 0 || status.st_uid == sys::effective_user() || has_no_number();
    is_ours && status.st_mode & OTHERS_WRITE == 0
}

/// The name of a table: the build-id in hexadecimal, the version of this library and a suffix.
/// Returns the length without the zero byte.
fn write_name(into: &mut [u8], build_id: &[u8], version: &[u8]) -> Option<usize> {
    let mut length = 0;
    let mut push = |part: &[u8]| {
        into.get_mut(length..length + part.len())?.copy_from_slice(part);
        length += part.len();
        Some(())
    };
    for byte in build_id {
        push(&hexadecimal(*byte))?;
    }
    [b"-", version, crate::TABLE_ENDING.as_bytes(), b"\0"].into_iter().try_for_each(push)?;
    Some(length - 1)
}

/// The two digits of a byte.
pub fn hexadecimal(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}

/// The build-id of a library in memory, from its first page.
pub fn build_id(library: &Library) -> Option<&'static [u8]> {
    const FIRST_PAGE: usize = 4096;
    // SAFETY: the loader mapped the file's first page there, readable and permanently; nothing
    // writes it.
    build_id_of(unsafe { core::slice::from_raw_parts(library.base as *const u8, FIRST_PAGE) })
}

/// The build-id in the first page of a library.
pub fn build_id_of(page: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| page.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let table = word(32)? as usize;
    let count = (word(56)? & 0xffff) as usize;
    for index in 0..count {
        let header = table + index * 56;
        if word(header)? != PT_NOTE {
            continue;
        }
        let (notes, bytes) = (word(header + 16)? as usize, word(header + 32)? as usize);
        if let Some(id) = page.get(notes..notes + bytes).and_then(build_id_in) {
            return Some(id);
        }
    }
    None
}

/// The build-id in a segment of notes.
pub fn build_id_in(notes: &[u8]) -> Option<&[u8]> {
    const NT_GNU_BUILD_ID: u32 = 3;
    let word = |at: usize| notes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let mut note = 0;
    while note + 12 <= notes.len() {
        let (name, content, kind) = (word(note)? as usize, word(note + 4)? as usize, word(note + 8)?);
        let start = note + 12 + name.next_multiple_of(4);
        if kind == NT_GNU_BUILD_ID && content <= table::BUILD_ID_BYTES_MAX {
            return notes.get(start..start + content);
        }
        note = start + content.next_multiple_of(4);
    }
    None
}

/// Prepares the slots of sites that are found later, unless they are; false if that is not
/// possible.
pub fn prepare_site_slots() -> bool {
    // A program that loads others has them in its file: `entry_code`.
    let has_slots = cfg!(feature = "loader");
    site_slots::prepare(|first| if has_slots { Some(site_slots::SITES_MAX) } else { fill_site_slots(first).ok() })
}

/// Fills the slots from `first` on, which begin a page and which no site leads to, for sites that
/// are not known yet; returns their number.
fn fill_site_slots(first: usize) -> Result<usize, Refusal> {
    let count = site_slots::SITES_MAX.min(SLOTS.saturating_sub(first));
    let slots = &raw mut directfs_slots as usize;
    // Other threads may execute the slots before these.
    let own_slots = slots + first * SLOT_BYTES..slots + SLOTS * SLOT_BYTES;
    if count == 0 {
        return Err(Refusal::TooMany);
    }
    make_writable(&own_slots)?;
    for (index, back) in site_slots::BACK.iter().take(count).enumerate() {
        let slot = slots + (first + index) * SLOT_BYTES;
        let content = inline_syscall_content(slot, back as *const _ as usize).ok_or(Refusal::TooFar)?;
        // SAFETY: as in `patch_all`.
        unsafe { core::ptr::copy_nonoverlapping(content.as_ptr(), slot as *mut u8, SLOT_BYTES) };
    }
    make_executable(&own_slots)?;
    Ok(count)
}

fn patch_all(library: &Library, sites: &[Site], next: usize) -> Result<usize, Refusal> {
    if sites.len() > SLOTS - next {
        return Err(Refusal::TooMany);
    }
    let code = library.code.0..library.code.1;
    for site in sites {
        let window = library.base + site.window as usize;
        let bytes = usize::from(site.window_bytes);
        if !table::is_sound(site) || !code.contains(&window) || !code.contains(&(window + bytes)) {
            return Err(Refusal::Changed);
        }
        // SAFETY: the window lies in mapped code (checked), which is readable and which nothing
        // changes.
        let present = unsafe { core::slice::from_raw_parts(window as *const u8, bytes) };
        if present != &site.original[..bytes] && !is_taken(present, window, &early::slots_before()) {
            return Err(Refusal::Changed);
        }
    }
    let slots = &raw mut directfs_slots as usize;
    let all_slots = slots..slots + SLOTS * SLOT_BYTES;
    make_writable(&all_slots)?;
    let mut slot = slots + next * SLOT_BYTES;
    for site in sites {
        let content = slot_content(library, site, slot).ok_or(Refusal::TooFar)?;
        // SAFETY: the slot is one of this library's (counted above), writable, and no site leads to
        // it yet.
        unsafe { core::ptr::copy_nonoverlapping(content.as_ptr(), slot as *mut u8, SLOT_BYTES) };
        slot += SLOT_BYTES;
    }
    make_executable(&all_slots)?;
    make_writable(&code)?;
    for (index, site) in sites.iter().enumerate() {
        let window = library.base + site.window as usize;
        let Some(jump) = jump(window, slots + (next + index) * SLOT_BYTES) else { continue };
        // SAFETY: the window is writable now and was checked to be inside the code; nothing
        // executes it (see `make_writable`).
        unsafe { core::ptr::copy_nonoverlapping(jump.as_ptr(), window as *mut u8, usize::from(site.window_bytes)) };
    }
    make_executable(&code)?;
    Ok((next + sites.len()).next_multiple_of(SLOTS_PER_PAGE))
}

/// Writes the jumps into a copy of a library's file, for the library at its address. `None`: the
/// file does not match.
pub fn patch_copy(library: &Library, copy: &mut [u8], sites: &[Site], first: usize) -> Option<()> {
    let slots = &raw const directfs_slots as usize;
    for (index, site) in sites.iter().enumerate() {
        let (start, bytes) = (site.window as usize, usize::from(site.window_bytes));
        let window = copy.get_mut(start..start + bytes).filter(|window| **window == site.original[..bytes])?;
        let jump = jump(library.base + start, slots + (first + index) * SLOT_BYTES)?;
        window.copy_from_slice(&jump[..bytes]);
    }
    Some(())
}

/// Whether a window holds a jump to a slot of this library's early copy.
fn is_taken(present: &[u8], window: usize, slots: &Range<usize>) -> bool {
    match *present {
        [JUMP, a, b, c, d, ref rest @ ..] => {
            let target = (window + 5).wrapping_add_signed(i32::from_le_bytes([a, b, c, d]) as isize);
            slots.contains(&target) && rest.iter().all(|&byte| byte == TRAP)
        }
        _ => false,
    }
}

fn make_writable(range: &Range<usize>) -> Result<(), Refusal> {
    let start = range.start & !4095;
    // SAFETY: nothing executes there meanwhile: this is the only thread, and signals have no
    // handlers yet.
    let result = unsafe { sys::protect(start, range.end - start, libc::PROT_READ | libc::PROT_WRITE) };
    result.map_err(|_| Refusal::Forbidden)
}

fn make_executable(range: &Range<usize>) -> Result<(), Refusal> {
    let start = range.start & !4095;
    // SAFETY: nothing writes there any more.
    let result = unsafe { sys::protect(start, range.end - start, libc::PROT_READ | libc::PROT_EXEC) };
    result.map_err(|_| Refusal::Forbidden)
}

/// The displacement of a jump, relative to the byte after it.
fn displacement(behind: usize, target: usize) -> Option<[u8; 4]> {
    let distance = target.wrapping_sub(behind) as isize;
    Some(i32::try_from(distance).ok()?.to_le_bytes())
}

/// What replaces a window: a jump to its slot.
fn jump(window: usize, slot: usize) -> Option<[u8; table::WINDOW_BYTES_MAX]> {
    let mut bytes = [TRAP; table::WINDOW_BYTES_MAX];
    bytes[0] = JUMP;
    // The distance equals that of the way back, which was checked; a byte less in either direction
    // does not matter for slots in other pages.
    bytes[1..5].copy_from_slice(&displacement(window + 5, slot)?);
    Some(bytes)
}

/// `lea r11, [rip + 5]`: the address after the following jump.
const LINK: [u8; 7] = [0x4c, 0x8d, 0x1d, 5, 0, 0, 0];
const CALL: [u8; 2] = [0x0f, 0x05];

/// The code of a slot for a site that is found later: a word holds its return address. The second
/// instruction performs calls that create children in shared memory.
fn inline_syscall_content(slot: usize, back: usize) -> Option<[u8; SLOT_BYTES]> {
    const JUMP_BY_WORD: [u8; 2] = [0xff, 0x25];
    let mut bytes = [TRAP; SLOT_BYTES];
    let mut length = 0;
    let mut push = |part: &[u8]| {
        bytes[length..length + part.len()].copy_from_slice(part);
        length += part.len();
        length
    };
    push(&LINK);
    let behind = slot + push(&[JUMP]) + 4;
    push(&displacement(behind, directfs_entry as *const () as usize)?);
    push(&CALL);
    let behind = slot + push(&JUMP_BY_WORD) + 4;
    push(&displacement(behind, back)?);
    push(&CALL);
    push(&LINK);
    let behind = slot + push(&[JUMP]) + 4;
    push(&displacement(behind, directfs_begin as *const () as usize)?);
    let behind = slot + push(&JUMP_BY_WORD) + 4;
    push(&displacement(behind, back)?);
    // The call's address is not known yet: zero.
    bytes[SLOT_RETURN..].copy_from_slice(&(slot as u64).wrapping_neg().to_ne_bytes());
    Some(bytes)
}

/// Whether a site creates threads or children in the same memory.
fn makes_threads(site: &Site) -> bool {
    const NUMBERS: [i64; 3] = [libc::SYS_clone, libc::SYS_clone3, libc::SYS_vfork];
    let number = match site.code {
        [0xb8, a, b, c, d, ..] if site.before_bytes == 5 && site.after_bytes == 0 => u32::from_le_bytes([a, b, c, d]),
        _ => return false,
    };
    NUMBERS.contains(&i64::from(number))
}

/// The code of a slot; `None` if a target is too far away.
fn slot_content(library: &Library, site: &Site, slot: usize) -> Option<[u8; SLOT_BYTES]> {
    let mut bytes = [TRAP; SLOT_BYTES];
    let before = usize::from(site.before_bytes);
    let after = usize::from(site.after_bytes);
    let mut length = 0;
    let mut push = |part: &[u8]| {
        bytes[length..length + part.len()].copy_from_slice(part);
        length += part.len();
        length
    };
    push(&site.code[..before]);
    push(&LINK);
    let behind = slot + push(&[JUMP]) + 4;
    push(&displacement(behind, directfs_entry as *const () as usize)?);
    push(&CALL);
    let after_start = push(&site.code[before..before + after]) - after;
    if makes_threads(site) {
        push(&LINK);
        let behind = slot + push(&[JUMP]) + 4;
        push(&displacement(behind, directfs_begin as *const () as usize)?);
    }
    let behind = slot + push(&[JUMP]) + 4;
    let window = library.base + site.window as usize;
    push(&displacement(behind, window + usize::from(site.window_bytes))?);
    displacement(window + 5, slot)?;
    if site.fixup != NO_FIXUP {
        let fixup = usize::from(site.fixup);
        let at = if fixup < before { fixup } else { after_start + fixup - before };
        let behind = slot + at + 4 + usize::from(site.fixup_tail);
        let distance = displacement(behind, library.base + site.fixup_target as usize)?;
        bytes[at..at + 4].copy_from_slice(&distance);
    }
    let behind_call = library.base + site.call as usize + CALL.len();
    bytes[SLOT_RETURN..].copy_from_slice(&(behind_call.wrapping_sub(slot) as u64).to_ne_bytes());
    Some(bytes)
}
