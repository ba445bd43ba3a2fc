//! First phase of recycling: what could harm the next use of an object becomes zero, flushed. The
//! caller fences.
//!
//! Invariant: a repetition after a death flushes again, because the first fence may be missing.

use super::{RetiredItem, UNPUBLISHED};
use crate::components::Recycler;
use crate::death::may_die_here;
use crate::dram::{PLAIN, RetiredKind};
use crate::error::Result;
use crate::format::{Dentry, FileKind, Inode, PROPERTY_INLINE, dentry_lines};
use crate::regions::Regions;
use core::sync::atomic::Ordering::{Relaxed, Release};
use pmem::{Flushed, LINE_BYTES, Memory, Pm};

impl<M: Memory> Recycler<'_, '_, M> {
    /// First phase of a record. Returns the number of erased lines, and what was flushed.
    pub(super) fn erase(self, item: &mut RetiredItem) -> (u64, Flushed) {
        match item.kind {
            RetiredKind::Inode => self.erase_retired_inode(item).unwrap_or((0, Flushed::nothing())),
            RetiredKind::Dentry => self.erase_dentry(item),
            RetiredKind::Blocks
            | RetiredKind::Cachelet
            | RetiredKind::Body
            | RetiredKind::Log
            | RetiredKind::Numbers
            | RetiredKind::Lines => (0, Flushed::nothing()),
        }
    }

    /// The cachelet of a dead inode keeps its last content, which has most of what is needed.
    fn erase_retired_inode(self, item: &mut RetiredItem) -> Result<(u64, Flushed)> {
        let cachelet = self.owner.fs.dram.cachelet(item.b as u32)?;
        let has_body = matches!(self.owner.fs.kind(cachelet)?, FileKind::Regular | FileKind::Symlink)
            && cachelet.flags.load(Relaxed) & PROPERTY_INLINE == 0;
        item.root = if has_body { cachelet.as_file().root().load(Relaxed) } else { 0 };
        item.erased = 1;
        if cachelet.dirty.load(Relaxed) & PLAIN != 0 {
            return Ok((0, Flushed::nothing()));
        }
        if self.owner.fs.kind(cachelet)? == FileKind::Directory {
            // A thread that died may have counted a name too late. The cachelet's next life is not
            // to inherit that.
            self.owner.fs.discard_changes(cachelet)?;
        }
        let inode = self.owner.fs.inode(item.a)?;
        let noted = &self.owner.slot.recycling_recorded;
        let [log, xattrs] = &self.owner.slot.recycling_bodies[item.index];
        if noted.load(Relaxed) & 1 << item.index == 0 {
            log.store(inode.log.load_acquire(), Relaxed);
            xattrs.store(inode.xattrs.load_acquire(), Relaxed);
            may_die_here();
            noted.store(noted.load(Relaxed) | 1 << item.index, Release);
            may_die_here();
        }
        (item.log, item.xattrs) = (log.load(Relaxed), xattrs.load(Relaxed));
        // A repetition may find nothing left to erase, but must flush again, because the first
        // fence may be missing.
        Ok(match inode.is_plain() && !item.resumed {
            true => (0, Flushed::nothing()),
            false => (2, self.owner.fs.erase_inode(inode, inode.free_word())),
        })
    }

    fn erase_dentry(self, item: &mut RetiredItem) -> (u64, Flushed) {
        let pm = &self.owner.fs.pm;
        let Ok(dentry) = pm.get(Pm::<Dentry>::new(item.a)) else { return (0, Flushed::nothing()) };
        let (known, unmade) = (item.b & (UNPUBLISHED - 1), item.b & UNPUBLISHED != 0);
        item.erased = match dentry.facts() {
            Some(facts) if !unmade => dentry_lines(facts.name_length as usize),
            None if !unmade && !item.resumed => 0,
            _ => known,
        };
        if !self.owner.fs.lines_fit(item.a, item.erased) {
            item.erased = 0;
            return (0, Flushed::nothing());
        }
        let flushed = self.owner.fs.erase_dentry_lines(dentry, item.a, item.erased);
        if !unmade {
            return (item.erased - 1, flushed);
        }
        // The reuse generation stays: the next dentry here takes the following one.
        let first = pm.flush(pm.set64(&dentry.seal, 0).and(pm.retract(&dentry.valid, dentry.valid.load() & !1)));
        (item.erased, flushed.and(first))
    }
}

impl<M: Memory> Regions<M> {
    /// Ends the life of a dentry that is durably invalid. Flushes its further lines; the caller
    /// fences.
    ///
    /// Its first line may stay as it is: see `format::dentry`. (Clearing the seal keeps a damaged
    /// log that names it twice from freeing it twice.) A further line begins with a part of the
    /// name, which the next dentry there could take for a valid word of an earlier reuse
    /// generation.
    pub(super) fn erase_dentry_lines(&self, dentry: &Dentry, offset: u64, lines: u64) -> Flushed {
        let pm = &self.pm;
        pm.set64(&dentry.seal, 0).unflushed();
        let mut flushed = Flushed::nothing();
        for line in 1..lines {
            if let Ok(first) = pm.get(Pm::<Dentry>::new(offset + line * LINE_BYTES)) {
                flushed = flushed.and(pm.flush(pm.retract(&first.valid, 0)));
            }
        }
        flushed
    }

    /// Ends the life of an inode: the birth word becomes `free_word`; `..`, log, xattrs, inline
    /// area and access time become zero, flushed. The caller fences.
    ///
    /// The next life's birth certifies none of these, and shares a line with some. If they were not
    /// zero before, a crash could give the new file fields of the old one.
    pub(crate) fn erase_inode(&self, inode: &Inode, free_word: u64) -> Flushed {
        let pm = &self.pm;
        let first = pm
            .retract(&inode.birth, free_word)
            .and(pm.retract(&inode.parent, 0))
            .and(pm.retract(&inode.log, 0))
            .and(pm.retract(&inode.xattrs, 0))
            .and(pm.set64(&inode.nv_pointer, 0));
        if inode.tail_is_zero() {
            return pm.flush(first);
        }
        let mut last = pm.set64(&inode.accessed_ns, 0);
        for word in &inode.inline {
            last = last.and(pm.set64(word, 0));
        }
        pm.flush(first).and(pm.flush(last))
    }
}
