//! Isolation: other users, other namespaces, copies of an image, and a process that lost its slot.

use crate::kit::compiled;
use crate::launching::runtime_directory_of;
use crate::support::{directfs, image_in, scratch, stderr, stdout, unmount};
use pmem::Pm;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

/// A user without files here. No program of another test runs as this user, and so none removes
/// what it leaves.
const STRANGER: &str = "64321";

/// A shell in a run that executes one line at a time.
struct Shell {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Shell {
    fn start(image: &Path) -> Shell {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["run", "--image", image.to_str().unwrap(), "-C", "/mnt/directfs", "--", "sh"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
        let (orders, answers) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Shell { child, orders, answers }
    }

    /// The output of commands, standard error included.
    fn run(&mut self, commands: &str) -> String {
        let orders = self.orders.as_mut().unwrap();
        writeln!(orders, "{{ {commands}\n}} 2>&1; echo; echo END").unwrap();
        let mut result = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the shell ended after {result}");
            if line == "END\n" {
                return result.trim().to_owned();
            }
            result.push_str(&line);
        }
    }

    fn end(mut self) -> Option<i32> {
        drop(self.orders.take());
        self.child.wait().unwrap().code()
    }
}

fn assert_sound(image: &Path) {
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
}

/// Whether a program works as it does for root; if not, prints that the test is skipped.
fn can(test: &str, probe: &[&str]) -> bool {
    let works = Command::new(probe[0]).args(&probe[1..]).output().is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("\n*** SKIPPED: {test}: `{}` does not work here ***\n", probe.join(" "));
    }
    works
}

fn as_stranger(program: &str, arguments: &[&str]) -> Output {
    let user = ["--reuid", STRANGER, "--regid", STRANGER, "--clear-groups", "--", program];
    Command::new("setpriv").args(user).args(arguments).output().expect("setpriv starts")
}

/// It could not use it.
#[test]
fn a_descriptor_is_not_sent_to_a_process_outside() {
    let directory = scratch();
    if !can("descriptors for processes outside", &["python3", "-V"]) {
        return;
    }
    let path = directory.path().join("socket");
    let kit = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/kit");
    let path = path.to_str().unwrap();
    let mut receiver = Command::new("python3")
        .args([&format!("{kit}/receive_outside.py"), path])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut received = BufReader::new(receiver.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(received.next().as_deref(), Some("listens"));
    let output = directfs(&["run", "-C", "/mnt/directfs", "--", "python3", &format!("{kit}/send_outside.py"), path]);
    let wanted = "outside: 95 sent\nin a socket's queue: sent sent\ninside: b'file\\n' 0\n\
                  to itself: sent b'file\\n'\nby the pair of an ended process: b'sent ' b'file\\n'\n";
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), (wanted, ""));
    let received: Vec<String> = received.collect();
    assert_eq!(received, ["b'# Sends a de'".to_owned(), libc::EBADF.to_string()]);
    assert!(receiver.wait().unwrap().success());
}

#[test]
fn an_image_and_its_copy_are_used_at_the_same_time() {
    let directory = scratch();
    let image = image_in(directory.path());
    let copy = directory.path().join("copy");
    let mut first = Shell::start(&image);
    assert_eq!(first.run("for i in 1 2 3; do echo original >f$i; done; ls"), "f1\nf2\nf3");
    fs::copy(&image, &copy).unwrap();
    let mut second = Shell::start(&copy);
    assert_eq!(second.run("rm f1; echo copy >f2; ls"), "f2\nf3");
    // The third process that opens an image finds the region of that image.
    let mut third = Shell::start(&image);
    assert_eq!(third.run("cat f1 f2; echo third >f4; ls"), "original\noriginal\nf1\nf2\nf3\nf4");
    assert_eq!(first.run("cat f4"), "third");
    assert_eq!(second.run("cat f2 f4"), "copy\ncat: f4: No such file or directory");
    for shell in [first, second, third] {
        assert_eq!(shell.end(), Some(0));
    }
    assert_sound(&image);
    assert_sound(&copy);
}

#[test]
fn a_child_in_a_pid_namespace_keeps_its_slot_and_its_locks() {
    const NAMESPACE: [&str; 5] = ["unshare", "--pid", "--fork", "--mount-proc", "true"];
    if !can("a child in a PID namespace", &NAMESPACE) {
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let mut shell = Shell::start(&image);
    // Both have the process ids 1, 2, 3 ... of their namespaces, as do processes outside.
    let child = "exec 9>held; flock 9; : >begun; for i in $(seq 100); do : >n; mv n o; rm o; done; \
                 while [ ! -e stop ]; do :; done; echo kept >&9; cat held";
    for name in ["one", "two"] {
        let script = child.replace("held", &format!("{name}.held")).replace("begun", &format!("{name}.begun"));
        let script = script
            .replace(">n;", &format!(">{name}.n;"))
            .replace("mv n o; rm o", &format!("mv {name}.n {name}.o; rm {name}.o"));
        shell.run(&format!("unshare --pid --fork --mount-proc sh -c '{script}' >{name}.out 2>&1 &"));
        shell.run(&format!("while [ ! -e {name}.begun ]; do :; done"));
    }
    // Starts and ends of processes make the others check for dead ones.
    let stolen = shell.run(
        "for i in $(seq 200); do /bin/true; : >t.$i; rm t.$i; \
         flock -n one.held true && echo stolen; flock -n two.held true && echo stolen; done",
    );
    assert_eq!(stolen, "");
    assert_eq!(
        shell.run(": >stop; wait; cat one.out two.out; ls"),
        "kept\nkept\none.begun\none.held\none.out\nstop\ntwo.begun\ntwo.held\ntwo.out"
    );
    assert_eq!(shell.end(), Some(0));
    assert_sound(&image);
}

#[test]
fn a_descriptor_of_a_process_is_never_taken_for_that_of_another_namespace() {
    const NAMESPACE: [&str; 5] = ["unshare", "--pid", "--fork", "--mount-proc", "true"];
    if !can("descriptors in PID namespaces", &NAMESPACE) {
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let mut shell = Shell::start(&image);
    // Both shells are process 1 of their namespaces.
    let within =
        |file: &str, script: &str| format!("unshare --pid --fork --mount-proc sh -c 'exec 3<{file}; {script}'");
    let read = within("two", "cat /proc/1/fd/3 || echo refused");
    shell.run("echo first >one; echo second >two");
    assert_eq!(shell.run(&read), "second");
    shell.run(&format!("{} &", within("one", ": >begun; while [ ! -e stop ]; do :; done")));
    shell.run("while [ ! -e begun ]; do :; done");
    let found = shell.run(&read);
    assert!(found.ends_with("refused") && !found.contains("first"), "{found}");
    assert_eq!(shell.run(": >stop; wait"), "");
    assert_eq!(shell.end(), Some(0));
}

#[test]
fn a_process_that_dies_in_a_pid_namespace_is_noticed_outside() {
    const NAMESPACE: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "true"];
    if !can("a death in a PID namespace", &NAMESPACE) {
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let mut shell = Shell::start(&image);
    let script = "exec 9>held; flock 9; : >begun; exec sleep 1000";
    shell.run(&format!(
        "unshare --pid --fork --kill-child sh -c '{script}' >/dev/null 2>&1 & namespace=$!; \
         while [ ! -e begun ]; do :; done"
    ));
    assert_eq!(shell.run("flock -n held echo free"), "", "the process in the namespace has the lock");
    let killed = shell.run("kill -9 $namespace; timeout 600 flock held echo free");
    assert_eq!(killed.lines().last(), Some("free"), "{killed}");
    shell.end();
    assert_sound(&image);
}

#[test]
fn killed_children_are_noticed_where_few_descriptors_are_allowed() {
    let directory = scratch();
    let image = image_in(directory.path());
    let mut command = Command::new("bash");
    let run = "ulimit -n 64; exec \"$0\" run --image \"$1\" -C /mnt/directfs -- sh";
    command.args(["-c", run, env!("CARGO_BIN_EXE_directfs"), image.to_str().unwrap()]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let (orders, answers) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
    let mut shell = Shell { child, orders, answers };
    shell.run("for i in $(seq 30); do (: >file; sh -c 'kill -9 $PPID'; :); done");
    let opened = image::Image::open(&image, &image::OpenImage::default()).unwrap();
    let thread = opened.fs().enter().unwrap();
    let processes = tables::process::Processes::new(opened.fs()).unwrap();
    // Each killed child leaves a process without a parent, which may take a moment to end.
    let end = Instant::now() + Duration::from_secs(600);
    let left = loop {
        processes.reap(&thread).unwrap();
        let left = processes.usage().unwrap().processes;
        if left == 1 || Instant::now() > end {
            break left;
        }
        std::thread::yield_now();
    };
    assert_eq!(left, 1, "the shell; its 30 children died without a word");
    drop(thread);
    drop(opened);
    assert_eq!(shell.end(), Some(0));
}

/// A process holds a lock on `$1`/lock and is killed; its parent does not wait for the lock.
const KILLED_HOLDER: &str = r#"
import fcntl, os, struct, sys
path = sys.argv[1] + "/lock"
def ask(file):
    answer = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
    return struct.unpack("hhqqi", answer)[0] == fcntl.F_UNLCK
exclusive = fcntl.LOCK_EX | fcntl.LOCK_NB
attempts = [lambda f: fcntl.lockf(f, exclusive), lambda f: fcntl.flock(f, exclusive), ask]
for hold, attempt in [(0, 0), (1, 1), (0, 2)][:int(sys.argv[2])]:
    holder = os.fork()
    if holder == 0:
        file = open(path, "w")
        attempts[hold](file)
        os.kill(os.getpid(), 9)
    os.waitpid(holder, 0)
    if len(sys.argv) == 3: print(attempts[attempt](open(path, "w")))
"#;

#[test]
fn locks_of_a_killed_process_are_free_at_once() {
    let output = directfs(&["run", "--", "sh", "-c", &format!("python3 -c '{KILLED_HOLDER}' $DIRECTFS_MOUNT 3")]);
    assert_eq!(stdout(&output), "None\nNone\nTrue\n", "{}", stderr(&output));
}

#[test]
fn a_mount_gets_the_lock_of_a_process_that_was_killed_under_run() {
    if !crate::support::can_mount("a_mount_gets_the_lock_of_a_process_that_was_killed_under_run") {
        return;
    }
    let directory = scratch();
    let (image, at) = (image_in(directory.path()), directory.path().join("at"));
    let (image, mount) = (image.to_str().unwrap(), at.to_str().unwrap());
    fs::create_dir(&at).unwrap();
    let mounted = directfs(&["mount", image, mount, "-o", "cache=0"]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    // The run goes on, so its end releases nothing.
    let mut run = Command::new(env!("CARGO_BIN_EXE_directfs"));
    let script = format!("python3 -c '{KILLED_HOLDER}' $DIRECTFS_MOUNT 1 quiet; echo dead; exec cat");
    run.args(["run", "--image", image, "--", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(run.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "dead\n");
    let attempt = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)";
    let output = Command::new("python3").args(["-c", attempt]).arg(at.join("lock")).output().unwrap();
    drop(run.stdin.take());
    assert!(run.wait().unwrap().success());
    unmount(Path::new(mount));
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn the_kernel_finds_nothing_behind_a_working_directory_or_a_descriptor_of_the_mount() {
    let directory = scratch();
    let image = image_in(directory.path());
    let mut shell = Shell::start(&image);
    let process = shell.run("echo content >file; exec 5<file 6>other 7<.; cd .; echo $$");
    let behind = |name: &str| PathBuf::from(format!("/proc/{process}/{name}"));
    assert_eq!(fs::read_dir(behind("cwd")).unwrap().count(), 0, "the kernel's working directory is empty");
    let made = fs::write(behind("cwd/made"), "").unwrap_err();
    assert_eq!(made.raw_os_error(), Some(libc::ENOENT), "and nothing can be made there");
    for fd in ["fd/5", "fd/6", "fd/7"] {
        // Again as root: unreachable content must not look like an empty file.
        let opened = fs::File::open(behind(fd));
        assert!(opened.is_err() || opened.unwrap().metadata().unwrap().is_dir(), "{fd} can be opened");
        assert!(fs::read(behind(fd)).is_err(), "{fd} can be read");
    }
    assert_eq!(shell.run("cat <&5; ls"), "content\nfile\nother");
    shell.end();
}

#[test]
fn what_is_left_of_a_process_that_lost_its_slot_is_errors() {
    let directory = scratch();
    let image = image_in(directory.path());
    // The host has the names of the image, too, in the directory where the shell was started.
    let host = directory.path().join("host");
    fs::create_dir_all(host.join("precious")).unwrap();
    fs::write(host.join("precious/file"), "precious").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.args(["run", "--image", image.to_str().unwrap(), "--", "sh"]).current_dir(&host);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let (orders, answers) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
    let mut shell = Shell { child, orders, answers };
    shell.run("cd $DIRECTFS_MOUNT; mkdir precious; : >precious/inside; exec 5<precious/inside");
    let opened = image::Image::open(&image, &image::OpenImage::default()).unwrap();
    // Another process takes the shell for dead: its slots get another owner.
    let (dram, layout) = (opened.fs().dram(), opened.fs().dram().layout);
    let mut taken = 0;
    for slot in 0..16 {
        const OWNER_OFFSET: u64 = 16;
        let at = layout.upper + 4096 + 8192 + slot * 4096 + OWNER_OFFSET;
        let owner: &AtomicU64 = dram.region().get(Pm::new(at)).unwrap();
        if owner.load(Acquire) != 0 {
            owner.store(u64::from(u32::MAX - 1), Release);
            taken += 1;
        }
    }
    assert!(taken > 0, "the shell has a slot");
    for commands in
        ["rm -rf ./precious", "(: >made-by-mistake)", "(read line <&5)", "(cd precious)", "(: >$DIRECTFS_MOUNT/x)"]
    {
        let result = shell.run(&format!("{commands}; echo $?"));
        assert_ne!(result.lines().last(), Some("0"), "{commands}: {result}");
    }
    assert_eq!(fs::read_to_string(host.join("precious/file")).unwrap(), "precious");
    assert_eq!(fs::read_dir(&host).unwrap().count(), 1, "nothing was made outside");
    // The process's files on the host are unharmed.
    assert_eq!(shell.run(&format!("read line <{}; echo $line", host.join("precious/file").display())), "precious");
    shell.end();
    drop(opened);
}

#[test]
fn fifos_and_sockets_of_an_image_are_out_of_reach_of_other_users() {
    if !can("users apart", &["setpriv", "--reuid", STRANGER, "--clear-groups", "true"]) {
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let mut shell = Shell::start(&image);
    let process =
        shell.run("mkfifo -m 600 secret; (echo content >secret) & (exec sleep 1000 >secret) & sleeper=$!; echo $$");
    let runtime = runtime_directory_of(&process);
    let meeting = fs::read_dir(&runtime).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.is_dir());
    let meeting = meeting.expect("a meeting directory");
    let fifo = || {
        fs::read_dir(&meeting)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| path.to_string_lossy().contains("fifo-"))
    };
    let fifo = loop {
        if let Some(fifo) = fifo() {
            break fifo;
        }
    };
    assert_eq!(fs::metadata(&fifo).unwrap().permissions().mode() & 0o777, 0o600, "the rights of the FIFO in the mount");
    let listed = as_stranger("ls", &[runtime.to_str().unwrap()]);
    assert!(!listed.status.success(), "another user sees {}", stdout(&listed));
    let found = as_stranger("find", &["/dev/shm", "-name", "fifo-*"]);
    assert_eq!(stdout(&found), "");
    let read = as_stranger("timeout", &["600", "cat", fifo.to_str().unwrap()]);
    assert!(stderr(&read).contains("Permission denied"), "even by its full name: {}{}", stdout(&read), stderr(&read));
    assert_eq!(shell.run("timeout 600 head -1 secret"), "content");
    // Programs of other users that root started in the same run can use the FIFO.
    let stranger = format!("setpriv --reuid {STRANGER} --clear-groups");
    shell.run("chmod 777 .; mkfifo open; chmod 666 open");
    assert_eq!(
        shell.run(&format!("({stranger} sh -c 'echo from a stranger >open') & timeout 600 cat open")),
        "from a stranger"
    );
    assert_eq!(shell.run(&format!("(echo from root >open) & {stranger} timeout 600 cat open; wait $!")), "from root");
    assert_eq!(shell.run(&format!("{stranger} cat secret 2>&1 | grep -o 'Permission denied'")), "Permission denied");
    shell.run("kill $sleeper; wait");
    shell.end();
}

#[test]
fn nobody_can_take_the_name_of_a_runtime_directory_first() {
    if !can("users apart", &["setpriv", "--reuid", STRANGER, "--clear-groups", "true"]) {
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let shell = Shell::start(&image);
    let name = |image: &Path| {
        fs::read(image).unwrap()[256..264].iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let mut shell = shell;
    shell.run("true");
    let before = PathBuf::from(format!("/dev/shm/directfs-{}", name(&image)));
    assert!(before.join("region").exists());
    // All processes of the run die. Another user then creates a directory at the path that the
    // superblock still names.
    let launcher = shell.child.id() as i32;
    // SAFETY: a child of this test that was not waited for.
    unsafe { libc::kill(launcher, libc::SIGKILL) };
    shell.child.wait().unwrap();
    drop(shell.orders.take());
    let mut end = String::new();
    while shell.answers.read_line(&mut end).unwrap() > 0 {}
    fs::remove_dir_all(&before).unwrap();
    let squatted = as_stranger("mkdir", &[before.to_str().unwrap()]);
    assert!(squatted.status.success(), "{}", stderr(&squatted));
    let mut again = Shell::start(&image);
    assert_eq!(again.run("echo works"), "works");
    assert_ne!(format!("/dev/shm/directfs-{}", name(&image)), before.to_str().unwrap(), "another name each time");
    again.end();
    fs::remove_dir(&before).unwrap();
    assert_sound(&image);
}

#[test]
fn landlock_does_not_pretend_to_protect_files_of_the_mount() {
    const EOPNOTSUPP: &str = "95";
    // The version, a rule set about files, one about the network alone.
    let script = "import ctypes; c = ctypes.CDLL(None, use_errno=True); \
                  make = lambda a, n, f: ctypes.get_errno() if c.syscall(444, a, n, f) < 0 else 0; \
                  words = lambda *w: (ctypes.c_uint64 * len(w))(*w); \
                  print(make(None, 0, 1), make(words(4), 8, 0), make(words(4, 1), 16, 0), make(words(0, 1), 16, 0))";
    let host = Command::new("python3").args(["-c", script]).output().expect("python3 starts");
    if stdout(&host).trim() != "0 0 0 0" {
        eprintln!("\n*** SKIPPED: Landlock: this kernel answers {} ***\n", stdout(&host).trim());
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let mut shell = Shell::start(&image);
    let refused = format!("{EOPNOTSUPP} {EOPNOTSUPP} {EOPNOTSUPP} 0");
    assert_eq!(shell.run(&format!("python3 -c '{script}'")), refused);
    shell.end();
}

#[test]
fn a_socket_of_the_mount_is_reached_from_another_network_namespace() {
    if !can("network namespaces", &["unshare", "--net", "python3", "-c", "import socket"]) {
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let mut shell = Shell::start(&image);
    let server = "import socket; s = socket.socket(socket.AF_UNIX); s.bind(\"name\"); s.listen(); open(\"ready\", \"w\"); c, _ = s.accept(); c.send(b\"hello\")";
    shell.run(&format!("python3 -c '{server}' & while [ ! -e ready ]; do :; done"));
    let names = fs::read_to_string("/proc/net/unix").unwrap();
    assert!(!names.contains("@directfs"), "no abstract name, which any user could connect to");
    let client = "import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"name\"); print(s.recv(9).decode())";
    assert_eq!(shell.run(&format!("unshare --net python3 -c '{client}'; wait")), "hello");
    shell.end();
}

#[test]
fn a_stopped_neighbour_holds_up_only_calls_on_its_names_and_a_signal_ends_those() {
    let directory = scratch();
    let Some(program) = compiled("stopped_holder", directory.path()) else { return };
    let image = image_in(directory.path());
    let [program, image] = [&program, &image].map(|path| path.to_str().unwrap());
    let ran = directfs(&["run", "--image", image, "--", "timeout", "600", program, "/mnt/directfs"]);
    assert_eq!(stdout(&ran), "interrupted 1, restarted 1, then 0\n", "{}", stderr(&ran));
    assert!(ran.status.success());
    assert_sound(Path::new(image));
}

#[test]
fn other_namespaces_reach_the_image_and_other_root_directories_work_or_are_refused() {
    if !can("mount namespaces", &["unshare", "--mount", "true"]) {
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let root = directory.path().join("root");
    fs::create_dir(&root).unwrap();
    let mut shell = Shell::start(&image);
    shell.run("echo inside >f; mkdir root");
    for namespace in ["--ipc", "--net", "--uts", "--mount", "--pid --fork"] {
        assert_eq!(shell.run(&format!("unshare {namespace} cat f")), "inside", "{namespace}");
    }
    // Without /proc, and with an ordinary directory in its place.
    let hidden = "mount -t tmpfs none /proc && cat f && echo more >>f && tail -n 1 f && ls";
    assert_eq!(shell.run(&format!("unshare --mount sh -c '{hidden}'")), "inside\nmore\nf\nroot");
    let foreign = "mount -t tmpfs none /proc && mkdir -p /proc/self/fd /proc/1 && tail -n 1 f";
    assert_eq!(shell.run(&format!("unshare --mount sh -c '{foreign}'")), "more");
    assert_eq!(shell.run("chroot / tail -n 1 /mnt/directfs/f"), "more");
    let remedy = "is not possible under `directfs run`: use `directfs mount`";
    for (what, command) in [
        ("a root directory in", "chroot root true"),
        ("a root directory in", "unshare --root=root true"),
        ("a root directory in", "unshare --mount pivot_root root root"),
        ("a bind mount of", "unshare --mount mount --bind root /tmp"),
        ("a mount in", "unshare --mount mount -t tmpfs none root"),
    ] {
        let refused = shell.run(&format!("{command} 2>&1; echo status $?"));
        assert!(refused.contains(&format!("directfs: {what} /mnt/directfs {remedy}")), "{command}: {refused}");
        assert!(refused.contains("not supported") && !refused.ends_with("status 0"), "{command}: {refused}");
    }
    let refused = shell.run("mknod null c 1 3 && { echo x >null; } 2>&1; ls");
    assert!(refused.contains(&format!("directfs: writing to a device in /mnt/directfs {remedy}")), "{refused}");
    assert!(refused.ends_with("f\nnull\nroot"), "{refused}");
    let in_root = format!("chroot {} /bin/true; echo status $?", root.display());
    assert!(shell.run(&in_root).ends_with("No such file or directory\nstatus 127"), "as without DirectFS");
    fs::create_dir(root.join("bin")).unwrap();
    fs::copy("/bin/true", root.join("bin/true")).unwrap();
    let refused = shell.run(&in_root);
    fs::remove_dir_all(root.join("bin")).unwrap();
    assert!(refused.contains("directfs: /bin/true") && refused.ends_with("status 126"), "{refused}");
    // A process that has changed its root directory and executes nothing sees the other one.
    let listing = format!("import os; os.chroot(\"{}\"); print(os.listdir(\"/\"))", root.display());
    assert_eq!(shell.run(&format!("python3 -c '{listing}'")), "[]");
    shell.end();
    assert_sound(&image);
}
