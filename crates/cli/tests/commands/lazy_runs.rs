//! Runs of an image in a store that fetch blocks when they are used: `run --image URL --read-only`
//! and `--discard`.

use crate::stores::{Place, User, run_in};
use crate::support::program::Program;
use crate::support::{can_mount, directfs, image_in, stderr, stdout, without_files};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Bytes of the large file of the image, which do not compress.
const LARGE: u64 = 40 << 20;

/// A store with an image that has a large file and a small one; returns checksums of both.
fn pushed(place: &Place) -> String {
    let image = place.path("image");
    let made = directfs(&["mkfs", &image, "--size", "96M", "--sparse"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let sums = run_in(&image, "head -c 41943040 /dev/urandom > large; seq 3000 > small; sha256sum large small");
    place.user().does(&["push", &image, &place.url()]);
    sums
}

fn run(user: &User<'_>, url: &str, how: &str, script: &str) -> Command {
    user.command(&["run", "--image", url, how, "-C", "/mnt/directfs", "--", "sh", "-c", script])
}

fn succeeds(output: Output) -> String {
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

/// Bytes of all files of a kind in the cache.
pub fn cached(user: &User<'_>, kind: &str) -> u64 {
    let files = fs::read_dir(user.home.join("directfs/store").join(kind)).into_iter().flatten().flatten();
    files.map(|file| file.metadata().unwrap().blocks() * 512).sum()
}

/// The processes that serve images of this user.
pub fn helpers(user: &User<'_>) -> Vec<Pid> {
    let parts = user.home.join("directfs/store/parts").canonicalize().unwrap();
    let has_part = |process: &Path| {
        let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| file.starts_with(&parts))
    };
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let helpers = processes.filter(|process| {
        fs::read_to_string(process.join("comm")).is_ok_and(|name| name == "directfs-store\n") && has_part(process)
    });
    let number = |process: PathBuf| process.file_name()?.to_str()?.parse().ok().and_then(Pid::from_raw);
    helpers.filter_map(number).collect()
}

pub fn wait_for_end_of_helpers(user: &User<'_>) {
    let end = Instant::now() + Duration::from_secs(300);
    while !helpers(user).is_empty() {
        assert!(Instant::now() < end, "a helper stays");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What a program wrote to its standard error, once it has ended.
fn messages(program: &mut Program) -> String {
    let mut text = String::new();
    program.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_run_of_a_url_starts_without_the_image_and_fetches_what_it_reads() {
    if !can_mount("a run that fetches an image while it uses it") {
        return;
    }
    for place in [Place::new(), Place::on_disk()] {
        let sums = pushed(&place);
        let (url, user) = (place.url(), place.user());
        for how in ["--read-only", "--discard"] {
            let small = "sha256sum small; tail -c 100 large | wc -c; ls | wc -l";
            let output = succeeds(run(&user, &url, how, small).output().unwrap());
            assert!(sums.contains(output.lines().next().unwrap()) && output.ends_with("100\n2\n"), "{output}");
            let fetched = cached(&user, "parts");
            assert!(fetched > 0 && fetched < LARGE / 4, "{how}: {fetched} bytes were fetched");
        }
        let changes = "echo new > new && rm small && echo more >> large && tail -c 5 large && ls";
        assert_eq!(succeeds(run(&user, &url, "--discard", changes).output().unwrap()), "more\nlarge\nnew\n");
        let refused = run(&user, &url, "--read-only", "echo new > new").output().unwrap();
        assert!(stderr(&refused).contains("Read-only file system"), "{}", stderr(&refused));
        assert_eq!(succeeds(run(&user, &url, "--read-only", "sha256sum large small").output().unwrap()), sums);
        wait_for_end_of_helpers(&user);
        // Nearly the whole was read: it is a file of the cache now, and of the store only the head
        // is needed.
        let (parts, images) = (cached(&user, "parts"), cached(&user, "images"));
        assert!(parts == 0 && images >= LARGE, "{parts} {images}");
        fs::remove_dir_all(place.path("store/layers")).unwrap();
        assert_eq!(succeeds(run(&user, &url, "--read-only", "sha256sum large small").output().unwrap()), sums);
        let mounts = fs::read_dir(user.home.join("directfs/store/mounts")).unwrap();
        assert_eq!(mounts.count(), 0, "no mount stays");
    }
}

#[test]
fn runs_at_one_time_share_a_process_that_ends_with_the_last_one() {
    if !can_mount("runs that share what they fetch") {
        return;
    }
    let place = Place::new();
    let sums = pushed(&place);
    let (url, user) = (place.url(), place.user());
    let script = "echo ready; read line; sha256sum large small";
    let start = |how| Program::start(run(&user, &url, how, script).stderr(Stdio::inherit()));
    let mut programs = [start("--read-only"), start("--discard"), start("--read-only")];
    assert_eq!(helpers(&user).len(), 1);
    for program in &mut programs {
        drop(program.child.stdin.take());
        assert_eq!([program.line(), program.line()].concat(), sums);
    }
    for mut program in programs {
        assert!(program.child.wait().unwrap().success());
    }
    wait_for_end_of_helpers(&user);
}

#[test]
fn a_run_beside_a_stopped_helper_says_so_and_goes_on_with_it() {
    if !can_mount("a run beside a stopped helper") {
        return;
    }
    let place = Place::new();
    let sums = pushed(&place);
    let (url, user) = (place.url(), place.user());
    let mut first = Program::start(&mut run(&user, &url, "--read-only", "echo ready; read line; true"));
    let helpers = helpers(&user);
    let [helper] = helpers[..] else { panic!("{helpers:?}") };
    kill_process(helper, Signal::STOP).unwrap();
    let mut second = run(&user, &url, "--read-only", "sha256sum large small");
    let mut second = second.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(second.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("is stopped or hangs") && line.contains("pkill -CONT"), "{line}");
    kill_process(helper, Signal::CONT).unwrap();
    assert_eq!(succeeds(second.wait_with_output().unwrap()), sums);
    drop(first.child.stdin.take());
    assert!(first.child.wait().unwrap().success());
    wait_for_end_of_helpers(&user);
}

#[test]
fn reads_of_a_run_whose_helper_is_killed_fail_with_eio_and_the_next_run_works() {
    if !can_mount("a run whose helper is killed") {
        return;
    }
    let place = Place::new();
    let sums = pushed(&place);
    let (url, user) = (place.url(), place.user());
    for how in ["--read-only", "--discard"] {
        let script = "echo ready; read line; cat large > /dev/null || ls";
        let mut program = Program::start(run(&user, &url, how, script).stderr(Stdio::piped()));
        let helpers = helpers(&user);
        let [helper] = helpers[..] else { panic!("{helpers:?}") };
        kill_process(helper, Signal::KILL).unwrap();
        wait_for_end_of_helpers(&user);
        drop(program.child.stdin.take());
        assert_eq!([program.line(), program.line()].concat(), "large\nsmall\n", "names stay");
        let said = messages(&mut program);
        assert!(said.contains("Input/output error"), "{said}");
        assert!(said.contains(&url) && said.contains("start the command again"), "{said}");
        assert!(program.child.wait().unwrap().success());
    }
    assert_eq!(succeeds(run(&user, &url, "--read-only", "sha256sum large small").output().unwrap()), sums);
}

#[test]
fn a_run_goes_on_when_its_store_is_back() {
    if !can_mount("a run whose store goes and comes") {
        return;
    }
    let place = Place::new();
    pushed(&place);
    let (url, user) = (place.url(), place.user());
    let script = "echo ready; read line; cat large > /dev/null; echo tried; read line; wc -c < large";
    let mut program = Program::start(run(&user, &url, "--read-only", script).stderr(Stdio::piped()));
    let (layers, away) = (place.path("store/layers"), place.path("away"));
    fs::rename(&layers, &away).unwrap();
    let mut input = program.child.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"\n").unwrap();
    assert_eq!(program.line(), "tried\n");
    fs::rename(&away, &layers).unwrap();
    drop(input);
    assert_eq!(program.line(), format!("{LARGE}\n"));
    let said = messages(&mut program);
    assert!(said.contains("Input/output error"), "{said}");
    assert!(said.contains("it is not there") && said.contains("check network and store"), "{said}");
    assert!(program.child.wait().unwrap().success());
}

#[test]
fn a_damaged_frame_is_an_error_of_the_file_that_has_it() {
    if !can_mount("a run of a damaged store") {
        return;
    }
    let place = Place::new();
    let sums = pushed(&place);
    let layers = fs::read_dir(place.path("store/layers")).unwrap().map(|file| file.unwrap().path());
    let largest = layers.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let whole = fs::read(&largest).unwrap();
    let mut content = 0;
    // A block of the map lies in each 2 MiB of a file, which is about an eighth of the layer.
    for part in [1, 3, 5, 7] {
        let user = User { home: place.directory.path().join(format!("cache {part}")), endpoint: None };
        let mut bytes = whole.clone();
        bytes[whole.len() / 16 * part] ^= 1;
        fs::write(&largest, &bytes).unwrap();
        let script = "sha256sum small; cat large > /dev/null";
        let output = run(&user, &place.url(), "--read-only", script).output().unwrap();
        let said = stderr(&output);
        assert!(!output.status.success() && said.contains("is damaged"), "{said}");
        // Metadata that is damaged lets no program start.
        if output.status.code() != Some(125) {
            assert!(sums.contains(stdout(&output).trim()), "{}", stdout(&output));
            assert!(said.contains("Input/output error"), "{said}");
            content += 1;
        }
    }
    assert!(content > 0);
}

#[test]
fn without_fuse_the_image_is_fetched_whole_and_a_message_says_so() {
    let place = Place::new();
    let image = image_in(place.directory.path()).to_str().unwrap().to_owned();
    run_in(&image, "seq 30000 > numbers");
    let (url, user) = (place.url(), place.user());
    user.does(&["push", &image, &url]);
    let wanted = run(&user, &url, "--read-only", "wc -l < numbers");
    let mut command = without_files(&["/dev/fuse".to_owned()]);
    if command.get_args().count() == 0 {
        return;
    }
    command.arg(wanted.get_program()).args(wanted.get_args());
    command.envs(wanted.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.output().unwrap();
    assert_eq!(stdout(&output), "30000\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("fetched whole first"), "{}", stderr(&output));
    assert!(cached(&user, "images") > 0);
}
