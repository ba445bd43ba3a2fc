//! A memory that counts what leaves the cache: write amplification, which no clock shows.

use super::calls::{Call, Observer};
use pmem::{LINE_BYTES, Memory};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts lines flushed or streamed, and fences.
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
    fn streamed(&self, offset: u64, bytes: &[u8]) {
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

/// What one call writes on average, recycling behind it included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Written {
    /// Cache lines flushed or streamed.
    pub lines: f64,
    /// Fences.
    pub fences: f64,
}

/// Reads the counters around each phase.
pub struct CountingObserver {
    memory: Arc<Counting>,
    calls: f64,
    written: [Written; Call::ALL.len()],
}

impl CountingObserver {
    /// For phases of `calls` calls on that memory.
    pub fn new(memory: Arc<Counting>, calls: u64) -> CountingObserver {
        CountingObserver { memory, calls: calls as f64, written: Default::default() }
    }

    /// What a call of that kind wrote.
    pub fn written(&self, call: Call) -> Written {
        self.written[call as usize]
    }
}

impl Observer for CountingObserver {
    fn begin(&mut self, _: Call) {
        self.memory.lines.store(0, Relaxed);
        self.memory.fences.store(0, Relaxed);
    }

    fn end(&mut self, call: Call, _: f64) {
        let (lines, fences) = (self.memory.lines.load(Relaxed) as f64, self.memory.fences.load(Relaxed) as f64);
        self.written[call as usize] = Written { lines: lines / self.calls, fences: fences / self.calls };
    }
}
