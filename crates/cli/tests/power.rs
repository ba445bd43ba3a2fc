//! Power failures under programs on an image on a disk: real file systems on loop devices. They are
//! cut off in two ways: by their own shutdown request, after which nothing more reaches the disk;
//! and by a disk with a cache ([`store`]), which loses a part of what was not flushed.
//!
//! Each cut: programs work on the image, some of them sync, and note what an fsync acknowledged. A
//! helper makes the kernel write back random ranges of the image's file, and in half of the cuts
//! another one makes the image larger meanwhile. At a random moment the
//! file system is cut off. The processes are killed, memory is lost (a private /dev/shm, another
//! boot id), the file system is mounted again. Then `fsck -n` must be clean, each program finds
//! what was acknowledged, and files that were not touched since an early sync are as they were. In
//! every other cut the working copy is a file on the disk, as of an image larger than the memory.
//!
//! `DIRECTFS_POWER_CUTS` sets the number of cuts per file system, `DIRECTFS_POWER_SEED` the seed,
//! `DIRECTFS_POWER_OPTIONS` the options of `run`: with `--no-commit` the storm must fail on ext4
//! and xfs. (On btrfs little but an fsync brings a file's pages to the disk.)

#[allow(dead_code, reason = "another test uses the rest")]
#[path = "power/store.rs"]
mod store;
mod support;

use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};
use store::{Lost, Random, Store, enter_private_mounts, mount};

/// Cuts of each storm.
const CUTS: u32 = 2;
const PROGRAMS: [&str; 6] = ["mail", "sqlite", "wal", "git", "rsync", "churn"];

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// How a power failure comes about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// By the file system's shutdown request, which btrfs does not have.
    Shutdown,
    /// By a disk with a cache, which keeps or loses pieces of so many bytes.
    Cache { piece_bytes: usize },
}

/// A file system on a loop device.
struct Disk {
    /// In memory, so that the storm costs no real disk.
    file: PathBuf,
    point: PathBuf,
    store: Option<Store>,
    piece_bytes: usize,
}

/// Whether the test can make and mount such a file system.
fn can_make(kind: &str) -> bool {
    enter_private_mounts() && Command::new(format!("mkfs.{kind}")).arg("-V").output().is_ok()
}

fn run(command: &mut Command) {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Disk {
    /// `None`: the kernel has no FUSE.
    fn make(kind: &'static str, cut: Cut, directory: &Path, bytes: usize) -> Option<Disk> {
        let (file, point) = (directory.join("disk"), directory.join("mounted"));
        let (store, piece_bytes) = match cut {
            Cut::Shutdown => {
                File::create(&file).unwrap().set_len(bytes as u64).unwrap();
                (None, 0)
            }
            Cut::Cache { piece_bytes } => (Some(Store::serve(&file, bytes, bytes)?), piece_bytes),
        };
        std::fs::create_dir(&point).unwrap();
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&file));
        let disk = Disk { file, point, store, piece_bytes };
        disk.mount();
        Some(disk)
    }

    fn mount(&self) {
        run(Command::new("mount").args(["-o", "loop"]).arg(&self.file).arg(&self.point));
    }

    /// Nothing more reaches the disk, and what the kernel has not written is lost.
    fn cut(&self, random: &mut Random) {
        const SHUTDOWN: libc::c_ulong = 0x8004_587d;
        if let Some(store) = &self.store {
            return store.cut(random, self.piece_bytes);
        }
        let no_log_flush = 2u32;
        let directory = File::open(&self.point).unwrap();
        // SAFETY: the request reads a word.
        let result = unsafe { libc::ioctl(directory.as_raw_fd(), SHUTDOWN, &raw const no_log_flush) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// Returns what was lost of the cache.
    fn remount(&self) -> Lost {
        self.unmount();
        let lost = self.store.as_ref().map(Store::power_on).unwrap_or_default();
        self.mount();
        lost
    }

    fn unmount(&self) {
        let end = Instant::now() + Duration::from_secs(600);
        // Killed processes let go of it within moments.
        while !Command::new("umount").arg(&self.point).stderr(Stdio::null()).status().unwrap().success() {
            assert!(Instant::now() < end, "{} is still in use", self.point.display());
            std::thread::yield_now();
        }
    }
}

impl Drop for Disk {
    /// After a failed test as well, so that its directory can be removed.
    fn drop(&mut self) {
        let point = CString::new(self.point.to_str().unwrap()).unwrap();
        // SAFETY: a string.
        unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) };
    }
}

/// As a power failure does with what is in memory. The kernel has another boot id after it, as this
/// thread's processes see it.
fn lose_memory(directory: &Path, random: &mut Random) {
    const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
    let file = directory.join("boot_id");
    let is_first = !file.exists();
    std::fs::write(&file, format!("{:016x}-{:015x}\n", random.next(), random.next() >> 4)).unwrap();
    assert!(!is_first || mount(file.to_str().unwrap(), BOOT_ID, "", libc::MS_BIND, ""));
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

/// Lines that programs acknowledged.
#[derive(Default)]
struct Progress {
    lines: Mutex<u64>,
    changed: Condvar,
}

impl Progress {
    fn add_one(&self) {
        *self.lines.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    /// Returns when there are so many, or after some seconds: a slow disk acknowledges few, and a
    /// check is as good after few as after many.
    fn wait_for(&self, lines: u64) {
        let time = Duration::from_secs(5);
        let found = self.lines.lock().unwrap();
        drop(self.changed.wait_timeout_while(found, time, |found| *found < lines).unwrap());
    }
}

struct Storm {
    image: String,
    script: PathBuf,
    options: Vec<String>,
    /// Bytes that the image may have.
    sizes: Vec<u64>,
}

/// By so much the image grows.
const GROWTH_BYTES: u64 = 3 << 20;

impl Storm {
    /// Bytes of the image now.
    fn length(&self) -> u64 {
        let output = support::directfs(&["info", &self.image, "--json"]);
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("an image");
        value["length"].as_u64().unwrap()
    }

    fn command(&self, what: &str, kind: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["run", "--image", &self.image]).args(&self.options).args(["--", "python3"]);
        command.arg(&self.script).args([what, kind, &format!("/mnt/directfs/{kind}")]);
        command
    }

    /// Makes the image, and what no program touches later.
    fn prepare(&self) {
        run(Command::new(env!("CARGO_BIN_EXE_directfs")).args(["mkfs", "--force", "--size", "192M", &self.image]));
        run(&mut self.command("work", "untouched"));
        run(&mut Command::new("sync"));
    }

    /// What is wrong after a power failure.
    fn violations(&self, acknowledged: &[(&'static str, Vec<String>)]) -> Vec<String> {
        let checked = support::directfs(&["fsck", "-n", &self.image]);
        let of_image = (!checked.status.success())
            .then(|| format!("fsck: {}{}", support::stdout(&checked), support::stderr(&checked)));
        let programs = acknowledged.iter().map(|(kind, lines)| (*kind, lines.as_slice()));
        let length = self.length();
        let of_size = (!self.sizes.contains(&length)).then(|| format!("{length} bytes, and not {:?}", self.sizes));
        let of_programs = programs.chain([("untouched", &[][..])]).filter_map(|(kind, lines)| self.check(kind, lines));
        of_image.into_iter().chain(of_size).chain(of_programs).collect()
    }

    fn start(&self, kind: &'static str, progress: &Arc<Progress>) -> Program {
        let mut child =
            self.command("work", kind).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        let progress = progress.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
                progress.add_one();
            }
        });
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
    fn interrupted(&self, disk: &Disk, random: &mut Random, grows: bool) -> Vec<(&'static str, Vec<String>)> {
        let progress = Arc::default();
        let mut programs: Vec<Program> = PROGRAMS.into_iter().map(|kind| self.start(kind, &progress)).collect();
        let file = File::options().read(true).write(true).open(&self.image).unwrap();
        let (length, stop) = (file.metadata().unwrap().len(), AtomicBool::new(false));
        let (lines, more_ms) = (random.below(150), random.below(300));
        let mut other = Random(random.next());
        std::thread::scope(|scope| {
            scope.spawn(|| write_back(&file, length, &mut other, &stop));
            progress.wait_for(lines / 2);
            if grows {
                scope.spawn(|| {
                    let size = format!("+{GROWTH_BYTES}");
                    support::directfs(&["resize", &self.image, &size])
                });
            }
            progress.wait_for(lines);
            // The moment of the cut is what the storm varies; no condition ends this wait.
            std::thread::sleep(Duration::from_millis(more_ms));
            disk.cut(random);
            stop.store(true, Relaxed);
        });
        for program in &mut programs {
            // The child is the launcher; its programs die with it.
            program.child.kill().unwrap();
            program.child.wait().unwrap();
        }
        // The reader of each pipe has ended when all that have the pipe open have.
        programs.into_iter().map(|program| (program.kind, program.lines.iter().collect())).collect()
    }
}

/// Makes the kernel write back random ranges of a file: an image with its journal.
fn write_back(file: &File, length: u64, random: &mut Random, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        let (at, bytes) = (random.below(length), 4096 << random.below(12));
        // SAFETY: an open file.
        unsafe { libc::sync_file_range(file.as_raw_fd(), at as i64, bytes, libc::SYNC_FILE_RANGE_WRITE) };
        // A pace: the programs need the processors, too.
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Cuts a file system off under programs, time and again. Returns the violations.
fn storm(kind: &'static str, cut: Cut) -> Option<Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    let is_possible = can_make(kind);
    let Some(disk) = is_possible.then(|| Disk::make(kind, cut, directory.path(), 1 << 30)).flatten() else {
        eprintln!("\n*** SKIPPED: power failures on {kind}: this needs root, FUSE and mkfs.{kind} ***\n");
        return None;
    };
    let seed = number("DIRECTFS_POWER_SEED", u64::from(std::process::id()));
    let cuts = number("DIRECTFS_POWER_CUTS", CUTS.into());
    println!("{kind}, {cut:?}: seed {seed}, {cuts} cuts");
    let mut random = Random(seed);
    let image = disk.point.join("image");
    let image = image.to_str().unwrap().to_owned();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power/work.py");
    let mut storm = Storm { image, script, options: Vec::new(), sizes: Vec::new() };
    let flushes = || disk.store.as_ref().map(Store::flushes);
    let flushes_before = flushes();
    storm.prepare();
    assert!(flushes_before.is_none() || flushes_before < flushes(), "an fsync on the file system flushes its disk");
    let (mut violations, mut acknowledged_in_all, mut lost_in_all) = (Vec::new(), 0, Lost::default());
    let mut grown = 0;
    for cut in 0..cuts {
        storm.options = options(cut);
        let (length, grows) = (storm.length(), random.below(2) == 0);
        storm.sizes = vec![length, length + if grows { GROWTH_BYTES } else { 0 }];
        let acknowledged = storm.interrupted(&disk, &mut random, grows);
        acknowledged_in_all += acknowledged.iter().map(|(_, lines)| lines.len()).sum::<usize>();
        lose_memory(directory.path(), &mut random);
        let lost = disk.remount();
        grown += u32::from(grows && storm.length() == storm.sizes[1]);
        lost_in_all.pieces += lost.pieces;
        lost_in_all.kept_pieces += lost.kept_pieces;
        let found = storm.violations(&acknowledged);
        if !found.is_empty() {
            // What is damaged stays damaged: a new image for the next cut.
            storm.prepare();
        }
        violations.extend(found.into_iter().map(|mut violation| {
            violation.truncate(2000);
            format!("{kind}, seed {seed}, cut {cut}: {violation}")
        }));
    }
    disk.unmount();
    println!(
        "{kind}: {cuts} cuts, {acknowledged_in_all} acknowledged, {grown} growths, {} violations; {lost_in_all:?}",
        violations.len()
    );
    assert!(acknowledged_in_all as u64 > cuts, "the programs hardly worked");
    Some(violations)
}

/// The options of `run` for a cut.
fn options(cut: u64) -> Vec<String> {
    match std::env::var("DIRECTFS_POWER_OPTIONS") {
        Ok(options) => options.split_whitespace().map(str::to_owned).collect(),
        Err(_) if cut % 2 == 1 => ["--memory", "1M"].map(str::to_owned).into(),
        Err(_) => Vec::new(),
    }
}

fn expect_no_violation(kind: &'static str, cut: Cut) {
    if let Some(violations) = storm(kind, cut) {
        assert!(violations.is_empty(), "{}", violations.join("\n"));
    }
}

#[test]
fn a_power_failure_on_ext4_loses_nothing_that_was_synced() {
    expect_no_violation("ext4", Cut::Shutdown);
}

#[test]
fn a_power_failure_on_xfs_loses_nothing_that_was_synced() {
    expect_no_violation("xfs", Cut::Shutdown);
}

#[test]
fn a_disk_under_ext4_that_loses_its_cache_loses_nothing_that_was_synced() {
    expect_no_violation("ext4", Cut::Cache { piece_bytes: 512 });
}

#[test]
fn a_disk_under_xfs_that_loses_its_cache_loses_nothing_that_was_synced() {
    expect_no_violation("xfs", Cut::Cache { piece_bytes: 512 });
}

#[test]
fn a_disk_under_btrfs_that_loses_its_cache_loses_nothing_that_was_synced() {
    expect_no_violation("btrfs", Cut::Cache { piece_bytes: 4096 });
}

#[test]
fn a_full_disk_is_reported_and_nothing_that_was_committed_is_hurt() {
    let directory = tempfile::tempdir().unwrap();
    if !can_make("ext4") {
        eprintln!("\n*** SKIPPED: a full disk: this needs root and mkfs.ext4 ***\n");
        return;
    }
    let disk = Disk::make("ext4", Cut::Shutdown, directory.path(), 64 << 20).unwrap();
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
    let mut random = Random(1);
    disk.cut(&mut random);
    lose_memory(directory.path(), &mut random);
    disk.remount();
    let checked = support::directfs(&["fsck", "-n", image]);
    assert!(checked.status.success(), "{}", support::stdout(&checked));
    assert_eq!(support::stdout(&run(image, "sha256sum <big")).trim(), lines[4]);
    disk.unmount();
}

#[test]
fn changes_that_a_full_disk_cannot_take_wait_for_space_and_the_image_can_be_read() {
    let directory = tempfile::tempdir().unwrap();
    if !can_make("ext4") {
        eprintln!("\n*** SKIPPED: changes beyond a full disk: this needs root and mkfs.ext4 ***\n");
        return;
    }
    let disk = Disk::make("ext4", Cut::Shutdown, directory.path(), 128 << 20).unwrap();
    let (image, filler) = (disk.point.join("image"), disk.point.join("filler"));
    let image = image.to_str().unwrap();
    let run = |options: &[&str], script: &str| {
        let arguments =
            [&["run", "--image", image, "-C", "/mnt/directfs"], options, &["--", "sh", "-c", script]].concat();
        support::directfs(&arguments)
    };
    assert!(support::directfs(&["mkfs", "--size", "128M", "--sparse", image]).status.success());
    std::fs::write(&filler, vec![1; 96 << 20]).unwrap();
    let script = "for i in 1 2 3 4 5 6; do head -c 5M /dev/urandom >$i; done; sha256sum ?";
    let written = run(&[], script);
    assert_eq!(written.status.code(), Some(125), "{}", support::stderr(&written));
    let refused = run(&[], "rm *");
    assert_eq!(refused.status.code(), Some(125));
    let message = support::stderr(&refused);
    assert!(message.contains("free space on the disk") && message.contains("--read-only"), "{message}");
    let read = run(&["--read-only"], "sha256sum ?");
    assert_eq!(support::stdout(&read), support::stdout(&written), "{}", support::stderr(&read));
    std::fs::remove_file(&filler).unwrap();
    let found = run(&[], "sha256sum ?");
    assert_eq!(support::stdout(&found), support::stdout(&written), "{}", support::stderr(&found));
    disk.unmount();
}

#[test]
fn an_ext4_that_fills_under_a_working_copy_on_it_is_a_lack_of_space() {
    fill_under_a_working_copy("ext4", 128 << 20);
}

#[test]
fn an_xfs_that_fills_under_a_working_copy_on_it_is_a_lack_of_space() {
    fill_under_a_working_copy("xfs", 320 << 20);
}

/// Fills a disk on which an image and its working copy lie.
fn fill_under_a_working_copy(file_system: &'static str, bytes: usize) {
    let directory = tempfile::tempdir().unwrap();
    if !can_make(file_system) {
        eprintln!("\n*** SKIPPED: a full {file_system} under a working copy: needs root, mkfs ***\n");
        return;
    }
    let disk = Disk::make(file_system, Cut::Shutdown, directory.path(), bytes).unwrap();
    let entries = || std::fs::read_dir(&disk.point).unwrap().count();
    let entries_at_first = entries();
    let (image, filler) = (disk.point.join("image"), disk.point.join("filler"));
    let (image, filler) = (image.to_str().unwrap(), filler.display());
    let run = |script: &str| {
        let options = ["run", "--image", image, "--memory", "1M", "-C", "/mnt/directfs", "--", "bash", "-c", script];
        support::directfs(&options)
    };
    assert!(support::directfs(&["mkfs", "--size", "40M", "--sparse", image]).status.success());
    let fill = format!(
        "dd if=/dev/zero of={filler} bs=64k status=none 2>/dev/null; dd if=/dev/zero of={filler} bs=512 oflag=append conv=notrunc status=none 2>/dev/null"
    );
    let script = format!(
        "echo first >a; mkdir d; echo 0 >d/0; fallocate -l 4M prepared; sync a; {fill}
         for n in 1 2; do dd if=/dev/urandom of=big$n bs=1M count=15 status=none 2>&1; echo $?; done; cat a; rm {filler}
         rm big*; dd if=/dev/urandom of=big bs=1M count=9 conv=fsync status=none; echo $?; sha256sum <big"
    );
    let worked = run(&script);
    let text = support::stdout(&worked);
    let lines: Vec<&str> = text.lines().collect();
    assert!(worked.status.success() && lines.len() == 7, "{text}{}", support::stderr(&worked));
    assert!(lines[0].contains("No space left on device") && lines[2].contains("No space left on device"), "{text}");
    assert_eq!((lines[1], lines[3], lines[4], lines[5]), ("1", "1", "first", "0"), "{text}");
    let checked = support::directfs(&["fsck", "-n", image]);
    assert!(checked.status.success(), "{}", support::stdout(&checked));
    // What exists is changed where it is, also where the copy of the image has only zeros.
    let script = format!(
        "sha256sum <big; {fill}
         for n in {{1..300}}; do echo again >>a; echo $n >d/$n; ln a d/link$n; done
         dd if=/dev/urandom of=prepared bs=64k count=64 conv=notrunc status=none; mv d e; head -1 a; rm {filler}"
    );
    let full = run(&script);
    let errors = support::stderr(&full);
    let others: Vec<&str> = errors.lines().filter(|line| !line.contains("No space left on device")).collect();
    assert_eq!((support::stdout(&full), others), (format!("{}\nfirst\n", lines[6]), vec![]));
    assert!(full.status.success(), "{:?}", full.status);
    let checked = support::directfs(&["fsck", "-n", image]);
    assert!(checked.status.success(), "{}", support::stdout(&checked));
    // Where a file can be made but not filled, the image is refused, and stays as it is. XFS has no
    // room for the file either: then the copy is in memory, where it fits.
    assert!(Command::new("sh").args(["-c", &fill]).status().is_ok());
    let refused = run("true");
    let reason = support::stderr(&refused);
    let is_refused = !refused.status.success() && reason.contains("--memory");
    assert!(is_refused || file_system == "xfs" && refused.status.success(), "{reason}");
    assert_eq!(entries(), entries_at_first + 2, "the image, and what fills the disk");
    disk.unmount();
}
