//! The short way along a path: every component but the last is a plain directory that may be searched, and nothing on the way gets a reference.
//!
//! Nearly all paths are of this kind. Of the others (symbolic links, `..`, a dot or slashes at the end, refusals, directories whose names have to be read first)
//! nothing is decided here: the answer is "not like this", and the walk of [`crate::path`] begins anew and says what is the matter.

use crate::caller::{Caller, NodeRef};
use crate::errno::{Errno, Result};
use crate::path::{LastLink, Outcome, PATH_BYTES_MAX, WalkStart};
use crate::path_cache::SearchRights;
use engine::format::{FileKind, NAME_BYTES_MAX};
use engine::text::last_position;
use engine::{Attributes, Error, Fs, Node, Protection, Visit, VisitedFile};
use pmem::Memory;

/// What a call wants to know of the file that a path leads to: all attributes, or what decides who may use it, which is one line from memory less.
pub trait FileQuery: Copy {
    /// Asks for the lines that it takes beside the first one of the cachelet.
    fn prefetch<M: Memory>(fs: &Fs<M>, cachelet: u32);

    /// As it is at a file.
    fn of_file<M: Memory>(visit: &Visit<'_, '_, M>, file: VisitedFile<'_>) -> engine::Result<Self>;

    /// The kind of file; none: nothing that there is.
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

/// The first component of a path that does not begin with a slash, and what follows the slashes behind it. None: there is no slash behind it.
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

/// A path in its parts.
struct Path<'p> {
    /// Where it begins.
    start: Node,
    /// What leads to the directory of the last component: nothing, or it ends with a slash.
    directories: &'p [u8],
    /// The last component.
    name: &'p [u8],
}

impl<'p> Path<'p> {
    /// None: it is not one that has a name at its end, or too long.
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

impl<'t, 'f, M: Memory> Caller<'t, 'f, M> {
    /// Whether this is a directory that may be searched, as far as its mode and the caller's capabilities say.
    #[inline]
    fn may_search_by_mode(&self, directory: &Protection) -> bool {
        let Protection { mode, uid, gid, access_list, .. } = *directory;
        if mode & libc::S_IFMT != libc::S_IFDIR {
            return false;
        }
        let credentials = &self.credentials;
        if credentials.searches_everywhere() {
            return true;
        }
        let class = match () {
            () if credentials.uid == uid => 6,
            () if access_list => return false,
            () if credentials.is_in_group(gid) => 3,
            () => 0,
        };
        mode >> class & 1 != 0
    }

    /// Goes along a path; where its last component is to be looked for.
    #[inline(always)]
    fn walk_fast(
        &self,
        visit: &Visit<'t, 'f, M>,
        &Path { start, directories, .. }: &Path<'_>,
    ) -> Option<VisitedFile<'f>> {
        match self.path_cache {
            _ if directories.is_empty() => visit.begin_at(start).ok(),
            None => self.descend(visit, start, directories, &mut |_| {}),
            Some(path_cache) => {
                let rights = SearchRights::of(&self.credentials);
                path_cache.resolve(visit, start, directories, rights, |passed| {
                    self.descend(visit, start, directories, passed)
                })
            }
        }
    }

    /// Goes down from a directory along a path that ends with a slash, and tells `passed` of all directories, the first and the last one included. Whether the
    /// last one may be searched, or is a directory, is not looked at.
    fn descend(
        &self,
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
            // A slash behind another or in front of all, and a dot, lead nowhere else.
            if !matches!(component, b"" | b".") {
                here = visit.find(here, component).ok()??;
                passed(here);
            }
            directories = next;
        }
        Some(here)
    }

    /// The directory of a path's last component, and that component. Whether the directory may be searched is not looked at. Where the path is one
    /// component long, whether it is a directory is not, either: where a path begins, no link is followed.
    ///
    /// The thread keeps the directory from now on, instead of the one that it kept: nobody may use that any more without a reference of his own.
    #[inline]
    pub(crate) fn fast_parent<'p>(
        &self,
        walk_start: &WalkStart,
        path: &'p [u8],
    ) -> Option<(NodeRef<'t, 'f, M>, &'p [u8])> {
        let (directory, name) = self.fast_second_parent(walk_start, path)?;
        match self.parent {
            Some(parent) if directory.is_owned() => {
                let node = directory.into_recorded().ok()?;
                parent.replace(self.thread, node);
                Some((NodeRef::borrowed(self.thread, node), name))
            }
            _ => Some((directory, name)),
        }
    }

    /// As [`Caller::fast_parent`], of a call's second path: what the thread keeps stays.
    #[inline]
    pub(crate) fn fast_second_parent<'p>(
        &self,
        walk_start: &WalkStart,
        path: &'p [u8],
    ) -> Option<(NodeRef<'t, 'f, M>, &'p [u8])> {
        let parts = Path::new(walk_start, path)?;
        if parts.name.len() == path.len() {
            return Some((NodeRef::borrowed(self.thread, walk_start.start), path));
        }
        let visit = self.thread.visit();
        let directory = self.walk_fast(&visit, &parts)?;
        // A symbolic link may lead to one.
        if visit.protection(directory).ok()?.mode & libc::S_IFMT != libc::S_IFDIR {
            return None;
        }
        if self.parent.is_some_and(|parent| parent.node() == Some(directory.node())) {
            return Some((NodeRef::borrowed(self.thread, directory.node()), parts.name));
        }
        let node = visit.take(directory)?;
        Some((NodeRef::owned(self.thread, node), parts.name))
    }

    /// The file of a path, with what is wanted of it, for as long as `call` lasts. `prefetch` as for [`Visit::find_prefetching`].
    #[inline]
    fn at_fast<A: FileQuery, T>(
        &self,
        walk_start: &WalkStart,
        path: &[u8],
        last_link: LastLink,
        prefetch: impl Fn(u32),
        call: impl FnOnce(&Visit<'t, 'f, M>, VisitedFile<'f>, VisitedFile<'f>, &A) -> Option<Result<T>>,
    ) -> Option<Result<T>> {
        let path = Path::new(walk_start, path)?;
        let visit = self.thread.visit();
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

    /// What `call` says of a path's file, by what it wants to know of it, if the path is a short way. Of the engine it may call what only reads: the file has
    /// no reference.
    ///
    /// The front may be on a [`Visit`] of its own meanwhile, so that the directory where the path begins needs no reference.
    #[inline]
    pub fn query_fast<A: FileQuery, T>(
        &self,
        walk_start: &WalkStart,
        path: &[u8],
        last_link: LastLink,
        call: impl FnOnce(Node, &A) -> Result<T>,
    ) -> Option<Result<Outcome<T>>> {
        self.at_fast(
            walk_start,
            path,
            last_link,
            |cachelet| A::prefetch(self.thread.fs(), cachelet),
            |_, _, file, known| Some(call(file.node(), known).map(Outcome::Inside)),
        )
    }

    /// The file of a path with a reference, who may use it, and the number of the directory in which its name was found. `prefetch` as for
    /// [`Visit::find_prefetching`].
    #[inline]
    pub(crate) fn take_fast(
        &self,
        walk_start: &WalkStart,
        path: &[u8],
        last_link: LastLink,
        prefetch: impl Fn(u32),
    ) -> Option<Result<(NodeRef<'t, 'f, M>, Protection, u64)>> {
        self.at_fast(walk_start, path, last_link, prefetch, |visit, directory, file, protection: &Protection| {
            let node = visit.take(file)?;
            Some(Ok((NodeRef::owned(self.thread, node), *protection, directory.node().number)))
        })
    }
}
