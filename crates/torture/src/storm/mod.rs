//! Kill storms: processes that work on one image at once are killed at random moments, and others take their places.
//!
//! A storm goes over one of three fronts: the library (every worker has the image inside), a mount (whose server is killed, too), or `directfs run`. It
//! consists of rounds. In each a *crew* of workers is let loose, of which one is killed every few milliseconds. A worker makes calls with names of its own, and
//! notes outside of the image how many have returned ([`work`]). Whoever takes the place of a dead one first compares what is there with what must be: what the
//! calls that had returned left, with or without the next one, and nothing else. Between, all make calls with names that all want. After the
//! round the image is opened by the library; every worker's names are compared again, and `fsck` must find neither an error nor a warning.

mod crew;
mod files;
pub mod work;

pub use crew::take_part;

use crate::hand::Hand;
use crate::machine::Watch;
use anyhow::{Context, Result, bail, ensure};
use crew::{Ledger, Orders, Place, once_more, own};
use files::{ByLibrary, Files};
use posix::image::{Alone, Image, MakeOptions, OpenImage, make};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use work::{Chapter, Random};

const IMAGE_BYTES: u64 = 64 << 20;
/// Where programs see the image under `directfs run`.
const INSIDE: &str = "/mnt/directfs";
/// How long the server of a mount lives before it is killed, at most; and how long a mount may take.
const SERVER_MS: u64 = 900;
const MOUNT_PATIENCE: Duration = Duration::from_secs(30);

/// By what road workers come to the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub enum Front {
    /// The engine in their own process.
    Library,
    /// A mount.
    Mount,
    /// `directfs run`.
    Run,
}

impl Front {
    /// All.
    pub const ALL: [Front; 3] = [Front::Library, Front::Mount, Front::Run];

    /// Whether a write may reach the file system in pieces: the kernel hands it over page by page, and stops when the writer is killed.
    fn cuts_writes(self) -> bool {
        self == Front::Mount
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Front::Library => "library",
            Front::Mount => "mount",
            Front::Run => "run",
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Plan {
    /// For how long; at least one round of each front.
    pub duration: Duration,
    /// How long a crew works.
    pub round: Duration,
    /// Draws what is drawn.
    pub seed: u64,
    /// Workers at a time.
    pub workers: usize,
    /// Over which fronts, in turn.
    pub fronts: Vec<Front>,
    /// The program `directfs`, for all fronts but the library.
    pub directfs: Option<PathBuf>,
    /// How this program is started to take part in the storm: arguments, with spaces between.
    pub arguments: String,
}

/// What came of it over one front.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct Counts {
    /// Rounds.
    pub rounds: u64,
    /// Workers that were killed.
    pub kills: u64,
    /// Servers of mounts that were killed.
    pub servers: u64,
    /// Calls with names of their own that workers made.
    pub calls: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.rounds += other.rounds;
        self.kills += other.kills;
        self.servers += other.servers;
        self.calls += other.calls;
    }
}

/// How the library opens the image of a storm.
fn library(image: &Path) -> OpenImage {
    let dram_directory = image.parent().map_or_else(|| PathBuf::from("/dev/shm"), Path::to_owned);
    OpenImage { dram_directory, recovery_threads: 1, patience: Duration::from_secs(60), ..OpenImage::default() }
}

/// A directory of a storm's own, which goes with it.
struct Stage {
    directory: PathBuf,
}

impl Stage {
    fn new(front: Front, seed: u64) -> Result<Stage> {
        let base = if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
        let directory = base.join(format!("torture-{}-{}-{seed}", std::process::id(), front.name()));
        fs::create_dir(&directory).with_context(|| format!("making {}", directory.display()))?;
        let stage = Stage { directory };
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
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A storm over one front.
pub struct Storm<'p> {
    plan: &'p Plan,
    front: Front,
    stage: Stage,
    random: Random,
    /// What came of it so far.
    pub counts: Counts,
}

impl<'p> Storm<'p> {
    /// A fresh image, nobody inside.
    pub fn new(plan: &'p Plan, front: Front) -> Result<Storm<'p>> {
        let stage = Stage::new(front, plan.seed)?;
        let random = Random(plan.seed ^ (front as u64) << 32);
        Ok(Storm { plan, front, stage, random, counts: Counts::default() })
    }

    fn directfs(&self) -> Result<Command> {
        let program = self.plan.directfs.as_ref().context("the program directfs is needed, and not known")?;
        Ok(Command::new(program))
    }

    fn orders(&self) -> Orders {
        Orders {
            front: self.front,
            // The same for all rounds: the calls of a chapter follow from it.
            seed: self.plan.seed,
            workers: self.plan.workers,
            milliseconds: self.plan.round.as_millis() as u64,
            place: match self.front {
                Front::Library => self.stage.image(),
                Front::Mount => self.stage.point(),
                Front::Run => INSIDE.into(),
            },
            ledger: self.stage.ledger(),
        }
    }

    /// One round. An error is a violation, or something that this machine lacks.
    pub fn round(&mut self) -> Result<()> {
        let before = self.places();
        match self.front {
            Front::Library => self.let_loose(once_more(
                Command::new(std::env::current_exe()?),
                "crew",
                &self.orders(),
                &self.plan.arguments,
            ))?,
            Front::Run => {
                let mut command = self.directfs()?;
                command.args(["run", "--image"]).arg(self.stage.image()).args(["-C", INSIDE, "--"]);
                command.arg(std::env::current_exe()?);
                self.let_loose(once_more(command, "crew", &self.orders(), &self.plan.arguments))?;
            }
            Front::Mount => self.mount_round()?,
        }
        self.counts.rounds += 1;
        for (worker, (before, now)) in before.into_iter().zip(self.places()).enumerate() {
            let all = |chapter: u64| Chapter::new(self.plan.seed, worker, chapter).calls().len() as u64;
            let ended: u64 = (before.chapter..now.chapter).map(all).sum();
            self.counts.calls += ended + now.returned as u64 - before.returned as u64;
        }
        self.check()
    }

    fn places(&self) -> Vec<Place> {
        match Ledger::open(&self.stage.ledger()) {
            Ok(ledger) => (0..self.plan.workers).map(|worker| ledger.place(worker)).collect(),
            Err(_) => Vec::new(),
        }
    }

    fn let_loose(&mut self, mut crew: Command) -> Result<()> {
        let output = crew.stderr(Stdio::inherit()).output().context("starting a crew")?;
        self.note_crew(&output)
    }

    fn note_crew(&mut self, output: &std::process::Output) -> Result<()> {
        let text = String::from_utf8_lossy(&output.stdout);
        let kills = text.lines().find_map(|line| line.strip_prefix("kills ")?.parse::<u64>().ok());
        self.counts.kills += kills.unwrap_or(0);
        ensure!(output.status.success() && kills.is_some(), "the crew ended with {}", output.status);
        Ok(())
    }

    /// A round over a mount: every other time its server is killed.
    fn mount_round(&mut self) -> Result<()> {
        let mut server = self.serve()?;
        let mut command =
            once_more(Command::new(std::env::current_exe()?), "crew", &self.orders(), &self.plan.arguments);
        let crew = command.stdout(Stdio::piped()).spawn().context("starting a crew")?;
        let kills_server = self.counts.rounds % 2 == 1;
        if kills_server {
            let limit = SERVER_MS.min(self.plan.round.as_millis() as u64);
            std::thread::sleep(Duration::from_millis(self.random.below(limit)));
            server.kill().context("killing a server")?;
            self.counts.servers += 1;
        }
        let output = crew.wait_with_output()?;
        let noted = self.note_crew(&output);
        // Those whose server is gone end, and so does their crew.
        let gone = kills_server && output.status.code() == Some(crew::GONE);
        let lazily: &[&str] = if kills_server { &["umount", "--lazy"] } else { &["umount"] };
        let unmounted = self.directfs()?.args(lazily).arg(self.stage.point()).output()?;
        let ended = server.wait()?;
        if !gone {
            noted?;
        }
        let told = String::from_utf8_lossy(&unmounted.stderr);
        ensure!(unmounted.status.success(), "umount ended with {}: {told}", unmounted.status);
        ensure!(kills_server || ended.success(), "the server ended with {ended}");
        Ok(())
    }

    /// Mounts the image; its server, once the mount stands.
    fn serve(&self) -> Result<Child> {
        let mut command = self.directfs()?;
        command.args(["mount", "--foreground"]).arg(self.stage.image()).arg(self.stage.point());
        let mut server = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting directfs")?;
        let begun = Instant::now();
        while !self.stage.is_mounted() {
            if let Some(status) = server.try_wait()? {
                bail!("directfs mount ended with {status}");
            }
            if begun.elapsed() > MOUNT_PATIENCE {
                let _ = server.kill();
                let _ = server.wait();
                bail!("the mount does not come to stand");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }

    /// What is on the image, when nobody is inside any more.
    fn check(&self) -> Result<()> {
        let path = self.stage.image();
        let watch = Arc::new(Watch::new(IMAGE_BYTES));
        let image = Image::open_with(&path, &library(&path), || Arc::clone(&watch)).context("opening the image")?;
        {
            let hand = Hand::new(image.fs()).map_err(|error| anyhow::anyhow!("entering: {error:?}"))?;
            for (worker, place) in self.places().into_iter().enumerate() {
                let found = match ByLibrary(&hand).see(&own(worker)) {
                    Err(libc::ENOENT) if place == (Place { chapter: 0, returned: 0 }) => continue,
                    found => found.map_err(|error| anyhow::anyhow!("looking at w{worker}: error {error}"))?,
                };
                let Place { chapter, returned } = place;
                let judged =
                    Chapter::new(self.plan.seed, worker, chapter).judge(returned, &found, self.front.cuts_writes());
                judged
                    .map_err(|what| anyhow::anyhow!("worker {worker}, chapter {chapter}, call {returned}: {what}"))?;
            }
        }
        image.close().context("leaving the image")?;
        let alone = Alone::open(&path).context("opening the image alone")?;
        let mapping = alone.mapping();
        // SAFETY: the mapping outlives the region, and nobody else is there.
        let region = unsafe { pmem::Region::new(mapping.address(), mapping.length(), pmem::Direct) };
        let report = fsck::check(&region, &fsck::Options::default(), &mut |_| {});
        let findings: Vec<_> = report.findings.iter().map(|finding| finding.to_string()).collect();
        ensure!(report.clean && report.errors + report.warnings == 0, "fsck finds {findings:#?}");
        Ok(())
    }
}

/// Storms over the fronts of a plan in turn until its time is over. `tell` hears after each round.
pub fn run(plan: &Plan, tell: &mut dyn FnMut(Front, &Counts)) -> Result<Vec<(Front, Counts)>> {
    let begun = Instant::now();
    let mut storms = plan.fronts.iter().map(|front| Storm::new(plan, *front)).collect::<Result<Vec<_>>>()?;
    loop {
        for storm in &mut storms {
            let round = storm.counts.rounds;
            storm.round().with_context(|| format!("{}, round {round} of seed {}", storm.front.name(), plan.seed))?;
            tell(storm.front, &storm.counts);
        }
        if begun.elapsed() >= plan.duration {
            return Ok(storms.iter().map(|storm| (storm.front, storm.counts)).collect());
        }
    }
}
