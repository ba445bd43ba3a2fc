//! Signals while a call is served.

/// Whether a signal of this thread waits until its call is done: a call that waits ends with EINTR then.
pub fn is_pending() -> bool {
    false
}
