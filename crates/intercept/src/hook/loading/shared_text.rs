//! Patched code that all processes share.
//!
//! A process that patches a library gets a private copy of each patched page, which costs more than
//! all other work of a start. So the first process with a combination of library and addresses
//! writes a file: the library with its jumps, and the slots that they lead to. Later processes map
//! the code of that file over the library's, and its slots over their own.
//!
//! ```text
//!  0                the library's file, with jumps at its sites; on whole pages
//!  then             the slots of its sites, on whole pages
//!  the last bytes   [`Trailer`]
//! ```
//!
//! Everything in such a file is relative, so it fits wherever library and slots lie at the same
//! distance. The name says which file fits: the library's build-id, the distance and the first
//! slot. The directory says for which version of this library and for which boot of the machine.
//! Since a file appears whole by rename, and no file outlives the boot, none is ever incomplete.
//!
//! The file is made from the library's file, not from memory: a debugger may have set breakpoints.
//!
//! Invariant: a file counts only if it belongs to root or the user and no other user can write it.

use crate::hook::abi::entry::{SLOT_BYTES, directfs_slots};
use crate::hook::abi::sys;
use crate::hook::loading::patch::{self, Library};
use crate::hook::loading::proc_maps;
use crate::hook::process::environment;
use crate::table::Site;

const PAGE_BYTES: usize = 4096;
/// Slots on a page.
pub const SLOTS_PER_PAGE: usize = PAGE_BYTES / SLOT_BYTES;
/// Maximum number of files for one version: some programs put large libraries at random distances.
const FILES_MAX: usize = 48;
/// The kernel may place a mapping of this size or more at any multiple of it, so the distance
/// between what lies above and below is random.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Maximum size of a library's file.
const LIBRARY_BYTES_MAX: u64 = 64 << 20;

const PATH_BYTES: usize = environment::ENTRY_BYTES_MAX + 128;

/// The end of a file.
#[derive(Clone, Copy)]
#[repr(C)]
struct Trailer {
    magic: u64,
    /// Size of the part with the library.
    library_bytes: u64,
    /// Number of slots.
    slots: u64,
}

const MAGIC: u64 = u64::from_le_bytes(*b"DFSTEXT1");
const TRAILER_BYTES: usize = size_of::<Trailer>();

/// Maps the shared code of a library, with slots from `first` on; returns the number of slots.
/// `None`: there is no such file, and nothing changed.
pub fn map(library: &Library, build_id: &[u8], first: usize) -> Option<usize> {
    let mut path = [0u8; PATH_BYTES];
    let end = write_path(&mut path, library, build_id, first)?;
    let file = sys::open(&path[..=end], libc::O_RDONLY | libc::O_NOFOLLOW).ok()?;
    let status = file.status().ok()?;
    let mut trailer = [0u64; 3];
    let at = (status.st_size as u64).checked_sub(TRAILER_BYTES as u64)?;
    if !patch::is_trusted(&status) || file.read_words_at(at, &mut trailer) != Ok(TRAILER_BYTES) {
        return None;
    }
    let [magic, library_bytes, slots] = trailer;
    let pages = (slots as usize).div_ceil(SLOTS_PER_PAGE);
    let (code, offset) = (library.code, (library.code.0 - library.base) as u64);
    let is_whole = magic == MAGIC
        && slots > 0
        && first + pages * SLOTS_PER_PAGE <= crate::hook::abi::entry::SLOTS
        && offset + (code.1 - code.0) as u64 <= library_bytes
        && library_bytes + (pages * PAGE_BYTES) as u64 == at;
    if !is_whole {
        return None;
    }
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    // The slots first: no site leads to them until the code is there. If only they can be mapped,
    // the caller fills them itself.
    // SAFETY: the first range is that of slots which no site uses yet. The second is the library's
    // code, which the same bytes replace, with jumps to these slots. Nothing executes it meanwhile:
    // this is the only thread, inside this library.
    unsafe {
        file.map_over(slot_address(first), pages * PAGE_BYTES, protection, library_bytes).ok()?;
        file.map_over(code.0, code.1 - code.0, protection, offset).ok()?;
    }
    Some(slots as usize)
}

/// Writes the file for a library whose sites were patched just now. If that fails, later processes
/// patch the library themselves.
pub fn make(library: &Library, build_id: &[u8], sites: &[Site], first: usize) {
    let mut path = [0u8; PATH_BYTES];
    if sites.is_empty() || is_file_size_limited() {
        return;
    }
    let Some(end) = write_path(&mut path, library, build_id, first) else { return };
    let mut original = [0u8; PATH_BYTES];
    let (true, Some(length)) = (has_room(), find(library, &mut original)) else { return };
    let Some((copy, bytes)) = patched_copy(library, &original[..=length], build_id, sites, first) else { return };
    // SAFETY: the copy has these bytes, and no other users.
    write(&path[..=end], unsafe { core::slice::from_raw_parts(copy, bytes) }, sites.len(), first);
    // SAFETY: mapped by `patched_copy`; the reference has ended.
    unsafe { sys::unmap(copy, bytes) };
}

fn slot_address(first: usize) -> usize {
    &raw const directfs_slots as usize + first * SLOT_BYTES
}

/// The path of the file for a library at its present distance; returns its length without the zero
/// byte.
fn write_path(into: &mut [u8; PATH_BYTES], library: &Library, build_id: &[u8], first: usize) -> Option<usize> {
    let directory = environment::value(environment::TEXT)?;
    let mut length = 0;
    let mut push = |part: &[u8]| {
        into[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    };
    let mut digits = [0u8; 16];
    push(directory);
    push(b"/");
    build_id.iter().for_each(|byte| push(&patch::hexadecimal(*byte)));
    for word in [slot_address(first).wrapping_sub(library.base), first] {
        push(b"-");
        crate::hook::calls::kernel_objects::write_hexadecimal(word as u64, &mut digits);
        push(&digits);
    }
    into[length] = 0;
    Some(length)
}

/// A limit on the size of files would end this program by a signal.
fn is_file_size_limited() -> bool {
    let mut limit = [0u64; 2];
    let arguments = [0, u64::from(libc::RLIMIT_FSIZE), 0, limit.as_mut_ptr() as u64, 0, 0];
    // SAFETY: the kernel fills two words.
    let result = unsafe { sys::call(libc::SYS_prlimit64, arguments) };
    result != 0 || limit[0] != libc::RLIM_INFINITY
}

/// Whether the directory has room for one more file.
fn has_room() -> bool {
    let Some(path) = environment::string(environment::TEXT) else { return false };
    let Ok(directory) = sys::open(path, libc::O_RDONLY | libc::O_DIRECTORY) else { return false };
    /// Length of a record, in a `linux_dirent64`.
    const LENGTH_OFFSET: usize = 16;
    let mut buffer = [0u64; 512];
    let mut files = 0;
    while let Ok(bytes @ 1..) = directory.entries(&mut buffer) {
        let mut at = 0;
        while at < bytes {
            let word = buffer[(at + LENGTH_OFFSET) / 8].to_ne_bytes();
            at += usize::from(u16::from_ne_bytes([word[0], word[1]])).max(8);
            files += 1;
        }
    }
    // Two of the names are those of directories.
    files > 0 && files < FILES_MAX + 2
}

/// Writes the path of a library's file, with a zero byte, and returns its length. `None` if another
/// start of this program would find the library at another distance.
fn find(library: &Library, into: &mut [u8; PATH_BYTES]) -> Option<usize> {
    let own = &raw const directfs_slots as usize;
    let between = library.base.min(own)..library.base.max(own);
    let (mut length, mut is_random, mut offset) = (0, false, None);
    let looked = proc_maps::for_each(|mapping| {
        let is_file = mapping.path.first() == Some(&b'/');
        is_random |= is_file && mapping.start % HUGE_PAGE_BYTES == 0 && between.contains(&mapping.start);
        if mapping.start == library.base && mapping.path.len() < PATH_BYTES {
            into[..mapping.path.len()].copy_from_slice(mapping.path);
            length = mapping.path.len();
        }
        if mapping.start == library.code.0 {
            offset = Some(mapping.offset as usize);
        }
    });
    into[length] = 0;
    let is_plain = offset == Some(library.code.0 - library.base);
    (looked.is_ok() && length > 0 && is_plain && !is_random).then_some(length)
}

/// Maps a private copy of a library's file with its jumps; returns its address and size.
fn patched_copy(
    library: &Library,
    path: &[u8],
    build_id: &[u8],
    sites: &[Site],
    first: usize,
) -> Option<(*mut u8, usize)> {
    let file = sys::open(path, libc::O_RDONLY).ok()?;
    let status = file.status().ok()?;
    if !(PAGE_BYTES as u64..=LIBRARY_BYTES_MAX).contains(&(status.st_size as u64)) {
        return None;
    }
    let bytes = status.st_size as usize;
    let start = file.map(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE).ok()?;
    // SAFETY: the mapping has these bytes and no other users.
    let copy = unsafe { core::slice::from_raw_parts_mut(start, bytes) };
    let is_same = patch::build_id_of(&copy[..PAGE_BYTES]) == Some(build_id);
    let patched = is_same.then(|| patch::patch_copy(library, copy, sites, first)).flatten();
    if patched.is_none() {
        // SAFETY: mapped above; the reference has ended.
        unsafe { sys::unmap(start, bytes) };
    }
    patched.map(|()| (start, bytes))
}

/// Writes a file that appears whole.
fn write(path: &[u8], copy: &[u8], slots: usize, first: usize) {
    let mut scratch = [0u8; PATH_BYTES + 32];
    let length = path.len() - 1;
    scratch[..length].copy_from_slice(&path[..length]);
    scratch[length..length + 5].copy_from_slice(b".new-");
    crate::handoff::write_number(sys::process_id() as u64, &mut scratch[length + 5..]);
    let library_bytes = copy.len().next_multiple_of(PAGE_BYTES);
    let padding = [0u8; PAGE_BYTES];
    let pages = slots.div_ceil(SLOTS_PER_PAGE);
    // SAFETY: the slots of this library, which are filled, and which nothing changes any more.
    let filled = unsafe { core::slice::from_raw_parts(slot_address(first) as *const u8, pages * PAGE_BYTES) };
    let trailer = [MAGIC, library_bytes as u64, slots as u64].map(u64::to_ne_bytes);
    let parts = [copy, &padding[..library_bytes - copy.len()], filled, trailer.as_flattened()];
    let Ok(file) = sys::create(&scratch) else { return };
    let is_written = parts.iter().all(|part| file.write_all(part).is_ok()) && file.allow_reading().is_ok();
    if !is_written || sys::rename(&scratch, path).is_err() {
        sys::remove(&scratch);
    }
}
