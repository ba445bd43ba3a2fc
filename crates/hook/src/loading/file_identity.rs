//! What identifies the content of a file with code: what was found out about a file counts for no
//! other content.
//!
//! A build-id does not. A build can pin it, and a file that is patched keeps it. The kernel sets
//! the time of a file's last change, and no call sets another one. Together with the device, the
//! inode and the size it says whether the content is still that which was looked at.
//!
//! Invariants
//! - Nothing is kept about a file that changed a moment ago: its next change may get an equal time.
//! - Of a library the path is known, and not the file that the loader mapped. So headers and
//!   build-id in memory belong to its identity, too: another file may be at the path by now.

use crate::abi::sys;
use crate::process::session::Calling;
use crate::server::{self, Server};
use crate::table;
use crate::{stack, status};
use core::ffi::CStr;
use engine::Node;
use posix::path::{LastLink, Outcome, WalkStart};

/// The identity of a file's content: the time of its last change in ns, a checksum, its size.
pub type FileId = [u64; 3];

/// The first page of a library.
pub const HEAD_BYTES: usize = 4096;
/// Its part with headers and build-id, as linkers make it.
const HEADERS_BYTES: usize = 1024;
/// A file that changed so long ago has another time at its next change, on every file system.
const SETTLED_NS: u64 = 2_000_000_000;
/// Longer paths are not looked at.
const PATH_BYTES: usize = 512;

/// By the status of a file, and its first page if it is a library.
pub fn of(status: &libc::stat, head: Option<&[u8; HEAD_BYTES]>) -> FileId {
    let time = |seconds: i64, ns: i64| (seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(ns as u64);
    let head_sum = head.map_or(0, |head| table::fingerprint(&head[..HEADERS_BYTES]));
    let modified = time(status.st_mtime, status.st_mtime_nsec);
    let rest = table::checksum(&[status.st_dev, status.st_ino, modified, head_sum]);
    [time(status.st_ctime, status.st_ctime_nsec), rest, status.st_size as u64]
}

/// Whether the identity changes with the next change of the content.
pub fn is_settled(id: FileId) -> bool {
    (tables::host::now_ns() as u64).saturating_sub(id[0]) > SETTLED_NS
}

/// The identity of the running program's file.
///
/// # Safety
/// Only for the constructor.
pub unsafe fn of_program(in_image: Option<&[u8]>) -> Option<FileId> {
    match in_image {
        // The kernel knows a copy.
        // SAFETY: by the caller's promise.
        Some(path) => unsafe { of_image_file(server::attached()?, path) }.map(|status| of(&status, None)),
        None => sys::status_at(c"/proc/self/exe").map(|status| of(&status, None)),
    }
}

/// The identity of a library that the loader mapped, by its path. `None`: it is not known.
///
/// # Safety
/// Only for the constructor; the library's first page is mapped at `base`.
pub unsafe fn of_library(path: &[u8], base: usize) -> Option<FileId> {
    let in_image = server::attached().filter(|server| path.starts_with(server.mount()));
    let status = match in_image {
        // SAFETY: by the caller's promise.
        Some(server) => unsafe { of_image_file(server, path) },
        None if path.first() == Some(&b'/') => {
            let mut text = [0u8; PATH_BYTES];
            text.get_mut(..path.len())?.copy_from_slice(path);
            sys::status_at(CStr::from_bytes_until_nul(&text).ok()?)
        }
        None => None,
    }?;
    // SAFETY: by the caller's promise; nothing writes the page.
    Some(of(&status, Some(unsafe { &*(base as *const [u8; HEAD_BYTES]) })))
}

/// The status of a file of the image, as stat returns it.
pub fn status_of(server: &Server, caller: &Calling<'_>, node: Node) -> Option<libc::stat> {
    let words = status::stat_of(server, caller, &caller.stat(node).ok()?);
    // SAFETY: the words are those of the structure, for which all values are valid.
    Some(unsafe { core::mem::transmute::<[u64; status::STAT_WORDS], libc::stat>(words) })
}

/// # Safety
/// Only for the constructor.
#[cold]
#[inline(never)]
unsafe fn of_image_file(server: &'static Server, path: &[u8]) -> Option<libc::stat> {
    let below = path.strip_prefix(server.mount())?;
    // SAFETY: the constructor has prepared it, and no call uses it now.
    let context = unsafe { stack::context() };
    let found = context.begin(server).ok().and_then(|inside| {
        let caller = inside.session.caller;
        let walk_start = WalkStart { root: server.root, start: server.root, can_leave: false };
        match caller.paths().resolve(&walk_start, below, LastLink::Follow, inside.walk) {
            Ok(Outcome::Inside(found)) => status_of(server, &caller, found.node()),
            _ => None,
        }
    });
    context.leave();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> libc::stat {
        // SAFETY: all zero is a valid status.
        unsafe { core::mem::zeroed() }
    }

    #[test]
    fn another_time_size_inode_or_header_is_another_identity() {
        let usual = of(&status(), None);
        assert_eq!(usual, of(&status(), None));
        let changes: [fn(&mut libc::stat); 6] = [
            |status| status.st_ctime = 1,
            |status| status.st_ctime_nsec = 1,
            |status| status.st_mtime_nsec = 1,
            |status| status.st_size = 1,
            |status| status.st_ino = 1,
            |status| status.st_dev = 1,
        ];
        for change in changes {
            let mut changed = status();
            change(&mut changed);
            assert_ne!(of(&changed, None), usual);
        }
        let page = [7; HEAD_BYTES];
        let with_page = of(&status(), Some(&page));
        assert_ne!(with_page, usual);
        for at in [0, 1, 100, 513, HEADERS_BYTES - 1] {
            let mut changed = page;
            changed[at] = 8;
            assert_ne!(of(&status(), Some(&changed)), with_page, "{at}");
        }
    }

    #[test]
    fn a_file_is_settled_once_its_last_change_is_some_time_ago() {
        let now = tables::host::now_ns() as u64;
        assert!(!is_settled([now, 0, 0]) && !is_settled([now + 3_600_000_000_000, 0, 0]));
        assert!(is_settled([now - 60_000_000_000, 0, 0]));
    }
}
