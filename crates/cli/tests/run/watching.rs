//! inotify and fanotify in the mount: events, and the ways in which programs wait for them, as on
//! tmpfs.

use crate::kit::compiled;
use crate::support::{can_mount, directfs, image_in, scratch, stderr, stdout, unmount};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const MOUNT: &str = "/mnt/watched";

/// A tmpfs of its own at a directory, if this user may mount: marks on a whole file system see what
/// other programs do there.
struct OwnTmpfs<'p>(Option<&'p Path>);

impl OwnTmpfs<'_> {
    fn mount(at: &Path) -> OwnTmpfs<'_> {
        let mounted = rustix::mount::mount("none", at, "tmpfs", rustix::mount::MountFlags::empty(), None);
        OwnTmpfs(mounted.is_ok().then_some(at))
    }
}

impl Drop for OwnTmpfs<'_> {
    fn drop(&mut self) {
        if let Some(at) = self.0 {
            let _ = rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Runs a program of the kit in a directory of tmpfs and in the mount, and compares its outputs.
fn compare(name: &str) -> Option<String> {
    let directory = scratch();
    let program = compiled(name, directory.path())?;
    let (plain, host) = (directory.path().join("plain"), directory.path().join("host"));
    fs::create_dir(&plain).unwrap();
    fs::create_dir(&host).unwrap();
    let wanted = {
        let _tmpfs = OwnTmpfs::mount(&plain);
        Command::new(&program).arg(&plain).arg(&host).env("LC_ALL", "C").output().unwrap()
    };
    fs::remove_dir_all(&host).unwrap();
    fs::create_dir(&host).unwrap();
    let [program, host] = [&program, &host].map(|path| path.to_str().unwrap());
    let found = directfs(&["run", "--at", MOUNT, "--", program, MOUNT, host]);
    assert_eq!(stderr(&found), stderr(&wanted));
    let (wanted, found) = (stdout(&wanted), stdout(&found));
    for (at, (wanted, found)) in wanted.lines().zip(found.lines()).enumerate() {
        assert_eq!(found, wanted, "line {} of {name}", at + 1);
    }
    assert_eq!(found, wanted);
    Some(found)
}

#[test]
fn each_change_raises_the_events_that_it_raises_on_tmpfs() {
    if let Some(events) = compare("watch_calls") {
        assert!(events.lines().count() > 200, "{events}");
    }
}

#[test]
fn each_change_makes_the_events_of_fanotify_that_it_makes_on_tmpfs() {
    if let Some(events) = compare("mark_calls") {
        assert!(events.lines().count() > 600, "{events}");
    }
}

#[test]
fn descriptors_poll_fork_exec_and_overflow_as_on_tmpfs() {
    compare("watch_ways");
}

#[test]
fn fanotify_descriptors_poll_fork_pass_and_overflow_as_on_tmpfs() {
    if let Some(steps) = compare("mark_ways") {
        assert!(steps.contains("overflow: 0x4000"), "{steps}");
    }
}

#[test]
fn a_change_through_a_mount_names_the_process_that_makes_it() {
    if !can_mount("a_change_through_a_mount_names_the_process_that_makes_it") {
        return;
    }
    let directory = scratch();
    let Some(program) = compiled("mark_process", directory.path()) else { return };
    let (image, point) = (image_in(directory.path()), directory.path().join("mount"));
    fs::create_dir(&point).unwrap();
    let mounted = directfs(&["mount", image.to_str().unwrap(), point.to_str().unwrap(), "-o", "cache=0"]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    let file = point.join("f");
    fs::write(&file, "content").unwrap();
    let mut marker = Command::new(env!("CARGO_BIN_EXE_directfs"))
        .args(["run", "--image", image.to_str().unwrap(), "--at", MOUNT, "--"])
        .arg(program)
        .arg(format!("{MOUNT}/f"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(marker.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("marked"));
    let append = |text: &str| OpenOptions::new().append(true).open(&file).unwrap().write_all(text.as_bytes()).unwrap();
    // A thread is named by its process.
    std::thread::scope(|scope| scope.spawn(|| append("more")).join().unwrap());
    assert_eq!(lines.next(), Some(std::process::id().to_string()));
    let mut other = Command::new("sh").arg("-c").arg(format!("echo end >> {}", file.display())).spawn().unwrap();
    assert!(other.wait().unwrap().success());
    assert_eq!(lines.next(), Some(other.id().to_string()));
    assert!(marker.wait().unwrap().success());
    unmount(&point);
}
