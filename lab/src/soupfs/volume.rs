//! A mounted image: the state that system calls, persisters and the scan share.

use super::format::{
    BucketLine, EPOCHS, InodeLines, LEVEL_MAX, Link, PAGE_LINES, SIZE_BYTES_MAX, TABLE, entry_lines, identity,
    identity_word, inode_lines, target,
};
use super::inode::{AddMark, Added, Change, Info, Inode, Line, Node};
use super::list::{Directory, View};
use super::scan::Scan;
use super::space::{Space, bits};
use crate::error::{Error, Result};
use crate::inode::AttributeCell;
use crate::locks::lock;
use crate::physical::{Loaded, MkfsOptions, SyncFile};
use crate::substrate::{self, System};
use engine::Attributes;
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, Cell64, Durable, LINE_BYTES, MappedRegion, Memory, Pm};
use posix::Errno;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, OnceLock, RwLock};

/// Number of pending nodes that wakes a persister early.
const NODES_WAKE: u64 = 1 << 14;
/// Number of pending nodes from which system calls persist nodes themselves, to bound memory.
const NODES_MAX: u64 = 1 << 20;
/// The smallest image.
const PAGES_MIN: u64 = 16;

/// The shared state.
pub struct Volume<M: Memory> {
    /// The image.
    pub region: MappedRegion<M>,
    /// Number of mounts, including this one.
    pub mounts: u64,
    /// Offset of the root's inode.
    pub root: u64,
    seed: u32,
    /// Free lines and pages.
    pub space: Space,
    /// Everything reachable when this was created is durable; see [`Volume::settled`].
    settled: Durable,
    sequence: AtomicU64,
    generation: AtomicU32,
    /// Number of pending nodes.
    pub nodes: AtomicU64,
    /// Inodes that have nodes or are to be freed.
    pub dirty: Mutex<VecDeque<Arc<Inode>>>,
    /// Held shared while a thread drains the dirty list. A thread that needs the drains finished
    /// takes it exclusively once.
    pub draining: RwLock<()>,
    /// Where persisters sleep; used with `dirty`.
    pub wake: Condvar,
    /// Notifies persisters to end.
    pub stop: AtomicBool,
    /// Inodes that the VFS layer released but that have pending changes, and directories changed in
    /// this mount, for their latest buckets.
    lingering: Mutex<HashMap<u64, Arc<Inode>, BuildHasherDefault<DefaultHasher>>>,
    /// The scan after a crash.
    pub scan: Scan,
    /// What syncing a file makes durable.
    pub sync_file: SyncFile,
    /// Why a persister failed. Every later sync returns this error.
    trouble: OnceLock<Error>,
}

/// Makes an empty file system.
pub fn mkfs<M: Memory>(region: &MappedRegion<M>, options: &MkfsOptions) -> Result<()> {
    let pages = region.length() / BLOCK_BYTES;
    if pages < PAGES_MIN {
        return Err(Error::TooSmall { length: region.length(), needed: PAGES_MIN * BLOCK_BYTES });
    }
    let first_page = 1 + (pages * 8).div_ceil(BLOCK_BYTES);
    let root = first_page * BLOCK_BYTES;
    let mut flushed = region.stream_zeros(TABLE, root - TABLE)?;
    let table = region.slice::<Cell64>(Pm::new(TABLE), pages)?;
    for page in 0..=first_page {
        let used = if page < first_page { u64::MAX } else { bits(0, inode_lines(FileKind::Directory)) };
        flushed = flushed.and(region.flush(region.set64(&table[page as usize], used)));
    }
    let inode = region.get(Pm::<InodeLines>::new(root))?;
    flushed = flushed.and(region.stream_zeros(root, LINE_BYTES * inode_lines(FileKind::Directory))?);
    let mode = FileKind::Directory.mode_bits() | options.permissions & 0o7777;
    let owner = (options.owner.0 as u64) << 32 | options.owner.1 as u64;
    region.set64(&inode.identity, identity_word(mode, 2)).unflushed();
    region.set64(&inode.owner, owner).unflushed();
    for time in [&inode.modified_ns, &inode.changed_ns, &inode.accessed_ns] {
        region.set64(time, options.now_ns as u64).unflushed();
    }
    let line = region.get(Pm::<BucketLine>::new(root + 2 * LINE_BYTES))?;
    empty_table(region, line);
    let rest = region.fence(flushed.and(region.flush_all(inode)).and(region.flush_all(line)));
    // Any number is valid: the seed makes hash collisions differ between images.
    let seed = pmem::crc32c(pages as u32, &options.now_ns.to_le_bytes()) as u64;
    substrate::format(region, System::SoupFs, [pages, first_page, root, seed], rest)
}

/// Stores an empty table, unflushed.
pub fn empty_table<M: Memory>(region: &MappedRegion<M>, line: &BucketLine) {
    region.set64(&line.level, line.first.len().ilog2() as u64).unflushed();
    line.pages.iter().for_each(|page| region.retract(page, 0).unflushed());
    for (index, first) in line.first.iter().enumerate() {
        region.retract(first, if index == 0 { Link::End.word() } else { 0 }).unflushed();
    }
}

impl<M: Memory> Volume<M> {
    /// Mounts. There is no recovery: only the superblock and the allocation table are read.
    pub fn mount(region: MappedRegion<M>) -> Result<Volume<M>> {
        let identity = substrate::open(&region, System::SoupFs)?;
        let [pages, first_page, root, seed] = identity.parameters;
        if first_page < 2
            || first_page >= pages
            || pages > region.length() / BLOCK_BYTES
            || root != first_page * BLOCK_BYTES
        {
            return Err(Error::damaged("the superblock's parameters are invalid", 0));
        }
        let space = Space::load(&region, pages, first_page)?;
        let scan = Scan::new(&space, identity.was_clean);
        let settled = region.fence(pmem::Flushed::nothing());
        let volume = Volume {
            mounts: identity.mounts,
            root,
            seed: seed as u32,
            space,
            settled,
            sequence: AtomicU64::new(1),
            // Generations of one mount do not overlap those of the next thousands of mounts.
            generation: AtomicU32::new((identity.mounts as u32) << 20 | 1),
            nodes: AtomicU64::new(0),
            dirty: Mutex::default(),
            draining: RwLock::default(),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            lingering: Mutex::default(),
            scan,
            sync_file: SyncFile::default(),
            trouble: OnceLock::new(),
            region,
        };
        if volume.mounts.is_multiple_of(EPOCHS) {
            volume.clear_latest_links()?;
        }
        Ok(volume)
    }

    /// Keeps the first error of a background thread.
    pub fn fail(&self, error: Error) {
        let _ = self.trouble.set(error);
    }

    /// The first error of a background thread.
    pub fn trouble(&self) -> Result<()> {
        self.trouble.get().map_or(Ok(()), |error| Err(*error))
    }

    /// Proof for links to what the consistent view already holds: a word that leads there may be
    /// copied.
    pub fn settled(&self) -> Durable {
        self.settled
    }

    /// The next node's number.
    pub fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Relaxed)
    }

    /// The last number assigned.
    pub fn sequence(&self) -> u64 {
        self.sequence.load(Acquire)
    }

    /// A new file's generation.
    pub fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Relaxed)
    }

    /// Hash of a name.
    pub fn hash(&self, name: &[u8]) -> u32 {
        // Buckets use the low bits. A checksum alone is too regular for short names that differ in
        // one bit.
        let hash = pmem::crc32c(self.seed, name).wrapping_mul(0x9e37_79b1);
        hash ^ hash >> 15
    }

    /// An inode's lines.
    pub fn inode_lines(&self, offset: u64) -> Result<&InodeLines> {
        self.region.report_read(offset, LINE_BYTES);
        Ok(self.region.get(Pm::new(offset))?)
    }

    /// Takes lines. Without free lines, first persists pending changes and then runs the scan,
    /// since both may free some.
    pub fn take_lines(&self, lines: u64) -> Result<u64> {
        self.make_room_for(|space| space.take_lines(lines))
    }

    /// Takes pages, all or none.
    pub fn take_pages(&self, count: u64) -> Result<Vec<u64>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        self.make_room_for(|space| space.take_pages(count))
    }

    fn make_room_for<T>(&self, take: impl Fn(&Space) -> Option<T>) -> Result<T> {
        if let Some(taken) = take(&self.space) {
            return Ok(taken);
        }
        self.persist_all()?;
        if let Some(taken) = take(&self.space) {
            return Ok(taken);
        }
        self.finish_scan()?;
        take(&self.space).ok_or(Errno::ENOSPC.into())
    }

    /// Bounds the number of pending nodes. Called before an operation takes any lock.
    pub fn throttle(&self) -> Result<()> {
        if self.nodes.load(Relaxed) > NODES_MAX {
            self.persist_all()?;
        }
        Ok(())
    }

    /// Records an operation on an inode: its attributes, and its change if that is more than
    /// attributes.
    pub fn record(&self, inode: &Arc<Inode>, attributes: &Attributes, change: Option<Node>) {
        let mut state = inode.state();
        state.attributes = *attributes;
        let mut added = 0;
        if let Some(node) = change {
            if !matches!(node.change, Change::SizeChanged) {
                state.nodes.push_back(node);
                added += 1;
            } else if !state.size_noted {
                state.size_noted = true;
                state.nodes.push_back(node);
                added += 1;
            }
        }
        if !state.attributes_noted {
            state.attributes_noted = true;
            state.nodes.push_back(Node { sequence: self.next_sequence(), change: Change::AttributesChanged });
            added += 1;
        }
        if !state.listed {
            state.listed = true;
            lock(&self.dirty).push_back(Arc::clone(inode));
        }
        drop(state);
        if added == 0 {
            return;
        }
        let before = self.nodes.fetch_add(added, Relaxed);
        if before < NODES_WAKE && before + added >= NODES_WAKE {
            self.wake.notify_one();
        }
    }

    /// Puts an inode on the dirty list.
    pub fn list(&self, inode: &Arc<Inode>) {
        let mut state = inode.state();
        if !state.listed {
            state.listed = true;
            lock(&self.dirty).push_back(Arc::clone(inode));
        }
    }

    /// Records an added entry, for nodes that wait for it.
    pub fn record_added(&self, inode: &Arc<Inode>, entry: u64, mark: &Arc<AddMark>) {
        let mut state = inode.state();
        state.naming_nodes += 1;
        state.added.retain(|added| !added.mark.is_done());
        state.added.push(Added { entry, mark: Arc::clone(mark), is_cancellable: false });
    }

    /// Loads an inode.
    pub fn load(&self, number: u64) -> Result<Loaded<Info>> {
        let offset =
            number.checked_mul(LINE_BYTES).ok_or_else(|| Error::damaged("an inode number is too large", number))?;
        let lingering = lock(&self.lingering).remove(&number);
        let inode = match lingering {
            Some(inode) => inode,
            None => self.load_from_image(offset)?,
        };
        let mut state = inode.state();
        state.loaded = true;
        let mut buckets = std::mem::take(&mut state.buckets);
        if inode.is_directory() {
            buckets.level = buckets.level.max(self.consistent_level(Directory { inode: offset })?);
        }
        let attributes = state.attributes;
        drop(state);
        let attributes = self.corrected(&inode, attributes);
        Ok(Loaded { attributes, info: Info { inode, buckets }, inode: offset })
    }

    /// Loads an inode from the consistent view.
    pub fn load_from_image(&self, offset: u64) -> Result<Arc<Inode>> {
        let lines = self.inode_lines(offset)?;
        let (kind, mode, links) = identity(lines.identity.load_acquire(), offset)?;
        let (owner, device) = (lines.owner.load(), lines.device.load());
        let size = lines.size_or_name.load_acquire();
        let (size_bytes, blocks, parent) = match kind {
            FileKind::Directory => (BLOCK_BYTES, 1, self.parent_of(offset, size)?),
            FileKind::Regular => (size, self.count_blocks(lines.root.load_acquire())?, 0),
            _ => (size, 0, 0),
        };
        if size_bytes > SIZE_BYTES_MAX {
            return Err(Error::damaged("a file's size exceeds the maximum", offset));
        }
        let attributes = Attributes {
            number: offset / LINE_BYTES,
            generation: device as u32,
            kind,
            mode,
            links,
            uid: (owner >> 32) as u32,
            gid: owner as u32,
            device: (device >> 32) as u32,
            size_bytes,
            blocks,
            accessed_ns: lines.accessed_ns.load() as i64,
            flags: engine::FileFlags::NONE,
            modified_ns: lines.modified_ns.load() as i64,
            changed_ns: lines.changed_ns.load() as i64,
        };
        let names = if kind == FileKind::Directory { 1 } else { links };
        let size_bytes = if kind == FileKind::Regular { size } else { 0 };
        Ok(Inode::new(attributes, parent, Line { links, names, size_bytes, is_written: true }))
    }

    /// The directory that contains a directory's name.
    pub fn parent_of(&self, inode: u64, name: u64) -> Result<u64> {
        if inode == self.root {
            return Ok(inode);
        }
        let entry = self.entry(name)?;
        if target(entry.inode.load(), name)? != Some((inode, FileKind::Directory)) {
            return Err(Error::damaged("a directory and its name do not match", inode));
        }
        let parent = entry.directory.load();
        let (kind, _, _) = identity(self.inode_lines(parent)?.identity.load(), parent)?;
        match kind {
            FileKind::Directory => Ok(parent),
            _ => Err(Error::damaged("a directory's parent is no directory", inode)),
        }
    }

    /// Releases an inode that has names.
    pub fn forget(&self, info: Info) -> Result<()> {
        let Info { inode, buckets } = info;
        let attributes = inode.state().attributes;
        if self.corrected(&inode, attributes).links == 0 {
            return self.evict(inode);
        }
        let mut lingering = lock(&self.lingering);
        let mut state = inode.state();
        state.loaded = false;
        state.buckets = buckets;
        if !state.is_settled() || !state.buckets.are_unused() {
            lingering.insert(inode.number(), Arc::clone(&inode));
        }
        Ok(())
    }

    /// Releases a lingering inode that has no pending changes left.
    pub fn release(&self, inode: &Arc<Inode>) {
        let mut lingering = lock(&self.lingering);
        let state = inode.state();
        if !state.loaded && state.is_settled() && state.buckets.are_unused() {
            lingering.remove(&inode.number());
        }
    }

    /// Attributes without the excess links that a crash left; see [`Scan`].
    pub fn corrected(&self, inode: &Arc<Inode>, attributes: Attributes) -> Attributes {
        let Some(excess) = self.scan.take_correction(inode.offset) else { return attributes };
        let links = attributes.links.saturating_sub(excess);
        {
            let mut line = inode.line();
            line.links = line.links.saturating_sub(excess);
            if !inode.is_directory() {
                line.names = line.names.saturating_sub(excess);
            }
        }
        let attributes = Attributes { links, ..attributes };
        self.record(inode, &attributes, None);
        attributes
    }

    /// Corrects a file's links before an operation counts them.
    pub fn correct(&self, inode: &Arc<Inode>, cell: &AttributeCell) {
        if self.scan.has_corrections() {
            let attributes = self.corrected(inode, cell.get());
            cell.set(&attributes);
        }
    }

    /// Clears the latest links of all reachable entries, because mount numbers are about to repeat.
    fn clear_latest_links(&self) -> Result<()> {
        let mut directories = vec![self.root];
        while let Some(inode) = directories.pop() {
            self.walk(Directory { inode }, View::Consistent, 0, &mut |offset, entry| {
                self.region.set64(&entry.latest_next, 0).unflushed();
                if let Some((inode, FileKind::Directory)) = target(entry.inode.load(), offset)?
                    && self.inode_lines(inode)?.size_or_name.load() == offset
                {
                    directories.push(inode);
                }
                Ok(true)
            })?;
        }
        Ok(())
    }

    /// Pages in use, free pages, and the possible number of files: figures for statfs.
    pub fn figures(&self) -> crate::physical::Space {
        let (pages, free) = (self.space.pages(), self.space.free_pages());
        // A file takes at least an inode and an entry with a short name.
        let files_per_page = PAGE_LINES / (inode_lines(FileKind::Regular) + entry_lines(1));
        crate::physical::Space {
            blocks: pages,
            blocks_free: free,
            inodes: pages * files_per_page,
            inodes_free: free * files_per_page,
        }
    }
}

// The level is used as a shift.
const _: () = assert!(LEVEL_MAX < 32);

impl<M: Memory> std::fmt::Debug for Volume<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("mounts", &self.mounts).field("nodes", &self.nodes).finish_non_exhaustive()
    }
}
