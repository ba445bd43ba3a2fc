//! Bodies against a model: bytes in a vector, blocks counted.

use super::map::{SIZE_BYTES_MAX, Tree, height_for};
use super::*;
use crate::error::{Corruption, Error};
use crate::format::{FIRST_GENERATION, FileKind, Property};
use crate::fs::{Fs, Node, Thread};
use crate::testing::{Attached, new_image, new_node};
use crate::{NewNode, Result};
use pmem::BLOCK_BYTES;
use std::ops::Range;
use std::vec;
use std::vec::Vec;

pub(super) const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

pub(super) fn file(thread: &Thread<'_>) -> Node {
    thread.create_unnamed(thread.root().expect("a root"), &new_node(FileKind::Regular)).expect("a file")
}

pub(super) fn property(fs: &Fs, thread: &Thread<'_>, node: Node) -> Property {
    thread.cachelets().property(fs.dram().cachelet(node.cachelet).expect("a cachelet")).expect("attributes")
}

/// Reads a whole file, in one piece.
pub(super) fn content(thread: &Thread<'_>, node: Node, size_bytes: u64) -> Vec<u8> {
    let mut bytes = vec![0xee; size_bytes as usize + 1];
    let count = thread.files().read(node, 0, &mut bytes).expect("reads");
    bytes.truncate(count);
    bytes
}

/// Checks that image and DRAM region agree, and that the count of blocks is that of the map.
pub(super) fn check(fs: &Fs, thread: &Thread<'_>, node: Node) {
    let property = property(fs, thread, node);
    let mut counted = 0;
    let count = &mut |_: super::map::Part<'_>| {
        counted += 1;
        Ok(())
    };
    fs.map().walk(fs.map().root(property.root).expect("a root"), count).expect("a map");
    assert_eq!(property.blocks, counted, "blocks of the body");
    let inode = fs.inode(node.number).expect("an inode");
    let (durable, _) = inode.property(node.number, FIRST_GENERATION).expect("an entry");
    assert_eq!(durable, Property { links: durable.links, ..property });
    let mut none_behind_end = Ok(());
    let end = property.size_bytes.div_ceil(BLOCK_BYTES);
    visit_body(fs.pm(), &fs.geometry(), property.root, &mut |part| {
        if let BodyPart::Data { index, flags, .. } = part
            && index >= end
            && flags & BLOCK_UNWRITTEN == 0
        {
            none_behind_end = Err(index);
        }
    })
    .expect("a map");
    assert_eq!(none_behind_end, Ok(()), "written blocks behind the end");
}

/// A small generator; the seed replays a failure.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }

    /// An offset, often at the edge of a block.
    fn offset(&mut self, limit: u64) -> u64 {
        let offset = self.below(limit);
        match self.below(4) {
            0 => offset / BLOCK_BYTES * BLOCK_BYTES,
            1 => (offset / BLOCK_BYTES * BLOCK_BYTES).saturating_sub(1),
            _ => offset,
        }
    }

    fn range(&mut self, limit: u64) -> Range<u64> {
        let offset = self.offset(limit);
        let longest = [100, BLOCK_BYTES, 10 * BLOCK_BYTES, limit][self.below(4) as usize];
        offset..offset + 1 + self.offset(longest)
    }
}

/// Sets the model's bytes of a range to zero, growing it if asked to.
fn model_zero(model: &mut Vec<u8>, range: Range<u64>, grow: bool) {
    if grow && model.len() < range.end as usize {
        model.resize(range.end as usize, 0);
    }
    let end = (range.end as usize).min(model.len());
    if (range.start as usize) < end {
        model[range.start as usize..end].fill(0);
    }
}

fn random_change(
    thread: &Thread<'_>,
    node: Node,
    model: &mut Vec<u8>,
    random: &mut Random,
    limit: u64,
) -> &'static str {
    let Range { start, end } = random.range(limit);
    let keep_size = random.below(2) == 0;
    match random.below(12) {
        0..=3 => {
            let bytes: Vec<u8> = (start..end).map(|_| random.below(255) as u8 + 1).collect();
            assert_eq!(thread.files().write(node, start, &bytes), Ok(bytes.len()));
            model_zero(model, start..end, true);
            model[start as usize..end as usize].copy_from_slice(&bytes);
            "write"
        }
        4 => {
            let bytes: Vec<u8> = (0..(end - start) % 20_000).map(|_| random.below(255) as u8 + 1).collect();
            assert_eq!(thread.files().append(node, &bytes), Ok(model.len() as u64));
            model.extend(&bytes);
            "append"
        }
        5 => {
            assert_eq!(thread.files().truncate(node, start), Ok(()));
            model.resize(start as usize, 0);
            "truncate"
        }
        6 | 7 => {
            assert_eq!(thread.files().allocate(node, AllocateMode::Allocate { keep_size }, start, end - start), Ok(()));
            let size = model.len() as u64;
            model_zero(model, size..end.max(size), !keep_size);
            "allocate"
        }
        8 => {
            assert_eq!(
                thread.files().allocate(node, AllocateMode::ZeroRange { keep_size }, start, end - start),
                Ok(())
            );
            model_zero(model, start..end, !keep_size);
            "zero range"
        }
        9 => {
            assert_eq!(thread.files().allocate(node, AllocateMode::PunchHole, start, end - start), Ok(()));
            model_zero(model, start..end, false);
            "punch"
        }
        10 => {
            let (start, end) = (start / BLOCK_BYTES * BLOCK_BYTES, end.next_multiple_of(BLOCK_BYTES));
            let result = thread.files().allocate(node, AllocateMode::CollapseRange, start, end - start);
            if end < model.len() as u64 {
                assert_eq!(result, Ok(()));
                model.drain(start as usize..end as usize);
            } else {
                assert_eq!(result, Err(Error::Invalid));
            }
            "collapse"
        }
        _ => {
            let (start, end) = (start / BLOCK_BYTES * BLOCK_BYTES, end.next_multiple_of(BLOCK_BYTES));
            let result = thread.files().allocate(node, AllocateMode::InsertRange, start, end - start);
            if start < model.len() as u64 {
                assert_eq!(result, Ok(()));
                model.splice(start as usize..start as usize, vec![0; (end - start) as usize]);
            } else {
                assert_eq!(result, Err(Error::Invalid));
            }
            "insert"
        }
    }
}

/// The model distinguishes data from holes in one direction only: what is not zero is data.
fn check_seek(thread: &Thread<'_>, node: Node, model: &[u8]) {
    let mut at = 0;
    while at < model.len() as u64 {
        let data = match thread.files().seek(node, at, SeekWhat::Data) {
            Ok(data) => data,
            Err(Error::NoSuchExtent) => model.len() as u64,
            Err(error) => panic!("seek {error:?}"),
        };
        assert!(model[at as usize..data as usize].iter().all(|byte| *byte == 0), "a hole has data");
        if data == model.len() as u64 {
            break;
        }
        at = thread.files().seek(node, data, SeekWhat::Hole).expect("the end is a hole");
        assert!(at > data);
    }
    assert_eq!(thread.files().seek(node, model.len() as u64, SeekWhat::Hole), Err(Error::NoSuchExtent));
}

/// A sequence of random changes, each checked against the model. `mapped`: as if programs had
/// mapped the file.
fn check_story(seed: u64, limit: u64, steps: usize, mapped: bool) {
    let image = new_image(64 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let node = file(&thread);
    let free_before = fs.block_map().blocks_free().expect("a count");
    if mapped {
        fs.dram()
            .cachelet(node.cachelet)
            .expect("a cachelet")
            .as_file()
            .mapped()
            .store(1, core::sync::atomic::Ordering::Release);
    }
    let mut random = Random(seed);
    let mut model = Vec::new();
    for step in 0..steps {
        if model.len() as u64 > 3 * limit {
            thread.files().truncate(node, limit).expect("truncates");
            model.truncate(limit as usize);
        }
        let before = property(&fs, &thread, node);
        let what = match mapped {
            false => random_change(&thread, node, &mut model, &mut random, limit),
            true => mapped_change(&thread, node, &mut model, &mut random, limit),
        };
        let result = std::format!("seed {seed:#x}, step {step}: {what}, before: {before:?}");
        let now = content(&thread, node, model.len() as u64);
        assert_eq!(now.len(), model.len(), "{result}");
        if let Some(at) = (0..now.len()).find(|at| now[*at] != model[*at]) {
            panic!("{result}: byte {at} is {} and should be {}", now[at], model[at]);
        }
        check(&fs, &thread, node);
        check_seek(&thread, node, &model);
    }
    fs.dram()
        .cachelet(node.cachelet)
        .expect("a cachelet")
        .as_file()
        .mapped()
        .store(0, core::sync::atomic::Ordering::Release);
    thread.files().truncate(node, 0).expect("truncates");
    assert_eq!(property(&fs, &thread, node).blocks, 0);
    assert_eq!(fs.block_map().blocks_free(), Ok(free_before), "seed {seed:#x}: every block came back");
}

fn mapped_change(
    thread: &Thread<'_>,
    node: Node,
    model: &mut Vec<u8>,
    random: &mut Random,
    limit: u64,
) -> &'static str {
    let map = thread.fs().map();
    let root = map.root(property(thread.fs(), thread, node).root).expect("a root");
    let blocks: Vec<Tree> = (0..limit / BLOCK_BYTES).map(|index| map.leaf(root, index).expect("a leaf")).collect();
    let Range { start, end } = random.range(limit);
    // Moving blocks is refused while programs have them mapped.
    let refused = thread.files().allocate(node, AllocateMode::CollapseRange, 0, BLOCK_BYTES);
    assert!(matches!(refused, Err(Error::Busy | Error::Invalid)));
    let what = match random.below(5) {
        0 | 1 => {
            let bytes: Vec<u8> = (start..end).map(|_| random.below(255) as u8 + 1).collect();
            assert_eq!(thread.files().write(node, start, &bytes), Ok(bytes.len()));
            model_zero(model, start..end, true);
            model[start as usize..end as usize].copy_from_slice(&bytes);
            "write"
        }
        2 => {
            assert_eq!(thread.files().truncate(node, start), Ok(()));
            model.resize(start as usize, 0);
            "truncate"
        }
        3 => {
            assert_eq!(
                thread.files().allocate(node, AllocateMode::ZeroRange { keep_size: true }, start, end - start),
                Ok(())
            );
            model_zero(model, start..end, false);
            "zero range"
        }
        _ => {
            assert_eq!(thread.files().allocate(node, AllocateMode::PunchHole, start, end - start), Ok(()));
            model_zero(model, start..end, false);
            "punch"
        }
    };
    let root = map.root(property(thread.fs(), thread, node).root).expect("a root");
    for (index, block) in blocks.iter().enumerate().filter(|(_, block)| !block.is_empty()) {
        let now = map.leaf(root, index as u64).expect("a leaf");
        assert_eq!(now.offset(), block.offset(), "{what} moved mapped block {index}");
    }
    what
}

#[test]
fn small_files_behave_like_bytes_in_memory() {
    for seed in 1..20 {
        check_story(seed * 0x01e3_779b_97f4_a7c1, 3 * BLOCK_BYTES, 150, false);
    }
}

#[test]
fn files_of_many_blocks_behave_like_bytes_in_memory() {
    for seed in 1..8 {
        check_story(seed * 0x1134_2543_de82_ef95, 5 * MIB, 60, false);
    }
}

#[test]
fn mapped_files_behave_like_bytes_in_memory_and_keep_their_blocks() {
    for seed in 1..20 {
        check_story(seed * 0x01e3_779b_97f4_a7c1, 6 * BLOCK_BYTES, 100, true);
    }
    check_story(0x1234_5678_9abc, 3 * MIB, 60, true);
}

#[test]
fn a_sparse_file_of_16_tib_costs_a_handful_of_blocks() {
    let image = new_image(16 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let node = file(&thread);
    let free_before = fs.block_map().blocks_free().expect("a count");
    for offset in [16 * TIB, 0, 3 * TIB + 5, 255 * TIB] {
        assert_eq!(thread.files().write(node, offset, b"here"), Ok(4));
        check(&fs, &thread, node);
    }
    let mut bytes = [1u8; 8];
    assert_eq!(thread.files().read(node, 3 * TIB + 3, &mut bytes), Ok(8));
    assert_eq!(&bytes, b"\0\0here\0\0");
    assert_eq!(thread.files().seek(node, 10, SeekWhat::Hole), Ok(BLOCK_BYTES));
    assert_eq!(thread.files().seek(node, BLOCK_BYTES, SeekWhat::Data), Ok(3 * TIB));
    assert_eq!(thread.files().seek(node, 4 * TIB, SeekWhat::Data), Ok(16 * TIB));
    assert_eq!(thread.files().seek(node, 17 * TIB, SeekWhat::Data), Ok(255 * TIB));
    let hole = thread.files().extent(node, BLOCK_BYTES).expect("an extent");
    assert_eq!((hole.offset, hole.length, hole.address), (BLOCK_BYTES, 3 * TIB - BLOCK_BYTES, None));
    assert_eq!(thread.files().write(node, SIZE_BYTES_MAX, b"x"), Err(Error::TooLarge));
    assert_eq!(thread.files().write(node, u64::MAX, b"x"), Err(Error::TooLarge));
    assert_eq!(thread.files().write(node, SIZE_BYTES_MAX - 1, b"x"), Ok(1));
    assert_eq!(thread.files().append(node, b"x"), Err(Error::TooLarge));
    assert_eq!(thread.files().allocate(node, AllocateMode::InsertRange, 0, BLOCK_BYTES), Err(Error::TooLarge));
    assert_eq!(thread.files().truncate(node, 4 * TIB), Ok(()));
    check(&fs, &thread, node);
    assert_eq!(thread.files().seek(node, 3 * TIB + BLOCK_BYTES, SeekWhat::Data), Err(Error::NoSuchExtent));
    assert_eq!(thread.files().allocate(node, AllocateMode::CollapseRange, BLOCK_BYTES, 3 * TIB - BLOCK_BYTES), Ok(()));
    check(&fs, &thread, node);
    assert_eq!(
        thread.files().seek(node, BLOCK_BYTES, SeekWhat::Hole),
        Ok(2 * BLOCK_BYTES),
        "what was far off is next to the start"
    );
    assert_eq!(thread.files().truncate(node, 0), Ok(()));
    assert_eq!(fs.block_map().blocks_free(), Ok(free_before));
}

#[test]
fn a_file_that_is_written_from_end_to_end_needs_no_node() {
    let image = new_image(16 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let free_before = fs.block_map().blocks_free().expect("a count");
    let (node, other) = (file(&thread), file(&thread));
    let bytes: Vec<u8> = (0..3 * MIB + 77).map(|at| (at % 251) as u8).collect();
    let blocks = |node| property(&fs, &thread, node).blocks;
    // In pieces with arbitrary boundaries, up to the maximum of an inline extent.
    let mut written = 0;
    for length in [5000, 3000, 10, 100_000, 4096, 2 * MIB as usize - 112_106] {
        assert_eq!(thread.files().append(node, &bytes[written..written + length]), Ok(written as u64));
        written += length;
        assert_eq!(blocks(node), (written as u64).div_ceil(BLOCK_BYTES), "{written}");
        check(&fs, &thread, node);
    }
    // One block more: two levels of nodes.
    thread.files().append(node, &bytes[written..]).expect("appends");
    assert_eq!(blocks(node), (bytes.len() as u64).div_ceil(BLOCK_BYTES) + 3);
    check(&fs, &thread, node);
    assert!(content(&thread, node, bytes.len() as u64) == bytes);
    // A truncated inline extent stays one until one of its blocks is replaced or removed.
    thread.files().write(other, 0, &bytes[..10 * 4096]).expect("writes");
    for (size_bytes, left) in [(8 * 4096 - 5, 8), (3 * 4096, 3), (4096, 1), (9 * 4096, 1), (100, 1)] {
        thread.files().truncate(other, size_bytes).expect("truncates");
        assert_eq!(blocks(other), left);
        check(&fs, &thread, other);
    }
    assert_eq!(content(&thread, other, 100), bytes[..100]);
    thread.files().truncate(other, 0).expect("truncates");
    thread.files().write(other, 0, &bytes[..10 * 4096]).expect("writes");
    thread.files().write(other, 5000, b"else").expect("writes");
    assert_eq!(blocks(other), 11);
    thread.files().allocate(other, AllocateMode::PunchHole, 4096, 4096).expect("punches");
    assert_eq!(blocks(other), 10);
    check(&fs, &thread, other);
    thread.files().truncate(node, 0).expect("truncates");
    thread.files().truncate(other, 0).expect("truncates");
    assert_eq!(fs.block_map().blocks_free(), Ok(free_before));
}

#[test]
fn a_write_that_finds_no_room_changes_nothing() {
    let image = new_image(8 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let node = file(&thread);
    let old: Vec<u8> = (0..3 * MIB + 77).map(|at| (at % 251) as u8).collect();
    assert_eq!(thread.files().write(node, 0, &old), Ok(old.len()));
    let before = property(&fs, &thread, node);
    let free_before = fs.block_map().blocks_free().expect("a count");
    let new = vec![0xab; 9 * MIB as usize];
    let reserve = AllocateMode::Allocate { keep_size: true };
    for attempt in 0..5 {
        let result = match attempt {
            0 => thread.files().write(node, 0, &new).map(drop),
            1 => thread.files().append(node, &new).map(drop),
            2 => thread.files().write(node, MIB + 5, &new).map(drop),
            3 => thread.files().allocate(node, reserve, 0, TIB),
            _ => thread.files().allocate(node, reserve, 10 * MIB, 7 * MIB),
        };
        assert_eq!(result, Err(Error::NoSpace), "attempt {attempt}");
        assert_eq!(property(&fs, &thread, node), before, "attempt {attempt}");
        assert_eq!(fs.block_map().blocks_free(), Ok(free_before), "attempt {attempt}");
        assert!(content(&thread, node, before.size_bytes) == old, "attempt {attempt}");
        check(&fs, &thread, node);
    }
    // Blocks reserved behind the end survive a failed append.
    assert_eq!(thread.files().allocate(node, reserve, 3 * MIB, MIB), Ok(()));
    let before = property(&fs, &thread, node);
    let free_before = fs.block_map().blocks_free().expect("a count");
    assert_eq!(thread.files().append(node, &new), Err(Error::NoSpace));
    assert_eq!((property(&fs, &thread, node), fs.block_map().blocks_free()), (before, Ok(free_before)));
    check(&fs, &thread, node);
}

#[test]
fn reserved_blocks_are_used_without_new_ones_and_survive_a_full_image() {
    let image = new_image(8 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let node = file(&thread);
    assert_eq!(thread.files().allocate(node, AllocateMode::Allocate { keep_size: true }, 0, MIB), Ok(()));
    let hog = file(&thread);
    let piece = vec![1u8; 64 << 10];
    while thread.files().append(hog, &piece).is_ok() {}
    while thread.files().append(hog, &piece[..4096]).is_ok() {}
    assert_eq!(fs.block_map().blocks_free(), Ok(fs.spare_blocks));
    let bytes: Vec<u8> = (0..MIB).map(|at| (at % 241) as u8).collect();
    for chunk in bytes.chunks(100_000) {
        assert!(thread.files().append(node, chunk).is_ok(), "reserved");
    }
    assert!(content(&thread, node, MIB) == bytes);
    check(&fs, &thread, node);
}

#[test]
fn a_reader_never_sees_half_of_a_write() {
    const BLOCKS: usize = 6;
    let image = new_image(32 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let node = file(&thread);
    let big = 4 * MIB;
    // High enough that the swap is inside the map, not at the root.
    assert_eq!(thread.files().write(node, big, b"end"), Ok(3));
    let length = BLOCKS * BLOCK_BYTES as usize;
    assert_eq!(thread.files().write(node, 0, &vec![1; length]), Ok(length));
    let done = core::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let reader = fs.enter().expect("enters");
                let mut bytes = vec![0; length];
                while !done.load(core::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(reader.files().read(node, 0, &mut bytes), Ok(length));
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixture of {} and others", bytes[0]);
                }
            });
        }
        for round in 0..20_000u32 {
            let bytes = vec![round as u8; length];
            assert_eq!(thread.files().write(node, 0, &bytes), Ok(length));
        }
        done.store(true, core::sync::atomic::Ordering::Relaxed);
    });
    check(&fs, &thread, node);
}

#[test]
fn the_death_of_a_writer_while_it_publishes_a_change_is_recovered() {
    static MORTAL: crate::testing::TestPlatform = crate::testing::TestPlatform::new();
    let image = new_image(8 * MIB, 1024);
    let fs = Attached::with(&image, &MORTAL, &Default::default(), 1).expect("attaches");
    let thread = fs.enter().expect("enters");
    let node = file(&thread);
    assert_eq!(thread.files().write(node, 0, b"all of it"), Ok(9));
    let cachelet = fs.dram().cachelet(node.cachelet).expect("a cachelet");
    for round in 0..2 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let writer = fs.enter().expect("enters");
                core::mem::forget(writer.lock(&cachelet.lock, &cachelet.waiters).expect("takes the lock"));
                core::mem::forget(writer);
                MORTAL.kill();
            });
        });
        cachelet.version.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        cachelet.as_file().size_bytes().store(5, core::sync::atomic::Ordering::Relaxed);
        cachelet.sequence.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        match round {
            0 => assert_eq!(content(&thread, node, 100), b"all of it"),
            _ => assert_eq!(thread.files().append(node, b", and more"), Ok(9)),
        }
        check(&fs, &thread, node);
    }
    assert_eq!(content(&thread, node, 100), b"all of it, and more");
}

#[test]
fn what_a_dead_writer_left_behind_the_end_is_used_or_cleared() {
    let image = new_image(8 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    for way in 0..3 {
        let node = file(&thread);
        assert_eq!(thread.files().write(node, 0, &[7; 2 * 4096]), Ok(2 * 4096));
        let cachelet = thread.cachelet(node).expect("a cachelet");
        thread.files().with_nodes(cachelet, &property(&fs, &thread, node)).expect("a node");
        let stray = thread.allocator().allocate_blocks(1).expect("a block").first * BLOCK_BYTES;
        let flushed = fs.pm().stream_bytes(stray, &[9; 4096]).expect("inside");
        let durable = fs.pm().fence(flushed);
        let root = fs.map().root(property(&fs, &thread, node).root).expect("a root");
        let dirty = fs.pm().commit(&fs.map().node(root).expect("a node").words[2], stray, durable);
        fs.pm().persist(dirty);
        match way {
            0 => assert_eq!(thread.files().append(node, &[8; 2 * 4096 + 10]), Ok(2 * 4096)),
            1 => assert_eq!(thread.files().truncate(node, 5 * 4096), Ok(())),
            _ => assert_eq!(thread.files().write(node, 4096, &[8; 4096 + 10]), Ok(4096 + 10)),
        }
        let bytes = content(&thread, node, 5 * 4096);
        assert!(!bytes.contains(&9), "way {way}");
        check(&fs, &thread, node);
    }
}

#[test]
fn readers_of_a_file_that_shrinks_and_grows_see_one_state_of_it() {
    let image = new_image(32 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let node = file(&thread);
    let other = file(&thread);
    let done = core::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let reader = fs.enter().expect("enters");
            let mut bytes = vec![0; 64 << 10];
            while !done.load(core::sync::atomic::Ordering::Relaxed) {
                let count = reader.files().read(node, 0, &mut bytes).expect("reads");
                assert!(bytes[..count].iter().all(|byte| *byte == bytes[0]), "a mixture in {count} bytes");
                assert!(count == 0 || bytes[0] != 0xff, "bytes of another file");
                let seen = reader.files().seek(node, 0, SeekWhat::Hole);
                assert!(matches!(seen, Ok(_) | Err(Error::NoSuchExtent)), "{seen:?}");
            }
        });
        for round in 0..5_000u64 {
            let length = (round * 7919 % 60_000 + 1) as usize;
            assert_eq!(thread.files().truncate(node, 0), Ok(()));
            // Freed blocks serve another file at once.
            assert_eq!(thread.files().write(other, 0, &vec![0xff; 60_000]), Ok(60_000));
            assert_eq!(thread.files().append(node, &vec![(round % 200) as u8 + 1; length]), Ok(0));
            assert_eq!(thread.files().truncate(node, length as u64 / 2), Ok(()));
        }
        done.store(true, core::sync::atomic::Ordering::Relaxed);
    });
    check(&fs, &thread, node);
}

#[test]
fn recovery_clears_what_was_placed_behind_the_end_before_the_length_committed() {
    let image = new_image(8 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let node = file(&thread);
    assert_eq!(thread.files().write(node, 0, &vec![7; 3 * BLOCK_BYTES as usize]), Ok(3 * BLOCK_BYTES as usize));
    let reserve = AllocateMode::Allocate { keep_size: true };
    assert_eq!(thread.files().allocate(node, reserve, 100 * BLOCK_BYTES, 2 * BLOCK_BYTES), Ok(()));
    let property = property(&fs, &thread, node);
    // The power fails between the pointer and the length.
    let stray = thread.allocator().allocate_blocks(1).expect("a block").first;
    let root = fs.map().root(property.root).expect("a root");
    let cell = &fs.map().node(root).expect("a node").words[3];
    let dirty = fs.pm().commit(cell, stray * BLOCK_BYTES, fs.pm().fence_nothing_new());
    fs.pm().persist(dirty);
    let mut marked = Vec::new();
    let counted = recover_body(&fs, &property, true, &mut |blocks| {
        marked.extend(blocks.run.first..blocks.run.first + blocks.run.count);
        Ok(())
    });
    assert_eq!(counted, Ok(property.blocks));
    assert_eq!(marked.len() as u64, property.blocks);
    assert!(!marked.contains(&stray));
    assert_eq!(cell.load(), 0);
    assert!(fs.map().leaf(root, 100).expect("a leaf").word & BLOCK_UNWRITTEN != 0, "what is reserved stays");
    // Growing exposes zeros only.
    assert_eq!(thread.files().truncate(node, 200 * BLOCK_BYTES), Ok(()));
    let bytes = content(&thread, node, 200 * BLOCK_BYTES);
    assert!(bytes[3 * BLOCK_BYTES as usize..].iter().all(|byte| *byte == 0));
}

#[test]
fn what_lies_behind_the_end_is_never_exposed() {
    let image = new_image(8 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    for grow in 0..5 {
        let node = file(&thread);
        assert_eq!(thread.files().write(node, 0, &[9; 6000]), Ok(6000));
        assert_eq!(thread.files().truncate(node, 4100), Ok(()));
        match grow {
            0 => assert_eq!(thread.files().truncate(node, 9000), Ok(())),
            1 => assert_eq!(thread.files().write(node, 9000, b"x"), Ok(1)),
            2 => assert_eq!(thread.files().write(node, 4500, b"x"), Ok(1)),
            3 => assert_eq!(
                thread.files().allocate(node, AllocateMode::Allocate { keep_size: false }, 4096, 9000),
                Ok(())
            ),
            _ => assert_eq!(
                thread.files().allocate(node, AllocateMode::ZeroRange { keep_size: false }, 8000, 900),
                Ok(())
            ),
        }
        let bytes = content(&thread, node, 20_000);
        let exposed = bytes[4100..].iter().filter(|byte| **byte == 9).count();
        assert_eq!(exposed, 0, "way {grow}");
    }
}

#[test]
fn damaged_maps_are_errors() {
    let image = new_image(8 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let node = file(&thread);
    assert_eq!(thread.files().write(node, 3 * MIB, b"x"), Ok(1));
    let property = property(&fs, &thread, node);
    let root = fs.map().root(property.root).expect("a root");
    let cell = &fs.map().node(root).expect("a node").words[0];
    let good = [0, root.word];
    for bad in [1, 8, BLOCK_BYTES, root.word | 1, root.word + 8, u64::MAX, fs.geometry().copy_block() * BLOCK_BYTES] {
        let dirty = fs.pm().commit(cell, bad, fs.pm().fence_nothing_new());
        fs.pm().persist(dirty);
        let expected = Err(Error::Corrupt(Corruption::BlockMap(bad)));
        assert_eq!(thread.files().read(node, 0, &mut [0; 10]), expected);
        assert_eq!(visit_body(fs.pm(), &fs.geometry(), property.root, &mut |_| {}).map(|()| 0), expected);
        assert_eq!(thread.files().write(node, 0, b"y"), expected);
    }
    for bad in [5, root.word | 5, root.word | 1 << 4 | 1, root.word | 0x80] {
        assert!(visit_body(fs.pm(), &fs.geometry(), bad, &mut |_| {}).is_err(), "{bad:#x}");
    }
    // A node that leads to itself must not loop.
    let dirty = fs.pm().commit(cell, good[1], fs.pm().fence_nothing_new());
    fs.pm().persist(dirty);
    let _ = visit_body(fs.pm(), &fs.geometry(), property.root, &mut |_| {});
    let _ = thread.files().read(node, 0, &mut [0; 10]);
}

#[test]
fn trees_are_as_high_as_they_need_to_be() {
    assert_eq!([0, 1, 511, 512, 262_143, 262_144, 1 << 27, (1 << 36) - 1].map(height_for), [0, 1, 1, 2, 2, 3, 4, 4]);
    for root in [0, 0x5000, 0x5010, 0x5020, 0x5030, 0x5001, 0x5004] {
        assert_eq!(Tree::from_root(root).map(Tree::to_root), Ok(root));
    }
}

/// All attributes of a file, as the calls return them.
fn attributes(thread: &Thread<'_>, node: Node) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = Vec::new();
    thread.files().xattr_names(node, &mut |name| names.push(name.to_vec())).expect("names");
    names.sort();
    let value = |name: &Vec<u8>| {
        let length = thread.files().xattr(node, name, &mut []).expect("a length");
        let mut value = vec![0; length];
        if length > 0 {
            assert_eq!(thread.files().xattr(node, name, &mut value), Ok(length));
        }
        value
    };
    names.iter().map(|name| (name.clone(), value(name))).collect()
}

#[test]
fn extended_attributes_behave_like_a_map() {
    let image = new_image(32 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let node = file(&thread);
    let free_before = fs.block_map().blocks_free().expect("a count");
    let mut model = std::collections::BTreeMap::new();
    let mut random = Random(0x5eed_1234_5678);
    for _ in 0..400 {
        let name = std::format!("user.{}", random.below(30)).into_bytes();
        if random.below(4) == 0 {
            let expected = model.remove(&name).map(drop).ok_or(Error::NoAttribute);
            assert_eq!(thread.files().remove_xattr(node, &name), expected);
        } else {
            let longest = [10, 3000, 65_537][random.below(3) as usize];
            let length = random.below(longest);
            let value: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
            let (create, replace) = (random.below(4) == 0, random.below(4) == 0);
            let expected = match model.contains_key(&name) {
                true if create => Err(Error::Exists),
                false if replace => Err(Error::NoAttribute),
                _ => Ok(()),
            };
            let result = thread.files().set_xattr(node, &name, &value, create, replace);
            if result != Err(Error::NoSpace) {
                assert_eq!(result, expected);
            }
            if result.is_ok() {
                model.insert(name, value);
            }
        }
        assert_eq!(attributes(&thread, node), model.clone().into_iter().collect::<Vec<_>>());
        let inode = fs.inode(node.number).expect("an inode");
        assert_eq!(recover_xattrs(&fs, inode, &mut |_| Ok(())), Ok(()));
    }
    for name in model.keys() {
        assert_eq!(thread.files().remove_xattr(node, name), Ok(()));
    }
    assert_eq!(fs.inode(node.number).expect("an inode").xattrs.load(), 0);
    thread.recycler().drain().expect("recycles");
    assert_eq!(fs.block_map().blocks_free(), Ok(free_before));
}

#[test]
fn extended_attributes_have_limits() {
    let image = new_image(32 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let node = file(&thread);
    assert_eq!(thread.files().set_xattr(node, b"user.a", &vec![0; 65_537], false, false), Err(Error::TooBig));
    assert_eq!(thread.files().set_xattr(node, &[b'a'; 256], b"", false, false), Err(Error::TooSmall(255)));
    assert_eq!(thread.files().set_xattr(node, b"", b"", false, false), Err(Error::TooSmall(255)));
    assert_eq!(thread.files().set_xattr(node, &[b'a'; 255], &vec![3; 65_536], false, false), Ok(()));
    assert_eq!(thread.files().xattr(node, &[b'a'; 255], &mut [0; 10]), Err(Error::TooSmall(65_536)));
    let fill = |number: u8| thread.files().set_xattr(node, &[number], &vec![3; 65_536], false, false);
    let result: Vec<Result<()>> = (1..20).map(fill).collect();
    assert_eq!(result[18], Err(Error::NoSpace));
    assert_eq!((Error::TooBig.errno(), Error::TooSmall(0).errno()), (7, 34));
    // Damage is detected before a new checksum would certify it.
    let root = Tree::from_root(fs.inode(node.number).expect("an inode").xattrs.load()).expect("a root");
    let block = fs.map().leaf(root, 1).expect("a leaf");
    let dirty = fs.pm().write_bytes(block.offset() + 100, b"x").expect("inside");
    fs.pm().persist(dirty);
    let damaged = Err(Error::Corrupt(Corruption::Xattrs(root.to_root())));
    assert_eq!(thread.files().set_xattr(node, b"b", b"", false, false), damaged);
    let inode = fs.inode(node.number).expect("an inode");
    assert_eq!(recover_xattrs(&fs, inode, &mut |_| Ok(())), damaged);
}

#[test]
fn a_body_of_one_block_is_made_for_a_long_symlink() {
    let image = new_image(8 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let target = [b'/'; 4095];
    let new = NewNode { target: &target, ..new_node(FileKind::Symlink) };
    let node = thread.create_unnamed(thread.root().expect("a root"), &new).expect("a link");
    let mut read = [0; 5000];
    assert_eq!(thread.read_link(node, &mut read), Ok(4095));
    assert_eq!(&read[..4095], &target);
    assert_eq!(thread.files().write(node, 0, b"x"), Err(Error::Invalid));
    assert_eq!(write_new_body(&thread, &[0; 4097]).map(drop), Err(Error::TooLarge));
}

#[test]
fn bodies_survive_a_clean_detach() {
    let image = new_image(16 * MIB, 1024);
    let bytes: Vec<u8> = (0..3 * MIB).map(|at| (at % 253) as u8).collect();
    let fs = Attached::new(&image).expect("attaches");
    let number = {
        let thread = fs.enter().expect("enters");
        let root = thread.root().expect("a root");
        let node = thread.create(root, b"name", &new_node(FileKind::Regular)).expect("a file");
        assert_eq!(thread.files().write(node, 0, &bytes), Ok(bytes.len()));
        thread.release(node, 1);
        node.number
    };
    fs.detach().expect("detaches");
    let fs = Attached::new(&image).expect("attaches again");
    let thread = fs.enter().expect("enters");
    let node = thread.node(number, None).expect("the file");
    assert!(content(&thread, node, 3 * MIB) == bytes);
}
