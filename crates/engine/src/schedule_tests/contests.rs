//! Conflicting operations, and their preparation.

use super::operations::{
    append, compact, create, evict, link, list, list_in_pieces, look, make, mkdir, read, rename, rmdir, tread,
    truncate, unlink, write,
};
use super::{Contest, Operation, ScheduledThread};
use crate::RenameFlags;
use crate::error::Result;
use crate::format::FileKind;
use std::format;
use std::string::String;

const PLAINLY: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: None };
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..PLAINLY };
const WHITEOUT: RenameFlags = RenameFlags { whiteout: Some((0, 0)), ..PLAINLY };

fn describe<T: core::fmt::Debug>(result: Result<T>) -> String {
    format!("{result:?}")
}

/// Whether there was anything to evict does not matter.
const EVICT_TWICE: &[Operation] = &[|h| describe(evict(h)), |h| describe(evict(h))];

fn two_files_apart(thread: &ScheduledThread<'_>) -> Result<()> {
    mkdir(thread, "/d")?;
    make(thread, "/x", FileKind::Regular, b"x")?;
    make(thread, "/d/y", FileKind::Regular, b"yy")
}

pub(super) fn a_log_with_a_hole(thread: &ScheduledThread<'_>) -> Result<()> {
    mkdir(thread, "/d")?;
    (0..4).try_for_each(|index| create(thread, &format!("/d/{index}")))?;
    unlink(thread, "/d/0")
}

pub(super) const CONTESTS: &[Contest] = &[
    Contest {
        name: "create-create",
        prepare: |_| Ok(()),
        held: &[""],
        threads: &[&[|h| describe(create(h, "/x"))], &[|h| describe(mkdir(h, "/x"))], &[|h| describe(list(h, ""))]],
    },
    Contest {
        name: "create-unlink",
        prepare: |thread| make(thread, "/x", FileKind::Regular, b"old"),
        held: &[""],
        threads: &[
            &[|h| describe(create(h, "/x")), |h| describe(read(h, "/x"))],
            &[|h| describe(unlink(h, "/x")), |h| describe(unlink(h, "/x"))],
        ],
    },
    Contest {
        name: "unlink-open",
        prepare: |thread| make(thread, "/x", FileKind::Regular, b"aaaa"),
        held: &[""],
        threads: &[
            &[|h| describe(unlink(h, "/x")), |h| describe(make(h, "/y", FileKind::Regular, b""))],
            &[|h| describe(look(h, "/x")), |h| describe(look(h, "/y"))],
        ],
    },
    Contest {
        name: "rename-rename-crossing",
        prepare: |thread| {
            mkdir(thread, "/a")?;
            mkdir(thread, "/b")
        },
        held: &["", "/a", "/b"],
        threads: &[
            &[|h| describe(rename(h, "/a", "/b/a", PLAINLY))],
            &[|h| describe(rename(h, "/b", "/a/b", PLAINLY))],
        ],
    },
    Contest {
        name: "rename-rename-swapping",
        prepare: two_files_apart,
        held: &["", "/d"],
        threads: &[
            &[|h| describe(rename(h, "/x", "/d/y", PLAINLY))],
            &[|h| describe(rename(h, "/d/y", "/x", PLAINLY))],
            &[|h| describe(rename(h, "/x", "/d/y", EXCHANGE))],
        ],
    },
    Contest {
        // One of the exchanged files is renamed by its other name meanwhile.
        name: "exchange-rename-linked",
        prepare: |thread| {
            make(thread, "/x", FileKind::Regular, b"x")?;
            make(thread, "/y", FileKind::Regular, b"yy")?;
            link(thread, "/y", "/z")
        },
        held: &[""],
        threads: &[
            &[|h| describe(rename(h, "/x", "/y", EXCHANGE))],
            &[|h| describe(rename(h, "/z", "/w", PLAINLY)), |h| describe(rename(h, "/w", "/z", PLAINLY))],
            &[|h| describe(read(h, "/x")), |h| describe(read(h, "/y")), |h| describe(read(h, "/z"))],
        ],
    },
    Contest {
        name: "rename-lookup",
        prepare: two_files_apart,
        held: &["", "/d"],
        threads: &[
            &[|h| describe(rename(h, "/x", "/d/y", PLAINLY)), |h| describe(rename(h, "/d/y", "/x", PLAINLY))],
            &[|h| describe(look(h, "/x")), |h| describe(look(h, "/d/y")), |h| describe(look(h, "/x"))],
        ],
    },
    Contest {
        name: "exchange-tread",
        prepare: |thread| {
            mkdir(thread, "/d")?;
            mkdir(thread, "/e")?;
            make(thread, "/d/x", FileKind::Regular, b"x")?;
            make(thread, "/e/x", FileKind::Regular, b"xx")
        },
        held: &[""],
        threads: &[
            &[|h| describe(rename(h, "/d", "/e", EXCHANGE)), |h| describe(rename(h, "/e", "/f", PLAINLY))],
            &[
                |h| describe(tread(h, b"d", b"x")),
                |h| describe(tread(h, b"d", b"x")),
                |h| describe(read(h, "/e/x")),
                |h| describe(tread(h, b"d", b"x")),
            ],
        ],
    },
    Contest {
        name: "rename-tread",
        prepare: |thread| {
            mkdir(thread, "/d")?;
            mkdir(thread, "/e")?;
            make(thread, "/e/x", FileKind::Regular, b"x")
        },
        held: &[""],
        threads: &[
            &[|h| describe(rename(h, "/e", "/d", PLAINLY)), |h| describe(rename(h, "/d", "/e", PLAINLY))],
            &[
                |h| describe(tread(h, b"d", b"x")),
                |h| describe(read(h, "/e/x")),
                |h| describe(tread(h, b"d", b"x")),
                |h| describe(tread(h, b"d", b"x")),
            ],
        ],
    },
    Contest {
        name: "rmdir-tread",
        prepare: |thread| {
            mkdir(thread, "/d")?;
            make(thread, "/d/x", FileKind::Regular, b"x")
        },
        held: &[""],
        threads: &[
            &[
                |h| describe(unlink(h, "/d/x")),
                |h| describe(rmdir(h, "/d")),
                |h| describe(mkdir(h, "/d")),
                |h| describe(create(h, "/d/x")),
            ],
            &[
                |h| describe(tread(h, b"d", b"x")),
                |h| describe(tread(h, b"d", b"x")),
                |h| describe(tread(h, b"d", b"x")),
                |h| describe(tread(h, b"d", b"x")),
            ],
        ],
    },
    Contest {
        name: "rmdir-create-inside",
        prepare: |thread| mkdir(thread, "/d"),
        held: &["", "/d"],
        threads: &[&[|h| describe(rmdir(h, "/d"))], &[|h| describe(create(h, "/d/x"))]],
    },
    Contest {
        // Names come and go in different threads' counts, so that none shows whether any is left.
        name: "rmdir-changes-inside",
        prepare: |thread| {
            mkdir(thread, "/d")?;
            create(thread, "/d/x")
        },
        held: &["", "/d"],
        threads: &[
            &[|h| describe(create(h, "/d/y")), |h| describe(unlink(h, "/d/x")), |h| describe(unlink(h, "/d/y"))],
            &[|h| describe(unlink(h, "/d/y")), |h| describe(create(h, "/d/z")), |h| describe(rmdir(h, "/d"))],
        ],
    },
    Contest {
        name: "rename-over-create-inside",
        prepare: |thread| {
            mkdir(thread, "/d")?;
            mkdir(thread, "/e")
        },
        held: &["", "/d"],
        threads: &[&[|h| describe(rename(h, "/e", "/d", PLAINLY))], &[|h| describe(create(h, "/d/x"))]],
    },
    Contest {
        name: "link-unlink",
        prepare: |thread| make(thread, "/x", FileKind::Regular, b"x"),
        held: &[""],
        threads: &[&[|h| describe(link(h, "/x", "/y"))], &[|h| describe(unlink(h, "/x"))]],
    },
    Contest {
        name: "link-unlink-both",
        prepare: |thread| {
            make(thread, "/x", FileKind::Regular, b"x")?;
            link(thread, "/x", "/y")
        },
        held: &[""],
        threads: &[
            &[|h| describe(unlink(h, "/x")), |h| describe(create(h, "/n"))],
            &[|h| describe(unlink(h, "/y"))],
            &[|h| describe(link(h, "/y", "/z"))],
        ],
    },
    Contest {
        name: "eviction-lookup",
        prepare: |thread| {
            mkdir(thread, "/d")?;
            make(thread, "/d/x", FileKind::Regular, b"x")?;
            mkdir(thread, "/d/e")
        },
        held: &[],
        threads: &[
            EVICT_TWICE,
            &[|h| describe(look(h, "/d/x")), |h| describe(create(h, "/d/y")), |h| describe(list(h, "/d"))],
        ],
    },
    Contest {
        // The names of a directory may be indexed just when the directory itself is about to be
        // evicted.
        name: "eviction-lookup-below",
        prepare: |thread| {
            mkdir(thread, "/d")?;
            mkdir(thread, "/d/e")?;
            create(thread, "/d/e/x")
        },
        held: &[],
        threads: &[EVICT_TWICE, &[|h| describe(look(h, "/d/e/x")), |h| describe(look(h, "/d/e/x"))]],
    },
    Contest {
        // A file may be evicted with one of its names just when the other one is removed.
        name: "eviction-unlink-linked",
        prepare: |thread| {
            mkdir(thread, "/d")?;
            mkdir(thread, "/e")?;
            create(thread, "/d/x")?;
            link(thread, "/d/x", "/e/y")
        },
        held: &[],
        threads: &[EVICT_TWICE, &[|h| describe(unlink(h, "/d/x"))], &[|h| describe(look(h, "/e/y"))]],
    },
    Contest {
        // An evicted directory may be removed meanwhile, and its cachelet may be reused by another
        // directory.
        name: "eviction-removal",
        prepare: |thread| mkdir(thread, "/d"),
        held: &[""],
        threads: &[
            EVICT_TWICE,
            &[
                |h| describe(rmdir(h, "/d")),
                |h| describe(h.recycler().recycle(usize::MAX).map(drop)),
                |h| describe(mkdir(h, "/e")),
                |h| describe(create(h, "/e/x")),
            ],
            &[|h| describe(evict(h))],
        ],
    },
    Contest {
        name: "eviction-link",
        prepare: |thread| {
            mkdir(thread, "/d")?;
            mkdir(thread, "/e")?;
            make(thread, "/d/x", FileKind::Regular, b"x")
        },
        held: &[],
        threads: &[
            EVICT_TWICE,
            &[|h| describe(link(h, "/d/x", "/e/y")), |h| describe(unlink(h, "/d/x"))],
            &[|h| describe(look(h, "/d/x")), |h| describe(unlink(h, "/e/y"))],
        ],
    },
    Contest {
        name: "eviction-write",
        prepare: |thread| {
            mkdir(thread, "/d")?;
            make(thread, "/d/x", FileKind::Regular, b"aaaa")
        },
        held: &[],
        threads: &[
            EVICT_TWICE,
            &[|h| describe(append(h, "/d/x", b"bb").map(drop)), |h| describe(append(h, "/d/x", b"cc").map(drop))],
            &[|h| describe(read(h, "/d/x"))],
        ],
    },
    Contest {
        name: "eviction-compaction",
        prepare: |thread| {
            mkdir(thread, "/d")?;
            (0..3).try_for_each(|index| create(thread, &format!("/d/{index}")))?;
            unlink(thread, "/d/0")
        },
        held: &[],
        threads: &[
            EVICT_TWICE,
            &[|h| describe(compact(h, "/d")), |h| describe(unlink(h, "/d/1"))],
            &[|h| describe(create(h, "/d/3")), |h| describe(list(h, "/d").map(|names| names.matches('2').count()))],
        ],
    },
    Contest {
        name: "eviction-rename",
        prepare: |thread| {
            mkdir(thread, "/d")?;
            make(thread, "/d/x", FileKind::Regular, b"x")?;
            make(thread, "/y", FileKind::Regular, b"y")
        },
        held: &[],
        threads: &[EVICT_TWICE, &[|h| describe(rename(h, "/d/x", "/y", PLAINLY)), |h| describe(unlink(h, "/y"))]],
    },
    Contest {
        name: "compaction-append",
        prepare: |thread| {
            mkdir(thread, "/d")?;
            (0..6).try_for_each(|index| create(thread, &format!("/d/{index}")))?;
            (0..4).try_for_each(|index| unlink(thread, &format!("/d/{index}")))
        },
        held: &["", "/d"],
        threads: &[
            &[|h| describe(compact(h, "/d"))],
            &[
                |h| describe(create(h, "/d/new")),
                |h| describe(create(h, "/d/newer")),
                |h| describe(unlink(h, "/d/4")),
                |h| describe(list(h, "/d")),
            ],
        ],
    },
    Contest {
        name: "compaction-rename",
        prepare: a_log_with_a_hole,
        held: &["", "/d"],
        threads: &[
            &[|h| describe(compact(h, "/d"))],
            &[|h| describe(rename(h, "/d/1", "/d/2", PLAINLY)), |h| describe(rename(h, "/d/3", "/out", PLAINLY))],
            // A list is not a snapshot: only names that exist throughout are certain, and are
            // listed once.
            &[|h| describe(list(h, "/d").map(|names| names.matches('2').count()))],
        ],
    },
    // A listed name is found afterwards, however recent it is.
    Contest {
        name: "list-look",
        prepare: |thread| mkdir(thread, "/d"),
        held: &["", "/d"],
        threads: &[
            // The first undurable name is looked up, whatever the others are.
            &[|h| describe(create(h, "/d/1")), |h| describe(create(h, "/d/2"))],
            &[|h| describe(list(h, "/d")), |h| describe(look(h, "/d/2"))],
        ],
    },
    // Names that exist throughout, as one file or another, are listed once.
    Contest {
        name: "list-rename",
        prepare: |thread| {
            mkdir(thread, "/d")?;
            (0..3).try_for_each(|index| create(thread, &format!("/d/{index}")))?;
            create(thread, "/x")
        },
        held: &["", "/d"],
        threads: &[
            &[
                |h| describe(rename(h, "/x", "/d/1", PLAINLY)),
                |h| describe(rename(h, "/d/1", "/d/2", EXCHANGE)),
                |h| describe(rename(h, "/d/2", "/d/9", WHITEOUT)),
            ],
            &[|h| describe(list_in_pieces(h, "/d", ["1", "2"]))],
        ],
    },
    Contest {
        name: "list-rename-compaction",
        prepare: a_log_with_a_hole,
        held: &["", "/d"],
        threads: &[
            &[|h| describe(compact(h, "/d")), |h| describe(rename(h, "/d/1", "/d/2", EXCHANGE))],
            &[|h| describe(list(h, "/d"))],
            &[|h| describe(rename(h, "/d/3", "/d/2", WHITEOUT))],
        ],
    },
    Contest {
        name: "recycle-open",
        prepare: |thread| {
            make(thread, "/x", FileKind::Regular, b"aaaa")?;
            mkdir(thread, "/d")
        },
        held: &["", "/d"],
        threads: &[
            &[
                |h| describe(unlink(h, "/x")),
                |h| describe(h.recycler().drain().map(drop)),
                |h| describe(make(h, "/d/new", FileKind::Symlink, b"")),
            ],
            &[|h| describe(look(h, "/x")), |h| describe(look(h, "/d/new"))],
        ],
    },
    Contest {
        name: "recycle-create",
        prepare: |thread| {
            create(thread, "/x")?;
            create(thread, "/y")
        },
        held: &[""],
        threads: &[
            &[
                |h| describe(unlink(h, "/x")),
                |h| describe(h.recycler().drain().map(drop)),
                |h| describe(create(h, "/z")),
            ],
            &[
                |h| describe(unlink(h, "/y")),
                |h| describe(h.recycler().drain().map(drop)),
                |h| describe(create(h, "/z")),
            ],
        ],
    },
    Contest {
        name: "write-read",
        prepare: |thread| make(thread, "/x", FileKind::Regular, &[b'a'; 5000]),
        held: &[""],
        threads: &[
            &[|h| describe(write(h, "/x", 4000, &[b'b'; 5000]))],
            &[|h| describe(append(h, "/x", &[b'c'; 100]))],
            &[|h| describe(read(h, "/x"))],
        ],
    },
    Contest {
        name: "truncate-read",
        prepare: |thread| make(thread, "/x", FileKind::Regular, &[b'a'; 9000]),
        held: &[""],
        threads: &[
            &[|h| describe(truncate(h, "/x", 100)), |h| describe(truncate(h, "/x", 6000))],
            &[|h| describe(read(h, "/x")), |h| describe(append(h, "/x", b"z"))],
        ],
    },
];
