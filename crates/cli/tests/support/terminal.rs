//! A program on a terminal, whose keys a test presses and whose screen it reads.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{Termios, tcgetattr};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// The most time that a screen may need to show what a test waits for.
const LIMIT: Duration = Duration::from_secs(600);

pub struct Terminal {
    keyboard: File,
    /// The program's end of the terminal, which stays open for a look at its modes.
    line: OwnedFd,
    pub child: Child,
    screen: vt100::Parser,
}

impl Terminal {
    /// Starts a program in the foreground of a terminal of that size.
    pub fn start(command: &mut Command, columns: u16, lines: u16) -> Terminal {
        let (mut keyboard, mut line) = (0, 0);
        let size = libc::winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: two places for descriptors, and a size; no name and no modes.
        let opened = unsafe {
            libc::openpty(&raw mut keyboard, &raw mut line, std::ptr::null_mut(), std::ptr::null(), &raw const size)
        };
        assert_eq!(opened, 0, "a terminal: {}", std::io::Error::last_os_error());
        // SAFETY: descriptors that the call made, and that nothing else owns.
        let (keyboard, line) = unsafe { (File::from_raw_fd(keyboard), OwnedFd::from_raw_fd(line)) };
        let end = || line.try_clone().expect("a descriptor");
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm").env_remove("NO_COLOR");
        // SAFETY: two plain system calls between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 {
                true => Ok(()),
                false => Err(std::io::Error::last_os_error()),
            })
        };
        let child = command.spawn().expect("it starts");
        Terminal { keyboard, line, child, screen: vt100::Parser::new(lines, columns, 0) }
    }

    pub fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).expect("the terminal takes keys");
    }

    pub fn modes(&self) -> Termios {
        tcgetattr(&self.line).expect("a terminal has modes")
    }

    pub fn screen(&self) -> &vt100::Screen {
        self.screen.screen()
    }

    /// The lines of the screen, without the empty ones at its end.
    pub fn lines(&self) -> Vec<String> {
        self.screen().contents().lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// Waits until the screen is as it should be.
    pub fn wait_for(&mut self, what: &str, is_so: impl Fn(&Terminal) -> bool) {
        let end = Instant::now() + LIMIT;
        while !is_so(self) {
            assert!(self.read() || Instant::now() < end, "{what}: {:#?}", self.lines());
        }
    }

    /// Reads what the program has drawn; false if it draws nothing for a moment.
    fn read(&mut self) -> bool {
        let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let mut waiting = [PollFd::new(&self.keyboard, PollFlags::IN)];
        if poll(&mut waiting, Some(&moment)) != Ok(1) {
            return false;
        }
        let mut piece = [0; 4096];
        let length = self.keyboard.read(&mut piece).unwrap_or(0);
        self.screen.process(&piece[..length]);
        length > 0
    }

    /// Waits for the end of the program, and reads all that it has drawn.
    pub fn end(&mut self) -> ExitStatus {
        let limit = Instant::now() + LIMIT;
        let status = loop {
            self.read();
            match self.child.try_wait().expect("a child") {
                Some(status) => break status,
                None => assert!(Instant::now() < limit, "it does not end: {:#?}", self.lines()),
            }
        };
        while self.read() {}
        status
    }
}
