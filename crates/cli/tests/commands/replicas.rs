//! `directfs replicate`: follows an image, stops for another writer, and waits for a store.

use crate::stores::{Place, User, check, run_in};
use crate::support::program::{Program, has_python};
use crate::support::{can_mount, image_in, stderr, unmount};
use rustix::fs::{CWD, FileType, Mode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// A replica at work; it is killed with this value.
struct Replica {
    child: Child,
    events: BufReader<ChildStdout>,
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Replica {
    fn start(user: &User<'_>, image: &str, url: &str, options: &[&str]) -> Replica {
        let mut command = user.command(&["replicate", image, url, "--json"]);
        command.args(options).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let events = BufReader::new(child.stdout.take().unwrap());
        Replica { child, events }
    }

    /// The next event of this kind.
    fn event(&mut self, kind: &str) -> Value {
        loop {
            let mut line = String::new();
            self.events.read_line(&mut line).unwrap();
            let event: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{kind}: {line:?}: {error}"));
            if event["event"] == kind {
                return event;
            }
        }
    }

    /// Pushes until this holds of the newest state.
    fn until(&mut self, user: &User<'_>, url: &str, target: &Path, holds: impl Fn(&str) -> bool) -> Value {
        loop {
            let pushed = self.event("pushed");
            let _ = fs::remove_file(target);
            let target = target.to_str().unwrap();
            user.does(&["pull", url, target]);
            if holds(target) {
                return pushed;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Exit code, and what it printed since.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut rest, mut message) = (String::new(), String::new());
        self.events.read_to_string(&mut rest).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        (self.child.wait().unwrap().code(), rest, message)
    }
}

/// A replica brings a change to the store, and at its end what no process has synced.
fn changes_arrive(place: &Place) {
    let image = image_in(place.directory.path());
    let (image, url, user) = (image.to_str().unwrap(), place.url(), place.user());
    run_in(image, "echo one > file");
    let mut replica = Replica::start(&user, image, &url, &["--keep", "1d"]);
    assert_eq!(replica.event("pushed")["generation"], 1);
    run_in(image, "echo two > file");
    let target = place.directory.path().join("pulled");
    let pushed = replica.until(&user, &url, &target, |pulled| run_in(pulled, "cat file") == "two\n");
    assert!(pushed["lag_seconds"].as_f64().unwrap() < 600.0 && pushed["sent_bytes"].as_u64().unwrap() < 64 << 10);
    if has_python() {
        let script = "import sys; open('last', 'w').write('last'); print('ready', flush=True); sys.stdin.read()";
        let program = Program::under_run(Path::new(image), script);
        replica.signal(Signal::TERM);
        let (code, rest, message) = replica.end();
        assert_eq!(code, Some(0), "{message}");
        assert!(rest.contains("\"ended\""), "{rest}");
        program.end();
        let last = place.path("last");
        user.does(&["pull", &url, &last]);
        check(&last);
        assert_eq!(run_in(&last, "cat file last"), "two\nlast");
    }
}

/// A run changes the newest state of a store, and a replica of what it left takes over.
pub fn run_and_replica(place: &Place, url: &str, user: &User<'_>) {
    let script = "echo from a run > /mnt/directfs/run";
    let run = user.try_to(&["run", "--image", url, "--atomic", "--", "sh", "-c", script]);
    assert!(run.status.success(), "{}", stderr(&run));
    let image = place.path("replicated");
    user.does(&["pull", url, &image]);
    let mut replica = Replica::start(user, &image, url, &[]);
    replica.event("pushed");
    run_in(&image, "cat run > replica");
    let target = place.directory.path().join("replica");
    replica.until(user, url, &target, |pulled| run_in(pulled, "cat replica || true") == "from a run\n");
    replica.signal(Signal::TERM);
    assert_eq!(replica.end().0, Some(0));
}

#[test]
fn changes_of_an_image_on_a_disk_arrive_in_the_store_and_the_last_ones_at_the_end() {
    changes_arrive(&Place::on_disk());
}

#[test]
fn changes_of_an_image_in_memory_arrive_in_the_store_and_the_last_ones_at_the_end() {
    changes_arrive(&Place::new());
}

/// Waits until a file was replaced so many times.
fn wait_for_rounds(file: &Path, rounds: usize) {
    let end = Instant::now() + Duration::from_secs(600);
    let (mut seen, mut count) = (String::new(), 0);
    while count < rounds {
        assert!(Instant::now() < end, "the replica looks no more");
        let text = fs::read_to_string(file).unwrap_or_default();
        if text != seen {
            (seen, count) = (text, count + 1);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_image_in_use_that_does_not_change_makes_no_new_states() {
    if !has_python() {
        return;
    }
    for place in [Place::new(), Place::on_disk()] {
        let image = image_in(place.directory.path());
        let figures = place.directory.path().join("figures.prom");
        let program = Program::under_run(&image, "import sys; print('ready', flush=True); sys.stdin.read()");
        let options = ["--prometheus", figures.to_str().unwrap()];
        let mut replica = Replica::start(&place.user(), image.to_str().unwrap(), &place.url(), &options);
        replica.event("pushed");
        wait_for_rounds(&figures, 5);
        let text = fs::read_to_string(&figures).unwrap();
        assert!(text.contains("directfs_replica_generation{image=\"") && text.contains(",url=\"file:///"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("directfs_replica_lag_seconds") && line.ends_with(" 0")));
        replica.signal(Signal::INT);
        let (code, rest, message) = replica.end();
        assert_eq!(code, Some(0), "{message}");
        assert!(!rest.contains("\"pushed\""), "{rest}");
        program.end();
    }
}

#[test]
fn figures_in_a_directory_of_others_follow_no_link_and_wait_for_no_fifo() {
    let place = Place::new();
    let (image, user, directory) = (place.pushed(), place.user(), place.directory.path());
    let [figures, victim] = ["figures.prom", "victim"].map(|name| directory.join(name));
    fs::write(&victim, "precious").unwrap();
    for planted in ["figures.prom", "figures.prom.new", ".figures.prom", "figures.prom.tmp"] {
        std::os::unix::fs::symlink(&victim, directory.join(planted)).unwrap();
    }
    let option = format!("--prometheus={}", figures.display());
    assert_eq!(user.does(&["stats", &image, &option]), "");
    assert!(fs::symlink_metadata(&figures).unwrap().is_file(), "the link is replaced");
    assert_eq!(fs::metadata(&figures).unwrap().permissions().mode() & 0o777, 0o644);
    assert!(fs::read_to_string(&figures).unwrap().contains("directfs_image_info"));

    let fifo = directory.join("figures.prom.new");
    fs::remove_file(&fifo).unwrap();
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let replica = Replica::start(&user, &image, &place.url(), &[&option]);
    wait_for_rounds(&figures, 2);
    replica.signal(Signal::INT);
    assert_eq!(replica.end().0, Some(0));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    let is_ours = |name: &str| name.starts_with(".directfs-");
    let left: Vec<_> = names_in(directory).into_iter().filter(|name| is_ours(name)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn figures_that_a_killed_process_left_unfinished_are_removed() {
    let place = Place::new();
    let (image, user, directory) = (place.pushed(), place.user(), place.directory.path());
    let start = ".directfs-figures-";
    let old = SystemTime::now() - Duration::from_secs(3600);
    for name in ["old", "new", "linked"] {
        let file = fs::File::create(directory.join(format!("{start}{name}"))).unwrap();
        file.set_modified(if name == "new" { SystemTime::now() } else { old }).unwrap();
    }
    fs::hard_link(directory.join(format!("{start}linked")), directory.join("precious")).unwrap();
    fs::create_dir(directory.join(format!("{start}directory"))).unwrap();
    user.does(&["stats", &image, &format!("--prometheus={}", directory.join("figures").display())]);
    let left: Vec<_> = names_in(directory).into_iter().filter(|name| name.starts_with(start)).collect();
    assert_eq!(left, ["directory", "linked", "new"].map(|name| format!("{start}{name}")));
}

#[test]
fn a_store_in_a_directory_holds_only_what_its_format_names() {
    let place = Place::new();
    let image = place.pushed();
    run_in(&image, "echo more > more");
    place.user().does(&["push", &image, &place.url()]);
    assert_eq!(names_in(&place.directory.path().join("store")), ["head", "head.lock", "layers"]);
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_second_writer_stops_the_first_one_which_names_it() {
    let place = Place::new();
    let (image, url, user) = (place.pushed(), place.url(), place.user());
    let mut first = Replica::start(&user, &image, &url, &[]);
    first.event("pushed");
    let mut second = Replica::start(&user, &image, &url, &[]);
    second.event("pushed");
    run_in(&image, "echo later > later");
    let (code, rest, message) = first.end();
    assert_eq!(code, Some(3), "{message}");
    assert!(message.contains("was taken over by process") && message.contains("start it again"), "{message}");
    assert!(rest.contains("\"error\":"), "{rest}");
    let target = place.directory.path().join("pulled");
    let newest = |pulled: &str| run_in(pulled, "ls").contains("later");
    user.does(&["pull", &url, target.to_str().unwrap()]);
    if !newest(target.to_str().unwrap()) {
        second.until(&user, &url, &target, newest);
    }
    second.signal(Signal::TERM);
    assert_eq!(second.end().0, Some(0));
}

#[test]
fn a_store_that_is_away_is_reported_and_waited_for() {
    let place = Place::new();
    let (image, url, user) = (place.pushed(), place.url(), place.user());
    let mut replica = Replica::start(&user, &image, &url, &[]);
    replica.event("pushed");
    // The directory cannot be read, as if its disk did not answer.
    let [store, away] = ["store", "away"].map(|name| place.path(name));
    fs::rename(&store, &away).unwrap();
    std::os::unix::fs::symlink("store", &store).unwrap();
    run_in(&image, "echo later > later");
    let waiting = replica.event("waiting");
    assert!(waiting["seconds"].as_u64().unwrap() >= 5, "{waiting}");
    fs::remove_file(&store).unwrap();
    fs::rename(&away, &store).unwrap();
    replica.event("answered");
    let target = place.directory.path().join("pulled");
    replica.until(&user, &url, &target, |pulled| run_in(pulled, "ls").contains("later"));
    // At the end it is not waited for.
    fs::rename(&store, &away).unwrap();
    std::os::unix::fs::symlink("store", &store).unwrap();
    run_in(&image, "echo last > last");
    replica.event("waiting");
    replica.signal(Signal::TERM);
    let (code, _, message) = replica.end();
    assert_eq!(code, Some(1));
    assert!(message.contains("newest state in the store is generation"), "{message}");
    fs::remove_file(&store).unwrap();
    fs::rename(&away, &store).unwrap();
    assert!(user.does(&["push", &image, &url]).contains("pushed to"));
}

#[test]
fn an_image_that_a_run_has_alone_is_replicated_after_it() {
    let place = Place::on_disk();
    let (image, url, user) = (place.pushed(), place.url(), place.user());
    let script = "echo ready; read line; echo whole > whole";
    let mut command = user.command(&["run", "--image", &image, "--atomic", "-C", "/mnt/directfs", "--"]);
    let alone = Program::start(command.args(["sh", "-c", script]));
    let mut replica = Replica::start(&user, &image, &url, &[]);
    let failed = replica.event("failed");
    assert!(failed["error"].as_str().unwrap().contains("in use"), "{failed}");
    alone.end();
    let target = place.directory.path().join("pulled");
    replica.until(&user, &url, &target, |pulled| run_in(pulled, "ls") == "numbers\nwhole\n");
    replica.signal(Signal::TERM);
    assert_eq!(replica.end().0, Some(0));
}

#[test]
fn what_cannot_be_replicated_is_refused_with_the_reason() {
    let place = Place::new();
    let (image, url, user) = (place.pushed(), place.url(), place.user());
    for (arguments, code, said) in [
        (&["replicate", &place.path("none"), &url][..], 1, "none"),
        (&["replicate", &image, "s3://user:secret@bucket/x"], 1, "s3://BUCKET/PREFIX"),
        (&["replicate", &image, &url, "--interval", "0s"], 2, "at least 1s"),
        (&["replicate", &image, &url, "--prometheus", "/dev/null/x"], 1, "cannot write figures"),
        (&["stats", &image, "--prometheus=/dev/stdout"], 1, "no regular file"),
    ] {
        let message = user.fails(arguments, code);
        assert!(message.contains(said) && !message.contains("secret"), "{message}");
    }
    let other = image_in(&{
        let directory = place.directory.path().join("other");
        fs::create_dir(&directory).unwrap();
        directory
    });
    let refused = user.try_to(&["replicate", other.to_str().unwrap(), &url]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("holds another image"), "{}", stderr(&refused));
}

#[test]
fn a_mount_replicates_its_image_and_brings_the_last_changes_after_its_end() {
    if !can_mount("a mount that replicates its image") {
        return;
    }
    for place in [Place::new(), Place::on_disk()] {
        let image = image_in(place.directory.path());
        let (image, url, user) = (image.to_str().unwrap(), place.url(), place.user());
        let (point, target) = (place.directory.path().join("mnt"), place.path("pulled"));
        fs::create_dir(&point).unwrap();
        let replicate = |more: &str| format!("replicate={url}{more}");
        let words = |options: &str| ["mount", image, point.to_str().unwrap(), "-o", options].map(str::to_owned);
        for (options, reason) in [(replicate(",ro"), "read-only"), (replicate(",keep"), "cannot be together")] {
            let words = words(&options);
            let refused = user.fails(&words.each_ref().map(String::as_str), 1);
            assert!(refused.contains(reason), "{refused}");
        }
        let words = words(&replicate(""));
        user.does(&words.each_ref().map(String::as_str));
        let pulled = || {
            let output = user.try_to(&["pull", &url, &target, "--force"]);
            if output.status.success() { run_in(&target, "ls") } else { String::new() }
        };
        let until = |names: &str| {
            let end = Instant::now() + Duration::from_secs(300);
            while pulled() != names {
                assert!(Instant::now() < end, "{names:?} do not arrive");
                std::thread::sleep(Duration::from_millis(50));
            }
        };
        fs::write(point.join("first"), "content").unwrap();
        File::open(point.join("first")).unwrap().sync_all().unwrap();
        until("first\n");
        let figures = user.does(&["stats", image, "--prometheus"]);
        let has = |name: &str| figures.lines().any(|line| line.starts_with(name) && line.contains(&url));
        assert!(has("directfs_replica_generation") && has("directfs_replica_lag_seconds"), "{figures}");
        fs::write(point.join("last"), "content").unwrap();
        unmount(&point);
        until("first\nlast\n");
        check(&target);
        let end = Instant::now() + Duration::from_secs(300);
        while user.does(&["stats", image, "--prometheus"]).contains("directfs_replica") {
            assert!(Instant::now() < end, "figures of an ended replication stay");
        }
    }
}
