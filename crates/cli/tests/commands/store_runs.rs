//! Runs and mounts of an image in a store: `run --image URL --atomic`, `mount URL DIR`.

use crate::lazy_runs;
use crate::stores::{Place, User, check, run_in};
use crate::support::program::Program;
use crate::support::{can_mount, directfs, stderr, stdout, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A run of a URL that is pushed if it succeeds.
fn atomic(user: &User<'_>, url: &str, script: &str) -> Command {
    user.command(&["run", "--image", url, "--atomic", "-C", "/mnt/directfs", "--", "sh", "-c", script])
}

/// What the newest state of a store says.
fn newest(place: &Place, script: &str) -> String {
    let pulled = place.path("newest");
    let _ = fs::remove_file(&pulled);
    place.user().does(&["pull", &place.url(), &pulled]);
    check(&pulled);
    run_in(&pulled, script)
}

/// Images that runs keep, also hidden ones.
fn kept(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.path("cache/state/directfs")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn an_atomic_run_of_a_url_is_pushed_if_the_command_succeeds() {
    for place in [Place::new(), Place::on_disk()] {
        place.pushed();
        let (url, user) = (place.url(), place.user());
        let failed = atomic(&user, &url, "echo half > half; exit 7").output().unwrap();
        assert_eq!(failed.status.code(), Some(7), "{}", stderr(&failed));
        assert!(stderr(&failed).contains("unchanged"), "{}", stderr(&failed));
        assert_eq!(newest(&place, "ls"), "numbers\n");
        let done = atomic(&user, &url, "echo whole > whole; rm numbers; sync; (sleep 1) & echo out").output().unwrap();
        assert!(done.status.success(), "{}", stderr(&done));
        assert_eq!(stdout(&done), "out\n");
        assert!(stderr(&done).contains("all changes of the run are in generation 2"), "{}", stderr(&done));
        assert_eq!(newest(&place, "ls; cat whole"), "whole\nwhole\n");
        // The next run fetches that state; neither leaves a file.
        assert!(atomic(&user, &url, "grep whole whole").status().unwrap().success());
        let unknown = user.fails(&["run", "--image", &url, "--atomic", "--", "no-such-program-42"], 127);
        assert!(unknown.contains("no-such-program-42"), "{unknown}");
        assert_eq!(kept(&place), Vec::<PathBuf>::new());
    }
}

#[test]
fn an_atomic_run_that_was_overtaken_keeps_its_changes_in_an_image_that_it_names() {
    let place = Place::on_disk();
    place.pushed();
    let (url, user) = (place.url(), place.user());
    let mut command = atomic(&user, &url, "echo ready; read line; echo mine > mine");
    let mut slow = Program::start(command.stderr(Stdio::piped()));
    assert!(atomic(&user, &url, "echo theirs > theirs").status().unwrap().success());
    drop(slow.child.stdin.take());
    // The end of its input lets `read` fail; the last command counts.
    let mut message = String::new();
    slow.child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert_eq!(slow.child.wait().unwrap().code(), Some(125), "{message}");
    assert!(message.contains("generation 1, which was opened") && message.contains("wrote to it"), "{message}");
    assert_eq!(newest(&place, "ls"), "numbers\ntheirs\n");
    let images = kept(&place);
    let [image] = &images[..] else { panic!("{images:?}") };
    let image = image.to_str().unwrap();
    assert!(message.contains(&format!("`directfs push {image} {url}-other`")), "{message}");
    assert_eq!(run_in(image, "ls"), "mine\nnumbers\n");
    check(image);
    user.does(&["push", image, &format!("{url}-other")]);
}

#[test]
fn an_atomic_run_that_is_killed_leaves_the_store_as_it_was() {
    let place = Place::on_disk();
    place.pushed();
    let (url, user) = (place.url(), place.user());
    let killed = Program::start(&mut atomic(&user, &url, "echo half > half; echo ready; read line"));
    let mut child = killed.child;
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    assert_eq!(newest(&place, "ls"), "numbers\n");
    // A day later another run removes what it left.
    let left = kept(&place);
    let [left] = &left[..] else { panic!("{left:?}") };
    assert!(left.file_name().unwrap().to_str().unwrap().starts_with('.'));
    assert!(Command::new("touch").args(["-d", "2 days ago"]).arg(left).status().unwrap().success());
    let end = std::time::Instant::now() + std::time::Duration::from_secs(300);
    // The processes of the run have it until they notice its end.
    while left.exists() && std::time::Instant::now() < end {
        assert!(Command::new("touch").args(["-d", "2 days ago"]).arg(left).status().unwrap().success());
        assert!(atomic(&user, &url, "echo more >> more").status().unwrap().success());
    }
    assert_eq!(kept(&place), Vec::<PathBuf>::new());
}

#[test]
fn an_atomic_run_of_a_url_on_a_full_disk_is_refused_with_the_reason() {
    let place = Place::on_disk();
    let (image, url, user) = (place.pushed(), place.url(), place.user());
    run_in(&image, "head -c 4M /dev/urandom >random");
    user.does(&["push", &image, &url]);
    for (full, bytes) in [(user.home.join("state"), "1M"), (user.home.join("directfs"), "100k")] {
        fs::create_dir_all(&full).unwrap();
        let wanted = atomic(&user, &url, "echo half > half");
        let mut command = Command::new("unshare");
        let mounted = format!("mount -t tmpfs -o size={bytes},mode=700 none \"$FULL\" || exit 77; exec \"$@\"");
        command.args(["-m", "sh", "-c", &mounted, "sh"]).arg(wanted.get_program()).args(wanted.get_args());
        command.envs(wanted.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("FULL", &full);
        let output = command.output().unwrap();
        if output.status.code() == Some(77) {
            eprintln!("\n*** SKIPPED: a full disk: unshare is not permitted here ***\n");
            return;
        }
        assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
        assert!(stderr(&output).to_lowercase().contains("space"), "{}", stderr(&output));
        assert_eq!(newest(&place, "ls"), "numbers\nrandom\n");
    }
    assert!(atomic(&user, &url, "echo whole > whole").status().unwrap().success());
}

#[test]
fn a_mount_of_a_url_fetches_what_is_read() {
    if !can_mount("a mount of a URL") {
        return;
    }
    let place = Place::new();
    let image = place.path("image");
    assert!(directfs(&["mkfs", &image, "--size", "96M", "--sparse"]).status.success());
    let sums = run_in(&image, "head -c 40M /dev/urandom >large; seq 30000 >numbers; sha256sum large numbers");
    let (url, user) = (place.url(), place.user());
    user.does(&["push", &image, &url]);
    let point = place.directory.path().join("mnt");
    fs::create_dir(&point).unwrap();
    for options in ["ro", "keep"] {
        let words = ["mount", &url, point.to_str().unwrap(), "--json", "-o", options];
        let mounted = user.json(&words);
        assert_eq!((&mounted["read_only"], &mounted["image"]), (&true.into(), &url.as_str().into()));
        assert_eq!(fs::read_to_string(point.join("numbers")).unwrap().lines().count(), 30000);
        let fetched = lazy_runs::cached(&user, "parts");
        assert!(fetched > 0 && fetched < 10 << 20, "{fetched} bytes were fetched");
        let refused = fs::write(point.join("file"), "x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(30), "{refused}");
        // A run of the same state shares what is fetched.
        let run = ["run", "--image", &url, "--read-only", "-C", "/mnt/directfs", "--", "tail", "-1", "numbers"];
        assert_eq!(user.does(&run), "30000\n");
        assert_eq!(lazy_runs::helpers(&user).len(), 1);
        unmount(&point);
        lazy_runs::wait_for_end_of_helpers(&user);
        assert_eq!(fs::read_dir(user.home.join("directfs/store/mounts")).unwrap().count(), 0);
    }
    // A new state takes room in the cache, and not that of the mount.
    user.does(&["mount", &url, point.to_str().unwrap()]);
    run_in(&image, "echo later > later");
    user.does(&["push", &image, &url]);
    let mut bounded = user.command(&["run", "--image", &url, "--read-only", "--", "true"]);
    assert!(bounded.env("DIRECTFS_CACHE_BYTES", "1").status().unwrap().success());
    let summed = Command::new("sha256sum").args(["large", "numbers"]).current_dir(&point).output().unwrap();
    assert_eq!(stdout(&summed), sums);
    assert!(!point.join("later").exists(), "it is the state that was opened");
    unmount(&point);
    let nowhere = user.fails(&["mount", &format!("{url}-none"), point.to_str().unwrap()], 1);
    assert!(nowhere.contains("no image at"), "{nowhere}");
    assert!(!directfs(&["info", point.to_str().unwrap()]).status.success());
}

#[test]
fn a_mount_of_a_url_is_without_the_privileges_of_what_a_store_holds() {
    // SAFETY: asks only.
    if !can_mount("privileges in a store") || unsafe { libc::geteuid() } != 0 {
        eprintln!("\n*** SKIPPED: privileges in a store: needs root ***\n");
        return;
    }
    let place = Place::new();
    place.pushed();
    let (url, user) = (place.url(), place.user());
    let point = place.directory.path().join("mnt");
    fs::create_dir(&point).unwrap();
    let flags = |options: &str| {
        user.does(&["mount", &url, point.to_str().unwrap(), "-o", options]);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(point.to_str().unwrap())).unwrap().to_owned();
        assert!(line.starts_with(&url), "{line}");
        unmount(&point);
        lazy_runs::wait_for_end_of_helpers(&user);
        let has = |option: &str| line.split([' ', ',']).any(|part| part == option);
        (has("nosuid"), has("nodev"))
    };
    for state in ["fetched while it is used", "in the cache"] {
        assert_eq!(flags("ro"), (true, true), "{state}");
        assert_eq!(flags("keep"), (true, true), "{state}");
        assert_eq!(flags("suid,dev"), (false, false), "{state}, named options decide");
        // Fetches the state whole.
        user.does(&["run", "--image", &url, "--atomic", "--", "true"]);
    }
}

#[test]
fn a_mount_of_a_url_whose_helper_is_killed_reports_eio_and_can_be_made_again() {
    if !can_mount("a mount whose helper is killed") {
        return;
    }
    let place = Place::new();
    let image = place.path("image");
    assert!(directfs(&["mkfs", &image, "--size", "96M", "--sparse"]).status.success());
    run_in(&image, "head -c 40M /dev/urandom >large");
    let (url, user) = (place.url(), place.user());
    user.does(&["push", &image, &url]);
    let (point, log) = (place.directory.path().join("mnt"), place.path("log"));
    fs::create_dir(&point).unwrap();
    user.does(&["mount", &url, point.to_str().unwrap(), "--log", &log]);
    let helpers = lazy_runs::helpers(&user);
    let [helper] = helpers[..] else { panic!("{helpers:?}") };
    kill_process(helper, Signal::KILL).unwrap();
    let read = fs::read(point.join("large")).unwrap_err();
    assert_eq!(read.raw_os_error(), Some(5), "{read}");
    assert!(point.join("large").exists(), "names stay");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(300);
    // The dead mount in the cache goes, too.
    while !fs::read_to_string(&log).unwrap().contains("mount again")
        || fs::read_dir(user.home.join("directfs/store/mounts")).unwrap().count() > 0
    {
        assert!(std::time::Instant::now() < end, "{}", fs::read_to_string(&log).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    unmount(&point);
    user.does(&["mount", &url, point.to_str().unwrap()]);
    assert_eq!(fs::read(point.join("large")).unwrap().len(), 40 << 20);
    unmount(&point);
}
