//! Directories: blocks of variable-length entries, searched linearly. Removal joins an entry with
//! the one before it; creation takes the free space behind an entry. Memory holds only hints on
//! where free space may be.

use super::format::{DENTRY_BYTES, Dentry, Inode, dentry_bytes};
use super::journal::Transaction;
use super::tree::{Growing, Tree};
use super::{Pmfs, PmfsInfo};
use crate::error::{Error, Result};
use crate::physical::{DirectoryEntry, Found, Name, Shared};
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, Flushed, Memory, Pm};
use posix::Errno;
use std::sync::atomic::Ordering::Relaxed;

/// A decoded entry with a checked length.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    pub at: u64,
    pub number: u64,
    pub length: u64,
    pub name_length: u64,
    header: u64,
}

impl Read {
    pub(super) fn kind(&self) -> Result<FileKind> {
        FileKind::from_bits((self.header >> 24) as u32 & 0xff)
            .ok_or_else(|| Error::damaged("an entry has an invalid file type", self.at))
    }
}

pub(super) fn header(length: u64, name_length: u64, kind: FileKind) -> u64 {
    length | name_length << 16 | (kind as u64) << 24
}

/// Where a new entry goes.
#[derive(Debug)]
pub(super) enum Room {
    /// Behind an entry, which becomes shorter.
    Behind { before: Read, at: u64, length: u64 },
    /// In a free entry.
    Free { entry: Read },
    /// In a new block of the directory.
    Block { at: u64, growing: Growing },
}

/// A prepared entry and its location.
#[derive(Debug)]
pub(super) struct Adding {
    pub at: u64,
    room: Room,
    header: u64,
    number: u64,
}

impl<M: Memory> Pmfs<M> {
    pub(super) fn dentry(&self, at: u64) -> Result<&Dentry> {
        Ok(self.region.get(Pm::new(at))?)
    }

    pub(super) fn read_dentry(&self, at: u64) -> Result<Read> {
        let dentry = self.dentry(at)?;
        let header = dentry.header.load();
        let (length, name_length) = (header & 0xffff, header >> 16 & 0xff);
        let number = dentry.number.load();
        let fits = length >= DENTRY_BYTES && length.is_multiple_of(8) && at % BLOCK_BYTES + length <= BLOCK_BYTES;
        if !fits || number != 0 && (name_length == 0 || dentry_bytes(name_length) > length) {
            return Err(Error::damaged("a directory's block holds an invalid entry", at));
        }
        Ok(Read { at, number, length, name_length, header })
    }

    /// Visits the entries of a block until `visit` returns true. Returns whether it did.
    fn scan_block(&self, block: u64, visit: &mut dyn FnMut(&Read) -> Result<bool>) -> Result<bool> {
        let (mut at, mut has_enough, mut seen) = (block, false, 0);
        while at < block + BLOCK_BYTES && !has_enough {
            let entry = self.read_dentry(at)?;
            has_enough = visit(&entry)?;
            // The free space behind a name is not read.
            seen = at + DENTRY_BYTES + entry.name_length - block;
            at += entry.length;
        }
        self.region.report_read(block, seen);
        Ok(has_enough)
    }

    fn pages(inode: &Inode) -> u64 {
        inode.size_bytes.load() / BLOCK_BYTES
    }

    fn block_of(&self, inode: &Inode, page: u64) -> Result<u64> {
        match self.find_block(Tree(inode.root.load()), page)? {
            0 => Err(Error::damaged("a block of a directory is missing", self.region.offset_of(inode))),
            block => Ok(block),
        }
    }

    pub(super) fn has_name(&self, entry: &Read, name: &[u8]) -> bool {
        entry.number != 0
            && entry.name_length == name.len() as u64
            && self.region.bytes_equal(entry.at + DENTRY_BYTES, name)
    }

    /// Searches a directory from the block of the last name found on, then from its first one, as
    /// PMFS does (`i_dir_start_lookup`).
    pub(super) fn find_name(&self, info: &PmfsInfo, name: &[u8]) -> Result<Option<Found>> {
        let inode = self.inode(info.inode)?;
        let pages = Self::pages(inode);
        let start = info.found_in.load(Relaxed).min(pages);
        let mut found = None;
        for page in (start..pages).chain(0..start) {
            let block = self.block_of(inode, page)?;
            let seen = self.scan_block(block, &mut |entry| {
                if self.has_name(entry, name) {
                    found = Some(Found { number: entry.number, entry: entry.at });
                }
                Ok(found.is_some())
            })?;
            if seen {
                info.found_in.store(page, Relaxed);
                break;
            }
        }
        Ok(found)
    }

    /// The offset of the entry of an existing name.
    pub(super) fn entry_of(&self, info: &PmfsInfo, name: Name<'_>) -> Result<u64> {
        match name.entry {
            Some(entry) => Ok(entry),
            None => Ok(self.find_name(info, name.bytes)?.ok_or(Errno::ENOENT)?.entry),
        }
    }

    pub(super) fn is_empty(&self, info: &PmfsInfo) -> Result<bool> {
        let inode = self.inode(info.inode)?;
        for page in 0..Self::pages(inode) {
            if self.scan_block(self.block_of(inode, page)?, &mut |entry| Ok(entry.number != 0))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn read_names(
        &self,
        directory: Shared<'_, PmfsInfo>,
        cookie: u64,
        visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        let inode = self.inode(directory.info.inode)?;
        let mut buffer = [0; 256];
        for page in cookie / BLOCK_BYTES..Self::pages(inode) {
            let block = self.block_of(inode, page)?;
            let stopped = self.scan_block(block, &mut |entry| {
                // The entry's offset in the directory plus one. It never changes, and zero means
                // the beginning.
                let position = page * BLOCK_BYTES + (entry.at - block) + 1;
                if entry.number == 0 || position <= cookie {
                    return Ok(false);
                }
                let name = &mut buffer[..entry.name_length as usize];
                self.region.read_bytes(entry.at + DENTRY_BYTES, name)?;
                let (number, kind) = (entry.number, entry.kind()?);
                Ok(!visit(&DirectoryEntry { name, number, kind, cookie: position, entry: entry.at }))
            })?;
            if stopped {
                break;
            }
        }
        Ok(())
    }

    /// Finds space for a name and writes the entry there. It stays invisible until
    /// [`add`](Self::add).
    pub(super) fn prepare_add(
        &self,
        info: &mut PmfsInfo,
        name: &[u8],
        number: u64,
        kind: FileKind,
        transaction: &mut Transaction<'_, M>,
    ) -> Result<Adding> {
        let need = dentry_bytes(name.len() as u64);
        let room = self.find_room(info, need)?;
        let (at, length) = match &room {
            Room::Behind { at, length, .. } => (*at, *length),
            Room::Free { entry } => (entry.at, entry.length),
            Room::Block { at, .. } => (*at, BLOCK_BYTES),
        };
        let adding = Adding { at, room, header: header(length, name.len() as u64, kind), number };
        if let Err(error) = self.write_dentry(&adding, name, transaction) {
            self.roll_back_add(adding);
            return Err(error);
        }
        Ok(adding)
    }

    fn write_dentry(&self, adding: &Adding, name: &[u8], transaction: &mut Transaction<'_, M>) -> Result<()> {
        let at = adding.at;
        let dentry = self.dentry(at)?;
        self.region.write_bytes(at + DENTRY_BYTES, name)?.unflushed();
        match &adding.room {
            // A free entry is visible, so its words change in the transaction.
            Room::Free { .. } => transaction.log_all(dentry)?,
            Room::Behind { before, .. } => {
                transaction.log_word(&self.dentry(before.at)?.header)?;
                self.region.set64(&dentry.number, adding.number).unflushed();
                self.region.set64(&dentry.header, adding.header).unflushed();
            }
            Room::Block { .. } => {
                self.region.set64(&dentry.number, adding.number).unflushed();
                self.region.set64(&dentry.header, adding.header).unflushed();
            }
        }
        transaction.with(self.region.flush_range(at, dentry_bytes(name.len() as u64)));
        Ok(())
    }

    /// Makes a prepared name visible. The directory's inode is logged, and gets the new block if
    /// there is one.
    pub(super) fn add(&self, inode: &Inode, adding: &Adding, transaction: &mut Transaction<'_, M>) -> Result<()> {
        match &adding.room {
            Room::Free { .. } => {
                let dentry = self.dentry(adding.at)?;
                transaction.set(&dentry.header, adding.header);
                transaction.set(&dentry.number, adding.number);
            }
            Room::Behind { before, at, .. } => {
                let shorter = before.header & !0xffff | (at - before.at);
                transaction.set(&self.dentry(before.at)?.header, shorter);
            }
            Room::Block { growing, .. } => {
                transaction.with(self.set_pointers(growing)?);
                transaction.set(&inode.root, growing.tree.0);
                transaction.set(&inode.size_bytes, inode.size_bytes.load() + BLOCK_BYTES);
                transaction.set(&inode.blocks, inode.blocks.load() + 1);
            }
        }
        Ok(())
    }

    /// Frees the space of a prepared entry.
    pub(super) fn roll_back_add(&self, adding: Adding) {
        if let Room::Block { growing, .. } = adding.room {
            self.roll_back_growth(growing);
        }
    }

    /// Finds enough free space in a block.
    fn room_in(&self, block: u64, need: u64) -> Result<Option<Room>> {
        let mut room = None;
        self.scan_block(block, &mut |entry| {
            let used = if entry.number == 0 { 0 } else { dentry_bytes(entry.name_length) };
            if entry.length - used >= need {
                room = Some(match used {
                    0 => Room::Free { entry: *entry },
                    _ => Room::Behind { before: *entry, at: entry.at + used, length: entry.length - used },
                });
            }
            Ok(room.is_some())
        })?;
        Ok(room)
    }

    fn find_room(&self, info: &mut PmfsInfo, need: u64) -> Result<Room> {
        let inode = self.inode(info.inode)?;
        let pages = Self::pages(inode);
        while let Some(block) = info.roomy.last() {
            if let Some(room) = self.room_in(*block, need)? {
                return Ok(room);
            }
            info.roomy.pop();
        }
        for page in info.room_from.min(pages)..pages {
            info.room_from = page;
            if let Some(room) = self.room_in(self.block_of(inode, page)?, need)? {
                return Ok(room);
            }
        }
        let mut growing = Growing::new(Tree(inode.root.load()));
        let mut flushed = Flushed::nothing();
        match self.grow(&mut growing, pages, &mut flushed) {
            Ok((at, _)) => {
                // The transaction's first fence is on this thread and covers these flushes.
                flushed.unfenced();
                Ok(Room::Block { at, growing })
            }
            Err(error) => {
                self.roll_back_growth(growing);
                Err(error)
            }
        }
    }

    /// The entry before one in its block, and the entry behind it if that is free.
    fn neighbours(&self, at: u64) -> Result<(Option<Read>, Option<Read>)> {
        let block = at / BLOCK_BYTES * BLOCK_BYTES;
        let (mut before, mut here) = (None, self.read_dentry(block)?);
        while here.at < at {
            before = Some(here);
            let next = here.at + here.length;
            if next >= block + BLOCK_BYTES {
                break;
            }
            here = self.read_dentry(next)?;
        }
        if here.at != at {
            return Err(Error::damaged("a directory entry is not at its offset", at));
        }
        let next = at + here.length;
        let behind = if next < block + BLOCK_BYTES { Some(self.read_dentry(next)?) } else { None };
        let last = behind.map_or(at, |entry| entry.at);
        self.region.report_read(block, last + DENTRY_BYTES - block);
        Ok((before, behind.filter(|entry| entry.number == 0)))
    }

    /// Logs what removing an entry changes: words of two entries.
    pub(super) fn prepare_remove(&self, at: u64, transaction: &mut Transaction<'_, M>) -> Result<Removing> {
        let entry = self.read_dentry(at)?;
        let (before, behind) = self.neighbours(at)?;
        let length = entry.length + behind.map_or(0, |entry| entry.length);
        let grown = match before {
            Some(before) => (before.at, before.header + length),
            None => (at, entry.header & !0xffff | length),
        };
        transaction.log_all(self.dentry(at)?)?;
        transaction.log_word(&self.dentry(grown.0)?.header)?;
        Ok(Removing { at, grown })
    }

    pub(super) fn remove(
        &self,
        info: &mut PmfsInfo,
        removing: &Removing,
        transaction: &mut Transaction<'_, M>,
    ) -> Result<()> {
        transaction.set(&self.dentry(removing.at)?.number, 0);
        transaction.set(&self.dentry(removing.grown.0)?.header, removing.grown.1);
        info.record_room(removing.at);
        Ok(())
    }
}

/// A prepared removal: the entry, and the entry that takes over its space.
#[derive(Debug)]
pub(super) struct Removing {
    at: u64,
    grown: (u64, u64),
}
