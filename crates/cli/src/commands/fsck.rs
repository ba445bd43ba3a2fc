//! `directfs fsck`: checks and repairs with crate `fsck` and the exit codes of fsck(8).

use crate::arguments::Fsck;
use crate::terminal::{Of, Progress};
use crate::{output, processes, units};
use anyhow::{Context, Result, bail};
use fsck::{Finding, Options, Repair, Repaired, Report};
use image::{ExclusiveImage, Image, OpenImage, Pending};
use pmem::{Access, Direct, Mapping};
use serde_json::json;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// fsck(8): operational error.
pub const EXIT_OPERATIONAL: u8 = fsck::EXIT_OPERATIONAL as u8;
/// fsck(8): usage error.
pub const EXIT_USAGE: u8 = fsck::EXIT_USAGE as u8;

/// What decides about a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Check,
    Ask,
    Preen,
    Yes,
}

/// Checks, and repairs if permitted; returns the exit code of fsck(8).
pub fn run(arguments: &Fsck) -> Result<u8> {
    let mode = match arguments {
        Fsck { check_only: true, .. } => Mode::Check,
        Fsck { preen: true, .. } => Mode::Preen,
        Fsck { yes: true, .. } => Mode::Yes,
        Fsck { json: false, .. } if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() => Mode::Ask,
        _ => Mode::Check,
    };
    if mode == Mode::Check {
        let (mapping, pending) = map_idle(&arguments.image)?;
        let report = check(&mapping);
        if arguments.json {
            let mut value = as_json(&arguments.image, &report);
            value["pending"] = pending_as_json(pending);
            println!("{}", serde_json::to_string_pretty(&value)?);
        } else {
            announce(pending);
            print!("{report}");
            suggest(&report);
        }
        return Ok(report.exit_code() as u8);
    }
    let repaired = repair(&arguments.image, mode)?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&repaired_as_json(&arguments.image, &repaired))?);
    } else {
        print_repaired(&repaired, mode);
    }
    Ok(repaired.exit_code() as u8)
}

/// Says what is checked, if the image's file alone does not hold it.
fn announce(pending: Pending) {
    match pending {
        Pending::Nothing => {}
        Pending::Commits(count) => println!(
            "checking the state after {} of the journal; the next use, or `directfs fsck -p`, writes them to their places",
            units::counted(count, "commit")
        ),
        Pending::WorkingCopy => println!(
            "checking the working copy in memory that the last processes left; the next use, or `directfs fsck -p`, commits it"
        ),
    }
}

fn pending_as_json(pending: Pending) -> serde_json::Value {
    match pending {
        Pending::Nothing => serde_json::Value::Null,
        Pending::Commits(count) => json!({ "commits": count }),
        Pending::WorkingCopy => json!({ "working_copy": true }),
    }
}

/// Prints the next step after a mere check.
fn suggest(report: &Report) {
    let mendable = report.findings.iter().filter(|finding| finding.repair.question().is_some());
    let (safe, others): (Vec<_>, Vec<_>) = mendable.partition(|finding| finding.is_safe_to_repair());
    match (report.errors + report.warnings, safe.len(), others.len()) {
        (0, ..) | (_, 0, 0) => {}
        (_, _, 0) => println!("`directfs fsck -p` repairs this"),
        _ => {
            println!("copy the image, then let `directfs fsck -y` repair it, or `directfs fsck` ask about each repair")
        }
    }
}

/// Opens an image for exclusive use. The error names the processes that use it.
fn open_exclusive(image: &Path) -> Result<ExclusiveImage> {
    // The error of this check names the processes.
    ensure_idle(image)?;
    Ok(ExclusiveImage::open(image)?)
}

/// Repairs. An attach recovers the traces of a crash, and rebuilds the free-space maps after a
/// repair.
fn repair(image: &Path, mode: Mode) -> Result<Repaired> {
    let mut prompt = RepairPrompt { mode, stopped: false };
    let mut repaired = repair_once(image, &mut prompt)?;
    if repaired.needs_recovery {
        let allowed =
            mode != Mode::Ask || ask("the image was not left cleanly", "recover it, as a mount does") == Answer::Yes;
        if !allowed {
            return Ok(repaired);
        }
        attach(image)?;
        repaired = repair_once(image, &mut prompt)?;
    }
    if !repaired.repaired.is_empty() && repaired.after.is_sound() {
        attach(image)?;
        repaired.after = check(&map_idle(image)?.0);
    } else if pmem::expects_memory_errors() {
        // What is lost cannot be repaired, and decides about no repair.
        repaired.after = check(&map_idle(image)?.0);
    }
    Ok(repaired)
}

fn repair_once(image: &Path, prompt: &mut RepairPrompt) -> Result<Repaired> {
    let alone = open_exclusive(image)?;
    let region = alone.mapping().region(Direct)?;
    let now = units::now_ns() as i64;
    let mut phases = Phases::default();
    let repaired =
        fsck::repair(&region, &Options::default(), now, &mut |finding| prompt.decide(finding), &mut |at| phases.at(at));
    let whole = 0..alone.mapping().length();
    alone.mapping().sync(whole).with_context(|| format!("cannot write {} back to its medium", image.display()))?;
    Ok(repaired)
}

/// Attaches and detaches: recovers, and rebuilds the free-space maps.
fn attach(image: &Path) -> Result<()> {
    let options = OpenImage { exclusive: true, ..OpenImage::default() };
    Image::open(image, &options)?.close()?;
    Ok(())
}

/// Decides by the mode, or asks the user.
struct RepairPrompt {
    mode: Mode,
    /// The user wants no more changes.
    stopped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    All,
    Quit,
}

impl RepairPrompt {
    fn decide(&mut self, finding: &Finding) -> bool {
        let Some(question) = finding.repair.question() else { return false };
        match self.mode {
            Mode::Check => false,
            Mode::Yes => true,
            Mode::Preen => finding.is_safe_to_repair(),
            Mode::Ask if self.stopped => false,
            Mode::Ask => match ask(&finding.to_string(), &question) {
                Answer::Yes => true,
                Answer::No => false,
                Answer::All => {
                    self.mode = Mode::Yes;
                    true
                }
                Answer::Quit => {
                    self.stopped = true;
                    false
                }
            },
        }
    }
}

/// Asks on the terminal. The end of input means no more changes.
fn ask(what: &str, question: &str) -> Answer {
    println!("{what}");
    loop {
        print!("    {question}? [y]es, [n]o, yes to [a]ll, [q]uit: ");
        output::flush();
        let mut line = String::new();
        match std::io::stdin().read_line(&mut line) {
            Ok(1..) => {}
            _ => return Answer::Quit,
        }
        match line.trim() {
            "y" | "Y" | "yes" => return Answer::Yes,
            "n" | "N" | "no" => return Answer::No,
            "a" | "A" | "all" => return Answer::All,
            "q" | "Q" | "quit" => return Answer::Quit,
            _ => {}
        }
    }
}

fn print_repaired(repaired: &Repaired, mode: Mode) {
    for finding in &repaired.repaired {
        println!("repaired: {finding}");
        if let Some(question) = finding.repair.question() {
            println!("    repair: {question}");
        }
    }
    for (finding, why) in &repaired.failed {
        println!("not repaired: {finding}\n    cause: {why}");
    }
    print!("{}", repaired.after);
    let (made, failed) = (repaired.repaired.len(), repaired.failed.len());
    if made + failed > 0 {
        println!("{} made, {} failed", units::counted(made as u64, "repair"), units::count(failed as u64));
    }
    if repaired.needs_recovery {
        println!("the image was not left cleanly: the next use recovers it");
    } else if !repaired.after.is_sound() {
        let asks = repaired.after.findings.iter().any(|finding| finding.repair.question().is_some());
        match mode {
            Mode::Preen if asks => {
                println!(
                    "the remaining findings are not safe to repair without asking: run `directfs fsck` or `directfs fsck -y`"
                )
            }
            _ if asks => println!("the remaining findings were not repaired: run `directfs fsck -y` to repair them"),
            _ => println!("the remaining findings cannot be repaired: restore the image from a backup"),
        }
    }
}

/// Maps the state of an image that recovery leaves for reading, unless another process may change
/// it: a check of a changing image would report false errors.
pub fn map_idle(image: &Path) -> Result<(Arc<Mapping>, Pending)> {
    ensure_idle(image)?;
    Ok(image::map_newest(image)?)
}

/// How long a committer without programs may take to put their changes on the disk and to leave.
const LEAVING: Duration = Duration::from_secs(5);

/// Refuses an image that a process uses or changes. The error names the processes.
pub fn ensure_idle(image: &Path) -> Result<()> {
    let mapping = Mapping::open(image, Access::ReadOnly)?;
    let file = mapping.file().context("an image is a file")?;
    let end = Instant::now() + LEAVING;
    loop {
        let users = image::users(file).with_context(|| format!("cannot query the locks on {}", image.display()))?;
        if !users.writing && !users.changing {
            return Ok(());
        }
        let metadata = file.metadata().with_context(|| format!("cannot examine {}", image.display()))?;
        let processes = processes::users_of(processes::identity(&metadata));
        if processes.iter().all(|user| user.command == "directfs-commit") && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        let list: Vec<String> = processes.iter().map(|user| format!("{} ({})", user.pid, user.command)).collect();
        let who = if list.is_empty() { "another process".to_owned() } else { format!("process {}", list.join(", ")) };
        bail!("{} is in use by {who}: end what uses it, or unmount it first (directfs umount DIR)", image.display());
    }
}

/// The check, with progress.
pub fn check(mapping: &Arc<Mapping>) -> Report {
    // SAFETY: the check only reads, as documented.
    let region = unsafe { mapping.region_for_reading(Direct) };
    let mut phases = Phases::default();
    let lost = mapping.bad_ranges();
    fsck::check(&region, &Options { lost: &lost, ..Options::default() }, &mut |at| phases.at(at))
}

/// One progress bar for each phase of a check.
#[derive(Default)]
struct Phases(Option<(&'static str, Progress)>);

impl Phases {
    fn at(&mut self, at: fsck::Progress) {
        let name = at.phase.name();
        if self.0.as_ref().is_none_or(|(phase, _)| *phase != name) {
            // The previous phase's bar must end first.
            self.0 = None;
            self.0 = Some((name, Progress::quiet(&format!("checking {name}"), Of::Steps(at.total))));
        }
        if let Some((_, progress)) = &mut self.0 {
            progress.at(at.done);
        }
    }
}

fn repaired_as_json(image: &Path, repaired: &Repaired) -> serde_json::Value {
    let mut value = as_json(image, &repaired.after);
    value["mended"] = repaired.repaired.iter().map(finding_as_json).collect();
    let failed =
        repaired.failed.iter().map(|(finding, why)| json!({ "finding": finding_as_json(finding), "why": why }));
    value["failed"] = failed.collect();
    value["needs_recovery"] = repaired.needs_recovery.into();
    value
}

fn finding_as_json(finding: &Finding) -> serde_json::Value {
    json!({
        "kind": finding.kind.name(),
        "severity": finding.severity.name(),
        "inode": finding.inode,
        "path": finding.path,
        "offset": finding.offset,
        "sentence": finding.sentence,
        "repair": if finding.repair == Repair::None { None } else { finding.repair.question() },
        "safe": finding.is_safe_to_repair(),
    })
}

fn as_json(image: &Path, report: &Report) -> serde_json::Value {
    let findings = report.findings.iter().map(finding_as_json);
    let counts = &report.counts;
    json!({
        "image": units::path_text(image),
        "checked": report.checked,
        "clean": report.clean,
        "errors": report.errors,
        "warnings": report.warnings,
        "notes": report.notes,
        "findings": findings.collect::<Vec<_>>(),
        "findings_dropped": report.findings_dropped,
        "names": counts.names,
        "inodes": counts.inodes,
        "directories": counts.directories,
        "files": counts.files,
        "symlinks": counts.symlinks,
        "special": counts.special,
        "blocks_used": counts.blocks_used,
        "blocks_free": counts.blocks_free,
        "duration": units::duration(report.duration.as_nanos() as f64),
        "duration_ns": report.duration.as_nanos() as u64,
    })
}
