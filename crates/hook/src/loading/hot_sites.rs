//! Sites of programs and libraries that are used again and again: jumps replace their traps.
//!
//! The kernel has shown that a site is an instruction, and with which number it was executed. No
//! jump of five bytes fits there, but one of these does:
//!
//! - *Before the site:* the instruction that sets the call's number has five bytes or more. A jump
//!   replaces it; copies of it, and of those up to the site, precede the call in a stub.
//! - *Far away:* the site becomes a jump of two bytes to padding after the end of a function. No
//!   thread executes that; it holds the longer jump.
//!
//! Both keep the boundaries of instructions: a thread that is anywhere near the site finds what it
//! expects, and a jump to the site still traps. A site without either continues to trap.
//!
//! The end of a thread is such a call at once, whether it was made before or not.
//!
//! Invariants
//! - One thread changes code at a time. In a process with several threads a change of executed code
//!   is one store within eight aligned bytes, which a processor reads as a whole.
//! - Instructions before a site are known by what they did: the register has their value.
//!
//! A site changes after its third trap, but not in libraries of sanitizers. *Reason:* a trap costs
//! 2.2 to 3.7 µs; `pread` takes 75 ns instead of 2,400 to 3,800. *Rejected:* analysing programs
//! before they start, which takes seconds for large ones.

use crate::abi::{sys, user_memory};
use crate::loading::inline_syscalls::next_pair;
use crate::loading::{instruction_lengths, site_slots};
use crate::process::session;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};

/// Traps of a site before it is replaced.
const TRAPS: u8 = 3;
/// Size of a jump.
const JUMP_BYTES: usize = 5;
/// Maximum number of bytes that move to a stub.
const MOVED_BYTES_MAX: usize = 32;
/// Size of a stub: moved instructions, a jump by address, and the address.
const STUB_BYTES: usize = MOVED_BYTES_MAX + 16;
/// Bytes for stubs, near the program.
pub const STUBS_BYTES: usize = 8192;
/// Jumps reach twice as far.
const REACH_BYTES: usize = 1 << 30;
const PAGE_BYTES: usize = 4096;
const CALL: [u8; 2] = [0x0f, 0x05];
const JUMP: u8 = 0xe9;
const SHORT_JUMP: u8 = 0xeb;

/// Traps of each site.
static COUNTS: [AtomicU8; site_slots::SITES_MAX] = [const { AtomicU8::new(0) }; site_slots::SITES_MAX];
/// Maximum number of programs and libraries; sites of others continue to trap.
const CODES_MAX: usize = 16;
/// Code whose sites can be replaced.
struct Code {
    start: AtomicUsize,
    /// Zero: there is none.
    end: AtomicUsize,
    /// Otherwise it is the program, which stays mapped.
    is_library: AtomicBool,
    /// Where the program's constants are, until they were looked at; zero: they need not be.
    constants: [AtomicUsize; 2],
    /// The next free stub, which jumps from there reach; zero: there are none.
    stub: AtomicUsize,
    stubs_end: AtomicUsize,
}
static CODES: [Code; CODES_MAX] = [const {
    Code {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        is_library: AtomicBool::new(false),
        constants: [AtomicUsize::new(0), AtomicUsize::new(0)],
        stub: AtomicUsize::new(0),
        stubs_end: AtomicUsize::new(0),
    }
}; CODES_MAX];
/// Held while code changes, or what is known of it. A thread that finds it held goes on without.
static IS_CHANGING: AtomicBool = AtomicBool::new(false);

/// Records where code is, and room for stubs that jumps from there reach.
#[cfg(feature = "loader")]
pub fn record(code: Range<usize>, stubs: usize) {
    let Some(free) = CODES.iter().find(|known| known.end.load(Relaxed) == 0) else { return };
    free.start.store(code.start, Relaxed);
    free.stub.store(stubs, Relaxed);
    free.stubs_end.store(stubs + STUBS_BYTES, Relaxed);
    free.end.store(code.end, Release);
}

/// Records where code is, and makes room for stubs near it. `constants`: those of the program,
/// which may contain a runtime whose calls must not be replaced; `None`: it is a library.
pub fn record_near(code: Range<usize>, constants: Option<Range<usize>>) {
    if IS_CHANGING.swap(true, AcqRel) {
        return;
    }
    let is_near = |stubs: usize| is_near(stubs, &code);
    let free = || CODES.iter().filter(|known| known.end.load(Relaxed) == 0);
    let stubs = |known: &Code| known.stubs_end.load(Relaxed).saturating_sub(STUBS_BYTES);
    let known = free().find(|known| is_near(stubs(known))).or_else(|| free().find(|known| stubs(known) == 0));
    if let Some(known) = known {
        if stubs(known) == 0 {
            known.stubs_end.store(map_stubs(&code).map_or(0, |stubs| stubs + STUBS_BYTES), Relaxed);
        }
        let first = stubs(known);
        known.stub.store(if is_near(first) { first } else { known.stubs_end.load(Relaxed) }, Relaxed);
        known.is_library.store(constants.is_none(), Relaxed);
        let constants = constants.unwrap_or_default();
        known.constants[0].store(constants.start, Relaxed);
        known.constants[1].store(constants.end, Relaxed);
        known.start.store(code.start, Relaxed);
        known.end.store(code.end, Release);
    }
    IS_CHANGING.store(false, Release);
}

/// Whether jumps from all of the code reach stubs.
fn is_near(stubs: usize, code: &Range<usize>) -> bool {
    stubs != 0 && stubs.abs_diff(code.start).max(stubs.abs_diff(code.end)) < REACH_BYTES
}

/// Reserves room for stubs before code, and before what may lie there. The kernel chooses another
/// place if an address is in use.
fn map_stubs(code: &Range<usize>) -> Option<usize> {
    const DISTANCES: [usize; 4] = [2 << 20, 32 << 20, 128 << 20, 512 << 20];
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    DISTANCES.into_iter().filter_map(|distance| code.start.checked_sub(distance)).find_map(|hint| {
        let hint = hint & !(PAGE_BYTES - 1);
        let place = sys::map_near(hint, STUBS_BYTES, libc::PROT_NONE, flags, -1).ok()?;
        if is_near(place as usize, code) {
            return Some(place as usize);
        }
        // SAFETY: just mapped, without other users.
        unsafe { sys::unmap(place, STUBS_BYTES) };
        None
    })
}

/// In the child of a fork: the thread that was changing code is not there. What it had started is
/// not in use yet.
pub fn begin_in_child() {
    IS_CHANGING.store(false, Relaxed);
}

/// Something else is being mapped in a range: what was known of code there no longer holds. Without
/// the lock, which a thread may have held when another forked.
pub fn forget(addresses: &Range<usize>) {
    for known in &CODES {
        if known.start.load(Relaxed) < addresses.end && known.end.load(Relaxed) > addresses.start {
            known.end.store(0, Release);
        }
    }
}

/// Counts a trap of the site with this index, which leads to `slot`; replaces the site if it is
/// used again and again. The count wraps, so an attempt that fails is made again.
///
/// `is_library`: the trap is one that replaced an instruction of a library. Other traps may come
/// from code that was made where a library was.
pub fn count(index: usize, slot: u64, (site, is_library): (usize, bool), registers: &[libc::greg_t]) {
    if COUNTS[index].fetch_add(1, Relaxed) + 1 != TRAPS || IS_CHANGING.swap(true, AcqRel) {
        return;
    }
    let range = |code: &Code| code.start.load(Relaxed)..code.end.load(Acquire);
    let has_room = |code: &&Code| code.stub.load(Relaxed) + STUB_BYTES <= code.stubs_end.load(Relaxed);
    let is_it = |code: &&Code| code.is_library.load(Relaxed) == is_library && range(code).contains(&site);
    if let Some(code) = CODES.iter().find(is_it).filter(has_room)
        && may_be_replaced(code)
    {
        let Range { start, end } = range(code);
        // SAFETY: the program's code, which is readable; it may change only here.
        let bytes = unsafe { core::slice::from_raw_parts(start as *const u8, end - start) };
        let at = site - start;
        let place = replaced_before(bytes, at, registers)
            .map(|length| Place { at: at - length, length, pad: None })
            .or_else(|| padding_after(bytes, at).map(|pad| Place { at, length: 0, pad: Some(pad) }));
        if let Some(place) = place {
            replace(code, bytes, &place, slot);
        }
    }
    IS_CHANGING.store(false, Release);
}

/// Whether sites of this code may be replaced: not those of LeakSanitizer's runtime, which makes
/// calls in a child with its parent's thread pointer (see [`leak_tracer`]). It is recognised by its
/// messages, once.
///
/// [`leak_tracer`]: crate::process::leak_tracer
fn may_be_replaced(code: &Code) -> bool {
    const MESSAGE: &[u8] = b"LeakSanitizer";
    /// More is not looked at.
    const BYTES_MAX: usize = 64 << 20;
    let [start, end] = code.constants.each_ref().map(|bound| bound.load(Relaxed));
    if start == end {
        return true;
    }
    // SAFETY: constants of the program, which stay mapped.
    let constants = unsafe { core::slice::from_raw_parts(start as *const u8, end - start) };
    let mut from = 0;
    let mut has_runtime = constants.len() > BYTES_MAX;
    while let Some(at) = next_pair(constants, [MESSAGE[0], MESSAGE[1]], from).filter(|_| !has_runtime) {
        has_runtime = constants[at..].starts_with(MESSAGE);
        from = at + 1;
    }
    if has_runtime {
        // No site is found here any more.
        code.end.store(code.start.load(Relaxed), Release);
    }
    code.constants[1].store(start, Relaxed);
    !has_runtime
}

/// Has the ends of threads lead to `end`: such a call must not trap, because its stack may be gone.
/// Before the first thread is created.
#[cfg(feature = "loader")]
pub fn replace_ends(end: u64) {
    for known in CODES.iter().filter(|known| known.end.load(Relaxed) != 0) {
        let (start, end_of_code) = (known.start.load(Relaxed), known.end.load(Relaxed));
        // SAFETY: as in `count`.
        let code = unsafe { core::slice::from_raw_parts(start as *const u8, end_of_code - start) };
        let mut from = 0;
        while let Some(at) = next_pair(code, CALL, from) {
            from = at + 1;
            if let Some(length) = end_before(&code[..at])
                && known.stub.load(Relaxed) + STUB_BYTES <= known.stubs_end.load(Relaxed)
            {
                replace(known, code, &Place { at: at - length, length, pad: None }, end);
            }
        }
    }
}

/// Length of the instruction directly before a call that makes it the end of a thread.
#[cfg(feature = "loader")]
fn end_before(before: &[u8]) -> Option<usize> {
    const NUMBER: u32 = libc::SYS_exit as u32;
    [JUMP_BYTES, 7].into_iter().find(|&length| match before.len().checked_sub(length) {
        Some(start) if matches!(before[start], 0xb8 | 0x48) => sets_number(before, length, NUMBER),
        _ => false,
    })
}

/// How a site is replaced, by offsets in the code.
struct Place {
    /// The bytes that change.
    at: usize,
    /// Bytes there that a stub repeats.
    length: usize,
    /// Padding for the longer jump.
    pad: Option<usize>,
}

/// Bytes from an instruction before the site that a jump can replace, to the site: the one that
/// sets the number, or one directly before the site.
fn replaced_before(code: &[u8], at: usize, registers: &[libc::greg_t]) -> Option<usize> {
    let register = |name: i32| registers[name as usize] as u64;
    let before = code.get(..at)?;
    let sets_number = |length: &usize| sets_number(before, *length, register(libc::REG_RAX) as u32);
    let length = (JUMP_BYTES..=MOVED_BYTES_MAX).find(sets_number).or_else(|| {
        let slot = |displacement: u8| register(libc::REG_RSP).wrapping_add_signed(i64::from(displacement as i8));
        let holds = |displacement, name| user_memory::read::<u64>(slot(displacement)) == Ok(register(name));
        match *before {
            [.., 0x48, 0x8b, 0x44, 0x24, at] if holds(at, libc::REG_RAX) => Some(JUMP_BYTES),
            [.., 0x4c, 0x8b, 0x44, 0x24, at] if holds(at, libc::REG_R8) => Some(JUMP_BYTES),
            [.., 0x4c, 0x8b, 0x4c, 0x24, at] if holds(at, libc::REG_R9) => Some(JUMP_BYTES),
            // musl's cancellable calls.
            [.., 0x4c, 0x8b, 0x44, 0x24, 8, 0x4c, 0x8b, 0x4c, 0x24, 16, 0x4c, 0x89, 0x5c, 0x24, 8] => Some(JUMP_BYTES),
            _ => None,
        }
    })?;
    is_one_store(code.as_ptr() as usize + at - length, JUMP_BYTES).then_some(length)
}

/// Whether the last `length` bytes begin with the instruction that sets the number, and go on with
/// others that work elsewhere.
fn sets_number(before: &[u8], length: usize, number: u32) -> bool {
    let Some((rest, moved)) = before.split_at_checked(before.len().wrapping_sub(length)) else { return false };
    let first = match *moved {
        // With a prefix it may be the number of another register.
        [0xb8, a, b, c, d, ..] if !matches!(rest.last(), Some(0x40..=0x4f | 0x66)) => (JUMP_BYTES, [a, b, c, d]),
        [0x48, 0xc7, 0xc0, a, b, c, d, ..] => (7, [a, b, c, d]),
        _ => return false,
    };
    let (mut at, set) = first;
    if u32::from_le_bytes(set) != number {
        return false;
    }
    while at < length {
        match instruction_lengths::length(&moved[at..]) {
            Some(bytes) if works_elsewhere(&moved[at..at + bytes]) => at += bytes,
            _ => return false,
        }
    }
    at == length
}

/// Whether an instruction is one of those that set registers, and does not depend on its address.
fn works_elsewhere(instruction: &[u8]) -> bool {
    let rest = match instruction {
        [0x40..=0x4f, rest @ ..] => rest,
        rest => rest,
    };
    match *rest {
        [0xb8..=0xbf, ..] => true,
        // An operand relative to the address has this form.
        [0x31 | 0x33 | 0x63 | 0x89 | 0x8b | 0x8d | 0xc7, modrm, ..] => modrm & 0xc7 != 5,
        _ => false,
    }
}

/// Whether other threads see a change of these bytes at once.
fn is_one_store(start: usize, bytes: usize) -> bool {
    const WORD: usize = size_of::<u64>();
    !session::has_threads() || start % WORD + bytes <= WORD
}

/// Offset of padding that a short jump from the site reaches: at least five bytes between an
/// instruction that never continues behind itself and the next aligned address.
fn padding_after(code: &[u8], at: usize) -> Option<usize> {
    const REACH: usize = 127;
    const ALIGNMENT: usize = 16;
    if !is_one_store(code.as_ptr() as usize + at, CALL.len()) {
        return None;
    }
    let mut next = at + CALL.len();
    let mut ended = false;
    while next <= at + REACH {
        let rest = code.get(next..)?;
        if ended {
            let address = code.as_ptr() as usize + next;
            let bytes = address.next_multiple_of(ALIGNMENT) - address;
            if bytes >= JUMP_BYTES && is_padding(rest.get(..bytes)?) {
                return Some(next);
            }
        }
        // Assembly holds no data between instructions; padding has the length of instructions.
        let length = instruction_lengths::length(rest)?;
        let is_target = (code.as_ptr() as usize + next).is_multiple_of(ALIGNMENT);
        ended = match rest[..length] {
            [0xc3 | 0xcc | 0xf4 | SHORT_JUMP | JUMP, ..] | [0x0f, 0x0b, ..] => true,
            _ => ended && !is_target && is_padding(&rest[..length]),
        };
        next += length;
    }
    None
}

/// Whether bytes are traps, or instructions without effect in the forms that assemblers use.
fn is_padding(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    loop {
        rest = match rest {
            [] => return true,
            [0xcc | 0x90, rest @ ..] => rest,
            [0x66 | 0x2e, rest @ ..] if !rest.is_empty() => rest,
            [0x0f, 0x1f, 0x00, rest @ ..]
            | [0x0f, 0x1f, 0x40, 0, rest @ ..]
            | [0x0f, 0x1f, 0x44, 0, 0, rest @ ..]
            | [0x0f, 0x1f, 0x80, 0, 0, 0, 0, rest @ ..]
            | [0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, rest @ ..] => rest,
            _ => return false,
        }
    }
}

/// Writes a stub, and the jumps to it. Without the right to write code nothing changes.
fn replace(known: &Code, code: &[u8], place: &Place, slot: u64) {
    const JUMP_BY_ADDRESS: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];
    let (start, stub) = (code.as_ptr() as usize, known.stub.load(Relaxed));
    let mut content = [0xcc; STUB_BYTES];
    let jump_at = place.length;
    content[..jump_at].copy_from_slice(&code[place.at..place.at + place.length]);
    content[jump_at..jump_at + 6].copy_from_slice(&JUMP_BY_ADDRESS);
    content[jump_at + 6..jump_at + 14].copy_from_slice(&slot.to_ne_bytes());
    let from = start + place.pad.unwrap_or(place.at);
    let Ok(distance) = i32::try_from(stub as i64 - (from as i64 + JUMP_BYTES as i64)) else { return };
    let [a, b, c, d] = distance.to_le_bytes();
    let changed = start + place.at..start + place.pad.unwrap_or(place.at) + JUMP_BYTES;
    if !make_writable(&(stub..stub + STUB_BYTES), true) || !make_writable(&changed, true) {
        return;
    }
    // SAFETY: pages that are writable now. No thread executes the stub or the padding yet.
    unsafe {
        core::ptr::copy_nonoverlapping(content.as_ptr(), stub as *mut u8, STUB_BYTES);
        match place.pad {
            Some(pad) => {
                core::ptr::copy_nonoverlapping([JUMP, a, b, c, d].as_ptr(), (start + pad) as *mut u8, JUMP_BYTES);
                store(start + place.at, &[SHORT_JUMP, (pad - place.at - CALL.len()) as u8]);
            }
            None => store(start + place.at, &[JUMP, a, b, c, d]),
        }
    }
    known.stub.store(stub + STUB_BYTES, Relaxed);
    make_writable(&(stub..stub + STUB_BYTES), false);
    make_writable(&changed, false);
}

/// Stores bytes at once if they lie within an aligned word.
///
/// # Safety
/// They are writable code, of which the first bytes are an instruction of the same length or more.
unsafe fn store(address: usize, bytes: &[u8]) {
    let skip = address % size_of::<u64>();
    // SAFETY: by the caller's promise; an aligned word lies in one page.
    unsafe {
        if skip + bytes.len() > size_of::<u64>() {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len());
            return;
        }
        let word = &*((address - skip) as *const AtomicU64);
        let mut value = word.load(Relaxed).to_ne_bytes();
        value[skip..skip + bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_ne_bytes(value), Release);
    }
}

fn make_writable(range: &Range<usize>, is_writable: bool) -> bool {
    let start = range.start & !(PAGE_BYTES - 1);
    let write = if is_writable { libc::PROT_WRITE } else { 0 };
    // SAFETY: code stays executable and readable.
    unsafe { sys::protect(start, range.end - start, libc::PROT_READ | libc::PROT_EXEC | write) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers after a call with this number.
    fn registers(number: i64) -> [libc::greg_t; 23] {
        let mut registers = [0; 23];
        registers[libc::REG_RAX as usize] = number;
        registers
    }

    /// Code at an aligned address, and the offset of the call in it.
    fn replaced(parts: &[&[u8]], number: i64) -> Option<usize> {
        #[repr(align(64))]
        struct Aligned([u8; 128]);
        let mut code = Aligned([0x90; 128]);
        let bytes = parts.concat();
        code.0[8..8 + bytes.len()].copy_from_slice(&bytes);
        replaced_before(&code.0, 8 + bytes.len(), &registers(number))
    }

    #[test]
    fn the_instruction_that_sets_the_number_is_found_by_its_value() {
        let set: &[u8] = &[0xb8, 5, 0, 0, 0];
        let (moves, lea, by_address): (&[u8], &[u8], &[u8]) =
            (&[0x48, 0x89, 0xfe, 0x31, 0xd2], &[0x4c, 0x8d, 0x44, 0x24, 8], &[0x48, 0x8d, 0x35, 1, 0, 0, 0]);
        assert_eq!(replaced(&[set], 5), Some(5));
        assert_eq!(replaced(&[&[0x48, 0xc7, 0xc0, 5, 0, 0, 0]], 5), Some(7));
        assert_eq!(replaced(&[set, moves, lea], 5), Some(15));
        assert_eq!(replaced(&[set], 6), None, "another number");
        assert_eq!(replaced(&[&[0x41], set], 5), None, "another register");
        assert_eq!(replaced(&[set, by_address], 5), None, "works only there");
        assert_eq!(replaced(&[set, &[0x74, 0]], 5), None, "a branch");
        assert_eq!(replaced(&[set, &[0x0f, 0x05]], 5), None, "another call");
    }

    /// Offset of the padding for a call that these instructions follow.
    fn padding(behind: &[u8]) -> Option<usize> {
        #[repr(align(64))]
        struct Aligned([u8; 256]);
        let mut code = Aligned([0xcc; 256]);
        code.0[..2].copy_from_slice(&CALL);
        code.0[2..2 + behind.len()].copy_from_slice(behind);
        padding_after(&code.0, 0)
    }

    #[test]
    fn padding_follows_an_instruction_that_ends() {
        assert_eq!(padding(&[0xc3]), Some(3));
        // cmp; ret; nop with ten bytes; the next function.
        let nop = [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
        let function = |end: &[u8]| [&[0x48, 0x85, 0xc0][..], end, &nop, &[0x55; 128]].concat();
        assert_eq!(padding(&function(&[0xc3])), Some(6));
        // mov rbx, rax: its last byte is that of a return.
        assert_eq!(padding(&function(&[0x48, 0x89, 0xc3])), None, "the padding is executed");
        assert_eq!(padding(&[&[0x55; 120][..], &[0xc3]].concat()), Some(123));
        assert_eq!(padding(&[&[0x55; 127][..], &[0xc3]].concat()), None, "too far away");
        // A function that begins with padding of its own.
        let begins = [&[0x55; 13][..], &[0xc3], &[0x90; 16], &[0x55; 128]].concat();
        assert_eq!(padding(&begins), None);
    }

    #[test]
    fn bytes_of_one_word_change_at_once() {
        let mut words = [0u64; 2];
        let start = words.as_mut_ptr() as usize;
        // SAFETY: memory of this function.
        unsafe { store(start + 3, &[1, 2, 3, 4, 5]) };
        assert_eq!(words.map(u64::to_ne_bytes), [[0, 0, 0, 1, 2, 3, 4, 5], [0; 8]]);
        // SAFETY: as above.
        unsafe { store(start + 6, &[6, 7, 8]) };
        assert_eq!(words.map(u64::to_ne_bytes), [[0, 0, 0, 1, 2, 3, 6, 7], [8, 0, 0, 0, 0, 0, 0, 0]]);
    }
}
