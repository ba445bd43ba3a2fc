//! The engine next to the model: runs the same calls on both, and compares the results.

use super::{ATTRIBUTES, At, Content, Counts, File, FileType, Model, ModelCall, SLOTS, USERS};
use crate::machine::{Clock, Machine, Watched};
use engine::format::FileKind;
use engine::{AttachOptions, Node};
use posix::{Caller, Credentials, OpenFile};
use std::collections::BTreeSet;

const IMAGE_BYTES: u64 = 48 << 20;
/// Calls between comparisons of the whole tree.
const COMPARE_EVERY: usize = 500;

/// A machine on which sequences of calls run.
pub struct World {
    machine: Machine,
    empty: Vec<u8>,
}

impl Default for World {
    fn default() -> World {
        let machine = Machine::new(IMAGE_BYTES, AttachOptions::default(), Clock::leaked());
        let empty = machine.bytes();
        World { machine, empty }
    }
}

type Thread<'f> = engine::Thread<'f, Watched>;

/// A result, or a description of the failure.
type Checked<T> = Result<T, String>;

fn errno<T>(result: posix::Result<T>) -> Result<T, i32> {
    result.map_err(|errno| errno.0)
}

fn caller<'t, 'f>(thread: &'t Thread<'f>, user: u8) -> Caller<'t, 'f, Watched> {
    let (uid, gid, groups) = USERS[user as usize];
    Caller::new(thread, Credentials::user(uid, gid, groups))
}

impl World {
    /// Runs calls on an empty file system. An error has the index of the failed call.
    pub fn run(&mut self, ops: &[ModelCall]) -> Result<Counts, (usize, String)> {
        self.machine.restore(&self.empty);
        let mut model = Model::default();
        let mut counts = Counts::default();
        let mut next = 0;
        while next < ops.len() {
            let (fs, report) = self.machine.attach().map_err(|error| (next, format!("attach: {error}")))?;
            if report.damaged + report.flipped > 0 {
                return Err((next, format!("recovery finds damage: {report:?}")));
            }
            {
                let thread = fs.enter().map_err(|error| (next, format!("enter: {error}")))?;
                let mut session = Session { thread: &thread, slots: [const { None }; SLOTS] };
                next = session.run(&mut model, ops, next, &mut counts)?;
                if matches!(ops.get(next - 1), Some(ModelCall::Crash)) {
                    continue;
                }
                session.close_all();
            }
            let at = next.min(ops.len()) - 1;
            fs.detach_last().map_err(|error| (at, format!("detach: {error}")))?;
            let checked = self.machine.check(None);
            if !checked.findings.is_empty() {
                return Err((at, format!("after a detach fsck finds\n{checked}")));
            }
        }
        Ok(counts)
    }
}

/// The time from an attach to the next detach or crash.
struct Session<'t, 'f> {
    thread: &'t Thread<'f>,
    slots: [Option<OpenFile>; SLOTS],
}

impl<'t, 'f> Session<'t, 'f> {
    /// Runs calls from `start` on, up to and including one that ends the session, which runs in the
    /// model only. Returns the index at which to continue.
    fn run(
        &mut self,
        model: &mut Model,
        ops: &[ModelCall],
        start: usize,
        counts: &mut Counts,
    ) -> Result<usize, (usize, String)> {
        self.compare(model).map_err(|what| (start.min(ops.len() - 1), what))?;
        counts.comparisons += 1;
        for (index, op) in ops.iter().enumerate().skip(start) {
            if matches!(op, ModelCall::Detach | ModelCall::Crash) {
                let _ = model.apply(op);
                match op {
                    ModelCall::Crash => counts.crashes += 1,
                    _ => counts.detaches += 1,
                }
                return Ok(index + 1);
            }
            // Ranks and paths are those before the call.
            let before = Paths::of(model, op);
            let Some(expected) = model.apply(op) else { continue };
            let found = self.perform(op, &before, model).map_err(|what| (index, what))?;
            // A rename may be refused for several reasons at once; which error it returns is
            // unspecified.
            let both_refused = matches!(op, ModelCall::Rename { .. }) && found.is_err() && expected.is_err();
            if found != expected && !both_refused {
                return Err((index, format!("it returns {found:?}, expected {expected:?}")));
            }
            counts.calls += 1;
            counts.refused += found.is_err() as u64;
            if index % COMPARE_EVERY == 0 {
                self.compare(model).map_err(|what| (index, what))?;
                counts.comparisons += 1;
            }
        }
        self.compare(model).map_err(|what| (ops.len() - 1, what))?;
        Ok(ops.len())
    }

    fn close_all(&mut self) {
        for slot in &mut self.slots {
            if let Some(file) = slot.take() {
                caller(self.thread, 0).opens().close(&file);
            }
        }
    }

    /// The node at a path, with a reference.
    fn walk(&self, path: &[&str]) -> Checked<Node> {
        let mut node = self.thread.root().map_err(|error| format!("root: {error}"))?;
        for name in path {
            let next = self.thread.lookup(node, name.as_bytes());
            self.thread.release(node, 1);
            node = next.map_err(|error| format!("{name} of {path:?} is not found: {error}"))?;
        }
        Ok(node)
    }

    fn in_directory<T>(&self, path: &[&str], call: impl FnOnce(Node) -> T) -> Checked<T> {
        let node = self.walk(path)?;
        let result = call(node);
        self.thread.release(node, 1);
        Ok(result)
    }

    /// `in_directory`, with the file of a name in it.
    fn on_file<T>(&self, path: &[&str], at: At, call: impl FnOnce(Node) -> Result<T, i32>) -> Checked<Result<T, i32>> {
        self.in_directory(path, |directory| match self.thread.lookup(directory, at.name().as_bytes()) {
            Err(error) => Err(error.errno()),
            Ok(node) => {
                let result = call(node);
                self.thread.release(node, 1);
                result
            }
        })
    }

    fn perform(&mut self, op: &ModelCall, paths: &Paths, model: &Model) -> Checked<Result<(), i32>> {
        let (one, other) = (&paths.0[..], &paths.1[..]);
        let thread = self.thread;
        match *op {
            ModelCall::Create { user, at, mode } => self.in_directory(one, |directory| {
                let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
                let opened = caller(thread, user).opens().open_name(directory, at.name().as_bytes(), flags, mode, 0);
                errno(opened).map(|opened| caller(thread, user).opens().close(&opened.file))
            }),
            ModelCall::Mkdir { user, at, mode } => self.in_directory(one, |directory| {
                errno(caller(thread, user).mkdir(directory, at.name().as_bytes(), mode, 0)).map(drop)
            }),
            ModelCall::Fifo { user, at } => self.in_directory(one, |directory| {
                let made = caller(thread, user).mknod(directory, at.name().as_bytes(), libc::S_IFIFO | 0o644, 0, 0);
                errno(made).map(drop)
            }),
            ModelCall::Symlink { user, at, length } => self.in_directory(one, |directory| {
                let target = vec![b'x'; length as usize];
                errno(caller(thread, user).symlink(&target, directory, at.name().as_bytes())).map(drop)
            }),
            ModelCall::Link { user, from, to } => self.on_file(one, from, |node| {
                let linked = self.in_directory(other, |directory| {
                    errno(caller(thread, user).link(node, directory, to.name().as_bytes(), false))
                });
                linked.unwrap_or(Err(-1))
            }),
            ModelCall::Unlink { user, at } => {
                self.in_directory(one, |directory| errno(caller(thread, user).unlink(directory, at.name().as_bytes())))
            }
            ModelCall::Rmdir { user, at } => {
                self.in_directory(one, |directory| errno(caller(thread, user).rmdir(directory, at.name().as_bytes())))
            }
            ModelCall::Rename { user, from, to, flags } => {
                let there = self.walk(other)?;
                let renamed = self.in_directory(one, |here| {
                    let (from, to) = ((here, from.name().as_bytes()), (there, to.name().as_bytes()));
                    errno(caller(thread, user).rename(from, to, flags))
                });
                thread.release(there, 1);
                renamed
            }
            ModelCall::Chmod { user, at, mode } => self.on_file(one, at, |node| {
                let is_directory = errno(caller(thread, 0).stat(node))?.kind == FileKind::Directory;
                let mode = if is_directory { mode } else { mode & 0o777 };
                errno(caller(thread, user).chmod(node, mode)).map(drop)
            }),
            ModelCall::Chown { at, uid, gid } => {
                self.on_file(one, at, |node| errno(caller(thread, 0).chown(node, Some(uid), Some(gid))).map(drop))
            }
            ModelCall::Open { user, at, slot } => self.open(one, user, at, slot),
            ModelCall::SetAttribute { user, at, key, length, flags } => self.on_file(one, at, |node| {
                let name = ATTRIBUTES[key as usize % ATTRIBUTES.len()].as_bytes();
                errno(caller(thread, user).xattrs().set_attribute(node, name, &vec![key; length as usize], flags))
            }),
            ModelCall::RemoveAttribute { user, at, key } => self.on_file(one, at, |node| {
                let name = ATTRIBUTES[key as usize % ATTRIBUTES.len()].as_bytes();
                errno(caller(thread, user).xattrs().remove_attribute(node, name))
            }),
            ModelCall::Stat { at } => self.stat(one, at, model),
            ModelCall::Flags { user, at, flags } => {
                self.on_file(one, at, |node| errno(caller(thread, user).set_flag_bits(node, flags)))
            }
            ModelCall::List { directory } => {
                let number = model.directory(directory);
                self.in_directory(one, |node| self.compare_names(node, &model.files[&number]))?.map(Ok)
            }
            _ => self.perform_open(op, model),
        }
    }

    fn open(&mut self, path: &[&str], user: u8, at: At, slot: u8) -> Checked<Result<(), i32>> {
        let opened = self.in_directory(path, |directory| {
            errno(caller(self.thread, user).opens().open_name(directory, at.name().as_bytes(), libc::O_RDWR, 0, 0))
        })?;
        Ok(opened.map(|opened| self.keep(slot, opened.file)))
    }

    fn stat(&mut self, path: &[&str], at: At, model: &Model) -> Checked<Result<(), i32>> {
        let found = self.on_file(path, at, |node| errno(caller(self.thread, 0).stat(node)))?;
        match (found, model.find(at)) {
            (Ok(stat), Some(number)) => compare_stat(&stat, &model.files[&number]).map(Ok),
            (found, _) => Ok(found.map(drop)),
        }
    }

    fn keep(&mut self, slot: u8, file: OpenFile) {
        if file.kind() != FileKind::Regular {
            caller(self.thread, 0).opens().close(&file);
        } else if let Some(before) = self.slots[slot as usize].replace(file) {
            caller(self.thread, 0).opens().close(&before);
        }
    }

    /// Calls on open files.
    fn perform_open(&mut self, op: &ModelCall, model: &Model) -> Checked<Result<(), i32>> {
        let root = caller(self.thread, 0);
        let (ModelCall::Close { slot }
        | ModelCall::Write { slot, .. }
        | ModelCall::Append { slot, .. }
        | ModelCall::Truncate { slot, .. }
        | ModelCall::Allocate { slot, .. }
        | ModelCall::Read { slot, .. }) = *op
        else {
            return Err(format!("{op:?} is not a call on an open file"));
        };
        let Some(file) = &self.slots[slot as usize] else { return Err("the file is not open".to_owned()) };
        Ok(match *op {
            ModelCall::Write { offset, length, byte, .. } => {
                let bytes = vec![byte; length as usize];
                whole(root.data().write_at(file, offset as i64, &bytes), bytes.len())
            }
            ModelCall::Append { length, byte, .. } => {
                let size = errno(root.stat(file.node())).map_or(0, |stat| stat.size_bytes);
                let bytes = vec![byte; length as usize];
                whole(root.data().write_at(file, size as i64, &bytes), bytes.len())
            }
            ModelCall::Truncate { length, .. } => errno(root.data().truncate_open(file, length as i64)),
            ModelCall::Allocate { mode, offset, length, .. } => {
                errno(root.data().allocate(file, mode, offset as i64, length as i64))
            }
            ModelCall::Read { offset, length, .. } => {
                let mut bytes = vec![0xee; length as usize];
                let count = errno(root.data().read_at(file, offset as i64, &mut bytes));
                let number = model.slots[slot as usize].unwrap_or_default();
                let expected = model.files[&number].content.read(offset as u64, length as u64);
                match count {
                    Ok(count) if bytes[..count] != expected[..] => {
                        return Err(format!("reading at {offset} returns wrong bytes ({count} of {})", expected.len()));
                    }
                    count => count.map(drop),
                }
            }
            _ => {
                root.opens().close(file);
                self.slots[slot as usize] = None;
                Ok(())
            }
        })
    }

    /// Compares everything that is reachable, and the open files.
    fn compare(&self, model: &Model) -> Checked<()> {
        let root = self.walk(&[])?;
        let mut seen = BTreeSet::new();
        let compared = self.compare_below(root, 0, 0, model, &mut seen);
        self.thread.release(root, 1);
        compared?;
        for (slot, number) in self.slots.iter().zip(model.slots) {
            match (slot, number) {
                (Some(file), Some(number)) => self.compare_file(file.node(), &model.files[&number])?,
                (None, None) => {}
                _ => return Err("a file is open on one side only".to_owned()),
            }
        }
        Ok(())
    }

    fn compare_below(
        &self,
        node: Node,
        number: usize,
        parent: usize,
        model: &Model,
        seen: &mut BTreeSet<usize>,
    ) -> Checked<()> {
        let file = &model.files[&number];
        if seen.insert(number) {
            self.compare_file(node, file).map_err(|what| format!("{:?}: {what}", file.kind))?;
        }
        if file.kind != FileType::Directory {
            return Ok(());
        }
        let _ = parent;
        self.compare_names(node, file).map_err(|what| format!("{:?}: {what}", model.path(number)))?;
        for (name, child) in &file.entries {
            let below = self.thread.lookup(node, name.as_bytes());
            let below = below.map_err(|error| format!("{:?}/{name}: {error}", model.path(number)))?;
            let compared = self.compare_below(below, *child, number, model, seen);
            if model.files[child].kind == FileType::Directory && self.thread.parent(below) != Ok(node.number) {
                self.thread.release(below, 1);
                return Err(format!("`..` of {name} is {:?}", self.thread.parent(below)));
            }
            self.thread.release(below, 1);
            compared.map_err(|what| format!("{name}: {what}"))?;
        }
        Ok(())
    }

    fn compare_names(&self, node: Node, file: &File) -> Checked<()> {
        let mut names = Vec::new();
        let done = self.thread.read_directory(node, 0, &mut Default::default(), &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        });
        done.map_err(|error| format!("readdir: {error}"))?;
        names.sort_unstable();
        let expected: Vec<&str> = file.entries.keys().copied().collect();
        if names == expected { Ok(()) } else { Err(format!("it lists {names:?}, expected {expected:?}")) }
    }

    fn compare_file(&self, node: Node, file: &File) -> Checked<()> {
        let root = caller(self.thread, 0);
        let stat = errno(root.stat(node)).map_err(|errno| format!("stat: {errno}"))?;
        compare_stat(&stat, file)?;
        if root.flag_bits(node).unwrap_or(0) != file.flags {
            return Err(format!("its flags are {:?}, expected {:#x}", stat.flags, file.flags));
        }
        match file.kind {
            FileType::File => self.compare_content(node, &file.content)?,
            FileType::Symlink => {
                let mut target = vec![0; 4096];
                let length = errno(root.readlink(node, &mut target)).map_err(|errno| format!("readlink: {errno}"))?;
                if target[..length] != file.content.read(0, 4096)[..] {
                    return Err("its target differs".to_owned());
                }
            }
            _ => {}
        }
        for name in ATTRIBUTES {
            let mut value = vec![0; 4096];
            let found = self.thread.files().xattr(node, name.as_bytes(), &mut value);
            let found = found.ok().map(|length| &value[..length]);
            if found != file.attributes.get(name).map(|value| &value[..]) {
                return Err(format!("its attribute {name} differs"));
            }
        }
        Ok(())
    }

    fn compare_content(&self, node: Node, content: &Content) -> Checked<()> {
        // Blocks far apart are compared at their edges.
        let mut at = 0;
        let mut bytes = vec![0; 64 << 10];
        while at < content.size {
            let count =
                self.thread.files().read(node, at, &mut bytes).map_err(|error| format!("read at {at}: {error}"))?;
            if bytes[..count] != content.read(at, bytes.len() as u64)[..] {
                return Err(format!("its bytes from {at} on differ"));
            }
            if count == 0 {
                return Err(format!("it ends at {at}"));
            }
            at += count as u64;
        }
        Ok(())
    }
}

fn whole(written: posix::Result<usize>, length: usize) -> Result<(), i32> {
    match errno(written)? {
        count if count == length => Ok(()),
        _ => Err(-1),
    }
}

fn compare_stat(stat: &engine::Attributes, file: &File) -> Checked<()> {
    let kind = match file.kind {
        FileType::Directory => FileKind::Directory,
        FileType::File => FileKind::Regular,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
    };
    // The size of a directory is unspecified.
    let size = if file.kind == FileType::Directory { 0 } else { stat.size_bytes };
    let found = (stat.kind, stat.mode & 0o7777, stat.uid, stat.gid, stat.links, size);
    let expected = (kind, file.mode, file.uid, file.gid, file.links, file.content.size);
    if found == expected { Ok(()) } else { Err(format!("stat returns {found:?}, expected {expected:?}")) }
}

/// Paths of a call's directories, as they are before the call.
struct Paths(Vec<&'static str>, Vec<&'static str>);

impl Paths {
    fn of(model: &Model, op: &ModelCall) -> Paths {
        let path = |rank: u8| model.path(model.directory(rank));
        match *op {
            ModelCall::Link { from, to, .. } | ModelCall::Rename { from, to, .. } => {
                Paths(path(from.directory), path(to.directory))
            }
            ModelCall::Create { at, .. }
            | ModelCall::Mkdir { at, .. }
            | ModelCall::Fifo { at, .. }
            | ModelCall::Symlink { at, .. }
            | ModelCall::Unlink { at, .. }
            | ModelCall::Rmdir { at, .. }
            | ModelCall::Chmod { at, .. }
            | ModelCall::Chown { at, .. }
            | ModelCall::Open { at, .. }
            | ModelCall::SetAttribute { at, .. }
            | ModelCall::RemoveAttribute { at, .. }
            | ModelCall::Flags { at, .. }
            | ModelCall::Stat { at } => Paths(path(at.directory), Vec::new()),
            ModelCall::List { directory } => Paths(path(directory), Vec::new()),
            _ => Paths(Vec::new(), Vec::new()),
        }
    }
}
