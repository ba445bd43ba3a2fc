//! What a worker of a storm does: calls with names of its own, of which it is known what each leaves; and beside them calls with names that all
//! workers want.
//!
//! The calls on its own names come in chapters. Each begins with an empty directory and follows from the seed, the worker and its number, and so does what is
//! there after each call. So whoever comes after a death knows what to find: what the calls that had returned left, or that and the next one's effect, and
//! nothing else.

use engine::format::FileKind;
use std::collections::BTreeMap;

/// Calls of a chapter that change what is there; behind them what is left is removed.
const CALLS: usize = 150;
/// Calls of a chapter, at most.
pub const CALLS_MAX: u64 = CALLS as u64 + OWN;
/// The longest write, and the longest file.
const WRITE_MAX: u64 = 12_000;
const FILE_MAX: u64 = 40_000;
const PAGE_BYTES: u64 = 4096;

/// Names in a worker's directory, and in the one that all share.
const OWN: u64 = 8;
const SHARED: u64 = 6;

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit.max(1)
    }
}

/// One call, by names in one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Makes an empty file.
    Create(String),
    /// Writes bytes at an offset.
    Write(String, u64, Vec<u8>),
    /// Sets the length.
    Truncate(String, u64),
    /// Sets the permissions.
    Mode(String, u32),
    /// Gives a file another name.
    Link(String, String),
    /// Renames, replacing what has the name.
    Rename(String, String),
    /// Exchanges two names.
    Exchange(String, String),
    /// Removes a file's name.
    Unlink(String),
    /// Makes a directory.
    MakeDirectory(String),
    /// Removes one.
    RemoveDirectory(String),
}

/// What a name stands for, as far as it is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// A file or a directory.
    pub kind: FileKind,
    /// Permissions of a file.
    pub mode: u32,
    /// Names of a file.
    pub links: u32,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// A directory of a worker: what each name stands for.
pub type Names = BTreeMap<String, Seen>;

/// A file in the model.
#[derive(Debug, Clone)]
struct File {
    mode: u32,
    bytes: Vec<u8>,
}

/// What is there between two calls of a chapter: for each name its file, or none for a directory.
#[derive(Debug, Clone, Default)]
struct Model {
    names: BTreeMap<String, Option<usize>>,
    files: Vec<File>,
}

impl Model {
    fn file(&mut self, name: &str) -> &mut File {
        let index = self.names[name].expect("a file");
        &mut self.files[index]
    }

    fn apply(&mut self, call: &Call) {
        match call {
            Call::Create(name) => {
                self.files.push(File { mode: 0o644, bytes: Vec::new() });
                self.names.insert(name.clone(), Some(self.files.len() - 1));
            }
            Call::Write(name, offset, bytes) => {
                let (file, end) = (self.file(name), *offset as usize + bytes.len());
                file.bytes.resize(file.bytes.len().max(end), 0);
                file.bytes[*offset as usize..end].copy_from_slice(bytes);
            }
            Call::Truncate(name, length) => self.file(name).bytes.resize(*length as usize, 0),
            Call::Mode(name, mode) => self.file(name).mode = *mode,
            Call::Link(name, other) => drop(self.names.insert(other.clone(), self.names[name])),
            Call::Rename(name, other) => {
                // Of two names of one file nothing happens.
                if self.names[name].is_none() || self.names.get(other) != self.names.get(name) {
                    let file = self.names.remove(name).expect("is there");
                    self.names.insert(other.clone(), file);
                }
            }
            Call::Exchange(name, other) => {
                let [one, two] = [name, other].map(|name| self.names[name]);
                self.names.insert(name.clone(), two);
                self.names.insert(other.clone(), one);
            }
            Call::MakeDirectory(name) => drop(self.names.insert(name.clone(), None)),
            Call::Unlink(name) | Call::RemoveDirectory(name) => drop(self.names.remove(name)),
        }
    }

    /// A call that works.
    fn draw(&self, random: &mut Random) -> Call {
        let any = |random: &mut Random| format!("n{}", random.below(OWN));
        loop {
            let (name, other) = (any(random), any(random));
            let (one, two) = (self.names.get(&name), self.names.get(&other));
            let is_file = one.is_some_and(Option::is_some);
            let length = if is_file { self.files[one.expect("there").expect("a file")].bytes.len() as u64 } else { 0 };
            return match random.below(14) {
                0 | 1 if one.is_none() => Call::Create(name),
                2..=4 if is_file => {
                    let offset = random.below(length.min(FILE_MAX - WRITE_MAX) + 1);
                    let bytes = vec![random.draw() as u8 | 1; random.below(WRITE_MAX) as usize + 1];
                    Call::Write(name, offset, bytes)
                }
                5 if is_file => Call::Truncate(name, random.below(FILE_MAX)),
                6 if is_file => Call::Mode(name, 0o600 | random.below(0o200) as u32),
                7 if is_file && two.is_none() => Call::Link(name, other),
                // What is replaced is of the same kind.
                8..=10 if one.is_some() && two.is_none_or(|two| two.is_some() == is_file) => Call::Rename(name, other),
                11 if one.is_some() && two.is_some() => Call::Exchange(name, other),
                12 if is_file => Call::Unlink(name),
                12 if one.is_some() => Call::RemoveDirectory(name),
                13 if one.is_none() => Call::MakeDirectory(name),
                _ => continue,
            };
        }
    }

    fn seen(&self) -> Names {
        let links = |index: usize| self.names.values().filter(|file| **file == Some(index)).count() as u32;
        let seen = |file: &Option<usize>| match *file {
            None => Seen { kind: FileKind::Directory, mode: 0, links: 0, bytes: Vec::new() },
            Some(index) => {
                let File { mode, bytes } = &self.files[index];
                Seen { kind: FileKind::Regular, mode: *mode, links: links(index), bytes: bytes.clone() }
            }
        };
        self.names.iter().map(|(name, file)| (name.clone(), seen(file))).collect()
    }
}

/// A chapter of a worker: its calls.
pub struct Chapter {
    calls: Vec<Call>,
}

impl Chapter {
    /// The chapter of a number.
    pub fn new(seed: u64, worker: usize, number: u64) -> Chapter {
        let mut random = Random(seed ^ (worker as u64) << 48 ^ number << 8);
        let (mut model, mut calls) = (Model::default(), Vec::new());
        while calls.len() < CALLS {
            let call = model.draw(&mut random);
            model.apply(&call);
            calls.push(call);
        }
        for (name, file) in &model.names {
            calls.push(if file.is_some() { Call::Unlink(name.clone()) } else { Call::RemoveDirectory(name.clone()) });
        }
        Chapter { calls }
    }

    /// Its calls.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// What is there after so many of them.
    pub fn names_after(&self, count: usize) -> Names {
        let mut model = Model::default();
        self.calls[..count].iter().for_each(|call| model.apply(call));
        model.seen()
    }

    /// How many calls have taken effect, if so many had returned when the worker died, and this is what is there; else what is wrong. `in_pieces`: whoever passes
    /// writes on may have cut that of a dead writer short at the end of a page; then it is to be done once more.
    pub fn judge(&self, returned: usize, found: &Names, in_pieces: bool) -> Result<usize, String> {
        let before = self.names_after(returned);
        if *found == before {
            return Ok(returned);
        }
        let Some(call) = self.calls.get(returned) else { return Err(differences(found, &before)) };
        let after = self.names_after(returned + 1);
        if *found == after {
            return Ok(returned + 1);
        }
        if in_pieces && self.is_cut_short(returned, found) {
            return Ok(returned);
        }
        let (before, after) = (differences(found, &before), differences(found, &after));
        Err(format!("it is neither as before {} ({before}) nor as after it ({after})", told(call)))
    }

    /// Whether it is as if the call that had not returned were a shorter write, which ends with a page.
    fn is_cut_short(&self, returned: usize, found: &Names) -> bool {
        let Call::Write(name, offset, bytes) = &self.calls[returned] else { return false };
        let ends = (offset / PAGE_BYTES + 1..).map(|page| page * PAGE_BYTES);
        ends.take_while(|end| *end < offset + bytes.len() as u64).any(|end| {
            let mut model = Model::default();
            self.calls[..returned].iter().for_each(|call| model.apply(call));
            model.apply(&Call::Write(name.clone(), *offset, bytes[..(end - offset) as usize].to_vec()));
            *found == model.seen()
        })
    }
}

/// A call without its bytes.
pub fn told(call: &Call) -> String {
    match call {
        Call::Write(name, offset, bytes) => format!("Write({name}, {offset}, {} bytes of {})", bytes.len(), bytes[0]),
        other => format!("{other:?}"),
    }
}

fn differences(found: &Names, wanted: &Names) -> String {
    let missing = wanted.keys().filter(|name| !found.contains_key(*name)).map(|name| format!("{name} is missing"));
    let other = found.iter().filter_map(|(name, seen)| match wanted.get(name) {
        None => Some(format!("{name} should not be there")),
        Some(wanted) if wanted.bytes != seen.bytes => {
            let at = wanted.bytes.iter().zip(&seen.bytes).position(|(one, two)| one != two);
            let lengths = (seen.bytes.len(), wanted.bytes.len());
            Some(format!("{name} has {} bytes, should have {}, and differs at {at:?}", lengths.0, lengths.1))
        }
        Some(wanted) if wanted != seen => {
            let told = |seen: &Seen| format!("{:?} {:o} with {} links", seen.kind, seen.mode, seen.links);
            Some(format!("{name} is {}, should be {}", told(seen), told(wanted)))
        }
        Some(_) => None,
    });
    missing.chain(other).collect::<Vec<_>>().join(", ")
}

/// A call with names that all workers want: whatever comes of it.
pub fn disturbance(random: &mut Random) -> Call {
    let any = |random: &mut Random| format!("s{}", random.below(SHARED));
    let (name, other) = (any(random), any(random));
    match random.below(10) {
        0 | 1 => Call::Create(name),
        2 => Call::Write(name, random.below(9000), vec![7; random.below(9000) as usize + 1]),
        3 => Call::Truncate(name, random.below(9000)),
        4 => Call::Link(name, other),
        5 => Call::Rename(name, other),
        6 => Call::Exchange(name, other),
        7 => Call::MakeDirectory(name),
        8 => Call::RemoveDirectory(name),
        _ => Call::Unlink(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chapter_ends_with_nothing_and_every_call_of_it_changes_what_is_there_or_is_a_rename_to_itself() {
        let chapter = Chapter::new(1, 2, 3);
        assert!(chapter.names_after(chapter.calls().len()).is_empty());
        for count in 0..chapter.calls().len() {
            let found = chapter.names_after(count);
            let judged = chapter.judge(count, &found, false).expect("as it should be");
            assert_eq!(judged, count);
            if count > 2 {
                let long_ago = chapter.names_after(count - 2);
                assert!(
                    long_ago == found
                        || chapter.judge(count, &long_ago, false).is_err()
                        || long_ago == chapter.names_after(count + 1)
                );
            }
        }
    }
}
