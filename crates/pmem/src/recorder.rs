//! A memory that logs the stores, flushes and fences of a region in order: the input of crash
//! tests.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::UserBytes;
use crate::memory::Memory;

/// An event in a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Bytes were stored; they are in the cache.
    Store {
        /// Bytes from the start of the region.
        offset: u64,
        /// The stored bytes.
        bytes: Bytes,
    },
    /// Bytes were stored past the cache: the same thread's next fence makes them durable without a
    /// flush.
    Stream {
        /// Bytes from the start of the region.
        offset: u64,
        /// The stored bytes.
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
    /// A mark of the test: an operation begins, or an operation has returned.
    Mark(u64),
}

/// An event with the thread that caused it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Threads are numbered from zero in the order of their first event since the log was last
    /// taken.
    pub thread: u32,
    /// The event.
    pub event: Event,
}

/// The bytes of a store. Nearly all stores are one word, so up to eight bytes need no allocation.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(ByteStorage);

#[derive(Clone, PartialEq, Eq)]
enum ByteStorage {
    // Bytes beyond the length are zero, so that the derived comparison is correct.
    Word { length: u8, bytes: [u8; 8] },
    Block(Box<[u8]>),
}

impl From<&[u8]> for Bytes {
    fn from(from: &[u8]) -> Bytes {
        if from.len() > 8 {
            return Bytes(ByteStorage::Block(from.into()));
        }
        let mut bytes = [0; 8];
        bytes[..from.len()].copy_from_slice(from);
        Bytes(ByteStorage::Word { length: from.len() as u8, bytes })
    }
}

impl From<UserBytes<'_>> for Bytes {
    fn from(from: UserBytes<'_>) -> Bytes {
        from.to_vec()[..].into()
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            ByteStorage::Word { length, bytes } => &bytes[..*length as usize],
            ByteStorage::Block(bytes) => bytes,
        }
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A [`Memory`] that logs stores, flushes and fences with their threads, between
/// [`start`](Recorder::start) and [`stop`](Recorder::stop).
///
/// With several threads the log is one possible order of the events, and errs towards losing more.
/// A store is logged after it is in place, a flush before it is issued, a fence after it completed.
/// So everything flushed according to the log was flushed, and everything durable according to the
/// log was durable. The log cannot know which of two *racing* stores to the same word came last.
/// Commit words have no such races: a bucket, a slot or an inode has one writer at a time.
///
/// Stores that bypass the region (a program's own mapping, the kernel reading into it) are not
/// logged.
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
    /// A recorder that is not yet recording.
    pub fn new() -> Recorder {
        Recorder::default()
    }

    /// Starts recording. The image that a [`CrashImage`](crate::CrashImage) begins with is the
    /// region's content now, so nothing may be in flight: start between operations.
    pub fn start(&self) {
        self.recording.store(true, Ordering::SeqCst);
    }

    /// Stops recording.
    pub fn stop(&self) {
        self.recording.store(false, Ordering::SeqCst);
    }

    /// The events recorded since the last call.
    pub fn take(&self) -> Vec<Recorded> {
        let mut log = self.log();
        log.threads.clear();
        std::mem::take(&mut log.events)
    }

    /// Adds a mark of the test to the log.
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
        // A thread that panicked while it held the lock left only whole events. The panicking test
        // reports the cause itself.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory for Recorder {
    const WATCHED: bool = true;

    fn stored(&self, offset: u64, bytes: &[u8]) {
        self.record(|| Event::Store { offset, bytes: bytes.into() });
    }

    fn streamed(&self, offset: u64, bytes: UserBytes<'_>) {
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
