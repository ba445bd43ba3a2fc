//! Open file descriptions, as plain data for shared memory.

use crate::watch::group_flag::MARKS;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};
use engine::format::FileKind;
use engine::{DirectoryHint, Node};

/// An open file description: the state that descriptors from one `open` share.
///
/// Plain data with atomics, so that it can lie in memory that processes share. It owns one
/// reference to its node, which `Opens::close` of crate `posix` releases. Dropping it does not,
/// because the sharers decide when the last one ends.
///
/// Calls on a file lock no field: a process that dies within a call leaves nothing locked. Reads
/// and writes move the position by one compare-and-swap.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct OpenFile {
    /// Index of the node's cachelet.
    cachelet: AtomicU32,
    /// Flags of `open`; F_SETFL may change some.
    flags: AtomicU32,
    /// Number of the node.
    number: AtomicU64,
    /// Position; for a directory the cookie of the last listed name.
    position: AtomicU64,
    /// For a directory: where the scan stopped; only a hint, so its two parts may be inconsistent.
    /// For other files: the directory in which `open` found the name, for queries of the path;
    /// zero: unknown.
    hint_page: AtomicU64,
    /// See `hint_page`.
    hint_version: AtomicU32,
    /// [`FileKind`] as a number.
    kind: AtomicU32,
    /// In the shared table: number of references to the description.
    pub(crate) users: AtomicU32,
    /// In the shared table: ticket of the transaction that changes `users`.
    pub(crate) lock: AtomicU32,
    /// In the shared table: ticket of the claimer; zero: free.
    pub(crate) claimed: AtomicU32,
    /// For a directory: the low half of the cookie before which its listing ends; zero: unknown.
    /// For other files in the shared table: see `process::leases`; in the caller's memory: 1 if the
    /// file is still to be truncated.
    end_or_lease: AtomicU32,
    /// In the shared table: [`DescriptionUsers`].
    sharing: AtomicU64,
}
const _: () = assert!(size_of::<OpenFile>() == 64);

/// The threads that may use a description: only the one that opened it, or any. A close thus knows
/// where to search for in-flight references: see [`crate::process`]. Each life of a description has
/// a different word, so an unchanged word proves an unchanged life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DescriptionUsers(u64);

impl DescriptionUsers {
    /// Bits below: the thread that opened it.
    const ANY: u64 = 1 << 32;
    const ONE_LIFE: u64 = 1 << 33;

    /// Whether only this thread has looked it up in this life.
    #[inline]
    pub fn is_only(self, thread: u32) -> bool {
        self.0 & (Self::ONE_LIFE - 1) == u64::from(thread)
    }

    /// Whether any thread may use it.
    #[inline]
    pub fn is_any(self) -> bool {
        self.0 & Self::ANY != 0
    }
}

/// In place of a kind: the description is that of an inotify or fanotify descriptor.
const WATCHER: u32 = u32::MAX;

/// In the flags: see [`OpenFile::silence`]. The kernel's FMODE_NONOTIFY, which no open sets.
const SILENT: u32 = 0x0400_0000;
/// In the flags: the open created the file.
pub const CREATED: i32 = 0x0800_0000;
/// Bits of the flags that programs do not see.
pub const INTERNAL_FLAGS: i32 = SILENT as i32 | CREATED;

/// Flags of a fanotify descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkGroupFlags {
    /// Flags of fanotify_init, and of `crate::watch`.
    pub group: u32,
    /// Flags of the descriptors in its events.
    pub event: u32,
}

/// The flags that F_SETFL can change.
const CHANGEABLE: u32 = (libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME | libc::O_DIRECT | libc::O_ASYNC) as u32;

impl OpenFile {
    /// A description of a node; takes over its reference.
    pub fn new(node: Node, kind: FileKind, flags: i32) -> OpenFile {
        OpenFile {
            cachelet: AtomicU32::new(node.cachelet),
            flags: AtomicU32::new(flags as u32),
            number: AtomicU64::new(node.number),
            position: AtomicU64::new(0),
            hint_page: AtomicU64::new(0),
            hint_version: AtomicU32::new(0),
            kind: AtomicU32::new(kind as u32),
            users: AtomicU32::new(0),
            lock: AtomicU32::new(0),
            claimed: AtomicU32::new(0),
            end_or_lease: AtomicU32::new(0),
            sharing: AtomicU64::new(0),
        }
    }

    /// The description of an inotify or fanotify descriptor, which the kernel serves except for its
    /// watches (`crate::watch`). `node` is the root: each description has a file. `key` names the
    /// group of its watches, `flags` that of fanotify.
    pub fn watcher(node: Node, key: u64, flags: Option<MarkGroupFlags>) -> OpenFile {
        let file = OpenFile::new(node, FileKind::Fifo, libc::O_RDONLY);
        file.kind.store(WATCHER, Relaxed);
        file.set_position(key);
        let flags = flags.map_or(0, |flags| u64::from(flags.group | MARKS) | u64::from(flags.event) << 32);
        file.hint_page.store(flags, Relaxed);
        file
    }

    /// Whether it is the description of an inotify or fanotify descriptor.
    #[inline]
    pub fn is_watcher(&self) -> bool {
        self.kind.load(Relaxed) == WATCHER
    }

    /// For a fanotify descriptor: its flags.
    pub fn mark_group_flags(&self) -> Option<MarkGroupFlags> {
        let flags = self.hint_page.load(Relaxed);
        let (group, event) = (flags as u32, (flags >> 32) as u32);
        (self.is_watcher() && group & MARKS != 0).then_some(MarkGroupFlags { group, event })
    }

    /// Lets no watch be notified of what happens through this description.
    pub fn silence(&self) {
        self.flags.fetch_or(SILENT, Relaxed);
    }

    /// Whether no watch is notified of what happens through it: it comes from an event of fanotify,
    /// and its reader would be notified for ever.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.flags.load(Relaxed) & SILENT != 0
    }

    /// For an inotify or fanotify descriptor: the key of the group of its watches.
    pub fn watch_key(&self) -> Option<u64> {
        self.is_watcher().then(|| self.position())
    }

    /// Whether the file of a description that an open has just returned is still to be truncated,
    /// once leases that others hold on it are broken (`Opens::truncate_late` of crate `posix`).
    #[inline]
    pub fn truncates_late(&self) -> bool {
        self.lease().is_some_and(|lease| lease.load(Relaxed) != 0)
    }

    /// Has the file truncated late: see [`OpenFile::truncates_late`].
    pub fn set_truncates_late(&self) {
        if let Some(lease) = self.lease() {
            lease.store(1, Relaxed);
        }
    }

    /// In the shared table: whether its placeholders may be descriptors of a lease file.
    #[inline]
    pub(crate) fn is_attached(&self) -> bool {
        self.lease().is_some_and(|lease| lease.load(Acquire) != 0)
    }

    /// The word of `process::leases`. `None`: a directory has no leases.
    #[inline]
    pub(crate) fn lease(&self) -> Option<&AtomicU32> {
        (self.kind() != FileKind::Directory).then_some(&self.end_or_lease)
    }

    /// Copies `file` into a free entry of the shared table, without the fields of the table.
    pub(crate) fn fill(&self, file: &OpenFile) {
        self.cachelet.store(file.cachelet.load(Relaxed), Relaxed);
        self.flags.store(file.flags.load(Relaxed), Relaxed);
        self.number.store(file.number.load(Relaxed), Relaxed);
        self.position.store(file.position.load(Relaxed), Relaxed);
        self.hint_page.store(file.hint_page.load(Relaxed), Relaxed);
        self.hint_version.store(file.hint_version.load(Relaxed), Relaxed);
        self.kind.store(file.kind.load(Relaxed), Relaxed);
        let end = if file.lease().is_some() { 0 } else { file.end_or_lease.load(Relaxed) };
        self.end_or_lease.store(end, Relaxed);
    }

    /// Begins a life of a free entry of the shared table, for the thread that opens it. Must
    /// precede the store of the descriptor.
    #[inline]
    pub(crate) fn begin_life(&self, thread: u32) {
        let life =
            (self.sharing.load(Relaxed) & !(DescriptionUsers::ONE_LIFE - 1)).wrapping_add(DescriptionUsers::ONE_LIFE);
        self.sharing.store(life | u64::from(thread), Release);
    }

    /// The present users.
    #[inline]
    pub(crate) fn sharing(&self) -> DescriptionUsers {
        DescriptionUsers(self.sharing.load(SeqCst))
    }

    /// Marks it as used by any thread, for the rest of its life.
    pub(crate) fn share_with_all(&self) -> DescriptionUsers {
        DescriptionUsers(self.sharing.fetch_or(DescriptionUsers::ANY, SeqCst) | DescriptionUsers::ANY)
    }

    /// The file.
    pub fn node(&self) -> Node {
        Node { cachelet: self.cachelet.load(Relaxed), number: self.number.load(Relaxed) }
    }

    /// The kind of file. An invalid value in shared memory counts as a FIFO, on which no operation
    /// is possible here.
    pub fn kind(&self) -> FileKind {
        FileKind::from_bits(self.kind.load(Relaxed)).unwrap_or(FileKind::Fifo)
    }

    /// Number of the directory in which `open` found the file; zero: unknown, or the file is itself
    /// a directory. The name may have been removed since.
    pub fn found_in(&self) -> u64 {
        if self.kind() == FileKind::Directory { 0 } else { self.hint_page.load(Relaxed) }
    }

    /// Records where `open` found the name.
    #[inline]
    pub fn set_found_in(&self, directory: u64) {
        if self.kind() != FileKind::Directory {
            self.hint_page.store(directory, Relaxed);
        }
    }

    /// The present flags, and [`INTERNAL_FLAGS`].
    pub fn flags(&self) -> i32 {
        self.flags.load(Relaxed) as i32
    }

    /// F_SETFL.
    pub fn set_flags(&self, flags: i32) {
        let kept = self.flags.load(Relaxed) & !CHANGEABLE;
        self.flags.store(kept | flags as u32 & CHANGEABLE, Relaxed);
    }

    /// Whether the open created the file (F_CREATED_QUERY).
    pub fn is_created(&self) -> bool {
        self.flags() & CREATED != 0
    }

    /// Whether it was opened for reading.
    pub fn reads(&self) -> bool {
        !self.is_path() && matches!(self.flags() & libc::O_ACCMODE, libc::O_RDONLY | libc::O_RDWR)
    }

    /// Whether it was opened for writing.
    pub fn writes(&self) -> bool {
        !self.is_path() && matches!(self.flags() & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
    }

    /// Whether it was opened with O_SYNC or O_DSYNC: a write returns when it is on the disk.
    pub fn is_synchronous(&self) -> bool {
        self.flags() & (libc::O_SYNC | libc::O_DSYNC) != 0
    }

    /// Whether it was opened with O_PATH.
    pub fn is_path(&self) -> bool {
        self.flags() & libc::O_PATH != 0
    }

    /// Whether it is a file without a name that link may give one.
    pub fn is_linkable(&self) -> bool {
        let flags = self.flags();
        flags & libc::O_TMPFILE == libc::O_TMPFILE && flags & libc::O_EXCL == 0
    }

    /// The position.
    pub fn position(&self) -> u64 {
        self.position.load(Acquire)
    }

    /// Sets the position.
    pub fn set_position(&self, position: u64) {
        self.position.store(position, Release);
    }

    /// Moves the position unless it changed meanwhile.
    #[inline]
    pub fn advance(&self, from: u64, to: u64) -> bool {
        self.position.compare_exchange(from, to, Release, Relaxed).is_ok()
    }

    /// Reserves `length` bytes at the position; returns their offset.
    #[inline]
    pub fn reserve(&self, length: u64) -> u64 {
        self.position.fetch_add(length, Release)
    }

    /// Lets the listing of a directory end before this cookie; zero: that is unknown.
    #[inline]
    pub fn set_listing_end(&self, cookie: u64) {
        self.end_or_lease.store(cookie as u32, Relaxed);
    }

    /// The cookie before which the listing of a directory ends, if it is known. `next` is that of
    /// the next new name. After more than 2^31 new names, the result exceeds the true cookie.
    #[inline]
    pub fn listing_end(&self, next: u64) -> Option<u64> {
        let low = self.end_or_lease.load(Relaxed);
        let since = (next as u32).wrapping_sub(low) as i32;
        (low != 0).then(|| next.saturating_add_signed(-i64::from(since)))
    }

    /// For a directory: where the scan stopped.
    #[inline]
    pub fn hint(&self) -> DirectoryHint {
        DirectoryHint { page: self.hint_page.load(Relaxed), log_version: self.hint_version.load(Relaxed) }
    }

    /// Sets the hint.
    #[inline]
    pub fn set_hint(&self, hint: DirectoryHint) {
        self.hint_page.store(hint.page, Relaxed);
        self.hint_version.store(hint.log_version, Relaxed);
    }
}
