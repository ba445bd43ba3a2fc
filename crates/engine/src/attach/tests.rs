//! Tests of mkfs, attach, detach and attaching again.

use super::*;
use crate::format::{FileKind, Geometry, ROOT_INODE, SuperblockError};
use crate::testing::{Attached, Memory, PLATFORM, new_image};

const MIB: u64 = 1 << 20;

#[test]
fn a_new_image_has_a_root_and_needs_no_scan() {
    let image = new_image(8 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    assert!(!fs.report.scanned);
    let root = fs.inode(ROOT_INODE).expect("a root");
    let generation = root.generation(ROOT_INODE).expect("an identity");
    let (property, _) = root.property(ROOT_INODE, generation).expect("attributes");
    assert_eq!(property.kind(), Some(FileKind::Directory));
    assert_eq!((property.links, property.uid, property.gid, property.mode & 0o7777), (2, 1000, 100, 0o755));
    assert_eq!(root.parent.load(), ROOT_INODE);
    assert_eq!(fs.inodes_used(), Ok(1));
    assert_eq!(fs.block_map().blocks_free(), Ok(fs.geometry().copy_block() - fs.geometry().data_block - 16));
    assert_eq!(fs.epoch(), 1);
    assert!(!fs.superblock().expect("a superblock").state().clean, "attached images are not clean");
}

#[test]
fn a_clean_detach_is_remembered_and_each_attach_has_its_epoch() {
    let image = new_image(8 * MIB, 0);
    for round in 0..3 {
        let fs = Attached::new(&image).expect("attaches");
        assert_eq!(fs.epoch(), round + 1);
        assert!(!fs.report.scanned);
        fs.detach().expect("detaches");
    }
}

#[test]
fn memory_that_is_no_image_or_too_short_is_refused() {
    let nothing = Memory::new(2 * MIB);
    let refused = Attached::new(&nothing).err();
    assert_eq!(refused, Some(Error::Superblock(SuperblockError::NotAnImage)));
    let short = Memory::new(MIB / 2);
    let options = MkfsOptions {
        uuid: [1; 16],
        label: [0; 64],
        inodes_max: 0,
        owner: (0, 0),
        permissions: 0o755,
        now_ns: 0,
        zeroed: true,
    };
    let refused = mkfs(&short.region(), &options);
    assert_eq!(refused, Err(Error::Superblock(SuperblockError::TooShort { length: MIB / 2 })));
    let smallest = Memory::new(Geometry::LENGTH_MIN);
    assert_eq!(mkfs(&smallest.region(), &options), Ok(()), "the smallest image has room for itself");
}

#[test]
fn mkfs_over_an_old_image_leaves_nothing_of_it() {
    let image = new_image(8 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    for _ in 0..100 {
        thread.allocator().allocate_lines(2).expect("lines");
        thread.allocator().allocate_inode().expect("an inode");
    }
    drop(thread);
    fs.detach().expect("detaches");
    let options = MkfsOptions {
        uuid: [2; 16],
        label: [0; 64],
        inodes_max: 0,
        owner: (0, 0),
        permissions: 0o700,
        now_ns: 5,
        zeroed: false,
    };
    mkfs(&image.region(), &options).expect("a new image");
    let fs = Attached::new(&image).expect("attaches");
    assert!(!fs.report.scanned);
    assert_eq!(fs.inodes_used(), Ok(1));
}

/// With holes mkfs writes of the maps only what is not zero; and the first attach reads no maps.
#[test]
fn an_image_with_holes_and_its_first_attach_are_as_elsewhere() {
    for length in [Geometry::LENGTH_MIN, 8 * MIB, 100 * MIB + 13 * BLOCK_BYTES, 300 * MIB] {
        let images = [mkfs::<pmem::Direct>, mkfs_with_holes].map(|mkfs| {
            let image = Memory::new(length);
            let options = MkfsOptions {
                uuid: [2; 16],
                label: [0; 64],
                inodes_max: 0,
                owner: (0, 0),
                permissions: 0o700,
                now_ns: 5,
                zeroed: true,
            };
            mkfs(&image.region(), &options).expect("an image");
            image
        });
        assert!(images[0].bytes() == images[1].bytes(), "{length}");
        let fs = Attached::new(&images[0]).expect("attaches");
        assert!(!fs.report.scanned);
        let blocks = fs.blocks();
        crate::alloc::snapshot::for_used_blocks(&fs.pm, &fs.geometry(), &mut |first, used| {
            let word = fs.dram.block_word(first / 64).expect("a word").load(Relaxed) >> (first % 64);
            let mask = if blocks - first < 32 { (1 << (blocks - first)) - 1 } else { u32::MAX };
            assert_eq!(word as u32 & mask, used, "{length}: block {first}");
        })
        .expect("maps");
        assert_eq!(fs.dram.inode_word(0).expect("a word").load(Relaxed), 0b11);
    }
}

#[test]
fn a_read_only_attach_writes_nothing_and_refuses_what_needs_recovery() {
    let image = new_image(8 * MIB, 0);
    let before = image.bytes();
    let options = AttachOptions { read_only: true, ..AttachOptions::default() };
    let fs = Attached::with(&image, &PLATFORM, &options, 1).expect("attaches");
    assert_eq!(fs.writable(), Err(Error::ReadOnly));
    fs.detach().expect("detaches");
    assert!(image.bytes() == before, "no byte has changed");
    drop(Attached::new(&image).expect("attaches, and is dropped without a detach"));
    let refused = Attached::with(&image, &PLATFORM, &options, 1).err();
    assert_eq!(refused, Some(Error::NeedsRecovery));
}

#[test]
fn a_second_process_shares_the_region_only_with_the_same_image_and_budget() {
    let image = new_image(8 * MIB, 0);
    let options = AttachOptions::default();
    let dram = Memory::new(Fs::dram_layout(&image.region(), &options).expect("a layout").length);
    let share = || Fs::attach_shared(image.region(), dram.region(), &PLATFORM, crate::Liveness::alone(), &options);
    assert_eq!(share().err(), Some(Error::Busy), "the region is not built yet");
    let recovery = Fs::attach_first(image.region(), dram.region(), &PLATFORM, crate::Liveness::alone(), &options)
        .expect("attaches");
    assert_eq!(share().err(), Some(Error::Busy), "it is not ready");
    let (first, _) = recovery.finish().expect("ready");
    {
        let second = share().expect("attaches");
        assert_eq!((second.epoch, second.hash_seed), (first.epoch, first.hash_seed));
    }
    let other_budget = AttachOptions { cached_files_max: 1024, ..AttachOptions::default() };
    let refused = Fs::attach_shared(image.region(), dram.region(), &PLATFORM, crate::Liveness::alone(), &other_budget);
    assert_eq!(refused.err(), Some(Error::Invalid));
    first.detach_last().expect("detaches");
    assert_eq!(share().err(), Some(Error::Busy), "it is closed");
}
