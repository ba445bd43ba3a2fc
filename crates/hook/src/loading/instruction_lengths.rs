//! Lengths of instructions: enough decoding to see whether two bytes are an instruction or parts
//! of others.
//!
//! Invariant: the result only serves decisions that are safe either way. A test compares the
//! lengths with a disassembler's over whole libraries.

/// The part of an instruction after the opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operands {
    Bad,
    Nothing,
    /// This many bytes.
    Bytes(usize),
    /// Two bytes with the operand size prefix, else four.
    Wide,
    /// As `Wide`, or eight.
    WideOrFull,
    /// An address.
    Address,
    /// A ModRM byte, and this many bytes.
    Modrm(usize),
    ModrmWide,
    /// `ModrmWide` if its middle bits are 0 or 1, as in `test`.
    ModrmTest(usize),
    ModrmTestWide,
}

/// The length of the instruction at the beginning of `code`; `None` if it is incomplete or unknown.
pub fn length(code: &[u8]) -> Option<usize> {
    let mut at = 0;
    let (mut short, mut full) = (false, false);
    let mut is_address_short = false;
    loop {
        match *code.get(at)? {
            0x66 => short = true,
            0x67 => is_address_short = true,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf0 | 0xf2 | 0xf3 => {}
            _ => break,
        }
        at += 1;
    }
    if let prefix @ 0x40..=0x4f = *code.get(at)? {
        full = prefix & 8 != 0;
        at += 1;
    }
    let opcode = *code.get(at)?;
    at += 1;
    let byte = |at: usize| code.get(at).copied();
    let rest = match opcode {
        0x0f => {
            let second = byte(at)?;
            at += 1;
            match second {
                0x38 => {
                    at += 1;
                    Operands::Modrm(0)
                }
                0x3a => {
                    at += 1;
                    Operands::Modrm(1)
                }
                _ => second_map(second),
            }
        }
        0xc5 => {
            at += 2;
            vector(1, byte(at - 1)?)
        }
        0xc4 => {
            at += 3;
            vector(byte(at - 3)? & 0x1f, byte(at - 1)?)
        }
        0x62 => {
            at += 4;
            vector(byte(at - 4)? & 7, byte(at - 1)?)
        }
        _ => first_map(opcode),
    };
    let wide = if short && !full { 2 } else { 4 };
    let is_test = |at: usize| byte(at).map(|modrm| modrm >> 3 & 7 < 2);
    let end = match rest {
        Operands::Bad => return None,
        Operands::Nothing => at,
        Operands::Bytes(bytes) => at + bytes,
        Operands::Wide => at + wide,
        Operands::WideOrFull => at + if full { 8 } else { wide },
        Operands::Address => at + if is_address_short { 4 } else { 8 },
        Operands::Modrm(bytes) => modrm(code, at)? + bytes,
        Operands::ModrmWide => modrm(code, at)? + wide,
        Operands::ModrmTest(bytes) => modrm(code, at)? + if is_test(at)? { bytes } else { 0 },
        Operands::ModrmTestWide => modrm(code, at)? + if is_test(at)? { wide } else { 0 },
    };
    (end <= code.len()).then_some(end)
}

/// The offset after a ModRM byte and its operands.
fn modrm(code: &[u8], at: usize) -> Option<usize> {
    let modrm = *code.get(at)?;
    let (kind, base) = (modrm >> 6, modrm & 7);
    let mut end = at + 1;
    if kind == 3 {
        return Some(end);
    }
    let mut base = base;
    if base == 4 {
        base = *code.get(end)? & 7;
        end += 1;
    }
    Some(match kind {
        0 if base == 5 => end + 4,
        0 => end,
        1 => end + 1,
        _ => end + 4,
    })
}

fn first_map(opcode: u8) -> Operands {
    match opcode {
        0x00..=0x3f => match opcode & 7 {
            0..=3 => Operands::Modrm(0),
            4 => Operands::Bytes(1),
            5 => Operands::Wide,
            _ => Operands::Bad,
        },
        0x50..=0x5f | 0x6c..=0x6f | 0x90..=0x99 | 0x9b..=0x9f => Operands::Nothing,
        0x63 | 0x84..=0x8f | 0xd0..=0xd3 | 0xd8..=0xdf | 0xfe | 0xff => Operands::Modrm(0),
        0x68 | 0xa9 => Operands::Wide,
        0x69 | 0x81 | 0xc7 => Operands::ModrmWide,
        0x6a | 0x70..=0x7f | 0xa8 | 0xb0..=0xb7 | 0xcd | 0xe0..=0xe7 | 0xeb => Operands::Bytes(1),
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 => Operands::Modrm(1),
        0xa0..=0xa3 => Operands::Address,
        0xa4..=0xa7 | 0xaa..=0xaf | 0xc3 | 0xc9 | 0xcb | 0xcc | 0xcf | 0xd7 | 0xec..=0xef | 0xf1 | 0xf4 | 0xf5 => {
            Operands::Nothing
        }
        0xb8..=0xbf => Operands::WideOrFull,
        0xc2 | 0xca => Operands::Bytes(2),
        0xc8 => Operands::Bytes(3),
        0xe8 | 0xe9 => Operands::Bytes(4),
        0xf6 => Operands::ModrmTest(1),
        0xf7 => Operands::ModrmTestWide,
        0xf8..=0xfd => Operands::Nothing,
        _ => Operands::Bad,
    }
}

fn second_map(opcode: u8) -> Operands {
    match opcode {
        0x04 | 0x0a | 0x0c | 0x24..=0x27 | 0x36 | 0x39 | 0x3b..=0x3f | 0x7a | 0x7b => Operands::Bad,
        0x05..=0x09 | 0x0b | 0x0e | 0x30..=0x37 | 0x77 | 0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf => Operands::Nothing,
        0x80..=0x8f => Operands::Bytes(4),
        0x0f | 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => Operands::Modrm(1),
        _ => Operands::Modrm(0),
    }
}

/// Operands in the opcode maps of vector instructions, by the number in their prefix.
fn vector(map: u8, opcode: u8) -> Operands {
    match (map, opcode) {
        (1, 0x77) => Operands::Nothing,
        (1, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6) | (3, _) => Operands::Modrm(1),
        (1 | 2 | 5 | 6, _) => Operands::Modrm(0),
        _ => Operands::Bad,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_has_no_length() {
        let code = [0x48, 0x8b, 0x84, 0x24, 0x10, 0, 0, 0];
        assert_eq!(length(&code), Some(8));
        (0..8).for_each(|end| assert_eq!(length(&code[..end]), None));
    }
}
