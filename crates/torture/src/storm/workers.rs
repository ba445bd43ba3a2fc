//! The processes inside a storm: workers, and the crew, which starts, kills and replaces them. Both
//! are this program again with their role in an environment variable, so that a test binary can be
//! one, too.

use super::files::{ByLibrary, BySystem, Files};
use super::waits::Waits;
use super::work::{CALLS_MAX, Chapter, Random, describe, disturbance};
use super::{AccessMethod, IMAGE_BYTES, library};
use crate::machine::Watch;
use crate::test_thread::TestThread;
use image::Image;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The role of a participating process.
pub(super) const ROLE: &str = "TORTURE_STORM";
/// The arguments with which a participating process starts this program again, separated by spaces.
pub(super) const ARGUMENTS: &str = "TORTURE_STORM_ARGUMENTS";
/// Exit status of a worker whose mount's server is dead.
pub(super) const EXIT_SERVER_GONE: i32 = 3;
/// Exit status of a worker that has reported a violation.
const EXIT_VIOLATION: i32 = 4;
/// Maximum number of calls of all workers between two kills, and the maximum wait for them.
pub(super) const CALLS_BETWEEN: u64 = 60;
/// One of this many victims is stopped first.
const STOPPED_OF: u64 = 10;
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Interval between readings of the ledger.
const LOOK: Duration = Duration::from_micros(300);
/// A worker without progress for this long hangs.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Separates the fields of a role; none of the paths contains it.
const BETWEEN: char = '\n';
/// The directory that all workers share.
const SHARED: &str = "shared";

/// A worker's directory.
pub(super) fn own_directory(worker: usize) -> String {
    format!("w{worker}")
}

/// The file in which workers record how many of their calls have returned. It is outside the image,
/// so that it outlives every killed process.
pub(super) struct Ledger(File);

/// The progress of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WorkerProgress {
    /// The chapter.
    pub chapter: u64,
    /// Its calls that have returned.
    pub returned: usize,
}

impl WorkerProgress {
    /// The approximate number of calls since the beginning.
    pub(super) fn calls(self) -> u64 {
        self.chapter * CALLS_MAX + self.returned as u64
    }
}

impl Ledger {
    pub(super) fn open(path: &std::path::Path) -> std::io::Result<Ledger> {
        File::options().read(true).write(true).create(true).truncate(false).open(path).map(Ledger)
    }

    pub(super) fn progress(&self, worker: usize) -> WorkerProgress {
        let mut word = [0; 8];
        let _ = self.0.read_at(&mut word, worker as u64 * 8);
        let word = u64::from_le_bytes(word);
        WorkerProgress { chapter: word >> 16, returned: (word & 0xffff) as usize }
    }

    fn record(&self, worker: usize, progress: WorkerProgress) {
        let word = progress.chapter << 16 | progress.returned as u64;
        self.0.write_at(&word.to_le_bytes(), worker as u64 * 8).expect("the ledger can be written");
    }
}

/// The instructions for a participating process.
#[derive(Debug, Clone)]
pub(super) struct Orders {
    pub access: AccessMethod,
    pub seed: u64,
    pub workers: usize,
    pub kills: u64,
    /// For the library the image; for the other fronts the mount's directory.
    pub directory: PathBuf,
    pub ledger: PathBuf,
}

impl Orders {
    fn waits(&self) -> std::io::Result<Waits> {
        Waits::open(&self.ledger, self.access == AccessMethod::Mount)
    }

    pub(super) fn text(&self) -> String {
        let Orders { access, seed, workers, kills, directory: progress, ledger } = self;
        let (progress, ledger) = (progress.display(), ledger.display());
        format!("{}\n{seed}\n{workers}\n{kills}\n{progress}\n{ledger}", access.name())
    }

    fn parse(text: &str) -> Option<Orders> {
        let mut words = text.split(BETWEEN);
        Some(Orders {
            access: AccessMethod::ALL.into_iter().find(|access| Some(access.name()) == words.clone().next())?,
            seed: words.nth(1)?.parse().ok()?,
            workers: words.next()?.parse().ok()?,
            kills: words.next()?.parse().ok()?,
            directory: words.next()?.into(),
            ledger: words.next()?.into(),
        })
    }
}

/// If this process has a role in a storm, plays it and exits.
pub fn take_part() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (user, orders) = role.split_once(BETWEEN).expect("a role and its orders");
    let orders = Orders::parse(orders).expect("valid orders");
    let code = match user {
        "crew" => run_workers(&orders),
        worker => {
            let worker: usize = worker.parse().expect("the number of a worker");
            match work(&orders, worker) {
                Ok(()) => 0,
                Err(WorkerError::Gone) => EXIT_SERVER_GONE,
                Err(WorkerError::Wrong(what)) => {
                    eprintln!("VIOLATION worker {worker} of {}: {what}", orders.access.name());
                    EXIT_VIOLATION
                }
            }
        }
    };
    std::process::exit(code);
}

/// Prepares a command to play a role.
pub(super) fn spawn_self(mut command: Command, role: &str, orders: &Orders, arguments: &str) -> Command {
    command.args(arguments.split(' ').filter(|argument| !argument.is_empty()));
    command.env(ROLE, format!("{role}{BETWEEN}{}", orders.text())).env(ARGUMENTS, arguments).stdin(Stdio::null());
    command
}

/// This program, by its path, because /proc may be another one's.
fn program() -> PathBuf {
    std::env::current_exe().expect("this program has a path")
}

fn start(orders: &Orders, worker: usize) -> Child {
    let arguments = std::env::var(ARGUMENTS).unwrap_or_default();
    let mut command = spawn_self(Command::new(program()), &worker.to_string(), orders, &arguments);
    command.stdout(Stdio::null()).spawn().expect("a worker starts")
}

/// Kills and replaces workers until the requested number of kills, and stops some; prints the
/// numbers of kills and stops.
fn run_workers(orders: &Orders) -> i32 {
    let mut workers = Workers::new(orders);
    let mut random = Random(orders.seed ^ u64::from(std::process::id()));
    let mut code = 0;
    while code == 0 && workers.kills < orders.kills {
        workers.wait(random.below(CALLS_BETWEEN));
        let victim = random.below(orders.workers as u64) as usize;
        let goes_on = random.below(STOPPED_OF) == 0 && workers.stop(victim, &mut random);
        code = if goes_on { 0 } else { workers.kill(victim, true) };
        code = code.max(workers.check_for_stalls());
    }
    for worker in 0..orders.workers {
        code = code.max(workers.kill(worker, false));
    }
    println!("\nkills {}\nstops {}", workers.kills, workers.stops);
    code
}

/// Running workers, with the place and time of the last progress of each.
struct Workers<'o> {
    orders: &'o Orders,
    ledger: Ledger,
    waits: Waits,
    workers: Vec<Child>,
    moved: Vec<(WorkerProgress, Instant)>,
    kills: u64,
    stops: u64,
}

impl<'o> Workers<'o> {
    fn new(orders: &'o Orders) -> Workers<'o> {
        let ledger = Ledger::open(&orders.ledger).expect("a ledger");
        let waits = orders.waits().expect("files");
        waits.set_stopped(false).expect("the file can be written");
        let workers = (0..orders.workers).map(|worker| start(orders, worker)).collect();
        let moved = (0..orders.workers).map(|worker| (ledger.progress(worker), Instant::now())).collect();
        Workers { orders, ledger, waits, workers, moved, kills: 0, stops: 0 }
    }

    /// Waits until the workers have made this many calls, at most [`PAUSE_MAX`]: they may all be
    /// starting.
    fn wait(&self, calls: u64) {
        let made = || (0..self.orders.workers).map(|worker| self.ledger.progress(worker).calls()).sum::<u64>();
        let (begun, before) = (Instant::now(), made());
        while made() < before + calls && begun.elapsed() < PAUSE_MAX {
            std::thread::sleep(LOOK);
        }
    }

    /// Stops a worker while the others make calls. Every second one then goes on, for which this
    /// returns true; the others are to be killed where they stand.
    fn stop(&mut self, worker: usize, random: &mut Random) -> bool {
        let Some(process) = Pid::from_raw(self.workers[worker].id() as i32) else { return false };
        // A worker that has ended by itself is judged when it is killed.
        if kill_process(process, Signal::STOP).is_err() {
            return false;
        }
        self.stops += 1;
        self.waits.set_stopped(true).expect("the file can be written");
        self.wait(random.below(CALLS_BETWEEN));
        self.waits.set_stopped(false).expect("the file can be written");
        random.below(2) == 0 && kill_process(process, Signal::CONT).is_ok()
    }

    /// Kills a worker and optionally replaces it. Returns a code of [`verdict`].
    fn kill(&mut self, worker: usize, replace: bool) -> i32 {
        self.workers[worker].kill().expect("is ours to kill");
        let status = self.workers[worker].wait().expect("ends");
        self.kills += u64::from(status.signal() == Some(libc::SIGKILL));
        if replace {
            self.workers[worker] = start(self.orders, worker);
            self.moved[worker] = (self.ledger.progress(worker), Instant::now());
        }
        verdict(status, worker)
    }

    fn check_for_stalls(&mut self) -> i32 {
        for (worker, (seen, since)) in self.moved.iter_mut().enumerate() {
            let now = self.ledger.progress(worker);
            if now != *seen {
                (*seen, *since) = (now, Instant::now());
            } else if since.elapsed() > STALL_TIMEOUT {
                eprintln!("VIOLATION worker {worker} hangs. Stacks of all workers:");
                self.workers.iter().for_each(|child| print_stack(child.id()));
                return EXIT_VIOLATION;
            }
        }
        0
    }
}

/// Prints the stacks of a process, if gdb is available.
fn print_stack(process: u32) {
    let number = process.to_string();
    let result = Command::new("gdb").args(["-p", &number, "-batch", "-ex", "thread apply all backtrace"]).output();
    match result {
        Ok(result) => eprintln!("process {process}:\n{}", String::from_utf8_lossy(&result.stdout)),
        Err(error) => eprintln!("process {process}: gdb cannot be started: {error}"),
    }
}

/// 0 for a killed worker, otherwise its exit status. A violation takes precedence over a dead
/// server.
fn verdict(status: ExitStatus, worker: usize) -> i32 {
    match (status.signal(), status.code()) {
        (Some(libc::SIGKILL), _) | (_, Some(0)) => 0,
        (_, Some(code)) if code == EXIT_SERVER_GONE || code == EXIT_VIOLATION => code,
        _ => {
            eprintln!("VIOLATION worker {worker} exited with {status}");
            EXIT_VIOLATION
        }
    }
}

enum WorkerError {
    Gone,
    Wrong(String),
}

/// Checks what the previous worker in this place has left, and continues its work until it is
/// killed.
fn work(orders: &Orders, worker: usize) -> Result<(), WorkerError> {
    if orders.access != AccessMethod::Library {
        return resume(&BySystem(orders.directory.clone()), orders, worker);
    }
    let watch = Arc::new(Watch::new(IMAGE_BYTES));
    let image = Image::open_with(&orders.directory, &library(&orders.directory), || Arc::clone(&watch))
        .map_err(|error| WorkerError::Wrong(format!("the image cannot be opened: {error}")))?;
    // A process that detects a death recovers the work of the dead thread; until then a link that
    // it was creating is counted. (Under `directfs run` a new process does this.)
    image
        .fs()
        .recover_dead_threads()
        .map_err(|error| WorkerError::Wrong(format!("recovering dead threads: {error:?}")))?;
    let thread = TestThread::new(image.fs()).map_err(|error| WorkerError::Wrong(format!("no slot: {error:?}")))?;
    resume(&ByLibrary(&thread), orders, worker)
}

fn resume(files: &dyn Files, orders: &Orders, worker: usize) -> Result<(), WorkerError> {
    let failed = |what: String, error: i32| match error {
        // The errors of a mount whose server is dead. A request on its way through io_uring to a
        // thread that dies is cancelled. In rounds without such a death any of them is a violation.
        libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED if orders.access == AccessMethod::Mount => {
            WorkerError::Gone
        }
        _ => WorkerError::Wrong(format!("{what}: {}", std::io::Error::from_raw_os_error(error))),
    };
    let ledger = Ledger::open(&orders.ledger).map_err(|error| WorkerError::Wrong(format!("the ledger: {error}")))?;
    let waits = orders.waits().map_err(|error| WorkerError::Wrong(format!("the file of waits: {error}")))?;
    let directory = own_directory(worker);
    for name in [&directory, SHARED] {
        files.prepare(name).map_err(|error| failed(format!("creating {name}"), error))?;
    }
    let WorkerProgress { mut chapter, returned } = ledger.progress(worker);
    let mut calls = Chapter::new(orders.seed, worker, chapter);
    let found = files.see(&directory).map_err(|error| failed(format!("reading {directory}"), error))?;
    let judged = calls.check(returned, &found, orders.access.cuts_writes());
    let at = |chapter: u64, count: usize| format!("chapter {chapter}, call {count}");
    let mut done = judged.map_err(|what| WorkerError::Wrong(format!("{}: {what}", at(chapter, returned))))?;
    let mut random = Random(orders.seed ^ std::process::id() as u64);
    loop {
        ledger.record(worker, WorkerProgress { chapter, returned: done });
        let Some(call) = calls.calls().get(done) else {
            (chapter, done) = (chapter + 1, 0);
            calls = Chapter::new(orders.seed, worker, chapter);
            continue;
        };
        let observed = waits.begin();
        files
            .call(&directory, call)
            .map_err(|error| failed(format!("{}, {} fails", at(chapter, done), describe(call)), error))?;
        waits.end(observed).map_err(|error| WorkerError::Wrong(format!("the file of waits: {error}")))?;
        done += 1;
        let other = disturbance(&mut random);
        match files.call(SHARED, &other) {
            Err(error) if !EXPECTED.contains(&error) => {
                return Err(failed(format!("in the shared directory, {} fails", describe(&other)), error));
            }
            _ => {}
        }
    }
}

/// Expected errors on names that other workers change concurrently.
const EXPECTED: [i32; 8] =
    [libc::ENOENT, libc::EEXIST, libc::ENOTEMPTY, libc::EISDIR, libc::ENOTDIR, libc::EINVAL, libc::EPERM, libc::EBUSY];
