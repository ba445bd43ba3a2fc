//! A lab system as a FUSE mount, for arbitrary programs and the POSIX tests.
//!
//! The kernel calls by inode, so only the part of the VFS layer below path walk is used. Its caches
//! are behind the kernel's, which keep nothing. Not supported: extended attributes and
//! access lists, O_TMPFILE, fallocate, holes in lseek.

use crate::error::{Error, Result};
use crate::nova::Nova;
use crate::physical::{MkfsOptions, MountOptions as PhysicalOptions, PhysicalFs, SyncFile};
use crate::pmfs::Pmfs;
use crate::soupfs::SoupFs;
use crate::squirrelfs::SquirrelFs;
use crate::substrate::{self, System};
use crate::vfs::{ByVfs, Cachelet, Conventional, CreateArguments, FileRef, Names, OwnedFileRef, Vfs, VfsOptions};
use engine::format::FileKind;
use engine::{Attributes, Changes, RenameFlags};
use fuser::{
    BsdFileFlags, Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use pmem::{Access, BLOCK_BYTES, Direct, MapError, Mapping};
use posix::{Credentials, Errno};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The VFS layer of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VfsKind {
    /// Dentry and inode cache.
    Conventional,
    /// No dentry cache.
    ByVfs,
    /// Global index.
    Cachelet,
}

impl VfsKind {
    /// Each of them, as the command line accepts it.
    pub const ALL: [VfsKind; 3] = [VfsKind::Conventional, VfsKind::ByVfs, VfsKind::Cachelet];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            VfsKind::Conventional => "conventional",
            VfsKind::ByVfs => "byvfs",
            VfsKind::Cachelet => "cachelet",
        }
    }

    /// By its name.
    pub fn parse(name: &str) -> Option<VfsKind> {
        VfsKind::ALL.into_iter().find(|vfs| vfs.name() == name)
    }

    /// The value recorded in an image.
    const fn recorded(self) -> u64 {
        self as u64
    }

    /// Decodes the value recorded in an image; unknown values mean the default.
    fn from_recorded(noted: u64) -> VfsKind {
        VfsKind::ALL.into_iter().find(|vfs| vfs.recorded() == noted).unwrap_or(VfsKind::Conventional)
    }
}

/// A file system of the lab: the image format, and the default VFS layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemKind {
    /// The format.
    pub system: System,
    /// The VFS layer.
    pub vfs: VfsKind,
}

impl SystemKind {
    /// The names that [`parse`](Self::parse) accepts.
    pub const NAMES: [&str; 7] = ["nova", "pmfs", "soupfs", "squirrelfs", "conventional", "byvfs", "cachelet"];

    /// Parses a name: a format under the conventional layer, or a layer over the NOVA-like format,
    /// as in the papers.
    pub fn parse(name: &str) -> Option<SystemKind> {
        if let Some(system) = System::ALL.into_iter().find(|system| system.name() == name) {
            return Some(SystemKind { system, vfs: VfsKind::Conventional });
        }
        VfsKind::parse(name).map(|vfs| SystemKind { system: System::Nova, vfs })
    }
}

/// Why an image of the lab cannot be created or mounted.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The image cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// An error of the file system.
    #[error("{}: {source}", path.display())]
    FileSystem {
        /// The image.
        path: PathBuf,
        /// The error.
        source: Error,
    },
    /// An error of the mount.
    #[error(transparent)]
    Mount(#[from] fuse::MountError),
    /// The file exists.
    #[error("{} exists: use --force to overwrite it", path.display())]
    Exists {
        /// The image.
        path: PathBuf,
    },
}

/// The kind of an image, if it is one of the lab's.
pub fn kind_of(image: &Path) -> Option<SystemKind> {
    let mut first = [0; substrate::IDENTITY_BYTES];
    File::open(image).ok()?.read_exact(&mut first).ok()?;
    let system = substrate::identify(&first)?;
    Some(SystemKind { system, vfs: VfsKind::from_recorded(substrate::recorded_vfs(&first)) })
}

/// Creates an image of a system. An existing file that `force` allows to overwrite keeps its inode
/// and mode.
pub fn make(
    image: &Path,
    kind: SystemKind,
    length: u64,
    options: &MkfsOptions,
    force: bool,
) -> std::result::Result<(), ImageError> {
    let exists = image.symlink_metadata().is_ok();
    if exists && !force {
        return Err(ImageError::Exists { path: image.to_owned() });
    }
    let file_system = |source| ImageError::FileSystem { path: image.to_owned(), source };
    if exists {
        let file = File::options().write(true).open(image);
        let resized = file.and_then(|file| file.set_len(length));
        resized.map_err(|error| file_system(Errno(error.raw_os_error().unwrap_or(libc::EIO)).into()))?;
    }
    let mapping =
        if exists { Mapping::open(image, Access::ReadWrite)? } else { Mapping::create(image, length, 0o600)? };
    let region = Arc::new(mapping).region(Direct)?;
    let made = match kind.system {
        System::Nova => Nova::mkfs(&region, options),
        System::Pmfs => Pmfs::mkfs(&region, options),
        System::SoupFs => SoupFs::mkfs(&region, options),
        System::SquirrelFs => SquirrelFs::mkfs(&region, options),
    };
    let made = made.and_then(|()| substrate::record_vfs(&region, kind.vfs.recorded()));
    if made.is_err() && !exists {
        let _ = std::fs::remove_file(image);
    }
    region.mapping().sync(0..region.length()).map_err(|_| file_system(Errno::EIO.into()))?;
    made.map_err(file_system)
}

/// Serves an image until it is unmounted or a signal arrives, then unmounts it cleanly.
pub fn serve(
    image: &Path,
    SystemKind { system, vfs }: SystemKind,
    sync_file: SyncFile,
    mount_point: &Path,
    options: &fuse::MountOptions,
    ready: impl FnOnce(&Path),
) -> std::result::Result<(), ImageError> {
    let mount = PhysicalOptions { sync_file, ..PhysicalOptions::default() };
    let vfs = (vfs, VfsOptions { mount, ..VfsOptions::default() });
    match system {
        System::Nova => serve_system::<Nova<Direct>>(image, vfs, mount_point, options, ready),
        System::Pmfs => serve_system::<Pmfs<Direct>>(image, vfs, mount_point, options, ready),
        System::SoupFs => serve_system::<SoupFs<Direct>>(image, vfs, mount_point, options, ready),
        System::SquirrelFs => serve_system::<SquirrelFs<Direct>>(image, vfs, mount_point, options, ready),
    }
}

fn serve_system<P: PhysicalFs<Memory = Direct>>(
    image: &Path,
    (vfs, how): (VfsKind, VfsOptions),
    mount_point: &Path,
    options: &fuse::MountOptions,
    ready: impl FnOnce(&Path),
) -> std::result::Result<(), ImageError> {
    match vfs {
        VfsKind::Conventional => {
            serve_vfs(|region| Conventional::<P>::mount(region, how), image, mount_point, options, ready)
        }
        VfsKind::ByVfs => serve_vfs(|region| ByVfs::<P>::mount(region, how), image, mount_point, options, ready),
        VfsKind::Cachelet => serve_vfs(|region| Cachelet::<P>::mount(region, how), image, mount_point, options, ready),
    }
}

fn serve_vfs<P: PhysicalFs<Memory = Direct>, N: Names<P>>(
    mount: impl FnOnce(pmem::MappedRegion<Direct>) -> Result<Vfs<P, N>>,
    image: &Path,
    mount_point: &Path,
    options: &fuse::MountOptions,
    ready: impl FnOnce(&Path),
) -> std::result::Result<(), ImageError> {
    let file_system = |source| ImageError::FileSystem { path: image.to_owned(), source };
    let mapping = Arc::new(Mapping::open(image, Access::ReadWrite)?);
    // One server at a time: these systems serve one process.
    if let Some(file) = mapping.file()
        && file.try_lock().is_err()
    {
        return Err(file_system(Errno::EBUSY.into()));
    }
    let vfs = Arc::new(mount(mapping.region(Direct)?).map_err(file_system)?);
    let server = Server { vfs: Arc::clone(&vfs), nodes: Mutex::default() };
    let connect = |device| {
        let mut config = Config::default();
        config.n_threads = Some(fuse::threads(options));
        // A mount by the helper does not need the right to open the device.
        config.clone_fd = fuse::open_device().is_ok();
        // The kernel enforces which users have access.
        let session = Session::from_fd(server, device, SessionACL::All, config)?;
        Ok(move || serve_to_end(session))
    };
    let served = fuse::serve_other(image.as_os_str(), mount_point, options, connect, ready);
    // The session has ended and dropped the other reference.
    if let Some(vfs) = Arc::into_inner(vfs) {
        vfs.unmount().map_err(file_system)?;
    }
    let _ = mapping.sync(0..mapping.length());
    Ok(served?)
}

/// Serves requests until the mount has ended.
///
/// The kernel reports the end with ENODEV to a worker that waits for a request; the session treats
/// that as the end. A worker that is just receiving a request gets ECONNABORTED: the last close of
/// a file sends a request without a waiter and ends the mount.
fn serve_to_end<F: Filesystem>(session: Session<F>) -> io::Result<()> {
    match session.run() {
        Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
        result => result,
    }
}

/// Node number of the root in the kernel's view. All other nodes have the file system's number plus
/// one.
const ROOT_NODE: u64 = 1;
/// Positions of `.` and `..`, which precede the cookies of the file system.
const DOTS: i64 = 2;

struct Node {
    file: OwnedFileRef,
    lookups: u64,
}

struct Server<P: PhysicalFs, N: Names<P>> {
    vfs: Arc<Vfs<P, N>>,
    nodes: Mutex<HashMap<u64, Node>>,
}

impl<P: PhysicalFs, N: Names<P>> Drop for Server<P, N> {
    fn drop(&mut self) {
        for (_, node) in self.nodes().drain() {
            drop(self.vfs.take_back(node.file));
        }
    }
}

fn credentials_of(request: &Request) -> Credentials<'static> {
    Credentials::kernel_checked(request.uid(), request.gid())
}

fn nanoseconds(time: TimeOrNow) -> i64 {
    match time {
        TimeOrNow::Now => tables::host::now_ns(),
        TimeOrNow::SpecificTime(time) => match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
        },
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

fn errno(error: Error) -> fuser::Errno {
    fuser::Errno::from_i32(error.errno().0)
}

impl<P: PhysicalFs, N: Names<P>> Server<P, N> {
    fn nodes(&self) -> MutexGuard<'_, HashMap<u64, Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node_of(&self, number: u64) -> u64 {
        if number == self.vfs.physical().root() { ROOT_NODE } else { number + 1 }
    }

    fn held(&self, node: INodeNo) -> Result<FileRef<'_, P, N>> {
        if node.0 == ROOT_NODE {
            return Ok(self.vfs.root());
        }
        Ok(self.vfs.hold(&self.nodes().get(&node.0).ok_or(Errno::ENOENT)?.file))
    }

    /// Records that the kernel has a reference to a file. Returns its attributes.
    fn introduce(&self, file: FileRef<'_, P, N>) -> FileAttr {
        let attributes = self.vfs.stat_held(&file);
        let number = self.node_of(attributes.number);
        if number != ROOT_NODE {
            let mut nodes = self.nodes();
            let known = nodes.get_mut(&number).map(|node| node.lookups += 1).is_some();
            if !known {
                nodes.insert(number, Node { file: file.into_owned(), lookups: 1 });
            }
        }
        self.attr(&attributes)
    }

    fn attr(&self, attributes: &Attributes) -> FileAttr {
        let time = |ns: i64| {
            let distance = Duration::from_nanos(ns.unsigned_abs());
            if ns < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
        };
        FileAttr {
            ino: INodeNo(self.node_of(attributes.number)),
            size: attributes.size_bytes,
            blocks: attributes.blocks * (BLOCK_BYTES / 512),
            atime: time(attributes.accessed_ns),
            mtime: time(attributes.modified_ns),
            ctime: time(attributes.changed_ns),
            crtime: UNIX_EPOCH,
            kind: file_type(attributes.kind),
            perm: (attributes.mode & 0o7777) as u16,
            nlink: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: attributes.device,
            blksize: BLOCK_BYTES as u32,
            flags: 0,
        }
    }

    fn reply_entry(&self, found: Result<FileRef<'_, P, N>>, reply: ReplyEntry) {
        match found {
            Ok(file) => {
                let generation = self.vfs.stat_held(&file).generation;
                reply.entry(&Duration::ZERO, &self.introduce(file), Generation(generation.into()));
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        arguments: &CreateArguments<'_>,
    ) -> Result<FileRef<'_, P, N>> {
        self.vfs.make(&credentials_of(request), &self.held(parent)?, name.as_bytes(), arguments)
    }

    fn open_node(&self, request: &Request, node: INodeNo, flags: i32) -> Result<u32> {
        self.vfs.open_held(&credentials_of(request), self.held(node)?, flags & !(libc::O_CREAT | libc::O_EXCL))
    }

    fn list(&self, node: INodeNo, offset: u64, reply: &mut ReplyDirectory) -> Result<()> {
        let directory = self.held(node)?;
        let mut offset = offset as i64;
        for (position, name) in [(1, "."), (2, "..")] {
            if offset < position {
                if reply.add(node, position as u64, FileType::Directory, name) {
                    return Ok(());
                }
                offset = position;
            }
        }
        let cookie = (offset - DOTS) as u64;
        self.vfs.read_directory_held(&directory, cookie, &mut |entry| {
            let number = INodeNo(self.node_of(entry.number));
            !reply.add(number, entry.cookie + DOTS as u64, file_type(entry.kind), OsStr::from_bytes(entry.name))
        })
    }

    fn set(&self, request: &Request, node: INodeNo, size_bytes: Option<u64>, changes: &Changes) -> Result<Attributes> {
        let file = self.held(node)?;
        if let Some(length) = size_bytes {
            self.vfs.truncate_held(&file, length)?;
        }
        if *changes == Changes::default() {
            return Ok(self.vfs.stat_held(&file));
        }
        let credentials = credentials_of(request);
        self.vfs.change(&file, |attributes| {
            let changes_owner = changes.uid.is_some() || changes.gid.is_some();
            let kept = if changes_owner && attributes.kind == FileKind::Regular {
                attributes.mode & 0o7777 & !(libc::S_ISUID | libc::S_ISGID)
            } else {
                attributes.mode & 0o7777
            };
            let permissions = changes.permissions.or(changes_owner.then_some(kept));
            // The kernel has checked the permission.
            debug_assert!(credentials.checked);
            Ok(Changes { permissions, ..*changes })
        })
    }
}

fn reply_empty(result: Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

#[allow(clippy::too_many_arguments)]
impl<P: PhysicalFs, N: Names<P>> Filesystem for Server<P, N> {
    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found =
            self.held(parent).and_then(|parent| self.vfs.lookup(&credentials_of(request), &parent, name.as_bytes()));
        self.reply_entry(found, reply);
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        let mut nodes = self.nodes();
        let Some(known) = nodes.get_mut(&node.0) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0
            && let Some(gone) = nodes.remove(&node.0)
        {
            drop(nodes);
            drop(self.vfs.take_back(gone.file));
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.held(node) {
            Ok(file) => reply.attr(&Duration::ZERO, &self.attr(&self.vfs.stat_held(&file))),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes {
            permissions: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            accessed_ns: accessed.map(nanoseconds),
            modified_ns: modified.map(nanoseconds),
            ..Changes::default()
        };
        match self.set(request, node, size, &changes) {
            Ok(attributes) => reply.attr(&Duration::ZERO, &self.attr(&attributes)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        match self.held(node).and_then(|link| self.vfs.read_link_held(&link)) {
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
        device: u32,
        reply: ReplyEntry,
    ) {
        let made = FileKind::from_mode(mode).ok_or(Error::Errno(Errno::EINVAL)).and_then(|kind| {
            let arguments = CreateArguments { kind, permissions: mode & 0o7777 & !umask, device, target: b"" };
            self.make(request, parent, name, &arguments)
        });
        self.reply_entry(made, reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let arguments = CreateArguments::of(FileKind::Directory, mode & 0o1777 & !umask);
        self.reply_entry(self.make(request, parent, name, &arguments), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        if target.is_empty() || target.len() >= posix::path::PATH_BYTES_MAX {
            let wrong = if target.is_empty() { Errno::ENOENT } else { Errno::ENAMETOOLONG };
            return reply.error(errno(wrong.into()));
        }
        let arguments = CreateArguments { kind: FileKind::Symlink, permissions: 0o777, device: 0, target };
        self.reply_entry(self.make(request, parent, name, &arguments), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove =
            |parent: FileRef<'_, P, N>| self.vfs.remove(&credentials_of(request), &parent, name.as_bytes(), false);
        reply_empty(self.held(parent).and_then(remove), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove =
            |parent: FileRef<'_, P, N>| self.vfs.remove(&credentials_of(request), &parent, name.as_bytes(), true);
        reply_empty(self.held(parent).and_then(remove), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        let bits = flags.bits();
        if bits & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 {
            return reply.error(errno(Errno::EINVAL.into()));
        }
        let flags = RenameFlags {
            no_replace: bits & libc::RENAME_NOREPLACE != 0,
            exchange: bits & libc::RENAME_EXCHANGE != 0,
            ..RenameFlags::default()
        };
        let renamed = self.held(parent).and_then(|from| {
            let to = self.held(new_parent)?;
            self.vfs.rename_held(&credentials_of(request), (&from, name.as_bytes()), (&to, new_name.as_bytes()), flags)
        });
        reply_empty(renamed, reply);
    }

    fn link(&self, request: &Request, node: INodeNo, new_parent: INodeNo, new_name: &OsStr, reply: ReplyEntry) {
        let linked = self.held(node).and_then(|file| {
            self.vfs.link_held(&credentials_of(request), &file, &self.held(new_parent)?, new_name.as_bytes())?;
            Ok(file)
        });
        self.reply_entry(linked, reply);
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_node(request, node, flags.0) {
            Ok(handle) => reply.opened(FileHandle(handle.into()), FopenFlags::empty()),
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
        let arguments = CreateArguments::of(FileKind::Regular, mode & 0o7777 & !umask);
        let made = self.make(request, parent, name, &arguments).or_else(|error| match error {
            Error::Errno(Errno::EEXIST) if flags & libc::O_EXCL == 0 => {
                self.vfs.lookup(&credentials_of(request), &self.held(parent)?, name.as_bytes())
            }
            other => Err(other),
        });
        let opened = made.and_then(|file| {
            let flags = flags & !(libc::O_CREAT | libc::O_EXCL);
            Ok((self.vfs.open_held(&credentials_of(request), file.clone(), flags)?, file))
        });
        match opened {
            Ok((handle, file)) => {
                let generation = Generation(self.vfs.stat_held(&file).generation.into());
                let attr = self.introduce(file);
                reply.created(&Duration::ZERO, &attr, generation, FileHandle(handle.into()), FopenFlags::empty());
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut buffer = vec![0; size as usize];
        match self.vfs.read_at(handle.0 as u32, offset, &mut buffer) {
            Ok(count) => reply.data(&buffer[..count]),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.vfs.write_at(handle.0 as u32, Some(offset), data) {
            Ok(count) => reply.written(count as u32),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply_empty(self.vfs.close_open(handle.0 as u32), reply);
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        reply_empty(self.vfs.sync_open(handle.0 as u32), reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply_empty(self.vfs.physical().sync(), reply);
    }

    fn readdir(&self, _: &Request, node: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.list(node, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.vfs.physical().space() {
            Ok(space) => reply.statfs(
                space.blocks,
                space.blocks_free,
                space.blocks_free,
                space.inodes,
                space.inodes_free,
                BLOCK_BYTES as u32,
                P::NAME_MAX as u32,
                BLOCK_BYTES as u32,
            ),
            Err(error) => reply.error(errno(error)),
        }
    }
}
