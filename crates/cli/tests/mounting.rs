//! Mounts in the background, by directfs and by mount(8).

mod support;

use rustix::fs::{RenameFlags, XattrFlags};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use support::{can_mount, directfs, image_in, scratch, stderr, stdout, unmount};

/// An image and a mount point, which is always unmounted at the end.
struct Stage {
    directory: tempfile::TempDir,
    image: PathBuf,
    point: PathBuf,
}

impl Stage {
    fn new() -> Stage {
        let directory = scratch();
        let (image, point) = (image_in(directory.path()), directory.path().join("mount"));
        fs::create_dir(&point).unwrap();
        Stage { directory, image, point }
    }

    fn image(&self) -> &str {
        self.image.to_str().unwrap()
    }

    fn point(&self) -> &str {
        self.point.to_str().unwrap()
    }

    fn is_mounted(&self) -> bool {
        fs::read_to_string("/proc/self/mounts")
            .unwrap()
            .lines()
            .any(|line| line.split(' ').nth(1) == Some(self.point()))
    }

    fn umount(&self) {
        unmount(&self.point);
        assert!(!self.is_mounted());
        // The image is clean when the command returns.
        let check = directfs(&["fsck", "-n", self.image()]);
        assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
        assert!(stdout(&check).contains("left cleanly;"), "{}", stdout(&check));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = directfs(&["umount", "--lazy", self.point()]);
        }
    }
}

#[test]
fn a_mount_whose_server_was_killed_comes_back() {
    if !can_mount("a mount whose server was killed") {
        return;
    }
    let stage = Stage::new();
    let mounted = directfs(&["mount", stage.image(), stage.point()]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    fs::write(stage.point.join("file"), "content").unwrap();
    kill_server(&stage);
    let dead = fs::read(stage.point.join("file")).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(libc::ENOTCONN));
    let again = directfs(&["mount", stage.image(), stage.point()]);
    assert!(again.status.success(), "{}", stderr(&again));
    assert!(stderr(&again).contains("whose server had exited"), "{}", stderr(&again));
    assert_eq!(fs::read_to_string(stage.point.join("file")).unwrap(), "content");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert_eq!(mounts.lines().filter(|line| line.contains(stage.point())).count(), 1, "one mount, not two");
    // `umount` removes a dead mount, too.
    kill_server(&stage);
    let removed = directfs(&["umount", stage.point()]);
    assert!(removed.status.success(), "{}", stderr(&removed));
    assert!(!stage.is_mounted());
}

/// A stopped server answers nothing, and a detached mount is in no table.
#[test]
fn users_of_an_image_are_found_beside_files_of_a_stopped_server() {
    if !can_mount("users_of_an_image_are_found_beside_files_of_a_stopped_server") {
        return;
    }
    let (stage, other) = (Stage::new(), Stage::new());
    assert!(directfs(&["mount", stage.image(), stage.point()]).status.success());
    let held = fs::File::create(stage.point.join("file")).unwrap();
    let server = processes_of(&stage);
    assert!(Command::new("umount").args(["-l", stage.point()]).status().unwrap().success());
    let signal = |name: &str| assert!(Command::new("kill").arg(name).args(&server).status().unwrap().success());
    signal("-STOP");
    let mut info = Command::new("timeout");
    let info = info.args(["600", env!("CARGO_BIN_EXE_directfs"), "info", other.image()]).output().unwrap();
    signal("-CONT");
    drop(held);
    assert_eq!(info.status.code(), Some(0), "{}", stderr(&info));
}

#[test]
fn programs_end_when_the_server_of_their_mount_is_killed() {
    if !can_mount("programs_end_when_the_server_of_their_mount_is_killed") {
        return;
    }
    // With the requests on their way through io_uring, where the kernel offers it.
    for options in ["io_uring", "no_io_uring"] {
        let stage = Stage::new();
        let mounted = directfs(&["mount", stage.image(), stage.point(), "-o", options]);
        assert!(mounted.status.success(), "{}", stderr(&mounted));
        let offered = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
        let uses_rings = options == "io_uring" && offered.is_ok_and(|value| value.trim() == "Y");
        // The answer needs the threads that info looks for.
        fs::read_dir(&stage.point).unwrap();
        let info = stdout(&directfs(&["info", stage.image()]));
        let line = info.lines().find(|line| line.contains("requests through")).unwrap_or_else(|| panic!("{info}"));
        assert_eq!(line.trim_end().ends_with("  io_uring"), uses_rings, "{line}");
        assert!(uses_rings || line.contains("/dev/fuse"), "{line}");
        let made = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (point, made) = (&stage.point, &made);
                scope.spawn(move || {
                    for number in 0.. {
                        let path = point.join(format!("{worker}.{number}"));
                        let done = fs::write(&path, "content").and_then(|()| fs::remove_file(&path));
                        let Err(error) = done else {
                            made.fetch_add(1, Ordering::Relaxed);
                            continue;
                        };
                        // The last one is that of a command which the dying thread had not taken.
                        let ends = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED].map(Some);
                        assert!(ends.contains(&error.raw_os_error()), "{options}: {error}");
                        break;
                    }
                });
            }
            while made.load(Ordering::Relaxed) < 200 {
                std::thread::yield_now();
            }
            kill_server(&stage);
        });
        let removed = directfs(&["umount", stage.point()]);
        assert!(removed.status.success(), "{}", stderr(&removed));
        let check = directfs(&["fsck", "-n", stage.image()]);
        assert_eq!(check.status.code(), Some(0), "{options}: {}{}", stdout(&check), stderr(&check));
    }
}

/// The processes of a mount.
fn processes_of(stage: &Stage) -> Vec<String> {
    let command = format!("mount --foreground {}", stage.image());
    let is_server = |process: &String| {
        let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).replace('\0', " ").contains(&command)
    };
    let names = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).filter(is_server).collect()
}

/// Kills a process, and returns when it has exited.
fn kill(process: &str) {
    Command::new("kill").args(["-KILL", process]).status().unwrap();
    while Path::new(&format!("/proc/{process}")).exists() {
        std::thread::yield_now();
    }
}

/// Kills the server of a mount, and returns when it has exited.
fn kill_server(stage: &Stage) {
    processes_of(stage).iter().for_each(|server| kill(server));
}

/// The server of a mount that has a keeper: it is the child of another process of the mount.
fn kept_server(stage: &Stage) -> String {
    next_server(stage).expect("the keeper has ended")
}

/// `kept_server`, or `None` once the keeper has ended.
fn next_server(stage: &Stage) -> Option<String> {
    loop {
        let processes = processes_of(stage);
        let is_child = |process: &&String| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)).map(str::to_owned);
            parent.is_some_and(|parent| processes.contains(&parent))
        };
        if let Some(server) = processes.iter().find(is_child) {
            return Some(server.clone());
        }
        if processes.is_empty() {
            return None;
        }
        std::thread::yield_now();
    }
}

/// A program that changes names and content until `is_over` is set. Each of its calls succeeds.
fn change_names(point: &Path, is_over: &AtomicBool, rounds: &AtomicU32) {
    let mut log = fs::File::create(point.join("log")).unwrap();
    let directory = point.join("directory");
    while !is_over.load(Ordering::Acquire) {
        fs::create_dir(&directory).unwrap();
        let file = fs::File::create_new(directory.join("one")).unwrap();
        file.write_all_at(b"content", 0).unwrap();
        fs::hard_link(directory.join("one"), directory.join("link")).unwrap();
        fs::rename(directory.join("one"), directory.join("two")).unwrap();
        assert_eq!(fs::read(directory.join("two")).unwrap(), b"content");
        std::os::unix::fs::symlink("two", directory.join("symbolic")).unwrap();
        for name in ["symbolic", "link", "two"] {
            fs::remove_file(directory.join(name)).unwrap();
        }
        fs::remove_dir(&directory).unwrap();
        log.write_all(b"line\n").unwrap();
        rounds.fetch_add(1, Ordering::AcqRel);
    }
}

#[test]
fn programs_on_a_kept_mount_only_wait_when_its_server_dies() {
    if !can_mount("a mount with a keeper") {
        return;
    }
    let stage = Stage::new();
    let mounted = directfs(&["mount", stage.image(), stage.point(), "-o", "keep"]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let program = scope.spawn(|| change_names(&stage.point, &is_over, &rounds));
        for _ in 0..20 {
            let seen = rounds.load(Ordering::Acquire);
            kill(&kept_server(&stage));
            while rounds.load(Ordering::Acquire) < seen + 3 && !program.is_finished() {
                std::thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Release);
    });
    let lines = fs::read_to_string(stage.point.join("log")).unwrap().lines().count();
    assert_eq!(lines, rounds.load(Ordering::Acquire) as usize);
    stage.umount();
    while !processes_of(&stage).is_empty() {
        std::thread::yield_now();
    }
}

#[test]
fn open_files_of_a_kept_mount_outlive_its_server() {
    if !can_mount("open files of a kept mount") {
        return;
    }
    let stage = Stage::new();
    let mounted = directfs(&["mount", stage.image(), stage.point(), "-o", "keep"]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    let at = |name: &str| stage.point.join(name);
    fs::write(at("file"), "one two").unwrap();
    fs::write(at("removed"), "content").unwrap();
    let mut file = fs::File::open(at("file")).unwrap();
    let removed = fs::OpenOptions::new().write(true).open(at("removed")).unwrap();
    file.read_exact(&mut [0; 4]).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let unnamed = fs::OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(&stage.point).unwrap();
    fs::remove_file(at("removed")).unwrap();
    fs::create_dir(at("directory")).unwrap();
    let directory = fs::File::open(at("directory")).unwrap();

    kill(&kept_server(&stage));
    fs::rename(at("file"), at("directory/file")).unwrap();
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "two", "the description has its position");
    let within = rustix::fs::openat(&directory, "file", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    let locked = rustix::fs::flock(&within, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert_eq!(locked, Err(rustix::io::Errno::WOULDBLOCK), "the description has its lock");
    for lost in [&removed, &unnamed] {
        let error = lost.write_all_at(b"content", 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "a file without a name ended with the server");
    }
    drop((file, removed, unnamed, directory, within));
    stage.umount();
}

#[test]
fn a_removed_file_of_a_kept_mount_does_not_become_another_file() {
    if !can_mount("a removed file of a kept mount") {
        return;
    }
    let stage = Stage::new();
    let mounted = directfs(&["mount", stage.image(), stage.point(), "-o", "keep,cache=0"]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    let number_of = |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(stage.point.join(name)).unwrap());
    fs::write(stage.point.join("removed"), "content").unwrap();
    let removed = fs::OpenOptions::new().write(true).open(stage.point.join("removed")).unwrap();
    let number = number_of("removed");
    fs::remove_file(stage.point.join("removed")).unwrap();
    kill(&kept_server(&stage));
    // The next server answers, so the image is recovered and the number is free.
    assert!(!stage.point.join("removed").exists());
    let script = "cd $DIRECTFS_MOUNT && for i in $(seq 2000); do echo kept >$i; done && ls -i | grep -w '^ *'$1";
    let made = directfs(&["run", "--image", stage.image(), "--", "sh", "-c", script, "sh", &number.to_string()]);
    let listed = stdout(&made);
    let other = listed.split_whitespace().nth(1).expect("a new file has the number of the removed one");
    let error = removed.write_all_at(b"wrong", 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
    assert_eq!(fs::read_to_string(stage.point.join(other)).unwrap(), "kept\n");
    drop(removed);
    stage.umount();
}

#[test]
fn a_keeper_ends_the_mount_when_servers_die_again_and_again() {
    if !can_mount("a keeper that gives up") {
        return;
    }
    let stage = Stage::new();
    // The keeper's message appears in the terminal of a mount in the foreground.
    let mut keeper = Command::new(env!("CARGO_BIN_EXE_directfs"));
    keeper.args(["mount", "--foreground", stage.image(), stage.point(), "-o", "keep"]);
    let keeper = keeper.stderr(Stdio::piped()).spawn().unwrap();
    while !stage.is_mounted() || processes_of(&stage).len() < 2 {
        std::thread::yield_now();
    }
    fs::write(stage.point.join("file"), "content").unwrap();
    let file = fs::File::open(stage.point.join("file")).unwrap();
    let mut deaths = 0;
    while let Some(server) = next_server(&stage) {
        kill(&server);
        deaths += 1;
    }
    let output = keeper.wait_with_output().unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("servers die again and again"), "{}", stderr(&output));
    assert_eq!(deaths, 10);
    assert!(!stage.is_mounted());
    let error = file.set_permissions(fs::metadata(&stage.image).unwrap().permissions()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    let check = directfs(&["fsck", "-n", stage.image()]);
    assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
}

#[test]
fn a_request_that_a_dead_server_had_read_is_sent_to_the_next() {
    if !can_mount("a request of a dead server") {
        return;
    }
    let stage = Stage::new();
    let mounted = directfs(&["mount", stage.image(), stage.point(), "-o", "keep,cache=0"]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    let path = stage.point.join("file");
    let holder = fs::File::create(&path).unwrap();
    rustix::fs::flock(&holder, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let mut waiter = Command::new("flock").arg(&path).arg("true").spawn().unwrap();
    let server = kept_server(&stage);
    let waits = || {
        let threads = fs::read_dir(format!("/proc/{server}/task")).unwrap().flatten();
        let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        threads.map(name).any(|name| name.trim() == "directfs-lock")
    };
    while !waits() {
        std::thread::yield_now();
    }
    // The lock of the holder ends with the server. The next one gets the waiting request and grants
    // it.
    kill(&server);
    assert!(waiter.wait().unwrap().success());
    drop(holder);
    stage.umount();
}

/// A tracer that kills the server of a mount instead of its answer number `answer`.
fn kill_at_answer(stage: &Stage, answer: u32) -> Child {
    let inject = format!("inject=write:signal=KILL:when={answer}");
    let mut tracer = Command::new("strace");
    tracer.args(["-f", "-o", "/dev/null", "-e", &inject, "-p", &kept_server(stage)]).stderr(Stdio::piped());
    let mut tracer = tracer.spawn().unwrap();
    // The first line says that the server is traced.
    BufReader::new(tracer.stderr.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    tracer
}

#[test]
fn a_change_whose_answer_was_lost_succeeds_once() {
    if !can_mount("a change whose answer was lost") {
        return;
    }
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("\n*** SKIPPED: a change whose answer was lost: needs strace ***\n");
        return;
    }
    let stage = Stage::new();
    // All answers come from one thread, which counts them.
    let mounted = directfs(&["mount", stage.image(), stage.point(), "-o", "keep,threads=1"]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    let at = |name: &str| stage.point.join(name);
    let attribute = |flags| rustix::fs::setxattr(at("two"), "user.name", b"value", flags);
    let create_new = XattrFlags::CREATE;
    let changes: [(&str, &dyn Fn() -> std::io::Result<()>); 9] = [
        ("create", &|| fs::File::create_new(at("one")).map(drop)),
        ("mkdir", &|| fs::create_dir(at("directory"))),
        ("symlink", &|| std::os::unix::fs::symlink("one", at("symbolic"))),
        ("link", &|| fs::hard_link(at("one"), at("link"))),
        ("rename", &|| fs::rename(at("one"), at("two"))),
        ("setxattr", &|| Ok(attribute(create_new)?)),
        ("removexattr", &|| Ok(rustix::fs::removexattr(at("two"), "user.name")?)),
        ("unlink", &|| ["two", "link", "symbolic"].into_iter().try_for_each(|name| fs::remove_file(at(name)))),
        ("rmdir", &|| fs::remove_dir(at("directory"))),
    ];
    // A change takes a few requests; the server dies at the answer to each.
    for answer in 1..=5 {
        for (what, change) in changes {
            let mut tracer = kill_at_answer(&stage, answer);
            change().unwrap_or_else(|error| panic!("{what}, without answer {answer}: {error}"));
            tracer.kill().unwrap();
            tracer.wait().unwrap();
            // The keeper gives up if servers die that answer hardly anything.
            (0..20).for_each(|lookup| assert!(!at(&format!("{what}-{answer}-{lookup}")).exists()));
        }
        assert_eq!(fs::read_dir(&stage.point).unwrap().count(), 0, "without answer {answer}");
    }
    stage.umount();
}

#[test]
fn an_exchange_and_a_whiteout_whose_answer_was_lost_are_made_once() {
    if !can_mount("an exchange whose answer was lost") {
        return;
    }
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("\n*** SKIPPED: an exchange whose answer was lost: needs strace ***\n");
        return;
    }
    let stage = Stage::new();
    let mounted = directfs(&["mount", stage.image(), stage.point(), "-o", "keep,threads=1"]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    let at = |name: &str| stage.point.join(name);
    // What the image has, whatever the kernel knows.
    let content = |name: &str| {
        let script = format!("{} export {} | tar -x -O ./{name}", env!("CARGO_BIN_EXE_directfs"), stage.image());
        stdout(&Command::new("sh").args(["-c", &script]).output().unwrap())
    };
    let is_whiteout = |name: &str| {
        let script = format!("{} export {} | tar -t -v ./{name}", env!("CARGO_BIN_EXE_directfs"), stage.image());
        let listed = stdout(&Command::new("sh").args(["-c", &script]).output().unwrap());
        listed.starts_with('c') && listed.contains(" 0,0 ")
    };
    for flags in [RenameFlags::EXCHANGE, RenameFlags::WHITEOUT] {
        // The names are looked up again, perhaps, and then renamed.
        for answer in 1..=3 {
            fs::write(at("one"), "first").unwrap();
            if flags == RenameFlags::EXCHANGE {
                fs::write(at("two"), "second").unwrap();
            }
            let mut tracer = kill_at_answer(&stage, answer);
            rustix::fs::renameat_with(rustix::fs::CWD, at("one"), rustix::fs::CWD, at("two"), flags).unwrap();
            tracer.kill().unwrap();
            tracer.wait().unwrap();
            (0..20).for_each(|lookup| assert!(!at(&format!("{answer}-{lookup}")).exists()));
            assert_eq!(content("two"), "first", "{flags:?} without answer {answer}");
            let is_left = if flags == RenameFlags::EXCHANGE { content("one") == "second" } else { is_whiteout("one") };
            assert!(is_left, "{flags:?} without answer {answer}");
            ["one", "two"].into_iter().for_each(|name| fs::remove_file(at(name)).unwrap());
        }
    }
    stage.umount();
}

#[test]
fn locks_exclude_between_a_run_and_a_mount() {
    if !can_mount("locks of a run and a mount") {
        return;
    }
    let stage = Stage::new();
    assert!(directfs(&["mount", stage.image(), stage.point(), "-o", "cache=0"]).status.success());
    let on_mount = |options: &[&str]| {
        Command::new("flock").args(options).arg(stage.point.join("file")).arg("true").status().unwrap().success()
    };
    assert!(on_mount(&["-n"]), "the lock is free");
    let hold = |kill: bool| {
        let script = "exec 9>$DIRECTFS_MOUNT/file; flock 9; echo held; read _";
        let mut run = Command::new(env!("CARGO_BIN_EXE_directfs"));
        run.args(["run", "--image", stage.image(), "--", "sh", "-c", script]);
        let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = [0; 5];
        run.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert!(!on_mount(&["-n"]), "the run holds it");
        let waiter = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| on_mount(&[]));
            if kill {
                run.kill().unwrap();
            }
            drop(run.stdin.take());
            run.wait().unwrap();
            waiter.join().unwrap()
        });
        assert!(waiter, "the wait on the mount ends with the holder");
    };
    hold(false);
    hold(true);
    let held = fs::File::open(stage.point.join("file")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let within = |script: &str| directfs(&["run", "--image", stage.image(), "--", "sh", "-c", script]).status.success();
    let try_lock = "flock -n $DIRECTFS_MOUNT/file true";
    assert!(!within(try_lock), "the mount holds it");
    // A server that is killed holds nothing.
    kill_server(&stage);
    assert!(within(try_lock));
}

#[test]
fn an_image_that_others_can_write_is_mounted_without_their_privileges() {
    // SAFETY: asks only.
    if !can_mount("an image that others can write") || unsafe { libc::geteuid() } != 0 {
        eprintln!("\n*** SKIPPED: an image that others can write: needs root ***\n");
        return;
    }
    let options_of = |mode: u32, options: &[&str]| {
        let stage = Stage::new();
        fs::set_permissions(&stage.image, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        let mounted = directfs(&[&["mount", stage.image(), stage.point()], options].concat());
        assert!(mounted.status.success(), "{}", stderr(&mounted));
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(stage.point())).unwrap().to_owned();
        // A remount that does not name the flags leaves them.
        assert!(directfs(&["mount", stage.image(), stage.point(), "-o", "remount,rw"]).status.success());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(mounts.lines().any(|again| again == line), "{line} became {mounts}");
        stage.umount();
        let has = |option: &str| line.split([' ', ',']).any(|part| part == option);
        (has("nosuid"), has("nodev"))
    };
    assert_eq!(options_of(0o600, &[]), (false, false), "root's own image");
    assert_eq!(options_of(0o660, &[]), (true, true), "a group writes it");
    assert_eq!(options_of(0o666, &[]), (true, true), "all users write it");
    assert_eq!(options_of(0o666, &["-o", "suid,dev"]), (false, false), "named options decide");
}

/// Signals a server whose mount a program uses, and returns what it then wrote to `log`.
fn messages_of_a_busy_server(stage: &Stage, options: &[&str], log: impl Fn() -> String) -> String {
    let mounted = directfs(&[&["mount", stage.image(), stage.point()], options].concat());
    assert!(mounted.status.success(), "{options:?}: {}", stderr(&mounted));
    let held = fs::File::create(stage.point.join("file")).unwrap();
    let server = processes_of(stage);
    assert!(Command::new("kill").arg("-TERM").args(&server).status().unwrap().success());
    let end = std::time::Instant::now() + std::time::Duration::from_secs(600);
    while !log().contains("leaves its directories") && std::time::Instant::now() < end {
        std::thread::yield_now();
    }
    drop(held);
    while !log().contains("the image is closed") && std::time::Instant::now() < end {
        std::thread::yield_now();
    }
    log()
}

#[test]
fn a_server_in_the_background_writes_its_messages_to_the_file_of_log() {
    if !can_mount("messages of a server in the background") {
        return;
    }
    for form in ["--log", "-o"] {
        let stage = Stage::new();
        let path = stage.directory.path().join("log");
        let text = format!("{}{}", if form == "-o" { "log=" } else { "" }, path.display());
        let said = messages_of_a_busy_server(&stage, &[form, &text], || fs::read_to_string(&path).unwrap_or_default());
        let has = |part: &str| said.lines().any(|line| line.contains(part) && line.contains(stage.point()));
        assert!(has("mounted on") && has("warning: the mount on") && has("unmounted from"), "{form}: {said}");
    }
    let stage = Stage::new();
    let refused = directfs(&["mount", stage.image(), stage.point(), "--log", "/nowhere/log"]);
    assert!(!refused.status.success() && stderr(&refused).contains("--log"), "{}", stderr(&refused));
    assert!(!stage.is_mounted());
}

#[test]
fn a_server_in_the_foreground_reports_why_it_waits_for_a_program() {
    if !can_mount("messages of a server in the foreground") {
        return;
    }
    for signal in ["-INT", "-TERM"] {
        let stage = Stage::new();
        let mut server = Command::new(env!("CARGO_BIN_EXE_directfs"));
        server.args(["mount", "--foreground", stage.image(), stage.point()]).stderr(Stdio::piped());
        let mut server = server.spawn().unwrap();
        let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().contains("is mounted on"));
        let held = fs::File::create(stage.point.join("file")).unwrap();
        assert!(Command::new("kill").args([signal, &server.id().to_string()]).status().unwrap().success());
        let said = lines.next().unwrap().unwrap();
        assert!(said.contains(stage.point()) && said.contains("closes its files"), "{signal}: {said}");
        drop(held);
        assert!(server.wait().unwrap().success(), "{signal}");
    }
}

#[test]
fn a_mount_reports_its_server_in_json() {
    if !can_mount("mount --json") {
        return;
    }
    let stage = Stage::new();
    let mounted = directfs(&["mount", stage.image(), stage.point(), "--json", "--read-only"]);
    let report: serde_json::Value = serde_json::from_slice(&mounted.stdout).unwrap();
    assert_eq!((&report["directory"], &report["read_only"]), (&stage.point().into(), &true.into()));
    assert_eq!(vec![report["server"].to_string()], processes_of(&stage));
    stage.umount();
}

fn called_as(name: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_directfs")).arg0(name).args(arguments).output().unwrap()
}

#[test]
fn a_mount_stands_when_the_command_returns_and_is_clean_after_umount() {
    if !can_mount("mount and umount") {
        return;
    }
    let stage = Stage::new();
    let output = directfs(&["mount", stage.image(), stage.point()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stage.is_mounted());
    fs::write(stage.point.join("file"), "content").unwrap();
    let info = directfs(&["info", stage.image()]);
    assert!(stdout(&info).contains(stage.point()), "{}", stdout(&info));
    stage.umount();

    assert!(directfs(&["mount", stage.image(), stage.point(), "--read-only"]).status.success());
    assert_eq!(fs::read_to_string(stage.point.join("file")).unwrap(), "content");
    let refused = fs::write(stage.point.join("other"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    stage.umount();
}

#[test]
fn mount_8_finds_its_helper_and_mount_fuse_its_type() {
    if !can_mount("the helper of mount(8)") {
        return;
    }
    let stage = Stage::new();
    let options = "rw,nosuid,nodev,noauto,user=root";
    for (name, arguments) in [
        ("/sbin/mount.directfs", &[stage.image(), stage.point(), "-o", options][..]),
        (
            "mount.fuse.directfs",
            &[stage.image(), stage.point(), "-n", "-s", "-v", "-o", "rw,unheard_of", "-t", "fuse.directfs"],
        ),
        ("directfs", &[stage.image(), stage.point(), "-o", "rw,nosuid"]),
    ] {
        let output = called_as(name, arguments);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        assert!(stage.is_mounted(), "{name}");
        stage.umount();
    }
    let fake = called_as("mount.directfs", &[stage.image(), stage.point(), "-f"]);
    assert!(fake.status.success() && !stage.is_mounted());
}

#[test]
fn a_failing_mount_reports_the_reason_to_its_caller() {
    let stage = Stage::new();
    let nowhere = stage.directory.path().join("nowhere");
    let output = directfs(&["mount", stage.image(), nowhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("create the directory first"), "{}", stderr(&output));
    let output = called_as("mount.directfs", &[stage.image(), nowhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(32), "as mount(8) has it");
    let output = called_as("mount.directfs", &[stage.image(), stage.point(), "-o", "nosuit"]);
    assert_eq!(output.status.code(), Some(32));
    assert!(stderr(&output).contains("nosuit"), "{}", stderr(&output));
    assert!(!stage.is_mounted());
}

#[test]
fn a_mount_in_use_is_not_taken_away() {
    if !can_mount("umount of a mount in use") {
        return;
    }
    let stage = Stage::new();
    assert!(directfs(&["mount", stage.image(), stage.point()]).status.success());
    let file = fs::File::create(stage.point.join("open")).unwrap();
    let refused = directfs(&["umount", stage.point()]);
    assert!(!refused.status.success() && stderr(&refused).contains("in use"), "{}", stderr(&refused));
    assert!(stage.is_mounted());
    drop(file);
    stage.umount();
    assert!(Path::new(stage.image()).exists());
}
