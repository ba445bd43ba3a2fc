//! The path walk: from a path to a node, or to a directory and a last name, with a permission check
//! on every directory on the way.
//!
//! A walk can leave the mount: through a symbolic link with an absolute target (relative to the
//! process's root, not the mount's), or, if the VFS layer permits it, through `..` at the mount's
//! root. Then the result is [`Outcome::Left`], and the [`PathBuffer`] holds the remaining path.

use crate::caller::{Caller, NodeRef};
use crate::components::Paths;
use engine::format::{FileKind, NAME_BYTES_MAX};
use engine::statistics::Event;
use engine::{Node, Protection};
use pmem::{Direct, Memory};
use tables::{Errno, Result};

/// Maximal bytes of a path including its terminating zero, which is not stored here: a path has
/// fewer bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// Maximal number of symbolic links in one walk.
pub const LINKS_FOLLOWED_MAX: u32 = 40;

/// Start of a walk, and the limit of `..`.
#[derive(Debug, Clone, Copy)]
pub struct WalkStart {
    /// Root of the mount; the caller keeps it referenced.
    pub root: Node,
    /// Start of relative paths: working directory or directory descriptor; the caller keeps it
    /// referenced. A path with a leading slash starts at `root`.
    pub start: Node,
    /// Whether `..` at the root leaves the mount; otherwise it stays there.
    pub can_leave: bool,
}

/// Buffer for the rest of a path after a symbolic link was replaced by its target. Large: keep one
/// per thread, not one per frame.
pub struct PathBuffer {
    bytes: [u8; 2 * PATH_BYTES_MAX],
    start: usize,
}

impl Default for PathBuffer {
    fn default() -> Self {
        PathBuffer::new()
    }
}

impl PathBuffer {
    /// An empty one.
    pub const fn new() -> PathBuffer {
        PathBuffer { bytes: [0; 2 * PATH_BYTES_MAX], start: 2 * PATH_BYTES_MAX }
    }

    /// The rest of the path to walk; after [`Outcome::Left`], the path on which to continue.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn set(&mut self, rest: &[u8]) -> Result<()> {
        let start = self.bytes.len().checked_sub(rest.len()).ok_or(Errno::ENAMETOOLONG)?;
        self.bytes[start..].copy_from_slice(rest);
        self.start = start;
        Ok(())
    }

    /// Drops the walked part: all but the last `remaining` bytes.
    fn keep_last(&mut self, remaining: usize) {
        self.start = self.bytes.len() - remaining;
    }

    /// Prepends a link's target and a slash. The target is read to the front of the buffer and then
    /// moved, so that no second buffer is needed. No slash is added before an empty rest, where it
    /// would require a directory.
    fn prepend(&mut self, read: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<()> {
        let slash = usize::from(self.start < self.bytes.len());
        let room = self.start.checked_sub(slash).ok_or(Errno::ENAMETOOLONG)?;
        let length = read(&mut self.bytes[..room])?;
        if length == 0 {
            return Err(Errno::ENOENT);
        }
        // A target that fills the buffer was truncated.
        if length >= room.min(PATH_BYTES_MAX) {
            return Err(Errno::ENAMETOOLONG);
        }
        let begin = room - length;
        self.bytes.copy_within(..length, begin);
        if slash == 1 {
            self.bytes[begin + length] = b'/';
        }
        self.start = begin;
        Ok(())
    }
}

/// Result of a walk.
#[derive(Debug)]
pub enum Outcome<T> {
    /// A result inside the mount.
    Inside(T),
    /// The path leaves the mount; the buffer holds the rest of it.
    Left(Exit),
}

/// How a path left the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Through a symbolic link: the rest is an absolute path of the process.
    Absolute,
    /// Through `..` at the root: the rest is relative to the parent of the mount point. Empty: that
    /// directory itself.
    AboveRoot,
}

/// Returns an exit to the caller; otherwise evaluates to what is inside.
macro_rules! inside {
    ($outcome:expr) => {
        match $outcome {
            $crate::path::Outcome::Inside(found) => found,
            $crate::path::Outcome::Left(exit) => return Ok($crate::path::Outcome::Left(exit)),
        }
    };
}
pub(crate) use inside;

/// How to treat a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLink {
    /// Follow it.
    Follow,
    /// Return the link itself. (A slash after it still means its target.)
    Stay,
}

/// A name of a directory.
#[derive(Clone, Copy)]
pub struct Name {
    length: u8,
    bytes: [u8; NAME_BYTES_MAX],
}

impl Name {
    fn new(name: &[u8]) -> Result<Name> {
        let mut bytes = [0; NAME_BYTES_MAX];
        bytes.get_mut(..name.len()).ok_or(Errno::ENAMETOOLONG)?.copy_from_slice(name);
        Ok(Name { length: name.len() as u8, bytes })
    }

    /// Its bytes: 1 to 255, no slash, no zero, neither `.` nor `..`.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }
}

/// The last component of a path.
// A name is copied at most twice in a call, and there is no heap.
#[allow(clippy::large_enum_variant)]
pub enum Last {
    /// A name.
    Name(Name),
    /// `.`.
    Dot,
    /// `..`.
    DotDot,
    /// None: the path is the root.
    Root,
}

/// A path resolved up to its last component.
pub struct Parent<'t, 'f, M: Memory = Direct> {
    /// The directory, with search permission.
    pub directory: NodeRef<'t, 'f, M>,
    /// The last component.
    pub last: Last,
    /// Whether a slash follows it.
    pub slash: bool,
}

/// A walk in progress.
struct Walk<'t, 'f, M: Memory> {
    caller: Caller<'t, 'f, M>,
    walk_start: WalkStart,
    current: NodeRef<'t, 'f, M>,
    followed: u32,
}

/// Where one run over components stops.
enum WalkStop<'p, 't, 'f, M: Memory> {
    /// All but the last component are walked; `rest` begins with it, empty if there is none.
    Last { rest: &'p [u8] },
    /// A symbolic link, with what follows it.
    Link { link: NodeRef<'t, 'f, M>, rest: &'p [u8] },
    /// The walk leaves the mount.
    Exit { exit: Exit, rest: &'p [u8] },
}

fn skip_slashes(path: &[u8]) -> &[u8] {
    let slashes = path.iter().take_while(|&&byte| byte == b'/').count();
    &path[slashes..]
}

/// The first component, and what follows it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
    path.split_at(end)
}

impl<'t, 'f, M: Memory> Walk<'t, 'f, M> {
    /// Walks all components but the last.
    fn run<'p>(&mut self, path: &'p [u8]) -> Result<WalkStop<'p, 't, 'f, M>> {
        let mut rest = skip_slashes(path);
        loop {
            let (component, after) = split(rest);
            let next = skip_slashes(after);
            if next.is_empty() {
                return Ok(WalkStop::Last { rest });
            }
            match self.step(component)? {
                WalkStep::At(found) => self.current = found,
                WalkStep::Link(link) => return Ok(WalkStop::Link { link, rest: next }),
                WalkStep::Above => return Ok(WalkStop::Exit { exit: Exit::AboveRoot, rest: next }),
            }
            rest = next;
        }
    }

    /// Walks one component from the current directory.
    fn step(&mut self, component: &[u8]) -> Result<WalkStep<'t, 'f, M>> {
        let here = self.caller.permissions().check_search(self.current.node())?;
        match component {
            b"." => {
                Ok(WalkStep::At(NodeRef::borrowed(self.caller.thread, self.current.node())).keeping(&mut self.current))
            }
            b".." => self.step_up(&here),
            name => {
                if name.len() > NAME_BYTES_MAX {
                    return Err(Errno::ENAMETOOLONG);
                }
                let found = NodeRef::owned(self.caller.thread, self.caller.thread.lookup(self.current.node(), name)?);
                match self.caller.thread.stat(found.node())?.kind {
                    FileKind::Symlink => Ok(WalkStep::Link(found)),
                    _ => Ok(WalkStep::At(found)),
                }
            }
        }
    }

    fn step_up(&mut self, here: &Protection) -> Result<WalkStep<'t, 'f, M>> {
        if here.number == self.walk_start.root.number {
            if self.walk_start.can_leave {
                return Ok(WalkStep::Above);
            }
            return Ok(WalkStep::At(NodeRef::borrowed(self.caller.thread, self.walk_start.root)));
        }
        let parent = self.caller.thread.parent(self.current.node())?;
        Ok(WalkStep::At(NodeRef::owned(self.caller.thread, self.caller.thread.node(parent, None)?)))
    }

    /// Replaces a link by its target in the buffer. `Some` if the target leaves the mount.
    fn expand(&mut self, link: &NodeRef<'t, 'f, M>, buffer: &mut PathBuffer) -> Result<Option<Exit>> {
        self.followed += 1;
        if self.followed > LINKS_FOLLOWED_MAX {
            return Err(Errno::ELOOP);
        }
        buffer.prepend(|room| Ok(self.caller.thread.read_link(link.node(), room)?))?;
        Ok((buffer.rest().first() == Some(&b'/')).then_some(Exit::Absolute))
    }

    /// Ends the walk before the last component.
    fn into_parent(self, rest: &[u8]) -> Result<Outcome<Parent<'t, 'f, M>>> {
        let (component, after) = split(rest);
        if !component.is_empty() {
            self.caller.permissions().check_search(self.current.node())?;
        }
        let last = match component {
            b"" => Last::Root,
            b"." => Last::Dot,
            b".." => Last::DotDot,
            name => Last::Name(Name::new(name)?),
        };
        Ok(Outcome::Inside(Parent { directory: self.current, last, slash: !after.is_empty() }))
    }

    /// Walks to the last component and follows links on the way. The rest (last component and
    /// slashes) is the returned tail of `path`, or in the buffer if the result is `None`.
    fn run_all<'p>(&mut self, path: &'p [u8], buffer: &mut PathBuffer) -> Result<Outcome<Option<&'p [u8]>>> {
        match self.run(path)? {
            WalkStop::Last { rest } => return Ok(Outcome::Inside(Some(rest))),
            WalkStop::Exit { exit, rest } => {
                buffer.set(rest)?;
                return Ok(Outcome::Left(exit));
            }
            WalkStop::Link { link, rest } => {
                buffer.set(rest)?;
                if let Some(exit) = self.expand(&link, buffer)? {
                    return Ok(Outcome::Left(exit));
                }
            }
        }
        self.run_buffer(buffer)
    }

    /// As `run_all`, for the path in the buffer.
    fn run_buffer<'p>(&mut self, buffer: &mut PathBuffer) -> Result<Outcome<Option<&'p [u8]>>> {
        loop {
            let (link, rest) = match self.run(buffer.rest())? {
                WalkStop::Last { rest } => (None, rest.len()),
                WalkStop::Exit { exit, rest } => {
                    let remaining = rest.len();
                    buffer.keep_last(remaining);
                    return Ok(Outcome::Left(exit));
                }
                WalkStop::Link { link, rest } => (Some(link), rest.len()),
            };
            buffer.keep_last(rest);
            let Some(link) = link else { return Ok(Outcome::Inside(None)) };
            if let Some(exit) = self.expand(&link, buffer)? {
                return Ok(Outcome::Left(exit));
            }
        }
    }
}

enum WalkStep<'t, 'f, M: Memory> {
    At(NodeRef<'t, 'f, M>),
    Link(NodeRef<'t, 'f, M>),
    Above,
}

impl<'t, 'f, M: Memory> WalkStep<'t, 'f, M> {
    /// For `.`: the reference to the current directory moves along with the walk.
    fn keeping(self, current: &mut NodeRef<'t, 'f, M>) -> Self {
        match self {
            WalkStep::At(mut same) => {
                core::mem::swap(&mut same, current);
                WalkStep::At(same)
            }
            other => other,
        }
    }
}

impl<'t, 'f, M: Memory> Paths<'_, 't, 'f, M> {
    fn walk(self, walk_start: &WalkStart, path: &[u8]) -> Result<Walk<'t, 'f, M>> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() >= PATH_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        self.caller.thread.count_event(Event::PathWalk);
        let start = if path[0] == b'/' { walk_start.root } else { walk_start.start };
        Ok(Walk {
            caller: *self.caller,
            walk_start: *walk_start,
            current: NodeRef::borrowed(self.caller.thread, start),
            followed: 0,
        })
    }

    /// The directory and last component of a path: for calls that create, remove or rename a name.
    pub fn resolve_parent(
        self,
        walk_start: &WalkStart,
        path: &[u8],
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<Parent<'t, 'f, M>>> {
        let mut walk = self.walk(walk_start, path)?;
        let rest = match inside!(walk.run_all(path, buffer)?) {
            Some(rest) => rest,
            None => buffer.rest(),
        };
        walk.into_parent(rest)
    }

    /// Calls `call` with the directory, the last component (empty: the path is the root) and
    /// whether a slash follows it. As [`Paths::resolve_parent`], but without a lasting reference.
    pub(crate) fn at_last<T>(
        self,
        walk_start: &WalkStart,
        path: &[u8],
        buffer: &mut PathBuffer,
        call: impl FnOnce(Node, &[u8], bool) -> Result<T>,
    ) -> Result<Outcome<T>> {
        let mut walk = self.walk(walk_start, path)?;
        let rest = match inside!(walk.run_all(path, buffer)?) {
            Some(rest) => rest,
            None => buffer.rest(),
        };
        let (component, after) = split(rest);
        if !component.is_empty() {
            self.caller.permissions().check_search(walk.current.node())?;
        }
        call(walk.current.node(), component, !after.is_empty()).map(Outcome::Inside)
    }

    /// The file of a path.
    pub fn resolve(
        self,
        walk_start: &WalkStart,
        path: &[u8],
        last_link: LastLink,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<NodeRef<'t, 'f, M>>> {
        if let Some(found) =
            self.take_fast(walk_start, path, last_link, |file| self.caller.thread.fs().prefetch_attributes(file))
        {
            let (file, _, directory) = found?;
            if self.caller.reports().is_watched() {
                self.caller.reports().record_found(file.node(), directory);
            }
            return Ok(Outcome::Inside(file));
        }
        let (found, directory) = inside!(self.resolve_in(walk_start, path, last_link, buffer)?);
        if self.caller.reports().is_watched() {
            self.caller.reports().record_found(found.node(), directory);
        }
        Ok(Outcome::Inside(found))
    }

    /// The file of a path, and the number of the directory that holds its name.
    pub(crate) fn resolve_in(
        self,
        walk_start: &WalkStart,
        path: &[u8],
        last_link: LastLink,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<(NodeRef<'t, 'f, M>, u64)>> {
        let mut walk = self.walk(walk_start, path)?;
        let mut tail = inside!(walk.run_all(path, buffer)?);
        loop {
            let rest = tail.take().unwrap_or(buffer.rest());
            let (component, after) = split(rest);
            let slash = !after.is_empty();
            if component.is_empty() {
                let number = walk.current.node().number;
                return Ok(Outcome::Inside((walk.current, number)));
            }
            match walk.step(component)? {
                WalkStep::At(found) => {
                    if slash {
                        self.check_directory(found.node())?;
                    }
                    return Ok(Outcome::Inside((found, walk.current.node().number)));
                }
                WalkStep::Above => {
                    buffer.set(b"")?;
                    return Ok(Outcome::Left(Exit::AboveRoot));
                }
                WalkStep::Link(link) if last_link == LastLink::Stay && !slash => {
                    return Ok(Outcome::Inside((link, walk.current.node().number)));
                }
                WalkStep::Link(link) => {
                    // The slash moves behind the target, which must then be a directory.
                    buffer.set(if slash { b"/" } else { b"" })?;
                    if let Some(exit) = walk.expand(&link, buffer)? {
                        return Ok(Outcome::Left(exit));
                    }
                    tail = inside!(walk.run_buffer(buffer)?);
                }
            }
        }
    }

    fn check_directory(self, node: Node) -> Result<()> {
        match self.caller.thread.stat(node)?.kind {
            FileKind::Directory => Ok(()),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Continues from a last component that is a symbolic link to the directory and last component
    /// of its target (open with O_CREAT).
    pub(crate) fn resolve_link(
        self,
        walk_start: &WalkStart,
        parent: Parent<'t, 'f, M>,
        link: &NodeRef<'t, 'f, M>,
        followed: &mut u32,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<Parent<'t, 'f, M>>> {
        let mut walk =
            Walk { caller: *self.caller, walk_start: *walk_start, current: parent.directory, followed: *followed };
        buffer.set(b"")?;
        if let Some(exit) = walk.expand(link, buffer)? {
            return Ok(Outcome::Left(exit));
        }
        inside!(walk.run_buffer(buffer)?);
        *followed = walk.followed;
        walk.into_parent(buffer.rest())
    }

    /// Checks that a directory may be searched, for VFS layers that use it as a working directory.
    pub fn check_enter(self, directory: Node) -> Result<()> {
        self.caller.permissions().check_search(directory).map(drop)
    }
}
