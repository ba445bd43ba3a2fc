//! The limit on file sizes (`ulimit -f`). An image and its shared memory are larger than the files
//! that the limit is for, and the kernel ends a process without a word that exceeds it.

/// Without the soft limit until this is dropped. A call beyond the hard limit fails with EFBIG and
/// does not end the process.
pub struct Lifted(Before);

/// The limit from before.
#[derive(Clone, Copy)]
pub struct Before {
    limit: libc::rlimit,
    action: libc::sighandler_t,
}

impl Before {
    /// Restores it, also in a child between fork and exec.
    pub fn restore(&self) {
        // SAFETY: sets a limit and an action of this process, by a structure of its own.
        unsafe {
            libc::signal(libc::SIGXFSZ, self.action);
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const self.limit);
        }
    }
}

impl Lifted {
    /// Lifts the soft limit to the hard one.
    pub fn new() -> Lifted {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads and sets limits and an action of this process, by structures of its own.
        unsafe {
            libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit);
            let lifted = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const lifted);
            Lifted(Before { limit, action: libc::signal(libc::SIGXFSZ, libc::SIG_IGN) })
        }
    }

    /// The limit from before, for programs that this process starts.
    pub fn before(&self) -> Before {
        self.0
    }
}

impl Drop for Lifted {
    fn drop(&mut self) {
        self.0.restore();
    }
}

/// A file beyond the limit is an error (EFBIG) from now on, and does not end this process. For
/// commands that start no programs of the user.
pub fn report_as_error() {
    // SAFETY: sets an action of this process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
