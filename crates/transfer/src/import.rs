//! A tar archive as a tree of an image.
//!
//! The archive is hostile: its paths are taken apart, and no symbolic link is followed, so nothing
//! outside of the target directory is reached. Lengths and maps are checked before they are used.
//!
//! Invariant: the tree is built in a directory of its own, and moved to its place when it is whole.
//! A failure removes that directory. After a death `image::remove_unfinished` does.
//!
//! Decision: docs/decisions/interfaces.md, "Trees move into place when they are whole".

use crate::acl::{self, LISTS};
use crate::host::is_kept;
use crate::tar::{BLOCK, CHECKSUM, GID, GNU, Header, LINK, MAGIC, MAJOR, MINOR, MODE, MTIME, NAME, PREFIX, SIZE};
use crate::tar::{BadTime, TYPE, UID, padding, records, seconds_ns, time_ns};
use crate::tree::{Facts, Tree, WalkPath, is_on_the_way, joined, names_of};
use crate::{Counts, Result, TransferError, Watch};
use engine::format::{FileKind, NO_ID, TARGET_BYTES_MAX, is_possible_target};
use engine::{Attributes, Fs, Node};
use image::{remove_unfinished, unfinished_name};
use posix::{Errno, NodeRef};
use std::collections::{BTreeMap, HashMap};
use std::io::Read;

/// Bytes read at a time.
const PIECE_BYTES: usize = 1 << 20;
/// The longest header of records, or long name.
const RECORDS_BYTES_MAX: u64 = 16 << 20;
/// The most pieces of a sparse file.
const PIECES_MAX: usize = 1 << 20;
/// The longest map of a sparse file, in bytes.
const MAP_BYTES_MAX: usize = 48 << 20;

/// Reads an archive into a directory of the image, which must exist. Names that exist are replaced,
/// directories are merged.
pub fn import(fs: &Fs, path: &[u8], input: &mut dyn Read, watch: Watch<'_>) -> Result<Counts> {
    let thread = fs.enter().map_err(|error| TransferError::image("enter", b"/", error))?;
    let tree = Tree { thread: &thread };
    let mut target = tree.root()?;
    for name in names_of(path) {
        let found = tree.find(target.node(), name, path)?;
        target = found.ok_or_else(|| TransferError::image("find", path, Errno::ENOENT))?;
    }
    if tree.kind(target.node(), path)? != FileKind::Directory {
        return Err(TransferError::image("import into", path, Errno::ENOTDIR));
    }
    let root = tree.root()?;
    let prepared = remove_unfinished(&thread).and_then(|()| unfinished_name(&thread));
    let stage_name =
        prepared.map_err(|errno| TransferError::image("prepare an import into", b"/", errno))?.into_bytes();
    let now_ns = tables::host::now_ns();
    let stage = tree.make(root.node(), &stage_name, &Facts::plain_directory(now_ns), &stage_name)?;
    let mut importer = Importer {
        tree,
        target: target.node(),
        stage: stage.node(),
        input: Input { input, at: 0 },
        watch,
        counts: Counts::default(),
        last: None,
        directories: HashMap::new(),
        now_ns,
        buffer: vec![0; PIECE_BYTES],
    };
    let imported = importer.read_all().and_then(|()| importer.settle());
    let Importer { tree, counts, directories, last, .. } = importer;
    let top = directories.get(&stage.node().number);
    drop((last, stage));
    let removed = tree.remove(root.node(), &stage_name, &stage_name);
    imported.and(removed)?;
    // Last, because each name that comes or goes changes its times.
    if let Some(top) = top {
        tree.describe_existing(target.node(), top, b"/")?;
    }
    Ok(counts)
}

/// The archive, and how much of it is read.
struct Input<'a> {
    input: &'a mut dyn Read,
    at: u64,
}

impl Input<'_> {
    fn damaged(&self, reason: impl Into<String>) -> TransferError {
        TransferError::Archive { at: self.at, reason: reason.into() }
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < into.len() {
            match self.input.read(&mut into[done..]) {
                Ok(0) => return Err(self.damaged("it ends too early; transfer it again")),
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(TransferError::Input(error)),
            }
        }
        self.at += into.len() as u64;
        Ok(())
    }

    /// The next header; `None`: the archive ends.
    fn header(&mut self) -> Result<Option<Header>> {
        let mut header = Header([0; BLOCK]);
        let is_first = self.at == 0;
        let start = self.at;
        let mut done = 0;
        while done < BLOCK {
            match self.input.read(&mut header.0[done..]) {
                Ok(0) if done == 0 && !is_first => {
                    let reason = "it ends without the mark of an end, so what wrote it may have failed; make it \
                                  again (if it is whole: `(cat ARCHIVE; head -c 1024 /dev/zero) | directfs import IMAGE`)";
                    return Err(TransferError::Archive { at: start, reason: reason.to_owned() });
                }
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(TransferError::Input(error)),
            }
        }
        self.at += done as u64;
        if is_first && let Some(program) = compressed_by(&header.0) {
            let reason = format!("it is compressed: `{program} -dc ARCHIVE | directfs import IMAGE`");
            return Err(TransferError::Archive { at: start, reason });
        }
        if done == BLOCK && header.is_zero() {
            return Ok(None);
        }
        if done < BLOCK || !header.is_whole() {
            let reason = match is_first {
                true => "it is not a tar archive".to_owned(),
                false => "a header is damaged, or the archive ends too early; transfer it again".to_owned(),
            };
            return Err(TransferError::Archive { at: start, reason });
        }
        Ok(Some(header))
    }

    /// What follows a header that describes the next one.
    fn whole(&mut self, header: &Header) -> Result<Vec<u8>> {
        let size = header.number(SIZE).and_then(|size| u64::try_from(size).ok());
        let Some(size) = size.filter(|size| *size <= RECORDS_BYTES_MAX) else {
            return Err(self.damaged("a header of records is longer than 16 MiB"));
        };
        let mut bytes = vec![0; size as usize];
        self.fill(&mut bytes)?;
        self.skip(padding(size))?;
        Ok(bytes)
    }

    fn skip(&mut self, mut bytes: u64) -> Result<()> {
        let mut rest = [0; 8192];
        while bytes > 0 {
            let count = bytes.min(rest.len() as u64);
            self.fill(&mut rest[..count as usize])?;
            bytes -= count;
        }
        Ok(())
    }
}

fn compressed_by(start: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 4] =
        [(b"\x1f\x8b", "gzip"), (b"\xfd7zXZ", "xz"), (b"BZh", "bzip2"), (b"\x28\xb5\x2f\xfd", "zstd")];
    known.iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, program)| *program)
}

/// What headers before a file say about it.
#[derive(Default, Clone)]
struct Extra {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Offsets and lengths of the oldest form of sparse files, whose keys repeat.
    pieces: Vec<u64>,
}

impl Extra {
    fn get(&self, key: &str) -> Option<&[u8]> {
        self.records.get(key.as_bytes()).map(Vec::as_slice).filter(|value| !value.is_empty())
    }

    fn number(&self, key: &str) -> Option<u64> {
        std::str::from_utf8(self.get(key)?).ok()?.parse().ok()
    }

    fn read(&mut self, bytes: &[u8]) -> Option<()> {
        for (key, value) in records(bytes)? {
            if key == b"GNU.sparse.offset" || key == b"GNU.sparse.numbytes" {
                self.pieces.push(std::str::from_utf8(value).ok()?.parse().ok()?);
            }
            self.records.insert(key.to_vec(), value.to_vec());
        }
        Some(())
    }
}

struct Importer<'a, 't, 'f> {
    tree: Tree<'t, 'f>,
    target: Node,
    stage: Node,
    input: Input<'a>,
    watch: Watch<'a>,
    counts: Counts,
    /// The directory of the last entry, and its path: most entries lie in it, or below it.
    last: Option<(Vec<u8>, NodeRef<'t, 'f>)>,
    /// What the archive says about directories, by inode number: set when all names are in them.
    directories: HashMap<u64, Facts>,
    now_ns: i64,
    buffer: Vec<u8>,
}

impl<'t, 'f> Importer<'_, 't, 'f> {
    fn read_all(&mut self) -> Result<()> {
        let mut global = Extra::default();
        let mut extra = global.clone();
        while let Some(header) = self.input.header()? {
            let damaged = "a header of records is damaged";
            match header.0[TYPE] {
                b'x' => {
                    let bytes = self.input.whole(&header)?;
                    extra.read(&bytes).ok_or_else(|| self.input.damaged(damaged))?;
                }
                b'g' => {
                    let bytes = self.input.whole(&header)?;
                    global.read(&bytes).ok_or_else(|| self.input.damaged(damaged))?;
                    extra = global.clone();
                }
                kind @ (b'L' | b'K') => {
                    let mut bytes = self.input.whole(&header)?;
                    bytes.truncate(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
                    let key: &[u8] = if kind == b'L' { b"path" } else { b"linkpath" };
                    extra.records.insert(key.to_vec(), bytes);
                }
                // The label of a volume.
                b'V' => {}
                _ => {
                    self.entry(&header, &extra)?;
                    extra = global.clone();
                }
            }
            if !(self.watch)(self.counts) {
                return Err(TransferError::Stopped);
            }
        }
        Ok(())
    }

    fn entry(&mut self, header: &Header, extra: &Extra) -> Result<()> {
        let named = path_of(header, extra);
        let mut kind = header.0[TYPE];
        // The oldest archives mark directories by a slash.
        if matches!(kind, b'0' | 0) && named.ends_with(b"/") {
            kind = b'5';
        }
        let path = inner_path(&named)?;
        let size = match extra.number("size") {
            Some(size) => size,
            None => header
                .number(SIZE)
                .and_then(|size| u64::try_from(size).ok())
                .ok_or_else(|| self.input.damaged("a size is not a number"))?,
        };
        let content = if matches!(kind, b'0' | 0 | b'7' | b'S') { size } else { 0 };
        let facts = self.facts(header, extra, kind, &named)?;
        self.counts.files += 1;
        if path.is_empty() {
            // The top of the tree itself.
            if facts.kind == FileKind::Directory {
                self.directories.insert(self.stage.number, facts);
                return Ok(());
            }
            return Err(TransferError::entry(&named, "it has no name"));
        }
        let name_at = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let (parents, name) = (&path[..name_at.saturating_sub(1)], &path[name_at..]);
        let parent = self.parent(parents, &named)?;
        if facts.kind == FileKind::Directory {
            self.make_directory(parent, name, facts, &path)?;
            return self.input.skip(size + padding(size));
        }
        let linked = if kind == b'1' { Some(self.linked(header, extra, &named)?) } else { None };
        let existing = self.tree.find(parent, name, &path)?;
        if let Some(existing) = existing {
            if self.tree.kind(existing.node(), &path)? == FileKind::Directory {
                return Err(TransferError::entry(&named, "it would replace a directory of the archive"));
            }
            // GNU tar writes a file that is named twice once more, as a link to itself.
            if linked.as_ref().is_some_and(|linked| linked.node().number == existing.node().number) {
                return self.input.skip(size + padding(size));
            }
            // The later of two entries counts.
            drop(existing);
            self.tree.remove(parent, name, &path)?;
        }
        if let Some(linked) = linked {
            self.tree.link(linked.node(), parent, name, &named)?;
            // pax archives may repeat the content.
            return self.input.skip(size + padding(size));
        }
        let node = self.tree.make(parent, name, &facts, &path)?;
        if facts.kind == FileKind::Regular {
            self.content(header, extra, (kind, content), node.node(), &named)?;
        } else {
            self.input.skip(size + padding(size))?;
        }
        self.tree.describe(node.node(), &facts, &path)
    }

    fn facts(&self, header: &Header, extra: &Extra, kind: u8, path: &[u8]) -> Result<Facts> {
        let bad = |what: &str| TransferError::entry(path, format!("its {what} is not a number"));
        let id = |key, field| {
            match extra.number(key) {
                Some(id) => u32::try_from(id).ok(),
                None => header.number(field).and_then(|id| u32::try_from(id).ok()),
            }
            // To chown(2) that number means "no change".
            .filter(|id| *id != NO_ID)
        };
        let modified_ns = match extra.get("mtime") {
            Some(text) => time_ns(text),
            None => header.number(MTIME).ok_or(BadTime::NotANumber).and_then(seconds_ns),
        };
        let modified_ns = modified_ns.map_err(|bad| TransferError::entry(path, format!("its time is {bad}")))?;
        let accessed_ns = extra.get("atime").map(time_ns).transpose();
        let accessed_ns = accessed_ns.map_err(|bad| TransferError::entry(path, format!("its access time is {bad}")))?;
        let device = |field| header.number(field).and_then(|number| u32::try_from(number).ok());
        let kind = match kind {
            b'0' | 0 | b'7' | b'S' | b'1' => FileKind::Regular,
            b'2' => FileKind::Symlink,
            b'3' => FileKind::Character,
            b'4' => FileKind::Block,
            b'5' | b'D' => FileKind::Directory,
            b'6' => FileKind::Fifo,
            other => {
                let reason =
                    format!("its type {:?} is not supported; make the archive with --format=pax", other as char);
                return Err(TransferError::entry(path, reason));
            }
        };
        let is_device = matches!(kind, FileKind::Character | FileKind::Block);
        let numbers = if is_device { device(MAJOR).zip(device(MINOR)) } else { Some((0, 0)) };
        let (major, minor) = numbers.ok_or_else(|| bad("device number"))?;
        let target = if kind == FileKind::Symlink { link_of(header, extra) } else { Vec::new() };
        if kind == FileKind::Symlink && !(is_possible_target(&target) && target.len() as u64 <= TARGET_BYTES_MAX) {
            let reason = "the target of the symbolic link has 0 or more than 4,095 bytes, or a zero byte";
            return Err(TransferError::entry(path, reason));
        }
        Ok(Facts {
            kind,
            permissions: match kind {
                // No system has others, and archives have anything.
                FileKind::Symlink => 0o777,
                _ => header.number(MODE).ok_or_else(|| bad("mode"))? as u32 & 0o7777,
            },
            uid: id("uid", UID).ok_or_else(|| bad("owner"))?,
            gid: id("gid", GID).ok_or_else(|| bad("group"))?,
            device: libc::makedev(major, minor) as u32,
            modified_ns,
            accessed_ns,
            xattrs: xattrs_of(extra, kind)
                .ok_or_else(|| TransferError::entry(path, "its access control list is damaged"))?,
            target,
        })
    }

    /// The directory at a path, made as far as it is missing.
    fn parent(&mut self, path: &[u8], entry: &[u8]) -> Result<Node> {
        let top = || (Vec::new(), NodeRef::borrowed(self.tree.thread, self.stage));
        let (mut at, mut node) = self.last.take().filter(|last| is_on_the_way(&last.0, path)).unwrap_or_else(top);
        for name in names_of(&path[at.len()..]) {
            if !at.is_empty() {
                at.push(b'/');
            }
            at.extend_from_slice(name);
            node = match self.tree.find(node.node(), name, &at)? {
                Some(found) if self.tree.kind(found.node(), &at)? == FileKind::Directory => found,
                Some(_) => {
                    let reason = format!("{} above it is no directory", String::from_utf8_lossy(&at));
                    return Err(TransferError::entry(entry, reason));
                }
                None => self.tree.make(node.node(), name, &Facts::plain_directory(self.now_ns), &at)?,
            };
        }
        let found = node.node();
        self.last = Some((at, node));
        Ok(found)
    }

    fn make_directory(&mut self, parent: Node, name: &[u8], facts: Facts, path: &[u8]) -> Result<()> {
        let made = match self.tree.find(parent, name, path)? {
            Some(found) if self.tree.kind(found.node(), path)? != FileKind::Directory => {
                return Err(TransferError::entry(path, "it is a directory, and a file of the archive has its name"));
            }
            Some(found) => found,
            None => self.tree.make(parent, name, &facts, path)?,
        };
        self.directories.insert(made.node().number, facts);
        Ok(())
    }

    /// The file to which a hard link leads: one of the archive, or one that the target has already.
    fn linked(&self, header: &Header, extra: &Extra, entry: &[u8]) -> Result<NodeRef<'t, 'f>> {
        let target = link_of(header, extra);
        let inner = inner_path(&target)?;
        let find = |start: Node| -> Result<Option<NodeRef<'t, 'f>>> {
            let mut node = NodeRef::borrowed(self.tree.thread, start);
            for name in names_of(&inner) {
                if self.tree.kind(node.node(), &target)? != FileKind::Directory {
                    return Ok(None);
                }
                let Some(found) = self.tree.find(node.node(), name, &target)? else { return Ok(None) };
                node = found;
            }
            Ok(Some(node))
        };
        let found = match find(self.stage)? {
            None => find(self.target)?,
            found => found,
        };
        let is_file =
            |node: &NodeRef<'t, 'f>| self.tree.kind(node.node(), entry).is_ok_and(|kind| kind != FileKind::Directory);
        found.filter(is_file).ok_or_else(|| {
            let reason =
                format!("it is a link to {:?}, which is no file of the archive", String::from_utf8_lossy(&target));
            TransferError::entry(entry, reason)
        })
    }

    fn content(
        &mut self,
        header: &Header,
        extra: &Extra,
        (kind, size): (u8, u64),
        node: Node,
        path: &[u8],
    ) -> Result<()> {
        let (pieces, length, map_bytes) = match kind {
            b'S' => self.old_map(header, path)?,
            _ if extra.number("GNU.sparse.major") == Some(1) => self.map(extra, size, path)?,
            _ if !extra.pieces.is_empty() || extra.get("GNU.sparse.map").is_some() => listed_map(extra, path)?,
            _ => (vec![(0, size)], size, 0),
        };
        let content = size.checked_sub(map_bytes);
        check_pieces(&pieces, length, content)
            .ok_or_else(|| TransferError::entry(path, "its map of holes is damaged"))?;
        let mut written = 0;
        for (start, bytes) in pieces {
            let (mut at, end) = (start, start + bytes);
            while at < end {
                let count = ((end - at) as usize).min(PIECE_BYTES);
                self.input.fill(&mut self.buffer[..count])?;
                self.tree.write(node, at, &self.buffer[..count], path)?;
                at += count as u64;
                written = at;
                self.counts.bytes += count as u64;
                if !(self.watch)(self.counts) {
                    return Err(TransferError::Stopped);
                }
            }
        }
        if written < length {
            self.tree.set_length(node, length, path)?;
        }
        self.input.skip(padding(size))
    }

    /// The map in front of the content (version 1.0): decimal numbers, a line each, in whole
    /// blocks.
    fn map(&mut self, extra: &Extra, size: u64, path: &[u8]) -> Result<Map> {
        let damaged = || TransferError::entry(path, "its map of holes is damaged");
        let length = extra.number("GNU.sparse.realsize").ok_or_else(damaged)?;
        let (mut text, mut numbers, mut taken) = (Vec::new(), Vec::new(), 0);
        let mut wanted = None;
        while wanted.is_none_or(|wanted: usize| numbers.len() < wanted) {
            let mut block = [0; BLOCK];
            taken += BLOCK as u64;
            if taken > size || text.len() > MAP_BYTES_MAX {
                return Err(damaged());
            }
            self.input.fill(&mut block)?;
            text.extend(block);
            while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
                let line = std::str::from_utf8(&text[..end]).ok().and_then(|line| line.parse::<u64>().ok());
                let number = line.ok_or_else(damaged)?;
                text.drain(..=end);
                match wanted {
                    None if number as usize > PIECES_MAX => return Err(damaged()),
                    None => wanted = Some(number as usize * 2),
                    Some(wanted) if numbers.len() < wanted => numbers.push(number),
                    Some(_) => break,
                }
                if wanted.is_some_and(|wanted| numbers.len() == wanted) {
                    break;
                }
            }
        }
        Ok((pairs(&numbers), length, taken))
    }

    /// The map in GNU's own header, which further blocks may continue.
    fn old_map(&mut self, header: &Header, path: &[u8]) -> Result<Map> {
        use crate::tar::Field;
        let damaged = || TransferError::entry(path, "its map of holes is damaged");
        let mut numbers = Vec::new();
        let mut read = |header: &Header, first: usize, count: usize| -> Option<()> {
            for index in 0..count {
                let at = first + index * 24;
                if header.0[at] == 0 {
                    break;
                }
                for at in [at, at + 12] {
                    numbers.push(u64::try_from(header.number(Field(at, 12))?).ok()?);
                }
            }
            (numbers.len() <= 2 * PIECES_MAX).then_some(())
        };
        read(header, 386, 4).ok_or_else(damaged)?;
        let mut continues = header.0[482] != 0;
        while continues {
            let mut more = Header([0; BLOCK]);
            self.input.fill(&mut more.0)?;
            read(&more, 0, 21).ok_or_else(damaged)?;
            continues = more.0[504] != 0;
        }
        let length = header.number(Field(483, 12)).and_then(|length| u64::try_from(length).ok());
        Ok((pairs(&numbers), length.ok_or_else(damaged)?, 0))
    }

    /// Describes the directories below the top, and moves everything to its place.
    fn settle(&self) -> Result<()> {
        // Before anything is moved.
        self.for_each_pair(&mut |pair, names| names.iter().try_for_each(|name| check_conflict(pair, name)))?;
        self.for_each_pair(&mut |pair, names| self.merge(pair, names))
    }

    /// Visits each directory of the archive that the image has too, from the top down.
    fn for_each_pair(&self, visit: &mut dyn FnMut(&Pair<'_>, &[Staged]) -> Result<()>) -> Result<()> {
        let stat = |node, path: &[u8]| {
            self.tree.thread.stat(node).map_err(|error| TransferError::image("examine", path, error))
        };
        let mut walk = WalkPath::new(b"");
        let mut waiting = vec![(Vec::new(), self.stage.number, stat(self.target, b"/")?, 0)];
        while let Some((name, from, to, depth)) = waiting.pop() {
            let path = walk.enter(depth, &name);
            let from = self.tree.node(from, None, path)?;
            let to = self.tree.node(to.number, Some(to.generation), path)?;
            let mut names = Vec::new();
            for (name, number, kind) in self.tree.names(from.node(), path)? {
                let found = self.tree.find(to.node(), &name, &joined(path, &name))?;
                let existing = found.map(|found| stat(found.node(), path)).transpose()?;
                names.push(Staged { name, number, kind, existing });
            }
            visit(&Pair { from: from.node(), to: to.node(), path }, &names)?;
            waiting.extend(names.into_iter().filter_map(|staged| {
                let existing = staged.existing.filter(|existing| existing.kind == FileKind::Directory)?;
                (staged.kind == FileKind::Directory).then_some((staged.name, staged.number, existing, depth + 1))
            }));
        }
        Ok(())
    }

    /// Moves the names of a directory but for directories that the image has too.
    fn merge(&self, pair: &Pair<'_>, names: &[Staged]) -> Result<()> {
        let caller = self.tree.caller();
        for Staged { name, number, kind, existing } in names {
            let child = joined(pair.path, name);
            if *kind == FileKind::Directory {
                if existing.is_some_and(|existing| existing.kind == FileKind::Directory) {
                    continue;
                }
                self.describe_below(*number, &child)?;
            }
            let moved = caller.rename((pair.from, name), (pair.to, name), 0);
            moved.map_err(|errno| TransferError::image("move into place", &child, errno))?;
        }
        // The top is described when the archive's tree is removed.
        match self.directories.get(&pair.from.number).filter(|_| !pair.path.is_empty()) {
            Some(facts) => self.tree.describe_existing(pair.to, facts, pair.path),
            None => Ok(()),
        }
    }

    /// Sets attributes and times of a directory of the archive and of those in it.
    fn describe_below(&self, top: u64, path: &[u8]) -> Result<()> {
        let mut walk = WalkPath::new(path);
        let mut waiting = vec![(Vec::new(), top, 0)];
        while let Some((name, number, depth)) = waiting.pop() {
            let path = walk.enter(depth, &name);
            let directory = self.tree.node(number, None, path)?;
            let names = self.tree.names(directory.node(), path)?.into_iter();
            let directories = names.filter(|(_, _, kind)| *kind == FileKind::Directory);
            waiting.extend(directories.map(|(name, number, _)| (name, number, depth + 1)));
            if let Some(facts) = self.directories.get(&number) {
                self.tree.describe_existing(directory.node(), facts, path)?;
            }
        }
        Ok(())
    }
}

/// A directory of the archive's tree, and the one of the image into which its names go.
struct Pair<'p> {
    from: Node,
    to: Node,
    path: &'p [u8],
}

/// A name in a directory of the archive's tree, and the image's file of that name.
struct Staged {
    name: Vec<u8>,
    number: u64,
    kind: FileKind,
    existing: Option<Attributes>,
}

/// Refuses what cannot be replaced.
fn check_conflict(pair: &Pair<'_>, staged: &Staged) -> Result<()> {
    let Some(existing) = &staged.existing else { return Ok(()) };
    let is_directory = staged.kind == FileKind::Directory;
    let reason = match existing.kind {
        kind if (kind == FileKind::Directory) == is_directory => return Ok(()),
        FileKind::Directory => "the image has a directory of that name: remove it first",
        _ => "the image has a file of that name, which is no directory: remove it first",
    };
    Err(TransferError::entry(&joined(pair.path, &staged.name), reason))
}

/// Pieces of content (offset and length), length of the file, and bytes of the map before the
/// content.
type Map = (Vec<(u64, u64)>, u64, u64);

fn pairs(numbers: &[u64]) -> Vec<(u64, u64)> {
    numbers.as_chunks::<2>().0.iter().map(|&[start, bytes]| (start, bytes)).collect()
}

/// The map in records (versions 0.0 and 0.1).
fn listed_map(extra: &Extra, path: &[u8]) -> Result<Map> {
    let damaged = || TransferError::entry(path, "its map of holes is damaged");
    let numbers = match extra.get("GNU.sparse.map") {
        Some(map) => {
            let text = std::str::from_utf8(map).map_err(|_| damaged())?;
            text.split(',').map(str::parse).collect::<std::result::Result<Vec<u64>, _>>().map_err(|_| damaged())?
        }
        None => extra.pieces.clone(),
    };
    let length = extra.number("GNU.sparse.size").or(extra.number("GNU.sparse.realsize"));
    Ok((pairs(&numbers), length.ok_or_else(damaged)?, 0))
}

/// Whether pieces ascend inside the file, and are all of the content.
fn check_pieces(pieces: &[(u64, u64)], length: u64, content: Option<u64>) -> Option<()> {
    let (mut end, mut sum) = (0u64, 0u64);
    for &(start, bytes) in pieces {
        if start < end {
            return None;
        }
        end = start.checked_add(bytes)?;
        sum = sum.checked_add(bytes)?;
    }
    (end <= length && Some(sum) == content).then_some(())
}

fn path_of(header: &Header, extra: &Extra) -> Vec<u8> {
    if let Some(path) = extra.get("GNU.sparse.name").or(extra.get("path")) {
        return path.to_vec();
    }
    let (name, prefix) = (header.text(NAME), header.text(PREFIX));
    // GNU's headers have other fields there, and those before POSIX none.
    let has_prefix = header.field(MAGIC).starts_with(b"ustar") && header.field(MAGIC) != GNU && !prefix.is_empty();
    if has_prefix { [prefix, b"/", name].concat() } else { name.to_vec() }
}

fn link_of(header: &Header, extra: &Extra) -> Vec<u8> {
    extra.get("linkpath").map_or_else(|| header.text(LINK).to_vec(), <[u8]>::to_vec)
}

/// A path without slashes at its ends and `.`; `..` is refused.
fn inner_path(path: &[u8]) -> Result<Vec<u8>> {
    let mut found = Vec::with_capacity(path.len());
    for name in names_of(path) {
        if name == b".." {
            return Err(TransferError::entry(path, "it leads out of the archive by `..`"));
        }
        if name.len() > 255 || name.contains(&0) {
            return Err(TransferError::entry(path, "a name in it has more than 255 bytes, or a zero byte"));
        }
        if !found.is_empty() {
            found.push(b'/');
        }
        found.extend_from_slice(name);
    }
    Ok(found)
}

/// Extended attributes, and access lists as text, as GNU tar, star and libarchive write them.
/// `None`: a list is damaged.
fn xattrs_of(extra: &Extra, kind: FileKind) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    const PREFIX: &[u8] = b"SCHILY.xattr.";
    let own = extra.records.iter().filter_map(|(key, value)| {
        let name = unescaped(key.strip_prefix(PREFIX)?);
        is_kept(&name, kind).then(|| (name, value.clone()))
    });
    let mut found: Vec<_> = own.collect();
    for (key, attribute) in LISTS.into_iter().filter(|(_, attribute)| is_kept(attribute.as_bytes(), kind)) {
        if let Some(text) = extra.get(key) {
            found.push((attribute.as_bytes().to_vec(), acl::from_text(text)?));
        }
    }
    Some(found)
}

/// The name of an attribute, in which an archive escapes `=` and `%`. It may be of any bytes.
fn unescaped(mut name: &[u8]) -> Vec<u8> {
    let mut found = Vec::with_capacity(name.len());
    while let Some((&first, rest)) = name.split_first() {
        let escaped = [(&b"%3D"[..], b'='), (b"%25", b'%')].into_iter().find(|(escape, _)| name.starts_with(escape));
        found.push(escaped.map_or(first, |(_, byte)| byte));
        name = escaped.map_or(rest, |(escape, _)| &name[escape.len()..]);
    }
    found
}

const _: () = assert!(CHECKSUM.0 + CHECKSUM.1 == TYPE);
