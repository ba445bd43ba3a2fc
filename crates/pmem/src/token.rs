//! Tokens that prove how far a store has come on its way to persistence: `Dirty → Flushed → Durable`.
//!
//! A token proves order, not recovery: it cannot be made but by the step that it stands for (outside this crate), and is
//! consumed by the next one. That what is committed suffices to recover is the crash explorer's to show.

/// Bytes were stored and are somewhere in the caches. Dropping it forgets a flush, hence `must_use`.
#[must_use = "stored but not flushed: flush it, or it may never reach the medium"]
#[derive(Debug)]
pub struct Dirty {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Dirty {
    /// Leaves the flush to chance, or to somebody who flushes the place anyway. Only for what recovery does not need, such as clearing a journal
    /// slot whose replay is idempotent until its records are recycled (which flushes and fences first).
    #[inline(always)]
    pub fn unflushed(self) {}

    /// Both ranges as one; meant for neighbours, since everything between them is flushed too.
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
    /// Several flushes awaiting one fence.
    #[inline(always)]
    pub fn and(self, _other: Flushed) -> Flushed {
        self
    }

    /// Nothing was written that needs a fence of its own.
    #[inline(always)]
    pub fn nothing() -> Flushed {
        Flushed(())
    }

    /// Leaves the fence to a later operation of this thread. Only for what recovery does not need, such as clearing a
    /// journal slot whose replay is idempotent until its records are recycled (which fences first).
    #[inline(always)]
    pub fn unfenced(self) {}
}

/// The bytes survive what the backing promises to survive.
#[derive(Debug, Clone, Copy)]
pub struct Durable(pub(crate) ());

/// The bytes certify themselves: a checksum over all that the commit store names, so that recovery accepts the commit only
/// where everything verifies. Lets the record and its commit share one fence.
#[must_use = "sealed and flushed, but nothing commits it"]
#[derive(Debug)]
pub struct Sealed(pub(crate) ());

impl Flushed {
    /// Declares that what was flushed carries a checksum which recovery checks before it follows the commit word. The caller
    /// names the place in recovery that does so in a comment beside the call.
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
