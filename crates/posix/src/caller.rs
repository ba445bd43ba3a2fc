//! A thread inside the engine with credentials, and references that are released on drop.

use crate::cached_reference::CachedReference;
use crate::credentials::{Capabilities, Credentials};
use crate::path_cache::PathCache;
use core::mem::ManuallyDrop;
use engine::{Node, Thread};
use pmem::{Direct, Memory};
use tables::Result;

/// A thread inside the engine that acts with given credentials. All calls are its methods.
///
/// Nodes passed in remain the caller's: a method uses them and releases none of them.
pub struct Caller<'t, 'f, M: Memory = Direct> {
    /// The thread.
    pub thread: &'t Thread<'f, M>,
    /// The credentials.
    pub credentials: Credentials<'t>,
    /// The thread's path cache, if there is one.
    pub path_cache: Option<&'t PathCache>,
    /// The thread's cached reference to the parent directory of its last path, if there is one.
    pub parent: Option<&'t CachedReference>,
}

impl<M: Memory> Clone for Caller<'_, '_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Memory> Copy for Caller<'_, '_, M> {}

/// A node with a reference that is released on drop, or a borrowed node.
pub struct NodeRef<'t, 'f, M: Memory = Direct> {
    thread: &'t Thread<'f, M>,
    node: Node,
    owned: bool,
}

impl<'t, 'f, M: Memory> NodeRef<'t, 'f, M> {
    /// Takes over a reference.
    pub fn owned(thread: &'t Thread<'f, M>, node: Node) -> Self {
        // If this thread dies within the call, recovery of its slot releases the reference.
        thread.record_reference(node);
        NodeRef { thread, node, owned: true }
    }

    /// A node that the caller keeps referenced for the lifetime of this value.
    pub fn borrowed(thread: &'t Thread<'f, M>, node: Node) -> Self {
        NodeRef { thread, node, owned: false }
    }

    /// Whether this owns a reference.
    pub(crate) fn is_owned(&self) -> bool {
        self.owned
    }

    /// The node, valid for the lifetime of this value.
    pub fn node(&self) -> Node {
        self.node
    }

    /// The node with a reference that the caller must release.
    pub fn into_node(self) -> Result<Node> {
        match self.owned {
            true => self.thread.unrecord_reference(self.node),
            false => self.thread.retain(self.node)?,
        }
        Ok(ManuallyDrop::new(self).node)
    }
}

impl<'t, 'f, M: Memory> NodeRef<'t, 'f, M> {
    /// The node with a reference that the caller must release and that is still recorded: see
    /// [`Thread::record_reference`].
    pub(crate) fn into_recorded(self) -> Result<Node> {
        if !self.owned {
            self.thread.retain(self.node)?;
            self.thread.record_reference(self.node);
        }
        Ok(ManuallyDrop::new(self).node)
    }
}

impl<M: Memory> Drop for NodeRef<'_, '_, M> {
    fn drop(&mut self) {
        if self.owned {
            self.thread.release_recorded(self.node);
        }
    }
}

impl<'t, 'f, M: Memory> Caller<'t, 'f, M> {
    /// A caller without caches.
    pub fn new(thread: &'t Thread<'f, M>, credentials: Credentials<'t>) -> Self {
        thread.set_leaves_reserve(|| credentials.uid != 0 && !credentials.has(Capabilities::SYS_RESOURCE));
        Caller { thread, credentials, path_cache: None, parent: None }
    }

    /// A caller with the thread's path cache.
    #[inline]
    pub fn with_path_cache(self, path_cache: &'t PathCache) -> Self {
        Caller { path_cache: Some(path_cache), ..self }
    }

    /// This caller with the thread's cached parent directory.
    #[inline]
    pub fn with_parent(self, parent: &'t CachedReference) -> Self {
        Caller { parent: Some(parent), ..self }
    }

    /// The file of a name, with a reference, after the search check.
    pub fn lookup(&self, directory: Node, name: &[u8]) -> Result<NodeRef<'t, 'f, M>> {
        if !self.credentials.checked {
            self.permissions().check_search(directory)?;
        }
        let found = NodeRef::owned(self.thread, self.thread.lookup(directory, name)?);
        if self.reports().is_watched() {
            self.reports().record_name(found.node().number, directory.number, name);
        }
        Ok(found)
    }
}
