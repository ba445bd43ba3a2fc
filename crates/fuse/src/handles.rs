//! The open files of a mount, by the handles that the kernel passes back.

use posix::OpenFile;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Open files by handle. A handle is never reused.
#[derive(Default)]
pub(crate) struct Handles {
    next: AtomicU64,
    open: RwLock<HashMap<u64, Arc<OpenFile>>>,
}

impl Handles {
    /// Stores an open file; returns its handle.
    pub(crate) fn insert(&self, file: OpenFile) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(file));
        handle
    }

    /// The open file of a handle.
    pub(crate) fn get(&self, handle: u64) -> Option<Arc<OpenFile>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned()
    }

    /// Removes an open file. The kernel releases a handle only after its last request.
    pub(crate) fn remove(&self, handle: u64) -> Option<Arc<OpenFile>> {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle)
    }

    /// Removes all.
    pub(crate) fn drain(&self) -> Vec<Arc<OpenFile>> {
        let open = std::mem::take(&mut *self.open.write().unwrap_or_else(PoisonError::into_inner));
        open.into_values().collect()
    }
}
