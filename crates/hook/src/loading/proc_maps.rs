//! Mappings of this process, from /proc/self/maps.

use crate::abi::sys;

/// Longest line with a complete path.
const LINE_BYTES_MAX: usize = 4096 + 128;

/// One mapping.
#[derive(Debug)]
pub struct Mapping<'l> {
    /// First address.
    pub start: usize,
    /// Address after the last.
    pub end: usize,
    /// Offset of its start in the file.
    pub offset: u64,
    /// The file; empty if there is none.
    pub path: &'l [u8],
    /// Whether it can be executed.
    pub is_code: bool,
    /// Whether it can be accessed at all.
    pub is_accessible: bool,
}

/// Calls `visit` for every mapping, in the order of addresses.
// Its buffer is not to enlarge the stack of starts that do without.
#[inline(never)]
pub fn for_each(mut visit: impl FnMut(&Mapping<'_>)) -> Result<(), i64> {
    let file = sys::open(b"/proc/self/maps\0", libc::O_RDONLY)?;
    let mut buffer = [0u8; 2 * LINE_BYTES_MAX];
    let mut held = 0;
    loop {
        let count = file.read(&mut buffer[held..])?;
        held += count;
        let mut begin = 0;
        while let Some(length) = buffer[begin..held].iter().position(|&byte| byte == b'\n') {
            if let Some(mapping) = parse(&buffer[begin..begin + length]) {
                visit(&mapping);
            }
            begin += length + 1;
        }
        if count == 0 {
            return Ok(());
        }
        buffer.copy_within(begin..held, 0);
        held -= begin;
        if held == buffer.len() {
            // A line longer than any path: its rest must not be parsed as a line.
            return Err(-i64::from(libc::ENAMETOOLONG));
        }
    }
}

fn parse(line: &[u8]) -> Option<Mapping<'_>> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut addresses = fields.next()?.split(|&byte| byte == b'-');
    let (start, end) = (hexadecimal(addresses.next()?)? as usize, hexadecimal(addresses.next()?)? as usize);
    let rights = fields.next()?;
    let (is_code, is_accessible) = (rights.get(2) == Some(&b'x'), !rights.starts_with(b"---"));
    let offset = hexadecimal(fields.next()?)?;
    let (_device, _inode) = (fields.next()?, fields.next()?);
    let padded = fields.next().unwrap_or_default();
    let path = padded.iter().position(|&byte| byte != b' ').map_or(&[][..], |first| &padded[first..]);
    Some(Mapping { start, end, offset, path, is_code, is_accessible })
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |value, &digit| Some(value << 4 | u64::from(char::from(digit).to_digit(16)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed() {
        let line = b"7f3a5c026000-7f3a5c17b000 r-xp 00026000 fe:00 1234                       /usr/lib/a b/libc.so.6";
        let mapping = parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end, mapping.offset), (0x7f3a_5c02_6000, 0x7f3a_5c17_b000, 0x26000));
        assert_eq!((mapping.path, mapping.is_code), (&b"/usr/lib/a b/libc.so.6"[..], true));
        let anonymous = parse(b"7ffd1000-7ffd2000 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!((anonymous.path, anonymous.is_code), (&b""[..], false));
        assert!(parse(b"nonsense").is_none());
    }

    #[test]
    fn our_own_code_is_found() {
        let here = our_own_code_is_found as *const () as usize;
        let mut found = false;
        for_each(|mapping| found |= mapping.is_code && (mapping.start..mapping.end).contains(&here)).unwrap();
        assert!(found);
    }
}
