//! Who uses which block, and which cache lines of the blocks that hold dentries.

use pmem::{BLOCK_BYTES, LINE_BYTES};
use std::collections::{HashMap, HashSet};

/// What a block is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Use {
    /// Nothing that was found.
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

impl Use {
    const ALL: [Use; 8] =
        [Use::Free, Use::Fixed, Use::Segment, Use::LogPage, Use::Dentries, Use::Node, Use::Data, Use::Shared];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Use::Free => "nothing",
            Use::Fixed => "a fixed area",
            Use::Segment => "a segment of inodes",
            Use::LogPage => "a page of a directory's log",
            Use::Dentries => "dentries",
            Use::Node => "a node of a block map",
            Use::Data => "a file's contents",
            Use::Shared => "contents that files share",
        }
    }

    /// Whether two owners may have the same block.
    fn allows_another(self) -> bool {
        matches!(self, Use::Dentries | Use::Shared | Use::Fixed)
    }
}

/// The bits of `lines` lines from an offset on, in its block. A dentry does not reach beyond.
pub(crate) fn line_mask(offset: u64, lines: u64) -> u64 {
    (u64::MAX >> (64 - lines)) << (offset % BLOCK_BYTES / LINE_BYTES)
}

/// One byte per block, and a mask per block of dentries.
pub(crate) struct Usage {
    uses: Vec<u8>,
    lines: HashMap<u64, u64>,
    /// For blocks that several pointers name: how many more than one.
    shares: HashMap<u64, u64>,
    /// Blocks that somebody claimed who may not have them.
    contested: HashSet<u64>,
}

impl Usage {
    pub fn new(blocks: u64) -> Usage {
        Usage {
            uses: vec![0; blocks as usize],
            lines: HashMap::new(),
            shares: HashMap::new(),
            contested: HashSet::new(),
        }
    }

    pub fn of(&self, block: u64) -> Use {
        self.uses.get(block as usize).map_or(Use::Free, |code| Use::ALL[*code as usize & 7])
    }

    /// Claims a block, unless it is used in a way that excludes this one; then that way is the error.
    pub fn claim(&mut self, block: u64, wanted: Use) -> Result<(), Use> {
        let Some(code) = self.uses.get_mut(block as usize) else { return Err(Use::Fixed) };
        let present = Use::ALL[*code as usize & 7];
        if present != Use::Free && !(present == wanted && wanted.allows_another()) {
            self.contested.insert(block);
            return Err(present);
        }
        if present == Use::Shared {
            *self.shares.entry(block).or_default() += 1;
        }
        *code = wanted as u8;
        Ok(())
    }

    /// Claims lines of a block of dentries; whether they were free.
    pub fn claim_lines(&mut self, offset: u64, lines: u64) -> bool {
        let mask = line_mask(offset, lines);
        let used = self.lines.entry(offset / BLOCK_BYTES).or_default();
        let free = *used & mask == 0;
        *used |= mask;
        free
    }

    /// Whether several claimed a block.
    pub fn is_contested(&self, block: u64) -> bool {
        self.contested.contains(&block)
    }

    /// The lines in use of a block of dentries.
    pub fn lines(&self, block: u64) -> u64 {
        self.lines.get(&block).copied().unwrap_or(0)
    }

    /// How many more pointers than one name a block of contents.
    pub fn shares(&self, block: u64) -> u64 {
        self.shares.get(&block).copied().unwrap_or(0)
    }

    /// Blocks of dentries.
    pub fn dentry_blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.lines.keys().copied()
    }

    /// Blocks that nothing was found to use.
    pub fn free(&self) -> u64 {
        self.uses.iter().filter(|code| **code == 0).count() as u64
    }
}
