//! The path cache of a thread: recent paths to directories, so that further paths through them need
//! no lookup of each component.
//!
//! Invariants
//! - An entry holds a path's directories, each with a validation stamp
//!   ([`engine::ValidationStamp`]). While all stamps match, the path leads through these
//!   directories, and a caller with the same search rights may search all but the last. Each use
//!   validates every stamp. So a rename, removal or chmod in any process needs no knowledge of path
//!   caches.
//! - An entry describes one instant for all its directories: it reads the stamps first and repeats
//!   the lookups afterwards.
//! - All zero is a valid value, without entries.
//!
//! A stamp is the version of a cachelet and its count of renames. A rename marks the directory,
//! counts the move and clears the mark; a removal marks the directory before its name goes, which
//! costs 5 ns of an rmdir. Where group membership decides about search permission, nothing is
//! cached. *Reason:* one more level of a path costs a quarter to a tenth of a lookup. *Rejected:*
//! one generation for all paths, whose line every rmdir would write.

use crate::credentials::Credentials;
use core::cell::{Cell, RefCell};
use engine::{FileFlags, Node, Protection, ValidationStamp, Visit, VisitedFile};
use pmem::Memory;

/// Entries per thread.
const ENTRIES: usize = 16;
/// Longest cached path in bytes.
const ENTRY_PATH_BYTES_MAX: usize = 192;
/// Maximal number of directories of an entry, including the start.
const STAMPS_MAX: usize = 12;

/// The part of the credentials that decides search permission, if groups do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SearchRights {
    uid: u32,
    everywhere: bool,
}

impl SearchRights {
    #[inline]
    pub(crate) fn of(credentials: &Credentials<'_>) -> SearchRights {
        SearchRights { uid: credentials.uid, everywhere: credentials.searches_everywhere() }
    }

    /// Whether a directory may be searched regardless of groups.
    fn searches(&self, directory: &Protection) -> bool {
        let Protection { mode, uid, flags, .. } = *directory;
        let by_group_and_others = || !flags.has_any(FileFlags::ACCESS_LIST) && mode & 0o011 == 0o011;
        let by_mode = if uid == self.uid { mode & 0o100 != 0 } else { by_group_and_others() };
        mode & libc::S_IFMT == libc::S_IFDIR && (self.everywhere || by_mode)
    }
}

/// One path to a directory.
struct PathCacheEntry {
    hash: u64,
    rights: SearchRights,
    path_bytes: u8,
    stamp_count: u8,
    path: [u8; ENTRY_PATH_BYTES_MAX],
    stamps: [ValidationStamp; STAMPS_MAX],
}

impl PathCacheEntry {
    const NONE: PathCacheEntry = PathCacheEntry {
        hash: 0,
        rights: SearchRights { uid: 0, everywhere: false },
        path_bytes: 0,
        stamp_count: 0,
        path: [0; ENTRY_PATH_BYTES_MAX],
        stamps: [ValidationStamp::NONE; STAMPS_MAX],
    };

    #[inline]
    fn stamps(&self) -> &[ValidationStamp] {
        self.stamps.get(..self.stamp_count as usize).unwrap_or_default()
    }

    #[inline]
    fn matches(&self, start: Node, path: &[u8], rights: SearchRights) -> bool {
        self.rights == rights
            && self.stamps[0].is_for(start)
            && self.path.get(..self.path_bytes as usize).is_some_and(|own| own == path)
    }
}

/// Walks a path, calls its argument with each directory, including the first and the last, and
/// returns the last one.
type Walk<'w, 'f> = &'w mut dyn FnMut(&mut dyn FnMut(VisitedFile<'f>)) -> Option<VisitedFile<'f>>;

/// A thread's path cache. See the head of this file.
pub struct PathCache {
    entries: [RefCell<PathCacheEntry>; ENTRIES],
    /// Hashes of paths that missed, by position: a path gets an entry only at its second miss.
    misses: [Cell<u64>; ENTRIES],
}

impl PathCache {
    /// An empty cache.
    pub const fn new() -> PathCache {
        PathCache {
            entries: [const { RefCell::new(PathCacheEntry::NONE) }; ENTRIES],
            misses: [const { Cell::new(0) }; ENTRIES],
        }
    }

    /// The directory of a path that ends with a slash, from `start`; by an entry if one is valid,
    /// otherwise by `walk`.
    #[inline]
    pub(crate) fn resolve<'f, M: Memory>(
        &self,
        visit: &Visit<'_, 'f, M>,
        start: Node,
        path: &[u8],
        rights: SearchRights,
        mut walk: impl FnMut(&mut dyn FnMut(VisitedFile<'f>)) -> Option<VisitedFile<'f>>,
    ) -> Option<VisitedFile<'f>> {
        let hash = hash_of(start, path);
        let slot = (hash >> 32) as usize % ENTRIES;
        let Ok(entry) = self.entries[slot].try_borrow() else { return walk(&mut |_| {}) };
        if entry.hash == hash
            && entry.matches(start, path, rights)
            && let Some(directory) = visit.validated_end(entry.stamps())
        {
            return Some(directory);
        }
        drop(entry);
        if self.misses[slot].replace(hash) != hash || path.len() > ENTRY_PATH_BYTES_MAX {
            return walk(&mut |_| {});
        }
        self.fill(visit, (hash, slot), path, rights, &mut walk)
    }

    /// Walks a path twice: first to read the stamps, then to verify that the path leads through
    /// these directories.
    #[cold]
    fn fill<'f, M: Memory>(
        &self,
        visit: &Visit<'_, 'f, M>,
        (hash, slot): (u64, usize),
        path: &[u8],
        rights: SearchRights,
        walk: Walk<'_, 'f>,
    ) -> Option<VisitedFile<'f>> {
        let Ok(mut entry) = self.entries[slot].try_borrow_mut() else { return walk(&mut |_| {}) };
        let entry = &mut *entry;
        // Invalid until complete.
        (entry.hash, entry.stamp_count) = (0, 0);
        let mut seen = 0;
        walk(&mut |directory| {
            if let (Some(stamp), Some(slot)) = (visit.validation_stamp(directory), entry.stamps.get_mut(seen)) {
                *slot = stamp;
                seen += 1;
            } else {
                seen = usize::MAX;
            }
        })?;
        let Some(stamps) = entry.stamps.get(..seen) else { return walk(&mut |_| {}) };
        let (mut again, mut holds) = (0, true);
        let last = walk(&mut |directory| {
            let is_last = again + 1 == seen;
            let searches = || visit.protection(directory).is_ok_and(|protection| rights.searches(&protection));
            holds &= stamps.get(again).is_some_and(|stamp| stamp.is_for(directory.node()));
            holds &= is_last || searches();
            again += 1;
        })?;
        if holds && again == seen && visit.validated_end(stamps).is_some() {
            entry.path[..path.len()].copy_from_slice(path);
            (entry.hash, entry.rights) = (hash, rights);
            (entry.path_bytes, entry.stamp_count) = (path.len() as u8, seen as u8);
        }
        Some(last)
    }
}

impl Default for PathCache {
    fn default() -> Self {
        PathCache::new()
    }
}

/// Any function that spreads paths; never zero.
#[inline]
fn hash_of(start: Node, path: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    let (words, rest) = path.as_chunks::<8>();
    let mut hash = u64::from(start.cachelet);
    for word in words {
        hash = mix(hash, u64::from_le_bytes(*word));
    }
    let mut last = [0u8; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(hash, u64::from_le_bytes(last)) | 1
}
