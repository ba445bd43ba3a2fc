//! The operations of a contest, by absolute paths of directories and names; the root is "".

use super::Hand;
use crate::RenameFlags;
use crate::error::{Error, Result};
use crate::format::FileKind;
use crate::fs::Node;
use crate::testing::new_node;
use std::format;
use std::string::String;
use std::vec::Vec;

/// The directory of a path, with a reference.
pub(super) fn directory(hand: &Hand<'_>, path: &str) -> Result<Node> {
    if let Some(node) = hand.held.get(path) {
        return hand.retain(*node).map(|()| *node);
    }
    let mut node = hand.root()?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let next = hand.lookup(node, name.as_bytes());
        hand.release(node, 1);
        node = next?;
    }
    Ok(node)
}

pub(super) fn within<R>(hand: &Hand<'_>, path: &str, work: impl FnOnce(Node, &[u8]) -> Result<R>) -> Result<R> {
    let (parent, name) = path.rsplit_once('/').ok_or(Error::Invalid)?;
    let node = directory(hand, parent)?;
    let result = work(node, name.as_bytes());
    hand.release(node, 1);
    result
}

pub(super) fn make(hand: &Hand<'_>, path: &str, kind: FileKind, content: &[u8]) -> Result<()> {
    let new = new_node(kind);
    within(hand, path, |parent, name| {
        let node = hand.create(parent, name, &new)?;
        let written = if content.is_empty() { Ok(()) } else { hand.append(node, content).map(drop) };
        hand.release(node, 1);
        written
    })
}

pub(super) fn create(hand: &Hand<'_>, path: &str) -> Result<()> {
    make(hand, path, FileKind::Regular, b"")
}

pub(super) fn mkdir(hand: &Hand<'_>, path: &str) -> Result<()> {
    make(hand, path, FileKind::Directory, b"")
}

pub(super) fn unlink(hand: &Hand<'_>, path: &str) -> Result<()> {
    within(hand, path, |parent, name| hand.unlink(parent, name, |_| Ok(())))
}

pub(super) fn rmdir(hand: &Hand<'_>, path: &str) -> Result<()> {
    within(hand, path, |parent, name| hand.remove_directory(parent, name, |_| Ok(())))
}

pub(super) fn link(hand: &Hand<'_>, old: &str, new: &str) -> Result<()> {
    let node = within(hand, old, |parent, name| hand.lookup(parent, name))?;
    let linked = within(hand, new, |parent, name| hand.link(node, parent, name));
    hand.release(node, 1);
    linked
}

pub(super) fn rename(hand: &Hand<'_>, old: &str, new: &str, flags: RenameFlags) -> Result<()> {
    within(hand, old, |from, name| {
        within(hand, new, |to, new_name| hand.rename((from, name), (to, new_name), flags, |_, _| Ok(())))
    })
}

/// Opens, reads, closes: a consistent content of the file.
pub(super) fn read(hand: &Hand<'_>, path: &str) -> Result<String> {
    let node = within(hand, path, |parent, name| hand.lookup(parent, name))?;
    let mut bytes = std::vec![0; 16 << 10];
    let count = hand.read(node, 0, &mut bytes);
    hand.release(node, 1);
    Ok(summary(&bytes[..count?]))
}

/// The length of a file two levels below the root; by the directories' validation stamps if they
/// match, else by their names.
pub(super) fn tread(hand: &Hand<'_>, directory: &[u8], name: &[u8]) -> Result<u64> {
    let visit = hand.visit();
    let below = |directory| match visit.find(directory, name)? {
        Some(file) => Ok(visit.stat(file)?.size_bytes),
        None => Err(Error::Busy),
    };
    if let Some(directory) = hand.way.take().and_then(|way| visit.stand_at(&way).inspect(|_| hand.way.set(Some(way)))) {
        return below(directory);
    }
    let root = visit.begin_at(hand.held[""])?;
    let find = || visit.find(root, directory)?.ok_or(Error::Busy);
    let first = find()?;
    let footings = visit.footing(root).zip(visit.footing(first));
    let again = find()?;
    hand.way.set(footings.filter(|_| again.node() == first.node()).map(|(root, directory)| [root, directory]));
    below(again)
}

/// Bytes, shortened: runs of the same one.
pub(super) fn summary(bytes: &[u8]) -> String {
    bytes.chunk_by(|a, b| a == b).map(|run| format!("{}*{} ", run[0] as char, run.len())).collect()
}

pub(super) fn list(hand: &Hand<'_>, path: &str) -> Result<String> {
    let node = directory(hand, path)?;
    let mut names = Vec::new();
    let done = hand.read_directory(node, 0, &mut Default::default(), &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    });
    hand.release(node, 1);
    names.sort();
    done.map(|_| names.join(" "))
}

/// How often two names are listed if each call lists one name.
pub(super) fn list_in_pieces(hand: &Hand<'_>, path: &str, names: [&str; 2]) -> Result<[usize; 2]> {
    let node = directory(hand, path)?;
    let (mut counts, mut cookie, mut before) = ([0; 2], 0, u64::MAX);
    let mut hint = Default::default();
    while before != cookie {
        before = cookie;
        hand.read_directory(node, cookie, &mut hint, &mut |entry| {
            cookie = entry.cookie;
            (0..2).for_each(|index| counts[index] += usize::from(entry.name == names[index].as_bytes()));
            false
        })?;
    }
    hand.release(node, 1);
    Ok(counts)
}

/// The kind of a file by name; other attributes may mix several points in time.
pub(super) fn look(hand: &Hand<'_>, path: &str) -> Result<String> {
    let node = within(hand, path, |parent, name| hand.lookup(parent, name))?;
    let stat = hand.stat(node);
    hand.release(node, 1);
    stat.map(|stat| format!("{:?}", stat.kind))
}

pub(super) fn on_file<R>(hand: &Hand<'_>, path: &str, work: impl FnOnce(Node) -> Result<R>) -> Result<R> {
    let node = within(hand, path, |parent, name| hand.lookup(parent, name))?;
    let result = work(node);
    hand.release(node, 1);
    result
}

pub(super) fn write(hand: &Hand<'_>, path: &str, offset: u64, bytes: &[u8]) -> Result<()> {
    on_file(hand, path, |node| hand.write(node, offset, bytes).map(drop))
}

pub(super) fn append(hand: &Hand<'_>, path: &str, bytes: &[u8]) -> Result<u64> {
    on_file(hand, path, |node| hand.append(node, bytes))
}

pub(super) fn truncate(hand: &Hand<'_>, path: &str, length: u64) -> Result<()> {
    on_file(hand, path, |node| hand.truncate(node, length))
}

pub(super) fn compact(hand: &Hand<'_>, path: &str) -> Result<()> {
    let node = directory(hand, path)?;
    let done = hand.compact(node);
    hand.release(node, 1);
    done
}

/// Evicts an unused directory, if there is one.
pub(super) fn evict(hand: &Hand<'_>) -> Result<()> {
    hand.evict_some().map(drop)
}
