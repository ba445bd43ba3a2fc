//! A tree of files, and typical work on it: copying, comparing, summing up, searching, removing.

use super::tree_access::{EntryKind, TreeAccess};
use crate::interrupt;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes copied or compared at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// An entry of the tree.
#[derive(Debug, Clone)]
pub struct TreeEntry {
    /// Its path relative to the tree.
    pub path: PathBuf,
    /// Its kind.
    pub kind: EntryKind,
    /// Permission bits.
    pub permissions: u32,
    /// Bytes, for a file.
    pub size_bytes: u64,
}

/// A tree in reading order: each directory comes before its content.
pub struct Tree {
    root: PathBuf,
    /// All entries except the root.
    pub entries: Vec<TreeEntry>,
    /// Entries left out: special and unreadable files.
    pub skipped: u64,
}

impl Tree {
    /// Reads a directory recursively.
    pub fn read(root: &Path) -> Result<Tree> {
        let shown = root.display();
        let kind = fs::metadata(root).with_context(|| format!("cannot find {shown}; specify an existing directory"))?;
        ensure!(kind.is_dir(), "{shown} is not a directory; specify a directory to copy");
        let mut tree = Tree { root: root.to_owned(), entries: Vec::new(), skipped: 0 };
        tree.add(Path::new(""))
            .with_context(|| format!("cannot read {shown}; specify a directory that you may read"))?;
        ensure!(!tree.entries.is_empty(), "{shown} has no files; specify a directory with files to copy");
        Ok(tree)
    }

    fn add(&mut self, directory: &Path) -> Result<()> {
        interrupt::check()?;
        let mut names: Vec<_> = fs::read_dir(self.root.join(directory))?.collect::<std::io::Result<_>>()?;
        names.sort_by_key(fs::DirEntry::file_name);
        for name in names {
            let path = directory.join(name.file_name());
            let Ok(metadata) = name.metadata() else { continue };
            let kind = match metadata.file_type() {
                kind if kind.is_dir() => EntryKind::Directory,
                kind if kind.is_symlink() => EntryKind::Symlink,
                kind if kind.is_file() && File::open(name.path()).is_ok() => EntryKind::File,
                _ => {
                    self.skipped += 1;
                    continue;
                }
            };
            let permissions = metadata.permissions().mode() & 0o777;
            self.entries.push(TreeEntry { path: path.clone(), kind, permissions, size_bytes: metadata.size() });
            if kind == EntryKind::Directory && self.add(&path).is_err() {
                interrupt::check()?;
                self.skipped += 1;
            }
        }
        Ok(())
    }

    /// Bytes of all files, in whole blocks.
    pub fn block_bytes(&self) -> u64 {
        self.files().map(|entry| entry.size_bytes.next_multiple_of(4096)).sum()
    }

    /// Bytes of all files.
    pub fn size_bytes(&self) -> u64 {
        self.files().map(|entry| entry.size_bytes).sum()
    }

    /// The regular files.
    pub fn files(&self) -> impl Iterator<Item = &TreeEntry> {
        self.entries.iter().filter(|entry| entry.kind == EntryKind::File)
    }

    /// Copies the tree, and calls `done` for each finished entry.
    pub fn copy_to(&self, tree_access: &impl TreeAccess, mut done: impl FnMut(&Path) -> Result<()>) -> Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        for entry in &self.entries {
            interrupt::check()?;
            self.copy_entry(tree_access, entry, &mut chunk)
                .with_context(|| format!("cannot copy {}", self.root.join(&entry.path).display()))
                .map_err(with_remedy)?;
            done(&entry.path)?;
        }
        Ok(())
    }

    fn copy_entry(&self, tree_access: &impl TreeAccess, entry: &TreeEntry, chunk: &mut [u8]) -> Result<()> {
        let source = self.root.join(&entry.path);
        match entry.kind {
            // Directories are always writable for the owner, so that they can be filled and
            // removed.
            EntryKind::Directory => tree_access.mkdir(&entry.path, entry.permissions | 0o700),
            EntryKind::Symlink => tree_access.symlink(fs::read_link(source)?.as_os_str(), &entry.path),
            EntryKind::File | EntryKind::Special => {
                let mut from = File::open(source)?;
                let mut to = tree_access.create(&entry.path, entry.permissions)?;
                loop {
                    let length = from.read(chunk)?;
                    if length == 0 {
                        return tree_access.close(to);
                    }
                    tree_access.write(&mut to, &chunk[..length])?;
                }
            }
        }
    }

    /// Compares an entry byte for byte.
    pub fn compare_entry(&self, tree_access: &impl TreeAccess, entry: &TreeEntry, chunks: &mut Chunks) -> Result<()> {
        let source = self.root.join(&entry.path);
        let shown = entry.path.display();
        match entry.kind {
            EntryKind::Directory => tree_access.names(&entry.path).map(drop),
            EntryKind::Symlink => {
                let same = tree_access.read_link(&entry.path)? == fs::read_link(source)?.as_os_str();
                ensure!(same, "{shown}: the link's target differs");
                Ok(())
            }
            EntryKind::File | EntryKind::Special => {
                let mut from = File::open(source)?;
                let mut to = tree_access.open(&entry.path)?;
                let same = same_bytes(&mut from, |into| tree_access.read(&mut to, into), chunks);
                tree_access.close(to)?;
                ensure!(same?, "{shown}: the bytes differ");
                Ok(())
            }
        }
        .with_context(|| format!("while comparing {shown}"))
    }

    /// Compares the whole tree: each entry has the same bytes, and there are no other entries.
    pub fn compare(&self, tree_access: &impl TreeAccess) -> Result<()> {
        let mut chunks = Chunks::default();
        for entry in &self.entries {
            interrupt::check()?;
            self.compare_entry(tree_access, entry, &mut chunks)?;
        }
        let found = count(tree_access)?;
        ensure!(found == self.entries.len() as u64, "{} names were copied but {found} exist", self.entries.len());
        Ok(())
    }
}

/// Adds the remedy where the cause alone does not suggest it.
fn with_remedy(error: anyhow::Error) -> anyhow::Error {
    let errno = error.chain().find_map(|cause| match cause.downcast_ref::<std::io::Error>() {
        Some(error) => error.raw_os_error(),
        None => cause.downcast_ref::<posix::Errno>().map(|errno| errno.0),
    });
    match errno {
        Some(libc::ENOSPC) => {
            error.context("the target is full; use an image with more blocks (mkfs --size) or inodes (mkfs --inodes)")
        }
        Some(libc::ENAMETOOLONG) => error.context("a name has at most 255 bytes and a path 4095; choose shorter ones"),
        _ => error,
    }
}

/// Two buffers for comparisons.
pub struct Chunks {
    expected: Vec<u8>,
    found: Vec<u8>,
}

impl Default for Chunks {
    fn default() -> Chunks {
        Chunks { expected: vec![0; CHUNK_BYTES], found: vec![0; CHUNK_BYTES] }
    }
}

fn same_bytes(from: &mut File, mut read: impl FnMut(&mut [u8]) -> Result<usize>, chunks: &mut Chunks) -> Result<bool> {
    loop {
        let expected = fill(&mut chunks.expected, |into| Ok(from.read(into)?))?;
        let found = fill(&mut chunks.found, &mut read)?;
        if chunks.expected[..expected] != chunks.found[..found] {
            return Ok(false);
        }
        if expected == 0 {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(buffer: &mut [u8], mut read: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match read(&mut buffer[filled..])? {
            0 => break,
            length => filled += length,
        }
    }
    Ok(filled)
}

/// Calls `each` for everything below the root of a place, directories after their content.
fn walk<P: TreeAccess>(
    tree_access: &P,
    directory: &Path,
    each: &mut impl FnMut(&Path, EntryKind) -> Result<()>,
) -> Result<()> {
    interrupt::check()?;
    for (name, kind) in
        tree_access.names(directory).with_context(|| format!("while reading directory {:?}", directory))?
    {
        let path = directory.join(name);
        if kind == EntryKind::Directory {
            walk(tree_access, &path, each)?;
        }
        each(&path, kind).with_context(|| format!("at {}", path.display()))?;
    }
    Ok(())
}

fn count(tree_access: &impl TreeAccess) -> Result<u64> {
    let mut count = 0;
    walk(tree_access, Path::new(""), &mut |_, _| {
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

/// The work of du: stat of everything; returns the used bytes.
pub fn sum_up(tree_access: &impl TreeAccess) -> Result<u64> {
    let mut used_bytes = 0;
    walk(tree_access, Path::new(""), &mut |path, _| {
        used_bytes += tree_access.stat(path)?.used_bytes;
        Ok(())
    })?;
    Ok(used_bytes)
}

/// The work of find -name '*.h'; returns the number of matches.
pub fn find_headers(tree_access: &impl TreeAccess) -> Result<u64> {
    let mut found = 0;
    walk(tree_access, Path::new(""), &mut |path, _| {
        found += path.extension().is_some_and(|extension| extension == "h") as u64;
        Ok(())
    })?;
    Ok(found)
}

/// The work of rm -rf on the whole place.
pub fn remove(tree_access: &impl TreeAccess) -> Result<()> {
    walk(tree_access, Path::new(""), &mut |path, kind| match kind {
        EntryKind::Directory => tree_access.rmdir(path),
        _ => tree_access.unlink(path),
    })
}
