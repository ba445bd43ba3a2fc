//! The library's work before the program runs: [`start`] is the constructor, and calls the other
//! modules of `loading` in order. What it finds in the environment comes from the launcher or, in a
//! program that another one started, from `process::exec_start`. Costs of each step:
//! docs/architecture.md, "The life of a start".
//!
//! Invariant: it patches every library that makes system calls, or does nothing (without the
//! launcher), or ends the program with a message.
//!
//! *Reason:* each page that a start touches is a fault (also each that parent or child of a fork
//! writes), each system call costs 0.1 to 1 µs, and CPUID leaves a virtual machine (4 µs). So
//! `preload/order.ld` puts code together by use; variables that a start writes share a page;
//! relocated addresses fill two; large tables are mapped when needed; the DRAM region's first chunk
//! holds the header, the tables' beginnings, and the slots of nine processes. The launcher passes
//! on what every emulator of the processor can do. That made `/bin/true` 24 µs faster, a fork 13,
//! fork and exec 49.
//!
//! *Rejected:* a huge page at the region's beginning (2 MiB per image in use); the first elements
//! of each table in one place (a branch in each access); features in the DRAM region (a process
//! could end others); all features from the parent (under Valgrind a program has an older
//! processor).

use crate::abi::entry::{DIRECTFS_ALL, DIRECTFS_PREFIX};
use crate::abi::sys;
use crate::call_table::TABLE;
use crate::descriptors::marks;
use crate::handoff;
use crate::loading::answers::Answers;
use crate::loading::hot_sites;
use crate::loading::loaded::LoadedProgram;
use crate::loading::patch::{self, Library, Refusal};
use crate::loading::shared_text::{self, LIBRARIES_MAX};
use crate::loading::{armed_threads, early, file_identity, inline_syscalls, library_syscalls, proc_maps, site_slots};
use crate::process::environment::{self, Adopted, FewThings};
use crate::process::{attach, limits};
use crate::signals::{self, faults};
use crate::{call_counts, context, profile, server};
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use libc::{PF_X, PT_LOAD};

/// The constructor.
///
/// # Safety
/// Called once, by the loader, before any other code of the program; `environment` is the
/// program's, and `memory_code` where `memcpy` and the like are.
pub unsafe fn start(environment: *const *const u8, memory_code: Range<usize>) {
    // SAFETY: by the caller's promise.
    let adopted = unsafe { environment::adopt(environment) };
    if !adopted.handed_off {
        return;
    }
    // SAFETY: as above; the loader has read its entries already.
    unsafe { environment::restore(environment.cast_mut()) };
    let is_early = matches!(adopted.early, Some((_, 0)));
    let before = adopted.early.map_or(0, |(_, address)| address);
    // SAFETY: no call is hooked yet.
    unsafe { begin() };
    let mut libraries = [const { None }; LIBRARIES_MAX];
    let may_share = adopted.early.is_none();
    let mut look = |mapping: &proc_maps::Mapping<'_>| {
        signals::record(mapping);
        early::record(mapping, before);
        let makes_calls = makes_calls(mapping.path);
        if makes_calls {
            record(&mut libraries, mapping, may_share);
        }
        armed_threads::record(mapping, makes_calls);
    };
    let is_plain = adopted.early.is_none() && !adopted.has_audit;
    // SAFETY: this is the constructor, in the only namespace.
    let by_loader = is_plain.then(|| unsafe { look_by_loader(environment, &mut look) }).flatten();
    if by_loader.is_none() && proc_maps::for_each(&mut look).is_err() {
        sys::refuse(&[b"cannot read /proc/self/maps, which this program needs; mount /proc"]);
    }
    // SAFETY: this is the constructor; the entry is the program's own, without other users yet.
    let joined = unsafe {
        match adopted.early {
            // Programs started from here must not find a record that is gone by then.
            Some((entry, 1..)) => {
                core::ptr::copy_nonoverlapping(early::UNTAKEN.as_ptr(), entry as *mut u8, early::UNTAKEN.len())
            }
            Some((entry, _)) => early::announce(entry as *mut u8),
            None => {}
        }
        early::take_over()
    };
    // SAFETY: this is the constructor.
    let may_fit = || unsafe { lie_as_in_other_starts(environment, &libraries) };
    let next = match patch::patch(libraries.iter().flatten(), may_share, may_fit) {
        Ok(next) => next,
        Err(refusal) => sys::refuse(&[reason(refusal)]),
    };
    if next == 0 {
        sys::refuse(&[b"this program has no supported C library; use `directfs mount`"]);
    }
    if let Some(path) = adopted.name {
        // SAFETY: a string of the program's environment, which ends with a zero byte.
        unsafe { show_name(environment, path) };
    }
    let hint = if is_early { early::out_of_the_way() } else { 0 };
    // SAFETY: this is the constructor.
    if unsafe { join(&adopted, hint, joined) } && !is_early {
        faults::record_memory_code(memory_code);
        // SAFETY: this is the constructor.
        unsafe { see_other_calls(environment, next) };
        signals::guard();
    }
    if !is_early {
        // SAFETY: this is the constructor, and nothing of this library looks at the list later.
        unsafe { environment::hide(environment.cast_mut(), &adopted) };
    }
}

/// Shows the path by which the program was started: the kernel knows that of the copy or of the
/// interpreter which it runs.
///
/// # Safety
/// As for [`start`]. The path is the program's and ends with a zero byte.
unsafe fn show_name(environment: *const *const u8, path: &'static [u8]) {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    // SAFETY: by the caller's promise. The kernel's auxiliary vector follows the list, and its last
    // pair has kind zero.
    unsafe {
        sys::call(libc::SYS_prctl, [libc::PR_SET_NAME as u64, name.as_ptr() as u64, 0, 0, 0, 0]);
        let count = environment::count(environment);
        let mut pair = environment.add(count + 1).cast::<u64>().cast_mut();
        while *pair != 0 {
            if *pair == libc::AT_EXECFN {
                *pair.add(1) = path.as_ptr() as u64;
            }
            pair = pair.add(2);
        }
    }
}

/// Prepares the state that calls use.
///
/// # Safety
/// Only for the start of a process, while no call is hooked.
pub unsafe fn begin() {
    DIRECTFS_ALL.store(0, Relaxed);
    context::prepare();
    // SAFETY: by the caller's promise.
    unsafe { DIRECTFS_PREFIX.match_nothing() };
    if let Some(entry) = environment::counts_entry() {
        if call_counts::open(&entry[environment::COUNTS.len()..]).is_err() {
            sys::refuse(&[b"cannot open the file for call counters: ", entry]);
        }
        DIRECTFS_ALL.store(1, Relaxed);
    }
    if let Some(path) = environment::profile_path() {
        profile::open(path);
        context::record_all();
    }
}

/// Sets up the mount, and attaches unless the process has at most its working directory in the
/// image; returns whether there is a file system. `hint`: where regions are to be mapped; `joined`:
/// the slot that this process takes over from an early copy.
///
/// # Safety
/// Only for the start of a process.
pub unsafe fn join(adopted: &Adopted, hint: usize, joined: Option<u32>) -> bool {
    let Some(handoff) = environment::read_handoff(adopted.meeting) else { return false };
    for fd in environment::descriptors() {
        marks::protect(fd);
        marks::set_kernel_cloexec(fd as u32, true);
    }
    let mount = environment::value(handoff::MOUNT).unwrap_or_default();
    limits::read();
    // SAFETY: by the caller's promise.
    let server = unsafe { server::prepare(mount) };
    // Without addresses for the image the start of a program in it is refused, which is clearer
    // than an error of its first call. Elsewhere it may need none.
    let may_wait = |had| adopted.early.is_none() && (had == FewThings::Nothing || server::has_room(&handoff));
    match adopted.process.zip(adopted.had).filter(|(_, had)| may_wait(*had)) {
        Some((slot, had)) => attach::postpone(server, slot, had == FewThings::Directory),
        None => {
            // SAFETY: by the caller's promise.
            if let Err(reason) = unsafe { server::attach(&handoff, hint, joined.or(adopted.process)) } {
                sys::refuse(&[reason]);
            }
            let process = joined.map_or(attach::Origin::Exec(adopted.process), attach::Origin::Joined);
            attach::start(server, process, environment::start_directory());
        }
    }
    true
}

/// From now on calls by instructions of the program and of its libraries are seen; `next`: the
/// first free slot.
///
/// # Safety
/// As for [`start`].
unsafe fn see_other_calls(environment: *const *const u8, next: usize) {
    site_slots::set_first(next);
    // SAFETY: by the caller's promise.
    unsafe {
        let mut answers = Answers::default();
        if inline_syscalls::are_in_program(environment, &TABLE.routes, &mut answers) {
            armed_threads::arm();
            if !armed_threads::is_armed() {
                sys::refuse(&[b"this program makes system calls by instructions of its own, and this kernel has no Syscall User Dispatch (Linux 5.11), or a filter forbids it; use `directfs mount`"]);
            }
            record_program(environment);
        }
        library_syscalls::patch_loaded(environment, &TABLE.routes, &mut answers, makes_calls);
    }
}

/// Lets the program's sites be replaced that are used again and again.
///
/// # Safety
/// As for [`LoadedProgram::find`].
unsafe fn record_program(environment: *const *const u8) {
    // SAFETY: by the caller's promise.
    let Some(program) = (unsafe { LoadedProgram::find(environment) }) else { return };
    let range = |bytes: &[u8]| bytes.as_ptr() as usize..bytes.as_ptr() as usize + bytes.len();
    if let Some(code) = program.segment(|kind, flags| kind == PT_LOAD && flags & PF_X != 0) {
        // Without constants of their own they are with the code.
        hot_sites::record_near(range(code), Some(range(program.constants().unwrap_or(code))));
    }
}

/// Looks at the mappings that matter, by the loader's list. `None`: it is not known or lacks the C
/// library, and nothing was looked at.
///
/// # Safety
/// As for [`LoadedProgram::libraries`].
unsafe fn look_by_loader(environment: *const *const u8, look: &mut impl FnMut(&proc_maps::Mapping<'_>)) -> Option<()> {
    let own = environment::library();
    // SAFETY: by the caller's promise.
    unsafe {
        let program = LoadedProgram::find(environment)?;
        let mut found = 0;
        let mut count = |mapping: &proc_maps::Mapping<'_>| found += usize::from(makes_calls(mapping.path));
        program.libraries(own, makes_calls, &mut count)?;
        // The loader and the C library, each with its code.
        if found < 4 {
            return None;
        }
        program.libraries(own, makes_calls, look)
    }
}

/// Whether other starts of the program may have these libraries at the same distances. A program
/// with a large library would make shared code in vain at each of its starts.
///
/// # Safety
/// As for [`LoadedProgram::each_library`].
unsafe fn lie_as_in_other_starts(environment: *const *const u8, libraries: &[Option<Library>]) -> bool {
    let mut is_random = false;
    // SAFETY: by the caller's promise.
    unsafe {
        if let Some(program) = LoadedProgram::find(environment) {
            program.each_library(|base, _| {
                is_random |= libraries.iter().flatten().any(|library| shared_text::is_random_by(library, base));
            });
        }
    }
    !is_random
}

fn reason(refusal: Refusal) -> &'static [u8] {
    match refusal {
        Refusal::Unnamed => b"this program's C library has no build-id; use `directfs mount`",
        Refusal::NoTable => b"this program's C library is not the one that `directfs run` prepared (another root directory, or an upgrade); use `directfs mount`",
        Refusal::Changed => b"this program's C library does not match its build-id; use `directfs mount`",
        Refusal::TooMany => b"this program's C library has too many system calls; use `directfs mount`",
        Refusal::TooFar => b"this program's C library is loaded too far from the preload library; use `directfs mount`",
        Refusal::Forbidden => b"this system does not permit programs to change their code; use `directfs mount`",
    }
}

/// Records the mappings of a library whose calls are to be seen.
fn record(libraries: &mut [Option<Library>; LIBRARIES_MAX], mapping: &proc_maps::Mapping<'_>, may_share: bool) {
    if mapping.offset == 0 {
        if let Some(free) = libraries.iter_mut().find(|library| library.is_none()) {
            // SAFETY: this is the constructor, and the first page is mapped.
            let id = may_share.then(|| unsafe { file_identity::of_library(mapping.path, mapping.start) }).flatten();
            *free = Some(Library { base: mapping.start, code: (0, 0), id });
        }
    } else if let Some(library) = libraries.iter_mut().rev().flatten().next()
        && mapping.is_code
        && library.code == (0, 0)
    {
        library.code = (mapping.start, mapping.end);
    }
}

/// Whether a file is one of the libraries that make system calls for all others.
fn makes_calls(path: &[u8]) -> bool {
    const KNOWN: [&[u8]; 6] =
        [b"libc.so.6", b"libc-2.", b"ld-linux-x86-64.so.2", b"ld-2.", b"libpthread.so.0", b"libpthread-2."];
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    KNOWN.iter().any(|known| name.starts_with(known))
}
