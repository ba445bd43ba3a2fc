//! The paths of libraries that are built into a program.
//!
//! Invariant: nothing in a file is trusted. Malformed parts are skipped; the kernel and the loader
//! report them.

use crate::process::programs::HEAD_BYTES;
use libc::{PT_DYNAMIC, PT_LOAD, PT_TLS};

const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
/// Maximum number of strings of one program that are read.
const STRINGS_MAX: usize = 128;
const ENTRY_BYTES: usize = 16;

/// Reads from an offset of a file; returns the number of bytes.
pub type Read<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> usize;

/// Whether `matches` accepts a list of paths that is built into a program, or a needed library with
/// a slash in its name.
pub fn any_path(head: &[u8], read: Read<'_>, matches: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    any_string(head, read, &mut |string, is_list| (is_list || string.contains(&b'/')) && matches(string))
}

/// Whether `matches` accepts a list of paths that is built into a program or library, or the name
/// of a needed library; its second argument is whether the string is a list.
pub fn any_string(head: &[u8], read: Read<'_>, matches: &mut dyn FnMut(&[u8], bool) -> bool) -> bool {
    let mut room = [0u8; HEAD_BYTES];
    strings(head, &mut room, read).is_some_and(|(table, found)| look_at(table, found, &mut room, read, matches))
}

/// Bytes of thread-local storage of a program or library. `None`: its headers are not at its start.
pub fn thread_storage_bytes(head: &[u8]) -> Option<u64> {
    segments(head).next()?;
    let storage = segments(head).find(|segment| segment.kind == PT_TLS);
    Some(storage.map_or(0, |storage| storage.memory_bytes.saturating_add(storage.alignment)))
}

/// Relevant strings: the offset of each in the string table, and whether it is a list of paths.
type Strings = [Option<(u64, bool)>; STRINGS_MAX];

/// Where the string table begins in the file, and the relevant strings, of as many dynamic entries
/// as `room` has room for: programs have some thirty.
fn strings(head: &[u8], room: &mut [u8], read: Read<'_>) -> Option<(u64, Strings)> {
    let (offset, bytes) =
        segments(head).find(|segment| segment.kind == PT_DYNAMIC).map(|found| (found.offset, found.bytes))?;
    let room_bytes = room.len().min(usize::try_from(bytes).ok()?);
    let filled = read(offset, &mut room[..room_bytes]).min(room_bytes);
    let mut found = [None; STRINGS_MAX];
    let (mut count, mut table) = (0, None);
    for entry in room[..filled].chunks_exact(ENTRY_BYTES) {
        let (tag, value) = (long(entry, 0)?, long(entry, 8)?);
        match tag {
            0 => break,
            DT_STRTAB => table = Some(value),
            DT_NEEDED | DT_RPATH | DT_RUNPATH if count < STRINGS_MAX => {
                found[count] = Some((value, tag != DT_NEEDED));
                count += 1;
            }
            _ => {}
        }
    }
    let table = table?;
    let within = |segment: &Segment| {
        segment.kind == PT_LOAD && (segment.address..segment.address.saturating_add(segment.bytes)).contains(&table)
    };
    let segment = segments(head).find(within)?;
    Some((segment.offset.checked_add(table - segment.address)?, found))
}

fn look_at(
    table: u64,
    found: Strings,
    text: &mut [u8; HEAD_BYTES],
    read: Read<'_>,
    matches: &mut dyn FnMut(&[u8], bool) -> bool,
) -> bool {
    // Linkers put these strings close together: one read usually suffices.
    let (mut start, mut filled) = (0, 0);
    found.into_iter().flatten().any(|(offset, is_list)| {
        let piece = |start: u64, filled: usize, text: &[u8; HEAD_BYTES]| -> Option<(usize, usize)> {
            let from = usize::try_from(offset.checked_sub(start)?).ok()?;
            let length = text[..filled].get(from..)?.iter().position(|&byte| byte == 0)?;
            Some((from, length))
        };
        let mut place = piece(start, filled, text);
        if place.is_none() {
            start = offset;
            filled = read(table.saturating_add(offset), &mut text[..]).min(HEAD_BYTES);
            place = piece(start, filled, text);
        }
        // A string longer than any path: the loader may find something in it.
        let Some((from, length)) = place else { return filled == HEAD_BYTES };
        let string = &text[from..from + length];
        matches(string, is_list)
    })
}

/// A program header.
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
    memory_bytes: u64,
    alignment: u64,
}

fn segments(head: &[u8]) -> impl Iterator<Item = Segment> + '_ {
    const HEADER_BYTES: usize = 56;
    let is_elf = head.starts_with(b"\x7fELF\x02\x01");
    let table = long(head, 32).and_then(|table| usize::try_from(table).ok()).filter(|_| is_elf);
    let count = head.get(56..58).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u16::from_le_bytes(*bytes));
    (0..usize::from(count)).filter_map(move |index| {
        let header = head.get(table?.checked_add(index * HEADER_BYTES)?..)?;
        let kind = u32::from_le_bytes(*header.first_chunk()?);
        Some(Segment {
            kind,
            offset: long(header, 8)?,
            address: long(header, 16)?,
            bytes: long(header, 32)?,
            memory_bytes: long(header, 40)?,
            alignment: long(header, 48)?,
        })
    })
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paths built into a file, as far as they are read.
    fn paths(bytes: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        let mut read = |offset: u64, into: &mut [u8]| {
            let rest = bytes.get(offset as usize..).unwrap_or_default();
            let count = rest.len().min(into.len());
            into[..count].copy_from_slice(&rest[..count]);
            count
        };
        any_path(&bytes[..bytes.len().min(HEAD_BYTES)], &mut read, &mut |path| {
            found.push(String::from_utf8_lossy(path).into_owned());
            false
        });
        found
    }

    #[test]
    fn paths_that_are_built_in_are_found() {
        let scratch = tempfile::tempdir().unwrap();
        let program = scratch.path().join("program");
        let build = |arguments: &[&str]| {
            let mut compiler = std::process::Command::new("cc");
            compiler.args(["-x", "c", "-", "-o"]).arg(&program).args(arguments).current_dir(&scratch);
            let mut compiler = compiler.stdin(std::process::Stdio::piped()).spawn().ok()?;
            std::io::Write::write_all(&mut compiler.stdin.take()?, b"int main(void) { return 0; }").ok()?;
            compiler.wait().unwrap().success().then(|| std::fs::read(&program).unwrap())
        };
        let Some(plain) = build(&[]) else {
            eprintln!("SKIPPED: there is no C compiler on this machine");
            return;
        };
        assert_eq!(paths(&plain), Vec::<String>::new());
        let with_path = build(&["-Wl,-rpath,$ORIGIN/../lib:/opt/x", "-Wl,--enable-new-dtags"]).unwrap();
        assert_eq!(paths(&with_path), ["$ORIGIN/../lib:/opt/x"]);
        let old = build(&["-Wl,-rpath,/opt/y", "-Wl,--disable-new-dtags"]).unwrap();
        assert_eq!(paths(&old), ["/opt/y"]);
        std::fs::write(scratch.path().join("l.c"), "int x;").unwrap();
        let library =
            std::process::Command::new("cc").args(["-shared", "-o", "libl.so", "l.c"]).current_dir(&scratch).status();
        assert!(library.unwrap().success());
        assert_eq!(paths(&build(&["-x", "none", "-Wl,--no-as-needed", "./libl.so"]).unwrap()), ["./libl.so"]);
        for length in 0..plain.len().min(8192) {
            // Truncation at any length does not panic.
            paths(&with_path[..length]);
        }
    }
}
