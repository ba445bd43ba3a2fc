//! A memory that counts the lines that leave the cache: write amplification, which no clock shows.

use crate::bench::task::PhaseName;
use crate::bench::workers::Probe;
use crate::bench::workloads::calls::Call;
use pmem::{LINE_BYTES, Memory, UserBytes};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Counts flushed or streamed lines, and fences.
#[derive(Debug, Default)]
pub struct Counting {
    lines: AtomicU64,
    fences: AtomicU64,
}

impl Counting {
    fn count(&self, offset: u64, length: u64) {
        if length > 0 {
            self.lines.fetch_add((offset + length - 1) / LINE_BYTES - offset / LINE_BYTES + 1, Relaxed);
        }
    }
}

impl Memory for Counting {
    const WATCHED: bool = true;
    fn stored(&self, _: u64, _: &[u8]) {}
    fn streamed(&self, offset: u64, bytes: UserBytes<'_>) {
        self.count(offset, bytes.len() as u64);
    }
    fn flushed(&self, offset: u64, length: u64) {
        self.count(offset, length);
    }
    fn fenced(&self) {
        self.fences.fetch_add(1, Relaxed);
    }
    fn read(&self, _: u64, _: u64) {}
}

/// The average writes of one call, including the recycling that it causes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Written {
    /// Cache lines flushed or streamed.
    pub lines: f64,
    /// Fences.
    pub fences: f64,
}

/// Reads the counters around each phase.
pub struct CountingProbe {
    memory: Arc<Counting>,
    written: Mutex<Vec<(Call, Written)>>,
}

impl CountingProbe {
    /// A probe of this memory.
    pub fn new(memory: Arc<Counting>) -> CountingProbe {
        CountingProbe { memory, written: Mutex::default() }
    }

    /// The writes of each call in its last phase.
    pub fn written(self) -> Vec<(Call, Written)> {
        self.written.into_inner().unwrap_or_default()
    }
}

impl Probe for CountingProbe {
    fn begin(&self) {
        self.memory.lines.store(0, Relaxed);
        self.memory.fences.store(0, Relaxed);
    }

    fn end(&self, what: &PhaseName, calls: u64) {
        let PhaseName::Call(call) = *what else { return };
        let each = |counter: &AtomicU64| counter.load(Relaxed) as f64 / calls as f64;
        let written = Written { lines: each(&self.memory.lines), fences: each(&self.memory.fences) };
        let mut all = self.written.lock().expect("no thread panics while holding it");
        all.retain(|(known, _)| *known != call);
        all.push((call, written));
    }
}
