//! Golden images: this program must read, write and recover images of earlier programs, for every
//! version of the format.
//!
//! An image is kept as text, a line for each nonzero cache line: its offset and its bytes in hex.
//! `cargo test -p directfs-engine golden -- --ignored` rewrites those of the present
//! version and features; a change that requires this changes the format.

use crate::support::*;
use engine::format::{FileKind, LogPage};
use engine::{Changes, FileFlags, NewNode, Node, RenameFlags, Thread};
use std::fmt::Write as _;
use std::path::PathBuf;

const LENGTH: u64 = 2 << 20;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The results of a walk over a tree: a line per name, sorted.
fn describe(thread: &Thread<'_>, directory: Node, prefix: &str, into: &mut Vec<String>) {
    let mut entries = Vec::new();
    thread
        .read_directory(directory, 0, &mut Default::default(), &mut |entry| {
            entries.push(entry.name.to_vec());
            true
        })
        .unwrap();
    for name in entries {
        let node = thread.lookup(directory, &name).unwrap();
        let shown = format!("{prefix}/{}", String::from_utf8_lossy(&name));
        into.push(format!("{shown} {}", describe_file(thread, node)));
        if thread.stat(node).unwrap().kind == FileKind::Directory {
            describe(thread, node, &shown, into);
        }
        thread.release(node, 1);
    }
    into.sort();
}

fn describe_file(thread: &Thread<'_>, node: Node) -> String {
    let a = thread.stat(node).unwrap();
    let mut text = format!(
        "{:?} {:o} links {} owner {}:{} device {:#x} size {} modified {}",
        a.kind, a.mode, a.links, a.uid, a.gid, a.device, a.size_bytes, a.modified_ns
    );
    let mut buffer = vec![0; 4096];
    match a.kind {
        FileKind::Symlink => {
            let length = thread.read_link(node, &mut buffer).unwrap();
            write!(text, " -> {}", String::from_utf8_lossy(&buffer[..length])).unwrap();
        }
        FileKind::Regular => {
            let mut content = vec![0; a.size_bytes as usize];
            assert_eq!(thread.files().read(node, 0, &mut content).unwrap(), content.len());
            write!(text, " crc {:08x}", pmem::crc32c(0, &content)).unwrap();
        }
        _ => {}
    }
    let mut names = Vec::new();
    thread.files().xattr_names(node, &mut |name| names.push(name.to_vec())).unwrap();
    for name in names {
        let length = thread.files().xattr(node, &name, &mut buffer).unwrap();
        write!(text, " {}={}", String::from_utf8_lossy(&name), String::from_utf8_lossy(&buffer[..length])).unwrap();
    }
    text
}

/// A tree with examples of everything in the format.
fn populate(thread: &Thread<'_>) {
    let root = thread.root().unwrap();
    let fixed = |node: Node, second: i64| {
        let changes = Changes { modified_ns: Some(second * 1_000_000_000), ..Default::default() };
        thread.change(node, |_| Ok(changes)).unwrap();
    };
    let make = |directory: Node, name: &str, new: NewNode<'_>| thread.create(directory, name.as_bytes(), &new).unwrap();
    let directory = make(root, "directory", new_directory());
    for (index, length) in [0usize, 1, 4095, 4096, 4097, 20_000].into_iter().enumerate() {
        let node = make(directory, &format!("file of {length} bytes"), NewNode { uid: 1000, gid: 100, ..new_file() });
        let content: Vec<u8> = (0..length).map(|at| (at * 31 + index) as u8).collect();
        thread.files().write(node, 0, &content).unwrap();
        fixed(node, 1_000_000_000 + index as i64);
    }
    let sparse = make(directory, "sparse", new_file());
    thread.files().write(sparse, 300_000, b"far away").unwrap();
    fixed(sparse, 5);
    let long = make(directory, &"long name ".repeat(25), new_file());
    thread.files().set_xattr(long, b"user.colour", b"blue", false, false).unwrap();
    fixed(long, -5);
    thread.link(sparse, root, b"another name of sparse").unwrap();
    let link = |target: &'static str| NewNode {
        kind: FileKind::Symlink,
        permissions: 0o777,
        target: target.as_bytes(),
        ..new_file()
    };
    fixed(make(root, "short link", link("directory/sparse")), 6);
    fixed(make(root, "long link", link("directory/../directory/../directory/../directory/../directory/sparse")), 7);
    fixed(
        make(root, "device", NewNode { kind: FileKind::Character, device: 0x0103, permissions: 0o666, ..new_file() }),
        8,
    );
    fixed(make(root, "pipe", NewNode { kind: FileKind::Fifo, ..new_file() }), 9);
    touch(thread, root, "removed");
    thread.unlink(root, b"removed", permit).unwrap();
    fixed(make(directory, "was elsewhere", new_file()), 10);
    thread.rename((directory, b"was elsewhere"), (root, b"moved"), RenameFlags::default(), permit_rename).unwrap();
    fixed(directory, 11);
}

fn to_text(image: &Image) -> String {
    let region = image.region(pmem::Direct);
    let mut text = String::new();
    for offset in (0..LENGTH).step_by(64) {
        let mut line = [0u8; 64];
        region.read_bytes(offset, &mut line).unwrap();
        if line != [0; 64] {
            write!(text, "{offset:x} ").unwrap();
            line.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
            text.push('\n');
        }
    }
    text
}

fn from_text(text: &str) -> Image {
    let image = Image::new(LENGTH);
    let region = image.region(pmem::Direct);
    let _ = region.stream_zeros(0, LENGTH).unwrap();
    for line in text.lines() {
        let (offset, bytes) = line.split_once(' ').unwrap();
        let bytes: Vec<u8> = (0..64).map(|at| u8::from_str_radix(&bytes[at * 2..at * 2 + 2], 16).unwrap()).collect();
        let _ = region.stream_bytes(u64::from_str_radix(offset, 16).unwrap(), &bytes).unwrap();
    }
    image
}

#[test]
#[ignore = "writes the golden images of the present version anew"]
fn write_golden_images() {
    let image = Image::new(LENGTH);
    let attached = image.attach();
    let mut description = Vec::new();
    {
        let thread = attached.enter();
        populate(&thread);
        describe(&thread, thread.root().unwrap(), "", &mut description);
    }
    assert_eq!(description.join("\n") + "\n", std::fs::read_to_string(path("version1.tree")).unwrap());
    std::fs::write(path("version1-bounds-crashed.lines"), to_text(&image)).unwrap();
    attached.detach();
    std::fs::write(path("version1-bounds-clean.lines"), to_text(&image)).unwrap();
}

/// Bounds of used slots of the log pages of a golden image: as they are on the image, in the order
/// of their offsets.
fn bounds(image: &Image) -> Vec<Option<u64>> {
    let region = image.region(pmem::Direct);
    let pages = (1..LENGTH / 4096).filter_map(|block| region.get(pmem::Pm::<LogPage>::new(block * 4096)).ok());
    pages.filter(|page| page.belongs_to(page.owner.load())).map(LogPage::used_bound).collect()
}

fn is_as_it_was(name: &str, scanned: bool, expected_bounds: [Option<u64>; 2]) {
    let image = from_text(&std::fs::read_to_string(path(name)).unwrap());
    let expected = std::fs::read_to_string(path("version1.tree")).unwrap();
    assert_eq!(bounds(&image), expected_bounds);
    let attached = image.attach();
    assert_eq!(attached.report.scanned, scanned);
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        let mut description = Vec::new();
        describe(&thread, root, "", &mut description);
        assert_eq!(description.join("\n") + "\n", expected);
        // It can be written, too.
        let node = thread.create(root, b"new", &new_file()).unwrap();
        thread.files().write(node, 0, b"content").unwrap();
        thread.unlink(root, b"moved", permit).unwrap();
        let flags = Changes { flags: Some(FileFlags::IMMUTABLE), ..Changes::default() };
        thread.change(node, |_| Ok(flags)).unwrap();
    }
    attached.detach();
    let attached = image.attach();
    let thread = attached.enter();
    let root = thread.root().unwrap();
    let new = thread.stat_name(root, b"new").unwrap();
    assert_eq!((new.size_bytes, new.flags), (7, FileFlags::IMMUTABLE));
    assert!(thread.stat_name(root, b"moved").is_err());
    // What an image does not have at first it never gets: an earlier program may write it again.
    assert_eq!(bounds(&image).iter().any(Option::is_some), expected_bounds[0].is_some());
}

#[test]
fn a_clean_image_of_version_1_is_as_it_was_left() {
    is_as_it_was("version1-clean.lines", false, [None; 2]);
}

#[test]
fn a_crashed_image_of_version_1_is_recovered() {
    is_as_it_was("version1-crashed.lines", true, [None; 2]);
}

#[test]
fn a_clean_image_with_bounds_of_used_slots_is_as_it_was_left() {
    is_as_it_was("version1-bounds-clean.lines", false, [Some(8), Some(16)]);
}

#[test]
fn a_crashed_image_with_bounds_of_used_slots_is_recovered() {
    is_as_it_was("version1-bounds-crashed.lines", true, [Some(8), Some(16)]);
}
