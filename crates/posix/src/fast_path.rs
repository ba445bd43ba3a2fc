//! The fast path of a walk: every component but the last is a plain directory with search
//! permission, and no component on the way gets a reference.
//!
//! Nearly all paths qualify. Others have symbolic links, `..`, a dot or slashes at the end,
//! refusals, or directories whose names must be read first. For these the functions return `None`,
//! and the slow walk of [`crate::path`] starts over and decides the error.
//!
//! One pin of the epoch covers the path: a reference per component would be an atomic change of a
//! line that other threads use. *Reason:* one pin took a stat from 2,006 instructions to 1,476, and
//! a separate routine for names in their main bucket to 1,139; four directories down from 6,445 to
//! 3,654 and 2,617.

use crate::caller::NodeRef;
use crate::components::Paths;
use crate::path::{LastLink, Outcome, PATH_BYTES_MAX, WalkStart};
use crate::path_cache::SearchRights;
use engine::format::{FileKind, NAME_BYTES_MAX};
use engine::text::last_position;
use engine::{Attributes, Error, FileFlags, Fs, Node, Protection, Visit, VisitedFile};
use pmem::Memory;
use tables::{Errno, Result};

/// What a call reads of the file of a path: all attributes, or only its protection, which takes one
/// cache line less.
pub trait FileQuery: Copy {
    /// Prefetches the lines that are needed beyond the first one of the cachelet.
    fn prefetch<M: Memory>(fs: &Fs<M>, cachelet: u32);

    /// Reads it from a file.
    fn of_file<M: Memory>(visit: &Visit<'_, '_, M>, file: VisitedFile<'_>) -> engine::Result<Self>;

    /// The kind of file; `None`: invalid.
    fn kind(&self) -> Option<FileKind>;
}

impl FileQuery for Attributes {
    #[inline]
    fn prefetch<M: Memory>(fs: &Fs<M>, cachelet: u32) {
        fs.prefetch_attributes(cachelet);
    }

    #[inline]
    fn of_file<M: Memory>(visit: &Visit<'_, '_, M>, file: VisitedFile<'_>) -> engine::Result<Attributes> {
        visit.stat(file)
    }

    #[inline]
    fn kind(&self) -> Option<FileKind> {
        Some(self.kind)
    }
}

impl FileQuery for Protection {
    #[inline]
    fn prefetch<M: Memory>(_fs: &Fs<M>, _cachelet: u32) {}

    #[inline]
    fn of_file<M: Memory>(visit: &Visit<'_, '_, M>, file: VisitedFile<'_>) -> engine::Result<Protection> {
        visit.protection(file)
    }

    #[inline]
    fn kind(&self) -> Option<FileKind> {
        Protection::kind(self)
    }
}

/// The first component of a relative path, and what follows its slashes. `None`: no slash follows
/// it.
#[inline]
fn first(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().position(|&byte| byte == b'/')?;
    let (component, after) = path.split_at(end);
    let slashes = after.iter().take_while(|&&byte| byte == b'/').count();
    Some((component, &after[slashes..]))
}

#[inline]
fn is_dots(component: &[u8]) -> bool {
    matches!(component, b"." | b"..")
}

/// The parts of a path.
struct Path<'p> {
    /// The start of the walk.
    start: Node,
    /// The path of the last component's directory: empty, or ending with a slash.
    directories: &'p [u8],
    /// The last component.
    name: &'p [u8],
}

impl<'p> Path<'p> {
    /// `None`: the path does not end with a name, or is too long.
    #[inline(always)]
    fn new(walk_start: &WalkStart, path: &'p [u8]) -> Option<Path<'p>> {
        let (start, rest) = match path {
            [b'/', rest @ ..] => (walk_start.root, rest),
            _ => (walk_start.start, path),
        };
        let (directories, name) = rest.split_at(last_position(rest, b'/').map_or(0, |slash| slash + 1));
        if name.is_empty() || name.len() > NAME_BYTES_MAX || is_dots(name) || path.len() >= PATH_BYTES_MAX {
            return None;
        }
        Some(Path { start, directories, name })
    }
}

impl<'t, 'f, M: Memory> Paths<'_, 't, 'f, M> {
    /// Whether this is a directory with search permission, by its mode and the caller's
    /// capabilities.
    #[inline]
    fn may_search_by_mode(self, directory: &Protection) -> bool {
        let Protection { mode, uid, gid, flags, .. } = *directory;
        if mode & libc::S_IFMT != libc::S_IFDIR {
            return false;
        }
        let credentials = &self.caller.credentials;
        if credentials.searches_everywhere() {
            return true;
        }
        let class = match () {
            () if credentials.uid == uid => 6,
            () if flags.has_any(FileFlags::ACCESS_LIST) => return false,
            () if credentials.is_in_group(gid) => 3,
            () => 0,
        };
        mode >> class & 1 != 0
    }

    /// Walks a path; returns the directory of its last component.
    #[inline(always)]
    fn walk_fast(
        self,
        visit: &Visit<'t, 'f, M>,
        &Path { start, directories, .. }: &Path<'_>,
    ) -> Option<VisitedFile<'f>> {
        match self.caller.path_cache {
            _ if directories.is_empty() => visit.begin_at(start).ok(),
            None => self.descend(visit, start, directories, &mut |_| {}),
            Some(path_cache) => {
                let rights = SearchRights::of(&self.caller.credentials);
                path_cache.resolve(visit, start, directories, rights, |passed| {
                    self.descend(visit, start, directories, passed)
                })
            }
        }
    }

    /// Descends from a directory along a path that ends with a slash. Calls `passed` with all
    /// directories, including the first and the last. Does not check whether the last one is a
    /// directory with search permission.
    fn descend(
        self,
        visit: &Visit<'t, 'f, M>,
        start: Node,
        mut directories: &[u8],
        passed: &mut dyn FnMut(VisitedFile<'f>),
    ) -> Option<VisitedFile<'f>> {
        let mut here = visit.begin_at(start).ok()?;
        passed(here);
        while let Some((component, next)) = first(directories) {
            if component == b".." || !self.may_search_by_mode(&visit.protection(here).ok()?) {
                return None;
            }
            // Repeated or leading slashes and dots change nothing.
            if !matches!(component, b"" | b".") {
                here = visit.find(here, component).ok()??;
                passed(here);
            }
            directories = next;
        }
        Some(here)
    }

    /// The directory of a path's last component, and that component. Does not check search
    /// permission. For a path of one component it does not check either whether the start is a
    /// directory: no link is followed there.
    ///
    /// The thread's cached reference is replaced by this directory: from now on uses of the
    /// previous one need their own reference.
    #[inline]
    pub(crate) fn fast_parent<'p>(
        self,
        walk_start: &WalkStart,
        path: &'p [u8],
    ) -> Option<(NodeRef<'t, 'f, M>, &'p [u8])> {
        let (directory, name) = self.fast_second_parent(walk_start, path)?;
        match self.caller.parent {
            Some(parent) if directory.is_owned() => {
                let node = directory.into_recorded().ok()?;
                parent.replace(self.caller.thread, node);
                Some((NodeRef::borrowed(self.caller.thread, node), name))
            }
            _ => Some((directory, name)),
        }
    }

    /// [`Paths::fast_parent`] for a call's second path: the cached reference does not change.
    #[inline]
    pub(crate) fn fast_second_parent<'p>(
        self,
        walk_start: &WalkStart,
        path: &'p [u8],
    ) -> Option<(NodeRef<'t, 'f, M>, &'p [u8])> {
        let parts = Path::new(walk_start, path)?;
        if parts.name.len() == path.len() {
            return Some((NodeRef::borrowed(self.caller.thread, walk_start.start), path));
        }
        let visit = self.caller.thread.visit();
        let directory = self.walk_fast(&visit, &parts)?;
        // It may be a symbolic link to a directory.
        if visit.protection(directory).ok()?.mode & libc::S_IFMT != libc::S_IFDIR {
            return None;
        }
        if self.caller.parent.is_some_and(|parent| parent.node() == Some(directory.node())) {
            return Some((NodeRef::borrowed(self.caller.thread, directory.node()), parts.name));
        }
        let node = visit.take(directory)?;
        Some((NodeRef::owned(self.caller.thread, node), parts.name))
    }

    /// Calls `call` with the file of a path and the queried data; the file is valid during `call`.
    /// `prefetch` as for [`Visit::find_prefetching`].
    #[inline]
    fn at_fast<A: FileQuery, T>(
        self,
        walk_start: &WalkStart,
        path: &[u8],
        last_link: LastLink,
        prefetch: impl Fn(u32),
        call: impl FnOnce(&Visit<'t, 'f, M>, VisitedFile<'f>, VisitedFile<'f>, &A) -> Option<Result<T>>,
    ) -> Option<Result<T>> {
        let path = Path::new(walk_start, path)?;
        let visit = self.caller.thread.visit();
        let directory = self.walk_fast(&visit, &path)?;
        if !self.may_search_by_mode(&visit.protection(directory).ok()?) {
            return None;
        }
        let file = match visit.find_prefetching(directory, path.name, prefetch) {
            Ok(found) => found?,
            Err(Error::NotFound) => return Some(Err(Errno::ENOENT)),
            Err(_) => return None,
        };
        let known = A::of_file(&visit, file).ok()?;
        if known.kind()? == FileKind::Symlink && last_link == LastLink::Follow {
            return None;
        }
        call(&visit, directory, file, &known)
    }

    /// The result of `call` on a path's file and the queried data; `None` unless the fast path
    /// applies. `call` may use only reading functions of the engine: the file has no reference.
    ///
    /// The VFS layer may be inside a [`Visit`] meanwhile, so that the start directory needs no
    /// reference.
    #[inline]
    pub fn query_fast<A: FileQuery, T>(
        self,
        walk_start: &WalkStart,
        path: &[u8],
        last_link: LastLink,
        call: impl FnOnce(Node, &A) -> Result<T>,
    ) -> Option<Result<Outcome<T>>> {
        self.at_fast(
            walk_start,
            path,
            last_link,
            |cachelet| A::prefetch(self.caller.thread.fs(), cachelet),
            |_, _, file, known| Some(call(file.node(), known).map(Outcome::Inside)),
        )
    }

    /// The file of a path with a reference, its protection, and the number of the directory that
    /// holds its name. `prefetch` as for [`Visit::find_prefetching`].
    #[inline]
    pub(crate) fn take_fast(
        self,
        walk_start: &WalkStart,
        path: &[u8],
        last_link: LastLink,
        prefetch: impl Fn(u32),
    ) -> Option<Result<(NodeRef<'t, 'f, M>, Protection, u64)>> {
        self.at_fast(walk_start, path, last_link, prefetch, |visit, directory, file, protection: &Protection| {
            let node = visit.take(file)?;
            Some(Ok((NodeRef::owned(self.caller.thread, node), *protection, directory.node().number)))
        })
    }
}
