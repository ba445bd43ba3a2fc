//! Each command that uses a store, while the network between it and a server of S3 is cut, silent
//! or wrong, and killed in the middle of its requests.
//!
//! After each fault the store has the old state or the new one, whole; no file is half there; and
//! the command succeeds once the network is back.

use crate::lazy_runs::wait_for_end_of_helpers;
use crate::stores::{Place, Server, User, run_in, s3_server};
use crate::support::{can_mount, image_in, stderr, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What becomes of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Their connections are closed.
    Refused,
    /// They are performed, and their answers end in the middle.
    Cut,
    /// Their answers have other bytes.
    Wrong,
    /// Their answers have half of the bytes.
    Short,
    /// They are refused with 503.
    Busy,
    /// They are not answered.
    Silent,
}

const FAILING: [Fault; 5] = [Fault::Refused, Fault::Cut, Fault::Wrong, Fault::Short, Fault::Busy];

/// The network between commands and a server.
struct Network {
    endpoint: String,
    state: Arc<Mutex<State>>,
}

struct State {
    fault: Fault,
    /// Requests that still pass.
    passing: usize,
    /// Connections without an answer.
    silent: Vec<TcpStream>,
}

impl Network {
    fn to(server: &Server) -> Network {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = server.endpoint.trim_start_matches("http://").to_owned();
        let state = Arc::new(Mutex::new(State { fault: Fault::None, passing: 0, silent: Vec::new() }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (server, state) = (server.clone(), Arc::clone(&shared));
                std::thread::spawn(move || pass_on(client.unwrap(), &server, &state));
            }
        });
        Network { endpoint, state }
    }

    /// From now on so many requests pass, and later ones meet the fault.
    fn fail(&self, fault: Fault, passing: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.fault, state.passing) = (fault, passing);
        state.silent.drain(..).for_each(|client| drop(client.shutdown(Shutdown::Both)));
    }

    fn heal(&self) {
        self.fail(Fault::None, 0);
    }

    /// Waits until a request gets no answer.
    fn wait_for_silence(&self) {
        let end = Instant::now() + Duration::from_secs(300);
        while self.state.lock().unwrap().silent.is_empty() {
            assert!(Instant::now() < end, "no request comes");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The head of a message of HTTP, and its body if its length is given.
fn message(from: &mut impl BufRead) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut head, mut length) = (Vec::new(), 0);
    loop {
        let begin = head.len();
        if from.read_until(b'\n', &mut head).ok()? == 0 {
            return None;
        }
        let line = String::from_utf8_lossy(&head[begin..]).to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    Some((head, body))
}

/// Serves the requests of a connection.
fn pass_on(client: TcpStream, server: &str, state: &Mutex<State>) -> Option<()> {
    let mut requests = BufReader::new(client.try_clone().ok()?);
    let mut client = client;
    let upstream = TcpStream::connect(server).ok()?;
    let mut answers = BufReader::new(upstream.try_clone().ok()?);
    let mut upstream = upstream;
    while let Some((head, body)) = message(&mut requests) {
        let fault = {
            let mut state = state.lock().unwrap();
            let passes = state.passing > 0;
            state.passing = state.passing.saturating_sub(1);
            let fault = if passes { Fault::None } else { state.fault };
            if fault == Fault::Silent {
                state.silent.push(client);
                return None;
            }
            fault
        };
        match fault {
            Fault::Refused => return None,
            Fault::Busy => {
                client.write_all(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n").ok()?;
                continue;
            }
            _ => {}
        }
        upstream.write_all(&head).ok()?;
        upstream.write_all(&body).ok()?;
        let (mut head, mut body) = message(&mut answers)?;
        // An answer without a body has no bytes that could be wrong.
        match fault {
            Fault::Cut => {
                client.write_all(&head[..head.len() / if body.is_empty() { 2 } else { 1 }]).ok()?;
                client.write_all(&body[..body.len() / 2]).ok()?;
                return None;
            }
            Fault::Wrong => body.iter_mut().for_each(|byte| *byte ^= 0x55),
            Fault::Short if !body.is_empty() => {
                let (whole, half) = (body.len(), body.len() / 2);
                body.truncate(half);
                let text = String::from_utf8_lossy(&head).into_owned();
                let lines =
                    text.split_inclusive('\n').map(|line| match line.to_lowercase().starts_with("content-length:") {
                        true => line.replace(&whole.to_string(), &half.to_string()),
                        false => line.to_owned(),
                    });
                head = lines.collect::<String>().into_bytes();
            }
            _ => {}
        }
        client.write_all(&head).ok()?;
        client.write_all(&body).ok()?;
    }
    Some(())
}

/// An image, a prefix of a bucket, and two ways to it.
struct World<'s> {
    place: Place,
    network: Network,
    server: &'s Server,
    url: String,
}

impl World<'_> {
    /// With one state in the store, and a later one in the image.
    fn new<'s>(server: &'s Server, name: &str) -> World<'s> {
        let (place, network) = (Place::new(), Network::to(server));
        let world = World { place, network, server, url: format!("s3://bucket/{name}") };
        image_in(world.place.directory.path());
        run_in(&world.image(), "seq 30000 >numbers; head -c 3M /dev/urandom >random; echo one >state");
        world.directly().does(&["push", &world.image(), &world.url]);
        run_in(&world.image(), "echo two >state; head -c 1M /dev/urandom >more");
        world
    }

    fn image(&self) -> String {
        self.place.path("image")
    }

    /// A user whose requests pass through the network.
    fn user(&self) -> User<'_> {
        User { home: self.place.directory.path().join("cache"), endpoint: Some(&self.network.endpoint) }
    }

    /// A user beside it.
    fn directly(&self) -> User<'_> {
        User { home: self.place.directory.path().join("directly"), endpoint: Some(&self.server.endpoint) }
    }

    /// The newest state in the store, which is whole.
    fn newest(&self) -> String {
        let pulled = self.place.path("newest");
        self.directly().does(&["pull", &self.url, &pulled, "--force"]);
        run_in(&pulled, "cat state; wc -l <numbers")
    }

    /// What a command says that fails in a bounded time.
    fn fails(&self, words: &[&str]) -> String {
        let begun = Instant::now();
        let output = self.user().try_to(words);
        let said = stderr(&output);
        assert!(!output.status.success(), "{words:?} succeeds");
        assert!(begun.elapsed() < Duration::from_secs(300), "{words:?}: {:?}", begun.elapsed());
        assert!(said.contains(&self.url), "{words:?}: {said}");
        assert!(!said.contains("a-secret"), "{said}");
        said
    }

    /// Starts a command, and kills it when a request of it has no answer.
    fn killed_at(&self, words: &[&str], passing: usize) {
        self.network.fail(Fault::Silent, passing);
        let mut child = self.start(words);
        self.network.wait_for_silence();
        kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
        child.wait().unwrap();
        self.network.heal();
    }

    fn start(&self, words: &[&str]) -> Child {
        let mut command = self.user().command(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// A command reports a silent store, and ends well once it answers.
    fn waits_out_silence(&self, words: &[&str], passing: usize) -> Output {
        self.network.fail(Fault::Silent, passing);
        let mut child = self.start(words);
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("has not answered for"), "{line}");
        self.network.heal();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{words:?}: {line}{}", stderr(&output));
        output
    }
}

/// Runs a test in a world of each fault at once: a command tries for a while before it fails.
fn with_each_fault(name: &str, test: impl Fn(&World<'_>, Fault) + Sync) {
    let Some(server) = with_bucket() else { return };
    std::thread::scope(|scope| {
        for fault in FAILING {
            let (server, test) = (&server, &test);
            scope.spawn(move || test(&World::new(server, &format!("{name}-{fault:?}")), fault));
        }
    });
}

fn with_bucket() -> Option<Server> {
    let server = s3_server()?;
    server.make_bucket();
    Some(server)
}

/// What a user can do is in each message.
fn assert_helps(said: &str) {
    let remedies = ["repeat the command", "directfs store list", "check network", "is damaged"];
    assert!(remedies.iter().any(|remedy| said.contains(remedy)), "{said}");
}

#[test]
fn a_push_through_a_bad_network_leaves_one_whole_state() {
    with_each_fault("push", |world, fault| {
        let words = ["push", &world.image(), &world.url];
        // The head is read, layers are listed and written, the head is replaced.
        for passing in [0, 1, 2, 3] {
            world.network.fail(fault, passing);
            let output = world.user().try_to(&words);
            // An answer without a body cannot be wrong or short.
            if output.status.success() {
                assert!(matches!(fault, Fault::Wrong | Fault::Short), "{fault:?}");
            } else {
                assert_helps(&stderr(&output));
            }
            let newest = world.newest();
            assert!(newest == "one\n30000\n" || newest == "two\n30000\n", "{fault:?} {passing}: {newest}");
            world.network.heal();
        }
        world.user().does(&words);
        assert_eq!(world.newest(), "two\n30000\n");
    });
}

#[test]
fn a_pull_through_a_bad_network_makes_no_file() {
    with_each_fault("pull", |world, fault| {
        let target = world.place.path("pulled");
        for passing in [0, 1] {
            world.network.fail(fault, passing);
            assert_helps(&world.fails(&["pull", &world.url, &target]));
            assert!(!Path::new(&target).exists(), "{fault:?}");
            world.network.heal();
        }
        world.user().does(&["pull", &world.url, &target]);
        assert_eq!(run_in(&target, "cat state"), "one\n");
    });
}

#[test]
fn lists_and_sweeps_through_a_bad_network_fail_with_a_reason() {
    with_each_fault("list", |world, fault| {
        let gc = ["store", "gc", &world.url, "--grace", "0s"];
        let list = ["store", "list", &world.url];
        world.directly().does(&["push", &world.image(), &world.url]);
        for (words, passing) in [(&list[..], 0), (&gc[..], 0), (&gc[..], 1)] {
            world.network.fail(fault, passing);
            let output = world.user().try_to(words);
            // A list that names nothing is not one that is wrong.
            if output.status.success() {
                assert!(matches!(fault, Fault::Wrong | Fault::Short) && passing == 1, "{fault:?}: {words:?}");
            } else {
                assert!(stderr(&output).contains(&world.url), "{}", stderr(&output));
            }
            world.network.heal();
            assert_eq!(world.newest(), "two\n30000\n");
        }
        world.user().does(&gc);
        assert_eq!(world.user().does(&list).lines().count(), 2);
        assert_eq!(world.newest(), "two\n30000\n");
    });
}

#[test]
fn runs_and_mounts_through_a_bad_network_read_right_bytes_or_eio() {
    if !can_mount("runs and mounts through a bad network") {
        return;
    }
    with_each_fault("read", |world, fault| {
        let sum = run_in(&world.image(), "sha256sum random");
        let script = "sha256sum random 2>/dev/null || echo refused";
        let run = ["run", "--image", &world.url, "--read-only", "-C", "/mnt/directfs", "--", "sh", "-c", script];
        world.network.fail(fault, 0);
        world.fails(&run);
        let point = world.place.directory.path().join("mnt");
        fs::create_dir(&point).unwrap();
        let mount = ["mount", &world.url, point.to_str().unwrap()];
        world.fails(&mount);
        world.network.heal();
        world.user().does(&mount);
        world.network.fail(fault, 0);
        let read = fs::read(point.join("random"));
        assert!(read.is_err_and(|error| error.raw_os_error() == Some(5)), "{fault:?}");
        world.network.heal();
        let end = Instant::now() + Duration::from_secs(300);
        while fs::read(point.join("random")).is_err() {
            assert!(Instant::now() < end, "{fault:?}: the mount does not go on");
        }
        assert_eq!(world.user().does(&run), sum);
        unmount(&point);
        wait_for_end_of_helpers(&world.user());
    });
}

#[test]
fn a_replica_waits_for_a_bad_network_and_brings_the_newest_state() {
    with_each_fault("replicate", |world, fault| {
        world.network.fail(fault, 1);
        let mut child = world.start(&["replicate", &world.image(), &world.url, "--json"]);
        let mut events = BufReader::new(child.stdout.take().unwrap());
        let (mut said, mut is_waiting) = (String::new(), false);
        while !is_waiting && events.read_line(&mut said).unwrap() > 0 {
            is_waiting = ["waiting", "pushed"].iter().any(|event| said.contains(&format!("\"event\":\"{event}\"")));
        }
        assert!(world.newest().ends_with("\n30000\n"));
        world.network.heal();
        // What is damaged is no silence: such a replica ends, and its service starts it again.
        if !is_waiting {
            assert!(said.contains(&world.url), "{fault:?}: {said}");
            assert_eq!(child.wait().unwrap().code(), Some(1), "{fault:?}: {said}");
            child = world.start(&["replicate", &world.image(), &world.url, "--json"]);
            events = BufReader::new(child.stdout.take().unwrap());
        }
        let end = Instant::now() + Duration::from_secs(300);
        while world.newest() != "two\n30000\n" {
            assert!(Instant::now() < end, "{fault:?}: nothing arrives");
        }
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let mut rest = String::new();
        events.read_to_string(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{fault:?}: {rest}");
    });
}

#[test]
fn commands_wait_for_a_silent_network_and_go_on() {
    let Some(server) = with_bucket() else { return };
    let world = World::new(&server, "silent");
    let target = world.place.path("pulled");
    world.waits_out_silence(&["store", "list", &world.url], 0);
    world.waits_out_silence(&["pull", &world.url, &target], 1);
    assert_eq!(run_in(&target, "cat state"), "one\n");
    for passing in [0, 1, 2, 3] {
        run_in(&world.image(), &format!("echo {passing} >state"));
        world.waits_out_silence(&["push", &world.image(), &world.url], passing);
        assert_eq!(world.newest(), format!("{passing}\n30000\n"));
    }
    world.waits_out_silence(&["store", "gc", &world.url, "--grace", "0s"], 1);
    assert_eq!(world.newest(), "3\n30000\n");
}

#[test]
fn commands_that_are_killed_between_two_requests_leave_nothing_half_done() {
    let Some(server) = with_bucket() else { return };
    let world = World::new(&server, "killed");
    let target = world.place.path("pulled");
    for passing in [0, 1] {
        world.killed_at(&["pull", &world.url, &target], passing);
        assert!(!Path::new(&target).exists());
    }
    for passing in [0, 1, 2, 3] {
        let before = world.newest();
        run_in(&world.image(), &format!("echo {passing} >state"));
        world.killed_at(&["push", &world.image(), &world.url], passing);
        assert_eq!(world.newest(), before);
        world.user().does(&["push", &world.image(), &world.url]);
        assert_eq!(world.newest(), format!("{passing}\n30000\n"));
        run_in(&world.image(), &format!("echo replica {passing} >state"));
        world.killed_at(&["replicate", &world.image(), &world.url], passing);
        assert_eq!(world.newest(), format!("{passing}\n30000\n"));
        world.killed_at(&["store", "gc", &world.url, "--grace", "0s"], passing.min(1));
        assert_eq!(world.newest(), format!("{passing}\n30000\n"));
    }
    if can_mount("commands that fetch, killed") {
        let run = ["run", "--image", &world.url, "--read-only", "-C", "/mnt/directfs", "--", "cat", "state"];
        for passing in [0, 1] {
            world.killed_at(&run, passing);
        }
        assert_eq!(world.user().does(&run), "3\n");
        wait_for_end_of_helpers(&world.user());
    }
    let left = fs::read_dir(world.place.directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.filter(|name| name.to_string_lossy().starts_with(".directfs")).count(), 0);
}
