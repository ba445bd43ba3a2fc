//! Attributes of files: the results of stat, and the changes of chmod and similar calls.
//!
//! Which time a change shows: [`crate::times`].

use crate::backoff::Backoff;
use crate::dram::{Cachelet, FLAG_DEAD, FLAG_EVICTED, PLAIN, References};
use crate::error::{Corruption, Error, Result};
use crate::file_flags::FileFlags;
use crate::format::{FileKind, PROPERTY_ACCESS_LIST, Property};
use crate::fs::{Fs, Node, Thread};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::fence;
use pmem::{Flushed, Memory};

/// `st_size` of a directory: the length of its log would be meaningless to programs.
const DIRECTORY_SIZE_BYTES: u64 = 4096;

/// The results of stat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub number: u64,
    /// Generation: number and generation together never name another file.
    pub generation: u32,
    /// Kind of file.
    pub kind: FileKind,
    /// Type and permission bits.
    pub mode: u32,
    /// Names; for a directory 2 + its subdirectories.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Device number (Linux encoding). Its place separates owner and group: a load that spans two
    /// fields which were just stored separately stalls until both are in the cache.
    pub device: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Blocks of 4 KiB in use.
    pub blocks: u64,
    /// Last access, ns since 1970.
    pub accessed_ns: i64,
    /// Last change of content, ns since 1970.
    pub modified_ns: i64,
    /// Last change of attributes, ns since 1970.
    pub changed_ns: i64,
    /// Flags. The layer above enforces them.
    pub flags: FileFlags,
}

/// The identity of a file and the facts that decide the access to it. All of them are in the first
/// line of its cachelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protection {
    /// Inode number.
    pub number: u64,
    /// Generation of the inode.
    pub generation: u32,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The flags: see [`Attributes::flags`].
    pub flags: FileFlags,
}

impl Protection {
    /// The kind of file; none for an invalid mode.
    #[inline]
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    /// [`Protection::kind`], with an error for an invalid mode.
    #[inline]
    pub fn require_kind(&self) -> Result<FileKind> {
        self.kind().ok_or(Corruption::Inode(self.number).into())
    }

    /// Whether it is a directory.
    #[inline]
    pub fn is_directory(&self) -> bool {
        self.kind() == Some(FileKind::Directory)
    }
}

impl Attributes {
    /// The part that decides the access to the file.
    #[inline]
    pub fn protection(&self) -> Protection {
        let Attributes { number, generation, mode, uid, gid, flags, .. } = *self;
        Protection { number, generation, mode, uid, gid, flags }
    }
}

/// Changes of attributes; `None` leaves an attribute as it is. The change time becomes the present
/// time in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Permission bits (07777).
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Access time, ns since 1970.
    pub accessed_ns: Option<i64>,
    /// Modification time, ns since 1970.
    pub modified_ns: Option<i64>,
    /// New value of [`FileFlags::ACCESS_LIST`].
    pub access_list: Option<bool>,
    /// New values of [`FileFlags::SETTABLE`].
    pub flags: Option<FileFlags>,
}

impl Changes {
    /// Applies the changes, except that of the access time, which is not in the property entry.
    #[inline(always)]
    pub(crate) fn apply(&self, property: &mut Property, changed_ns: i64) {
        if let Some(permissions) = self.permissions {
            property.mode = property.mode & !0o7777 | permissions & 0o7777;
        }
        property.uid = self.uid.unwrap_or(property.uid);
        property.gid = self.gid.unwrap_or(property.gid);
        property.modified_ns = self.modified_ns.unwrap_or(property.modified_ns);
        if let Some(access_list) = self.access_list {
            let others = property.flags & !PROPERTY_ACCESS_LIST;
            property.flags = if access_list { others | PROPERTY_ACCESS_LIST } else { others };
        }
        if let Some(flags) = self.flags {
            property.flags = flags.within(property.flags);
        }
        property.changed_ns = changed_ns;
    }
}

/// The results of statfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceReport {
    /// Blocks of 4 KiB in the data area, without the spare ones.
    pub blocks: u64,
    /// Blocks not in use, without the spare ones.
    pub blocks_free: u64,
    /// Blocks of these that only root may take.
    pub blocks_reserved: u64,
    /// Maximum number of inodes of the image.
    pub inodes: u64,
    /// Inodes not in use.
    pub inodes_free: u64,
}

/// What the DRAM region holds, about: threads change it meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheReport {
    /// Names in the mindex.
    pub names: u64,
    /// Cachelets in use.
    pub files: u64,
}

impl<'f, M: Memory> Thread<'f, M> {
    /// The attributes of a file.
    pub fn stat(&self, node: Node) -> Result<Attributes> {
        self.attributes(self.cachelet(node)?)
    }

    /// The attributes in a cachelet: one consistent set, without a lock.
    // Read directly into place: through a property entry they would be copied several times.
    #[inline]
    pub(crate) fn attributes(&self, cachelet: &Cachelet) -> Result<Attributes> {
        let mut backoff = Backoff::new();
        loop {
            let version = cachelet.version.load(Acquire);
            if version & 1 == 0 {
                let mode = cachelet.mode.load(Relaxed);
                // For a mixture of two sets any kind will do.
                let kind = FileKind::from_mode(mode);
                let is_directory = kind == Some(FileKind::Directory);
                let attributes = Attributes {
                    number: cachelet.number.load(Relaxed),
                    generation: cachelet.generation.load(Relaxed),
                    kind: kind.unwrap_or(FileKind::Regular),
                    mode,
                    links: cachelet.links(is_directory),
                    uid: cachelet.uid.load(Relaxed),
                    gid: cachelet.gid.load(Relaxed),
                    device: if is_directory { 0 } else { cachelet.as_file().device().load(Relaxed) },
                    size_bytes: if is_directory {
                        DIRECTORY_SIZE_BYTES
                    } else {
                        cachelet.as_file().size_bytes().load(Relaxed)
                    },
                    blocks: if is_directory { 1 } else { cachelet.as_file().blocks().load(Relaxed) },
                    accessed_ns: cachelet.accessed_ns.load(Relaxed),
                    modified_ns: cachelet.modified_ns.load(Relaxed),
                    changed_ns: cachelet.changed_ns.load(Relaxed),
                    flags: FileFlags::of_property(cachelet.flags.load(Relaxed)),
                };
                fence(Acquire);
                if cachelet.version.load(Relaxed) == version {
                    return if kind.is_some() {
                        Ok(attributes)
                    } else {
                        Err(Corruption::Inode(attributes.number).into())
                    };
                }
            }
            backoff.pause(self.fs)?;
        }
    }

    /// The facts that decide the access to a file: a consistent set.
    #[inline]
    pub fn protection(&self, node: Node) -> Result<Protection> {
        self.fs.protection_of(self.cachelet(node)?)
    }

    /// Birth time of a file, ns since 1970.
    pub fn born_ns(&self, node: Node) -> Result<i64> {
        Ok(self.fs.inode_at(self.cachelet(node)?.inode.load(Relaxed))?.born_ns.load() as i64)
    }

    /// Changes attributes. `decide` sees the present ones under the file's lock, and returns the
    /// changes or refuses. Persistent and atomic when the call returns. Returns the new attributes.
    pub fn change(&self, node: Node, decide: impl FnOnce(&Attributes) -> Result<Changes>) -> Result<Attributes> {
        self.fs.writable()?;
        let cachelet = self.cachelet(node)?;
        if self.fs.ablation.is_as_printed() {
            let changes = decide(&self.attributes(cachelet)?)?;
            if (Changes { permissions: None, ..changes }) == Changes::default() {
                self.change_mode_as_printed(cachelet, &changes)?;
                return self.attributes(cachelet);
            }
            return self.change_locked(cachelet, |_| Ok(changes));
        }
        self.change_locked(cachelet, decide)
    }

    /// [`Thread::change`] under the file's lock.
    fn change_locked(
        &self,
        cachelet: &'f Cachelet,
        decide: impl FnOnce(&Attributes) -> Result<Changes>,
    ) -> Result<Attributes> {
        let _held = self.lock_file(cachelet)?;
        let before = self.attributes(cachelet)?;
        let changes = decide(&before)?;
        if changes.flags.is_some_and(|flags| flags != FileFlags::NONE) {
            if !matches!(before.kind, FileKind::Regular | FileKind::Directory) {
                return Err(Error::NotSupported);
            }
            self.announce_flags()?;
        }
        let mut property = self.cachelets().property_now(cachelet);
        let changed_ns = self.cachelets().stamp(cachelet);
        let entry_ns = changed_ns.max(self.cachelets().least_in_entry(cachelet, &changes)?);
        property.change(|property| changes.apply(property, entry_ns));
        let mut flushed = self.cachelets().commit_attributes(cachelet, &property)?;
        property.change(|property| property.changed_ns = changed_ns);
        if let Some(accessed_ns) = changes.accessed_ns {
            let inode = self.fs.inode_at(cachelet.inode.load(Relaxed))?;
            cachelet.dirty.fetch_and(!PLAIN, AcqRel);
            // In place and independent: atomic by itself, and nothing depends on its order.
            flushed = flushed.and(self.fs.pm.flush(self.fs.pm.set64(&inode.accessed_ns, stored_access(accessed_ns))));
        }
        // Crash point before this fence: either the earlier entry counts, or the whole new one.
        self.fs.pm.fence(flushed);
        if let Some(accessed_ns) = changes.accessed_ns {
            cachelet.accessed_ns.store(accessed_ns, Relaxed);
        }
        self.cachelets().publish_property(cachelet, &property);
        if let Some(modified_ns) = changes.modified_ns {
            cachelet.modified_ns.store(modified_ns, Relaxed);
            match before.kind {
                FileKind::Directory => self.cachelets().touch_apart(cachelet, changed_ns),
                _ => self.files().mark_times_set(cachelet),
            }
        }
        self.attributes(cachelet)
    }

    /// Records that a file was read at `timestamp_ns`. Lazy: it reaches the image with a later sync
    /// or detach.
    pub fn touch_accessed(&self, node: Node, timestamp_ns: i64) -> Result<()> {
        self.cachelet(node)?.accessed_ns.store(timestamp_ns, Relaxed);
        Ok(())
    }

    /// Persists the lazily kept attributes of a file (access time, a directory's times), and what
    /// programs stored through mappings of it. All other changes are already persistent when their
    /// call returns, so fsync has nothing else to do in memory.
    pub fn sync(&self, node: Node) -> Result<()> {
        let cachelet = self.cachelet(node)?;
        let flushed = self.cachelets().write_back(cachelet)?;
        self.fs.pm.fence(flushed);
        if self.files().has_stores(cachelet) {
            self.files().flush_mapped(node, 0, u64::MAX)?;
        }
        Ok(())
    }

    /// [`Thread::sync`] for all files.
    pub fn sync_all(&self) -> Result<()> {
        let end = self.fs.header()?.cachelets_next.load(Acquire).min(self.fs.dram.layout.cachelets_max);
        let mut flushed = Flushed::nothing();
        for index in 1..end as u32 {
            let _pin = self.pin();
            let cachelet = self.fs.dram.cachelet(index)?;
            let number = cachelet.number.load(Acquire);
            let gone = References::flag(FLAG_DEAD | FLAG_EVICTED);
            if number == 0 || cachelet.references.load(Acquire) & gone != 0 {
                continue;
            }
            flushed = flushed.and(self.cachelets().write_back(cachelet)?);
            if self.files().has_stores(cachelet) {
                let _held = self.lock(&cachelet.lock, &cachelet.waiters)?;
                // The file may have been removed meanwhile.
                if self.files().has_stores(cachelet) {
                    self.files().flush_blocks(cachelet, 0, u64::MAX)?;
                }
            }
        }
        self.fs.pm.fence(flushed);
        Ok(())
    }

    /// Figures of the whole file system.
    pub fn space(&self) -> Result<SpaceReport> {
        let geometry = self.fs.geometry();
        let all = geometry.data_end() - geometry.data_block;
        let (blocks, spare) = (all.saturating_sub(self.fs.spare_blocks), self.fs.spare_blocks);
        let inodes = geometry.inodes_max() - 1;
        Ok(SpaceReport {
            blocks,
            blocks_free: self.fs.block_map().blocks_free()?.saturating_sub(spare).min(blocks),
            blocks_reserved: self.fs.reserved_blocks.min(blocks),
            inodes,
            inodes_free: inodes.saturating_sub(self.fs.inodes_used()?),
        })
    }
}

/// The word on the image for an access time. Zero means "as the birth time", so a time of zero is
/// stored as 1.
fn stored_access(accessed_ns: i64) -> u64 {
    if accessed_ns == 0 { 1 } else { accessed_ns as u64 }
}

impl<M: Memory> Fs<M> {
    #[inline]
    pub(crate) fn protection_of(&self, cachelet: &Cachelet) -> Result<Protection> {
        let mut backoff = Backoff::new();
        loop {
            let version = cachelet.version.load(Acquire);
            if version & 1 == 0 {
                let protection = Protection {
                    number: cachelet.number.load(Relaxed),
                    generation: cachelet.generation.load(Relaxed),
                    mode: cachelet.mode.load(Relaxed),
                    uid: cachelet.uid.load(Relaxed),
                    gid: cachelet.gid.load(Relaxed),
                    flags: FileFlags::of_property(cachelet.flags.load(Relaxed)),
                };
                fence(Acquire);
                if cachelet.version.load(Relaxed) == version {
                    return Ok(protection);
                }
            }
            backoff.pause(self)?;
        }
    }
}
