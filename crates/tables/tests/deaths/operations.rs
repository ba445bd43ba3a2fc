//! The operations in which a process dies, and what precedes each.

use engine::format::FileKind;
use engine::{Node, Thread};
use posix::OpenFile;
use tables::MarkGroupFlags;
use tables::process::{FileMapping, Fork, LockKind, LockRange, Process};
use tables::watch::group_flag::REPORT_FID;
use tables::watch::{MarkFlags, NewMark, NewWatch, Watches, event};

/// The environment of an operation: existing files, and a dead process that is not reaped yet.
#[derive(Clone, Copy)]
pub struct Scene {
    pub files: [Node; 4],
}

type Prepare = fn(&Process<'_>, &Thread<'_>, &Scene);
type Operate = fn(&Process<'_>, &Thread<'_>, &Scene);

pub struct Operation {
    pub name: &'static str,
    /// Runs in the process before the operation.
    pub prepare: Prepare,
    pub operate: Operate,
    /// References that the operation takes by itself and hands over. A death in between leaves them
    /// to the engine's recovery.
    pub own_references: u64,
}

fn opened(thread: &Thread<'_>, node: Node) -> OpenFile {
    thread.retain(node).unwrap();
    thread.record_reference(node);
    OpenFile::new(node, FileKind::Regular, libc::O_RDWR)
}

pub fn install(process: &Process<'_>, thread: &Thread<'_>, fd: u32, node: Node) {
    process.install(thread, fd, &opened(thread, node), fd % 2 == 1).unwrap();
}

fn mapping(node: Node, address: u64, pages: u64) -> FileMapping {
    let (length, offset) = (pages << 12, 0);
    FileMapping {
        address,
        length,
        offset,
        node,
        shared: true,
        writable: true,
        stores: true,
        protection: 3,
        inherited: false,
    }
}

fn range(start: i64, length: i64) -> LockRange {
    LockRange::new(0, start, length).unwrap()
}

/// The key of the group of watches.
pub const KEY: u64 = 5;

/// Opens a descriptor of inotify, or of fanotify with these flags.
fn install_watcher(process: &Process<'_>, thread: &Thread<'_>, flags: Option<MarkGroupFlags>) {
    let root = thread.root().unwrap();
    thread.record_reference(root);
    process.install(thread, 10, &OpenFile::watcher(root, KEY, flags), false).unwrap();
}

const MARKER: Option<MarkGroupFlags> = Some(MarkGroupFlags { group: REPORT_FID, event: 0 });

fn watch_two_files(_: &Process<'_>, thread: &Thread<'_>, scene: &Scene) {
    add_watch(thread, scene.files[0]);
    add_watch(thread, scene.files[1]);
}

fn mark_two_files(_: &Process<'_>, thread: &Thread<'_>, scene: &Scene) {
    add_mark(thread, scene.files[0]);
    add_mark(thread, scene.files[1]);
}

fn add_watch(thread: &Thread<'_>, node: Node) -> i32 {
    let group = Watches::make_watch_group(thread, (KEY, 0)).unwrap();
    let new = NewWatch { group: (group, KEY), number: node.number, mask: event::ALL, limit: 9 };
    Watches::add_watch(thread, &new).unwrap()
}

fn mark(thread: &Thread<'_>, node: Node) -> NewMark {
    let group = Watches::make_mark_group(thread, (KEY, 0), (REPORT_FID, 0)).unwrap();
    let (number, mask, flags) = (node.number, event::ALL, MarkFlags(1));
    NewMark { group: (group, KEY), number, mask, kept: 0, flags, limit: 9 }
}

fn add_mark(thread: &Thread<'_>, node: Node) {
    Watches::add_mark(thread, &mark(thread, node)).unwrap();
}

fn attach(process: &Process<'_>, thread: &Thread<'_>, fd: u32) {
    process.attach_lease_file(thread, fd, 0, &mut |_, _, _| Ok(())).unwrap();
}

const NO_PREPARATION: Prepare = |_, _, _| ();

pub const OPERATIONS: &[Operation] = &[
    Operation {
        name: "install",
        prepare: NO_PREPARATION,
        operate: |process, thread, scene| install(process, thread, 10, scene.files[0]),
        own_references: 1,
    },
    Operation {
        name: "install in place of another, not inline",
        prepare: |process, thread, scene| install(process, thread, 1025, scene.files[0]),
        operate: |process, thread, scene| install(process, thread, 1025, scene.files[1]),
        own_references: 1,
    },
    Operation {
        name: "close of a file with no name",
        prepare: |process, thread, scene| {
            install(process, thread, 10, scene.files[3]);
            let root = thread.root().unwrap();
            thread.unlink(root, b"lost", |_| Ok(())).unwrap();
            thread.release(root, 1);
        },
        operate: |process, thread, _| assert!(process.remove(thread, 10)),
        own_references: 0,
    },
    Operation {
        name: "close with locks of all kinds",
        prepare: |process, thread, scene| {
            install(process, thread, 10, scene.files[0]);
            process.flock(thread, 10, Some(LockKind::Exclusive)).unwrap();
            process.lock_range(thread, 10, range(0, 10), Some(LockKind::Exclusive), false, false).unwrap();
            process.lock_range(thread, 10, range(20, 10), Some(LockKind::Shared), true, false).unwrap();
        },
        operate: |process, thread, _| assert!(process.remove(thread, 10)),
        own_references: 0,
    },
    Operation {
        name: "close of a file in use by a thread, and the end of that use",
        prepare: |process, thread, scene| {
            process.set_threads();
            install(process, thread, 10, scene.files[0]);
        },
        operate: |process, thread, _| {
            let using = process.file(thread, 10).unwrap();
            assert!(process.remove(thread, 10));
            drop(using);
        },
        own_references: 0,
    },
    Operation {
        name: "lock-free open and close",
        prepare: |process, thread, scene| {
            process.set_threads();
            install(process, thread, 10, scene.files[0]);
        },
        operate: |process, thread, scene| {
            let own = process.for_thread().expect("room for a thread");
            install(&own, thread, 11, scene.files[1]);
            assert!(own.remove(thread, 10));
            own.end_thread();
        },
        own_references: 1,
    },
    Operation {
        name: "lock-free close of a file in use by another thread",
        prepare: |process, thread, scene| {
            process.set_threads();
            install(process, thread, 10, scene.files[0]);
        },
        operate: |process, thread, _| {
            let own = process.for_thread().expect("room for a thread");
            let using = process.file(thread, 10).unwrap();
            assert!(own.remove(thread, 10));
            drop(using);
        },
        own_references: 0,
    },
    Operation {
        name: "duplicate in place of another",
        prepare: |process, thread, scene| {
            install(process, thread, 10, scene.files[0]);
            install(process, thread, 11, scene.files[1]);
        },
        operate: |process, thread, _| process.duplicate(thread, 10, 11, false).unwrap(),
        own_references: 0,
    },
    Operation {
        name: "close_range",
        prepare: |process, thread, scene| {
            (10..14).for_each(|fd| install(process, thread, fd, scene.files[fd as usize % 2]));
        },
        operate: |process, thread, _| process.close_range(thread, 3, 4000, false).unwrap(),
        own_references: 0,
    },
    Operation {
        name: "chdir",
        prepare: |process, thread, scene| process.set_directory(thread, Some(scene.files[2])).unwrap(),
        operate: |process, thread, _| {
            let root = Node { cachelet: process.directory().unwrap().cachelet, number: 0 };
            process.set_directory(thread, Some(root)).unwrap();
            process.set_directory(thread, None).unwrap();
        },
        own_references: 0,
    },
    Operation {
        name: "prepare a fork",
        prepare: |process, thread, scene| {
            install(process, thread, 10, scene.files[0]);
            install(process, thread, 1030, scene.files[1]);
            process.set_directory(thread, Some(scene.files[2])).unwrap();
            process.add_mapping(thread, &mapping(scene.files[0], 0x10000, 2)).unwrap();
        },
        operate: |process, thread, _| {
            let child = process.prepare_fork(thread, Fork::default()).unwrap();
            process.cancel_fork(thread, child);
        },
        own_references: 0,
    },
    Operation {
        name: "prepare a fork that shares the table",
        prepare: |process, thread, scene| install(process, thread, 10, scene.files[0]),
        operate: |process, thread, _| {
            let fork = Fork { shares_files: true, ..Fork::default() };
            let child = process.prepare_fork(thread, fork).unwrap();
            process.cancel_fork(thread, child);
        },
        own_references: 0,
    },
    Operation {
        name: "locks that split and merge ranges",
        prepare: |process, thread, scene| {
            install(process, thread, 10, scene.files[0]);
            process.lock_range(thread, 10, range(0, 100), Some(LockKind::Shared), false, false).unwrap();
        },
        operate: |process, thread, _| {
            process.lock_range(thread, 10, range(40, 20), Some(LockKind::Exclusive), false, false).unwrap();
            process.lock_range(thread, 10, range(50, 30), None, false, false).unwrap();
            process.lock_range(thread, 10, range(0, 0), Some(LockKind::Shared), false, false).unwrap();
            process.lock_range(thread, 10, range(5, 7), Some(LockKind::Exclusive), true, false).unwrap();
        },
        own_references: 0,
    },
    Operation {
        name: "flock and its conversion",
        prepare: |process, thread, scene| install(process, thread, 10, scene.files[0]),
        operate: |process, thread, _| {
            for kind in [Some(LockKind::Shared), Some(LockKind::Exclusive), None] {
                process.flock(thread, 10, kind).unwrap();
            }
        },
        own_references: 0,
    },
    Operation {
        name: "a descriptor in transit to the same process",
        prepare: |process, thread, scene| install(process, thread, 10, scene.files[0]),
        operate: |process, thread, _| {
            let token = process.export(thread, 10).unwrap();
            process.import(thread, token, 11, false, true).unwrap();
        },
        own_references: 0,
    },
    Operation {
        name: "mappings that are cut",
        prepare: |process, thread, scene| {
            process.add_mapping(thread, &mapping(scene.files[0], 0x10000, 8)).unwrap();
        },
        operate: |process, thread, scene| {
            process.add_mapping(thread, &mapping(scene.files[1], 0x11030, 2)).unwrap();
            process.remove_mappings(thread, 0x11000, 0x4000).unwrap();
        },
        own_references: 0,
    },
    Operation {
        name: "resume by a new program",
        prepare: |process, thread, scene| {
            (10..13).for_each(|fd| install(process, thread, fd, scene.files[0]));
            process.add_mapping(thread, &mapping(scene.files[0], 0x10000, 1)).unwrap();
        },
        operate: |process, thread, _| _ = process.processes().resume(thread, Some(process.index())).unwrap().unwrap(),
        own_references: 0,
    },
    Operation {
        name: "exit",
        prepare: |process, thread, scene| {
            install(process, thread, 10, scene.files[0]);
            install(process, thread, 1030, scene.files[1]);
            process.set_directory(thread, Some(scene.files[2])).unwrap();
        },
        operate: |process, thread, _| process.exit(thread),
        own_references: 0,
    },
    Operation {
        name: "attachment to a lease file",
        prepare: |process, thread, scene| {
            install(process, thread, 10, scene.files[0]);
            install(process, thread, 11, scene.files[0]);
        },
        operate: |process, thread, _| {
            attach(process, thread, 10);
            attach(process, thread, 11);
        },
        own_references: 0,
    },
    Operation {
        name: "close of a file with a lease",
        prepare: |process, thread, scene| {
            install(process, thread, 10, scene.files[0]);
            install(process, thread, 11, scene.files[0]);
            attach(process, thread, 10);
            attach(process, thread, 11);
        },
        operate: |process, thread, _| {
            assert!(process.remove(thread, 10));
            assert!(process.remove(thread, 11));
        },
        own_references: 0,
    },
    Operation {
        name: "the first watch of a descriptor, and another",
        prepare: |process, thread, _| install_watcher(process, thread, None),
        operate: watch_two_files,
        own_references: 0,
    },
    Operation {
        name: "removal of a watch",
        prepare: |process, thread, scene| {
            install_watcher(process, thread, None);
            watch_two_files(process, thread, scene);
        },
        operate: |_, thread, scene| {
            let group = Watches::of(thread).watch_group(KEY).unwrap();
            Watches::remove_watch(thread, (group, KEY), add_watch(thread, scene.files[0])).unwrap();
        },
        own_references: 0,
    },
    Operation {
        name: "close of a descriptor with watches",
        prepare: |process, thread, scene| {
            install_watcher(process, thread, None);
            watch_two_files(process, thread, scene);
        },
        operate: |process, thread, _| assert!(process.remove(thread, 10)),
        own_references: 0,
    },
    Operation {
        name: "the first mark of a descriptor, and another",
        prepare: |process, thread, _| install_watcher(process, thread, MARKER),
        operate: mark_two_files,
        own_references: 0,
    },
    Operation {
        name: "removal of a mark",
        prepare: |process, thread, scene| {
            install_watcher(process, thread, MARKER);
            mark_two_files(process, thread, scene);
        },
        operate: |_, thread, scene| Watches::remove_mark(thread, &mark(thread, scene.files[0])).unwrap(),
        own_references: 0,
    },
    Operation {
        name: "close of a descriptor with marks",
        prepare: |process, thread, scene| {
            install_watcher(process, thread, MARKER);
            mark_two_files(process, thread, scene);
        },
        operate: |process, thread, _| assert!(process.remove(thread, 10)),
        own_references: 0,
    },
    Operation {
        name: "reap another process",
        prepare: |process, thread, scene| {
            install(process, thread, 10, scene.files[0]);
            process.add_mapping(thread, &mapping(scene.files[1], 0x10000, 1)).unwrap();
            process.lock_range(thread, 10, range(1, 5), Some(LockKind::Shared), true, false).unwrap();
            // A child that died before adoption: no process holds its number's lock.
            let number = thread.fs().processes().new_process_number().unwrap();
            process.prepare_fork(thread, Fork { number, ..Fork::default() }).unwrap();
        },
        operate: |process, thread, _| assert_eq!(process.processes().reap(thread).unwrap(), 1),
        own_references: 0,
    },
];
