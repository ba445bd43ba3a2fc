//! What a persister does with content: new blocks get their place in the tree of pointers, and
//! blocks that were cut off leave it.

use super::super::format::{PAGE_LINES, PAGE_WORDS};
use super::super::inode::{Inode, Line, Overlay};
use super::super::space::Marks;
use super::super::volume::Volume;
use super::{Child, FAN_BITS, LINE_WORDS, Piece, Tree, height_for, lines_for, slot};
use crate::error::Result;
use pmem::{BLOCK_BYTES, Durable, Flushed, LINE_BYTES, Memory};
use posix::Errno;
use smallvec::SmallVec;
use std::sync::{Arc, MutexGuard};

impl<M: Memory> Volume<M> {
    /// Moves a file's content to the consistent view, and with the same last fence its attributes.
    /// The caller holds `persisting`.
    pub fn persist_content(&self, inode: &Arc<Inode>, with_attributes: bool) -> Result<()> {
        let (latest_size, cut, mut spare) = {
            let mut content = inode.content_mut();
            content.moving = std::mem::take(&mut content.now);
            content.planned.clear();
            let spare = std::mem::take(&mut content.spare);
            (content.size_bytes, content.moving.cut_bytes, spare)
        };
        if let Some(bytes) = cut {
            self.persist_cut(inode, bytes)?;
        }
        let insertion = self.insert_blocks(inode, &mut spare)?;
        let moves = insertion.is_some() || cut.is_some();
        let line = inode.line();
        if line.is_written {
            // Only the holder of `persisting` changes it.
            let old_size = line.size_bytes;
            drop(line);
            self.persist_growth(inode, insertion, (old_size, latest_size), with_attributes)?;
        } else {
            self.persist_unnamed(inode, line, insertion, latest_size)?;
        }
        if moves {
            inode.content_mut().moving = Overlay::default();
        }
        spare.into_iter().for_each(|page| self.space.give_back(page, PAGE_LINES));
        Ok(())
    }

    /// Persists blocks and size of a file with a name: pages before the links to them, and links
    /// before a size that has them inside. A step that has nothing to write has no fence.
    fn persist_growth(
        &self,
        inode: &Inode,
        insertion: Option<BlockInsertion>,
        (old_size, size_bytes): (u64, u64),
        with_attributes: bool,
    ) -> Result<()> {
        let mut flushed = Flushed::nothing();
        let has_links = insertion.is_some();
        if let Some(mut insertion) = insertion {
            let mut durable = self.settled();
            if insertion.has_pages() {
                durable = self.region.fence(self.store_pages(&mut insertion)?);
                self.space.mark_durable(std::mem::take(&mut insertion.marks), durable);
            }
            flushed = self.store_links(inode, &insertion, durable)?;
        }
        if has_links && old_size != size_bytes {
            self.region.fence(flushed);
            flushed = Flushed::nothing();
        }
        if with_attributes {
            self.write_attributes(inode)?;
        }
        if old_size != size_bytes || with_attributes {
            flushed = flushed.and(self.store_size(inode, &mut inode.line(), size_bytes)?);
        } else if !has_links {
            return Ok(());
        }
        self.region.fence(flushed);
        Ok(())
    }

    /// Persists blocks and size of a file without a name in the consistent view: no crash state
    /// leads to its inode, so nothing is ordered, and one fence suffices. The lock of its line
    /// makes a persister that writes its first name wait for that fence.
    fn persist_unnamed(
        &self,
        inode: &Inode,
        mut line: MutexGuard<'_, Line>,
        insertion: Option<BlockInsertion>,
        size_bytes: u64,
    ) -> Result<()> {
        let mut flushed = self.store_size(inode, &mut line, size_bytes)?;
        let mut marks = Marks::default();
        if let Some(mut insertion) = insertion {
            flushed = flushed.and(self.store_pages(&mut insertion)?);
            flushed = flushed.and(self.store_links(inode, &insertion, self.settled())?);
            marks = insertion.marks;
        }
        let durable = self.region.fence(flushed);
        self.space.mark_durable(marks, durable);
        Ok(())
    }

    /// Stores a size and flushes its line. Everything within the size is durable, or no crash state
    /// leads to the file.
    fn store_size(&self, inode: &Inode, line: &mut Line, size_bytes: u64) -> Result<Flushed> {
        let lines = self.inode_lines(inode.offset)?;
        if line.size_bytes != size_bytes {
            line.size_bytes = size_bytes;
            self.region.commit(&lines.size_or_name, size_bytes, self.settled()).unflushed();
        }
        Ok(self.region.flush_range(inode.offset, LINE_BYTES))
    }

    /// Persists a truncation: first the smaller size, then the pointers; then frees the pages.
    fn persist_cut(&self, inode: &Inode, bytes: u64) -> Result<()> {
        if bytes < inode.line().size_bytes {
            let flushed = self.store_size(inode, &mut inode.line(), bytes)?;
            self.region.fence(flushed);
        }
        let lines = self.inode_lines(inode.offset)?;
        let tree = self.tree(inode.offset)?;
        let first = bytes.div_ceil(BLOCK_BYTES);
        let mut gone = Vec::new();
        if tree.root.page == 0 {
            return Ok(());
        }
        let mut flushed = Flushed::nothing();
        if first == 0 {
            self.visit_tree(tree.word(), &mut |page, _| gone.push(page))?;
            flushed = flushed.and(self.region.flush(self.region.retract(&lines.root, 0)));
        } else if tree.height > 0 {
            flushed = self.cut_below(tree.root, tree.height, 0, first, &mut gone)?;
        }
        self.region.fence(flushed);
        gone.into_iter().for_each(|page| self.space.free(page, PAGE_LINES));
        Ok(())
    }

    /// Clears the pointers below a page to blocks from `first` on, and collects the pages that
    /// become free.
    fn cut_below(&self, at: Child, height: u32, base: u64, first: u64, gone: &mut Vec<u64>) -> Result<Flushed> {
        let span = 1u64 << (FAN_BITS * (height - 1));
        let skip = (first.saturating_sub(base) / span).min(PAGE_WORDS);
        let mut flushed = Flushed::nothing();
        for (index, word) in self.word_page(at.page)?[..at.words()].iter().enumerate().skip(skip as usize) {
            let (child, start) = (Child::from_word(word.load_acquire())?, base + index as u64 * span);
            if child.page == 0 {
                continue;
            }
            if start >= first {
                self.visit_below(child, height - 1, &mut |page, _| gone.push(page))?;
                flushed = flushed.and(self.region.flush(self.region.retract(word, 0)));
            } else if height > 1 {
                flushed = flushed.and(self.cut_below(child, height - 1, start, first, gone)?);
            }
        }
        Ok(flushed)
    }

    /// Plans the pointers to the blocks that move to the consistent view; none if there are none.
    fn insert_blocks(&self, inode: &Inode, spare: &mut Vec<u64>) -> Result<Option<BlockInsertion>> {
        let content = inode.content();
        if content.moving.blocks.is_empty() {
            return Ok(None);
        }
        let tree = self.tree(inode.offset)?;
        let mut insertion = BlockInsertion {
            old_root: tree.word(),
            tree,
            fresh: SmallVec::new(),
            inner: SmallVec::new(),
            links: Vec::new(),
            marks: Marks::default(),
        };
        for (block, run) in content.moving.blocks.runs() {
            let mut done = 0;
            while done < run.count {
                let first = block + done;
                let count = (PAGE_WORDS - first % PAGE_WORDS).min(run.count - done);
                let page = (run.start + done) * BLOCK_BYTES;
                self.insert_piece(&mut insertion, spare, Piece { block: first, page, count })?;
                done += count;
            }
        }
        Ok(Some(insertion))
    }

    /// Writes what links lead to: new lines of pointer pages, and bits of the allocation table.
    fn store_pages(&self, insertion: &mut BlockInsertion) -> Result<Flushed> {
        let mut flushed = self.space.store_marks(&self.region, &mut insertion.marks)?;
        for (page, fresh) in &insertion.fresh {
            let from = page + fresh.from_line * LINE_BYTES;
            for (line, words) in fresh.words.as_chunks::<{ LINE_WORDS as usize }>().0.iter().enumerate() {
                let mut bytes = [0; LINE_BYTES as usize];
                bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
                flushed = flushed.and(self.region.stream_bytes(from + line as u64 * LINE_BYTES, &bytes)?);
            }
        }
        Ok(flushed)
    }

    /// Stores pointers in lines with content, and the root.
    fn store_links(&self, inode: &Inode, insertion: &BlockInsertion, durable: Durable) -> Result<Flushed> {
        let mut flushed = Flushed::nothing();
        for (slot, page) in insertion.inner.iter().chain(&insertion.links) {
            let word = &self.word_page(slot & !(BLOCK_BYTES - 1))?[(slot % BLOCK_BYTES / 8) as usize];
            flushed = flushed.and(self.region.flush(self.region.commit(word, *page, durable)));
        }
        let root = insertion.tree.word();
        if root != insertion.old_root {
            let lines = self.inode_lines(inode.offset)?;
            flushed = flushed.and(self.region.flush(self.region.commit(&lines.root, root, durable)));
        }
        Ok(flushed)
    }

    /// Inserts blocks below one leaf of a tree: directly in lines that are not yet reachable, as
    /// deferred links in others.
    fn insert_piece(&self, insertion: &mut BlockInsertion, spare: &mut Vec<u64>, piece: Piece) -> Result<()> {
        let Piece { block, page, count } = piece;
        let last = block + count - 1;
        for index in 0..count {
            self.space.mark(page + index * BLOCK_BYTES, PAGE_LINES, &mut insertion.marks)?;
        }
        if insertion.tree.root.page == 0 {
            // An empty tree starts with the height that it needs.
            let height = height_for(last);
            let root = if height == 0 { Child::block(page) } else { self.fresh_page(insertion, spare)? };
            insertion.tree = Tree { root, height };
        }
        while !insertion.tree.covers(last) {
            let page = self.fresh_page(insertion, spare)?;
            let root = insertion.with_lines(page, 1);
            let below = insertion.tree.root;
            insertion.set_fresh(root.page, 0, below);
            insertion.tree = Tree { root, height: insertion.tree.height + 1 };
        }
        let height = insertion.tree.height;
        if height == 0 {
            insertion.tree.root = Child::block(page);
            return Ok(());
        }
        insertion.tree.root = insertion.with_lines(insertion.tree.root, lines_for(last, height));
        let mut at = insertion.tree.root.page;
        for level in (2..=height).rev() {
            let index = slot(last, level);
            let word_at = at + index as u64 * 8;
            let known = insertion.fresh_word(at, index).map(|word| *word);
            let child = match known.or_else(|| insertion.inner_word(word_at)) {
                Some(word) => Child::from_word(word)?,
                None => Child::from_word(self.word_page(at)?[index].load_acquire())?,
            };
            let below = if child.page == 0 { self.fresh_page(insertion, spare)? } else { child };
            let next = insertion.with_lines(below, lines_for(last, level - 1));
            if next != child {
                if known.is_some() {
                    insertion.set_fresh(at, index, next);
                } else {
                    insertion.set_inner(word_at, next.word());
                }
            }
            at = next.page;
        }
        for index in 0..count {
            let at_leaf = slot(block + index, 1);
            let target = Child::block(page + index * BLOCK_BYTES);
            if !insertion.set_fresh(at, at_leaf, target) {
                insertion.links.push((at + at_leaf as u64 * 8, target.word()));
            }
        }
        Ok(())
    }

    /// Takes a pointer page from those that the write reserved. Its content is in memory until all
    /// blocks are inserted.
    fn fresh_page(&self, insertion: &mut BlockInsertion, spare: &mut Vec<u64>) -> Result<Child> {
        let page = match spare.pop() {
            Some(page) => page,
            None => self.space.take_page().ok_or(Errno::ENOSPC)?,
        };
        self.space.mark(page, PAGE_LINES, &mut insertion.marks)?;
        Ok(Child { page, lines: 0 })
    }
}

/// A tree that gains blocks.
struct BlockInsertion {
    /// The root's word before.
    old_root: u64,
    tree: Tree,
    /// New lines of pointer pages, by page. The last one is used most.
    fresh: SmallVec<[(u64, FreshLines); 2]>,
    /// Deferred links above leaves by offset of the word, each once, stored once everything is
    /// durable.
    inner: SmallVec<[(u64, u64); 2]>,
    /// Deferred links in leaves, likewise.
    links: Vec<(u64, u64)>,
    marks: Marks,
}

/// Lines of a pointer page that no word says to have content yet.
struct FreshLines {
    from_line: u64,
    /// Their pointers.
    words: SmallVec<[u64; 8]>,
}

impl BlockInsertion {
    /// Whether links lead to anything that is not durable.
    fn has_pages(&self) -> bool {
        !self.fresh.is_empty() || !self.marks.is_empty()
    }

    /// A pointer page with at least so many lines of content. The new ones are fresh.
    fn with_lines(&mut self, at: Child, lines: u64) -> Child {
        if lines <= at.lines {
            return at;
        }
        let known = self.fresh.iter().rposition(|(page, _)| *page == at.page);
        let index = known.unwrap_or_else(|| {
            self.fresh.push((at.page, FreshLines { from_line: at.lines, words: SmallVec::new() }));
            self.fresh.len() - 1
        });
        let fresh = &mut self.fresh[index].1;
        let words = ((lines - fresh.from_line) * LINE_WORDS) as usize;
        fresh.words.resize(words.max(fresh.words.len()), 0);
        Child { lines, ..at }
    }

    /// A pointer in a fresh line.
    fn fresh_word(&mut self, page: u64, index: usize) -> Option<&mut u64> {
        let (_, fresh) = self.fresh.iter_mut().rev().find(|(of, _)| *of == page)?;
        fresh.words.get_mut(index.checked_sub((fresh.from_line * LINE_WORDS) as usize)?)
    }

    /// Sets a pointer in a fresh line. Returns false if it is in no such line.
    fn set_fresh(&mut self, page: u64, index: usize, target: Child) -> bool {
        let word = self.fresh_word(page, index);
        word.map(|word| *word = target.word()).is_some()
    }

    /// The deferred link above a leaf.
    fn inner_word(&self, at: u64) -> Option<u64> {
        self.inner.iter().rev().find(|(word_at, _)| *word_at == at).map(|(_, word)| *word)
    }

    fn set_inner(&mut self, at: u64, word: u64) {
        match self.inner.iter_mut().rev().find(|(word_at, _)| *word_at == at) {
            Some((_, known)) => *known = word,
            None => self.inner.push((at, word)),
        }
    }
}
