//! Advisory locks: flock, and byte ranges locked by processes and by open file descriptions
//! (fcntl). Semantics are those of Linux, including the order in which F_GETLK finds locks.
//!
//! A file's record links to two lists: ranges and flocks. Ranges of one owner are contiguous in the
//! list, and sorted. They do not overlap, and adjacent ranges of one kind are merged. Owners are
//! ordered by the insertion of their first range.
//!
//! Invariants
//! - A list changes under the record's lock, one store at a time. A death within a call leaves the
//!   owner at least the locks held both before and after it, and at most the union of the two.
//! - A process has range locks only on files that its table has a descriptor of: any close of the
//!   file releases them. So emptying a table finds all of them.
//!
//! The kernel's locks cannot serve: all placeholders are of one file. A waiter sleeps on a word of
//! the file. A ring of waiting processes is found by following what each waits for, twice; the
//! process that began to wait last gets EDEADLK. An owner need not be a process, so mounts take
//! part.

use super::shared_tables::{LOCKS, LockNode, Record, SharedTables, Slot, TableKind};
use super::table_transaction::{TableSlot, TableTransaction, TransactionStep};
use super::{Blocked, Conflict, LockKind, LockOwner, LockRange, Locked, Process, Processes};
use crate::errno::{Errno, Result};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use engine::{Node, Thread};
use pmem::Memory;

/// Longest single wait for a lock, and so the delay until the death of an owner is noticed.
const WAIT_MS: u32 = 100;
/// Waiters that deadlock detection follows at most.
const CYCLE_MAX: usize = 64;
/// Bit of `waits_last`: the wait is for an exclusive lock.
pub(super) const EXCLUSIVE: u64 = 1 << 63;
/// The last byte of a lock that extends to the end of the file, however far that moves.
const END: u64 = i64::MAX as u64;

impl LockOwner {
    fn word(self) -> u64 {
        match self {
            LockOwner::Process(table) => 1 << 56 | table as u64,
            LockOwner::Description(file) => 2 << 56 | file as u64,
            LockOwner::Foreign { mount, number } => 3 << 56 | (mount as u64) << 32 | number as u64,
        }
    }

    fn from_word(word: u64) -> LockOwner {
        match word >> 56 {
            1 => LockOwner::Process(word as u32),
            2 => LockOwner::Description(word as u32),
            _ => LockOwner::Foreign { mount: (word >> 32) as u32 & 0xff_ffff, number: word as u32 },
        }
    }
}

impl LockRange {
    /// A whole file.
    pub const ALL: LockRange = LockRange { start: 0, last: END };

    /// The bytes of a `struct flock`, with `l_whence` resolved to `base` (0, position or length).
    /// EINVAL: before the start; EOVERFLOW: beyond the largest offset. A length of zero extends to
    /// the end; a negative one covers the bytes before.
    pub fn new(base: u64, start: i64, length: i64) -> Result<LockRange> {
        let base = i64::try_from(base).map_err(|_| Errno::EOVERFLOW)?;
        let start = base.checked_add(start).ok_or(Errno::EOVERFLOW)?;
        if start < 0 {
            return Err(Errno::EINVAL);
        }
        let (first, last) = match length {
            0 => (start, i64::MAX),
            1.. => (start, start.checked_add(length - 1).ok_or(Errno::EOVERFLOW)?),
            _ => (start.checked_add(length).filter(|first| *first >= 0).ok_or(Errno::EINVAL)?, start - 1),
        };
        Ok(LockRange { start: first as u64, last: last as u64 })
    }

    fn overlaps(&self, other: &LockRange) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    /// Whether they overlap or are adjacent.
    fn touches(&self, other: &LockRange) -> bool {
        self.start <= other.last.saturating_add(1) && other.start <= self.last.saturating_add(1)
    }

    fn contains(&self, other: &LockRange) -> bool {
        self.start <= other.start && other.last <= self.last
    }
}

/// A requested or held lock.
#[derive(Debug, Clone, Copy)]
pub(super) struct LockRequest {
    pub owner: LockOwner,
    pub range: LockRange,
    pub kind: LockKind,
    pub pid: i32,
}

impl LockRequest {
    pub fn read(node: &LockNode) -> LockRequest {
        let kind = if node.exclusive.load(Relaxed) != 0 { LockKind::Exclusive } else { LockKind::Shared };
        LockRequest {
            owner: LockOwner::from_word(node.owner.load(Relaxed)),
            range: LockRange { start: node.start.load(Relaxed), last: node.last.load(Relaxed) },
            kind,
            pid: node.pid.load(Relaxed),
        }
    }

    fn conflicts(&self, other: &LockRequest) -> bool {
        self.owner != other.owner
            && (self.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive)
            && self.range.overlaps(&other.range)
    }
}

impl From<LockRequest> for Conflict {
    fn from(held: LockRequest) -> Conflict {
        Conflict { kind: held.kind, range: held.range, owner: held.owner, pid: held.pid }
    }
}

/// A node of a list, and the word that links to it.
struct Linked<'f> {
    index: u32,
    link: &'f AtomicU32,
    node: &'f LockNode,
}

/// Iterates over the nodes of a list from `head`, under the record's lock.
struct Walk<'a, 'f> {
    tables: &'a SharedTables<'f>,
    link: &'f AtomicU32,
    left: u32,
}

fn walk<'a, 'f>(tables: &'a SharedTables<'f>, head: &'f AtomicU32) -> Walk<'a, 'f> {
    Walk { tables, link: head, left: LOCKS }
}

impl<'f> Iterator for Walk<'_, 'f> {
    type Item = Linked<'f>;

    fn next(&mut self) -> Option<Linked<'f>> {
        // A list is no longer than the number of nodes; a longer one is circular.
        self.left = self.left.checked_sub(1)?;
        let index = self.link.load(Acquire).checked_sub(1)?;
        let node = self.tables.lock(index).ok()?;
        let link = core::mem::replace(&mut self.link, &node.next);
        Some(Linked { index, link, node })
    }
}

/// Whether a list contains a node. Runs under the record's lock, except for observers.
pub(super) fn is_linked<'f>(tables: &SharedTables<'f>, head: &'f AtomicU32, node: u32) -> Result<bool> {
    Ok(walk(tables, head).any(|linked| linked.index == node))
}

/// Makes waiters for locks of a file retry.
pub(super) fn wake_waiters<M: Memory>(all: &Processes<'_, M>, record: &Record) {
    record.version.fetch_add(1, AcqRel);
    if record.waiters.swap(0, AcqRel) != 0 {
        all.platform().wake(&record.version);
    }
}

/// Releases the locks of a description on its file, because the description ends.
#[inline(always)]
pub(super) fn release_description<M: Memory>(
    transaction: &TableTransaction<'_, '_, M>,
    cachelet: u32,
    file: u32,
) -> Result<()> {
    release(transaction, cachelet, &|owner| owner == LockOwner::Description(file))
}

/// Releases the ranges that a process has locked in a file.
pub(super) fn release_process<M: Memory>(
    transaction: &TableTransaction<'_, '_, M>,
    cachelet: u32,
    table: u32,
) -> Result<()> {
    if transaction.tables().record(cachelet)?.ranges.load(Acquire) == 0 {
        return Ok(());
    }
    transaction.prepare(TableSlot::Nowhere, 0)?;
    transaction.intent().record.store(cachelet, Release);
    transaction.step(TransactionStep::Locks);
    let released = release(transaction, cachelet, &|owner| owner == LockOwner::Process(table));
    transaction.step(TransactionStep::None);
    released
}

/// Releases the locks of owners for which `gone` returns true.
#[inline(always)]
fn release<M: Memory>(
    transaction: &TableTransaction<'_, '_, M>,
    cachelet: u32,
    gone: &dyn Fn(LockOwner) -> bool,
) -> Result<()> {
    let record = transaction.tables().record(cachelet)?;
    let is_locked = record.ranges.load(Acquire) != 0 || record.flocks.load(Acquire) != 0;
    if is_locked { release_some(transaction, cachelet, record, gone) } else { Ok(()) }
}

#[cold]
#[inline(never)]
fn release_some<M: Memory>(
    transaction: &TableTransaction<'_, '_, M>,
    cachelet: u32,
    record: &Record,
    gone: &dyn Fn(LockOwner) -> bool,
) -> Result<()> {
    transaction.lock_record(cachelet)?;
    let mut released = false;
    for head in [&record.ranges, &record.flocks] {
        while let Some(found) =
            walk(transaction.tables(), head).find(|linked| gone(LockOwner::from_word(linked.node.owner.load(Relaxed))))
        {
            transaction.remove_lock(&found)?;
            released = true;
        }
    }
    transaction.unlock_record(record);
    if released {
        wake_waiters(transaction.processes, record);
    }
    Ok(())
}

impl<'f, M: Memory> TableTransaction<'_, 'f, M> {
    fn remove_lock(&self, found: &Linked<'f>) -> Result<()> {
        let unlinked = &self.intent().unlinked;
        found.node.claimed.store(self.ticket(), Release);
        unlinked.store(found.index + 1, Release);
        found.link.store(found.node.next.load(Relaxed), Release);
        self.unclaim(TableKind::Lock, found.index)?;
        unlinked.store(0, Release);
        Ok(())
    }

    /// Claims a node, as number `which` of the operation, and fills it.
    fn new_lock(&self, which: usize, cachelet: u32, claimed: &LockRequest) -> Result<u32> {
        let index = self.claim(TableKind::Lock, which)?.ok_or(Errno::ENOLCK)?;
        let node = self.tables().lock(index)?;
        node.owner.store(claimed.owner.word(), Relaxed);
        node.start.store(claimed.range.start, Relaxed);
        node.last.store(claimed.range.last, Relaxed);
        node.exclusive.store((claimed.kind == LockKind::Exclusive) as u32, Relaxed);
        node.pid.store(claimed.pid, Relaxed);
        node.record.store(cachelet, Relaxed);
        Ok(index)
    }

    fn insert_lock(&self, link: &AtomicU32, index: u32) -> Result<()> {
        self.tables().lock(index)?.next.store(link.load(Relaxed), Relaxed);
        link.store(index + 1, Release);
        Ok(())
    }

    /// Runs `change` with a record locked, as a recoverable step.
    pub(super) fn with_locks<T>(&self, cachelet: u32, change: impl FnOnce(&'f Record) -> Result<T>) -> Result<T> {
        self.prepare(TableSlot::Nowhere, 0)?;
        self.intent().record.store(cachelet, Release);
        self.step(TransactionStep::Locks);
        let record = self.lock_record(cachelet)?;
        let changed = change(record);
        let cleaned = self.undo_claims();
        self.unlock_record(record);
        self.step(TransactionStep::None);
        cleaned.and(changed)
    }

    /// The link at which an owner's range that begins at `start` belongs.
    fn position(&self, record: &'f Record, owner: LockOwner, start: u64) -> &'f AtomicU32 {
        let mut link = &record.ranges;
        let mut among_own = false;
        for linked in walk(self.tables(), &record.ranges) {
            let own = linked.node.owner.load(Relaxed) == owner.word();
            // Before the owner's next range; otherwise after its last one; otherwise at the end.
            if (own && linked.node.start.load(Relaxed) >= start) || (among_own && !own) {
                return linked.link;
            }
            among_own |= own;
            link = &linked.node.next;
        }
        link
    }

    fn first(&self, head: &'f AtomicU32, meant: &dyn Fn(&LockRequest) -> bool) -> Option<LockRequest> {
        walk(self.tables(), head).map(|linked| LockRequest::read(linked.node)).find(|other| meant(other))
    }

    fn first_conflict(&self, head: &'f AtomicU32, wanted: &LockRequest) -> Option<LockRequest> {
        self.first(head, &|other| other.conflicts(wanted))
    }

    /// Sets a range to a lock kind, or unlocks it. No lock conflicts.
    fn set_range(&self, record: &'f Record, cachelet: u32, wanted: &LockRequest, kind: Option<LockKind>) -> Result<()> {
        let own = || {
            walk(self.tables(), &record.ranges).filter(|linked| linked.node.owner.load(Relaxed) == wanted.owner.word())
        };
        let range = wanted.range;
        let mut whole = range;
        let mut tail = None;
        for linked in own() {
            let held = LockRequest::read(linked.node);
            if Some(held.kind) == kind {
                if held.range.contains(&range) {
                    return Ok(());
                }
                if held.range.touches(&range) {
                    whole.start = whole.start.min(held.range.start);
                    whole.last = whole.last.max(held.range.last);
                }
            } else if held.range.start < range.start && held.range.last > range.last {
                // The range is split: the part behind becomes a separate node.
                tail = Some(LockRequest { range: LockRange { start: range.last + 1, last: held.range.last }, ..held });
            }
        }
        // All that can fail comes first. Additions precede removals, so at every instant all bytes
        // stay locked that are locked both before and after.
        let tail = match tail {
            Some(tail) => Some((tail.range.start, self.new_lock(0, cachelet, &tail)?)),
            None => None,
        };
        let added = match kind {
            Some(kind) => Some(self.new_lock(1, cachelet, &LockRequest { range: whole, kind, ..*wanted })?),
            None => None,
        };
        if let Some((start, index)) = tail {
            self.insert_lock(self.position(record, wanted.owner, start), index)?;
        }
        if let Some(index) = added {
            self.insert_lock(self.position(record, wanted.owner, whole.start), index)?;
        }
        let is_new = |index: u32| Some(index) == added || tail.is_some_and(|(_, tail)| tail == index);
        while let Some((linked, held)) = own()
            .filter(|linked| !is_new(linked.index))
            .map(|linked| (LockRequest::read(linked.node), linked))
            .find(|(held, _)| held.range.overlaps(&range) || (Some(held.kind) == kind && held.range.touches(&range)))
            .map(|(held, linked)| (linked, held))
        {
            if Some(held.kind) == kind || range.contains(&held.range) {
                self.remove_lock(&linked)?;
            } else if held.range.start < range.start {
                linked.node.last.store(range.start - 1, Release);
            } else {
                linked.node.start.store(range.last + 1, Release);
            }
        }
        self.claims_used();
        Ok(())
    }

    fn lock_range(
        &self,
        node: Node,
        wanted: &LockRequest,
        kind: Option<LockKind>,
    ) -> Result<core::result::Result<(), (Blocked, LockRequest)>> {
        let changed = self.with_locks(node.cachelet, |record| {
            if kind.is_some()
                && let Some(other) = self.first_conflict(&record.ranges, wanted)
            {
                let version = record.version.load(Acquire);
                return Ok(Err((Blocked { node, version, blocker: other.owner }, other)));
            }
            self.set_range(record, node.cachelet, wanted, kind).map(Ok)
        })?;
        if changed.is_ok() {
            // A lock may also admit others, if it replaces an exclusive one.
            wake_waiters(self.processes, self.tables().record(node.cachelet)?);
        }
        Ok(changed)
    }

    fn flock(&self, node: Node, wanted: &LockRequest, kind: Option<LockKind>) -> Result<Locked> {
        let mut released = false;
        let locked = self.with_locks(node.cachelet, |record| {
            let own = walk(self.tables(), &record.flocks)
                .find(|linked| linked.node.owner.load(Relaxed) == wanted.owner.word());
            if let Some(own) = own {
                if Some(LockRequest::read(own.node).kind) == kind {
                    return Ok(Locked::Done);
                }
                // Even if the new lock is refused, as on Linux.
                self.remove_lock(&own)?;
                released = true;
            }
            if kind.is_none() {
                return Ok(Locked::Done);
            }
            if let Some(other) = self.first_conflict(&record.flocks, wanted) {
                let version = record.version.load(Acquire);
                return Ok(Locked::Blocked(Blocked { node, version, blocker: other.owner }));
            }
            let index = self.new_lock(0, node.cachelet, wanted)?;
            self.insert_lock(&record.flocks, index)?;
            self.claims_used();
            Ok(Locked::Done)
        })?;
        if released {
            let record = self.tables().record(node.cachelet)?;
            // The own wake-up does not count: the version to wait for is adjusted.
            wake_waiters(self.processes, record);
            if let Locked::Blocked(blocked) = locked {
                return Ok(Locked::Blocked(Blocked { version: blocked.version.wrapping_add(1), ..blocked }));
            }
        }
        Ok(locked)
    }

    /// Whether the transaction's process must stop waiting for `blocker`, because the processes
    /// wait for each other in a cycle and its wait is the newest. All processes of the cycle agree
    /// on the newest, so exactly one is the victim, in whatever order they check. If the newest
    /// checks before another one has published its wait, it finds the cycle at its next attempt.
    fn is_deadlock_victim(&self, blocker: LockOwner) -> Result<bool> {
        let Some(ring) = self.deadlock_cycle(blocker)? else { return Ok(false) };
        // A walk holds no locks: waits seen one after the other need not coexist. A cycle whose
        // waits are the same on a second walk existed between the two walks, because a waiter
        // releases nothing.
        if self.deadlock_cycle(blocker)? != Some(ring) {
            return Ok(false);
        }
        let mine = self.tables().slot(self.table)?.wait();
        Ok(ring.iter().flatten().all(|other| !other.is_newer(mine)))
    }

    /// The waits from that of `blocker` to that of the transaction's process, if they form a cycle.
    fn deadlock_cycle(&self, blocker: LockOwner) -> Result<Option<[Option<Wait>; CYCLE_MAX]>> {
        let me = LockOwner::Process(self.table);
        let mut ring = [None; CYCLE_MAX];
        let mut next = blocker;
        for slot_at in &mut ring {
            if next == me {
                return Ok(Some(ring));
            }
            let LockOwner::Process(table) = next else { return Ok(None) };
            let wait = self.tables().slot(table)?.wait();
            let Some(waiting) = self.blocker_of(table, wait)? else { return Ok(None) };
            *slot_at = Some(wait);
            next = waiting;
        }
        Ok(None)
    }

    /// The owner that a process waits for at this instant.
    fn blocker_of(&self, table: u32, wait: Wait) -> Result<Option<LockOwner>> {
        if wait.cachelet == 0 {
            return Ok(None);
        }
        let slot: &Slot = self.tables().slot(table)?;
        let (range, kind) = slot.waits_for();
        let wanted = LockRequest { owner: LockOwner::Process(table), range, kind, pid: 0 };
        self.with_locks(wait.cachelet, |record| {
            Ok(self.first_conflict(&record.ranges, &wanted).map(|other| other.owner))
        })
    }
}

/// A wait of a process for a range: its number and its file; no file if the process does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wait {
    number: u32,
    cachelet: u32,
}

impl Wait {
    const NONE: Wait = Wait { number: 0, cachelet: 0 };

    /// Whether it began after another one. Both waits yield the same answer.
    fn is_newer(self, other: Wait) -> bool {
        (self.number.wrapping_sub(other.number) as i32) > 0
    }
}

impl Slot {
    fn wait(&self) -> Wait {
        let word = self.waits_in.load(SeqCst);
        Wait { number: (word >> 32) as u32, cachelet: word as u32 }
    }

    fn set_wait(&self, wait: Wait) {
        // Ordered against the accesses before and after it: the wait's parameters are visible when
        // the wait is, and stay until it ends.
        self.waits_in.swap((wait.number as u64) << 32 | wait.cachelet as u64, SeqCst);
    }

    /// The process waits for no range.
    pub(super) fn end_wait(&self) {
        self.set_wait(Wait::NONE);
    }

    /// The parameters of the wait.
    fn waits_for(&self) -> (LockRange, LockKind) {
        let last = self.waits_last.load(Relaxed);
        let kind = if last & EXCLUSIVE != 0 { LockKind::Exclusive } else { LockKind::Shared };
        (LockRange { start: self.waits_start.load(Relaxed), last: last & !EXCLUSIVE }, kind)
    }
}

/// Locks. The VFS layer implements blocking calls as a loop: attempt; if blocked,
/// [`Process::wait_for_lock`]; after a signal, EINTR; otherwise look up the descriptor again,
/// because it may be closed meanwhile.
impl<'f, M: Memory> Process<'f, M> {
    /// flock(2); `None` unlocks. A blocked conversion has already lost the old lock, as on Linux.
    pub fn flock(&self, thread: &Thread<'f, M>, fd: u32, kind: Option<LockKind>) -> Result<Locked> {
        let transaction = self.processes.begin(thread, self.index)?;
        let descriptor = self.descriptor(fd).ok_or(Errno::EBADF)?;
        let file = self.processes.tables.file(descriptor.file)?;
        if file.is_path() {
            return Err(Errno::EBADF);
        }
        let owner = LockOwner::Description(descriptor.file);
        let wanted = LockRequest {
            owner,
            range: LockRange::ALL,
            kind: kind.unwrap_or(LockKind::Shared),
            pid: self.process_id() as i32,
        };
        transaction.flock(file.node(), &wanted, kind)
    }

    /// fcntl(F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW); `None` unlocks. `of_description`: an
    /// OFD lock. EBADF: not of this file system, or not opened for this access. ENOLCK: too many
    /// locks. EDEADLK (if `waits`, and not for OFD locks): the wait would never end.
    pub fn lock_range(
        &self,
        thread: &Thread<'f, M>,
        fd: u32,
        range: LockRange,
        kind: Option<LockKind>,
        of_description: bool,
        waits: bool,
    ) -> Result<Locked> {
        let transaction = self.processes.begin(thread, self.index)?;
        let descriptor = self.descriptor(fd).ok_or(Errno::EBADF)?;
        let file = self.processes.tables.file(descriptor.file)?;
        let allowed = match kind {
            None => !file.is_path(),
            Some(LockKind::Shared) => file.reads(),
            Some(LockKind::Exclusive) => file.writes(),
        };
        if !allowed {
            return Err(Errno::EBADF);
        }
        let owner = self.owner(descriptor.file, of_description);
        let pid = if of_description { -1 } else { self.process_id() as i32 };
        let wanted = LockRequest { owner, range, kind: kind.unwrap_or(LockKind::Shared), pid };
        let (blocked, other) = match transaction.lock_range(file.node(), &wanted, kind)? {
            Ok(()) => return Ok(Locked::Done),
            Err(in_the_way) => in_the_way,
        };
        if waits && !of_description {
            // Published before the check: if two waits close a cycle at once, at least one sees it.
            self.publish_wait(&blocked, &wanted)?;
            if transaction.is_deadlock_victim(other.owner)? {
                self.end_wait();
                return Err(Errno::EDEADLK);
            }
        }
        Ok(Locked::Blocked(blocked))
    }

    fn owner(&self, file: u32, of_description: bool) -> LockOwner {
        if of_description { LockOwner::Description(file) } else { LockOwner::Process(self.table_index) }
    }

    /// Publishes what the process waits for. Publishing the same again continues the wait.
    fn publish_wait(&self, blocked: &Blocked, wanted: &LockRequest) -> Result<()> {
        let (table, cachelet) = (self.table, blocked.node.cachelet);
        if table.wait().cachelet == cachelet && table.waits_for() == (wanted.range, wanted.kind) {
            return Ok(());
        }
        table.end_wait();
        let exclusive = if wanted.kind == LockKind::Exclusive { EXCLUSIVE } else { 0 };
        table.waits_start.store(wanted.range.start, Relaxed);
        table.waits_last.store(wanted.range.last | exclusive, Relaxed);
        let number = self.processes.tables.header().waits.fetch_add(1, SeqCst);
        table.set_wait(Wait { number, cachelet });
        Ok(())
    }

    /// fcntl(F_GETLK, F_OFD_GETLK): the first conflicting lock. `None` queries the locks of the
    /// description itself, as Linux does since 6.6; for a process that is EINVAL.
    pub fn conflict(
        &self,
        thread: &Thread<'f, M>,
        fd: u32,
        range: LockRange,
        kind: Option<LockKind>,
        of_description: bool,
    ) -> Result<Option<Conflict>> {
        let find = || {
            let transaction = self.processes.begin(thread, self.index)?;
            let descriptor = self.descriptor(fd).ok_or(Errno::EBADF)?;
            let file = self.processes.tables.file(descriptor.file)?;
            if file.is_path() {
                return Err(Errno::EBADF);
            }
            if kind.is_none() && !of_description {
                return Err(Errno::EINVAL);
            }
            let owner = self.owner(descriptor.file, of_description);
            let wanted = LockRequest { owner, range, kind: kind.unwrap_or(LockKind::Shared), pid: 0 };
            transaction.with_locks(file.node().cachelet, |record| {
                Ok(transaction.first(&record.ranges, &|other| match kind {
                    Some(_) => other.conflicts(&wanted),
                    None => other.owner == owner && other.range.overlaps(&range),
                }))
            })
        };
        match kind {
            Some(_) => self.living_conflict(thread, find),
            None => Ok(find()?.map(Conflict::from)),
        }
    }

    /// Sleeps until the locks of the file change, a signal arrives, or 100 ms have passed; after
    /// the timeout it checks whether the blocker still lives. The caller then attempts again,
    /// unless a signal arrived. The caller must not hold an [`InFlightFile`](super::InFlightFile).
    pub fn wait_for_lock(&self, thread: &Thread<'f, M>, blocked: &Blocked) {
        if !self.sleep_for_lock(blocked) {
            self.reap_blocker(thread, blocked);
        }
    }

    /// The sleep of [`Process::wait_for_lock`] alone, for a caller that must not occupy a thread
    /// slot meanwhile. Returns whether the locks of the file changed; otherwise
    /// [`Process::reap_blocker`] comes next.
    pub fn sleep_for_lock(&self, blocked: &Blocked) -> bool {
        let Ok(record) = self.processes.tables.record(blocked.node.cachelet) else { return true };
        record.waiters.store(1, SeqCst);
        if record.version.load(SeqCst) != blocked.version {
            return true;
        }
        self.processes.platform().wait(&record.version, blocked.version, WAIT_MS);
        record.version.load(Acquire) != blocked.version
    }

    /// Releases what the blocker holds if it is dead. Returns whether anything was released, and
    /// so whether another attempt may succeed; a nonblocking call asks before it returns EAGAIN,
    /// because the kernel releases the locks of a killed process before anything sees its death.
    pub fn reap_blocker(&self, thread: &Thread<'f, M>, blocked: &Blocked) -> bool {
        self.reap_owner(thread, blocked.blocker)
    }

    fn reap_owner(&self, thread: &Thread<'f, M>, owner: LockOwner) -> bool {
        let reaped = match owner {
            LockOwner::Process(slot) | LockOwner::Foreign { mount: slot, .. } => {
                self.processes.reap_if_dead(thread, slot).map(u32::from)
            }
            LockOwner::Description(_) => self.processes.reap_all(thread),
        };
        // An error leaves the dead process, and its locks, to a later call.
        reaped.is_ok_and(|reaped| reaped != 0)
    }

    /// What `find` finds once no dead process holds it.
    fn living_conflict(
        &self,
        thread: &Thread<'f, M>,
        mut find: impl FnMut() -> Result<Option<LockRequest>>,
    ) -> Result<Option<Conflict>> {
        loop {
            match find()? {
                Some(held) if self.reap_owner(thread, held.owner) => {}
                found => return Ok(found.map(Conflict::from)),
            }
        }
    }

    /// Makes all that wait for locks of a file attempt again.
    pub fn wake_lock_waiters(&self, node: Node) {
        if let Ok(record) = self.processes.tables.record(node.cachelet) {
            wake_waiters(&self.processes, record);
        }
    }

    /// Ends the wait (locked, interrupted or given up). Call it at the end of every loop that
    /// waited.
    pub fn end_wait(&self) {
        self.table.end_wait();
    }

    /// Sets the locks of a foreign owner, known to another VFS layer by `number`, on a file that
    /// this process holds; `None` unlocks. Without `range` it acts as flock. `pid` is what F_GETLK
    /// reports. For a mount on the same image.
    pub fn lock_foreign(
        &self,
        thread: &Thread<'f, M>,
        node: Node,
        (number, pid): (u32, i32),
        range: Option<LockRange>,
        kind: Option<LockKind>,
    ) -> Result<Locked> {
        let transaction = self.processes.begin(thread, self.index)?;
        self.slot.foreign.store(1, Release);
        let owner = LockOwner::Foreign { mount: self.index, number };
        let wanted_kind = kind.unwrap_or(LockKind::Shared);
        let wanted = LockRequest { owner, range: range.unwrap_or(LockRange::ALL), kind: wanted_kind, pid };
        if range.is_none() {
            return transaction.flock(node, &wanted, kind);
        }
        Ok(match transaction.lock_range(node, &wanted, kind)? {
            Ok(()) => Locked::Done,
            Err((blocked, _)) => Locked::Blocked(blocked),
        })
    }

    /// The first lock that conflicts with one of a foreign owner.
    pub fn conflict_foreign(
        &self,
        thread: &Thread<'f, M>,
        node: Node,
        number: u32,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<Conflict>> {
        let wanted = LockRequest { owner: LockOwner::Foreign { mount: self.index, number }, range, kind, pid: 0 };
        self.living_conflict(thread, || {
            let transaction = self.processes.begin(thread, self.index)?;
            transaction.with_locks(node.cachelet, |record| Ok(transaction.first_conflict(&record.ranges, &wanted)))
        })
    }
}

/// Releases all locks of the foreign owners of a dead VFS layer.
pub(super) fn release_mount_locks<M: Memory>(transaction: &TableTransaction<'_, '_, M>) -> Result<()> {
    let mount = transaction.index;
    let is_ours = |owner| matches!(owner, LockOwner::Foreign { mount: of, .. } if of == mount);
    transaction.tables().each_claimed(transaction.processes.fs, TableKind::Lock, &mut |index| {
        let node = transaction.tables().lock(index)?;
        if !is_ours(LockOwner::from_word(node.owner.load(Relaxed))) {
            return Ok(());
        }
        // The node may have been reused meanwhile; then the list holds no lock of this mount.
        let cachelet = node.record.load(Relaxed);
        transaction.prepare(TableSlot::Nowhere, 0)?;
        transaction.intent().record.store(cachelet, Release);
        transaction.step(TransactionStep::Locks);
        let released = release(transaction, cachelet, &is_ours);
        transaction.step(TransactionStep::None);
        released
    })?;
    transaction.slot.foreign.store(0, Release);
    Ok(())
}
