//! Lists and runs the papers' experiments.

use super::arguments::Experiments;
use super::interrupt::{Flag, Interrupted};
use super::terminal::{bold, dim, end_with_reader};
use anstream::stream::IsTerminal;
use anyhow::{Context, Result, bail};
use lab::experiments::report::{self, Circumstances};
use lab::experiments::{Bench, CATALOGUE, Experiment, Failure, Findings, Size, chart, find};
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
        // The new directory is empty: reports are written only at the end.
        let _ = std::fs::remove_dir(directory);
    }
    done
}

/// Runs experiments, prints the findings of a single one, and writes the report.
fn carry_out(chosen: &[&Experiment], arguments: &Experiments, interrupted: &Flag) -> Result<()> {
    let size = if arguments.quick { Size::Quick } else { Size::Full };
    // Not only before each: all that an earlier one measured would be lost.
    chosen.iter().try_for_each(|experiment| experiment.check_memory(size))?;
    let begun = std::time::Instant::now();
    let is_terminal = std::io::stderr().is_terminal();
    let mut done = Vec::new();
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
        let carried_out = experiment.carry_out(&bench);
        if is_terminal {
            eprint!("{CLEAR_LINE}");
        }
        let findings = carried_out.map_err(|failure| match failure {
            Failure::Interrupted => anyhow::Error::new(Interrupted),
            other => anyhow::Error::new(other).context(format!("experiment {} failed", experiment.name)),
        })?;
        if chosen.len() == 1 {
            print!("{}", report::text(experiment, &findings));
        }
        done.push((*experiment, findings));
    }
    if let Some(directory) = &arguments.out {
        write(directory, size, &done)?;
        println!(
            "{} in {:.0} s: {}",
            counted(done.len(), "experiment"),
            begun.elapsed().as_secs_f64(),
            directory.join(REPORT).display()
        );
    }
    Ok(())
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

fn files_of(directory: &Path, experiment: &Experiment) -> [PathBuf; 2] {
    ["tsv", "svg"].map(|ending| directory.join(format!("{}.{ending}", experiment.name)))
}

/// Creates the directory, and refuses to overwrite a report before anything is measured; returns
/// whether the directory is new.
fn prepare(directory: &Path, chosen: &[&Experiment], force: bool) -> Result<bool> {
    let mut files: Vec<PathBuf> = chosen.iter().flat_map(|experiment| files_of(directory, experiment)).collect();
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

fn write(directory: &Path, size: Size, done: &[(&Experiment, Findings)]) -> Result<()> {
    let all: Vec<(&Experiment, &Findings)> =
        done.iter().map(|(experiment, findings)| (*experiment, findings)).collect();
    for (experiment, findings) in &all {
        let [numbers, plot] = files_of(directory, experiment);
        save(&numbers, &report::tsv(findings))?;
        save(&plot, &chart::sheet(&findings.plots))?;
    }
    save(&directory.join(REPORT), &report::html(&circumstances(size), &all))
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

fn circumstances(size: Size) -> Circumstances {
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    let mut facts = vec![
        ("machine".to_owned(), machine()),
        ("kernel".to_owned(), kernel),
        ("DirectFS".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("sizes".to_owned(), if size == Size::Quick { QUICK } else { "full" }.to_owned()),
    ];
    if let Some(load) = read("/proc/loadavg").split(' ').next() {
        let meaning = format!("average load of the last minute {load}; above 1 (this program) all numbers are worse");
        facts.push(("load at the end".to_owned(), meaning));
    }
    Circumstances { facts }
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
