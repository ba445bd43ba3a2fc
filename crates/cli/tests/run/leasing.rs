//! Leases under `run`: grants, refusals, breaks and ends, as on tmpfs; and breaks by a mount.

use crate::kit::compiled;
use crate::support::{can_mount, directfs, image_in, scratch, stderr, stdout, unmount};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

const MOUNT: &str = "/mnt/leased";

/// Runs the program of the kit in a directory of tmpfs and in the mount, and compares its outputs.
fn compare(arguments: &[&str]) -> Option<String> {
    let _time = BREAK_TIME.read().unwrap_or_else(PoisonError::into_inner);
    let directory = scratch();
    let program = compiled("leases", directory.path())?;
    let plain = directory.path().join("plain");
    fs::create_dir(&plain).unwrap();
    let wanted = Command::new(&program).arg(&plain).args(arguments).output().unwrap();
    let program = program.to_str().unwrap();
    let found = directfs(&[&["run", "--at", MOUNT, "--", program, MOUNT], arguments].concat());
    assert_eq!(stderr(&found), stderr(&wanted));
    let (wanted, found) = (stdout(&wanted), stdout(&found));
    for (at, (wanted, found)) in wanted.lines().zip(found.lines()).enumerate() {
        assert_eq!(found, wanted, "line {}", at + 1);
    }
    assert_eq!(found, wanted);
    Some(found)
}

#[test]
fn leases_are_granted_broken_and_ended_as_on_tmpfs() {
    if let Some(steps) = compare(&[]) {
        assert!(steps.lines().count() > 200, "{steps}");
    }
}

#[test]
fn no_open_passes_a_lease_that_is_granted_meanwhile() {
    if let Some(result) = compare(&["2000"]) {
        assert!(result.contains("granted: 1, opened: 1, bad: 0"), "{result}");
    }
}

/// How long an answer may take on a busy machine. A lease that no open breaks would never answer.
const ANSWER_TIME: Duration = Duration::from_secs(600);

/// Held for reading while a test depends on the machine's time for the break of a lease.
static BREAK_TIME: RwLock<()> = RwLock::new(());
const BREAK_TIME_PATH: &str = "/proc/sys/fs/lease-break-time";

/// The machine's time for the break of a lease, which ends with this value.
struct BreakTime {
    before: String,
}

impl BreakTime {
    /// `None`, with a message: this user must not set it.
    fn set(seconds: u32, test: &str) -> Option<BreakTime> {
        let before = fs::read_to_string(BREAK_TIME_PATH).ok()?;
        if fs::write(BREAK_TIME_PATH, seconds.to_string()).is_err() {
            eprintln!("\n*** SKIPPED: {test}: {BREAK_TIME_PATH} cannot be written ***\n");
            return None;
        }
        Some(BreakTime { before })
    }
}

impl Drop for BreakTime {
    fn drop(&mut self) {
        let _ = fs::write(BREAK_TIME_PATH, self.before.trim());
    }
}

/// A process under `run` that takes leases on the file `f`, by orders.
struct Holder {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Holder {
    fn start(program: &Path, image: &Path) -> Holder {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["run", "--commit-interval", "0", "--image", image.to_str().unwrap(), "--at", MOUNT, "--"]);
        command.arg(program);
        command.arg(format!("{MOUNT}/f")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let (orders, lines) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Holder { child, orders, answers }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
        let mut answer = self.hear();
        // A writer breaks once more what a reader has broken.
        while answer == "broken" {
            answer = self.hear();
        }
        assert_eq!(answer, "done", "{order}");
    }

    fn hear(&mut self) -> String {
        self.answers.recv_timeout(ANSWER_TIME).expect("the holder answers")
    }

    fn end(mut self) {
        drop(self.orders);
        assert!(self.child.wait().unwrap().success());
    }
}

/// A mount of an image with a file `f`, and a process under `run` that can take leases on it.
struct Shared {
    point: PathBuf,
    file: PathBuf,
    image: PathBuf,
    holder: Option<Holder>,
    directory: tempfile::TempDir,
}

impl Shared {
    fn new(test: &str) -> Option<Shared> {
        Shared::within(scratch(), "cache=0", test)
    }

    fn within(directory: tempfile::TempDir, options: &str, test: &str) -> Option<Shared> {
        if !can_mount(test) {
            return None;
        }
        let program = compiled("lease_holder", directory.path())?;
        let image = image_in(directory.path());
        let point = directory.path().join("mount");
        fs::create_dir(&point).unwrap();
        let mounted = directfs(&["mount", image.to_str().unwrap(), point.to_str().unwrap(), "-o", options]);
        assert!(mounted.status.success(), "{}", stderr(&mounted));
        let file = point.join("f");
        fs::write(&file, "content").unwrap();
        let holder = Some(Holder::start(&program, &image));
        Some(Shared { point, file, image, holder, directory })
    }

    fn order(&mut self, order: &str) {
        self.holder.as_mut().unwrap().order(order);
    }

    fn hear(&mut self) -> String {
        self.holder.as_mut().unwrap().hear()
    }

    fn end(mut self) {
        if let Some(holder) = self.holder.take() {
            holder.end();
        }
        unmount(&self.point);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if thread::panicking() {
            directfs(&["umount", "--lazy", self.point.to_str().unwrap()]);
        }
    }
}

#[test]
fn opens_through_a_mount_wait_for_the_holder_of_a_lease() {
    let _time = BREAK_TIME.read().unwrap_or_else(PoisonError::into_inner);
    let Some(mut shared) = Shared::new("opens_through_a_mount_wait_for_the_holder_of_a_lease") else { return };
    shared.order("write");
    let now = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&shared.file);
    assert_eq!(now.unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(shared.hear(), "broken");
    // More than the server has workers.
    let waiting: Vec<_> = (0..20)
        .map(|index| {
            let file = shared.file.clone();
            thread::spawn(move || OpenOptions::new().read(index % 2 == 0).append(index % 2 == 1).open(file))
        })
        .collect();
    for round in 0..200 {
        let other = shared.point.join(format!("other-{round}"));
        fs::write(&other, "x").unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"x");
        assert_eq!(fs::metadata(&shared.file).unwrap().len(), 7, "a stat opens nothing");
    }
    assert!(waiting.iter().all(|open| !open.is_finished()), "an open passed the lease");
    shared.order("release");
    for open in waiting {
        open.join().unwrap().expect("opens");
    }
    assert_eq!(fs::read(&shared.file).unwrap(), b"content");
    shared.end();
}

#[test]
fn a_read_lease_is_broken_by_writers_and_truncations_on_a_mount() {
    let _time = BREAK_TIME.read().unwrap_or_else(PoisonError::into_inner);
    let Some(mut shared) = Shared::new("a_read_lease_is_broken_by_writers_and_truncations_on_a_mount") else { return };
    shared.order("read");
    assert_eq!(fs::read(&shared.file).unwrap(), b"content", "readers share it");
    let file = shared.file.clone();
    let truncate = thread::spawn(move || truncated(&file, 3));
    assert_eq!(shared.hear(), "broken");
    assert!(!truncate.is_finished());
    assert_eq!(fs::read(&shared.file).unwrap(), b"content");
    shared.order("release");
    assert_eq!(truncate.join().unwrap(), 0);
    assert_eq!(fs::read(&shared.file).unwrap(), b"con");
    shared.order("read");
    let file = shared.file.clone();
    let writer = thread::spawn(move || File::create(file));
    assert_eq!(shared.hear(), "broken");
    assert_eq!(fs::read(&shared.file).unwrap(), b"con", "it is truncated after the lease");
    shared.order("release");
    writer.join().unwrap().expect("opens");
    assert_eq!(fs::read(&shared.file).unwrap(), b"");
    shared.end();
}

#[test]
fn a_truncation_that_waited_for_a_lease_is_committed_on_a_synchronous_mount() {
    const TEST: &str = "a_truncation_that_waited_for_a_lease_is_committed_on_a_synchronous_mount";
    let _time = BREAK_TIME.read();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(mut shared) = Shared::within(directory, "cache=0,sync,commit=0", TEST) else { return };
    shared.order("read");
    let file = shared.file.clone();
    let truncate = thread::spawn(move || truncated(&file, 3));
    assert_eq!(shared.hear(), "broken");
    shared.order("release");
    assert_eq!(truncate.join().unwrap(), 0);
    // The file alone: without what is in memory.
    let copy = shared.directory.path().join("copy");
    fs::copy(&shared.image, &copy).unwrap();
    let script = format!("{} export {} | tar -x -O ./f", env!("CARGO_BIN_EXE_directfs"), copy.display());
    let content = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(content.stdout, b"con", "{}", stderr(&content));
    shared.end();
}

fn truncated(path: &Path, length: i64) -> i32 {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a terminated path that outlives the call.
    unsafe { libc::truncate(path.as_ptr(), length) }
}

#[test]
fn a_killed_program_does_not_wait_for_a_lease_on_a_mount() {
    let _time = BREAK_TIME.read().unwrap_or_else(PoisonError::into_inner);
    let Some(mut shared) = Shared::new("a_killed_program_does_not_wait_for_a_lease_on_a_mount") else { return };
    shared.order("write");
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let mut reader = Command::new("cat").arg(&shared.file).stdout(Stdio::null()).spawn().unwrap();
        if signal == libc::SIGTERM {
            assert_eq!(shared.hear(), "broken");
        }
        // SAFETY: a process that this test started and has not waited for.
        assert_eq!(unsafe { libc::kill(reader.id() as i32, signal) }, 0);
        assert_eq!(reader.wait().unwrap().signal(), Some(signal));
    }
    // A lease ends with its holder, too.
    let file = shared.file.clone();
    let waiting = thread::spawn(move || fs::read(file));
    shared.holder.take().unwrap().end();
    assert_eq!(waiting.join().unwrap().expect("opens"), b"content");
    shared.end();
}

#[test]
fn the_kernel_ends_a_lease_that_its_holder_keeps_while_a_mount_waits() {
    const TEST: &str = "the_kernel_ends_a_lease_that_its_holder_keeps_while_a_mount_waits";
    let _time = BREAK_TIME.write().unwrap_or_else(PoisonError::into_inner);
    // The usual time is 45 s. An open that takes longer may have had no processor.
    let is_brief = (0..5).any(|_| time_of_a_break(TEST, 2).is_none_or(|time| time < Duration::from_secs(40)));
    assert!(is_brief, "the holder had more than its time");
}

/// How long an open waits for a holder that keeps its lease. `None`, with a message: a mount is not
/// possible, or the machine's time for a break cannot be set.
fn time_of_a_break(test: &str, seconds: u32) -> Option<Duration> {
    let mut shared = Shared::new(test)?;
    let Some(_seconds) = BreakTime::set(seconds, test) else {
        shared.end();
        return None;
    };
    shared.order("write");
    let start = Instant::now();
    assert_eq!(fs::read(&shared.file).unwrap(), b"content", "the open waits no longer");
    let waited = start.elapsed();
    assert!(waited > Duration::from_secs(1), "{waited:?}: the holder had no time");
    assert_eq!(shared.hear(), "broken");
    fs::write(&shared.file, "another").expect("there is no lease any more");
    shared.end();
    Some(waited)
}
