//! Directories. Names are entries in the directory's log. Loading a directory builds an index in
//! memory, ordered by hash (NOVA uses a radix tree). Listing a directory reads each file's inode
//! for the type, as NOVA does.

use super::format::{ADD, ADD_BYTES, AddEntry, Inode, REMOVED};
use super::log::{Appending, LogEntry};
use super::{Body, Nova, NovaInfo};
use crate::error::{Error, Result};
use crate::physical::{DirectoryEntry, Exclusive, Found, Index, Name, Shared};
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, Flushed, LINE_BYTES, Memory, Pm, crc32c};
use posix::Errno;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Low bits of a key: they distinguish names with the same hash.
const TWINS: u64 = 15;

/// A directory's in-memory state.
#[derive(Debug, Default)]
pub struct Names {
    /// Entry and inode number by hash. Empty if the VFS layer has the index.
    index: BTreeMap<u64, Found>,
    /// Whether two names ever had one hash. Until then each hash is a key.
    has_twins: bool,
    /// Number of names.
    pub(super) count: u64,
}

impl Names {
    /// Adds a name under its hash, or under the next free key if other names have that hash.
    /// Returns false if there is no free key.
    fn insert(&mut self, key: u64, found: Found) -> bool {
        if let Entry::Vacant(place) = self.index.entry(key) {
            place.insert(found);
            return true;
        }
        self.has_twins = true;
        let free = (key..=key | TWINS).find(|key| !self.index.contains_key(key));
        free.map(|key| self.index.insert(key, found)).is_some()
    }
}

fn hash(name: &[u8]) -> u64 {
    let low = crc32c(0, name) as u64;
    let mixed = (low | (crc32c(!0, name) as u64) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Bit 61 is set because cookie 0 means the beginning. The low bits distinguish colliding names.
    // The two high bits stay zero so that callers can add to a cookie.
    (mixed >> 2 | 1 << 61) & !TWINS
}

pub(super) fn names(info: &NovaInfo) -> Result<&Names> {
    match &info.body {
        Body::Directory(names) => Ok(names),
        _ => Err(Errno::ENOTDIR.into()),
    }
}

pub(super) fn names_mut(info: &mut NovaInfo) -> Result<&mut Names> {
    match &mut info.body {
        Body::Directory(names) => Ok(names),
        _ => Err(Errno::ENOTDIR.into()),
    }
}

impl<M: Memory> Nova<M> {
    /// Whether the entry at an offset has this name.
    pub(super) fn is_named(&self, at: u64, name: &[u8]) -> bool {
        let Ok(entry) = self.region.get::<AddEntry>(Pm::new(at)) else { return false };
        self.region.report_read(at, ADD_BYTES + name.len() as u64);
        let header = entry.header.load();
        header & 0xff == ADD
            && (header >> 16) & 0xff == name.len() as u64
            && self.region.bytes_equal(at + ADD_BYTES, name)
    }

    fn find(&self, names: &Names, name: &[u8]) -> Option<Found> {
        let key = hash(name);
        if !names.has_twins {
            return names.index.get(&key).copied().filter(|found| self.is_named(found.entry, name));
        }
        names.index.range(key..=key | TWINS).map(|(_, found)| *found).find(|found| self.is_named(found.entry, name))
    }

    pub(super) fn lookup_name(&self, directory: Shared<'_, NovaInfo>, name: &[u8]) -> Result<Option<Found>> {
        Ok(self.find(names(directory.info)?, name))
    }

    /// The offset of the entry of an existing name.
    pub(super) fn entry_of(&self, info: &NovaInfo, name: Name<'_>) -> Result<u64> {
        match name.entry {
            Some(entry) => Ok(entry),
            None => Ok(self.find(names(info)?, name.bytes).ok_or(Errno::ENOENT)?.entry),
        }
    }

    /// Fails with ENOSPC if the index has no room for another name with this hash.
    pub(super) fn reserve(&self, info: &NovaInfo, name: &[u8]) -> Result<()> {
        let (key, names) = (hash(name), names(info)?);
        match names.has_twins && names.index.range(key..=key | TWINS).count() as u64 > TWINS {
            true => Err(Errno::ENOSPC.into()),
            false => Ok(()),
        }
    }

    pub(super) fn record_added(&self, info: &mut NovaInfo, name: &[u8], found: Found) -> Result<()> {
        let names = names_mut(info)?;
        names.count += 1;
        match self.index == Index::Vfs || names.insert(hash(name), found) {
            true => Ok(()),
            false => Err(Errno::ENOSPC.into()),
        }
    }

    pub(super) fn record_removed(&self, info: &mut NovaInfo, name: &[u8], entry: u64) -> Result<()> {
        info.log.live = info.log.live.saturating_sub(super::format::add_bytes(name.len() as u64));
        let names = names_mut(info)?;
        names.count = names.count.saturating_sub(1);
        if self.index == Index::Vfs {
            return Ok(());
        }
        let mut key = hash(name);
        if names.has_twins {
            let found = names.index.range(key..=key | TWINS).find(|(_, found)| found.entry == entry);
            key = found.map_or(key, |(key, _)| *key);
        }
        names.index.remove(&key);
        Ok(())
    }

    /// Marks an entry as removed or not removed. The log is authoritative; the mark saves later
    /// scans the search for the removal entry.
    pub(super) fn mark(&self, at: u64, removed: bool) -> Result<Flushed> {
        let entry: &AddEntry = self.region.get(Pm::new(at))?;
        let header = entry.header.load();
        if header & 0xff != ADD {
            return Err(Error::damaged("a removal entry refers to an entry that is no name", at));
        }
        let header = if removed { header | REMOVED } else { header & !REMOVED };
        Ok(self.region.flush(self.region.set64(&entry.header, header)))
    }

    pub(super) fn name_at<'b>(&self, at: u64, length: u64, buffer: &'b mut [u8; 256]) -> Result<&'b [u8]> {
        let name = &mut buffer[..length.min(255) as usize];
        self.region.read_bytes(at + ADD_BYTES, name)?;
        Ok(name)
    }

    pub(super) fn read_names(
        &self,
        directory: Shared<'_, NovaInfo>,
        cookie: u64,
        visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        if self.index == Index::Vfs {
            return self.scan_names(directory, cookie, visit);
        }
        let mut buffer = [0; 256];
        for (key, found) in names(directory.info)?.index.range(cookie.saturating_add(1)..) {
            let LogEntry::Add { name_length, number, .. } = self.entry(found.entry)? else {
                return Err(Error::damaged("an indexed entry is no name", found.entry));
            };
            let name = self.name_at(found.entry, name_length, &mut buffer)?;
            let kind = self.kind_in_inode(number)?;
            if !visit(&DirectoryEntry { name, number, kind, cookie: *key, entry: found.entry }) {
                break;
            }
        }
        Ok(())
    }

    /// The type of a listed file, from its inode.
    fn kind_in_inode(&self, number: u64) -> Result<FileKind> {
        let offset = self.find_inode(number)?;
        self.region.report_read(offset, LINE_BYTES);
        let mode = (self.inode(offset)?.mode_links.load() >> 32) as u32;
        FileKind::from_mode(mode).ok_or_else(|| Error::damaged("an inode has an invalid file type", offset))
    }

    /// Visits the names in log order. A cookie is the entry's ordinal in the log. It stays valid
    /// because no compaction happens while the directory has names.
    fn scan_names(
        &self,
        directory: Shared<'_, NovaInfo>,
        cookie: u64,
        visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        let inode = self.inode(directory.info.inode)?;
        let (mut ordinal, mut goes_on) = (0, true);
        let mut buffer = [0; 256];
        self.scan_log(inode, &mut |_| {}, &mut |at, entry| {
            ordinal += 1;
            if let LogEntry::Add { number, name_length, removed: false, .. } = entry
                && goes_on
                && ordinal > cookie
            {
                let name = self.name_at(at, name_length, &mut buffer)?;
                let kind = self.kind_in_inode(number)?;
                goes_on = visit(&DirectoryEntry { name, number, kind, cookie: ordinal, entry: at });
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Rewrites a directory's log when most of it is obsolete. Rewriting moves entries. If the VFS
    /// layer stores their offsets, compaction waits until the directory is empty. Returns whether
    /// the log was rewritten.
    pub(super) fn compact_directory(&self, directory: &mut Exclusive<'_, NovaInfo>) -> Result<bool> {
        let log = directory.info.log;
        let names = names(directory.info)?;
        let is_due = match self.index {
            Index::Own => log.pages >= 4 && log.live * 3 < log.pages * BLOCK_BYTES,
            Index::Vfs => log.pages >= 4 && names.count == 0,
        };
        if !is_due {
            return Ok(false);
        }
        let inode = self.inode(directory.info.inode)?;
        let mut appending = self.replacing();
        match self.rewrite_directory(inode, &mut appending, directory) {
            Ok(moved) => {
                directory.info.log = self.replace_log(inode, &log, appending)?;
                let names = names_mut(directory.info)?;
                for (found, entry) in names.index.values_mut().zip(moved) {
                    found.entry = entry;
                }
                Ok(true)
            }
            // Without free space the old log stays in use.
            Err(Error::Errno(Errno::ENOSPC)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the offsets of the entries in the new log, in index order.
    fn rewrite_directory(
        &self,
        inode: &Inode,
        appending: &mut Appending<'_>,
        directory: &Exclusive<'_, NovaInfo>,
    ) -> Result<Vec<u64>> {
        let attributes = directory.attributes.get();
        let mut moved = Vec::new();
        let mut buffer = [0; 256];
        for found in names(directory.info)?.index.values() {
            let LogEntry::Add { number, name_length, kind, .. } = self.entry(found.entry)? else {
                return Err(Error::damaged("an indexed entry is no name", found.entry));
            };
            let name = self.name_at(found.entry, name_length, &mut buffer)?;
            let stamp = (attributes.links, attributes.modified_ns);
            moved.push(self.append_add(inode, appending, name, (number, kind), stamp)?);
        }
        self.append_attributes(inode, appending, &attributes)?;
        Ok(moved)
    }

    /// Adds a log entry to a directory that is being loaded.
    pub(super) fn load_name(&self, names: &mut Names, at: u64, entry: &LogEntry) -> Result<()> {
        if let LogEntry::Add { number, name_length, removed: false, .. } = entry {
            names.count += 1;
            if self.index == Index::Own {
                let mut buffer = [0; 256];
                let name = self.name_at(at, *name_length, &mut buffer)?;
                if !names.insert(hash(name), Found { number: *number, entry: at }) {
                    return Err(Error::damaged("too many names with one hash", at));
                }
            }
        }
        Ok(())
    }
}
