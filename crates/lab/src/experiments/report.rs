//! Findings as text for a terminal, and as one self-contained HTML file.

use super::chart::{self, number};
use super::findings::{Claim, Findings, Measure, Verdict};
use super::recorded::{Work, digits};
use super::{Experiment, Medium};
use crate::virtual_time::memories;
use charts::escape as escaped;
use std::fmt::Write;

/// Facts about the run.
#[derive(Debug, Clone, Default)]
pub struct Circumstances {
    /// Processor, processor count, kernel, version of this program, date: names and values.
    pub facts: Vec<(String, String)>,
}

fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// The column headings: paper, each memory, the ratio.
fn headings(findings: &Findings) -> Vec<String> {
    let memories = findings.memories.iter().map(Medium::name);
    ["paper".to_owned()].into_iter().chain(memories).chain(["here/paper".to_owned()]).collect()
}

fn numbers(measure: &Measure) -> Vec<String> {
    let here = measure.here.iter().map(|value| cell(*value));
    [cell(measure.paper)].into_iter().chain(here).chain([cell(measure.ratio(0))]).collect()
}

/// Text for a terminal.
pub fn text(experiment: &Experiment, findings: &Findings) -> String {
    let mut out = format!("{}: {}\n{}\n", experiment.name, experiment.question, experiment.source);
    let _ = writeln!(out, "{}\n", experiment.method);
    let width =
        |of: fn(&Measure) -> &String| findings.measures.iter().map(|m| of(m).chars().count()).max().unwrap_or(0);
    let (rows, subjects) = (width(|measure| &measure.row).max(4), width(|measure| &measure.subject).max(6));
    let _ = write!(out, "{:<rows$}  {:<subjects$}", findings.unit, "");
    headings(findings).iter().for_each(|heading| {
        let _ = write!(out, "  {heading:>12}");
    });
    out.push('\n');
    let mut last = "";
    for measure in &findings.measures {
        let row = if measure.row == last { "" } else { &measure.row };
        last = &measure.row;
        let _ = write!(out, "{row:<rows$}  {:<subjects$}", measure.subject);
        numbers(measure).iter().for_each(|value| {
            let _ = write!(out, "  {value:>12}");
        });
        out.push('\n');
    }
    for claim in &findings.claims {
        let here: Vec<String> = claim.here.iter().map(|value| one_digit(*value)).collect();
        let _ = writeln!(
            out,
            "\n{}: paper {:.1} {}, here {}.\n  {}",
            claim.what,
            claim.paper,
            claim.unit.name(),
            here.join(" / "),
            claim.sentence(&findings.memories)
        );
    }
    for note in &findings.notes {
        let _ = writeln!(out, "\n{note}");
    }
    out
}

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: 2px 10px; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
.plot { overflow-x: auto; }
.holds { color: #2a8a3c; } .beyond { color: #3a7ca5; } .weaker { color: #b8860b; } .fails { color: #c0392b; }
.decides { font-weight: bold; } .wide { overflow-x: auto; }
@media (max-width: 600px) { body { margin: 1em auto; padding: 0 0.5em; } th, td { padding: 2px 5px; } }
details { margin: 1em 0; } summary { cursor: pointer; }
.source { opacity: 0.75; }
nav a { margin-right: 1em; }
";

/// An experiment, and its findings or why it failed.
pub type Outcome<'e> = (&'e Experiment, Result<&'e Findings, &'e str>);

/// All outcomes in one file.
pub fn html(circumstances: &Circumstances, all: &[Outcome<'_>]) -> String {
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">",
    );
    let _ = write!(
        out,
        "<title>Reproduction of the papers' results</title><style>{STYLE}{}</style></head><body>",
        chart::style()
    );
    out.push_str("<h1>Reproduction of the papers' results</h1>");
    out.push_str(&conclusion(all));
    summary(&mut out, all);
    machines(&mut out);
    out.push_str("<p>Every system runs the same calls in one process, without system calls: compare the subjects with each other, not with the papers' times. Virtual columns replay recorded calls on a named machine, and are the same in every run. The others are measured by the clock: one thread in its processor time, the minimum of several rounds. Their memories are emulated: the first number is a delay for each line read from the image that is not in an emulated cache of 32 MiB, the second for each line written to it.</p>");
    out.push_str("<table><tbody>");
    for (name, value) in &circumstances.facts {
        let _ = write!(out, "<tr><td>{}</td><td>{}</td></tr>", escaped(name), escaped(value));
    }
    out.push_str("</tbody></table>");
    for (experiment, outcome) in all {
        match outcome {
            Ok(findings) => section(&mut out, experiment, findings),
            Err(failure) => {
                let _ = write!(
                    out,
                    "<h2 id=\"{0}\">{0}: {1}</h2><p class=\"fails\">It failed: {2}.</p>",
                    experiment.name,
                    escaped(experiment.question),
                    escaped(failure)
                );
            }
        }
    }
    out.push_str("</body></html>\n");
    out
}

/// How many claims hold, in one paragraph.
fn conclusion(all: &[Outcome<'_>]) -> String {
    let findings = || all.iter().filter_map(|(_, outcome)| outcome.ok());
    let decided =
        || findings().flat_map(|findings| findings.claims.iter().map(|claim| claim.decision(&findings.memories)));
    let count = |wanted: Option<Verdict>| decided().filter(|verdict| *verdict == wanted).count();
    let [holds, beyond, weaker, fails] = Verdict::ALL.map(|(verdict, _)| count(Some(verdict)));
    let failed = all.iter().filter(|(_, outcome)| outcome.is_err()).count();
    format!(
        "<p>Of {} claims of the papers, on the machine of each: {holds} hold, {weaker} go the same way but not as far, {fails} fail, {beyond} go far beyond the paper, {} were not measured. Experiments that failed: {failed}.</p>",
        decided().count(),
        count(None)
    )
}

/// The machines of virtual time.
fn machines(out: &mut String) {
    out.push_str("<div class=\"wide\"><table><thead><tr><th>machine</th><th>processor</th><th>instruction, ps</th><th>line of DRAM, ns</th><th>of the image</th><th>in sequence</th><th>streamed</th><th>flushed</th><th>fence</th><th>source</th></tr></thead><tbody>");
    for memory in memories::MEMORIES {
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
            escaped(memory.name),
            escaped(memory.processor.name),
            memory.processor.instruction_ps,
            memory.processor.memory_ps / 1000
        );
        for ns in memory.costs_ns() {
            let _ = write!(out, "<td>{ns}</td>");
        }
        let _ = write!(out, "<td>{}</td></tr>", escaped(memory.source));
    }
    out.push_str("</tbody></table></div>");
}

/// A value of a claim; a dash for none.
fn one_digit(value: f64) -> String {
    if value.is_finite() { format!("{value:.1}") } else { "-".to_owned() }
}

impl Claim {
    /// The style of a value: its verdict.
    fn class(&self, index: usize) -> &'static str {
        match self.verdict(self.here[index]) {
            _ if !self.here[index].is_finite() => "source",
            Verdict::Holds => "holds",
            Verdict::Beyond => "beyond",
            Verdict::Weaker => "weaker",
            Verdict::Fails => "fails",
        }
    }
}

/// The claims of all experiments: one table for the experiments with the same columns.
fn summary(out: &mut String, all: &[Outcome<'_>]) {
    out.push_str("<h2>The papers' claims and the results here</h2>");
    let mut columns: Vec<Vec<String>> = Vec::new();
    let names = |findings: &Findings| findings.memories.iter().map(Medium::name).collect::<Vec<_>>();
    for (_, outcome) in all {
        let names = outcome.map(names).unwrap_or_default();
        if !names.is_empty() && !columns.contains(&names) {
            columns.push(names);
        }
    }
    for columns in columns {
        out.push_str("<div class=\"wide\"><table><thead><tr><th>experiment</th><th>claim</th><th>paper</th>");
        columns.iter().for_each(|name| {
            let _ = write!(out, "<th>{}</th>", escaped(name));
        });
        out.push_str("</tr></thead><tbody>");
        for (experiment, outcome) in all {
            let Some(findings) = outcome.ok().filter(|findings| names(findings) == columns) else { continue };
            findings.claims.iter().for_each(|claim| row(out, experiment, findings, claim));
        }
        out.push_str("</tbody></table></div>");
    }
    out.push_str("<p>Green holds, yellow goes the same way but not as far, red fails, blue goes far beyond the paper. Bold values decide: the paper's machine where there is one.</p>");
}

fn row(out: &mut String, experiment: &Experiment, findings: &Findings, claim: &Claim) {
    let _ = write!(
        out,
        "<tr><td><a href=\"#{0}\">{0}</a></td><td>{1}</td><td>{2:.1} {3}</td>",
        experiment.name,
        escaped(&claim.what),
        claim.paper,
        claim.unit.name()
    );
    let span = if claim.here.len() == findings.memories.len() { 1 } else { findings.memories.len() };
    for (index, here) in claim.here.iter().enumerate() {
        let class = claim.class(index);
        let decides = if claim.decides(&findings.memories, index) { " decides" } else { "" };
        let _ = write!(out, "<td colspan=\"{span}\" class=\"{class}{decides}\">{}</td>", one_digit(*here));
    }
    out.push_str("</tr>");
}

/// What calls do, as a table.
fn work(out: &mut String, findings: &Findings) {
    if findings.work.is_empty() {
        return;
    }
    out.push_str("<details><summary>What a call does in virtual time</summary><div class=\"wide\"><table><thead><tr><th></th><th></th>");
    for priced in Work::default().priced(0, &memories::DRAM) {
        let _ = write!(out, "<th>{}</th>", priced.what);
    }
    out.push_str("</tr></thead><tbody>");
    for ((row, subject), work) in &findings.work {
        let _ = write!(out, "<tr><td>{}</td><td>{}</td>", escaped(row), escaped(subject));
        for priced in work.priced(0, &memories::DRAM) {
            let _ = write!(out, "<td>{}</td>", digits(priced.count));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div></details>");
}

fn section(out: &mut String, experiment: &Experiment, findings: &Findings) {
    let _ = write!(
        out,
        "<h2 id=\"{0}\">{0}: {1}</h2><p class=\"source\">{2}</p><p>{3}</p>",
        experiment.name,
        escaped(experiment.question),
        escaped(experiment.source),
        escaped(experiment.method)
    );
    for plot in &findings.plots {
        out.push_str(&chart::html(plot));
        if plot.paper.is_empty() {
            out.push_str(
                "<p class=\"source\">The paper gives this as a drawing only; the numbers of its text are below.</p>",
            );
        }
    }
    findings.maps.iter().for_each(|map| out.push_str(&chart::heat(map)));
    for claim in &findings.claims {
        let _ = write!(
            out,
            "<p><b>{}</b>: paper {:.1} {}. {}</p>",
            escaped(&claim.what),
            claim.paper,
            escaped(claim.unit.name()),
            escaped(&claim.sentence(&findings.memories))
        );
    }
    for note in &findings.notes {
        let _ = write!(out, "<p>{}</p>", escaped(note));
    }
    work(out, findings);
    table(out, findings);
}

fn table(out: &mut String, findings: &Findings) {
    let _ = write!(
        out,
        "<details open><summary>All numbers, {}</summary><div class=\"wide\"><table><thead><tr><th></th><th></th>",
        escaped(findings.unit)
    );
    for heading in headings(findings) {
        let _ = write!(out, "<th>{}</th>", escaped(&heading));
    }
    out.push_str("</tr></thead><tbody>");
    for measure in &findings.measures {
        let _ = write!(out, "<tr><td>{}</td><td>{}</td>", escaped(&measure.row), escaped(&measure.subject));
        for value in numbers(measure) {
            let _ = write!(out, "<td>{value}</td>");
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div></details>");
}

/// Tab-separated numbers for other programs.
pub fn tsv(findings: &Findings) -> String {
    let mut out = String::from("row\tsubject\tunit\tpaper");
    for memory in &findings.memories {
        let _ = match memory {
            Medium::Emulated(memory) => write!(out, "\tread+{} write+{} ns", memory.read_ns, memory.write_ns),
            Medium::Home(_) | Medium::Virtual(_) | Medium::Kernel(_) => write!(out, "\t{}", memory.name()),
        };
    }
    out.push('\n');
    for measure in &findings.measures {
        let _ = write!(out, "{}\t{}\t{}", measure.row, measure.subject, findings.unit);
        for value in [measure.paper].iter().chain(&measure.here) {
            let _ = write!(out, "\t{}", value.map_or_else(String::new, |value| value.to_string()));
        }
        out.push('\n');
    }
    out
}
