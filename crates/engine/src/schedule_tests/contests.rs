//! Conflicting operations, and their preparation.

use super::operations::{
    append, compact, create, evict, link, list, list_in_pieces, look, make, mkdir, read, rename, rmdir, tread,
    truncate, unlink, write,
};
use super::{Contest, Hand, Operation};
use crate::RenameFlags;
use crate::error::Result;
use crate::format::FileKind;
use std::format;
use std::string::String;

const PLAINLY: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..PLAINLY };
const WHITEOUT: RenameFlags = RenameFlags { whiteout: true, ..PLAINLY };

fn said<T: core::fmt::Debug>(result: Result<T>) -> String {
    format!("{result:?}")
}

/// Whether there was anything to evict does not matter.
const EVICT_TWICE: &[Operation] = &[|h| said(evict(h)), |h| said(evict(h))];

fn two_files_apart(hand: &Hand<'_>) -> Result<()> {
    mkdir(hand, "/d")?;
    make(hand, "/x", FileKind::Regular, b"x")?;
    make(hand, "/d/y", FileKind::Regular, b"yy")
}

pub(super) fn a_log_with_a_hole(hand: &Hand<'_>) -> Result<()> {
    mkdir(hand, "/d")?;
    (0..4).try_for_each(|index| create(hand, &format!("/d/{index}")))?;
    unlink(hand, "/d/0")
}

pub(super) const CONTESTS: &[Contest] = &[
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
        prepare: two_files_apart,
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
        prepare: two_files_apart,
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
        threads: &[EVICT_TWICE, &[|h| said(look(h, "/d/x")), |h| said(create(h, "/d/y")), |h| said(list(h, "/d"))]],
    },
    Contest {
        // The names of a directory may be indexed just when the directory itself is about to be
        // evicted.
        name: "eviction-lookup-below",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            mkdir(hand, "/d/e")?;
            create(hand, "/d/e/x")
        },
        held: &[],
        threads: &[EVICT_TWICE, &[|h| said(look(h, "/d/e/x")), |h| said(look(h, "/d/e/x"))]],
    },
    Contest {
        // A file may be evicted with one of its names just when the other one is removed.
        name: "eviction-unlink-linked",
        prepare: |hand| {
            mkdir(hand, "/d")?;
            mkdir(hand, "/e")?;
            create(hand, "/d/x")?;
            link(hand, "/d/x", "/e/y")
        },
        held: &[],
        threads: &[EVICT_TWICE, &[|h| said(unlink(h, "/d/x"))], &[|h| said(look(h, "/e/y"))]],
    },
    Contest {
        // An evicted directory may be removed meanwhile, and its cachelet may be reused by another
        // directory.
        name: "eviction-removal",
        prepare: |hand| mkdir(hand, "/d"),
        held: &[""],
        threads: &[
            EVICT_TWICE,
            &[
                |h| said(rmdir(h, "/d")),
                |h| said(h.recycle(usize::MAX).map(drop)),
                |h| said(mkdir(h, "/e")),
                |h| said(create(h, "/e/x")),
            ],
            &[|h| said(evict(h))],
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
            EVICT_TWICE,
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
            EVICT_TWICE,
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
            EVICT_TWICE,
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
        threads: &[EVICT_TWICE, &[|h| said(rename(h, "/d/x", "/y", PLAINLY)), |h| said(unlink(h, "/y"))]],
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
        prepare: a_log_with_a_hole,
        held: &["", "/d"],
        threads: &[
            &[|h| said(compact(h, "/d"))],
            &[|h| said(rename(h, "/d/1", "/d/2", PLAINLY)), |h| said(rename(h, "/d/3", "/out", PLAINLY))],
            // A list is not a snapshot: only names that exist throughout are certain, and are
            // listed once.
            &[|h| said(list(h, "/d").map(|names| names.matches('2').count()))],
        ],
    },
    // A listed name is found afterwards, however recent it is.
    Contest {
        name: "list-look",
        prepare: |hand| mkdir(hand, "/d"),
        held: &["", "/d"],
        threads: &[
            // The first undurable name is looked up, whatever the others are.
            &[|h| said(create(h, "/d/1")), |h| said(create(h, "/d/2"))],
            &[|h| said(list(h, "/d")), |h| said(look(h, "/d/2"))],
        ],
    },
    // Names that exist throughout, as one file or another, are listed once.
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
        prepare: a_log_with_a_hole,
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
