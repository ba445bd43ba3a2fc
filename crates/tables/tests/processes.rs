//! State that processes share, tested by real processes that fork, close, lock and die.

#[path = "../../posix/tests/common/mod.rs"]
mod common;

use common::{ROOT, Scratch, Session, assert_errno};
use engine::{MapMode, Node, Thread};
use posix::{Errno, OpenFile};
use tables::process::{FdToken, FileMapping, Fork, LockKind, LockRange, Locked, Process, Processes, Usage};

const NOTHING: Usage = Usage {
    processes: 0,
    files: 0,
    pages: 0,
    locks: 0,
    mappings: 0,
    tokens: 0,
    files_held: 0,
    files_mapped: 0,
    files_leased: 0,
};

/// A registered process with a session, on a fresh image; afterwards nothing may leak.
fn in_fresh_process(test: impl FnOnce(&Thread<'_>, Process<'_>, &Session<'_, '_>)) {
    let scratch = Scratch::new();
    {
        let thread = scratch.image.fs().enter().unwrap();
        let root = thread.root().unwrap();
        let session = Session::new(&thread, root, ROOT);
        let all = Processes::new(scratch.image.fs()).unwrap();
        test(&thread, all.register(&thread, 0o22).unwrap(), &session);
        all.resume(&thread, None).unwrap().expect("still registered").exit(&thread);
        all.reap(&thread).unwrap();
        assert_eq!(all.usage().unwrap(), NOTHING);
        thread.release(root, 1);
        assert_eq!(references(&thread), 0);
    }
    scratch.image.close().unwrap();
}

/// Counted references to all files of an image, and marks.
fn references(thread: &Thread<'_>) -> u64 {
    use engine::dram::{FLAG_DEAD, FLAG_HELD, References};
    use std::sync::atomic::Ordering::Relaxed;
    let dram = thread.fs().dram();
    let end = dram.header().unwrap().cachelets_next.load(Relaxed).min(dram.layout.cachelets_max);
    let mut sum = 0;
    for index in 1..end as u32 {
        let cachelet = dram.cachelet(index).unwrap();
        let state = References::from_word(cachelet.references.load(Relaxed));
        // The references field of a dead cachelet names its reclaimer.
        if cachelet.number.load(Relaxed) != 0 && state.flags & FLAG_DEAD == 0 {
            sum += state.references as u64 + (state.flags & FLAG_HELD != 0) as u64;
        }
    }
    sum
}

/// Runs `child` in a forked process, which exits with its result.
fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child shares nothing with other threads except the allocator, which the C library
    // makes safe.
    match unsafe { libc::fork() } {
        -1 => panic!("cannot fork"),
        0 => {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends this process without running the parent's code.
            unsafe { libc::_exit(result.unwrap_or(101)) }
        }
        pid => pid,
    }
}

/// Waits for a child; returns its exit status, or the negated signal that ended it.
fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: a child of this process, and a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

fn kill(pid: i32) {
    // SAFETY: a child that was not waited for, so the pid is still its own.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
}

fn open(session: &Session<'_, '_>, name: &str) -> OpenFile {
    session.open(name, libc::O_RDWR | libc::O_CREAT).unwrap()
}

#[test]
fn descriptors_share_what_they_were_duplicated_from() {
    in_fresh_process(|thread, process, session| {
        process.install(thread, 3, &open(session, "a"), false).unwrap();
        process.duplicate(thread, 3, 700, true).unwrap();
        assert_eq!(process.descriptor(3).unwrap().file, process.descriptor(700).unwrap().file);
        process.file(thread, 3).unwrap().set_position(17);
        assert_eq!(process.file(thread, 700).unwrap().position(), 17);
        assert!(process.descriptor(700).unwrap().cloexec && !process.descriptor(3).unwrap().cloexec);
        assert!(process.remove(thread, 3) && !process.remove(thread, 3));
        assert_eq!(process.file(thread, 700).unwrap().position(), 17, "the other one remains");
        assert_errno(process.duplicate(thread, 3, 4, false), Errno::EBADF);
        assert_errno(process.install(thread, 1 << 20, &open(session, "a"), false), Errno::EBADF);
        assert_eq!(process.processes().usage().unwrap().files, 1);
    });
}

#[test]
fn a_file_without_a_name_lives_as_long_as_a_descriptor() {
    in_fresh_process(|thread, process, session| {
        process.install(thread, 5, &open(session, "a"), false).unwrap();
        let number = process.file(thread, 5).unwrap().node().number;
        session.unlink("a").unwrap();
        process.duplicate(thread, 5, 6, false).unwrap();
        process.remove(thread, 5);
        assert_eq!(session.caller.stat(process.file(thread, 6).unwrap().node()).unwrap().links, 0);
        assert!(thread.node(number, None).map(|node| thread.release(node, 1)).is_ok());
        process.remove(thread, 6);
        assert!(thread.node(number, None).is_err(), "freed with the last descriptor");
    });
}

#[test]
fn an_open_in_place_of_another_closes_that() {
    in_fresh_process(|thread, process, session| {
        for name in ["a", "b", "c"] {
            process.install(thread, 3, &open(session, name), false).unwrap();
        }
        process.install(thread, 4, &open(session, "d"), false).unwrap();
        process.duplicate(thread, 4, 3, false).unwrap();
        assert_eq!(process.processes().usage().unwrap().files, 1);
        process.close_range(thread, 0, 3, false).unwrap();
        process.close_range(thread, 0, u32::MAX, true).unwrap();
        let mut seen = Vec::new();
        process.descriptors(&mut |fd, descriptor| {
            seen.push((fd, descriptor.cloexec));
            true
        });
        assert_eq!(seen, [(4, true)]);
    });
}

#[test]
fn a_child_inherits_and_the_parent_s_closes_are_its_own() {
    in_fresh_process(|thread, process, session| {
        session.mkdir("home", 0o755).unwrap();
        for fd in [3, 600, 5000] {
            process.install(thread, fd, &open(session, "a"), fd == 600).unwrap();
        }
        session.at("home", |home| process.set_directory(thread, Some(home))).unwrap();
        process.set_umask(0o77);
        let child = process.prepare_fork(thread, Fork::default()).unwrap();
        let pid = fork(|| {
            let fs = thread.fs();
            let thread = fs.enter().unwrap();
            let child = Processes::new(fs).unwrap().adopt(child).unwrap();
            let mut fds = Vec::new();
            child.descriptors(&mut |fd, descriptor| {
                fds.push((fd, descriptor.cloexec));
                true
            });
            assert_eq!(fds, [(3, false), (600, true), (5000, false)]);
            assert_eq!(child.umask(), 0o77);
            assert!(child.directory().is_some());
            child.file(&thread, 3).unwrap().set_position(9);
            child.remove(&thread, 3);
            child.set_directory(&thread, None).unwrap();
            // As after exec: found again, without the descriptors that exec closes.
            let child = Processes::new(fs).unwrap().resume(&thread, None).unwrap().unwrap();
            assert!(child.descriptor(600).is_none() && child.descriptor(5000).is_some());
            0
        });
        assert_eq!(wait(pid), 0);
        assert_eq!(process.file(thread, 3).unwrap().position(), 9, "shared with the child");
        assert!(process.descriptor(600).is_some());
        assert_eq!(process.processes().reap(thread).unwrap(), 1, "the child exited without `exit`");
        let usage = process.processes().usage().unwrap();
        assert_eq!((usage.processes, usage.files), (1, 3));
    });
}

#[test]
fn a_fork_that_failed_leaves_nothing() {
    in_fresh_process(|thread, process, session| {
        process.install(thread, 3, &open(session, "a"), false).unwrap();
        let child = process.prepare_fork(thread, Fork::default()).unwrap();
        assert_eq!(process.processes().usage().unwrap().processes, 2);
        process.cancel_fork(thread, child);
        assert_eq!(process.processes().usage().unwrap().processes, 1);
    });
}

#[test]
fn a_shared_table_outlives_the_process_that_made_it() {
    in_fresh_process(|thread, process, session| {
        let fork_of = |process: &Process<'_>, shares_files| {
            let fork = Fork { shares_files, ..Fork::default() };
            process.prepare_fork(thread, fork).unwrap()
        };
        let child = fork_of(&process, false);
        process.install(thread, 3, &open(session, "a"), false).unwrap();
        let pid = fork(|| {
            let fs = thread.fs();
            let thread = fs.enter().unwrap();
            let owner = Processes::new(fs).unwrap().adopt(child).unwrap();
            let sharer = owner.prepare_fork(&thread, Fork { shares_files: true, ..Fork::default() }).unwrap();
            let pid = fork(|| {
                let thread = fs.enter().unwrap();
                let sharer = Processes::new(fs).unwrap().adopt(sharer).unwrap();
                let file = thread.node(engine::format::ROOT_INODE, None).unwrap();
                let file = OpenFile::new(file, engine::format::FileKind::Directory, libc::O_RDONLY);
                sharer.install(&thread, 9, &file, false).unwrap();
                0
            });
            assert_eq!(wait(pid), 0);
            assert!(owner.descriptor(9).is_some(), "both see what one opens");
            0
        });
        assert_eq!(wait(pid), 0);
        // Both are dead: in whichever order they are reaped, nothing of the table remains.
        process.processes().reap(thread).unwrap();
        process.processes().reap(thread).unwrap();
        assert_eq!(process.processes().usage().unwrap().files, 1);
    });
}

#[test]
fn a_call_keeps_its_file_while_another_thread_closes_it() {
    in_fresh_process(|thread, process, session| {
        process.set_threads();
        let fs = thread.fs();
        let user = fs.enter().unwrap();
        let own = process.for_thread().expect("room for a thread");
        let ways: [(&str, &Process<_>); 2] = [("with the table locked", &process), ("lock-free", &own)];
        for (how, closer) in ways {
            process.install(thread, 3, &open(session, "a"), false).unwrap();
            let (first, second) = (process.file(thread, 3).unwrap(), process.file(&user, 3).unwrap());
            let index = first.index();
            assert!(closer.remove(thread, 3));
            assert!(process.file(thread, 3).is_none());
            assert_eq!(process.processes().usage().unwrap().files, 1, "in use, closed {how}");
            process.install(thread, 3, &open(session, "b"), false).unwrap();
            assert_ne!(process.file(thread, 3).unwrap().index(), index);
            drop(first);
            assert_eq!(process.processes().usage().unwrap().files, 2, "still in use by the second, closed {how}");
            drop(second);
            assert_eq!(process.processes().usage().unwrap().files, 1);
            assert!(process.remove(thread, 3));
        }
        own.end_thread();
    });
}

#[test]
fn a_call_keeps_its_file_while_the_thread_that_opened_it_closes_it() {
    in_fresh_process(|thread, process, session| {
        process.set_threads();
        let user = thread.fs().enter().unwrap();
        let own = process.for_thread().expect("room for a thread");
        for closer in [&process, &own] {
            closer.install(thread, 3, &open(session, "a"), false).unwrap();
            drop(closer.file(thread, 3).expect("is open"));
            let used = closer.file(&user, 3).expect("is open");
            assert!(closer.remove(thread, 3));
            assert_eq!((process.processes().usage().unwrap().files, used.position()), (1, 0));
            drop(used);
            assert_eq!(process.processes().usage().unwrap().files, 0);
        }
        own.end_thread();
    });
}

#[test]
fn threads_that_look_up_and_close_at_once_never_see_a_freed_file() {
    in_fresh_process(|thread, process, session| {
        process.set_threads();
        let fs = thread.fs();
        let nodes: Vec<Node> = (0..4).map(|at| open(session, &format!("f{at}")).node()).collect();
        std::thread::scope(|scope| {
            for seed in 0..4u64 {
                let nodes = &nodes;
                scope.spawn(move || {
                    let thread = fs.enter().unwrap();
                    // Some of them lock-free.
                    let own = (seed < 3).then(|| process.for_thread().expect("room for a thread"));
                    let process = own.unwrap_or(process);
                    let mut random = Random(seed + 1);
                    for round in 0..20_000 {
                        let fd = random.below(4) as u32;
                        if seed == 3 && round % 16 == 0 {
                            let child = process.prepare_fork(&thread, Fork::default()).unwrap();
                            process.cancel_fork(&thread, child);
                        }
                        match random.below(4) {
                            0 => {
                                let node = nodes[fd as usize];
                                thread.retain(node).unwrap();
                                let file = OpenFile::new(node, engine::format::FileKind::Regular, libc::O_RDWR);
                                process.install(&thread, fd, &file, false).unwrap();
                            }
                            1 => {
                                process.remove(&thread, fd);
                            }
                            _ => {
                                if let Some(file) = process.file(&thread, fd) {
                                    // Descriptor and file belong together: what one thread uses is
                                    // not another's.
                                    assert_eq!(file.node(), nodes[fd as usize]);
                                }
                            }
                        }
                    }
                });
            }
        });
        process.close_range(thread, 0, 10, false).unwrap();
        assert_eq!(process.processes().usage().unwrap().files, 0);
        for node in nodes {
            thread.release(node, 1);
        }
    });
}

/// A small generator: every run is the same.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 33) % end
    }
}

#[test]
fn tables_behave_like_a_model() {
    in_fresh_process(|thread, process, session| {
        use std::collections::BTreeMap;
        let mut model: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
        let mut random = Random(7);
        let fds = [0, 1, 2, 511, 512, 513, 1023, 1024, 40_000, (1 << 20) - 1];
        let mut opened = 0;
        for _ in 0..5000 {
            let fd = fds[random.below(10) as usize];
            let to = fds[random.below(10) as usize];
            let cloexec = random.below(2) == 0;
            match random.below(6) {
                0 => {
                    opened += 1;
                    let file = open(session, "a");
                    file.set_position(opened);
                    process.install(thread, fd, &file, cloexec).unwrap();
                    model.insert(fd, (opened, cloexec));
                }
                1 => assert_eq!(process.remove(thread, fd), model.remove(&fd).is_some()),
                2 => match model.get(&fd).copied() {
                    None => assert_errno(process.duplicate(thread, fd, to, cloexec), Errno::EBADF),
                    Some((position, _)) => {
                        process.duplicate(thread, fd, to, cloexec).unwrap();
                        if to != fd {
                            model.insert(to, (position, cloexec));
                        }
                    }
                },
                3 => {
                    let known = model.get_mut(&fd).map(|entry| entry.1 = cloexec).is_some();
                    assert_eq!(process.set_cloexec(fd, cloexec), known);
                }
                4 if random.below(20) == 0 => {
                    process.close_range(thread, fd, to, false).unwrap();
                    model.retain(|at, _| !(fd..=to).contains(at));
                }
                _ => {}
            }
            let mut found = BTreeMap::new();
            process.descriptors(&mut |fd, descriptor| {
                let position = process.file(thread, fd).unwrap().position();
                found.insert(fd, (position, descriptor.cloexec));
                fd < 2000
            });
            let shown: BTreeMap<_, _> =
                model.iter().map(|(fd, entry)| (*fd, *entry)).filter(|(fd, _)| *fd < 2000).collect();
            found.retain(|fd, _| *fd < 2000);
            assert_eq!(found, shown);
            let mut files: Vec<_> = model.values().map(|entry| entry.0).collect();
            files.sort();
            files.dedup();
            assert_eq!(process.processes().usage().unwrap().files as usize, files.len());
        }
    });
}

#[test]
fn a_token_brings_a_file_to_another_process() {
    in_fresh_process(|thread, process, session| {
        process.install(thread, 3, &open(session, "a"), false).unwrap();
        process.file(thread, 3).unwrap().set_position(5);
        let token = process.export(thread, 3).unwrap();
        process.remove(thread, 3);
        assert_eq!(process.processes().usage().unwrap().files, 1, "open while in transit");
        let pid = fork(|| {
            let fs = thread.fs();
            let thread = fs.enter().unwrap();
            let other = Processes::new(fs).unwrap().register(&thread, 0).unwrap();
            let guess = FdToken { secret: token.secret ^ 2, ..token };
            assert_errno(other.import(&thread, guess, 7, false, true), Errno::EBADF);
            other.import(&thread, token, 7, true, false).unwrap();
            other.import(&thread, token, 8, false, true).unwrap();
            assert_errno(other.import(&thread, token, 9, false, true), Errno::EBADF);
            assert_eq!(other.file(&thread, 7).unwrap().position(), 5);
            assert_eq!(other.descriptor(7).unwrap().file, other.descriptor(8).unwrap().file);
            0
        });
        assert_eq!(wait(pid), 0);
        process.processes().reap(thread).unwrap();
        assert_eq!(process.processes().usage().unwrap().files, 0);
        process.install(thread, 3, &open(session, "a"), false).unwrap();
        let kept = process.export(thread, 3).unwrap();
        process.export(thread, 3).unwrap();
        assert_eq!(process.reap_fd_tokens(thread, &mut |index| index == kept.index).unwrap(), 1);
        assert_eq!(process.reap_fd_tokens(thread, &mut |_| false).unwrap(), 1);
    });
}

#[test]
fn a_full_table_of_tokens_is_an_error() {
    in_fresh_process(|thread, process, session| {
        process.install(thread, 3, &open(session, "a"), false).unwrap();
        for _ in 0..tables::process::FD_TOKENS_MAX {
            process.export(thread, 3).unwrap();
        }
        assert_errno(process.export(thread, 3), Errno::ETOOMANYREFS);
        process.reap_fd_tokens(thread, &mut |_| false).unwrap();
        process.export(thread, 3).unwrap();
        process.reap_fd_tokens(thread, &mut |_| false).unwrap();
    });
}

fn mapping(node: Node, address: u64, length: u64) -> FileMapping {
    FileMapping {
        address,
        length,
        offset: address - 0x10000,
        node,
        shared: true,
        writable: true,
        stores: true,
        protection: 3,
        inherited: false,
    }
}

#[test]
fn a_mapped_file_keeps_its_blocks_until_it_is_unmapped() {
    in_fresh_process(|thread, process, session| {
        let caller = &session.caller;
        let file = open(session, "a");
        caller.data().write(&file, &[7; 40960]).unwrap();
        let node = file.node();
        process.add_mapping(thread, &mapping(node, 0x10000, 0xa000)).unwrap();
        let mut blocks = Vec::new();
        thread.files().map_extents(node, 0, 0xa000, MapMode::Stores, &mut |extent| blocks.push(extent)).unwrap();
        caller.data().write_at(&file, 5000, &[8; 9000]).unwrap();
        caller.data().truncate_open(&file, 4096).unwrap();
        caller.data().truncate_open(&file, 40960).unwrap();
        let mut after = Vec::new();
        thread.files().map_extents(node, 0, 0xa000, MapMode::Loads, &mut |extent| after.push(extent)).unwrap();
        assert_eq!(after, blocks, "in place, and written, so that stores reach them");
        // Removing the middle leaves two mappings.
        process.remove_mappings(thread, 0x12000, 0x1000).unwrap();
        assert_eq!(process.processes().usage().unwrap().mappings, 2);
        assert!(process.mapping_at(thread, 0x12000).unwrap().is_none());
        let rest = process.mapping_at(thread, 0x14321).unwrap().unwrap();
        assert_eq!((rest.address, rest.length, rest.offset), (0x13000, 0x7000, 0x3000));
        caller.data().truncate_open(&file, 0).unwrap();
        assert_ne!(caller.stat(node).unwrap().blocks, 0);
        process.remove_mappings(thread, 0, u64::MAX).unwrap();
        assert_eq!(caller.stat(node).unwrap().blocks, 0, "freed with the last mapping");
        caller.opens().close(&file);
    });
}

#[test]
fn a_part_of_a_mapping_has_its_own_protection() {
    in_fresh_process(|thread, process, session| {
        let file = open(session, "a");
        session.caller.data().write(&file, &[7; 40960]).unwrap();
        let node = file.node();
        process.add_mapping(thread, &mapping(node, 0x10000, 0xa000)).unwrap();
        let protection = |at: u64| process.mapping_at(thread, at).unwrap().unwrap().protection;
        process.protect(thread, 0x12000, 0x2000, 1).unwrap();
        assert_eq!([0x10000, 0x11fff, 0x12000, 0x13fff, 0x14000].map(protection), [3, 3, 1, 1, 3]);
        assert_eq!(process.processes().usage().unwrap().mappings, 3);
        let part = process.mapping_at(thread, 0x14000).unwrap().unwrap();
        assert_eq!((part.address, part.length, part.offset), (0x14000, 0x6000, 0x4000));
        process.protect(thread, 0, u64::MAX, 0).unwrap();
        assert_eq!([0x10000, 0x12000, 0x19fff].map(protection), [0, 0, 0]);
        let read_only = FileMapping { writable: false, stores: false, ..mapping(node, 0x30000, 0x2000) };
        process.add_mapping(thread, &read_only).unwrap();
        assert_errno(process.protect(thread, 0x31000, 0x1000, 3), Errno::EACCES);
        process.protect(thread, 0x31000, 0x1000, 5).unwrap();
        assert_eq!([0x30000, 0x31000].map(protection), [3, 5]);
        process.remove_mappings(thread, 0, u64::MAX).unwrap();
        session.caller.opens().close(&file);
    });
}

#[test]
fn a_hole_that_is_mapped_for_writing_gets_blocks() {
    in_fresh_process(|thread, process, session| {
        let file = open(session, "a");
        session.caller.data().truncate_open(&file, 3 * 4096 + 100).unwrap();
        let node = file.node();
        assert!(thread.files().map_extents(node, 0, 4096, MapMode::Loads, &mut |_| ()).is_err(), "it is not mapped");
        process.add_mapping(thread, &mapping(node, 0x10000, 0x4000)).unwrap();
        let mut holes = 0;
        thread
            .files()
            .map_extents(node, 0, 0x4000, MapMode::Loads, &mut |extent| holes += extent.address.is_none() as u64)
            .unwrap();
        assert_ne!(holes, 0);
        let mut bytes = 0;
        let each = &mut |extent: engine::Extent| {
            assert!(extent.address.is_some() && !extent.unwritten);
            bytes += extent.length;
        };
        thread.files().map_extents(node, 0, u64::MAX, MapMode::Stores, each).unwrap();
        assert_eq!(bytes, 0x4000);
        session.caller.opens().close(&file);
        process.remove_mappings(thread, 0x10000, 0x4000).unwrap();
    });
}

#[test]
fn a_child_has_the_mappings_unless_it_shares_the_memory() {
    in_fresh_process(|thread, process, session| {
        let file = open(session, "a");
        process.add_mapping(thread, &mapping(file.node(), 0x10000, 0x1000)).unwrap();
        session.caller.opens().close(&file);
        let child = process.prepare_fork(thread, Fork { shares_memory: true, ..Fork::default() }).unwrap();
        assert_eq!(process.processes().usage().unwrap().mappings, 1);
        process.cancel_fork(thread, child);
        let child = process.prepare_fork(thread, Fork::default()).unwrap();
        assert_eq!(process.processes().usage().unwrap().mappings, 2);
        process.remove_mappings(thread, 0x10000, 0x1000).unwrap();
        assert_eq!(process.processes().usage().unwrap().files_mapped, 1, "the child's");
        process.cancel_fork(thread, child);
    });
}

#[test]
fn waiters_get_the_lock_of_a_process_that_was_killed() {
    in_fresh_process(|thread, process, session| {
        process.install(thread, 3, &open(session, "a"), false).unwrap();
        let child = process.prepare_fork(thread, Fork::default()).unwrap();
        let mut ready = [0; 2];
        // SAFETY: space for two descriptors.
        assert_eq!(unsafe { libc::pipe(ready.as_mut_ptr()) }, 0);
        let pid = fork(|| {
            let fs = thread.fs();
            let thread = fs.enter().unwrap();
            let child = Processes::new(fs).unwrap().adopt(child).unwrap();
            let range = LockRange::new(0, 10, 5).unwrap();
            let done = child.lock_range(&thread, 3, range, Some(LockKind::Exclusive), false, false).unwrap();
            assert_eq!(done, Locked::Done);
            // SAFETY: the pipe's writing end, and one byte.
            unsafe { libc::write(ready[1], [1u8].as_ptr().cast(), 1) };
            loop {
                // SAFETY: sleeps until it is killed.
                unsafe { libc::pause() };
            }
        });
        let mut byte = [0u8];
        // SAFETY: the pipe's reading end, and space for one byte.
        assert_eq!(unsafe { libc::read(ready[0], byte.as_mut_ptr().cast(), 1) }, 1);
        let range = LockRange::new(0, 0, 0).unwrap();
        let attempt = || process.lock_range(thread, 3, range, Some(LockKind::Shared), false, true).unwrap();
        let Locked::Blocked(blocked) = attempt() else { panic!("the child holds it") };
        let conflict = process.conflict(thread, 3, range, Some(LockKind::Shared), false).unwrap().unwrap();
        assert_eq!((conflict.pid, conflict.range), (pid, LockRange { start: 10, last: 14 }));
        kill(pid);
        // The child is not waited for yet: a zombie holds nothing either.
        let mut blocked = blocked;
        loop {
            process.wait_for_lock(thread, &blocked);
            match attempt() {
                Locked::Done => break,
                Locked::Blocked(again) => blocked = again,
            }
        }
        process.end_wait();
        assert_eq!(wait(pid), -libc::SIGKILL);
        // SAFETY: descriptors that this test made.
        unsafe { (libc::close(ready[0]), libc::close(ready[1])) };
    });
}

/// The kernel releases locks before anything sees a process's death, so no waiting is allowed.
#[test]
fn calls_that_do_not_wait_get_the_lock_of_a_process_that_was_killed() {
    let (all, exclusive) = (LockRange::new(0, 0, 0).unwrap(), Some(LockKind::Exclusive));
    let ways = [LockOf::Process, LockOf::Description, LockOf::Whole];
    for (way, asks) in ways.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        in_fresh_process(|thread, process, session| {
            process.install(thread, 3, &open(session, "a"), false).unwrap();
            let lock = |process: &Process, thread: &engine::Thread, fd| match way {
                LockOf::Whole => process.flock(thread, fd, exclusive).unwrap(),
                _ => process.lock_range(thread, fd, all, exclusive, way == LockOf::Description, false).unwrap(),
            };
            let child = process.prepare_fork(thread, Fork::default()).unwrap();
            let pid = fork(|| {
                let fs = thread.fs();
                let thread = fs.enter().unwrap();
                let child = Processes::new(fs).unwrap().adopt(child).unwrap();
                // A description of its own: the parent shares those that it had.
                child.install(&thread, 4, &open(session, "a"), false).unwrap();
                assert_eq!(lock(&child, &thread, 4), Locked::Done);
                kill(std::process::id() as i32);
                0
            });
            assert_eq!(wait(pid), -libc::SIGKILL);
            if asks && way != LockOf::Whole {
                assert_eq!(process.conflict(thread, 3, all, exclusive, true).unwrap(), None);
            } else {
                let Locked::Blocked(blocked) = lock(&process, thread, 3) else {
                    panic!("the dead child is not reaped")
                };
                assert!(process.reap_blocker(thread, &blocked));
            }
            assert_eq!(lock(&process, thread, 3), Locked::Done);
        });
    }
}

#[derive(Clone, Copy, PartialEq)]
enum LockOf {
    Process,
    Description,
    Whole,
}

#[test]
fn processes_that_would_deadlock_get_an_error() {
    in_fresh_process(|thread, first, session| {
        let all = first.processes();
        let ring = [first, all.register(thread, 0).unwrap(), all.register(thread, 0).unwrap()];
        let (exclusive, names) = (Some(LockKind::Exclusive), ["a", "b", "c"]);
        let range = LockRange::new(0, 5, 5).unwrap();
        for (own, process) in ring.iter().enumerate() {
            for (fd, name) in names.iter().enumerate() {
                process.install(thread, fd as u32, &open(session, name), false).unwrap();
            }
            let done = process.lock_range(thread, own as u32, range, exclusive, false, true);
            assert_eq!(done, Ok(Locked::Done));
        }
        let wait_for = |process: usize, fd| ring[process].lock_range(thread, fd, range, exclusive, false, true);
        assert!(matches!(wait_for(0, 1), Ok(Locked::Blocked(_))));
        assert!(matches!(wait_for(1, 2), Ok(Locked::Blocked(_))));
        assert_errno(wait_for(2, 0), Errno::EDEADLK);
        // Without waiting it is no deadlock, and a description does not wait.
        let now = ring[2].lock_range(thread, 0, range, exclusive, false, false);
        assert!(matches!(now, Ok(Locked::Blocked(_))));
        assert!(matches!(ring[2].lock_range(thread, 0, range, exclusive, true, true), Ok(Locked::Blocked(_))));
        // The second wait ends: then the third process may wait.
        ring[1].end_wait();
        assert!(matches!(wait_for(2, 0), Ok(Locked::Blocked(_))));
        ring[1..].iter().for_each(|process| process.exit(thread));
    });
}

#[test]
fn one_process_of_a_deadlock_gets_the_error() {
    in_fresh_process(|thread, first, session| {
        let all = first.processes();
        let processes = [first, all.register(thread, 0).unwrap(), all.register(thread, 0).unwrap()];
        let [early, late, reader] = &processes;
        for process in &processes {
            process.install(thread, 0, &open(session, "a"), false).unwrap();
            process.install(thread, 1, &open(session, "b"), false).unwrap();
        }
        let range = LockRange::new(0, 5, 5).unwrap();
        let lock = |process: &Process, fd, kind| process.lock_range(thread, fd, range, Some(kind), false, true);
        assert_eq!(lock(reader, 0, LockKind::Shared), Ok(Locked::Done));
        assert_eq!(lock(late, 0, LockKind::Shared), Ok(Locked::Done));
        assert_eq!(lock(early, 1, LockKind::Exclusive), Ok(Locked::Done));
        // Two processes wait for each other, but a reader blocks them first.
        assert!(matches!(lock(early, 0, LockKind::Exclusive), Ok(Locked::Blocked(_))));
        assert!(matches!(lock(late, 1, LockKind::Exclusive), Ok(Locked::Blocked(_))));
        assert_eq!(reader.lock_range(thread, 0, range, None, false, false), Ok(Locked::Done));
        // Both check again, in the order that could make both victims: every member sees the cycle
        // until one has left it.
        assert!(matches!(lock(early, 0, LockKind::Exclusive), Ok(Locked::Blocked(_))));
        assert_errno(lock(late, 1, LockKind::Exclusive), Errno::EDEADLK);
        assert!(matches!(lock(early, 0, LockKind::Exclusive), Ok(Locked::Blocked(_))), "one has left the cycle");
        processes[1..].iter().for_each(|process| process.exit(thread));
    });
}

#[test]
fn a_mount_s_locks_and_those_of_processes_see_each_other() {
    in_fresh_process(|thread, process, session| {
        let mount = process.processes().register(thread, 0).unwrap();
        process.install(thread, 3, &open(session, "a"), false).unwrap();
        let node = process.file(thread, 3).unwrap().node();
        let range = LockRange::new(0, 0, 10).unwrap();
        let exclusive = Some(LockKind::Exclusive);
        assert_eq!(mount.lock_foreign(thread, node, (77, 4711), Some(range), exclusive), Ok(Locked::Done));
        assert!(matches!(mount.lock_foreign(thread, node, (78, 1), Some(range), exclusive), Ok(Locked::Blocked(_))));
        let conflict = process.conflict(thread, 3, range, exclusive, false).unwrap().unwrap();
        assert_eq!(conflict.pid, 4711);
        assert_eq!(mount.lock_foreign(thread, node, (77, 4711), None, exclusive), Ok(Locked::Done));
        assert!(matches!(process.flock(thread, 3, exclusive), Ok(Locked::Blocked(_))));
        mount.exit(thread);
        assert_eq!(process.flock(thread, 3, exclusive), Ok(Locked::Done), "the mount's locks ended with it");
        assert!(process.conflict(thread, 3, range, exclusive, false).unwrap().is_none());
    });
}

#[test]
fn a_program_begins_without_what_the_threads_of_the_one_before_were_at() {
    in_fresh_process(|thread, process, session| {
        process.set_threads();
        process.install(thread, 3, &open(session, "a"), false).unwrap();
        process.install(thread, 4, &open(session, "b"), true).unwrap();
        process.add_mapping(thread, &mapping(process.file(thread, 3).unwrap().node(), 0x10000, 0x1000)).unwrap();
        // Two threads that exec ended within calls; the descriptor of one was closed meanwhile.
        std::mem::forget(process.file(thread, 3).unwrap());
        process.install(thread, 5, &open(session, "c"), false).unwrap();
        std::mem::forget(process.file(thread, 5).unwrap());
        process.remove(thread, 5);
        assert_eq!(process.processes().usage().unwrap().files, 3);
        let process = process.processes().resume(thread, Some(process.index())).unwrap().unwrap();
        let usage = process.processes().usage().unwrap();
        assert_eq!((usage.files, usage.mappings), (1, 0));
        assert!(process.descriptor(3).is_some() && process.descriptor(4).is_none());
    });
}

#[test]
fn exec_gives_a_process_that_shared_its_table_one_of_its_own() {
    in_fresh_process(|thread, process, session| {
        process.install(thread, 3, &open(session, "a"), false).unwrap();
        let index = process.prepare_fork(thread, Fork { shares_files: true, ..Fork::default() }).unwrap();
        let pid = fork(|| {
            let fs = thread.fs();
            let thread = fs.enter().unwrap();
            let all = Processes::new(fs).unwrap();
            all.adopt(index).unwrap();
            let child = all.resume(&thread, Some(index)).unwrap().unwrap();
            assert_ne!(child.index(), index);
            assert!(child.remove(&thread, 3));
            0
        });
        assert_eq!(wait(pid), 0);
        assert!(process.descriptor(3).is_some(), "no longer shared with the child");
        process.processes().reap(thread).unwrap();
        assert_eq!(process.processes().usage().unwrap().processes, 1);
    });
}

#[test]
fn lengths_and_starts_of_locks_are_checked() {
    let range = |base, start, length| LockRange::new(base, start, length);
    assert_eq!(range(100, -10, 5), Ok(LockRange { start: 90, last: 94 }));
    assert_eq!(range(0, 10, -10), Ok(LockRange { start: 0, last: 9 }));
    assert_eq!(range(0, i64::MAX, 1), Ok(LockRange { start: i64::MAX as u64, last: i64::MAX as u64 }));
    assert_errno(range(0, 9, -10), Errno::EINVAL);
    assert_errno(range(5, -6, 0), Errno::EINVAL);
    assert_errno(range(0, i64::MAX, 2), Errno::EOVERFLOW);
    assert_errno(range(u64::MAX, 0, 0), Errno::EOVERFLOW);
}
