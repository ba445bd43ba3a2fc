//! `directfs ps`: the processes attached to an image, what each holds, and what it waits for.
//!
//! Two sources are joined: the tables that the processes of an image share (runs, the library,
//! mounts that share), and the kernel's view of the programs on its mounts. Both are only read.

mod kernel;
mod left;
mod report;
mod tables;

pub use report::{Process, Report, Wait, harmless};
pub use tables::attach;

use crate::arguments::Ps;
use crate::processes;
use anyhow::{Context, Result};
use std::fs::File;
use std::path::Path;

/// Prints the processes of an image, or what killed processes left.
pub fn run(arguments: &Ps) -> Result<()> {
    let Some(image) = &arguments.image else { return left::run(arguments) };
    let report = gather(image)?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(())
}

/// The processes of an image.
pub fn gather(path: &Path) -> Result<Report> {
    image::map_described(path)?;
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let metadata = file.metadata().with_context(|| format!("cannot examine {}", path.display()))?;
    let users = image::users(&file).with_context(|| format!("cannot query the locks on {}", path.display()))?;
    let mut processes = Vec::new();
    for user in processes::users_of(processes::identity(&metadata)) {
        let role = if user.serves_mount { kernel::MOUNT_SERVER } else { "attached" };
        processes.push(Process::of_pid(user.pid, role));
    }
    let are_tables_known = tables::add(path, &mut processes)?;
    kernel::add_mount_users(path, &mut processes);
    processes.sort_by_key(|process| process.pid);
    let is_used = users.attached || users.changing || !processes.is_empty();
    Ok(Report { image: path.to_owned(), in_use: is_used, shares: are_tables_known, processes })
}
