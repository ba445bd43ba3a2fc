//! Snapshots of an image on a disk copy its file, which only checkpoints change. So they keep
//! checkpoints away: a *pin*. The log grows meanwhile.
//!
//! Invariants
//! - A pin ends with its process. It also ends if the log is longer than it should be and the
//!   snapshot has made no progress for [`SILENT_NS`]: it is stopped, and the log would grow without
//!   a bound. The snapshot looks at its pin after its last read, and fails if that has ended.
//! - A pin is set without the lock of commits, so a snapshot that is stopped holds no lock. A
//!   checkpoint that runs then ends before the snapshot's own commit begins.

use super::Commits;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use engine::Thread;
use journal::StateStore;
use pmem::Memory;
use tables::host::monotonic_ns;

/// A snapshot that runs copies a piece of the file in much less.
const SILENT_NS: u64 = 5_000_000_000;

impl Commits {
    /// Whether a snapshot keeps checkpoints away. Ends the pin of one that is stopped.
    pub fn is_pinned<M: Memory>(&self, thread: &Thread<'_, M>) -> bool {
        let pinned = &self.shared().pinned;
        let pin = pinned.load(Acquire);
        if pin == 0 {
            return false;
        }
        let is_alive = thread.fs().processes().is_process_alive(pin as u32);
        let is_long = self.load().used_bytes > self.shared().log_bytes.load(Relaxed);
        if is_alive && !(is_long && self.is_pin_silent()) {
            return true;
        }
        // If the exchange fails, another snapshot has started.
        pinned.compare_exchange(pin, 0, AcqRel, Relaxed).is_err_and(|now| now != 0)
    }

    /// Whether the snapshot that keeps checkpoints away has made no progress for [`SILENT_NS`].
    pub fn is_pin_silent(&self) -> bool {
        monotonic_ns().saturating_sub(self.more().pin_beat_ns.load(Relaxed)) > SILENT_NS
    }
}

/// No checkpoint changes the image's file while this exists and [`Pinned::is_held`].
#[cfg(feature = "std")]
pub struct Pinned {
    commits: Commits,
    pin: u64,
}

#[cfg(feature = "std")]
impl Commits {
    /// Keeps checkpoints away, as the process with that number. The caller commits before it reads
    /// the file. EBUSY: another snapshot keeps them away.
    pub fn keep_checkpoints_away<M: Memory>(&self, thread: &Thread<'_, M>, number: u32) -> crate::Result<Pinned> {
        use engine::Platform;
        if self.is_pinned(thread) {
            return Err(crate::Errno::EBUSY);
        }
        let pin = tables::host::PLATFORM.random() << 32 | u64::from(number);
        self.beat();
        let pinned = self.shared().pinned.compare_exchange(0, pin, AcqRel, Relaxed);
        pinned.map(|_| Pinned { commits: *self, pin }).map_err(|_| crate::Errno::EBUSY)
    }

    fn beat(&self) {
        self.more().pin_beat_ns.store(monotonic_ns(), core::sync::atomic::Ordering::Release);
    }
}

#[cfg(feature = "std")]
impl Pinned {
    /// Whether no checkpoint has changed the file so far. Says that the snapshot makes progress.
    pub fn is_held(&self) -> bool {
        self.commits.beat();
        self.commits.shared().pinned.load(Acquire) == self.pin
    }
}

#[cfg(feature = "std")]
impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.commits.shared().pinned.compare_exchange(self.pin, 0, AcqRel, Relaxed);
    }
}
