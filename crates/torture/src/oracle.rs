//! The oracle: a crash may leave the tree before the operation in flight or the one after it, and
//! nothing between, except for the few deviations of [`Slack`].

use crate::dump::{Tree, TreeEntry};
use engine::format::FileKind;

/// The parts of an operation that are not atomic with the rest of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slack {
    /// A file's change time and its name are on different lines: until the call returns, either may
    /// persist without the other.
    pub changed: bool,
    /// A write that replaces one block changes one word of the map, and the times in the property
    /// entry, under one fence. The new bytes may persist with the old times, or the new times with
    /// the old bytes.
    pub modified: bool,
    /// An interrupted change of the length may lose blocks reserved beyond the end, or leave them.
    pub reserved: bool,
    /// The access time is a separate word.
    pub accessed: bool,
    /// Punching a hole proceeds block by block.
    pub parts: bool,
    /// A renamed directory's change time is persisted lazily: a crash may lose it even after the
    /// call has returned.
    pub lazy: bool,
}

impl Slack {
    /// The union of both.
    pub const fn and(self, other: Slack) -> Slack {
        Slack {
            changed: self.changed || other.changed,
            modified: self.modified || other.modified,
            reserved: self.reserved || other.reserved,
            accessed: self.accessed || other.accessed,
            parts: self.parts || other.parts,
            lazy: self.lazy || other.lazy,
        }
    }
}

/// The history of a workload: the trees before and after each operation, and the slack of each.
pub struct History {
    /// The tree before the first operation, and after each.
    pub trees: Vec<Tree>,
    /// The slack of each operation.
    pub slacks: Vec<Slack>,
}

/// The point in a history at which a crash came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashPoint {
    /// Operations that had returned.
    pub returned: usize,
    /// Whether the next one had started.
    pub begun: bool,
}

impl CrashPoint {
    /// For display.
    pub fn describe(self) -> String {
        let which = |index: usize| ["the first", "the second", "another"][index.min(2)];
        match (self.begun, self.returned) {
            (true, returned) => format!("in {} operation", which(returned)),
            (false, 0) => "before all operations".to_owned(),
            (false, returned) => format!("after {} operation", which(returned - 1)),
        }
    }
}

impl History {
    /// Whether a crash at a point may leave this tree; the error is the difference.
    pub fn check(&self, found: &Tree, point: CrashPoint) -> Result<(), String> {
        let before = &self.trees[point.returned];
        let lazy = self.slacks[..self.slacks.len().min(point.returned + 1)].iter().any(|slack| slack.lazy);
        if !point.begun {
            return self.compare(found, before, None, Slack { lazy, ..Slack::default() });
        }
        let after = &self.trees[point.returned + 1];
        let slack = Slack { lazy, ..self.slacks[point.returned] };
        let Err(first) = self.compare(found, before, Some(after), slack) else { return Ok(()) };
        let Err(second) = self.compare(found, after, Some(before), slack) else { return Ok(()) };
        Err(format!("the tree is neither the one before ({first}) nor the one after ({second})"))
    }

    fn compare(&self, found: &Tree, wanted: &Tree, other: Option<&Tree>, slack: Slack) -> Result<(), String> {
        if found == wanted {
            return Ok(());
        }
        if let Some(path) = wanted.0.keys().find(|path| !found.0.contains_key(*path)) {
            return Err(format!("{path}: missing"));
        }
        for (path, entry) in &found.0 {
            let Some(wanted) = wanted.0.get(path) else { return Err(format!("{path}: unexpected")) };
            if entry != wanted {
                let allowed = self.excuse(entry, wanted, other, slack);
                difference(&allowed, wanted).map_err(|what| format!("{path}: {what}"))?;
            }
        }
        Ok(())
    }

    /// The entry with every permitted difference replaced by the expected value.
    fn excuse(&self, entry: &TreeEntry, wanted: &TreeEntry, other: Option<&Tree>, slack: Slack) -> TreeEntry {
        let mut excused = entry.clone();
        let stat = &mut excused.stat;
        let number = stat.number;
        let others = |tree: &Tree| tree.0.values().find(|entry| entry.stat.number == number).cloned();
        let other = other.and_then(others);
        if slack.changed && other.is_none() && (excused.born_ns..=wanted.stat.changed_ns).contains(&stat.changed_ns) {
            // It was created, changed and given a name in this operation.
            stat.changed_ns = wanted.stat.changed_ns;
        }
        if let Some(other) = other {
            if slack.reserved {
                stat.blocks = wanted.stat.blocks;
            }
            // A write that changes the length changes it together with the times.
            let in_place = slack.reserved || other.stat.size_bytes == wanted.stat.size_bytes;
            if slack.modified
                && in_place
                && stat.modified_ns == other.stat.modified_ns
                && stat.changed_ns == other.stat.changed_ns
            {
                (stat.modified_ns, stat.changed_ns) = (wanted.stat.modified_ns, wanted.stat.changed_ns);
            }
            if slack.changed && stat.changed_ns == other.stat.changed_ns {
                stat.changed_ns = wanted.stat.changed_ns;
            }
            if slack.accessed && stat.accessed_ns == other.stat.accessed_ns {
                stat.accessed_ns = wanted.stat.accessed_ns;
            }
            let either = |block: &u64| [&wanted.content, &other.content].map(|content| content.get(block));
            let known = |block: &u64| either(block).contains(&entry.content.get(block));
            if slack.parts && wanted.content.keys().chain(other.content.keys()).chain(entry.content.keys()).all(known) {
                excused.content = wanted.content.clone();
                stat.blocks = wanted.stat.blocks;
                (stat.modified_ns, stat.changed_ns) = (wanted.stat.modified_ns, wanted.stat.changed_ns);
            }
        }
        let was = |tree: &Tree| others(tree).is_some_and(|entry| entry.stat.changed_ns == stat.changed_ns);
        if slack.lazy && stat.kind == FileKind::Directory && self.trees.iter().any(was) {
            stat.changed_ns = wanted.stat.changed_ns;
        }
        excused
    }
}

/// The first difference between two entries.
fn difference(found: &TreeEntry, wanted: &TreeEntry) -> Result<(), String> {
    let (one, two) = (&found.stat, &wanted.stat);
    let numbers = [
        ("inode", one.number, two.number),
        ("generation", one.generation as u64, two.generation as u64),
        ("mode", one.mode as u64, two.mode as u64),
        ("size", one.size_bytes, two.size_bytes),
        ("links", one.links as u64, two.links as u64),
        ("owner", one.uid as u64, two.uid as u64),
        ("group", one.gid as u64, two.gid as u64),
        ("device", one.device as u64, two.device as u64),
        ("blocks", one.blocks, two.blocks),
        ("modified", one.modified_ns as u64, two.modified_ns as u64),
        ("changed", one.changed_ns as u64, two.changed_ns as u64),
        ("accessed", one.accessed_ns as u64, two.accessed_ns as u64),
        ("born", found.born_ns as u64, wanted.born_ns as u64),
    ];
    if let Some((what, one, two)) = numbers.into_iter().find(|(_, one, two)| one != two) {
        return Err(format!("{what} is {one}, expected {two}"));
    }
    if one.flags != two.flags {
        return Err(format!("the flags are {:?}, expected {:?}", one.flags, two.flags));
    }
    let differ = |block: &&u64| found.content.get(block) != wanted.content.get(block);
    if let Some(block) = found.content.keys().chain(wanted.content.keys()).find(differ) {
        return Err(format!("the content of block {block} differs"));
    }
    if found.target != wanted.target {
        return Err("the target differs".to_owned());
    }
    if found.xattrs != wanted.xattrs {
        let lengths = |entry: &TreeEntry| entry.xattrs.values().map(Vec::len).collect::<Vec<_>>();
        return Err(format!("extended attributes have {:?} bytes, expected {:?}", lengths(found), lengths(wanted)));
    }
    Ok(())
}

/// Whether two trees are equal except for the times of directories, which change by use.
pub fn same_but_directory_times(found: &Tree, wanted: &Tree) -> Result<(), String> {
    if found.0.len() != wanted.0.len() {
        return Err(format!("{} names, expected {}", found.0.len(), wanted.0.len()));
    }
    for (path, entry) in &found.0 {
        let Some(wanted) = wanted.0.get(path) else { return Err(format!("{path}: unexpected")) };
        let mut entry = entry.clone();
        if entry.stat.kind == FileKind::Directory {
            (entry.stat.modified_ns, entry.stat.changed_ns) = (wanted.stat.modified_ns, wanted.stat.changed_ns);
        }
        difference(&entry, wanted).map_err(|what| format!("{path}: {what}"))?;
    }
    Ok(())
}
