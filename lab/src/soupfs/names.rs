//! Names: what system calls change in directories, in the latest view only. Nothing here flushes or
//! fences.

use super::format::{
    EntryHead, INLINE_TARGET_BYTES, Latest, Link, NAME_BYTES_MAX, TARGET_BYTES_MAX, Tag, entry_lines, inode_lines,
    target, target_lines, target_word,
};
use super::inode::{AddMark, Added, Change, Info, Inode, Line, Node};
use super::list::{Buckets, ChainPosition, Directory, Gap, View};
use super::volume::{Volume, empty_table};
use crate::error::{Error, Result};
use crate::physical::{DirectoryEntry, Exclusive, Found, Loaded, Made, NewFile, Renamed, Renaming, Shared};
use engine::Attributes;
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, LINE_BYTES, Memory, Pm};
use posix::Errno;
use std::sync::{Arc, PoisonError};

/// The result of a search for a name.
struct Search {
    /// The entry and the position before it.
    found: Option<(u64, ChainPosition)>,
    /// The gap and tie for a new entry; none if all ties of the hash are taken.
    room: Option<(Gap, u8)>,
    hash: u32,
}

impl<M: Memory> Volume<M> {
    fn search(&self, directory: Directory, buckets: &Buckets, name: &[u8]) -> Result<Search> {
        let hash = self.hash(name);
        let view = View::Latest(buckets);
        let tag = |tie| Tag { hash, length: name.len() as u8, tie };
        let mut gap = self.seek(directory, view, tag(1).key())?;
        let mut search = Search { found: None, room: None, hash };
        let mut last_tie = 0;
        while let Link::Entry(offset) = gap.next {
            let entry = self.entry(offset)?;
            let other = Tag::from_word(entry.tag.load());
            if other.hash != hash {
                break;
            }
            if other.tie <= last_tie {
                return Err(Error::damaged("entries of a directory are out of order", offset));
            }
            if other.tie - last_tie > 1 && search.room.is_none() {
                search.room = Some((gap, last_tie + 1));
            }
            if other.length as usize == name.len() && self.name_is(offset, name) && self.counts(offset, entry)? {
                search.found = Some((offset, gap.before));
                return Ok(search);
            }
            last_tie = other.tie;
            gap.before = ChainPosition::Entry(offset);
            gap.next = self
                .link(directory, view, gap.before)?
                .ok_or_else(|| Error::damaged("a directory's list is interrupted", offset))?;
        }
        if search.room.is_none() && last_tie < u8::MAX {
            search.room = Some((gap, last_tie + 1));
        }
        Ok(search)
    }

    fn name_is(&self, entry: u64, name: &[u8]) -> bool {
        let at = entry + size_of::<EntryHead>() as u64;
        if entry_lines(name.len()) > 1 {
            self.region.report_read(entry + LINE_BYTES, name.len() as u64);
        }
        self.region.bytes_equal(at, name)
    }

    /// Whether an entry with this name is at an offset. The offset may hold anything.
    pub fn entry_is_named(&self, entry: u64, name: &[u8]) -> bool {
        self.tag(entry).is_ok_and(|tag| tag.length as usize == name.len()) && self.name_is(entry, name)
    }

    /// Whether an entry of the latest list is a valid name. Dead entries are not, nor is a
    /// directory's entry if its inode refers to another one: a crash during a rename can leave
    /// either entry of a directory behind.
    pub fn counts(&self, offset: u64, entry: &EntryHead) -> Result<bool> {
        let Some((inode, kind)) = target(entry.inode.load(), offset)? else { return Ok(false) };
        if kind != FileKind::Directory || self.latest(entry)?.is_some_and(|latest| latest.fresh) {
            return Ok(true);
        }
        Ok(self.inode_lines(inode)?.size_or_name.load_acquire() == offset)
    }

    /// Looks up a name.
    pub fn lookup(&self, directory: &Shared<'_, Info>, name: &[u8]) -> Result<Option<Found>> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let at = Directory { inode: directory.info.inode.offset };
        let Some((entry, _)) = self.search(at, &directory.info.buckets, name)?.found else { return Ok(None) };
        let target = target(self.entry(entry)?.inode.load(), entry)?;
        Ok(target.map(|(inode, _)| Found { number: inode / LINE_BYTES, entry }))
    }

    /// Visits the names of a directory in the order of their keys, which are the cookies.
    pub fn read_directory(
        &self,
        directory: &Shared<'_, Info>,
        cookie: u64,
        visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        let at = Directory { inode: directory.info.inode.offset };
        let mut name = [0u8; NAME_BYTES_MAX];
        self.walk(at, View::Latest(&directory.info.buckets), cookie + 1, &mut |offset, entry| {
            if !self.counts(offset, entry)? {
                return Ok(true);
            }
            let Some((inode, kind)) = target(entry.inode.load(), offset)? else { return Ok(true) };
            let tag = Tag::from_word(entry.tag.load());
            let name = &mut name[..tag.length as usize];
            self.region.read_bytes(offset + size_of::<EntryHead>() as u64, name)?;
            let number = inode / LINE_BYTES;
            Ok(visit(&DirectoryEntry { name, number, kind, cookie: tag.key(), entry: offset }))
        })
    }

    /// Writes an entry (to the cache) and inserts it into the latest list, in place of `replaced`
    /// if given. Returns its bucket.
    fn insert(
        &self,
        directory: &mut Exclusive<'_, Info>,
        entry: u64,
        name: &[u8],
        inode: &Inode,
        replaced: Option<u64>,
    ) -> Result<u32> {
        let at = Directory { inode: directory.info.inode.offset };
        let buckets = &mut directory.info.buckets;
        let bucket = self.latest_bucket(at, buckets, self.hash(name))?;
        let search = self.search(at, buckets, name)?;
        let (before, next, tie) = match (replaced, search.found, search.room) {
            (Some(old), Some((found, before)), _) if old == found => {
                let next = self.link(at, View::Latest(buckets), ChainPosition::Entry(old))?;
                (
                    before,
                    next.ok_or_else(|| Error::damaged("a directory's list is interrupted", old))?,
                    self.tag(old)?.tie,
                )
            }
            (None, None, Some((gap, tie))) => {
                self.grow(buckets, gap.steps);
                (gap.before, gap.next, tie)
            }
            (None, None, None) => return Err(Errno::ENOSPC.into()),
            _ => return Err(Errno::EEXIST.into()),
        };
        let head = self.entry(entry)?;
        let tag = Tag { hash: search.hash, length: name.len() as u8, tie };
        let latest = Latest { link: next, fresh: true };
        self.region.set64(&head.inode, target_word(inode.offset, inode.kind)).unflushed();
        self.region.retract(&head.consistent_next, 0).unflushed();
        self.region.set64(&head.latest_next, latest.word(self.mounts)).unflushed();
        self.region.set64(&head.tag, tag.word()).unflushed();
        self.region.set64(&head.directory, at.inode).unflushed();
        self.region.write_bytes(entry + size_of::<EntryHead>() as u64, name)?.unflushed();
        self.set_latest(buckets, before, Link::Entry(entry))?;
        if replaced.is_none() {
            buckets.names = buckets.names.map(|names| names + 1);
        }
        Ok(bucket)
    }

    /// Removes a name from the latest list. Returns the entry and its bucket.
    fn remove(&self, directory: &mut Exclusive<'_, Info>, name: &[u8]) -> Result<(u64, u32)> {
        let at = Directory { inode: directory.info.inode.offset };
        let buckets = &mut directory.info.buckets;
        let bucket = self.latest_bucket(at, buckets, self.hash(name))?;
        let (entry, before) = self.search(at, buckets, name)?.found.ok_or(Errno::ENOENT)?;
        let next = self.link(at, View::Latest(buckets), ChainPosition::Entry(entry))?;
        self.set_latest(
            buckets,
            before,
            next.ok_or_else(|| Error::damaged("a directory's list is interrupted", entry))?,
        )?;
        buckets.names = buckets.names.map(|names| names.saturating_sub(1));
        Ok((entry, bucket))
    }

    /// Leaves the node of an added entry, which cannot be cancelled unless
    /// [`let_cancel`](Self::let_cancel) is called.
    fn record_addition(
        &self,
        directory: &Exclusive<'_, Info>,
        inode: &Arc<Inode>,
        entry: u64,
        bucket: u32,
        replaced: Option<(u64, Arc<Inode>)>,
        after: Vec<Arc<AddMark>>,
    ) {
        let sequence = self.next_sequence();
        let mark = AddMark::new(&directory.info.inode, sequence);
        self.record_added(inode, entry, &mark);
        if let Some((_, replaced)) = &replaced {
            replaced.state().naming_nodes += 1;
        }
        let change = Change::EntryAdded { entry, bucket, inode: Arc::clone(inode), mark, replaced, after };
        self.record(&directory.info.inode, &directory.attributes.get(), Some(Node { sequence, change }));
    }

    /// Leaves the node of a removed entry. If no persister has taken the node that added the entry,
    /// cancels that one instead.
    fn record_removal(
        &self,
        directory: &Exclusive<'_, Info>,
        inode: &Arc<Inode>,
        entry: u64,
        bucket: u32,
    ) -> Result<()> {
        let attributes = directory.attributes.get();
        if self.cancel(inode, entry) {
            self.free_cancelled(entry)?;
            self.record(&directory.info.inode, &attributes, None);
            return Ok(());
        }
        let after = Self::names_to_wait_for(inode);
        inode.state().naming_nodes += 1;
        let change = Change::EntryRemoved { entry, bucket, inode: Arc::clone(inode), after };
        let node = Node { sequence: self.next_sequence(), change };
        self.record(&directory.info.inode, &attributes, Some(node));
        Ok(())
    }

    /// The pending names of an inode, for a node that waits for them.
    fn names_to_wait_for(inode: &Arc<Inode>) -> Vec<Arc<AddMark>> {
        inode.hold_names();
        inode.state().names_to_come().cloned().collect()
    }

    fn cancel(&self, inode: &Arc<Inode>, entry: u64) -> bool {
        let mut state = inode.state();
        let is_it = |added: &&Added| added.entry == entry && added.is_cancellable;
        let is_cancelled = state.added.iter().find(is_it).is_some_and(|added| added.mark.cancel());
        state.naming_nodes -= u32::from(is_cancelled);
        is_cancelled
    }

    fn free_cancelled(&self, entry: u64) -> Result<()> {
        let lines = entry_lines(self.tag(entry)?.length as usize);
        self.space.give_back(entry, lines);
        Ok(())
    }

    /// Creates a file.
    pub fn create(
        &self,
        directory: &mut Exclusive<'_, Info>,
        name: &[u8],
        new: &NewFile<'_>,
        now_ns: i64,
    ) -> Result<Made<Info>> {
        check_name(name)?;
        if new.target.len() > TARGET_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        self.throttle()?;
        let entry = self.take_lines(entry_lines(name.len()))?;
        let made = self.make_inode(directory.info.inode.offset, new, now_ns);
        let mut inode = made.inspect_err(|_| self.space.give_back(entry, entry_lines(name.len())))?;
        let bucket = match self.insert(directory, entry, name, &inode, None) {
            Ok(bucket) => bucket,
            Err(error) => {
                self.space.give_back(entry, entry_lines(name.len()));
                self.space.give_back(inode.offset, inode_lines(inode.kind));
                return Err(error);
            }
        };
        directory.attributes.update(|attributes| {
            (attributes.modified_ns, attributes.changed_ns) = (now_ns, now_ns);
            attributes.links += u32::from(new.kind == FileKind::Directory);
        });
        let sequence = self.next_sequence();
        let mark = AddMark::new(&directory.info.inode, sequence);
        // No other thread has the inode yet, and nothing depends on its name.
        let new = Arc::get_mut(&mut inode).ok_or(Errno::EIO)?;
        let state = new.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.naming_nodes = 1;
        state.added.push(Added { entry, mark: Arc::clone(&mark), is_cancellable: true });
        let attributes = state.attributes;
        let of_child = Arc::clone(&inode);
        let change = Change::EntryAdded { entry, bucket, inode: of_child, mark, replaced: None, after: Vec::new() };
        self.record(&directory.info.inode, &directory.attributes.get(), Some(Node { sequence, change }));
        let place = inode.offset;
        let level = if inode.is_directory() { 2 } else { 0 };
        let buckets = Buckets::empty(level);
        Ok(Made { file: Loaded { attributes, info: Info { inode, buckets }, inode: place }, entry })
    }

    /// Allows the inode's last addition to be cancelled: nothing depends on it.
    fn let_cancel(&self, inode: &Arc<Inode>) {
        if let Some(added) = inode.state().added.last_mut() {
            added.is_cancellable = true;
        }
    }

    /// Creates an inode in memory, and writes what a persister does not: a directory's empty table,
    /// a link's target.
    fn make_inode(&self, parent: u64, new: &NewFile<'_>, now_ns: i64) -> Result<Arc<Inode>> {
        let kind = new.kind;
        let offset = self.take_lines(inode_lines(kind))?;
        let lines = self.region.get(Pm::<super::format::InodeLines>::new(offset))?;
        lines.nv_pointer.clear(&*self.region);
        let mut root = 0;
        if kind == FileKind::Directory {
            empty_table(&self.region, self.bucket_line(Directory { inode: offset })?);
        } else if kind == FileKind::Symlink {
            let mut at = self.region.offset_of(&lines.inline);
            if new.target.len() > INLINE_TARGET_BYTES {
                at = self.take_lines(target_lines(new.target.len())).inspect_err(|_| {
                    self.space.give_back(offset, inode_lines(kind));
                })?;
                root = at;
            }
            self.region.write_bytes(at, new.target)?.unflushed();
        }
        let is_directory = kind == FileKind::Directory;
        // These words are stored here. The persister that makes the inode reachable flushes them.
        self.region.retract(&lines.size_or_name, new.target.len() as u64).unflushed();
        self.region.retract(&lines.root, root).unflushed();
        let attributes = Attributes {
            number: offset / LINE_BYTES,
            generation: self.next_generation(),
            kind,
            mode: kind.mode_bits() | new.permissions & 0o7777,
            links: if is_directory { 2 } else { 1 },
            uid: new.uid,
            gid: new.gid,
            device: new.device,
            size_bytes: if is_directory { BLOCK_BYTES } else { new.target.len() as u64 },
            blocks: u64::from(is_directory),
            accessed_ns: now_ns,
            flags: engine::FileFlags::NONE,
            modified_ns: now_ns,
            changed_ns: now_ns,
        };
        let links = if is_directory { 2 } else { 0 };
        Ok(Inode::new(attributes, parent, Line { links, names: 0, size_bytes: 0, is_written: false }))
    }

    /// Adds a name to a file.
    pub fn link_file(
        &self,
        file: &mut Exclusive<'_, Info>,
        directory: &mut Exclusive<'_, Info>,
        name: &[u8],
        now_ns: i64,
    ) -> Result<u64> {
        check_name(name)?;
        self.throttle()?;
        self.correct(&file.info.inode, file.attributes);
        if file.attributes.get().links == u32::MAX {
            return Err(Errno::EMLINK.into());
        }
        let inode = Arc::clone(&file.info.inode);
        let entry = self.take_lines(entry_lines(name.len()))?;
        let inserted = self.insert(directory, entry, name, &inode, None);
        let bucket = inserted.inspect_err(|_| self.space.give_back(entry, entry_lines(name.len())))?;
        let attributes = file.attributes.update(|attributes| {
            attributes.links += 1;
            attributes.changed_ns = now_ns;
        });
        touch(directory, now_ns);
        self.record(&inode, &attributes, None);
        // If an older name is removed, this one must be durable.
        directory.info.inode.hold_names();
        self.record_addition(directory, &inode, entry, bucket, None, Vec::new());
        self.let_cancel(&inode);
        Ok(entry)
    }

    /// Removes a name of a file, or an empty directory.
    pub fn unlink(
        &self,
        directory: &mut Exclusive<'_, Info>,
        name: &[u8],
        file: &mut Exclusive<'_, Info>,
        now_ns: i64,
    ) -> Result<()> {
        self.throttle()?;
        let inode = Arc::clone(&file.info.inode);
        if inode.is_directory() && !self.is_empty(&mut file.info.buckets, inode.offset)? {
            return Err(Errno::ENOTEMPTY.into());
        }
        let (entry, bucket) = self.remove(directory, name)?;
        touch(directory, now_ns);
        if inode.is_directory() {
            directory.attributes.update(|attributes| attributes.links = attributes.links.saturating_sub(1));
        }
        self.uncount_name(file, now_ns);
        self.record_removal(directory, &inode, entry, bucket)
    }

    /// Decrements the link count.
    fn uncount_name(&self, file: &mut Exclusive<'_, Info>, now_ns: i64) {
        self.correct(&file.info.inode, file.attributes);
        let is_directory = file.info.inode.is_directory();
        let attributes = file.attributes.update(|attributes| {
            attributes.links = if is_directory { 0 } else { attributes.links.saturating_sub(1) };
            attributes.changed_ns = now_ns;
        });
        self.record(&file.info.inode, &attributes, None);
    }

    /// Whether a directory has no names. Counts them if that was not done before.
    pub fn is_empty(&self, buckets: &mut Buckets, inode: u64) -> Result<bool> {
        if let Some(names) = buckets.names {
            return Ok(names == 0);
        }
        let mut names = 0;
        self.walk(Directory { inode }, View::Latest(buckets), 0, &mut |offset, entry| {
            names += u64::from(self.counts(offset, entry)?);
            Ok(true)
        })?;
        buckets.names = Some(names);
        Ok(names == 0)
    }

    /// Renames. Both in the latest view and for the persisters, the new entry appears before the
    /// old one is removed.
    pub fn rename(&self, renaming: Renaming<'_, '_, Info>) -> Result<Renamed> {
        let Renaming { from, from_name, mut to, to_name, file, other, exchange, now_ns } = renaming;
        if exchange {
            // Two names cannot change at once here, and changing them in sequence would leave a
            // file without a name. Linux returns this error for file systems without the operation.
            return Err(Errno::EINVAL.into());
        }
        check_name(to_name.bytes)?;
        self.throttle()?;
        let inode = Arc::clone(&file.info.inode);
        let at = Directory { inode: from.info.inode.offset };
        if self.search(at, &from.info.buckets, from_name.bytes)?.found.is_none() {
            return Err(Errno::ENOENT.into());
        }
        let mut replaced = None;
        if let Some(other) = &other {
            let directory = to.as_deref().unwrap_or(&*from);
            let at = Directory { inode: directory.info.inode.offset };
            let found = self.search(at, &directory.info.buckets, to_name.bytes)?.found;
            replaced = Some((found.ok_or(Errno::ENOENT)?.0, Arc::clone(&other.info.inode)));
        }
        let mut other = other;
        if let Some(other) = &mut other
            && other.info.inode.is_directory()
            && !self.is_empty(&mut other.info.buckets, other.info.inode.offset)?
        {
            return Err(Errno::ENOTEMPTY.into());
        }
        let entry = self.take_lines(entry_lines(to_name.bytes.len()))?;
        let directory = to.as_deref_mut().unwrap_or(&mut *from);
        let inserted = self.insert(directory, entry, to_name.bytes, &inode, replaced.as_ref().map(|(old, _)| *old));
        let bucket = inserted.inspect_err(|_| self.space.give_back(entry, entry_lines(to_name.bytes.len())))?;
        touch(directory, now_ns);
        // Nothing is recorded until both names are changed: a persister sees all nodes of a rename,
        // or a prefix of them.
        let (old_entry, old_bucket) = self.remove(from, from_name.bytes)?;
        touch(from, now_ns);
        self.move_links(from, to.as_deref_mut(), &inode, replaced.as_ref().map(|(_, inode)| inode));
        let attributes = file.attributes.update(|attributes| attributes.changed_ns = now_ns);
        self.record(&inode, &attributes, None);
        if let Some(other) = other {
            self.uncount_name(other, now_ns);
        }
        // A file that was never durable under its old name needs no ordering. A directory's content
        // may wait for its old name.
        let was_cancelled = !inode.is_directory() && self.cancel(&inode, old_entry);
        if !was_cancelled {
            inode.hold_names();
        }
        let directory = to.unwrap_or(&mut *from);
        directory.info.inode.hold_names();
        inode.state().parent = directory.info.inode.offset;
        // A moved directory's earlier entries must be durable before, and so must other pending
        // names of an inode that loses its name here.
        let is_replacing = replaced.is_some();
        let losing = replaced.iter().map(|(_, other)| other).chain(Some(&inode).filter(|inode| inode.is_directory()));
        let after = losing.flat_map(Self::names_to_wait_for).collect();
        self.record_addition(directory, &inode, entry, bucket, replaced, after);
        if was_cancelled {
            self.free_cancelled(old_entry)?;
            self.record(&from.info.inode, &from.attributes.get(), None);
            if !is_replacing {
                self.let_cancel(&inode);
            }
        } else {
            self.record_removal(from, &inode, old_entry, old_bucket)?;
        }
        Ok(Renamed { to_entry: entry, from_entry: None })
    }

    /// Moves the link counts that directories have through their subdirectories, after a rename.
    fn move_links(
        &self,
        from: &mut Exclusive<'_, Info>,
        to: Option<&mut Exclusive<'_, Info>>,
        moved: &Inode,
        replaced: Option<&Arc<Inode>>,
    ) {
        let gain = u32::from(moved.is_directory());
        let loss = u32::from(replaced.is_some_and(|inode| inode.is_directory()));
        from.attributes.update(|attributes| attributes.links = attributes.links.saturating_sub(gain));
        let to = to.map_or(from.attributes, |to| to.attributes);
        to.update(|attributes| attributes.links = (attributes.links + gain).saturating_sub(loss));
    }

    /// Reads the target of a symbolic link.
    pub fn read_link(&self, link: &Shared<'_, Info>, into: &mut [u8]) -> Result<usize> {
        let length = link.attributes.get().size_bytes.min(TARGET_BYTES_MAX as u64);
        let lines = self.inode_lines(link.info.inode.offset)?;
        let mut at = lines.root.load();
        if length <= INLINE_TARGET_BYTES as u64 {
            at = self.region.offset_of(&lines.inline);
        }
        let length = into.len().min(length as usize);
        self.region.read_bytes(at, &mut into[..length])?;
        Ok(length)
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

fn touch(directory: &mut Exclusive<'_, Info>, now_ns: i64) {
    directory.attributes.update(|attributes| (attributes.modified_ns, attributes.changed_ns) = (now_ns, now_ns));
}
