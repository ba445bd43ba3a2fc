//! Threads die in the middle of random operations while others continue with the same names.
//! Regularly all stop, and every listed name must then be found, exactly once.
//!
//! `STORM_DEATHS=n` sets the number of deaths, `STORM_SEED=n` the seed.

use crate::error::{Error, Result};
use crate::format::FileKind;
use crate::fs::Node;
use crate::mindex::check_names;
use crate::reap_tests::{ImageKind, MortalThread, World, leave_clean, made, setting};
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
fn within<R>(
    thread: &MortalThread<'_>,
    root: Node,
    way: Option<&str>,
    work: impl FnOnce(Node) -> Result<R>,
) -> Result<R> {
    let Some(way) = way else { return work(root) };
    let node = thread.lookup(root, way.as_bytes())?;
    thread.record_reference(node);
    let result = work(node);
    thread.release_recorded(node);
    result
}

fn one(thread: &MortalThread<'_>, root: Node, random: &mut Random) -> Result<()> {
    let (from_way, to_way, from, to) = (random.way(), random.way(), random.name(), random.name());
    let (from, to) = (from.as_bytes(), to.as_bytes());
    let choice = random.below(18);
    within(thread, root, from_way.as_deref(), |directory| match choice {
        0 => made(thread, thread.create(directory, from, &new(FileKind::Regular))),
        1 => made(thread, thread.create(directory, from, &new(FileKind::Symlink))),
        2 => made(thread, thread.create(directory, from, &new(FileKind::Directory))),
        3 => thread.unlink(directory, from, |_| Ok(())),
        4 => thread.remove_directory(directory, from, |_| Ok(())),
        5 => thread.stat_name(directory, from).map(drop),
        6 => thread.read_directory(directory, 0, &mut Default::default(), &mut |_| true),
        7 | 8 => on_file(thread, directory, from, |node| {
            within(thread, root, to_way.as_deref(), |other| thread.link(node, other, to))
        }),
        9 => on_file(thread, directory, from, |node| change(thread, node, random)),
        16 => thread.maintenance().evict_some().map(drop),
        17 => thread.maintenance().evict_files(),
        _ => {
            let flags = match choice {
                10 | 11 => RenameFlags { exchange: true, ..RenameFlags::default() },
                12 => RenameFlags { whiteout: Some((0, 0)), ..RenameFlags::default() },
                13 => RenameFlags { no_replace: true, ..RenameFlags::default() },
                _ => RenameFlags::default(),
            };
            within(thread, root, to_way.as_deref(), |other| {
                thread.rename((directory, from), (other, to), flags, |_, _| Ok(()))
            })
        }
    })
}

/// Runs `work` on a file, with a recorded reference to it meanwhile.
fn on_file(
    thread: &MortalThread<'_>,
    directory: Node,
    name: &[u8],
    work: impl FnOnce(Node) -> Result<()>,
) -> Result<()> {
    let node = thread.lookup(directory, name)?;
    thread.record_reference(node);
    let result = work(node);
    thread.release_recorded(node);
    result
}

fn change(thread: &MortalThread<'_>, node: Node, random: &mut Random) -> Result<()> {
    match random.below(4) {
        0 => thread.files().write(node, random.below(9000), &[7; 5000]).map(drop),
        1 => thread.files().truncate(node, random.below(12_000)),
        2 => thread.files().set_xattr(node, b"user.a", &[8; 100], false, false),
        _ => thread.change(node, |_| Ok(Changes { permissions: Some(0o600), ..Changes::default() })).map(drop),
    }
}

/// Works until it dies.
fn live_once(world: &World, root: Node, seed: u64) {
    let mut random = Random(seed);
    let steps = random.below(STEPS_MAX);
    let died = world.dies(steps, |thread| {
        loop {
            // All other errors may result from concurrent changes of the names.
            if let Err(error @ (Error::Corrupt(_) | Error::NoInodes)) = one(thread, root, &mut random) {
                panic!("{error}");
            }
        }
    });
    assert!(died);
}

/// Checks that the listed names of a directory are found in it, each once.
fn check_directory(thread: &MortalThread<'_>, directory: Node, way: &str) {
    let mut listed = Vec::new();
    let list = thread.read_directory(directory, 0, &mut Default::default(), &mut |entry| {
        listed.push((String::from_utf8_lossy(entry.name).into_owned(), entry.number));
        true
    });
    list.expect("lists");
    for (name, number) in &listed {
        let found = thread.lookup(directory, name.as_bytes());
        let found = found.unwrap_or_else(|error| panic!("{way}/{name} is listed, for inode {number}: {error}"));
        assert_eq!(found.number, *number, "{way}/{name} is another inode in the list");
        thread.release(found, 1);
    }
    thread.check_totals(directory, listed.len() as u64);
    let names: BTreeSet<_> = listed.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), listed.len(), "{way}: a name is listed twice: {listed:?}");
}

fn check(world: &World, root: Node) {
    world.fs().reap_dead_threads().expect("reaps");
    let thread = world.fs().enter().expect("enters");
    check_directory(&thread, root, "");
    for index in 0..DIRECTORIES {
        let name = format!("d{index}");
        if let Ok(node) = thread.lookup(root, name.as_bytes()) {
            if thread.stat(node).expect("stats").kind == FileKind::Directory {
                check_directory(&thread, node, &name);
            }
            thread.release(node, 1);
        }
    }
    thread.maintenance().recount_directories().expect("settles");
    check_names(world.fs());
}

#[test]
fn what_is_listed_is_found_after_any_thread_dies() {
    let (deaths, seed) = (setting("STORM_DEATHS", 3000), setting("STORM_SEED", 1));
    std::eprintln!("seed {seed}");
    let done = AtomicU64::new(0);
    let mut random = Random(seed);
    while done.load(Relaxed) < deaths {
        let mut world = World::new(ImageKind::Roomy);
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
