//! Paths of inodes, for reports about open files and locks.

use crate::caller::NodeRef;
use engine::Thread;
use engine::format::ROOT_INODE;
use pmem::Memory;

/// Directories above a file that are followed at most: no path of a program has more.
const DEPTH_MAX: usize = 4096;

/// The path of a file from the root of the image. `found_in`: for a file that is no directory, the
/// inode number of the directory in which it was found (`OpenFile::found_in`). `None`: the file was
/// removed, renamed meanwhile, or its directory is not known.
pub fn path_of_inode<M: Memory>(thread: &Thread<'_, M>, number: u64, found_in: u64) -> Option<Vec<u8>> {
    let node_of = |number| thread.node(number, None).ok().map(|node| NodeRef::owned(thread, node));
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut child = number;
    let mut parent = match node_of(number)? {
        file if thread.stat(file.node()).ok()?.protection().is_directory() => parent_of(thread, &file)?,
        _ => found_in,
    };
    while child != ROOT_INODE {
        if names.len() == DEPTH_MAX || parent == 0 {
            return None;
        }
        let directory = node_of(parent)?;
        let mut name = [0; 255];
        let length = thread.name_of(directory.node(), child, &mut name).ok()?;
        names.push(name[..length].to_vec());
        (child, parent) = (parent, parent_of(thread, &directory)?);
    }
    let mut path: Vec<u8> = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    Some(if path.is_empty() { b"/".to_vec() } else { path })
}

fn parent_of<M: Memory>(thread: &Thread<'_, M>, directory: &NodeRef<'_, '_, M>) -> Option<u64> {
    thread.parent(directory.node()).ok()
}
