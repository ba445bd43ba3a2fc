//! The floor P, the minimum cost of every persistent call: one store, one flush of its line, one
//! fence.

use crate::bench::statistics::{Rounds, Summary};
use anyhow::{Context, Result};
use pmem::{Cell64, Direct, LINE_BYTES, Mapping, Pm};
use std::sync::Arc;
use std::time::Instant;

/// Lines written in turn: all stay in the nearest cache, and no store waits for the previous flush
/// of its line.
const LINES: u64 = 64;
const STORES: u64 = 20_000;
const ROUNDS: usize = 21;

/// Measures P.
pub fn measure() -> Result<Summary> {
    let mapping = Arc::new(Mapping::anonymous((LINES + 1) * LINE_BYTES)?);
    let region = mapping.region(Direct)?;
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS {
        let started = Instant::now();
        for store in 0..STORES {
            let cell =
                region.get(Pm::<Cell64>::new((1 + store % LINES) * LINE_BYTES)).ok().context("inside the mapping")?;
            let dirty = region.set64(cell, store);
            region.persist(dirty);
        }
        rounds.add(started.elapsed().as_nanos() as f64 / STORES as f64);
    }
    rounds.summary().context("at least one round")
}
