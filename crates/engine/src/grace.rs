//! Grace periods: nobody who was inside when a thing was removed may still be looking at it when it is used again (RCU by epochs).

use crate::error::Result;
use crate::fs::Thread;
use pmem::Memory;

/// While it lives, nothing that the thread can reach is used for something else.
pub(crate) struct Pin<'t, 'f, M: Memory> {
    _thread: &'t Thread<'f, M>,
}

impl<'f, M: Memory> Thread<'f, M> {
    /// Enters; nests.
    pub(crate) fn pin(&self) -> Pin<'_, 'f, M> {
        todo!()
    }

    /// Waits until everybody who is inside now has left (for eviction and compaction). The caller must not be pinned.
    pub(crate) fn wait_for_grace(&self) -> Result<()> {
        todo!()
    }
}
