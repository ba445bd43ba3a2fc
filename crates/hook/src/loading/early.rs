//! Libraries in the mount that a program needs before it starts.
//!
//! The loader searches for all needed libraries before any constructor runs, this library's
//! included. Only audit modules (LD_AUDIT) are loaded earlier, in their own namespace. So a program
//! whose library paths lead into the mount gets this library twice. The early copy is an audit
//! module: it starts as usual while only the loader is there to be patched, and serves the loader.
//! The second copy lies in the program's own namespace, where unwinding and debuggers find it. It
//! takes over when its constructor runs, and the early copy leaves the file system. So the loader
//! sees files of the mount under their own names and numbers, and `$ORIGIN`, dlopen and dladdr keep
//! their meaning.
//!
//! Other programs pay nothing for it: the process that starts a program knows which paths count,
//! and decides ([`leads_in`]).
//!
//! *Rejected:* copies in memory that la_objsearch names (the loader would load a library again
//! under another path, and `$ORIGIN` would lead nowhere); copies in LD_PRELOAD (the order of
//! symbols would change, and names without a soname would not match); one copy as a permanent audit
//! module (unwinding does not look into its namespace).
//!
//! Invariant: the address in the environment is followed only if it lies in a mapping of this
//! library.
//!
//! An audit module makes the loader take static thread-local storage from each thread's stack. So
//! exec adds up what the needed libraries need, and asks for the least of 2, 8, 25 and 100 KiB that
//! suffices. *Rejected* as well: a small surplus and a second start after the loader's error,
//! because compilers would start twice.

use crate::abi::entry::{SLOT_BYTES, SLOTS, directfs_slots};
use crate::abi::sys;
use crate::handoff;
use crate::loading::proc_maps;
use crate::process::{environment, session};
use crate::{server, stack};
use core::ops::Range;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

/// The record that the early copy leaves for the other one. Both come from one file, so the layouts
/// match.
#[repr(C)]
pub struct Record {
    /// Its slots, which sites of the loader jump to.
    slots: *const [[u8; SLOT_BYTES]; SLOTS],
    /// Leaves the file system; whether it had a slot for this process, and which.
    retire: extern "C" fn(&mut u32) -> bool,
}
// SAFETY: never written, and the pointer is only compared.
unsafe impl Sync for Record {}

static RECORD: Record = Record { slots: &raw const directfs_slots, retire };

/// The early copy's record, as the second copy found it.
static PREDECESSOR: AtomicPtr<Record> = AtomicPtr::new(core::ptr::null_mut());

/// The entry for a program whose libraries need this many bytes.
pub fn tunables(static_storage_bytes: u64) -> &'static [u8] {
    let sizes = environment::TUNABLES_BYTES;
    let last = sizes.len() - 1;
    environment::TUNABLES[sizes.iter().position(|&bytes| bytes >= static_storage_bytes).unwrap_or(last)]
}

/// What libraries need, if they are not looked at: those of programs with library paths of their
/// own are more (a compiler's take 24 KiB).
pub fn usual_static_storage_bytes(has_own_paths: bool) -> u64 {
    environment::TUNABLES_BYTES[1 + usize::from(has_own_paths)]
}

/// The entry as set by the process that starts a program.
pub const UNTAKEN: &[u8] = b"DIRECTFS_EARLY=0000000000000000\0";

/// In the early copy: writes the record's address into the entry, for the second copy.
///
/// # Safety
/// Only for the constructor; `entry` is the program's own entry of the environment.
pub unsafe fn announce(entry: *mut u8) {
    let mut digits = [0u8; environment::EARLY_DIGITS];
    handoff::write_hexadecimal(&raw const RECORD as u64, &mut digits);
    // SAFETY: the entry has this many digits (checked by its reader), and has no other users before
    // the program runs.
    unsafe { core::ptr::copy_nonoverlapping(digits.as_ptr(), entry.add(environment::EARLY.len()), digits.len()) };
}

/// For the constructor: records whether a mapping holds the early copy's record.
pub fn record(mapping: &proc_maps::Mapping<'_>, address: usize) {
    if (mapping.start..mapping.end).contains(&address) && mapping.path == environment::library() {
        PREDECESSOR.store(address as *mut Record, Relaxed);
    }
}

/// Takes over from the early copy; returns the process's slot, if the early copy had one.
///
/// # Safety
/// Only for the constructor; called once.
pub unsafe fn take_over() -> Option<u32> {
    let found = PREDECESSOR.load(Relaxed);
    if found.is_null() {
        return None;
    }
    let mut index = 0;
    // SAFETY: `record` checked that the address lies in a mapping of this library; a copy that
    // stays loaded wrote it.
    unsafe { ((*found).retire)(&mut index) }.then_some(index)
}

/// The early copy's slots; empty without an early copy.
pub fn slots_before() -> Range<usize> {
    let found = PREDECESSOR.load(Relaxed);
    // SAFETY: as in `take_over`.
    let start = if found.is_null() { 0 } else { unsafe { (*found).slots as usize } };
    start..start + if start == 0 { 0 } else { SLOTS * SLOT_BYTES }
}

/// Where the early copy maps the regions: libraries loaded later must lie near the loader, because
/// jumps reach two gigabytes.
pub fn out_of_the_way() -> usize {
    const FAR_BYTES: usize = 1 << 44;
    (&raw const directfs_slots as usize & !0xf_ffff).saturating_sub(FAR_BYTES)
}

/// In the early copy: releases everything except the process's slot, which the other copy continues
/// to use. No call reaches this copy afterwards: the sites are about to lead elsewhere, and this is
/// the only thread.
extern "C" fn retire(index: &mut u32) -> bool {
    let Some(server) = server::get() else { return false };
    *index = session::main().index();
    // SAFETY: the constructor prepared this thread's stack, and no call is in progress.
    unsafe { stack::context() }.leave();
    // The pages around them stay, which take no memory. SAFETY: nothing of the file system is used
    // here any more.
    unsafe {
        for region in server.regions() {
            sys::unmap(region.start as *mut u8, region.len());
        }
    }
    true
}

/// The directory of the program's file, as written in lists.
const ORIGINS: [&[u8]; 2] = [b"$ORIGIN", b"${ORIGIN}"];

/// Limit for the library paths built into one program, expanded.
pub const OWN_PATHS_BYTES_MAX: usize = 4096;

/// Expands `$ORIGIN` in a list of paths. The kernel runs a program of the mount from a copy in
/// memory, so the loader would take the root for its directory. Returns the length; `None` if there
/// is nothing to expand, or no room.
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

/// Which parts of a program's surroundings lie in the mount.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProgramInside {
    /// Its file, which `$ORIGIN` refers to.
    pub program: bool,
    /// Its working directory, which relative paths refer to.
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

/// `leads_in` for an entry of an environment, if the loader reads it.
pub fn entry_leads_in(entry: &[u8], mount: &[u8], inside: ProgramInside) -> bool {
    if !entry.starts_with(b"LD_") {
        return false;
    }
    let entry = entry.strip_suffix(b"\0").unwrap_or(entry);
    if let Some(list) = entry.strip_prefix(environment::LD_LIBRARY_PATH) {
        return !list.is_empty() && leads_in(list, mount, inside);
    }
    // Names without a slash are searched along the paths.
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
        assert_eq!(environment::early_address(UNTAKEN), Some(0));
        let mut entry = UNTAKEN.to_vec();
        // SAFETY: a copy of the entry; nothing else announces in this process.
        unsafe { announce(entry.as_mut_ptr()) };
        assert_eq!(environment::early_address(&entry), Some(&raw const RECORD as usize));
        assert_eq!(environment::early_address(b"DIRECTFS_EARLY=12\0"), None);
        assert_eq!(environment::early_address(b"DIRECTFS_EARLY=000000000000000x\0"), None);
    }
}
