//! Persisters: threads that move the changes of system calls from the latest view to the consistent
//! one, and flush.
//!
//! The table in [`inode`](super::inode) gives the order. A run of nodes of one directory takes
//! three steps, with a fence after each:
//!
//! 1. **prepare**: everything that the run links is written and flushed, with its present successor
//!    as link. So are rising link counts and bits of the allocation table.
//! 2. **link**: the list's words change, one for each node, in node order.
//! 3. **finish**: what is valid only after the links are durable. A renamed directory's inode
//!    refers to its new entry, link counts fall, space is freed.
//!
//! Within a run links reach the medium in any order. This is safe: a stored link never skips
//! anything that was in the list at that time. So every mixture of old and new words reaches
//! everything that the run did not remove, and all targets were prepared.

use super::format::{
    EntryHead, InodeLines, LEVEL_MAX, Link, PAGE_LINES, PREPARED, bucket_key, entry_lines, identity_word, inode_lines,
    parent_bucket, target_lines,
};
use super::inode::{AddMark, Change, Inode, Node, State};
use super::list::{ChainPosition, Directory, View};
use super::space::Marks;
use super::volume::Volume;
use crate::error::{Error, Result};
use crate::locks::{self, lock};
use crate::physical::SyncFile;
use engine::Attributes;
use engine::format::FileKind;
use pmem::{BLOCK_BYTES, Durable, Flushed, LINE_BYTES, Memory, Pm};
use smallvec::{SmallVec, smallvec};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Maximum number of nodes that share their fences.
const RUN_NODES_MAX: usize = 512;

/// Nodes taken from an inode.
#[derive(Default)]
struct Run {
    names: Vec<Node>,
    size_changed: bool,
    attributes_changed: bool,
    /// The inode, and the node number up to which it must be persisted first.
    blocked: Option<(Arc<Inode>, u64)>,
    /// Whether no node is left that is to be done.
    is_last: bool,
    /// Whether the VFS layer has evicted the inode.
    is_evicted: bool,
}

impl Run {
    /// Takes nodes from the front that wait for nothing: changes of size and attributes. Returns
    /// their number.
    fn take_changes(&mut self, state: &mut State, until: u64) -> u64 {
        let mut taken = 0;
        while let Some(node) = state.nodes.front().filter(|node| node.sequence <= until) {
            match node.change {
                Change::SizeChanged => (self.size_changed, state.size_noted) = (true, false),
                Change::AttributesChanged => (self.attributes_changed, state.attributes_noted) = (true, false),
                _ => break,
            }
            state.nodes.pop_front();
            taken += 1;
        }
        taken
    }
}

/// Flushes that await a fence, and the marks that the fence makes durable.
struct Pending {
    flushed: Flushed,
    marks: Marks,
}

impl Pending {
    fn new() -> Pending {
        Pending { flushed: Flushed::nothing(), marks: Marks::default() }
    }

    fn add(&mut self, flushed: Flushed) {
        self.flushed = std::mem::replace(&mut self.flushed, Flushed::nothing()).and(flushed);
    }

    /// Marks lines in the allocation table.
    fn mark<M: Memory>(&mut self, volume: &Volume<M>, offset: u64, lines: u64) -> Result<()> {
        volume.space.mark(offset, lines, &mut self.marks)?;
        Ok(())
    }
}

impl<M: Memory> Volume<M> {
    /// The main loop of a persister thread, until `stop` is set.
    pub fn run_persister(&self, period: Duration) {
        while !self.stop.load(Relaxed) {
            let dirty = lock(&self.dirty);
            let slept = self.wake.wait_timeout(dirty, period).unwrap_or_else(PoisonError::into_inner);
            drop(slept);
            if self.stop.load(Relaxed) {
                return;
            }
            // The error is kept in `trouble` for the next sync.
            let _ = self.drain();
        }
    }

    /// Persists everything done until now.
    pub fn persist_all(&self) -> Result<()> {
        self.drain()?;
        // Wait for other threads to finish the inodes that they took off the list.
        drop(locks::write(&self.draining));
        self.trouble()
    }

    /// Persists the inodes on the dirty list. Inodes listed meanwhile wait for the next time,
    /// except that the second pass frees what has become free.
    fn drain(&self) -> Result<()> {
        let _draining = locks::read(&self.draining);
        for _ in 0..2 {
            let mut count = lock(&self.dirty).len();
            while count > 0
                && let Some(inode) = self.next_dirty()
            {
                // Uses the present number, not that of the beginning: all nodes that the inode had
                // when it left the list must be done, since it is not listed again for them.
                self.persist(&inode, self.sequence())?;
                count -= 1;
            }
        }
        Ok(())
    }

    fn next_dirty(&self) -> Option<Arc<Inode>> {
        let inode = lock(&self.dirty).pop_front()?;
        inode.state().listed = false;
        Some(inode)
    }

    /// Persists an inode's nodes up to a number, and first the nodes that they wait for.
    pub fn persist(&self, inode: &Arc<Inode>, until: u64) -> Result<()> {
        let persisted = self.persist_in_order(inode, until);
        if let Err(error) = persisted {
            self.fail(error);
        }
        persisted
    }

    fn persist_in_order(&self, inode: &Arc<Inode>, until: u64) -> Result<()> {
        // An explicit stack: the depth is that of directories created within each other.
        let mut waiting: SmallVec<[_; 1]> = smallvec![(Arc::clone(inode), until)];
        while let Some((inode, until)) = waiting.last() {
            self.trouble()?;
            let guard = lock(&inode.persisting);
            let run = self.take_run(inode, *until);
            let (blocked, is_last) = (run.blocked.clone(), run.is_last);
            let is_empty = run.names.is_empty() && !run.size_changed && !run.attributes_changed;
            let done = if is_empty { Ok(()) } else { self.do_run(inode, run) };
            let (is_evicted, is_loaded) = {
                let mut state = inode.state();
                state.busy = false;
                (state.evicted, state.loaded)
            };
            // An eviction while the run was under way has listed the inode.
            let freed = if is_evicted { self.free_if_evicted(inode).map(drop) } else { Ok(()) };
            drop(guard);
            done.and(freed)?;
            if let Some(first) = blocked {
                waiting.push(first);
            } else if is_empty || is_last {
                if !is_loaded {
                    self.release(inode);
                }
                waiting.pop();
            }
        }
        Ok(())
    }

    /// Takes nodes from the front as long as they can be done now. Only the holder of `persisting`
    /// takes nodes, so the front node stays while its obstacles are checked without the lock; they
    /// may involve the state of other inodes.
    fn take_run(&self, inode: &Arc<Inode>, until: u64) -> Run {
        let mut run = Run::default();
        let mut taken = 0;
        while run.names.len() < RUN_NODES_MAX {
            let needs = {
                let mut state = inode.state();
                state.busy = true;
                run.is_evicted = state.evicted;
                taken += run.take_changes(&mut state, until);
                let Some(node) = state.nodes.front().filter(|node| node.sequence <= until) else {
                    run.is_last = true;
                    break;
                };
                Needs::of(node)
            };
            match self.obstacle(inode, needs) {
                Some(Obstacle::InThisRun) => break,
                Some(Obstacle::Elsewhere(other, sequence)) => {
                    run.blocked = Some((other, sequence));
                    break;
                }
                None => {}
            }
            let mut state = inode.state();
            let Some(node) = state.nodes.pop_front() else { break };
            taken += 1;
            match &node.change {
                // Cancelled by a system call.
                Change::EntryAdded { mark, .. } if !mark.take() => {}
                _ => run.names.push(node),
            }
        }
        self.nodes.fetch_sub(taken, Relaxed);
        run
    }

    /// What must be done before a node, if anything.
    fn obstacle(&self, inode: &Arc<Inode>, needs: Needs) -> Option<Obstacle> {
        if needs.needs_directory {
            let state = inode.state();
            let name = state.names_to_come().find(|mark| mark.sequence < needs.sequence).cloned();
            drop(state);
            if let Some(obstacle) = name.and_then(|mark| Obstacle::of_mark(inode, &mark)) {
                return Some(obstacle);
            }
        }
        let after = needs.after.iter().filter(|mark| !mark.is_done());
        if let Some(obstacle) = after.filter_map(|mark| Obstacle::of_mark(inode, mark)).next() {
            return Some(obstacle);
        }
        // Entries renamed out of a directory must be durable elsewhere before the directory is
        // removed.
        let removed = needs.removed.filter(|removed| removed.is_directory() && !Arc::ptr_eq(removed, inode))?;
        let waits = {
            let state = removed.state();
            let is_gone = state.attributes.links == 0;
            let is_name = |node: &&Node| matches!(node.change, Change::EntryRemoved { .. } | Change::EntryAdded { .. });
            let first = state.nodes.iter().find(is_name).map(|node| node.sequence);
            is_gone && (state.busy || first.is_some_and(|first| first < needs.sequence))
        };
        waits.then(|| Obstacle::Elsewhere(removed, needs.sequence - 1))
    }

    fn do_run(&self, inode: &Arc<Inode>, run: Run) -> Result<()> {
        if !run.names.is_empty() {
            self.persist_names(inode, &run.names)?;
        }
        // An inode that was never written is written with its first name.
        match (run.size_changed, run.attributes_changed) {
            _ if run.is_evicted => Ok(()),
            (true, with_attributes) => self.persist_content(inode, with_attributes),
            (false, true) if inode.line().is_written => self.persist_attributes(inode),
            (false, _) => Ok(()),
        }
    }

    fn persist_names(&self, inode: &Arc<Inode>, nodes: &[Node]) -> Result<()> {
        let directory = Directory { inode: inode.offset };
        let mut pending = Pending::new();
        for node in nodes {
            self.prepare(inode, directory, node, &mut pending)?;
        }
        let marked = self.space.store_marks(&self.region, &mut pending.marks)?;
        let durable = self.region.fence(pending.flushed.and(marked));
        self.space.mark_durable(pending.marks, durable);

        let mut pending = Pending::new();
        for node in nodes {
            pending.add(self.relink(directory, node, durable)?);
        }
        let durable = self.region.fence(pending.flushed);

        let mut pending = Pending::new();
        for node in nodes {
            self.name_directory(node, durable, &mut pending)?;
            if let Change::EntryAdded { bucket, .. } | Change::EntryRemoved { bucket, .. } = node.change {
                self.open_bucket(directory, bucket, durable, &mut pending)?;
            }
        }
        self.region.fence(pending.flushed);
        for node in nodes {
            self.finish(inode, node)?;
        }
        Ok(())
    }

    /// The first step: everything that a node links becomes durable with the next fence.
    fn prepare(&self, inode: &Arc<Inode>, directory: Directory, node: &Node, pending: &mut Pending) -> Result<()> {
        match &node.change {
            Change::EntryAdded { entry, bucket, inode: child, replaced, .. } => {
                self.prepare_bucket(directory, *bucket, pending)?;
                self.raise_links(inode, child, *entry, pending)?;
                let next = match replaced {
                    Some((old, _)) => self.link(directory, View::Consistent, ChainPosition::Entry(*old))?,
                    // An entry with the same key is in the list until its removal, earlier in this
                    // run, is done.
                    None => Some(self.seek(directory, View::Consistent, self.key(*entry)? + 1)?.next),
                };
                let head = self.entry(*entry)?;
                let lines = entry_lines(self.tag(*entry)?.length as usize);
                // The successor is in the list now, or this fence makes it durable, too.
                let next = next.unwrap_or(Link::End);
                self.region.commit(&head.consistent_next, next.word(), self.settled()).unflushed();
                pending.add(self.region.flush_range(*entry, lines * LINE_BYTES));
                pending.mark(self, *entry, lines)?;
            }
            Change::EntryRemoved { bucket, .. } => self.prepare_bucket(directory, *bucket, pending)?,
            _ => {}
        }
        Ok(())
    }

    /// Counts a name before it is reachable; writes the inode if it was never written.
    fn raise_links(&self, parent: &Inode, child: &Arc<Inode>, entry: u64, pending: &mut Pending) -> Result<()> {
        if child.is_directory() {
            let mut line = parent.line();
            line.links += 1;
            pending.add(self.store_identity(parent, line.links)?);
        }
        let mut line = child.line();
        line.names += 1;
        if !child.is_directory() {
            line.links += 1;
        }
        if line.is_written {
            pending.add(self.store_identity(child, line.links)?);
            return Ok(());
        }
        line.is_written = true;
        let lines = self.region.get(Pm::<InodeLines>::new(child.offset))?;
        if child.is_directory() {
            self.region.retract(&lines.size_or_name, entry).unflushed();
        }
        self.store_attributes(&child.state().attributes, lines, line.links);
        let root = lines.root.load();
        let count = inode_lines(child.kind);
        // In the second line only an inline link target must be durable.
        let inline = child.kind == FileKind::Symlink && root == 0;
        pending.add(self.region.flush_range(child.offset, LINE_BYTES * if inline { 2 } else { 1 }));
        pending.mark(self, child.offset, count)?;
        if child.is_directory() {
            pending.add(self.region.flush_all(self.bucket_line(Directory { inode: child.offset })?));
        } else if child.kind == FileKind::Symlink && root != 0 {
            let count = target_lines(lines.size_or_name.load() as usize);
            pending.add(self.region.flush_range(root, count * LINE_BYTES));
            pending.mark(self, root, count)?;
        }
        Ok(())
    }

    /// The second step: one link changes.
    fn relink(&self, directory: Directory, node: &Node, durable: Durable) -> Result<Flushed> {
        match &node.change {
            Change::EntryAdded { entry, bucket, replaced, .. } => {
                let flushed = self.relink_bucket(directory, *bucket, durable)?;
                let gap = self.seek(directory, View::Consistent, self.key(*entry)?)?;
                let next = match replaced {
                    Some((old, replaced)) => {
                        let next = self.link_past(directory, gap.next, *old)?;
                        self.scan.before_removal(self, directory.inode, *old, replaced)?;
                        next
                    }
                    None => gap.next,
                };
                let own = self.store_link(directory, ChainPosition::Entry(*entry), next, durable)?;
                let before = self.store_link(directory, gap.before, Link::Entry(*entry), durable)?;
                Ok(flushed.and(own).and(before))
            }
            Change::EntryRemoved { entry, bucket, inode, .. } => {
                let flushed = self.relink_bucket(directory, *bucket, durable)?;
                let gap = self.seek(directory, View::Consistent, self.key(*entry)?)?;
                let next = self.link_past(directory, gap.next, *entry)?;
                self.scan.before_removal(self, directory.inode, *entry, inode)?;
                Ok(flushed.and(self.store_link(directory, gap.before, next, durable)?))
            }
            _ => Ok(Flushed::nothing()),
        }
    }

    /// The successor of an entry that `link` must lead to.
    fn link_past(&self, directory: Directory, link: Link, entry: u64) -> Result<Link> {
        if link != Link::Entry(entry) {
            return Err(Error::damaged("a directory's list does not lead to an entry", entry));
        }
        let next = self.link(directory, View::Consistent, ChainPosition::Entry(entry))?;
        next.ok_or_else(|| Error::damaged("a directory's list is interrupted", entry))
    }

    fn store_link(&self, directory: Directory, place: ChainPosition, link: Link, durable: Durable) -> Result<Flushed> {
        let (word, mark) = match place {
            ChainPosition::Entry(offset) => (&self.region.get(Pm::<EntryHead>::new(offset))?.consistent_next, 0),
            ChainPosition::Bucket(index) => {
                let word = self.bucket_word(directory, index)?;
                let word = word.ok_or_else(|| Error::damaged("a bucket of a directory is missing", directory.inode))?;
                (word, word.load() & PREPARED)
            }
        };
        Ok(self.region.flush(self.region.commit(word, link.word() | mark, durable)))
    }

    /// Prepares the words of a bucket, and of those that it is split from, for linking: each leads
    /// where the preceding position does.
    fn prepare_bucket(&self, directory: Directory, index: u32, pending: &mut Pending) -> Result<()> {
        if index == 0 || self.is_in_list(directory, View::Consistent, index)? {
            return Ok(());
        }
        self.prepare_bucket(directory, parent_bucket(index), pending)?;
        let line = self.bucket_line(directory)?;
        let level = (index.ilog2() + 1).min(LEVEL_MAX) as u64;
        if line.level.load() < level {
            pending.add(self.region.flush(self.region.set64(&line.level, level)));
        }
        self.make_bucket_page(directory, index)?;
        let Some(word) = self.bucket_word(directory, index)? else { return Ok(()) };
        let gap = self.seek(directory, View::Consistent, bucket_key(index))?;
        if gap.next != Link::Bucket(index) {
            let dirty = self.region.commit(word, gap.next.word() | PREPARED, self.settled());
            pending.add(self.region.flush(dirty));
        }
        Ok(())
    }

    /// Allocates the pages on the way to a bucket. Without free space the bucket stays with its
    /// parent.
    fn make_bucket_page(&self, directory: Directory, index: u32) -> Result<()> {
        if index < super::format::INLINE_BUCKETS {
            return Ok(());
        }
        let (top, depth) = super::chain::bucket_path(index);
        let mut word = &self.bucket_line(directory)?.pages[top];
        for step in (0..depth).rev() {
            let mut page = word.load_acquire();
            if page == 0 {
                let Some(new) = self.space.take_page() else { return Ok(()) };
                let mut marks = Marks::default();
                let flushed = self.region.stream_zeros(new, BLOCK_BYTES)?;
                self.space.mark(new, PAGE_LINES, &mut marks)?;
                let marked = self.space.store_marks(&self.region, &mut marks)?;
                let durable = self.region.fence(flushed.and(marked));
                self.space.mark_durable(marks, durable);
                let dirty = self.region.commit(word, new, durable);
                // The page must be durable before a list leads into it.
                self.region.persist(dirty);
                page = new;
            }
            word = &self.word_page(page)?[(index as u64 >> (9 * step)) as usize & 511];
        }
        Ok(())
    }

    /// Inserts a bucket into the list.
    fn relink_bucket(&self, directory: Directory, index: u32, durable: Durable) -> Result<Flushed> {
        if index == 0 || self.is_in_list(directory, View::Consistent, index)? {
            return Ok(Flushed::nothing());
        }
        let flushed = self.relink_bucket(directory, parent_bucket(index), durable)?;
        let gap = self.seek(directory, View::Consistent, bucket_key(index))?;
        if gap.next == Link::Bucket(index) || self.bucket_word(directory, index)?.is_none() {
            return Ok(flushed);
        }
        // The prepared word skips nothing, so either value may reach the medium with the link that
        // leads to the bucket.
        let own = self.store_link(directory, ChainPosition::Bucket(index), gap.next, durable)?;
        let before = self.store_link(directory, gap.before, Link::Bucket(index), durable)?;
        Ok(flushed.and(own).and(before))
    }

    /// Allows walks to begin at a bucket, and at those that it is split from, now that they are
    /// durably in the list.
    fn open_bucket(&self, directory: Directory, mut index: u32, durable: Durable, pending: &mut Pending) -> Result<()> {
        while index != 0 {
            if let Some(word) = self.bucket_word(directory, index)?
                && word.load() & PREPARED != 0
            {
                let dirty = self.region.commit(word, word.load() & !PREPARED, durable);
                pending.add(self.region.flush(dirty));
            }
            index = parent_bucket(index);
        }
        Ok(())
    }

    /// The third step for a renamed directory: from here on its new entry is valid and the old one
    /// is stale.
    fn name_directory(&self, node: &Node, durable: Durable, pending: &mut Pending) -> Result<()> {
        if let Change::EntryAdded { entry, inode, .. } = &node.change
            && inode.is_directory()
        {
            let lines = self.inode_lines(inode.offset)?;
            if lines.size_or_name.load() != *entry {
                self.scan.before_move(self, inode.offset)?;
                pending.add(self.region.flush(self.region.commit(&lines.size_or_name, *entry, durable)));
            }
        }
        Ok(())
    }

    /// What follows once the links are durable.
    fn finish(&self, directory: &Arc<Inode>, node: &Node) -> Result<()> {
        match &node.change {
            Change::EntryAdded { mark, replaced, inode, .. } => {
                mark.finish();
                self.finish_naming(inode);
                if let Some((entry, old)) = replaced {
                    self.finish_removal(directory, *entry, old)?;
                }
            }
            Change::EntryRemoved { entry, inode, .. } => self.finish_removal(directory, *entry, inode)?,
            _ => {}
        }
        Ok(())
    }

    fn finish_removal(&self, directory: &Inode, entry: u64, inode: &Arc<Inode>) -> Result<()> {
        if inode.is_directory() {
            let mut line = directory.line();
            line.links = line.links.saturating_sub(1);
            self.store_identity(directory, line.links)?.unfenced();
        }
        {
            let mut line = inode.line();
            line.names = line.names.saturating_sub(1);
            if !inode.is_directory() {
                line.links = line.links.saturating_sub(1);
                self.store_identity(inode, line.links)?.unfenced();
            }
        }
        self.space.free(entry, entry_lines(self.tag(entry)?.length as usize));
        self.finish_naming(inode);
        Ok(())
    }

    /// Records that a node that names an inode is done.
    fn finish_naming(&self, inode: &Arc<Inode>) {
        let mut state = inode.state();
        state.naming_nodes -= 1;
        let (is_last, is_evicted) = (state.naming_nodes == 0, state.evicted);
        drop(state);
        if is_last && is_evicted {
            self.list(inode);
        } else if is_last {
            self.release(inode);
        }
    }

    /// Stores links and mode.
    fn store_identity(&self, inode: &Inode, links: u32) -> Result<Flushed> {
        let lines = self.region.get(Pm::<InodeLines>::new(inode.offset))?;
        let mode = (lines.identity.load() >> 32) as u32 & 0xffff;
        self.scan.before_count(self, inode.offset)?;
        Ok(self.region.flush(self.region.set64(&lines.identity, identity_word(mode, links))))
    }

    /// Stores the other words of the first line, unflushed.
    fn store_attributes(&self, attributes: &Attributes, lines: &InodeLines, links: u32) {
        let owner = (attributes.uid as u64) << 32 | attributes.gid as u64;
        let device = (attributes.device as u64) << 32 | attributes.generation as u64;
        self.region.set64(&lines.identity, identity_word(attributes.mode, links)).unflushed();
        self.region.set64(&lines.owner, owner).unflushed();
        self.region.set64(&lines.device, device).unflushed();
        self.region.set64(&lines.modified_ns, attributes.modified_ns as u64).unflushed();
        self.region.set64(&lines.changed_ns, attributes.changed_ns as u64).unflushed();
        self.region.set64(&lines.accessed_ns, attributes.accessed_ns as u64).unflushed();
    }

    /// Persists attributes in place. Owner and mode are two words. If both change, a crash must not
    /// combine the new owner with the old permissions or the old owner with the new ones.
    fn persist_attributes(&self, inode: &Inode) -> Result<()> {
        self.write_attributes(inode)?;
        self.region.fence(self.region.flush_range(inode.offset, LINE_BYTES));
        Ok(())
    }

    /// `persist_attributes` without the last flush.
    pub fn write_attributes(&self, inode: &Inode) -> Result<()> {
        let lines = self.inode_lines(inode.offset)?;
        let line = inode.line();
        let attributes = inode.state().attributes;
        let owner = (attributes.uid as u64) << 32 | attributes.gid as u64;
        let old_mode = (lines.identity.load() >> 32) as u32 & 0xffff;
        if lines.owner.load() != owner && old_mode != attributes.mode {
            let kind = old_mode & 0xf000;
            let both = old_mode & attributes.mode & 0xfff | kind;
            self.region.persist(self.region.set64(&lines.identity, identity_word(both, line.links)));
            self.region.persist(self.region.set64(&lines.owner, owner));
        }
        self.store_attributes(&attributes, lines, line.links);
        Ok(())
    }

    /// Frees an inode that the VFS layer evicted and that has no names left.
    fn free_if_evicted(&self, inode: &Arc<Inode>) -> Result<bool> {
        {
            let line = inode.line();
            let mut state = inode.state();
            if !state.evicted || state.freed || state.naming_nodes > 0 || line.names > 0 {
                return Ok(false);
            }
            state.freed = true;
            self.nodes.fetch_sub(state.nodes.len() as u64, Relaxed);
            state.nodes.clear();
        }
        self.free_inode(inode).map(|()| true)
    }

    fn free_inode(&self, inode: &Inode) -> Result<()> {
        self.scan.forget(inode.offset);
        match inode.kind {
            FileKind::Regular => self.free_content(inode)?,
            FileKind::Directory => self.free_table(Directory { inode: inode.offset })?,
            FileKind::Symlink => {
                let lines = self.inode_lines(inode.offset)?;
                let (root, length) = (lines.root.load(), lines.size_or_name.load());
                if root != 0 {
                    self.space.free(root, target_lines(length as usize));
                }
            }
            _ => {}
        }
        self.space.free(inode.offset, inode_lines(inode.kind));
        Ok(())
    }

    /// Frees a removed directory's bucket pages, and its dead and stale entries.
    fn free_table(&self, directory: Directory) -> Result<()> {
        let mut entries = Vec::new();
        self.walk(directory, View::Consistent, 0, &mut |offset, entry| {
            entries.push((offset, super::format::Tag::from_word(entry.tag.load()).length));
            Ok(true)
        })?;
        for (offset, length) in entries {
            self.space.free(offset, entry_lines(length as usize));
        }
        self.visit_bucket_pages(directory, &mut |page| self.space.free(page, PAGE_LINES))
    }

    /// Calls `visit` for every page of a directory's table.
    pub fn visit_bucket_pages(&self, directory: Directory, visit: &mut dyn FnMut(u64)) -> Result<()> {
        let line = self.bucket_line(directory)?;
        for (depth, page) in (1..).zip(&line.pages) {
            let page = page.load_acquire();
            if page != 0 {
                self.visit_word_pages(page, depth, visit)?;
            }
        }
        Ok(())
    }

    fn visit_word_pages(&self, page: u64, depth: u32, visit: &mut dyn FnMut(u64)) -> Result<()> {
        for word in self.word_page(page)?.iter().filter(|_| depth > 1) {
            let child = word.load_acquire();
            if child != 0 {
                self.visit_word_pages(child, depth - 1, visit)?;
            }
        }
        visit(page);
        Ok(())
    }

    /// Frees a file that has no names and is not open. If its last name is still in the consistent
    /// view, a persister frees it.
    pub fn evict(&self, inode: Arc<Inode>) -> Result<()> {
        let mut is_freed = false;
        let (is_busy, is_waiting) = {
            let mut state = inode.state();
            (state.evicted, state.loaded) = (true, false);
            (state.busy, state.naming_nodes > 0)
        };
        if !is_busy
            && !is_waiting
            && let Ok(_guard) = inode.persisting.try_lock()
        {
            is_freed = self.free_if_evicted(&inode)?;
        }
        if !is_freed {
            self.list(&inode);
        }
        Ok(())
    }

    /// Makes an inode's own changes durable, in the same way as a persister: content and attributes
    /// of a file, names of a directory. With [`SyncFile::Names`] also the names that lead to it.
    pub fn sync_inode(&self, inode: &Arc<Inode>) -> Result<()> {
        let until = self.sequence();
        self.persist(inode, until)?;
        if self.sync_file == SyncFile::Own {
            return Ok(());
        }
        let names: Vec<_> = inode.state().names_to_come().cloned().collect();
        for mark in names {
            if let Some(directory) = mark.directory.upgrade() {
                self.persist(&directory, mark.sequence)?;
            }
        }
        // Its names are durable now. Persist the nodes that waited for them.
        self.persist(inode, until)
    }
}

/// What a node may have to wait for.
struct Needs {
    sequence: u64,
    /// Whether it needs the directory's own name.
    needs_directory: bool,
    after: Vec<Arc<AddMark>>,
    removed: Option<Arc<Inode>>,
}

impl Needs {
    fn of(node: &Node) -> Needs {
        let (after, removed) = match &node.change {
            Change::EntryAdded { after, replaced, .. } => {
                (after.clone(), replaced.as_ref().map(|(_, inode)| Arc::clone(inode)))
            }
            Change::EntryRemoved { after, inode, .. } => (after.clone(), Some(Arc::clone(inode))),
            _ => (Vec::new(), None),
        };
        let needs_directory = matches!(node.change, Change::EntryAdded { .. });
        Needs { sequence: node.sequence, needs_directory, after, removed }
    }
}

/// Why a node cannot be done yet.
enum Obstacle {
    /// It waits for a node of the same run.
    InThisRun,
    /// It waits for another inode's nodes up to a number.
    Elsewhere(Arc<Inode>, u64),
}

impl Obstacle {
    fn of_mark(inode: &Arc<Inode>, mark: &AddMark) -> Option<Obstacle> {
        match mark.directory.upgrade() {
            Some(directory) if Arc::ptr_eq(&directory, inode) => Some(Obstacle::InThisRun),
            Some(directory) => Some(Obstacle::Elsewhere(directory, mark.sequence)),
            None => None,
        }
    }
}
