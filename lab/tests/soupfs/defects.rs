//! Defects injected into the recorded memory accesses of a file system, like omissions in its code.
//! The explorer must find each one, otherwise it proves nothing.

use super::crash::setup;
use super::explore::{Effort, Recording, record};
use super::image::{Image, LineUse};
use super::model::Operation;
use Mutation::*;
use lab::physical::SyncFile;
use pmem::{Event, Recorded};
use std::collections::BTreeMap;

/// The injected fault. All but the first three concern the last operation, a sync, in which a
/// persister works.
#[derive(Debug, Clone, Copy)]
enum Mutation {
    /// New lines of a kind are never flushed.
    UnflushedNew(LineUse),
    /// Old lines of a kind are never flushed.
    UnflushedOld(LineUse),
    /// Of several lines flushed at once, only the first is.
    FirstLineOnly(LineUse),
    /// The fence with this number is missing.
    NoFence(usize),
    /// The fence before the first change of a consistent link is missing.
    NoFenceBeforeLink,
    /// The fences after it are missing.
    NoFenceAfterLink,
    /// The store that raises a link count is missing.
    RaiseOmitted,
    /// The last store to a consistent link of an old position comes first, durably.
    RemovalFirst,
    /// The stores to a word of inodes (by its offset in the line) come first, durably.
    WordFirst(u64),
    /// The first store to such a word is missing.
    WordOmitted(u64),
    /// No bucket is marked as not yet in its list.
    NoPreparedMark,
    /// Bits of the allocation table are not set.
    TableOmitted,
    /// The first persister's last fence is missing, so space is reused too early.
    EarlyReuse,
}

struct Defect {
    name: &'static str,
    operations: fn() -> Vec<Operation>,
    mutation: Mutation,
}

fn path(path: &str) -> Vec<u8> {
    path.as_bytes().to_vec()
}

fn create() -> Vec<Operation> {
    vec![Operation::Create(path("/a/new"))]
}
fn create_long() -> Vec<Operation> {
    vec![Operation::Create([b"/a/", &[b'n'; 200][..]].concat())]
}
fn mkdir() -> Vec<Operation> {
    vec![Operation::Mkdir(path("/a/new")), Operation::Create(path("/a/new/file"))]
}
fn symlink() -> Vec<Operation> {
    vec![Operation::Symlink(vec![b's'; 100], path("/a/new"))]
}
fn unlink() -> Vec<Operation> {
    vec![Operation::Unlink(path("/a/b"))]
}
fn link() -> Vec<Operation> {
    vec![Operation::Link(path("/a/b"), path("/b/new"))]
}
fn append() -> Vec<Operation> {
    vec![Operation::Write(path("/c"), 700, 20_000, 0x33)]
}
fn append_in_block() -> Vec<Operation> {
    vec![Operation::Write(path("/c"), 700, 300, 0x33)]
}
fn chmod() -> Vec<Operation> {
    vec![Operation::Chmod(path("/c"), 0o600)]
}
fn rename_file() -> Vec<Operation> {
    vec![Operation::Rename(path("/a/b"), path("/b/new"))]
}
fn rename_over() -> Vec<Operation> {
    vec![Operation::Rename(path("/a/b"), path("/c"))]
}
fn rename_directory() -> Vec<Operation> {
    vec![Operation::Rename(path("/a/a"), path("/b/new"))]
}
fn out_and_remove() -> Vec<Operation> {
    vec![
        Operation::Create(path("/a/a/kept")),
        Operation::Sync,
        Operation::Rename(path("/a/a/kept"), path("/b/kept")),
        Operation::Rmdir(path("/a/a")),
    ]
}
/// A directory with enough names to make its table grow.
fn grow() -> Vec<Operation> {
    (0..60).map(|number| Operation::Create(format!("/b/{number}").into_bytes())).collect()
}
fn remove_and_reuse() -> Vec<Operation> {
    vec![
        Operation::Unlink(path("/a/b")),
        Operation::Persist,
        Operation::Create(path("/b/new")),
        Operation::Create(path("/b/newer")),
    ]
}

const DEFECTS: &[Defect] = &[
    Defect { name: "create: entry not flushed", operations: create, mutation: UnflushedNew(LineUse::Entry) },
    Defect { name: "create: inode not flushed", operations: create, mutation: UnflushedNew(LineUse::Inode) },
    Defect {
        name: "create: the link to the entry not flushed",
        operations: create,
        mutation: UnflushedOld(LineUse::BucketLine),
    },
    Defect { name: "create: no fence before the link", operations: create, mutation: NoFenceBeforeLink },
    Defect { name: "create: sync returns before its fence", operations: create, mutation: NoFenceAfterLink },
    Defect { name: "create: allocation table not flushed", operations: create, mutation: UnflushedOld(LineUse::Table) },
    Defect { name: "create: allocation table not written", operations: create, mutation: TableOmitted },
    Defect {
        name: "create: only the first line of a long name flushed",
        operations: create_long,
        mutation: FirstLineOnly(LineUse::Entry),
    },
    Defect {
        name: "mkdir: table of the new directory not flushed",
        operations: mkdir,
        mutation: UnflushedNew(LineUse::BucketLine),
    },
    Defect { name: "symlink: target not flushed", operations: symlink, mutation: UnflushedNew(LineUse::Target) },
    Defect {
        name: "unlink: link past the entry not flushed",
        operations: unlink,
        mutation: UnflushedOld(LineUse::BucketLine),
    },
    Defect { name: "link: inode's count not flushed", operations: link, mutation: UnflushedOld(LineUse::Inode) },
    Defect {
        name: "unlink: space reused before the removal is durable",
        operations: remove_and_reuse,
        mutation: EarlyReuse,
    },
    Defect { name: "link: count not raised before", operations: link, mutation: RaiseOmitted },
    Defect { name: "append: data not flushed", operations: append, mutation: UnflushedNew(LineUse::Data) },
    Defect {
        name: "append in a block: data not flushed",
        operations: append_in_block,
        mutation: UnflushedOld(LineUse::Data),
    },
    Defect { name: "append: pointers not flushed", operations: append, mutation: UnflushedNew(LineUse::Pointers) },
    Defect { name: "append: root before the data", operations: append, mutation: WordFirst(24) },
    Defect { name: "append: no fence between data and pointers", operations: append, mutation: NoFence(0) },
    Defect { name: "append: size not written", operations: append, mutation: WordOmitted(16) },
    Defect { name: "chmod: attributes not flushed", operations: chmod, mutation: UnflushedOld(LineUse::Inode) },
    Defect { name: "rename: the old name is removed first", operations: rename_file, mutation: RemovalFirst },
    Defect {
        name: "rename over a file: no fence before the link",
        operations: rename_over,
        mutation: NoFenceBeforeLink,
    },
    Defect {
        name: "rename of a directory: the inode keeps its old name",
        operations: rename_directory,
        mutation: WordOmitted(16),
    },
    Defect {
        name: "rename of a directory: the inode has its new name first",
        operations: rename_directory,
        mutation: WordFirst(16),
    },
    Defect {
        name: "rmdir: an entry renamed out of it is not yet durable elsewhere",
        operations: out_and_remove,
        mutation: RemovalFirst,
    },
    Defect { name: "growing: bucket page not flushed", operations: grow, mutation: UnflushedNew(LineUse::BucketPage) },
    Defect { name: "growing: buckets not marked as not in the list", operations: grow, mutation: NoPreparedMark },
];

/// The use of each line, before and after.
struct Map {
    before: BTreeMap<u64, LineUse>,
    after: BTreeMap<u64, LineUse>,
    first: u64,
}

impl Map {
    fn new(recording: &Recording) -> Map {
        let (before, after) = (Image(&recording.initial), Image(&recording.after));
        let first = before.first_page() * 4096;
        Map { before: before.reachable().lines, after: after.reachable().lines, first }
    }

    fn place(&self, offset: u64) -> LineUse {
        match offset {
            0..4096 => LineUse::Superblock,
            _ if offset < self.first => LineUse::Table,
            _ => {
                let line = offset / 64 * 64;
                *self.after.get(&line).or_else(|| self.before.get(&line)).unwrap_or(&LineUse::Free)
            }
        }
    }

    fn is_old(&self, offset: u64) -> bool {
        offset < self.first || self.before.contains_key(&(offset / 64 * 64))
    }

    /// Whether a word is a link of the consistent view.
    fn is_link(&self, offset: u64) -> bool {
        match self.place(offset) {
            LineUse::Entry => offset % 64 == 8,
            LineUse::BucketLine => offset % 64 >= 32,
            place => place == LineUse::BucketPage,
        }
    }
}

fn like(event: &Recorded, other: Event) -> Recorded {
    Recorded { thread: event.thread, event: other }
}

/// The event without the flushes of some lines. A streamed write becomes a plain store.
fn unflushed(event: &Recorded, hit: &dyn Fn(u64) -> bool) -> Vec<Recorded> {
    match &event.event {
        Event::Flush { offset, length } => {
            let lines = (offset / 64..(offset + length).div_ceil(64)).map(|line| line * 64);
            let kept = lines.filter(|line| !hit(*line));
            kept.map(|offset| like(event, Event::Flush { offset, length: 64 })).collect()
        }
        Event::Stream { offset, bytes } if hit(*offset) => {
            vec![like(event, Event::Store { offset: *offset, bytes: bytes.clone() })]
        }
        _ => vec![event.clone()],
    }
}

fn without(log: &[Recorded], dropped: &dyn Fn(usize) -> bool) -> Vec<Recorded> {
    log.iter().enumerate().filter(|(at, _)| !dropped(*at)).map(|(_, event)| event.clone()).collect()
}

/// Moves some events of the last operation to its beginning and makes them durable there.
fn first(log: &[Recorded], from: usize, chosen: &[usize]) -> Vec<Recorded> {
    let mut injected = log[..from].to_vec();
    // The thread of the system calls has number zero.
    let persister = log[chosen[0]].thread;
    for at in chosen {
        injected.push(log[*at].clone());
        if let Event::Store { offset, .. } = log[*at].event {
            injected.push(Recorded { thread: persister, event: Event::Flush { offset, length: 8 } });
        }
    }
    injected.push(Recorded { thread: persister, event: Event::Fence });
    injected.extend((from..log.len()).filter(|at| !chosen.contains(at)).map(|at| log[at].clone()));
    injected
}

/// A recording in which faults are injected.
struct Scene<'r> {
    map: Map,
    initial: &'r [u8],
    log: &'r [Recorded],
    /// Index of the first event of the last operation.
    last: usize,
}

impl Scene<'_> {
    fn new(recording: &Recording) -> Scene<'_> {
        let log = &recording.log[..];
        let is_begin = |event: &Recorded| matches!(event.event, Event::Mark(mark) if mark % 2 == 0);
        let last = log.iter().rposition(is_begin).expect("a sync") + 1;
        Scene { map: Map::new(recording), initial: &recording.initial, log, last }
    }

    fn is_fence(&self, at: usize) -> bool {
        self.log[at].event == Event::Fence
    }

    /// The stores of the last operation to some offsets.
    fn stores(&self, wanted: &dyn Fn(u64) -> bool) -> Vec<usize> {
        let is_store = |at: &usize| matches!(self.log[*at].event, Event::Store { offset, .. } if wanted(offset));
        (self.last..self.log.len()).filter(is_store).collect()
    }

    /// The stores to consistent links of old positions.
    fn links(&self) -> Vec<usize> {
        self.stores(&|offset| self.map.is_link(offset) && self.map.is_old(offset))
    }

    fn first_link(&self) -> usize {
        // A link with the mark is only prepared.
        let is_prepared =
            |at: &usize| matches!(&self.log[*at].event, Event::Store { bytes, .. } if bytes[0] & 0x3f >= 0x20);
        self.links().into_iter().find(|at| !is_prepared(at)).expect("a link")
    }

    /// The stores to a word of old inodes.
    fn inode_word(&self, word: u64) -> Vec<usize> {
        self.stores(&|offset| {
            self.map.place(offset) == LineUse::Inode && self.map.is_old(offset) && offset % 64 == word
        })
    }

    /// The store that raises a link count.
    fn raise(&self) -> usize {
        let before = Image(self.initial);
        let raises = |at: &usize| match &self.log[*at].event {
            Event::Store { offset, bytes } => bytes[0] > before.word(*offset) as u8,
            _ => false,
        };
        self.inode_word(0).into_iter().find(raises).expect("a count that rises")
    }

    /// The events of the first persister that runs.
    fn first_persister(&self) -> std::ops::Range<usize> {
        // Until then, the persister in between is the only other thread.
        let start = self.log.iter().position(|event| event.thread != 0).expect("a persister");
        let is_mark = |at: &usize| matches!(self.log[*at].event, Event::Mark(_));
        start..(start..self.log.len()).find(is_mark).expect("its end")
    }

    fn unflushed(&self, place: LineUse, is_old: bool) -> Vec<Recorded> {
        let hit = |offset| self.map.place(offset) == place && self.map.is_old(offset) == is_old;
        self.log.iter().flat_map(|event| unflushed(event, &hit)).collect()
    }

    fn first_line_only(&self, event: &Recorded, place: LineUse) -> Recorded {
        match event.event {
            Event::Flush { offset, length } if self.map.place(offset) == place => {
                like(event, Event::Flush { offset, length: length.min(64) })
            }
            _ => event.clone(),
        }
    }

    fn is_table(&self, at: usize) -> bool {
        matches!(self.log[at].event, Event::Store { offset, .. } if self.map.place(offset) == LineUse::Table)
    }
}

impl Mutation {
    fn inject(self, recording: &Recording) -> Vec<Recorded> {
        let scene = Scene::new(recording);
        let Scene { log, last, .. } = scene;
        match self {
            UnflushedNew(place) => scene.unflushed(place, false),
            UnflushedOld(place) => scene.unflushed(place, true),
            FirstLineOnly(place) => log.iter().map(|event| scene.first_line_only(event, place)).collect(),
            NoFence(number) => {
                let fence = (last..log.len()).filter(|at| scene.is_fence(*at)).nth(number).expect("so many fences");
                without(log, &|at| at == fence)
            }
            NoFenceBeforeLink => {
                let fence = (last..scene.first_link()).rfind(|at| scene.is_fence(*at)).expect("a fence");
                without(log, &|at| at == fence)
            }
            NoFenceAfterLink => {
                let link = scene.first_link();
                without(log, &|at| at > link && scene.is_fence(at))
            }
            RaiseOmitted => {
                let raise = scene.raise();
                without(log, &|at| at == raise)
            }
            RemovalFirst => first(log, last, &[*scene.links().last().expect("a link")]),
            WordFirst(word) => first(log, last, &scene.inode_word(word)),
            WordOmitted(word) => {
                let omitted = scene.inode_word(word)[0];
                without(log, &|at| at == omitted)
            }
            NoPreparedMark => log.iter().map(|event| without_mark(event, &scene.map)).collect(),
            TableOmitted => without(log, &|at| scene.is_table(at)),
            EarlyReuse => {
                let events = scene.first_persister();
                without(log, &|at| events.contains(&at) && scene.is_fence(at))
            }
        }
    }
}

fn without_mark(event: &Recorded, map: &Map) -> Recorded {
    if let Event::Store { offset, bytes } = &event.event
        && map.is_link(*offset)
        && map.place(*offset) != LineUse::Entry
        && bytes.len() == 8
    {
        let value = u64::from_le_bytes((**bytes).try_into().expect("eight bytes")) & !0x20;
        return like(event, Event::Store { offset: *offset, bytes: value.to_le_bytes()[..].into() });
    }
    event.clone()
}

fn recording(operations: Vec<Operation>) -> Recording {
    record(&setup(), SyncFile::Names, &mut |_, index| match index {
        _ if index < operations.len() => Some(operations[index].clone()),
        _ if index == operations.len() => Some(Operation::Sync),
        _ => None,
    })
}

#[test]
fn injected_defects_are_found_and_nothing_without_them() {
    // Panics of the raw decoder count as violations and are expected here.
    let effort = Effort { lines_max: 6, sample: 40, use_every: 2 };
    let mut missed = Vec::new();
    for defect in DEFECTS {
        let mut run = recording((defect.operations)());
        if let Err(violation) = run.explore(effort, 1) {
            panic!("{}: without the defect: {violation:?}", defect.name);
        }
        let injected = defect.mutation.inject(&run);
        assert_ne!(injected, run.log, "{}: the defect changes nothing", defect.name);
        run.log = injected;
        match run.explore(effort, 1) {
            Ok(states) => missed.push(format!("{} ({states} states)", defect.name)),
            Err(violation) => {
                println!("{}: {}: {}", defect.name, violation.state, violation.what.lines().next().unwrap_or(""))
            }
        }
    }
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
}
