//! Images grow while threads use them, and the growing thread dies at each of its steps.

use super::{AttachOptions, DESCRIPTION_BYTES, GrowthRefusal};
use crate::dram::GROUP_BLOCKS;
use crate::error::Error;
use crate::fs::{Fs, Thread};
use crate::liveness::Liveness;
use crate::testing::mortal_thread::dies_in_thread;
use crate::testing::{Memory, TestPlatform, new_image};
use pmem::{BLOCK_BYTES, Direct, Region};
use std::collections::BTreeSet;

/// Sizes in the middle of a group of blocks, so that the last groups are in use in part.
const BEFORE: u64 = (2 * GROUP_BLOCKS + 100) * BLOCK_BYTES;
const AFTER: u64 = (4 * GROUP_BLOCKS + 300) * BLOCK_BYTES;
const LATER: u64 = (5 * GROUP_BLOCKS + 7) * BLOCK_BYTES;
const CAPACITY: u64 = 8 * GROUP_BLOCKS * BLOCK_BYTES;

/// An image at the start of memory into which it can grow, attached.
struct World {
    fs: Option<Fs>,
    file: Memory,
    _dram: Memory,
    platform: &'static TestPlatform,
}

impl World {
    fn new(platform: &'static TestPlatform) -> World {
        let file = Memory::new(CAPACITY);
        let image = new_image(BEFORE, 0).bytes();
        let _ = file.region().write_bytes(0, &image).expect("fits");
        let options = AttachOptions { capacity_bytes: CAPACITY, ..AttachOptions::default() };
        let region = |length: u64| {
            // SAFETY: the memory is longer, and the test keeps it.
            unsafe {
                Region::new(file.region().address(0, CAPACITY).expect("mapped"), length, Direct).reaching(CAPACITY)
            }
        };
        let dram = Memory::new(Fs::dram_layout(&region(BEFORE), &options).expect("a layout").length);
        let recovery = Fs::attach_first(region(BEFORE), dram.region(), platform, Liveness::alone(), &options);
        let fs = recovery.expect("attaches").finish().expect("ready").0;
        World { fs: Some(fs), file, _dram: dram, platform }
    }

    fn fs(&self) -> &Fs {
        self.fs.as_ref().expect("attached")
    }

    /// What `directfs resize` does. The file is long enough.
    fn grow(&self, thread: &Thread<'_>, bytes: u64) -> Result<(), GrowthRefusal> {
        let growth = thread.begin_growth(bytes)?;
        let superblock = growth.superblock()?;
        let file = self.file.region();
        let _ = file.write_bytes(bytes - BLOCK_BYTES, &superblock)?;
        crate::death::may_die_here();
        let _ = file.write_bytes(0, &superblock[..DESCRIPTION_BYTES])?;
        crate::death::may_die_here();
        drop(growth);
        Ok(())
    }

    /// Runs `work` in a thread that dies at step `step`; returns whether it did.
    fn dies(&self, step: u64, work: impl FnOnce(&Thread<'_>) + Send) -> bool {
        dies_in_thread(self.fs(), self.platform, step, work)
    }

    /// Takes every block that is free, each once, and gives them back. Returns their number.
    fn use_all(&self, thread: &Thread<'_>) -> u64 {
        let mut taken = BTreeSet::new();
        let found = loop {
            match thread.allocator().allocate_blocks(GROUP_BLOCKS) {
                Ok(run) => {
                    assert!(self.fs().block_map().is_data(run), "{run:?}");
                    for block in run.first..run.first + run.count {
                        assert!(taken.insert(block), "{block} twice");
                        let _ = self.fs().pm().write_bytes(block * BLOCK_BYTES, &[7; 64]).expect("is there");
                    }
                }
                Err(error) => break error,
            }
        };
        assert_eq!(found, Error::NoSpace);
        for block in &taken {
            thread.allocator().free_blocks(crate::alloc::BlockRun { first: *block, count: 1 }).expect("frees");
        }
        taken.len() as u64
    }

    /// Blocks that a new image of that size, which grew to it, has free.
    fn free_after(&self, bytes: u64) -> u64 {
        let geometry = self.fs().geometry().with_length(bytes).expect("fits");
        geometry.data_end() - geometry.data_block - crate::format::SEGMENT_BLOCKS
    }
}

fn grown(world: &World, thread: &Thread<'_>, bytes: u64) {
    match world.grow(thread, bytes) {
        Ok(()) | Err(GrowthRefusal::TooSmall { .. }) => {}
        Err(refusal) => panic!("{refusal:?}"),
    }
    assert_eq!(world.fs().image_bytes(), bytes);
    assert_eq!(world.fs().block_map().blocks_free(), Ok(world.free_after(bytes)));
    assert_eq!(world.use_all(thread), world.free_after(bytes));
}

#[test]
fn a_full_image_grows_under_a_thread_that_lacks_blocks() {
    static PLATFORM: TestPlatform = TestPlatform::new();
    let mut world = World::new(&PLATFORM);
    {
        let (user, grower) = (world.fs().enter().expect("enters"), world.fs().enter().expect("enters"));
        let mut held = std::vec![];
        while let Ok(run) = user.allocator().allocate_blocks(GROUP_BLOCKS) {
            held.push(run);
        }
        assert_eq!(world.fs().free_bytes(), Ok(0));
        world.grow(&grower, AFTER).expect("grows");
        let run = user.allocator().allocate_blocks(10).expect("the old copy and what follows are free");
        user.allocator().free_blocks(run).expect("frees");
        assert_eq!(
            user.space().expect("figures").blocks + user.fs.spare_blocks,
            world.fs().geometry().data_end() - world.fs().geometry().data_block
        );
        held.into_iter().for_each(|run| user.allocator().free_blocks(run).expect("frees"));
        assert_eq!(world.use_all(&user), world.free_after(AFTER));
        // Once more: the block map of the first growth becomes free, too.
        grown(&world, &grower, LATER);
    }
    world.fs.take().expect("attached").detach_last().expect("detaches");
    let again = Fs::dram_layout(&world.file.region(), &AttachOptions::default()).expect("a layout");
    let dram = Memory::new(again.length);
    let options = AttachOptions::default();
    let attached = Fs::attach_first(world.file.region(), dram.region(), &PLATFORM, Liveness::alone(), &options);
    let (fs, report) = attached.expect("attaches").finish().expect("ready");
    assert!(!report.scanned, "left cleanly, with maps at their new place");
    assert_eq!((fs.image_bytes(), fs.block_map().blocks_free()), (LATER, Ok(world_free(&fs))));
}

/// Free blocks of an image without files.
fn world_free(fs: &Fs) -> u64 {
    fs.geometry().data_end() - fs.geometry().data_block - crate::format::SEGMENT_BLOCKS
}

#[test]
fn what_an_image_cannot_grow_to_is_refused_and_nothing_changes() {
    static PLATFORM: TestPlatform = TestPlatform::new();
    let world = World::new(&PLATFORM);
    let thread = world.fs().enter().expect("enters");
    let refusals = [
        (BEFORE - BLOCK_BYTES, GrowthRefusal::TooSmall { now_bytes: BEFORE }),
        (BEFORE, GrowthRefusal::TooSmall { now_bytes: BEFORE }),
        (BEFORE + BLOCK_BYTES, GrowthRefusal::TooSmall { now_bytes: BEFORE }),
        (CAPACITY + BLOCK_BYTES, GrowthRefusal::BeyondCapacity { most_bytes: CAPACITY, is_limited: false }),
        (u64::MAX, GrowthRefusal::BeyondCapacity { most_bytes: CAPACITY, is_limited: false }),
    ];
    for (bytes, refusal) in refusals {
        assert_eq!(world.grow(&thread, bytes), Err(refusal));
    }
    assert_eq!(world.fs().image_bytes(), BEFORE);
    // One whose description does not change is forgotten.
    drop(thread.begin_growth(AFTER).expect("can grow"));
    assert_eq!(world.fs().image_bytes(), BEFORE);
    assert_eq!(world.use_all(&thread), world_free(world.fs()));
}

#[test]
fn a_growth_that_dies_at_any_step_is_completed_or_forgotten() {
    static PLATFORM: TestPlatform = TestPlatform::new();
    let (mut sizes, mut step) = (std::vec![], 0);
    loop {
        let world = World::new(&PLATFORM);
        let died = world.dies(step, |thread| world.grow(thread, AFTER).expect("grows"));
        // A second death, of the thread that completes it.
        if step % 3 == 1 {
            let _ = world.dies(step / 3, |thread| drop(thread.lock_commits().expect("the lock")));
        }
        let thread = world.fs().enter().expect("enters");
        // A thread that lacks blocks gets those of a growth that counts.
        let usable = world.use_all(&thread);
        assert_eq!(usable, world_free(world.fs()), "step {step}");
        sizes.push(world.fs().image_bytes());
        grown(&world, &thread, AFTER);
        grown(&world, &thread, LATER);
        if !died {
            break;
        }
        step += 1;
    }
    assert!(step > 50, "{step} steps");
    assert!(sizes.is_sorted() && sizes[0] == BEFORE && sizes.last() == Some(&AFTER), "{sizes:?}");
}

/// As a thread gives a working copy the size that its image has on the disk.
fn adopt(world: &World, thread: &Thread<'_>, bytes: u64) {
    let held = thread.lock_commits().expect("the lock");
    if world.fs().image_bytes() < bytes {
        thread.prepare_growth(&held, bytes).expect("can grow");
    }
    thread.adopt_size(&held, bytes).expect("adopts");
}

#[test]
fn a_size_that_the_image_has_on_its_disk_is_adopted_whatever_thread_dies() {
    static PLATFORM: TestPlatform = TestPlatform::new();
    for step in 0.. {
        let world = World::new(&PLATFORM);
        let died = world.dies(step, |thread| adopt(&world, thread, AFTER));
        let thread = world.fs().enter().expect("enters");
        // Threads that know nothing of the disk may complete it or not.
        if step % 2 == 0 {
            assert_eq!(world.use_all(&thread), world_free(world.fs()), "step {step}");
        }
        if step % 3 == 1 {
            let _ = world.dies(step / 3, |thread| adopt(&world, thread, AFTER));
        }
        adopt(&world, &thread, AFTER);
        assert_eq!(world.fs().image_bytes(), AFTER, "step {step}");
        assert_eq!(world.use_all(&thread), world.free_after(AFTER), "step {step}");
        adopt(&world, &thread, LATER);
        assert_eq!(world.use_all(&thread), world.free_after(LATER), "step {step}");
        if !died {
            assert!(step > 50, "{step} steps");
            break;
        }
    }
}

#[test]
fn a_size_is_adopted_by_a_description_of_which_a_dead_thread_stored_a_part() {
    static PLATFORM: TestPlatform = TestPlatform::new();
    for words in 0..DESCRIPTION_BYTES / 8 {
        let world = World::new(&PLATFORM);
        let thread = world.fs().enter().expect("enters");
        let geometry = world.fs().geometry().with_length(AFTER).expect("fits");
        let superblock = thread.superblock_of(geometry).expect("a superblock");
        let _ = world.file.region().write_bytes(0, &superblock[..words * 8]).expect("fits");
        adopt(&world, &thread, AFTER);
        let found = crate::format::Superblock::check(&world.file.region(), true);
        assert_eq!(found, Ok(geometry), "{words} words");
        assert_eq!(world.fs().image_bytes(), AFTER);
    }
}

#[test]
fn what_the_old_image_had_of_a_chunk_of_memory_is_not_taken_for_the_whole() {
    static PLATFORM: TestPlatform = TestPlatform::new();
    let world = World::new(&PLATFORM);
    let thread = world.fs().enter().expect("enters");
    world.use_all(&thread);
    let at_the_end = |chunks: u32| chunks >> ((100 * BLOCK_BYTES - 1) / crate::dram::CHUNK_BYTES) & 1;
    let provided = || world.fs().dram.group(2).expect("a group").provided.load(core::sync::atomic::Ordering::Relaxed);
    assert_eq!(at_the_end(provided()), 1);
    world.grow(&thread, AFTER).expect("grows");
    assert_eq!(at_the_end(provided()), 0);
}
