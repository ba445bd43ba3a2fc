//! The process that commits an image on a disk for a run: programs, launchers and the process
//! itself are stopped and killed at arbitrary moments, and no other process waits for them. A copy
//! of the image's file stands for what a power failure leaves.

use super::durable::{image_on, on_disk, read};
use crate::support::killing::call_of;
use crate::support::program::{Program, has_python};
use crate::support::{directfs, stderr, stdout};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Syncs all the time, and says after each sync which file is safe; with `end` it ends.
const SYNCER: &str = "
import os, sys, threading
ended = []
threading.Thread(target=lambda: (sys.stdin.read(), ended.append(1)), daemon=True).start()
print('ready', flush=True)
n = 0
while not ended:
    with open('f%d' % n, 'w') as f:
        f.write(str(n)); f.flush(); os.fsync(f.fileno())
    with open(os.environ['SEEN'], 'w') as seen:
        seen.write(str(n))
    n += 1
    if n >= 12:
        os.unlink('f%d' % (n - 12))
";

/// A program under `run` that syncs.
struct Syncer {
    program: Program,
    seen: PathBuf,
}

impl Syncer {
    fn start(image: &str, directory: &Path) -> Syncer {
        let seen = directory.join("seen");
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["run", "--image", image, "--commit-interval", "0", "-C", "/mnt/directfs", "--", "python3", "-c"]);
        let program = Program::start(command.arg(SYNCER).env("SEEN", &seen));
        Syncer { program, seen }
    }

    fn launcher(&self) -> u32 {
        self.program.child.id()
    }

    /// The last file that is safe.
    fn last(&self) -> Option<u64> {
        fs::read_to_string(&self.seen).ok()?.parse().ok()
    }

    /// Waits until a sync has returned that began after this call.
    fn wait_for_sync(&self) {
        let after = self.last().map_or(0, |number| number + 2);
        wait_for("a sync", || self.last().filter(|&number| number >= after));
    }

    fn program_id(&self) -> u32 {
        wait_for("the program", || child_named(self.launcher(), "python3"))
    }

    fn committer(&self) -> u32 {
        wait_for("a committer", || child_named(self.launcher(), "directfs-commit"))
    }
}

/// The bound is against a hang.
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(300);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < end, "{what} never came");
        std::thread::yield_now();
    }
}

pub fn child_named(parent: u32, name: &str) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).ok()?;
    let children = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    children.into_iter().find(|pid| {
        let is_alive = fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
        is_alive && fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
    })
}

pub fn signal(pid: u32, signal: libc::c_int) {
    // SAFETY: a process that this test started, and that is alive.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0, "{}", std::io::Error::last_os_error());
}

/// Runs to its end; a hang is a failure.
fn finishes(arguments: &[&str]) -> std::process::Output {
    let output =
        Command::new("timeout").arg("300").arg(env!("CARGO_BIN_EXE_directfs")).args(arguments).output().unwrap();
    assert_ne!(output.status.code(), Some(124), "{arguments:?} hangs");
    assert!(output.status.success(), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
    output
}

fn assert_clean(image: &str) {
    let checked = directfs(&["fsck", "-n", image]);
    assert!(checked.status.success(), "{}", stdout(&checked));
}

/// Writes a file and lets its bytes begin to go to the disk, once its standard input has a line.
const STARTER: &str = "
import ctypes, os, sys
write = 2
print('ready', flush=True)
sys.stdin.readline()
file = os.open('file', os.O_CREAT | os.O_WRONLY)
os.write(file, b'bytes')
start = ctypes.CDLL(None, use_errno=True).sync_file_range
assert start(file, ctypes.c_long(0), ctypes.c_long(0), write) == 0
print('started', flush=True)
sys.stdin.read()
";

#[test]
fn a_call_that_starts_a_commit_waits_for_no_process_that_makes_it() {
    let Some(directory) = on_disk().filter(|_| has_python()) else { return };
    let (image, copy) = (image_on(directory.path()), directory.path().join("copy").to_str().unwrap().to_owned());
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.args(["run", "--image", &image, "--commit-interval", "0", "-C", "/mnt/directfs", "--", "python3", "-c"]);
    let mut program = Program::start(command.arg(STARTER));
    let launcher = program.child.id();
    // Without these two no process commits but the program itself.
    signal(launcher, libc::SIGSTOP);
    let committer = child_named(launcher, "directfs-commit");
    committer.inspect(|&committer| signal(committer, libc::SIGSTOP));
    let after_call = || {
        fs::copy(&image, &copy).unwrap();
        read(&copy, "file")
    };
    writeln!(program.child.stdin.as_mut().unwrap()).unwrap();
    assert_eq!(program.line(), "started\n");
    assert_eq!(after_call(), None);
    committer.inspect(|&committer| signal(committer, libc::SIGCONT));
    signal(launcher, libc::SIGCONT);
    assert_eq!(wait_for("the commit", after_call), "bytes");
    program.end();
    assert_clean(&image);
}

#[test]
fn a_program_that_is_stopped_in_a_sync_holds_up_nobody() {
    let Some(directory) = on_disk().filter(|_| has_python()) else { return };
    let (image, copy) = (image_on(directory.path()), directory.path().join("copy"));
    let syncer = Syncer::start(&image, directory.path());
    syncer.committer();
    let program = syncer.program_id();
    for round in 0..8 {
        syncer.wait_for_sync();
        signal(program, libc::SIGSTOP);
        let name = format!("other-{round}");
        let script = format!("echo >{name}; sync {name}; cp {image} {}", copy.display());
        finishes(&["run", "--image", &image, "-C", "/mnt/directfs", "--", "sh", "-c", &script]);
        assert_eq!(read(copy.to_str().unwrap(), &name).as_deref(), Some("\n"));
        finishes(&["info", &image]);
        signal(program, libc::SIGCONT);
    }
    syncer.wait_for_sync();
    syncer.program.end();
    assert_clean(&image);
}

#[test]
fn a_committer_that_is_stopped_or_killed_at_any_moment_is_replaced() {
    let Some(directory) = on_disk().filter(|_| has_python()) else { return };
    let image = image_on(directory.path());
    let syncer = Syncer::start(&image, directory.path());
    for round in 0..10 {
        let committer = syncer.committer();
        syncer.wait_for_sync();
        signal(committer, if round % 2 == 0 { libc::SIGSTOP } else { libc::SIGKILL });
        wait_for("another committer", || (syncer.committer() != committer).then_some(()));
        syncer.wait_for_sync();
    }
    let Syncer { program, seen } = syncer;
    program.end();
    let last = fs::read_to_string(seen).unwrap();
    assert_eq!(read(&image, &format!("f{last}")), Some(last));
    assert_clean(&image);
}

/// Stops a process when this thread of it has performed its `nth` write or flush. `false`: it is no
/// more.
fn stop_after(process: u32, thread: u32, nth: u32) -> bool {
    let thread = thread as i32;
    let trace = |request, data: libc::c_long| {
        // SAFETY: acts on a thread of a process that this test started.
        unsafe { libc::ptrace(request, thread, 0, data) == 0 }
    };
    let wait = || {
        let mut status = 0;
        // SAFETY: waits for a thread that this one traces.
        let found = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
        found == thread && libc::WIFSTOPPED(status)
    };
    if !trace(libc::PTRACE_SEIZE, libc::PTRACE_O_TRACESYSGOOD.into()) || !trace(libc::PTRACE_INTERRUPT, 0) || !wait() {
        return false;
    }
    let (mut seen, mut is_entry) = (0, false);
    loop {
        if !trace(libc::PTRACE_SYSCALL, 0) || !wait() {
            return false;
        }
        is_entry = !is_entry;
        seen += u32::from(!is_entry && [libc::SYS_pwrite64, libc::SYS_fdatasync].contains(&call_of(thread)));
        if seen == nth {
            // It stops before its next instruction.
            signal(process, libc::SIGSTOP);
            return trace(libc::PTRACE_DETACH, 0);
        }
    }
}

/// A paused container has both.
#[test]
fn a_committer_that_is_stopped_with_its_launcher_holds_up_nobody() {
    let Some(directory) = on_disk().filter(|_| has_python()) else { return };
    let (image, copy) = (image_on(directory.path()), directory.path().join("copy"));
    let syncer = Syncer::start(&image, directory.path());
    for nth in [1, 2, 3, 4] {
        let committer = syncer.committer();
        let thread = wait_for("its thread", || commit_thread(committer));
        signal(syncer.launcher(), libc::SIGSTOP);
        assert!(stop_after(committer, thread, nth), "call {nth}");
        if nth % 2 == 0 {
            let name = format!("other-{nth}");
            let script = format!("echo >{name}; sync {name}; cp {image} {}", copy.display());
            finishes(&["run", "--image", &image, "-C", "/mnt/directfs", "--", "sh", "-c", &script]);
            assert_eq!(read(copy.to_str().unwrap(), &name).as_deref(), Some("\n"));
        }
        // The program that is in a sync goes on alone, too.
        syncer.wait_for_sync();
        signal(syncer.launcher(), libc::SIGCONT);
        wait_for("another committer", || (syncer.committer() != committer).then_some(()));
        syncer.wait_for_sync();
    }
    syncer.program.end();
    assert_clean(&image);
}

fn commit_thread(committer: u32) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{committer}/task")).ok()?.flatten();
    let mut threads = threads.filter_map(|thread| thread.file_name().to_str()?.parse::<u32>().ok());
    threads.find(|&thread| {
        let name = fs::read_to_string(format!("/proc/{committer}/task/{thread}/comm")).unwrap_or_default();
        thread != committer && name.starts_with("directfs-commit")
    })
}

#[test]
fn a_committer_that_is_stopped_between_any_of_its_writes_is_replaced() {
    let Some(directory) = on_disk().filter(|_| has_python()) else { return };
    let image = image_on(directory.path());
    let syncer = Syncer::start(&image, directory.path());
    // A commit has a write and a flush; a checkpoint follows after some hundreds.
    for nth in [1, 2, 3, 4, 530, 540, 541, 542, 545, 560] {
        let committer = syncer.committer();
        let thread = wait_for("its thread", || commit_thread(committer));
        assert!(stop_after(committer, thread, nth), "call {nth}");
        // The sync whose commit it has just finished may end without another one.
        wait_for("another committer", || (syncer.committer() != committer).then_some(()));
        syncer.wait_for_sync();
    }
    syncer.program.end();
    assert_clean(&image);
}

#[test]
fn an_image_is_committed_at_intervals_while_its_launcher_is_stopped_and_closed_after_its_death() {
    let Some(directory) = on_disk() else { return };
    let image = image_on(directory.path());
    let path = |name: &str| directory.path().join(name);
    for (end, name) in [(libc::SIGSTOP, "stopped"), (libc::SIGKILL, "killed")] {
        // The program is in a session of its own, so that the launcher's death does not end it.
        let script = format!(
            "setsid sh -c 'echo first >first-{name}; until [ -e {0} ]; do sleep 0.1; done; echo >late-{name}; \
             until [ -e {1} ]; do sleep 0.1; done' & wait",
            path(&format!("go-{name}")).display(),
            path(&format!("end-{name}")).display()
        );
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["run", "--image", &image, "--commit-interval", "1", "-C", "/mnt/directfs", "--", "sh", "-c"]);
        let mut launcher = command.arg(&script).stdout(Stdio::null()).spawn().unwrap();
        wait_for("a committer", || child_named(launcher.id(), "directfs-commit"));
        signal(launcher.id(), end);
        fs::write(path(&format!("go-{name}")), "").unwrap();
        let copy = path("copy").to_str().unwrap().to_owned();
        wait_for("a commit", || {
            fs::copy(&image, &copy).unwrap();
            read(&copy, &format!("late-{name}"))
        });
        fs::write(path(&format!("end-{name}")), "").unwrap();
        if end == libc::SIGSTOP {
            signal(launcher.id(), libc::SIGCONT);
        }
        launcher.wait().unwrap();
        // Without its launcher the committer closes the image.
        wait_for("a clean image", || {
            let info: serde_json::Value = serde_json::from_slice(&directfs(&["info", "--json", &image]).stdout).ok()?;
            (info["clean"] == true && info["in_use"] == false).then_some(())
        });
        assert_clean(&image);
        assert_eq!(read(&image, &format!("late-{name}")).as_deref(), Some("\n"));
    }
}

/// Each of them would wait for the end of the others.
#[test]
fn committers_that_lose_their_launchers_at_once_leave_the_image() {
    let Some(directory) = on_disk() else { return };
    let image = image_on(directory.path());
    for round in 0..4 {
        let ready = |run: i32| directory.path().join(format!("ready-{round}-{run}"));
        let runs = (0..4).map(|run| {
            let script = format!("echo >f{run}; sync f{run}; echo >{}; exec sleep 1000", ready(run).display());
            let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
            command.args(["run", "--image", &image, "-C", "/mnt/directfs", "--", "sh", "-c", &script]);
            command.stdin(Stdio::null()).spawn().unwrap()
        });
        let mut runs: Vec<_> = runs.collect();
        wait_for("all programs", || (0..4).all(|run| ready(run).exists()).then_some(()));
        for run in &mut runs {
            run.kill().unwrap();
        }
        for mut run in runs {
            run.wait().unwrap();
        }
        wait_for("the end of all committers", || directfs(&["fsck", "-n", &image]).status.success().then_some(()));
    }
    for run in 0..4 {
        assert_eq!(read(&image, &format!("f{run}")).as_deref(), Some("\n"));
    }
}

/// Stores into two pages of a file that are mapped with a gap between them, and syncs all at once.
const GAP: &str = "
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
page = 4096
fd = os.open('gap', os.O_RDWR | os.O_CREAT)
os.write(fd, b'-' * 2 * page)
os.fsync(fd)
at = libc.mmap(None, 3 * page, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
for place, offset in [(0, 0), (2, page)]:
    assert libc.mmap(at + place * page, page, 3, mmap.MAP_SHARED | 0x10, fd, offset) == at + place * page
if sys.argv[1] == 'hole':
    assert libc.munmap(at + page, page) == 0
for place in (0, 2):
    ctypes.memmove(at + place * page, b'stored', 6)
result = libc.msync(at, 3 * page, 4)
print(result, ctypes.get_errno() if result else 0)
os.system('cp %s %s' % (sys.argv[2], sys.argv[3]))
";

#[test]
fn a_sync_of_addresses_with_a_gap_commits_what_is_behind_the_gap() {
    let Some(directory) = on_disk().filter(|_| has_python()) else { return };
    let copy = directory.path().join("copy").to_str().unwrap().to_owned();
    for (gap, expected) in [("foreign", "0 0\n"), ("hole", "-1 12\n")] {
        let image = image_on(directory.path());
        let program = ["python3", "-c", GAP, gap, &image, &copy];
        let run = ["run", "--image", &image, "--commit-interval", "0", "-C", "/mnt/directfs", "--"];
        let output = finishes(&[&run[..], &program].concat());
        assert_eq!(stdout(&output), expected);
        let found = read(&copy, "gap").unwrap();
        assert!(found.starts_with("stored-") && found[4096..].starts_with("stored-"), "{gap}");
        fs::remove_file(image).unwrap();
    }
}
