//! The operations during which a thread dies.

use super::{Hand, Operation, Tree, made};
use crate::error::{Error, Result};
use crate::file::AllocateMode;
use crate::format::FileKind;
use crate::fs::Node;
use crate::testing::new_node as new;
use crate::{Changes, NewNode, RenameFlags};
use core::sync::atomic::Ordering::Relaxed;

pub(super) const LONG: &[u8] = &[b'n'; 255];

pub(super) const OPERATIONS: &[(&str, Operation)] = &[
    ("enter", |hand, _| hand.fs.enter().map(drop)),
    ("create", |hand, tree| made(hand, hand.create(tree.root, b"new", &new(FileKind::Regular)))),
    ("create-long", |hand, tree| made(hand, hand.create(tree.full, LONG, &new(FileKind::Regular)))),
    ("create-in-empty", |hand, tree| made(hand, hand.create(tree.empty, b"first", &new(FileKind::Regular)))),
    ("mkdir", |hand, tree| made(hand, hand.create(tree.full, b"new", &new(FileKind::Directory)))),
    ("symlink", |hand, tree| made(hand, hand.create(tree.root, b"new", &new(FileKind::Symlink)))),
    ("symlink-long", |hand, tree| {
        let new = NewNode { target: &[b't'; 1000], ..new(FileKind::Symlink) };
        made(hand, hand.create(tree.root, b"new", &new))
    }),
    ("create-with-attributes", |hand, tree| {
        let extended: &[(&[u8], &[u8])] = &[(b"user.b", &[7; 100]), (b"user.c", &[8; 5000])];
        let new = NewNode { extended, access_list: true, ..new(FileKind::Regular) };
        made(hand, hand.create(tree.full, b"new", &new))
    }),
    ("create-and-remove", |hand, tree| {
        // The same lines, number and cachelet serve two lives.
        for _ in 0..2 {
            made(hand, hand.create(tree.full, b"new", &new(FileKind::Symlink)))?;
            hand.unlink(tree.full, b"new", |_| Ok(()))?;
            hand.drain()?;
        }
        Ok(())
    }),
    ("create-unnamed", |hand, tree| made(hand, hand.create_unnamed(tree.root, &new(FileKind::Regular)))),
    ("unnamed-then-link", |hand, tree| {
        let node = hand.create_unnamed(tree.root, &new(FileKind::Regular))?;
        hand.note(node);
        let linked = hand.link(node, tree.root, b"new");
        hand.give_back(node);
        linked
    }),
    ("create-taken", |hand, tree| match hand.create(tree.root, b"small", &new(FileKind::Regular)) {
        Err(Error::Exists) => Ok(()),
        other => made(hand, other),
    }),
    ("link", |hand, tree| hand.link(tree.small, tree.full, b"new")),
    ("link-third", |hand, tree| hand.link(tree.linked, tree.root, b"new")),
    ("unlink", |hand, tree| hand.unlink(tree.full, b"x", |_| Ok(()))),
    ("unlink-open", |hand, tree| hand.unlink(tree.root, b"small", |_| Ok(()))),
    ("unlink-linked", |hand, tree| hand.unlink(tree.root, b"linked", |_| Ok(()))),
    ("unlink-and-recycle", |hand, tree| {
        hand.unlink(tree.full, b"x", |_| Ok(()))?;
        hand.unlink(tree.full, b"y", |_| Ok(()))?;
        hand.drain().map(drop)
    }),
    ("rmdir", |hand, tree| hand.remove_directory(tree.full, b"inner", |_| Ok(()))),
    ("rmdir-open", |hand, tree| hand.remove_directory(tree.root, b"empty", |_| Ok(()))),
    ("rmdir-and-recycle", |hand, tree| {
        made(hand, hand.create(tree.empty, b"one", &new(FileKind::Regular)))?;
        made(hand, hand.create(tree.empty, LONG, &new(FileKind::Regular)))?;
        hand.unlink(tree.empty, LONG, |_| Ok(()))?;
        hand.unlink(tree.empty, b"one", |_| Ok(()))?;
        hand.remove_directory(tree.full, b"inner", |_| Ok(()))?;
        hand.drain().map(drop)
    }),
    ("recycle-with-log-and-attributes", |hand, tree| {
        // Both name bodies that the first phase of recycling clears.
        let extended: &[(&[u8], &[u8])] = &[(b"user.b", &[7; 9000])];
        let (mut file, mut directory) = (new(FileKind::Regular), new(FileKind::Directory));
        (file.extended, directory.extended) = (extended, extended);
        let node = hand.create(tree.full, b"new", &directory)?;
        hand.note(node);
        made(hand, hand.create(node, LONG, &file))?;
        hand.unlink(node, LONG, |_| Ok(()))?;
        hand.give_back(node);
        hand.remove_directory(tree.full, b"new", |_| Ok(()))?;
        hand.drain().map(drop)
    }),
    ("rename", |hand, tree| rename(hand, (tree.root, b"small"), (tree.root, b"new"))),
    ("rename-across", |hand, tree| rename(hand, (tree.root, b"small"), (tree.full, b"new"))),
    ("rename-over", |hand, tree| rename(hand, (tree.root, b"small"), (tree.full, b"x"))),
    ("rename-over-open", |hand, tree| rename(hand, (tree.full, b"x"), (tree.root, b"small"))),
    ("rename-over-linked", |hand, tree| rename(hand, (tree.full, b"x"), (tree.root, b"linked"))),
    ("rename-linked", |hand, tree| rename(hand, (tree.root, b"linked"), (tree.full, b"new"))),
    ("rename-thrice", |hand, tree| {
        // The third record is written over the first.
        rename(hand, (tree.root, b"small"), (tree.root, b"new"))?;
        rename(hand, (tree.root, b"new"), (tree.root, b"small"))?;
        rename(hand, (tree.root, b"small"), (tree.root, b"new"))
    }),
    ("rename-directory", |hand, tree| rename(hand, (tree.root, b"empty"), (tree.full, b"new"))),
    ("rename-directory-over", |hand, tree| rename(hand, (tree.root, b"empty"), (tree.full, b"inner"))),
    ("exchange", |hand, tree| exchange(hand, (tree.root, b"small"), (tree.full, b"inner"))),
    ("exchange-files", |hand, tree| exchange(hand, (tree.root, b"small"), (tree.full, b"x"))),
    ("exchange-directories", |hand, tree| exchange(hand, (tree.root, b"empty"), (tree.full, b"inner"))),
    ("exchange-linked", |hand, tree| exchange(hand, (tree.full, b"x"), (tree.root, b"linked"))),
    ("whiteout", |hand, tree| {
        let flags = RenameFlags { whiteout: true, ..RenameFlags::default() };
        hand.rename((tree.root, b"small"), (tree.full, b"x"), flags, |_, _| Ok(()))
    }),
    ("append", |hand, tree| hand.append(tree.file, &[6; 100]).map(drop)),
    ("append-blocks", |hand, tree| hand.append(tree.file, &[6; 20_000]).map(drop)),
    ("append-first", |hand, tree| hand.append(tree.linked, &[6; 100]).map(drop)),
    ("write-far", |hand, tree| hand.write(tree.file, 600 * 4096, &[6; 100]).map(drop)),
    ("overwrite", |hand, tree| hand.write(tree.file, 100, &[7; 50]).map(drop)),
    ("overwrite-blocks", |hand, tree| hand.write(tree.file, 100, &[7; 9000]).map(drop)),
    ("overwrite-only-block", |hand, tree| hand.write(tree.small, 2, &[7; 3]).map(drop)),
    ("truncate", |hand, tree| hand.truncate(tree.file, 0)),
    ("shorten", |hand, tree| hand.truncate(tree.file, 5000)),
    ("lengthen", |hand, tree| hand.truncate(tree.file, 50_000)),
    ("punch", |hand, tree| hand.allocate(tree.file, AllocateMode::PunchHole, 4096, 4096)),
    ("punch-all", |hand, tree| hand.allocate(tree.file, AllocateMode::PunchHole, 0, 1 << 20)),
    ("zero", |hand, tree| hand.allocate(tree.file, AllocateMode::ZeroRange { keep_size: true }, 100, 8000)),
    ("allocate", |hand, tree| hand.allocate(tree.file, AllocateMode::Allocate { keep_size: false }, 0, 40_000)),
    ("collapse", |hand, tree| hand.allocate(tree.file, AllocateMode::CollapseRange, 4096, 4096)),
    ("insert", |hand, tree| hand.allocate(tree.file, AllocateMode::InsertRange, 4096, 4096)),
    ("xattr-first", |hand, tree| hand.set_xattr(tree.small, b"user.b", &[8; 100], false, false)),
    ("xattr-replace", |hand, tree| {
        hand.set_xattr(tree.file, b"user.a", &[8; 6000], false, false)?;
        hand.drain().map(drop)
    }),
    ("xattr-remove", |hand, tree| hand.remove_xattr(tree.file, b"user.a")),
    ("chmod", |hand, tree| {
        hand.change(tree.file, |_| Ok(Changes { permissions: Some(0o600), ..Changes::default() })).map(drop)
    }),
    ("chmod-directory", |hand, tree| {
        hand.change(tree.full, |_| Ok(Changes { permissions: Some(0o700), ..Changes::default() })).map(drop)
    }),
    ("sync", |hand, _| hand.sync_all()),
    ("give-back", |hand, _| hand.give_back_lines().and(hand.give_back_inodes())),
    ("last-release", |hand, tree| {
        hand.note(tree.orphan);
        hand.give_back(tree.orphan);
        hand.drain().map(drop)
    }),
    ("last-hold", |hand, tree| {
        hand.note(tree.orphan);
        hand.set_held(tree.orphan, true)?;
        hand.give_back(tree.orphan);
        hand.set_held(tree.orphan, false)?;
        hand.drain().map(drop)
    }),
    ("unlink-held", |hand, tree| {
        hand.set_held(tree.small, true)?;
        hand.unlink(tree.root, b"small", |_| Ok(()))?;
        hand.set_held(tree.small, false)
    }),
    ("map-and-shorten", |hand, tree| {
        hand.set_mapped(tree.file, true)?;
        hand.truncate(tree.file, 5000)?;
        hand.truncate(tree.file, 9000)?;
        hand.truncate(tree.file, 100)?;
        hand.set_mapped(tree.file, false)
    }),
    ("compact", |hand, tree| {
        hand.unlink(tree.full, b"x", |_| Ok(()))?;
        hand.compact(tree.full)
    }),
    ("compact-twice", |hand, tree| {
        // Names whose lines begin and end slabs, with others between them that stay.
        for name in [&b"a"[..], LONG, b"b", b"c"] {
            made(hand, hand.create(tree.empty, name, &new(FileKind::Regular)))?;
        }
        hand.unlink(tree.empty, b"a", |_| Ok(()))?;
        hand.unlink(tree.empty, LONG, |_| Ok(()))?;
        hand.compact(tree.empty)?;
        hand.unlink(tree.empty, b"b", |_| Ok(()))?;
        hand.unlink(tree.empty, b"c", |_| Ok(()))?;
        hand.compact(tree.empty)?;
        hand.drain().map(drop)
    }),
    ("index", |hand, tree| {
        let cold = hand.lookup(tree.root, b"cold")?;
        hand.note(cold);
        hand.stat_name(cold, LONG)?;
        hand.give_back(cold);
        Ok(())
    }),
    ("evict", |hand, tree| {
        hand.stat_name(tree.root, b"cold")?;
        hand.evict_some().map(drop)
    }),
    ("index-and-evict", |hand, tree| {
        let cold = hand.lookup(tree.root, b"cold")?;
        hand.note(cold);
        hand.stat_name(cold, b"x")?;
        hand.give_back(cold);
        hand.evict_some().map(drop)
    }),
    ("grow", |hand, _| {
        let buckets = hand.fs.header()?.buckets.load(Relaxed);
        hand.grow(2 * (buckets + 6))
    }),
    ("look", |hand, tree| {
        let node = hand.lookup(tree.full, b"x")?;
        hand.note(node);
        hand.read(node, 0, &mut [0; 100])?;
        hand.give_back(node);
        Ok(())
    }),
];

pub(super) fn rename(hand: &Hand<'_>, from: (Node, &[u8]), to: (Node, &[u8])) -> Result<()> {
    hand.rename(from, to, RenameFlags::default(), |_, _| Ok(()))
}

fn exchange(hand: &Hand<'_>, from: (Node, &[u8]), to: (Node, &[u8])) -> Result<()> {
    hand.rename(from, to, RenameFlags { exchange: true, ..RenameFlags::default() }, |_, _| Ok(()))
}

/// While a rename that replaces or exchanges a file holds its names, another thread gives that file
/// one more name. Its directory's names are in other buckets, so this works only in a roomy world.
fn rename_meanwhile_linked(hand: &Hand<'_>, tree: &Tree, from: (Node, &[u8]), flags: RenameFlags) -> Result<()> {
    hand.rename(from, (tree.root, b"linked"), flags, |_, _| {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let other = hand.fs.enter().expect("enters");
                match other.link(tree.linked, tree.empty, b"third") {
                    // A rename that starts again calls this again.
                    Ok(()) | Err(Error::Exists) => {}
                    Err(error) => panic!("{error}"),
                }
            });
            other.join().expect("links");
        });
        Ok(())
    })
}

pub(super) const OPERATIONS_BESIDE_OTHERS: &[(&str, Operation)] = &[
    ("rename-over-linked-meanwhile", |hand, tree| {
        rename_meanwhile_linked(hand, tree, (tree.full, b"x"), RenameFlags::default())
    }),
    ("rename-later-over-linked-meanwhile", |hand, tree| {
        // Of two files the one made first is locked first.
        made(hand, hand.create(tree.full, b"new", &new(FileKind::Regular)))?;
        rename_meanwhile_linked(hand, tree, (tree.full, b"new"), RenameFlags::default())
    }),
    ("exchange-linked-meanwhile", |hand, tree| {
        let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
        rename_meanwhile_linked(hand, tree, (tree.full, b"x"), flags)
    }),
];
