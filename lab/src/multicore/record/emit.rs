//! Emits the few machine instructions that a recording needs beside those of the program.
//!
//! All of them leave the flags as they are, until the program's registers are restored. Data of the
//! recording has addresses of 31 bits, which instructions at any address can name.

use super::{REGISTERS, STACK_POINTER, Step};
use std::mem::offset_of;

const RAX: usize = 0;
const RCX: usize = 1;
const STEP_BYTES: i32 = size_of::<Step>() as i32;

/// Machine code that grows.
pub struct Emitter {
    next: *mut u8,
    room: usize,
}

/// The place of a register in a step.
const fn place(register: usize) -> i32 {
    (offset_of!(Step, registers) + 8 * register) as i32
}

impl Emitter {
    /// Emits to the `room` bytes from `next` on.
    ///
    /// # Safety
    ///
    /// The bytes are writable, and no running thread executes or uses them.
    pub unsafe fn new(next: *mut u8, room: usize) -> Emitter {
        Emitter { next, room }
    }

    /// The address of the next byte.
    pub fn at(&self) -> u64 {
        self.next.addr() as u64
    }

    /// Emits bytes; none if there is no room for them.
    pub fn bytes(&mut self, bytes: &[u8]) -> Option<()> {
        self.room = self.room.checked_sub(bytes.len())?;
        // SAFETY: there is room, by the contract of `new`.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.next, bytes.len());
            self.next = self.next.add(bytes.len());
        }
        Some(())
    }

    /// An instruction with the address of data at its end.
    fn with_data(&mut self, instruction: &[u8], data: u32) -> Option<()> {
        self.bytes(instruction)?;
        self.bytes(&data.to_le_bytes())
    }

    /// `mov register, [data]`.
    pub fn load(&mut self, register: usize, data: u32) -> Option<()> {
        self.with_data(&[wide(register, 0), 0x8b, 0x04 | low(register) << 3, 0x25], data)
    }

    /// `mov [data], register`.
    fn store(&mut self, register: usize, data: u32) -> Option<()> {
        self.with_data(&[wide(register, 0), 0x89, 0x04 | low(register) << 3, 0x25], data)
    }

    /// `mov [rax + offset], register`.
    fn store_at(&mut self, offset: i32, register: usize) -> Option<()> {
        self.bytes(&[wide(register, 0), 0x89, 0x80 | low(register) << 3])?;
        self.bytes(&offset.to_le_bytes())
    }

    /// `jmp [data]`.
    pub fn jump(&mut self, data: u32) -> Option<()> {
        self.with_data(&[0xff, 0x24, 0x25], data)
    }

    /// `mov dword [data], value`.
    pub fn store_value(&mut self, data: u32, value: u32) -> Option<()> {
        self.with_data(&[0xc7, 0x04, 0x25], data)?;
        self.bytes(&value.to_le_bytes())
    }

    /// Writes the state of the program as the next step. It counts if `advances`.
    pub fn step(&mut self, slots: &Slots, at: u64, advances: bool) -> Option<()> {
        self.store(RAX, slots.rax)?;
        // lahf; seto al; mov [flags], ax
        self.bytes(&[0x9f, 0x0f, 0x90, 0xc0])?;
        self.with_data(&[0x66, 0x89, 0x04, 0x25], slots.flags)?;
        self.load(RAX, slots.trace)?;
        (RCX..REGISTERS).try_for_each(|register| self.store_at(place(register), register))?;
        self.load(RCX, slots.rax)?;
        self.store_at(place(RAX), RCX)?;
        // movzx ecx, byte [flags + 1]
        self.with_data(&[0x0f, 0xb6, 0x0c, 0x25], slots.flags + 1)?;
        self.store_at(offset_of!(Step, flags) as i32, RCX)?;
        // mov rcx, at
        self.bytes(&[0x48, 0xb9])?;
        self.bytes(&at.to_le_bytes())?;
        self.store_at(offset_of!(Step, at) as i32, RCX)?;
        // mov rcx, [rax + place]
        self.bytes(&[0x48, 0x8b, 0x88])?;
        self.bytes(&place(RCX).to_le_bytes())?;
        if advances {
            // lea rax, [rax + STEP_BYTES]
            self.bytes(&[0x48, 0x8d, 0x80])?;
            self.bytes(&STEP_BYTES.to_le_bytes())?;
            self.store(RAX, slots.trace)?;
        }
        self.load(RAX, slots.rax)
    }

    /// Leaves the program for the function at `slots.dispatch`, and resumes it as that one says.
    pub fn exit(&mut self, slots: &Slots, components: u32) -> Option<()> {
        self.load(STACK_POINTER, slots.stack)?;
        // xsave64 [vectors] with the mask in edx:eax
        let mask = |emitter: &mut Emitter| {
            emitter.bytes(&[0xb8])?;
            emitter.bytes(&components.to_le_bytes())?;
            emitter.bytes(&[0x31, 0xd2])
        };
        mask(self)?;
        self.with_data(&[0x48, 0x0f, 0xae, 0x24, 0x25], slots.vectors)?;
        // mov edi, header; call [dispatch]
        self.with_data(&[0xbf], slots.header)?;
        self.with_data(&[0xff, 0x14, 0x25], slots.dispatch)?;
        mask(self)?;
        // xrstor64 [vectors]
        self.with_data(&[0x48, 0x0f, 0xae, 0x2c, 0x25], slots.vectors)?;
        // movzx eax, word [flags]; add al, 127 (overflows if al is 1); sahf
        self.with_data(&[0x0f, 0xb7, 0x04, 0x25], slots.flags)?;
        self.bytes(&[0x04, 0x7f, 0x9e])?;
        (0..REGISTERS).rev().try_for_each(|register| self.load(register, slots.registers + 8 * register as u32))?;
        self.jump(slots.target)
    }
}

/// Addresses of the data that emitted instructions use.
pub struct Slots {
    /// The argument of the function at `dispatch`.
    pub header: u32,
    /// Register 0 while it serves the recording.
    pub rax: u32,
    /// The flags: overflow in the first byte, the others as `lahf` gives them in the second.
    pub flags: u32,
    /// Where the next step is written.
    pub trace: u32,
    /// Where the program is resumed.
    pub target: u32,
    /// The function that chooses `target`.
    pub dispatch: u32,
    /// Its stack.
    pub stack: u32,
    /// The registers with which the program is resumed.
    pub registers: u32,
    /// The vector registers meanwhile.
    pub vectors: u32,
}

/// The prefix of an instruction with a wide operand.
fn wide(register: usize, base: usize) -> u8 {
    0x48 | (register as u8 >> 3) << 2 | base as u8 >> 3
}

fn low(register: usize) -> u8 {
    register as u8 & 7
}
