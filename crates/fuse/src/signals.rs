//! The signals that end a server.

use crate::server::Event;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::thread::JoinHandleExt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Blocks the ending signals in this thread, and in threads that it starts later, for the lifetime
/// of this value.
pub(crate) struct Signals {
    set: libc::sigset_t,
    before: libc::sigset_t,
}

impl Signals {
    /// Blocks the ending signals.
    pub(crate) fn block() -> Signals {
        Signals::block_all(&ENDING)
    }

    /// Blocks SIGCHLD as well, for [`Signals::next`].
    pub(crate) fn block_with_children() -> Signals {
        Signals::block_all(&[ENDING[0], ENDING[1], ENDING[2], libc::SIGCHLD])
    }

    /// Waits for the next signal and returns it.
    pub(crate) fn next(&self) -> io::Result<libc::c_int> {
        let mut signal = 0;
        // SAFETY: an initialised set of blocked signals, and a place for the number.
        match unsafe { libc::sigwait(&raw const self.set, &raw mut signal) } {
            0 => Ok(signal),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn block_all(signals: &[libc::c_int]) -> Signals {
        let mut set = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` initialises the set before its use, and `pthread_sigmask` the
        // previous mask; neither fails with valid pointers and signal numbers.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for &signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            Signals { set: set.assume_init(), before: before.assume_init() }
        }
    }

    /// Starts a thread that reports each signal.
    pub(crate) fn watch(&self, sender: Sender<Event>) -> io::Result<Watch> {
        let over = Arc::new(AtomicBool::new(false));
        let set = self.set;
        let until = Arc::clone(&over);
        let watch = move || {
            let mut signal = 0;
            // SAFETY: an initialised set of signals that are blocked in this thread, and a place
            // for the number.
            while unsafe { libc::sigwait(&raw const set, &raw mut signal) } == 0 {
                if until.load(Ordering::Acquire) || sender.send(Event::Signal).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("directfs-signals".to_owned()).spawn(watch)?;
        Ok(Watch { over, thread: Some(thread) })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the previously active mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

/// The thread that waits for signals; it ends when this is dropped.
pub(crate) struct Watch {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.over.store(true, Ordering::Release);
        // SAFETY: the thread has not been joined, so its id is valid; the signal is blocked there
        // and only ends its wait.
        unsafe { libc::pthread_kill(thread.as_pthread_t() as _, ENDING[0]) };
        // The thread does nothing that could panic.
        let _ = thread.join();
    }
}
