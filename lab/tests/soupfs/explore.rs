//! Simulates power failures at every fence, in every way that `pmem::CrashImage` allows, then
//! mounts and checks the result.
//!
//! # What a crash may leave
//!
//! A tree is recorded after each operation. At a power failure, the *window* consists of all trees
//! from the last completed `sync` to the operation in progress. Soft updates promise exactly this:
//!
//! 1. The image is consistent: every name refers to a complete file that was created, no line has
//!    two uses, no directory has two names, `..` is the directory of the name, and no link count is
//!    below the number of names.
//! 2. Each name of a directory is as in one of the window's trees.
//! 3. A file with a name in all of them has one.
//! 4. Sizes, targets and permissions are those of one of the trees (permissions: or what two of
//!    them both allow). Each byte of a file is as in one of them, or zero where the file ended
//!    before it.
//! 5. A file that was synced individually has a name, and from then on its own window.
//! 6. The allocation table marks everything reachable. The scan reports exactly the other marked
//!    lines as leaked, and exactly the links in excess of names.
//! 7. The file system is usable, and use changes nothing else. It unmounts cleanly; then the table
//!    is exact, and the next mount finds the same tree.

use super::image::{Image, Reachable};
use super::machine::{IMAGE_BYTES, Random, formatted, load, mapping, mount, mount_alone, mount_syncing};
use super::model::{Id, Operation, Tree, dump, perform, persist};
use engine::format::FileKind;
use lab::calls::Calls;
use lab::physical::SyncFile;
use pmem::{CrashImage, Direct, Grain, Mapping, Recorder};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The recorded operations on an image.
pub struct Recording {
    pub initial: Vec<u8>,
    pub log: Vec<pmem::Recorded>,
    /// The final image as programs saw it.
    pub after: Vec<u8>,
    /// After the setup, and after each operation.
    pub trees: Vec<Tree>,
    pub operations: Vec<Operation>,
    /// The file of each operation that syncs a file.
    targets: Vec<Option<Id>>,
    /// What syncing a file promised.
    sync_file: SyncFile,
}

/// Records operations on a file system with a history. Persisters run in a thread of their own, so
/// a system call's flushes and fences do not cover theirs, nor the other way round.
pub fn record(
    setup: &[Operation],
    sync_file: SyncFile,
    next: &mut dyn FnMut(&Tree, usize) -> Option<Operation>,
) -> Recording {
    let mapping = formatted(IMAGE_BYTES);
    let mut tree = dump(&mount_alone(&mapping)).expect("a fresh tree");
    let fs = mount(&mapping, Direct);
    for operation in setup {
        let made = perform(&fs, operation).unwrap_or_else(|error| panic!("{operation:?}: {error}"));
        persist(fs.physical(), operation).expect("persisted");
        tree.apply(operation, made);
    }
    fs.unmount().expect("unmounted");
    let recorder = Arc::new(Recorder::new());
    let fs = mount_syncing(&mapping, Arc::clone(&recorder), sync_file);
    let initial = super::machine::bytes(&mapping);
    recorder.start();
    let (mut trees, mut operations, mut targets) = (vec![tree.clone()], Vec::new(), Vec::new());
    while let Some(operation) = next(&tree, operations.len()) {
        let index = operations.len() as u64;
        recorder.mark(2 * index);
        let target = match &operation {
            Operation::SyncFile(path) => tree.find(path),
            _ => None,
        };
        let made = match &operation {
            Operation::Persist | Operation::PersistOne(_) | Operation::Sync => {
                std::thread::scope(|scope| {
                    let all = || {
                        persist(
                            fs.physical(),
                            if let Operation::Sync = operation { &Operation::Persist } else { &operation },
                        )
                    };
                    scope.spawn(all).join().expect("no panic").expect("persisted");
                });
                None
            }
            _ => perform(&fs, &operation).unwrap_or_else(|error| panic!("{operation:?}: {error}")),
        };
        tree.apply(&operation, made);
        recorder.mark(2 * index + 1);
        trees.push(tree.clone());
        operations.push(operation);
        targets.push(target);
    }
    recorder.stop();
    let after = super::machine::bytes(&mapping);
    Recording { initial, log: recorder.take(), after, trees, operations, targets, sync_file }
}

/// A state that violates the promises.
#[derive(Debug)]
pub struct Violation {
    pub state: String,
    pub what: String,
}

#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub lines_max: u32,
    pub sample: u64,
    /// One state in this many is also used and unmounted.
    pub use_every: u64,
}

impl Recording {
    /// Checks all crash states. Returns their number, or the first violation.
    pub fn explore(&self, effort: Effort, seed: u64) -> Result<u64, Violation> {
        let machine = mapping(IMAGE_BYTES);
        let mut crash = CrashImage::new(self.initial.clone(), &self.log);
        let mut states = 0;
        loop {
            let begun = crash.marks().filter(|(_, mark)| mark % 2 == 0).count();
            let returned = crash.marks().filter(|(_, mark)| mark % 2 == 1).count();
            let mut seen = HashSet::new();
            let mut image = crash.durable().to_vec();
            for (grain, lines) in [(Grain::Line, effort.lines_max), (Grain::Instant, 3), (Grain::Word, 3)] {
                for state in crash.states(grain, lines, effort.sample, seed) {
                    let mut hasher = DefaultHasher::new();
                    state.changes().iter().for_each(|change| (change.offset, change.after).hash(&mut hasher));
                    if !seen.insert(hasher.finish()) {
                        continue;
                    }
                    states += 1;
                    state.apply(&mut image);
                    let draw = Random(hasher.finish() ^ seed).next();
                    // A panic of the raw decoder on damage is a violation, too.
                    let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        self.check_state(&machine, &image, returned, begun, draw, effort)
                    }));
                    let judged = judged.unwrap_or_else(|panic| {
                        let text = panic.downcast_ref::<String>().cloned();
                        Err(text.unwrap_or_else(|| "a panic".to_owned()))
                    });
                    if let Err(what) = judged {
                        return Err(Violation { state: state.id().to_string(), what });
                    }
                    state.undo(&mut image);
                }
            }
            if !crash.advance() {
                return Ok(states);
            }
        }
    }

    fn check_state(
        &self,
        machine: &Arc<Mapping>,
        image: &[u8],
        returned: usize,
        begun: usize,
        draw: u64,
        effort: Effort,
    ) -> Result<(), String> {
        load(machine, image);
        let reachable = Image(image).reachable();
        let table = Image(image).marked();
        if let Some(line) = reachable.shared.first() {
            return Err(format!("line {line:#x} has two uses"));
        }
        if let Some((line, place)) = reachable.lines.iter().find(|(line, _)| !table.contains(*line)) {
            return Err(format!("{place:?} line {line:#x} is free in the allocation table"));
        }
        let fs = mount_alone(machine);
        let found = dump(&fs).map_err(|what| format!("{what}\n{}", Image(image).describe(Image(image).root())))?;
        self.check_tree(&found, returned, begun)?;
        drop(fs);
        if draw.is_multiple_of(effort.use_every) {
            let scans_first = (draw / effort.use_every).is_multiple_of(2);
            self.use_image(machine, image, &found, &reachable, &table, scans_first)?;
        }
        Ok(())
    }

    /// The first tree of the window: the general one, or that of one file.
    fn since(&self, returned: usize, file: Option<Id>) -> usize {
        let is_sync = |index: &usize| match &self.operations[*index] {
            Operation::Sync => true,
            Operation::SyncFile(_) => file.is_some() && self.targets[*index] == file,
            _ => false,
        };
        (0..returned).rev().find(is_sync).unwrap_or(0)
    }

    fn check_tree(&self, found: &Tree, returned: usize, begun: usize) -> Result<(), String> {
        let window = &self.trees[self.since(returned, None)..=begun];
        for (id, file) in &found.files {
            let own = &self.trees[self.since(returned, Some(*id))..=begun];
            check_file(*id, file, own, found)?;
        }
        for (directory, names) in &found.names {
            check_names(*directory, names, window)?;
        }
        let named = found.named();
        let always = |trees: &[Tree], id: &Id| trees.iter().all(|tree| tree.named().contains(id));
        if let Some(lost) = window[0].named().iter().find(|id| always(window, id) && !named.contains(id)) {
            return Err(format!("{lost:?} had a name in the whole window but has none"));
        }
        let with_names = self.sync_file == SyncFile::Names;
        for synced in self.targets[..returned].iter().flatten().filter(|_| with_names) {
            let own = &self.trees[self.since(returned, Some(*synced))..=begun];
            // The directories that lead to it may be removed meanwhile.
            if always(own, synced) && always(window, synced) && !named.contains(synced) {
                return Err(format!("{synced:?} was synced but has no name"));
            }
        }
        Ok(())
    }

    /// Uses, scans and unmounts the image.
    fn use_image(
        &self,
        machine: &Arc<Mapping>,
        image: &[u8],
        found: &Tree,
        reachable: &Reachable,
        table: &BTreeSet<u64>,
        scans_first: bool,
    ) -> Result<(), String> {
        load(machine, image);
        let fs = mount(machine, Direct);
        if !scans_first {
            use_everywhere(&fs, found)?;
        }
        let report = fs.physical().scan().map_err(|error| format!("the scan: {error}"))?;
        let report = report.ok_or("no scan was due")?;
        let leaked: BTreeSet<u64> = report.leaked.iter().flat_map(|(page, bits)| lines_of(*page, *bits)).collect();
        let unreachable: BTreeSet<u64> =
            table.iter().copied().filter(|line| !reachable.lines.contains_key(line)).collect();
        if leaked != unreachable {
            let differ: Vec<_> = leaked.symmetric_difference(&unreachable).take(5).collect();
            return Err(format!("the scan is wrong about {differ:x?} (used before: {})", !scans_first));
        }
        if !report.missing_links.is_empty() {
            return Err(format!("links are missing: {:?}", report.missing_links));
        }
        let excess: BTreeMap<u64, u32> = report.excess_links.into_iter().collect();
        if excess != excess_links(Image(image), reachable) {
            return Err(format!("wrong excess links from the scan: {excess:x?}"));
        }
        use_everywhere(&fs, found)?;
        fs.unmount().map_err(|error| format!("unmount: {error}"))?;

        let bytes = super::machine::bytes(machine);
        let left = Image(&bytes).reachable();
        if !Image(&bytes).marked().into_iter().eq(left.lines.keys().copied()) {
            return Err("the allocation table is not exact after unmount".to_owned());
        }
        let again = dump(&mount_alone(machine))?;
        let expected = counted(found);
        if again != expected {
            return Err(format!("the next mount finds {again:?} instead of {expected:?}"));
        }
        Ok(())
    }
}

/// The tree with correct link counts.
fn counted(tree: &Tree) -> Tree {
    let mut counts: BTreeMap<Id, u32> = BTreeMap::new();
    for (directory, names) in &tree.names {
        *counts.entry(*directory).or_default() += 2;
        for id in names.values() {
            let counted = if tree.names.contains_key(id) { directory } else { id };
            *counts.entry(*counted).or_default() += 1;
        }
    }
    let mut tree = tree.clone();
    tree.files.iter_mut().for_each(|(id, file)| file.links = counts[id]);
    tree
}

fn excess_links(image: Image<'_>, reachable: &Reachable) -> BTreeMap<u64, u32> {
    let mut counts: BTreeMap<u64, u32> = BTreeMap::from([(image.root(), 2)]);
    let is_directory = |inode: u64| image.word(inode) >> 44 & 0xf == 4;
    for (directory, _, inode) in &reachable.names {
        if is_directory(*inode) {
            *counts.entry(*inode).or_default() += 2;
            *counts.entry(*directory).or_default() += 1;
        } else {
            *counts.entry(*inode).or_default() += 1;
        }
    }
    let excess = counts.into_iter().map(|(inode, names)| (inode, image.word(inode) as u32 - names));
    excess.filter(|(_, excess)| *excess > 0).collect()
}

fn lines_of(page: u64, bits: u64) -> impl Iterator<Item = u64> {
    (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| page * 4096 + bit * 64)
}

/// In every directory: creates, writes, reads, links, renames and removes.
fn use_everywhere(fs: &impl Calls, tree: &Tree) -> Result<(), String> {
    let mut paths = vec![(tree.root, Vec::new())];
    while let Some((directory, path)) = paths.pop() {
        for (name, id) in &tree.names[&directory] {
            if tree.names.contains_key(id) {
                paths.push((*id, [&path[..], b"/", name].concat()));
            }
        }
        let at = |name: &str| [&path[..], b"/", name.as_bytes()].concat();
        let used = || -> posix::Result<bool> {
            fs.create(&at("use-new"), 0o600)?;
            let file = fs.open(&at("use-new"), libc::O_RDWR, 0)?;
            fs.write(file, 0, &[0xee; 5000])?;
            fs.sync_file(file)?;
            let mut bytes = vec![0; 5000];
            let length = fs.read(file, 0, &mut bytes)?;
            fs.close(file)?;
            fs.mkdir(&at("use-directory"), 0o700)?;
            fs.link(&at("use-new"), &at("use-other"))?;
            fs.rename(&at("use-other"), &at("use-directory/use-other"), 0)?;
            fs.unlink(&at("use-new"))?;
            fs.sync()?;
            fs.unlink(&at("use-directory/use-other"))?;
            fs.rmdir(&at("use-directory"))?;
            Ok(length == 5000 && bytes.iter().all(|byte| *byte == 0xee))
        };
        match used() {
            Ok(true) => {}
            Ok(false) => return Err("the data read differs from the data written".to_owned()),
            Err(error) => return Err(format!("using {path:?}: {error}")),
        }
    }
    Ok(())
}

fn check_names(directory: Id, names: &BTreeMap<Vec<u8>, Id>, window: &[Tree]) -> Result<(), String> {
    let trees: Vec<_> = window.iter().filter_map(|tree| tree.names.get(&directory)).collect();
    let known: BTreeSet<&Vec<u8>> = trees.iter().flat_map(|names| names.keys()).chain(names.keys()).collect();
    for name in known {
        let legal: BTreeSet<Option<&Id>> = trees.iter().map(|names| names.get(name)).collect();
        let found = names.get(name);
        let is_directory =
            |id: &Option<&Id>| id.is_some_and(|id| window.iter().any(|tree| tree.names.contains_key(id)));
        // A directory replaces an empty one: neither may be there.
        let replaced = legal.iter().filter(|id| is_directory(id)).count() > 1 && found.is_none();
        // A directory that was created in this window had no names before.
        let is_new = window.iter().any(|tree| !tree.names.contains_key(&directory)) && found.is_none();
        if !legal.contains(&found) && !replaced && !is_new {
            let name = String::from_utf8_lossy(&name[..name.len().min(8)]).into_owned();
            return Err(format!("{name:?} in {directory:?} is {found:?}, not one of {legal:?}"));
        }
    }
    Ok(())
}

fn check_file(id: Id, file: &super::model::File, window: &[Tree], found: &Tree) -> Result<(), String> {
    let history: Vec<_> = window.iter().filter_map(|tree| tree.files.get(&id)).collect();
    if history.is_empty() {
        return Err(format!("{id:?} was never created"));
    }
    let names: usize = found.names.values().map(|names| names.values().filter(|named| **named == id).count()).sum();
    let own = found.names.get(&id).map(|names| 2 + names.values().filter(|id| found.names.contains_key(id)).count());
    if (file.links as usize) < own.unwrap_or(names) {
        return Err(format!("{id:?} has {} links for {names} names", file.links));
    }
    if !history.iter().any(|other| other.kind == file.kind) {
        return Err(format!("{id:?} is a {:?}", file.kind));
    }
    let modes: BTreeSet<u32> = history.iter().map(|other| other.mode).collect();
    if !modes.contains(&file.mode) && !modes.iter().any(|one| modes.iter().any(|two| one & two == file.mode)) {
        return Err(format!("{id:?} has mode {:x}, not one of {modes:x?}", file.mode));
    }
    if file.kind == FileKind::Directory {
        return Ok(());
    }
    // A new file is empty at first.
    let new = window.iter().any(|tree| !tree.files.contains_key(&id)) && file.content.is_empty();
    if !history.iter().any(|other| other.content.len() == file.content.len()) && !new {
        let lengths: Vec<usize> = history.iter().map(|other| other.content.len()).collect();
        return Err(format!("{id:?} has {} bytes, not one of {lengths:?}", file.content.len()));
    }
    for (at, byte) in file.content.iter().enumerate() {
        let legal = |content: &Vec<u8>| content.get(at).is_some_and(|other| other == byte);
        let cut = *byte == 0 && history.iter().any(|other| other.content.len() <= at);
        if !cut && !history.iter().any(|other| legal(&other.content)) {
            return Err(format!("byte {at} of {id:?} is {byte:#x}, which it never was"));
        }
    }
    Ok(())
}
