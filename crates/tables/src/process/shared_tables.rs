//! Layout of the process layer's tables in the DRAM region, and of their entries.
//!
//! Invariants
//! - Zero is the initial state of everything. A freed entry returns to it, except for hints.
//! - Every entry that can be allocated has a `claimed` word: zero when free, otherwise the ticket
//!   of the process that claimed it by compare-and-swap. The process writes the entry's index into
//!   its intent first, so recovery finds entries that were claimed and not yet used.
//! - A ticket is the index of a process slot plus one.

use crate::errno::{Errno, Result};
use crate::open_file::OpenFile;
use crate::watch::WATCHES_AT;
use core::mem::offset_of;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use engine::Fs;
use engine::dram::{SlotMap, UPPER_FILE_BYTES, UPPER_START_BYTES};
use pmem::{Layout, Memory, Pm};

/// Maximal number of processes.
pub(super) const SLOTS: u32 = 1 << 16;
/// Descriptors in the slot itself.
pub(super) const INLINE_DESCRIPTORS: u32 = 512;
/// Descriptors per page for the others.
pub(super) const PAGE_DESCRIPTORS: u32 = 1024;
/// Pages of descriptors, for all processes.
const PAGES: u32 = 16384;
/// Open file descriptions, for all processes.
pub(super) const FILES: u32 = 1 << 20;
/// Locked ranges, for all files.
pub(super) const LOCKS: u32 = 1 << 18;
/// Mappings, for all processes.
pub(super) const MAPPINGS: u32 = 1 << 18;
/// Descriptors in transit.
pub(super) const TOKENS: u32 = super::FD_TOKENS_MAX;
/// Threads of a process that can have slots.
pub(super) const MEMBERS: usize = 32;
/// In-flight references that a table can hold at a time.
pub(super) const IN_FLIGHT_REFERENCES: usize = 128;
/// In-flight references per cache line. Threads start their search for a free one in different
/// lines.
pub(super) const REFERENCES_PER_LINE: usize = 8;
/// The line in which a thread starts its search.
#[inline]
pub(super) fn in_flight_line(thread: u32) -> u32 {
    thread % (IN_FLIGHT_REFERENCES / REFERENCES_PER_LINE) as u32
}
const _: () = assert!(
    IN_FLIGHT_REFERENCES.is_multiple_of(REFERENCES_PER_LINE)
        && IN_FLIGHT_REFERENCES / REFERENCES_PER_LINE <= u32::BITS as usize
);
/// Pages per directory.
const DIRECTORY_PAGES: usize = 1024;
const _: () = assert!(DIRECTORY_PAGES as u32 * PAGE_DESCRIPTORS == super::DESCRIPTORS_MAX);

/// State of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum SlotState {
    /// Free, or claimed and not used yet.
    Free = 0,
    /// Made by the parent (which still owns it) for a child that has not adopted it yet.
    Prepared = 2,
    /// In use.
    Live = 3,
    /// Its process is dead, and a reaper reclaims the slot.
    Dying = 4,
    /// Its process is dead and reaped, except for the descriptor table, which others use.
    Table = 5,
    /// Slot of a thread of the process whose table it uses. It has only an intent, cursors and a
    /// ticket.
    Member = 6,
}

/// The transaction in flight: see `table_transaction`.
#[repr(C)]
pub(super) struct Intent {
    /// The step: a `table_transaction::TransactionStep`.
    pub step: AtomicU32,
    /// Whether `before` holds the previous count.
    pub counting: AtomicU32,
    /// The count before its change.
    pub before: AtomicU64,
    /// The slot being changed: kind (high half) and index (low half).
    pub place: AtomicU64,
    /// The new entry (low half) and the old one (high half).
    pub entry: AtomicU64,
    /// The description whose user count changes, plus one.
    pub file: AtomicU32,
    /// Cachelet whose record changes.
    pub record: AtomicU32,
    /// Amount by which the record's counts change.
    pub change: AtomicU64,
    /// Entries claimed or about to be, plus one: mapping nodes, lock nodes, or a page.
    pub claims: [AtomicU32; 2],
    /// The table of the claims.
    pub claimed_table: AtomicU32,
    /// An entry that is being unlinked from a list, plus one.
    pub unlinked: AtomicU32,
}
const _: () = assert!(size_of::<Intent>() == 64);
// SAFETY: repr(C), atomics only, no padding: the sizes of the fields add up to the asserted size.
unsafe impl Layout for Intent {}

/// A process.
#[repr(C, align(4096))]
pub(super) struct Slot {
    /// [`SlotState`].
    pub state: AtomicU32,
    /// Slot whose descriptor table it uses, plus one: its own, except with CLONE_FILES.
    pub table: AtomicU32,
    /// The process id in its own namespace: for messages and F_GETLK.
    pub process_id: AtomicU32,
    /// 1: other processes may share the process number (`engine::Liveness`).
    pub shares_number: AtomicU32,
    /// The process number (low half) and the ticket of the reaper (high half). Zero: free. Both are
    /// claimed by compare-and-swap and freed by one store, so a late reaper cannot mistake a reused
    /// slot for the old one.
    pub owner: AtomicU64,
    /// 1: it has reaped other slots, some of which may name it still.
    pub has_reaped: AtomicU32,
    /// The umask.
    pub umask: AtomicU32,
    /// 1: several threads may make calls at a time.
    pub threads: AtomicU32,
    /// First mapping, plus one.
    pub mappings: AtomicU32,
    /// Working directory: cachelet; zero: outside the mount.
    pub directory: AtomicU32,
    /// Prepared: ticket of the parent.
    pub parent: AtomicU32,
    /// A range that the process waits to lock: cachelet of the file, zero for none (low half), and
    /// number of the wait (high half, from [`Header::waits`]). Two further words hold the first
    /// byte, and the last byte with the exclusive flag (highest bit).
    pub waits_in: AtomicU64,
    /// See above.
    pub waits_start: AtomicU64,

    /// Ticket of the transaction that changes the slot or its table.
    pub lock: AtomicU32,
    /// 1: threads sleep on `lock`.
    pub waiters: AtomicU32,
    /// All descriptors are below this one.
    pub descriptors_end: AtomicU32,
    /// Start of the next search for a free entry, plus one, by [`TableKind`]: hints.
    pub cursors: [AtomicU32; 5],
    /// 1: other processes use the table, or did; then threads exclude each other as well.
    pub shared: AtomicU32,
    /// One bit per line of `in_flight` that was ever used, so that searches can skip the others.
    /// Set before the reference is written, never cleared.
    pub in_flight_lines: AtomicU32,
    /// Zero.
    pub reserved1: [AtomicU32; 6],

    /// The transaction in flight, under `lock`.
    pub intent: Intent,
    /// In-flight references: see `descriptors`.
    pub in_flight: [AtomicU64; IN_FLIGHT_REFERENCES],
    /// See `waits_in`.
    pub waits_last: AtomicU64,
    /// 1: it has set locks of foreign owners.
    pub foreign: AtomicU64,
    /// The program that the process runs: inode number and generation; zero: outside the mount.
    pub program: [AtomicU64; 2],
    /// Slots of its threads, plus one. A thread is removed after its intent is empty, and before
    /// its slot is free.
    pub members: [AtomicU32; MEMBERS],
    /// Zero.
    pub reserved2: [AtomicU64; 97 - MEMBERS / 2],
    /// The first descriptors: see `descriptors`.
    pub descriptors: [AtomicU32; INLINE_DESCRIPTORS as usize],
}
const _: () = assert!(size_of::<Slot>() == 4096);
// SAFETY: as above.
unsafe impl Layout for Slot {}

impl Slot {
    /// The process number; zero: the slot is free.
    pub fn number(&self) -> u32 {
        self.owner.load(Acquire) as u32
    }

    /// The word of an inline descriptor. Adjacent numbers are in different cache lines, because
    /// concurrent threads tend to use adjacent numbers.
    #[inline]
    pub fn inline_descriptor(&self, fd: u32) -> Option<&AtomicU32> {
        const ACROSS: u32 = INLINE_DESCRIPTORS / 16;
        let slot_at = fd % ACROSS * 16 + fd / ACROSS;
        self.descriptors.get(slot_at as usize).filter(|_| fd < INLINE_DESCRIPTORS)
    }

    /// Ticket of the reaper; zero: none.
    pub fn reaper(&self) -> u32 {
        (self.owner.load(Acquire) >> 32) as u32
    }

    /// Makes `reaper` the reaper in place of `before`, unless the process changed; returns whether
    /// it did.
    pub fn claim_reaping(&self, number: u32, before: u32, reaper: u32) -> bool {
        let word = |reaper: u32| number as u64 | (reaper as u64) << 32;
        self.owner.compare_exchange(word(before), word(reaper), AcqRel, Acquire).is_ok()
    }

    /// Replaces the process number, unless the slot is being reaped; returns whether it did.
    pub fn change_number(&self, from: u32, to: u32) -> bool {
        self.owner.compare_exchange(from as u64, to as u64, AcqRel, Acquire).is_ok()
    }

    /// Ends reaping.
    pub fn end_reaping(&self) {
        self.owner.fetch_and(u32::MAX as u64, AcqRel);
    }
}

/// Links to the pages of the descriptors that are not inline.
#[repr(C, align(4096))]
pub(super) struct Directory {
    /// Page plus one.
    pub pages: [AtomicU32; DIRECTORY_PAGES],
}
// SAFETY: as above.
unsafe impl Layout for Directory {}

/// A page of descriptors.
#[repr(C, align(4096))]
pub(super) struct Page {
    pub descriptors: [AtomicU32; PAGE_DESCRIPTORS as usize],
}
// SAFETY: as above.
unsafe impl Layout for Page {}

/// Data about a file beyond its cachelet, indexed by cachelet.
#[repr(C, align(32))]
pub(super) struct Record {
    /// Ticket of the transaction that changes the record.
    pub lock: AtomicU32,
    /// Counts changes of locks; waiters sleep on it.
    pub version: AtomicU32,
    /// References to the file: all of them (low half: descriptions, working directories, mappings),
    /// and mappings (high half).
    pub counts: AtomicU64,
    /// First range locked by a process or a description (fcntl), plus one.
    pub ranges: AtomicU32,
    /// First flock, plus one.
    pub flocks: AtomicU32,
    /// Nonzero if threads may sleep on `version`.
    pub waiters: AtomicU32,
    /// 1: opens and truncations look for leases: see `leases`.
    pub leases: AtomicU32,
}
const _: () = assert!(size_of::<Record>() as u64 == UPPER_FILE_BYTES);
// SAFETY: as above.
unsafe impl Layout for Record {}

/// A locked range, or a flock.
#[repr(C, align(64))]
pub(super) struct LockNode {
    pub claimed: AtomicU32,
    /// Next of the file, plus one.
    pub next: AtomicU32,
    /// Encoded owner: see `locks`.
    pub owner: AtomicU64,
    pub start: AtomicU64,
    pub last: AtomicU64,
    /// 1: exclusive.
    pub exclusive: AtomicU32,
    /// As F_GETLK reports it.
    pub pid: AtomicI32,
    /// Cachelet of the file.
    pub record: AtomicU32,
    pub reserved0: AtomicU32,
    pub reserved: [AtomicU64; 2],
}
const _: () = assert!(size_of::<LockNode>() == 64);
// SAFETY: as above.
unsafe impl Layout for LockNode {}

/// A mapping.
#[repr(C, align(64))]
pub(super) struct MappingNode {
    pub claimed: AtomicU32,
    /// Next of the process, plus one.
    pub next: AtomicU32,
    pub address: AtomicU64,
    pub length: AtomicU64,
    pub offset: AtomicU64,
    pub number: AtomicU64,
    pub cachelet: AtomicU32,
    /// 1: shared, 2: writable, 4: stores, 8: inherited; from 16 on: protection.
    pub flags: AtomicU32,
    pub reserved: [AtomicU64; 2],
}
const _: () = assert!(size_of::<MappingNode>() == 64);
// SAFETY: as above.
unsafe impl Layout for MappingNode {}

/// A descriptor in transit.
#[repr(C, align(32))]
pub(super) struct FdTokenEntry {
    pub claimed: AtomicU32,
    /// Description plus one.
    pub file: AtomicU32,
    pub secret: AtomicU64,
    pub reserved: [AtomicU64; 2],
}
const _: () = assert!(size_of::<FdTokenEntry>() == 32);
// SAFETY: as above.
unsafe impl Layout for FdTokenEntry {}

/// Global state.
#[repr(C, align(4096))]
pub(super) struct Header {
    /// Number of slots ever used.
    pub slots_high: AtomicU32,
    /// Slot at which the next check for dead processes begins.
    pub reap_cursor: AtomicU32,
    /// Ticket of the transaction that changes the tokens.
    pub tokens_lock: AtomicU32,
    /// By [`TableKind`]: all entries ever claimed are below this index.
    pub ends: [AtomicU32; 5],
    /// Number of waits for ranges so far.
    pub waits: AtomicU32,
    pub reserved0: AtomicU32,
    pub reserved: [AtomicU64; 507],
}
const _: () = assert!(size_of::<Header>() == 4096);
// SAFETY: as above.
unsafe impl Layout for Header {}

// SAFETY: repr(C), 64 bytes of atomics without padding, asserted at the declaration; every bit
// pattern is valid.
unsafe impl Layout for OpenFile {}

/// The tables whose lengths do not depend on the image, at the start of the area.
#[repr(C)]
struct FixedTables {
    header: Header,
    slot_map: [AtomicU64; SLOTS as usize / 64],
    slots: [Slot; SLOTS as usize],
    directories: [Directory; SLOTS as usize],
    pages: [Page; PAGES as usize],
    page_claims: [AtomicU32; PAGES as usize],
    files: [OpenFile; FILES as usize],
    locks: [LockNode; LOCKS as usize],
    mappings: [MappingNode; MAPPINGS as usize],
    tokens: [FdTokenEntry; TOKENS as usize],
}
const _: () = assert!(size_of::<FixedTables>() as u64 <= WATCHES_AT);
// Whatever provides the start of the area provides these.
const _: () = assert!(core::mem::offset_of!(FixedTables, slots) <= UPPER_START_BYTES as usize);
const _: () = assert!(
    size_of::<FixedTables>()
        == size_of::<Header>()
            + SLOTS as usize / 8
            + SLOTS as usize * (size_of::<Slot>() + size_of::<Directory>())
            + PAGES as usize * (size_of::<Page>() + size_of::<AtomicU32>())
            + FILES as usize * size_of::<OpenFile>()
            + LOCKS as usize * size_of::<LockNode>()
            + MAPPINGS as usize * size_of::<MappingNode>()
            + TOKENS as usize * size_of::<FdTokenEntry>()
);
// SAFETY: repr(C), arrays of `Layout` types without padding: their sizes add up to the total, as
// asserted.
unsafe impl Layout for FixedTables {}

/// The tables of a DRAM region.
#[derive(Clone, Copy)]
pub(super) struct SharedTables<'f> {
    fixed: &'f FixedTables,
    /// Records, those of the last cachelet first: see [`engine::dram::DramLayout::upper_file`].
    records: &'f [Record],
}

/// Tables with claimable entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum TableKind {
    File = 0,
    Page = 1,
    Lock = 2,
    Mapping = 3,
    FdToken = 4,
}

impl TableKind {
    pub fn from_number(number: u32) -> Option<TableKind> {
        [TableKind::File, TableKind::Page, TableKind::Lock, TableKind::Mapping, TableKind::FdToken]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }

    pub fn count(self) -> u32 {
        match self {
            TableKind::File => FILES,
            TableKind::Page => PAGES,
            TableKind::Lock => LOCKS,
            TableKind::Mapping => MAPPINGS,
            TableKind::FdToken => TOKENS,
        }
    }
}

#[inline(always)]
fn entry<T>(table: &[T], index: u32) -> Result<&T> {
    table.get(index as usize).ok_or(Errno::EIO)
}

/// Prefetches the record of a file that is about to be referenced.
#[inline]
pub fn prefetch_record<M: Memory>(fs: &Fs<M>, cachelet: u32) {
    let dram = fs.dram();
    dram.region().prefetch_for_write(dram.layout.upper_file(cachelet.into()));
}

impl<'f> SharedTables<'f> {
    pub fn new<M: Memory>(fs: &'f Fs<M>) -> Result<SharedTables<'f>> {
        let (region, layout) = (fs.dram().region(), &fs.dram().layout);
        let tables = region.get(Pm::new(layout.upper)).map_err(|_| Errno::EIO)?;
        let start = Pm::new(layout.upper_file(layout.cachelets_max - 1));
        let records = region.slice(start, layout.cachelets_max).map_err(|_| Errno::EIO)?;
        Ok(SharedTables { fixed: tables, records })
    }

    pub fn header(&self) -> &'f Header {
        &self.fixed.header
    }

    /// The map of process slots.
    pub fn slot_map(&self) -> SlotMap<'f> {
        SlotMap::new(&self.fixed.slot_map)
    }

    /// The slots in use.
    pub fn taken_slots(&self) -> impl Iterator<Item = u32> + use<'f> {
        self.slot_map().taken(self.header().slots_high.load(Acquire).into())
    }

    #[inline]
    pub fn slot(&self, index: u32) -> Result<&'f Slot> {
        entry(&self.fixed.slots, index)
    }

    #[inline]
    pub fn file(&self, index: u32) -> Result<&'f OpenFile> {
        entry(&self.fixed.files, index)
    }

    #[inline]
    pub fn record(&self, cachelet: u32) -> Result<&'f Record> {
        let from_end = self.records.len().checked_sub(cachelet as usize + 1).ok_or(Errno::EIO)?;
        self.records.get(from_end).ok_or(Errno::EIO)
    }

    pub fn lock(&self, index: u32) -> Result<&'f LockNode> {
        entry(&self.fixed.locks, index)
    }

    pub fn mapping(&self, index: u32) -> Result<&'f MappingNode> {
        entry(&self.fixed.mappings, index)
    }

    pub fn token(&self, index: u32) -> Result<&'f FdTokenEntry> {
        entry(&self.fixed.tokens, index)
    }

    pub fn page(&self, index: u32) -> Result<&'f Page> {
        entry(&self.fixed.pages, index)
    }

    /// The word in the directory of a slot that links to the page of descriptor `fd`.
    pub fn page_link(&self, slot: u32, fd: u32) -> Result<&'f AtomicU32> {
        let directory = entry(&self.fixed.directories, slot)?;
        directory.pages.get((fd / PAGE_DESCRIPTORS) as usize).ok_or(Errno::EBADF)
    }

    /// Offset in the area, and bytes, of an entry.
    #[inline(always)]
    pub fn entry_part(kind: TableKind, index: u32) -> (u64, u64) {
        let (table, bytes) = match kind {
            TableKind::File => (offset_of!(FixedTables, files), size_of::<OpenFile>()),
            TableKind::Page => (offset_of!(FixedTables, pages), size_of::<Page>()),
            TableKind::Lock => (offset_of!(FixedTables, locks), size_of::<LockNode>()),
            TableKind::Mapping => (offset_of!(FixedTables, mappings), size_of::<MappingNode>()),
            TableKind::FdToken => (offset_of!(FixedTables, tokens), size_of::<FdTokenEntry>()),
        };
        (table as u64 + index as u64 * bytes as u64, bytes as u64)
    }

    /// The part with the word that claims a page, which is provided before the page.
    pub fn page_claim_part(index: u32) -> (u64, u64) {
        let bytes = size_of::<AtomicU32>() as u64;
        (offset_of!(FixedTables, page_claims) as u64 + index as u64 * bytes, bytes)
    }

    /// Offset in the area, and bytes, of a slot.
    pub fn slot_part(index: u32) -> (u64, u64) {
        let bytes = size_of::<Slot>() as u64;
        (offset_of!(FixedTables, slots) as u64 + index as u64 * bytes, bytes)
    }

    /// The part with a slot's directory.
    pub fn directory_part(slot: u32) -> (u64, u64) {
        let bytes = size_of::<Directory>() as u64;
        (offset_of!(FixedTables, directories) as u64 + slot as u64 * bytes, bytes)
    }

    /// The word by which an entry is claimed.
    pub fn claim_word(&self, kind: TableKind, index: u32) -> Result<&'f AtomicU32> {
        Ok(match kind {
            TableKind::File => &self.file(index)?.claimed,
            TableKind::Page => entry(&self.fixed.page_claims, index)?,
            TableKind::Lock => &self.lock(index)?.claimed,
            TableKind::Mapping => &self.mapping(index)?.claimed,
            TableKind::FdToken => &self.token(index)?.claimed,
        })
    }

    /// Claims a free entry for `ticket`.
    pub fn try_claim(&self, kind: TableKind, index: u32, ticket: u32) -> Result<bool> {
        let word = self.claim_word(kind, index)?;
        let end = &self.header().ends[kind as usize];
        if end.load(Relaxed) <= index {
            end.fetch_max(index + 1, AcqRel);
        }
        Ok(word.load(Relaxed) == 0 && word.compare_exchange(0, ticket, AcqRel, Relaxed).is_ok())
    }

    /// Calls `each` with the indexes of all claimed entries.
    pub fn each_claimed<M: Memory>(
        &self,
        fs: &Fs<M>,
        kind: TableKind,
        each: &mut dyn FnMut(u32) -> Result<()>,
    ) -> Result<()> {
        for index in 0..self.header().ends[kind as usize].load(Acquire).min(kind.count()) {
            if !fs.dram().is_upper_provided(Self::entry_part(kind, index).0) {
                continue;
            }
            if self.claim_word(kind, index)?.load(Acquire) != 0 {
                each(index)?;
            }
        }
        Ok(())
    }
}
