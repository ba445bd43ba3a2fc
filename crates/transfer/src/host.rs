//! A directory of the host as the content of an image.
//!
//! Several threads share the directories. Each directory is filled by one thread, so that its times
//! can be set when it is complete. Files are opened relative to their directory and without
//! following links, so a tree that changes meanwhile leads to nothing outside of it.

use crate::tree::{Facts, Tree, is_on_the_way, joined, names_of};
use crate::{Counts, Result, TransferError, Watch};
use engine::format::FileKind;
use engine::{Fs, Node};
use posix::NodeRef;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes read at a time.
const PIECE_BYTES: usize = 1 << 20;
/// More threads than this do not pay.
const THREADS_MAX: usize = 8;
/// How often progress is reported.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Copies the content of a directory, and its own attributes, into the root of an empty image.
/// `except`: a file that is left out (device and inode), such as the image itself.
pub fn copy_in(fs: &Fs, source: &Path, except: Option<(u64, u64)>, watch: Watch<'_>) -> Result<Counts> {
    let failed = |errno: Errno| host_error("open", source, errno);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(source, flags, Mode::empty()).map_err(failed)?;
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get()).min(THREADS_MAX);
    let shared = Shared {
        source,
        root,
        except,
        queue: Mutex::default(),
        changed: Condvar::new(),
        links: Mutex::default(),
        files: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        is_stopped: AtomicBool::new(false),
    };
    shared.queue().directories.push(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| shared.work(fs));
        }
        shared.report(watch);
    });
    let counts = shared.counts();
    shared.release_links(fs);
    match shared.queue().error.take() {
        Some(error) => Err(error),
        None => Ok(counts),
    }
}

/// Bytes of content below a directory; `None` if `goes_on` ends the walk. What cannot be examined
/// counts nothing.
pub fn content_bytes(directory: &Path, goes_on: &dyn Fn() -> bool) -> Option<u64> {
    let (mut waiting, mut links, mut bytes) = (vec![directory.to_owned()], HashSet::new(), 0);
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if !goes_on() {
                return None;
            }
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                waiting.push(entry.path());
            } else if found.is_file() && (found.nlink() < 2 || links.insert((found.dev(), found.ino()))) {
                bytes += found.len().min(found.blocks() * 512);
            }
        }
    }
    Some(bytes)
}

fn host_error(action: &'static str, path: &Path, errno: Errno) -> TransferError {
    TransferError::Host { action, path: path.to_owned(), source: errno.into() }
}

/// What the threads share.
struct Shared<'a> {
    source: &'a Path,
    root: OwnedFd,
    except: Option<(u64, u64)>,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Files with several names: the node, with a reference.
    links: Mutex<HashMap<(u64, u64), Node>>,
    files: AtomicU64,
    bytes: AtomicU64,
    is_stopped: AtomicBool,
}

#[derive(Default)]
struct Queue {
    /// Directories to fill: paths from the source, which exist in the image.
    directories: Vec<Vec<u8>>,
    /// Threads that fill one.
    busy: usize,
    error: Option<TransferError>,
}

impl Queue {
    fn is_over(&self) -> bool {
        self.error.is_some() || self.busy == 0 && self.directories.is_empty()
    }
}

impl Shared<'_> {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> Counts {
        Counts { files: self.files.load(Relaxed), bytes: self.bytes.load(Relaxed), ..Counts::default() }
    }

    /// Reports progress until all is done.
    fn report(&self, watch: Watch<'_>) {
        let mut queue = self.queue();
        while !queue.is_over() {
            let waited = self.changed.wait_timeout(queue, REPORT_INTERVAL);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            if queue.error.is_none() && !watch(self.counts()) {
                queue.error = Some(TransferError::Stopped);
            }
        }
        self.is_stopped.store(queue.error.is_some(), Relaxed);
        drop(queue);
        self.changed.notify_all();
    }

    fn work(&self, fs: &Fs) {
        let entered = fs.enter().map_err(|error| TransferError::image("enter", b"/", error));
        let filler = match &entered {
            Ok(thread) => Filler { shared: self, tree: Tree { thread }, last: None, buffer: vec![0; PIECE_BYTES] },
            // Other threads go on, or fail likewise.
            Err(_) => return self.fail_if_alone(entered.err()),
        };
        let mut filler = filler;
        while let Some(directory) = self.take() {
            let filled = filler.fill(&directory);
            let mut queue = self.queue();
            queue.busy -= 1;
            match filled {
                Ok(found) => queue.directories.extend(found),
                Err(error) => drop(queue.error.get_or_insert(error)),
            }
            self.is_stopped.store(queue.error.is_some(), Relaxed);
            drop(queue);
            self.changed.notify_all();
        }
    }

    fn fail_if_alone(&self, error: Option<TransferError>) {
        let mut queue = self.queue();
        if queue.busy == 0 && !queue.directories.is_empty() {
            queue.error = queue.error.take().or(error);
        }
        drop(queue);
        self.changed.notify_all();
    }

    /// The next directory; `None`: there will be no more.
    fn take(&self) -> Option<Vec<u8>> {
        let mut queue = self.queue();
        loop {
            if queue.is_over() {
                return None;
            }
            // The newest first: the queue stays short.
            if let Some(directory) = queue.directories.pop() {
                queue.busy += 1;
                return Some(directory);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn release_links(&self, fs: &Fs) {
        let Ok(thread) = fs.enter() else { return };
        let links = std::mem::take(&mut *self.links.lock().unwrap_or_else(PoisonError::into_inner));
        links.into_values().for_each(|node| thread.release(node, 1));
    }

    fn shown(&self, path: &[u8]) -> PathBuf {
        self.source.join(OsStr::from_bytes(path))
    }
}

/// A thread that fills directories.
struct Filler<'s, 't, 'f> {
    shared: &'s Shared<'s>,
    tree: Tree<'t, 'f>,
    /// The path of the last directory: the next one is often below it.
    last: Option<(Vec<u8>, Filled<'t, 'f>)>,
    buffer: Vec<u8>,
}

/// A directory of the host, and the one of the image that is filled from it.
struct Filled<'t, 'f> {
    from: OwnedFd,
    into: NodeRef<'t, 'f>,
}

impl<'t, 'f> Filler<'_, 't, 'f> {
    /// Fills a directory; returns the directories in it.
    fn fill(&mut self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let failed = |errno| host_error("read", &self.shared.shown(path), errno);
        let filled = self.enter(path)?;
        let (directory, node) = (&filled.from, filled.into.node());
        let mut found = Vec::new();
        // Through a description of its own: the position of the other one stays.
        let listed = rustix::fs::Dir::read_from(directory).map_err(failed)?;
        for entry in listed {
            if self.shared.is_stopped.load(Relaxed) {
                return Ok(Vec::new());
            }
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let child = joined(path, name);
            if self.add(directory.as_fd(), node, name, &child)? {
                found.push(child);
            }
        }
        let stat = rustix::fs::fstat(directory).map_err(failed)?;
        let mut facts = self.facts_of(&stat, FileKind::Directory, path)?;
        facts.xattrs = self.xattrs_of(Attributed::Open(directory.as_fd()), FileKind::Directory, path)?;
        match path.is_empty() {
            true => self.tree.describe_existing(node, &facts, b"/")?,
            false => self.tree.describe(node, &facts, path)?,
        }
        self.last = Some((path.to_vec(), filled));
        Ok(found)
    }

    fn enter(&mut self, path: &[u8]) -> Result<Filled<'t, 'f>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let failed = |errno| host_error("open", &self.shared.shown(path), errno);
        let (above, mut filled) = match self.last.take().filter(|last| is_on_the_way(&last.0, path)) {
            Some((above, filled)) => (above.len(), filled),
            None => {
                let from = rustix::io::fcntl_dupfd_cloexec(&self.shared.root, 0).map_err(failed)?;
                (0, Filled { from, into: self.tree.root()? })
            }
        };
        for name in names_of(&path[above..]) {
            let found = self.tree.find(filled.into.node(), name, path)?;
            filled = Filled {
                from: rustix::fs::openat(&filled.from, name, flags, Mode::empty()).map_err(failed)?,
                into: found.ok_or_else(|| TransferError::image("find", path, posix::Errno::ENOENT))?,
            };
        }
        Ok(filled)
    }

    /// Adds a file; returns whether it is a directory.
    fn add(&mut self, from: BorrowedFd<'_>, into: Node, name: &[u8], path: &[u8]) -> Result<bool> {
        let failed = |errno| host_error("examine", &self.shared.shown(path), errno);
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if self.shared.except == Some((stat.st_dev, stat.st_ino)) {
            return Ok(false);
        }
        let kind = kind_of(&stat);
        let mut facts = self.facts_of(&stat, kind, path)?;
        if kind == FileKind::Symlink {
            let target = rustix::fs::readlinkat(from, name, Vec::new()).map_err(failed)?;
            facts.target = target.into_bytes();
        }
        self.shared.files.fetch_add(1, Relaxed);
        if kind == FileKind::Directory || stat.st_nlink < 2 {
            let node = self.tree.make(into, name, &facts, path)?;
            if kind == FileKind::Directory {
                // Filled and described later.
                return Ok(true);
            }
            return self.complete(from, name, &stat, facts, node.node(), path).map(|()| false);
        }
        let node = {
            let mut links = self.shared.links.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(&node) = links.get(&(stat.st_dev, stat.st_ino)) {
                drop(links);
                return self.tree.link(node, into, name, path).map(|()| false);
            }
            let node = self.tree.make(into, name, &facts, path)?;
            let kept = node.into_node().map_err(|errno| TransferError::image("hold", path, errno))?;
            links.insert((stat.st_dev, stat.st_ino), kept);
            kept
        };
        self.complete(from, name, &stat, facts, node, path).map(|()| false)
    }

    /// Adds content, extended attributes and times of a file.
    fn complete(
        &mut self,
        from: BorrowedFd<'_>,
        name: &[u8],
        stat: &Stat,
        mut facts: Facts,
        node: Node,
        path: &[u8],
    ) -> Result<()> {
        if facts.kind == FileKind::Regular {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(from, name, flags, Mode::empty());
            let file = opened.map_err(|errno| host_error("open", &self.shared.shown(path), errno))?;
            self.copy(&file, stat, node, path)?;
            facts.xattrs = self.xattrs_of(Attributed::Open(file.as_fd()), facts.kind, path)?;
        } else {
            facts.xattrs = self.xattrs_of(Attributed::Named(from, name), facts.kind, path)?;
        }
        self.tree.describe(node, &facts, path)
    }

    fn copy(&mut self, file: &OwnedFd, stat: &Stat, node: Node, path: &[u8]) -> Result<()> {
        let length = stat.st_size as u64;
        let is_sparse = (stat.st_blocks as u64) * 512 < length;
        let (mut at, mut written) = (0, 0);
        while at < length {
            let (start, end) = if is_sparse { self.next_extent(file, at, length) } else { (at, length) };
            at = start;
            while at < end && !self.shared.is_stopped.load(Relaxed) {
                let room = ((end - at) as usize).min(PIECE_BYTES);
                let read = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut self.buffer[..room], at));
                let count = read.map_err(|errno| host_error("read", &self.shared.shown(path), errno))?;
                if count == 0 {
                    // It became shorter meanwhile.
                    return self.tree.set_length(node, written, path);
                }
                self.tree.write(node, at, &self.buffer[..count], path)?;
                self.shared.bytes.fetch_add(count as u64, Relaxed);
                at += count as u64;
                written = at;
            }
            if self.shared.is_stopped.load(Relaxed) {
                return Ok(());
            }
        }
        if written < length { self.tree.set_length(node, length, path) } else { Ok(()) }
    }

    /// The next piece that is not a hole.
    fn next_extent(&self, file: &OwnedFd, at: u64, length: u64) -> (u64, u64) {
        match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => {
                let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(length);
                (start.min(length), end.clamp(start.min(length), length))
            }
            Err(Errno::NXIO) => (length, length),
            Err(_) => (at, length),
        }
    }

    fn facts_of(&self, stat: &Stat, kind: FileKind, path: &[u8]) -> Result<Facts> {
        let failed = || host_error("store the times of", &self.shared.shown(path), Errno::OVERFLOW);
        let ns = |seconds: i64, ns: i64| seconds.checked_mul(1_000_000_000)?.checked_add(ns);
        let modified_ns = ns(stat.st_mtime, stat.st_mtime_nsec as i64).ok_or_else(failed)?;
        let is_device = matches!(kind, FileKind::Character | FileKind::Block);
        Ok(Facts {
            kind,
            permissions: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            // Linux's encoding in 32 bits is the low half of the one in 64.
            device: if is_device { stat.st_rdev as u32 } else { 0 },
            modified_ns,
            accessed_ns: Some(ns(stat.st_atime, stat.st_atime_nsec as i64).ok_or_else(failed)?),
            xattrs: Vec::new(),
            target: Vec::new(),
        })
    }

    fn xattrs_of(&self, file: Attributed<'_>, kind: FileKind, path: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let failed = |errno| host_error("read the extended attributes of", &self.shared.shown(path), errno);
        let mut names = vec![0; posix::LIST_BYTES_MAX];
        let length = match file.list(&mut names) {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            length => length.map_err(failed)?,
        };
        let mut xattrs = Vec::new();
        for name in names[..length].split(|&byte| byte == 0).filter(|name| is_kept(name, kind)) {
            let mut value = vec![0; posix::VALUE_BYTES_MAX];
            let Ok(name_text) = CString::new(name) else { continue };
            match file.get(&name_text, &mut value) {
                Ok(length) => xattrs.push((name.to_vec(), value[..length].to_vec())),
                // Removed meanwhile.
                Err(Errno::NODATA) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(xattrs)
    }
}

/// The attributes that a file of this kind can have in an image, as on Linux. Those of security
/// modules belong to the machine.
pub(crate) fn is_kept(name: &[u8], kind: FileKind) -> bool {
    match name {
        b"security.capability" => kind == FileKind::Regular,
        b"system.posix_acl_access" => kind != FileKind::Symlink,
        b"system.posix_acl_default" => kind == FileKind::Directory,
        _ if name.starts_with(b"user.") => matches!(kind, FileKind::Regular | FileKind::Directory),
        _ => name.starts_with(b"trusted."),
    }
}

fn kind_of(stat: &Stat) -> FileKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::CharacterDevice => FileKind::Character,
        FileType::BlockDevice => FileKind::Block,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::RegularFile | FileType::Unknown => FileKind::Regular,
    }
}

/// A file of the host whose extended attributes are read.
enum Attributed<'a> {
    Open(BorrowedFd<'a>),
    /// A name in an open directory: neither opened, which would act on a device, nor followed.
    Named(BorrowedFd<'a>, &'a [u8]),
}

impl Attributed<'_> {
    fn path(directory: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
        [format!("/proc/self/fd/{}/", directory.as_raw_fd()).as_bytes(), name].concat()
    }

    fn list(&self, names: &mut [u8]) -> rustix::io::Result<usize> {
        match *self {
            Attributed::Open(file) => rustix::fs::flistxattr(file, names),
            Attributed::Named(directory, name) => rustix::fs::llistxattr(Self::path(directory, name), names),
        }
    }

    fn get(&self, attribute: &CStr, value: &mut [u8]) -> rustix::io::Result<usize> {
        match *self {
            Attributed::Open(file) => rustix::fs::fgetxattr(file, attribute, value),
            Attributed::Named(directory, name) => rustix::fs::lgetxattr(Self::path(directory, name), attribute, value),
        }
    }
}

/// Whether a path is a directory of the host, for an early refusal.
pub fn check_directory(source: &Path) -> Result<()> {
    let failed = |source_error| TransferError::Host { action: "use", path: source.to_owned(), source: source_error };
    match std::fs::metadata(source).map_err(failed)?.is_dir() {
        true => Ok(()),
        false => Err(failed(io::Error::from_raw_os_error(libc::ENOTDIR))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_the_bytes_of_each_file_once_and_none_of_its_holes() {
        let directory = tempfile::tempdir().expect("a directory");
        let sub = directory.path().join("sub");
        std::fs::create_dir(&sub).expect("a directory");
        std::fs::write(sub.join("file"), [1; 70000]).expect("a file");
        std::fs::hard_link(sub.join("file"), directory.path().join("second")).expect("a link");
        std::os::unix::fs::symlink("sub", directory.path().join("link")).expect("a link");
        let hole = std::fs::File::create(directory.path().join("hole")).expect("a file");
        hole.set_len(1 << 30).expect("its length");
        assert_eq!(content_bytes(directory.path(), &|| true), Some(70000));
        assert_eq!(content_bytes(directory.path(), &|| false), None);
    }
}
