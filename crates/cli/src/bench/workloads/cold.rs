//! The first calls of a program on files that it has not made. What is cold about them differs between file systems, and the report says it for
//! each: an ordinary user cannot make the kernel forget names.

use super::calls::{Directory, over, read};
use super::names::Names;
use super::system::{File, NEW, Outcomes, SystemDirectory};
use crate::bench::crew::{self, Done, Member};
use crate::bench::measure::Stopwatch;
use crate::bench::task::{Crew, What};
use anyhow::{Context, Result};

/// What each file holds.
const BYTES: usize = 4096;

/// Makes the files, sees them on their medium, and asks that their pages be forgotten.
pub fn prepare(files: u64) -> Outcomes {
    let names = Names::ascending("f", 0..files);
    over(&names, &mut Stopwatch::new(0), |name| {
        let file = File::open(name, NEW)?;
        file.write(&[0x5a; BYTES])?;
        file.close()
    })?;
    let directory = std::fs::File::open(".").context("cannot open the directory of the files")?;
    // SAFETY: an open descriptor. What cannot be synchronised is in memory only, and stays there.
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
    crew::run(Crew::ONE, timer_ns, &|member: &mut Member| {
        let directory = SystemDirectory::CURRENT;
        member.phase(What::Once("stat, the first one".into()), |_| {
            directory.stat(names.get(0)).map(|()| Done::calls(1))
        })?;
        member.phase(What::Each("stat, each name once".into()), |watch| {
            over(&names, watch, |name| directory.stat(name))
        })?;
        member.phase(What::Each("readdir, per name".into()), |_| read(&directory, files))?;
        member
            .phase(What::Each("open, read 4 KiB, close, each file once".into()), |watch| over(&names, watch, read_file))
    })
}

#[inline]
fn read_file(name: &std::ffi::CStr) -> Result<()> {
    let mut buffer = [0; BYTES];
    let file = File::open(name, libc::O_RDONLY)?;
    file.read(&mut buffer)?;
    file.close()
}
