//! After a power failure, the next attach has every name whose call had returned, no half-made
//! structure, and exact maps of free space.

use super::AttachOptions;
use crate::directory::RenameFlags;
use crate::error::{Error, Result};
use crate::format::{
    Dentry, FileKind, INODES_PER_SEGMENT, Inode, JournalRecord, JournalSlot, ROOT_INODE, SlotTag, Valid, slot_word,
};
use crate::fs::{Fs, Node, Thread};
use crate::testing::{Attached, Memory, PLATFORM, new_image, new_node as new};
use core::sync::atomic::Ordering::Relaxed;
use pmem::Pm;
use std::format;
use std::string::String;
use std::vec::Vec;

const MIB: u64 = 1 << 20;

fn make(thread: &Thread<'_>, directory: Node, name: &str, kind: FileKind) -> Node {
    thread.create(directory, name.as_bytes(), &new(kind)).expect("creates")
}

fn links(thread: &Thread<'_>, node: Node) -> u32 {
    thread.stat(node).expect("stats").links
}

/// What is in use: blocks, inodes, and the free lines of slabs.
#[derive(PartialEq, Eq, Debug)]
struct Maps {
    blocks: Vec<u64>,
    inodes: Vec<u64>,
    free_lines: Vec<(u64, u64)>,
}

fn maps(fs: &Fs) -> Maps {
    let blocks = fs.geometry().blocks;
    let segments = fs.header().expect("a header").segments.load(Relaxed);
    Maps {
        blocks: (0..blocks / 64).map(|word| fs.dram().block_word(word).expect("a word").load(Relaxed)).collect(),
        inodes: (0..segments * INODES_PER_SEGMENT / 64)
            .map(|word| fs.dram().inode_word(word).expect("a word").load(Relaxed))
            .collect(),
        free_lines: (0..blocks)
            .map(|block| (block, fs.dram().slab(block).expect("a slab").free_lines.load(Relaxed)))
            .filter(|(_, free)| *free != 0)
            .collect(),
    }
}

/// Directories, files with names of all lengths in more than one log page, links.
fn populate(thread: &Thread<'_>) {
    let root = thread.root().expect("a root");
    let inner = make(thread, root, "inner", FileKind::Directory);
    make(thread, inner, "deeper", FileKind::Directory);
    for index in 0..1200usize {
        let name = format!("{index:0width$}", width = 4 + index % 252);
        let node = make(thread, if index % 3 == 0 { inner } else { root }, &name, FileKind::Regular);
        thread.release(node, 1);
    }
    let file = make(thread, root, "linked", FileKind::Regular);
    thread.link(file, inner, b"linked too").expect("links");
    make(thread, root, "symlink", FileKind::Symlink);
}

#[test]
fn a_scan_finds_exactly_what_a_clean_detach_records() {
    let image = new_image(16 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    populate(&fs.enter().expect("enters"));
    let crashed = image.copy();
    fs.detach().expect("detaches");
    let clean = Attached::new(&image).expect("attaches");
    assert!(!clean.report.scanned);
    for workers in [1, 3] {
        let again = crashed.copy();
        let scanned = Attached::with(&again, &PLATFORM, &AttachOptions::default(), workers).expect("attaches");
        assert!(scanned.report.scanned);
        assert_eq!((scanned.report.orphans, scanned.report.damaged, scanned.report.renames), (0, 0, 0));
        assert_eq!(scanned.report.names, 1200 + 5);
        assert_eq!(maps(&scanned), maps(&clean));
        assert_eq!(scanned.block_map().blocks_free(), clean.block_map().blocks_free());
        assert_eq!(scanned.inodes_used(), clean.inodes_used());
    }
}

#[test]
fn after_a_crash_names_links_and_times_are_as_the_last_calls_left_them() {
    let image = new_image(16 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    populate(&thread);
    let root = thread.root().expect("a root");
    make(&thread, root, "empty", FileKind::Directory);
    thread.remove_directory(root, b"empty", |_| Ok(())).expect("removes");
    let open = make(&thread, root, "open", FileKind::Regular);
    thread.unlink(root, b"open", |_| Ok(())).expect("unlinks");
    assert_eq!(links(&thread, open), 0);
    thread.unlink(root, b"linked", |_| Ok(())).expect("unlinks");
    let before = thread.stat(root).expect("stats");

    let crashed = image.copy();
    let first = Attached::new(&crashed).expect("attaches");
    let again = crashed.copy();
    assert!(first.report.orphans >= 1, "the open file has gone, and the removed directory if it was not recycled");
    assert_eq!(first.report.damaged, 0);
    let thread = first.enter().expect("enters");
    let root = thread.root().expect("a root");
    let after = thread.stat(root).expect("stats");
    assert_eq!(
        (after.links, after.modified_ns, after.changed_ns),
        (before.links, before.modified_ns, before.changed_ns)
    );
    for gone in ["empty", "open", "linked"] {
        assert_eq!(thread.lookup(root, gone.as_bytes()), Err(Error::NotFound), "{gone}");
    }
    let inner = thread.lookup(root, b"inner").expect("is there");
    let linked = thread.lookup(inner, b"linked too").expect("is there");
    assert_eq!((links(&thread, inner), links(&thread, linked)), (3, 1));
    for index in 0..1200usize {
        let name = format!("{index:0width$}", width = 4 + index % 252);
        let node = thread.lookup(if index % 3 == 0 { inner } else { root }, name.as_bytes()).expect("is there");
        thread.release(node, 1);
    }
    // The image is used after recovery, not only examined.
    populate_elsewhere(&thread);
    drop(thread);
    let second = Attached::new(&again).expect("attaches");
    assert_eq!((second.report.orphans, second.report.damaged), (0, 0), "recovery left nothing to do");
}

fn populate_elsewhere(thread: &Thread<'_>) {
    let root = thread.root().expect("a root");
    let directory = make(thread, root, "after", FileKind::Directory);
    let names: Vec<String> = (0..300).map(|index| format!("{index}")).collect();
    names.iter().for_each(|name| {
        let node = make(thread, directory, name, FileKind::Regular);
        thread.release(node, 1);
    });
    for name in &names {
        let node = thread.lookup(directory, name.as_bytes()).expect("is there");
        thread.release(node, 1);
    }
}

/// An image with the files `a` and `b` in its root, crashed, with the inode number of `a` and the
/// offset of its dentry.
fn two_files() -> (Memory, u64, u64) {
    let image = new_image(8 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let root = thread.root().expect("a root");
    let a = make(&thread, root, "a", FileKind::Symlink);
    make(&thread, root, "b", FileKind::Regular);
    let hash = fs.hash_name(ROOT_INODE, b"a");
    let dentry = fs.find(ROOT_INODE, b"a", hash).expect("no error").expect("is there").dentry_offset;
    let crashed = image.copy();
    (crashed, a.number, dentry)
}

fn names_after(image: &Memory) -> (Attached, Vec<bool>) {
    let fs = Attached::new(image).expect("attaches");
    let found = {
        let thread = fs.enter().expect("enters");
        let root = thread.root().expect("a root");
        [b"a", b"b"].iter().map(|name| thread.lookup(root, *name).is_ok()).collect()
    };
    (fs, found)
}

/// The inode of a number of the first segment.
fn with_inode<R>(image: &Memory, number: u64, act: impl FnOnce(&Inode) -> R) -> R {
    let region = image.region();
    let geometry = crate::format::Superblock::check(&region, true).expect("an image");
    act(region.get(Pm::new(geometry.data_block * 4096 + number * 256)).expect("an inode"))
}

#[test]
fn a_create_whose_inode_did_not_arrive_never_happened() {
    let (image, number, _) = two_files();
    with_inode(&image, number, |inode| {
        let _ = image.region().set64(&inode.born_ns, 0);
    });
    let (fs, found) = names_after(&image);
    assert_eq!((found, fs.report.orphans, fs.report.damaged), (Vec::from([false, true]), 1, 0));
    assert!(fs.inode(number).expect("an inode").inline.iter().all(|word| word.load() == 0), "zero for the next life");
}

#[test]
fn a_create_whose_property_entry_did_not_arrive_never_happened() {
    let (image, number, _) = two_files();
    with_inode(&image, number, |inode| {
        let _ = image.region().set64(&inode.properties[0].words[2], 77);
    });
    let (fs, found) = names_after(&image);
    assert_eq!((found, fs.report.orphans), (Vec::from([false, true]), 1));
}

#[test]
fn a_create_whose_dentry_did_not_arrive_never_happened_and_its_lines_are_free() {
    let (image, _, dentry) = two_files();
    let region = image.region();
    let _ = region.set64(&region.get(Pm::<Dentry>::new(dentry)).expect("a dentry").cookie, 9999);
    let (fs, found) = names_after(&image);
    assert_eq!((found, fs.report.orphans, fs.report.damaged), (Vec::from([false, true]), 1, 0));
    let seal = fs.pm().get(Pm::<Dentry>::new(dentry)).expect("a dentry").seal.load();
    assert_eq!(seal, 0, "what lies in free lines never verifies");
}

#[test]
fn a_create_whose_slot_did_not_arrive_never_happened_and_its_dentry_cannot_come_back() {
    let (image, number, dentry) = two_files();
    let region = image.region();
    let log = with_inode(&image, ROOT_INODE, |root| root.log.load());
    let page: &crate::format::LogPage = region.get(Pm::new(log)).expect("a page");
    let slot = page.slots.iter().find(|slot| slot.load() == slot_word(dentry, SlotTag::Dentry)).expect("names it");
    let _ = region.retract(slot, 0);
    let (fs, found) = names_after(&image);
    assert_eq!((found, fs.report.orphans), (Vec::from([false, true]), 1));
    assert_eq!(fs.inode(number).expect("an inode").generation(number), None);
    assert_eq!(fs.pm().get(Pm::<Dentry>::new(dentry)).expect("a dentry").seal.load(), 0);
}

/// An image after a rename of `old` to `new` in two directories, with its record and its old name,
/// as if no step had been taken.
fn interrupted_rename() -> Memory {
    let image = new_image(8 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let root = thread.root().expect("a root");
    let (from, to) = (make(&thread, root, "from", FileKind::Directory), make(&thread, root, "to", FileKind::Directory));
    make(&thread, from, "old", FileKind::Directory);
    make(&thread, to, "new", FileKind::Directory);
    thread.rename((from, b"old"), (to, b"new"), RenameFlags::default(), |_, _| Ok(())).expect("renames");
    let crashed = image.copy();
    let region = crashed.region();
    let journal = fs.geometry().journal_block * 4096 + thread.index as u64 * 128;
    let slot: &JournalSlot = region.get(Pm::new(journal)).expect("a slot");
    let record = JournalRecord::from_words(&core::array::from_fn(|index| slot.words[index].load()));
    assert!(record.moves[0].directory != 0 && record.invalidated.iter().all(|offset| *offset != 0));
    reseal(&crashed, journal);
    let proof = || region.fence_nothing_new();
    let before = slot_word(record.invalidated[1], SlotTag::Dentry);
    let _ = region.commit(region.get(Pm::new(record.moves[0].slot)).expect("a slot"), before, proof());
    record.invalidated.into_iter().for_each(|offset| make_valid(&crashed, offset));
    let moved: &Inode = region.get(Pm::new(record.moves[0].directory)).expect("an inode");
    let _ = region.commit(&moved.parent, from.number, proof());
    crashed
}

/// Makes the name of a dentry valid again.
fn make_valid(image: &Memory, offset: u64) {
    let region = image.region();
    let dentry = region.get(Pm::<Dentry>::new(offset)).expect("a dentry");
    let valid =
        Valid { valid: true, timestamp_ns: 6, reuse_generation: dentry.facts().expect("whole").reuse_generation }
            .word();
    let _ = region.commit(&dentry.valid, valid, region.fence_nothing_new());
}

fn reseal(image: &Memory, journal: u64) {
    let region = image.region();
    let slot: &JournalSlot = region.get(Pm::new(journal)).expect("a slot");
    let words = core::array::from_fn(|index| slot.words[index].load());
    let _ = region.commit(&slot.seal, JournalRecord::seal(&words), region.fence_nothing_new());
}

fn check_renamed(fs: &Fs) -> Result<()> {
    let thread = fs.enter()?;
    let root = thread.root()?;
    let (from, to) = (thread.lookup(root, b"from")?, thread.lookup(root, b"to")?);
    assert_eq!(thread.lookup(from, b"old"), Err(Error::NotFound));
    let moved = thread.lookup(to, b"new")?;
    assert_eq!(thread.parent(moved)?, to.number);
    assert_eq!((links(&thread, from), links(&thread, to)), (2, 3));
    Ok(())
}

#[test]
fn a_rename_with_a_record_is_completed_and_repeating_it_changes_nothing() {
    let image = interrupted_rename();
    let fs = Attached::new(&image).expect("attaches");
    assert_eq!((fs.report.renames, fs.report.damaged), (1, 0));
    check_renamed(&fs).expect("renamed");
    let (crashed, journal) = (image.copy(), fs.geometry().journal_block * 4096);
    drop(fs);
    // Power failed while the records were being cleared: the same one is found again, with all of
    // its steps done.
    reseal(&crashed, journal);
    let fs = Attached::new(&crashed).expect("attaches");
    assert_eq!(fs.report.damaged, 0);
    check_renamed(&fs).expect("renamed");
}

#[test]
fn a_rename_without_a_whole_record_never_happened() {
    let image = interrupted_rename();
    let region = image.region();
    let journal = crate::format::Superblock::check(&region, true).expect("an image").journal_block * 4096;
    let slot: &JournalSlot = region.get(Pm::new(journal)).expect("a slot");
    let _ = region.set64(&slot.words[6], 1);
    let fs = Attached::new(&image).expect("attaches");
    assert_eq!((fs.report.renames, fs.report.damaged), (0, 0));
    let thread = fs.enter().expect("enters");
    let root = thread.root().expect("a root");
    let from = thread.lookup(root, b"from").expect("is there");
    let old = thread.lookup(from, b"old").expect("is there");
    assert_eq!(thread.parent(old), Ok(from.number));
}

#[test]
fn threads_beyond_the_journals_slots_rename_with_borrowed_ones() {
    let image = new_image(32 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let threads: Vec<_> = (0..1200).map(|_| fs.enter().expect("enters")).collect();
    let root = threads[0].root().expect("a root");
    let [from, to] = ["from", "to"].map(|name| make(&threads[0], root, name, FileKind::Directory));
    let permit = |_: &_, _: Option<&_>| Ok(());
    for thread in &threads[900..] {
        let (name, new) = (std::format!("old-{}", thread.index), std::format!("new-{}", thread.index));
        make(thread, from, &name, FileKind::Directory);
        let places = ((from, name.as_bytes()), (to, new.as_bytes()));
        thread.rename(places.0, places.1, RenameFlags::default(), permit).expect("renames");
    }
    // The last threads exchange files: the most locks at once.
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    for pair in threads[1100..].chunks(2) {
        let names = [0, 1].map(|side| std::format!("new-{}", pair[side].index));
        pair[0].rename((to, names[0].as_bytes()), (to, names[1].as_bytes()), exchange, permit).expect("exchanges");
    }
    let crashed = image.copy();
    let again = Attached::new(&crashed).expect("attaches");
    assert_eq!((again.report.scanned, again.report.damaged, again.report.orphans), (true, 0, 0));
    let thread = again.enter().expect("enters");
    let to = thread.lookup(thread.root().expect("a root"), b"to").expect("is there");
    for index in 900..1200 {
        thread.lookup(to, std::format!("new-{index}").as_bytes()).expect("was renamed");
    }
}

#[test]
fn of_two_renames_to_one_name_the_later_counts_in_whatever_order_their_records_lie() {
    for later in 0..2 {
        let image = new_image(8 * MIB, 0);
        let fs = Attached::new(&image).expect("attaches");
        let threads = [fs.enter().expect("enters"), fs.enter().expect("enters")];
        assert_eq!(threads.each_ref().map(|thread| thread.index), [0, 1], "the order of their records");
        let root = threads[0].root().expect("a root");
        let numbers = ["one", "two", "name"].map(|name| make(&threads[0], root, name, FileKind::Regular).number);
        let place = fs.find(ROOT_INODE, b"name", fs.hash_name(ROOT_INODE, b"name")).expect("no error");
        let before = place.expect("is there").dentry_offset;
        for (thread, name) in [(1 - later, b"one"), (later, b"two")] {
            let permit = |_: &_, _: Option<&_>| Ok(());
            threads[thread].rename((root, name), (root, b"name"), RenameFlags::default(), permit).expect("renames");
        }
        // As if no step had become durable: the log names what was there first, and all names are
        // valid.
        let crashed = image.copy();
        let region = crashed.region();
        for thread in 0..2 {
            let journal = fs.geometry().journal_block * 4096 + 2 * thread * 128;
            let slot: &JournalSlot = region.get(Pm::new(journal)).expect("a slot");
            let record = slot.record().expect("whole");
            let word: &pmem::Commit64 = region.get(Pm::new(record.moves[0].slot)).expect("a slot");
            let _ = region.commit(word, slot_word(before, SlotTag::Dentry), region.fence_nothing_new());
            record.invalidated.into_iter().for_each(|offset| make_valid(&crashed, offset));
        }
        let fs = Attached::new(&crashed).expect("attaches");
        assert_eq!((fs.report.renames, fs.report.damaged), (2, 0));
        let thread = fs.enter().expect("enters");
        let root = thread.root().expect("a root");
        assert_eq!(thread.lookup(root, b"name").expect("is there").number, numbers[1]);
        assert_eq!([b"one", b"two"].map(|name| thread.lookup(root, name)), [Err(Error::NotFound); 2]);
    }
}

#[test]
fn a_damaged_directory_does_not_keep_the_others_from_being_recovered() {
    let image = new_image(8 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let root = thread.root().expect("a root");
    let (bad, ring) =
        (make(&thread, root, "bad", FileKind::Directory), make(&thread, root, "ring", FileKind::Directory));
    let good = make(&thread, root, "good", FileKind::Directory);
    for directory in [bad, ring, good] {
        make(&thread, directory, "file", FileKind::Regular);
    }
    let crashed = image.copy();
    let region = crashed.region();
    let proof = || region.fence_nothing_new();
    with_inode(&crashed, bad.number, |inode| {
        let _ = region.commit(&inode.log, u64::MAX - 4095, proof());
    });
    with_inode(&crashed, ring.number, |inode| {
        let page: &crate::format::LogPage = region.get(Pm::new(inode.log.load())).expect("a page");
        let _ = region.commit(&page.next, inode.log.load(), proof());
    });
    let fs = Attached::new(&crashed).expect("attaches");
    assert_eq!(fs.report.damaged, 2);
    let thread = fs.enter().expect("enters");
    let root = thread.root().expect("a root");
    let good = thread.lookup(root, b"good").expect("is there");
    thread.lookup(good, b"file").expect("is there");
}

#[test]
fn bytes_gone_wrong_anywhere_never_stop_or_hang_an_attach() {
    let image = new_image(4 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    populate(&fs.enter().expect("enters"));
    let geometry = fs.geometry();
    let mut seed = 88172645463325252u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..60 {
        let crashed = image.copy();
        let region = crashed.region();
        for _ in 0..1 + random() % 64 {
            let start = geometry.journal_block * 4096;
            let offset = start + random() % (MIB - start);
            let bytes =
                if random() % 2 == 0 { random().to_le_bytes() } else { ((random() % (4 * MIB)) & !63).to_le_bytes() };
            let _ = region.write_bytes(offset & !7, &bytes).expect("writes");
        }
        Attached::new(&crashed).expect("attaches");
    }
}
#[test]
#[ignore = "a measurement: takes two gigabytes; run it in release, alone, on a quiet machine"]
fn a_million_names_are_recovered_within_a_second() {
    let image = new_image(1500 * MIB, 1_100_000);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let root = thread.root().expect("a root");
    let begin = std::time::Instant::now();
    for outer in 0..1000 {
        let directory = make(&thread, root, &format!("directory{outer}"), FileKind::Directory);
        for inner in 0..1000 {
            let node = make(&thread, directory, &format!("file{inner}"), FileKind::Regular);
            thread.release(node, 1);
        }
    }
    std::eprintln!("made in {:?}", begin.elapsed());
    drop(thread);
    drop(fs);
    for workers in [1, 2] {
        let fs = Attached::with(&image, &PLATFORM, &AttachOptions::default(), workers).expect("attaches");
        std::eprintln!("{workers} workers: {:?}", fs.report);
        assert_eq!(fs.report.names, 1_001_000);
        assert!(fs.report.duration_ns < 1_000_000_000 || cfg!(debug_assertions));
    }
    let fs = Attached::new(&image).expect("attaches");
    let begin = std::time::Instant::now();
    fs.detach().expect("detaches");
    std::eprintln!("detached in {:?}", begin.elapsed());
    let fs = Attached::new(&image).expect("attaches");
    std::eprintln!("{:?}", fs.report);
}
