//! A memory that writes down what happens to a region, in order: the raw material of crash tests.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::memory::Memory;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Bytes were stored; they are in the cache.
    Store {
        /// Bytes from the start of the region.
        offset: u64,
        /// What was stored.
        bytes: Bytes,
    },
    /// Bytes were stored past the cache: the same thread's next fence makes them durable without a flush.
    Stream {
        /// Bytes from the start of the region.
        offset: u64,
        /// What was stored.
        bytes: Bytes,
    },
    /// The lines of a range were flushed.
    Flush {
        /// Bytes from the start of the region.
        offset: u64,
        /// Bytes of the range; whole lines around it are flushed.
        length: u64,
    },
    /// A fence.
    Fence,
    /// What the test wants to find again: an operation begins, an operation has returned.
    Mark(u64),
}

/// An event, and the thread that caused it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Threads are numbered from zero in the order of their first event since the log was taken.
    pub thread: u32,
    /// What happened.
    pub event: Event,
}

/// The bytes of a store. Nearly all stores are a word, so up to eight bytes need no allocation.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(Holder);

#[derive(Clone, PartialEq, Eq)]
enum Holder {
    // What lies beyond the length is zero, so that the derived comparison is right.
    Word { length: u8, bytes: [u8; 8] },
    Block(Box<[u8]>),
}

impl From<&[u8]> for Bytes {
    fn from(from: &[u8]) -> Bytes {
        if from.len() > 8 {
            return Bytes(Holder::Block(from.into()));
        }
        let mut bytes = [0; 8];
        bytes[..from.len()].copy_from_slice(from);
        Bytes(Holder::Word { length: from.len() as u8, bytes })
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Holder::Word { length, bytes } => &bytes[..*length as usize],
            Holder::Block(bytes) => bytes,
        }
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A [`Memory`] that logs stores, flushes and fences with the thread that made them, between [`start`](Recorder::start)
/// and [`stop`](Recorder::stop).
///
/// With several threads at work the log is one order in which things may have happened, and errs towards losing more: a
/// store is logged after it is in place, a flush before it is issued, a fence after it completed. So what the log calls
/// flushed was flushed, and what it calls durable was durable. The one thing it cannot tell is which of two *racing*
/// stores to the same word came last; commit words are raced for by nobody who plays by the rules (a bucket, a slot or
/// an inode has one writer at a time).
///
/// Stores that do not go through the region (a program's own mapping, the kernel reading into it) are not seen.
#[derive(Debug, Default)]
pub struct Recorder {
    recording: AtomicBool,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    threads: Vec<ThreadId>,
    events: Vec<Recorded>,
}

impl Recorder {
    /// A recorder that does not record yet.
    pub fn new() -> Recorder {
        Recorder::default()
    }

    /// Records from here on. The image that a [`CrashImage`](crate::CrashImage) begins with is the region's content
    /// now, so nothing may be in flight: start between operations.
    pub fn start(&self) {
        self.recording.store(true, Ordering::SeqCst);
    }

    /// Records no more.
    pub fn stop(&self) {
        self.recording.store(false, Ordering::SeqCst);
    }

    /// What was recorded since the last time this was called.
    pub fn take(&self) -> Vec<Recorded> {
        let mut log = self.log();
        log.threads.clear();
        std::mem::take(&mut log.events)
    }

    /// Notes a moment of the test's own in the log.
    pub fn mark(&self, mark: u64) {
        self.record(|| Event::Mark(mark));
    }

    fn record(&self, event: impl FnOnce() -> Event) {
        if !self.recording.load(Ordering::Relaxed) {
            return;
        }
        let event = event();
        let id = thread::current().id();
        let mut log = self.log();
        let known = log.threads.iter().position(|known| *known == id);
        let thread = known.unwrap_or_else(|| {
            log.threads.push(id);
            log.threads.len() - 1
        });
        log.events.push(Recorded { thread: thread as u32, event });
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // A thread that panicked while it held the lock left whole events only; the test that panicked should tell why
        // itself.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory for Recorder {
    const WATCHED: bool = true;

    fn stored(&self, offset: u64, bytes: &[u8]) {
        self.record(|| Event::Store { offset, bytes: bytes.into() });
    }

    fn streamed(&self, offset: u64, bytes: &[u8]) {
        self.record(|| Event::Stream { offset, bytes: bytes.into() });
    }

    fn flushed(&self, offset: u64, length: u64) {
        self.record(|| Event::Flush { offset, length });
    }

    fn fenced(&self) {
        self.record(|| Event::Fence);
    }

    fn read(&self, _: u64, _: u64) {}
}
