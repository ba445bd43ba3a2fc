//! Injected corruptions: every invariant is broken by itself, and its finding must be reported.

use crate::support::corruptions::{CORRUPTIONS, FREE_INODE, dentry_block, journal, page, rename_record, write_record};
use crate::support::engine_support::Image;
use crate::support::{DamagedImage, SLOTS, expect_kinds, sample};
use engine::format::{FORMAT_VERSION, MAGIC, ROOT_INODE, SlotTag, slot_word};
use fsck::FindingKind::{self, *};
use fsck::{EXIT_ERRORS_LEFT, EXIT_OPERATIONAL, Repair, Severity};
use pmem::BLOCK_BYTES;
use std::collections::BTreeSet;

#[test]
fn every_corruption_is_found_by_its_name() {
    let mut failures = Vec::new();
    for corruption in CORRUPTIONS {
        let image = sample();
        let damaged = DamagedImage::new(&image);
        (corruption.damage)(&damaged);
        let report = damaged.check();
        let (found, expected): (BTreeSet<_>, BTreeSet<_>) =
            (report.kinds().into_iter().collect(), corruption.kinds.iter().copied().collect());
        if found != expected {
            failures.push(format!("{}: expected {expected:?}, found\n{report}", corruption.title));
        }
        for kind in corruption.kinds {
            let severity = report.findings.iter().find(|finding| finding.kind == *kind).map(|finding| finding.severity);
            assert!(severity.is_none_or(|severity| severity == kind.severity(true)));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_kind_has_a_corruption() {
    let result: BTreeSet<_> = CORRUPTIONS.iter().flat_map(|corruption| corruption.kinds).copied().collect();
    let refusals = [
        ImageTooShort,
        NotAnImage,
        UnknownVersion,
        UnknownFeatures,
        SuperblockChecksum,
        ImageTruncated,
        SuperblockGeometry,
        // See `what_bad_blocks_hold_is_named`.
        MetadataLost,
        ContentLost,
        RootMissing,
        InodeGeneration,
        // Only reported where a crash could be the cause but is not.
        InodeDamaged,
        OrphanDirectory,
    ];
    let untold: Vec<_> =
        FindingKind::ALL.iter().filter(|kind| !result.contains(kind) && !refusals.contains(kind)).collect();
    assert!(untold.is_empty(), "{untold:?}");
}

#[test]
fn what_bad_blocks_hold_is_named() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    let check = |lost: std::ops::Range<u64>| {
        let options = fsck::Options { lost: std::slice::from_ref(&lost), ..fsck::Options::default() };
        fsck::check(&damaged.region, &options, &mut |_| {})
    };
    let blocks = damaged.geometry.blocks;
    let whole = check(0..blocks * BLOCK_BYTES);
    let of_content = || whole.findings.iter().filter(|finding| finding.kind == ContentLost);
    assert!(of_content().any(|finding| finding.path.as_deref() == Some("/body")), "{whole}");
    assert!(whole.findings.iter().any(|finding| finding.kind == MetadataLost), "{whole}");
    assert_eq!(whole.exit_code(), EXIT_ERRORS_LEFT);
    let table = damaged.geometry.segment_table_block * BLOCK_BYTES;
    let table = check(table + 512..table + 1024);
    assert_eq!(table.findings.iter().map(|finding| finding.kind).collect::<Vec<_>>(), [MetadataLost], "{table}");
    // The middle of the free space.
    let free = (damaged.geometry.data_end() - 3) * BLOCK_BYTES;
    assert!(check(free..free + 2 * BLOCK_BYTES).findings.is_empty(), "no use, no loss");
}

#[test]
fn a_directory_with_names_that_lost_its_own_is_damage_also_on_an_image_that_was_not_left() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    damaged.invalidate_at(damaged.find("docs").dentry);
    damaged.unclean();
    let report = damaged.check();
    assert!(report.kinds().contains(&OrphanDirectory) && !report.is_sound(), "{report}");
}

#[test]
fn what_a_crash_may_leave_is_a_note_on_an_image_that_was_not_left() {
    type Case = (FindingKind, fn(&DamagedImage));
    let cases: &[Case] = &[
        (SlotHalfMade, |p| {
            let (block, _) = dentry_block(p, "docs/file-00");
            p.set(page(p, "docs") + SLOTS + 30 * 8, slot_word(block * BLOCK_BYTES + 63 * 64, SlotTag::Dentry));
        }),
        (LogUsed, |p| p.bound_page(page(p, "docs"), 8)),
        (InodeChecksum, |p| p.set(p.inode_offset(FREE_INODE), 5 << 32 | 1)),
        (NoProperty, |p| {
            p.set(p.inode_offset(FREE_INODE) + 8, FREE_INODE);
            p.change_identity(FREE_INODE, 8, 0, 1);
        }),
        (FreeInodeNotZero, |p| p.set(p.inode_offset(FREE_INODE) + 216, 9)),
        (Orphan, |p| p.invalidate_at(p.find("body").dentry)),
        (LinksWrong, |p| p.change_property(p.find("docs/file-00").number, |property| property.links = 3)),
        (BeyondEnd, |p| p.change_property(p.find("body").number, |property| property.size_bytes = 5000)),
        (JournalTorn, |p| p.set(journal(p, 7), 0x1234_0000_0001)),
        (JournalStale, |p| write_record(p, &rename_record(p, "docs/file-04", 0))),
    ];
    for (kind, plant_it) in cases {
        let image = sample();
        let damaged = DamagedImage::new(&image);
        plant_it(&damaged);
        damaged.unclean();
        let report = damaged.check();
        expect_kinds(&report, &[*kind]);
        assert!(report.is_sound(), "{report}");
        assert!(report.findings.iter().all(|finding| finding.severity == Severity::Note), "{report}");
        // Recovery removes all of it.
        image.attach().detach();
        expect_kinds(&damaged.check(), &[]);
    }
}

#[test]
fn a_pending_rename_is_seen_as_it_will_be() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    // A second name for the same file: the state after the new slot is written and before the old
    // name is invalidated.
    let (old, new) = (damaged.find("docs/file-03"), damaged.find("docs/deep/second-name"));
    damaged.change_dentry(new.dentry, |facts, _| facts.inode = old.number);
    damaged.change_property(damaged.find("docs/file-00").number, |property| property.links = 1);
    write_record(&damaged, &rename_record(&damaged, "docs/deep/second-name", old.dentry));
    damaged.unclean();
    let report = damaged.check();
    expect_kinds(&report, &[JournalPending]);
    assert_eq!(report.findings[0].repair, Repair::Recover);
    let attached = image.attach();
    assert_eq!(attached.report.renames, 1);
    attached.detach();
    expect_kinds(&damaged.check(), &[]);
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
        let damaged = DamagedImage::new(&image);
        damaged.set(*offset, *word);
        let superblock = damaged.region.first::<engine::format::Superblock>().unwrap();
        damaged.set(200, superblock.description_checksum());
        let report = damaged.check();
        expect_kinds(&report, &[*kind]);
        assert_eq!(report.exit_code(), *exit_code, "{report}");
    }
}

#[test]
fn a_damaged_superblock_is_replaced_by_its_copy_for_the_check() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    damaged.flip(24, 1);
    let report = damaged.check();
    expect_kinds(&report, &[SuperblockChecksum]);
    assert!(report.checked && report.counts.names > 0);
    assert_eq!(report.exit_code(), EXIT_ERRORS_LEFT);
    assert_eq!(report.findings[0].repair, Repair::RestoreSuperblock { copy: damaged.geometry.copy_block() });
    damaged.flip(damaged.geometry.copy_block() * BLOCK_BYTES + 24, 1);
    assert_eq!(damaged.check().exit_code(), EXIT_OPERATIONAL);
}

#[test]
fn an_image_without_a_root_is_reported_as_such() {
    let image = Image::new(crate::support::IMAGE_BYTES);
    let damaged = DamagedImage::new(&image);
    damaged.set(damaged.inode_offset(ROOT_INODE), 1);
    let report = damaged.check();
    assert!(report.kinds().contains(&RootMissing), "{report}");
    let image = Image::new(crate::support::IMAGE_BYTES);
    let damaged = DamagedImage::new(&image);
    damaged.change_identity(ROOT_INODE, 4, 0, 0);
    let report = damaged.check();
    assert!(report.kinds().contains(&InodeGeneration), "{report}");
}

#[test]
fn a_finding_reports_inode_path_location_and_name() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    damaged.change_property(damaged.find("docs/deep").number, |property| property.links = 9);
    let report = damaged.check();
    let text = report.findings[0].to_string();
    let number = damaged.find("docs/deep").number;
    assert_eq!(
        text,
        format!("error: inode {number} (/docs/deep): its link count is 9, but it has 2 links [links-wrong]")
    );
}

#[test]
fn findings_beyond_the_limit_are_only_counted() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    for number in 100..200 {
        damaged.set(damaged.inode_offset(number) + 192, 1);
    }
    let options = fsck::Options { findings_max: 10, ..fsck::Options::default() };
    let report = fsck::check(&damaged.region, &options, &mut |_| {});
    assert_eq!((report.findings.len(), report.findings_dropped, report.errors), (10, 90, 100));
}
