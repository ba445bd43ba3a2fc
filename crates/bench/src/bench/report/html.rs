//! The report as one self-contained page: a summary, an index, charts, the tables, and the whole
//! report as JSON for programs.

use super::table::format_figure;
use super::{EngineReport, LOAD_QUIET, LeftOut, Report, Row, SectionReport, SubjectReport, Unit};
use crate::arguments::BenchGroup;
use crate::bench::statistics::Figure;
use crate::units::{clock, count, counted, duration};
use charts::{Bars, Line, Lines, Palette, Scale, escape};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

const STYLE: &str = "
:root { --met: #0b6e4f; --missed: #c8553d; --ink: #222; --paper: #fff; --dim: #666; --rule: #ddd }
@media (prefers-color-scheme: dark) { :root { --met: #4cc38a; --missed: #ff8b6b; --ink: #ddd; --paper: #181818; --dim: #999; --rule: #333 } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62em; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.1em; margin: 2.2em 0 .3em } p { margin: .3em 0 } .dim { color: var(--dim) } .plots { display: flex; flex-wrap: wrap; gap: 8px }
table { border-collapse: collapse; margin: .6em 0; font-size: 13px } th, td { text-align: right; padding: 2px 10px; border-bottom: 1px solid var(--rule) } details { overflow-x: auto }
th:first-child, td:first-child { text-align: left } th { color: var(--dim); font-weight: normal } summary { color: var(--dim); cursor: pointer; font-size: 13px }
nav { columns: 20em; font-size: 14px } nav a { display: block; color: inherit } .met { color: var(--met) } .missed { color: var(--missed) }
";

/// Renders the page.
pub fn page(report: &Report) -> String {
    let mut systems: Vec<&str> = report.subjects.iter().map(|subject| subject.name.as_str()).collect();
    for system in report.sections.iter().flat_map(|section| &section.subjects) {
        if !systems.contains(&system.as_str()) {
            systems.push(system);
        }
    }
    let palette = Palette::new(systems);
    let mut body = head(report) + &summary(report, &palette) + &index(report);
    body += &growth_by_size(report, &palette);
    for (at, section) in report.sections.iter().enumerate() {
        body += &section_text(at, section, report, &palette);
    }
    if let Some(engine) = &report.engine {
        body += &engine_text(engine);
    }
    for absent in &report.absent {
        let _ = write!(body, "<p class=dim>not measured: {}</p>", escape(absent));
    }
    let json = serde_json::to_string(report).unwrap_or_default().replace('<', "\\u003c");
    format!(
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport content=\"width=device-width\"><title>directfs bench</title><style>{STYLE}{}</style></head>\n\
         <body>{body}\n<script type=\"application/json\" id=report>{json}</script></body></html>\n",
        palette.style()
    )
}

fn head(report: &Report) -> String {
    let mut text = format!(
        "<h1>directfs {} bench</h1><p>{}, {}</p>",
        report.version,
        escape(&report.date),
        escape(&report.machine.description())
    );
    let _ = write!(
        text,
        "<p class=dim>Storing, flushing and fencing one cache line takes {} here. Reading the clock takes {}, which is subtracted. The run took {}.</p>",
        duration(report.floor.median_ns),
        duration(report.timer_ns as f64),
        clock(Duration::from_secs_f64(report.took_s))
    );
    if let Some(words) = report.scaling_description() {
        let _ = write!(text, "<p class=dim>{words}</p>");
    }
    if let Some(load) = report.machine.load_before.filter(|&load| load > LOAD_QUIET) {
        let _ = write!(
            text,
            "<p class=missed>The machine was busy before this run (load {load}): medians of single calls are least affected.</p>"
        );
    }
    text += "<details><summary>the measured systems</summary><table>";
    for SubjectReport { name, place, .. } in &report.subjects {
        let _ = write!(text, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(place));
    }
    text + "</table></details>\n"
}

/// How many times as fast as tmpfs each call is, in the section with the most files.
fn summary(report: &Report, palette: &Palette) -> String {
    let calls = report.sections.iter().filter(|section| section.group == BenchGroup::Calls);
    let Some(section) = calls.max_by_key(|section| section.files) else { return String::new() };
    let row = |row: &Row| {
        let times = row.times_tmpfs?;
        Some(charts::Row { label: row.label(), values: vec![Some((times, format!("{times:.1} times")))] })
    };
    let rows: Vec<charts::Row> = section.rows.iter().filter_map(row).collect();
    let (false, Some(system)) = (rows.is_empty(), section.subjects.first()) else { return String::new() };
    let summary = format!("Speed of each call, in multiples of tmpfs's: {}", section.title);
    let bars = Bars { summary: summary.clone(), systems: vec![system.clone()], scale: Scale::OfAllRows, rows };
    format!("<h2>{}</h2>{}", escape(&summary), bars.html(palette))
}

fn index(report: &Report) -> String {
    let entry = |(at, section): (usize, &SectionReport)| format!("<a href=#s{at}>{}</a>", escape(&section.title));
    format!("<nav>{}</nav>\n", report.sections.iter().enumerate().map(entry).collect::<String>())
}

/// Lines of a row's systems, each with the points that `point` finds.
fn lines(
    title: &str,
    systems: &[String],
    format: fn(f64) -> String,
    points: impl Fn(usize) -> Vec<(f64, f64)>,
) -> Lines {
    let line = |(at, system): (usize, &String)| Line::new(system.clone(), points(at));
    Lines {
        title: title.to_owned(),
        lines: systems.iter().enumerate().map(line).filter(|line| !line.points.is_empty()).collect(),
        format,
        format_place: |place| count(place as u64),
    }
}

/// The time of each call by the number of files, where several numbers were measured.
fn growth_by_size(report: &Report, palette: &Palette) -> String {
    let sections: Vec<&SectionReport> =
        report.sections.iter().filter(|section| section.group == BenchGroup::Calls).collect();
    let [first, _, ..] = sections[..] else { return String::new() };
    let plots = first.rows.iter().enumerate().map(|(at, row)| {
        let point = |section: &&SectionReport, subject: usize| {
            let figure = section.rows.get(at)?.cells.get(subject)?.figure.as_ref()?;
            Some((section.files? as f64, figure.time.median_ns))
        };
        let points = |subject| sections.iter().filter_map(|section| point(section, subject)).collect();
        lines(&row.what, &first.subjects, duration, points).html(palette)
    });
    format!("<h2>Time per call by the number of files</h2><div class=plots>{}</div>\n", plots.collect::<String>())
}

fn section_text(at: usize, section: &SectionReport, report: &Report, palette: &Palette) -> String {
    let repeats = counted(section.repeats.into(), "repeat");
    let mut text = format!("<h2 id=s{at}>{}</h2><p class=dim>median of {repeats}</p>", escape(&section.title));
    if let Some(note) = &section.note {
        let _ = write!(text, "<p class=dim>{}</p>", escape(note));
    }
    if section.group == BenchGroup::Cold {
        text += &meanings_of_cold(section, report);
    }
    let mut absent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for LeftOut { subject, reason } in &section.left_out {
        absent.entry(reason).or_default().push(subject);
    }
    for (reason, subjects) in absent {
        let _ = write!(text, "<p class=dim>not on {}: {}</p>", escape(&subjects.join(", ")), escape(reason));
    }
    let scales = section.scaling && section.rows.iter().any(|row| row.members > 1);
    text += &match (scales, section.group) {
        (true, _) => by_members(section, palette),
        (_, BenchGroup::Depth) => by_depth(section, palette),
        _ => bars(section, palette),
    };
    let _ = writeln!(text, "<details><summary>figures</summary>{}</details>", table(section));
    text
}

/// What a cold state means on the systems of a section, each once.
fn meanings_of_cold(section: &SectionReport, report: &Report) -> String {
    let mut seen = Vec::new();
    let mut text = String::new();
    for subject in report.subjects.iter().filter(|subject| section.subjects.contains(&subject.name)) {
        if !seen.contains(&&subject.name) {
            seen.push(&subject.name);
            let _ = write!(text, "<p class=dim>cold on {}: {}</p>", escape(&subject.name), escape(subject.cold));
        }
    }
    text
}

/// Bars of a section: times and rates in charts of their own, since a longer bar is slower in one
/// and faster in the other.
fn bars(section: &SectionReport, palette: &Palette) -> String {
    let is_rate = |row: &&Row| matches!(row.unit, Unit::Rate | Unit::Bandwidth);
    let chart = |rows: Vec<charts::Row>, meaning: &str| {
        if rows.is_empty() {
            return String::new();
        }
        let summary = format!("{}: {meaning}", section.title);
        let bars = Bars { summary, systems: section.subjects.clone(), scale: Scale::OfEachRow, rows };
        format!("<p class=dim>{meaning}</p>{}", bars.html(palette))
    };
    let measured = section.rows.iter().filter(|row| row.cells.iter().any(|cell| cell.figure.is_some()));
    let (rates, times): (Vec<&Row>, Vec<&Row>) = measured.partition(is_rate);
    let rows = |rows: Vec<&Row>| rows.into_iter().map(bar_row).collect();
    chart(rows(times), "time: shorter is faster") + &chart(rows(rates), "rate: longer is faster")
}

fn bar_row(row: &Row) -> charts::Row {
    let length = |figure: &Figure| match row.unit {
        Unit::Rate | Unit::Bandwidth => figure.per_second,
        Unit::Call | Unit::Duration => figure.time.median_ns,
    };
    let unit = if row.unit == Unit::Bandwidth { " GB/s" } else { "" };
    let value = |figure: &Figure| (length(figure), format_figure(figure, row.unit) + unit);
    let values = row.cells.iter().map(|cell| cell.figure.as_ref().map(value)).collect();
    charts::Row { label: row.label(), values }
}

/// Calls per second of all members, by the number of members.
fn by_members(section: &SectionReport, palette: &Palette) -> String {
    let mut plots =
        String::from("<p class=dim>all members' operations per second, by the number of members</p><div class=plots>");
    let mut rows = &section.rows[..];
    while let [first, ..] = rows {
        let (same, rest) = rows.split_at(rows.iter().take_while(|row| row.what == first.what).count());
        let point = |row: &Row, subject: usize| {
            Some((f64::from(row.members), row.cells.get(subject)?.figure.as_ref()?.per_second))
        };
        let points = |subject| same.iter().filter_map(|row| point(row, subject)).collect();
        plots += &lines(&first.what, &section.subjects, rate, points).html(palette);
        rows = rest;
    }
    plots + "</div>"
}

fn by_depth(section: &SectionReport, palette: &Palette) -> String {
    // The last row is the difference of a level.
    let depths = &section.rows[..section.rows.len().saturating_sub(1)];
    let point = |(depth, row): (usize, &Row), subject: usize| {
        Some((depth as f64 + 1.0, row.cells.get(subject)?.figure.as_ref()?.latency?.p50_ns?))
    };
    let points = |subject| depths.iter().enumerate().filter_map(|row| point(row, subject)).collect();
    lines("stat, median, by depth", &section.subjects, duration, points).html(palette)
}

fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1e6 => format!("{:.1} M", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.0} k", rate / 1e3),
        rate => format!("{rate:.0}"),
    }
}

fn table(section: &SectionReport) -> String {
    let mut text = String::from("<table><tr><th></th>");
    for subject in &section.subjects {
        let _ = write!(text, "<th>{}</th><th>p50</th><th>p99</th><th>p99.9</th>", escape(subject));
    }
    let ratio = match section.group {
        BenchGroup::Durable => "x the disk",
        BenchGroup::Mount => "time of tmpfs's",
        _ => "x tmpfs",
    };
    let _ = write!(text, "<th>{ratio}</th><th>median x tmpfs</th><th>aim</th></tr>");
    for row in &section.rows {
        let _ = write!(text, "<tr><td>{}</td>", escape(&row.label()));
        for cell in &row.cells {
            let figure = cell.figure.as_ref();
            let shown = figure.map_or("-".into(), |figure| format_figure(figure, row.unit));
            let _ = write!(text, "<td>{shown}</td>");
            let latency = figure.and_then(|figure| figure.latency);
            let mark = latency.filter(|latency| latency.batch > 1).map_or("", |_| "~");
            for quantile in [
                latency.and_then(|latency| latency.p50_ns),
                latency.and_then(|latency| latency.p99_ns),
                latency.and_then(|latency| latency.p999_ns),
            ] {
                let _ =
                    write!(text, "<td>{}</td>", quantile.map_or("-".into(), |ns| format!("{mark}{}", duration(ns))));
            }
        }
        let share = row.shares_of_tmpfs.first().copied().flatten();
        let times = share.or(row.times_beyond_own).or(row.times_tmpfs).or(row.times_disk);
        let class = match (times, row.times_wanted, row.share_wanted) {
            (Some(times), Some(wanted), _) if times >= wanted => "met",
            (Some(share), _, Some(wanted)) if share <= wanted => "met",
            (Some(_), Some(_), _) | (Some(_), _, Some(_)) => "missed",
            _ => "",
        };
        let shown = |times: Option<f64>| times.map_or("-".into(), |times| format!("{times:.1}"));
        let wanted = row.times_wanted.or(row.share_wanted);
        let (times, median, wanted) = (shown(times), shown(row.times_tmpfs_p50), shown(wanted));
        let _ = write!(text, "<td class=\"{class}\">{times}</td><td>{median}</td><td>{wanted}</td></tr>");
    }
    text + "</table>"
}

fn engine_text(engine: &EngineReport) -> String {
    let mut text = String::new();
    for directory in &engine.directories {
        let _ = write!(
            text,
            "<h2>The engine in this process, {} files in one directory</h2><table><tr><th></th><th>time</th><th>in P</th><th>aim</th><th>lines</th><th>aim</th><th>fences</th></tr>",
            count(directory.files)
        );
        for call in &directory.calls {
            let aim = |aim: Option<f64>| aim.map_or("-".into(), |aim| format!("≤ {aim}"));
            let written = call.written.unwrap_or_default();
            let _ = write!(
                text,
                "<tr><td>{}</td><td>{}</td><td>{:.2}</td><td>{}</td><td>{:.1}</td><td>{}</td><td>{:.1}</td></tr>",
                call.call.label(),
                duration(call.figure.time.median_ns),
                call.floors,
                aim(call.floors_wanted),
                written.lines,
                aim(call.lines_wanted),
                written.fences
            );
        }
        text += "</table>\n";
    }
    if let Some(scale) = &engine.scale {
        let _ = writeln!(
            text,
            "<h2>The engine in this process, {} files</h2><p>{:.0} bytes of the image per empty file without its name, {:.0} bytes of memory per cached file; attach {}, first \
             access to the directory {}, recovery after a crash {} with {}.</p>",
            count(scale.files),
            scale.pm_bytes_per_file - scale.name_bytes as f64,
            scale.dram_bytes_per_file,
            duration(scale.attach_ns),
            duration(scale.index_ns),
            duration(scale.recovery_ns),
            counted(scale.recovery_threads as u64, "thread")
        );
    }
    text
}
