//! `directfs bench`: what each call costs, measured.
//!
//! A [`subject`] is something that has the calls; [`calls`] runs them over a number of files and tells an observer; observers keep times or
//! count lines. New subjects, calls and observers go beside these without touching the others.

mod calls;
mod counting;
mod directory;
mod engine;
mod floor;
mod memory;
mod names;
mod report;
mod scale;
mod statistics;
mod subject;

use crate::arguments::Bench;
use crate::interrupt;
use anyhow::{Context, Result};
use calls::Workload;
use counting::{Counting, CountingObserver};
use directory::SystemDirectory;
use engine::EngineDirectory;
use memory::MemoryImage;
use pmem::Direct;
use report::{DirectoryReport, Report};
use statistics::Summary;
use std::path::Path;
use std::sync::Arc;

const SMALL: u64 = 10_000;
const LARGE: u64 = 1_000_000;
/// Rounds over so many files take seconds each; more than three add nothing but waiting.
const ROUNDS_MAX_LARGE: u32 = 3;
/// Files for counting lines: the figures are averages of a mechanism, not of time.
const COUNTED_FILES: u64 = 4096;

/// Runs the benchmark.
pub fn run(arguments: &Bench) -> Result<()> {
    interrupt::catch()?;
    let report = match &arguments.directory {
        None => measure_engine(arguments)?,
        Some(directory) => measure_directory(arguments, directory)?,
    };
    crate::terminal::end_with_reader();
    if arguments.json {
        return report.print_json();
    }
    report.print();
    Ok(())
}

/// The numbers of files to measure, ascending.
fn sizes(arguments: &Bench) -> Vec<u64> {
    let mut sizes = arguments.files.clone();
    if sizes.is_empty() {
        sizes.push(SMALL);
    }
    if arguments.large || (arguments.files.is_empty() && arguments.directory.is_none()) {
        sizes.push(LARGE);
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn rounds(arguments: &Bench, files: u64) -> u32 {
    if files > 100_000 { arguments.rounds.min(ROUNDS_MAX_LARGE) } else { arguments.rounds }
}

/// Bytes of an image that holds so many files twice over, with second names: what waits for recycling needs room, too.
fn length_for(files: u64) -> u64 {
    (files * 2048).max(64 << 20).next_multiple_of(2 << 20)
}

fn inodes_for(files: u64) -> u64 {
    files * 3 + 4096
}

fn measure_engine(arguments: &Bench) -> Result<Report> {
    let sizes = sizes(arguments);
    let largest = sizes.last().copied().unwrap_or(SMALL);
    // An image that is used up to a half, a DRAM region, and the names.
    memory::require_memory(length_for(largest) + largest * 512 + (256 << 20))?;
    let load_before = load();
    let floor = floor::measure()?;
    let counted = count_lines()?;
    let mut directories = Vec::new();
    let mut scale = None;
    for files in sizes {
        let workload = Workload::new(files);
        directories.push(measure_in_memory(&workload, rounds(arguments, files), floor, &counted)?);
        if files == largest {
            scale = Some(scale::measure(&workload, length_for(files))?);
        }
    }
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        subject: "DirectFS, in this process".into(),
        medium: "image and DRAM region in memory; one thread; calls by directory and name".into(),
        machine: machine(),
        floor,
        load_before,
        directories,
        scale,
    })
}

fn measure_in_memory(
    workload: &Workload,
    rounds: u32,
    floor: Summary,
    counted: &CountingObserver,
) -> Result<DirectoryReport> {
    let files = workload.files();
    let image = MemoryImage::make(length_for(files), inodes_for(files))?;
    let attached = image.attach(Direct, 1)?;
    let thread = attached.fs().enter()?;
    let measured = calls::measure(&mut EngineDirectory::open(&thread, c"bench")?, workload, rounds)?;
    Ok(DirectoryReport::new(files, rounds, &measured, floor, Some(counted)))
}

/// Counts what each call writes, in a run of its own: counting costs time.
fn count_lines() -> Result<CountingObserver> {
    let memory = Arc::new(Counting::default());
    let workload = Workload::new(COUNTED_FILES);
    let image = MemoryImage::make(length_for(COUNTED_FILES), inodes_for(COUNTED_FILES))?;
    let attached = image.attach(Arc::clone(&memory), 1)?;
    let thread = attached.fs().enter()?;
    let mut observer = CountingObserver::new(memory, COUNTED_FILES);
    let mut directory = EngineDirectory::open(&thread, c"bench")?;
    // The first round clears fresh segments of inodes, once in an image's life; the second counts.
    for _ in 0..2 {
        calls::round(&mut directory, &workload, &mut observer)?;
    }
    drop(directory);
    Ok(observer)
}

fn measure_directory(arguments: &Bench, parent: &Path) -> Result<Report> {
    let sizes = sizes(arguments);
    let mut subject = SystemDirectory::make(parent)?;
    require_room(parent, sizes.last().copied().unwrap_or(SMALL))?;
    let load_before = load();
    let floor = floor::measure()?;
    let mut directories = Vec::new();
    for files in sizes {
        let rounds = rounds(arguments, files);
        let measured = calls::measure(&mut subject, &Workload::new(files), rounds)?;
        directories.push(DirectoryReport::new(files, rounds, &measured, floor, None));
    }
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        subject: format!("{}, by system calls", parent.display()),
        medium: format!("{}; one thread; calls by directory and name; create includes close", file_system(parent)),
        machine: machine(),
        floor,
        load_before,
        directories,
        scale: None,
    })
}

/// An error if the files cannot fit: better before an hour of measuring than after it.
fn require_room(directory: &Path, files: u64) -> Result<()> {
    let shown = directory.display();
    let space = rustix::fs::statvfs(directory).with_context(|| format!("cannot learn how much room {shown} has"))?;
    let (free, needed) = (space.f_bavail * space.f_frsize, files * 1024);
    anyhow::ensure!(
        // Zero of all: a file system that does not count, or needs no room for names.
        space.f_blocks == 0 || free >= needed,
        "{shown} has {} free and {} files need about {}; make room, name another directory or measure fewer files (--files)",
        crate::units::size(free),
        crate::units::count(files),
        crate::units::size(needed)
    );
    anyhow::ensure!(
        space.f_files == 0 || space.f_favail > files,
        "{shown} has {} inodes free and {} are needed; name another directory or measure fewer files (--files)",
        crate::units::count(space.f_favail),
        crate::units::count(files)
    );
    Ok(())
}

/// The type of the file system that a directory is on, as the mount table names it.
fn file_system(directory: &Path) -> String {
    crate::mounts::covering(directory).map_or_else(|| "unknown file system".into(), |mount| mount.kind)
}

/// The average load of the last minute.
fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Processor and kernel, to set figures in relation.
pub fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, name)| name);
    let kernel = rustix::system::uname();
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    format!(
        "{model}, {}, Linux {}",
        crate::units::counted(processors as u64, "processor"),
        kernel.release().to_string_lossy()
    )
}
