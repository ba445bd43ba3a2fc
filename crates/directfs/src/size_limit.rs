//! The limit on file sizes (`ulimit -f`). An image and its shared memory may be larger than the
//! files that the limit is for. What exceeds it is EFBIG, and does not end the program.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// While this exists, the calling thread gets no SIGXFSZ, and none later for what it did meanwhile.
pub(crate) struct NoSignal {
    before: libc::sigset_t,
    /// It waits for the program, which has blocked it.
    was_pending: bool,
}

fn size_signal() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call initialises the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        set.assume_init()
    }
}

impl NoSignal {
    pub fn new() -> NoSignal {
        let mut before = MaybeUninit::uninit();
        // SAFETY: the sets are of this function; with these arguments the calls do not fail, and
        // the first one initialises `before`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &size_signal(), before.as_mut_ptr());
            let before = before.assume_init();
            let mut pending = before;
            libc::sigpending(&raw mut pending);
            NoSignal { before, was_pending: libc::sigismember(&raw const pending, libc::SIGXFSZ) == 1 }
        }
    }
}

impl Drop for NoSignal {
    fn drop(&mut self) {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structures are whole. The kernel sends this signal to the thread that writes.
        unsafe {
            if !self.was_pending {
                libc::sigtimedwait(&size_signal(), null_mut(), &raw const now);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_pending() -> bool {
        let mut pending = size_signal();
        // SAFETY: fills a set of this function.
        unsafe {
            libc::sigpending(&raw mut pending);
            libc::sigismember(&raw const pending, libc::SIGXFSZ) == 1
        }
    }

    fn send() {
        // SAFETY: this thread has blocked the signal.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGXFSZ) };
    }

    #[test]
    fn a_program_that_has_blocked_the_signal_finds_its_own_one_alone() {
        // SAFETY: concerns this thread, which ends with the test.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &size_signal(), null_mut()) };
        let (ours, of_program) = (NoSignal::new(), is_pending());
        send();
        drop(ours);
        assert!(!of_program && !is_pending());
        send();
        drop(NoSignal::new());
        assert!(is_pending());
    }
}
