//! A thread inside the engine that acts for somebody, and references that give themselves back.

use crate::cached_reference::CachedReference;
use crate::credentials::{Credentials, Want};
use crate::errno::{Errno, Result};
use crate::path_cache::PathCache;
use core::mem::ManuallyDrop;
use engine::format::FileKind;
use engine::{Attributes, Node, Protection, Thread};
use pmem::{Direct, Memory};

/// A thread inside the engine acting with somebody's credentials. All calls are its methods.
///
/// Nodes that are passed in stay the caller's: the method uses them and releases none of them.
pub struct Caller<'t, 'f, M: Memory = Direct> {
    /// The thread.
    pub thread: &'t Thread<'f, M>,
    /// On whose behalf.
    pub credentials: Credentials<'t>,
    /// Ways that this thread has gone before, if somebody keeps them.
    pub path_cache: Option<&'t PathCache>,
    /// The directory in which this thread last used a name by a path that leads there, if somebody keeps it.
    pub parent: Option<&'t CachedReference>,
}

impl<M: Memory> Clone for Caller<'_, '_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Memory> Copy for Caller<'_, '_, M> {}

/// A node with a reference that is given back on drop; or one that somebody else keeps alive meanwhile.
pub struct NodeRef<'t, 'f, M: Memory = Direct> {
    thread: &'t Thread<'f, M>,
    node: Node,
    owned: bool,
}

impl<'t, 'f, M: Memory> NodeRef<'t, 'f, M> {
    /// Takes charge of a reference.
    pub fn owned(thread: &'t Thread<'f, M>, node: Node) -> Self {
        // If this thread dies in the middle of the call, whoever puts its work in order gives the reference back.
        thread.record_reference(node);
        NodeRef { thread, node, owned: true }
    }

    /// A node that the caller keeps alive for as long as this lives.
    pub fn borrowed(thread: &'t Thread<'f, M>, node: Node) -> Self {
        NodeRef { thread, node, owned: false }
    }

    /// Whether this has a reference of its own.
    pub(crate) fn is_owned(&self) -> bool {
        self.owned
    }

    /// The node, for as long as this lives.
    pub fn node(&self) -> Node {
        self.node
    }

    /// The node with a reference that the caller must give back.
    pub fn into_node(self) -> Result<Node> {
        match self.owned {
            true => self.thread.unrecord_reference(self.node),
            false => self.thread.retain(self.node)?,
        }
        Ok(ManuallyDrop::new(self).node)
    }
}

impl<'t, 'f, M: Memory> NodeRef<'t, 'f, M> {
    /// The node with a reference that the caller must give back, noted still: see
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
    /// A thread acting for somebody.
    pub fn new(thread: &'t Thread<'f, M>, credentials: Credentials<'t>) -> Self {
        Caller { thread, credentials, path_cache: None, parent: None }
    }

    /// The same, with the thread's trails.
    #[inline]
    pub fn with_path_cache(self, path_cache: &'t PathCache) -> Self {
        Caller { path_cache: Some(path_cache), ..self }
    }

    /// The same, with the directory that the thread keeps.
    #[inline]
    pub fn with_parent(self, parent: &'t CachedReference) -> Self {
        Caller { parent: Some(parent), ..self }
    }

    /// EROFS if nothing may change.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.thread.fs().is_read_only() { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Attributes and a permission check in one. Writing fails with EROFS before the mode is asked, but for what lives outside the file
    /// system: devices, pipes, sockets.
    pub(crate) fn check(&self, node: Node, want: Want) -> Result<Attributes> {
        let attributes = self.thread.stat(node)?;
        self.check_protection(&attributes.protection(), want)?;
        Ok(attributes)
    }

    /// As [`Caller::check`], for what is at hand.
    pub(crate) fn check_protection(&self, file: &Protection, want: Want) -> Result<()> {
        let ours = matches!(file.kind(), Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink));
        if ours && want.0 & Want::WRITE.0 != 0 {
            self.check_writable()?;
        }
        self.permit(file, want)
    }

    /// That `directory` is one and may be searched. The kernel has seen to that for a checked caller.
    #[inline]
    pub(crate) fn check_search(&self, directory: Node) -> Result<Protection> {
        // Not all attributes: the others change with the directory's names, and whoever makes one would wait for that line.
        let here = self.thread.protection(directory)?;
        if !here.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        self.permit(&here, Want::EXECUTE)?;
        Ok(here)
    }

    /// The file of a name, with a reference, after the search check.
    pub fn lookup(&self, directory: Node, name: &[u8]) -> Result<NodeRef<'t, 'f, M>> {
        if !self.credentials.checked {
            self.check_search(directory)?;
        }
        Ok(NodeRef::owned(self.thread, self.thread.lookup(directory, name)?))
    }
}
