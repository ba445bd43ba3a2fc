//! `directfs top`: the processes of an image by their calls, drawn again after each interval.

use super::reading::Reading;
use super::report::calls_of;
use super::{CLEAR, each_interval};
use crate::arguments::{Order, Top};
use crate::interrupt::{self, Stopped};
use crate::ps::{self, harmless};
use crate::terminal::{bold, dim};
use crate::{output, units};
use anyhow::Result;
use console::screen::{Event, Screen};
use engine::statistics::{CallClass, CallTotals};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Kinds of calls that are named for each process.
const KINDS_SHOWN: usize = 3;
/// Columns of output that is no terminal.
const WIDTH_ELSEWHERE: usize = 200;
/// How often a signal and the size of the terminal are looked at.
const TICK: Duration = Duration::from_millis(100);
/// Least columns of a command, and of the most frequent kinds of calls.
const COMMAND_LEAST: usize = 8;
const KINDS_LEAST: usize = 12;
const GAP: usize = 2;
/// The columns.
const HEADINGS: [&str; 6] = ["pid", "user", "command", "threads", "calls/s", "most frequent"];
const PID: usize = 0;
const USER: usize = 1;
const COMMAND: usize = 2;
const THREADS: usize = 3;
const CALLS: usize = 4;
const KINDS: usize = 5;

/// Prints the processes of an image by their calls.
pub fn top(arguments: &Top) -> Result<()> {
    let first = Reading::take(&arguments.image)?;
    let screen = if arguments.json { None } else { Screen::open()? };
    if let Some(screen) = screen {
        return watch(arguments, first, &screen);
    }
    let clears = !arguments.json && std::io::stdout().is_terminal();
    each_interval(first, arguments.interval, arguments.count, |before, now| {
        let interval = Interval::between(before, now, arguments.sort);
        if arguments.json {
            println!("{}", serde_json::to_string(&interval)?);
            return Ok(());
        }
        if clears {
            output::write(CLEAR);
        }
        interval.lines(WIDTH_ELSEWHERE, usize::MAX).iter().for_each(|line| println!("{line}"));
        Ok(())
    })
}

/// Draws each interval until a key or a signal ends it.
fn watch(arguments: &Top, first: Reading, screen: &Screen) -> Result<()> {
    let (mut order, mut before, mut shown) = (arguments.sort, first, None::<Interval>);
    let mut next = Instant::now();
    for _ in 0..arguments.count.unwrap_or(u64::MAX) {
        next += arguments.interval;
        let mut drawn = None;
        loop {
            if drawn != Some((screen.size(), order)) {
                drawn = Some((screen.size(), order));
                draw(screen, arguments, order, shown.as_mut());
                output::finish()?;
            }
            let left = next.saturating_duration_since(Instant::now());
            match screen.event(left.min(TICK)) {
                Event::Quit => return Ok(()),
                Event::Key(key) => order = Order::of_key(key).unwrap_or(order),
                Event::Nothing if left.is_zero() => break,
                Event::Nothing => {}
            }
            interrupt::check().map_err(|_| Stopped("ended by a signal"))?;
        }
        let now = Reading::take(&before.image)?;
        shown = Some(Interval::between(&before, &now, order));
        before = now;
    }
    draw(screen, arguments, order, shown.as_mut());
    Ok(())
}

fn draw(screen: &Screen, arguments: &Top, order: Order, interval: Option<&mut Interval>) {
    let (width, height) = screen.size();
    let lines = match interval {
        Some(interval) => {
            interval.sort(order);
            interval.lines(width, height.saturating_sub(1))
        }
        None => vec![title(&arguments.image.to_string_lossy(), "counting calls", width)],
    };
    screen.draw(&lines, &dim(keys(order, width)));
}

/// What the keys do, with the present order.
fn keys(order: Order, width: usize) -> String {
    let long = format!("q quit   sort by {}: c calls  w waits  t threads  n name  p pid", order.name());
    match long.chars().count() <= width {
        true => long,
        false => cut(&format!("q quit  c w t n p sort by {}", order.name()), width),
    }
}

/// The first columns of a text, with a sign that it goes on.
fn cut(text: &str, width: usize) -> String {
    match text.chars().count() > width {
        true => text.chars().take(width.saturating_sub(1)).chain(['…']).take(width).collect(),
        false => text.to_owned(),
    }
}

/// A path, of which the end is more important, and what is shown of it.
fn title(path: &str, what: &str, width: usize) -> String {
    let (room, length) = (width.saturating_sub(what.chars().count() + GAP), path.chars().count());
    let path: String = match length > room {
        true => ['…'].into_iter().chain(path.chars().skip(length - room.saturating_sub(1))).take(room).collect(),
        false => path.to_owned(),
    };
    format!("{}  {}", bold(harmless(&path)), dim(cut(what, width)))
}

/// The processes of an image in an interval.
#[derive(Serialize)]
struct Interval {
    #[serde(serialize_with = "units::path_as_text")]
    image: PathBuf,
    interval_ms: u64,
    /// All calls, also of `others`.
    per_second: f64,
    processes: Vec<Process>,
    /// Calls of processes that have ended, or are not known here.
    others: f64,
}

#[derive(Serialize)]
struct Process {
    pid: i32,
    user: Option<String>,
    command: Option<String>,
    threads: usize,
    per_second: f64,
    calls: BTreeMap<&'static str, f64>,
    waits_for: Vec<String>,
}

impl Interval {
    /// What was called between two readings.
    fn between(before: &Reading, now: &Reading, order: Order) -> Interval {
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let mut by_pid: HashMap<i32, Vec<CallTotals>> = HashMap::new();
        let nothing = CallTotals::default();
        for (number, slot) in &now.slots {
            let earlier = before.slots.get(number).map_or(&nothing, |slot| &slot.totals);
            by_pid.entry(slot.pid).or_default().push(slot.totals.since(earlier));
        }
        let of = |user: &ps::Process| Process::of(user, by_pid.remove(&user.pid).unwrap_or_default(), seconds);
        let processes: Vec<Process> = now.users.processes.iter().map(of).collect();
        let others = by_pid.values().flatten().map(CallTotals::total).sum::<u64>() as f64 / seconds;
        let mut interval = Interval {
            image: now.image.clone(),
            interval_ms: (seconds * 1e3).round() as u64,
            per_second: processes.iter().map(|process| process.per_second).sum::<f64>() + others,
            processes,
            others,
        };
        interval.sort(order);
        interval
    }

    fn sort(&mut self, order: Order) {
        self.processes.sort_by(|a, b| {
            let first = match order {
                Order::Calls => std::cmp::Ordering::Equal,
                Order::Waits => b.waits_for.len().cmp(&a.waits_for.len()),
                Order::Threads => b.threads.cmp(&a.threads),
                Order::Name => a.command.cmp(&b.command),
                Order::Pid => a.pid.cmp(&b.pid),
            };
            first.then(b.per_second.total_cmp(&a.per_second)).then(a.pid.cmp(&b.pid))
        });
    }

    /// At most so many lines, none longer than the width.
    fn lines(&self, width: usize, height: usize) -> Vec<String> {
        let length = units::duration(self.interval_ms as f64 * 1e6);
        let mut lines = vec![title(&self.image.to_string_lossy(), &format!("in {length}"), width), self.totals(width)];
        let waits = self.processes.iter().flat_map(|process| {
            process.waits_for.iter().map(move |reason| format!("{} waits for {}", process.pid, harmless(reason)))
        });
        let waits: Vec<_> = waits.map(|line| cut(&line, width)).collect();
        // Processes have at least half of the lines that are left.
        let room = height.saturating_sub(lines.len() + 1);
        let waits = &waits[..waits.len().min(room / 2)];
        let fitting = self.processes.len().min(room - waits.len());
        let hidden = self.processes.len() - fitting;
        let fitting = if hidden > 0 { fitting.saturating_sub(1) } else { fitting };
        lines.extend(self.table(width, &self.processes[..fitting]));
        if hidden > 0 {
            let more = (self.processes.len() - fitting) as u64;
            lines.push(cut(&format!("and {} that do not fit", units::counted(more, "process")), width));
        }
        lines.extend_from_slice(waits);
        lines.truncate(height);
        lines
    }

    fn totals(&self, width: usize) -> String {
        let threads: usize = self.processes.iter().map(|process| process.threads).sum();
        let waits: usize = self.processes.iter().map(|process| process.waits_for.len()).sum();
        let mut line = format!("{} calls/s", rate(self.per_second));
        let parts = [
            Some(units::counted(self.processes.len() as u64, "process")),
            (waits > 0).then(|| units::counted(waits as u64, "wait")),
            Some(units::counted(threads as u64, "thread")),
            (self.others > 0.0).then(|| format!("{} calls/s of ended processes", rate(self.others))),
        ];
        for part in parts.into_iter().flatten() {
            if line.chars().count() + part.chars().count() + GAP <= width {
                line = format!("{line}, {part}");
            }
        }
        cut(&line, width)
    }

    /// A heading and a row for each process. Where the width does not suffice, columns are left
    /// out: first the user, then the threads, then the most frequent kinds.
    fn table(&self, width: usize, processes: &[Process]) -> Vec<String> {
        let rows: Vec<[String; 6]> = processes.iter().map(Process::cells).collect();
        let widest = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let mut widths: [usize; 6] = std::array::from_fn(|column| widest(column).max(HEADINGS[column].len()));
        let mut left = width.saturating_sub(widths[PID] + GAP + COMMAND_LEAST + GAP + widths[CALLS]);
        let mut fits = true;
        for (column, least) in [(KINDS, KINDS_LEAST), (THREADS, widths[THREADS]), (USER, widths[USER])] {
            fits = fits && left >= least + GAP;
            match fits {
                true => left -= least + GAP,
                false => widths[column] = 0,
            }
        }
        for (column, least) in [(COMMAND, COMMAND_LEAST), (KINDS, KINDS_LEAST)] {
            let more = widths[column].saturating_sub(least).min(left);
            left -= more;
            widths[column] = if widths[column] > 0 { least + more } else { 0 };
        }
        let line = |cells: [&str; 6]| {
            let shown = cells.into_iter().zip(widths).enumerate().filter(|(_, (_, width))| *width > 0);
            let cells = shown.map(|(column, (cell, width))| match column {
                USER | COMMAND | KINDS => format!("{:<width$}", cut(cell, width)),
                _ => format!("{cell:>width$}"),
            });
            cut(cells.collect::<Vec<_>>().join("  ").trim_end(), width)
        };
        let rows = rows.iter().map(|row| line(row.each_ref().map(String::as_str)));
        std::iter::once(dim(line(HEADINGS))).chain(rows).collect()
    }
}

fn rate(per_second: f64) -> String {
    units::count(per_second.round() as u64)
}

impl Process {
    fn of(user: &ps::Process, slots: Vec<CallTotals>, seconds: f64) -> Process {
        let of_class = |class: CallClass| slots.iter().map(|slot| calls_of(slot, class)).sum::<u64>() as f64 / seconds;
        let calls: BTreeMap<_, _> = CallClass::ALL
            .into_iter()
            .map(|class| (class.name(), of_class(class)))
            .filter(|(_, rate)| *rate > 0.0)
            .collect();
        Process {
            pid: user.pid,
            user: user.user.clone(),
            command: user.command.clone(),
            threads: user.threads.len(),
            // A sum of nothing is -0.
            per_second: calls.values().sum::<f64>() + 0.0,
            calls,
            waits_for: user.waits.iter().map(|wait| wait.reason.clone()).collect(),
        }
    }

    fn cells(&self) -> [String; 6] {
        let mut kinds: Vec<_> = self.calls.iter().collect();
        kinds.sort_by(|a, b| b.1.total_cmp(a.1));
        let kinds = kinds.into_iter().take(KINDS_SHOWN);
        let kinds: Vec<_> = kinds.map(|(name, per_second)| format!("{name} {}", rate(*per_second))).collect();
        [
            self.pid.to_string(),
            harmless(self.user.as_deref().unwrap_or("?")),
            harmless(self.command.as_deref().unwrap_or("?")),
            self.threads.to_string(),
            rate(self.per_second),
            kinds.join(", "),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(processes: usize) -> Interval {
        let process = |number: usize| Process {
            pid: 4_000_000 + number as i32,
            user: Some("somebody".into()),
            command: Some(format!("program-{number:07}")),
            threads: number,
            per_second: (number * 1_000_000) as f64,
            calls: BTreeMap::from([("stat", 1e6), ("open", 2e6), ("write", 3e6)]),
            waits_for: vec!["a lock on a file with a long name".into(); number % 2],
        };
        let image = PathBuf::from("/a/directory/of/many/letters/work.img");
        let processes = (0..processes).map(process).collect();
        Interval { image, interval_ms: 1000, per_second: 1e7, processes, others: 5.0 }
    }

    fn plain(lines: &[String]) -> Vec<String> {
        lines.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect()
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_no_more_lines_are_drawn_than_it_has() {
        for processes in [0, 1, 3, 40] {
            for width in 1..160 {
                for height in [1, 2, 3, 5, 24] {
                    let lines = plain(&interval(processes).lines(width, height));
                    assert!(lines.len() <= height, "{height}: {lines:#?}");
                    // Below 40 columns the terminal cuts what does not fit.
                    let fits = |line: &String| width < 40 || line.chars().count() <= width;
                    assert!(lines.iter().all(fits), "{width}: {lines:#?}");
                    assert!(keys(Order::Threads, width).chars().count() <= width);
                }
            }
        }
    }

    #[test]
    fn a_narrow_terminal_has_the_columns_that_count() {
        let at = |width: usize| plain(&interval(3).lines(width, 24));
        let narrow = at(40);
        assert!(narrow[0].ends_with("/work.img  in 1.00 s"), "{narrow:#?}");
        assert!(narrow[1].starts_with("10,000,000 calls/s, 3 processes"), "{narrow:#?}");
        assert!(narrow[2].contains("pid") && narrow[2].contains("command") && narrow[2].contains("calls/s"));
        assert!(!narrow[2].contains("user"), "{narrow:#?}");
        let wide = at(110);
        for heading in ["pid", "user", "command", "threads", "calls/s", "most frequent"] {
            assert!(wide[2].contains(heading), "{heading}: {wide:#?}");
        }
        assert!(wide[3].contains("program-0000000") && wide[3].ends_with("stat 1,000,000"), "{wide:#?}");
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let lines = plain(&interval(40).lines(80, 10));
        let more = lines.iter().find(|line| line.starts_with("and ")).expect("a count");
        let shown = lines.iter().filter(|line| line.contains("program-")).count();
        assert_eq!(*more, format!("and {} processes that do not fit", 40 - shown), "{lines:#?}");
    }
}
