//! Whether the log of the recorder and the log of the instructions agree about the same work.
//!
//! Between two fences or marks both must leave the same words in flight with the same values, and
//! the next fence must make the same ones durable. Widths are free: what the recorder sees as one
//! streamed copy, the processor does by stores of 1 to 64 bytes, and flushes at the edges.
//!
//! One more difference is explained: the recorder reports the bytes of a streamed copy, but a flush
//! of its edge covers the whole line. Neighbours in flight there may be durable with the copy, or
//! not ([`Cover::Perhaps`]).

use pmem::{Event, Recorded};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

const WORD_BYTES: u64 = 8;
const LINE_BYTES: u64 = 64;
const LINE_WORDS: u64 = LINE_BYTES / WORD_BYTES;
/// Differences that are listed.
const LISTED_MAX: usize = 20;

/// Whether the next fence makes a word durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cover {
    No,
    Perhaps,
    Yes,
}

/// What is in flight when something ends.
#[derive(Debug, PartialEq, Eq)]
struct Epoch {
    /// A fence, a mark, or the log.
    end: Option<Event>,
    /// By number: value and cover of each word.
    words: BTreeMap<u64, ([u8; 8], Cover)>,
    /// Numbers of flushed lines.
    flushed: BTreeSet<u64>,
    /// Numbers of lines of streamed bytes, whose edges may be flushed.
    streamed: BTreeSet<u64>,
}

/// The differences between two logs of the same work on an image.
pub fn differences(initial: &[u8], recorder: &[Recorded], instructions: &[Recorded]) -> Vec<String> {
    let (ours, theirs) = (epochs(initial, recorder), epochs(initial, instructions));
    let mut found = Vec::new();
    for (index, (one, other)) in ours.iter().zip(&theirs).enumerate() {
        if one.end != other.end {
            let ends =
                [one, other].map(|epoch| epoch.end.as_ref().map_or("the end".to_owned(), |end| format!("{end:?}")));
            found.push(format!(
                "part {index} ends with {} in the recorder's log, with {} in the other",
                ends[0], ends[1]
            ));
            return found;
        }
        one.compare(other, &mut |what| found.push(format!("part {index}: {what}")));
        found.truncate(LISTED_MAX);
    }
    found
}

fn lines(offset: u64, length: u64) -> std::ops::Range<u64> {
    offset / LINE_BYTES..(offset + length).div_ceil(LINE_BYTES)
}

fn epochs(initial: &[u8], log: &[Recorded]) -> Vec<Epoch> {
    let mut image = initial.to_vec();
    let mut flying: BTreeMap<u64, Cover> = BTreeMap::new();
    let (mut flushed, mut streamed) = (BTreeSet::new(), BTreeSet::new());
    let mut epochs = Vec::new();
    let ends = log.iter().map(|recorded| Some(&recorded.event)).chain([None]);
    for event in ends {
        match event {
            Some(Event::Store { offset, bytes }) => {
                image[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
                let words = offset / WORD_BYTES..(offset + bytes.len() as u64).div_ceil(WORD_BYTES);
                flying.extend(words.map(|word| (word, Cover::No)));
            }
            Some(Event::Stream { offset, bytes }) => {
                image[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
                let length = bytes.len() as u64;
                let words = offset / WORD_BYTES..(offset + length).div_ceil(WORD_BYTES);
                for line in lines(*offset, length) {
                    let around = flying.range_mut(line * LINE_WORDS..(line + 1) * LINE_WORDS);
                    around.filter(|(_, cover)| **cover == Cover::No).for_each(|(_, cover)| *cover = Cover::Perhaps);
                }
                flying.extend(words.map(|word| (word, Cover::Yes)));
                streamed.extend(lines(*offset, length));
            }
            Some(Event::Flush { offset, length }) => {
                for line in lines(*offset, *length) {
                    let all = flying.range_mut(line * LINE_WORDS..(line + 1) * LINE_WORDS);
                    all.for_each(|(_, cover)| *cover = Cover::Yes);
                    flushed.insert(line);
                }
            }
            end => {
                let value = |word: u64| {
                    let at = (word * WORD_BYTES) as usize;
                    image[at..at + 8].try_into().expect("eight bytes")
                };
                epochs.push(Epoch {
                    end: end.cloned(),
                    words: flying.iter().map(|(word, cover)| (*word, (value(*word), *cover))).collect(),
                    flushed: std::mem::take(&mut flushed),
                    streamed: std::mem::take(&mut streamed),
                });
                if end == Some(&Event::Fence) {
                    flying.retain(|_, cover| *cover != Cover::Yes);
                }
            }
        }
    }
    epochs
}

impl Epoch {
    fn compare(&self, other: &Epoch, found: &mut dyn FnMut(String)) {
        for word in self.words.keys().chain(other.words.keys().filter(|word| !self.words.contains_key(word))) {
            let (one, two) = (self.words.get(word), other.words.get(word));
            let agree = match (one, two) {
                (Some((value, cover)), Some((found, covered))) => {
                    value == found && (cover == covered || *cover == Cover::Perhaps)
                }
                // A neighbour that the fence before may have made durable.
                (Some((_, Cover::Perhaps)), None) => true,
                _ => false,
            };
            if !agree {
                let (offset, one, two) = (word * WORD_BYTES, Shown(one), Shown(two));
                found(format!("{offset:#x}: {one} in the recorder's log, {two} by the instructions"));
            }
        }
        if let Some(line) = self.flushed.difference(&other.flushed).next() {
            found(format!("the flush of line {:#x} that the recorder has is not executed", line * LINE_BYTES));
        }
        let explained = |line: &&u64| self.flushed.contains(line) || self.streamed.contains(line);
        if let Some(line) = other.flushed.iter().find(|line| !explained(line)) {
            found(format!("the recorder lacks the flush of line {:#x} that is executed", line * LINE_BYTES));
        }
    }
}

struct Shown<'w>(Option<&'w ([u8; 8], Cover)>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((value, cover)) = self.0 else { return f.write_str("not in flight") };
        let cover = match cover {
            Cover::No => "not flushed",
            Cover::Perhaps => "perhaps flushed",
            Cover::Yes => "flushed",
        };
        write!(f, "{:#x}, {cover}", u64::from_le_bytes(*value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(events: &[Event]) -> Vec<Recorded> {
        events.iter().map(|event| Recorded { thread: 0, event: event.clone() }).collect()
    }

    fn store(offset: u64, bytes: &[u8]) -> Event {
        Event::Store { offset, bytes: bytes.into() }
    }

    fn flush(offset: u64) -> Event {
        Event::Flush { offset, length: 1 }
    }

    fn differ(recorder: &[Event], instructions: &[Event]) -> bool {
        !differences(&[0; 256], &log(recorder), &log(instructions)).is_empty()
    }

    #[test]
    fn widths_of_stores_are_free() {
        let wide = [store(8, &[1, 2, 3, 4, 5, 6, 7, 8]), flush(8), Event::Fence];
        let narrow = [store(8, &[1, 2, 3, 4]), store(12, &[5, 6, 7, 8]), flush(0), Event::Fence];
        assert!(!differ(&wide, &narrow));
        assert!(differ(&wide, &[store(8, &[1, 2, 3, 4]), flush(0), Event::Fence]));
    }

    #[test]
    fn each_missing_event_is_a_difference() {
        let whole = [store(8, &[1; 8]), flush(8), Event::Fence, store(64, &[2; 8]), flush(64), Event::Fence];
        assert!(!differ(&whole, &whole));
        for left_out in 0..whole.len() {
            let mut rest = whole.to_vec();
            rest.remove(left_out);
            assert!(differ(&whole, &rest), "event {left_out} left out of the instructions");
            assert!(differ(&rest, &whole), "event {left_out} left out of the recorder's log");
        }
    }

    #[test]
    fn a_flush_of_another_line_or_before_the_store_is_a_difference() {
        let right = [store(8, &[1; 8]), flush(8), Event::Fence];
        assert!(differ(&right, &[store(8, &[1; 8]), flush(64), Event::Fence]));
        assert!(differ(&right, &[flush(8), store(8, &[1; 8]), Event::Fence]));
    }

    #[test]
    fn a_streamed_copy_may_flush_its_edges() {
        let streamed = [Event::Stream { offset: 56, bytes: [7; 16][..].into() }, Event::Fence];
        let done = [store(56, &[7; 8]), flush(0), Event::Stream { offset: 64, bytes: [7; 8][..].into() }, Event::Fence];
        assert!(!differ(&streamed, &done));
        assert!(differ(&streamed, &[store(56, &[7; 16]), flush(0), Event::Fence]), "the second line is not flushed");
    }
}
