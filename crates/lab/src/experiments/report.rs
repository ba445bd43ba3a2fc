//! Findings as text for a terminal, and as one self-contained HTML file.

use super::chart::{escaped, number, svg};
use super::findings::{Claim, Findings, Measure, Verdict};
use super::{Experiment, Medium};
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
            claim.unit,
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
.holds { color: #2a8a3c; } .weaker { color: #b8860b; } .fails { color: #c0392b; }
details { margin: 1em 0; } summary { cursor: pointer; }
.source { opacity: 0.75; }
nav a { margin-right: 1em; }
";

/// All findings in one file.
pub fn html(circumstances: &Circumstances, all: &[(&Experiment, &Findings)]) -> String {
    let mut out = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    let _ = write!(out, "<title>Reproduction of the papers' results</title><style>{STYLE}</style></head><body>");
    out.push_str("<h1>Reproduction of the papers' results</h1>");
    out.push_str("<p>Every system runs the same calls in one process, without system calls. Absolute times are therefore far below the papers', whose file systems are in the kernel: compare the subjects with each other. Work of one thread is timed in its processor time, work of several by the clock; the minimum of several rounds counts. The memories are emulated: the first number is a delay for each line read from the image that is not in an emulated 32 MiB processor cache, the second for each line written to the image. Lines of one read, and lines written past the cache, wait in groups of ten; prefetched lines arrive, up to ten at a time, while the program continues.</p>");
    out.push_str("<table><tbody>");
    for (name, value) in &circumstances.facts {
        let _ = write!(out, "<tr><td>{}</td><td>{}</td></tr>", escaped(name), escaped(value));
    }
    out.push_str("</tbody></table>");
    summary(&mut out, all);
    for (experiment, findings) in all {
        section(&mut out, experiment, findings);
    }
    out.push_str("</body></html>\n");
    out
}

/// A value of a claim; a dash for none.
fn one_digit(value: f64) -> String {
    if value.is_finite() { format!("{value:.1}") } else { "-".to_owned() }
}

impl Claim {
    /// The style of a value: its verdict if it decides.
    fn class(&self, memories: &[Medium], index: usize) -> &'static str {
        match self.verdict(self.here[index]) {
            _ if !self.decides(memories, index) => "source",
            Verdict::Holds => "holds",
            Verdict::Weaker => "weaker",
            Verdict::Fails => "fails",
        }
    }
}

/// The claims of all experiments in one table.
fn summary(out: &mut String, all: &[(&Experiment, &Findings)]) {
    out.push_str("<h2>The papers' claims and the results here</h2><table><thead><tr><th>experiment</th><th>claim</th><th>paper</th><th>here</th></tr></thead><tbody>");
    for (experiment, findings) in all {
        for claim in &findings.claims {
            let _ = write!(
                out,
                "<tr><td><a href=\"#{0}\">{0}</a></td><td>{1}</td><td>{2:.1} {3}</td><td>",
                experiment.name,
                escaped(&claim.what),
                claim.paper,
                escaped(claim.unit)
            );
            for (index, here) in claim.here.iter().enumerate() {
                let slash = if index > 0 { " / " } else { "" };
                let class = claim.class(&findings.memories, index);
                let _ = write!(out, "{slash}<span class=\"{class}\">{}</span>", one_digit(*here));
            }
            out.push_str("</td></tr>");
        }
    }
    out.push_str("</tbody></table><p>Green: at least as far as the paper. Yellow: the same direction, less far. Red: does not hold. Grey: by the clock, where virtual time decides.</p>");
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
        let _ = write!(out, "<div class=\"plot\">{}</div>", svg(plot));
        if plot.paper.is_empty() {
            out.push_str(
                "<p class=\"source\">The paper gives this as a drawing only; the numbers of its text are below.</p>",
            );
        }
    }
    for claim in &findings.claims {
        let _ = write!(
            out,
            "<p><b>{}</b>: paper {:.1} {}. {}</p>",
            escaped(&claim.what),
            claim.paper,
            escaped(claim.unit),
            escaped(&claim.sentence(&findings.memories))
        );
    }
    for note in &findings.notes {
        let _ = write!(out, "<p>{}</p>", escaped(note));
    }
    table(out, findings);
}

fn table(out: &mut String, findings: &Findings) {
    let _ = write!(
        out,
        "<details open><summary>All numbers, {}</summary><table><thead><tr><th></th><th></th>",
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
    out.push_str("</tbody></table></details>");
}

/// Tab-separated numbers for other programs.
pub fn tsv(findings: &Findings) -> String {
    let mut out = String::from("row\tsubject\tunit\tpaper");
    for memory in &findings.memories {
        let _ = match memory {
            Medium::Emulated(memory) => write!(out, "\tread+{} write+{} ns", memory.read_ns, memory.write_ns),
            Medium::Virtual(memory) => write!(out, "\tvirtual {}", memory.name),
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
