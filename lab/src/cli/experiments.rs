//! Lists and runs the papers' experiments.

use super::arguments::Experiments;
use super::interrupt::{Flag, Interrupted};
use anstream::stream::IsTerminal;
use anyhow::{Context, Result, bail};
use console::terminal::{bold, dim, end_with_reader};
use lab::experiments::report::{self, Circumstances, Part};
use lab::experiments::{Bench, CATALOGUE, Experiment, Failure, find};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The report file in its directory.
const REPORT: &str = "index.html";
/// The caveat of a report in small sizes.
const QUICK: &str = "quick: a tenth of the papers' files or less, two rounds, a model of 8 processors instead of 64. All files fit into the processor's caches, so touching less memory gains less; figures differ between runs by a tenth and more";
/// Moves to the beginning of a terminal's line and clears it.
const CLEAR_LINE: &str = "\r\x1b[2K";

/// Lists or runs experiments.
pub fn run(arguments: &Experiments) -> Result<()> {
    let chosen: Vec<&Experiment> = match arguments.experiment.as_str() {
        "list" => return list(),
        // The command line requires --out for it.
        "all" => CATALOGUE.iter().collect(),
        name => vec![find(name).with_context(|| format!("no experiment {name}; use one of {}", names()))?],
    };
    let made = match &arguments.out {
        Some(directory) => prepare(directory, &chosen, arguments.force || arguments.resume)?,
        None => false,
    };
    let done = Flag::catch().and_then(|interrupted| carry_out(&chosen, arguments, &interrupted));
    if let (Err(_), Some(directory), true) = (&done, &arguments.out, made) {
        // It stays if it has the report of an experiment.
        let _ = std::fs::remove_dir(directory);
    }
    done
}

/// What an interrupted report has of experiments.
fn kept_parts(directory: &Path, chosen: &[&Experiment], made_by: &str) -> Vec<Option<Part>> {
    let kept = |experiment: &&Experiment| {
        let text = std::fs::read_to_string(part_of(directory, experiment)).ok()?;
        Part::from_text(&text, made_by).filter(|part| part.name == experiment.name && !part.has_failed)
    };
    let parts: Vec<_> = chosen.iter().map(kept).collect();
    let is_other =
        |(part, experiment): &(&Option<Part>, &&Experiment)| part.is_none() && part_of(directory, experiment).exists();
    let others = parts.iter().zip(chosen).filter(is_other).count();
    if others > 0 {
        eprintln!("{} of the report failed, or has another build, size or clock: again", counted(others, "experiment"));
    }
    parts
}

/// Runs experiments, and prints the findings of a single one. After each it writes the report. A
/// failed one is a section of the report, and the others go on.
fn carry_out(chosen: &[&Experiment], arguments: &Experiments, interrupted: &Flag) -> Result<()> {
    let begun = std::time::Instant::now();
    let made_by = made_by(arguments);
    let parts: Mutex<Vec<Option<Part>>> = Mutex::new(vec![None; chosen.len()]);
    if let (Some(directory), true) = (&arguments.out, arguments.resume) {
        *lock(&parts) = kept_parts(directory, chosen, &made_by);
    }
    // With several jobs, first those that may run beside each other, then each of the others alone.
    let is_beside = |index: &usize| arguments.jobs > 1 && !chosen[*index].is_alone;
    let (beside, alone): (Vec<usize>, Vec<usize>) = (0..chosen.len()).partition(is_beside);
    let run_all = |indices: &[usize], next: &AtomicUsize| -> Result<()> {
        loop {
            let Some(&index) = indices.get(next.fetch_add(1, Relaxed)) else { return Ok(()) };
            let experiment = chosen[index];
            if lock(&parts)[index].is_some() {
                continue;
            }
            let number = format!("[{}/{}] {}", index + 1, chosen.len(), experiment.name);
            let part = match arguments.jobs {
                1 => run_here(&number, experiment, chosen.len() == 1, arguments, interrupted)?,
                _ => run_apart(&number, experiment, arguments, interrupted)?,
            };
            let Some(directory) = &arguments.out else { continue };
            save(&part_of(directory, experiment), &part.to_text(&made_by))?;
            let mut parts = lock(&parts);
            parts[index] = Some(part);
            if !arguments.part {
                write(directory, arguments, &parts)?;
            }
        }
    };
    let next = AtomicUsize::new(0);
    let work = || run_all(&beside, &next);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..arguments.jobs).map(|_| scope.spawn(work)).collect();
        let own = work();
        let others = others.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a thread ended early")));
        others.fold(own, Result::and)
    })?;
    run_all(&alone, &AtomicUsize::new(0))?;
    let parts = lock(&parts);
    if let (Some(directory), false) = (&arguments.out, arguments.part) {
        // All parts may have been there.
        write(directory, arguments, &parts)?;
    }
    let parts: Vec<&Part> = parts.iter().flatten().collect();
    let failed: Vec<&str> = parts.iter().filter(|part| part.has_failed).map(|part| &part.name[..]).collect();
    if let (Some(directory), false) = (&arguments.out, arguments.part) {
        println!(
            "{} in {:.0} s: {}",
            counted(parts.len(), "experiment"),
            begun.elapsed().as_secs_f64(),
            directory.join(REPORT).display()
        );
        if failed.is_empty() {
            // The report is whole, and nothing is left to continue.
            chosen.iter().for_each(|experiment| drop(std::fs::remove_file(part_of(directory, experiment))));
        }
    }
    match &failed[..] {
        [] => Ok(()),
        failed => bail!("{} failed: {}", counted(failed.len(), "experiment"), failed.join(", ")),
    }
}

/// Writes the report of what is done.
fn write(directory: &Path, arguments: &Experiments, parts: &[Option<Part>]) -> Result<()> {
    let done: Vec<Part> = parts.iter().flatten().cloned().collect();
    save(&directory.join(REPORT), &report::html(&circumstances(arguments), &done))
}

/// Runs an experiment in this process.
fn run_here(
    name: &str,
    experiment: &Experiment,
    is_only_one: bool,
    arguments: &Experiments,
    interrupted: &Flag,
) -> Result<Part> {
    let is_terminal = std::io::stderr().is_terminal();
    let progress = |step: &str| {
        if is_terminal {
            // One line that is rewritten in place.
            eprint!("{CLEAR_LINE}");
            anstream::eprint!("{} {}", bold(name), dim(step));
        }
    };
    if !is_terminal {
        eprintln!("{name} ...");
    }
    let size = arguments.size();
    let bench = Bench { size, times: arguments.times(), stop: &|| interrupted.is_set(), progress: &progress };
    let start = std::time::Instant::now();
    let carried_out = experiment.carry_out(&bench);
    let seconds = start.elapsed().as_secs_f64();
    if is_terminal {
        eprint!("{CLEAR_LINE}");
    }
    match carried_out {
        Err(Failure::Interrupted) => Err(Interrupted.into()),
        Err(failure) if is_only_one && !arguments.part => {
            Err(anyhow::Error::new(failure).context(format!("experiment {} failed", experiment.name)))
        }
        Err(failure) => {
            eprintln!("experiment {} failed: {failure}", experiment.name);
            Ok(Part::new(experiment, Err(&failure.to_string()), seconds))
        }
        Ok(findings) => {
            if is_only_one && !arguments.part {
                print!("{}", report::text(experiment, &findings));
            }
            if let Some(directory) = &arguments.out {
                save(&numbers_of(directory, experiment), &report::tsv(&findings))?;
            }
            Ok(Part::new(experiment, Ok(&findings), seconds))
        }
    }
}

/// How often a process is asked whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs an experiment in a process of its own, which leaves a part of the report.
fn run_apart(name: &str, experiment: &Experiment, arguments: &Experiments, interrupted: &Flag) -> Result<Part> {
    let Some(directory) = &arguments.out else { bail!("--jobs needs --out") };
    eprintln!("{name} ...");
    // An earlier report may have left one, and the process may end before it writes its own.
    let _ = std::fs::remove_file(part_of(directory, experiment));
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's file")?);
    command.arg(experiment.name).arg("--part").arg("--force").arg("--out").arg(directory);
    let flags =
        [(arguments.quick, "--quick"), (arguments.only_virtual, "--virtual"), (arguments.only_clock, "--clock")];
    command.args(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot start a job")?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if interrupted.is_set() {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Interrupted.into());
        }
        std::thread::sleep(LOOK_EVERY);
    };
    let left = std::fs::read_to_string(part_of(directory, experiment)).ok();
    let part = left.and_then(|text| Part::from_text(&text, &made_by(arguments)));
    Ok(part.unwrap_or_else(|| Part::new(experiment, Err(&format!("its process ended: {status}")), 0.0)))
}

/// What decides the results of an experiment: a part that was made otherwise is made again.
fn made_by(arguments: &Experiments) -> String {
    let file = std::env::current_exe().and_then(std::fs::metadata).ok();
    let program = file.map(|file| (file.len(), file.modified().ok()));
    format!("{:?} {:?} {} {program:?}", arguments.size(), arguments.times(), env!("CARGO_PKG_VERSION"))
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

fn names() -> String {
    CATALOGUE.iter().map(|experiment| experiment.name).collect::<Vec<_>>().join(", ")
}

fn list() -> Result<()> {
    end_with_reader();
    let width = CATALOGUE.iter().map(|experiment| experiment.name.len()).max().unwrap_or(0);
    for experiment in CATALOGUE {
        anstream::println!("{}  {}", bold(format_args!("{:width$}", experiment.name)), experiment.question);
    }
    Ok(())
}

fn numbers_of(directory: &Path, experiment: &Experiment) -> PathBuf {
    directory.join(format!("{}.tsv", experiment.name))
}

/// The file that keeps an experiment's part of a report that is not whole.
fn part_of(directory: &Path, experiment: &Experiment) -> PathBuf {
    directory.join(format!("{}.kept", experiment.name))
}

/// Creates the directory, and refuses to overwrite a report before anything is measured; returns
/// whether the directory is new.
fn prepare(directory: &Path, chosen: &[&Experiment], force: bool) -> Result<bool> {
    let mut files: Vec<PathBuf> = chosen.iter().map(|experiment| numbers_of(directory, experiment)).collect();
    files.push(directory.join(REPORT));
    if let Some(there) = files.iter().find(|file| file.symlink_metadata().is_ok())
        && !force
    {
        bail!("{} exists: choose another directory, or overwrite it with --force", there.display());
    }
    let is_new = !directory.exists();
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(is_new)
}

/// Atomically: a reader never sees half a report.
fn save(path: &Path, text: &str) -> Result<()> {
    let part = path.with_extension("part");
    let written = std::fs::File::create(&part).and_then(|mut file| file.write_all(text.as_bytes()));
    let saved = written.and_then(|()| std::fs::rename(&part, path));
    if saved.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    saved.with_context(|| format!("cannot write {}", path.display()))
}

fn circumstances(arguments: &Experiments) -> Circumstances {
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    let mut facts = vec![
        ("machine".to_owned(), machine()),
        ("kernel".to_owned(), kernel),
        ("DirectFS".to_owned(), format!("{}, {}", env!("CARGO_PKG_VERSION"), revision())),
        ("command".to_owned(), std::env::args().collect::<Vec<_>>().join(" ")),
        ("date".to_owned(), date()),
        ("sizes".to_owned(), if arguments.quick { QUICK } else { "full" }.to_owned()),
    ];
    if let Some(load) = read("/proc/loadavg").split(' ').next() {
        let meaning =
            format!("average load of the last minute {load}; above 1 (this program) numbers by the clock are worse");
        facts.push(("load at the end".to_owned(), meaning));
    }
    Circumstances { facts }
}

/// The revision of the sources, as far as git knows it and this program is not older.
fn revision() -> String {
    let unknown = || "revision unknown".to_owned();
    let git = |arguments: &[&str]| {
        let sources = env!("CARGO_MANIFEST_DIR");
        let output = Command::new("git").args(["-C", sources]).args(arguments).stderr(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    };
    let built = std::env::current_exe().and_then(std::fs::metadata).and_then(|file| file.modified()).ok();
    let built = built.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok()).map_or(0, |time| time.as_secs());
    let Some((id, committed)) = git(&["log", "-1", "--format=%h %ct"]).and_then(|line| {
        let (id, time) = line.split_once(' ')?;
        Some((id.to_owned(), time.parse::<u64>().ok()?))
    }) else {
        return unknown();
    };
    match (committed > built, git(&["status", "--porcelain", "--untracked-files=no"])) {
        (false, Some(changes)) if changes.is_empty() => format!("revision {id}"),
        (false, Some(_)) => format!("revision {id} with changes"),
        _ => unknown(),
    }
}

/// The date in UTC.
fn date() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs() as i64;
    // Days from civil, backwards: years begin in March.
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} UTC")
}

/// Processor and memory, on one line.
fn machine() -> String {
    let (cpuinfo, meminfo) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let memory = total.and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / (1 << 20) as f64;
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    let model = model.map_or("unknown processor", |(_, name)| name);
    format!("{model}, {}, {memory:.1} GiB of memory", counted(processors, "processor"))
}

/// A count and its noun: `1 processor`, `2 processors`.
fn counted(number: usize, singular: &str) -> String {
    format!("{number} {singular}{}", if number == 1 { "" } else { "s" })
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
