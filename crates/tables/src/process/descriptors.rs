//! Descriptors: the map of a process from numbers to open file descriptions.
//!
//! An entry is a word: the description's number plus one, shifted left by one bit, with CLOEXEC in
//! the lowest bit. Lookups read it without a lock.
//!
//! A call must not lose its description when another thread closes the descriptor. In a process
//! with one thread that cannot happen. Otherwise the call writes an *in-flight reference* into the
//! table and looks the descriptor up again. A close that finds an in-flight reference hands its own
//! reference to it, and the end of the call drops that. One of the two always sees the other: both
//! store (a full fence) before they look. While only the thread that opened a description has used
//! it, as the description records ([`DescriptionUsers`](crate::open_file::DescriptionUsers)), a
//! close by that thread searches only its own in-flight references.
//!
//! *Reason:* for two threads open and close fell from 557 to 514 ns, and 8 KiB written and read
//! from 2,100 to 1,800. *Rejected:* grace periods (a call may block, so a close could wait without
//! bound); a count per call (a locked instruction on a shared line).
//!
//! Each of the first 32 threads of a process opens and closes inline descriptors (the first 512)
//! without the table's lock: see [`super::table_transaction`]. *Reason:* for two threads open and
//! close of hot files fell from about 2,000 to 840 ns. *Rejected:* a lock per descriptor (fork and
//! close_range would take all); an intent per thread under the table's lock (most of the time was
//! the lock moving between processors).

use super::shared_tables::{
    IN_FLIGHT_REFERENCES, INLINE_DESCRIPTORS, PAGE_DESCRIPTORS, REFERENCES_PER_LINE, SharedTables, in_flight_line,
};
use super::table_transaction::{BUSY, OWNED, TableSlot, TableTransaction, entry_of, file_of};
use super::{DESCRIPTORS_MAX, Descriptor, InFlightFile, Process, Processes};
use crate::errno::{Errno, Result};
use crate::open_file::{MarkGroupFlags, OpenFile};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use engine::Thread;
use pmem::Memory;

/// Stands for no in-flight reference, in a process with one thread.
pub(super) const NO_REFERENCE: u32 = u32::MAX;

impl<'f, M: Memory> Processes<'f, M> {
    /// The page with the word of `fd`, which is not inline; `None` if the page does not exist.
    fn page(&self, table: u32, fd: u32) -> Result<Option<&'f [AtomicU32]>> {
        if !self.fs.dram().is_upper_provided(SharedTables::directory_part(table).0) {
            return Ok(None);
        }
        let Some(page) = self.tables.page_link(table, fd)?.load(Acquire).checked_sub(1) else { return Ok(None) };
        Ok(Some(&self.tables.page(page)?.descriptors))
    }

    /// The word of a descriptor; `None` if its page does not exist.
    pub(super) fn descriptor_word(&self, table: u32, fd: u32) -> Result<Option<&'f AtomicU32>> {
        if let Some(word) = self.tables.slot(table)?.inline_descriptor(fd) {
            return Ok(Some(word));
        }
        Ok(self.page(table, fd)?.and_then(|page| page.get((fd % PAGE_DESCRIPTORS) as usize)))
    }

    /// The first descriptor of a table at or above `from`, and its entry.
    pub(super) fn next_entry(&self, table: u32, from: u32) -> Result<Option<(u32, u32)>> {
        let slot = self.tables.slot(table)?;
        let end = slot.descriptors_end.load(Acquire).min(DESCRIPTORS_MAX);
        let is_used = |(_, entry): &(u32, u32)| *entry != 0;
        let mut near =
            (from..end.min(INLINE_DESCRIPTORS)).map_while(|fd| Some((fd, entry_in(slot.inline_descriptor(fd)?))));
        if let Some(found) = near.find(is_used) {
            return Ok(Some(found));
        }
        let mut fd = from.max(INLINE_DESCRIPTORS);
        while fd < end {
            let first = fd / PAGE_DESCRIPTORS * PAGE_DESCRIPTORS;
            let page = self.page(table, fd)?.unwrap_or_default();
            let wanted = (first..end).zip(page).skip((fd - first) as usize);
            if let Some(found) = wanted.map(|(fd, word)| (fd, entry_in(word))).find(is_used) {
                return Ok(Some(found));
            }
            fd = first + PAGE_DESCRIPTORS;
        }
        Ok(None)
    }
}

/// The entry of a descriptor, for a caller that has exclusive access to the table.
fn entry_in(word: &AtomicU32) -> u32 {
    word.load(Acquire) & !BUSY
}

impl<M: Memory> TableTransaction<'_, '_, M> {
    /// Ensures that a table has room for a descriptor, and that walks of the table reach it.
    pub(super) fn reach(&self, table: u32, fd: u32) -> Result<()> {
        if fd >= DESCRIPTORS_MAX {
            return Err(Errno::EBADF);
        }
        let end = &self.tables().slot(table)?.descriptors_end;
        if end.load(Relaxed) <= fd {
            end.store(fd + 1, Release);
        }
        if fd < INLINE_DESCRIPTORS { Ok(()) } else { self.make_page(table, fd) }
    }

    /// Calls `each` with the descriptors `first..=last` of a table and their entries.
    pub(super) fn each_entry(
        &self,
        table: u32,
        first: u32,
        last: u32,
        each: &mut dyn FnMut(u32, u32) -> Result<()>,
    ) -> Result<()> {
        let mut fd = first;
        while let Some((found, entry)) = self.processes.next_entry(table, fd)?.filter(|(found, _)| *found <= last) {
            each(found, entry)?;
            fd = found + 1;
        }
        Ok(())
    }

    /// Releases the process's record locks on a file, as any close does.
    pub(super) fn release_locks(&self, entry: u32) -> Result<()> {
        let Some(file) = file_of(entry) else { return Ok(()) };
        let cachelet = self.tables().file(file)?.node().cachelet;
        super::locks::release_process(self, cachelet, self.table)
    }

    /// close, of a descriptor of the transaction's own table.
    pub(super) fn close(&self, fd: u32, entry: u32) -> Result<()> {
        self.release_locks(entry)?;
        self.clear(TableSlot::Descriptor(self.table, fd))
    }
}

impl<'f, M: Memory> Process<'f, M> {
    #[inline]
    pub(super) fn entry(&self, fd: u32) -> u32 {
        match self.table.inline_descriptor(fd) {
            Some(word) => word.load(Acquire),
            None => self.paged_entry(fd),
        }
    }

    #[cold]
    fn paged_entry(&self, fd: u32) -> u32 {
        match self.processes.descriptor_word(self.table_index, fd) {
            Ok(Some(word)) => word.load(Acquire),
            _ => 0,
        }
    }

    /// Properties of a descriptor; `None` if it does not belong to this file system.
    #[inline]
    pub fn descriptor(&self, fd: u32) -> Option<Descriptor> {
        let entry = self.entry(fd);
        Some(Descriptor { file: file_of(entry)?, cloexec: entry & 1 != 0 })
    }

    /// The description of a descriptor, for the duration of a call; `None` if it does not belong to
    /// this file system, or is that of an inotify or fanotify descriptor.
    #[inline]
    pub fn file<'u>(&'u self, thread: &'u Thread<'f, M>, fd: u32) -> Option<InFlightFile<'u, 'f, M>> {
        let index = file_of(self.entry(fd))?;
        if self.table.threads.load(Relaxed) != 0 {
            return self.file_among_threads(thread, fd).filter(|file| !file.is_watcher());
        }
        let file = self.processes.tables.file(index).ok()?;
        if file.is_watcher() {
            return None;
        }
        Some(InFlightFile { process: self, thread, file, index, which: NO_REFERENCE })
    }

    /// Whether a description is that of an inotify or fanotify descriptor. Its placeholder is the
    /// kernel's own.
    #[inline]
    pub fn is_watcher(&self, descriptor: &Descriptor) -> bool {
        self.processes.tables.file(descriptor.file).is_ok_and(OpenFile::is_watcher)
    }

    /// Whether a description was opened with O_PATH.
    pub fn is_path(&self, descriptor: &Descriptor) -> bool {
        self.processes.tables.file(descriptor.file).is_ok_and(OpenFile::is_path)
    }

    /// The key of the group of watches behind an inotify or fanotify descriptor.
    pub fn watch_key(&self, fd: u32) -> Option<u64> {
        self.processes.tables.file(self.descriptor(fd)?.file).ok()?.watch_key()
    }

    /// The flags of a fanotify descriptor.
    pub fn mark_group_flags(&self, fd: u32) -> Option<MarkGroupFlags> {
        self.processes.tables.file(self.descriptor(fd)?.file).ok()?.mark_group_flags()
    }

    fn file_among_threads<'u>(&'u self, thread: &'u Thread<'f, M>, fd: u32) -> Option<InFlightFile<'u, 'f, M>> {
        let own_line = in_flight_line(thread.index());
        let mut tries = 0u32;
        loop {
            let index = file_of(self.entry(fd))?;
            let which = (own_line * REFERENCES_PER_LINE as u32).wrapping_add(tries) % IN_FLIGHT_REFERENCES as u32;
            let word = &self.table.in_flight[which as usize];
            let line = which / REFERENCES_PER_LINE as u32;
            if self.table.in_flight_lines.load(Relaxed) & 1 << line == 0 {
                self.table.in_flight_lines.fetch_or(1 << line, SeqCst);
            }
            if word.load(Relaxed) == 0 && word.compare_exchange(0, index as u64 + 1, SeqCst, Relaxed).is_ok() {
                let using =
                    InFlightFile { process: self, thread, file: self.processes.tables.file(index).ok()?, index, which };
                if self.is_referenced(&using, fd, line == own_line) {
                    return Some(using);
                }
                // It was closed or replaced meanwhile.
                drop(using);
            }
            tries = tries.wrapping_add(1);
            if tries.is_multiple_of(4 * IN_FLIGHT_REFERENCES as u32) {
                self.processes.platform().wait(&AtomicU32::new(0), 0, 1);
            }
        }
    }

    /// Whether every later close of the descriptor finds the in-flight reference; false if it was
    /// closed before.
    ///
    /// If the set of users is the same before and after, the lookup happened within one life of the
    /// description. If the descriptor still leads to it, the close comes later and sees those
    /// users. So it searches the line with the reference.
    fn is_referenced(&self, using: &InFlightFile<'_, 'f, M>, fd: u32, in_own_line: bool) -> bool {
        let mut sharing = using.file.sharing();
        loop {
            let is_mine = in_own_line && sharing.is_only(using.thread.index());
            if !is_mine && !sharing.is_any() {
                sharing = using.file.share_with_all();
            }
            if file_of(self.entry(fd)) != Some(using.index) {
                return false;
            }
            let before = core::mem::replace(&mut sharing, using.file.sharing());
            if before == sharing {
                return true;
            }
        }
    }

    /// Puts an open file behind a descriptor and replaces what was there. The description takes
    /// over the reference of `file`; on failure the reference is released. EBADF: the number is too
    /// large; ENFILE: too many open files. Returns whether leases on the file may exist, which the
    /// VFS layer then breaks.
    pub fn install(&self, thread: &Thread<'f, M>, fd: u32, file: &OpenFile, cloexec: bool) -> Result<bool> {
        let installed = match self.install_lock_free(thread, file, fd, cloexec) {
            Some(installed) => installed,
            None => self.install_locked(thread, file, fd, cloexec),
        };
        if installed.is_err() {
            thread.release_recorded(file.node());
        }
        installed
    }

    /// Fills an empty inline descriptor, lock-free.
    #[inline]
    fn install_lock_free(
        &self,
        thread: &Thread<'f, M>,
        file: &OpenFile,
        fd: u32,
        cloexec: bool,
    ) -> Option<Result<bool>> {
        let word = self.table.inline_descriptor(fd)?;
        let transaction = self.begin_lock_free(thread)?;
        if !transaction.reserve_inline(fd, word) {
            return None;
        }
        self.record_end(fd);
        let made = transaction.make_inline(file, fd, word, cloexec);
        if made.is_err() {
            let _ = word.compare_exchange(BUSY, 0, Release, Relaxed);
        }
        Some(made)
    }

    #[inline]
    fn install_locked(&self, thread: &Thread<'f, M>, file: &OpenFile, fd: u32, cloexec: bool) -> Result<bool> {
        let transaction = self.begin(thread);
        match self.table.inline_descriptor(fd) {
            Some(word) if word.load(Acquire) == 0 => {
                self.record_end(fd);
                transaction.make_inline(file, fd, word, cloexec)
            }
            _ => self.install_anywhere(&transaction, file, fd, cloexec),
        }
    }

    #[cold]
    fn install_anywhere(
        &self,
        transaction: &TableTransaction<'_, 'f, M>,
        file: &OpenFile,
        fd: u32,
        cloexec: bool,
    ) -> Result<bool> {
        transaction.reach(self.table_index, fd)?;
        transaction.release_locks(self.entry(fd))?;
        transaction.create_into(file, TableSlot::Descriptor(self.table_index, fd), cloexec)
    }

    /// Ensures that walks of the table reach a descriptor.
    #[inline]
    fn record_end(&self, fd: u32) {
        let end = &self.table.descriptors_end;
        if end.load(Relaxed) <= fd {
            end.fetch_max(fd + 1, AcqRel);
        }
    }

    /// Begins a lock-free transaction if this thread has a slot of its own and the table is not
    /// locked.
    #[inline]
    fn begin_lock_free<'a>(&'a self, thread: &'a Thread<'f, M>) -> Option<TableTransaction<'a, 'f, M>> {
        let member = self.member?;
        self.processes.begin_lock_free(thread, member, (self.table_index, self.table))
    }

    #[inline]
    fn begin<'a>(&'a self, thread: &'a Thread<'f, M>) -> TableTransaction<'a, 'f, M> {
        self.processes.begin_in(thread, (self.index, self.slot), (self.table_index, self.table))
    }

    /// dup, dup2, dup3, F_DUPFD, after the kernel has chosen `to`: `to` becomes a copy of `from`
    /// and replaces what was there. EBADF: `from` does not belong to this file system.
    pub fn duplicate(&self, thread: &Thread<'f, M>, from: u32, to: u32, cloexec: bool) -> Result<()> {
        let transaction = self.processes.begin(thread, self.index)?;
        let file = file_of(self.entry(from)).ok_or(Errno::EBADF)?;
        if from == to {
            return Ok(());
        }
        transaction.reach(self.table_index, to)?;
        transaction.release_locks(self.entry(to))?;
        transaction.reference_into(file, TableSlot::Descriptor(self.table_index, to), entry_of(file, cloexec))
    }

    /// close. Returns whether there was an entry. Releases the process's record locks on the file,
    /// as any close does.
    pub fn remove(&self, thread: &Thread<'f, M>, fd: u32) -> bool {
        if self.entry(fd) == 0 {
            return false;
        }
        if let Some(removed) = self.remove_lock_free(thread, fd) {
            return removed;
        }
        let transaction = self.begin(thread);
        let entry = self.entry(fd);
        if entry == 0 {
            return false;
        }
        if transaction.release_locks(entry).is_err() {
            return false;
        }
        let cleared = match self.table.inline_descriptor(fd) {
            Some(word) if self.table.threads.load(Relaxed) == 0 => transaction.clear_inline(fd, word, entry),
            _ => transaction.clear(TableSlot::Descriptor(self.table_index, fd)),
        };
        cleared.is_ok()
    }

    /// Removes an entry that the program did not open as a descriptor, unlike a close without
    /// releasing record locks.
    pub fn drop_entry(&self, thread: &Thread<'f, M>, fd: u32) -> bool {
        let transaction = self.begin(thread);
        self.entry(fd) != 0 && transaction.clear(TableSlot::Descriptor(self.table_index, fd)).is_ok()
    }

    /// close, lock-free; `None` if that is not possible.
    #[inline]
    fn remove_lock_free(&self, thread: &Thread<'f, M>, fd: u32) -> Option<bool> {
        let word = self.table.inline_descriptor(fd)?;
        let transaction = self.begin_lock_free(thread)?;
        let entry = word.load(Acquire);
        let file = file_of(entry).filter(|_| entry & BUSY == 0)?;
        let cachelet = self.processes.tables.file(file).ok()?.node().cachelet;
        if self.processes.tables.record(cachelet).ok()?.ranges.load(Acquire) != 0 {
            return None;
        }
        // Of two concurrent closes exactly one succeeds.
        word.compare_exchange(entry, entry | BUSY, AcqRel, Relaxed).ok()?;
        Some(transaction.clear_inline(fd, word, entry).is_ok())
    }

    /// Sets or clears FD_CLOEXEC; returns whether the descriptor belongs to this file system.
    pub fn set_cloexec(&self, fd: u32, cloexec: bool) -> bool {
        let Ok(Some(word)) = self.processes.descriptor_word(self.table_index, fd) else { return false };
        let change = |entry: u32| (entry & !BUSY != 0).then_some(entry & !1 | cloexec as u32);
        word.fetch_update(AcqRel, Acquire, change).is_ok()
    }

    /// close_range: closes this file system's descriptors `first..=last`, or with `only_mark` sets
    /// FD_CLOEXEC on them. CLOSE_RANGE_UNSHARE is left to the VFS layer: threads that unshare
    /// tables are not supported.
    pub fn close_range(&self, thread: &Thread<'f, M>, first: u32, last: u32, only_mark: bool) -> Result<()> {
        let transaction = self.processes.begin(thread, self.index)?;
        transaction.each_entry(self.table_index, first, last, &mut |fd, entry| match only_mark {
            true => {
                self.set_cloexec(fd, true);
                Ok(())
            }
            false => transaction.close(fd, entry),
        })
    }

    /// Calls `each` with all descriptors of this file system in order, until it returns false.
    pub fn descriptors(&self, each: &mut dyn FnMut(u32, Descriptor) -> bool) {
        let mut fd = 0;
        while let Some((found, entry)) = self.processes.next_entry(self.table_index, fd).ok().flatten() {
            let Some(file) = file_of(entry) else { return };
            if !each(found, Descriptor { file, cloexec: entry & 1 != 0 }) {
                return;
            }
            fd = found + 1;
        }
    }
}

impl<M: Memory> core::ops::Deref for InFlightFile<'_, '_, M> {
    type Target = OpenFile;
    fn deref(&self) -> &OpenFile {
        self.file
    }
}

impl<M: Memory> InFlightFile<'_, '_, M> {
    /// Number of the description.
    pub fn index(&self) -> u32 {
        self.index
    }

    #[cold]
    fn drop_owned(&self) {
        let Ok(transaction) = self.process.processes.begin(self.thread, self.process.index) else { return };
        // An error means that the tables are damaged; a drop cannot report it.
        let _ = transaction.drop_in_flight(self.index, self.which);
    }
}

impl<M: Memory> Drop for InFlightFile<'_, '_, M> {
    #[inline]
    fn drop(&mut self) {
        if self.which == NO_REFERENCE {
            return;
        }
        let (word, mine) = (&self.process.table.in_flight[self.which as usize], self.index as u64 + 1);
        if word.compare_exchange(mine, 0, AcqRel, Acquire).is_err() {
            debug_assert_eq!(word.load(Relaxed), mine | OWNED, "in-flight reference of another call");
            self.drop_owned();
        }
    }
}
