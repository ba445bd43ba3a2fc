//! The output of dumps.

use crate::support::{DamagedImage, sample, scattered};
use fsck::dump::{DumpError, Target, dump};
use pmem::BLOCK_BYTES;

fn text(damaged: &DamagedImage, target: Target, raw: bool) -> String {
    let mut text = String::new();
    dump(&damaged.region, &target, raw, &mut text).unwrap();
    text
}

fn path(path: &str) -> Target {
    Target::Path { path: path.as_bytes().to_vec() }
}

#[track_caller]
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

#[test]
fn a_superblock_describes_the_image() {
    let image = sample();
    let text = text(&DamagedImage::new(&image), Target::Superblock, true);
    assert_has(
        &text,
        &["superblock at 0x0", "version      1", "verifies", "left cleanly", "superblock's copy at 0x3ff000"],
    );
    assert_has(&text, &["  0x0000000000  5346544345524944"]);
}

#[test]
fn a_path_leads_by_dentries_to_an_inode() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    let text = text(&damaged, path("/docs/deep/second-name"), false);
    let number = damaged.find("docs/deep/second-name").number;
    assert_has(
        &text,
        &["\"docs\", 4 bytes", "\"deep\"", "\"second-name\", 11 bytes", &format!("inode {number} (segment 0)")],
    );
    assert_has(&text, &["links      2", "verifies, current"]);
}

#[test]
fn a_segment_list_locates_the_inodes() {
    let image = scattered();
    let damaged = DamagedImage::new(&image);
    let word = damaged.get(damaged.geometry.segment_table_block * BLOCK_BYTES + 8);
    let text = text(&damaged, Target::Offset { offset: word }, false);
    let block = damaged.inode_offset(256 + 16);
    assert_has(&text, &["list of the blocks of segment 1", &format!("272 to 287        {block:#014x}")]);
}

#[test]
fn a_directory_shows_its_log_and_a_file_its_blocks() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    assert_has(
        &text(&damaged, path("docs"), false),
        &["log page of directory", "append", "\"file-19\"  (invalid)", "cookie 16"],
    );
    let body = text(&damaged, path("body"), false);
    assert_has(
        &body,
        &[
            "block map, root",
            "node of level 2",
            "2 blocks of data",
            "shared",
            "3 blocks of data",
            "extended attributes' block map",
        ],
    );
    assert_has(&text(&damaged, path("short-link"), false), &["target       \"docs/file-01\""]);
}

#[test]
fn a_journal_shows_its_records() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    assert_has(&text(&damaged, Target::Journal, false), &["0 of 2048 slots are not empty"]);
    damaged.set(damaged.geometry.journal_block * 4096, 1 << 33 | 1);
    assert_has(&text(&damaged, Target::Journal, true), &["journal slot 0", "DOES NOT VERIFY", "1 of 2048"]);
}

#[test]
fn any_offset_shows_what_is_there() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    let file = damaged.find("docs/file-01");
    assert_has(&text(&damaged, Target::Offset { offset: file.dentry + 5 }, false), &["dentry at", "file-01"]);
    assert_has(&text(&damaged, Target::Offset { offset: file.slot }, false), &["log page", "file-01"]);
    assert_has(
        &text(&damaged, Target::Offset { offset: damaged.geometry.data_block * 4096 }, false),
        &["words of block"],
    );
}

#[test]
fn what_is_not_there_is_an_error_in_words() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    let error = |target| dump(&damaged.region, &target, false, &mut String::new()).unwrap_err();
    assert_eq!(error(path("docs/none/of/it")), DumpError::NoName("/docs/none".to_owned()));
    assert_eq!(error(Target::Inode { number: 1 << 50 }), DumpError::NoInode(1 << 50));
    assert_eq!(error(Target::Offset { offset: u64::MAX }), DumpError::Outside(u64::MAX));
}
