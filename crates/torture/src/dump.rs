//! Dumps of a file system: everything that programs can observe, in a comparable form.

use crate::test_thread::TestThread;
use engine::format::FileKind;
use engine::{Attributes, Error, Node, SeekWhat};
use pmem::Memory;
use std::collections::BTreeMap;
use std::fmt;

const BLOCK_BYTES: u64 = 4096;
const ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];
/// Files up to this size are read whole, including holes.
const WHOLE_BYTES_MAX: u64 = 1 << 16;

/// A name and its file.
#[derive(Clone, PartialEq, Eq)]
pub struct TreeEntry {
    /// Its attributes.
    pub stat: Attributes,
    /// Birth time.
    pub born_ns: i64,
    /// Checksums of the blocks that are not all zero, by their index in the file.
    pub content: BTreeMap<u64, u32>,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A whole file system: entries by path; the root's path is empty.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Tree(pub BTreeMap<String, TreeEntry>);

/// The reason why a tree could not be read, with the path.
#[derive(Debug, Clone)]
pub struct Unreadable(pub String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads the whole file system.
pub fn dump<M: Memory>(thread: &TestThread<'_, M>) -> Result<Tree, Unreadable> {
    let mut tree = Tree::default();
    let root = thread.thread.root().map_err(|error| at("/", "root", error))?;
    let done = visit(thread, root, root.number, String::new(), &mut tree);
    thread.thread.release(root, 1);
    done.map(|()| tree)
}

fn at(path: &str, what: &str, error: Error) -> Unreadable {
    Unreadable(format!("{path}: {what} fails with {error:?}"))
}

fn visit<M: Memory>(
    thread: &TestThread<'_, M>,
    node: Node,
    parent: u64,
    path: String,
    tree: &mut Tree,
) -> Result<(), Unreadable> {
    let entry = read(thread, node).map_err(|(what, error)| at(&path, what, error))?;
    let is_directory = entry.stat.kind == FileKind::Directory;
    tree.0.insert(path.clone(), entry);
    if !is_directory {
        return Ok(());
    }
    match thread.thread.parent(node) {
        Ok(number) if number == parent => {}
        other => return Err(Unreadable(format!("{path}: `..` is {other:?}, expected {parent}"))),
    }
    for (name, number, kind) in names(thread, node, &path)? {
        let below = format!("{path}/{}", String::from_utf8_lossy(&name));
        let child = thread.thread.lookup(node, &name).map_err(|error| at(&below, "lookup", error))?;
        let listed = tree.0.contains_key(&below);
        let done = match () {
            () if listed => Err(Unreadable(format!("{below}: listed twice"))),
            () if child.number != number => {
                Err(Unreadable(format!("{below}: listed as {number}, but is {}", child.number)))
            }
            () => visit(thread, child, node.number, below.clone(), tree),
        };
        thread.thread.release(child, 1);
        done?;
        if tree.0[&below].stat.kind != kind {
            return Err(Unreadable(format!("{below}: listed as {kind:?}")));
        }
    }
    Ok(())
}

fn names<M: Memory>(
    thread: &TestThread<'_, M>,
    node: Node,
    path: &str,
) -> Result<Vec<(Vec<u8>, u64, FileKind)>, Unreadable> {
    let (mut names, mut last, mut ascending) = (Vec::new(), 0, true);
    let done = thread.thread.read_directory(node, 0, &mut Default::default(), &mut |entry| {
        ascending &= entry.cookie > last;
        last = entry.cookie;
        names.push((entry.name.to_vec(), entry.number, entry.kind));
        true
    });
    done.map_err(|error| at(path, "readdir", error))?;
    if ascending { Ok(names) } else { Err(Unreadable(format!("{path}: cookies do not ascend"))) }
}

type Failed = (&'static str, Error);

fn read<M: Memory>(thread: &TestThread<'_, M>, node: Node) -> Result<TreeEntry, Failed> {
    let stat = thread.thread.stat(node).map_err(|error| ("stat", error))?;
    let born_ns = thread.thread.born_ns(node).map_err(|error| ("birth", error))?;
    let content =
        if stat.kind == FileKind::Regular { content(thread, node, stat.size_bytes)? } else { BTreeMap::new() };
    let mut target = Vec::new();
    if stat.kind == FileKind::Symlink {
        target.resize(BLOCK_BYTES as usize, 0);
        let length = thread.thread.read_link(node, &mut target).map_err(|error| ("readlink", error))?;
        target.truncate(length);
    }
    Ok(TreeEntry { stat, born_ns, content, target, xattrs: xattrs(thread, node)? })
}

fn content<M: Memory>(thread: &TestThread<'_, M>, node: Node, size: u64) -> Result<BTreeMap<u64, u32>, Failed> {
    let mut content = BTreeMap::new();
    let mut buffer = Vec::new();
    let mut from = 0;
    while from < size {
        let (start, end) = match size <= WHOLE_BYTES_MAX {
            true => (0, size),
            false => match next_data(thread, node, from)? {
                Some(range) => range,
                None => break,
            },
        };
        buffer.resize((end - start) as usize, 0);
        let count = thread.thread.files().read(node, start, &mut buffer).map_err(|error| ("read", error))?;
        if count != buffer.len() {
            return Err(("read to the end", Error::Invalid));
        }
        for (index, block) in (start / BLOCK_BYTES..).zip(buffer.chunks(BLOCK_BYTES as usize)) {
            if *block != ZEROS[..block.len()] {
                content.insert(index, pmem::crc32c(0, block));
            }
        }
        from = end;
    }
    Ok(content)
}

/// The next data range at or after a block's start.
fn next_data<M: Memory>(thread: &TestThread<'_, M>, node: Node, from: u64) -> Result<Option<(u64, u64)>, Failed> {
    match thread.thread.files().seek(node, from, SeekWhat::Data) {
        Err(Error::NoSuchExtent) => Ok(None),
        Err(error) => Err(("seek for data", error)),
        Ok(start) => match thread.thread.files().seek(node, start, SeekWhat::Hole) {
            Ok(end) => Ok(Some((start, end))),
            Err(error) => Err(("seek for a hole", error)),
        },
    }
}

fn xattrs<M: Memory>(thread: &TestThread<'_, M>, node: Node) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Failed> {
    let mut names = Vec::new();
    thread
        .thread
        .files()
        .xattr_names(node, &mut |name| names.push(name.to_vec()))
        .map_err(|error| ("listing extended attributes", error))?;
    let mut all = BTreeMap::new();
    for name in names {
        let length =
            thread.thread.files().xattr(node, &name, &mut []).map_err(|error| ("extended attribute", error))?;
        let mut value = vec![0; length];
        thread.thread.files().xattr(node, &name, &mut value).map_err(|error| ("extended attribute", error))?;
        all.insert(name, value);
    }
    Ok(all)
}
