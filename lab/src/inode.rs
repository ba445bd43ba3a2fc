//! Attributes in memory, as a kernel keeps them in its inode. `stat` reads them without a lock.

use crate::error::{Error, Result};
use engine::format::FileKind;
use engine::{Attributes, Changes};
use std::hint::spin_loop;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

const WORDS: usize = 9;

/// A file's attributes under a sequence count. The holder of the file's exclusive lock is the only
/// writer; readers take no lock.
///
/// The cell is plain data at a fixed address. An inode cache may reuse it for another file; a late
/// reader then sees one file's attributes whole and must check by other means which file's they
/// are.
#[derive(Debug, Default)]
#[repr(C)]
pub struct AttributeCell {
    sequence: AtomicU32,
    reserved: AtomicU32,
    words: [AtomicU64; WORDS],
}

// Arrays of cells in zero-initialised memory rely on this size.
const _: () = assert!(size_of::<AttributeCell>() == 8 + 8 * WORDS);

/// Two numbers in a word, as inodes keep mode and links, user and group, generation and device.
pub(crate) const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn high(pair: u64) -> u32 {
    (pair >> 32) as u32
}

/// The attributes in these pairs of an inode at `offset`. Size and times are zero.
#[inline]
pub(crate) fn attributes_of(number: u64, pairs: [u64; 3], offset: u64) -> Result<Attributes> {
    let kind = FileKind::from_mode(high(pairs[0]));
    let kind = kind.ok_or_else(|| Error::damaged("an inode has an invalid file type", offset))?;
    Ok(with_kind(number, kind, pairs))
}

#[inline]
fn with_kind(number: u64, kind: FileKind, [mode_links, owner, generation_device]: [u64; 3]) -> Attributes {
    Attributes {
        number,
        generation: high(generation_device),
        kind,
        mode: high(mode_links),
        links: mode_links as u32,
        uid: high(owner),
        gid: owner as u32,
        device: generation_device as u32,
        size_bytes: 0,
        blocks: 0,
        accessed_ns: 0,
        modified_ns: 0,
        changed_ns: 0,
        flags: engine::FileFlags::NONE,
    }
}

/// The attributes after a change.
#[inline]
pub(crate) fn changed(mut attributes: Attributes, changes: &Changes, now_ns: i64) -> Attributes {
    if let Some(permissions) = changes.permissions {
        attributes.mode = attributes.mode & !0o7777 | permissions & 0o7777;
    }
    attributes.uid = changes.uid.unwrap_or(attributes.uid);
    attributes.gid = changes.gid.unwrap_or(attributes.gid);
    attributes.accessed_ns = changes.accessed_ns.unwrap_or(attributes.accessed_ns);
    attributes.modified_ns = changes.modified_ns.unwrap_or(attributes.modified_ns);
    attributes.changed_ns = now_ns;
    attributes
}

/// The links of a file that loses a name.
#[inline]
pub(crate) fn links_without_name(attributes: &Attributes) -> u32 {
    if attributes.kind == FileKind::Directory { 0 } else { attributes.links.saturating_sub(1) }
}

impl AttributeCell {
    /// A cell with attributes.
    pub fn new(attributes: &Attributes) -> AttributeCell {
        let cell = AttributeCell::default();
        cell.set(attributes);
        cell
    }

    /// Replaces the attributes. Requires the file's exclusive lock, or a file that is not yet
    /// published.
    pub fn set(&self, new: &Attributes) {
        let words: [u64; WORDS] = [
            new.number,
            pair(new.mode, new.links),
            pair(new.uid, new.gid),
            pair(new.generation, new.device),
            new.size_bytes,
            new.blocks,
            new.accessed_ns as u64,
            new.modified_ns as u64,
            new.changed_ns as u64,
        ];
        let sequence = self.sequence.load(Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Relaxed);
        fence(Release);
        for (cell, word) in self.words.iter().zip(words) {
            cell.store(word, Relaxed);
        }
        self.sequence.store(sequence.wrapping_add(2), Release);
    }

    /// A consistent snapshot of the attributes.
    #[inline]
    pub fn get(&self) -> Attributes {
        loop {
            let before = self.sequence.load(Acquire);
            let words: [u64; WORDS] = std::array::from_fn(|index| self.words[index].load(Relaxed));
            fence(Acquire);
            if before & 1 == 0 && self.sequence.load(Relaxed) == before {
                return unpack(&words);
            }
            spin_loop();
        }
    }

    /// Updates the attributes under the file's exclusive lock. Returns the new ones.
    pub fn update(&self, change: impl FnOnce(&mut Attributes)) -> Attributes {
        let mut attributes = self.get();
        change(&mut attributes);
        self.set(&attributes);
        attributes
    }
}

fn unpack(words: &[u64; WORDS]) -> Attributes {
    let [number, mode_links, owner, generation_device, size_bytes, blocks, accessed, modified, changed] = *words;
    // A cell that was never set holds zeros, which no caller uses.
    let kind = FileKind::from_mode(high(mode_links)).unwrap_or(FileKind::Fifo);
    Attributes {
        size_bytes,
        blocks,
        accessed_ns: accessed as i64,
        modified_ns: modified as i64,
        changed_ns: changed as i64,
        ..with_kind(number, kind, [mode_links, owner, generation_device])
    }
}
