//! The costs of many files apart from the calls: bytes on the image and in memory, recovery after a
//! crash, first access to a large directory.

use super::directory::EngineDirectory;
use super::memory::MemoryImage;
use crate::bench::measure::Stopwatch;
use crate::bench::workloads::calls::{Directory, Round};
use crate::bench::workloads::names::NAME_BYTES;
use crate::terminal::{Of, Progress};
use anyhow::{Result, ensure};
use engine::{RecoveryReport, Thread};
use pmem::{BLOCK_BYTES, Direct, Memory};
use serde::Serialize;
use std::time::Instant;

/// Figures of one directory with many empty files.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Scale {
    /// Files in it.
    pub files: u64,
    /// Bytes on the image per file, including the name.
    pub pm_bytes_per_file: f64,
    /// Bytes of the name in that.
    pub name_bytes: u64,
    /// Bytes of memory per cached file.
    pub dram_bytes_per_file: f64,
    /// Recovery after a crash, including the attach.
    pub recovery_ns: f64,
    /// Threads used for recovery.
    pub recovery_threads: usize,
    /// Attach after a clean detach.
    pub attach_ns: f64,
    /// The first access to the directory after that, on one thread.
    pub index_ns: f64,
}

/// Fills a directory, crashes, recovers, detaches, attaches again.
pub fn measure(round: &Round, length: u64) -> Result<Scale> {
    let files = round.files();
    let mut progress =
        Progress::start(&format!("crash and recovery with {} files", crate::units::count(files)), Of::Steps(4));
    let image = MemoryImage::make(length, super::inodes(files))?;
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());

    let attached = image.attach(Direct, threads)?;
    let empty = attached.dram_bytes()?;
    let pm_bytes = fill(&attached.fs().enter()?, round)?;
    let dram_bytes = attached.dram_bytes()? - empty;
    // A crash: the DRAM region is lost, the image stays as it is.
    drop(attached);
    progress.at(1);

    let recovered = image.attach(Direct, threads)?;
    require_recovered(&recovered.report, files)?;
    let recovery_ns = recovered.attach_ns;
    progress.at(2);
    check_all(&recovered.fs().enter()?, round)?;
    recovered.leave()?;
    progress.at(3);

    let attached = image.attach(Direct, threads)?;
    let index_ns = first_access(&attached.fs().enter()?)?;
    Ok(Scale {
        files,
        pm_bytes_per_file: pm_bytes as f64 / files as f64,
        name_bytes: NAME_BYTES,
        dram_bytes_per_file: dram_bytes as f64 / files as f64,
        recovery_ns,
        recovery_threads: threads,
        attach_ns: attached.attach_ns,
        index_ns,
    })
}

/// Requires that recovery has found everything. With a flag alone, a recovery that does nothing
/// would be the fastest.
fn require_recovered(report: &RecoveryReport, files: u64) -> Result<()> {
    // The directory has a name, too.
    let names = files + 1;
    ensure!(
        report.scanned && report.names == names && report.damaged == 0,
        "recovery should have scanned {names} names but reports {report:?}: its time is meaningless; this is a defect of the engine"
    );
    Ok(())
}

/// Creates the files; returns the bytes of the image that they use.
fn fill<M: Memory>(thread: &Thread<'_, M>, round: &Round) -> Result<u64> {
    let directory = EngineDirectory::open(thread, c"many")?;
    let before = thread.space()?.blocks_free;
    round.fill(&directory, &mut Stopwatch::new(0))?;
    Ok((before - thread.space()?.blocks_free) * BLOCK_BYTES)
}

fn check_all<M: Memory>(thread: &Thread<'_, M>, round: &Round) -> Result<()> {
    let found = EngineDirectory::open(thread, c"many")?.read()?;
    ensure!(
        found == round.files(),
        "{} files were created but {found} recovered: this is a defect of the engine",
        round.files()
    );
    Ok(())
}

fn first_access<M: Memory>(thread: &Thread<'_, M>) -> Result<f64> {
    let directory = EngineDirectory::open(thread, c"many")?;
    let started = Instant::now();
    directory.stat(c"f00000000")?;
    Ok(started.elapsed().as_nanos() as f64)
}
