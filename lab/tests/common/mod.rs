//! A simple file system model in memory, for comparison with the real ones, and random calls on
//! both.
#![allow(dead_code)]

use engine::format::FileKind;
use lab::calls::Calls;
use lab::physical::{MkfsOptions, PhysicalFs};
use lab::vfs::{Names, Vfs, VfsOptions};
use pmem::{MappedRegion, Mapping, Memory};
use posix::{Errno, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A deterministic pseudo-random sequence.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn pick<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// The visible state of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub kind: FileKind,
    pub permissions: u32,
    pub links: u32,
    pub size: u64,
    pub content: Vec<u8>,
}

/// All files by path.
pub type Tree = BTreeMap<String, Seen>;

#[derive(Debug, Clone)]
enum Body {
    Regular(Vec<u8>),
    Symlink(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, usize>, usize),
}

#[derive(Debug, Clone)]
struct Node {
    body: Body,
    permissions: u32,
    links: u32,
}

/// The model.
#[derive(Debug, Clone)]
pub struct Model {
    nodes: Vec<Node>,
    /// Whether the system supports exchange; SoupFS and SquirrelFS refuse.
    pub exchanges: bool,
    /// The longest name in bytes.
    pub name_max: usize,
    /// Whether links may have absolute targets. In DirectFS as used in experiments these leave the
    /// image.
    pub absolute_links: bool,
}

const ROOT: usize = 0;

struct PathTarget {
    directory: usize,
    name: Vec<u8>,
    slash: bool,
}

impl Model {
    pub fn new() -> Model {
        let root = Node { body: Body::Directory(BTreeMap::new(), ROOT), permissions: 0o755, links: 2 };
        Model { nodes: vec![root], exchanges: true, name_max: 255, absolute_links: true }
    }

    fn names(&self, directory: usize) -> Result<&BTreeMap<Vec<u8>, usize>> {
        match &self.nodes[directory].body {
            Body::Directory(names, _) => Ok(names),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn names_mut(&mut self, directory: usize) -> &mut BTreeMap<Vec<u8>, usize> {
        match &mut self.nodes[directory].body {
            Body::Directory(names, _) => names,
            _ => panic!("no directory"),
        }
    }

    fn is_directory(&self, node: usize) -> bool {
        matches!(self.nodes[node].body, Body::Directory(..))
    }

    fn step(&self, directory: usize, name: &[u8]) -> Result<usize> {
        match (&self.nodes[directory].body, name) {
            (Body::Directory(..), b"." | b"") => Ok(directory),
            (Body::Directory(_, parent), b"..") => Ok(*parent),
            (Body::Directory(..), name) if name.len() > self.name_max => Err(Errno::ENAMETOOLONG),
            (Body::Directory(names, _), name) => names.get(name).copied().ok_or(Errno::ENOENT),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn place(&self, start: usize, path: &[u8], followed: &mut u32) -> Result<PathTarget> {
        let mut here = if path.first() == Some(&b'/') { ROOT } else { start };
        let slash = path.ends_with(b"/") && path.iter().any(|byte| *byte != b'/');
        let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
        let Some((last, parents)) = parts.split_last() else {
            return Ok(PathTarget { directory: here, name: Vec::new(), slash });
        };
        for part in parents {
            let next = self.step(here, part)?;
            here = match &self.nodes[next].body {
                Body::Symlink(target) => self.follow(here, target, followed)?,
                _ => next,
            };
        }
        self.names(here)?;
        if last.len() > self.name_max {
            return Err(Errno::ENAMETOOLONG);
        }
        Ok(PathTarget { directory: here, name: last.to_vec(), slash })
    }

    fn follow(&self, here: usize, target: &[u8], followed: &mut u32) -> Result<usize> {
        *followed += 1;
        if *followed > 40 {
            return Err(Errno::ELOOP);
        }
        let place = self.place(here, target, followed)?;
        self.end(place, true, followed)
    }

    fn end(&self, place: PathTarget, follow: bool, followed: &mut u32) -> Result<usize> {
        let found = self.step(place.directory, &place.name)?;
        let found = match &self.nodes[found].body {
            Body::Symlink(target) if follow || place.slash => self.follow(place.directory, target, followed)?,
            _ => found,
        };
        if place.slash && !self.is_directory(found) {
            return Err(Errno::ENOTDIR);
        }
        Ok(found)
    }

    fn find(&self, path: &[u8], follow: bool) -> Result<usize> {
        let mut followed = 0;
        let place = self.place(ROOT, path, &mut followed)?;
        self.end(place, follow, &mut followed)
    }

    fn new_name(&self, path: &[u8], is_directory: bool) -> Result<PathTarget> {
        let place = self.place(ROOT, path, &mut 0)?;
        if matches!(place.name.as_slice(), b"" | b"." | b"..") {
            return Err(Errno::EEXIST);
        }
        let exists = self.names(place.directory)?.contains_key(&place.name);
        if exists {
            return Err(Errno::EEXIST);
        }
        if place.slash && !is_directory {
            return Err(Errno::ENOENT);
        }
        Ok(place)
    }

    fn make(&mut self, path: &[u8], body: Body, permissions: u32) -> Result<()> {
        let is_directory = matches!(body, Body::Directory(..));
        let PathTarget { directory, name, .. } = self.new_name(path, is_directory)?;
        let body = if is_directory { Body::Directory(BTreeMap::new(), directory) } else { body };
        self.nodes.push(Node { body, permissions, links: if is_directory { 2 } else { 1 } });
        let node = self.nodes.len() - 1;
        self.names_mut(directory).insert(name, node);
        self.nodes[directory].links += u32::from(is_directory);
        Ok(())
    }

    pub fn create(&mut self, path: &[u8], permissions: u32) -> Result<()> {
        let place = self.place(ROOT, path, &mut 0)?;
        if place.slash && !matches!(place.name.as_slice(), b"" | b"." | b"..") {
            return Err(Errno::EISDIR);
        }
        self.make(path, Body::Regular(Vec::new()), permissions)
    }

    pub fn mkdir(&mut self, path: &[u8], permissions: u32) -> Result<()> {
        self.make(path, Body::Directory(BTreeMap::new(), 0), permissions)
    }

    pub fn symlink(&mut self, target: &[u8], path: &[u8]) -> Result<()> {
        self.make(path, Body::Symlink(target.to_vec()), 0o777)
    }

    fn content(&mut self, path: &[u8]) -> Result<&mut Vec<u8>> {
        let node = self.find(path, true)?;
        match &mut self.nodes[node].body {
            Body::Regular(content) => Ok(content),
            Body::Directory(..) => Err(Errno::EISDIR),
            Body::Symlink(_) => Err(Errno::ELOOP),
        }
    }

    pub fn write(&mut self, path: &[u8], offset: usize, bytes: &[u8]) -> Result<()> {
        let content = self.content(path)?;
        if content.len() < offset + bytes.len() {
            content.resize(offset + bytes.len(), 0);
        }
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    pub fn append(&mut self, path: &[u8], bytes: &[u8]) -> Result<()> {
        self.content(path)?.extend_from_slice(bytes);
        Ok(())
    }

    pub fn truncate(&mut self, path: &[u8], length: usize) -> Result<()> {
        self.content(path)?.resize(length, 0);
        Ok(())
    }

    pub fn chmod(&mut self, path: &[u8], permissions: u32) -> Result<()> {
        let node = self.find(path, true)?;
        self.nodes[node].permissions = permissions;
        Ok(())
    }

    pub fn link(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let node = self.find(from, false)?;
        let PathTarget { directory, name, .. } = self.new_name(to, false)?;
        if self.is_directory(node) {
            return Err(Errno::EPERM);
        }
        self.names_mut(directory).insert(name, node);
        self.nodes[node].links += 1;
        Ok(())
    }

    pub fn unlink(&mut self, path: &[u8]) -> Result<()> {
        let place = self.place(ROOT, path, &mut 0)?;
        if matches!(place.name.as_slice(), b"" | b"." | b"..") {
            return Err(Errno::EISDIR);
        }
        let node = self.step(place.directory, &place.name)?;
        if self.is_directory(node) {
            return Err(Errno::EISDIR);
        }
        if place.slash {
            return Err(Errno::ENOTDIR);
        }
        self.names_mut(place.directory).remove(&place.name);
        self.nodes[node].links -= 1;
        Ok(())
    }

    pub fn rmdir(&mut self, path: &[u8]) -> Result<()> {
        let place = self.place(ROOT, path, &mut 0)?;
        match place.name.as_slice() {
            b"" => return Err(Errno::EBUSY),
            b"." => return Err(Errno::EINVAL),
            b".." => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        let node = self.step(place.directory, &place.name)?;
        if !self.names(node)?.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.names_mut(place.directory).remove(&place.name);
        self.nodes[node].links = 0;
        self.nodes[place.directory].links -= 1;
        Ok(())
    }

    fn is_above(&self, above: usize, mut below: usize) -> bool {
        loop {
            if above == below {
                return true;
            }
            if below == ROOT {
                return false;
            }
            let Body::Directory(_, parent) = &self.nodes[below].body else { return false };
            below = *parent;
        }
    }

    pub fn rename(&mut self, from: &[u8], to: &[u8], flags: u32) -> Result<()> {
        let (exchange, no_replace) = (flags & libc::RENAME_EXCHANGE != 0, flags & libc::RENAME_NOREPLACE != 0);
        let one = self.place(ROOT, from, &mut 0)?;
        let two = self.place(ROOT, to, &mut 0)?;
        let special = |place: &PathTarget| matches!(place.name.as_slice(), b"" | b"." | b"..");
        if special(&one) {
            return Err(Errno::EBUSY);
        }
        if special(&two) {
            return Err(if no_replace { Errno::EEXIST } else { Errno::EBUSY });
        }
        let node = self.step(one.directory, &one.name)?;
        if (one.slash || two.slash) && !self.is_directory(node) {
            return Err(Errno::ENOTDIR);
        }
        let other = self.names(two.directory)?.get(&two.name).copied();
        if no_replace && other.is_some() {
            return Err(Errno::EEXIST);
        }
        if exchange && other.is_none() {
            return Err(Errno::ENOENT);
        }
        let is_move = one.directory != two.directory;
        if is_move && self.is_directory(node) && self.is_above(node, two.directory) {
            return Err(Errno::EINVAL);
        }
        if let Some(other) = other
            && is_move
            && self.is_directory(other)
            && self.is_above(other, one.directory)
        {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if other == Some(node) {
            return Ok(());
        }
        let weight = |model: &Model, node: usize| u32::from(model.is_directory(node));
        if let Some(other) = other {
            if exchange && !self.exchanges {
                return Err(Errno::EINVAL);
            }
            if exchange {
                let (a, b) = (weight(self, node), weight(self, other));
                self.nodes[one.directory].links = self.nodes[one.directory].links + b - a;
                self.nodes[two.directory].links = self.nodes[two.directory].links + a - b;
                self.names_mut(one.directory).insert(one.name, other);
                self.names_mut(two.directory).insert(two.name, node);
                self.set_parent(other, one.directory);
                self.set_parent(node, two.directory);
                return Ok(());
            }
            match (self.is_directory(node), self.is_directory(other)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.names(other)?.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
            self.nodes[two.directory].links -= weight(self, other);
            self.nodes[other].links = if self.is_directory(other) { 0 } else { self.nodes[other].links - 1 };
        }
        let weight = weight(self, node);
        self.nodes[one.directory].links -= weight;
        self.nodes[two.directory].links += weight;
        self.names_mut(one.directory).remove(&one.name);
        self.names_mut(two.directory).insert(two.name, node);
        self.set_parent(node, two.directory);
        Ok(())
    }

    fn set_parent(&mut self, node: usize, directory: usize) {
        if let Body::Directory(_, parent) = &mut self.nodes[node].body {
            *parent = directory;
        }
    }

    fn see(&self, node: usize) -> Seen {
        let Node { body, permissions, links } = &self.nodes[node];
        let (kind, content) = match body {
            Body::Regular(content) => (FileKind::Regular, content.clone()),
            Body::Symlink(target) => (FileKind::Symlink, target.clone()),
            Body::Directory(..) => (FileKind::Directory, Vec::new()),
        };
        Seen { kind, permissions: *permissions, links: *links, size: content.len() as u64, content }
    }

    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut todo = vec![(String::from("/"), ROOT)];
        while let Some((path, node)) = todo.pop() {
            tree.insert(path.clone(), self.see(node));
            if let Body::Directory(names, _) = &self.nodes[node].body {
                let base = if path == "/" { "" } else { &path };
                todo.extend(
                    names.iter().map(|(name, child)| (format!("{base}/{}", String::from_utf8_lossy(name)), *child)),
                );
            }
        }
        tree
    }
}

/// The tree of a real file system.
pub fn tree_of(calls: &impl Calls) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![String::from("/")];
    while let Some(path) = todo.pop() {
        let attributes = calls.stat_link(path.as_bytes()).unwrap_or_else(|errno| panic!("{path}: {errno:?}"));
        let content = match attributes.kind {
            FileKind::Regular => {
                let file = calls.open(path.as_bytes(), libc::O_RDONLY, 0).unwrap();
                let mut content = vec![0xee; attributes.size_bytes as usize + 10];
                let length = calls.read(file, 0, &mut content).unwrap();
                calls.close(file).unwrap();
                content.truncate(length);
                content
            }
            FileKind::Symlink => calls.read_link(path.as_bytes()).unwrap(),
            FileKind::Directory => {
                let base = if path == "/" { "" } else { &path };
                calls
                    .read_directory(path.as_bytes(), &mut |name, _| {
                        todo.push(format!("{base}/{}", String::from_utf8_lossy(name)));
                    })
                    .unwrap();
                assert_eq!(calls.path_of(path.as_bytes()).unwrap(), path.as_bytes(), "getcwd");
                Vec::new()
            }
            other => panic!("{path} is a {other:?}"),
        };
        let size = if attributes.kind == FileKind::Directory { 0 } else { attributes.size_bytes };
        let seen = Seen {
            kind: attributes.kind,
            permissions: attributes.mode & 0o7777,
            links: attributes.links,
            size,
            content,
        };
        assert!(tree.insert(path.clone(), seen).is_none(), "{path} is listed twice");
    }
    tree
}

/// An image in memory.
pub struct Image(pub Arc<Mapping>);

impl Image {
    pub fn new(length: u64) -> Image {
        Image(Arc::new(Mapping::anonymous(length).unwrap()))
    }

    pub fn region<M: Memory>(&self, memory: M) -> MappedRegion<M> {
        self.0.region(memory).unwrap()
    }
}

pub fn small_options() -> VfsOptions {
    VfsOptions { files_max: 1 << 14, names_max: 1 << 14, ..VfsOptions::default() }
}

pub fn mkfs<P: PhysicalFs<Memory = M>, M: Memory>(image: &Image, memory: M) {
    P::mkfs(&image.region(memory), &MkfsOptions::default()).unwrap();
}

const NAMES: [&str; 9] = [
    "a",
    "b",
    "directory",
    "a-file-with-a-longer-name.txt",
    "x",
    "y",
    "link",
    "..",
    "a name that is so long that it does not fit into the place that a cache has for names of usual length, nor into one line",
];

fn path(random: &mut Random) -> String {
    let mut path = String::new();
    for _ in 0..1 + random.below(3) {
        path.push('/');
        let name: &&str = random.pick(&NAMES);
        path.push_str(name);
    }
    if random.below(40) == 0 {
        path.push('/');
    }
    path
}

/// Makes one random call on both and checks that the results agree.
pub fn one_call(random: &mut Random, real: &impl Calls, model: &mut Model) {
    let (one, two) = (path(random), path(random));
    let (p, q) = (one.as_bytes(), two.as_bytes());
    let open_and = |run: &dyn Fn(u32) -> Result<()>| -> Result<()> {
        let file = real.open(p, libc::O_RDWR, 0)?;
        let result = run(file);
        real.close(file).unwrap();
        result
    };
    let length = [0, 1, 100, 4095, 4096, 4097, 9000, 20000][random.below(8) as usize];
    let offset = [0, 1, 10, 4000, 4096, 8191, 12288, 30000][random.below(8) as usize];
    let fill = random.next() as u8;
    let bytes: Vec<u8> = (0..length).map(|index| fill.wrapping_add(index as u8)).collect();
    let (what, found, wanted) = match random.below(18) {
        0..3 => (format!("create {one}"), real.create(p, 0o644), model.create(p, 0o644)),
        3..5 => (format!("mkdir {one}"), real.mkdir(p, 0o755), model.mkdir(p, 0o755)),
        5 => {
            let is_absolute = random.below(2) != 0 && model.absolute_links;
            let target = if is_absolute { &two } else { two.trim_start_matches('/') };
            let target = target.as_bytes();
            (format!("symlink {two} {one}"), real.symlink(target, p), model.symlink(target, p))
        }
        6..8 => (format!("unlink {one}"), real.unlink(p), model.unlink(p)),
        8 => (format!("rmdir {one}"), real.rmdir(p), model.rmdir(p)),
        9..12 => {
            let flags = *random.pick(&[0, 0, 0, libc::RENAME_EXCHANGE, libc::RENAME_NOREPLACE]);
            (format!("rename {one} {two} {flags}"), real.rename(p, q, flags), model.rename(p, q, flags))
        }
        12 => (format!("link {one} {two}"), real.link(p, q), model.link(p, q)),
        13 => {
            let mode = random.below(0o1000) as u32;
            (format!("chmod {one} {mode:o}"), real.chmod(p, mode), model.chmod(p, mode))
        }
        14 => {
            let result = open_and(&|file| real.write(file, offset as u64, &bytes).map(drop));
            let wanted = if bytes.is_empty() { model.append(p, b"") } else { model.write(p, offset, &bytes) };
            (format!("write {one} {offset} {length}"), result, wanted)
        }
        15 => {
            let result = open_and(&|file| real.append(file, &bytes).map(drop));
            (format!("append {one} {length}"), result, model.append(p, &bytes))
        }
        16 => {
            let result = open_and(&|file| real.truncate(file, offset as u64));
            (format!("truncate {one} {offset}"), result, model.truncate(p, offset))
        }
        _ => {
            let found = real.stat(p);
            let wanted = model.find(p, true).map(|node| model.see(node));
            if let (Ok(found), Ok(wanted)) = (&found, &wanted) {
                assert_eq!((found.kind, found.links), (wanted.kind, wanted.links), "stat {one}");
            }
            (format!("stat {one}"), found.map(drop), wanted.map(drop))
        }
    };
    // A call may have other reasons to fail, and systems check lengths of names at different times.
    // No name here is longer than 255 bytes.
    let is_too_long = |result: &Result<()>| model.name_max < 255 && *result == Err(Errno::ENAMETOOLONG);
    if found.is_ok() || wanted.is_ok() || !(is_too_long(&found) || is_too_long(&wanted)) {
        assert_eq!(found, wanted, "{what}");
    }
}

/// Makes random calls with unmounts in between. The trees must agree after each round, before and
/// after a mount.
pub fn compare_with_model<P, M, N>(seed: u64, memory: impl Fn() -> M, image_bytes: u64, options: VfsOptions)
where
    M: Memory,
    P: PhysicalFs<Memory = M>,
    N: Names<P>,
{
    println!("seed {seed}");
    let image = Image::new(image_bytes);
    mkfs::<P, M>(&image, memory());
    let mut random = Random(seed);
    let mut model = Model::new();
    model.exchanges = !["SoupFS", "SquirrelFS-like"].contains(&P::NAME);
    model.name_max = P::NAME_MAX;
    for _ in 0..12 {
        let vfs = Vfs::<P, N>::mount(image.region(memory()), options).unwrap();
        assert_eq!(tree_of(&vfs), model.tree(), "after the mount");
        for _ in 0..200 {
            one_call(&mut random, &vfs, &mut model);
            if random.below(100) == 0 {
                vfs.drop_caches().unwrap();
            }
        }
        assert_eq!(tree_of(&vfs), model.tree(), "before the unmount");
        vfs.unmount().unwrap();
    }
    // Nothing leaks: an empty tree has all its space again, except for what the formats never free.
    let vfs = Vfs::<P, N>::mount(image.region(memory()), options).unwrap();
    remove_all(&vfs);
    vfs.unmount().unwrap();
    let vfs = Vfs::<P, N>::mount(image.region(memory()), options).unwrap();
    let space = vfs.physical().space().unwrap();
    vfs.unmount().unwrap();
    let used = space.blocks - space.blocks_free;
    assert!(used * 10 <= space.blocks, "{used} of {} blocks are in use with no files", space.blocks);
}

/// Removes all files.
pub fn remove_all(calls: &impl Calls) {
    let tree = tree_of(calls);
    for (path, seen) in tree.iter().rev().filter(|(path, _)| *path != "/") {
        let removed = match seen.kind {
            FileKind::Directory => calls.rmdir(path.as_bytes()),
            _ => calls.unlink(path.as_bytes()),
        };
        removed.unwrap_or_else(|errno| panic!("{path}: {errno:?}"));
    }
}

/// Makes a random call on names that threads share.
pub fn any_call(vfs: &impl Calls, random: &mut Random) {
    let directories = ["/a", "/b", "/a/c", "/b/d", "/a/x", "/b/x"];
    let names = ["x", "y", "z", "c", "d", "w"];
    let mut path = || format!("{}/{}", random.pick(&directories), random.pick(&names)).into_bytes();
    let (one, two) = (path(), path());
    let bytes = [random.next() as u8; 5000];
    let done = match random.below(11) {
        0 | 1 => vfs.create(&one, 0o644),
        2 => vfs.mkdir(&one, 0o755),
        3 => vfs.unlink(&one),
        4 => vfs.rmdir(&one),
        5 => vfs.rename(&one, &two, 0),
        6 => vfs.rename(&one, &two, libc::RENAME_EXCHANGE),
        7 => vfs.link(&one, &two),
        8 => vfs.open(&one, libc::O_RDWR, 0).and_then(|file| {
            let wrote = vfs.write(file, random.below(9000), &bytes);
            vfs.close(file).unwrap();
            wrote.map(drop)
        }),
        9 => vfs.stat(&one).map(drop),
        _ => vfs.read_directory(&one, &mut |_, _| {}),
    };
    let expected =
        [Errno::ENOENT, Errno::EEXIST, Errno::ENOTDIR, Errno::EISDIR, Errno::ENOTEMPTY, Errno::EINVAL, Errno::EPERM];
    if let Err(errno) = done {
        assert!(expected.contains(&errno), "{errno:?}");
    }
}
