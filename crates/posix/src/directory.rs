//! Reading directories. Cookies 1 and 2 stand for `.` and `..`, those of the engine follow.

use crate::caller::Caller;
use engine::format::{FIRST_COOKIE, FileKind};
use engine::{DirectoryEntry, Node};
use pmem::Memory;
use tables::watch::event;
use tables::{Errno, OpenFile, Result};

/// Cookie after `.`.
pub const COOKIE_DOT: u64 = 1;
/// Cookie after `..`.
pub const COOKIE_DOT_DOT: u64 = 2;
const _: () = assert!(COOKIE_DOT_DOT < FIRST_COOKIE);

/// A name of a directory, or `.` or `..`.
#[derive(Debug, Clone, Copy)]
pub struct ListedName<'a> {
    /// Cookie to resume after this name.
    pub cookie: u64,
    /// Inode number.
    pub number: u64,
    /// Kind.
    pub kind: FileKind,
    /// The name.
    pub name: &'a [u8],
}

impl<M: Memory> Caller<'_, '_, M> {
    /// Calls `entry` with the names after `cookie` until it returns `false` (that name counts as
    /// not listed) or there are no more. The description keeps a hint of where the scan stopped;
    /// its position does not change.
    ///
    /// `entry` must not call the engine.
    pub fn read_directory_at(
        &self,
        file: &OpenFile,
        cookie: u64,
        entry: &mut (impl FnMut(ListedName<'_>) -> bool + ?Sized),
    ) -> Result<()> {
        if !file.reads() {
            return Err(Errno::EBADF);
        }
        if file.kind() != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let directory = file.node();
        if self.thread.stat(directory)?.links == 0 {
            return Err(Errno::ENOENT);
        }
        if !self.give_dots(directory, cookie, entry)? {
            self.reports().notify_open(file, event::ACCESS);
            return Ok(());
        }
        let (mut hint, end) = (file.hint(), self.listing_end(file, cookie)?);
        let mut each = |found: DirectoryEntry<'_>| {
            found.cookie < end
                && entry(ListedName { cookie: found.cookie, number: found.number, kind: found.kind, name: found.name })
        };
        // The engine knows only its own cookies.
        let after = if cookie <= COOKIE_DOT_DOT { 0 } else { cookie };
        self.thread.read_directory(directory, after, &mut hint, &mut each)?;
        file.set_hint(hint);
        self.data().record_read(file)?;
        self.reports().notify_open(file, event::ACCESS);
        Ok(())
    }

    /// The cookie before which a listing ends: that of the next new name when it began. A program
    /// that renames the files that it lists would otherwise meet them again, for ever.
    fn listing_end(&self, file: &OpenFile, cookie: u64) -> Result<u64> {
        if cookie <= COOKIE_DOT_DOT {
            let next = self.thread.next_cookie(file.node())?;
            file.set_listing_end(next);
            return Ok(next);
        }
        // A directory that is not indexed gets no names.
        let Some(next) = self.thread.next_cookie_known(file.node())? else { return Ok(u64::MAX) };
        Ok(file.listing_end(next).unwrap_or_else(|| {
            file.set_listing_end(next);
            next
        }))
    }

    /// Lists `.` and `..` if they come after `cookie`. Returns whether `entry` accepts more.
    fn give_dots(
        &self,
        directory: Node,
        cookie: u64,
        entry: &mut (impl FnMut(ListedName<'_>) -> bool + ?Sized),
    ) -> Result<bool> {
        let kind = FileKind::Directory;
        if cookie < COOKIE_DOT && !entry(ListedName { cookie: COOKIE_DOT, number: directory.number, kind, name: b"." })
        {
            return Ok(false);
        }
        if cookie < COOKIE_DOT_DOT {
            let number = self.thread.parent(directory)?;
            return Ok(entry(ListedName { cookie: COOKIE_DOT_DOT, number, kind, name: b".." }));
        }
        Ok(true)
    }

    /// [`Caller::read_directory_at`] from the position, which advances behind the last listed name.
    pub fn read_directory(
        &self,
        file: &OpenFile,
        entry: &mut (impl FnMut(ListedName<'_>) -> bool + ?Sized),
    ) -> Result<()> {
        let mut last = file.position();
        let mut each = |found: ListedName<'_>| {
            let cookie = found.cookie;
            let taken = entry(found);
            if taken {
                last = cookie;
            }
            taken
        };
        self.read_directory_at(file, file.position(), &mut each)?;
        file.set_position(last);
        Ok(())
    }
}
