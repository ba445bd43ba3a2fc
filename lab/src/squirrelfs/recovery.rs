//! Mounting scans the inode table, the descriptors and the entries of all directories, and builds
//! the indexes of all files. What a crash left of a call is repaired on the way:
//!
//! - A rename whose new entry has the number is completed, another one is undone.
//! - Inodes without a name are freed, after their pages.
//! - Pages without an owner, or beyond the end of their file, are freed.
//! - Links are counted again.
//!
//! Repairs are stores that the next mount would repeat, so that only those of renames need an
//! order.

use super::format::{
    DENTRIES, DENTRY_BYTES, DESCRIPTOR_BYTES, NameBytes, PAGE_OF_DATA, PAGE_OF_NAMES, ROOT, name_in, number_of,
};
use super::names::{Names, Slot};
use super::{Index, Resting, SquirrelFs};
use crate::error::{Error, Result};
use crate::inode::pair;
use crate::locks;
use crate::substrate::{BlockRange, Extents, FreeBlocks};
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, Flushed, LINE_BYTES, Memory};
use std::collections::BTreeMap;

/// What the scan found of an inode in use.
#[derive(Debug, Clone, Copy)]
struct Scanned {
    kind: FileKind,
    links: u32,
    /// Names, and subdirectories, that were counted.
    names: u32,
    parent: u64,
}

/// All inodes by number; the first is not used.
type Inodes = Vec<Option<Scanned>>;

/// A name of an entry.
struct NamedEntry {
    directory: u64,
    name: Box<[u8]>,
    slot: Slot,
}

/// What the scan found in entries.
#[derive(Default)]
struct Entries {
    names: Vec<NamedEntry>,
    /// New entries of renames.
    renames: Vec<u64>,
}

impl<M: Memory> SquirrelFs<M> {
    pub(super) fn recover(&mut self, blocks: BlockRange, shards: usize) -> Result<()> {
        let mut inodes = self.scan_inodes()?;
        let (mut indexes, pages) = self.scan_descriptors(blocks, &inodes)?;
        let mut entries = self.scan_entries(&pages, &inodes)?;
        if !entries.renames.is_empty() {
            for entry in &entries.renames {
                self.end_rename(*entry, &pages)?;
            }
            entries = self.scan_entries(&pages, &inodes)?;
        }
        for NamedEntry { directory, name, slot } in entries.names {
            count_name(&mut inodes, directory, slot)?;
            let Some(Index::Names(names)) = indexes.get_mut(&directory) else { continue };
            if !names.insert(&name, slot) {
                return Err(Error::damaged("a directory has a name twice", slot.entry));
            }
        }
        let free = self.repair_inodes(&inodes, &mut indexes)?;
        self.region.fence(Flushed::nothing());
        *locks::lock(&self.inodes) = free;
        self.blocks = free_blocks(blocks, shards, &indexes);
        let parent = |number: u64| inodes[number as usize].map_or(0, |inode| inode.parent);
        let resting = indexes.into_iter().map(|(number, index)| (number, Resting { parent: parent(number), index }));
        *locks::lock(&self.resting) = resting.collect();
        Ok(())
    }

    fn scan_inodes(&self) -> Result<Inodes> {
        let mut inodes: Inodes = vec![None; self.geometry.inodes as usize + 1];
        for number in 1..=self.geometry.inodes {
            let offset = self.inode_offset(number)?;
            self.region.report_read(offset, LINE_BYTES);
            let mode_links = self.inode(offset)?.mode_links.load();
            if mode_links == 0 {
                continue;
            }
            let kind = FileKind::from_mode((mode_links >> 32) as u32)
                .ok_or_else(|| Error::damaged("an inode has an invalid file type", offset))?;
            let parent = if number == ROOT { ROOT } else { 0 };
            inodes[number as usize] = Some(Scanned { kind, links: mode_links as u32, names: 0, parent });
        }
        match inodes.get(ROOT as usize) {
            Some(Some(root)) if root.kind == FileKind::Directory => Ok(inodes),
            _ => Err(Error::damaged("the root is no directory", ROOT)),
        }
    }

    /// The indexes of pages by owner, and the owners of pages with entries by offset.
    fn scan_descriptors(
        &self,
        blocks: BlockRange,
        inodes: &Inodes,
    ) -> Result<(BTreeMap<u64, Index>, BTreeMap<u64, u64>)> {
        let mut indexes: BTreeMap<u64, Index> = BTreeMap::new();
        let directories = (0..).zip(inodes).filter(|(_, inode)| inode.is_some_and(|it| it.kind == FileKind::Directory));
        indexes.extend(directories.map(|(number, _)| (number, Index::Names(Names::default()))));
        let mut pages = BTreeMap::new();
        for block in blocks.start..blocks.start + blocks.count {
            let descriptor = self.descriptor(block)?;
            self.region.report_read(self.region.offset_of(descriptor), DESCRIPTOR_BYTES);
            let (owner, kind, page) = (descriptor.owner.load(), descriptor.kind.load(), descriptor.page.load());
            let inode = inodes.get(owner as usize).copied().flatten();
            if owner == 0 || inode.is_none() || self.is_beyond(owner, inode, kind, page)? {
                if owner != 0 {
                    self.free_descriptor(block)?;
                }
                continue;
            }
            match (kind, indexes.entry(owner).or_insert_with(|| Index::Pages(Extents::default()))) {
                (PAGE_OF_NAMES, Index::Names(names)) => {
                    names.add_page(block * BLOCK_BYTES);
                    pages.insert(block * BLOCK_BYTES, owner);
                }
                (PAGE_OF_DATA, Index::Pages(extents)) if extents.find(page).is_none() => {
                    extents.insert(page, BlockRange { start: block, count: 1 });
                }
                _ => return Err(Error::damaged("a page does not fit its owner", block * BLOCK_BYTES)),
            }
        }
        Ok((indexes, pages))
    }

    /// Whether a write or a truncation was interrupted: the size does not cover the page.
    fn is_beyond(&self, owner: u64, inode: Option<Scanned>, kind: u64, page: u64) -> Result<bool> {
        if kind != PAGE_OF_DATA || inode.is_none_or(|inode| inode.kind != FileKind::Regular) {
            return Ok(false);
        }
        let size_bytes = self.inode(self.inode_offset(owner)?)?.size_bytes.load();
        Ok(page >= size_bytes.div_ceil(BLOCK_BYTES))
    }

    /// Takes the owner only: other words may not be lost before it.
    fn free_descriptor(&self, block: u64) -> Result<()> {
        let descriptor = self.descriptor(block)?;
        self.region.flush(self.region.retract(&descriptor.owner, 0)).unfenced();
        Ok(())
    }

    fn scan_entries(&self, pages: &BTreeMap<u64, u64>, inodes: &Inodes) -> Result<Entries> {
        let mut entries = Entries::default();
        for (page, directory) in pages {
            for entry in (0..DENTRIES).map(|index| page + index * DENTRY_BYTES) {
                self.region.report_read(entry, DENTRY_BYTES);
                let dentry = self.dentry(entry)?;
                if dentry.rename_pointer.load() != 0 {
                    entries.renames.push(entry);
                }
                let number = number_of(dentry.number_kind.load());
                if number == 0 {
                    continue;
                }
                let inode = inodes.get(number as usize).copied().flatten();
                let kind = inode.ok_or_else(|| Error::damaged("an entry refers to a free inode", entry))?.kind;
                let mut bytes: NameBytes = [0; _];
                self.region.read_bytes(entry, &mut bytes)?;
                let name = name_in(&bytes).ok_or_else(|| Error::damaged("an entry has an invalid name", entry))?;
                let slot = Slot { entry, number, kind };
                entries.names.push(NamedEntry { directory: *directory, name: name.into(), slot });
            }
        }
        Ok(entries)
    }

    /// Completes a rename if its new entry has the number, and otherwise undoes it.
    fn end_rename(&self, entry: u64, pages: &BTreeMap<u64, u64>) -> Result<()> {
        let target = self.dentry(entry)?;
        let from = target.rename_pointer.load();
        if !from.is_multiple_of(DENTRY_BYTES) || !pages.contains_key(&(from / BLOCK_BYTES * BLOCK_BYTES)) {
            return Err(Error::damaged("a rename leads to no entry", entry));
        }
        let source = self.dentry(from)?;
        let word = source.number_kind.load();
        if word != 0 && word == target.number_kind.load() {
            self.region.persist(self.region.retract(&source.number_kind, 0));
        }
        self.region.persist(self.region.set64(&target.rename_pointer, 0));
        Ok(())
    }

    /// Frees inodes without names, and corrects links. Returns the free inodes.
    fn repair_inodes(&self, inodes: &Inodes, indexes: &mut BTreeMap<u64, Index>) -> Result<Vec<u64>> {
        let mut free = Vec::new();
        for number in (1..inodes.len() as u64).rev() {
            let Some(Scanned { kind, links, names, .. }) = inodes[number as usize] else {
                free.push(number);
                continue;
            };
            let cell = &self.inode(self.inode_offset(number)?)?.mode_links;
            let is_directory = kind == FileKind::Directory;
            // A directory's own name is among those counted; the root has none.
            if names == 0 && number != ROOT {
                for page in indexes.remove(&number).iter().flat_map(pages_of) {
                    self.free_descriptor(page)?;
                }
                self.region.flush(self.region.set64(cell, 0)).unfenced();
                free.push(number);
                continue;
            }
            let counted = if is_directory { names + 1 + u32::from(number == ROOT) } else { names };
            if counted != links {
                let mode = (cell.load() >> 32) as u32;
                self.region.flush(self.region.set64(cell, pair(mode, counted))).unfenced();
            }
        }
        Ok(free)
    }
}

/// Counts a name for its file and, if it is a directory, for the one above.
fn count_name(inodes: &mut Inodes, directory: u64, slot: Slot) -> Result<()> {
    let is_directory = slot.kind == FileKind::Directory;
    if let Some(Some(file)) = inodes.get_mut(slot.number as usize) {
        if is_directory && file.parent != 0 {
            return Err(Error::damaged("a directory has two names", slot.entry));
        }
        file.names += 1;
        file.parent = directory;
    }
    if let Some(Some(above)) = inodes.get_mut(directory as usize).filter(|_| is_directory) {
        above.names += 1;
    }
    Ok(())
}

/// The blocks of an index.
fn pages_of(index: &Index) -> Vec<u64> {
    match index {
        Index::Names(names) => names.pages().map(|page| page.block).collect(),
        Index::Pages(extents) => extents.runs().flat_map(|(_, run)| run.start..run.start + run.count).collect(),
    }
}

fn free_blocks(blocks: BlockRange, shards: usize, indexes: &BTreeMap<u64, Index>) -> FreeBlocks {
    let mut used = vec![0u64; (blocks.start + blocks.count).div_ceil(64) as usize];
    for block in indexes.values().flat_map(pages_of) {
        used[(block / 64) as usize] |= 1 << (block % 64);
    }
    // One list for each processor, as published.
    FreeBlocks::with_used(blocks, shards, |block| used[(block / 64) as usize] & 1 << (block % 64) != 0)
}
