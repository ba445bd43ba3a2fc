//! Eviction and use of the evicted objects, interleaved at each step of one of the two.

use crate::dram::{FLAG_EVICTED, References};
use crate::error::Error;
use crate::format::FileKind;
use crate::fs::Node;
use crate::mindex::check_names;
use crate::reap_tests::{MortalThread, everlasting, make};
use crate::testing::mortality::{at_next_step, at_step};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Evicts a directory, whether or not it has a second chance.
fn evict(thread: &MortalThread<'_>, directory: Node) {
    let evicted = || thread.maintenance().evict_directory(directory.cachelet).expect("no damage");
    assert!(evicted() || evicted());
}

fn node(thread: &MortalThread<'_>, directory: Node, name: &[u8]) -> Node {
    let node = thread.lookup(directory, name).expect("is there");
    thread.release(node, 1);
    node
}

#[test]
fn names_are_there_once_if_they_come_in_while_their_directory_goes() {
    static LOOKS: AtomicU64 = AtomicU64::new(0);
    static STEPS: AtomicU64 = AtomicU64::new(0);
    let (world, thread) = everlasting();
    let root = thread.root().expect("a root");
    let outer = make(thread, root, b"outer", FileKind::Directory);
    let inner = make(thread, outer, b"inner", FileKind::Directory);
    for made in [make(thread, inner, b"file", FileKind::Regular), inner, outer] {
        thread.release(made, 1);
    }
    for step in 0.. {
        let outer = node(thread, root, b"outer");
        let inner = node(thread, outer, b"inner");
        node(thread, inner, b"file");
        evict(thread, inner);
        at_step(step, move || {
            STEPS.fetch_add(1, SeqCst);
            // A thread that holds a lock continues first.
            if thread.slot.held.iter().any(|record| record.load(Relaxed) != 0) {
                return;
            }
            let other = world.fs().enter().expect("enters");
            let inner = other.node(inner.number, None).expect("is there");
            other.stat_name(inner, b"file").expect("is there");
            other.release(inner, 1);
            LOOKS.fetch_add(1, SeqCst);
        });
        evict(thread, outer);
        at_next_step(|| {});
        check_names(world.fs());
        if STEPS.load(SeqCst) == step {
            break;
        }
    }
    std::eprintln!("{LOOKS:?} looks at {STEPS:?} steps");
    assert!(LOOKS.load(SeqCst) > 0);
}

#[test]
fn a_file_keeps_count_of_its_names_if_it_goes_with_one_while_another_is_removed() {
    static EVICTIONS: AtomicU64 = AtomicU64::new(0);
    static STEPS: AtomicU64 = AtomicU64::new(0);
    let (world, thread) = everlasting();
    let root = thread.root().expect("a root");
    for step in 0.. {
        let file = make(thread, root, b"one", FileKind::Regular);
        thread.link(file, root, b"other").expect("links");
        thread.release(file, 1);
        at_step(step, move || {
            STEPS.fetch_add(1, SeqCst);
            // Acts as the eviction of a directory with the other name, which began before this name
            // existed.
            let other = world.fs().enter().expect("enters");
            other.maintenance().evict_cachelet(file.cachelet, file.number).expect("no damage");
            let state = other.cachelet(file).expect("one").references.load(SeqCst);
            if state & References::flag(FLAG_EVICTED) == 0 {
                return;
            }
            let again = other.node(file.number, None).expect("is there");
            other.release(again, 1);
            EVICTIONS.fetch_add(1, SeqCst);
        });
        thread.unlink(root, b"one", |_| Ok(())).expect("removes");
        at_next_step(|| {});
        assert_eq!(thread.stat_name(root, b"other").expect("is there").links, 1, "at step {step}");
        thread.unlink(root, b"other", |_| Ok(())).expect("removes");
        assert_eq!(thread.node(file.number, None), Err(Error::NotFound));
        if STEPS.load(SeqCst) == step {
            break;
        }
    }
    std::eprintln!("{EVICTIONS:?} evictions at {STEPS:?} steps");
    assert!(EVICTIONS.load(SeqCst) > 0);
}

#[test]
fn files_leave_a_directory_in_use_and_have_their_attributes_when_they_are_used_again() {
    let (world, thread) = everlasting();
    let root = thread.root().expect("a root");
    let used = make(thread, root, b"used", FileKind::Directory);
    let idle = make(thread, used, b"idle", FileKind::Regular);
    thread.files().write(idle, 0, b"content").expect("writes");
    thread.link(idle, root, b"other").expect("links");
    thread.release(idle, 1);
    let open = make(thread, used, b"open", FileKind::Regular);
    while thread.maintenance().evict_some().expect("no damage") {}
    assert_eq!(world.fs().cachelet_by_number(idle.number), None);
    assert_eq!(world.fs().cachelet_by_number(open.number), Some(open.cachelet), "in use");
    assert_eq!(world.fs().cachelet_by_number(root.number), Some(root.cachelet), "no name leads to it");
    check_names(world.fs());
    let found = thread.stat_name(used, b"idle").expect("is there");
    assert_eq!((found.size_bytes, found.links), (7, 2));
    assert_eq!(node(thread, used, b"idle"), node(thread, root, b"other"), "one cachelet for both names");
    thread.unlink(used, b"idle", |_| Ok(())).expect("removes");
    assert_eq!(thread.stat_name(root, b"other").expect("is there").links, 1);
}

#[test]
fn a_file_that_is_being_loaded_does_not_leave() {
    static STEPS: AtomicU64 = AtomicU64::new(0);
    let (world, thread) = everlasting();
    let root = thread.root().expect("a root");
    thread.release(make(thread, root, b"file", FileKind::Regular), 1);
    for step in 0.. {
        while thread.maintenance().evict_some().expect("no damage") {}
        at_step(step, move || {
            STEPS.fetch_add(1, SeqCst);
            let other = world.fs().enter().expect("enters");
            let end = world.fs().header().expect("one").cachelets_next.load(SeqCst) as u32;
            for index in 1..end {
                other.maintenance().evict_file(index).expect("no damage");
            }
        });
        let file = thread.lookup(root, b"file").expect("is there");
        at_next_step(|| {});
        assert_eq!(world.fs().cachelet_by_number(file.number), Some(file.cachelet), "at step {step}");
        thread.release(file, 1);
        if STEPS.load(SeqCst) == step {
            break;
        }
    }
    assert!(STEPS.load(SeqCst) > 0);
}
