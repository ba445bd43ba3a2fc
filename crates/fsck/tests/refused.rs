//! What an image must not hand to programs, although all its seals verify: names that are paths,
//! targets with zero bytes, attributes that no file has. The engine calls it damage, and a repair
//! makes it possible again.

use crate::support::engine_support::Attached;
use crate::support::{DamagedImage, sample};
use engine::format::is_possible_name;
use engine::{Error, Node, Thread};
use fsck::{Options, repair};
use pmem::Direct;

/// Spellings that mean another file to programs, or cannot be passed to them.
const SPELLINGS: [&[u8]; 6] = [b"../profile", b"/ab", b"..", b".", b"a/b", b"zero\0byte"];

type Listed = Result<Vec<Vec<u8>>, (Error, Vec<Vec<u8>>)>;

fn list(thread: &Thread<'_, Direct>, directory: Node) -> Listed {
    let mut names = Vec::new();
    let done = thread.read_directory(directory, 0, &mut Default::default(), &mut |entry| {
        names.push(entry.name.to_vec());
        true
    });
    match done {
        Ok(()) => Ok(names),
        Err(error) => Err((error, names)),
    }
}

fn with_docs<R>(attached: &Attached, act: impl FnOnce(&Thread<'_, Direct>, Node) -> R) -> R {
    let thread = attached.enter();
    let root = thread.root().unwrap();
    let docs = thread.lookup(root, b"docs").unwrap();
    let result = act(&thread, docs);
    thread.release(docs, 1);
    thread.release(root, 1);
    result
}

fn is_damage<R>(result: Result<R, Error>) -> bool {
    matches!(result, Err(Error::Corrupt(_)))
}

#[test]
fn a_directory_with_a_name_that_is_a_path_is_damaged_until_it_is_repaired() {
    for (spelling, clean) in SPELLINGS.into_iter().flat_map(|spelling| [(spelling, true), (spelling, false)]) {
        let shown = format!("{}, clean: {clean}", spelling.escape_ascii());
        let image = sample();
        let damaged = DamagedImage::new(&image);
        let named = damaged.find("docs/file-01");
        damaged.change_dentry(named.dentry, |_, name| *name = spelling.to_vec());
        if !clean {
            damaged.unclean();
        }
        let attached = image.attach();
        with_docs(&attached, |thread, docs| {
            let Err((Error::Corrupt(_), names)) = list(thread, docs) else { panic!("{shown}: the listing ends well") };
            assert!(names.iter().all(|name| is_possible_name(name)), "{shown}: {names:?}");
            assert!(is_damage(thread.name_of(docs, named.number, &mut [0; 255])), "{shown}: its name is shown");
            assert!(is_damage(thread.lookup(docs, b"file-02")), "{shown}: a miss there would be no answer");
        });
        attached.detach();

        let repaired = repair(&damaged.region, &Options::default(), 1, &mut |_| true, &mut |_| {});
        assert!(repaired.after.is_sound(), "{shown}: {}", repaired.after);
        let attached = image.attach();
        with_docs(&attached, |thread, docs| {
            let names = list(thread, docs).unwrap_or_else(|(error, _)| panic!("{shown}: {error:?}"));
            assert!(names.iter().all(|name| is_possible_name(name)), "{shown}: {names:?}");
            let found = names.iter().any(|name| {
                let node = thread.lookup(docs, name).unwrap();
                thread.release(node, 1);
                node.number == named.number
            });
            assert!(found, "{shown}: the file is lost: {names:?}");
        });
        attached.detach();
    }
}

/// A change below a right seal, and a use of the file that meets it.
type Refusal = (&'static str, &'static str, fn(&DamagedImage, u64), fn(&Thread<'_, Direct>, Node, &[u8]) -> bool);

fn lookup_fails(thread: &Thread<'_, Direct>, root: Node, name: &[u8]) -> bool {
    is_damage(thread.lookup(root, name)) && is_damage(thread.stat_name(root, name))
}

fn target_fails(thread: &Thread<'_, Direct>, root: Node, name: &[u8]) -> bool {
    let node = thread.lookup(root, name).unwrap();
    let read = thread.read_link(node, &mut [0; 4096]);
    thread.release(node, 1);
    is_damage(read)
}

const REFUSALS: &[Refusal] = &[
    (
        "small",
        "a length beyond what files have",
        |p, n| p.change_property(n, |of| of.size_bytes = 1 << 63),
        lookup_fails,
    ),
    ("small", "the owner that means no change", |p, n| p.change_property(n, |of| of.uid = u32::MAX), lookup_fails),
    ("small", "the group that means no change", |p, n| p.change_property(n, |of| of.gid = u32::MAX), lookup_fails),
    ("small", "the mode of a device", |p, n| p.change_property(n, |of| of.mode = 0o020666), lookup_fails),
    ("pipe", "a length of a pipe", |p, n| p.change_property(n, |of| of.size_bytes = 1), lookup_fails),
    ("short-link", "a link of no bytes", |p, n| p.change_property(n, |of| of.size_bytes = 0), lookup_fails),
    ("long-link", "a link longer than a path", |p, n| p.change_property(n, |of| of.size_bytes = 5000), lookup_fails),
    ("short-link", "a zero byte in a target", |p, n| p.set_bytes(p.inode_offset(n) + 208 + 4, &[0]), target_fails),
    ("long-link", "a target in a hole", |p, n| p.change_property(n, |of| of.root = 0), target_fails),
    (
        "short-link",
        "a link that listings call a directory",
        |p, _| {
            p.change_dentry(p.find("short-link").dentry, |facts, _| facts.kind = engine::format::FileKind::Directory)
        },
        lookup_fails,
    ),
];

#[test]
fn attributes_that_no_file_has_do_not_leave_an_image() {
    for (name, what, change, fails) in REFUSALS {
        let image = sample();
        let damaged = DamagedImage::new(&image);
        change(&damaged, damaged.find(name).number);
        assert!(!damaged.check().is_sound(), "{what}: the check finds nothing");
        let attached = image.attach();
        {
            let thread = attached.enter();
            let root = thread.root().unwrap();
            assert!(fails(&thread, root, name.as_bytes()), "{what}: a program gets it");
            thread.release(root, 1);
        }
        attached.detach();
        let repaired = repair(&damaged.region, &Options::default(), 1, &mut |_| true, &mut |_| {});
        assert!(repaired.after.is_sound(), "{what}: {}", repaired.after);
    }
}
