//! The table of one library's call sites: the launcher writes it once, every program applies it.
//!
//! ```text
//!  0  magic "DFSSITES"      32  size of the library's file, 8 bytes
//!  8  layout version, 4     40  length of the build-id, 4; sites left alone, 4
//! 12  number of sites, 4    48  build-id, 20 bytes, zero-padded; 4 bytes zero
//! 16  checksum of all other 72  hash of the analysis and the file, 8 bytes
//!     bytes, 8              80  identity of the file, 8 bytes
//! 24  bytes of the file, 8  88  sites of 64 bytes each
//! ```
//!
//! Invariants: before a table is applied, magic, version, length, checksum and build-id are
//! checked, and that the file belongs to root or to the user and that no other user can write it.
//! Before a site is patched, its bytes are compared with those that were analysed.

/// First bytes of a table.
pub const MAGIC: [u8; 8] = *b"DFSSITES";
/// Version of the layout, and of the meaning of relocated code.
pub const VERSION: u32 = 2;
/// Size of the header before the sites.
pub const HEADER_BYTES: usize = 88;
/// Maximum length of a build-id (SHA-1).
pub const BUILD_ID_BYTES_MAX: usize = 20;
/// Maximum size of a window.
pub const WINDOW_BYTES_MAX: usize = 16;
/// Room for relocated instructions, before and after the call together.
pub const CODE_BYTES_MAX: usize = 24;
/// Absent fix-up.
pub const NO_FIXUP: u8 = u8::MAX;

/// The header of a table.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// Number of sites that follow.
    pub site_count: u32,
    /// See [`checksum`]; over everything but this field.
    pub checksum: u64,
    /// Size of header and sites.
    pub table_bytes: u64,
    /// Size of the analysed file.
    pub library_bytes: u64,
    /// Number of bytes of `build_id` in use.
    pub build_id_bytes: u32,
    /// Number of call sites without a safe window, which stay unchanged.
    pub left_alone: u32,
    /// Identifies the library.
    pub build_id: [u8; BUILD_ID_BYTES_MAX],
    /// Zero.
    pub reserved: [u8; 4],
    /// Identifies the analysis and the analysed bytes: a patched file keeps its build-id.
    pub writer_id: u64,
    /// Identifies the analysed file by its place, size and times; zero: unknown.
    pub file_id: u64,
}
const _: () = assert!(size_of::<Header>() == HEADER_BYTES && align_of::<Header>() == 8);

/// One call site: its original bytes, and the code for its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Site {
    /// Address of the window, relative to the library.
    pub window: u32,
    /// Address of the system call instruction, relative to the library.
    pub call: u32,
    /// Bytes replaced: 5 to 16.
    pub window_bytes: u8,
    /// Bytes of relocated code before the call.
    pub before_bytes: u8,
    /// Bytes of relocated code after it.
    pub after_bytes: u8,
    /// Offset in `code` of a 32-bit displacement to set, relative to the end of its own four bytes
    /// plus `fixup_tail`; or [`NO_FIXUP`].
    pub fixup: u8,
    /// Target of that displacement, relative to the library.
    pub fixup_target: u32,
    /// Number of the instruction's bytes after the displacement.
    pub fixup_tail: u8,
    /// Zero.
    pub reserved: [u8; 7],
    /// Original bytes in the library.
    pub original: [u8; WINDOW_BYTES_MAX],
    /// Relocated instructions: before, then after.
    pub code: [u8; CODE_BYTES_MAX],
}
const _: () = assert!(size_of::<Site>() == 64 && align_of::<Site>() == 4);

/// A checksum against accidental damage: four independent lanes of multiply and rotate.
pub fn checksum(words: &[u64]) -> u64 {
    checksum_of(words.iter().copied(), words.len())
}

fn checksum_of(words: impl Iterator<Item = u64>, count: usize) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut lanes = [FACTOR, FACTOR.rotate_left(16), FACTOR.rotate_left(32), count as u64];
    for (index, word) in words.enumerate() {
        let lane = &mut lanes[index % 4];
        *lane = (*lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
    }
    lanes.iter().fold(0, |sum, lane| (sum ^ lane).wrapping_mul(FACTOR).rotate_left(31))
}

/// The checksum of a file's bytes, padded with zeros.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    let (whole, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = whole.iter().chain((!rest.is_empty()).then_some(&last));
    checksum_of(words.map(|word| u64::from_le_bytes(*word)), bytes.len().div_ceil(8))
}

/// The checksum of a table, whose own field counts as zero.
fn table_checksum(words: &[u64]) -> u64 {
    checksum(&words[..2]) ^ checksum(&words[3..]).rotate_left(1)
}

/// Why a table is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Not a table, or of another version.
    Foreign,
    /// Truncated, or changed since.
    Torn,
    /// Of another library.
    Other,
}

/// Header and sites of a complete table for the library with this build-id.
pub fn open<'t>(words: &'t [u64], build_id: &[u8]) -> Result<(&'t Header, &'t [Site]), Flaw> {
    if words.len() * 8 < HEADER_BYTES {
        return Err(Flaw::Torn);
    }
    // SAFETY: the words hold a whole header with its alignment, and any bytes are a valid Header.
    let header = unsafe { &*words.as_ptr().cast::<Header>() };
    if header.magic != MAGIC || header.version != VERSION {
        return Err(Flaw::Foreign);
    }
    let count = header.site_count as usize;
    let bytes = HEADER_BYTES + count * size_of::<Site>();
    if header.table_bytes != bytes as u64 || words.len() * 8 < bytes {
        return Err(Flaw::Torn);
    }
    if table_checksum(&words[..bytes / 8]) != header.checksum {
        return Err(Flaw::Torn);
    }
    if header.build_id.get(..header.build_id_bytes as usize) != Some(build_id) {
        return Err(Flaw::Other);
    }
    // SAFETY: `count` sites follow the header in the words (checked), with their alignment, and any
    // bytes are a valid Site.
    let sites =
        unsafe { core::slice::from_raw_parts(words.as_ptr().cast::<u8>().add(HEADER_BYTES).cast::<Site>(), count) };
    Ok((header, sites))
}

/// The words that a table with these sites takes.
pub fn words_for(sites: &[Site]) -> usize {
    (HEADER_BYTES + size_of_val(sites)) / 8
}

/// Writes a table into [`words_for`] words. `header` needs no numbers of bytes and sites, and no
/// checksum.
///
/// # Panics
///
/// If the words are too few.
pub fn write(words: &mut [u64], mut header: Header, sites: &[Site]) {
    let words = &mut words[..words_for(sites)];
    header.table_bytes = size_of_val(words) as u64;
    header.site_count = sites.len() as u32;
    // SAFETY: the words have room for a header and these sites, with their alignment; neither type
    // has padding.
    unsafe {
        words.as_mut_ptr().cast::<Header>().write(header);
        let behind = words.as_mut_ptr().cast::<u8>().add(HEADER_BYTES);
        core::ptr::copy_nonoverlapping(sites.as_ptr().cast::<u8>(), behind, size_of_val(sites));
    }
    words[2] = table_checksum(words);
}

/// Whether a site may be patched: its lengths are consistent.
pub fn is_sound(site: &Site) -> bool {
    let window = usize::from(site.window_bytes);
    let code = usize::from(site.before_bytes) + usize::from(site.after_bytes);
    let call_inside = site.call >= site.window && (site.call - site.window) as usize + 2 <= window;
    let fixup_inside = site.fixup == NO_FIXUP || usize::from(site.fixup) + 4 <= code;
    (5..=WINDOW_BYTES_MAX).contains(&window) && code <= CODE_BYTES_MAX && call_inside && fixup_inside
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> (Header, Vec<Site>) {
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            site_count: 0,
            checksum: 0,
            table_bytes: 0,
            library_bytes: 77,
            build_id_bytes: 4,
            left_alone: 1,
            build_id: *b"abcd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            reserved: [0; 4],
            writer_id: 5,
            file_id: 6,
        };
        let site = Site {
            window: 0x1000,
            call: 0x1000,
            window_bytes: 8,
            before_bytes: 0,
            after_bytes: 6,
            fixup: NO_FIXUP,
            fixup_target: 0,
            fixup_tail: 0,
            reserved: [0; 7],
            original: [0x90; WINDOW_BYTES_MAX],
            code: [0x90; CODE_BYTES_MAX],
        };
        (header, vec![site; 3])
    }

    fn written(header: Header, sites: &[Site]) -> Vec<u64> {
        let mut words = vec![0; words_for(sites)];
        write(&mut words, header, sites);
        words
    }

    #[test]
    fn a_table_comes_back_whole() {
        let (header, sites) = example();
        let words = written(header, &sites);
        let (header, read) = open(&words, b"abcd").unwrap();
        assert_eq!((read, header.library_bytes), (&sites[..], 77));
        assert!(is_sound(&read[0]));
        assert_eq!(open(&words, b"abcde").unwrap_err(), Flaw::Other);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let (header, sites) = example();
        let words = written(header, &sites);
        for bit in 0..words.len() * 64 {
            let mut torn = words.clone();
            torn[bit / 64] ^= 1 << (bit % 64);
            assert!(open(&torn, b"abcd").is_err(), "bit {bit}");
        }
        for length in 0..words.len() {
            assert!(open(&words[..length], b"abcd").is_err(), "{length} words");
        }
    }
}
