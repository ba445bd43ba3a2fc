//! Counts of the requests that a server has received, by kind. Programs read them as the value of
//! an extended attribute of every file of the mount.

use crate::protocol::opcode;
use std::fmt::Write;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The attribute. It is not listed, and cannot be set.
pub const ATTRIBUTE: &str = "system.directfs.requests";

/// Larger than every code of a request that is served.
const CODES: usize = 64;

/// The kinds with a name. All others are counted together.
const NAMES: [(u32, &str); 40] = [
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
    (opcode::STATX, "STATX"),
];

/// The counts of a server.
pub(crate) struct Requests([AtomicU64; CODES]);

impl Requests {
    pub(crate) fn new() -> Requests {
        Requests(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Counts a request.
    pub(crate) fn count(&self, opcode: u32) {
        if let Some(count) = self.0.get(opcode as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// The sum on the first line, then a line for each kind that was received.
    pub(crate) fn text(&self) -> String {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Relaxed)).collect();
        let mut text = format!("{}\n", counts.iter().sum::<u64>());
        for (opcode, name) in NAMES {
            let count = counts.get(opcode as usize).copied().unwrap_or_default();
            if count > 0 {
                let _ = writeln!(text, "{name} {count}");
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
        assert!(NAMES.iter().all(|&(opcode, _)| (opcode as usize) < CODES));
    }
}
