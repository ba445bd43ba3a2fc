//! Operations by path.

use crate::attributes::{SetXattr, list_attributes, read_attribute};
use crate::classes::class_of;
use crate::error::{Error, Result};
use crate::file::offset;
use crate::metadata::system_time;
use crate::session::{OpenNumber, Shared};
use crate::{Credentials, File, FileTimes, Metadata, OpenOptions, Permissions, ReadDir, Space};
use engine::statistics::CallClass;
use posix::path::{LINKS_FOLLOWED_MAX, LastLink, Outcome, Parent, PathBuffer, WalkStart};
use posix::{Caller, Errno, TimeToSet, Want};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// Bytes that a copy reads at a time.
const COPY_STEP_BYTES: usize = 1 << 20;
/// Bytes that one step of a copy handles, so that no call takes long.
const COPY_CALL_BYTES: u64 = 64 << 20;

/// The files of an image.
///
/// The functions correspond to those of [`std::fs`], and have the errors of Linux. Paths begin at
/// the root of the image, with or without a leading slash. There is no working directory. `..`
/// stays below the root, and so do symbolic links with an absolute target, which is resolved from
/// the root of the image. A name has at most 255 bytes, a path at most 4,095.
///
/// Every function may fail with ENODEV (the image is closed), EIO (it was truncated while in use),
/// EUCLEAN (it is damaged), EAGAIN (more than 65,000 threads use it), EOWNERDEAD (a fork made this
/// process), and EINVAL (a path contains a zero byte).
///
/// A clone is another handle of the same file system. Threads may use one handle at the same time.
///
/// # Durability
/// When a function that changes something returns, its effect is durable as [`Durability`] says. It
/// is atomic. Exceptions are the functions that consist of several calls: [`write`](Self::write),
/// [`copy`](Self::copy), [`create_dir_all`](Self::create_dir_all),
/// [`remove_dir_all`](Self::remove_dir_all). To replace a file atomically, write a new one and
/// [`rename`](Self::rename) it.
///
/// [`Durability`]: crate::Durability
#[derive(Clone)]
pub struct FileSystem {
    pub(crate) shared: Arc<Shared>,
    credentials: Credentials,
    /// The root of paths, if it is not that of the image.
    root: Option<Arc<OpenNumber>>,
}

type Call<'t> = Caller<'t, 'static>;

/// EINVAL for a path that no file can have.
fn path_bytes(path: &Path) -> posix::Result<&[u8]> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.contains(&0) { Err(Errno::EINVAL) } else { Ok(bytes) }
}

/// Calls `call` with a path. A symbolic link with an absolute target leads back to the root.
fn within<T>(
    path: &[u8],
    buffer: &mut PathBuffer,
    mut call: impl FnMut(&[u8], &mut PathBuffer) -> posix::Result<Outcome<T>>,
) -> posix::Result<T> {
    let mut outcome = call(path, buffer)?;
    for _ in 0..LINKS_FOLLOWED_MAX {
        match outcome {
            Outcome::Inside(result) => return Ok(result),
            Outcome::Left(_) => {
                let rest = buffer.rest().to_vec();
                outcome = call(&rest, buffer)?;
            }
        }
    }
    Err(Errno::ELOOP)
}

impl FileSystem {
    pub(crate) fn new(shared: Arc<Shared>, credentials: Credentials) -> FileSystem {
        FileSystem { shared, credentials, root: None }
    }

    /// The image's files, used as another user. Open files keep the credentials with which they
    /// were opened.
    pub fn with_credentials(&self, credentials: Credentials) -> FileSystem {
        FileSystem { credentials, ..self.clone() }
    }

    /// The credentials of calls.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The files below a directory: its paths begin there, and cannot leave it by `..` or by
    /// symbolic links. It stays the same directory if that is renamed. Once it is removed, paths
    /// below it are ENOENT.
    ///
    /// # Errors
    /// ENOENT; ENOTDIR; EACCES: a directory on the way does not grant search permission.
    pub fn root_at(&self, path: impl AsRef<Path>) -> Result<FileSystem> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let root = self.open_number("open the directory", path.as_ref(), flags, 0)?;
        Ok(FileSystem { root: Some(Arc::new(root)), ..self.clone() })
    }

    /// Calls `call` inside the image, with the start of paths.
    fn call<T>(
        &self,
        class: CallClass,
        mut call: impl FnMut(&Call<'_>, &WalkStart, &mut PathBuffer) -> posix::Result<T>,
    ) -> posix::Result<T> {
        self.shared.call(class, |inside| {
            let file = self.root.as_ref().map(|root| inside.file(root.number())).transpose()?;
            let root = file.as_ref().map_or(inside.root, |file| file.node());
            let walk_start = WalkStart { root, start: root, can_leave: false };
            let caller = inside.caller(self.credentials.as_posix());
            call(&caller, &walk_start, inside.buffer)
        })
    }

    /// Calls `call` with the bytes of a path, again for symbolic links with absolute targets.
    fn at<T>(
        &self,
        operation: &'static str,
        path: &Path,
        mut call: impl FnMut(&Call<'_>, &WalkStart, &[u8], &mut PathBuffer) -> posix::Result<Outcome<T>>,
    ) -> Result<T> {
        let result = path_bytes(path).and_then(|bytes| {
            self.call(class_of(operation), |caller, start, buffer| {
                within(bytes, buffer, |path, buffer| call(caller, start, path, buffer))
            })
        });
        result.map_err(|errno| Error::call(operation, path, errno))
    }

    pub(crate) fn open_number(
        &self,
        operation: &'static str,
        path: &Path,
        flags: i32,
        mode: u32,
    ) -> Result<OpenNumber> {
        let opened = path_bytes(path).and_then(|bytes| {
            self.shared.open(|inside, number| {
                let root = self.root.as_ref().map(|root| inside.file(root.number())).transpose()?;
                let root = root.as_ref().map_or(inside.root, |file| file.node());
                let start = WalkStart { root, start: root, can_leave: false };
                let caller = inside.caller(self.credentials.as_posix());
                let mode = (mode, self.credentials.mask());
                let open = |path: &[u8], buffer: &mut _| caller.opens().open_path(&start, path, flags, mode, buffer);
                let opened = within(bytes, inside.buffer, open)?;
                if inside.process.install(inside.thread, number, &opened.file, true)? || opened.file.truncates_late() {
                    let completed = caller.opens().complete(&opened.file);
                    if completed.is_err() {
                        inside.process.remove(inside.thread, number);
                    }
                    return completed;
                }
                Ok(())
            })
        });
        opened.map_err(|errno| Error::call(operation, path, errno))
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// ENOENT, EACCES, ELOOP, ENOTDIR; EMFILE: more than 1,048,576 files are open; ENFILE: as many
    /// are in all processes of the image.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().read(true))
    }

    /// Opens a file for writing. It is created if it does not exist, and emptied if it does.
    ///
    /// # Errors
    /// Like [`open`](Self::open); EISDIR, ENOSPC, EROFS; ETXTBSY: a program under `directfs run`
    /// runs it.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().write(true).create(true).truncate(true))
    }

    /// Creates a file and opens it for reading and writing; EEXIST if the name is taken.
    pub fn create_new(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().read(true).write(true).create_new(true))
    }

    /// Opens a file as `options` say. See [`OpenOptions`] for the errors.
    pub fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        let path = path.as_ref();
        let flags = options.flags().map_err(|errno| Error::call("open", path, errno))?;
        let number = self.open_number("open", path, flags, options.mode_bits())?;
        Ok(File::new(number, path, self.credentials.clone()))
    }

    /// Opens a file as open(2) does, with its flags and the permission bits of a created file. The
    /// C library uses it; [`open_with`](Self::open_with) is the usual way.
    ///
    /// # Errors
    /// Does what [`open_with`](Self::open_with) does, and those of open(2) for O_NOFOLLOW (ELOOP),
    /// O_DIRECTORY (ENOTDIR) and O_TMPFILE.
    pub fn open_flags(&self, path: impl AsRef<Path>, flags: i32, mode: u32) -> Result<File> {
        let path = path.as_ref();
        let number = self.open_number("open", path, flags, mode & 0o7777)?;
        Ok(File::new(number, path, self.credentials.clone()))
    }

    /// Reads a whole file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let file = self.open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads a whole file of UTF-8; EILSEQ if it is something else.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        let invalid = |_| Error::call("read as UTF-8", path, Errno(libc::EILSEQ));
        String::from_utf8(self.read(path)?).map_err(invalid)
    }

    /// Creates or empties a file, and writes its whole content. A crash may leave the file empty,
    /// but no part of the content.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        let file = self.create(path)?;
        file.write_all_at(content.as_ref(), 0)
    }

    /// Copies content and permission bits of a regular file; returns the number of bytes. `to` is
    /// created if it does not exist, and replaced in content if it does. Blocks are shared until
    /// one side changes them, so the copy of a long file takes little time and space. A crash may
    /// leave an incomplete copy.
    ///
    /// # Errors
    /// Like [`open`](Self::open) and [`create`](Self::create). EINVAL: `from` is no regular file,
    /// or both are the same file.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let invalid = || Error::call_of_two("copy", from, to, Errno::EINVAL);
        let source = self.open(from)?;
        let metadata = source.metadata()?;
        if !metadata.is_file() {
            return Err(invalid());
        }
        let mode = metadata.mode() & 0o777;
        let target = self.open_with(to, OpenOptions::new().write(true).create(true).mode(mode))?;
        let target_metadata = target.metadata()?;
        if target_metadata.ino() == metadata.ino() {
            return Err(invalid());
        }
        if target_metadata.mode() & 0o777 != mode {
            target.set_permissions(mode)?;
        }
        target.set_len(0)?;
        let mut buffer = Vec::new();
        let mut done = 0;
        loop {
            buffer.resize(COPY_STEP_BYTES.min(metadata.len() as usize).max(4096), 0);
            let copied = self.shared.call(CallClass::Copy, |inside| {
                let (source, target) = (inside.file(source.number())?, inside.file(target.number())?);
                let caller = inside.caller(self.credentials.as_posix());
                caller.data().copy_range((&source, done), (&target, done), COPY_CALL_BYTES, &mut buffer)
            });
            match copied.map_err(|errno| Error::call_of_two("copy", from, to, errno))? {
                0 => return Ok(done),
                count => done += count,
            }
        }
    }

    /// Attributes of a file. Symbolic links are followed.
    ///
    /// # Errors
    /// ENOENT, EACCES, ELOOP, ENOTDIR.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.attributes(path.as_ref(), LastLink::Follow)
    }

    /// Attributes of a file, or of a symbolic link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.attributes(path.as_ref(), LastLink::Stay)
    }

    fn attributes(&self, path: &Path, last_link: LastLink) -> Result<Metadata> {
        let stat = |caller: &Call<'_>, start: &WalkStart, path: &[u8], buffer: &mut _| {
            caller.stat_path(start, path, last_link, buffer)
        };
        self.at("read the attributes of", path, stat).map(Metadata::new)
    }

    /// The time at which a file was created. Symbolic links are followed. It is no part of
    /// [`Metadata`], because it lies in another line of memory, which few programs need.
    ///
    /// # Errors
    /// As [`metadata`](Self::metadata).
    pub fn created(&self, path: impl AsRef<Path>) -> Result<SystemTime> {
        let born = |caller: &Call<'_>, node| Ok(caller.thread.born_ns(node)?);
        self.on_file("read the attributes of", path.as_ref(), born).map(system_time)
    }

    /// Whether a path leads to a file, as [`exists`](Self::exists): the name in
    /// [`Path::try_exists`].
    pub fn try_exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        self.exists(path)
    }

    /// Whether a path leads to a file. Errors other than ENOENT are returned, as by
    /// [`std::fs::exists`].
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.is(Errno::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the caller may read (4), write (2) and execute (1) a file: the sum of the wanted
    /// rights, or 0 for existence alone. EACCES if one is missing.
    pub fn access(&self, path: impl AsRef<Path>, rights: u32) -> Result<()> {
        self.at("use", path.as_ref(), |caller, start, path, buffer| {
            caller.access_path(start, path, LastLink::Follow, Want(rights), buffer)
        })
    }

    /// Creates an empty directory, with permission bits 0o777 less the umask.
    ///
    /// # Errors
    /// EEXIST; ENOENT: its parent does not exist; EACCES, ENOSPC, EROFS; EMLINK: the parent has
    /// 16,000,000 subdirectories.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create_dir_with_mode(path, 0o777)
    }

    /// Creates an empty directory with permission bits, which the umask reduces.
    pub fn create_dir_with_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let umask = self.credentials.mask();
        self.at("create the directory", path.as_ref(), |caller, start, path, buffer| {
            caller.mkdir_path(start, path, mode & 0o1777, umask, buffer)
        })
    }

    /// Creates a directory and all its missing parents. An existing directory is no error.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create_all_with_mode(path.as_ref(), 0o777)
    }

    pub(crate) fn create_all_with_mode(&self, path: &Path, mode: u32) -> Result<()> {
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        let mut missing: Vec<&Path> = Vec::new();
        let mut next = Some(path);
        // Upwards to the first directory that exists or can be created, and down again.
        while let Some(directory) = next.filter(|directory| !directory.as_os_str().is_empty()) {
            match self.create_dir_with_mode(directory, mode) {
                Ok(()) => break,
                Err(error) if error.is(Errno::ENOENT) && directory.parent().is_some() => missing.push(directory),
                Err(error) if error.is(Errno::EEXIST) => {
                    if self.metadata(directory).is_ok_and(|found| found.is_dir()) {
                        break;
                    }
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
            next = directory.parent();
        }
        for directory in missing.into_iter().rev() {
            match self.create_dir_with_mode(directory, mode) {
                // Another thread created it meanwhile.
                Err(error) if error.is(Errno::EEXIST) && self.metadata(directory).is_ok_and(|found| found.is_dir()) => {
                }
                created => created?,
            }
        }
        Ok(())
    }

    /// Lists a directory, without `.` and `..`. See [`ReadDir`].
    ///
    /// # Errors
    /// ENOENT, ENOTDIR; EACCES: no read permission.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        Ok(ReadDir::new(self.clone(), self.open_number("list", path, flags, 0)?, path))
    }

    /// Removes a name of a file that is no directory. A symbolic link is not followed. The file's
    /// space is freed with its last name and its last open handle.
    ///
    /// # Errors
    /// ENOENT; EISDIR; EACCES: no write permission on the directory; EPERM: the directory is
    /// sticky, and neither it nor the file belongs to the caller; EROFS.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.at("remove the file", path.as_ref(), |caller, start, path, buffer| caller.unlink_path(start, path, buffer))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Like [`remove_file`](Self::remove_file); ENOTEMPTY, ENOTDIR; EBUSY: it is the root.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.at("remove the directory", path.as_ref(), |caller, start, path, buffer| {
            caller.rmdir_path(start, path, buffer)
        })
    }

    /// Removes a directory and everything in it, or a symbolic link to one (not what it leads to).
    /// It never leaves the tree, even if another process replaces a directory by a link meanwhile.
    /// On failure or after a crash a part may be removed.
    ///
    /// # Errors
    /// [`remove_file`](Self::remove_file) of any file in the tree. ENOTEMPTY: another thread
    /// created a file meanwhile. EBUSY: it is the root; nothing is removed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let metadata = self.symlink_metadata(path)?;
        if metadata.is_symlink() {
            return self.remove_file(path);
        }
        // First: rmdir would refuse it after its content is gone.
        if metadata.ino() == self.symlink_metadata("/")?.ino() {
            return Err(Error::call("remove the directory", path, Errno::EBUSY));
        }
        // Each level: the directory's listing, and its name in the level above.
        let mut levels: Vec<(ReadDir, OsString)> = vec![(self.list_in_place(path)?, path.into())];
        while let Some((list, _)) = levels.last_mut() {
            if let Some(entry) = list.next() {
                let entry = entry?;
                let name = entry.file_name();
                let here = list.root_here();
                if entry.file_type().is_dir() {
                    levels.push((here.list_in_place(name.as_ref())?, name.to_owned()));
                } else {
                    here.remove_file(name)?;
                }
            } else if let Some((_, name)) = levels.pop() {
                match levels.last() {
                    Some((above, _)) => above.root_here().remove_dir(&name)?,
                    None => self.remove_dir(&name)?,
                }
            }
        }
        Ok(())
    }

    /// Lists a directory that is no symbolic link.
    fn list_in_place(&self, path: &Path) -> Result<ReadDir> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        Ok(ReadDir::new(self.clone(), self.open_number("list", path, flags, 0)?, path))
    }

    /// The file system below an open directory.
    pub(crate) fn below(&self, root: Arc<OpenNumber>) -> FileSystem {
        FileSystem { root: Some(root), ..self.clone() }
    }

    /// Renames a file or directory. An existing `to` is replaced atomically: every look at it
    /// finds the old file or the new one.
    ///
    /// # Errors
    /// ENOENT, EACCES, EPERM, EROFS, ENOSPC; ENOTEMPTY: `to` is a directory with entries; EISDIR,
    /// ENOTDIR: one is a directory and the other is not; EINVAL: `to` lies below `from`; EBUSY: one
    /// is the root.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from.as_ref(), to.as_ref(), 0)
    }

    /// [`rename`](Self::rename), but EEXIST if `to` exists.
    pub fn rename_new(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from.as_ref(), to.as_ref(), libc::RENAME_NOREPLACE)
    }

    /// Exchanges two files of any kind, atomically; ENOENT if one does not exist.
    pub fn exchange(&self, one: impl AsRef<Path>, other: impl AsRef<Path>) -> Result<()> {
        self.rename_with(one.as_ref(), other.as_ref(), libc::RENAME_EXCHANGE)
    }

    fn rename_with(&self, from: &Path, to: &Path, flags: u32) -> Result<()> {
        let renamed = path_bytes(from).and_then(|old| Ok((old, path_bytes(to)?))).and_then(|(old, new)| {
            self.call(CallClass::Rename, |caller, start, buffer| {
                if let Some(renamed) = caller.rename_fast((start, old), (start, new), flags) {
                    return renamed;
                }
                let resolve = |path: &[u8], buffer: &mut _| caller.paths().resolve_parent(start, path, buffer);
                let old: Parent<'_, '_> = within(old, buffer, resolve)?;
                let new = within(new, buffer, resolve)?;
                caller.rename_resolved(&old, &new, flags)
            })
        });
        renamed.map_err(|errno| Error::call_of_two("rename", from, to, errno))
    }

    /// Gives a file another name. A symbolic link at `original` is not followed.
    ///
    /// # Errors
    /// EEXIST, ENOENT, EACCES, ENOSPC, EROFS; EPERM: `original` is a directory; EMLINK: it has
    /// 65,000 names.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (original, link) = (original.as_ref(), link.as_ref());
        let linked = path_bytes(original).and_then(|old| Ok((old, path_bytes(link)?))).and_then(|(old, new)| {
            self.call(CallClass::Link, |caller, start, buffer| {
                let find = |path: &[u8], buffer: &mut _| caller.paths().resolve(start, path, LastLink::Stay, buffer);
                let file = within(old, buffer, find)?;
                within(new, buffer, |path, buffer| caller.link_path(file.node(), false, start, path, buffer))
            })
        });
        linked.map_err(|errno| Error::call_of_two("link", original, link, errno))
    }

    /// Creates a symbolic link whose content is `target`, which need not exist. A relative target
    /// is resolved from the link's directory, an absolute one from the root of the image. (Programs
    /// under `directfs run` and mounts resolve absolute targets from their own root.)
    ///
    /// # Errors
    /// EEXIST, ENOENT, EACCES, ENOSPC, EROFS; ENAMETOOLONG: the target has more than 4,095 bytes.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (target, link) = (target.as_ref(), link.as_ref());
        let content = path_bytes(target).map_err(|errno| Error::call_of_two("link", target, link, errno))?;
        self.at("create the symbolic link", link, |caller, start, path, buffer| {
            caller.symlink_path(content, start, path, buffer)
        })
    }

    /// The target of a symbolic link; EINVAL if the file is something else.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let mut target = vec![0; posix::path::PATH_BYTES_MAX];
        let length = self.at("read the link", path.as_ref(), |caller, start, path, buffer| {
            caller.at_path(start, path, LastLink::Stay, buffer, |node| caller.readlink(node, &mut target))
        })?;
        target.truncate(length);
        Ok(OsString::from_vec(target).into())
    }

    /// Sets the length of a file in bytes, as [`File::set_len`] does.
    ///
    /// # Errors
    /// ENOENT, EACCES, EISDIR, EROFS, ENOSPC, EFBIG; ETXTBSY: a program under `directfs run` runs
    /// it.
    pub fn set_len(&self, path: impl AsRef<Path>, bytes: u64) -> Result<()> {
        let truncate = |caller: &Call<'_>, node| {
            if caller.data().truncate_unless_leased(node, offset(bytes)?)? {
                return Ok(());
            }
            tables::process::break_leases(caller.thread.fs(), node, libc::O_WRONLY)?;
            caller.data().truncate(node, offset(bytes)?)
        };
        self.on_file("set the length of", path.as_ref(), truncate)
    }

    /// Calls `call` on the file of a path. Symbolic links are followed.
    pub(crate) fn on_file<T>(
        &self,
        operation: &'static str,
        path: &Path,
        call: impl FnMut(&Call<'_>, engine::Node) -> posix::Result<T>,
    ) -> Result<T> {
        self.on_last(operation, path, LastLink::Follow, call)
    }

    fn on_last<T>(
        &self,
        operation: &'static str,
        path: &Path,
        last_link: LastLink,
        mut call: impl FnMut(&Call<'_>, engine::Node) -> posix::Result<T>,
    ) -> Result<T> {
        self.at(operation, path, |caller, start, path, buffer| {
            caller.at_path(start, path, last_link, buffer, |node| call(caller, node))
        })
    }

    /// Sets the permission bits, including set-id and sticky bits (0o7777). The umask has no
    /// effect.
    ///
    /// # Errors
    /// ENOENT, EACCES (on the way), EROFS; EPERM: the caller does not own the file.
    pub fn set_permissions(&self, path: impl AsRef<Path>, permissions: impl Into<Permissions>) -> Result<()> {
        let mode = permissions.into().mode();
        let chmod = |caller: &Call<'_>, node| caller.chmod(node, mode).map(drop);
        self.on_file("set the permissions of", path.as_ref(), chmod)
    }

    /// Sets owner and group; `None` leaves one unchanged. Set-id bits of files are cleared.
    ///
    /// # Errors
    /// ENOENT, EACCES (on the way), EROFS; EPERM: only root may change the owner, and an owner only
    /// to groups of its own.
    pub fn set_owner(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let chown = |caller: &Call<'_>, node| caller.chown(node, uid, gid).map(drop);
        self.on_file("set the owner of", path.as_ref(), chown)
    }

    /// [`set_owner`](Self::set_owner) of a symbolic link itself.
    pub fn set_symlink_owner(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let chown = |caller: &Call<'_>, node| caller.chown(node, uid, gid).map(drop);
        self.on_last("set the owner of", path.as_ref(), LastLink::Stay, chown)
    }

    /// Sets the times of last access and modification, to 1 ns.
    ///
    /// # Errors
    /// ENOENT, EACCES (on the way), EROFS; EPERM: the caller does not own the file; EINVAL: a time
    /// before 1678 or after 2262.
    pub fn set_times(&self, path: impl AsRef<Path>, times: FileTimes) -> Result<()> {
        self.set_times_of(path.as_ref(), LastLink::Follow, times)
    }

    fn set_times_of(&self, path: &Path, last_link: LastLink, times: FileTimes) -> Result<()> {
        self.on_last("set the times of", path, last_link, |caller, node| {
            let (accessed, modified) = times.to_set()?;
            caller.set_times(node, accessed, modified).map(drop)
        })
    }

    /// Sets both times to the present. Permission to write suffices for that.
    pub fn touch(&self, path: impl AsRef<Path>) -> Result<()> {
        let set = |caller: &Call<'_>, node| caller.set_times(node, TimeToSet::Now, TimeToSet::Now).map(drop);
        self.on_file("set the times of", path.as_ref(), set)
    }

    /// [`set_times`](Self::set_times) of a symbolic link itself.
    pub fn set_symlink_times(&self, path: impl AsRef<Path>, times: FileTimes) -> Result<()> {
        self.set_times_of(path.as_ref(), LastLink::Stay, times)
    }

    /// The value of an extended attribute; `None` if the file does not have it. Symbolic links are
    /// followed. Names begin with `user.`, `trusted.` (root only), `security.`, or are those of
    /// access lists (`system.posix_acl_access`).
    ///
    /// # Errors
    /// ENOENT, EACCES; EOPNOTSUPP: another beginning of the name; ERANGE: a name of no or more than
    /// 255 bytes.
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Option<Vec<u8>>> {
        let name = name.as_ref().as_bytes();
        self.on_file("read an attribute of", path.as_ref(), |caller, node| read_attribute(caller, node, name))
    }

    /// Sets an extended attribute, or replaces its value. See [`xattr`](Self::xattr) for names.
    ///
    /// # Errors
    /// Like [`xattr`](Self::xattr); E2BIG: the value has more than 65,536 bytes; EPERM: the caller
    /// may not set attributes of this kind, or the file is neither regular nor a directory; ENOSPC,
    /// EROFS.
    pub fn set_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>, value: impl AsRef<[u8]>) -> Result<()> {
        self.set_xattr_with(path, name, value, SetXattr::Any)
    }

    /// [`set_xattr`](Self::set_xattr), but only a new attribute (else EEXIST), or only an existing
    /// one (else ENODATA).
    pub fn set_xattr_with(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
        which: SetXattr,
    ) -> Result<()> {
        let (name, value) = (name.as_ref().as_bytes(), value.as_ref());
        let set = |caller: &Call<'_>, node| caller.xattrs().set_attribute(node, name, value, which.flags());
        self.on_file("set an attribute of", path.as_ref(), set)
    }

    /// Removes an extended attribute; ENODATA if the file does not have it.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        let name = name.as_ref().as_bytes();
        let remove = |caller: &Call<'_>, node| caller.xattrs().remove_attribute(node, name);
        self.on_file("remove an attribute of", path.as_ref(), remove)
    }

    /// The names of a file's extended attributes, in no particular order.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        self.on_file("list the attributes of", path.as_ref(), list_attributes)
    }

    /// Total and free space.
    pub fn space(&self) -> Result<Space> {
        let space = self.call(CallClass::Other, |caller, _, _| caller.statfs());
        space.map(Space::from).map_err(|errno| Error::call("read the space of", "the image", errno))
    }
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileSystem").field("credentials", &self.credentials).finish_non_exhaustive()
    }
}
