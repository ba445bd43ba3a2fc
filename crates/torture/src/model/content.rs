//! Contents of the model's files.

use libc::{EINVAL, EOPNOTSUPP};
use std::collections::BTreeMap;

const BLOCK_BYTES: u64 = 4096;

/// The bytes of a file; missing blocks are zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// Length.
    pub size: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Content {
    pub(super) fn write(&mut self, offset: u64, length: u64, byte: u8) {
        self.fill(offset, length, byte);
        self.size = self.size.max(offset + length);
    }

    fn fill(&mut self, offset: u64, length: u64, byte: u8) {
        let mut at = offset;
        while at < offset + length {
            let end = ((at / BLOCK_BYTES + 1) * BLOCK_BYTES).min(offset + length);
            let start = at % BLOCK_BYTES;
            let block = self.blocks.entry(at / BLOCK_BYTES).or_insert_with(|| vec![0; BLOCK_BYTES as usize]);
            block[start as usize..(start + end - at) as usize].fill(byte);
            at = end;
        }
    }

    pub(super) fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.blocks.split_off(&size.div_ceil(BLOCK_BYTES));
            if !size.is_multiple_of(BLOCK_BYTES)
                && let Some(block) = self.blocks.get_mut(&(size / BLOCK_BYTES))
            {
                block[(size % BLOCK_BYTES) as usize..].fill(0);
            }
        }
        self.size = size;
    }

    /// The bytes from an offset on, up to the end.
    pub fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let end = (offset + length).min(self.size);
        let mut bytes = Vec::new();
        let mut at = offset;
        while at < end {
            let until = ((at / BLOCK_BYTES + 1) * BLOCK_BYTES).min(end);
            match self.blocks.get(&(at / BLOCK_BYTES)) {
                Some(block) => {
                    let start = (at % BLOCK_BYTES) as usize;
                    bytes.extend_from_slice(&block[start..start + (until - at) as usize]);
                }
                None => bytes.resize(bytes.len() + (until - at) as usize, 0),
            }
            at = until;
        }
        bytes
    }

    pub(super) fn allocate(&mut self, mode: i32, offset: u64, length: u64) -> Result<(), i32> {
        let end = offset + length;
        let keep_size = mode & 1 != 0;
        match mode & !1 {
            0 => {}
            // Nothing beyond the length becomes visible.
            2 => {
                let end = end.min(self.size);
                return {
                    self.fill(offset, end.saturating_sub(offset), 0);
                    Ok(())
                };
            }
            0x10 => {
                let end = end.min(self.size);
                self.fill(offset, end.saturating_sub(offset), 0);
            }
            8 | 0x20 => return self.shift(mode, offset / BLOCK_BYTES, length / BLOCK_BYTES),
            _ => return Err(EOPNOTSUPP),
        }
        if !keep_size {
            self.size = self.size.max(end);
        }
        Ok(())
    }

    fn shift(&mut self, mode: i32, first: u64, count: u64) -> Result<(), i32> {
        let collapse = mode == 8;
        let (offset, length) = (first * BLOCK_BYTES, count * BLOCK_BYTES);
        if (collapse && offset + length >= self.size) || (!collapse && offset >= self.size) {
            return Err(EINVAL);
        }
        let mut behind = self.blocks.split_off(&first);
        if collapse {
            behind = behind.split_off(&(first + count));
        }
        let moved = behind.into_iter().map(|(at, block)| (if collapse { at - count } else { at + count }, block));
        self.blocks.extend(moved);
        self.size = if collapse { self.size - length } else { self.size + length };
        Ok(())
    }
}
