//! Blocks that files share: a write gets its own block, the last user owns a block alone, and the
//! references are counted after a detach and after a crash.

use super::map::SIZE_BYTES_MAX;
use super::tests::{MIB, check, content, file, property};
use super::*;
use crate::error::Error;
use crate::format::FileKind;
use crate::fs::{Fs, Node, Thread};
use crate::testing::{Attached, new_image, new_node};
use pmem::BLOCK_BYTES;
use std::vec;
use std::vec::Vec;

/// Number of references beyond the first to the blocks of a file.
fn shares(fs: &Fs, thread: &Thread<'_>, node: Node) -> u64 {
    let mut sum = 0;
    visit_body(fs.pm(), &fs.geometry(), property(fs, thread, node).root, &mut |part| {
        if let BodyPart::Data { block, .. } = part {
            let count = fs.dram().block_shares(block).expect("a count");
            sum += count.load(core::sync::atomic::Ordering::Acquire) as u64;
        }
    })
    .expect("a map");
    sum
}

#[test]
fn a_shared_block_is_copied_on_write_and_freed_with_the_last_pointer() {
    let image = new_image(8 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let [one, other] = [file(&thread), file(&thread)];
    let free_before = fs.block_map().blocks_free().expect("a count");
    assert_eq!(thread.files().write(one, 0, &[7; 5000]), Ok(5000));
    let with_nodes = |node: Node| {
        let cachelet = thread.cachelet(node).expect("a cachelet");
        thread.files().with_nodes(cachelet, &property(&fs, &thread, node)).expect("a node");
    };
    with_nodes(one);
    // Makes both files name the second block.
    let share = |node: Node, word: u64| {
        let root = fs.map().root(property(&fs, &thread, node).root).expect("a root");
        let cell = &fs.map().node(root).expect("a node").words[1];
        let dirty = fs.pm().commit(cell, word, fs.pm().fence_nothing_new());
        fs.pm().persist(dirty);
    };
    let root = fs.map().root(property(&fs, &thread, one).root).expect("a root");
    let shared = fs.map().leaf(root, 1).expect("a leaf");
    assert_eq!(thread.files().write(other, 0, &[8; 5000]), Ok(5000));
    with_nodes(other);
    let others = fs.map().leaf(fs.map().root(property(&fs, &thread, other).root).expect("a root"), 1).expect("a leaf");
    share(one, shared.word | BLOCK_SHARED);
    share(other, shared.word | BLOCK_SHARED);
    thread.allocator().free_blocks(crate::alloc::BlockRun { first: others.block(), count: 1 }).expect("frees");
    fs.dram().block_shares(shared.block()).expect("a count").store(1, core::sync::atomic::Ordering::Release);
    assert_eq!(thread.files().append(other, b"more"), Ok(5000));
    assert_eq!(content(&thread, one, 5000), vec![7; 5000]);
    assert_eq!(&content(&thread, other, 5004)[4096..], [&[7; 904][..], b"more"].concat());
    assert_eq!(fs.dram().block_shares(shared.block()).expect("a count").load(core::sync::atomic::Ordering::Acquire), 0);
    assert_eq!((thread.files().truncate(one, 0), thread.files().truncate(other, 0)), (Ok(()), Ok(())));
    assert_eq!(fs.block_map().blocks_free(), Ok(free_before));
}

#[test]
fn a_file_that_shares_blocks_stays_as_it_was_however_the_other_one_changes() {
    let image = new_image(16 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let free_before = fs.block_map().blocks_free().expect("a count");
    for size_bytes in [1, 4096, 5000, 3 * 4096 + 5, 700 * 4096 + 9] {
        let [source, copy] = [file(&thread), file(&thread)];
        let bytes: Vec<u8> = (0..size_bytes).map(|at| (at % 251) as u8).collect();
        thread.files().write(source, 0, &bytes).expect("writes");
        let free = fs.block_map().blocks_free().expect("a count");
        assert_eq!(thread.files().share_range((source, 0), (copy, 0), None), Ok(size_bytes));
        assert!(free - fs.block_map().blocks_free().expect("a count") <= 4, "only nodes are new");
        assert_eq!(shares(&fs, &thread, copy), size_bytes.div_ceil(BLOCK_BYTES));
        check(&fs, &thread, source);
        check(&fs, &thread, copy);
        assert_eq!(content(&thread, source, size_bytes), bytes);
        // No way of changing the source changes the copy.
        thread.files().append(source, b"behind the end").expect("appends");
        thread.files().write(source, size_bytes / 2, b"in the middle").expect("writes");
        thread.files().allocate(source, AllocateMode::PunchHole, 0, 100).expect("punches");
        thread.files().truncate(source, size_bytes / 3).expect("cuts");
        thread.files().truncate(source, size_bytes).expect("grows");
        assert_eq!(content(&thread, copy, size_bytes), bytes);
        check(&fs, &thread, source);
        thread.files().truncate(source, 0).expect("empties");
        assert_eq!(content(&thread, copy, size_bytes), bytes);
        assert_eq!(shares(&fs, &thread, copy), 0, "the copy is their only user");
        thread.files().truncate(copy, 0).expect("empties");
        assert_eq!(fs.block_map().blocks_free(), Ok(free_before), "of {size_bytes} bytes");
    }
}

#[test]
fn ranges_are_shared_within_a_file_and_into_the_middle_of_another() {
    let image = new_image(16 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let free_before = fs.block_map().blocks_free().expect("a count");
    let [one, other] = [file(&thread), file(&thread)];
    let bytes: Vec<u8> = (0..10 * BLOCK_BYTES).map(|at| (at / BLOCK_BYTES) as u8 + 1).collect();
    thread.files().write(one, 0, &bytes).expect("writes");
    thread.files().write(other, 0, &[99; 6 * BLOCK_BYTES as usize]).expect("writes");
    let first_byte = |node, index: u64| {
        let mut byte = [0];
        thread.files().read(node, index * BLOCK_BYTES, &mut byte).expect("reads");
        byte[0]
    };
    let share = |from: (Node, u64), to: (Node, u64), count: u64| {
        let at = |(node, index): (Node, u64)| (node, index * BLOCK_BYTES);
        thread.files().share_range(at(from), at(to), Some(count * BLOCK_BYTES))
    };
    let seen = |node, count| (0..count).map(|index| first_byte(node, index)).collect::<Vec<_>>();
    assert_eq!(share((one, 2), (other, 1), 3), Ok(3 * BLOCK_BYTES));
    assert_eq!(seen(other, 6), [99, 3, 4, 5, 99, 99]);
    assert_eq!(share((one, 0), (one, 5), 2), Ok(2 * BLOCK_BYTES));
    assert_eq!(seen(one, 10), [1, 2, 3, 4, 5, 1, 2, 8, 9, 10]);
    assert_eq!(share((one, 0), (one, 5), 2), Ok(2 * BLOCK_BYTES), "the same again changes nothing");
    // Far behind the end: the range between becomes a hole, and a hole stays one.
    assert_eq!(share((other, 1), (one, 1000), 1), Ok(BLOCK_BYTES));
    assert_eq!((first_byte(one, 999), first_byte(one, 1000)), (0, 3));
    assert_eq!(share((one, 100), (other, 0), 3), Ok(3 * BLOCK_BYTES));
    assert_eq!(seen(other, 6), [0, 0, 0, 5, 99, 99]);
    for node in [one, other] {
        check(&fs, &thread, node);
        assert_eq!(thread.files().truncate(node, 0), Ok(()));
    }
    assert_eq!(fs.block_map().blocks_free(), Ok(free_before));
}

#[test]
fn ranges_that_cannot_be_shared_are_refused() {
    let image = new_image(16 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let [one, other] = [file(&thread), file(&thread)];
    thread.files().write(one, 0, &[1; 10_000]).expect("writes");
    thread.files().write(other, 0, &[2; 20_000]).expect("writes");
    let share = |from, to, length| thread.files().share_range((one, from), to, length);
    assert_eq!(share(1, (other, 0), None), Err(Error::Invalid), "not a whole block");
    assert_eq!(share(0, (other, 100), None), Err(Error::Invalid), "not a whole block");
    assert_eq!(share(0, (other, 0), Some(100)), Err(Error::Invalid), "a part of a block in the middle");
    assert_eq!(share(0, (other, 0), None), Err(Error::Invalid), "the end would come into the middle");
    assert_eq!(share(4096, (other, 0), Some(8192)), Err(Error::Invalid), "beyond the end");
    assert_eq!(share(16_384, (other, 0), None), Err(Error::Invalid), "begins beyond the end");
    assert_eq!(share(0, (one, 4096), Some(8192)), Err(Error::Invalid), "overlaps");
    assert_eq!(share(0, (other, SIZE_BYTES_MAX), Some(4096)), Err(Error::TooLarge));
    assert_eq!(content(&thread, other, 20_000), vec![2; 20_000]);
    thread.files().set_mapped(other, true).expect("maps");
    assert_eq!(share(0, (other, 0), Some(4096)), Err(Error::Busy));
    assert_eq!(thread.files().share_range((other, 0), (one, 0), Some(4096)), Err(Error::Busy));
    thread.files().set_mapped(other, false).expect("unmaps");
    assert_eq!(share(0, (other, 0), Some(4096)), Ok(4096));
}

#[test]
fn a_mapping_has_no_blocks_that_others_share() {
    let image = new_image(16 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let [one, other] = [file(&thread), file(&thread)];
    thread.files().write(one, 0, &[1; 10_000]).expect("writes");
    thread.files().share_range((one, 0), (other, 0), None).expect("shares");
    thread.files().set_mapped(other, true).expect("maps");
    let past = crate::Changes { modified_ns: Some(1_000_000_000), ..Default::default() };
    thread.change(other, |_| Ok(past)).expect("times");
    let mut seen = Vec::new();
    let each = &mut |extent| seen.push(extent);
    thread.files().map_extents(other, 0, 10_000, crate::file::MapMode::Loads, each).expect("extents");
    assert_eq!(thread.stat(other).expect("attributes").modified_ns, 1_000_000_000, "mapping changes no times");
    let mapped = seen[0].address.expect("a block");
    thread.files().write(other, 0, b"in place").expect("writes");
    let mut bytes = [0; 8];
    fs.pm().read_bytes(mapped, &mut bytes).expect("inside");
    assert_eq!(&bytes, b"in place", "a write reaches what is mapped");
    assert_eq!(content(&thread, one, 10_000), vec![1; 10_000]);
    assert_eq!(shares(&fs, &thread, one), 0);
}

#[test]
fn shared_blocks_are_counted_still_after_leaving_and_after_a_crash() {
    for crash in [false, true] {
        let image = new_image(16 * MIB, 1024);
        let fs = Attached::new(&image).expect("attaches");
        let names: [&[u8]; 3] = [b"one", b"two", b"three"];
        let free_before;
        {
            let thread = fs.enter().expect("enters");
            let root = thread.root().expect("a root");
            let nodes = names.map(|name| thread.create(root, name, &new_node(FileKind::Regular)).expect("a file"));
            free_before = fs.block_map().blocks_free().expect("a count");
            thread.files().write(nodes[0], 0, &[5; 300 * BLOCK_BYTES as usize]).expect("writes");
            for copy in &nodes[1..] {
                thread.files().share_range((nodes[0], 0), (*copy, 0), None).expect("shares");
            }
            nodes.into_iter().for_each(|node| thread.release(node, 1));
        }
        if crash {
            drop(fs);
        } else {
            fs.detach().expect("leaves");
        }
        let fs = Attached::new(&image).expect("attaches again");
        assert_eq!(fs.report.scanned, crash);
        let thread = fs.enter().expect("enters");
        let root = thread.root().expect("a root");
        let nodes = names.map(|name| thread.lookup(root, name).expect("is there"));
        assert_eq!(shares(&fs, &thread, nodes[0]), 600);
        thread.files().truncate(nodes[0], 0).expect("empties");
        thread.files().write(nodes[1], 0, &[6; 300 * BLOCK_BYTES as usize]).expect("writes");
        assert_eq!(content(&thread, nodes[2], 300 * BLOCK_BYTES), vec![5; 300 * BLOCK_BYTES as usize]);
        nodes.into_iter().for_each(|node| thread.files().truncate(node, 0).expect("empties"));
        assert_eq!(
            fs.block_map().blocks_free(),
            Ok(free_before),
            "after {}",
            if crash { "a crash" } else { "leaving" }
        );
    }
}

#[test]
fn a_node_that_shared_a_hole_is_counted_as_long_as_it_is_there() {
    let image = new_image(16 * MIB, 1024);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let free_before = fs.block_map().blocks_free().expect("a count");
    // The second place begins where the first one's node ends; the third lies in a node that has
    // one block.
    for (at, length) in [(4 * MIB, 25 * BLOCK_BYTES), (2 * MIB, BLOCK_BYTES), (MIB, BLOCK_BYTES)] {
        let [hole, copy] = [file(&thread), file(&thread)];
        thread.files().truncate(hole, 100 * BLOCK_BYTES).expect("grows");
        thread.files().write(copy, 0, &[1; MIB as usize]).expect("writes");
        thread.files().write(copy, at, b"one block").expect("writes");
        assert_eq!(thread.files().share_range((hole, 0), (copy, at), Some(length)), Ok(length));
        check(&fs, &thread, copy);
        // Pointers behind the end are cleared before a file grows over a gap.
        thread.files().truncate(copy, at + 20 * MIB).expect("grows");
        check(&fs, &thread, copy);
        thread.files().write(copy, at + 30 * MIB, b"far out").expect("writes");
        check(&fs, &thread, copy);
        thread.files().truncate(copy, 3).expect("cuts");
        check(&fs, &thread, copy);
        assert_eq!((thread.files().truncate(copy, 0), thread.files().truncate(hole, 0)), (Ok(()), Ok(())));
        assert_eq!(fs.block_map().blocks_free(), Ok(free_before), "at {at}");
    }
}

#[test]
fn an_empty_root_stays_where_there_is_no_room_to_grow() {
    for room in [1, 2, 5, 13, 14, 20] {
        let image = new_image(8 * MIB, 1024);
        let fs = Attached::new(&image).expect("attaches");
        let thread = fs.enter().expect("enters");
        let [hole, copy, filler] = [file(&thread), file(&thread), file(&thread)];
        thread.files().truncate(hole, 8 * BLOCK_BYTES).expect("grows");
        assert_eq!(thread.files().share_range((hole, 0), (copy, 0), None), Ok(8 * BLOCK_BYTES));
        let block = [5; BLOCK_BYTES as usize];
        let mut filled = 0;
        while thread.files().append(filler, &block).is_ok() {
            filled += 1;
        }
        thread.files().truncate(filler, (filled - room) * BLOCK_BYTES).expect("makes a little room");
        // The range begins below the old root and ends behind its span: the map first grows by
        // nodes.
        let grown = thread.files().write(copy, 500 * BLOCK_BYTES, &[6; 20 * BLOCK_BYTES as usize]);
        assert!(grown.is_ok() || grown == Err(Error::NoSpace), "{grown:?}");
        while thread.files().append(filler, &block).is_ok() {}
        check(&fs, &thread, copy);
        check(&fs, &thread, filler);
        let mut bytes = [1; 8 * BLOCK_BYTES as usize];
        assert_eq!(thread.files().read(copy, 0, &mut bytes), Ok(bytes.len()));
        assert!(bytes.iter().all(|byte| *byte == 0), "with room for {room}");
    }
}

#[test]
fn empty_nodes_before_a_hole_that_is_put_in_or_taken_out_stay() {
    for (mode, at) in [
        (AllocateMode::InsertRange, 4 * MIB),
        (AllocateMode::InsertRange, 2 * MIB),
        (AllocateMode::InsertRange, MIB),
        (AllocateMode::CollapseRange, 4 * MIB),
        (AllocateMode::CollapseRange, 2 * MIB),
        (AllocateMode::CollapseRange, MIB),
    ] {
        let image = new_image(16 * MIB, 1024);
        let fs = Attached::new(&image).expect("attaches");
        let thread = fs.enter().expect("enters");
        let free_before = fs.block_map().blocks_free().expect("a count");
        let [hole, copy] = [file(&thread), file(&thread)];
        thread.files().truncate(hole, 100 * BLOCK_BYTES).expect("grows");
        // Two nodes with nothing below them.
        thread.files().truncate(copy, 6 * MIB).expect("grows");
        assert_eq!(thread.files().share_range((hole, 0), (copy, 0), Some(BLOCK_BYTES)), Ok(BLOCK_BYTES));
        assert_eq!(thread.files().share_range((hole, 0), (copy, 3 * MIB), Some(BLOCK_BYTES)), Ok(BLOCK_BYTES));
        check(&fs, &thread, copy);
        thread.files().allocate(copy, mode, at, 8 * BLOCK_BYTES).expect("shifts");
        check(&fs, &thread, copy);
        thread.files().truncate(copy, 0).expect("cuts");
        assert_eq!(fs.block_map().blocks_free(), Ok(free_before), "{mode:?} at {at}");
    }
}
