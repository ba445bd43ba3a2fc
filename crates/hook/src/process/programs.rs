//! The kind of an executable file, by its first bytes, to which [`gather`] adds headers from
//! elsewhere.

use core::ops::Range;

/// Number of bytes that are read: in every program as its linker made it they contain headers,
/// notes and the loader's name.
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

    /// Whether it is a program whose headers are known.
    pub fn has_headers(&self) -> bool {
        self.needs_loader() || *self == ProgramKind::Dynamic
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
    let long = |at: usize| long(head, at);
    let (table, count) = (usize::try_from(long(32)?).ok()?, (long(56)? & 0xffff) as usize);
    let mut headers = (0..count).filter_map(|index| table.checked_add(index * HEADER_BYTES));
    let header = headers.find(|&header| long(header).is_some_and(|kind| kind as u32 == PT_INTERP))?;
    let (start, bytes) = (usize::try_from(long(header + 8)?).ok()?, usize::try_from(long(header + 32)?).ok()?);
    head.get(start..start.checked_add(bytes)?).filter(|path| path.last() == Some(&0))
}

/// Reads headers, notes and the loader's name of a program that has them elsewhere, as tools that
/// edit programs leave it (patchelf): to its first bytes, of which the file's header stays. Returns
/// how many bytes are valid. Offsets of the code and of other content stay the file's.
pub fn gather(head: &mut [u8; HEAD_BYTES], bytes: usize, read: &mut dyn FnMut(u64, &mut [u8]) -> usize) -> usize {
    let is_behind = |[kind, offset, length]: [u64; 3]| {
        matches!(kind as u32, PT_INTERP | PT_NOTE) && offset.saturating_add(length) > bytes as u64
    };
    // A shorter file has nothing behind its first bytes.
    let Some((table, count)) = table_of(head).filter(|_| bytes == HEAD_BYTES) else { return bytes };
    let end = table.saturating_add((count * HEADER_BYTES) as u64);
    let mut listed = (0..count).filter_map(|index| part_of(head, usize::try_from(table).ok()? + index * HEADER_BYTES));
    if end > bytes as u64 || listed.any(is_behind) { gather_parts(head, (table, count), read) } else { bytes }
}

#[cold]
#[inline(never)]
fn gather_parts(
    head: &mut [u8; HEAD_BYTES],
    (table, count): (u64, usize),
    read: &mut dyn FnMut(u64, &mut [u8]) -> usize,
) -> usize {
    /// Enough for each note by which a program is judged.
    const NOTE_BYTES_MAX: u64 = 256;
    let mut end = FILE_HEADER_BYTES + count * HEADER_BYTES;
    if end > HEAD_BYTES || read(table, &mut head[FILE_HEADER_BYTES..end]) < end - FILE_HEADER_BYTES {
        return HEAD_BYTES;
    }
    head[TABLE_OFFSET..TABLE_OFFSET + 8].copy_from_slice(&(FILE_HEADER_BYTES as u64).to_le_bytes());
    head[end..].fill(0);
    for sought in [PT_INTERP, PT_NOTE] {
        for at in (0..count).map(|index| FILE_HEADER_BYTES + index * HEADER_BYTES) {
            let Some([kind, offset, bytes]) = part_of(head, at).filter(|[kind, ..]| *kind as u32 == sought) else {
                continue;
            };
            let wanted = if sought == PT_NOTE { bytes.min(NOTE_BYTES_MAX) } else { bytes };
            let place = usize::try_from(wanted).ok().and_then(|wanted| head.get_mut(end..end.checked_add(wanted)?));
            let is_read = place.is_some_and(|place| read(offset, place) == place.len());
            let (start, length) = if is_read { (end, wanted as usize) } else { (0, 0) };
            for (field, value) in [(at, kind), (at + 8, start as u64), (at + 32, length as u64)] {
                head[field..field + 8].copy_from_slice(&value.to_le_bytes());
            }
            end = (end + length).next_multiple_of(8).min(HEAD_BYTES);
        }
    }
    end
}

/// Offset and number of the headers of a program of 64 bits.
fn table_of(head: &[u8]) -> Option<(u64, usize)> {
    let count = u16::from_le_bytes(*head.get(56..)?.first_chunk()?);
    head.starts_with(b"\x7fELF\x02\x01").then_some((long(head, TABLE_OFFSET)?, usize::from(count)))
}

/// Kind with flags, offset and length of the part that a header describes.
fn part_of(head: &[u8], header: usize) -> Option<[u64; 3]> {
    Some([long(head, header)?, long(head, header.checked_add(8)?)?, long(head, header.checked_add(32)?)?])
}

fn long(head: &[u8], at: usize) -> Option<u64> {
    head.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const HEADER_BYTES: usize = 56;
const FILE_HEADER_BYTES: usize = 64;
/// Where the file's header has the offset of the others.
const TABLE_OFFSET: usize = 32;
const EXECUTABLE: u16 = 2;

/// Whether a program arranges the memory of its process by itself, as valgrind's tools do: nothing
/// can be mapped beside it. It lies at a fixed address far above that of any linker.
pub fn arranges_memory(head: &[u8]) -> bool {
    const FAR: u64 = 1 << 28;
    let long = |at: usize| long(head, at);
    let (Some(kind), Some(table), Some(count)) = (long(16), long(32), long(56)) else { return false };
    let headers = (0..count as u16)
        .filter_map(|index| usize::try_from(table).ok()?.checked_add(usize::from(index) * HEADER_BYTES));
    let mut loads = headers.filter(|&header| long(header).is_some_and(|kind| kind as u32 == PT_LOAD));
    kind as u16 == EXECUTABLE && loads.next().and_then(|header| long(header + 16)).is_some_and(|address| address >= FAR)
}

fn program(head: &[u8]) -> Option<ProgramKind> {
    const I386: u16 = 3;
    const X86_64: u16 = 62;
    const SHARED: u16 = 3;
    let half = |at: usize| head.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes));
    let word = |at: usize| head.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let long = |at: usize| long(head, at);
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

    /// A program of which the loader's name, and the headers if `moves_table`, are at its end.
    fn edited(program: &[u8], moves_table: bool) -> Vec<u8> {
        let mut bytes = program.to_vec();
        let (table, count) = table_of(&bytes).unwrap();
        let headers = |table: u64| (0..count).map(move |index| table as usize + index * HEADER_BYTES);
        bytes.resize(bytes.len().max(HEAD_BYTES).next_multiple_of(8), 0);
        for header in headers(table) {
            let [kind, offset, length] = part_of(&bytes, header).unwrap();
            if kind as u32 == PT_INTERP {
                let end = bytes.len() as u64;
                bytes.extend_from_within(offset as usize..(offset + length) as usize);
                bytes[offset as usize..(offset + length) as usize].fill(b'x');
                bytes[header + 8..header + 16].copy_from_slice(&end.to_le_bytes());
            }
        }
        if moves_table {
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            let end = bytes.len() as u64;
            let old = table as usize..table as usize + count * HEADER_BYTES;
            bytes.extend_from_within(old.clone());
            bytes[old].fill(0xff);
            bytes[TABLE_OFFSET..TABLE_OFFSET + 8].copy_from_slice(&end.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn headers_behind_the_first_bytes_are_gathered() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for moves_table in [false, true] {
            let bytes = edited(&program, moves_table);
            let mut head: [u8; HEAD_BYTES] = *bytes.first_chunk().unwrap();
            assert_eq!(kind_of(&head), ProgramKind::Unknown);
            let mut reads = 0;
            let mut read = |offset: u64, into: &mut [u8]| {
                reads += 1;
                into.copy_from_slice(&bytes[offset as usize..offset as usize + into.len()]);
                into.len()
            };
            let length = gather(&mut head, HEAD_BYTES, &mut read);
            assert_eq!(kind_of(&head[..length]), ProgramKind::Dynamic);
            assert_eq!(super::interpreter(&head[..length]), Some(&b"/lib64/ld-linux-x86-64.so.2\0"[..]));
            assert!(reads > 1);
        }
    }

    #[test]
    fn the_first_bytes_of_other_files_stay() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut absent = |_: u64, _: &mut [u8]| 0;
        let mut head: [u8; HEAD_BYTES] = *program.first_chunk().unwrap();
        assert_eq!((gather(&mut head, HEAD_BYTES, &mut absent), head), (HEAD_BYTES, *program.first_chunk().unwrap()));
        for changed in [32, 39, 56, 57] {
            // Impossible offsets and numbers of headers.
            let mut head: [u8; HEAD_BYTES] = *program.first_chunk().unwrap();
            head[changed] = 0xff;
            assert!(gather(&mut head, HEAD_BYTES, &mut absent) <= HEAD_BYTES);
            kind_of(&head);
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
