//! The node of a device that carries the locks of its image.
//!
//! Locks belong to an inode, and each node of a device has one of its own. So processes that open
//! two nodes would not exclude each other. The node with the kernel's name stands for all.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

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

/// The name that the kernel gave a character device.
fn kernel_name(metadata: &Metadata) -> Option<std::ffi::OsString> {
    let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    let link = metadata.file_type().is_char_device().then(|| format!("/sys/dev/char/{major}:{minor}"))?;
    Some(std::fs::read_link(link).ok()?.file_name()?.to_owned())
}

fn is_node_of(node: &Metadata, device: &Metadata) -> bool {
    node.file_type().is_char_device() && node.rdev() == device.rdev()
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
