//! Every invariant broken on purpose, one at a time, and found by its name.

mod support;

use engine::format::{FORMAT_VERSION, SlotTag};
use engine::format::{
    FileKind, JOURNAL_SLOT_BYTES, JournalRecord, LogPageKind, MAGIC, Move, PROPERTY_INLINE, Property, ROOT_INODE,
    slot_word,
};
use fsck::FindingKind::{self, *};
use fsck::{EXIT_ERRORS_LEFT, EXIT_OPERATIONAL, Repair, Severity};
use pmem::BLOCK_BYTES;
use std::collections::BTreeSet;
use support::engine_support::Image;
use support::{LOG, PARENT, Plant, SLOTS, STATE, XATTRS, expect_kinds, sample};

/// A way to break one invariant.
struct Story {
    /// The findings that are expected, all of them.
    kinds: &'static [FindingKind],
    /// What the image looks like then.
    title: &'static str,
    plant: fn(&Plant),
}

const fn story(kinds: &'static [FindingKind], title: &'static str, plant: fn(&Plant)) -> Story {
    Story { kinds, title, plant }
}

fn journal(plant: &Plant, index: u64) -> u64 {
    plant.geometry.journal_block * BLOCK_BYTES + index * JOURNAL_SLOT_BYTES
}

fn write_record(plant: &Plant, record: &JournalRecord) {
    let at = journal(plant, 3);
    let words = record.words();
    for (index, word) in words.iter().enumerate() {
        plant.set(at + 8 + index as u64 * 8, *word);
    }
    plant.set(at, JournalRecord::seal(&words));
}

/// The record of a rename that gives `path` a name that exists, and takes `old` away.
fn rename_record(plant: &Plant, path: &str, old: u64) -> JournalRecord {
    let new = plant.find(path);
    JournalRecord {
        moves: [Move { slot: new.slot, dentry: new.dentry, directory: 0, parent: 0 }, Move::default()],
        invalidated: [old, 0],
        moment_ns: 5,
        turn: 0,
    }
}

fn page(plant: &Plant, directory: &str) -> u64 {
    plant.get(plant.find(directory).inode + LOG)
}

/// A free inode of the first segment.
const FREE_INODE: u64 = 200;

/// The block of a body's root.
fn root_block(plant: &Plant, path: &str) -> u64 {
    plant.property(plant.find(path).number).1.root / BLOCK_BYTES
}

/// A block that nothing uses, to be marked as used.
fn unused_block(plant: &Plant) -> u64 {
    plant.geometry.copy_block() - 1
}

/// The block of dentries that a name is in, and the mask of its line.
fn dentry_block(plant: &Plant, path: &str) -> (u64, u64) {
    let dentry = plant.find(path).dentry;
    (dentry / BLOCK_BYTES, 1 << (dentry % BLOCK_BYTES / 64))
}

fn change_listed_lines(plant: &Plant, block: u64, change: impl Fn(u64) -> u64) {
    let first = plant.figures().slab_page;
    let entry = (first + 16..first + BLOCK_BYTES).step_by(16).find(|entry| plant.get(*entry) == block);
    let entry = entry.expect("the block is listed");
    plant.set(entry + 8, change(plant.get(entry + 8)));
    plant.change_snapshot(|_| {});
}

const STORIES: &[Story] = &[
    story(&[SuperblockCopy], "the copy of the superblock was overwritten", |p| {
        p.flip(p.geometry.copy_block() * BLOCK_BYTES + 30, 1);
    }),
    story(&[ReservedNotZero], "something was written behind the superblock", |p| p.set(800, 1)),
    story(&[ReservedNotZero], "the state has bits that mean nothing", |p| p.flip(STATE, 1 << 40)),
    story(&[ReservedNotZero], "a log page has something in its header", |p| p.set(page(p, "docs") + 40, 1)),
    story(&[ReservedNotZero], "an inode has something in its reserved word", |p| p.set(p.find("body").inode + 200, 1)),
    story(&[JournalTorn], "a journal slot is torn", |p| p.set(journal(p, 7), 0x1234_0000_0001)),
    story(&[JournalPending], "a rename was not completed", |p| {
        let old = p.find("docs/file-03").dentry;
        write_record(p, &rename_record(p, "docs/deep/second-name", old));
    }),
    story(&[JournalStale], "a finished rename was not cleared", |p| {
        write_record(p, &rename_record(p, "docs/file-04", 0));
    }),
    story(&[JournalRecord], "a rename names what is not in the data area", |p| {
        write_record(p, &engine::format::JournalRecord { invalidated: [64, 0], ..rename_record(p, "docs/file-04", 0) });
    }),
    story(&[SegmentOffset], "the table names a segment in the fixed areas", |p| {
        p.set(p.geometry.segment_table_block * BLOCK_BYTES + 8, BLOCK_BYTES);
    }),
    story(&[SegmentOverlap], "the table names a segment twice", |p| {
        let table = p.geometry.segment_table_block * BLOCK_BYTES;
        p.set(table + 8, p.get(table));
    }),
    story(&[SegmentGap, SegmentOffset], "a segment follows a gap", |p| {
        p.set(p.geometry.segment_table_block * BLOCK_BYTES + 24, 1);
    }),
    story(&[InodeNumber], "an inode was copied over another", |p| {
        let (from, to) = (p.find("docs/file-01").inode, p.find("docs/file-02").inode);
        for offset in (0..256).step_by(8) {
            p.set(to + offset, p.get(from + offset));
        }
    }),
    story(&[InodeChecksum], "an inode's birth time changed", |p| p.flip(p.find("docs/file-01").inode + 24, 1)),
    story(&[InodeKind], "an inode is of kind 3", |p| p.change_identity(p.find("pipe").number, 3, 0, 1)),
    story(&[InodeZero], "number zero is in use", |p| p.change_identity(0, 8, 0, 1)),
    story(&[FreeInodeNotZero], "a free inode has an access time", |p| p.set(p.inode_offset(FREE_INODE) + 192, 9)),
    story(&[FreeInodeNotZero], "a free inode has a link's target", |p| p.set(p.inode_offset(FREE_INODE) + 216, 9)),
    story(&[PointerEpoch], "a pointer into memory is of the future", |p| {
        p.set(p.find("body").inode + 56, 7 | 99 << 32);
    }),
    story(&[InodeDevice], "a pipe has a device number", |p| p.change_identity(p.find("pipe").number, 1, 5, 1)),
    story(&[DirectoryFields], "a file has a log", |p| p.set(p.find("body").inode + LOG, page(p, "docs"))),
    story(&[NoProperty], "both property entries are gone", |p| {
        let inode = p.find("pipe").inode;
        p.flip(inode + 72, 1);
        p.flip(inode + 136, 1);
    }),
    story(&[PropertyTorn], "the first property entry is torn, the second counts", |p| {
        let file = p.find("docs/file-01").number;
        p.change_property(file, |_| {});
        let inode = p.inode_offset(file);
        let property = p.property(file).1;
        write_entry(p, file, 1, &property);
        p.flip(inode + 64 + 8, 1);
    }),
    story(&[PropertySequence], "the property entries are three changes apart", |p| {
        let file = p.find("docs/file-01").number;
        let property = p.property(file).1;
        write_entry(p, file, 3, &property);
    }),
    story(&[PropertyKind], "a pipe's mode says that it is a socket", |p| {
        p.change_property(p.find("pipe").number, |property| property.mode = 0o140644);
    }),
    story(&[PropertyFlags], "a pipe has an unknown property flag", |p| {
        p.change_property(p.find("pipe").number, |property| property.flags = 8);
    }),
    story(&[PropertyFlags], "a device has its body inline", |p| {
        p.change_property(p.find("null").number, |property| property.flags = PROPERTY_INLINE);
    }),
    story(&[PropertySize], "a short link is longer than its place", |p| {
        p.change_property(p.find("short-link").number, |property| property.size_bytes = 49);
    }),
    story(&[PropertySize], "a directory has a size", |p| {
        p.change_property(p.find("docs").number, |property| property.size_bytes = 1);
    }),
    story(&[PropertyRoot], "a pipe has a body", |p| {
        p.change_property(p.find("pipe").number, |property| property.root = 1 << 20);
    }),
    story(&[LogOffset, Orphan, BlockLeaked, LineLeaked], "a log leads outside", |p| {
        cut_log_to(p, "docs/filled", u64::MAX / BLOCK_BYTES * BLOCK_BYTES);
    }),
    story(&[LogPage, Orphan, BlockLeaked, LineLeaked], "a log leads to another directory's page", |p| {
        cut_log_to(p, "docs/filled", page(p, "docs"));
    }),
    story(&[LogLoop], "a log leads back to its first page", |p| {
        let first = page(p, "docs");
        p.set(first + 24, first);
    }),
    story(&[LogCookies, DentryCookie], "a page begins below its own cookies' order", |p| {
        let first = page(p, "docs");
        p.seal_page(first, p.find("docs").number, 3, LogPageKind::Append);
    }),
    story(&[LogEnd], "a log ends with a compacted page", |p| {
        let first = page(p, "docs");
        p.seal_page(first, p.find("docs").number, 16, LogPageKind::Compacted);
    }),
    story(&[SlotTag], "a slot has an unknown tag", |p| p.set(page(p, "docs") + SLOTS + 400 * 8, 0x40_0002)),
    story(&[SlotOffset], "a slot names the superblock", |p| {
        p.set(page(p, "docs") + SLOTS + 400 * 8, slot_word(64, SlotTag::Dentry));
    }),
    story(&[SlotHalfMade], "a slot names lines without a dentry", |p| {
        let (block, _) = dentry_block(p, "docs/file-00");
        p.set(page(p, "docs") + SLOTS + 400 * 8, slot_word(block * BLOCK_BYTES + 63 * 64, SlotTag::Dentry));
    }),
    story(&[SlotHalfMade, Orphan, LineLeaked], "a byte of a name changed", |p| {
        p.flip(p.find("docs/file-01").dentry + 40, 1)
    }),
    story(&[DentryParent, Orphan, LineLeaked], "a dentry says another directory", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |facts, _| facts.parent = ROOT_INODE);
    }),
    story(&[DentryCookie], "a dentry has the cookie of another slot", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |facts, _| facts.cookie += 100);
    }),
    story(&[DentryCookie, DentryOverlap], "two slots name one dentry", |p| {
        p.set(page(p, "docs") + SLOTS + 400 * 8, p.get(p.find("docs/file-01").slot));
    }),
    story(&[NameInvalid], "a name has a slash in it", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |_, name| name[4] = b'/');
    }),
    story(&[NameInvalid], "a name has a zero byte in it", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |_, name| name[4] = 0);
    }),
    story(&[NameInvalid], "a name is two dots", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |_, name| *name = b"..".to_vec());
    }),
    story(&[NameTwice], "two files have the same name", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |_, name| *name = b"file-02".to_vec());
    }),
    story(&[DentryTarget, Orphan], "a name leads to a number that cannot be", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |facts, _| facts.inode = 1 << 40);
    }),
    story(&[DentryDangling, Orphan], "a name leads to a free inode", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |facts, _| facts.inode = FREE_INODE);
    }),
    story(&[DentryKind], "a name says that a file is a pipe", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |facts, _| facts.kind = FileKind::Fifo);
    }),
    story(&[DentryTurn, Orphan], "a valid word is of another use of its line", |p| {
        p.flip(p.find("docs/file-01").dentry, 2)
    }),
    story(&[RootNamed, Orphan], "a name leads to the root", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |facts, _| {
            (facts.inode, facts.kind) = (ROOT_INODE, FileKind::Directory);
        });
    }),
    story(&[DirectoryParent], "the root's parent is another directory", |p| {
        p.set(p.inode_offset(ROOT_INODE) + PARENT, p.find("docs").number);
    }),
    story(&[DirectoryParent], "a directory's parent is not where its name is", |p| {
        p.set(p.find("docs/deep").inode + PARENT, ROOT_INODE);
    }),
    story(&[DirectoryNames, LinksWrong, Orphan], "a directory has two names", |p| {
        let deep = p.find("docs/deep").number;
        p.change_dentry(p.find("docs/file-01").dentry, |facts, _| {
            (facts.inode, facts.kind) = (deep, FileKind::Directory);
        });
    }),
    story(&[DirectoryCycle, LinksWrong], "a directory stands in itself", |p| {
        // The name of `filled` moves into `filled`, whose only name it is.
        let (filled, moved) = (p.find("docs/filled"), p.find("docs/filled/moved"));
        p.set(filled.inode + PARENT, filled.number);
        p.change_dentry(moved.dentry, |facts, _| (facts.inode, facts.kind) = (filled.number, FileKind::Directory));
        p.change_dentry(filled.dentry, |facts, _| (facts.inode, facts.kind) = (moved.number, FileKind::Regular));
    }),
    story(&[Orphan], "a name is gone and its file is not", |p| {
        p.unmake(p.find("docs/file-01").dentry);
    }),
    story(&[LinksWrong], "a file counts a link too many", |p| {
        p.change_property(p.find("docs/file-00").number, |property| property.links = 3);
    }),
    story(&[LinksWrong], "a directory counts a subdirectory too few", |p| {
        p.change_property(p.find("docs").number, |property| property.links = 3);
    }),
    story(&[MapShape, BlockLeaked], "a root is nine high", |p| {
        p.change_property(p.find("small").number, |property| property.root |= 9);
    }),
    story(&[BlockOutside, BlockLeaked], "a file's block is in the journal", |p| {
        p.change_property(p.find("small").number, |property| property.root = BLOCK_BYTES);
    }),
    story(&[BlockTwice, BlockLeaked], "two files have one block", |p| {
        let root = p.property(p.find("long-link").number).1.root;
        p.change_property(p.find("small").number, |property| property.root = root);
    }),
    story(&[BlockTwice, BlockLeaked], "a file's block is a page of a log", |p| {
        let page = page(p, "docs");
        p.change_property(p.find("small").number, |property| property.root = page);
    }),
    story(&[BeyondEnd], "a file is shorter than its blocks", |p| {
        p.change_property(p.find("body").number, |property| property.size_bytes = 5000);
    }),
    story(&[BlocksWrong], "a file counts a block too many", |p| {
        p.change_property(p.find("body").number, |property| property.blocks += 1);
    }),
    story(&[XattrBody], "a byte of an attribute changed", |p| {
        let root = p.get(p.find("body").inode + XATTRS);
        let block = if root & 15 == 0 { root } else { p.get(root & !4095) };
        p.flip((block & !4095) + 72, 1);
    }),
    story(&[SnapshotChecksum], "a bit of the block map flipped", |p| {
        p.flip(p.geometry.block_map_block * BLOCK_BYTES + 16, 1);
    }),
    story(&[SnapshotChecksum], "the image is of a later epoch than its maps", |p| p.flip(STATE, 1 << 4)),
    story(&[SnapshotFigure], "the number of free blocks is wrong", |p| {
        p.change_snapshot(|figures| figures.blocks_free += 1);
    }),
    story(&[SnapshotFigure], "the number of inodes is wrong", |p| {
        p.change_snapshot(|figures| figures.inodes_used -= 1)
    }),
    story(&[SnapshotFigure], "the number of segments is wrong", |p| p.change_snapshot(|figures| figures.segments += 1)),
    story(&[SnapshotSlabs], "the list of slabs leads outside", |p| {
        let page = p.figures().slab_page;
        p.set(page, 12);
    }),
    story(&[SnapshotSlabs], "a slab that is not listed is marked as listed", |p| {
        p.mark_block(root_block(p, "small"), 2);
        p.change_snapshot(|_| {});
    }),
    story(&[BlockNotMarked], "a file's block is marked free", |p| {
        p.mark_block(root_block(p, "small"), 0);
        p.change_snapshot(|figures| figures.blocks_free += 1);
    }),
    story(&[BlockLeaked], "a block that nothing uses is marked as used", |p| {
        p.mark_block(unused_block(p), 1);
        p.change_snapshot(|figures| figures.blocks_free -= 1);
    }),
    story(&[InodeNotMarked], "an inode in use is marked free", |p| {
        p.mark_inode(p.find("small").number, false);
        p.change_snapshot(|figures| figures.inodes_used -= 1);
    }),
    story(&[InodeLeaked], "a free inode is marked as in use", |p| {
        p.mark_inode(FREE_INODE, true);
        p.change_snapshot(|figures| figures.inodes_used += 1);
    }),
    story(&[LineNotMarked], "a name's line is listed as free", |p| {
        let (block, line) = dentry_block(p, "docs/file-01");
        change_listed_lines(p, block, |lines| lines | line);
    }),
    story(&[LineLeaked], "a free line is not listed", |p| {
        let (block, _) = dentry_block(p, "docs/file-01");
        change_listed_lines(p, block, |lines| lines & (lines - 1));
    }),
];

fn write_entry(plant: &Plant, number: u64, sequence: u32, property: &Property) {
    let at = plant.inode_offset(number) + 64 + (sequence as u64 & 1) * 64;
    let words = property.words();
    for (index, word) in words.iter().enumerate() {
        plant.set(at + 8 + index as u64 * 8, *word);
    }
    let generation = plant.inode(number).generation(number).expect("alive");
    plant.set(at, Property::seal(&words, sequence, number, generation));
}

fn cut_log_to(plant: &Plant, directory: &str, offset: u64) {
    plant.set(plant.find(directory).inode + LOG, offset);
}

#[test]
fn every_corruption_is_found_by_its_name() {
    let mut failures = Vec::new();
    for story in STORIES {
        let image = sample();
        let plant = Plant::new(&image);
        (story.plant)(&plant);
        let report = plant.check();
        let (found, expected): (BTreeSet<_>, BTreeSet<_>) =
            (report.kinds().into_iter().collect(), story.kinds.iter().copied().collect());
        if found != expected {
            failures.push(format!("{}: expected {expected:?}, found\n{report}", story.title));
        }
        for kind in story.kinds {
            let severity = report.findings.iter().find(|finding| finding.kind == *kind).map(|finding| finding.severity);
            assert!(severity.is_none_or(|severity| severity == kind.severity(true)));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_kind_has_a_story() {
    let told: BTreeSet<_> = STORIES.iter().flat_map(|story| story.kinds).copied().collect();
    let refusals = [
        ImageTooShort,
        NotAnImage,
        UnknownVersion,
        UnknownFeatures,
        SuperblockChecksum,
        ImageTruncated,
        SuperblockGeometry,
        RootMissing,
        InodeGeneration,
    ];
    let untold: Vec<_> =
        FindingKind::ALL.iter().filter(|kind| !told.contains(kind) && !refusals.contains(kind)).collect();
    assert!(untold.is_empty(), "{untold:?}");
}

#[test]
fn what_a_crash_may_leave_is_a_note_on_an_image_that_was_not_left() {
    type Case = (FindingKind, fn(&Plant));
    let cases: &[Case] = &[
        (SlotHalfMade, |p| {
            let (block, _) = dentry_block(p, "docs/file-00");
            p.set(page(p, "docs") + SLOTS + 400 * 8, slot_word(block * BLOCK_BYTES + 63 * 64, SlotTag::Dentry));
        }),
        (InodeChecksum, |p| p.set(p.inode_offset(FREE_INODE), 5 << 32 | 1)),
        (NoProperty, |p| {
            p.set(p.inode_offset(FREE_INODE) + 8, FREE_INODE);
            p.change_identity(FREE_INODE, 8, 0, 1);
        }),
        (FreeInodeNotZero, |p| p.set(p.inode_offset(FREE_INODE) + 216, 9)),
        (Orphan, |p| p.unmake(p.find("body").dentry)),
        (LinksWrong, |p| p.change_property(p.find("docs/file-00").number, |property| property.links = 3)),
        (BeyondEnd, |p| p.change_property(p.find("body").number, |property| property.size_bytes = 5000)),
        (JournalTorn, |p| p.set(journal(p, 7), 0x1234_0000_0001)),
        (JournalStale, |p| write_record(p, &rename_record(p, "docs/file-04", 0))),
    ];
    for (kind, plant_it) in cases {
        let image = sample();
        let plant = Plant::new(&image);
        plant_it(&plant);
        plant.unclean();
        let report = plant.check();
        expect_kinds(&report, &[*kind]);
        assert!(report.is_sound(), "{report}");
        assert!(report.findings.iter().all(|finding| finding.severity == Severity::Note), "{report}");
        // And recovery takes all of it away.
        image.attach().detach();
        expect_kinds(&plant.check(), &[]);
    }
}

#[test]
fn a_pending_rename_is_seen_as_it_will_be() {
    let image = sample();
    let plant = Plant::new(&image);
    // A second name for the same file, as it is after the new slot and before the old name goes.
    let (old, new) = (plant.find("docs/file-03"), plant.find("docs/deep/second-name"));
    plant.change_dentry(new.dentry, |facts, _| facts.inode = old.number);
    plant.change_property(plant.find("docs/file-00").number, |property| property.links = 1);
    write_record(&plant, &rename_record(&plant, "docs/deep/second-name", old.dentry));
    plant.unclean();
    let report = plant.check();
    expect_kinds(&report, &[JournalPending]);
    assert_eq!(report.findings[0].repair, Repair::Recover);
    let attached = image.attach();
    assert_eq!(attached.report.renames, 1);
    attached.detach();
    expect_kinds(&plant.check(), &[]);
}

#[test]
fn a_superblock_that_cannot_be_used_is_refused() {
    let cases: &[(FindingKind, u64, u64, i32)] = &[
        (NotAnImage, 0, MAGIC ^ 1, EXIT_OPERATIONAL),
        (UnknownVersion, 88, FORMAT_VERSION + 1, EXIT_OPERATIONAL),
        (UnknownFeatures, 112, 4, EXIT_OPERATIONAL),
        (ImageTruncated, 128, 1 << 40, EXIT_OPERATIONAL),
        (SuperblockGeometry, 144, 2, EXIT_OPERATIONAL),
    ];
    for (kind, offset, word, exit_code) in cases {
        let image = sample();
        let plant = Plant::new(&image);
        plant.set(*offset, *word);
        let superblock = plant.region.first::<engine::format::Superblock>().unwrap();
        plant.set(200, superblock.description_checksum());
        let report = plant.check();
        expect_kinds(&report, &[*kind]);
        assert_eq!(report.exit_code(), *exit_code, "{report}");
    }
}

#[test]
fn a_damaged_superblock_is_replaced_by_its_copy_for_the_check() {
    let image = sample();
    let plant = Plant::new(&image);
    plant.flip(24, 1);
    let report = plant.check();
    expect_kinds(&report, &[SuperblockChecksum]);
    assert!(report.checked && report.counts.names > 0);
    assert_eq!(report.exit_code(), EXIT_ERRORS_LEFT);
    assert_eq!(report.findings[0].repair, Repair::RestoreSuperblock { copy: plant.geometry.copy_block() });
    plant.flip(plant.geometry.copy_block() * BLOCK_BYTES + 24, 1);
    assert_eq!(plant.check().exit_code(), EXIT_OPERATIONAL);
}

#[test]
fn an_image_without_a_root_is_reported_as_such() {
    let image = Image::new(support::IMAGE_BYTES);
    let plant = Plant::new(&image);
    plant.set(plant.inode_offset(ROOT_INODE), 1);
    let report = plant.check();
    assert!(report.kinds().contains(&RootMissing), "{report}");
    let image = Image::new(support::IMAGE_BYTES);
    let plant = Plant::new(&image);
    plant.change_identity(ROOT_INODE, 4, 0, 0);
    let report = plant.check();
    assert!(report.kinds().contains(&InodeGeneration), "{report}");
}

#[test]
fn a_finding_says_inode_path_place_and_name() {
    let image = sample();
    let plant = Plant::new(&image);
    plant.change_property(plant.find("docs/deep").number, |property| property.links = 9);
    let report = plant.check();
    let text = report.findings[0].to_string();
    let number = plant.find("docs/deep").number;
    assert_eq!(
        text,
        format!("error: inode {number} (/docs/deep): it says that it has 9 links, and 2 lead to it [links-wrong]")
    );
}

#[test]
fn more_findings_than_anybody_reads_are_counted_only() {
    let image = sample();
    let plant = Plant::new(&image);
    for number in 100..200 {
        plant.set(plant.inode_offset(number) + 192, 1);
    }
    let options = fsck::Options { findings_max: 10, ..fsck::Options::default() };
    let report = fsck::check(&plant.region, &options, &mut |_| {});
    assert_eq!((report.findings.len(), report.findings_dropped, report.errors), (10, 90, 100));
}
