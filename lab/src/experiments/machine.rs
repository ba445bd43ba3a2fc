//! The subjects of experiments: systems with an image in this process's memory, behind one
//! interface.
//!
//! All subjects pay the same costs: each is reached through the same calls, and its image is in
//! memory with the same emulated delays.

use super::memory::Emulated;
use crate::ablation::Variant;
use crate::calls::{Calls, System as _};
use crate::directfs::DirectFs;
use crate::multicore::named_memory::NamedMemory;
use crate::nova::Nova;
use crate::physical::{MkfsOptions, MountOptions, PhysicalFs};
use crate::pmfs::Pmfs;
use crate::soupfs::SoupFs;
use crate::squirrelfs::SquirrelFs;
use crate::vfs::{ByVfsNames, DentryCache, Mindex, Names, Vfs, VfsOptions};
use crate::virtual_time::held;
use engine::dram::{Bucket, Cachelet, DirectoryView, DramHeader, DramLayout, Group, SlabState, ThreadSlot};
use engine::{Ablation, AttachOptions, Fs};
use pmem::{BLOCK_BYTES, Delays, Direct, MapError, Mapping, Region};
use posix::Errno;
use std::mem::offset_of;
use std::sync::Arc;
use std::time::Instant;

/// The memory type of experiments.
pub type Slow = Arc<Emulated>;

/// A measured system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// DirectFS, as programs under `directfs run` use it.
    DirectFs,
    /// DirectFS with a part disabled or replaced.
    Ablated(Variant),
    /// Dentry and inode cache over the NOVA-like file system.
    Nova,
    /// The cachelet system over the PMFS-like one.
    Pmfs,
    /// The cachelet system over SoupFS.
    SoupFs,
    /// Dentry and inode cache over the SquirrelFS-like file system.
    SquirrelFs,
    /// No dentry cache, over the NOVA-like file system.
    ByVfs,
    /// Global index and cachelets over the NOVA-like file system.
    CacheletNova,
    /// That system without the inode quick path.
    CacheletNovaSlow,
    /// Global index and cachelets over the PMFS-like file system.
    CacheletPmfs,
    /// That system without the inode quick path.
    CacheletPmfsSlow,
}

impl Subject {
    /// The papers' name.
    pub const fn name(self) -> &'static str {
        match self {
            Subject::DirectFs | Subject::Ablated(Variant::Whole) => "DirectFS",
            Subject::Ablated(Variant::NoQuickPath) => "DirectFS_nqp",
            Subject::Ablated(Variant::Radix) => "DirectFS_r",
            Subject::Ablated(Variant::BTree) => "DirectFS_b",
            Subject::Ablated(Variant::LockedLog) => "DirectFS_nocon",
            Subject::Ablated(Variant::AsPrinted) => "DirectFS_paper",
            Subject::Nova => "NOVA",
            Subject::Pmfs => "PMFS",
            Subject::SoupFs => "SoupFS",
            Subject::SquirrelFs => "SquirrelFS",
            Subject::ByVfs => "ByVFS",
            Subject::CacheletNova => "NOVA_N",
            Subject::CacheletNovaSlow => "NOVA_Nnqp",
            Subject::CacheletPmfs => "PMFS_N",
            Subject::CacheletPmfsSlow => "PMFS_Nnqp",
        }
    }

    /// Whether a kernel would walk its paths in the VFS. The systems with a global index have a
    /// walk of their own in the papers.
    pub const fn has_vfs(self) -> bool {
        matches!(self, Subject::Nova | Subject::Pmfs | Subject::SoupFs | Subject::SquirrelFs | Subject::ByVfs)
    }
}

/// Generous image bytes per file: PMFS keeps free entries of directories, NOVA a log for each
/// inode.
const FILE_BYTES: u64 = 10 << 10;
/// `FILE_BYTES` for a file that only ever has a name and an inode.
const NAME_BYTES: u64 = 2 << 10;

/// Additional bytes for a name that is created, renamed and removed in every round. If a VFS layer
/// keeps the offsets of names in NOVA's log, a directory's log is not compacted while it has names.
const HISTORY_BYTES: u64 = 4 << 10;

/// The required size of a machine.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Maximum number of files.
    pub files: u64,
    /// Image bytes per file, without its content.
    pub file_bytes: u64,
    /// Content bytes of all files.
    pub content_bytes: u64,
    /// Interval of SoupFS's persister; zero: only on request.
    pub persist_period_ms: u64,
}

impl Plan {
    /// For files without content.
    pub const fn of_files(files: u64) -> Plan {
        Plan { files, file_bytes: FILE_BYTES, content_bytes: 0, persist_period_ms: 0 }
    }

    /// For files that are only created, renamed and removed.
    pub const fn of_names(files: u64) -> Plan {
        Plan { file_bytes: NAME_BYTES, ..Plan::of_files(files) }
    }

    /// `of_names` for many rounds.
    pub const fn of_busy_names(files: u64) -> Plan {
        Plan { file_bytes: NAME_BYTES + HISTORY_BYTES, ..Plan::of_files(files) }
    }

    /// Image bytes needed.
    pub const fn image_bytes(&self) -> u64 {
        let names = self.files * self.file_bytes + (24 << 20);
        (names + self.content_bytes * 2).next_multiple_of(2 << 20)
    }
}

/// Why an experiment cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No memory for an image.
    #[error(transparent)]
    Map(#[from] MapError),
    /// An error of a lab system.
    #[error(transparent)]
    FileSystem(#[from] crate::Error),
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// A call failed that must succeed.
    #[error("a call of the workload failed: {0}; this is a defect of the system under test")]
    Call(#[from] Errno),
    /// A call of the running kernel failed.
    #[error(
        "a call of the running kernel failed: {0}; the experiment needs a directory that it can write, in /dev/shm or else in TMPDIR"
    )]
    Host(std::io::Error),
    /// A program of the experiment failed.
    #[error("{program} failed: {message}")]
    Program {
        /// The program.
        program: String,
        /// What it printed.
        message: String,
    },
    /// Calls cannot be recorded instruction by instruction.
    #[error("a call could not be recorded: {0}")]
    Record(#[from] std::io::Error),
    /// There is not enough memory.
    #[error(
        "{experiment} needs {} MiB of memory but {} MiB are available: end other programs, or use the smaller sizes of --quick", needed >> 20, available >> 20
    )]
    Memory {
        /// The experiment.
        experiment: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
    /// Other programs take the processors.
    #[error(
        "in each round the program waited for a processor, and parts of its time would be wrong: end other programs"
    )]
    Busy,
    /// The user interrupted the run.
    #[error("interrupted")]
    Interrupted,
}

/// The results of this module.
pub type Result<T> = std::result::Result<T, Failure>;

/// A thread's work with the calls of a machine.
pub type Work<'w> = &'w mut dyn FnMut(&dyn Calls) -> Result<()>;

/// A mounted system, used by several threads.
pub trait Machine: Send + Sync {
    /// Opens a session for the calling thread and runs `work` in it.
    fn with(&self, work: Work<'_>) -> Result<()>;
    /// Sets the delays and empties the emulated cache.
    fn slow_down(&mut self, delays: Delays);
    /// Unmounts and mounts again without delays, so that no name or attribute is cached. Then sets
    /// the delays.
    fn remount(&mut self, delays: Delays) -> Result<()>;
    /// The memory areas, for reports.
    fn named_memory(&self) -> Vec<NamedMemory>;
    /// Simulates a crash of the process and mounts again, with so many threads where recovery
    /// shares its work.
    fn crash(&mut self, delays: Delays, threads: usize) -> Result<Recovered>;
}

/// Nanoseconds of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// The whole mount.
    pub mount_ns: u64,
    /// The part in which all threads scan the image; none for systems without such a part.
    pub scan_ns: Option<u64>,
}

/// Creates a machine with an empty file system, without delays.
pub fn machine(subject: Subject, plan: Plan) -> Result<Box<dyn Machine>> {
    /// Recorded calls must not depend on the number of processors.
    const SHARDS_RECORDED: usize = 4;
    let shards = if held::is_fixed() { SHARDS_RECORDED } else { MountOptions::default().shards };
    machine_for(subject, plan, shards)
}

/// `machine` with enough shards for this many threads.
pub fn machine_for(subject: Subject, plan: Plan, shards: usize) -> Result<Box<dyn Machine>> {
    let mount = MountOptions { shards, ..MountOptions::default() };
    let quick = VfsOptions { mount, ..VfsOptions::default() };
    let slow = VfsOptions { inode_quick_path: false, ..quick };
    Ok(match subject {
        Subject::DirectFs => directfs(plan, 0)?,
        // Plans have space for about twice the number of names in use.
        Subject::Ablated(variant) => ablated(plan, variant.ablation(plan.files / 2))?,
        Subject::Nova => vfs::<Nova<Slow>, DentryCache>(plan, quick)?,
        Subject::Pmfs => vfs::<Pmfs<Slow>, DentryCache>(plan, quick)?,
        Subject::SoupFs => vfs::<SoupFs<Slow>, DentryCache>(plan, quick)?,
        Subject::SquirrelFs => vfs::<SquirrelFs<Slow>, DentryCache>(plan, quick)?,
        Subject::ByVfs => vfs::<Nova<Slow>, ByVfsNames>(plan, quick)?,
        Subject::CacheletNova => vfs::<Nova<Slow>, Mindex>(plan, quick)?,
        Subject::CacheletNovaSlow => vfs::<Nova<Slow>, Mindex>(plan, slow)?,
        Subject::CacheletPmfs => vfs::<Pmfs<Slow>, Mindex>(plan, quick)?,
        Subject::CacheletPmfsSlow => vfs::<Pmfs<Slow>, Mindex>(plan, slow)?,
    })
}

/// DirectFS with caches for this many files; zero: for all files of the image.
pub fn directfs(plan: Plan, cached_files_max: u64) -> Result<Box<dyn Machine>> {
    let options = AttachOptions { cached_files_max, ..AttachOptions::default() };
    Ok(Box::new(DirectFsMachine::new(plan, options, Ablation::default())?))
}

/// DirectFS with an ablation.
pub fn ablated(plan: Plan, ablation: Ablation) -> Result<Box<dyn Machine>> {
    Ok(Box::new(DirectFsMachine::new(plan, AttachOptions::default(), ablation)?))
}

/// Memory with populated pages: no experiment measures page faults. The pages are huge, since
/// kernels map all memory with huge pages and DirectFS would request them while it is measured.
pub(super) fn populated(bytes: u64) -> Result<Arc<Mapping>> {
    let mapping = Mapping::anonymous(bytes)?;
    mapping.populate_huge(0..bytes).map_err(|_| Errno::ENOMEM)?;
    Ok(Arc::new(mapping))
}

/// A VFS layer over a physical file system.
pub struct VfsMachine<P: PhysicalFs<Memory = Slow>, N: Names<P>> {
    image: Arc<Mapping>,
    memory: Slow,
    options: VfsOptions,
    files: u32,
    vfs: Option<Vfs<P, N>>,
}

fn vfs<P: PhysicalFs<Memory = Slow>, N: Names<P>>(plan: Plan, options: VfsOptions) -> Result<Box<dyn Machine>> {
    Ok(Box::new(VfsMachine::<P, N>::new(plan, options)?))
}

impl<P: PhysicalFs<Memory = Slow>, N: Names<P>> VfsMachine<P, N> {
    /// Creates a machine with an empty file system.
    pub fn new(plan: Plan, options: VfsOptions) -> Result<VfsMachine<P, N>> {
        let (image, memory) = (populated(plan.image_bytes())?, Slow::default());
        P::mkfs(&image.region(memory.clone())?, &MkfsOptions::default())?;
        let files = (plan.files as u32).saturating_mul(2).max(1 << 14);
        let mount = MountOptions { persist_period_ms: plan.persist_period_ms, ..options.mount };
        let options = VfsOptions { files_max: files, names_max: files, mount, ..options };
        let mut machine = VfsMachine { image, memory, options, files: plan.files as u32 + 1000, vfs: None };
        machine.mount()?;
        Ok(machine)
    }

    fn mount(&mut self) -> Result<u64> {
        let region = self.image.region(self.memory.clone())?;
        let start = Instant::now();
        let vfs = Vfs::mount(region, self.options)?;
        let took_ns = start.elapsed().as_nanos() as u64;
        vfs.touch(self.files);
        self.vfs = Some(vfs);
        Ok(took_ns)
    }

    /// The VFS layer.
    pub fn vfs(&self) -> Result<&Vfs<P, N>> {
        // None only after a failed mount.
        self.vfs.as_ref().ok_or(Failure::Call(Errno::EIO))
    }
}

impl<P: PhysicalFs<Memory = Slow>, N: Names<P>> Machine for VfsMachine<P, N> {
    fn with(&self, work: Work<'_>) -> Result<()> {
        work(self.vfs()?)
    }

    fn slow_down(&mut self, delays: Delays) {
        self.memory.slow_down(delays);
    }

    fn remount(&mut self, delays: Delays) -> Result<()> {
        self.slow_down(Delays::default());
        if let Some(vfs) = self.vfs.take() {
            vfs.unmount()?;
        }
        self.mount()?;
        self.slow_down(delays);
        Ok(())
    }

    fn named_memory(&self) -> Vec<NamedMemory> {
        let mut named_memory = self.vfs.as_ref().map_or_else(Vec::new, Vfs::named_memory);
        named_memory.push(
            NamedMemory::at("the image, block", self.image.address() as u64, self.image.length()).each(BLOCK_BYTES),
        );
        named_memory
    }

    fn crash(&mut self, delays: Delays, _threads: usize) -> Result<Recovered> {
        drop(self.vfs.take());
        self.slow_down(delays);
        Ok(Recovered { mount_ns: self.mount()?, scan_ns: None })
    }
}

/// DirectFS.
struct DirectFsMachine {
    // Declared before the mappings that it uses.
    fs: Option<Fs<Slow>>,
    dram: Option<(Arc<Mapping>, DramLayout)>,
    image: Arc<Mapping>,
    memory: Slow,
    options: AttachOptions,
    ablation: Ablation,
}

/// Threads of a mount that is not measured.
const THREADS: usize = 2;

impl DirectFsMachine {
    fn new(plan: Plan, attaching: AttachOptions, ablation: Ablation) -> Result<DirectFsMachine> {
        let (image, memory) = (populated(plan.image_bytes())?, Slow::default());
        let options = engine::MkfsOptions {
            uuid: *b"an experiment...",
            label: [0; 64],
            inodes_max: plan.files * 2 + 4096,
            owner: (0, 0),
            permissions: 0o755,
            now_ns: held::now_ns(),
            zeroed: true,
        };
        let region = image.region(memory.clone())?;
        engine::mkfs(&region, &options)?;
        let mut machine = DirectFsMachine { fs: None, dram: None, image, memory, options: attaching, ablation };
        machine.attach(THREADS)?;
        Ok(machine)
    }

    fn attach(&mut self, threads: usize) -> Result<Recovered> {
        let image = self.image.region(self.memory.clone())?;
        let options = &self.options;
        let layout = Fs::dram_layout(&image, options)?;
        let dram = Arc::new(Mapping::anonymous(layout.length)?);
        // Populates what the engine uses. The slots of threads, and the tables of programs, stay
        // holes.
        for part in [0..layout.upper, layout.block_bits..layout.upper_files, layout.cachelets..layout.slots] {
            dram.populate_huge(part).map_err(|_| Errno::ENOMEM)?;
        }
        let start = Instant::now();
        // SAFETY: this value keeps both mappings as long as the file system, whose field is dropped
        // before theirs and replaced before them.
        let (image, of_dram) = unsafe {
            let image = Region::new(self.image.address(), self.image.length(), self.memory.clone());
            (image, Region::new(dram.address(), dram.length(), Direct))
        };
        let recovery = Fs::attach_first(image, of_dram, &super::clock::PLATFORM, engine::Liveness::alone(), options)?
            .ablate(self.ablation)?;
        let scan = Instant::now();
        std::thread::scope(|scope| {
            // With two workers the order of the index would depend on their speed.
            let helpers = if held::is_fixed() { 0 } else { threads.saturating_sub(1) };
            let helpers: Vec<_> = (0..helpers).map(|_| scope.spawn(|| recovery.work())).collect();
            recovery.work()?;
            helpers.into_iter().try_for_each(|helper| helper.join().unwrap_or(Ok(())))
        })?;
        let scan_ns = Some(scan.elapsed().as_nanos() as u64);
        self.fs = Some(recovery.finish()?.0);
        let mount_ns = start.elapsed().as_nanos() as u64;
        self.dram = Some((dram, layout));
        Ok(Recovered { mount_ns, scan_ns })
    }
}

impl Machine for DirectFsMachine {
    fn with(&self, work: Work<'_>) -> Result<()> {
        let fs = self.fs.as_ref().ok_or(Failure::Call(Errno::EIO))?;
        let directfs = DirectFs(fs);
        if self.ablation.as_printed { work(&directfs.session_as_printed()?) } else { work(&directfs.session()?) }
    }

    fn slow_down(&mut self, delays: Delays) {
        self.memory.slow_down(delays);
    }

    fn remount(&mut self, delays: Delays) -> Result<()> {
        self.slow_down(Delays::default());
        if let Some(fs) = self.fs.take() {
            fs.detach_last()?;
        }
        self.attach(THREADS)?;
        self.slow_down(delays);
        Ok(())
    }

    fn named_memory(&self) -> Vec<NamedMemory> {
        let mut named_memory =
            self.dram.as_ref().map_or_else(Vec::new, |(dram, layout)| dram_named_memory(dram, layout));
        named_memory.push(
            NamedMemory::at("the image, block", self.image.address() as u64, self.image.length()).each(BLOCK_BYTES),
        );
        named_memory
    }

    fn crash(&mut self, delays: Delays, threads: usize) -> Result<Recovered> {
        drop(self.fs.take());
        self.slow_down(delays);
        self.attach(threads)
    }
}

/// The areas of DirectFS's DRAM region.
fn dram_named_memory(dram: &Mapping, layout: &DramLayout) -> Vec<NamedMemory> {
    let base = dram.address() as u64;
    let area = |name: &str, start: u64, end: u64| NamedMemory::at(name, base + start, end - start);
    let header = [
        (0, "magic, epoch, seed"),
        (offset_of!(DramHeader, buckets), "sizes of the index, number of slots"),
        (offset_of!(DramHeader, grow_lock), "lock for growing the index"),
        (offset_of!(DramHeader, directory_move_lock), "lock for moving directories"),
        (offset_of!(DramHeader, evict_lock), "lock for eviction"),
        (offset_of!(DramHeader, reserved0), "rest"),
        (offset_of!(DramHeader, global_epoch), "grace epoch"),
        (offset_of!(DramHeader, reserved2), "rest"),
        (offset_of!(DramHeader, names), "count of names"),
        (offset_of!(DramHeader, cachelets_next), "pools of cachelets"),
        (offset_of!(DramHeader, segments), "segments of inodes"),
        (offset_of!(DramHeader, blocks_free), "count of free blocks"),
        (offset_of!(DramHeader, reserved7), "rest"),
        (offset_of!(DramHeader, group_cursor), "cursors of allocators"),
        (offset_of!(DramHeader, evict_head), "rest"),
        (offset_of!(DramHeader, recovery), "rest"),
        (offset_of!(DramHeader, segment_lock), "locks of allocators"),
        (offset_of!(DramHeader, reaped), "rest"),
        (offset_of!(DramHeader, inode_map), "locks and counts of inodes"),
        (offset_of!(DramHeader, reserved3), "rest"),
    ];
    let slot = [
        (0, "owner"),
        (offset_of!(ThreadSlot, pinned), "epoch"),
        (offset_of!(ThreadSlot, held), "locks held, intent"),
        (offset_of!(ThreadSlot, group), "own pools"),
    ];
    let cachelet = [
        (0, "version, mode, owner, size"),
        (offset_of!(Cachelet, number), "number"),
        (offset_of!(Cachelet, references), "references"),
        (offset_of!(Cachelet, changed_ns), "change time"),
        (offset_of!(Cachelet, generation), "state"),
        (offset_of!(Cachelet, lock), "lock"),
        (DirectoryView::LOG_TAIL_OFFSET, "tail of the log"),
        (DirectoryView::LOG_COUNTS_OFFSET, "count of entries"),
        (offset_of!(Cachelet, modified_ns), "time of change of content"),
        (offset_of!(Cachelet, inode), "offset of the inode"),
        (offset_of!(Cachelet, accessed_ns), "access time"),
        (offset_of!(Cachelet, sequence), "rest"),
    ];
    let bucket = [(0, "lock, version"), (offset_of!(Bucket, entries), "entries")];
    vec![
        NamedMemory::at("the DRAM region's header", base, size_of::<DramHeader>() as u64).fields(&header),
        area("map of thread slots, word", layout.slot_map, layout.tracking_header).each(8),
        area("thread slot", layout.slots, layout.provided).each(size_of::<ThreadSlot>() as u64).fields(&slot),
        area("bits of provided memory, word", layout.provided, layout.length).each(8),
        area("bits of free blocks, word", layout.block_bits, layout.groups).each(8),
        area("group of blocks", layout.groups, layout.slabs).each(size_of::<Group>() as u64),
        area("slab of lines", layout.slabs, layout.inode_bits).each(size_of::<SlabState>() as u64),
        area("bits of free inodes, word", layout.inode_bits, layout.inode_links).each(8),
        area("links of an inode", layout.inode_links, layout.block_shares),
        area("shares of a block", layout.block_shares, layout.block_owners),
        area("owner of a block", layout.block_owners, layout.buckets),
        area("cachelet", layout.cachelets, layout.slots).each(size_of::<Cachelet>() as u64).fields(&cachelet),
        area("index bucket", layout.buckets, layout.overflow).each(size_of::<Bucket>() as u64).fields(&bucket),
        area("index bucket (overflow)", layout.overflow, layout.upper_files)
            .each(size_of::<Bucket>() as u64)
            .fields(&bucket),
    ]
}
