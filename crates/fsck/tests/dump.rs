//! The output of dumps.

mod support;

use fsck::dump::{DumpError, Target, dump};
use pmem::BLOCK_BYTES;
use support::{Plant, sample, scattered};

fn text(plant: &Plant, target: Target, raw: bool) -> String {
    let mut text = String::new();
    dump(&plant.region, &target, raw, &mut text).unwrap();
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
fn a_superblock_says_what_the_image_is() {
    let image = sample();
    let text = text(&Plant::new(&image), Target::Superblock, true);
    assert_has(
        &text,
        &["superblock at 0x0", "version      1", "verifies", "left cleanly", "superblock's copy at 0x3ff000"],
    );
    assert_has(&text, &["  0x0000000000  5346544345524944"]);
}

#[test]
fn a_path_leads_by_dentries_to_an_inode() {
    let image = sample();
    let plant = Plant::new(&image);
    let text = text(&plant, path("/docs/deep/second-name"), false);
    let number = plant.find("docs/deep/second-name").number;
    assert_has(
        &text,
        &["\"docs\", 4 bytes", "\"deep\"", "\"second-name\", 11 bytes", &format!("inode {number} (segment 0)")],
    );
    assert_has(&text, &["links      2", "verifies, current"]);
}

#[test]
fn a_list_says_where_the_inodes_of_a_segment_are() {
    let image = scattered();
    let plant = Plant::new(&image);
    let word = plant.get(plant.geometry.segment_table_block * BLOCK_BYTES + 8);
    let text = text(&plant, Target::Offset { offset: word }, false);
    let block = plant.inode_offset(256 + 16);
    assert_has(&text, &["list of the blocks of segment 1", &format!("272 to 287        {block:#014x}")]);
}

#[test]
fn a_directory_shows_its_log_and_a_file_its_blocks() {
    let image = sample();
    let plant = Plant::new(&image);
    assert_has(
        &text(&plant, path("docs"), false),
        &["log page of directory", "append", "\"file-19\"  (invalid)", "cookie 16"],
    );
    let body = text(&plant, path("body"), false);
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
    assert_has(&text(&plant, path("short-link"), false), &["target       \"docs/file-01\""]);
}

#[test]
fn a_journal_shows_its_records() {
    let image = sample();
    let plant = Plant::new(&image);
    assert_has(&text(&plant, Target::Journal, false), &["0 of 2048 slots are not empty"]);
    plant.set(plant.geometry.journal_block * 4096, 1 << 33 | 1);
    assert_has(&text(&plant, Target::Journal, true), &["journal slot 0", "DOES NOT VERIFY", "1 of 2048"]);
}

#[test]
fn any_offset_shows_what_is_there() {
    let image = sample();
    let plant = Plant::new(&image);
    let file = plant.find("docs/file-01");
    assert_has(&text(&plant, Target::Offset { offset: file.dentry + 5 }, false), &["dentry at", "file-01"]);
    assert_has(&text(&plant, Target::Offset { offset: file.slot }, false), &["log page", "file-01"]);
    assert_has(&text(&plant, Target::Offset { offset: plant.geometry.data_block * 4096 }, false), &["words of block"]);
}

#[test]
fn what_is_not_there_is_an_error_in_words() {
    let image = sample();
    let plant = Plant::new(&image);
    let error = |target| dump(&plant.region, &target, false, &mut String::new()).unwrap_err();
    assert_eq!(error(path("docs/none/of/it")), DumpError::NoName("/docs/none".to_owned()));
    assert_eq!(error(Target::Inode { number: 1 << 50 }), DumpError::NoInode(1 << 50));
    assert_eq!(error(Target::Offset { offset: u64::MAX }), DumpError::Outside(u64::MAX));
}
