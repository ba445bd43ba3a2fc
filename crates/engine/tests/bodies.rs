//! Power cuts inside changes of files: at every fence, with every kind of loss, a file is as before
//! the call or as after it.

use crate::support::{Image, new_file};
use engine::{AllocateMode, AttachOptions, Node, Thread, visit_body};
use pmem::{CrashImage, Grain, Mapping, Memory, Recorded, Recorder};
use std::sync::Arc;

const BLOCK: u64 = 4096;
const IMAGE_BYTES: u64 = 2 << 20;

/// A change of a file on recorded memory.
type Change = fn(&Thread<'_, Recorder>, Node) -> engine::Result<()>;

/// The initial state of a file, a change of it, and whether the whole change is atomic.
struct Story {
    name: &'static str,
    before: Change,
    change: Change,
    atomic: bool,
}

fn bytes(length: u64, seed: u64) -> Vec<u8> {
    (0..length).map(|at| ((at / 7 + at * 13 + seed * 101) % 255) as u8 + 1).collect()
}

fn write<M: Memory>(thread: &Thread<'_, M>, node: Node, offset: u64, length: u64, seed: u64) -> engine::Result<()> {
    thread.files().write(node, offset, &bytes(length, seed)).map(drop)
}

const RESERVE: AllocateMode = AllocateMode::Allocate { keep_size: true };

const STORIES: &[Story] = &[
    Story { name: "first write", before: |_, _| Ok(()), change: |t, n| write(t, n, 0, 100, 1), atomic: true },
    Story { name: "first long write", before: |_, _| Ok(()), change: |t, n| write(t, n, 10, 9000, 1), atomic: true },
    Story {
        name: "append into the last block",
        before: |t, n| write(t, n, 0, 5000, 1),
        change: |t, n| t.files().append(n, &bytes(300, 2)).map(drop),
        atomic: true,
    },
    Story {
        name: "append over the last block",
        before: |t, n| write(t, n, 0, 5000, 1),
        change: |t, n| t.files().append(n, &bytes(9000, 2)).map(drop),
        atomic: true,
    },
    Story {
        name: "append that makes the tree higher",
        before: |t, n| write(t, n, 0, 100, 1),
        change: |t, n| t.files().append(n, &bytes(9000, 2)).map(drop),
        atomic: true,
    },
    Story {
        name: "write behind a gap",
        before: |t, n| write(t, n, 0, 6000, 1).and_then(|()| t.files().truncate(n, 4500)),
        change: |t, n| write(t, n, 3 * BLOCK + 5, 100, 2),
        atomic: true,
    },
    Story {
        name: "write behind a gap in a node that is missing",
        before: |t, n| write(t, n, 3 << 20, 10, 1),
        change: |t, n| write(t, n, 5 << 20, 100, 2),
        atomic: true,
    },
    Story {
        name: "overwrite in one block",
        before: |t, n| write(t, n, 0, 5 * BLOCK, 1),
        change: |t, n| write(t, n, BLOCK + 10, 500, 2),
        atomic: true,
    },
    Story {
        name: "overwrite of several blocks",
        before: |t, n| write(t, n, 0, 5 * BLOCK, 1),
        change: |t, n| write(t, n, BLOCK + 10, 2 * BLOCK, 2),
        atomic: true,
    },
    Story {
        name: "overwrite of several blocks below a high tree",
        before: |t, n| write(t, n, 0, 5 * BLOCK, 1).and_then(|()| write(t, n, 3 << 20, 10, 1)),
        change: |t, n| write(t, n, BLOCK + 10, 2 * BLOCK, 2),
        atomic: true,
    },
    Story {
        name: "overwrite across the end",
        before: |t, n| write(t, n, 0, 3 * BLOCK - 100, 1),
        change: |t, n| write(t, n, 2 * BLOCK, 3 * BLOCK, 2),
        atomic: true,
    },
    Story {
        name: "write into what is reserved",
        before: |t, n| write(t, n, 0, 100, 1).and_then(|()| t.files().allocate(n, RESERVE, 0, 5 * BLOCK)),
        change: |t, n| write(t, n, BLOCK + 1, 2 * BLOCK, 2),
        atomic: true,
    },
    Story {
        name: "write into a hole",
        before: |t, n| t.files().truncate(n, 10 * BLOCK),
        change: |t, n| write(t, n, BLOCK + 1, 2 * BLOCK, 2),
        atomic: true,
    },
    Story {
        name: "truncate to nothing",
        before: |t, n| write(t, n, 0, 5 * BLOCK, 1),
        change: |t, n| t.files().truncate(n, 0),
        atomic: true,
    },
    Story {
        name: "truncate to less",
        before: |t, n| write(t, n, 0, 5 * BLOCK, 1),
        change: |t, n| t.files().truncate(n, 2 * BLOCK + 77),
        atomic: true,
    },
    Story {
        name: "truncate to more",
        before: |t, n| write(t, n, 0, 6000, 1).and_then(|()| t.files().truncate(n, 4500)),
        change: |t, n| t.files().truncate(n, 3 * BLOCK),
        atomic: true,
    },
    Story {
        name: "truncate and append at once again",
        before: |t, n| write(t, n, 0, 5 * BLOCK, 1),
        change: |t, n| t.files().truncate(n, 0).and_then(|()| t.files().append(n, &bytes(2 * BLOCK, 2)).map(drop)),
        atomic: false,
    },
    Story {
        name: "reserve",
        before: |t, n| write(t, n, 0, 5000, 1),
        change: |t, n| t.files().allocate(n, AllocateMode::Allocate { keep_size: false }, 4000, 5 * BLOCK),
        atomic: true,
    },
    Story {
        name: "zero a range",
        before: |t, n| write(t, n, 0, 5 * BLOCK, 1),
        change: |t, n| t.files().allocate(n, AllocateMode::ZeroRange { keep_size: true }, 100, 3 * BLOCK),
        atomic: true,
    },
    Story {
        name: "punch",
        before: |t, n| write(t, n, 0, 5 * BLOCK, 1),
        change: |t, n| t.files().allocate(n, AllocateMode::PunchHole, 100, 3 * BLOCK),
        atomic: false,
    },
    Story {
        name: "collapse",
        before: |t, n| write(t, n, 0, 5 * BLOCK, 1),
        change: |t, n| t.files().allocate(n, AllocateMode::CollapseRange, BLOCK, 2 * BLOCK),
        atomic: true,
    },
    Story {
        name: "insert",
        before: |t, n| write(t, n, 0, 5 * BLOCK, 1),
        change: |t, n| t.files().allocate(n, AllocateMode::InsertRange, BLOCK, 2 * BLOCK),
        atomic: true,
    },
];

/// Everything that a program sees of a file's content, and of its attributes' values.
#[derive(Clone, PartialEq, Eq)]
struct VisitedFile {
    content: Vec<u8>,
    attribute: Option<Vec<u8>>,
}

impl std::fmt::Debug for VisitedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum = pmem::crc32c(0, &self.content);
        write!(f, "{} bytes ({sum:#x}), attribute {:?}", self.content.len(), self.attribute.as_ref().map(Vec::len))
    }
}

fn see<M: Memory>(thread: &Thread<'_, M>, node: Node) -> VisitedFile {
    let size = thread.stat(node).expect("stat").size_bytes;
    let mut content = vec![0; size as usize];
    assert_eq!(thread.files().read(node, 0, &mut content), Ok(content.len()));
    let attribute = thread.files().xattr(node, b"user.a", &mut []).ok().map(|length| {
        let mut value = vec![0; length];
        assert_eq!(thread.files().xattr(node, b"user.a", &mut value), Ok(length));
        value
    });
    VisitedFile { content, attribute }
}

fn whole_image<M: Memory>(image: &engine::Fs<M>) -> Vec<u8> {
    let mut bytes = vec![0; image.pm().length() as usize];
    image.pm().read_bytes(0, &mut bytes).expect("all of it");
    bytes
}

/// Records `change` on a file that `before` made: the image before, the log, and the content seen
/// before and after.
fn record(before: Change, change: Change) -> (Vec<u8>, Vec<Recorded>, [VisitedFile; 2]) {
    let image = Image::new(IMAGE_BYTES);
    let attached = image.attach_with(Recorder::new(), AttachOptions::default(), 1).expect("attaches");
    let thread = attached.enter();
    let node = thread.create(thread.root().expect("a root"), b"f", &new_file()).expect("a file");
    before(&thread, node).expect("before");
    let seen_before = see(&thread, node);
    let initial = whole_image(&attached.fs);
    let recorder = attached.fs.pm().memory();
    recorder.start();
    change(&thread, node).expect("the change");
    recorder.stop();
    let log = recorder.take();
    (initial, log, [seen_before, see(&thread, node)])
}

/// The content seen after recovery of an image; the file is used afterwards.
fn recovered(bytes: &[u8]) -> VisitedFile {
    let mapping = Arc::new(Mapping::anonymous(bytes.len() as u64).expect("memory"));
    let image = Image { mapping };
    let _ = image.region(pmem::Direct).write_bytes(0, bytes).expect("the same length");
    let attached = image.attach();
    let thread = attached.enter();
    let node = thread.lookup(thread.root().expect("a root"), b"f").expect("the file");
    let seen = see(&thread, node);
    check_blocks(&attached.fs, &thread, node);
    // Growth shows zeros, whatever was left behind the end.
    let size = seen.content.len() as u64;
    thread.files().truncate(node, size + 3 * BLOCK).expect("grows");
    let grown = see(&thread, node);
    assert!(grown.content[..size as usize] == seen.content, "growing changed what was there");
    assert!(grown.content[size as usize..].iter().all(|byte| *byte == 0), "growing exposed something");
    write(&thread, node, size / 2, 2 * BLOCK, 9).expect("writes");
    check_blocks(&attached.fs, &thread, node);
    thread.files().truncate(node, 0).expect("truncates");
    thread.release(node, 1);
    drop(thread);
    attached.detach();
    seen
}

/// Checks that the attributes count the actual blocks.
fn check_blocks<M: Memory>(fs: &engine::Fs<M>, thread: &Thread<'_, M>, node: Node) {
    let stat = thread.stat(node).expect("stat");
    let root = thread.files().body_root(node).expect("a body");
    let mut blocks = 0;
    visit_body(fs.pm(), &fs.geometry(), root, &mut |_| blocks += 1).expect("a map");
    assert_eq!(stat.blocks, blocks);
}

/// Cuts the power at every fence of a change, in many states, and checks each.
fn cut_everywhere(
    name: &str,
    before: Change,
    change: Change,
    allowed: &dyn Fn(&VisitedFile, &[VisitedFile; 2]) -> bool,
) {
    let (initial, log, seen) = record(before, change);
    assert_eq!(recovered(&initial), seen[0], "{name}: before");
    let mut crash = CrashImage::new(initial, &log);
    let mut states = 0;
    loop {
        let mut image = crash.durable().to_vec();
        for state in crash.states(Grain::Word, 4, 14, 7) {
            state.apply(&mut image);
            let found = recovered(&image);
            let id = state.id();
            assert!(allowed(&found, &seen), "{name}, state {id}: {found:?} is neither of {seen:?}");
            state.undo(&mut image);
            states += 1;
        }
        if !crash.advance() {
            break;
        }
    }
    assert_eq!(recovered(crash.durable()), seen[1], "{name}: what returned is durable");
    assert!(states > 3, "{name}: {states} states");
}

#[test]
fn a_power_cut_leaves_a_file_as_before_or_as_after() {
    for story in STORIES {
        let either = |found: &VisitedFile, seen: &[VisitedFile; 2]| seen.contains(found);
        let in_parts = |found: &VisitedFile, [before, after]: &[VisitedFile; 2]| match found.content.len() {
            // Every byte as before, as after, or gone.
            length if length == before.content.len() && length == after.content.len() => {
                (0..length).all(|at| found.content[at] == before.content[at] || found.content[at] == after.content[at])
            }
            0 => true,
            _ => found == before || found == after,
        };
        cut_everywhere(story.name, story.before, story.change, if story.atomic { &either } else { &in_parts });
    }
}

#[test]
fn a_power_cut_leaves_attributes_as_before_or_as_after() {
    let either = |found: &VisitedFile, seen: &[VisitedFile; 2]| seen.contains(found);
    cut_everywhere(
        "first attribute",
        |t, n| write(t, n, 0, 100, 1),
        |t, n| t.files().set_xattr(n, b"user.a", &bytes(70, 3), false, false),
        &either,
    );
    cut_everywhere(
        "larger attribute",
        |t, n| t.files().set_xattr(n, b"user.a", &bytes(70, 3), false, false),
        |t, n| t.files().set_xattr(n, b"user.a", &bytes(9000, 4), false, false),
        &either,
    );
    cut_everywhere(
        "no attribute",
        |t, n| t.files().set_xattr(n, b"user.a", &bytes(9000, 3), false, false),
        |t, n| t.files().remove_xattr(n, b"user.a"),
        &either,
    );
}
