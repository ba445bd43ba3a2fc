//! Injected defects that the explorer must find. The engine is not changed: a defect is injected
//! into the recorded log of a workload, as if the engine had omitted a flush, a fence or a field,
//! or had taken steps in another order. Programs that use the engine pay nothing for it.

use crate::line_kinds::{LineKind, Map};
use crate::recording::{Recording, Source};
use engine::format::JournalRecord;
use pmem::{Event, Recorded};

const LINE_BYTES: u64 = 64;

/// The kind of a defect.
#[derive(Debug, Clone, Copy)]
pub enum Mutation {
    /// No flush reaches lines of this kind; streamed bytes stay in the cache.
    Unflushed(LineKind),
    /// Flushes of several lines of this kind reach only the first one.
    FirstLineOnly(LineKind),
    /// The last operation's fence of this index is missing; a negative index counts from the end.
    NoFence(i32),
    /// The last operation's fence of this index comes only when it returns.
    LateFence(i32),
    /// Stores to this kind of line become durable before everything else of the last operation.
    TooEarly(LineKind),
    /// Stores to this kind of line never happen.
    Unwritten(LineKind),
    /// Streaming stores leave partial lines in the cache.
    UnflushedEdges,
    /// This word of the journal's record is zero, and the record is sealed so.
    OmittedFromJournal(usize),
}

/// A defect, and a workload that reveals it.
#[derive(Debug, Clone, Copy)]
pub struct Defect {
    /// A description of the omission.
    pub name: &'static str,
    /// The workload that reveals it.
    pub workload: &'static str,
    /// The change of the log.
    pub mutation: Mutation,
}

const fn defect(name: &'static str, workload: &'static str, mutation: Mutation) -> Defect {
    Defect { name, workload, mutation }
}

use LineKind::{Data, Dentry, Fixed, Identity, Inline, Journal, Node, PageHeader, Property, SegmentList, Slot};
use Mutation::{FirstLineOnly, LateFence, NoFence, OmittedFromJournal, TooEarly, Unflushed, UnflushedEdges, Unwritten};

/// All defects. The explorer finds each.
pub const DEFECTS: &[Defect] = &[
    defect("create: dentry not flushed", "base:create", Unflushed(Dentry)),
    defect("create: identity not flushed", "base:create", Unflushed(Identity)),
    defect("create: property entry not flushed", "base:create", Unflushed(Property)),
    defect("create: log slot not flushed", "base:create", Unflushed(Slot)),
    defect("create: no fence", "base:create", NoFence(-1)),
    defect("create: only the first line of a long name flushed", "base:create-long", FirstLineOnly(Dentry)),
    defect("mkdir: header of the first log page not flushed", "base:mkdir-in-empty,create", Unflushed(PageHeader)),
    defect("create in an empty directory: page not linked durably", "base:mkdir-in-empty", Unflushed(Identity)),
    defect("create at a page boundary: link to the new page not flushed", "page504:p-create", Unflushed(PageHeader)),
    defect("detach: bound of used slots not flushed", "page8:p-create,detach", Unflushed(PageHeader)),
    defect("new segment: list of its blocks not flushed", "scattered:create", Unflushed(SegmentList)),
    defect("new segment: table entry not durable", "scattered:create", Unflushed(Fixed)),
    defect("new segment: table entry written before the segment is durable", "scattered:create", TooEarly(Fixed)),
    defect("symlink: target not flushed", "base:symlink", Unflushed(Inline)),
    defect("symlink: no fence between target and name", "base:symlink", NoFence(0)),
    defect("long symlink: target not flushed", "base:symlink-long", Unflushed(Data)),
    defect("unlink: dentry not flushed", "base:unlink", Unflushed(Dentry)),
    defect("unlink: no fence", "base:unlink", NoFence(-1)),
    defect("link: property entry not flushed", "base:link", Unflushed(Property)),
    defect("chmod: property entry not flushed", "base:chmod", Unflushed(Property)),
    defect("chmod: no fence", "base:chmod", NoFence(-1)),
    defect("utimes: access time not flushed", "base:utimes", Unflushed(Inline)),
    defect("rename: journal not flushed", "base:rename", Unflushed(Journal)),
    defect("rename: new dentry not flushed", "base:rename", Unflushed(Dentry)),
    defect("rename: steps before the record's fence", "base:rename", NoFence(0)),
    defect("rename: the record's fence comes last", "base:rename-over-across", LateFence(0)),
    defect("rename: returns before its fence", "base:rename", NoFence(-1)),
    defect("rename: old name removed before the record", "base:rename-across", TooEarly(Dentry)),
    defect("rename: record omits the new name's dentry", "base:rename", OmittedFromJournal(1)),
    defect("rename: record omits the old name", "base:rename", OmittedFromJournal(4)),
    defect("rename: record omits the replaced name", "base:rename-over", OmittedFromJournal(5)),
    defect("rename: record omits the time", "base:rename-across", OmittedFromJournal(6)),
    defect("exchange: record omits the second name", "base:exchange-across", OmittedFromJournal(8)),
    defect("append: bytes not flushed", "base:append", Unflushed(Data)),
    defect("append: edges left in the cache", "base:append-blocks", UnflushedEdges),
    defect("append: no fence between bytes and length", "base:append", NoFence(0)),
    defect("append: length durable before the bytes", "base:append", TooEarly(Property)),
    defect("append: returns before its fence", "base:append", NoFence(-1)),
    defect("append: new map node not flushed", "base:append-higher", Unflushed(Node)),
    defect("overwrite: copy not flushed", "base:overwrite", Unflushed(Data)),
    defect("overwrite: pointer to the copy not flushed", "base:overwrite", Unflushed(Node)),
    defect("overwrite of several blocks: no fence before the swap", "base:overwrite-blocks", NoFence(0)),
    defect("truncate: length not flushed", "base:truncate-less", Unflushed(Property)),
    defect("truncate: length never written", "base:truncate-zero", Unwritten(Property)),
    defect("growing: old tail becomes visible", "base:truncate-less,regrow", Unflushed(Data)),
    defect("insert: moved pointers not flushed", "base:insert", Unflushed(Node)),
    defect("setxattr: body not flushed", "base:set-xattr", Unflushed(Data)),
    defect("setxattr: root not flushed", "base:set-xattr", Unflushed(Identity)),
    defect("setxattr: no fence between body and root", "base:set-xattr", NoFence(0)),
    defect("compaction: slots of the new pages not flushed", "holes:p-unlink", Unflushed(Slot)),
    defect("compaction: headers of the new pages not flushed", "holes:p-unlink", Unflushed(PageHeader)),
    defect("compaction: pages swapped before they are durable", "holes:p-unlink", TooEarly(Identity)),
];

impl Defect {
    /// Whether the defect can be injected into a log of this source. By instructions, the edges of
    /// a copy are ordinary stores and flushes among others.
    pub fn is_visible(&self, source: Source) -> bool {
        source == Source::Recorder || !matches!(self.mutation, UnflushedEdges)
    }

    /// The log with the defect; an error if it has no event that the defect would change.
    pub fn inject(&self, recording: &Recording) -> Result<Vec<Recorded>, String> {
        let map = Map::new(&[&recording.initial, &recording.after]);
        let log = &recording.log;
        let injected = match self.mutation {
            Unflushed(kind) => {
                log.iter().flat_map(|event| unflushed(event, &|offset| map.kind(offset) == kind)).collect()
            }
            FirstLineOnly(kind) => first_lines_only(log, &map, kind),
            UnflushedEdges => log.iter().flat_map(without_edges).collect(),
            Unwritten(kind) => log.iter().filter(|event| !stores_to(event, &map, kind)).cloned().collect(),
            TooEarly(kind) => too_early(log, &map, kind)?,
            NoFence(number) => move_fence(log, number, false)?,
            LateFence(number) => move_fence(log, number, true)?,
            OmittedFromJournal(word) => omitted(log, &map, word),
        };
        if injected == *log {
            Err(format!("{}: the log has no event for this defect", self.name))
        } else {
            Ok(injected)
        }
    }
}

fn like(event: &Recorded, other: Event) -> Recorded {
    Recorded { thread: event.thread, event: other }
}

/// The event without the flushes of some lines.
fn unflushed(event: &Recorded, hit: &dyn Fn(u64) -> bool) -> Vec<Recorded> {
    match &event.event {
        Event::Flush { offset, length } => {
            let lines = offset / LINE_BYTES..(offset + length).div_ceil(LINE_BYTES);
            let kept = lines.map(|line| line * LINE_BYTES).filter(|line| !hit(*line));
            kept.map(|offset| like(event, Event::Flush { offset, length: LINE_BYTES })).collect()
        }
        Event::Stream { offset, bytes } if hit(*offset) => {
            vec![like(event, Event::Store { offset: *offset, bytes: bytes.clone() })]
        }
        _ => vec![event.clone()],
    }
}

/// Without the later lines of each flush, which may be an event for each line.
fn first_lines_only(log: &[Recorded], map: &Map, kind: LineKind) -> Vec<Recorded> {
    let mut next = None;
    let kept = log.iter().filter_map(|event| match &event.event {
        Event::Flush { offset, length } if map.kind(*offset) == kind => {
            let first = (*length).min(LINE_BYTES - offset % LINE_BYTES);
            let is_later = next.replace(offset + length) == Some(*offset);
            (!is_later).then(|| like(event, Event::Flush { offset: *offset, length: first }))
        }
        _ => {
            next = None;
            Some(event.clone())
        }
    });
    kept.collect()
}

/// A streaming store whose edges are ordinary, unflushed stores.
fn without_edges(event: &Recorded) -> Vec<Recorded> {
    let Event::Stream { offset, bytes } = &event.event else { return vec![event.clone()] };
    let length = bytes.len() as u64;
    let head = (offset.next_multiple_of(LINE_BYTES) - offset).min(length);
    let tail = length - (length - head) % LINE_BYTES;
    let part = |from: u64, to: u64| (offset + from, bytes[from as usize..to as usize].into());
    let mut parts = Vec::new();
    for (from, to, whole) in [(0, head, false), (head, tail, true), (tail, length, false)] {
        if from < to {
            let (offset, bytes) = part(from, to);
            parts.push(like(
                event,
                if whole { Event::Stream { offset, bytes } } else { Event::Store { offset, bytes } },
            ));
        }
    }
    parts
}

fn stores_to(event: &Recorded, map: &Map, kind: LineKind) -> bool {
    matches!(&event.event, Event::Store { offset, .. } if map.kind(*offset) == kind)
}

/// The index of the last operation's first event.
fn begin_of_last(log: &[Recorded]) -> usize {
    let is_begin = |event: &Recorded| matches!(event.event, Event::Mark(mark) if mark % 2 == 0);
    log.iter().rposition(is_begin).map_or(0, |at| at + 1)
}

/// Moves the last operation's stores to an existing structure to the front, with their own flush
/// and fence.
fn too_early(log: &[Recorded], map: &Map, kind: LineKind) -> Result<Vec<Recorded>, String> {
    let begin = begin_of_last(log);
    let (before, rest) = log.split_at(begin);
    let early = |event: &&Recorded| match &event.event {
        Event::Store { offset, .. } => map.kind(*offset) == kind && map.is_old(*offset),
        _ => false,
    };
    let mut injected = before.to_vec();
    let moved: Vec<_> = rest.iter().filter(early).collect();
    let thread = moved.first().ok_or("no store matches")?.thread;
    for event in &moved {
        injected.push((*event).clone());
        if let Event::Store { offset, bytes } = &event.event {
            injected.push(like(event, Event::Flush { offset: *offset, length: bytes.len() as u64 }));
        }
    }
    injected.push(Recorded { thread, event: Event::Fence });
    injected.extend(rest.iter().filter(|event| !early(event)).cloned());
    Ok(injected)
}

/// Removes a fence of the last operation, or moves it to the operation's end.
fn move_fence(log: &[Recorded], number: i32, to_end: bool) -> Result<Vec<Recorded>, String> {
    let begin = begin_of_last(log);
    let is_fence = |at: &usize| log[*at].event == Event::Fence;
    let fences: Vec<usize> = (begin..log.len()).filter(is_fence).collect();
    let index = if number < 0 { fences.len() as i32 + number } else { number };
    let at = *fences.get(index as usize).ok_or("the fence does not exist")?;
    let mut injected = log.to_vec();
    let fence = injected.remove(at);
    if to_end {
        let end = injected.iter().rposition(|event| matches!(event.event, Event::Mark(_))).unwrap_or(injected.len());
        injected.insert(end, fence);
    }
    Ok(injected)
}

/// The log with a journal record that lacks a word, and is sealed so.
fn omitted(log: &[Recorded], map: &Map, word: usize) -> Vec<Recorded> {
    let mut words = [0u64; 12];
    log.iter()
        .map(|event| {
            let Event::Store { offset, bytes } = &event.event else { return event.clone() };
            if map.kind(*offset) != Journal || bytes.len() != 8 {
                return event.clone();
            }
            let value = u64::from_le_bytes((**bytes).try_into().expect("eight bytes"));
            let at = (offset % 128 / 8) as usize;
            let value = match at {
                0 if value != 0 => JournalRecord::seal(&words),
                0 => 0,
                at if at == word + 1 => 0,
                _ => value,
            };
            if (1..13).contains(&at) {
                words[at - 1] = value;
            }
            like(event, Event::Store { offset: *offset, bytes: value.to_le_bytes()[..].into() })
        })
        .collect()
}
