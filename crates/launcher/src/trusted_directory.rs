//! Directories on whose path only root and the effective user can change anything.
//!
//! Every program of a run maps the preload library executable, and patches code by the tables. A
//! user that can rename or replace one component of their path runs code as the user of the run.
//! This happens to root with the HOME of another user (`sudo -E`, `su -m`).
//!
//! The rule, for each component of the path, with symbolic links resolved:
//!
//! - A trusted user owns it: root or the effective user. This holds for symbolic links, too.
//! - Its group and others cannot write it, unless it is sticky. In a sticky directory other users
//!   create names, but can neither rename nor remove the names of trusted users. With a POSIX ACL
//!   the group bits of `st_mode` are the mask, so they cover every entry that allows writing.
//! - No file system is mounted directly below a sticky directory that others can write. A user can
//!   mount FUSE over an own directory there, and the server of that mount reports any owner.
//! - The last component belongs to the effective user, and others cannot write it.
//!
//! Invariants:
//!
//! - The walk opens one component after the other without following links, and checks descriptors.
//!   No check applies to a name that can refer to another file later.
//! - Files are opened, written and renamed relative to the descriptor of the directory.
//! - Missing directories are created only below components that have passed. A refused path has
//!   nothing new below its untrusted component.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The group or others can write.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = libc::S_ISVTX;
/// Maximum number of symbolic links in a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// A directory on whose path only root and the effective user can change anything.
#[derive(Debug)]
pub struct TrustedDirectory {
    fd: OwnedFd,
    path: PathBuf,
}

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Another user owns a component.
    #[error("{path} belongs to user {owner}, which can replace its content", path = .path.display())]
    Owner {
        /// The component.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Other users can write a component.
    #[error("its group or others can write {path} (mode {mode:o}); remedy: chmod go-w {path}, or +t if it is for all users", path = .path.display())]
    Writable {
        /// The component.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A mount point that any user may have created.
    #[error("{path} is a mount point in a directory that every user can write", path = .0.display())]
    Mount(PathBuf),
    /// A component cannot be opened or created, or the directory cannot be used.
    #[error("{path}: {1}", path = .0.display())]
    Failed(PathBuf, #[source] io::Error),
}

impl TrustedDirectory {
    /// Opens a directory by its absolute path, and creates missing components with mode 0700.
    /// `trusted`: the users that may own components.
    pub fn open(path: &Path, trusted: &[u32]) -> Result<TrustedDirectory, Refusal> {
        let failed = |error: Errno| Refusal::Failed(path.to_path_buf(), error.into());
        if !path.is_absolute() {
            return Err(failed(Errno::INVAL));
        }
        let mut walk = Walk { trusted, steps: Vec::new() };
        let mut rest = reversed(path);
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if let Some(target) = walk.enter(name)? {
                links += 1;
                if links > LINKS_MAX {
                    return Err(failed(Errno::LOOP));
                }
                rest.extend(reversed(&target));
            }
        }
        walk.end()
    }

    /// The path, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets every user list the directory and open its files.
    pub fn allow_reading(&self) -> io::Result<()> {
        const READ_BY_ALL: u32 = 0o555;
        let mode = rustix::fs::fstat(&self.fd)?.st_mode;
        if mode & READ_BY_ALL != READ_BY_ALL {
            // By a name, because a descriptor with O_PATH cannot be changed.
            rustix::fs::chmodat(&self.fd, ".", Mode::from_raw_mode(mode | READ_BY_ALL), AtFlags::empty())?;
        }
        Ok(())
    }

    /// Opens a file for reading. It must belong to the effective user, and others cannot write it.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.fd, name, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        let is_own = metadata.uid() == effective_user() && metadata.mode() & OTHERS_WRITE == 0;
        if metadata.is_file() && is_own { Ok(file) } else { Err(Errno::PERM.into()) }
    }

    /// Ensures that a directory exists, which all users can read; returns whether it is new.
    pub fn create_directory(&self, name: &str) -> io::Result<bool> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        // The umask restricts mkdir.
        rustix::fs::chmodat(&self.fd, name, Mode::from_raw_mode(0o755), AtFlags::empty())?;
        Ok(true)
    }

    /// Removes directories of files, as far as possible.
    pub fn remove_directories(&self, is_meant: impl Fn(&str) -> bool) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(&is_meant) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Writes an executable file that appears whole, and replaces one with this name.
    pub fn write_file(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let scratch = format!("{name}.new-{}", std::process::id());
        let remove = || rustix::fs::unlinkat(&self.fd, &scratch, AtFlags::empty());
        let written = (|| {
            // An earlier launcher with this process id can have left one.
            let _ = remove();
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let mut file = File::from(rustix::fs::openat(&self.fd, &scratch, flags, Mode::RWXU)?);
            file.set_permissions(Permissions::from_mode(0o755))?;
            file.write_all(content)?;
            Ok(rustix::fs::renameat(&self.fd, &scratch, &self.fd, name)?)
        })();
        if written.is_err() {
            let _ = remove();
        }
        written
    }
}

/// The user whose rights this process has.
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The components of a path, the last one first.
fn reversed(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|component| component.as_os_str().to_os_string()).collect()
}

/// A walk from the root directory, and the directories that it has passed.
struct Walk<'a> {
    trusted: &'a [u32],
    steps: Vec<Step>,
}

struct Step {
    name: OsString,
    fd: OwnedFd,
    status: Stat,
}

impl Walk<'_> {
    fn path(&self) -> PathBuf {
        self.steps.iter().map(|step| &step.name).collect()
    }

    /// Enters a directory. Returns the target instead if the component is a symbolic link.
    fn enter(&mut self, name: OsString) -> Result<Option<PathBuf>, Refusal> {
        match name.as_bytes() {
            b"." => return Ok(None),
            b".." => {
                if self.steps.len() > 1 {
                    self.steps.pop();
                }
                return Ok(None);
            }
            b"/" => self.steps.clear(),
            _ => {}
        }
        let path = self.path().join(&name);
        let failed = |error: Errno| Refusal::Failed(path.clone(), error.into());
        let fd = self.open_or_create(&name).map_err(failed)?;
        let status = rustix::fs::fstat(&fd).map_err(failed)?;
        if !self.trusted.contains(&status.st_uid) {
            return Err(Refusal::Owner { path, owner: status.st_uid });
        }
        match FileType::from_raw_mode(status.st_mode) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&fd, "", Vec::new()).map_err(failed)?;
                Ok(Some(PathBuf::from(OsString::from_vec(target.into_bytes()))))
            }
            FileType::Directory => {
                if can_others_write(&status) && status.st_mode & STICKY == 0 {
                    return Err(writable(path, &status));
                }
                let parent = self.steps.last().map(|parent| parent.status);
                if parent.is_some_and(|parent| can_others_write(&parent) && parent.st_dev != status.st_dev) {
                    return Err(Refusal::Mount(path));
                }
                self.steps.push(Step { name, fd, status });
                Ok(None)
            }
            _ => Err(failed(Errno::NOTDIR)),
        }
    }

    fn open_or_create(&self, name: &OsString) -> Result<OwnedFd, Errno> {
        let parent = self.steps.last().map_or(CWD, |parent| parent.fd.as_fd());
        let open = |also: OFlags| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC | also;
            rustix::fs::openat(parent, name, flags, Mode::empty())
        };
        // With this flag the kernel mounts on demand, and refuses links.
        match open(OFlags::DIRECTORY) {
            Err(Errno::NOTDIR | Errno::LOOP) => open(OFlags::empty()),
            Err(Errno::NOENT) => match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => open(OFlags::DIRECTORY),
                Err(error) => Err(error),
            },
            opened => opened,
        }
    }

    /// The directory at the end of the walk.
    fn end(mut self) -> Result<TrustedDirectory, Refusal> {
        let path = self.path();
        let Some(Step { fd, status, .. }) = self.steps.pop() else {
            return Err(Refusal::Failed(path, Errno::INVAL.into()));
        };
        if status.st_uid != effective_user() {
            return Err(Refusal::Owner { path, owner: status.st_uid });
        }
        if can_others_write(&status) {
            return Err(writable(path, &status));
        }
        Ok(TrustedDirectory { fd, path })
    }
}

fn can_others_write(status: &Stat) -> bool {
    status.st_mode & OTHERS_WRITE != 0
}

fn writable(path: PathBuf, status: &Stat) -> Refusal {
    Refusal::Writable { path, mode: status.st_mode & 0o7777 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, lchown, symlink};

    /// Another user.
    const OTHER: u32 = 65534;

    fn open(path: &Path) -> Result<TrustedDirectory, Refusal> {
        TrustedDirectory::open(path, &[0, effective_user()])
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// A scratch directory with the directories `a/b/c`, by its path without symbolic links.
    fn scratch() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(directory.path()).unwrap();
        fs::create_dir_all(path.join("a/b/c")).unwrap();
        (directory, path)
    }

    /// `scratch` for tests that give files to another user.
    fn scratch_of_root() -> Option<(tempfile::TempDir, PathBuf)> {
        if effective_user() != 0 {
            eprintln!("\n*** SKIPPED: only root can give files to another user ***\n");
            return None;
        }
        Some(scratch())
    }

    #[test]
    fn a_missing_directory_is_created_for_its_user_alone() {
        let (_directory, top) = scratch();
        let opened = open(&top.join("a/./x/../x/y")).unwrap();
        assert_eq!(opened.path(), top.join("a/x/y"));
        assert_eq!(fs::metadata(opened.path()).unwrap().mode() & 0o7777, 0o700);
        opened.allow_reading().unwrap();
        assert_eq!(fs::metadata(opened.path()).unwrap().mode() & 0o7777, 0o755);
    }

    #[test]
    fn links_are_resolved_as_the_kernel_does() {
        let (_directory, top) = scratch();
        symlink("a/b", top.join("relative")).unwrap();
        symlink(top.join("relative/../b/c"), top.join("absolute")).unwrap();
        assert_eq!(open(&top.join("absolute")).unwrap().path(), top.join("a/b/c"));
        symlink("loop", top.join("loop")).unwrap();
        let refusal = open(&top.join("loop")).unwrap_err();
        assert!(
            matches!(&refusal, Refusal::Failed(_, error) if error.raw_os_error() == Some(libc::ELOOP)),
            "{refusal}"
        );
    }

    #[test]
    fn a_component_that_others_can_write_is_refused_unless_it_is_sticky() {
        let (_directory, top) = scratch();
        let place = top.join("a/b/c");
        for (mode, is_used) in [(0o755, true), (0o775, false), (0o757, false), (0o1777, true)] {
            set_mode(&top.join("a"), mode);
            match open(&place) {
                Ok(_) => assert!(is_used, "{mode:o}"),
                Err(Refusal::Writable { path, .. }) => assert!(!is_used && path == top.join("a"), "{mode:o}"),
                Err(refusal) => panic!("{mode:o}: {refusal}"),
            }
        }
        // Others could create files there.
        set_mode(&place, 0o1777);
        assert!(matches!(open(&place).unwrap_err(), Refusal::Writable { path, .. } if path == place));
    }

    #[test]
    fn a_component_of_another_user_is_refused_and_nothing_is_created_below_it() {
        let Some((_directory, top)) = scratch_of_root() else { return };
        for component in ["a", "a/b", "a/b/c"] {
            chown(top.join(component), Some(OTHER), None).unwrap();
            let refusal = open(&top.join("a/b/c/new")).unwrap_err();
            assert!(
                matches!(&refusal, Refusal::Owner { path, owner: OTHER } if *path == top.join(component)),
                "{component}: {refusal}"
            );
            assert!(!top.join("a/b/c/new").exists());
            chown(top.join(component), Some(0), None).unwrap();
        }
        // A sticky directory does not help below the name that its owner can replace.
        set_mode(&top.join("a"), 0o1777);
        chown(top.join("a/b"), Some(OTHER), None).unwrap();
        assert!(matches!(open(&top.join("a/b/c")).unwrap_err(), Refusal::Owner { owner: OTHER, .. }));
    }

    #[test]
    fn a_link_of_another_user_and_one_through_its_directory_are_refused() {
        let Some((_directory, top)) = scratch_of_root() else { return };
        fs::create_dir_all(top.join("other/own")).unwrap();
        let link = top.join("link");
        symlink(top.join("a/b/c"), &link).unwrap();
        open(&link).unwrap();
        lchown(&link, Some(OTHER), None).unwrap();
        assert!(matches!(open(&link).unwrap_err(), Refusal::Owner { path, .. } if path == link));
        // A link of root's into the directory of another user.
        chown(top.join("other"), Some(OTHER), None).unwrap();
        symlink("other/own", top.join("into")).unwrap();
        assert!(
            matches!(open(&top.join("into")).unwrap_err(), Refusal::Owner { path, .. } if path == top.join("other"))
        );
    }

    #[test]
    fn a_mount_in_a_directory_that_others_write_is_refused() {
        let Some((_directory, top)) = scratch_of_root() else { return };
        set_mode(&top.join("a"), 0o1777);
        let (shared, private) = (top.join("a/b"), top.join("a/b/c"));
        let mount = |target: &Path, kind: &std::ffi::CStr, flags| {
            let target = std::ffi::CString::new(target.as_os_str().as_bytes()).unwrap();
            // SAFETY: terminated strings, which the call only reads.
            unsafe { libc::mount(c"none".as_ptr(), target.as_ptr(), kind.as_ptr(), flags, c"mode=755".as_ptr().cast()) }
        };
        let work = || {
            // The mounts end with this thread. SAFETY: a mount namespace of this thread alone.
            let has_namespace = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0;
            if !has_namespace || mount(Path::new("/"), c"none", libc::MS_REC | libc::MS_PRIVATE) != 0 {
                eprintln!("\n*** SKIPPED: this user cannot mount here ***\n");
                return;
            }
            assert_eq!(mount(&private, c"tmpfs", 0), 0);
            open(&private).unwrap();
            assert_eq!(mount(&shared, c"tmpfs", 0), 0);
            assert!(matches!(open(&shared).unwrap_err(), Refusal::Mount(path) if path == shared));
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    }

    #[test]
    fn a_file_of_another_user_or_that_others_write_is_not_opened() {
        let (_directory, top) = scratch();
        let directory = open(&top).unwrap();
        directory.write_file("file", b"first").unwrap();
        directory.write_file("file", b"second").unwrap();
        assert_eq!(io::read_to_string(directory.open_file("file").unwrap()).unwrap(), "second");
        assert_eq!(fs::read_dir(&top).unwrap().count(), 2);
        let file = top.join("file");
        symlink(&file, top.join("link")).unwrap();
        let refused = |name| directory.open_file(name).map(drop).unwrap_err().raw_os_error();
        assert_eq!(refused("link"), Some(libc::ELOOP));
        set_mode(&file, 0o775);
        assert_eq!(refused("file"), Some(libc::EPERM));
        set_mode(&file, 0o755);
        if effective_user() == 0 {
            chown(&file, Some(OTHER), None).unwrap();
            assert_eq!(refused("file"), Some(libc::EPERM));
        }
    }
}
