//! Translation between the FUSE protocol and [`Files`].
//!
//! If the server is alone on the image ([`Cache::Exclusive`]), it answers OPEN, OPENDIR, CREATE and
//! FLUSH with ENOSYS. The kernel then stops sending them and keeps what it knows: its cache is
//! right until a request changes it. It answers OPEN if files have flags, which the kernel does not
//! know.
//!
//! Decision: docs/decisions/mounts.md, "A mount alone on its image does without opens".

use crate::files::{Files, Listed, NewKind, Requester, Setting};
use crate::leases::{Access, Rest};
use crate::locks::LockRequest;
use crate::mapped_pages::{DropPages, DroppedPages, MappedPages};
use crate::options::{Cache, MountOptions};
use crate::orders;
use crate::privileges;
use crate::protocol::{
    Arguments, ENTRY_BYTES, ENTRY_PLUS_BYTES, Header, READ_LOCK_OWNER, RELEASE_FLOCK_UNLOCK, Reply,
    SETXATTR_CLEAR_SET_GID, WRITE_CACHE, capability, opcode, open_flag, set,
};
use crate::renames::Renames;
use crate::requests::{self, Requests};
use crate::session::{Channel, Handled, Handler};
use engine::Attributes;
use posix::{Errno, ExtendedFlags, Result, TimeToSet};
use std::cell::{Cell, RefCell};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Bytes copied at a time by one request, and its maximum in total.
const COPY_STEP_BYTES: usize = 1 << 20;
const COPY_BYTES_MAX: u64 = 64 << 20;
/// Most bytes of a reply with content.
const READ_BYTES_MAX: usize = 1 << 20;

const ENOSYS: Errno = Errno(libc::ENOSYS);

/// The rest of an open, whose reply is complete. `reverse`: if leases remain.
fn after_open(reverse: impl FnOnce(&Files) + Send + 'static) -> Rest {
    Box::new(|files, broken, _| broken.inspect_err(|_| reverse(files)))
}

thread_local! {
    /// Content that copy_file_range moves. Each worker keeps its buffer.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The file system in the form of requests and replies.
pub(crate) struct Adapter {
    files: Arc<Files>,
    cache: Cache,
    no_xattr: bool,
    read_only: bool,
    /// The mount's `MS_SYNCHRONOUS` and `MS_DIRSYNC`: the kernel syncs contents alone.
    synchronous: libc::c_ulong,
    /// With a keeper: the renames that must not be done twice.
    renames: Option<&'static Renames>,
    /// Content bypasses the kernel's cache, so that the next read sees changes by other processes.
    direct: AtomicBool,
    /// Of which mappings have pages in it nevertheless.
    mapped: Arc<MappedPages>,
    /// Has the kernel drop pages before a write is answered.
    drop_pages: OnceLock<DropPages>,
    /// The kernel says whether setting an access list clears the set-group-id bit.
    extended_set: AtomicBool,
    requests: Requests,
}

impl Adapter {
    pub(crate) fn new(files: Arc<Files>, options: &MountOptions, renames: Option<&'static Renames>) -> Adapter {
        Adapter {
            files,
            cache: options.cache,
            no_xattr: options.no_xattr,
            read_only: options.read_only,
            synchronous: options.kernel_flags & (libc::MS_SYNCHRONOUS | libc::MS_DIRSYNC),
            renames,
            direct: AtomicBool::new(false),
            mapped: Arc::default(),
            drop_pages: OnceLock::new(),
            extended_set: AtomicBool::new(false),
            requests: Requests::new(),
        }
    }

    /// An adapter for a session that was established earlier with these capabilities.
    pub(crate) fn resume(self, capabilities: u64) -> Adapter {
        self.direct.store(capabilities & capability::DIRECT_IO_ALLOW_MMAP != 0, Relaxed);
        self.extended_set.store(capabilities & capability::SETXATTR_EXT != 0, Relaxed);
        self
    }

    /// Ends what still waits, after the mount has ended.
    pub(crate) fn finish(&self) {
        self.files.finish();
    }

    /// Sets the function that has the kernel drop pages.
    pub(crate) fn drop_pages_by(&self, drop_pages: DropPages) {
        // Set once, when the session begins; a second call has no effect.
        let _ = self.drop_pages.set(drop_pages);
    }

    fn open_flags(&self) -> u32 {
        match (self.cache.is_exclusive(), self.direct.load(Relaxed)) {
            (true, _) => open_flag::KEEP_CACHE,
            (false, true) => open_flag::DIRECT_IO | open_flag::PARALLEL_DIRECT_WRITES,
            (false, false) => 0,
        }
    }

    fn validity(&self) -> Duration {
        self.cache.validity()
    }

    fn entry(&self, found: &Attributes, reply: &mut Reply) -> Result<()> {
        reply.entry(self.validity(), found);
        Ok(())
    }

    fn lookup(&self, call: &Call<'_>, name: &[u8], reply: &mut Reply) -> Result<()> {
        match self.files.lookup(call.requester, call.node, name) {
            Err(Errno::ENOENT) if self.cache.is_exclusive() => {
                reply.no_entry(self.validity());
                Ok(())
            }
            found => self.entry(&found?, reply),
        }
    }

    /// Makes a file that is not regular, or one without opening it.
    fn make(&self, call: &Call<'_>, arguments: &mut Arguments<'_>, reply: &mut Reply) -> Result<()> {
        let made = match call.opcode {
            opcode::MKNOD => {
                let (mode, device, umask) = (arguments.u32()?, arguments.u32()?, arguments.u32()?);
                arguments.skip(4)?;
                self.files.make(call.requester, call.node, arguments.name()?, (mode, umask), NewKind::Node(device))
            }
            opcode::MKDIR => {
                let (mode, umask) = (arguments.u32()?, arguments.u32()?);
                self.files.make(call.requester, call.node, arguments.name()?, (mode, umask), NewKind::Directory)
            }
            _ => {
                let (name, target) = (arguments.name()?, arguments.name()?);
                self.files.make(call.requester, call.node, name, (0o777, 0), NewKind::Symlink(target))
            }
        };
        self.entry(&made?, reply)
    }

    /// Opens a new file: with a name (CREATE) or without (TMPFILE).
    fn create(&self, call: &Call<'_>, arguments: &mut Arguments<'_>, reply: &mut Reply) -> Result<Handled> {
        let (flags, mode, umask) = (arguments.i32()?, arguments.u32()?, arguments.u32()?);
        arguments.skip(4)?;
        let (made, handle) = match call.opcode {
            opcode::TMPFILE => self.files.create_unnamed(call.requester, call.node, (mode, umask), flags)?,
            // The kernel sends LOOKUP and MKNOD instead, and no RELEASE later.
            _ if self.cache.is_exclusive() => return Err(ENOSYS),
            _ => self.files.create(call.requester, call.node, arguments.name()?, (mode, umask), flags)?,
        };
        self.entry(&made, reply)?;
        reply.opened(handle, self.open_flags());
        // Another process may have created the file meanwhile, and taken a lease.
        let number = made.number;
        let reverse = move |files: &Files| {
            files.close(handle);
            files.forget(number, 1);
        };
        self.break_leases(call, Access { node: number, flags }, after_open(reverse), reply)
    }

    /// Breaks the leases of other ways in, where there are any, and then does the rest.
    fn break_leases(&self, call: &Call<'_>, access: Access, rest: Rest, reply: &mut Reply) -> Result<Handled> {
        if self.files.locks().is_none() {
            return rest(&self.files, Ok(()), reply).map(|()| Handled::Reply);
        }
        // What is answered later is committed there, with the directory or file of the request.
        let changed = self.must_commit(call.opcode).then_some(call.node);
        self.files.leases().complete(&self.files, access, (rest, changed), reply, (call.channel, call.unique))
    }

    fn open(&self, call: &Call<'_>, arguments: &mut Arguments<'_>, reply: &mut Reply) -> Result<Handled> {
        // Opens are only checked if files may be immutable or append-only.
        let is_checked = call.opcode == opcode::OPEN && self.files.has_flags();
        if self.cache.is_exclusive() && !is_checked {
            return Err(ENOSYS);
        }
        let flags = arguments.i32()?;
        let handle = self.files.open(call.requester, call.node, flags)?;
        reply.opened(handle, if call.opcode == opcode::OPEN { self.open_flags() } else { 0 });
        if call.opcode == opcode::OPENDIR {
            return Ok(Handled::Reply);
        }
        let reverse = move |files: &Files| files.close(handle);
        self.break_leases(call, Access { node: call.node, flags }, after_open(reverse), reply)
    }

    fn set_attributes(&self, call: &Call<'_>, arguments: &mut Arguments<'_>, reply: &mut Reply) -> Result<Handled> {
        let valid = arguments.u32()?;
        arguments.skip(12)?;
        let size = arguments.u64()?;
        arguments.skip(8)?;
        let [accessed, modified] = [arguments.i64()?, arguments.i64()?];
        arguments.skip(8)?;
        let [accessed_ns, modified_ns] = [arguments.u32()?, arguments.u32()?];
        arguments.skip(4)?;
        let mode = arguments.u32()?;
        arguments.skip(4)?;
        let [uid, gid] = [arguments.u32()?, arguments.u32()?];
        let time = |given, now, seconds, nanoseconds: u32| match () {
            () if valid & now != 0 => Ok(TimeToSet::Now),
            () if valid & given != 0 => TimeToSet::from_timespec(seconds, nanoseconds.into()),
            () => Ok(TimeToSet::Omit),
        };
        let setting = Setting {
            size_bytes: (valid & set::SIZE != 0).then_some(size),
            mode: (valid & set::MODE != 0).then_some(mode),
            uid: (valid & set::UID != 0).then_some(uid),
            gid: (valid & set::GID != 0).then_some(gid),
            accessed: time(set::ATIME, set::ATIME_NOW, accessed, accessed_ns)?,
            modified: time(set::MTIME, set::MTIME_NOW, modified, modified_ns)?,
        };
        let (requester, node, validity) = (call.requester, call.node, self.validity());
        let rest = move |files: &Files, broken: Result<()>, reply: &mut Reply| {
            broken?;
            reply.attributes_valid_for(validity, &files.set(requester, node, &setting)?);
            Ok(())
        };
        // An open descriptor has broken them.
        match valid & (set::SIZE | set::HANDLE) {
            set::SIZE => self.break_leases(call, Access { node, flags: libc::O_WRONLY }, Box::new(rest), reply),
            _ => rest(&self.files, Ok(()), reply).map(|()| Handled::Reply),
        }
    }

    fn rename(&self, call: &Call<'_>, arguments: &mut Arguments<'_>) -> Result<()> {
        let (directory, mut flags) = (arguments.u64()?, 0);
        if call.opcode == opcode::RENAME2 {
            flags = arguments.u32()?;
            arguments.skip(4)?;
        }
        let (from, to) = ((call.node, arguments.name()?), (directory, arguments.name()?));
        match self.renames.filter(|_| flags & (libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT) != 0) {
            Some(renames) => self.rename_once(call, renames, from, to, flags),
            None => self.files.rename(call.requester, from, to, flags),
        }
    }

    /// A rename that an earlier server may have done.
    fn rename_once(
        &self,
        call: &Call<'_>,
        renames: &Renames,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Result<()> {
        let noted = if call.is_resent() { renames.file_of(call.number()) } else { None };
        if noted.is_some() && noted == self.files.number_of(call.requester, to)? {
            return Ok(());
        }
        if let Some(file) = self.files.number_of(call.requester, from)? {
            renames.note(call.number(), file);
        }
        self.files.rename(call.requester, from, to, flags)
    }

    fn read(&self, call: &Call<'_>, arguments: &mut Arguments<'_>, reply: &mut Reply) -> Result<()> {
        let read = ReadArguments::parse(arguments)?;
        if self.direct.load(Relaxed) && read.read_flags & READ_LOCK_OWNER == 0 {
            self.mapped.record_read(call.node, read.offset, read.size as u64);
        }
        reply.fill(read.size.min(READ_BYTES_MAX), |into| {
            self.files.read(call.requester, (call.node, read.handle, read.flags), read.offset, into)
        })
    }

    fn write(&self, call: &Call<'_>, arguments: &mut Arguments<'_>, reply: &mut Reply) -> Result<Handled> {
        let (handle, offset, size) = (arguments.u64()?, arguments.u64()?, arguments.u32()?);
        let write_flags = arguments.u32()?;
        arguments.skip(8)?;
        let flags = arguments.i32()?;
        arguments.skip(4)?;
        let (content, file) = (arguments.bytes(size as usize)?, (call.node, handle, flags));
        let (of_page, direct) = (write_flags & WRITE_CACHE != 0, self.direct.load(Relaxed));
        // After a write that bypasses its cache the kernel sends no FSYNC for O_SYNC, O_DSYNC and
        // RWF_DSYNC: the flags come with the request, and O_SYNC contains O_DSYNC.
        let is_synchronous = flags & libc::O_DSYNC != 0 || self.synchronous & libc::MS_SYNCHRONOUS != 0;
        let syncs = direct && !of_page && is_synchronous && self.files.needs_sync();
        let is_written = Cell::new(false);
        let write = |offset, content: &[u8]| {
            let count = self.files.write(call.requester, file, offset, content, of_page)?;
            is_written.set(true);
            if syncs {
                self.files.sync(call.node)?;
            }
            Ok(count)
        };
        if direct && !of_page {
            return match self.write_directly(call, (offset, content), write, reply) {
                // An append would be there twice.
                Err(error) if is_written.get() => Ok(Handled::Refused(error)),
                handled => handled,
            };
        }
        let count = match direct {
            true => self.mapped.write_back(call.node, offset, content, write)?,
            false => write(offset, content)?,
        };
        reply.u32(count as u32).u32(0);
        Ok(Handled::Reply)
    }

    /// A write that bypasses the kernel's cache. If the kernel has to drop pages before the answer,
    /// another thread sends it: dropping a page can take requests that the workers serve.
    fn write_directly(
        &self,
        call: &Call<'_>,
        (offset, content): (u64, &[u8]),
        write: impl Fn(u64, &[u8]) -> Result<usize>,
        reply: &mut Reply,
    ) -> Result<Handled> {
        let writing = self.mapped.begin_write(call.node, offset, content.len() as u64);
        let written = write(offset, content);
        let is_held = self.mapped.has_acted(&writing);
        let Some(drop_pages) = self.drop_pages.get().filter(|_| is_held) else {
            self.mapped.end_write(&writing);
            reply.u32(written? as u32).u32(0);
            return Ok(Handled::Reply);
        };
        let (mapped, channel, unique) = (Arc::clone(&self.mapped), call.channel.clone(), call.unique);
        let pages = writing.pages();
        let answer = Box::new(move || {
            mapped.end_write(&writing);
            let mut reply = Reply::new();
            let code = match written {
                Ok(count) => {
                    reply.u32(count as u32).u32(0);
                    0
                }
                Err(Errno(number)) => -number,
            };
            channel.answer(&mut reply, unique, code);
        });
        drop_pages(DroppedPages { pages, then: answer });
        Ok(Handled::Silent)
    }

    fn list(&self, call: &Call<'_>, arguments: &mut Arguments<'_>, reply: &mut Reply) -> Result<()> {
        let read = ReadArguments::parse(arguments)?;
        let plus = call.opcode == opcode::READDIRPLUS;
        let head_bytes = if plus { ENTRY_PLUS_BYTES } else { ENTRY_BYTES };
        let listed = self.files.list(call.requester, call.node, read.offset, head_bytes)?;
        let (most, validity) = (read.size, self.validity());
        if plus {
            self.files.offer(call.requester, (call.node, read.offset == 0), &listed, |entry, found| {
                let of = (entry.number, entry.cookie, kind_of(entry), &entry.name[..]);
                reply.listed_with(most, validity, found, of)
            })?;
        } else {
            for entry in &listed {
                if !reply.listed(most, entry.number, entry.cookie, kind_of(entry), &entry.name) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn status(&self, call: &Call<'_>, reply: &mut Reply) -> Result<()> {
        let status = self.files.statfs(call.requester)?;
        let block_bytes = status.block_bytes as u32;
        reply.u64(status.blocks).u64(status.blocks_free).u64(status.blocks_available);
        reply.u64(status.files).u64(status.files_free);
        reply.u32(block_bytes).u32(status.name_bytes_max as u32).u32(block_bytes).zeros(28);
        Ok(())
    }

    fn extended_attribute(&self, call: &Call<'_>, arguments: &mut Arguments<'_>, reply: &mut Reply) -> Result<()> {
        match call.opcode {
            // The kernel stops asking: otherwise it asks for file capabilities before the first
            // write to each file, and programs get EOPNOTSUPP.
            _ if self.no_xattr => Err(ENOSYS),
            opcode::SETXATTR => {
                let (size, flags) = (arguments.u32()?, arguments.i32()?);
                let mut clears_set_gid = false;
                if self.extended_set.load(Relaxed) {
                    clears_set_gid = arguments.u32()? & SETXATTR_CLEAR_SET_GID != 0;
                    arguments.skip(4)?;
                }
                let (name, value) = (arguments.name()?, arguments.bytes(size as usize)?);
                if name == requests::SIZE_ATTRIBUTE.as_bytes() {
                    let text = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
                    return self.files.grow_image(call.requester, text.parse().map_err(|_| Errno::EINVAL)?);
                }
                if name == privileges::ATTRIBUTE.as_bytes() {
                    return self.files.permit_privileges(call.requester, value);
                }
                if name == orders::ATTRIBUTE.as_bytes() && self.takes_orders() {
                    return self.files.give_order(call.requester, value);
                }
                self.files.set_attribute(call.requester, call.node, (name, value), flags, clears_set_gid)
            }
            opcode::REMOVEXATTR => self.files.remove_attribute(call.requester, call.node, arguments.name()?),
            opcode::GETXATTR => {
                let size = arguments.u32()? as usize;
                arguments.skip(4)?;
                let name = arguments.name()?;
                if name == requests::ATTRIBUTE.as_bytes() {
                    return reply_text(size, self.requests.text(), reply);
                }
                if name == requests::SIZE_ATTRIBUTE.as_bytes() {
                    return reply_text(size, self.files.image_sizes(), reply);
                }
                if name == requests::LATENCIES_ATTRIBUTE.as_bytes() {
                    return reply_text(size, self.requests.latencies_text(), reply);
                }
                if name == orders::ATTRIBUTE.as_bytes() && self.takes_orders() {
                    return reply_text(size, self.files.orders().text(), reply);
                }
                if name == image::SERVED_ATTRIBUTE.as_bytes() {
                    return reply_text(size, self.files.served(call.requester)?, reply);
                }
                let get = |value: &mut [u8]| self.files.attribute(call.requester, call.node, name, value);
                reply_value(size, posix::VALUE_BYTES_MAX, get, reply)
            }
            _ => {
                let size = arguments.u32()? as usize;
                let list = |names: &mut [u8]| self.files.list_attributes(call.requester, call.node, names);
                reply_value(size, posix::LIST_BYTES_MAX, list, reply)
            }
        }
    }

    /// Whether others ask this server for what they cannot do: it has the image alone.
    fn takes_orders(&self) -> bool {
        self.cache.is_exclusive() && !self.read_only
    }

    fn statx(&self, call: &Call<'_>, reply: &mut Reply) -> Result<()> {
        let (found, born_ns) = self.files.stat_with_birth(call.requester, call.node)?;
        reply.extended_attributes(self.validity(), &found, born_ns);
        Ok(())
    }

    fn allocate(&self, call: &Call<'_>, arguments: &mut Arguments<'_>) -> Result<()> {
        arguments.skip(8)?;
        let (offset, length, mode) = (arguments.u64()?, arguments.u64()?, arguments.i32()?);
        self.files.allocate(call.requester, call.node, mode, offset, length)
    }

    fn seek(&self, call: &Call<'_>, arguments: &mut Arguments<'_>, reply: &mut Reply) -> Result<()> {
        arguments.skip(8)?;
        let (offset, whence) = (arguments.i64()?, arguments.i32()?);
        reply.u64(self.files.seek(call.requester, call.node, offset, whence)?);
        Ok(())
    }

    fn copy(&self, call: &Call<'_>, arguments: &mut Arguments<'_>, reply: &mut Reply) -> Result<()> {
        let (handle_from, offset_from) = (arguments.u64()?, arguments.u64()?);
        let (node_to, handle_to, offset_to) = (arguments.u64()?, arguments.u64()?, arguments.u64()?);
        let length = arguments.u64()?.min(COPY_BYTES_MAX);
        let from = (call.node, handle_from, offset_from);
        let to = (node_to, handle_to, offset_to);
        let count = BUFFER.with_borrow_mut(|buffer| {
            let step = COPY_STEP_BYTES.min(length as usize);
            buffer.resize(buffer.len().max(step), 0);
            self.files.copy(call.requester, from, to, length, &mut buffer[..step])
        })?;
        reply.u32(count as u32).u32(0);
        Ok(())
    }

    /// Flags of files. The kernel sends the same requests for file_getattr and file_setattr, and
    /// checks whether the caller may set them.
    fn ioctl(&self, call: &Call<'_>, arguments: &mut Arguments<'_>, reply: &mut Reply) -> Result<()> {
        arguments.skip(12)?;
        let command = arguments.u32()?;
        arguments.skip(16)?;
        // The result, and no further request.
        reply.zeros(16);
        match command {
            posix::FS_IOC_GETFLAGS => {
                reply.u32(self.files.flag_bits(call.requester, call.node)?);
                Ok(())
            }
            posix::FS_IOC_SETFLAGS => self.files.set_flag_bits(call.requester, call.node, arguments.u32()?),
            posix::FS_IOC_FSGETXATTR => {
                let words = self.files.extended_flags(call.requester, call.node)?.to_fsxattr();
                for word in words {
                    reply.u32(word);
                }
                Ok(())
            }
            posix::FS_IOC_FSSETXATTR => {
                let mut words = [0; posix::FSXATTR_WORDS];
                for word in &mut words {
                    *word = arguments.u32()?;
                }
                let wanted = ExtendedFlags::from_fsxattr(&words);
                self.files.set_extended_flags(call.requester, call.node, &wanted)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    /// A lock is set, released or queried. A lock that has to wait is answered later.
    fn lock(&self, call: &Call<'_>, arguments: &mut Arguments<'_>, reply: &mut Reply) -> Result<Handled> {
        let request = LockRequest::parse(call.node, arguments)?;
        let locks = self.files.locks().ok_or(ENOSYS)?;
        if call.opcode == opcode::GETLK {
            locks.query(&self.files, &request, reply)?;
            return Ok(Handled::Reply);
        }
        locks.set(&self.files, &request, call.opcode == opcode::SETLKW, (call.channel, call.unique))
    }

    /// A descriptor was closed, or the last one of its description.
    fn close(&self, call: &Call<'_>, arguments: &mut Arguments<'_>) -> Result<()> {
        let handle = arguments.u64()?;
        let Some(locks) = self.files.locks() else {
            self.files.close(handle);
            // Nothing is buffered, so close cannot fail. After ENOSYS the kernel stops sending
            // FLUSH.
            return if call.opcode == opcode::FLUSH { Err(ENOSYS) } else { Ok(()) };
        };
        let flags = (arguments.u32()?, arguments.u32()?);
        let owner = arguments.u64()?;
        if call.opcode == opcode::FLUSH {
            locks.process_closed(&self.files, call.node, handle, owner);
        } else {
            let flock = (flags.1 & RELEASE_FLOCK_UNLOCK != 0).then_some(owner);
            locks.description_closed(&self.files, call.node, handle, flock);
            self.files.close(handle);
        }
        Ok(())
    }

    fn forget(&self, call: &Call<'_>, arguments: &mut Arguments<'_>) -> Result<()> {
        if call.opcode == opcode::FORGET {
            self.files.forget(call.node, arguments.u64()?);
            self.mapped.forget(call.node);
            return Ok(());
        }
        let count = arguments.u32()?;
        arguments.skip(4)?;
        for _ in 0..count {
            let (node, lookups) = (arguments.u64()?, arguments.u64()?);
            self.files.forget(node, lookups);
            self.mapped.forget(node);
        }
        Ok(())
    }

    fn sync(&self, call: &Call<'_>) -> Result<()> {
        // Where written content is already as safe as it gets, ENOSYS makes the kernel report
        // success to programs without asking.
        if self.files.needs_sync() { self.files.sync(call.node) } else { Err(ENOSYS) }
    }

    /// Whether the mount's options demand that a change of names or attributes is committed.
    fn must_commit(&self, opcode: u32) -> bool {
        let demanding = match opcode {
            opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::LINK | opcode::CREATE => self.synchronous,
            opcode::UNLINK | opcode::RMDIR | opcode::RENAME | opcode::RENAME2 => self.synchronous,
            opcode::SETATTR | opcode::SETXATTR | opcode::REMOVEXATTR | opcode::FALLOCATE | opcode::COPY_FILE_RANGE => {
                self.synchronous & libc::MS_SYNCHRONOUS
            }
            _ => 0,
        };
        demanding != 0 && self.files.needs_sync()
    }

    fn dispatch(&self, call: &Call<'_>, arguments: &mut Arguments<'_>, reply: &mut Reply) -> Result<Handled> {
        match call.opcode {
            opcode::LOOKUP => self.lookup(call, arguments.name()?, reply)?,
            opcode::FORGET | opcode::BATCH_FORGET => {
                let _ = self.forget(call, arguments);
                return Ok(Handled::Silent);
            }
            opcode::GETATTR => {
                reply.attributes_valid_for(self.validity(), &self.files.stat(call.requester, call.node)?);
            }
            opcode::SETATTR => return self.set_attributes(call, arguments, reply),
            opcode::READLINK => {
                reply.bytes(&self.files.readlink(call.requester, call.node)?);
            }
            opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK => self.make(call, arguments, reply)?,
            opcode::UNLINK | opcode::RMDIR => {
                let is_directory = call.opcode == opcode::RMDIR;
                self.files.remove(call.requester, call.node, arguments.name()?, is_directory)?;
            }
            opcode::RENAME | opcode::RENAME2 => self.rename(call, arguments)?,
            opcode::LINK => {
                let node = arguments.u64()?;
                self.entry(&self.files.link(call.requester, node, call.node, arguments.name()?)?, reply)?;
            }
            opcode::OPEN | opcode::OPENDIR => return self.open(call, arguments, reply),
            opcode::CREATE | opcode::TMPFILE => return self.create(call, arguments, reply),
            opcode::READ => self.read(call, arguments, reply)?,
            opcode::WRITE => return self.write(call, arguments, reply),
            opcode::STATFS => self.status(call, reply)?,
            opcode::FLUSH | opcode::RELEASE => self.close(call, arguments)?,
            opcode::RELEASEDIR => self.files.close(arguments.u64()?),
            opcode::FSYNC | opcode::FSYNCDIR => self.sync(call)?,
            opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
                self.extended_attribute(call, arguments, reply)?;
            }
            opcode::READDIR | opcode::READDIRPLUS => self.list(call, arguments, reply)?,
            opcode::GETLK | opcode::SETLK | opcode::SETLKW => return self.lock(call, arguments, reply),
            opcode::INTERRUPT => {
                if let Some(locks) = self.files.locks() {
                    let unique = arguments.u64()?;
                    self.files.leases().interrupt(unique);
                    locks.interrupt(&self.files, unique);
                }
                return Ok(Handled::Silent);
            }
            opcode::DESTROY => {}
            opcode::IOCTL => self.ioctl(call, arguments, reply)?,
            opcode::FALLOCATE => self.allocate(call, arguments)?,
            opcode::LSEEK => self.seek(call, arguments, reply)?,
            opcode::COPY_FILE_RANGE => self.copy(call, arguments, reply)?,
            opcode::STATX => self.statx(call, reply)?,
            // The kernel stops sending what the server does not know: it checks permissions
            // itself, and files are always ready (POLL).
            _ => return Err(ENOSYS),
        }
        Ok(Handled::Reply)
    }
}

/// A request without its arguments.
struct Call<'h> {
    header: &'h Header,
    requester: Requester,
    /// Where it is answered if that happens later.
    channel: &'h Channel,
}

impl std::ops::Deref for Call<'_> {
    type Target = Header;

    fn deref(&self) -> &Header {
        self.header
    }
}

/// The arguments of READ, READDIR and READDIRPLUS.
struct ReadArguments {
    handle: u64,
    offset: u64,
    size: usize,
    read_flags: u32,
    flags: i32,
}

impl ReadArguments {
    fn parse(arguments: &mut Arguments<'_>) -> Result<ReadArguments> {
        let (handle, offset, size) = (arguments.u64()?, arguments.u64()?, arguments.u32()? as usize);
        let read_flags = arguments.u32()?;
        arguments.skip(8)?;
        Ok(ReadArguments { handle, offset, size, read_flags, flags: arguments.i32()? })
    }
}

/// The type of a listed name, as getdents has it.
fn kind_of(entry: &Listed) -> u32 {
    // The values of `FileKind` are those of S_IFMT, and so of d_type.
    entry.kind as u32
}

/// Replies with a text, or with its length if the request has no room.
fn reply_text(size: usize, text: impl AsRef<[u8]>, reply: &mut Reply) -> Result<()> {
    let text = text.as_ref();
    let get = |value: &mut [u8]| {
        if !value.is_empty() {
            value.get_mut(..text.len()).ok_or(Errno(libc::ERANGE))?.copy_from_slice(text);
        }
        Ok(text.len())
    };
    reply_value(size, size, get, reply)
}

/// Replies with a value, or with its length if the request has no room.
fn reply_value(
    size: usize,
    most: usize,
    get: impl FnOnce(&mut [u8]) -> Result<usize>,
    reply: &mut Reply,
) -> Result<()> {
    if size > 0 {
        return reply.fill(size.min(most), get);
    }
    let length = get(&mut [])?;
    reply.u32(length as u32).u32(0);
    Ok(())
}

impl Handler for Adapter {
    fn capabilities(&self, offered: u64) -> u64 {
        // FUSE_ATOMIC_O_TRUNC is excluded: with it, opening a running program for reading with
        // O_TRUNC empties it before the kernel checks that it is running.
        let always = capability::PARALLEL_DIROPS
            | capability::DO_READDIRPLUS
            | capability::READDIRPLUS_AUTO
            | capability::EXPORT_SUPPORT
            | capability::HAS_RESEND
            // The server clears set-id bits and capabilities; otherwise the kernel requests an
            // attribute before each write.
            | capability::HANDLE_KILLPRIV_V2
            // The kernel requests access control lists and enforces them. The server applies a
            // directory's default list instead of the umask.
            | capability::POSIX_ACL
            | capability::SETXATTR_EXT
            | capability::DONT_MASK;
        self.extended_set.store(offered & capability::SETXATTR_EXT != 0, Relaxed);
        if self.cache.is_exclusive() {
            return always | capability::CACHE_SYMLINKS | capability::NO_OPEN_SUPPORT | capability::NO_OPENDIR_SUPPORT;
        }
        // Too many programs fail without shared mappings, so on old kernels the page cache stays
        // and is validated by the modification time.
        let bypasses = offered & capability::DIRECT_IO_ALLOW_MMAP != 0;
        self.direct.store(bypasses, Relaxed);
        // After an asynchronous direct write the kernel keeps what a concurrent read has cached
        // before it, so only where content is not cached.
        let asynchronous = if bypasses { capability::ASYNC_DIO } else { 0 };
        always
            | asynchronous
            | capability::AUTO_INVAL_DATA
            | capability::DIRECT_IO_ALLOW_MMAP
            | capability::POSIX_LOCKS
            | capability::FLOCK_LOCKS
    }

    fn handle(
        &self,
        header: &Header,
        mut arguments: Arguments<'_>,
        reply: &mut Reply,
        channel: &Channel,
    ) -> Result<Handled> {
        let requester = Requester { uid: header.uid, gid: header.gid, pid: header.pid };
        let call = Call { header, requester, channel };
        let began = self.requests.count(header.opcode).then(Instant::now);
        let first = arguments;
        let handled = match self.dispatch(&call, &mut arguments, reply) {
            Err(error) if header.is_resent() => self.after_resend(&call, first, error, reply),
            handled => handled,
        };
        if matches!(handled, Ok(Handled::Reply)) && self.must_commit(header.opcode) {
            self.files.commit_change(header.node);
        }
        if let Some(began) = began {
            self.requests.count_latency(header.opcode, began.elapsed().as_nanos() as u64);
        }
        handled
    }
}

impl Adapter {
    /// Answers a request that an earlier server may have executed before it died. The kernel holds
    /// the locks of the directories meanwhile, and the server is alone on the image. So an error
    /// that the first execution would explain is its success.
    fn after_resend(
        &self,
        call: &Call<'_>,
        mut arguments: Arguments<'_>,
        error: Errno,
        reply: &mut Reply,
    ) -> Result<Handled> {
        if !self.cache.is_exclusive() {
            return Err(error);
        }
        reply.clear();
        let made = |name: &[u8], reply: &mut Reply| self.lookup(call, name, reply);
        match (call.opcode, error) {
            (opcode::MKNOD, Errno::EEXIST) => {
                arguments.skip(16)?;
                made(arguments.name()?, reply)?;
            }
            (opcode::MKDIR | opcode::LINK, Errno::EEXIST) => {
                arguments.skip(8)?;
                made(arguments.name()?, reply)?;
            }
            (opcode::SYMLINK, Errno::EEXIST) => made(arguments.name()?, reply)?,
            (opcode::UNLINK | opcode::RMDIR | opcode::RENAME | opcode::RENAME2, Errno::ENOENT)
            | (opcode::SETXATTR, Errno::EEXIST)
            | (opcode::REMOVEXATTR, Errno::ENODATA) => {}
            _ => return Err(error),
        }
        Ok(Handled::Reply)
    }
}
