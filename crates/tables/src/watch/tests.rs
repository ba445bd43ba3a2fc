use super::queue::{Ring, Taken, WatchEvent};
use super::{Change, FileId, MarkChange, MarkEvent, MarkFlags, NewMark, NewWatch, Watches, event};
use crate::host::PLATFORM;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};
use engine::format::FileKind;
use engine::{AttachOptions, Error, FileFlags, Fs, Liveness, MkfsOptions, NewNode, Thread, mkfs};
use pmem::{Direct, Mapping, Region};

const KEY: u64 = 7;

fn change<'n>(number: u64, mask: u32, name: &'n [u8]) -> Change<'n> {
    Change { number, mask, cookie: 0, name, unlinked: false }
}

fn name_of(event: &WatchEvent) -> Vec<u8> {
    event.name()[..event.name_length].to_vec()
}

/// A file system, and its memory, which is dropped after it.
struct Attached {
    fs: Fs,
    _memory: [Mapping; 2],
}

impl Attached {
    fn new() -> Attached {
        let image = Mapping::anonymous(4 << 20).expect("memory");
        // SAFETY: the value that is made here drops its file system before its mappings.
        let region = |memory: &Mapping| unsafe { Region::new(memory.address(), memory.length(), Direct) };
        let new = MkfsOptions {
            uuid: *b"a uuid of sixtee",
            label: [b'l'; 64],
            inodes_max: 0,
            owner: (1000, 100),
            permissions: 0o755,
            now_ns: 1_000_000_000,
            zeroed: true,
        };
        mkfs(&region(&image), &new).expect("an image");
        let options = AttachOptions::default();
        let layout = Fs::dram_layout(&region(&image), &options).expect("a layout");
        let dram = Mapping::anonymous(layout.length).expect("memory");
        let recovery = Fs::attach_first(region(&image), region(&dram), &PLATFORM, Liveness::alone(), &options);
        let recovery = recovery.expect("attaches");
        recovery.work().expect("recovers");
        Attached { fs: recovery.finish().expect("recovered").0, _memory: [image, dram] }
    }
}

impl core::ops::Deref for Attached {
    type Target = Fs;

    fn deref(&self) -> &Fs {
        &self.fs
    }
}

/// Reports a panic of its thread.
struct Failed<'a>(&'a AtomicBool);

impl Drop for Failed<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Relaxed);
    }
}

#[test]
fn events_of_many_writers_arrive_complete_and_in_order() {
    const WRITERS: usize = 4;
    const EACH: usize = 3000;
    let fs = Attached::new();
    let reader = fs.enter().expect("enters");
    let group = Watches::make_watch_group(&reader, (KEY, 0)).expect("a group");
    let new = NewWatch { group: (group, KEY), number: 1, mask: event::CREATE, limit: 10 };
    let watch = Watches::add_watch(&reader, &new).expect("a watch");
    let (failed, written, read) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (fs, failed, written, read) = (&fs, &failed, &written, &read);
            scope.spawn(move || {
                let thread = fs.enter().expect("enters");
                let _guard = Failed(failed);
                for round in 0..EACH {
                    // Fewer than the queue holds are on their way.
                    while written.load(Relaxed) > read.load(Relaxed) + 2000 {
                        std::thread::yield_now();
                    }
                    written.fetch_add(1, Relaxed);
                    let name = format!("{writer}-{round}-{}", "x".repeat(round * 7 % 200));
                    Watches::of(&thread).notify_watches(&change(1, event::CREATE, name.as_bytes()));
                }
            });
        }
        let (mut next, mut event, mut count) = ([0; WRITERS], WatchEvent::none(), 0);
        while count < WRITERS * EACH {
            if Watches::of(&reader).take_watch_event(group, KEY, 4096, &mut event) != Ok(Taken::Event) {
                assert!(!failed.load(Relaxed), "a writer failed");
                std::thread::yield_now();
                continue;
            }
            assert_eq!((event.watch, event.mask), (watch, event::CREATE), "nothing is lost");
            let name = String::from_utf8(name_of(&event)).expect("as it was sent");
            let mut parts = name.split('-').map(|part| part.parse::<usize>());
            let (writer, round) = (parts.next().unwrap().unwrap(), parts.next().unwrap().unwrap());
            assert_eq!(round, next[writer]);
            next[writer] += 1;
            count += 1;
            read.fetch_add(1, Relaxed);
        }
    });
}

/// A group with one watch on inode 1; returns them.
fn watched(thread: &Thread<'_>, key: u64, mask: u32) -> (u32, i32) {
    let group = Watches::make_watch_group(thread, (key, 0)).expect("a group");
    let new = NewWatch { group: (group, key), number: 1, mask, limit: 1000 };
    (group, Watches::add_watch(thread, &new).expect("a watch"))
}

fn take_all(thread: &Thread<'_>, group: u32, key: u64) -> Vec<(i32, u32, Vec<u8>)> {
    let (mut all, mut event) = (Vec::new(), WatchEvent::none());
    while Watches::of(thread).take_watch_event(group, key, 4096, &mut event) == Ok(Taken::Event) {
        all.push((event.watch, event.mask, name_of(&event)));
    }
    all
}

#[test]
fn a_full_queue_loses_events_and_says_so_once() {
    let fs = Attached::new();
    let thread = fs.enter().expect("enters");
    let (group, watch) = watched(&thread, KEY, event::ALL);
    for round in 0..20_000u32 {
        Watches::of(&thread).notify_watches(&change(1, event::CREATE, format!("{round}").as_bytes()));
    }
    let events = take_all(&thread, group, KEY);
    assert_eq!(events.len(), super::layout::CELLS + 1);
    assert_eq!(events[super::layout::CELLS], (-1, event::Q_OVERFLOW, b"".to_vec()));
    Watches::of(&thread).notify_watches(&change(1, event::DELETE, b"later"));
    assert_eq!(take_all(&thread, group, KEY), [(watch, event::DELETE, b"later".to_vec())]);
}

#[test]
fn an_event_that_repeats_the_last_unread_one_is_not_added() {
    let fs = Attached::new();
    let thread = fs.enter().expect("enters");
    let (group, _) = watched(&thread, KEY, event::ALL);
    for name in [b"a", b"a", b"b", b"a"] {
        Watches::of(&thread).notify_watches(&change(1, event::MODIFY, name));
    }
    assert_eq!(take_all(&thread, group, KEY).len(), 3);
    Watches::of(&thread).notify_watches(&change(1, event::MODIFY, b"a"));
    assert_eq!(take_all(&thread, group, KEY).len(), 1, "the last one was read");
}

#[test]
fn watches_that_end_leave_no_mark_behind() {
    let fs = Attached::new();
    let thread = fs.enter().expect("enters");
    assert!(!fs.is_watched());
    let (group, watch) = watched(&thread, KEY, event::OPEN | event::ONESHOT);
    assert!(fs.is_watched());
    let again = NewWatch { group: (group, KEY), number: 1, mask: event::OPEN | event::MASK_CREATE, limit: 1000 };
    assert_eq!(Watches::add_watch(&thread, &again), Err(Error::Exists));
    for _ in 0..2 {
        Watches::of(&thread).notify_watches(&change(1, event::OPEN, b""));
    }
    assert_eq!(take_all(&thread, group, KEY), [(watch, event::OPEN, Vec::new()), (watch, event::IGNORED, Vec::new())]);
    assert_eq!(Watches::remove_watch(&thread, (group, KEY), watch), Err(Error::NotFound));
    Watches::sweep_watches(&thread).expect("sweeps");
    assert!(!fs.is_watched());
    // An ended file, a removed watch, and a removed group.
    watched(&thread, KEY, event::DELETE_SELF);
    Watches::of(&thread).end_watches(1);
    let events = take_all(&thread, group, KEY);
    assert_eq!(events.iter().map(|event| event.1).collect::<Vec<_>>(), [event::DELETE_SELF, event::IGNORED]);
    let (_, watch) = watched(&thread, KEY, event::ALL);
    Watches::remove_watch(&thread, (group, KEY), watch).expect("it exists");
    assert!(!fs.is_watched());
    watched(&thread, KEY, event::ALL);
    let (other, _) = watched(&thread, KEY + 1, event::ALL);
    Watches::remove_watch_group(&thread, KEY).expect("it exists");
    assert_eq!(Watches::of(&thread).watch_group(KEY), None);
    assert!(fs.is_watched(), "the other group's watch is left");
    Watches::remove_watch_group(&thread, KEY + 1).expect("it exists");
    assert!(!fs.is_watched());
    Watches::of(&thread).notify_watches(&change(1, event::OPEN, b""));
    assert_eq!(take_all(&thread, other, KEY + 1), []);
}

#[test]
fn the_end_of_a_file_ends_its_watches_and_marks() {
    let fs = Attached::new();
    let thread = fs.enter().expect("enters");
    let root = thread.root().expect("a root");
    let new = NewNode {
        kind: FileKind::Regular,
        permissions: 0o644,
        uid: 1,
        gid: 2,
        device: 0,
        target: b"",
        extended: &[],
        flags: FileFlags::NONE,
    };
    let file = thread.create(root, b"file", &new).expect("a file");
    let generation = thread.protection(file).expect("it exists").generation;
    let marks = marked(&thread, 0x200, file.number);
    let watches = Watches::make_watch_group(&thread, (KEY + 1, 0)).expect("a group");
    let watch = NewWatch { group: (watches, KEY + 1), number: file.number, mask: event::DELETE_SELF, limit: 9 };
    Watches::add_watch(&thread, &watch).expect("a watch");
    thread.unlink(root, b"file", |_| Ok(())).expect("it exists");
    assert_eq!(take_all(&thread, watches, KEY + 1), [], "it is open");
    thread.release(file, 1);
    let events: Vec<_> = take_all(&thread, watches, KEY + 1).iter().map(|event| event.1).collect();
    assert_eq!(events, [event::DELETE_SELF, event::IGNORED]);
    let ended = take_marked(&thread, marks).expect("an event");
    assert_eq!((ended.mask, ended.object), (event::DELETE_SELF, FileId { number: file.number, generation }));
    Watches::sweep_watches(&thread).expect("sweeps");
    assert!(!fs.is_watched());
}

#[test]
fn limits_of_watches_and_groups_are_errors() {
    let fs = Attached::new();
    let thread = fs.enter().expect("enters");
    let group = Watches::make_watch_group(&thread, (KEY, 5)).expect("a group");
    let add =
        |number| Watches::add_watch(&thread, &NewWatch { group: (group, KEY), number, mask: event::ALL, limit: 3 });
    let numbers: Vec<_> = (1..=3).map(|number| add(number).expect("below the limit")).collect();
    assert_eq!(add(4), Err(Error::NoSpace));
    assert_eq!(add(2), Ok(numbers[1]), "a change of a watch");
    Watches::remove_watch(&thread, (group, KEY), numbers[0]).expect("it exists");
    assert!(!numbers.contains(&add(4).expect("room again")), "numbers are not reused at once");
    for key in KEY + 1..KEY + u64::from(super::layout::GROUPS_MAX) {
        Watches::make_watch_group(&thread, (key, 5)).expect("a group");
    }
    assert_eq!(Watches::make_watch_group(&thread, (1000, 5)), Err(Error::NoSpace));
}

#[test]
fn an_event_that_its_writer_left_incomplete_is_given_up() {
    let fs = Attached::new();
    let thread = fs.enter().expect("enters");
    let (group, watch) = watched(&thread, KEY, event::ALL);
    let queue = &Watches::of(&thread).tables().expect("tables").queues[group as usize];
    // A writer that died after it claimed two cells.
    queue.tail.store(2 << 4 | 2, core::sync::atomic::Ordering::SeqCst);
    Watches::of(&thread).notify_watches(&change(1, event::OPEN, b""));
    assert_eq!(take_all(&thread, group, KEY), [(-1, event::Q_OVERFLOW, Vec::new()), (watch, event::OPEN, Vec::new())]);
}

/// Flags of fanotify_init.
const WITH_NAMES: u32 = 0xe00;

fn mark_change<'n>(mask: u32, number: u64, name: &'n [u8]) -> MarkChange<'n> {
    MarkChange {
        mask,
        file: FileId { number, generation: 3 },
        directory: FileId { number: 1, generation: 1 },
        name,
        moved_to: None,
        on: number,
        parent: 1,
        has_path: true,
        can_open: true,
    }
}

/// A group with a mark on an inode, and on its files if it is a directory.
fn marked(thread: &Thread<'_>, flags: u32, number: u64) -> u32 {
    let group = Watches::make_mark_group(thread, (KEY, 0), (flags, 0)).expect("a group");
    let mask = event::ALL | event::RENAME | event::ON_CHILD;
    let mark = NewMark { group: (group, KEY), number, mask, kept: 0, flags: MarkFlags(1), limit: 9 };
    Watches::add_mark(thread, &mark).expect("a mark");
    group
}

fn take_marked(thread: &Thread<'_>, group: u32) -> Option<MarkEvent> {
    let mut event = MarkEvent::none();
    let taken = Watches::of(thread).take_mark_event((group, KEY), |_| true, &mut event).expect("tables");
    (taken == Taken::Event).then_some(event)
}

#[test]
fn equal_events_of_marks_are_united_until_they_are_read() {
    let fs = Attached::new();
    let thread = fs.enter().expect("enters");
    let group = marked(&thread, WITH_NAMES, 1);
    for (mask, number) in [(event::OPEN, 5), (event::OPEN, 6), (event::ACCESS, 5), (event::CLOSE_NOWRITE, 6)] {
        Watches::of(&thread).notify_marks(&mark_change(mask, number, b"name"));
    }
    let first = take_marked(&thread, group).expect("an event");
    assert_eq!((first.mask, first.object.number), (event::OPEN | event::ACCESS, 5));
    assert_eq!(&first.name(0)[..first.name_lengths[0]], b"name");
    Watches::of(&thread).notify_marks(&mark_change(event::OPEN, 5, b"name"));
    let next: Vec<_> = core::iter::from_fn(|| take_marked(&thread, group)).map(|event| event.mask).collect();
    assert_eq!(next, [event::OPEN | event::CLOSE_NOWRITE, event::OPEN], "an event that was read takes none in");
}

#[test]
fn no_event_is_lost_between_a_writer_that_unites_and_a_reader() {
    const FILES: u64 = 20_000;
    let fs = Attached::new();
    let reader = fs.enter().expect("enters");
    let group = marked(&reader, 0x200, 1);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let thread = fs.enter().expect("enters");
            for number in 2..FILES {
                for mask in [event::OPEN, event::ACCESS, event::CLOSE_NOWRITE] {
                    Watches::of(&thread).notify_marks(&mark_change(mask, number, b""));
                }
                // Fewer than the queue holds are on their way.
                while number % 4096 == 0
                    && Watches::of(&thread).mark_events_bytes((group, KEY)).is_ok_and(|(bytes, _)| bytes > 24 * 4096)
                {
                    std::thread::yield_now();
                }
            }
        });
        let mut seen = std::collections::BTreeMap::new();
        loop {
            let is_last = writer.is_finished();
            while let Some(event) = take_marked(&reader, group) {
                *seen.entry(event.object.number).or_insert(0) |= event.mask;
            }
            if is_last {
                break;
            }
        }
        assert_eq!(seen.remove(&0), None, "no overflow");
        assert_eq!(seen.len() as u64, FILES - 2);
        assert!(seen.values().all(|&mask| mask == event::OPEN | event::ACCESS | event::CLOSE_NOWRITE));
    });
}

#[test]
fn an_event_grows_until_its_reader_closes_it() {
    let fs = Attached::new();
    let thread = fs.enter().expect("enters");
    let group = marked(&thread, 0x200, 1);
    let notify = |mask| Watches::of(&thread).notify_marks(&mark_change(mask, 5, b""));
    let ring = Ring::new(Watches::of(&thread).tables().expect("tables"), group, KEY).expect("a ring");
    notify(event::OPEN);
    let record = ring.complete(0).expect("an event");
    // Between the reader's steps.
    notify(event::ACCESS);
    assert_eq!(ring.close(0), Some(event::OPEN | event::ACCESS), "the reader gets what came before it closed");
    notify(event::MODIFY);
    assert!(ring.advance(0, &record));
    assert_eq!(take_marked(&thread, group).map(|event| event.mask), Some(event::MODIFY), "what came later is new");
    assert_eq!(take_marked(&thread, group), None);
}

#[test]
fn an_event_whose_mask_is_overwritten_while_it_is_taken_is_reported_as_lost() {
    let fs = Attached::new();
    let thread = fs.enter().expect("enters");
    let group = marked(&thread, 0x200, 1);
    let tables = Watches::of(&thread).tables().expect("tables");
    let ring = Ring::new(tables, group, KEY).expect("a ring");
    for number in [5, 6] {
        Watches::of(&thread).notify_marks(&mark_change(event::OPEN, number, b""));
    }
    let record = ring.complete(0).expect("an event");
    // A writer of an earlier round was stopped before this store.
    let mask = &tables.cells[group as usize][0].words[1];
    let before = mask.swap(1 << 40, Relaxed);
    assert_eq!(ring.take(0, &record), None);
    let masks: Vec<_> = core::iter::from_fn(|| take_marked(&thread, group)).map(|event| event.mask).collect();
    assert_eq!(masks, [event::Q_OVERFLOW, event::OPEN], "the loss is told in its place");
    // Of two readers the one that was late loses nothing.
    mask.store(before, Relaxed);
    assert_eq!(ring.take(0, &record), None);
    assert_eq!(take_marked(&thread, group), None);
}

#[test]
fn renames_between_the_longest_names_pass_the_queue_many_times() {
    let fs = Attached::new();
    let thread = fs.enter().expect("enters");
    let group = marked(&thread, WITH_NAMES | 0x1000, 1);
    let (from, to) = ([b'f'; 255], [b't'; 255]);
    for number in 2..5000 {
        let moved_to = Some((FileId { number: 1, generation: 9 }, &to[..]));
        Watches::of(&thread).notify_marks(&MarkChange { moved_to, on: 1, ..mark_change(event::RENAME, number, &from) });
        let event = take_marked(&thread, group).expect("an event");
        assert_eq!((event.mask, event.object.number, event.moved_to.generation), (event::RENAME, number, 9));
        assert_eq!((&event.name(0)[..255], &event.name(1)[..255]), (&from[..], &to[..]));
    }
}
