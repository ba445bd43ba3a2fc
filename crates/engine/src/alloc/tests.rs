//! Everything that is handed out is handed out once.

use super::BlockRun;
use crate::attach::{DescriptionChange, set_identity};
use crate::dram::RetiredKind;
use crate::error::Error;
use crate::format::{FileKind, INODES_PER_SEGMENT, SegmentEntry};
use crate::fs::Thread;
use crate::testing::{Attached, new_image, new_node};
use core::sync::atomic::Ordering::Relaxed;
use pmem::BLOCK_BYTES;
use std::collections::HashSet;
use std::sync::Barrier;
use std::vec::Vec;

const MIB: u64 = 1 << 20;

fn take_all(thread: &Thread<'_>, wanted: u64) -> Vec<BlockRun> {
    let mut runs = Vec::new();
    loop {
        match thread.allocator().allocate_blocks(wanted) {
            Ok(run) => runs.push(run),
            Err(Error::NoSpace) => return runs,
            Err(error) => panic!("{error}"),
        }
    }
}

fn blocks_of(runs: &[BlockRun]) -> Vec<u64> {
    runs.iter().flat_map(|run| run.first..run.first + run.count).collect()
}

#[test]
fn every_block_is_handed_out_once_until_there_are_none_and_again_after_they_were_freed() {
    let image = new_image(16 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let free = fs.block_map().blocks_free().expect("a count");
    for wanted in [1, 7, 512] {
        let runs = take_all(&thread, wanted);
        let blocks = blocks_of(&runs);
        assert_eq!(blocks.len() as u64, free, "all of them");
        assert_eq!(blocks.iter().collect::<HashSet<_>>().len(), blocks.len(), "each once");
        assert!(runs.iter().all(|run| fs.block_map().is_data(*run) && run.count <= wanted));
        assert_eq!(fs.block_map().blocks_free(), Ok(0));
        runs.iter().for_each(|run| thread.allocator().free_blocks(*run).expect("frees"));
        assert_eq!(fs.block_map().blocks_free(), Ok(free));
    }
}

#[test]
fn threads_that_allocate_at_once_leave_the_reserve_together() {
    const RESERVE: u32 = 1000;
    let image = new_image(16 * MIB, 0);
    let change = DescriptionChange { reserved_blocks: Some(RESERVE), ..DescriptionChange::default() };
    set_identity(&image.region(), &change).expect("a reserve");
    let fs = Attached::new(&image).expect("attaches");
    let all = fs.block_map().blocks_free().expect("a count");
    let start = Barrier::new(3);
    for wanted in [32, 7, 1].repeat(100) {
        let taken: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let thread = fs.enter().expect("enters");
                        thread.set_leaves_reserve(|| true);
                        start.wait();
                        take_all(&thread, wanted)
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("ends")).collect()
        });
        let free = fs.block_map().blocks_free().expect("a count");
        assert_eq!(free + blocks_of(&taken).len() as u64, all, "each block once");
        assert!(free >= RESERVE.into(), "{wanted} wanted, {free} left");
        assert!(free < u64::from(RESERVE) + 3 * wanted, "{wanted} wanted, {free} left");
        let thread = fs.enter().expect("enters");
        taken.iter().for_each(|run| thread.allocator().free_blocks(*run).expect("frees"));
    }
}

#[test]
fn a_file_that_grows_alone_stays_in_one_piece() {
    let image = new_image(16 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let first = thread.allocator().allocate_blocks(1).expect("a block");
    for step in 1..100 {
        assert_eq!(thread.allocator().allocate_blocks(1), Ok(BlockRun { first: first.first + step, count: 1 }));
    }
}

#[test]
fn what_comes_and_goes_keeps_to_the_part_of_the_image_that_it_has() {
    let image = new_image(64 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    // A fifth of the image; then as many small pieces come and go.
    let mut pieces: Vec<BlockRun> = (0..800).map(|_| thread.allocator().allocate_blocks(4).expect("blocks")).collect();
    let first = pieces[0].first;
    let mut random = 1u64;
    for _ in 0..40_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (random >> 33) as usize % pieces.len();
        thread.allocator().free_blocks(pieces[at]).expect("frees");
        pieces[at] = thread.allocator().allocate_blocks(4).expect("blocks");
        let reach = pieces[at].first + pieces[at].count - first;
        assert!(reach <= 5600, "of 3200 blocks in use one is {reach} behind the first");
    }
}

#[test]
fn blocks_of_an_idle_shard_s_group_are_found_when_there_are_no_others() {
    let image = new_image(4 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let (first, second) = (fs.enter().expect("enters"), fs.enter().expect("enters"));
    let mut blocks = Vec::from([first.allocator().allocate_blocks(1).expect("a block")]);
    let free = fs.block_map().blocks_free().expect("a count");
    blocks.extend(take_all(&second, 16));
    assert_eq!(blocks_of(&blocks).len() as u64, free + 1);
}

#[test]
fn a_run_of_exact_length_is_whole_or_refused() {
    let image = new_image(4 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let all = take_all(&thread, 1);
    let middle = all[all.len() / 2].first;
    for block in [middle, middle + 1, middle + 3, middle + 4, middle + 5] {
        thread.allocator().free_blocks(BlockRun { first: block, count: 1 }).expect("frees");
    }
    assert_eq!(thread.allocator().allocate_contiguous(4), Err(Error::NoSpace));
    assert_eq!(thread.allocator().allocate_contiguous(3), Ok(BlockRun { first: middle + 3, count: 3 }));
    assert_eq!(thread.allocator().allocate_contiguous(513), Err(Error::NoSpace));
    assert!(thread.allocator().free_blocks(BlockRun { first: 0, count: 1 }).is_err(), "the superblock cannot be freed");
}

#[test]
fn inodes_are_to_be_had_where_no_two_free_blocks_lie_side_by_side() {
    let image = new_image(16 * MIB, 4096);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let blocks = blocks_of(&take_all(&thread, 512));
    let room: HashSet<u64> = blocks.iter().copied().filter(|block| block % 2 == 0).take(3 * 17 + 16).collect();
    room.iter().for_each(|block| thread.allocator().free_blocks(BlockRun { first: *block, count: 1 }).expect("frees"));
    let mut numbers = Vec::new();
    loop {
        match thread.allocator().allocate_inode() {
            Ok(number) => numbers.push(number),
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(fs.block_map().blocks_free(), Ok(16), "a fourth segment finds no space and takes none");
    assert_eq!(numbers.len() as u64, 4 * INODES_PER_SEGMENT - 2, "all but number 0 and the root");
    let offsets: HashSet<u64> = numbers.iter().map(|number| fs.inode_offset(*number).expect("a place")).collect();
    assert_eq!(offsets.len(), numbers.len());
    let apart = offsets.iter().filter(|offset| room.contains(&(*offset / BLOCK_BYTES))).count() as u64;
    assert_eq!(apart, 3 * INODES_PER_SEGMENT);
    for segment in 1..4 {
        let listed = fs.segment(segment).expect("whole");
        assert!(matches!(listed.entry(), SegmentEntry::List(_)));
        assert!(listed.blocks().all(|block| room.contains(&block)));
    }
}

#[test]
fn two_threads_never_get_the_same_block_lines_or_inode() {
    let image = new_image(64 * MIB, 16384);
    let fs = Attached::new(&image).expect("attaches");
    let free = fs.block_map().blocks_free().expect("a count");
    let both = std::sync::Barrier::new(2);
    let work = || {
        let thread = fs.enter().expect("enters");
        both.wait();
        let (mut blocks, mut lines, mut inodes) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..6000u64 {
            let run = thread.allocator().allocate_blocks(1 + round % 5).expect("blocks");
            if round % 3 == 0 {
                thread.allocator().free_blocks(run).expect("frees")
            } else if round % 8 == 1 {
                blocks.push(run)
            } else {
                thread.allocator().free_blocks(run).expect("frees")
            }
            let count = 1 + round % 5;
            let offset = thread.allocator().allocate_lines(count).expect("lines");
            if round % 2 == 0 {
                lines.push((offset, count))
            } else {
                thread.allocator().free_lines(offset, count).expect("frees")
            }
            let number = thread.allocator().allocate_inode().expect("an inode");
            if round % 4 != 0 { inodes.push(number) } else { thread.allocator().put_back_inode(number).expect("frees") }
        }
        (blocks, lines, inodes)
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let mut lines = HashSet::new();
    let mut blocks = HashSet::new();
    let mut inodes = HashSet::new();
    for (some_blocks, some_lines, some_inodes) in &results {
        assert!(blocks_of(some_blocks).into_iter().all(|block| blocks.insert(block)));
        assert!(
            some_lines
                .iter()
                .flat_map(|(offset, count)| (0..*count).map(move |line| offset + line * 64))
                .all(|line| lines.insert(line))
        );
        assert!(some_inodes.iter().all(|number| inodes.insert(*number)));
    }
    assert!(lines.iter().all(|line| !blocks.contains(&(line / 4096))), "blocks of dentries are not given to files");
    assert!(!inodes.contains(&0) && !inodes.contains(&1));
    fs.enter().expect("enters").recycler().reclaim_space().expect("reclaims");
    let segments = fs.header().expect("a header").segments.load(core::sync::atomic::Ordering::Relaxed);
    let listed: HashSet<u64> = lines.iter().map(|line| line / 4096).collect();
    let used = blocks.len() as u64 + listed.len() as u64 + (segments - 1) * 16;
    let lost = free - used - fs.block_map().blocks_free().expect("a count");
    assert!(lost <= 4, "only empty slabs on a shard's list are neither used nor free: {lost}");
    let slabs: HashSet<u64> = lines.iter().map(|line| line / 4096).collect();
    assert!(slabs.len() < lines.len() / 64 * 2 + 8, "freed lines are used again");
}

#[test]
fn inode_numbers_ascend_come_back_after_they_are_freed_and_end_at_the_limit() {
    let image = new_image(8 * MIB, 512);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let numbers: Vec<u64> = (0..510).map(|_| thread.allocator().allocate_inode().expect("an inode")).collect();
    assert_eq!(numbers, (2..512).collect::<Vec<u64>>(), "neighbours in time are neighbours in memory");
    assert_eq!(thread.allocator().allocate_inode(), Err(Error::NoInodes));
    assert_eq!(fs.inodes_used(), Ok(511));
    [70, 300].iter().for_each(|number| thread.allocator().put_back_inode(*number).expect("frees"));
    assert_eq!(fs.inodes_used(), Ok(509));
    assert_eq!(
        HashSet::from([
            thread.allocator().allocate_inode().expect("one"),
            thread.allocator().allocate_inode().expect("two")
        ]),
        HashSet::from([70, 300])
    );
}

#[test]
fn cachelets_move_from_the_shard_that_closes_to_the_one_that_opens_and_end_at_the_limit() {
    let image = new_image(2 * MIB, 256);
    let fs = Attached::new(&image).expect("attaches");
    let (opens, closes) = (fs.enter().expect("enters"), fs.enter().expect("enters"));
    let mut seen = HashSet::new();
    while let Ok(index) = opens.allocator().allocate_cachelet() {
        assert!(index != 0 && seen.insert(index), "each once");
    }
    assert_eq!(opens.allocator().allocate_cachelet(), Err(Error::NoMemory));
    assert_eq!(seen.len() as u64, fs.dram().layout.cachelets_max - 1);
    seen.iter().for_each(|index| closes.allocator().free_cachelet(*index).expect("frees"));
    drop(closes);
    let again: HashSet<u32> = std::iter::from_fn(|| opens.allocator().allocate_cachelet().ok()).collect();
    assert_eq!(again, seen, "all are free again, also those of the idle shard");
}

#[test]
fn retired_objects_wait_for_pinned_threads_and_return_when_space_is_short() {
    let image = new_image(4 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let (reader, writer) = (fs.enter().expect("enters"), fs.enter().expect("enters"));
    let all = take_all(&writer, 1);
    let pin = reader.pin();
    {
        let _inside = writer.pin();
        all.iter().take(100).for_each(|run| writer.recycler().retire(RetiredKind::Blocks, run.first, run.count));
    }
    assert_eq!(writer.recycler().recycle(100), Ok(0), "the reader may be looking at them");
    assert_eq!(writer.allocator().allocate_blocks(1), Err(Error::NoSpace));
    drop(pin);
    assert_eq!(writer.recycler().reclaim_space(), Ok(true));
    assert_eq!(fs.block_map().blocks_free(), Ok(100));
    assert_eq!(writer.recycler().reclaim_space(), Ok(false), "nothing left to recycle");
}

#[test]
fn lines_that_lie_free_in_slabs_of_others_are_found_when_there_are_no_blocks() {
    let image = new_image(4 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let (first, second) = (fs.enter().expect("enters"), fs.enter().expect("enters"));
    // Ten slabs, of each of which one line stays in use.
    let lines: Vec<u64> = (0..640).map(|_| take_line(&first)).collect();
    take_all(&first, 1);
    for line in lines.iter().filter(|line| **line % 4096 != 0) {
        first.allocator().free_lines(*line, 1).expect("frees");
    }
    let mut again: Vec<u64> =
        std::iter::from_fn(|| second.allocator().allocate_lines(5).ok().inspect(|_| let_go(&second))).collect();
    assert!(again.len() >= 9 * 12, "all but what the first one hands out itself: {}", again.len());
    assert_eq!(second.allocator().allocate_lines(5), Err(Error::NoSpace));
    again.drain(..).for_each(|line| second.allocator().free_lines(line, 5).expect("frees"));
}

fn take_line(thread: &crate::fs::Thread<'_>) -> u64 {
    let line = thread.allocator().allocate_lines(1).expect("a line");
    let_go(thread);
    line
}

/// Clears the record of in-flight allocations.
fn let_go(thread: &crate::fs::Thread<'_>) {
    thread.slot.in_flight.dentries.iter().for_each(|word| word.store(0, core::sync::atomic::Ordering::Relaxed));
}

#[test]
fn the_room_of_a_large_file_is_there_when_its_removal_returns() {
    let image = new_image(8 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let (removes, writes) = (fs.enter().expect("enters"), fs.enter().expect("enters"));
    let root = removes.root().expect("a root");
    let new = new_node(crate::format::FileKind::Regular);
    let large = removes.create(root, b"large", &new).expect("creates");
    let mut written = 0;
    while removes.files().append(large, &[1; 64 << 10]).is_ok() {
        written += 16;
    }
    removes.release(large, 1);
    removes.unlink(root, b"large", |_| Ok(())).expect("unlinks");
    // The remover is alive, and does nothing more.
    assert!(fs.block_map().blocks_free().expect("a count") >= written, "{written} blocks");
    let other = writes.create(root, b"other", &new).expect("creates");
    for _ in 0..written / 16 {
        writes.files().append(other, &[2; 64 << 10]).expect("there is room");
    }
    writes.release(other, 1);
    writes.release(root, 1);
}

#[test]
fn what_an_idle_shard_has_not_recycled_is_found_by_another() {
    let image = new_image(4 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let (stays, leaves) = (fs.enter().expect("enters"), fs.enter().expect("enters"));
    let free = fs.block_map().blocks_free().expect("a count");
    let run = leaves.allocator().allocate_blocks(9).expect("blocks");
    leaves.allocator().allocate_inode().expect("fills a magazine");
    leaves.recycler().retire(RetiredKind::Blocks, run.first, run.count);
    drop(leaves);
    assert_eq!(stays.recycler().reclaim_space(), Ok(true));
    assert_eq!(fs.block_map().blocks_free(), Ok(free));
    assert_eq!(fs.header().expect("a header").inodes_used(), 2);
}

#[test]
fn the_queue_makes_room_before_it_is_full() {
    let image = new_image(32 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let free = fs.block_map().blocks_free().expect("a count");
    for _ in 0..5000 {
        thread.recycler().make_room().expect("room");
        let _inside = thread.pin();
        let run = thread.allocator().allocate_blocks(1).expect("a block");
        thread.recycler().retire(RetiredKind::Blocks, run.first, run.count);
    }
    thread.recycler().drain().expect("drains");
    assert_eq!(fs.block_map().blocks_free(), Ok(free));
}

#[test]
fn a_clean_detach_brings_back_exactly_the_free_lines_blocks_and_inodes() {
    let image = new_image(8 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let lines: Vec<u64> = (0..1000).map(|_| thread.allocator().allocate_lines(1).expect("a line")).collect();
    lines.iter().step_by(2).for_each(|line| thread.allocator().free_lines(*line, 1).expect("frees"));
    let inode = thread.allocator().allocate_inode().expect("an inode");
    drop(thread);
    let blocks_free = fs.block_map().blocks_free().expect("a count");
    fs.detach().expect("detaches");

    let fs = Attached::new(&image).expect("attaches");
    assert!(!fs.report.scanned);
    assert_eq!(fs.block_map().blocks_free(), Ok(blocks_free));
    assert_eq!(fs.inodes_used(), Ok(2));
    let thread = fs.enter().expect("enters");
    assert_ne!(thread.allocator().allocate_inode(), Ok(inode), "it is taken");
    let kept: HashSet<u64> = lines.iter().skip(1).step_by(2).copied().collect();
    let again: HashSet<u64> = (0..500).map(|_| thread.allocator().allocate_lines(1).expect("a line")).collect();
    assert!(again.is_disjoint(&kept));
    assert_eq!(fs.block_map().blocks_free(), Ok(blocks_free), "no new block was needed");
    // A line of a block that was full comes back, too.
    kept.iter().for_each(|line| thread.allocator().free_lines(*line, 1).expect("frees"));
}

#[test]
fn a_snapshot_that_does_not_verify_is_not_believed() {
    let image = new_image(8 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let map = fs.geometry().block_map_block * 4096;
    fs.detach().expect("detaches");
    let region = image.region();
    let mut byte = [0];
    region.read_bytes(map + 40, &mut byte).expect("reads");
    let _ = region.write_bytes(map + 40, &[byte[0] ^ 4]).expect("writes");
    let fs = Attached::new(&image).expect("attaches");
    assert!(fs.report.scanned);
}

#[test]
fn locks_of_the_allocators_that_a_stopped_thread_holds_keep_no_other_thread_waiting() {
    let image = new_image(64 * MIB, 0);
    let fs = Attached::new(&image).expect("attaches");
    let (stopped, thread) = (fs.enter().expect("enters"), fs.enter().expect("enters"));
    let root = thread.root().expect("a root");
    let make = |number: usize| {
        let name = std::format!("name {number}");
        let file = thread.create(root, name.as_bytes(), &new_node(FileKind::Regular)).expect("makes");
        thread.files().write(file, 0, &[7; 9000]).expect("writes");
        thread.release(file, 1);
    };
    let remove = |number: usize| {
        thread.unlink(root, std::format!("name {number}").as_bytes(), |_| Ok(())).expect("removes");
    };
    (0..700).for_each(make);
    let header = fs.header().expect("a header");
    let group = fs.dram.group(thread.slot.group.load(Relaxed) - 1).expect("a group");
    let slab = fs.dram.slab(thread.slot.slab.load(Relaxed)).expect("a slab");
    let older = fs.dram.slab(thread.slot.slab.load(Relaxed) - 1).expect("a block");
    let part = &header.inode_map[0];
    let held = [
        (&group.lock, &group.waiters),
        (&slab.lock, &slab.waiters),
        (&older.lock, &older.waiters),
        (&part.lock, &part.waiters),
        (&header.grow_lock, &header.rare_waiters),
        (&header.segment_lock, &header.segment_waiters),
    ]
    .map(|(word, waiters)| stopped.try_lock(word, waiters).expect("no thread has it"));
    (0..700).for_each(remove);
    for _ in 0..20 {
        (0..200).for_each(make);
        (0..200).for_each(remove);
    }
    thread.recycler().recycle(10_000).expect("recycles");
    assert!(thread.slot.retired_end.load(Relaxed) > thread.slot.retired_first.load(Relaxed), "some things wait");
    drop(held);
    thread.maintenance().compact(root).expect("compacts");
    thread.recycler().drain().expect("recycles");
    assert_eq!(fs.inodes_used(), Ok(1), "every number is free again");
    thread.release(root, 1);
    drop((stopped, thread));
    fs.detach().expect("detaches");
    let fs = Attached::new(&image).expect("attaches");
    assert!(!fs.report.scanned, "nothing was given up");
}
