//! Repair tests: every injected corruption is repaired, and everything reachable before stays
//! reachable with the same bytes.

mod support;

use engine::Node;
use engine::format::{FileKind, Property, ROOT_INODE, SegmentEntry, State, Superblock};
use fsck::{EXIT_CORRECTED, Finding, FindingKind, Options, Repair, Repaired, Severity, repair};
use pmem::{BLOCK_BYTES, CrashImage, Direct, Grain, Memory, Recorder};
use std::collections::BTreeMap;
use std::sync::Arc;
use support::engine_support::{Attached, Image, new_file};
use support::stories::{STORIES, Story};
use support::{IMAGE_BYTES, LOG, Plant, SLOTS, expect_kinds, sample, scattered};

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
                    let count = thread.read(node, start, &mut part).unwrap();
                    contents.extend_from_slice(&part[..count]);
                }
            }
            _ => {}
        }
        let mut names = Vec::new();
        thread.xattr_names(node, &mut |name| names.push(name.to_vec())).unwrap();
        let values = names.into_iter().map(|name| {
            let mut value = vec![0; 1 << 16];
            let length = thread.xattr(node, &name, &mut value).unwrap();
            value.truncate(length);
            (name, value)
        });
        files.insert(node.number, File { kind: stat.kind, contents, xattrs: values.collect() });
        thread.release(node, 1);
    }
    files
}

fn mend(plant: &Plant) -> Repaired {
    mend_with(plant, &mut |_| true)
}

fn mend_with(plant: &Plant, decide: &mut dyn FnMut(&Finding) -> bool) -> Repaired {
    repair(&plant.region, &Options::default(), NOW_NS, decide, &mut |_| {})
}

/// The files of the sample, and the numbers of those whose contents a corruption destroys.
fn expected(story: &Story) -> (Files, Vec<u64>) {
    let image = sample();
    let plant = Plant::new(&image);
    let destroyed = story.destroys.iter().map(|path| plant.find(path).number).collect();
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
fn every_corruption_is_mended_and_loses_nothing_that_could_be_reached() {
    let mut failures = Vec::new();
    for story in STORIES {
        let (before, destroyed) = expected(story);
        let image = sample();
        let plant = Plant::new(&image);
        (story.plant)(&plant);
        let harmless = plant.check().is_sound();
        let repaired = mend(&plant);
        let after = plant.check();
        if !after.is_sound() || !repaired.failed.is_empty() {
            failures
                .push(format!("{}: remaining\n{after}{:?}\nof {:?}", story.title, repaired.failed, repaired.mended));
            continue;
        }
        assert_eq!(repaired.exit_code(), if harmless { 0 } else { EXIT_CORRECTED }, "{}", story.title);
        let lost = losses(&image, &before, &destroyed);
        let left = plant.check();
        if !lost.is_empty() || !left.is_sound() {
            failures.push(format!("{}: lost\n{}\nof {:?}\n{left}", story.title, lost.join("\n"), repaired.mended));
        }
    }
    assert!(failures.is_empty(), "{} corruptions\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn a_sound_image_is_not_touched() {
    let image = sample();
    let plant = Plant::new(&image);
    let bytes = || {
        let mut bytes = vec![0; IMAGE_BYTES as usize];
        plant.region.read_bytes(0, &mut bytes).unwrap();
        bytes
    };
    let before = bytes();
    let repaired = mend(&plant);
    assert_eq!((repaired.exit_code(), repaired.mended.len()), (0, 0));
    assert!(before == bytes());
}

#[test]
fn what_is_refused_is_not_touched() {
    for story in STORIES {
        let image = sample();
        let plant = Plant::new(&image);
        (story.plant)(&plant);
        let mut before = vec![0; IMAGE_BYTES as usize];
        plant.region.read_bytes(0, &mut before).unwrap();
        let repaired = mend_with(&plant, &mut |_| false);
        let mut after = vec![0; IMAGE_BYTES as usize];
        plant.region.read_bytes(0, &mut after).unwrap();
        assert!(before == after && repaired.mended.is_empty(), "{}", story.title);
        assert_eq!(repaired.exit_code(), plant.check().exit_code());
    }
}

#[test]
fn preening_takes_no_name_away() {
    for story in STORIES {
        let (before, destroyed) = expected(story);
        let image = sample();
        let plant = Plant::new(&image);
        (story.plant)(&plant);
        let repaired = mend_with(&plant, &mut Finding::is_safe_to_repair);
        if repaired.after.is_sound() {
            assert_eq!(losses(&image, &before, &destroyed), Vec::<String>::new(), "{}", story.title);
        }
        assert!(!repaired.mended.iter().any(|finding| matches!(
            finding.repair,
            Repair::Invalidate { .. } | Repair::CutLog { .. } | Repair::FreeInode { .. } | Repair::DropXattrs { .. }
        )));
    }
}

#[test]
fn a_damaged_image_that_was_not_left_cleanly_keeps_every_file_that_a_name_still_says() {
    // A file without a name looks like a removed one, whose inode stays until it is reused.
    let named_otherwise = [FindingKind::DentryTarget, FindingKind::RootNamed, FindingKind::DirectoryNames];
    let mut failures = Vec::new();
    for story in STORIES.iter().filter(|story| !story.kinds.iter().any(|kind| named_otherwise.contains(kind))) {
        let (before, destroyed) = expected(story);
        let image = sample();
        let plant = Plant::new(&image);
        (story.plant)(&plant);
        plant.unclean();
        let errors = plant.check().errors;
        let repaired = mend(&plant);
        // A mere trace of a crash is left to recovery.
        assert_eq!(repaired.needs_recovery, errors == 0, "{}", story.title);
        if errors == 0 {
            continue;
        }
        let after = plant.check();
        let lost = if after.is_sound() { losses(&image, &before, &destroyed) } else { vec![after.to_string()] };
        if !lost.is_empty() {
            failures.push(format!("{}: {}\nof {:?}", story.title, lost.join("\n"), repaired.mended));
        }
    }
    assert!(failures.is_empty(), "{} corruptions\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn a_repair_that_was_interrupted_anywhere_is_finished_by_the_next_one() {
    let mut failures = Vec::new();
    let mut states = 0;
    for story in STORIES {
        let (before, destroyed) = expected(story);
        let image = sample();
        let plant = Plant::new(&image);
        (story.plant)(&plant);
        let mut initial = vec![0; IMAGE_BYTES as usize];
        plant.region.read_bytes(0, &mut initial).unwrap();
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
                let again = Plant::new_unchecked(&scratch, plant.geometry);
                let repaired = mend(&again);
                let after = again.check();
                let lost =
                    if after.is_sound() { losses(&scratch, &before, &destroyed) } else { vec![after.to_string()] };
                if !lost.is_empty() || !repaired.failed.is_empty() {
                    let lost = lost.join("\n");
                    failures.push(format!(
                        "{}, fence {fence}, {:?}: {lost}\n{:?}",
                        story.title,
                        state.id(),
                        repaired.mended
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
    assert!(failures.is_empty(), "{} of {} corruptions\n{}", failures.len(), STORIES.len(), failures.join("\n"));
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
        let (before, _) = expected(&STORIES[0]);
        let image = sample();
        let plant = Plant::new(&image);
        let root = plant.inode_offset(ROOT_INODE);
        words.iter().for_each(|word| plant.set(root + word * 8, 0x1234_5678_9abc_def0));
        let repaired = mend(&plant);
        assert!(repaired.after.is_sound(), "{words:?}\n{}{:?}", repaired.after, repaired.failed);
        assert_eq!(losses(&image, &before, &[]), Vec::<String>::new(), "{words:?}");
    }
}

#[test]
fn a_segment_whose_place_was_forgotten_is_found_again() {
    let (before, _) = expected(&STORIES[0]);
    let image = sample();
    let plant = Plant::new(&image);
    plant.set(plant.geometry.segment_table_block * BLOCK_BYTES, 0x7777_0000);
    let repaired = mend(&plant);
    assert!(repaired.after.is_sound(), "{}", repaired.after);
    assert_eq!(losses(&image, &before, &[]), Vec::<String>::new());
}

#[test]
fn a_segment_whose_blocks_lie_apart_is_found_again() {
    /// Damages an image, given the offsets of the segment's entry and of its list.
    type Damage = fn(&Plant, u64, u64);
    let damages: [(&str, Damage); 3] = [
        ("place", |plant, entry, _| plant.set(entry, 0x7777_0001)),
        ("seal", |plant, _, list| plant.flip(list, 1 << 40)),
        ("block", |plant, _, list| plant.set(list + 64 + 3 * 8, 0)),
    ];
    for (title, damage) in damages {
        let image = scattered();
        let before = {
            let attached = image.attach();
            let before = files(&attached);
            attached.detach();
            before
        };
        let plant = Plant::new(&image);
        let entry = plant.geometry.segment_table_block * BLOCK_BYTES + 8;
        let Some(SegmentEntry::List(list)) = SegmentEntry::from_word(plant.get(entry)) else { panic!("it is listed") };
        damage(&plant, entry, list);
        let found = plant.check();
        assert!(!found.is_sound(), "{title}");
        let repaired = mend(&plant);
        assert!(repaired.after.is_sound(), "{title}\n{found}{}{:?}", repaired.after, repaired.failed);
        let attached = image.attach();
        assert!(files(&attached) == before, "{title}");
        attached.detach();
    }
}

#[test]
fn a_row_of_blocks_is_checked_and_mended() {
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
            thread.write(node, 0, &[7; 10_000]).unwrap();
            thread.release(root, 1);
            thread.release(node, 1);
        }
        attached.detach();
        let plant = Plant::new(&image);
        let number = plant.find("row").number;
        assert_eq!(engine::row_of_root(plant.property(number).1.root).map(|(_, count)| count), Some(3));
        plant.change_property(number, damage);
        let found = plant.check();
        expect_kinds(&found, kinds);
        let repaired = mend(&plant);
        assert!(repaired.after.is_sound(), "{found}{}{:?}", repaired.after, repaired.failed);
        let attached = image.attach();
        {
            let thread = attached.enter();
            let root = thread.root().unwrap();
            let node = thread.lookup(root, b"row").unwrap();
            let mut bytes = [0; 10_000];
            thread.read(node, 0, &mut bytes).unwrap();
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
    let plant = Plant::new(&image);
    let (file, long) = (plant.find("docs/file-01"), plant.find("docs/filled/moved"));
    let page = plant.get(plant.find("docs/deep").inode + LOG);
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
        (plant.find("docs/deep").inode + LOG, 14),
    ];
    let before = plant.check().counts;
    for (offset, bit) in places {
        let whole = plant.get(offset);
        plant.flip(offset, 1 << bit);
        assert!(!plant.check().is_sound(), "{offset:#x} {bit}");
        let repaired = mend_with(&plant, &mut Finding::is_safe_to_repair);
        assert!(repaired.after.is_sound(), "{offset:#x}, bit {bit}\n{}", repaired.after);
        assert_eq!(plant.get(offset), whole);
        assert_eq!(repaired.after.counts.names, before.names);
    }
    plant.find("docs/file-01");
}

#[test]
fn a_repair_leaves_an_image_whose_maps_are_built_anew() {
    let image = sample();
    let plant = Plant::new(&image);
    plant.set(plant.find("docs/file-01").dentry + SLOTS, 0);
    plant.change_property(plant.find("docs").number, |property| property.links = 9);
    let repaired = mend(&plant);
    assert!(repaired.after.is_sound(), "{}", repaired.after);
    assert!(repaired.after.findings.iter().all(|finding| finding.severity == Severity::Note));
    assert!(State::from_word(plant.get(512)).clean);
    let attached = image.attach();
    assert!(attached.report.scanned);
    attached.detach();
    assert!(plant.check().findings.is_empty());
}

#[test]
fn what_a_repair_has_not_come_to_survives_a_mount_between() {
    // The files with damaged names and maps survive for the next repair, although the image was
    // attached and written meanwhile.
    let mut failures = Vec::new();
    for story in STORIES {
        let (before, destroyed) = expected(story);
        let image = sample();
        let plant = Plant::new(&image);
        (story.plant)(&plant);
        (0..8).for_each(|word| plant.set(support::SNAPSHOT + word * 8, 0));
        let attached = image.attach();
        {
            let thread = attached.enter();
            let root = thread.root().unwrap();
            // Writes may fail if the root is damaged; successful ones must not destroy anything.
            for index in 0..20 {
                let name = format!("meanwhile-{index}");
                if let Ok(node) = thread.create(root, name.as_bytes(), &support::engine_support::new_file()) {
                    let _ = thread.write(node, 0, &[9; 20_000]);
                    thread.release(node, 1);
                }
            }
            thread.release(root, 1);
        }
        attached.detach();
        let repaired = mend(&plant);
        let lost = if repaired.after.is_sound() {
            losses(&image, &before, &destroyed)
        } else {
            vec![repaired.after.to_string()]
        };
        if !lost.is_empty() {
            failures.push(format!("{}: {}\nof {:?}", story.title, lost.join("\n"), repaired.mended));
        }
    }
    assert!(failures.is_empty(), "{} corruptions\n{}", failures.len(), failures.join("\n"));
}
