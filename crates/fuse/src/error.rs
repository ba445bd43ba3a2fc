//! What can go wrong with a mount: each says what is the matter and what to do.

use posix::image::ImageError;
use std::io;
use std::path::PathBuf;

/// Why a mount failed, or ended badly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The image cannot be used, or could not be left cleanly.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The engine refused.
    #[error("cannot use the image: {0}")]
    Engine(#[from] engine::Error),
    /// There is no directory to mount on.
    #[error("cannot mount on {}: {source}; make the directory first", path.display())]
    MountPoint {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A server that ended has left its mount there.
    #[error("{} is a mount whose server has ended: unmount it first (umount -l {})", path.display(), path.display())]
    Dead {
        /// Where.
        path: PathBuf,
    },
    /// It is no directory.
    #[error("{} is not a directory: name one to mount on", path.display())]
    NotADirectory {
        /// Where.
        path: PathBuf,
    },
    /// No FUSE here.
    #[error(
        "cannot open /dev/fuse: {source}; load the module (modprobe fuse), give the container the device (--device /dev/fuse), or use \
         `directfs run`, which needs neither"
    )]
    Device {
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel, or fusermount3 on our behalf, refused.
    #[error(
        "cannot mount on {}: {source}; users other than root need fusermount3 (Debian: fuse3) and a directory of their own, and for \
         allow_other a line user_allow_other in /etc/fuse.conf",
        path.display()
    )]
    Refused {
        /// Where.
        path: PathBuf,
        /// What was said.
        source: io::Error,
    },
    /// The session with the kernel broke.
    #[error("the session with the kernel ended: {source}; unmount {} and mount it again", path.display())]
    Session {
        /// Where.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// The mount could not be taken away.
    #[error("cannot unmount {}: {source}; end the programs that use it (fuser -vm {}) and try again", path.display(), path.display())]
    Unmount {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What is wrong with a list of mount options.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// Nobody knows it.
    #[error("unknown mount option {name:?}: check its spelling (`directfs mount --help` lists them)")]
    Unknown {
        /// What was given.
        name: String,
    },
    /// It has no value, or one that makes no sense.
    #[error("mount option {name:?} wants {wanted}, not {given:?}")]
    Value {
        /// The option.
        name: String,
        /// What it wants.
        wanted: &'static str,
        /// What was given.
        given: String,
    },
}
