//! What processes hold and wait for, as another process sees it: for `directfs ps`.
//!
//! Everything is read without a lock, and nothing is changed. So no process waits for an observer,
//! and an observer waits for no process. Entries that change meanwhile may be missing or doubled.
//!
//! Invariant: loops over links have a bound, because another process may have damaged them.
//!
//! A wait for a range is in the slot anyway; for others the kernel is asked on which word a thread
//! sleeps (`/proc/PID/task/TID/syscall`), whose place identifies the lock. Programs on a mount are
//! found by `mnt_id` in fdinfo, since a dead server would block other accesses. *Rejected:* a
//! transaction per slot (a stopped process would stop the observer, and the reverse); words that
//! calls write for observers.

use super::locks::{EXCLUSIVE, LockRequest, is_linked};
use super::mappings;
use super::shared_tables::{SLOTS, SlotState, TableKind};
use super::table_transaction::file_of;
use super::{FileMapping, LockKind, LockOwner, LockRange, Processes};
use crate::errno::Result;
use crate::open_file::OpenFile;
use core::mem::offset_of;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use pmem::Memory;

/// A process in the shared tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedProcess {
    /// Its slot.
    pub slot: u32,
    /// The slot with its descriptors: its own, except with CLONE_FILES.
    pub table: u32,
    /// Its process number: see `engine::Liveness`.
    pub number: u32,
    /// Its id in its own namespace.
    pub process_id: u32,
    /// Inode number of its working directory, if that is in the image.
    pub directory: Option<u64>,
    /// Inode number of the program that it runs, if that is in the image.
    pub program: Option<u64>,
    /// The range that it waits to lock (F_SETLKW).
    pub wait: Option<ObservedWait>,
}

/// A wait for a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedWait {
    /// Inode number of the file.
    pub inode: u64,
    /// The bytes.
    pub range: LockRange,
    /// What it asks for.
    pub kind: LockKind,
}

/// A lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedLock {
    /// Inode number of the file.
    pub inode: u64,
    /// Whether it is a flock, and not a range.
    pub is_flock: bool,
    /// What it admits.
    pub kind: LockKind,
    /// Its bytes.
    pub range: LockRange,
    /// Its owner.
    pub owner: LockOwner,
    /// The process that set it, as F_GETLK reports it; -1: unknown.
    pub process_id: i32,
}

/// A descriptor of a process.
#[derive(Debug, Clone, Copy)]
pub struct ObservedDescriptor<'f> {
    /// Its number.
    pub fd: u32,
    /// The number of its open file description.
    pub description: u32,
    /// The description.
    pub file: &'f OpenFile,
}

impl<'f, M: Memory> Processes<'f, M> {
    fn inode_of(&self, cachelet: u32) -> u64 {
        self.fs.dram().cachelet(cachelet).map_or(0, |cachelet| cachelet.number.load(Relaxed))
    }

    /// Passes the processes that have a slot and are alive.
    pub fn each_process(&self, each: &mut dyn FnMut(ObservedProcess)) -> Result<()> {
        for index in self.tables.taken_slots() {
            let slot = self.tables.slot(index)?;
            let number = slot.number();
            let is_live = slot.state.load(Acquire) == SlotState::Live as u32;
            let Some(table) = slot.table.load(Relaxed).checked_sub(1) else { continue };
            if !is_live || number == 0 || table >= SLOTS || !self.fs.processes().is_process_alive(number) {
                continue;
            }
            let directory = slot.directory.load(Acquire);
            let program = slot.program[0].load(Relaxed);
            each(ObservedProcess {
                slot: index,
                table,
                number,
                process_id: slot.process_id.load(Relaxed),
                directory: (directory != 0).then(|| self.inode_of(directory)),
                program: (program != 0).then_some(program),
                wait: self.wait_of(table)?,
            });
        }
        Ok(())
    }

    fn wait_of(&self, table: u32) -> Result<Option<ObservedWait>> {
        let slot = self.tables.slot(table)?;
        let word = slot.waits_in.load(SeqCst);
        let last = slot.waits_last.load(Relaxed);
        let range = LockRange { start: slot.waits_start.load(Relaxed), last: last & !EXCLUSIVE };
        let kind = if last & EXCLUSIVE != 0 { LockKind::Exclusive } else { LockKind::Shared };
        // The words belong together if the wait is still the same.
        let is_waiting = word as u32 != 0 && slot.waits_in.load(SeqCst) == word;
        Ok(is_waiting.then(|| ObservedWait { inode: self.inode_of(word as u32), range, kind }))
    }

    /// Passes the descriptors of a table.
    pub fn each_descriptor(&self, table: u32, each: &mut dyn FnMut(ObservedDescriptor<'f>)) -> Result<()> {
        let mut from = 0;
        while let Some((fd, entry)) = self.next_entry(table, from)? {
            if let Some(description) = file_of(entry) {
                each(ObservedDescriptor { fd, description, file: self.tables.file(description)? });
            }
            from = fd + 1;
        }
        Ok(())
    }

    /// Passes the mappings of a process.
    pub fn each_mapping(&self, slot: u32, each: &mut dyn FnMut(FileMapping)) -> Result<()> {
        let tables = &self.tables;
        super::lists::walk_mappings(tables, slot, &mut |index, _| {
            if let Ok(node) = tables.mapping(index) {
                each(mappings::read(node));
            }
            true
        })
    }

    /// Passes all locks on files of the image.
    pub fn each_lock(&self, each: &mut dyn FnMut(ObservedLock)) -> Result<()> {
        self.tables.each_claimed(self.fs, TableKind::Lock, &mut |index| {
            let node = self.tables.lock(index)?;
            let (held, cachelet) = (LockRequest::read(node), node.record.load(Relaxed));
            let record = self.tables.record(cachelet)?;
            let is_flock = is_linked(&self.tables, &record.flocks, index)?;
            // A node on no list is about to be used, or was given up.
            if is_flock || is_linked(&self.tables, &record.ranges, index)? {
                each(ObservedLock {
                    inode: self.inode_of(cachelet),
                    is_flock,
                    kind: held.kind,
                    range: held.range,
                    owner: held.owner,
                    process_id: held.pid,
                });
            }
            Ok(())
        })
    }

    /// The file whose locks a thread waits for, given the word in the DRAM region on which it
    /// sleeps: its inode number. `None`: the word is another one.
    pub fn awaited_locks(&self, offset: u64) -> Option<u64> {
        let layout = &self.fs.dram().layout;
        let cachelet = layout.cachelet_of_upper_file(offset)?;
        let version = layout.upper_file(cachelet) + offset_of!(super::shared_tables::Record, version) as u64;
        (offset == version).then(|| self.inode_of(cachelet as u32))
    }
}
