//! Eviction and use of the evicted objects, interleaved at each step of one of the two.

use crate::attributes::Changes;
use crate::dram::{FLAG_EVICTED, References};
use crate::error::Error;
use crate::format::FileKind;
use crate::fs::Node;
use crate::mindex::check_names;
use crate::reap_tests::{ImageKind, MortalThread, World, check_cachelets, everlasting, leave_clean, made, make};
use crate::testing::mortality::{at_next_step, at_step};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::cell::Cell;
use std::rc::Rc;

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

/// Makes a file with one name in each of two directories.
fn make_twice_named(thread: &MortalThread<'_>, root: Node) -> Node {
    let (one, two) = (make(thread, root, b"one", FileKind::Directory), make(thread, root, b"two", FileKind::Directory));
    let file = make(thread, one, b"file", FileKind::Regular);
    thread.link(file, two, b"file").expect("links");
    [one, two, file].into_iter().for_each(|made| thread.release(made, 1));
    file
}

/// Evicts a file that has names in `one` and `two`, with its name in `one`. Its name in `two` then
/// leads to a free cachelet, which is the next one that `thread` takes.
fn leave_stale_name(thread: &MortalThread<'_>, root: Node) {
    let (one, two) = (node(thread, root, b"one"), node(thread, root, b"two"));
    let file = node(thread, one, b"file");
    assert_eq!(node(thread, two, b"file"), file);
    evict(thread, one);
    thread.recycler().drain().expect("drains");
    assert_eq!(thread.allocator().next_cachelet(), Some(file.cachelet));
}

/// The file named `file` in a directory of the root, with a reference.
fn file_in(thread: &MortalThread<'_>, root: Node, directory: &[u8]) -> Node {
    let directory = node(thread, root, directory);
    thread.lookup(directory, b"file").expect("is there")
}

/// One thread loads a file by one name. At each step another one finds it by the name that leads to
/// the cachelet of the file's last life. `evicts`: a third one tries to evict that cachelet then.
fn load_beside_stale_name(evicts: bool) {
    let (world, thread) = everlasting();
    let root = thread.root().expect("a root");
    let number = make_twice_named(thread, root).number;
    let (mut loads, steps) = (0, Rc::new(Cell::new(0)));
    for step in 0.. {
        leave_stale_name(thread, root);
        let (reached, meanwhile) = (steps.clone(), Rc::new(Cell::new(None)));
        let seen = meanwhile.clone();
        at_step(step, move || {
            reached.set(step + 1);
            // A thread that holds a lock continues first.
            if thread.slot.held.iter().any(|record| record.load(Relaxed) != 0) {
                return;
            }
            let other = world.fs().enter().expect("enters");
            if evicts {
                let loading = thread.slot.in_flight.cachelet.load(Relaxed);
                other.maintenance().evict_cachelet(loading, number).expect("no damage");
            }
            let by_name = file_in(&other, root, b"two");
            let by_number = other.node(number, None).expect("is there");
            assert_eq!(by_name, by_number, "at step {step} the file has two cachelets");
            other.release(by_number, 1);
            seen.set(Some(by_name));
        });
        let found = file_in(thread, root, b"one");
        at_next_step(|| {});
        if let Some(meanwhile) = meanwhile.take() {
            assert_eq!(found, meanwhile, "at step {step} the file gets two cachelets");
            thread.release(meanwhile, 1);
            loads += 1;
        }
        thread.release(found, 1);
        thread.recycler().drain().expect("drains");
        if steps.get() == step {
            break;
        }
    }
    std::eprintln!("{loads} loads at {} steps", steps.get());
    assert!(loads > 0);
    thread.release(root, 1);
    check_cachelets(world.fs());
}

#[test]
fn a_name_that_led_to_the_cachelet_of_an_evicted_file_leads_to_the_one_that_is_published() {
    load_beside_stale_name(false);
}

#[test]
fn a_cachelet_that_is_not_published_is_not_evicted() {
    load_beside_stale_name(true);
}

#[test]
fn a_file_that_is_loaded_while_others_load_change_and_evict_it_has_the_change() {
    let (world, thread) = everlasting();
    let root = thread.root().expect("a root");
    let number = make(thread, root, b"file", FileKind::Regular).number;
    thread.release(node(thread, root, b"file"), 1);
    let evict = |thread: &MortalThread<'_>| {
        let index = node(thread, root, b"file").cachelet;
        assert!(thread.maintenance().evict_cachelet(index, number).expect("no damage"));
    };
    let (mut loads, steps) = (0, Rc::new(Cell::new(0)));
    for step in 0.. {
        evict(thread);
        let (reached, meanwhile) = (steps.clone(), Rc::new(Cell::new(None)));
        let seen = meanwhile.clone();
        at_step(step, move || {
            reached.set(step + 1);
            if thread.slot.held.iter().any(|record| record.load(Relaxed) != 0) {
                return;
            }
            let other = world.fs().enter().expect("enters");
            let found = other.node(number, None).expect("is there");
            let permissions = 0o400 | step as u32 & 0o77;
            other
                .change(found, |_| Ok(Changes { permissions: Some(permissions), ..Changes::default() }))
                .expect("changes");
            other.release(found, 1);
            // It cannot once the first thread has a reference.
            let evicted = other.maintenance().evict_cachelet(found.cachelet, number).expect("no damage");
            seen.set(Some((permissions, evicted)));
        });
        let found = thread.node(number, None).expect("is there");
        at_next_step(|| {});
        if let Some((permissions, evicted)) = meanwhile.take() {
            let shown = thread.stat(found).expect("stats").mode & 0o7777;
            assert_eq!(shown, permissions, "at step {step} the file loses a change");
            loads += u64::from(evicted);
        }
        thread.files().append(found, b"more").expect("writes");
        thread.release(found, 1);
        thread.recycler().drain().expect("drains");
        if steps.get() == step {
            break;
        }
    }
    std::eprintln!("{loads} loads at {} steps", steps.get());
    assert!(loads > 2);
    thread.release(root, 1);
    // The slot that the others had keeps what they freed.
    world.fs().enter().expect("enters").recycler().drain().expect("drains");
    check_cachelets(world.fs());
}

#[test]
fn a_file_stays_usable_if_a_thread_dies_that_loads_it_into_the_cachelet_of_its_last_life() {
    for step in 0.. {
        let mut world = World::new(ImageKind::Roomy);
        {
            let thread = world.fs().enter().expect("enters");
            let root = thread.root().expect("a root");
            make_twice_named(&thread, root);
            let died = world.dies(step, |mortal| {
                // What comes first is the subject of other tests: it takes no steps.
                crate::testing::mortality::unharmed(|| leave_stale_name(mortal, root));
                let one = mortal.lookup(root, b"one").expect("is there");
                mortal.record_reference(one);
                made(mortal, mortal.lookup(one, b"file")).expect("is there");
                mortal.release_recorded(one);
            });
            let found = file_in(&thread, root, b"two");
            world.fs().reap_dead_threads().expect("reaps");
            for directory in [&b"one"[..], b"two"] {
                let again = file_in(&thread, root, directory);
                assert_eq!(again, found, "after a death at step {step}");
                thread.release(again, 1);
            }
            thread.files().append(found, b"more").expect("writes");
            thread.release(found, 1);
            thread.release(root, 1);
            thread.recycler().drain().expect("drains");
            if !died {
                assert!(step > 10, "{step} steps");
                break;
            }
        }
        check_cachelets(world.fs());
        leave_clean(&mut world);
    }
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
