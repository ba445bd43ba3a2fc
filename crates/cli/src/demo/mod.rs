//! `directfs demo`: daily work on a real tree, with each step compared with tmpfs.
//!
//! The steps: copy a tree in, read it back and compare it, and do the work of du, find and rm -rf.
//! Then kill a copy in the middle, recover, and check that every file whose copy had returned is
//! intact. Finally use the image again, close it cleanly, and check all its invariants.

mod report;
mod scratch;
mod session;
mod tree;
mod tree_access;

use crate::arguments::{CopyTree, Demo};
use crate::commands::fsck;
use crate::interrupt;
use crate::terminal::Progress;
use anyhow::{Context, Result, ensure};
use posix::image::{MakeOptions, make};
use report::{Check, Crash, Report, Step};
use scratch::Scratch;
use session::{AccessMethod, Session, Victim, Visitor, open_exclusive, visit_image};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tree::{Chunks, Tree};
use tree_access::{Directory, TreeAccess};

/// Runs the demonstration.
pub fn run(arguments: &Demo) -> Result<()> {
    interrupt::catch()?;
    let tree = Tree::read(&arguments.tree)?;
    let scratch = Scratch::make(&arguments.scratch, &tree)?;
    let report = demonstrate(arguments, &tree, &scratch)?;
    drop(scratch);
    crate::terminal::end_with_reader();
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(())
}

fn demonstrate(arguments: &Demo, tree: &Tree, scratch: &Scratch) -> Result<Report> {
    let (image, point) = (scratch.image(), scratch.mount_point());
    let length = Scratch::image_bytes(tree);
    let inodes_max = tree.entries.len() as u64 * 2 + 4096;
    make(&image, &MakeOptions { length, inodes_max, sparse: true, ..MakeOptions::default() })?;
    let access = AccessMethod::choose(arguments.through, &image, &point)?;

    let steps = daily_work(access, tree, scratch)?;
    let crash = crash(access, tree, &arguments.tree, scratch)?;
    let session = Session::begin(access, &image, &point)?;
    session.visit(&mut UseAgain { tree })?;
    session.end()?;
    let check = check(&image)?;
    Ok(Report {
        tree: arguments.tree.clone(),
        entries: tree.entries.len() as u64,
        size_bytes: tree.size_bytes(),
        skipped: tree.skipped,
        front: access,
        peer: crate::mounts::covering(&scratch.peer()).map_or_else(|| "unknown".into(), |mount| mount.kind),
        backing: check.backing.clone(),
        persistence: check.persistence,
        steps,
        crash,
        check,
    })
}

/// Runs the steps on the image and on its peer, and pairs the times.
fn daily_work(access: AccessMethod, tree: &Tree, scratch: &Scratch) -> Result<Vec<Step>> {
    let session = Session::begin(access, &scratch.image(), &scratch.mount_point())?;
    let mut directfs = DailyWork::new(tree, "DirectFS");
    session.visit(&mut directfs)?;
    session.end()?;
    let mut peer = DailyWork::new(tree, "the peer");
    peer.visit(&Directory::new(scratch.peer()))?;
    ensure!(
        directfs.headers == peer.headers,
        "find returned {} headers on DirectFS and {} on the peer",
        directfs.headers,
        peer.headers
    );
    let pairs = directfs.times.into_iter().zip(peer.times);
    Ok(pairs.map(|((name, directfs_ns), (_, peer_ns))| Step { name, directfs_ns, peer_ns }).collect())
}

/// The steps of daily work.
struct DailyWork<'a> {
    tree: &'a Tree,
    whose: &'static str,
    times: Vec<(&'static str, u64)>,
    headers: u64,
}

impl<'a> DailyWork<'a> {
    fn new(tree: &'a Tree, whose: &'static str) -> DailyWork<'a> {
        DailyWork { tree, whose, times: Vec::new(), headers: 0 }
    }

    fn step<T>(&mut self, name: &'static str, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let result = run().with_context(|| format!("in step \"{name}\" on {}", self.whose))?;
        self.times.push((name, started.elapsed().as_nanos() as u64));
        Ok(result)
    }
}

impl Visitor for DailyWork<'_> {
    fn visit(&mut self, tree_access: &impl TreeAccess) -> Result<()> {
        let tree = self.tree;
        let mut progress = Progress::start(&format!("copying to {}", self.whose), tree.entries.len() as u64);
        let mut done = 0;
        self.step("copy the tree in", || {
            tree.copy_to(tree_access, |_| {
                done += 1;
                progress.at(done);
                Ok(())
            })
        })?;
        drop(progress);
        let _progress = Progress::start(&format!("comparing, searching and removing on {}", self.whose), 0);
        self.step("read it back and compare every byte", || tree.compare(tree_access))?;
        self.step("du -s", || tree::sum_up(tree_access))?;
        self.headers = self.step("find -name '*.h'", || tree::find_headers(tree_access))?;
        self.step("rm -rf", || tree::remove(tree_access))
    }
}

/// Kills a copy in the middle, recovers, and compares the files that had been copied.
fn crash(access: AccessMethod, tree: &Tree, root: &Path, scratch: &Scratch) -> Result<Crash> {
    let (image, point) = (scratch.image(), scratch.mount_point());
    let _progress = Progress::start("killing a copy in the middle", 0);
    let completed = killed_copy(Victim::begin(access, root, &image, &point)?, tree.entries.len())?;
    interrupt::check()?;

    let started = Instant::now();
    let session = Session::begin(access, &image, &point)
        .context("the image could not be recovered: this is a defect of DirectFS")?;
    let recovery_ns = started.elapsed().as_nanos() as u64;
    let recovered = match &session {
        Session::Library(image) => image.report().map(|report| report.names),
        Session::Mount(_) => None,
    };
    let mut verify = VerifyCompleted { tree, completed: &completed };
    session.visit(&mut verify).context("after the crash")?;
    session.end()?;
    Ok(Crash {
        killed: if access == AccessMethod::Mount { "the mount's server" } else { "the copying process" },
        completed: completed.len() as u64,
        entries: tree.entries.len() as u64,
        names_recovered: recovered,
        recovery_ns,
    })
}

/// Kills a copy at a random point between a third and two thirds of it; returns its finished
/// entries.
fn killed_copy(mut victim: Victim, entries: usize) -> Result<HashSet<PathBuf>> {
    let mut random = [0u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .context("cannot get a random number")?;
    let third = (entries / 3).max(1);
    let moment = third + (u64::from_ne_bytes(random) % third as u64) as usize;
    let mut completed = HashSet::new();
    for line in BufReader::new(victim.output()?).split(0) {
        let line = line.context("cannot read the output of the copy")?;
        completed.insert(PathBuf::from(OsStr::from_bytes(&line)));
        if completed.len() == moment {
            victim.kill();
        }
    }
    // Entries written to the pipe before the kill count, although they are read later.
    ensure!(
        completed.len() >= moment,
        "the copy ended before the kill, after {} of {entries} entries",
        completed.len()
    );
    Ok(completed)
}

/// Compares the entries that were finished before the crash.
struct VerifyCompleted<'a> {
    tree: &'a Tree,
    completed: &'a HashSet<PathBuf>,
}

impl Visitor for VerifyCompleted<'_> {
    fn visit(&mut self, tree_access: &impl TreeAccess) -> Result<()> {
        let mut chunks = Chunks::default();
        for entry in self.tree.entries.iter().filter(|entry| self.completed.contains(&entry.path)) {
            interrupt::check()?;
            self.tree.compare_entry(tree_access, entry, &mut chunks)?;
        }
        Ok(())
    }
}

/// Uses a recovered image as usual: recovery errors become visible when space is allocated again.
struct UseAgain<'a> {
    tree: &'a Tree,
}

impl Visitor for UseAgain<'_> {
    fn visit(&mut self, tree_access: &impl TreeAccess) -> Result<()> {
        tree::remove(tree_access).context("removing the files after the crash")?;
        self.tree.copy_to(tree_access, |_| Ok(())).context("copying again after the crash")?;
        self.tree.compare(tree_access).context("comparing again after the crash")
    }
}

/// Checks all invariants of the image, which is no longer in use.
fn check(image: &Path) -> Result<Check> {
    let mapping = fsck::map_idle(image)?;
    let report = fsck::check(&mapping);
    ensure!(
        report.is_sound() && report.clean,
        "the image has errors after these steps: this is a defect of DirectFS\n{report}"
    );
    Ok(Check {
        names: report.counts.names,
        errors: report.errors,
        warnings: report.warnings,
        duration_ns: report.duration.as_nanos() as u64,
        backing: mapping.backing().to_string(),
        persistence: mapping.backing().persistence().sentence(),
    })
}

/// Copies a tree and writes the path of each finished entry, terminated by a zero, to standard
/// output.
pub fn copy_tree(arguments: &CopyTree) -> Result<()> {
    let tree = Tree::read(&arguments.tree)?;
    let mut copy = Copy { tree: &tree };
    match (&arguments.directory, &arguments.image) {
        (Some(directory), _) => copy.visit(&Directory::new(directory)),
        (None, Some(image)) => {
            let image = open_exclusive(image)?;
            visit_image(&image, &mut copy)?;
            Ok(image.close().map(drop)?)
        }
        (None, None) => Ok(()),
    }
}

struct Copy<'a> {
    tree: &'a Tree,
}

impl Visitor for Copy<'_> {
    fn visit(&mut self, tree_access: &impl TreeAccess) -> Result<()> {
        // Unbuffered: the buffer of the standard library's output would be lost with a killed
        // process.
        let mut output = std::fs::File::options().write(true).open("/proc/self/fd/1")?;
        self.tree.copy_to(tree_access, |path| {
            let mut line = path.as_os_str().as_bytes().to_vec();
            line.push(0);
            Ok(output.write_all(&line)?)
        })
    }
}
