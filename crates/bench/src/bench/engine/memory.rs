//! A file system in memory that ends with this process, however it ends: image and DRAM region are
//! unnamed files.

use anyhow::{Context, Result};
use engine::{AttachOptions, Fs, MkfsOptions, Recovery, RecoveryReport, mkfs};
use pmem::{Access, Direct, Mapping, Memory, Region};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Instant;
use tables::host::{PLATFORM, now_ns};

/// An image in memory.
pub struct MemoryImage {
    pm: Arc<Mapping>,
}

/// An image in memory, attached with its own DRAM region. Dropping it is a crash: nothing is
/// written back.
pub struct Attached<M: Memory> {
    fs: Fs<M>,
    dram: Arc<Mapping>,
    // Dropped after `fs`, which uses it.
    _pm: Arc<Mapping>,
    /// The recovery report.
    pub report: RecoveryReport,
    /// Duration of the attach, including the mapping.
    pub attach_ns: f64,
}

impl MemoryImage {
    /// Creates an image of `length` bytes for `inodes` files.
    pub fn make(length: u64, inodes: u64) -> Result<MemoryImage> {
        let pm = memory_file("directfs-image", length)?;
        let options = MkfsOptions {
            uuid: *b"benchmark in mem",
            label: [0; 64],
            inodes_max: inodes,
            owner: (0, 0),
            permissions: 0o755,
            now_ns: now_ns(),
            zeroed: true,
        };
        mkfs(&region(&pm, Direct), &options).context("cannot create an image in memory")?;
        Ok(MemoryImage { pm })
    }

    /// Attaches; recovery uses `threads` threads.
    pub fn attach<M: Memory + Clone>(&self, memory: M, threads: usize) -> Result<Attached<M>> {
        let options = AttachOptions::default();
        let layout = Fs::dram_layout(&region(&self.pm, memory.clone()), &options)?;
        let started = Instant::now();
        let dram = memory_file("directfs-dram", layout.length)?;
        let recovery = Fs::attach_first(
            region(&self.pm, memory),
            region(&dram, Direct),
            &PLATFORM,
            engine::Liveness::alone(),
            &options,
        )?;
        recover(&recovery, threads)?;
        let (fs, report) = recovery.finish()?;
        let attach_ns = started.elapsed().as_nanos() as f64;
        Ok(Attached { fs, dram, _pm: Arc::clone(&self.pm), report, attach_ns })
    }
}

impl<M: Memory> Attached<M> {
    /// The file system.
    pub fn fs(&self) -> &Fs<M> {
        &self.fs
    }

    /// Bytes of memory that the DRAM region uses.
    pub fn dram_bytes(&self) -> Result<u64> {
        let file = self.dram.file().context("the DRAM region is a file")?;
        Ok(file.metadata()?.blocks() * 512)
    }

    /// Detaches cleanly.
    pub fn leave(self) -> Result<()> {
        Ok(self.fs.detach_last()?)
    }
}

fn recover<M: Memory>(recovery: &Recovery<M>, threads: usize) -> engine::Result<()> {
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(|| recovery.work())).collect();
        let mut result = recovery.work();
        for helper in helpers {
            result = result.and(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        result
    })
}

fn memory_file(name: &str, length: u64) -> Result<Arc<Mapping>> {
    let what = || {
        format!(
            "cannot allocate {} of memory for the benchmark; measure fewer files (--sizes)",
            crate::units::size(length)
        )
    };
    let file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).with_context(what)?);
    file.set_len(length).with_context(what)?;
    Ok(Arc::new(Mapping::from_file(file, name, Access::ReadWrite).with_context(what)?))
}

fn region<M: Memory>(mapping: &Arc<Mapping>, memory: M) -> Region<M> {
    // SAFETY: mapped readable and writable; the owners of regions (`Attached`, or functions that
    // return earlier) keep the mapping longer.
    unsafe { Region::new(mapping.address(), mapping.length(), memory) }
}
