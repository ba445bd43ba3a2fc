//! Counts of the requests that a server has received, by kind, and the time that it took for some
//! of them. Programs read them as the values of extended attributes of every file of the mount.
//!
//! *Rejected:* a file or socket of the server. It would have to be found, protected and removed.

use crate::protocol::opcode;
use engine::statistics::{LATENCY_CLASSES, latency_class};
use std::fmt::Write;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The attribute. It is not listed, and cannot be set.
pub const ATTRIBUTE: &str = "system.directfs.requests";

/// The attribute with the latencies, which is like it.
pub const LATENCIES_ATTRIBUTE: &str = "system.directfs.latencies";

/// The attribute with the bytes of the image, and the most that it can have while it is mounted.
/// Root, the server's user and the image's owner set it to the bytes that the image is to have.
pub const SIZE_ATTRIBUTE: &str = "system.directfs.size";

/// Larger than every code of a request that is served.
const CODES: usize = 64;

/// The kinds with a name. All others are counted together.
const NAMES: [(u32, &str); 41] = [
    (opcode::LOOKUP, "LOOKUP"),
    (opcode::FORGET, "FORGET"),
    (opcode::GETATTR, "GETATTR"),
    (opcode::SETATTR, "SETATTR"),
    (opcode::READLINK, "READLINK"),
    (opcode::SYMLINK, "SYMLINK"),
    (opcode::MKNOD, "MKNOD"),
    (opcode::MKDIR, "MKDIR"),
    (opcode::UNLINK, "UNLINK"),
    (opcode::RMDIR, "RMDIR"),
    (opcode::RENAME, "RENAME"),
    (opcode::LINK, "LINK"),
    (opcode::OPEN, "OPEN"),
    (opcode::READ, "READ"),
    (opcode::WRITE, "WRITE"),
    (opcode::STATFS, "STATFS"),
    (opcode::RELEASE, "RELEASE"),
    (opcode::FSYNC, "FSYNC"),
    (opcode::SETXATTR, "SETXATTR"),
    (opcode::GETXATTR, "GETXATTR"),
    (opcode::LISTXATTR, "LISTXATTR"),
    (opcode::REMOVEXATTR, "REMOVEXATTR"),
    (opcode::FLUSH, "FLUSH"),
    (opcode::OPENDIR, "OPENDIR"),
    (opcode::READDIR, "READDIR"),
    (opcode::RELEASEDIR, "RELEASEDIR"),
    (opcode::FSYNCDIR, "FSYNCDIR"),
    (opcode::GETLK, "GETLK"),
    (opcode::SETLK, "SETLK"),
    (opcode::SETLKW, "SETLKW"),
    (opcode::CREATE, "CREATE"),
    (opcode::INTERRUPT, "INTERRUPT"),
    (opcode::IOCTL, "IOCTL"),
    (opcode::BATCH_FORGET, "BATCH_FORGET"),
    (opcode::FALLOCATE, "FALLOCATE"),
    (opcode::READDIRPLUS, "READDIRPLUS"),
    (opcode::RENAME2, "RENAME2"),
    (opcode::LSEEK, "LSEEK"),
    (opcode::COPY_FILE_RANGE, "COPY_FILE_RANGE"),
    (opcode::TMPFILE, "TMPFILE"),
    (opcode::STATX, "STATX"),
];

/// Of so many requests of a kind one has its time taken, after the first ones, all of which have.
const INTERVAL: u64 = 16;

/// The counts of a server.
pub(crate) struct Requests {
    counts: [AtomicU64; CODES],
    latencies: [[AtomicU64; LATENCY_CLASSES]; CODES],
}

impl Requests {
    pub(crate) fn new() -> Requests {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Requests { counts: std::array::from_fn(|_| AtomicU64::new(0)), latencies: std::array::from_fn(|_| zeros()) }
    }

    /// Counts a request. Returns whether its time is wanted.
    pub(crate) fn count(&self, opcode: u32) -> bool {
        let Some(count) = self.counts.get(opcode as usize) else { return false };
        let before = count.fetch_add(1, Relaxed);
        before < INTERVAL || before.is_multiple_of(INTERVAL)
    }

    /// Counts the time of a request.
    pub(crate) fn count_latency(&self, opcode: u32, ns: u64) {
        if let Some(latencies) = self.latencies.get(opcode as usize) {
            latencies[latency_class(ns)].fetch_add(1, Relaxed);
        }
    }

    /// The sum on the first line, then a line for each kind that was received.
    pub(crate) fn text(&self) -> String {
        let counts: Vec<u64> = self.counts.iter().map(|count| count.load(Relaxed)).collect();
        let mut text = format!("{}\n", counts.iter().sum::<u64>());
        for (opcode, name) in NAMES {
            let count = counts.get(opcode as usize).copied().unwrap_or_default();
            if count > 0 {
                let _ = writeln!(text, "{name} {count}");
            }
        }
        text
    }

    /// A line for each kind that was received: its name, its count, and how many latencies were in
    /// each class.
    pub(crate) fn latencies_text(&self) -> String {
        let mut text = String::new();
        for (opcode, name) in NAMES {
            let (count, latencies) = (&self.counts[opcode as usize], &self.latencies[opcode as usize]);
            let count = count.load(Relaxed);
            if count > 0 {
                let _ = write!(text, "{name} {count}");
                for latency in latencies {
                    let _ = write!(text, " {}", latency.load(Relaxed));
                }
                text.push('\n');
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_the_sum_and_each_kind_that_was_received() {
        let requests = Requests::new();
        for opcode in [opcode::LOOKUP, opcode::LOOKUP, opcode::STATX, opcode::INIT, 4096] {
            requests.count(opcode);
        }
        assert_eq!(requests.text(), "4\nLOOKUP 2\nSTATX 1\n");
        requests.count_latency(opcode::STATX, 100);
        requests.count_latency(4096, 100);
        let lines: Vec<_> = requests.latencies_text().lines().map(str::to_owned).collect();
        assert_eq!(lines, ["LOOKUP 2 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0", "STATX 1 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0"]);
        assert!(NAMES.iter().all(|&(opcode, _)| (opcode as usize) < CODES));
    }
}
