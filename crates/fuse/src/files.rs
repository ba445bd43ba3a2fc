//! The file system behind a mount: calls by inode number and name, with the kernel's lookup counts.
//! It is independent of the protocol.
//!
//! Open files have no state here: each request names the file and its flags. So a server can answer
//! requests for files that an earlier server opened, and the kernel need not announce opens.

mod control;
mod durability;

use crate::generations::Generations;
use crate::inherited::Inherited;
use crate::leases::Leases;
use crate::locks::Locks;
use crate::messages::report_error;
use crate::nodes::Nodes;
use crate::options::MountOptions;
use crate::orders::Orders;
use engine::format::FileKind;
use engine::{Attributes, FileFlags, Node, SeekWhat, Thread};
use image::Image;
use pmem::Direct;
use posix::{
    Append, Caller, Credentials, Errno, ExtendedFlags, FileSystemStatus, NodeRef, OpenFile, Result, TimeToSet,
};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tables::process::Process;

/// Bytes of a directory listed at a time: the size that programs request.
const LIST_BYTES: usize = 32 << 10;
/// Listings whose position in the directory's log, and end, are remembered.
const LISTINGS_MAX: usize = 1024;
/// The flags that fcntl F_SETFL may change without a request of its own.
const CHANGING: i32 = libc::O_APPEND | libc::O_NOATIME;

/// The requester. The kernel has already checked its permissions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requester {
    pub uid: u32,
    pub gid: u32,
    /// The thread; zero: unknown, or in another namespace of process numbers.
    pub pid: u32,
}

/// The changes of a setattr.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub size_bytes: Option<u64>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub accessed: TimeToSet,
    pub modified: TimeToSet,
}

/// The kind of file to create.
pub(crate) enum NewKind<'a> {
    Directory,
    Symlink(&'a [u8]),
    /// A special or regular file: type in the mode, and this device number.
    Node(u32),
}

/// A directory entry, copied out of the engine.
pub(crate) struct Listed {
    pub cookie: u64,
    pub number: u64,
    pub kind: FileKind,
    pub name: Vec<u8>,
}

type Calling<'t, 'f> = Caller<'t, 'f, Direct>;

/// An image as a mount shows it.
pub(crate) struct Files {
    image: Image,
    nodes: Nodes,
    root: Node,
    /// With a keeper: the kernel may know files that an earlier server reported.
    generations: Option<Generations>,
    /// The last handle. Handles are never reused; zero means that there was no open.
    handles: AtomicU64,
    /// Directories by inode number: where their latest listings stopped, and end.
    listings: Mutex<HashMap<u64, Arc<OpenFile>>>,
    /// The locks of the mount, if the image is shared. Otherwise the kernel keeps them.
    locks: Option<Locks>,
    /// The requests that wait for leases.
    leases: Leases,
    /// What others ask of a server that has the image alone.
    orders: Orders,
    uid: Option<u32>,
    gid: Option<u32>,
    /// The mount's `MS_NOATIME` and `MS_NODIRATIME`: the kernel leaves access times to the server.
    quiet: libc::c_ulong,
    /// Invalidates the kernel's cached attributes of a file. Unset where the kernel caches nothing.
    outdated: OnceLock<Box<dyn Fn(u64) + Send + Sync>>,
    /// Has the kernel list a directory again. Unset where the kernel caches nothing.
    list_anew: OnceLock<Box<dyn Fn(u64) + Send + Sync>>,
    /// The position of a write through an appending description. If the server is alone on the
    /// image, the kernel knows where files end and its offset is right, also with RWF_NOAPPEND.
    /// Otherwise the kernel's offset may be stale, and such a write goes to the end as the server
    /// knows it.
    append: Append,
    /// The descriptors that the mount's first program inherited.
    inherited: Option<Inherited>,
    /// Whether the truncation of the image was reported.
    has_reported_loss: AtomicBool,
    has_reported_content: AtomicBool,
    /// Whether the last commit of a single change failed, which was reported.
    commits_fail: AtomicBool,
    /// The flags of the mount whose loss root permits.
    permitted: Arc<AtomicU64>,
}

impl Files {
    pub(crate) fn new(image: Image, options: &MountOptions) -> engine::Result<Files> {
        let (root, locks) = {
            let thread = image.fs().enter()?;
            let shares = !options.cache.is_exclusive();
            // Locks of a mount that cannot register are those of the kernel, as without sharing.
            (thread.root()?, if shares { Locks::register(&thread).ok() } else { None })
        };
        Ok(Files {
            image,
            nodes: Nodes::new(root),
            root,
            generations: None,
            handles: AtomicU64::new(0),
            listings: Mutex::default(),
            locks,
            leases: Leases::default(),
            orders: Orders::default(),
            uid: options.uid,
            gid: options.gid,
            quiet: options.kernel_flags & (libc::MS_NOATIME | libc::MS_NODIRATIME),
            append: if options.cache.is_exclusive() { Append::Never } else { Append::AsOpened },
            outdated: OnceLock::new(),
            list_anew: OnceLock::new(),
            inherited: None,
            has_reported_loss: AtomicBool::new(false),
            has_reported_content: AtomicBool::new(false),
            commits_fail: AtomicBool::new(false),
            permitted: Arc::default(),
        })
    }

    /// Files of a mount, with open files that a program inherits.
    pub(crate) fn inherit(self, inherited: Option<Inherited>) -> Files {
        Files { inherited, ..self }
    }

    /// Files of a mount, for a session that may have started with an earlier server.
    pub(crate) fn keep(self, generations: &OwnedFd) -> io::Result<Files> {
        let space = self.image.fs().enter().and_then(|thread| thread.space());
        let number_max = space.map_err(io::Error::other)?.inodes;
        Ok(Files { generations: Some(Generations::map(generations, number_max)?), ..self })
    }

    /// The locks of the mount, if the image is shared.
    pub(crate) fn locks(&self) -> Option<&Locks> {
        self.locks.as_ref()
    }

    /// The requests that wait for leases.
    pub(crate) fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Sets the function that invalidates the kernel's cached attributes of a file.
    pub(crate) fn report_outdated_by(&self, report: impl Fn(u64) + Send + Sync + 'static) {
        // Set once, when the session begins; a second call has no effect.
        let _ = self.outdated.set(Box::new(report));
    }

    /// Sets the function that has the kernel list a directory again, without waiting for it.
    pub(crate) fn list_again_by(&self, report: impl Fn(u64) + Send + Sync + 'static) {
        let _ = self.list_anew.set(Box::new(report));
    }

    /// A request for content makes the kernel forget the attributes of the file: the access time,
    /// or what a write changes.
    fn attributes_outdated(&self, number: u64) {
        if let Some(list_anew) = self.list_anew.get()
            && let Some(directory) = self.nodes.outdate(number)
        {
            list_anew(directory);
        }
    }

    /// Releases all references that the kernel still had; returns the image.
    pub(crate) fn into_image(self) -> Image {
        if let Ok(thread) = self.image.fs().enter() {
            self.nodes.forget_all(&thread);
            thread.release(self.root, 1);
        }
        self.image
    }

    /// Makes a call. The thread is entered only for the duration of the call. That costs a
    /// hundredth of a request (two system calls, 0.2 of 20 µs). A worker that kept its slot between
    /// requests would withhold its recyclable items from threads that run out of space.
    fn call<T>(&self, requester: Requester, call: impl FnOnce(Calling<'_, '_>) -> Result<T>) -> Result<T> {
        self.check_whole()?;
        let thread = self.image.fs().enter()?;
        thread.act_for(requester.pid);
        let result = call(Caller::new(&thread, Credentials::kernel_checked(requester.uid, requester.gid)));
        // A reply computed from lost pages is not valid.
        self.check_whole().and(result)
    }

    /// EIO once the image was truncated under the mount.
    fn check_whole(&self) -> Result<()> {
        if pmem::any_content_lost() && !self.has_reported_content.swap(true, Relaxed) {
            report_error(format_args!("{} {}", self.image.path().display(), pmem::CONTENT_LOST));
        }
        let Some(loss) = self.image.mapping().loss() else { return Ok(()) };
        if !self.has_reported_loss.swap(true, Relaxed) {
            let image = self.image.path().display();
            self.image.fs().mark_unclean();
            let (what, remedy) = (loss.description(), loss.remedy());
            report_error(format_args!("{image} {what}: every access now returns EIO; unmount it; then {remedy}"));
        }
        Err(Errno::EIO)
    }

    /// Makes a call that changes content. Unless the requester is root, this clears set-id bits,
    /// and no reply reports that to the kernel.
    fn call_changing<T>(
        &self,
        requester: Requester,
        node: Node,
        call: impl FnOnce(Calling<'_, '_>) -> Result<T>,
    ) -> Result<T> {
        let Some(outdated) = self.outdated.get().filter(|_| requester.uid != 0) else {
            return self.call(requester, call);
        };
        self.call(requester, |caller| {
            let has_bits = caller.stat(node)?.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
            let result = call(caller);
            if has_bits {
                outdated(node.number);
            }
            result
        })
    }

    /// The node of a number that the kernel knows.
    pub(crate) fn node(&self, number: u64) -> Result<Node> {
        match self.nodes.get(number) {
            Some(node) => Ok(node),
            None => {
                let generation = self.generations.as_ref().and_then(|known| known.get(number));
                let generation = generation.ok_or(Errno(libc::ESTALE))?;
                let thread = self.image.fs().enter()?;
                let node = thread.node(number, Some(generation)).map_err(|_| Errno(libc::ESTALE))?;
                Ok(self.nodes.adopt(&thread, node))
            }
        }
    }

    /// Runs `call` with a thread of the engine.
    pub(crate) fn with_thread<'s, T>(&'s self, call: impl FnOnce(&Thread<'s, Direct>) -> Result<T>) -> Result<T> {
        self.check_whole()?;
        call(&self.image.fs().enter()?)
    }

    /// Gives the server's process a descriptor of a file, which keeps the record of its locks.
    pub(crate) fn install_for_locks<'s>(
        &'s self,
        thread: &Thread<'s, Direct>,
        process: &Process<'s, Direct>,
        number: u64,
        descriptor: u32,
    ) -> Result<()> {
        let caller = Caller::new(thread, Credentials::kernel_checked(0, 0));
        let file = caller.opens().open_node(self.node(number)?, libc::O_RDONLY)?;
        process.install(thread, descriptor, &file, false).map(drop)
    }

    /// An open regular file, as the flags of a request describe it. It owns no reference: the
    /// kernel knows the file.
    fn file(&self, node: Node, flags: i32) -> OpenFile {
        // The kernel has checked the access. It also reads through descriptors that are open for
        // writing only, to fill a partially written page.
        OpenFile::new(node, FileKind::Regular, libc::O_RDWR | flags & CHANGING | self.quiet_flag(libc::MS_NOATIME))
    }

    /// O_NOATIME if the mount has one of these options.
    fn quiet_flag(&self, options: libc::c_ulong) -> i32 {
        if self.quiet & options != 0 { libc::O_NOATIME } else { 0 }
    }

    /// Attributes as the mount shows them.
    fn shown(&self, mut attributes: Attributes) -> Attributes {
        attributes.uid = self.uid.unwrap_or(attributes.uid);
        attributes.gid = self.gid.unwrap_or(attributes.gid);
        attributes
    }

    /// The attributes of a file for the kernel; also counts the lookup.
    fn report_to_kernel(&self, caller: Calling<'_, '_>, found: NodeRef<'_, '_>) -> Result<Attributes> {
        let attributes = caller.stat(found.node())?;
        self.record_lookup(caller, found, &attributes)?;
        Ok(self.shown(attributes))
    }

    fn record_lookup(&self, caller: Calling<'_, '_>, found: NodeRef<'_, '_>, of: &Attributes) -> Result<()> {
        if let Some(generations) = &self.generations {
            generations.record(of.number, of.generation);
        }
        self.nodes.record_lookup(caller.thread, found.into_node()?);
        Ok(())
    }

    pub(crate) fn lookup(&self, requester: Requester, parent: u64, name: &[u8]) -> Result<Attributes> {
        if name == b"." {
            // The kernel resolves a file handle (of open_by_handle_at, of NFS). It may never have
            // looked the file up on this mount, and compares the generation itself. A number
            // without a file is ESTALE for the owner of the handle.
            return self.call(requester, |caller| {
                let found = NodeRef::owned(caller.thread, caller.thread.node(parent, None)?);
                self.report_to_kernel(caller, found)
            });
        }
        let directory = self.node(parent)?;
        self.call(requester, |caller| {
            let found = match name {
                b".." => NodeRef::owned(caller.thread, caller.thread.node(caller.thread.parent(directory)?, None)?),
                name => match self.inherited.as_ref().filter(|_| directory == self.root) {
                    Some(inherited) if let Some(node) = inherited.look_up(requester.pid, name) => {
                        caller.thread.retain(node)?;
                        NodeRef::owned(caller.thread, node)
                    }
                    _ => caller.lookup(directory, name)?,
                },
            };
            self.report_to_kernel(caller, found)
        })
    }

    /// The kernel releases `count` lookups of a file.
    pub(crate) fn forget(&self, number: u64, count: u64) {
        // Without a slot the reference stays until the mount ends. This leaks memory, and only if
        // 65,000 threads are inside.
        if let Ok(thread) = self.image.fs().enter() {
            self.nodes.forget(&thread, number, count);
        }
    }

    pub(crate) fn stat(&self, requester: Requester, number: u64) -> Result<Attributes> {
        let node = self.node(number)?;
        self.call(requester, |caller| Ok(self.shown(caller.stat(node)?)))
    }

    /// Attributes and the time of birth in ns.
    pub(crate) fn stat_with_birth(&self, requester: Requester, number: u64) -> Result<(Attributes, i64)> {
        let node = self.node(number)?;
        self.call(requester, |caller| Ok((self.shown(caller.stat(node)?), caller.thread.born_ns(node)?)))
    }

    pub(crate) fn set(&self, requester: Requester, number: u64, setting: &Setting) -> Result<Attributes> {
        let node = self.node(number)?;
        self.call(requester, |caller| {
            if let Some(size_bytes) = setting.size_bytes {
                caller.data().truncate(node, i64::try_from(size_bytes).map_err(|_| Errno::EFBIG)?)?;
            }
            if setting.uid.is_some() || setting.gid.is_some() {
                caller.chown(node, setting.uid, setting.gid)?;
            }
            if let Some(mode) = setting.mode {
                caller.chmod(node, mode)?;
            }
            Ok(self.shown(caller.set_times(node, setting.accessed, setting.modified)?))
        })
    }

    pub(crate) fn readlink(&self, requester: Requester, number: u64) -> Result<Vec<u8>> {
        let node = self.node(number)?;
        let mut target = vec![0; posix::path::PATH_BYTES_MAX];
        let length = self.call(requester, |caller| match self.quiet & libc::MS_NOATIME {
            0 => caller.readlink(node, &mut target),
            _ => Ok(caller.thread.read_link(node, &mut target)?),
        })?;
        target.truncate(length);
        Ok(target)
    }

    pub(crate) fn make(
        &self,
        requester: Requester,
        parent: u64,
        name: &[u8],
        (mode, umask): (u32, u32),
        kind: NewKind<'_>,
    ) -> Result<Attributes> {
        let directory = self.node(parent)?;
        self.call(requester, |caller| {
            let made = match kind {
                NewKind::Directory => caller.mkdir(directory, name, mode, umask)?,
                NewKind::Symlink(target) => caller.symlink(target, directory, name)?,
                NewKind::Node(device) => caller.mknod(directory, name, mode, umask, device)?,
            };
            self.report_to_kernel(caller, made)
        })
    }

    pub(crate) fn remove(&self, requester: Requester, parent: u64, name: &[u8], is_directory: bool) -> Result<()> {
        let directory = self.node(parent)?;
        self.call(requester, |caller| match is_directory {
            true => caller.rmdir(directory, name),
            false => caller.unlink(directory, name),
        })
    }

    pub(crate) fn rename(&self, requester: Requester, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<()> {
        let old = (self.node(from.0)?, from.1);
        let new = (self.node(to.0)?, to.1);
        self.call(requester, |caller| caller.rename(old, new, flags))
    }

    /// The file that a name leads to.
    pub(crate) fn number_of(&self, requester: Requester, (parent, name): (u64, &[u8])) -> Result<Option<u64>> {
        let directory = self.node(parent)?;
        self.call(requester, |caller| match caller.lookup(directory, name) {
            Err(Errno::ENOENT) => Ok(None),
            found => found.map(|found| Some(found.node().number)),
        })
    }

    pub(crate) fn link(&self, requester: Requester, number: u64, parent: u64, name: &[u8]) -> Result<Attributes> {
        let node = self.node(number)?;
        let directory = self.node(parent)?;
        self.call(requester, |caller| {
            // The kernel decides whether an unnamed file may get a name.
            caller.link(node, directory, name, true)?;
            caller.thread.retain(node)?;
            self.report_to_kernel(caller, NodeRef::owned(caller.thread, node))
        })
    }

    /// Checks an open, and returns its handle.
    pub(crate) fn open(&self, requester: Requester, number: u64, flags: i32) -> Result<u64> {
        let node = self.node(number)?;
        // The kernel has already handled these flags, or sends separate requests for them.
        let flags = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_TRUNC | libc::O_TMPFILE)
            | flags & libc::O_DIRECTORY;
        self.call(requester, |caller| {
            caller.opens().close(&caller.opens().open_node(node, flags)?);
            Ok(())
        })?;
        let handle = self.new_handle();
        if let Some(inherited) = &self.inherited {
            inherited.opened(requester.pid, node, handle);
        }
        Ok(handle)
    }

    fn new_handle(&self) -> u64 {
        self.handles.fetch_add(1, Relaxed) + 1
    }

    /// Creates a file and opens it; returns attributes and handle.
    pub(crate) fn create(
        &self,
        requester: Requester,
        parent: u64,
        name: &[u8],
        (mode, umask): (u32, u32),
        flags: i32,
    ) -> Result<(Attributes, u64)> {
        let directory = self.node(parent)?;
        self.call(requester, |caller| {
            let opened = caller.opens().open_name(directory, name, flags | libc::O_CREAT, mode, umask)?;
            self.report_opened(caller, &opened.file)
        })
    }

    /// Opens a file without a name (O_TMPFILE).
    pub(crate) fn create_unnamed(
        &self,
        requester: Requester,
        parent: u64,
        (mode, umask): (u32, u32),
        flags: i32,
    ) -> Result<(Attributes, u64)> {
        let directory = self.node(parent)?;
        self.call(requester, |caller| {
            let file = caller.opens().open_unnamed(directory, flags, mode, umask)?;
            self.report_opened(caller, &file)
        })
    }

    /// Replaces the reference of a new description by the kernel's lookup.
    fn report_opened(&self, caller: Calling<'_, '_>, file: &OpenFile) -> Result<(Attributes, u64)> {
        let retained = caller.thread.retain(file.node()).map_err(Errno::from);
        let result = retained
            .and_then(|()| self.report_to_kernel(caller, NodeRef::owned(caller.thread, file.node())))
            .map(|attributes| (attributes, self.new_handle()));
        caller.opens().close(file);
        result
    }

    /// A description was closed.
    pub(crate) fn close(&self, handle: u64) {
        if let Some(inherited) = &self.inherited {
            inherited.closed(handle);
        }
    }

    pub(crate) fn read(
        &self,
        requester: Requester,
        (number, handle, flags): (u64, u64, i32),
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        let file = self.file(self.node(number)?, flags);
        let start = i64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let count = self.call(requester, |caller| caller.data().read_at(&file, start, into))?;
        self.attributes_outdated(number);
        if let Some(inherited) = &self.inherited {
            inherited.position_changed(handle, offset + count as u64);
        }
        Ok(count)
    }

    /// `mapped`: the kernel writes back changes of a shared mapping.
    pub(crate) fn write(
        &self,
        requester: Requester,
        (number, handle, flags): (u64, u64, i32),
        offset: u64,
        from: &[u8],
        mapped: bool,
    ) -> Result<usize> {
        let node = self.node(number)?;
        let start = i64::try_from(offset).map_err(|_| Errno::EFBIG)?;
        if mapped {
            return self.call(requester, |caller| caller.data().write_back(node, offset, from));
        }
        let file = self.file(node, flags);
        let count = self.call_changing(requester, node, |caller| {
            if self.append == Append::Never && flags & libc::O_APPEND != 0 {
                self.check_appends(caller, node, offset)?;
            }
            caller.data().write_at_as(&file, start, from.into(), self.append)
        })?;
        self.attributes_outdated(number);
        if let Some(inherited) = &self.inherited {
            let end = match flags & libc::O_APPEND != 0 {
                true => self.call(requester, |caller| caller.stat(node))?.size_bytes,
                false => offset + count as u64,
            };
            inherited.position_changed(handle, end);
        }
        Ok(count)
    }

    /// EPERM for a write before the end of an append-only file through an appending description
    /// (RWF_NOAPPEND): the kernel does not know the flag.
    fn check_appends(&self, caller: Calling<'_, '_>, node: Node, offset: u64) -> Result<()> {
        let found = caller.stat(node)?;
        let is_refused = found.flags.has_any(FileFlags::APPEND_ONLY) && offset < found.size_bytes;
        if is_refused { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// The names after a cookie, about as many as a reply holds if each takes `head_bytes` plus its
    /// length.
    pub(crate) fn list(
        &self,
        requester: Requester,
        number: u64,
        cookie: u64,
        head_bytes: usize,
    ) -> Result<Vec<Listed>> {
        let node = self.node(number)?;
        let directory = self.listing(node, cookie);
        let mut listed = Vec::new();
        let mut used = 0;
        self.call(requester, |caller| {
            caller.read_directory_at(&directory, cookie, &mut |entry| {
                used += head_bytes + entry.name.len().next_multiple_of(8);
                // At least one name is returned: an empty reply means the end.
                let fits = used <= LIST_BYTES || listed.is_empty();
                if fits {
                    let posix::ListedName { cookie, number, kind, name } = entry;
                    listed.push(Listed { cookie, number, kind, name: name.to_vec() });
                }
                fits
            })
        })?;
        self.record_listing(directory, cookie);
        Ok(listed)
    }

    /// The description of a directory, with the place where its listing stopped.
    fn listing(&self, node: Node, cookie: u64) -> Arc<OpenFile> {
        if cookie != 0 {
            let listings = self.listings.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(known) = listings.get(&node.number).filter(|known| known.node() == node) {
                return Arc::clone(known);
            }
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | self.quiet_flag(libc::MS_NOATIME | libc::MS_NODIRATIME);
        Arc::new(OpenFile::new(node, FileKind::Directory, flags))
    }

    /// Remembers where a listing stopped, and where it ends, if it was not remembered before.
    fn record_listing(&self, directory: Arc<OpenFile>, cookie: u64) {
        let mut listings = self.listings.lock().unwrap_or_else(PoisonError::into_inner);
        let number = directory.node().number;
        if cookie != 0 && listings.get(&number).is_some_and(|known| Arc::ptr_eq(known, &directory)) {
            return;
        }
        if listings.len() >= LISTINGS_MAX {
            // A listing that continues without its place searches for it.
            listings.clear();
        }
        listings.insert(number, directory);
    }

    /// Passes listed names with their attributes (none for `.` and `..`) to `take` until it has no
    /// room. Counts a lookup for each name that was taken. `is_first`: they are the first ones.
    pub(crate) fn offer(
        &self,
        requester: Requester,
        (directory, is_first): (u64, bool),
        listed: &[Listed],
        mut take: impl FnMut(&Listed, Option<&Attributes>) -> bool,
    ) -> Result<()> {
        let directory = self.node(directory)?;
        let mut files = 0;
        let offered = self.call(requester, |caller| {
            for entry in listed {
                let taken = if matches!(entry.name.as_slice(), b"." | b"..") {
                    take(entry, None)
                } else {
                    let found = match caller.lookup(directory, &entry.name) {
                        // Removed since it was listed.
                        Err(Errno::ENOENT) => continue,
                        found => found?,
                    };
                    let attributes = self.shown(caller.stat(found.node())?);
                    let taken = take(entry, Some(&attributes));
                    if taken {
                        self.record_lookup(caller, found, &attributes)?;
                        self.nodes.record_listed(entry.number, directory.number);
                        files += 1;
                    }
                    taken
                };
                if !taken {
                    break;
                }
            }
            Ok(())
        });
        self.nodes.record_listing(directory.number, files, is_first);
        offered
    }

    pub(crate) fn statfs(&self, requester: Requester) -> Result<FileSystemStatus> {
        self.call(requester, |caller| caller.statfs())
    }

    pub(crate) fn set_attribute(
        &self,
        requester: Requester,
        number: u64,
        (name, value): (&[u8], &[u8]),
        flags: i32,
        clears_set_gid: bool,
    ) -> Result<()> {
        let node = self.node(number)?;
        self.call(requester, |caller| {
            caller.xattrs().set_attribute(node, name, value, flags)?;
            if clears_set_gid {
                caller.chmod(node, caller.stat(node)?.mode & !libc::S_ISGID)?;
            }
            Ok(())
        })
    }

    /// The value, or its length if there is no room.
    pub(crate) fn attribute(&self, requester: Requester, number: u64, name: &[u8], value: &mut [u8]) -> Result<usize> {
        let node = self.node(number)?;
        self.call(requester, |caller| caller.xattrs().get_attribute(node, name, value))
    }

    pub(crate) fn list_attributes(&self, requester: Requester, number: u64, names: &mut [u8]) -> Result<usize> {
        let node = self.node(number)?;
        self.call(requester, |caller| caller.xattrs().list_attributes(node, names))
    }

    pub(crate) fn remove_attribute(&self, requester: Requester, number: u64, name: &[u8]) -> Result<()> {
        let node = self.node(number)?;
        self.call(requester, |caller| caller.xattrs().remove_attribute(node, name))
    }

    /// Whether files may have flags that opens must heed.
    pub(crate) fn has_flags(&self) -> bool {
        self.image.fs().has_file_flags()
    }

    /// FS_IOC_GETFLAGS.
    pub(crate) fn flag_bits(&self, requester: Requester, number: u64) -> Result<u32> {
        let node = self.node(number)?;
        self.call(requester, |caller| caller.flag_bits(node))
    }

    /// FS_IOC_SETFLAGS.
    pub(crate) fn set_flag_bits(&self, requester: Requester, number: u64, bits: u32) -> Result<()> {
        self.change_flags(requester, number, |caller, node| caller.set_flag_bits(node, bits))
    }

    /// FS_IOC_FSGETXATTR.
    pub(crate) fn extended_flags(&self, requester: Requester, number: u64) -> Result<ExtendedFlags> {
        let node = self.node(number)?;
        self.call(requester, |caller| caller.extended_flags(node))
    }

    /// FS_IOC_FSSETXATTR.
    pub(crate) fn set_extended_flags(&self, requester: Requester, number: u64, wanted: &ExtendedFlags) -> Result<()> {
        self.change_flags(requester, number, |caller, node| caller.set_extended_flags(node, wanted))
    }

    /// Changes flags, and with them the change time, which no reply reports to the kernel.
    fn change_flags(
        &self,
        requester: Requester,
        number: u64,
        change: impl FnOnce(&Calling<'_, '_>, Node) -> Result<()>,
    ) -> Result<()> {
        let node = self.node(number)?;
        self.call(requester, |caller| change(&caller, node))?;
        if let Some(outdated) = self.outdated.get() {
            outdated(number);
        }
        Ok(())
    }

    pub(crate) fn allocate(
        &self,
        requester: Requester,
        number: u64,
        mode: i32,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let node = self.node(number)?;
        let file = self.file(node, 0);
        let offset = i64::try_from(offset).map_err(|_| Errno::EFBIG)?;
        let length = i64::try_from(length).map_err(|_| Errno::EFBIG)?;
        self.call_changing(requester, node, |caller| caller.data().allocate(&file, mode, offset, length))
    }

    pub(crate) fn seek(&self, requester: Requester, number: u64, offset: i64, whence: i32) -> Result<u64> {
        let file = self.file(self.node(number)?, 0);
        let what = match whence {
            libc::SEEK_DATA => SeekWhat::Data,
            libc::SEEK_HOLE => SeekWhat::Hole,
            // The kernel handles the other values: it has the position.
            _ => return Err(Errno::EINVAL),
        };
        self.call(requester, |caller| caller.data().seek_extent(&file, offset, what))
    }

    /// Copies between two files, each given by its number, its handle and an offset.
    pub(crate) fn copy(
        &self,
        requester: Requester,
        from: (u64, u64, u64),
        to: (u64, u64, u64),
        length: u64,
        buffer: &mut [u8],
    ) -> Result<u64> {
        let (source, target) = (self.node(from.0)?, self.node(to.0)?);
        let files = (self.file(source, 0), self.file(target, 0));
        let ends = ((&files.0, from.2), (&files.1, to.2));
        let copy = |caller: Calling<'_, '_>| caller.data().copy_range(ends.0, ends.1, length, buffer);
        let count = self.call_changing(requester, target, copy)?;
        [from.0, to.0].into_iter().for_each(|number| self.attributes_outdated(number));
        if let Some(inherited) = &self.inherited {
            inherited.position_changed(from.1, from.2 + count);
            inherited.position_changed(to.1, to.2 + count);
        }
        Ok(count)
    }
}
