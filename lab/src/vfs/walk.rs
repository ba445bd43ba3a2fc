//! Path walk: without locks while everything is cached, otherwise again with references.

use super::names::{At, Names, Peek, Peeked};
use super::{FileRef, Vfs};
use crate::error::Result;
use crate::physical::PhysicalFs;
use engine::Attributes;
use engine::format::FileKind;
use posix::path::{LINKS_FOLLOWED_MAX, PATH_BYTES_MAX};
use posix::{Credentials, Errno, Want};
use std::borrow::Cow;

/// The last component of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// A name.
    Name,
    /// `.`, or no component: the root.
    Here,
    /// `..`.
    Up,
}

/// A path resolved up to its last component.
pub struct Parent<'f, 'p, P: PhysicalFs, N: Names<P>> {
    /// The directory, for which search permission was checked.
    pub directory: FileRef<'f, P, N>,
    /// The path walked last: the caller's, or one with symbolic links replaced.
    text: Cow<'p, [u8]>,
    begin: usize,
    end: usize,
    /// Type of the last component.
    pub last: Last,
    /// Whether a slash follows it.
    pub slash: bool,
    followed: u32,
}

impl<P: PhysicalFs, N: Names<P>> Parent<'_, '_, P, N> {
    /// The last component.
    pub fn name(&self) -> &[u8] {
        &self.text[self.begin..self.end]
    }
}

/// The component at or behind `from`: its begin and end, and the begin of the next one.
#[inline]
fn component(text: &[u8], from: usize) -> (usize, usize, usize) {
    let begin = from + text[from..].iter().take_while(|&&byte| byte == b'/').count();
    let end = begin + text[begin..].iter().take_while(|&&byte| byte != b'/').count();
    let next = end + text[end..].iter().take_while(|&&byte| byte == b'/').count();
    (begin, end, next)
}

fn check_path(path: &[u8]) -> Result<()> {
    if path.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    if path.len() >= PATH_BYTES_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    Ok(())
}

/// A directory and the path from there that a symbolic link leads to.
type Onward<'f, P, N> = (FileRef<'f, P, N>, Cow<'static, [u8]>);

/// The result of a walk without locks.
enum PeekEnd {
    /// The parent of the last component, and the component's position.
    Parent(Peek, usize),
    /// The file of the whole path.
    File(Peek),
    Failed(Errno),
}

impl<P: PhysicalFs, N: Names<P>> Vfs<P, N> {
    #[inline]
    pub(super) fn attributes(&self, at: At) -> Attributes {
        self.inodes.head(at.inode).attributes.get()
    }

    /// Checks that a file is a directory that may be searched.
    #[inline]
    fn may_search(credentials: &Credentials<'_>, attributes: &Attributes) -> std::result::Result<(), Errno> {
        if attributes.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        credentials.check(&attributes.protection(), Want::EXECUTE)
    }

    /// Walks without locks and references. Returns none if the walk must be repeated with
    /// references.
    #[inline]
    fn peek_path(&self, credentials: &Credentials<'_>, path: &[u8], to_parent: bool) -> Option<PeekEnd> {
        let mut here = N::peek_at(self, self.root);
        let (mut begin, mut end, mut next) = component(path, 0);
        while begin < end {
            let is_last = next == path.len();
            let name = &path[begin..end];
            let attributes = self.inodes.head(here.inode).attributes.get();
            let allowed = Self::may_search(credentials, &attributes);
            if let Err(errno) = allowed {
                return N::is_valid(self, here).then_some(PeekEnd::Failed(errno));
            }
            if is_last && to_parent {
                return N::is_valid(self, here).then_some(PeekEnd::Parent(here, begin));
            }
            if name == b".." || name.len() > P::NAME_MAX {
                return None;
            }
            if name != b"." {
                match N::peek(self, here, name) {
                    Peeked::Found(found) => here = found,
                    Peeked::Absent => return Some(PeekEnd::Failed(Errno::ENOENT)),
                    Peeked::Unsure => return None,
                }
                // A link must be followed. If the caller wants the link itself, it repeats the walk
                // with references.
                if self.inodes.head(here.inode).attributes.get().kind == FileKind::Symlink {
                    return None;
                }
            }
            if is_last {
                // A trailing slash requires a directory.
                return (end == next).then_some(PeekEnd::File(here));
            }
            (begin, end, next) = component(path, next);
        }
        (!to_parent).then_some(PeekEnd::File(here))
    }

    /// Attributes of the file of a path.
    pub fn stat_path(&self, credentials: &Credentials<'_>, path: &[u8], follow: bool) -> Result<Attributes> {
        check_path(path)?;
        if N::PEEKS {
            match self.peek_path(credentials, path, false) {
                Some(PeekEnd::File(peek)) => {
                    let attributes = self.inodes.head(peek.inode).attributes.get();
                    if N::is_valid(self, peek) {
                        return Ok(attributes);
                    }
                }
                Some(PeekEnd::Failed(errno)) => return Err(errno.into()),
                _ => {}
            }
        }
        let found = self.resolve_held(credentials, path, follow)?;
        Ok(self.attributes(found.at))
    }

    /// The file of a path.
    pub fn resolve(&self, credentials: &Credentials<'_>, path: &[u8], follow: bool) -> Result<FileRef<'_, P, N>> {
        check_path(path)?;
        if N::PEEKS {
            match self.peek_path(credentials, path, false) {
                Some(PeekEnd::File(peek)) => {
                    if let Some(at) = N::grab(self, peek)? {
                        return Ok(self.held(at));
                    }
                }
                Some(PeekEnd::Failed(errno)) => return Err(errno.into()),
                _ => {}
            }
        }
        self.resolve_held(credentials, path, follow)
    }

    /// The directory and last component of a path.
    pub fn resolve_parent<'f, 'p>(
        &'f self,
        credentials: &Credentials<'_>,
        path: &'p [u8],
    ) -> Result<Parent<'f, 'p, P, N>> {
        check_path(path)?;
        if N::PEEKS {
            match self.peek_path(credentials, path, true) {
                Some(PeekEnd::Parent(peek, begin)) => {
                    if let Some(at) = N::grab(self, peek)? {
                        return Ok(self.at_last(self.held(at), Cow::Borrowed(path), begin, 0));
                    }
                }
                Some(PeekEnd::Failed(errno)) => return Err(errno.into()),
                _ => {}
            }
        }
        self.walk_to_parent(credentials, self.root(), Cow::Borrowed(path), 0)
    }

    fn at_last<'f, 'p>(
        &'f self,
        directory: FileRef<'f, P, N>,
        text: Cow<'p, [u8]>,
        from: usize,
        followed: u32,
    ) -> Parent<'f, 'p, P, N> {
        let (begin, end, next) = component(&text, from);
        let last = match &text[begin..end] {
            b"" | b"." => Last::Here,
            b".." => Last::Up,
            _ => Last::Name,
        };
        Parent { directory, begin, end, last, slash: next > end && begin < end, text, followed }
    }

    /// Walks with references up to the last component.
    fn walk_to_parent<'f, 'p>(
        &'f self,
        credentials: &Credentials<'_>,
        start: FileRef<'f, P, N>,
        path: Cow<'p, [u8]>,
        followed: u32,
    ) -> Result<Parent<'f, 'p, P, N>> {
        let (mut here, mut text, mut from, mut followed) = (start, path, 0, followed);
        loop {
            let (begin, end, next) = component(&text, from);
            if begin < end {
                Self::may_search(credentials, &self.attributes(here.at))?;
            }
            if next == text.len() {
                if end - begin > P::NAME_MAX {
                    return Err(Errno::ENAMETOOLONG.into());
                }
                return Ok(self.at_last(here, text, from, followed));
            }
            let found = self.step(&here, &text[begin..end])?;
            if self.attributes(found.at).kind == FileKind::Symlink {
                (here, text) = self.replace_link(here, &found, &text[next..], &mut followed)?;
                from = 0;
            } else {
                (here, from) = (found, next);
            }
        }
    }

    /// Replaces a link by its target plus the rest of the path, to be walked from the returned
    /// directory.
    fn replace_link<'f>(
        &'f self,
        directory: FileRef<'f, P, N>,
        link: &FileRef<'f, P, N>,
        rest: &[u8],
        followed: &mut u32,
    ) -> Result<Onward<'f, P, N>> {
        *followed += 1;
        if *followed > LINKS_FOLLOWED_MAX {
            return Err(Errno::ELOOP.into());
        }
        let mut text = self.read_link_held(link)?;
        if text.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        if !rest.is_empty() {
            text.push(b'/');
            text.extend_from_slice(rest);
        }
        let start = if text[0] == b'/' { self.root() } else { directory };
        Ok((start, Cow::Owned(text)))
    }

    /// Steps to one component, which may be `.` or `..`. Search permission was checked.
    pub(super) fn step<'f>(&'f self, here: &FileRef<'f, P, N>, name: &[u8]) -> Result<FileRef<'f, P, N>> {
        match name {
            b"." | b"" => Ok(here.clone()),
            b".." if here.at.inode == self.root.inode => Ok(here.clone()),
            b".." if self.attributes(here.at).links == 0 => Err(Errno::ENOENT.into()),
            b".." => Ok(self.held(N::parent(self, here.at)?)),
            name if name.len() > P::NAME_MAX => Err(Errno::ENAMETOOLONG.into()),
            name => {
                self.make_room()?;
                let found = N::step(self, here.at, name)?.ok_or(Errno::ENOENT)?;
                Ok(self.held(found))
            }
        }
    }

    /// Walks with references to the end.
    fn resolve_held(&self, credentials: &Credentials<'_>, path: &[u8], follow: bool) -> Result<FileRef<'_, P, N>> {
        let mut parent = self.walk_to_parent(credentials, self.root(), Cow::Borrowed(path), 0)?;
        loop {
            let found = self.step(&parent.directory, parent.name())?;
            match self.attributes(found.at).kind {
                FileKind::Symlink if follow || parent.slash => {
                    parent = self.follow_last(credentials, parent, &found)?
                }
                FileKind::Directory => return Ok(found),
                _ if parent.slash => return Err(Errno::ENOTDIR.into()),
                _ => return Ok(found),
            }
        }
    }

    /// Continues from a last component that is a symbolic link.
    pub(super) fn follow_last<'f, 'p>(
        &'f self,
        credentials: &Credentials<'_>,
        parent: Parent<'f, '_, P, N>,
        link: &FileRef<'f, P, N>,
    ) -> Result<Parent<'f, 'p, P, N>> {
        let Parent { directory, slash, mut followed, .. } = parent;
        let (start, mut text) = self.replace_link(directory, link, b"", &mut followed)?;
        if slash {
            text.to_mut().push(b'/');
        }
        self.walk_to_parent(credentials, start, text, followed)
    }

    /// The path of a directory from the root. Uses cached names, or searches each parent for the
    /// child's number.
    pub fn path_of_held(&self, directory: &FileRef<'_, P, N>) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        let mut here = directory.clone();
        while here.at.inode != self.root.inode {
            if self.attributes(here.at).links == 0 {
                return Err(Errno::ENOENT.into());
            }
            let above = self.held(N::parent(self, here.at)?);
            let name = match N::own_name(self, here.at) {
                Some(name) => name,
                None => self.search_number(&above, self.inodes.number(here.at.inode))?,
            };
            names.push(name);
            if names.len() > super::operations::DEPTH_MAX {
                return Err(Errno::EUCLEAN.into());
            }
            here = above;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }

    fn search_number(&self, directory: &FileRef<'_, P, N>, number: u64) -> Result<Vec<u8>> {
        let mut found = None;
        let locked = self.inodes.read(directory.at.inode);
        self.fs.read_directory(locked.shared()?, 0, &mut |entry| {
            if entry.number == number {
                found = Some(entry.name.to_vec());
            }
            found.is_none()
        })?;
        // The directory was renamed between the two lookups.
        found.ok_or(Errno::ENOENT.into())
    }
}
