//! The index of a directory's names, in memory, and the entries that it leads to.

use super::format::{DENTRIES, DENTRY_BYTES, Dentry, PAGE_OF_NAMES, number_kind, place};
use super::typestate::{Clean, Dealloc, Page, Pages, Typed};
use super::{Index, SquirrelFs, SquirrelInfo};
use crate::error::{Error, Result};
use crate::physical::{DirectoryEntry, Exclusive, Found, Shared};
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, Memory, Pm};
use posix::Errno;
use smallvec::smallvec;
use std::collections::{BTreeMap, BTreeSet};

/// Where a name's entry is, and what it contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub entry: u64,
    pub number: u64,
    pub kind: FileKind,
}

/// The names of a directory, and the use of its pages.
#[derive(Debug, Default)]
pub(super) struct Names {
    slots: BTreeMap<Box<[u8]>, Slot>,
    /// A bit for each entry in use, by the offset of the page.
    pages: BTreeMap<u64, u32>,
    /// Pages with a free entry.
    roomy: BTreeSet<u64>,
}

const _: () = assert!(DENTRIES == u32::BITS as u64);

impl Names {
    /// Adds a page without entries.
    pub fn add_page(&mut self, page: u64) {
        self.pages.insert(page, 0);
        self.roomy.insert(page);
    }

    /// Adds a name; returns whether it did not exist.
    pub fn insert(&mut self, name: &[u8], slot: Slot) -> bool {
        let (page, bit) = place(slot.entry);
        let used = self.pages.entry(page).or_insert(0);
        *used |= bit;
        if *used == u32::MAX {
            self.roomy.remove(&page);
        }
        self.slots.insert(name.into(), slot).is_none()
    }

    /// Removes a name; returns whether its page has no entries left.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let Some(slot) = self.slots.remove(name) else { return false };
        let (page, bit) = place(slot.entry);
        self.roomy.insert(page);
        let used = self.pages.entry(page).or_insert(0);
        *used &= !bit;
        *used == 0
    }

    /// The free entry with the lowest offset.
    fn free_entry(&self) -> Option<u64> {
        let page = *self.roomy.first()?;
        let used = *self.pages.get(&page)?;
        Some(page + used.trailing_ones() as u64 * DENTRY_BYTES)
    }

    pub fn find(&self, name: &[u8]) -> Option<&Slot> {
        self.slots.get(name)
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Number of pages.
    pub fn count(&self) -> u64 {
        self.pages.len() as u64
    }

    /// The pages.
    pub fn pages(&self) -> impl Iterator<Item = Page> + '_ {
        self.pages.keys().map(|offset| Page { block: offset / BLOCK_BYTES, page: 0 })
    }
}

impl SquirrelInfo {
    pub(super) fn names(&self) -> Result<&Names> {
        match &self.index {
            Index::Names(names) => Ok(names),
            Index::Pages(_) => Err(Errno::ENOTDIR.into()),
        }
    }

    pub(super) fn names_mut(&mut self) -> Result<&mut Names> {
        match &mut self.index {
            Index::Names(names) => Ok(names),
            Index::Pages(_) => Err(Errno::ENOTDIR.into()),
        }
    }
}

impl<M: Memory> SquirrelFs<M> {
    pub(super) fn dentry(&self, entry: u64) -> Result<&Dentry> {
        Ok(self.region.get(Pm::new(entry))?)
    }

    /// The entry of a name that exists.
    pub(super) fn slot_of(&self, directory: &SquirrelInfo, name: &[u8]) -> Result<Slot> {
        let slot = *directory.names()?.find(name).ok_or(Errno::ENOENT)?;
        let dentry = self.dentry(slot.entry)?;
        self.region.report_read(self.region.offset_of(&dentry.number_kind), 8);
        if dentry.number_kind.load() != number_kind(slot.number, slot.kind) {
            return Err(Error::damaged("an entry is not as its index says", slot.entry));
        }
        Ok(slot)
    }

    pub(super) fn find_name(&self, directory: Shared<'_, SquirrelInfo>, name: &[u8]) -> Result<Option<Found>> {
        let slot = directory.info.names()?.find(name);
        Ok(slot.map(|slot| Found { number: slot.number, entry: slot.entry }))
    }

    pub(super) fn read_names(
        &self,
        directory: Shared<'_, SquirrelInfo>,
        cookie: u64,
        visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        let slots = &directory.info.names()?.slots;
        let mut rest: Vec<(&[u8], &Slot)> =
            slots.iter().filter(|(_, slot)| slot.entry > cookie).map(|(name, slot)| (&**name, slot)).collect();
        rest.sort_unstable_by_key(|(_, slot)| slot.entry);
        for (name, Slot { entry, number, kind }) in rest {
            if !visit(&DirectoryEntry { name, number: *number, kind: *kind, cookie: *entry, entry: *entry }) {
                break;
            }
        }
        Ok(())
    }

    /// A free entry of a directory, in a new page if there is none: three fences.
    pub(super) fn free_entry(&self, directory: &mut Exclusive<'_, SquirrelInfo>) -> Result<u64> {
        if let Some(entry) = directory.info.names()?.free_entry() {
            return Ok(entry);
        }
        let block = self.blocks.allocate()?;
        let owner = Typed::start(self.inode(directory.info.inode)?);
        let pages = Pages::free(smallvec![Page { block, page: 0 }]).alloc(self, PAGE_OF_NAMES)?.fence(self);
        pages.zero(self)?.set_owner(self, &owner)?.fence(self);
        let names = directory.info.names_mut()?;
        names.add_page(block * BLOCK_BYTES);
        self.set_directory_size(directory)?;
        Ok(block * BLOCK_BYTES)
    }

    fn set_directory_size(&self, directory: &Exclusive<'_, SquirrelInfo>) -> Result<()> {
        let blocks = directory.info.names()?.count();
        directory.attributes.update(|attributes| {
            attributes.blocks = blocks;
            attributes.size_bytes = blocks * BLOCK_BYTES;
        });
        Ok(())
    }

    /// Removes a name from the index, and its page if that has no other entry: two more fences.
    pub(super) fn forget_name(
        &self,
        directory: &mut Exclusive<'_, SquirrelInfo>,
        name: &[u8],
        slot: Slot,
        gone: &Typed<'_, Dentry, Clean, Dealloc>,
    ) -> Result<()> {
        if !directory.info.names_mut()?.remove(name) {
            return Ok(());
        }
        let (page, _) = place(slot.entry);
        let names = directory.info.names_mut()?;
        names.pages.remove(&page);
        names.roomy.remove(&page);
        let pages = Pages::mapped(smallvec![Page { block: page / BLOCK_BYTES, page: 0 }]);
        pages.unmap(self, gone)?.fence(self).dealloc(self)?.fence(self).give_back(self);
        self.set_directory_size(directory)
    }

    pub(super) fn check_empty(&self, file: &Exclusive<'_, SquirrelInfo>) -> Result<()> {
        match &file.info.index {
            Index::Names(names) if !names.is_empty() => Err(Errno::ENOTEMPTY.into()),
            _ => Ok(()),
        }
    }

    /// Adds a name to the index after its entry is complete.
    pub(super) fn remember_name(&self, directory: &mut SquirrelInfo, name: &[u8], slot: Slot) -> Result<()> {
        match directory.names_mut()?.insert(name, slot) {
            true => Ok(()),
            false => Err(Error::damaged("a directory has a name twice", slot.entry)),
        }
    }
}
