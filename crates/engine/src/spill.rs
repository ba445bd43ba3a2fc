//! Spill pages: retired records of a shard that its queue has no room for.
//!
//! A thread that is stopped inside the file system (SIGSTOP, a debugger, a frozen container) stays
//! pinned, and no grace period ends. Other threads go on: they move the oldest records of their
//! queues to free blocks of the image. When grace periods end again, the records return to the
//! queues. Only when no block is left does a removal fail, with `NoSpace`.
//!
//! Invariants
//! - A shard's pages are a stack, named by its slot. A page is named from the same change on in
//!   which its records leave the queue, and until the change in which they return.
//! - A page belongs to the slot as other blocks in transit do. So a reaper finds a page that is not
//!   named yet or any more, and frees it.
//! - The content of a page has no meaning after a crash: its block is free then.
//!
//! A thread waits at most 4 ms for an epoch to pass, and then moves the oldest 170 of its 1,024
//! records. What is removed meanwhile stays allocated: 1 GiB lasts for about three million
//! removals. Compaction and eviction leave everything as it is meanwhile.
//!
//! *Rejected:* ignoring stalled pins and validating (each read under a pin needs a check, and a
//! change cannot be made together with its check); birth epochs (every inode, dentry and block
//! needs a stamp, and every read of a pointer a check).

use crate::alloc::{BlockRun, owned_by_slot};
use crate::components::Recycler;
use crate::dram::RETIRED_MAX;
use crate::error::Result;
use crate::redo::WordChange;
use core::sync::atomic::Ordering::Relaxed;
use pmem::{BLOCK_BYTES, Cell64, Layout, Memory, Pm};

/// Records of a page.
const PAGE_RECORDS: usize = 170;

/// A page of retired records.
#[repr(C, align(4096))]
struct SpillPage {
    /// Offset of the next page, or zero.
    next: Cell64,
    /// Zero.
    reserved: Cell64,
    /// The words of [`crate::dram::Retired`].
    records: [[Cell64; 3]; PAGE_RECORDS],
}
const _: () = assert!(size_of::<SpillPage>() == BLOCK_BYTES as usize);
// SAFETY: repr(C), cells of 8 bytes only, no padding by the assertion above.
unsafe impl Layout for SpillPage {}

impl<'f, M: Memory> Recycler<'_, 'f, M> {
    /// Moves the oldest records of the queue, which has at least a page of them, to a page. No
    /// batch is being recycled.
    #[cold]
    pub(crate) fn spill_records(self) -> Result<()> {
        let block = self
            .owner
            .as_owner(owned_by_slot(self.owner.ticket()), || self.owner.allocator().allocate_blocks(1))?
            .first;
        let pm = &self.owner.fs.pm;
        let page = pm.get(Pm::<SpillPage>::new(block * BLOCK_BYTES))?;
        let first = self.owner.slot.retired_first.load(Relaxed);
        for (index, cells) in (first..).zip(&page.records) {
            let record = &self.owner.slot.retired[index as usize % RETIRED_MAX];
            for (cell, word) in cells.iter().zip([&record.kind, &record.a, &record.b]) {
                pm.set64(cell, word.load(Relaxed)).unflushed();
            }
        }
        pm.set64(&page.next, self.owner.slot.spilled.load(Relaxed)).unflushed();
        self.owner.change_together([
            WordChange::Wide(&self.owner.slot.spilled, block * BLOCK_BYTES),
            WordChange::Wide(&self.owner.slot.retired_first, first + PAGE_RECORDS as u64),
        ]);
        Ok(())
    }

    /// Moves the records of the newest page back to the queue, if `is_expired` holds for the page's
    /// newest record and the queue has room. No batch is being recycled.
    #[cold]
    pub(crate) fn return_spilled(self, is_expired: impl Fn(u64) -> bool) -> Result<()> {
        let offset = self.owner.slot.spilled.load(Relaxed);
        let page = self.owner.fs.pm.get(Pm::<SpillPage>::new(offset))?;
        let (first, end) = (self.owner.slot.retired_first.load(Relaxed), self.owner.slot.retired_end.load(Relaxed));
        if end - first > RETIRED_MAX as u64 / 4 || !is_expired(page.records[PAGE_RECORDS - 1][0].load()) {
            return Ok(());
        }
        for (index, cells) in (end..).zip(&page.records) {
            let record = &self.owner.slot.retired[index as usize % RETIRED_MAX];
            for (cell, word) in cells.iter().zip([&record.kind, &record.a, &record.b]) {
                word.store(cell.load(), Relaxed);
            }
        }
        self.owner.change_together([
            WordChange::Wide(&self.owner.slot.spilled, page.next.load()),
            WordChange::Wide(&self.owner.slot.retired_end, end + PAGE_RECORDS as u64),
        ]);
        self.owner.allocator().free_blocks(BlockRun { first: offset / BLOCK_BYTES, count: 1 })
    }

    /// As the reaper of this slot: calls `visit` with the block and the records of each page.
    pub(crate) fn for_spilled(self, mut visit: impl FnMut(BlockRun, &[[Cell64; 3]]) -> Result<()>) -> Result<()> {
        let mut offset = self.owner.slot.spilled.load(Relaxed);
        for _ in 0..self.owner.fs.blocks() {
            if offset == 0 {
                break;
            }
            let page = self.owner.fs.pm.get(Pm::<SpillPage>::new(offset))?;
            visit(BlockRun { first: offset / BLOCK_BYTES, count: 1 }, &page.records)?;
            offset = page.next.load();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::dram::RETIRED_MAX;
    use crate::format::FileKind;
    use crate::fs::{Node, Thread};
    use crate::testing::{Attached, TestPlatform, new_image, new_node};
    use core::sync::atomic::Ordering::Relaxed;

    fn make_and_remove(thread: &Thread<'_>, root: Node, names: usize) {
        for _ in 0..names {
            let file = thread.create(root, b"name", &new_node(FileKind::Regular)).expect("makes");
            thread.files().write(file, 0, &[7; 100]).expect("writes");
            thread.release(file, 1);
            thread.unlink(root, b"name", |_| Ok(())).expect("removes");
        }
    }

    #[test]
    fn removals_go_on_while_a_thread_is_stopped_inside_and_leave_nothing_behind() {
        let image = new_image(64 << 20, 0);
        let fs = Attached::new(&image).expect("attaches");
        let (stopped, thread) = (fs.enter().expect("enters"), fs.enter().expect("enters"));
        let root = thread.root().expect("a root");
        let mut free = [0, 0];
        // The first round also allocates segments and slabs, which stay.
        for free in &mut free {
            let inside = stopped.pin();
            make_and_remove(&thread, root, 6 * RETIRED_MAX);
            assert_ne!(thread.slot.spilled.load(Relaxed), 0, "the queue is too short for all of them");
            drop(inside);
            make_and_remove(&thread, root, 4 * RETIRED_MAX);
            assert_eq!(thread.slot.spilled.load(Relaxed), 0, "the records are back in the queue without a wait");
            thread.maintenance().compact(root).expect("compacts");
            thread.recycler().drain().expect("recycles");
            *free = fs.block_map().blocks_free().expect("counts");
        }
        assert!(free[1] + 8 >= free[0], "{free:?} blocks were free");
        thread.release(root, 1);
        drop((stopped, thread));
        fs.detach().expect("detaches");
        assert!(!Attached::new(&image).expect("attaches").report.scanned);
    }

    #[test]
    fn spill_pages_of_a_dead_thread_are_recycled() {
        static MORTAL: TestPlatform = TestPlatform::new();
        let image = new_image(64 << 20, 0);
        let fs = Attached::with(&image, &MORTAL, &Default::default(), 1).expect("attaches");
        let stopped = fs.enter().expect("enters");
        let inside = stopped.pin();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let thread = fs.enter().expect("enters");
                let root = thread.root().expect("a root");
                make_and_remove(&thread, root, 3 * RETIRED_MAX);
                assert_ne!(thread.slot.spilled.load(Relaxed), 0);
                thread.release(root, 1);
                core::mem::forget(thread);
                MORTAL.kill();
            });
        });
        assert_eq!(fs.reap_dead_threads(), Ok(1));
        drop(inside);
        drop(stopped);
        fs.detach().expect("detaches");
        let fs = Attached::new(&image).expect("attaches");
        assert!(!fs.report.scanned, "all that the dead one had is in order");
    }

    #[test]
    fn only_a_full_image_makes_a_removal_fail_while_a_thread_is_stopped() {
        let image = new_image(4 << 20, 0);
        let fs = Attached::new(&image).expect("attaches");
        let (stopped, thread) = (fs.enter().expect("enters"), fs.enter().expect("enters"));
        let root = thread.root().expect("a root");
        let inside = stopped.pin();
        let error = (0..200_000).find_map(|_| {
            let made = thread.create(root, b"name", &new_node(FileKind::Regular));
            let removed = made.and_then(|file| {
                thread.release(file, 1);
                thread.unlink(root, b"name", |_| Ok(()))
            });
            removed.err()
        });
        assert!(
            matches!(error, Some(crate::Error::NoSpace | crate::Error::NoInodes | crate::Error::NoMemory)),
            "{error:?}"
        );
        drop(inside);
        let _ = thread.unlink(root, b"name", |_| Ok(()));
        make_and_remove(&thread, root, 10_000);
    }
}
