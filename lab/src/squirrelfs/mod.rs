//! A file system like SquirrelFS (LeBlanc et al., OSDI 2024): synchronous soft updates.
//!
//! Invariants:
//!
//! - There is no journal. Each call orders its stores by fences so that every crash leaves it done
//!   or not done, except for times and for link counts, which recovery counts again. The order is
//!   in the types: [`typestate`].
//! - Every call is durable when it returns: create 4 fences, mkdir 5, unlink and rmdir 4, rename of
//!   a file 9, a write 2, or 4 with new pages. Freeing a file takes 3.
//! - The image has no indexes. Pages point back to their file and entries to their inode; a mount
//!   scans them all and keeps the indexes of all files in memory.
//! - Data is written in place.
//!
//! The order, the objects and the fences are those of the published system. Differences:
//!
//! - Free entries of directories are known in memory, so that creation does not search their pages.
//! - The file type is in the word of an entry's number, and in inodes generation and nv pointer
//!   make 128 bytes of 96.
//! - `link` and `symlink` change the directory's times, under a fence that they have anyway. A
//!   rename sets the change time of both files.
//! - Files have holes: an extension allocates no pages. A page in a hole is zeroed first.
//! - One inode for 2 KiB of image instead of 32, since experiments have many empty files.
//! - Exchanging two names is refused, as published, and names have at most 110 bytes.

mod data;
mod format;
mod names;
mod recovery;
mod rename;
mod typestate;

use crate::error::{Error, Result};
use crate::inode::{attributes_of, links_without_name, pair};
use crate::locks;
use crate::physical::{
    DirectoryEntry, Exclusive, Found, Loaded, Made, MkfsOptions, MountOptions, Name, NewFile, PhysicalFs, Renamed,
    Renaming, Shared, Space, durable_calls,
};
use crate::substrate::{self, BlockRange, Extents, FreeBlocks, System};
use engine::format::FileKind;
use engine::{Attributes, Changes};
use format::{
    BYTES_PER_INODE, DENTRY_BYTES, DESCRIPTOR_BYTES, Descriptor, INODE_BYTES, Inode, NameBytes, PAGE_OF_DATA, ROOT,
    TABLE_BLOCK, name_in,
};
use names::{Names, Slot};
use pmem::{BLOCK_BYTES, MappedRegion, Memory, Pm};
use posix::Errno;
use smallvec::smallvec;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use typestate::{Clean, IncLink, Init, Page, Pages, Typed, fence_both};

/// The smallest image.
const BLOCKS_MIN: u64 = 64;

/// A mounted file system.
pub struct SquirrelFs<M: Memory> {
    region: MappedRegion<M>,
    mounts: u64,
    geometry: Geometry,
    blocks: FreeBlocks,
    /// Free inodes; the next is the last.
    inodes: Mutex<Vec<u64>>,
    /// The indexes of files that are not in use.
    resting: Mutex<BTreeMap<u64, Resting>>,
}

/// The places of an image's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Geometry {
    inodes: u64,
    descriptors_block: u64,
    first_block: u64,
}

impl Geometry {
    fn of(length: u64) -> Geometry {
        let inodes = length / BYTES_PER_INODE;
        let descriptors_block = TABLE_BLOCK + (inodes * INODE_BYTES).div_ceil(BLOCK_BYTES);
        let descriptors = (length / BLOCK_BYTES * DESCRIPTOR_BYTES).div_ceil(BLOCK_BYTES);
        Geometry { inodes, descriptors_block, first_block: descriptors_block + descriptors }
    }
}

/// What a file's index finds.
#[derive(Debug)]
enum Index {
    /// The names of a directory.
    Names(Names),
    /// The pages of another file.
    Pages(Extents),
}

/// The in-memory state of a file that is not in use.
#[derive(Debug)]
struct Resting {
    parent: u64,
    index: Index,
}

/// The in-memory state of a file.
#[derive(Debug)]
pub struct SquirrelInfo {
    /// The inode's offset.
    inode: u64,
    /// A directory's parent.
    parent: u64,
    index: Index,
}

impl<M: Memory> SquirrelFs<M> {
    fn inode(&self, offset: u64) -> Result<&Inode> {
        Ok(self.region.get(Pm::new(offset))?)
    }

    fn inode_offset(&self, number: u64) -> Result<u64> {
        if number == 0 || number > self.geometry.inodes {
            return Err(Error::damaged("an entry refers to an invalid inode number", number));
        }
        Ok(TABLE_BLOCK * BLOCK_BYTES + (number - 1) * INODE_BYTES)
    }

    fn descriptor(&self, block: u64) -> Result<&Descriptor> {
        let offset = self.geometry.descriptors_block * BLOCK_BYTES + block * DESCRIPTOR_BYTES;
        Ok(self.region.get(Pm::new(offset))?)
    }

    fn free_inodes(&self) -> MutexGuard<'_, Vec<u64>> {
        locks::lock(&self.inodes)
    }

    fn take_inode(&self) -> Result<u64> {
        self.free_inodes().pop().ok_or(Errno::ENOSPC.into())
    }

    fn give_inode(&self, number: u64) {
        self.free_inodes().push(number);
    }

    fn attributes_of(&self, inode: &Inode, number: u64, index: &Index) -> Result<Attributes> {
        let words = [inode.mode_links.load(), inode.owner.load(), inode.generation_device.load()];
        let (size_bytes, blocks) = match index {
            Index::Names(names) => (names.count() * BLOCK_BYTES, names.count()),
            Index::Pages(extents) => (inode.size_bytes.load(), extents.blocks()),
        };
        Ok(Attributes {
            size_bytes,
            blocks,
            accessed_ns: inode.accessed_ns.load() as i64,
            modified_ns: inode.modified_ns.load() as i64,
            changed_ns: inode.changed_ns.load() as i64,
            ..attributes_of(number, words, self.region.offset_of(inode))?
        })
    }

    /// Sets a directory's times: a fence.
    fn touch_directory(&self, directory: &Exclusive<'_, SquirrelInfo>, now_ns: i64) -> Result<()> {
        let inode = Typed::start(self.inode(directory.info.inode)?);
        inode.set_times(&self.region, Some(now_ns), now_ns).persist(&self.region);
        directory.attributes.update(|attributes| {
            attributes.modified_ns = now_ns;
            attributes.changed_ns = now_ns;
        });
        Ok(())
    }

    /// Adds a link to a file or directory: a fence.
    fn add_link(&self, file: &Exclusive<'_, SquirrelInfo>) -> Result<Typed<'_, Inode, Clean, IncLink>> {
        let inode = Typed::start(self.inode(file.info.inode)?).inc_link(&self.region).persist(&self.region);
        file.attributes.update(|attributes| attributes.links += 1);
        Ok(inode)
    }

    fn attributes_of_new(&self, number: u64, new: &NewFile<'_>, now_ns: i64) -> Result<Attributes> {
        let inode = self.inode(self.inode_offset(number)?)?;
        let generation = (inode.generation_device.load() >> 32) as u32;
        let blocks = u64::from(new.kind == FileKind::Symlink);
        Ok(Attributes { blocks, ..new.attributes(number, generation.wrapping_add(1), now_ns) })
    }

    /// Stores the target of a new symbolic link: three fences.
    fn store_target(&self, link: &Typed<'_, Inode, Clean, Init>, block: u64, target: &[u8]) -> Result<()> {
        let pages = Pages::free(smallvec![Page { block, page: 0 }]).alloc(self, PAGE_OF_DATA)?.fence(self);
        let pages = pages.set_owner(self, link)?.fence(self);
        pages.written(self, self.region.stream_bytes(block * BLOCK_BYTES, target)?);
        Ok(())
    }

    fn create_named(
        &self,
        number: u64,
        target: Option<u64>,
        directory: &mut Exclusive<'_, SquirrelInfo>,
        name: &[u8],
        new: &NewFile<'_>,
        now_ns: i64,
    ) -> Result<Made<SquirrelInfo>> {
        let region = &self.region;
        let attributes = self.attributes_of_new(number, new, now_ns)?;
        let offset = self.inode_offset(number)?;
        let entry = self.free_entry(directory)?;
        self.touch_directory(directory, now_ns)?;
        let is_directory = new.kind == FileKind::Directory;
        let above = if is_directory { Some(self.add_link(directory)?) } else { None };
        let dentry = Typed::free(self.dentry(entry)?).set_name(region, name).persist(region);
        let inode = Typed::free(self.inode(offset)?).init(region, &attributes).persist(region);
        if let Some(block) = target {
            self.store_target(&inode, block, new.target)?;
        }
        match above {
            Some(above) => dentry.set_directory(region, &inode, &above).persist(region),
            None => dentry.set_file(region, &inode, new.kind).persist(region),
        };
        self.remember_name(directory.info, name, Slot { entry, number, kind: new.kind })?;
        let index = if is_directory { Index::Names(Names::default()) } else { Index::Pages(extents_of(target)) };
        let info = SquirrelInfo { inode: offset, parent: directory.number, index };
        Ok(Made { file: Loaded { attributes, info, inode: offset }, entry })
    }

    /// Takes the number from an entry, then the link, and the name.
    fn remove_name(
        &self,
        directory: &mut Exclusive<'_, SquirrelInfo>,
        name: &[u8],
        file: &mut Exclusive<'_, SquirrelInfo>,
        now_ns: i64,
    ) -> Result<()> {
        let region = &self.region;
        let slot = self.slot_of(directory.info, name)?;
        let attributes = file.attributes.get();
        let is_directory = attributes.kind == FileKind::Directory;
        self.touch_directory(directory, now_ns)?;
        let inode = Typed::start(self.inode(file.info.inode)?);
        let dentry = Typed::start(self.dentry(slot.entry)?);
        let links = links_without_name(&attributes);
        let (inode, dentry) = if is_directory {
            let dentry = dentry.clear(region).persist(region);
            let links_above = directory.attributes.get().links - 1;
            let above = Typed::start(self.inode(directory.info.inode)?);
            above.dec_link(region, &dentry, links_above).persist(region);
            directory.attributes.update(|attributes| attributes.links = links_above);
            (inode.dec_link(region, &dentry, links), dentry)
        } else {
            let inode = inode.set_times(region, None, now_ns).persist(region);
            let dentry = dentry.clear(region).persist(region);
            (inode.dec_link(region, &dentry, links), dentry)
        };
        let (_, dentry) = fence_both(region, inode.flush(region), dentry.dealloc(region).flush(region));
        file.attributes.update(|attributes| {
            attributes.links = links;
            attributes.changed_ns = now_ns;
        });
        self.forget_name(directory, name, slot, &dentry)
    }
}

/// The index of a new file, which has this block or none.
fn extents_of(block: Option<u64>) -> Extents {
    let mut extents = Extents::default();
    block.into_iter().for_each(|start| extents.insert(0, BlockRange { start, count: 1 }));
    extents
}

impl<M: Memory> PhysicalFs for SquirrelFs<M> {
    type Memory = M;
    type Info = SquirrelInfo;

    const NAME: &'static str = "SquirrelFS-like";
    const NAME_MAX: usize = format::NAME_MAX;

    fn mkfs(region: &MappedRegion<M>, options: &MkfsOptions) -> Result<()> {
        let Geometry { inodes, descriptors_block, first_block } = Geometry::of(region.length());
        let blocks = region.length() / BLOCK_BYTES;
        if blocks < BLOCKS_MIN.max(first_block + 16) {
            return Err(Error::TooSmall { length: region.length(), needed: BLOCKS_MIN * BLOCK_BYTES });
        }
        region.fence(region.stream_zeros(TABLE_BLOCK * BLOCK_BYTES, (first_block - TABLE_BLOCK) * BLOCK_BYTES)?);
        let root: &Inode = region.get(Pm::new(TABLE_BLOCK * BLOCK_BYTES))?;
        let mode = FileKind::Directory.mode_bits() | options.permissions & 0o7777;
        let cells = [
            (&root.mode_links, pair(mode, 2)),
            (&root.owner, pair(options.owner.0, options.owner.1)),
            (&root.modified_ns, options.now_ns as u64),
            (&root.changed_ns, options.now_ns as u64),
            (&root.accessed_ns, options.now_ns as u64),
            (&root.generation_device, pair(1, 0)),
            (&root.number, ROOT),
        ];
        cells.into_iter().for_each(|(cell, word)| region.set64(cell, word).unflushed());
        let rest = region.fence(region.flush_all(root));
        substrate::format(region, System::SquirrelFs, [inodes, descriptors_block, first_block, 0], rest)
    }

    fn mount(region: MappedRegion<M>, options: &MountOptions) -> Result<SquirrelFs<M>> {
        let identity = substrate::open(&region, System::SquirrelFs)?;
        let [inodes, descriptors_block, first_block, _] = identity.parameters;
        let geometry = Geometry { inodes, descriptors_block, first_block };
        let blocks = region.length() / BLOCK_BYTES;
        // A longer image has blocks without descriptors; they stay unused.
        let described = (first_block.saturating_sub(descriptors_block)) * (BLOCK_BYTES / DESCRIPTOR_BYTES);
        let tables = inodes.checked_mul(INODE_BYTES).map(|bytes| TABLE_BLOCK + bytes.div_ceil(BLOCK_BYTES));
        if tables.is_none_or(|end| end > descriptors_block) || first_block >= blocks.min(described) {
            return Err(Error::damaged("the superblock's geometry does not fit the image", 0));
        }
        let blocks = BlockRange { start: first_block, count: blocks.min(described) - first_block };
        let mut fs = SquirrelFs {
            region,
            mounts: identity.mounts,
            geometry,
            blocks: FreeBlocks::with_used(blocks, 1, |_| true),
            inodes: Mutex::default(),
            resting: Mutex::default(),
        };
        fs.recover(blocks, options.shards)?;
        Ok(fs)
    }

    durable_calls!();

    fn inode_place(&self, number: u64) -> Result<u64> {
        self.inode_offset(number)
    }

    fn load(&self, number: u64) -> Result<Loaded<SquirrelInfo>> {
        let offset = self.inode_offset(number)?;
        let inode = self.inode(offset)?;
        self.region.report_read(offset, size_of::<[u64; 8]>() as u64);
        let kept = locks::lock(&self.resting).remove(&number);
        let Resting { parent, index } =
            kept.unwrap_or_else(|| Resting { parent: 0, index: Index::Pages(Extents::default()) });
        let attributes = self.attributes_of(inode, number, &index)?;
        Ok(Loaded { attributes, info: SquirrelInfo { inode: offset, parent, index }, inode: offset })
    }

    fn forget(&self, number: u64, info: SquirrelInfo) -> Result<()> {
        if !matches!(&info.index, Index::Pages(extents) if extents.is_empty()) {
            locks::lock(&self.resting).insert(number, Resting { parent: info.parent, index: info.index });
        }
        Ok(())
    }

    fn evict(&self, number: u64, _: &Attributes, info: SquirrelInfo) -> Result<()> {
        let inode = Typed::orphan(self.inode(info.inode)?);
        let pages = match &info.index {
            Index::Names(names) => names.pages().collect(),
            Index::Pages(extents) => data::pages_of(extents.runs()),
        };
        let freed = self.free_pages(pages, &inode)?;
        inode.dealloc(&self.region, &freed).persist(&self.region);
        self.give_inode(number);
        Ok(())
    }

    fn lookup(&self, directory: Shared<'_, SquirrelInfo>, name: &[u8]) -> Result<Option<Found>> {
        self.find_name(directory, name)
    }

    fn entry_is_named(&self, entry: u64, name: &[u8]) -> bool {
        self.region.report_read(entry, DENTRY_BYTES);
        let mut bytes: NameBytes = [0; _];
        self.region.read_bytes(entry, &mut bytes).is_ok() && name_in(&bytes) == Some(name)
    }

    fn parent(&self, directory: Shared<'_, SquirrelInfo>) -> Result<u64> {
        Ok(directory.info.parent)
    }

    fn read_directory(
        &self,
        directory: Shared<'_, SquirrelInfo>,
        cookie: u64,
        visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        self.read_names(directory, cookie, visit)
    }

    fn create(
        &self,
        directory: &mut Exclusive<'_, SquirrelInfo>,
        name: Name<'_>,
        new: &NewFile<'_>,
        now_ns: i64,
    ) -> Result<Made<SquirrelInfo>> {
        let number = self.take_inode()?;
        let target = match new.kind {
            FileKind::Symlink => self.blocks.allocate().map(Some),
            _ => Ok(None),
        };
        let target = target.inspect_err(|_| self.give_inode(number))?;
        self.create_named(number, target, directory, name.bytes, new, now_ns).inspect_err(|_| {
            target.into_iter().for_each(|block| self.blocks.free(block));
            self.give_inode(number);
        })
    }

    fn link(
        &self,
        file: &mut Exclusive<'_, SquirrelInfo>,
        directory: &mut Exclusive<'_, SquirrelInfo>,
        name: Name<'_>,
        now_ns: i64,
    ) -> Result<u64> {
        let region = &self.region;
        let kind = file.attributes.get().kind;
        let entry = self.free_entry(directory)?;
        let above = Typed::start(self.inode(directory.info.inode)?).set_times(region, Some(now_ns), now_ns);
        let inode = Typed::start(self.inode(file.info.inode)?).set_times(region, None, now_ns);
        fence_both(region, above.flush(region), inode.flush(region));
        directory.attributes.update(|attributes| {
            attributes.modified_ns = now_ns;
            attributes.changed_ns = now_ns;
        });
        file.attributes.update(|attributes| attributes.changed_ns = now_ns);
        let inode = self.add_link(file)?;
        let dentry = Typed::free(self.dentry(entry)?).set_name(region, name.bytes).persist(region);
        dentry.set_file(region, &inode, kind).persist(region);
        self.remember_name(directory.info, name.bytes, Slot { entry, number: file.number, kind })?;
        Ok(entry)
    }

    fn unlink(
        &self,
        directory: &mut Exclusive<'_, SquirrelInfo>,
        name: Name<'_>,
        file: &mut Exclusive<'_, SquirrelInfo>,
        now_ns: i64,
    ) -> Result<()> {
        self.remove_name(directory, name.bytes, file, now_ns)
    }

    fn rmdir(
        &self,
        directory: &mut Exclusive<'_, SquirrelInfo>,
        name: Name<'_>,
        removed: &mut Exclusive<'_, SquirrelInfo>,
        now_ns: i64,
    ) -> Result<()> {
        self.check_empty(removed)?;
        self.remove_name(directory, name.bytes, removed, now_ns)
    }

    fn rename(&self, renaming: Renaming<'_, '_, SquirrelInfo>) -> Result<Renamed> {
        self.rename_file(renaming)
    }

    /// As published, each attribute has a fence.
    fn change(&self, file: &mut Exclusive<'_, SquirrelInfo>, changes: &Changes, now_ns: i64) -> Result<()> {
        let region = &self.region;
        let mut attributes = file.attributes.get();
        let inode = || Ok::<_, Error>(Typed::start(self.inode(file.info.inode)?));
        if let Some(accessed_ns) = changes.accessed_ns {
            attributes.accessed_ns = accessed_ns;
            inode()?.set_accessed(region, accessed_ns).persist(region);
        }
        if let Some(modified_ns) = changes.modified_ns {
            attributes.modified_ns = modified_ns;
            inode()?.set_modified(region, modified_ns).persist(region);
        }
        attributes.changed_ns = now_ns;
        inode()?.set_times(region, None, now_ns).persist(region);
        if changes.uid.is_some() || changes.gid.is_some() {
            attributes.uid = changes.uid.unwrap_or(attributes.uid);
            attributes.gid = changes.gid.unwrap_or(attributes.gid);
            inode()?.set_owner(region, attributes.uid, attributes.gid).persist(region);
        }
        if let Some(permissions) = changes.permissions {
            attributes.mode = attributes.mode & !0o7777 | permissions & 0o7777;
            inode()?.set_mode(region, attributes.mode).persist(region);
        }
        file.attributes.set(&attributes);
        Ok(())
    }

    fn read(&self, file: Shared<'_, SquirrelInfo>, offset: u64, into: &mut [u8]) -> Result<usize> {
        let attributes = file.attributes.get();
        if attributes.kind != FileKind::Regular {
            return Err(Errno::EINVAL.into());
        }
        self.read_pages(file, attributes.size_bytes, offset, into)
    }

    fn write(&self, file: &mut Exclusive<'_, SquirrelInfo>, offset: u64, bytes: &[u8], now_ns: i64) -> Result<()> {
        self.write_file(file, offset, bytes, now_ns)
    }

    fn truncate(&self, file: &mut Exclusive<'_, SquirrelInfo>, size_bytes: u64, now_ns: i64) -> Result<()> {
        self.truncate_file(file, size_bytes, now_ns)
    }

    fn read_link(&self, link: Shared<'_, SquirrelInfo>, into: &mut [u8]) -> Result<usize> {
        self.read_pages(link, link.attributes.get().size_bytes, 0, into)
    }

    fn space(&self) -> Result<Space> {
        let (blocks, blocks_free) = (self.blocks.all().count, self.blocks.count());
        Ok(Space { blocks, blocks_free, inodes: self.geometry.inodes, inodes_free: self.free_inodes().len() as u64 })
    }
}
