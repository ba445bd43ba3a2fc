//! Runs the program as a child: signals reach it as if it had been started directly, and the
//! launcher ends as the program ended.
//!
//! The child stays in the launcher's process group: the terminal signals both, and a shell's job
//! control covers both. The launcher blocks these signals and takes them one by one. It passes on
//! what a process sent to the launcher alone; signals of the terminal have reached the child
//! already.

use crate::file_size_limit::Before;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8};

/// Signals that the launcher takes instead of ending or stopping: all but those of faults, and
/// those that cannot be taken.
fn handled_signals() -> impl Iterator<Item = libc::c_int> {
    const USUAL: [libc::c_int; 20] = [
        libc::SIGCHLD,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGALRM,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGPIPE,
        libc::SIGURG,
        libc::SIGXCPU,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGWINCH,
        libc::SIGIO,
        libc::SIGPWR,
        libc::SIGSTKFLT,
    ];
    USUAL.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// The blocked signals of this process, and the mask and action from before, which the program
/// gets.
pub struct Signals {
    handled: libc::sigset_t,
    previous: libc::sigset_t,
    child_before: libc::sigaction,
}

impl Signals {
    /// Blocks the signals: from here on none of them ends this process before it has closed the
    /// image.
    pub fn block() -> Signals {
        // SAFETY: plain data, which is filled right below.
        let mut signals: Signals = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: sets and actions of this function's own. The default action for SIGCHLD keeps the
        // child waitable, whatever action this process inherited.
        unsafe {
            libc::sigemptyset(&raw mut signals.handled);
            for signal in handled_signals() {
                libc::sigaddset(&raw mut signals.handled, signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &raw const signals.handled, &raw mut signals.previous);
            let mut default: libc::sigaction = MaybeUninit::zeroed().assume_init();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(libc::SIGCHLD, &raw const default, &raw mut signals.child_before);
        }
        signals
    }

    /// The next signal, and whether another process sent it to the launcher. The kernel sends
    /// SIGPIPE in the name of the process that wrote to the pipe.
    fn next(&self) -> (libc::c_int, bool) {
        loop {
            // SAFETY: plain data, filled by the call.
            let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
            // SAFETY: a set and a place for the result.
            let signal = unsafe { libc::sigwaitinfo(&raw const self.handled, &raw mut info) };
            if signal > 0 {
                let is_sent = matches!(info.si_code, libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL);
                // SAFETY: all three kinds have a sender.
                return (signal, is_sent && unsafe { info.si_pid() } != std::process::id() as libc::pid_t);
            }
        }
    }
}

/// Whether a signal waits that is to end this process. [`Signals::block`] keeps it from doing so.
pub fn is_to_end() -> bool {
    // SAFETY: a set of this function's own, which the call fills.
    unsafe {
        let mut pending: libc::sigset_t = MaybeUninit::zeroed().assume_init();
        libc::sigpending(&raw mut pending);
        let ending = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP];
        ending.iter().any(|&signal| libc::sigismember(&raw const pending, signal) == 1)
    }
}

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself.
    Exit(i32),
    /// By a signal.
    Signal(i32),
}

/// The standard descriptors that were closed when this process started, as bits. Before `main` the
/// runtime opens /dev/null at their numbers.
static CLOSED: AtomicU8 = AtomicU8::new(0);
/// Whether this process was started with SIGPIPE ignored. Before `main` the runtime ignores it.
static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);

#[used]
// SAFETY: the loader calls the functions of this section with the arguments of `main`, which this
// one ignores.
#[unsafe(link_section = ".init_array")]
static RECORD_START: extern "C" fn() = record_start;

extern "C" fn record_start() {
    // SAFETY: plain data, filled by the call, which asks only.
    let action = unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        libc::sigaction(libc::SIGPIPE, ptr::null(), &raw mut action);
        action.sa_sigaction
    };
    IGNORES_PIPE.store(action == libc::SIG_IGN, Relaxed);
    for fd in 0..=libc::STDERR_FILENO {
        // SAFETY: asks only.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << fd, Relaxed);
        }
    }
}

/// Has a program start with the standard descriptors closed that were closed for this one.
pub fn keep_closed(command: &mut Command) {
    let closed = CLOSED.load(Relaxed);
    // SAFETY: the closure makes plain system calls on descriptors that the program is not to have.
    unsafe {
        command.pre_exec(move || {
            for fd in (0..=libc::STDERR_FILENO).filter(|fd| closed & 1 << fd != 0) {
                libc::close(fd);
            }
            Ok(())
        });
    }
}

/// The running program.
pub struct Child {
    pid: libc::pid_t,
}

impl Child {
    /// Starts the program, with the signal mask, actions and file size limit that this process had.
    pub fn start(mut command: Command, signals: &Signals, file_sizes: Before) -> io::Result<Child> {
        let (before, child_before) = (signals.previous, signals.child_before);
        let parent = std::process::id();
        keep_closed(&mut command);
        // SAFETY: only plain system calls on values of the closure's own, between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::sigaction(libc::SIGCHLD, &raw const child_before, ptr::null_mut());
                // A SIGKILL to the launcher must end the program, too.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() as u32 != parent {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                if IGNORES_PIPE.load(Relaxed) {
                    libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                }
                file_sizes.restore();
                libc::sigprocmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
                Ok(())
            });
        }
        // `wait` waits for it by its process id.
        Ok(Child { pid: command.spawn()?.id() as libc::pid_t })
    }

    /// Waits for the program's end; stops and continues with it.
    pub fn wait(self, signals: &Signals) -> Ended {
        loop {
            match signals.next() {
                (libc::SIGCHLD, _) => {
                    if let Some(ended) = self.look() {
                        return ended;
                    }
                }
                // The program decides whether to stop; the launcher follows.
                (libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU, false) => {}
                (signal, true) => self.send(signal),
                (_, false) => {}
            }
        }
    }

    /// Handles all children that changed state. As the first process of a container the launcher
    /// inherits orphans.
    fn look(&self) -> Option<Ended> {
        loop {
            let mut status = 0;
            // SAFETY: waits for children of this process; nothing else in it does.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
            if pid <= 0 {
                return None;
            }
            if pid != self.pid {
                continue;
            }
            if libc::WIFSTOPPED(status) {
                self.stop_too();
            } else if libc::WIFSIGNALED(status) {
                return Some(Ended::Signal(libc::WTERMSIG(status)));
            } else {
                return Some(Ended::Exit(libc::WEXITSTATUS(status)));
            }
        }
    }

    /// Stops the launcher, too, if there is a terminal: a shell may wait for the stop.
    fn stop_too(&self) {
        if std::fs::File::open("/dev/tty").is_err() {
            return;
        }
        // SAFETY: stops this process until it gets SIGCONT, which is then passed to the program.
        unsafe { libc::raise(libc::SIGSTOP) };
        self.send(libc::SIGCONT);
    }

    fn send(&self, signal: libc::c_int) {
        // SAFETY: the child was not waited for, so the number is still its own.
        unsafe { libc::kill(self.pid, signal) };
    }
}

impl Ended {
    /// Ends this process in the same way.
    pub fn repeat(self, signals: &Signals) -> ! {
        match self {
            Ended::Exit(code) => std::process::exit(code),
            Ended::Signal(signal) => {
                // SAFETY: this process is about to end: it restores the signal's default action and
                // sends it to itself. It dumps no core, since the program has dumped its own.
                unsafe {
                    libc::prctl(libc::PR_SET_DUMPABLE, 0);
                    libc::signal(signal, libc::SIG_DFL);
                    let mut one = signals.previous;
                    libc::sigemptyset(&raw mut one);
                    libc::sigaddset(&raw mut one, signal);
                    libc::kill(libc::getpid(), signal);
                    libc::sigprocmask(libc::SIG_UNBLOCK, &raw const one, ptr::null_mut());
                }
                // As the first process of a container this process survives its own signals.
                std::process::exit(128 + signal)
            }
        }
    }
}
