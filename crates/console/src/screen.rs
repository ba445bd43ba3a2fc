//! A terminal whose screen is drawn again and again, and whose keys arrive one by one.
//!
//! The terminal is as it was before when the value is dropped. No signal ends the process meanwhile
//! (`interrupt::catch_each`), since it would leave the terminal without echo.

use crate::output;
use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use rustix::termios::{tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use std::io::{IsTerminal, stdin, stdout};
use std::time::Duration;

/// Hides the cursor, and cuts lines at the right border instead of wrapping them.
const BEGIN: &[u8] = b"\x1b[?25l\x1b[?7l\x1b[2J";
const END: &[u8] = b"\x1b[?7h\x1b[?25h\n";
const HOME: &[u8] = b"\x1b[H";
const CLEAR_LINE: &[u8] = b"\x1b[K";
/// What Ctrl-C and Ctrl-D send.
const CTRL_C: u8 = 3;
const CTRL_D: u8 = 4;

/// What happened on the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Nothing in the given time.
    Nothing,
    /// A byte of a key.
    Key(u8),
    /// `q`, Ctrl-C or Ctrl-D, or the terminal is gone.
    Quit,
}

/// A terminal that delivers keys. See the module.
pub struct Screen {
    before: Termios,
}

impl Screen {
    /// None: standard input and output are no terminal that can be drawn on, or another program
    /// has its keyboard.
    pub fn open() -> Result<Option<Screen>> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb");
        if is_dumb || !stdin().is_terminal() || !stdout().is_terminal() {
            return Ok(None);
        }
        // A process in the background that changes the terminal is stopped.
        if tcgetpgrp(stdin()) != Ok(rustix::process::getpgrp()) {
            return Ok(None);
        }
        let Ok(before) = tcgetattr(stdin()) else { return Ok(None) };
        crate::interrupt::catch_each()?;
        let mut modes = before.clone();
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        modes.special_codes[SpecialCodeIndex::VMIN] = 0;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(stdin(), OptionalActions::Now, &modes)?;
        output::write(BEGIN);
        Ok(Some(Screen { before }))
    }

    /// Columns and lines.
    pub fn size(&self) -> (usize, usize) {
        match tcgetwinsize(stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        }
    }

    /// Waits for a key.
    pub fn event(&self, limit: Duration) -> Event {
        let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        let input = stdin();
        let mut waiting = [PollFd::new(&input, PollFlags::IN)];
        if !matches!(poll(&mut waiting, Some(&timeout)), Ok(1..)) {
            return Event::Nothing;
        }
        let mut key = [0];
        match rustix::io::read(&input, &mut key) {
            Ok(1) if [b'q', CTRL_C, CTRL_D].contains(&key[0]) => Event::Quit,
            Ok(1) => Event::Key(key[0]),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Event::Nothing,
            _ => Event::Quit,
        }
    }

    /// Shows these lines, and the last one at the bottom.
    pub fn draw(&self, lines: &[String], bottom: &str) {
        let room = self.size().1.saturating_sub(1);
        output::write(HOME);
        for at in 0..room {
            print!("{}", lines.get(at).map_or("", String::as_str));
            output::write(CLEAR_LINE);
            output::write(b"\n");
        }
        print!("{bottom}");
        output::write(CLEAR_LINE);
        output::flush();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        output::write(END);
        output::flush();
        // If the terminal is gone, it needs no modes.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}
