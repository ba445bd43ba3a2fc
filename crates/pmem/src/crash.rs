//! The images that a crash may leave behind, computed from a recorded log.
//!
//! # Modelled faults
//!
//! - **A store may be lost** until its line was flushed and the flushing thread fenced. A flush
//!   without a fence, or a fence of another thread, guarantees nothing.
//! - **A store may persist earlier**, because the cache may evict its line at any time: after a
//!   later store, or before an earlier store to another line. Program order holds only between
//!   stores to the same word.
//! - **A line may tear at 8 bytes.** Each word of a line independently has any value that it took
//!   since it was last durable. A word never tears: the hardware guarantees eight aligned bytes.
//! - **A store of several words or of an odd length is several stores.**
//!   [`write_bytes`](crate::Region::write_bytes) stores the largest naturally aligned pieces of 8,
//!   4, 2 and 1 bytes in ascending order; a crash may come between any two pieces.
//! - **A flush covers all earlier stores** to the same line, by any thread; a later store to the
//!   line is in flight again. A streaming store covers the words that it wrote, not their line.
//!
//! A crash is examined immediately before each fence, when the most is in flight, and at the end of
//! the log. At word grain these states include those of every earlier moment since the previous
//! fence.
//!
//! Not modelled: media errors, words that tear, memory that loses fenced bytes, and processors
//! whose caches survive power failure (where fewer faults are possible).

use std::collections::BTreeMap;
use std::fmt;
use std::iter;
use std::str::FromStr;

use crate::recorder::{Event, Recorded};

const LINE_WORDS: u64 = 8;
const WORD_BYTES: u64 = 8;

/// The image as crashes may leave it, at each crash point in turn. It begins before the first fence
/// of the log; [`advance`](Self::advance) moves to the next.
///
/// ```
/// # use pmem::{CrashImage, Grain, Recorded};
/// # fn check(image: &[u8]) {}
/// # fn explore(initial: Vec<u8>, log: &[Recorded]) {
/// let mut crash = CrashImage::new(initial, log);
/// loop {
///     let mut image = crash.durable().to_vec();
///     for state in crash.states(Grain::Word, 10, 500, 1) {
///         state.apply(&mut image);
///         check(&image); // on failure, print state.id(): it reproduces the state
///         state.undo(&mut image);
///     }
///     if !crash.advance() {
///         break;
///     }
/// }
/// # }
/// ```
pub struct CrashImage<'log> {
    log: &'log [Recorded],
    position: usize,
    fences: u64,
    durable: Vec<u8>,
    // Counts stored pieces; orders stores and flushes.
    tick: u64,
    // By line number; contains only lines with values in flight.
    lines: BTreeMap<u64, Line>,
    // By thread: what its next fence makes durable.
    flushed: BTreeMap<u32, Vec<Flushed>>,
}

/// Words that a thread flushed or streamed, with their ticks at that time.
struct Flushed {
    word: u64,
    words: u64,
    tick: u64,
}

/// For each word of a line its values since it was durable, oldest first.
#[derive(Default)]
struct Line {
    words: [Vec<Value>; LINE_WORDS as usize],
}

#[derive(Clone, Copy)]
struct Value {
    tick: u64,
    bytes: [u8; 8],
}

/// A line with bytes that are not durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlightLine {
    /// Bytes from the start of the image.
    pub offset: u64,
    /// For each word the values that a crash may leave: the durable value, then every later one in
    /// store order.
    pub words: [Vec<[u8; 8]>; LINE_WORDS as usize],
}

/// The portions in which bytes in flight reach the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grain {
    /// Each line is as it was when durable, or as it is now.
    Line,
    /// Each line is as it was when durable, or as after any of its stores since: an early eviction.
    Instant,
    /// Each word has its durable value or any later one: lines tear. Includes the states of every
    /// other grain.
    Word,
}

impl<'log> CrashImage<'log> {
    /// Starts with the image `initial`, all of it durable, before the first fence of `log`.
    ///
    /// # Panics
    /// If `initial` is not a whole number of lines, or the log has an event beyond its end: the log
    /// then belongs to another image.
    pub fn new(initial: Vec<u8>, log: &'log [Recorded]) -> CrashImage<'log> {
        assert!((initial.len() as u64).is_multiple_of(LINE_WORDS * WORD_BYTES), "an image consists of whole lines");
        let mut image = CrashImage {
            log,
            position: 0,
            fences: 0,
            durable: initial,
            tick: 0,
            lines: BTreeMap::new(),
            flushed: BTreeMap::new(),
        };
        image.run_to_fence();
        image
    }

    /// Applies the current fence and moves to the next one or to the end of the log. False if
    /// already at the end.
    pub fn advance(&mut self) -> bool {
        let Some(recorded) = self.log.get(self.position) else { return false };
        self.complete_fence(recorded.thread);
        self.position += 1;
        self.fences += 1;
        self.run_to_fence();
        true
    }

    /// Advances until `fences` fences have taken effect, to examine a state again. False if that
    /// point has passed or the log ends before it.
    pub fn advance_to(&mut self, fences: u64) -> bool {
        while self.fences < fences && self.advance() {}
        self.fences == fences
    }

    /// Fences that have taken effect.
    pub fn fences(&self) -> u64 {
        self.fences
    }

    /// Events that have happened: the crash comes before `log[position]`.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The marks passed so far, with their threads: which operations have started and which have
    /// returned.
    pub fn marks(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.log[..self.position].iter().filter_map(|recorded| match recorded.event {
            Event::Mark(mark) => Some((recorded.thread, mark)),
            _ => None,
        })
    }

    /// The image if everything in flight is lost.
    pub fn durable(&self) -> &[u8] {
        &self.durable
    }

    /// The lines in flight, by ascending offset.
    pub fn lines(&self) -> impl Iterator<Item = InFlightLine> + '_ {
        self.lines.iter().map(|(number, line)| InFlightLine {
            offset: number * LINE_WORDS * WORD_BYTES,
            words: std::array::from_fn(|index| {
                let word = number * LINE_WORDS + index as u64;
                iter::once(self.durable_word(word)).chain(line.words[index].iter().map(|value| value.bytes)).collect()
            }),
        })
    }

    /// The states that a crash may leave at this point. Returns all of them if there are no more
    /// than `limit_lines` independent lines have (two to that power), otherwise `sample` of them,
    /// drawn with `seed`. A sample always includes both extremes (all lost, all persisted). It
    /// favours states in which a single line or word differs from the rest, because these reveal a
    /// missing flush.
    pub fn states(
        &self,
        grain: Grain,
        limit_lines: u32,
        sample: u64,
        seed: u64,
    ) -> impl Iterator<Item = CrashState> + '_ {
        let units = self.units(grain);
        let limit = 1u64.checked_shl(limit_lines).unwrap_or(u64::MAX);
        let all = count(&units).filter(|count| *count <= limit);
        let draws = if all.is_some() { 0 } else { sample };
        let mut random = Random(seed ^ self.fences.wrapping_mul(0xa076_1d64_78bd_642f));
        let exact = (0..all.unwrap_or(0)).map(Choice::Exact);
        let drawn = [Choice::Exact(0), Choice::Newest]
            .into_iter()
            .chain(iter::repeat_with(move || Choice::Drawn(random.next())))
            .take(usize::try_from(draws).unwrap_or(usize::MAX));
        exact.chain(drawn).map(move |choice| self.build(grain, &units, choice))
    }

    /// The state with this `id`; none if it belongs to another fence or log.
    pub fn state(&self, id: StateId) -> Option<CrashState> {
        let units = self.units(id.grain);
        let known = match id.choice {
            Choice::Exact(index) => count(&units).is_none_or(|count| index < count),
            Choice::Newest | Choice::Drawn(_) => true,
        };
        (id.fence == self.fences && known).then(|| self.build(id.grain, &units, id.choice))
    }

    fn run_to_fence(&mut self) {
        let log = self.log;
        while let Some(recorded) = log.get(self.position) {
            match &recorded.event {
                Event::Fence => return,
                Event::Store { offset, bytes } => self.store(*offset, bytes),
                Event::Stream { offset, bytes } => {
                    self.store(*offset, bytes);
                    let (word, end) = (offset / WORD_BYTES, (offset + bytes.len() as u64).div_ceil(WORD_BYTES));
                    self.record_flushed(recorded.thread, word, end);
                }
                Event::Flush { offset, length } => {
                    let line_bytes = LINE_WORDS * WORD_BYTES;
                    let (line, end) = (offset / line_bytes, (offset + length).div_ceil(line_bytes));
                    // A range without lines in flight needs no fence.
                    if self.lines.range(line..end.max(line)).next().is_some() {
                        self.record_flushed(recorded.thread, line * LINE_WORDS, end * LINE_WORDS);
                    }
                }
                Event::Mark(_) => {}
            }
            self.position += 1;
        }
    }

    fn store(&mut self, offset: u64, bytes: &[u8]) {
        for (at, piece) in pieces(offset, bytes) {
            let (word, within) = (at / WORD_BYTES, (at % WORD_BYTES) as usize);
            let before = self.newest(word);
            let mut after = before;
            after[within..within + piece.len()].copy_from_slice(piece);
            self.tick += 1;
            // Storing a value again is not a state of its own.
            if after != before {
                let line = self.lines.entry(word / LINE_WORDS).or_default();
                line.words[(word % LINE_WORDS) as usize].push(Value { tick: self.tick, bytes: after });
            }
        }
    }

    fn record_flushed(&mut self, thread: u32, word: u64, end: u64) {
        let words = end.saturating_sub(word);
        self.flushed.entry(thread).or_default().push(Flushed { word, words, tick: self.tick });
    }

    /// Applies a thread's fence: what it flushed is durable with the values it had at the flush.
    fn complete_fence(&mut self, thread: u32) {
        for flushed in self.flushed.remove(&thread).unwrap_or_default() {
            for word in flushed.word..flushed.word + flushed.words {
                let Some(line) = self.lines.get_mut(&(word / LINE_WORDS)) else { continue };
                let values = &mut line.words[(word % LINE_WORDS) as usize];
                let settled = values.partition_point(|value| value.tick <= flushed.tick);
                if let Some(value) = values.drain(..settled).next_back() {
                    let at = (word * WORD_BYTES) as usize;
                    self.durable[at..at + 8].copy_from_slice(&value.bytes);
                }
            }
        }
        self.lines.retain(|_, line| line.words.iter().any(|values| !values.is_empty()));
    }

    fn durable_word(&self, word: u64) -> [u8; 8] {
        let at = (word * WORD_BYTES) as usize;
        self.durable[at..at + 8].try_into().expect("eight bytes")
    }

    /// The value that a load would return.
    fn newest(&self, word: u64) -> [u8; 8] {
        let line = self.lines.get(&(word / LINE_WORDS));
        let newest = line.and_then(|line| line.words[(word % LINE_WORDS) as usize].last());
        newest.map_or_else(|| self.durable_word(word), |value| value.bytes)
    }

    /// The units that persist independently at a grain, each with the number of its forms.
    fn units(&self, grain: Grain) -> Vec<Unit> {
        let mut units = Vec::new();
        for (number, line) in &self.lines {
            match grain {
                Grain::Line => units.push(Unit { line: *number, word: None, forms: 2 }),
                Grain::Instant => {
                    units.push(Unit { line: *number, word: None, forms: line.change_ticks().len() as u64 + 1 });
                }
                Grain::Word => {
                    for (index, values) in line.words.iter().enumerate().filter(|(_, values)| !values.is_empty()) {
                        units.push(Unit { line: *number, word: Some(index), forms: values.len() as u64 + 1 });
                    }
                }
            }
        }
        units
    }

    fn build(&self, grain: Grain, units: &[Unit], choice: Choice) -> CrashState {
        let mut changes = Vec::new();
        for (unit, form) in units.iter().zip(choice.forms(units)) {
            if form > 0 {
                self.change(grain, unit, form, &mut changes);
            }
        }
        CrashState { id: StateId { fence: self.fences, grain, choice }, changes }
    }

    /// The words that differ from the durable image when `unit` has the given form (from one).
    fn change(&self, grain: Grain, unit: &Unit, form: u64, changes: &mut Vec<WordChange>) {
        let line = &self.lines[&unit.line];
        let mut push = |index: usize, value: Option<&Value>| {
            let word = unit.line * LINE_WORDS + index as u64;
            let before = self.durable_word(word);
            // A word may have returned to its durable value.
            if let Some(value) = value.filter(|value| value.bytes != before) {
                changes.push(WordChange { offset: word * WORD_BYTES, before, after: value.bytes });
            }
        };
        if let Some(index) = unit.word {
            push(index, line.words[index].get(form as usize - 1));
            return;
        }
        let until = if grain == Grain::Instant { line.change_ticks()[form as usize - 1] } else { u64::MAX };
        for (index, values) in line.words.iter().enumerate() {
            push(index, values[..values.partition_point(|value| value.tick <= until)].last());
        }
    }
}

impl Line {
    /// The ticks at which the line changed, in order.
    fn change_ticks(&self) -> Vec<u64> {
        let mut ticks: Vec<u64> = self.words.iter().flatten().map(|value| value.tick).collect();
        ticks.sort_unstable();
        ticks
    }
}

/// Splits a store's bytes into the pieces that reach the cache one after the other, exactly as
/// `copy::store_bytes` does.
fn pieces(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut done = 0;
    iter::from_fn(move || {
        let at = offset + done as u64;
        let piece =
            [8, 4, 2, 1].into_iter().find(|size| at.is_multiple_of(*size as u64) && *size <= bytes.len() - done)?;
        done += piece;
        Some((at, &bytes[done - piece..done]))
    })
}

/// A line or word that persists independently of the rest.
struct Unit {
    line: u64,
    word: Option<usize>,
    /// The durable form is number zero, the newest the last.
    forms: u64,
}

/// The number of states; none if it overflows.
fn count(units: &[Unit]) -> Option<u64> {
    units.iter().try_fold(1u64, |count, unit| count.checked_mul(unit.forms))
}

/// An image that a crash may leave, as its difference from the durable image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrashState {
    id: StateId,
    changes: Vec<WordChange>,
}

/// A word that persisted although it was not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordChange {
    /// Bytes from the start of the image.
    pub offset: u64,
    /// Its durable value.
    pub before: [u8; 8],
    /// Its value in this state.
    pub after: [u8; 8],
}

impl CrashState {
    /// The state's id; see [`CrashImage::state`].
    pub fn id(&self) -> StateId {
        self.id
    }

    /// The words that differ from the durable image.
    pub fn changes(&self) -> &[WordChange] {
        &self.changes
    }

    /// Turns the durable image into this one.
    ///
    /// # Panics
    /// If `image` is shorter than the image of the state.
    pub fn apply(&self, image: &mut [u8]) {
        for change in &self.changes {
            image[change.offset as usize..][..8].copy_from_slice(&change.after);
        }
    }

    /// Turns this image back into the durable one. Other stores into it since then stay.
    ///
    /// # Panics
    /// If `image` is shorter than the image of the state.
    pub fn undo(&self, image: &mut [u8]) {
        for change in &self.changes {
            image[change.offset as usize..][..8].copy_from_slice(&change.before);
        }
    }
}

/// The id of a crash state. With the log and the initial image it reproduces the state. Example:
/// `f12:l0b3` is after 12 fences, by lines, with those of the bits of 0xb3 persisted. For moments
/// (`m`) and words (`w`) the number counts states. `+` instead of a number means everything
/// persisted; `~` before the number means a drawn state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateId {
    fence: u64,
    grain: Grain,
    choice: Choice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// The forms of the units are the digits of this number, the first unit's the lowest.
    Exact(u64),
    /// Every unit in its newest form.
    Newest,
    /// The forms follow from this seed.
    Drawn(u64),
}

impl Choice {
    fn forms(self, units: &[Unit]) -> Vec<u64> {
        match self {
            Choice::Exact(mut index) => {
                let digit = |unit: &Unit| {
                    let form = index % unit.forms;
                    index /= unit.forms;
                    form
                };
                units.iter().map(digit).collect()
            }
            Choice::Newest => units.iter().map(|unit| unit.forms - 1).collect(),
            Choice::Drawn(seed) => draw(units, &mut Random(seed)),
        }
    }
}

/// Half of the states use a drawn density, the others vary around a single unit.
fn draw(units: &[Unit], random: &mut Random) -> Vec<u64> {
    let newest = |unit: &Unit| unit.forms - 1;
    let shape = random.next() % 8;
    let chosen = random.next() as usize % units.len().max(1);
    let density = 1 + random.next() % 7;
    let form = |(index, unit): (usize, &Unit)| match shape {
        // All but one persisted, or only one persisted.
        0 => {
            if index == chosen {
                random.next() % newest(unit)
            } else {
                newest(unit)
            }
        }
        1 => {
            if index == chosen {
                1 + random.next() % newest(unit)
            } else {
                0
            }
        }
        // One line is torn; all others persisted, or none did.
        2 | 3 if unit.line == units[chosen].line => random.next() % unit.forms,
        2 => newest(unit),
        3 => 0,
        _ if random.next() % 8 >= density => 0,
        _ if random.next().is_multiple_of(2) => newest(unit),
        _ => 1 + random.next() % newest(unit),
    };
    units.iter().enumerate().map(form).collect()
}

/// SplitMix64. It is small, and ids depend on it, so its sequence must never change.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }
}

impl StateId {
    /// Fences that had taken effect: the argument of [`advance_to`](CrashImage::advance_to).
    pub fn fence(self) -> u64 {
        self.fence
    }

    /// The portions in which bytes persisted.
    pub fn grain(self) -> Grain {
        self.grain
    }
}

impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grain = match self.grain {
            Grain::Line => 'l',
            Grain::Instant => 'm',
            Grain::Word => 'w',
        };
        write!(f, "f{}:{grain}", self.fence)?;
        match self.choice {
            Choice::Exact(index) => write!(f, "{index:x}"),
            Choice::Newest => f.write_str("+"),
            Choice::Drawn(seed) => write!(f, "~{seed:x}"),
        }
    }
}

/// Text that is not the id of a crash state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the id of a crash state: expected for example f12:l0b3, f12:w+ or f12:w~1f2e")]
pub struct StateIdError(String);

impl FromStr for StateId {
    type Err = StateIdError;

    fn from_str(text: &str) -> Result<StateId, StateIdError> {
        parse(text).ok_or_else(|| StateIdError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<StateId> {
    let (fence, state) = text.strip_prefix('f')?.split_once(':')?;
    let mut rest = state.chars();
    let grain = match rest.next()? {
        'l' => Grain::Line,
        'm' => Grain::Instant,
        'w' => Grain::Word,
        _ => return None,
    };
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let choice = match rest.as_str() {
        "+" => Choice::Newest,
        choice => match choice.strip_prefix('~') {
            Some(seed) => Choice::Drawn(number(seed)?),
            None => Choice::Exact(number(choice)?),
        },
    };
    Some(StateId { fence: fence.parse().ok()?, grain, choice })
}
