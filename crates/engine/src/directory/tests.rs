//! Limits of a directory's counts that no image of a test's size reaches by itself, and its times,
//! on a clock that stands still.

use super::{DIRECTORY_LINKS_MAX, DirectoryEntry, RenameFlags};
use crate::attach::AttachOptions;
use crate::attributes::Changes;
use crate::dram::References;
use crate::error::{Error, Result};
use crate::format::FileKind;
use crate::fs::{Node, Thread};
use crate::mindex::MainBucketLookup;
use crate::reap_tests::everlasting;
use crate::testing::mortality::{at_next_step, at_step};
use crate::testing::{Attached, Memory, TestPlatform, new_image, new_node};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::boxed::Box;
use std::format;
use std::string::String;
use std::vec::Vec;

#[test]
fn a_directory_with_as_many_directories_as_it_can_count_takes_files_only() {
    let image = new_image(4 << 20, 0);
    let attached = Attached::new(&image).expect("attaches");
    let thread = attached.enter().expect("enters");
    let root = thread.root().expect("a root");
    let (file, directory) = (new_node(FileKind::Regular), new_node(FileKind::Directory));
    let full = thread.create(root, b"full", &directory).expect("makes");
    thread.release(thread.create(root, b"other", &directory).expect("makes"), 1);
    thread.release(thread.create(full, b"inner", &directory).expect("makes"), 1);
    let subdirectories = thread.cachelet(full).expect("a cachelet").as_directory().subdirectories();
    let more = DIRECTORY_LINKS_MAX - 3;
    subdirectories.fetch_add(more, Relaxed);

    assert_eq!(thread.create(full, b"new", &directory).err(), Some(Error::TooManyLinks));
    let rename = |name: &[u8], to: &[u8], flags| thread.rename((root, name), (full, to), flags, |_, _| Ok(()));
    assert_eq!(rename(b"other", b"new", RenameFlags::default()).err(), Some(Error::TooManyLinks));
    thread.release(thread.create(full, b"new", &file).expect("a file counts as no link"), 1);
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    assert_eq!(rename(b"other", b"new", exchange).err(), Some(Error::TooManyLinks));
    thread.remove_directory(full, b"inner", |_| Ok(())).expect("removes");
    rename(b"other", b"new directory", RenameFlags::default()).expect("there is room for one again");

    subdirectories.fetch_sub(more, Relaxed);
    thread.release(full, 1);
}

#[test]
fn a_log_gets_three_holes_for_each_name_before_it_is_compacted_and_no_more() {
    let image = new_image(32 << 20, 0);
    let attached = Attached::new(&image).expect("attaches");
    let thread = attached.enter().expect("enters");
    let root = thread.root().expect("a root");
    let names: Vec<String> = (0..4000).map(|number| format!("{number}")).collect();
    for name in &names {
        thread.release(thread.create(root, name.as_bytes(), &new_node(FileKind::Regular)).expect("makes"), 1);
    }
    let directory = thread.cachelet(root).expect("a cachelet");
    let mut holes_before = 0;
    let mut compacted = Vec::new();
    // 1999 and 4000 have no common divisor: each name once, and no two neighbours in succession.
    for step in 0..names.len() {
        thread.unlink(root, names[step * 1999 % names.len()].as_bytes(), |_| Ok(())).expect("removes");
        let log = directory.as_directory().log_counts();
        assert!(log.holes < 500.max(3 * log.names), "{log:?}");
        if log.holes < holes_before {
            compacted.push(log.names);
        }
        holes_before = log.holes;
    }
    assert_eq!(compacted, [1000, 250], "names that were left when the log was compacted");
    assert_eq!(directory.as_directory().log_counts().names, 0);
}

#[test]
fn a_name_that_only_seemed_to_be_absent_is_not_made_again() {
    let image = new_image(4 << 20, 0);
    let attached = Attached::new(&image).expect("attaches");
    let thread = attached.enter().expect("enters");
    let root = thread.root().expect("a root");
    let place = thread.name_location(root, b"file");
    assert!(!thread.seems_absent(&place), "nothing is known of an unused directory");
    thread.release(thread.create(root, b"other", &new_node(FileKind::Regular)).expect("makes"), 1);
    assert!(thread.seems_absent(&place));
    let file = thread.create(root, b"file", &new_node(FileKind::Regular)).expect("the name is absent");
    assert!(!thread.seems_absent(&place));

    let free = || {
        thread.space().map(|space| (space.inodes_free, space.blocks_free, attached.cached().map(|cached| cached.files)))
    };
    let before = free().expect("counts");
    assert_eq!(thread.create_at(&place, true, &new_node(FileKind::Regular)).err(), Some(Error::Exists));
    assert_eq!(free().expect("counts"), before, "nothing is taken");
    let found = thread.lookup(root, b"file").expect("is there still");
    assert_eq!(found.number, file.number);
    [file, found, root].into_iter().for_each(|node| thread.release(node, 1));
}

/// A change of a directory that changes none of its names.
type Explicit = fn(&Thread<'_, pmem::Direct>, Node, Node);

const EXPLICIT: [(&str, Explicit); 4] = [
    ("chmod", |thread, _, directory| {
        let changes = Changes { permissions: Some(0o700), ..Changes::default() };
        thread.change(directory, |_| Ok(changes)).expect("changes");
    }),
    ("utimes", |thread, _, directory| {
        let changes = Changes { modified_ns: Some(LONG_AGO_NS), ..Changes::default() };
        thread.change(directory, |_| Ok(changes)).expect("changes");
    }),
    ("setxattr", |thread, _, directory| {
        thread.files().set_xattr(directory, b"user.a", b"b", false, false).expect("sets");
    }),
    ("rename", |thread, root, _| {
        let flags = RenameFlags::default();
        thread.rename((root, b"directory"), (root, b"elsewhere"), flags, |_, _| Ok(())).expect("renames");
    }),
];

const LONG_AGO_NS: i64 = 1_000_000_000;
const TICK_NS: i64 = 4_000_000;
const HOUR_NS: i64 = 3_600_000_000_000;
const MADE_NS: i64 = 1_700_000_000_000_000_000;

/// Attaches an image whose clock stands still.
fn attach_at(now_ns: i64, image: &Memory, platform: &'static TestPlatform) -> Attached {
    platform.now_ns.store(now_ns, Relaxed);
    Attached::with(image, platform, &AttachOptions::default(), 1).expect("attaches")
}

/// Times of the directory, under either of its two names.
fn times(image: &Memory, platform: &'static TestPlatform) -> (i64, i64) {
    let again = Attached::with(image, platform, &AttachOptions::default(), 1).expect("attaches");
    let thread = again.enter().expect("enters");
    let root = thread.root().expect("a root");
    let directory = thread.lookup(root, b"directory").or_else(|_| thread.lookup(root, b"elsewhere")).expect("is there");
    let found = thread.stat(directory).expect("stats");
    (found.modified_ns, found.changed_ns)
}

#[test]
fn a_name_that_comes_in_the_tick_of_another_change_of_its_directory_counts() {
    static PLATFORM: TestPlatform = TestPlatform::new();
    for (what, explicit) in EXPLICIT {
        for name_before in [false, true] {
            let image = new_image(4 << 20, 0);
            let attached = attach_at(MADE_NS, &image, &PLATFORM);
            let thread = attached.enter().expect("enters");
            let root = thread.root().expect("a root");
            let directory =
                thread.create(root, b"directory", &new_node(FileKind::Directory)).expect("makes a directory");

            let tick_ns = PLATFORM.now_ns.fetch_add(TICK_NS, Relaxed) + TICK_NS;
            let make = |name: &[u8]| {
                thread.release(thread.create(directory, name, &new_node(FileKind::Regular)).expect("makes"), 1);
            };
            if name_before {
                make(b"before");
            }
            explicit(&thread, root, directory);
            let between = thread.stat(directory).expect("stats");
            assert_eq!(between.changed_ns, tick_ns, "{what}, {name_before}: it is a change");
            make(b"after");
            let now = thread.stat(directory).expect("stats");

            let expected = (tick_ns, tick_ns);
            assert_eq!((now.modified_ns, now.changed_ns), expected, "{what}, {name_before}: a name is one of content");
            assert_eq!(times(&image.copy(), &PLATFORM), expected, "{what}, {name_before}: after a crash");
            thread.release(directory, 1);
            thread.release(root, 1);
            drop(thread);
            attached.detach().expect("detaches");
            assert_eq!(times(&image, &PLATFORM), expected, "{what}, {name_before}: after a clean end");
        }
    }
}

#[test]
fn an_exchange_changes_both_files() {
    static PLATFORM: TestPlatform = TestPlatform::new();
    let image = new_image(4 << 20, 0);
    let attached = attach_at(MADE_NS, &image, &PLATFORM);
    let thread = attached.enter().expect("enters");
    let root = thread.root().expect("a root");
    let make = |name, kind| thread.create(root, name, &new_node(kind)).expect("makes");
    let both = [make(b"file", FileKind::Regular), make(b"directory", FileKind::Directory)];

    PLATFORM.now_ns.store(MADE_NS + TICK_NS, Relaxed);
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    thread.rename((root, b"file"), (root, b"directory"), exchange, |_, _| Ok(())).expect("exchanges");

    for node in both {
        let found = thread.stat(node).expect("stats");
        assert_eq!((found.modified_ns, found.changed_ns >= MADE_NS + TICK_NS), (MADE_NS, true));
        thread.release(node, 1);
    }
}

#[test]
fn a_name_counts_whenever_while_it_comes_its_directory_is_changed_otherwise() {
    static STEPS: AtomicU64 = AtomicU64::new(0);
    static CHANGES: AtomicU64 = AtomicU64::new(0);
    let (world, thread) = everlasting();
    let root = thread.root().expect("a root");
    for step in 0.. {
        let directory = thread.create(root, b"directory", &new_node(FileKind::Directory)).expect("makes a directory");
        let began_ns = thread.fs.now_ns();
        at_step(step, move || {
            STEPS.fetch_add(1, SeqCst);
            let other = world.fs().enter().expect("enters");
            let locked = other.cachelet(directory).expect("one").lock.load(Relaxed) != 0;
            if !locked {
                other.files().set_xattr(directory, b"user.a", b"b", false, false).expect("sets");
                CHANGES.fetch_add(1, SeqCst);
            }
        });
        thread.release(thread.create(directory, b"name", &new_node(FileKind::Regular)).expect("makes"), 1);
        at_next_step(|| {});
        assert!(thread.stat(directory).expect("stats").modified_ns >= began_ns, "at step {step}");
        thread.unlink(directory, b"name", |_| Ok(())).expect("removes");
        thread.release(directory, 1);
        thread.remove_directory(root, b"directory", |_| Ok(())).expect("removes");
        if STEPS.load(SeqCst) == step {
            break;
        }
    }
    std::eprintln!("{CHANGES:?} changes at {STEPS:?} steps");
    assert!(CHANGES.load(SeqCst) > 0);
}

#[test]
fn links_that_change_in_the_tick_of_a_sync_are_on_the_image_after_a_clean_end() {
    static PLATFORM: TestPlatform = TestPlatform::new();
    let image = new_image(4 << 20, 0);
    let attached = attach_at(MADE_NS, &image, &PLATFORM);
    let thread = attached.enter().expect("enters");
    let root = thread.root().expect("a root");
    let make = |name| thread.release(thread.create(root, name, &new_node(FileKind::Directory)).expect("makes"), 1);
    ["one", "two", "three"].iter().for_each(|name| make(name.as_bytes()));
    thread.sync(root).expect("syncs");
    make(b"four");
    thread.sync(root).expect("syncs");
    thread.remove_directory(root, b"one", |_| Ok(())).expect("removes");
    thread.remove_directory(root, b"two", |_| Ok(())).expect("removes");
    let links = thread.stat(root).expect("stats").links;
    thread.release(root, 1);
    drop(thread);
    attached.detach().expect("detaches");

    let again = attach_at(MADE_NS, &image, &PLATFORM);
    let thread = again.enter().expect("enters");
    let root = thread.root().expect("a root");
    assert_eq!((links, thread.stat(root).expect("stats").links), (4, 4));
    thread.release(root, 1);
}

#[test]
fn no_cached_path_leads_to_a_removed_directory() {
    static STOOD: AtomicU64 = AtomicU64::new(0);
    static STEPS: AtomicU64 = AtomicU64::new(0);
    let (world, thread) = everlasting();
    let root = thread.root().expect("a root");
    let make = |name: &[u8]| thread.create(root, name, &new_node(FileKind::Directory)).expect("makes");
    let remove = || thread.remove_directory(root, b"directory", |_| Ok(())).expect("removes");
    let replace = || {
        let flags = RenameFlags::default();
        thread.rename((root, b"heir"), (root, b"directory"), flags, |_, _| Ok(())).expect("replaces");
    };
    for (replaced, end) in [(false, &remove as &dyn Fn()), (true, &replace)] {
        STEPS.store(0, SeqCst);
        STOOD.store(0, SeqCst);
        for step in 0.. {
            let directory = make(b"directory");
            let stamp = {
                let visit = thread.visit();
                visit
                    .validation_stamp(visit.begin_at(directory).expect("is there"))
                    .expect("no rename or removal is under way")
            };
            thread.release(directory, 1);
            if replaced {
                thread.release(make(b"heir"), 1);
            }
            at_step(step, move || {
                STEPS.fetch_add(1, SeqCst);
                let other = world.fs().enter().expect("enters");
                let hash = other.fs.hash_name(root.number, b"directory");
                let is_gone = match other.fs.find_in_main_bucket(root.number, b"directory", hash, |_| {}) {
                    MainBucketLookup::Found(_, _, number) => number != directory.number,
                    MainBucketLookup::Absent => true,
                    MainBucketLookup::Unclear => false,
                };
                let stands = other.visit().validated_end(&[stamp]).is_some();
                assert!(!is_gone || !stands, "at step {step} the name is gone and the stamp matches");
                STOOD.fetch_add(u64::from(stands), SeqCst);
            });
            end();
            at_next_step(|| {});
            if replaced {
                remove();
            }
            if STEPS.load(SeqCst) == step {
                break;
            }
        }
        std::eprintln!("the stamp matched at {STOOD:?} of {STEPS:?} steps");
        assert!(STOOD.load(SeqCst) > 0);
    }
}

#[test]
fn however_long_a_create_or_link_is_stopped_no_listing_waits_for_it_or_has_its_name_first() {
    static PLATFORM: TestPlatform = TestPlatform::new();
    static STEPS: AtomicU64 = AtomicU64::new(0);
    static LEFT_OUT: AtomicU64 = AtomicU64::new(0);
    let image: &'static Memory = Box::leak(Box::new(new_image(4 << 20, 0)));
    let attached: &'static Attached = Box::leak(Box::new(attach_at(MADE_NS, image, &PLATFORM)));
    let thread = attached.enter().expect("enters");
    let root = thread.root().expect("a root");
    let create = |name| thread.create(root, name, &new_node(FileKind::Regular)).expect("makes");
    let file = create(b"file");
    let link = || thread.link(file, root, b"name").expect("links");
    for make in [&|| thread.release(create(b"name"), 1), &link as &dyn Fn()] {
        for step in 0.. {
            at_step(step, move || {
                STEPS.fetch_add(1, SeqCst);
                PLATFORM.now_ns.fetch_add(HOUR_NS, Relaxed);
                let other = attached.enter().expect("enters");
                let hash = other.fs.hash_name(root.number, b"name");
                let header = other.fs.header().expect("a header");
                let bucket = other.fs.dram.bucket(other.fs.bucket_of(hash, header)).expect("a bucket");
                if bucket.lock.load(Relaxed) != 0 {
                    return; // Lookups wait, too.
                }
                let is_found = other.lookup(root, b"name").map(|node| other.release(node, 1)).is_ok();
                let mut names = Vec::new();
                let mut record = |entry: DirectoryEntry<'_>| {
                    names.push(entry.name.to_vec());
                    true
                };
                other.read_directory(root, 0, &mut Default::default(), &mut record).expect("lists");
                let is_listed = names.iter().any(|name| name == b"name");
                assert!(names.iter().any(|name| name == b"file"), "at step {step}");
                assert!(is_found || !is_listed, "at step {step} a crash could take the name away");
                LEFT_OUT.fetch_add(u64::from(!is_listed), SeqCst);
            });
            make();
            at_next_step(|| {});
            thread.unlink(root, b"name", |_| Ok(())).expect("removes");
            if STEPS.load(SeqCst) == step {
                break;
            }
        }
        std::eprintln!("the name was left out at {LEFT_OUT:?} of {STEPS:?} steps");
        assert!(LEFT_OUT.swap(0, SeqCst) > 0);
        STEPS.store(0, SeqCst);
    }
    thread.release(file, 1);
}

/// As in an image that is damaged or was made to harm: lookups would wait for ever for the thread
/// that removes the file.
#[test]
fn a_name_of_a_file_that_was_freed_with_another_name_is_an_error() {
    let image = new_image(8 << 20, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let root = thread.root().expect("a root");
    let file = thread.create(root, b"one", &new_node(FileKind::Regular)).expect("a file");
    thread.link(file, root, b"other").expect("a link");
    let references = &fs.dram().cachelet(file.cachelet).expect("a cachelet").references;
    thread.release(file, 1);
    let state = References::from_word(references.load(Relaxed));
    assert_eq!((state.references, state.links), (0, 2));
    references.store(References { links: 1, ..state }.word(), Relaxed);
    thread.unlink(root, b"one", |_| Ok(())).expect("the counted name goes");
    thread.create(root, b"third", &new_node(FileKind::Regular)).expect("another file");
    let damaged = |result: Result<()>| matches!(result, Err(Error::Corrupt(_)));
    assert!(damaged(thread.lookup(root, b"other").map(drop)));
    assert!(damaged(thread.stat_name(root, b"other").map(drop)));
    assert!(damaged(thread.unlink(root, b"other", |_| Ok(()))));
    assert!(damaged(thread.remove_directory(root, b"other", |_| Ok(()))));
    let plain = RenameFlags::default();
    assert!(damaged(thread.rename((root, b"other"), (root, b"new"), plain, |_, _| Ok(()))));
    assert!(damaged(thread.rename((root, b"third"), (root, b"other"), plain, |_, _| Ok(()))));
    thread.lookup(root, b"third").map(|node| thread.release(node, 1)).expect("others are served");
}
