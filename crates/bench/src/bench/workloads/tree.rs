//! Programs on a real tree: the installed cp, du, find, ls, tar, git and rm, each from start to
//! exit.

use super::system::Outcomes;
use crate::bench::task::{PhaseName, Workers};
use crate::bench::workers::{self, Member, PhaseResult};
use crate::interrupt;
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::Read;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The programs in their order: the label and the command line. `SOURCE` stands for the original
/// tree.
const PROGRAMS: [(&str, &[&str]); 12] = [
    ("cp -r, into it", &["cp", "-r", "SOURCE", "tree"]),
    ("du -s", &["du", "-s", "tree"]),
    ("find -name test.c", &["find", "tree", "-name", "test.c"]),
    ("ls -lR", &["ls", "-lR", "tree"]),
    ("cp -r, within it", &["cp", "-r", "tree", "copy"]),
    ("tar -cf", &["tar", "-cf", "tree.tar", "tree"]),
    ("tar -xf", &["tar", "-xf", "tree.tar", "-C", "unpacked"]),
    ("git add", &["git", "-C", "tree", "add", "--all", "--force"]),
    ("git commit", &["git", "-C", "tree", "commit", "--quiet", "--message", "tree"]),
    ("git status", &["git", "-C", "tree", "status", "--short"]),
    ("rm -rf copy", &["rm", "-rf", "copy"]),
    ("rm -rf all", &["rm", "-rf", "tree", "unpacked", "tree.tar"]),
];

/// Measures with a copy of this tree.
pub fn run(source: &Path, timer_ns: u64) -> Outcomes {
    std::fs::create_dir("unpacked").context("cannot create a directory")?;
    read_all(source)?;
    let has_git = has("git");
    workers::run(Workers::ONE, timer_ns, &|member: &mut Member| {
        for (words, program) in PROGRAMS {
            if program[0] == "git" && !has_git {
                continue;
            }
            if words == "git add" {
                start(&["git", "init", "--quiet", "tree"], source)?;
            }
            member.phase(PhaseName::Once(words.into()), |_| {
                let user_ns = Some(start(program, source)?);
                Ok(PhaseResult { calls: 1, user_ns, ..PhaseResult::default() })
            })?;
        }
        Ok(())
    })
}

/// Reads a tree, so that the copy does not wait for the tree's disk.
pub fn read_all(source: &Path) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    walk(source, &mut |path, metadata| {
        interrupt::check()?;
        if metadata.is_file() {
            let read = || format!("cannot read {}", path.display());
            let mut file = std::fs::File::open(path).with_context(read)?;
            while file.read(&mut buffer).with_context(read)? > 0 {}
        }
        Ok(())
    })
}

/// Calls `each` with all files and directories below a directory.
pub fn walk(root: &Path, each: &mut dyn FnMut(&Path, &Metadata) -> Result<()>) -> Result<()> {
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        let read = || format!("cannot read {}; specify a tree that you may read with --tree", directory.display());
        for entry in std::fs::read_dir(&directory).with_context(read)? {
            let entry = entry.with_context(read)?;
            let (path, metadata) = (entry.path(), entry.metadata().with_context(read)?);
            each(&path, &metadata)?;
            if metadata.is_dir() {
                left.push(path);
            }
        }
    }
    Ok(())
}

/// Whether a program is installed.
pub fn has(program: &str) -> bool {
    let places = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&places).any(|place| place.join(program).is_file())
}

/// The processor time of a program and of the programs that it waited for.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Outside the kernel.
    pub user_ns: f64,
    /// In the kernel.
    pub system_ns: f64,
}

/// Runs a program to its exit; returns its processor time outside the kernel.
pub fn start(words: &[&str], source: &Path) -> Result<f64> {
    run_program(words, source, &[]).map(|usage| usage.user_ns)
}

/// Runs a program to its exit, with these variables in its environment.
pub fn run_program(words: &[&str], source: &Path, environment: &[(String, PathBuf)]) -> Result<Usage> {
    let shown = words.join(" ");
    let mut command = Command::new(words[0]);
    for word in &words[1..] {
        command.arg(if *word == "SOURCE" { source.as_os_str() } else { OsStr::new(word) });
    }
    let who = "directfs bench";
    command
        .env("LC_ALL", "C")
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        // Without background work after the command.
        .envs([("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_KEY_0", "gc.auto"), ("GIT_CONFIG_VALUE_0", "0")])
        .envs(["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"].map(|name| (name, who)))
        .envs(["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"].map(|name| (name, "bench@localhost")))
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let child = command.spawn().with_context(|| format!("cannot start {}; is it installed?", words[0]))?;
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: a child of this process that nothing else waits for, and places for the results.
    let waited = unsafe { libc::wait4(child.id() as libc::pid_t, &raw mut status, 0, usage.as_mut_ptr()) };
    interrupt::check()?;
    ensure!(waited > 0, "cannot wait for {shown}: {}", std::io::Error::last_os_error());
    ensure!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{shown} failed; see its message above");
    // SAFETY: filled by the call, and plain numbers in any case.
    let usage = unsafe { usage.assume_init() };
    let ns = |time: libc::timeval| time.tv_sec as f64 * 1e9 + time.tv_usec as f64 * 1e3;
    Ok(Usage { user_ns: ns(usage.ru_utime), system_ns: ns(usage.ru_stime) })
}
