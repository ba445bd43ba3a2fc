//! The use of every block, and of the cache lines in dentry blocks.

use pmem::{BLOCK_BYTES, LINE_BYTES};
use std::collections::{HashMap, HashSet};

/// The use of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BlockUse {
    /// No use was found.
    Free = 0,
    /// Superblock, journal, tables, maps, the superblock's copy.
    Fixed = 1,
    /// Inodes.
    Segment = 2,
    /// A page of a directory's log.
    LogPage = 3,
    /// Dentries.
    Dentries = 4,
    /// A node of a block map.
    Node = 5,
    /// Contents of one file.
    Data = 6,
    /// Contents that several files may share.
    Shared = 7,
}

impl BlockUse {
    const ALL: [BlockUse; 8] = [
        BlockUse::Free,
        BlockUse::Fixed,
        BlockUse::Segment,
        BlockUse::LogPage,
        BlockUse::Dentries,
        BlockUse::Node,
        BlockUse::Data,
        BlockUse::Shared,
    ];

    /// For display.
    pub fn name(self) -> &'static str {
        match self {
            BlockUse::Free => "nothing",
            BlockUse::Fixed => "a fixed area",
            BlockUse::Segment => "a segment of inodes",
            BlockUse::LogPage => "a page of a directory's log",
            BlockUse::Dentries => "dentries",
            BlockUse::Node => "a node of a block map",
            BlockUse::Data => "a file's contents",
            BlockUse::Shared => "contents shared by files",
        }
    }

    /// Whether a block of this use may have several owners.
    fn allows_another(self) -> bool {
        matches!(self, BlockUse::Dentries | BlockUse::Shared | BlockUse::Fixed)
    }
}

/// The bits of `lines` lines from an offset on, in its block. A dentry does not cross a block's
/// end.
pub(crate) fn line_mask(offset: u64, lines: u64) -> u64 {
    (u64::MAX >> (64 - lines)) << (offset % BLOCK_BYTES / LINE_BYTES)
}

/// Blocks whose uses lie in one chunk: those of a block of the block map.
pub(crate) const CHUNK_BLOCKS: u64 = BLOCK_BYTES * 8 / 2;

/// One byte per block, and a mask per block of dentries. Memory and time follow what is in use, not
/// the size of the image: a chunk of blocks without a use has no memory.
pub(crate) struct Usage {
    blocks: u64,
    chunks: Vec<Option<Box<[u8; CHUNK_BLOCKS as usize]>>>,
    lines: HashMap<u64, u64>,
    /// For blocks with several pointers: the number of additional ones.
    shares: HashMap<u64, u64>,
    /// Blocks with a conflicting claim.
    contested: HashSet<u64>,
}

impl Usage {
    pub fn new(blocks: u64) -> Usage {
        Usage {
            blocks,
            chunks: vec![None; blocks.div_ceil(CHUNK_BLOCKS) as usize],
            lines: HashMap::new(),
            shares: HashMap::new(),
            contested: HashSet::new(),
        }
    }

    pub fn of(&self, block: u64) -> BlockUse {
        match self.chunks.get((block / CHUNK_BLOCKS) as usize) {
            Some(Some(chunk)) => BlockUse::ALL[chunk[(block % CHUNK_BLOCKS) as usize] as usize & 7],
            _ => BlockUse::Free,
        }
    }

    /// Whether no block of a chunk has a use.
    pub fn is_unused(&self, chunk: u64) -> bool {
        self.chunks.get(chunk as usize).is_none_or(Option::is_none)
    }

    /// Claims a block. If its present use excludes this one, the error is the present use.
    pub fn claim(&mut self, block: u64, wanted: BlockUse) -> Result<(), BlockUse> {
        if block >= self.blocks {
            return Err(BlockUse::Fixed);
        }
        let chunk =
            self.chunks[(block / CHUNK_BLOCKS) as usize].get_or_insert_with(|| Box::new([0; CHUNK_BLOCKS as usize]));
        let code = &mut chunk[(block % CHUNK_BLOCKS) as usize];
        let present = BlockUse::ALL[*code as usize & 7];
        if present != BlockUse::Free && !(present == wanted && wanted.allows_another()) {
            self.contested.insert(block);
            return Err(present);
        }
        if present == BlockUse::Shared {
            *self.shares.entry(block).or_default() += 1;
        }
        *code = wanted as u8;
        Ok(())
    }

    /// Claims lines of a block of dentries; returns whether they were free.
    pub fn claim_lines(&mut self, offset: u64, lines: u64) -> bool {
        let mask = line_mask(offset, lines);
        let used = self.lines.entry(offset / BLOCK_BYTES).or_default();
        let free = *used & mask == 0;
        *used |= mask;
        free
    }

    /// Whether a block has conflicting claims.
    pub fn is_contested(&self, block: u64) -> bool {
        self.contested.contains(&block)
    }

    /// The lines in use of a block of dentries.
    pub fn lines(&self, block: u64) -> u64 {
        self.lines.get(&block).copied().unwrap_or(0)
    }

    /// The number of additional pointers to a block of contents.
    pub fn shares(&self, block: u64) -> u64 {
        self.shares.get(&block).copied().unwrap_or(0)
    }

    /// Blocks of dentries.
    pub fn dentry_blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.lines.keys().copied()
    }

    /// Blocks without a use.
    pub fn free(&self) -> u64 {
        let used = |chunk: &[u8; CHUNK_BLOCKS as usize]| chunk.iter().filter(|code| **code != 0).count() as u64;
        self.blocks - self.chunks.iter().flatten().map(|chunk| used(chunk)).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_follows_the_blocks_in_use_and_not_the_size_of_the_image() {
        // 16 TiB.
        let blocks = 1 << 32;
        let mut usage = Usage::new(blocks);
        let used = [0, 1, CHUNK_BLOCKS - 1, 5 * CHUNK_BLOCKS, blocks - 1];
        for block in used {
            assert_eq!(usage.claim(block, BlockUse::Data), Ok(()), "{block}");
            assert_eq!(usage.claim(block, BlockUse::Data), Err(BlockUse::Data), "{block}");
        }
        assert_eq!(usage.claim(blocks, BlockUse::Data), Err(BlockUse::Fixed));
        assert_eq!((usage.of(1), usage.of(2), usage.of(blocks)), (BlockUse::Data, BlockUse::Free, BlockUse::Free));
        assert_eq!((usage.is_unused(0), usage.is_unused(1), usage.is_unused(5)), (false, true, false));
        assert_eq!(usage.free(), blocks - used.len() as u64);
        assert_eq!(usage.chunks.iter().flatten().count(), 3);
    }
}
