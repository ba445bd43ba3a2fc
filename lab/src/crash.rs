//! Simulates power failures at every instant of an operation, on any physical file system, and
//! checks the result. `torture` and the tests use it for the lab's systems.
//!
//! A workload is set up, then its operations run while the memory is recorded. The possible images
//! after a power failure (`pmem::CrashImage`: at every fence and at the end; stores lost, evicted
//! early, torn at words) are mounted. A state passes if:
//!
//! 1. it mounts;
//! 2. its tree is the one before the operation in progress or the one after it, and completed
//!    operations are there, in the sense of the system's [`Promise`];
//! 3. it is usable: in every directory a file is created, written, renamed and removed, and
//!    everything else stays unchanged;
//! 4. it unmounts, and mounts again with the same tree;
//! 5. (sampled) a crash during its recovery leads to states that pass, too.

use crate::calls::Calls;
use crate::physical::{MkfsOptions, PhysicalFs};
use crate::vfs::{Conventional, VfsOptions};
use engine::format::FileKind;
use pmem::{CrashImage, CrashState, Grain, Mapping, Recorded, Recorder};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// The memory type of a system under test.
pub type Watched = Arc<Recorder>;

/// The guarantees of a system's calls.
#[derive(Debug, Clone, Copy)]
pub struct Promise {
    /// A call that returned is durable. Otherwise only `sync` makes it durable.
    pub durable_on_return: bool,
    /// A write is atomic. Otherwise a crash leaves, byte by byte, old or new content, with either
    /// time.
    pub atomic_data: bool,
    /// A call's times are atomic with its other effects. Otherwise a crash leaves either time.
    pub atomic_times: bool,
}

/// The visible state of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    kind: FileKind,
    mode: u32,
    links: u32,
    owner: (u32, u32),
    size_bytes: u64,
    modified_ns: i64,
    content: Vec<u8>,
}

/// All files by path.
pub type Tree = BTreeMap<String, Seen>;

/// Operations during which the power may fail.
#[derive(Clone, Copy)]
pub struct Workload {
    /// Name in reports.
    pub name: &'static str,
    /// Creates files in addition to those of [`set_up`].
    pub setup: fn(&dyn Calls) -> posix::Result<()>,
    /// The operations, each atomic by itself.
    pub operations: &'static [fn(&dyn Calls) -> posix::Result<()>],
}

impl Workload {
    /// Whether it uses names of more than 110 bytes.
    pub fn needs_long_names(&self) -> bool {
        self.name == "create-long-name"
    }

    /// Whether it exchanges two names.
    pub fn exchanges(&self) -> bool {
        self.name.starts_with("exchange")
    }
}

/// How many states are checked.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Maximum number of lines in flight for which all subsets are checked.
    pub lines_max: u32,
    /// Beyond that, the number of states of each kind.
    pub sample: u64,
    /// One state in this many is crashed again during its recovery.
    pub again_every: u64,
    /// Random seed.
    pub seed: u64,
}

impl Effort {
    /// For tests.
    pub const QUICK: Effort = Effort { lines_max: 4, sample: 6, again_every: 60, seed: 1 };
    /// For runs of hours.
    pub const FULL: Effort = Effort { lines_max: 9, sample: 40, again_every: 40, seed: 1 };
}

/// What was checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Points at which the power was cut.
    pub fences: u64,
    /// States that were mounted.
    pub states: u64,
    /// States of crashes during recovery.
    pub states_in_recovery: u64,
}

/// A state that fails.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The workload and the state.
    pub id: String,
    /// The failure.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n    {}", self.id, self.what)
    }
}

fn failed<E: fmt::Debug>(what: impl fmt::Display) -> impl FnOnce(E) -> String {
    move |error| format!("{what} fails with {error:?}")
}

/// Reads all files through a system's calls.
pub fn dump(calls: &dyn Calls) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let mut todo = vec![String::from("/")];
    while let Some(path) = todo.pop() {
        let attributes = calls.stat_link(path.as_bytes()).map_err(failed(format!("stat {path}")))?;
        let mut content = Vec::new();
        match attributes.kind {
            FileKind::Regular => content = read_all(calls, &path, attributes.size_bytes)?,
            FileKind::Symlink => {
                content = calls.read_link(path.as_bytes()).map_err(failed(format!("readlink {path}")))?;
            }
            FileKind::Directory => {
                let base = if path == "/" { "" } else { &path };
                let mut each = |name: &[u8], _| todo.push(format!("{base}/{}", String::from_utf8_lossy(name)));
                calls.read_directory(path.as_bytes(), &mut each).map_err(failed(format!("reading {path}")))?;
            }
            _ => {}
        }
        let is_directory = attributes.kind == FileKind::Directory;
        let seen = Seen {
            kind: attributes.kind,
            mode: attributes.mode,
            links: attributes.links,
            owner: (attributes.uid, attributes.gid),
            // A directory's size depends on how its system stores names; it is not guaranteed.
            size_bytes: if is_directory { 0 } else { attributes.size_bytes },
            modified_ns: attributes.modified_ns,
            content,
        };
        if tree.insert(path.clone(), seen).is_some() {
            return Err(format!("{path} is listed twice"));
        }
    }
    Ok(tree)
}

fn read_all(calls: &dyn Calls, path: &str, size_bytes: u64) -> Result<Vec<u8>, String> {
    if size_bytes > 64 << 20 {
        return Err(format!("{path} claims to have {size_bytes} bytes"));
    }
    let file = calls.open(path.as_bytes(), libc::O_RDONLY, 0).map_err(failed(format!("opening {path}")))?;
    let mut content = vec![0xee; size_bytes as usize];
    let length = calls.read(file, 0, &mut content).map_err(failed(format!("reading {path}")))?;
    content.truncate(length);
    calls.close(file).map_err(failed("close"))?;
    Ok(content)
}

impl Promise {
    /// Whether a crash between two trees may leave this one.
    fn check(&self, found: &Tree, before: &Tree, after: &Tree) -> Result<(), String> {
        let Err(first) = self.compare(found, before, after) else { return Ok(()) };
        let Err(second) = self.compare(found, after, before) else { return Ok(()) };
        Err(format!("the tree matches neither the one before ({first}) nor the one after ({second})"))
    }

    fn compare(&self, found: &Tree, wanted: &Tree, other: &Tree) -> Result<(), String> {
        if let Some(path) = wanted.keys().find(|path| !found.contains_key(*path)) {
            return Err(format!("{path}: missing"));
        }
        for (path, found) in found {
            let Some(wanted) = wanted.get(path) else { return Err(format!("{path}: unexpected")) };
            let other = other.get(path);
            let mut seen = found.clone();
            if !self.atomic_times && other.is_some_and(|other| seen.modified_ns == other.modified_ns) {
                seen.modified_ns = wanted.modified_ns;
            }
            if seen != *wanted && !other.is_some_and(|other| self.is_mixture(&seen, wanted, other)) {
                return Err(format!("{path}: {}", difference(found, wanted)));
            }
        }
        Ok(())
    }

    /// Whether a file's content is a byte-wise mixture of two, and everything else that of one.
    fn is_mixture(&self, seen: &Seen, one: &Seen, two: &Seen) -> bool {
        if self.atomic_data || seen.kind != FileKind::Regular {
            return false;
        }
        let byte = |seen: &Seen, index: usize| seen.content.get(index).copied();
        let rest = |from: &Seen| Seen { content: seen.content.clone(), ..from.clone() };
        (*seen == rest(one) || *seen == rest(two))
            && (0..seen.content.len()).all(|index| [byte(one, index), byte(two, index)].contains(&byte(seen, index)))
    }
}

fn difference(found: &Seen, wanted: &Seen) -> String {
    let numbers = [
        ("mode", found.mode as u64, wanted.mode as u64),
        ("links", found.links as u64, wanted.links as u64),
        ("size", found.size_bytes, wanted.size_bytes),
        ("modified", found.modified_ns as u64, wanted.modified_ns as u64),
    ];
    match numbers.into_iter().find(|(_, one, two)| one != two) {
        Some((what, one, two)) => format!("{what} is {one}, should be {two}"),
        None => "type, owner or content differs".to_owned(),
    }
}

/// Creates the files that workloads use.
pub fn set_up(calls: &dyn Calls) -> posix::Result<()> {
    for directory in ["/d", "/d/sub", "/e", "/empty", "/d/void"] {
        calls.mkdir(directory.as_bytes(), 0o755)?;
    }
    for (path, length) in [("/d/a", 6000), ("/d/b", 100), ("/e/x", 20_000), ("/d/sub/c", 0), ("/d/hard", 10)] {
        write(calls, path, 0, length, 1)?;
    }
    calls.link(b"/d/hard", b"/e/hard")?;
    calls.symlink(b"/d/a", b"/d/symlink")?;
    calls.sync()
}

/// Writes a pattern; creates the file if it does not exist.
pub fn write(calls: &dyn Calls, path: &str, offset: u64, length: usize, pattern: u8) -> posix::Result<()> {
    let file = calls.open(path.as_bytes(), libc::O_CREAT | libc::O_RDWR, 0o644)?;
    let bytes: Vec<u8> = (0..length).map(|index| pattern.wrapping_mul(31).wrapping_add((index / 7) as u8)).collect();
    let wrote = if length > 0 { calls.write(file, offset, &bytes).map(drop) } else { Ok(()) };
    calls.close(file)?;
    wrote
}

fn truncate(calls: &dyn Calls, path: &str, length: u64) -> posix::Result<()> {
    let file = calls.open(path.as_bytes(), libc::O_RDWR, 0)?;
    let done = calls.truncate(file, length);
    calls.close(file)?;
    done
}

fn nothing(_: &dyn Calls) -> posix::Result<()> {
    Ok(())
}

/// Many names created and removed, so that logs are long and directories have gaps.
fn history(calls: &dyn Calls) -> posix::Result<()> {
    for round in 0..3 {
        for index in 0..90 {
            calls.create(format!("/d/history-{round}-{index}").as_bytes(), 0o644)?;
        }
        for index in 0..90 {
            if index % 9 != round {
                calls.unlink(format!("/d/history-{round}-{index}").as_bytes())?;
            }
        }
    }
    calls.sync()
}

/// Creates names until the next one needs another block.
fn full(calls: &dyn Calls) -> posix::Result<()> {
    for index in 0..75 {
        calls.create(format!("/e/a-name-that-fills-a-block-{index:03}").as_bytes(), 0o644)?;
    }
    calls.sync()
}

macro_rules! workloads {
    ($($name:literal $setup:ident: $(|$calls:ident| $operation:expr),+;)*) => {
        &[$(Workload { name: $name, setup: $setup, operations: &[$(|$calls| $operation),+] }),*]
    };
}

/// Workloads that every system must survive, except for calls that it refuses
/// ([`needs_long_names`](Workload::needs_long_names), [`exchanges`](Workload::exchanges)).
pub const WORKLOADS: &[Workload] = workloads! {
    "create" nothing: |c| c.create(b"/d/new", 0o640);
    "create-long-name" nothing: |c| c.create(format!("/d/{}", "n".repeat(200)).as_bytes(), 0o640);
    "create-in-empty" nothing: |c| c.create(b"/empty/new", 0o640);
    "create-twice" nothing: |c| c.create(b"/d/new", 0o640), |c| c.create(b"/d/newer", 0o640);
    "create-in-full" full: |c| c.create(b"/e/new", 0o640), |c| c.create(b"/e/newer", 0o640),
        |c| c.create(b"/e/newest-of-all-the-new-names-that-there-are", 0o640);
    "create-after-history" history: |c| c.create(b"/d/new", 0o640), |c| c.unlink(b"/d/new");
    "mkdir" nothing: |c| c.mkdir(b"/d/new", 0o700);
    "mkdir-and-fill" nothing: |c| c.mkdir(b"/d/new", 0o700), |c| c.create(b"/d/new/file", 0o600);
    "symlink" nothing: |c| c.symlink(b"/somewhere/else", b"/d/new");
    "link" nothing: |c| c.link(b"/d/a", b"/e/new");
    "unlink" nothing: |c| c.unlink(b"/d/b");
    "unlink-first" nothing: |c| c.unlink(b"/d/a");
    "unlink-hard" nothing: |c| c.unlink(b"/e/hard"), |c| c.unlink(b"/d/hard");
    "unlink-symlink" nothing: |c| c.unlink(b"/d/symlink");
    "unlink-and-reuse" nothing: |c| c.unlink(b"/e/x"), |c| c.create(b"/e/y", 0o644), |c| write(c, "/e/y", 0, 9000, 9);
    "unlink-history" history: |c| c.unlink(b"/d/history-0-0"), |c| c.unlink(b"/d/history-0-9");
    "rmdir" nothing: |c| c.rmdir(b"/d/void"), |c| c.rmdir(b"/empty");
    "rename" nothing: |c| c.rename(b"/d/a", b"/d/renamed", 0);
    "rename-move" nothing: |c| c.rename(b"/d/a", b"/e/moved", 0), |c| c.rename(b"/e/moved", b"/d/back", 0);
    "rename-over" nothing: |c| c.rename(b"/d/a", b"/d/b", 0);
    "rename-over-moved" nothing: |c| c.rename(b"/d/a", b"/e/x", 0);
    "rename-over-hard" nothing: |c| c.rename(b"/d/a", b"/e/hard", 0);
    "rename-directory" nothing: |c| c.rename(b"/d/sub", b"/e/sub", 0);
    "rename-directory-over" nothing: |c| c.rename(b"/d/sub", b"/empty", 0);
    "rename-longer" full: |c| c.rename(b"/e/x", b"/e/a-much-longer-name-than-there-was-before", 0);
    "rename-after-history" history: |c| c.rename(b"/d/a", b"/d/history-1-1", 0);
    "exchange" nothing: |c| c.rename(b"/d/a", b"/d/b", libc::RENAME_EXCHANGE);
    "exchange-directories" nothing: |c| c.rename(b"/d/sub", b"/empty", libc::RENAME_EXCHANGE);
    "exchange-kinds" nothing: |c| c.rename(b"/d/sub", b"/e/x", libc::RENAME_EXCHANGE);
    "chmod" nothing: |c| c.chmod(b"/d/a", 0o600), |c| c.chmod(b"/d", 0o711);
    "write-new" nothing: |c| write(c, "/d/sub/c", 0, 5000, 3);
    "write-over" nothing: |c| write(c, "/d/a", 100, 200, 5);
    "write-over-blocks" nothing: |c| write(c, "/e/x", 3000, 9000, 6);
    "append" nothing: |c| write(c, "/d/b", 100, 9000, 7);
    "write-behind-end" nothing: |c| write(c, "/d/b", 30_000, 100, 8);
    "truncate" nothing: |c| truncate(c, "/e/x", 5000), |c| truncate(c, "/e/x", 12_000);
    "truncate-to-nothing" nothing: |c| truncate(c, "/e/x", 0), |c| write(c, "/d/b", 0, 9000, 4);
};

fn options() -> VfsOptions {
    VfsOptions { files_max: 2048, names_max: 2048, ..VfsOptions::default() }
}

struct Explorer<'w> {
    workload: &'w Workload,
    promise: Promise,
    effort: Effort,
    mapping: Arc<Mapping>,
    recorder: Watched,
    counts: Counts,
}

/// The effect of operations on the memory.
struct Recording {
    initial: Vec<u8>,
    log: Vec<Recorded>,
    /// Before the first operation, and after each one.
    trees: Vec<Tree>,
}

impl Explorer<'_> {
    fn region(&self) -> Result<pmem::MappedRegion<Watched>, String> {
        self.mapping.region(Arc::clone(&self.recorder)).map_err(failed("mapping"))
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; self.mapping.length() as usize];
        self.region()?.read_bytes(0, &mut bytes).map_err(failed("reading the image"))?;
        Ok(bytes)
    }

    fn load(&self, bytes: &[u8]) -> Result<(), String> {
        self.region()?.write_bytes(0, bytes).map_err(failed("writing the image"))?.unflushed();
        Ok(())
    }

    fn record<P: PhysicalFs<Memory = Watched>>(&self) -> Result<Recording, String> {
        P::mkfs(&self.region()?, &MkfsOptions::default()).map_err(failed("mkfs"))?;
        let vfs = Conventional::<P>::mount(self.region()?, options()).map_err(failed("the first mount"))?;
        set_up(&vfs).and_then(|()| (self.workload.setup)(&vfs)).map_err(failed("the setup"))?;
        vfs.unmount().map_err(failed("unmounting"))?;
        let vfs = Conventional::<P>::mount(self.region()?, options()).map_err(failed("mounting"))?;
        let mut trees = vec![dump(&vfs)?];
        let initial = self.bytes()?;
        self.recorder.take();
        self.recorder.start();
        for (index, operation) in self.workload.operations.iter().enumerate() {
            self.recorder.mark(2 * index as u64);
            operation(&vfs).map_err(failed(format!("operation {index}")))?;
            if !self.promise.durable_on_return {
                Calls::sync(&vfs).map_err(failed("sync"))?;
            }
            self.recorder.mark(2 * index as u64 + 1);
            trees.push(dump(&vfs)?);
        }
        self.recorder.stop();
        let log = self.recorder.take();
        vfs.unmount().map_err(failed("unmounting"))?;
        Ok(Recording { initial, log, trees })
    }

    fn explore_crashes<P: PhysicalFs<Memory = Watched>>(
        &mut self,
        id: &str,
        initial: Vec<u8>,
        log: &[Recorded],
        check_tree: &dyn Fn(&Tree, usize, bool) -> Result<(), String>,
        depth: usize,
    ) -> Result<(), Violation> {
        let mut crash = CrashImage::new(initial, log);
        loop {
            let mark = crash.marks().last().map(|(_, mark)| mark);
            let (returned, begun) = mark.map_or((0, depth > 0), |mark| (mark.div_ceil(2) as usize, mark % 2 == 0));
            self.counts.fences += u64::from(depth == 0);
            let mut seen = HashSet::new();
            let Effort { lines_max, sample, seed, .. } = self.effort;
            let lines_max = if depth == 0 { lines_max } else { 2 };
            for grain in [Grain::Line, Grain::Instant, Grain::Word] {
                for state in crash.states(grain, lines_max, sample, seed) {
                    let changes: Vec<_> = state.changes().iter().map(|change| (change.offset, change.after)).collect();
                    if seen.insert(changes) {
                        self.look::<P>(id, &crash, &state, &|tree| check_tree(tree, returned, begun), depth)?;
                    }
                }
            }
            if !crash.advance() {
                return Ok(());
            }
        }
    }

    fn look<P: PhysicalFs<Memory = Watched>>(
        &mut self,
        id: &str,
        crash: &CrashImage<'_>,
        state: &CrashState,
        check_tree: &dyn Fn(&Tree) -> Result<(), String>,
        depth: usize,
    ) -> Result<(), Violation> {
        let id = format!("{id}@{}", state.id());
        let violation = |what| Violation { id: id.clone(), what };
        let counted = if depth == 0 { &mut self.counts.states } else { &mut self.counts.states_in_recovery };
        *counted += 1;
        let draw = self.counts.states.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let again = depth == 0 && draw.is_multiple_of(self.effort.again_every);
        let mut image = crash.durable().to_vec();
        state.apply(&mut image);
        self.load(&image).map_err(violation)?;
        let log = self.check::<P>(again, check_tree).map_err(violation)?;
        if again {
            let check_tree = |tree: &Tree, _, _| check_tree(tree);
            self.explore_crashes::<P>(&id, image, &log, &check_tree, depth + 1)?;
        }
        Ok(())
    }

    /// Mounts and checks the image. Returns the recorded writes of the mount, if `record`.
    fn check<P: PhysicalFs<Memory = Watched>>(
        &self,
        record: bool,
        check_tree: &dyn Fn(&Tree) -> Result<(), String>,
    ) -> Result<Vec<Recorded>, String> {
        if record {
            self.recorder.take();
            self.recorder.start();
        }
        let vfs = Conventional::<P>::mount(self.region()?, options()).map_err(failed("mounting after the crash"))?;
        self.recorder.stop();
        let log = self.recorder.take();
        let tree = dump(&vfs)?;
        check_tree(&tree)?;
        exercise(&vfs, &tree)?;
        let used = dump(&vfs)?;
        same_but_directory_times(&used, &tree)?;
        vfs.unmount().map_err(failed("unmounting after the crash"))?;
        let vfs = Conventional::<P>::mount(self.region()?, options()).map_err(failed("mounting again"))?;
        same_but_directory_times(&dump(&vfs)?, &tree)?;
        vfs.unmount().map_err(failed("unmounting again"))?;
        Ok(log)
    }
}

/// Uses every directory.
fn exercise(calls: &dyn Calls, tree: &Tree) -> Result<(), String> {
    for (path, _) in tree.iter().filter(|(_, seen)| seen.kind == FileKind::Directory) {
        let base = if path == "/" { "" } else { path };
        let (one, two) = (format!("{base}/~used"), format!("{base}/~used again"));
        let fails = |what: &str| failed(format!("{what} in {path}"));
        write(calls, &one, 0, 5000, 77).map_err(fails("writing"))?;
        let content = read_all(calls, &one, 5000)?;
        if content.len() != 5000 || content[4999] != 77u8.wrapping_mul(31).wrapping_add((4999 / 7) as u8) {
            return Err(format!("{one} does not contain what was written"));
        }
        calls.rename(one.as_bytes(), two.as_bytes(), 0).map_err(fails("renaming"))?;
        calls.unlink(two.as_bytes()).map_err(fails("unlinking"))?;
        calls.mkdir(one.as_bytes(), 0o755).map_err(fails("mkdir"))?;
        calls.rmdir(one.as_bytes()).map_err(fails("rmdir"))?;
    }
    Ok(())
}

fn same_but_directory_times(found: &Tree, wanted: &Tree) -> Result<(), String> {
    let without = |tree: &Tree| -> Tree {
        let time = |seen: &Seen| if seen.kind == FileKind::Directory { 0 } else { seen.modified_ns };
        tree.iter().map(|(path, seen)| (path.clone(), Seen { modified_ns: time(seen), ..seen.clone() })).collect()
    };
    let (found, wanted) = (without(found), without(wanted));
    if found == wanted {
        return Ok(());
    }
    let changed = wanted.iter().find(|(path, seen)| found.get(*path) != Some(seen));
    let path = changed.map(|(path, _)| path).or_else(|| found.keys().find(|path| !wanted.contains_key(*path)));
    Err(format!("{} changed although only other files were used", path.map_or("a file", String::as_str)))
}

/// Explores one workload on a fresh image of this size.
pub fn explore<P: PhysicalFs<Memory = Watched>>(
    workload: &Workload,
    promise: Promise,
    effort: Effort,
    image_bytes: u64,
) -> Result<Counts, Violation> {
    let violation = |what| Violation { id: format!("{}:{}", P::NAME, workload.name), what };
    let mapping = Mapping::anonymous(image_bytes).map_err(failed("memory for an image")).map_err(violation)?;
    let recorder = Arc::new(Recorder::new());
    let counts = Counts::default();
    let mut explorer = Explorer { workload, promise, effort, mapping: Arc::new(mapping), recorder, counts };
    let Recording { initial, log, trees } = explorer.record::<P>().map_err(violation)?;
    let check_tree = |tree: &Tree, returned: usize, begun: bool| {
        let before = &trees[returned];
        let after = if begun { &trees[returned + 1] } else { before };
        promise.check(tree, before, after)
    };
    let id = format!("{}:{}", P::NAME, workload.name);
    explorer.explore_crashes::<P>(&id, initial, &log, &check_tree, 0)?;
    Ok(explorer.counts)
}
