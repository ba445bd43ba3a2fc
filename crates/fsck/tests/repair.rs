//! Repair tests: every injected corruption is repaired, and everything reachable before stays
//! reachable with the same bytes.

use crate::support::corruptions::{CORRUPTIONS, Corruption};
use crate::support::engine_support::{Attached, Image, new_file};
use crate::support::{DamagedImage, IMAGE_BYTES, LOG, SLOTS, expect_kinds, sample, scattered};
use engine::Node;
use engine::format::{FileKind, Property, ROOT_INODE, SegmentEntry, State, Superblock};
use fsck::{EXIT_CORRECTED, Finding, FindingKind, Options, Repair, Repaired, Severity, repair};
use pmem::{BLOCK_BYTES, CrashImage, Direct, Grain, Memory, Recorder};
use std::collections::BTreeMap;
use std::sync::Arc;

const NOW_NS: i64 = 1_700_000_100_000_000_000;

/// A file without its name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct File {
    kind: FileKind,
    contents: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// All files below the root, by inode number.
type Files = BTreeMap<u64, File>;

fn files(attached: &Attached) -> Files {
    let thread = attached.enter();
    let root = thread.root().unwrap();
    let mut files = Files::new();
    let mut waiting: Vec<Node> = vec![root];
    while let Some(node) = waiting.pop() {
        let stat = thread.stat(node).unwrap();
        let mut contents = Vec::new();
        match stat.kind {
            FileKind::Directory => {
                let mut names = Vec::new();
                let done = thread.read_directory(node, 0, &mut Default::default(), &mut |entry| {
                    names.push(entry.name.to_vec());
                    true
                });
                done.unwrap();
                for name in names {
                    waiting.push(thread.lookup(node, &name).unwrap());
                }
            }
            FileKind::Symlink => {
                contents.resize(BLOCK_BYTES as usize, 0);
                let length = thread.read_link(node, &mut contents).unwrap();
                contents.truncate(length);
            }
            // The sample's holes are large: only the beginning and the end are compared.
            FileKind::Regular => {
                for start in [0, stat.size_bytes.saturating_sub(4096)] {
                    let mut part = vec![0; 40_000];
                    let count = thread.files().read(node, start, &mut part).unwrap();
                    contents.extend_from_slice(&part[..count]);
                }
            }
            _ => {}
        }
        let mut names = Vec::new();
        thread.files().xattr_names(node, &mut |name| names.push(name.to_vec())).unwrap();
        let values = names.into_iter().map(|name| {
            let mut value = vec![0; 1 << 16];
            let length = thread.files().xattr(node, &name, &mut value).unwrap();
            value.truncate(length);
            (name, value)
        });
        files.insert(node.number, File { kind: stat.kind, contents, xattrs: values.collect() });
        thread.release(node, 1);
    }
    files
}

fn repair_all(damaged: &DamagedImage) -> Repaired {
    repair_with(damaged, &mut |_| true)
}

fn repair_with(damaged: &DamagedImage, decide: &mut dyn FnMut(&Finding) -> bool) -> Repaired {
    repair(&damaged.region, &Options::default(), NOW_NS, decide, &mut |_| {})
}

/// The files of the sample, and the numbers of those whose contents a corruption destroys.
fn expected(corruption: &Corruption) -> (Files, Vec<u64>) {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    let destroyed = corruption.destroys.iter().map(|path| damaged.find(path).number).collect();
    let attached = image.attach();
    let files = files(&attached);
    attached.detach();
    (files, destroyed)
}

/// The files that are missing or changed in a repaired image.
fn losses(image: &Image, expected: &Files, destroyed: &[u64]) -> Vec<String> {
    let attached = image.attach();
    assert_eq!(attached.report.damaged, 0);
    let found = files(&attached);
    attached.detach();
    let kept = expected.iter().filter(|(number, _)| !destroyed.contains(number));
    let lost = kept.filter(|(number, file)| found.get(number) != Some(file));
    lost.map(|(number, file)| format!("inode {number}, {:?}: {:?}", file.kind, found.get(number))).collect()
}

#[test]
fn every_corruption_is_repaired_and_loses_nothing_that_could_be_reached() {
    let mut failures = Vec::new();
    for corruption in CORRUPTIONS {
        let (before, destroyed) = expected(corruption);
        let image = sample();
        let damaged = DamagedImage::new(&image);
        (corruption.damage)(&damaged);
        let harmless = damaged.check().is_sound();
        let repaired = repair_all(&damaged);
        let after = damaged.check();
        if !after.is_sound() || !repaired.failed.is_empty() {
            failures.push(format!(
                "{}: remaining\n{after}{:?}\nof {:?}",
                corruption.title, repaired.failed, repaired.repaired
            ));
            continue;
        }
        assert_eq!(repaired.exit_code(), if harmless { 0 } else { EXIT_CORRECTED }, "{}", corruption.title);
        let lost = losses(&image, &before, &destroyed);
        let left = damaged.check();
        if !lost.is_empty() || !left.is_sound() {
            failures.push(format!(
                "{}: lost\n{}\nof {:?}\n{left}",
                corruption.title,
                lost.join("\n"),
                repaired.repaired
            ));
        }
    }
    assert!(failures.is_empty(), "{} corruptions\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn a_sound_image_is_not_touched() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    let bytes = || {
        let mut bytes = vec![0; IMAGE_BYTES as usize];
        damaged.region.read_bytes(0, &mut bytes).unwrap();
        bytes
    };
    let before = bytes();
    let repaired = repair_all(&damaged);
    assert_eq!((repaired.exit_code(), repaired.repaired.len()), (0, 0));
    assert!(before == bytes());
}

#[test]
fn what_is_refused_is_not_touched() {
    for corruption in CORRUPTIONS {
        let image = sample();
        let damaged = DamagedImage::new(&image);
        (corruption.damage)(&damaged);
        let mut before = vec![0; IMAGE_BYTES as usize];
        damaged.region.read_bytes(0, &mut before).unwrap();
        let repaired = repair_with(&damaged, &mut |_| false);
        let mut after = vec![0; IMAGE_BYTES as usize];
        damaged.region.read_bytes(0, &mut after).unwrap();
        assert!(before == after && repaired.repaired.is_empty(), "{}", corruption.title);
        assert_eq!(repaired.exit_code(), damaged.check().exit_code());
    }
}

#[test]
fn preening_takes_no_name_away() {
    for corruption in CORRUPTIONS {
        let (before, destroyed) = expected(corruption);
        let image = sample();
        let damaged = DamagedImage::new(&image);
        (corruption.damage)(&damaged);
        let repaired = repair_with(&damaged, &mut Finding::is_safe_to_repair);
        if repaired.after.is_sound() {
            assert_eq!(losses(&image, &before, &destroyed), Vec::<String>::new(), "{}", corruption.title);
        }
        assert!(!repaired.repaired.iter().any(|finding| matches!(
            finding.repair,
            Repair::Invalidate { .. } | Repair::CutLog { .. } | Repair::FreeInode { .. } | Repair::DropXattrs { .. }
        )));
    }
}

#[test]
fn a_damaged_unclean_image_keeps_every_file_that_has_a_name() {
    // A file without a name looks like a removed one, whose inode stays until it is reused.
    let named_otherwise = [FindingKind::DentryTarget, FindingKind::RootNamed, FindingKind::DirectoryNames];
    let mut failures = Vec::new();
    for corruption in
        CORRUPTIONS.iter().filter(|corruption| !corruption.kinds.iter().any(|kind| named_otherwise.contains(kind)))
    {
        let (before, destroyed) = expected(corruption);
        let image = sample();
        let damaged = DamagedImage::new(&image);
        (corruption.damage)(&damaged);
        damaged.unclean();
        let errors = damaged.check().errors;
        let repaired = repair_all(&damaged);
        // A mere trace of a crash is left to recovery.
        assert_eq!(repaired.needs_recovery, errors == 0, "{}", corruption.title);
        if errors == 0 {
            continue;
        }
        let after = damaged.check();
        let lost = if after.is_sound() { losses(&image, &before, &destroyed) } else { vec![after.to_string()] };
        if !lost.is_empty() {
            failures.push(format!("{}: {}\nof {:?}", corruption.title, lost.join("\n"), repaired.repaired));
        }
    }
    assert!(failures.is_empty(), "{} corruptions\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn a_repair_that_was_interrupted_anywhere_is_finished_by_the_next_one() {
    let mut failures = Vec::new();
    let mut states = 0;
    for corruption in CORRUPTIONS {
        let (before, destroyed) = expected(corruption);
        let image = sample();
        let damaged = DamagedImage::new(&image);
        (corruption.damage)(&damaged);
        let mut initial = vec![0; IMAGE_BYTES as usize];
        damaged.region.read_bytes(0, &mut initial).unwrap();
        let recorder = Arc::new(Recorder::new());
        recorder.start();
        let watched = image.region(recorder.clone());
        repair(&watched, &Options::default(), NOW_NS, &mut |_| true, &mut |_| {});
        let log = recorder.take();
        let scratch = Image::new(IMAGE_BYTES);
        let mut crash = CrashImage::new(initial, &log);
        let mut fence = 0;
        'fences: loop {
            let mut bytes = crash.durable().to_vec();
            for state in crash.states(Grain::Word, 4, 3, 7) {
                states += 1;
                state.apply(&mut bytes);
                let _ = scratch.region(Direct).write_bytes(0, &bytes).unwrap();
                state.undo(&mut bytes);
                let again = DamagedImage::new_unchecked(&scratch, damaged.geometry);
                let repaired = repair_all(&again);
                let after = again.check();
                let lost =
                    if after.is_sound() { losses(&scratch, &before, &destroyed) } else { vec![after.to_string()] };
                if !lost.is_empty() || !repaired.failed.is_empty() {
                    let lost = lost.join("\n");
                    failures.push(format!(
                        "{}, fence {fence}, {:?}: {lost}\n{:?}",
                        corruption.title,
                        state.id(),
                        repaired.repaired
                    ));
                    break 'fences;
                }
            }
            fence += 1;
            if !crash.advance() {
                break;
            }
        }
    }
    println!("{states} states");
    assert!(failures.is_empty(), "{} of {} corruptions\n{}", failures.len(), CORRUPTIONS.len(), failures.join("\n"));
}

/// The image as a region for a single use.
fn region_of<M: Memory>(image: &Image, memory: M) -> pmem::Region<M> {
    image.region(memory)
}

#[test]
fn a_damaged_superblock_is_restored_wherever_its_copy_is() {
    for (lengthened, length_is_damaged) in [(false, false), (true, false), (true, true)] {
        let bytes = if lengthened { IMAGE_BYTES + (1 << 20) } else { IMAGE_BYTES };
        let image = Image::new(IMAGE_BYTES);
        let mut contents = vec![0; IMAGE_BYTES as usize];
        image.region(Direct).read_bytes(0, &mut contents).unwrap();
        let longer = Image::new(bytes);
        let region = region_of(&longer, Direct);
        let _ = region.stream_zeros(0, bytes).unwrap();
        let _ = region.write_bytes(0, &contents).unwrap();
        let _ = region.write_bytes(if length_is_damaged { 128 } else { 30 }, &[0xff, 0xee, 0xdd]).unwrap();
        assert!(Superblock::check(&region, true).is_err());
        let repaired = repair(&region, &Options::default(), NOW_NS, &mut |_| true, &mut |_| {});
        assert!(repaired.after.is_sound(), "{}", repaired.after);
        assert!(Superblock::check(&region, true).is_ok());
    }
}

#[test]
fn a_root_that_is_gone_comes_back_with_its_names() {
    for words in [&[0][..], &[0, 2, 3], &[8], &[16], &[0, 8, 9, 16, 17]] {
        let (before, _) = expected(&CORRUPTIONS[0]);
        let image = sample();
        let damaged = DamagedImage::new(&image);
        let root = damaged.inode_offset(ROOT_INODE);
        words.iter().for_each(|word| damaged.set(root + word * 8, 0x1234_5678_9abc_def0));
        let repaired = repair_all(&damaged);
        assert!(repaired.after.is_sound(), "{words:?}\n{}{:?}", repaired.after, repaired.failed);
        assert_eq!(losses(&image, &before, &[]), Vec::<String>::new(), "{words:?}");
    }
}

#[test]
fn a_segment_whose_place_was_forgotten_is_found_again() {
    let (before, _) = expected(&CORRUPTIONS[0]);
    let image = sample();
    let damaged = DamagedImage::new(&image);
    damaged.set(damaged.geometry.segment_table_block * BLOCK_BYTES, 0x7777_0000);
    let repaired = repair_all(&damaged);
    assert!(repaired.after.is_sound(), "{}", repaired.after);
    assert_eq!(losses(&image, &before, &[]), Vec::<String>::new());
}

#[test]
fn a_segment_whose_blocks_lie_apart_is_found_again() {
    /// Damages an image, given the offsets of the segment's entry and of its list.
    type Damage = fn(&DamagedImage, u64, u64);
    let damages: [(&str, Damage); 3] = [
        ("place", |damaged, entry, _| damaged.set(entry, 0x7777_0001)),
        ("seal", |damaged, _, list| damaged.flip(list, 1 << 40)),
        ("block", |damaged, _, list| damaged.set(list + 64 + 3 * 8, 0)),
    ];
    for (title, damage) in damages {
        let image = scattered();
        let before = {
            let attached = image.attach();
            let before = files(&attached);
            attached.detach();
            before
        };
        let damaged = DamagedImage::new(&image);
        let entry = damaged.geometry.segment_table_block * BLOCK_BYTES + 8;
        let Some(SegmentEntry::List(list)) = SegmentEntry::from_word(damaged.get(entry)) else {
            panic!("it is listed")
        };
        damage(&damaged, entry, list);
        let found = damaged.check();
        assert!(!found.is_sound(), "{title}");
        let repaired = repair_all(&damaged);
        assert!(repaired.after.is_sound(), "{title}\n{found}{}{:?}", repaired.after, repaired.failed);
        let attached = image.attach();
        assert!(files(&attached) == before, "{title}");
        attached.detach();
    }
}

#[test]
fn an_inline_extent_is_checked_and_repaired() {
    type Damage = fn(&mut Property);
    let damages: [(Damage, &[FindingKind], usize); 4] = [
        (|property| property.size_bytes = 5000, &[FindingKind::BeyondEnd], 5000),
        (|property| property.root -= 1 << 52, &[FindingKind::BlocksWrong, FindingKind::BlockLeaked], 8192),
        (|property| property.root |= 1 << 62, &[FindingKind::MapShape, FindingKind::BlockLeaked], 0),
        (|property| property.root |= 1 << 4, &[FindingKind::MapShape, FindingKind::BlockLeaked], 0),
    ];
    for (damage, kinds, bytes_left) in damages {
        let image = Image::new(IMAGE_BYTES);
        let attached = image.attach();
        {
            let thread = attached.enter();
            let root = thread.root().unwrap();
            let node = thread.create(root, b"row", &new_file()).unwrap();
            thread.files().write(node, 0, &[7; 10_000]).unwrap();
            thread.release(root, 1);
            thread.release(node, 1);
        }
        attached.detach();
        let damaged = DamagedImage::new(&image);
        let number = damaged.find("row").number;
        assert_eq!(engine::inline_extent_of_root(damaged.property(number).1.root).map(|(_, count)| count), Some(3));
        damaged.change_property(number, damage);
        let found = damaged.check();
        expect_kinds(&found, kinds);
        let repaired = repair_all(&damaged);
        assert!(repaired.after.is_sound(), "{found}{}{:?}", repaired.after, repaired.failed);
        let attached = image.attach();
        {
            let thread = attached.enter();
            let root = thread.root().unwrap();
            let node = thread.lookup(root, b"row").unwrap();
            let mut bytes = [0; 10_000];
            thread.files().read(node, 0, &mut bytes).unwrap();
            assert_eq!(bytes.iter().take_while(|byte| **byte == 7).count(), bytes_left);
            thread.release(root, 1);
            thread.release(node, 1);
        }
        attached.detach();
    }
}

#[test]
fn flipped_bits_are_undone_without_asking_and_names_stay_where_they_are() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    let (file, long) = (damaged.find("docs/file-01"), damaged.find("docs/filled/moved"));
    let page = damaged.get(damaged.find("docs/deep").inode + LOG);
    let places = [
        (file.dentry + 8, 5),
        (file.dentry + 8, 9),
        (file.dentry + 8, 17),
        (file.dentry + 8, 40),
        (file.dentry + 16, 3),
        (file.dentry + 24, 60),
        (file.dentry + 32, 0),
        (file.dentry + 40, 33),
        (long.dentry + 40, 1),
        (file.slot, 1),
        (file.slot, 13),
        (file.inode, 1),
        (file.inode + 16, 2),
        (file.inode + 24, 7),
        (file.inode, 60),
        (page, 33),
        (page + 8, 2),
        (page + 16, 4),
        (damaged.find("docs/deep").inode + LOG, 14),
    ];
    let before = damaged.check().counts;
    for (offset, bit) in places {
        let whole = damaged.get(offset);
        damaged.flip(offset, 1 << bit);
        assert!(!damaged.check().is_sound(), "{offset:#x} {bit}");
        let repaired = repair_with(&damaged, &mut Finding::is_safe_to_repair);
        assert!(repaired.after.is_sound(), "{offset:#x}, bit {bit}\n{}", repaired.after);
        assert_eq!(damaged.get(offset), whole);
        assert_eq!(repaired.after.counts.names, before.names);
    }
    damaged.find("docs/file-01");
}

#[test]
fn a_repair_leaves_an_image_whose_maps_are_built_again() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    damaged.set(damaged.find("docs/file-01").dentry + SLOTS, 0);
    damaged.change_property(damaged.find("docs").number, |property| property.links = 9);
    let repaired = repair_all(&damaged);
    assert!(repaired.after.is_sound(), "{}", repaired.after);
    assert!(repaired.after.findings.iter().all(|finding| finding.severity == Severity::Note));
    assert!(State::from_word(damaged.get(512)).clean);
    let attached = image.attach();
    assert!(attached.report.scanned);
    attached.detach();
    assert!(damaged.check().findings.is_empty());
}

#[test]
fn a_wrong_map_of_inodes_takes_nothing_from_what_has_names() {
    for (dropped, path) in
        [true, false].into_iter().flat_map(|dropped| ["", "docs", "body"].map(|path| (dropped, path)))
    {
        let image = sample();
        let damaged = DamagedImage::new(&image);
        let before = damaged.check().counts;
        damaged.mark_inode(if path.is_empty() { ROOT_INODE } else { damaged.find(path).number }, false);
        if dropped {
            (0..8).for_each(|word| damaged.set(crate::support::SNAPSHOT + word * 8, 0));
        }
        let kind = if dropped { FindingKind::SnapshotDropped } else { FindingKind::SnapshotChecksum };
        expect_kinds(&damaged.check(), &[kind]);
        let repaired = repair_all(&damaged);
        assert!(repaired.after.is_sound(), "{path:?}, dropped: {dropped}\n{}", repaired.after);
        assert_eq!(repaired.after.counts.names, before.names, "{path:?}, dropped: {dropped}");
        assert_eq!(repaired.after.counts.inodes, before.inodes, "{path:?}, dropped: {dropped}");
        damaged.find("docs/file-01");
    }
}

#[test]
fn what_a_repair_has_not_come_to_survives_a_mount_between() {
    // The files with damaged names and maps survive for the next repair, although the image was
    // attached and written meanwhile.
    let mut failures = Vec::new();
    for corruption in CORRUPTIONS {
        let (before, destroyed) = expected(corruption);
        let image = sample();
        let damaged = DamagedImage::new(&image);
        (corruption.damage)(&damaged);
        (0..8).for_each(|word| damaged.set(crate::support::SNAPSHOT + word * 8, 0));
        let attached = image.attach();
        {
            let thread = attached.enter();
            let root = thread.root().unwrap();
            // Writes may fail if the root is damaged; successful ones must not destroy anything.
            for index in 0..20 {
                let name = format!("meanwhile-{index}");
                if let Ok(node) = thread.create(root, name.as_bytes(), &crate::support::engine_support::new_file()) {
                    let _ = thread.files().write(node, 0, &[9; 20_000]);
                    thread.release(node, 1);
                }
            }
            thread.release(root, 1);
        }
        attached.detach();
        let repaired = repair_all(&damaged);
        let lost = if repaired.after.is_sound() {
            losses(&image, &before, &destroyed)
        } else {
            vec![repaired.after.to_string()]
        };
        if !lost.is_empty() {
            failures.push(format!("{}: {}\nof {:?}", corruption.title, lost.join("\n"), repaired.repaired));
        }
    }
    assert!(failures.is_empty(), "{} corruptions\n{}", failures.len(), failures.join("\n"));
}
