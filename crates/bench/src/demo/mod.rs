//! `directfs demo`: daily work on a real tree under `directfs run`, beside tmpfs and a mount; then
//! a crash.
//!
//! ```text
//!  demo (this process)                      worker, one for each subject
//!  +----------------------------+  steps,   +-------------------------------------------+
//!  | subject: run, tmpfs, mount | --------> | tree: copies, compares, walks and removes |
//!  | measure: rounds, medians   | <-------- | with plain calls, and takes the times     |
//!  | crash: kill and recovery   |   times   +-------------------------------------------+
//!  +----------------------------+
//! ```
//!
//! Invariants:
//!
//! - Every subject runs the same machine code on the same entries; subjects take turns.
//! - However the demonstration ends, its files are removed: by this process, or by the workers if
//!   this one was killed.

mod crash;
mod measure;
mod report;
mod scratch;
mod subject;
mod tree;
mod worker;

pub use worker::work;

use crate::arguments::Demo;
use crate::interrupt;
use crate::mounted::Mounted;
use crate::terminal::{Of, Progress};
use anyhow::{Context, Result, ensure};
use console::images::make_shown;
use image::{Made, MakeOptions};
use report::{Check, Report};
use scratch::Scratch;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use subject::Subject;
use tree::{Limit, Tree};

/// The tree that is copied by default: the first that exists.
const DEFAULT_TREES: [&str; 2] = ["/usr/include", "/usr/share"];
/// The part of a default tree that takes less than ten seconds. The help of `demo` names it.
const DEFAULT_LIMIT: Limit = Limit { entries: 20_000, size_bytes: 192 << 20 };

/// Runs the demonstration.
pub fn run(arguments: &Demo) -> Result<()> {
    interrupt::catch()?;
    let started = Instant::now();
    let (root, limit) = match &arguments.tree {
        Some(tree) => (tree.as_path(), Limit::NONE),
        None => (default_tree(), DEFAULT_LIMIT),
    };
    let mut progress = Progress::quiet("listing the tree", Of::Steps(0));
    let tree = Tree::read(root, limit, &mut |entries| progress.at(entries))?;
    drop(progress);
    let no_mount = mount_obstacle(arguments);
    let scratch = Scratch::make(&arguments.scratch, &tree, 1 + u64::from(no_mount.is_none()))?;
    let mut report = demonstrate(&tree, &scratch, no_mount)?;
    drop(scratch);
    report.duration_ns = started.elapsed().as_nanos() as u64;
    crate::terminal::end_with_reader();
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(())
}

fn default_tree() -> &'static Path {
    let mut trees = DEFAULT_TREES.map(Path::new).into_iter();
    trees.find(|tree| tree.is_dir()).unwrap_or(Path::new(DEFAULT_TREES[0]))
}

/// The reason why no mount is tried.
fn mount_obstacle(arguments: &Demo) -> Option<String> {
    if arguments.without_mount {
        return Some("--without-mount was given".into());
    }
    let opened = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    opened.err().map(|error| format!("/dev/fuse cannot be opened ({error})"))
}

fn demonstrate(tree: &Tree, scratch: &Scratch, no_mount: Option<String>) -> Result<Report> {
    let entries = tree.entries.len() as u64;
    subject::require_run(tree, scratch)?;
    tree.save(&scratch.list())?;
    // This worker runs from here to the end: if this process is killed, it removes the files.
    let peer = Subject::peer(scratch, tree)?;
    let mut progress = Progress::start("reading the tree and making images", Of::Steps(entries));
    tree.read_files(|done| progress.at(done))?;
    drop(progress);
    let made = make(&scratch.image(), tree)?;
    let (mounted, mount_absent) = match no_mount {
        Some(reason) => (None, Some(reason)),
        None => mount(scratch, tree)?,
    };
    let mut subjects = vec![Subject::run(scratch, tree)?, peer];
    if let Some(mounted) = mounted {
        subjects.push(Subject::mount(mounted, scratch, tree)?);
    }
    let (steps, rounds) = measure::measure(&mut subjects, entries)?;
    let (mut run, peer) = (subjects.remove(0), subjects.remove(0));
    subjects.into_iter().try_for_each(Subject::end)?;
    let crash = crash::crash(&mut run, entries)?;
    run.end()?;
    let check = check(&scratch.image())?;
    let peer_name = peer.name.clone();
    peer.end()?;
    Ok(Report {
        tree: tree.root().to_owned(),
        entries,
        size_bytes: tree.size_bytes(),
        is_subset: tree.is_subset,
        left_out: tree.left_out,
        image_bytes: made.length,
        backing: made.backing.to_string(),
        persistence: made.backing.persistence().sentence(),
        peer: peer_name,
        rounds,
        mount_absent,
        steps,
        crash,
        check,
        duration_ns: 0,
    })
}

/// Makes an image, with its blocks allocated as mkfs does it.
fn make(image: &Path, tree: &Tree) -> Result<Made> {
    let length = Scratch::image_bytes(tree);
    let inodes_max = tree.entries.len() as u64 * 2 + 4096;
    let options = MakeOptions { length, inodes_max, label: "demo".into(), ..MakeOptions::default() };
    make_shown(image, &options).context("cannot make an image; specify another directory with --scratch")
}

/// Mounts an image, or returns the reason why that is impossible here: an accessible device does
/// not imply permission to mount.
fn mount(scratch: &Scratch, tree: &Tree) -> Result<(Option<Mounted>, Option<String>)> {
    make(&scratch.mounted_image(), tree)?;
    Ok(match Mounted::begin(&scratch.mounted_image(), &scratch.mount_point(), &[]) {
        Ok(mounted) => (Some(mounted), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    })
}

/// Checks all invariants of the image, which is no longer in use, by `directfs fsck`.
fn check(image: &Path) -> Result<Check> {
    let own = std::env::current_exe().context("cannot find this program's file; is /proc mounted?")?;
    let checked = Command::new(own).args(["fsck", "-n", "--json"]).arg(image).output().context("cannot start fsck")?;
    let report: Value = serde_json::from_slice(&checked.stdout).unwrap_or_default();
    ensure!(
        checked.status.success() && report["clean"] == true,
        "the image has errors after these steps: this is a defect of DirectFS\n{report:#}\n{}",
        String::from_utf8_lossy(&checked.stderr)
    );
    serde_json::from_value(report).context("the program was replaced by another version of directfs meanwhile")
}
