//! `torture`: explores crashes for a while, and says what it found.

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use torture::campaign::{self, Outcome, Plan, Progress};
use torture::explore::{self, Effort, Explorer, Violation};
use torture::planted::DEFECTS;
use torture::races::{Races, races};
use torture::storm::{self, Front};
use torture::workload::Group;

/// Cuts the power at every instant of every operation, and looks whether the file system survives.
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
    /// How long to explore.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Draws what is drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Workers.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Only one part: singles, setups, pages, pairs or threads; or one that is not about crashes: model (random calls against a model of POSIX),
    /// hostile (images with changed words) or kills (processes that die over the library, a mount and `directfs run`).
    #[arg(long, value_parser = part)]
    only: Option<Part>,
    /// Of kills: the program directfs. Unless given, the one beside this program; without one, only the library is stormed.
    #[arg(long, value_name = "FILE")]
    directfs: Option<PathBuf>,
    /// The summary as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Looks at one state again.
    Replay {
        /// What a violation was reported with.
        id: String,
        /// With this defect planted.
        #[arg(long)]
        defect: Option<String>,
    },
    /// Lets threads race over the same names, and checks that what they were told has an order.
    Races {
        /// How long.
        #[arg(long, default_value_t = 1.0)]
        minutes: f64,
        /// Draws the calls.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Threads in a history: 2 to 6.
        #[arg(long, default_value_t = 3)]
        threads: usize,
    },
    /// Shows that planted defects are found.
    Planted,
    /// Names all workloads.
    List,
}

/// What can be asked for alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Crashes(Group),
    Model,
    Hostile,
    Kills,
}

fn part(name: &str) -> Result<Part, String> {
    match name {
        "model" => return Ok(Part::Model),
        "hostile" => return Ok(Part::Hostile),
        "kills" => return Ok(Part::Kills),
        _ => {}
    }
    let known = Group::ALL.into_iter().find(|group| format!("{group:?}").eq_ignore_ascii_case(name));
    known.map(Part::Crashes).ok_or_else(|| format!("no such part: {name}"))
}

fn main() -> Result<ExitCode> {
    storm::take_part();
    let arguments = Arguments::parse();
    let standard = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        eprintln!("\na panic at {}", explore::current());
        standard(panic);
    }));
    match arguments.command {
        None => run(&arguments.run),
        Some(Command::Races { minutes, seed, threads }) => race(minutes, seed, threads),
        Some(Command::Planted) => Ok(look_for_planted()),
        Some(Command::Replay { id, defect }) => replay(&id, defect.as_deref()),
        Some(Command::List) => {
            Group::ALL.iter().flat_map(|group| group.workloads()).for_each(|workload| println!("{workload}"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn race(minutes: f64, seed: u64, threads: usize) -> Result<ExitCode> {
    let begun = Instant::now();
    let plan = Races { duration: Duration::from_secs_f64(minutes.max(0.0) * 60.0), histories_max: 0, seed, threads };
    let outcome = races(&plan, &mut |outcome| {
        let seconds = begun.elapsed().as_secs();
        let end = if std::io::stderr().is_terminal() { "\r" } else { "\n" };
        if std::io::stderr().is_terminal() || outcome.histories % 50_000 < 500 {
            eprint!("{:02}:{:02}  {} histories{end}", seconds / 60, seconds % 60, outcome.histories);
        }
    })?;
    outcome.violations.iter().for_each(|violation| println!("VIOLATION {violation}"));
    println!(
        "{} histories of {threads} threads, {} of them with calls at once; {} calls; {} images checked afterwards; {} violations",
        outcome.histories,
        outcome.overlapping,
        outcome.calls,
        outcome.images,
        outcome.violations.len()
    );
    Ok(if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn replay(id: &str, defect: Option<&str>) -> Result<ExitCode> {
    let defect = match defect {
        None => None,
        Some(name) => match DEFECTS.iter().find(|defect| defect.name == name) {
            None => bail!("no such defect: {name}"),
            defect => defect,
        },
    };
    match Explorer::new(Effort::FULL, 1).replay(id, defect, &mut |line| println!("{line}")) {
        Ok(()) => println!("passes"),
        Err(what) => {
            println!("VIOLATION: {what}");
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn look_for_planted() -> ExitCode {
    let found = campaign::planted(Effort::FULL, 1);
    for (name, violation) in &found {
        match violation {
            Some(Violation { id, .. }) => println!("found   {name:<60} {id:.60}"),
            None => println!("MISSED  {name}"),
        }
    }
    let missed = found.iter().filter(|(_, violation)| violation.is_none()).count();
    println!("{} of {} planted defects found", found.len() - missed, found.len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(run: &Run) -> Result<ExitCode> {
    let duration = Duration::from_secs_f64(run.minutes.max(0.0) * 60.0);
    let group = match run.only {
        Some(Part::Model) => return run_model(run, duration),
        Some(Part::Hostile) => return run_hostile(run, duration),
        Some(Part::Kills) => return run_kills(run, duration),
        Some(Part::Crashes(group)) => Some(group),
        None => None,
    };
    let plan = Plan { duration, seed: run.seed, threads: run.threads, effort: Effort::FULL, group };
    let live = std::io::stderr().is_terminal();
    let mut told = Instant::now();
    let mut tell = |progress: &Progress| {
        if live || told.elapsed() > Duration::from_secs(30) {
            told = Instant::now();
            show(progress, live);
        }
    };
    let outcome = campaign::run(&plan, &mut tell, &|violation| eprintln!("\nVIOLATION {violation}"));
    if live {
        eprint!("\r\x1b[K");
    }
    if run.json {
        println!("{}", json(run, &outcome)?)
    } else {
        print!("{}", outcome.table())
    }
    Ok(if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Calls of a sequence that is compared with the model.
const CALLS: usize = 100_000;

fn run_model(run: &Run, duration: Duration) -> Result<ExitCode> {
    let begun = Instant::now();
    let mut world = torture::model::World::default();
    let mut total = torture::model::Counts::default();
    let mut sequences = 0;
    while begun.elapsed() < duration || sequences == 0 {
        match torture::model::run(&mut world, run.seed + sequences, CALLS) {
            Ok(counts) => total += counts,
            Err(failure) => {
                println!("VIOLATION {failure}");
                return Ok(ExitCode::FAILURE);
            }
        }
        sequences += 1;
        note(begun, &format!("{sequences} sequences, {} calls", total.calls));
    }
    let whole = serde_json::json!({ "seed": run.seed, "sequences": sequences, "total": total });
    println!("{}", if run.json { serde_json::to_string_pretty(&whole)? } else { whole.to_string() });
    Ok(ExitCode::SUCCESS)
}

/// A panic ends the process here; the hook says at which case.
fn run_hostile(run: &Run, duration: Duration) -> Result<ExitCode> {
    let begun = Instant::now();
    let mut arena = torture::hostile::Arena::default();
    let mut index = 0;
    while begun.elapsed() < duration || index == 0 {
        explore::set_current(&format!("hostile case {index} of seed {}", run.seed));
        arena.run(&torture::hostile::case(run.seed, index));
        index += 1;
        if index % 1000 == 0 {
            note(begun, &format!("{:?}", arena.counts));
        }
    }
    let whole = serde_json::json!({ "seed": run.seed, "total": arena.counts });
    println!("{}", if run.json { serde_json::to_string_pretty(&whole)? } else { whole.to_string() });
    Ok(ExitCode::SUCCESS)
}

/// Workers at a time, and how long a crew of them works.
const WORKERS: usize = 6;
const ROUND: Duration = Duration::from_millis(1500);

fn run_kills(run: &Run, duration: Duration) -> Result<ExitCode> {
    let begun = Instant::now();
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name("directfs"));
    let directfs = run.directfs.clone().or(beside).filter(|program| program.is_file());
    let mut fronts = vec![Front::Library];
    if directfs.is_none() {
        eprintln!("the program directfs is not known (--directfs): neither mounts nor `directfs run` are stormed");
    } else {
        if can_mount() {
            fronts.push(Front::Mount);
        } else {
            eprintln!("/dev/fuse cannot be opened here: no mount is stormed");
        }
        fronts.push(Front::Run);
    }
    let (seed, workers) = (run.seed, WORKERS);
    let plan = storm::Plan { duration, round: ROUND, seed, workers, fronts, directfs, arguments: String::new() };
    let told = storm::run(&plan, &mut |front, counts| note(begun, &format!("{}: {}", front.name(), kills(counts))));
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let lines = match told {
        Ok(lines) => lines,
        Err(error) => {
            println!("VIOLATION {error:#}");
            return Ok(ExitCode::FAILURE);
        }
    };
    if run.json {
        let fronts: serde_json::Map<_, _> = lines
            .iter()
            .map(|(front, counts)| Ok((front.name().to_owned(), serde_json::to_value(counts)?)))
            .collect::<Result<_>>()?;
        println!("{}", serde_json::to_string_pretty(&serde_json::json!({ "seed": run.seed, "fronts": fronts }))?);
    } else {
        lines.iter().for_each(|(front, counts)| println!("{:<8} {}", front.name(), kills(counts)));
    }
    Ok(ExitCode::SUCCESS)
}

fn kills(counts: &storm::Counts) -> String {
    let storm::Counts { rounds, kills, servers, calls } = counts;
    let servers = if *servers > 0 { format!(", {servers} servers killed") } else { String::new() };
    format!("{rounds} rounds, {kills} workers killed{servers}, {calls} calls")
}

fn can_mount() -> bool {
    std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok()
}

/// A live line on a terminal; nothing elsewhere.
fn note(begun: Instant, what: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{} s  {what}", begun.elapsed().as_secs());
    }
}

fn show(progress: &Progress, live: bool) {
    let Progress { elapsed, round, workload: (at, all), states, violations, at: name } = progress;
    let seconds = elapsed.as_secs();
    let rate = *states as f64 / elapsed.as_secs_f64();
    let (begin, end) = if live { ("\r\x1b[K", "") } else { ("", "\n") };
    eprint!(
        "{begin}{:02}:{:02}  round {round}  workload {at}/{all}  {states} states ({rate:.0}/s)  {violations} violations  {name:.50}{end}",
        seconds / 60,
        seconds % 60
    );
    let _ = std::io::stderr().flush();
}

fn json(run: &Run, outcome: &Outcome) -> Result<String> {
    let lines: serde_json::Map<_, _> = outcome
        .lines
        .iter()
        .map(|(group, line)| Ok((group.name().to_owned(), serde_json::to_value(line)?)))
        .collect::<Result<_>>()?;
    let violations: Vec<_> = outcome
        .violations
        .iter()
        .map(|violation| serde_json::json!({ "id": violation.id, "what": violation.what }))
        .collect();
    let whole = serde_json::json!({
        "seed": run.seed, "minutes": run.minutes, "threads": run.threads, "rounds": outcome.rounds,
        "groups": lines, "total": outcome.total(), "violations": violations,
    });
    Ok(serde_json::to_string_pretty(&whole)?)
}
