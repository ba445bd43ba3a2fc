//! Undurable names: a listing never returns a name that a crash could take away again.
//!
//! Invariant: a create announces its name, then counts it in the directory, which is a full fence,
//! and only then reads the clock for the name's timestamp. So consider a timestamp from before the
//! start of a listing: a later scan of all thread slots finds the name announced, or the name is
//! durable and in the mindex.
//!
//! A name that is one second old counts as durable. This relies on no create being stopped for a
//! second between dentry and fence.
//!
//! *Rejected:* looking up every name of the last 20 ms: 68 to 81 ns a name with two threads, now 25
//! to 27. A count of names in flight per directory: two more writes of a line that all creates
//! share.

use crate::dram::{Cachelet, DirectoryState, IntentKind};
use crate::error::Result;
use crate::format::Valid;
use crate::fs::{Node, Thread};
use crate::mindex::{NameHash, NameKey};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use pmem::Memory;

/// Names younger than this may not be durable yet. Older names are taken for durable. That fails
/// only if a creator stalls for this long between its dentry and its fence.
const UNDURABLE_NS: i64 = 1_000_000_000;
/// A timestamp is a time without its lowest bit.
const TIMESTAMP_BITS: i64 = !1;
/// Thread slots that can be scanned in the time of one name lookup.
const THREADS_A_LOOKUP: u64 = 8;
/// Announced names that are distinguished. If there are more, any name may be one of them.
const ANNOUNCED_MAX: usize = 8;

/// What a listing knows of undurable names.
pub(super) struct UndurableNames {
    /// Time at which the listing began.
    began_ns: i64,
    /// Names with timestamps before this are durable.
    durable_before_ns: i64,
    /// Names that it looked up.
    looked_up: u64,
    /// Names that were announced at a time after it began.
    announced: Option<Announced>,
}

impl UndurableNames {
    /// For a listing that begins.
    pub(super) fn at(now_ns: i64) -> UndurableNames {
        UndurableNames {
            began_ns: now_ns,
            durable_before_ns: now_ns.saturating_sub(UNDURABLE_NS),
            looked_up: 0,
            announced: None,
        }
    }
}

/// Names of a directory that were being made.
struct Announced {
    hashes: [u64; ANNOUNCED_MAX],
    count: usize,
}

impl Announced {
    fn may_have(&self, hash: NameHash) -> bool {
        self.hashes.get(..self.count).is_none_or(|hashes| hashes.contains(&hash.word()))
    }

    fn add(&mut self, hash: u64) {
        if let Some(place) = self.hashes.get_mut(self.count) {
            *place = hash;
        }
        self.count += 1;
    }
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Whether an existing name is durable, and in the mindex if its directory is.
    #[inline]
    pub(super) fn is_durable(
        &self,
        directory: (Node, &Cachelet),
        undurable: &mut UndurableNames,
        valid: Valid,
        name: &[u8],
    ) -> Result<bool> {
        let timestamp_ns = valid.timestamp_ns as i64;
        Ok(timestamp_ns < undurable.durable_before_ns
            || self.is_recent_name_durable(directory, undurable, timestamp_ns, name)?)
    }

    #[inline(never)]
    fn is_recent_name_durable(
        &self,
        (node, directory): (Node, &Cachelet),
        undurable: &mut UndurableNames,
        timestamp_ns: i64,
        name: &[u8],
    ) -> Result<bool> {
        let threads = self.fs.dram.slot_map().count(self.fs.header()?.slots_high.load(Relaxed));
        if undurable.announced.is_none() && (undurable.looked_up + 1) * THREADS_A_LOOKUP >= threads {
            let announced = self.announced_names(node.cachelet)?;
            if announced.count == 0 {
                undurable.durable_before_ns = undurable.began_ns & TIMESTAMP_BITS;
            }
            undurable.announced = Some(announced);
        }
        if timestamp_ns < undurable.began_ns & TIMESTAMP_BITS
            && let Some(announced) = &undurable.announced
            && !announced.may_have(self.fs.hash_name(node.number, name))
        {
            return Ok(true);
        }
        undurable.looked_up += 1;
        self.is_published(directory, node.number, name)
    }

    /// Scans the intents of all threads. The fields read of one slot may stem from two operations:
    /// then the first has ended, and the other began after the scan of the slots started.
    fn announced_names(&self, directory: u32) -> Result<Announced> {
        let mut found = Announced { hashes: [0; ANNOUNCED_MAX], count: 0 };
        for index in self.fs.taken_slots()? {
            let intent = &self.fs.dram.slot(index)?.intent;
            if intent.kind.load(Acquire) == IntentKind::None as u32 {
                continue;
            }
            for (other, hash) in intent.directories.iter().zip(&intent.hashes) {
                if other.load(Relaxed) == directory {
                    found.add(hash.load(Relaxed));
                }
            }
        }
        Ok(found)
    }

    /// Looks a name up. The mindex has it only once it is durable; no thread creates names in a
    /// directory that is not indexed.
    fn is_published(&self, directory: &Cachelet, number: u64, name: &[u8]) -> Result<bool> {
        if DirectoryState::of(directory) != DirectoryState::Indexed {
            return Ok(true);
        }
        let hash = self.fs.hash_name(number, name);
        if self.fs.find(number, name, hash)?.is_some() {
            return Ok(true);
        }
        // Its creator, or a rename, may be between fence and insertion: it holds the name.
        Ok(self.names().hold_existing(&NameKey { parent: number, name, hash })?.is_some())
    }
}
