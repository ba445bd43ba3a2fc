//! A file system like NOVA (Xu and Swanson, FAST 2016).
//!
//! Invariants:
//!
//! - Each inode has a log of linked pages. The holder of its exclusive lock appends; an 8-byte
//!   store of the log's tail makes entries valid.
//! - An operation on several inodes records the words that it changes in a small undo journal.
//! - Data is copied on write.
//! - Free space and name indexes are in memory; scanning the logs rebuilds them.
//!
//! Flushes and fences of each call:
//!
//! | call | entries | fences |
//! | --- | --- | --- |
//! | create, symlink | inode, name; journal over the directory's tail and the inode's state | 4 |
//! | mkdir | as create; first the new directory's log with `.` and `..` | 5 |
//! | unlink of the last name, rmdir | removal; journal over the directory's tail and the inode's state | 4 |
//! | link, unlink of one of several names | name or removal, attributes; journal over both tails | 4 |
//! | rename | removal and name; journal over tails, change time, `..` | 4 |
//! | chmod and other attribute changes | attributes | 2 |
//! | write, truncate | data, an entry for each run of blocks | 2 |
//!
//! Differences from NOVA as published:
//!
//! - A removal entry holds the offset of the entry that it removes and marks that entry under the
//!   last fence. A scan therefore needs no table of names.
//! - The last unlink of a file appends nothing to that file's own log.
//! - The index of names is an ordered tree instead of a radix tree, with one descent for each use.
//! - A clean mount scans, too.
//! - There are no snapshots, checksums or replicas (those are NOVA-Fortis).

mod directory;
mod file;
mod format;
mod journal;
mod log;
mod recovery;
mod step;
mod table;

use crate::error::{Error, Result};
use crate::inode::{attributes_of, changed, pair};
use crate::multicore::named_memory::NamedMemory;
use crate::physical::{
    DirectoryEntry, Exclusive, Found, Index, Loaded, Made, MkfsOptions, MountOptions, Name, NewFile, PhysicalFs,
    Renamed, Renaming, Shared, Space, durable_calls,
};
use crate::substrate::{self, BlockRange, Extents, FreeBlocks, System};
use directory::Names;
use engine::format::FileKind;
use engine::{Attributes, Changes};
use format::{FIRST_BLOCK, FREE, INODE_BYTES, Inode, JOURNALS, JOURNALS_BLOCK, ORPHAN, ROOT, TABLES_BLOCK, USED};
use log::{Appending, Log};
use pmem::{BLOCK_BYTES, Commit64, MappedRegion, Memory, Pm};
use posix::Errno;
use std::sync::Mutex;
use step::Step;
use table::Inodes;

/// The smallest image: the fixed part, one segment and some free blocks.
const BLOCKS_MIN: u64 = FIRST_BLOCK + 64;

/// A mounted file system.
pub struct Nova<M: Memory> {
    region: MappedRegion<M>,
    mounts: u64,
    segment_blocks: u64,
    shards: usize,
    index: Index,
    blocks: FreeBlocks,
    inodes: Inodes,
    journals: Vec<Mutex<()>>,
}

/// The in-memory state of a file.
#[derive(Debug)]
pub struct NovaInfo {
    inode: u64,
    log: Log,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Directory(Names),
    Regular(Extents),
    Other,
}

/// Blocks of a segment of inodes: 1/256 of the image, rounded up to a power of two, at most 2 MiB.
fn segment_blocks(blocks: u64) -> u64 {
    (blocks / 256).next_power_of_two().clamp(1, 512)
}

/// The entries of a rename, and the link counts of its directories afterwards.
struct RenamePlan {
    /// Entry of the old name.
    old: u64,
    /// Entry of the new name, if it exists.
    replaced: Option<u64>,
    from_links: u32,
    /// Equal to `from_links` within one directory.
    to_links: u32,
}

impl<M: Memory> Nova<M> {
    fn made_attributes(&self, inode: &Inode, number: u64) -> Result<Attributes> {
        let words = [inode.mode_links.load(), inode.owner.load(), inode.generation_device.load()];
        let born = inode.born_ns.load() as i64;
        Ok(Attributes {
            size_bytes: inode.size_bytes.load(),
            accessed_ns: born,
            modified_ns: born,
            changed_ns: born,
            ..attributes_of(number, words, self.region.offset_of(inode))?
        })
    }

    /// Fills a free inode. It becomes valid when its state becomes `USED`.
    fn fill_inode(&self, offset: u64, number: u64, new: &NewFile<'_>, parent: u64, now_ns: i64) -> Result<Attributes> {
        let inode = self.inode(offset)?;
        let generation = (inode.generation_device.load() >> 32) as u32;
        let mut attributes = new.attributes(number, generation.wrapping_add(1), now_ns);
        if new.kind == FileKind::Directory {
            attributes.size_bytes = BLOCK_BYTES;
        }
        let words = [
            (&inode.mode_links, pair(attributes.mode, attributes.links)),
            (&inode.owner, pair(attributes.uid, attributes.gid)),
            (&inode.generation_device, pair(attributes.generation, attributes.device)),
            (&inode.size_bytes, attributes.size_bytes),
            (&inode.born_ns, now_ns as u64),
        ];
        words.into_iter().for_each(|(cell, word)| self.region.set64(cell, word).unflushed());
        // A free inode's words have no meaning, so these stores become visible with its state.
        self.region.retract(&inode.log_head, 0).unflushed();
        self.region.retract(&inode.log_tail, 0).unflushed();
        self.region.retract(&inode.changed_ns, now_ns as u64).unflushed();
        self.region.retract(&inode.parent_or_target, parent).unflushed();
        inode.nv_pointer.clear(&self.region);
        Ok(attributes)
    }

    /// Initialises an inode, which the step makes valid. If the step fails, the caller frees the
    /// inode number.
    fn make_inode<'w>(
        &'w self,
        (number, offset): (u64, u64),
        new: &NewFile<'_>,
        parent: u64,
        now_ns: i64,
        appending: &mut Appending<'_>,
        step: &mut Step<'w, 'w>,
    ) -> Result<Loaded<NovaInfo>> {
        let mut parent_or_target = if new.kind == FileKind::Directory { parent } else { 0 };
        if new.kind == FileKind::Symlink {
            let block = self.blocks.allocate()?;
            appending.owns(block);
            parent_or_target = block * BLOCK_BYTES;
            step.with(self.region.stream_bytes(parent_or_target, new.target)?);
        }
        let mut attributes = self.fill_inode(offset, number, new, parent_or_target, now_ns)?;
        let inode = self.inode(offset)?;
        let mut log = Log::default();
        if new.kind == FileKind::Directory {
            let own = self.append_own_names(inode, number, parent, now_ns)?;
            (log, attributes.blocks) = (own.log, own.log.pages);
            step.appendings.push(own);
        }
        step.with(self.region.flush_all(inode));
        step.change(&inode.state, USED);
        let body = match new.kind {
            FileKind::Directory => Body::Directory(Names::default()),
            FileKind::Regular => Body::Regular(Extents::default()),
            _ => Body::Other,
        };
        Ok(Loaded { attributes, info: NovaInfo { inode: offset, log, body }, inode: offset })
    }

    fn create_at(
        &self,
        at: (u64, u64),
        directory: &mut Exclusive<'_, NovaInfo>,
        name: &[u8],
        new: &NewFile<'_>,
        now_ns: i64,
    ) -> Result<Made<NovaInfo>> {
        let above = self.inode(directory.info.inode)?;
        self.reserve(directory.info, name)?;
        let is_directory = new.kind == FileKind::Directory;
        let links = directory.attributes.get().links + u32::from(is_directory);
        let mut step = Step::new();
        let mut appending = self.appending(&directory.info.log);
        let file = self.make_inode(at, new, directory.number, now_ns, &mut appending, &mut step)?;
        let entry = self.append_add(above, &mut appending, name, (at.0, new.kind), (links, now_ns))?;
        let log = step.log(above, appending);
        directory.info.log = self.finish(step)?[log];
        self.record_added(directory.info, name, Found { number: at.0, entry })?;
        touch(directory, links, now_ns);
        let entry = self.compact_after(directory, name, entry)?;
        Ok(Made { file, entry })
    }

    /// Rewrites a directory's log if that is due. Returns the offset of a name's entry afterwards.
    fn compact_after(&self, directory: &mut Exclusive<'_, NovaInfo>, name: &[u8], entry: u64) -> Result<u64> {
        let is_rewritten = self.compact_directory(directory)?;
        if is_rewritten && self.index == Index::Own {
            self.entry_of(directory.info, Name::new(name))
        } else {
            Ok(entry)
        }
    }

    /// Appends a new link count to a file's log.
    fn append_links<'n>(&'n self, file: &Exclusive<'_, NovaInfo>, links: u32, now_ns: i64) -> Result<Appending<'n>> {
        let mut appending = self.appending(&file.info.log);
        let changed = Attributes { links, changed_ns: now_ns, ..file.attributes.get() };
        self.append_attributes(self.inode(file.info.inode)?, &mut appending, &changed)?;
        Ok(appending)
    }

    /// Removes one link of a file within a step. Losing the last link makes the file an orphan.
    /// Returns the new link count and the index of the file's log in the step, if it has one.
    fn drop_link<'w>(
        &'w self,
        file: &Exclusive<'_, NovaInfo>,
        now_ns: i64,
        step: &mut Step<'w, 'w>,
    ) -> Result<(u32, Option<usize>)> {
        let inode = self.inode(file.info.inode)?;
        let attributes = file.attributes.get();
        if attributes.kind == FileKind::Directory || attributes.links <= 1 {
            step.change(&inode.state, ORPHAN);
            return Ok((0, None));
        }
        let links = attributes.links - 1;
        let log = step.log(inode, self.append_links(file, links, now_ns)?);
        Ok((links, Some(log)))
    }

    fn remove_name(
        &self,
        directory: &mut Exclusive<'_, NovaInfo>,
        name: Name<'_>,
        file: &mut Exclusive<'_, NovaInfo>,
        now_ns: i64,
    ) -> Result<()> {
        let above = self.inode(directory.info.inode)?;
        let entry = self.entry_of(directory.info, name)?;
        let is_directory = file.attributes.get().kind == FileKind::Directory;
        let links_above = directory.attributes.get().links - u32::from(is_directory);
        let mut step = Step::new();
        let mut appending = self.appending(&directory.info.log);
        self.append_remove(above, &mut appending, entry, (links_above, now_ns))?;
        step.log(above, appending);
        let (links, file_log) = self.drop_link(file, now_ns, &mut step)?;
        step.removed.push(entry);
        let logs = self.finish(step)?;
        directory.info.log = logs[0];
        if let Some(log) = file_log {
            file.info.log = logs[log];
        }
        self.record_removed(directory.info, name.bytes, entry)?;
        touch(directory, links_above, now_ns);
        file.attributes.update(|attributes| {
            attributes.links = links;
            attributes.changed_ns = now_ns;
        });
        self.compact_directory(directory).map(drop)
    }

    fn check_empty(file: &Exclusive<'_, NovaInfo>) -> Result<()> {
        match &file.info.body {
            Body::Directory(names) if names.count > 0 => Err(Errno::ENOTEMPTY.into()),
            _ => Ok(()),
        }
    }

    /// Finds the entries of a rename and the link counts that it leaves.
    fn plan_rename(&self, renaming: &Renaming<'_, '_, NovaInfo>) -> Result<RenamePlan> {
        let Renaming { from, from_name, to, to_name, file, other, exchange, .. } = renaming;
        let old = self.entry_of(from.info, *from_name)?;
        let there = to.as_ref().map_or(&*from.info, |to| &*to.info);
        let replaced = other.as_ref().map(|_| self.entry_of(there, *to_name)).transpose()?;
        self.reserve(there, to_name.bytes)?;

        // A moved subdirectory changes the link counts of both directories.
        let one = |file: &Exclusive<'_, NovaInfo>| i64::from(file.attributes.get().kind == FileKind::Directory);
        let comes = other.as_ref().map_or(0, |other| one(other));
        let mut from_links = from.attributes.get().links as i64 - one(file);
        let mut to_links = one(file) - comes;
        if *exchange {
            from_links += comes;
        }
        match to {
            Some(to) => to_links += to.attributes.get().links as i64,
            None => (from_links, to_links) = (from_links + to_links, from_links + to_links),
        }
        Ok(RenamePlan { old, replaced, from_links: from_links as u32, to_links: to_links as u32 })
    }

    /// Appends the removals and names of a rename to the directories' logs. Returns the new
    /// entries.
    fn append_rename<'w>(
        &'w self,
        renaming: &Renaming<'_, '_, NovaInfo>,
        plan: &RenamePlan,
        step: &mut Step<'w, 'w>,
    ) -> Result<Renamed> {
        let Renaming { from, from_name, to, to_name, file, other, exchange, now_ns } = renaming;
        let (from_stamp, to_stamp) = ((plan.from_links, *now_ns), (plan.to_links, *now_ns));
        let what = (file.number, file.attributes.get().kind);
        step.removed.push(plan.old);
        step.removed.extend(plan.replaced);

        let from_inode = self.inode(from.info.inode)?;
        let mut appending = self.appending(&from.info.log);
        self.append_remove(from_inode, &mut appending, plan.old, from_stamp)?;
        if let (None, Some(entry)) = (to, plan.replaced) {
            self.append_remove(from_inode, &mut appending, entry, from_stamp)?;
        }
        let mut from_entry = None;
        if let Some(other) = other.as_ref().filter(|_| *exchange) {
            let what = (other.number, other.attributes.get().kind);
            from_entry = Some(self.append_add(from_inode, &mut appending, from_name.bytes, what, from_stamp)?);
        }
        let Some(to) = to else {
            let to_entry = self.append_add(from_inode, &mut appending, to_name.bytes, what, from_stamp)?;
            step.log(from_inode, appending);
            return Ok(Renamed { to_entry, from_entry });
        };
        step.log(from_inode, appending);

        let to_inode = self.inode(to.info.inode)?;
        let mut appending = self.appending(&to.info.log);
        if let Some(entry) = plan.replaced {
            self.append_remove(to_inode, &mut appending, entry, to_stamp)?;
        }
        let to_entry = self.append_add(to_inode, &mut appending, to_name.bytes, what, to_stamp)?;
        step.log(to_inode, appending);
        Ok(Renamed { to_entry, from_entry })
    }

    /// Adds the changes of the renamed files' inodes to a step. Returns the new link count of a
    /// replaced file and the index of its log in the step, if it has one.
    fn change_renamed<'w>(
        &'w self,
        renaming: &Renaming<'_, '_, NovaInfo>,
        step: &mut Step<'w, 'w>,
    ) -> Result<Option<(u32, Option<usize>)>> {
        let Renaming { from, to, file, other, exchange, now_ns, .. } = renaming;
        let is_directory = |file: &Exclusive<'_, NovaInfo>| file.attributes.get().kind == FileKind::Directory;
        let inode = self.inode(file.info.inode)?;
        step.change(&inode.changed_ns, *now_ns as u64);
        if let Some(to) = to.as_ref().filter(|_| is_directory(file)) {
            step.change(&inode.parent_or_target, to.number);
        }
        let Some(other) = other else { return Ok(None) };
        if !exchange {
            return self.drop_link(other, *now_ns, step).map(Some);
        }
        let inode = self.inode(other.info.inode)?;
        step.change(&inode.changed_ns, *now_ns as u64);
        if to.is_some() && is_directory(other) {
            step.change(&inode.parent_or_target, from.number);
        }
        Ok(None)
    }

    /// Updates the in-memory state after a rename.
    fn note_renamed(
        &self,
        renaming: &mut Renaming<'_, '_, NovaInfo>,
        plan: &RenamePlan,
        renamed: &Renamed,
        dropped: Option<(u32, Option<usize>)>,
        logs: &[Log],
    ) -> Result<()> {
        let Renaming { from, from_name, to, to_name, file, other, now_ns, .. } = renaming;
        let now_ns = *now_ns;
        from.info.log = logs[0];
        self.record_removed(from.info, from_name.bytes, plan.old)?;
        if let (Some(entry), Some(other)) = (renamed.from_entry, other.as_ref()) {
            self.record_added(from.info, from_name.bytes, Found { number: other.number, entry })?;
        }
        touch(from, plan.from_links, now_ns);
        let target = match to {
            Some(to) => {
                to.info.log = logs[1];
                touch(to, plan.to_links, now_ns);
                to
            }
            None => from,
        };
        if let Some(entry) = plan.replaced {
            self.record_removed(target.info, to_name.bytes, entry)?;
        }
        self.record_added(target.info, to_name.bytes, Found { number: file.number, entry: renamed.to_entry })?;
        file.attributes.update(|attributes| attributes.changed_ns = now_ns);
        if let Some(other) = other {
            if let Some((_, Some(log))) = dropped {
                other.info.log = logs[log];
            }
            other.attributes.update(|attributes| {
                attributes.changed_ns = now_ns;
                if let Some((links, _)) = dropped {
                    attributes.links = links;
                }
            });
        }
        Ok(())
    }

    fn rename_step(&self, renaming: &mut Renaming<'_, '_, NovaInfo>) -> Result<Renamed> {
        let plan = self.plan_rename(renaming)?;
        let mut step = Step::new();
        let renamed = self.append_rename(renaming, &plan, &mut step)?;
        let dropped = self.change_renamed(renaming, &mut step)?;
        let logs = self.finish(step)?;
        self.note_renamed(renaming, &plan, &renamed, dropped, &logs)?;
        Ok(renamed)
    }
}

/// Updates the attributes of a directory whose names changed.
fn touch(directory: &Exclusive<'_, NovaInfo>, links: u32, now_ns: i64) {
    let pages = directory.info.log.pages;
    directory.attributes.update(|attributes| {
        attributes.links = links;
        attributes.modified_ns = now_ns;
        attributes.changed_ns = now_ns;
        attributes.blocks = pages;
    });
}

impl<M: Memory> PhysicalFs for Nova<M> {
    type Memory = M;
    type Info = NovaInfo;

    const NAME: &'static str = "NOVA-like";

    fn mkfs(region: &MappedRegion<M>, options: &MkfsOptions) -> Result<()> {
        let blocks = region.length() / BLOCK_BYTES;
        if blocks < BLOCKS_MIN {
            return Err(Error::TooSmall { length: region.length(), needed: BLOCKS_MIN * BLOCK_BYTES });
        }
        let segment_blocks = segment_blocks(blocks);
        let fixed = region.stream_zeros(TABLES_BLOCK * BLOCK_BYTES, (1 + JOURNALS) * BLOCK_BYTES)?;
        let first = region.stream_zeros(FIRST_BLOCK * BLOCK_BYTES, segment_blocks * BLOCK_BYTES)?;
        let durable = region.fence(fixed.and(first));
        let head: &Commit64 = region.get(Pm::new(TABLES_BLOCK * BLOCK_BYTES))?;
        let linked = region.flush(region.commit(head, FIRST_BLOCK * BLOCK_BYTES, durable));
        let root: &Inode = region.get(Pm::new(FIRST_BLOCK * BLOCK_BYTES + INODE_BYTES))?;
        let mode = FileKind::Directory.mode_bits() | options.permissions & 0o7777;
        region.set64(&root.mode_links, pair(mode, 2)).unflushed();
        region.set64(&root.owner, pair(options.owner.0, options.owner.1)).unflushed();
        region.set64(&root.generation_device, pair(1, 0)).unflushed();
        region.set64(&root.size_bytes, BLOCK_BYTES).unflushed();
        region.set64(&root.born_ns, options.now_ns as u64).unflushed();
        region.retract(&root.changed_ns, options.now_ns as u64).unflushed();
        region.retract(&root.parent_or_target, ROOT).unflushed();
        // The superblock comes last and makes the image valid.
        region.commit(&root.state, USED, durable).unflushed();
        let rest = region.fence(linked.and(region.flush_all(root)));
        debug_assert_eq!(JOURNALS_BLOCK + JOURNALS, FIRST_BLOCK);
        substrate::format(region, System::Nova, [segment_blocks, 0, 0, 0], rest)
    }

    fn mount(region: MappedRegion<M>, options: &MountOptions) -> Result<Nova<M>> {
        let identity = substrate::open(&region, System::Nova)?;
        let [segment_blocks, ..] = identity.parameters;
        let blocks = region.length() / BLOCK_BYTES;
        if !(1..=512).contains(&segment_blocks) || blocks < BLOCKS_MIN {
            return Err(Error::damaged("the superblock's segment size is invalid", 0));
        }
        let shards = options.shards.clamp(1, JOURNALS as usize);
        let blocks = BlockRange { start: FIRST_BLOCK, count: blocks - FIRST_BLOCK };
        let mut nova = Nova {
            region,
            mounts: identity.mounts,
            segment_blocks,
            shards,
            // Recovery needs no index of names.
            index: Index::Vfs,
            blocks: FreeBlocks::with_used(blocks, 1, |_| true),
            inodes: Inodes::new(shards),
            journals: (0..JOURNALS).map(|_| Mutex::new(())).collect(),
        };
        nova.recover(blocks)?;
        nova.index = options.index;
        Ok(nova)
    }

    durable_calls!();

    fn inode_place(&self, number: u64) -> Result<u64> {
        self.find_inode(number)
    }

    fn load(&self, number: u64) -> Result<Loaded<NovaInfo>> {
        let offset = self.find_inode(number)?;
        if self.inode(offset)?.state.load_acquire() != USED {
            return Err(Error::damaged("an entry refers to a free inode", offset));
        }
        let (attributes, info) = self.load_inode(offset, number, &mut |_| {})?;
        Ok(Loaded { attributes, info, inode: offset })
    }

    fn forget(&self, _: u64, _: NovaInfo) -> Result<()> {
        Ok(())
    }

    fn evict(&self, number: u64, _: &Attributes, info: NovaInfo) -> Result<()> {
        let inode = self.inode(info.inode)?;
        let target = inode.parent_or_target.load();
        let is_symlink = inode.mode_links.load() >> 44 == FileKind::Symlink as u64;
        // The inode is durably free before any of its blocks or its number is reused.
        let freed = self.region.retract(&inode.state, FREE);
        self.region.persist(freed);
        self.free_log(&info.log)?;
        if let Body::Regular(extents) = &info.body {
            extents.runs().for_each(|(_, run)| self.blocks.free_range(run));
        }
        if is_symlink {
            self.blocks.free(target / BLOCK_BYTES);
        }
        self.inodes.give(number);
        Ok(())
    }

    fn lookup(&self, directory: Shared<'_, NovaInfo>, name: &[u8]) -> Result<Option<Found>> {
        self.lookup_name(directory, name)
    }

    fn entry_is_named(&self, entry: u64, name: &[u8]) -> bool {
        self.is_named(entry, name)
    }

    fn parent(&self, directory: Shared<'_, NovaInfo>) -> Result<u64> {
        Ok(self.inode(directory.info.inode)?.parent_or_target.load())
    }

    fn read_directory(
        &self,
        directory: Shared<'_, NovaInfo>,
        cookie: u64,
        visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        self.read_names(directory, cookie, visit)
    }

    fn create(
        &self,
        directory: &mut Exclusive<'_, NovaInfo>,
        name: Name<'_>,
        new: &NewFile<'_>,
        now_ns: i64,
    ) -> Result<Made<NovaInfo>> {
        let at = self.take_inode()?;
        self.create_at(at, directory, name.bytes, new, now_ns).inspect_err(|_| self.inodes.give(at.0))
    }

    fn link(
        &self,
        file: &mut Exclusive<'_, NovaInfo>,
        directory: &mut Exclusive<'_, NovaInfo>,
        name: Name<'_>,
        now_ns: i64,
    ) -> Result<u64> {
        self.reserve(directory.info, name.bytes)?;
        let above = self.inode(directory.info.inode)?;
        let attributes = file.attributes.get();
        let links_above = directory.attributes.get().links;
        let mut step = Step::new();
        let mut appending = self.appending(&directory.info.log);
        let what = (file.number, attributes.kind);
        let entry = self.append_add(above, &mut appending, name.bytes, what, (links_above, now_ns))?;
        step.log(above, appending);
        let links = attributes.links + 1;
        step.log(self.inode(file.info.inode)?, self.append_links(file, links, now_ns)?);
        let logs = self.finish(step)?;
        (directory.info.log, file.info.log) = (logs[0], logs[1]);
        self.record_added(directory.info, name.bytes, Found { number: file.number, entry })?;
        touch(directory, links_above, now_ns);
        file.attributes.update(|attributes| {
            attributes.links = links;
            attributes.changed_ns = now_ns;
        });
        self.compact_file(file)?;
        self.compact_after(directory, name.bytes, entry)
    }

    fn unlink(
        &self,
        directory: &mut Exclusive<'_, NovaInfo>,
        name: Name<'_>,
        file: &mut Exclusive<'_, NovaInfo>,
        now_ns: i64,
    ) -> Result<()> {
        self.remove_name(directory, name, file, now_ns)
    }

    fn rmdir(
        &self,
        directory: &mut Exclusive<'_, NovaInfo>,
        name: Name<'_>,
        removed: &mut Exclusive<'_, NovaInfo>,
        now_ns: i64,
    ) -> Result<()> {
        Self::check_empty(removed)?;
        self.remove_name(directory, name, removed, now_ns)
    }

    fn rename(&self, mut renaming: Renaming<'_, '_, NovaInfo>) -> Result<Renamed> {
        if let Some(other) = renaming.other.as_ref().filter(|_| !renaming.exchange) {
            Self::check_empty(other)?;
        }
        let mut renamed = self.rename_step(&mut renaming)?;
        let Renaming { from, from_name, to, to_name, .. } = renaming;
        let (to_is_from, Renamed { to_entry, from_entry }) = (to.is_none(), &mut renamed);
        if self.compact_directory(from)? && self.index == Index::Own {
            if let Some(entry) = from_entry {
                *entry = self.entry_of(from.info, from_name)?;
            }
            if to_is_from {
                *to_entry = self.entry_of(from.info, to_name)?;
            }
        }
        if let Some(to) = to {
            *to_entry = self.compact_after(to, to_name.bytes, *to_entry)?;
        }
        Ok(renamed)
    }

    fn change(&self, file: &mut Exclusive<'_, NovaInfo>, changes: &Changes, now_ns: i64) -> Result<()> {
        let attributes = changed(file.attributes.get(), changes, now_ns);
        let inode = self.inode(file.info.inode)?;
        let mut appending = self.appending(&file.info.log);
        self.append_attributes(inode, &mut appending, &attributes)?;
        file.info.log = self.commit_log(inode, appending)?;
        file.attributes.set(&attributes);
        match file.info.body {
            Body::Directory(_) => self.compact_directory(file).map(drop),
            _ => self.compact_file(file),
        }
    }

    fn read(&self, file: Shared<'_, NovaInfo>, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.read_file(file, offset, into)
    }

    fn write(&self, file: &mut Exclusive<'_, NovaInfo>, offset: u64, bytes: &[u8], now_ns: i64) -> Result<()> {
        self.write_file(file, offset, bytes, now_ns)
    }

    fn truncate(&self, file: &mut Exclusive<'_, NovaInfo>, size_bytes: u64, now_ns: i64) -> Result<()> {
        self.truncate_file(file, size_bytes, now_ns)
    }

    fn read_link(&self, link: Shared<'_, NovaInfo>, into: &mut [u8]) -> Result<usize> {
        let length = link.attributes.get().size_bytes.min(into.len() as u64).min(BLOCK_BYTES) as usize;
        let target = self.inode(link.info.inode)?.parent_or_target.load();
        self.region.read_bytes(target, &mut into[..length])?;
        Ok(length)
    }

    fn named_memory(&self) -> Vec<NamedMemory> {
        let size = size_of::<Mutex<()>>() as u64;
        let journals =
            NamedMemory::at("lock of journal", self.journals.as_ptr() as u64, self.journals.len() as u64 * size);
        let mut places = vec![journals.each(size)];
        places.extend(self.inodes.named_memory());
        places.extend(self.blocks.named_memory());
        places
    }

    fn space(&self) -> Result<Space> {
        let blocks = self.blocks.all().count;
        let blocks_free = self.blocks.count();
        let used = self.inodes.used();
        let inodes_free = blocks_free / self.segment_blocks * self.per_segment();
        Ok(Space { blocks, blocks_free, inodes: used + inodes_free, inodes_free })
    }
}
