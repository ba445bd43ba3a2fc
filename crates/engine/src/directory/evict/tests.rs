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
