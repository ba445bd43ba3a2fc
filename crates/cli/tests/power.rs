//! Power failures under programs on an image on a disk: real file systems on loop devices, cut off
//! by their own shutdown request, after which nothing more reaches the disk.
//!
//! Each cut: programs work on the image, some of them sync, and note what an fsync acknowledged. A
//! helper makes the kernel write back random ranges of the image's file. At a random moment the
//! file system is cut off. The processes are killed, memory is lost (a private /dev/shm), the file
//! system is mounted again. Then `fsck -n` must be clean, each program finds what was acknowledged,
//! and files that were not touched since an early sync are as they were.
//!
//! `DIRECTFS_POWER_CUTS` sets the number of cuts per file system, `DIRECTFS_POWER_SEED` the seed,
//! `DIRECTFS_POWER_OPTIONS` further options of `run`: with `--no-commit` the storm must fail.

mod support;

use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const CUTS: u32 = 3;
const PROGRAMS: [&str; 6] = ["mail", "sqlite", "wal", "git", "rsync", "churn"];

/// A generator of reproducible numbers (splitmix).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A file system on a loop device.
struct Disk {
    /// In memory, so that the storm costs no real disk.
    file: PathBuf,
    point: PathBuf,
}

fn run(command: &mut Command) {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Disk {
    fn make(kind: &'static str, directory: &Path, bytes: u64) -> Disk {
        let disk = Disk { file: directory.join("disk"), point: directory.join("mounted") };
        File::create(&disk.file).unwrap().set_len(bytes).unwrap();
        std::fs::create_dir(&disk.point).unwrap();
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&disk.file));
        disk.mount();
        disk
    }

    fn mount(&self) {
        run(Command::new("mount").args(["-o", "loop"]).arg(&self.file).arg(&self.point));
    }

    /// Nothing more reaches the disk, and what the kernel has not written is lost.
    fn cut(&self) {
        const SHUTDOWN: libc::c_ulong = 0x8004_587d;
        let no_log_flush = 2u32;
        let directory = File::open(&self.point).unwrap();
        // SAFETY: the request reads a word.
        let result = unsafe { libc::ioctl(directory.as_raw_fd(), SHUTDOWN, &raw const no_log_flush) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    fn remount(&self) {
        let end = Instant::now() + Duration::from_secs(30);
        // Killed processes let go of it within moments.
        while !Command::new("umount").arg(&self.point).stderr(Stdio::null()).status().unwrap().success() {
            assert!(Instant::now() < end, "{} is still in use", self.point.display());
            std::thread::yield_now();
        }
        self.mount();
    }
}

fn mount(source: &str, point: &str, kind: &str, flags: libc::c_ulong, data: &str) -> bool {
    let [source, point, kind, data] = [source, point, kind, data].map(|text| CString::new(text).unwrap());
    // SAFETY: four strings.
    unsafe { libc::mount(source.as_ptr(), point.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) == 0 }
}

/// Gives this thread, and the processes that it starts, mounts of its own.
fn enter_private_mounts() -> bool {
    // SAFETY: concerns this thread alone.
    let own = unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS) } == 0;
    own && mount("none", "/", "", libc::MS_REC | libc::MS_PRIVATE, "") && mount("tmpfs", "/dev/shm", "tmpfs", 0, "")
}

/// As a power failure does with what is in memory.
fn lose_memory() {
    // SAFETY: unmounts the file system of this thread's own mounts.
    unsafe { libc::umount2(c"/dev/shm".as_ptr(), libc::MNT_DETACH) };
    assert!(mount("tmpfs", "/dev/shm", "tmpfs", 0, ""));
}

/// A program on the image, and the thread that notes what it acknowledges.
struct Program {
    kind: &'static str,
    child: Child,
    lines: mpsc::Receiver<String>,
}

struct Storm {
    image: String,
    script: PathBuf,
    options: Vec<String>,
}

impl Storm {
    fn command(&self, what: &str, kind: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["run", "--image", &self.image]).args(&self.options).args(["--", "python3"]);
        command.arg(&self.script).args([what, kind, &format!("/mnt/directfs/{kind}")]);
        command
    }

    fn start(&self, kind: &'static str) -> Program {
        let mut child =
            self.command("work", kind).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Program { kind, child, lines }
    }

    /// What is wrong according to a program's own check.
    fn check(&self, kind: &str, acknowledged: &[String]) -> Option<String> {
        let mut child = self.command("check", kind).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(acknowledged.join("\n").as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (!output.status.success() || !text.is_empty()).then(|| format!("{kind} ({}): {text}", output.status))
    }

    /// Works until a random moment, and cuts the disk off. Returns what was acknowledged.
    fn interrupted(&self, disk: &Disk, random: &mut Random) -> Vec<(&'static str, Vec<String>)> {
        let mut programs: Vec<Program> = PROGRAMS.into_iter().map(|kind| self.start(kind)).collect();
        let file = File::options().read(true).write(true).open(&self.image).unwrap();
        let (length, stop) = (file.metadata().unwrap().len(), AtomicBool::new(false));
        let work_ms = 300 + random.below(1500);
        let mut other = Random(random.next());
        std::thread::scope(|scope| {
            scope.spawn(|| write_back(&file, length, &mut other, &stop));
            // The moment of the cut is what the storm varies; no condition ends this wait.
            std::thread::sleep(Duration::from_millis(work_ms));
            disk.cut();
            stop.store(true, Relaxed);
        });
        for program in &mut programs {
            // Of the launcher; its programs die with it.
            program.child.kill().unwrap();
            program.child.wait().unwrap();
        }
        // The reader of each pipe has ended when all that have the pipe open have.
        programs.into_iter().map(|program| (program.kind, program.lines.iter().collect())).collect()
    }
}

/// Makes the kernel write back random ranges of a file.
fn write_back(file: &File, length: u64, random: &mut Random, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        let (at, bytes) = (random.below(length), 4096 << random.below(12));
        // SAFETY: an open file.
        unsafe { libc::sync_file_range(file.as_raw_fd(), at as i64, bytes, libc::SYNC_FILE_RANGE_WRITE) };
        std::thread::yield_now();
    }
}

/// Cuts a file system off under programs, time and again. Returns the violations.
fn storm(kind: &'static str) -> Option<Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    if !enter_private_mounts() || Command::new(format!("mkfs.{kind}")).arg("-V").output().is_err() {
        eprintln!("\n*** SKIPPED: power failures on {kind}: this needs root and mkfs.{kind} ***\n");
        return None;
    }
    let seed = number("DIRECTFS_POWER_SEED", u64::from(std::process::id()));
    let cuts = number("DIRECTFS_POWER_CUTS", CUTS.into());
    println!("{kind}: seed {seed}, {cuts} cuts");
    let mut random = Random(seed);
    let disk = Disk::make(kind, directory.path(), 1 << 30);
    let image = disk.point.join("image");
    let image = image.to_str().unwrap().to_owned();
    let options = std::env::var("DIRECTFS_POWER_OPTIONS").unwrap_or_default();
    let options = options.split_whitespace().map(str::to_owned).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power/work.py");
    let storm = Storm { image, script, options };
    run(Command::new(env!("CARGO_BIN_EXE_directfs")).args(["mkfs", "--size", "192M", &storm.image]));
    run(&mut storm.command("work", "untouched"));
    run(&mut Command::new("sync"));
    let (mut violations, mut acknowledged_in_all) = (Vec::new(), 0);
    for cut in 0..cuts {
        let acknowledged = storm.interrupted(&disk, &mut random);
        acknowledged_in_all += acknowledged.iter().map(|(_, lines)| lines.len()).sum::<usize>();
        lose_memory();
        disk.remount();
        let before = violations.len();
        let checked = support::directfs(&["fsck", "-n", &storm.image]);
        if !checked.status.success() {
            violations.push(format!("fsck: {}{}", support::stdout(&checked), support::stderr(&checked)));
        }
        let programs = acknowledged.iter().map(|(kind, lines)| (*kind, lines.as_slice()));
        for (program, lines) in programs.chain([("untouched", &[][..])]) {
            violations.extend(storm.check(program, lines));
        }
        for violation in &mut violations[before..] {
            violation.truncate(2000);
            *violation = format!("{kind}, seed {seed}, cut {cut}: {violation}");
        }
        if violations.len() > before {
            // What is damaged stays damaged: a new image for the next cut.
            run(Command::new(env!("CARGO_BIN_EXE_directfs")).args(["mkfs", "--force", "--size", "192M", &storm.image]));
            run(&mut storm.command("work", "untouched"));
        }
    }
    run(Command::new("umount").arg(&disk.point));
    println!("{kind}: {cuts} cuts, {acknowledged_in_all} acknowledged, {} violations", violations.len());
    assert!(acknowledged_in_all as u64 > cuts, "the programs hardly worked");
    Some(violations)
}

#[test]
fn a_power_failure_on_ext4_loses_nothing_that_was_synced() {
    if let Some(violations) = storm("ext4") {
        assert!(violations.is_empty(), "{}", violations.join("\n"));
    }
}

#[test]
fn a_power_failure_on_xfs_loses_nothing_that_was_synced() {
    if let Some(violations) = storm("xfs") {
        assert!(violations.is_empty(), "{}", violations.join("\n"));
    }
}

#[test]
fn a_full_disk_is_reported_and_nothing_that_was_committed_is_hurt() {
    let directory = tempfile::tempdir().unwrap();
    if !enter_private_mounts() {
        eprintln!("\n*** SKIPPED: a full disk: this needs root ***\n");
        return;
    }
    let disk = Disk::make("ext4", directory.path(), 64 << 20);
    let (image, other) = (disk.point.join("image"), disk.point.join("other"));
    let (image, other) = (image.to_str().unwrap(), other.to_str().unwrap());
    let filler = disk.point.join("filler");
    let run = |image: &str, script: &str| {
        support::directfs(&["run", "--image", image, "-C", "/mnt/directfs", "--", "bash", "-c", script])
    };
    for image in [image, other] {
        assert!(support::directfs(&["mkfs", "--size", "32M", "--sparse", image]).status.success());
    }
    assert!(run(image, "echo first >a; sync a").status.success());
    // No space for the journal of an image that has none.
    assert!(
        !Command::new("dd")
            .args(["if=/dev/zero", "bs=64k"])
            .arg(format!("of={}", filler.display()))
            .output()
            .unwrap()
            .status
            .success()
    );
    let refused = run(other, "true");
    assert!(support::stderr(&refused).contains("no space for it"), "{}", support::stderr(&refused));
    let script = format!(
        "dd if=/dev/urandom of=big bs=1M count=9 conv=fsync status=none 2>&1; echo $?; cat a; rm {}
         sync big; echo $?; sha256sum <big; echo >later",
        filler.display()
    );
    let worked = run(image, &script);
    let text = support::stdout(&worked);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 5 && lines[0].contains("No space left on device"), "{text}{}", support::stderr(&worked));
    assert_eq!((lines[1], lines[2], lines[3]), ("1", "first", "0"), "{text}");
    disk.cut();
    lose_memory();
    disk.remount();
    let checked = support::directfs(&["fsck", "-n", image]);
    assert!(checked.status.success(), "{}", support::stdout(&checked));
    assert_eq!(support::stdout(&run(image, "sha256sum <big")).trim(), lines[4]);
    self::run(Command::new("umount").arg(&disk.point));
}
