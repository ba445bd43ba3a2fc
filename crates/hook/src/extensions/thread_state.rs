//! The part of extensions in the state of a thread.

#[cfg(feature = "extensions")]
use super::rings::message_ring::MessageRing;

/// What extensions keep with a thread. All zero: nothing.
pub struct ThreadState {
    /// Not for a child in its parent's memory.
    #[cfg(feature = "extensions")]
    pub(crate) message_ring: MessageRing,
}

impl ThreadState {
    /// The thread ends, or another takes over its record.
    pub fn leave(&mut self) {
        #[cfg(feature = "extensions")]
        self.message_ring.leave();
    }
}
