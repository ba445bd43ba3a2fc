//! The steps on all subjects, in turn, in one to three rounds.

use super::report::StepTimes;
use super::subject::Subject;
use super::worker::{Request, Step};
use crate::terminal::{Of, Progress};
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

/// Most rounds.
const ROUNDS_MAX: u32 = 3;
/// No further round begins if it would end later than this.
const ROUNDS_TIME: Duration = Duration::from_secs(6);

/// Times of each step and subject.
type Samples = Vec<Vec<Vec<u64>>>;

/// Measures `run`, its peer, and the mount if there is one; returns the times and the rounds. The
/// mount performs each step once, in the first round, because it is slow.
pub fn measure(subjects: &mut [Subject], entries: u64) -> Result<(Vec<StepTimes>, u32)> {
    let mut samples = vec![vec![Vec::new(); subjects.len()]; Step::ALL.len()];
    let started = Instant::now();
    let mut rounds = 0;
    loop {
        let begun = Instant::now();
        let mount_time = round(subjects, rounds, entries, &mut samples)?;
        rounds += 1;
        let next = begun.elapsed().saturating_sub(mount_time);
        if rounds == ROUNDS_MAX || started.elapsed() + next > ROUNDS_TIME {
            break;
        }
    }
    let times = Step::ALL.iter().zip(&mut samples).map(|(step, of)| StepTimes {
        name: step.name(),
        run_ns: median(&mut of[0]),
        peer_ns: median(&mut of[1]),
        mount_ns: of.get_mut(2).map(|samples| median(samples)),
    });
    Ok((times.collect(), rounds))
}

/// Performs a round; returns the time that the mount took in it.
fn round(subjects: &mut [Subject], number: u32, entries: u64, samples: &mut Samples) -> Result<Duration> {
    let names: Vec<&str> = subjects
        .iter()
        .filter(|subject| number == 0 || !subject.is_mount())
        .map(|subject| subject.name.as_str())
        .collect();
    let what = format!("measuring on {}, round {}", names.join(", "), number + 1);
    let steps: u64 = Step::ALL.iter().map(|step| u64::from(step.repeats())).sum();
    let total = subjects.iter().map(|subject| match (subject.is_mount(), number) {
        (true, 0) => Step::ALL.len() as u64,
        (true, _) => 0,
        (false, _) => steps,
    });
    let mut progress = Progress::start(&what, Of::Steps(total.sum()));
    let (mut done, mut mount_time) = (0, Duration::ZERO);
    for (step, samples) in Step::ALL.into_iter().zip(samples) {
        let mut counts = Vec::new();
        for repeat in 0..step.repeats() {
            for turn in 0..subjects.len() {
                // Each round and repeat begins with another subject.
                let index = (turn + (number + repeat) as usize) % subjects.len();
                let subject = &mut subjects[index];
                if subject.is_mount() && number + repeat > 0 {
                    continue;
                }
                progress.label(&format!("{}: {}", subject.name, step.name()));
                let begun = Instant::now();
                let measured = subject.perform(&Request::Step(step), &mut || progress.at(done))?;
                if subject.is_mount() {
                    mount_time += begun.elapsed();
                }
                samples[index].push(measured.ns);
                counts.push(measured.count);
                done += 1;
                progress.at(done);
            }
        }
        let expected = if step == Step::Compare { entries } else { counts[0] };
        ensure!(
            counts.iter().all(|&count| count == expected),
            "\"{}\" counted {counts:?} entries instead of {expected} each: this is a defect of DirectFS",
            step.name()
        );
    }
    Ok(mount_time)
}

fn median(samples: &mut [u64]) -> u64 {
    samples.sort_unstable();
    let middle = samples.len() / 2;
    match samples {
        [] => 0,
        _ if samples.len() % 2 == 1 => samples[middle],
        _ => u64::midpoint(samples[middle - 1], samples[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_ones() {
        assert_eq!(median(&mut [9, 1, 5]), 5);
        assert_eq!(median(&mut [9, 1]), 5);
        assert_eq!(median(&mut []), 0);
    }
}
