//! `directfs fsck`: the check of crate `fsck`, with the exit codes of fsck(8).

use crate::arguments::Fsck;
use crate::terminal::Progress;
use crate::{processes, units};
use anyhow::{Context, Result, bail};
use fsck::{Options, Report};
use pmem::{Access, Direct, Mapping};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// fsck(8): the check could not be done.
pub const EXIT_OPERATIONAL: u8 = fsck::EXIT_OPERATIONAL as u8;
/// fsck(8): wrong usage.
pub const EXIT_USAGE: u8 = fsck::EXIT_USAGE as u8;

/// Checks; the exit code of fsck(8).
pub fn run(arguments: &Fsck) -> Result<u8> {
    if arguments.yes || arguments.preen {
        bail!(
            "repair is not available yet; check with -n, which changes nothing, and let the next mount recover what a crash left"
        );
    }
    let mapping = map_idle(&arguments.image)?;
    let report = check(&mapping);
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&as_json(&arguments.image, &report))?);
    } else {
        print!("{report}");
    }
    Ok(report.exit_code() as u8)
}

/// Maps an image for reading, if nobody may be changing it: a check of a moving image would find errors that are none.
pub fn map_idle(image: &Path) -> Result<Arc<Mapping>> {
    let mapping = Mapping::open(image, Access::ReadOnly)?;
    let file = mapping.file().context("an image is a file")?;
    let users =
        posix::image::users(file).with_context(|| format!("cannot ask for the locks on {}", image.display()))?;
    if users.writing || users.changing {
        let metadata = file.metadata().with_context(|| format!("cannot examine {}", image.display()))?;
        let processes = processes::users_of(&metadata);
        let list: Vec<String> = processes.iter().map(|user| format!("{} ({})", user.pid, user.command)).collect();
        let who = if list.is_empty() { "another process".to_owned() } else { format!("process {}", list.join(", ")) };
        bail!("{} is in use by {who}; unmount it first (directfs umount DIR)", image.display());
    }
    Ok(Arc::new(mapping))
}

/// The check itself, with progress.
pub fn check(mapping: &Arc<Mapping>) -> Report {
    // SAFETY: the check only reads, as its documentation promises.
    let region = unsafe { mapping.region_for_reading(Direct) };
    let mut shown: Option<(&str, Progress)> = None;
    fsck::check(&region, &Options::default(), &mut |at| {
        let name = at.phase.name();
        if shown.as_ref().is_none_or(|(phase, _)| *phase != name) {
            // The bar of the phase before goes first.
            shown = None;
            shown = Some((name, Progress::quiet(&format!("checking {name}"), at.total)));
        }
        if let Some((_, progress)) = &mut shown {
            progress.at(at.done);
        }
    })
}

fn as_json(image: &Path, report: &Report) -> serde_json::Value {
    let findings = report.findings.iter().map(|finding| {
        json!({
            "kind": finding.kind.name(),
            "severity": finding.severity.name(),
            "inode": finding.inode,
            "path": finding.path,
            "offset": finding.offset,
            "sentence": finding.sentence,
        })
    });
    let counts = &report.counts;
    json!({
        "image": image,
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
