//! Reading directories from the log: readdir, getcwd's step upwards, link targets.
//!
//! Invariant: a cookie belongs to a name for the name's life, whichever files the name stands for.
//! Cookies ascend along the log, and compaction keeps both properties. So "after cookie c" means
//! the same at any time, and a name that exists throughout a scan is met exactly once.

use super::log::Tail;
use super::undurable::UndurableNames;
use super::{DirectoryEntry, DirectoryHint};
use crate::dram::{Cachelet, DirectoryState};
use crate::error::{Corruption, Error, Result};
use crate::format::{
    FIRST_COOKIE, FileKind, LogPage, LogPageKind, NAME_BYTES_MAX, PROPERTY_INLINE, Valid, is_gone, is_possible_name,
    is_possible_target, slot_address,
};
use crate::fs::{Node, Thread};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use pmem::{BLOCK_BYTES, Commit64, LINE_BYTES, Memory};

/// Slots of a cache line. The dentries that the next line names are prefetched while one line is
/// read.
pub(super) const LINE_SLOTS: usize = LINE_BYTES as usize / size_of::<Commit64>();

/// A scan under way.
struct Scan {
    /// Version of the log that it reads.
    log_version: u32,
    /// Cookie of the last name that it returned.
    cookie: u64,
    /// Its knowledge of names that may not be durable yet.
    undurable: UndurableNames,
    /// Buffer in which names are assembled.
    name: [u8; NAME_BYTES_MAX + 1],
}

/// Why the scan of a page stopped.
enum Stop {
    /// The caller wants no more names.
    Enough,
    /// The log was compacted since the scan began, and a name may have moved to another file since.
    /// This page is out of date.
    Moved,
}

/// The version of a directory's log; each compaction changes it.
pub(super) fn log_version(directory: &Cachelet) -> u32 {
    directory.as_directory().state().load(Acquire) >> 8
}

impl<'f, M: Memory> Thread<'f, M> {
    /// The inode number of a directory's `..`.
    pub fn parent(&self, directory: Node) -> Result<u64> {
        let cachelet = self.cachelet(directory)?;
        if self.fs.kind(cachelet)? != FileKind::Directory {
            return Err(Error::NotADirectory);
        }
        Ok(self.fs.inode_at(cachelet.inode.load(Relaxed))?.parent.load_acquire())
    }

    /// Copies the name of inode `child` in `directory` into `name` and returns its length. For
    /// getcwd by `..`.
    pub fn name_of(&self, directory: Node, child: u64, name: &mut [u8; 255]) -> Result<usize> {
        let mut length = 0;
        self.read_directory(directory, 0, &mut DirectoryHint::default(), &mut |entry| {
            if entry.number == child {
                length = entry.name.len();
                name[..length].copy_from_slice(entry.name);
            }
            length == 0
        })?;
        if length == 0 { Err(Error::NotFound) } else { Ok(length) }
    }

    /// Passes the names after `cookie` to `entry` in the order of cookies, until it returns `false`
    /// or no names are left. A name that exists during a whole scan is passed exactly once,
    /// whatever other threads change. A name that a crash could still undo is not listed. `entry`
    /// must not call back into the file system.
    pub fn read_directory(
        &self,
        directory: Node,
        cookie: u64,
        hint: &mut DirectoryHint,
        entry: &mut (impl FnMut(DirectoryEntry<'_>) -> bool + ?Sized),
    ) -> Result<()> {
        let _pin = self.pin();
        let cachelet = self.cachelet(directory)?;
        if self.fs.kind(cachelet)? != FileKind::Directory {
            return Err(Error::NotADirectory);
        }
        self.read_names(cachelet, directory, cookie, hint, entry)
    }

    /// The cookie of the next new name of a directory. It walks along a log that is not indexed.
    pub fn next_cookie(&self, directory: Node) -> Result<u64> {
        let _pin = self.pin();
        if let Some(known) = self.next_cookie_known(directory)? {
            return Ok(known);
        }
        let cachelet = self.cachelet(directory)?;
        match self.first_page(cachelet, u64::MAX, &DirectoryHint::default(), log_version(cachelet))? {
            0 => Ok(FIRST_COOKIE),
            last => {
                let page = self.fs.log_page(last, directory.number)?.0;
                let used = page.slots.iter().rposition(|slot| slot.load() != 0).map_or(0, |slot| slot + 1);
                Ok(page.first_cookie.load() + used as u64)
            }
        }
    }

    /// `next_cookie` without a walk: `None` if the directory is not indexed. It gets no names then.
    pub fn next_cookie_known(&self, directory: Node) -> Result<Option<u64>> {
        let _pin = self.pin();
        let cachelet = self.cachelet(directory)?;
        if self.fs.kind(cachelet)? != FileKind::Directory {
            return Err(Error::NotADirectory);
        }
        // While a pinned thread sees a directory indexed, its tail is known.
        if DirectoryState::of(cachelet) != DirectoryState::Indexed {
            return Ok(None);
        }
        let tail = Tail(cachelet.as_directory().log_tail().load(Acquire));
        if tail.page() == 0 {
            return Ok(Some(FIRST_COOKIE));
        }
        let (page, _) = self.fs.log_page(tail.page(), directory.number)?;
        Ok(Some(page.first_cookie.load() + tail.slot()))
    }

    /// Whether any thread could find a name in a directory. A name is counted from before it can be
    /// found until after it cannot be found, so the count alone does not show it. Pinned.
    pub(super) fn has_names(&self, index: u32, directory: &Cachelet) -> Result<bool> {
        let node = Node { cachelet: index, number: directory.number.load(Relaxed) };
        let mut found = false;
        self.read_names(directory, node, 0, &mut DirectoryHint::default(), &mut |_| {
            found = true;
            false
        })?;
        Ok(found)
    }

    /// See `read_directory`. Pinned.
    fn read_names(
        &self,
        cachelet: &Cachelet,
        node: Node,
        cookie: u64,
        hint: &mut DirectoryHint,
        entry: &mut (impl FnMut(DirectoryEntry<'_>) -> bool + ?Sized),
    ) -> Result<()> {
        let mut scan = Scan {
            log_version: log_version(cachelet),
            cookie,
            undurable: UndurableNames::at(self.fs.now_ns()),
            name: [0; NAME_BYTES_MAX + 1],
        };
        let mut offset = self.first_page(cachelet, cookie, hint, scan.log_version)?;
        let mut pages = 0;
        while offset != 0 {
            pages += 1;
            if pages > self.fs.blocks() {
                return Err(Corruption::LogPage(offset).into());
            }
            let (page, kind) = self.fs.log_page(offset, node.number)?;
            *hint = DirectoryHint { page: offset, log_version: scan.log_version };
            offset = match self.read_page((node, cachelet), (page, kind), &mut scan, entry)? {
                None => page.next.load_acquire(),
                Some(Stop::Enough) => return Ok(()),
                // No compaction gets this far twice while this thread is pinned.
                Some(Stop::Moved) => {
                    scan.log_version = log_version(cachelet);
                    self.first_page(cachelet, scan.cookie, &DirectoryHint::default(), scan.log_version)?
                }
            };
        }
        Ok(())
    }

    /// The page that holds the first cookie after `cookie`: from the hint if it is of this version
    /// of the log, else by walking the chain.
    pub(super) fn first_page(
        &self,
        directory: &Cachelet,
        cookie: u64,
        hint: &DirectoryHint,
        log_version: u32,
    ) -> Result<u64> {
        let number = directory.number.load(Relaxed);
        let head = self.fs.inode_at(directory.inode.load(Relaxed))?.log.load_acquire();
        let usable = hint.page != 0 && hint.page.is_multiple_of(BLOCK_BYTES) && hint.log_version == log_version;
        let mut offset = match usable.then(|| self.fs.log_page(hint.page, number)) {
            Some(Ok((page, _))) if page.first_cookie.load() <= cookie => hint.page,
            _ => head,
        };
        for _ in 0..self.fs.blocks() {
            if offset == 0 {
                return Ok(0);
            }
            let next = self.fs.log_page(offset, number)?.0.next.load_acquire();
            if next == 0 || self.fs.log_page(next, number)?.0.first_cookie.load() > cookie {
                return Ok(offset);
            }
            offset = next;
        }
        Err(Corruption::LogPage(offset).into())
    }

    /// Passes the names of a page that come after the scan's cookie to `entry` and advances the
    /// cookie. Returns why the scan stopped before the page's end, if it did.
    fn read_page(
        &self,
        (node, directory): (Node, &Cachelet),
        (page, kind): (&LogPage, LogPageKind),
        scan: &mut Scan,
        entry: &mut (impl FnMut(DirectoryEntry<'_>) -> bool + ?Sized),
    ) -> Result<Option<Stop>> {
        let first = match kind {
            LogPageKind::Append => (scan.cookie + 1).saturating_sub(page.first_cookie.load()) as usize,
            LogPageKind::Compacted => 0,
        };
        let end = self.slots_claimed(directory, page);
        if first >= end {
            return Ok(None);
        }
        let used = page.slots.get(..end).unwrap_or(&page.slots);
        let used_bytes = core::mem::offset_of!(LogPage, slots) + end * size_of::<Commit64>();
        self.fs.pm.report_read(self.fs.pm.offset_of(page), used_bytes as u64);
        let mut names_any = self.prefetch_names(used, first / LINE_SLOTS);
        for line in first / LINE_SLOTS..end.div_ceil(LINE_SLOTS) {
            let is_empty = !core::mem::replace(&mut names_any, self.prefetch_names(used, line + 1));
            if is_empty {
                continue;
            }
            for slot in &page.slots[first.max(line * LINE_SLOTS)..end.min((line + 1) * LINE_SLOTS)] {
                let stop = self.read_slot((node, directory), slot, scan, entry)?;
                if stop.is_some() {
                    return Ok(stop);
                }
            }
        }
        Ok(None)
    }

    /// Prefetches the dentries that a line of a page's used slots names. Returns whether it names
    /// any.
    #[inline]
    pub(super) fn prefetch_names(&self, used: &[Commit64], line: usize) -> bool {
        let slots = used.get(line * LINE_SLOTS..).unwrap_or_default();
        let slots = slots.get(..LINE_SLOTS).unwrap_or(slots);
        // Most lines of a small directory's page name nothing, so that is checked first.
        let names_any = slots.iter().fold(0, |words, slot| words | slot.load()) != 0;
        if names_any {
            // For a slot that names nothing this is the superblock, which is always cached.
            slots.iter().for_each(|slot| self.fs.pm.prefetch(slot_address(slot.load())));
        }
        names_any
    }

    /// Passes the name of a slot to `entry` if it comes after the scan's cookie, and advances the
    /// cookie. Returns why the scan stops at it, if it does.
    #[inline]
    fn read_slot(
        &self,
        (node, directory): (Node, &Cachelet),
        slot: &Commit64,
        scan: &mut Scan,
        entry: &mut (impl FnMut(DirectoryEntry<'_>) -> bool + ?Sized),
    ) -> Result<Option<Stop>> {
        let (named, valid, is_verified) = loop {
            let word = slot.load_acquire();
            if word == 0 || is_gone(word) {
                return Ok(None);
            }
            let named = self.fs.dentry_of_slot(word, node.number)?;
            let is_indexed = || DirectoryState::of(directory) == DirectoryState::Indexed;
            // The names of an indexed directory were verified when it was indexed. In any other
            // directory no thread creates, so a dentry that is not whole is damaged.
            let was_indexed = is_indexed();
            let is_verified = match named {
                Some(named) if !was_indexed => self.fs.certified_name(named, &mut scan.name)?.is_some(),
                _ => false,
            };
            if !was_indexed && !is_verified && !is_indexed() {
                return Err(Corruption::Dentry(slot_address(word)).into());
            }
            let Some(named) = named else { return Ok(None) };
            let valid = Valid::from_word(named.0.valid.load_acquire());
            if valid.valid {
                break (named, valid, is_verified);
            }
            // Did another dentry take its slot before this one became invalid?
            if slot.load_acquire() == word {
                // Or in the pages that have replaced this one?
                let is_moved = log_version(directory) != scan.log_version;
                return Ok(is_moved.then_some(Stop::Moved));
            }
        };
        let (_, offset, facts) = named;
        if facts.cookie <= scan.cookie {
            return Ok(None);
        }
        // A verified dentry was whole already. Otherwise its creator may have been writing the name
        // until the dentry became valid.
        let name = match is_verified {
            true => &scan.name[..facts.name_length as usize],
            false => crate::mindex::dentry_name(self.fs, offset, facts.name_length, &mut scan.name)?,
        };
        if !is_possible_name(name) {
            return Err(Corruption::Dentry(offset).into());
        }
        if !self.is_durable((node, directory), &mut scan.undurable, valid, name)? {
            return Ok(None);
        }
        scan.cookie = facts.cookie;
        let goes_on = entry(DirectoryEntry { cookie: facts.cookie, number: facts.inode, kind: facts.kind, name });
        Ok((!goes_on).then_some(Stop::Enough))
    }

    /// Copies the target of a symbolic link into `target`, truncated to its length. Returns the
    /// number of bytes copied.
    pub fn read_link(&self, node: Node, target: &mut [u8]) -> Result<usize> {
        let cachelet = self.cachelet(node)?;
        if self.fs.kind(cachelet)? != FileKind::Symlink {
            return Err(Error::Invalid);
        }
        let length = if cachelet.flags.load(Relaxed) & PROPERTY_INLINE == 0 {
            self.files().read(node, 0, &mut *target)?
        } else {
            let inode = self.fs.inode_at(cachelet.inode.load(Relaxed))?;
            let length = (cachelet.as_file().size_bytes().load(Relaxed) as usize)
                .min(target.len())
                .min(crate::format::INLINE_BYTES_MAX);
            self.fs.pm.read_bytes(self.fs.pm.offset_of(&inode.inline), &mut target[..length])?;
            length
        };
        if is_possible_target(&target[..length]) || target.is_empty() {
            Ok(length)
        } else {
            Err(Corruption::Inode(node.number).into())
        }
    }
}
