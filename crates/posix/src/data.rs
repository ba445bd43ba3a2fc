//! Content of files: read, write, seek, truncate, fallocate, copies.

use crate::components::{Data, Permissions};
use crate::credentials::Want;
use crate::open::check_not_running;
use core::sync::atomic::Ordering::SeqCst;
use engine::format::FileKind;
use engine::{AllocateMode, Error, FileFlags, Node, SeekWhat};
use pmem::{BLOCK_BYTES, Memory, UserBytes, UserBytesMut};
use tables::process::leases_of;
use tables::watch::{Reports, event};
use tables::{Errno, OpenFile, Result};

/// One past the last possible offset of a file: offsets are signed.
const OFFSET_END: u64 = i64::MAX as u64;

/// Shorter ranges are copied: copying a few blocks costs no more than the fences of sharing, and
/// keeps later writes cheap.
const SHARED_BYTES_MIN: u64 = 64 << 10;

const KEEP_SIZE: i32 = libc::FALLOC_FL_KEEP_SIZE;
const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE;
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE;
const COLLAPSE_RANGE: i32 = libc::FALLOC_FL_COLLAPSE_RANGE;
const INSERT_RANGE: i32 = libc::FALLOC_FL_INSERT_RANGE;

/// The origin or target of lseek.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// The start.
    Set,
    /// The position.
    Current,
    /// The end.
    End,
    /// The next data.
    Data,
    /// The next hole.
    Hole,
}

impl Whence {
    /// From the number of lseek.
    pub fn from_raw(whence: i32) -> Result<Whence> {
        Ok(match whence {
            libc::SEEK_SET => Whence::Set,
            libc::SEEK_CUR => Whence::Current,
            libc::SEEK_END => Whence::End,
            libc::SEEK_DATA => Whence::Data,
            libc::SEEK_HOLE => Whence::Hole,
            _ => return Err(Errno::EINVAL),
        })
    }
}

/// Whether a write goes to the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Append {
    /// As the file was opened.
    AsOpened,
    /// Yes (RWF_APPEND).
    Always,
    /// No, however the file was opened (RWF_NOAPPEND).
    Never,
}

impl Append {
    fn applies(self, file: &OpenFile) -> bool {
        match self {
            Append::AsOpened => file.flags() & libc::O_APPEND != 0,
            Append::Always => true,
            Append::Never => false,
        }
    }
}

/// Checks an offset from a program: EINVAL if negative.
fn offset_of(offset: i64) -> Result<u64> {
    u64::try_from(offset).map_err(|_| Errno::EINVAL)
}

/// The end of a transfer: EINVAL if no offset can name it, whatever the file's size.
fn end_of(offset: u64, length: u64) -> Result<u64> {
    offset.checked_add(length).filter(|end| i64::try_from(*end).is_ok()).ok_or(Errno::EINVAL)
}

impl<'c, 'f, M: Memory> Data<'c, 'f, M> {
    fn permissions(self) -> Permissions<'c, 'f, M> {
        Permissions { thread: self.thread, credentials: self.credentials }
    }

    pub(crate) fn reports(self) -> Reports<'c, 'f, M> {
        Reports { thread: self.thread }
    }

    /// Checks that bytes can be read from a description: EBADF, EISDIR, EINVAL.
    fn check_reads(self, file: &OpenFile) -> Result<()> {
        match file.kind() {
            _ if !file.reads() => Err(Errno::EBADF),
            FileKind::Directory => Err(Errno::EISDIR),
            FileKind::Regular => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn check_writes(self, file: &OpenFile) -> Result<()> {
        match file.kind() {
            _ if !file.writes() => Err(Errno::EBADF),
            FileKind::Regular => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// pread.
    #[inline]
    pub fn read_at<'a>(self, file: &OpenFile, offset: i64, into: impl Into<UserBytesMut<'a>>) -> Result<usize> {
        self.read_user_at(file, offset, into.into())
    }

    fn read_user_at(self, file: &OpenFile, offset: i64, into: UserBytesMut<'_>) -> Result<usize> {
        self.check_reads(file)?;
        let offset = offset_of(offset)?;
        end_of(offset, into.len() as u64)?;
        if into.is_empty() {
            return Ok(0);
        }
        let count = self.thread.files().read(file.node(), offset, into)?;
        self.record_read(file)?;
        if count > 0 {
            self.reports().notify_open(file, event::ACCESS);
        }
        Ok(count)
    }

    /// read: at the position, which advances. Two readers of one description never get the same
    /// bytes: the later one reads again.
    #[inline]
    pub fn read<'a>(self, file: &OpenFile, into: impl Into<UserBytesMut<'a>>) -> Result<usize> {
        let into = into.into();
        loop {
            let position = file.position();
            let count = self.read_user_at(file, position as i64, into)?;
            if count == 0 || file.advance(position, position + count as u64) {
                return Ok(count);
            }
        }
    }

    /// The flag that forbids a write, besides that of immutable files: the open has checked that a
    /// description of an append-only file appends. Opens of a mount are not seen.
    fn kept_from(&self, file: &OpenFile, append: Append) -> FileFlags {
        let appends = file.flags() & libc::O_APPEND != 0;
        let refused = if self.credentials.checked { !appends } else { appends && append == Append::Never };
        if refused { FileFlags::APPEND_ONLY } else { FileFlags::NONE }
    }

    /// pwrite. With O_APPEND it writes at the end regardless of the offset, as Linux does.
    #[inline]
    pub fn write_at<'a>(self, file: &OpenFile, offset: i64, from: impl Into<UserBytes<'a>>) -> Result<usize> {
        self.write_at_as(file, offset, from.into(), Append::AsOpened)
    }

    /// pwritev2 with an offset.
    pub fn write_at_as(self, file: &OpenFile, offset: i64, from: UserBytes<'_>, append: Append) -> Result<usize> {
        self.check_writes(file)?;
        let offset = offset_of(offset)?;
        if from.is_empty() {
            return Ok(0);
        }
        self.strip_privileges(file.node(), self.kept_from(file, append))?;
        let written = if append.applies(file) {
            self.thread.files().append(file.node(), from)?;
            from.len()
        } else {
            Self::check_transfer(offset, from.len() as u64)?;
            self.thread.files().write(file.node(), offset, from)?
        };
        self.reports().notify_open(file, event::MODIFY);
        Ok(written)
    }

    /// write: at the position, which advances before the bytes are written, so that two writers of
    /// one description do not overwrite each other; or at the end with O_APPEND.
    #[inline]
    pub fn write<'a>(self, file: &OpenFile, from: impl Into<UserBytes<'a>>) -> Result<usize> {
        self.write_as(file, from.into(), Append::AsOpened)
    }

    /// pwritev2 at the position.
    pub fn write_as(self, file: &OpenFile, from: UserBytes<'_>, append: Append) -> Result<usize> {
        self.check_writes(file)?;
        if from.is_empty() {
            return Ok(0);
        }
        self.strip_privileges(file.node(), self.kept_from(file, append))?;
        let length = from.len() as u64;
        if append.applies(file) {
            let offset = self.thread.files().append(file.node(), from)?;
            file.set_position(offset + length);
            self.reports().notify_open(file, event::MODIFY);
            return Ok(from.len());
        }
        let offset = file.reserve(length);
        let written = Self::check_transfer(offset, length)
            .and_then(|()| Ok(self.thread.files().write(file.node(), offset, from)?));
        let end = offset + *written.as_ref().unwrap_or(&0) as u64;
        if end != offset + length {
            // If another write advanced the position meanwhile, a gap remains: as with two
            // descriptions.
            file.advance(offset + length, end);
        }
        if written.is_ok() {
            self.reports().notify_open(file, event::MODIFY);
        }
        written
    }

    /// Writes back the kernel's cached pages of a shared mapping. It writes at `offset` regardless
    /// of the open flags, and does not touch set-id bits, which were cleared when the page became
    /// writable.
    pub fn write_back(self, node: Node, offset: u64, from: &[u8]) -> Result<usize> {
        self.permissions().check_writable()?;
        // The kernel does not know the flags, so it lets programs map such files.
        if self.thread.protection(node)?.flags.has_any(FileFlags::IMMUTABLE.with(FileFlags::APPEND_ONLY)) {
            return Err(Errno::EPERM);
        }
        Self::check_end(offset, from.len() as u64)?;
        match self.thread.files().write(node, offset, from) {
            Err(Error::NoSpace) => self.write_back_pages(node, offset, from),
            written => Ok(written?),
        }
    }

    /// The pages of one request may lie in blocks and in holes. As many as can be are kept; for the
    /// others the kernel reports the error, at msync and fsync.
    #[cold]
    fn write_back_pages(self, node: Node, offset: u64, from: &[u8]) -> Result<usize> {
        let mut result = Ok(from.len());
        let (mut at, mut rest) = (offset, from);
        while !rest.is_empty() {
            let (page, later) = rest.split_at(rest.len().min((BLOCK_BYTES - at % BLOCK_BYTES) as usize));
            if let Err(error) = self.thread.files().write(node, at, page) {
                result = Err(error.into());
            }
            (at, rest) = (at + page.len() as u64, later);
        }
        result
    }

    fn check_transfer(offset: u64, length: u64) -> Result<()> {
        end_of(offset, length)?;
        Self::check_end(offset, length)
    }

    fn check_end(offset: u64, length: u64) -> Result<()> {
        match offset.checked_add(length) {
            Some(end) if end <= OFFSET_END => Ok(()),
            _ => Err(Errno::EFBIG),
        }
    }

    /// lseek; returns the new position. For a directory the position is a cookie.
    pub fn seek(self, file: &OpenFile, offset: i64, whence: Whence) -> Result<u64> {
        if file.is_path() {
            return Err(Errno::EBADF);
        }
        let position = match file.kind() {
            FileKind::Regular => self.seek_target(file, offset, whence)?,
            FileKind::Directory => match whence {
                Whence::Set => offset_of(offset)?,
                Whence::Current => offset_of(Self::add(file.position(), offset)?)?,
                _ => return Err(Errno::EINVAL),
            },
            _ => return Err(Errno::ESPIPE),
        };
        file.set_position(position);
        Ok(position)
    }

    fn seek_target(self, file: &OpenFile, offset: i64, whence: Whence) -> Result<u64> {
        match whence {
            Whence::Set => offset_of(offset),
            Whence::Current => offset_of(Self::add(file.position(), offset)?),
            Whence::End => offset_of(Self::add(self.thread.stat(file.node())?.size_bytes, offset)?),
            Whence::Data => self.seek_extent(file, offset, SeekWhat::Data),
            Whence::Hole => self.seek_extent(file, offset, SeekWhat::Hole),
        }
    }

    /// SEEK_DATA and SEEK_HOLE without moving the position: ENXIO before the start and from the end
    /// on.
    pub fn seek_extent(self, file: &OpenFile, offset: i64, what: SeekWhat) -> Result<u64> {
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        Ok(self.thread.files().seek(file.node(), offset, what)?)
    }

    fn add(base: u64, offset: i64) -> Result<i64> {
        i64::try_from(base).ok().and_then(|base| base.checked_add(offset)).ok_or(Errno::EINVAL)
    }

    /// truncate by node, with the permission check of the call by path. It heeds no leases.
    pub fn truncate(self, node: Node, length: i64) -> Result<()> {
        self.truncate_if(node, length, || true).map(drop)
    }

    /// `truncate`, but returns false, and does nothing, if leases on the file may exist.
    pub fn truncate_unless_leased(self, node: Node, length: i64) -> Result<bool> {
        let leases = leases_of(self.thread.fs(), node)?;
        self.truncate_if(node, length, || leases.load(SeqCst) == 0)
    }

    fn truncate_if(self, node: Node, length: i64, permits: impl Fn() -> bool) -> Result<bool> {
        let length = offset_of(length)?;
        let file = self.thread.stat(node)?;
        match file.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        self.permissions().check(node, Want::WRITE)?;
        check_not_running(self.thread, &file.protection())?;
        if !permits() {
            return Ok(false);
        }
        self.strip_privileges(node, FileFlags::APPEND_ONLY)?;
        let is_done = self.thread.files().truncate_if(node, length, permits)?;
        if is_done {
            self.reports().notify_node(node, false, event::MODIFY);
        }
        Ok(is_done)
    }

    /// ftruncate.
    pub fn truncate_open(self, file: &OpenFile, length: i64) -> Result<()> {
        let length = offset_of(length)?;
        if file.is_path() {
            return Err(Errno::EBADF);
        }
        if !file.writes() || file.kind() != FileKind::Regular {
            return Err(Errno::EINVAL);
        }
        self.strip_privileges(file.node(), FileFlags::APPEND_ONLY)?;
        self.thread.files().truncate(file.node(), length)?;
        self.reports().notify_truncated(file);
        Ok(())
    }

    /// fallocate(2).
    pub fn allocate(self, file: &OpenFile, mode: i32, offset: i64, length: i64) -> Result<()> {
        if offset < 0 || length <= 0 {
            return Err(Errno::EINVAL);
        }
        let mode = allocate_mode(mode)?;
        if !file.writes() {
            return Err(Errno::EBADF);
        }
        match file.kind() {
            FileKind::Regular => {}
            FileKind::Fifo => return Err(Errno::ESPIPE),
            FileKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::ENODEV),
        }
        let (offset, length) = (offset as u64, length as u64);
        Self::check_end(offset, length)?;
        let kept_by = match mode {
            AllocateMode::Allocate { .. } => FileFlags::NONE,
            _ => FileFlags::APPEND_ONLY,
        };
        self.strip_privileges(file.node(), kept_by)?;
        self.thread.files().allocate(file.node(), mode, offset, length)?;
        self.reports().notify_open(file, event::MODIFY);
        Ok(())
    }

    /// FICLONE and FICLONERANGE: shares the blocks of `from` with the range of `to` until one side
    /// is written; `length` bytes or all up to the end. Atomic and persistent, unless a program
    /// maps one of the files: then the bytes are copied through `buffer`.
    pub fn clone_range(
        self,
        (from, from_offset): (&OpenFile, u64),
        (to, to_offset): (&OpenFile, u64),
        length: Option<u64>,
        buffer: &mut [u8],
    ) -> Result<()> {
        let is = |kind| from.kind() == kind || to.kind() == kind;
        if is(FileKind::Directory) {
            return Err(Errno::EISDIR);
        }
        if from.kind() != FileKind::Regular || to.kind() != FileKind::Regular {
            return Err(Errno::EINVAL);
        }
        if !from.reads() || !to.writes() || to.flags() & libc::O_APPEND != 0 {
            return Err(Errno::EBADF);
        }
        for offset in [from_offset, to_offset] {
            Self::check_end(offset, length.unwrap_or(0)).map_err(|_| Errno::EINVAL)?;
        }
        self.strip_privileges(to.node(), FileFlags::NONE)?;
        let (files, from, to) = ((from, to), (from.node(), from_offset), (to.node(), to_offset));
        match self.thread.files().share_range(from, to, length) {
            Err(Error::Busy) => {
                let left = self.thread.stat(from.0)?.size_bytes.saturating_sub(from.1);
                self.copy_all(from, to, length.unwrap_or(left), buffer)?;
            }
            shared => drop(shared?),
        }
        self.notify_copied(files);
        Ok(())
    }

    fn notify_copied(self, (from, to): (&OpenFile, &OpenFile)) {
        self.reports().notify_open(from, event::ACCESS);
        self.reports().notify_open(to, event::MODIFY);
    }

    /// copy_file_range between two files of this file system; returns the number of copied bytes.
    /// Long ranges of whole blocks are shared ([`Data::clone_range`]). Other bytes go through
    /// `buffer`, holes as zeros.
    pub fn copy_range(
        self,
        (from, from_offset): (&OpenFile, u64),
        (to, to_offset): (&OpenFile, u64),
        length: u64,
        buffer: &mut [u8],
    ) -> Result<u64> {
        self.check_reads(from)?;
        self.check_writes(to)?;
        if to.flags() & libc::O_APPEND != 0 {
            return Err(Errno::EBADF);
        }
        Self::check_end(from_offset, length)?;
        Self::check_end(to_offset, length)?;
        let distance = from_offset.abs_diff(to_offset);
        if from.node() == to.node() && distance < length {
            return Err(Errno::EINVAL);
        }
        self.strip_privileges(to.node(), FileFlags::NONE)?;
        let (files, from, to) = ((from, to), (from.node(), from_offset), (to.node(), to_offset));
        let shared = self.share_start(from, to, length)?;
        let copied = self.copy_all((from.0, from.1 + shared), (to.0, to.1 + shared), length - shared, buffer);
        let count = match copied {
            Err(_) if shared > 0 => shared,
            copied => shared + copied?,
        };
        if count > 0 {
            self.notify_copied(files);
        }
        Ok(count)
    }

    /// Shares blocks for as much of the start of a copy as possible; returns the number of bytes.
    fn share_start(self, from: (Node, u64), to: (Node, u64), length: u64) -> Result<u64> {
        let left = self.thread.stat(from.0)?.size_bytes.saturating_sub(from.1);
        let wanted = length.min(left);
        if wanted < SHARED_BYTES_MIN || !(from.1 | to.1).is_multiple_of(BLOCK_BYTES) {
            return Ok(0);
        }
        // The last partial block only if both files end there.
        for bytes in [wanted, wanted / BLOCK_BYTES * BLOCK_BYTES] {
            match self.thread.files().share_range(from, to, Some(bytes)) {
                Err(Error::Invalid) => {}
                Err(Error::Busy) => break,
                shared => return Ok(shared?),
            }
        }
        Ok(0)
    }

    fn copy_all(self, from: (Node, u64), to: (Node, u64), length: u64, buffer: &mut [u8]) -> Result<u64> {
        let mut done = 0;
        while done < length && !buffer.is_empty() {
            let step = (length - done).min(buffer.len() as u64) as usize;
            match self.copy_step((from.0, from.1 + done), (to.0, to.1 + done), &mut buffer[..step]) {
                Ok(0) => break,
                Ok(count) => done += count as u64,
                // The copied bytes are reported; the error appears at the next call.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn copy_step(self, from: (Node, u64), to: (Node, u64), buffer: &mut [u8]) -> Result<usize> {
        let count = self.thread.files().read(from.0, from.1, &mut *buffer)?;
        if count == 0 {
            return Ok(0);
        }
        Ok(self.thread.files().write(to.0, to.1, &buffer[..count])?)
    }
}

/// Parses the mode of fallocate: EOPNOTSUPP for unknown bits and for contradictions.
fn allocate_mode(mode: i32) -> Result<AllocateMode> {
    const KNOWN: i32 = KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE | COLLAPSE_RANGE | INSERT_RANGE;
    if mode & !KNOWN != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let keep_size = mode & KEEP_SIZE != 0;
    match mode & !KEEP_SIZE {
        0 => Ok(AllocateMode::Allocate { keep_size }),
        PUNCH_HOLE if keep_size => Ok(AllocateMode::PunchHole),
        ZERO_RANGE => Ok(AllocateMode::ZeroRange { keep_size }),
        COLLAPSE_RANGE if !keep_size => Ok(AllocateMode::CollapseRange),
        INSERT_RANGE if !keep_size => Ok(AllocateMode::InsertRange),
        _ => Err(Errno::EOPNOTSUPP),
    }
}
