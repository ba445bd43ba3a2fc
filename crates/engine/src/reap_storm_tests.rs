//! Threads die in the middle of random operations while others continue with the same names.
//! Regularly all stop, and every listed name must then be found, exactly once.
//!
//! `STORM_DEATHS=n` sets the number of deaths, `STORM_SEED=n` the seed.

use crate::error::{Error, Result};
use crate::format::FileKind;
use crate::fs::Node;
use crate::mindex::check_names;
use crate::reap_tests::{Hand, Kind, World, leave_clean, made, setting};
use crate::testing::new_node as new;
use crate::{Changes, RenameFlags};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::BTreeSet;
use std::format;
use std::string::String;
use std::vec::Vec;

/// Threads at work at a time.
const WORKERS: u64 = 3;
/// Deaths of each thread before all stop.
const LIVES: u64 = 4;
/// Rounds before the image is left.
const ROUNDS: u64 = 8;
/// The longest life, in steps.
const STEPS_MAX: u64 = 3000;
const FILES: u64 = 4;
const DIRECTORIES: u64 = 2;

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn name(&mut self) -> String {
        match self.below(4) {
            0 => format!("d{}", self.below(DIRECTORIES)),
            _ => format!("f{}", self.below(FILES)),
        }
    }

    /// The directory of a name: the root, or one below it.
    fn way(&mut self) -> Option<String> {
        (self.below(2) == 0).then(|| format!("d{}", self.below(DIRECTORIES)))
    }
}

/// Runs `work` in a directory, with a recorded reference to it meanwhile.
fn within<R>(hand: &Hand<'_>, root: Node, way: Option<&str>, work: impl FnOnce(Node) -> Result<R>) -> Result<R> {
    let Some(way) = way else { return work(root) };
    let node = hand.lookup(root, way.as_bytes())?;
    hand.note(node);
    let result = work(node);
    hand.give_back(node);
    result
}

fn one(hand: &Hand<'_>, root: Node, random: &mut Random) -> Result<()> {
    let (from_way, to_way, from, to) = (random.way(), random.way(), random.name(), random.name());
    let (from, to) = (from.as_bytes(), to.as_bytes());
    let choice = random.below(17);
    within(hand, root, from_way.as_deref(), |directory| match choice {
        0 => made(hand, hand.create(directory, from, &new(FileKind::Regular))),
        1 => made(hand, hand.create(directory, from, &new(FileKind::Symlink))),
        2 => made(hand, hand.create(directory, from, &new(FileKind::Directory))),
        3 => hand.unlink(directory, from, |_| Ok(())),
        4 => hand.remove_directory(directory, from, |_| Ok(())),
        5 => hand.stat_name(directory, from).map(drop),
        6 => hand.read_directory(directory, 0, &mut Default::default(), &mut |_| true),
        7 | 8 => on_file(hand, directory, from, |node| {
            within(hand, root, to_way.as_deref(), |other| hand.link(node, other, to))
        }),
        9 => on_file(hand, directory, from, |node| change(hand, node, random)),
        16 => hand.evict_some().map(drop),
        _ => {
            let flags = match choice {
                10 | 11 => RenameFlags { exchange: true, ..RenameFlags::default() },
                12 => RenameFlags { whiteout: true, ..RenameFlags::default() },
                13 => RenameFlags { no_replace: true, ..RenameFlags::default() },
                _ => RenameFlags::default(),
            };
            within(hand, root, to_way.as_deref(), |other| {
                hand.rename((directory, from), (other, to), flags, |_, _| Ok(()))
            })
        }
    })
}

/// Runs `work` on a file, with a recorded reference to it meanwhile.
fn on_file(hand: &Hand<'_>, directory: Node, name: &[u8], work: impl FnOnce(Node) -> Result<()>) -> Result<()> {
    let node = hand.lookup(directory, name)?;
    hand.note(node);
    let result = work(node);
    hand.give_back(node);
    result
}

fn change(hand: &Hand<'_>, node: Node, random: &mut Random) -> Result<()> {
    match random.below(4) {
        0 => hand.write(node, random.below(9000), &[7; 5000]).map(drop),
        1 => hand.truncate(node, random.below(12_000)),
        2 => hand.set_xattr(node, b"user.a", &[8; 100], false, false),
        _ => hand.change(node, |_| Ok(Changes { permissions: Some(0o600), ..Changes::default() })).map(drop),
    }
}

/// Works until it dies.
fn live_once(world: &World, root: Node, seed: u64) {
    let mut random = Random(seed);
    let steps = random.below(STEPS_MAX);
    let died = world.dies(steps, |hand| {
        loop {
            // All other errors may result from concurrent changes of the names.
            if let Err(error @ (Error::Corrupt(_) | Error::NoInodes)) = one(hand, root, &mut random) {
                panic!("{error}");
            }
        }
    });
    assert!(died);
}

/// Checks that the listed names of a directory are found in it, each once.
fn check_directory(hand: &Hand<'_>, directory: Node, way: &str) {
    let mut listed = Vec::new();
    let list = hand.read_directory(directory, 0, &mut Default::default(), &mut |entry| {
        listed.push((String::from_utf8_lossy(entry.name).into_owned(), entry.number));
        true
    });
    list.expect("lists");
    for (name, number) in &listed {
        let found = hand.lookup(directory, name.as_bytes());
        let found = found.unwrap_or_else(|error| panic!("{way}/{name} is listed, for inode {number}: {error}"));
        assert_eq!(found.number, *number, "{way}/{name} is another inode in the list");
        hand.release(found, 1);
    }
    let names: BTreeSet<_> = listed.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), listed.len(), "{way}: a name is listed twice: {listed:?}");
}

fn check(world: &World, root: Node) {
    world.fs().reap_dead().expect("reaps");
    let hand = world.fs().enter().expect("enters");
    check_directory(&hand, root, "");
    for index in 0..DIRECTORIES {
        let name = format!("d{index}");
        if let Ok(node) = hand.lookup(root, name.as_bytes()) {
            if hand.stat(node).expect("stats").kind == FileKind::Directory {
                check_directory(&hand, node, &name);
            }
            hand.release(node, 1);
        }
    }
    hand.settle_doubtful().expect("settles");
    check_names(world.fs());
}

#[test]
fn what_is_listed_is_found_whoever_dies_among_others() {
    let (deaths, seed) = (setting("STORM_DEATHS", 3000), setting("STORM_SEED", 1));
    std::eprintln!("seed {seed}");
    let done = AtomicU64::new(0);
    let mut random = Random(seed);
    while done.load(Relaxed) < deaths {
        let mut world = World::new(Kind::Roomy);
        let root = world.fs().enter().expect("enters").root().expect("a root");
        for _ in 0..ROUNDS {
            let round = random.below(u64::MAX);
            std::thread::scope(|scope| {
                for worker in 0..WORKERS {
                    let (world, done) = (&world, &done);
                    scope.spawn(move || {
                        for life in 0..LIVES {
                            live_once(world, root, round ^ (worker * LIVES + life) << 32);
                            done.fetch_add(1, Relaxed);
                        }
                    });
                }
            });
            check(&world, root);
        }
        world.fs().enter().expect("enters").release(root, 1);
        leave_clean(&mut world);
    }
}
