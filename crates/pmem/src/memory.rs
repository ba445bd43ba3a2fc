//! Hooks that observe or slow the memory of a region. In [`Direct`] they compile to nothing.

use crate::UserBytes;

/// Hooks around the accesses to a region: recording for crash tests, delays for emulated slow
/// memory.
///
/// Offsets are bytes from the start of the region. `stored` is called after the bytes are in place.
pub trait Memory: Send + Sync + 'static {
    /// Whether any hook has an effect; `false` lets the compiler drop the calls.
    const WATCHED: bool;

    /// `bytes` at `offset` were stored: they are in the cache, not yet flushed.
    fn stored(&self, offset: u64, bytes: &[u8]);
    /// `bytes` at `offset` were stored past the cache: durable at the next fence without a flush.
    fn streamed(&self, offset: u64, bytes: UserBytes<'_>);
    /// Flushes for the lines of `offset .. offset + length` are about to be issued. They cover
    /// every store reported before; a store reported later need not be covered.
    fn flushed(&self, offset: u64, length: u64);
    /// A fence has completed: this thread's earlier flushes are durable.
    fn fenced(&self);
    /// `length` bytes at `offset` are about to be read from the medium.
    fn read(&self, offset: u64, length: u64);
    /// The processor was asked to load the line of `offset`; a later read waits only for the
    /// remaining time.
    #[inline(always)]
    fn prefetched(&self, _offset: u64) {}
    /// The structure at `offset` is about to be read or changed.
    #[inline(always)]
    fn reached(&self, _offset: u64) {}
}

/// Plain memory: nothing is observed or slowed, and the hooks cost nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Direct;

impl Memory for Direct {
    const WATCHED: bool = false;
    #[inline(always)]
    fn stored(&self, _: u64, _: &[u8]) {}
    #[inline(always)]
    fn streamed(&self, _: u64, _: UserBytes<'_>) {}
    #[inline(always)]
    fn flushed(&self, _: u64, _: u64) {}
    #[inline(always)]
    fn fenced(&self) {}
    #[inline(always)]
    fn read(&self, _: u64, _: u64) {}
}

/// One memory with several owners: the test keeps the recorder that the region reports to.
#[cfg(feature = "std")]
impl<M: Memory> Memory for std::sync::Arc<M> {
    const WATCHED: bool = M::WATCHED;
    #[inline(always)]
    fn stored(&self, offset: u64, bytes: &[u8]) {
        (**self).stored(offset, bytes);
    }
    #[inline(always)]
    fn streamed(&self, offset: u64, bytes: UserBytes<'_>) {
        (**self).streamed(offset, bytes);
    }
    #[inline(always)]
    fn flushed(&self, offset: u64, length: u64) {
        (**self).flushed(offset, length);
    }
    #[inline(always)]
    fn fenced(&self) {
        (**self).fenced();
    }
    #[inline(always)]
    fn read(&self, offset: u64, length: u64) {
        (**self).read(offset, length);
    }
    #[inline(always)]
    fn prefetched(&self, offset: u64) {
        (**self).prefetched(offset);
    }
    #[inline(always)]
    fn reached(&self, offset: u64) {
        (**self).reached(offset);
    }
}
