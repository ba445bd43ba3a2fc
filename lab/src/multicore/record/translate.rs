//! Runs a function and writes down its state before each instruction.
//!
//! Blocks of instructions are copied to memory nearby, where each is preceded by code that writes
//! the step. A block ends at the first instruction that may jump. [`Translator::go_on`] does what
//! that instruction does, and continues with the copy of the block that it leads to.
//!
//! Invariants:
//!
//! - The program runs on its own stack and keeps its registers; [`dispatch`] has another stack, and
//!   the vector registers are saved meanwhile. Return addresses are those of the program.
//! - `dispatch` may interrupt an allocation. It allocates nothing and takes no lock.
//! - Whatever cannot be recorded is executed all the same, and `is_lost` says so.

use super::emit::{Emitter, Slots};
use super::{REGISTERS, STACK_POINTER, Step};
use iced_x86::{Code, ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Maximum length of an instruction in bytes.
const INSTRUCTION_BYTES: usize = 15;
/// Most instructions of a block.
const BLOCK_INSTRUCTIONS: u32 = 40;
/// Most blocks.
const BLOCKS: usize = 1 << 17;
const TABLE_BITS: u32 = 18;
/// Memory for copies near some code, and how far from the code it may be.
const ROOM_BYTES: usize = 64 << 20;
const NEAR: u64 = 1 << 30;
/// Room is sought at distances of this many bytes.
const STRIDE: u64 = 16 << 20;
/// Modules of a program that have instructions: itself, the C library and what the kernel maps.
const ROOMS: usize = 8;
const STACK_BYTES: usize = 256 << 10;
/// Bytes of the vector registers, of which components 0 to 2 and 5 to 7 are saved.
const VECTOR_BYTES: usize = 16 << 10;
const COMPONENTS: u64 = 0b1110_0111;
const COUNTER: usize = 1;

/// How a block ends.
#[derive(Clone, Copy)]
enum End {
    /// The recording begins.
    Begin,
    /// Work beside the recording has returned.
    Back,
    /// The next block follows at this address.
    Next(u64),
    /// This instruction, which is a step of its own, says where the program goes on.
    Flow(Instruction),
}

#[derive(Clone, Copy)]
struct Block {
    /// The first instruction, and its copy.
    start: u64,
    copy: u64,
    /// Number of steps.
    steps: u32,
    end: End,
}

/// Blocks with fixed numbers.
const BEGIN: u32 = 0;
const BACK: u32 = 1;

/// Data that copies and [`dispatch`] share, at an address of 31 bits.
#[repr(C)]
struct Header {
    rax: u64,
    flags: u64,
    trace: *mut Step,
    target: u64,
    dispatch: u64,
    exit: u64,
    stack: u64,
    block: u32,
    registers: [u64; REGISTERS],
    /// What follows is of `dispatch` alone.
    translator: *mut Translator,
    trace_end: *mut Step,
    /// Where recorded work begins and returns to.
    entry: u64,
    returns_to: u64,
    /// Where work beside the recording returns to.
    beside_returns_to: u64,
    is_lost: bool,
}

/// The memory at low addresses.
#[repr(C)]
struct Low {
    header: Header,
    vectors: Vectors,
    stack: [u8; STACK_BYTES],
    /// Numbers of blocks by the hash of their start; zero is none.
    table: [u32; 1 << TABLE_BITS],
    blocks: [std::mem::MaybeUninit<Block>; BLOCKS],
}

#[repr(C, align(64))]
struct Vectors([u8; VECTOR_BYTES]);

/// Memory for copies.
struct Room {
    emitter: Emitter,
    start: u64,
}

/// The copies of this process.
pub struct Translator {
    low: *mut Low,
    slots: Slots,
    count: usize,
    rooms: [Option<Room>; ROOMS],
    begin: u64,
    back: u64,
    /// The function whose calls are not recorded.
    beside: u64,
    memory: File,
}

// SAFETY: its pointers lead to memory of its own, which no thread uses without it.
unsafe impl Send for Translator {}

fn map(at: u64, bytes: usize, access: i32, flags: i32) -> Option<*mut c_void> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags;
    // SAFETY: a new mapping that replaces none.
    let mapped = unsafe { libc::mmap(at as *mut c_void, bytes, access, flags, -1, 0) };
    (mapped != libc::MAP_FAILED).then_some(mapped)
}

/// Chooses where the program goes on.
///
/// # Safety
///
/// Called by copies only.
unsafe extern "C" fn dispatch(header: *mut Header) {
    // SAFETY: `Translator::run` set both, and waits for the program's end without using them.
    unsafe { (*(*header).translator).go_on(&mut *header) }
}

impl Translator {
    /// Calls of `beside` are not recorded.
    pub fn new(beside: u64) -> io::Result<Translator> {
        let low = map(0, size_of::<Low>(), libc::PROT_READ | libc::PROT_WRITE, libc::MAP_32BIT);
        let low = low.ok_or_else(|| io::Error::other("no memory for recordings"))?.cast::<Low>();
        let of = |offset: usize| (low.addr() + offset) as u32;
        let slots = Slots {
            header: of(0),
            rax: of(offset_of!(Header, rax)),
            flags: of(offset_of!(Header, flags)),
            trace: of(offset_of!(Header, trace)),
            target: of(offset_of!(Header, target)),
            dispatch: of(offset_of!(Header, dispatch)),
            stack: of(offset_of!(Header, stack)),
            registers: of(offset_of!(Header, registers)),
            vectors: of(offset_of!(Low, vectors)),
        };
        let memory = File::open("/proc/self/mem")?;
        let rooms = [const { None }; ROOMS];
        let mut translator = Translator { low, slots, count: 0, rooms, begin: 0, back: 0, beside, memory };
        translator.prepare().ok_or_else(|| io::Error::other("no memory for the code of recordings"))?;
        Ok(translator)
    }

    /// Emits what all recordings use.
    fn prepare(&mut self) -> Option<()> {
        // The disassembler makes its tables when it is first used, which must not be in `dispatch`.
        let _ = Decoder::new(64, &[0x90], DecoderOptions::NONE).decode();
        let room = self.room_near(dispatch as *const () as u64)?;
        let emitter = &mut self.rooms[room].as_mut()?.emitter;
        let exit = emitter.at();
        emitter.exit(&self.slots, saved_components())?;
        let mut pseudo = |number: u32| {
            let at = emitter.at();
            emitter.step(&self.slots, 0, false)?;
            emitter.store_value(self.slots.header + offset_of!(Header, block) as u32, number)?;
            emitter.jump(self.slots.header + offset_of!(Header, exit) as u32)?;
            Some(at)
        };
        (self.begin, self.back) = (pseudo(BEGIN)?, pseudo(BACK)?);
        // SAFETY: the memory is new; a copy uses it only in `run`.
        let header = unsafe { &mut (*self.low).header };
        header.exit = exit;
        header.dispatch = dispatch as *const () as u64;
        let stack_end = self.low.addr() + offset_of!(Low, stack) + STACK_BYTES;
        header.stack = stack_end as u64 & !63;
        for end in [End::Begin, End::Back] {
            self.add(Block { start: 0, copy: 0, steps: 0, end })?;
        }
        Some(())
    }

    /// Calls `entry` with `data`, and writes its steps to `trace`. Returns the end of what was
    /// written; none if there was no room, or if an instruction cannot be recorded.
    ///
    /// # Safety
    ///
    /// `data` is what `entry` expects.
    pub unsafe fn run(
        &mut self,
        trace: Range<*mut Step>,
        entry: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> Option<*mut Step> {
        let (low, begin) = (self.low, self.begin);
        // SAFETY: the memory is this one's. References to it end before the program starts.
        unsafe {
            let header = &raw mut (*low).header;
            (*header).translator = self;
            ((*header).trace, (*header).trace_end) = (trace.start, trace.end);
            ((*header).entry, (*header).is_lost) = (entry as *const () as u64, false);
            // SAFETY: the emitted code is that of a function which is called as `entry` is.
            let begin: unsafe extern "C" fn(*mut c_void) = std::mem::transmute(begin as *const ());
            begin(data);
            (!(*header).is_lost).then_some((*header).trace)
        }
    }

    /// Executes the end of a block, and chooses the next one.
    fn go_on(&mut self, header: &mut Header) {
        let block = self.block(header.block);
        // The last step, or one that does not count.
        let back = usize::from(matches!(block.end, End::Flow(_)));
        // SAFETY: the copy has just written it.
        header.registers = unsafe { (*header.trace.sub(back)).registers };
        let registers = &mut header.registers;
        let target = match block.end {
            End::Begin => {
                header.returns_to = word(registers[STACK_POINTER]);
                Some(header.entry)
            }
            End::Back => Some(header.beside_returns_to),
            End::Next(target) => Some(target),
            End::Flow(instruction) => flow(&instruction, registers, header.flags as u16),
        };
        header.target = match (target, block.end) {
            (Some(target), _) => self.copy_of(header, target),
            (None, End::Flow(instruction)) => {
                header.is_lost = true;
                instruction.ip()
            }
            (None, _) => 0,
        };
    }

    /// The code that stands for a target: its copy, or itself where nothing is to be recorded.
    fn copy_of(&mut self, header: &mut Header, target: u64) -> u64 {
        if target == header.returns_to {
            return target;
        }
        if target == self.beside {
            let stack = header.registers[STACK_POINTER];
            header.beside_returns_to = word(stack);
            set_word(stack, self.back);
            return target;
        }
        let room = (header.trace_end.addr() - header.trace.addr()) / size_of::<Step>();
        match self.find(target).or_else(|| self.translate(target)) {
            // One more is written without being counted.
            Some(block) if room > block.steps as usize => block.copy,
            _ => {
                header.is_lost = true;
                target
            }
        }
    }

    fn block(&self, number: u32) -> Block {
        // SAFETY: numbers are those of blocks that were added.
        unsafe { (*self.low).blocks[number as usize].assume_init() }
    }

    /// The place in the table of a block that begins at this address, or where it would be.
    fn place(&self, start: u64) -> usize {
        let mut place = (start.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - TABLE_BITS)) as usize;
        loop {
            // SAFETY: the memory is this one's; more than half of the table is empty.
            match unsafe { (*self.low).table[place] } {
                0 => return place,
                number if self.block(number).start == start => return place,
                _ => place = (place + 1) % (1 << TABLE_BITS),
            }
        }
    }

    fn find(&self, start: u64) -> Option<Block> {
        // SAFETY: the memory is this one's.
        let number = unsafe { (*self.low).table[self.place(start)] };
        (number != 0).then(|| self.block(number))
    }

    fn add(&mut self, block: Block) -> Option<()> {
        let (number, place) = (self.count, self.place(block.start));
        if number == BLOCKS {
            return None;
        }
        // SAFETY: the memory is this one's.
        unsafe {
            (*self.low).blocks[number].write(block);
            if block.start != 0 {
                (*self.low).table[place] = number as u32;
            }
        }
        self.count += 1;
        Some(())
    }

    /// Copies the block that begins at an address.
    fn translate(&mut self, start: u64) -> Option<Block> {
        let room = self.room_near(start)?;
        let copy = self.rooms[room].as_ref()?.emitter.at();
        let (mut at, mut steps) = (start, 0);
        let end = loop {
            if steps == BLOCK_INSTRUCTIONS {
                break End::Next(at);
            }
            let mut bytes = [0; INSTRUCTION_BYTES];
            // The mapping may end behind the instruction.
            let length = self.memory.read_at(&mut bytes, at).ok()?;
            let mut decoder = Decoder::with_ip(64, &bytes[..length], at, DecoderOptions::NONE);
            let instruction = decoder.decode();
            let is_plain = match instruction.flow_control() {
                FlowControl::Next => true,
                FlowControl::Call => instruction.code() == Code::Syscall,
                FlowControl::Interrupt | FlowControl::Exception | FlowControl::XbeginXabortXend => match steps {
                    0 => return None,
                    _ => break End::Next(at),
                },
                _ => false,
            };
            let displacement = decoder.get_constant_offsets(&instruction).displacement_offset();
            let emitter = &mut self.rooms[room].as_mut()?.emitter;
            emitter.step(&self.slots, at, true)?;
            steps += 1;
            if !is_plain {
                break End::Flow(instruction);
            }
            if instruction.is_ip_rel_memory_operand() {
                let next = emitter.at() + instruction.len() as u64;
                let distance = instruction.ip_rel_memory_address().wrapping_sub(next) as i64;
                let distance = i32::try_from(distance).ok()?;
                bytes[displacement..displacement + 4].copy_from_slice(&distance.to_le_bytes());
            }
            emitter.bytes(&bytes[..instruction.len()])?;
            at = instruction.next_ip();
        };
        let emitter = &mut self.rooms[room].as_mut()?.emitter;
        if let End::Next(at) = end {
            emitter.step(&self.slots, at, false)?;
        }
        emitter.store_value(self.slots.header + offset_of!(Header, block) as u32, self.count as u32)?;
        emitter.jump(self.slots.header + offset_of!(Header, exit) as u32)?;
        let block = Block { start, copy, steps, end };
        self.add(block)?;
        Some(block)
    }

    /// The index of memory for copies of code at an address, whose data the copies can name.
    fn room_near(&mut self, address: u64) -> Option<usize> {
        let is_near = |room: &Option<Room>| room.as_ref().is_some_and(|room| room.start.abs_diff(address) < NEAR);
        if let Some(index) = self.rooms.iter().position(is_near) {
            return Some(index);
        }
        let index = self.rooms.iter().position(Option::is_none)?;
        let base = address & !(STRIDE - 1);
        // Below libraries lies what the program has mapped since, above them the stack.
        let below = (1..NEAR / STRIDE).filter_map(|count| base.checked_sub(count * STRIDE));
        let above = (1..NEAR / STRIDE).filter_map(|count| base.checked_add(count * STRIDE));
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        for at in below.chain(above) {
            if let Some(room) = map(at, ROOM_BYTES, access, libc::MAP_FIXED_NOREPLACE) {
                // SAFETY: the memory is new and writable.
                let emitter = unsafe { Emitter::new(room.cast(), ROOM_BYTES) };
                self.rooms[index] = Some(Room { emitter, start: room.addr() as u64 });
                return Some(index);
            }
        }
        None
    }
}

impl Drop for Translator {
    fn drop(&mut self) {
        for room in self.rooms.iter().flatten() {
            // SAFETY: nothing runs there.
            unsafe { libc::munmap(room.start as *mut c_void, ROOM_BYTES) };
        }
        // SAFETY: nothing uses it.
        unsafe { libc::munmap(self.low.cast(), size_of::<Low>()) };
    }
}

/// The components of the processor's state to save, as the system enables them.
fn saved_components() -> u32 {
    let (low, _high): (u32, u32);
    // SAFETY: reads a register that every processor with AVX has; without it the copies could not
    // save any state, and recordings are made on such processors only.
    unsafe { std::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _high) };
    low & COMPONENTS as u32
}

/// A word of the program's memory.
fn word(address: u64) -> u64 {
    // SAFETY: the program is about to read it.
    unsafe { (address as *const u64).read_unaligned() }
}

fn set_word(address: u64, value: u64) {
    // SAFETY: the program is about to write it, or has just read it.
    unsafe { (address as *mut u64).write_unaligned(value) }
}

/// Executes an instruction that may jump. Returns where it leads; none if that is unknown.
fn flow(instruction: &Instruction, registers: &mut [u64; REGISTERS], flags: u16) -> Option<u64> {
    let next = instruction.next_ip();
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch => Some(instruction.near_branch_target()),
        FlowControl::ConditionalBranch => {
            let is_taken = match (instruction.mnemonic(), instruction.condition_code()) {
                (Mnemonic::Jrcxz, _) => registers[COUNTER] == 0,
                (Mnemonic::Jecxz, _) => registers[COUNTER] as u32 == 0,
                (_, ConditionCode::None) => return None,
                (_, condition) => holds(condition, flags),
            };
            Some(if is_taken { instruction.near_branch_target() } else { next })
        }
        FlowControl::Call => push(instruction.near_branch_target(), next, registers),
        FlowControl::IndirectCall => push(indirect(instruction, registers)?, next, registers),
        FlowControl::IndirectBranch => indirect(instruction, registers),
        FlowControl::Return => {
            let target = word(registers[STACK_POINTER]);
            let arguments = if instruction.op_count() > 0 { instruction.immediate(0) } else { 0 };
            registers[STACK_POINTER] += 8 + arguments;
            Some(target)
        }
        _ => None,
    }
}

fn push(target: u64, next: u64, registers: &mut [u64; REGISTERS]) -> Option<u64> {
    registers[STACK_POINTER] -= 8;
    set_word(registers[STACK_POINTER], next);
    Some(target)
}

/// The target of an indirect jump or call.
fn indirect(instruction: &Instruction, registers: &[u64; REGISTERS]) -> Option<u64> {
    let value = |register: Register| match register {
        Register::None | Register::RIP | Register::DS | Register::ES | Register::SS | Register::CS => Some(0),
        _ if register.is_gpr64() => registers.get(register.number()).copied(),
        _ => None,
    };
    match instruction.op_kind(0) {
        OpKind::Register => value(instruction.op_register(0)),
        OpKind::Memory => Some(word(instruction.virtual_address(0, 0, |register, _, _| value(register))?)),
        _ => None,
    }
}

/// Whether a condition holds. Overflow is in the lowest bit of the flags, and the others are in the
/// upper byte.
fn holds(condition: ConditionCode, flags: u16) -> bool {
    let of = |bit: u16| flags & (1 << bit) != 0;
    let (overflow, carry, parity, zero, sign) = (of(0), of(8), of(10), of(14), of(15));
    match condition {
        ConditionCode::None => false,
        ConditionCode::o => overflow,
        ConditionCode::no => !overflow,
        ConditionCode::b => carry,
        ConditionCode::ae => !carry,
        ConditionCode::e => zero,
        ConditionCode::ne => !zero,
        ConditionCode::be => carry || zero,
        ConditionCode::a => !carry && !zero,
        ConditionCode::s => sign,
        ConditionCode::ns => !sign,
        ConditionCode::p => parity,
        ConditionCode::np => !parity,
        ConditionCode::l => sign != overflow,
        ConditionCode::ge => sign == overflow,
        ConditionCode::le => zero || sign != overflow,
        ConditionCode::g => !zero && sign == overflow,
    }
}
