//! Death after any store: a process is single-stepped into an operation and killed there. Another
//! process then reclaims what it held, and nothing leaks.
//!
//! A first run finds the instructions after which the shared tables differ: between two of these
//! all deaths are equivalent. Each operation dies after every one of them. The environment variable
//! `DEATHS_IN` selects the operations whose name contains its value.
//!
//! Each step costs a switch to the victim and back, so only the first run single-steps all the way.
//! It records the address of each instruction; later victims run to a breakpoint shortly before
//! their death and step the rest.

mod common;

use common::{ROOT, Scratch, Session};
use engine::format::FileKind;
use engine::watch::{MarkFlags, NewMark, NewWatch, event};
use engine::{Fs, Node, Thread};
use posix::process::{FileMapping, Fork, LockKind, LockRange, Process, Processes, Usage};
use posix::{MarkGroupFlags, OpenFile};
use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The environment of an operation: existing files, and a dead process that is not reaped yet.
#[derive(Clone, Copy)]
struct Scene {
    files: [Node; 4],
}

type Prepare = fn(&Process<'_>, &Thread<'_>, &Scene);
type Operate = fn(&Process<'_>, &Thread<'_>, &Scene);

struct Operation {
    name: &'static str,
    /// Runs in the process before the operation.
    prepare: Prepare,
    operate: Operate,
    /// References that the operation takes by itself and hands over. A death in between leaves them
    /// to the engine's recovery.
    own_references: u64,
}

fn opened(thread: &Thread<'_>, node: Node) -> OpenFile {
    thread.retain(node).unwrap();
    thread.record_reference(node);
    OpenFile::new(node, FileKind::Regular, libc::O_RDWR)
}

fn install(process: &Process<'_>, thread: &Thread<'_>, fd: u32, node: Node) {
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
const KEY: u64 = 5;

/// Opens an inotify descriptor.
fn install_watcher(process: &Process<'_>, thread: &Thread<'_>, fd: u32) {
    let root = thread.root().unwrap();
    thread.record_reference(root);
    process.install(thread, fd, &OpenFile::watcher(root, KEY, None), false).unwrap();
}

fn add_watch(thread: &Thread<'_>, node: Node) -> i32 {
    let group = thread.watches().make_watch_group(KEY, 0).unwrap();
    thread
        .watches()
        .add_watch(&NewWatch { group: (group, KEY), number: node.number, mask: event::ALL, limit: 9 })
        .unwrap()
}

/// Opens a fanotify descriptor.
fn install_marker(process: &Process<'_>, thread: &Thread<'_>, fd: u32) {
    let root = thread.root().unwrap();
    thread.record_reference(root);
    let flags = MarkGroupFlags { group: REPORT_FID, event: 0 };
    process.install(thread, fd, &OpenFile::watcher(root, KEY, Some(flags)), false).unwrap();
}

const REPORT_FID: u32 = 0x200;

fn mark(thread: &Thread<'_>, node: Node) -> NewMark {
    let group = thread.watches().make_mark_group(KEY, 0, REPORT_FID, 0).unwrap();
    let (number, mask, flags) = (node.number, event::ALL, MarkFlags(1));
    NewMark { group: (group, KEY), number, mask, kept: 0, flags, limit: 9 }
}

fn add_mark(thread: &Thread<'_>, node: Node) {
    thread.watches().add_mark(&mark(thread, node)).unwrap();
}

fn attach(process: &Process<'_>, thread: &Thread<'_>, fd: u32) {
    process.attach_lease_file(thread, fd, 0, &mut |_, _, _| Ok(())).unwrap();
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
        prepare: |process, thread, _| install_watcher(process, thread, 10),
        operate: |_, thread, scene| {
            add_watch(thread, scene.files[0]);
            add_watch(thread, scene.files[1]);
        },
        own_references: 0,
    },
    Operation {
        name: "removal of a watch",
        prepare: |process, thread, scene| {
            install_watcher(process, thread, 10);
            add_watch(thread, scene.files[0]);
            add_watch(thread, scene.files[1]);
        },
        operate: |_, thread, scene| {
            let group = thread.watches().watch_group(KEY).unwrap();
            thread.watches().remove_watch((group, KEY), add_watch(thread, scene.files[0])).unwrap();
        },
        own_references: 0,
    },
    Operation {
        name: "close of a descriptor with watches",
        prepare: |process, thread, scene| {
            install_watcher(process, thread, 10);
            add_watch(thread, scene.files[0]);
            add_watch(thread, scene.files[1]);
        },
        operate: |process, thread, _| assert!(process.remove(thread, 10)),
        own_references: 0,
    },
    Operation {
        name: "the first mark of a descriptor, and another",
        prepare: |process, thread, _| install_marker(process, thread, 10),
        operate: |_, thread, scene| {
            add_mark(thread, scene.files[0]);
            add_mark(thread, scene.files[1]);
        },
        own_references: 0,
    },
    Operation {
        name: "removal of a mark",
        prepare: |process, thread, scene| {
            install_marker(process, thread, 10);
            add_mark(thread, scene.files[0]);
            add_mark(thread, scene.files[1]);
        },
        operate: |_, thread, scene| thread.watches().remove_mark(&mark(thread, scene.files[0])).unwrap(),
        own_references: 0,
    },
    Operation {
        name: "close of a descriptor with marks",
        prepare: |process, thread, scene| {
            install_marker(process, thread, 10);
            add_mark(thread, scene.files[0]);
            add_mark(thread, scene.files[1]);
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

/// Counted references to all files of an image, and marks.
fn references(fs: &Fs) -> u64 {
    use engine::dram::{FLAG_DEAD, FLAG_HELD, References};
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
    // SAFETY: stops this process until its tracer resumes it.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Waits until the child stops or ends; returns the signal that stopped it.
fn wait_for_stop(pid: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: a child of this process, and a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
}

/// Offset of the instruction pointer among a stopped process's registers.
const RIP: u64 = std::mem::offset_of!(libc::user, regs.rip) as u64;

/// The instructions that an operation executes.
#[derive(PartialEq)]
struct InstructionTrace {
    /// The address of each instruction, in the order of execution.
    instructions: Vec<u64>,
    /// The number of instructions executed at each change of the tables.
    stores: Vec<usize>,
}

/// A breakpoint: index of its instruction in the trace, and number of earlier executions.
struct Halt {
    at: usize,
    passes: usize,
}

impl InstructionTrace {
    /// The breakpoint that reaches `done` executed instructions with the fewest stops.
    fn halt_before(&self, done: usize) -> Option<Halt> {
        let (mut passes, mut best, mut fewest) = (HashMap::new(), None, done);
        for (at, address) in self.instructions[..=done.min(self.instructions.len() - 1)].iter().enumerate() {
            // Not at the start, and not at an instruction that repeats itself (`rep`): the
            // breakpoint would not be hit each time.
            let repeats = at == 0 || self.instructions[at - 1] == *address;
            let passes = passes.entry(address).and_modify(|passes| *passes += !repeats as usize).or_insert(0usize);
            let stops = 2 * *passes + 1 + (done - at);
            if !repeats && stops < fewest {
                (best, fewest) = (Some(Halt { at, passes: *passes }), stops);
            }
        }
        best
    }
}

/// A child of `parent` within an operation.
struct Victim {
    pid: i32,
}

impl Victim {
    fn new(parent: &Process<'_>, thread: &Thread<'_>, operation: &Operation, scene: &Scene) -> Victim {
        let fs = thread.fs();
        let child = parent.prepare_fork(thread, Fork::default()).unwrap();
        // SAFETY: the child uses only its own resources, and exits without running the parent's
        // code.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let thread = fs.enter().unwrap();
            let process = Processes::new(fs).unwrap().adopt(&thread, child).unwrap();
            (operation.prepare)(&process, &thread, scene);
            // SAFETY: requests tracing by the parent.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
            stop();
            (operation.operate)(&process, &thread, scene);
            stop();
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        assert_eq!(wait_for_stop(pid), Some(libc::SIGSTOP), "{}: the preparation failed", operation.name);
        Victim { pid }
    }

    fn resume(&self, request: libc::c_uint) -> Option<i32> {
        // SAFETY: a traced child that is stopped.
        assert_eq!(unsafe { libc::ptrace(request, self.pid, 0, 0) }, 0);
        wait_for_stop(self.pid)
    }

    /// Executes one instruction; returns false at the end of the operation.
    fn step(&self) -> bool {
        match self.resume(libc::PTRACE_SINGLESTEP) {
            Some(libc::SIGTRAP) => true,
            Some(libc::SIGSTOP) => false,
            other => panic!("ended without being killed: {other:?}"),
        }
    }

    /// The address of the next instruction.
    fn instruction(&self) -> u64 {
        // SAFETY: reads a register of a traced child that is stopped.
        unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, self.pid, RIP, 0) as u64 }
    }

    /// Steps to the end of the operation, and returns its trace.
    fn walk(&self, tables: &Tables) -> InstructionTrace {
        let (mut stores, mut seen) = (Vec::new(), tables.fingerprint());
        let mut instructions = vec![self.instruction()];
        while self.step() {
            let now = tables.fingerprint();
            if now != seen {
                stores.push(instructions.len());
                seen = now;
            }
            instructions.push(self.instruction());
        }
        InstructionTrace { instructions, stores }
    }

    /// Runs until just after a store of the trace; false if this victim executes other
    /// instructions.
    fn follow(&self, trace: &InstructionTrace, store: usize, tables: &Tables) -> bool {
        let done = trace.stores[store];
        let mut steps = done;
        if let Some(halt) = trace.halt_before(done) {
            if !self.run_to(trace.instructions[halt.at], halt.passes) {
                return false;
            }
            steps -= halt.at;
        }
        for left in (0..steps).rev() {
            let before = (left == 0).then(|| tables.fingerprint());
            if !self.step() || before.is_some_and(|before| before == tables.fingerprint()) {
                return false;
            }
        }
        self.instruction() == trace.instructions[done]
    }

    /// Runs until just before the instruction at an address, after `passes` executions of it; false
    /// if that is not reached.
    fn run_to(&self, address: u64, passes: usize) -> bool {
        const BREAKPOINT: u64 = 0xCC;
        // SAFETY: reads a word of the program of a traced child that is stopped.
        let word = unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, self.pid, address, 0) as u64 };
        for pass in 0..=passes {
            self.poke(libc::PTRACE_POKETEXT, address, word & !0xFF | BREAKPOINT);
            if self.resume(libc::PTRACE_CONT) == Some(libc::SIGSTOP) {
                return false;
            }
            assert_eq!(self.instruction(), address + 1);
            self.poke(libc::PTRACE_POKEUSER, RIP, address);
            self.poke(libc::PTRACE_POKETEXT, address, word);
            if pass < passes && !self.step() {
                return false;
            }
        }
        true
    }

    fn poke(&self, request: libc::c_uint, at: u64, word: u64) {
        // SAFETY: writes to a traced child that is stopped; its pages are private copies after
        // fork.
        assert_eq!(unsafe { libc::ptrace(request, self.pid, at, word) }, 0);
    }

    fn kill(self) {
        // SAFETY: a child that was not waited for, so the pid is still its own.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        assert_eq!(wait_for_stop(self.pid), None);
    }
}

/// The tables of an image, read from the file behind the DRAM region.
struct Tables {
    file: std::fs::File,
    areas: [std::ops::Range<u64>; 3],
    /// The file's touched pages, and its number of blocks when they were collected.
    pages: RefCell<(u64, Vec<Page>)>,
}

/// A mapped page of the file.
struct Page(&'static [AtomicU64; 512]);

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: a mapping that this value made and exclusively owns.
        unsafe { libc::munmap(self.0.as_ptr() as *mut libc::c_void, 4096) };
    }
}

impl Tables {
    fn new(scratch: &Scratch) -> Tables {
        let mut entries = std::fs::read_dir(scratch.directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let path = entries.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("directfs-")).unwrap();
        let layout = scratch.image.fs().dram().layout;
        // Files' marks and counts are in the first cachelets.
        let cachelets = layout.cachelets..layout.cachelets + 4096;
        let areas = [cachelets, layout.upper..layout.slots, layout.watches..layout.provided];
        Tables { file: std::fs::File::open(path.join("region")).unwrap(), areas, pages: RefCell::default() }
    }

    /// The pages of the areas that are not holes in the file.
    fn touched_pages(&self) -> Vec<Page> {
        let (fd, mut pages) = (self.file.as_raw_fd(), Vec::new());
        for area in &self.areas {
            let mut at = area.start as i64;
            loop {
                // SAFETY: an open file.
                at = unsafe { libc::lseek(fd, at, libc::SEEK_DATA) };
                if at < 0 || at as u64 >= area.end {
                    break;
                }
                at &= !4095;
                let (null, shared) = (std::ptr::null_mut(), libc::MAP_SHARED);
                // SAFETY: a new mapping of an existing page of the file; it is read only as
                // atomics.
                let page = unsafe { libc::mmap(null, 4096, libc::PROT_READ, shared, fd, at) };
                assert_ne!(page, libc::MAP_FAILED);
                // SAFETY: an aligned page, mapped until the value is dropped.
                pages.push(Page(unsafe { &*page.cast() }));
                at += 4096;
            }
        }
        pages
    }

    /// A hash of the tables. Untouched pages are zeros, and omitted.
    fn fingerprint(&self) -> u64 {
        let blocks = self.file.metadata().unwrap().blocks();
        let mut pages = self.pages.borrow_mut();
        if pages.0 != blocks {
            *pages = (blocks, self.touched_pages());
        }
        let mut sum = 0u64;
        for word in pages.1.iter().flat_map(|page| page.0) {
            sum = (sum ^ word.load(Relaxed)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        }
        sum
    }
}

fn make_files(session: &Session<'_, '_>) -> Scene {
    session.mkdir("directory", 0o755).unwrap();
    let file = |name: &str| {
        let file = session.open(name, libc::O_RDWR | libc::O_CREAT).unwrap();
        session.caller.data().write(&file, &[1; 9000]).unwrap();
        file.node()
    };
    let directory = session.at("directory", |node| Ok(session.caller.thread.retain(node).map(|()| node)?)).unwrap();
    Scene { files: [file("a"), file("b"), directory, file("lost")] }
}

/// An image, a process that uses it, and their resources when no operation is in flight.
struct Stage<'t, 'f> {
    operation: &'static Operation,
    session: Session<'t, 'f>,
    all: Processes<'f>,
    parent: Process<'f>,
    scene: Scene,
    tables: Tables,
    usage: Usage,
    references: u64,
    /// References that dead processes left to the engine.
    left: u64,
}

impl Stage<'_, '_> {
    /// Runs `act` on a new stage.
    fn with(operation: &'static Operation, act: impl FnOnce(&mut Stage<'_, '_>)) {
        let scratch = Scratch::new();
        let fs = scratch.image.fs();
        {
            let thread = fs.enter().unwrap();
            let root = thread.root().unwrap();
            let session = Session::new(&thread, root, ROOT);
            let scene = make_files(&session);
            let all = Processes::new(fs).unwrap();
            let parent = all.register(&thread, 0).unwrap();
            install(&parent, &thread, 9, scene.files[0]);
            let (usage, references, tables) = (all.usage().unwrap(), references(fs), Tables::new(&scratch));
            let mut stage = Stage { operation, session, all, parent, scene, tables, usage, references, left: 0 };
            act(&mut stage);
            let Stage { all, parent, scene, .. } = stage;
            parent.exit(&thread);
            assert_eq!(all.usage().unwrap(), Usage::default());
            scene.files.into_iter().for_each(|node| thread.release(node, 1));
            thread.release(root, 1);
        }
        scratch.image.close().unwrap();
    }

    /// The trace of a victim that dies at the end of the operation.
    fn walk(&mut self) -> InstructionTrace {
        let victim = Victim::new(&self.parent, self.session.caller.thread, self.operation, &self.scene);
        let trace = victim.walk(&self.tables);
        victim.kill();
        self.check_released("at its end");
        trace
    }

    /// Kills a victim after a store of the trace. Returns false if it executed other instructions
    /// and so died elsewhere.
    fn die(&mut self, trace: &InstructionTrace, store: usize) -> bool {
        let victim = Victim::new(&self.parent, self.session.caller.thread, self.operation, &self.scene);
        let followed = victim.follow(trace, store, &self.tables);
        victim.kill();
        self.check_released(format_args!("after store {store} of {}", trace.stores.len()));
        followed
    }

    /// Checks that everything that the dead process held is reclaimed.
    fn check_released(&mut self, died: impl std::fmt::Display) {
        let (name, thread) = (self.operation.name, self.session.caller.thread);
        self.all.reap(thread).unwrap_or_else(|error| panic!("{name} killed {died}: {error:?}"));
        self.all.reap(thread).unwrap();
        // A token outlives its sender, but this one cannot be received.
        self.parent.reap_fd_tokens(thread, &mut |_| false).unwrap();
        assert_eq!(self.all.usage().unwrap(), self.usage, "{name} killed {died}");
        assert!(!thread.fs().is_watched(), "{name} killed {died}: a watch remains");
        assert_eq!(thread.watches().watch_group(KEY), None, "{name} killed {died}: a group of watches remains");
        if name.contains("no name") {
            // The name is removed, and only the scene's reference keeps the file.
            thread.release(self.scene.files[3], 1);
            self.references -= 1;
            assert_eq!(
                references(thread.fs()),
                self.references,
                "{name} killed {died}: the file without a name remains"
            );
            self.scene.files[3] = self.session.open("lost", libc::O_RDWR | libc::O_CREAT).unwrap().node();
            self.references += 1;
        }
        let now = references(thread.fs());
        let lost = now.checked_sub(self.references).expect("references released twice");
        assert!(lost <= self.operation.own_references, "{name} killed {died}: {lost} references leaked");
        self.left += lost;
        self.references = now;
    }
}

fn die_everywhere(operation: &'static Operation) {
    let mut fresh = None;
    Stage::with(operation, |stage| {
        // The first victim finds unused tables; later ones find entries that others have freed.
        fresh = Some(stage.walk());
        let (mut trace, mut walks, mut store) = (stage.walk(), 2, 0);
        assert!(!trace.stores.is_empty(), "{}: no store is seen", operation.name);
        while store < trace.stores.len() {
            if stage.die(&trace, store) {
                store += 1;
            } else {
                trace = stage.walk();
                walks += 1;
                assert!(walks < 100, "{}: no two victims execute the same instructions", operation.name);
            }
        }
        let (length, stores, left) = (trace.instructions.len(), trace.stores.len(), stage.left);
        let name = operation.name;
        println!("{name}: {length} instructions, {stores} stores, {walks} walks; {left} references left to the engine");
        if fresh.as_ref() == Some(&trace) {
            fresh = None;
        }
    });
    let Some(fresh) = fresh else { return };
    for store in 0..fresh.stores.len() {
        let mut died = false;
        // Rarely a victim has to read the clock twice.
        for _ in 0..10 {
            Stage::with(operation, |stage| died = stage.die(&fresh, store));
            if died {
                break;
            }
        }
        assert!(died, "{}: no two first victims execute the same instructions", operation.name);
    }
    println!("    with fresh tables: {} instructions, {} stores", fresh.instructions.len(), fresh.stores.len());
}

/// This process and its victims alternate: on one processor that is several times faster.
fn stay_on_one_processor() {
    // SAFETY: a set of processors without pointers, and calls that concern this thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

#[test]
fn a_death_in_any_operation_leaves_nothing_behind() {
    stay_on_one_processor();
    let only = std::env::var("DEATHS_IN").unwrap_or_default();
    for operation in OPERATIONS.iter().filter(|operation| operation.name.contains(&only)) {
        die_everywhere(operation);
    }
}
