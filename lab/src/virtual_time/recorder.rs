//! Records calls and adds up their virtual time on several machines at once.

use super::allocator::Spread;
use super::clock::{Caches, Clock, Content};
use super::held::FixedWorld;
use super::memories::Memory;
use super::operations::{Code, LINE_BYTES, lines};
use crate::multicore::record::{Step, record_into};
use std::io;
use std::ops::Range;

/// Maximum number of instructions of a recorded call.
const STEPS_MAX: usize = 6_000_000;

/// Times of some calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Number of calls.
    pub calls: u64,
    /// Their time with each memory and each state of the caches, in picoseconds, and what they did.
    spent: Vec<(u64, Content)>,
}

/// What happened before recorded calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// A mount: the caches are empty.
    Mount,
    /// The recorded calls themselves. The last-level cache has all lines, if those of all calls fit
    /// there, else none.
    Same,
    /// Similar calls with more content than fits into the last-level cache, which has all lines
    /// but the image's.
    Others,
}

impl Before {
    const fn caches(self) -> &'static [Caches] {
        match self {
            Before::Mount => &[Caches::Empty],
            Before::Same => &[Caches::Full, Caches::Empty],
            Before::Others => &[Caches::WithoutImage],
        }
    }
}

impl Recorded {
    /// Time of these calls with each memory in picoseconds, and what they did there, if `calls` of
    /// their kind are made in all.
    pub fn spent(&self, calls: u64, memories: &[Memory]) -> Vec<(u64, Content)> {
        let of = |(index, memory): (usize, &Memory)| {
            let Some((ps, content)) = self.spent.get(index) else { return (0, Content::default()) };
            let brought = content.image_lines + content.other_lines;
            let bytes_of_all = brought as f64 * LINE_BYTES as f64 * calls as f64 / self.calls.max(1) as f64;
            let fits = bytes_of_all <= memory.processor.far_bytes as f64;
            // The last states are those of caches that do not have the lines.
            let last = self.spent.len() - memories.len() + index;
            if fits { (*ps, *content) } else { self.spent[last] }
        };
        memories.iter().enumerate().map(of).collect()
    }
}

/// The address range of this thread's stack.
fn stack() -> Range<u64> {
    let mut attributes = std::mem::MaybeUninit::uninit();
    let (mut start, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the first call initialises the attributes of the running thread, which the second
    // reads and the third frees.
    let known = unsafe {
        let known = libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) == 0;
        if known {
            libc::pthread_attr_getstack(attributes.as_ptr(), &mut start, &mut bytes);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
        }
        known
    };
    let start = start.addr() as u64;
    if known { start..start + bytes as u64 } else { 0..0 }
}

/// Records the calls of one thread.
pub struct Recorder {
    code: Code,
    steps: Vec<Step>,
    memories: Vec<Memory>,
    clocks: Vec<Clock>,
    recorded: Recorded,
    _spread: Spread,
    _fixed: FixedWorld,
}

impl Recorder {
    /// While this exists, heap objects have lines of their own, and time and random numbers are
    /// fixed.
    pub fn new(memories: &[Memory]) -> io::Result<Recorder> {
        let spread = Spread::new().ok_or_else(|| io::Error::other("no address space for the heap of recordings"))?;
        let fixed = FixedWorld::new();
        let mut recorder = Recorder {
            code: Code::new()?,
            steps: Vec::with_capacity(STEPS_MAX),
            memories: memories.to_vec(),
            clocks: Vec::new(),
            recorded: Recorded::default(),
            _spread: spread,
            _fixed: fixed,
        };
        recorder.set_up(&(0..0), Before::Mount);
        Ok(recorder)
    }

    /// Sets the caches up for a system whose image lies in the address range.
    pub fn set_up(&mut self, image: &Range<u64>, before: Before) {
        let stack = stack();
        let clocks = |caches: &Caches| -> Vec<Clock> {
            self.memories.iter().map(|memory| Clock::new(*memory, *caches, image, &stack)).collect()
        };
        self.clocks = before.caches().iter().flat_map(clocks).collect();
        self.take();
    }

    /// The memories.
    pub fn memories(&self) -> &[Memory] {
        &self.memories
    }

    /// Returns and resets what was recorded; the caches stay.
    pub fn take(&mut self) -> Recorded {
        let empty = Recorded { spent: vec![Default::default(); self.clocks.len()], ..Recorded::default() };
        std::mem::replace(&mut self.recorded, empty)
    }

    /// Makes and records a call. Its arguments are in the nearest cache.
    pub fn call<T>(&mut self, arguments: &[Range<*const u8>], call: impl FnOnce() -> T) -> io::Result<T> {
        let (is_whole, result) = record_into(&mut self.steps, call)?;
        if !is_whole {
            return Err(io::Error::other(format!("a call takes more than {STEPS_MAX} instructions")));
        }
        let before: Vec<u64> = self.clocks.iter().map(Clock::now_ps).collect();
        for clock in &mut self.clocks {
            clock.begin();
            for bytes in arguments {
                let [start, end] = [bytes.start, bytes.end].map(|at| at.addr() as u64);
                lines(start, end - start).for_each(|line| clock.place_near(line));
            }
        }
        let clocks = &mut self.clocks;
        self.code.operations(&self.steps, |operation| {
            clocks.iter_mut().for_each(|clock| clock.perform(operation));
        })?;
        for ((clock, before), (ps, content)) in self.clocks.iter_mut().zip(before).zip(&mut self.recorded.spent) {
            *ps += clock.now_ps() - before;
            content.add(&clock.take_content());
        }
        self.recorded.calls += 1;
        Ok(result)
    }

    /// Instructions of the last call.
    pub fn last_steps(&self) -> usize {
        self.steps.len()
    }
}
