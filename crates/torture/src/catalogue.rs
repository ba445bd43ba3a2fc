//! The catalogue of setups, and of operations with every relevant kind of argument.

use crate::machine::Watched;
use crate::oracle::Slack;
use crate::test_thread::{TestThread, bytes, new_node};
use engine::format::{FileKind, INODES_PER_SEGMENT};
use engine::{AllocateMode, Changes, Error, FileFlags, NewNode, RenameFlags, Result};
use pmem::{Direct, Memory};

const BLOCK: u64 = 4096;

/// An action on a file system, compiled for each [`ActionMemory`].
#[derive(Clone, Copy)]
pub struct Act {
    watched: fn(&TestThread<'_, Watched>) -> Result<()>,
    direct: fn(&TestThread<'_, Direct>) -> Result<()>,
}

impl Act {
    /// Performs the action.
    pub fn run<M: ActionMemory>(self, thread: &TestThread<'_, M>) -> Result<()> {
        M::choose(self)(thread)
    }
}

/// A memory for which the actions are compiled.
pub trait ActionMemory: Memory + Sized {
    /// The code of an action for this memory.
    fn choose(act: Act) -> fn(&TestThread<'_, Self>) -> Result<()>;
}

impl ActionMemory for Watched {
    fn choose(act: Act) -> fn(&TestThread<'_, Watched>) -> Result<()> {
        act.watched
    }
}

impl ActionMemory for Direct {
    fn choose(act: Act) -> fn(&TestThread<'_, Direct>) -> Result<()> {
        act.direct
    }
}

macro_rules! act {
    ($act:expr) => {
        Act { watched: $act, direct: $act }
    };
}

/// An operation: its name in ids, its action, and the guarantees that it does not give.
pub struct Operation {
    /// Its name.
    pub name: &'static str,
    /// Its action; `None` means a clean detach and a new attach.
    pub act: Option<Act>,
    /// Its slack.
    pub slack: Slack,
    /// The slack that it causes for later operations.
    pub leaves: Slack,
    /// Whether it is combined with all other operations.
    pub paired: bool,
}

/// The state of a file system before the operations.
pub struct Setup {
    /// Its name.
    pub name: &'static str,
    /// The action after [`set_up`].
    pub act: Act,
    /// Length of the image in bytes.
    pub image_bytes: u64,
    /// The slack of file changes on this setup.
    pub slack: Slack,
    /// Whether it is cleanly detached and attached again: then nothing is indexed and nothing waits
    /// to be recycled.
    pub cold: bool,
}

const NONE: Slack =
    Slack { changed: false, modified: false, reserved: false, accessed: false, parts: false, lazy: false };
const CHANGED: Slack = Slack { changed: true, ..NONE };
const MODIFIED: Slack = Slack { modified: true, ..NONE };
const RESERVED: Slack = Slack { modified: true, reserved: true, ..NONE };
const ACCESSED: Slack = Slack { accessed: true, ..NONE };
const PARTS: Slack = Slack { parts: true, ..NONE };
const LAZY: Slack = Slack { changed: true, lazy: true, ..NONE };

/// An operation that is also paired with all others.
macro_rules! op {
    ($name:literal, $slack:expr, $act:expr) => {
        Operation { name: $name, act: Some(act!($act)), slack: $slack, leaves: NONE, paired: true }
    };
}

/// An operation without pairs, for the few setups that it is meant for.
macro_rules! alone {
    ($name:literal, $slack:expr, $act:expr) => {
        Operation { paired: false, ..op!($name, $slack, $act) }
    };
}

const EXCHANGE: RenameFlags = RenameFlags { no_replace: false, exchange: true, whiteout: None };
const WHITEOUT: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: Some((0, 0)) };

fn long(length: usize) -> String {
    format!("/a/{}", "n".repeat(length))
}

/// Creates the common tree: each kind of file, and names to collide with.
pub fn set_up<M: Memory>(thread: &TestThread<'_, M>) -> Result<()> {
    for path in ["/a", "/b", "/a/sub", "/empty", "/b/empty"] {
        thread.mkdir(path)?;
    }
    thread.create_with("/f", 5 * BLOCK + 100, 1)?;
    thread.create_with("/g", 100, 2)?;
    thread.create_with("/a/h", 5000, 3)?;
    thread.link("/a/h", "/hl")?;
    thread.create_with("/a/v", 5000, 4)?;
    thread.create_with("/a/sub/x", 10, 5)?;
    thread.create("/b/z")?;
    thread.symlink("/s", b"somewhere")?;
    thread.symlink("/b/l", &bytes(300, 6))?;
    thread.set_xattr("/a/v", "user.a", 70)?;
    thread.create(&long(200))
}

fn nothing<M: Memory>(_: &TestThread<'_, M>) -> Result<()> {
    Ok(())
}

fn fill<M: Memory>(thread: &TestThread<'_, M>, count: usize) -> Result<()> {
    thread.mkdir("/p")?;
    (0..count).try_for_each(|index| thread.link("/g", &format!("/p/{index}")))
}

/// A directory whose next name raises the bound of its page's used slots.
fn line<M: Memory>(thread: &TestThread<'_, M>) -> Result<()> {
    thread.mkdir("/p")?;
    (495..503).try_for_each(|index| thread.link("/g", &format!("/p/{index}")))
}

fn holes<M: Memory>(thread: &TestThread<'_, M>) -> Result<()> {
    fill(thread, 507)?;
    (0..499).try_for_each(|index| thread.unlink(&format!("/p/{index}")))
}

/// Names, inodes, lines and blocks with previous owners.
fn reused<M: Memory>(thread: &TestThread<'_, M>) -> Result<()> {
    for round in 0..3 {
        thread.mkdir("/a/old")?;
        thread.create_with("/a/old/1", 3 * BLOCK, 20 + round)?;
        thread.symlink("/a/old/2", b"elsewhere")?;
        thread.set_xattr("/a/old/1", "user.old", 50)?;
        thread.mkdir("/a/old/3")?;
        thread.rmdir("/a/old/3")?;
        thread.unlink("/a/old/1")?;
        thread.unlink("/a/old/2")?;
        thread.rmdir("/a/old")?;
        thread.thread.recycler().recycle(usize::MAX)?;
    }
    Ok(())
}

/// Dentry lines that held long names before.
fn lines<M: Memory>(thread: &TestThread<'_, M>) -> Result<()> {
    thread.mkdir("/a/old")?;
    let name = |index: usize| format!("/a/old/{}", ["q", "u", "}"][index % 3].repeat(250 - index));
    (0..12).try_for_each(|index| thread.create(&name(index)))?;
    (0..12).try_for_each(|index| thread.unlink(&name(index)))?;
    thread.rmdir("/a/old")?;
    while thread.thread.recycler().recycle(usize::MAX)? > 0 {}
    Ok(())
}

/// All inode numbers are in use, and no two free blocks are adjacent: the next file needs a segment
/// with a block list.
fn scattered<M: Memory>(thread: &TestThread<'_, M>) -> Result<()> {
    thread.mkdir("/q")?;
    thread.create("/q/whole")?;
    for index in 0..INODES_PER_SEGMENT {
        let path = format!("/q/{index}");
        thread.create(&path)?;
        if thread.with(&path, |node| Ok(node.number))? == INODES_PER_SEGMENT - 1 {
            break;
        }
    }
    // Written block by block: from an inline extent no block could be taken when no block is free.
    thread.write("/q/whole", BLOCK, BLOCK, 1)?;
    let mut blocks = 2;
    loop {
        match thread.append("/q/whole", BLOCK, 1) {
            Ok(()) => blocks += 1,
            Err(Error::NoSpace) => break,
            Err(error) => return Err(error),
        }
    }
    (1..blocks)
        .step_by(2)
        .try_for_each(|block| allocate(thread, "/q/whole", AllocateMode::PunchHole, block * BLOCK, BLOCK))
}

/// Many items that wait to be recycled.
fn rubbish<M: Memory>(thread: &TestThread<'_, M>) -> Result<()> {
    thread.unlink("/f")?;
    thread.unlink("/a/v")?;
    thread.unlink("/b/l")?;
    thread.unlink("/s")?;
    thread.rmdir("/empty")?;
    thread.set_xattr("/b/z", "user.b", 300)?;
    thread.set_xattr("/b/z", "user.b", 301)?;
    thread.create_with("/f", 2 * BLOCK, 1)
}

/// A file with two levels of map nodes, holes, and blocks beyond its end.
fn high<M: Memory>(thread: &TestThread<'_, M>) -> Result<()> {
    thread.write("/f", 3 << 20, 10, 1)?;
    thread.write("/g", 7 * BLOCK, 2 * BLOCK, 1)?;
    thread.with("/g", |node| {
        thread.thread.files().allocate(node, AllocateMode::Allocate { keep_size: true }, 0, 14 * BLOCK)
    })
}

macro_rules! setup {
    ($name:literal, $act:expr, $cold:literal) => {
        Setup { name: $name, act: act!($act), image_bytes: 1 << 20, slack: NONE, cold: $cold }
    };
}

/// All setups.
pub const SETUPS: &[Setup] = &[
    setup!("base", nothing, false),
    setup!("cold", nothing, true),
    setup!("reused", reused, false),
    setup!("rubbish", rubbish, false),
    Setup { slack: RESERVED, ..setup!("high", high, false) },
    setup!("lines", lines, false),
    setup!("scattered", scattered, false),
    setup!("page8", line, false),
    setup!("page503", |thread| fill(thread, 503), false),
    setup!("page504", |thread| fill(thread, 504), false),
    setup!("page505", |thread| fill(thread, 505), false),
    setup!("coldpage", |thread| fill(thread, 504), true),
    setup!("holes", holes, false),
];

/// All operations.
pub const OPERATIONS: &[Operation] = &[
    // Operations that create names.
    op!("create", NONE, |h| h.create("/a/new")),
    op!("create-root", NONE, |h| h.create("/new")),
    op!("create-long", NONE, |h| h.create(&long(255))),
    alone!("create-24", NONE, |h| h.create(&long(24))),
    alone!("create-25", NONE, |h| h.create(&long(25))),
    op!("create-write", CHANGED, |h| h.tmpfile("/a/new", 5000)),
    op!("mkdir", NONE, |h| h.mkdir("/a/new")),
    op!("mkdir-in-empty", NONE, |h| h.mkdir("/empty/new")),
    op!("mknod", NONE, |h| h.make("/b/new", &NewNode { device: 0x103, ..new_node(FileKind::Block) })),
    alone!("mkfifo", NONE, |h| h.make("/b/new", &new_node(FileKind::Fifo))),
    alone!("mkdir-inheriting", NONE, |h| {
        let extended: [(&[u8], &[u8]); 2] = [(b"system.a", &bytes(36, 7)), (b"system.b", &bytes(4090, 9))];
        h.make(
            "/b/new",
            &NewNode { extended: &extended, flags: FileFlags::ACCESS_LIST, ..new_node(FileKind::Directory) },
        )
    }),
    op!("symlink", NONE, |h| h.symlink("/a/new", b"target")),
    alone!("symlink-48", NONE, |h| h.symlink("/a/new", &bytes(48, 7))),
    alone!("symlink-49", NONE, |h| h.symlink("/a/new", &bytes(49, 7))),
    op!("symlink-long", NONE, |h| h.symlink("/b/new", &bytes(1000, 7))),
    alone!("symlink-4095", NONE, |h| h.symlink("/a/new", &bytes(4095, 7))),
    op!("link", CHANGED, |h| h.link("/f", "/a/new")),
    op!("link-third", CHANGED, |h| h.link("/hl", "/b/new")),
    alone!("link-long", CHANGED, |h| h.link("/f", &long(254))),
    op!("tmpfile", CHANGED, |h| h.tmpfile("/b/new", 100)),
    // Operations that remove names.
    op!("unlink", CHANGED, |h| h.unlink("/f")),
    op!("unlink-open", CHANGED, |h| h.keep("/a/v").and_then(|()| h.unlink("/a/v"))),
    op!("unlink-linked", CHANGED, |h| h.unlink("/hl")),
    op!("unlink-symlink", CHANGED, |h| h.unlink("/s")),
    alone!("unlink-long-symlink", NONE, |h| h.unlink("/b/l")),
    alone!("unlink-long-name", NONE, |h| h.unlink(&long(200))),
    op!("rmdir", NONE, |h| h.rmdir("/empty")),
    alone!("rmdir-deeper", NONE, |h| h.rmdir("/b/empty")),
    alone!("rmdir-full", NONE, |h| h.rmdir("/a")),
    // Renames.
    op!("rename", CHANGED, |h| h.rename("/f", "/new")),
    op!("rename-across", CHANGED, |h| h.rename("/f", "/a/new")),
    op!("rename-over", CHANGED, |h| h.rename("/f", "/g")),
    op!("rename-over-across", CHANGED, |h| h.rename("/g", "/a/v")),
    op!("rename-over-linked", CHANGED, |h| h.rename("/f", "/hl")),
    op!("rename-over-open", CHANGED, |h| h.keep("/a/v").and_then(|()| h.rename("/f", "/a/v"))),
    op!("rename-linked", CHANGED, |h| h.rename("/hl", "/b/new")),
    alone!("rename-to-its-link", CHANGED, |h| h.rename("/hl", "/a/h")),
    op!("rename-to-long", CHANGED, |h| h.rename("/g", &long(250))),
    alone!("rename-long", CHANGED, |h| h.rename(&long(200), "/short")),
    op!("rename-symlink", CHANGED, |h| h.rename("/s", "/a/new")),
    op!("rename-dir", LAZY, |h| h.rename("/a", "/new")),
    op!("rename-dir-across", LAZY, |h| h.rename("/a/sub", "/b/new")),
    op!("rename-dir-over", LAZY, |h| h.rename("/a/sub", "/b/empty")),
    alone!("rename-dir-into-itself", LAZY, |h| h.rename("/a", "/a/sub/new")),
    op!("exchange", CHANGED, |h| h.rename_with("/f", "/g", EXCHANGE)),
    op!("exchange-across", CHANGED, |h| h.rename_with("/g", "/a/h", EXCHANGE)),
    op!("exchange-dirs", LAZY, |h| h.rename_with("/a/sub", "/b/empty", EXCHANGE)),
    op!("exchange-dir-file", LAZY, |h| h.rename_with("/a/sub", "/g", EXCHANGE)),
    op!("whiteout", CHANGED, |h| h.rename_with("/f", "/b/new", WHITEOUT)),
    op!("whiteout-over", CHANGED, |h| h.rename_with("/a/v", "/g", WHITEOUT)),
    // Operations on content.
    op!("write-first", MODIFIED, |h| h.write("/b/z", 0, 100, 10)),
    alone!("write-first-long", NONE, |h| h.write("/b/z", 10, 9000, 10)),
    op!("overwrite", MODIFIED, |h| h.write("/f", BLOCK + 10, 500, 10)),
    alone!("overwrite-block", MODIFIED, |h| h.write("/f", 2 * BLOCK, BLOCK, 10)),
    op!("overwrite-blocks", NONE, |h| h.write("/f", BLOCK + 10, 2 * BLOCK, 10)),
    op!("overwrite-end", NONE, |h| h.write("/f", 4 * BLOCK + 10, 3 * BLOCK, 10)),
    alone!("overwrite-8", MODIFIED, |h| h.write("/g", 3, 16, 10)),
    // After a rename to that name it replaces a block.
    op!("write-gap", MODIFIED, |h| h.write("/g", 3 * BLOCK + 5, 100, 10)),
    alone!("write-far", NONE, |h| h.write("/g", 3 << 20, 100, 10)),
    alone!("write-farther", NONE, |h| h.write("/f", 5 << 20, 9000, 10)),
    op!("append", NONE, |h| h.append("/g", 300, 10)),
    op!("append-blocks", NONE, |h| h.append("/f", 9000, 10)),
    op!("append-higher", NONE, |h| h.append("/g", 9000, 10)),
    op!("truncate-zero", NONE, |h| h.truncate("/f", 0)),
    op!("truncate-less", NONE, |h| h.truncate("/f", 2 * BLOCK + 77)),
    alone!("truncate-block", NONE, |h| h.truncate("/f", 2 * BLOCK)),
    alone!("truncate-one", NONE, |h| h.truncate("/g", 1)),
    alone!("regrow", NONE, |h| h.truncate("/f", 4 * BLOCK)),
    op!("truncate-more", NONE, |h| h.truncate("/a/v", 4 * BLOCK)),
    op!("reserve", NONE, |h| allocate(h, "/g", AllocateMode::Allocate { keep_size: false }, 50, 4 * BLOCK)),
    Operation {
        leaves: RESERVED,
        ..op!("reserve-behind", NONE, |h| allocate(h, "/f", AllocateMode::Allocate { keep_size: true }, 0, 9 * BLOCK))
    },
    op!("zero", NONE, |h| allocate(h, "/f", AllocateMode::ZeroRange { keep_size: true }, 100, 3 * BLOCK)),
    alone!("zero-behind", NONE, |h| allocate(h, "/f", AllocateMode::ZeroRange { keep_size: false }, 100, 7 * BLOCK)),
    op!("punch", PARTS, |h| allocate(h, "/f", AllocateMode::PunchHole, 100, 3 * BLOCK)),
    alone!("punch-all", PARTS, |h| allocate(h, "/f", AllocateMode::PunchHole, 0, 9 * BLOCK)),
    op!("collapse", NONE, |h| allocate(h, "/f", AllocateMode::CollapseRange, BLOCK, 2 * BLOCK)),
    op!("insert", NONE, |h| allocate(h, "/f", AllocateMode::InsertRange, BLOCK, 2 * BLOCK)),
    op!("share", NONE, |h| share(h, ("/f", 0), ("/g", 0), None)),
    op!("share-blocks", NONE, |h| share(h, ("/f", BLOCK), ("/b/z", 2 * BLOCK), Some(2 * BLOCK))),
    alone!("share-one", NONE, |h| share(h, ("/g", 0), ("/b/z", 0), None)),
    alone!("share-within", NONE, |h| share(h, ("/f", 0), ("/f", 9 * BLOCK), Some(2 * BLOCK))),
    alone!("share-over", MODIFIED, |h| share(h, ("/f", 2 * BLOCK), ("/f", 0), Some(BLOCK))),
    // Operations on attributes.
    op!("set-xattr", CHANGED, |h| h.set_xattr("/f", "user.a", 70)),
    op!("replace-xattr", CHANGED, |h| h.set_xattr("/a/v", "user.a", 700)),
    alone!("second-xattr", CHANGED, |h| h.set_xattr("/a/v", "user.b", 9000)),
    op!("xattr-dir", CHANGED, |h| h.set_xattr("/a", "user.a", 10)),
    op!("remove-xattr", CHANGED, |h| h.with("/a/v", |node| h.thread.files().remove_xattr(node, b"user.a"))),
    op!("chmod", NONE, |h| change(h, "/f", Changes { permissions: Some(0o4711), ..Changes::default() })),
    op!("chmod-dir", NONE, |h| change(h, "/a", Changes { permissions: Some(0o1700), ..Changes::default() })),
    op!("chown", NONE, |h| change(h, "/hl", Changes { uid: Some(77), gid: Some(78), ..Changes::default() })),
    alone!("chattr", NONE, |h| change(h, "/f", Changes { flags: Some(FileFlags::IMMUTABLE), ..Changes::default() })),
    alone!("chattr-dir", NONE, |h| {
        change(h, "/a", Changes { flags: Some(FileFlags::APPEND_ONLY), ..Changes::default() })
    }),
    op!("utimes", ACCESSED, |h| {
        change(h, "/f", Changes { accessed_ns: Some(5), modified_ns: Some(-6), ..Changes::default() })
    }),
    alone!("utimes-dir", ACCESSED, |h| {
        change(h, "/a", Changes { accessed_ns: Some(5), modified_ns: Some(6), ..Changes::default() })
    }),
    // Operations that programs rarely call or never.
    op!("recycle", NONE, |h| h.thread.recycler().recycle(usize::MAX).map(drop)),
    alone!("sync", NONE, |h| h.thread.sync_all()),
    Operation { name: "detach", act: None, slack: NONE, leaves: NONE, paired: false },
    // Operations in directories that are about to get another page or to be compacted.
    alone!("p-create", NONE, |h| h.create("/p/new")),
    alone!("p-two", CHANGED, |h| h.tmpfile("/p/new", 10)),
    alone!("p-unlink", CHANGED, |h| h.unlink("/p/500")),
    alone!("p-rename", CHANGED, |h| h.rename("/p/501", "/p/new")),
    alone!("p-rename-out", CHANGED, |h| h.rename("/p/502", "/a/new")),
    alone!("p-rename-in", CHANGED, |h| h.rename("/f", "/p/new")),
    alone!("p-exchange", CHANGED, |h| h.rename_with("/p/500", "/a/v", EXCHANGE)),
    alone!("p-whiteout", CHANGED, |h| h.rename_with("/p/500", "/p/new", WHITEOUT)),
];

fn allocate<M: Memory>(
    thread: &TestThread<'_, M>,
    path: &str,
    mode: AllocateMode,
    offset: u64,
    length: u64,
) -> Result<()> {
    thread.with(path, |node| thread.thread.files().allocate(node, mode, offset, length))
}

fn share<M: Memory>(thread: &TestThread<'_, M>, from: (&str, u64), to: (&str, u64), length: Option<u64>) -> Result<()> {
    thread.with(from.0, |source| {
        thread
            .with(to.0, |target| thread.thread.files().share_range((source, from.1), (target, to.1), length).map(drop))
    })
}

fn change<M: Memory>(thread: &TestThread<'_, M>, path: &str, changes: Changes) -> Result<()> {
    thread.with(path, |node| thread.thread.change(node, |_| Ok(changes)).map(drop))
}
