//! Which files a process has mapped where: so that the file's blocks stay while somebody looks at them, and come back when he is gone.

use super::actor::{Actor, ONE_MAPPING, Place, Step};
use super::areas::{Kind, MappingNode};
use super::lists::walk_mappings;
use super::{FileMapping, Process};
use crate::errno::{Errno, Result};
use core::sync::atomic::Ordering::{Relaxed, Release};
use engine::{Node, Thread};
use pmem::Memory;

const SHARED: u32 = 1;
const WRITABLE: u32 = 2;

pub(super) fn read(node: &MappingNode) -> FileMapping {
    let flags = node.flags.load(Relaxed);
    FileMapping {
        address: node.address.load(Relaxed),
        length: node.length.load(Relaxed),
        offset: node.offset.load(Relaxed),
        node: Node { cachelet: node.cachelet.load(Relaxed), number: node.number.load(Relaxed) },
        shared: flags & SHARED != 0,
        writable: flags & WRITABLE != 0,
    }
}

impl FileMapping {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.length)
    }

    /// The part of it that is in an address range.
    fn part(&self, from: u64, to: u64) -> Option<FileMapping> {
        let (address, end) = (self.address.max(from), self.end().min(to));
        let length = end.checked_sub(address).filter(|length| *length > 0)?;
        let offset = self.offset.checked_add(address - self.address)?;
        Some(FileMapping { address, length, offset, ..*self })
    }
}

impl<M: Memory> Actor<'_, '_, M> {
    /// Records a mapping of a slot.
    pub(super) fn add_mapping(&self, slot: u32, mapping: &FileMapping) -> Result<()> {
        let intent = self.intent();
        self.prepare(Place::Mappings(slot), 0)?;
        self.step(Step::Claim);
        let Some(index) = self.claim(Kind::Mapping, 0)? else {
            self.step(Step::None);
            return Err(Errno::ENOMEM);
        };
        let node = self.areas().mapping(index)?;
        node.address.store(mapping.address, Relaxed);
        node.length.store(mapping.length, Relaxed);
        node.offset.store(mapping.offset, Relaxed);
        node.number.store(mapping.node.number, Relaxed);
        node.cachelet.store(mapping.node.cachelet, Relaxed);
        let flags = if mapping.shared { SHARED } else { 0 } | if mapping.writable { WRITABLE } else { 0 };
        node.flags.store(flags, Relaxed);
        intent.record.store(mapping.node.cachelet, Release);
        self.take_record(ONE_MAPPING, Step::LinkMapping)?;
        self.go_on()
    }

    /// The first mapping of a slot that `wanted` says yes to.
    pub(super) fn find_mapping(
        &self,
        slot: u32,
        wanted: &mut dyn FnMut(&FileMapping) -> bool,
    ) -> Result<Option<(u32, FileMapping)>> {
        let areas = self.areas();
        let mut found = None;
        walk_mappings(areas, slot, &mut |index, _| {
            let mapping = areas.mapping(index).ok().map(read).filter(|mapping| wanted(mapping));
            found = mapping.map(|mapping| (index, mapping));
            found.is_none()
        })?;
        Ok(found)
    }

    /// Forgets an address range. What stays of a mapping is recorded anew first, so that the file is held all the time.
    fn cut(&self, slot: u32, from: u64, to: u64) -> Result<()> {
        while let Some((index, mapping)) = self.find_mapping(slot, &mut |mapping| mapping.part(from, to).is_some())? {
            for rest in [mapping.part(0, from), mapping.part(to, u64::MAX)].into_iter().flatten() {
                self.add_mapping(slot, &rest)?;
            }
            self.drop_mapping(slot, index)?;
        }
        Ok(())
    }

    /// Forgets all mappings of a slot.
    pub(super) fn drop_mappings(&self, slot: u32) -> Result<()> {
        while let Some((index, _)) = self.find_mapping(slot, &mut |_| true)? {
            self.drop_mapping(slot, index)?;
        }
        Ok(())
    }
}

/// Mappings.
impl<'f, M: Memory> Process<'f, M> {
    /// Records a mapping *before* it is made; parts of others at the same addresses are gone then (MAP_FIXED; the front has taken care that no
    /// thread relies on them). From here on the file is changed in place, and no block of it is used for anything else. ENOMEM: too many.
    pub fn add_mapping(&self, thread: &Thread<'f, M>, mapping: &FileMapping) -> Result<()> {
        if mapping.length == 0 || mapping.address.checked_add(mapping.length).is_none() {
            return Err(Errno::EINVAL);
        }
        let actor = self.all.act(thread, self.index)?;
        // What is cut away may be all that holds the file.
        let old = actor.find_mapping(self.index, &mut |old| old.part(mapping.address, mapping.end()).is_some())?;
        if old.is_some() {
            actor.cut(self.index, mapping.address, mapping.end())?;
        }
        actor.add_mapping(self.index, mapping)
    }

    /// Forgets the mappings of an address range, *after* it was unmapped or replaced; parts of a mapping outside stay. ENOMEM: too many.
    pub fn remove_mappings(&self, thread: &Thread<'f, M>, address: u64, length: u64) -> Result<()> {
        self.all.act(thread, self.index)?.cut(self.index, address, address.saturating_add(length))
    }

    /// The mapping at an address, if it is of this file system (for faults, msync, mprotect, mremap).
    pub fn mapping_at(&self, thread: &Thread<'f, M>, address: u64) -> Result<Option<FileMapping>> {
        let actor = self.all.act(thread, self.index)?;
        let found = actor.find_mapping(self.index, &mut |mapping| mapping.part(address, address + 1).is_some())?;
        Ok(found.map(|(_, mapping)| mapping))
    }

    /// Gives all mappings to `each`, in no order; it must not call this layer.
    pub fn mappings(&self, thread: &Thread<'f, M>, each: &mut dyn FnMut(&FileMapping)) -> Result<()> {
        let actor = self.all.act(thread, self.index)?;
        let all = actor.find_mapping(self.index, &mut |mapping| {
            each(mapping);
            false
        });
        all.map(drop)
    }
}
