//! This build beside another one: both measure the same in turns, so that other load on the machine
//! affects both.
//!
//! Invariant: a row counts as slower or faster only if it was so in nearly all rounds, so the noise
//! of single rounds is no verdict.

use super::statistics::spread;
use crate::arguments::Bench;
use crate::interrupt;
use crate::terminal::{Table, bold};
use crate::units::{counted, duration};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

/// Rounds, in each of which both builds measure.
const ROUNDS: usize = 5;
/// Rounds of these that must agree.
const AGREEING: usize = 4;
/// What a row must differ by to be named: a creep of so much a change is seen.
const NOTABLE: f64 = 0.02;

/// The medians of one run, ns, by section, row and system.
type Medians = BTreeMap<[String; 3], f64>;

/// A row of both builds.
struct Compared {
    key: [String; 3],
    other_ns: f64,
    this_ns: f64,
    /// Time of this build in terms of the other's, of each round.
    ratios: Vec<f64>,
    /// The least, the median and the greatest of these.
    spread: [f64; 3],
}

impl Compared {
    fn is_slower(&self) -> bool {
        self.spread[1] > 1.0 + NOTABLE && self.ratios.iter().filter(|ratio| **ratio > 1.0).count() >= AGREEING
    }

    fn is_faster(&self) -> bool {
        self.spread[1] < 1.0 - NOTABLE && self.ratios.iter().filter(|ratio| **ratio < 1.0).count() >= AGREEING
    }
}

/// Measures this build and `other` in turns, and prints both.
pub fn run(arguments: &Bench, other: &Path) -> Result<()> {
    interrupt::catch()?;
    let other_version = version_of(other)?;
    let this = std::env::current_exe().context("cannot find this program")?;
    let words = words_for_both(arguments);
    let mut runs: Vec<[Medians; 2]> = Vec::new();
    for round in 0..ROUNDS {
        let measure = |program: &Path| {
            eprintln!("round {} of {ROUNDS}: {}", round + 1, program.display());
            measure(program, &words)
        };
        // The first of a round does not always have the warmer or the busier machine.
        runs.push(match round % 2 {
            0 => {
                let of_other = measure(other)?;
                [of_other, measure(&this)?]
            }
            _ => {
                let of_this = measure(&this)?;
                [measure(other)?, of_this]
            }
        });
    }
    let rows = compare(&runs);
    ensure!(!rows.is_empty(), "the two builds have no measurement in common");
    crate::terminal::end_with_reader();
    print(&rows, &other_version);
    Ok(())
}

/// The version of another build.
fn version_of(program: &Path) -> Result<String> {
    let remedy = "name the executable of another build of directfs";
    let output = Command::new(program).arg("--version").stderr(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {}: {remedy}", program.display()))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(
        output.status.success() && version.starts_with("directfs"),
        "{} is not directfs: {remedy}",
        program.display()
    );
    Ok(version)
}

/// The words of this command line that both builds get.
fn words_for_both(arguments: &Bench) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["bench".into(), "--json".into()];
    let mut skips = false;
    for word in std::env::args_os().skip_while(|word| word != "bench").skip(1) {
        let text = word.to_string_lossy();
        if !std::mem::take(&mut skips) && text != "--against" && !text.starts_with("--against=") {
            words.push(word);
        } else {
            skips = text == "--against";
        }
    }
    if arguments.beside.is_empty() && arguments.directories.is_empty() {
        words.extend(["--beside".into(), "directfs".into()]);
    }
    words
}

/// One run of a build.
fn measure(program: &Path, words: &[OsString]) -> Result<Medians> {
    let output = Command::new(program).args(words).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    interrupt::check()?;
    if !output.status.success() {
        bail!("{} failed: its message is above", program.display());
    }
    let report = serde_json::from_slice(&output.stdout);
    Ok(medians(&report.with_context(|| format!("{} printed no report", program.display()))?))
}

/// The name of a row, other than those of the same work by other threads or processes.
fn label(row: &Value) -> String {
    let what = row["what"].as_str().unwrap_or_default();
    let (members, kind) = (row["members"].as_u64().unwrap_or(1), row["kind"].as_str().unwrap_or("threads"));
    let crew = if (members, kind) == (1, "threads") { String::new() } else { format!(", {members} {kind}") };
    let place = if row["private"] == true { ", in separate directories" } else { "" };
    format!("{what}{crew}{place}")
}

fn medians(report: &Value) -> Medians {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found = Medians::new();
    for section in list(&report["sections"]) {
        for row in list(&section["rows"]) {
            for cell in list(&row["cells"]) {
                if let Some(ns) = cell["median_ns"].as_f64() {
                    found.insert([text(&section["title"]), label(&row), text(&cell["subject"])], ns);
                }
            }
        }
    }
    for directory in list(&report["engine"]["directories"]) {
        for call in list(&directory["calls"]) {
            if let Some(ns) = call["median_ns"].as_f64() {
                let section = format!("the engine, {} files", directory["files"]);
                found.insert([section, text(&call["call"]), "engine".into()], ns);
            }
        }
    }
    found
}

/// The rows that both builds have in all rounds, in the order of the names.
fn compare(runs: &[[Medians; 2]]) -> Vec<Compared> {
    let Some([first, _]) = runs.first() else { return Vec::new() };
    let row = |key: &[String; 3]| {
        let times: Option<Vec<(f64, f64)>> =
            runs.iter().map(|[other, this]| Some((*other.get(key)?, *this.get(key)?))).collect();
        let (others, these): (Vec<f64>, Vec<f64>) = times?.into_iter().unzip();
        let ratios: Vec<f64> = others.iter().zip(&these).map(|(other, this)| this / other).collect();
        let ([_, other_ns, _], [_, this_ns, _]) = (spread(&others)?, spread(&these)?);
        Some(Compared { key: key.clone(), other_ns, this_ns, spread: spread(&ratios)?, ratios })
    };
    first.keys().filter_map(row).collect()
}

fn print(rows: &[Compared], other_version: &str) {
    println!("this build beside {other_version}: medians of {ROUNDS} rounds in turns");
    let mut rest = rows;
    while let Some(first) = rest.first() {
        let (section, after) = rest.split_at(rest.iter().take_while(|row| row.key[0] == first.key[0]).count());
        println!("\n{}", bold(&first.key[0]));
        let mut table = Table::new(&["", "other", "this", "this / other", "rounds", ""]);
        for row in section {
            let [_, what, system] = &row.key;
            let is_directfs = system == "directfs" || system == "engine";
            let label = if is_directfs { what.clone() } else { format!("{what}, {system}") };
            let [least, ratio, most] = row.spread.map(|ratio| format!("{ratio:.2}"));
            let verdict = match () {
                () if row.is_slower() => "slower",
                () if row.is_faster() => "faster",
                () => "",
            };
            let (other, this) = (duration(row.other_ns), duration(row.this_ns));
            table.row(vec![label, other, this, ratio, format!("{least}-{most}"), verdict.to_owned()]);
        }
        table.print();
        rest = after;
    }
    let slower = rows.iter().filter(|row| row.is_slower()).count() as u64;
    let faster = rows.iter().filter(|row| row.is_faster()).count() as u64;
    println!(
        "\nby more than {:.0} % in at least {AGREEING} of {ROUNDS} rounds: {} slower, {} faster",
        NOTABLE * 100.0,
        counted(slower, "row"),
        counted(faster, "row")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(rounds: &[(f64, f64)]) -> Vec<[Medians; 2]> {
        let of = |ns| Medians::from([(["calls".into(), "stat".into(), "directfs".into()], ns)]);
        rounds.iter().map(|(other, this)| [of(*other), of(*this)]).collect()
    }

    fn verdict(rounds: &[(f64, f64)]) -> (bool, bool) {
        let rows = compare(&runs(rounds));
        (rows[0].is_slower(), rows[0].is_faster())
    }

    #[test]
    fn a_row_is_slower_only_if_nearly_all_rounds_say_so() {
        assert_eq!(verdict(&[(100.0, 103.0); 5]), (true, false));
        assert_eq!(verdict(&[(100.0, 97.0); 5]), (false, true));
        assert_eq!(verdict(&[(100.0, 101.0); 5]), (false, false));
        // One busy round of either build is no verdict; two rounds that disagree are none, either.
        let mut rounds = [(100.0, 103.0); 5];
        rounds[0] = (300.0, 103.0);
        assert_eq!(verdict(&rounds), (true, false));
        rounds[1] = (104.0, 103.0);
        assert_eq!(verdict(&rounds), (false, false));
    }

    #[test]
    fn rows_of_the_same_work_by_others_are_apart() {
        let row = |members: u64, kind: &str, private: bool, ns: f64| {
            serde_json::json!({"what": "stat", "members": members, "kind": kind, "private": private,
                "cells": [{"subject": "directfs", "median_ns": ns}, null, {"subject": "tmpfs"}]})
        };
        let rows = [
            row(1, "threads", false, 1.0),
            row(2, "threads", false, 2.0),
            row(2, "threads", true, 3.0),
            row(2, "processes", false, 4.0),
        ];
        let found = medians(&serde_json::json!({"sections": [{"title": "calls", "rows": rows}], "engine": null}));
        let names: Vec<(&str, f64)> = found.iter().map(|(key, ns)| (key[1].as_str(), *ns)).collect();
        let wanted = [
            ("stat", 1.0),
            ("stat, 2 processes", 4.0),
            ("stat, 2 threads", 2.0),
            ("stat, 2 threads, in separate directories", 3.0),
        ];
        assert_eq!(names, wanted);
    }

    #[test]
    fn rows_that_one_build_lacks_are_left_out() {
        let mut runs = runs(&[(100.0, 100.0), (100.0, 100.0)]);
        runs[1][0].clear();
        assert!(compare(&runs).is_empty());
    }
}
