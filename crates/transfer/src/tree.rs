//! Trees of an image: making files with all their attributes, and removing trees.

use crate::{Result, TransferError};
use engine::format::FileKind;
use engine::{Changes, DirectoryHint, NewNode, Node, Thread};
use posix::{Caller, Credentials, NodeRef};

/// Everything about a file but its names and its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub kind: FileKind,
    pub permissions: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u32,
    pub modified_ns: i64,
    pub accessed_ns: Option<i64>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
}

impl Facts {
    /// A directory that an archive does not describe.
    pub fn plain_directory(now_ns: i64) -> Facts {
        Facts {
            kind: FileKind::Directory,
            permissions: 0o755,
            // SAFETY: these calls only report.
            uid: unsafe { libc::geteuid() },
            // SAFETY: as above.
            gid: unsafe { libc::getegid() },
            device: 0,
            modified_ns: now_ns,
            accessed_ns: None,
            xattrs: Vec::new(),
            target: Vec::new(),
        }
    }
}

/// A thread inside an image that may do everything.
pub struct Tree<'t, 'f> {
    pub thread: &'t Thread<'f>,
}

impl<'t, 'f> Tree<'t, 'f> {
    pub fn caller(&self) -> Caller<'t, 'f> {
        Caller::new(self.thread, Credentials::user(0, 0, &[]))
    }

    /// The root directory, with a reference.
    pub fn root(&self) -> Result<NodeRef<'t, 'f>> {
        let root = self.thread.root().map_err(|error| TransferError::image("open", b"/", error))?;
        Ok(NodeRef::owned(self.thread, root))
    }

    /// The file of a number that [`Tree::names`] passed.
    pub fn node(&self, number: u64, generation: Option<u32>, path: &[u8]) -> Result<NodeRef<'t, 'f>> {
        let node = self.thread.node(number, generation);
        Ok(NodeRef::owned(self.thread, node.map_err(|error| TransferError::image("find", path, error))?))
    }

    /// The file of a name, if it exists.
    pub fn find(&self, directory: Node, name: &[u8], path: &[u8]) -> Result<Option<NodeRef<'t, 'f>>> {
        match self.thread.lookup(directory, name) {
            Ok(node) => Ok(Some(NodeRef::owned(self.thread, node))),
            Err(engine::Error::NotFound) => Ok(None),
            Err(error) => Err(TransferError::image("find", path, error)),
        }
    }

    pub fn kind(&self, node: Node, path: &[u8]) -> Result<FileKind> {
        Ok(self.thread.stat(node).map_err(|error| TransferError::image("examine", path, error))?.kind)
    }

    /// Makes a file without content; extended attributes and times come with [`Tree::describe`].
    pub fn make(&self, directory: Node, name: &[u8], facts: &Facts, path: &[u8]) -> Result<NodeRef<'t, 'f>> {
        let new = NewNode {
            kind: facts.kind,
            permissions: facts.permissions & 0o7777,
            uid: facts.uid,
            gid: facts.gid,
            device: facts.device,
            target: &facts.target,
            extended: &[],
            flags: engine::FileFlags::NONE,
        };
        let node = self.thread.create(directory, name, &new);
        Ok(NodeRef::owned(self.thread, node.map_err(|error| TransferError::image("create", path, error))?))
    }

    /// Sets what changes of the content or of the names in it would change again.
    pub fn describe(&self, node: Node, facts: &Facts, path: &[u8]) -> Result<()> {
        for (name, value) in &facts.xattrs {
            let set = self.caller().xattrs().set_attribute(node, name, value, 0);
            set.map_err(|errno| TransferError::image("set an extended attribute of", path, errno))?;
        }
        let changes = Changes {
            modified_ns: Some(facts.modified_ns),
            accessed_ns: Some(facts.accessed_ns.unwrap_or(facts.modified_ns)),
            ..Changes::default()
        };
        let changed = self.thread.change(node, |_| Ok(changes));
        changed.map(drop).map_err(|error| TransferError::image("set the times of", path, error))
    }

    /// Sets all attributes of a directory that exists.
    pub fn describe_existing(&self, node: Node, facts: &Facts, path: &[u8]) -> Result<()> {
        let (permissions, uid, gid) = (Some(facts.permissions & 0o7777), Some(facts.uid), Some(facts.gid));
        let changed = self.thread.change(node, |_| Ok(Changes { permissions, uid, gid, ..Changes::default() }));
        changed.map_err(|error| TransferError::image("set the owner and mode of", path, error))?;
        self.describe(node, facts, path)
    }

    pub fn write(&self, node: Node, offset: u64, bytes: &[u8], path: &[u8]) -> Result<()> {
        let written = self.thread.files().write(node, offset, bytes);
        written.map(drop).map_err(|error| TransferError::image("write to", path, error))
    }

    /// Sets the length of a file that ends with a hole.
    pub fn set_length(&self, node: Node, bytes: u64, path: &[u8]) -> Result<()> {
        self.thread
            .files()
            .truncate(node, bytes)
            .map_err(|error| TransferError::image("set the length of", path, error))
    }

    pub fn link(&self, node: Node, directory: Node, name: &[u8], path: &[u8]) -> Result<()> {
        self.thread.link(node, directory, name).map_err(|error| TransferError::image("link", path, error))
    }

    /// The names of a directory, with their inode numbers and kinds.
    pub fn names(&self, directory: Node, path: &[u8]) -> Result<Vec<(Vec<u8>, u64, FileKind)>> {
        let mut names = Vec::new();
        let listed = self.thread.read_directory(directory, 0, &mut DirectoryHint::default(), &mut |entry| {
            names.push((entry.name.to_vec(), entry.number, entry.kind));
            true
        });
        listed.map_err(|error| TransferError::image("list", path, error))?;
        Ok(names)
    }

    /// Removes a name, and everything below it.
    pub fn remove(&self, directory: Node, name: &[u8], path: &[u8]) -> Result<()> {
        let removed = image::remove_tree(&self.caller(), directory, name);
        removed.map_err(|errno| TransferError::image("remove", path, errno))
    }
}

/// The names in a path.
pub fn names_of(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

/// Whether a path leads to a directory or to what is below it: then a walk can begin there, so that
/// a deep tree costs no more than its names.
pub fn is_on_the_way(directory: &[u8], path: &[u8]) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| directory.is_empty() || rest.is_empty() || rest.starts_with(b"/"))
}

/// A path with one more component.
pub fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if path.is_empty() || path.ends_with(b"/") { b"" } else { b"/" };
    [path, separator, name].concat()
}

/// The path of a walk that keeps on a stack what it has yet to enter. However many entries wait,
/// their paths are not stored.
pub struct WalkPath {
    bytes: Vec<u8>,
    /// Length of the path to each directory above the present entry.
    ends: Vec<usize>,
}

impl WalkPath {
    pub fn new(top: &[u8]) -> WalkPath {
        WalkPath { bytes: top.to_vec(), ends: vec![top.len()] }
    }

    /// Goes on to an entry of the directory above, which the walk has entered. `depth`: directories
    /// above it up to the top; 0: the top itself, where the walk begins.
    pub fn enter(&mut self, depth: usize, name: &[u8]) -> &[u8] {
        if depth == 0 {
            return &self.bytes;
        }
        self.ends.truncate(depth);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
        if !self.bytes.is_empty() && !self.bytes.ends_with(b"/") {
            self.bytes.push(b'/');
        }
        self.bytes.extend_from_slice(name);
        self.ends.push(self.bytes.len());
        &self.bytes
    }
}
