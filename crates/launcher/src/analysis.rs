//! Finds the system calls of a library, and the code that can replace them.
//!
//! A site is replaced by a five-byte jump, which is longer than the call instruction (two bytes).
//! So adjacent instructions move into its slot with it; together they are the *window*.
//! Invariants of every window that the analysis returns:
//!
//! - It consists of whole instructions of one function as the unwind tables describe it.
//! - Control enters it only at its first byte. Excluded are direct branches of any code in the
//!   library, entries of jump tables, relocations, symbols, landing pads, function starts and
//!   addresses taken by code. A function whose branches cannot be known (it takes an address inside
//!   itself) has no window at all.
//! - No instruction in it calls, or changes the stack pointer. So unwinding from the slot is the
//!   same as from the site.
//! - Each instruction works elsewhere: it is position-independent, or has one displacement that is
//!   set when the slot is written.
//!
//! A site in doubt is left alone and counted.

use crate::elf::{BadElf, Elf};
use hook::call_table;
use hook::routes::Route;
use hook::table::{CODE_BYTES_MAX, NO_FIXUP, Site, WINDOW_BYTES_MAX};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};
use std::collections::HashSet;
use std::ops::Range;

/// Result of analysing a library.
#[derive(Debug)]
pub struct Analysis {
    /// Sites that can be replaced, by address.
    pub sites: Vec<Site>,
    /// Number of sites whose calls never concern the image, by their constant number.
    pub native: u32,
    /// Addresses of sites without a safe window.
    pub left_alone: Vec<u64>,
}

/// Size of a jump.
const JUMP_BYTES: usize = 5;
/// Maximum number of instructions in a window before the call.
const BEFORE_MAX: usize = 4;

/// Finds the sites of a library and their windows.
pub fn analyse(elf: &Elf<'_>) -> Result<Analysis, BadElf> {
    let mut sweep = Sweep::new(elf)?;
    let functions = elf.functions()?;
    for &address in elf.exposed_addresses()?.iter().chain(&functions.landing_pads) {
        sweep.mark(address);
    }
    let mut callers = Vec::new();
    let mut end = 0;
    for range in &functions.ranges {
        sweep.mark(range.start);
        if range.start > end {
            // Code that no table describes may branch anywhere, too. Its own sites get no window.
            let instructions = sweep.scan(end..range.start)?;
            callers.push((None, instructions));
        }
        let instructions = sweep.scan(range.clone())?;
        if instructions.iter().any(is_system_call) {
            callers.push((Some(range.clone()), instructions));
        }
        end = end.max(range.end);
    }
    callers.push((None, sweep.scan(end..u64::MAX)?));
    let mut analysis = Analysis { sites: Vec::new(), native: 0, left_alone: Vec::new() };
    let mut info = InstructionInfoFactory::new();
    for (range, instructions) in &callers {
        let opaque = range.as_ref().is_none_or(|range| sweep.label_bases.iter().any(|base| range.contains(base)));
        for index in (0..instructions.len()).filter(|&index| is_system_call(&instructions[index])) {
            let function = Function { instructions, targets: &sweep.targets, elf };
            if function
                .constant_number(index, &mut info)
                .is_some_and(|number| call_table::route(number) == Route::Native)
            {
                analysis.native += 1;
                continue;
            }
            let window = function.window(index, &mut info).filter(|_| !opaque);
            match window.or_else(|| function.plain_window(index)) {
                Some(site) => analysis.sites.push(site),
                // The site is left alone in any case; the bytes before it decide whether that
                // matters.
                None if number_before(elf, instructions[index].ip())
                    .is_some_and(|number| call_table::route(number) == Route::Native) =>
                {
                    analysis.native += 1;
                }
                None => analysis.left_alone.push(instructions[index].ip()),
            }
        }
    }
    Ok(analysis)
}

/// Counts sites of system calls in any program or library by decoding its functions, also in those
/// that cannot be analysed.
pub fn count_calls(elf: &Elf<'_>) -> Result<usize, BadElf> {
    let functions = elf.functions()?;
    let mut sweep = Sweep::new(elf)?;
    let mut count = 0;
    for range in functions.ranges {
        count += sweep.scan(range)?.iter().filter(|instruction| is_system_call(instruction)).count();
    }
    Ok(count)
}

/// The number that the bytes before a call set. For code whose description ends in the middle, or
/// begins too early, like that of clone and of the return from signals in glibc.
fn number_before(elf: &Elf<'_>, call: u64) -> Option<u64> {
    match *elf.at(call.checked_sub(7)?).ok()?.first_chunk::<7>()? {
        [0x48, 0xc7, 0xc0, number @ ..] | [_, _, 0xb8, number @ ..] => Some(u64::from(u32::from_le_bytes(number))),
        _ => None,
    }
}

fn is_system_call(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Syscall
}

/// One pass over all code, which finds the targets of jumps.
struct Sweep<'e, 'b> {
    elf: &'e Elf<'b>,
    code: Vec<(u64, &'b [u8])>,
    targets: HashSet<u64>,
    /// Addresses inside functions that code takes.
    label_bases: HashSet<u64>,
    /// Starts of functions: taking their addresses is harmless.
    starts: HashSet<u64>,
}

impl<'e, 'b> Sweep<'e, 'b> {
    fn new(elf: &'e Elf<'b>) -> Result<Self, BadElf> {
        let starts = elf.functions()?.ranges.iter().map(|range| range.start).collect();
        Ok(Sweep { elf, code: elf.code()?, targets: HashSet::new(), label_bases: HashSet::new(), starts })
    }

    fn is_code(&self, address: u64) -> bool {
        self.code.iter().any(|(start, bytes)| address.checked_sub(*start).is_some_and(|at| at < bytes.len() as u64))
    }

    fn mark(&mut self, address: u64) {
        if self.is_code(address) {
            self.targets.insert(address);
        }
    }

    /// Decodes the code of a range and marks its targets.
    fn scan(&mut self, range: Range<u64>) -> Result<Vec<Instruction>, BadElf> {
        let mut instructions = Vec::new();
        for (start, bytes) in self.code.clone() {
            let from = range.start.max(start);
            let to = range.end.min(start + bytes.len() as u64);
            if from >= to {
                continue;
            }
            let part = &bytes[(from - start) as usize..(to - start) as usize];
            for instruction in Decoder::with_ip(64, part, from, DecoderOptions::NONE).iter() {
                self.follow(&instruction);
                instructions.push(instruction);
            }
        }
        Ok(instructions)
    }

    fn follow(&mut self, instruction: &Instruction) {
        if matches!(instruction.op0_kind(), OpKind::NearBranch64 | OpKind::NearBranch32 | OpKind::NearBranch16) {
            self.mark(instruction.near_branch_target());
        }
        if instruction.is_ip_rel_memory_operand() && instruction.mnemonic() == Mnemonic::Lea {
            let address = instruction.ip_rel_memory_address();
            if self.is_code(address) {
                self.targets.insert(address);
                if !self.starts.contains(&address) {
                    self.label_bases.insert(address);
                }
            } else {
                self.mark_jump_table(address);
            }
        }
    }

    /// Marks all targets of a table of displacements relative to its own start. If it is no such
    /// table, this only excludes more addresses.
    fn mark_jump_table(&mut self, table: u64) {
        let Ok(content) = self.elf.at(table) else { return };
        for entry in content.chunks_exact(4) {
            let displacement = i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
            let target = table.wrapping_add_signed(i64::from(displacement));
            if !self.is_code(target) {
                return;
            }
            self.targets.insert(target);
        }
    }
}

/// A function whose sites are inspected.
struct Function<'a, 'b> {
    instructions: &'a [Instruction],
    targets: &'a HashSet<u64>,
    elf: &'a Elf<'b>,
}

impl Function<'_, '_> {
    /// The number of the call, if every path sets it right before the call.
    fn constant_number(&self, call: usize, info: &mut InstructionInfoFactory) -> Option<u64> {
        for index in (0..call).rev() {
            if self.targets.contains(&self.instructions[index + 1].ip()) {
                return None;
            }
            let instruction = &self.instructions[index];
            if !matches!(instruction.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch) {
                return None;
            }
            if writes(instruction, Register::RAX, info) {
                return match instruction.code() {
                    Code::Mov_r32_imm32 | Code::Mov_rm32_imm32 => Some(u64::from(instruction.immediate32())),
                    Code::Mov_rm64_imm32 => Some(instruction.immediate32to64() as u64),
                    Code::Xor_r32_rm32 | Code::Xor_rm32_r32 if instruction.op1_register() == Register::EAX => Some(0),
                    _ => None,
                };
            }
        }
        None
    }

    /// The window of a call that creates or ends a thread or process, if no other is found: the
    /// descriptions of these functions end in the middle, and the code after the call runs on
    /// another stack. It consists of the instruction that sets the number and the call itself, if
    /// no branch leads between them. These calls are handwritten assembly, without jumps by
    /// address.
    fn plain_window(&self, call: usize) -> Option<Site> {
        const NUMBERS: [i64; 6] =
            [libc::SYS_clone, libc::SYS_clone3, libc::SYS_vfork, libc::SYS_fork, libc::SYS_exit, libc::SYS_exit_group];
        const SET_BYTES: u64 = 5;
        const CALL_BYTES: u64 = 2;
        let call = self.instructions[call].ip();
        let start = call.checked_sub(SET_BYTES)?;
        let original = self.elf.at(start).ok()?.get(..(SET_BYTES + CALL_BYTES) as usize)?;
        // The function's description may end before the call, so its instruction was not decoded:
        // the bytes must be `mov eax, number`.
        let [0xb8, number @ .., 0x0f, 0x05] = *<&[u8; 7]>::try_from(original).ok()? else { return None };
        let entered = (start + 1..call + CALL_BYTES).any(|address| self.targets.contains(&address));
        if !NUMBERS.contains(&i64::from(u32::from_le_bytes(number))) || entered {
            return None;
        }
        let mut site = Site {
            window: u32::try_from(start).ok()?,
            call: u32::try_from(call).ok()?,
            window_bytes: original.len() as u8,
            before_bytes: SET_BYTES as u8,
            after_bytes: 0,
            fixup: NO_FIXUP,
            fixup_target: 0,
            fixup_tail: 0,
            reserved: [0; 7],
            original: [0; WINDOW_BYTES_MAX],
            code: [0; CODE_BYTES_MAX],
        };
        site.original[..original.len()].copy_from_slice(original);
        site.code[..SET_BYTES as usize].copy_from_slice(&original[..SET_BYTES as usize]);
        Some(site)
    }

    /// The best safe window around a call: with as little before the call as possible.
    fn window(&self, call: usize, info: &mut InstructionInfoFactory) -> Option<Site> {
        (0..=BEFORE_MAX.min(call)).find_map(|before| self.window_from(call - before, call, info))
    }

    fn window_from(&self, first: usize, call: usize, info: &mut InstructionInfoFactory) -> Option<Site> {
        let start = self.instructions[first].ip();
        let mut site = Site {
            window: u32::try_from(start).ok()?,
            call: u32::try_from(self.instructions[call].ip()).ok()?,
            window_bytes: 0,
            before_bytes: 0,
            after_bytes: 0,
            fixup: NO_FIXUP,
            fixup_target: 0,
            fixup_tail: 0,
            reserved: [0; 7],
            original: [0; WINDOW_BYTES_MAX],
            code: [0; CODE_BYTES_MAX],
        };
        let mut next = first;
        while next <= call || usize::from(site.window_bytes) < JUMP_BYTES {
            let instruction = self.instructions.get(next)?;
            let contiguous = instruction.ip() == start + u64::from(site.window_bytes);
            if !contiguous || (next > first && self.targets.contains(&instruction.ip())) {
                return None;
            }
            if next != call {
                self.relocate(instruction, next < call, &mut site, info)?;
            }
            site.window_bytes += instruction.len() as u8;
            next += 1;
            let ended = !matches!(instruction.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
            if next > call + 1 && ended && usize::from(site.window_bytes) < JUMP_BYTES {
                return None;
            }
        }
        let bytes = usize::from(site.window_bytes);
        let enters = |offset: &usize| self.targets.contains(&(start + *offset as u64));
        if bytes > WINDOW_BYTES_MAX || (1..bytes).any(|offset| enters(&offset)) {
            return None;
        }
        site.original[..bytes].copy_from_slice(self.elf.at(start).ok()?.get(..bytes)?);
        Some(site)
    }

    /// Appends an instruction to the code of a site, if it works elsewhere.
    fn relocate(
        &self,
        moved: &Instruction,
        before: bool,
        site: &mut Site,
        info: &mut InstructionInfoFactory,
    ) -> Option<()> {
        let original = self.elf.at(moved.ip()).ok()?.get(..moved.len())?;
        let at = usize::from(site.before_bytes) + usize::from(site.after_bytes);
        let mut code = original.to_vec();
        match moved.flow_control() {
            FlowControl::Next => {
                if is_system_call(moved) || writes(moved, Register::RSP, info) {
                    return None;
                }
                if moved.is_ip_rel_memory_operand() {
                    let mut decoder = Decoder::with_ip(64, original, moved.ip(), DecoderOptions::NONE);
                    let again = decoder.decode();
                    let offsets = decoder.get_constant_offsets(&again);
                    if offsets.displacement_size() != 4 {
                        return None;
                    }
                    let offset = offsets.displacement_offset();
                    set_fixup(site, at + offset, moved.ip_rel_memory_address(), moved.len() - offset - 4)?;
                }
            }
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch if !before => {
                code = match *original {
                    [short @ 0x70..=0x7f, _] => vec![0x0f, 0x80 | short & 0x0f, 0, 0, 0, 0],
                    [0x0f, near @ 0x80..=0x8f, ..] => vec![0x0f, near, 0, 0, 0, 0],
                    [0xeb, _] | [0xe9, ..] => vec![0xe9, 0, 0, 0, 0],
                    _ => return None,
                };
                set_fixup(site, at + code.len() - 4, moved.near_branch_target(), 0)?;
            }
            FlowControl::Return if !before => {}
            _ => return None,
        }
        site.code.get_mut(at..at + code.len())?.copy_from_slice(&code);
        let bytes = if before { &mut site.before_bytes } else { &mut site.after_bytes };
        *bytes += code.len() as u8;
        Some(())
    }
}

/// Records the one displacement that a site may have.
fn set_fixup(site: &mut Site, at: usize, target: u64, tail: usize) -> Option<()> {
    if site.fixup != NO_FIXUP {
        return None;
    }
    site.fixup = at as u8;
    site.fixup_target = u32::try_from(target).ok()?;
    site.fixup_tail = tail as u8;
    Some(())
}

fn writes(instruction: &Instruction, register: Register, info: &mut InstructionInfoFactory) -> bool {
    let is_write = |access| {
        matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
    };
    let used = info.info(instruction).used_registers();
    used.iter().any(|used| used.register().full_register() == register && is_write(used.access()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hook::loading::instruction_lengths;
    use hook::table;
    use iced_x86::{Decoder, DecoderOptions};

    fn library(name: &str) -> Option<Vec<u8>> {
        let path = format!("/lib/x86_64-linux-gnu/{name}");
        let bytes = std::fs::read(&path).ok();
        if bytes.is_none() {
            eprintln!("SKIPPED: {path} is not on this machine");
        }
        bytes
    }

    #[test]
    fn the_lengths_of_the_librarys_decoder_are_those_of_this_one() {
        let libraries =
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libm.so.6"];
        let mut compared = 0;
        for bytes in libraries.iter().filter_map(|path| std::fs::read(path).ok()) {
            let elf = Elf::parse(&bytes).unwrap();
            for range in elf.functions().unwrap().ranges {
                let Ok(code) = elf.at(range.start) else { continue };
                let code = &code[..code.len().min((range.end - range.start) as usize)];
                for instruction in Decoder::with_ip(64, code, range.start, DecoderOptions::NONE).iter() {
                    if instruction.is_invalid() {
                        continue;
                    }
                    let at = (instruction.ip() - range.start) as usize;
                    let bytes = &code[at..at + instruction.len()];
                    assert_eq!(
                        instruction_lengths::length(&code[at..]),
                        Some(instruction.len()),
                        "{:x}: {bytes:x?}",
                        instruction.ip()
                    );
                    compared += 1;
                }
            }
        }
        if compared == 0 {
            eprintln!("SKIPPED: the C library is elsewhere");
        }
    }

    #[test]
    fn the_c_library_has_windows() {
        for name in ["libc.so.6", "ld-linux-x86-64.so.2"] {
            let Some(bytes) = library(name) else { return };
            let began = std::time::Instant::now();
            let analysis = analyse(&Elf::parse(&bytes).unwrap()).unwrap();
            let elapsed_ms = began.elapsed().as_millis();
            let sites = &analysis.sites;
            eprintln!(
                "{name}: {} sites, {} native, left alone {:x?}, {elapsed_ms} ms",
                sites.len(),
                analysis.native,
                analysis.left_alone
            );
            assert!(sites.iter().all(table::is_sound));
            assert!(sites.len() > 20 && analysis.left_alone.is_empty());
            assert!(count_calls(&Elf::parse(&bytes).unwrap()).unwrap() >= sites.len());
        }
    }

    #[test]
    fn windows_do_not_overlap() {
        let Some(bytes) = library("libc.so.6") else { return };
        let mut sites = analyse(&Elf::parse(&bytes).unwrap()).unwrap().sites;
        sites.sort_by_key(|site| site.window);
        for pair in sites.windows(2) {
            assert!(pair[0].window + u32::from(pair[0].window_bytes) <= pair[1].window, "{pair:?}");
        }
    }
}
