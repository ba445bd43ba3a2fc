//! The speedup of threads that share nothing, as a reference for their speedup in a file system. It
//! is below their number on machines whose processors share cores or are used by other programs.

use super::statistics::spread;
use serde::Serialize;
use std::sync::Barrier;
use std::time::Instant;

/// Words that a thread walks through: more than the nearest cache holds, less than the second one
/// does.
const WORDS: usize = 16 << 10;
const STEPS: u64 = 500_000;
const ROUNDS: usize = 21;

/// The speedup of several threads over one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Scaling {
    /// Number of threads.
    pub threads: u32,
    /// The median of the rounds.
    pub median: f64,
    /// The minimum.
    pub least: f64,
    /// The maximum.
    pub most: f64,
}

/// Measures it for at least one thread: in each round one works alone, then all work at once.
pub fn measure(threads: u32) -> Option<Scaling> {
    let barrier = Barrier::new(threads as usize);
    let rounds: Vec<Vec<[f64; 2]>> = std::thread::scope(|scope| {
        let work = |first: bool| {
            let barrier = &barrier;
            move || {
                let words = chain();
                (0..ROUNDS)
                    .map(|_| {
                        barrier.wait();
                        let alone = if first { walk(&words) } else { 0.0 };
                        barrier.wait();
                        [alone, walk(&words)]
                    })
                    .collect()
            }
        };
        let members: Vec<_> = (0..threads).map(|index| scope.spawn(work(index == 0))).collect();
        members.into_iter().map(|member| member.join().expect("it only counts")).collect()
    });
    let gain = |round: usize| rounds.iter().map(|member| rounds[0][round][0] / member[round][1]).sum();
    let gains: Vec<f64> = (0..ROUNDS).map(gain).collect();
    let [least, median, most] = spread(&gains)?;
    Some(Scaling { threads, median, least, most })
}

/// Each word is the index of the next one; all words form one cycle.
fn chain() -> Vec<u32> {
    // Odd and far from small multiples of a line: the next word is on another line.
    const STRIDE: usize = 5077;
    let mut words = vec![0; WORDS];
    for index in 0..WORDS {
        words[index * STRIDE % WORDS] = ((index + 1) * STRIDE % WORDS) as u32;
    }
    words
}

/// Walks, with a small computation at each step; returns the duration in nanoseconds.
fn walk(words: &[u32]) -> f64 {
    let started = Instant::now();
    let (mut at, mut sum) = (0, 1u64);
    for _ in 0..STEPS {
        at = words[at] as usize;
        sum = sum.rotate_left(7) ^ at as u64;
    }
    std::hint::black_box(sum);
    started.elapsed().as_nanos().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_visits_all_words() {
        let words = chain();
        let (mut at, mut seen) = (0, vec![false; WORDS]);
        while !std::mem::replace(&mut seen[at], true) {
            at = words[at] as usize;
        }
        assert!(seen.into_iter().all(|seen| seen));
    }
}
