//! When changes reach the disk of an image: at an fsync, and with the options `sync` and `dirsync`.

use super::Files;
use crate::messages::report_error;
use posix::{Result, Scope};
use std::sync::atomic::Ordering::Relaxed;

impl Files {
    /// Whether fsync has an effect: only if the image is on a disk behind the kernel's cache.
    pub(crate) fn needs_sync(&self) -> bool {
        self.image.storage().is_disk()
    }

    /// Persists an open file: first what the engine persists lazily, then the whole image on its
    /// disk.
    pub(crate) fn sync(&self, number: u64) -> Result<()> {
        let node = self.node(number)?;
        self.check_whole()?;
        let synced = self.image.storage().sync(&self.image.fs().enter()?, Scope::File(node));
        self.check_whole().and(synced)
    }

    /// Commits a change of names or attributes that was made. It is answered as made also if that
    /// fails, as ext4 does: after an error the kernel would keep its old names and attributes, and
    /// give back no reference of a new file. The server's log has the failure, once until a commit
    /// succeeds; the next fsync commits the change, or fails as well.
    pub(crate) fn commit_change(&self, number: u64) {
        let committed = self.sync(number);
        let has_failed = self.commits_fail.swap(committed.is_err(), Relaxed);
        if let Some(error) = committed.err().filter(|_| !has_failed) {
            report_error(format_args!(
                "changes of {} are in memory only, despite sync or dirsync ({error}): call fsync when the disk can take them",
                self.image.path().display()
            ));
        }
    }
}
