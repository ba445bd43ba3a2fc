//! The file behind a DRAM region that processes share.
//!
//! Its name has the image's UUID and the process-id namespace: slots and locks name their owners by pid, so processes that do not see each
//! other's pids must not share one.

use super::ImageError;
use pmem::{Access, MapError, Mapping};
use rustix::fs::{FileType, Gid, Mode, Stat, Uid};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Room that must be free beside the areas that recovery fills at once.
const ROOM_BYTES: u64 = 16 << 20;

pub(super) struct DramFile {
    path: PathBuf,
    /// What the names of all DRAM files of the image begin with.
    prefix: String,
}

impl DramFile {
    pub(super) fn new(directory: &Path, uuid: &[u8; 16]) -> DramFile {
        let mut prefix = String::from("directfs-");
        for (index, byte) in uuid.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                prefix.push('-');
            }
            prefix.push_str(&format!("{byte:02x}"));
        }
        let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino());
        let path = directory.join(format!("{prefix}.{namespace:x}"));
        DramFile { path, prefix }
    }

    pub(super) fn cannot_share(&self, image: &Path, reason: String) -> ImageError {
        ImageError::CannotShare { path: image.to_owned(), dram: self.path.clone(), reason }
    }

    /// Throws away what processes left that are gone. The caller has made sure that nobody uses the image.
    pub(super) fn discard_stale(&self) -> Result<(), ImageError> {
        let Some(directory) = self.path.parent() else { return Ok(()) };
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let stale = entry.file_name().as_encoded_bytes().starts_with(self.prefix.as_bytes());
            if stale && entry.path() == self.pipes() {
                self.remove_pipes();
                continue;
            }
            if stale && let Err(source) = std::fs::remove_file(entry.path())
                // Only one of our own name is in the way.
                && entry.path() == self.path
            {
                return Err(ImageError::Stale { path: self.path.clone(), source });
            }
        }
        Ok(())
    }

    pub(super) fn remove(&self) {
        // If that fails, the next one in discards it.
        let _ = std::fs::remove_file(&self.path);
        self.remove_pipes();
    }

    /// The directory of the kernel's pipes for those of the image.
    fn pipes(&self) -> PathBuf {
        self.path.with_file_name(format!("{}.pipes", self.prefix))
    }

    pub(super) fn remove_pipes(&self) {
        // Mostly there is none; one that others made, and that we may not remove, is used again with the image.
        let _ = std::fs::remove_dir_all(self.pipes());
    }

    /// Makes the file: for those, and only those, who may use the image. `filled` bytes of it will be touched at once.
    pub(super) fn create(
        &self,
        image: &File,
        image_path: &Path,
        length: u64,
        filled: u64,
    ) -> Result<Mapping, ImageError> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        if let Ok(space) = rustix::fs::statvfs(directory) {
            let available = space.f_bavail * space.f_frsize;
            let needed = filled + ROOM_BYTES;
            if available < needed {
                return Err(ImageError::NoDram { path: directory.to_owned(), available, needed });
            }
        }
        let owner = stat(image, image_path)?;
        let mapping = Mapping::create(&self.path, length, 0o600).map_err(|error| match error {
            MapError::Create { path, source, .. } => ImageError::NoShared { path, source },
            other => other.into(),
        })?;
        self.hand_over(&mapping, &owner);
        Ok(mapping)
    }

    /// Gives the file the image's owner, group and mode, as far as that is allowed. Where it is not, fewer can share: never more.
    fn hand_over(&self, mapping: &Mapping, owner: &Stat) {
        let Some(file) = mapping.file() else { return };
        let mut mode = owner.st_mode & 0o606;
        if rustix::fs::fchown(file, None, Some(Gid::from_raw(owner.st_gid))).is_ok() {
            mode |= owner.st_mode & 0o060;
        }
        if owner.st_uid != rustix::process::geteuid().as_raw() {
            let _ = rustix::fs::fchown(file, Some(Uid::from_raw(owner.st_uid)), None);
        }
        let _ = rustix::fs::fchmod(file, Mode::from_raw_mode(mode | 0o600));
    }

    /// Opens the file that another process made.
    pub(super) fn open(&self, image: &File, image_path: &Path) -> Result<Mapping, ImageError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(&self.path)
            .map_err(|source| self.cannot_share(image_path, source.to_string()))?;
        let made = stat(&file, &self.path)?;
        if !is_trusted(&made, &stat(image, image_path)?) {
            let reason = format!("it belongs to user {}, who has nothing to do with the image", made.st_uid);
            return Err(self.cannot_share(image_path, reason));
        }
        Ok(Mapping::from_file(file, &self.path, Access::ReadWrite)?)
    }
}

/// Makes a file without a name, for those who get its descriptor.
pub(super) fn create_unnamed(length: u64) -> Result<Mapping, ImageError> {
    let name = Path::new("the image's shared memory");
    let error = |source: io::Error| MapError::Create { path: name.to_owned(), length, source };
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("directfs-dram", flags).map_err(|errno| error(errno.into()))?;
    let file = File::from(file);
    file.set_len(length).map_err(error)?;
    Ok(Mapping::from_file(file, name, Access::ReadWrite)?)
}

fn stat(file: &File, path: &Path) -> Result<Stat, ImageError> {
    rustix::fs::fstat(file).map_err(|errno| ImageError::File {
        action: "examine",
        path: path.to_owned(),
        source: io::Error::from(errno),
    })
}

/// Anybody can make a file of that name in /dev/shm. It is believed if whoever made it could have written the image itself: root, the
/// image's owner, ourselves, or, where the group may write, somebody of the group (others cannot give a file that group).
fn is_trusted(made: &Stat, image: &Stat) -> bool {
    let by_owner = [0, image.st_uid, rustix::process::geteuid().as_raw()].contains(&made.st_uid);
    let by_group = image.st_mode & 0o020 != 0 && made.st_gid == image.st_gid;
    let by_anybody = image.st_mode & 0o002 != 0;
    FileType::from_raw_mode(made.st_mode) == FileType::RegularFile && (by_owner || by_group || by_anybody)
}
