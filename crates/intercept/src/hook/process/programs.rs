//! The kind of an executable file, by its first bytes.

use core::ops::Range;

/// Number of bytes that are read: in every linked program they contain headers, notes and the
/// loader's name.
pub const HEAD_BYTES: usize = 4096;
/// Maximum length of a script's first line, as in the kernel.
const LINE_BYTES_MAX: usize = 255;

/// A kind of program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramKind {
    /// For an interpreter, perhaps with one argument: the range of each in the head.
    Script(Range<usize>, Option<Range<usize>>),
    /// With the loader of glibc, which loads the library.
    Dynamic,
    /// Without a loader.
    Static,
    /// With another loader.
    Foreign,
    /// With the loader, but most system calls come from its own code: a program in Go.
    Own,
    /// Of 32 bits: its calls have other numbers.
    Narrow,
    /// Anything else: the kernel reports the error.
    Unknown,
}

impl ProgramKind {
    /// Whether the library cannot be loaded into it by its own loader.
    pub fn needs_loader(&self) -> bool {
        matches!(self, ProgramKind::Static | ProgramKind::Foreign | ProgramKind::Own)
    }
}

/// The kind of a program.
pub fn kind_of(head: &[u8]) -> ProgramKind {
    if head.starts_with(b"#!") {
        return script(head);
    }
    program(head).unwrap_or(ProgramKind::Unknown)
}

fn script(head: &[u8]) -> ProgramKind {
    let head = &head[..head.len().min(LINE_BYTES_MAX)];
    let end = head.iter().position(|&byte| byte == b'\n').unwrap_or(head.len());
    let is_blank = |at: &usize| matches!(head[*at], b' ' | b'\t');
    let skip = |from: usize| (from..end).find(|at| !is_blank(at)).unwrap_or(end);
    let begin = skip(2);
    let stop = (begin..end).find(is_blank).unwrap_or(end);
    if begin == stop {
        return ProgramKind::Unknown;
    }
    let argument = skip(stop);
    let argument_end = (argument..end).rev().find(|at| !is_blank(at)).map_or(argument, |last| last + 1);
    ProgramKind::Script(begin..stop, (argument < argument_end).then_some(argument..argument_end))
}

/// The path of a program's interpreter, with its zero byte.
pub fn interpreter(head: &[u8]) -> Option<&[u8]> {
    let long = |at: usize| head.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let (table, count) = (usize::try_from(long(32)?).ok()?, (long(56)? & 0xffff) as usize);
    let mut headers = (0..count).filter_map(|index| table.checked_add(index * HEADER_BYTES));
    let header = headers.find(|&header| long(header).is_some_and(|kind| kind as u32 == PT_INTERP))?;
    let (start, bytes) = (usize::try_from(long(header + 8)?).ok()?, usize::try_from(long(header + 32)?).ok()?);
    head.get(start..start.checked_add(bytes)?).filter(|path| path.last() == Some(&0))
}

const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const HEADER_BYTES: usize = 56;
const EXECUTABLE: u16 = 2;

/// Whether a program arranges the memory of its process by itself, as valgrind's tools do: nothing
/// can be mapped beside it. It lies at a fixed address far above that of any linker.
pub fn arranges_memory(head: &[u8]) -> bool {
    const FAR: u64 = 1 << 28;
    let long = |at: usize| head.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let (Some(kind), Some(table), Some(count)) = (long(16), long(32), long(56)) else { return false };
    let headers = (0..count as u16)
        .filter_map(|index| usize::try_from(table).ok()?.checked_add(usize::from(index) * HEADER_BYTES));
    let mut loads = headers.filter(|&header| long(header).is_some_and(|kind| kind as u32 == PT_LOAD));
    kind as u16 == EXECUTABLE && loads.next().and_then(|header| long(header + 16)).is_some_and(|address| address >= FAR)
}

fn program(head: &[u8]) -> Option<ProgramKind> {
    const I386: u16 = 3;
    const X86_64: u16 = 62;
    const PT_NOTE: u32 = 4;
    const SHARED: u16 = 3;
    let half = |at: usize| head.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes));
    let word = |at: usize| head.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let long = |at: usize| head.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    if head.starts_with(b"\x7fELF\x01\x01") && matches!(half(18)?, I386 | X86_64) {
        return Some(ProgramKind::Narrow);
    }
    if !head.starts_with(b"\x7fELF\x02\x01") || half(18)? != X86_64 || !matches!(half(16)?, EXECUTABLE | SHARED) {
        return None;
    }
    let table = usize::try_from(long(32)?).ok()?;
    let mut kind = ProgramKind::Static;
    for index in 0..usize::from(half(56)?) {
        let header = table.checked_add(index * HEADER_BYTES)?;
        let (start, bytes) = (usize::try_from(long(header + 8)?).ok()?, usize::try_from(long(header + 32)?).ok()?);
        match (word(header)?, &kind) {
            (PT_INTERP, ProgramKind::Static) => {
                let loader = head.get(start..start.checked_add(bytes)?)?;
                let name = loader.rsplit(|&byte| byte == b'/').next()?;
                kind =
                    if name.starts_with(b"ld-linux-x86-64.so") { ProgramKind::Dynamic } else { ProgramKind::Foreign };
            }
            // Notes further behind are not those of Go's linker.
            (PT_NOTE, ProgramKind::Dynamic) if head.get(start..).is_some_and(|notes| has_go_note(notes, bytes)) => {
                kind = ProgramKind::Own;
            }
            _ => {}
        }
    }
    Some(kind)
}

/// Whether one of the notes is Go's.
fn has_go_note(notes: &[u8], bytes: usize) -> bool {
    const HEAD: usize = 12;
    let notes = &notes[..bytes.min(notes.len())];
    let word = |at: usize| notes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize);
    let mut at = 0;
    while let (Some(name), Some(content)) = (word(at), word(at + 4)) {
        let text = at + HEAD;
        if name == 4 && notes.get(text..text + 4) == Some(b"Go\0\0") {
            return true;
        }
        let padded = |bytes: usize| bytes.saturating_add(3) & !3;
        at = text.saturating_add(padded(name)).saturating_add(padded(content));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interpreter(line: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
        match kind_of(line) {
            ProgramKind::Script(interpreter, argument) => {
                Some((&line[interpreter], argument.map(|range| &line[range])))
            }
            _ => None,
        }
    }

    #[test]
    fn a_script_names_its_interpreter_and_one_argument() {
        assert_eq!(interpreter(b"#!/bin/sh\necho"), Some((&b"/bin/sh"[..], None)));
        assert_eq!(interpreter(b"#! /usr/bin/env  -S a b \t\nx"), Some((&b"/usr/bin/env"[..], Some(&b"-S a b"[..]))));
        assert_eq!(interpreter(b"#!/bin/sh"), Some((&b"/bin/sh"[..], None)));
        assert_eq!(interpreter(b"#!  \n/bin/sh"), None);
        assert_eq!(interpreter(b"#!"), None);
    }

    #[test]
    fn a_program_at_a_far_address_arranges_its_memory() {
        let mut head = vec![0; HEAD_BYTES];
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(16, &2u16.to_le_bytes());
        put(32, &64u64.to_le_bytes());
        put(56, &1u16.to_le_bytes());
        put(64, &1u32.to_le_bytes());
        put(64 + 16, &0x40_0000u64.to_le_bytes());
        assert!(!arranges_memory(&head));
        head[64 + 16..64 + 24].copy_from_slice(&0x5800_0000u64.to_le_bytes());
        assert!(arranges_memory(&head));
        assert!(!arranges_memory(&head[..60]), "truncated");
    }

    #[test]
    fn a_program_of_this_system_has_its_loader() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(kind_of(&bytes[..HEAD_BYTES]), ProgramKind::Dynamic);
        assert_eq!(super::interpreter(&bytes[..HEAD_BYTES]), Some(&b"/lib64/ld-linux-x86-64.so.2\0"[..]));
        for length in 0..HEAD_BYTES {
            // Truncation at any length does not panic.
            kind_of(&bytes[..length]);
            super::interpreter(&bytes[..length]);
        }
        let note = b"\x04\0\0\0\x08\0\0\0\x04\0\0\0Go\0\0buildid\0";
        assert!(has_go_note(note, note.len()) && !has_go_note(note, 12) && !has_go_note(&note[..15], note.len()));
        assert!(!has_go_note(&[0xff; 64], 64));
        let mut narrow = *b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x03\0";
        assert_eq!(kind_of(&narrow), ProgramKind::Narrow);
        narrow[18] = 62;
        assert_eq!(kind_of(&narrow), ProgramKind::Narrow, "x32");
        narrow[18] = 40;
        assert_eq!(kind_of(&narrow), ProgramKind::Unknown, "of another processor");
        assert_eq!(kind_of(b"hello"), ProgramKind::Unknown);
        assert_eq!(kind_of(b""), ProgramKind::Unknown);
    }
}
