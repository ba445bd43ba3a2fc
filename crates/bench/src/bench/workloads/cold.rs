//! The first calls of a process on files of another one. The meaning of a cold state differs
//! between file systems, and the report explains it for each: an ordinary user cannot make the
//! kernel drop cached names.

use super::calls::{Directory, over, read};
use super::names::Names;
use super::system::{File, NEW, Outcomes, SystemDirectory};
use crate::bench::measure::Stopwatch;
use crate::bench::task::{PhaseName, Workers};
use crate::bench::workers::{self, Member, PhaseResult};
use anyhow::{Context, Result};

/// Size of each file.
const BYTES: usize = 4096;

/// Creates the files, writes them back to their medium, and asks the kernel to drop their pages.
pub fn prepare(files: u64) -> Outcomes {
    let names = Names::ascending("f", 0..files);
    over(&names, &mut Stopwatch::new(0), |name| {
        let file = File::open(name, NEW)?;
        file.write(&[0x5a; BYTES])?;
        file.close()
    })?;
    let directory = std::fs::File::open(".").context("cannot open the directory of the files")?;
    // SAFETY: an open descriptor. A failure means that the files are only in memory, where they
    // stay.
    unsafe { libc::syncfs(std::os::fd::AsRawFd::as_raw_fd(&directory)) };
    over(&names, &mut Stopwatch::new(0), |name| {
        let file = File::open(name, libc::O_RDONLY)?;
        file.forget_pages();
        file.close()
    })?;
    Ok(Vec::new())
}

/// Measures the first calls on them.
pub fn run(files: u64, timer_ns: u64) -> Outcomes {
    let names = Names::shuffled("f", 0..files);
    workers::run(Workers::ONE, timer_ns, &|member: &mut Member| {
        let directory = SystemDirectory::CURRENT;
        member.phase(PhaseName::Once("stat, the first one".into()), |_| {
            directory.stat(names.get(0)).map(|()| PhaseResult::calls(1))
        })?;
        member.phase(PhaseName::Each("stat, each name once".into()), |watch| {
            over(&names, watch, |name| directory.stat(name))
        })?;
        member.phase(PhaseName::Each("readdir, per name".into()), |_| read(&directory, files))?;
        member.phase(PhaseName::Each("open, read 4 KiB, close, each file once".into()), |watch| {
            over(&names, watch, read_file)
        })
    })
}

#[inline]
fn read_file(name: &std::ffi::CStr) -> Result<()> {
    let mut buffer = [0; BYTES];
    let file = File::open(name, libc::O_RDONLY)?;
    file.read(&mut buffer)?;
    file.close()
}
