//! Makes images, attaches to them, recovers them, and leaves them.
//!
//! Invariants
//! - An image is clean and has a snapshot of its maps, or is attached, or its last user died. The
//!   clean flag is durably cleared before the first allocation, and set last.
//! - Every attach that builds a DRAM region raises the epoch, so that nv pointers of earlier
//!   regions are invalid. A read-only attach writes nothing, and uses the next epoch in memory
//!   only.

mod damage;
mod description;
mod detach;
mod growth;
#[cfg(test)]
mod growth_tests;
mod metadata;
mod mkfs;
mod recovery;
#[cfg(test)]
mod recovery_tests;
mod replay;
#[cfg(test)]
mod tests;

pub use description::{DESCRIPTION_BYTES, DescriptionChange, SNAPSHOT_FIGURES, changed_superblock, superblock_with};
pub use growth::{Growth, GrowthRefusal, ImageSize, image_size};
pub use metadata::{BlockUses, load_metadata};
pub use mkfs::{mkfs, mkfs_with_holes, set_identity};

use crate::ablation_options::{Ablated, Ablation};
use crate::alloc::{snapshot, spare_blocks};
use crate::dram::{DRAM_MAGIC, DRAM_VERSION, Dram, DramHeader, DramLayout, Phase};
use crate::epoch::FIRST_EPOCH;
use crate::error::{Error, Result};
use crate::format::{Geometry, State, Superblock, SuperblockError};
use crate::fs::Fs;
use crate::liveness::Liveness;
use crate::platform::Platform;
use crate::regions::Regions;
use crate::size::{Areas, geometry_with, size_word};
use crate::sync::AtomicU32;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::{BLOCK_BYTES, BadOffset, Direct, Memory, Region};

/// Parameters of mkfs.
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
    /// The memory is zero already (a fresh file), so the fixed areas need not be cleared.
    pub zeroed: bool,
}

/// Parameters of an attach.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttachOptions {
    /// Refuse all changes. This process writes nothing to the image, unless it joins a DRAM region
    /// of writers.
    pub read_only: bool,
    /// The most files to cache; 0: as many as the image holds. All processes of a DRAM region give
    /// the same.
    pub cached_files_max: u64,
    /// The image's file, as this process has it open.
    pub image: ImageIdentity,
    /// Bytes that the image can get while the DRAM region lives; fewer than it has: those. Only the
    /// first attach says so.
    pub capacity_bytes: u64,
    /// Thread slots: so many threads of all processes can be inside at once; 0: as many as there
    /// can be. They are the largest part of a region's addresses. Only the first attach says so.
    pub slots_max: u64,
    /// The space of the image's file is reserved as a whole. Only the first attach says so.
    pub is_reserved: bool,
}

impl AttachOptions {
    fn capacity_blocks(&self, geometry: &Geometry) -> u64 {
        (self.capacity_bytes / BLOCK_BYTES).max(geometry.blocks)
    }
}

/// Identifies the image's file as far as the kernel can: copies of an image have the same UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImageIdentity {
    /// Number of the device that holds the file.
    pub device: u64,
    /// Inode number of the file there.
    pub inode: u64,
    /// The boot of this machine; zero: unknown.
    pub boot: u64,
}

impl ImageIdentity {
    fn words(self) -> [u64; 3] {
        [self.device, self.inode, self.boot]
    }

    /// Whether both can be the same file. An unknown boot matches any.
    fn fits(self, other: ImageIdentity) -> bool {
        let boots = (self.boot, other.boot);
        (self.device, self.inode) == (other.device, other.inode) && (boots.0 == boots.1 || boots.0 == 0 || boots.1 == 0)
    }
}

/// What recovery found, as a report to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecoveryReport {
    /// The image was not clean, so it was scanned.
    pub scanned: bool,
    /// Names found; only a scan counts them.
    pub names: u64,
    /// Inodes found.
    pub inodes: u64,
    /// Renames completed from the journal.
    pub renames: u64,
    /// Inodes without names (unlinked while open, or half-made) that were freed.
    pub orphans: u64,
    /// Inconsistencies that were left for fsck.
    pub damaged: u64,
    /// Flipped bits that a checksum located, and that were corrected.
    pub flipped: u64,
    /// How long it took.
    pub duration_ns: u64,
}

/// An attach that is filling a fresh DRAM region. Any number of threads may call [`Recovery::work`]
/// to share the scan. Each call returns when the whole scan is done.
pub struct Recovery<M: Memory = Direct> {
    fs: Fs<M>,
    scan: bool,
    renames: u64,
    began_ns: i64,
}

impl<M: Memory> Fs<M> {
    /// The layout of a DRAM region for an image. The caller maps `length` bytes of zeroed memory,
    /// or an existing region of the same image.
    pub fn dram_layout(pm: &Region<M>, options: &AttachOptions) -> Result<DramLayout> {
        let geometry = Superblock::check(pm, !options.read_only).map_err(Error::Superblock)?;
        let capacity_blocks = options.capacity_blocks(&geometry);
        Ok(DramLayout::new(&geometry, capacity_blocks, options.cached_files_max, options.slots_max))
    }

    /// The attach of the first process: builds the DRAM region. The caller holds the lock that
    /// keeps other processes out.
    pub fn attach_first(
        pm: Region<M>,
        dram: Region<Direct>,
        platform: &'static dyn Platform,
        liveness: Liveness,
        options: &AttachOptions,
    ) -> Result<Recovery<M>> {
        let geometry = Superblock::check(&pm, !options.read_only).map_err(Error::Superblock)?;
        let capacity_blocks = options.capacity_blocks(&geometry);
        let dimensions = (geometry, capacity_blocks, options.slots_max);
        let mut fs = Self::view((pm, dram), dimensions, platform, liveness, options)?;
        let state = fs.superblock()?.state();
        if options.read_only && !state.clean {
            return Err(Error::NeedsRecovery);
        }
        let began_ns = platform.now_ns();
        // Epoch zero is that of an image before its first attach: no nv pointer carries it.
        fs.epoch = state.epoch.wrapping_add(1).max(1);
        // Zero stands for a region whose seed was not set.
        fs.hash_seed = platform.random() | 1;
        fs.provider().provide_fixed()?;
        fs.fill_header(options)?;
        fs.block_map().mark_fixed_blocks()?;
        let loaded = state.clean && snapshot::load(&fs, state)?;
        if options.read_only && !loaded {
            return Err(Error::NeedsRecovery);
        }
        if !options.read_only {
            let (journal, end) = (fs.geometry.journal_block, fs.geometry.segment_table_block);
            fs.provider().provide_image(journal * BLOCK_BYTES, (end - journal) * BLOCK_BYTES)?;
            // From here on the snapshot is void: it lacks what is allocated from now on.
            let word = State { epoch: fs.epoch, clean: false }.word();
            fs.pm.persist(fs.pm.retract(&fs.superblock()?.state, word));
            if fs.has_file_flags() {
                // A crash may have left it incomplete.
                fs.set_feature_of_flags()?;
            }
        }
        let renames = if loaded { 0 } else { fs.recovery().prepare_scan(state.clean)? };
        Ok(Recovery { fs, scan: !loaded, renames, began_ns })
    }

    /// The attach of a further process: uses the DRAM region that another process built. Readers in
    /// a region of writers map the image writable, since the shared state includes pointers in
    /// inodes.
    pub fn attach_shared(
        pm: Region<M>,
        dram: Region<Direct>,
        platform: &'static dyn Platform,
        liveness: Liveness,
        options: &AttachOptions,
    ) -> Result<Fs<M>> {
        if dram.first::<DramHeader>()?.phase.load(Acquire) != Phase::Ready as u32 {
            return Err(Error::Busy);
        }
        let header = ready_header(&dram)?;
        let geometry = shared_geometry(&pm, header, platform, !options.read_only)?;
        let capacity_blocks = header.capacity_blocks.load(Relaxed);
        let dimensions = (geometry, capacity_blocks, header.slots_max.load(Relaxed));
        let mut fs = Self::view((pm, dram), dimensions, platform, liveness, options)?;
        let header = fs.header()?;
        let read_only = header.read_only.load(Relaxed) != 0;
        if read_only && !options.read_only {
            return Err(Error::ReadOnly);
        }
        let superblock = fs.superblock()?;
        let epoch = header.epoch.load(Relaxed);
        let same_epoch = read_only || epoch == superblock.state().epoch as u64;
        let same_uuid =
            superblock.uuid.iter().zip(&header.uuid).all(|(image, region)| image.load() == region.load(Relaxed));
        let same_region = header.cached_files_max.load(Relaxed) == options.cached_files_max;
        if !same_epoch || !same_uuid || !same_region {
            return Err(Error::Invalid);
        }
        if !options.image.fits(header.image_identity()) {
            return Err(Error::OtherImage);
        }
        let hash_seed = header.hash_seed.load(Relaxed);
        (fs.epoch, fs.hash_seed, fs.untouched) = (epoch as u32, hash_seed, read_only);
        Ok(fs)
    }

    /// Records in the region the secret part of the name of the directory with its processes' lock
    /// file.
    pub fn set_directory_secret(&self, secret: [u64; 2]) -> Result<()> {
        for (cell, word) in self.header()?.directory_secret.iter().zip(secret) {
            cell.store(word, Relaxed);
        }
        Ok(())
    }

    /// Combines the two regions, after a check of the DRAM region's length.
    fn view(
        (pm, dram): (Region<M>, Region<Direct>),
        (geometry, capacity_blocks, slots_max): (Geometry, u64, u64),
        platform: &'static dyn Platform,
        liveness: Liveness,
        options: &AttachOptions,
    ) -> Result<Fs<M>> {
        let layout = DramLayout::new(&geometry, capacity_blocks, options.cached_files_max, slots_max);
        if dram.length() < layout.length {
            return Err(BadOffset { offset: dram.length(), length: layout.length }.into());
        }
        let dram = Dram::new(dram, layout)?;
        let read_only = options.read_only;
        let reserved_blocks = pm.first::<Superblock>()?.reserved_blocks();
        // A process may have mapped the image just before it grew.
        let is_image_only = pm.length() <= geometry.blocks * BLOCK_BYTES;
        // SAFETY: the header is mapped as long as the region, which the file system keeps. The size
        // in it is stored after the image's file has it.
        let pm = unsafe { pm.following(NonNull::from(&dram.header()?.image_size).cast()) };
        let pm = match pm.tracking_area() {
            None if is_image_only => {
                let tracking = dram.tracking(capacity_blocks * BLOCK_BYTES, platform.sleeping())?;
                pm.trackable(tracking)?
            }
            _ => pm,
        };
        Ok(Fs {
            regions: Regions { pm, dram, geometry: Areas::new(geometry), platform },
            liveness,
            epoch: 0,
            hash_seed: 0,
            read_only,
            untouched: read_only,
            reserved_blocks,
            spare_blocks: spare_blocks(geometry.data_end() - geometry.data_block),
            ablation: Ablated::none(),
        })
    }

    /// Sets the header's nonzero fields in a fresh region.
    fn fill_header(&self, options: &AttachOptions) -> Result<()> {
        let (header, superblock) = (self.header()?, self.superblock()?);
        for (cell, word) in header.uuid.iter().zip(&superblock.uuid) {
            cell.store(word.load(), Relaxed);
        }
        header.version.store(DRAM_VERSION, Relaxed);
        header.epoch.store(self.epoch as u64, Relaxed);
        header.cached_files_max.store(options.cached_files_max, Relaxed);
        let geometry = self.geometry.attached();
        header.slots_max.store(self.dram.layout.slots_max, Relaxed);
        let capacity_blocks = options.capacity_blocks(geometry);
        header.capacity_blocks.store(capacity_blocks, Relaxed);
        header.image_bytes_max.store(capacity_blocks * BLOCK_BYTES, Relaxed);
        header.image_size.store(size_word(geometry), Relaxed);
        header.is_reserved.store(options.is_reserved.into(), Relaxed);
        header.data_opened.store(geometry.data_end(), Relaxed);
        header.read_only.store(options.read_only as u32, Relaxed);
        header.hash_seed.store(self.hash_seed, Relaxed);
        for (cell, word) in header.image.iter().zip(options.image.words()) {
            cell.store(word, Relaxed);
        }
        header.global_epoch.store(FIRST_EPOCH, Relaxed);
        // Index 0 means "none".
        header.cachelets_next.store(1, Relaxed);
        self.init_mindex()?;
        header.magic.store(DRAM_MAGIC, Release);
        Ok(())
    }
}

/// The secret part of the name of the directory with the lock file, for a process that maps the
/// region and has not attached yet.
pub fn directory_secret(dram: &Region<Direct>) -> Result<[u64; 2]> {
    let header = ready_header(dram)?;
    Ok(header.directory_secret.each_ref().map(|word| word.load(Relaxed)))
}

/// The header of a region of this version of the program.
fn ready_header(dram: &Region<Direct>) -> Result<&DramHeader> {
    let header = dram.first::<DramHeader>()?;
    let is_known = header.magic.load(Acquire) == DRAM_MAGIC && header.version.load(Relaxed) == DRAM_VERSION;
    if is_known { Ok(header) } else { Err(Error::Invalid) }
}

/// The geometry of an image in use. Its size is the one that the processes know: the description
/// may be ahead.
fn shared_geometry<M: Memory>(
    pm: &Region<M>,
    header: &DramHeader,
    platform: &dyn Platform,
    writing: bool,
) -> Result<Geometry> {
    /// Waits of 1 ms for a description that is just being replaced.
    const WAITS: u32 = 100;
    let mut waits = 0;
    let described = loop {
        match Superblock::check_within(pm, writing, u64::MAX) {
            Err(SuperblockError::Checksum { .. } | SuperblockError::Geometry) if waits < WAITS => {
                waits += 1;
                platform.wait(&AtomicU32::new(0), 0, 1);
            }
            checked => break checked.map_err(Error::Superblock)?,
        }
    };
    let now = geometry_with(&described, header.image_size.load(Acquire)).ok_or(Error::Invalid)?;
    let is_plausible = (now.blocks..=Geometry::BLOCKS_MAX).contains(&header.capacity_blocks.load(Relaxed));
    if is_plausible { Ok(now) } else { Err(Error::Invalid) }
}

impl<M: Memory> Recovery<M> {
    /// Removes parts of the engine for a measurement, in watched memory and before the first
    /// lookup. No further process may attach, since it would not know of the ablation.
    pub fn ablate(mut self, ablation: Ablation) -> Result<Recovery<M>> {
        self.fs.ablate(ablation)?;
        Ok(self)
    }

    /// Whether the image is scanned. Otherwise its maps were loaded, and there is no work to share.
    pub fn scans(&self) -> bool {
        self.scan
    }

    /// Takes part in the scan until it is done. Call it from as many threads as there are
    /// processors.
    pub fn work(&self) -> Result<()> {
        if self.scan { self.fs.recovery().scan() } else { Ok(()) }
    }

    /// Ends recovery once all workers have returned: the file system is ready.
    pub fn finish(self) -> Result<(Fs<M>, RecoveryReport)> {
        // There may have been no worker.
        self.work()?;
        let fs = self.fs;
        let header = fs.header()?;
        let mut report = if self.scan { fs.recovery().end_scan()? } else { RecoveryReport::default() };
        report.renames = self.renames;
        report.names = header.recovery[1].load(Relaxed);
        report.inodes = header.recovery[2].load(Relaxed);
        header.blocks_free.store(fs.block_map().count_groups()?, Relaxed);
        fs.list_slabs()?;
        report.duration_ns = (fs.now_ns() - self.began_ns).max(0) as u64;
        header.recovery[0].store(report.duration_ns, Relaxed);
        header.recovery[3].store(report.scanned as u64, Relaxed);
        header.phase.store(Phase::Ready as u32, Release);
        Ok((fs, report))
    }
}

impl<M: Memory> Fs<M> {
    /// Gives all slabs with free lines to the first shard, which is the first to be entered.
    fn list_slabs(&self) -> Result<()> {
        let first = self.enter()?;
        snapshot::for_slabs(self, |block| first.allocator().push_slab(block, self.dram.slab(block)?))
    }
}
