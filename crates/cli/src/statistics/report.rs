//! What `directfs stats` prints.

use super::reading::{MountReading, Reading, RequestTotals};
use crate::commands::info::Commits;
use crate::ps::{self, harmless};
use crate::terminal::{Table, bold, dim, print_fact, share};
use crate::units;
use engine::statistics::{CallClass, CallTotals, Event, LATENCY_CLASSES, below_ns};
use hook::call_table::TABLE;
use pmem::BLOCK_BYTES;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

/// The statistics of an image.
#[derive(Serialize)]
pub struct Totals {
    #[serde(serialize_with = "units::path_as_text")]
    image: PathBuf,
    processes: usize,
    threads: usize,
    /// None: since the first of the image's users began.
    interval_ms: Option<u64>,
    calls: BTreeMap<String, Count>,
    events: BTreeMap<&'static str, u64>,
    space: Option<Space>,
    commits: Option<Commits>,
    waits: Vec<Wait>,
    mounts: Vec<Mount>,
}

/// Calls or requests of one kind.
#[derive(Serialize)]
struct Count {
    count: u64,
    per_second: Option<f64>,
    /// Half of those whose time was taken took less; none: none was taken, or it is longer than all
    /// bounds.
    half_below_ns: Option<u64>,
    p99_below_ns: Option<u64>,
}

#[derive(Serialize)]
struct Space {
    used_bytes: u64,
    free_bytes: u64,
    inodes_used: u64,
    names_cached: u64,
    files_cached: u64,
}

/// A wait, and its process.
#[derive(Serialize)]
struct Wait {
    pid: i32,
    command: Option<String>,
    #[serde(flatten)]
    wait: ps::Wait,
}

#[derive(Serialize)]
struct Mount {
    #[serde(serialize_with = "units::path_as_text")]
    point: PathBuf,
    requests: BTreeMap<String, Count>,
}

/// Each event in reports: its name, what happened, and to what.
pub const EVENTS: [(Event, &str, &str, &str); 4] = [
    (Event::PathWalk, "path_walks", "looked up name by name", "path"),
    (Event::DirectoryIndexed, "directories_indexed", "with names that came into the index", "directory"),
    (Event::FileLoaded, "files_loaded", "with attributes that were read from the image", "file"),
    (Event::Evicted, "evictions", "removed from the cache", "cached file"),
];

impl Count {
    fn of(count: u64, seconds: Option<f64>, latencies: &[u64; LATENCY_CLASSES]) -> Count {
        Count {
            count,
            per_second: seconds.map(|seconds| count as f64 / seconds),
            half_below_ns: below_ns(latencies, 500),
            p99_below_ns: below_ns(latencies, 990),
        }
    }

    fn row(&self, name: &str) -> Vec<String> {
        let time = |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| units::duration(ns as f64));
        let rate = self.per_second.map_or("-".to_owned(), |rate| units::count(rate.round() as u64));
        vec![name.to_owned(), units::count(self.count), rate, time(self.half_below_ns), time(self.p99_below_ns)]
    }
}

/// The calls of a class.
pub fn calls_of(totals: &CallTotals, class: CallClass) -> u64 {
    let of_class = TABLE.details.iter().zip(&totals.calls).filter(|(details, _)| details.class == class);
    of_class.map(|(_, count)| count).sum()
}

/// Counts by name, without those that are zero.
fn calls(totals: &CallTotals, seconds: Option<f64>) -> BTreeMap<String, Count> {
    let named = CallClass::ALL.into_iter().filter(|&class| calls_of(totals, class) > 0);
    named
        .map(|class| {
            let count = Count::of(calls_of(totals, class), seconds, &totals.latencies[class as usize]);
            (class.name().to_owned(), count)
        })
        .collect()
}

impl Mount {
    fn of(mount: &MountReading, before: Option<&MountReading>, seconds: Option<f64>) -> Mount {
        let before: HashMap<&str, &RequestTotals> =
            before.iter().flat_map(|mount| &mount.requests).map(|totals| (totals.name.as_str(), totals)).collect();
        let requests = mount.requests.iter().filter_map(|now| {
            let mut added = now.clone();
            if let Some(earlier) = before.get(now.name.as_str()) {
                added.count = added.count.saturating_sub(earlier.count);
                for (latency, earlier) in added.latencies.iter_mut().zip(earlier.latencies) {
                    *latency = latency.saturating_sub(earlier);
                }
            }
            (added.count > 0).then(|| (added.name.clone(), Count::of(added.count, seconds, &added.latencies)))
        });
        Mount { point: mount.point.clone(), requests: requests.collect() }
    }
}

fn waits(users: &ps::Report) -> Vec<Wait> {
    let of = |process: &ps::Process| -> Vec<Wait> {
        let wait = |wait: &ps::Wait| Wait { pid: process.pid, command: process.command.clone(), wait: wait.clone() };
        process.waits.iter().map(wait).collect()
    };
    users.processes.iter().flat_map(of).collect()
}

impl Totals {
    /// All that was counted.
    pub fn since_beginning(now: &Reading) -> Totals {
        Totals::new(now, now.totals, None, None)
    }

    /// What was counted between two readings.
    pub fn between(before: &Reading, now: &Reading) -> Totals {
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
        Totals::new(now, now.totals.since(&before.totals), Some(seconds), Some(before))
    }

    fn new(now: &Reading, totals: CallTotals, seconds: Option<f64>, before: Option<&Reading>) -> Totals {
        let mount_before = |mount: &MountReading| before?.mounts.iter().find(|earlier| earlier.point == mount.point);
        Totals {
            image: now.image.clone(),
            processes: now.users.processes.len(),
            threads: now.users.processes.iter().map(|process| process.threads.len()).sum(),
            interval_ms: seconds.map(|seconds| (seconds * 1e3).round() as u64),
            calls: calls(&totals, seconds),
            events: EVENTS.into_iter().map(|(event, name, ..)| (name, totals.events_of(event))).collect(),
            space: now.space.map(|(space, cached)| Space {
                used_bytes: (space.blocks - space.blocks_free) * BLOCK_BYTES,
                free_bytes: space.blocks_free * BLOCK_BYTES,
                inodes_used: space.inodes - space.inodes_free,
                names_cached: cached.names,
                files_cached: cached.files,
            }),
            commits: now.commits,
            waits: waits(&now.users),
            mounts: now.mounts.iter().map(|mount| Mount::of(mount, mount_before(mount), seconds)).collect(),
        }
    }

    pub fn print(&self) {
        let (processes, threads) = (self.processes as u64, self.threads as u64);
        let period = match self.interval_ms {
            Some(ms) => format!("in {}", units::duration(ms as f64 * 1e6)),
            None => "since the first of them began".to_owned(),
        };
        let users =
            format!("{}, {}, {period}", units::counted(processes, "process"), units::counted(threads, "thread"));
        println!("{}  {}", bold(self.image.display()), dim(users));
        print_counts("call", &self.calls);
        for mount in &self.mounts {
            println!("{}", bold(format_args!("mounted on {}", mount.point.display())));
            print_counts("request", &mount.requests);
        }
        for (_, name, meaning, what) in EVENTS {
            let count = self.events.get(name).copied().unwrap_or(0);
            if count > 0 {
                println!("{} {}", units::counted(count, what), dim(meaning));
            }
        }
        if let Some(space) = &self.space {
            print_fact(
                "space",
                share(space.used_bytes / BLOCK_BYTES, (space.used_bytes + space.free_bytes) / BLOCK_BYTES),
            );
        }
        if let Some(commits) = &self.commits {
            print_fact("commits", commits.sentence());
        }
        for Wait { pid, command, wait } in &self.waits {
            println!("{pid} {} {}", harmless(command.as_deref().unwrap_or("?")), wait.sentence());
        }
    }
}

/// A table, the most frequent kind first.
fn print_counts(kind: &str, counts: &BTreeMap<String, Count>) {
    if counts.is_empty() {
        println!("no {kind}s");
        return;
    }
    let mut rows: Vec<_> = counts.iter().collect();
    rows.sort_by_key(|(_, count)| std::cmp::Reverse(count.count));
    let mut table = Table::new(&[kind, "count", "per second", "half", "99 %"]);
    rows.into_iter().for_each(|(name, count)| table.row(count.row(name)));
    table.print();
}
