//! Recorded instructions as operations of the reference processor: what each depends on, and which
//! lines it touches.
//!
//! Code of shared libraries is another one on other machines, which also choose its variants by
//! their processor. So a call into a library is one operation: copies, fills and comparisons of
//! bytes by their length and lines, everything else at a flat price.

use crate::multicore::record::Step;
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register, UsedMemory,
};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;
/// Maximum length of an instruction in bytes.
const INSTRUCTION_BYTES: usize = 15;
/// Registers by number, see [`register_bit`].
pub const REGISTERS: usize = 57;
const FLAGS: u64 = 1 << 56;
const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RSI: usize = 6;
const RDI: usize = 7;
/// Instructions of a call into a library: allocation, a clock, a lock that is free.
const FOREIGN_INSTRUCTIONS: u64 = 60;
/// Instructions of a copy, fill or comparison, and bytes of each further one.
const BLOCK_INSTRUCTIONS: u64 = 16;
const BYTES_PER_INSTRUCTION: u64 = 32;

/// How an operation touches a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// A read.
    Load,
    /// A write.
    Store,
    /// A locked instruction.
    Exchange,
    /// A write past the caches.
    Stream,
    /// A prefetch.
    Prefetch,
    /// The line is written back.
    Flush,
}

/// An operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operation {
    /// Number of instructions.
    pub instructions: u64,
    /// Registers that it reads, as bits.
    pub sources: u64,
    /// Registers that it writes, as bits.
    pub targets: u64,
    /// The touched lines, by number.
    pub lines: Vec<(Touch, u64)>,
    /// Whether it waits for all that precedes it, and for flushes.
    pub is_fence: bool,
}

/// What is known of an instruction before it runs.
struct Decoded {
    instruction: Instruction,
    sources: u64,
    targets: u64,
    memory: Vec<UsedMemory>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Locked,
    Fence,
    /// All accesses are of one kind.
    Only(Touch),
    Nothing,
}

/// The bit of a register: general, vector, mask; none for others.
fn register_bit(register: Register) -> u64 {
    let full = register.full_register();
    let number = full.number() as u64;
    match register {
        _ if register.is_gpr() => 1 << number,
        _ if register.is_vector_register() => 1 << (16 + number),
        _ if register.is_k() => 1 << (48 + number),
        _ => 0,
    }
}

fn kind_of(instruction: &Instruction) -> Kind {
    match instruction.mnemonic() {
        Mnemonic::Sfence | Mnemonic::Mfence => Kind::Fence,
        Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Pause => Kind::Nothing,
        Mnemonic::Clflush | Mnemonic::Clflushopt | Mnemonic::Clwb => Kind::Only(Touch::Flush),
        Mnemonic::Prefetcht0
        | Mnemonic::Prefetcht1
        | Mnemonic::Prefetcht2
        | Mnemonic::Prefetchnta
        | Mnemonic::Prefetchw => Kind::Only(Touch::Prefetch),
        Mnemonic::Movnti
        | Mnemonic::Movntdq
        | Mnemonic::Movntps
        | Mnemonic::Movntpd
        | Mnemonic::Vmovntdq
        | Mnemonic::Vmovntps
        | Mnemonic::Vmovntpd
        | Mnemonic::Movdir64b
        | Mnemonic::Movdiri => Kind::Only(Touch::Stream),
        mnemonic if instruction.has_lock_prefix() || mnemonic == Mnemonic::Xchg => Kind::Locked,
        _ => Kind::Plain,
    }
}

/// Bytes of an element of a copying or filling string instruction. Of a repeated one the
/// disassembler gives no size.
fn string_element(mnemonic: Mnemonic) -> Option<u64> {
    match mnemonic {
        Mnemonic::Movsb | Mnemonic::Stosb => Some(1),
        Mnemonic::Movsw | Mnemonic::Stosw => Some(2),
        Mnemonic::Stosd => Some(4),
        Mnemonic::Movsq | Mnemonic::Stosq => Some(8),
        _ => None,
    }
}

/// The instructions of this process.
pub struct Code {
    memory: File,
    known: HashMap<u64, Decoded>,
    factory: InstructionInfoFactory,
    /// The program's own instructions.
    own: Range<u64>,
    blocks: Blocks,
    /// Entry points of the allocator, which are passed over like a library's.
    allocator: [u64; 2],
}

/// Entry points of the C library that work on blocks of bytes.
struct Blocks {
    copies: [u64; 2],
    fills: [u64; 1],
    comparisons: [u64; 2],
}

unsafe extern "C" {
    fn bcmp(one: *const u8, other: *const u8, length: usize) -> i32;
}

impl Blocks {
    fn new() -> Blocks {
        Blocks {
            copies: [libc::memcpy as *const () as u64, libc::memmove as *const () as u64],
            fills: [libc::memset as *const () as u64],
            comparisons: [libc::memcmp as *const () as u64, bcmp as *const () as u64],
        }
    }
}

/// The mapping of this program that holds the given instruction.
fn mapping_of(address: u64) -> io::Result<Range<u64>> {
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        let parsed = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        if let Some((start, end)) = parsed
            && let Some(range) = number(start).zip(number(end)).map(|(start, end)| start..end)
            && range.contains(&address)
        {
            return Ok(range);
        }
    }
    Err(io::Error::other("/proc/self/maps does not list this program"))
}

fn value(step: &Step, register: Register) -> Option<u64> {
    match register {
        Register::None | Register::RIP | Register::DS | Register::ES | Register::SS | Register::CS => Some(0),
        _ if register.is_gpr() => step.registers.get(register.full_register().number()).copied(),
        _ => None,
    }
}

/// The lines of some bytes.
pub fn lines(address: u64, bytes: u64) -> Range<u64> {
    if bytes == 0 { 0..0 } else { address / LINE_BYTES..(address + bytes - 1) / LINE_BYTES + 1 }
}

impl Code {
    /// Starts without any decoded instruction.
    pub fn new() -> io::Result<Code> {
        Ok(Code {
            memory: File::open("/proc/self/mem")?,
            known: HashMap::new(),
            factory: InstructionInfoFactory::new(),
            own: mapping_of(Code::new as *const () as u64)?,
            blocks: Blocks::new(),
            allocator: super::allocator::entries(),
        })
    }

    fn decode(&mut self, at: u64) -> io::Result<()> {
        let mut bytes = [0; INSTRUCTION_BYTES];
        // The mapping may end behind the instruction.
        let length = self.memory.read_at(&mut bytes, at)?;
        let instruction = Decoder::with_ip(64, &bytes[..length], at, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            return Err(io::Error::other(format!("unknown instruction at {at:#x}")));
        }
        let info = self.factory.info(&instruction);
        let (mut sources, mut targets) = (0, 0);
        for used in info.used_registers() {
            let bit = register_bit(used.register());
            match used.access() {
                OpAccess::Read | OpAccess::CondRead => sources |= bit,
                OpAccess::Write => targets |= bit,
                OpAccess::ReadWrite | OpAccess::ReadCondWrite | OpAccess::CondWrite => {
                    (sources, targets) = (sources | bit, targets | bit);
                }
                _ => {}
            }
        }
        sources |= if instruction.rflags_read() != 0 { FLAGS } else { 0 };
        targets |= if instruction.rflags_modified() != 0 { FLAGS } else { 0 };
        let (memory, kind) = (info.used_memory().to_vec(), kind_of(&instruction));
        self.known.insert(at, Decoded { instruction, sources, targets, memory, kind });
        Ok(())
    }

    /// Calls `each` for every operation of a recording, in order.
    pub fn operations(&mut self, steps: &[Step], mut each: impl FnMut(&Operation)) -> io::Result<()> {
        let mut operation = Operation::default();
        let mut index = 0;
        while index + 1 < steps.len() {
            let step = &steps[index];
            operation.lines.clear();
            if self.allocator.contains(&step.at) {
                self.foreign_operation(step, &mut operation);
                // It has returned when its return address is off the stack.
                let rest = steps[index..].iter().position(|later| later.stack() > step.stack());
                index += rest.unwrap_or(steps.len() - index);
            } else if self.own.contains(&step.at) {
                self.own_operation(step, &steps[index + 1], &mut operation)?;
                index += 1;
            } else {
                self.foreign_operation(step, &mut operation);
                let rest = steps[index..].iter().position(|step| self.own.contains(&step.at));
                index += rest.unwrap_or(steps.len() - index);
            }
            each(&operation);
        }
        Ok(())
    }

    /// A call into a library, by the registers at its start.
    fn foreign_operation(&self, step: &Step, into: &mut Operation) {
        let [to, from, length] = [RDI, RSI, RDX].map(|register| step.registers[register]);
        let is_one_of = |entries: &[u64]| entries.contains(&step.at);
        let mut touch = |kind: Touch, address: u64| into.lines.extend(lines(address, length).map(|line| (kind, line)));
        let mut is_block = true;
        if is_one_of(&self.blocks.copies) {
            touch(Touch::Load, from);
            touch(Touch::Store, to);
        } else if is_one_of(&self.blocks.fills) {
            touch(Touch::Store, to);
        } else if is_one_of(&self.blocks.comparisons) {
            touch(Touch::Load, from);
            touch(Touch::Load, to);
        } else {
            is_block = false;
        }
        into.instructions =
            if is_block { BLOCK_INSTRUCTIONS + length / BYTES_PER_INSTRUCTION } else { FOREIGN_INSTRUCTIONS };
        (into.sources, into.targets) = ([RDI, RSI, RDX].iter().map(|register| 1 << register).sum(), 1 << RAX);
        into.is_fence = false;
    }

    fn own_operation(&mut self, step: &Step, after: &Step, into: &mut Operation) -> io::Result<()> {
        if !self.known.contains_key(&step.at) {
            self.decode(step.at)?;
        }
        let decoded = &self.known[&step.at];
        let instruction = &decoded.instruction;
        (into.instructions, into.sources, into.targets) = (1, decoded.sources, decoded.targets);
        into.is_fence = decoded.kind == Kind::Fence;
        if matches!(decoded.kind, Kind::Fence | Kind::Nothing) {
            return Ok(());
        }
        // A repeated instruction executed as a whole covers as many elements as its counter says.
        let is_whole = instruction.is_string_instruction() && instruction.has_rep_prefix() && after.at != step.at;
        let repetitions = if is_whole { step.registers[RCX] } else { 1 };
        if decoded.kind == Kind::Only(Touch::Prefetch) {
            // The disassembler counts a prefetch as no access.
            let address = instruction.virtual_address(0, 0, |register, _, _| value(step, register));
            into.lines.extend(address.map(|address| (Touch::Prefetch, address / LINE_BYTES)));
            return Ok(());
        }
        for memory in &decoded.memory {
            let Some(address) = memory.virtual_address(0, |register, _, _| value(step, register)) else { continue };
            let element = string_element(instruction.mnemonic()).unwrap_or(memory.memory_size().size() as u64);
            let bytes = element * repetitions;
            let bytes = if decoded.kind == Kind::Only(Touch::Flush) { 1 } else { bytes };
            into.instructions = into.instructions.max(bytes / BYTES_PER_INSTRUCTION);
            for line in lines(address, bytes) {
                touch(decoded.kind, memory.access(), line, &mut into.lines);
            }
        }
        Ok(())
    }
}

/// Adds the touch of a line by an access.
fn touch(kind: Kind, access: OpAccess, line: u64, into: &mut Vec<(Touch, u64)>) {
    let (is_read, is_written) = match access {
        OpAccess::Read | OpAccess::CondRead => (true, false),
        OpAccess::Write | OpAccess::CondWrite => (false, true),
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
        _ => (false, false),
    };
    match kind {
        // The source of `movdir64b` is read.
        Kind::Only(Touch::Stream) if is_read => into.push((Touch::Load, line)),
        Kind::Only(kind) => into.push((kind, line)),
        Kind::Locked if is_read && is_written => into.push((Touch::Exchange, line)),
        _ => {
            into.extend(is_read.then_some((Touch::Load, line)));
            into.extend(is_written.then_some((Touch::Store, line)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multicore::record::record;
    use pmem::{Direct, Mapping};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn operations(work: impl FnOnce()) -> Vec<Operation> {
        let (steps, ()) = record(200_000, work).expect("records");
        let mut all = Vec::new();
        let mut code = Code::new().expect("this process's memory");
        code.operations(&steps.expect("room for all"), |operation| all.push(operation.clone())).expect("decoded");
        all
    }

    fn touches(operations: &[Operation], kind: Touch) -> usize {
        operations.iter().flat_map(|operation| &operation.lines).filter(|(touch, _)| *touch == kind).count()
    }

    #[test]
    fn flushes_streams_fences_and_locked_instructions_are_seen() {
        let region = Arc::new(Mapping::anonymous(1 << 16).expect("memory")).region(Direct).expect("a region");
        let word = AtomicU64::new(0);
        let seen = operations(|| {
            let dirty = region.write_bytes(4096, &[1; 128]).expect("inside");
            region.persist(dirty);
            let flushed = region.stream_bytes(8192, &[2; 256]).expect("inside");
            region.fence(flushed);
            word.fetch_add(1, Ordering::AcqRel);
        });
        assert_eq!(touches(&seen, Touch::Flush), 2);
        let mut streamed: Vec<u64> = seen
            .iter()
            .flat_map(|operation| &operation.lines)
            .filter_map(|(touch, line)| (*touch == Touch::Stream).then_some(*line))
            .collect();
        streamed.dedup();
        assert_eq!(streamed.len(), 4);
        assert_eq!(touches(&seen, Touch::Exchange), 1);
        assert_eq!(seen.iter().filter(|operation| operation.is_fence).count(), 2);
    }

    #[test]
    fn content_that_is_read_and_written_is_seen_line_by_line() {
        let region = Arc::new(Mapping::anonymous(1 << 20).expect("memory")).region(Direct).expect("a region");
        let base = (region.mapping().address() as u64 + 65536) / LINE_BYTES;
        let in_image = |seen: &[Operation], kind: Touch| {
            let mut lines: Vec<u64> = seen
                .iter()
                .flat_map(|operation| &operation.lines)
                .filter_map(|(touch, line)| (*touch == kind && (base..base + 512).contains(line)).then_some(*line))
                .collect();
            lines.sort_unstable();
            lines.dedup();
            lines.len()
        };
        let mut bytes = vec![3; 32 << 10];
        let read = operations(|| region.read_bytes(65536, &mut bytes).expect("inside"));
        assert_eq!(in_image(&read, Touch::Load), 512);
        let written = operations(|| region.write_bytes(65536, &bytes).expect("inside").unflushed());
        assert_eq!(in_image(&written, Touch::Store), 512);
        let streamed = operations(|| {
            let flushed = region.stream_bytes(65536, &bytes).expect("inside");
            region.fence(flushed);
        });
        assert_eq!(in_image(&streamed, Touch::Stream), 512);
    }

    #[test]
    fn a_call_into_the_c_library_has_a_price_whatever_its_instructions_are() {
        let from = vec![7u8; 10_000];
        let mut to = vec![0u8; 10_000];
        let price = |length: usize, to: &mut [u8]| {
            let seen = operations(|| to[..length].copy_from_slice(std::hint::black_box(&from[..length])));
            let copy = seen.iter().max_by_key(|operation| operation.lines.len()).expect("some operation").clone();
            let loads = copy.lines.iter().filter(|(touch, _)| *touch == Touch::Load).count();
            (copy.instructions, loads)
        };
        let (instructions, loads) = price(9600, &mut to);
        assert_eq!(instructions, BLOCK_INSTRUCTIONS + 300);
        assert!((150..=151).contains(&loads), "{loads}");
    }
}
