//! Translation between the `fuser` crate and [`Files`]. Only this module uses the protocol's types.

use crate::files::{Files, NewKind, Requester, Setting};
use crate::options::Cache;
use engine::Attributes;
use engine::format::FileKind;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use posix::{Errno, Result, TimeToSet};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The unit of file sizes in stat.
const SECTORS_PER_BLOCK: u64 = 8;
/// Bytes copied at a time by one request, and its maximum in total.
const COPY_STEP_BYTES: usize = 1 << 20;
const COPY_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a directory entry on the wire in addition to its name, without and with attributes.
const ENTRY_BYTES: usize = 24;
const ENTRY_PLUS_BYTES: usize = 152;
/// The kernel's maximum for the names in a listxattr reply.
const LIST_BYTES_MAX: usize = 65_536;

thread_local! {
    /// Content on its way to the kernel. Each worker keeps its buffer, because allocating one costs
    /// more than a request.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `call` with `length` bytes of the worker's buffer, whose content is arbitrary.
fn with_buffer<T>(length: usize, call: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        call(&mut buffer[..length])
    })
}

/// The file system in the form that `fuser` requires.
pub(crate) struct Adapter {
    files: Arc<Files>,
    cache: Cache,
    /// Content bypasses the kernel's cache, so that the next read sees changes by other processes.
    direct: bool,
}

impl Adapter {
    pub(crate) fn new(files: Arc<Files>, cache: Cache) -> Adapter {
        Adapter { files, cache, direct: false }
    }

    fn open_flags(&self) -> FopenFlags {
        match (self.cache.is_exclusive(), self.direct) {
            (true, _) => FopenFlags::FOPEN_KEEP_CACHE,
            (false, true) => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
            (false, false) => FopenFlags::empty(),
        }
    }

    fn validity(&self) -> Duration {
        self.cache.validity()
    }

    fn reply_entry(&self, result: Result<Attributes>, reply: ReplyEntry) {
        match result {
            Ok(attributes) => {
                reply.entry(&self.validity(), &attr(&attributes), Generation(attributes.generation as u64))
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn reply_attr(&self, result: Result<Attributes>, reply: ReplyAttr) {
        match result {
            Ok(attributes) => reply.attr(&self.validity(), &attr(&attributes)),
            Err(error) => reply.error(errno(error)),
        }
    }
}

fn requester(request: &Request) -> Requester {
    Requester { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.0)
}

fn reply_empty(result: Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Character => FileType::CharDevice,
        FileKind::Directory => FileType::Directory,
        FileKind::Block => FileType::BlockDevice,
        FileKind::Regular => FileType::RegularFile,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Socket => FileType::Socket,
    }
}

fn system_time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// The crate represents times before 1970 with their nanoseconds in the wrong direction: -1.5 s
/// arrives as -(2 + 0.5) s. This corrects them.
fn time_to_set(time: TimeOrNow) -> Result<TimeToSet> {
    let (seconds, nanoseconds) = match time {
        TimeOrNow::Now => return Ok(TimeToSet::Now),
        TimeOrNow::SpecificTime(time) => match time.duration_since(UNIX_EPOCH) {
            Ok(after) => (i64::try_from(after.as_secs()), after.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                (i64::try_from(before.as_secs()).map(|seconds| -seconds), before.subsec_nanos())
            }
        },
    };
    TimeToSet::from_timespec(seconds.map_err(|_| Errno::EINVAL)?, nanoseconds.into())
}

fn attr(attributes: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(attributes.number),
        size: attributes.size_bytes,
        blocks: attributes.blocks * SECTORS_PER_BLOCK,
        atime: system_time(attributes.accessed_ns),
        mtime: system_time(attributes.modified_ns),
        ctime: system_time(attributes.changed_ns),
        crtime: UNIX_EPOCH,
        kind: file_type(attributes.kind),
        perm: (attributes.mode & 0o7777) as u16,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.device,
        blksize: pmem::BLOCK_BYTES as u32,
        flags: 0,
    }
}

/// A negative reply, which the kernel may cache: inode number zero.
fn nothing() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

#[allow(clippy::too_many_arguments)]
impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Only capabilities that the kernel offers are enabled; everything works without them.
        // FUSE_ATOMIC_O_TRUNC is excluded: with it, opening a running program for reading with
        // O_TRUNC empties it before the kernel checks that it is running.
        let always = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_EXPORT_SUPPORT,
            // The server clears set-id bits and capabilities; otherwise the kernel requests an
            // attribute before each write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            // The kernel requests access control lists and enforces them. The server applies a
            // directory's default list instead of the umask.
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
        ];
        for flag in always {
            let _ = config.add_capabilities(flag);
        }
        if self.cache.is_exclusive() {
            let _ = config.add_capabilities(InitFlags::FUSE_CACHE_SYMLINKS);
        } else {
            let _ = config.add_capabilities(InitFlags::FUSE_AUTO_INVAL_DATA);
            // Too many programs fail without shared mappings, so on old kernels the page cache
            // stays and is validated by the modification time.
            self.direct = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok();
        }
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.files.lookup(requester(request), parent.0, name.as_bytes()) {
            Err(Errno::ENOENT) if self.cache.is_exclusive() => reply.entry(&self.validity(), &nothing(), Generation(0)),
            result => self.reply_entry(result, reply),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        self.files.forget(ino.0, nlookup);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.reply_attr(self.files.stat(requester(request), ino.0), reply);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let times = atime
            .map_or(Ok(TimeToSet::Omit), time_to_set)
            .and_then(|accessed| Ok((accessed, mtime.map_or(Ok(TimeToSet::Omit), time_to_set)?)));
        let result = times.and_then(|(accessed, modified)| {
            let setting = Setting { size_bytes: size, mode, uid, gid, accessed, modified };
            self.files.set(requester(request), ino.0, &setting)
        });
        self.reply_attr(result, reply);
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.files.readlink(requester(request), ino.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let made = self.files.make(requester(request), parent.0, name.as_bytes(), (mode, umask), NewKind::Node(rdev));
        self.reply_entry(made, reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let made = self.files.make(requester(request), parent.0, name.as_bytes(), (mode, umask), NewKind::Directory);
        self.reply_entry(made, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let kind = NewKind::Symlink(target.as_os_str().as_bytes());
        self.reply_entry(self.files.make(requester(request), parent.0, name.as_bytes(), (0o777, 0), kind), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.files.remove(requester(request), parent.0, name.as_bytes(), false), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.files.remove(requester(request), parent.0, name.as_bytes(), true), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let from = (parent.0, name.as_bytes());
        let to = (newparent.0, newname.as_bytes());
        reply_empty(self.files.rename(requester(request), from, to, flags.bits()), reply);
    }

    fn link(&self, request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        self.reply_entry(self.files.link(requester(request), ino.0, newparent.0, newname.as_bytes()), reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.files.open(requester(request), ino.0, flags.0) {
            Ok(handle) => reply.opened(FileHandle(handle), self.open_flags()),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.files.create(requester(request), parent.0, name.as_bytes(), (mode, umask), flags) {
            Ok((attributes, handle)) => reply.created(
                &self.validity(),
                &attr(&attributes),
                Generation(attributes.generation as u64),
                FileHandle(handle),
                self.open_flags(),
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.files.record_flags(handle.0, flags.0);
        with_buffer(size as usize, |buffer| match self.files.read(requester(request), handle.0, offset, buffer) {
            Ok(count) => reply.data(&buffer[..count]),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn write(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mapped = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        if !mapped {
            self.files.record_flags(handle.0, flags.0);
        }
        match self.files.write(requester(request), handle.0, offset, data, mapped) {
            Ok(count) => reply.written(count as u32),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn flush(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        // Nothing is buffered, so close cannot fail. After ENOSYS the kernel stops asking, which
        // saves a request per close.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.files.close(handle.0);
        reply.ok();
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        if self.files.needs_sync() {
            reply_empty(self.files.sync(handle.0), reply);
        } else {
            // Written content is already as safe as it gets. After ENOSYS the kernel stops asking
            // and reports success to programs.
            reply.error(fuser::Errno::ENOSYS);
        }
    }

    fn opendir(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.files.open(requester(request), ino.0, flags.0) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdir(&self, request: &Request, _ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = match self.files.list(requester(request), handle.0, offset, ENTRY_BYTES) {
            Ok(listed) => listed,
            Err(error) => return reply.error(errno(error)),
        };
        for entry in listed {
            let name = OsStr::from_bytes(&entry.name);
            if reply.add(INodeNo(entry.number), entry.cookie, file_type(entry.kind), name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = match self.files.list(requester(request), handle.0, offset, ENTRY_PLUS_BYTES) {
            Ok(listed) => listed,
            Err(error) => return reply.error(errno(error)),
        };
        let validity = self.validity();
        let result = self.files.offer(requester(request), handle.0, &listed, |entry, found| {
            let (attributes, generation) = match found {
                Some(found) => (attr(found), found.generation),
                // Of `.` and `..` the kernel uses only number and type, and does not count a
                // lookup.
                None => (FileAttr { ino: INodeNo(entry.number), kind: FileType::Directory, ..nothing() }, 0),
            };
            let name = OsStr::from_bytes(&entry.name);
            !reply.add(attributes.ino, entry.cookie, name, &validity, &attributes, Generation(generation.into()))
        });
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn releasedir(&self, _request: &Request, _ino: INodeNo, handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.files.close(handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, request: &Request, ino: INodeNo, handle: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.fsync(request, ino, handle, datasync, reply);
    }

    fn statfs(&self, request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.files.statfs(requester(request)) {
            Ok(status) => reply.statfs(
                status.blocks,
                status.blocks_free,
                status.blocks_free,
                status.files,
                status.files_free,
                status.block_bytes as u32,
                status.name_bytes_max as u32,
                status.block_bytes as u32,
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply_empty(self.files.set_attribute(requester(request), ino.0, name.as_bytes(), value, flags), reply);
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let call = |value: &mut [u8]| self.files.attribute(requester(request), ino.0, name.as_bytes(), value);
        reply_xattr(size, posix::VALUE_BYTES_MAX, call, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let call = |names: &mut [u8]| self.files.list_attributes(requester(request), ino.0, names);
        reply_xattr(size, LIST_BYTES_MAX, call, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.files.remove_attribute(requester(request), ino.0, name.as_bytes()), reply);
    }

    fn access(&self, _request: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // The kernel checks permissions itself and does not ask.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        reply_empty(self.files.allocate(requester(request), handle.0, mode, offset, length), reply);
    }

    fn lseek(&self, request: &Request, _ino: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        match self.files.seek(requester(request), handle.0, offset, whence) {
            Ok(position) => reply.offset(position as i64),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _ino_in: INodeNo,
        handle_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        handle_out: FileHandle,
        offset_out: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((handle_in.0, offset_in), (handle_out.0, offset_out));
        let length = length.min(COPY_BYTES_MAX);
        let copied = with_buffer(COPY_STEP_BYTES.min(length as usize), |buffer| {
            self.files.copy(requester(request), from, to, length, buffer)
        });
        match copied {
            Ok(count) => reply.written(count as u32),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(fuser::Errno::ENOTTY);
    }

    fn bmap(&self, _request: &Request, _ino: INodeNo, _blocksize: u32, _idx: u64, reply: ReplyBmap) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn poll(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        // Files are always ready; after ENOSYS the kernel reports that itself.
        reply.error(fuser::Errno::ENOSYS);
    }
}

/// Replies with a value, or with its length if the request has no room.
fn reply_xattr(size: u32, most: usize, call: impl FnOnce(&mut [u8]) -> Result<usize>, reply: ReplyXattr) {
    with_buffer((size as usize).min(most), |buffer| match call(buffer) {
        Ok(length) if size == 0 => reply.size(length as u32),
        Ok(length) => reply.data(&buffer[..length]),
        Err(error) => reply.error(errno(error)),
    });
}
