//! Findings as text for a terminal, and as one self-contained HTML file.

use super::chart::{self, number};
use super::findings::{Claim, Findings, Measure, Plot, Verdict};
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
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2), .text { text-align: left; }
.claims th:nth-child(2), .claims td:nth-child(2) { text-align: right; }
.claims td { white-space: nowrap; } .claims td:first-child { white-space: normal; min-width: 15em; }
.claims .of th { padding-top: 1em; }
.plot { overflow-x: auto; }
.holds { color: #2a8a3c; } .beyond { color: #3a7ca5; } .weaker { color: #b8860b; } .fails { color: #c0392b; }
.decides { font-weight: bold; } .wide { overflow-x: auto; }
@media (max-width: 600px) { body { margin: 1em auto; padding: 0 0.5em; } th, td { padding: 2px 5px; } }
details { margin: 1em 0; } summary { cursor: pointer; }
.source { opacity: 0.75; } .reasons { font-size: 13px; opacity: 0.85; }
nav a { margin-right: 1em; }
";

/// What the report says of one experiment. It is made once, when the experiment ends, and can be
/// kept in a file, so that a report can be continued and put together from several processes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Part {
    /// The experiment.
    pub name: String,
    /// How long it took.
    pub seconds: f64,
    /// Whether it failed.
    pub has_failed: bool,
    /// Numbers of claims: in the order of [`Verdict::ALL`], then those that were not measured.
    verdicts: [usize; 5],
    /// Columns of the table of claims.
    columns: Vec<String>,
    /// Rows of that table.
    rows: String,
    section: String,
}

/// First line of a kept part.
const KEPT: &str = "part of a report, version 2";

/// Below the plots of an experiment whose paper has claims, but no values for all of the plots.
const DRAWN_ONLY: &str = "<p class=\"source\">Plots without the paper's values: it gives no numbers for them. Those of its text are below.</p>";

impl Part {
    /// The part of an experiment, from its findings or from why it failed.
    pub fn new(experiment: &Experiment, outcome: Result<&Findings, &str>, seconds: f64) -> Part {
        let mut part = Part { name: experiment.name.to_owned(), seconds, ..Part::default() };
        match outcome {
            Ok(findings) => {
                part.columns = findings.memories.iter().map(Medium::name).collect();
                if !findings.claims.is_empty() {
                    let columns = part.columns.len() + 2;
                    let heading = format!("<a href=\"#{0}\">{0}</a>", experiment.name);
                    let _ = write!(part.rows, "<tr class=\"of\"><th colspan=\"{columns}\">{heading}</th></tr>");
                }
                let reasons = Reasons::new(experiment.name, findings);
                for claim in &findings.claims {
                    row(&mut part.rows, findings, claim, &reasons.mark(claim));
                    let decision = claim.decision(&findings.memories);
                    let at = Verdict::ALL.iter().position(|(verdict, _)| Some(*verdict) == decision);
                    part.verdicts[at.unwrap_or(Verdict::ALL.len())] += 1;
                }
                section(&mut part.section, experiment, findings, &reasons);
            }
            Err(failure) => {
                part.has_failed = true;
                let _ = write!(
                    part.section,
                    "<h2 id=\"{0}\">{0}: {1}</h2><p class=\"fails\">It failed: {2}.</p>",
                    experiment.name,
                    escaped(experiment.question),
                    escaped(failure)
                );
            }
        }
        part
    }

    /// As the content of a file. `made_by` says what must be equal for the part to be used again.
    pub fn to_text(&self, made_by: &str) -> String {
        let verdicts = self.verdicts.map(|count| count.to_string()).join(" ");
        format!(
            "{KEPT}\n{made_by}\n{}\n{}\n{}\n{verdicts}\n{}\n{}\n{}{}",
            self.name,
            self.seconds,
            self.has_failed,
            self.columns.join("\t"),
            self.rows.len(),
            self.rows,
            self.section
        )
    }

    /// From the content of a file; none if it is no part, or another program or size made it.
    pub fn from_text(text: &str, made_by: &str) -> Option<Part> {
        let mut rest = text;
        let mut line = || {
            let (line, after) = rest.split_once('\n')?;
            rest = after;
            Some(line)
        };
        if line()? != KEPT || line()? != made_by {
            return None;
        }
        let (name, seconds, has_failed) = (line()?.to_owned(), line()?.parse().ok()?, line()?.parse().ok()?);
        let counts: Vec<usize> = line()?.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        let columns = line()?.split('\t').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let length: usize = line()?.parse().ok()?;
        let (rows, section) = rest.split_at_checked(length)?;
        let (rows, section) = (rows.to_owned(), section.to_owned());
        Some(Part { name, seconds, has_failed, verdicts: counts.try_into().ok()?, columns, rows, section })
    }
}

/// All parts in one file.
pub fn html(circumstances: &Circumstances, all: &[Part]) -> String {
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
    let seconds: Vec<String> = all.iter().map(|part| format!("{} {:.0}", part.name, part.seconds)).collect();
    let seconds = ("seconds".to_owned(), seconds.join(", "));
    for (name, value) in circumstances.facts.iter().chain([&seconds]) {
        let _ = write!(out, "<tr><td>{}</td><td>{}</td></tr>", escaped(name), escaped(value));
    }
    out.push_str("</tbody></table>");
    all.iter().for_each(|part| out.push_str(&part.section));
    out.push_str("</body></html>\n");
    out
}

/// How many claims hold, in one paragraph.
fn conclusion(all: &[Part]) -> String {
    let count = |index: usize| all.iter().map(|part| part.verdicts[index]).sum::<usize>();
    let counts: [usize; 5] = std::array::from_fn(count);
    let [holds, beyond, weaker, fails, unknown] = counts;
    let failed = all.iter().filter(|part| part.has_failed).count();
    format!(
        "<p>Of {} claims of the papers, on the machine of each: {holds} hold, {weaker} go the same way but not as far, {fails} fail, {beyond} go far beyond the paper, {unknown} were not measured. Experiments that failed: {failed}.</p>",
        counts.iter().sum::<usize>()
    )
}

/// The machines of virtual time.
fn machines(out: &mut String) {
    out.push_str("<div class=\"wide\"><table><thead><tr><th>machine</th><th>processor</th><th>instruction, ps</th><th>line of DRAM, ns</th><th>of the image</th><th>in sequence</th><th>streamed</th><th>flushed</th><th>fence</th><th class=\"text\">source</th></tr></thead><tbody>");
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
        let _ = write!(out, "<td class=\"text\">{}</td></tr>", escaped(memory.source));
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
fn summary(out: &mut String, all: &[Part]) {
    out.push_str("<h2>The papers' claims and the results here</h2>");
    let mut tables: Vec<&[String]> = Vec::new();
    for part in all.iter().filter(|part| !part.rows.is_empty()) {
        if !tables.contains(&&part.columns[..]) {
            tables.push(&part.columns);
        }
    }
    for columns in tables {
        out.push_str("<div class=\"wide\"><table class=\"claims\"><thead><tr><th>claim</th><th>paper</th>");
        columns.iter().for_each(|name| {
            let _ = write!(out, "<th>{}</th>", escaped(name));
        });
        out.push_str("</tr></thead><tbody>");
        all.iter().filter(|part| part.columns == columns).for_each(|part| out.push_str(&part.rows));
        out.push_str("</tbody></table></div>");
    }
    out.push_str("<p>Green holds, yellow goes the same way but not as far, red fails, blue goes far beyond the paper. Bold values decide: the paper's machine where there is one. A number leads to the reason. Whiskers in plots span the rounds by the clock. Virtual time has none: its rounds agree. Dashed lines are a model's.</p>");
}

/// Why claims of an experiment do not simply hold: each reason once, as a footnote.
struct Reasons<'f> {
    experiment: &'static str,
    memories: &'f [Medium],
    all: Vec<&'f str>,
}

impl<'f> Reasons<'f> {
    fn new(experiment: &'static str, findings: &'f Findings) -> Reasons<'f> {
        let mut all: Vec<&str> = Vec::new();
        for reason in findings.claims.iter().filter_map(|claim| claim.explanation(&findings.memories)) {
            if !all.contains(&reason) {
                all.push(reason);
            }
        }
        Reasons { experiment, memories: &findings.memories, all }
    }

    /// The number of a claim's footnote, as a link; nothing for a claim that holds.
    fn mark(&self, claim: &Claim) -> String {
        let reason = claim.explanation(self.memories);
        let at = reason.and_then(|reason| self.all.iter().position(|known| *known == reason));
        at.map_or_else(String::new, |at| {
            format!("<sup><a href=\"#{}-{number}\">{number}</a></sup>", self.experiment, number = at + 1)
        })
    }

    fn write(&self, out: &mut String) {
        if self.all.is_empty() {
            return;
        }
        out.push_str("<ol class=\"reasons\">");
        for (at, reason) in self.all.iter().enumerate() {
            let _ = write!(out, "<li id=\"{}-{}\">{}</li>", self.experiment, at + 1, escaped(reason));
        }
        out.push_str("</ol>");
    }
}

fn row(out: &mut String, findings: &Findings, claim: &Claim, mark: &str) {
    let (what, unit) = (escaped(&claim.what), claim.unit.name());
    let _ = write!(out, "<tr><td>{what}{mark}</td><td>{:.1} {unit}</td>", claim.paper);
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

/// Whether the paper gives no numbers for a plot. A plot of published figures has them as its own.
fn is_drawn_only(findings: &Findings, plot: &Plot) -> bool {
    let is_known = |row: &String| plot.here.iter().any(|series| findings.paper(row, &series.name).is_some());
    plot.paper.is_empty() && !plot.x_labels.iter().any(is_known)
}

fn section(out: &mut String, experiment: &Experiment, findings: &Findings, reasons: &Reasons<'_>) {
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
    }
    if !findings.claims.is_empty() && findings.plots.iter().any(|plot| is_drawn_only(findings, plot)) {
        out.push_str(DRAWN_ONLY);
    }
    findings.maps.iter().for_each(|map| out.push_str(&chart::heat(map)));
    if !findings.claims.is_empty() {
        out.push_str("<ul>");
        for claim in &findings.claims {
            let _ = write!(
                out,
                "<li><b>{}</b>: paper {:.1} {}. {}{}</li>",
                escaped(&claim.what),
                claim.paper,
                escaped(claim.unit.name()),
                escaped(&claim.judgement(&findings.memories)),
                reasons.mark(claim)
            );
        }
        out.push_str("</ul>");
        reasons.write(out);
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
    let rows: Vec<Vec<String>> = findings.measures.iter().map(numbers).collect();
    // A column of dashes says nothing.
    let is_used = |column: &usize| rows.iter().any(|row| row[*column] != cell(None));
    let headings = headings(findings);
    let used: Vec<usize> = (0..headings.len()).filter(is_used).collect();
    for column in &used {
        let _ = write!(out, "<th>{}</th>", escaped(&headings[*column]));
    }
    out.push_str("</tr></thead><tbody>");
    for (measure, values) in findings.measures.iter().zip(&rows) {
        let _ = write!(out, "<tr><td>{}</td><td>{}</td>", escaped(&measure.row), escaped(&measure.subject));
        for column in &used {
            let _ = write!(out, "<td>{}</td>", values[*column]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_stands_once_and_every_claim_that_does_not_hold_leads_to_it() {
        let claim = |what: &str, here, reason: &str| Claim::gain(what.into(), 50.0, vec![here], reason.into());
        let mut findings = Findings::new("µs", &[super::super::MEMORIES[0]]);
        findings.claims = vec![
            claim("stat", 10.0, "Content & metadata."),
            claim("open", 60.0, "Nobody reads this."),
            claim("unlink", -5.0, "Freeing."),
            claim("rmdir", 12.0, "Content & metadata."),
        ];
        let experiment = super::super::find("directfs-fig8").expect("it is in the catalogue");
        let page = html(&Circumstances::default(), &[Part::new(experiment, Ok(&findings), 0.0)]);
        for (reason, count) in [("Content &amp; metadata.", 1), ("Freeing.", 1), ("Nobody", 0)] {
            assert_eq!(page.matches(reason).count(), count, "{reason}");
        }
        // Once in the table of claims, once in the experiment's section.
        for (what, mark) in [("stat", "1"), ("unlink", "2"), ("rmdir", "1")] {
            let link = format!("<sup><a href=\"#directfs-fig8-{mark}\">{mark}</a></sup>");
            assert!(page.contains(&format!("<td>{what}{link}</td>")), "{what}: {page}");
            assert!(
                page.split(&format!("<b>{what}</b>"))
                    .nth(1)
                    .is_some_and(|rest| rest.split("</li>").next().is_some_and(|own| own.ends_with(&link))),
                "{what}: {page}"
            );
        }
        assert!(page.contains("<td>open</td>") && page.contains("id=\"directfs-fig8-2\""));
    }
}
