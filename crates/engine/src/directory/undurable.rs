//! Undurable names: a listing never returns a name that a crash could take away again.
//!
//! Invariants
//! - A create announces its name, then counts it in the directory, which is a full fence, and only
//!   then reads the clock for the name's timestamp. So consider a timestamp from before the start
//!   of a listing: a later scan of all thread slots finds the name announced, or the name is
//!   durable and in the mindex.
//! - A listing leaves out a name that only creates or links announce: no call that made it has
//!   returned. So it does not wait for them, however long they are stopped. A name that a rename
//!   announces is waited for, since its file may have no other name meanwhile.
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
    /// Names with timestamps before this are durable: none until the thread slots were scanned.
    durable_before_ns: i64,
    /// Names that it looked up.
    looked_up: u64,
    /// Names that were announced at a time after it began.
    announced: Option<Announced>,
}

impl UndurableNames {
    /// For a listing that begins.
    pub(super) fn at(now_ns: i64) -> UndurableNames {
        UndurableNames { began_ns: now_ns, durable_before_ns: i64::MIN, looked_up: 0, announced: None }
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
            || self.is_announced_name_durable(directory, undurable, timestamp_ns, name)?)
    }

    #[inline(never)]
    fn is_announced_name_durable(
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
        self.is_published(node, directory, name)
    }

    /// Scans the intents of all threads.
    fn announced_names(&self, directory: u32) -> Result<Announced> {
        let mut found = Announced { hashes: [0; ANNOUNCED_MAX], count: 0 };
        self.each_announced(directory, |_, hash| found.add(hash))?;
        Ok(found)
    }

    /// Passes kind and hash of each name in a directory that a thread has announced. The fields
    /// read of one slot may stem from two operations: then the first has ended, and the other began
    /// after the scan of the slots started.
    fn each_announced(&self, directory: u32, mut name: impl FnMut(u32, u64)) -> Result<()> {
        for index in self.fs.taken_slots()? {
            let intent = &self.fs.dram.slot(index)?.intent;
            let kind = intent.kind.load(Acquire);
            if kind == IntentKind::None as u32 {
                continue;
            }
            for (other, hash) in intent.directories.iter().zip(&intent.hashes) {
                if other.load(Relaxed) == directory {
                    name(kind, hash.load(Relaxed));
                }
            }
        }
        Ok(())
    }

    /// Looks a name up. The mindex has it only once it is durable; no thread creates names in a
    /// directory that is not indexed.
    fn is_published(&self, node: Node, directory: &Cachelet, name: &[u8]) -> Result<bool> {
        if DirectoryState::of(directory) != DirectoryState::Indexed {
            return Ok(true);
        }
        let hash = self.fs.hash_name(node.number, name);
        if self.fs.find(node.number, name, hash)?.is_some() {
            return Ok(true);
        }
        let (mut is_made, mut is_moved) = (false, false);
        self.each_announced(node.cachelet, |kind, announced| {
            let is_it = |kinds: [IntentKind; 2]| announced == hash.word() && kinds.iter().any(|&it| kind == it as u32);
            is_made |= is_it([IntentKind::Create, IntentKind::Link]);
            is_moved |= is_it([IntentKind::Rename, IntentKind::Exchange]);
        })?;
        if is_made && !is_moved {
            // What made the name may have ended since the first look, and the one that announces it
            // will find it.
            return Ok(self.fs.find(node.number, name, hash)?.is_some());
        }
        // A rename may be between fence and insertion: it holds the name.
        Ok(self.names().hold_existing(&NameKey { parent: node.number, name, hash })?.is_some())
    }
}
