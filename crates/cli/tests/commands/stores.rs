//! Images in object stores: `push`, `pull`, `store list` and `store gc`, on a directory and on a
//! server of S3 that the test starts.

use crate::replicas::run_and_replica;
use crate::support::program::{Program, has_python};
use crate::support::{directfs, image_in, scratch, stderr, stdout};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What the server of S3 is installed with.
const MOTO: &str = "moto[server,s3]==5.2.5";

/// A user of stores: has a cache and credentials of its own.
pub struct User<'t> {
    pub home: PathBuf,
    pub endpoint: Option<&'t str>,
}

impl User<'_> {
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(arguments).env("XDG_CACHE_HOME", &self.home).env("XDG_STATE_HOME", self.home.join("state"));
        if let Some(endpoint) = self.endpoint {
            command.envs([
                ("AWS_ENDPOINT", endpoint),
                ("AWS_ACCESS_KEY_ID", "name"),
                ("AWS_SECRET_ACCESS_KEY", "a-secret"),
                ("AWS_REGION", "us-east-1"),
                ("AWS_ALLOW_HTTP", "true"),
            ]);
        }
        command
    }

    pub fn try_to(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program starts")
    }

    pub fn does(&self, arguments: &[&str]) -> String {
        let output = self.try_to(arguments);
        assert!(output.status.success(), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
        stdout(&output)
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.does(arguments)).expect("JSON")
    }

    /// The message of a command that fails with this exit code.
    pub fn fails(&self, arguments: &[&str], code: i32) -> String {
        let output = self.try_to(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
        stderr(&output)
    }
}

/// A directory with an image, and a store beside it.
pub struct Place {
    pub directory: tempfile::TempDir,
}

impl Drop for Place {
    /// The process that fetched for a run unmounts its file shortly after the run.
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(60);
        let path = self.directory.path().to_str().unwrap().to_owned();
        while fs::read_to_string("/proc/self/mounts").unwrap().contains(&path) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Place {
    /// In memory.
    pub fn new() -> Place {
        Place { directory: scratch() }
    }

    /// On a disk.
    pub fn on_disk() -> Place {
        Place { directory: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    pub fn url(&self) -> String {
        format!("file://{}", self.path("store"))
    }

    pub fn user(&self) -> User<'static> {
        User { home: self.directory.path().join("cache"), endpoint: None }
    }

    /// An image with a file, pushed.
    pub fn pushed(&self) -> String {
        let image = image_in(self.directory.path()).to_str().unwrap().to_owned();
        run_in(&image, "seq 30000 > numbers");
        self.user().does(&["push", &image, &self.url()]);
        image
    }
}

pub fn run_in(image: &str, script: &str) -> String {
    let output = directfs(&["run", "--image", image, "--at", "/mnt/st", "-C", "/mnt/st", "--", "sh", "-c", script]);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

pub fn check(image: &str) {
    let check = directfs(&["fsck", "-n", image]);
    assert!(check.status.success(), "{}{}", stdout(&check), stderr(&check));
}

/// An image goes to a store, changes, goes again, and both states come back to another machine.
fn there_and_back(place: &Place, url: &str, endpoint: Option<&str>) {
    let image = image_in(place.directory.path()).to_str().unwrap().to_owned();
    let here = User { home: place.directory.path().join("cache"), endpoint };
    run_in(&image, "mkdir d && echo one > d/file && seq 30000 > numbers");
    let missing = here.fails(&["pull", url, "unused"], 1);
    assert!(missing.contains("no image at") && missing.contains("directfs push IMAGE"), "{missing}");
    assert!(!Path::new("unused").exists());
    assert!(here.does(&["push", &image, url, "--tag", "first"]).contains("generation 1"));
    assert!(here.does(&["push", &image, url]).contains("has this state already"));
    run_in(&image, "echo two > d/file && rm numbers");
    let second = here.json(&["push", &image, url, "--json"]);
    assert_eq!((&second["generation"], &second["new"]), (&2.into(), &true.into()));
    assert!(second["sent_bytes"].as_u64().unwrap() < 64 << 10, "only changes are sent: {second}");
    let listed = here.does(&["store", "list", url]);
    assert!(listed.contains("first") && listed.lines().count() == 3, "{listed}");
    here.does(&["store", "gc", url, "--grace", "0s"]);
    let there = User { home: place.directory.path().join("another cache"), endpoint };
    for (at, expected) in [("first", "one\nd\nnumbers\n"), ("2", "two\nd\n")] {
        let pulled = place.path(&format!("pulled {at}"));
        there.does(&["pull", url, &pulled, "--at", at]);
        check(&pulled);
        assert_eq!(run_in(&pulled, "cat d/file && ls"), expected);
    }
    let unknown = there.fails(&["pull", url, &place.path("none"), "--at", "monday"], 1);
    assert!(unknown.contains("monday") && unknown.contains("store list"), "{unknown}");
}

#[test]
fn an_image_goes_to_a_directory_and_comes_back_in_two_states() {
    let place = Place::new();
    // Signs that a URL writes in its own way.
    let url = format!("file://{}/a store/é", place.directory.path().display());
    there_and_back(&place, &url, None);
    assert!(place.directory.path().join("a store/é/head").exists());
}

#[test]
fn gc_removes_what_no_kept_state_needs_after_its_grace() {
    let place = Place::new();
    let (image, url, user) = (place.pushed(), place.url(), place.user());
    let layers = || fs::read_dir(place.path("store/layers")).unwrap().count();
    // Killed in the middle, an earlier push left this.
    fs::write(place.path("store/layers/0000000000000009-0123"), "half a layer").unwrap();
    let before = layers();
    let early = user.json(&["store", "gc", &url, "--json"]);
    assert_eq!((&early["removed_objects"], &early["waiting_objects"]), (&0.into(), &1.into()));
    let late = user.json(&["store", "gc", &url, "--grace", "0s", "--json"]);
    assert_eq!((&late["removed_objects"], &late["waiting_objects"]), (&1.into(), &0.into()));
    assert_eq!(layers(), before - 1);
    user.does(&["pull", &url, &place.path("pulled")]);
    assert_eq!(run_in(&place.path("pulled"), "tail -1 numbers"), run_in(&image, "tail -1 numbers"));
}

#[test]
fn a_pull_replaces_a_file_only_when_it_is_asked_to_and_nobody_uses_it() {
    let place = Place::new();
    let (image, url, user) = (place.pushed(), place.url(), place.user());
    run_in(&image, "echo later > later");
    let before = fs::read(&image).unwrap();
    let refused = user.fails(&["pull", &url, &image], 1);
    assert!(refused.contains("already exists") && refused.contains("--force"), "{refused}");
    if has_python() {
        let program = Program::under_run(Path::new(&image), "import sys; print('ready', flush=True); sys.stdin.read()");
        let used = user.fails(&["pull", &url, &image, "--force"], 1);
        assert!(used.contains("in use"), "{used}");
        program.end();
    }
    assert_eq!(run_in(&image, "cat later"), "later\n");
    user.does(&["pull", &url, &image, "--force"]);
    assert_eq!(run_in(&image, "ls"), "numbers\n");
    assert_eq!(fs::read(&image).unwrap().len(), before.len());
    let device = user.fails(&["pull", &url, "/dev/null", "--force"], 1);
    assert!(device.contains("device"), "{device}");
}

#[test]
fn a_push_of_an_image_in_use_sends_the_state_of_one_moment() {
    if !has_python() {
        return;
    }
    let place = Place::new();
    let image = image_in(place.directory.path());
    // Each round makes the next file before it removes the last one: at each moment there is one.
    let script = "import os, sys, threading
open('0', 'w').close()
def work():
    at = 0
    while True:
        open(str(at + 1), 'w').close()
        os.unlink(str(at))
        at += 1
threading.Thread(target=work, daemon=True).start()
print('ready', flush=True)
sys.stdin.read()";
    let program = Program::under_run(&image, script);
    place.user().does(&["push", image.to_str().unwrap(), &place.url()]);
    program.end();
    let pulled = place.path("pulled");
    place.user().does(&["pull", &place.url(), &pulled]);
    check(&pulled);
    let count: u32 = run_in(&pulled, "ls | wc -l").trim().parse().unwrap();
    assert!((1..=2).contains(&count), "{count} files");
}

#[test]
fn what_a_store_got_wrong_is_named_and_leaves_no_file() {
    let place = Place::new();
    let (_, url, user) = (place.pushed(), place.url(), place.user());
    let target = place.path("pulled");
    let layer = fs::read_dir(place.path("store/layers")).unwrap().next().unwrap().unwrap();
    let right = fs::read(layer.path()).unwrap();
    let mut flipped = right.clone();
    flipped[right.len() / 2] ^= 1;
    for (wrong, what) in [(&flipped[..], "flipped"), (&right[..right.len() / 2], "short"), (b"", "empty")] {
        fs::write(layer.path(), wrong).unwrap();
        let message = user.fails(&["pull", &url, &target], 1);
        assert!(message.contains(layer.file_name().to_str().unwrap()), "{what}: {message}");
        assert!(!Path::new(&target).exists(), "{what}");
    }
    fs::remove_file(layer.path()).unwrap();
    let gone = user.fails(&["pull", &url, &target], 1);
    assert!(gone.contains("it is not there"), "{gone}");
    fs::write(layer.path(), &right).unwrap();
    let head = fs::read(place.path("store/head")).unwrap();
    fs::write(place.path("store/head"), &head[..head.len() - 9]).unwrap();
    let headless = user.try_to(&["store", "list", &url, "--json"]);
    let error: Value = serde_json::from_slice(&headless.stdout).expect("JSON");
    assert!(error["error"].as_str().unwrap().contains("/head is damaged"), "{error}");
    fs::write(place.path("store/head"), &head).unwrap();
    user.does(&["pull", &url, &target]);
    // Nothing of the failures stayed beside it.
    let names = fs::read_dir(place.directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().starts_with(".directfs")).count(), 0);
}

#[test]
fn a_push_replaces_layers_that_are_gone_from_the_store() {
    let place = Place::new();
    let (image, url, user) = (place.pushed(), place.url(), place.user());
    run_in(&image, "echo later > later");
    user.does(&["push", &image, &url]);
    let layers = || fs::read_dir(place.path("store/layers")).unwrap().map(|file| file.unwrap().path());
    for layer in layers().collect::<Vec<_>>() {
        fs::remove_file(&layer).unwrap();
        user.fails(&["pull", &url, &place.path("pulled")], 1);
        let pushed = user.json(&["push", &image, &url, "--json"]);
        assert_eq!(pushed["new"], true, "{pushed}");
        user.does(&["pull", &url, &place.path("pulled"), "--force"]);
        assert_eq!(run_in(&place.path("pulled"), "cat later && wc -l < numbers"), "later\n30000\n");
        assert!(user.does(&["push", &image, &url]).contains("has this state already"));
    }
}

#[test]
fn another_image_does_not_go_where_one_is() {
    let place = Place::new();
    let (_, url, user) = (place.pushed(), place.url(), place.user());
    let other = place.path("other");
    assert!(directfs(&["mkfs", &other, "--size", "16M", "--sparse"]).status.success());
    let message = user.fails(&["push", &other, &url], 1);
    assert!(message.contains("holds another image") && message.contains("choose another prefix"), "{message}");
}

#[test]
fn credentials_in_a_url_are_refused_and_not_repeated() {
    let place = Place::new();
    let user = place.user();
    for url in [
        "s3://user:secret@bucket/prefix",
        "s3://bucket/prefix?key=secret",
        "ftp://secret@bucket/x",
        "no url?secret",
        "secret@no url",
        "s3://bucket:secret/prefix",
        "s3://",
        "file:///",
    ] {
        let message = user.fails(&["pull", url, "x"], 1);
        assert!(message.contains("s3://BUCKET/PREFIX"), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
    for arguments in [["push", "x", "file:///x", "--tag=17"], ["push", "x", "file:///x", "--keep=7w"]] {
        user.fails(&arguments, 2);
    }
}

#[test]
fn a_store_that_does_not_answer_is_reported_and_left_by_an_interrupt() {
    let place = Place::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let user = User { home: place.directory.path().join("cache"), endpoint: Some(&endpoint) };
    let mut command = user.command(&["store", "list", "s3://bucket/work"]);
    let mut waiting = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut message = String::new();
    BufReader::new(waiting.stderr.as_mut().unwrap()).read_line(&mut message).unwrap();
    assert!(message.contains("has not answered for") && !message.contains("a-secret"), "{message}");
    let pid = rustix::process::Pid::from_child(&waiting);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(130));
}

#[test]
fn a_discarded_run_of_a_url_fetches_each_state_once() {
    let place = Place::new();
    let (image, url, user) = (place.pushed(), place.url(), place.user());
    // A part becomes an image when all of it was read, so those are looked at later.
    let states = |kind: &str| {
        let found = fs::read_dir(place.path(&format!("cache/directfs/store/{kind}"))).into_iter().flatten();
        found.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    let cached = || ["parts", "images"].into_iter().flat_map(states).collect::<BTreeSet<_>>().len();
    let run = |script: &str| {
        user.does(&["run", "--image", &url, "--discard", "-C", "/mnt/directfs", "--", "sh", "-c", script])
    };
    assert_eq!(run("tail -1 numbers && rm numbers && echo x > y"), "30000\n");
    assert_eq!(cached(), 1);
    // It completes the state at its end.
    super::lazy_runs::wait_for_end_of_helpers(&user);
    // Without its layers the store cannot give this state once more.
    fs::rename(place.path("store/layers"), place.path("layers")).unwrap();
    assert_eq!(run("ls"), "numbers\n");
    fs::rename(place.path("layers"), place.path("store/layers")).unwrap();
    run_in(&image, "echo later > later");
    user.does(&["push", &image, &url]);
    assert_eq!(run("cat later"), "later\n");
    assert_eq!(cached(), 2);
    run_in(&image, "echo last > last");
    user.does(&["push", &image, &url]);
    let mut bounded = user.command(&["run", "--image", &url, "--discard", "--", "true"]);
    assert!(bounded.env("DIRECTFS_CACHE_BYTES", "1").status().unwrap().success());
    super::lazy_runs::wait_for_end_of_helpers(&user);
    assert!(cached() <= 1, "a new state makes room for itself");
    let changing = user.fails(&["run", "--image", &url, "--", "true"], 125);
    assert!(changing.contains("--atomic") && changing.contains("directfs pull"), "{changing}");
}

/// A server of S3 on loopback; it ends with this value.
pub struct Server {
    child: Child,
    pub endpoint: String,
}

impl Server {
    /// Starts a server, and waits until it listens.
    fn start(mut command: Command, port: u16) -> Server {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = Server { child, endpoint: format!("http://127.0.0.1:{port}") };
        let end = Instant::now() + Duration::from_secs(300);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "the server does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }

    pub fn make_bucket(&self) {
        let script = "import sys, urllib.request as r; r.urlopen(r.Request(sys.argv[1] + '/bucket', method='PUT'))";
        let made = Command::new("python3").args(["-c", script, &self.endpoint]).output().unwrap();
        assert!(made.status.success(), "{}", stderr(&made));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts moto's server from an environment of Python's own, which stays for the next run. `None`:
/// it cannot be installed.
pub fn s3_server() -> Option<Server> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let installing = INSTALLING.lock().unwrap();
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("s3-server");
    let install = "[ -x \"$1/bin/moto_server\" ] || python3 -m venv \"$1\" && \"$1/bin/pip\" install -q \"$2\"";
    let installed = Command::new("sh").args(["-c", install, "sh"]).arg(&environment).arg(MOTO).output().unwrap();
    if !installed.status.success() {
        eprintln!("\n*** SKIPPED: stores on a server of S3: {} ***\n", stderr(&installed).trim_end());
        return None;
    }
    drop(installing);
    let port = free_port();
    let mut command = Command::new(environment.join("bin/moto_server"));
    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    Some(Server::start(command, port))
}

/// Starts versitygw, which serves a directory with the bucket. `None`: it is not installed.
fn gateway(directory: &Path) -> Option<Server> {
    const INSTALL: &str = "GOBIN=/usr/local/bin go install github.com/versity/versitygw/cmd/versitygw@v1.8.0";
    if !Command::new("versitygw").arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("\n*** SKIPPED: versitygw is not on this machine: {INSTALL} ***\n");
        return None;
    }
    fs::create_dir_all(directory.join("bucket")).unwrap();
    let port = free_port();
    let mut command = Command::new("versitygw");
    command.args(["--port", &format!("127.0.0.1:{port}"), "posix"]).arg(directory);
    command.envs([("ROOT_ACCESS_KEY", "name"), ("ROOT_SECRET_KEY", "a-secret")]);
    Some(Server::start(command, port))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn an_image_goes_to_servers_of_s3_and_comes_back_in_two_states() {
    let moto = s3_server();
    let place = Place::on_disk();
    if let Some(server) = &moto {
        let user = User { home: place.directory.path().join("cache"), endpoint: Some(&server.endpoint) };
        let image = image_in(place.directory.path());
        let refused = user.fails(&["push", image.to_str().unwrap(), "s3://bucket/images/work"], 1);
        assert!(refused.contains("no such bucket") && refused.contains("make it"), "{refused}");
        server.make_bucket();
    }
    for server in [moto, gateway(&place.directory.path().join("gateway"))].into_iter().flatten() {
        let (place, url) = (Place::new(), "s3://bucket/images/work");
        there_and_back(&place, url, Some(&server.endpoint));
        let user = User { home: place.directory.path().join("cache"), endpoint: Some(&server.endpoint) };
        run_and_replica(&place, url, &user);
    }
}

#[test]
fn an_older_state_than_one_that_was_seen_is_reported() {
    let place = Place::new();
    let (image, pulled) = (place.pushed(), place.path("pulled"));
    let (head, kept) = (place.path("store/head"), place.path("kept"));
    fs::copy(&head, &kept).unwrap();
    run_in(&image, "echo later >numbers");
    place.user().does(&["push", &image, &place.url()]);
    fs::copy(&kept, &head).unwrap();
    let pull = ["pull", &place.url(), &pulled, "--force"];
    for words in [&pull[..], &["store", "list", &place.url()], &["push", &image, &place.url()]] {
        let output = place.user().try_to(words);
        let said = stderr(&output);
        assert!(output.status.success(), "{words:?}: {said}");
        assert!(said.contains("is generation 1, and this user has seen generation 2"), "{words:?}: {said}");
    }
    assert_eq!(stderr(&place.user().try_to(&pull)), "", "the push has brought generation 2 once more");
    let stranger = User { home: place.directory.path().join("another"), endpoint: None };
    fs::copy(&kept, &head).unwrap();
    assert_eq!(stderr(&stranger.try_to(&pull)), "");
}

#[test]
fn a_limit_on_file_sizes_ends_no_command_that_fetches_by_a_signal() {
    let place = Place::new();
    place.pushed();
    for words in ["pull URL pulled", "run --image URL --read-only -- true", "run --image URL --atomic -- true"] {
        let script = format!("ulimit -f 100; exec \"$0\" {}", words.replace("URL", &place.url()));
        let command = place.user().command(&[]);
        let program = command.get_program().to_owned();
        let mut shell = Command::new("sh");
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = shell.args(["-c", &script]).arg(program).current_dir(&place.directory).output().unwrap();
        assert!(output.status.code().is_some_and(|code| [1, 125].contains(&code)), "{words}: {:?}", output.status);
        assert!(stderr(&output).contains("limit on file sizes"), "{words}: {}", stderr(&output));
    }
}

/// Changes the first line of a head, and makes its sum match.
const FORGE: &str = r#"
text=$(head -n1 "$1" | sed "$2")
printf '%s\n%s\n' "$text" "$(printf %s "$text" | sha256sum | cut -c1-64)" >"$1"
"#;

#[test]
fn a_pull_by_a_forged_head_makes_no_file() {
    let place = Place::new();
    place.pushed();
    let (head, kept) = (place.path("store/head"), place.path("kept"));
    fs::copy(&head, &kept).unwrap();
    for change in [
        r#"s/"size":[0-9]*/"size":4096/"#,
        r#"s/"uuid":"[0-9a-f]*"/"uuid":"00000000000000000000000000000000"/"#,
        r#"s/"layers":\[0/"layers":[0,0/"#,
    ] {
        fs::copy(&kept, &head).unwrap();
        assert!(Command::new("sh").args(["-c", FORGE, "forge", &head, change]).status().unwrap().success());
        let said = place.user().fails(&["pull", &place.url(), &place.path("pulled")], 1);
        assert!(said.contains("is damaged"), "{change}: {said}");
        assert!(!Path::new(&place.path("pulled")).exists(), "{change}");
    }
}
