//! The reference model: a tree in memory, and the operations on it.

use engine::format::FileKind;
use lab::calls::Calls;
use lab::inode::AttributeCell;
use lab::physical::{PhysicalFs, Shared};
use std::collections::{BTreeMap, BTreeSet};

/// A file's number and generation.
pub type Id = (u64, u32);
pub type Path = Vec<u8>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub kind: FileKind,
    pub mode: u32,
    pub links: u32,
    pub content: Vec<u8>,
}

/// Directories, and the files that they name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    pub root: Id,
    pub names: BTreeMap<Id, BTreeMap<Vec<u8>, Id>>,
    pub files: BTreeMap<Id, File>,
}

#[derive(Debug, Clone)]
pub enum Operation {
    Create(Path),
    Mkdir(Path),
    Symlink(Vec<u8>, Path),
    Link(Path, Path),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path),
    Write(Path, u64, usize, u8),
    Truncate(Path, u64),
    Chmod(Path, u32),
    /// Persisters run for all inodes.
    Persist,
    /// A persister runs for one inode.
    PersistOne(u64),
    Sync,
    SyncFile(Path),
}

pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let slash = path.iter().rposition(|byte| *byte == b'/').expect("an absolute path");
    (&path[..slash], &path[slash + 1..])
}

impl Tree {
    pub fn find(&self, path: &[u8]) -> Option<Id> {
        let mut at = self.root;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            at = *self.names.get(&at)?.get(name)?;
        }
        Some(at)
    }

    fn parent(&self, path: &[u8]) -> Option<Id> {
        self.find(split(path).0).filter(|id| self.names.contains_key(id))
    }

    fn is_below(&self, inner: Id, outer: Id) -> bool {
        inner == outer
            || self.names.get(&outer).is_some_and(|names| names.values().any(|child| self.is_below(inner, *child)))
    }

    /// Whether an operation is valid here.
    pub fn allows(&self, operation: &Operation) -> bool {
        let is_free = |path: &[u8]| self.parent(path).is_some() && self.find(path).is_none();
        let kind = |path: &[u8]| self.find(path).map(|id| self.files[&id].kind);
        match operation {
            Operation::Create(path) | Operation::Mkdir(path) | Operation::Symlink(_, path) => is_free(path),
            Operation::Link(from, to) => kind(from).is_some_and(|kind| kind != FileKind::Directory) && is_free(to),
            Operation::Unlink(path) => kind(path).is_some_and(|kind| kind != FileKind::Directory),
            Operation::Rmdir(path) => {
                self.find(path).is_some_and(|id| id != self.root && self.names.get(&id).is_some_and(BTreeMap::is_empty))
            }
            Operation::Rename(from, to) => self.allows_rename(from, to),
            Operation::Write(path, ..) | Operation::Truncate(path, _) | Operation::SyncFile(path) => {
                kind(path) == Some(FileKind::Regular)
            }
            Operation::Chmod(path, _) => kind(path).is_some_and(|kind| kind != FileKind::Symlink),
            Operation::Persist | Operation::PersistOne(_) | Operation::Sync => true,
        }
    }

    fn allows_rename(&self, from: &[u8], to: &[u8]) -> bool {
        let (Some(file), Some(parent)) = (self.find(from), self.parent(to)) else { return false };
        let is_directory = self.names.contains_key(&file);
        if file == self.root || (is_directory && self.is_below(parent, file)) {
            return false;
        }
        match self.find(to) {
            None => true,
            Some(other) if other == file => false,
            Some(other) => match self.names.get(&other) {
                Some(names) => is_directory && names.is_empty(),
                None => !is_directory,
            },
        }
    }

    /// Applies an operation. `made` is the identity of a new file.
    pub fn apply(&mut self, operation: &Operation, made: Option<Id>) {
        match operation {
            Operation::Create(path) => self.add(path, made, FileKind::Regular, 0o644, Vec::new()),
            Operation::Mkdir(path) => self.add(path, made, FileKind::Directory, 0o755, Vec::new()),
            Operation::Symlink(target, path) => self.add(path, made, FileKind::Symlink, 0o777, target.clone()),
            Operation::Link(from, to) => {
                let id = self.find(from).expect("allowed");
                self.name(to, id);
            }
            Operation::Unlink(path) | Operation::Rmdir(path) => self.drop_name(path),
            Operation::Rename(from, to) => {
                let id = self.find(from).expect("allowed");
                if self.find(to).is_some() {
                    self.drop_name(to);
                }
                self.name(to, id);
                self.drop_name(from);
            }
            Operation::Write(path, offset, length, byte) => {
                let content = &mut self.file(path).content;
                let end = *offset as usize + length;
                content.resize(content.len().max(end), 0);
                content[*offset as usize..end].fill(*byte);
            }
            Operation::Truncate(path, length) => self.file(path).content.resize(*length as usize, 0),
            Operation::Chmod(path, mode) => {
                let file = self.file(path);
                file.mode = file.kind.mode_bits() | mode;
            }
            Operation::Persist | Operation::PersistOne(_) | Operation::Sync | Operation::SyncFile(_) => {}
        }
    }

    fn file(&mut self, path: &[u8]) -> &mut File {
        let id = self.find(path).expect("allowed");
        self.files.get_mut(&id).expect("a file")
    }

    fn add(&mut self, path: &[u8], made: Option<Id>, kind: FileKind, mode: u32, content: Vec<u8>) {
        let id = made.expect("it was made");
        let links = if kind == FileKind::Directory { 1 } else { 0 };
        self.files.insert(id, File { kind, mode: kind.mode_bits() | mode, links, content });
        if kind == FileKind::Directory {
            self.names.insert(id, BTreeMap::new());
        }
        self.name(path, id);
    }

    fn name(&mut self, path: &[u8], id: Id) {
        let (parent, name) = (self.parent(path).expect("allowed"), split(path).1.to_vec());
        self.names.get_mut(&parent).expect("a directory").insert(name, id);
        self.files.get_mut(&id).expect("a file").links += 1;
        if self.names.contains_key(&id) {
            self.files.get_mut(&parent).expect("a directory").links += 1;
        }
    }

    fn drop_name(&mut self, path: &[u8]) {
        let (parent, id) = (self.parent(path).expect("allowed"), self.find(path).expect("allowed"));
        self.names.get_mut(&parent).expect("a directory").remove(split(path).1);
        let is_directory = self.names.contains_key(&id);
        if is_directory {
            self.files.get_mut(&parent).expect("a directory").links -= 1;
        }
        let file = self.files.get_mut(&id).expect("a file");
        file.links -= 1;
        // A directory's own dot is its last link. A rename adds the new name before it drops the
        // old one.
        if file.links == u32::from(is_directory) && !self.has_name(id) {
            self.files.remove(&id);
            self.names.remove(&id);
        }
    }

    fn has_name(&self, id: Id) -> bool {
        self.names.values().any(|names| names.values().any(|named| *named == id))
    }

    /// All files with a name.
    pub fn named(&self) -> BTreeSet<Id> {
        self.names.values().flat_map(|names| names.values().copied()).collect()
    }
}

/// Runs an operation on a file system. Returns the identity of a new file.
pub fn perform(fs: &impl Calls, operation: &Operation) -> posix::Result<Option<Id>> {
    let with_file = |path: &[u8], act: &dyn Fn(u32) -> posix::Result<()>| {
        let file = fs.open(path, libc::O_RDWR, 0)?;
        let done = act(file);
        fs.close(file)?;
        done
    };
    let made = match operation {
        Operation::Create(path) => {
            fs.create(path, 0o644)?;
            Some(path)
        }
        Operation::Mkdir(path) => {
            fs.mkdir(path, 0o755)?;
            Some(path)
        }
        Operation::Symlink(target, path) => {
            fs.symlink(target, path)?;
            Some(path)
        }
        Operation::Link(from, to) => fs.link(from, to).map(|()| None)?,
        Operation::Unlink(path) => fs.unlink(path).map(|()| None)?,
        Operation::Rmdir(path) => fs.rmdir(path).map(|()| None)?,
        Operation::Rename(from, to) => fs.rename(from, to, 0).map(|()| None)?,
        Operation::Write(path, offset, length, byte) => {
            let bytes = vec![*byte; *length];
            with_file(path, &|file| fs.write(file, *offset, &bytes).map(|_| ())).map(|()| None)?
        }
        Operation::Truncate(path, length) => with_file(path, &|file| fs.truncate(file, *length)).map(|()| None)?,
        Operation::Chmod(path, mode) => fs.chmod(path, *mode).map(|()| None)?,
        Operation::SyncFile(path) => with_file(path, &|file| fs.sync_file(file)).map(|()| None)?,
        Operation::Sync => fs.sync().map(|()| None)?,
        Operation::Persist | Operation::PersistOne(_) => None,
    };
    made.map(|path| fs.stat_link(path).map(|stat| (stat.number, stat.generation))).transpose()
}

/// The tree of a physical file system, or an error if it is inconsistent.
pub fn dump<P: PhysicalFs>(fs: &P) -> Result<Tree, String> {
    let mut tree = Tree::default();
    let mut ids = BTreeMap::new();
    let root = dump_file(fs, fs.root(), fs.root(), &mut tree, &mut ids)?;
    tree.root = root;
    Ok(tree)
}

fn failed(error: lab::Error) -> String {
    format!("{error}")
}

fn dump_file<P: PhysicalFs>(
    fs: &P,
    number: u64,
    parent: u64,
    tree: &mut Tree,
    ids: &mut BTreeMap<u64, Id>,
) -> Result<Id, String> {
    if let Some(id) = ids.get(&number) {
        return if tree.names.contains_key(id) { Err(format!("directory {number} has two names")) } else { Ok(*id) };
    }
    let loaded = fs.load(number).map_err(failed)?;
    let stat = loaded.attributes;
    let cell = AttributeCell::new(&stat);
    let shared = || Shared { number, attributes: &cell, info: &loaded.info };
    let id = (number, stat.generation);
    ids.insert(number, id);
    let mut file = File { kind: stat.kind, mode: stat.mode, links: stat.links, content: Vec::new() };
    let mut children = Vec::new();
    match stat.kind {
        FileKind::Directory => {
            tree.names.insert(id, BTreeMap::new());
            if fs.parent(shared()).map_err(failed)? != parent {
                return Err(format!("directory {number} has another parent than {parent}"));
            }
            let visited = fs.read_directory(shared(), 0, &mut |entry| {
                children.push((entry.name.to_vec(), entry.number));
                true
            });
            visited.map_err(failed)?;
            for (name, child) in &children {
                let found = fs.lookup(shared(), name).map_err(failed)?.map(|found| found.number);
                if found != Some(*child) {
                    return Err(format!("{name:?} in {number} is read as {child} and found as {found:?}"));
                }
            }
        }
        FileKind::Regular | FileKind::Symlink if stat.size_bytes > 64 << 20 => {
            return Err(format!("file {number} is larger than any created file"));
        }
        FileKind::Regular => {
            file.content = vec![0; stat.size_bytes as usize];
            let read = fs.read(shared(), 0, &mut file.content).map_err(failed)?;
            if read != file.content.len() {
                return Err(format!("file {number} is shorter than its size"));
            }
        }
        FileKind::Symlink => {
            file.content = vec![0; stat.size_bytes as usize];
            fs.read_link(shared(), &mut file.content).map_err(failed)?;
        }
        _ => {}
    }
    tree.files.insert(id, file);
    for (name, child) in children {
        let child = dump_file(fs, child, number, tree, ids)?;
        if tree.names.get_mut(&id).expect("just made").insert(name.clone(), child).is_some() {
            return Err(format!("{name:?} is listed twice in {number}"));
        }
    }
    fs.forget(number, loaded.info).map_err(failed)?;
    Ok(id)
}

/// Draws random operations on a few names in a few directories.
pub struct Drawer {
    pub random: super::machine::Random,
    names: Vec<Vec<u8>>,
}

impl Drawer {
    pub fn new(seed: u64) -> Drawer {
        let mut names: Vec<Vec<u8>> = ["a", "b", "c", "d"].iter().map(|name| name.as_bytes().to_vec()).collect();
        names.push(vec![b'l'; 25]);
        names.push(vec![b'm'; 255]);
        Drawer { random: super::machine::Random(seed), names }
    }

    fn path(&mut self, tree: &Tree) -> Path {
        let mut at = tree.root;
        let mut path = Vec::new();
        loop {
            let name = self.names[self.random.below(self.names.len() as u64) as usize].clone();
            path.push(b'/');
            path.extend(&name);
            match tree.names.get(&at).and_then(|names| names.get(&name)) {
                Some(child) if tree.names.contains_key(child) && self.random.below(3) > 0 && path.len() < 600 => {
                    at = *child
                }
                _ => return path,
            }
        }
    }

    /// Draws a valid operation.
    pub fn draw(&mut self, tree: &Tree) -> Operation {
        loop {
            let (path, other) = (self.path(tree), self.path(tree));
            let number = self.random.next();
            let operation = match self.random.below(28) {
                0..4 => Operation::Create(path),
                4..7 => Operation::Mkdir(path),
                7 => Operation::Symlink(vec![b't'; 1 + number as usize % 120], path),
                8..10 => Operation::Link(path, other),
                10..13 => Operation::Unlink(path),
                13..15 => Operation::Rmdir(path),
                15..20 => Operation::Rename(path, other),
                20..23 => {
                    let offset = [0, number % 300, number % 9000][number as usize / 7 % 3];
                    Operation::Write(path, offset, 1 + number as usize % 5000, number as u8 | 1)
                }
                23 => Operation::Truncate(path, number % 7000),
                24 => Operation::Chmod(path, (number % 0o1000) as u32),
                25 => Operation::PersistOne(number),
                26 => {
                    if number.is_multiple_of(3) {
                        Operation::Persist
                    } else {
                        Operation::SyncFile(path)
                    }
                }
                _ => {
                    if number.is_multiple_of(4) {
                        Operation::Sync
                    } else {
                        Operation::Persist
                    }
                }
            };
            if tree.allows(&operation) {
                return operation;
            }
        }
    }
}

/// Runs the persister's part of an operation.
pub fn persist<M: pmem::Memory>(fs: &lab::soupfs::SoupFs<M>, operation: &Operation) -> lab::Result<()> {
    let volume = fs.volume();
    match operation {
        Operation::Persist => volume.persist_all(),
        Operation::PersistOne(pick) => {
            let inode = {
                let mut dirty = volume.dirty.lock().expect("not poisoned");
                let count = dirty.len() as u64;
                if count == 0 { None } else { dirty.remove((pick % count) as usize) }
            };
            let Some(inode) = inode else { return Ok(()) };
            inode.state().listed = false;
            volume.persist(&inode, volume.sequence())
        }
        _ => Ok(()),
    }
}
