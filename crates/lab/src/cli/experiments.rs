//! Lists and runs the papers' experiments.

use super::arguments::Experiments;
use super::interrupt::{Flag, Interrupted};
use anstream::stream::IsTerminal;
use anyhow::{Context, Result, bail};
use console::terminal::{bold, dim, end_with_reader};
use lab::experiments::report::{self, Circumstances};
use lab::experiments::{Bench, CATALOGUE, Experiment, Failure, Findings, Size, find};
use std::io::Write;
use std::path::{Path, PathBuf};

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
        Some(directory) => prepare(directory, &chosen, arguments.force)?,
        None => false,
    };
    let done = Flag::catch().and_then(|interrupted| carry_out(&chosen, arguments, &interrupted));
    if let (Err(_), Some(directory), true) = (&done, &arguments.out, made) {
        // It stays if it has the report of an experiment.
        let _ = std::fs::remove_dir(directory);
    }
    done
}

/// An experiment, and its findings or why it failed.
type Done<'e> = (&'e Experiment, Result<Findings, String>);

/// Runs experiments, and prints the findings of a single one. After each it writes the report. A
/// failed one is a section of the report, and the others go on.
fn carry_out(chosen: &[&Experiment], arguments: &Experiments, interrupted: &Flag) -> Result<()> {
    let size = if arguments.quick { Size::Quick } else { Size::Full };
    let begun = std::time::Instant::now();
    let is_terminal = std::io::stderr().is_terminal();
    let mut done: Vec<Done<'_>> = Vec::new();
    let mut seconds = Vec::new();
    for (index, experiment) in chosen.iter().enumerate() {
        let name = format!("[{}/{}] {}", index + 1, chosen.len(), experiment.name);
        let progress = |step: &str| {
            if is_terminal {
                // One line that is rewritten in place.
                eprint!("{CLEAR_LINE}");
                anstream::eprint!("{} {}", bold(&name), dim(step));
            }
        };
        if !is_terminal {
            eprintln!("{name} ...");
        }
        let times = arguments.times();
        let bench = Bench { size, times, stop: &|| interrupted.is_set(), progress: &progress };
        let start = std::time::Instant::now();
        let carried_out = experiment.carry_out(&bench);
        seconds.push(format!("{} {:.0}", experiment.name, start.elapsed().as_secs_f64()));
        if is_terminal {
            eprint!("{CLEAR_LINE}");
        }
        match carried_out {
            Err(Failure::Interrupted) => return Err(Interrupted.into()),
            Err(failure) if chosen.len() == 1 => {
                return Err(anyhow::Error::new(failure).context(format!("experiment {} failed", experiment.name)));
            }
            Err(failure) => {
                eprintln!("experiment {} failed: {failure}", experiment.name);
                done.push((experiment, Err(failure.to_string())));
            }
            Ok(findings) => {
                if chosen.len() == 1 {
                    print!("{}", report::text(experiment, &findings));
                }
                done.push((experiment, Ok(findings)));
            }
        }
        if let Some(directory) = &arguments.out {
            write(directory, size, &done, &seconds.join(", "))?;
        }
    }
    if let Some(directory) = &arguments.out {
        println!(
            "{} in {:.0} s: {}",
            counted(done.len(), "experiment"),
            begun.elapsed().as_secs_f64(),
            directory.join(REPORT).display()
        );
    }
    let failed: Vec<&str> =
        done.iter().filter(|(_, outcome)| outcome.is_err()).map(|(experiment, _)| experiment.name).collect();
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("{} failed: {}", counted(failed.len(), "experiment"), failed.join(", "))
    }
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

fn write(directory: &Path, size: Size, done: &[Done<'_>], seconds: &str) -> Result<()> {
    let all: Vec<report::Outcome<'_>> =
        done.iter().map(|(experiment, outcome)| (*experiment, outcome.as_ref().map_err(String::as_str))).collect();
    if let Some((experiment, Ok(findings))) = all.last() {
        save(&numbers_of(directory, experiment), &report::tsv(findings))?;
    }
    save(&directory.join(REPORT), &report::html(&circumstances(size, seconds), &all))
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

fn circumstances(size: Size, seconds: &str) -> Circumstances {
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    let mut facts = vec![
        ("machine".to_owned(), machine()),
        ("kernel".to_owned(), kernel),
        ("DirectFS".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("command".to_owned(), std::env::args().collect::<Vec<_>>().join(" ")),
        ("date".to_owned(), date()),
        ("seconds".to_owned(), seconds.to_owned()),
        ("sizes".to_owned(), if size == Size::Quick { QUICK } else { "full" }.to_owned()),
    ];
    if let Some(load) = read("/proc/loadavg").split(' ').next() {
        let meaning =
            format!("average load of the last minute {load}; above 1 (this program) numbers by the clock are worse");
        facts.push(("load at the end".to_owned(), meaning));
    }
    Circumstances { facts }
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
