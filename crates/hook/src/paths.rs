//! The path owner of a path: the mount or the kernel.
//!
//! A path can change its owner on the way, in both directions and several times: by a symbolic link
//! with an absolute target, by `..` above the mount, by a symbolic link of the host. So every call
//! by path is a loop: determine the owner; if it is the image, walk; if the walk left the mount,
//! start again with the rest of the path. A path that ends on the kernel's side goes to the kernel,
//! rewritten if it passed through the mount.
//!
//! The filter sends paths here that begin like the mount, or differ from it in a way that needs a
//! closer look. Paths of the host are resolved by component only if they contain the mount's last
//! component after a `..` or a doubled slash; each component then costs a call (readlink).
//!
//! Decision: docs/decisions/run-calls.md, "A path call is a loop over sides".

use crate::abi::{sys, user_memory};
use crate::context::PATH_ROOM_BYTES;
use crate::descriptors::{fd_numbers, marks};
use crate::proc_links;
use crate::process::other_processes;
use crate::process::session::{self, Session};
use crate::server::Server;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use engine::Node;
use posix::path::{Exit, LINKS_FOLLOWED_MAX, WalkStart};
use posix::{Errno, Result};

/// The start of relative paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directory {
    /// The working directory.
    Working,
    /// A descriptor.
    Descriptor(u32),
}

impl Directory {
    /// Converts a call's argument.
    pub fn from_raw(argument: u64) -> Directory {
        // The kernel reads the lower half only.
        match argument as i32 {
            libc::AT_FDCWD => Directory::Working,
            fd => Directory::Descriptor(fd as u32),
        }
    }
}

/// Whether the kernel's working directory is above the mount, so that relative paths may lead into
/// it.
pub static ABOVE: AtomicBool = AtomicBool::new(false);

/// Whether relative paths of the host may lead into the mount.
pub fn is_above() -> bool {
    ABOVE.load(Relaxed)
}

/// Whether a directory of the host is above the mount; `ask` returns its path (empty for the root).
pub fn is_above_mount(server: &Server, ask: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
    let mut path = [0u8; user_memory::PATH_BYTES_MAX];
    let Some(length) = ask(&mut path) else { return false };
    server.mount().strip_prefix(&path[..length]).is_some_and(|rest| rest.starts_with(b"/"))
}

/// The owner of a path.
#[derive(Debug, Clone, Copy)]
pub enum PathOwner {
    /// The image: the path continues at `offset` of its buffer.
    Directfs {
        /// Start of the walk.
        walk_start: WalkStart,
        /// Offset of the path's rest in its buffer.
        offset: usize,
        /// Offset of its end.
        end: usize,
        /// A reference that the caller must release.
        retained: Option<Node>,
    },
    /// The host.
    Host,
}

/// Determines the owner of the path in `path[..length]`.
#[inline(always)]
pub fn locate(
    server: &'static Server,
    session: &Session<'_>,
    directory: Directory,
    path: &mut [u8; PATH_ROOM_BYTES],
    length: usize,
    host: &mut [u8; PATH_ROOM_BYTES],
) -> Result<PathOwner> {
    if matches!(directory, Directory::Working)
        && path[0] != b'/'
        && let Some(start) = session.directory()
    {
        let walk_start = WalkStart { root: server.root, start, can_leave: true };
        return Ok(PathOwner::Directfs { walk_start, offset: 0, end: length, retained: None });
    }
    locate_farther(server, session, directory, path, length, host)
}

/// `locate` for paths that do not begin at a working directory in the image.
fn locate_farther(
    server: &'static Server,
    session: &Session<'_>,
    directory: Directory,
    path: &mut [u8; PATH_ROOM_BYTES],
    length: usize,
    host: &mut [u8; PATH_ROOM_BYTES],
) -> Result<PathOwner> {
    if path[0] == b'/' {
        if let Some(rest) = below(server.mount(), &path[..length]) {
            return Ok(at_root(server, path, rest, length));
        }
        return enter_mount(server, session, None, path, length, host);
    }
    let start = match directory {
        Directory::Working => None,
        Directory::Descriptor(fd) => match session.process.file(session.caller.thread, fd) {
            Some(file) => {
                let node = file.node();
                // Another thread may close the description during the walk; in a single thread the
                // descriptor keeps it.
                let retained = session::has_threads().then_some(node);
                if retained.is_some() {
                    session.caller.thread.retain(node)?;
                }
                Some((node, retained))
            }
            None if marks::is_hidden(u64::from(fd)) => return Err(Errno::EBADF),
            None => None,
        },
    };
    if let Some((start, retained)) = start {
        let walk_start = WalkStart { root: server.root, start, can_leave: true };
        return Ok(PathOwner::Directfs { walk_start, offset: 0, end: length, retained });
    }
    enter_mount(server, session, Some(directory), path, length, host)
}

/// The start of a path in the image, and the offset at which it continues, if a simple check
/// suffices. The caller looks up descriptors.
#[inline]
pub fn begin(
    server: &'static Server,
    session: &Session<'_>,
    directory: Directory,
    at_descriptor: impl FnOnce(u32) -> Option<Node>,
    path: &[u8],
) -> Option<(WalkStart, usize)> {
    let walk_start = |start| WalkStart { root: server.root, start, can_leave: true };
    if path.first() == Some(&b'/') {
        return below(server.mount(), path).map(|offset| (walk_start(server.root), offset));
    }
    let start = match directory {
        Directory::Working => session.process.directory()?,
        Directory::Descriptor(fd) => at_descriptor(fd)?,
    };
    Some((walk_start(start), 0))
}

/// The offset after the mount directory in a path; `None` if the path does not begin with it.
fn below(mount: &[u8], path: &[u8]) -> Option<usize> {
    let rest = path.strip_prefix(mount)?;
    matches!(rest.first(), None | Some(b'/')).then_some(mount.len())
}

fn at_root(server: &Server, path: &mut [u8; PATH_ROOM_BYTES], offset: usize, length: usize) -> PathOwner {
    let walk_start = WalkStart { root: server.root, start: server.root, can_leave: true };
    let mut end = length;
    if offset == length {
        path[length] = b'/';
        end += 1;
        path[end] = 0;
    }
    PathOwner::Directfs { walk_start, offset, end, retained: None }
}

/// Whether the target of a host path may be a directory above the mount.
pub fn may_be_above(server: &Server, directory: Directory, path: &[u8]) -> bool {
    if path.first() == Some(&b'/') {
        let end = path.len() - path.iter().rev().take_while(|&&byte| byte == b'/').count();
        let odd = has_component(path, b"..") || has_component(path, b".") || path.windows(2).any(|pair| pair == b"//");
        return odd || server.mount().strip_prefix(&path[..end]).is_some_and(|rest| rest.starts_with(b"/"));
    }
    match directory {
        Directory::Working => is_above() || path.starts_with(b".."),
        Directory::Descriptor(fd) => marks::is_above(fd),
    }
}

/// A path of the host that may lead into the mount.
fn enter_mount(
    server: &'static Server,
    session: &Session<'_>,
    from: Option<Directory>,
    path: &mut [u8; PATH_ROOM_BYTES],
    length: usize,
    host: &mut [u8; PATH_ROOM_BYTES],
) -> Result<PathOwner> {
    // Where descriptors have names, those that the program does not know of must not have one.
    fd_numbers::release_cached();
    let text = &path[..length];
    if proc_links::descriptor_of(text).is_some_and(marks::is_protected) {
        return Err(Errno::ENOENT);
    }
    if let (Some(rest), Some(directory)) = (proc_links::behind_directory(text), session.process.directory()) {
        let walk_start = WalkStart { root: server.root, start: directory, can_leave: true };
        // A dot denotes the link itself, followed by the rest.
        let dot = length - rest.len() - 1;
        path[dot] = b'.';
        return Ok(PathOwner::Directfs { walk_start, offset: dot, end: length, retained: None });
    }
    if let Some((process, link_bytes, rest)) =
        proc_links::behind_directory_of_another(text).filter(|found| !found.2.is_empty())
        && let Some(held) = other_processes::directory_of_another(session, process, &text[..link_bytes])
    {
        let (start, dot) = (held.node(), length - rest.len() - 1);
        session.caller.thread.retain(start)?;
        drop(held);
        let walk_start = WalkStart { root: server.root, start, can_leave: true };
        path[dot] = b'.';
        return Ok(PathOwner::Directfs { walk_start, offset: dot, end: length, retained: Some(start) });
    }
    if let Some((fd, rest)) = proc_links::split(text).filter(|(_, rest)| !rest.is_empty())
        && let Some(file) = session.process.file(session.caller.thread, fd)
    {
        let node = file.node();
        session.caller.thread.retain(node)?;
        let walk_start = WalkStart { root: server.root, start: node, can_leave: true };
        // A dot precedes the rest, because a leading slash would refer to the root.
        let offset = length - rest.len() - 1;
        path[offset] = b'.';
        return Ok(PathOwner::Directfs { walk_start, offset, end: length, retained: Some(node) });
    }
    let last = &server.mount()[server.mount().iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1)..];
    let from_above = match from {
        Some(Directory::Working) => is_above(),
        Some(Directory::Descriptor(fd)) => marks::is_above(fd),
        None => false,
    };
    let odd = from_above
        || has_component(text, b"..")
        || has_component(text, b".")
        || text.windows(2).any(|pair| pair == b"//")
        || text.starts_with(b"/proc/") && has_component(text, b"root");
    if !odd || !has_component(text, last) {
        return Ok(PathOwner::Host);
    }
    match resolve_host(server, from, path, length, host) {
        Some((offset, length)) => Ok(at_root(server, path, offset, length)),
        None => Ok(PathOwner::Host),
    }
}

fn has_component(path: &[u8], wanted: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(|part| part == wanted)
}

/// Walks a path on the host's side, component by component, until it reaches the mount. Returns the
/// offset of the path's rest in `path`, and the new length. `None`: it does not reach the mount,
/// and `path` is unchanged.
fn resolve_host(
    server: &Server,
    from: Option<Directory>,
    path: &mut [u8; PATH_ROOM_BYTES],
    length: usize,
    host: &mut [u8; PATH_ROOM_BYTES],
) -> Option<(usize, usize)> {
    let (done, left) = host.split_at_mut(user_memory::PATH_BYTES_MAX);
    let done_bytes = match from {
        None => 0,
        Some(directory) => host_directory_path(directory, done)?,
    };
    let begin = left.len() - length;
    left[begin..].copy_from_slice(&path[..length]);
    let mut walk = HostWalk { mount: server.mount(), done, done_bytes, left, begin, links: 0 };
    loop {
        walk.skip_slashes();
        let rest = &walk.left[walk.begin..];
        if walk.is_at_mount(walk.done_bytes) {
            path[0] = b'/';
            path[1..1 + rest.len()].copy_from_slice(rest);
            path[1 + rest.len()] = 0;
            return Some((0, 1 + rest.len()));
        }
        if rest.is_empty() {
            return None;
        }
        walk.step()?;
    }
}

/// A walk on the host's side: `done[..done_bytes]` is resolved, `left[begin..]` is the rest.
struct HostWalk<'w> {
    mount: &'w [u8],
    done: &'w mut [u8],
    done_bytes: usize,
    left: &'w mut [u8],
    begin: usize,
    links: u32,
}

impl HostWalk<'_> {
    fn skip_slashes(&mut self) {
        while self.begin < self.left.len() && self.left[self.begin] == b'/' {
            self.begin += 1;
        }
    }

    /// Whether the first `bytes` of the resolved part are the mount directory.
    fn is_at_mount(&self, bytes: usize) -> bool {
        self.done[..bytes] == *self.mount
    }

    /// Resolves the next component. `None`: the path does not reach the mount.
    fn step(&mut self) -> Option<()> {
        let rest = &self.left[self.begin..];
        let end = self.begin + rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
        match &self.left[self.begin..end] {
            b"." => self.begin = end,
            b".." => {
                let parent_bytes = self.done[..self.done_bytes].iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                (self.done_bytes, self.begin) = (parent_bytes, end);
            }
            name => {
                let new_bytes = self.done_bytes + 1 + name.len();
                if new_bytes + 1 >= self.done.len() {
                    return None;
                }
                self.done[self.done_bytes] = b'/';
                self.done[self.done_bytes + 1..new_bytes].copy_from_slice(name);
                self.done[new_bytes] = 0;
                self.enter(new_bytes, end)?;
            }
        }
        Some(())
    }

    /// Enters the name that ends at `new_bytes` of `done`, or puts a link's target before the rest,
    /// which begins at `end`.
    fn enter(&mut self, new_bytes: usize, end: usize) -> Option<()> {
        if self.is_at_mount(new_bytes) {
            (self.done_bytes, self.begin) = (new_bytes, end);
            return Some(());
        }
        let mut target = [0u8; user_memory::PATH_BYTES_MAX];
        match sys::read_link(&self.done[..=new_bytes], &mut target) {
            Ok(bytes) => {
                self.links += 1;
                if self.links > LINKS_FOLLOWED_MAX {
                    return None;
                }
                self.begin = end.checked_sub(bytes)?;
                self.left[self.begin..end].copy_from_slice(&target[..bytes]);
                if target[0] == b'/' {
                    self.done_bytes = 0;
                }
            }
            Err(error) if error == -i64::from(libc::EINVAL) => (self.done_bytes, self.begin) = (new_bytes, end),
            // On the way to a mount directory that does not exist on the host, directories above it
            // may be missing too.
            Err(_) if self.mount.starts_with(&self.done[..new_bytes]) && self.mount[new_bytes] == b'/' => {
                (self.done_bytes, self.begin) = (new_bytes, end);
            }
            Err(_) => return None,
        }
        Some(())
    }
}

/// The path of a directory of the host, without a trailing slash: empty for the root.
pub fn host_directory_path(directory: Directory, into: &mut [u8]) -> Option<usize> {
    let bytes = match directory {
        Directory::Working => sys::working_directory(into).ok()?,
        Directory::Descriptor(fd) => {
            let mut link = [0u8; 32];
            let base = b"/proc/self/fd/";
            link[..base.len()].copy_from_slice(base);
            crate::handoff::write_number(u64::from(fd), &mut link[base.len()..]);
            sys::read_link(&link, into).ok()?
        }
    };
    match into[..bytes] {
        [b'/'] => Some(0),
        [b'/', ..] => Some(bytes),
        _ => None,
    }
}

/// After a walk left the mount: writes the path to continue with into `path`; returns its length.
pub fn resume_walk(server: &Server, exit: Exit, rest: &[u8], path: &mut [u8; PATH_ROOM_BYTES]) -> Result<usize> {
    let (above, rest) = match exit {
        Exit::Absolute => (&b""[..], rest),
        Exit::AboveRoot => climb(server.above(), rest),
    };
    let slash = exit == Exit::AboveRoot && above.len() > 1 && !rest.is_empty();
    let length = above.len() + usize::from(slash) + rest.len();
    if length >= user_memory::PATH_BYTES_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    path[..above.len()].copy_from_slice(above);
    path[above.len()] = b'/';
    path[length - rest.len()..length].copy_from_slice(rest);
    path[length] = 0;
    Ok(length)
}

/// Moves up from a directory while the path says so: the directories above the mount need not exist
/// on the host.
fn climb<'a>(mut directory: &'a [u8], mut rest: &'a [u8]) -> (&'a [u8], &'a [u8]) {
    loop {
        let slashes = rest.iter().take_while(|&&byte| byte == b'/').count();
        let component = rest[slashes..].split(|&byte| byte == b'/').next().unwrap_or_default();
        match component {
            b"." => {}
            b".." => {
                let end = directory.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                directory = &directory[..end.max(1)];
            }
            _ => return (directory, &rest[slashes..]),
        }
        rest = &rest[slashes + component.len()..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_goes_up_as_far_as_it_says() {
        assert_eq!(climb(b"/a/b", b""), (&b"/a/b"[..], &b""[..]));
        assert_eq!(climb(b"/a/b", b"x/../y"), (&b"/a/b"[..], &b"x/../y"[..]));
        assert_eq!(climb(b"/a/b", b"..//./../x"), (&b"/"[..], &b"x"[..]));
        assert_eq!(climb(b"/a/b", b"../../../.."), (&b"/"[..], &b""[..]));
        assert_eq!(climb(b"/a/b", b"..x"), (&b"/a/b"[..], &b"..x"[..]));
    }

    #[test]
    fn the_mount_is_found_by_its_bytes() {
        assert_eq!(below(b"/m/d", b"/m/d"), Some(4));
        assert_eq!(below(b"/m/d", b"/m/d/x"), Some(4));
        assert_eq!(below(b"/m/d", b"/m/dx"), None);
        assert_eq!(below(b"/m/d", b"/m"), None);
    }
}
