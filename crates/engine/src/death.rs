//! The points at which a test can kill a thread. In all other builds such a point only keeps the
//! compiler from moving stores across it, which costs nothing: the processor keeps their order
//! anyway.

use core::sync::atomic::{Ordering::SeqCst, compiler_fence};

/// A point between two steps that other threads can observe.
#[inline(always)]
pub(crate) fn may_die_here() {
    compiler_fence(SeqCst);
    #[cfg(test)]
    crate::testing::mortality::may_die_here();
}

/// Whether this thread is dead and only its stack is being unwound: then destructors release
/// nothing.
#[inline(always)]
pub(crate) fn dead() -> bool {
    #[cfg(test)]
    return crate::testing::mortality::dead();
    #[cfg(not(test))]
    false
}
