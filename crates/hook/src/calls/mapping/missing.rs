//! Missing pages: those that a mapping by blocks gets when the program uses them.
//!
//! mmap maps the written blocks of the file. Holes and unwritten pieces of a shared mapping, and in
//! any mapping what lies behind the end of the file, are mapped from an offset at which no image
//! has bytes ([`NOWHERE`]). An access there raises SIGBUS. The handler sends the thread to
//! `directfs_missing`, which calls the dispatcher as a system call would. [`resolve`] maps the
//! block, which it allocates in a hole, and the thread repeats the access. If the file has no such
//! block, the access raises SIGBUS again, and the signal is the program's.
//!
//! Accesses of the kernel raise no signal. So in a process with missing pages all calls with a
//! route reach the dispatcher, which resolves the pages of their buffers first ([`touch_buffers`]).
//!
//! Invariants
//! - A range is in [`BOUNDS`] before a page in it can be missing.
//! - The mappings of the process and their records change only under [`LOCK`]. So no page is mapped
//!   where the program has mapped something else meanwhile, and no page of a private mapping is
//!   replaced after it was resolved.
//! - No signal handler of the program runs while its thread holds the lock.
//!
//! *Reason:* if a mapping got its blocks when it is made, one that is longer than its file would
//! not show growth (LMDB), and one of a sparse file would fill its holes. Calls of processes with
//! missing pages take 30 ns more. The handler writes nothing on the program's stack: a return
//! address there would destroy vector registers at the frame's end. *Rejected:* userfaultfd (it
//! needs a privilege and a thread); announcing growth (each extending write would search the
//! mappers).

use super::pieces::{PAGE_BYTES, Pieces};
use crate::abi::entry::{DIRECTFS_ALL, NATIVE, RED_ZONE_BYTES, Verdict, directfs_entry, done, thread_macros};
use crate::abi::thread_words::{MISSING_FROM_OFFSET, thread_words};
use crate::abi::{sys, user_memory};
use crate::call::{Buffers, Call};
use crate::context::Context;
use crate::process::session;
use crate::routes::SYS_MISSING_PAGE;
use core::arch::global_asm;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use engine::MapMode;
use posix::{Errno, Result};
use tables::process::FileMapping;

/// Offset in the image from which missing pages are mapped.
pub const NOWHERE: u64 = 1 << 62;
/// What one missing page resolves at least, if the file has it.
pub const WINDOW_BYTES_MIN: u64 = 64 << 10;
/// Most bytes of a window, which doubles while a program proceeds page by page.
const WINDOW_BYTES_MAX: u64 = 2 << 20;

/// The lowest and the highest address of ranges with missing pages; zero: there are none.
static BOUNDS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// See the module's invariants.
static LOCK: AtomicBool = AtomicBool::new(false);
/// End of the last window, and its size.
static LAST_WINDOW: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The lock, until it is dropped.
pub struct Held(bool);

impl Drop for Held {
    fn drop(&mut self) {
        if self.0 {
            LOCK.store(false, Release);
        }
    }
}

/// Takes the lock. A child in its parent's memory does without: it could end while it holds it.
pub fn hold(context: &Context) -> Held {
    if context.is_child() {
        return Held(false);
    }
    while LOCK.swap(true, Acquire) {
        // SAFETY: changes no memory.
        unsafe { sys::call(libc::SYS_sched_yield, [0; 6]) };
    }
    Held(true)
}

/// In the child of a fork: no thread of it holds the lock.
pub fn begin_in_child() {
    LOCK.store(false, Release);
}

/// From now on pages of a range may be missing.
pub fn record(range: Range<u64>) {
    let low = BOUNDS[0].load(Relaxed);
    if low == 0 || range.start < low {
        BOUNDS[0].store(range.start, Relaxed);
    }
    BOUNDS[1].fetch_max(range.end, AcqRel);
    DIRECTFS_ALL.store(1, Release);
}

/// Whether pages of this process may be missing.
#[inline]
pub fn exist() -> bool {
    BOUNDS[1].load(Relaxed) != 0
}

/// The part of a range whose pages may be missing.
fn part_of(address: u64, length: u64) -> Range<u64> {
    let (low, high) = (BOUNDS[0].load(Relaxed), BOUNDS[1].load(Relaxed));
    address.max(low)..address.saturating_add(length).min(high)
}

unsafe extern "C" {
    /// Where a thread continues after an access to a missing page. Not a callable function.
    fn directfs_missing();
}

// The address of the access comes from the thread's words and goes to the stack, below the red
// zone. The handler cannot put it there: the end of the signal's frame, by which the kernel
// recognises saved vector registers, can lie directly below the red zone. All registers and flags
// are preserved, also the direction of a copy.
global_asm!(
    thread_macros!(),
    r#"
    .section .text.directfs_missing,"ax",@progbits
    .p2align 4
    .globl directfs_missing
    .hidden directfs_missing
    .type directfs_missing, @function
    .cfi_startproc
    .cfi_signal_frame
    .cfi_def_cfa rsp, {red_zone} + 8
    .cfi_offset 16, -{red_zone} - 8
    nop
directfs_missing:
    pushfq
    .cfi_adjust_cfa_offset 8
    push rax
    .cfi_adjust_cfa_offset 8
    push rcx
    .cfi_adjust_cfa_offset 8
    push r11
    .cfi_adjust_cfa_offset 8
    WORDS rcx
    OF_THREAD
    mov rax, qword ptr [rcx + {missing_from}]
    mov qword ptr [rsp + 32], rax
    mov eax, {number}
    lea r11, [rip + 2f]
    jmp {entry}
2:  syscall
    pop r11
    .cfi_adjust_cfa_offset -8
    pop rcx
    .cfi_adjust_cfa_offset -8
    pop rax
    .cfi_adjust_cfa_offset -8
    popfq
    .cfi_adjust_cfa_offset -8
    ret {red_zone}
    .cfi_endproc
    .size directfs_missing, . - directfs_missing
    .purgem WORDS
    .purgem OF_THREAD
    .purgem WORDS_ADDRESS
    .purgem THREAD
    .purgem PROC
    "#,
    missing_from = const MISSING_FROM_OFFSET,
    red_zone = const RED_ZONE_BYTES,
    number = const SYS_MISSING_PAGE,
    entry = sym directfs_entry,
);

/// For the handler of SIGBUS: sends a thread whose access raised it to [`resolve`]. False: the
/// signal has another cause, or the page could not be resolved.
pub fn redirect(code: i32, address: u64, registers: &mut [libc::greg_t]) -> bool {
    const BUS_ADRERR: i32 = 2;
    if code != BUS_ADRERR || part_of(address, 1).is_empty() {
        return false;
    }
    // SAFETY: the words are this thread's.
    let unresolved = unsafe { core::mem::take(&mut (*thread_words()).unresolved) };
    let stack = (registers[libc::REG_RSP as usize] as u64).wrapping_sub(RED_ZONE_BYTES + 8);
    let at = registers[libc::REG_RIP as usize] as u64;
    if unresolved == address || user_memory::read::<u64>(stack).is_err() {
        return false;
    }
    // SAFETY: as above.
    unsafe { ((*thread_words()).missing, (*thread_words()).missing_from) = (address, at) };
    registers[libc::REG_RSP as usize] = stack as i64;
    registers[libc::REG_RIP as usize] = directfs_missing as *const () as i64;
    true
}

/// The call of `directfs_missing`. No program makes it: the kernel has no call with this number.
pub fn resolve(call: &mut Call<'_>) -> Result<Verdict> {
    let words = thread_words();
    // SAFETY: the words are this thread's.
    let address = unsafe { core::mem::take(&mut (*words).missing) };
    if address == 0 {
        return Ok(NATIVE);
    }
    if !matches!(supply(call, address), Ok(true)) {
        // SAFETY: as above.
        unsafe { (*words).unresolved = address };
    }
    Ok(done(0))
}

/// Resolves the page of an address; returns whether the file has it.
fn supply(call: &mut Call<'_>, address: u64) -> Result<bool> {
    let _held = hold(call.context);
    let is_read_only = call.server.fs.is_read_only();
    let session = call.begin()?.session;
    let thread = session.caller.thread;
    let process = if session.is_child { session::main() } else { session.process };
    let page = address & !(PAGE_BYTES - 1);
    let Some(mapping) = process.mapping_at(thread, page)? else { return Ok(false) };
    if mapping.protection == 0 {
        return Ok(false);
    }
    if is_accessible(page) {
        // Another thread was faster.
        return Ok(true);
    }
    let is_code_only = i32::from(mapping.protection) == libc::PROT_EXEC;
    let mode = if mapping.shared && !is_read_only { MapMode::Stores } else { MapMode::Loads };
    let attempt = |range: Range<u64>| -> Result<bool> {
        let mut pieces = Pieces::of(&mapping, range.clone())?;
        let offset = mapping.offset + (range.start - mapping.address);
        thread.files().map_extents(mapping.node, offset, range.end - range.start, mode, &mut |extent| {
            pieces.map(&extent, mode == MapMode::Loads);
        })?;
        // The image may have been truncated.
        Ok(pieces.finish()? > page - range.start && (is_code_only || is_accessible(page)))
    };
    let window = window(&mapping, page);
    let is_larger = window.end - window.start > PAGE_BYTES;
    match attempt(window) {
        Err(_) if is_larger => attempt(page..page + PAGE_BYTES),
        result => result,
    }
}

/// The pages that are resolved together with one. In a private mapping it is that one: others may
/// have been written.
fn window(mapping: &FileMapping, page: u64) -> Range<u64> {
    if !mapping.shared {
        return page..page + PAGE_BYTES;
    }
    let [last_end, last_bytes] = LAST_WINDOW.each_ref().map(|word| word.load(Relaxed));
    let goes_on = page == last_end;
    let bytes = if goes_on { (last_bytes * 2).min(WINDOW_BYTES_MAX) } else { WINDOW_BYTES_MIN };
    let start = if goes_on { page } else { page & !(WINDOW_BYTES_MIN - 1) };
    let window = start.max(mapping.address)..(start + bytes).min(mapping.address + mapping.length);
    LAST_WINDOW[0].store(window.end, Relaxed);
    LAST_WINDOW[1].store(bytes, Relaxed);
    window
}

/// Whether the kernel can read an address. The call fails for its first argument, after it has read
/// the set.
fn is_accessible(address: u64) -> bool {
    const NO_OPERATION: u64 = 99;
    // SAFETY: the call changes nothing.
    let result = unsafe { sys::call(libc::SYS_rt_sigprocmask, [NO_OPERATION, address, 0, 8, 0, 0]) };
    result != -i64::from(libc::EFAULT)
}

/// Resolves the missing pages of a range, up to the first that cannot be.
pub fn touch(call: &mut Call<'_>, address: u64, length: u64) {
    let Range { start: mut at, end } = part_of(address, length);
    while at < end
        && let Some(found) = user_memory::first_unreadable(at, end - at)
    {
        if !matches!(supply(call, found), Ok(true)) {
            return;
        }
        at = found;
    }
}

/// Before a call is served: resolves the missing pages of what it reads and writes.
#[cold]
pub fn touch_buffers(call: &mut Call<'_>) {
    let buffers = call.table.details(call.frame.number as u32).buffers;
    if buffers == Buffers::Ranges {
        return;
    }
    let arguments = call.arguments();
    for address in arguments {
        // A path or a structure.
        touch(call, address, PAGE_BYTES);
    }
    let [_, second, third, ..] = arguments;
    match buffers {
        Buffers::None | Buffers::Ranges => {}
        Buffers::Bytes => touch(call, second, third),
        Buffers::Vector => touch_vector(call, second, third),
        Buffers::Message => touch_message(call, second),
        Buffers::Messages => {
            const LISTED_BYTES: u64 = 64;
            let count = u64::from(third as u32);
            for index in 0..count.min(1024) {
                touch_message(call, second.wrapping_add(index * LISTED_BYTES));
            }
        }
    }
}

/// Resolves the missing pages of a list of buffers, and of the buffers.
pub fn touch_vector(call: &mut Call<'_>, address: u64, count: u64) {
    for index in 0..count.min(1024) {
        let piece = address.wrapping_add(16 * index);
        touch(call, piece, 16);
        let Ok([start, length]) = user_memory::read::<[u64; 2]>(piece) else { return };
        touch(call, start, length);
    }
}

fn touch_message(call: &mut Call<'_>, address: u64) {
    touch(call, address, 56);
    // Name, its length, vector, count, control, its length.
    let Ok([name, name_bytes, vector, count, control, control_bytes]) = user_memory::read::<[u64; 6]>(address) else {
        return;
    };
    touch(call, name, name_bytes);
    touch(call, control, control_bytes);
    touch_vector(call, vector, count);
}

/// EFAULT if a page of a range cannot be resolved: what the kernel reports for it.
pub fn touch_all(call: &mut Call<'_>, address: u64, length: u64) -> Result<()> {
    touch(call, address, length);
    let rest = part_of(address, length);
    if rest.start < rest.end && user_memory::first_unreadable(rest.start, rest.end - rest.start).is_some() {
        return Err(Errno(libc::EFAULT));
    }
    Ok(())
}
