//! What backs a mapping, and which failures its bytes survive.

use std::fmt;

use rustix::fd::AsFd;
use rustix::fs::FileType;

/// What a region is mapped from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// A file on a DAX file system: the kernel granted `MAP_SYNC`, so a flush and a fence reach the
    /// medium.
    Dax {
        /// What the kernel knows of it.
        medium: Medium,
    },
    /// A `/dev/dax*` device: the medium itself.
    DaxDevice {
        /// What the kernel knows of it.
        medium: Medium,
    },
    /// A file on tmpfs or another file system that lives in memory.
    Tmpfs,
    /// A file whose pages the kernel caches; it writes them back at any time and at each sync.
    File {
        /// The file system's name, for display.
        file_system: &'static str,
    },
    /// A block device (a disk, a logical volume, a network block device), whose pages the kernel
    /// caches like those of a file.
    BlockDevice,
    /// No file: memory of this process and the children that it forks.
    Anonymous,
}

/// Whether memory that is used through DAX keeps its bytes without power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// The kernel knows that what leaves the processor's caches is kept.
    Persistent,
    /// The kernel does not know: firmware that does not say it, memory of a virtual machine, a
    /// range of ordinary memory (`memmap=`).
    Unknown,
    /// Memory without persistence, such as CXL memory in the mode `ram`.
    Volatile,
}

/// Which failures stored, flushed and fenced bytes survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// Power failure, immediately.
    PowerFailure,
    /// Process death, immediately. A power failure perhaps: the kernel does not know.
    PowerFailurePerhaps,
    /// Process death, immediately. Never a power failure or a restart of the machine.
    ProcessDeath,
    /// Process death, immediately; a power failure what was synced, and what was committed since.
    Committed,
    /// Process death, immediately. A power failure may destroy the image: the kernel writes dirty
    /// pages back in any order, so not even what was synced before is safe.
    CleanClose,
    /// Nothing.
    Nothing,
}

impl Backing {
    /// Which failures bytes survive on this backing, as images use it. An image on a disk can be
    /// used in place instead: [`Persistence::CleanClose`].
    pub fn persistence(self) -> Persistence {
        match self {
            Backing::Dax { medium } | Backing::DaxDevice { medium } => match medium {
                Medium::Persistent => Persistence::PowerFailure,
                Medium::Unknown => Persistence::PowerFailurePerhaps,
                Medium::Volatile => Persistence::ProcessDeath,
            },
            Backing::Tmpfs => Persistence::ProcessDeath,
            Backing::File { .. } | Backing::BlockDevice => Persistence::Committed,
            Backing::Anonymous => Persistence::Nothing,
        }
    }

    /// Whether durable bytes must leave the processor's caches. On other backings a flush adds no
    /// safety, see [`Region::without_flushes`](crate::Region::without_flushes).
    pub fn needs_flushes(self) -> bool {
        matches!(self.persistence(), Persistence::PowerFailure | Persistence::PowerFailurePerhaps)
    }

    /// Whether it can only be mapped, not read: a DAX device.
    pub fn is_device(self) -> bool {
        matches!(self, Backing::DaxDevice { .. })
    }

    /// Whether it is a disk: the kernel holds changes back until a sync, so that
    /// [`Mapping::sync`](crate::Mapping::sync) has work to do.
    pub fn is_disk(self) -> bool {
        matches!(self, Backing::File { .. } | Backing::BlockDevice)
    }

    /// The backing of `file` when it was mapped without `MAP_SYNC`. If the file system's type
    /// cannot be read, the name is "an unknown file system"; the name is for display only.
    pub fn of_file(file: impl AsFd) -> Backing {
        let file = file.as_fd();
        // The file system that holds the name of a device says nothing of its bytes.
        if rustix::fs::fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_block_device()) {
            return Backing::BlockDevice;
        }
        match rustix::fs::fstatfs(file) {
            Ok(status) => Backing::of_magic(status.f_type as u64),
            Err(_) => Backing::File { file_system: UNKNOWN },
        }
    }

    fn of_magic(magic: u64) -> Backing {
        let file_system = match magic {
            // tmpfs, ramfs, hugetlbfs: pages without a disk.
            0x0102_1994 | 0x8584_58f6 | 0x9584_58f6 => return Backing::Tmpfs,
            0xef53 => "ext4",
            0x5846_5342 => "xfs",
            0x9123_683e => "btrfs",
            0xf2f5_2010 => "f2fs",
            0x2fc1_2fc1 => "zfs",
            0xca45_1a4e => "bcachefs",
            0x794c_7630 => "overlayfs",
            0x6573_5546 => "fuse",
            0x6969 => "nfs",
            0x0102_1997 => "9p",
            0xfe53_4d42 | 0xff53_4d42 => "smb",
            0x2011_bab0 => "exfat",
            0x4d44 => "vfat",
            _ => UNKNOWN,
        };
        Backing::File { file_system }
    }
}

const UNKNOWN: &str = "an unknown file system";

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backing::Dax { medium } => write!(f, "a file on a DAX file system{medium}"),
            Backing::DaxDevice { medium } => write!(f, "a DAX device{medium}"),
            Backing::Tmpfs => f.write_str("a file in memory (tmpfs)"),
            Backing::File { file_system } => write!(f, "a file on {file_system}, through the page cache"),
            Backing::BlockDevice => f.write_str("a block device, through the page cache"),
            Backing::Anonymous => f.write_str("anonymous memory"),
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Medium::Persistent => "",
            Medium::Unknown => ", on memory of which the kernel does not say that it is persistent",
            Medium::Volatile => ", on volatile memory",
        })
    }
}

impl Persistence {
    /// The guarantee in one sentence, for display.
    pub fn sentence(self) -> &'static str {
        match self {
            Persistence::PowerFailure => "Completed calls survive a power failure.",
            Persistence::PowerFailurePerhaps => {
                "Completed calls survive the death of every process. Whether they survive a power failure is not known: the \
                 memory's region has no persistence_domain (ndctl list -R)."
            }
            Persistence::ProcessDeath => {
                "Completed calls survive the death of every process, but not a power failure or a restart of \
                 the machine."
            }
            Persistence::Committed => {
                "Completed calls survive the death of every process. What was synced, and what is older than the \
                 interval of commits, survives a power failure."
            }
            Persistence::CleanClose => {
                "Completed calls survive the death of every process. A power failure while the image is in \
                 use may destroy it, including what was synced before."
            }
            Persistence::Nothing => "Nothing survives the end of the last process that shares this memory.",
        }
    }
}

impl fmt::Display for Persistence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_file_systems_are_distinguished_from_disks() {
        assert_eq!(Backing::of_magic(0x0102_1994), Backing::Tmpfs);
        assert_eq!(Backing::of_magic(0x8584_58f6), Backing::Tmpfs);
        assert_eq!(Backing::of_magic(0xef53), Backing::File { file_system: "ext4" });
        assert_eq!(Backing::of_magic(0x1234_5678), Backing::File { file_system: UNKNOWN });
    }

    #[test]
    fn only_persistent_memory_survives_a_power_failure() {
        for backing in [
            Backing::Tmpfs,
            Backing::File { file_system: "ext4" },
            Backing::File { file_system: UNKNOWN },
            Backing::Anonymous,
        ] {
            assert_ne!(backing.persistence(), Persistence::PowerFailure, "{backing}");
        }
        for medium in [Medium::Unknown, Medium::Volatile] {
            assert_ne!(Backing::Dax { medium }.persistence(), Persistence::PowerFailure);
            assert_ne!(Backing::DaxDevice { medium }.persistence(), Persistence::PowerFailure);
        }
        let medium = Medium::Persistent;
        assert_eq!(Backing::Dax { medium }.persistence(), Persistence::PowerFailure);
        assert_eq!(Backing::DaxDevice { medium }.persistence(), Persistence::PowerFailure);
    }
}
