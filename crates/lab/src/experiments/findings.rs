//! The result of an experiment: measured numbers next to the paper's, and which of the paper's
//! claims hold here.

use super::memory_name;
use crate::virtual_time::memories::Memory;
use pmem::Delays;

/// How the values of a column were obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// By the clock, with an emulated memory.
    Emulated(Delays),
    /// In virtual time, with a named memory.
    Virtual(Memory),
}

impl Medium {
    /// Its name in reports.
    pub fn name(&self) -> String {
        match self {
            Medium::Emulated(delays) => memory_name(*delays),
            Medium::Virtual(memory) => format!("virtual {}", memory.name),
        }
    }

    /// Whether it is virtual time.
    pub const fn is_virtual(&self) -> bool {
        matches!(self, Medium::Virtual(_))
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

/// The direction of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sense {
    /// Higher values support the claim.
    AtLeast,
    /// Lower values support the claim.
    AtMost,
    /// Values near the paper's support the claim.
    About,
}

/// A conclusion of a paper as a number, and the result here.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The claim in words.
    pub what: String,
    /// Unit of the numbers.
    pub unit: &'static str,
    /// The paper's value.
    pub paper: f64,
    /// The values here, one per memory.
    pub here: Vec<f64>,
    /// When the claim holds.
    pub sense: Sense,
    /// Why it may not hold here; printed only where it does not.
    pub reason: &'static str,
}

/// A data series of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its subject.
    pub name: String,
    /// Values, one per position on the axis.
    pub values: Vec<Option<f64>>,
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
    pub basis: &'static str,
    /// The values here.
    pub here: Vec<Series>,
    /// The paper's values; empty if it has no numbers.
    pub paper: Vec<Series>,
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
    /// Further facts needed to interpret the numbers.
    pub notes: Vec<String>,
}

/// The result of comparing a number with the paper's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// At least as far as the paper.
    Holds,
    /// The same direction, less far.
    Weaker,
    /// No effect, or the opposite direction.
    Fails,
}

/// An `About` claim holds within this fraction of the paper's number.
const ABOUT: f64 = 0.25;

impl Claim {
    /// The verdict for one memory.
    pub fn verdict(&self, here: f64) -> Verdict {
        let holds = match self.sense {
            Sense::AtLeast => here >= self.paper,
            Sense::AtMost => here <= self.paper,
            Sense::About => (here - self.paper).abs() <= ABOUT * self.paper.abs(),
        };
        match holds {
            true => Verdict::Holds,
            false if here * self.paper > 0.0 => Verdict::Weaker,
            false => Verdict::Fails,
        }
    }

    /// The column of a value; none for a claim about all memories at once, which has one value.
    fn medium<'m>(&self, memories: &'m [Medium], index: usize) -> Option<&'m Medium> {
        memories.get(index).filter(|_| self.here.len() == memories.len())
    }

    /// Whether a value decides: those in virtual time do, where there are any.
    pub fn decides(&self, memories: &[Medium], index: usize) -> bool {
        let is_virtual = |index| self.medium(memories, index).is_some_and(Medium::is_virtual);
        let known = |index: &usize| self.here[*index].is_finite();
        known(&index) && (is_virtual(index) || !(0..self.here.len()).filter(known).any(is_virtual))
    }

    /// One sentence: whether the claim holds, where it does not, and why.
    pub fn sentence(&self, memories: &[Medium]) -> String {
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
            those
                .map(|(medium, here, _)| format!("{here:.1} {}{}", self.unit, with(medium)).replace("  ", " "))
                .collect()
        };
        let mut parts = Vec::new();
        for (verdict, words) in [
            (Verdict::Holds, "It holds"),
            (Verdict::Weaker, "the same direction, but not as far"),
            (Verdict::Fails, "it does not hold"),
        ] {
            let values = named(verdict);
            if !values.is_empty() {
                parts.push(format!("{words}: {}", values.join(", ")));
            }
        }
        let mut sentence = parts.join("; ");
        if let Some(first) = sentence.get(..1).map(str::to_uppercase) {
            sentence.replace_range(..1, &first);
        }
        match self.reason {
            "" => format!("{sentence}."),
            reason => format!("{sentence}. {reason}"),
        }
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
        Findings { unit, memories, measures, claims, plots, notes }
    }

    /// Adds columns in virtual time.
    pub fn with_virtual(mut self, memories: &[Memory]) -> Findings {
        self.memories.extend(memories.iter().copied().map(Medium::Virtual));
        let each: Vec<String> = memories.iter().map(Memory::description).collect();
        if !each.is_empty() {
            self.notes.push(format!(
                "Virtual columns: recorded calls at the costs of a named machine, the same in every run; claims are judged by them. {}.",
                each.join("; ")
            ));
        }
        self
    }

    /// The measured value of a subject in a row, for a memory.
    pub fn here(&self, row: &str, subject: &str, memory: usize) -> Option<f64> {
        let measure = self.measures.iter().find(|measure| measure.row == row && measure.subject == subject)?;
        measure.here.get(memory).copied().flatten()
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

    /// The column of plots, the first that has values, and its name.
    pub fn plotted(&self) -> (usize, &'static str) {
        let has_values = |memory: &usize| self.measures.iter().any(|measure| measure.here[*memory].is_some());
        let memory = (0..self.memories.len()).find(has_values).unwrap_or(0);
        match self.memories.get(memory) {
            Some(Medium::Virtual(_)) => (memory, "virtual time, DRAM"),
            _ => (memory, MEASURED),
        }
    }

    /// A plot of some rows and subjects in per cent of one subject, here and in the paper, without
    /// delays.
    pub fn relative_plot(&self, title: &str, rows: &[&str], subjects: &[&str], base: &str) -> Plot {
        let share = |value: Option<f64>, base: Option<f64>| Some(100.0 * value? / base.filter(|base| *base > 0.0)?);
        let (memory, basis) = self.plotted();
        let here = |subject: &&str| Series {
            name: (*subject).to_owned(),
            values: rows
                .iter()
                .map(|row| share(self.here(row, subject, memory), self.here(row, base, memory)))
                .collect(),
        };
        let paper = |subject: &&str| Series {
            name: (*subject).to_owned(),
            values: rows.iter().map(|row| share(self.paper(row, subject), self.paper(row, base))).collect(),
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

    fn claim(paper: f64, here: &[f64], sense: Sense) -> Claim {
        let what = "DirectFS is faster".to_owned();
        Claim { what, unit: "%", paper, here: here.to_vec(), sense, reason: "The kernel is not on the path." }
    }

    const TWO_DELAYS: [Delays; 2] = [Delays { read_ns: 0, write_ns: 0 }, Delays { read_ns: 100, write_ns: 200 }];
    const TWO: [Medium; 2] = [Medium::Emulated(TWO_DELAYS[0]), Medium::Emulated(TWO_DELAYS[1])];

    #[test]
    fn a_claim_that_holds_everywhere_gives_no_reasons() {
        let claim = claim(30.0, &[31.0, 60.0], Sense::AtLeast);
        assert_eq!(claim.sentence(&TWO), "It holds here.");
    }

    #[test]
    fn a_claim_that_does_not_hold_reports_where_and_why() {
        let weaker = claim(30.0, &[31.0, 10.0], Sense::AtLeast);
        assert_eq!(
            weaker.sentence(&TWO),
            "It holds: 31.0 % with no delay; the same direction, but not as far: 10.0 % with +100/200 ns. The kernel is not on the path."
        );
        let fails = claim(30.0, &[-3.0, 30.0], Sense::AtLeast);
        assert!(fails.sentence(&TWO).contains("it does not hold: -3.0 % with no delay"), "{}", fails.sentence(&TWO));
    }

    #[test]
    fn virtual_time_decides_where_there_is_any() {
        let memories = [TWO[0], Medium::Virtual(crate::virtual_time::memories::DRAM)];
        assert_eq!(claim(30.0, &[-5.0, 31.0], Sense::AtLeast).sentence(&memories), "It holds here.");
        let fails = claim(30.0, &[31.0, -5.0], Sense::AtLeast).sentence(&memories);
        assert!(fails.starts_with("It does not hold: -5.0 % with virtual DRAM"), "{fails}");
    }

    #[test]
    fn about_so_much_is_within_a_quarter() {
        let claim = claim(100.0, &[], Sense::About);
        assert_eq!(claim.verdict(80.0), Verdict::Holds);
        assert_eq!(claim.verdict(130.0), Verdict::Weaker);
        assert_eq!(claim.verdict(-100.0), Verdict::Fails);
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
