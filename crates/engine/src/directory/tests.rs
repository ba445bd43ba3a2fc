//! What no image of a test's size comes to by itself.

use super::{DIRECTORY_LINKS_MAX, RenameFlags};
use crate::dram::References;
use crate::error::Error;
use crate::format::FileKind;
use crate::testing::{Attached, new_image, new_node};
use core::sync::atomic::Ordering::Relaxed;

#[test]
fn a_directory_with_as_many_directories_as_it_can_count_takes_files_only() {
    let image = new_image(4 << 20, 0);
    let attached = Attached::new(&image).expect("attaches");
    let thread = attached.enter().expect("enters");
    let root = thread.root().expect("a root");
    let (file, directory) = (new_node(FileKind::Regular), new_node(FileKind::Directory));
    let full = thread.create(root, b"full", &directory).expect("makes");
    thread.release(thread.create(root, b"other", &directory).expect("makes"), 1);
    thread.release(thread.create(full, b"inner", &directory).expect("makes"), 1);
    let links = &thread.cachelet(full).expect("a cachelet").references;
    let more = u64::from(DIRECTORY_LINKS_MAX - 3) * References::ONE_LINK;
    links.fetch_add(more, Relaxed);

    assert_eq!(thread.create(full, b"new", &directory).err(), Some(Error::TooManyLinks));
    let rename = |name: &[u8], to: &[u8], flags| thread.rename((root, name), (full, to), flags, |_, _| Ok(()));
    assert_eq!(rename(b"other", b"new", RenameFlags::default()).err(), Some(Error::TooManyLinks));
    thread.release(thread.create(full, b"new", &file).expect("a file counts as no link"), 1);
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    assert_eq!(rename(b"other", b"new", exchange).err(), Some(Error::TooManyLinks));
    thread.remove_directory(full, b"inner", |_| Ok(())).expect("removes");
    rename(b"other", b"new directory", RenameFlags::default()).expect("there is room for one again");

    links.fetch_sub(more, Relaxed);
    thread.release(full, 1);
}
