//! Patched code that all processes share.
//!
//! A process that patches its libraries gets a private copy of each patched page, which costs more
//! than all other work of a start. So the first process with a combination of libraries and
//! addresses writes a file: the libraries with their jumps, and the slots that these lead to. Later
//! processes map the code of that file over the libraries', and its slots over their own.
//!
//! ```text
//!  0                each library's file, with jumps at its sites; on whole pages
//!  then             all slots of this library
//!  the last bytes   [`Trailer`]
//! ```
//!
//! Everything in such a file is relative, so it fits wherever libraries and slots lie at the same
//! distances. The name says which file fits: for each library its distance, and a checksum of its
//! build-id and of the identity of its file ([`file_identity`]). The directory says for which
//! version of this library and for which boot of the machine. Since a file appears whole by rename,
//! and no file is used after the boot, none is ever incomplete.
//!
//! The file is made from the libraries' files, not from memory: a debugger may have set
//! breakpoints.
//!
//! Invariant: a file counts only if it belongs to root or the user and no other user can write it.
//!
//! *Reason:* patching the C library made 57 private pages in each program. 1,000 times `/bin/true`
//! from a shell, with attachment when it is needed: 475–620 ms without `run`, 987–1,004 without
//! shared code, 673 with it.
//!
//! *Rejected:* a trap per call (a signal for each); slots at a fixed distance from each library
//! (unwinders find frames only inside the preload library); a patched C library (`dlopen` by path
//! loads a second one); a file in memory passed by descriptor (any program could write code for
//! all); mapping all pages at once (50 to 70 µs more).
//!
//! *Limits:* at most 128 files of 2.1 MB. A library of 2 MiB or more between preload and C library
//! (cc1 of GCC) lies at a random distance: such a program patches its own copy for 250 µs. So the
//! preload library stays below 2 MiB, which its build checks. Uprobes on the C library do not fire.

use crate::abi::entry::{SLOT_BYTES, SLOTS, directfs_slots};
use crate::abi::sys;
use crate::handoff;
use crate::loading::patch::{self, Library, Refusal};
use crate::loading::{file_identity, proc_maps};
use crate::process::environment;
use crate::table::{self, Site};

const PAGE_BYTES: usize = 4096;
/// All slots: those behind the used ones are in the file, so that it replaces them in one piece.
const SLOTS_BYTES: usize = SLOTS * SLOT_BYTES;
/// Slots on a page.
pub const SLOTS_PER_PAGE: usize = PAGE_BYTES / SLOT_BYTES;
/// The loader, the C library, and the libraries that were separate until glibc 2.33.
pub const LIBRARIES_MAX: usize = 4;
/// Maximum number of files for one version, of about 2 MiB each.
const FILES_MAX: usize = 128;
/// The kernel may place a mapping of this size or more at any multiple of it, so the distance
/// between what lies above and below is random.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Maximum size of a library's file.
const LIBRARY_BYTES_MAX: u64 = 64 << 20;

/// Maximum length of a file's name.
const NAME_BYTES_MAX: usize = 256;
const PATH_BYTES: usize = handoff::ENTRY_BYTES_MAX + NAME_BYTES_MAX;

/// The end of a file.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
struct Trailer {
    magic: u64,
    /// Number of slots, which fill whole pages.
    slots: u64,
    /// Size of the part with each library.
    library_bytes: [u64; LIBRARIES_MAX],
}

const MAGIC: u64 = u64::from_le_bytes(*b"DFSTEXT1");
const TRAILER_WORDS: usize = size_of::<Trailer>() / 8;

impl Trailer {
    fn to_words(self) -> [u64; TRAILER_WORDS] {
        let mut words = [self.magic, self.slots, 0, 0, 0, 0];
        words[2..].copy_from_slice(&self.library_bytes);
        words
    }

    /// Whether a file of this size with this end holds the code of these libraries.
    fn fits<'l>(&self, mut libraries: impl Iterator<Item = &'l Library>, before_bytes: u64) -> bool {
        let has_code = |(library, bytes): (&Library, &u64)| (library.code.1 - library.base) as u64 <= *bytes;
        let slots = self.slots as usize;
        self.magic == MAGIC
            && slots.is_multiple_of(SLOTS_PER_PAGE)
            && (1..=SLOTS).contains(&slots)
            && libraries.by_ref().zip(&self.library_bytes).all(has_code)
            && self.library_bytes.iter().try_fold(SLOTS_BYTES as u64, |sum, part| sum.checked_add(*part))
                == Some(before_bytes)
    }
}

/// Maps the shared code of the libraries; returns the number of slots. `None`: there is no such
/// file, and nothing changed.
pub fn map<'l>(libraries: impl Iterator<Item = &'l Library> + Clone) -> Result<Option<usize>, Refusal> {
    // Most paths are short, and a start touches as few pages of the stack as it can.
    const SHORT_BYTES: usize = 1024;
    match environment::value(environment::TEXT) {
        Some(directory) if directory.len() > SHORT_BYTES - NAME_BYTES_MAX => map_by::<PATH_BYTES>(libraries),
        _ => map_by::<SHORT_BYTES>(libraries),
    }
}

// Apart from the start, whose later calls reuse the buffer's part of the stack.
#[inline(never)]
fn map_by<'l, const N: usize>(libraries: impl Iterator<Item = &'l Library> + Clone) -> Result<Option<usize>, Refusal> {
    let mut path = [0u8; N];
    let Some((file, trailer)) = find_file(libraries.clone(), &mut path) else { return Ok(None) };
    let slots = trailer.slots as usize;
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    // The slots first: no site leads to them until the code is there.
    let mut start = trailer.library_bytes.iter().sum();
    // SAFETY: slots that no site uses yet.
    if unsafe { file.map_over(slot_address(0), SLOTS_BYTES, protection, start) }.is_err() {
        return Ok(None);
    }
    start = 0;
    for (library, bytes) in libraries.zip(&trailer.library_bytes) {
        let (from, to) = library.code;
        // SAFETY: the library's code, which the same bytes replace, with jumps to these slots.
        // Nothing executes it meanwhile: this is the only thread, inside this library.
        let mapped = unsafe { file.map_over(from, to - from, protection, start + (from - library.base) as u64) };
        mapped.map_err(|_| Refusal::Forbidden)?;
        start += bytes;
    }
    Ok(Some(slots))
}

/// Opens the file that fits, if its author is trusted.
fn find_file<'l>(libraries: impl Iterator<Item = &'l Library> + Clone, path: &mut [u8]) -> Option<(sys::Fd, Trailer)> {
    let end = write_path(path, libraries.clone())?;
    let file = sys::open(&path[..=end], libc::O_RDONLY | libc::O_NOFOLLOW).ok()?;
    let status = file.status().ok()?;
    let before = (status.st_size as u64).checked_sub(size_of::<Trailer>() as u64)?;
    let mut words = [0u64; TRAILER_WORDS];
    let is_read = file.read_words_at(before, &mut words) == Ok(size_of::<Trailer>());
    let [magic, slots, library_bytes @ ..] = words;
    let trailer = Trailer { magic, slots, library_bytes };
    (is_read && patch::is_trusted(&status) && trailer.fits(libraries, before)).then_some((file, trailer))
}

/// Writes the file for the libraries, which were patched just now, with `slots` slots. If that
/// fails, later processes patch their libraries themselves.
#[cold]
#[inline(never)]
pub fn make<'l>(libraries: impl Iterator<Item = &'l Library> + Clone, slots: usize) {
    let mut path = [0u8; PATH_BYTES];
    let Some(end) = write_path(&mut path, libraries.clone()) else { return };
    let is_settled = |library: &Library| library.id.is_some_and(file_identity::is_settled);
    if !libraries.clone().all(is_settled) || is_file_size_limited() || !has_room() {
        return;
    }
    let mut scratch = [0u8; PATH_BYTES];
    scratch[..end].copy_from_slice(&path[..end]);
    scratch[end..end + 5].copy_from_slice(b".new-");
    crate::handoff::write_number(sys::process_id() as u64, &mut scratch[end + 5..]);
    let Ok(file) = sys::create(&scratch) else { return };
    let is_written = write(&file, libraries, slots).is_some() && file.allow_reading().is_ok();
    if !is_written || sys::rename(&scratch, &path).is_err() {
        sys::remove(&scratch);
    }
}

fn write<'l>(file: &sys::Fd, libraries: impl Iterator<Item = &'l Library>, slots: usize) -> Option<()> {
    let mut trailer = Trailer { magic: MAGIC, slots: slots as u64, ..Trailer::default() };
    let mut first = 0;
    for (library, bytes) in libraries.zip(&mut trailer.library_bytes) {
        let build_id = patch::build_id(library)?;
        let count = patch::with_sites(build_id, |sites| {
            *bytes = write_library(file, library, build_id, sites, first)?;
            Some(sites.len())
        });
        first = (first + count??).next_multiple_of(SLOTS_PER_PAGE);
    }
    // SAFETY: the slots of this library: nothing changes those that are filled, and the others only
    // later.
    let all = unsafe { core::slice::from_raw_parts(slot_address(0) as *const u8, SLOTS_BYTES) };
    file.write_all(all).ok()?;
    file.write_all(trailer.to_words().map(u64::to_ne_bytes).as_flattened()).ok()
}

fn slot_address(first: usize) -> usize {
    &raw const directfs_slots as usize + first * SLOT_BYTES
}

/// The path of the file for libraries at their present distances; returns its length without the
/// zero byte.
fn write_path<'l>(into: &mut [u8], libraries: impl Iterator<Item = &'l Library>) -> Option<usize> {
    let directory = environment::value(environment::TEXT)?;
    let mut length = 0;
    let mut push = |part: &[u8]| {
        into[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    };
    push(directory);
    for (index, library) in libraries.enumerate() {
        push(if index == 0 { b"/" } else { b"-" });
        let [changed, rest, bytes] = library.id?;
        let identity = table::checksum(&[changed, rest, bytes, table::fingerprint(patch::build_id(library)?)]);
        identity.to_be_bytes().iter().for_each(|byte| push(&patch::hexadecimal(*byte)));
        push(b"@");
        // Jumps reach less than two gigabytes.
        let distance = slot_address(0).wrapping_sub(library.base) as u64;
        distance.to_be_bytes().iter().skip(3).for_each(|byte| push(&patch::hexadecimal(*byte)));
    }
    into[length] = 0;
    Some(length)
}

/// A limit on the size of files would end this program by a signal.
pub fn is_file_size_limited() -> bool {
    let mut limit = [0u64; 2];
    let arguments = [0, libc::RLIMIT_FSIZE as u64, 0, limit.as_mut_ptr() as u64, 0, 0];
    // SAFETY: the kernel fills two words.
    let result = unsafe { sys::call(libc::SYS_prlimit64, arguments) };
    result != 0 || limit[0] != libc::RLIM_INFINITY
}

/// Whether the directory has room for one more file.
fn has_room() -> bool {
    let Some(path) = environment::string(environment::TEXT) else { return false };
    let Ok(directory) = sys::open(path, libc::O_RDONLY | libc::O_DIRECTORY) else { return false };
    let mut files = 0;
    directory.each_name(&mut |_| {
        files += 1;
        true
    });
    // Two of the names are those of directories.
    files > 0 && files < FILES_MAX + 2
}

/// Whether a mapping of a file at an address makes the distance between a library and this one
/// random.
pub fn is_random_by(library: &Library, start: usize) -> bool {
    let own = &raw const directfs_slots as usize;
    start.is_multiple_of(HUGE_PAGE_BYTES) && (library.base.min(own)..library.base.max(own)).contains(&start)
}

/// Writes the path of a library's file, with a zero byte, and returns its length. `None` if another
/// start of this program would find the library at another distance.
fn find(library: &Library, into: &mut [u8; PATH_BYTES]) -> Option<usize> {
    let (mut length, mut is_random, mut offset) = (0, false, None);
    let looked = proc_maps::for_each(|mapping| {
        let is_file = mapping.path.first() == Some(&b'/');
        is_random |= is_file && is_random_by(library, mapping.start);
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

/// Writes a library's file with its jumps, on whole pages; returns their bytes.
fn write_library(file: &sys::Fd, library: &Library, build_id: &[u8], sites: &[Site], first: usize) -> Option<u64> {
    let mut path = [0u8; PATH_BYTES];
    let length = find(library, &mut path)?;
    let original = sys::open(&path[..=length], libc::O_RDONLY).ok()?;
    let status = original.status().ok()?;
    let size = status.st_size as u64;
    if !(PAGE_BYTES as u64..=LIBRARY_BYTES_MAX).contains(&size) {
        return None;
    }
    let bytes = size as usize;
    // From memory that is present the kernel writes large pages, of which a fault maps several.
    let flags = libc::MAP_PRIVATE | libc::MAP_POPULATE;
    let start = original.map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags).ok()?;
    let whole = bytes.next_multiple_of(PAGE_BYTES);
    // SAFETY: the mapping has these bytes on whole pages, zero after the file's end, and no other
    // users.
    let copy = unsafe { core::slice::from_raw_parts_mut(start, whole) };
    let head = copy.first_chunk().map(|head| file_identity::of(&status, Some(head)));
    let is_same = head.is_some() && head == library.id && patch::build_id_of(&copy[..PAGE_BYTES]) == Some(build_id);
    let patched = is_same.then(|| patch::patch_copy(library, copy, sites, first)).flatten();
    let written = patched.and_then(|()| file.write_all(copy).ok());
    // SAFETY: mapped above; the reference has ended.
    unsafe { sys::unmap(start, bytes) };
    written.map(|()| whole as u64)
}
