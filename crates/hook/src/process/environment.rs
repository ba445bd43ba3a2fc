//! The environment entries from the launcher, which every program started from here must get again.
//!
//! Invariant: the constructor alone writes them, before other threads and hooked calls; later they
//! are only read. The one exception is the entry with descriptors: it changes when a program takes
//! over a descriptor's number, and no two threads do so at a time.
//!
//! Programs that list or count entries would see these: test suites of env, Tcl and shells failed.
//! So the constructor shortens the list in place; the free end becomes AT_IGNORE pairs of the
//! auxiliary vector, which follows it, and so entries come in even numbers. DIRECTFS_MOUNT stays.
//! *Rejected:* passing a descriptor (the loader still needs LD_PRELOAD); pointing `environ` to
//! another list (runtimes such as Go compute the list's place from that of the arguments).

use crate::abi::sys;
use crate::handoff::{self, ENTRY_BYTES_MAX, HandoffRecord};
use crate::process::user_namespace;
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use tables::child_numbers;

/// The loader's list of libraries.
pub const LD_PRELOAD: &[u8] = b"LD_PRELOAD=";
/// The loader's list of audit modules.
pub const LD_AUDIT: &[u8] = b"LD_AUDIT=";
/// Where the loader searches for libraries first.
pub const LD_LIBRARY_PATH: &[u8] = b"LD_LIBRARY_PATH=";
/// Address of this library's early copy: see early.rs.
pub const EARLY: &[u8] = b"DIRECTFS_EARLY=";
/// Digits of the address in the environment.
pub const EARLY_DIGITS: usize = 16;
/// Path of this library; the tables lie beside it.
pub const RUN: &[u8] = b"DIRECTFS_RUN=";
/// Directory of the patched code that processes share; absent if there is none.
pub const TEXT: &[u8] = b"DIRECTFS_TEXT=";
/// File for call counters; absent without counting.
pub const COUNTS: &[u8] = b"DIRECTFS_COUNTS=";
/// File for a profile of the calls; absent without one.
pub const PROFILE: &[u8] = b"DIRECTFS_PROFILE=";
/// Entries with which the loader reserves more static thread-local storage. With an audit module it
/// lays out that storage before it knows what libraries need; its default surplus is half a
/// kilobyte. The surplus comes from every thread's stack, and the smallest stacks have 16 KiB. So
/// it is not larger than [`TUNABLES_BYTES`] says, in the same order.
pub const TUNABLES: [&[u8]; 4] = [
    b"GLIBC_TUNABLES=glibc.rtld.optional_static_tls=2048\0",
    b"GLIBC_TUNABLES=glibc.rtld.optional_static_tls=8192\0",
    b"GLIBC_TUNABLES=glibc.rtld.optional_static_tls=25600\0",
    b"GLIBC_TUNABLES=glibc.rtld.optional_static_tls=102400\0",
];
/// Bytes of the entries' surplus.
pub const TUNABLES_BYTES: [u64; 4] = [2048, 8192, 25600, 102_400];

/// What the names of DirectFS's entries begin with.
const OWN_PREFIX: &[u8] = b"DIRECTFS_";

/// Entries that are kept and passed on unchanged.
const HANDED_ON: [&[u8]; 7] = [RUN, TEXT, COUNTS, PROFILE, handoff::IMAGE, handoff::MOUNT, handoff::BINARY];
/// Maximum number of entries that a program gets beside its own: the handed-on ones, four of the
/// dynamic loader, the process, the ids, the program and its name, the early copy of the library, a
/// program to load, and two that only fill.
pub const ADDED: usize = HANDED_ON.len() + 12;
/// The program does not see the entries that are not its own.
pub const HIDE: &[u8] = b"DIRECTFS_HIDE=\0";
/// `HIDE` for a program whose own environment does not name the mount.
pub const HIDE_MOUNT: &[u8] = b"DIRECTFS_HIDE=mount\0";
/// Makes the number of hidden entries even.
pub const FILL: &[u8] = b"DIRECTFS_FILL=\0";
/// Entries that belong to DirectFS, whatever set them.
const DIRECTFS_ENTRIES: [&[u8]; 16] = [
    HIDE.split_at(HIDE.len() - 1).0,
    FILL.split_at(FILL.len() - 1).0,
    PROFILE,
    handoff::NAME,
    handoff::LOADED,
    RUN,
    TEXT,
    EARLY,
    COUNTS,
    handoff::IMAGE,
    handoff::MOUNT,
    handoff::BINARY,
    handoff::START,
    handoff::PROCESS,
    handoff::IDS,
    handoff::PROGRAM,
];

/// Entries that are kept: those to hand on, then the two for this program alone.
const KEPT: [&[u8]; HANDED_ON.len() + 2] = {
    let mut names: [&[u8]; HANDED_ON.len() + 2] = [handoff::START; HANDED_ON.len() + 2];
    let mut index = 0;
    while index < HANDED_ON.len() {
        names[index] = HANDED_ON[index];
        index += 1;
    }
    names[HANDED_ON.len() + 1] = handoff::PROGRAM;
    names
};
/// All entries that are read here begin with it.
const _: () = {
    let mut index = 0;
    while index < DIRECTFS_ENTRIES.len() {
        let (name, mut at) = (DIRECTFS_ENTRIES[index], 0);
        while at < OWN_PREFIX.len() {
            assert!(name[at] == OWN_PREFIX[at]);
            at += 1;
        }
        index += 1;
    }
};
const START: usize = HANDED_ON.len();
const PROGRAM: usize = HANDED_ON.len() + 1;

/// The kept entries, each with its name, value and a zero byte, from the end on: there they share a
/// page with the library's other variables (preload/order.ld), and most programs touch no other.
#[repr(C)]
struct KeptEntries {
    bytes: [u8; KEPT_BYTES],
    used: usize,
    /// Where each begins; `None`: there is no such entry.
    starts: [Option<u32>; KEPT.len()],
}
/// Whole pages for all of it.
const KEPT_BYTES: usize = (KEPT.len() * ENTRY_BYTES_MAX).next_multiple_of(4096) + 4096 - 8 - 8 * KEPT.len();
const _: () = assert!(size_of::<KeptEntries>().is_multiple_of(4096));
struct KeptCell(UnsafeCell<KeptEntries>);
// SAFETY: see the module's invariant.
unsafe impl Sync for KeptCell {}

static ENTRIES: KeptCell =
    KeptCell(UnsafeCell::new(KeptEntries { bytes: [0; KEPT_BYTES], used: 0, starts: [None; KEPT.len()] }));

/// The record, and whether there is one: zero at the start.
struct HandoffCell(UnsafeCell<(bool, MaybeUninit<HandoffRecord>)>);
// SAFETY: see the module's invariant.
unsafe impl Sync for HandoffCell {}
static HANDOFF: HandoffCell = HandoffCell(UnsafeCell::new((false, MaybeUninit::uninit())));

/// A string of a list. Its length is measured only when it is needed.
#[derive(Debug, Clone, Copy)]
pub struct ListedString(*const u8);

impl ListedString {
    /// Where it begins.
    pub fn as_ptr(self) -> *const u8 {
        self.0
    }

    /// The string with its zero byte.
    pub fn bytes(self) -> &'static [u8] {
        // SAFETY: only `strings` makes one, of a list whose strings are valid while this is used.
        unsafe { CStr::from_ptr(self.0.cast()) }.to_bytes_with_nul()
    }

    /// `bytes`, unless the first letter says that it is an entry neither of this library nor of the
    /// loader.
    pub fn special(self) -> Option<&'static [u8]> {
        // SAFETY: as above.
        let first = unsafe { *self.0 };
        matches!(first, b'D' | b'G' | b'L').then(|| self.bytes())
    }
}

/// The strings of a list.
///
/// # Safety
/// `list` is null or points to pointers to strings, of which the last is null, all valid while the
/// iterator and its items are used.
pub unsafe fn strings(list: *const *const u8) -> impl Iterator<Item = ListedString> {
    let mut next = list;
    core::iter::from_fn(move || {
        // SAFETY: the list extends to its null (the caller's promise), which is never passed.
        let string = if next.is_null() { core::ptr::null() } else { unsafe { *next } };
        if string.is_null() {
            return None;
        }
        // SAFETY: as above; the string was not the last.
        next = unsafe { next.add(1) };
        Some(ListedString(string))
    })
}

/// The entries of an environment that can be this library's or the loader's.
///
/// # Safety
/// As for [`strings`].
pub unsafe fn special_entries(environment: *const *const u8) -> impl Iterator<Item = &'static [u8]> {
    // SAFETY: by the caller's promise.
    unsafe { strings(environment) }.filter_map(ListedString::special)
}

impl KeptEntries {
    fn keep(&mut self, index: usize, entry: &[u8]) {
        // The entry with descriptors can become longer.
        let room = if KEPT[index] == handoff::IMAGE {
            entry.len().max(handoff::IMAGE.len() + handoff::TEXT_BYTES_MAX + 1)
        } else {
            entry.len()
        };
        // If an entry occurs twice, the first one counts, as for getenv.
        if self.starts[index].is_some() {
            return;
        }
        self.used += room;
        let start = KEPT_BYTES - self.used;
        self.bytes[start..start + entry.len()].copy_from_slice(entry);
        self.starts[index] = Some(start as u32);
    }
}

/// The number of entries in a list.
///
/// # Safety
/// As for [`strings`].
pub unsafe fn count(environment: *const *const u8) -> usize {
    // SAFETY: by the caller's promise.
    unsafe { strings(environment) }.count()
}

/// What a process has of the image, if it is so little that its next program need not attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FewThings {
    /// It has nothing of the image.
    Nothing = 1,
    /// It has its working directory there, and nothing else.
    Directory = 2,
}

impl FewThings {
    fn from_number(number: u32) -> Option<FewThings> {
        [FewThings::Nothing, FewThings::Directory].into_iter().find(|few| *few as u32 == number)
    }
}

/// What a process finds in its environment.
#[derive(Debug, Default)]
pub struct Adopted {
    /// Whether the launcher set entries, and all of them fit.
    pub handed_off: bool,
    /// The index of the process's slot, if the previous program passed one.
    pub process: Option<u32>,
    /// What that program had of the image, if it was at most its working directory.
    pub had: Option<FewThings>,
    /// The descriptor of the process's meeting directory, if the previous program passed one.
    pub meeting: Option<i32>,
    /// Whether the loader loads audit modules, which have libraries of their own.
    pub has_audit: bool,
    /// Whether the entries that are not the program's are to be hidden; and the mount, too?
    pub hides_mount: Option<bool>,
    /// The entry of the early copy, and the address in it.
    pub early: Option<(usize, usize)>,
    /// The path by which the program was started, with a zero byte, if the kernel does not know it.
    pub name: Option<&'static [u8]>,
}

/// In the second copy: the address in the entry's digits. `None`: there is no early copy.
pub fn early_address(entry: &[u8]) -> Option<usize> {
    let digits = entry.strip_prefix(EARLY)?.strip_suffix(b"\0")?;
    let digits = core::str::from_utf8(digits).ok().filter(|digits| digits.len() == EARLY_DIGITS)?;
    usize::from_str_radix(digits, 16).ok()
}

/// Removes the paths that were for the loader alone; the program's own entry of that name, if any,
/// precedes them. The entry after them is repeated instead, because the list must not become
/// shorter: the kernel's auxiliary vector follows it.
///
/// # Safety
/// As for [`strings`]; only for the constructor.
pub unsafe fn restore(environment: *mut *const u8) {
    let is_for_loader = |entry: &[u8]| {
        matches!(entry[0], b'L' | b'G') && (entry.starts_with(LD_LIBRARY_PATH) || TUNABLES.contains(&entry))
    };
    let mut paths = 0..0;
    // SAFETY: by the caller's promise.
    for (index, string) in unsafe { strings(environment) }.enumerate() {
        let Some(entry) = string.special() else { continue };
        if paths.end != index {
            paths = index..index;
        }
        if is_for_loader(entry) {
            paths.end = index + 1;
        } else if !paths.is_empty() && entry.starts_with(EARLY) {
            // SAFETY: the list has that many entries, and nothing else uses it yet.
            paths.for_each(|index| unsafe { *environment.add(index) = entry.as_ptr() });
            return;
        }
    }
}

/// Removes from the program's list what others than the program have added: it sees the
/// environment that it was started with. Programs that it starts get the entries from here.
///
/// A program may search the kernel's auxiliary vector after the list. So the list's free end
/// becomes pairs of that vector that say nothing. With an odd number one entry stays.
///
/// `adopted`: what says whether to hide.
///
/// # Safety
/// As for [`strings`]; only for the start of a process. The list has the auxiliary vector behind
/// it, or nothing looks there.
pub unsafe fn hide(environment: *mut *const u8, adopted: &Adopted) {
    let Some(hides_mount) = adopted.hides_mount else { return };
    let library = library();
    let is_seen = |entry: &[u8]| is_seen(entry, library, hides_mount);
    // SAFETY: by the caller's promise.
    let hidden = unsafe { special_entries(environment) }.filter(|entry| !is_seen(entry)).count();
    let mut spare = hidden % 2;
    let (mut count, mut length) = (0, 0);
    // SAFETY: by the caller's promise; what is written lies before what is read next.
    for string in unsafe { strings(environment) } {
        count += 1;
        let mut shown = string.as_ptr();
        if let Some(entry) = string.special() {
            if !is_seen(entry) {
                if spare == 0 {
                    continue;
                }
                spare -= 1;
            }
            if let Some((name, rest @ [_, ..])) = loader_list(entry, library) {
                // The name moves to the program's part, over what precedes that.
                let at = entry.len() - rest.len() - name.len();
                // SAFETY: inside the entry, which has no references here any more.
                unsafe {
                    let start = shown.cast_mut().add(at);
                    core::ptr::copy_nonoverlapping(name.as_ptr(), start, name.len());
                    shown = start;
                }
            }
        }
        // SAFETY: not beyond what was read.
        unsafe { *environment.add(length) = shown };
        length += 1;
    }
    // SAFETY: the list extends to its null.
    unsafe {
        *environment.add(length) = core::ptr::null();
        for pair in (length + 1..count).step_by(2) {
            *environment.add(pair) = AT_IGNORE;
            *environment.add(pair + 1) = core::ptr::null();
        }
    }
}

/// A pair of the auxiliary vector with this kind says nothing.
const AT_IGNORE: *const u8 = core::ptr::without_provenance(1);

/// Whether the program sees an entry, or a part of it. `library`: this library's path.
pub fn is_seen(entry: &[u8], library: &[u8], hides_mount: bool) -> bool {
    match entry.first() {
        Some(b'D' | b'G') => entry.starts_with(handoff::MOUNT) && !hides_mount || !is_directfs(entry),
        Some(b'L') => loader_list(entry, library).is_none_or(|(_, rest)| !rest.is_empty()),
        _ => true,
    }
}

/// For one of the loader's lists that begins with this library: its name, and the rest.
fn loader_list<'e>(entry: &'e [u8], library: &[u8]) -> Option<(&'static [u8], &'e [u8])> {
    let (name, value) = [LD_PRELOAD, LD_AUDIT].into_iter().find_map(|name| Some((name, entry.strip_prefix(name)?)))?;
    match value.strip_prefix(library)? {
        [0] => Some((name, &[])),
        [b':' | b' ', rest @ ..] => Some((name, rest)),
        _ => None,
    }
}

/// Keeps the launcher's entries.
///
/// # Safety
/// As for [`strings`]; only for the constructor.
pub unsafe fn adopt(environment: *const *const u8) -> Adopted {
    let mut adopted = Adopted::default();
    // A page that is written before it is read costs one fault instead of two.
    // SAFETY: nothing else runs yet (the module's invariant).
    unsafe { (&raw mut (*ENTRIES.0.get()).used).write_volatile(0) };
    // SAFETY: by the caller's promise.
    for entry in unsafe { special_entries(environment) } {
        if entry[0] == b'L' {
            adopted.has_audit |= entry.starts_with(LD_AUDIT);
        }
        if !entry.starts_with(OWN_PREFIX) {
            continue;
        }
        let index = KEPT.iter().position(|name| entry.starts_with(name));
        if let Some(index) = index.filter(|_| entry.len() <= ENTRY_BYTES_MAX) {
            // SAFETY: nothing else runs yet (the module's invariant).
            unsafe { (*ENTRIES.0.get()).keep(index, entry) };
        }
        if entry == HIDE || entry == HIDE_MOUNT {
            adopted.hides_mount = Some(entry == HIDE_MOUNT);
        }
        if let Some(value) = entry.strip_prefix(handoff::PROCESS) {
            let mut parts = value[..value.len() - 1].split(|&byte| byte == b',').map(handoff::number);
            let mut next = || parts.next().flatten().and_then(|number| u32::try_from(number).ok());
            (adopted.process, adopted.meeting) = (next(), next().map(|fd| fd as i32));
            adopted.had = next().and_then(FewThings::from_number);
        }
        if let Some(value) = entry.strip_suffix(b"\0").and_then(|entry| entry.strip_prefix(handoff::IDS)) {
            user_namespace::adopt(value);
        }
        adopted.name = adopted.name.or(entry.strip_prefix(handoff::NAME));
        if let Some(address) = early_address(entry) {
            adopted.early = Some((entry.as_ptr() as usize, address));
        }
    }
    adopted.handed_off = run_entry().is_some();
    adopted
}

/// Parses the kept entry of the handoff protocol. The caller hides [`descriptors`] from the
/// program. `None`: there is no file system.
///
/// `meeting`: the descriptor of the meeting directory in the program that executed this one.
pub fn read_handoff(meeting: Option<i32>) -> Option<HandoffRecord> {
    let text = value(handoff::IMAGE)?;
    let Some(handoff) = HandoffRecord::parse(text) else {
        sys::refuse(&[
            b"another version of directfs started this program; restart the whole run: ",
            handoff::IMAGE,
            text,
        ]);
    };
    if let Some(meeting) = meeting.filter(|meeting| *meeting != handoff.meeting) {
        // That program had its parent's memory, and the parent uses the number for its own
        // directory.
        // SAFETY: descriptors that are hidden from the program; no memory changes.
        unsafe {
            tables::host::with_number(handoff.meeting, || {
                let flags = libc::O_CLOEXEC as u64;
                sys::call(libc::SYS_dup3, [meeting as u64, handoff.meeting as u64, flags, 0, 0, 0])
            });
            sys::call(libc::SYS_close, [meeting as u64, 0, 0, 0, 0, 0]);
        }
    }
    pmem::adopt_features(handoff.processor);
    // SAFETY: only the constructor runs (the module's invariant).
    unsafe { *HANDOFF.0.get() = (true, MaybeUninit::new(handoff)) };
    Some(handoff)
}

/// The record of the handoff protocol, with the numbers of this process.
pub fn handoff() -> Option<HandoffRecord> {
    let handoff = shared_handoff()?;
    Some(if child_numbers::are_any() { with_own_numbers(handoff) } else { handoff })
}

/// The record that all processes of this memory share.
fn shared_handoff() -> Option<HandoffRecord> {
    // SAFETY: see the module's invariant; a record that is there was written.
    unsafe {
        let (is_there, record) = *HANDOFF.0.get();
        is_there.then(|| record.assume_init())
    }
}

#[cold]
fn with_own_numbers(mut handoff: HandoffRecord) -> HandoffRecord {
    handoff.numbers().into_iter().for_each(|number| *number = child_numbers::own(*number));
    handoff
}

/// The entry with the descriptors, as a child in its parent's memory passes it on. `None`: as the
/// memory says.
pub fn own_entry(into: &mut [u8]) -> Option<*const u8> {
    if !child_numbers::are_any() {
        return None;
    }
    into[..handoff::IMAGE.len()].copy_from_slice(handoff::IMAGE);
    let length = handoff::IMAGE.len() + handoff()?.write(&mut into[handoff::IMAGE.len()..]);
    into[length] = 0;
    Some(into.as_ptr())
}

/// The descriptors that are hidden from the program.
pub fn descriptors() -> impl Iterator<Item = i32> {
    handoff().into_iter().flat_map(HandoffRecord::present)
}

/// Records that a hidden descriptor has another number now. No two threads do so at a time.
pub fn renumber(from: i32, to: i32) -> Option<HandoffRecord> {
    let mut handoff = shared_handoff()?;
    for place in handoff.numbers() {
        if *place == from {
            *place = to;
        }
    }
    // SAFETY: see the module's invariant; readers see the old numbers or the new ones, and either
    // is open.
    unsafe {
        let index = HANDED_ON.iter().position(|name| *name == handoff::IMAGE).unwrap_or_default();
        let kept = &mut *ENTRIES.0.get();
        let start = kept.starts[index]?;
        let room = &mut kept.bytes[start as usize..];
        let length = handoff::IMAGE.len() + handoff.write(&mut room[handoff::IMAGE.len()..]);
        room[length] = 0;
        *HANDOFF.0.get() = (true, MaybeUninit::new(handoff));
    }
    Some(handoff)
}

/// Whether an entry of an environment belongs to DirectFS, and is not the program's to pass on.
pub fn is_directfs(entry: &[u8]) -> bool {
    match entry.first() {
        Some(b'D') => entry.starts_with(OWN_PREFIX) && DIRECTFS_ENTRIES.iter().any(|name| entry.starts_with(name)),
        Some(b'G') => TUNABLES.contains(&entry),
        _ => false,
    }
}

/// The entries that every program gets unchanged, but for that with descriptors if this process has
/// [its own](own_entry).
pub fn handed_on(own: Option<*const u8>) -> impl Iterator<Item = *const u8> {
    let entry = move |index: usize| match own {
        Some(own) if HANDED_ON[index] == handoff::IMAGE => own,
        _ => get(index).map_or(core::ptr::null(), <[u8]>::as_ptr),
    };
    (0..HANDED_ON.len()).map(entry).filter(|entry| !entry.is_null())
}

fn get(index: usize) -> Option<&'static [u8]> {
    // SAFETY: only read from now on (the module's invariant).
    let kept = unsafe { &*ENTRIES.0.get() };
    let bytes = &kept.bytes[kept.starts[index]? as usize..];
    let end = bytes.iter().position(|&byte| byte == 0)?;
    Some(&bytes[..=end])
}

fn find(name: &[u8]) -> Option<&'static [u8]> {
    let index = HANDED_ON.iter().position(|handed| *handed == name)?;
    get(index)
}

/// The value of an entry, with its zero byte.
pub fn string(name: &[u8]) -> Option<&'static [u8]> {
    find(name).map(|entry| &entry[name.len()..])
}

/// `string` without the zero byte.
pub fn value(name: &[u8]) -> Option<&'static [u8]> {
    string(name).map(|value| &value[..value.len() - 1])
}

/// The first program's working directory in the mount.
pub fn start_directory() -> Option<&'static [u8]> {
    get(START).map(|entry| &entry[handoff::START.len()..entry.len() - 1])
}

/// The program's file, if it lies in the mount.
pub fn program() -> Option<&'static [u8]> {
    get(PROGRAM).map(|entry| &entry[handoff::PROGRAM.len()..entry.len() - 1])
}

/// Sets the entry with the program's file.
///
/// # Safety
/// Only for the start of a process; called once, if there is no such entry.
#[cfg(feature = "loader")]
pub unsafe fn set_program(entry: &[u8]) {
    // SAFETY: nothing else runs yet (the module's invariant).
    unsafe { (*ENTRIES.0.get()).keep(PROGRAM, entry) };
}

/// The entry that names this library, with its zero byte.
pub fn run_entry() -> Option<&'static [u8]> {
    find(RUN)
}

/// The entry that names the file of call counters.
pub fn counts_entry() -> Option<&'static [u8]> {
    find(COUNTS)
}

/// The value of the entry that names the file of a profile, with its zero byte.
pub fn profile_path() -> Option<&'static [u8]> {
    find(PROFILE).map(|entry| &entry[PROFILE.len()..])
}

/// Path of this library, without its zero byte.
pub fn library() -> &'static [u8] {
    value(RUN).unwrap_or_default()
}
