//! What another thread does at each step of an operation, and what a power cut then leaves.

use super::log::Tail;
use super::{NewNode, RenameFlags};
use crate::attach::AttachOptions;
use crate::attributes::Changes;
use crate::format::{FileKind, LOG_SLOTS, Superblock};
use crate::fs::{Fs, Node};
use crate::reap_tests::{MortalThread, World, check_cachelets, everlasting, made};
use crate::testing::mortality::at_step;
use crate::testing::{Attached, Memory, PLATFORM, new_image, new_node};
use core::sync::atomic::Ordering::Acquire;
use pmem::{CrashImage, Grain, Recorder, UserBytes};
use std::cell::{Cell, RefCell};
use std::format;
use std::rc::Rc;
use std::string::String;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

fn file() -> NewNode<'static> {
    new_node(FileKind::Regular)
}

fn names<M: pmem::Memory>(thread: &crate::fs::Thread<'_, M>, directory: Node) -> Vec<String> {
    let mut names = Vec::new();
    let list = thread.read_directory(directory, 0, &mut Default::default(), &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into());
        true
    });
    list.expect("lists");
    names.sort();
    names
}

/// An attached image after a power cut: it is recovered, has the expected names in `/d`, and the
/// same free space as the one that lived on.
fn check_after_power_cut(world: &World, expected: &[String]) {
    let lived = world.fs().enter().expect("enters");
    lived.recycler().drain().expect("drains");
    check_cachelets(world.fs());
    crate::mindex::check_names(world.fs());
    let image = world.image().copy();
    let again = Attached::new(&image).expect("attaches");
    {
        let thread = again.enter().expect("enters");
        let root = thread.root().expect("a root");
        let directory = thread.lookup(root, b"d").expect("is there");
        assert_eq!(names(&thread, directory), expected);
        let free = |space: crate::attributes::SpaceReport| (space.blocks_free, space.inodes_free);
        assert_eq!(
            free(lived.space().expect("counts")),
            free(thread.space().expect("counts")),
            "what lived has lost no space"
        );
        [root, directory].into_iter().for_each(|node| thread.release(node, 1));
    }
    again.detach().expect("detaches");
    let report = fsck::check(&image.region(), &fsck::Options::default(), &mut |_| {});
    let findings: String = report.findings.iter().map(|finding| format!("\n{finding}")).collect();
    assert!(report.clean && report.errors + report.warnings == 0, "{findings}");
}

/// Makes `/d` with `count` names.
fn directory_with(thread: &MortalThread<'_>, count: u64) -> Node {
    let root = thread.root().expect("a root");
    let directory = thread.create(root, b"d", &new_node(FileKind::Directory)).expect("creates");
    for number in 0..count {
        made(thread, thread.create(directory, format!("{number:03}").as_bytes(), &file())).expect("creates");
    }
    thread.release(root, 1);
    directory
}

/// Adds a page to the log of a directory whose last page is full.
fn extend(thread: &MortalThread<'_>, directory: Node) {
    let (_pin, cachelet) = thread.pin_indexed(directory).expect("a directory");
    thread.extend_log(cachelet, Tail(cachelet.as_directory().log_tail().load(Acquire))).expect("adds a page");
}

#[test]
fn a_thread_that_is_stopped_while_it_adds_a_page_to_a_directory_makes_no_other_wait() {
    for count in [0, LOG_SLOTS] {
        let reached = |step: u64| {
            let (world, other) = everlasting();
            let thread = world.fs().enter().expect("enters");
            let directory = directory_with(other, count);
            let fired = Rc::new(Cell::new(false));
            let seen = fired.clone();
            // A wait for the stopped thread, on the same stack, would never end.
            at_step(step, move || {
                made(other, other.create(directory, b"other", &file())).expect("creates");
                seen.set(true);
            });
            extend(&thread, directory);
            let fired = fired.get();
            at_step(0, || {});
            made(&thread, thread.create(directory, b"stopped", &file())).expect("creates");
            let mut expected: Vec<_> = (0..count).map(|number| format!("{number:03}")).collect();
            expected.extend(fired.then(|| "other".into()));
            expected.push("stopped".into());
            thread.release(directory, 1);
            drop(thread);
            check_after_power_cut(world, &expected);
            fired
        };
        let steps = (0..).take_while(|step| reached(*step)).count();
        assert!(steps > 8, "{steps} steps");
    }
}

#[test]
fn a_page_that_is_linked_while_a_reaper_frees_the_blocks_of_its_directory_stays() {
    let reached = |step: u64| {
        let (world, other) = everlasting();
        let directory = directory_with(other, 0);
        // It dies with the lock of the directory.
        let chmod = |thread: &MortalThread<'_>| {
            let _ = thread.change(directory, |_| Ok(Changes { permissions: Some(0o700), ..Changes::default() }));
        };
        let died = (0..).any(|step| {
            world.dies(step, chmod);
            let cachelet = other.cachelet(directory).expect("a cachelet");
            cachelet.lock.load(Acquire) != 0
        });
        assert!(died);
        let fired = Rc::new(Cell::new(false));
        let seen = fired.clone();
        at_step(step, move || {
            made(other, other.create(directory, b"other", &file())).expect("creates");
            seen.set(true);
        });
        world.fs().reap_dead_threads().expect("reaps");
        let fired = fired.get();
        at_step(0, || {});
        made(other, other.create(directory, b"later", &file())).expect("creates");
        let mut expected: Vec<String> = std::vec!["later".into()];
        expected.extend(fired.then(|| "other".into()));
        other.release(directory, 1);
        check_after_power_cut(world, &expected);
        fired
    };
    let steps = (0..).take_while(|step| reached(*step)).count();
    assert!(steps > 8, "{steps} steps");
}

#[test]
fn a_compaction_that_gives_up_for_a_stalled_thread_leaves_the_log_as_it_is() {
    let reached = |step: u64| {
        let (world, other) = everlasting();
        let thread = world.fs().enter().expect("enters");
        let directory = directory_with(&thread, LOG_SLOTS + 100);
        let kept = |number: &u64| number.is_multiple_of(7);
        for number in (0..LOG_SLOTS + 100).filter(|number| !kept(number)) {
            thread.unlink(directory, format!("{number:03}").as_bytes(), |_| Ok(())).expect("removes");
        }
        let pin = Rc::new(RefCell::new(None));
        let pinned = pin.clone();
        at_step(step, move || *pinned.borrow_mut() = Some(other.pin()));
        thread.maintenance().compact(directory).expect("compacts, or gives up");
        let fired = pin.borrow_mut().take().is_some();
        at_step(0, || {});
        // Whatever was freed by mistake is used now.
        for number in 0..40 {
            let file = thread.create(directory, format!("x{number:03}").as_bytes(), &file()).expect("creates");
            thread.files().write(file, 0, &[7; 4096]).expect("writes");
            thread.release(file, 1);
        }
        let mut expected: Vec<_> = (0..LOG_SLOTS + 100).filter(kept).map(|number| format!("{number:03}")).collect();
        expected.extend((0..40).map(|number| format!("x{number:03}")));
        expected.sort();
        thread.release(directory, 1);
        drop(thread);
        check_after_power_cut(world, &expected);
        fired
    };
    let steps = (0..).step_by(3).take_while(|step| reached(*step)).count();
    assert!(steps > 20, "{steps} steps");
}

/// A recorder that lets another thread work at the first fence after it was armed.
#[derive(Default)]
struct AtFence {
    recorder: Recorder,
    other: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl pmem::Memory for AtFence {
    const WATCHED: bool = true;
    fn stored(&self, offset: u64, bytes: &[u8]) {
        self.recorder.stored(offset, bytes);
    }
    fn streamed(&self, offset: u64, bytes: UserBytes<'_>) {
        self.recorder.streamed(offset, bytes);
    }
    fn flushed(&self, offset: u64, length: u64) {
        self.recorder.flushed(offset, length);
    }
    fn fenced(&self) {
        let other = self.other.lock().expect("not poisoned").take();
        if let Some((begin, ended)) = other {
            begin.send(()).expect("the other thread waits");
            ended.recv().expect("the other thread ends");
        }
        self.recorder.fenced();
    }
    fn read(&self, _: u64, _: u64) {}
}

#[test]
fn a_rename_that_ends_while_the_journal_is_cleared_survives_a_power_cut() {
    let image = new_image(4 << 20, 0);
    let memory = Arc::new(AtFence::default());
    let options = AttachOptions::default();
    let dram = Memory::new(Fs::dram_layout(&image.region(), &options).expect("a layout").length);
    let region = image.region_in(memory.clone());
    let recovery = Fs::attach_first(region, dram.region(), &PLATFORM, crate::Liveness::alone(), &options);
    let (fs, _) = recovery.expect("attaches").finish().expect("ready");
    let rename = |thread: &crate::fs::Thread<'_, Arc<AtFence>>, from: &str, to: &str| {
        let root = thread.root().expect("a root");
        let (from, to) = ((root, from.as_bytes()), (root, to.as_bytes()));
        thread.rename(from, to, RenameFlags::default(), |_, _| Ok(())).expect("renames");
        thread.release(root, 1);
    };
    let thread = fs.enter().expect("enters");
    let root = thread.root().expect("a root");
    for name in [&b"a"[..], b"c"] {
        thread.release(thread.create(root, name, &file()).expect("creates"), 1);
    }
    thread.recycler().drain().expect("drains");
    let before = image.bytes();
    memory.recorder.start();
    rename(&thread, "a", "b");
    std::thread::scope(|scope| {
        let ((begin, begun), (end, ended)) = (channel(), channel());
        scope.spawn({
            let fs = &fs;
            move || {
                let other = fs.enter().expect("enters");
                begun.recv().expect("begins");
                rename(&other, "c", "d");
                end.send(()).expect("is waited for");
            }
        });
        *memory.other.lock().expect("not poisoned") = Some((begin, ended));
        fs.pm.fence(fs.clear_journal().expect("clears"));
    });
    memory.recorder.stop();

    let log = memory.recorder.take();
    let mut crash = CrashImage::new(before, &log);
    while crash.advance() {}
    let mut bytes = crash.durable().to_vec();
    for state in crash.states(Grain::Word, 8, 200, 1) {
        state.apply(&mut bytes);
        let left = Memory::new(bytes.len() as u64);
        let _ = left.region().write_bytes(0, &bytes).expect("the same length");
        let again = Attached::new(&left).expect("attaches");
        let thread = again.enter().expect("enters");
        assert_eq!(names(&thread, thread.root().expect("a root")), ["b", "d"], "state {}", state.id());
        drop(thread);
        state.undo(&mut bytes);
    }
    thread.release(root, 1);
}

/// Makes a ninth name in a directory, whose page's bound of used slots it raises. Leaves the image,
/// after an eviction of the directory's cachelet if `evicted`, and cuts the power.
fn cut_after_leaving(evicted: bool) {
    let image = new_image(4 << 20, 0);
    let memory = Arc::new(AtFence::default());
    let options = AttachOptions::default();
    let dram = Memory::new(Fs::dram_layout(&image.region(), &options).expect("a layout").length);
    let region = image.region_in(memory.clone());
    let recovery = Fs::attach_first(region, dram.region(), &PLATFORM, crate::Liveness::alone(), &options);
    let (fs, _) = recovery.expect("attaches").finish().expect("ready");
    let thread = fs.enter().expect("enters");
    let root = thread.root().expect("a root");
    let directory = thread.create(root, b"d", &new_node(FileKind::Directory)).expect("creates");
    for number in 0..8 {
        thread.release(thread.create(directory, format!("{number}").as_bytes(), &file()).expect("creates"), 1);
    }
    thread.recycler().drain().expect("drains");
    let before = image.bytes();
    memory.recorder.start();
    thread.release(thread.create(directory, b"8", &file()).expect("creates"), 1);
    [directory, root].into_iter().for_each(|node| thread.release(node, 1));
    if evicted {
        while thread.maintenance().evict_some().expect("evicts") {}
        // Its cachelet goes with its name, which is in the mindex again.
        thread.stat_name(root, b"d").expect("is there");
        while thread.maintenance().evict_some().expect("evicts") {}
        thread.recycler().drain().expect("drains");
        let cachelet = fs.dram.cachelet(directory.cachelet).expect("in bounds");
        assert_eq!(cachelet.number.load(Acquire), 0, "nothing of the directory is left in DRAM");
    }
    drop(thread);
    fs.detach_last().expect("leaves");
    memory.recorder.stop();

    let log = memory.recorder.take();
    let mut crash = CrashImage::new(before, &log);
    while crash.advance() {}
    let left = Memory::new(image.bytes().len() as u64);
    let _ = left.region().write_bytes(0, crash.durable()).expect("the same length");
    let superblock = left.region();
    assert!(superblock.first::<Superblock>().expect("a superblock").state().clean);
    let again = Attached::new(&left).expect("attaches");
    let thread = again.enter().expect("enters");
    let root = thread.root().expect("a root");
    let directory = thread.lookup(root, b"d").expect("is there");
    assert_eq!(names(&thread, directory), ["0", "1", "2", "3", "4", "5", "6", "7", "8"], "evicted: {evicted}");
    [directory, root].into_iter().for_each(|node| thread.release(node, 1));
}

#[test]
fn names_behind_a_raised_bound_are_there_after_the_image_was_left_and_the_power_failed() {
    cut_after_leaving(false);
    cut_after_leaving(true);
}
