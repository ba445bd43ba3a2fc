//! Tokens that prove the progress of a store towards persistence: `Dirty → Flushed → Durable`.
//!
//! A token proves order, not recovery. Outside this crate only the step that it represents can
//! create it, and the next step consumes it. Whether the committed bytes suffice for recovery is
//! for the crash explorer to test.

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

/// The bytes certify themselves: a checksum covers everything that the commit store refers to, and
/// recovery accepts the commit only if all of it verifies. The record and its commit can then share
/// one fence.
#[must_use = "sealed and flushed, but nothing commits it"]
#[derive(Debug)]
pub struct Sealed(pub(crate) ());

impl Flushed {
    /// Declares that the flushed bytes carry a checksum which recovery verifies before it follows
    /// the commit word. A comment at the call names the place in recovery that does so.
    #[inline(always)]
    pub fn sealed(self) -> Sealed {
        Sealed(())
    }
}

mod private {
    pub trait Private {}
    impl Private for super::Durable {}
    impl Private for super::Sealed {}
}

/// What a commit store accepts: [`Durable`] or [`Sealed`].
pub trait Proof: private::Private {}
impl Proof for Durable {}
impl Proof for Sealed {}
