//! Death behind any store: a process is stepped into an operation, instruction by instruction, and killed there; another gives back what it
//! held, and nothing is left.
//!
//! A first run finds the instructions behind which the shared tables look different than before: between two of these all deaths are the same.
//! By default each operation dies behind about forty of them, evenly chosen; with `DEATHS=all` in the environment, behind every one. `DEATHS_IN` chooses
//! the operations whose name has that in it.

mod common;

use common::{ROOT, Scratch, Session};
use engine::format::FileKind;
use engine::{Fs, Node, Thread};
use posix::OpenFile;
use posix::process::{FileMapping, Fork, LockKind, LockRange, Process, Processes, Usage};

/// Deaths of each operation.
const DEATHS: usize = 40;

/// What an operation finds: files that are there, and a dead process that nobody has reaped.
#[derive(Clone, Copy)]
struct Scene {
    files: [Node; 4],
}

type Prepare = fn(&Process<'_>, &Thread<'_>, &Scene);
type Operate = fn(&Process<'_>, &Thread<'_>, &Scene);

struct Operation {
    name: &'static str,
    /// What the process has done before.
    prepare: Prepare,
    operate: Operate,
    /// References that the operation takes by itself and hands over: a death in between leaves them, for they are the engine's to find.
    own_references: u64,
}

fn opened(thread: &Thread<'_>, node: Node) -> OpenFile {
    thread.retain(node).unwrap();
    thread.note(node);
    OpenFile::new(node, FileKind::Regular, libc::O_RDWR)
}

fn install(process: &Process<'_>, thread: &Thread<'_>, fd: u32, node: Node) {
    process.install(thread, fd, opened(thread, node), fd % 2 == 1).unwrap();
}

fn mapping(node: Node, address: u64, pages: u64) -> FileMapping {
    let (length, offset) = (pages << 12, 0);
    FileMapping { address, length, offset, node, shared: true, writable: true }
}

fn range(start: i64, length: i64) -> LockRange {
    LockRange::new(0, start, length).unwrap()
}

const NO_PREPARATION: Prepare = |_, _, _| ();

const OPERATIONS: &[Operation] = &[
    Operation {
        name: "install",
        prepare: NO_PREPARATION,
        operate: |process, thread, scene| install(process, thread, 10, scene.files[0]),
        own_references: 1,
    },
    Operation {
        name: "install in place of another, far out",
        prepare: |process, thread, scene| install(process, thread, 1025, scene.files[0]),
        operate: |process, thread, scene| install(process, thread, 1025, scene.files[1]),
        own_references: 1,
    },
    Operation {
        name: "close of a file that has no name any more",
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
        name: "close of a file that a thread uses, and the end of that use",
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
        name: "open and close by a thread beside others",
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
        name: "close by a thread beside others, of what another uses",
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
        name: "preparing a child",
        prepare: |process, thread, scene| {
            install(process, thread, 10, scene.files[0]);
            install(process, thread, 1030, scene.files[1]);
            process.set_directory(thread, Some(scene.files[2])).unwrap();
            process.add_mapping(thread, &mapping(scene.files[0], 0x10000, 2)).unwrap();
        },
        operate: |process, thread, _| {
            let child = process.prepare_fork(thread, Fork::default()).unwrap();
            process.abandon(thread, child);
        },
        own_references: 0,
    },
    Operation {
        name: "preparing a child that shares the table",
        prepare: |process, thread, scene| install(process, thread, 10, scene.files[0]),
        operate: |process, thread, _| {
            let fork = Fork { shares_files: true, ..Fork::default() };
            let child = process.prepare_fork(thread, fork).unwrap();
            process.abandon(thread, child);
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
        name: "a descriptor on its way to oneself",
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
        name: "the first look of a new program",
        prepare: |process, thread, scene| {
            (10..13).for_each(|fd| install(process, thread, fd, scene.files[0]));
            process.add_mapping(thread, &mapping(scene.files[0], 0x10000, 1)).unwrap();
        },
        operate: |process, thread, _| _ = process.all().resume(thread, Some(process.index())).unwrap().unwrap(),
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
        name: "reaping another",
        prepare: |process, thread, scene| {
            install(process, thread, 10, scene.files[0]);
            process.add_mapping(thread, &mapping(scene.files[1], 0x10000, 1)).unwrap();
            process.lock_range(thread, 10, range(1, 5), Some(LockKind::Shared), true, false).unwrap();
            let child = process.prepare_fork(thread, Fork::default()).unwrap();
            // A child that is dead before it has adopted anything: its pid is that of nobody.
            process.note_child(child, 0x3fff_fff0);
        },
        operate: |process, thread, _| assert_eq!(process.all().reap(thread).unwrap(), 1),
        own_references: 0,
    },
];

/// Counted references to all files of an image, and marks.
fn references(fs: &Fs) -> u64 {
    use engine::dram::{FLAG_DEAD, FLAG_HELD, References};
    use std::sync::atomic::Ordering::Relaxed;
    let dram = fs.dram();
    let end = dram.header().unwrap().cachelets_next.load(Relaxed).min(dram.layout.cachelets_max);
    let mut sum = 0;
    for index in 1..end as u32 {
        let cachelet = dram.cachelet(index).unwrap();
        let state = References::from_word(cachelet.references.load(Relaxed));
        if cachelet.number.load(Relaxed) != 0 && state.flags & FLAG_DEAD == 0 {
            sum += state.references as u64 + (state.flags & FLAG_HELD != 0) as u64;
        }
    }
    sum
}

fn stop() {
    // SAFETY: stops this process until its tracer goes on.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Waits until the child stops or ends: the signal that stopped it.
fn wait_for_stop(pid: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
}

/// A child of `parent` in the middle of an operation.
struct Victim {
    pid: i32,
}

impl Victim {
    fn new(parent: &Process<'_>, thread: &Thread<'_>, operation: &Operation, scene: &Scene) -> Victim {
        let fs = thread.fs();
        let child = parent.prepare_fork(thread, Fork::default()).unwrap();
        // SAFETY: the child goes on with what is its own, and leaves without running anything of the parent's.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let thread = fs.enter().unwrap();
            let process = Processes::new(fs).unwrap().adopt(&thread, child).unwrap();
            (operation.prepare)(&process, &thread, scene);
            // SAFETY: asks to be traced by the parent.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
            stop();
            (operation.operate)(&process, &thread, scene);
            stop();
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        parent.note_child(child, pid);
        assert_eq!(wait_for_stop(pid), Some(libc::SIGSTOP), "{}: its preparation failed", operation.name);
        Victim { pid }
    }

    /// Goes on by `count` instructions; how many there were until the operation was over.
    fn step(&self, count: u64) -> u64 {
        for done in 0..count {
            // SAFETY: a traced child that is stopped.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.pid, 0, 0) }, 0);
            match wait_for_stop(self.pid) {
                Some(libc::SIGTRAP) => {}
                Some(libc::SIGSTOP) => return done,
                other => panic!("ended by itself: {other:?}"),
            }
        }
        count
    }

    /// Goes on to the end of the operation: how many instructions there were, and those behind which the tables had changed.
    fn find_stores(&self, tables: &Tables) -> (u64, Vec<u64>) {
        let (mut stores, mut seen) = (Vec::new(), tables.fingerprint());
        let mut done = 0;
        while self.step(1) == 1 {
            done += 1;
            let now = tables.fingerprint();
            if now != seen {
                stores.push(done);
                seen = now;
            }
        }
        (done, stores)
    }

    fn kill(self) {
        // SAFETY: a child that was not waited for, so the pid is still its own.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        assert_eq!(wait_for_stop(self.pid), None);
    }
}

/// The tables of an image, as the file behind the DRAM region has them.
struct Tables {
    file: std::fs::File,
    areas: [std::ops::Range<u64>; 2],
}

impl Tables {
    fn new(scratch: &Scratch) -> Tables {
        let mut entries = std::fs::read_dir(scratch.directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let path = entries.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("directfs-")).unwrap();
        let layout = scratch.image.fs().dram().layout;
        // Files' marks and counts are in the first cachelets.
        let cachelets = layout.cachelets..layout.cachelets + 4096;
        let areas = [cachelets, layout.upper..layout.upper + layout.upper_bytes];
        Tables { file: std::fs::File::open(path).unwrap(), areas }
    }

    /// A number that differs where anything in the tables does. Pages that nobody touched are holes in the file.
    fn fingerprint(&self) -> u64 {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::FileExt;
        let mut sum = 0u64;
        let mut page = [0u8; 4096];
        for area in &self.areas {
            let mut at = area.start;
            loop {
                // SAFETY: an open file.
                let data = unsafe { libc::lseek(self.file.as_raw_fd(), at as i64, libc::SEEK_DATA) };
                if data < 0 || data as u64 >= area.end {
                    break;
                }
                self.file.read_exact_at(&mut page, data as u64).unwrap();
                for word in page.as_chunks::<8>().0 {
                    sum = (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
                }
                at = data as u64 + 4096;
            }
        }
        sum
    }
}

fn make_files(session: &Session<'_, '_>) -> Scene {
    session.mkdir("directory", 0o755).unwrap();
    let file = |name: &str| {
        let file = session.open(name, libc::O_RDWR | libc::O_CREAT).unwrap();
        session.caller.write(&file, &[1; 9000]).unwrap();
        file.node()
    };
    let directory = session.at("directory", |node| Ok(session.caller.thread.retain(node).map(|()| node)?)).unwrap();
    Scene { files: [file("a"), file("b"), directory, file("lost")] }
}

fn die_everywhere(operation: &Operation) {
    let scratch = Scratch::new();
    let fs = scratch.image.fs();
    {
        let thread = fs.enter().unwrap();
        let root = thread.root().unwrap();
        let session = Session::new(&thread, root, ROOT);
        let mut scene = make_files(&session);
        let all = Processes::new(fs).unwrap();
        let parent = all.register(&thread, 0).unwrap();
        install(&parent, &thread, 9, scene.files[0]);
        let before = all.usage().unwrap();
        let mut known = references(fs);
        let whole = Victim::new(&parent, &thread, operation, &scene);
        let (length, stores) = whole.find_stores(&Tables::new(&scratch));
        whole.kill();
        let everywhere = std::env::var("DEATHS").is_ok_and(|all| all == "all");
        let stride = if everywhere { 1 } else { stores.len().div_ceil(DEATHS) };
        let mut left = 0;
        let mut last = 0;
        for &at in stores.iter().step_by(stride).chain([&length]) {
            settle(&all, &parent, &thread, &before, operation.name, last);
            if operation.name.contains("no name") {
                // The name went, and what the scene held of it is all that keeps the file.
                thread.release(scene.files[3], 1);
                known -= 1;
                assert_eq!(references(fs), known, "{} killed at {last}: a nameless file stayed", operation.name);
                scene.files[3] = session.open("lost", libc::O_RDWR | libc::O_CREAT).unwrap().node();
                known += 1;
            }
            let now = references(fs);
            let lost = now.checked_sub(known).expect("references given back twice");
            assert!(lost <= operation.own_references, "{} killed at {last}: {lost} references", operation.name);
            left += lost;
            (known, last) = (now, at);
            let victim = Victim::new(&parent, &thread, operation, &scene);
            victim.step(at);
            victim.kill();
            if slots_used(fs) > 900 {
                break;
            }
        }
        settle(&all, &parent, &thread, &before, operation.name, last);
        let (name, stores) = (operation.name, stores.len());
        println!(
            "{name}: {length} instructions, {stores} stores, every {stride}th; {left} references left to the engine"
        );
        parent.exit(&thread);
        assert_eq!(all.usage().unwrap(), Usage::default());
        for node in scene.files {
            thread.release(node, 1);
        }
        thread.release(root, 1);
    }
    scratch.image.close().unwrap();
}

/// Slots of threads: a thread that died in the engine keeps its own until the image is left.
fn slots_used(fs: &Fs) -> u64 {
    fs.dram().header().unwrap().slots_high.load(std::sync::atomic::Ordering::Relaxed)
}

/// Everything that the dead one held is given back.
fn settle(all: &Processes<'_>, parent: &Process<'_>, thread: &Thread<'_>, before: &Usage, name: &str, at: u64) {
    all.reap(thread).unwrap();
    all.reap(thread).unwrap();
    // A token outlives its sender: nobody can receive this one.
    parent.reap_transit(thread, &mut |_| false).unwrap();
    assert_eq!(all.usage().unwrap(), *before, "{name} killed at {at}");
}

#[test]
fn whoever_dies_in_an_operation_leaves_nothing_behind() {
    let only = std::env::var("DEATHS_IN").unwrap_or_default();
    for operation in OPERATIONS.iter().filter(|operation| operation.name.contains(&only)) {
        die_everywhere(operation);
    }
}
