//! Writing in place: to files that programs have mapped, and to a full image.
//!
//! A mapped file keeps its blocks, and a full image has no others. So the bytes go where they are
//! read, and the write is not atomic: a crash may leave any part of it. The blocks must be the
//! file's own. Those that fallocate reserved are filled and marked as written one at a time, since
//! one word of the map needs no new node.

use super::edit::{Edit, EditKind};
use super::map::Tree;
use crate::components::Files;
use crate::dram::Cachelet;
use crate::error::{Error, Result};
use crate::format::Property;
use pmem::{BLOCK_BYTES, Memory, UserBytes};

impl<'f, M: Memory> Files<'_, 'f, M> {
    /// Writes in place where there are blocks, and by replacement elsewhere.
    pub(super) fn write_mapped(
        self,
        cachelet: &Cachelet,
        property: &Property,
        offset: u64,
        from: UserBytes<'_>,
    ) -> Result<()> {
        let size_bytes = property.size_bytes;
        let end = offset + from.len() as u64;
        let mut property = *property;
        let mut at = offset;
        while at < end.min(size_bytes) {
            let piece = self.piece(&property, offset, at, from)?;
            if !self.overwrite(piece, at)? {
                let edit = Edit { change: EditKind::Write(piece.bytes), from: at, to: piece.to(at), size_bytes };
                property = self.replace_within(cachelet, &property, edit)?;
            }
            at = piece.to(at);
        }
        if end > size_bytes {
            let (_, rest) = from.split_at((size_bytes - offset) as usize);
            return self.write_whole(cachelet, &property, size_bytes, rest);
        }
        let durable = self.owner.fs.pm.fence_unfenced();
        self.finish_change(cachelet, &self.changed_now(&property), durable)
    }

    /// Writes if all of it falls into blocks of the file's own; else `NoSpace`, and nothing has
    /// changed.
    pub(super) fn write_without_space(
        self,
        cachelet: &Cachelet,
        property: &Property,
        offset: u64,
        from: UserBytes<'_>,
    ) -> Result<()> {
        let size_bytes = property.size_bytes;
        let end = offset.checked_add(from.len() as u64).filter(|end| *end <= size_bytes).ok_or(Error::NoSpace)?;
        let mut at = offset;
        while at < end {
            let piece = self.piece(property, offset, at, from)?;
            if piece.first.is_empty() || piece.first.is_shared() {
                return Err(Error::NoSpace);
            }
            at = piece.to(at);
        }
        let (mut property, mut at) = (*property, offset);
        while at < end {
            let piece = self.piece(&property, offset, at, from)?;
            if !self.overwrite(piece, at)? {
                let edit = Edit { change: EditKind::Write(piece.bytes), from: at, to: piece.to(at), size_bytes };
                property = self.replace_each(cachelet, &property, edit)?;
            }
            at = piece.to(at);
        }
        let durable = self.owner.fs.pm.fence_unfenced();
        self.finish_change(cachelet, &self.changed_now(&property), durable)
    }

    /// The bytes of a write that fall into the run of blocks at `at`, within the file's length.
    fn piece<'a>(self, property: &Property, offset: u64, at: u64, from: UserBytes<'a>) -> Result<Piece<'a>> {
        let map = self.owner.fs.map();
        let end = property.size_bytes.min(offset + from.len() as u64);
        let index = at / BLOCK_BYTES;
        let run = map.run(map.root(property.root)?, index, end.div_ceil(BLOCK_BYTES) - index)?;
        let to = ((index + run.count) * BLOCK_BYTES).min(end);
        Ok(Piece { first: run.first, bytes: from.part((at - offset) as usize..(to - offset) as usize) })
    }

    /// Stores a piece over the bytes of the file. False, and nothing is stored, if its blocks are
    /// not written ones of the file's own.
    fn overwrite(self, piece: Piece<'_>, at: u64) -> Result<bool> {
        if !piece.first.is_written() || piece.first.is_shared() {
            return Ok(false);
        }
        let place = piece.first.offset() + at % BLOCK_BYTES;
        self.owner.fs.provider().load(place, piece.bytes.len() as u64)?;
        self.owner.fs.pm.stream_bytes(place, piece.bytes)?.unfenced();
        Ok(true)
    }

    /// Applies an edit within the file's length, as a whole if there is space for that.
    pub(super) fn replace_within(self, cachelet: &Cachelet, property: &Property, edit: Edit<'_>) -> Result<Property> {
        match self.replace(cachelet, property, edit, property.size_bytes) {
            Err(Error::NoSpace) if edit.blocks().count() > 1 => self.replace_each(cachelet, property, edit),
            result => result,
        }
    }

    /// Applies an edit within the file's length block by block.
    fn replace_each(self, cachelet: &Cachelet, property: &Property, edit: Edit<'_>) -> Result<Property> {
        let mut property = *property;
        for index in edit.blocks() {
            let (from, to) = (edit.from.max(index * BLOCK_BYTES), edit.to.min((index + 1) * BLOCK_BYTES));
            let change = match edit.change {
                EditKind::Write(bytes) => {
                    EditKind::Write(bytes.part((from - edit.from) as usize..(to - edit.from) as usize))
                }
                whole => whole,
            };
            let size_bytes = property.size_bytes;
            property = self.replace(cachelet, &property, Edit { change, from, to, size_bytes }, size_bytes)?;
        }
        Ok(property)
    }
}

/// Bytes of a write that fall into blocks of one kind.
#[derive(Clone, Copy)]
struct Piece<'a> {
    /// The first block; empty for a hole.
    first: Tree,
    bytes: UserBytes<'a>,
}

impl Piece<'_> {
    /// Where a piece that begins at `at` ends.
    fn to(&self, at: u64) -> u64 {
        at + self.bytes.len() as u64
    }
}
