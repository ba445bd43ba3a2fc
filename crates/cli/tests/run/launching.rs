//! Start and end: `directfs run COMMAND` behaves as the command itself, and the image is left
//! clean.

use crate::kit::with_new_build_id;
use crate::support::killing::calls_of;
use crate::support::{directfs, image_in, scratch, stderr, stdout, unmount};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn run(arguments: &[&str]) -> Output {
    directfs(&[&["run"], arguments].concat())
}

fn start(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.arg("run").args(arguments);
    command
}

fn assert_clean(image: &Path) {
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
    assert!(stdout(&check).contains("left cleanly;"), "{}", stdout(&check));
}

/// Restores default actions: the tests may inherit ignored hangups and interrupts, for example from
/// a shell that runs them in the background.
fn heed_signals() {
    for number in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: sets the default action, which every test expects.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
}

/// Reads a line byte by byte, so that nothing behind it is consumed.
fn line(from: &mut impl Read) -> String {
    let mut text = String::new();
    let mut byte = [0];
    while from.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        text.push(byte[0] as char);
    }
    text
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: a child of this test that was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// Threads share the table, and then the kernel waits for all processors before it is larger.
#[test]
fn the_launcher_enlarges_its_table_of_descriptors_before_it_has_threads() {
    let calls = calls_of(start(&["--", "true"]).stdout(Stdio::null()));
    let place = |is_it: &dyn Fn(&[u64; 4]) -> bool| calls.iter().position(is_it);
    let command = libc::F_DUPFD_CLOEXEC as u64;
    let is_high = |call: &[u64; 4]| call[0] == libc::SYS_fcntl as u64 && call[2] == command && call[3] >= 100;
    let is_clone = |call: &[u64; 4]| [libc::SYS_clone as u64, libc::SYS_clone3 as u64].contains(&call[0]);
    let (high, clone) = (place(&is_high).expect("a high number"), place(&is_clone).expect("a program"));
    assert!(high < clone, "call {high} is a high number, and call {clone} a thread or process");
}

#[test]
fn a_command_keeps_its_arguments_directory_and_exit_status() {
    let output = run(&["--", "sh", "-c", "pwd; echo \"$0 $1\"; echo $DIRECTFS_MOUNT; exit 7", "zero", "-x --y"]);
    let here = std::env::current_dir().unwrap();
    assert_eq!(stdout(&output), format!("{}\nzero -x --y\n/mnt/directfs\n", here.display()), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(7));
    let output = run(&["-C", "/usr", "--at", "/surely/not/there", "sh", "-c", "pwd; echo $DIRECTFS_MOUNT"]);
    assert_eq!(stdout(&output), "/usr\n/surely/not/there\n", "{}", stderr(&output));
}

#[test]
fn a_command_that_dies_of_a_signal_lets_the_launcher_die_of_it() {
    heed_signals();
    let directory = scratch();
    let image = image_in(directory.path());
    for number in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV, libc::SIGINT] {
        let script = format!("ulimit -c 0; kill -{number} $$");
        let output = run(&["--image", image.to_str().unwrap(), "--", "sh", "-c", &script]);
        assert_eq!(output.status.signal(), Some(number));
    }
    assert_clean(&image);
}

#[test]
fn signals_sent_to_the_launcher_reach_the_command() {
    let directory = scratch();
    let image = image_in(directory.path());
    let script = "trap 'echo usr1; exit 9' USR1; echo ready; read answer";
    heed_signals();
    for (number, status) in [(libc::SIGUSR1, Some(9)), (libc::SIGTERM, None), (libc::SIGHUP, None)] {
        let mut command = start(&["--image", image.to_str().unwrap(), "--", "sh", "-c", script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // Kept open: `wait` would close it, and the command would see end of file.
        let _input = child.stdin.take();
        let mut output = child.stdout.take().unwrap();
        assert_eq!(line(&mut output), "ready");
        signal(&child, number);
        let ended = child.wait().unwrap();
        assert_eq!(ended.code(), status);
        assert_eq!(ended.signal(), status.is_none().then_some(number));
        assert_clean(&image);
    }
}

/// A terminal sends SIGWINCH to both itself; servers take it from others, as they take real-time
/// signals.
#[test]
fn signals_that_would_end_the_launcher_or_nobody_reach_the_command() {
    let script = "import signal; wanted = set(signal.valid_signals()) - {signal.SIGINT}; \
         signal.pthread_sigmask(signal.SIG_BLOCK, wanted); print('ready', flush=True); \
         print(signal.sigwaitinfo(wanted).si_signo, flush=True)";
    let numbers = [libc::SIGWINCH, libc::SIGURG, libc::SIGPIPE, libc::SIGIO, libc::SIGPROF, libc::SIGRTMIN() + 3];
    for number in numbers {
        let mut command = start(&["--", "python3", "-c", script]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        assert_eq!(line(&mut output), "ready");
        signal(&child, number);
        assert_eq!(line(&mut output), number.to_string());
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

/// systemd ignores SIGPIPE for its services.
#[test]
fn a_command_ignores_the_signals_that_its_starter_ignores() {
    // Without those that the C library has for itself.
    const USUAL: u64 = (1 << 31) - 1;
    let ignored = |before: &[&str]| {
        let script = [&["trap '' PIPE TERM HUP; exec \"$@\"", "sh"], before, &["grep", "SigIgn", "/proc/self/status"]];
        let output = Command::new("sh").arg("-c").args(script.concat()).output().unwrap();
        let text = stdout(&output);
        u64::from_str_radix(text.trim_start_matches("SigIgn:").trim(), 16).unwrap() & USUAL
    };
    assert_eq!(ignored(&[env!("CARGO_BIN_EXE_directfs"), "run", "--"]), ignored(&[]));
}

#[test]
fn killing_the_launcher_kills_the_command_and_the_image_recovers() {
    let directory = scratch();
    let image = image_in(directory.path());
    let image_name = image.to_str().unwrap();
    let mut command = start(&["--image", image_name, "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    assert_eq!(line(&mut output), "ready");
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    assert_eq!(output.read(&mut [0]).unwrap(), 0, "its output ends with it");
    assert_eq!(run(&["--image", image_name, "--", "true"]).status.code(), Some(0));
    assert_clean(&image);
}

#[test]
fn a_background_child_keeps_the_image_in_use_and_the_last_one_leaves_it_clean() {
    let directory = scratch();
    let image = image_in(directory.path());
    let image_name = image.to_str().unwrap();
    let (until, release) = std::io::pipe().unwrap();
    let mut command =
        start(&["--image", image_name, "--", "sh", "-c", "exec 3<&0; (read x <&3) >/dev/null 2>&1 & echo done"]);
    let output = command.stdin(Stdio::from(OwnedFd::from(until))).output().unwrap();
    assert_eq!(stdout(&output), "done\n", "the command's end is the run's end");
    let busy = directfs(&["mkfs", image_name, "--size", "16M", "--force"]);
    assert!(!busy.status.success() && stderr(&busy).contains("in use"), "{}", stderr(&busy));
    // Other processes can use the image meanwhile.
    assert_eq!(run(&["--image", image_name, "--", "true"]).status.code(), Some(0));
    drop(release);
    // An exclusive open waits for the other users, which end now.
    let patient =
        image::OpenImage { exclusive: true, timeout: std::time::Duration::from_secs(600), ..Default::default() };
    let opened = image::Image::open(&image, &patient).unwrap();
    assert!(!opened.report().unwrap().scanned, "it was left clean");
    drop(opened);
    assert_clean(&image);
}

#[test]
fn what_is_in_memory_leaves_nothing_behind() {
    // Each kind of name that programs cause in the runtime directory.
    let objects = "import fcntl, os, socket; socket.socket(socket.AF_UNIX).bind('socket'); \
         fcntl.fcntl(os.open('leased', os.O_CREAT | os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)";
    let script = format!("mkfifo pipe; echo through >pipe & cat pipe; python3 -c \"{objects}\"; echo $$; read end");
    let mut command = start(&["--size", "64M", "-C", "/mnt/directfs", "--", "sh", "-c", &script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut answers = child.stdout.take().unwrap();
    assert_eq!(line(&mut answers), "through");
    let runtime = runtime_directory_of(&line(&mut answers));
    assert!(runtime.exists(), "{}", runtime.display());
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(!runtime.exists(), "{}", runtime.display());
}

#[test]
fn a_background_program_keeps_an_image_in_memory_until_it_ends() {
    let script = "cd $DIRECTFS_MOUNT; mkfifo pipe; (read end <pipe; echo ended; exec >&-) & echo $!; echo $$";
    let mut command = start(&["--size", "64M", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut answers = child.stdout.take().unwrap();
    let background = line(&mut answers);
    line(&mut answers);
    let runtime = runtime_directory_of(&background);
    child.wait().unwrap();
    assert!(runtime.exists(), "the program in the background uses it");
    Command::new("kill").arg(&background).status().unwrap();
    // A helper process removes it when it sees the end.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(600);
    while runtime.exists() && std::time::Instant::now() < end {
        std::thread::yield_now();
    }
    assert!(!runtime.exists(), "{}", runtime.display());
}

/// The runtime directory of a process whose working directory is in the mount: for the kernel it is
/// a removed directory below the runtime directory.
pub fn runtime_directory_of(process: &str) -> PathBuf {
    let void = fs::read_link(format!("/proc/{process}/cwd")).unwrap();
    let runtime = void.ancestors().nth(2).expect("two directories above").to_owned();
    assert!(runtime.file_name().unwrap().to_str().unwrap().starts_with("directfs-"), "{}", void.display());
    runtime
}

/// A command on a terminal of its own, as its foreground process group.
struct Terminal {
    master: File,
    child: Child,
}

impl Terminal {
    fn run(mut command: Command) -> Terminal {
        let (mut master, mut slave) = (0, 0);
        // SAFETY: two places for descriptors, and no settings.
        let made = unsafe {
            libc::openpty(&raw mut master, &raw mut slave, std::ptr::null_mut(), std::ptr::null(), std::ptr::null())
        };
        assert_eq!(made, 0);
        // SAFETY: two new descriptors that belong to this function.
        let (master, slave) = unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) };
        let end = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: plain system calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        Terminal { master, child: command.spawn().unwrap() }
    }

    fn type_in(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Reads until `wanted` appears.
    fn expect(&mut self, wanted: &str) {
        let mut seen = Vec::new();
        let mut byte = [0];
        while !String::from_utf8_lossy(&seen).contains(wanted) {
            match self.master.read(&mut byte) {
                Ok(1) => seen.push(byte[0]),
                _ => panic!("{wanted:?} did not come: {}", String::from_utf8_lossy(&seen)),
            }
        }
    }
}

#[test]
fn an_interrupt_from_the_terminal_ends_the_command_and_leaves_the_image_clean() {
    heed_signals();
    let directory = scratch();
    let image = image_in(directory.path());
    let arguments = ["--image", image.to_str().unwrap(), "--", "sh", "-c", "echo rea''dy; exec sleep 1000"];
    let mut terminal = Terminal::run(start(&arguments));
    terminal.expect("ready");
    terminal.type_in("\x03");
    assert_eq!(terminal.child.wait().unwrap().signal(), Some(libc::SIGINT));
    assert_clean(&image);
}

#[test]
fn a_command_that_handles_the_interrupt_decides_itself() {
    heed_signals();
    let mut terminal =
        Terminal::run(start(&["--", "sh", "-c", "trap 'echo caught; exit 4' INT; echo rea''dy; read answer"]));
    terminal.expect("ready");
    terminal.type_in("\x03");
    terminal.expect("caught");
    assert_eq!(terminal.child.wait().unwrap().code(), Some(4));
}

#[test]
fn a_shell_stops_it_and_lets_it_go_on() {
    let mut shell = Command::new("bash");
    shell.args(["--norc", "--noprofile", "-i"]).env("PS1", "prompt> ").env("TERM", "dumb");
    let mut terminal = Terminal::run(shell);
    terminal.expect("prompt> ");
    let binary = env!("CARGO_BIN_EXE_directfs");
    terminal.type_in(&format!("{binary} run -- sh -c 'echo rea\"\"dy; read answer; echo got $answer; exit 3'\n"));
    terminal.expect("ready");
    terminal.type_in("\x1a");
    terminal.expect("Stopped");
    terminal.expect("prompt> ");
    terminal.type_in("fg\n");
    terminal.expect("read answer");
    terminal.type_in("word\n");
    terminal.expect("got word");
    terminal.expect("prompt> ");
    terminal.type_in("echo status $?\n");
    terminal.expect("status 3");
    terminal.type_in("exit\n");
    terminal.child.wait().unwrap();
}

#[test]
fn what_cannot_be_run_is_refused_with_the_codes_of_env() {
    let directory = scratch();
    let file = directory.path().join("data");
    fs::write(&file, "neither program nor script").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let file = file.to_str().unwrap();
    let below = format!("{file}/below");
    let image = image_in(directory.path());
    let image = image.to_str().unwrap();
    for (arguments, code, said) in [
        (&["--", "no-such-program"][..], 127, "command not found"),
        (&["--", "/no/such/program"], 127, "command not found"),
        (&["--", file], 126, "neither"),
        (&[image, "--", "true"], 126, "directfs run --image"),
        (&["--image", "/no/such/image", "--", "true"], 125, "does not exist"),
        (&["--image", file, "--", "true"], 125, "is not a DirectFS image"),
        (&["--at", "relative", "--", "true"], 125, "not absolute"),
        (&["--at", "/", "--", "true"], 125, "root"),
        (&["--at", &below, "--", "true"], 125, "not a directory"),
        (&["-C", "/no/such/directory", "--", "true"], 125, "cannot start in"),
        (&["-C", "/mnt/directfs/none", "--", "true"], 125, "cannot start in"),
        (&["--size", "1K", "--", "true"], 125, "larger size"),
        (&["--size", "1G", "--image", file, "--", "true"], 125, "cannot be used with"),
        (&["--no-such-option"], 125, "unexpected argument"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{arguments:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{arguments:?}");
    }
}

#[test]
fn an_image_in_exclusive_use_is_refused() {
    let directory = scratch();
    let image = image_in(directory.path());
    let alone = image::OpenImage { exclusive: true, ..Default::default() };
    let _kept = image::Image::open(&image, &alone).unwrap();
    let output = run(&["--image", image.to_str().unwrap(), "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("cache=0"), "{}", stderr(&output));
}

/// The file of the DRAM region of an image in use: the superblock names its directory.
fn region_of(image: &Path) -> PathBuf {
    const NAME_OFFSET: u64 = 256;
    let mut name = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&File::open(image).unwrap(), &mut name, NAME_OFFSET).unwrap();
    PathBuf::from(format!("/dev/shm/directfs-{:016x}/region", u64::from_le_bytes(name)))
}

#[test]
fn an_image_in_use_by_another_version_is_refused() {
    const VERSION_OFFSET: u64 = 8;
    let directory = scratch();
    let image = image_in(directory.path());
    let _kept = image::Image::open(&image, &image::OpenImage::default()).unwrap();
    let region = File::options().write(true).open(region_of(&image)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&region, &u64::MAX.to_ne_bytes(), VERSION_OFFSET).unwrap();
    let output = run(&["--image", image.to_str().unwrap(), "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("version"), "{}", stderr(&output));
}

#[test]
fn an_image_of_another_format_version_is_refused() {
    const VERSION_OFFSET: u64 = 88;
    let directory = scratch();
    let image = image_in(directory.path());
    let file = File::options().write(true).open(&image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &77u64.to_le_bytes(), VERSION_OFFSET).unwrap();
    let output = run(&["--image", image.to_str().unwrap(), "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("format version 77"), "{}", stderr(&output));
}

#[test]
fn what_becomes_another_c_library_on_the_way_is_refused() {
    let (directory, output) = (scratch(), std::process::Command::new("cc").arg("--version").output());
    if output.is_err() {
        eprintln!("\n*** SKIPPED: there is no C compiler on this machine ***\n");
        return;
    }
    // A C library with an unknown build-id: its calls are not analysed.
    let library = directory.path().join("libc.so.6");
    let Ok(bytes) = fs::read("/lib/x86_64-linux-gnu/libc.so.6") else {
        eprintln!("\n*** SKIPPED: the C library is elsewhere ***\n");
        return;
    };
    fs::write(&library, with_new_build_id(bytes)).unwrap();
    let script = format!("LD_LIBRARY_PATH={} /bin/echo wrong; echo status $?", directory.path().display());
    let output = run(&["--", "/bin/sh", "-c", &script]);
    assert_eq!(stdout(&output), "status 126\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("C library is not the one"), "{}", stderr(&output));
}

#[test]
fn a_mount_and_programs_with_the_image_inside_them_see_each_others_changes_at_once() {
    if !crate::support::can_mount("a mount beside a run") {
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let mount = directory.path().join("mount");
    fs::create_dir(&mount).unwrap();
    let (image_name, mount_name) = (image.to_str().unwrap(), mount.to_str().unwrap());
    let mounted = directfs(&["mount", image_name, mount_name, "-o", "cache=0"]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    // A shell that executes one line at a time.
    let mut command = start(&["--image", image_name, "-C", "/mnt/directfs", "--", "sh", "-c"]);
    command.arg("while read -r line; do eval \"$line\"; echo \"done $?\"; done");
    let mut inside = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut orders, mut answers) = (inside.stdin.take().unwrap(), inside.stdout.take().unwrap());
    let mut tell = |order: &str| -> Vec<String> {
        writeln!(orders, "{order}").unwrap();
        let mut result = Vec::new();
        loop {
            let answer = line(&mut answers);
            if answer.starts_with("done ") {
                result.push(answer);
                return result;
            }
            result.push(answer);
        }
    };
    let path = |name: &str| mount.join(name);
    for round in 0..20 {
        let name = format!("file{round}");
        assert_eq!(tell(&format!("test -e {name}")), ["done 1"]);
        fs::write(path(&name), format!("from the mount {round}\n")).unwrap();
        assert_eq!(tell(&format!("cat {name}")), [format!("from the mount {round}"), "done 0".into()]);
        assert_eq!(tell(&format!("echo from inside {round} >>{name}; chmod 640 {name}")), ["done 0"]);
        let content = fs::read_to_string(path(&name)).unwrap();
        assert_eq!(content, format!("from the mount {round}\nfrom inside {round}\n"));
        assert_eq!(fs::metadata(path(&name)).unwrap().permissions().mode() & 0o777, 0o640);
        fs::rename(path(&name), path("renamed")).unwrap();
        assert_eq!(tell(&format!("test -e {name}; echo $?; ls")).first().unwrap(), "1");
        assert_eq!(tell("mv renamed again; mkdir directory; ln -s again directory/link"), ["done 0"]);
        assert!(!path("renamed").exists() && path("directory").is_dir());
        assert_eq!(fs::read_link(path("directory/link")).unwrap(), Path::new("again"));
        fs::write(path("again"), "short").unwrap();
        assert_eq!(tell("cat again; echo; : >again"), ["short", "done 0"]);
        assert_eq!(fs::metadata(path("again")).unwrap().len(), 0);
        fs::remove_file(path("directory/link")).unwrap();
        assert_eq!(tell("rmdir directory; rm again; ls"), ["done 0"]);
        assert_eq!(fs::read_dir(&mount).unwrap().count(), 0);
        // A file that one side has open and the other removes stays usable for the first.
        let mut kept = File::options().read(true).write(true).create(true).truncate(false).open(path("kept")).unwrap();
        assert_eq!(tell("echo kept >>kept; rm kept"), ["done 0"]);
        let mut content = String::new();
        kept.read_to_string(&mut content).unwrap();
        assert_eq!(content, "kept\n");
    }
    drop(orders);
    assert!(inside.wait().unwrap().success());
    unmount(&mount);
    assert_clean(&image);
}

/// The program calls statfs with an inline syscall, as Rust programs may do.
#[test]
fn a_program_that_bypasses_the_c_library_works_on_files_of_the_mount() {
    let script = format!(
        "cd $DIRECTFS_MOUNT && {0} mkfs inner --size 1M >/dev/null && {0} fsck -n inner >/dev/null && stat -c %s inner",
        env!("CARGO_BIN_EXE_directfs")
    );
    let output = run(&["--", "sh", "-c", &script]);
    assert_eq!(stdout(&output), "1048576\n", "{}", stderr(&output));
}

#[test]
fn a_limit_on_file_sizes_is_the_programs_and_not_the_images() {
    let limited = |limit: &str, command: &str| {
        let script = format!("ulimit {limit} 100; exec {} {command}", env!("CARGO_BIN_EXE_directfs"));
        Command::new("bash").args(["-c", &script]).output().unwrap()
    };
    let output = limited("-S -f", "run --size 64M -- bash -c 'ulimit -S -f'");
    assert_eq!(stdout(&output), "100\n", "{}", stderr(&output));
    // Beyond the hard limit there is a message, and no death by SIGXFSZ.
    let directory = scratch();
    let image = directory.path().join("image");
    for command in ["run --size 64M -- true", &format!("mkfs {} --size 64M", image.display())] {
        let output = limited("-f", command);
        assert!(output.status.code().is_some(), "{command}: {:?}", output.status);
        assert!(stderr(&output).contains("ulimit -f"), "{command}: {}", stderr(&output));
    }
}

#[test]
fn a_limit_of_the_address_space_leaves_small_images_usable() {
    let directory = scratch();
    let work = "cd $DIRECTFS_MOUNT && echo kept >a && bash -c 'cat a | cat >b' && sync b && cat b";
    let limited = |command: &str| {
        let script = format!("ulimit -v 2000000; exec \"$0\" run {command} -- bash -c \"$1\"");
        let output = Command::new("bash").args(["-c", &script, env!("CARGO_BIN_EXE_directfs"), work]).output().unwrap();
        assert_eq!(
            (stdout(&output).as_str(), output.status.code()),
            ("kept\n", Some(0)),
            "{command}: {}",
            stderr(&output)
        );
    };
    let image = image_in(directory.path());
    limited("--size 100M");
    limited(&format!("--image {}", image.display()));
    let output = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stdout(&output));
}

#[test]
fn a_run_inside_a_run_is_refused() {
    let output = run(&["--", env!("CARGO_BIN_EXE_directfs"), "run", "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("already"), "{}", stderr(&output));
}

#[test]
fn programs_see_no_descriptor_of_the_launcher_or_of_the_library() {
    let output = run(&["--", "sh", "-c", "for fd in /proc/self/fd/*; do readlink $fd; done"]);
    assert!(!stdout(&output).is_empty() && !stdout(&output).contains("memfd:"), "{}", stdout(&output));
    let none = File::open("/dev/null").unwrap();
    assert!(none.as_raw_fd() < 1000, "numbers that programs use stay theirs");
}

/// The runtime of this command opens /dev/null at their numbers, for itself alone.
#[test]
fn standard_descriptors_that_are_closed_stay_closed() {
    let own = env!("CARGO_BIN_EXE_directfs");
    for closed in ["<&-", "<&- >&-"] {
        let script = format!("exec {own} run -- sh -c 'readlink /proc/$$/fd/0; echo status $? >&2' {closed}");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("", "status 1\n"), "{closed}");
    }
}

/// A program in the image runs from a copy in memory.
#[test]
fn the_setting_against_programs_in_memory_stops_none_or_is_named() {
    let set = |level: u32, then: &str| {
        let script = format!("echo {level} >/proc/sys/vm/memfd_noexec && {then}");
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "sh", "-c", &script]).output().unwrap()
    };
    if !set(1, "true").status.success() {
        eprintln!("\n*** SKIPPED: vm.memfd_noexec cannot be set here ***\n");
        return;
    }
    let own = env!("CARGO_BIN_EXE_directfs");
    let run = format!("{own} run -C /mnt/directfs -- sh -c 'cp /bin/echo e; ./e runs; echo status $?'");
    let (permitted, forbidden) = (set(1, &run), set(2, &run));
    assert_eq!((stdout(&permitted).as_str(), stderr(&permitted).as_str()), ("runs\nstatus 0\n", ""));
    assert_eq!(stdout(&forbidden), "status 126\n", "{}", stderr(&forbidden));
    assert!(stderr(&forbidden).contains("vm.memfd_noexec is 2"), "{}", stderr(&forbidden));
}
