//! Where the messages of a server go: standard error, a file, or the log of the machine (the socket
//! of syslog, which the systemd journal serves, too).
//!
//! Invariant: the log of the machine delays no request. Its socket is not waited for: what it does
//! not take at once is lost. Standard error and a file are written as the user gave them.

use std::fmt::Arguments;
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Where messages go.
#[derive(Debug)]
pub enum Destination {
    /// Standard error, but for mere information.
    StandardError,
    /// A file, with the time in front.
    File(File),
    /// The socket of the machine's log.
    Log(PathBuf),
}

impl Destination {
    /// The log of the machine.
    pub fn log_of_the_machine() -> Destination {
        Destination::Log(PathBuf::from("/dev/log"))
    }
}

/// How important a message is, as syslog numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Importance {
    Error = 3,
    Warning = 4,
    Information = 6,
}

/// The facility `daemon` of syslog.
const DAEMON: u32 = 3;

static DESTINATION: OnceLock<Destination> = OnceLock::new();

/// Sends later messages of this process there. The first call counts.
pub fn send_messages_to(destination: Destination) {
    // A second destination has no effect, as documented.
    let _ = DESTINATION.set(destination);
}

/// Reports the failure of a server that has no standard error any more.
pub fn report_error(text: Arguments<'_>) {
    report(Importance::Error, text);
}

/// Reports what an administrator should know.
pub(crate) fn warn(text: Arguments<'_>) {
    report(Importance::Warning, text);
}

/// Reports what may be of interest later.
pub(crate) fn inform(text: Arguments<'_>) {
    report(Importance::Information, text);
}

fn report(importance: Importance, text: Arguments<'_>) {
    DESTINATION.get().unwrap_or(&Destination::StandardError).take(importance, &text.to_string());
}

impl Destination {
    /// Nothing can be done about a message that is not taken.
    fn take(&self, importance: Importance, text: &str) {
        // Paths may be hostile: they begin no line of their own, and reach no terminal's controls.
        let text: String = text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
        let pid = std::process::id();
        match self {
            Destination::StandardError if importance == Importance::Information => {}
            Destination::StandardError => {
                let _ = std::io::stderr().write_all(format!("directfs: {text}\n").as_bytes());
            }
            Destination::File(file) => {
                let word = match importance {
                    Importance::Error => "error: ",
                    Importance::Warning => "warning: ",
                    Importance::Information => "",
                };
                let line = format!("{} directfs[{pid}]: {word}{text}\n", now(c"%Y-%m-%d %H:%M:%S"));
                let _ = (&*file).write_all(line.as_bytes());
            }
            Destination::Log(socket) => {
                let priority = DAEMON * 8 + importance as u32;
                let message = format!("<{priority}>{} directfs[{pid}]: {text}", now(c"%b %e %H:%M:%S"));
                let sent = UnixDatagram::unbound().and_then(|sender| {
                    sender.set_nonblocking(true)?;
                    sender.send_to(message.as_bytes(), socket)
                });
                let _ = sent;
            }
        }
    }
}

/// The local time in a format of strftime(3), in the language C.
fn now(format: &std::ffi::CStr) -> String {
    let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let seconds = seconds.cast_signed();
    let mut text = [0_u8; 64];
    // SAFETY: zeros are a valid value of this plain structure. The calls fill it and the buffer,
    // whose length is passed; all pointers are to values of this function or the caller.
    let length = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        libc::localtime_r(&raw const seconds, &raw mut parts);
        libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &raw const parts)
    };
    String::from_utf8_lossy(&text[..length]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_the_machine_gets_one_datagram_for_a_message() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let log = UnixDatagram::bind(&path).unwrap();
        Destination::Log(path).take(Importance::Warning, "cannot unmount /mnt/a\nb");
        let mut message = [0; 512];
        let length = log.recv(&mut message).unwrap();
        let message = String::from_utf8(message[..length].to_vec()).unwrap();
        assert!(message.starts_with("<28>"), "{message}");
        let end = format!(" directfs[{}]: cannot unmount /mnt/a\u{fffd}b", std::process::id());
        assert!(message.ends_with(&end), "{message}");
    }

    #[test]
    fn a_log_that_is_full_or_absent_delays_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        Destination::Log(path.clone()).take(Importance::Warning, "nothing is there");
        let _never_read = UnixDatagram::bind(&path).unwrap();
        // Far more than the kernel queues for a receiver.
        (0..10_000).for_each(|_| Destination::Log(path.clone()).take(Importance::Warning, "text"));
    }

    #[test]
    fn a_file_gets_lines_with_time_process_and_importance() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let file = File::options().create(true).append(true).open(&path).unwrap();
        let destination = Destination::File(file);
        destination.take(Importance::Error, "first");
        destination.take(Importance::Information, "second");
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let process = format!(" directfs[{}]: ", std::process::id());
        assert!(lines[0].ends_with(&format!("{process}error: first")), "{text}");
        assert!(lines[1].ends_with(&format!("{process}second")) && lines.len() == 2, "{text}");
        assert_eq!(lines[0].find(" directfs"), Some("2026-11-28 01:02:03".len()), "{text}");
    }
}
