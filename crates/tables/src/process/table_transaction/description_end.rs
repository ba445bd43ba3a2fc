//! The end of an open file description: what hangs on it is released before its record.

use super::{ONE_HOLD, TableTransaction, TransactionStep};
use crate::errno::{Errno, Result};
use crate::process::{leases, locks};
use crate::watch::{Reports, Watches};
use core::sync::atomic::Ordering::{Relaxed, Release};
use pmem::Memory;

impl<M: Memory> TableTransaction<'_, '_, M> {
    /// Releases locks and leases of a description without users, which this slot frees afterwards.
    pub(super) fn drop_locks(&self) -> Result<()> {
        let intent = self.intent();
        let index = intent.file.load(Relaxed).checked_sub(1).ok_or(Errno::EIO)?;
        let file = self.tables().file(index)?;
        // From here on this slot frees it.
        file.claimed.store(self.ticket(), Release);
        if self.thread.fs().is_watched() || file.is_watcher() {
            self.notify_watches(file);
        }
        let cachelet = file.node().cachelet;
        locks::release_description(self, cachelet, index)?;
        if file.is_attached() {
            leases::detach(self, cachelet, index)?;
        }
        intent.record.store(cachelet, Release);
        intent.change.store(ONE_HOLD, Release);
        intent.unlinked.store(0, Release);
        self.step(TransactionStep::DropRecord);
        Ok(())
    }

    /// Notifies watches of the end of a description, or removes the watches of one.
    #[cold]
    fn notify_watches(&self, file: &crate::OpenFile) {
        match file.watch_key() {
            // An error means that the region is damaged.
            Some(key) => drop(Watches::remove_watch_group(self.thread, key)),
            None => Reports { thread: self.thread }.notify_closed(file),
        }
    }
}
