//! The report as one self-contained page: plots, the same tables, and the whole report as JSON for
//! programs.

use super::svg::{Bars, Lines, bars, escape, lines};
use super::table::format_figure;
use super::{EngineReport, LOAD_QUIET, LeftOut, Report, Row, SectionReport, SubjectReport, Unit};
use crate::arguments::BenchGroup;
use crate::bench::statistics::Figure;
use crate::units::{count, counted, duration};
use std::fmt::Write;

const STYLE: &str = "
:root { --s0: #0b6e4f; --s1: #c8553d; --s2: #3d5a80; --s3: #9a6fb0; --s4: #b08900; --ink: #222; --paper: #fff; --dim: #777; --rule: #ddd }
@media (prefers-color-scheme: dark) { :root { --s0: #4cc38a; --s1: #ff8b6b; --s2: #86a9d6; --s3: #c9a4dd; --s4: #e2bd4a; --ink: #ddd; --paper: #181818; --dim: #999; --rule: #333 } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62em; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.1em; margin: 2.2em 0 .3em } p { margin: .3em 0 } .dim { color: var(--dim) } .plots { display: flex; flex-wrap: wrap; gap: 8px }
table { border-collapse: collapse; margin: .6em 0; font-size: 13px } th, td { text-align: right; padding: 2px 10px; border-bottom: 1px solid var(--rule) }
th:first-child, td:first-child { text-align: left } th { color: var(--dim); font-weight: normal } details > summary { color: var(--dim); cursor: pointer; font-size: 13px }
svg { max-width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: var(--ink) } svg .v { fill: var(--dim); font-size: 10px } svg .t { font-weight: 600 }
svg .g { stroke: var(--rule) } svg .c { stroke: var(--paper); stroke-width: 2 } polyline { fill: none; stroke-width: 2 } .key span { display: inline-block; width: .8em; height: .8em; margin: 0 .4em 0 1em }
.s0 { fill: var(--s0); background: var(--s0) } .s1 { fill: var(--s1); background: var(--s1) } .s2 { fill: var(--s2); background: var(--s2) } .s3 { fill: var(--s3); background: var(--s3) }
.s4 { fill: var(--s4); background: var(--s4) } .l0 { stroke: var(--s0) } .l1 { stroke: var(--s1) } .l2 { stroke: var(--s2) } .l3 { stroke: var(--s3) } .l4 { stroke: var(--s4) }
.met { color: var(--s0) } .missed { color: var(--s1) }
";

/// Renders the page.
pub fn page(report: &Report) -> String {
    let mut body = head(report);
    body += &growth_by_size(report);
    for section in &report.sections {
        body += &section_text(section, report);
    }
    if let Some(engine) = &report.engine {
        body += &engine_text(engine);
    }
    for absent in &report.absent {
        let _ = write!(body, "<p class=dim>not measured: {}</p>", escape(absent));
    }
    let json = serde_json::to_string(report).unwrap_or_default().replace('<', "\\u003c");
    format!(
        "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\"><title>directfs bench</title><style>{STYLE}</style>\n\
         <body>{body}\n<script type=\"application/json\" id=report>{json}</script></body></html>\n"
    )
}

fn head(report: &Report) -> String {
    let mut text =
        format!("<h1>directfs {} bench</h1><p>{}</p>", report.version, escape(&report.machine.description()));
    let _ = write!(
        text,
        "<p class=dim>floor P (store, flush, fence of one line) {}; reading the clock {}, subtracted; duration {}</p>",
        duration(report.floor.median_ns),
        duration(report.timer_ns as f64),
        duration(report.took_s * 1e9)
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
    let first = report.sections.first().map_or(&[][..], |section| &section.subjects);
    text += &key(report.subjects.iter().filter(|subject| first.contains(&subject.name)));
    text
}

fn key<'s>(subjects: impl Iterator<Item = &'s SubjectReport>) -> String {
    let mut text = String::from("<p class=key>");
    for (index, subject) in subjects.enumerate() {
        let _ = write!(
            text,
            "<span class=s{index}></span>{} <small class=dim>{}</small>",
            escape(&subject.name),
            escape(&subject.place)
        );
    }
    text + "</p>\n"
}

/// The time of each call by the number of files, where several numbers were measured.
fn growth_by_size(report: &Report) -> String {
    let sections: Vec<&SectionReport> =
        report.sections.iter().filter(|section| section.group == BenchGroup::Calls).collect();
    let [first, _, ..] = sections[..] else { return String::new() };
    let plots = first.rows.iter().enumerate().map(|(at, row)| {
        let point = |section: &&SectionReport, subject: usize| {
            let figure = section.rows.get(at)?.cells.get(subject)?.figure.as_ref()?;
            Some((section.files? as f64, figure.time.median_ns))
        };
        let series = |subject| sections.iter().filter_map(|section| point(section, subject)).collect();
        lines(&Lines { title: row.what.clone(), series: (0..row.cells.len()).map(series).collect(), format: duration })
    });
    format!("<h2>Time per call by the number of files</h2><div class=plots>{}</div>\n", plots.collect::<String>())
}

fn section_text(section: &SectionReport, report: &Report) -> String {
    let repeats = counted(section.repeats.into(), "repeat");
    let mut text = format!("<h2>{}</h2><p class=dim>median of {repeats}</p>", escape(&section.title));
    // Colours are by the order within a section.
    if report.sections.first().is_some_and(|first| first.subjects != section.subjects) {
        text += &key(report.subjects.iter().filter(|subject| section.subjects.contains(&subject.name)));
    }
    if let Some(note) = &section.note {
        let _ = write!(text, "<p class=dim>{}</p>", escape(note));
    }
    if section.group == BenchGroup::Cold {
        for subject in &report.subjects {
            let _ = write!(text, "<p class=dim>cold on {}: {}</p>", escape(&subject.name), escape(subject.cold));
        }
    }
    for LeftOut { subject, reason } in &section.left_out {
        let _ = write!(text, "<p class=dim>- on {}: {}</p>", escape(subject), escape(reason));
    }
    let scales = section.scaling && section.rows.iter().any(|row| row.members > 1);
    text += &match (scales, section.group) {
        (true, _) => by_members(section),
        (_, BenchGroup::Depth) => by_depth(section),
        _ => bars(&section.rows.iter().map(bar_group).collect::<Vec<_>>()),
    };
    let _ = writeln!(text, "<details><summary>figures</summary>{}</details>", table(section));
    text
}

fn bar_group(row: &Row) -> Bars {
    let length = |figure: &Figure| match row.unit {
        Unit::Rate | Unit::Bandwidth => figure.per_second,
        Unit::Call | Unit::Duration => figure.time.median_ns,
    };
    let value = |figure: &Figure| (length(figure), format_figure(figure, row.unit));
    let values = row.cells.iter().map(|cell| cell.figure.as_ref().map(value)).collect();
    Bars { what: row.label(), values }
}

/// Calls per second of all members, by the number of members.
fn by_members(section: &SectionReport) -> String {
    let mut plots =
        String::from("<p class=dim>all members' operations per second, by the number of members</p><div class=plots>");
    let mut rows = &section.rows[..];
    while let [first, ..] = rows {
        let (same, rest) = rows.split_at(rows.iter().take_while(|row| row.what == first.what).count());
        let point = |row: &Row, subject: usize| {
            Some((f64::from(row.members), row.cells.get(subject)?.figure.as_ref()?.per_second))
        };
        let series = |subject| same.iter().filter_map(|row| point(row, subject)).collect();
        let series = (0..first.cells.len()).map(series).collect();
        plots += &lines(&Lines { title: first.what.clone(), series, format: rate });
        rows = rest;
    }
    plots + "</div>"
}

fn by_depth(section: &SectionReport) -> String {
    let Some(first) = section.rows.first() else { return String::new() };
    // The last row is the difference of a level.
    let depths = &section.rows[..section.rows.len() - 1];
    let point = |(depth, row): (usize, &Row), subject: usize| {
        Some((depth as f64 + 1.0, row.cells.get(subject)?.figure.as_ref()?.latency?.p50_ns?))
    };
    let series = |subject| depths.iter().enumerate().filter_map(|row| point(row, subject)).collect();
    let series = (0..first.cells.len()).map(series).collect();
    lines(&Lines { title: "stat, median, by depth".into(), series, format: duration })
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
