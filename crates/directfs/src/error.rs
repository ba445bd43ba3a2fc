//! Errors: an errno for programs, and for users a message that names cause, effect and remedy.

use image::ImageError;
use pmem::MapError;
use posix::Errno;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Result of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. A failed call has changed nothing, unless its documentation says otherwise.
///
/// [`Error::errno`] is the Linux errno, [`Error::kind`] its kind in the standard library. The text
/// names the call, the cause and a remedy. `?` converts it into an [`io::Error`] with the same
/// kind. Such an `io::Error` holds this error as its source of truth:
///
/// ```
/// # use directfs::Image;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fs = Image::in_memory(16 << 20)?.file_system();
/// let error = std::io::Error::from(fs.read("missing").unwrap_err());
/// assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
/// let original = error.get_ref().and_then(|inner| inner.downcast_ref::<directfs::Error>());
/// assert_eq!(original.map(directfs::Error::errno), Some(2)); // ENOENT
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<Cause>);

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("cannot {operation} {}: {errno}{}{}", Names(path, second.as_deref()), separator(self.remedy()), self.remedy())]
    Call { operation: &'static str, path: PathBuf, second: Option<PathBuf>, errno: Errno },
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// The paths of a call, for messages.
struct Names<'p>(&'p Path, Option<&'p Path>);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Names(path, None) if path.as_os_str().is_empty() => f.write_str("an empty path"),
            Names(path, None) => write!(f, "{}", path.display()),
            Names(path, Some(second)) => write!(f, "{} to {}", path.display(), second.display()),
        }
    }
}

/// What to do about an errno, in words of no language: programs in Python and C read them, too.
fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOENT => "check the path, which begins at the root of the image",
        Errno::EEXIST => "choose another name, or remove the existing one",
        Errno::ENOTDIR => "use a path that leads through directories only",
        Errno::EISDIR => "use the calls for directories",
        Errno::ENOTEMPTY => "remove its entries first",
        Errno::EACCES => "change the permissions, or use other credentials",
        Errno::EPERM => "only the owner or root may do this: use their credentials",
        Errno::EROFS => "open the image for writing",
        Errno::ENOSPC => "remove files, or create a larger image",
        Errno::ENOMEM => "read less at a time, or open the image with more cached files",
        Errno::EAGAIN => "an image admits 65,000 threads at a time: use fewer",
        Errno::ENFILE | TOO_MANY_FILES => "close files",
        Errno::EBADF => "open the file for this kind of access",
        Errno::EINVAL => "use an argument that the call accepts",
        Errno::ENAMETOOLONG => "a name has at most 255 bytes, a path 4,095",
        Errno::ELOOP => "a path may lead through 40 symbolic links: look for a cycle",
        Errno::EMLINK => "a file has at most 65,000 names: use a copy",
        Errno::EFBIG => "offsets end at 2^63 - 1, and files at 256 TiB",
        Errno::ETXTBSY => "end the programs that run the file",
        Errno::EBUSY => "try again, or use another path: the root cannot be removed or renamed",
        Errno::EUCLEAN => "the image is damaged: check it with `directfs fsck`",
        Errno::EIO => "the image was truncated or is damaged: restore it, or check it with `directfs fsck`",
        Errno::ENODEV => "the image is closed: open it again",
        FORKED => "a fork made this process, and the image belongs to its parent: open it here, too",
        Errno::EOPNOTSUPP => {
            "symbolic links have no permissions, and names of attributes begin with user., trusted. or security."
        }
        Errno::E2BIG | Errno::ERANGE => "an attribute has at most 255 bytes of name and 65,536 of value",
        _ => "",
    }
}

/// What precedes a remedy.
fn separator(remedy: &str) -> &'static str {
    if remedy.is_empty() { "" } else { "; " }
}

impl Cause {
    fn remedy(&self) -> &'static str {
        let Cause::Call { operation, path, second, errno } = self else { return "" };
        let has_zero = |path: &Path| path.as_os_str().as_bytes().contains(&0);
        match *errno {
            Errno::EINVAL if has_zero(path) || second.as_deref().is_some_and(has_zero) => {
                "use a path that contains no zero byte"
            }
            Errno::ENOSPC if *operation == "sync" => "free space on the disk of the image; a later sync tries again",
            Errno::EFBIG if *operation == "sync" => "the image exceeds the limit on file sizes: raise it (ulimit -f)",
            Errno::EINVAL if *operation == "rename" => "a directory cannot move below itself: use another path",
            errno => remedy(errno),
        }
    }
}

/// Too many files are open in this process.
pub(crate) const TOO_MANY_FILES: Errno = Errno(libc::EMFILE);
/// The image was opened before the fork that made this process.
pub(crate) const FORKED: Errno = Errno(libc::EOWNERDEAD);

impl Error {
    pub(crate) fn call(operation: &'static str, path: impl AsRef<Path>, errno: Errno) -> Error {
        Error(Box::new(Cause::Call { operation, path: path.as_ref().to_owned(), second: None, errno }))
    }

    pub(crate) fn call_of_two(operation: &'static str, path: &Path, second: &Path, errno: Errno) -> Error {
        Error(Box::new(Cause::Call { operation, path: path.to_owned(), second: Some(second.to_owned()), errno }))
    }

    /// The Linux errno, for example 2 for ENOENT. Of images that cannot be opened, too: EBUSY for
    /// one in use by others, EUCLEAN for a file that is no usable image.
    pub fn errno(&self) -> i32 {
        match &*self.0 {
            Cause::Call { errno, .. } => errno.0,
            Cause::Image(error) => errno_of_image(error),
        }
    }

    /// The kind, as the standard library derives it from the errno; `InvalidData` for EILSEQ.
    pub fn kind(&self) -> io::ErrorKind {
        if self.errno() == libc::EILSEQ {
            // Content that is no UTF-8, which the standard library reports without an errno.
            return io::ErrorKind::InvalidData;
        }
        io::Error::from_raw_os_error(self.errno()).kind()
    }

    /// The errno, under the name that it has in [`io::Error`]. It is never `None`.
    pub fn raw_os_error(&self) -> Option<i32> {
        Some(self.errno())
    }

    /// The path of the call; `None` for an image that could not be opened or made.
    pub fn path(&self) -> Option<&Path> {
        match &*self.0 {
            Cause::Call { path, .. } => Some(path),
            Cause::Image(_) => None,
        }
    }

    /// The second path of a call that has two, such as a rename.
    pub fn second_path(&self) -> Option<&Path> {
        match &*self.0 {
            Cause::Call { second, .. } => second.as_deref(),
            Cause::Image(_) => None,
        }
    }

    /// What to do about it, as the text ends with; empty if nothing can be said, or if it concerns
    /// an image, whose text has its remedy inside.
    pub fn remedy(&self) -> &'static str {
        self.0.remedy()
    }

    pub(crate) fn is(&self, errno: Errno) -> bool {
        self.errno() == errno.0
    }
}

fn errno_of_image(error: &ImageError) -> i32 {
    let of = |source: &io::Error| source.raw_os_error().unwrap_or(libc::EIO);
    match error {
        ImageError::Map(error) => match error {
            MapError::Missing { .. } => libc::ENOENT,
            MapError::Exists { .. } => libc::EEXIST,
            MapError::Permission { .. } => libc::EACCES,
            MapError::Open { source, .. }
            | MapError::DaxSize { source, .. }
            | MapError::Create { source, .. }
            | MapError::Mmap { source, .. } => of(source),
            MapError::ReadOnly => libc::EROFS,
            _ => libc::EINVAL,
        },
        ImageError::NotUsable { .. } => libc::EUCLEAN,
        ImageError::InUse { .. }
        | ImageError::NotExclusive { .. }
        | ImageError::Changing { .. }
        | ImageError::Written { .. } => libc::EBUSY,
        ImageError::CannotShare { .. } => libc::EACCES,
        ImageError::WouldOverwrite { .. } => libc::EEXIST,
        ImageError::NoDram { .. }
        | ImageError::NoWorkingCopy { .. }
        | ImageError::NoScratch { .. }
        | ImageError::NoSpace { .. } => libc::ENOSPC,
        ImageError::Journal { .. } => error.errno_of_disk().unwrap_or(libc::EUCLEAN),
        ImageError::NoCommits { .. } => libc::EOPNOTSUPP,
        ImageError::Stopped { .. } => libc::ECANCELED,
        ImageError::Size { .. } | ImageError::Label { .. } => libc::EINVAL,
        ImageError::Truncated { .. } | ImageError::MemoryError { .. } => libc::EIO,
        ImageError::Stale { source, .. }
        | ImageError::NoShared { source, .. }
        | ImageError::NoDescriptors { source, .. }
        | ImageError::Lock { source, .. }
        | ImageError::File { source, .. } => of(source),
        ImageError::Engine { source, .. } => source.errno(),
        _ => libc::EIO,
    }
}

impl From<ImageError> for Error {
    fn from(error: ImageError) -> Error {
        Error(Box::new(error.into()))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_call_path_cause_and_remedy() {
        let error = Error::call("create the directory", "a/b", Errno::EEXIST);
        let text = "cannot create the directory a/b: File exists; choose another name, or remove the existing one";
        assert_eq!(error.to_string(), text);
        let error = Error::call_of_two("rename", "a".as_ref(), "b".as_ref(), Errno::EXDEV);
        assert_eq!(error.to_string(), "cannot rename a to b: Cross-device link");
    }

    #[test]
    fn conversion_keeps_kind_and_errno() {
        let error = io::Error::from(Error::call("open", "a", Errno::ENOTEMPTY));
        assert_eq!(error.kind(), io::ErrorKind::DirectoryNotEmpty);
        let original = error.get_ref().unwrap().downcast_ref::<Error>().unwrap();
        assert_eq!(original.errno(), libc::ENOTEMPTY);
    }
}
