//! A tree of files as the kernel or an unused image shows it, read without the code under test.

use engine::Node;
use engine::format::FileKind;
use image::{Image, OpenImage};
use posix::{Caller, Capabilities, Credentials};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A file, as far as two file systems must agree on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSummary {
    /// Type and permission bits.
    pub mode: u32,
    /// Number of links.
    pub links: u64,
    pub uid: u32,
    pub gid: u32,
    /// Device number of a device file.
    pub device: u64,
    /// Content of a file, target of a link.
    pub content: Vec<u8>,
    /// In ns; only times that were set before the test began.
    pub modified_ns: Option<i64>,
}

/// Files by path.
pub type Tree = BTreeMap<String, FileSummary>;

fn name_of(parent: &str, name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    if parent.is_empty() { name.into_owned() } else { format!("{parent}/{name}") }
}

/// Whether a path is left out, and is not read.
pub type Ignored<'a> = &'a dyn Fn(&str) -> bool;

/// The tree of a directory on the host. Times from `now_ns` on are omitted, because no script set
/// them.
pub fn of_directory(root: &Path, now_ns: i64, is_ignored: Ignored<'_>) -> Tree {
    let mut tree = Tree::new();
    add_directory(&mut tree, root, "", now_ns, is_ignored);
    tree
}

fn add_directory(tree: &mut Tree, path: &Path, name: &str, now_ns: i64, is_ignored: Ignored<'_>) {
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), name_of(name, entry.file_name().as_bytes()));
        let metadata = fs::symlink_metadata(&path).unwrap();
        let kind = metadata.file_type();
        let content = if is_ignored(&name) {
            Vec::new()
        } else if kind.is_file() {
            fs::read(&path).unwrap()
        } else if kind.is_symlink() {
            fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
        } else {
            Vec::new()
        };
        let modified_ns = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
        let entry = FileSummary {
            mode: metadata.mode(),
            links: metadata.nlink(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            device: metadata.rdev(),
            content,
            modified_ns: (modified_ns < now_ns).then_some(modified_ns),
        };
        if kind.is_dir() {
            add_directory(tree, &path, &name, now_ns, is_ignored);
        }
        if !is_ignored(&name) {
            tree.insert(name, entry);
        }
    }
}

/// The tree of an image.
pub fn of_image(image: &Path, now_ns: i64, is_ignored: Ignored<'_>) -> Tree {
    let image = Image::open(image, &OpenImage { read_only: true, ..OpenImage::default() }).unwrap();
    let thread = image.fs().enter().unwrap();
    let credentials =
        Credentials { uid: 0, gid: 0, groups: &[], capabilities: Capabilities::ALL, namespace: None, checked: false };
    let caller = Caller::new(&thread, credentials);
    let root = thread.root().unwrap();
    let mut tree = Tree::new();
    add_node(&mut tree, &caller, root, "", now_ns, is_ignored);
    thread.release(root, 1);
    tree
}

fn add_node(
    tree: &mut Tree,
    caller: &Caller<'_, '_>,
    directory: Node,
    path: &str,
    now_ns: i64,
    is_ignored: Ignored<'_>,
) {
    let file = caller.opens().open_node(directory, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
    let mut names = Vec::new();
    let mut each = |entry: posix::ListedName<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    caller.read_directory(&file, &mut each).unwrap();
    for name in names.iter().filter(|name| ![&b"."[..], b".."].contains(&&name[..])) {
        let path = name_of(path, name);
        let found = caller.lookup(directory, name).unwrap();
        let attributes = caller.stat(found.node()).unwrap();
        let content = match attributes.kind {
            _ if is_ignored(&path) => Vec::new(),
            FileKind::Regular => content(caller, found.node(), attributes.size_bytes),
            FileKind::Symlink => target(caller, found.node()),
            _ => Vec::new(),
        };
        let entry = FileSummary {
            mode: attributes.mode,
            links: attributes.links.into(),
            uid: attributes.uid,
            gid: attributes.gid,
            device: attributes.device.into(),
            content,
            modified_ns: (attributes.modified_ns < now_ns).then_some(attributes.modified_ns),
        };
        if attributes.kind == FileKind::Directory {
            add_node(tree, caller, found.node(), &path, now_ns, is_ignored);
        }
        if !is_ignored(&path) {
            tree.insert(path, entry);
        }
    }
    caller.opens().close(&file);
}

fn content(caller: &Caller<'_, '_>, node: Node, size_bytes: u64) -> Vec<u8> {
    let file = caller.opens().open_node(node, libc::O_RDONLY).unwrap();
    let mut content = vec![0; size_bytes as usize];
    let mut done = 0;
    while done < content.len() {
        match caller.data().read_at(&file, done as i64, &mut content[done..]).unwrap() {
            0 => break,
            count => done += count,
        }
    }
    caller.opens().close(&file);
    content
}

fn target(caller: &Caller<'_, '_>, node: Node) -> Vec<u8> {
    let mut target = vec![0; 4096];
    let length = caller.readlink(node, &mut target).unwrap();
    target.truncate(length);
    target
}

/// The differences of two trees as text; content is not compared where `is_free` is true.
pub fn differences(one: &Tree, other: &Tree, is_free: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (path, entry) in one {
        match other.get(path) {
            None => found.push(format!("{path}: missing")),
            Some(twin) if is_free(path) => {
                if twin.mode != entry.mode {
                    found.push(format!("{path}: mode {:o}, should be {:o}", twin.mode, entry.mode));
                }
            }
            Some(twin) => found.extend(difference(entry, twin).map(|words| format!("{path}: {words}"))),
        }
    }
    found.extend(other.keys().filter(|path| !one.contains_key(*path)).map(|path| format!("{path}: too much")));
    found
}

fn difference(wanted: &FileSummary, found: &FileSummary) -> Option<String> {
    let plain = |entry: &FileSummary| FileSummary { content: Vec::new(), ..entry.clone() };
    if plain(wanted) != plain(found) {
        return Some(format!("{:?}, should be {:?}", plain(found), plain(wanted)));
    }
    if wanted.content == found.content {
        return None;
    }
    let at = wanted.content.iter().zip(&found.content).position(|(one, other)| one != other);
    let at = at.unwrap_or(wanted.content.len().min(found.content.len()));
    let lengths = (found.content.len(), wanted.content.len());
    Some(format!("{} bytes, should be {}; content differs from byte {at} on", lengths.0, lengths.1))
}
