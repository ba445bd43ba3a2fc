//! Start of a program into which the library cannot be loaded: a static one, one of another C
//! library, or one in Go. The library is then a program of its own, which the kernel executes in
//! place of the other one. It maps that into its process, with its interpreter if it has one.
//!
//! Arguments, environment and auxiliary vector lie on the kernel's stack already; only entries of
//! the vector change. The kernel puts this program where it puts libraries, and the heap (`brk`)
//! below, so that addresses of programs are free. All system calls from outside of this program's
//! own code come here by Syscall User Dispatch: see [`inline_syscalls`].
//!
//! Invariant: the program is mapped whole and armed, or the process ends with a message.
//!
//! Decision: docs/decisions/run-start.md, "Programs that cannot load the library are loaded by it".

use crate::abi::sys::{self, Fd};
use crate::handoff;
use crate::loading::{armed_threads, hot_sites, loaded, site_slots, start};
use crate::process::{environment, thread_places};
use crate::signals;
use core::ops::Range;
use libc::{AT_BASE, AT_ENTRY, AT_EXECFN, AT_PHDR, AT_PHENT, AT_PHNUM, AT_SYSINFO_EHDR};
use libc::{PF_R, PF_W, PF_X, PT_GNU_STACK, PT_INTERP, PT_LOAD};

const PAGE_BYTES: usize = 4096;
/// Maximum length of a program's headers, as in the kernel.
const TABLE_BYTES_MAX: usize = 4096;
/// Maximum length of an interpreter's path.
const PATH_BYTES_MAX: usize = 4096;
/// Type and flags, offset, address, address, bytes in the file, bytes in memory, alignment.
type Header = [u64; 7];

/// What the kernel passed to this program.
struct Passed {
    environment: *const *const u8,
    /// Pairs, of which the last one's type is zero.
    auxiliary: *mut [u64; 2],
}

impl Passed {
    /// # Safety
    /// `stack`: the stack pointer at the start of this program.
    unsafe fn at(stack: *mut u64) -> Passed {
        // SAFETY: by the caller's promise: the number of arguments, the arguments and null, the
        // environment and null, the pairs.
        unsafe {
            let environment = stack.add(stack.read() as usize + 2).cast::<*const u8>();
            let mut next = environment;
            while !(*next).is_null() {
                next = next.add(1);
            }
            Passed { environment, auxiliary: next.add(1).cast() }
        }
    }

    fn each_pair(&self, mut act: impl FnMut(u64, &mut u64)) {
        let mut pair = self.auxiliary;
        // SAFETY: the list extends to its end, and has no other users meanwhile.
        unsafe {
            while (*pair)[0] != 0 {
                let [kind, value] = &mut *pair;
                act(*kind, value);
                pair = pair.add(1);
            }
        }
    }
}

/// Loads the program that the environment names; returns the address of its first instruction.
///
/// # Safety
/// Called once, first, with the stack pointer at the start of this program; `memory_code` as for
/// [`start::start`].
pub unsafe fn load(stack: *mut u64, memory_code: Range<usize>) -> u64 {
    // SAFETY: by the caller's promise.
    let (has_words, passed) = unsafe { (thread_places::begin(), Passed::at(stack)) };
    if !has_words {
        sys::refuse(&[b"the kernel does not let this program use the register GS; use `directfs mount`"]);
    }
    // SAFETY: as above.
    let adopted = unsafe { environment::adopt(passed.environment) };
    // SAFETY: as above.
    let named = unsafe { environment::special_entries(passed.environment) }
        .find_map(|entry| entry.strip_prefix(handoff::LOADED));
    let (Some((fd, interpreter, path)), true) = (named.and_then(parse), adopted.handed_off) else {
        sys::refuse(&[b"only `directfs run` starts this program"]);
    };
    // SAFETY: descriptors that were opened for this program.
    let (file, interpreter) = unsafe { (Fd::from_raw(fd), interpreter.map(|fd| Fd::from_raw(fd))) };
    name_program(fd, path);
    let program = load_all(&file, interpreter).unwrap_or_else(|reason| sys::refuse(&[path, b": ", reason]));
    drop(file);
    let mut kernel_code = 0;
    passed.each_pair(|kind, value| match kind {
        AT_PHDR => *value = program.headers,
        AT_PHNUM => *value = program.count as u64,
        AT_PHENT => *value = size_of::<Header>() as u64,
        AT_ENTRY => *value = program.entry,
        AT_BASE => *value = program.interpreter,
        AT_EXECFN => *value = path.as_ptr() as u64,
        AT_SYSINFO_EHDR => kernel_code = *value as usize,
        _ => {}
    });
    if program.stack_is_code {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | libc::PROT_GROWSDOWN;
        // SAFETY: adds a permission.
        let _ = unsafe { sys::protect(stack as usize & !(PAGE_BYTES - 1), PAGE_BYTES, protection) };
    }
    // SAFETY: this is the start of the process.
    unsafe {
        start::begin();
        loaded::visit_own(kernel_code, environment::library(), &mut |mapping| {
            signals::record(mapping);
            armed_threads::record(mapping, false);
        });
        site_slots::set_first(0);
        start::join(&adopted, 0, None);
        crate::signals::faults::record_memory_code(memory_code);
        armed_threads::arm();
    }
    if !armed_threads::is_armed() {
        sys::refuse(&[b"this kernel has no Syscall User Dispatch (Linux 5.11) for programs; use `directfs mount`"]);
    }
    signals::guard();
    // SAFETY: the environment has no other users yet.
    unsafe { environment::hide(passed.environment.cast_mut(), &adopted) };
    program.start
}

/// Descriptor, that of its interpreter if there is one, and path of a program, by the value of its
/// entry.
fn parse(value: &'static [u8]) -> Option<(i32, Option<i32>, &'static [u8])> {
    let mut parts = value.splitn(3, |&byte| byte == b',');
    let mut fd = || i32::try_from(handoff::number(parts.next()?)?).ok();
    let (program, interpreter) = (fd()?, fd());
    Some((program, interpreter, parts.next()?))
}

/// Gives the process the program's names: the short one, and that of /proc/self/exe. Its buffer is
/// not to enlarge the frame of the start, which is on the program's stack.
#[inline(never)]
fn name_program(fd: i32, path: &[u8]) {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    // SAFETY: a terminated name.
    unsafe { sys::call(libc::SYS_prctl, [libc::PR_SET_NAME as u64, name.as_ptr() as u64, 0, 0, 0, 0]) };
    if environment::program().is_some() {
        return;
    }
    const LINK: &[u8] = b"/proc/self/fd/";
    let mut link = [0u8; LINK.len() + 21];
    link[..LINK.len()].copy_from_slice(LINK);
    handoff::write_number(fd as u64, &mut link[LINK.len()..]);
    let mut entry = [0u8; handoff::ENTRY_BYTES_MAX];
    entry[..handoff::PROGRAM.len()].copy_from_slice(handoff::PROGRAM);
    let end = entry.len() - 1;
    if let Ok(bytes @ 1..) = sys::read_link(&link, &mut entry[handoff::PROGRAM.len()..end]) {
        // SAFETY: this is the start of the process.
        unsafe { environment::set_program(&entry[..=handoff::PROGRAM.len() + bytes]) };
    }
}

/// A program's headers.
struct Program {
    table: [u8; TABLE_BYTES_MAX],
    /// Where they lie in the file.
    offset: u64,
    count: usize,
    /// Whether its addresses are fixed.
    is_fixed: bool,
    entry: u64,
}

/// A program in memory.
struct Mapped {
    /// Its first instruction.
    entry: u64,
    /// The first instruction to be executed: its interpreter's, if it has one.
    start: u64,
    /// Where its interpreter is; zero without one.
    interpreter: u64,
    headers: u64,
    count: usize,
    stack_is_code: bool,
}

type Reason = &'static [u8];
const MALFORMED: Reason = b"malformed headers";

/// Maps a program and its interpreter, which is found by its path unless it is given.
#[inline(never)]
fn load_all(file: &Fd, interpreter: Option<Fd>) -> Result<Mapped, Reason> {
    let program = Program::read(file)?;
    let (mapped, _) = program.map(file)?;
    match program.headers().any(|header| header[0] as u32 == PT_INTERP) {
        true => load_interpreter(&program, mapped, file, interpreter),
        false => Ok(mapped),
    }
}

#[inline(never)]
fn load_interpreter(program: &Program, mapped: Mapped, file: &Fd, interpreter: Option<Fd>) -> Result<Mapped, Reason> {
    const ABSENT: Reason = b"its interpreter cannot be read";
    let mut path = [0; PATH_BYTES_MAX];
    let Some(path) = program.interpreter(file, &mut path)? else { return Ok(mapped) };
    let file = interpreter.map_or_else(|| sys::open(path, libc::O_RDONLY).map_err(|_| ABSENT), Ok)?;
    let (interpreter, base) = Program::read(&file)?.map(&file)?;
    Ok(Mapped { start: interpreter.entry, interpreter: base, ..mapped })
}

impl Program {
    fn read(file: &Fd) -> Result<Program, Reason> {
        const EXECUTABLE: u64 = 2;
        const FILE_HEADER_BYTES: usize = 64;
        let mut head = [0; FILE_HEADER_BYTES];
        file.read_at(0, &mut head).map_err(|_| &b"cannot be read"[..])?;
        let word = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let (is_fixed, entry, offset, count) =
            (word(16) & 0xffff == EXECUTABLE, word(24), word(32), (word(56) & 0xffff) as usize);
        let mut program = Program { table: [0; TABLE_BYTES_MAX], offset, count, is_fixed, entry };
        let place = program.table.get_mut(..count * size_of::<Header>()).ok_or(MALFORMED)?;
        let is_read = file.read_at(offset, place) == Ok(place.len());
        if is_read { Ok(program) } else { Err(MALFORMED) }
    }

    fn headers(&self) -> impl Iterator<Item = Header> {
        let bytes = &self.table[..self.count * size_of::<Header>()];
        bytes.as_chunks::<{ size_of::<Header>() }>().0.iter().map(|header| {
            let mut words = header.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            core::array::from_fn(|_| words.next().unwrap_or(0))
        })
    }

    fn loads(&self) -> impl Iterator<Item = Header> {
        self.headers().filter(|header| header[0] as u32 == PT_LOAD)
    }

    /// The path of the interpreter, with its zero byte.
    fn interpreter<'p>(&self, file: &Fd, path: &'p mut [u8]) -> Result<Option<&'p [u8]>, Reason> {
        let Some([_, offset, _, _, bytes, ..]) = self.headers().find(|header| header[0] as u32 == PT_INTERP) else {
            return Ok(None);
        };
        let path = usize::try_from(bytes).ok().and_then(|bytes| path.get_mut(..bytes)).ok_or(MALFORMED)?;
        let is_read = file.read_at(offset, path) == Ok(path.len());
        if is_read && path.last() == Some(&0) { Ok(Some(path)) } else { Err(MALFORMED) }
    }

    /// Maps the segments, as the kernel would; returns also by how much addresses differ.
    fn map(&self, file: &Fd) -> Result<(Mapped, u64), Reason> {
        const END: u64 = 1 << 47;
        let (mut start, mut end, mut alignment) = (u64::MAX, 0, PAGE_BYTES as u64);
        for [_, offset, address, _, bytes, memory_bytes, aligned] in self.loads() {
            let last = address.checked_add(memory_bytes).filter(|&last| last < END && bytes <= memory_bytes);
            if (address ^ offset) % PAGE_BYTES as u64 != 0 || offset >= END {
                return Err(MALFORMED);
            }
            (start, end) = (start.min(address & !(PAGE_BYTES as u64 - 1)), end.max(last.ok_or(MALFORMED)?));
            alignment = if aligned.is_power_of_two() { alignment.max(aligned) } else { alignment };
        }
        let bytes = end.checked_sub(start).filter(|&bytes| bytes > 0).ok_or(MALFORMED)?;
        let bytes = (bytes as usize).next_multiple_of(PAGE_BYTES);
        let (place, has_stubs) = match self.is_fixed {
            true => reserve_at(start as usize, bytes).ok_or(TAKEN)?,
            false => (reserve(bytes, alignment as usize)?, true),
        };
        let bias = (place as u64).wrapping_sub(start);
        for header in self.loads() {
            map_segment(file, &header, bias)?;
            let [kind, _, address, _, bytes, ..] = header;
            if has_stubs && (kind >> 32) as u32 & (PF_R | PF_W | PF_X) == PF_R | PF_X {
                let code = address.wrapping_add(bias) as usize;
                hot_sites::record(code..code + bytes as usize, place - hot_sites::STUBS_BYTES);
            }
        }
        let holds_table =
            |[_, offset, _, _, bytes, ..]: &Header| (*offset..offset.saturating_add(*bytes)).contains(&self.offset);
        let [_, offset, address, ..] = self.loads().find(holds_table).ok_or(MALFORMED)?;
        let is_stack = |header: &Header| header[0] as u32 == PT_GNU_STACK && (header[0] >> 32) as u32 & PF_X != 0;
        let entry = self.entry.wrapping_add(bias);
        let mapped = Mapped {
            entry,
            start: entry,
            interpreter: 0,
            headers: address.wrapping_add(bias) + (self.offset - offset),
            count: self.count,
            stack_is_code: self.headers().any(|header| is_stack(&header)),
        };
        Ok((mapped, bias))
    }
}

const RESERVED: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Reserves memory for a program at its address, and for stubs before it; returns whether there was
/// room for those. Without them sites continue to trap.
fn reserve_at(base: usize, bytes: usize) -> Option<(usize, bool)> {
    let take = |start: usize, bytes: usize| {
        let place = sys::map_near(start, bytes, libc::PROT_NONE, RESERVED | libc::MAP_FIXED_NOREPLACE, -1).ok()?;
        (place as usize == start).then_some(())
    };
    take(base, bytes)?;
    let stubs = base.checked_sub(hot_sites::STUBS_BYTES).and_then(|stubs| take(stubs, hot_sites::STUBS_BYTES));
    Some((base, stubs.is_some()))
}

/// Reserves memory for a program anywhere, with stubs before it.
fn reserve(bytes: usize, alignment: usize) -> Result<usize, Reason> {
    let wide = bytes.checked_add(alignment + hot_sites::STUBS_BYTES).ok_or(MALFORMED)?;
    let place = sys::map(wide, libc::PROT_NONE, RESERVED, -1).map_err(|_| NO_ROOM)? as usize;
    Ok((place + hot_sites::STUBS_BYTES).next_multiple_of(alignment))
}

const TAKEN: Reason = b"its addresses are in use in a process of `directfs run`; use `directfs mount`";
const NO_ROOM: Reason = b"not enough address space; raise the limit (ulimit -v)";

fn map_segment(file: &Fd, header: &Header, bias: u64) -> Result<(), Reason> {
    let [kind, offset, address, _, bytes, memory_bytes, _] = *header;
    let flags = (kind >> 32) as u32;
    let protection = [(PF_R, libc::PROT_READ), (PF_W, libc::PROT_WRITE), (PF_X, libc::PROT_EXEC)];
    let protection = protection.iter().filter(|(flag, _)| flags & flag != 0).fold(0, |all, (_, one)| all | one);
    let skip = address as usize % PAGE_BYTES;
    let start = address.wrapping_add(bias) as usize - skip;
    let (in_file, in_memory) = (skip + bytes as usize, skip + memory_bytes as usize);
    let (file_end, end) = (in_file.next_multiple_of(PAGE_BYTES), in_memory.next_multiple_of(PAGE_BYTES));
    // SAFETY: inside the reserved range, which nothing uses yet.
    unsafe {
        if bytes > 0 {
            file.map_over(start, file_end, protection, offset - skip as u64).map_err(|_| NO_ROOM)?;
        }
        if flags & PF_W != 0 && bytes > 0 && in_memory > in_file {
            // To the page's end: glibc's loader uses that as zeroed memory.
            core::ptr::write_bytes((start + in_file) as *mut u8, 0, file_end - in_file);
        }
        let first = if bytes > 0 { file_end } else { 0 };
        if end > first {
            sys::protect(start + first, end - first, protection).map_err(|_| NO_ROOM)?;
        }
    }
    Ok(())
}
