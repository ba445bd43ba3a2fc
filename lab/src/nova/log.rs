//! Logs: chains of pages with entries. Only the holder of the file's exclusive lock appends. An
//! entry is valid once the inode's tail is behind it.

use super::Nova;
use super::format::{
    ADD, ADD_BYTES, ATTRIBUTES, ATTRIBUTES_BYTES, AddEntry, AttributesEntry, Inode, NEXT, OWN_NAME, PAGE_BODY,
    PageTail, REMOVE, REMOVE_BYTES, REMOVED, RemoveEntry, WRITE, WRITE_BYTES, WriteEntry, add_bytes,
};
use crate::error::{Error, Result};
use crate::inode::pair;
use crate::substrate::FreeBlocks;
use engine::Attributes;
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, Cell64, Flushed, Memory, Pm};
use smallvec::SmallVec;

/// The in-memory state of a file's log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Log {
    /// First page, or zero if there is none.
    pub head: u64,
    /// End of the last entry.
    pub tail: u64,
    /// Number of pages.
    pub pages: u64,
    /// Bytes of entries that are not obsolete.
    pub live: u64,
}

/// Entries that are written but not yet valid. Dropping it frees their pages.
pub(super) struct Appending<'n> {
    /// The log as it is after the commit.
    pub log: Log,
    flushed: Flushed,
    blocks: &'n FreeBlocks,
    /// Blocks to free unless the entries become valid.
    fresh: SmallVec<[u64; 4]>,
    /// Whether the new log replaces an old one, by changing head and tail together.
    replaces: bool,
}

impl Appending<'_> {
    /// Takes the flushed data, for a transaction to fence.
    pub(super) fn take_flushed(&mut self) -> Flushed {
        std::mem::replace(&mut self.flushed, Flushed::nothing())
    }

    /// Adds flushed data that must be durable before the entries become valid.
    pub(super) fn with(&mut self, flushed: Flushed) {
        join(&mut self.flushed, flushed);
    }

    /// Adds a block that belongs to the entries. It is freed if they never become valid.
    pub(super) fn owns(&mut self, block: u64) {
        self.fresh.push(block);
    }

    /// Marks the entries valid and returns the log.
    pub(super) fn done(mut self) -> Log {
        self.fresh.clear();
        self.log
    }
}

impl Drop for Appending<'_> {
    fn drop(&mut self) {
        self.fresh.drain(..).for_each(|block| self.blocks.free(block));
    }
}

/// A decoded entry.
#[derive(Debug, Clone, Copy)]
pub(super) enum LogEntry {
    Add { number: u64, name_length: u64, kind: FileKind, removed: bool, links: u32, timestamp_ns: i64 },
    Remove { removed: u64, links: u32, timestamp_ns: i64 },
    Attributes(Attributes),
    Write { page: u64, block: u64, count: u64, size_bytes: u64, timestamp_ns: i64 },
    OwnName { name_length: u64 },
}

impl LogEntry {
    fn bytes(&self) -> u64 {
        match self {
            LogEntry::Add { name_length, .. } | LogEntry::OwnName { name_length } => add_bytes(*name_length),
            LogEntry::Remove { .. } => REMOVE_BYTES,
            LogEntry::Attributes(_) => ATTRIBUTES_BYTES,
            LogEntry::Write { .. } => WRITE_BYTES,
        }
    }
}

impl<M: Memory> Nova<M> {
    fn page_tail(&self, page: u64) -> Result<&PageTail> {
        Ok(self.region.get(Pm::new(page + PAGE_BODY))?)
    }

    /// Starts to append to a log.
    pub(super) fn appending(&self, log: &Log) -> Appending<'_> {
        let flushed = Flushed::nothing();
        Appending { log: *log, flushed, blocks: &self.blocks, fresh: SmallVec::new(), replaces: false }
    }

    /// Starts a log that is to replace another.
    pub(super) fn replacing(&self) -> Appending<'_> {
        let mut appending = self.appending(&Log::default());
        appending.replaces = true;
        appending
    }

    /// Reserves space for an entry and returns its offset. Adds pages as needed.
    fn room(&self, inode: &Inode, appending: &mut Appending<'_>, bytes: u64) -> Result<u64> {
        let log = &mut appending.log;
        if log.head == 0 {
            let block = self.blocks.allocate()?;
            appending.fresh.push(block);
            let page = block * BLOCK_BYTES;
            if !appending.replaces {
                // The head has no meaning while the tail is zero.
                let headed = self.region.flush(self.region.retract(&inode.log_head, page));
                join(&mut appending.flushed, headed);
            }
            (log.head, log.tail, log.pages) = (page, page, 1);
        }
        // The body ends before the page does, so a tail at its end is still in this page.
        let page = log.tail / BLOCK_BYTES * BLOCK_BYTES;
        let used = log.tail - page;
        if used + bytes > PAGE_BODY {
            let block = self.blocks.allocate()?;
            appending.fresh.push(block);
            let next = block * BLOCK_BYTES;
            if used < PAGE_BODY {
                let marker: &Cell64 = self.region.get(Pm::new(log.tail))?;
                join(&mut appending.flushed, self.region.flush(self.region.set64(marker, NEXT)));
            }
            let linked = self.region.flush(self.region.set64(&self.page_tail(page)?.next, next));
            join(&mut appending.flushed, linked);
            (log.tail, log.pages) = (next, log.pages + 1);
        }
        let at = log.tail;
        log.tail += bytes;
        log.live += bytes;
        Ok(at)
    }

    fn wrote(&self, appending: &mut Appending<'_>, at: u64, bytes: u64) {
        join(&mut appending.flushed, self.region.flush_range(at, bytes));
    }

    /// Appends a name and returns the entry's offset.
    pub(super) fn append_add(
        &self,
        inode: &Inode,
        appending: &mut Appending<'_>,
        name: &[u8],
        (number, kind): (u64, FileKind),
        (links, timestamp_ns): (u32, i64),
    ) -> Result<u64> {
        let header = ADD | (kind as u64) << 24 | (links as u64) << 32;
        self.append_named(inode, appending, name, (header, number, timestamp_ns))
    }

    fn append_named(
        &self,
        inode: &Inode,
        appending: &mut Appending<'_>,
        name: &[u8],
        (header, number, timestamp_ns): (u64, u64, i64),
    ) -> Result<u64> {
        let bytes = add_bytes(name.len() as u64);
        let at = self.room(inode, appending, bytes)?;
        let entry: &AddEntry = self.region.get(Pm::new(at))?;
        self.region.set64(&entry.header, header | (name.len() as u64) << 16).unflushed();
        self.region.set64(&entry.number, number).unflushed();
        self.region.set64(&entry.timestamp_ns, timestamp_ns as u64).unflushed();
        self.region.write_bytes(at + ADD_BYTES, name)?.unflushed();
        self.wrote(appending, at, bytes);
        Ok(at)
    }

    /// Writes the log of a new directory: `.`, `..`, and after a fence the tail. The inode's flush
    /// covers the tail.
    pub(super) fn append_own_names(
        &self,
        inode: &Inode,
        number: u64,
        parent: u64,
        timestamp_ns: i64,
    ) -> Result<Appending<'_>> {
        let mut appending = self.appending(&Log::default());
        for (name, number) in [(&b"."[..], number), (b"..", parent)] {
            let bytes = add_bytes(name.len() as u64);
            self.append_named(inode, &mut appending, name, (OWN_NAME, number, timestamp_ns))?;
            // Obsolete once the log is rewritten.
            appending.log.live -= bytes;
        }
        let durable = self.region.fence(appending.take_flushed());
        self.region.commit(&inode.log_tail, appending.log.tail, durable).unflushed();
        Ok(appending)
    }

    /// Appends a removal.
    pub(super) fn append_remove(
        &self,
        inode: &Inode,
        appending: &mut Appending<'_>,
        removed: u64,
        (links, timestamp_ns): (u32, i64),
    ) -> Result<()> {
        let at = self.room(inode, appending, REMOVE_BYTES)?;
        let entry: &RemoveEntry = self.region.get(Pm::new(at))?;
        self.region.set64(&entry.header, REMOVE | (links as u64) << 32).unflushed();
        self.region.set64(&entry.removed, removed).unflushed();
        self.region.set64(&entry.timestamp_ns, timestamp_ns as u64).unflushed();
        self.wrote(appending, at, REMOVE_BYTES);
        // The entry is obsolete once the log is rewritten.
        appending.log.live -= REMOVE_BYTES;
        Ok(())
    }

    /// Appends attributes.
    pub(super) fn append_attributes(
        &self,
        inode: &Inode,
        appending: &mut Appending<'_>,
        attributes: &Attributes,
    ) -> Result<()> {
        let at = self.room(inode, appending, ATTRIBUTES_BYTES)?;
        let entry: &AttributesEntry = self.region.get(Pm::new(at))?;
        let words = [
            (&entry.header, ATTRIBUTES),
            (&entry.mode_links, pair(attributes.mode, attributes.links)),
            (&entry.owner, pair(attributes.uid, attributes.gid)),
            (&entry.size_bytes, attributes.size_bytes),
            (&entry.accessed_ns, attributes.accessed_ns as u64),
            (&entry.modified_ns, attributes.modified_ns as u64),
            (&entry.changed_ns, attributes.changed_ns as u64),
        ];
        words.into_iter().for_each(|(cell, word)| self.region.set64(cell, word).unflushed());
        self.wrote(appending, at, ATTRIBUTES_BYTES);
        // All but the last attribute entry are obsolete. Counting the last one is not worth the
        // effort.
        appending.log.live -= ATTRIBUTES_BYTES;
        Ok(())
    }

    /// Appends a run of written blocks.
    pub(super) fn append_write(
        &self,
        inode: &Inode,
        appending: &mut Appending<'_>,
        (page, block, count): (u64, u64, u64),
        (size_bytes, timestamp_ns): (u64, i64),
    ) -> Result<()> {
        let at = self.room(inode, appending, WRITE_BYTES)?;
        let entry: &WriteEntry = self.region.get(Pm::new(at))?;
        let words = [
            (&entry.header, WRITE | count << 32),
            (&entry.page, page),
            (&entry.block, block),
            (&entry.size_bytes, size_bytes),
            (&entry.timestamp_ns, timestamp_ns as u64),
        ];
        words.into_iter().for_each(|(cell, word)| self.region.set64(cell, word).unflushed());
        self.wrote(appending, at, WRITE_BYTES);
        appending.log.live -= WRITE_BYTES;
        Ok(())
    }

    /// Commits the entries of one log.
    pub(super) fn commit_log(&self, inode: &Inode, mut appending: Appending<'_>) -> Result<Log> {
        let flushed = appending.take_flushed();
        self.transact(flushed, &[(&inode.log_tail, appending.log.tail)], || Ok(None))?;
        Ok(appending.done())
    }

    /// Replaces an inode's log with a new one, then frees the old pages.
    pub(super) fn replace_log(&self, inode: &Inode, old: &Log, mut appending: Appending<'_>) -> Result<Log> {
        let flushed = appending.take_flushed();
        let changes = [(&inode.log_head, appending.log.head), (&inode.log_tail, appending.log.tail)];
        self.transact(flushed, &changes, || Ok(None))?;
        let log = appending.done();
        self.free_log(old)?;
        Ok(log)
    }

    /// Decodes the entry at an offset. The bytes are untrusted.
    pub(super) fn entry(&self, at: u64) -> Result<LogEntry> {
        let header: &Cell64 = self.region.get(Pm::new(at))?;
        let header = header.load();
        let (count, kind) = (header >> 32, header & 0xff);
        let damaged = || Error::damaged("a log holds an invalid entry", at);
        Ok(match kind {
            ADD => {
                let entry: &AddEntry = self.region.get(Pm::new(at))?;
                let kind = FileKind::from_bits((header >> 24) as u32 & 0xff).ok_or_else(damaged)?;
                let name_length = header >> 16 & 0xff;
                if name_length == 0 {
                    return Err(damaged());
                }
                LogEntry::Add {
                    number: entry.number.load(),
                    name_length,
                    kind,
                    removed: header & REMOVED != 0,
                    links: count as u32,
                    timestamp_ns: entry.timestamp_ns.load() as i64,
                }
            }
            REMOVE => {
                let entry: &RemoveEntry = self.region.get(Pm::new(at))?;
                let timestamp_ns = entry.timestamp_ns.load() as i64;
                LogEntry::Remove { removed: entry.removed.load(), links: count as u32, timestamp_ns }
            }
            OWN_NAME => LogEntry::OwnName { name_length: header >> 16 & 0xff },
            ATTRIBUTES => LogEntry::Attributes(self.attributes_at(at)?),
            WRITE => {
                let entry: &WriteEntry = self.region.get(Pm::new(at))?;
                let (page, block) = (entry.page.load(), entry.block.load());
                let known = self.blocks.all();
                let end = known.start + known.count;
                if block < known.start || block >= end || count > end - block || page > 1 << 52 {
                    return Err(damaged());
                }
                let timestamp_ns = entry.timestamp_ns.load() as i64;
                LogEntry::Write { page, block, count, size_bytes: entry.size_bytes.load(), timestamp_ns }
            }
            _ => return Err(damaged()),
        })
    }

    fn attributes_at(&self, at: u64) -> Result<Attributes> {
        let entry: &AttributesEntry = self.region.get(Pm::new(at))?;
        let (mode_links, owner) = (entry.mode_links.load(), entry.owner.load());
        let mode = (mode_links >> 32) as u32;
        Ok(Attributes {
            number: 0,
            generation: 0,
            kind: FileKind::from_mode(mode).ok_or_else(|| Error::damaged("an entry has an invalid file type", at))?,
            mode,
            links: mode_links as u32,
            uid: (owner >> 32) as u32,
            gid: owner as u32,
            device: 0,
            size_bytes: entry.size_bytes.load(),
            blocks: 0,
            accessed_ns: entry.accessed_ns.load() as i64,
            modified_ns: entry.modified_ns.load() as i64,
            changed_ns: entry.changed_ns.load() as i64,
            flags: engine::FileFlags::NONE,
        })
    }

    /// Scans a log from head to tail: calls `page` for each page and `visit` for each entry.
    /// Returns the log's state.
    pub(super) fn scan_log(
        &self,
        inode: &Inode,
        page: &mut dyn FnMut(u64),
        visit: &mut dyn FnMut(u64, LogEntry) -> Result<()>,
    ) -> Result<Log> {
        let (head, tail) = (inode.log_head.load(), inode.log_tail.load());
        if tail == 0 {
            return Ok(Log::default());
        }
        let damaged = |at| Error::damaged("a log's chain is broken", at);
        let mut log = Log { head, tail, pages: 0, live: 0 };
        let (mut here, pages_max) = (head, self.region.length() / BLOCK_BYTES);
        while log.pages < pages_max {
            if here == 0 || !here.is_multiple_of(BLOCK_BYTES) || !self.region.contains(here, BLOCK_BYTES) {
                return Err(damaged(here));
            }
            page(here);
            log.pages += 1;
            let is_last = tail > here && tail <= here + PAGE_BODY;
            let end = if is_last { tail } else { here + PAGE_BODY };
            self.region.report_read(here, end - here);
            let mut at = here;
            while at < end {
                let header: &Cell64 = self.region.get(Pm::new(at))?;
                if header.load() & 0xff == NEXT {
                    break;
                }
                let entry = self.entry(at)?;
                if at + entry.bytes() > end {
                    return Err(damaged(at));
                }
                if let LogEntry::Add { removed: false, .. } = entry {
                    log.live += entry.bytes();
                }
                visit(at, entry)?;
                at += entry.bytes();
            }
            if is_last {
                return Ok(log);
            }
            here = self.page_tail(here)?.next.load();
        }
        Err(damaged(head))
    }

    /// Frees the pages of a log.
    pub(super) fn free_log(&self, log: &Log) -> Result<()> {
        let mut page = log.head;
        for _ in 0..log.pages {
            if !page.is_multiple_of(BLOCK_BYTES) {
                return Err(Error::damaged("a log's chain is broken", page));
            }
            let next = self.page_tail(page)?.next.load();
            self.blocks.free(page / BLOCK_BYTES);
            page = next;
        }
        Ok(())
    }
}

/// Adds flushed data to data that awaits a fence.
fn join(all: &mut Flushed, more: Flushed) {
    let before = std::mem::replace(all, Flushed::nothing());
    *all = before.and(more);
}
