//! The model: processors with private caches over shared memory, in virtual time.
//!
//! A line is in one cache for writing, in any number of caches for reading, or in none (MESI
//! without the difference between exclusive and modified). Costs:
//!
//! - Fetching a line from another processor's cache, or invalidating it in others, costs a
//!   *transfer*. A line makes one transfer for writing at a time, so processors that write one line
//!   queue for it. Readers of an unmodified line are served concurrently.
//! - A store does not wait for its line: it enters a buffer that drains in order. A locked
//!   instruction and a fence wait until the buffer is empty.
//! - A line that belongs to one call comes from memory, in the same time for all systems. Under a
//!   lock, the waiters wait for that, too.
//! - Everything else takes the same time as on one processor.
//!
//! Locks: waiters get a lock in order of arrival, and a handover takes the time of one between two
//! threads. A waiter spins at no cost to others, however many there are, and never sleeps. That is
//! the best possible lock, so the model errs in favour of systems with locks.
//!
//! Not modelled: full store buffers, memory bandwidth, distances (two sockets), failed and repeated
//! exchanges, optimistic readers that retry.

use super::events::{Event, EventKind, LINE_BYTES, LockMode};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// Maximum number of processors: a bit each in a word.
pub const PROCESSORS_MAX: usize = 64;

/// Costs in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// An instruction, averaged over an operation, with its share of misses in the nearest cache.
    pub instruction_ns: f64,
    /// A line from memory to a processor.
    pub memory_ns: f64,
    /// A locked instruction on a line in the processor's cache.
    pub exchange_ns: f64,
    /// A line from one processor's cache to another's.
    pub transfer_ns: f64,
    /// From the release of a lock until a waiter has it.
    pub handover_ns: f64,
    /// A flush instruction.
    pub flush_ns: f64,
    /// A fence.
    pub fence_ns: f64,
}

/// A processor's operations, repeated cyclically.
pub type Program = Vec<Vec<Event>>;

/// The result of a replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Virtual time in nanoseconds.
    pub ns: f64,
    /// Operations completed by each processor.
    pub done: Vec<u64>,
    /// Words that processors waited for and the total time, longest first.
    pub waits: Vec<(u64, f64)>,
}

impl Outcome {
    /// Millions of operations per second of some processors together.
    pub fn rate(&self, processors: impl Iterator<Item = usize>) -> f64 {
        processors.map(|processor| self.done[processor]).sum::<u64>() as f64 / self.ns * 1e3
    }
}

/// A line's coherence state.
#[derive(Debug, Clone, Default)]
struct Line {
    /// Number of the processor that may write it, plus one; zero for none.
    owner: usize,
    /// A bit for each processor that has it.
    sharers: u64,
    /// End of its last transfer for writing.
    free_at: f64,
}

/// A lock's state.
#[derive(Debug, Clone, Default)]
struct Lock {
    exclusive: bool,
    shared: u32,
    waiting: VecDeque<(usize, LockMode)>,
    /// Time of the last release, and of the last exclusive release.
    left_at: f64,
    alone_until: f64,
}

impl Lock {
    fn admits(&self, mode: LockMode) -> bool {
        !self.exclusive && (mode == LockMode::Shared || self.shared == 0)
    }

    fn take(&mut self, mode: LockMode) {
        match mode {
            LockMode::Exclusive => self.exclusive = true,
            LockMode::Shared => self.shared += 1,
        }
    }

    fn leave(&mut self, mode: LockMode) {
        match mode {
            LockMode::Exclusive => self.exclusive = false,
            LockMode::Shared => self.shared = self.shared.saturating_sub(1),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Processor {
    now: f64,
    /// When its last store leaves the buffer.
    drained_at: f64,
    operation: usize,
    event: usize,
    done: u64,
}

/// An event with indices instead of addresses.
#[derive(Debug, Clone, Copy)]
struct Step {
    kind: EventKind,
    line: usize,
    word: usize,
    count: u32,
}

struct Replay<'c> {
    costs: &'c Costs,
    lines: Vec<Line>,
    locks: Vec<Lock>,
    words: Vec<u64>,
    waits: Vec<f64>,
    processors: Vec<Processor>,
    /// Processors by the time of their next event, in picoseconds, since floats have no total
    /// order.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
}

fn picoseconds(ns: f64) -> u64 {
    (ns * 1e3) as u64
}

fn number(numbers: &mut HashMap<u64, usize>, key: u64) -> usize {
    let next = numbers.len();
    *numbers.entry(key).or_insert(next)
}

/// Runs every processor's program for `duration_ns` of virtual time.
pub fn replay(programs: &[Program], costs: &Costs, duration_ns: f64) -> Outcome {
    assert!(programs.len() <= PROCESSORS_MAX, "a line's sharers are bits of one word");
    let (mut lines, mut words) = (HashMap::new(), HashMap::new());
    let mut step = |event: &Event| Step {
        kind: event.kind,
        line: number(&mut lines, event.address / LINE_BYTES),
        word: number(&mut words, event.address),
        count: event.count,
    };
    let programs: Vec<Vec<Vec<Step>>> = programs
        .iter()
        .map(|program| program.iter().map(|operation| operation.iter().map(&mut step).collect()).collect())
        .collect();
    let mut addresses = vec![0; words.len()];
    words.iter().for_each(|(address, index)| addresses[*index] = *address);
    let mut replay = Replay {
        costs,
        lines: vec![Line::default(); lines.len()],
        locks: vec![Lock::default(); words.len()],
        waits: vec![0.0; words.len()],
        words: addresses,
        processors: vec![Processor::default(); programs.len()],
        queue: (0..programs.len()).map(|processor| Reverse((0, processor))).collect(),
    };
    while let Some(Reverse((at, processor))) = replay.queue.pop() {
        if at < picoseconds(duration_ns) {
            replay.advance(processor, &programs[processor]);
        }
    }
    replay.outcome(duration_ns)
}

impl Replay<'_> {
    /// Processes the next event of a processor.
    fn advance(&mut self, index: usize, program: &[Vec<Step>]) {
        let processor = &mut self.processors[index];
        let Some(operation) = program.get(processor.operation) else { return };
        let Some(step) = operation.get(processor.event).copied() else {
            processor.event = 0;
            processor.operation = (processor.operation + 1) % program.len();
            processor.done += 1;
            // An operation without events would repeat for ever at one instant.
            processor.now += if operation.is_empty() { self.costs.instruction_ns.max(0.001) } else { 0.0 };
            return self.requeue(index);
        };
        processor.event += 1;
        match step.kind {
            EventKind::Work => processor.now += step.count as f64 * self.costs.instruction_ns,
            EventKind::Bring => processor.now += self.costs.memory_ns,
            EventKind::Load => self.load(index, step),
            EventKind::Store => self.store(index, step),
            EventKind::Exchange => self.exchange(index, step),
            EventKind::Flush => processor.now += self.costs.flush_ns,
            EventKind::Fence => processor.now = processor.now.max(processor.drained_at) + self.costs.fence_ns,
            EventKind::Acquire(mode) => return self.acquire(index, step, mode),
            EventKind::Release(mode, by_exchange) => self.release(index, step, mode, by_exchange),
        }
        self.requeue(index);
    }

    fn requeue(&mut self, index: usize) {
        self.queue.push(Reverse((picoseconds(self.processors[index].now), index)));
    }

    fn load(&mut self, index: usize, step: Step) {
        let (line, processor) = (&mut self.lines[step.line], &mut self.processors[index]);
        if line.sharers & (1 << index) != 0 {
            return;
        }
        if line.sharers != 0 {
            let end = if line.owner != 0 {
                // Its owner loses write access.
                line.owner = 0;
                line.free_at = processor.now.max(line.free_at) + self.costs.transfer_ns;
                line.free_at
            } else {
                line.free_at.max(processor.now + self.costs.transfer_ns)
            };
            self.waits[step.word] += end - processor.now;
            processor.now = end;
        }
        line.sharers |= 1 << index;
    }

    /// Gives a processor ownership of a line, from `earliest` on. Returns when that is done.
    fn own(&mut self, index: usize, step: Step, earliest: f64) -> f64 {
        let line = &mut self.lines[step.line];
        if line.owner == index + 1 {
            return earliest;
        }
        let alone = line.sharers & !(1 << index) == 0;
        (line.owner, line.sharers) = (index + 1, 1 << index);
        if alone {
            return earliest;
        }
        let end = earliest.max(line.free_at) + self.costs.transfer_ns;
        line.free_at = end;
        self.waits[step.word] += end - earliest;
        end
    }

    fn store(&mut self, index: usize, step: Step) {
        let processor = &self.processors[index];
        let earliest = processor.now.max(processor.drained_at);
        let end = self.own(index, step, earliest);
        self.processors[index].drained_at = end;
    }

    fn exchange(&mut self, index: usize, step: Step) {
        let processor = &self.processors[index];
        let earliest = processor.now.max(processor.drained_at);
        let end = self.own(index, step, earliest) + self.costs.exchange_ns;
        // The line stays until the instruction completes.
        self.lines[step.line].free_at = end;
        self.processors[index].now = end;
        self.processors[index].drained_at = end;
    }

    fn acquire(&mut self, index: usize, step: Step, mode: LockMode) {
        let lock = &mut self.locks[step.word];
        if !lock.waiting.is_empty() || !lock.admits(mode) {
            // The processor continues when it is granted the lock.
            lock.waiting.push_back((index, mode));
            return;
        }
        lock.take(mode);
        let from = if mode == LockMode::Exclusive { lock.left_at } else { lock.alone_until };
        self.granted(index, step, from);
    }

    /// Grants the lock to a processor, from `from` on.
    fn granted(&mut self, index: usize, step: Step, from: f64) {
        let processor = &mut self.processors[index];
        if from > processor.now {
            // The processor has polled the lock, so the handover includes the transfer of the
            // lock's line.
            let begin = from + self.costs.handover_ns;
            self.waits[step.word] += begin - processor.now;
            (processor.now, processor.drained_at) = (begin, begin);
            let line = &mut self.lines[step.line];
            (line.owner, line.sharers, line.free_at) = (index + 1, 1 << index, begin);
        } else {
            self.exchange(index, step);
        }
        self.requeue(index);
    }

    /// Releases a lock, by a locked instruction or a store, and admits waiters.
    fn release(&mut self, index: usize, step: Step, mode: LockMode, by_exchange: bool) {
        match by_exchange {
            true => self.exchange(index, step),
            false => self.store(index, step),
        }
        let left_at = self.processors[index].now.max(self.processors[index].drained_at);
        let lock = &mut self.locks[step.word];
        lock.leave(mode);
        lock.left_at = lock.left_at.max(left_at);
        if mode == LockMode::Exclusive {
            lock.alone_until = left_at;
        }
        let mut next = Vec::new();
        while let Some((waiter, mode)) = lock.waiting.front().copied()
            && lock.admits(mode)
        {
            lock.waiting.pop_front();
            lock.take(mode);
            next.push(waiter);
        }
        for waiter in next {
            self.granted(waiter, step, left_at);
        }
    }

    fn outcome(self, duration_ns: f64) -> Outcome {
        let mut waits: Vec<(u64, f64)> =
            self.words.iter().copied().zip(self.waits).filter(|(_, ns)| *ns > 0.0).collect();
        waits.sort_by(|a, b| b.1.total_cmp(&a.1));
        Outcome { ns: duration_ns, done: self.processors.iter().map(|processor| processor.done).collect(), waits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        instruction_ns: 1.0,
        memory_ns: 200.0,
        exchange_ns: 5.0,
        transfer_ns: 50.0,
        handover_ns: 80.0,
        flush_ns: 10.0,
        fence_ns: 100.0,
    };
    const LONG_NS: f64 = 1e6;

    fn event(kind: EventKind, address: u64) -> Event {
        Event { kind, address, count: 0 }
    }

    fn work(count: u32) -> Event {
        Event { kind: EventKind::Work, address: 0, count }
    }

    /// Operations per microsecond of processors that all do the same.
    fn rate(processors: usize, operation: impl Fn(u64) -> Vec<Event>) -> f64 {
        let programs: Vec<Program> = (0..processors as u64).map(|processor| vec![operation(processor)]).collect();
        let outcome = replay(&programs, &COSTS, LONG_NS);
        outcome.rate(0..processors)
    }

    fn assert_about(value: f64, expected: f64) {
        assert!((value / expected - 1.0).abs() < 0.02, "{value}, expected {expected}");
    }

    #[test]
    fn one_shared_counter_does_not_get_faster_than_its_line_travels() {
        let count = |_| vec![event(EventKind::Exchange, 640)];
        assert_about(rate(1, count), 1e3 / 5.0);
        for processors in [2, 8, 64] {
            assert_about(rate(processors, count), 1e3 / (50.0 + 5.0));
        }
    }

    #[test]
    fn private_counters_scale_with_the_processors() {
        let count = |processor| vec![event(EventKind::Exchange, 640 + processor * 64)];
        for processors in [1, 8, 64] {
            assert_about(rate(processors, count), processors as f64 * 1e3 / 5.0);
        }
    }

    #[test]
    fn private_counters_in_one_line_do_as_badly_as_a_shared_one() {
        let count = |processor| vec![event(EventKind::Exchange, 640 + processor * 8)];
        assert_about(rate(8, count), 1e3 / (50.0 + 5.0));
    }

    #[test]
    fn a_line_that_is_only_read_costs_no_processor_anything() {
        let look = |_| vec![work(20), event(EventKind::Load, 640)];
        for processors in [1, 8, 64] {
            assert_about(rate(processors, look), processors as f64 * 1e3 / 20.0);
        }
    }

    #[test]
    fn readers_of_a_line_that_one_processor_writes_wait_for_its_way_there_and_back() {
        let writer = vec![vec![work(1000), event(EventKind::Exchange, 640)]];
        let reader = vec![vec![work(20), event(EventKind::Load, 640)]];
        let programs: Vec<Program> = std::iter::once(writer).chain(vec![reader; 15]).collect();
        let outcome = replay(&programs, &COSTS, LONG_NS);
        // In each cycle of the writer a reader waits until the line moved to the writer, was
        // changed, and came back. The reader needs the line half a round after it lost it.
        let (turn, lost) = (1000.0 + 50.0 + 5.0, 50.0 + 5.0 + 50.0 - 20.0 / 2.0);
        assert_about(outcome.rate(1..16) / 15.0, 1e3 * (turn - lost) / 20.0 / turn);
    }

    /// An operation with work inside and outside a lock.
    fn locked(mode: LockMode, inside: u32, outside: u32) -> impl Fn(u64) -> Vec<Event> {
        let taken = move |kind| Event { kind, address: 640, count: 0 };
        move |_| {
            vec![
                taken(EventKind::Acquire(mode)),
                work(inside),
                taken(EventKind::Release(mode, mode == LockMode::Shared)),
                work(outside),
            ]
        }
    }

    #[test]
    fn work_under_a_lock_is_done_by_one_at_a_time() {
        assert_about(rate(1, locked(LockMode::Exclusive, 200, 800)), 1e3 / 1005.0);
        for processors in [16, 64] {
            // The releasing store is buffered.
            assert_about(rate(processors, locked(LockMode::Exclusive, 200, 800)), 1e3 / (200.0 + 80.0));
        }
    }

    #[test]
    fn what_comes_from_memory_under_a_lock_is_waited_for_by_all() {
        let brought = |place: usize| {
            move |processor: u64| {
                let mut events = locked(LockMode::Exclusive, 100, 100)(processor);
                events.insert(place, event(EventKind::Bring, 64_000 + processor * 64));
                events
            }
        };
        assert_about(rate(1, brought(1)), 1e3 / (200.0 + 5.0 + 200.0));
        assert_about(rate(16, brought(1)), 1e3 / (100.0 + 200.0 + 80.0));
        assert_about(rate(16, brought(4)), 1e3 / (100.0 + 80.0));
    }

    #[test]
    fn few_processors_hardly_meet_at_a_lock_that_is_held_shortly() {
        let alone = rate(1, locked(LockMode::Exclusive, 10, 10_000));
        let four = rate(4, locked(LockMode::Exclusive, 10, 10_000));
        assert!(four > 3.9 * alone, "{four} by {alone}");
    }

    #[test]
    fn readers_of_a_read_write_lock_are_inside_together_but_queue_for_its_line() {
        // The line is written twice per cycle: with 64 processors it never idles.
        assert_about(rate(64, locked(LockMode::Shared, 200, 800)), 1e3 / (2.0 * 55.0));
        let outcome = |mode| rate(4, locked(mode, 2000, 0));
        assert!(outcome(LockMode::Shared) > 3.0 * outcome(LockMode::Exclusive));
    }

    #[test]
    fn a_store_to_a_line_of_others_is_waited_for_by_a_fence_only() {
        let store = |_| vec![work(500), event(EventKind::Store, 640)];
        let fenced = |_| vec![work(500), event(EventKind::Store, 640), event(EventKind::Fence, 0)];
        assert_about(rate(2, store), 2.0 * 1e3 / 500.0);
        assert!(rate(2, fenced) <= 2.0 * 1e3 / 640.0, "{}", rate(2, fenced));
    }

    #[test]
    fn the_word_that_processors_wait_for_is_named_first() {
        let operation = |processor: u64| {
            let mut events = locked(LockMode::Exclusive, 300, 100)(processor);
            events.push(event(EventKind::Exchange, 6400));
            events.push(event(EventKind::Exchange, 12_800 + processor * 64));
            events
        };
        let programs: Vec<Program> = (0..16).map(|processor| vec![operation(processor)]).collect();
        let outcome = replay(&programs, &COSTS, LONG_NS);
        assert_eq!(outcome.waits[0].0, 640);
        assert!(outcome.waits.iter().all(|(word, _)| *word < 12_800), "no processor waits for a private word");
    }
}
