//! DirectFS as a system of experiments: the calls of its POSIX layer, each on the same path as a
//! program's call.

use crate::calls::{Calls, Handle, System};
use crate::multicore::record;
use engine::format::FileKind;
use engine::{Attributes, DirectoryHint, Fs, Node, Thread};
use pmem::{Direct, Memory};
use posix::path::{LastLink, Outcome, PathBuffer, WalkStart};
use posix::{CachedReference, Caller, Credentials, Errno, OpenFile, Result, Want};
use std::cell::{Cell, RefCell};

const ROOT: Credentials<'static> = Credentials::user(0, 0, &[]);
/// Maximum depth of directories.
const DEPTH_MAX: usize = 1 << 20;
/// Invalid entries of a directory from which on they are reclaimed (DirectFS, III-G).
const INVALID_MAX: u32 = 100;

/// An attached image.
pub struct DirectFs<'f, M: Memory = Direct>(pub &'f Fs<M>);

/// A thread's session. Handles belong to the session.
pub struct Session<'f, M: Memory = Direct> {
    thread: Thread<'f, M>,
    root: Node,
    parent: CachedReference,
    buffer: RefCell<Box<PathBuffer>>,
    files: RefCell<Files>,
    /// Names that this session removed and that wait for the collecting thread; none if the engine
    /// collects by itself.
    invalid: Option<Cell<u32>>,
}

#[derive(Default)]
struct Files {
    open: Vec<Option<OpenFile>>,
    free: Vec<Handle>,
}

impl<M: Memory> System for DirectFs<'_, M> {
    type Session<'s>
        = Session<'s, M>
    where
        Self: 's;

    fn session(&self) -> Result<Session<'_, M>> {
        let thread = self.0.enter()?;
        let root = thread.root()?;
        Ok(Session {
            thread,
            root,
            parent: CachedReference::new(),
            buffer: RefCell::default(),
            files: RefCell::default(),
            invalid: None,
        })
    }
}

impl<M: Memory> DirectFs<'_, M> {
    /// A session of the paper's design, for [`Ablation::as_printed`](engine::Ablation): it keeps no
    /// parent between calls, and a collecting thread reclaims what it removes.
    pub fn session_as_printed(&self) -> Result<Session<'_, M>> {
        let mut session = self.session()?;
        session.invalid = Some(Cell::new(0));
        Ok(session)
    }
}

impl<M: Memory> Drop for Session<'_, M> {
    fn drop(&mut self) {
        for file in self.files.borrow_mut().open.drain(..).flatten() {
            Caller::new(&self.thread, ROOT).opens().close(&file);
        }
        self.parent.release(&self.thread);
        self.thread.release(self.root, 1);
    }
}

/// Paths start at the root and never leave the image.
fn inside<T>(outcome: Outcome<T>) -> Result<T> {
    match outcome {
        Outcome::Inside(found) => Ok(found),
        Outcome::Left(_) => Err(Errno::EXDEV),
    }
}

impl<'f, M: Memory> Session<'f, M> {
    fn caller(&self) -> Caller<'_, 'f, M> {
        let caller = Caller::new(&self.thread, ROOT);
        if self.invalid.is_some() { caller } else { caller.with_parent(&self.parent) }
    }

    /// After the removal of a name: the collecting thread's work, once enough names were removed.
    /// It runs here, but on no recording, since in the paper it has a processor of its own.
    fn removed(&self, path: &[u8]) -> Result<()> {
        let Some(invalid) = &self.invalid else { return Ok(()) };
        invalid.set(invalid.get() + 1);
        if invalid.get() < INVALID_MAX {
            return Ok(());
        }
        invalid.set(0);
        record::beside(|| self.collect(path))
    }

    /// Collects what was removed in the directory of a path.
    fn collect(&self, path: &[u8]) -> Result<()> {
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let collected = self.at(&path[..end.max(1)], LastLink::Follow, |node| Ok(self.thread.collect_garbage(node)?));
        match collected {
            // The path is another one by now.
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(()),
            done => done,
        }
    }

    fn walk_start(&self) -> WalkStart {
        WalkStart { root: self.root, start: self.root, can_leave: false }
    }

    fn at<T>(&self, path: &[u8], last: LastLink, call: impl FnOnce(Node) -> Result<T>) -> Result<T> {
        let buffer = &mut self.buffer.borrow_mut();
        self.caller().at_path(&self.walk_start(), path, last, buffer, call).and_then(inside)
    }

    fn with<T>(&self, handle: Handle, call: impl FnOnce(&OpenFile) -> Result<T>) -> Result<T> {
        call(self.files.borrow().open.get(handle as usize).and_then(Option::as_ref).ok_or(Errno::EBADF)?)
    }

    /// The name of a directory in another one.
    fn name_in(&self, directory: u64, child: u64) -> Result<Vec<u8>> {
        let node = self.thread.node(directory, None)?;
        let mut name = None;
        let read = self.thread.read_directory(node, 0, &mut DirectoryHint::default(), &mut |entry| {
            if entry.number == child {
                name = Some(entry.name.to_vec());
            }
            name.is_none()
        });
        self.thread.release(node, 1);
        read?;
        name.ok_or(Errno::ENOENT)
    }
}

impl<M: Memory> Calls for Session<'_, M> {
    fn open(&self, path: &[u8], flags: i32, mode: u32) -> Result<Handle> {
        let buffer = &mut self.buffer.borrow_mut();
        let opened =
            self.caller().opens().open_path(&self.walk_start(), path, flags, (mode, 0), buffer).and_then(inside)?;
        let files = &mut *self.files.borrow_mut();
        let handle = files.free.pop().unwrap_or_else(|| {
            files.open.push(None);
            files.open.len() as Handle - 1
        });
        files.open[handle as usize] = Some(opened.file);
        Ok(handle)
    }

    fn close(&self, file: Handle) -> Result<()> {
        let files = &mut *self.files.borrow_mut();
        let open = files.open.get_mut(file as usize).and_then(Option::take).ok_or(Errno::EBADF)?;
        files.free.push(file);
        self.caller().opens().close(&open);
        Ok(())
    }

    fn read(&self, file: Handle, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.with(file, |file| self.caller().data().read_at(file, offset as i64, into))
    }

    fn write(&self, file: Handle, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.with(file, |file| self.caller().data().write_at(file, offset as i64, bytes))
    }

    fn append(&self, file: Handle, bytes: &[u8]) -> Result<usize> {
        self.with(file, |file| {
            let end = self.caller().stat(file.node())?.size_bytes;
            self.caller().data().write_at(file, end as i64, bytes)
        })
    }

    fn truncate(&self, file: Handle, length: u64) -> Result<()> {
        self.with(file, |file| self.caller().data().truncate_open(file, length as i64))
    }

    fn sync_file(&self, file: Handle) -> Result<()> {
        self.with(file, |file| Ok(self.thread.sync(file.node())?))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.thread.sync_all()?)
    }

    #[inline]
    fn stat(&self, path: &[u8]) -> Result<Attributes> {
        let buffer = &mut self.buffer.borrow_mut();
        self.caller().stat_path(&self.walk_start(), path, LastLink::Follow, buffer).and_then(inside)
    }

    fn stat_link(&self, path: &[u8]) -> Result<Attributes> {
        let buffer = &mut self.buffer.borrow_mut();
        self.caller().stat_path(&self.walk_start(), path, LastLink::Stay, buffer).and_then(inside)
    }

    fn access(&self, path: &[u8], mode: u32) -> Result<()> {
        let buffer = &mut self.buffer.borrow_mut();
        self.caller().access_path(&self.walk_start(), path, LastLink::Follow, Want(mode & 7), buffer).and_then(inside)
    }

    fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        let buffer = &mut self.buffer.borrow_mut();
        self.caller().mkdir_path(&self.walk_start(), path, mode, 0, buffer).and_then(inside)
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.caller().unlink_path(&self.walk_start(), path, &mut self.buffer.borrow_mut()).and_then(inside)?;
        self.removed(path)
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.caller().rmdir_path(&self.walk_start(), path, &mut self.buffer.borrow_mut()).and_then(inside)?;
        self.removed(path)
    }

    fn rename(&self, from: &[u8], to: &[u8], flags: u32) -> Result<()> {
        let place = self.walk_start();
        let renamed = self.caller().rename_path((&place, from), (&place, to), flags, &mut self.buffer.borrow_mut());
        renamed.and_then(inside)?;
        self.removed(from)
    }

    fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let buffer = &mut self.buffer.borrow_mut();
        let file = self.caller().paths().resolve(&self.walk_start(), from, LastLink::Stay, buffer).and_then(inside)?;
        self.caller().link_path(file.node(), false, &self.walk_start(), to, buffer).and_then(inside)
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        let buffer = &mut self.buffer.borrow_mut();
        self.caller().symlink_path(target, &self.walk_start(), path, buffer).and_then(inside)
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.at(path, LastLink::Stay, |node| {
            let mut target = vec![0; 4096];
            let length = self.caller().readlink(node, &mut target)?;
            target.truncate(length);
            Ok(target)
        })
    }

    fn chmod(&self, path: &[u8], mode: u32) -> Result<()> {
        self.at(path, LastLink::Follow, |node| self.caller().chmod(node, mode).map(drop))
    }

    fn read_directory(&self, path: &[u8], visit: &mut dyn FnMut(&[u8], u64)) -> Result<()> {
        self.at(path, LastLink::Follow, |node| {
            if self.caller().stat(node)?.kind != FileKind::Directory {
                return Err(Errno::ENOTDIR);
            }
            self.thread.read_directory(node, 0, &mut DirectoryHint::default(), &mut |entry| {
                visit(entry.name, entry.number);
                true
            })?;
            Ok(())
        })
    }

    fn path_of(&self, directory: &[u8]) -> Result<Vec<u8>> {
        self.at(directory, LastLink::Follow, |node| {
            let mut names = Vec::new();
            let mut here = node.number;
            while here != self.root.number && names.len() < DEPTH_MAX {
                let child = self.thread.node(here, None)?;
                let above = self.thread.parent(child);
                self.thread.release(child, 1);
                let above = above?;
                names.push(self.name_in(above, here)?);
                here = above;
            }
            let mut path: Vec<u8> = names.iter().rev().flat_map(|name| [b"/", name.as_slice()].concat()).collect();
            if path.is_empty() {
                path.push(b'/');
            }
            Ok(path)
        })
    }

    /// The engine's caches are in the DRAM region. An experiment that needs cold caches attaches
    /// the image again.
    fn drop_caches(&self) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
}
