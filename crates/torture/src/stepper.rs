//! Sees the stores, flushes and fences of compiled code: a child process executes it instruction by
//! instruction, and this process decodes each instruction before it runs.
//!
//! # What an instruction counts as
//!
//! The processor promises at least what is logged:
//!
//! - A store of any width is in the cache. Its bytes are read after the instruction, from memory
//!   that both processes share.
//! - A non-temporal store is a streamed one, except under a mask, where the words that it left out
//!   would count as written: then it is an ordinary store.
//! - `clwb`, `clflushopt` and `clflush` flush the line of their operand. `clflush` is ordered with
//!   stores, too, but here as elsewhere a flush guarantees nothing without a fence.
//! - `sfence` and `mfence` are fences. By Intel's manual, `xchg` and instructions with the prefix
//!   `lock` also order flushes. They are not counted: no code may rely on a lock that happens to be
//!   taken.
//! - A repeated string instruction stops after each repetition.
//!
//! Invariants:
//!
//! - Only one thread runs in the child. The thread that forked the child traces it.
//! - Between two stops of the child its memory rests, so plain reads of the area are exact.
//! - An instruction whose effect on the area is not understood is an error, and so is a byte that
//!   differs from what the log says ([`Trace`] checks it after each operation).

use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};
use libc::user_regs_struct as Registers;
use pmem::{Direct, Event, MappedRegion, Mapping, Recorded, Region};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

/// Maximum length of an instruction in bytes.
const INSTRUCTION_BYTES: usize = 15;
const LINE_BYTES: u64 = 64;
/// Room for the message of a child that fails, with its length before it.
const MESSAGE_BYTES: u64 = 4096;
/// The flag of a comparison that found equality.
const ZERO_FLAG: u64 = 1 << 6;

/// An effect of an instruction on memory.
#[derive(Clone, Copy)]
enum Effect {
    /// Bytes are stored.
    Store(UsedMemory),
    /// Bytes are stored past the cache.
    Stream(UsedMemory),
    /// A whole line is stored past the cache, at the address in a register.
    StreamLine(Register),
    /// Bytes are stored if the comparison found equality.
    StoreIfEqual(UsedMemory),
    /// Bytes are stored from `rdi` before the instruction to `rdi` after it.
    String,
    /// The line of the operand is flushed.
    Flush,
    Fence,
}

/// An instruction that may have effects.
struct Decoded {
    instruction: Instruction,
    effects: Vec<Effect>,
}

/// What the traced part of a program did.
pub struct Trace {
    /// The area before it.
    pub initial: Vec<u8>,
    /// The events, with marks: operation n begins (2n) and has returned (2n+1).
    pub log: Vec<Recorded>,
    /// The number of executed instructions.
    pub instructions: u64,
}

/// Decodes and logs. What it knows of a program's code stays valid for later children of this
/// process.
pub struct Stepper {
    factory: InstructionInfoFactory,
    known: HashMap<u64, Option<Rc<Decoded>>>,
}

impl Default for Stepper {
    fn default() -> Stepper {
        Stepper { factory: InstructionInfoFactory::new(), known: HashMap::new() }
    }
}

/// Stops the child until its tracer resumes it: a part to trace begins or ends here.
pub fn boundary() {
    // SAFETY: stops this process; the tracer waits for that.
    unsafe { libc::raise(libc::SIGSTOP) };
}

impl Stepper {
    /// Whether children can be traced here; the error says why not.
    pub fn check_permitted(&mut self) -> Result<(), String> {
        let nothing = shared(LINE_BYTES)?;
        self.trace(&nothing, || Ok(())).map(drop)
    }

    /// Runs `work` in a child, and traces what it does to the area between each odd [`boundary`]
    /// and the next one. The child exits without running more of this program's code.
    pub fn trace(&mut self, area: &Region<Direct>, work: impl FnOnce() -> Result<(), String>) -> Result<Trace, String> {
        let _pinned = Pinned::new();
        let mut child = Child::fork(work)?;
        let mut trace = Trace { initial: Vec::new(), log: Vec::new(), instructions: 0 };
        let mut operation = 0;
        while child.run_to_boundary()? {
            let before = bytes(area)?;
            trace.mark(2 * operation);
            let from = trace.log.len();
            self.step(&mut child, area, &mut trace)?;
            check(&before, &trace.log[from..], &bytes(area)?)?;
            trace.mark(2 * operation + 1);
            if operation == 0 {
                trace.initial = before;
            }
            operation += 1;
        }
        Ok(trace)
    }

    /// Steps the child to its next boundary.
    fn step(&mut self, child: &mut Child, area: &Region<Direct>, trace: &mut Trace) -> Result<(), String> {
        let mut before = child.registers()?;
        loop {
            let decoded = self.decoded(child, before.rip)?;
            match child.resume(libc::PTRACE_SINGLESTEP)? {
                Stop::Signal(libc::SIGTRAP) => {}
                Stop::Signal(libc::SIGSTOP) => return Ok(()),
                stop => return Err(child.describe(stop)),
            }
            trace.instructions += 1;
            let after = child.registers()?;
            if let Some(decoded) = decoded {
                for effect in &decoded.effects {
                    trace.log(area, &decoded.instruction, *effect, &before, &after)?;
                }
            }
            before = after;
        }
    }

    /// The instruction at an address, if it may have effects.
    fn decoded(&mut self, child: &Child, address: u64) -> Result<Option<Rc<Decoded>>, String> {
        if let Some(known) = self.known.get(&address) {
            return Ok(known.clone());
        }
        let mut code = [0; INSTRUCTION_BYTES];
        // Fewer bytes are there at the end of a mapping.
        let length =
            child.memory.read_at(&mut code, address).map_err(|error| format!("code at {address:#x}: {error}"))?;
        let instruction = Decoder::with_ip(64, &code[..length], address, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            return Err(format!("the instruction {:02x?} at {address:#x} is not known", &code[..length]));
        }
        let effects = effects(&mut self.factory, &instruction);
        let decoded = (!effects.is_empty()).then(|| Rc::new(Decoded { instruction, effects }));
        self.known.insert(address, decoded.clone());
        Ok(decoded)
    }
}

fn effects(factory: &mut InstructionInfoFactory, instruction: &Instruction) -> Vec<Effect> {
    match instruction.mnemonic() {
        Mnemonic::Sfence | Mnemonic::Mfence => return vec![Effect::Fence],
        Mnemonic::Clwb | Mnemonic::Clflushopt | Mnemonic::Clflush => return vec![Effect::Flush],
        Mnemonic::Movdir64b => return vec![Effect::StreamLine(instruction.op0_register())],
        _ if is_string_store(instruction) => return vec![Effect::String],
        _ => {}
    }
    let is_write = |used: &&UsedMemory| {
        matches!(used.access(), OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
    };
    let kind: fn(UsedMemory) -> Effect = match instruction.mnemonic() {
        Mnemonic::Movnti
        | Mnemonic::Movntq
        | Mnemonic::Movntdq
        | Mnemonic::Movntps
        | Mnemonic::Movntpd
        | Mnemonic::Vmovntdq
        | Mnemonic::Vmovntps
        | Mnemonic::Vmovntpd
        | Mnemonic::Movdiri => Effect::Stream,
        Mnemonic::Cmpxchg | Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b => Effect::StoreIfEqual,
        _ => Effect::Store,
    };
    factory.info(instruction).used_memory().iter().filter(is_write).map(|used| kind(*used)).collect()
}

/// Whether the instruction is a copying or filling string instruction, of which there are some with
/// the names of instructions on vectors.
fn is_string_store(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|operand| {
        matches!(instruction.op_kind(operand), OpKind::MemoryESRDI | OpKind::MemoryESEDI | OpKind::MemoryESDI)
    }) && matches!(
        instruction.mnemonic(),
        Mnemonic::Movsb
            | Mnemonic::Movsw
            | Mnemonic::Movsd
            | Mnemonic::Movsq
            | Mnemonic::Stosb
            | Mnemonic::Stosw
            | Mnemonic::Stosd
            | Mnemonic::Stosq
    )
}

/// The value of a register, or the base of a segment; none for a vector of addresses.
fn value(registers: &Registers, register: Register) -> Option<u64> {
    let full = match register.full_register() {
        Register::RAX => registers.rax,
        Register::RCX => registers.rcx,
        Register::RDX => registers.rdx,
        Register::RBX => registers.rbx,
        Register::RSP => registers.rsp,
        Register::RBP => registers.rbp,
        Register::RSI => registers.rsi,
        Register::RDI => registers.rdi,
        Register::R8 => registers.r8,
        Register::R9 => registers.r9,
        Register::R10 => registers.r10,
        Register::R11 => registers.r11,
        Register::R12 => registers.r12,
        Register::R13 => registers.r13,
        Register::R14 => registers.r14,
        Register::R15 => registers.r15,
        Register::FS => registers.fs_base,
        Register::GS => registers.gs_base,
        // The decoder adds the address of the instruction to the displacement.
        Register::RIP | Register::ES | Register::CS | Register::SS | Register::DS => 0,
        _ => return None,
    };
    Some(if register.size() == 4 { full as u32 as u64 } else { full })
}

impl Trace {
    fn mark(&mut self, mark: u64) {
        self.push(Event::Mark(mark));
    }

    fn push(&mut self, event: Event) {
        self.log.push(Recorded { thread: 0, event });
    }

    /// Logs an effect, if it concerns the area.
    fn log(
        &mut self,
        area: &Region<Direct>,
        instruction: &Instruction,
        effect: Effect,
        before: &Registers,
        after: &Registers,
    ) -> Result<(), String> {
        let unknown = || format!("the address of {instruction:?} at {:#x} is not known", instruction.ip());
        let address = |used: &UsedMemory| used.virtual_address(0, |register, _, _| value(before, register));
        let (used, streams) = match effect {
            Effect::Fence => {
                self.push(Event::Fence);
                return Ok(());
            }
            Effect::Flush => {
                let at = instruction.virtual_address(0, 0, |register, _, _| value(before, register));
                let line = at.ok_or_else(unknown)? & !(LINE_BYTES - 1);
                if let Some((offset, length)) = within(area, line, LINE_BYTES)? {
                    self.push(Event::Flush { offset, length });
                }
                return Ok(());
            }
            Effect::StreamLine(register) => {
                let at = value(before, register).ok_or_else(unknown)?;
                return self.stored(area, at, LINE_BYTES, true);
            }
            Effect::String => {
                let (from, to) = (before.rdi.min(after.rdi), before.rdi.max(after.rdi));
                return self.stored(area, from, to - from, false);
            }
            Effect::StoreIfEqual(_) if after.eflags & ZERO_FLAG == 0 => return Ok(()),
            Effect::StoreIfEqual(used) | Effect::Store(used) => (used, false),
            Effect::Stream(used) => (used, true),
        };
        let (at, length) = (address(&used).ok_or_else(unknown)?, used.memory_size().size() as u64);
        if length == 0 && within(area, at, 1)?.is_some() {
            return Err(format!("the length of the store of {instruction:?} at {:#x} is not known", instruction.ip()));
        }
        self.stored(area, at, length, streams)
    }

    fn stored(&mut self, area: &Region<Direct>, at: u64, length: u64, streams: bool) -> Result<(), String> {
        let Some((offset, length)) = within(area, at, length)? else { return Ok(()) };
        let mut bytes = vec![0; length as usize];
        area.read_bytes(offset, &mut bytes).map_err(|error| format!("{error:?}"))?;
        let bytes = bytes[..].into();
        self.push(if streams { Event::Stream { offset, bytes } } else { Event::Store { offset, bytes } });
        Ok(())
    }
}

/// The part of a range of addresses that lies in the area, as offset and length.
fn within(area: &Region<Direct>, at: u64, length: u64) -> Result<Option<(u64, u64)>, String> {
    let base = area.address(0, area.length()).map_err(|error| format!("{error:?}"))? as u64;
    let (start, end) = (at.max(base), at.saturating_add(length).min(base + area.length()));
    Ok((start < end).then(|| (start - base, end - start)))
}

fn bytes(area: &Region<Direct>) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; area.length() as usize];
    area.read_bytes(0, &mut bytes).map_err(|error| format!("{error:?}"))?;
    Ok(bytes)
}

/// Checks that the logged stores explain every changed byte.
fn check(before: &[u8], log: &[Recorded], after: &[u8]) -> Result<(), String> {
    let mut expected = before.to_vec();
    for recorded in log {
        if let Event::Store { offset, bytes } | Event::Stream { offset, bytes } = &recorded.event {
            expected[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }
    match expected.iter().zip(after).position(|(expected, found)| expected != found) {
        None => Ok(()),
        Some(at) => Err(format!(
            "a store to {at:#x} was not seen: the log leaves {:#04x} there, the memory has {:#04x}",
            expected[at], after[at]
        )),
    }
}

/// Memory that this process shares with the children that it forks later.
pub fn shared(length: u64) -> Result<MappedRegion<Direct>, String> {
    let mapping = Mapping::anonymous(length).map(Arc::new);
    mapping.and_then(|mapping| mapping.region(Direct)).map_err(|error| error.to_string())
}

/// How a child came to rest.
#[derive(Clone, Copy)]
enum Stop {
    Signal(i32),
    Exit(i32),
    Killed(i32),
}

/// A traced child; it dies with this value, or with this process.
struct Child {
    pid: i32,
    has_ended: bool,
    memory: File,
    message: MappedRegion<Direct>,
}

impl Child {
    /// Starts a child that runs `work`, and waits until it is traced.
    fn fork(work: impl FnOnce() -> Result<(), String>) -> Result<Child, String> {
        let message = shared(MESSAGE_BYTES)?;
        // SAFETY: the child uses only its own memory and what it shares with this process, and
        // exits without running this program's code. (The C library keeps its allocator usable.)
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            run(work, &message);
        }
        if pid < 0 {
            return Err(format!("fork: {}", io::Error::last_os_error()));
        }
        let opened = File::open(format!("/proc/{pid}/mem"));
        let memory = opened.map_err(|error| format!("/proc/{pid}/mem cannot be opened: {error}"));
        let memory = memory.inspect_err(|_| end(pid))?;
        let mut child = Child { pid, has_ended: false, memory, message };
        match child.wait()? {
            Stop::Signal(libc::SIGSTOP) => {}
            stop => return Err(child.describe(stop)),
        }
        // SAFETY: a traced child that is stopped; the option has no pointers.
        let set = unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, libc::PTRACE_O_EXITKILL) };
        if set != 0 { Err(format!("the child cannot be traced: {}", io::Error::last_os_error())) } else { Ok(child) }
    }

    /// Runs the child to the next boundary; false if it ends before.
    fn run_to_boundary(&mut self) -> Result<bool, String> {
        match self.resume(libc::PTRACE_CONT)? {
            Stop::Signal(libc::SIGSTOP) => Ok(true),
            Stop::Exit(0) => Ok(false),
            stop => Err(self.describe(stop)),
        }
    }

    fn resume(&mut self, request: libc::c_uint) -> Result<Stop, String> {
        // SAFETY: a traced child that is stopped; no signal is delivered.
        if unsafe { libc::ptrace(request, self.pid, 0, 0) } != 0 {
            return Err(format!("the child cannot be resumed: {}", io::Error::last_os_error()));
        }
        self.wait()
    }

    fn wait(&mut self) -> Result<Stop, String> {
        let mut status = 0;
        // SAFETY: a child of this process, and a valid place for its status.
        while unsafe { libc::waitpid(self.pid, &raw mut status, 0) } != self.pid {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(format!("waiting for the child: {error}"));
            }
        }
        self.has_ended = !libc::WIFSTOPPED(status);
        Ok(match () {
            () if libc::WIFSTOPPED(status) => Stop::Signal(libc::WSTOPSIG(status)),
            () if libc::WIFEXITED(status) => Stop::Exit(libc::WEXITSTATUS(status)),
            () => Stop::Killed(libc::WTERMSIG(status)),
        })
    }

    fn registers(&self) -> Result<Registers, String> {
        // SAFETY: numbers only, for which zero is a value.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        // SAFETY: a traced child that is stopped, and a valid place for its registers.
        match unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.pid, 0, &raw mut registers) } {
            0 => Ok(registers),
            _ => Err(format!("the child's registers cannot be read: {}", io::Error::last_os_error())),
        }
    }

    /// Why a child that should have reached a boundary did not.
    fn describe(&self, stop: Stop) -> String {
        let mut text = vec![0; MESSAGE_BYTES as usize];
        let _ = self.message.read_bytes(0, &mut text);
        let length = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        match stop {
            Stop::Exit(_) if length > 0 => String::from_utf8_lossy(&text[..length]).into_owned(),
            Stop::Exit(code) => format!("the child exited with {code}"),
            Stop::Signal(signal) => format!("signal {signal} stopped the child"),
            Stop::Killed(signal) => format!("signal {signal} ended the child"),
        }
    }
}

/// The life of a child.
fn run(work: impl FnOnce() -> Result<(), String>, message: &Region<Direct>) -> ! {
    let panicked = |_| Err("the child panicked".to_owned());
    // SAFETY: requests tracing by the thread that forked this process.
    let done = match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } {
        0 => {
            boundary();
            catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
        }
        _ => Err(format!("ptrace is refused: {}", io::Error::last_os_error())),
    };
    if let Err(what) = &done {
        let _ = message.write_bytes(0, &what.as_bytes()[..what.len().min(MESSAGE_BYTES as usize)]);
    }
    // SAFETY: ends the process without destructors of what it shares with its parent.
    unsafe { libc::_exit(done.is_err() as i32) }
}

/// Ends a child that was not waited for.
fn end(pid: i32) {
    // SAFETY: the pid is still the child's.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.has_ended {
            end(self.pid);
        }
    }
}

/// Keeps this thread, and the children that it forks, on one processor: they alternate, which is
/// several times faster there.
struct Pinned(libc::cpu_set_t);

impl Pinned {
    fn new() -> Pinned {
        // SAFETY: sets of processors without pointers, and calls that concern this thread. A
        // failure costs time only.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::sched_getaffinity(0, size_of_val(&set), &mut set);
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu().max(0) as usize, &mut one);
            libc::sched_setaffinity(0, size_of_val(&one), &one);
            Pinned(set)
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the set that this thread had before.
        unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &self.0) };
    }
}
