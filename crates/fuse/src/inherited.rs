//! Open files that a program brings into a mount.
//!
//! A program that is started in a private mount may have inherited descriptors of files in the
//! image. It reopens them on the mount by a hidden name in the root: [`NAME`] followed by the
//! descriptor's number. Its reads and writes there then move the position that the other owners of
//! the description share.

use engine::Node;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock};

/// The prefix of the names of inherited descriptors.
pub const NAME: &str = ".directfs-descriptor-";

/// Reports a descriptor's new position to its other owners.
pub type Moved = Box<dyn Fn(u32, u64) + Send + Sync>;

/// The descriptors that the mount's first program inherited. The creator keeps the files open for
/// the lifetime of the mount.
pub struct Inherited {
    files: HashMap<u32, Node>,
    position_changed: Moved,
    /// By process: the descriptor that it has looked up and will open next.
    opening: Mutex<HashMap<u32, u32>>,
    /// Descriptors by handle.
    open: RwLock<HashMap<u64, u32>>,
}

impl Inherited {
    /// Inherits these descriptors; `position_changed` reports their positions.
    pub fn new(files: impl IntoIterator<Item = (u32, Node)>, moved: Moved) -> Inherited {
        Inherited {
            files: files.into_iter().collect(),
            position_changed: moved,
            opening: Mutex::default(),
            open: RwLock::default(),
        }
    }

    /// The file of a name in the root, if it is an inherited descriptor. The next open of this file
    /// by the same process belongs to the descriptor.
    pub(crate) fn look_up(&self, process: u32, name: &[u8]) -> Option<Node> {
        let number = name.strip_prefix(NAME.as_bytes())?;
        let descriptor = std::str::from_utf8(number).ok()?.parse().ok()?;
        let node = *self.files.get(&descriptor)?;
        self.opening.lock().unwrap_or_else(PoisonError::into_inner).insert(process, descriptor);
        Some(node)
    }

    /// Records that a process opened a file.
    pub(crate) fn opened(&self, process: u32, node: Node, handle: u64) {
        let looked_up = self.opening.lock().unwrap_or_else(PoisonError::into_inner).remove(&process);
        if let Some(descriptor) = looked_up.filter(|descriptor| self.files.get(descriptor) == Some(&node)) {
            self.open.write().unwrap_or_else(PoisonError::into_inner).insert(handle, descriptor);
        }
    }

    /// Reports a new position after a read or write through a handle.
    pub(crate) fn position_changed(&self, handle: u64, position: u64) {
        if let Some(&descriptor) = self.open.read().unwrap_or_else(PoisonError::into_inner).get(&handle) {
            (self.position_changed)(descriptor, position);
        }
    }

    /// Records that a handle was closed.
    pub(crate) fn closed(&self, handle: u64) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
    }
}
