//! Open files that a program brings along into a mount.
//!
//! A program that was started inside another front may have inherited descriptors of files in the image. It opens them anew, here, by a name in the root
//! that nobody lists: [`NAME`] and the descriptor's number. From then on what it reads and writes there moves the position that the other owners of
//! the description share.

use engine::Node;
use posix::OpenFile;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock};

/// What the names of brought-along descriptors begin with.
pub const NAME: &str = ".directfs-descriptor-";

/// Tells others of a descriptor's new position.
pub type Moved = Box<dyn Fn(u32, u64) + Send + Sync>;

/// The descriptors that the mount's first program has. Whoever makes this keeps the files open for as long as the mount stands.
pub struct Inherited {
    files: HashMap<u32, Node>,
    moved: Moved,
    /// What a process has looked up and will open next.
    opening: Mutex<HashMap<u32, u32>>,
    /// Descriptor by handle.
    open: RwLock<HashMap<u64, u32>>,
}

impl Inherited {
    /// These descriptors, and how to tell of their positions.
    pub fn new(files: impl IntoIterator<Item = (u32, Node)>, moved: Moved) -> Inherited {
        Inherited { files: files.into_iter().collect(), moved, opening: Mutex::default(), open: RwLock::default() }
    }

    /// The file of a name in the root, if it is one of these; its next opening by the same process is that of the descriptor.
    pub(crate) fn look_up(&self, process: u32, name: &[u8]) -> Option<Node> {
        let number = name.strip_prefix(NAME.as_bytes())?;
        let descriptor = std::str::from_utf8(number).ok()?.parse().ok()?;
        let node = *self.files.get(&descriptor)?;
        self.opening.lock().unwrap_or_else(PoisonError::into_inner).insert(process, descriptor);
        Some(node)
    }

    /// A process opened a file.
    pub(crate) fn opened(&self, process: u32, node: Node, handle: u64) {
        let looked_up = self.opening.lock().unwrap_or_else(PoisonError::into_inner).remove(&process);
        if let Some(descriptor) = looked_up.filter(|descriptor| self.files.get(descriptor) == Some(&node)) {
            self.open.write().unwrap_or_else(PoisonError::into_inner).insert(handle, descriptor);
        }
    }

    /// Something was read or written through a handle, up to there.
    pub(crate) fn moved(&self, handle: u64, position: u64) {
        if let Some(&descriptor) = self.open.read().unwrap_or_else(PoisonError::into_inner).get(&handle) {
            (self.moved)(descriptor, position);
        }
    }

    /// A handle was closed.
    pub(crate) fn closed(&self, handle: u64) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
    }
}

/// Where a write through a file that appends has ended.
pub(crate) fn appends(file: &OpenFile) -> bool {
    file.flags() & libc::O_APPEND != 0
}
