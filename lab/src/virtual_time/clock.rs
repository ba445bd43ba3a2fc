//! A processor in virtual time.
//!
//! Instructions flow at one rate, which includes misses in the nearest cache and mispredicted
//! branches. What takes longer is simulated:
//!
//! - A read waits for its line, and so does what depends on it. Other instructions go on, until as
//!   many have passed as the processor has under way at once. So independent lines come together.
//! - A store does not wait: its line comes in the background, and stores leave in order.
//! - A locked instruction waits for all that precedes it, and all that follows waits for it.
//! - Lines in sequence within a page are fetched ahead.
//! - Lines that are written back or streamed reach the memory one after the other. A fence waits
//!   for them, and for earlier stores.
//! - A module with a buffer of blocks answers sooner if it has the line's block. Blocks come with
//!   reads only: the papers' systems seldom read what they have just written past the caches.
//!
//! A line comes from where it is when the caches are set up ([`Caches`]), and is near from then on.

use super::memories::{Flush, Memory};
use super::operations::{LINE_BYTES, Operation, REGISTERS, Touch};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// Lines of the heap. How its objects follow each other differs between runs.
const HEAP: Range<u64> = {
    let arena = super::allocator::arena();
    arena.start / LINE_BYTES..arena.end / LINE_BYTES
};
/// Lines per page: no prefetch goes beyond one.
const PAGE_LINES: u64 = 64;
/// Lines that are fetched ahead of a sequence.
const AHEAD: u64 = 2;

/// Where lines are at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caches {
    /// All in memory.
    Empty,
    /// All in the last-level cache.
    Full,
    /// Those of the image in memory, all others in the last-level cache: the content of the files
    /// does not fit there.
    WithoutImage,
}

/// What calls brought and did, beside instructions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Content {
    /// Instructions.
    pub instructions: u64,
    /// Lines of the image that came from afar.
    pub image_lines: u64,
    /// Other lines that did.
    pub other_lines: u64,
    /// Locked instructions.
    pub exchanges: u64,
    /// Lines written back.
    pub flushes: u64,
    /// Lines streamed.
    pub streamed: u64,
    /// Fences.
    pub fences: u64,
}

impl Content {
    /// All counts.
    pub fn counts(&self) -> [u64; 7] {
        let Content { instructions, image_lines, other_lines, exchanges, flushes, streamed, fences } = *self;
        [instructions, image_lines, other_lines, exchanges, flushes, streamed, fences]
    }

    /// Adds another one's counts.
    pub fn add(&mut self, other: &Content) {
        self.instructions += other.instructions;
        self.image_lines += other.image_lines;
        self.other_lines += other.other_lines;
        self.exchanges += other.exchanges;
        self.flushes += other.flushes;
        self.streamed += other.streamed;
        self.fences += other.fences;
    }
}

/// A hash of line numbers. Nothing depends on the order of the table.
#[derive(Default)]
struct LineHash(u64);

impl Hasher for LineHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only line numbers are hashed");
    }

    fn write_u64(&mut self, line: u64) {
        let mixed = line.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// A line that was touched.
#[derive(Debug, Clone, Copy)]
enum Line {
    /// Near from a time on.
    Near(u64),
    /// Fetched, but only ahead of a sequence so far.
    Ahead(u64),
    /// Written past the caches or evicted.
    InMemory,
}

/// A processor with one memory for images.
pub struct Clock {
    memory: Memory,
    caches: Caches,
    /// Lines of the image, and of the stack.
    image: Range<u64>,
    stack: Range<u64>,
    touched: HashMap<u64, Line, BuildHasherDefault<LineHash>>,
    /// When each register has its value.
    registers: [u64; REGISTERS],
    /// When the last instructions were complete, in a ring.
    window: Box<[u64]>,
    window_next: usize,
    /// When buffers for lines become free, in a ring.
    buffers: Box<[u64]>,
    buffer_next: usize,
    /// The blocks of the module's buffer, in a ring; zero is none.
    blocks: Box<[u64]>,
    block_next: usize,
    /// When the next line of a sequence can be sent.
    sequence_next: u64,
    /// When the next instruction begins, at the earliest.
    next: u64,
    /// When all instructions so far are complete.
    complete: u64,
    /// When all stores so far have left.
    drained: u64,
    /// When the memory has all lines that were written back or streamed.
    written: u64,
    /// The line that was streamed last: its parts reach the memory together.
    streamed: u64,
    content: Content,
}

impl Clock {
    /// A processor whose caches hold nothing. `image` and `stack` are addresses.
    pub fn new(memory: Memory, caches: Caches, image: &Range<u64>, stack: &Range<u64>) -> Clock {
        let lines = |bytes: &Range<u64>| bytes.start / LINE_BYTES..bytes.end.div_ceil(LINE_BYTES);
        Clock {
            memory,
            caches,
            image: lines(image),
            stack: lines(stack),
            touched: HashMap::default(),
            registers: [0; REGISTERS],
            window: vec![0; memory.processor.window].into(),
            window_next: 0,
            buffers: vec![0; memory.processor.buffers].into(),
            buffer_next: 0,
            blocks: vec![0; memory.module.map_or(0, |module| module.blocks)].into(),
            block_next: 0,
            sequence_next: 0,
            next: 0,
            complete: 0,
            drained: 0,
            written: 0,
            streamed: 0,
            content: Content::default(),
        }
    }

    /// The time, when all instructions so far are complete.
    pub fn now_ps(&self) -> u64 {
        self.complete
    }

    /// Returns and resets the counts.
    pub fn take_content(&mut self) -> Content {
        std::mem::take(&mut self.content)
    }

    /// Brings a line near without cost.
    pub fn place_near(&mut self, line: u64) {
        self.touched.insert(line, Line::Near(0));
    }

    /// Begins a call: it does not overlap with the one before.
    pub fn begin(&mut self) {
        self.next = self.next.max(self.complete);
    }

    /// Performs an operation.
    pub fn perform(&mut self, operation: &Operation) {
        self.content.instructions += operation.instructions;
        let begin = self.next.max(self.window[self.window_next]);
        self.next = begin + operation.instructions * self.memory.processor.instruction_ps;
        let mut start = begin;
        for_each_bit(operation.sources, |register| start = start.max(self.registers[register]));
        let mut end = start;
        for (touch, line) in &operation.lines {
            end = end.max(self.touch(*touch, *line, start));
        }
        if operation.is_fence {
            self.content.fences += 1;
            end = end.max(self.complete).max(self.drained);
            // Without lines that were written there is nothing to wait for.
            if self.written > 0 {
                end = end.max(self.written + self.memory.fence_ps);
            }
            (self.written, self.streamed) = (0, 0);
            self.next = self.next.max(end);
        }
        for_each_bit(operation.targets, |register| self.registers[register] = end);
        self.complete = self.complete.max(end).max(self.next);
        let window = self.window.len();
        for _ in 0..operation.instructions.min(window as u64) {
            self.window[self.window_next] = self.complete;
            self.window_next = (self.window_next + 1) % window;
        }
    }

    /// Touches a line. Returns when the instruction has what it needs.
    fn touch(&mut self, touch: Touch, line: u64, start: u64) -> u64 {
        match touch {
            Touch::Load => self.fetch(line, start),
            Touch::Prefetch => {
                self.fetch(line, start);
                start
            }
            Touch::Store => {
                self.stand_still(line);
                let arrived = self.fetch(line, start);
                self.drained = self.drained.max(arrived);
                start
            }
            Touch::Exchange => {
                self.content.exchanges += 1;
                self.stand_still(line);
                let alone = self.complete.max(self.drained).max(start);
                let end = self.fetch(line, start).max(alone) + self.memory.processor.exchange_ps;
                self.drained = end;
                self.next = self.next.max(end);
                end
            }
            Touch::Stream => {
                self.touched.insert(line, Line::InMemory);
                if self.streamed != line {
                    self.content.streamed += 1;
                    self.written = self.written.max(start) + self.memory.stream_ps;
                }
                self.streamed = line;
                start
            }
            Touch::Flush => {
                self.content.flushes += 1;
                let from = self.drained.max(start).max(self.written);
                self.written = from + self.memory.flush_ps;
                if self.memory.flush == Flush::Evicts {
                    self.touched.insert(line, Line::InMemory);
                }
                start
            }
        }
    }

    /// Delays what follows a store to the image, if the emulation does so and no cache has the
    /// line.
    fn stand_still(&mut self, line: u64) {
        let is_near = matches!(self.touched.get(&line), Some(Line::Near(_) | Line::Ahead(_)));
        if self.memory.store_miss_ps > 0 && self.image.contains(&line) && !is_near && !self.is_far(line) {
            self.next += self.memory.store_miss_ps;
        }
    }

    /// Returns when a line is near, and fetches it if necessary.
    fn fetch(&mut self, line: u64, start: u64) -> u64 {
        if self.stack.contains(&line) {
            return start;
        }
        match self.touched.get(&line) {
            Some(Line::Near(arrived)) => return start.max(*arrived),
            Some(Line::Ahead(arrived)) => {
                let arrived = *arrived;
                self.touched.insert(line, Line::Near(arrived));
                self.fetch_ahead(line, start);
                return start.max(arrived);
            }
            Some(Line::InMemory) | None => {}
        }
        let arrived = self.ask(line, start);
        self.bring(line, Line::Near(arrived));
        if !line.is_multiple_of(PAGE_LINES) && matches!(self.touched.get(&(line - 1)), Some(Line::Near(_))) {
            self.fetch_ahead(line, start);
        }
        arrived
    }

    /// Asks for a line as soon as a buffer is free. Returns when it arrives.
    fn ask(&mut self, line: u64, start: u64) -> u64 {
        let buffer = self.buffers[self.buffer_next];
        let arrived = start.max(buffer) + self.way_ps(line);
        self.buffers[self.buffer_next] = arrived;
        self.buffer_next = (self.buffer_next + 1) % self.buffers.len();
        arrived
    }

    /// Fetches the lines that follow in the page.
    fn fetch_ahead(&mut self, line: u64, start: u64) {
        let page_end = line / PAGE_LINES * PAGE_LINES + PAGE_LINES;
        for ahead in line + 1..(line + 1 + AHEAD).min(page_end) {
            let is_there = matches!(self.touched.get(&ahead), Some(Line::Near(_) | Line::Ahead(_)));
            if !is_there && !HEAP.contains(&ahead) && !self.stack.contains(&ahead) {
                let sent = self.sequence_next.max(start);
                self.sequence_next = sent + self.between_ps(ahead);
                let arrived = sent + self.way_ps(ahead);
                self.bring(ahead, Line::Ahead(arrived));
            }
        }
    }

    fn bring(&mut self, line: u64, state: Line) {
        match self.image.contains(&line) {
            true => self.content.image_lines += 1,
            false => self.content.other_lines += 1,
        }
        self.touched.insert(line, state);
    }

    /// The time between two lines of a sequence.
    fn between_ps(&self, line: u64) -> u64 {
        if self.image.contains(&line) { self.memory.sequence_ps } else { self.memory.processor.sequence_ps }
    }

    /// Whether the last-level cache has a line.
    fn is_far(&self, line: u64) -> bool {
        let is_cached = match self.caches {
            Caches::Empty => false,
            Caches::Full => true,
            Caches::WithoutImage => !self.image.contains(&line),
        };
        is_cached && !self.touched.contains_key(&line)
    }

    fn way_ps(&mut self, line: u64) -> u64 {
        match self.image.contains(&line) {
            _ if self.is_far(line) => self.memory.processor.far_ps,
            true => self.module_ps(line),
            false => self.memory.processor.memory_ps,
        }
    }

    /// The time until the image's memory answers, whose module then has the line's block.
    fn module_ps(&mut self, line: u64) -> u64 {
        let Some(module) = self.memory.module else { return self.memory.read_ps };
        let block = line / module.block_lines;
        if self.blocks.contains(&block) {
            return module.read_ps;
        }
        self.blocks[self.block_next] = block;
        self.block_next = (self.block_next + 1) % self.blocks.len();
        self.memory.read_ps
    }
}

fn for_each_bit(mut bits: u64, mut each: impl FnMut(usize)) {
    while bits != 0 {
        each(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::memories::{DRAM, EPYC, NVDIMM, OPTANE, REMOTE, XEON_GOLD};
    use super::*;

    const IMAGE: Range<u64> = 1 << 20..1 << 21;
    const WAY_PS: u64 = EPYC.memory_ps;
    const STEP_PS: u64 = EPYC.instruction_ps;

    fn clock(memory: Memory, caches: Caches) -> Clock {
        Clock::new(memory, caches, &IMAGE, &(0..4096))
    }

    /// An instruction that touches a line, reads one register and writes another.
    fn touch(touch: Touch, line: u64, from: u64, to: u64) -> Operation {
        let lines = vec![(touch, line)];
        Operation { instructions: 1, sources: 1 << from, targets: 1 << to, lines, is_fence: false }
    }

    fn fence() -> Operation {
        Operation { instructions: 1, is_fence: true, ..Operation::default() }
    }

    fn work(instructions: u64) -> Operation {
        Operation { instructions, ..Operation::default() }
    }

    /// The time of some operations, beside that of their instructions.
    fn waits_ps(clock: &mut Clock, operations: &[Operation]) -> u64 {
        let before = clock.now_ps();
        clock.begin();
        operations.iter().for_each(|operation| clock.perform(operation));
        let instructions: u64 = operations.iter().map(|operation| operation.instructions).sum();
        (clock.now_ps() - before).saturating_sub(instructions * STEP_PS)
    }

    fn assert_about(ps: u64, expected: u64) {
        assert!(ps.abs_diff(expected) <= 50 * STEP_PS, "{ps}, expected {expected}");
    }

    #[test]
    fn independent_lines_come_together_and_dependent_ones_one_after_the_other() {
        let line = |number: u64, from, to| touch(Touch::Load, 1000 + number * 10, from, to);
        let mut both = clock(DRAM, Caches::Empty);
        assert_about(waits_ps(&mut both, &[line(0, 1, 2), line(1, 3, 4)]), WAY_PS);
        assert_about(waits_ps(&mut both, &[line(2, 1, 2), line(3, 2, 4)]), 2 * WAY_PS);
        assert_eq!(waits_ps(&mut both, &[line(0, 1, 2), line(3, 2, 4)]), 0, "they are near");
    }

    #[test]
    fn a_wait_is_hidden_by_as_many_instructions_as_are_under_way() {
        let line = |number: u64| touch(Touch::Load, 1000 + number * 10, 1, 2);
        let hidden = EPYC.window as u64 * STEP_PS;
        let many: Vec<Operation> = std::iter::once(line(0)).chain((0..2000).map(|_| work(1))).collect();
        assert_about(waits_ps(&mut clock(DRAM, Caches::Empty), &many), WAY_PS - hidden);
    }

    #[test]
    fn lines_come_from_where_they_are() {
        let of_image = IMAGE.start / LINE_BYTES + 9;
        for (caches, line, way_ps) in [
            (Caches::Empty, of_image, OPTANE.read_ps),
            (Caches::Empty, 1000, XEON_GOLD.memory_ps),
            (Caches::Full, of_image, XEON_GOLD.far_ps),
            (Caches::Empty, 3, 0),
            (Caches::WithoutImage, 1000, XEON_GOLD.far_ps),
            (Caches::WithoutImage, of_image, OPTANE.read_ps),
        ] {
            assert_about(waits_ps(&mut clock(OPTANE, caches), &[touch(Touch::Load, line, 1, 2)]), way_ps);
        }
    }

    #[test]
    fn a_module_answers_sooner_for_the_blocks_that_it_read_last() {
        let module = OPTANE.module.expect("it has a buffer");
        let mut clock = clock(OPTANE, Caches::Empty);
        let mut read = |line: u64| waits_ps(&mut clock, &[touch(Touch::Load, line, 1, 2)]);
        let first = IMAGE.start / LINE_BYTES;
        assert_about(read(first), OPTANE.read_ps);
        assert_about(read(first + 2), module.read_ps);
        (1..=module.blocks as u64).for_each(|block| assert_about(read(first + block * 8), OPTANE.read_ps));
        assert_about(read(first + 3), OPTANE.read_ps);
    }

    #[test]
    fn a_store_that_misses_stands_still_where_the_paper_emulates_it_so() {
        let line = IMAGE.start / LINE_BYTES + 9;
        let store = [touch(Touch::Store, line, 1, 2), work(1)];
        for (memory, caches, wait_ps) in
            [(REMOTE, Caches::Empty, REMOTE.store_miss_ps), (REMOTE, Caches::Full, 0), (NVDIMM, Caches::Empty, 0)]
        {
            let mut clock = clock(memory, caches);
            assert_about(waits_ps(&mut clock, &store), wait_ps);
            assert_about(waits_ps(&mut clock, &store), 0);
        }
    }

    #[test]
    fn only_a_fence_waits_for_stores_flushes_and_streamed_lines() {
        let mut clock = clock(DRAM, Caches::Empty);
        let store = |line| touch(Touch::Store, line, 1, 2);
        assert_eq!(waits_ps(&mut clock, &[store(1000), touch(Touch::Flush, 1000, 1, 2)]), 0);
        assert_about(waits_ps(&mut clock, &[fence()]), WAY_PS + DRAM.flush_ps + DRAM.fence_ps);
        assert_eq!(waits_ps(&mut clock, &[fence()]), 0, "nothing is under way");
        let streamed: Vec<Operation> = (0..10).map(|line| touch(Touch::Stream, 2000 + line, 1, 2)).collect();
        assert_eq!(waits_ps(&mut clock, &streamed), 0);
        assert_about(waits_ps(&mut clock, &[fence()]), 10 * DRAM.stream_ps + DRAM.fence_ps);
        assert_about(waits_ps(&mut clock, &[touch(Touch::Load, 2003, 1, 2)]), WAY_PS);
    }

    #[test]
    fn a_flush_that_evicts_makes_the_next_read_wait() {
        let line = IMAGE.start / LINE_BYTES + 9;
        for (memory, wait_ps) in [(DRAM, 0), (NVDIMM, NVDIMM.read_ps)] {
            let mut clock = clock(memory, Caches::Full);
            waits_ps(&mut clock, &[touch(Touch::Store, line, 1, 2), touch(Touch::Flush, line, 1, 2), fence()]);
            assert_about(waits_ps(&mut clock, &[touch(Touch::Load, line, 1, 2)]), wait_ps);
        }
    }

    #[test]
    fn a_locked_instruction_waits_for_stores_and_delays_what_follows() {
        let mut clock = clock(DRAM, Caches::Empty);
        clock.place_near(1000);
        let exchange = touch(Touch::Exchange, 1000, 1, 2);
        assert_about(waits_ps(&mut clock, std::slice::from_ref(&exchange)), EPYC.exchange_ps);
        let store = touch(Touch::Store, 3000, 1, 2);
        assert_about(waits_ps(&mut clock, &[store, exchange]), WAY_PS + EPYC.exchange_ps);
    }

    #[test]
    fn lines_in_sequence_are_fetched_ahead() {
        let read = |lines: &dyn Fn(u64) -> u64| -> u64 {
            // Each read depends on the one before.
            let reads: Vec<Operation> = (0..40).map(|at| touch(Touch::Load, lines(at), 2, 2)).collect();
            waits_ps(&mut clock(DRAM, Caches::Empty), &reads)
        };
        assert_about(read(&|at| 6400 + at * 7), 40 * WAY_PS);
        assert!(read(&|at| 6400 + at) < 20 * WAY_PS, "{}", read(&|at| 6400 + at));
    }
}
