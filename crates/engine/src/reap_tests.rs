//! A thread dies at every step of every operation, and so does its reaper. What remains must be
//! usable, consistent, and without leaks.
//!
//! `DEATHS_EVERY=n` tries only every n-th step, `DEATHS_ONLY=name` only one operation.
//! `REAPERS_EVERY=n` kills the reaper of only every n-th death. In some states of a file system
//! only every third step is the rule; `DEATHS_SEED`, else the process, chooses which, so that
//! repeated runs try all.

mod operations;

use crate::attach::AttachOptions;
use crate::dram::{DirectoryState, FLAG_DEAD, FLAG_HELD, References};
use crate::error::{Error, Result};
use crate::file::AllocateMode;
use crate::format::{FileKind, INODES_PER_SEGMENT};
use crate::fs::{Fs, Node, Thread};
use crate::testing::mortal_thread::dies_in_thread;
use crate::testing::mortality::at_next_step;
use crate::testing::{Attached, Memory, Mortal, TestPlatform, new_image, new_node as new};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use operations::{LONG, OPERATIONS, OPERATIONS_BESIDE_OTHERS, rename};
use std::boxed::Box;
use std::format;
use std::string::String;
use std::vec::Vec;

pub(crate) static PLATFORM: TestPlatform = TestPlatform::new();

pub(crate) type MortalThread<'f> = Thread<'f, Mortal>;

/// The objects of the operations. The survivor holds a reference to each, except where noted.
struct Tree {
    root: Node,
    /// A directory with `x`, `y` and `inner`, an empty one.
    full: Node,
    /// An empty directory `empty`.
    empty: Node,
    /// A file `file` of three blocks and a bit, with attributes.
    file: Node,
    /// A file `small`.
    small: Node,
    /// `linked` and `linked too`.
    linked: Node,
    /// A file without a name, which the survivor does not hold: its only reference is the mortal
    /// thread's.
    orphan: Node,
    // Plus a directory `cold` with `x`, `y` and a long name, unreferenced and evicted.
}

pub(crate) fn make(thread: &MortalThread<'_>, directory: Node, name: &[u8], kind: FileKind) -> Node {
    thread.create(directory, name, &new(kind)).expect("creates")
}

fn make_tree(thread: &MortalThread<'_>, kind: ImageKind) -> Tree {
    let root = thread.root().expect("a root");
    let share = |directory| {
        let _ = thread.lookup(directory, b"nothing");
        if kind == ImageKind::Shared {
            thread.share(directory);
        }
    };
    share(root);
    let full = make(thread, root, b"full", FileKind::Directory);
    share(full);
    for name in [&b"x"[..], b"y"] {
        let node = make(thread, full, name, FileKind::Regular);
        thread.files().write(node, 0, &[3; 100]).expect("writes");
        thread.release(node, 1);
    }
    let inner = make(thread, full, b"inner", FileKind::Directory);
    thread.release(inner, 1);
    let file = make(thread, root, b"file", FileKind::Regular);
    thread.files().write(file, 0, &[1; 3 * 4096 + 50]).expect("writes");
    thread.files().set_xattr(file, b"user.a", &[5; 5000], false, false).expect("sets");
    let small = make(thread, root, b"small", FileKind::Regular);
    thread.files().write(small, 0, &[2; 10]).expect("writes");
    let linked = make(thread, root, b"linked", FileKind::Regular);
    thread.link(linked, root, b"linked too").expect("links");
    let orphan = make(thread, root, b"orphan", FileKind::Regular);
    thread.files().write(orphan, 0, &[4; 9000]).expect("writes");
    thread.unlink(root, b"orphan", |_| Ok(())).expect("unlinks");
    let empty = make(thread, root, b"empty", FileKind::Directory);
    share(empty);
    let cold = make(thread, root, b"cold", FileKind::Directory);
    for name in [&b"x"[..], LONG, b"y"] {
        thread.release(make(thread, cold, name, FileKind::Regular), 1);
    }
    thread.release(cold, 1);
    assert!(thread.maintenance().evict_some().expect("evicts"));
    // So that operations must set their own dirty marks.
    thread.sync_all().expect("syncs");
    Tree { root, full, empty, file, small, linked, orphan }
}

/// Uses up every inode number, and every second block.
fn scatter(thread: &MortalThread<'_>, root: Node) {
    let whole = make(thread, root, b"whole", FileKind::Regular);
    let mut number = 0;
    for index in 0..INODES_PER_SEGMENT {
        if number == INODES_PER_SEGMENT - 1 {
            break;
        }
        let node = make(thread, root, format!("{index}").as_bytes(), FileKind::Regular);
        number = node.number;
        thread.release(node, 1);
    }
    assert_eq!(number, INODES_PER_SEGMENT - 1);
    let mut blocks = 0;
    while thread.files().append(whole, &[9; 4096]).is_ok() {
        blocks += 1;
    }
    for block in (0..blocks).step_by(2) {
        thread.files().allocate(whole, AllocateMode::PunchHole, block * 4096, 4096).expect("punches");
    }
    thread.release(whole, 1);
}

/// The actions and expectations of the survivor of a death. The last argument is the name of the
/// operation.
type Check = fn(World, MortalThread<'_>, &Tree, &str);

type Operation = fn(&MortalThread<'_>, &Tree) -> Result<()>;

/// Only the caller knows of a returned reference until it is recorded or released: no point of
/// death may be in between.
pub(crate) fn made(thread: &MortalThread<'_>, made: Result<Node>) -> Result<()> {
    made.map(|node| {
        thread.record_reference(node);
        thread.release_recorded(node);
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageKind {
    /// Unchanged.
    Roomy,
    /// With two buckets for all names.
    Crowded,
    /// With no free inode number, and no two adjacent free blocks.
    Scattered,
    /// With directories that threads share.
    Shared,
}

/// A file system in which a thread will die.
pub(crate) struct World {
    image: Memory,
    _dram: Memory,
    fs: Option<Fs<Mortal>>,
    platform: &'static TestPlatform,
}

impl World {
    pub(crate) fn new(kind: ImageKind) -> World {
        World::on(kind, &PLATFORM)
    }

    fn on(kind: ImageKind, platform: &'static TestPlatform) -> World {
        let image = new_image(4 << 20, 0);
        let options = AttachOptions::default();
        let layout = Fs::dram_layout(&image.region(), &options).expect("a layout");
        let dram = Memory::new(layout.length);
        let recovery =
            Fs::attach_first(image.region_in(Mortal), dram.region(), platform, crate::Liveness::alone(), &options)
                .expect("attaches");
        let fs = recovery.finish().expect("ready").0;
        if kind == ImageKind::Crowded {
            fs.header().expect("a header").buckets.store(2, Relaxed);
        }
        World { image, _dram: dram, fs: Some(fs), platform }
    }

    pub(crate) fn image(&self) -> &Memory {
        &self.image
    }

    pub(crate) fn fs(&self) -> &Fs<Mortal> {
        self.fs.as_ref().expect("attached")
    }

    /// Runs `work` in a new thread, which dies at step `step`. Returns whether it died.
    pub(crate) fn dies(&self, step: u64, work: impl FnOnce(&MortalThread<'_>) + Send) -> bool {
        dies_in_thread(self.fs(), self.platform, step, work)
    }
}

/// A file system and a thread in it that may be used at any step.
pub(crate) fn everlasting() -> (&'static World, &'static MortalThread<'static>) {
    let world: &'static World = Box::leak(Box::new(World::new(ImageKind::Roomy)));
    (world, Box::leak(Box::new(world.fs().enter().expect("enters"))))
}

/// Uses every name, to meet everything that the dead thread left behind.
fn use_everything(thread: &MortalThread<'_>, tree: &Tree) {
    let names: &[&[u8]] =
        &[b"new", b"x", b"y", b"inner", b"first", b"third", b"one", LONG, b"small", b"linked", b"empty", b"file"];
    let cold = thread.lookup(tree.root, b"cold").expect("is never removed");
    for directory in [tree.root, tree.full, tree.empty, cold] {
        for name in names {
            if let Ok(node) = thread.lookup(directory, name) {
                let attributes = thread.stat(node).expect("stats");
                if attributes.kind == FileKind::Regular {
                    let mut byte = [0];
                    thread.files().read(node, 0, &mut byte).expect("reads");
                    thread.files().append(node, b"more").expect("writes");
                }
                thread.release(node, 1);
            }
        }
        let mut count = 0;
        thread
            .read_directory(directory, 0, &mut Default::default(), &mut |_| {
                count += 1;
                true
            })
            .expect("reads");
    }
    for directory in [tree.root, tree.full, tree.empty, cold] {
        match thread.create(directory, b"after", &new(FileKind::Directory)) {
            Ok(node) => {
                thread.release(node, 1);
                rename(thread, (directory, b"after"), (directory, b"later")).expect("renames");
                thread.remove_directory(directory, b"later", |_| Ok(())).expect("removes");
            }
            // Removed while it was open.
            Err(error) => assert_eq!(error, Error::NotFound),
        }
    }
    thread.release(cold, 1);
    thread.files().set_xattr(tree.file, b"user.c", b"value", false, false).expect("sets");
    thread.files().write(tree.file, 4000, &[9; 200]).expect("writes");
}

/// Free space in lines, and the number of inodes in use. No thread is inside.
pub(crate) fn room<M: pmem::Memory>(fs: &Fs<M>) -> (u64, u64) {
    let free_lines: u64 = (0..fs.geometry().blocks)
        .map(|block| fs.dram().slab(block).expect("a slab").free_lines.load(Relaxed).count_ones() as u64)
        .sum();
    (fs.block_map().blocks_free().expect("a count") * 64 + free_lines, fs.inodes_used().expect("a count"))
}

/// Checks that every cachelet is either in use or free in one place, and that none is referenced.
pub(crate) fn check_cachelets<M: pmem::Memory>(fs: &Fs<M>) {
    let header = fs.header().expect("a header");
    let end = header.cachelets_next.load(Relaxed);
    let mut places = std::vec![0u32; end as usize];
    let mut note_list = |first: u32| {
        let mut at = first;
        while at != 0 {
            places[at as usize] += 1;
            at = fs.dram().cachelet(at).expect("a cachelet").next.load(Relaxed);
        }
    };
    for index in 0..header.slots_high.load(Relaxed) as u32 {
        note_list(fs.dram().slot(index).expect("a slot").cachelet_list.load(Relaxed));
    }
    let mut batch = crate::free_list::FreeList(&header.cachelets_free).first();
    while batch != 0 {
        note_list(batch);
        batch = fs.dram().cachelet(batch).expect("a cachelet").as_free().next_batch().load(Relaxed);
    }
    for index in 0..header.slots_high.load(Relaxed) as u32 {
        let slot = fs.dram().slot(index).expect("a slot");
        for unused in slot.cachelet_next.load(Relaxed)..slot.cachelet_end.load(Relaxed) {
            places[unused as usize] += 1;
        }
    }
    for index in 1..end as u32 {
        let cachelet = fs.dram().cachelet(index).expect("a cachelet");
        let used = cachelet.number.load(Relaxed) != 0;
        let state = References::from_word(cachelet.references.load(Relaxed));
        assert_eq!(places[index as usize] + used as u32, 1, "cachelet {index}: places, of inode {:?}", cachelet.number);
        assert!(!used || state.references == 0, "cachelet {index} of inode {:?}: {state:?}", cachelet.number);
    }
}

/// Reaps the dead, and releases the reference that only the dead thread had.
fn reap_and_release_orphan(thread: &MortalThread<'_>, tree: &Tree, name: &str) {
    if !matches!(name, "last-release" | "last-hold") {
        thread.release(tree.orphan, 1);
    }
    thread.fs.reap_dead_threads().expect("reaps");
}

fn release_all(thread: &MortalThread<'_>, tree: &Tree) {
    for node in [tree.root, tree.full, tree.empty, tree.file, tree.small, tree.linked] {
        thread.release(node, 1);
    }
}

/// Detaches; fsck must find nothing in the image.
pub(crate) fn leave_clean(world: &mut World) {
    world.fs.take().expect("attached").detach_last().expect("detaches");
    let report = fsck::check(&world.image.region(), &fsck::Options::default(), &mut |_| {});
    let findings: String = report.findings.iter().map(|finding| format!("\n{finding}")).collect();
    assert!(report.clean, "left clean");
    assert!(report.errors == 0 && report.warnings == 0, "{findings}");
}

/// The survivor leaves at once: no access has completed the work that a reaper left to later
/// operations.
fn check_at_once(mut world: World, thread: MortalThread<'_>, tree: &Tree, name: &str) {
    reap_and_release_orphan(&thread, tree, name);
    release_all(&thread, tree);
    drop(thread);
    leave_clean(&mut world);
    let again = Attached::new(&world.image).expect("attaches");
    let thread = again.enter().expect("enters");
    let root = thread.root().expect("a root");
    check_times(&thread, root);
    thread.release(root, 1);
}

/// Checks that a directory, and those in it, changed when the last file was made there, or later.
fn check_times<M: pmem::Memory>(thread: &Thread<'_, M>, directory: Node) {
    let mut names = Vec::new();
    let list = thread.read_directory(directory, 0, &mut Default::default(), &mut |entry| {
        names.push(entry.name.to_vec());
        true
    });
    list.expect("lists");
    let changed_ns = thread.stat(directory).expect("stats").modified_ns;
    for name in names {
        let node = thread.lookup(directory, &name).expect("it is listed");
        let born_ns = thread.born_ns(node).expect("a birth");
        assert!(born_ns <= changed_ns, "{} is younger than its directory", String::from_utf8_lossy(&name));
        if thread.stat(node).expect("stats").kind == FileKind::Directory {
            check_times(thread, node);
        }
        thread.release(node, 1);
    }
}

/// Before the dead thread is reaped, the only other name of its file is removed.
fn check_without_small(world: World, thread: MortalThread<'_>, tree: &Tree, name: &str) {
    thread.unlink(tree.root, b"small", |_| Ok(())).expect("unlinks");
    check(world, thread, tree, name);
}

/// Checks that a directory counts the names that it lists.
pub(crate) fn check_totals<M: pmem::Memory>(thread: &Thread<'_, M>, directory: Node) {
    let mut listed = 0;
    let list = thread.read_directory(directory, 0, &mut Default::default(), &mut |_| {
        listed += 1;
        true
    });
    list.expect("lists");
    thread.check_totals(directory, listed);
}

/// The survivor leaves; nothing is lost.
fn check(mut world: World, thread: MortalThread<'_>, tree: &Tree, name: &str) {
    use_everything(&thread, tree);
    reap_and_release_orphan(&thread, tree, name);
    // The tables of the layer above do this for a dead process.
    for node in [tree.orphan, tree.small] {
        let state = thread.cachelet(node).expect("a cachelet").references.load(Relaxed);
        if References::from_word(state).flags & FLAG_HELD != 0 {
            thread.set_held(node, false).expect("ends");
        }
    }
    // A scan drops the dentries of removed names at once; a live system only compacts.
    for directory in [tree.root, tree.full, tree.empty] {
        let _ = thread.lookup(directory, b"nothing");
        thread.maintenance().compact(directory).expect("compacts");
    }
    for found in [thread.lookup(tree.full, b"new"), thread.lookup(tree.root, b"cold")].into_iter().flatten() {
        let _ = thread.lookup(found, b"nothing");
        thread.maintenance().compact(found).expect("compacts");
        thread.release(found, 1);
    }
    for directory in [tree.root, tree.full, tree.empty] {
        check_totals(&thread, directory);
    }
    release_all(&thread, tree);
    drop(thread);
    let fs = world.fs();
    assert_eq!(fs.header().expect("a header").unclean_marks.load(Relaxed), 0, "nothing is lost");
    for index in 0..fs.header().expect("a header").slots_high.load(Relaxed) as u32 {
        let idle = fs.enter_slot(index).expect("a slot").expect("the slot is free");
        idle.recycler().drain().expect("drains");
        idle.allocator().give_back_lines().expect("gives back");
        idle.allocator().give_back_inodes().expect("gives back");
    }
    check_cachelets(fs);
    let lived = room(fs);
    for index in 1..fs.header().expect("a header").cachelets_next.load(Relaxed) as u32 {
        let directory = fs.dram().cachelet(index).expect("a cachelet");
        assert_ne!(DirectoryState::of(directory), DirectoryState::Evicting);
        assert!(directory.lock.load(Relaxed) == 0);
    }
    leave_clean(&mut world);
    drop(Attached::new(&world.image).expect("attaches, and is dropped without a detach"));
    let scanned = Attached::new(&world.image).expect("attaches");
    assert!(scanned.report.scanned);
    // Only the counts of ended lives differ; removal leaves the inodes unchanged.
    assert_eq!(scanned.report.damaged, 0);
    assert_eq!(lived, room(&scanned), "free lines and used inodes, in the live system and after a scan");
    drop(scanned);
    let again = Attached::new(&world.image).expect("attaches");
    assert_eq!((again.report.orphans, again.report.damaged), (0, 0), "a scan has left nothing to do");
}

/// The outcome of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The operation has fewer steps.
    Survived,
    /// Its thread died. So did its first reaper, if that has enough steps.
    Died { reaper_too: bool },
}

/// Kills a thread at step `step` of an operation, and its reaper if a step is given for it.
fn die(
    kind: ImageKind,
    (step, reaper_step): (u64, Option<u64>),
    (name, operation): (&str, Operation),
    check: Check,
) -> Outcome {
    let world = World::new(kind);
    // The borrow of the thread ends in `check`, before the file system is left.
    let fs: *const Fs<Mortal> = world.fs();
    // SAFETY: the world is on the heap of its memories; `check` drops the thread before it takes
    // the file system out.
    let thread = unsafe { &*fs }.enter().expect("enters");
    let tree = make_tree(&thread, kind);
    if kind == ImageKind::Scattered {
        scatter(&thread, tree.root);
    }
    if !world.dies(step, |thread| operation(thread, &tree).expect("works")) {
        return Outcome::Survived;
    }
    let reaper_too =
        reaper_step.is_some_and(|step| world.dies(step, |thread| assert!(thread.fs.reap_dead_threads().is_ok())));
    check(world, thread, &tree, name);
    Outcome::Died { reaper_too }
}

pub(crate) fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// The number of tries, and the failures.
struct Deaths {
    count: u64,
    failures: Vec<String>,
    check: Check,
}

impl Deaths {
    fn new(check: Check) -> Deaths {
        Deaths { count: 0, failures: Vec::new(), check }
    }

    /// One try. Returns whether there is a next one.
    fn try_one(&mut self, kind: ImageKind, steps: (u64, Option<u64>), operation: (&str, Operation)) -> bool {
        if std::env::var("DEATHS_TELL").is_ok() {
            std::eprintln!("{kind:?} {}@{steps:?}", operation.0);
        }
        match std::panic::catch_unwind(|| die(kind, steps, operation, self.check)) {
            Ok(Outcome::Survived) => return false,
            Ok(Outcome::Died { reaper_too }) if steps.1.is_some() && !reaper_too => return false,
            Ok(_) => {}
            Err(_) => self.failures.push(format!("{kind:?} {}@{steps:?}", operation.0)),
        }
        self.count += 1;
        true
    }

    fn assert_survived(&self) {
        std::eprintln!("{} deaths", self.count);
        assert!(self.failures.is_empty(), "{} of {}: {:?}", self.failures.len(), self.count, self.failures);
    }
}

fn chosen(operations: &'static [(&'static str, Operation)]) -> impl Iterator<Item = (&'static str, Operation)> {
    let only = std::env::var("DEATHS_ONLY").ok();
    operations.iter().copied().filter(move |(name, _)| only.as_ref().is_none_or(|only| only == name))
}

fn die_everywhere(kind: ImageKind, every: usize, operations: &'static [(&'static str, Operation)], check: Check) {
    let mut deaths = Deaths::new(check);
    let seed = setting("DEATHS_SEED", std::process::id().into());
    std::eprintln!("DEATHS_SEED={seed} DEATHS_EVERY={every}");
    for (index, operation) in chosen(operations).enumerate() {
        let first = (seed + index as u64) % every as u64;
        let died = (first..).step_by(every).take_while(|step| deaths.try_one(kind, (*step, None), operation)).count();
        std::eprintln!("{}: {} steps", operation.0, died * every);
    }
    deaths.assert_survived();
}

#[test]
fn a_thread_may_die_at_every_step_of_every_operation() {
    die_everywhere(ImageKind::Roomy, setting("DEATHS_EVERY", 1) as usize, OPERATIONS, check);
}

#[test]
fn a_thread_may_die_and_detach_recovers_its_work() {
    die_everywhere(ImageKind::Roomy, setting("DEATHS_EVERY", 3) as usize, OPERATIONS, check_at_once);
}

#[test]
fn a_thread_may_die_while_it_links_a_file_that_loses_its_last_name() {
    let link: Operation = |thread, tree| thread.link(tree.small, tree.full, b"new");
    let mut deaths = Deaths::new(check_without_small);
    assert_ne!((0..).take_while(|step| deaths.try_one(ImageKind::Roomy, (*step, None), ("link", link))).count(), 0);
    deaths.assert_survived();
}

#[test]
fn a_thread_may_die_while_another_changes_the_same_objects() {
    die_everywhere(ImageKind::Roomy, setting("DEATHS_EVERY", 1) as usize, OPERATIONS_BESIDE_OTHERS, check);
}

#[test]
fn a_thread_may_die_where_names_crowd_their_buckets() {
    die_everywhere(ImageKind::Crowded, setting("DEATHS_EVERY", 3) as usize, OPERATIONS, check);
}

#[test]
fn a_thread_may_die_in_directories_that_threads_share() {
    die_everywhere(ImageKind::Shared, setting("DEATHS_EVERY", 3) as usize, OPERATIONS, check);
    reapers_die(ImageKind::Shared, setting("REAPERS_EVERY", 211), OPERATIONS);
}

const GROWING: &[(&str, Operation)] =
    &[("create", |thread, tree| made(thread, thread.create(tree.root, b"new", &new(FileKind::Regular))))];

#[test]
fn a_thread_may_die_where_inodes_need_blocks_that_lie_apart() {
    die_everywhere(ImageKind::Scattered, setting("DEATHS_EVERY", 1) as usize, GROWING, check);
    reapers_die(ImageKind::Scattered, setting("REAPERS_EVERY", 41), GROWING);
}

#[test]
fn recovery_waits_for_another_reaper_of_the_same_thread() {
    // No other test waits on this platform.
    static PLATFORM: TestPlatform = TestPlatform::new();
    let world = World::on(ImageKind::Roomy, &PLATFORM);
    let root = world.fs().enter().expect("enters").root().expect("a root");
    assert!(world.dies(20, |thread| thread.release(make(thread, root, b"new", FileKind::Regular), 1)));
    let in_order = || {
        let slots = 0..world.fs().header().expect("a header").slots_high.load(Relaxed) as u32;
        slots.into_iter().all(|index| world.fs().dram().slot(index).expect("a slot").pinned.load(SeqCst) == 0)
    };
    assert!(!in_order());
    std::thread::scope(|scope| {
        let (begun, looking) = std::sync::mpsc::channel();
        scope.spawn(|| {
            // This thread continues once the other one waits for it, or does not wait.
            at_next_step(move || {
                begun.send(()).expect("is heard");
                while PLATFORM.waits.load(SeqCst) == 0 {
                    std::thread::yield_now();
                }
            });
            assert_eq!(world.fs().reap_dead_threads(), Ok(1));
        });
        looking.recv().expect("begins");
        world.fs().recover_dead_threads().expect("settles");
        let settled = in_order();
        PLATFORM.waits.fetch_add(1, SeqCst);
        assert!(settled);
    });
}

/// Leftovers of a dead thread at a name are removed with all names of its directory, which waits
/// for all pinned threads.
#[test]
fn a_wait_for_a_name_allows_eviction_of_its_directory() {
    static PLATFORM: TestPlatform = TestPlatform::new();
    // For threads that may never end.
    let world: &'static World = Box::leak(Box::new(World::on(ImageKind::Roomy, &PLATFORM)));
    let thread = world.fs().enter().expect("enters");
    let root = thread.root().expect("a root");
    thread.release(make(&thread, root, b"gone", FileKind::Regular), 1);
    thread.release(make(&thread, root, b"there", FileKind::Regular), 1);
    leave_in_the_way(&thread, root, b"gone");
    let look = |name: &'static [u8]| {
        std::thread::spawn(move || world.fs().enter().expect("enters").lookup(root, name).map(drop))
    };
    // A wait that lasts would look for its reason, and find damage.
    PLATFORM.holds_waits.store(true, SeqCst);
    let waiting = look(b"gone");
    while PLATFORM.waits.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    DirectoryState::mark_needs_recount(thread.cachelet(root).expect("a cachelet"));
    PLATFORM.holds_waits.store(false, SeqCst);
    let evicting = look(b"there");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(600);
    while !(waiting.is_finished() && evicting.is_finished()) {
        assert!(std::time::Instant::now() < end, "they wait for each other");
        std::thread::yield_now();
    }
    assert_eq!(waiting.join().expect("no panic"), Err(Error::NotFound));
    assert_eq!(evicting.join().expect("no panic"), Ok(()));
}

/// Makes a name lead to a dead file and marks it invalid on the image.
fn leave_in_the_way(thread: &MortalThread<'_>, directory: Node, name: &[u8]) {
    let hash = thread.fs.hash_name(directory.number, name);
    let hit = thread.fs.find(directory.number, name, hash).expect("no damage").expect("the name");
    let index = thread.cachelet_of_target(&hit).expect("its cachelet");
    thread.fs.pm.persist(thread.fs.pm.retract(&hit.dentry.valid, hit.dentry.invalid_word(0)));
    let references = &thread.fs.dram.cachelet(index).expect("a cachelet").references;
    references.fetch_or(References::flag(FLAG_DEAD), SeqCst);
}

/// Each operation starts its series at a different first step, so that many kinds of steps are met.
#[test]
fn a_reaper_may_die_at_every_step() {
    reapers_die(ImageKind::Roomy, setting("REAPERS_EVERY", 41), OPERATIONS);
}

fn reapers_die(kind: ImageKind, every: u64, operations: &'static [(&'static str, Operation)]) {
    let mut deaths = Deaths::new(check);
    for (index, operation) in chosen(operations).enumerate() {
        let mut step = index as u64 % every;
        std::eprintln!("{}", operation.0);
        while die(kind, (step, None), operation, check) != Outcome::Survived {
            (0..).take_while(|reaper_step| deaths.try_one(kind, (step, Some(*reaper_step)), operation)).count();
            step += every;
        }
    }
    deaths.assert_survived();
}
