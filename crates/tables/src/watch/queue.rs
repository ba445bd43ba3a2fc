//! Queues of events: one ring of cells per group, for any number of writers and readers, of which
//! each may stop or die at any instruction.
//!
//! An event takes one to eleven consecutive cells. A writer claims them by advancing the tail,
//! fills them, and marks the first one complete. A reader copies the first event and takes it by
//! advancing the head. If an event stays incomplete, its reader gives it up by the same mark.
//!
//! Invariants
//! - Positions only grow, also from one use of a group to the next.
//! - A writer that was stopped may store into cells that belong to a later event. So each event has
//!   a checksum over its position, the group's key and its content. A reader that finds another one
//!   reports lost events.
//! - As in Linux, an event of inotify that equals the last one in the queue is not added, and one
//!   of fanotify is united with an equal one. Its mask may thus grow until a reader closes it,
//!   which precedes the advance of the head. A tag of its position keeps late writers from other
//!   masks.
//! - A writer completes the event before it looks at `armed`; a reader clears `armed` before it
//!   looks at the queue. So an event that a reader misses makes the descriptor readable again.

use super::layout::{CELLS, Cell, Queue};
use super::{WatchTables, Watches, event};
use core::hint::spin_loop;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};
use engine::{Platform, Result};

/// Bytes of `struct inotify_event` without the name.
pub const EVENT_BYTES: usize = 16;
const NAME_WORDS: usize = 32;
/// Words of a cell, and those of an event that its first cell has beside the head and the mask.
const CELL_WORDS: usize = 7;
const FIRST_WORDS: usize = 5;
/// Cells of the longest event.
const EVENT_CELLS: usize = 11;
/// Words of the longest event.
pub(super) const RECORD_WORDS: usize = FIRST_WORDS + (EVENT_CELLS - 1) * CELL_WORDS;
/// Shift of the position in the tail.
const SHIFT: u32 = 4;
const TAIL_CELLS: u64 = (1 << SHIFT) - 1;
/// In the word of the mask: a reader takes the event.
const CLOSED: u64 = 1 << 63;
/// Queued events that a new event of fanotify is compared with.
const MERGE_LOOKS: u32 = 128;
/// Polls of an incomplete event before its reader sleeps: its writer has lost the processor.
const SPINS: u32 = 2000;
/// Sleeps of 1 ms before it gives up: its writer was stopped or killed between two stores.
const SLEEPS: u32 = 1000;
/// Sleeps of 1 ms before a reader no longer waits for threads that add events.
const WRITER_SLEEPS: u32 = 20;

/// An event as the queue holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    /// Bits of [`event`]. In the queue it may still grow.
    pub mask: u32,
    /// The rest, without zeros at the end.
    count: usize,
    words: [u64; RECORD_WORDS],
}

impl Record {
    pub fn new(mask: u32, words: &[u64]) -> Record {
        let mut record = Record { mask, count: 0, words: [0; RECORD_WORDS] };
        record.words[..words.len()].copy_from_slice(words);
        record.count = words.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1);
        record
    }

    /// All words, with zeros at the end.
    pub fn words(&self) -> &[u64; RECORD_WORDS] {
        &self.words
    }

    fn used(&self) -> &[u64] {
        &self.words[..self.count]
    }

    fn cells(&self) -> u64 {
        1 + self.count.saturating_sub(FIRST_WORDS).div_ceil(CELL_WORDS) as u64
    }

    /// The word of the first cell that certifies the event: a checksum, the cells of the event
    /// before it, and its length.
    fn head(&self, position: u64, key: u64, before: u64) -> u64 {
        let sum = self.used().iter().fold(mix(mix(0, position), key), |sum, &word| mix(sum, word));
        sum << 12 | before << 8 | self.count as u64
    }
}

fn mix(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

/// The high half of the word of the mask, of an event that no reader takes.
fn mask_tag(position: u64, key: u64) -> u64 {
    mix(mix(1, position), key) & !CLOSED & !0xffff_ffff
}

/// Which events a new one equals: then it is not added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Merge {
    /// inotify: only the last one, with the same mask.
    Last,
    /// fanotify: any, and the masks are united.
    Masks,
    /// None.
    Never,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchEvent {
    /// The watch; -1 for an overflow.
    pub watch: i32,
    /// Bits of [`event`].
    pub mask: u32,
    /// See [`super::Change`].
    pub cookie: u32,
    /// Bytes of the name.
    pub name_length: usize,
    name: [u64; NAME_WORDS],
}

/// A name in words, and its length.
pub(super) fn name_words(name: &[u8]) -> (usize, [u64; NAME_WORDS]) {
    let mut words = [0; NAME_WORDS];
    let name = &name[..name.len().min(255)];
    for (word, bytes) in words.iter_mut().zip(name.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    (name.len(), words)
}

/// The bytes of a name in words.
pub(super) fn name_bytes(words: &[u64; NAME_WORDS]) -> [u8; 8 * NAME_WORDS] {
    let mut bytes = [0; 8 * NAME_WORDS];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

impl WatchEvent {
    /// An event to be filled.
    pub fn none() -> WatchEvent {
        WatchEvent::new(0, 0, 0, b"")
    }

    pub(super) fn new(watch: i32, mask: u32, cookie: u32, name: &[u8]) -> WatchEvent {
        let (name_length, name) = name_words(name);
        WatchEvent { watch, mask, cookie, name_length, name }
    }

    pub(super) fn record(&self) -> Record {
        let mut words = [0; 1 + NAME_WORDS];
        words[0] = u64::from(self.watch as u32) | u64::from(self.cookie) << 32;
        words[1..].copy_from_slice(&self.name);
        Record::new(self.mask, &words)
    }

    fn of_record(record: &Record) -> WatchEvent {
        let mut name = [0; NAME_WORDS];
        name.copy_from_slice(&record.words[1..=NAME_WORDS]);
        let bytes = name_bytes(&name);
        let name_length = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()).min(255);
        let first = record.words[0];
        WatchEvent { watch: first as u32 as i32, mask: record.mask, cookie: (first >> 32) as u32, name_length, name }
    }

    /// The name's bytes, followed by zeros.
    pub fn name(&self) -> [u8; 8 * NAME_WORDS] {
        name_bytes(&self.name)
    }

    /// Bytes of the name field: the name with at least one zero byte, in units of an event.
    pub fn name_field_bytes(&self) -> usize {
        if self.name_length == 0 { 0 } else { (self.name_length + 1).next_multiple_of(EVENT_BYTES) }
    }

    /// Bytes of the event as a program reads it.
    pub fn bytes(&self) -> usize {
        EVENT_BYTES + self.name_field_bytes()
    }
}

/// The ring of a group.
#[derive(Clone, Copy)]
pub(super) struct Ring<'f> {
    pub queue: &'f Queue,
    cells: &'f [Cell; CELLS],
    key: u64,
}

impl<'f> Ring<'f> {
    /// The ring of a group with that key; `None`: the group has another one by now.
    pub fn new(tables: &'f WatchTables, group: u32, key: u64) -> Option<Ring<'f>> {
        let (queue, cells) = (tables.queues.get(group as usize)?, tables.cells.get(group as usize)?);
        (tables.keys.get(group as usize)?.load(SeqCst) == key).then_some(Ring { queue, cells, key })
    }

    fn cell(&self, position: u64) -> &'f Cell {
        &self.cells[position as usize % CELLS]
    }

    /// The words of an event, from its first cell on.
    fn words(&self, position: u64) -> impl Iterator<Item = &'f AtomicU64> {
        let (cells, first) = (self.cells, self.cell(position));
        let more = (1..EVENT_CELLS).flat_map(move |cell| &cells[(position as usize + cell) % CELLS].words);
        first.words[CELL_WORDS - FIRST_WORDS..].iter().chain(more)
    }

    /// Whether a queued event takes a new one in. `Err`: the cells of the event before it, if that
    /// is known.
    fn takes_in(&self, position: u64, record: &Record, merge: Merge) -> core::result::Result<(), Option<u64>> {
        /// Events of fanotify with different ones of these bits stay apart.
        const APART: u32 = event::IS_DIRECTORY | event::RENAME | event::Q_OVERFLOW;
        let cell = self.cell(position);
        if cell.sequence.load(SeqCst) != 2 * position + 1 {
            return Err(None);
        }
        let (head, mask) = (cell.words[0].load(Relaxed), &cell.words[1]);
        let before = head >> 8 & TAIL_CELLS;
        let others = self.words(position).take(record.count).map(|word| word.load(Relaxed));
        // Of inotify's first word the cookie does not count.
        let differ = |(index, (one, other)): (usize, (&u64, u64))| match merge {
            Merge::Last if index == 0 => *one as u32 != other as u32,
            _ => *one != other,
        };
        let is_equal = head & 0xff == record.count as u64 && !record.used().iter().zip(others).enumerate().any(differ);
        let tag = mask_tag(position, self.key);
        let unite = |old: u64| {
            let open = old & !0xffff_ffff == tag;
            let alike = match merge {
                Merge::Last => old as u32 == record.mask,
                _ => (old as u32 ^ record.mask) & APART == 0,
            };
            (open && alike).then_some(old | u64::from(record.mask))
        };
        match is_equal && mask.fetch_update(SeqCst, SeqCst, unite).is_ok() {
            true => Ok(()),
            false => Err(Some(before)),
        }
    }

    /// Whether a queued event takes a new one in.
    fn merges(&self, tail: u64, record: &Record, merge: Merge) -> bool {
        let looks = match merge {
            Merge::Never => 0,
            Merge::Last => 1,
            Merge::Masks => MERGE_LOOKS,
        };
        let (mut position, mut cells) = (tail >> SHIFT, tail & TAIL_CELLS);
        for _ in 0..looks {
            // Cells that another process has overwritten may name any length.
            let Some(before) = position.checked_sub(cells).filter(|_| cells != 0) else { return false };
            if self.queue.head.load(SeqCst) > before {
                return false;
            }
            position = before;
            match self.takes_in(position, record, merge) {
                Ok(()) => return true,
                Err(Some(before)) => cells = before,
                Err(None) => return false,
            }
        }
        false
    }

    /// Adds an event. Returns false if it was lost.
    pub fn add(&self, record: &Record, merge: Merge) -> bool {
        let cells = record.cells();
        let mut tail = self.queue.tail.load(SeqCst);
        let position = loop {
            if self.merges(tail, record, merge) {
                return true;
            }
            let position = tail >> SHIFT;
            // The head may be further than a tail that was read long ago: then the exchange fails.
            if (position + cells).saturating_sub(self.queue.head.load(SeqCst)) > CELLS as u64 {
                self.lose(position);
                return false;
            }
            match self.queue.tail.compare_exchange(tail, (position + cells) << SHIFT | cells, SeqCst, SeqCst) {
                Ok(_) => break position,
                Err(now) => tail = now,
            }
        };
        let cell = self.cell(position);
        cell.words[0].store(record.head(position, self.key, tail & TAIL_CELLS), Relaxed);
        cell.words[1].store(mask_tag(position, self.key) | u64::from(record.mask), Relaxed);
        for (word, &value) in self.words(position).zip(record.used()) {
            word.store(value, Relaxed);
        }
        let is_complete = self.mark(position, 2 * position + 1);
        if !is_complete {
            self.lose(position);
        }
        is_complete
    }

    /// Marks the event at a position, unless it has a mark.
    fn mark(&self, position: u64, mark: u64) -> bool {
        let newer = |seen: u64| (seen <= 2 * position).then_some(mark);
        self.cell(position).sequence.fetch_update(SeqCst, SeqCst, newer).is_ok()
    }

    fn lose(&self, position: u64) {
        let _ = self.queue.overflow.compare_exchange(0, position + 1, SeqCst, SeqCst);
    }

    /// The event at a position, if it is complete.
    pub(super) fn complete(&self, position: u64) -> Option<Record> {
        let cell = self.cell(position);
        if cell.sequence.load(SeqCst) != 2 * position + 1 {
            return None;
        }
        let [head, mask] = [0, 1].map(|index| cell.words[index].load(Relaxed));
        let count = (head & 0xff) as usize;
        if count > RECORD_WORDS || mask & !CLOSED & !0xffff_ffff != mask_tag(position, self.key) {
            return None;
        }
        let mut record = Record { mask: mask as u32, count, words: [0; RECORD_WORDS] };
        for (into, word) in record.words.iter_mut().zip(self.words(position)).take(count) {
            *into = word.load(Relaxed);
        }
        (record.head(position, self.key, head >> 8 & TAIL_CELLS) == head).then_some(record)
    }

    /// Takes the event at the head. `None`: another reader did, or a late writer has overwritten
    /// its mask since it was complete. Then it counts as lost.
    pub(super) fn take(&self, position: u64, record: &Record) -> Option<u32> {
        // In this order: until the head moves, the cells are this event's.
        let mask = self.close(position);
        if !self.advance(position, record) {
            return None;
        }
        if mask.is_none() {
            self.lose(position + record.cells());
        }
        mask
    }

    /// Lets the event at the head take no other in; returns its mask.
    pub(super) fn close(&self, position: u64) -> Option<u32> {
        let mask = self.cell(position).words[1].fetch_update(SeqCst, SeqCst, |mask| {
            (mask & !CLOSED & !0xffff_ffff == mask_tag(position, self.key)).then_some(mask | CLOSED)
        });
        mask.ok().map(|mask| mask as u32)
    }

    /// Moves the head behind its event, unless another reader has.
    pub(super) fn advance(&self, position: u64, record: &Record) -> bool {
        self.queue.head.compare_exchange(position, position + record.cells(), SeqCst, SeqCst).is_ok()
    }

    pub fn is_empty(&self) -> bool {
        let head = self.queue.head.load(SeqCst);
        self.queue.overflow.load(SeqCst) == 0 && head >= self.queue.tail.load(SeqCst) >> SHIFT
    }

    /// Forgets all events: another group begins.
    pub fn discard(&self) {
        self.queue.head.store(self.queue.tail.load(SeqCst) >> SHIFT, SeqCst);
        self.queue.overflow.store(0, SeqCst);
        self.queue.armed.fetch_and(!1, SeqCst);
    }

    /// Gives up the incomplete events at the head.
    fn skip(&self, head: u64) {
        let tail = self.queue.tail.load(SeqCst) >> SHIFT;
        if !self.mark(head, 2 * head + 2) && self.complete(head).is_some() {
            return;
        }
        let next = (head + 1..tail).find(|&position| self.complete(position).is_some()).unwrap_or(tail);
        self.lose(next);
        let _ = self.queue.head.compare_exchange(head, next, SeqCst, SeqCst);
    }

    /// The event at a position, after a wait for its writer.
    fn wait_for(&self, platform: &dyn Platform, position: u64) -> Option<Record> {
        for round in 0..SPINS + SLEEPS {
            if let Some(event) = self.complete(position) {
                return Some(event);
            }
            if self.queue.head.load(SeqCst) != position {
                return None;
            }
            match round < SPINS {
                true => spin_loop(),
                false => platform.wait(&AtomicU32::new(0), 0, 1),
            }
        }
        None
    }
}

/// The result of a read from a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// There is no event.
    Empty,
    /// The first event needs more room.
    TooLong,
    /// The first event, which is no longer in the queue.
    Event,
}

impl Watches<'_> {
    /// Adds events, and makes the kernel's descriptor of the group readable.
    pub(super) fn add_events(self, group: u32, ring: &Ring<'_>, events: [Option<WatchEvent>; 2]) {
        let merge_of = |mask| if mask & event::IGNORED == 0 { Merge::Last } else { Merge::Never };
        self.add_records(group, ring, events.iter().flatten().map(|event| (event.record(), merge_of(event.mask))));
    }

    /// See [`Watches::add_events`].
    pub(super) fn add_records(self, group: u32, ring: &Ring<'_>, records: impl Iterator<Item = (Record, Merge)>) {
        let writers = &ring.queue.writers;
        writers.fetch_add(1, SeqCst);
        for (record, merge) in records {
            ring.add(&record, merge);
        }
        self.wake_group(group, ring.queue);
        // A reader that waited long has taken this thread for dead.
        let _ = writers.fetch_update(SeqCst, Relaxed, |count| count.checked_sub(1));
    }

    /// Whether all events of a group were taken, after a wait for threads that may be about to make
    /// the kernel's descriptor readable for them.
    pub fn is_drained(self, group: u32, key: u64) -> Result<bool> {
        let Some(ring) = Ring::new(self.tables()?, group, key) else { return Ok(false) };
        let writers = &ring.queue.writers;
        for round in 0..SPINS + WRITER_SLEEPS {
            if !ring.is_empty() || writers.load(SeqCst) == 0 {
                return Ok(ring.is_empty());
            }
            match round < SPINS {
                true => spin_loop(),
                false => self.by.platform.wait(&AtomicU32::new(0), 0, 1),
            }
        }
        // They were stopped or killed.
        writers.store(0, SeqCst);
        Ok(ring.is_empty())
    }

    /// Takes the first event of a group, if it has at most `room` bytes.
    pub fn take_watch_event(self, group: u32, key: u64, room: usize, into: &mut WatchEvent) -> Result<Taken> {
        let fits = |record: &Record| WatchEvent::of_record(record).bytes() <= room;
        let mut record = WatchEvent::new(-1, event::Q_OVERFLOW, 0, b"").record();
        let taken = self.take_record((group, key), fits, &mut record)?;
        *into = WatchEvent::of_record(&record);
        Ok(taken)
    }

    /// Takes the first event of a group, if it fits. `record`: that of an overflow.
    pub(super) fn take_record(
        self,
        (group, key): (u32, u64),
        fits: impl Fn(&Record) -> bool,
        record: &mut Record,
    ) -> Result<Taken> {
        let Some(ring) = Ring::new(self.tables()?, group, key) else { return Ok(Taken::Empty) };
        loop {
            let queue = ring.queue;
            let (lost, head) = (queue.overflow.load(SeqCst), queue.head.load(SeqCst));
            if lost != 0 && head + 1 >= lost {
                if !fits(record) {
                    return Ok(Taken::TooLong);
                }
                if queue.overflow.compare_exchange(lost, 0, SeqCst, SeqCst).is_ok() {
                    return Ok(Taken::Event);
                }
                continue;
            }
            if head >= queue.tail.load(SeqCst) >> SHIFT {
                return Ok(Taken::Empty);
            }
            let Some(event) = ring.wait_for(self.by.platform, head) else {
                if queue.head.load(SeqCst) == head {
                    ring.skip(head);
                }
                continue;
            };
            if !fits(&event) {
                return Ok(Taken::TooLong);
            }
            if let Some(mask) = ring.take(head, &event) {
                *record = Record { mask, ..event };
                return Ok(Taken::Event);
            }
        }
    }

    /// Bytes of the events of a group as a program reads them (FIONREAD), and whether the kernel's
    /// descriptor has one event more than the program gets.
    pub fn watch_events_bytes(self, group: u32, key: u64) -> Result<(usize, bool)> {
        self.events_bytes((group, key), EVENT_BYTES, |event| WatchEvent::of_record(event).bytes())
    }

    pub(super) fn events_bytes(
        self,
        (group, key): (u32, u64),
        overflow: usize,
        bytes_of: impl Fn(&Record) -> usize,
    ) -> Result<(usize, bool)> {
        let Some(ring) = Ring::new(self.tables()?, group, key) else { return Ok((0, false)) };
        let mut bytes = if ring.queue.overflow.load(SeqCst) == 0 { 0 } else { overflow };
        let (mut position, tail) = (ring.queue.head.load(SeqCst), ring.queue.tail.load(SeqCst) >> SHIFT);
        while position < tail {
            let Some(event) = ring.complete(position) else { break };
            bytes += bytes_of(&event);
            position += event.cells();
        }
        Ok((bytes, ring.queue.armed.load(SeqCst) & 1 == 1))
    }

    /// A reader is about to empty the kernel's descriptor of a group.
    pub fn disarm_group(self, group: u32, key: u64) -> Result<()> {
        if let Some(ring) = Ring::new(self.tables()?, group, key) {
            let next = |armed: u64| Some((armed | 1) + 1);
            let _ = ring.queue.armed.fetch_update(SeqCst, SeqCst, next);
        }
        Ok(())
    }

    /// A reader is done: makes the kernel's descriptor of a group readable again if events are
    /// left. Returns whether there are none.
    pub fn rearm_group(self, group: u32, key: u64) -> Result<bool> {
        let Some(ring) = Ring::new(self.tables()?, group, key) else { return Ok(true) };
        let is_empty = ring.is_empty();
        if !is_empty {
            self.wake_group(group, ring.queue);
        }
        Ok(is_empty)
    }
}
