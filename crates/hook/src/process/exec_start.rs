//! The lists of arguments and of the environment that a new program gets, and the call that starts
//! it.
//!
//! Invariant: the program's own lists and strings are not changed. Additions live on this stack or
//! in the thread's context, and are unused by the time when a child in shared memory lets its
//! parent resume.

use crate::abi::entry::{Verdict, done};
use crate::abi::user_memory::FIRST_PAGE;
use crate::call::blocking_call;
use crate::descriptors::{fd_numbers, marks};
use crate::handoff::{self, ENTRY_BYTES_MAX};
use crate::loading::early;
use crate::process::environment::{
    self, ADDED, FewThings, LD_AUDIT, LD_LIBRARY_PATH, LD_PRELOAD, ListedString, handed_on, is_directfs, library,
    strings,
};
use crate::process::user_namespace::{self, IdsAtEntry};
use crate::{mount_table, signals, stack};
use core::mem::MaybeUninit;
use posix::{Errno, Result};

/// Maximum nesting of interpreters, as in the kernel.
pub const INTERPRETERS_MAX: usize = 5;
/// Arguments that may precede the program's own: three for each interpreter, and the helper's with
/// two for each entry.
pub const BEFORE_MAX: usize = 3 * INTERPRETERS_MAX + 5 + 2 * LOADER_ENTRIES_MAX;
/// Maximum number of the loader's entries that are passed through the helper.
pub const LOADER_ENTRIES_MAX: usize = 8;
/// Capacity that most lists fit: 4 KiB.
const ENTRIES_FEW: usize = 512;
/// Maximum number of entries of a list: 128 KiB, an eighth of the thread's stack.
const ENTRIES_MAX: usize = 16384;
/// Size of the entry with the process's slot.
const PROCESS_BYTES: usize = 64;
/// Sizes of the entries that are written here: three lists of the loader, the ids, the descriptors.
/// They are not on the stack, whose pages a child of a fork touches for the first time.
const LIST_BYTES: usize = 2 * ENTRY_BYTES_MAX;
/// Room for all of them.
pub const SCRATCH_BYTES: usize = 3 * LIST_BYTES + 2 * ENTRY_BYTES_MAX;

/// Arguments that precede the program's own, in the order of the list; their strings are in an
/// arena.
pub struct LeadingArguments<'a> {
    pub list: [*const u8; BEFORE_MAX],
    pub start: usize,
    arena: &'a mut [u8],
    used: usize,
}

impl<'a> LeadingArguments<'a> {
    pub fn new(arena: &'a mut [u8]) -> Self {
        LeadingArguments { list: [core::ptr::null(); BEFORE_MAX], start: BEFORE_MAX, arena, used: 0 }
    }

    /// Stores a string, with a zero byte.
    pub fn keep(&mut self, parts: &[&[u8]]) -> Result<*const u8> {
        let start = self.used;
        for part in parts.iter().copied().chain([&b"\0"[..]]) {
            let room = self.arena.get_mut(self.used..self.used + part.len()).ok_or(Errno::E2BIG)?;
            room.copy_from_slice(part);
            self.used += part.len();
        }
        Ok(self.arena[start..].as_ptr())
    }

    pub fn push_front(&mut self, string: *const u8) -> Result<()> {
        self.start = self.start.checked_sub(1).ok_or(Errno::E2BIG)?;
        self.list[self.start] = string;
        Ok(())
    }
}

/// The call that starts a program.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    pub number: i64,
    pub arguments: [u64; 6],
    /// Index of the argument with the list of arguments; the environment follows.
    pub lists: usize,
}

/// Whether the loader needs the mount before the program starts.
#[derive(Debug, Clone, Copy)]
pub struct EarlyLoad {
    /// It does.
    pub is_needed: bool,
    /// Bytes of static thread-local storage that its libraries need.
    pub static_storage_bytes: u64,
    /// Which parts of its surroundings are in the mount.
    pub inside: early::ProgramInside,
    /// Lists of paths that are built into a program of the mount, if they name its directory.
    pub library_paths: Option<*const u8>,
}

/// Everything that starts a program.
pub struct ExecStart<'a> {
    pub target: Target,
    /// Arguments that precede the program's.
    pub before: &'a [*const u8],
    /// Number of the program's own arguments that are left out.
    pub skip: usize,
    pub process: Option<u32>,
    /// The descriptor of the process's meeting directory, if it is not the usual one.
    pub meeting: Option<i32>,
    /// What the program acts as, if the process is in a user namespace.
    pub ids: Option<IdsAtEntry>,
    /// What the process has of the image, if it is so little that the program need not attach.
    pub has: Option<FewThings>,
    /// An entry of the environment that names the program's file.
    pub program: Option<*const u8>,
    /// An entry of the environment with the path by which the program is started.
    pub name: Option<*const u8>,
    /// An entry of the environment for the library as a program that loads another one, if it is
    /// started.
    pub loaded_program: Option<*const u8>,
    /// `None`: there is no mount.
    pub early_load: Option<EarlyLoad>,
    pub has_library: bool,
    /// Whether this is the launcher's helper, which the entries for the program's loader do not
    /// concern.
    pub is_helper: bool,
}

/// What the program's own environment says about entries that are made for it. The values end with
/// a zero byte.
struct OwnEntries<'e> {
    libraries: &'e [u8],
    audits: &'e [u8],
    /// Where the loader searches.
    paths: &'e [u8],
    names_mount: bool,
}

impl OwnEntries<'_> {
    /// How many of the entries that are made the program sees, entirely or in part.
    fn seen(&self) -> usize {
        let lists = [self.libraries, self.audits].into_iter().filter(|list| !without_library(list).is_empty());
        lists.count() + usize::from(self.names_mount)
    }
}

/// What the loader's entries of the environment begin with.
pub const LOADER_PREFIX: &[u8] = b"LD_";

impl ExecStart<'_> {
    /// Starts the program. It returns only if that failed. `scratch`: [`SCRATCH_BYTES`] at least.
    pub fn run(&self, scratch: &mut [u8]) -> Verdict {
        // The new program would find them open, without knowledge of them.
        fd_numbers::release_cached();
        mount_table::hand_over();
        let Target { arguments, lists, .. } = self.target;
        let (words, environment) = (arguments[lists], arguments[lists + 1]);
        if [words, environment].iter().any(|&list| list != 0 && list < FIRST_PAGE) {
            return done(-i64::from(libc::EFAULT));
        }
        // SAFETY: lists of strings or null, which were read through once (or, without a mount, as
        // the program passed them).
        let count = unsafe {
            let words = if self.before.is_empty() { 0 } else { strings(words as *const *const u8).count() };
            words.max(strings(environment as *const *const u8).count())
        };
        let needed = count + (ADDED + 2).max(self.before.len()) + 1;
        if needed <= ENTRIES_FEW {
            self.with_lists::<ENTRIES_FEW>(scratch)
        } else if needed <= ENTRIES_MAX {
            self.with_lists::<ENTRIES_MAX>(scratch)
        } else {
            done(-i64::from(libc::E2BIG))
        }
    }

    #[inline(never)]
    fn with_lists<const N: usize>(&self, scratch: &mut [u8]) -> Verdict {
        let Target { number, mut arguments, lists } = self.target;
        let mut words: [MaybeUninit<*const u8>; N] = [const { MaybeUninit::uninit() }; N];
        if !self.before.is_empty() {
            // SAFETY: as in `run`. If another thread extends the list meanwhile, it is truncated.
            let own =
                unsafe { strings(arguments[lists] as *const *const u8) }.skip(self.skip).map(ListedString::as_ptr);
            let all = self.before.iter().copied().chain(own).take(N - 1).chain([core::ptr::null()]);
            words.iter_mut().zip(all).for_each(|(slot, word)| _ = slot.write(word));
            arguments[lists] = words.as_ptr() as u64;
        }
        let mut list: [MaybeUninit<*const u8>; N] = [const { MaybeUninit::uninit() }; N];
        let (preload, scratch) = scratch.split_at_mut(LIST_BYTES);
        let (audit, scratch) = scratch.split_at_mut(LIST_BYTES);
        let (library_path, scratch) = scratch.split_at_mut(LIST_BYTES);
        let (ids, image) = scratch.split_at_mut(ENTRY_BYTES_MAX);
        let mut slot = [0u8; PROCESS_BYTES];
        let mut length = 0;
        let mut push = |entry: *const u8| {
            if length < N - 1 - ADDED - 1 {
                list[length].write(entry);
                length += 1;
            }
        };
        let is_early = self.early_load.is_some_and(|early| early.is_needed);
        // SAFETY: as in `run`.
        let own = self.pass_on(unsafe { strings(arguments[lists + 1] as *const *const u8) }, &mut push);
        let OwnEntries { libraries: others, audits, paths, .. } = own;
        let audits = if is_early || without_library(audits) != b"" { Some(audits) } else { None };
        if !write_list(preload, LD_PRELOAD, self.has_library, others)
            || audits.is_some_and(|audits| !write_list(audit, LD_AUDIT, is_early, audits))
        {
            return done(-i64::from(libc::E2BIG));
        }
        let preload = (self.has_library || without_library(others) != b"").then_some(preload.as_ptr());
        let audits = audits.map(|_| audit.as_ptr());
        let built_in = self.early_load.and_then(|early| early.library_paths);
        // SAFETY: stored in the thread's context, with a zero byte.
        let built_in = built_in.map(|list| unsafe { core::ffi::CStr::from_ptr(list.cast()) }.to_bytes());
        if built_in.is_some_and(|list| !write_parts(library_path, LD_LIBRARY_PATH, without_zero(paths), list)) {
            return done(-i64::from(libc::E2BIG));
        }
        let built_in = built_in.map(|_| library_path.as_ptr());
        let taken = is_early.then_some(early::UNTAKEN.as_ptr());
        let storage_bytes = self.early_load.map_or(0, |early| early.static_storage_bytes);
        let tunables = is_early.then_some(early::tunables(storage_bytes).as_ptr());
        let is_served = self.is_served();
        let slot = self.write_process(&mut slot, self.has.filter(|_| !is_early));
        let own_ids = self.ids.as_ref().filter(|_| is_served);
        if own_ids.is_some_and(|at_entry| user_namespace::write_entry(at_entry, ids).is_none()) {
            return done(-i64::from(libc::E2BIG));
        }
        let ids = own_ids.map(|_| ids.as_ptr());
        let own_numbers = environment::own_entry(image);
        // Entries for the loader alone precede the early copy's directly: so the program finds
        // which to remove.
        let hide = if own.names_mount { environment::HIDE } else { environment::HIDE_MOUNT };
        let hide = (self.has_library && !self.is_helper).then_some(hide.as_ptr());
        let program = self.program.filter(|_| is_served);
        let name = self.name.filter(|_| is_served);
        let added = [preload, audits, built_in, tunables, taken, slot, ids, program, name, self.loaded_program, hide];
        let added = added.into_iter().flatten();
        let kept = || is_served.then(|| handed_on(own_numbers)).into_iter().flatten();
        let hidden = added.clone().chain(kept()).count().saturating_sub(own.seen());
        let fill = (is_served && hidden % 2 == 1).then_some(environment::FILL.as_ptr());
        for entry in added.chain(fill).chain(kept()).chain([core::ptr::null()]) {
            list[length].write(entry);
            length += 1;
        }
        arguments[lists + 1] = list.as_ptr() as u64;
        // SAFETY: lists and strings live on this stack, in the thread's context and in the library.
        unsafe { self.exec(number, arguments) }
    }

    /// Whether the program gets what belongs to the library: it loads it, or is the launcher's
    /// helper. Any other program gets nothing, above all one with other rights than this process.
    fn is_served(&self) -> bool {
        self.has_library || self.is_helper
    }

    /// Passes the program's own entries on.
    fn pass_on(
        &self,
        entries: impl Iterator<Item = ListedString>,
        push: &mut impl FnMut(*const u8),
    ) -> OwnEntries<'static> {
        let mut own = OwnEntries { libraries: b"\0", audits: b"\0", paths: b"\0", names_mount: false };
        for entry in entries {
            let Some(entry) = entry.special() else {
                push(entry.as_ptr());
                continue;
            };
            if self.is_helper && entry.starts_with(LOADER_PREFIX) {
                continue;
            }
            match (entry.strip_prefix(LD_PRELOAD), entry.strip_prefix(LD_AUDIT)) {
                (Some(value), _) => own.libraries = value,
                (_, Some(value)) => own.audits = value,
                _ if is_directfs(entry) => own.names_mount |= entry.starts_with(handoff::MOUNT),
                _ => push(entry.as_ptr()),
            }
            if let Some(value) = entry.strip_prefix(LD_LIBRARY_PATH) {
                own.paths = value;
            }
        }
        own
    }

    /// Writes the entry with the process's slot and its meeting directory, if it has a slot.
    fn write_process(&self, into: &mut [u8; PROCESS_BYTES], has: Option<FewThings>) -> Option<*const u8> {
        let process = self.process.filter(|_| self.is_served())?;
        into[..handoff::PROCESS.len()].copy_from_slice(handoff::PROCESS);
        let mut length = handoff::PROCESS.len();
        length += handoff::write_number(u64::from(process), &mut into[length..]);
        let usual = environment::handoff().filter(|_| has.is_some()).map(|handoff| handoff.meeting);
        if let Some(meeting) = self.meeting.or(usual) {
            into[length] = b',';
            length += 1 + handoff::write_number(meeting as u64, &mut into[length + 1..]);
            if let Some(has) = has {
                into[length..length + 2].copy_from_slice(&[b',', b'0' + has as u8]);
            }
        }
        Some(into.as_ptr())
    }

    /// Performs the call that starts the program. It returns only if it failed, and then changed
    /// nothing.
    ///
    /// # Safety
    /// The lists in the arguments and their strings outlive the call.
    unsafe fn exec(&self, number: i64, arguments: [u64; 6]) -> Verdict {
        stack::set_leaving(true);
        self.hand_over_descriptors(self.is_served());
        // SAFETY: by the caller's promise; the thread holds nothing in the engine.
        let result = unsafe {
            // The new program would inherit them blocked.
            signals::deliver_now();
            blocking_call(number, arguments)
        };
        self.hand_over_descriptors(false);
        stack::set_leaving(false);
        done(result)
    }

    /// Lets the kernel hand the hidden descriptors to the new program, or has it close them, as it
    /// does at every start that this library does not see. Another thread may have changed what a
    /// fork copied, so they are set in any case.
    fn hand_over_descriptors(&self, is_inherited: bool) {
        let Some(mut handoff) = environment::handoff() else { return };
        // A child in its parent's memory has two meeting directories open. Its own goes to the
        // program.
        handoff.meeting = self.meeting.unwrap_or(handoff.meeting);
        for fd in handoff.present() {
            marks::set_kernel_cloexec(fd as u32, !is_inherited);
        }
    }
}

/// The value of one of the loader's lists without this library, which comes first if present, and
/// without the zero byte.
fn without_library(value: &[u8]) -> &[u8] {
    let value = without_zero(value);
    match value.strip_prefix(library()) {
        Some(b"") => b"",
        Some([b':' | b' ', rest @ ..]) => rest,
        _ => value,
    }
}

fn without_zero(value: &[u8]) -> &[u8] {
    value.strip_suffix(b"\0").unwrap_or(value)
}

/// Writes one of the loader's lists, with this library before all others if requested; returns
/// false if it does not fit.
fn write_list(into: &mut [u8], name: &[u8], with_us: bool, others: &[u8]) -> bool {
    write_parts(into, name, if with_us { library() } else { b"" }, without_library(others))
}

/// Writes an entry of the environment with a list of two parts; returns false if it does not fit.
fn write_parts(into: &mut [u8], name: &[u8], first: &[u8], second: &[u8]) -> bool {
    let colon: &[u8] = if first.is_empty() || second.is_empty() { b"" } else { b":" };
    let mut length = 0;
    for part in [name, first, colon, second, b"\0"] {
        let Some(room) = into.get_mut(length..length + part.len()) else { return false };
        room.copy_from_slice(part);
        length += part.len();
    }
    true
}
