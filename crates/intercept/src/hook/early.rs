//! Libraries in the mount that a program needs before it begins.
//!
//! The loader looks for everything that a program needs before any constructor runs, ours included. What it loads still earlier are audit modules (LD_AUDIT), in a
//! namespace of their own. So a program whose paths for libraries lead into the mount gets this library twice: first as an audit module that does nothing but
//! start as ever, while only the loader is there to be patched; it serves the loader. Then in the program's own namespace, where unwinding and debuggers find it: that
//! copy takes over, when its constructor runs, and the early one leaves the file system. So the loader sees files of the mount under their own
//! names and numbers, and `$ORIGIN`, dlopen and dladdr mean what they should.
//!
//! Other programs do not pay for it: only who starts a program knows which paths count, so the decision is made there ([`leads_in`]).
//!
//! *Rejected:* copies in memory that la_objsearch names (the loader would take a library that is loaded once more by its path for another one, and `$ORIGIN` would lead
//! nowhere); copies in LD_PRELOAD (the order of symbols would change, and names without a soname would not match); one copy as an audit module for ever (unwinding
//! does not look into its namespace).
//!
//! Invariant: the address in the environment is followed only if it lies in a mapping of this very library.

use super::entry::{SLOT_BYTES, SLOTS, directfs_slots};
use super::{environment, proc_maps, processes, server, stack, sys};
use core::ops::Range;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

/// What the early copy leaves for the other one. Both are of one file, so the layout is the same.
#[repr(C)]
pub struct Record {
    /// Its slots: sites of the loader lead there.
    slots: *const [[u8; SLOT_BYTES]; SLOTS],
    /// Leaves the file system; whether it had a slot for this process, and which.
    retire: extern "C" fn(&mut u32) -> bool,
}
// SAFETY: never written, and the pointer is only compared with.
unsafe impl Sync for Record {}

static RECORD: Record = Record { slots: &raw const directfs_slots, retire };

/// The early copy, as its successor found it.
static PREDECESSOR: AtomicPtr<Record> = AtomicPtr::new(core::ptr::null_mut());

/// Digits of the address in the environment.
const DIGITS: usize = 16;
/// Entries with which the loader leaves more room for the words of threads. It lays them out when there is an audit module, before it knows what libraries want; by itself it
/// leaves half a kilobyte. The room is taken from the stack of every thread, the smallest of which have 16 KiB: so much is left only for programs that have paths to libraries of
/// their own (a compiler's takes 24 KiB).
pub const TUNABLES: [&[u8]; 2] =
    [b"GLIBC_TUNABLES=glibc.rtld.optional_static_tls=8192\0", b"GLIBC_TUNABLES=glibc.rtld.optional_static_tls=25600\0"];

/// The one for a program.
pub fn tunables(has_own_paths: bool) -> &'static [u8] {
    TUNABLES[usize::from(has_own_paths)]
}

/// The entry as whoever starts a program sets it.
pub const UNTAKEN: &[u8] = b"DIRECTFS_EARLY=0000000000000000\0";

/// For the early copy: tells the next one where to find it.
///
/// # Safety
/// This is the constructor; `entry` is the program's own entry of the environment.
pub unsafe fn announce(entry: *mut u8) {
    let mut digits = [0u8; DIGITS];
    super::kernel_objects::write_hexadecimal(&raw const RECORD as u64, &mut digits);
    // SAFETY: the entry has so many digits (its reader checked), and is ours alone before the program runs.
    unsafe { core::ptr::copy_nonoverlapping(digits.as_ptr(), entry.add(environment::EARLY.len()), DIGITS) };
}

/// For whoever comes later: what the entry's digits say. None: nobody was there before.
pub fn address_of(entry: &[u8]) -> Option<usize> {
    let digits = entry.strip_prefix(environment::EARLY)?.strip_suffix(b"\0")?;
    let digits = core::str::from_utf8(digits).ok().filter(|digits| digits.len() == DIGITS)?;
    usize::from_str_radix(digits, 16).ok()
}

/// For the constructor: whether a mapping is the one in which the early copy's record lies.
pub fn record(mapping: &proc_maps::Mapping<'_>, address: usize) {
    if (mapping.start..mapping.end).contains(&address) && mapping.path == environment::library() {
        PREDECESSOR.store(address as *mut Record, Relaxed);
    }
}

/// Takes over from the early copy; the slot of this process, if that had taken one.
///
/// # Safety
/// This is the constructor; called once.
pub unsafe fn take_over() -> Option<u32> {
    let found = PREDECESSOR.load(Relaxed);
    if found.is_null() {
        return None;
    }
    let mut index = 0;
    // SAFETY: in a mapping of this library (checked by `record`) at the address that a copy of it told, which stays loaded.
    unsafe { ((*found).retire)(&mut index) }.then_some(index)
}

/// Where the early copy's slots are; empty if there is none.
pub fn slots_before() -> Range<usize> {
    let found = PREDECESSOR.load(Relaxed);
    // SAFETY: as in `take_over`.
    let start = if found.is_null() { 0 } else { unsafe { (*found).slots as usize } };
    start..start + if start == 0 { 0 } else { SLOTS * SLOT_BYTES }
}

/// Where the early copy maps the regions: what is loaded later has to be near the loader, for jumps reach two gigabytes.
pub fn out_of_the_way() -> usize {
    const FAR_BYTES: usize = 1 << 44;
    (&raw const directfs_slots as usize & !0xf_ffff).saturating_sub(FAR_BYTES)
}

/// In the early copy: gives back what it has but for the process's slot, which the other copy goes on with. From here on no call comes here: the sites
/// are about to lead elsewhere, and this thread is the only one.
extern "C" fn retire(index: &mut u32) -> bool {
    let (Some(server), Some(handoff)) = (server::get(), environment::handoff()) else { return false };
    *index = processes::main().index();
    // SAFETY: the constructor prepared this thread's stack, and no call is under way.
    unsafe { stack::context() }.leave();
    // SAFETY: nothing of the file system is used here any more.
    unsafe {
        sys::unmap(server.image_base as *mut u8, handoff.image_bytes as usize);
        sys::unmap(server.region_base as *mut u8, handoff.region_bytes as usize);
    }
    true
}

/// The directory of the program's file, as lists have it.
const ORIGINS: [&[u8]; 2] = [b"$ORIGIN", b"${ORIGIN}"];

/// Bytes of the lists that are built into one program, expanded.
pub const OWN_PATHS_BYTES_MAX: usize = 4096;

/// Writes a list of paths with `$ORIGIN` in it as it is meant: the kernel runs a program of the mount from a copy in memory, so the loader would take the root for
/// its directory. How many bytes; none if there is nothing to expand, or no room.
pub fn expand_origin(list: &[u8], directory: &[u8], into: &mut [u8]) -> Option<usize> {
    let (mut at, mut length, mut found) = (0, 0, false);
    while at < list.len() {
        let name = ORIGINS.into_iter().find(|name| list[at..].starts_with(name));
        let part = if name.is_some() { directory } else { &list[at..=at] };
        into.get_mut(length..length + part.len())?.copy_from_slice(part);
        length += part.len();
        at += name.map_or(1, <[u8]>::len);
        found |= name.is_some();
    }
    found.then_some(length)
}

/// What of a program is in the mount.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProgramInside {
    /// Its file, which `$ORIGIN` means.
    pub program: bool,
    /// Where it starts, which relative paths mean.
    pub directory: bool,
}

/// Whether a list of paths for the loader (or one path) may lead into the mount.
pub fn leads_in(list: &[u8], mount: &[u8], inside: ProgramInside) -> bool {
    let names = !mount.is_empty() && list.windows(mount.len()).any(|part| part == mount);
    let is_inside = |path: &[u8]| match path {
        [b'/', ..] => false,
        _ if ORIGINS.into_iter().any(|origin| path.starts_with(origin)) => inside.program,
        _ => inside.directory,
    };
    names || list.split(|byte| matches!(byte, b':' | b';' | b' ')).any(is_inside)
}

/// The same for an entry of an environment, of those that the loader looks at.
pub fn entry_leads_in(entry: &[u8], mount: &[u8], inside: ProgramInside) -> bool {
    let entry = entry.strip_suffix(b"\0").unwrap_or(entry);
    if let Some(list) = entry.strip_prefix(environment::LD_LIBRARY_PATH) {
        return !list.is_empty() && leads_in(list, mount, inside);
    }
    // Names without a slash are looked for along the paths.
    let libraries = entry.strip_prefix(environment::LD_PRELOAD).or_else(|| entry.strip_prefix(environment::LD_AUDIT));
    libraries.is_some_and(|list| {
        let mut parts = list.split(|byte| matches!(byte, b':' | b' '));
        parts.any(|part| part != environment::library() && part.contains(&b'/') && leads_in(part, mount, inside))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_lead_into_the_mount_by_name_or_from_inside() {
        let mount = b"/mnt/d";
        let (outside, all) = (ProgramInside::default(), ProgramInside { program: true, directory: true });
        let (program, directory) =
            (ProgramInside { program: true, ..outside }, ProgramInside { directory: true, ..outside });
        assert!(leads_in(b"/usr/lib:/mnt/d/lib", mount, outside) && leads_in(b"/usr/../mnt/d", mount, outside));
        assert!(!leads_in(b"/usr/lib:$ORIGIN:lib", mount, outside) && !leads_in(b"/usr/lib", mount, all));
        assert!(leads_in(b"$ORIGIN/../lib", mount, program) && leads_in(b"${ORIGIN}", mount, program));
        assert!(!leads_in(b"$ORIGIN/../lib", mount, directory) && !leads_in(b"lib", mount, program));
        assert!(leads_in(b"/usr/lib:", mount, directory) && leads_in(b"lib", mount, directory));
        assert!(entry_leads_in(b"LD_LIBRARY_PATH=/mnt/d\0", mount, outside));
        assert!(!entry_leads_in(b"LD_LIBRARY_PATH=\0", mount, all));
        assert!(!entry_leads_in(b"LD_PRELOAD=libm.so\0", mount, all));
        assert!(entry_leads_in(b"LD_PRELOAD=./m.so\0", mount, all));
        assert!(!entry_leads_in(b"PATH=/mnt/d\0", mount, all));
    }

    #[test]
    fn the_directory_of_a_program_is_put_in_its_paths() {
        let expand = |list: &[u8], room: usize| {
            let mut into = vec![0; room];
            expand_origin(list, b"/m/bin", &mut into)
                .map(|length| String::from_utf8_lossy(&into[..length]).into_owned())
        };
        assert_eq!(expand(b"$ORIGIN:/x:${ORIGIN}/../lib", 99).as_deref(), Some("/m/bin:/x:/m/bin/../lib"));
        assert_eq!(expand(b"/x:$LIB", 99), None);
        assert_eq!(expand(b"$ORIGIN", 5), None);
    }

    #[test]
    fn the_entry_holds_an_address() {
        assert_eq!(address_of(UNTAKEN), Some(0));
        let mut entry = UNTAKEN.to_vec();
        // SAFETY: a copy of the entry, and nobody else announces in this process.
        unsafe { announce(entry.as_mut_ptr()) };
        assert_eq!(address_of(&entry), Some(&raw const RECORD as usize));
        assert_eq!(address_of(b"DIRECTFS_EARLY=12\0"), None);
        assert_eq!(address_of(b"DIRECTFS_EARLY=000000000000000x\0"), None);
    }
}
