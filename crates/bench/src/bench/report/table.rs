//! The report as tables for a terminal.

use super::{Cell, EngineDirectoryReport, LOAD_QUIET, LeftOut, Report, Row, SectionReport, Unit};
use crate::arguments::BenchGroup;
use crate::bench::engine::Scale;
use crate::bench::statistics::Figure;
use crate::terminal::{Table, bold, dim};
use crate::units::{count, counted, duration};

/// Prints the whole report.
pub fn print(report: &Report) {
    print_head(report);
    for section in &report.sections {
        print_section(section, report);
    }
    if let Some(engine) = &report.engine {
        for directory in &engine.directories {
            print_engine(directory);
        }
        if let Some(scale) = &engine.scale {
            print_scale(scale);
        }
    }
    for absent in &report.absent {
        println!("\nnot measured: {absent}");
    }
    println!("\n{}", dim(format!("duration {}", duration(report.took_s * 1e9))));
}

fn print_head(report: &Report) {
    let machine = &report.machine;
    println!("{}", bold(format!("directfs {} bench", report.version)));
    println!("{}", machine.description());
    println!(
        "floor P (store, flush, fence of one line): {}; reading the clock: {} (subtracted)",
        bold(duration(report.floor.median_ns)),
        duration(report.timer_ns as f64)
    );
    if let Some(words) = report.scaling_description() {
        println!("{words}");
    }
    for subject in &report.subjects {
        println!("{}", format_args!("{}: {}", bold(&subject.name), subject.place));
    }
    if let Some(load) = machine.load_before.filter(|&load| load > LOAD_QUIET) {
        let note = format!(
            "note: the machine was busy before this run (load {load}); times are worse than on an idle one; medians of single calls are least affected"
        );
        println!("{}", bold(note));
    }
}

fn print_section(section: &SectionReport, report: &Report) {
    let repeats = format!("median of {}", counted(section.repeats.into(), "repeat"));
    println!("\n{}  {}", bold(&section.title), dim(repeats));
    if let Some(note) = &section.note {
        println!("{}", dim(note));
    }
    if section.group == BenchGroup::Cold {
        for subject in &report.subjects {
            println!("{}", dim(format!("cold on {}: {}", subject.name, subject.cold)));
        }
    }
    times(section).print();
    for LeftOut { subject, reason } in &section.left_out {
        println!("{}", dim(format!("- on {subject}: {reason}")));
    }
    if let Some(table) = distributions(section) {
        println!("{}", dim("single calls: maximum time of 50 % / 99 of 100 / 999 of 1000"));
        table.print();
        if section.rows.iter().any(is_batched) {
            println!("{}", dim("~ averages of 16 consecutive calls: a single one is too short for the clock"));
        }
    }
}

/// The times of whole phases, per call.
fn times(section: &SectionReport) -> Table {
    let has_own = section.rows.iter().any(|row| row.times_beyond_own.is_some());
    let is_compared = section.rows.iter().any(|row| row.times_tmpfs.is_some());
    let on_disk = section.rows.iter().any(|row| row.times_disk.is_some());
    let has_aims = (is_compared || on_disk) && section.rows.iter().any(|row| row.times_wanted.is_some());
    let mut headings: Vec<String> = [heading(section)].into_iter().chain(section.subjects.iter().cloned()).collect();
    if is_compared {
        headings.push("x tmpfs".into());
    }
    if on_disk {
        headings.push("x disk".into());
    }
    if has_own {
        headings.push("beyond own".into());
    }
    let has_memcpy = section.rows.iter().any(|row| row.share_of_memcpy.is_some());
    if has_memcpy {
        headings.push("of memcpy".into());
    }
    if has_aims {
        headings.push("aim".into());
    }
    let scales = section.scaling && section.rows.iter().any(|row| row.members > 1);
    if scales {
        headings.extend(section.subjects.iter().map(|subject| format!("{subject} scales")));
    }
    let counted: Vec<usize> =
        (0..section.subjects.len()).filter(|&at| requests(section, at).any(|found| found)).collect();
    if section.group == BenchGroup::Mount {
        headings.push("aim".into());
        headings.extend(counted.iter().map(|&at| format!("requests per file, {}", section.subjects[at])));
    }
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut table = Table::new(&headings);
    for row in &section.rows {
        let mut cells = vec![row.label()];
        cells.extend(row.cells.iter().enumerate().map(|(at, cell)| format_cell(row, at, cell)));
        if is_compared {
            cells.push(optional(row.times_tmpfs));
        }
        if on_disk {
            cells.push(optional(row.times_disk));
        }
        if has_own {
            cells.push(optional(row.times_beyond_own));
        }
        if has_memcpy {
            cells.push(row.share_of_memcpy.map_or_else(|| "-".into(), |share| format!("{:.0} %", share * 100.0)));
        }
        if has_aims {
            cells.push(row.times_wanted.map_or_else(|| "-".into(), |times| format!("≥ {times}")));
        }
        if scales {
            cells.extend(row.cells.iter().map(|cell| optional(cell.scaling)));
        }
        if section.group == BenchGroup::Mount {
            cells.push(row.share_wanted.map_or_else(|| "-".into(), |share| format!("≤ {share} x")));
            let of = |&at: &usize| row.cells[at].figure.as_ref().and_then(|figure| figure.requests_per_file);
            cells.extend(counted.iter().map(|at| optional(of(at))));
        }
        table.row(cells);
    }
    table
}

/// Whether the requests of a subject were counted, for each row.
fn requests(section: &SectionReport, at: usize) -> impl Iterator<Item = bool> {
    let figure = move |row: &Row| row.cells.get(at).and_then(|cell| cell.figure.clone());
    section.rows.iter().map(move |row| figure(row).is_some_and(|figure| figure.requests_per_file.is_some()))
}

/// The time; of work also the processor time, and on mounts multiples of tmpfs's.
fn format_cell(row: &Row, at: usize, cell: &Cell) -> String {
    let Some(figure) = &cell.figure else { return "-".into() };
    let shown = format_figure(figure, row.unit);
    if let Some((user_ns, system_ns)) = figure.user_ns.zip(figure.system_ns) {
        return format!("{shown} ({:.2} + {:.2})", user_ns / 1e9, system_ns / 1e9);
    }
    match row.shares_of_tmpfs.get(at).copied().flatten() {
        Some(share) => format!("{shown} ({share:.2} x)"),
        None => shown,
    }
}

fn heading(section: &SectionReport) -> String {
    match section.rows.first().map(|row| row.unit) {
        Some(Unit::Duration) if section.group == BenchGroup::Tree => "program".into(),
        _ if section.group == BenchGroup::Programs => "work (user + system, s)".into(),
        _ if section.group == BenchGroup::Mount => "program (x tmpfs's time)".into(),
        _ if section.group == BenchGroup::Durable => "work".into(),
        _ if section.group == BenchGroup::Store => "step".into(),
        Some(Unit::Rate) => "operations per second".into(),
        Some(Unit::Bandwidth) => "GB per second".into(),
        _ => "time per call".into(),
    }
}

/// Formats a figure in its row's unit.
pub fn format_figure(figure: &Figure, unit: Unit) -> String {
    match unit {
        // The difference of a level may be negative.
        Unit::Call if (0.0..1e5).contains(&figure.time.median_ns) => {
            format!("{} ns", count(figure.time.median_ns.round() as u64))
        }
        Unit::Call | Unit::Duration => duration(figure.time.median_ns),
        Unit::Rate => format!("{}/s", count(figure.per_second.round() as u64)),
        Unit::Bandwidth => format!("{:.2}", figure.per_second / 1e9),
    }
}

fn optional(times: Option<f64>) -> String {
    times.map_or_else(|| "-".into(), |times| format!("{times:.2}"))
}

fn is_batched(row: &Row) -> bool {
    row.cells.iter().filter_map(|cell| cell.figure.as_ref()?.latency).any(|latency| latency.batch > 1)
}

/// The distributions of single calls, if there are any.
fn distributions(section: &SectionReport) -> Option<Table> {
    let mut headings = vec!["µs"];
    headings.extend(section.subjects.iter().map(String::as_str));
    let is_compared = section.rows.iter().any(|row| row.times_tmpfs_p50.is_some());
    if is_compared {
        headings.push("median x tmpfs");
    }
    let mut table = Table::new(&headings);
    let mut any = false;
    for row in section.rows.iter().filter(|row| row.unit != Unit::Bandwidth) {
        let mut cells: Vec<String> = row.cells.iter().map(|cell| distribution(cell.figure.as_ref())).collect();
        if is_compared {
            cells.push(optional(row.times_tmpfs_p50));
        }
        if cells.iter().any(|cell| cell != "-") {
            any = true;
            table.row([row.label()].into_iter().chain(cells).collect());
        }
    }
    any.then_some(table)
}

fn distribution(figure: Option<&Figure>) -> String {
    let Some(latency) = figure.and_then(|figure| figure.latency) else { return "-".into() };
    let micros = |ns: Option<f64>| match ns.map(|ns| ns / 1e3) {
        None => "?".into(),
        Some(micros) if micros < 10.0 => format!("{micros:.2}"),
        Some(micros) if micros < 100.0 => format!("{micros:.1}"),
        Some(micros) => count(micros.round() as u64),
    };
    let mark = if latency.batch > 1 { "~" } else { "" };
    format!("{mark}{} / {} / {}", micros(latency.p50_ns), micros(latency.p99_ns), micros(latency.p999_ns))
}

fn print_engine(directory: &EngineDirectoryReport) {
    let title = format!("the engine in this process, {} files in one directory", count(directory.files));
    println!("\n{}  {}", bold(title), dim("no system calls, paths, permissions or descriptors; P: the floor"));
    let mut table = Table::new(&["call", "time", "best", "worst", "in P", "aim", "lines", "aim", "fences"]);
    for call in &directory.calls {
        let time = &call.figure.time;
        let at_most = |aim: Option<f64>| aim.map_or_else(|| "-".into(), |aim| format!("≤ {aim}"));
        let written = |pick: fn(&crate::bench::engine::Written) -> f64| {
            call.written.as_ref().map_or_else(|| "-".into(), |written| format!("{:.1}", pick(written)))
        };
        table.row(vec![
            call.call.label().to_owned(),
            duration(time.median_ns),
            duration(time.min_ns),
            duration(time.max_ns),
            format!("{:.2}", call.floors),
            at_most(call.floors_wanted),
            written(|written| written.lines),
            at_most(call.lines_wanted),
            written(|written| written.fences),
        ]);
    }
    table.print();
}

fn print_scale(scale: &Scale) {
    println!("\n{}", bold(format!("the engine in this process, {} files in total", count(scale.files))));
    let beside = scale.pm_bytes_per_file - scale.name_bytes as f64;
    let recovery = format!("recovery after a crash, {}", counted(scale.recovery_threads as u64, "thread"));
    // Goals for a million files.
    let aim = |aim: &'static str| if scale.files == 1_000_000 { aim } else { "-" };
    let mut table = Table::new(&["", "measured", "aim"]);
    for (what, measured, aim) in [
        ("image bytes per empty file without its name", format!("{beside:.0}"), "≤ 384"),
        ("memory bytes per cached file", format!("{:.0}", scale.dram_bytes_per_file), "≤ 192"),
        ("attach of a clean image", duration(scale.attach_ns), "-"),
        ("first access to the directory, 1 thread", duration(scale.index_ns), aim("≤ 200 ms")),
        (recovery.as_str(), duration(scale.recovery_ns), aim("≤ 1 s")),
    ] {
        table.row(vec![what.to_owned(), measured, aim.to_owned()]);
    }
    table.print();
}
