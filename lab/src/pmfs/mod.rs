//! A file system like PMFS (Dulloor et al., EuroSys 2014).
//!
//! Invariants:
//!
//! - Everything is changed in place, under a fine-grained undo journal with entries of one line.
//! - Directories are searched linearly, from the block of the last name found. An inode is found by
//!   its number.
//! - Files have trees of blocks, and data is written in place.
//! - Every changing call costs a fence for each structure that it logs, one for the changes and one
//!   for the end of the transaction: create 5, unlink 6.
//!
//! Differences from PMFS as published:
//!
//! - Undo entries have a checksum. PMFS relies on the order of stores within a line.
//! - Each shard has its own journal instead of a part of one journal.
//! - Hints on free space in directories are in memory, so that creation does not search from the
//!   first block.
//! - The table of inodes is contiguous.
//! - A clean mount scans, too.
//! - There are no 2 MiB extents and no write protection.

mod directory;
mod file;
mod format;
mod journal;
mod recovery;
mod tree;

use crate::error::{Error, Result};
use crate::inode::{attributes_of, changed, links_without_name, pair};
use crate::locks;
use crate::physical::{
    DirectoryEntry, Exclusive, Found, Loaded, Made, MkfsOptions, MountOptions, Name, NewFile, PhysicalFs, Renamed,
    Renaming, Shared, Space, durable_calls,
};
use crate::substrate::{self, BlockRange, FreeBlocks, System};
use directory::Adding;
use engine::format::FileKind;
use engine::{Attributes, Changes};
use format::{
    BYTES_PER_INODE, Dentry, FIXED_BLOCK, Fixed, INODE_BYTES, Inode, JOURNALS, JOURNALS_BLOCK, ROOT, TABLE_BLOCK,
};
use journal::Transaction;
use pmem::{BLOCK_BYTES, Commit64, MappedRegion, Memory, Pm};
use posix::Errno;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard};
use tree::Tree;

/// The smallest image.
const BLOCKS_MIN: u64 = 64;
/// Inodes that are initialised at once.
const BATCH: u64 = 512;

/// A mounted file system.
pub struct Pmfs<M: Memory> {
    region: MappedRegion<M>,
    mounts: u64,
    inodes_max: u64,
    shards: usize,
    blocks: FreeBlocks,
    inodes: FreeInodes,
    journals: Vec<Mutex<()>>,
}

/// The in-memory state of a file.
#[derive(Debug)]
pub struct PmfsInfo {
    inode: u64,
    /// For a directory: the page of the last name found, where the next search starts.
    found_in: AtomicU64,
    /// For a directory: the first page that was not searched for free space since the load, or that
    /// had some.
    room_from: u64,
    /// Blocks from which names were removed since.
    roomy: Vec<u64>,
}

impl PmfsInfo {
    fn new(inode: u64) -> PmfsInfo {
        PmfsInfo { inode, found_in: AtomicU64::new(0), room_from: 0, roomy: Vec::new() }
    }

    /// Records that the block of an entry has free space.
    fn record_room(&mut self, entry: u64) {
        let block = entry / BLOCK_BYTES * BLOCK_BYTES;
        if self.roomy.len() >= ROOMY_MAX {
            self.roomy.clear();
            self.room_from = 0;
        } else if self.roomy.last() != Some(&block) {
            self.roomy.push(block);
        }
    }
}

/// Maximum number of remembered blocks with free space. Beyond it the search restarts at the first
/// page.
const ROOMY_MAX: usize = 1 << 16;

/// Free inodes under one lock, as in PMFS.
#[derive(Debug, Default)]
struct FreeInodes(Mutex<InodeList>);

#[derive(Debug, Default)]
struct InodeList {
    free: Vec<u64>,
    high: u64,
}

impl FreeInodes {
    fn lock(&self) -> MutexGuard<'_, InodeList> {
        locks::lock(&self.0)
    }

    fn found(&self, high: u64, free: Vec<u64>) {
        *self.lock() = InodeList { free, high };
    }
}

/// The number of inodes of an image, and its first allocatable block.
fn geometry(length: u64) -> (u64, u64) {
    let inodes = length / BYTES_PER_INODE;
    (inodes, TABLE_BLOCK + (inodes * INODE_BYTES).div_ceil(BLOCK_BYTES))
}

impl<M: Memory> Pmfs<M> {
    fn inode(&self, offset: u64) -> Result<&Inode> {
        Ok(self.region.get(Pm::new(offset))?)
    }

    fn inode_offset(&self, number: u64) -> Result<u64> {
        if number == 0 || number > self.inodes_max {
            return Err(Error::damaged("an entry refers to an invalid inode number", number));
        }
        Ok(TABLE_BLOCK * BLOCK_BYTES + (number - 1) * INODE_BYTES)
    }

    fn inodes_high(&self) -> Result<&Commit64> {
        Ok(&self.region.get::<Fixed>(Pm::new(FIXED_BLOCK * BLOCK_BYTES))?.inodes_high)
    }

    fn take_inode(&self) -> Result<u64> {
        let mut list = self.inodes.lock();
        if let Some(number) = list.free.pop() {
            return Ok(number);
        }
        let count = BATCH.min(self.inodes_max - list.high);
        if count == 0 {
            return Err(Errno::ENOSPC.into());
        }
        let first = self.inode_offset(list.high + 1)?;
        let durable = self.region.fence(self.region.stream_zeros(first, count * INODE_BYTES)?);
        self.region.persist(self.region.commit(self.inodes_high()?, list.high + count, durable));
        let (from, to) = (list.high + 1, list.high + count);
        list.free.extend((from + 1..=to).rev());
        list.high = to;
        Ok(from)
    }

    fn give_inode(&self, number: u64) {
        self.inodes.lock().free.push(number);
    }

    fn attributes_of(&self, inode: &Inode, number: u64) -> Result<Attributes> {
        let words = [inode.mode_links.load(), inode.owner.load(), inode.generation_device.load()];
        Ok(Attributes {
            size_bytes: inode.size_bytes.load(),
            blocks: inode.blocks.load(),
            accessed_ns: inode.accessed_ns.load() as i64,
            modified_ns: inode.modified_ns.load() as i64,
            changed_ns: inode.changed_ns.load() as i64,
            ..attributes_of(number, words, self.region.offset_of(inode))?
        })
    }

    fn log_inode(&self, transaction: &mut Transaction<'_, M>, offset: u64) -> Result<&Inode> {
        let inode = self.inode(offset)?;
        transaction.log(offset, 8)?;
        Ok(inode)
    }

    /// Fills an inode except for its mode, without which it is free. Returns its attributes.
    fn fill_inode(
        &self,
        number: u64,
        new: &NewFile<'_>,
        parent: u64,
        now_ns: i64,
        target: Option<u64>,
    ) -> Result<Attributes> {
        let inode = self.inode(self.inode_offset(number)?)?;
        let generation = (inode.generation_device.load() >> 32) as u32;
        let blocks = u64::from(target.is_some());
        let attributes = Attributes { blocks, ..new.attributes(number, generation.wrapping_add(1), now_ns) };
        let words = [
            (&inode.owner, pair(attributes.uid, attributes.gid)),
            (&inode.size_bytes, attributes.size_bytes),
            (&inode.modified_ns, now_ns as u64),
            (&inode.changed_ns, now_ns as u64),
            (&inode.accessed_ns, now_ns as u64),
            (&inode.root, target.unwrap_or(0)),
            (&inode.blocks, attributes.blocks),
            (&inode.parent, parent),
            (&inode.generation_device, pair(attributes.generation, attributes.device)),
        ];
        words.into_iter().for_each(|(cell, word)| self.region.set64(cell, word).unflushed());
        inode.nv_pointer.clear(&self.region);
        Ok(attributes)
    }

    fn create_inode(
        &self,
        number: u64,
        directory: &mut Exclusive<'_, PmfsInfo>,
        name: &[u8],
        new: &NewFile<'_>,
        (now_ns, target): (i64, Option<u64>),
    ) -> Result<Made<PmfsInfo>> {
        let offset = self.inode_offset(number)?;
        let attributes = self.fill_inode(number, new, directory.number, now_ns, target)?;
        let inode = self.inode(offset)?;
        let mut transaction = self.transaction()?;
        if let Some(block) = target {
            transaction.with(self.region.stream_bytes(block, new.target)?);
        }
        transaction.log_word(&inode.mode_links)?;
        transaction.with(self.region.flush_all(inode));
        let adding = self.prepare_add(directory.info, name, number, new.kind, &mut transaction)?;
        let links = directory.attributes.get().links + u32::from(new.kind == FileKind::Directory);
        let entry = adding.at;
        self.change_names(transaction, directory, adding, links, now_ns, |transaction| {
            transaction.set(&inode.mode_links, pair(attributes.mode, attributes.links));
            Ok(())
        })?;
        let info = PmfsInfo::new(offset);
        Ok(Made { file: Loaded { attributes, info, inode: offset }, entry })
    }

    /// Ends a transaction that adds a name to a directory. `rest` makes further changes.
    fn change_names(
        &self,
        mut transaction: Transaction<'_, M>,
        directory: &mut Exclusive<'_, PmfsInfo>,
        adding: Adding,
        links: u32,
        now_ns: i64,
        rest: impl FnOnce(&mut Transaction<'_, M>) -> Result<()>,
    ) -> Result<()> {
        let above = match self.log_inode(&mut transaction, directory.info.inode) {
            Ok(above) => above,
            Err(error) => {
                self.roll_back_add(adding);
                return Err(error);
            }
        };
        transaction.begin();
        rest(&mut transaction)?;
        self.add(above, &adding, &mut transaction)?;
        self.touch(&mut transaction, directory, above, links, now_ns);
        transaction.end();
        Ok(())
    }

    /// Sets a directory's links and times.
    fn touch(
        &self,
        transaction: &mut Transaction<'_, M>,
        directory: &Exclusive<'_, PmfsInfo>,
        inode: &Inode,
        links: u32,
        now_ns: i64,
    ) {
        let mode = directory.attributes.get().mode;
        transaction.set(&inode.mode_links, pair(mode, links));
        transaction.set(&inode.modified_ns, now_ns as u64);
        transaction.set(&inode.changed_ns, now_ns as u64);
        directory.attributes.update(|attributes| {
            attributes.links = links;
            attributes.modified_ns = now_ns;
            attributes.changed_ns = now_ns;
            attributes.size_bytes = inode.size_bytes.load();
            attributes.blocks = inode.blocks.load();
        });
    }

    /// Sets a file's links and change time.
    fn set_links(
        &self,
        transaction: &mut Transaction<'_, M>,
        file: &Exclusive<'_, PmfsInfo>,
        inode: &Inode,
        links: u32,
        now_ns: i64,
    ) {
        let mode = file.attributes.get().mode;
        transaction.set(&inode.mode_links, pair(mode, links));
        transaction.set(&inode.changed_ns, now_ns as u64);
        file.attributes.update(|attributes| {
            attributes.links = links;
            attributes.changed_ns = now_ns;
        });
    }

    fn remove_name(
        &self,
        directory: &mut Exclusive<'_, PmfsInfo>,
        name: Name<'_>,
        file: &mut Exclusive<'_, PmfsInfo>,
        now_ns: i64,
    ) -> Result<()> {
        let entry = self.entry_of(directory.info, name)?;
        let attributes = file.attributes.get();
        let links_above = directory.attributes.get().links - u32::from(attributes.kind == FileKind::Directory);
        let mut transaction = self.transaction()?;
        let removing = self.prepare_remove(entry, &mut transaction)?;
        let above = self.log_inode(&mut transaction, directory.info.inode)?;
        let inode = self.log_inode(&mut transaction, file.info.inode)?;
        transaction.begin();
        self.remove(directory.info, &removing, &mut transaction)?;
        self.touch(&mut transaction, directory, above, links_above, now_ns);
        self.set_links(&mut transaction, file, inode, links_without_name(&attributes), now_ns);
        transaction.end();
        Ok(())
    }

    fn check_empty(&self, file: &Exclusive<'_, PmfsInfo>) -> Result<()> {
        let is_directory = file.attributes.get().kind == FileKind::Directory;
        if is_directory && !self.is_empty(file.info)? { Err(Errno::ENOTEMPTY.into()) } else { Ok(()) }
    }

    /// Logs everything that a rename changes, and prepares the new entry.
    fn log_rename<'p>(
        &'p self,
        renaming: &mut Renaming<'_, '_, PmfsInfo>,
        (old, taken): (u64, Option<u64>),
        transaction: &mut Transaction<'_, M>,
    ) -> Result<LoggedRename<'p>> {
        let Renaming { from, to, to_name, file, other, .. } = renaming;
        let from_inode = self.log_inode(transaction, from.info.inode)?;
        let to_inode = to.as_ref().map(|to| self.log_inode(transaction, to.info.inode)).transpose()?;
        let file_inode = self.log_inode(transaction, file.info.inode)?;
        let other_inode = other.as_ref().map(|other| self.log_inode(transaction, other.info.inode)).transpose()?;
        let old_dentry = self.dentry(old)?;
        transaction.log_all(old_dentry)?;
        let taken_dentry = taken.map(|at| self.dentry(at)).transpose()?;
        if let Some(dentry) = taken_dentry {
            transaction.log_all(dentry)?;
        }
        let there = to.as_mut().map_or(&mut *from.info, |to| &mut *to.info);
        let adding = match taken {
            Some(_) => None,
            None => {
                let kind = file.attributes.get().kind;
                Some(self.prepare_add(there, to_name.bytes, file.number, kind, transaction)?)
            }
        };
        Ok(LoggedRename { from_inode, to_inode, file_inode, other_inode, old, old_dentry, taken_dentry, adding })
    }

    /// Changes the entries of a rename.
    fn rename_entries(
        &self,
        renaming: &mut Renaming<'_, '_, PmfsInfo>,
        logged: &LoggedRename<'_>,
        transaction: &mut Transaction<'_, M>,
    ) -> Result<()> {
        // If the new entry lies behind the old one, `add` shortens the old entry. So add the new
        // name first, then change the old entry.
        if let Some(adding) = &logged.adding {
            self.add(logged.to_inode.unwrap_or(logged.from_inode), adding, transaction)?;
        }
        let with_kind = |header: u64, kind: FileKind| header & !(0xff << 24) | (kind as u64) << 24;
        if let Some(dentry) = logged.taken_dentry {
            transaction.set(&dentry.number, renaming.file.number);
            transaction.set(&dentry.header, with_kind(dentry.header.load(), renaming.file.attributes.get().kind));
        }
        let old = logged.old_dentry;
        match &renaming.other {
            Some(other) if renaming.exchange => {
                transaction.set(&old.number, other.number);
                transaction.set(&old.header, with_kind(old.header.load(), other.attributes.get().kind));
            }
            _ => {
                transaction.set(&old.number, 0);
                renaming.from.info.record_room(logged.old);
            }
        }
        Ok(())
    }

    /// Changes the inodes of a rename's directories and files.
    fn rename_inodes(
        &self,
        renaming: &Renaming<'_, '_, PmfsInfo>,
        logged: &LoggedRename<'_>,
        transaction: &mut Transaction<'_, M>,
    ) {
        let Renaming { from, to, file, other, exchange, now_ns, .. } = renaming;
        let (exchange, now_ns) = (*exchange, *now_ns);
        let is_directory = |file: &Exclusive<'_, PmfsInfo>| file.attributes.get().kind == FileKind::Directory;
        let other_weight = i64::from(other.as_ref().is_some_and(|other| is_directory(other)));
        let leaves = i64::from(is_directory(file)) - if exchange { other_weight } else { 0 };
        let comes = i64::from(is_directory(file)) - other_weight;
        let links = |directory: &Exclusive<'_, PmfsInfo>, change: i64| {
            (directory.attributes.get().links as i64 + change) as u32
        };
        match (to, logged.to_inode) {
            (Some(to), Some(inode)) => {
                self.touch(transaction, from, logged.from_inode, links(from, -leaves), now_ns);
                self.touch(transaction, to, inode, links(to, comes), now_ns);
            }
            _ => self.touch(transaction, from, logged.from_inode, links(from, comes - leaves), now_ns),
        }
        self.set_links(transaction, file, logged.file_inode, file.attributes.get().links, now_ns);
        if let Some(to) = to.as_ref().filter(|_| is_directory(file)) {
            transaction.set(&logged.file_inode.parent, to.number);
        }
        if let (Some(other), Some(inode)) = (other, logged.other_inode) {
            let attributes = other.attributes.get();
            let links = if exchange { attributes.links } else { links_without_name(&attributes) };
            self.set_links(transaction, other, inode, links, now_ns);
            if exchange && to.is_some() && is_directory(other) {
                transaction.set(&inode.parent, from.number);
            }
        }
    }

    fn rename_step(&self, mut renaming: Renaming<'_, '_, PmfsInfo>) -> Result<Renamed> {
        let Renaming { from, from_name, to, to_name, other, exchange, .. } = &renaming;
        let exchange = *exchange;
        let old = self.entry_of(from.info, *from_name)?;
        let there = to.as_ref().map_or(&*from.info, |to| &*to.info);
        let taken = other.as_ref().map(|_| self.entry_of(there, *to_name)).transpose()?;

        let mut transaction = self.transaction()?;
        let logged = self.log_rename(&mut renaming, (old, taken), &mut transaction)?;
        transaction.begin();
        self.rename_entries(&mut renaming, &logged, &mut transaction)?;
        self.rename_inodes(&renaming, &logged, &mut transaction);
        transaction.end();
        let to_entry = logged.adding.map(|adding| adding.at).or(taken).unwrap_or(old);
        Ok(Renamed { to_entry, from_entry: exchange.then_some(old) })
    }
}

/// The logged parts of a rename.
struct LoggedRename<'p> {
    from_inode: &'p Inode,
    /// The target directory, if it is another one.
    to_inode: Option<&'p Inode>,
    file_inode: &'p Inode,
    other_inode: Option<&'p Inode>,
    /// Offset of the old name's entry.
    old: u64,
    old_dentry: &'p Dentry,
    /// The new name's entry, if the name exists.
    taken_dentry: Option<&'p Dentry>,
    /// The new entry, if the name does not exist.
    adding: Option<Adding>,
}

impl<M: Memory> PhysicalFs for Pmfs<M> {
    type Memory = M;
    type Info = PmfsInfo;

    const NAME: &'static str = "PMFS-like";

    fn mkfs(region: &MappedRegion<M>, options: &MkfsOptions) -> Result<()> {
        let (inodes_max, first_block) = geometry(region.length());
        let blocks = region.length() / BLOCK_BYTES;
        if blocks < BLOCKS_MIN.max(first_block + 16) {
            return Err(Error::TooSmall { length: region.length(), needed: BLOCKS_MIN * BLOCK_BYTES });
        }
        let fixed = region.stream_zeros(FIXED_BLOCK * BLOCK_BYTES, (1 + JOURNALS) * BLOCK_BYTES)?;
        let batch = BATCH.min(inodes_max);
        let table = region.stream_zeros(TABLE_BLOCK * BLOCK_BYTES, batch * INODE_BYTES)?;
        let durable = region.fence(fixed.and(table));
        let words: &Fixed = region.get(Pm::new(FIXED_BLOCK * BLOCK_BYTES))?;
        let high = region.flush(region.commit(&words.inodes_high, batch, durable));
        let root: &Inode = region.get(Pm::new(TABLE_BLOCK * BLOCK_BYTES))?;
        let mode = FileKind::Directory.mode_bits() | options.permissions & 0o7777;
        let cells = [
            (&root.mode_links, pair(mode, 2)),
            (&root.owner, pair(options.owner.0, options.owner.1)),
            (&root.modified_ns, options.now_ns as u64),
            (&root.changed_ns, options.now_ns as u64),
            (&root.accessed_ns, options.now_ns as u64),
            (&root.parent, ROOT),
            (&root.generation_device, pair(1, 0)),
        ];
        cells.into_iter().for_each(|(cell, word)| region.set64(cell, word).unflushed());
        let rest = region.fence(high.and(region.flush_all(root)));
        debug_assert_eq!(JOURNALS_BLOCK + JOURNALS, TABLE_BLOCK);
        substrate::format(region, System::Pmfs, [inodes_max, first_block, 0, 0], rest)
    }

    fn mount(region: MappedRegion<M>, options: &MountOptions) -> Result<Pmfs<M>> {
        let identity = substrate::open(&region, System::Pmfs)?;
        let [inodes_max, first_block, ..] = identity.parameters;
        let blocks = region.length() / BLOCK_BYTES;
        let table_end = inodes_max.checked_mul(INODE_BYTES).map(|bytes| TABLE_BLOCK + bytes.div_ceil(BLOCK_BYTES));
        if table_end.is_none_or(|end| end > first_block) || first_block >= blocks {
            return Err(Error::damaged("the superblock's geometry does not fit the image", 0));
        }
        let blocks = BlockRange { start: first_block, count: blocks - first_block };
        let mut pmfs = Pmfs {
            region,
            mounts: identity.mounts,
            inodes_max,
            shards: options.shards.clamp(1, JOURNALS as usize),
            blocks: FreeBlocks::with_used(blocks, 1, |_| true),
            inodes: FreeInodes::default(),
            journals: (0..JOURNALS).map(|_| Mutex::new(())).collect(),
        };
        pmfs.recover(blocks)?;
        Ok(pmfs)
    }

    durable_calls!();

    fn inode_place(&self, number: u64) -> Result<u64> {
        self.inode_offset(number)
    }

    fn load(&self, number: u64) -> Result<Loaded<PmfsInfo>> {
        let offset = self.inode_offset(number)?;
        self.region.report_read(offset, INODE_BYTES);
        let attributes = self.attributes_of(self.inode(offset)?, number)?;
        Ok(Loaded { attributes, info: PmfsInfo::new(offset), inode: offset })
    }

    fn forget(&self, _: u64, _: PmfsInfo) -> Result<()> {
        Ok(())
    }

    fn evict(&self, number: u64, _: &Attributes, info: PmfsInfo) -> Result<()> {
        let inode = self.inode(info.inode)?;
        let tree = Tree(inode.root.load());
        // The inode is durably free before any of its blocks or its number is reused.
        self.region.persist(self.region.set64(&inode.mode_links, 0));
        self.free_tree(tree)?;
        self.give_inode(number);
        Ok(())
    }

    fn lookup(&self, directory: Shared<'_, PmfsInfo>, name: &[u8]) -> Result<Option<Found>> {
        self.find_name(directory.info, name)
    }

    fn entry_is_named(&self, entry: u64, name: &[u8]) -> bool {
        self.region.report_read(entry, format::DENTRY_BYTES + name.len() as u64);
        self.read_dentry(entry).is_ok_and(|entry| self.has_name(&entry, name))
    }

    fn parent(&self, directory: Shared<'_, PmfsInfo>) -> Result<u64> {
        Ok(self.inode(directory.info.inode)?.parent.load())
    }

    fn read_directory(
        &self,
        directory: Shared<'_, PmfsInfo>,
        cookie: u64,
        visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        self.read_names(directory, cookie, visit)
    }

    fn create(
        &self,
        directory: &mut Exclusive<'_, PmfsInfo>,
        name: Name<'_>,
        new: &NewFile<'_>,
        now_ns: i64,
    ) -> Result<Made<PmfsInfo>> {
        let number = self.take_inode()?;
        let target = match new.kind {
            FileKind::Symlink => self.blocks.allocate().map(|block| Some(block * BLOCK_BYTES)),
            _ => Ok(None),
        };
        let target = target.inspect_err(|_| self.give_inode(number))?;
        self.create_inode(number, directory, name.bytes, new, (now_ns, target)).inspect_err(|_| {
            target.into_iter().for_each(|block| self.blocks.free(block / BLOCK_BYTES));
            self.give_inode(number);
        })
    }

    fn link(
        &self,
        file: &mut Exclusive<'_, PmfsInfo>,
        directory: &mut Exclusive<'_, PmfsInfo>,
        name: Name<'_>,
        now_ns: i64,
    ) -> Result<u64> {
        let attributes = file.attributes.get();
        let mut transaction = self.transaction()?;
        let inode = self.log_inode(&mut transaction, file.info.inode)?;
        let adding = self.prepare_add(directory.info, name.bytes, file.number, attributes.kind, &mut transaction)?;
        let entry = adding.at;
        let links_above = directory.attributes.get().links;
        self.change_names(transaction, directory, adding, links_above, now_ns, |transaction| {
            self.set_links(transaction, file, inode, attributes.links + 1, now_ns);
            Ok(())
        })?;
        Ok(entry)
    }

    fn unlink(
        &self,
        directory: &mut Exclusive<'_, PmfsInfo>,
        name: Name<'_>,
        file: &mut Exclusive<'_, PmfsInfo>,
        now_ns: i64,
    ) -> Result<()> {
        self.remove_name(directory, name, file, now_ns)
    }

    fn rmdir(
        &self,
        directory: &mut Exclusive<'_, PmfsInfo>,
        name: Name<'_>,
        removed: &mut Exclusive<'_, PmfsInfo>,
        now_ns: i64,
    ) -> Result<()> {
        self.check_empty(removed)?;
        self.remove_name(directory, name, removed, now_ns)
    }

    fn rename(&self, renaming: Renaming<'_, '_, PmfsInfo>) -> Result<Renamed> {
        if let Some(other) = renaming.other.as_ref().filter(|_| !renaming.exchange) {
            self.check_empty(other)?;
        }
        self.rename_step(renaming)
    }

    fn change(&self, file: &mut Exclusive<'_, PmfsInfo>, changes: &Changes, now_ns: i64) -> Result<()> {
        let attributes = changed(file.attributes.get(), changes, now_ns);
        let mut transaction = self.transaction()?;
        let inode = self.inode(file.info.inode)?;
        // The first line, and the access time behind it.
        transaction.log(file.info.inode, 9)?;
        transaction.begin();
        transaction.set(&inode.mode_links, pair(attributes.mode, attributes.links));
        transaction.set(&inode.owner, pair(attributes.uid, attributes.gid));
        transaction.set(&inode.modified_ns, attributes.modified_ns as u64);
        transaction.set(&inode.changed_ns, now_ns as u64);
        if changes.accessed_ns.is_some() {
            transaction.set(&inode.accessed_ns, attributes.accessed_ns as u64);
        }
        transaction.end();
        file.attributes.set(&attributes);
        Ok(())
    }

    fn read(&self, file: Shared<'_, PmfsInfo>, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.read_file(file, offset, into)
    }

    fn write(&self, file: &mut Exclusive<'_, PmfsInfo>, offset: u64, bytes: &[u8], now_ns: i64) -> Result<()> {
        self.write_file(file, offset, bytes, now_ns)
    }

    fn truncate(&self, file: &mut Exclusive<'_, PmfsInfo>, size_bytes: u64, now_ns: i64) -> Result<()> {
        self.truncate_file(file, size_bytes, now_ns)
    }

    fn read_link(&self, link: Shared<'_, PmfsInfo>, into: &mut [u8]) -> Result<usize> {
        let tree = Tree(self.inode(link.info.inode)?.root.load());
        self.read_tree(tree, link.attributes.get().size_bytes, 0, into)
    }

    fn space(&self) -> Result<Space> {
        let list = self.inodes.lock();
        let inodes_free = list.free.len() as u64 + self.inodes_max - list.high;
        let (blocks, blocks_free) = (self.blocks.all().count, self.blocks.count());
        Ok(Space { blocks, blocks_free, inodes: self.inodes_max, inodes_free })
    }
}
