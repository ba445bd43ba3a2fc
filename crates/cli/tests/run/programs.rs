//! Unmodified programs do real work in the mount. Their standard output and tree are byte for byte
//! those of the same work on tmpfs.
//!
//! Each script in `scripts` runs twice in a directory of the same name: in a real one on tmpfs,
//! which is then moved away, and again with an image there. So all paths agree, and a write that
//! bypasses the image is noticed: the name must not exist afterwards.
//!
//! A script's head lists the programs that it needs (`# needs: git cc`), packages that npm or pip
//! fetch into the directory `$PACKAGES` (`# npm: vite@8`), files whose content
//! differs at each run (`# free: .git/index`, with `*` as a wildcard), and files that are not
//! compared (`# ignored: target/*`), and files of the machine that are not there during the run
//! (`# hidden: /dev/fuse`). `$KIT` is a host directory with files that scripts share. With
//! DIRECTFS_TEST_WAY=mount the scripts run through a mount instead, which checks the scripts
//! themselves.

use crate::support::{directfs, scratch, stderr, stdout};
use crate::tree;
use std::fs;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run");

static SKIPPED: AtomicU32 = AtomicU32::new(0);

struct Script {
    name: &'static str,
    path: PathBuf,
    needs: Vec<String>,
    npm: Vec<String>,
    pip: Vec<String>,
    free: Vec<String>,
    ignored: Vec<String>,
    hidden: Vec<String>,
}

impl Script {
    fn read(name: &'static str) -> Script {
        let path = Path::new(DIRECTORY).join("scripts").join(format!("{name}.sh"));
        let text = fs::read_to_string(&path).unwrap();
        let words = |head: &str| -> Vec<String> {
            let lines = text.lines().filter_map(|line| line.strip_prefix(head));
            lines.flat_map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
        };
        Script {
            name,
            needs: words("# needs:"),
            npm: words("# npm:"),
            pip: words("# pip:"),
            free: words("# free:"),
            ignored: words("# ignored:"),
            hidden: words("# hidden:"),
            path,
        }
    }

    /// The first needed program that this machine lacks.
    fn missing(&self) -> Option<&String> {
        let path = path();
        let is_there = |program: &str| std::env::split_paths(&path).any(|place| place.join(program).exists());
        self.needs.iter().find(|program| !is_there(program))
    }

    /// The directory of the script's packages, which later runs of the tests find again; none if
    /// they cannot be fetched.
    fn packages(&self) -> Option<PathBuf> {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages").join(self.name);
        let (list, complete) = ([&self.npm[..], &self.pip[..]].concat().join(" "), directory.join(".complete"));
        if fs::read_to_string(&complete).is_ok_and(|known| known == list) {
            return Some(directory);
        }
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let fetch = |program: &str, arguments: &[&str], packages: &[String]| {
            let mut command = Command::new("timeout");
            command.args(["300", program]).args(arguments).args(packages).current_dir(&directory);
            packages.is_empty() || command.env("PATH", path()).output().is_ok_and(|output| output.status.success())
        };
        let npm = ["install", "--silent", "--no-audit", "--no-fund"];
        let pip = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--target", "."];
        let is_fetched = fetch("npm", &npm, &self.npm) && fetch("python3", &pip, &self.pip);
        is_fetched.then(|| fs::write(complete, list).unwrap())?;
        Some(directory)
    }

    fn is_ignored(&self, path: &str) -> bool {
        is_any(&self.ignored, path)
    }

    fn differences(&self, wanted: &tree::Tree, found: &tree::Tree) -> Vec<String> {
        tree::differences(wanted, found, |path| is_any(&self.free, path))
    }

    /// The script as a command in that directory, with a fixed environment.
    fn command(&self, mut command: Command, home: &Path, packages: &Path) -> Command {
        command.arg(&self.path).env_clear().stdin(Stdio::null()).env("PATH", path()).env("HOME", home);
        command.env("KIT", Path::new(DIRECTORY).join("kit")).env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
        command.env("PACKAGES", packages);
        // A process group of its own, which is killed at the end with all background processes.
        command.process_group(0);
        command
    }
}

/// The directories of programs: the usual ones, and the toolchain that builds these tests.
fn path() -> std::ffi::OsString {
    let usual = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/go/bin"].map(Path::new);
    let toolchain = Path::new(env!("CARGO")).parent().unwrap();
    std::env::join_paths(std::iter::once(toolchain).chain(usual)).unwrap()
}

/// Whether a path matches one of the patterns.
fn is_any(patterns: &[String], path: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern.as_bytes(), path.as_bytes()))
}

/// Matches a pattern in which `*` stands for any text.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|at| matches(rest, &text[at..])),
        Some((byte, rest)) => text.first() == Some(byte) && matches(rest, &text[1..]),
    }
}

struct Outcome {
    code: Option<i32>,
    output: String,
    errors: String,
}

/// Runs a command to its end. Its output goes to files: a pipe would wait for background processes,
/// and they perhaps for the command's own end.
fn outcome(mut command: Command) -> Outcome {
    let mut files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
    command.stdout(files[0].try_clone().unwrap()).stderr(files[1].try_clone().unwrap());
    let code = command.status().unwrap().code();
    let [output, errors] = files.each_mut().map(|file| {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    });
    Outcome { code, output, errors }
}

/// In front of a command: kills what does not end.
const LIMITED: [&str; 3] = ["timeout", "--kill-after=5", "900"];

/// A shell that is killed if it does not end.
fn shell() -> Command {
    let mut shell = Command::new(LIMITED[0]);
    shell.args(&LIMITED[1..]).arg("bash");
    shell
}

fn skip(name: &str, what: &str) {
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    eprintln!("\n*** SKIPPED ({count} so far): {name}: {what} ***\n");
}

/// Runs a script both ways and compares.
fn compare(name: &'static str) {
    let script = Script::read(name);
    if let Some(program) = script.missing() {
        return skip(name, &format!("{program} is not on this machine"));
    }
    let Some(packages) = script.packages() else { return skip(name, "its packages cannot be fetched") };
    let directory = scratch();
    let (work, home) = (directory.path().join("work"), directory.path().join("home"));
    fs::create_dir(&work).unwrap();
    fs::create_dir(&home).unwrap();
    let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64 - 1_000_000_000;

    let mut plain = shell();
    plain.current_dir(&work);
    let wanted = outcome(script.command(plain, &home, &packages));
    assert_eq!(wanted.code, Some(0), "{name} fails on tmpfs: {}{}", wanted.output, wanted.errors);
    let wanted_tree = tree::of_directory(&work, now_ns, &|path| script.is_ignored(path));
    fs::rename(&work, directory.path().join("plain")).unwrap();
    fs::remove_dir_all(&home).unwrap();
    fs::create_dir(&home).unwrap();

    let image = directory.path().join("image");
    let made = directfs(&["mkfs", image.to_str().unwrap(), "--size", "1G", "--sparse"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let found = if std::env::var_os("DIRECTFS_TEST_WAY").is_some_and(|way| way == "mount") {
        through_mount(&script, &image, &work, (&home, &packages))
    } else {
        let mut run = crate::support::without_files(&script.hidden);
        run.args(LIMITED)
            .args([env!("CARGO_BIN_EXE_directfs"), "run", "--image"])
            .arg(&image)
            .arg("--at")
            .arg(&work)
            .arg("-C")
            .arg(&work)
            .args(["--", "bash"]);
        let found = outcome(script.command(run, &home, &packages));
        assert!(!work.exists(), "{name}: something went past the image");
        found
    };
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    let found_tree = tree::of_image(&image, now_ns, &|path| script.is_ignored(path));
    let differences = script.differences(&wanted_tree, &found_tree);

    let context = format!("{}\nstandard error:\n{}", script.name, found.errors);
    assert_eq!(found.code, Some(0), "exit code of {context}\nstandard output:\n{}", found.output);
    assert_eq!(found.output, wanted.output, "standard output of {context}");
    let few: Vec<_> = differences.iter().take(20).collect();
    assert!(differences.is_empty(), "{} differences: {few:#?}, {context}", differences.len());
    assert_eq!(check.status.code(), Some(0), "fsck: {}{}, {context}", stdout(&check), stderr(&check));
    assert!(stdout(&check).contains("left cleanly;"), "{}", stdout(&check));
}

fn through_mount(script: &Script, image: &Path, work: &Path, (home, packages): (&Path, &Path)) -> Outcome {
    fs::create_dir(work).unwrap();
    let mounted = directfs(&["mount", image.to_str().unwrap(), work.to_str().unwrap(), "-o", "cache=0"]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    let mut shell = shell();
    shell.current_dir(work);
    let found = outcome(script.command(shell, home, packages));
    crate::support::unmount(work);
    found
}

macro_rules! scripts {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            compare(stringify!($name));
        })*

        #[test]
        fn every_script_is_a_test() {
            let mut listed = vec![$(concat!(stringify!($name), ".sh"),)*];
            let mut present: Vec<String> = fs::read_dir(Path::new(DIRECTORY).join("scripts")).unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            listed.sort();
            present.sort();
            assert_eq!(present, listed);
        }
    };
}

scripts!(
    access_lists,
    aio,
    archives,
    bad_pointers,
    bad_transfers,
    bash_jobs,
    bash_redirections,
    blocked_signals,
    busybox,
    cargo_build,
    clone_stack,
    compiler,
    coreutils,
    coreutils_text,
    debugger,
    descriptor_links,
    file_flags,
    find_and_locate,
    fio,
    git_history,
    git_large,
    go_build,
    go_programs,
    handles,
    java,
    libraries_at_start,
    make_project,
    mappings,
    mapping_faults,
    named_objects,
    node,
    perl,
    program_names,
    python,
    python_data,
    qemu_images,
    redis,
    rings,
    rsync,
    sanitizers,
    splice,
    sockets,
    sqlite,
    sqlite_writers,
    static_kit,
    static_programs,
    tools_of_disks,
    valgrind,
    watch_inotifywait,
    watch_java,
    watch_node,
    watch_python,
    watch_tail,
    watch_vite,
    watch_watchman,
    watch_webpack,
);
