//! What watches or slows the memory of a region. The hooks compile to nothing in [`Direct`].

/// Hooks around the accesses to a region: recording for crash tests, delays for emulated slow memory.
///
/// Offsets are bytes from the start of the region. `stored` is called after the bytes are in place.
pub trait Memory: Send + Sync + 'static {
    /// Whether any hook does anything; `false` lets the compiler drop the calls.
    const WATCHED: bool;

    /// `bytes` at `offset` were stored (they are in the cache, not yet flushed).
    fn stored(&self, offset: u64, bytes: &[u8]);
    /// `bytes` at `offset` were stored past the cache: durable at the next fence without a flush.
    fn streamed(&self, offset: u64, bytes: &[u8]);
    /// Flushes for the lines of `offset .. offset + length` are about to be issued: whatever was reported as stored
    /// before this is covered by them, whatever is reported later need not be.
    fn flushed(&self, offset: u64, length: u64);
    /// A fence was issued and has completed: what was flushed before by this thread is durable.
    fn fenced(&self);
    /// `length` bytes at `offset` are about to be read from the medium.
    fn read(&self, offset: u64, length: u64);
    /// The processor was asked to bring the line of `offset`: whoever reads it later waits for what is left of its way only.
    #[inline(always)]
    fn prefetched(&self, _offset: u64) {}
    /// The structure at `offset` is about to be looked at, or changed.
    #[inline(always)]
    fn reached(&self, _offset: u64) {}
}

/// Plain memory: nothing is watched, nothing is slowed, nothing costs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Direct;

impl Memory for Direct {
    const WATCHED: bool = false;
    #[inline(always)]
    fn stored(&self, _: u64, _: &[u8]) {}
    #[inline(always)]
    fn streamed(&self, _: u64, _: &[u8]) {}
    #[inline(always)]
    fn flushed(&self, _: u64, _: u64) {}
    #[inline(always)]
    fn fenced(&self) {}
    #[inline(always)]
    fn read(&self, _: u64, _: u64) {}
}

/// One memory behind several owners: the test keeps the recorder that the region reports to.
#[cfg(feature = "std")]
impl<M: Memory> Memory for std::sync::Arc<M> {
    const WATCHED: bool = M::WATCHED;
    #[inline(always)]
    fn stored(&self, offset: u64, bytes: &[u8]) {
        (**self).stored(offset, bytes);
    }
    #[inline(always)]
    fn streamed(&self, offset: u64, bytes: &[u8]) {
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
