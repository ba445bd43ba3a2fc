//! The pointer from an inode on the image to its entry in a cache in memory.

use pmem::{Cell64, Layout, Memory, Region};

/// Two words in an inode: the location of its cache entry, and the mount that wrote it. They are
/// never flushed, so a crash can leave any value. The mount number rises durably before the first
/// pointer is set; an older number marks a dead pointer.
#[repr(C)]
#[derive(Debug)]
pub struct NvPointer {
    /// A value that the VFS layer chooses, plus one; zero is none.
    pointer: Cell64,
    /// The mount that set the pointer.
    mount: Cell64,
}

// SAFETY: two cells of eight bytes, `repr(C)`, no padding, any bits are a value.
unsafe impl Layout for NvPointer {}

impl NvPointer {
    /// The value, if the pointer is live.
    #[inline]
    pub fn get<M: Memory>(&self, region: &Region<M>, mounts: u64) -> Option<u64> {
        region.report_read(region.offset_of(self), 16);
        if self.mount.load_acquire() != mounts {
            return None;
        }
        // A reader between the two stores of `set` sees an earlier pointer of this mount; callers
        // check what they find.
        self.pointer.load_acquire().checked_sub(1)
    }

    /// Sets the pointer.
    pub fn set<M: Memory>(&self, region: &Region<M>, mounts: u64, to: u64) {
        region.set64(&self.pointer, to + 1).unflushed();
        // A commit word would express the release store better, but nothing here is valid after a
        // crash.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        region.set64(&self.mount, mounts).unflushed();
    }

    /// Clears the pointer.
    pub fn clear<M: Memory>(&self, region: &Region<M>) {
        region.set64(&self.pointer, 0).unflushed();
    }
}
