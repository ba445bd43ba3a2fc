use super::queue::{Ring, Taken, WatchEvent};
use super::{Change, FileId, MarkChange, MarkEvent, MarkFlags, NewMark, NewWatch, event};
use crate::error::Error;
use crate::testing::{Attached, new_image};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};
use std::vec::Vec;

const KEY: u64 = 7;

fn change<'n>(number: u64, mask: u32, name: &'n [u8]) -> Change<'n> {
    Change { number, mask, cookie: 0, name, unlinked: false }
}

fn name_of(event: &WatchEvent) -> Vec<u8> {
    event.name()[..event.name_length].to_vec()
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
    let image = new_image(4 << 20, 0);
    let fs = Attached::new(&image).expect("attaches");
    let reader = fs.enter().expect("enters");
    let group = reader.watches().make_watch_group(KEY, 0).expect("a group");
    let new = NewWatch { group: (group, KEY), number: 1, mask: event::CREATE, limit: 10 };
    let watch = reader.watches().add_watch(&new).expect("a watch");
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
                    let name = std::format!("{writer}-{round}-{}", "x".repeat(round * 7 % 200));
                    thread.watches().notify_watches(&change(1, event::CREATE, name.as_bytes()));
                }
            });
        }
        let (mut next, mut event, mut count) = ([0; WRITERS], WatchEvent::none(), 0);
        while count < WRITERS * EACH {
            if reader.watches().take_watch_event(group, KEY, 4096, &mut event) != Ok(Taken::Event) {
                assert!(!failed.load(Relaxed), "a writer failed");
                std::thread::yield_now();
                continue;
            }
            assert_eq!((event.watch, event.mask), (watch, event::CREATE), "nothing is lost");
            let name = std::string::String::from_utf8(name_of(&event)).expect("as it was sent");
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
fn watched(thread: &crate::Thread<'_>, key: u64, mask: u32) -> (u32, i32) {
    let group = thread.watches().make_watch_group(key, 0).expect("a group");
    let new = NewWatch { group: (group, key), number: 1, mask, limit: 1000 };
    (group, thread.watches().add_watch(&new).expect("a watch"))
}

fn take_all(thread: &crate::Thread<'_>, group: u32, key: u64) -> Vec<(i32, u32, Vec<u8>)> {
    let (mut all, mut event) = (Vec::new(), WatchEvent::none());
    while thread.watches().take_watch_event(group, key, 4096, &mut event) == Ok(Taken::Event) {
        all.push((event.watch, event.mask, name_of(&event)));
    }
    all
}

#[test]
fn a_full_queue_loses_events_and_says_so_once() {
    let image = new_image(4 << 20, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let (group, watch) = watched(&thread, KEY, event::ALL);
    for round in 0..20_000u32 {
        thread.watches().notify_watches(&change(1, event::CREATE, std::format!("{round}").as_bytes()));
    }
    let events = take_all(&thread, group, KEY);
    assert_eq!(events.len(), super::layout::CELLS + 1);
    assert_eq!(events[super::layout::CELLS], (-1, event::Q_OVERFLOW, b"".to_vec()));
    thread.watches().notify_watches(&change(1, event::DELETE, b"later"));
    assert_eq!(take_all(&thread, group, KEY), [(watch, event::DELETE, b"later".to_vec())]);
}

#[test]
fn an_event_that_repeats_the_last_unread_one_is_not_added() {
    let image = new_image(4 << 20, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let (group, _) = watched(&thread, KEY, event::ALL);
    for name in [b"a", b"a", b"b", b"a"] {
        thread.watches().notify_watches(&change(1, event::MODIFY, name));
    }
    assert_eq!(take_all(&thread, group, KEY).len(), 3);
    thread.watches().notify_watches(&change(1, event::MODIFY, b"a"));
    assert_eq!(take_all(&thread, group, KEY).len(), 1, "the last one was read");
}

#[test]
fn watches_that_end_leave_no_mark_behind() {
    let image = new_image(4 << 20, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    assert!(!fs.is_watched());
    let (group, watch) = watched(&thread, KEY, event::OPEN | event::ONESHOT);
    assert!(fs.is_watched());
    let again = NewWatch { group: (group, KEY), number: 1, mask: event::OPEN | event::MASK_CREATE, limit: 1000 };
    assert_eq!(thread.watches().add_watch(&again), Err(Error::Exists));
    for _ in 0..2 {
        thread.watches().notify_watches(&change(1, event::OPEN, b""));
    }
    assert_eq!(take_all(&thread, group, KEY), [(watch, event::OPEN, Vec::new()), (watch, event::IGNORED, Vec::new())]);
    assert_eq!(thread.watches().remove_watch((group, KEY), watch), Err(Error::NotFound));
    thread.watches().sweep_watches().expect("sweeps");
    assert!(!fs.is_watched());
    // An ended file, a removed watch, and a removed group.
    watched(&thread, KEY, event::DELETE_SELF);
    thread.watches().end_watches(1);
    let events = take_all(&thread, group, KEY);
    assert_eq!(events.iter().map(|event| event.1).collect::<Vec<_>>(), [event::DELETE_SELF, event::IGNORED]);
    let (_, watch) = watched(&thread, KEY, event::ALL);
    thread.watches().remove_watch((group, KEY), watch).expect("it exists");
    assert!(!fs.is_watched());
    watched(&thread, KEY, event::ALL);
    let (other, _) = watched(&thread, KEY + 1, event::ALL);
    thread.watches().remove_watch_group(KEY).expect("it exists");
    assert_eq!(thread.watches().watch_group(KEY), None);
    assert!(fs.is_watched(), "the other group's watch is left");
    thread.watches().remove_watch_group(KEY + 1).expect("it exists");
    assert!(!fs.is_watched());
    thread.watches().notify_watches(&change(1, event::OPEN, b""));
    assert_eq!(take_all(&thread, other, KEY + 1), []);
}

#[test]
fn limits_of_watches_and_groups_are_errors() {
    let image = new_image(4 << 20, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let group = thread.watches().make_watch_group(KEY, 5).expect("a group");
    let add =
        |number| thread.watches().add_watch(&NewWatch { group: (group, KEY), number, mask: event::ALL, limit: 3 });
    let numbers: Vec<_> = (1..=3).map(|number| add(number).expect("below the limit")).collect();
    assert_eq!(add(4), Err(Error::NoSpace));
    assert_eq!(add(2), Ok(numbers[1]), "a change of a watch");
    thread.watches().remove_watch((group, KEY), numbers[0]).expect("it exists");
    assert!(!numbers.contains(&add(4).expect("room again")), "numbers are not reused at once");
    for key in KEY + 1..KEY + u64::from(super::GROUPS_MAX) {
        thread.watches().make_watch_group(key, 5).expect("a group");
    }
    assert_eq!(thread.watches().make_watch_group(1000, 5), Err(Error::NoSpace));
}

#[test]
fn an_event_that_its_writer_left_incomplete_is_given_up() {
    let image = new_image(4 << 20, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let (group, watch) = watched(&thread, KEY, event::ALL);
    let queue = &thread.watches().watch_tables().expect("tables").queues[group as usize];
    // A writer that died after it claimed two cells.
    queue.tail.store(2 << 4 | 2, core::sync::atomic::Ordering::SeqCst);
    thread.watches().notify_watches(&change(1, event::OPEN, b""));
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

/// A group with a mark on directory 1 and its files.
fn marked(thread: &crate::Thread<'_>, flags: u32) -> u32 {
    let group = thread.watches().make_mark_group(KEY, 0, flags, 0).expect("a group");
    let mask = event::ALL | event::RENAME | event::ON_CHILD;
    let mark = NewMark { group: (group, KEY), number: 1, mask, kept: 0, flags: MarkFlags(1), limit: 9 };
    thread.watches().add_mark(&mark).expect("a mark");
    group
}

fn take_marked(thread: &crate::Thread<'_>, group: u32) -> Option<MarkEvent> {
    let mut event = MarkEvent::none();
    let taken = thread.watches().take_mark_event((group, KEY), |_| true, &mut event).expect("tables");
    (taken == Taken::Event).then_some(event)
}

#[test]
fn equal_events_of_marks_are_united_until_they_are_read() {
    let image = new_image(4 << 20, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let group = marked(&thread, WITH_NAMES);
    for (mask, number) in [(event::OPEN, 5), (event::OPEN, 6), (event::ACCESS, 5), (event::CLOSE_NOWRITE, 6)] {
        thread.watches().notify_marks(&mark_change(mask, number, b"name"));
    }
    let first = take_marked(&thread, group).expect("an event");
    assert_eq!((first.mask, first.object.number), (event::OPEN | event::ACCESS, 5));
    assert_eq!(&first.name(0)[..first.name_lengths[0]], b"name");
    thread.watches().notify_marks(&mark_change(event::OPEN, 5, b"name"));
    let next: Vec<_> = core::iter::from_fn(|| take_marked(&thread, group)).map(|event| event.mask).collect();
    assert_eq!(next, [event::OPEN | event::CLOSE_NOWRITE, event::OPEN], "an event that was read takes none in");
}

#[test]
fn no_event_is_lost_between_a_writer_that_unites_and_a_reader() {
    const FILES: u64 = 20_000;
    let image = new_image(4 << 20, 0);
    let fs = Attached::new(&image).expect("attaches");
    let reader = fs.enter().expect("enters");
    let group = marked(&reader, 0x200);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let thread = fs.enter().expect("enters");
            for number in 2..FILES {
                for mask in [event::OPEN, event::ACCESS, event::CLOSE_NOWRITE] {
                    thread.watches().notify_marks(&mark_change(mask, number, b""));
                }
                // Fewer than the queue holds are on their way.
                while number % 4096 == 0
                    && thread.watches().mark_events_bytes((group, KEY)).is_ok_and(|(bytes, _)| bytes > 24 * 4096)
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
    let image = new_image(4 << 20, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let group = marked(&thread, 0x200);
    let notify = |mask| thread.watches().notify_marks(&mark_change(mask, 5, b""));
    let ring = Ring::new(thread.watches().watch_tables().expect("tables"), group, KEY).expect("a ring");
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
    let image = new_image(4 << 20, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let group = marked(&thread, 0x200);
    let tables = thread.watches().watch_tables().expect("tables");
    let ring = Ring::new(tables, group, KEY).expect("a ring");
    for number in [5, 6] {
        thread.watches().notify_marks(&mark_change(event::OPEN, number, b""));
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
    let image = new_image(4 << 20, 0);
    let fs = Attached::new(&image).expect("attaches");
    let thread = fs.enter().expect("enters");
    let group = marked(&thread, WITH_NAMES | 0x1000);
    let (from, to) = ([b'f'; 255], [b't'; 255]);
    for number in 2..5000 {
        let moved_to = Some((FileId { number: 1, generation: 9 }, &to[..]));
        thread.watches().notify_marks(&MarkChange { moved_to, on: 1, ..mark_change(event::RENAME, number, &from) });
        let event = take_marked(&thread, group).expect("an event");
        assert_eq!((event.mask, event.object.number, event.moved_to.generation), (event::RENAME, number, 9));
        assert_eq!((&event.name(0)[..255], &event.name(1)[..255]), (&from[..], &to[..]));
    }
}
