//! How long workers wait while another worker is stopped: their calls concern names of their own,
//! so that none needs to wait for it.
//!
//! The records are in a file outside the image. A record is appended before its worker makes the
//! next call, so a kill loses one call at most.

use std::fs::{self, File};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::ops::AddAssign;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// Bytes of a record, and of the word that says whether a worker is stopped.
const WORD_BYTES: usize = 8;
/// A wait that is counted as long.
const LONG_US: u64 = 10_000;

/// The files of stops and of records, beside the ledger.
pub(super) struct Waits {
    stopped: File,
    records: File,
    /// Whether each call is a request to a server, for whose answer the worker always waits.
    always: bool,
}

/// A call under way.
pub(super) struct ObservedCall {
    begun: Instant,
    switches: i64,
    beside_stop: bool,
}

impl Waits {
    /// Opens or creates the files.
    pub(super) fn open(ledger: &Path, always: bool) -> io::Result<Waits> {
        let mut options = File::options();
        options.create(true);
        let stopped = options.clone().read(true).write(true).truncate(false).open(ledger.with_extension("stopped"))?;
        let records = options.append(true).open(ledger.with_extension("waits"))?;
        Ok(Waits { stopped, records, always })
    }

    /// Notifies all workers whether one of them is stopped.
    pub(super) fn set_stopped(&self, stopped: bool) -> io::Result<()> {
        self.stopped.write_all_at(&u64::from(stopped).to_le_bytes(), 0)
    }

    fn is_stopped(&self) -> bool {
        let mut word = [0; WORD_BYTES];
        matches!(self.stopped.read_at(&mut word, 0), Ok(WORD_BYTES) if u64::from_le_bytes(word) != 0)
    }

    /// Begins to observe a call.
    pub(super) fn begin(&self) -> ObservedCall {
        let beside_stop = self.is_stopped();
        ObservedCall { begun: Instant::now(), switches: voluntary_switches(), beside_stop }
    }

    /// Records how long a call took if it waited, and otherwise zero: then the time is its own, or
    /// the processor was taken away. Calls without a stopped worker beside them are left out.
    pub(super) fn end(&self, call: ObservedCall) -> io::Result<()> {
        let wait_us = call.begun.elapsed().as_micros() as u64;
        let waited = self.always || voluntary_switches() != call.switches;
        if !call.beside_stop && !self.is_stopped() {
            return Ok(());
        }
        (&self.records).write_all(&if waited { wait_us } else { 0 }.to_le_bytes())
    }
}

/// How often this thread has given up the processor to wait.
fn voluntary_switches() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: a buffer of the right type, which is zeroed in case of an error.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nvcsw
    }
}

/// Calls with names of their own that workers made beside a stopped one.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct WaitCounts {
    /// All calls.
    pub calls: u64,
    /// Calls that waited for over 10 ms.
    pub long: u64,
    /// The longest wait.
    pub longest_us: u64,
}

impl AddAssign for WaitCounts {
    fn add_assign(&mut self, other: WaitCounts) {
        self.calls += other.calls;
        self.long += other.long;
        self.longest_us = self.longest_us.max(other.longest_us);
    }
}

/// Takes the records of a round.
pub(super) fn take(ledger: &Path) -> WaitCounts {
    let path = ledger.with_extension("waits");
    let bytes = fs::read(&path).unwrap_or_default();
    let _ = fs::remove_file(path);
    let mut counts = WaitCounts::default();
    for record in bytes.as_chunks::<WORD_BYTES>().0 {
        let longest_us = u64::from_le_bytes(*record);
        counts += WaitCounts { calls: 1, long: u64::from(longest_us > LONG_US), longest_us };
    }
    counts
}
