//! `lab workload`.

use super::arguments::Workload;
use anyhow::{Context, Result, anyhow, bail};
use console::terminal::{bold, end_with_reader, print_fact};
use lab::experiments::Watch;
use lab::experiments::filebench::{Application, ThreadFiles};
use lab::host::HostCalls;
use lab::ycsb;
use std::time::Instant;

/// Runs a workload in a directory, and prints its rate.
pub fn run(arguments: &Workload) -> Result<()> {
    end_with_reader();
    let name = &arguments.workload[..];
    let application = Application::ALL.iter().find(|(known, _)| *known == name);
    let workload = ycsb::Workload::ALL.iter().find(|(known, _)| *known == name);
    let create = || {
        std::fs::create_dir(&arguments.directory)
            .with_context(|| format!("cannot create {}: name a new directory", arguments.directory.display()))
    };
    let (operations, seconds, processor) = match (application, workload) {
        (Some((_, application)), _) => create().and_then(|()| files(arguments, *application))?,
        (_, Some((_, workload))) => create().and_then(|()| store(arguments, *workload))?,
        (None, None) => bail!("no workload {name}; use one of {}", names().join(", ")),
    };
    anstream::println!("{} {:.1} thousand operations per second", bold(name), operations / seconds / 1000.0);
    print_fact("operations", operations);
    print_fact("seconds", format_args!("{seconds:.3}, {processor:.3} of processor time"));
    Ok(())
}

/// All names.
fn names() -> Vec<&'static str> {
    let files = Application::ALL.iter().map(|(name, _)| *name);
    files.chain(ycsb::Workload::ALL.iter().map(|(name, _)| *name)).collect()
}

/// How long work takes, by the clock and in processor time.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<(f64, f64)> {
    let (start, watch) = (Instant::now(), Watch::start());
    work()?;
    Ok((start.elapsed().as_secs_f64(), watch.ns() / 1e9))
}

fn files(arguments: &Workload, application: Application) -> Result<(f64, f64, f64)> {
    let calls = HostCalls::new(&arguments.directory);
    application.make_directories(&calls, arguments.count)?;
    let mut own = ThreadFiles::new(&calls, (application, arguments.count), 0, 1);
    (0..arguments.count).try_for_each(|_| own.add_file())?;
    let (seconds, processor) = timed(|| Ok((0..arguments.turns).try_for_each(|_| own.turn())?))?;
    Ok((arguments.turns as f64 * application.operations(), seconds, processor))
}

fn store(arguments: &Workload, workload: ycsb::Workload) -> Result<(f64, f64, f64)> {
    let failed = |status: lab::ycsb::Status| anyhow!("the store failed: {status}");
    let mut store = ycsb::Store::load(&arguments.directory.join("store"), arguments.count).map_err(failed)?;
    let (seconds, processor) = timed(|| store.run(workload, arguments.turns).map_err(failed))?;
    store.close().map_err(failed)?;
    Ok((arguments.turns as f64, seconds, processor))
}
