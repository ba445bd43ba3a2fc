//! `directfs profile`: what a program and those that it starts called on the image.
//!
//! Invariant: the file of a recording has a name that cannot be guessed, is its user's alone, and
//! is removed with the recording. Programs that go on in the background have it mapped.

use crate::arguments;
use crate::terminal::{bold, dim};
use crate::units;
use anyhow::{Context, Result};
use hook::call_table::{OTHERS, ROWS};
use hook::profile::{self, PATH_BYTES, PATHS, PathRecord, Profile, Total};
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::mem::offset_of;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Calls and paths that the table shows.
const ROWS_SHOWN: usize = 15;
const PATHS_SHOWN: usize = 10;

/// The recording of a run.
pub struct Recording<'a> {
    arguments: &'a arguments::Profile,
    path: PathBuf,
    output: Option<File>,
    began: Instant,
    began_ticks: u64,
}

/// What is reported.
#[derive(Serialize)]
struct Report {
    command: String,
    wall_ns: u64,
    programs: u64,
    calls: Vec<Call>,
    paths: Vec<PathUse>,
    paths_not_counted: u64,
}

#[derive(Serialize)]
struct Call {
    name: &'static str,
    count: u64,
    total_ns: u64,
}

#[derive(Serialize)]
struct PathUse {
    path: String,
    count: u64,
    total_ns: u64,
}

impl<'a> Recording<'a> {
    /// Begins a recording.
    pub fn new(arguments: &'a arguments::Profile) -> Result<Recording<'a>> {
        let output = arguments
            .output
            .as_ref()
            .map(|path| File::create(path).with_context(|| format!("cannot write the report to {}", path.display())));
        let output = output.transpose()?;
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).context("no random numbers")?;
        let path = Path::new("/dev/shm").join(format!("directfs-profile-{:016x}", u64::from_ne_bytes(random)));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot create {}", path.display()))?;
        let recording = Recording { arguments, path, output, began: Instant::now(), began_ticks: profile::now() };
        // Asked for now: a program that counts must not find the memory full.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size_of::<Profile>() as u64)
            .with_context(|| format!("cannot provide {}", recording.path.display()))?;
        Ok(recording)
    }

    /// The file into which programs count.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the recording and prints it.
    pub fn report(mut self) -> Result<()> {
        let (wall, ticks) = (self.began.elapsed(), profile::now().saturating_sub(self.began_ticks));
        let bytes = fs::read(&self.path).with_context(|| format!("cannot read {}", self.path.display()))?;
        let ns_per_tick = wall.as_nanos() as f64 / ticks.max(1) as f64;
        let mut report = Report::from_words(&Words(&bytes), ns_per_tick);
        report.wall_ns = wall.as_nanos() as u64;
        let words: Vec<_> = self.arguments.run.command.iter().map(|word| word.to_string_lossy()).collect();
        report.command = words.join(" ");
        let text =
            if self.arguments.json { format!("{}\n", serde_json::to_string_pretty(&report)?) } else { report.table() };
        match self.output.as_mut() {
            Some(file) => file
                .write_all(anstream::adapter::strip_str(&text).to_string().as_bytes())
                .context("cannot write the report"),
            None => {
                eprint!("{text}");
                Ok(())
            }
        }
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The words of a profile's file.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn at(&self, offset: usize) -> u64 {
        self.0.get(offset..offset + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
    }

    /// Count and time of the calls whose total is there.
    fn total(&self, offset: usize, ns_per_tick: f64) -> (u64, u64) {
        let ticks = self.at(offset + offset_of!(Total, ticks));
        (self.at(offset + offset_of!(Total, count)), (ticks as f64 * ns_per_tick) as u64)
    }
}

impl Report {
    fn from_words(words: &Words<'_>, ns_per_tick: f64) -> Report {
        let entries = ROWS.iter().flat_map(|row| row.calls).chain(OTHERS);
        let mut calls: Vec<Call> = entries
            .map(|entry| {
                let at = offset_of!(Profile, calls) + entry.number as usize * size_of::<Total>();
                let (count, total_ns) = words.total(at, ns_per_tick);
                Call { name: entry.name.trim_start_matches("SYS_"), count, total_ns }
            })
            .filter(|call| call.count != 0)
            .collect();
        calls.sort_by_key(|call| std::cmp::Reverse(call.total_ns));
        let mut paths: Vec<PathUse> = (0..PATHS)
            .filter_map(|index| {
                let at = offset_of!(Profile, paths) + index * size_of::<PathRecord>();
                let length = words.at(at + offset_of!(PathRecord, length)) as usize;
                let bytes = words.0.get(at + offset_of!(PathRecord, bytes)..)?.get(..length.min(PATH_BYTES))?;
                let (count, total_ns) = words.total(at + offset_of!(PathRecord, total), ns_per_tick);
                (length != 0).then(|| PathUse { path: String::from_utf8_lossy(bytes).into_owned(), count, total_ns })
            })
            .collect();
        paths.sort_by_key(|path| std::cmp::Reverse(path.total_ns));
        Report {
            command: String::new(),
            wall_ns: 0,
            programs: words.at(offset_of!(Profile, programs)),
            calls,
            paths,
            paths_not_counted: words.at(offset_of!(Profile, without_record)),
        }
    }

    fn table(&self) -> String {
        let duration = |ns: u64| units::duration(ns as f64);
        let total_ns: u64 = self.calls.iter().map(|call| call.total_ns).sum();
        let count: u64 = self.calls.iter().map(|call| call.count).sum();
        let mut text = format!(
            "{}\n{} of wall time, {}; {} took {} of all threads' time\n",
            bold(format_args!("profile of {}", if self.command.is_empty() { "a shell" } else { &self.command })),
            duration(self.wall_ns),
            units::counted(self.programs, "program"),
            units::counted(count, "call"),
            duration(total_ns),
        );
        let calls = self.calls.iter().take(ROWS_SHOWN).map(|call| (call.name, call.count, call.total_ns));
        let paths = self.paths.iter().take(PATHS_SHOWN).map(|path| (path.path.as_str(), path.count, path.total_ns));
        for (title, rows) in [("call", calls.collect::<Vec<_>>()), ("path", paths.collect())] {
            if !rows.is_empty() {
                let head = format!("{:>12}{:>12}{:>12}{:>9}  {title}", "calls", "time", "mean", "share");
                text += &format!("{}\n", dim(head));
            }
            for (name, count, ns) in rows {
                let (calls, mean) = (units::count(count), duration(ns / count.max(1)));
                let share = ns as f64 * 100.0 / total_ns.max(1) as f64;
                text += &format!("{calls:>12}{:>12}{mean:>12}{share:>7.1} %  {name}\n", duration(ns));
            }
        }
        text
    }
}
