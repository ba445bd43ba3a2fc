//! A tree of an image as a tar archive in the pax format.

use crate::acl::{self, LISTS};
use crate::host::is_kept;
use crate::tar::{BLOCK, GID, Header, LINK, MAGIC, MAJOR, MINOR, MODE, MTIME, NAME, SIZE, TYPE, UID, USTAR};
use crate::tar::{padding, record, time_text};
use crate::tree::{Tree, WalkPath, joined, names_of};
use crate::{Counts, Result, TransferError, Watch};
use engine::format::FileKind;
use engine::{Attributes, Fs, Node, SeekWhat};
use posix::NodeRef;
use std::collections::{HashMap, HashSet};
use std::io::Write;

/// Bytes read at a time.
const PIECE_BYTES: usize = 1 << 20;
/// The archive is filled up to a multiple of this, as tapes had it.
const RECORD_BYTES: u64 = 10240;

/// Bytes that are read at a time where reads of more fail.
const LEAST_BYTES: usize = pmem::BLOCK_BYTES as usize;

/// Writes the tree at a path (from the root) as an archive. Names in it begin with `./`. A path
/// that leads to a file that is no directory gives an archive with this file. Zeros stand for
/// content that the memory or the disk has lost; `incomplete` receives the names of such files.
pub fn export(
    fs: &Fs,
    path: &[u8],
    output: &mut dyn Write,
    watch: Watch<'_>,
    incomplete: &mut dyn FnMut(&[u8]),
) -> Result<Counts> {
    let thread = fs.enter().map_err(|error| TransferError::image("enter", b"/", error))?;
    let tree = Tree { thread: &thread };
    let (node, last) = find(&tree, path)?;
    let mut exporter = Exporter {
        tree,
        output,
        watch,
        incomplete,
        counts: Counts::default(),
        written: 0,
        links: HashMap::new(),
        buffer: vec![0; PIECE_BYTES],
    };
    if exporter.stat(node.node(), path)?.kind == FileKind::Directory {
        exporter.add_tree(node.node(), b"./")?;
    } else {
        exporter.add(node.node(), &joined(b"./", last))?;
    }
    exporter.put(&[0; 2 * BLOCK])?;
    let rest = exporter.written.next_multiple_of(RECORD_BYTES) - exporter.written;
    exporter.put(&vec![0; rest as usize])?;
    exporter.output.flush().map_err(TransferError::Output)?;
    Ok(exporter.counts)
}

/// The file at a path, with its last name.
fn find<'t, 'f, 'p>(tree: &Tree<'t, 'f>, path: &'p [u8]) -> Result<(NodeRef<'t, 'f>, &'p [u8])> {
    let (mut node, mut last) = (tree.root()?, &b""[..]);
    for name in names_of(path) {
        let found = tree.find(node.node(), name, path)?;
        node = found.ok_or_else(|| TransferError::image("find", path, posix::Errno::ENOENT))?;
        last = name;
    }
    Ok((node, last))
}

/// Bytes of content that [`export`] would write for a path; `None` if `goes_on` ends the walk.
/// Other threads may change the tree, so it is an estimate.
pub fn content_bytes(fs: &Fs, path: &[u8], goes_on: &dyn Fn() -> bool) -> Option<u64> {
    let thread = fs.enter().ok()?;
    let tree = Tree { thread: &thread };
    let mut waiting = vec![find(&tree, path).ok()?.0.node().number];
    // Directories, which a hostile image may put below themselves, and files with several names.
    let (mut seen, mut bytes) = (HashSet::new(), 0);
    while let Some(number) = waiting.pop() {
        let Ok(node) = thread.node(number, None) else { continue };
        let node = NodeRef::owned(&thread, node);
        let Ok(file) = thread.stat(node.node()) else { continue };
        let is_directory = file.kind == FileKind::Directory;
        if !goes_on() || (is_directory || file.links > 1) && !seen.insert(number) {
            continue;
        }
        match file.kind {
            FileKind::Directory => waiting.extend(tree.names(node.node(), path).ok()?.into_iter().map(|entry| entry.1)),
            FileKind::Regular => bytes += file.size_bytes.min(file.blocks * pmem::BLOCK_BYTES),
            _ => {}
        }
    }
    goes_on().then_some(bytes)
}

struct Exporter<'a, 't, 'f> {
    tree: Tree<'t, 'f>,
    output: &'a mut dyn Write,
    watch: Watch<'a>,
    incomplete: &'a mut dyn FnMut(&[u8]),
    counts: Counts,
    written: u64,
    /// Files with several names: the name that has the content.
    links: HashMap<u64, Vec<u8>>,
    buffer: Vec<u8>,
}

/// What a walk has yet to enter.
struct Waiting {
    number: u64,
    /// With a slash if it is a directory's.
    name: Vec<u8>,
    depth: usize,
}

impl Exporter<'_, '_, '_> {
    fn stat(&self, node: Node, path: &[u8]) -> Result<Attributes> {
        self.tree.thread.stat(node).map_err(|error| TransferError::image("examine", path, error))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.output.write_all(bytes).map_err(TransferError::Output)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn pad(&mut self, bytes: u64) -> Result<()> {
        self.put(&[0; BLOCK][..padding(bytes) as usize])
    }

    /// Adds a directory with all that is in it, each directory followed by its content: tar sets
    /// the times of a directory when it leaves it. An explicit stack: trees may be deep.
    fn add_tree(&mut self, top: Node, path: &[u8]) -> Result<()> {
        let mut path = WalkPath::new(path);
        let mut waiting = vec![Waiting { number: top.number, name: Vec::new(), depth: 0 }];
        // The directories above the present one. Nothing else ends the walk of a hostile image in
        // which a directory is below itself.
        let (mut above, mut numbers_above) = (Vec::new(), HashSet::new());
        while let Some(Waiting { number, name, depth }) = waiting.pop() {
            above.drain(depth..).for_each(|left| {
                numbers_above.remove(&left);
            });
            let path = path.enter(depth, &name);
            if numbers_above.contains(&number) {
                return Err(TransferError::image("list", path, posix::Errno(libc::EUCLEAN)));
            }
            // Removed meanwhile.
            let Ok(node) = self.tree.thread.node(number, None) else { continue };
            let node = NodeRef::owned(self.tree.thread, node);
            self.add(node.node(), path)?;
            if self.tree.kind(node.node(), path)? != FileKind::Directory {
                continue;
            }
            above.push(number);
            numbers_above.insert(number);
            let mut names = self.tree.names(node.node(), path)?;
            // The last one is taken first.
            names.sort_by(|one, other| other.0.cmp(&one.0));
            waiting.extend(names.into_iter().map(|(mut name, number, kind)| {
                if kind == FileKind::Directory {
                    name.push(b'/');
                }
                Waiting { number, name, depth: depth + 1 }
            }));
        }
        Ok(())
    }

    fn add(&mut self, node: Node, path: &[u8]) -> Result<()> {
        let file = self.stat(node, path)?;
        if !(self.watch)(self.counts) {
            return Err(TransferError::Stopped);
        }
        if file.kind == FileKind::Socket {
            self.counts.skipped += 1;
            return Ok(());
        }
        self.counts.files += 1;
        let mut entry = Entry::new(&file, path);
        if file.kind != FileKind::Directory && file.links > 1 {
            if let Some(first) = self.links.get(&file.number) {
                entry.link_to(first, b'1');
                let bytes = entry.bytes();
                return self.put(&bytes);
            }
            self.links.insert(file.number, path.to_vec());
        }
        match file.kind {
            FileKind::Symlink => {
                let mut target = vec![0; 4096];
                let length = self.tree.thread.read_link(node, &mut target);
                target.truncate(length.map_err(|error| TransferError::image("read", path, error))?);
                entry.link_to(&target, b'2');
            }
            FileKind::Character | FileKind::Block => entry.set_device(&file),
            _ => {}
        }
        self.add_xattrs(node, file.kind, path, &mut entry)?;
        if file.kind != FileKind::Regular {
            let bytes = entry.bytes();
            return self.put(&bytes);
        }
        self.add_content(node, &file, entry, path)
    }

    fn add_xattrs(&mut self, node: Node, kind: FileKind, path: &[u8], entry: &mut Entry) -> Result<()> {
        let failed = |errno| TransferError::image("read the extended attributes of", path, errno);
        let caller = self.tree.caller();
        let names = caller.xattrs().all_attributes(node).map_err(failed)?;
        for name in names.split(|&byte| byte == 0).filter(|name| is_kept(name, kind)) {
            let mut value = vec![0; posix::VALUE_BYTES_MAX];
            match caller.xattrs().get_attribute(node, name, &mut value) {
                Ok(length) => entry.add_xattr(name, &value[..length]),
                // Removed meanwhile.
                Err(posix::Errno::ENODATA) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(())
    }

    fn add_content(&mut self, node: Node, file: &Attributes, mut entry: Entry, path: &[u8]) -> Result<()> {
        let length = file.size_bytes;
        let is_sparse = file.blocks * pmem::BLOCK_BYTES < length;
        let pieces = if is_sparse { self.pieces(node, length, path)? } else { vec![(0, length)] };
        let content: u64 = pieces.iter().map(|(_, length)| length).sum();
        let map = if content < length { sparse_map(&pieces, length) } else { Vec::new() };
        let size = map.len() as u64 + content;
        if !map.is_empty() {
            entry.set_sparse(path, length);
        }
        entry.set_size(size);
        let bytes = entry.bytes();
        self.put(&bytes)?;
        self.put(&map)?;
        let mut is_whole = true;
        for (start, length) in pieces {
            is_whole &= self.put_piece(node, start, length, path)?;
        }
        if !is_whole {
            self.counts.incomplete += 1;
            (self.incomplete)(path);
        }
        self.pad(size)
    }

    /// Writes exactly that many bytes, even if the file changes meanwhile. Returns whether all of
    /// them could be read.
    fn put_piece(&mut self, node: Node, start: u64, length: u64, path: &[u8]) -> Result<bool> {
        let end = start + length;
        let mut at = start;
        let mut is_whole = true;
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut step = PIECE_BYTES;
        while at < end {
            let room = ((end - at) as usize).min(step);
            let count = match self.tree.thread.files().read(node, at, &mut buffer[..room]) {
                Ok(count) => count,
                Err(engine::Error::ContentLost | engine::Error::Disk(libc::EIO)) if room > LEAST_BYTES => {
                    step = LEAST_BYTES;
                    continue;
                }
                Err(engine::Error::ContentLost | engine::Error::Disk(libc::EIO)) => {
                    is_whole = false;
                    0
                }
                Err(error) => return Err(TransferError::image("read", path, error)),
            };
            // It became shorter: zeros stand for what is missing.
            buffer[count..room].fill(0);
            self.put(&buffer[..room])?;
            at += room as u64;
            self.counts.bytes += room as u64;
            if !(self.watch)(self.counts) {
                return Err(TransferError::Stopped);
            }
        }
        self.buffer = buffer;
        Ok(is_whole)
    }

    /// The pieces of a file that are not holes: offset and length.
    fn pieces(&self, node: Node, length: u64, path: &[u8]) -> Result<Vec<(u64, u64)>> {
        let mut pieces = Vec::new();
        let mut at = 0;
        let seek = |at, what| match self.tree.thread.files().seek(node, at, what) {
            Ok(found) => Ok(Some(found.min(length))),
            Err(engine::Error::NoSuchExtent) => Ok(None),
            Err(error) => Err(TransferError::image("read", path, error)),
        };
        while at < length {
            let Some(start) = seek(at, SeekWhat::Data)? else { break };
            let end = seek(start, SeekWhat::Hole)?.unwrap_or(length);
            if end <= start {
                break;
            }
            pieces.push((start, end - start));
            at = end;
        }
        Ok(pieces)
    }
}

/// The map of a sparse file (version 1.0 of GNU tar): the number of pieces, then offset and length
/// of each, ended by one of no length at the end of the file; filled up to whole blocks.
fn sparse_map(pieces: &[(u64, u64)], length: u64) -> Vec<u8> {
    let mut pieces = pieces.to_vec();
    if pieces.last().is_none_or(|(start, bytes)| start + bytes < length) {
        pieces.push((length, 0));
    }
    let mut map = format!("{}\n", pieces.len());
    for (start, bytes) in pieces {
        map += &format!("{start}\n{bytes}\n");
    }
    let mut map = map.into_bytes();
    map.resize(map.len() + padding(map.len() as u64) as usize, 0);
    map
}

/// A header with the records of its pax header.
struct Entry {
    header: Header,
    records: Vec<u8>,
}

impl Entry {
    fn new(file: &Attributes, path: &[u8]) -> Entry {
        let mut entry = Entry { header: Header([0; BLOCK]), records: Vec::new() };
        let header = &mut entry.header;
        header.set(MAGIC, USTAR);
        header.set_number(MODE, u64::from(file.mode & 0o7777));
        header.0[TYPE] = match file.kind {
            FileKind::Character => b'3',
            FileKind::Block => b'4',
            FileKind::Directory => b'5',
            FileKind::Fifo => b'6',
            _ => b'0',
        };
        entry.set_text(NAME, b"path", path);
        for (field, key, id) in [(UID, "uid", file.uid), (GID, "gid", file.gid)] {
            if !entry.header.set_number(field, u64::from(id)) {
                entry.add(key.as_bytes(), id.to_string().as_bytes());
            }
        }
        let seconds = file.modified_ns.div_euclid(1_000_000_000);
        let is_plain = u64::try_from(seconds).is_ok_and(|seconds| entry.header.set_number(MTIME, seconds));
        if !is_plain || file.modified_ns % 1_000_000_000 != 0 {
            entry.add(b"mtime", time_text(file.modified_ns).as_bytes());
        }
        entry.add(b"atime", time_text(file.accessed_ns).as_bytes());
        entry.set_size(0);
        entry
    }

    fn add(&mut self, key: &[u8], value: &[u8]) {
        self.records.extend(record(key, value));
    }

    fn set_text(&mut self, field: crate::tar::Field, key: &[u8], text: &[u8]) {
        self.header.set(field, text);
        if text.len() > field.1 || !text.is_ascii() {
            self.add(key, text);
        }
    }

    fn link_to(&mut self, target: &[u8], kind: u8) {
        self.header.0[TYPE] = kind;
        self.set_text(LINK, b"linkpath", target);
    }

    fn set_device(&mut self, file: &Attributes) {
        let device = u64::from(file.device);
        self.header.set_number(MAJOR, u64::from(libc::major(device)));
        self.header.set_number(MINOR, u64::from(libc::minor(device)));
    }

    fn set_size(&mut self, bytes: u64) {
        if !self.header.set_number(SIZE, bytes) {
            self.add(b"size", bytes.to_string().as_bytes());
        }
    }

    fn add_xattr(&mut self, name: &[u8], value: &[u8]) {
        // Access lists in their own form, which more programs read.
        let list = LISTS.iter().find(|(_, attribute)| attribute.as_bytes() == name);
        if let Some(((key, _), text)) = list.zip(acl::to_text(value)) {
            return self.add(key.as_bytes(), text.as_bytes());
        }
        let mut key = b"SCHILY.xattr.".to_vec();
        for &byte in name {
            match byte {
                b'%' => key.extend_from_slice(b"%25"),
                // It would end the key.
                b'=' => key.extend_from_slice(b"%3D"),
                _ => key.push(byte),
            }
        }
        self.add(&key, value);
    }

    fn set_sparse(&mut self, path: &[u8], length: u64) {
        self.add(b"GNU.sparse.major", b"1");
        self.add(b"GNU.sparse.minor", b"0");
        self.add(b"GNU.sparse.name", path);
        self.add(b"GNU.sparse.realsize", length.to_string().as_bytes());
    }

    fn bytes(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !self.records.is_empty() {
            let mut pax = Header([0; BLOCK]);
            pax.set(MAGIC, USTAR);
            pax.set(NAME, b"./PaxHeaders/entry");
            pax.set_number(MODE, 0o644);
            pax.set_number(UID, 0);
            pax.set_number(GID, 0);
            pax.set_number(MTIME, 0);
            pax.set_number(SIZE, self.records.len() as u64);
            pax.0[TYPE] = b'x';
            pax.seal();
            bytes.extend(pax.0);
            bytes.extend(&self.records);
            bytes.resize(bytes.len() + padding(self.records.len() as u64) as usize, 0);
        }
        self.header.seal();
        bytes.extend(self.header.0);
        bytes
    }
}
