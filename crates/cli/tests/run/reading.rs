//! Runs that change nothing of the image's file: `--read-only`, and `--discard` of an image that is
//! read while it is used.

use super::durable::on_disk;
use crate::support::{directfs, stderr, stdout};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

const STRANGER: &str = "65534";
/// More than what is copied although it could be read when it is used.
const BIG_BYTES: usize = 24 << 20;

fn run(image: &Path, options: &[&str], script: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.args(["run", "--image"]).arg(image).args(options).args(["-C", "/mnt/directfs", "--", "sh", "-c", script]);
    command.output().expect("the program starts")
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", stdout(output), stderr(output));
    stdout(output)
}

/// An image whose content is larger than what is copied, with a file, a directory and a link.
fn big_image(directory: &Path) -> PathBuf {
    let image = directory.join("image");
    let made = directfs(&["mkfs", image.to_str().unwrap(), "--size", "64M"]);
    succeeds(&made);
    let script = format!(
        "echo content >file; ln -s file link; mkdir directory; echo -n inner >directory/inner; chmod 777 . directory
         head -c {BIG_BYTES} /dev/urandom >big"
    );
    succeeds(&run(&image, &[], &script));
    image
}

/// A shell in a run, which goes on while the test looks.
struct Held {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Held {
    fn start(image: &Path, options: &[&str]) -> Held {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["run", "--image"]).arg(image).args(options).args(["-C", "/mnt/directfs", "--", "sh"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut held = Held { child, output };
        assert_eq!(held.line("echo ready"), "ready");
        held
    }

    /// The line that a command prints.
    fn line(&mut self, command: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Whether this is root and another user can be had; if not, prints that the test is skipped.
fn can_be_stranger(test: &str) -> bool {
    let probe = Command::new("setpriv").args(["--reuid", STRANGER, "--clear-groups", "true"]).output();
    let works = probe.is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("\n*** SKIPPED: {test}: `setpriv --reuid` does not work here ***\n");
    }
    works
}

/// The program where another user can reach it.
fn reachable_program(directory: &Path) -> PathBuf {
    let program = directory.join("directfs");
    fs::copy(env!("CARGO_BIN_EXE_directfs"), &program).unwrap();
    program
}

fn permit(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Each call that would change something answers as on a tmpfs that is mounted read-only.
#[test]
fn a_read_only_run_answers_as_a_read_only_tmpfs() {
    let Some(directory) = on_disk() else { return };
    let image = big_image(directory.path());
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/kit/changes.py");
    let kernel = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
        .arg(format!(
            "mount -t tmpfs tmpfs /mnt && cd /mnt && echo content >file && ln -s file link && mkdir directory &&
             echo -n inner >directory/inner && touch big && mount -o remount,ro /mnt && cd /mnt && exec python3 {program}"
        ))
        .output()
        .unwrap();
    if !kernel.status.success() {
        eprintln!("\n*** SKIPPED: read-only tmpfs: {} ***\n", stderr(&kernel).trim());
        return;
    }
    let ours = run(&image, &["--read-only"], &format!("exec python3 {program}"));
    assert_eq!(succeeds(&ours), stdout(&kernel));
    assert_eq!(stderr(&ours), "");
}

#[test]
fn a_user_who_may_only_read_an_image_runs_programs_on_it() {
    let Some(directory) = on_disk().filter(|_| can_be_stranger("an image of another user")) else { return };
    permit(directory.path(), 0o755);
    let image = big_image(directory.path());
    permit(&image, 0o644);
    let program = reachable_program(directory.path());
    let before = fs::read(&image).unwrap();
    let script = "cat file; cmp big big && (wc -c <big; ls directory); echo new >new";
    for (option, rest) in [("--read-only", "cannot create"), ("--discard", "")] {
        let runs: Vec<_> = (0..3)
            .map(|_| {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", STRANGER, "--regid", STRANGER, "--clear-groups"]).arg(&program);
                command.args(["run", "--image"]).arg(&image).arg(option);
                command.args(["-C", "/mnt/directfs", "--", "sh", "-c", script]);
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        for run in runs {
            let output = run.wait_with_output().unwrap();
            assert_eq!(stdout(&output), format!("content\n{BIG_BYTES}\ninner\n"), "{option}: {}", stderr(&output));
            assert!(stderr(&output).contains(rest), "{option}: {}", stderr(&output));
            assert_eq!(output.status.success(), option == "--discard", "{option}: {}", stderr(&output));
        }
    }
    assert!(before == fs::read(&image).unwrap(), "not a byte of the file changed");
}

#[test]
fn an_image_on_a_read_only_medium_is_read_and_its_changes_are_discarded() {
    let Some(directory) = on_disk() else { return };
    let image = big_image(directory.path());
    let here = directory.path().display();
    let directfs = env!("CARGO_BIN_EXE_directfs");
    let script = format!(
        "mount --bind {here} {here} && mount -o remount,bind,ro {here} || exit 77
         {directfs} run --image {0} --read-only -C /mnt/directfs -- cat file &&
         {directfs} run --image {0} --discard -C /mnt/directfs -- sh -c 'echo changed >file; cat file'",
        image.display()
    );
    let output = Command::new("unshare").args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]).output();
    let output = output.unwrap();
    if output.status.code() == Some(77) || stderr(&output).contains("unshare failed") {
        eprintln!("\n*** SKIPPED: read-only medium: {} ***\n", stderr(&output).trim());
        return;
    }
    assert_eq!(succeeds(&output), "content\nchanged\n", "{}", stderr(&output));
}

/// In a container's image it can have many gigabytes, and overlayfs copies all of it when it is
/// opened for writing.
#[test]
fn a_reader_of_an_image_in_a_layer_of_a_container_copies_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    for name in ["lower", "upper", "work", "merged"] {
        fs::create_dir(path(name)).unwrap();
    }
    big_image(Path::new(&path("lower")));
    let script = format!(
        "mount -t overlay overlay -o lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work {0}/merged || exit 77
         cd {0}/merged && {1} info image >/dev/null && {1} export image | tar -t >/dev/null &&
         {1} run --read-only --image image -- cat /mnt/directfs/file &&
         {1} run --discard --image image -- sh -c 'rm /mnt/directfs/file; ls /mnt/directfs/file' 2>/dev/null
         ls {0}/upper
         {1} run --image image -- sh -c 'echo new >/mnt/directfs/file; {1} export image | tar -xO ./file'",
        directory.path().display(),
        env!("CARGO_BIN_EXE_directfs")
    );
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
    if output.status.code() == Some(77) || stderr(&output).contains("unshare failed") {
        eprintln!("\n*** SKIPPED: unshare is not permitted here ***\n");
        return;
    }
    assert_eq!(stdout(&output), "content\nnew\n", "{}", stderr(&output));
}

#[test]
fn an_image_that_was_not_left_cleanly_is_recovered_in_memory() {
    let Some(directory) = on_disk() else { return };
    let image = big_image(directory.path());
    let mut writer = Held::start(&image, &["--commit-interval", "0"]);
    assert_eq!(writer.line("echo newest >file; sync; echo done"), "done");
    // What a power failure would leave now.
    let left = directory.path().join("left");
    fs::copy(&image, &left).unwrap();
    writer.end();
    let before = fs::read(&left).unwrap();
    let mut reader = Held::start(&left, &["--read-only"]);
    assert_eq!(reader.line("cat file"), "newest");
    let output = run(&left, &["--discard"], "cat file; ls directory; wc -c <big");
    assert_eq!(succeeds(&output), format!("newest\ninner\n{BIG_BYTES}\n"));
    assert!(before == fs::read(&left).unwrap(), "not a byte of the file changed");
    // The reader has a copy, and is in no writer's way.
    assert_eq!(succeeds(&run(&left, &[], "cat file; echo later >file; cat file")), "newest\nlater\n");
    assert_eq!(reader.line("cat file; wc -c <big"), "newest");
    reader.end();
}

/// What is not in memory comes from the file, so no process may change that.
#[test]
fn runs_that_read_the_file_keep_writers_away_and_not_one_another() {
    let Some(directory) = on_disk() else { return };
    let image = big_image(directory.path());
    for option in ["--read-only", "--discard"] {
        let mut first = Held::start(&image, &[option]);
        let mut second = Held::start(&image, &["--discard"]);
        assert_eq!(second.line("echo second >file; cat file"), "second");
        assert_eq!(first.line("cat file"), "content");
        let refused = run(&image, &[], "echo written >file");
        assert_eq!(refused.status.code(), Some(125), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("use"), "{}", stderr(&refused));
        assert_eq!(first.line("cmp big big && wc -c <big"), BIG_BYTES.to_string());
        first.end();
        second.end();
        succeeds(&run(&image, &[], "echo written >file; echo content >file"));
    }
}

#[test]
fn a_program_that_outlives_its_run_still_reads_the_image() {
    let Some(directory) = on_disk() else { return };
    let image = big_image(directory.path());
    let fifo = directory.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let output = directory.path().join("output");
    let script = format!("(read line <{}; cat file directory/inner) >{} 2>&1 &", fifo.display(), output.display());
    for option in ["--read-only", "--discard"] {
        succeeds(&run(&image, &[option], &script));
        let refused = run(&image, &[], "true");
        assert_eq!(refused.status.code(), Some(125), "{option}: {}", stderr(&refused));
        fs::write(&fifo, "go on\n").unwrap();
        // It ends soon; then the image is free.
        let freed = (0..1000).any(|_| run(&image, &[], "true").status.success());
        assert!(freed, "{option}");
        assert_eq!(fs::read_to_string(&output).unwrap(), "content\ninner");
    }
}

#[test]
fn a_reader_sees_what_writers_of_the_image_do() {
    let Some(directory) = on_disk() else { return };
    let image = big_image(directory.path());
    let mut writer = Held::start(&image, &[]);
    let mut reader = Held::start(&image, &["--read-only"]);
    assert_eq!(writer.line("echo written >file; echo done"), "done");
    assert_eq!(reader.line("cat file"), "written");
    assert_eq!(reader.line("echo refused 2>/dev/null >file || echo refused"), "refused");
    assert_eq!(writer.line("rm directory/inner; echo done"), "done");
    assert_eq!(reader.line("ls directory | wc -l"), "0");
    writer.end();
    assert_eq!(reader.line("cat file"), "written");
    reader.end();
    let checked = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert!(checked.status.success() && stdout(&checked).contains("left cleanly"), "{}", stdout(&checked));
}

/// A run to discard starts with what it needs, and not with a copy of the image.
#[test]
fn a_run_to_discard_takes_memory_for_what_it_uses() {
    let Some(directory) = on_disk() else { return };
    let image = big_image(directory.path());
    // The file in memory that the image's processes have open.
    let script =
        "for fd in /proc/$PPID/fd/*; do case $(readlink $fd) in *directfs-image*) stat -L -c %b $fd;; esac; done |
                  sort -n | tail -n 1";
    let blocks: usize = succeeds(&run(&image, &["--discard"], script)).trim().parse().unwrap();
    assert!(blocks * 512 < BIG_BYTES / 4, "{blocks} blocks");
    let read = format!("cat big >/dev/null; {script}");
    let blocks: usize = succeeds(&run(&image, &["--discard"], &read)).trim().parse().unwrap();
    assert!(blocks * 512 > BIG_BYTES / 4, "what was read is in memory: {blocks} blocks");
}
