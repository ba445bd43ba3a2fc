//! Tests of full images: what needs no space goes on, at every size, and all comes back.

use crate::attributes::SpaceReport;
use crate::directory::RenameFlags;
use crate::error::Error;
use crate::file::{AllocateMode, MapMode};
use crate::format::{FileKind, Geometry};
use crate::fs::{Node, Thread};
use crate::testing::{Attached, new_image, new_node};
use pmem::BLOCK_BYTES;
use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

const MIB: u64 = 1 << 20;
/// From the smallest image on.
const SIZES: [u64; 3] = [Geometry::LENGTH_MIN, 3 * MIB, 16 * MIB];

/// What uses up the space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fill {
    Data,
    SmallFiles,
    Names,
}

const FILLS: [Fill; 3] = [Fill::Data, Fill::SmallFiles, Fill::Names];

/// Each size with each way to fill it. The DRAM region has no room for all names of a large image.
fn images() -> impl Iterator<Item = (u64, Fill)> {
    let all = SIZES.into_iter().flat_map(|size| FILLS.map(|how| (size, how)));
    all.filter(|(size, how)| *how != Fill::Names || *size < 16 * MIB)
}

fn make(thread: &Thread<'_>, within: Node, name: &str) -> Result<Node, Error> {
    thread.create(within, name.as_bytes(), &new_node(FileKind::Regular))
}

/// Uses up all space that ordinary changes may take. Returns the names in the directory.
fn fill(thread: &Thread<'_>, within: Node, how: Fill) -> Vec<String> {
    let mut names = Vec::new();
    if how == Fill::Data {
        let hog = make(thread, within, "hog").expect("a file");
        for length in [64 << 10, 4096, 1] {
            while thread.files().append(hog, &vec![1; length]).is_ok() {}
        }
        thread.release(hog, 1);
        names.push("hog".into());
    }
    let target = make(thread, within, "target").ok();
    names.extend(target.map(|_| "target".into()));
    loop {
        // Long names, so that some space is left for short ones at no time.
        let name = format!("{:0>width$}", names.len(), width = if how == Fill::Names { 200 } else { 20 });
        let made = match (how, target) {
            (Fill::Names, Some(target)) => thread.link(target, within, name.as_bytes()),
            _ => make(thread, within, &name).map(|node| {
                let written = thread.files().write(node, 0, &[7; 100]);
                assert!(written == Ok(100) || written == Err(Error::NoSpace), "{written:?}");
                thread.release(node, 1);
            }),
        };
        match made {
            Ok(()) => names.push(name),
            Err(error) => break assert!([Error::NoSpace, Error::NoInodes].contains(&error), "{error:?}"),
        }
    }
    // Until no space at all is left for data.
    if let Some(target) = target {
        while thread.files().append(target, &[3; 4096]).is_ok() {}
        thread.release(target, 1);
    }
    names
}

fn space(thread: &Thread<'_>) -> SpaceReport {
    while thread.recycler().recycle(usize::MAX).expect("recycles") > 0 {}
    thread.space().expect("counts")
}

fn content(thread: &Thread<'_>, node: Node) -> Vec<u8> {
    let mut bytes = vec![0; thread.stat(node).expect("stats").size_bytes as usize];
    thread.files().read(node, 0, &mut bytes).expect("reads");
    bytes
}

/// A file of some blocks.
fn file_of(thread: &Thread<'_>, within: Node, name: &str, length: u64) -> Node {
    let node = make(thread, within, name).expect("a file");
    thread.files().write(node, 0, &vec![b'o'; length as usize]).expect("writes");
    node
}

#[test]
fn overwriting_needs_no_space_at_any_size_of_image() {
    const LENGTH: u64 = 40 * BLOCK_BYTES + 100;
    for (size, how) in images() {
        let image = new_image(size, 0);
        let fs = Attached::new(&image).expect("attaches");
        let thread = fs.enter().expect("enters");
        let root = thread.root().expect("a root");
        let what = format!("{size} bytes full of {how:?}");
        let written = file_of(&thread, root, "written", LENGTH);
        let reserved = make(&thread, root, "reserved").expect("a file");
        let mode = AllocateMode::Allocate { keep_size: false };
        thread.files().allocate(reserved, mode, 0, LENGTH).expect("reserves");
        let mapped = make(&thread, root, "mapped").expect("a file");
        thread.files().allocate(mapped, mode, 0, LENGTH).expect("reserves");
        thread.files().set_mapped(mapped, true).expect("marks");
        fill(&thread, root, how);
        assert_eq!(space(&thread).blocks_free, 0, "{what}");

        for node in [written, reserved, mapped] {
            let mut wanted = content(&thread, node);
            for (offset, length) in
                [(0, LENGTH), (5000, 100), (4096, 8192), (LENGTH - 1, 1), (10, 100_000), (0, LENGTH)]
            {
                let bytes = vec![(offset % 251) as u8 + 1; length as usize];
                assert_eq!(thread.files().write(node, offset, &bytes), Ok(bytes.len()), "{what}: {offset}, {length}");
                wanted[offset as usize..(offset + length) as usize].copy_from_slice(&bytes);
                assert!(content(&thread, node) == wanted, "{what}: {offset}, {length}");
            }
            let before = thread.stat(node).expect("stats");
            let longer = vec![9; LENGTH as usize + 5000];
            assert_eq!(thread.files().write(node, 0, &longer), Err(Error::NoSpace), "{what}: behind the end");
            assert_eq!(thread.stat(node), Ok(before), "{what}: on an error nothing has changed");
            // A mapped file is written piece by piece.
            let is_mapped = node == mapped;
            assert!(is_mapped || content(&thread, node) == wanted, "{what}: nor its bytes");
        }
        // A crash now leaves all of it.
        let copy = image.copy();
        let again = Attached::new(&copy).expect("attaches");
        let recovered = again.enter().expect("enters");
        for node in [written, reserved, mapped] {
            let found = recovered.node(node.number, None).expect("the file");
            assert!(content(&recovered, found) == content(&thread, node), "{what}: after a crash");
            recovered.release(found, 1);
        }
        [written, reserved, mapped].into_iter().for_each(|node| thread.release(node, 1));
        thread.release(root, 1);
    }
}

#[test]
fn stores_into_reserved_blocks_of_a_mapping_need_no_space() {
    let image = new_image(3 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let root = thread.root().expect("a root");
    let node = make(&thread, root, "mapped").expect("a file");
    thread.files().allocate(node, AllocateMode::Allocate { keep_size: false }, 0, MIB).expect("reserves");
    fill(&thread, root, Fill::Data);
    thread.files().set_mapped(node, true).expect("marks");
    let mut blocks = 0;
    thread
        .files()
        .map_extents(node, 0, MIB, MapMode::Stores, &mut |extent| {
            assert!(!extent.unwritten && extent.address.is_some());
            blocks += extent.length / BLOCK_BYTES;
        })
        .expect("maps");
    assert_eq!(blocks, MIB / BLOCK_BYTES);
    [node, root].into_iter().for_each(|node| thread.release(node, 1));
}

#[test]
fn blocks_that_files_share_are_not_overwritten_for_want_of_space() {
    let image = new_image(3 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let root = thread.root().expect("a root");
    let (one, two) = (file_of(&thread, root, "one", MIB / 2), make(&thread, root, "two").expect("a file"));
    thread.files().share_range((one, 0), (two, 0), None).expect("shares");
    fill(&thread, root, Fill::Data);
    for (node, other) in [(one, two), (two, one)] {
        assert_eq!(thread.files().write(node, 4096, &[b'n'; 8192]), Err(Error::NoSpace));
        assert!(content(&thread, node) == content(&thread, other), "both are as before");
    }
    [one, two, root].into_iter().for_each(|node| thread.release(node, 1));
}

#[test]
fn names_attributes_and_removals_go_on_at_any_size_of_image() {
    for (size, how) in images() {
        let image = new_image(size, 0);
        let fs = Attached::new(&image).expect("attaches");
        let thread = fs.enter().expect("enters");
        let root = thread.root().expect("a root");
        let what = format!("{size} bytes full of {how:?}");
        let other = thread.create(root, b"other", &new_node(FileKind::Directory)).expect("a directory");
        let node = file_of(&thread, root, "log", 20 * BLOCK_BYTES);
        thread.files().set_xattr(node, b"user.a", b"one", false, false).expect("sets");
        let filled = thread.create(root, b"filled", &new_node(FileKind::Directory)).expect("a directory");
        let names = fill(&thread, filled, how);

        let rename = |from: (Node, &str), to: (Node, &str)| {
            let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
            thread.rename(from, to, RenameFlags::default(), |_, _| Ok(()))
        };
        for round in 0..200 {
            assert_eq!(rename((root, "log"), (root, "log.1")), Ok(()), "{what}: {round}");
            assert_eq!(rename((root, "log.1"), (other, "moved")), Ok(()), "{what}: {round}");
            assert_eq!(rename((other, "moved"), (root, "log")), Ok(()), "{what}: {round}");
            let value = format!("{:03}", round);
            let set = thread.files().set_xattr(node, b"user.a", value.as_bytes(), false, true);
            assert_eq!(set, Ok(()), "{what}: {round}");
        }
        let grown = thread.files().set_xattr(node, b"user.b", &vec![1; 20_000], false, false);
        assert_eq!(grown, Err(Error::NoSpace), "{what}: a larger set of attributes takes space");
        assert_eq!(thread.files().allocate(node, AllocateMode::PunchHole, 5000, 9000), Ok(()), "{what}");
        assert_eq!(thread.files().truncate(node, 12_345), Ok(()), "{what}");
        assert_eq!(thread.files().remove_xattr(node, b"user.a"), Ok(()), "{what}");
        assert_eq!(thread.files().truncate(node, 0), Ok(()), "{what}");
        assert_eq!(thread.unlink(root, b"log", |_| Ok(())), Ok(()), "{what}");
        thread.release(node, 1);
        for name in &names {
            assert_eq!(thread.unlink(filled, name.as_bytes(), |_| Ok(())), Ok(()), "{what}: {name}");
        }
        for (node, name) in [(other, "other"), (filled, "filled")] {
            thread.release(node, 1);
            assert_eq!(thread.remove_directory(root, name.as_bytes(), |_| Ok(())), Ok(()), "{what}: {name}");
        }
        assert!(make(&thread, root, "again").is_ok(), "{what}: the space is back");
        thread.release(root, 1);
    }
}

#[test]
fn threads_go_on_side_by_side_on_a_full_image() {
    const THREADS: usize = 4;
    // Renames take less than the spare blocks hold, even if no log is compacted meanwhile.
    const ROUNDS: u64 = 100;
    const LENGTH: u64 = 16 * BLOCK_BYTES;
    for size in [2 * MIB, 16 * MIB] {
        let image = new_image(size, 0);
        let fs = Attached::new(&image).expect("attaches");
        let thread = fs.enter().expect("enters");
        let root = thread.root().expect("a root");
        let names: Vec<String> = (0..THREADS).map(|index| format!("file{index}")).collect();
        let nodes: Vec<Node> = names.iter().map(|name| file_of(&thread, root, name, LENGTH)).collect();
        fill(&thread, root, Fill::Data);
        std::thread::scope(|scope| {
            for (name, node) in names.iter().zip(&nodes) {
                let fs = &fs;
                scope.spawn(move || {
                    let thread = fs.enter().expect("enters");
                    let longer = format!("{name}.1");
                    for round in 0..ROUNDS {
                        let bytes = vec![round as u8; 9000];
                        let offset = round * 997 % (LENGTH - 9000);
                        assert_eq!(thread.files().write(*node, offset, &bytes), Ok(9000), "{size}: {round}");
                        let (from, to) = if round % 2 == 0 { (name, &longer) } else { (&longer, name) };
                        let (from, to) = ((root, from.as_bytes()), (root, to.as_bytes()));
                        let renamed = thread.rename(from, to, RenameFlags::default(), |_, _| Ok(()));
                        assert_eq!(renamed, Ok(()), "{size}: {round}");
                    }
                });
            }
        });
        nodes.into_iter().for_each(|node| thread.release(node, 1));
        thread.release(root, 1);
    }
}

#[test]
fn the_space_of_a_file_that_one_thread_removes_is_at_once_another_threads() {
    const LENGTH: u64 = 10 * BLOCK_BYTES;
    for size in SIZES {
        let image = new_image(size, 0);
        let fs = Attached::new(&image).expect("attaches");
        let (removes, writes) = (fs.enter().expect("enters"), fs.enter().expect("enters"));
        let root = writes.root().expect("a root");
        for name in ["first", "second"] {
            removes.release(file_of(&removes, root, name, LENGTH), 1);
        }
        fill(&writes, root, Fill::Data);
        for name in ["first", "second"] {
            removes.unlink(root, name.as_bytes(), |_| Ok(())).expect("removes");
            let written = make(&writes, root, &format!("after {name}"));
            let node = written.expect("the name has space");
            // The name may take blocks, too.
            let content = [b'n'; LENGTH as usize / 2];
            assert_eq!(writes.files().write(node, 0, &content), Ok(content.len()), "{size} bytes, {name}");
            writes.release(node, 1);
        }
    }
}
