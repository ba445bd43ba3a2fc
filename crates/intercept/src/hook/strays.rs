//! System calls that a program makes by instructions of its own, not the C library's: assembly, and languages whose libraries do without it.
//!
//! The kernel brings them here (Syscall User Dispatch): a call from outside a range of addresses becomes a signal, whose handler sends the thread to a slot, as if there were a jump at
//! the site. The range reaches from the lowest to the highest of the C library, its loader and this library, which the loader puts together. A trap costs a microsecond or more, and any other
//! call some nanoseconds, so it is done only for programs that have such instructions. Whether one has is found by a look at its code, once per file: the answer is kept beside the tables.
//!
//! What is not seen: calls of libraries inside the range, and those of threads and children that the program makes by instructions of its own.
//!
//! Invariants
//! - To look is safe either way: a program that is wrongly believed to have such instructions is slower, one that is wrongly believed to have none is served as without all this.
//! - A slot is claimed for one site and keeps it. All are written by the constructor; what changes later is the word by which a slot leads back.
//! - The signal (SIGSYS) is never blocked in such a program, as those of faults: see [`signals`](super::signals).

use super::entry::{SLOT_BYTES, directfs_entry, directfs_slots};
use super::{environment, lengths, maps, sys};
use crate::routes::{self, Route};
use crate::table;
use core::arch::global_asm;
use core::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize};
use libc::{siginfo_t, ucontext_t};

/// Sites that a program can have.
pub const SITES_MAX: usize = 512;

/// Where each slot leads back to: the address behind the site's instruction. Zero: nobody has it.
pub static BACK: [AtomicU64; SITES_MAX] = [const { AtomicU64::new(0) }; SITES_MAX];
/// The first slot, and how many there are.
static SLOTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// Calls from here need no signal.
static DIRECTFS_EXEMPT: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Whether threads are to be armed.
static DIRECTFS_ARMED: AtomicU8 = AtomicU8::new(0);

const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
const PR_SYS_DISPATCH_ON: u64 = 1;

unsafe extern "C" {
    /// Where slots go on behind calls that make threads, with the way back in r11. Not a function to call.
    pub fn directfs_begin();
}

// A new thread, or a child in its parent's memory, is not armed: it arms itself before anything else. All registers stay but rcx and r11.
global_asm!(
    r#"
    .section .text.directfs_begin,"ax",@progbits
    .p2align 4
    .globl directfs_begin
    .hidden directfs_begin
    .type directfs_begin, @function
directfs_begin:
    test eax, eax
    jnz 1f
    cmp byte ptr [rip + {armed}], 0
    je 1f
    push rdi
    push rsi
    push rdx
    push r10
    push r8
    push r11
    mov edi, {dispatch}
    mov esi, {on}
    mov rdx, qword ptr [rip + {exempt}]
    mov r10, qword ptr [rip + {exempt} + 8]
    xor r8d, r8d
    mov eax, {prctl}
    syscall
    pop r11
    pop r8
    pop r10
    pop rdx
    pop rsi
    pop rdi
    xor eax, eax
1:  jmp r11
    .size directfs_begin, . - directfs_begin
    "#,
    armed = sym DIRECTFS_ARMED,
    exempt = sym DIRECTFS_EXEMPT,
    dispatch = const PR_SET_SYSCALL_USER_DISPATCH,
    on = const PR_SYS_DISPATCH_ON,
    prctl = const libc::SYS_prctl,
);

/// Whether threads of this process are armed.
pub fn is_armed() -> bool {
    DIRECTFS_ARMED.load(Relaxed) != 0
}

/// For the constructor: widens the exempt range by a mapping of a library that makes calls for others, or of this one (and its early copy).
pub fn note(mapping: &maps::Mapping<'_>, makes_calls: bool) {
    let own = (mapping.start..mapping.end).contains(&(directfs_entry as *const () as usize));
    if !makes_calls && !own && mapping.path != environment::library() {
        return;
    }
    let start = DIRECTFS_EXEMPT[0].load(Relaxed);
    let end = start + DIRECTFS_EXEMPT[1].load(Relaxed);
    let (first, last) = (mapping.start as u64, mapping.end as u64);
    let (start, end) = if start == 0 { (first, last) } else { (start.min(first), end.max(last)) };
    DIRECTFS_EXEMPT[0].store(start, Relaxed);
    DIRECTFS_EXEMPT[1].store(end - start, Relaxed);
}

/// For the constructor: from here on this thread's calls from elsewhere come here, by `count` slots from `first` on.
pub fn arm(first: usize, count: usize) {
    SLOTS[0].store(first, Relaxed);
    SLOTS[1].store(count, Relaxed);
    if arm_thread() {
        DIRECTFS_ARMED.store(1, Relaxed);
    }
}

/// Arms this thread; false if the kernel does not do that.
pub fn arm_thread() -> bool {
    let (start, bytes) = (DIRECTFS_EXEMPT[0].load(Relaxed), DIRECTFS_EXEMPT[1].load(Relaxed));
    let arguments = [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, start, bytes, 0, 0];
    // SAFETY: calls from elsewhere raise a signal from now on, which is handled by `redirect`.
    unsafe { sys::call(libc::SYS_prctl, arguments) == 0 }
}

/// Sends a thread whose call raised the signal to the slot of the site. False: it was another signal.
///
/// # Safety
/// Called by the handler of the signal, with what the kernel gave it.
pub unsafe fn redirect(info: *const siginfo_t, context: *mut ucontext_t) -> bool {
    const SYS_USER_DISPATCH: i32 = 2;
    // SAFETY: the kernel made both.
    let registers = unsafe {
        if (*info).si_code != SYS_USER_DISPATCH || !is_armed() {
            return false;
        }
        &mut (*context).uc_mcontext.gregs
    };
    let back = registers[libc::REG_RIP as usize] as u64;
    let count = SLOTS[1].load(Relaxed);
    let start = back.wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize >> 32;
    for step in 0..count {
        let index = (start + step) % count;
        let found = BACK[index].load(Acquire);
        let is_it = found == back
            || (found == 0
                && BACK[index].compare_exchange(0, back, AcqRel, Acquire).map_or_else(|now| now == back, |_| true));
        if is_it {
            let slot = &raw const directfs_slots as usize + (SLOTS[0].load(Relaxed) + index) * SLOT_BYTES;
            registers[libc::REG_RIP as usize] = slot as i64;
            return true;
        }
    }
    sys::refuse(&[b"this program makes system calls at more places of its own than there is room for; run it with `directfs mount`"]);
}

/// The program's own file in memory.
struct Program {
    /// What it adds to addresses in the file.
    bias: usize,
    headers: &'static [[u64; 7]],
}

/// A program header: type and flags, offset, address, address, bytes in the file.
impl Program {
    /// From what the kernel tells behind the environment.
    unsafe fn find(environment: *const *const u8) -> Option<Program> {
        const AT_PHDR: u64 = 3;
        const AT_PHENT: u64 = 4;
        const AT_PHNUM: u64 = 5;
        const PT_PHDR: u32 = 6;
        let (mut address, mut count) = (0u64, 0u64);
        // SAFETY: by the caller's promise: a list of pointers that ends with null, then pairs that end with zero.
        unsafe {
            let mut next = environment;
            while !(*next).is_null() {
                next = next.add(1);
            }
            let mut pair = next.add(1).cast::<[u64; 2]>();
            while (*pair)[0] != 0 {
                match *pair {
                    [AT_PHDR, value] => address = value,
                    [AT_PHNUM, value] => count = value,
                    [AT_PHENT, value] if value != size_of::<[u64; 7]>() as u64 => return None,
                    _ => {}
                }
                pair = pair.add(1);
            }
        }
        if address == 0 || address % 8 != 0 {
            return None;
        }
        // SAFETY: the kernel tells where the program's headers are and how many; they stay.
        let headers = unsafe { core::slice::from_raw_parts(address as *const [u64; 7], count as usize) };
        let own = headers.iter().find(|header| header[0] as u32 == PT_PHDR);
        let bias = own.map_or(0, |own| (address as usize).wrapping_sub(own[2] as usize));
        Some(Program { bias, headers })
    }

    fn segment(&self, is_it: impl Fn(u32, u32) -> bool) -> Option<&'static [u8]> {
        let header = self.headers.iter().find(|header| is_it(header[0] as u32, (header[0] >> 32) as u32))?;
        let start = self.bias.wrapping_add(header[2] as usize);
        // SAFETY: the loader mapped so many bytes of the file there, to be read, and nobody writes them.
        Some(unsafe { core::slice::from_raw_parts(start as *const u8, header[4] as usize) })
    }
}

/// Whether the program makes calls that may be ours by itself.
///
/// # Safety
/// This is the constructor, and `environment` the program's.
pub unsafe fn are_in_program(environment: *const *const u8) -> bool {
    const PT_LOAD: u32 = 1;
    const PF_X: u32 = 1;
    const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
    /// Less than that is looked at sooner than an answer is found.
    const KEPT_FROM_BYTES: usize = 128 << 10;
    // SAFETY: by the caller's promise.
    let Some(program) = (unsafe { Program::find(environment) }) else { return false };
    let Some(code) = program.segment(|kind, flags| kind == PT_LOAD && flags & PF_X != 0) else { return false };
    let functions = program.segment(|kind, _| kind == PT_GNU_EH_FRAME).unwrap_or_default();
    if code.len() < KEPT_FROM_BYTES || environment::program().is_some() {
        return looks_so(code, functions);
    }
    let mut path = [0u8; environment::ENTRY_BYTES_MAX + 64];
    let Some(path) = answer_path(&mut path) else { return looks_so(code, functions) };
    if let Some(known) = kept_answer(path) {
        return known;
    }
    let answer = looks_so(code, functions);
    keep_answer(path, answer);
    answer
}

/// Where the answer for this program's file is kept.
fn answer_path(into: &mut [u8]) -> Option<&[u8]> {
    let file = sys::open(b"/proc/self/exe\0", libc::O_RDONLY).ok()?.status().ok()?;
    let words = [
        file.st_dev,
        file.st_ino,
        file.st_size as u64,
        file.st_mtime as u64,
        file.st_mtime_nsec as u64,
        file.st_ctime as u64,
        file.st_ctime_nsec as u64,
    ];
    let library = environment::library();
    let start = library.iter().rposition(|&byte| byte == b'/')? + 1;
    into[..start].copy_from_slice(&library[..start]);
    let mut digits = [0u8; 16];
    super::special::write_hexadecimal(table::checksum(&words), &mut digits);
    into[start..start + 16].copy_from_slice(&digits);
    let ending = b".calls\0";
    into[start + 16..start + 16 + ending.len()].copy_from_slice(ending);
    Some(&into[..start + 16 + ending.len()])
}

/// An answer of somebody whom we trust.
fn kept_answer(path: &[u8]) -> Option<bool> {
    const OTHERS_WRITE: u32 = 0o022;
    let file = sys::open(path, libc::O_RDONLY | libc::O_NOFOLLOW).ok()?;
    let status = file.status().ok()?;
    let trusted = (status.st_uid == 0 || status.st_uid == sys::effective_user()) && status.st_mode & OTHERS_WRITE == 0;
    let mut answer = [0u8; 1];
    (trusted && file.read(&mut answer) == Ok(1)).then_some(answer[0] == b'y')
}

fn keep_answer(path: &[u8], answer: bool) {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let byte: &[u8; 1] = if answer { b"y" } else { b"n" };
    // SAFETY: a terminated path and a byte that is read; the descriptor is closed again.
    unsafe {
        let fd = sys::call(libc::SYS_openat, [libc::AT_FDCWD as u64, path.as_ptr() as u64, flags as u64, 0o644, 0, 0]);
        if fd >= 0 {
            sys::call(libc::SYS_write, [fd as u64, byte.as_ptr() as u64, 1, 0, 0, 0]);
            sys::call(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
        }
    }
}

/// Whether code has an instruction that makes a call which may be ours. `functions`: the table of functions' beginnings, in memory like the code.
fn looks_so(code: &[u8], functions: &[u8]) -> bool {
    let mut from = 0;
    while let Some(at) = next_pair(code, from) {
        if is_call(code, at, functions) {
            return true;
        }
        from = at + 1;
    }
    false
}

const CALL: [u8; 2] = [0x0f, 0x05];

/// The next place from `from` on with the bytes of the instruction.
fn next_pair(code: &[u8], mut from: usize) -> Option<usize> {
    const LANES: usize = 16;
    while from + LANES < code.len() {
        // SAFETY: seventeen bytes from there are in the slice (checked); these instructions are those of every x86-64.
        let found = unsafe {
            let here = code.as_ptr().add(from);
            let first = _mm_cmpeq_epi8(_mm_loadu_si128(here.cast()), _mm_set1_epi8(CALL[0] as i8));
            let second = _mm_cmpeq_epi8(_mm_loadu_si128(here.add(1).cast()), _mm_set1_epi8(CALL[1] as i8));
            _mm_movemask_epi8(first) & _mm_movemask_epi8(second)
        };
        if found != 0 {
            return Some(from + found.trailing_zeros() as usize);
        }
        from += LANES;
    }
    code.get(from..)?.windows(2).position(|pair| pair == CALL).map(|at| from + at)
}

/// Whether the bytes at a place are an instruction of their own, with a number that may be ours. In doubt they are.
fn is_call(code: &[u8], place: usize, functions: &[u8]) -> bool {
    let Some(start) = beginning_of(code.as_ptr() as usize + place, functions) else { return true };
    let Some(mut at) = start.checked_sub(code.as_ptr() as usize) else { return true };
    let mut number = None;
    while at < place {
        let Some(length) = lengths::length(&code[at..]) else { return true };
        number = number_after(&code[at..at + length], number);
        at += length;
    }
    at == place && number.is_none_or(|number| routes::of(u64::from(number)) != Route::Native)
}

/// Where the function of an address begins, by the table of a linker (as `elf` reads it).
fn beginning_of(address: usize, functions: &[u8]) -> Option<usize> {
    const ENCODINGS: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
    const HEAD_BYTES: usize = 12;
    if functions.get(..4) != Some(&ENCODINGS) {
        return None;
    }
    let word = |at: usize| functions.get(at..)?.first_chunk().map(|bytes| i32::from_le_bytes(*bytes));
    let table = functions.as_ptr() as usize;
    let start = |index: usize| word(HEAD_BYTES + 8 * index).map(|offset| table.wrapping_add_signed(offset as isize));
    let (mut low, mut high) = (0, word(8)? as u32 as usize);
    while low < high {
        let middle = low.midpoint(high);
        if start(middle)? <= address { low = middle + 1 } else { high = middle }
    }
    start(low.checked_sub(1)?)
}

/// The number in the register for it after an instruction, as far as we follow that.
fn number_after(instruction: &[u8], before: Option<u32>) -> Option<u32> {
    let (prefix, rest) = match instruction {
        [prefix @ 0x40..=0x4f, rest @ ..] => (*prefix, rest),
        rest => (0, rest),
    };
    let to_other = |bits: u8, extension: u8| bits & 7 != 0 || prefix & extension != 0;
    let (middle_differs, low_differs) = match rest {
        [_, modrm, ..] => (to_other(modrm >> 3, 4), modrm >> 6 != 3 || to_other(*modrm, 1)),
        _ => (false, false),
    };
    match *rest {
        [0xb8, a, b, c, d] if prefix & 1 == 0 => Some(u32::from_le_bytes([a, b, c, d])),
        [0xc7, 0xc0, a, b, c, d] if prefix & 1 == 0 => Some(u32::from_le_bytes([a, b, c, d])),
        [0x31 | 0x33, 0xc0] if prefix & 5 == 0 => Some(0),
        [0xb8..=0xbf, ..] if to_other(rest[0], 1) => before,
        [0x8b | 0x8d | 0x63 | 0x33, ..] if middle_differs => before,
        [0x89 | 0x31 | 0xc7, ..] if low_differs => before,
        // They compare, or go on if they do not jump.
        [0x85 | 0x39 | 0x3b | 0x3d | 0x70..=0x7f, ..] | [0x0f, 0x80..=0x8f, ..] => before,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over programs of this machine: what a disassembler finds no instruction in has none, and a look at what has some does not miss them.
    #[test]
    #[cfg(feature = "launcher")]
    fn a_look_finds_what_a_disassembler_finds() {
        let places = ["/usr/bin", "/usr/lib/x86_64-linux-gnu"].iter().filter_map(|place| std::fs::read_dir(place).ok());
        let (mut with, mut without) = (0, 0);
        for entry in places.flatten().flatten() {
            if !entry.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() < 2 << 20) {
                continue;
            }
            let Ok(bytes) = std::fs::read(entry.path()) else { continue };
            let Ok(elf) = crate::elf::Elf::parse(&bytes) else { continue };
            let (Ok(code), Ok(Some(functions)), Ok(calls)) =
                (elf.code(), elf.function_table(), crate::analysis::count_calls(&elf))
            else {
                continue;
            };
            // As they lie in memory.
            let end = code.iter().map(|(start, bytes)| *start as usize + bytes.len()).max().unwrap_or(0);
            let mut memory = vec![0u8; end.max(functions.0 as usize + functions.1.len())];
            for (start, bytes) in code.iter().chain([&functions]) {
                memory[*start as usize..*start as usize + bytes.len()].copy_from_slice(bytes);
            }
            let Some((start, first)) = code.first() else { continue };
            let table = &memory[functions.0 as usize..functions.0 as usize + functions.1.len()];
            let found = looks_so(&memory[*start as usize..*start as usize + first.len()], table);
            assert!(calls > 0 || !found, "{}", entry.path().display());
            with += usize::from(found);
            without += usize::from(!found);
        }
        // The C library has many.
        assert!(with + without == 0 || with > 0);
    }

    #[test]
    fn the_bytes_are_found_wherever_they_stand() {
        for length in 0..70 {
            for place in 0..length {
                let mut code = vec![0x90; length];
                code[place] = 0x0f;
                assert_eq!(next_pair(&code, 0), None);
                if place + 1 < length {
                    code[place + 1] = 0x05;
                    assert_eq!(next_pair(&code, 0), Some(place));
                    assert_eq!(next_pair(&code, place), Some(place));
                    assert_eq!(next_pair(&code, place + 1), None);
                }
            }
        }
    }

    #[test]
    fn the_number_is_followed_as_far_as_it_is_sure() {
        let after = |instructions: &[&[u8]]| instructions.iter().fold(None, |number, code| number_after(code, number));
        let set: &[u8] = &[0xb8, 0xca, 0, 0, 0];
        assert_eq!(after(&[set]), Some(202));
        assert_eq!(after(&[&[0x48, 0xc7, 0xc0, 1, 0, 0, 0]]), Some(1));
        assert_eq!(after(&[&[0x31, 0xc0]]), Some(0));
        // mov rdi, rbx; xor edx, edx; mov r8, rax
        assert_eq!(after(&[set, &[0x48, 0x89, 0xdf], &[0x31, 0xd2], &[0x4c, 0x8b, 0xc0]]), Some(202));
        // mov rax, rdi; mov eax, [rdi]; call; pop rax
        for lost in [&[0x48, 0x89, 0xf8][..], &[0x8b, 0x07], &[0xe8, 0, 0, 0, 0], &[0x58]] {
            assert_eq!(after(&[set, lost]), None, "{lost:x?}");
        }
    }
}
