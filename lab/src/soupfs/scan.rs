//! The scan after a crash: finds what the crash leaked while the file system is in use.
//!
//! A crash leaves the consistent view intact. But unreachable lines may be marked in use, link
//! counts may be too high, and a renamed directory may have a stale entry. None of this is harmful,
//! so the mount does not wait. The scan walks the consistent view *as of the mount* and at its end
//! frees what it did not reach.
//!
//! The scan runs concurrently with persisters, which change what it walks. A line is *old* if its
//! bit was set in the allocation table at the mount. Rules:
//!
//! - Lines freed since the mount are not reused before the scan ends, so the scan can always read
//!   its current position.
//! - Before a persister removes an old entry from a list, it passes the entry to the scan
//!   ([`before_removal`](Scan::before_removal)). The same holds before another entry becomes a
//!   directory's name ([`before_move`](Scan::before_move)). So moving an old entry to an already
//!   scanned position does not hide it.
//! - Before a persister changes the link count of an old inode, it records the count of the mount
//!   ([`before_count`](Scan::before_count)).
//! - Lines that are not old were allocated since and do not matter.
//!
//! Link counts that are too high are corrected when the VFS layer next changes, loads or releases
//! the file, and at unmount: only the VFS layer may change attributes.

use super::format::{
    InodeLines, PAGE_LINES, Tag, entry_lines, identity, identity_word, inode_lines, target, target_lines,
};
use super::inode::Inode;
use super::list::{Directory, View};
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

/// The findings of a scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScanReport {
    /// Unreachable lines that were marked in use: page and bits.
    pub leaked: Vec<(u64, u64)>,
    /// Inodes with more links than names, and the excess.
    pub excess_links: Vec<(u64, u32)>,
    /// Inodes with fewer links than names. No crash leaves these.
    pub missing_links: Vec<(u64, u32)>,
    /// Stale entries of directories.
    pub stale_entries: Vec<u64>,
}

/// The state of the scan.
#[derive(Debug, Default)]
pub struct Scan {
    /// Whether a scan is needed or running.
    is_due: AtomicBool,
    /// Held by the running scan.
    running: Mutex<()>,
    found: Mutex<ScanState>,
    corrections: Mutex<HashMap<u64, u32>>,
    corrections_left: AtomicUsize,
}

#[derive(Debug, Default)]
struct ScanState {
    /// Lines in use at the mount, by page.
    old: Vec<u64>,
    /// Lines reached, by page.
    seen: Vec<u64>,
    /// Inodes reached but not yet walked.
    grey: Vec<u64>,
    /// Inodes reached.
    inodes: Vec<u64>,
    /// Number of names of a file, or of subdirectories of a directory.
    names: HashMap<u64, u32>,
    /// Link counts at the mount, where they changed since.
    links_at_mount: HashMap<u64, u32>,
    /// Directories' names at the mount, where they changed since.
    name_at_mount: HashMap<u64, u64>,
    stale: Vec<u64>,
    /// Inodes freed since the mount.
    freed: HashSet<u64>,
}

impl ScanState {
    fn is_old(&self, offset: u64) -> bool {
        let (page, mask) = place(offset, 1);
        self.old.get(page as usize).is_some_and(|old| old & mask != 0)
    }

    /// Records lines as reached. Returns whether they are new.
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
    /// Starts the scan state for a mount. A clean unmount leaves nothing to scan.
    pub fn new(space: &Space, was_clean: bool) -> Scan {
        let scan = Scan::default();
        if !was_clean {
            let old = space.snapshot();
            let seen = vec![0; old.len()];
            *lock(&scan.found) = ScanState { old, seen, ..ScanState::default() };
            space.begin_scan();
            scan.is_due.store(true, Release);
        }
        scan
    }

    /// Whether leaks may exist that no scan has looked for.
    pub fn is_due(&self) -> bool {
        self.is_due.load(Acquire)
    }

    /// Called before an entry leaves the consistent view.
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

    /// Called before another entry becomes a directory's name.
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

    /// Called before a link count changes.
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

    /// Called when an inode is freed: its number may be reused from here on.
    pub fn forget(&self, inode: u64) {
        if self.is_due() {
            lock(&self.found).freed.insert(inode);
        }
        self.take_correction(inode);
    }

    /// Whether any file's link count needs a correction.
    pub fn has_corrections(&self) -> bool {
        self.corrections_left.load(Acquire) > 0
    }

    /// Takes the excess of a file's link count.
    pub fn take_correction(&self, inode: u64) -> Option<u32> {
        if !self.has_corrections() {
            return None;
        }
        let excess = lock(&self.corrections).remove(&inode)?;
        self.corrections_left.fetch_sub(1, Relaxed);
        Some(excess)
    }

    /// Counts an old entry once.
    fn account<M: Memory>(
        &self,
        volume: &Volume<M>,
        found: &mut ScanState,
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
    /// Runs the scan if one is due, or waits for the running scan. Returns the findings; none if
    /// nothing was due or the file system is being unmounted.
    pub fn finish_scan(&self) -> Result<Option<ScanReport>> {
        let _running = lock(&self.scan.running);
        if !self.scan.is_due() {
            return Ok(None);
        }
        lock(&self.scan.found).see_inode(self.root, FileKind::Directory);
        loop {
            let next = lock(&self.scan.found).grey.pop();
            let Some(inode) = next else {
                // Persisters add inodes to `grey` under the same lock.
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

    /// Marks everything that an inode refers to as reached.
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

    /// Frees what was not reached.
    fn conclude(&self, found: &mut ScanState) -> Result<ScanReport> {
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
            // The entry's inode may be freed now, so lookups could not use it to recognise the
            // entry as stale.
            let entry = self.entry(entry)?;
            self.region.persist(self.region.set64(&entry.inode, 0));
        }
        report.stale_entries = std::mem::take(&mut found.stale);
        let leaked = found.old.iter().zip(&found.seen).map(|(old, seen)| old & !seen);
        // Pages before the pool belong to the format.
        let first = self.root / BLOCK_BYTES;
        report.leaked = (0..).zip(leaked).filter(|(page, bits)| *page >= first && *bits != 0).collect();
        let mut corrections = lock(&self.scan.corrections);
        corrections.extend(report.excess_links.iter().copied());
        self.scan.corrections_left.store(corrections.len(), Release);
        drop(corrections);
        *found = ScanState::default();
        self.scan.is_due.store(false, Release);
        self.space.end_scan(report.leaked.iter().copied());
        Ok(report)
    }

    /// Corrects the link counts of files that were not used since the scan. Requires exclusive use
    /// of the volume.
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
