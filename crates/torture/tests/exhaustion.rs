//! Every operation with an exhausted resource: blocks, room for names, inodes, or the DRAM region.
//! A refused operation returns the resource's error, changes nothing, costs nothing however often
//! it is tried, and succeeds again once something was removed.

use engine::format::FileKind;
use engine::{AttachOptions, Error, Fs, Node};
use torture::catalogue::{OPERATIONS, Operation, SETUPS, set_up};
use torture::dump::{Tree, dump};
use torture::machine::{Clock, Machine, Watched};
use torture::test_thread::{TestThread, new_node};

/// An exhausted resource.
#[derive(Clone, Copy)]
struct Shortage {
    name: &'static str,
    image_bytes: u64,
    inodes_max: u64,
    cached_files_max: u64,
    /// Uses up the resource except for the given amount.
    fill: fn(&TestThread<'_>, u64) -> Hoard,
    /// The errors that operations may return.
    says: &'static [Error],
    /// No operation needs more than this amount.
    most: u64,
}

/// The files that use up the resource.
#[derive(Default)]
struct Hoard {
    names: Vec<String>,
    nodes: Vec<Node>,
}

impl Hoard {
    fn give_back(self, thread: &TestThread<'_>) {
        self.names.iter().for_each(|name| thread.unlink(name).expect("removals need nothing"));
        self.nodes.iter().for_each(|node| thread.thread.release(*node, 1));
        drain(thread);
    }
}

const BLOCK: u64 = 4096;
const NAMES_AT_ONCE: usize = 100;

fn drain(thread: &TestThread<'_>) {
    while thread.thread.recycler().recycle(usize::MAX).expect("recycles") > 0 {}
}

/// Uses up blocks, and the free lines of existing dentry blocks.
fn fill_blocks(thread: &TestThread<'_>, left: u64) -> Hoard {
    let mut hoard = fill_all(thread, 0);
    thread.truncate("/filler", (1 << 30) - left * BLOCK).expect("shorter");
    drain(thread);
    hoard.names.push("/filler".to_owned());
    hoard
}

/// Uses up the room for names; a few blocks are free once there is room for some names.
fn fill_lines(thread: &TestThread<'_>, left: u64) -> Hoard {
    let mut hoard = fill_all(thread, left);
    thread.truncate("/filler", (1 << 30) - left / 8 * BLOCK).expect("shorter");
    drain(thread);
    hoard.names.push("/filler".to_owned());
    hoard
}

/// Uses up all blocks, and the room for names except for the given amount.
fn fill_all(thread: &TestThread<'_>, left: u64) -> Hoard {
    thread.mkdir("/fill").expect("a directory");
    thread.create("/filler").expect("a file");
    thread.create("/fill/0").expect("a file");
    // Several at once: the blocks may run out at the end of a dentry block.
    let mut names: Vec<String> = (0..NAMES_AT_ONCE).map(|index| format!("/fill/{index}")).collect();
    names[1..].iter().for_each(|name| thread.link("/fill/0", name).expect("a name"));
    // From the end down, so that later truncations free data blocks and no nodes.
    let mut at = 1 << 30;
    thread.truncate("/filler", at).expect("a hole");
    while thread.write("/filler", at - BLOCK, BLOCK, 1).is_ok() {
        at -= BLOCK;
    }
    loop {
        let name = format!("/fill/{}", names.len());
        match thread.link("/fill/0", &name) {
            Ok(()) => names.push(name),
            Err(error) => break assert_eq!(error, Error::NoSpace),
        }
    }
    for _ in 0..left {
        thread.unlink(&names.pop().expect("more names than that")).expect("removals need nothing");
    }
    drain(thread);
    Hoard { names, nodes: Vec::new() }
}

fn fill_inodes(thread: &TestThread<'_>, left: u64) -> Hoard {
    thread.mkdir("/fill").expect("a directory");
    let mut names = Vec::new();
    loop {
        let name = format!("/fill/{}", names.len());
        match thread.create(&name) {
            Ok(()) => names.push(name),
            Err(error) => break assert_eq!(error, Error::NoInodes),
        }
    }
    for _ in 0..left {
        thread.unlink(&names.pop().expect("more names than that")).expect("removals need nothing");
    }
    drain(thread);
    Hoard { names, nodes: Vec::new() }
}

/// Opens files without names until no more can be opened.
fn fill_cachelets(thread: &TestThread<'_>, left: u64) -> Hoard {
    let root = thread.thread.root().expect("a root");
    let mut nodes = Vec::new();
    loop {
        match thread.thread.create_unnamed(root, &new_node(FileKind::Regular)) {
            Ok(node) => nodes.push(node),
            Err(error) => break assert_eq!(error, Error::NoMemory),
        }
    }
    for _ in 0..left {
        thread.thread.release(nodes.pop().expect("more files than that"), 1);
    }
    thread.thread.release(root, 1);
    drain(thread);
    Hoard { names: Vec::new(), nodes }
}

const BLOCKS: Shortage = Shortage {
    name: "blocks",
    image_bytes: 1 << 20,
    inodes_max: 0,
    cached_files_max: 0,
    fill: fill_blocks,
    says: &[Error::NoSpace],
    most: 40,
};
const LINES: Shortage = Shortage { name: "lines", fill: fill_lines, most: 400, ..BLOCKS };
const INODES: Shortage = Shortage {
    name: "inodes",
    image_bytes: 2 << 20,
    inodes_max: 256,
    fill: fill_inodes,
    says: &[Error::NoInodes],
    most: 4,
    ..BLOCKS
};
const CACHELETS: Shortage = Shortage {
    name: "cachelets",
    image_bytes: 8 << 20,
    inodes_max: 8192,
    cached_files_max: 1024,
    fill: fill_cachelets,
    says: &[Error::NoMemory],
    most: 12,
};

/// Operations that free resources or change existing files: they succeed without free space on the
/// image. (Looking up a file needs room in the DRAM region.)
fn needs_nothing(shortage: &Shortage, name: &str) -> bool {
    let frugal = ["unlink", "rmdir", "truncate-zero", "chmod", "chown", "utimes"];
    shortage.says != [Error::NoMemory] && frugal.iter().any(|kind| name.starts_with(kind))
}

/// The setup for an operation.
fn setup(operation: &Operation) -> &'static str {
    if operation.name.starts_with("p-") { "page504" } else { "base" }
}

fn set_up_image(fs: &Fs<Watched>, setup: &str) -> engine::Result<()> {
    let thread = TestThread::new(fs)?;
    set_up(&thread)?;
    let setup = SETUPS.iter().find(|each| each.name == setup).expect("a setup");
    setup.act.run(&thread)
}

/// Whether an operation is refused on a file system with free resources.
fn refused_anyway(machine: &Machine, empty: &[u8], operation: &Operation) -> bool {
    machine.load(empty);
    let (fs, _) = machine.attach().expect("a fresh image");
    set_up_image(&fs, setup(operation)).expect("a prepared image");
    let thread = TestThread::new(&fs).expect("a slot");
    operation.act.expect("an operation").run(&thread).is_err()
}

fn space(thread: &TestThread<'_>) -> (u64, u64) {
    drain(thread);
    let report = thread.thread.space().expect("a report");
    (report.blocks_free, report.inodes_free)
}

/// Checks that a refused operation changed nothing. An operation that proceeds in parts may have
/// changed some of them.
fn same(operation: &Operation, before: &Tree, after: &Tree) -> Result<(), String> {
    let differs = |path: &&String| before.0.get(*path) != after.0.get(*path);
    let differing: Vec<_> = before.0.keys().chain(after.0.keys()).filter(differs).collect();
    if differing.is_empty() || operation.slack.parts { Ok(()) } else { Err(format!("changed {differing:?}")) }
}

/// Tries an operation with the given amount left; returns whether it sufficed.
fn try_with(
    machine: &Machine,
    empty: &[u8],
    shortage: &Shortage,
    left: u64,
    operation: &Operation,
) -> Result<bool, String> {
    let act = operation.act.expect("an operation");
    machine.load(empty);
    let (fs, _) = machine.attach().expect("a fresh image");
    set_up_image(&fs, setup(operation)).expect("a prepared image");
    let thread = TestThread::new(&fs).expect("a slot");
    let before = tree(&thread)?;
    let hoard = (shortage.fill)(&thread, left);
    let result = act.run(&thread);
    if let Err(error) = result {
        if !shortage.says.contains(&error) {
            return Err(format!("is refused with {error:?}"));
        }
        // The first refusal may have turned a block into room for names.
        let room = space(&thread);
        if (0..3).any(|_| act.run(&thread) != Err(error)) {
            return Err("a retry is refused with another error".to_owned());
        }
        if space(&thread) != room && !operation.slack.parts {
            return Err(format!("uses space although it is refused: {room:?}, then {:?}", space(&thread)));
        }
        hoard.give_back(&thread);
        same(operation, &before, &tree(&thread)?)?;
        act.run(&thread).map_err(|error| format!("is refused with {error:?} although space was freed"))?;
    }
    drop(thread);
    fs.detach_last().map_err(|error| format!("the detach fails with {error:?}"))?;
    let report = machine.check(Some(true));
    match report.findings.first() {
        Some(finding) if report.errors + report.warnings > 0 => Err(format!("fsck: {finding}")),
        _ => Ok(result.is_ok()),
    }
}

/// The tree without the files that use up the space, and without the root, whose times they change.
fn tree(thread: &TestThread<'_>) -> Result<Tree, String> {
    let mut tree = dump(thread).map_err(|error| error.0)?;
    tree.0.retain(|path, _| !path.is_empty() && path != "/fill");
    Ok(tree)
}

fn exhaust(shortage: &Shortage) {
    let options = AttachOptions { cached_files_max: shortage.cached_files_max, ..AttachOptions::default() };
    let machine = Machine::with_inodes(shortage.image_bytes, shortage.inodes_max, options, Clock::leaked());
    let empty = machine.bytes();
    let (mut failures, mut refusals) = (Vec::new(), 0);
    for operation in OPERATIONS.iter().filter(|operation| operation.act.is_some()) {
        if refused_anyway(&machine, &empty, operation) {
            continue;
        }
        for left in 0.. {
            match try_with(&machine, &empty, shortage, left, operation) {
                Ok(true) => break,
                Ok(false) if needs_nothing(shortage, operation.name) => {
                    failures.push(format!("{}: is refused", operation.name))
                }
                Ok(false) if left == shortage.most => failures.push(format!("{}: always refused", operation.name)),
                Ok(false) => {
                    refusals += 1;
                    continue;
                }
                Err(what) => failures.push(format!("{} with {left} left: {what}", operation.name)),
            }
            break;
        }
    }
    println!("{}: {refusals} refusals", shortage.name);
    assert!(failures.is_empty(), "without {}:\n{}", shortage.name, failures.join("\n"));
    assert!(refusals > 10, "{refusals} refusals");
}

#[test]
fn without_blocks_changes_are_refused_whole_and_space_comes_back() {
    exhaust(&BLOCKS);
}

#[test]
fn without_room_for_names_changes_are_refused_whole_and_space_comes_back() {
    exhaust(&LINES);
}

#[test]
fn without_inodes_new_files_are_refused_whole_and_inodes_come_back() {
    exhaust(&INODES);
}

#[test]
fn without_room_in_the_dram_region_files_are_refused_whole_and_it_comes_back() {
    exhaust(&CACHELETS);
}
