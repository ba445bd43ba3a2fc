//! Parsing and formatting of sizes, durations and counts.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Parses a number of seconds such as `5` or `0.5`.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim().parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| format!("{text:?} is not a number of seconds; write for example 5 or 0.5"))
}

/// Parses a time such as `90s`, `30m`, `12h` or `7d`.
pub fn parse_age(text: &str) -> Result<Duration, String> {
    let remedy = || format!("{text:?} is not a time; write a number followed by s, m, h or d, for example 12h or 7d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(remedy)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(remedy()),
    };
    let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds));
    number.map(Duration::from_secs).ok_or_else(remedy)
}

/// Parses a size such as `512M`, `4G`, `1.5T`, `65536`: powers of 1024, with or without a trailing
/// `B` or `iB`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let remedy = "write a number followed by K, M, G or T, for example 512M, 4G or 1.5T";
    let trimmed = text.trim();
    let digits_end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits_end);
    let shift = match unit.trim().to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("{unit:?} is not a unit of size; {remedy}")),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole
            .checked_mul(1 << shift)
            .ok_or_else(|| format!("{text} is more than 16 EiB; choose a smaller size"));
    }
    match number.parse::<f64>() {
        Ok(value) if shift > 0 && value * ((1u64 << shift) as f64) < u64::MAX as f64 => {
            Ok((value * (1u64 << shift) as f64) as u64)
        }
        _ => Err(format!("{text:?} is not a size; {remedy}")),
    }
}

/// A size in the largest unit in which it is at least one, with one decimal if needed.
pub fn size(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1023.95 && unit < 4 {
        value /= 1024.0;
        unit += 1;
    }
    let unit = ["B", "KiB", "MiB", "GiB", "TiB"][unit];
    let text = format!("{value:.1}");
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// A duration in a suitable unit.
pub fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// A time that people wait: `7 s`, `1 min 30 s`, `2 h 5 min`.
pub fn clock(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..60 => format!("{seconds} s"),
        seconds @ ..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// The present time, in ns since 1970.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// A time, given in ns since 1970, in this machine's time zone.
pub fn local_time(ns: u64) -> String {
    let seconds = (ns / 1_000_000_000) as _;
    // SAFETY: zeros are a valid value of this plain structure, which the call fills.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point to values of this function.
    unsafe { libc::localtime_r(&raw const seconds, &raw mut parts) };
    let (year, month) = (parts.tm_year + 1900, parts.tm_mon + 1);
    format!("{year}-{month:02}-{:02} {:02}:{:02}:{:02}", parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec)
}

/// A count with separated thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A count and its noun: `1 file`, `2 files`.
pub fn counted(number: u64, singular: &str) -> String {
    let plural = match singular.strip_suffix('y') {
        _ if number == 1 => singular.to_owned(),
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
        _ if singular.ends_with('s') => format!("{singular}es"),
        _ => format!("{singular}s"),
    };
    format!("{} {plural}", count(number))
}

/// A path as text. What is not UTF-8 in it is replaced, since JSON holds only text.
pub fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A path as a field of JSON.
pub fn path_as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Paths as a field of JSON.
pub fn paths_as_text<S: serde::Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

/// A word for a shell, in quotes where they are needed.
pub fn quoted(word: &Path) -> String {
    let text = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%=".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// A UUID in its usual notation.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("65536", 65536),
            ("512M", 512 << 20),
            ("4G", 4 << 30),
            ("4g", 4 << 30),
            ("4GiB", 4 << 30),
            ("4 GB", 4 << 30),
            ("1.5T", 3 << 39),
            ("0.5k", 512),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_no_size() {
        for text in ["", "G", "four", "4X", "1.5", "-1G", "1..5G", "99999999T", "4G5"] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains("for example") || error.contains("smaller"), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_printed_reads_well() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(4 << 30), "4 GiB");
        assert_eq!(size((1 << 20) - 1), "1 MiB");
        assert_eq!(duration(196.4), "196 ns");
        assert_eq!(duration(1_080.0), "1.1 µs");
        assert_eq!(duration(2.5e9), "2.50 s");
        assert_eq!(clock(Duration::from_secs(7500)), "2 h 5 min");
        assert_eq!(count(1_000_000), "1,000,000");
        assert_eq!(count(999), "999");
        assert_eq!(counted(1, "file"), "1 file");
        assert_eq!((counted(2, "directory"), counted(0, "day")), ("2 directories".into(), "0 days".into()));
        assert_eq!((counted(0, "process"), counted(1, "process")), ("0 processes".into(), "1 process".into()));
        assert_eq!(quoted(Path::new("/a/b.img")), "/a/b.img");
        assert_eq!(quoted(Path::new("it's a b")), r"'it'\''s a b'");
        assert_eq!(uuid(&[0xab; 16]), "abababab-abab-abab-abab-abababababab");
    }
}
