//! Crash tests: before recovery an image has at most notes, after recovery it has no findings.

use crate::support::engine_support::{Image, make_directory, new_file, permit, permit_rename, touch};
use engine::format::FileKind;
use engine::{AllocateMode, AttachOptions, NewNode, Node, RenameFlags, Thread};
use fsck::{Options, Report, check};
use pmem::{CrashImage, Direct, Grain, Memory, Recorder};
use std::sync::Arc;

type Operation<M> = fn(&Thread<'_, M>, Node);

/// The number of states checked for each fence.
const SAMPLE: u64 = 40;

fn get<M: Memory>(thread: &Thread<'_, M>, directory: Node, name: &str) -> Node {
    thread.lookup(directory, name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A small tree on a small image.
fn prepare() -> Image {
    let image = Image::new(1 << 20);
    let attached = image.attach();
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        let one = make_directory(&thread, root, "one");
        let two = make_directory(&thread, root, "two");
        let inner = make_directory(&thread, one, "inner");
        for name in ["a", "b", "c"] {
            touch(&thread, one, name);
        }
        let body = get(&thread, one, "a");
        thread.files().write(body, 0, &[1; 10_000]).unwrap();
        thread.files().set_xattr(body, b"user.x", b"y", false, false).unwrap();
        // Reused inode numbers, lines and blocks.
        for name in ["gone-1", "gone-2"] {
            touch(&thread, two, name);
            let gone = get(&thread, two, name);
            thread.files().write(gone, 0, &[9; 5000]).unwrap();
            thread.files().set_xattr(gone, b"user.gone", &[3; 100], false, false).unwrap();
            thread.release(gone, 1);
            thread.unlink(two, name.as_bytes(), permit).unwrap();
        }
        let gone = make_directory(&thread, two, "gone-3");
        touch(&thread, gone, "name");
        thread.unlink(gone, b"name", permit).unwrap();
        thread.release(gone, 1);
        thread.remove_directory(two, b"gone-3", permit).unwrap();
        [body, inner, one, two, root].into_iter().for_each(|node| thread.release(node, 1));
    }
    attached.detach();
    image
}

fn operations<M: Memory>() -> Vec<(&'static str, Operation<M>)> {
    [names(), renames(), bodies()].into_iter().flatten().collect()
}

fn names<M: Memory>() -> Vec<(&'static str, Operation<M>)> {
    vec![
        ("create", |t, root| {
            touch(t, get(t, root, "one"), "new");
        }),
        ("create with a long name", |t, root| {
            touch(t, get(t, root, "one"), &"n".repeat(255));
        }),
        ("mkdir", |t, root| {
            make_directory(t, get(t, root, "two"), "new");
        }),
        ("symlink", |t, root| {
            let new = NewNode { kind: FileKind::Symlink, target: b"short", ..new_file() };
            t.create(root, b"short", &new).unwrap();
            t.create(root, b"long", &NewNode { target: &[b'x'; 300], ..new }).unwrap();
        }),
        ("link", |t, root| t.link(get(t, get(t, root, "one"), "b"), root, b"linked").unwrap()),
        ("unlink", |t, root| t.unlink(get(t, root, "one"), b"a", permit).unwrap()),
        ("unlink while open", |t, root| {
            let one = get(t, root, "one");
            let _open = get(t, one, "b");
            t.unlink(one, b"b", permit).unwrap();
            touch(t, one, "b");
        }),
        ("rmdir", |t, root| t.remove_directory(get(t, root, "one"), b"inner", permit).unwrap()),
        ("many names", |t, root| {
            let two = get(t, root, "two");
            (0..12).for_each(|index| {
                touch(t, two, &format!("many-{index}"));
            });
            (0..12).for_each(|index| t.unlink(two, format!("many-{index}").as_bytes(), permit).unwrap());
            t.recycler().recycle(1000).unwrap();
            (0..4).for_each(|index| {
                touch(t, two, &format!("few-{index}"));
            });
        }),
    ]
}

fn renames<M: Memory>() -> Vec<(&'static str, Operation<M>)> {
    vec![
        ("rename", |t, root| {
            let one = get(t, root, "one");
            t.rename((one, b"a"), (one, b"z"), RenameFlags::default(), permit_rename).unwrap();
            t.rename((one, b"z"), (get(t, root, "two"), b"a"), RenameFlags::default(), permit_rename).unwrap();
        }),
        ("rename over", |t, root| {
            let one = get(t, root, "one");
            t.rename((one, b"b"), (one, b"a"), RenameFlags::default(), permit_rename).unwrap();
        }),
        ("rename of a directory", |t, root| {
            let (one, two) = (get(t, root, "one"), get(t, root, "two"));
            t.rename((one, b"inner"), (two, b"inner"), RenameFlags::default(), permit_rename).unwrap();
            t.rename((two, b"inner"), (one, b"again"), RenameFlags::default(), permit_rename).unwrap();
        }),
        ("rename over a directory", |t, root| {
            let one = get(t, root, "one");
            t.rename((one, b"inner"), (root, b"two"), RenameFlags::default(), permit_rename).unwrap();
        }),
        ("exchange", |t, root| {
            let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
            t.rename((get(t, root, "one"), b"inner"), (get(t, root, "one"), b"b"), flags, permit_rename).unwrap();
            t.rename((get(t, root, "one"), b"b"), (get(t, root, "two"), b"x"), RenameFlags::default(), permit_rename)
                .unwrap();
        }),
        ("whiteout", |t, root| {
            let flags = RenameFlags { whiteout: Some((0, 0)), ..RenameFlags::default() };
            t.rename((get(t, root, "one"), b"a"), (get(t, root, "two"), b"a"), flags, permit_rename).unwrap();
        }),
    ]
}

fn bodies<M: Memory>() -> Vec<(&'static str, Operation<M>)> {
    vec![
        ("write", |t, root| {
            let body = get(t, get(t, root, "one"), "a");
            t.files().write(body, 100, &[2; 6000]).unwrap();
            t.files().append(body, &[3; 9000]).unwrap();
            t.files().write(body, 3 << 20, b"far").unwrap();
        }),
        ("truncate", |t, root| {
            let body = get(t, get(t, root, "one"), "a");
            t.files().truncate(body, 5000).unwrap();
            t.files().truncate(body, 50_000).unwrap();
            t.files().truncate(body, 0).unwrap();
        }),
        ("fallocate", |t, root| {
            let body = get(t, get(t, root, "one"), "a");
            t.files().allocate(body, AllocateMode::Allocate { keep_size: true }, 0, 40_000).unwrap();
            t.files().append(body, &[3; 9000]).unwrap();
            t.files().allocate(body, AllocateMode::PunchHole, 4096, 4096).unwrap();
            t.files().allocate(body, AllocateMode::CollapseRange, 0, 4096).unwrap();
            t.files().allocate(body, AllocateMode::InsertRange, 0, 4096).unwrap();
        }),
        ("setxattr", |t, root| {
            let body = get(t, get(t, root, "one"), "a");
            t.files().set_xattr(body, b"user.x", &[7; 6000], false, false).unwrap();
            t.files().remove_xattr(body, b"user.x").unwrap();
        }),
    ]
}

fn look(image: &Image) -> Report {
    check(&image.region(Direct), &Options::default(), &mut |_| {})
}

fn restore(bytes: &[u8], image: &Image) {
    let _ = image.region(Direct).write_bytes(0, bytes).unwrap();
}

/// The failure of a state, if it has one.
fn check_state(image: &Image) -> Option<String> {
    let before = look(image);
    if !before.is_sound() {
        return Some(format!("before recovery\n{before}"));
    }
    let attached = image.attach();
    let recovered = look(image);
    if recovered.findings.iter().any(|finding| finding.kind != fsck::FindingKind::PropertyTorn) {
        return Some(format!("after recovery ({:?})\n{recovered}", attached.report));
    }
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        for index in 0..5 {
            touch(&thread, root, &format!("used-{index}"));
        }
        let file = get(&thread, root, "used-3");
        thread.files().write(file, 0, &[5; 9000]).unwrap();
        thread.release(file, 1);
        thread.release(root, 1);
    }
    attached.detach();
    let after = look(image);
    (!after.is_sound()).then(|| format!("after use\n{after}"))
}

fn explore(grain: Grain, sample: u64) -> (usize, Vec<String>) {
    let mut failures = Vec::new();
    let mut states = 0;
    let scratch = Image::new(1 << 20);
    for (name, operation) in operations() {
        let image = prepare();
        let mut initial = vec![0; 1 << 20];
        let recorder = Arc::new(Recorder::new());
        // The attach is not part of the test: its writes are durable before the first operation.
        let attached = image.attach_with(recorder.clone(), AttachOptions::default(), 1).unwrap();
        recorder.start();
        image.region(Direct).read_bytes(0, &mut initial).unwrap();
        {
            let thread = attached.enter();
            let root = thread.root().unwrap();
            operation(&thread, root);
        }
        drop(attached);
        let log = recorder.take();
        let mut crash = CrashImage::new(initial, &log);
        'fences: loop {
            let mut bytes = crash.durable().to_vec();
            for state in crash.states(grain, 8, sample, 7) {
                states += 1;
                state.apply(&mut bytes);
                restore(&bytes, &scratch);
                state.undo(&mut bytes);
                if let Some(failure) = check_state(&scratch) {
                    failures.push(format!("{name}, state {:?}: {failure}", state.id()));
                    break 'fences;
                }
            }
            if !crash.advance() {
                break;
            }
        }
    }
    (states, failures)
}

#[test]
fn crashes_leave_notes_at_most_and_recovery_leaves_nothing() {
    let (states, failures) = explore(Grain::Line, SAMPLE);
    assert!(failures.is_empty(), "{} of {states} states:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn lines_that_tear_leave_no_more() {
    let (states, failures) = explore(Grain::Word, SAMPLE);
    assert!(failures.is_empty(), "{} of {states} states:\n{}", failures.len(), failures.join("\n"));
}

#[test]
#[ignore = "takes minutes"]
fn many_more_states() {
    for grain in [Grain::Line, Grain::Word] {
        let (states, failures) = explore(grain, 2000);
        println!("{states} states");
        assert!(failures.is_empty(), "{} of {states} states:\n{}", failures.len(), failures.join("\n"));
    }
}
