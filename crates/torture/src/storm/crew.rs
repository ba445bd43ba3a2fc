//! Those inside a storm: workers, and the crew that starts, kills and replaces them. Both are this program once more, told by an environment variable what to
//! do, so that a test can be one, too.

use super::files::{ByLibrary, BySystem, Files};
use super::work::{CALLS_MAX, Chapter, Random, disturbance, told};
use super::{Front, IMAGE_BYTES, library};
use crate::hand::Hand;
use crate::machine::Watch;
use posix::image::Image;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What to do, for a program that takes part.
pub(super) const ROLE: &str = "TORTURE_STORM";
/// How a program that takes part starts itself again: its arguments, with spaces between.
pub(super) const ARGUMENTS: &str = "TORTURE_STORM_ARGUMENTS";
/// How a worker ends when the server of its mount is gone.
pub(super) const GONE: i32 = 3;
/// How it ends when something is wrong, which it has said.
const WRONG: i32 = 4;
/// Calls of all workers between two kills, at most; and how long a kill waits for them, at most.
pub(super) const CALLS_BETWEEN: u64 = 60;
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// How often the crew looks at the ledger.
const LOOK: Duration = Duration::from_micros(300);
/// A worker that does nothing for so long stands still.
const STILL: Duration = Duration::from_secs(60);
/// Between the things that a program which takes part is told: no path of ours contains it.
const BETWEEN: char = '\n';
/// The directory that all share.
const SHARED: &str = "shared";

/// A worker's directory.
pub(super) fn own(worker: usize) -> String {
    format!("w{worker}")
}

/// Where workers say how many of their calls have returned: outside, so that it outlives whatever is killed.
pub(super) struct Ledger(File);

/// How far a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The chapter.
    pub chapter: u64,
    /// Calls of it that have returned.
    pub returned: usize,
}

impl Place {
    /// About how many calls this is from the beginning.
    pub(super) fn calls(self) -> u64 {
        self.chapter * CALLS_MAX + self.returned as u64
    }
}

impl Ledger {
    pub(super) fn open(path: &std::path::Path) -> std::io::Result<Ledger> {
        File::options().read(true).write(true).create(true).truncate(false).open(path).map(Ledger)
    }

    pub(super) fn place(&self, worker: usize) -> Place {
        let mut word = [0; 8];
        let _ = self.0.read_at(&mut word, worker as u64 * 8);
        let word = u64::from_le_bytes(word);
        Place { chapter: word >> 16, returned: (word & 0xffff) as usize }
    }

    fn note(&self, worker: usize, place: Place) {
        let word = place.chapter << 16 | place.returned as u64;
        self.0.write_at(&word.to_le_bytes(), worker as u64 * 8).expect("the ledger can be written");
    }
}

/// What everybody inside is told.
#[derive(Debug, Clone)]
pub(super) struct Orders {
    pub front: Front,
    pub seed: u64,
    pub workers: usize,
    pub kills: u64,
    /// The image for the library; the directory of the mount for others.
    pub place: PathBuf,
    pub ledger: PathBuf,
}

impl Orders {
    pub(super) fn text(&self) -> String {
        let Orders { front, seed, workers, kills, place, ledger } = self;
        let (place, ledger) = (place.display(), ledger.display());
        format!("{}\n{seed}\n{workers}\n{kills}\n{place}\n{ledger}", front.name())
    }

    fn parse(text: &str) -> Option<Orders> {
        let mut words = text.split(BETWEEN);
        Some(Orders {
            front: Front::ALL.into_iter().find(|front| Some(front.name()) == words.clone().next())?,
            seed: words.nth(1)?.parse().ok()?,
            workers: words.next()?.parse().ok()?,
            kills: words.next()?.parse().ok()?,
            place: words.next()?.into(),
            ledger: words.next()?.into(),
        })
    }
}

/// If this process was started to take part in a storm, does that, and ends.
pub fn take_part() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (who, orders) = role.split_once(BETWEEN).expect("who, and orders");
    let orders = Orders::parse(orders).expect("orders");
    let code = match who {
        "crew" => crew(&orders),
        worker => {
            let worker: usize = worker.parse().expect("the number of a worker");
            match work(&orders, worker) {
                Ok(()) => 0,
                Err(Trouble::Gone) => GONE,
                Err(Trouble::Wrong(what)) => {
                    eprintln!("VIOLATION worker {worker} of {}: {what}", orders.front.name());
                    WRONG
                }
            }
        }
    };
    std::process::exit(code);
}

/// This program once more.
pub(super) fn once_more(mut command: Command, role: &str, orders: &Orders, arguments: &str) -> Command {
    command.args(arguments.split(' ').filter(|argument| !argument.is_empty()));
    command.env(ROLE, format!("{role}{BETWEEN}{}", orders.text())).env(ARGUMENTS, arguments).stdin(Stdio::null());
    command
}

/// The program that takes part: by its path, since /proc may be another one's.
fn program() -> PathBuf {
    std::env::current_exe().expect("this program has a path")
}

fn start(orders: &Orders, worker: usize) -> Child {
    let arguments = std::env::var(ARGUMENTS).unwrap_or_default();
    let mut command = once_more(Command::new(program()), &worker.to_string(), orders, &arguments);
    command.stdout(Stdio::null()).spawn().expect("a worker starts")
}

/// Kills workers and starts others, as often as it is told. Says how many it killed.
fn crew(orders: &Orders) -> i32 {
    let mut crew = Crew::new(orders);
    let mut random = Random(orders.seed ^ u64::from(std::process::id()));
    let mut code = 0;
    while code == 0 && crew.kills < orders.kills {
        crew.wait(random.below(CALLS_BETWEEN));
        code = crew.kill(random.below(orders.workers as u64) as usize, true);
        code = code.max(crew.look_for_still());
    }
    for worker in 0..orders.workers {
        code = code.max(crew.kill(worker, false));
    }
    println!("\nkills {}", crew.kills);
    code
}

/// Workers at work, and how far each was when it was last seen to move.
struct Crew<'o> {
    orders: &'o Orders,
    ledger: Ledger,
    workers: Vec<Child>,
    moved: Vec<(Place, Instant)>,
    kills: u64,
}

impl<'o> Crew<'o> {
    fn new(orders: &'o Orders) -> Crew<'o> {
        let ledger = Ledger::open(&orders.ledger).expect("a ledger");
        let workers = (0..orders.workers).map(|worker| start(orders, worker)).collect();
        let moved = (0..orders.workers).map(|worker| (ledger.place(worker), Instant::now())).collect();
        Crew { orders, ledger, workers, moved, kills: 0 }
    }

    /// Waits until the workers have made so many calls, however slow the machine is; but not for ever, since they may all be at their beginnings.
    fn wait(&self, calls: u64) {
        let made = || (0..self.orders.workers).map(|worker| self.ledger.place(worker).calls()).sum::<u64>();
        let (begun, before) = (Instant::now(), made());
        while made() < before + calls && begun.elapsed() < PAUSE_MAX {
            std::thread::sleep(LOOK);
        }
    }

    /// Kills a worker; another one may take its place. A code, as of [`verdict`].
    fn kill(&mut self, worker: usize, replace: bool) -> i32 {
        self.workers[worker].kill().expect("is ours to kill");
        let status = self.workers[worker].wait().expect("ends");
        self.kills += u64::from(status.signal() == Some(libc::SIGKILL));
        if replace {
            self.workers[worker] = start(self.orders, worker);
            self.moved[worker] = (self.ledger.place(worker), Instant::now());
        }
        verdict(status, worker)
    }

    fn look_for_still(&mut self) -> i32 {
        for (worker, (seen, since)) in self.moved.iter_mut().enumerate() {
            let now = self.ledger.place(worker);
            if now != *seen {
                (*seen, *since) = (now, Instant::now());
            } else if since.elapsed() > STILL {
                eprintln!("VIOLATION worker {worker} stands still. This is what all of them do:");
                self.workers.iter().for_each(|child| tell_stack(child.id()));
                return WRONG;
            }
        }
        0
    }
}

/// Where a process is, if this machine has the means to see it.
fn tell_stack(process: u32) {
    let number = process.to_string();
    let told = Command::new("gdb").args(["-p", &number, "-batch", "-ex", "thread apply all backtrace"]).output();
    match told {
        Ok(told) => eprintln!("process {process}:\n{}", String::from_utf8_lossy(&told.stdout)),
        Err(error) => eprintln!("process {process}: gdb does not start: {error}"),
    }
}

/// 0 for a death by our hand, or the code with which a worker ended; what is wrong outweighs a server that is gone.
fn verdict(status: ExitStatus, worker: usize) -> i32 {
    match (status.signal(), status.code()) {
        (Some(libc::SIGKILL), _) | (_, Some(0)) => 0,
        (_, Some(code)) if code == GONE || code == WRONG => code,
        _ => {
            eprintln!("VIOLATION worker {worker} ended with {status}");
            WRONG
        }
    }
}

enum Trouble {
    Gone,
    Wrong(String),
}

/// Looks what the last one in this place has left, and goes on from there until somebody ends it.
fn work(orders: &Orders, worker: usize) -> Result<(), Trouble> {
    if orders.front != Front::Library {
        return go_on(&BySystem(orders.place.clone()), orders, worker);
    }
    let watch = Arc::new(Watch::new(IMAGE_BYTES));
    let image = Image::open_with(&orders.place, &library(&orders.place), || Arc::clone(&watch))
        .map_err(|error| Trouble::Wrong(format!("the image cannot be opened: {error}")))?;
    // Whoever has seen a death puts the work of the dead in order: until then a link that one was making is counted. (Under `directfs run` a new process does.)
    image.fs().settle_dead().map_err(|error| Trouble::Wrong(format!("putting the dead in order: {error:?}")))?;
    let hand = Hand::new(image.fs()).map_err(|error| Trouble::Wrong(format!("no slot: {error:?}")))?;
    go_on(&ByLibrary(&hand), orders, worker)
}

fn go_on(files: &dyn Files, orders: &Orders, worker: usize) -> Result<(), Trouble> {
    let failed = |what: String, error: i32| match error {
        // What a mount says whose server is dead.
        libc::ENOTCONN | libc::ECONNABORTED if orders.front == Front::Mount => Trouble::Gone,
        _ => Trouble::Wrong(format!("{what}: {}", std::io::Error::from_raw_os_error(error))),
    };
    let ledger = Ledger::open(&orders.ledger).map_err(|error| Trouble::Wrong(format!("the ledger: {error}")))?;
    let directory = own(worker);
    for name in [&directory, SHARED] {
        files.prepare(name).map_err(|error| failed(format!("making {name}"), error))?;
    }
    let Place { mut chapter, returned } = ledger.place(worker);
    let mut calls = Chapter::new(orders.seed, worker, chapter);
    let found = files.see(&directory).map_err(|error| failed(format!("looking at {directory}"), error))?;
    let judged = calls.judge(returned, &found, orders.front.cuts_writes());
    let at = |chapter: u64, count: usize| format!("chapter {chapter}, call {count}");
    let mut done = judged.map_err(|what| Trouble::Wrong(format!("{}: {what}", at(chapter, returned))))?;
    let mut random = Random(orders.seed ^ std::process::id() as u64);
    loop {
        ledger.note(worker, Place { chapter, returned: done });
        let Some(call) = calls.calls().get(done) else {
            (chapter, done) = (chapter + 1, 0);
            calls = Chapter::new(orders.seed, worker, chapter);
            continue;
        };
        files
            .call(&directory, call)
            .map_err(|error| failed(format!("{}, {} fails", at(chapter, done), told(call)), error))?;
        done += 1;
        let other = disturbance(&mut random);
        match files.call(SHARED, &other) {
            Err(error) if !EXPECTED.contains(&error) => {
                return Err(failed(format!("in what all share, {} fails", told(&other)), error));
            }
            _ => {}
        }
    }
}

/// What names that others change at the same time may lead to.
const EXPECTED: [i32; 8] =
    [libc::ENOENT, libc::EEXIST, libc::ENOTEMPTY, libc::EISDIR, libc::ENOTDIR, libc::EINVAL, libc::EPERM, libc::EBUSY];
