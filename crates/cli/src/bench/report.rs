//! What the benchmark says, for people and for programs.

use super::calls::{Call, Measured};
use super::counting::{CountingObserver, Written};
use super::scale::Scale;
use super::statistics::Summary;
use crate::terminal::{Table, bold, dim};
use crate::units::{count, duration};
use anyhow::Result;
use serde::Serialize;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this program.
    pub version: &'static str,
    /// What was measured.
    pub subject: String,
    /// What file system it is, and on what.
    pub medium: String,
    /// Processor and kernel.
    pub machine: String,
    /// The floor P: one store, flush and fence.
    pub floor: Summary,
    /// How many programs wanted a processor on average in the minute before: others' work makes figures worse.
    pub load_before: Option<f64>,
    /// Each number of files.
    pub directories: Vec<DirectoryReport>,
    /// Footprints and recovery, where the subject has them.
    pub scale: Option<Scale>,
}

/// The calls over one number of files.
#[derive(Debug, Serialize)]
pub struct DirectoryReport {
    /// Files in the directory.
    pub files: u64,
    /// Rounds per figure.
    pub rounds: u32,
    /// Each call.
    pub calls: Vec<CallReport>,
}

/// One call.
#[derive(Debug, Serialize)]
pub struct CallReport {
    /// Which.
    pub call: Call,
    /// Its times.
    #[serde(flatten)]
    pub time: Summary,
    /// The median in multiples of the floor.
    pub floors: f64,
    /// What the design aims at, in multiples of the floor; only for the engine in this process.
    pub target_floors: Option<f64>,
    /// What it writes; only for the engine in this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<Written>,
}

impl DirectoryReport {
    /// From what was measured. Targets and what was written apply to the engine only.
    pub fn new(
        files: u64,
        rounds: u32,
        measured: &Measured,
        floor: Summary,
        engine: Option<&CountingObserver>,
    ) -> DirectoryReport {
        // The design allows twice the time where the names no longer fit the caches.
        let allowance = if files > 100_000 { 2.0 } else { 1.0 };
        let calls = Call::ALL.into_iter().filter_map(|call| {
            let time = measured.summary(call)?;
            Some(CallReport {
                call,
                time,
                floors: time.median_ns / floor.median_ns,
                target_floors: engine.and(call.target()).map(|target| target * allowance),
                written: engine.map(|counted| counted.written(call)),
            })
        });
        DirectoryReport { files, rounds, calls: calls.collect() }
    }
}

impl Report {
    /// Prints it as JSON.
    pub fn print_json(&self) -> Result<()> {
        println!("{}", serde_json::to_string_pretty(self)?);
        Ok(())
    }

    /// Prints it for people.
    pub fn print(&self) {
        anstream::println!("{}", bold(&self.subject));
        anstream::println!("{}\n{}", self.medium, self.machine);
        anstream::println!("floor P (store, flush, fence of one line): {}", bold(duration(self.floor.median_ns)));
        if let Some(load) = self.load_before.filter(|&load| load > 0.5) {
            let note = format!(
                "note: the machine was busy before this run (load {load}); the times are worse than on a quiet one"
            );
            anstream::println!("{}", bold(note));
        }
        for directory in &self.directories {
            directory.print();
        }
        if let Some(scale) = &self.scale {
            scale.print();
        }
    }
}

impl DirectoryReport {
    fn print(&self) {
        let rounds = crate::units::counted(self.rounds as u64, "round");
        anstream::println!(
            "\n{}  {}",
            bold(format!("{} files in one directory", count(self.files))),
            dim(format!("median of {rounds}"))
        );
        let is_engine = self.calls.iter().any(|call| call.written.is_some());
        let mut table = match is_engine {
            true => Table::new(&["call", "time", "best", "worst", "in P", "aim", "lines", "fences"]),
            false => Table::new(&["call", "time", "best", "worst", "in P"]),
        };
        for call in &self.calls {
            let mut cells = vec![
                call.call.words().to_owned(),
                duration(call.time.median_ns),
                duration(call.time.min_ns),
                duration(call.time.max_ns),
                format!("{:.2}", call.floors),
            ];
            if let Some(written) = call.written {
                cells.push(call.target_floors.map_or_else(|| "-".into(), |target| format!("≤ {target}")));
                cells.push(format!("{:.1}", written.lines));
                cells.push(format!("{:.1}", written.fences));
            }
            table.row(cells);
        }
        table.print();
    }
}

impl Scale {
    fn print(&self) {
        anstream::println!("\n{}", bold(format!("{} files, all of them", count(self.files))));
        let beside = self.pm_bytes_per_file - self.name_bytes as f64;
        let recovery =
            format!("recovery after a crash, {}", crate::units::counted(self.recovery_threads as u64, "thread"));
        let mut table = Table::new(&["", "measured", "aim"]);
        for (what, measured, aim) in [
            ("image bytes per empty file beside its name", format!("{beside:.0}"), "≤ 384"),
            ("memory bytes per cached file", format!("{:.0}", self.dram_bytes_per_file), "≤ 192"),
            ("attach, left clean", duration(self.attach_ns), "-"),
            ("first access to the directory, 1 thread", duration(self.index_ns), self.aim("≤ 200 ms")),
            (recovery.as_str(), duration(self.recovery_ns), self.aim("≤ 1 s")),
        ] {
            table.row(vec![what.to_owned(), measured, aim.to_owned()]);
        }
        table.print();
    }

    /// An aim that was set for a million files.
    fn aim(&self, aim: &'static str) -> &'static str {
        if self.files == 1_000_000 { aim } else { "-" }
    }
}
