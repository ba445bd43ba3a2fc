//! The result of an experiment: measured numbers next to the paper's, and which of the paper's
//! claims hold here.

use super::memory_name;
use super::recorded::{Work, digits};
use crate::virtual_time::memories::Memory;
use pmem::Delays;
use std::collections::BTreeMap;

/// How the values of a column were obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// By the clock, with an emulated memory.
    Emulated(Delays),
    /// In virtual time, on the machine of the paper, which decides.
    Home(Memory),
    /// In virtual time, on another machine.
    Virtual(Memory),
    /// In virtual time, on the machine of the paper, with what a kernel adds to each call.
    Kernel(Memory),
}

impl Medium {
    /// Its name in reports.
    pub fn name(&self) -> String {
        match self {
            Medium::Emulated(delays) => memory_name(*delays),
            Medium::Home(memory) | Medium::Virtual(memory) => format!("virtual {}", memory.name),
            Medium::Kernel(memory) => format!("virtual {} in a kernel", memory.name),
        }
    }

    /// Whether it is virtual time.
    pub const fn is_virtual(&self) -> bool {
        !matches!(self, Medium::Emulated(_))
    }

    /// Whether it is the machine of the paper.
    pub const fn is_home(&self) -> bool {
        matches!(self, Medium::Home(_))
    }
}

/// A number of a paper and its counterparts here.
#[derive(Debug, Clone, PartialEq)]
pub struct Measure {
    /// The operation.
    pub row: String,
    /// The subject.
    pub subject: String,
    /// The paper's value, if the paper states it in numbers.
    pub paper: Option<f64>,
    /// The measured values, one per memory.
    pub here: Vec<Option<f64>>,
}

/// What the numbers of a claim count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A gain in per cent. Zero is no effect.
    Gain,
    /// A ratio. One is no effect.
    Times,
    /// A share in per cent, which has no direction.
    Share,
    /// A duration in milliseconds, which has no direction.
    Milliseconds,
}

impl Unit {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Gain | Unit::Share => "%",
            Unit::Times => "times",
            Unit::Milliseconds => "ms",
        }
    }
}

/// Which values support a claim, and which refute it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sense {
    /// Values from the paper's on support the claim; from this one down they refute it.
    AtLeast(f64),
    /// Values up to the paper's support the claim; from this one on they refute it.
    AtMost(f64),
    /// Values near the paper's support the claim; others by more than a factor of two refute it.
    About,
    /// There is no effect: values near the paper's support the claim, on either side.
    NoEffect,
}

/// A conclusion of a paper as a number, and the result here.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The claim in words.
    pub what: String,
    /// Unit of the numbers.
    pub unit: Unit,
    /// The paper's value.
    pub paper: f64,
    /// The values here, one per memory.
    pub here: Vec<f64>,
    /// When the claim holds.
    pub sense: Sense,
    /// Why it may not hold here; printed only where it does not.
    pub reason: String,
}

/// A data series of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its subject.
    pub name: String,
    /// Values, one per position on the axis.
    pub values: Vec<Option<f64>>,
    /// Ranges of the rounds of these values; empty if nothing was repeated.
    pub ranges: Vec<Option<Range>>,
    /// Whether a model gives the values.
    pub is_modelled: bool,
}

impl Series {
    /// Values that do not differ between rounds.
    pub fn new(name: &str, values: Vec<Option<f64>>) -> Series {
        Series { name: name.to_owned(), values, ranges: Vec::new(), is_modelled: false }
    }
}

/// The least and the greatest of a measurement's rounds. Virtual time has none: its rounds agree.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The least.
    pub least: f64,
    /// The greatest.
    pub most: f64,
}

impl Range {
    /// The range of no rounds.
    pub const NONE: Range = Range { least: f64::INFINITY, most: f64::NEG_INFINITY };

    /// The range of some rounds.
    pub fn of(rounds: impl IntoIterator<Item = f64>) -> Range {
        rounds.into_iter().fold(Range::NONE, |range, value| range.with(Range { least: value, most: value }))
    }

    /// The range of these rounds and of those.
    pub fn with(self, other: Range) -> Range {
        Range { least: self.least.min(other.least), most: self.most.max(other.most) }
    }
}

/// The basis of most plots: the memory without delay.
pub const MEASURED: &str = "measured here, no delay";

/// A plot of the measured values, and of the paper's, if they are known in numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// Unit of the values.
    pub unit: String,
    /// Positions on the axis.
    pub x_labels: Vec<String>,
    /// Whether lines connect the positions, instead of bars.
    pub lines: bool,
    /// Origin of the values, as the heading of the panel.
    pub basis: String,
    /// The values here.
    pub here: Vec<Series>,
    /// The paper's values; empty if it has no numbers.
    pub paper: Vec<Series>,
}

/// Gains in per cent by two quantities.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatMap {
    /// What it shows.
    pub title: String,
    /// What columns and rows are.
    pub axes: [String; 2],
    /// The columns.
    pub columns: Vec<String>,
    /// The rows, with a value for each column.
    pub rows: Vec<(String, Vec<Option<f64>>)>,
}

/// All results of an experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Findings {
    /// Unit of the measures.
    pub unit: &'static str,
    /// The memories, in the order of the measures' values.
    pub memories: Vec<Medium>,
    /// Measurements.
    pub measures: Vec<Measure>,
    /// Claims.
    pub claims: Vec<Claim>,
    /// Plots.
    pub plots: Vec<Plot>,
    /// Heat maps.
    pub maps: Vec<HeatMap>,
    /// Ranges of the rounds by the clock, by row and subject, one per memory.
    pub ranges: BTreeMap<(String, String), Vec<Range>>,
    /// What calls do, by row and subject.
    pub work: BTreeMap<(String, String), Work>,
    /// Further facts needed to interpret the numbers.
    pub notes: Vec<String>,
}

/// The result of comparing a number with the paper's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As far as the paper.
    Holds,
    /// More than twice as far as the paper: something differs, in favour of the claim.
    Beyond,
    /// The direction of the paper's figure, less far.
    Weaker,
    /// No effect, or the opposite direction.
    Fails,
}

impl Verdict {
    /// All, and the words for them.
    pub const ALL: [(Verdict, &'static str); 4] = [
        (Verdict::Holds, "it holds"),
        (Verdict::Beyond, "it goes far beyond the paper"),
        (Verdict::Weaker, "it goes the same way, but not as far"),
        (Verdict::Fails, "it does not hold"),
    ];
}

/// An `About` claim holds within this fraction of the paper's number.
const ABOUT: f64 = 0.25;
/// A quantity that differs by more than this factor refutes a claim, and a greater effect goes
/// beyond it.
const FAR: f64 = 2.0;
/// Points of per cent within which two gains are alike. A gain of the paper below it is none.
const ALIKE: f64 = 5.0;

impl Claim {
    /// A gain of so many per cent, or a loss if it is negative. A paper's gain of some points means
    /// that there is none.
    pub fn gain(what: String, paper: f64, here: Vec<f64>, reason: String) -> Claim {
        let sense = match paper {
            _ if paper.abs() < ALIKE => Sense::NoEffect,
            _ if paper > 0.0 => Sense::AtLeast(0.0),
            _ => Sense::AtMost(0.0),
        };
        Claim { what, unit: Unit::Gain, paper, here, sense, reason }
    }

    /// A gain without a number in the paper: any counts.
    pub fn any_gain(what: String, here: Vec<f64>, reason: String) -> Claim {
        Claim { what, unit: Unit::Gain, paper: 0.0, here, sense: Sense::AtLeast(0.0), reason }
    }

    /// A duration of at most so many milliseconds.
    pub fn within_ms(what: String, paper: f64, here: Vec<f64>, reason: String) -> Claim {
        Claim { what, unit: Unit::Milliseconds, paper, here, sense: Sense::AtMost(FAR * paper), reason }
    }

    /// A share of about so many per cent.
    pub fn share(what: String, paper: f64, here: Vec<f64>, reason: String) -> Claim {
        Claim { what, unit: Unit::Share, paper, here, sense: Sense::About, reason }
    }

    /// The verdict for one memory.
    pub fn verdict(&self, here: f64) -> Verdict {
        let paper = self.paper;
        // An effect and the paper's, from the value that refutes the claim.
        let against = |refuted: f64, effect: f64, in_paper: f64, is_quantity: bool| match () {
            _ if effect <= 0.0 => Verdict::Fails,
            _ if effect < in_paper => Verdict::Weaker,
            _ if is_quantity && here < paper / FAR => Verdict::Beyond,
            _ if !is_quantity && in_paper > 0.0 && refuted != paper && effect > FAR * in_paper + ALIKE / 100.0 => {
                Verdict::Beyond
            }
            _ => Verdict::Holds,
        };
        match self.sense {
            Sense::AtLeast(refuted) => against(refuted, here - refuted, paper - refuted, false),
            // A ratio that is to stay small cannot be too small.
            Sense::AtMost(refuted) if self.unit == Unit::Times => match () {
                _ if here <= paper => Verdict::Holds,
                _ if here < refuted => Verdict::Weaker,
                _ => Verdict::Fails,
            },
            Sense::AtMost(refuted) => {
                against(refuted, refuted - here, refuted - paper, self.unit == Unit::Milliseconds)
            }
            Sense::About => match () {
                _ if (here - paper).abs() <= ABOUT * paper.abs() => Verdict::Holds,
                _ if here > paper / FAR && here < paper * FAR => Verdict::Weaker,
                _ => Verdict::Fails,
            },
            Sense::NoEffect => match (here - paper).abs() {
                distance if distance <= ALIKE => Verdict::Holds,
                distance if distance <= FAR * ALIKE => Verdict::Weaker,
                _ => Verdict::Fails,
            },
        }
    }

    /// The column of a value; none for a claim about all memories at once, which has one value.
    fn medium<'m>(&self, memories: &'m [Medium], index: usize) -> Option<&'m Medium> {
        memories.get(index).filter(|_| self.here.len() == memories.len())
    }

    /// Whether a value decides: that of the paper's machine in virtual time; without one, those of
    /// virtual time; without these, all.
    pub fn decides(&self, memories: &[Medium], index: usize) -> bool {
        let rank = |index: usize| match self.medium(memories, index) {
            _ if !self.here[index].is_finite() => 0,
            Some(Medium::Kernel(_)) => 0,
            Some(medium) if medium.is_home() => 3,
            Some(medium) if medium.is_virtual() => 2,
            _ => 1,
        };
        let best = (0..self.here.len()).map(rank).max().unwrap_or(0);
        best > 0 && rank(index) == best
    }

    /// The verdict of the claim: the worst of the values that decide; none if nothing was measured.
    pub fn decision(&self, memories: &[Medium]) -> Option<Verdict> {
        let deciding = (0..self.here.len()).filter(|index| self.decides(memories, *index));
        deciding.map(|index| self.verdict(self.here[index])).max()
    }

    /// Whether the claim holds, where it does not, and why.
    pub fn sentence(&self, memories: &[Medium]) -> String {
        let judgement = self.judgement(memories);
        match self.explanation(memories) {
            None => judgement,
            Some(reason) => format!("{judgement} {reason}"),
        }
    }

    /// The reason, where the claim does not simply hold.
    pub fn explanation(&self, memories: &[Medium]) -> Option<&str> {
        let needs_one = self.decision(memories).is_some_and(|verdict| verdict != Verdict::Holds);
        Some(&self.reason[..]).filter(|reason| needs_one && !reason.is_empty())
    }

    /// One sentence: whether the claim holds, and where it does not.
    pub fn judgement(&self, memories: &[Medium]) -> String {
        let deciding = (0..self.here.len()).filter(|index| self.decides(memories, *index));
        let judged: Vec<_> = deciding
            .map(|index| (self.medium(memories, index), self.here[index], self.verdict(self.here[index])))
            .collect();
        if judged.is_empty() {
            return "It was not measured.".to_owned();
        }
        if judged.iter().all(|(_, _, verdict)| *verdict == Verdict::Holds) {
            return "It holds here.".to_owned();
        }
        let named = |wanted: Verdict| -> Vec<String> {
            let those = judged.iter().filter(|(_, _, verdict)| *verdict == wanted);
            let with = |medium: &Option<&Medium>| medium.map_or(String::new(), |one| format!(" with {}", one.name()));
            those.map(|(medium, here, _)| format!("{here:.1} {}{}", self.unit.name(), with(medium))).collect()
        };
        let mut parts = Vec::new();
        for (verdict, words) in Verdict::ALL {
            let values = named(verdict);
            if !values.is_empty() {
                parts.push(format!("{words}: {}", values.join(", ")));
            }
        }
        let mut sentence = parts.join("; ");
        if let Some(first) = sentence.get(..1).map(str::to_uppercase) {
            sentence.replace_range(..1, &first);
        }
        sentence + "."
    }
}

impl Measure {
    /// The value here divided by the paper's, for a memory.
    pub fn ratio(&self, memory: usize) -> Option<f64> {
        let paper = self.paper.filter(|paper| *paper != 0.0)?;
        Some(self.here.get(memory).copied().flatten()? / paper)
    }
}

impl Findings {
    /// Empty findings.
    pub fn new(unit: &'static str, memories: &[Delays]) -> Findings {
        let (measures, claims, plots, notes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let memories = memories.iter().copied().map(Medium::Emulated).collect();
        Findings {
            unit,
            memories,
            measures,
            claims,
            plots,
            maps: Vec::new(),
            ranges: BTreeMap::new(),
            work: BTreeMap::new(),
            notes,
        }
    }

    /// Adds columns in virtual time, of which the paper's machine decides.
    pub fn with_virtual(mut self, memories: &[Memory], home: &Memory) -> Findings {
        let medium = |memory: &Memory| if memory == home { Medium::Home(*memory) } else { Medium::Virtual(*memory) };
        self.memories.extend(memories.iter().map(medium));
        self
    }

    /// Adds a column with what a kernel adds to each call on the paper's machine. It decides
    /// nothing: the addition is one figure for all calls.
    pub fn with_kernel(mut self) -> Findings {
        if let Some((_, home)) = self.home() {
            self.memories.push(Medium::Kernel(*home));
        }
        self
    }

    /// The paper's machine among the columns in virtual time; without it the first of these.
    pub(super) fn home(&self) -> Option<(usize, &Memory)> {
        let virtual_ones = self.memories.iter().filter(|medium| medium.is_virtual()).enumerate();
        let memory = |(index, medium)| match medium {
            &Medium::Home(ref memory) | &Medium::Virtual(ref memory) => Some((index, memory)),
            Medium::Emulated(_) | Medium::Kernel(_) => None,
        };
        let mut each = virtual_ones.clone().filter_map(memory);
        virtual_ones.filter(|(_, medium)| medium.is_home()).filter_map(memory).next().or_else(|| each.next())
    }

    /// Why a subject takes more or less time than another one in a row: what both do there, at the
    /// prices of the paper's machine.
    pub fn because(&self, row: &str, subject: &str, base: &str) -> String {
        let work = |name: &str| self.work.get(&(row.to_owned(), name.to_owned()));
        let (Some((index, memory)), Some(own), Some(other)) = (self.home(), work(subject), work(base)) else {
            return "Virtual time, which counts what calls do, was not taken.".to_owned();
        };
        let (own, other) = (own.priced(index, memory), other.priced(index, memory));
        let mut each: Vec<(f64, String)> = own
            .iter()
            .zip(&other)
            .filter(|(own, other)| (own.count - other.count).abs() >= 0.05)
            .map(|(own, other)| {
                let ns = own.ns() - other.ns();
                (ns, format!("{} {} to {} ({ns:+.0} ns)", own.what, digits(other.count), digits(own.count)))
            })
            .collect();
        each.sort_by(|one, two| two.0.abs().total_cmp(&one.0.abs()));
        let each: Vec<String> = each.into_iter().map(|(_, text)| text).collect();
        match each.is_empty() {
            true => format!("{base} and {subject} do the same for {row}."),
            false => format!("From {base} to {subject} for {row}, {}: {}.", memory.name, each.join(", ")),
        }
    }

    /// The least and the greatest of the rows of a mean, on the deciding machine.
    pub fn mean_of(&self, rows: &[&str], subject: &str, base: &str) -> String {
        let column = self.memories.iter().position(Medium::is_home);
        let column = column.or_else(|| self.memories.iter().position(Medium::is_virtual)).unwrap_or(0);
        let each = rows.iter().map(|row| (self.reductions(row, subject, base)[column], *row));
        let mut each: Vec<(f64, &str)> = each.filter(|(value, _)| value.is_finite()).collect();
        each.sort_by(|one, two| one.0.total_cmp(&two.0));
        let (Some(least), Some(most)) = (each.first(), each.last()) else { return String::new() };
        let name = self.memories[column].name();
        format!(
            "Mean of {} rows with {name}: from {:.1} % ({}) to {:.1} % ({}).",
            each.len(),
            least.0,
            least.1,
            most.0,
            most.1
        )
    }

    /// The measured value of a subject in a row, for a memory.
    pub fn here(&self, row: &str, subject: &str, memory: usize) -> Option<f64> {
        let measure = self.measures.iter().find(|measure| measure.row == row && measure.subject == subject)?;
        measure.here.get(memory).copied().flatten()
    }

    /// Adds a row of rates by the clock: the greatest of the rounds counts.
    pub fn add_rates(&mut self, row: &str, subject: &str, rates: Vec<Range>) {
        self.add_rounds(row, subject, rates.into_iter().map(|range| (range.most, range)).collect());
    }

    /// Adds a row of measurements by the clock, with the value that counts and the range of its
    /// rounds for each memory. What had no round, see [`Range::NONE`], is missing.
    pub fn add_rounds(&mut self, row: &str, subject: &str, rounds: Vec<(f64, Range)>) {
        let (here, ranges) =
            rounds.into_iter().map(|(value, range)| (value.is_finite().then_some(value), range)).unzip();
        self.measures.push(Measure { row: row.to_owned(), subject: subject.to_owned(), paper: None, here });
        self.ranges.insert((row.to_owned(), subject.to_owned()), ranges);
    }

    /// A subject's values in some rows with a memory, for a plot.
    pub fn series<R: AsRef<str>>(&self, rows: &[R], subject: &str, memory: usize) -> Series {
        let range = |row: &R| self.ranges.get(&(row.as_ref().to_owned(), subject.to_owned()))?.get(memory).copied();
        let range = |row: &R| range(row).filter(|range| *range != Range::NONE);
        let ranges = rows.iter().map(range).collect();
        Series {
            ranges,
            ..Series::new(subject, rows.iter().map(|row| self.here(row.as_ref(), subject, memory)).collect())
        }
    }

    /// The paper's value.
    pub fn paper(&self, row: &str, subject: &str) -> Option<f64> {
        self.measures.iter().find(|measure| measure.row == row && measure.subject == subject)?.paper
    }

    /// By how much a subject is below another one in a row, in per cent, for each memory; not a
    /// number where either is missing.
    pub fn reductions(&self, row: &str, subject: &str, base: &str) -> Vec<f64> {
        let of = |memory| Some(less(self.here(row, subject, memory)?, self.here(row, base, memory)?));
        (0..self.memories.len()).map(|memory| of(memory).unwrap_or(f64::NAN)).collect()
    }

    /// The mean of [`reductions`](Self::reductions) over rows.
    pub fn mean_reductions(&self, rows: &[&str], subject: &str, base: &str) -> Vec<f64> {
        let each: Vec<Vec<f64>> = rows.iter().map(|row| self.reductions(row, subject, base)).collect();
        let mean = |memory: usize| each.iter().map(|row| row[memory]).sum::<f64>() / each.len() as f64;
        (0..self.memories.len()).map(mean).collect()
    }

    /// The column of plots, and its name: the machine that decides, else the first with values.
    pub fn plotted(&self) -> (usize, String) {
        let has_values = |memory: &usize| self.measures.iter().any(|measure| measure.here[*memory].is_some());
        let home = self.memories.iter().position(Medium::is_home).filter(has_values);
        let memory = home.or_else(|| (0..self.memories.len()).find(has_values)).unwrap_or(0);
        match self.memories.get(memory) {
            Some(Medium::Emulated(_)) | None => (memory, MEASURED.to_owned()),
            Some(medium) => (memory, medium.name()),
        }
    }

    /// A plot of some rows and subjects in per cent of one subject, here and in the paper.
    pub fn relative_plot(&self, title: &str, rows: &[&str], subjects: &[&str], base: &str) -> Plot {
        let share = |value: Option<f64>, base: Option<f64>| Some(100.0 * value? / base.filter(|base| *base > 0.0)?);
        let (memory, basis) = self.plotted();
        let here = |subject: &&str| {
            let of = |row: &&str| share(self.here(row, subject, memory), self.here(row, base, memory));
            Series::new(subject, rows.iter().map(of).collect())
        };
        let paper = |subject: &&str| {
            let of = |row: &&str| share(self.paper(row, subject), self.paper(row, base));
            Series::new(subject, rows.iter().map(of).collect())
        };
        let known = |series: &Series| series.values.iter().any(Option::is_some);
        Plot {
            title: title.to_owned(),
            unit: format!("% of {base}"),
            x_labels: rows.iter().map(|row| (*row).to_owned()).collect(),
            lines: false,
            basis,
            here: subjects.iter().map(here).collect(),
            paper: subjects.iter().map(paper).filter(known).collect(),
        }
    }
}

/// By how much `value` is less than `base`, in per cent.
pub fn less(value: f64, base: f64) -> f64 {
    if base == 0.0 { 0.0 } else { 100.0 * (1.0 - value / base) }
}

/// By how much `value` is more than `base`, in per cent.
pub fn more(value: f64, base: f64) -> f64 {
    -less(value, base)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(paper: f64, here: &[f64]) -> Claim {
        let reason = "The kernel is not on the path.".to_owned();
        Claim::gain("DirectFS is faster".to_owned(), paper, here.to_vec(), reason)
    }

    fn judged(claim: &Claim, here: &[f64]) -> Vec<Verdict> {
        here.iter().map(|here| claim.verdict(*here)).collect()
    }

    const TWO_DELAYS: [Delays; 2] = [Delays { read_ns: 0, write_ns: 0 }, Delays { read_ns: 100, write_ns: 200 }];
    const TWO: [Medium; 2] = [Medium::Emulated(TWO_DELAYS[0]), Medium::Emulated(TWO_DELAYS[1])];

    #[test]
    fn a_claim_that_holds_everywhere_gives_no_reasons() {
        assert_eq!(claim(30.0, &[31.0, 60.0]).sentence(&TWO), "It holds here.");
    }

    #[test]
    fn a_claim_that_does_not_hold_reports_where_and_why() {
        assert_eq!(
            claim(30.0, &[31.0, 10.0]).sentence(&TWO),
            "It holds: 31.0 % with no delay; it goes the same way, but not as far: 10.0 % with +100/200 ns. The kernel is not on the path."
        );
        let fails = claim(30.0, &[-3.0, 30.0]).sentence(&TWO);
        assert!(fails.contains("it does not hold: -3.0 % with no delay"), "{fails}");
    }

    #[test]
    fn a_gain_is_red_from_zero_down_and_beyond_from_twice_the_papers_up() {
        let gain = claim(30.0, &[]);
        let [holds, beyond, weaker, fails] = Verdict::ALL.map(|(verdict, _)| verdict);
        assert_eq!(
            judged(&gain, &[30.0, 59.0, 61.0, 29.0, 0.1, 0.0, -30.0]),
            [holds, holds, beyond, weaker, weaker, fails, fails]
        );
        // A loss in the paper, as with ls under ByVFS.
        let loss = claim(-6.4, &[]);
        assert_eq!(judged(&loss, &[-6.4, -12.0, -37.0, -1.0, 0.0, 5.0]), [holds, holds, beyond, weaker, fails, fails]);
    }

    #[test]
    fn where_the_paper_gains_nothing_a_gain_is_as_wrong_as_a_loss() {
        let none = claim(0.4, &[]);
        let [holds, _, weaker, fails] = Verdict::ALL.map(|(verdict, _)| verdict);
        assert_eq!(
            judged(&none, &[0.4, 5.0, -4.0, 9.0, -9.0, 52.0, -52.0]),
            [holds, holds, holds, weaker, weaker, fails, fails]
        );
    }

    #[test]
    fn any_gain_counts_where_the_paper_has_no_number_but_none_does_not() {
        let any = Claim::any_gain("it gains".to_owned(), Vec::new(), String::new());
        assert_eq!(
            judged(&any, &[0.1, 90.0, 0.0, -0.1, -5076.0]),
            [Verdict::Holds, Verdict::Holds, Verdict::Fails, Verdict::Fails, Verdict::Fails]
        );
    }

    #[test]
    fn two_threads_twice_as_fast_are_red_where_they_must_not_scale_and_one_fifth_where_they_must() {
        let times = |paper, sense| Claim { unit: Unit::Times, sense, ..claim(paper, &[]) };
        let [holds, beyond, weaker, fails] = Verdict::ALL.map(|(verdict, _)| verdict);
        let stops = times(1.2, Sense::AtMost(1.5));
        assert_eq!(judged(&stops, &[0.2, 1.2, 1.3, 1.5, 2.0]), [holds, holds, weaker, fails, fails]);
        let scales = times(1.5, Sense::AtLeast(1.2));
        assert_eq!(judged(&scales, &[1.5, 1.8, 1.4, 1.2, 0.2]), [holds, holds, weaker, fails, fails]);
        let grows = times(3.0, Sense::AtLeast(1.0));
        assert_eq!(judged(&grows, &[3.0, 6.4, 2.0, 1.0, 0.9]), [holds, beyond, weaker, fails, fails]);
    }

    #[test]
    fn a_duration_of_83_ms_is_red_beside_one_millisecond() {
        let [holds, beyond, weaker, fails] = Verdict::ALL.map(|(verdict, _)| verdict);
        let recovery = Claim::within_ms("recovery".to_owned(), 1.0, Vec::new(), String::new());
        assert_eq!(judged(&recovery, &[0.9, 0.4, 1.9, 2.0, 83.0]), [holds, beyond, weaker, fails, fails]);
    }

    #[test]
    fn a_share_is_about_as_large_within_a_quarter_and_red_beyond_a_factor_of_two() {
        let hits = Claim::share("hits".to_owned(), 50.0, Vec::new(), String::new());
        let [holds, _, weaker, fails] = Verdict::ALL.map(|(verdict, _)| verdict);
        assert_eq!(
            judged(&hits, &[40.0, 60.0, 30.0, 95.0, 24.0, 101.0, 0.0]),
            [holds, holds, weaker, weaker, fails, fails, fails]
        );
    }

    #[test]
    fn the_papers_machine_decides_before_virtual_time_and_virtual_time_before_the_clock() {
        use crate::virtual_time::memories::{DRAM, OPTANE};
        let (home, beside) = (Medium::Home(OPTANE), Medium::Virtual(DRAM));
        let decision = |here: &[f64], memories: &[Medium]| claim(30.0, here).decision(memories);
        assert_eq!(decision(&[-5.0, 31.0, -5.0], &[TWO[0], home, beside]), Some(Verdict::Holds));
        assert_eq!(decision(&[31.0, -5.0, 31.0], &[TWO[0], home, beside]), Some(Verdict::Fails));
        assert_eq!(decision(&[-5.0, f64::NAN, 31.0], &[TWO[0], home, beside]), Some(Verdict::Holds));
        assert_eq!(decision(&[31.0, -5.0], &TWO), Some(Verdict::Fails), "the worst");
        assert_eq!(decision(&[f64::NAN], &TWO[..1]), None);
        let in_a_kernel = Medium::Kernel(OPTANE);
        assert_eq!(decision(&[31.0, -5.0], &[beside, in_a_kernel]), Some(Verdict::Holds), "a kernel decides nothing");
        let fails = claim(30.0, &[31.0, -5.0]).sentence(&[TWO[0], home]);
        assert!(fails.starts_with("It does not hold: -5.0 % with virtual Optane"), "{fails}");
    }

    #[test]
    fn a_reason_is_made_of_what_both_did_at_the_prices_of_the_papers_machine() {
        use crate::virtual_time::clock::Content;
        use crate::virtual_time::memories::{DRAM, OPTANE};
        let mut findings = Findings::new("µs", &[]).with_virtual(&[DRAM, OPTANE], &OPTANE);
        assert!(findings.because("create", "A", "B").contains("not taken"));
        let mut add = |subject: &str, instructions, fences| {
            let here = Content { instructions, fences, ..Content::default() };
            let work = Work { calls: 10, each: vec![Content::default(), here] };
            findings.work.insert(("create".to_owned(), subject.to_owned()), work);
        };
        add("A", 20_000, 10);
        add("B", 30_000, 40);
        assert_eq!(
            findings.because("create", "A", "B"),
            "From B to A for create, Optane: fences 4 to 1 (-210 ns), instructions 3000 to 2000 (-135 ns)."
        );
        assert_eq!(findings.because("create", "A", "A"), "A and A do the same for create.");
    }

    #[test]
    fn reductions_are_taken_row_by_row_and_memory_by_memory() {
        let mut findings = Findings::new("µs", &TWO_DELAYS);
        for (row, subject, here) in
            [("stat", "A", [1.0, 4.0]), ("stat", "B", [2.0, 4.0]), ("open", "A", [3.0, 1.0]), ("open", "B", [4.0, 4.0])]
        {
            let here = here.map(Some).to_vec();
            findings.measures.push(Measure { row: row.into(), subject: subject.into(), paper: None, here });
        }
        assert_eq!(findings.reductions("stat", "A", "B"), [50.0, 0.0]);
        assert_eq!(findings.mean_reductions(&["stat", "open"], "A", "B"), [37.5, 37.5]);
    }
}
