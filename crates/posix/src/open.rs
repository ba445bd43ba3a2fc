//! open with all its flags, and with errors in the order of Linux.

use crate::caller::NodeRef;
use crate::components::Opens;
use crate::credentials::Want;
use crate::names::CreateArguments;
use crate::path::{Last, LastLink, Outcome, PathBuffer, WalkStart, inside};
use core::sync::atomic::Ordering::{Acquire, SeqCst};
use engine::format::FileKind;
use engine::{FileFlags, NameLocation, NewNode, Node, Protection, Thread};
use libc::{
    O_ACCMODE, O_CREAT, O_DIRECTORY, O_EXCL, O_NOATIME, O_NOFOLLOW, O_PATH, O_RDONLY, O_TMPFILE, O_TRUNC, O_WRONLY,
};
use pmem::Memory;
use tables::process::{Processes, Program, break_leases, leases_of, prefetch_record};
use tables::{CREATED, Errno, OpenFile, Result};

/// The flags that O_PATH keeps.
const PATH_FLAGS: i32 = O_PATH | O_DIRECTORY | O_NOFOLLOW | libc::O_CLOEXEC;

/// Result of an open.
#[derive(Debug)]
pub struct Opened {
    /// The description.
    pub file: OpenFile,
    /// Whether `open` created the file.
    pub created: bool,
}

/// EINVAL for combinations that open rejects for any path; otherwise the effective flags.
pub fn open_flags_valid(flags: i32) -> Result<i32> {
    if flags & O_PATH != 0 {
        return Ok(flags & PATH_FLAGS);
    }
    let unnamed = flags & O_TMPFILE == O_TMPFILE;
    let no_writer = matches!(flags & O_ACCMODE, O_RDONLY);
    if (unnamed && (no_writer || flags & O_CREAT != 0)) || flags & (O_CREAT | O_DIRECTORY) == O_CREAT | O_DIRECTORY {
        return Err(Errno::EINVAL);
    }
    // O_TMPFILE without O_DIRECTORY is the bit that old kernels ignored.
    if flags & O_TMPFILE & !O_DIRECTORY != 0 && !unnamed {
        return Err(Errno::EINVAL);
    }
    Ok(flags)
}

fn wanted(flags: i32) -> Want {
    let access = match flags & O_ACCMODE {
        O_RDONLY => Want::READ.0,
        O_WRONLY => Want::WRITE.0,
        // 3 is for ioctls that need both.
        _ => Want::READ.0 | Want::WRITE.0,
    };
    Want(if flags & O_TRUNC != 0 { access | Want::WRITE.0 } else { access })
}

/// ETXTBSY for the file of a running program.
pub(crate) fn check_not_running<M: Memory>(thread: &Thread<'_, M>, file: &Protection) -> Result<()> {
    if file.kind() != Some(FileKind::Regular) || file.mode & 0o111 == 0 {
        return Ok(());
    }
    match Processes::new(thread.fs()) {
        Ok(processes) if processes.runs(thread, Program::of(file))? => Err(Errno::ETXTBSY),
        _ => Ok(()),
    }
}

impl<'t, 'f, M: Memory> Opens<'_, 't, 'f, M> {
    /// Opens an existing node. The description gets its own reference. As for all opens of this
    /// module, recovery releases it if this thread dies before [`Opens::keep`] or the installation
    /// in a table.
    pub fn open_node(self, node: Node, flags: i32) -> Result<OpenFile> {
        let flags = open_flags_valid(flags)?;
        self.caller.thread.retain(node)?;
        let file = self.open_held(NodeRef::owned(self.caller.thread, node), flags)?;
        self.notify_new(&file, false);
        Ok(file)
    }

    /// [`Opens::open_node`] for a descriptor in an event of fanotify. Changes through it raise no
    /// events.
    pub fn open_silently(self, node: Node, flags: i32) -> Result<OpenFile> {
        let flags = open_flags_valid(flags)?;
        self.caller.thread.retain(node)?;
        let file = self.open_held(NodeRef::owned(self.caller.thread, node), flags)?;
        file.silence();
        Ok(file)
    }

    /// Notifies watches that a file of the image is run.
    pub fn notify_run(self, file: Node) {
        if self.caller.reports().is_watched() {
            self.caller.reports().notify_run(file);
        }
    }

    /// Events of an open.
    #[inline(always)]
    fn notify_new(self, file: &OpenFile, created: bool) {
        if self.caller.reports().is_watched() {
            self.caller.reports().notify_opened(file, created);
        }
    }

    fn open_held(self, file: NodeRef<'t, 'f, M>, flags: i32) -> Result<OpenFile> {
        let protection = self.caller.thread.protection(file.node())?;
        self.open_seen(file, &protection, flags)
    }

    /// As `open_held`, for known protection.
    #[inline(always)]
    fn open_seen(self, file: NodeRef<'t, 'f, M>, protection: &Protection, flags: i32) -> Result<OpenFile> {
        let kind = protection.require_kind()?;
        if flags & O_DIRECTORY != 0 && kind != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if flags & O_PATH != 0 {
            return Ok(OpenFile::new(file.into_recorded()?, kind, flags));
        }
        self.check_open(protection, flags)?;
        let truncates_late = kind == FileKind::Regular && flags & O_TRUNC != 0 && !self.truncate_early(file.node())?;
        let opened = OpenFile::new(file.into_recorded()?, kind, flags);
        if truncates_late {
            opened.set_truncates_late();
        }
        Ok(opened)
    }

    /// The checks of Linux's may_open, in the same order.
    fn check_open(self, file: &Protection, flags: i32) -> Result<()> {
        let want = wanted(flags);
        match file.kind() {
            Some(FileKind::Symlink) => return Err(Errno::ELOOP),
            Some(FileKind::Directory) if want.0 & Want::WRITE.0 != 0 => return Err(Errno::EISDIR),
            _ => {}
        }
        self.caller.permissions().check_protection(file, want)?;
        if file.flags.has_any(FileFlags::APPEND_ONLY) {
            let appends = flags & O_ACCMODE == O_RDONLY || flags & libc::O_APPEND != 0;
            if !appends || flags & O_TRUNC != 0 {
                return Err(Errno::EPERM);
            }
        }
        if flags & O_NOATIME != 0 && !self.caller.credentials.owns(file.uid) {
            return Err(Errno::EPERM);
        }
        if want.0 & Want::WRITE.0 != 0 { check_not_running(self.caller.thread, file) } else { Ok(()) }
    }

    /// Opens a name; creates the file with O_CREAT. A symbolic link is not followed: ELOOP.
    pub fn open_name(self, directory: Node, name: &[u8], flags: i32, mode: u32, umask: u32) -> Result<Opened> {
        let flags = open_flags_valid(flags)?;
        match self.open_or_make(&self.caller.thread.name_location(directory, name), flags, mode, umask)? {
            OpenTarget::File(opened) => Ok(opened),
            OpenTarget::Link(_) if flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL => Err(Errno::EEXIST),
            OpenTarget::Link(link) if flags & O_PATH != 0 => {
                Ok(Opened { file: self.open_held(link, flags)?, created: false })
            }
            OpenTarget::Link(_) if flags & O_DIRECTORY != 0 => Err(Errno::ENOTDIR),
            OpenTarget::Link(_) => Err(Errno::ELOOP),
        }
    }

    fn open_or_make(self, at: &NameLocation<'_>, flags: i32, mode: u32, umask: u32) -> Result<OpenTarget<'t, 'f, M>> {
        let arguments = CreateArguments { kind: FileKind::Regular, mode, umask, device: 0, target: b"" };
        let exclusive = flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL;
        // Most creates use a new name. The create checks search permission as well.
        let mut seems_absent = flags & O_CREAT != 0 && self.caller.thread.seems_absent(at);
        loop {
            if !exclusive && !seems_absent {
                match self.caller.lookup(at.directory(), at.name()) {
                    Ok(file) => {
                        let found = self.open_existing(file, flags)?;
                        if let OpenTarget::File(opened) = &found {
                            opened.file.set_found_in(at.directory().number);
                            self.notify_new(&opened.file, false);
                        }
                        return Ok(found);
                    }
                    Err(Errno::ENOENT) if flags & O_CREAT != 0 => {}
                    Err(other) => return Err(other),
                }
            }
            match self.caller.make_at(at, seems_absent, &arguments) {
                // The creator of a file may use it as the flags say, whatever the mode allows.
                Ok(made) => {
                    let file = OpenFile::new(made.into_recorded()?, FileKind::Regular, flags | CREATED);
                    file.set_found_in(at.directory().number);
                    self.notify_new(&file, true);
                    return Ok(OpenTarget::File(Opened { file, created: true }));
                }
                // Another call created it meanwhile: open it, or if it is removed again, create it.
                Err(Errno::EEXIST) if !exclusive => seems_absent = false,
                Err(other) => return Err(other),
            }
        }
    }

    fn open_existing(self, file: NodeRef<'t, 'f, M>, flags: i32) -> Result<OpenTarget<'t, 'f, M>> {
        let protection = self.caller.thread.protection(file.node())?;
        match protection.kind() {
            Some(FileKind::Symlink) => return Ok(OpenTarget::Link(file)),
            Some(FileKind::Directory) if flags & O_CREAT != 0 => return Err(Errno::EISDIR),
            _ => {}
        }
        Ok(OpenTarget::File(Opened { file: self.open_seen(file, &protection, flags)?, created: false }))
    }

    /// A file without a name in the file system of a directory (O_TMPFILE).
    pub fn open_unnamed(self, directory: Node, flags: i32, mode: u32, umask: u32) -> Result<OpenFile> {
        let here = self.caller.thread.protection(directory)?;
        if !here.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        self.caller.permissions().check_protection(&here, Want::CHANGE_NAMES)?;
        let arguments = CreateArguments { kind: FileKind::Regular, mode, umask, device: 0, target: b"" };
        let create = |new: &NewNode<'_>| Ok(self.caller.thread.create_unnamed(directory, new)?);
        let node = self.caller.make_by(directory, &here, &arguments, create)?;
        self.caller.thread.record_reference(node);
        Ok(OpenFile::new(node, FileKind::Regular, flags))
    }

    /// open by path.
    pub fn open_path(
        self,
        walk_start: &WalkStart,
        path: &[u8],
        flags: i32,
        (mode, umask): (u32, u32),
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<Opened>> {
        let flags = open_flags_valid(flags)?;
        if flags & O_CREAT != 0 {
            return self.create_path(walk_start, path, flags, (mode, umask), buffer);
        }
        let last_link = if flags & O_NOFOLLOW != 0 { LastLink::Stay } else { LastLink::Follow };
        if flags & O_TMPFILE != O_TMPFILE
            && let Some(found) = self
                .caller
                .paths()
                .take_fast(walk_start, path, last_link, |cachelet| prefetch_record(self.caller.thread.fs(), cachelet))
        {
            let (found, protection, directory) = found?;
            let file = self.open_seen(found, &protection, flags)?;
            file.set_found_in(directory);
            self.notify_new(&file, false);
            return Ok(Outcome::Inside(Opened { file, created: false }));
        }
        let (found, directory) = inside!(self.caller.paths().resolve_in(walk_start, path, last_link, buffer)?);
        let file = if flags & O_TMPFILE == O_TMPFILE {
            self.open_unnamed(found.node(), flags, mode, umask)?
        } else {
            self.open_held(found, flags)?
        };
        file.set_found_in(directory);
        self.notify_new(&file, flags & O_TMPFILE == O_TMPFILE);
        Ok(Outcome::Inside(Opened { file, created: false }))
    }

    /// The directory and name of a path at which a file may be created soon; `None` unless the fast
    /// path applies. Prefetches what the create needs, so that memory latency overlaps with the
    /// caller's other work.
    #[inline]
    pub fn prefetch_name_of<'p>(self, walk_start: &WalkStart, path: &'p [u8]) -> Option<PrefetchedName<'p, 't, 'f, M>> {
        let (directory, name) = self.caller.paths().fast_parent(walk_start, path)?;
        let at = self.caller.thread.name_location(directory.node(), name);
        self.caller.thread.prefetch_name(&at);
        if let Some(cachelet) = self.caller.thread.allocator().next_cachelet() {
            prefetch_record(self.caller.thread.fs(), cachelet);
        }
        Some(PrefetchedName { location: at, _directory: directory })
    }

    /// Opens a name prefetched by [`Opens::prefetch_name_of`], with O_CREAT. `None`: it is a
    /// symbolic link, or the effective flags do not create. Then nothing was done, and
    /// [`Opens::open_path`] must be used.
    #[inline]
    pub fn open_prefetched(
        self,
        prefetched: &PrefetchedName<'_, 't, 'f, M>,
        flags: i32,
        (mode, umask): (u32, u32),
    ) -> Result<Option<Opened>> {
        let flags = open_flags_valid(flags)?;
        if flags & O_CREAT == 0 {
            return Ok(None);
        }
        match self.open_or_make(&prefetched.location, flags, mode, umask)? {
            OpenTarget::File(opened) => Ok(Some(opened)),
            OpenTarget::Link(_) => Ok(None),
        }
    }

    /// With O_CREAT a symbolic link at the end is followed, and the file is created at its target.
    fn create_path(
        self,
        walk_start: &WalkStart,
        path: &[u8],
        flags: i32,
        (mode, umask): (u32, u32),
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<Opened>> {
        if let Some(prefetched) = self.prefetch_name_of(walk_start, path)
            && let Some(opened) = self.open_prefetched(&prefetched, flags, (mode, umask))?
        {
            return Ok(Outcome::Inside(opened));
        }
        let mut parent = inside!(self.caller.paths().resolve_parent(walk_start, path, buffer)?);
        let mut followed = 0;
        loop {
            // `.`, `..` and `/` exist and are directories.
            let Last::Name(name) = &parent.last else {
                return Err(if flags & O_EXCL != 0 { Errno::EEXIST } else { Errno::EISDIR });
            };
            if parent.slash {
                return Err(Errno::EISDIR);
            }
            let at = self.caller.thread.name_location(parent.directory.node(), name.bytes());
            let link = match self.open_or_make(&at, flags, mode, umask)? {
                OpenTarget::File(opened) => return Ok(Outcome::Inside(opened)),
                OpenTarget::Link(_) if flags & O_NOFOLLOW != 0 => return Err(Errno::ELOOP),
                OpenTarget::Link(link) => link,
            };
            parent = inside!(self.caller.paths().resolve_link(walk_start, parent, &link, &mut followed, buffer)?);
        }
    }

    /// Releases the reference of a description, which must not be used afterwards.
    pub fn close(self, file: &OpenFile) {
        if self.caller.reports().is_watched() {
            self.caller.reports().notify_closed(file);
        }
        self.caller.thread.release_recorded(file.node());
    }

    /// Truncates a file that was opened with O_TRUNC, unless leases on it may exist: then returns
    /// false.
    fn truncate_early(self, node: Node) -> Result<bool> {
        let leases = leases_of(self.caller.thread.fs(), node)?;
        if leases.load(Acquire) != 0 {
            return Ok(false);
        }
        self.caller.data().strip_privileges(node, FileFlags::APPEND_ONLY)?;
        Ok(self.caller.thread.files().truncate_if(node, 0, || leases.load(SeqCst) == 0)?)
    }

    /// Completes an open after leases on the file were broken, if [`OpenFile::truncates_late`].
    pub fn truncate_late(self, file: &OpenFile) -> Result<()> {
        self.caller.data().strip_privileges(file.node(), FileFlags::APPEND_ONLY)?;
        Ok(self.caller.thread.files().truncate(file.node(), 0)?)
    }

    /// Completes an open whose description is in the tables, if leases on the file may exist:
    /// breaks them, waits for their holders, and truncates the file if that is still to be done.
    pub fn complete(self, file: &OpenFile) -> Result<()> {
        if file.is_path() {
            return Ok(());
        }
        break_leases(self.caller.thread.fs(), file.node(), file.flags())?;
        if file.truncates_late() { self.truncate_late(file) } else { Ok(()) }
    }

    /// Keeps a description beyond the call that opened it: the death of this thread alone does not
    /// release it.
    pub fn keep(self, file: &OpenFile) {
        self.caller.thread.unrecord_reference(file.node());
    }
}

/// A name at which a file may be created soon, and its directory, which is referenced meanwhile.
pub struct PrefetchedName<'p, 't, 'f, M: Memory> {
    location: NameLocation<'p>,
    _directory: NodeRef<'t, 'f, M>,
}

/// What a name refers to.
// An open file is moved once, to the caller's table; there is no heap.
#[allow(clippy::large_enum_variant)]
enum OpenTarget<'t, 'f, M: Memory> {
    File(Opened),
    Link(NodeRef<'t, 'f, M>),
}
