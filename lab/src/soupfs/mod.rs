//! SoupFS: soft updates on persistent memory, after the paper by Dong and Chen.
//!
//! No system call flushes or fences. A call changes the *latest view*: attributes in memory, a
//! directory's latest links, new lines in the cache. For each change it leaves a *dependency node*:
//! an entry added or removed, the size or the attributes changed. *Persisters* in the background
//! take the nodes of dirty inodes, move their changes to the *consistent view* and flush. Their
//! order keeps that view intact at every instant, so after a crash it is mounted as it is.
//!
//! ```text
//!              bucket line / bucket pages     entries, one line each, in one list
//!   latest     heads in memory, where set     latest_next, where set in this mount
//!                 |                                     |
//!                 v                                     v
//!   [bucket 0] -----> entry (...000) -----> entry -----> [bucket 2] ---> entry (...010) ---> end
//!                 ^                                     ^
//!                 |                                     |
//!   consistent words of buckets                    consistent_next
//! ```
//!
//! | module | what | paper |
//! | --- | --- | --- |
//! | [`mod@format`] | every byte of the image, what holds for what is on the medium | 2 |
//! | [`chain`] | hash-table directories and the two views of their lists | 2 (Fig. 1): latest buckets, latest and consistent next |
//! | [`inode`] | dependency nodes and what each orders | 2: "semantic-aware dependency tracking" |
//! | [`names`] | what system calls do to names | 2 |
//! | [`persister`] | from the latest to the consistent view | 2: persisters, fsync |
//! | [`data`] | content of files | (the paper leaves it open: as PMFS does) |
//! | [`space`] | free lines and pages | 2 (no type in the allocator) |
//! | [`scan`] | what leaked, found while in use | "avoids recovery after crashes" |
//!
//! # Guarantees
//!
//! A call that returned is visible to all threads at once. It is durable after the next period or
//! `sync`. `sync_file` makes a file's own changes durable (content, size and attributes), or a
//! directory's (its names). A mount with [`SyncFile::Names`](crate::physical::SyncFile) makes a
//! file's names durable, too.
//!
//! After a crash:
//!
//! - Every name leads to a complete inode, and no link count is below the number of names.
//! - Each name on its own is as it was at some instant since the last sync. What did not change
//!   since is there. A rename leaves the new name, the old one, or for a file both; of a directory
//!   exactly one is valid. A rename over an existing name leaves the old or the new file there.
//!   Exception: when a directory replaces an empty one, the replaced one may be gone while the
//!   other still has its old name.
//! - A file's size is one that it had since the last sync. Each of its words is one that it had
//!   since, or zero where it was truncated meanwhile. Bytes of other files never appear.
//! - Owner and permissions never allow more than the states before and after both do.
//! - Free space may be marked in use; link counts may be too high. A [`scan`] corrects both later.
//!   Until then the figures of free space are too low, and an allocation that finds no space waits
//!   for the scan.
//!
//! # Differences from the paper
//!
//! - A directory's table grows. The paper's text gives no size; a table of one page would be linear
//!   in large directories. All entries of a directory form one list ordered by reversed hash, and
//!   buckets are positions in it (a split-ordered list). So growth, too, changes single words.
//! - An inode has two lines (a directory three), because the lab's VFS layers need a word in it.
//!   Only the first line is ever flushed, but for an inline link target.
//! - The mount number in `latest_next` distinguishes live links from those that a crash left. (The
//!   paper: "might be inconsistent after crashes", hence not followed.)
//! - A directory's inode refers to its entry. This makes a directory's rename atomic and prevents a
//!   directory from having two names.
//! - A changed directory keeps its latest buckets in memory until it is removed or the file system
//!   is unmounted, because entries' latest links may lead through them.
//! - RENAME_EXCHANGE is refused (EINVAL), as in Linux for file systems without it: it changes two
//!   names at once.
//! - Each change of a directory's list is one 8-byte link to a greater key. So damage shows, walks
//!   end, and persisters need no lock.
//! - Allocation bits are durable before what they stand for, and are cleared at unmount only. The
//!   [`scan`] beside the running system finds the rest.
//! - A write streams its content and fences, as in PMFS, because another processor's fence does not
//!   empty the buffer of streamed bytes. Flushes by the persister would write content twice.

pub mod chain;
pub mod data;
pub mod format;
pub mod inode;
pub mod list;
pub mod names;
pub mod persister;
pub mod scan;
pub mod space;
pub mod volume;

use crate::error::Result;
use crate::inode::changed;
use crate::locks::lock;
use crate::physical::{
    DirectoryEntry, Exclusive, Found, Loaded, Made, MkfsOptions, MountOptions, Name, NewFile, PhysicalFs, Renamed,
    Renaming, Shared, Space,
};
use crate::substrate::{self, NvPointer};
use engine::{Attributes, Changes};
use pmem::{LINE_BYTES, MappedRegion, Memory, Pm};
use scan::ScanReport;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use volume::Volume;

pub use inode::Info;

/// A mounted SoupFS.
#[derive(Debug)]
pub struct SoupFs<M: Memory> {
    volume: Arc<Volume<M>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<M: Memory> SoupFs<M> {
    /// Mounts with a number of persisters. Each runs every `period`, or earlier if much is pending.
    /// With a period of zero nothing runs in the background: there are no persisters, and the scan
    /// waits for unmount or a shortage of space.
    pub fn mount_with(region: MappedRegion<M>, period: Duration, persisters: usize) -> Result<SoupFs<M>> {
        SoupFs::start(Volume::mount(region)?, period, persisters)
    }

    fn start(volume: Volume<M>, period: Duration, persisters: usize) -> Result<SoupFs<M>> {
        let volume = Arc::new(volume);
        let mut threads = Vec::new();
        if !period.is_zero() {
            for _ in 0..persisters {
                let volume = Arc::clone(&volume);
                threads.push(std::thread::spawn(move || volume.run_persister(period)));
            }
            if volume.scan.is_due() {
                let volume = Arc::clone(&volume);
                threads.push(std::thread::spawn(move || {
                    if let Err(error) = volume.finish_scan() {
                        volume.fail(error);
                    }
                }));
            }
        }
        Ok(SoupFs { volume, threads: Mutex::new(threads) })
    }

    /// Scans now for what a crash leaked. Returns none if no scan is due.
    pub fn scan(&self) -> Result<Option<ScanReport>> {
        self.volume.finish_scan()
    }

    /// The state that system calls, persisters and the scan share.
    pub fn volume(&self) -> &Volume<M> {
        &self.volume
    }

    /// Ends the threads without writing anything.
    fn stop(&self) {
        self.volume.stop.store(true, Relaxed);
        {
            // Holding the lock prevents a lost wakeup: a persister that reads the flag too early
            // and then sleeps.
            let _dirty = lock(&self.volume.dirty);
            self.volume.wake.notify_all();
        }
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            // A panicked thread has already reported it.
            let _ = thread.join();
        }
        self.volume.stop.store(false, Relaxed);
    }
}

/// A drop without `unmount` acts like a crash of the process: pending changes are lost.
impl<M: Memory> Drop for SoupFs<M> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<M: Memory> PhysicalFs for SoupFs<M> {
    type Memory = M;
    type Info = Info;

    const NAME: &'static str = "SoupFS";

    fn mkfs(region: &MappedRegion<M>, options: &MkfsOptions) -> Result<()> {
        volume::mkfs(region, options)
    }

    fn mount(region: MappedRegion<M>, options: &MountOptions) -> Result<Self> {
        // One persister keeps up with several threads of system calls.
        let mut volume = Volume::mount(region)?;
        volume.sync_file = options.sync_file;
        SoupFs::start(volume, Duration::from_millis(options.persist_period_ms), options.shards.div_ceil(4))
    }

    fn unmount(&self) -> Result<()> {
        self.stop();
        let volume = &*self.volume;
        volume.finish_scan()?;
        volume.persist_all()?;
        volume.correct_all()?;
        volume.persist_all()?;
        let stored = volume.space.store(&volume.region)?;
        let durable = volume.region.fence(stored);
        substrate::leave(&volume.region, durable)
    }

    fn region(&self) -> &MappedRegion<M> {
        &self.volume.region
    }

    fn mounts(&self) -> u64 {
        self.volume.mounts
    }

    fn root(&self) -> u64 {
        self.volume.root / LINE_BYTES
    }

    fn inode_place(&self, number: u64) -> Result<u64> {
        Ok(number.saturating_mul(LINE_BYTES))
    }

    fn nv_pointer(&self, inode: u64) -> Result<&NvPointer> {
        Ok(&self.volume.region.get(Pm::<format::InodeLines>::new(inode))?.nv_pointer)
    }

    fn load(&self, number: u64) -> Result<Loaded<Info>> {
        self.volume.load(number)
    }

    fn forget(&self, _: u64, info: Info) -> Result<()> {
        self.volume.forget(info)
    }

    fn evict(&self, _: u64, _: &Attributes, info: Info) -> Result<()> {
        self.volume.evict(info.inode)
    }

    fn lookup(&self, directory: Shared<'_, Info>, name: &[u8]) -> Result<Option<Found>> {
        self.volume.lookup(&directory, name)
    }

    fn entry_is_named(&self, entry: u64, name: &[u8]) -> bool {
        self.volume.entry_is_named(entry, name)
    }

    fn parent(&self, directory: Shared<'_, Info>) -> Result<u64> {
        Ok(directory.info.inode.state().parent / LINE_BYTES)
    }

    fn read_directory(
        &self,
        directory: Shared<'_, Info>,
        cookie: u64,
        visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        self.volume.read_directory(&directory, cookie, visit)
    }

    fn create(
        &self,
        directory: &mut Exclusive<'_, Info>,
        name: Name<'_>,
        new: &NewFile<'_>,
        now_ns: i64,
    ) -> Result<Made<Info>> {
        self.volume.create(directory, name.bytes, new, now_ns)
    }

    fn link(
        &self,
        file: &mut Exclusive<'_, Info>,
        directory: &mut Exclusive<'_, Info>,
        name: Name<'_>,
        now_ns: i64,
    ) -> Result<u64> {
        self.volume.link_file(file, directory, name.bytes, now_ns)
    }

    fn unlink(
        &self,
        directory: &mut Exclusive<'_, Info>,
        name: Name<'_>,
        file: &mut Exclusive<'_, Info>,
        now_ns: i64,
    ) -> Result<()> {
        self.volume.unlink(directory, name.bytes, file, now_ns)
    }

    fn rmdir(
        &self,
        directory: &mut Exclusive<'_, Info>,
        name: Name<'_>,
        removed: &mut Exclusive<'_, Info>,
        now_ns: i64,
    ) -> Result<()> {
        self.volume.unlink(directory, name.bytes, removed, now_ns)
    }

    fn rename(&self, renaming: Renaming<'_, '_, Info>) -> Result<Renamed> {
        self.volume.rename(renaming)
    }

    fn change(&self, file: &mut Exclusive<'_, Info>, changes: &Changes, now_ns: i64) -> Result<()> {
        let attributes = file.attributes.update(|attributes| *attributes = changed(*attributes, changes, now_ns));
        self.volume.record(&file.info.inode, &attributes, None);
        Ok(())
    }

    fn read(&self, file: Shared<'_, Info>, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.volume.read(&file, offset, into)
    }

    fn write(&self, file: &mut Exclusive<'_, Info>, offset: u64, bytes: &[u8], now_ns: i64) -> Result<()> {
        self.volume.write(file, offset, bytes, now_ns)
    }

    fn truncate(&self, file: &mut Exclusive<'_, Info>, size_bytes: u64, now_ns: i64) -> Result<()> {
        self.volume.truncate(file, size_bytes, now_ns)
    }

    fn read_link(&self, link: Shared<'_, Info>, into: &mut [u8]) -> Result<usize> {
        self.volume.read_link(&link, into)
    }

    fn sync_file(&self, file: &mut Exclusive<'_, Info>) -> Result<()> {
        self.volume.sync_inode(&file.info.inode)
    }

    fn sync(&self) -> Result<()> {
        self.volume.persist_all()
    }

    fn space(&self) -> Result<Space> {
        Ok(self.volume.figures())
    }
}
