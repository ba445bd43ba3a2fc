//! The pointer from an inode on the image to its entry in a cache in memory.

use pmem::{Cell64, Layout, Memory, Region};

/// Two words in an inode: where its cache entry is, and in which mount that was so. Never flushed on purpose: a crash leaves anything there, and the number
/// of the mount, which rises durably before the first pointer is set, tells that it is dead.
#[repr(C)]
#[derive(Debug)]
pub struct NvPointer {
    /// Whatever the front wants to find, plus one; zero for nothing.
    pointer: Cell64,
    /// The mount that the pointer is of.
    mount: Cell64,
}

// SAFETY: two cells of eight bytes, `repr(C)`, no padding, any bits are a value.
unsafe impl Layout for NvPointer {}

impl NvPointer {
    /// What it leads to, if it is live.
    #[inline]
    pub fn get<M: Memory>(&self, region: &Region<M>, mounts: u64) -> Option<u64> {
        region.note_read(region.offset_of(self), 16);
        if self.mount.load_acquire() != mounts {
            return None;
        }
        // A reader that comes between the two stores of `set` sees an earlier pointer of this mount: callers check what they find.
        self.pointer.load_acquire().checked_sub(1)
    }

    /// Makes it lead somewhere.
    pub fn set<M: Memory>(&self, region: &Region<M>, mounts: u64, to: u64) {
        region.set64(&self.pointer, to + 1).unflushed();
        // A release store would be better said by a commit word, but nothing here counts after a crash.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        region.set64(&self.mount, mounts).unflushed();
    }

    /// Makes it lead nowhere.
    pub fn clear<M: Memory>(&self, region: &Region<M>) {
        region.set64(&self.pointer, 0).unflushed();
    }
}
