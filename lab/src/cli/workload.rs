//! `lab workload`.

use super::arguments::Workload;
use anyhow::{Context, Result, anyhow, bail};
use console::terminal::{bold, end_with_reader, print_fact};
use lab::experiments::filebench::{Application, ThreadFiles};
use lab::experiments::{Clock, Watch};
use lab::host::HostCalls;
use lab::ycsb;

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
    let (operations, Times { seconds, processor, waited }) = match (application, workload) {
        (Some((_, application)), _) => create().and_then(|()| files(arguments, *application))?,
        (_, Some((_, workload))) => create().and_then(|()| store(arguments, *workload))?,
        (None, None) => bail!("no workload {name}; use one of {}", names().join(", ")),
    };
    if arguments.numbers {
        println!("{operations} {seconds} {processor} {waited}");
        return Ok(());
    }
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

/// How long work takes: by the clock, in processor time, and how long it waited for a processor.
struct Times {
    seconds: f64,
    processor: f64,
    waited: f64,
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Times> {
    let (clock, watch) = (Clock::start(), Watch::start());
    work()?;
    let [processor, seconds, waited] = [watch.ns(), clock.wall_ns(), clock.delayed_ns()].map(|ns| ns / 1e9);
    Ok(Times { seconds, processor, waited })
}

fn files(arguments: &Workload, application: Application) -> Result<(f64, Times)> {
    let calls = HostCalls::new(&arguments.directory);
    let set = application.file_set(arguments.count);
    set.make(&calls)?;
    let mut own = ThreadFiles::new(&calls, application, set.files, 1);
    let times = timed(|| Ok((0..arguments.turns).try_for_each(|_| own.turn())?))?;
    Ok((arguments.turns as f64 * application.operations(), times))
}

fn store(arguments: &Workload, workload: ycsb::Workload) -> Result<(f64, Times)> {
    let failed = |status: lab::ycsb::Status| anyhow!("the store failed: {status}");
    let mut store = ycsb::Store::load(&arguments.directory.join("store"), arguments.count).map_err(failed)?;
    let times = timed(|| store.run(workload, arguments.turns).map_err(failed))?;
    store.close().map_err(failed)?;
    Ok((arguments.turns as f64, times))
}
