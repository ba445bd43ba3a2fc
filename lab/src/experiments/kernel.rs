//! The running kernel beside the lab's VFS layer: what the calibration of virtual time
//! ([`crate::virtual_time::kernel`]) comes from.

use super::findings::{Findings, MEASURED, Measure, Plot};
use super::loops::{Act, Measured, Meter, Times, create, keep_least, measures, mkdir, per_call, rmdir, stat, unlink};
use super::machine::{Failure, Machine, Plan, Result, Subject, machine};
use super::recorded::{VirtualMeter, VirtualTimes, add_columns};
use super::{Bench, Experiment, MEMORIES, Size};
use crate::calls::Calls;
use crate::virtual_time::kernel::KERNEL;
use crate::virtual_time::memories::{DRAM, EPYC, Memory};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const SUBJECTS: [Subject; 1] = [Subject::Nova];
const LINUX: &str = "Linux";
const EMPTY: &str = "empty call";
const FSTAT: &str = "fstat";
/// A call that copies its path, and fails before it looks anything up.
const PATH: &str = "path copied";
const STAT: &str = "stat";
/// The directory of all names, in the lab as in the running kernel.
const DIRECTORY: &str = "directory";

/// A call of the running kernel on a path below a directory.
type HostAct = fn(&File, &str) -> rustix::io::Result<()>;

/// Calls that both have. Each row finds the files that it needs, and the last ones remove them.
const CALLS: [(&str, Act, HostAct); 6] = [
    ("create", create, |at, path| rustix::fs::openat(at, path, NEW, Mode::from_raw_mode(0o644)).map(drop)),
    (STAT, stat, |at, path| rustix::fs::statat(at, path, AtFlags::empty()).map(drop)),
    ("open", open, |at, path| rustix::fs::openat(at, path, OFlags::RDONLY, Mode::empty()).map(drop)),
    ("unlink", unlink, |at, path| rustix::fs::unlinkat(at, path, AtFlags::empty())),
    ("mkdir", mkdir, |at, path| rustix::fs::mkdirat(at, path, Mode::from_raw_mode(0o755))),
    ("rmdir", rmdir, |at, path| rustix::fs::unlinkat(at, path, AtFlags::REMOVEDIR)),
];
const NEW: OFlags = OFlags::CREATE.union(OFlags::EXCL).union(OFlags::RDWR);

fn open(calls: &dyn Calls, path: &[u8]) -> posix::Result<()> {
    calls.close(calls.open(path, libc::O_RDONLY, 0)?)
}

const fn names(size: Size) -> u64 {
    size.pick(20, 200, 1000)
}

/// A directory of the running kernel, removed at the end.
pub(super) struct HostDirectory(pub(super) PathBuf);

impl HostDirectory {
    /// In memory, where there is such a file system.
    fn new() -> io::Result<HostDirectory> {
        let shared = Path::new("/dev/shm");
        HostDirectory::below(&if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() })
    }

    /// A new directory in `parent`. A process may use several at once.
    pub(super) fn below(parent: &Path) -> io::Result<HostDirectory> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = parent.join(format!("directfs-lab-{}-{number}", std::process::id()));
        fs::create_dir(&place)?;
        Ok(HostDirectory(place))
    }
}

impl Drop for HostDirectory {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Nanoseconds per call of the running kernel, by row.
fn host_times(bench: &Bench<'_>) -> Result<Times> {
    let (directory, file) = host_files().map_err(Failure::Host)?;
    let parent = File::open(&directory.0).map_err(Failure::Host)?;
    let failed = |error: rustix::io::Errno| Failure::Host(error.into());
    let count = names(bench.size);
    let paths: Vec<String> = (0..count).map(|index| format!("{DIRECTORY}/name{index}")).collect();
    let mut times = Times::new();
    for _ in 0..=3 * bench.rounds() {
        let empty = |_| {
            std::hint::black_box(rustix::process::getppid());
            Ok(())
        };
        keep_least(&mut times, EMPTY, per_call(count, empty)?);
        keep_least(&mut times, FSTAT, per_call(count, |_| rustix::fs::fstat(&file).map(drop).map_err(failed))?);
        let copied = |index| match rustix::fs::statat(&file, &*paths[index as usize], AtFlags::empty()) {
            Err(rustix::io::Errno::NOTDIR) => Ok(()),
            Err(other) => Err(failed(other)),
            Ok(_) => Err(Failure::Host(io::ErrorKind::IsADirectory.into())),
        };
        keep_least(&mut times, PATH, per_call(count, copied)?);
        for (row, _, act) in CALLS {
            let ns = per_call(count, |index| act(&parent, &paths[index as usize]).map_err(failed))?;
            keep_least(&mut times, row, ns);
        }
        bench.check_stop()?;
    }
    Ok(times)
}

/// A directory of the running kernel with a file and an empty directory.
fn host_files() -> io::Result<(HostDirectory, File)> {
    let directory = HostDirectory::new()?;
    fs::create_dir(directory.0.join(DIRECTORY))?;
    let file = File::create_new(directory.0.join("file"))?;
    Ok((directory, file))
}

fn paths(size: Size) -> Vec<Vec<u8>> {
    (0..names(size)).map(|index| format!("/{DIRECTORY}/name{index}").into_bytes()).collect()
}

/// The calls in the lab, by the clock and in virtual time.
fn lab_times(bench: &Bench<'_>, memories: &[Memory]) -> Result<(Measured, Vec<VirtualTimes>)> {
    let round = |machine: &dyn Machine, paths: &[Vec<u8>], meter: &mut dyn Meter| {
        CALLS.iter().try_for_each(|(row, act, _)| meter.act(row, machine, paths, None, *act))
    };
    let (mut measured, mut times, paths) = (Measured::default(), Vec::new(), paths(bench.size));
    for subject in SUBJECTS {
        let set_up = || -> Result<Box<dyn Machine>> {
            let machine = machine(subject, Plan::of_files(names(bench.size) * 2 + 100))?;
            machine.with(&mut |calls| Ok(calls.mkdir(format!("/{DIRECTORY}").as_bytes(), 0o755)?))?;
            round(&*machine, &paths, &mut Measured::default())?;
            Ok(machine)
        };
        if bench.is_clocked() {
            let machine = set_up()?;
            (0..3 * bench.rounds()).try_for_each(|_| round(&*machine, &paths, &mut measured))?;
        }
        if !memories.is_empty() {
            let mut meter = VirtualMeter::new(bench.size, memories, paths.len() as u64)?;
            round(&*set_up()?, &paths, &mut meter)?;
            times.push(meter.times());
        }
    }
    Ok((measured, times))
}

/// What the running kernel and the stored figures say.
fn calibration(times: &Times) -> String {
    let stored = |has_vfs| KERNEL.call_ps(&EPYC, has_vfs) as f64 / 1e3;
    let beyond = |row| times.get(row).zip(times.get(EMPTY)).map_or(f64::NAN, |(call, empty)| call - empty);
    let (attributes, path, stat) = (beyond(FSTAT), beyond(PATH), beyond(STAT));
    format!(
        "Calibration of the columns \"in a kernel\": {} instructions for each call and {} more for a lookup in the VFS, which are {:.0} and {:.0} ns on the {}. They are stored, so virtual time has the same digits on every machine. The running kernel takes {stat:.0} ns for a warm stat beyond an empty call: {path:.0} ns copy the path, {attributes:.0} ns collect and copy the attributes (fstat), and {:.0} ns are the lookup.",
        KERNEL.call_instructions,
        KERNEL.lookup_instructions,
        stored(false),
        stored(true) - stored(false),
        EPYC.name,
        stat - path - attributes
    )
}

/// The calibration.
pub const KERNEL_CALLS: Experiment = Experiment {
    name: "kernel",
    question: "What does a call cost in the running kernel, and in the lab's VFS layer?",
    source: "In no paper: it calibrates the lab's VFS layer, which does less than a kernel's",
    method: "Warm calls on names of one directory: system calls of this program on a file system in memory (tmpfs at /dev/shm), and calls of the conventional layer over the NOVA-like file system, which is reached without a system call. \"open\" and \"create\" include close.",
    is_alone: false,
    needs_bytes: |size| Plan::of_files(names(size) * 2 + 100).image_bytes(),
    run: |bench| {
        let memories = bench.virtual_memories(&[DRAM]);
        let mut findings = Findings::new("µs per call", &MEMORIES[..1]).with_virtual(memories, &DRAM).with_kernel();
        bench.step("the lab's layer")?;
        let (measured, virtual_times) = lab_times(bench, memories)?;
        findings.measures = measures(&[vec![measured]], &SUBJECTS, &CALLS.map(|(row, ..)| row), &|_, _| None);
        add_columns(&mut findings, &virtual_times, &SUBJECTS);
        bench.step("the running kernel")?;
        let times = if bench.is_clocked() { host_times(bench)? } else { Times::new() };
        let rows = [EMPTY, FSTAT, PATH].into_iter().chain(CALLS.map(|(row, ..)| row));
        for row in rows.filter(|_| bench.is_clocked()) {
            let mut here = vec![None; findings.memories.len()];
            here[0] = times.get(row).map(|ns| ns / 1000.0);
            findings.measures.push(Measure { row: row.to_owned(), subject: LINUX.to_owned(), paper: None, here });
        }
        let order = |row: &str| CALLS.iter().position(|(known, ..)| *known == row).map_or(0, |index| index + 1);
        findings.measures.sort_by_key(|measure| order(&measure.row));
        if bench.is_clocked() {
            findings.notes.push(calibration(&times));
        }
        let labels = CALLS.map(|(row, ..)| row.to_owned()).to_vec();
        let (memory, basis) = if bench.is_clocked() { (0, MEASURED.to_owned()) } else { findings.plotted() };
        let series = |name: &str| findings.series(&labels, name, memory);
        let here = vec![series(LINUX), series(SUBJECTS[0].name())];
        let (title, unit) = ("Time per warm call".to_owned(), "µs".to_owned());
        findings.plots.push(Plot { title, unit, x_labels: labels, lines: false, basis, here, paper: Vec::new() });
        Ok(findings)
    },
};
