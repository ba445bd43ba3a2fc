//! Extended attributes: all attributes of a file are in one body, which is replaced as a whole.
//!
//! The body begins with a header of 64 bytes: CRC-32C of all bytes after the header, length of the
//! whole body in bytes, number of attributes, each a word, and zeros. Then the attributes, packed:
//! name length (1 byte), value length (4 bytes), name, value.
//!
//! Invariants
//! - A body never changes once the inode names it, so a pinned reader needs no lock and sees one
//!   whole set.
//! - A file without attributes has no such body.

use super::map::{Blocks, MapNode, NODE_WORDS, Tree, mark_body};
use super::release::Supply;
use crate::components::Files;
use crate::death::may_die_here;
use crate::dram::{Cachelet, PLAIN, RetiredKind};
use crate::error::{Corruption, Error, Result};
use crate::format::{Inode, NAME_BYTES_MAX};
use crate::fs::Node;
use crate::regions::Regions;
use crate::slot_owner::SlotOwner;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use pmem::{BLOCK_BYTES, Durable, Flushed, LINE_BYTES, Memory, Unreachable, UserBytes, UserBytesMut, crc32c};

/// Bytes before the first attribute.
const HEADER_BYTES: u64 = 64;
/// Bytes before an attribute's name.
const ENTRY_BYTES: u64 = 5;
/// Maximum length of a value.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Maximum length of the body.
const BODY_BYTES_MAX: u64 = 1 << 20;
/// Bytes that are copied at a time.
const PIECE_BYTES: usize = 512;

/// The header.
#[derive(Debug, Clone, Copy)]
struct Header {
    checksum: u32,
    length: u64,
    count: u64,
}

/// One attribute of a body.
#[derive(Debug, Clone, Copy)]
struct XattrEntry {
    /// Offset in the body.
    at: u64,
    name_length: usize,
    value_length: usize,
}

impl XattrEntry {
    fn length(&self) -> u64 {
        ENTRY_BYTES + (self.name_length + self.value_length) as u64
    }
}

/// A consistent set of the attributes of one file.
struct XattrSet<'s, M: Memory> {
    regions: &'s Regions<M>,
    /// The body's root word; zero for no attributes.
    root: u64,
    header: Header,
}

impl<'s, M: Memory> XattrSet<'s, M> {
    fn open(regions: &'s Regions<M>, root: u64) -> Result<Self> {
        let mut set = XattrSet { regions, root, header: Header { checksum: 0, length: HEADER_BYTES, count: 0 } };
        if root != 0 {
            let mut words = [0u8; 24];
            set.read(0, &mut words)?;
            let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| words[at * 8 + byte]));
            set.header = Header { checksum: word(0) as u32, length: word(1), count: word(2) };
            if word(0) >> 32 != 0 || word(1) < HEADER_BYTES || word(1) > BODY_BYTES_MAX {
                return Err(set.damaged());
            }
        }
        Ok(set)
    }

    fn damaged(&self) -> Error {
        Corruption::Xattrs(self.root).into()
    }

    fn read<'a>(&self, at: u64, into: impl Into<UserBytesMut<'a>>) -> Result<()> {
        self.regions.read_body(self.root, at, into.into()).map(drop)
    }

    /// The attribute at an offset; none at the end.
    fn entry(&self, at: u64) -> Result<Option<XattrEntry>> {
        if at == self.header.length {
            return Ok(None);
        }
        let mut head = [0u8; ENTRY_BYTES as usize];
        if at + ENTRY_BYTES > self.header.length {
            return Err(self.damaged());
        }
        self.read(at, &mut head)?;
        let value_length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let entry = XattrEntry { at, name_length: head[0] as usize, value_length };
        if entry.name_length == 0 || value_length > VALUE_BYTES_MAX || at + entry.length() > self.header.length {
            return Err(self.damaged());
        }
        Ok(Some(entry))
    }

    /// The attribute of a name.
    fn find(&self, name: &[u8]) -> Result<Option<XattrEntry>> {
        let mut at = HEADER_BYTES;
        while let Some(entry) = self.entry(at)? {
            if entry.name_length == name.len() {
                let mut buffer = [0u8; NAME_BYTES_MAX];
                let found = &mut buffer[..entry.name_length];
                self.read(at + ENTRY_BYTES, &mut *found)?;
                if found == name {
                    return Ok(Some(entry));
                }
            }
            at += entry.length();
        }
        Ok(None)
    }

    /// Passes all bytes behind the header to `each`, with their offsets. Checks them against the
    /// checksum at the end.
    fn pieces(&self, each: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let mut buffer = [0u8; PIECE_BYTES];
        let mut at = HEADER_BYTES;
        let mut checksum = 0;
        while at < self.header.length {
            let piece = &mut buffer[..(self.header.length - at).min(PIECE_BYTES as u64) as usize];
            self.read(at, &mut *piece)?;
            checksum = crc32c(checksum, piece);
            each(at, piece)?;
            at += piece.len() as u64;
        }
        if checksum != self.header.checksum { Err(self.damaged()) } else { Ok(()) }
    }
}

/// Writes a fresh, invisible body from start to end. It has at most one lowest-level node.
struct Writer<'t, 'f, M: Memory> {
    owner: &'t SlotOwner<'f, M>,
    /// The root, if it is a block.
    root: Tree,
    /// The root, if it is a node; nothing leads to it.
    node: Option<Unreachable<'f, MapNode>>,
    length: u64,
    /// Offset of the block that is being filled.
    block: u64,
    supply: Supply,
    at: u64,
    blocks: u64,
}

impl<'t, 'f, M: Memory> Writer<'t, 'f, M> {
    /// A body that will have `length` bytes.
    fn new(owner: &'t SlotOwner<'f, M>, length: u64) -> Result<Self> {
        let mut writer =
            Writer { owner, root: Tree::EMPTY, node: None, length, block: 0, supply: Supply::EMPTY, at: 0, blocks: 0 };
        if length > BLOCK_BYTES {
            let node = owner.allocator().allocate_unreachable::<MapNode>()?;
            let offset = owner.fs.pm.offset_of(&*node);
            writer.node = Some(node);
            writer.blocks = 1;
            owner.fs.pm.stream_zeros(offset, BLOCK_BYTES)?.unfenced();
        }
        Ok(writer)
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.at.is_multiple_of(BLOCK_BYTES) {
                self.next_block()?;
            }
            let used = self.at % BLOCK_BYTES;
            let (piece, later) = rest.split_at(rest.len().min((BLOCK_BYTES - used) as usize));
            self.owner.fs.pm.stream_bytes(self.block + used, piece)?.unfenced();
            self.at += piece.len() as u64;
            rest = later;
        }
        Ok(())
    }

    fn next_block(&mut self) -> Result<()> {
        let index = self.at / BLOCK_BYTES;
        let wanted = self.length.div_ceil(BLOCK_BYTES).saturating_sub(index).max(1);
        self.block = self.supply.take(self.owner, 1, wanted)?.first * BLOCK_BYTES;
        self.blocks += 1;
        let Some(node) = &self.node else {
            self.root = Tree { word: self.block, level: 0 };
            return Ok(());
        };
        if index >= NODE_WORDS {
            return Err(Error::TooLarge);
        }
        let pm = &self.owner.fs.pm;
        let dirty = pm.commit_unreachable(node, |node| &node.words[index as usize], self.block);
        pm.flush(dirty).unfenced();
        Ok(())
    }

    fn first_block(&self) -> u64 {
        self.node.as_ref().map_or(self.root.word, |node| node.words[0].load())
    }

    /// Ends it. Something may lead to the root from now on.
    fn finish(&mut self) -> Result<Tree> {
        self.supply.give_back(self.owner)?;
        if let Some(node) = self.node.take() {
            self.root = Tree { word: self.owner.fs.pm.offset_of(node.linked()), level: 1 };
        }
        Ok(self.root)
    }

    /// Frees everything, after an error.
    fn discard(mut self) -> Result<()> {
        let root = self.finish()?;
        super::free_body(self.owner, root.to_root())
    }
}

/// Makes a body of at most one block from `bytes`, for a new inode: root word, blocks, and the
/// token that awaits a fence.
pub(crate) fn write_new_body<M: Memory>(owner: &SlotOwner<'_, M>, bytes: &[u8]) -> Result<(u64, u64, Flushed)> {
    if bytes.len() as u64 > BLOCK_BYTES {
        return Err(Error::TooLarge);
    }
    let mut writer = Writer::new(owner, bytes.len() as u64)?;
    match writer.push(bytes) {
        Ok(()) => {
            let root = writer.finish()?;
            Ok((root.to_root(), writer.blocks, Flushed::nothing()))
        }
        Err(error) => {
            writer.discard()?;
            Err(error)
        }
    }
}

/// Passes the blocks of the body that holds the extended attributes to `mark`. Fails if the body
/// does not verify.
pub(crate) fn recover_xattrs<M: Memory>(
    regions: &Regions<M>,
    inode: &Inode,
    mark: &mut dyn FnMut(Blocks) -> Result<()>,
) -> Result<()> {
    let root = inode.xattrs.load_acquire();
    if root == 0 {
        return Ok(());
    }
    mark_body(regions, root, mark)?;
    XattrSet::open(regions, root)?.pieces(&mut |_, _| Ok(()))
}

/// Rejects a name that no attribute can have.
fn check_name(name: &[u8]) -> Result<()> {
    match name {
        _ if name.is_empty() || name.len() > NAME_BYTES_MAX => Err(Error::TooSmall(NAME_BYTES_MAX)),
        _ if name.contains(&0) => Err(Error::Invalid),
        _ => Ok(()),
    }
}

impl<'f, M: Memory> Files<'_, 'f, M> {
    /// Copies the value of attribute `name` into `value` and returns its length. If `value` is
    /// empty, returns only the length; if it is too short, fails with `TooSmall` and the length.
    /// `NoAttribute` if there is no such attribute.
    #[inline]
    pub fn xattr<'a>(self, node: Node, name: &[u8], value: impl Into<UserBytesMut<'a>>) -> Result<usize> {
        self.xattr_user(node, name, value.into())
    }

    fn xattr_user(self, node: Node, name: &[u8], value: UserBytesMut<'_>) -> Result<usize> {
        check_name(name)?;
        let _pin = self.owner.pin();
        let set = self.xattrs(node)?;
        let entry = set.find(name)?.ok_or(Error::NoAttribute)?;
        if value.is_empty() {
            return Ok(entry.value_length);
        }
        if value.len() < entry.value_length {
            return Err(Error::TooSmall(entry.value_length));
        }
        set.read(entry.at + ENTRY_BYTES + entry.name_length as u64, value.part(0..entry.value_length))?;
        Ok(entry.value_length)
    }

    /// Sets an attribute, durably. `create` fails with `Exists` if it exists, `replace` with
    /// `NoAttribute` if it does not.
    pub fn set_xattr<'a>(
        self,
        node: Node,
        name: &[u8],
        value: impl Into<UserBytes<'a>>,
        create: bool,
        replace: bool,
    ) -> Result<()> {
        let value = value.into();
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::TooBig);
        }
        self.change_xattr(node, name, Some(value), create, replace)
    }

    /// Removes an attribute, durably; `NoAttribute` if there is none.
    pub fn remove_xattr(self, node: Node, name: &[u8]) -> Result<()> {
        self.change_xattr(node, name, None, false, true)
    }

    /// Passes the names of all attributes to `each`.
    pub fn xattr_names(self, node: Node, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        let _pin = self.owner.pin();
        let set = self.xattrs(node)?;
        let mut at = HEADER_BYTES;
        while let Some(entry) = set.entry(at)? {
            let mut name = [0u8; NAME_BYTES_MAX];
            let name = &mut name[..entry.name_length];
            set.read(at + ENTRY_BYTES, &mut *name)?;
            // A list of names ends each with a zero byte.
            if name.contains(&0) {
                return Err(set.damaged());
            }
            each(name);
            at += entry.length();
        }
        Ok(())
    }

    fn xattrs(self, node: Node) -> Result<XattrSet<'f, M>> {
        let inode = self.owner.fs.inode_at(self.owner.cachelet(node)?.inode.load(Relaxed))?;
        XattrSet::open(self.owner.fs, inode.xattrs.load_acquire())
    }

    fn change_xattr(
        self,
        node: Node,
        name: &[u8],
        value: Option<UserBytes<'_>>,
        create: bool,
        replace: bool,
    ) -> Result<()> {
        self.owner.fs.writable()?;
        check_name(name)?;
        let result = self.owner.retry_after_recycling(|| self.change_xattr_once(node, name, value, create, replace));
        self.owner.recycler().recycle_some();
        result
    }

    fn change_xattr_once(
        self,
        node: Node,
        name: &[u8],
        value: Option<UserBytes<'_>>,
        create: bool,
        replace: bool,
    ) -> Result<()> {
        let cachelet = self.owner.cachelet(node)?;
        let _held = self.owner.lock_file(cachelet)?;
        let old = self.xattrs(node)?;
        let entry = old.find(name)?;
        match entry {
            Some(_) if create => return Err(Error::Exists),
            None if replace => return Err(Error::NoAttribute),
            _ => {}
        }
        let added = value.map(|value| (name, value)).into_iter();
        let build = || self.owner.as_owner(node.number, || self.build_xattrs(&old, entry, added.clone()));
        let grows = value.is_some_and(|value| entry.as_ref().is_none_or(|entry| value.len() > entry.value_length));
        let new = if grows { self.owner.leaving_spare(build)? } else { build()? };
        let durable = self.owner.fs.pm.fence_unfenced();
        // Before the next fence recovery sees the old set, after it the new one. The two stores
        // before that fence are independent.
        let inode = self.owner.fs.inode_at(cachelet.inode.load(Relaxed))?;
        super::mark_body_of(self.owner, old.root)?;
        may_die_here();
        self.commit_xattrs(cachelet, inode, new.to_root(), durable)?;
        if old.root != 0 {
            // Readers of attributes have no version to check. From here on the retire queue owns
            // the blocks; if this thread dies, they are free.
            super::mark_body_of(self.owner, old.root)?;
            may_die_here();
            self.owner.recycler().retire(RetiredKind::Body, old.root, 0);
        }
        Ok(())
    }

    fn commit_xattrs(self, cachelet: &Cachelet, inode: &Inode, root: u64, durable: Durable) -> Result<()> {
        let mut property = self.owner.cachelets().property(cachelet)?;
        property.changed_ns = self.owner.cachelets().stamp(cachelet);
        cachelet.dirty.fetch_and(!PLAIN, AcqRel);
        let dirty = self.owner.fs.pm.commit(&inode.xattrs, root, durable);
        let flushed = self.owner.fs.pm.flush(dirty);
        let committed = self.owner.cachelets().commit_property(cachelet, &property, durable)?;
        self.owner.fs.pm.fence(flushed.and(committed));
        self.owner.cachelets().publish_property(cachelet, &property);
        Ok(())
    }

    /// Builds a body with `attributes` for a new inode and returns the root word for
    /// [`Inode::xattrs`]. Durable at the next fence.
    pub(crate) fn write_new_xattrs(self, attributes: &[(&[u8], &[u8])]) -> Result<u64> {
        for (name, value) in attributes {
            check_name(name)?;
            if value.len() > VALUE_BYTES_MAX {
                return Err(Error::TooBig);
            }
        }
        let added = attributes.iter().map(|&(name, value)| (name, value.into()));
        Ok(self.build_xattrs(&XattrSet::open(self.owner.fs, 0)?, None, added)?.to_root())
    }

    /// A body with the attributes of `old` except `entry`, plus those of `added`. Empty if there
    /// are none.
    fn build_xattrs<'a>(
        self,
        old: &XattrSet<'_, M>,
        entry: Option<XattrEntry>,
        added: impl Iterator<Item = (&'a [u8], UserBytes<'a>)> + Clone,
    ) -> Result<Tree> {
        let dropped = entry.map_or(0, |entry| entry.length());
        let added_bytes = |(name, value): (&[u8], UserBytes<'_>)| ENTRY_BYTES + (name.len() + value.len()) as u64;
        let length = old.header.length - dropped + added.clone().map(added_bytes).sum::<u64>();
        let count = old.header.count.saturating_sub(entry.is_some() as u64) + added.clone().count() as u64;
        if length == HEADER_BYTES {
            return Ok(Tree::EMPTY);
        }
        if length > BODY_BYTES_MAX {
            return Err(Error::NoSpace);
        }
        let mut writer = Writer::new(self.owner, length)?;
        match write_set(&mut writer, old, entry, added, count) {
            Ok(()) => writer.finish(),
            Err(error) => {
                writer.discard()?;
                Err(error)
            }
        }
    }
}

fn write_set<'a, M: Memory>(
    writer: &mut Writer<'_, '_, M>,
    old: &XattrSet<'_, M>,
    entry: Option<XattrEntry>,
    added: impl Iterator<Item = (&'a [u8], UserBytes<'a>)>,
    count: u64,
) -> Result<()> {
    let mut checksum = 0;
    let mut push = |writer: &mut Writer<'_, '_, M>, bytes: &[u8]| {
        checksum = crc32c(checksum, bytes);
        writer.push(bytes)
    };
    writer.push(&[0; HEADER_BYTES as usize])?;
    let dropped = entry.map_or(0..0, |entry| entry.at..entry.at + entry.length());
    old.pieces(&mut |at, piece| {
        let end = at + piece.len() as u64;
        let before = dropped.start.clamp(at, end) - at;
        let behind = dropped.end.clamp(at, end) - at;
        push(writer, &piece[..before as usize])?;
        push(writer, &piece[behind as usize..])
    })?;
    for (name, value) in added {
        let length = (value.len() as u32).to_le_bytes();
        push(writer, &[name.len() as u8, length[0], length[1], length[2], length[3]])?;
        push(writer, name)?;
        // The checksum is that of the copy: the program may change the value meanwhile.
        let mut copy = [0u8; PIECE_BYTES];
        let mut rest = value;
        while !rest.is_empty() {
            // Only the first and the last piece share a line with others.
            let room = PIECE_BYTES - (writer.at % LINE_BYTES) as usize;
            let (piece, later) = rest.split_at(if rest.len() > PIECE_BYTES { room } else { rest.len() });
            let copy = &mut copy[..piece.len()];
            piece.copy_to(copy);
            push(writer, copy)?;
            rest = later;
        }
    }
    let mut header = [0u8; HEADER_BYTES as usize];
    header[0..8].copy_from_slice(&(checksum as u64).to_le_bytes());
    header[8..16].copy_from_slice(&writer.at.to_le_bytes());
    header[16..24].copy_from_slice(&count.to_le_bytes());
    writer.owner.fs.pm.stream_bytes(writer.first_block(), &header)?.unfenced();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::{MIB, file};
    use crate::testing::{Attached, new_image};
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering::SeqCst;

    #[test]
    fn a_value_that_changes_while_it_is_set_leaves_a_whole_set() {
        let image = new_image(8 * MIB, 64);
        let fs = Attached::new(&image).expect("attaches");
        let thread = fs.enter().expect("a thread");
        let node = file(&thread);
        let value = [const { AtomicU64::new(0) }; 1000];
        // SAFETY: the bytes live as long as the value; threads only use them as atomics.
        let bytes = unsafe { UserBytes::new(value.as_ptr().cast(), size_of_val(&value)) };
        let ends = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for count in 1.. {
                    value.iter().for_each(|word| word.store(count, SeqCst));
                    if ends.load(SeqCst) != 0 {
                        return;
                    }
                }
            });
            let inode = fs.inode(node.number).expect("an inode");
            for _ in 0..200 {
                thread.files().set_xattr(node, b"user.a", bytes, false, false).expect("is set");
                assert_eq!(recover_xattrs(&fs, inode, &mut |_| Ok(())), Ok(()));
            }
            ends.store(1, SeqCst);
        });
    }
}
