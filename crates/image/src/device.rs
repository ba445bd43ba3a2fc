//! Images on devices: the node that carries the locks, and what a block device needs.
//!
//! Locks belong to an inode, and each node of a device has one of its own. So processes that open
//! two nodes would not exclude each other. The node with the kernel's name stands for all.
//!
//! An image on a block device is used as one in a file on a disk. [`journal_room`] says how much of
//! the device it takes.
//!
//! [`journal_room`]: super::journal_room

use super::ImageError;
use super::locks::retry_until;
use pmem::BLOCK_BYTES;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// Whether a file is a block device. Its metadata has neither a length nor blocks.
pub(super) fn is_block(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Makes what lies behind an image on a block device no journal.
pub(super) fn erase_journal(device: &File, image_bytes: u64) -> io::Result<()> {
    // Both headers.
    device.write_all_at(&[0; 2 * BLOCK_BYTES as usize], image_bytes)?;
    device.sync_data()
}

/// Exclusive use of a block device: while it exists, the kernel refuses mounts and further claims.
pub(super) struct Claim {
    device: File,
}

impl AsRawFd for Claim {
    fn as_raw_fd(&self) -> i32 {
        self.device.as_raw_fd()
    }
}

impl Claim {
    /// Claims a block device; `None`: the file is none. A process that leaves gives its claim up a
    /// moment after its locks, so a refusal counts after a while only.
    pub fn take(file: &File, path: &Path, timeout: Duration) -> Result<Option<Claim>, ImageError> {
        if !is_block(file) {
            return Ok(None);
        }
        let node = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        let claimed = retry_until(timeout, || match OpenOptions::new().read(true).custom_flags(flags).open(&node) {
            Ok(device) => Ok(Some(Claim { device })),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(None),
            Err(source) => Err(ImageError::File { action: "claim", path: path.to_owned(), source }),
        })?;
        claimed.map(Some).ok_or_else(|| ImageError::Claimed { path: path.to_owned() })
    }
}

/// The file itself, or of a device the node of it that carries the locks, if this machine (or
/// container) has that. An error if this process may not open that one.
pub(super) fn with_locks(file: File, writable: bool) -> io::Result<File> {
    let metadata = file.metadata()?;
    let Some(name) = kernel_name(&metadata) else { return Ok(file) };
    let flags = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let node = OpenOptions::new().read(true).write(writable).custom_flags(flags).open(Path::new("/dev").join(name));
    match node {
        Ok(node) if is_node_of(&node.metadata()?, &metadata) => Ok(node),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(file),
    }
}

/// The name below /dev that the kernel gave a device.
fn kernel_name(metadata: &Metadata) -> Option<String> {
    let kind = match metadata.file_type() {
        kind if kind.is_char_device() => "char",
        kind if kind.is_block_device() => "block",
        _ => return None,
    };
    let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    let link = std::fs::read_link(format!("/sys/dev/{kind}/{major}:{minor}")).ok()?;
    // In sysfs a `!` stands for the `/` of a name like "cciss/c0d0".
    Some(link.file_name()?.to_str()?.replace('!', "/"))
}

fn is_node_of(node: &Metadata, device: &Metadata) -> bool {
    node.file_type() == device.file_type() && node.rdev() == device.rdev()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FileType, Mode, makedev, mknodat};

    #[test]
    fn all_nodes_of_a_device_have_the_locks_of_one() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("node");
        let made = mknodat(rustix::fs::CWD, &other, FileType::CharacterDevice, Mode::RUSR, makedev(1, 3));
        let Ok(node) = made.map_err(io::Error::from).and_then(|()| File::open(&other)) else {
            eprintln!("\n*** SKIPPED: nodes of a device: this user cannot make one here ***\n");
            return;
        };
        let known = std::fs::metadata("/dev/null").unwrap();
        let found = with_locks(node, false).unwrap().metadata().unwrap();
        assert_eq!((found.dev(), found.ino()), (known.dev(), known.ino()));
        let file = File::open("/proc/self/exe").unwrap();
        let inode = file.metadata().unwrap().ino();
        assert_eq!(with_locks(file, false).unwrap().metadata().unwrap().ino(), inode);
    }
}
