//! The superblock: the first two lines of every image of the lab.
//!
//! Invariants:
//!
//! - The first line never changes after mkfs and has a checksum.
//! - The number of mounts rises durably before a mount writes anything else.
//! - The clean word is one only while the image is not mounted.

use crate::error::{Error, Result};
use pmem::{BLOCK_BYTES, Cell64, Commit64, Layout, Memory, Region, crc32c};

/// The format version of all systems of the lab.
pub const FORMAT_VERSION: u64 = 2;
/// Words of geometry that a system keeps in its superblock.
pub const PARAMETERS: usize = 4;
/// End of the superblock; a system's own structures begin here or later.
pub const FIRST_FREE: u64 = BLOCK_BYTES;

/// The systems that have their own image format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// NOVA-like.
    Nova,
    /// PMFS-like.
    Pmfs,
    /// SoupFS.
    SoupFs,
    /// SquirrelFS-like.
    SquirrelFs,
}

impl System {
    /// Each of them; a mount finds its system by the magic number.
    pub const ALL: [System; 4] = [System::Nova, System::Pmfs, System::SoupFs, System::SquirrelFs];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            System::Nova => "nova",
            System::Pmfs => "pmfs",
            System::SoupFs => "soupfs",
            System::SquirrelFs => "squirrelfs",
        }
    }

    /// The first eight bytes of an image.
    pub const fn magic(self) -> u64 {
        u64::from_le_bytes(match self {
            System::Nova => *b"LabNOVA\0",
            System::Pmfs => *b"LabPMFS\0",
            System::SoupFs => *b"LabSOUP\0",
            System::SquirrelFs => *b"LabSQRL\0",
        })
    }
}

/// The superblock.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Superblock {
    magic: Cell64,
    version: Cell64,
    length: Cell64,
    parameters: [Cell64; PARAMETERS],
    /// CRC-32C of the preceding words.
    checksum: Cell64,
    mounts: Commit64,
    clean: Commit64,
    /// The VFS layer that a mount uses by default. It corresponds to ByVFS's S_NVMFS_ROOT, the flag
    /// at a mounted directory that selects which layer walks paths. Any value is valid here; the
    /// mount interprets it.
    vfs: Cell64,
    reserved: [Cell64; 5],
}
const _: () = assert!(size_of::<Superblock>() == 128);
/// Bytes of an image that [`identify`] and [`recorded_vfs`] need.
pub const IDENTITY_BYTES: usize = std::mem::offset_of!(Superblock, reserved);

// SAFETY: cells of eight bytes and arrays of them, `repr(C)`, no padding, any bits are a value.
unsafe impl Layout for Superblock {}

/// The superblock's content at mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Geometry that mkfs recorded.
    pub parameters: [u64; PARAMETERS],
    /// Number of mounts, including this one.
    pub mounts: u64,
    /// Whether the last mount was unmounted cleanly.
    pub was_clean: bool,
}

fn line_checksum(words: &[u64; 3 + PARAMETERS]) -> u64 {
    words.iter().fold(0, |crc, word| crc32c(crc, &word.to_le_bytes())) as u64
}

/// The system whose image these bytes begin, if it is one of the lab's.
pub fn identify(first_bytes: &[u8]) -> Option<System> {
    let magic = word(first_bytes, 0)?;
    System::ALL.into_iter().find(|system| system.magic() == magic)
}

/// The default VFS layer that the first bytes of an image record.
pub fn recorded_vfs(first_bytes: &[u8]) -> u64 {
    word(first_bytes, std::mem::offset_of!(Superblock, vfs)).unwrap_or(0)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Records the default VFS layer in an image that is not mounted.
pub fn record_vfs<M: Memory>(region: &Region<M>, vfs: u64) -> Result<()> {
    let superblock = region.first::<Superblock>()?;
    region.persist(region.set64(&superblock.vfs, vfs));
    Ok(())
}

/// Writes the superblock. Everything else that mkfs wrote must be durable before.
pub fn format<M: Memory>(
    region: &Region<M>,
    system: System,
    parameters: [u64; PARAMETERS],
    _rest: pmem::Durable,
) -> Result<()> {
    let superblock = region.first::<Superblock>()?;
    // A crash before the last fence leaves no magic, hence no file system.
    let no_magic = region.set64(&superblock.magic, 0);
    region.persist(no_magic);
    let mut words = [system.magic(), FORMAT_VERSION, region.length(), 0, 0, 0, 0];
    words[3..].copy_from_slice(&parameters);
    region.set64(&superblock.version, FORMAT_VERSION).unflushed();
    region.set64(&superblock.length, region.length()).unflushed();
    for (cell, value) in superblock.parameters.iter().zip(parameters) {
        region.set64(cell, value).unflushed();
    }
    region.set64(&superblock.checksum, line_checksum(&words)).unflushed();
    region.retract(&superblock.mounts, 0).unflushed();
    region.set64(&superblock.vfs, 0).unflushed();
    for cell in &superblock.reserved {
        region.set64(cell, 0).unflushed();
    }
    let durable = region.fence(region.flush_all(superblock));
    let clean = region.commit(&superblock.clean, 1, durable);
    region.persist(clean);
    let magic = region.set64(&superblock.magic, system.magic());
    region.persist(magic);
    Ok(())
}

/// Checks the superblock and counts the mount. The image is unclean from here until [`leave`].
pub fn open<M: Memory>(region: &Region<M>, system: System) -> Result<Identity> {
    let superblock = region.first::<Superblock>()?;
    let magic = superblock.magic.load();
    if magic != system.magic() {
        let found = identify(&magic.to_le_bytes()).map_or("no file system of the lab", System::name);
        return Err(Error::OtherSystem { wanted: system.name(), found });
    }
    let parameters = std::array::from_fn(|index| superblock.parameters[index].load());
    let (version, length) = (superblock.version.load(), superblock.length.load());
    let mut words = [magic, version, length, 0, 0, 0, 0];
    words[3..].copy_from_slice(&parameters);
    if superblock.checksum.load() != line_checksum(&words) {
        return Err(Error::damaged("the superblock's checksum is wrong", 0));
    }
    if version != FORMAT_VERSION {
        return Err(Error::OtherVersion { found: version, known: FORMAT_VERSION });
    }
    if length > region.length() {
        return Err(Error::TooSmall { length: region.length(), needed: length });
    }
    let was_clean = superblock.clean.load() == 1;
    let mounts = superblock.mounts.load().wrapping_add(1);
    let unclean = region.persist(region.retract(&superblock.clean, 0));
    let counted = region.commit(&superblock.mounts, mounts, unclean);
    region.persist(counted);
    Ok(Identity { parameters, mounts, was_clean })
}

/// Marks the image clean. Everything else must be durable.
pub fn leave<M: Memory>(region: &Region<M>, rest: pmem::Durable) -> Result<()> {
    let clean = region.commit(&region.first::<Superblock>()?.clean, 1, rest);
    region.persist(clean);
    Ok(())
}
