//! A chart of programs as a picture, for README.md: drawn from a report that was kept as JSON.

use crate::units::duration;
use anyhow::{Context, Result, ensure};
use charts::{Bars, Palette, Row, Scale};
use serde_json::Value;

/// The programs that it shows, with those of the most and the least gain at the ends.
const SHOWN: [&str; 8] = [
    "tar -xf",
    "git clone",
    "git checkout",
    "pip install",
    "cargo build",
    "dpkg-buildpackage",
    "npm ci",
    "sh, like configure",
];

/// Draws the programs of a report.
pub fn picture(report: &Value) -> Result<String> {
    let sections = report["sections"].as_array().context("it has no sections")?;
    let section = sections.iter().find(|section| section["group"] == "programs");
    let section = section.context("it has no programs: make one with `directfs bench --only programs --json`")?;
    let systems = section["subjects"].as_array().context("its programs have no systems")?;
    let names: Vec<&str> = systems.iter().filter_map(Value::as_str).collect();
    let shown: Vec<String> = names.iter().map(|name| shown_name(name, report)).collect();
    let rows: Vec<Row> = SHOWN.iter().filter_map(|program| row(program, section)).collect();
    ensure!(!rows.is_empty(), "it has none of the programs {}", SHOWN.join("; "));
    let bars = Bars {
        summary: "Seconds that programs take; a shorter bar is faster".into(),
        systems: shown.clone(),
        scale: Scale::OfEachRow,
        rows,
    };
    Ok(bars.picture(&Palette::new(shown.iter().map(String::as_str))))
}

/// A system as readers know it: a disk by the time that it takes to sync.
fn shown_name(name: &str, report: &Value) -> String {
    let subjects = report["subjects"].as_array().into_iter().flatten();
    let subject = subjects.into_iter().find(|subject| subject["name"] == name);
    match subject.and_then(|subject| subject["sync_ns"].as_f64()) {
        Some(ns) => format!("{name} (fsync: {})", duration(ns).replace(".0 ", " ")),
        None if name == "directfs" => "directfs run".to_owned(),
        None if name == "directfs, journaled" => "directfs run, image on a disk".to_owned(),
        None => name.to_owned(),
    }
}

/// The bars of a program. `None`: no system has it.
fn row(program: &str, section: &Value) -> Option<Row> {
    let row = section["rows"].as_array()?.iter().find(|row| row["what"] == program)?;
    let value = |cell: &Value| cell["median_ns"].as_f64().map(|ns| (ns / 1e9, format!("{} s", seconds(ns))));
    let values: Vec<_> = row["cells"].as_array()?.iter().map(value).collect();
    values.iter().any(Option::is_some).then(|| Row { label: program.to_owned(), values })
}

/// Seconds with as many places as a chart needs.
fn seconds(ns: f64) -> String {
    match ns / 1e9 {
        seconds if seconds < 1.0 => format!("{seconds:.2}"),
        seconds if seconds < 10.0 => format!("{seconds:.1}"),
        seconds => format!("{seconds:.0}"),
    }
}
