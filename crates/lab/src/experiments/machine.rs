//! What experiments are run on: a system with an image in this process' memory, behind one face.
//!
//! All subjects pay the same: each is reached through the same calls, and its image lies in memory with the same emulated delays.

use crate::calls::{Calls, System as _};
use crate::directfs::DirectFs;
use crate::front::{ByVfsNames, DentryCache, Front, FrontOptions, IndexKind, Mindex, Names};
use crate::nova::Nova;
use crate::physical::{MkfsOptions, MountOptions, PhysicalFs};
use crate::pmfs::Pmfs;
use crate::soupfs::SoupFs;
use engine::{AttachOptions, Fs};
use pmem::{Delayed, Delays, Direct, MapError, Mapping, Region};
use posix::Errno;
use std::sync::Arc;

/// Memory as experiments have it.
pub type Slow = Arc<Delayed>;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// This project's file system, as programs under `directfs run` use it.
    DirectFs,
    /// Dentry and inode cache over the NOVA-like file system.
    Nova,
    /// The same over the PMFS-like one.
    Pmfs,
    /// The same over SoupFS.
    SoupFs,
    /// No dentry cache, over the NOVA-like file system.
    ByVfs,
    /// Global index and cachelets over the NOVA-like file system.
    CacheletNova,
    /// The same without the inode quick path.
    CacheletNovaSlow,
    /// The same with a radix tree as index.
    CacheletNovaRadix,
    /// The same with a B-tree as index.
    CacheletNovaBTree,
    /// Global index and cachelets over the PMFS-like file system.
    CacheletPmfs,
    /// The same without the inode quick path.
    CacheletPmfsSlow,
}

impl Subject {
    /// As the papers call it.
    pub const fn name(self) -> &'static str {
        match self {
            Subject::DirectFs => "DirectFS",
            Subject::Nova => "NOVA",
            Subject::Pmfs => "PMFS",
            Subject::SoupFs => "SoupFS",
            Subject::ByVfs => "ByVFS",
            Subject::CacheletNova => "NOVA_N",
            Subject::CacheletNovaSlow => "NOVA_Nnqp",
            Subject::CacheletNovaRadix => "NOVA_N radix",
            Subject::CacheletNovaBTree => "NOVA_N B-tree",
            Subject::CacheletPmfs => "PMFS_N",
            Subject::CacheletPmfsSlow => "PMFS_Nnqp",
        }
    }
}

/// How large a machine has to be.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Files at one time.
    pub files: u64,
    /// Bytes of content of all files.
    pub content_bytes: u64,
    /// How often SoupFS's persister comes; zero: only when asked.
    pub persist_period_ms: u64,
}

impl Plan {
    /// For files without content.
    pub const fn of_files(files: u64) -> Plan {
        Plan { files, content_bytes: 0, persist_period_ms: 0 }
    }

    /// Bytes of an image for it, generously: PMFS keeps a directory's free entries, NOVA a log of each inode.
    pub const fn image_bytes(&self) -> u64 {
        let names = self.files * (10 << 10) + (24 << 20);
        (names + self.content_bytes * 2).next_multiple_of(2 << 20)
    }
}

/// Why an experiment cannot be carried out.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No memory for an image.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A system of the lab.
    #[error(transparent)]
    FileSystem(#[from] crate::Error),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// A call failed that must not.
    #[error("a call of the workload failed: {0}; this is a defect of the system under it")]
    Call(#[from] Errno),
    /// More memory than there is.
    #[error(
        "{experiment} needs {} MiB of memory and {} MiB are available: end other programs, or take the smaller sizes of --quick", needed >> 20, available >> 20
    )]
    Memory {
        /// Which.
        experiment: &'static str,
        /// Bytes.
        needed: u64,
        /// Bytes.
        available: u64,
    },
    /// Somebody asked for the end.
    #[error("interrupted")]
    Interrupted,
}

/// The results of this module.
pub type Result<T> = std::result::Result<T, Failure>;

/// What a thread does with the calls of a machine.
pub type Work<'w> = &'w mut dyn FnMut(&dyn Calls) -> Result<()>;

/// A mounted system. Threads use it at the same time.
pub trait Machine: Send + Sync {
    /// Lets the calling thread in, for the time of `work`.
    fn with(&self, work: Work<'_>) -> Result<()>;
    /// Unmounts and mounts again, so that no name and no attribute is in a cache; from then on with these delays.
    fn remount(&mut self, delays: Delays) -> Result<()>;
    /// Goes without unmounting, as a crash of the process does, and mounts again: what that took, recovery included, in nanoseconds.
    fn crash(&mut self, delays: Delays) -> Result<u64>;
}

/// Makes a machine with an empty file system.
pub fn machine(subject: Subject, plan: Plan, delays: Delays) -> Result<Box<dyn Machine>> {
    let quick = FrontOptions::default();
    let slow = FrontOptions { inode_quick_path: false, ..quick };
    let with = |index| FrontOptions { index, ..quick };
    Ok(match subject {
        Subject::DirectFs => Box::new(Own::new(plan, delays)?),
        Subject::Nova => front::<Nova<Slow>, DentryCache>(plan, delays, quick)?,
        Subject::Pmfs => front::<Pmfs<Slow>, DentryCache>(plan, delays, quick)?,
        Subject::SoupFs => front::<SoupFs<Slow>, DentryCache>(plan, delays, quick)?,
        Subject::ByVfs => front::<Nova<Slow>, ByVfsNames>(plan, delays, quick)?,
        Subject::CacheletNova => front::<Nova<Slow>, Mindex>(plan, delays, quick)?,
        Subject::CacheletNovaSlow => front::<Nova<Slow>, Mindex>(plan, delays, slow)?,
        Subject::CacheletNovaRadix => front::<Nova<Slow>, Mindex>(plan, delays, with(IndexKind::Radix))?,
        Subject::CacheletNovaBTree => front::<Nova<Slow>, Mindex>(plan, delays, with(IndexKind::BTree))?,
        Subject::CacheletPmfs => front::<Pmfs<Slow>, Mindex>(plan, delays, quick)?,
        Subject::CacheletPmfsSlow => front::<Pmfs<Slow>, Mindex>(plan, delays, slow)?,
    })
}

fn memory(delays: Delays) -> Slow {
    Arc::new(Delayed::new(delays))
}

/// Memory whose pages are there: no experiment measures page faults.
pub(super) fn populated(bytes: u64) -> Result<Arc<Mapping>> {
    let mapping = Mapping::anonymous(bytes)?;
    mapping.populate_write(0..bytes).map_err(|_| Errno::ENOMEM)?;
    Ok(Arc::new(mapping))
}

/// A front over a physical file system.
pub struct Fronted<P: PhysicalFs<Memory = Slow>, N: Names<P>> {
    image: Arc<Mapping>,
    options: FrontOptions,
    files: u32,
    front: Option<Front<P, N>>,
}

fn front<P: PhysicalFs<Memory = Slow>, N: Names<P>>(
    plan: Plan,
    delays: Delays,
    options: FrontOptions,
) -> Result<Box<dyn Machine>> {
    Ok(Box::new(Fronted::<P, N>::new(plan, delays, options)?))
}

impl<P: PhysicalFs<Memory = Slow>, N: Names<P>> Fronted<P, N> {
    /// With an empty file system.
    pub fn new(plan: Plan, delays: Delays, options: FrontOptions) -> Result<Fronted<P, N>> {
        let image = populated(plan.image_bytes())?;
        P::mkfs(&image.region(memory(Delays::default()))?, &MkfsOptions::default())?;
        let files = (plan.files as u32).saturating_mul(2).max(1 << 14);
        let mount = MountOptions { persist_period_ms: plan.persist_period_ms, ..MountOptions::default() };
        let options = FrontOptions { files_max: files, names_max: files, mount, ..options };
        let mut machine = Fronted { image, options, files: plan.files as u32 + 1000, front: None };
        machine.mount(delays)?;
        Ok(machine)
    }

    fn mount(&mut self, delays: Delays) -> Result<()> {
        let front = Front::mount(self.image.region(memory(delays))?, self.options)?;
        front.touch(self.files);
        self.front = Some(front);
        Ok(())
    }

    /// The front.
    pub fn front(&self) -> Result<&Front<P, N>> {
        // Missing only after a mount that failed.
        self.front.as_ref().ok_or(Failure::Call(Errno::EIO))
    }
}

impl<P: PhysicalFs<Memory = Slow>, N: Names<P>> Machine for Fronted<P, N> {
    fn with(&self, work: Work<'_>) -> Result<()> {
        work(self.front()?)
    }

    fn remount(&mut self, delays: Delays) -> Result<()> {
        if let Some(front) = self.front.take() {
            front.unmount()?;
        }
        self.mount(delays)
    }

    fn crash(&mut self, delays: Delays) -> Result<u64> {
        drop(self.front.take());
        let region = self.image.region(memory(delays))?;
        let start = std::time::Instant::now();
        let front = Front::mount(region, self.options)?;
        let took_ns = start.elapsed().as_nanos() as u64;
        self.front = Some(front);
        Ok(took_ns)
    }
}

/// DirectFS.
struct Own {
    // Before what it lies in.
    fs: Option<Fs<Slow>>,
    dram: Option<Arc<Mapping>>,
    image: Arc<Mapping>,
}

impl Own {
    fn new(plan: Plan, delays: Delays) -> Result<Own> {
        let image = populated(plan.image_bytes())?;
        let options = engine::MkfsOptions {
            uuid: *b"an experiment...",
            label: [0; 64],
            inodes_max: plan.files * 2 + 4096,
            owner: (0, 0),
            permissions: 0o755,
            now_ns: posix::host::now_ns(),
            zeroed: true,
        };
        let region = image.region(memory(Delays::default()))?;
        engine::mkfs(&region, &options)?;
        let mut machine = Own { fs: None, dram: None, image };
        machine.attach(delays)?;
        Ok(machine)
    }

    fn attach(&mut self, delays: Delays) -> Result<u64> {
        let image = self.image.region(memory(delays))?;
        let options = AttachOptions::default();
        let layout = Fs::dram_layout(&image, &options)?;
        let dram = populated(layout.length)?;
        let start = std::time::Instant::now();
        // SAFETY: both mappings are kept in this value as long as the file system, whose field is dropped before theirs and replaced before them.
        let (image, of_dram) = unsafe {
            let image = Region::new(self.image.address(), self.image.length(), memory(delays));
            (image, Region::new(dram.address(), dram.length(), Direct))
        };
        let recovery = Fs::attach_first(image, of_dram, &posix::host::PLATFORM, &options)?;
        std::thread::scope(|scope| {
            let helper = scope.spawn(|| recovery.work());
            recovery.work()?;
            helper.join().unwrap_or(Ok(()))
        })?;
        self.fs = Some(recovery.finish()?.0);
        let took_ns = start.elapsed().as_nanos() as u64;
        self.dram = Some(dram);
        Ok(took_ns)
    }
}

impl Machine for Own {
    fn with(&self, work: Work<'_>) -> Result<()> {
        let fs = self.fs.as_ref().ok_or(Failure::Call(Errno::EIO))?;
        work(&DirectFs(fs).session()?)
    }

    fn remount(&mut self, delays: Delays) -> Result<()> {
        if let Some(fs) = self.fs.take() {
            fs.detach_last()?;
        }
        self.attach(delays).map(drop)
    }

    fn crash(&mut self, delays: Delays) -> Result<u64> {
        drop(self.fs.take());
        self.attach(delays)
    }
}
