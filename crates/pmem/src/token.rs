//! Tokens that prove the progress of a store towards persistence: `Dirty → Flushed → Durable`.
//!
//! The crate's documentation lists the reasons for which a commit word may be stored. Each demands
//! its evidence; nothing else makes it.
//!
//! A token proves order, not recovery. Outside this crate only the step that it represents can
//! create it, and the next step consumes it. The traits are claims about recovery. Each is made
//! once, at the implementation; the crash explorer tests whether it holds.
//!
//! Decision: docs/decisions/foundations.md, "The order of persistence is in the types".

use crate::cell::{Commit64, Layout};
use core::marker::PhantomData;
use core::ops::Deref;

/// Bytes were stored and are somewhere in the caches. Dropping the token omits a flush, hence
/// `must_use`.
#[must_use = "stored but not flushed: flush it, or it may never reach the medium"]
#[derive(Debug)]
pub struct Dirty {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Dirty {
    /// Omits the flush: eviction or another flush of the line may write it back. Only for bytes
    /// that recovery does not need. Example: clearing a journal slot whose replay is idempotent
    /// until its records are recycled; recycling flushes and fences first.
    #[inline(always)]
    pub fn unflushed(self) {}

    /// Both ranges as one. Meant for adjacent ranges: everything between them is flushed too.
    #[inline(always)]
    pub fn and(self, other: Dirty) -> Dirty {
        Dirty { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// Flushes were issued for the bytes; the next fence makes them durable.
#[must_use = "flushed but not fenced: fence it before anything depends on it"]
#[derive(Debug)]
pub struct Flushed(pub(crate) ());

impl Flushed {
    /// Several flushes for one fence.
    #[inline(always)]
    pub fn and(self, _other: Flushed) -> Flushed {
        self
    }

    /// A token without flushes: nothing was written that needs a fence of its own.
    #[inline(always)]
    pub fn nothing() -> Flushed {
        Flushed(())
    }

    /// Leaves the fence to a later operation of this thread. Only for bytes that recovery does not
    /// need. Example: clearing a journal slot whose replay is idempotent until its records are
    /// recycled; recycling fences first.
    #[inline(always)]
    pub fn unfenced(self) {}
}

/// The bytes survive every failure that the backing's guarantee covers.
#[derive(Debug, Clone, Copy)]
pub struct Durable(pub(crate) ());

/// The word names a record that certifies itself. Recovery accepts the word only if the record's
/// checksum verifies, so the record and the word can share one fence.
///
/// A checksum is needed:
///
/// ```compile_fail,E0277
/// # use pmem::*;
/// # fn example(pm: &Region, plain: &Cell64, head: &Commit64) {
/// let record = pm.flush_record(plain, pm.set64(plain, 7));
/// let _ = pm.commit(head, 1, Sealed::checksummed(record));
/// # }
/// ```
///
/// So is the record; flushes of something else do not suffice:
///
/// ```compile_fail,E0308
/// # use pmem::*;
/// # fn example(pm: &Region, plain: &Cell64, head: &Commit64) {
/// let flushed = pm.flush(pm.set64(plain, 7));
/// let _ = pm.commit(head, 1, Sealed::checksummed(flushed));
/// # }
/// ```
#[must_use = "sealed and flushed, but nothing commits it"]
#[derive(Debug)]
pub struct Sealed(pub(crate) ());

impl Sealed {
    /// The proof for a word that names `record`.
    #[inline(always)]
    pub fn checksummed<T: Checksummed>(_record: FlushedRecord<T>) -> Sealed {
        Sealed(())
    }
}

/// A structure with a checksum and a word that makes it count. Recovery heeds the word only if the
/// checksum verifies. The implementation names the place in recovery that does so.
///
/// [`Region::commit_record`](crate::Region::commit_record) stores the word without a fence:
///
/// ```
/// # use pmem::*;
/// # #[repr(C, align(64))] struct Record { seal: Commit64, value: Cell64, rest: [Cell64; 6] }
/// # unsafe impl Layout for Record {}
/// impl Checksummed for Record {
///     fn commit_word(&self) -> &Commit64 {
///         &self.seal
///     }
/// }
/// # fn example(pm: &Region, record: &Record, head: &Commit64) {
/// let dirty = pm.set64(&record.value, 7);
/// let dirty = dirty.and(pm.commit_record(record, crc32c_words(&[7], None) as u64));
/// let record = pm.flush_record(record, dirty);
/// let _ = pm.persist(pm.commit(head, 1, Sealed::checksummed(record)));
/// # }
/// ```
///
/// A structure without a checksum has no such word:
///
/// ```compile_fail,E0277
/// # use pmem::*;
/// # #[repr(C, align(64))] struct Record { head: Commit64, value: Cell64, rest: [Cell64; 6] }
/// # unsafe impl Layout for Record {}
/// # fn example(pm: &Region, record: &Record) {
/// let _ = pm.commit_record(record, 1);
/// # }
/// ```
pub trait Checksummed: Layout {
    /// The word that makes the structure count.
    fn commit_word(&self) -> &Commit64;
}

/// Flushes were issued for a record from its first byte on.
#[must_use = "flushed but not fenced: fence it before anything depends on it"]
#[derive(Debug)]
pub struct FlushedRecord<T>(pub(crate) PhantomData<fn() -> T>);

impl<T> FlushedRecord<T> {
    /// The token for the fence, where no word names the record under the same fence.
    #[inline(always)]
    pub fn flushed(self) -> Flushed {
        Flushed(())
    }
}

/// Memory that an allocator has just handed out: no word that a crash can leave names it. Only
/// allocators implement this.
pub trait Allocation {
    /// Bytes from the start of the region.
    fn offset(&self) -> u64;
}

/// A structure that no crash state reaches, because it lies in memory that was just allocated and
/// that nothing names yet. Its words need no order
/// ([`Region::commit_unreachable`](crate::Region::commit_unreachable)); the commit that makes it
/// reachable does.
///
/// A reference to a structure does not show whether it is reachable:
///
/// ```compile_fail,E0308
/// # use pmem::*;
/// # #[repr(C, align(64))] struct Node { words: [Commit64; 8] }
/// # unsafe impl Layout for Node {}
/// # fn example(pm: &Region, node: &Node) {
/// let _ = pm.commit_unreachable(node, |node: &Node| &node.words[0], 1);
/// # }
/// ```
///
/// Nor is a word of something else a word of the structure:
///
/// ```compile_fail
/// # use pmem::*;
/// # #[repr(C, align(64))] struct Node { words: [Commit64; 8] }
/// # unsafe impl Layout for Node {}
/// # fn example(pm: &Region, node: &Unreachable<'_, Node>, head: &Commit64) {
/// let _ = pm.commit_unreachable(node, |_| head, 1);
/// # }
/// ```
/// The token ends with [`Unreachable::linked`], before something leads to the structure:
///
/// ```compile_fail,E0382
/// # use pmem::*;
/// # #[repr(C, align(64))] struct Node { words: [Commit64; 8] }
/// # unsafe impl Layout for Node {}
/// # fn example(pm: &Region, node: Unreachable<'_, Node>) {
/// let offset = pm.offset_of(node.linked());
/// let _ = pm.commit_unreachable(&node, |node| &node.words[0], 1);
/// # }
/// ```
#[derive(Debug)]
pub struct Unreachable<'r, T>(pub(crate) &'r T);

impl<'r, T> Unreachable<'r, T> {
    /// The structure, to which something is about to lead: from now on the order of stores to its
    /// words counts.
    #[inline(always)]
    pub fn linked(self) -> &'r T {
        self.0
    }
}

impl<T> Deref for Unreachable<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.0
    }
}

/// A word that recovery stores again, whatever a crash left in it, from something that is durable
/// or certifies itself. So a store to it needs no order. The implementation names the place in
/// recovery, and its constructors demand what recovery computes the word from.
pub trait Recomputed {
    /// The word.
    fn word(&self) -> &Commit64;
}

mod private {
    pub trait Private {}
    impl Private for super::Durable {}
    impl Private for super::Sealed {}
}

/// What a commit store accepts: [`Durable`] or [`Sealed`].
///
/// ```compile_fail,E0277
/// # use pmem::*;
/// # fn example(pm: &Region, value: &Cell64, head: &Commit64) {
/// let flushed = pm.flush(pm.set64(value, 7));
/// let _ = pm.commit(head, 1, flushed); // no fence
/// # }
/// ```
///
/// No token comes from nothing:
///
/// ```compile_fail,E0423
/// # use pmem::*;
/// # fn example(pm: &Region, head: &Commit64) {
/// let _ = pm.commit(head, 1, Sealed(()));
/// # }
/// ```
pub trait Proof: private::Private {}
impl Proof for Durable {}
impl Proof for Sealed {}
