//! Threads whose every step a scheduler decides: pairs of operations that get in each other's way. What each was told, and the tree they leave, must be
//! what some order of the operations gives that does not contradict which of them had ended before another began. Then the image is left, and checked.
//!
//! Schedules are drawn at random, and by PCT (few switches, at places that are drawn). `SCHEDULES=n` draws n of each, `SCHEDULES_ONLY=name` only for one
//! contest, `SCHEDULES_SEED=n` others. A schedule that fails is printed; `SCHEDULES_REPLAY` replays it, with `SCHEDULES_ONLY`.
//!
//! The scheduler knows one order of all accesses: weaker orders of memory are not tried here.

use crate::attach::AttachOptions;
use crate::error::{Error, Result};
use crate::format::FileKind;
use crate::fs::{Fs, Node, Thread};
use crate::reap_tests::{check_cachelets, room};
use crate::testing::schedule::{self, On, Race, Scheduled};
use crate::testing::{Memory, PLATFORM, new_image, new_node};
use crate::{Footing, RenameFlags};
use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};
use std::boxed::Box;
use std::collections::BTreeMap;
use std::format;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

/// A thread, and the directories that it need not look for: to walk a path is several operations.
struct Hand<'f> {
    thread: Thread<'f, Scheduled>,
    held: &'f BTreeMap<String, Node>,
    /// The way to a directory that it has gone before.
    way: Cell<Option<[Footing; 2]>>,
}

impl<'f> core::ops::Deref for Hand<'f> {
    type Target = Thread<'f, Scheduled>;
    fn deref(&self) -> &Thread<'f, Scheduled> {
        &self.thread
    }
}

/// What a thread does next, and what it was told.
type Operation = fn(&Hand<'_>) -> String;

/// Threads that get in each other's way.
struct Contest {
    name: &'static str,
    /// What is done before, by another thread.
    prepare: fn(&Hand<'_>) -> Result<()>,
    /// Directories that are open meanwhile.
    held: &'static [&'static str],
    threads: &'static [&'static [Operation]],
}

/// What came of a contest: what each operation of each thread was told, and what is there afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    told: Vec<Vec<String>>,
    tree: BTreeMap<String, String>,
}

/// Moments of begin and end of each operation.
type Moments = Vec<Vec<(u64, u64)>>;

const IMAGE_BYTES: u64 = 1 << 20;

// Operations by path. Absolute paths of directories and names; the root is "".

/// With a reference.
fn directory(hand: &Hand<'_>, path: &str) -> Result<Node> {
    if let Some(node) = hand.held.get(path) {
        return hand.retain(*node).map(|()| *node);
    }
    let mut node = hand.root()?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let next = hand.lookup(node, name.as_bytes());
        hand.release(node, 1);
        node = next?;
    }
    Ok(node)
}

fn within<R>(hand: &Hand<'_>, path: &str, work: impl FnOnce(Node, &[u8]) -> Result<R>) -> Result<R> {
    let (parent, name) = path.rsplit_once('/').ok_or(Error::Invalid)?;
    let node = directory(hand, parent)?;
    let result = work(node, name.as_bytes());
    hand.release(node, 1);
    result
}

fn make(hand: &Hand<'_>, path: &str, kind: FileKind, content: &[u8]) -> Result<()> {
    let new = new_node(kind);
    within(hand, path, |parent, name| {
        let node = hand.create(parent, name, &new)?;
        let written = if content.is_empty() { Ok(()) } else { hand.append(node, content).map(drop) };
        hand.release(node, 1);
        written
    })
}

fn create(hand: &Hand<'_>, path: &str) -> Result<()> {
    make(hand, path, FileKind::Regular, b"")
}

fn mkdir(hand: &Hand<'_>, path: &str) -> Result<()> {
    make(hand, path, FileKind::Directory, b"")
}

fn unlink(hand: &Hand<'_>, path: &str) -> Result<()> {
    within(hand, path, |parent, name| hand.unlink(parent, name, |_| Ok(())))
}

fn rmdir(hand: &Hand<'_>, path: &str) -> Result<()> {
    within(hand, path, |parent, name| hand.remove_directory(parent, name, |_| Ok(())))
}

fn link(hand: &Hand<'_>, old: &str, new: &str) -> Result<()> {
    let node = within(hand, old, |parent, name| hand.lookup(parent, name))?;
    let linked = within(hand, new, |parent, name| hand.link(node, parent, name));
    hand.release(node, 1);
    linked
}

fn rename(hand: &Hand<'_>, old: &str, new: &str, flags: RenameFlags) -> Result<()> {
    within(hand, old, |from, name| {
        within(hand, new, |to, new_name| hand.rename((from, name), (to, new_name), flags, |_, _| Ok(())))
    })
}

const PLAINLY: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..PLAINLY };
const WHITEOUT: RenameFlags = RenameFlags { whiteout: true, ..PLAINLY };

/// Opens, reads, closes: what a file held at one moment.
fn read(hand: &Hand<'_>, path: &str) -> Result<String> {
    let node = within(hand, path, |parent, name| hand.lookup(parent, name))?;
    let mut bytes = std::vec![0; 16 << 10];
    let count = hand.read(node, 0, &mut bytes);
    hand.release(node, 1);
    Ok(summary(&bytes[..count?]))
}

/// The length of a file two levels below the root; by the footings of the directories if these stand, else by their names.
fn tread(hand: &Hand<'_>, directory: &[u8], name: &[u8]) -> Result<u64> {
    let visit = hand.visit();
    let below = |directory| match visit.find(directory, name)? {
        Some(file) => Ok(visit.stat(file)?.size_bytes),
        None => Err(Error::Busy),
    };
    if let Some(directory) = hand.way.take().and_then(|way| visit.stand_at(&way).inspect(|_| hand.way.set(Some(way)))) {
        return below(directory);
    }
    let root = visit.begin_at(hand.held[""])?;
    let find = || visit.find(root, directory)?.ok_or(Error::Busy);
    let first = find()?;
    let footings = visit.footing(root).zip(visit.footing(first));
    let again = find()?;
    hand.way.set(footings.filter(|_| again.node() == first.node()).map(|(root, directory)| [root, directory]));
    below(again)
}

/// Bytes, shortened: runs of the same one.
fn summary(bytes: &[u8]) -> String {
    bytes.chunk_by(|a, b| a == b).map(|run| format!("{}*{} ", run[0] as char, run.len())).collect()
}

fn list(hand: &Hand<'_>, path: &str) -> Result<String> {
    let node = directory(hand, path)?;
    let mut names = Vec::new();
    let done = hand.read_directory(node, 0, &mut Default::default(), &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    });
    hand.release(node, 1);
    names.sort();
    done.map(|_| names.join(" "))
}

/// How often two names are listed if each call lists one name.
fn list_in_pieces(hand: &Hand<'_>, path: &str, names: [&str; 2]) -> Result<[usize; 2]> {
    let node = directory(hand, path)?;
    let (mut counts, mut cookie, mut before) = ([0; 2], 0, u64::MAX);
    let mut hint = Default::default();
    while before != cookie {
        before = cookie;
        hand.read_directory(node, cookie, &mut hint, &mut |entry| {
            cookie = entry.cookie;
            (0..2).for_each(|index| counts[index] += usize::from(entry.name == names[index].as_bytes()));
            false
        })?;
    }
    hand.release(node, 1);
    Ok(counts)
}

fn said<T: core::fmt::Debug>(result: Result<T>) -> String {
    format!("{result:?}")
}

const CONTESTS: &[Contest] = &[
    Contest {
        name: "create-create",
        prepare: |_| Ok(()),
        held: &[""],
        threads: &[&[|h| said(create(h, "/x"))], &[|h| said(mkdir(h, "/x"))], &[|h| said(list(h, ""))]],
    },
    Contest {
        name: "create-unlink",
        prepare: |hand| make(hand, "/x", FileKind::Regular, b"old"),
        held: &[""],
        threads: &[
            &[|h| said(create(h, "/x")), |h| said(read(h, "/x"))],
            &[|h| said(unlink(h, "/x")), |h| said(unlink(h, "/x"))],
        ],
    },
    Contest {
        name: "unlink-open",
        prepare: |hand| make(hand, "/x", FileKind::Regular, b"aaaa"),
        held: &[""],
        threads: &[
            &[|h| said(unlink(h, "/x")), |h| said(make(h, "/y", FileKind::Regular, b""))],
            &[|h| said(look(h, "/x")), |h| said(look(h, "/y"))],
        ],
    },
    Contest {
        name: "rename-rename-crossing",
        prepare: |hand| {
            mkdir(hand, "/a")?;
            mkdir(hand, "/b")
        },
        held: &["", "/a", "/b"],
        threads: &[&[|h| said(rename(h, "/a", "/b/a", PLAINLY))], &[|h| said(rename(h, "/b", "/a/b", PLAINLY))]],
    },
    Contest {
        name: "rename-rename-swapping",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            make(hand, "/x", FileKind::Regular, b"x")?;
            make(hand, "/d/y", FileKind::Regular, b"yy")
        },
        held: &["", "/d"],
        threads: &[
            &[|h| said(rename(h, "/x", "/d/y", PLAINLY))],
            &[|h| said(rename(h, "/d/y", "/x", PLAINLY))],
            &[|h| said(rename(h, "/x", "/d/y", EXCHANGE))],
        ],
    },
    Contest {
        // One of the exchanged files is renamed by its other name meanwhile.
        name: "exchange-rename-linked",
        prepare: |hand| {
            make(hand, "/x", FileKind::Regular, b"x")?;
            make(hand, "/y", FileKind::Regular, b"yy")?;
            link(hand, "/y", "/z")
        },
        held: &[""],
        threads: &[
            &[|h| said(rename(h, "/x", "/y", EXCHANGE))],
            &[|h| said(rename(h, "/z", "/w", PLAINLY)), |h| said(rename(h, "/w", "/z", PLAINLY))],
            &[|h| said(read(h, "/x")), |h| said(read(h, "/y")), |h| said(read(h, "/z"))],
        ],
    },
    Contest {
        name: "rename-lookup",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            make(hand, "/x", FileKind::Regular, b"x")?;
            make(hand, "/d/y", FileKind::Regular, b"yy")
        },
        held: &["", "/d"],
        threads: &[
            &[|h| said(rename(h, "/x", "/d/y", PLAINLY)), |h| said(rename(h, "/d/y", "/x", PLAINLY))],
            &[|h| said(look(h, "/x")), |h| said(look(h, "/d/y")), |h| said(look(h, "/x"))],
        ],
    },
    Contest {
        name: "exchange-tread",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            mkdir(hand, "/e")?;
            make(hand, "/d/x", FileKind::Regular, b"x")?;
            make(hand, "/e/x", FileKind::Regular, b"xx")
        },
        held: &[""],
        threads: &[
            &[|h| said(rename(h, "/d", "/e", EXCHANGE)), |h| said(rename(h, "/e", "/f", PLAINLY))],
            &[
                |h| said(tread(h, b"d", b"x")),
                |h| said(tread(h, b"d", b"x")),
                |h| said(read(h, "/e/x")),
                |h| said(tread(h, b"d", b"x")),
            ],
        ],
    },
    Contest {
        name: "rename-tread",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            mkdir(hand, "/e")?;
            make(hand, "/e/x", FileKind::Regular, b"x")
        },
        held: &[""],
        threads: &[
            &[|h| said(rename(h, "/e", "/d", PLAINLY)), |h| said(rename(h, "/d", "/e", PLAINLY))],
            &[
                |h| said(tread(h, b"d", b"x")),
                |h| said(read(h, "/e/x")),
                |h| said(tread(h, b"d", b"x")),
                |h| said(tread(h, b"d", b"x")),
            ],
        ],
    },
    Contest {
        name: "rmdir-tread",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            make(hand, "/d/x", FileKind::Regular, b"x")
        },
        held: &[""],
        threads: &[
            &[
                |h| said(unlink(h, "/d/x")),
                |h| said(rmdir(h, "/d")),
                |h| said(mkdir(h, "/d")),
                |h| said(create(h, "/d/x")),
            ],
            &[
                |h| said(tread(h, b"d", b"x")),
                |h| said(tread(h, b"d", b"x")),
                |h| said(tread(h, b"d", b"x")),
                |h| said(tread(h, b"d", b"x")),
            ],
        ],
    },
    Contest {
        name: "rmdir-create-inside",
        prepare: |hand| mkdir(hand, "/d"),
        held: &["", "/d"],
        threads: &[&[|h| said(rmdir(h, "/d"))], &[|h| said(create(h, "/d/x"))]],
    },
    Contest {
        name: "rename-over-create-inside",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            mkdir(hand, "/e")
        },
        held: &["", "/d"],
        threads: &[&[|h| said(rename(h, "/e", "/d", PLAINLY))], &[|h| said(create(h, "/d/x"))]],
    },
    Contest {
        name: "link-unlink",
        prepare: |hand| make(hand, "/x", FileKind::Regular, b"x"),
        held: &[""],
        threads: &[&[|h| said(link(h, "/x", "/y"))], &[|h| said(unlink(h, "/x"))]],
    },
    Contest {
        name: "link-unlink-both",
        prepare: |hand| {
            make(hand, "/x", FileKind::Regular, b"x")?;
            link(hand, "/x", "/y")
        },
        held: &[""],
        threads: &[
            &[|h| said(unlink(h, "/x")), |h| said(create(h, "/n"))],
            &[|h| said(unlink(h, "/y"))],
            &[|h| said(link(h, "/y", "/z"))],
        ],
    },
    Contest {
        name: "eviction-lookup",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            make(hand, "/d/x", FileKind::Regular, b"x")?;
            mkdir(hand, "/d/e")
        },
        held: &[],
        threads: &[
            // Whether there was anything to evict is nobody's business.
            &[|h| said(h.evict_some().map(drop)), |h| said(h.evict_some().map(drop))],
            &[|h| said(look(h, "/d/x")), |h| said(create(h, "/d/y")), |h| said(list(h, "/d"))],
        ],
    },
    Contest {
        // The names of a directory may come in just when the directory itself is about to go.
        name: "eviction-lookup-below",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            mkdir(hand, "/d/e")?;
            create(hand, "/d/e/x")
        },
        held: &[],
        threads: &[
            &[|h| said(h.evict_some().map(drop)), |h| said(h.evict_some().map(drop))],
            &[|h| said(look(h, "/d/e/x")), |h| said(look(h, "/d/e/x"))],
        ],
    },
    Contest {
        // A file may go with one of its names just when the other one is removed.
        name: "eviction-unlink-linked",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            mkdir(hand, "/e")?;
            create(hand, "/d/x")?;
            link(hand, "/d/x", "/e/y")
        },
        held: &[],
        threads: &[
            &[|h| said(h.evict_some().map(drop)), |h| said(h.evict_some().map(drop))],
            &[|h| said(unlink(h, "/d/x"))],
            &[|h| said(look(h, "/e/y"))],
        ],
    },
    Contest {
        // What is evicted may be removed meanwhile, and its cachelet another directory's.
        name: "eviction-removal",
        prepare: |hand| mkdir(hand, "/d"),
        held: &[""],
        threads: &[
            &[|h| said(h.evict_some().map(drop)), |h| said(h.evict_some().map(drop))],
            &[
                |h| said(rmdir(h, "/d")),
                |h| said(h.recycle(usize::MAX).map(drop)),
                |h| said(mkdir(h, "/e")),
                |h| said(create(h, "/e/x")),
            ],
            &[|h| said(h.evict_some().map(drop))],
        ],
    },
    Contest {
        name: "eviction-link",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            mkdir(hand, "/e")?;
            make(hand, "/d/x", FileKind::Regular, b"x")
        },
        held: &[],
        threads: &[
            &[|h| said(h.evict_some().map(drop)), |h| said(h.evict_some().map(drop))],
            &[|h| said(link(h, "/d/x", "/e/y")), |h| said(unlink(h, "/d/x"))],
            &[|h| said(look(h, "/d/x")), |h| said(unlink(h, "/e/y"))],
        ],
    },
    Contest {
        name: "eviction-write",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            make(hand, "/d/x", FileKind::Regular, b"aaaa")
        },
        held: &[],
        threads: &[
            &[|h| said(h.evict_some().map(drop)), |h| said(h.evict_some().map(drop))],
            &[|h| said(append(h, "/d/x", b"bb").map(drop)), |h| said(append(h, "/d/x", b"cc").map(drop))],
            &[|h| said(read(h, "/d/x"))],
        ],
    },
    Contest {
        name: "eviction-compaction",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            (0..3).try_for_each(|index| create(hand, &format!("/d/{index}")))?;
            unlink(hand, "/d/0")
        },
        held: &[],
        threads: &[
            &[|h| said(h.evict_some().map(drop)), |h| said(h.evict_some().map(drop))],
            &[|h| said(compact(h, "/d")), |h| said(unlink(h, "/d/1"))],
            &[|h| said(create(h, "/d/3")), |h| said(list(h, "/d").map(|names| names.matches('2').count()))],
        ],
    },
    Contest {
        name: "eviction-rename",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            make(hand, "/d/x", FileKind::Regular, b"x")?;
            make(hand, "/y", FileKind::Regular, b"y")
        },
        held: &[],
        threads: &[
            &[|h| said(h.evict_some().map(drop)), |h| said(h.evict_some().map(drop))],
            &[|h| said(rename(h, "/d/x", "/y", PLAINLY)), |h| said(unlink(h, "/y"))],
        ],
    },
    Contest {
        name: "compaction-append",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            (0..6).try_for_each(|index| create(hand, &format!("/d/{index}")))?;
            (0..4).try_for_each(|index| unlink(hand, &format!("/d/{index}")))
        },
        held: &["", "/d"],
        threads: &[
            &[|h| said(compact(h, "/d"))],
            &[|h| said(create(h, "/d/new")), |h| said(unlink(h, "/d/4")), |h| said(list(h, "/d"))],
        ],
    },
    Contest {
        name: "compaction-rename",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            (0..4).try_for_each(|index| create(hand, &format!("/d/{index}")))?;
            unlink(hand, "/d/0")
        },
        held: &["", "/d"],
        threads: &[
            &[|h| said(compact(h, "/d"))],
            &[|h| said(rename(h, "/d/1", "/d/2", PLAINLY)), |h| said(rename(h, "/d/3", "/out", PLAINLY))],
            // A list is no snapshot: certain is only what is there all the time, and that it is there once.
            &[|h| said(list(h, "/d").map(|names| names.matches('2').count()))],
        ],
    },
    // Names that are there all the time, as one file or another, are listed once.
    Contest {
        name: "list-rename",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            (0..3).try_for_each(|index| create(hand, &format!("/d/{index}")))?;
            create(hand, "/x")
        },
        held: &["", "/d"],
        threads: &[
            &[
                |h| said(rename(h, "/x", "/d/1", PLAINLY)),
                |h| said(rename(h, "/d/1", "/d/2", EXCHANGE)),
                |h| said(rename(h, "/d/2", "/d/9", WHITEOUT)),
            ],
            &[|h| said(list_in_pieces(h, "/d", ["1", "2"]))],
        ],
    },
    Contest {
        name: "list-rename-compaction",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            (0..4).try_for_each(|index| create(hand, &format!("/d/{index}")))?;
            unlink(hand, "/d/0")
        },
        held: &["", "/d"],
        threads: &[
            &[|h| said(compact(h, "/d")), |h| said(rename(h, "/d/1", "/d/2", EXCHANGE))],
            &[|h| said(list(h, "/d"))],
            &[|h| said(rename(h, "/d/3", "/d/2", WHITEOUT))],
        ],
    },
    Contest {
        name: "recycle-open",
        prepare: |hand| {
            make(hand, "/x", FileKind::Regular, b"aaaa")?;
            mkdir(hand, "/d")
        },
        held: &["", "/d"],
        threads: &[
            &[
                |h| said(unlink(h, "/x")),
                |h| said(h.drain().map(drop)),
                |h| said(make(h, "/d/new", FileKind::Symlink, b"")),
            ],
            &[|h| said(look(h, "/x")), |h| said(look(h, "/d/new"))],
        ],
    },
    Contest {
        name: "recycle-create",
        prepare: |hand| {
            create(hand, "/x")?;
            create(hand, "/y")
        },
        held: &[""],
        threads: &[
            &[|h| said(unlink(h, "/x")), |h| said(h.drain().map(drop)), |h| said(create(h, "/z"))],
            &[|h| said(unlink(h, "/y")), |h| said(h.drain().map(drop)), |h| said(create(h, "/z"))],
        ],
    },
    Contest {
        name: "write-read",
        prepare: |hand| make(hand, "/x", FileKind::Regular, &[b'a'; 5000]),
        held: &[""],
        threads: &[
            &[|h| said(write(h, "/x", 4000, &[b'b'; 5000]))],
            &[|h| said(append(h, "/x", &[b'c'; 100]))],
            &[|h| said(read(h, "/x"))],
        ],
    },
    Contest {
        name: "truncate-read",
        prepare: |hand| make(hand, "/x", FileKind::Regular, &[b'a'; 9000]),
        held: &[""],
        threads: &[
            &[|h| said(truncate(h, "/x", 100)), |h| said(truncate(h, "/x", 6000))],
            &[|h| said(read(h, "/x")), |h| said(append(h, "/x", b"z"))],
        ],
    },
];

/// What a name leads to, as far as it is one moment's: kind and links.
fn look(hand: &Hand<'_>, path: &str) -> Result<String> {
    let node = within(hand, path, |parent, name| hand.lookup(parent, name))?;
    let stat = hand.stat(node);
    hand.release(node, 1);
    stat.map(|stat| format!("{:?}", stat.kind))
}

fn on_file<R>(hand: &Hand<'_>, path: &str, work: impl FnOnce(Node) -> Result<R>) -> Result<R> {
    let node = within(hand, path, |parent, name| hand.lookup(parent, name))?;
    let result = work(node);
    hand.release(node, 1);
    result
}

fn write(hand: &Hand<'_>, path: &str, offset: u64, bytes: &[u8]) -> Result<()> {
    on_file(hand, path, |node| hand.write(node, offset, bytes).map(drop))
}

fn append(hand: &Hand<'_>, path: &str, bytes: &[u8]) -> Result<u64> {
    on_file(hand, path, |node| hand.append(node, bytes))
}

fn truncate(hand: &Hand<'_>, path: &str, length: u64) -> Result<()> {
    on_file(hand, path, |node| hand.truncate(node, length))
}

fn compact(hand: &Hand<'_>, path: &str) -> Result<()> {
    let node = directory(hand, path)?;
    let done = hand.compact(node);
    hand.release(node, 1);
    done
}

/// An image with its memories, attached.
struct World {
    image: Memory,
    fs: Option<Fs<Scheduled>>,
    _dram: Memory,
}

impl World {
    fn new(bytes: &[u8]) -> World {
        let image = Memory::new(IMAGE_BYTES);
        let _ = image.region().write_bytes(0, bytes).expect("the same length");
        let options = AttachOptions::default();
        let dram = Memory::new(Fs::dram_layout(&image.region(), &options).expect("a layout").length);
        let recovery =
            Fs::attach_first(image.region_in(Scheduled), dram.region(), &PLATFORM, &options).expect("attaches");
        let fs = recovery.finish().expect("ready").0;
        World { image, fs: Some(fs), _dram: dram }
    }

    fn fs(&self) -> &Fs<Scheduled> {
        self.fs.as_ref().expect("attached")
    }

    fn hand<'f>(&'f self, held: &'f BTreeMap<String, Node>) -> Hand<'f> {
        Hand { thread: self.fs().enter().expect("a slot"), held, way: Cell::new(None) }
    }

    /// Prepares a contest; the directories that are held for it.
    fn prepare(&self, contest: &Contest) -> BTreeMap<String, Node> {
        let nothing = BTreeMap::new();
        let hand = self.hand(&nothing);
        (contest.prepare)(&hand).expect("prepared");
        hand.drain().expect("drains");
        contest.held.iter().map(|path| (path.to_string(), directory(&hand, path).expect("a directory"))).collect()
    }

    fn tree(&self) -> BTreeMap<String, String> {
        let (mut tree, nothing) = (BTreeMap::new(), BTreeMap::new());
        let hand = self.hand(&nothing);
        let root = hand.root().expect("a root");
        dump(&hand, root, String::new(), &mut tree);
        hand.release(root, 1);
        tree
    }

    /// The tree; then leaves, and checks everything.
    fn end(mut self, held: BTreeMap<String, Node>) -> BTreeMap<String, String> {
        let fs = self.fs();
        {
            let thread = fs.enter().expect("a slot");
            held.values().for_each(|node| thread.release(*node, 1));
        }
        let tree = self.tree();
        for index in 0..fs.header().expect("a header").slots_high.load(Relaxed) as u32 {
            let idle = fs.enter_slot(index).expect("a slot").expect("nobody is in it");
            idle.drain().expect("drains");
        }
        check_cachelets(fs);
        crate::mindex::check_names(fs);
        let lived = room(fs);
        self.fs.take().expect("attached").detach_last().expect("leaves");
        let report = fsck::check(&self.image.region(), &fsck::Options::default(), &mut |_| {});
        let findings: String = report.findings.iter().map(|finding| format!("\n{finding}")).collect();
        assert!(report.clean && report.errors + report.warnings == 0, "{findings}");
        let again = World::new(&self.image.bytes());
        assert_eq!(room(again.fs()).1, lived.1, "inodes in use");
        assert_eq!(again.tree(), tree, "after the next attach");
        tree
    }
}

fn dump(hand: &Hand<'_>, node: Node, path: String, tree: &mut BTreeMap<String, String>) {
    let stat = hand.stat(node).expect("stats");
    let content = match stat.kind {
        FileKind::Regular => {
            let mut bytes = std::vec![0; stat.size_bytes as usize];
            let count = hand.read(node, 0, &mut bytes).expect("reads");
            assert_eq!(count as u64, stat.size_bytes);
            summary(&bytes)
        }
        _ => String::new(),
    };
    tree.insert(path.clone(), format!("{:?} {} {content}", stat.kind, stat.links));
    if stat.kind != FileKind::Directory {
        return;
    }
    let mut names = Vec::new();
    hand.read_directory(node, 0, &mut Default::default(), &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .expect("lists");
    for name in names {
        let child = hand.lookup(node, &name).expect("finds what it lists");
        let below = format!("{path}/{}", String::from_utf8_lossy(&name));
        assert!(!tree.contains_key(&below), "{below} is listed twice");
        dump(hand, child, below, tree);
        hand.release(child, 1);
    }
}

/// All orders of the operations in which each thread's come one after the other: the threads whose turn it is.
fn orders(left: &mut [usize], order: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
    if left.iter().all(|count| *count == 0) {
        all.push(order.clone());
    }
    for thread in 0..left.len() {
        if left[thread] > 0 {
            left[thread] -= 1;
            order.push(thread);
            orders(left, order, all);
            order.pop();
            left[thread] += 1;
        }
    }
}

/// What comes of the operations one after the other, in this order.
fn one_after_the_other(contest: &Contest, bytes: &[u8], order: &[usize]) -> Outcome {
    let world = World::new(bytes);
    let held = world.prepare(contest);
    let mut told: Vec<Vec<String>> = contest.threads.iter().map(|_| Vec::new()).collect();
    {
        let hands: Vec<_> = contest.threads.iter().map(|_| world.hand(&held)).collect();
        for thread in order {
            let operation = contest.threads[*thread][told[*thread].len()];
            told[*thread].push(operation(&hands[*thread]));
        }
    }
    Outcome { told, tree: world.end(held) }
}

/// Whether an order contradicts what is known to have ended before another began.
fn contradicts(order: &[usize], moments: &Moments) -> bool {
    let mut next: Vec<usize> = moments.iter().map(|_| 0).collect();
    let mut latest_begin = 0;
    order.iter().any(|thread| {
        let (begin, end) = moments[*thread][next[*thread]];
        next[*thread] += 1;
        // Something that comes before it here began only after its end.
        let late = latest_begin > end;
        latest_begin = latest_begin.max(begin);
        late
    })
}

/// Runs a contest once, as the scheduler wants it.
fn at_once(contest: &'static Contest, bytes: &[u8], race: Option<Race>) -> (Outcome, Moments) {
    let world = World::new(bytes);
    let held = world.prepare(contest);
    let clock = Cell::new(0);
    let results: Mutex<Vec<_>> = Mutex::new(contest.threads.iter().map(|_| Vec::new()).collect());
    {
        let _on = On::new(race);
        let (world, held, results, clock) = (&world, &held, &results, Alone(&clock));
        shuttle::thread::scope(|scope| {
            for (thread, operations) in contest.threads.iter().enumerate() {
                scope.spawn(move || {
                    let hand = world.hand(held);
                    for operation in *operations {
                        let begin = clock.tick();
                        let told = operation(&hand);
                        results.lock().expect("nobody panics")[thread].push((told, (begin, clock.tick())));
                    }
                });
            }
        });
    }
    let (told, moments) =
        results.into_inner().expect("nobody panics").into_iter().map(|each| each.into_iter().unzip()).unzip();
    (Outcome { told, tree: world.end(held) }, moments)
}

/// A counter of the threads of a schedule, which are coroutines of one thread.
#[derive(Clone, Copy)]
struct Alone<'c>(&'c Cell<u64>);
// SAFETY: all that use it are coroutines of one thread, which switch at none of its lines.
unsafe impl Send for Alone<'_> {}

impl Alone<'_> {
    fn tick(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run(contest: &'static Contest, schedules: usize, race: Option<Race>) -> usize {
    // A schedule that failed before never ended.
    schedule::switch_off();
    let bytes = Arc::new({
        let image = new_image(IMAGE_BYTES, 0);
        image.bytes()
    });
    let mut all = Vec::new();
    orders(&mut contest.threads.iter().map(|each| each.len()).collect::<Vec<_>>(), &mut Vec::new(), &mut all);
    let serial: Arc<Vec<_>> =
        Arc::new(all.into_iter().map(|order| (one_after_the_other(contest, &bytes, &order), order)).collect());
    let body = {
        move || {
            let (outcome, moments) = at_once(contest, &bytes, race);
            let explained =
                serial.iter().any(|(expected, order)| *expected == outcome && !contradicts(order, &moments));
            assert!(explained, "{}: no order gives {outcome:#?} {moments:?}", contest.name);
        }
    };
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = MaxSteps::FailAfter(2_000_000);
    config.silence_warnings = true;
    let run_with = |scheduler: Box<dyn Scheduler + Send>| Runner::new(scheduler, config.clone()).run(body.clone());
    if let Ok(schedule) = std::env::var("SCHEDULES_REPLAY") {
        return run_with(Box::new(ReplayScheduler::new_from_encoded(&schedule)));
    }
    let seed = number("SCHEDULES_SEED").unwrap_or(1);
    run_with(Box::new(RandomScheduler::new_from_seed(seed, schedules)))
        + run_with(Box::new(PctScheduler::new_from_seed(seed, 3, schedules)))
}

#[test]
fn what_threads_are_told_has_an_order_in_every_schedule() {
    let schedules = number("SCHEDULES").unwrap_or(50) as usize;
    let only = std::env::var("SCHEDULES_ONLY").ok();
    let mut failed = Vec::new();
    for contest in CONTESTS.iter().filter(|contest| only.as_ref().is_none_or(|only| only == contest.name)) {
        let begun = std::time::Instant::now();
        match std::panic::catch_unwind(|| run(contest, schedules, None)) {
            Ok(count) => std::eprintln!("{}: {count} schedules in {:?}", contest.name, begun.elapsed()),
            Err(_) => failed.push(contest.name.to_string()),
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn a_planted_race_is_found() {
    for (race, name) in [(Race::TornExchange, "create-create"), (Race::HiddenPins, "compaction-append")] {
        let contest = CONTESTS.iter().find(|contest| contest.name == name).expect("a contest");
        let Err(cause) = std::panic::catch_unwind(|| run(contest, 2000, Some(race))) else {
            panic!("{race:?} is not found");
        };
        let what = match cause.downcast_ref::<&str>() {
            Some(text) => text.to_string(),
            None => cause.downcast_ref::<String>().cloned().unwrap_or_default(),
        };
        assert!(!what.contains("ExecutionState"), "{what}");
        std::eprintln!("found {race:?}: {what}");
    }
}
