//! Making images, attaching to them, recovering them, leaving them.

use crate::dram::DramLayout;
use crate::error::Result;
use crate::fs::Fs;
use crate::platform::Platform;
use pmem::{Direct, Memory, Region};

/// What mkfs is told.
#[derive(Debug, Clone, Copy)]
pub struct MkfsOptions {
    /// UUID.
    pub uuid: [u8; 16],
    /// Label, padded with zeros.
    pub label: [u8; 64],
    /// Inodes; 0: one per 2 KiB.
    pub inodes_max: u64,
    /// Owner and group of the root directory.
    pub owner: (u32, u32),
    /// Permission bits of the root directory.
    pub permissions: u32,
    /// Now, ns since 1970.
    pub now_ns: i64,
    /// The memory is all zero already (a fresh file): the fixed areas need not be cleared.
    pub zeroed: bool,
}

/// Makes an empty file system on a region. What was there is gone.
pub fn mkfs<M: Memory>(_pm: &Region<M>, _options: &MkfsOptions) -> Result<()> {
    todo!()
}

/// How to attach.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttachOptions {
    /// Refuse all changes, write nothing to the image.
    pub read_only: bool,
    /// Files cached at most; 0: as many as the image holds. All processes that share a DRAM region give the same.
    pub cached_files_max: u64,
}

/// What recovery found, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecoveryReport {
    /// The last one to leave did not leave the image clean, so it was scanned.
    pub scanned: bool,
    /// Names found.
    pub names: u64,
    /// Inodes found.
    pub inodes: u64,
    /// Renames completed from the journal.
    pub renames: u64,
    /// Inodes without names (unlinked while open, or half-made) that were freed.
    pub orphans: u64,
    /// How long it took.
    pub duration_ns: u64,
}

/// An attach that is filling a fresh DRAM region. Any number of threads may call [`Recovery::work`] to share the scan; each returns when all of it
/// is done.
pub struct Recovery<M: Memory = Direct> {
    fs: Fs<M>,
}

impl<M: Memory> Fs<M> {
    /// The layout of a DRAM region for an image: the caller maps `length` bytes of zeroed memory (or an existing region of the same image).
    pub fn dram_layout(_pm: &Region<M>, _options: &AttachOptions) -> Result<DramLayout> {
        todo!()
    }

    /// First one in: builds the DRAM region. The caller holds the lock that keeps other processes out meanwhile.
    pub fn attach_first(
        _pm: Region<M>,
        _dram: Region<Direct>,
        _platform: &'static dyn Platform,
        _options: &AttachOptions,
    ) -> Result<Recovery<M>> {
        todo!()
    }

    /// A further one: uses the DRAM region that another process built.
    pub fn attach_shared(
        _pm: Region<M>,
        _dram: Region<Direct>,
        _platform: &'static dyn Platform,
        _options: &AttachOptions,
    ) -> Result<Fs<M>> {
        todo!()
    }

    /// Last one out: recycles, writes back what is lazily kept, leaves the image clean. No other thread or process is inside.
    pub fn detach_last(self) -> Result<()> {
        todo!()
    }
}

impl<M: Memory> Recovery<M> {
    /// Takes part in the scan until it is done. Call it from as many threads as there are processors.
    pub fn work(&self) -> Result<()> {
        todo!()
    }

    /// Ends recovery once all workers have returned: the file system is ready.
    pub fn finish(self) -> Result<(Fs<M>, RecoveryReport)> {
        let _ = &self.fs;
        todo!()
    }
}
