//! Reads shared libraries and programs, as far as the analysis and the launcher need it.
//!
//! Invariant: nothing in a file is trusted; every read is checked against the file's bounds, and a
//! violation returns [`BadElf`].

use libc::{PT_DYNAMIC, PT_GNU_EH_FRAME, PT_INTERP, PT_LOAD, PT_NOTE};
use std::ops::Range;

/// The file cannot be read: not ELF, not for this machine, or truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an x86-64 ELF file, or damaged")]
pub struct BadElf;

type Result<T> = std::result::Result<T, BadElf>;

const FLAG_EXECUTE: u32 = 1;
const NT_GNU_BUILD_ID: u32 = 3;

/// A program header.
#[derive(Debug, Clone, Copy)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
}

/// An ELF file in memory.
#[derive(Debug)]
pub struct Elf<'b> {
    bytes: &'b [u8],
    segments: Vec<Segment>,
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(BadElf)?;
    Ok(u16::from_le_bytes(*found))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(BadElf)?;
    Ok(u32::from_le_bytes(*found))
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(BadElf)?;
    Ok(u64::from_le_bytes(*found))
}

impl<'b> Elf<'b> {
    /// Reads the headers.
    pub fn parse(bytes: &'b [u8]) -> Result<Elf<'b>> {
        const CLASS_64: u8 = 2;
        const LITTLE_ENDIAN: u8 = 1;
        const MACHINE_X86_64: u16 = 62;
        if bytes.get(..6) != Some(&[0x7f, b'E', b'L', b'F', CLASS_64, LITTLE_ENDIAN])
            || u16_at(bytes, 18)? != MACHINE_X86_64
        {
            return Err(BadElf);
        }
        let table = u64_at(bytes, 32)? as usize;
        let (size, count) = (usize::from(u16_at(bytes, 54)?), usize::from(u16_at(bytes, 56)?));
        let mut segments = Vec::with_capacity(count);
        for index in 0..count {
            let header = bytes.get(table.checked_add(index * size).ok_or(BadElf)?..).ok_or(BadElf)?;
            segments.push(Segment {
                kind: u32_at(header, 0)?,
                flags: u32_at(header, 4)?,
                offset: u64_at(header, 8)?,
                address: u64_at(header, 16)?,
                file_bytes: u64_at(header, 32)?,
            });
        }
        Ok(Elf { bytes, segments })
    }

    fn content(&self, segment: &Segment) -> Result<&'b [u8]> {
        let start = usize::try_from(segment.offset).map_err(|_| BadElf)?;
        let bytes = usize::try_from(segment.file_bytes).map_err(|_| BadElf)?;
        self.bytes.get(start..start.checked_add(bytes).ok_or(BadElf)?).ok_or(BadElf)
    }

    /// The file's content from an address to the end of its segment.
    pub fn at(&self, address: u64) -> Result<&'b [u8]> {
        let within = |segment: &&Segment| {
            segment.kind == PT_LOAD
                && address.checked_sub(segment.address).is_some_and(|offset| offset < segment.file_bytes)
        };
        let segment = self.segments.iter().find(within).ok_or(BadElf)?;
        self.content(segment)?.get((address - segment.address) as usize..).ok_or(BadElf)
    }

    fn u32_of(&self, address: u64) -> Result<u32> {
        u32_at(self.at(address)?, 0)
    }

    /// Addresses and contents of executable segments.
    pub fn code(&self) -> Result<Vec<(u64, &'b [u8])>> {
        let executable = |segment: &&Segment| segment.kind == PT_LOAD && segment.flags & FLAG_EXECUTE != 0;
        self.segments.iter().filter(executable).map(|segment| Ok((segment.address, self.content(segment)?))).collect()
    }

    /// The program that loads this one: absent in static programs.
    pub fn interpreter(&self) -> Result<Option<&'b [u8]>> {
        let Some(segment) = self.segments.iter().find(|segment| segment.kind == PT_INTERP) else { return Ok(None) };
        let path = self.content(segment)?;
        Ok(Some(path.split(|&byte| byte == 0).next().unwrap_or(path)))
    }

    /// The build-id, which identifies these bytes of code.
    pub fn build_id(&self) -> Result<Option<&'b [u8]>> {
        for segment in self.segments.iter().filter(|segment| segment.kind == PT_NOTE) {
            let mut notes = self.content(segment)?;
            while notes.len() >= 12 {
                let (name, content, kind) = (u32_at(notes, 0)? as usize, u32_at(notes, 4)? as usize, u32_at(notes, 8)?);
                let start = 12 + name.next_multiple_of(4);
                let found = notes.get(start..start.checked_add(content).ok_or(BadElf)?).ok_or(BadElf)?;
                if kind == NT_GNU_BUILD_ID && notes.get(12..16) == Some(b"GNU\0") {
                    return Ok(Some(found));
                }
                notes = notes.get(start + content.next_multiple_of(4)..).unwrap_or_default();
            }
        }
        Ok(None)
    }

    fn dynamic(&self) -> Result<Vec<(u64, u64)>> {
        let Some(segment) = self.segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else {
            return Ok(Vec::new());
        };
        let content = self.content(segment)?;
        content.chunks_exact(16).map(|entry| Ok((u64_at(entry, 0)?, u64_at(entry, 8)?))).collect()
    }

    /// Every address that a relocation or a dynamic symbol publishes at run time.
    pub fn exposed_addresses(&self) -> Result<Vec<u64>> {
        const DT_SYMTAB: u64 = 6;
        const DT_STRTAB: u64 = 5;
        const DT_RELA: u64 = 7;
        const DT_RELASZ: u64 = 8;
        const DT_JMPREL: u64 = 23;
        const DT_PLTRELSZ: u64 = 2;
        const DT_RELRSZ: u64 = 35;
        const DT_RELR: u64 = 36;
        let dynamic = self.dynamic()?;
        let value = |tag| dynamic.iter().find(|entry| entry.0 == tag).map(|entry| entry.1);
        let mut found = Vec::new();
        for (table, size) in [(DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)] {
            if let (Some(table), Some(size)) = (value(table), value(size)) {
                for relocation in self.at(table)?.get(..size as usize).ok_or(BadElf)?.chunks_exact(24) {
                    found.push(u64_at(relocation, 16)?);
                }
            }
        }
        if let (Some(table), Some(size)) = (value(DT_RELR), value(DT_RELRSZ)) {
            self.relative_words(self.at(table)?.get(..size as usize).ok_or(BadElf)?, &mut found)?;
        }
        // Linkers put the strings directly after the symbols; anything else between them only
        // excludes more addresses.
        if let (Some(symbols), Some(strings)) = (value(DT_SYMTAB), value(DT_STRTAB)) {
            let bytes = strings.checked_sub(symbols).ok_or(BadElf)? as usize;
            for symbol in self.at(symbols)?.get(..bytes).ok_or(BadElf)?.chunks_exact(24) {
                found.push(u64_at(symbol, 8)?);
            }
        }
        Ok(found)
    }

    /// The words that a packed table of relative relocations names.
    fn relative_words(&self, table: &[u8], found: &mut Vec<u64>) -> Result<()> {
        let mut next = 0u64;
        for entry in table.chunks_exact(8) {
            let entry = u64_at(entry, 0)?;
            if entry & 1 == 0 {
                found.push(u64_at(self.at(entry)?, 0)?);
                next = entry.wrapping_add(8);
                continue;
            }
            for bit in (1..64).filter(|bit| entry >> bit & 1 == 1) {
                found.push(u64_at(self.at(next.wrapping_add((bit - 1) * 8))?, 0)?);
            }
            next = next.wrapping_add(63 * 8);
        }
        Ok(())
    }

    /// The functions that the unwind tables describe, in order, and the landing pads of those that
    /// catch.
    pub fn functions(&self) -> Result<Functions> {
        /// Encodings that all linkers for this machine use: relative to the table, or to the field,
        /// four bytes with sign.
        const TABLE_ENCODING: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
        let segment = self.segments.iter().find(|segment| segment.kind == PT_GNU_EH_FRAME).ok_or(BadElf)?;
        let table = self.content(segment)?;
        if table.get(..4) != Some(&TABLE_ENCODING) {
            return Err(BadElf);
        }
        let count = u32_at(table, 8)? as usize;
        let mut functions = Functions { ranges: Vec::with_capacity(count), landing_pads: Vec::new() };
        for index in 0..count {
            let descriptor = segment.address.wrapping_add_signed(i64::from(u32_at(table, 12 + index * 8 + 4)? as i32));
            self.function(descriptor, &mut functions)?;
        }
        functions.ranges.sort_by_key(|range| range.start);
        Ok(functions)
    }

    fn function(&self, descriptor: u64, functions: &mut Functions) -> Result<()> {
        let common = (descriptor + 4).checked_sub(u64::from(self.u32_of(descriptor + 4)?)).ok_or(BadElf)?;
        let augmentation = Augmentation::parse(self.at(common)?.get(9..).ok_or(BadElf)?)?;
        let start = (descriptor + 8).wrapping_add_signed(i64::from(self.u32_of(descriptor + 8)? as i32));
        let bytes = u64::from(self.u32_of(descriptor + 12)?);
        functions.ranges.push(start..start.checked_add(bytes).ok_or(BadElf)?);
        if augmentation.has_handlers {
            // Length of the augmentation (one byte in practice), then the pointer.
            let field = descriptor + 17;
            let relative = self.u32_of(field)? as i32;
            if relative != 0 {
                let area = field.wrapping_add_signed(i64::from(relative));
                self.landing_pads(area, start, &mut functions.landing_pads)?;
            }
        }
        Ok(())
    }

    fn landing_pads(&self, area: u64, function: u64, found: &mut Vec<u64>) -> Result<()> {
        const OMITTED: u8 = 0xff;
        const ULEB: u8 = 1;
        let mut reader = Reader { bytes: self.at(area)? };
        if reader.byte()? != OMITTED {
            return Err(BadElf);
        }
        if reader.byte()? != OMITTED {
            reader.uleb()?;
        }
        if reader.byte()? != ULEB {
            return Err(BadElf);
        }
        let bytes = reader.uleb()? as usize;
        let mut sites = Reader { bytes: reader.bytes.get(..bytes).ok_or(BadElf)? };
        while !sites.bytes.is_empty() {
            let (_start, _length, pad, _action) = (sites.uleb()?, sites.uleb()?, sites.uleb()?, sites.uleb()?);
            if pad != 0 {
                found.push(function.wrapping_add(pad));
            }
        }
        Ok(())
    }
}

/// Content of the unwind tables.
#[derive(Debug)]
pub struct Functions {
    /// Code of each function, by address.
    pub ranges: Vec<Range<u64>>,
    /// Where unwinding may enter.
    pub landing_pads: Vec<u64>,
}

struct Augmentation {
    has_handlers: bool,
}

impl Augmentation {
    /// Parses a common entry, from its augmentation string on. Pointers to code must be relative
    /// and have four bytes.
    fn parse(entry: &[u8]) -> Result<Augmentation> {
        const RELATIVE_4: u8 = 0x1b;
        let mut reader = Reader { bytes: entry };
        let mut letters = Vec::new();
        loop {
            match reader.byte()? {
                0 => break,
                token_file => letters.push(token_file),
            }
        }
        if letters.first() != Some(&b'z') {
            return Err(BadElf);
        }
        reader.uleb()?; // code alignment
        reader.uleb()?; // data alignment: signed, but as long
        reader.uleb()?; // return address column
        reader.uleb()?; // length
        let mut has_handlers = false;
        for token_file in &letters[1..] {
            match token_file {
                b'R' if reader.byte()? != RELATIVE_4 => return Err(BadElf),
                b'R' | b'S' | b'B' => {}
                b'L' => {
                    if reader.byte()? & 0x0f != RELATIVE_4 & 0x0f {
                        return Err(BadElf);
                    }
                    has_handlers = true;
                }
                b'P' => {
                    let encoding = reader.byte()?;
                    let bytes =
                        if encoding & 0x0f == 0x0b || encoding & 0x0f == 0x03 { 4 } else { return Err(BadElf) };
                    reader.skip(bytes)?;
                }
                _ => return Err(BadElf),
            }
        }
        Ok(Augmentation { has_handlers })
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
}

impl Reader<'_> {
    fn byte(&mut self) -> Result<u8> {
        let (&first, rest) = self.bytes.split_first().ok_or(BadElf)?;
        self.bytes = rest;
        Ok(first)
    }

    fn skip(&mut self, bytes: usize) -> Result<()> {
        self.bytes = self.bytes.get(bytes..).ok_or(BadElf)?;
        Ok(())
    }

    fn uleb(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(BadElf)
    }
}
