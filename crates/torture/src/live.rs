//! The progress line of a run: rewritten in place on a terminal, an occasional line elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Intervals between two lines: where lines are kept, and on a terminal.
const PAUSE_KEPT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);

/// Shows the progress of a run.
pub struct Live {
    begun: Instant,
    printed_at: Option<Instant>,
    planned: Duration,
    on_terminal: bool,
}

impl Live {
    /// For a run of this planned duration.
    pub fn new(planned: Duration) -> Live {
        Live { begun: Instant::now(), printed_at: None, planned, on_terminal: std::io::stderr().is_terminal() }
    }

    /// Shows the state of a part, at most once per interval.
    pub fn print(&mut self, part: &str, what: &str) {
        let pause = if self.on_terminal { PAUSE } else { PAUSE_KEPT };
        if self.printed_at.is_some_and(|result| result.elapsed() < pause) {
            return;
        }
        self.printed_at = Some(Instant::now());
        let (now, planned) = (clock(self.begun.elapsed()), clock(self.planned));
        let (begin, end) = if self.on_terminal { ("\r\x1b[K", "") } else { ("", "\n") };
        eprint!("{begin}{now} of {planned}  {part}: {what}{end}");
        let _ = std::io::stderr().flush();
    }

    /// Clears the line.
    pub fn clear(&self) {
        if self.on_terminal {
            eprint!("\r\x1b[K");
        }
    }
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
