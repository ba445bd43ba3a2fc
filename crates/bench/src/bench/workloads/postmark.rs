//! A workload like PostMark's, with its defaults for sizes (500 bytes to 9.77 KiB), pieces (512
//! bytes) and shares (half and half). A transaction creates or removes a file, and reads a whole
//! one or appends to one. Each member has its own part of the files in one directory.

use super::calls::Directory;
use super::names::{Names, Random};
use super::system::{File, NEW, Outcomes, SystemDirectory};
use crate::bench::measure::Stopwatch;
use crate::bench::task::{PhaseName, Workers};
use crate::bench::workers::{self, Member, PhaseResult};
use crate::interrupt;
use anyhow::Result;
use std::ffi::CStr;

const BYTES_MIN: u64 = 500;
/// Maximum size of a file.
pub const BYTES_MAX: u64 = 10_000;
const PIECE_BYTES: usize = 512;

/// Measures this many transactions on this many files.
pub fn run(files: u64, transactions: u64, workers: Workers, timer_ns: u64) -> Outcomes {
    workers::run(workers, timer_ns, &|member: &mut Member| {
        // Every transaction may create a file.
        let share = member.share(transactions);
        let share = share.end - share.start;
        let numbers = member.share(files + transactions);
        let names = Names::ascending("p", numbers);
        let at_first = names.count().saturating_sub(share).max(1);
        let mut pool = Pool::new(&names, member.index);
        for _ in 0..at_first {
            pool.create()?;
        }
        member.phase(PhaseName::Rate("transactions".into()), |watch| {
            for _ in 0..share {
                interrupt::check()?;
                watch.call(|| pool.transact())?;
            }
            Ok(PhaseResult::calls(share))
        })?;
        let removed = &mut Stopwatch::new(0);
        pool.there.iter().try_for_each(|&name| removed.call(|| SystemDirectory::CURRENT.unlink(names.get(name))))
    })
}

struct Pool<'n> {
    names: &'n Names,
    there: Vec<u64>,
    next: u64,
    random: Random,
    data: [u8; BYTES_MAX as usize],
}

impl<'n> Pool<'n> {
    fn new(names: &'n Names, member: u32) -> Pool<'n> {
        let random = Random::new(member as u64 + 1);
        Pool { names, there: Vec::new(), next: 0, random, data: [0x5a; BYTES_MAX as usize] }
    }

    fn transact(&mut self) -> Result<()> {
        match self.random.below(2) {
            0 => self.create()?,
            _ => self.remove()?,
        }
        match self.random.below(2) {
            0 => self.read(),
            _ => self.append(),
        }
    }

    fn length(&mut self) -> usize {
        (BYTES_MIN + self.random.below(BYTES_MAX - BYTES_MIN + 1)) as usize
    }

    fn create(&mut self) -> Result<()> {
        let name = self.next;
        self.next += 1;
        let file = File::open(self.names.get(name), NEW)?;
        let length = self.length();
        self.data[..length].chunks(PIECE_BYTES).try_for_each(|piece| file.write(piece))?;
        file.close()?;
        self.there.push(name);
        Ok(())
    }

    fn remove(&mut self) -> Result<()> {
        // The last file stays, so that there is always one to read.
        if self.there.len() < 2 {
            return Ok(());
        }
        let at = self.random.below(self.there.len() as u64) as usize;
        SystemDirectory::CURRENT.unlink(self.names.get(self.there.swap_remove(at)))
    }

    fn any(&mut self) -> &'n CStr {
        let at = self.random.below(self.there.len() as u64) as usize;
        self.names.get(self.there[at])
    }

    fn read(&mut self) -> Result<()> {
        let file = File::open(self.any(), libc::O_RDONLY)?;
        file.read_to_end(&mut [0; PIECE_BYTES])?;
        file.close()
    }

    fn append(&mut self) -> Result<()> {
        let file = File::open(self.any(), libc::O_WRONLY | libc::O_APPEND)?;
        // Up to the maximum size, as in PostMark: on average half a file.
        let length = self.random.below(BYTES_MAX - BYTES_MIN) as usize / 2;
        self.data[..length.max(1)].chunks(PIECE_BYTES).try_for_each(|piece| file.write(piece))?;
        file.close()
    }
}
