//! Memory and disk space of freed blocks go back to the system: by `directfs trim`, and by
//! themselves where an image is in memory.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::{directfs, scratch, stderr, stdout};

const MIB: u64 = 1 << 20;

fn taken(file: &Path) -> u64 {
    fs::metadata(file).unwrap().blocks() * 512
}

fn make(directory: &Path, options: &[&str]) -> PathBuf {
    let image = directory.join("image");
    let mut arguments = vec!["mkfs", image.to_str().unwrap()];
    arguments.extend(options);
    let made = directfs(&arguments);
    assert!(made.status.success(), "{}", stderr(&made));
    image
}

fn run(image: &Path, script: &str) -> std::process::Output {
    let image = image.to_str().unwrap();
    directfs(&["run", "--image", image, "--at", "/mnt/trim", "-C", "/mnt/trim", "--", "sh", "-c", script])
}

fn ran(image: &Path, script: &str) -> String {
    let output = run(image, script);
    assert!(output.status.success(), "{script}: {}", stderr(&output));
    stdout(&output)
}

fn is_sound(image: &Path) {
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
}

/// Repeats until a file takes less than `bytes`.
fn until_below(file: &Path, bytes: u64) {
    let start = std::time::Instant::now();
    while taken(file) >= bytes {
        assert!(start.elapsed().as_secs() < 600, "{} takes {} still", file.display(), taken(file));
        std::thread::yield_now();
    }
}

/// A shell under `run` that executes lines.
struct Shell(Child, BufReader<std::process::ChildStdout>);

impl Shell {
    fn start(arguments: &[&str]) -> Shell {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.arg("run").args(arguments).args(["--at", "/mnt/trim", "-C", "/mnt/trim", "--", "sh"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Shell(child, output)
    }

    fn execute(&mut self, line: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{line} && echo done").unwrap();
        let mut answer = String::new();
        self.1.read_line(&mut answer).unwrap();
        assert_eq!(answer, "done\n", "{line}");
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

const WRITE_BIG: &str = "head -c 200M /dev/urandom > big && cp /usr/bin/env kept";

#[test]
fn a_run_in_memory_gives_back_what_it_deletes_while_it_works() {
    let mut shell = Shell::start(&["--size", "600M"]);
    let launcher = shell.0.id();
    shell.execute("true");
    // The image is a file without a name, which the launcher has open.
    let descriptors = format!("/proc/{launcher}/fd");
    let file =
        fs::read_dir(descriptors).unwrap().flatten().map(|entry| entry.path()).find(|path| {
            fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("memfd:directfs-image"))
        });
    let file = file.expect("the launcher has the image");
    shell.execute(WRITE_BIG);
    assert!(taken(&file) > 200 * MIB);
    shell.execute("rm big");
    until_below(&file, 60 * MIB);
    shell.execute("cmp kept /usr/bin/env");
    shell.execute(WRITE_BIG);
    assert!(taken(&file) > 200 * MIB);
    shell.end();
}

#[test]
fn a_sparse_image_in_memory_is_trimmed_by_itself_and_a_reserved_one_only_on_request() {
    let directory = scratch();
    let image = make(directory.path(), &["--size", "600M", "--sparse"]);
    let mut shell = Shell::start(&["--image", image.to_str().unwrap()]);
    shell.execute(WRITE_BIG);
    shell.execute("rm big");
    until_below(&image, 60 * MIB);
    shell.execute("cmp kept /usr/bin/env");
    shell.end();
    is_sound(&image);

    fs::remove_file(&image).unwrap();
    let image = make(directory.path(), &["--size", "300M"]);
    let whole = taken(&image);
    ran(&image, &format!("{WRITE_BIG} && rm big"));
    assert_eq!(taken(&image), whole, "mkfs has reserved it");
    let trimmed = directfs(&["trim", image.to_str().unwrap(), "--json"]);
    assert!(trimmed.status.success(), "{}", stderr(&trimmed));
    let report: serde_json::Value = serde_json::from_slice(&trimmed.stdout).unwrap();
    assert!(report["freed_bytes"].as_u64().unwrap() > 250 * MIB, "{report}");
    assert!(taken(&image) < 40 * MIB);
    ran(&image, "cmp kept /usr/bin/env");
    is_sound(&image);
}

#[test]
fn an_image_on_a_disk_gives_back_memory_in_use_and_disk_space_when_unused() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = make(directory.path(), &["--size", "400M", "--sparse"]);
    // Fragments: every second file is removed.
    let fragments =
        "for i in $(seq 200); do head -c 100000 /dev/urandom > f$i; done; rm -f f*[02468]; cat f* | cksum > sum";
    ran(&image, &format!("{WRITE_BIG} && {fragments}"));
    let full = taken(&image);
    assert!(full > 200 * MIB);
    let mut shell = Shell::start(&["--image", image.to_str().unwrap()]);
    shell.execute("rm big");
    shell.execute("sync");
    let trimmed = directfs(&["trim", image.to_str().unwrap()]);
    assert!(trimmed.status.success(), "{}", stderr(&trimmed));
    assert!(stdout(&trimmed).contains("when no process uses it"), "{}", stdout(&trimmed));
    assert!(taken(&image) >= full, "the file waits");
    shell.execute("cat f* | cksum | cmp - sum");
    shell.end();
    let trimmed = directfs(&["trim", image.to_str().unwrap()]);
    assert!(trimmed.status.success(), "{}", stderr(&trimmed));
    assert!(taken(&image) < full - 190 * MIB, "{} of {full}", taken(&image));
    // The next use needs no scan: the snapshot of the free space is whole.
    is_sound(&image);
    let dump = ran(&image, "cat f* | cksum | cmp - sum && directfs=x && cmp kept /usr/bin/env && echo same");
    assert_eq!(dump, "same\n");
    is_sound(&image);
}

#[test]
fn programs_that_write_meanwhile_lose_nothing_and_neither_does_a_trim_that_is_killed() {
    let directory = scratch();
    let image = make(directory.path(), &["--size", "200M", "--sparse"]);
    let path = image.to_str().unwrap();
    // Each file is written, read back and removed, so that blocks change hands all the time.
    let script = "
        work() { for i in $(seq 150); do
            head -c $((i * 997 + 5000)) /dev/urandom > $1.$i; cksum < $1.$i > $1.s; cp $1.$i $1.copy
            cksum < $1.copy | cmp - $1.s || exit 9; rm $1.$i
        done; }
        work a & one=$!; work b & two=$!; work c; wait $one && wait $two && touch finished";
    let mut writers = Command::new(env!("CARGO_BIN_EXE_directfs"))
        .args(["run", "--image", path, "--at", "/mnt/trim", "-C", "/mnt/trim", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    let mut trims = 0u32;
    while writers.try_wait().unwrap().is_none() {
        let mut trim = Command::new(env!("CARGO_BIN_EXE_directfs"));
        let mut trim = trim.args(["trim", path]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        if trims.is_multiple_of(2) {
            (0..trims * 37).for_each(|_| std::thread::yield_now());
            let _ = trim.kill();
        }
        trim.wait().unwrap();
        trims += 1;
    }
    assert!(writers.wait().unwrap().success(), "after {trims} trims");
    assert_eq!(ran(&image, "ls finished"), "finished\n");
    is_sound(&image);
}

#[test]
fn a_trimmed_image_whose_file_system_is_full_has_no_space_and_stays_whole() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("\n*** SKIPPED: a full file system: only root can mount one ***\n");
        return;
    }
    let directory = scratch();
    let inside = "head -c 50M /dev/zero > big && rm big && \"$2\" trim \"$1/image\" && \
        { head -c 200M /dev/zero > \"$1/filler\"; head -c 30M /dev/zero > big; rm -f \"$1/filler\" big; echo alive; }";
    let script = "mount -t tmpfs -o size=100M none \"$1\" && \"$2\" mkfs \"$1/image\" --size 80M --sparse && \
        \"$2\" run --image \"$1/image\" --at /mnt/trim -C /mnt/trim -- sh -c \"$3\" sh \"$1\" \"$2\" 2>&1 && \
        \"$2\" fsck -n \"$1/image\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", script, "sh"]).arg(directory.path());
    let output = command.args([env!("CARGO_BIN_EXE_directfs"), inside]).output().unwrap();
    let text = stdout(&output);
    assert!(output.status.success() && text.contains("alive"), "{text}{}", stderr(&output));
    assert_eq!(text.matches("No space left on device").count(), 2, "of the host, then of the image: {text}");
}

#[test]
fn what_cannot_be_trimmed_is_refused_with_a_remedy() {
    let directory = scratch();
    let text = directory.path().join("text");
    fs::write(&text, "no image ".repeat(1000)).unwrap();
    let refused = directfs(&["trim", text.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("not a DirectFS image"), "{}", stderr(&refused));
    assert_eq!(fs::read(&text).unwrap(), "no image ".repeat(1000).into_bytes());

    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = make(disk.path(), &["--size", "64M", "--sparse"]);
    let shell = Shell::start(&["--image", image.to_str().unwrap(), "--no-commit"]);
    let mut shell = shell;
    shell.execute("true > file");
    let refused = directfs(&["trim", image.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1), "{}", stdout(&refused));
    assert!(stderr(&refused).contains("when no process uses it"), "{}", stderr(&refused));
    shell.end();
    is_sound(&image);
}
