//! A tree of files, and its copy in the current directory: copying, comparing, walking, removing.
//!
//! The list of entries is read once, and handed to the workers in a file: all copy the same
//! entries, even if the tree changes meanwhile.

use crate::interrupt;
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs::{self, DirEntry, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes copied or compared at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
}

/// An entry of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    pub left_out: u64,
    /// The limit ended the reading.
    pub is_subset: bool,
}

/// The largest part of a tree that is read.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// Entries.
    pub entries: usize,
    /// Bytes of files.
    pub size_bytes: u64,
}

impl Limit {
    /// The whole tree.
    pub const NONE: Limit = Limit { entries: usize::MAX, size_bytes: u64::MAX };
}

impl Tree {
    /// Reads a directory recursively, up to a limit; `at` is called with the number of entries.
    pub fn read(root: &Path, limit: Limit, at: &mut dyn FnMut(u64)) -> Result<Tree> {
        let shown = root.display();
        // Workers run in other directories.
        let absolute =
            root.canonicalize().with_context(|| format!("cannot find {shown}; specify an existing directory"))?;
        ensure!(absolute.is_dir(), "{shown} is not a directory; specify a directory to copy");
        let mut tree = Tree { root: absolute, entries: Vec::new(), left_out: 0, is_subset: false };
        tree.add(Path::new(""), limit, &mut 0, at)
            .with_context(|| format!("cannot read {shown}; specify a directory that you may read"))?;
        ensure!(!tree.entries.is_empty(), "{shown} has no files; specify a directory with files to copy");
        Ok(tree)
    }

    fn add(&mut self, directory: &Path, limit: Limit, size_bytes: &mut u64, at: &mut dyn FnMut(u64)) -> Result<()> {
        interrupt::check()?;
        at(self.entries.len() as u64);
        let mut names: Vec<_> = fs::read_dir(self.root.join(directory))?.collect::<std::io::Result<_>>()?;
        names.sort_by_key(DirEntry::file_name);
        for name in names {
            let path = directory.join(name.file_name());
            let Ok(metadata) = name.metadata() else { continue };
            let kind = match metadata.file_type() {
                kind if kind.is_dir() => EntryKind::Directory,
                kind if kind.is_symlink() => EntryKind::Symlink,
                kind if kind.is_file() && File::open(name.path()).is_ok() => EntryKind::File,
                _ => {
                    self.left_out += 1;
                    continue;
                }
            };
            let bytes = if kind == EntryKind::File { metadata.size() } else { 0 };
            self.is_subset |= self.entries.len() == limit.entries || *size_bytes + bytes > limit.size_bytes;
            if self.is_subset {
                return Ok(());
            }
            *size_bytes += bytes;
            let permissions = metadata.permissions().mode() & 0o777;
            self.entries.push(TreeEntry { path: path.clone(), kind, permissions, size_bytes: bytes });
            if kind == EntryKind::Directory && self.add(&path, limit, size_bytes, at).is_err() {
                interrupt::check()?;
                self.left_out += 1;
            }
        }
        Ok(())
    }

    /// The absolute path of the tree.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Bytes of all files, in whole blocks.
    pub fn block_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.size_bytes.next_multiple_of(4096)).sum()
    }

    /// Bytes of all files.
    pub fn size_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.size_bytes).sum()
    }

    /// Reads all files once, so that no measured copy waits for their disk.
    pub fn read_files(&self, mut at: impl FnMut(u64)) -> Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        for (index, entry) in self.entries.iter().enumerate() {
            interrupt::check()?;
            at(index as u64);
            if entry.kind == EntryKind::File {
                let source = self.root.join(&entry.path);
                let read = || format!("cannot read {}; specify a tree that does not change", source.display());
                let mut file = File::open(&source).with_context(read)?;
                while file.read(&mut chunk).with_context(read)? > 0 {}
            }
        }
        Ok(())
    }

    /// Writes the list of entries to a file.
    pub fn save(&self, list: &Path) -> Result<()> {
        let mut bytes = Vec::new();
        for TreeEntry { path, kind, permissions, size_bytes } in &self.entries {
            let letter = match kind {
                EntryKind::Directory => 'd',
                EntryKind::File => 'f',
                EntryKind::Symlink => 'l',
            };
            write!(bytes, "{letter} {permissions} {size_bytes} ")?;
            bytes.extend(path.as_os_str().as_bytes());
            bytes.push(0);
        }
        fs::write(list, bytes).with_context(|| format!("cannot write {}", list.display()))
    }

    /// Reads the list of entries of a tree with this absolute path.
    pub fn load(root: &Path, list: &Path) -> Result<Tree> {
        let bytes = fs::read(list).with_context(|| format!("cannot read {}", list.display()))?;
        let lines = bytes.split(|&byte| byte == 0).filter(|line| !line.is_empty());
        let entries = lines.map(|line| parse(line).context("a list of another version of directfs"));
        let entries = entries.collect::<Result<_>>()?;
        Ok(Tree { root: root.to_owned(), entries, left_out: 0, is_subset: false })
    }

    /// Copies the tree, and calls `done` with the number of finished entries after each.
    pub fn copy(&self, mut done: impl FnMut(u64) -> Result<()>) -> Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        for (index, entry) in self.entries.iter().enumerate() {
            interrupt::check()?;
            self.copy_entry(entry, &mut chunk)
                .with_context(|| format!("cannot copy {}", self.root.join(&entry.path).display()))
                .map_err(with_remedy)?;
            done(index as u64 + 1)?;
        }
        Ok(())
    }

    /// Gives the owner all permissions that comparing and removing need.
    fn copy_entry(&self, entry: &TreeEntry, chunk: &mut [u8]) -> Result<()> {
        let source = self.root.join(&entry.path);
        match entry.kind {
            EntryKind::Directory => Ok(fs::DirBuilder::new().mode(entry.permissions | 0o700).create(&entry.path)?),
            EntryKind::Symlink => Ok(std::os::unix::fs::symlink(fs::read_link(source)?, &entry.path)?),
            EntryKind::File => {
                let mut from = File::open(source)?;
                let mut options = File::options();
                let mut to = options.write(true).create_new(true).mode(entry.permissions | 0o600).open(&entry.path)?;
                loop {
                    match from.read(chunk)? {
                        0 => return Ok(()),
                        length => to.write_all(&chunk[..length])?,
                    }
                }
            }
        }
    }

    /// Compares the first `entries` byte for byte; returns the number of existing names.
    pub fn compare(&self, entries: u64) -> Result<u64> {
        let mut chunks = Chunks::default();
        for entry in self.entries.iter().take(entries as usize) {
            interrupt::check()?;
            self.compare_entry(entry, &mut chunks)
                .with_context(|| format!("while comparing {}", entry.path.display()))?;
        }
        let mut names = 0;
        walk(&mut |_| {
            names += 1;
            Ok(())
        })?;
        Ok(names)
    }

    fn compare_entry(&self, entry: &TreeEntry, chunks: &mut Chunks) -> Result<()> {
        let source = self.root.join(&entry.path);
        let is_same = match entry.kind {
            EntryKind::Directory => fs::symlink_metadata(&entry.path)?.is_dir(),
            EntryKind::Symlink => fs::read_link(&entry.path)? == fs::read_link(source)?,
            EntryKind::File => is_same_file(&mut File::open(source)?, &mut File::open(&entry.path)?, chunks)?,
        };
        ensure!(is_same, "the copy differs from the original; unless that changed meanwhile, this is a defect");
        Ok(())
    }
}

fn parse(line: &[u8]) -> Option<TreeEntry> {
    let mut fields = line.splitn(4, |&byte| byte == b' ');
    let kind = match fields.next()? {
        b"d" => EntryKind::Directory,
        b"f" => EntryKind::File,
        b"l" => EntryKind::Symlink,
        _ => return None,
    };
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse::<u64>().ok();
    let (permissions, size_bytes) = (number()?.try_into().ok()?, number()?);
    Some(TreeEntry { path: OsStr::from_bytes(fields.next()?).into(), kind, permissions, size_bytes })
}

/// Adds the remedy where the cause alone does not suggest it.
fn with_remedy(error: anyhow::Error) -> anyhow::Error {
    let errno = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error());
    match errno {
        Some(libc::ENOSPC) => error.context("the target is full; choose a smaller tree, or make room"),
        Some(libc::ENAMETOOLONG) => error.context("a name has at most 255 bytes and a path 4095; choose shorter ones"),
        _ => error,
    }
}

/// Two buffers for comparisons.
struct Chunks {
    expected: Vec<u8>,
    found: Vec<u8>,
}

impl Default for Chunks {
    fn default() -> Chunks {
        Chunks { expected: vec![0; CHUNK_BYTES], found: vec![0; CHUNK_BYTES] }
    }
}

fn is_same_file(from: &mut File, copy: &mut File, chunks: &mut Chunks) -> Result<bool> {
    loop {
        let expected = fill(&mut chunks.expected, from)?;
        let found = fill(&mut chunks.found, copy)?;
        if chunks.expected[..expected] != chunks.found[..found] {
            return Ok(false);
        }
        if expected == 0 {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(buffer: &mut [u8], from: &mut File) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..])? {
            0 => break,
            length => filled += length,
        }
    }
    Ok(filled)
}

/// Calls `each` for everything below the current directory.
fn walk(each: &mut impl FnMut(&DirEntry) -> Result<()>) -> Result<()> {
    walk_below(Path::new("."), each)
}

fn walk_below(directory: &Path, each: &mut impl FnMut(&DirEntry) -> Result<()>) -> Result<()> {
    interrupt::check()?;
    let read = || format!("cannot read directory {}", directory.display());
    for entry in fs::read_dir(directory).with_context(read)? {
        let entry = entry.with_context(read)?;
        each(&entry)?;
        if entry.file_type().with_context(read)?.is_dir() {
            walk_below(&entry.path(), each)?;
        }
    }
    Ok(())
}

/// The work of du: the attributes of everything. Returns the number of names.
pub fn sum_up() -> Result<u64> {
    let (mut names, mut blocks) = (0, 0);
    walk(&mut |entry| {
        names += 1;
        blocks += entry.metadata().with_context(|| format!("at {}", entry.path().display()))?.blocks();
        Ok(())
    })?;
    std::hint::black_box(blocks);
    Ok(names)
}

/// The work of find -name '*.h'. Returns the number of matches.
pub fn find_headers() -> Result<u64> {
    let mut found = 0;
    walk(&mut |entry| {
        found += entry.file_name().as_bytes().ends_with(b".h") as u64;
        Ok(())
    })?;
    Ok(found)
}

/// The work of rm -rf on everything in the current directory. Returns zero.
pub fn remove() -> Result<u64> {
    for entry in fs::read_dir(".").context("cannot read the directory")? {
        interrupt::check()?;
        let entry = entry?;
        let removed = match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path()),
            false => fs::remove_file(entry.path()),
        };
        removed.with_context(|| format!("cannot remove {}", entry.path().display()))?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(entries: &[(&str, EntryKind)]) -> Tree {
        let entry = |&(path, kind): &(&str, EntryKind)| TreeEntry {
            path: path.into(),
            kind,
            permissions: 0o640,
            size_bytes: 7,
        };
        Tree { root: "/".into(), entries: entries.iter().map(entry).collect(), left_out: 0, is_subset: false }
    }

    #[test]
    fn a_list_holds_every_name() {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("list");
        let saved = tree(&[("a b\n", EntryKind::Directory), ("a b\n/ c", EntryKind::File), ("l", EntryKind::Symlink)]);
        saved.save(&list).unwrap();
        assert_eq!(Tree::load(Path::new("/"), &list).unwrap().entries, saved.entries);
        fs::write(&list, "x 1 2 name\0").unwrap();
        assert!(Tree::load(Path::new("/"), &list).is_err());
    }

    #[test]
    fn a_limit_ends_the_reading() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::create_dir(directory.path().join(name)).unwrap();
            fs::write(directory.path().join(name).join("file"), [0; 100]).unwrap();
        }
        let read = |limit| Tree::read(directory.path(), limit, &mut |_| ()).unwrap();
        let whole = read(Limit::NONE);
        assert_eq!((whole.entries.len(), whole.is_subset), (6, false));
        let few = read(Limit { entries: 3, ..Limit::NONE });
        assert_eq!((few.entries.len(), few.is_subset), (3, true));
        let small = read(Limit { size_bytes: 250, ..Limit::NONE });
        assert_eq!((small.size_bytes(), small.is_subset), (200, true));
    }
}
