//! Kill storms: processes that work concurrently on one image are killed at random points and
//! replaced.
//!
//! A storm uses one of three fronts: the library (every worker attaches the image), a mount (whose
//! server is killed, too), or `directfs run`. It consists of rounds.
//!
//! In each round a *crew* of workers runs, one of which is killed after every few calls. A tenth of
//! them is stopped first, and some of these go on. A worker makes calls with its own names, and
//! records outside the image how many have returned ([`work`]). The replacement of a killed worker
//! first checks its names: they must be as the completed calls left them, with or without the next
//! call's effect. Between these calls, all workers make calls on shared names.
//!
//! After the round `fsck` checks the image as it is: it may report notes about the deaths, but no
//! error. Then the library opens it, every worker's names are checked again, and after a clean
//! detach `fsck` must find neither an error nor a warning. On a failure the image and all output
//! are kept.

mod files;
mod waits;
pub mod work;
mod workers;

pub use waits::WaitCounts;
pub use workers::take_part;

use crate::machine::Watch;
use crate::test_thread::TestThread;
use anyhow::{Context, Result, anyhow, bail, ensure};
use files::{ByLibrary, Files};
use image::{ExclusiveImage, Image, MakeOptions, OpenImage, make};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use work::{Chapter, Random};
use workers::{Ledger, Orders, WorkerProgress, own_directory, spawn_self};

const IMAGE_BYTES: u64 = 64 << 20;
/// The path of the image's files under `directfs run`.
const INSIDE: &str = "/mnt/directfs";
/// Maximum time for a mount.
const MOUNT_PATIENCE: Duration = Duration::from_secs(60);
/// Rounds on an image before it is replaced.
const ROUNDS_OF_AN_IMAGE: u64 = 50;
/// Maximum number of failures; the run stops then.
const VIOLATIONS_MAX: usize = 20;

/// The way in which workers access the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub enum AccessMethod {
    /// The engine in their own process.
    Library,
    /// A mount.
    Mount,
    /// `directfs run`.
    Run,
}

impl AccessMethod {
    /// All fronts.
    pub const ALL: [AccessMethod; 3] = [AccessMethod::Library, AccessMethod::Mount, AccessMethod::Run];

    /// Whether a write may reach the file system in pieces: the kernel passes it on page by page,
    /// and stops when the writer is killed.
    fn cuts_writes(self) -> bool {
        self == AccessMethod::Mount
    }

    /// For display.
    pub fn name(self) -> &'static str {
        match self {
            AccessMethod::Library => "library",
            AccessMethod::Mount => "mount",
            AccessMethod::Run => "run",
        }
    }
}

/// The parameters of a storm.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Duration; at least `rounds_min` rounds of each front.
    pub duration: Duration,
    /// Minimum number of rounds of each front.
    pub rounds_min: u64,
    /// Kills in a round.
    pub kills: u64,
    /// Random seed.
    pub seed: u64,
    /// Concurrent workers.
    pub workers: usize,
    /// The fronts, used in turn.
    pub access_methods: Vec<AccessMethod>,
    /// The program `directfs`, for all fronts but the library.
    pub directfs: Option<PathBuf>,
    /// The arguments with which this program takes part in the storm, separated by spaces.
    pub arguments: String,
}

/// The results of one front.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct Counts {
    /// Rounds.
    pub rounds: u64,
    /// Workers that were killed.
    pub kills: u64,
    /// Workers that were stopped; some of them were then killed.
    pub stops: u64,
    /// Servers of mounts that were killed.
    pub servers: u64,
    /// Calls of workers with their own names.
    pub calls: u64,
    /// Rounds that failed.
    pub violations: u64,
    /// Waits beside stopped workers.
    pub waits: WaitCounts,
    /// Duration of the rounds.
    pub seconds: f64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.rounds += other.rounds;
        self.kills += other.kills;
        self.stops += other.stops;
        self.servers += other.servers;
        self.calls += other.calls;
        self.violations += other.violations;
        self.waits += other.waits;
        self.seconds += other.seconds;
    }
}

/// The results of a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    /// By front.
    pub lines: Vec<(AccessMethod, Counts)>,
    /// The violations, with the paths of the images.
    pub violations: Vec<String>,
}

impl Outcome {
    /// The sum of all lines.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.lines.iter().for_each(|(_, line)| total += *line);
        total
    }

    /// A table for display.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let titles = ["rounds", "workers killed", "stopped", "servers killed", "calls", "violations", "time, s"];
        let titles = titles.into_iter().chain(["beside stops", "wait > 10 ms", "longest, ms"]);
        let _ = write!(text, "{:<20}", "");
        for title in titles {
            let _ = write!(text, " {title:>14}");
        }
        let total = self.total();
        let named = self.lines.iter().map(|(access, line)| (access.name(), line)).chain([("all", &total)]);
        for (name, line) in named {
            let Counts { rounds, kills, stops, servers, calls, violations, waits, seconds } = line;
            let longest_ms = waits.longest_us as f64 / 1000.0;
            let _ = write!(
                text,
                "\n{name:<20} {rounds:>14} {kills:>14} {stops:>14} {servers:>14} {calls:>14} {violations:>14} {seconds:>14.1}"
            );
            let _ = write!(text, " {:>14} {:>14} {longest_ms:>14.1}", waits.calls, waits.long);
        }
        text + "\n"
    }
}

/// How the library opens the image of a storm.
fn library(image: &Path) -> OpenImage {
    let dram_directory = image.parent().map_or_else(|| PathBuf::from("/dev/shm"), Path::to_owned);
    OpenImage { dram_directory, recovery_threads: 1, timeout: Duration::from_secs(60), ..OpenImage::default() }
}

/// A storm's directory, which is removed with it.
struct Stage {
    directory: PathBuf,
    keep: bool,
}

impl Stage {
    fn new(access: AccessMethod, seed: u64) -> Result<Stage> {
        let base = if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
        let directory = base.join(format!("torture-{}-{}-{seed}", std::process::id(), access.name()));
        fs::create_dir(&directory).with_context(|| format!("creating {}", directory.display()))?;
        let stage = Stage { directory, keep: false };
        fs::create_dir(stage.point())?;
        let options = MakeOptions { length: IMAGE_BYTES, sparse: true, permissions: 0o777, ..MakeOptions::default() };
        make(stage.image(), &options)?;
        Ok(stage)
    }

    fn image(&self) -> PathBuf {
        self.directory.join("image")
    }

    fn point(&self) -> PathBuf {
        self.directory.join("mount")
    }

    fn ledger(&self) -> PathBuf {
        self.directory.join("ledger")
    }

    /// The output of a crew and its workers, or of a server, in this round.
    fn said(&self) -> PathBuf {
        self.directory.join("said")
    }

    fn said_file(&self) -> Result<fs::File> {
        Ok(fs::File::options().create(true).append(true).open(self.said())?)
    }

    fn is_mounted(&self) -> bool {
        let point = self.point();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        mounts.lines().any(|line| line.split(' ').nth(1).map(Path::new) == Some(&point))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(self.point()).status();
        }
        if !self.keep {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// A storm on one front.
struct Storm<'p> {
    plan: &'p Plan,
    access: AccessMethod,
    seed: u64,
    stage: Stage,
    random: Random,
    /// Rounds on this image, including the present one.
    rounds: u64,
    /// Counts of the present round.
    counts: Counts,
}

impl<'p> Storm<'p> {
    /// Starts with a fresh image. The seed belongs to this image.
    fn new(plan: &'p Plan, access: AccessMethod, seed: u64) -> Result<Storm<'p>> {
        let stage = Stage::new(access, seed)?;
        let random = Random(seed ^ (access as u64) << 32);
        Ok(Storm { plan, access, seed, stage, random, rounds: 0, counts: Counts::default() })
    }

    fn directfs(&self) -> Result<Command> {
        let program =
            self.plan.directfs.as_ref().context("this front needs the directfs program: specify it with --directfs")?;
        Ok(Command::new(program))
    }

    fn orders(&self) -> Orders {
        Orders {
            access: self.access,
            // It is equal in all rounds: the calls of a chapter depend on it.
            seed: self.seed,
            workers: self.plan.workers,
            kills: self.plan.kills,
            directory: match self.access {
                AccessMethod::Library => self.stage.image(),
                AccessMethod::Mount => self.stage.point(),
                AccessMethod::Run => INSIDE.into(),
            },
            ledger: self.stage.ledger(),
        }
    }

    /// Runs one round. An error is a violation, or a missing facility of this machine.
    fn round(&mut self) -> (Counts, Result<()>) {
        let begun = Instant::now();
        self.counts = Counts { rounds: 1, ..Counts::default() };
        self.rounds += 1;
        let before = self.progress();
        let passed = self.play();
        for (worker, (before, now)) in before.into_iter().zip(self.progress()).enumerate() {
            let all = |chapter: u64| Chapter::new(self.seed, worker, chapter).calls().len() as u64;
            let ended: u64 = (before.chapter..now.chapter).map(all).sum();
            self.counts.calls += ended + now.returned as u64 - before.returned as u64;
        }
        self.counts.waits = waits::take(&self.stage.ledger());
        self.counts.violations = u64::from(passed.is_err());
        self.counts.seconds = begun.elapsed().as_secs_f64();
        (self.counts, passed)
    }

    fn play(&mut self) -> Result<()> {
        let _ = fs::remove_file(self.stage.said());
        match self.access {
            AccessMethod::Library => self.run_storm_workers(Command::new(std::env::current_exe()?))?,
            AccessMethod::Run => {
                let mut command = self.directfs()?;
                command.args(["run", "--image"]).arg(self.stage.image()).args(["-C", INSIDE, "--"]);
                command.arg(std::env::current_exe()?);
                self.run_storm_workers(command)?;
            }
            AccessMethod::Mount => self.mount_round()?,
        }
        self.look(false).context("as the round left the image")?;
        self.compare()?;
        self.look(true).context("after a clean attach and detach")
    }

    fn progress(&self) -> Vec<WorkerProgress> {
        match Ledger::open(&self.stage.ledger()) {
            Ok(ledger) => (0..self.plan.workers).map(|worker| ledger.progress(worker)).collect(),
            Err(_) => Vec::new(),
        }
    }

    fn run_workers(&self, program: Command) -> Result<Child> {
        let mut command = spawn_self(program, "crew", &self.orders(), &self.plan.arguments);
        command.stdout(Stdio::piped()).stderr(self.stage.said_file()?).spawn().context("starting a crew")
    }

    fn run_storm_workers(&mut self, program: Command) -> Result<()> {
        let output = self.run_workers(program)?.wait_with_output()?;
        self.record_workers(&output)
    }

    fn record_workers(&mut self, output: &std::process::Output) -> Result<()> {
        let text = String::from_utf8_lossy(&output.stdout);
        let kills = text.lines().find_map(|line| line.strip_prefix("kills ")?.parse::<u64>().ok());
        let stops = text.lines().find_map(|line| line.strip_prefix("stops ")?.parse::<u64>().ok());
        self.counts.kills += kills.unwrap_or(0);
        self.counts.stops += stops.unwrap_or(0);
        let said = fs::read_to_string(self.stage.said()).unwrap_or_default();
        ensure!(
            output.status.success() && kills.is_some(),
            "the crew exited with {}; its output: {said}",
            output.status
        );
        Ok(())
    }

    /// A round on a mount: in every second one its server is killed.
    fn mount_round(&mut self) -> Result<()> {
        let mut server = self.serve()?;
        let mut workers = self.run_workers(Command::new(std::env::current_exe()?))?;
        let kills_server = self.rounds.is_multiple_of(2);
        if kills_server {
            self.wait_for_calls(&mut workers)?;
            server.kill().context("killing a server")?;
            self.counts.servers += 1;
        }
        let output = workers.wait_with_output()?;
        let noted = self.record_workers(&output);
        // Workers without a server exit, and so does their crew.
        let gone = kills_server && output.status.code() == Some(workers::EXIT_SERVER_GONE);
        let lazily: &[&str] = if kills_server { &["umount", "--lazy"] } else { &["umount"] };
        let unmounted = self.directfs()?.args(lazily).arg(self.stage.point()).output()?;
        let ended = server.wait()?;
        if !gone {
            noted?;
        }
        let result = String::from_utf8_lossy(&unmounted.stderr);
        ensure!(unmounted.status.success(), "umount exited with {}: {result}", unmounted.status);
        ensure!(kills_server || ended.success(), "the server exited with {ended}");
        Ok(())
    }

    /// Waits until workers have made some of the calls of a round, or until the crew has ended.
    fn wait_for_calls(&mut self, workers: &mut Child) -> Result<()> {
        let made = |storm: &Storm| storm.progress().into_iter().map(WorkerProgress::calls).sum::<u64>();
        let calls = made(self) + self.random.below(workers::CALLS_BETWEEN / 2 * self.plan.kills);
        while made(self) < calls && workers.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Mounts the image; returns the server once the mount is ready.
    fn serve(&self) -> Result<Child> {
        let mut command = self.directfs()?;
        command.args(["mount", "--foreground"]).arg(self.stage.image()).arg(self.stage.point());
        // Where the kernel offers io_uring, in two of four rounds.
        if self.rounds / 2 % 2 == 1 {
            command.args(["-o", "no_io_uring"]);
        }
        let mut server = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.stage.said_file()?)
            .spawn()
            .context("starting directfs")?;
        let begun = Instant::now();
        while !self.stage.is_mounted() {
            if let Some(status) = server.try_wait()? {
                bail!("directfs mount exited with {status}");
            }
            if begun.elapsed() > MOUNT_PATIENCE {
                let _ = server.kill();
                let _ = server.wait();
                bail!("the mount is not ready in time");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }

    /// Checks the names of all workers after all processes have ended.
    fn compare(&self) -> Result<()> {
        let path = self.stage.image();
        let watch = Arc::new(Watch::new(IMAGE_BYTES));
        let image = Image::open_with(&path, &library(&path), || Arc::clone(&watch)).context("opening the image")?;
        {
            let thread = TestThread::new(image.fs()).map_err(|error| anyhow!("entering: {error:?}"))?;
            for (worker, progress) in self.progress().into_iter().enumerate() {
                let found = match ByLibrary(&thread).see(&own_directory(worker)) {
                    Err(libc::ENOENT) if progress == (WorkerProgress { chapter: 0, returned: 0 }) => continue,
                    found => found.map_err(|error| anyhow!("reading w{worker}: error {error}"))?,
                };
                let WorkerProgress { chapter, returned } = progress;
                let judged =
                    Chapter::new(self.seed, worker, chapter).check(returned, &found, self.access.cuts_writes());
                judged.map_err(|what| anyhow!("worker {worker}, chapter {chapter}, call {returned}: {what}"))?;
            }
        }
        image.close().map(drop).context("closing the image")
    }

    /// Runs `fsck` on the image: as the deaths left it, or after a clean detach.
    fn look(&self, in_order: bool) -> Result<()> {
        let alone = ExclusiveImage::open(self.stage.image()).context("opening the image exclusively")?;
        let mapping = alone.mapping();
        // SAFETY: the mapping outlives the region, and nothing else uses it.
        let region = unsafe { pmem::Region::new(mapping.address(), mapping.length(), pmem::Direct) };
        let report = fsck::check(&region, &fsck::Options::default(), &mut |_| {});
        let findings: Vec<_> = report.findings.iter().map(|finding| finding.to_string()).collect();
        ensure!(report.is_sound() && (report.clean || !in_order), "fsck reports {findings:#?}");
        Ok(())
    }

    /// Keeps the files of a violation; returns its description.
    fn keep(&mut self, error: &anyhow::Error) -> String {
        self.stage.keep = true;
        let (access, round, seed) = (self.access.name(), self.rounds, self.seed);
        format!(
            "{access}, round {round} of seed {seed}: {error:#}\n    The image is kept in {}.",
            self.stage.directory.display()
        )
    }
}

/// Runs storms on the fronts of a plan in turn until its time is up. `report` is called after each
/// round, `found` immediately for each violation.
pub fn run(plan: &Plan, report: &mut dyn FnMut(&Outcome), found: &dyn Fn(&str)) -> Result<Outcome> {
    let begun = Instant::now();
    let lines = plan.access_methods.iter().map(|access| (*access, Counts::default())).collect();
    let mut outcome = Outcome { lines, violations: Vec::new() };
    let mut storms: Vec<Option<Storm>> = plan.access_methods.iter().map(|_| None).collect();
    let mut seed = plan.seed;
    while outcome.violations.len() < VIOLATIONS_MAX {
        for (line, storm) in outcome.lines.iter_mut().zip(&mut storms) {
            if storm.as_ref().is_none_or(|storm| storm.rounds == ROUNDS_OF_AN_IMAGE) {
                *storm = None;
                *storm = Some(Storm::new(plan, line.0, seed)?);
                seed += 1;
            }
            let Some(at) = storm else { continue };
            let (counts, passed) = at.round();
            line.1 += counts;
            if let Err(error) = passed {
                let result = at.keep(&error);
                found(&result);
                outcome.violations.push(result);
                *storm = None;
            }
        }
        report(&outcome);
        let rounds = outcome.lines.iter().map(|(_, counts)| counts.rounds).min();
        if begun.elapsed() >= plan.duration && rounds.is_none_or(|rounds| rounds >= plan.rounds_min) {
            break;
        }
    }
    Ok(outcome)
}
