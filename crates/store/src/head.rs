//! `PREFIX/head`: which states a prefix holds, and of which layers each consists.
//!
//! One object names everything, and is replaced on condition that it is still the one that was
//! read. So each change of a prefix (push, merge, sweep, takeover) is one atomic step, and a writer
//! that was overtaken cannot succeed. Numbered heads, each created once, would need no replacement;
//! but a slow writer could then create a number that a sweep had removed, and believe that its
//! state counts.
//!
//! Invariants
//! - Every layer in `layers` is in the store, whole, before a head names it.
//! - A layer that no state needs any more moves to `retired` with the time, so that readers of the
//!   old state can end.
//! - `sweeps` grows before objects are removed. A writer commits only over the head that it read,
//!   so none of the layers that it uploaded since was removed.
//!
//! The format is in docs/format.md, "Images in object stores".

use crate::defects::{Defect, has};
use crate::error::StoreError;
use crate::layer;
use ring::digest::{Context, SHA256, digest};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// The version that this program writes and reads.
const VERSION: u64 = 1;
/// Bytes of a head at most.
pub const HEAD_BYTES_MAX: usize = 64 << 20;
/// Bytes of an image at most.
const SIZE_MAX: u64 = 1 << 56;
/// Counters lie below this, so that none overflows.
const COUNT_MAX: u64 = u64::MAX / 2;
/// Bytes of a layer at most; a reader holds several in memory. Writers end a layer at 128 MiB.
const LAYER_BYTES_MAX: u64 = 1 << 28;
/// How far ahead [`Head::spared_until`] counts: seconds.
pub const SPARED: u64 = 3600;
/// Bytes of a tag and of a writer's name at most.
const TEXT_BYTES_MAX: usize = 255;

/// What a prefix holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Always "directfs-store".
    format: String,
    /// Version of the format.
    version: u64,
    /// UUID of the image: 32 hexadecimal digits.
    pub uuid: String,
    /// Drawn when the prefix was made: distinguishes it from an earlier one at that place.
    pub lineage: String,
    /// Counts the writers: each takes the prefix over from the one before.
    pub epoch: u64,
    /// The writer, for messages.
    pub writer: String,
    /// Counts removals of objects.
    pub sweeps: u64,
    /// Drawn for each head: a writer recognises its own.
    pub nonce: String,
    /// How long states are kept besides the newest one.
    pub keep_seconds: u64,
    /// States, oldest first; the last one counts.
    pub states: Vec<State>,
    /// What the states consist of.
    pub layers: Vec<Layer>,
    /// Layers that no state needs any more.
    pub retired: Vec<Retired>,
    /// Until then (seconds since 1970) sweeps spare what no head has named: for a push that a sweep
    /// came between. Zero: no such push.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spared_until: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The time of a writer: from its takeover of a prefix to the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    lineage: String,
    epoch: u64,
}

impl Term {
    /// Counts the writers of the prefix.
    #[cfg(test)]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Makes sure that a head is of this term.
    pub fn check(&self, shown: &str, head: Option<&Head>) -> Result<(), StoreError> {
        let Some(head) = head else { return Err(StoreError::NoImage { shown: shown.to_owned() }) };
        if head.term() == *self || has(Defect::EpochIgnored) {
            return Ok(());
        }
        Err(StoreError::Fenced { shown: shown.to_owned(), writer: head.writer.clone() })
    }
}

/// A state of the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Number of the state: counts from 1.
    pub generation: u64,
    /// When it was pushed: seconds since 1970.
    pub time: u64,
    /// Bytes of the image.
    pub size: u64,
    /// A name, which keeps the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Places in [`Head::layers`], oldest first. The last layer that has a block counts.
    pub layers: Vec<usize>,
}

/// A layer: which object, and what it must be.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layer {
    /// Name of the object below `layers/`.
    pub id: String,
    /// Bytes of the object.
    pub bytes: u64,
    /// Bytes of index and trailer, at the end.
    pub index_bytes: u64,
    /// SHA-256 of these: it covers the checksums of all blocks.
    pub sha256: String,
    /// Every open reads its blocks: a hint to fetch them first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub metadata: bool,
}

/// A layer that is to be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retired {
    /// Name of the object.
    pub id: String,
    /// Since when no state needs it: seconds since 1970.
    pub since: u64,
}

/// Which state to take.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum At {
    /// The newest one.
    #[default]
    Newest,
    /// The one with this number.
    Generation(u64),
    /// The newest one of this time or before: seconds since 1970.
    Time(u64),
    /// The one with this name.
    Tag(String),
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            At::Newest => f.write_str("the newest time"),
            At::Generation(number) => write!(f, "generation {number}"),
            At::Time(seconds) => write!(f, "the time {seconds} (seconds since 1970)"),
            At::Tag(tag) => write!(f, "the tag {tag:?}"),
        }
    }
}

/// Why bytes are no head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadError {
    /// They are not what was written.
    Damaged(String),
    /// A later program wrote them.
    Version(u64),
}

impl Head {
    /// The head of a new prefix, without a state.
    pub fn new(uuid: &str, writer: &str) -> Head {
        Head {
            format: "directfs-store".to_owned(),
            version: VERSION,
            uuid: uuid.to_owned(),
            lineage: random_hex(),
            epoch: 1,
            writer: writer.to_owned(),
            sweeps: 0,
            nonce: random_hex(),
            keep_seconds: 0,
            states: Vec::new(),
            layers: Vec::new(),
            retired: Vec::new(),
            spared_until: 0,
        }
    }

    /// UUID of the image in its usual notation.
    pub fn uuid(&self) -> String {
        // It has 32 digits: see `check`.
        let part = |range| self.uuid.get(range).unwrap_or_default();
        [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
    }

    /// The term of the writer that has the prefix.
    pub fn term(&self) -> Term {
        Term { lineage: self.lineage.clone(), epoch: self.epoch }
    }

    /// Makes sure that the prefix holds the image with this UUID.
    pub fn check_image(&self, shown: &str, uuid: &str) -> Result<(), StoreError> {
        if self.uuid == uuid {
            return Ok(());
        }
        let (theirs, ours) = (self.uuid.clone(), uuid.to_owned());
        Err(StoreError::OtherImage { shown: shown.to_owned(), theirs, ours })
    }

    /// The state that counts.
    pub fn newest(&self) -> Option<&State> {
        self.states.last()
    }

    /// The state that is asked for.
    pub fn find(&self, at: &At) -> Option<&State> {
        let mut newest_first = self.states.iter().rev();
        match at {
            At::Newest => newest_first.next(),
            At::Generation(number) => newest_first.find(|state| state.generation == *number),
            At::Time(seconds) => newest_first.find(|state| state.time <= *seconds),
            At::Tag(tag) => newest_first.find(|state| state.tag.as_ref() == Some(tag)),
        }
    }

    /// The layers of a state, oldest first.
    pub fn layers_of(&self, state: &State) -> Vec<Layer> {
        state.layers.iter().filter_map(|&place| self.layers.get(place)).cloned().collect()
    }

    /// Identifies the content of a state: two states with one identity have equal blocks, whatever
    /// else their heads claim.
    pub fn identity_of(&self, state: &State) -> String {
        let mut context = Context::new(&SHA256);
        context.update(&state.size.to_le_bytes());
        self.layers_of(state).iter().for_each(|layer| context.update(layer.sha256.as_bytes()));
        hex(context.finish().as_ref())
    }

    /// The places of these layers, some of which are new.
    pub fn places_of(&mut self, layers: &[Layer]) -> Vec<usize> {
        let mut places: HashMap<String, usize> =
            self.layers.iter().enumerate().map(|(place, layer)| (layer.id.clone(), place)).collect();
        layers
            .iter()
            .map(|layer| {
                *places.entry(layer.id.clone()).or_insert_with(|| {
                    self.layers.push(layer.clone());
                    self.layers.len() - 1
                })
            })
            .collect()
    }

    /// Takes away the states that are kept no longer, and retires layers that none needs. Returns
    /// whether anything changed. Kept are the newest state, those with tags, and of the last
    /// `keep_seconds` so many that neighbours differ by a sixteenth of their age.
    pub fn prune(&mut self, now: u64) -> bool {
        let before = self.states.len();
        let newest = self.newest().map(|state| state.generation);
        let keep = self.keep_seconds;
        let mut later: Option<u64> = None;
        self.states.reverse();
        self.states.retain(|state| {
            let age = now.saturating_sub(state.time);
            let is_distant = later.is_none_or(|time| time.saturating_sub(state.time) >= age / 16);
            let is_kept = Some(state.generation) == newest || state.tag.is_some() || (age < keep && is_distant);
            if is_kept {
                later = Some(state.time);
            }
            is_kept
        });
        self.states.reverse();
        self.retire(now) || before != self.states.len()
    }

    /// Retires layers that no state needs.
    fn retire(&mut self, now: u64) -> bool {
        let mut is_needed = vec![false; self.layers.len()];
        self.states.iter().flat_map(|state| &state.layers).for_each(|&place| is_needed[place] = true);
        if is_needed.iter().all(|&needed| needed) {
            return false;
        }
        let mut places = vec![0; self.layers.len()];
        let mut kept = Vec::new();
        for (place, layer) in std::mem::take(&mut self.layers).into_iter().enumerate() {
            places[place] = kept.len();
            match is_needed[place] {
                true => kept.push(layer),
                false => self.retired.push(Retired { id: layer.id, since: now }),
            }
        }
        self.layers = kept;
        self.states.iter_mut().flat_map(|state| &mut state.layers).for_each(|place| *place = places[*place]);
        true
    }

    /// The bytes of the object.
    pub fn encode(&self) -> Vec<u8> {
        // A structure of strings and numbers always has a text.
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        let sum = hex(digest(&SHA256, &bytes).as_ref());
        bytes.extend_from_slice(b"\n");
        bytes.extend_from_slice(sum.as_bytes());
        bytes.extend_from_slice(b"\n");
        bytes
    }

    /// Reads the bytes of an object.
    pub fn decode(bytes: &[u8]) -> Result<Head, HeadError> {
        let damaged = |reason: &str| HeadError::Damaged(reason.to_owned());
        let mut lines = bytes.split(|&byte| byte == b'\n');
        let (Some(text), Some(sum), Some(b""), None) = (lines.next(), lines.next(), lines.next(), lines.next()) else {
            return Err(damaged("it is not two lines"));
        };
        if hex(digest(&SHA256, text).as_ref()).as_bytes() != sum {
            return Err(damaged("its checksum does not match"));
        }
        let value: serde_json::Value =
            serde_json::from_slice(text).map_err(|error| HeadError::Damaged(error.to_string()))?;
        if value["format"] != "directfs-store" {
            return Err(damaged("it is of another format"));
        }
        match value["version"].as_u64() {
            Some(VERSION) => {}
            Some(version) => return Err(HeadError::Version(version)),
            None => return Err(damaged("it has no version")),
        }
        let head: Head = serde_json::from_value(value).map_err(|error| HeadError::Damaged(error.to_string()))?;
        head.check().map_err(damaged)?;
        Ok(head)
    }

    /// Makes sure that it can be written, or believed.
    pub fn check(&self) -> Result<(), &'static str> {
        let is_hex = |text: &str, digits| {
            text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        if !is_hex(&self.uuid, 32) || !is_hex(&self.lineage, 32) || !is_hex(&self.nonce, 32) {
            return Err("an identity is not 32 hexadecimal digits");
        }
        if self.epoch > COUNT_MAX || self.sweeps > COUNT_MAX {
            return Err("a counter has an impossible value");
        }
        for layer in &self.layers {
            let is_sized = layer.bytes <= LAYER_BYTES_MAX
                && layer.index_bytes <= layer.bytes
                && layer.index_bytes <= layer::INDEX_BYTES_MAX;
            if !is_id(&layer.id) || !is_hex(&layer.sha256, 64) || !is_sized {
                return Err("a layer has an impossible name, size or checksum");
            }
        }
        if self.retired.iter().any(|retired| !is_id(&retired.id)) {
            return Err("a retired layer has an impossible name");
        }
        if self.writer.len() > TEXT_BYTES_MAX || self.writer.contains(char::is_control) {
            return Err("its writer has an impossible name");
        }
        if self.states.iter().filter_map(|state| state.tag.as_ref()).any(|tag| !is_tag(tag)) {
            return Err("a state has an impossible tag");
        }
        if !self.states.is_sorted_by(|a, b| a.generation < b.generation) {
            return Err("its states are not in order");
        }
        let names: HashSet<&str> = self.layers.iter().map(|layer| layer.id.as_str()).collect();
        if names.len() != self.layers.len() {
            return Err("it names a layer twice");
        }
        for state in &self.states {
            // Few bytes would name any number of reads.
            if state.layers.iter().collect::<HashSet<_>>().len() != state.layers.len() {
                return Err("a state names a layer twice");
            }
            if state.size == 0 || state.size > SIZE_MAX || state.generation > COUNT_MAX {
                return Err("a state has an impossible size or generation");
            }
            if state.layers.iter().any(|&place| place >= self.layers.len()) {
                return Err("a state needs a layer that is not there");
            }
        }
        Ok(())
    }
}

/// Whether a text can be a tag: it can be shown, and means neither a generation nor a time.
pub fn is_tag(text: &str) -> bool {
    (1..=TEXT_BYTES_MAX).contains(&text.len())
        && !text.contains(char::is_control)
        && !text.starts_with('@')
        && text.parse::<u64>().is_err()
}

/// Whether a text can be the name of a layer.
pub fn is_id(text: &str) -> bool {
    (1..=80).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
}

/// 32 random hexadecimal digits.
pub fn random_hex() -> String {
    hex(&image::random_uuid())
}

/// Bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
