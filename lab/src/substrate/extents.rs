//! Which blocks hold the pages of a file, in memory.

use super::BlockRange;
use std::collections::BTreeMap;

/// Maps pages of a file to blocks: runs of blocks by their first page.
#[derive(Debug, Default)]
pub struct Extents(BTreeMap<u64, BlockRange>);

impl Extents {
    /// The run from the block of a page onwards: that block and those that follow it.
    pub fn find(&self, page: u64) -> Option<BlockRange> {
        let (first, run) = self.0.range(..=page).next_back()?;
        let into = page - first;
        (into < run.count).then(|| BlockRange { start: run.start + into, count: run.count - into })
    }

    /// The number of pages without a block from `page` on, at most `limit`.
    pub fn hole(&self, page: u64, limit: u64) -> u64 {
        self.0.range(page..).next().map_or(limit, |(first, _)| (first - page).min(limit))
    }

    /// Removes the blocks of pages `first .. end` and passes each removed run to `freed`.
    pub fn remove(&mut self, first: u64, end: u64, freed: &mut dyn FnMut(BlockRange)) {
        if first >= end {
            return;
        }
        let begin = self.0.range(..=first).next_back().map_or(first, |(page, _)| *page);
        let touched: Vec<u64> = self.0.range(begin..end).map(|(page, _)| *page).collect();
        for page in touched {
            let Some(run) = self.0.remove(&page) else { continue };
            let run_end = page + run.count;
            let (from, to) = (first.max(page), end.min(run_end));
            if from >= to {
                self.0.insert(page, run);
                continue;
            }
            if page < from {
                self.0.insert(page, BlockRange { start: run.start, count: from - page });
            }
            if to < run_end {
                self.0.insert(to, BlockRange { start: run.start + (to - page), count: run_end - to });
            }
            freed(BlockRange { start: run.start + (from - page), count: to - from });
        }
    }

    /// Adds a run. Its pages must have no blocks.
    pub fn insert(&mut self, page: u64, run: BlockRange) {
        if let Some((before, last)) = self.0.range_mut(..page).next_back()
            && *before + last.count == page
            && last.start + last.count == run.start
        {
            last.count += run.count;
            return;
        }
        self.0.insert(page, run);
    }

    /// All runs.
    pub fn runs(&self) -> impl Iterator<Item = (u64, BlockRange)> + '_ {
        self.0.iter().map(|(page, run)| (*page, *run))
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.0.values().map(|run| run.count).sum()
    }

    /// Whether no page has a block.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of runs.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}
