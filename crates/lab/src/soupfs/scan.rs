//! The scan after a crash: finds, while the file system is in use, what a crash leaked.
//!
//! A crash leaves the consistent view whole, but lines may be marked in use that nothing leads to, link counts may be too high, and a renamed directory
//! may have an entry that does not count. None of this does harm, so the mount does not wait. The scan walks the consistent view *as it was
//! at the mount*, and at its end frees what it did not meet.
//!
//! It runs beside the persisters, which change what it walks. What was there at the mount is *old*: its bit was set in the allocation table.
//!
//! - Nothing that was freed since the mount is used again before the scan ends, so it may stand on anything.
//! - Who takes an old entry out of a list shows it to the scan before ([`before_removal`](Scan::before_removal)); so does who makes
//!   another entry a directory's name ([`before_move`](Scan::before_move)). So nothing old is missed by moving it to where the scan has been already.
//! - Who changes a link count of an old inode first notes the one of the mount ([`before_count`](Scan::before_count)).
//! - What is not old was allocated since, and is of no interest.
//!
//! Counts that were too high are corrected when the front next changes, loads or forgets the file, and at unmount: only the front may change attributes.

use super::chain::{Directory, View};
use super::format::{
    InodeLines, PAGE_LINES, Tag, entry_lines, identity, identity_word, inode_lines, target, target_lines,
};
use super::inode::Inode;
use super::space::{Space, place};
use super::volume::Volume;
use crate::error::Result;
use crate::locks::lock;
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, LINE_BYTES, Memory, Pm};
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// What a scan found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScanReport {
    /// Lines that nothing led to, by page: their bits.
    pub leaked: Vec<(u64, u64)>,
    /// Inodes with more links than names, and how many more.
    pub excess_links: Vec<(u64, u32)>,
    /// Inodes with fewer links than names, which no crash leaves.
    pub missing_links: Vec<(u64, u32)>,
    /// Directories' entries that did not count.
    pub stale_entries: Vec<u64>,
}

/// The state of the scan.
#[derive(Debug, Default)]
pub struct Scan {
    /// There is one to be done, or under way.
    is_due: AtomicBool,
    /// One at a time.
    running: Mutex<()>,
    found: Mutex<Found>,
    corrections: Mutex<HashMap<u64, u32>>,
    corrections_left: AtomicUsize,
}

#[derive(Debug, Default)]
struct Found {
    /// By page: lines in use at the mount.
    old: Vec<u64>,
    /// By page: those that were met.
    seen: Vec<u64>,
    /// Inodes that were met and not walked yet.
    grey: Vec<u64>,
    /// Inodes that were met.
    inodes: Vec<u64>,
    /// Names of files, subdirectories of directories.
    names: HashMap<u64, u32>,
    /// Links at the mount, where they changed since.
    links_at_mount: HashMap<u64, u32>,
    /// Directories' names at the mount, where they changed since.
    name_at_mount: HashMap<u64, u64>,
    stale: Vec<u64>,
    /// Inodes that were freed since.
    freed: HashSet<u64>,
}

impl Found {
    fn is_old(&self, offset: u64) -> bool {
        let (page, mask) = place(offset, 1);
        self.old.get(page as usize).is_some_and(|old| old & mask != 0)
    }

    /// Notes lines as met; whether they were not before.
    fn see(&mut self, offset: u64, lines: u64) -> bool {
        let (page, mask) = place(offset, lines);
        let Some(seen) = self.seen.get_mut(page as usize) else { return false };
        let is_new = *seen & mask == 0;
        *seen |= mask;
        is_new
    }

    fn see_inode(&mut self, inode: u64, kind: FileKind) {
        if self.see(inode, inode_lines(kind)) {
            self.inodes.push(inode);
            self.grey.push(inode);
        }
    }
}

impl Scan {
    /// For a mount; nothing is to be done after an orderly unmount.
    pub fn new(space: &Space, was_clean: bool) -> Scan {
        let scan = Scan::default();
        if !was_clean {
            let old = space.snapshot();
            let seen = vec![0; old.len()];
            *lock(&scan.found) = Found { old, seen, ..Found::default() };
            space.begin_scan();
            scan.is_due.store(true, Release);
        }
        scan
    }

    /// Whether leaks may be there that nobody has looked for.
    pub fn is_due(&self) -> bool {
        self.is_due.load(Acquire)
    }

    /// Before an entry leaves the consistent view.
    pub fn before_removal<M: Memory>(
        &self,
        volume: &Volume<M>,
        directory: u64,
        entry: u64,
        inode: &Inode,
    ) -> Result<()> {
        if !self.is_due() {
            return Ok(());
        }
        self.account(volume, &mut lock(&self.found), directory, entry, inode.offset, inode.kind)
    }

    /// Before another entry becomes a directory's name.
    pub fn before_move<M: Memory>(&self, volume: &Volume<M>, inode: u64) -> Result<()> {
        if !self.is_due() {
            return Ok(());
        }
        let mut found = lock(&self.found);
        if found.is_old(inode) {
            let name = volume.inode_lines(inode)?.size_or_name.load();
            found.name_at_mount.entry(inode).or_insert(name);
            found.see_inode(inode, FileKind::Directory);
        }
        Ok(())
    }

    /// Before a link count changes.
    pub fn before_count<M: Memory>(&self, volume: &Volume<M>, inode: u64) -> Result<()> {
        if !self.is_due() {
            return Ok(());
        }
        let mut found = lock(&self.found);
        if found.is_old(inode) {
            let links = volume.inode_lines(inode)?.identity.load() as u32;
            found.links_at_mount.entry(inode).or_insert(links);
        }
        Ok(())
    }

    /// An inode is freed: what its number means from now on is another.
    pub fn forget(&self, inode: u64) {
        if self.is_due() {
            lock(&self.found).freed.insert(inode);
        }
        self.take_correction(inode);
    }

    /// Whether any file's link count is to be corrected.
    pub fn has_corrections(&self) -> bool {
        self.corrections_left.load(Acquire) > 0
    }

    /// By how much a file's link count is too high, told once.
    pub fn take_correction(&self, inode: u64) -> Option<u32> {
        if !self.has_corrections() {
            return None;
        }
        let excess = lock(&self.corrections).remove(&inode)?;
        self.corrections_left.fetch_sub(1, Relaxed);
        Some(excess)
    }

    /// Counts an old entry, once.
    fn account<M: Memory>(
        &self,
        volume: &Volume<M>,
        found: &mut Found,
        directory: u64,
        entry: u64,
        inode: u64,
        kind: FileKind,
    ) -> Result<()> {
        let lines = entry_lines(volume.tag(entry)?.length as usize);
        if !found.is_old(entry) || !found.see(entry, lines) {
            return Ok(());
        }
        let counted = if kind == FileKind::Directory {
            let name = match found.name_at_mount.get(&inode) {
                Some(name) => *name,
                None => volume.inode_lines(inode)?.size_or_name.load_acquire(),
            };
            if name != entry {
                found.stale.push(entry);
                return Ok(());
            }
            directory
        } else {
            inode
        };
        *found.names.entry(counted).or_default() += 1;
        found.see_inode(inode, kind);
        Ok(())
    }
}

impl<M: Memory> Volume<M> {
    /// Does the scan if there is one to be done, or waits for who does it. What it found; none if there was nothing to do, or the
    /// file system is being left.
    pub fn finish_scan(&self) -> Result<Option<ScanReport>> {
        let _running = lock(&self.scan.running);
        if !self.scan.is_due() {
            return Ok(None);
        }
        lock(&self.scan.found).see_inode(self.root, FileKind::Directory);
        loop {
            let next = lock(&self.scan.found).grey.pop();
            let Some(inode) = next else {
                // Persisters add to the grey ones under the same lock.
                let mut found = lock(&self.scan.found);
                if found.grey.is_empty() {
                    return self.conclude(&mut found).map(Some);
                }
                continue;
            };
            self.scan_inode(inode)?;
            if self.stop.load(Relaxed) {
                lock(&self.scan.found).grey.push(inode);
                return Ok(None);
            }
        }
    }

    /// Meets everything that an inode leads to.
    fn scan_inode(&self, offset: u64) -> Result<()> {
        let lines = self.inode_lines(offset)?;
        let (kind, _, _) = identity(lines.identity.load_acquire(), offset)?;
        let see = |offset: u64, lines: u64| {
            lock(&self.scan.found).see(offset, lines);
        };
        match kind {
            FileKind::Directory => {
                let directory = Directory { inode: offset };
                self.walk(directory, View::Consistent, 0, &mut |at, entry| {
                    match target(entry.inode.load(), at)? {
                        Some((inode, kind)) => {
                            self.scan.account(self, &mut lock(&self.scan.found), offset, at, inode, kind)?;
                        }
                        None => see(at, entry_lines(Tag::from_word(entry.tag.load()).length as usize)),
                    }
                    Ok(true)
                })?;
                self.visit_bucket_pages(directory, &mut |page| see(page, PAGE_LINES))
            }
            FileKind::Regular => self.visit_tree(lines.root.load_acquire(), &mut |page, _| see(page, PAGE_LINES)),
            FileKind::Symlink if lines.root.load() != 0 => {
                see(lines.root.load(), target_lines(lines.size_or_name.load() as usize));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Frees what was not met.
    fn conclude(&self, found: &mut Found) -> Result<ScanReport> {
        let mut report = ScanReport::default();
        for &inode in &found.inodes {
            if found.freed.contains(&inode) {
                continue;
            }
            let (kind, _, links_now) = identity(self.inode_lines(inode)?.identity.load(), inode)?;
            let links = found.links_at_mount.get(&inode).copied().unwrap_or(links_now);
            let own = if kind == FileKind::Directory { 2 } else { 0 };
            let names = own + found.names.get(&inode).copied().unwrap_or(0);
            match links.checked_sub(names) {
                Some(0) => {}
                Some(excess) => report.excess_links.push((inode, excess)),
                None => report.missing_links.push((inode, names - links)),
            }
        }
        for &entry in &found.stale {
            // Its inode may be freed now: nobody may look there to learn that the entry does not count.
            let entry = self.entry(entry)?;
            self.region.persist(self.region.set64(&entry.inode, 0));
        }
        report.stale_entries = std::mem::take(&mut found.stale);
        let leaked = found.old.iter().zip(&found.seen).map(|(old, seen)| old & !seen);
        // What lies before the pool is the format's own.
        let first = self.root / BLOCK_BYTES;
        report.leaked = (0..).zip(leaked).filter(|(page, bits)| *page >= first && *bits != 0).collect();
        let mut corrections = lock(&self.scan.corrections);
        corrections.extend(report.excess_links.iter().copied());
        self.scan.corrections_left.store(corrections.len(), Release);
        drop(corrections);
        *found = Found::default();
        self.scan.is_due.store(false, Release);
        self.space.end_scan(report.leaked.iter().copied());
        Ok(report)
    }

    /// Corrects what nobody used meanwhile. Only when nobody else is here.
    pub fn correct_all(&self) -> Result<()> {
        let corrections: Vec<(u64, u32)> = lock(&self.scan.corrections).drain().collect();
        self.scan.corrections_left.store(0, Release);
        for (offset, excess) in corrections {
            let lines = self.region.get(Pm::<InodeLines>::new(offset))?;
            let (kind, mode, links) = identity(lines.identity.load(), offset)?;
            let links = links.saturating_sub(excess);
            self.region.persist(self.region.set64(&lines.identity, identity_word(mode, links)));
            if links == 0 && kind != FileKind::Directory {
                let inode = self.load_from_image(offset)?;
                inode.line().names = 0;
                self.evict(inode)?;
            }
        }
        Ok(())
    }
}

const _: () = assert!(LINE_BYTES * PAGE_LINES == BLOCK_BYTES);
