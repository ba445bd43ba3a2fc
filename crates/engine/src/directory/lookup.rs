//! Lookup (paper III.D, III.E): the mindex, then the cachelet, without a lock.

use super::check_name;
use crate::attributes::Attributes;
use crate::dram::{Cachelet, FLAG_DEAD, References};
use crate::error::{Error, Result};
use crate::fs::{Node, Thread};
use crate::mindex::NameHash;
use crate::reap::Patience;
use core::sync::atomic::Ordering::Acquire;
use pmem::Memory;

impl<'f, M: Memory> Thread<'f, M> {
    /// The file of a name, with a reference.
    pub fn lookup(&self, directory: Node, name: &[u8]) -> Result<Node> {
        check_name(name)?;
        let hash = self.fs.hash_name(directory.number, name);
        self.fs.prefetch_bucket(hash);
        self.retry_when_crowded(|| {
            let (_pin, _) = self.pin_indexed(directory)?;
            let mut patience = Patience::new();
            loop {
                let (index, cachelet, number) = self.find_cachelet(directory.number, name, hash)?;
                if self.reference(cachelet) {
                    return Ok(Node { cachelet: index, number });
                }
                patience.lose(self.fs)?;
            }
        })
    }

    /// Attributes by name, without taking a reference: what stat needs.
    pub fn stat_name(&self, directory: Node, name: &[u8]) -> Result<Attributes> {
        check_name(name)?;
        let hash = self.fs.hash_name(directory.number, name);
        self.fs.prefetch_bucket(hash);
        self.retry_when_crowded(|| {
            let (_pin, _) = self.pin_indexed(directory)?;
            let (_, cachelet, _) = self.find_cachelet(directory.number, name, hash)?;
            self.attributes(cachelet)
        })
    }

    /// The cachelet of a name. Pinned; no reference is taken.
    pub(super) fn find_cachelet(&self, parent: u64, name: &[u8], hash: NameHash) -> Result<(u32, &'f Cachelet, u64)> {
        let mut patience = Patience::new();
        loop {
            let Some(hit) = self.fs.find(parent, name, hash)? else { return Err(Error::NotFound) };
            let number = hit.dentry.number();
            let index = match self.cachelet_of_hit(&hit, hash) {
                Ok(index) => index,
                // Removed since the entry was read? Then the name is gone too, and the next look says so.
                Err(error) => {
                    if self.still_there(parent, name, hash, hit.dentry_offset)? {
                        return Err(error);
                    }
                    continue;
                }
            };
            let cachelet = self.fs.dram.cachelet(index)?;
            if self.is_renaming(cachelet) {
                patience.lose(self.fs)?;
                continue;
            }
            let state = References::from_word(cachelet.references.load(Acquire));
            if state.flags & FLAG_DEAD != 0 {
                patience.lose(self.fs)?;
                continue;
            }
            return Ok((index, cachelet, number));
        }
    }

    fn still_there(&self, parent: u64, name: &[u8], hash: NameHash, dentry_offset: u64) -> Result<bool> {
        Ok(self.fs.find(parent, name, hash)?.is_some_and(|hit| hit.dentry_offset == dentry_offset))
    }
}
