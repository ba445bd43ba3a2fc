//! What an image's users have counted so far.
//!
//! Programs under `run`, with the library, and the servers of mounts that share the image count in
//! their thread slots. A mount's server also counts the kernel's requests, and reports them as an
//! attribute of the mount.

use crate::asking::{self, Unanswered};
use crate::commands::info::{self, Commits};
use crate::{mounts, processes, ps};
use anyhow::Result;
use engine::statistics::{CallTotals, LATENCY_CLASSES};
use engine::{CacheReport, SpaceReport, Thread};
use pmem::Direct;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tables::process::Processes;

/// What was counted until one moment.
pub struct Reading {
    pub image: PathBuf,
    pub label: String,
    pub uuid: String,
    pub at: Instant,
    /// The users of the image, and what they wait for.
    pub users: ps::Report,
    /// The totals of all threads that ever used the image.
    pub totals: CallTotals,
    /// By slot.
    pub slots: HashMap<u32, Slot>,
    /// `None`: no process uses the image, or a mount alone.
    pub space: Option<(SpaceReport, CacheReport)>,
    /// The commits of an image on a disk.
    pub commits: Option<Commits>,
    pub mounts: Vec<MountReading>,
}

/// A thread slot.
pub struct Slot {
    /// The process of its owner; zero: none, or not known here.
    pub pid: i32,
    /// The totals of all owners of the slot.
    pub totals: CallTotals,
}

/// What the server of a mount reports.
pub struct MountReading {
    pub point: PathBuf,
    /// In the server's order.
    pub requests: Vec<RequestTotals>,
}

/// Requests of one kind.
#[derive(Clone)]
pub struct RequestTotals {
    pub name: String,
    pub count: u64,
    pub latencies: [u64; LATENCY_CLASSES],
}

impl Reading {
    /// Reads the counts of an image.
    pub fn take(image: &Path) -> Result<Reading> {
        let (label, uuid) = info::identity(image)?;
        let mut reading = Reading {
            image: image.to_owned(),
            label,
            uuid,
            at: Instant::now(),
            users: ps::gather(image)?,
            totals: CallTotals::default(),
            slots: HashMap::new(),
            space: None,
            commits: None,
            mounts: mounts_of(image),
        };
        if let Some(attached) = ps::attach(image, !reading.users.processes.is_empty())? {
            reading.at = Instant::now();
            let thread = attached.fs().enter().map_err(error_of)?;
            reading.add_slots(&thread).map_err(error_of)?;
            let cached = thread.fs().cached().map_err(error_of)?;
            reading.space = Some((thread.space().map_err(error_of)?, cached));
            let works_on_disk = attached.works_on_disk();
            reading.commits = attached.commit_status().map(|status| Commits::of(status, works_on_disk));
        }
        Ok(reading)
    }

    fn add_slots(&mut self, thread: &Thread<'_, Direct>) -> engine::Result<()> {
        let (fs, mut pids) = (thread.fs(), HashMap::new());
        if let Ok(tables) = Processes::new(fs) {
            // Without them, processes are found by their threads.
            let _ = tables.each_process(&mut |process| {
                pids.insert(process.number, process.process_id as i32);
            });
        }
        for slot in 0..fs.slots_used()? {
            if slot == thread.index() {
                continue;
            }
            let mut totals = CallTotals::default();
            fs.add_statistics(slot, &mut totals)?;
            fs.add_statistics(slot, &mut self.totals)?;
            let owner = fs.slot_owner(slot)?;
            let pid =
                owner.and_then(|owner| pids.get(&owner.process).copied().or_else(|| self.user_with(owner.thread)));
            self.slots.insert(slot, Slot { pid: pid.unwrap_or(0), totals });
        }
        Ok(())
    }

    /// The user of the image that has a thread.
    fn user_with(&self, tid: u32) -> Option<i32> {
        let has_it = |process: &&ps::Process| process.threads.iter().any(|thread| thread.tid == tid);
        self.users.processes.iter().find(has_it).map(|process| process.pid)
    }
}

fn error_of(error: engine::Error) -> anyhow::Error {
    anyhow::anyhow!("the shared memory of the image's users cannot be read: {error:?}")
}

/// The image's mounts, of those that this process sees. A server that is dead or stopped reports
/// nothing.
fn mounts_of(image: &Path) -> Vec<MountReading> {
    mounts::of_image(image)
        .into_iter()
        .filter_map(|mount| Some(MountReading { requests: requests_of(image, &mount.point)?, point: mount.point }))
        .collect()
}

fn requests_of(image: &Path, point: &Path) -> Option<Vec<RequestTotals>> {
    let answer = asking::attribute(point, fuse::LATENCIES_ATTRIBUTE);
    if answer == Err(Unanswered::Silent) {
        eprintln!("{}; its requests are left out", processes::silent_servers(image, point));
    }
    Some(std::str::from_utf8(&answer.ok()?).ok()?.lines().filter_map(parse).collect())
}

/// A line: name, count, and latencies by class.
fn parse(line: &str) -> Option<RequestTotals> {
    let mut words = line.split(' ');
    let (name, count) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
    let mut latencies = [0; LATENCY_CLASSES];
    for latency in &mut latencies {
        *latency = words.next()?.parse().ok()?;
    }
    Some(RequestTotals { name, count, latencies })
}
