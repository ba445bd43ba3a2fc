//! Records of a process's file mappings. A mapped file's blocks stay in place, and its space is
//! freed only after the last mapping has ended.

use super::lists::walk_mappings;
use super::shared_tables::{MappingNode, TableKind};
use super::table_transaction::{ONE_MAPPING, TableSlot, TableTransaction, TransactionStep};
use super::{FileMapping, Process};
use crate::errno::{Errno, Result};
use core::sync::atomic::Ordering::{Relaxed, Release};
use engine::{Node, Thread};
use pmem::Memory;

const SHARED: u32 = 1;
const WRITABLE: u32 = 2;
const STORES: u32 = 4;
const INHERITED: u32 = 8;
/// The protection begins here.
const PROTECTION_SHIFT: u32 = 4;
const PROTECTION_MASK: u32 = 7;

pub(super) fn read(node: &MappingNode) -> FileMapping {
    let flags = node.flags.load(Relaxed);
    FileMapping {
        address: node.address.load(Relaxed),
        length: node.length.load(Relaxed),
        offset: node.offset.load(Relaxed),
        node: Node { cachelet: node.cachelet.load(Relaxed), number: node.number.load(Relaxed) },
        shared: flags & SHARED != 0,
        writable: flags & WRITABLE != 0,
        stores: flags & STORES != 0,
        inherited: flags & INHERITED != 0,
        protection: (flags >> PROTECTION_SHIFT & PROTECTION_MASK) as u8,
    }
}

fn flags_of(mapping: &FileMapping) -> u32 {
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    flag(mapping.shared, SHARED)
        | flag(mapping.writable, WRITABLE)
        | flag(mapping.stores, STORES)
        | flag(mapping.inherited, INHERITED)
        | (u32::from(mapping.protection) & PROTECTION_MASK) << PROTECTION_SHIFT
}

impl FileMapping {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.length)
    }

    /// The part within an address range.
    fn part(&self, from: u64, to: u64) -> Option<FileMapping> {
        let (address, end) = (self.address.max(from), self.end().min(to));
        let length = end.checked_sub(address).filter(|length| *length > 0)?;
        let offset = self.offset.checked_add(address - self.address)?;
        Some(FileMapping { address, length, offset, ..*self })
    }
}

impl<M: Memory> TableTransaction<'_, '_, M> {
    /// Records a mapping of a slot.
    pub(super) fn add_mapping(&self, slot: u32, mapping: &FileMapping) -> Result<()> {
        let intent = self.intent();
        self.prepare(TableSlot::Mappings(slot), 0)?;
        self.step(TransactionStep::Claim);
        let Some(index) = self.claim(TableKind::Mapping, 0)? else {
            self.step(TransactionStep::None);
            return Err(Errno::ENOMEM);
        };
        let node = self.tables().mapping(index)?;
        node.address.store(mapping.address, Relaxed);
        node.length.store(mapping.length, Relaxed);
        node.offset.store(mapping.offset, Relaxed);
        node.number.store(mapping.node.number, Relaxed);
        node.cachelet.store(mapping.node.cachelet, Relaxed);
        node.flags.store(flags_of(mapping), Relaxed);
        intent.record.store(mapping.node.cachelet, Release);
        self.take_record(ONE_MAPPING, TransactionStep::LinkMapping)?;
        if mapping.stores {
            self.thread.files().note_stores(mapping.node)?;
        }
        self.resume()
    }

    /// The first mapping of a slot for which `wanted` returns true.
    pub(super) fn find_mapping(
        &self,
        slot: u32,
        wanted: &mut dyn FnMut(&FileMapping) -> bool,
    ) -> Result<Option<(u32, FileMapping)>> {
        let tables = self.tables();
        let mut found = None;
        walk_mappings(tables, slot, &mut |index, _| {
            let mapping = tables.mapping(index).ok().map(read).filter(|mapping| wanted(mapping));
            found = mapping.map(|mapping| (index, mapping));
            found.is_none()
        })?;
        Ok(found)
    }

    /// Removes the records of an address range. The remaining parts are recorded first, so that the
    /// file is held all the time.
    fn cut(&self, slot: u32, from: u64, to: u64) -> Result<()> {
        while let Some((index, mapping)) = self.find_mapping(slot, &mut |mapping| mapping.part(from, to).is_some())? {
            for rest in [mapping.part(0, from), mapping.part(to, u64::MAX)].into_iter().flatten() {
                self.add_mapping(slot, &rest)?;
            }
            self.end_mapping(slot, index, &mapping)?;
        }
        Ok(())
    }

    /// Removes the record of a mapping. If the process may have stored into it, updates the file's
    /// times.
    fn end_mapping(&self, slot: u32, index: u32, mapping: &FileMapping) -> Result<()> {
        if mapping.stores && !mapping.inherited {
            // If the image has no space for that, the times stay: ending a mapping cannot fail.
            let _ = self.thread.files().record_stores(mapping.node);
        }
        self.drop_mapping(slot, index)
    }

    /// Gives a child a copy of a mapping.
    pub(super) fn inherit_mapping(&self, child: u32, index: u32) -> Result<()> {
        let mapping = read(self.tables().mapping(index)?);
        self.add_mapping(child, &FileMapping { inherited: true, ..mapping })
    }

    /// Removes all mappings of a slot.
    pub(super) fn drop_mappings(&self, slot: u32) -> Result<()> {
        while let Some((index, mapping)) = self.find_mapping(slot, &mut |_| true)? {
            self.end_mapping(slot, index, &mapping)?;
        }
        Ok(())
    }
}

/// Mappings.
impl<'f, M: Memory> Process<'f, M> {
    /// Records a mapping *before* it is made. Parts of other mappings at the same addresses are
    /// removed (MAP_FIXED; the VFS layer ensures that no thread relies on them). From here on the
    /// file is changed in place, and its blocks are not reused. ENOMEM: too many mappings.
    pub fn add_mapping(&self, thread: &Thread<'f, M>, mapping: &FileMapping) -> Result<()> {
        if mapping.length == 0 || mapping.address.checked_add(mapping.length).is_none() {
            return Err(Errno::EINVAL);
        }
        let transaction = self.processes.begin(thread, self.index)?;
        // The removed part may be the only reference to the file.
        let old =
            transaction.find_mapping(self.index, &mut |old| old.part(mapping.address, mapping.end()).is_some())?;
        if old.is_some() {
            transaction.cut(self.index, mapping.address, mapping.end())?;
        }
        transaction.add_mapping(self.index, mapping)
    }

    /// Records, *before* mprotect, the new protection of an address range, and permits stores into
    /// its shared mappings. EACCES: one of the files was not opened for writing; ENOMEM: too many
    /// mappings.
    pub fn protect(&self, thread: &Thread<'f, M>, address: u64, length: u64, protection: u8) -> Result<()> {
        let end = address.saturating_add(length);
        let stores = protection & libc::PROT_WRITE as u8 != 0;
        let transaction = self.processes.begin(thread, self.index)?;
        let tables = transaction.tables();
        let is_there = |mapping: &FileMapping| mapping.part(address, end).is_some();
        let forbids = |mapping: &FileMapping| is_there(mapping) && mapping.shared && !mapping.writable;
        if stores && transaction.find_mapping(self.index, &mut |mapping| forbids(mapping))?.is_some() {
            return Err(Errno::EACCES);
        }
        let mut needs_change = |mapping: &FileMapping| {
            is_there(mapping) && (mapping.protection != protection || stores && mapping.shared && !mapping.stores)
        };
        while let Some((index, mapping)) = transaction.find_mapping(self.index, &mut needs_change)? {
            if mapping.address < address || mapping.end() > end {
                for part in [mapping.part(0, address), mapping.part(address, end), mapping.part(end, u64::MAX)] {
                    part.map_or(Ok(()), |part| transaction.add_mapping(self.index, &part))?;
                }
                transaction.drop_mapping(self.index, index)?;
                continue;
            }
            let may_store = mapping.shared && (stores || mapping.stores);
            if may_store {
                thread.files().note_stores(mapping.node)?;
            }
            let changed = FileMapping { protection, stores: may_store, ..mapping };
            tables.mapping(index)?.flags.store(flags_of(&changed), Relaxed);
        }
        Ok(())
    }

    /// The work of msync on an address range: updates the times of files that the process may have
    /// stored into, and with `durable` makes the stores durable. As in the kernel, a part that is
    /// not mapped, or not from this file system, is passed over. Returns whether any part is.
    pub fn sync_mappings(&self, thread: &Thread<'f, M>, address: u64, length: u64, durable: bool) -> Result<bool> {
        let end = address.saturating_add(length);
        let mut at = address;
        while let Some(part) = self.first_mapping_within(thread, at, end)? {
            if part.writable && !thread.fs().is_read_only() {
                thread.files().record_stores(part.node)?;
            }
            if durable {
                thread.files().flush_mapped(part.node, part.offset, part.length)?;
            }
            at = part.end();
        }
        Ok(at > address)
    }

    /// The part within an address range of the lowest mapping there.
    fn first_mapping_within(&self, thread: &Thread<'f, M>, from: u64, to: u64) -> Result<Option<FileMapping>> {
        let mut first: Option<FileMapping> = None;
        self.mappings(thread, &mut |mapping| {
            let lowest = first.map_or(u64::MAX, |first| first.address);
            first = mapping.part(from, to).filter(|part| part.address < lowest).or(first);
        })?;
        Ok(first)
    }

    /// Removes the mappings of an address range, *after* it was unmapped or replaced; the parts
    /// outside remain. ENOMEM: too many mappings.
    pub fn remove_mappings(&self, thread: &Thread<'f, M>, address: u64, length: u64) -> Result<()> {
        self.processes.begin(thread, self.index)?.cut(self.index, address, address.saturating_add(length))
    }

    /// The mapping at an address, if it belongs to this file system.
    pub fn mapping_at(&self, thread: &Thread<'f, M>, address: u64) -> Result<Option<FileMapping>> {
        let transaction = self.processes.begin(thread, self.index)?;
        let found =
            transaction.find_mapping(self.index, &mut |mapping| mapping.part(address, address + 1).is_some())?;
        Ok(found.map(|(_, mapping)| mapping))
    }

    /// Calls `each` with all mappings, in no particular order; it must not call this layer.
    pub fn mappings(&self, thread: &Thread<'f, M>, each: &mut dyn FnMut(&FileMapping)) -> Result<()> {
        let transaction = self.processes.begin(thread, self.index)?;
        let all = transaction.find_mapping(self.index, &mut |mapping| {
            each(mapping);
            false
        });
        all.map(drop)
    }
}
