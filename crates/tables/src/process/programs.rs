//! Files that run as programs: they cannot be opened for writing, and files open for writing cannot
//! be run (ETXTBSY).
//!
//! There are no counts that a death could leave wrong: a process names its program in its slot, and
//! a query searches all slots. Queries are rare, and concern only executable files.

use super::shared_tables::TableKind;
use super::{Process, Processes};
use crate::errno::Result;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use engine::{Protection, Thread};
use pmem::Memory;

/// A running file: inode number and generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    number: u64,
    generation: u32,
}

impl Program {
    /// The program in a file.
    pub fn of(file: &Protection) -> Program {
        Program { number: file.number, generation: file.generation }
    }
}

impl<'f, M: Memory> Processes<'f, M> {
    /// Whether a living process runs this program.
    pub fn runs(&self, thread: &Thread<'f, M>, program: Program) -> Result<bool> {
        // A dead process that is not reaped yet still appears to run it.
        Ok(self.seems_to_run(program)? && (self.reap(thread)? == 0 || self.seems_to_run(program)?))
    }

    pub(super) fn seems_to_run(&self, program: Program) -> Result<bool> {
        for index in self.tables.taken_slots() {
            let [number, generation] = &self.tables.slot(index)?.program;
            if number.load(Acquire) == program.number && generation.load(Relaxed) == u64::from(program.generation) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a living process has a file open for writing.
    pub fn is_written(&self, thread: &Thread<'f, M>, number: u64) -> Result<bool> {
        Ok(self.seems_written(number)? && (self.reap(thread)? == 0 || self.seems_written(number)?))
    }

    fn seems_written(&self, number: u64) -> Result<bool> {
        let mut found = false;
        self.tables.each_claimed(self.fs, TableKind::File, &mut |index| {
            let file = self.tables.file(index)?;
            found |= file.node().number == number && file.writes();
            Ok(())
        })?;
        Ok(found)
    }
}

impl<M: Memory> Process<'_, M> {
    /// The program that the process runs, if that is in the mount.
    pub fn program(&self) -> Option<Program> {
        let [number, generation] = &self.slot.program;
        let number = Some(number.load(Acquire)).filter(|&number| number != 0)?;
        Some(Program { number, generation: generation.load(Relaxed) as u32 })
    }

    /// Sets the program that the process is about to run, before exec, which keeps the slot.
    pub fn set_program(&self, program: Option<Program>) {
        let [number, generation] = &self.slot.program;
        number.store(0, Release);
        generation.store(program.map_or(0, |program| u64::from(program.generation)), Relaxed);
        number.store(program.map_or(0, |program| program.number), Release);
    }
}
