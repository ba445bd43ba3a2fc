//! The calls of a storm's worker: calls with its own names, whose results are known, and calls with
//! names that all workers share.
//!
//! The calls on its own names come in chapters. Each chapter begins with an empty directory. The
//! seed, the worker and the chapter's number determine its calls and the state after each. After a
//! death the expected state is therefore known: that of the completed calls, with or without the
//! next call's effect.

use engine::format::FileKind;
use std::collections::BTreeMap;

/// Calls of a chapter that change the directory; after them the remaining names are removed.
const CALLS: usize = 150;
/// Maximum number of calls in a chapter.
pub const CALLS_MAX: u64 = CALLS as u64 + OWN;
/// Maximum length of a write and of a file.
const WRITE_MAX: u64 = 12_000;
const FILE_MAX: u64 = 40_000;
const PAGE_BYTES: u64 = 4096;

/// Names in a worker's directory, and in the shared one.
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
    /// Creates an empty file.
    Create(String),
    /// Writes bytes at an offset.
    Write(String, u64, Vec<u8>),
    /// Sets the length.
    Truncate(String, u64),
    /// Sets the permissions.
    Mode(String, u32),
    /// Adds a name to a file.
    Link(String, String),
    /// Renames, replacing an existing name.
    Rename(String, String),
    /// Exchanges two names.
    Exchange(String, String),
    /// Removes a file's name.
    Unlink(String),
    /// Creates a directory.
    MakeDirectory(String),
    /// Removes a directory.
    RemoveDirectory(String),
}

/// The compared properties of a name's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// A file or a directory.
    pub kind: FileKind,
    /// Permissions of a file.
    pub mode: u32,
    /// Link count of a file.
    pub links: u32,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// A worker's directory: the file of each name.
pub type Names = BTreeMap<String, Seen>;

/// A file in the model.
#[derive(Debug, Clone)]
struct File {
    mode: u32,
    bytes: Vec<u8>,
}

/// The state between two calls of a chapter: for each name its file, or none for a directory.
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
                // A rename between two names of one file does nothing.
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

    /// Whether an exchange of two names shows, or may be repeated: after the death of its worker
    /// the names show whether it has happened.
    fn is_visible(&self, one: Option<&Option<usize>>, two: Option<&Option<usize>>) -> bool {
        let (Some(Some(one)), Some(Some(two))) = (one, two) else { return true };
        let content = |index: usize| {
            let links = self.names.values().filter(|file| **file == Some(index)).count();
            (self.files[index].mode, links, &self.files[index].bytes)
        };
        one == two || content(*one) != content(*two)
    }

    /// A call that succeeds.
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
                // The replaced file is of the same kind.
                8..=10 if one.is_some() && two.is_none_or(|two| two.is_some() == is_file) => Call::Rename(name, other),
                11 if one.is_some() && two.is_some() && self.is_visible(one, two) => Call::Exchange(name, other),
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

    /// The state after the first `count` calls.
    pub fn names_after(&self, count: usize) -> Names {
        let mut model = Model::default();
        self.calls[..count].iter().for_each(|call| model.apply(call));
        model.seen()
    }

    /// The number of calls that have taken effect, given that `returned` had returned when the
    /// worker died and that `found` is the state; the error is the difference. With `in_pieces`, a
    /// dead writer's write may have been cut short at the end of a page; it must then be repeated.
    pub fn check(&self, returned: usize, found: &Names, in_pieces: bool) -> Result<usize, String> {
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
        Err(format!("the directory is neither as before {} ({before}) nor as after it ({after})", describe(call)))
    }

    /// Whether the state is that of a shorter write which ends with a page.
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

/// A call without its bytes, for display.
pub fn describe(call: &Call) -> String {
    match call {
        Call::Write(name, offset, bytes) => format!("Write({name}, {offset}, {} bytes of {})", bytes.len(), bytes[0]),
        other => format!("{other:?}"),
    }
}

fn differences(found: &Names, wanted: &Names) -> String {
    let missing = wanted.keys().filter(|name| !found.contains_key(*name)).map(|name| format!("{name} is missing"));
    let other = found.iter().filter_map(|(name, seen)| match wanted.get(name) {
        None => Some(format!("{name} is unexpected")),
        Some(wanted) if wanted.bytes != seen.bytes => {
            let at = wanted.bytes.iter().zip(&seen.bytes).position(|(one, two)| one != two);
            let lengths = (seen.bytes.len(), wanted.bytes.len());
            Some(format!("{name} has {} bytes, expected {}, and differs at {at:?}", lengths.0, lengths.1))
        }
        Some(wanted) if wanted != seen => {
            let result = |seen: &Seen| format!("{:?} {:o} with {} links", seen.kind, seen.mode, seen.links);
            Some(format!("{name} is {}, expected {}", result(seen), result(wanted)))
        }
        Some(_) => None,
    });
    missing.chain(other).collect::<Vec<_>>().join(", ")
}

/// A call on shared names, with any result.
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
    fn an_exchange_of_files_that_look_alike_is_not_drawn() {
        let alike = (0..200u64).flat_map(|number| {
            let chapter = Chapter::new(5, 4, number);
            let exchanges = chapter.calls().iter().enumerate().filter_map(|(at, call)| match call {
                Call::Exchange(one, two) if one != two => Some((at, one.clone(), two.clone())),
                _ => None,
            });
            let found = exchanges.map(|(at, one, two)| {
                let mut model = Model::default();
                chapter.calls[..at].iter().for_each(|call| model.apply(call));
                let seen = model.seen();
                seen[&one].kind == FileKind::Regular
                    && seen[&one] == seen[&two]
                    && model.names[&one] != model.names[&two]
            });
            found.collect::<Vec<_>>()
        });
        let alike: Vec<bool> = alike.collect();
        assert!(alike.len() > 100 && !alike.contains(&true));
    }

    #[test]
    fn a_chapter_ends_with_nothing_and_every_call_of_it_changes_what_is_there_or_is_a_rename_to_itself() {
        let chapter = Chapter::new(1, 2, 3);
        assert!(chapter.names_after(chapter.calls().len()).is_empty());
        for count in 0..chapter.calls().len() {
            let found = chapter.names_after(count);
            let judged = chapter.check(count, &found, false).expect("as it should be");
            assert_eq!(judged, count);
            if count > 2 {
                let long_ago = chapter.names_after(count - 2);
                assert!(
                    long_ago == found
                        || chapter.check(count, &long_ago, false).is_err()
                        || long_ago == chapter.names_after(count + 1)
                );
            }
        }
    }
}
