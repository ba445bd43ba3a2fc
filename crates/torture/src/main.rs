//! `torture`: runs fault tests for a given time and reports the results.

mod live;
mod parts;

use anyhow::{Result, bail, ensure};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand};
use live::Live;
use parts::{Part, RACERS};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use torture::campaign;
use torture::explore::{self, Effort, Explorer, NotPassed, Violation};
use torture::hostile::{self, Arena};
use torture::injected::DEFECTS;
use torture::recording::Source;
use torture::storm;
use torture::workload::Group;

/// Runs fault tests: power failures at every point of every operation, killed processes, racing
/// threads, random calls, and changed images.
///
/// Three tenths of the time are for crashes, two for kills, one for each of the others. The exit
/// status is 0 without violations, 1 with violations, 2 if the tests could not run.
#[derive(Parser)]
#[command(version, arg_required_else_help = false)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

#[derive(Args)]
struct Run {
    /// Duration in minutes.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Random seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// For crashes and instructions: worker threads [default: 1].
    #[arg(long)]
    threads: Option<usize>,
    /// Run only one part. Crashes, or of these singles, setups, pages, pairs or threads;
    /// instructions (crashes with the stores and flushes that the processor executes); kills
    /// (killed processes on the library, a mount and `directfs run`); races (concurrent threads);
    /// model (random calls compared with a model of POSIX); hostile (images with changed words);
    /// journal (crashes of the disk under commits and checkpoints).
    #[arg(long, value_name = "PART", value_parser = Part::parse)]
    only: Option<Part>,
    /// For crashes and instructions: begin with this workload (`torture list` lists them) and run
    /// those before it at the end of the round. This continues an earlier run.
    #[arg(long, value_name = "WORKLOAD")]
    from: Option<String>,
    /// For kills: the directfs program. By default the one next to this program; without one, only
    /// the library is tested.
    #[arg(long, value_name = "FILE")]
    directfs: Option<PathBuf>,
    /// Print the summary as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Check one state again.
    Replay {
        /// The id of the reported violation.
        id: String,
        /// Inject this defect.
        #[arg(long)]
        defect: Option<String>,
    },
    /// Race threads on the same names, and check that their results are linearizable.
    Races {
        /// Duration in minutes.
        #[arg(long, default_value_t = 1.0)]
        minutes: f64,
        /// Random seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Threads in a history: 2 to 6.
        #[arg(long, default_value_t = RACERS, value_parser = RangedU64ValueParser::<usize>::new().range(2..=6))]
        threads: usize,
    },
    /// Check that injected defects are found.
    Injected,
    /// List all workloads.
    List,
}

fn main() -> ExitCode {
    storm::take_part();
    let arguments = Arguments::parse();
    let standard = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        eprintln!("\nVIOLATION panic at {}", explore::current());
        standard(panic);
    }));
    execute(&arguments).unwrap_or_else(|error| {
        eprintln!("torture: {error:#}");
        ExitCode::from(2)
    })
}

fn execute(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        None => run(&arguments.run),
        Some(Command::Races { minutes: count, seed, threads }) => race(minutes(*count)?, *seed, *threads),
        Some(Command::Injected) => Ok(find_injected()),
        Some(Command::Replay { id, defect }) => replay(id, defect.as_deref()),
        Some(Command::List) => {
            Group::ALL.iter().flat_map(|group| group.workloads()).for_each(|workload| println!("{workload}"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn minutes(count: f64) -> Result<Duration> {
    ensure!((0.0..1e6).contains(&count), "--minutes {count}: expected a number from 0 to 1000000");
    Ok(Duration::from_secs_f64(count * 60.0))
}

fn race(duration: Duration, seed: u64, threads: usize) -> Result<ExitCode> {
    let mut live = Live::new(duration);
    let result = parts::race(duration, seed, threads, &mut |what| live.print(Part::Races.name(), what))?;
    live.clear();
    print!("{}", result.text);
    Ok(code(result.violations))
}

fn code(violations: usize) -> ExitCode {
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay(id: &str, defect: Option<&str>) -> Result<ExitCode> {
    let defect = match defect {
        None => None,
        Some(name) => match DEFECTS.iter().find(|defect| defect.name == name) {
            None => bail!("--defect {name}: unknown defect; `torture injected` lists all"),
            defect => defect,
        },
    };
    if let Some(case) = hostile_case(id) {
        Arena::default().run(&case);
        println!("passes");
        return Ok(ExitCode::SUCCESS);
    }
    match Explorer::new(Effort::FULL, 1).replay(id, defect, &mut |line| println!("{line}")) {
        Ok(()) => {
            println!("passes");
            Ok(ExitCode::SUCCESS)
        }
        Err(NotPassed::Violation(what)) => {
            println!("VIOLATION {what}");
            Ok(ExitCode::FAILURE)
        }
        Err(NotPassed::Unknown(what)) => bail!("{what}"),
    }
}

/// The case of an id as a run reports it: `hostile case 7 of seed 1 ...`.
fn hostile_case(id: &str) -> Option<Vec<u8>> {
    let words: Vec<&str> = id.split_whitespace().collect();
    match words[..] {
        ["hostile", "case", index, "of", "seed", seed, ..] => {
            Some(hostile::case(seed.parse().ok()?, index.parse().ok()?))
        }
        _ => None,
    }
}

fn find_injected() -> ExitCode {
    let sources = [Source::Recorder, Source::Instructions];
    let found: Vec<_> = sources.iter().flat_map(|source| campaign::injected(*source, Effort::FULL, 1)).collect();
    for (name, violation) in &found {
        match violation {
            Some(Violation { id, .. }) => println!("found   {name:<60} {id:.60}"),
            None => println!("MISSED  {name}"),
        }
    }
    let missed = found.iter().filter(|(_, violation)| violation.is_none()).count();
    println!("{} of {} injected defects found", found.len() - missed, found.len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(run: &Run) -> Result<ExitCode> {
    let duration = minutes(run.minutes)?;
    let planned = match run.only {
        Some(part) => vec![(part, duration)],
        None => Part::ALL.map(|(part, tenths)| (part, duration * tenths / 10)).to_vec(),
    };
    let has = |part: Part| planned.iter().any(|(planned, _)| planned.name() == part.name());
    let crashes = has(Part::Crashes(None)) || has(Part::Instructions);
    let needed = "requires the part crashes or instructions; remove it or change --only";
    ensure!(crashes || run.from.is_none(), "--from {needed}");
    ensure!(crashes || run.threads.is_none(), "--threads {needed}");
    ensure!(
        has(Part::Kills) || run.directfs.is_none(),
        "--directfs requires the kills part; remove it or change --only"
    );
    let mut live = Live::new(duration);
    let mut whole = serde_json::Map::new();
    whole.insert("seed".to_owned(), run.seed.into());
    whole.insert("minutes".to_owned(), run.minutes.into());
    let mut violations = 0;
    for (part, duration) in planned {
        let result = part.run(run, duration, &mut live)?;
        live.clear();
        if !run.json {
            print!("{}:\n{}\n", part.name(), result.text);
        }
        violations += result.violations;
        whole.insert(part.name().to_owned(), result.json);
    }
    if run.json {
        whole.insert("violations".to_owned(), violations.into());
        println!("{}", serde_json::to_string_pretty(&whole)?);
    }
    Ok(code(violations))
}
