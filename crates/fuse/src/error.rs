//! Errors of mounts and mount options; each message names the cause and the remedy.

use image::ImageError;
use std::io;
use std::path::PathBuf;

/// The reason why a mount failed or ended with an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The image cannot be used, or could not be closed cleanly.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The engine refused the image.
    #[error("cannot use the image: {0}")]
    Engine(#[from] engine::Error),
    /// The mount point does not exist.
    #[error("cannot mount on {}: {source}; create the directory first", path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The mount point has a mount whose server has exited.
    #[error("{} is a mount whose server has exited: unmount it first (umount -l {})", path.display(), path.display())]
    Dead {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point is not a directory.
    #[error("{} is not a directory: specify a directory as the mount point", path.display())]
    NotADirectory {
        /// The mount point.
        path: PathBuf,
    },
    /// FUSE is not available.
    #[error(
        "cannot open /dev/fuse: {source}; load the module (modprobe fuse), pass the device to the container (--device /dev/fuse), or use \
         `directfs run`, which needs neither"
    )]
    Device {
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel, or fusermount3 on the user's behalf, refused the mount.
    #[error(
        "cannot mount on {}: {source}; users other than root need fusermount3 (Debian: fuse3) and a directory of their own, and for \
         allow_other the line user_allow_other in /etc/fuse.conf",
        path.display()
    )]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A thread that every mount needs could not be started.
    #[error("cannot start a thread for the mount on {}: {source}; raise the limit of processes (`ulimit -u`, or pids.max of the control group)", path.display())]
    Thread {
        /// The mount point.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The session with the kernel failed.
    #[error("the session with the kernel ended: {source}; unmount {} and mount it again", path.display())]
    Session {
        /// The mount point.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file system could not be unmounted.
    #[error("cannot unmount {}: {source}; stop the programs that use it (fuser -vm {}) and try again", path.display(), path.display())]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// An error in a list of mount options.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// The option is unknown.
    #[error("unknown mount option {name:?}: check its spelling (`directfs mount --help` lists them)")]
    Unknown {
        /// The given option.
        name: String,
    },
    /// The value is missing or invalid.
    #[error("mount option {name:?} requires {wanted}, not {given:?}")]
    Value {
        /// The option.
        name: String,
        /// The expected value.
        wanted: &'static str,
        /// The given value.
        given: String,
    },
}
