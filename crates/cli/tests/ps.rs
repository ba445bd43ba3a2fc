//! `directfs ps`: what the processes of an image hold and wait for.

mod support;

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use support::program::{Program, has_python};
use support::{can_mount, directfs, image_in, mount, scratch, stderr, stdout, unmount};

fn ps(image: &Path) -> Value {
    let output = directfs(&["ps", image.to_str().unwrap(), "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The processes of a command.
fn named<'a>(report: &'a Value, command: &str) -> Vec<&'a Value> {
    let all = report["processes"].as_array().unwrap();
    all.iter().filter(|process| process["command"].as_str().is_some_and(|name| name.starts_with(command))).collect()
}

/// Reports until `wanted` finds something in one.
fn until<T>(image: &Path, wanted: impl Fn(&Value) -> Option<T>) -> T {
    for _ in 0..10_000 {
        if let Some(found) = wanted(&ps(image)) {
            return found;
        }
    }
    panic!("never seen; now {}", ps(image));
}

const HOLDER: &str = "
import fcntl, os, sys
os.makedirs('a/b', exist_ok=True)
log = open('a/b/log', 'a')
fcntl.flock(log, fcntl.LOCK_SH)
db = open('db', 'w+')
fcntl.lockf(db, fcntl.LOCK_EX, 100, 0)
os.chdir('a')
print('ready', flush=True)
sys.stdin.read()
";

#[test]
fn open_files_locks_and_the_working_directory_of_a_program_are_listed() {
    if !has_python() {
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let holder = Program::under_run(&image, HOLDER);
    let report = ps(&image);
    let python = named(&report, "python")[0];
    assert_eq!((&python["role"], &python["directory"]), (&"program".into(), &"/a".into()), "{python}");
    assert!(python["user"].is_string() && python["since_ns"].as_u64().unwrap() > 0, "{python}");
    assert!(python["threads"].as_array().is_some_and(|threads| !threads.is_empty()), "{python}");
    let file = |path: &str| python["files"].as_array().unwrap().iter().find(|file| file["path"] == path).cloned();
    assert_eq!(file("/a/b/log").unwrap()["flags"], "write,append", "{python}");
    assert_eq!(file("/db").unwrap()["flags"], "read-write", "{python}");
    let locks = python["locks"].as_array().unwrap();
    let lock = |path: &str| locks.iter().find(|lock| lock["path"] == path).unwrap();
    let (flock, posix) = (lock("/a/b/log"), lock("/db"));
    assert_eq!((&flock["kind"], &flock["exclusive"]), (&"flock".into(), &false.into()));
    assert_eq!((&posix["kind"], &posix["exclusive"]), (&"posix".into(), &true.into()));
    assert_eq!((&posix["start"], &posix["last"]), (&0.into(), &99.into()));
    let text = stdout(&directfs(&["ps", image.to_str().unwrap()]));
    assert!(text.contains("holds posix lock, exclusive, bytes 0 to 99, on /db"), "{text}");
    holder.end();
    assert_eq!(ps(&image)["processes"], Value::Array(Vec::new()));
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}", stdout(&check));
}

#[test]
fn a_process_that_is_being_forked_is_not_listed_without_its_id() {
    let directory = scratch();
    let image = image_in(directory.path());
    let script = "touch loop; (while [ -e loop ]; do (:); done) & echo ready; read end; rm loop; wait";
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.args(["run", "-C", "/mnt/directfs", "--image"]).arg(&image).args(["--", "sh", "-c", script]);
    let forking = Program::start(&mut command);
    for _ in 0..50 {
        let report = ps(&image);
        let processes = report["processes"].as_array().unwrap();
        assert!(processes.iter().all(|process| process["pid"].as_i64() > Some(0)), "{report}");
    }
    forking.end();
}

#[test]
fn a_wait_for_a_lock_names_the_process_that_holds_it() {
    if !has_python() {
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let holder = Program::under_run(&image, HOLDER);
    let holder_pid = named(&ps(&image), "python")[0]["pid"].clone();
    let for_range = "import fcntl; db = open('db', 'r+'); print('ready', flush=True); fcntl.lockf(db, fcntl.LOCK_EX)";
    let for_flock = "import fcntl; log = open('a/b/log'); print('ready', flush=True); fcntl.flock(log, fcntl.LOCK_EX)";
    let waiters = [(for_range, "/db"), (for_flock, "/a/b/log")].map(|(script, path)| {
        let waiter = Program::under_run(&image, script);
        let wait = until(&image, |report| {
            let waits = report["processes"].as_array()?.iter().flat_map(|process| process["waits"].as_array());
            waits.flatten().find(|wait| wait["reason"].as_str().is_some_and(|reason| reason.contains(path))).cloned()
        });
        assert_eq!(wait["held_by"], Value::Array(vec![holder_pid.clone()]), "{wait}");
        waiter
    });
    holder.end();
    waiters.into_iter().for_each(Program::end);
}

#[test]
fn programs_on_a_mount_are_listed_with_its_server() {
    if !can_mount("programs on a mount") {
        return;
    }
    let directory = scratch();
    let (image, point) = (image_in(directory.path()), directory.path().join("mount"));
    fs::create_dir(&point).unwrap();
    for options in ["rw", "cache=0", "fsname=a name"] {
        mount(&image, &point, options);
        let mut shell = Command::new("sh");
        shell.current_dir(&point).args(["-c", "exec 7>file; flock 7; echo ready; read line; true"]);
        let shell = Program::start(&mut shell);
        let report = ps(&image);
        let roles: Vec<_> = named(&report, "").iter().map(|process| process["role"].as_str().unwrap()).collect();
        assert!(roles.contains(&"mount server"), "{report}");
        let user = named(&report, "sh")[0];
        assert_eq!((&user["role"], &user["directory"]), (&"mount user".into(), &"/".into()), "{user}");
        let file = user["files"].as_array().unwrap().iter().find(|file| file["fd"] == 7).unwrap();
        assert_eq!((&file["path"], &file["flags"]), (&"/file".into(), &"write".into()), "{user}");
        shell.end();
        unmount(&point);
    }
}

#[test]
fn what_is_no_image_and_what_is_not_permitted_is_refused() {
    let directory = scratch();
    let image = image_in(directory.path());
    let unused = directfs(&["ps", image.to_str().unwrap()]);
    assert!(unused.status.success() && stdout(&unused).contains("used by no process"), "{}", stdout(&unused));
    let text = directory.path().join("text");
    fs::write(&text, "no image ".repeat(1000)).unwrap();
    for (path, part) in [(&text, "directfs mkfs"), (&directory.path().join("none"), "none")] {
        let refused = directfs(&["ps", path.to_str().unwrap()]);
        assert_eq!(refused.status.code(), Some(1), "{path:?}");
        assert!(stderr(&refused).contains(part), "{path:?}: {}", stderr(&refused));
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("\n*** SKIPPED: another user's image: only root can start programs for other users ***\n");
        return;
    }
    let program = directory.path().join("directfs");
    assert!(support::copy_program(env!("CARGO_BIN_EXE_directfs"), &program));
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(directory.path(), open).unwrap();
    let mut other = Command::new("setpriv");
    other.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program).arg("ps").arg(&image);
    let refused = other.output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", stdout(&refused));
    assert!(stderr(&refused).contains("ermission"), "{}", stderr(&refused));
}
