//! The tar format: headers, numbers and records, as far as reading and writing share them.
//!
//! A header is a block of 512 bytes with fields in ASCII; what does not fit is in a pax header
//! before it, as records "LENGTH KEY=VALUE\n".

/// Bytes of a header, and the unit of everything.
pub const BLOCK: usize = 512;

/// A field: offset and length.
#[derive(Clone, Copy)]
pub struct Field(pub usize, pub usize);

pub const NAME: Field = Field(0, 100);
pub const MODE: Field = Field(100, 8);
pub const UID: Field = Field(108, 8);
pub const GID: Field = Field(116, 8);
pub const SIZE: Field = Field(124, 12);
pub const MTIME: Field = Field(136, 12);
pub const CHECKSUM: Field = Field(148, 8);
pub const TYPE: usize = 156;
pub const LINK: Field = Field(157, 100);
pub const MAGIC: Field = Field(257, 8);
pub const MAJOR: Field = Field(329, 8);
pub const MINOR: Field = Field(337, 8);
pub const PREFIX: Field = Field(345, 155);

/// `magic` and `version` of POSIX.
pub const USTAR: &[u8; 8] = b"ustar\x0000";
/// `magic` and `version` of GNU tar, which uses the bytes of the prefix otherwise.
pub const GNU: &[u8; 8] = b"ustar  \0";

/// A header.
#[derive(Clone)]
pub struct Header(pub [u8; BLOCK]);

impl Header {
    pub fn field(&self, field: Field) -> &[u8] {
        &self.0[field.0..field.0 + field.1]
    }

    /// A field of text, up to its first zero byte.
    pub fn text(&self, field: Field) -> &[u8] {
        let bytes = self.field(field);
        &bytes[..bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len())]
    }

    /// A number: octal digits, or binary with the highest bit set. `None`: neither.
    pub fn number(&self, field: Field) -> Option<i128> {
        number(self.field(field))
    }

    /// The sum of all bytes, those of its own field counted as blanks; also with signed bytes, as
    /// some old programs write it.
    fn sums(&self) -> [i128; 2] {
        let is_own = |at: usize| (CHECKSUM.0..CHECKSUM.0 + CHECKSUM.1).contains(&at);
        let bytes = || self.0.iter().enumerate().map(|(at, &byte)| if is_own(at) { b' ' } else { byte });
        [bytes().map(i128::from).sum(), bytes().map(|byte| i128::from(byte as i8)).sum()]
    }

    pub fn is_whole(&self) -> bool {
        self.number(CHECKSUM).is_some_and(|said| self.sums().contains(&said))
    }

    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|&byte| byte == 0)
    }

    pub fn set(&mut self, field: Field, bytes: &[u8]) {
        self.0[field.0..field.0 + bytes.len().min(field.1)].copy_from_slice(&bytes[..bytes.len().min(field.1)]);
    }

    /// Writes a number in octal digits; returns whether it fits.
    pub fn set_number(&mut self, field: Field, number: u64) -> bool {
        let width = field.1 - 1;
        let digits = format!("{number:0width$o}");
        let fits = digits.len() <= width;
        self.set(field, if fits { digits.as_bytes() } else { &b"000000000000"[..width] });
        fits
    }

    pub fn seal(&mut self) {
        let digits = format!("{:06o}\0 ", self.sums()[0]);
        self.set(CHECKSUM, digits.as_bytes());
    }
}

fn number(bytes: &[u8]) -> Option<i128> {
    if bytes[0] & 0x80 != 0 {
        // Two's complement; the highest bit only marks the form.
        let first = i128::from(((bytes[0] << 1) as i8) >> 1);
        return bytes[1..]
            .iter()
            .try_fold(first, |value, &byte| value.checked_mul(256).map(|value| value | i128::from(byte)));
    }
    let text = bytes.split(|&byte| byte == 0 || byte == b' ').find(|part| !part.is_empty()).unwrap_or(b"0");
    text.iter()
        .try_fold(0i128, |value, &digit| matches!(digit, b'0'..=b'7').then(|| value * 8 + i128::from(digit - b'0')))
}

/// A record of a pax header. Its length counts the digits of the length.
pub fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// The records of a pax header; `None`: it is damaged.
pub fn records(mut bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut found = Vec::new();
    while !bytes.is_empty() && bytes[0] != 0 {
        let blank = bytes.iter().position(|&byte| byte == b' ')?;
        let length: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
        if length > bytes.len() || length < blank + 3 || bytes[length - 1] != b'\n' {
            return None;
        }
        let body = &bytes[blank + 1..length - 1];
        let equals = body.iter().position(|&byte| byte == b'=')?;
        found.push((&body[..equals], &body[equals + 1..]));
        bytes = &bytes[length..];
    }
    Some(found)
}

/// Why a time is refused: the end of "its time is ...".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadTime {
    NotANumber,
    OutOfRange,
}

impl std::fmt::Display for BadTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BadTime::NotANumber => "not a number",
            BadTime::OutOfRange => "out of range: an image holds 1677-09-21 to 2262-04-11",
        })
    }
}

/// A number of seconds since 1970, in ns.
pub fn seconds_ns(seconds: i128) -> Result<i64, BadTime> {
    i64::try_from(seconds).ok().and_then(|seconds| seconds.checked_mul(1_000_000_000)).ok_or(BadTime::OutOfRange)
}

/// A time as a pax header has it, in ns since 1970: digits, and perhaps a fraction.
pub fn time_ns(text: &[u8]) -> Result<i64, BadTime> {
    let text = std::str::from_utf8(text).map_err(|_| BadTime::NotANumber)?;
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (seconds, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if digits.is_empty() || !seconds.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return Err(BadTime::NotANumber);
    }
    let nanoseconds: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    // Nothing but digits: too many of them are the only fault left.
    let number = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<i64>().ok() };
    let seconds = number(seconds).and_then(|seconds| seconds.checked_mul(1_000_000_000));
    let ns = seconds.zip(number(&nanoseconds)).and_then(|(seconds, rest)| seconds.checked_add(rest));
    ns.map(|ns| if is_negative { -ns } else { ns }).ok_or(BadTime::OutOfRange)
}

/// A time in ns since 1970 as a pax header has it.
pub fn time_text(ns: i64) -> String {
    let (sign, ns) = (if ns < 0 { "-" } else { "" }, ns.unsigned_abs());
    let (seconds, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
    let fraction = format!(".{rest:09}");
    format!("{sign}{seconds}{}", if rest == 0 { "" } else { fraction.trim_end_matches('0') })
}

/// Bytes up to the next block.
pub fn padding(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK as u64) - bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"0000755\0"), Some(0o755));
        assert_eq!(number(b"    755 "), Some(0o755));
        assert_eq!(number(b"\0\0\0\0"), Some(0));
        assert_eq!(number(b"\x80\0\0\0\0\0\0\x02\0\0\0\0"), Some(8 << 30));
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), Some(-1));
        assert_eq!(number(b"12x4\0\0\0\0"), None);
    }

    #[test]
    fn records_count_their_own_length() {
        for length in [0, 1, 5, 85, 90, 95, 985, 990, 9980] {
            let value = vec![b'x'; length];
            let bytes = record(b"key", &value);
            assert_eq!(records(&bytes), Some(vec![(&b"key"[..], &value[..])]));
        }
        for damaged in [&b"5 a=b"[..], b"99 a=b\n", b"x a=b\n", b"6 a=b\n7", b"4 =\n"] {
            assert!(records(damaged).is_none_or(|found| found.iter().all(|(key, _)| key.is_empty())));
        }
    }

    #[test]
    fn times_have_fractions_and_signs() {
        for (text, ns) in
            [("12.5", 12_500_000_000), ("0", 0), ("-1.25", -1_250_000_000), ("3.000000001", 3_000_000_001)]
        {
            assert_eq!((time_ns(text.as_bytes()), time_text(ns)), (Ok(ns), text.to_owned()));
        }
        assert_eq!(time_ns(b"12.123456789999"), Ok(12_123_456_789));
        for text in ["x", "", "-", "12x", "1.5.5", "1e9"] {
            assert_eq!(time_ns(text.as_bytes()), Err(BadTime::NotANumber), "{text}");
        }
        for text in ["99999999999", "-99999999999.5", "9223372036.9", "99999999999999999999999"] {
            assert_eq!(time_ns(text.as_bytes()), Err(BadTime::OutOfRange), "{text}");
        }
        assert_eq!((seconds_ns(1 << 62), seconds_ns(-1)), (Err(BadTime::OutOfRange), Ok(-1_000_000_000)));
    }
}
