//! Reading, and searching for data and holes: without a lock.
//!
//! A reader takes a consistent pair of length and root, and walks. Its result counts only if the
//! file's version has not changed meanwhile. Every change advances the version after it becomes
//! visible and before blocks are freed; a change of several pointers under one word also advances
//! it before. So bytes read from a block that meanwhile serves another file are discarded. A reader
//! that is disturbed too often takes the lock instead.

use super::map::{Run, Tree};
use super::{Extent, SeekWhat};
use crate::components::Files;
use crate::dram::Cachelet;
use crate::error::{Error, Result};
use crate::format::{FileKind, PROPERTY_INLINE, Property};
use crate::fs::Node;
use crate::regions::Regions;
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::fence;
use pmem::{BLOCK_BYTES, Memory, Residency, UserBytesMut};

/// Attempts without the lock.
const TRIES: usize = 8;
/// Attempts for results that take long, to limit wasted work.
const TRIES_LONG: usize = 2;
/// A read of at least this many bytes takes long.
const LONG_BYTES: usize = 1 << 20;
/// A read of data that is not resident makes at least so many bytes resident.
const LOAD_BYTES_MIN: u64 = 64 << 10;
/// Loads of a version that is changing, before an attempt is given up.
const SPINS: usize = 200;

impl<M: Memory> Files<'_, '_, M> {
    /// Reads into `into` and returns the number of bytes read. A read sees each write wholly or not
    /// at all.
    #[inline]
    pub fn read<'a>(self, node: Node, offset: u64, into: impl Into<UserBytesMut<'a>>) -> Result<usize> {
        self.read_user(node, offset, into.into())
    }

    fn read_user(self, node: Node, offset: u64, into: UserBytesMut<'_>) -> Result<usize> {
        let tries = if into.len() < LONG_BYTES { TRIES } else { TRIES_LONG };
        let mut from_disk = false;
        let count = self.consistently(node, tries, |property| {
            let left = property.size_bytes.saturating_sub(offset);
            let count = (into.len() as u64).min(left) as usize;
            from_disk = self.owner.fs.read_body(property.root, offset, into.part(0..count))?;
            Ok(count)
        })?;
        if from_disk {
            self.keep_read(node, offset, count as u64);
        }
        Ok(count)
    }

    /// Makes data resident that was read, if no other thread has the file locked and there is room.
    #[cold]
    fn keep_read(self, node: Node, offset: u64, length: u64) {
        if !self.owner.fs.pm.residency().is_some_and(Residency::keeps_reads) {
            return;
        }
        let Ok(cachelet) = self.owner.cachelet(node) else { return };
        // Without the lock, the blocks could meanwhile be freed and be stored to as another file's.
        let Some(_held) = self.owner.try_lock(&cachelet.lock, &cachelet.waiters) else { return };
        // The next read comes from the disk as well if this fails.
        let _ = self.body_property(cachelet).and_then(|property| {
            let end = offset.saturating_add(length.max(LOAD_BYTES_MIN));
            self.owner.fs.load_body(&property, offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES))
        });
    }

    /// The piece of the file at `offset`. It begins with the block of `offset` and ends at the end
    /// of the file at the latest. `NoSuchExtent` at or beyond the end.
    pub fn extent(self, node: Node, offset: u64) -> Result<Extent> {
        self.consistently(node, TRIES, |property| {
            if offset >= property.size_bytes {
                return Err(Error::NoSuchExtent);
            }
            let index = offset / BLOCK_BYTES;
            let run = self.owner.fs.long_run(property, index)?;
            let start = index * BLOCK_BYTES;
            let length = (run.count * BLOCK_BYTES).min(property.size_bytes - start);
            let address = (!run.first.is_empty()).then_some(run.first.offset());
            let unwritten = !run.first.is_empty() && !run.first.is_written();
            Ok(Extent { offset: start, length, address, unwritten })
        })
    }

    /// The next data or hole at or after `offset`; `NoSuchExtent` at or beyond the end.
    pub fn seek(self, node: Node, offset: u64, what: SeekWhat) -> Result<u64> {
        self.consistently(node, TRIES, |property| {
            if offset >= property.size_bytes {
                return Err(Error::NoSuchExtent);
            }
            let root = self.owner.fs.map().root(property.root)?;
            let end = property.size_bytes.div_ceil(BLOCK_BYTES);
            let mut index = offset / BLOCK_BYTES;
            while index < end {
                let run = self.owner.fs.map().run(root, index, end - index)?;
                if run.first.is_written() == (what == SeekWhat::Data) {
                    return Ok(offset.max(index * BLOCK_BYTES));
                }
                index += run.count;
            }
            match what {
                SeekWhat::Data => Err(Error::NoSuchExtent),
                SeekWhat::Hole => Ok(property.size_bytes),
            }
        })
    }

    /// The present root word of a file's block map, for [`visit_body`](crate::visit_body).
    pub fn body_root(self, node: Node) -> Result<u64> {
        self.consistently(node, TRIES, |property| Ok(property.root))
    }

    /// The result of `look` on one consistent state of a file.
    fn consistently<T>(self, node: Node, tries: usize, mut look: impl FnMut(&Property) -> Result<T>) -> Result<T> {
        let cachelet = self.owner.cachelet(node)?;
        for _ in 0..tries {
            let Some(version) = stable_version(cachelet) else { continue };
            let answer = self.body_property(cachelet).and_then(|property| look(&property));
            fence(Acquire);
            // An error, too, may result from a mixture of states.
            if cachelet.version.load(Relaxed) == version {
                return answer;
            }
        }
        let _held = self.owner.lock_file(cachelet)?;
        look(&self.body_property(cachelet)?)
    }

    /// The attributes of a file that has a body; an error for others.
    pub(super) fn body_property(self, cachelet: &Cachelet) -> Result<Property> {
        let property = self.owner.cachelets().property(cachelet)?;
        match property.kind() {
            Some(FileKind::Regular | FileKind::Symlink) if property.flags & PROPERTY_INLINE == 0 => Ok(property),
            Some(FileKind::Directory) => Err(Error::IsADirectory),
            _ => Err(Error::Invalid),
        }
    }
}

/// The version of a cachelet that no thread is changing; none if it keeps changing.
fn stable_version(cachelet: &Cachelet) -> Option<u32> {
    for _ in 0..SPINS {
        let version = cachelet.version.load(Acquire);
        if version & 1 == 0 {
            return Some(version);
        }
        crate::sync::spin_loop();
    }
    None
}

impl<M: Memory> Regions<M> {
    /// Copies bytes of a body; holes and unwritten blocks are zeros. The caller knows the body's
    /// length, and either prevents changes or detects them. Returns whether some of it was not
    /// resident.
    pub(crate) fn read_body(&self, root: u64, offset: u64, into: UserBytesMut<'_>) -> Result<bool> {
        let map = self.map();
        let mut from_disk = false;
        let root = map.root(root)?;
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let (index, start) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            let left = rest.len() as u64;
            let run = map.run(root, index, (start + left).div_ceil(BLOCK_BYTES))?;
            let count = (run.count * BLOCK_BYTES - start).min(left);
            let (piece, later) = rest.split_at(count as usize);
            if run.first.is_written() {
                from_disk |= self.pm.read_through(run.first.offset() + start, piece)?;
            } else {
                piece.clear();
            }
            (at, rest) = (at + count, later);
        }
        Ok(from_disk)
    }

    /// Under the file's lock: makes blocks of its body resident.
    fn load_body(&self, property: &Property, blocks: Range<u64>) -> Result<()> {
        let map = self.map();
        let root = map.root(property.root)?;
        let end = blocks.end.min(property.size_bytes.div_ceil(BLOCK_BYTES));
        let mut index = blocks.start;
        while index < end {
            let run = map.run(root, index, end - index)?;
            if run.first.is_written() {
                self.pm.load(run.first.offset(), run.count * BLOCK_BYTES)?;
            }
            index += run.count;
        }
        Ok(())
    }

    /// The run that begins with block `index` of a file, up to its end, across nodes.
    fn long_run(&self, property: &Property, index: u64) -> Result<Run> {
        let map = self.map();
        let root = map.root(property.root)?;
        let end = property.size_bytes.div_ceil(BLOCK_BYTES);
        let mut whole = map.run(root, index, end - index)?;
        while index + whole.count < end {
            let at = index + whole.count;
            let next = map.run(root, at, end - at)?;
            let expected = match whole.first.is_empty() {
                true => Tree::EMPTY.word,
                false => whole.first.word + whole.count * BLOCK_BYTES,
            };
            if next.first.word != expected {
                break;
            }
            whole.count += next.count;
        }
        Ok(whole)
    }
}
