//! The limit on file sizes (`ulimit -f`). An image and its shared memory may be larger than the
//! files that the limit is for. What exceeds it is EFBIG, and does not end the program.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// While this exists, the calling thread gets no SIGXFSZ, and none later for what it did meanwhile.
pub(crate) struct NoSignal {
    before: libc::sigset_t,
    /// The program had blocked it itself.
    was_blocked: bool,
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
        // SAFETY: both are sets of this function; with these arguments the call does not fail, and
        // initialises the second one.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &size_signal(), before.as_mut_ptr());
            let before = before.assume_init();
            let was_blocked = libc::sigismember(&raw const before, libc::SIGXFSZ) == 1;
            NoSignal { before, was_blocked }
        }
    }
}

impl Drop for NoSignal {
    fn drop(&mut self) {
        if self.was_blocked {
            return;
        }
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structures are whole. The kernel sends this signal to the thread that writes.
        unsafe {
            libc::sigtimedwait(&size_signal(), null_mut(), &raw const now);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, null_mut());
        }
    }
}
