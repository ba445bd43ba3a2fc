//! Extracts from a recording the events that matter between processors.
//!
//! Locks are recognised by behaviour within an operation: a locked instruction exchanges a word,
//! and later the same thread restores the changed bits.
//!
//! - Restored by a store, an exchange or by clearing bits: the lock was exclusive.
//! - Incremented by an exchange and decremented by a locked subtraction: the lock was shared (a
//!   reader's lock, or a reference for which no counter waits).
//! - Restored by another compare-and-exchange: no lock.

use super::coherence::Program;
use super::record::Step;
use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;
/// Maximum length of an instruction in bytes.
const INSTRUCTION_BYTES: usize = 15;
const ZERO_FLAG: u64 = 1 << 6;
/// The register that counts repetitions.
const COUNTER: usize = 1;

/// The mode of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// One holder.
    Exclusive,
    /// Any number of shared holders.
    Shared,
}

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// `count` instructions.
    Work,
    /// A line is read.
    Load,
    /// A line is written.
    Store,
    /// A line comes from memory, since no other call touches it ([`bring_own`]).
    Bring,
    /// A locked instruction.
    Exchange,
    /// A line is flushed.
    Flush,
    /// Waits for flushes, or orders stores and loads.
    Fence,
    /// A lock is acquired, by a locked instruction.
    Acquire(LockMode),
    /// A lock is released: by a locked instruction (true) or a store (false).
    Release(LockMode, bool),
}

/// An event of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Its type.
    pub kind: EventKind,
    /// The address.
    pub address: u64,
    /// For [`EventKind::Work`]: the number of instructions.
    pub count: u32,
}

impl Event {
    /// The line that it reads, writes or flushes.
    fn line(&self) -> Option<u64> {
        let touches = !matches!(self.kind, EventKind::Work | EventKind::Fence | EventKind::Bring);
        touches.then_some(self.address / LINE_BYTES)
    }
}

/// How an instruction changes a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// A successful compare-and-exchange.
    Exchange { old: u64, new: u64 },
    /// An unconditional exchange.
    Swap { old: u64, new: u64 },
    /// A locked addition.
    Add(u64),
    /// A locked conjunction.
    And(u64),
    /// A store.
    Store(u64),
    /// Any other change, or none.
    Other,
}

/// A change of a word: its event, and the mask of the word's bits.
struct Write {
    event: usize,
    address: u64,
    mask: u64,
    change: Change,
}

/// The decoded instructions of this process.
pub struct Code {
    memory: File,
    known: HashMap<u64, Instruction>,
    factory: InstructionInfoFactory,
}

impl Code {
    /// Starts without any decoded instruction.
    pub fn new() -> io::Result<Code> {
        let memory = File::open("/proc/self/mem")?;
        Ok(Code { memory, known: HashMap::new(), factory: InstructionInfoFactory::new() })
    }

    fn instruction(&mut self, at: u64) -> io::Result<Instruction> {
        if let Some(known) = self.known.get(&at) {
            return Ok(*known);
        }
        let mut bytes = [0; INSTRUCTION_BYTES];
        // The mapping may end behind the instruction.
        let length = self.memory.read_at(&mut bytes, at)?;
        let instruction = Decoder::with_ip(64, &bytes[..length], at, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            return Err(io::Error::other(format!("unknown instruction at {at:#x}")));
        }
        self.known.insert(at, instruction);
        Ok(instruction)
    }
}

/// A register's value; none for a special register (for example one that leads to thread-local
/// data).
fn value(step: &Step, register: Register) -> Option<u64> {
    match register {
        Register::None | Register::RIP | Register::DS | Register::ES | Register::SS | Register::CS => Some(0),
        _ if register.is_gpr() => step.registers.get(register.full_register().number()).copied(),
        _ => None,
    }
}

/// The value of a register or immediate operand.
fn operand(step: &Step, instruction: &Instruction, index: u32) -> Option<u64> {
    match instruction.op_kind(index) {
        OpKind::Register => value(step, instruction.op_register(index)),
        OpKind::Memory => None,
        _ => Some(instruction.immediate(index)),
    }
}

/// How a locked instruction or a store changes its word. `after` is the state behind it.
fn change(step: &Step, after: &Step, instruction: &Instruction, mask: u64) -> Option<Change> {
    let source = |step: &Step| operand(step, instruction, 1).map(|value| value & mask);
    Some(match instruction.mnemonic() {
        Mnemonic::Cmpxchg if after.flags & ZERO_FLAG != 0 => {
            Change::Exchange { old: value(step, Register::RAX)? & mask, new: source(step)? }
        }
        Mnemonic::Xchg => {
            let register = (0..2).find(|index| instruction.op_kind(*index) == OpKind::Register)?;
            let of = |step: &Step| operand(step, instruction, register).map(|value| value & mask);
            Change::Swap { old: of(after)?, new: of(step)? }
        }
        Mnemonic::Xadd | Mnemonic::Add => Change::Add(source(step)?),
        Mnemonic::Sub => Change::Add(source(step)?.wrapping_neg() & mask),
        Mnemonic::Inc => Change::Add(1),
        Mnemonic::Dec => Change::Add(mask),
        Mnemonic::And => Change::And(source(step)?),
        Mnemonic::Mov => Change::Store(source(step)?),
        _ => Change::Other,
    })
}

struct Reader<'c> {
    code: &'c mut Code,
    events: Vec<Event>,
    writes: Vec<Write>,
    instructions: u32,
}

/// The events of a recording.
pub fn events(steps: &[Step], code: &mut Code) -> io::Result<Vec<Event>> {
    let mut reader = Reader { code, events: Vec::new(), writes: Vec::new(), instructions: 0 };
    for pair in steps.windows(2) {
        reader.read(&pair[0], &pair[1])?;
    }
    reader.end_work();
    reader.find_locks();
    Ok(reader.events)
}

impl Reader<'_> {
    fn end_work(&mut self) {
        if self.instructions > 0 {
            self.events.push(Event {
                kind: EventKind::Work,
                address: 0,
                count: std::mem::take(&mut self.instructions),
            });
        }
    }

    fn push(&mut self, kind: EventKind, address: u64) {
        self.end_work();
        self.events.push(Event { kind, address, count: 0 });
    }

    fn read(&mut self, step: &Step, after: &Step) -> io::Result<()> {
        let instruction = self.code.instruction(step.at)?;
        self.instructions += 1;
        match instruction.mnemonic() {
            Mnemonic::Sfence | Mnemonic::Mfence => self.push(EventKind::Fence, 0),
            Mnemonic::Nop => {}
            mnemonic => {
                let is_flush = matches!(mnemonic, Mnemonic::Clflush | Mnemonic::Clflushopt | Mnemonic::Clwb);
                self.read_memory(step, after, &instruction, is_flush);
            }
        }
        Ok(())
    }

    fn read_memory(&mut self, step: &Step, after: &Step, instruction: &Instruction, is_flush: bool) {
        let mut found = Vec::new();
        // A repeated instruction executed as a whole covers as many elements as its counter says.
        let is_whole = instruction.is_string_instruction() && instruction.has_rep_prefix() && after.at != step.at;
        let repetitions = if is_whole { step.registers[COUNTER] } else { 1 };
        for memory in self.code.factory.info(instruction).used_memory() {
            let Some(address) = memory.virtual_address(0, |register, _, _| value(step, register)) else { continue };
            found.push((address, memory.access(), memory.memory_size().size() as u64 * repetitions));
        }
        let is_locked = instruction.has_lock_prefix() || instruction.mnemonic() == Mnemonic::Xchg;
        for (address, access, bytes) in found.into_iter().filter(|(_, _, bytes)| *bytes > 0 || is_flush) {
            let last = address + bytes.max(1) - 1;
            for line in address / LINE_BYTES..=last / LINE_BYTES {
                let at = address.max(line * LINE_BYTES);
                match access {
                    _ if is_flush => self.push(EventKind::Flush, at),
                    OpAccess::Read | OpAccess::CondRead => self.push(EventKind::Load, at),
                    OpAccess::Write | OpAccess::CondWrite => {
                        self.write(EventKind::Store, at, bytes, step, after, instruction)
                    }
                    OpAccess::ReadWrite | OpAccess::ReadCondWrite if is_locked => {
                        self.write(EventKind::Exchange, at, bytes, step, after, instruction);
                    }
                    OpAccess::ReadWrite | OpAccess::ReadCondWrite => {
                        self.push(EventKind::Load, at);
                        self.push(EventKind::Store, at);
                    }
                    _ => {}
                }
            }
        }
    }

    fn write(
        &mut self,
        kind: EventKind,
        address: u64,
        bytes: u64,
        step: &Step,
        after: &Step,
        instruction: &Instruction,
    ) {
        self.push(kind, address);
        let mask = if bytes >= 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 };
        // Locks are words; wider accesses hold none.
        let is_word = matches!(bytes, 1 | 4 | 8);
        let change = if is_word { change(step, after, instruction, mask) } else { None };
        self.writes.push(Write {
            event: self.events.len() - 1,
            address,
            mask,
            change: change.unwrap_or(Change::Other),
        });
    }

    /// Turns exchanges and their reversals into acquisitions and releases of locks.
    fn find_locks(&mut self) {
        let mut by_word: HashMap<u64, Vec<&Write>> = HashMap::new();
        for write in &self.writes {
            by_word.entry(write.address).or_default().push(write);
        }
        for writes in by_word.values() {
            let mut at = 0;
            while at < writes.len() {
                if let Some((left, mode, by_exchange)) = left(writes[at], &writes[at + 1..]) {
                    self.events[writes[at].event].kind = EventKind::Acquire(mode);
                    self.events[writes[at + 1 + left].event].kind = EventKind::Release(mode, by_exchange);
                    at += left + 1;
                }
                at += 1;
            }
        }
    }
}

/// If a write acquires a lock: the index of the later write that releases it, the mode, and whether
/// a locked instruction releases it.
fn left(taking: &Write, later: &[&Write]) -> Option<(usize, LockMode, bool)> {
    let (Change::Exchange { old, new } | Change::Swap { old, new }) = taking.change else { return None };
    if old == new {
        return None;
    }
    let bits = old ^ new;
    for (index, write) in later.iter().enumerate() {
        let is_back = |value: u64| (value ^ old) & bits == 0;
        match write.change {
            Change::Store(value) if is_back(value) => return Some((index, LockMode::Exclusive, false)),
            Change::Swap { new, .. } if is_back(new) => return Some((index, LockMode::Exclusive, true)),
            Change::And(kept) if (kept | old) & bits == 0 => return Some((index, LockMode::Exclusive, true)),
            Change::Add(added) if new.wrapping_add(added) & taking.mask == old => {
                let mode = if new == old.wrapping_add(1) { LockMode::Shared } else { LockMode::Exclusive };
                return Some((index, mode, true));
            }
            // A compare-and-exchange that restores a word is no release.
            Change::Exchange { .. } => return None,
            _ => {}
        }
    }
    None
}

/// Marks where lines of a call come from memory: at the first access to each line that no other
/// call touches. Each call has its own files, and there are more files than caches hold.
pub fn bring_own(programs: &mut [Program]) {
    let mut calls: HashMap<u64, u32> = HashMap::new();
    for call in programs.iter().flatten() {
        let lines: HashSet<u64> = call.iter().filter_map(Event::line).collect();
        lines.into_iter().for_each(|line| *calls.entry(line).or_default() += 1);
    }
    for call in programs.iter_mut().flatten() {
        let mut brought = HashSet::new();
        let mut events = Vec::with_capacity(call.len());
        for event in call.drain(..) {
            if event.line().is_some_and(|line| calls[&line] == 1 && brought.insert(line)) {
                events.push(Event { kind: EventKind::Bring, ..event });
            }
            events.push(event);
        }
        *call = events;
    }
}

/// Drops events that other processors cannot influence: loads and stores of lines that one
/// processor uses alone or that are never written. Lines from memory, locked instructions, flushes
/// and fences cost in any case.
pub fn keep_shared(programs: &mut [Program]) {
    let (mut users, mut written): (HashMap<u64, HashSet<usize>>, HashSet<u64>) = Default::default();
    for (processor, program) in programs.iter().enumerate() {
        for (event, line) in program.iter().flatten().filter_map(|event| Some((event, event.line()?))) {
            users.entry(line).or_default().insert(processor);
            if !matches!(event.kind, EventKind::Load | EventKind::Flush) {
                written.insert(line);
            }
        }
    }
    let is_felt = |event: &Event| {
        let line = event.address / LINE_BYTES;
        users.get(&line).is_some_and(|users| users.len() > 1) && written.contains(&line)
    };
    for operation in programs.iter_mut().flatten() {
        let mut kept: Vec<Event> = Vec::new();
        for event in operation.drain(..) {
            let stays = match event.kind {
                EventKind::Work => {
                    if let Some(last) = kept.last_mut().filter(|last| last.kind == EventKind::Work) {
                        last.count += event.count;
                        continue;
                    }
                    true
                }
                EventKind::Bring | EventKind::Flush | EventKind::Fence | EventKind::Exchange => true,
                EventKind::Acquire(_) | EventKind::Release(_, true) => true,
                EventKind::Load | EventKind::Store | EventKind::Release(_, false) => is_felt(&event),
            };
            // A lock that no other processor takes is an exchange.
            let kind = match event.kind {
                EventKind::Acquire(_) | EventKind::Release(_, true) if !is_felt(&event) => EventKind::Exchange,
                kind => kind,
            };
            if stays {
                kept.push(Event { kind, ..event });
            }
        }
        *operation = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::record;
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    use std::sync::{Mutex, RwLock};

    fn recorded(work: impl FnOnce()) -> Vec<Event> {
        let steps = record(100_000, work).expect("records").0.expect("the buffer holds all steps");
        events(&steps, &mut Code::new().expect("reads itself")).expect("decodes")
    }

    /// The types of events at an object, in order, without repetitions.
    fn at<T>(events: &[Event], thing: &T) -> Vec<EventKind> {
        let start = thing as *const T as u64;
        let range = start..start + size_of::<T>() as u64;
        let mut kinds: Vec<EventKind> =
            events.iter().filter(|event| range.contains(&event.address)).map(|event| event.kind).collect();
        kinds.dedup();
        kinds
    }

    #[test]
    fn loads_stores_and_locked_instructions_are_seen_where_they_happen() {
        let (read, written, counted) = (AtomicU64::new(1), AtomicU64::new(1), AtomicU64::new(1));
        let events = recorded(|| {
            std::hint::black_box(read.load(Ordering::Relaxed));
            written.store(7, Ordering::Release);
            counted.fetch_add(3, Ordering::Relaxed);
        });
        assert_eq!(at(&events, &read), [EventKind::Load]);
        assert_eq!(at(&events, &written), [EventKind::Store]);
        assert_eq!(at(&events, &counted), [EventKind::Exchange]);
    }

    #[test]
    fn a_mutex_is_a_lock_and_what_happens_under_it_lies_between() {
        let mutex = Mutex::new(0u64);
        let other = AtomicU64::new(0);
        let events = recorded(|| {
            let mut guard = mutex.lock().expect("not poisoned");
            other.fetch_add(1, Ordering::Relaxed);
            *guard += 1;
        });
        let place = |wanted: fn(&EventKind) -> bool| events.iter().position(|event| wanted(&event.kind));
        let taken = place(|kind| *kind == EventKind::Acquire(LockMode::Exclusive)).expect("it is taken");
        let left = place(|kind| *kind == EventKind::Release(LockMode::Exclusive, true)).expect("it is left");
        let inside = place(|kind| *kind == EventKind::Exchange).expect("something is counted");
        assert!(taken < inside && inside < left, "{taken} {inside} {left}");
    }

    #[test]
    fn a_read_write_lock_is_held_together_by_readers_and_alone_by_a_writer() {
        let lock = RwLock::new(0u64);
        let reading = recorded(|| {
            std::hint::black_box(*lock.read().expect("not poisoned"));
        });
        assert!(at(&reading, &lock).contains(&EventKind::Acquire(LockMode::Shared)), "{:?}", at(&reading, &lock));
        assert!(at(&reading, &lock).contains(&EventKind::Release(LockMode::Shared, true)));
        let writing = recorded(|| *lock.write().expect("not poisoned") += 1);
        assert!(at(&writing, &lock).contains(&EventKind::Acquire(LockMode::Exclusive)), "{:?}", at(&writing, &lock));
        assert!(at(&writing, &lock).contains(&EventKind::Release(LockMode::Exclusive, true)));
    }

    #[test]
    fn a_word_that_holds_its_owner_is_a_lock_that_a_store_leaves() {
        let word = AtomicU32::new(0);
        let events = recorded(|| {
            let _ = word.compare_exchange(0, 17, Ordering::AcqRel, Ordering::Relaxed);
            word.store(0, Ordering::Release);
        });
        assert_eq!(
            at(&events, &word),
            [EventKind::Acquire(LockMode::Exclusive), EventKind::Release(LockMode::Exclusive, false)]
        );
    }

    #[test]
    fn a_bit_beside_a_value_is_a_lock_whatever_becomes_of_the_value() {
        const LOCKED: u32 = 1 << 31;
        let word = AtomicU32::new(5);
        let events = recorded(|| {
            let _ = word.compare_exchange(5, 5 | LOCKED, Ordering::AcqRel, Ordering::Relaxed);
            word.store(9 | LOCKED, Ordering::Release);
            word.fetch_and(!LOCKED, Ordering::Release);
        });
        assert_eq!(
            at(&events, &word),
            [EventKind::Acquire(LockMode::Exclusive), EventKind::Store, EventKind::Release(LockMode::Exclusive, true)]
        );
    }

    #[test]
    fn a_place_claimed_by_exchange_and_a_count_are_no_locks() {
        let (tail, count, flag) = (AtomicU64::new(40), AtomicU64::new(0), AtomicBool::new(false));
        let events = recorded(|| {
            let _ = tail.compare_exchange(40, 41, Ordering::AcqRel, Ordering::Relaxed);
            let _ = tail.compare_exchange(41, 42, Ordering::AcqRel, Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed);
            count.fetch_sub(1, Ordering::Relaxed);
            flag.store(true, Ordering::Relaxed);
        });
        assert_eq!(at(&events, &tail), [EventKind::Exchange]);
        assert_eq!(at(&events, &count), [EventKind::Exchange]);
    }

    #[test]
    fn flushes_and_fences_of_a_region_are_seen() {
        let mapping = std::sync::Arc::new(pmem::Mapping::anonymous(1 << 16).expect("memory"));
        let region = mapping.region(pmem::Direct).expect("a region");
        let events = recorded(|| {
            let dirty = region.write_bytes(4096, &[1; 128]).expect("inside");
            region.persist(dirty);
        });
        assert_eq!(events.iter().filter(|event| event.kind == EventKind::Flush).count(), 2);
        assert!(events.iter().any(|event| event.kind == EventKind::Fence));
    }

    #[test]
    fn a_line_that_one_call_alone_touches_comes_from_memory_once() {
        let event = |kind, address| Event { kind, address, count: 0 };
        let call =
            |own: u64| vec![event(EventKind::Load, 640), event(EventKind::Store, own), event(EventKind::Load, own + 8)];
        let mut programs = vec![vec![call(6400), call(12_800)], vec![call(64_000)]];
        bring_own(&mut programs);
        for (call, own) in programs.iter().flatten().zip([6400, 12_800, 64_000]) {
            let brought = event(EventKind::Bring, own);
            assert_eq!(call[..], [call[0], brought, event(EventKind::Store, own), event(EventKind::Load, own + 8)]);
        }
        keep_shared(&mut programs);
        assert!(programs.iter().flatten().all(|call| call.iter().any(|event| event.kind == EventKind::Bring)));
    }

    #[test]
    fn private_and_read_only_lines_are_left_out() {
        let event = |kind, address| Event { kind, address, count: 0 };
        let one = |own: u64| {
            vec![
                Event { kind: EventKind::Work, address: 0, count: 3 },
                event(EventKind::Store, own),
                Event { kind: EventKind::Work, address: 0, count: 4 },
                event(EventKind::Load, 640),
                event(EventKind::Store, 1280),
                event(EventKind::Acquire(LockMode::Exclusive), own + 64),
            ]
        };
        let mut programs = vec![vec![one(6400)], vec![one(64_000)]];
        keep_shared(&mut programs);
        let kinds: Vec<EventKind> = programs[0][0].iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [EventKind::Work, EventKind::Store, EventKind::Exchange]);
        assert_eq!(programs[0][0][0].count, 7);
    }
}
