//! filebench's profiles and YCSB as ordinary programs: with an image in memory under
//! `directfs run` beside tmpfs, and with an image on a disk beside ext4.
//!
//! Each run is a process, `lab workload`, in a new directory. The places take turns.

use super::filebench::Application;
use super::findings::{Findings, Measure, Plot, Range, Series};
use super::kernel::HostDirectory;
use super::{Bench, Experiment, Failure, MEMORIES, Result, Size};
use crate::ycsb::Workload;
use pmem::Backing;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TMPFS: &str = "tmpfs";
const IN_MEMORY: &str = "DirectFS";
const EXT4: &str = "ext4";
const ON_DISK: &str = "DirectFS, image on ext4";

/// What of a run's time the thread may have waited for a processor, on a disk.
const WAITED_MAX: f64 = 0.05;
/// Rounds of a workload until a busy machine's disk is left out, and how long they go on.
const TRIES: usize = 8;
const TRIED: Duration = Duration::from_secs(10);

/// A workload with its sizes: files or records, and repetitions.
struct Job {
    name: &'static str,
    count: u64,
    turns: u64,
}

/// filebench's numbers of files in the full size (of fileserver's 10,000 a fifth).
fn jobs(size: Size) -> Vec<Job> {
    let files = |(name, application): &(&'static str, Application)| {
        let published = if *application == Application::WebProxy { 10_000 } else { 1000 };
        let published = if *application == Application::FileServer { 2000 } else { published };
        Job { name, count: size.pick(20, 200, published), turns: size.pick(5, 100, 2000) }
    };
    let records = |(name, workload): &(&'static str, Workload)| {
        let scans = if *workload == Workload::E { 10 } else { 1 };
        Job { name, count: size.pick(50, 2000, 20_000), turns: size.pick(20, 5000, 50_000) / scans }
    };
    let filebench = Application::ALL.iter().filter(|(_, application)| *application != Application::Postmark);
    let all = filebench.map(files).chain(Workload::ALL.iter().map(records));
    // Tests of function need one of each kind.
    all.filter(|job| size != Size::Tiny || ["varmail", "ycsb-a"].contains(&job.name)).collect()
}

/// A place for files.
enum Place {
    /// A directory of the running kernel.
    Directory(HostDirectory),
    /// `directfs run`: with an image in memory, or in this directory.
    Run { directfs: PathBuf, images: Option<HostDirectory> },
}

/// A place with its name in tables.
type NamedPlace = (&'static str, Place);

/// What `lab workload --numbers` prints.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Numbers {
    operations: f64,
    seconds: f64,
    processor: f64,
    waited: f64,
}

impl Numbers {
    fn parse(line: &str) -> Option<Numbers> {
        let numbers: Vec<f64> = line.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
        let [operations, seconds, processor, waited] = numbers[..] else { return None };
        Some(Numbers { operations, seconds, processor, waited })
    }

    /// Whether the thread seldom waited for a processor.
    fn is_undisturbed(&self) -> bool {
        self.waited <= WAITED_MAX * self.seconds
    }
}

/// A program beside this one, or where programs are looked for.
pub fn program(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    if own.file_name().is_some_and(|own| own == name) {
        return Some(own);
    }
    // Programs of tests are one directory below.
    let beside = own.ancestors().skip(1).take(2).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = beside.chain(std::env::split_paths(&path)).collect();
    places.into_iter().map(|place| place.join(name)).find(|file| file.is_file())
}

/// Runs a command; its standard output.
fn output(command: &mut Command) -> Result<String> {
    let done = command.stdin(Stdio::null()).output().map_err(Failure::Host)?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let program = Path::new(command.get_program()).display().to_string();
    let message = format!("{}, {}", done.status, String::from_utf8_lossy(&done.stderr).trim());
    Err(Failure::Program { program, message })
}

impl Place {
    /// Runs a workload in a new directory there.
    fn run(&self, lab: &Path, job: &Job) -> Result<Numbers> {
        let workload = |command: &mut Command, directory: &Path| {
            let [count, turns] = [job.count, job.turns].map(|number| number.to_string());
            command.args(["workload", job.name]).arg(directory);
            output(command.args(["--numbers", "--count", &count, "--turns", &turns]))
        };
        let printed = match self {
            Place::Directory(scratch) => {
                let directory = scratch.0.join(job.name);
                let printed = workload(&mut Command::new(lab), &directory);
                fs::remove_dir_all(&directory).map_err(Failure::Host)?;
                printed?
            }
            Place::Run { directfs, images } => {
                let mut command = Command::new(directfs);
                command.arg("run");
                let image = images.as_ref().map(|images| images.0.join("image"));
                if let Some(image) = &image {
                    output(Command::new(directfs).args(["mkfs", "--size", "2G"]).arg(image))?;
                    command.arg("--image").arg(image);
                }
                let printed = workload(command.arg("--").arg(lab), &Path::new("/mnt/directfs").join(job.name));
                image.map_or(Ok(()), fs::remove_file).map_err(Failure::Host)?;
                printed?
            }
        };
        let unreadable = || Failure::Host(io::Error::other(format!("a workload printed {printed:?}")));
        Numbers::parse(&printed).ok_or_else(unreadable)
    }

    fn is_in_memory(name: &str) -> bool {
        [TMPFS, IN_MEMORY].contains(&name)
    }
}

/// A directory on ext4: TMPDIR, /var/tmp, or the working directory.
fn ext4_directory() -> Option<PathBuf> {
    let here = std::env::current_dir().ok();
    let places = [std::env::temp_dir(), PathBuf::from("/var/tmp")].into_iter().chain(here);
    let backing = |place: &PathBuf| fs::File::open(place).map(Backing::of_file);
    let is_ext4 = |place: &PathBuf| backing(place).is_ok_and(|found| found == Backing::File { file_system: "ext4" });
    let may_write = |place: &PathBuf| rustix::fs::access(place, rustix::fs::Access::WRITE_OK).is_ok();
    places.into_iter().filter(is_ext4).find(may_write)
}

/// The places that there are here, and why others are missing.
fn places() -> Result<(Vec<NamedPlace>, Vec<String>)> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let directfs = program("directfs").filter(|directfs| {
        // Not, for example, below a `directfs run`, which has one image.
        let works = output(Command::new(directfs).args(["run", "--", "true"]));
        works.inspect_err(|why| missing.push(format!("Not measured with DirectFS: {why}."))).is_ok()
    });
    if directfs.is_none() && missing.is_empty() {
        missing.push("Not measured with DirectFS: there is no program directfs beside this one or in PATH.".to_owned());
    }
    let scratch = |parent: &Path| HostDirectory::below(parent).map_err(Failure::Host);
    found.push((TMPFS, Place::Directory(scratch(Path::new("/dev/shm"))?)));
    let run = |images| directfs.clone().map(|directfs| Place::Run { directfs, images });
    found.extend(run(None).map(|place| (IN_MEMORY, place)));
    match ext4_directory() {
        Some(parent) => {
            found.push((EXT4, Place::Directory(scratch(&parent)?)));
            let images = scratch(&parent)?;
            found.extend(run(Some(images)).map(|place| (ON_DISK, place)));
        }
        None => missing.push(
            "Not measured on a disk: neither TMPDIR nor /var/tmp nor the working directory is on ext4.".to_owned(),
        ),
    }
    Ok((found, missing))
}

/// Microseconds per operation of the rounds of a workload, by place. On a disk the rounds count in
/// which the thread seldom waited for a processor.
fn rounds(bench: &Bench<'_>, lab: &Path, places: &[NamedPlace], job: &Job) -> Result<BTreeMap<&'static str, Vec<f64>>> {
    let wanted = bench.size.pick(1, 3, 5) as usize;
    let mut all: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    let start = Instant::now();
    for round in (1..=TRIES).take_while(|round| *round <= wanted || start.elapsed() < TRIED) {
        for (name, place) in places {
            if all.get(name).is_some_and(|each| each.len() >= wanted) {
                continue;
            }
            bench.step(&format!("{} in {name}, round {round}", job.name))?;
            // An interrupt ends the processes, too.
            let numbers = place.run(lab, job).or_else(|failure| bench.check_stop().and(Err(failure)))?;
            let seconds = match Place::is_in_memory(name) {
                true => numbers.processor,
                false => numbers.seconds - numbers.waited,
            };
            if Place::is_in_memory(name) || bench.size == Size::Tiny || numbers.is_undisturbed() {
                all.entry(name).or_default().push(seconds.max(0.0) * 1e6 / numbers.operations);
            }
        }
    }
    all.retain(|_, each| each.len() >= wanted);
    Ok(all)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The time of two places in per cent of the second one's median, where both were measured.
fn plot(findings: &Findings, title: &str, names: [&'static str; 2], rows: &[&'static str]) -> Plot {
    let is_there = |row: &&&str| names.iter().all(|name| findings.here(row, name, 0).is_some());
    let rows: Vec<&'static str> = rows.iter().filter(is_there).copied().collect();
    let base = |row: &str| findings.here(row, names[1], 0).filter(|base| *base > 0.0);
    let series = |name: &&str| {
        let share = |value: f64, row: &str| Some(100.0 * value / base(row)?);
        let own = findings.series(&rows, name, 0);
        let values = own.values.iter().zip(&rows).map(|(value, row)| share((*value)?, row));
        let range =
            |range: Range, row: &str| Some(Range { least: share(range.least, row)?, most: share(range.most, row)? });
        let ranges = own.ranges.iter().zip(&rows).map(|(it, row)| range((*it)?, row));
        Series { ranges: ranges.collect(), ..Series::new(name, values.collect()) }
    };
    Plot {
        title: title.to_owned(),
        unit: format!("% of {}", names[1]),
        x_labels: rows.iter().map(|row| (*row).to_owned()).collect(),
        lines: false,
        basis: "median of the rounds here".to_owned(),
        here: names.iter().map(series).collect(),
        paper: Vec::new(),
    }
}

/// filebench and YCSB beside the kernel's file systems.
pub const APPLICATIONS: Experiment = Experiment {
    name: "applications",
    question: "What do filebench and YCSB take under directfs run?",
    source: "filebench 1.5-alpha3, four profiles; YCSB's workloads A to F (Cooper et al., SoCC 2010). The three papers run some of them on systems in a kernel",
    method: "Each run is a process with one thread in a new directory; the places take turns, and the median of the rounds counts. DirectFS: under directfs run with a new image in memory, beside tmpfs at /dev/shm, in processor time. DirectFS, image on ext4: a new image in a directory on ext4 (TMPDIR, /var/tmp or the working directory), beside that directory, by the clock. Only varmail syncs, so only varmail waits for the disk: the others' changes reach it after the run. Rounds in which the program waited for a processor for more than 5 % of its time do not count. Files and records are made before the clock starts. YCSB runs on a LevelDB in Rust that does not sync.",
    is_alone: true,
    needs_bytes: |size| 2 * size.pick(64 << 20, 256 << 20, 1 << 30),
    run: |bench| {
        let mut findings = Findings::new("µs per operation", &MEMORIES[..1]);
        let lab = program("lab").ok_or_else(|| Failure::Host(io::Error::other("there is no program lab here")))?;
        let (places, missing) = places()?;
        findings.notes.extend(missing);
        let jobs = jobs(bench.size);
        let mut left_out: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for job in &jobs {
            let mut all = rounds(bench, &lab, &places, job)?;
            for (name, _) in &places {
                let Some(each) = all.remove(name) else {
                    left_out.entry(*name).or_default().push(job.name);
                    continue;
                };
                let (row, subject) = (job.name.to_owned(), (*name).to_owned());
                findings.ranges.insert((row.clone(), subject.clone()), vec![Range::of(each.iter().copied())]);
                let here = vec![Some(median(each))];
                findings.measures.push(Measure { row, subject, paper: None, here });
            }
        }
        let busy = |(place, jobs): (&str, Vec<&str>)| {
            let jobs = jobs.join(", ");
            format!("Not measured in {place}: {jobs}. In too many rounds the program waited for a processor.")
        };
        findings.notes.extend(left_out.into_iter().map(busy));
        let rows: Vec<&'static str> = jobs.iter().map(|job| job.name).collect();
        let plots =
            [("In memory: time per operation", [IN_MEMORY, TMPFS]), ("On a disk: time per operation", [ON_DISK, EXT4])];
        for (title, names) in plots {
            let plot = plot(&findings, title, names, &rows);
            if !plot.x_labels.is_empty() {
                findings.plots.push(plot);
            }
        }
        Ok(findings)
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workloads_line_is_four_numbers() {
        let numbers = Numbers::parse("2600 0.068 0.007 0.002\n").expect("numbers");
        assert_eq!(numbers, Numbers { operations: 2600.0, seconds: 0.068, processor: 0.007, waited: 0.002 });
        assert!(numbers.is_undisturbed() && !Numbers { waited: 0.01, ..numbers }.is_undisturbed());
        for other in ["", "1 2 3", "1 2 3 4 5", "1 2 3 x"] {
            assert_eq!(Numbers::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn bars_and_whiskers_are_shares_of_the_median_beside_them() {
        let mut findings = Findings::new("µs", &MEMORIES[..1]);
        for (subject, rounds) in [(IN_MEMORY, vec![3.0, 1.0, 2.0]), (TMPFS, vec![4.0, 5.0, 8.0])] {
            let key = ("varmail".to_owned(), subject.to_owned());
            findings.ranges.insert(key, vec![Range::of(rounds.iter().copied())]);
            let here = vec![Some(median(rounds))];
            findings.measures.push(Measure { row: "varmail".into(), subject: subject.into(), paper: None, here });
        }
        let plot = plot(&findings, "", [IN_MEMORY, TMPFS], &["varmail", "unknown"]);
        assert_eq!(plot.x_labels, ["varmail"], "the other one was not measured");
        assert_eq!(plot.here[0].values, [Some(40.0)]);
        assert_eq!(plot.here[0].ranges, [Some(Range { least: 20.0, most: 60.0 })]);
        assert_eq!(plot.here[1].values, [Some(100.0)]);
        assert_eq!(plot.here[1].ranges[0], Some(Range { least: 80.0, most: 160.0 }));
    }
}
