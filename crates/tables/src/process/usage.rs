//! Occupancy of the tables: for reports, and for tests that nothing leaks.

use super::Processes;
use super::shared_tables::{SlotState, TableKind};
use crate::errno::Result;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use pmem::Memory;

/// Resources of all processes of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Processes, and prepared children.
    pub processes: u32,
    /// Open file descriptions.
    pub files: u32,
    /// Pages of descriptors that are not inline.
    pub pages: u32,
    /// Locked ranges and files.
    pub locks: u32,
    /// Mappings.
    pub mappings: u32,
    /// Descriptors in transit between processes.
    pub tokens: u32,
    /// Files referenced by any of these.
    pub files_held: u32,
    /// Files that are mapped.
    pub files_mapped: u32,
    /// Files on which leases may exist.
    pub files_leased: u32,
}

impl<M: Memory> Processes<'_, M> {
    /// Resources in use; exact while no transaction runs.
    pub fn usage(&self) -> Result<Usage> {
        let mut usage = Usage::default();
        for index in self.tables.taken_slots() {
            let slot = self.tables.slot(index)?;
            let is_process = slot.number() != 0 && slot.state.load(Acquire) != SlotState::Member as u32;
            usage.processes += is_process as u32;
        }
        let counted = [
            (TableKind::File, &mut usage.files),
            (TableKind::Page, &mut usage.pages),
            (TableKind::Lock, &mut usage.locks),
            (TableKind::Mapping, &mut usage.mappings),
            (TableKind::FdToken, &mut usage.tokens),
        ];
        for (kind, count) in counted {
            self.tables.each_claimed(self.fs, kind, &mut |_| {
                *count += 1;
                Ok(())
            })?;
        }
        let dram = self.fs.dram();
        let cachelets = dram.header()?.cachelets_next.load(Acquire).min(dram.layout.cachelets_max);
        for cachelet in 0..cachelets as u32 {
            let record = self.tables.record(cachelet)?;
            let counts = record.counts.load(Relaxed);
            usage.files_leased += record.leases.load(Relaxed);
            usage.files_held += (counts as u32 != 0) as u32;
            usage.files_mapped += (counts >> 32 != 0) as u32;
        }
        Ok(usage)
    }
}
