//! Ablated variants of DirectFS are still correct: each behaves like a model, with one thread and
//! with several at the same names. Each is also the variant that it claims to be.

use crate::common::{Model, Random, any_call, one_call, tree_of};
use engine::format::FileKind;
use engine::{LogLocks, Tree};
use lab::ablation::Variant;
use lab::calls::Calls;
use lab::experiments::machine::{Machine, Plan, Subject, ablated, machine};
use lab::experiments::memory::{Counts, take_counts};
use pmem::Delays;
use posix::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

const THREADS: u64 = 4;
const CALLS: u64 = 3000;
const NO_DELAY: Delays = Delays { read_ns: 0, write_ns: 0 };

/// The small size makes the trees' buckets overflow and different names share buckets; the large
/// one gives several levels.
const FEW: u64 = 40;
const MANY: u64 = 10_000;
const PLAN: Plan = Plan::of_names(MANY);

/// A machine that may get more names than its index is sized for.
fn variant(variant: Variant, names: u64) -> Box<dyn Machine> {
    ablated(PLAN, variant.ablation(names)).unwrap()
}

fn each_variant(test: impl Fn(&mut dyn Machine)) {
    for kind in Variant::OTHERS.into_iter().chain([Variant::Whole]) {
        for names in [FEW, MANY] {
            println!("{kind:?}, {names}");
            test(&mut *variant(kind, names));
        }
    }
}

fn with(machine: &dyn Machine, work: impl Fn(&dyn Calls)) {
    let done = machine.with(&mut |calls| {
        work(calls);
        Ok(())
    });
    done.unwrap();
}

fn in_threads(machine: &dyn Machine, work: impl Fn(u64, &dyn Calls) + Sync) {
    let work = &work;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || with(machine, |calls| work(thread, calls)));
        }
    });
}

#[test]
fn every_variant_does_what_the_model_does() {
    for seed in 0..2 {
        each_variant(|machine| {
            let mut random = Random(seed);
            let mut model = Model::new();
            model.absolute_links = false;
            for _ in 0..6 {
                let done = machine.with(&mut |calls| {
                    assert_eq!(tree_of(&calls), model.tree(), "after the mount");
                    (0..200).for_each(|_| one_call(&mut random, &calls, &mut model));
                    assert_eq!(tree_of(&calls), model.tree(), "before the unmount");
                    Ok(())
                });
                done.unwrap();
                machine.remount(NO_DELAY).unwrap();
            }
        });
    }
}

fn shared(letter: char, index: u64) -> Vec<u8> {
    format!("/shared/{letter}{index}").into_bytes()
}

/// The names of a directory. Checks that lookups find exactly these.
fn names(calls: &dyn Calls, count: u64) -> BTreeSet<Vec<u8>> {
    let mut listed = BTreeSet::new();
    calls.read_directory(b"/shared", &mut |name, _| assert!(listed.insert(name.to_vec()), "listed twice")).unwrap();
    let found = ['a', 'b'].into_iter().flat_map(|letter| (0..count).map(move |index| shared(letter, index)));
    let found = found.filter(|path| calls.stat(path).is_ok()).map(|path| path["/shared/".len()..].to_vec());
    assert_eq!(found.collect::<BTreeSet<_>>(), listed);
    listed
}

/// Each thread owns every fourth file: it creates and renames it, and removes every third. Other
/// threads stat it meanwhile.
#[test]
fn what_threads_make_rename_and_remove_in_one_directory_is_there_and_nothing_else() {
    const FILES: u64 = 1200;
    each_variant(|machine| {
        with(machine, |calls| calls.mkdir(b"/shared", 0o755).unwrap());
        in_threads(machine, |thread, calls| {
            for index in (thread..FILES).step_by(THREADS as usize) {
                let (one, two) = (shared('a', index), shared('b', index));
                calls.create(&one, 0o644).unwrap();
                assert_eq!(calls.create(&one, 0o644), Err(Errno::EEXIST));
                calls.rename(&one, &two, 0).unwrap();
                assert_eq!(calls.stat(&one).map(|_| ()), Err(Errno::ENOENT));
                assert_eq!(calls.stat(&two).unwrap().kind, FileKind::Regular);
                let others = FILES - index - 1;
                assert!(matches!(calls.stat(&shared('b', others)).map(drop), Ok(()) | Err(Errno::ENOENT)));
                if index % 3 == 0 {
                    calls.unlink(&two).unwrap();
                }
            }
        });
        let wanted: BTreeSet<_> =
            (0..FILES).filter(|index| index % 3 != 0).map(|index| format!("b{index}").into_bytes()).collect();
        with(machine, |calls| assert_eq!(names(calls, FILES), wanted));
        machine.remount(NO_DELAY).unwrap();
        with(machine, |calls| assert_eq!(names(calls, FILES), wanted));
    });
}

/// Of concurrent creates, moves and removals of a name exactly one succeeds.
#[test]
fn names_are_made_moved_and_removed_by_one() {
    const NAMES: u64 = 30;
    each_variant(|machine| {
        with(machine, |calls| calls.mkdir(b"/shared", 0o755).unwrap());
        let files = AtomicI64::new(0);
        in_threads(machine, |thread, calls| {
            let mut random = Random(thread);
            for _ in 0..CALLS {
                let (one, two) = (shared('a', random.below(NAMES)), shared('b', random.below(NAMES)));
                let (change, done) = match random.below(4) {
                    0 => (1, calls.create(&one, 0o644)),
                    1 => (-1, calls.unlink(&two)),
                    2 => (0, calls.rename(&one, &two, libc::RENAME_NOREPLACE)),
                    _ => (0, calls.rename(&one, &two, libc::RENAME_EXCHANGE)),
                };
                match done {
                    Ok(()) => drop(files.fetch_add(change, Relaxed)),
                    Err(errno) => assert!([Errno::ENOENT, Errno::EEXIST].contains(&errno), "{errno:?}"),
                }
            }
        });
        let wanted = files.load(Relaxed) as usize;
        with(machine, |calls| assert_eq!(names(calls, NAMES).len(), wanted));
        machine.remount(NO_DELAY).unwrap();
        with(machine, |calls| assert_eq!(names(calls, NAMES).len(), wanted));
    });
}

#[test]
fn all_calls_at_once_leave_a_tree_that_makes_sense() {
    each_variant(|machine| {
        let directories = ["/a", "/b", "/a/c", "/b/d"];
        with(machine, |calls| directories.iter().for_each(|path| calls.mkdir(path.as_bytes(), 0o755).unwrap()));
        in_threads(machine, |thread, calls| {
            let mut random = Random(thread * 77);
            (0..CALLS).for_each(|_| any_call(&calls, &mut random));
        });
        let mut tree = BTreeMap::new();
        let listed = machine.with(&mut |calls| {
            tree = tree_of(&calls);
            Ok(())
        });
        listed.unwrap();
        for (path, seen) in tree.iter().filter(|(_, seen)| seen.kind == FileKind::Directory) {
            let below = |other: &str| {
                other != "/" && other.rsplit_once('/').map(|(above, _)| above) == Some(path.trim_end_matches('/'))
            };
            let directories = tree.iter().filter(|(other, seen)| below(other) && seen.kind == FileKind::Directory);
            assert_eq!(seen.links as usize, 2 + directories.count(), "links of {path}");
        }
        machine.remount(NO_DELAY).unwrap();
        with(machine, |calls| assert_eq!(tree_of(&calls), tree));
    });
}

// --- Variants are what they claim to be -------------------------------------------------------

/// Counts the calls to a tree.
struct CountedTree {
    tree: &'static dyn Tree,
    looked: AtomicU64,
    made: AtomicU64,
    begun: AtomicU64,
}

impl Tree for CountedTree {
    fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Relaxed);
        self.tree.begin()
    }
    fn bucket(&self, hash: u64) -> u64 {
        self.looked.fetch_add(1, Relaxed);
        self.tree.bucket(hash)
    }
    fn guard(&self, hash: u64) -> u64 {
        self.tree.guard(hash)
    }
    fn make(&self, hash: u64) -> u64 {
        self.made.fetch_add(1, Relaxed);
        self.tree.make(hash)
    }
}

#[test]
fn a_tree_is_asked_by_every_lookup_and_change() {
    for kind in [Variant::Radix, Variant::BTree] {
        let mut ablation = kind.ablation(MANY);
        let counted = |tree| CountedTree { tree, looked: 0.into(), made: 0.into(), begun: 0.into() };
        let tree: &'static CountedTree = Box::leak(Box::new(counted(ablation.tree.unwrap())));
        ablation.tree = Some(tree);
        let mut machine = ablated(PLAN, ablation).unwrap();
        with(&*machine, |calls| {
            calls.create(b"/one", 0o644).unwrap();
            let counts = || [&tree.looked, &tree.made].map(|count| count.swap(0, Relaxed));
            counts();
            calls.stat(b"/one").unwrap();
            assert_eq!(counts(), [1, 0], "{kind:?}: stat");
            calls.rename(b"/one", b"/two", 0).unwrap();
            assert_eq!(counts()[1], 2, "{kind:?}: rename");
            calls.unlink(b"/two").unwrap();
            assert_eq!(counts()[1], 1, "{kind:?}: unlink");
        });
        machine.remount(NO_DELAY).unwrap();
        assert_eq!(tree.begun.load(Relaxed), 2, "a new region has a new index");
    }
}

/// Counts the holders of log locks.
struct CountedLogs {
    logs: &'static dyn LogLocks,
    taken: AtomicU64,
    held: AtomicI64,
    most: AtomicI64,
}

impl LogLocks for CountedLogs {
    fn lock(&self, directories: [u64; 2]) {
        self.logs.lock(directories);
        self.taken.fetch_add(1, Relaxed);
        self.most.fetch_max(self.held.fetch_add(1, Relaxed) + 1, Relaxed);
        COUNTED.set(true);
    }
    fn unlock(&self) {
        if COUNTED.replace(false) {
            self.held.fetch_sub(1, Relaxed);
        }
        self.logs.unlock();
    }
}

thread_local! {
    static COUNTED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[test]
fn a_log_is_locked_by_its_writer_and_released() {
    let mut ablation = Variant::LockedLog.ablation(MANY);
    let logs = ablation.logs.unwrap();
    let counted = CountedLogs { logs, taken: 0.into(), held: 0.into(), most: 0.into() };
    let counted: &'static CountedLogs = Box::leak(Box::new(counted));
    ablation.logs = Some(counted);
    let machine = ablated(PLAN, ablation).unwrap();
    with(&*machine, |calls| calls.mkdir(b"/shared", 0o755).unwrap());
    assert_eq!(counted.taken.swap(0, Relaxed), 1);
    in_threads(&*machine, |thread, calls| {
        for index in 0..300 {
            let (one, two) = (shared('a', index * THREADS + thread), shared('b', index * THREADS + thread));
            calls.create(&one, 0o644).unwrap();
            calls.link(&one, &two).unwrap();
            assert_eq!(calls.create(&one, 0o644), Err(Errno::EEXIST));
            calls.unlink(&two).unwrap();
            calls.rename(&one, &two, 0).unwrap();
        }
    });
    assert!(counted.taken.load(Relaxed) >= 3 * 300 * THREADS, "create, link and rename write the log");
    assert_eq!(counted.held.load(Relaxed), 0);
    assert_eq!(counted.most.load(Relaxed), 1);
}

/// Image lines that a stat reads with everything in memory.
/// Accesses of a call to the image, after a mount and a stat of `/file`.
fn counts_of(subject: Subject, call: impl Fn(&dyn Calls)) -> Counts {
    let delays = Delays { read_ns: 1, write_ns: 1 };
    let mut machine = machine(subject, PLAN).unwrap();
    with(&*machine, |calls| calls.create(b"/file", 0o644).unwrap());
    machine.remount(delays).unwrap();
    with(&*machine, |calls| assert!(calls.stat(b"/file").is_ok()));
    // Empties the emulated cache.
    machine.slow_down(delays);
    let mut counts = Counts::default();
    let done = machine.with(&mut |calls| {
        take_counts();
        call(calls);
        counts = take_counts();
        Ok(())
    });
    done.unwrap();
    counts
}

fn lines_of_a_warm_stat(subject: Subject) -> u64 {
    counts_of(subject, |calls| assert!(calls.stat(b"/file").is_ok())).read
}

/// Algorithm 1 has a second fence and the line with the tail of the log. chmod has a second fence
/// and the line with the address of the property entry.
#[test]
fn what_is_printed_has_the_papers_fences_and_lines() {
    let subjects = [Subject::DirectFs, Subject::Ablated(Variant::AsPrinted)];
    let create = |calls: &dyn Calls| calls.create(b"/new", 0o644).unwrap();
    let chmod = |calls: &dyn Calls| calls.chmod(b"/file", 0o600).unwrap();
    let remove = |calls: &dyn Calls| calls.unlink(b"/file").unwrap();
    for (call, fences, lines) in [(&create as &dyn Fn(&dyn Calls), 1, 1), (&chmod, 1, 1), (&remove, 0, 0)] {
        let [ours, printed] = subjects.map(|subject| counts_of(subject, call));
        assert_eq!(printed.fences, ours.fences + fences);
        assert_eq!(printed.flushed, ours.flushed + lines);
    }
}

/// While a thread creates a name, others either do not find it or find it whole, and a second
/// create fails.
#[test]
fn a_name_that_is_being_created_is_taken_and_cannot_be_read() {
    const NAMES: u64 = 2000;
    let machine = variant(Variant::AsPrinted, MANY);
    with(&*machine, |calls| calls.mkdir(b"/shared", 0o755).unwrap());
    let made = AtomicU64::new(0);
    in_threads(&*machine, |thread, calls| {
        for index in 0..NAMES {
            let path = shared('a', index);
            match thread % 2 {
                0 if calls.create(&path, 0o640).is_ok() => drop(made.fetch_add(1, Relaxed)),
                0 => assert_eq!(calls.create(&path, 0o640), Err(Errno::EEXIST)),
                _ => assert!(calls.stat(&path).map_or(true, |found| found.mode & 0o777 == 0o640)),
            }
        }
    });
    assert_eq!(made.load(Relaxed), NAMES);
    with(&*machine, |calls| assert_eq!(names(calls, NAMES).len() as u64, NAMES));
}

/// The collecting thread reuses what many removals left.
#[test]
fn the_collecting_thread_gives_back_the_space_of_removed_names() {
    let machine = ablated(Plan::of_names(300), Variant::AsPrinted.ablation(FEW)).unwrap();
    with(&*machine, |calls| {
        for round in 0..100 {
            let paths: Vec<_> = (0..300).map(|index| format!("/file{round}-{index}").into_bytes()).collect();
            paths.iter().for_each(|path| calls.create(path, 0o644).unwrap());
            paths.iter().for_each(|path| calls.unlink(path).unwrap());
        }
    });
}

#[test]
fn without_the_quick_path_a_stat_reads_the_inode() {
    let whole = lines_of_a_warm_stat(Subject::DirectFs);
    assert!(whole > 0);
    // The line of the inode table is in the cache since the root was found, so only the inode's
    // line is added.
    assert_eq!(lines_of_a_warm_stat(Subject::Ablated(Variant::NoQuickPath)), whole + 1);
    assert_eq!(lines_of_a_warm_stat(Subject::Ablated(Variant::Radix)), whole);
}

#[test]
fn each_subject_is_the_variant_of_its_name() {
    for kind in Variant::OTHERS {
        let ablation = kind.ablation(MANY);
        assert_eq!(ablation.without_quick_path, kind == Variant::NoQuickPath);
        assert_eq!(ablation.tree.is_some(), matches!(kind, Variant::Radix | Variant::BTree));
        assert_eq!(ablation.logs.is_some(), kind == Variant::LockedLog);
        assert_eq!(ablation.as_printed, kind == Variant::AsPrinted);
    }
    let names: BTreeSet<&str> = Variant::OTHERS.map(|kind| Subject::Ablated(kind).name()).into_iter().collect();
    let wanted = ["DirectFS_b", "DirectFS_nocon", "DirectFS_nqp", "DirectFS_paper", "DirectFS_r"];
    assert_eq!(names, BTreeSet::from(wanted));
}
