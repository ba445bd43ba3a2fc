//! Short private mappings, which are copies of their files' bytes in anonymous memory.
//!
//! The kernel would supply zeros where a program asks for the file's bytes again (MADV_DONTNEED),
//! or for more of them (mremap). So the process keeps a list of its copies, and writes the bytes
//! there. The list holds no reference to a file: after the last name and descriptor of the file are
//! gone, such calls fail with EINVAL.
//!
//! Invariant: the list changes only under the lock of [`missing`](super::missing), and not for
//! children in shared memory.

use super::pieces::PAGE_BYTES;
use crate::abi::sys;
use crate::context::Inside;
use crate::large_table::{self, LargeTable};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};
use engine::Node;
use posix::{Errno, Result};

/// Maximum number of copies in the list; the kernel treats others as anonymous memory.
const COPIES_MAX: usize = 4096;

/// A copy of a part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileCopy {
    /// First address; page-aligned.
    pub address: u64,
    /// Bytes; whole pages.
    pub length: u64,
    /// Offset in the file.
    pub offset: u64,
    /// The file.
    pub node: Node,
    /// Its generation: the node's place may belong to another file later.
    pub generation: u32,
}

impl FileCopy {
    fn end(&self) -> u64 {
        self.address + self.length
    }

    /// The part within an address range.
    pub fn part(&self, from: u64, to: u64) -> Option<FileCopy> {
        let (address, end) = (self.address.max(from), self.end().min(to));
        let length = end.checked_sub(address).filter(|length| *length > 0)?;
        Some(FileCopy { address, length, offset: self.offset + (address - self.address), ..*self })
    }
}

/// An entry; all zero: free.
struct Entry([AtomicU64; 5]);

impl Entry {
    fn get(&self) -> FileCopy {
        let [address, length, offset, number, words] = self.0.each_ref().map(|word| word.load(Relaxed));
        let node = Node { cachelet: words as u32, number };
        FileCopy { address, length, offset, node, generation: (words >> 32) as u32 }
    }

    fn set(&self, copy: &FileCopy) {
        let words = u64::from(copy.generation) << 32 | u64::from(copy.node.cachelet);
        let values = [copy.address, copy.length, copy.offset, copy.node.number, words];
        self.0.iter().zip(values).for_each(|(word, value)| word.store(value, Relaxed));
    }

    fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Relaxed));
    }

    fn is_free(&self) -> bool {
        self.0[1].load(Relaxed) == 0
    }
}

// SAFETY: atomic integers.
unsafe impl large_table::Entry for Entry {}

static COPIES: LargeTable<Entry, COPIES_MAX> = LargeTable::unmapped();
/// Entries from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);

fn used() -> impl Iterator<Item = &'static Entry> {
    COPIES.entries().iter().take(USED.load(Relaxed)).filter(|entry| !entry.is_free())
}

/// Adds a copy, in place of what the list says about its addresses.
pub fn add(copy: &FileCopy) {
    remove(copy.address, copy.length);
    insert(copy);
}

fn insert(copy: &FileCopy) {
    let entries = COPIES.entries_for_change();
    let Some(index) = entries.iter().position(Entry::is_free) else { return };
    entries[index].set(copy);
    USED.fetch_max(index + 1, Relaxed);
}

/// Removes an address range.
pub fn remove(address: u64, length: u64) {
    let end = address.saturating_add(length);
    for entry in used() {
        let copy = entry.get();
        if copy.part(address, end).is_none() {
            continue;
        }
        entry.clear();
        for rest in [copy.part(0, address), copy.part(end, u64::MAX)].into_iter().flatten() {
            insert(&rest);
        }
    }
}

/// The first copy in an address range, as far as it lies there.
pub fn first_in(address: u64, length: u64) -> Option<FileCopy> {
    let end = address.saturating_add(length);
    used().filter_map(|entry| entry.get().part(address, end)).min_by_key(|copy| copy.address)
}

/// Writes the file's bytes into a copy, which may be write-protected.
pub fn refill(inside: &mut Inside<'_>, copy: &FileCopy) -> Result<()> {
    let caller = &inside.session.caller;
    if !caller.stat(copy.node).is_ok_and(|file| file.generation == copy.generation && file.number == copy.node.number) {
        return Err(Errno::EINVAL);
    }
    let memory = sys::open(b"/proc/self/mem\0", libc::O_RDWR).map_err(|_| Errno::EINVAL)?;
    let mut done = 0;
    while done < copy.length {
        let count = (copy.length - done).min(inside.copy.len() as u64) as usize;
        let piece = &mut inside.copy[..count];
        let mut filled = 0;
        while filled < count {
            match caller.thread.files().read(copy.node, copy.offset + done + filled as u64, &mut piece[filled..])? {
                0 => break,
                more => filled += more,
            }
        }
        piece[filled..].fill(0);
        if !memory.write_at(copy.address + done, piece) {
            return Err(Errno(libc::EFAULT));
        }
        done += count as u64;
    }
    Ok(())
}

/// Whether a mapping may be a copy: none of its pages lies behind the end of the file, where an
/// access must raise a signal. The dynamic loader's may: it replaces those pages.
pub fn suits(size_bytes: u64, offset: u64, length: u64, flags: i32) -> bool {
    /// Longer private mappings consist of the file's blocks.
    const COPY_BYTES_MAX: u64 = 1 << 20;
    let is_inside = offset.saturating_add(length) <= size_bytes.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1);
    length <= COPY_BYTES_MAX && (is_inside || flags & libc::MAP_DENYWRITE != 0)
}
