//! Queues of events: one ring of cells per group, for any number of writers and readers, of which
//! each may stop or die at any instruction.
//!
//! An event takes one to five consecutive cells. A writer claims them by advancing the tail, fills
//! them, and marks the first one complete. A reader copies the first event and takes it by
//! advancing the head. If an event stays incomplete, its reader gives it up by the same mark.
//!
//! Invariants
//! - Positions only grow, also from one use of a group to the next.
//! - A writer that was stopped may store into cells that belong to a later event. So each event has
//!   a checksum over its position, the group's key and its content. A reader that finds another one
//!   reports lost events.
//! - As in Linux, an event that equals the last one in the queue is not added.
//! - A writer completes the event before it looks at `armed`; a reader clears `armed` before it
//!   looks at the queue. So an event that a reader misses makes the descriptor readable again.

use super::layout::{CELLS, Cell, Queue};
use super::{WatchTables, event};
use crate::components::Watches;
use crate::error::Result;
use crate::fs::Thread;
use crate::sync::{AtomicU64, spin_loop};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use pmem::Memory;

/// Bytes of `struct inotify_event` without the name.
pub const EVENT_BYTES: usize = 16;
const NAME_WORDS: usize = 32;
/// Words of the name in the first cell, and in the others.
const FIRST_WORDS: usize = 4;
const MORE_WORDS: usize = 7;
/// Shift of the position in the tail.
const SHIFT: u32 = 3;
/// Polls of an incomplete event before its reader sleeps: its writer has lost the processor.
const SPINS: u32 = 2000;
/// Sleeps of 1 ms before it gives up: its writer was stopped or killed between two stores.
const SLEEPS: u32 = 1000;
/// Sleeps of 1 ms before a reader no longer waits for threads that add events.
const WRITER_SLEEPS: u32 = 20;

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

impl WatchEvent {
    /// An event to be filled.
    pub fn none() -> WatchEvent {
        WatchEvent::new(0, 0, 0, b"")
    }

    pub(super) fn new(watch: i32, mask: u32, cookie: u32, name: &[u8]) -> WatchEvent {
        let mut words = [0; NAME_WORDS];
        let name = &name[..name.len().min(255)];
        for (word, bytes) in words.iter_mut().zip(name.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        WatchEvent { watch, mask, cookie, name_length: name.len(), name: words }
    }

    /// The name's bytes, followed by zeros.
    pub fn name(&self) -> [u8; 8 * NAME_WORDS] {
        let mut bytes = [0; 8 * NAME_WORDS];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(self.name) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Bytes of the name field: the name with at least one zero byte, in units of an event.
    pub fn name_field_bytes(&self) -> usize {
        if self.name_length == 0 { 0 } else { (self.name_length + 1).next_multiple_of(EVENT_BYTES) }
    }

    /// Bytes of the event as a program reads it.
    pub fn bytes(&self) -> usize {
        EVENT_BYTES + self.name_field_bytes()
    }

    fn cells(&self) -> u64 {
        1 + self.name_length.saturating_sub(8 * FIRST_WORDS).div_ceil(8 * MORE_WORDS) as u64
    }

    fn words(&self) -> [u64; 2] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [pair(self.watch as u32, self.mask), pair(self.cookie, self.name_length as u32)]
    }

    fn checksum(&self, position: u64, key: u64) -> u64 {
        let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        [position, key].into_iter().chain(self.words()).chain(self.name).fold(0, mix)
    }

    /// Whether Linux would merge it with an earlier one: cookies do not count.
    fn repeats(&self, other: &WatchEvent) -> bool {
        self.mask & event::IGNORED == 0 && WatchEvent { cookie: other.cookie, ..*self } == *other
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

    fn name_words(&self, position: u64) -> impl Iterator<Item = &'f AtomicU64> {
        let (cells, first) = (self.cells, self.cell(position));
        let more = (1..5).flat_map(move |cell| &cells[(position as usize + cell) % CELLS].words);
        first.words[3..].iter().chain(more)
    }

    /// Adds an event. Returns false if it was lost.
    pub fn add(&self, event: &WatchEvent) -> bool {
        let cells = event.cells();
        let mut tail = self.queue.tail.load(SeqCst);
        let position = loop {
            let position = tail >> SHIFT;
            let last = position.wrapping_sub(tail & 7);
            if self.complete(last).is_some_and(|last| event.repeats(&last)) && self.queue.head.load(SeqCst) <= last {
                return true;
            }
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
        for (word, value) in cell.words.iter().zip(event.words()) {
            word.store(value, Relaxed);
        }
        cell.words[2].store(event.checksum(position, self.key), Relaxed);
        let used = event.name_length.div_ceil(8);
        for (word, value) in self.name_words(position).zip(event.name).take(used) {
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
    fn complete(&self, position: u64) -> Option<WatchEvent> {
        let cell = self.cell(position);
        if cell.sequence.load(SeqCst) != 2 * position + 1 {
            return None;
        }
        let [first, second, check] = [0, 1, 2].map(|index| cell.words[index].load(Relaxed));
        let name_length = (second >> 32) as usize;
        let mut name = [0; NAME_WORDS];
        let used = name_length.min(255).div_ceil(8);
        for (into, word) in name.iter_mut().zip(self.name_words(position)).take(used) {
            *into = word.load(Relaxed);
        }
        let (watch, mask, cookie) = (first as u32 as i32, (first >> 32) as u32, second as u32);
        let event = WatchEvent { watch, mask, cookie, name_length, name };
        (name_length <= 255 && event.checksum(position, self.key) == check).then_some(event)
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
    fn wait_for<M: Memory>(&self, thread: &Thread<'_, M>, position: u64) -> Option<WatchEvent> {
        for round in 0..SPINS + SLEEPS {
            if let Some(event) = self.complete(position) {
                return Some(event);
            }
            if self.queue.head.load(SeqCst) != position {
                return None;
            }
            match round < SPINS {
                true => spin_loop(),
                false => thread.fs.platform.wait(&crate::sync::AtomicU32::new(0), 0, 1),
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

impl<M: Memory> Watches<'_, '_, M> {
    /// Adds events, and makes the kernel's descriptor of the group readable.
    pub(super) fn add_events(self, group: u32, ring: &Ring<'_>, events: [Option<WatchEvent>; 2]) {
        let writers = &ring.queue.writers;
        writers.fetch_add(1, SeqCst);
        for event in events.iter().flatten() {
            ring.add(event);
        }
        self.wake_group(group, ring.queue);
        // A reader that waited long has taken this thread for dead.
        let _ = writers.fetch_update(SeqCst, Relaxed, |count| count.checked_sub(1));
    }

    /// Whether all events of a group were taken, after a wait for threads that may be about to make
    /// the kernel's descriptor readable for them.
    pub fn is_drained(self, group: u32, key: u64) -> Result<bool> {
        let Some(ring) = Ring::new(self.watch_tables()?, group, key) else { return Ok(false) };
        let writers = &ring.queue.writers;
        for round in 0..SPINS + WRITER_SLEEPS {
            if !ring.is_empty() || writers.load(SeqCst) == 0 {
                return Ok(ring.is_empty());
            }
            match round < SPINS {
                true => spin_loop(),
                false => self.fs.platform.wait(&crate::sync::AtomicU32::new(0), 0, 1),
            }
        }
        // They were stopped or killed.
        writers.store(0, SeqCst);
        Ok(ring.is_empty())
    }

    /// Takes the first event of a group, if it has at most `room` bytes.
    pub fn take_watch_event(self, group: u32, key: u64, room: usize, into: &mut WatchEvent) -> Result<Taken> {
        let Some(ring) = Ring::new(self.watch_tables()?, group, key) else { return Ok(Taken::Empty) };
        loop {
            let queue = ring.queue;
            let (lost, head) = (queue.overflow.load(SeqCst), queue.head.load(SeqCst));
            if lost != 0 && head + 1 >= lost {
                if room < EVENT_BYTES {
                    return Ok(Taken::TooLong);
                }
                if queue.overflow.compare_exchange(lost, 0, SeqCst, SeqCst).is_ok() {
                    *into = WatchEvent::new(-1, event::Q_OVERFLOW, 0, b"");
                    return Ok(Taken::Event);
                }
                continue;
            }
            if head >= queue.tail.load(SeqCst) >> SHIFT {
                return Ok(Taken::Empty);
            }
            let Some(event) = ring.wait_for(self.0, head) else {
                if queue.head.load(SeqCst) == head {
                    ring.skip(head);
                }
                continue;
            };
            if event.bytes() > room {
                return Ok(Taken::TooLong);
            }
            if queue.head.compare_exchange(head, head + event.cells(), SeqCst, SeqCst).is_ok() {
                *into = event;
                return Ok(Taken::Event);
            }
        }
    }

    /// Bytes of the events of a group as a program reads them (FIONREAD), and whether the kernel's
    /// descriptor has one event more than the program gets.
    pub fn watch_events_bytes(self, group: u32, key: u64) -> Result<(usize, bool)> {
        let Some(ring) = Ring::new(self.watch_tables()?, group, key) else { return Ok((0, false)) };
        let mut bytes = if ring.queue.overflow.load(SeqCst) == 0 { 0 } else { EVENT_BYTES };
        let (mut position, tail) = (ring.queue.head.load(SeqCst), ring.queue.tail.load(SeqCst) >> SHIFT);
        while position < tail {
            let Some(event) = ring.complete(position) else { break };
            bytes += event.bytes();
            position += event.cells();
        }
        Ok((bytes, ring.queue.armed.load(SeqCst) & 1 == 1))
    }

    /// A reader is about to empty the kernel's descriptor of a group.
    pub fn disarm_group(self, group: u32, key: u64) -> Result<()> {
        if let Some(ring) = Ring::new(self.watch_tables()?, group, key) {
            let next = |armed: u64| Some((armed | 1) + 1);
            let _ = ring.queue.armed.fetch_update(SeqCst, SeqCst, next);
        }
        Ok(())
    }

    /// A reader is done: makes the kernel's descriptor of a group readable again if events are
    /// left. Returns whether there are none.
    pub fn rearm_group(self, group: u32, key: u64) -> Result<bool> {
        let Some(ring) = Ring::new(self.watch_tables()?, group, key) else { return Ok(true) };
        let is_empty = ring.is_empty();
        if !is_empty {
            self.wake_group(group, ring.queue);
        }
        Ok(is_empty)
    }
}
