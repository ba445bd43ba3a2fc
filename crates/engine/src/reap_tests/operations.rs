//! The operations during which a thread dies.

use super::{MortalThread, Operation, Tree, made};
use crate::error::{Error, Result};
use crate::file::AllocateMode;
use crate::format::FileKind;
use crate::fs::Node;
use crate::testing::new_node as new;
use crate::{Changes, FileFlags, NewNode, RenameFlags};
use core::sync::atomic::Ordering::Relaxed;

pub(super) const LONG: &[u8] = &[b'n'; 255];

pub(super) const OPERATIONS: &[(&str, Operation)] = &[
    ("enter", |thread, _| thread.fs.enter().map(drop)),
    ("create", |thread, tree| made(thread, thread.create(tree.root, b"new", &new(FileKind::Regular)))),
    ("create-long", |thread, tree| made(thread, thread.create(tree.full, LONG, &new(FileKind::Regular)))),
    ("create-in-empty", |thread, tree| made(thread, thread.create(tree.empty, b"first", &new(FileKind::Regular)))),
    ("mkdir", |thread, tree| made(thread, thread.create(tree.full, b"new", &new(FileKind::Directory)))),
    ("symlink", |thread, tree| made(thread, thread.create(tree.root, b"new", &new(FileKind::Symlink)))),
    ("symlink-long", |thread, tree| {
        let new = NewNode { target: &[b't'; 1000], ..new(FileKind::Symlink) };
        made(thread, thread.create(tree.root, b"new", &new))
    }),
    ("create-with-attributes", |thread, tree| {
        let extended: &[(&[u8], &[u8])] = &[(b"user.b", &[7; 100]), (b"user.c", &[8; 5000])];
        let new = NewNode { extended, flags: FileFlags::ACCESS_LIST, ..new(FileKind::Regular) };
        made(thread, thread.create(tree.full, b"new", &new))
    }),
    ("create-and-remove", |thread, tree| {
        // The second file gets the lines, the number and the cachelet of the first one.
        for _ in 0..2 {
            made(thread, thread.create(tree.full, b"new", &new(FileKind::Symlink)))?;
            thread.unlink(tree.full, b"new", |_| Ok(()))?;
            thread.recycler().drain()?;
        }
        Ok(())
    }),
    ("create-unnamed", |thread, tree| made(thread, thread.create_unnamed(tree.root, &new(FileKind::Regular)))),
    ("unnamed-then-link", |thread, tree| {
        let node = thread.create_unnamed(tree.root, &new(FileKind::Regular))?;
        thread.record_reference(node);
        let linked = thread.link(node, tree.root, b"new");
        thread.release_recorded(node);
        linked
    }),
    ("create-taken", |thread, tree| match thread.create(tree.root, b"small", &new(FileKind::Regular)) {
        Err(Error::Exists) => Ok(()),
        other => made(thread, other),
    }),
    ("link", |thread, tree| thread.link(tree.small, tree.full, b"new")),
    ("link-third", |thread, tree| thread.link(tree.linked, tree.root, b"new")),
    ("unlink", |thread, tree| thread.unlink(tree.full, b"x", |_| Ok(()))),
    ("unlink-open", |thread, tree| thread.unlink(tree.root, b"small", |_| Ok(()))),
    ("unlink-linked", |thread, tree| thread.unlink(tree.root, b"linked", |_| Ok(()))),
    ("unlink-and-recycle", |thread, tree| {
        thread.unlink(tree.full, b"x", |_| Ok(()))?;
        thread.unlink(tree.full, b"y", |_| Ok(()))?;
        thread.recycler().drain().map(drop)
    }),
    ("rmdir", |thread, tree| thread.remove_directory(tree.full, b"inner", |_| Ok(()))),
    ("rmdir-full", |thread, tree| {
        for name in [&b"new"[..], b"third"] {
            made(thread, thread.create(tree.full, name, &new(FileKind::Regular)))?;
        }
        match thread.remove_directory(tree.root, b"full", |_| Ok(())) {
            Err(Error::NotEmpty) => Ok(()),
            other => other,
        }
    }),
    ("rmdir-open", |thread, tree| thread.remove_directory(tree.root, b"empty", |_| Ok(()))),
    ("rmdir-and-recycle", |thread, tree| {
        made(thread, thread.create(tree.empty, b"one", &new(FileKind::Regular)))?;
        made(thread, thread.create(tree.empty, LONG, &new(FileKind::Regular)))?;
        thread.unlink(tree.empty, LONG, |_| Ok(()))?;
        thread.unlink(tree.empty, b"one", |_| Ok(()))?;
        thread.remove_directory(tree.full, b"inner", |_| Ok(()))?;
        thread.recycler().drain().map(drop)
    }),
    ("recycle-with-log-and-attributes", |thread, tree| {
        // Both name bodies that the first phase of recycling clears.
        let extended: &[(&[u8], &[u8])] = &[(b"user.b", &[7; 9000])];
        let (mut file, mut directory) = (new(FileKind::Regular), new(FileKind::Directory));
        (file.extended, directory.extended) = (extended, extended);
        let node = thread.create(tree.full, b"new", &directory)?;
        thread.record_reference(node);
        made(thread, thread.create(node, LONG, &file))?;
        thread.unlink(node, LONG, |_| Ok(()))?;
        thread.release_recorded(node);
        thread.remove_directory(tree.full, b"new", |_| Ok(()))?;
        thread.recycler().drain().map(drop)
    }),
    ("rename", |thread, tree| rename(thread, (tree.root, b"small"), (tree.root, b"new"))),
    ("rename-across", |thread, tree| rename(thread, (tree.root, b"small"), (tree.full, b"new"))),
    ("rename-over", |thread, tree| rename(thread, (tree.root, b"small"), (tree.full, b"x"))),
    ("rename-over-open", |thread, tree| rename(thread, (tree.full, b"x"), (tree.root, b"small"))),
    ("rename-over-linked", |thread, tree| rename(thread, (tree.full, b"x"), (tree.root, b"linked"))),
    ("rename-linked", |thread, tree| rename(thread, (tree.root, b"linked"), (tree.full, b"new"))),
    ("rename-thrice", |thread, tree| {
        // The third record is written over the first.
        rename(thread, (tree.root, b"small"), (tree.root, b"new"))?;
        rename(thread, (tree.root, b"new"), (tree.root, b"small"))?;
        rename(thread, (tree.root, b"small"), (tree.root, b"new"))
    }),
    ("rename-directory", |thread, tree| rename(thread, (tree.root, b"empty"), (tree.full, b"new"))),
    ("rename-directory-over", |thread, tree| rename(thread, (tree.root, b"empty"), (tree.full, b"inner"))),
    ("exchange", |thread, tree| exchange(thread, (tree.root, b"small"), (tree.full, b"inner"))),
    ("exchange-files", |thread, tree| exchange(thread, (tree.root, b"small"), (tree.full, b"x"))),
    ("exchange-directories", |thread, tree| exchange(thread, (tree.root, b"empty"), (tree.full, b"inner"))),
    ("exchange-linked", |thread, tree| exchange(thread, (tree.full, b"x"), (tree.root, b"linked"))),
    ("whiteout", |thread, tree| {
        let flags = RenameFlags { whiteout: Some((0, 0)), ..RenameFlags::default() };
        thread.rename((tree.root, b"small"), (tree.full, b"x"), flags, |_, _| Ok(()))
    }),
    ("append", |thread, tree| thread.files().append(tree.file, &[6; 100]).map(drop)),
    ("append-blocks", |thread, tree| thread.files().append(tree.file, &[6; 20_000]).map(drop)),
    ("append-first", |thread, tree| thread.files().append(tree.linked, &[6; 100]).map(drop)),
    ("write-far", |thread, tree| thread.files().write(tree.file, 600 * 4096, &[6; 100]).map(drop)),
    ("overwrite", |thread, tree| thread.files().write(tree.file, 100, &[7; 50]).map(drop)),
    ("overwrite-blocks", |thread, tree| thread.files().write(tree.file, 100, &[7; 9000]).map(drop)),
    ("overwrite-only-block", |thread, tree| thread.files().write(tree.small, 2, &[7; 3]).map(drop)),
    ("truncate", |thread, tree| thread.files().truncate(tree.file, 0)),
    ("shorten", |thread, tree| thread.files().truncate(tree.file, 5000)),
    ("lengthen", |thread, tree| thread.files().truncate(tree.file, 50_000)),
    ("punch", |thread, tree| thread.files().allocate(tree.file, AllocateMode::PunchHole, 4096, 4096)),
    ("punch-all", |thread, tree| thread.files().allocate(tree.file, AllocateMode::PunchHole, 0, 1 << 20)),
    ("zero", |thread, tree| thread.files().allocate(tree.file, AllocateMode::ZeroRange { keep_size: true }, 100, 8000)),
    ("allocate", |thread, tree| {
        thread.files().allocate(tree.file, AllocateMode::Allocate { keep_size: false }, 0, 40_000)
    }),
    ("collapse", |thread, tree| thread.files().allocate(tree.file, AllocateMode::CollapseRange, 4096, 4096)),
    ("insert", |thread, tree| thread.files().allocate(tree.file, AllocateMode::InsertRange, 4096, 4096)),
    ("xattr-first", |thread, tree| thread.files().set_xattr(tree.small, b"user.b", &[8; 100], false, false)),
    ("xattr-replace", |thread, tree| {
        thread.files().set_xattr(tree.file, b"user.a", &[8; 6000], false, false)?;
        thread.recycler().drain().map(drop)
    }),
    ("xattr-remove", |thread, tree| thread.files().remove_xattr(tree.file, b"user.a")),
    ("chmod", |thread, tree| {
        thread.change(tree.file, |_| Ok(Changes { permissions: Some(0o600), ..Changes::default() })).map(drop)
    }),
    ("chmod-directory", |thread, tree| {
        thread.change(tree.full, |_| Ok(Changes { permissions: Some(0o700), ..Changes::default() })).map(drop)
    }),
    ("sync", |thread, _| thread.sync_all()),
    ("give-back", |thread, _| thread.allocator().give_back_lines().and(thread.allocator().give_back_inodes())),
    ("last-release", |thread, tree| {
        thread.record_reference(tree.orphan);
        thread.release_recorded(tree.orphan);
        thread.recycler().drain().map(drop)
    }),
    ("last-hold", |thread, tree| {
        thread.record_reference(tree.orphan);
        thread.set_held(tree.orphan, true)?;
        thread.release_recorded(tree.orphan);
        thread.set_held(tree.orphan, false)?;
        thread.recycler().drain().map(drop)
    }),
    ("unlink-held", |thread, tree| {
        thread.set_held(tree.small, true)?;
        thread.unlink(tree.root, b"small", |_| Ok(()))?;
        thread.set_held(tree.small, false)
    }),
    ("map-and-shorten", |thread, tree| {
        thread.files().set_mapped(tree.file, true)?;
        thread.files().truncate(tree.file, 5000)?;
        thread.files().truncate(tree.file, 9000)?;
        thread.files().truncate(tree.file, 100)?;
        thread.files().set_mapped(tree.file, false)
    }),
    ("compact", |thread, tree| {
        thread.unlink(tree.full, b"x", |_| Ok(()))?;
        thread.maintenance().compact(tree.full)
    }),
    ("compact-twice", |thread, tree| {
        // Names whose lines begin and end slabs, with others between them that stay.
        for name in [&b"a"[..], LONG, b"b", b"c"] {
            made(thread, thread.create(tree.empty, name, &new(FileKind::Regular)))?;
        }
        thread.unlink(tree.empty, b"a", |_| Ok(()))?;
        thread.unlink(tree.empty, LONG, |_| Ok(()))?;
        thread.maintenance().compact(tree.empty)?;
        thread.unlink(tree.empty, b"b", |_| Ok(()))?;
        thread.unlink(tree.empty, b"c", |_| Ok(()))?;
        thread.maintenance().compact(tree.empty)?;
        thread.recycler().drain().map(drop)
    }),
    ("index", |thread, tree| {
        let cold = thread.lookup(tree.root, b"cold")?;
        thread.record_reference(cold);
        thread.stat_name(cold, LONG)?;
        thread.release_recorded(cold);
        Ok(())
    }),
    ("evict", |thread, tree| {
        thread.stat_name(tree.root, b"cold")?;
        thread.maintenance().evict_some().map(drop)
    }),
    ("evict-files", |thread, tree| {
        thread.stat_name(tree.full, b"x")?;
        thread.maintenance().evict_files()?;
        thread.stat_name(tree.full, b"x").map(drop)
    }),
    ("index-and-evict", |thread, tree| {
        let cold = thread.lookup(tree.root, b"cold")?;
        thread.record_reference(cold);
        thread.stat_name(cold, b"x")?;
        thread.release_recorded(cold);
        thread.maintenance().evict_some().map(drop)
    }),
    ("grow", |thread, _| {
        let buckets = thread.fs.header()?.buckets.load(Relaxed);
        thread.names().grow(2 * (buckets + 6))
    }),
    ("look", |thread, tree| {
        let node = thread.lookup(tree.full, b"x")?;
        thread.record_reference(node);
        thread.files().read(node, 0, &mut [0; 100])?;
        thread.release_recorded(node);
        Ok(())
    }),
];

pub(super) fn rename(thread: &MortalThread<'_>, from: (Node, &[u8]), to: (Node, &[u8])) -> Result<()> {
    thread.rename(from, to, RenameFlags::default(), |_, _| Ok(()))
}

fn exchange(thread: &MortalThread<'_>, from: (Node, &[u8]), to: (Node, &[u8])) -> Result<()> {
    thread.rename(from, to, RenameFlags { exchange: true, ..RenameFlags::default() }, |_, _| Ok(()))
}

/// While a rename that replaces or exchanges a file holds its names, another thread gives that file
/// one more name. Its directory's names are in other buckets, so this works only in a roomy world.
fn rename_meanwhile_linked(
    thread: &MortalThread<'_>,
    tree: &Tree,
    from: (Node, &[u8]),
    flags: RenameFlags,
) -> Result<()> {
    let fs = thread.fs;
    thread.rename(from, (tree.root, b"linked"), flags, |_, _| {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let other = fs.enter().expect("enters");
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
    ("rename-over-linked-meanwhile", |thread, tree| {
        rename_meanwhile_linked(thread, tree, (tree.full, b"x"), RenameFlags::default())
    }),
    ("rename-later-over-linked-meanwhile", |thread, tree| {
        // Of two files the one made first is locked first.
        made(thread, thread.create(tree.full, b"new", &new(FileKind::Regular)))?;
        rename_meanwhile_linked(thread, tree, (tree.full, b"new"), RenameFlags::default())
    }),
    ("exchange-linked-meanwhile", |thread, tree| {
        let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
        rename_meanwhile_linked(thread, tree, (tree.full, b"x"), flags)
    }),
];
