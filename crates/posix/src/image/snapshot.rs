//! Snapshots: a consistent copy of an image, also of one on a disk while programs use it.
//!
//! An image in use is not stopped. The snapshot commits, and then keeps checkpoints away while it
//! copies the image's file, which only checkpoints change. At the end it applies the journal of
//! that moment to the copy. So it is the state of a commit that begins after the call.
//!
//! Invariant: the new file gets its name when it is whole and on its disk.

use super::locks::{Byte, Lock, LockGuard, retry_until};
use super::working::{Base, copy_file, copy_newest};
use super::{CommitPolicy, Image, ImageError, OpenImage, lock_error, make, open_file, users};
use crate::Errno;
use crate::host::PLATFORM;
use engine::Platform;
use pmem::{Access, Direct, MapError, Mapping};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The identity of a copy that is to be used beside its original.
#[derive(Debug, Clone, Default)]
pub struct NewIdentity {
    /// Label: at most 64 bytes; absent: as the original has it.
    pub label: Option<String>,
}

/// Copies an image to a new file. `identity`: give it a UUID of its own.
pub fn snapshot(
    image: impl AsRef<Path>,
    target: impl AsRef<Path>,
    identity: Option<&NewIdentity>,
    options: &OpenImage,
    watch: make::Watch<'_>,
) -> Result<(), ImageError> {
    let (path, target) = (image.as_ref(), target.as_ref());
    let (file, _) = open_file(path, true)?;
    let new = NewFile::create(target, &file)?;
    let base = Base { file: &file, path, runtime_parent: &options.dram_directory };
    let failed = |source| lock_error(path, source);
    let guard =
        retry_until(options.timeout, || LockGuard::take(&file, Byte::Attaching, Lock::Shared)).map_err(failed)?;
    let Some(attaching) = guard else { return Err(ImageError::Changing { path: path.to_owned() }) };
    if users(&file).map_err(failed)?.writing {
        drop(attaching);
        copy_in_use(&base, &new, options, watch)?;
    } else {
        // No process can begin to write it before the guard is dropped.
        copy_newest(&base, &new.file, watch)?;
    }
    new.finish(identity)
}

fn copy_in_use(base: &Base<'_>, new: &NewFile, options: &OpenImage, watch: make::Watch<'_>) -> Result<(), ImageError> {
    let options = OpenImage { commits: CommitPolicy::WhenSynced, ..options.clone() };
    let image = Image::open(base.path, &options)?;
    let Some(commits) = image.memory.commits else { return Err(ImageError::NoCommits { path: base.path.to_owned() }) };
    let failed = |errno: Errno| ImageError::File {
        action: "commit",
        path: base.path.to_owned(),
        source: io::Error::from_raw_os_error(errno.0),
    };
    let thread = image.fs().enter().map_err(|error| failed(error.into()))?;
    let number = image.fs().process_number().map_err(|error| failed(error.into()))?;
    let pinned = commits.keep_checkpoints_away(&thread, number).map_err(failed)?;
    commits.commit(&thread).map_err(failed)?;
    let copied = copy_file(base, &new.file, watch);
    drop(pinned);
    copied
}

/// A file without a name, that gets one when it is complete.
struct NewFile {
    file: File,
    path: PathBuf,
    /// Its name until then, where the file system has no unnamed files.
    temporary: Option<PathBuf>,
}

impl NewFile {
    /// Creates it beside its final place, with the permissions of `like`.
    fn create(path: &Path, like: &File) -> Result<NewFile, ImageError> {
        let failed = |source| ImageError::File { action: "create", path: path.to_owned(), source };
        if path.symlink_metadata().is_ok() {
            return Err(MapError::Exists { path: path.to_owned() }.into());
        }
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mode = Mode::from_raw_mode(0o600);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let unnamed = rustix::fs::open(directory, flags | OFlags::TMPFILE, mode);
        let (file, temporary) = match unnamed {
            Ok(file) => (file, None),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {
                let temporary = directory.join(format!(".directfs-{:016x}", PLATFORM.random()));
                let file = rustix::fs::open(&temporary, flags | OFlags::CREATE | OFlags::EXCL, mode);
                (file.map_err(|errno| failed(errno.into()))?, Some(temporary))
            }
            Err(errno) => return Err(failed(errno.into())),
        };
        let new = NewFile { file: File::from(file), path: path.to_owned(), temporary };
        let like = like.metadata().map_err(failed)?.permissions().mode() & 0o777;
        new.file.set_permissions(PermissionsExt::from_mode(like)).map_err(failed)?;
        Ok(new)
    }

    /// Makes the copy an image that is not in use, writes it to its disk and gives it its name.
    fn finish(mut self, identity: Option<&NewIdentity>) -> Result<(), ImageError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| ImageError::File { action, path, source }
        };
        let copy = self.file.try_clone().map_err(failed("open", &self.path))?;
        let mapping = Arc::new(Mapping::from_file(copy, &self.path, Access::ReadWrite)?);
        let region = mapping.region(Direct)?;
        let label = identity.and_then(|identity| identity.label.as_deref()).map(make::label_bytes).transpose()?;
        let uuid = identity.map(|_| make::random_uuid());
        engine::set_identity(&region, uuid, label)
            .map_err(|source| ImageError::Engine { path: self.path.clone(), source })?;
        mapping.sync(0..mapping.length()).map_err(failed("write", &self.path))?;
        self.file.sync_all().map_err(failed("write", &self.path))?;
        match self.temporary.take() {
            None => {
                let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, from, CWD, &self.path, AtFlags::SYMLINK_FOLLOW)
            }
            Some(temporary) => {
                let flags = rustix::fs::RenameFlags::NOREPLACE;
                rustix::fs::renameat_with(CWD, &temporary, CWD, &self.path, flags).inspect_err(|_| {
                    let _ = std::fs::remove_file(&temporary);
                })
            }
        }
        .map_err(|errno| failed("name", &self.path)(errno.into()))?;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // A directory that cannot be synced (on some network file systems) is as it is.
        let _ = File::open(directory).and_then(|directory| directory.sync_all());
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = std::fs::remove_file(temporary);
        }
    }
}
