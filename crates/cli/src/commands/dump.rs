//! `directfs dump`: prints an image's structures in readable form, using crate `fsck`.

use crate::arguments::Dump;
use crate::output;
use anyhow::{Context, Result, anyhow};
use fsck::dump::{Target, dump};
use pmem::Direct;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Prints a structure of an image.
pub fn run(arguments: &Dump) -> Result<()> {
    let target = target(&arguments.what)?;
    let (mapping, _) = image::map_newest(&arguments.image)?;
    // SAFETY: the dump only reads.
    let region = unsafe { mapping.region_for_reading(Direct) };
    let mut text = String::new();
    dump(&region, &target, arguments.raw, &mut text)
        .map_err(|error| anyhow!("{}: {error}", arguments.image.display()))?;
    output::write(text.as_bytes());
    Ok(())
}

/// Parses the target: digits are an inode, `@` precedes an offset, two words are structures without
/// a path; anything else is a path.
fn target(word: &OsStr) -> Result<Target> {
    let Some(word) = word.to_str() else { return Ok(Target::Path { path: word.as_bytes().into() }) };
    if let Some(offset) = word.strip_prefix('@') {
        let parsed = match offset.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => offset.parse(),
        };
        let offset = parsed.with_context(|| format!("{word} is not an offset; write @4096 or @0x1000"))?;
        return Ok(Target::Offset { offset });
    }
    Ok(match word {
        "superblock" => Target::Superblock,
        "journal" => Target::Journal,
        _ => match word.parse() {
            Ok(number) => Target::Inode { number },
            Err(_) => Target::Path { path: word.strip_prefix("./").unwrap_or(word).into() },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_number_a_path_or_a_place() {
        assert_eq!(target("17".as_ref()).unwrap(), Target::Inode { number: 17 });
        assert_eq!(target("./17".as_ref()).unwrap(), Target::Path { path: b"17".into() });
        assert_eq!(target("/usr/include".as_ref()).unwrap(), Target::Path { path: b"/usr/include".into() });
        assert_eq!(target("@0x1000".as_ref()).unwrap(), Target::Offset { offset: 4096 });
        assert_eq!(target("superblock".as_ref()).unwrap(), Target::Superblock);
        assert_eq!(target(OsStr::from_bytes(b"/\xff")).unwrap(), Target::Path { path: b"/\xff".into() });
        assert!(target("@here".as_ref()).unwrap_err().to_string().contains("@4096"));
    }
}
