//! The operations of a contest, by absolute paths of directories and names; the root is "".

use super::ScheduledThread;
use crate::RenameFlags;
use crate::error::{Error, Result};
use crate::format::FileKind;
use crate::fs::Node;
use crate::testing::new_node;
use std::format;
use std::string::String;
use std::vec::Vec;

/// The directory of a path, with a reference.
pub(super) fn directory(thread: &ScheduledThread<'_>, path: &str) -> Result<Node> {
    if let Some(node) = thread.held.get(path) {
        return thread.retain(*node).map(|()| *node);
    }
    let mut node = thread.root()?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let next = thread.lookup(node, name.as_bytes());
        thread.release(node, 1);
        node = next?;
    }
    Ok(node)
}

pub(super) fn within<R>(
    thread: &ScheduledThread<'_>,
    path: &str,
    work: impl FnOnce(Node, &[u8]) -> Result<R>,
) -> Result<R> {
    let (parent, name) = path.rsplit_once('/').ok_or(Error::Invalid)?;
    let node = directory(thread, parent)?;
    let result = work(node, name.as_bytes());
    thread.release(node, 1);
    result
}

pub(super) fn make(thread: &ScheduledThread<'_>, path: &str, kind: FileKind, content: &[u8]) -> Result<()> {
    let new = new_node(kind);
    within(thread, path, |parent, name| {
        let node = thread.create(parent, name, &new)?;
        let written = if content.is_empty() { Ok(()) } else { thread.files().append(node, content).map(drop) };
        thread.release(node, 1);
        written
    })
}

pub(super) fn create(thread: &ScheduledThread<'_>, path: &str) -> Result<()> {
    make(thread, path, FileKind::Regular, b"")
}

pub(super) fn mkdir(thread: &ScheduledThread<'_>, path: &str) -> Result<()> {
    make(thread, path, FileKind::Directory, b"")
}

pub(super) fn unlink(thread: &ScheduledThread<'_>, path: &str) -> Result<()> {
    within(thread, path, |parent, name| thread.unlink(parent, name, |_| Ok(())))
}

pub(super) fn rmdir(thread: &ScheduledThread<'_>, path: &str) -> Result<()> {
    within(thread, path, |parent, name| thread.remove_directory(parent, name, |_| Ok(())))
}

pub(super) fn link(thread: &ScheduledThread<'_>, old: &str, new: &str) -> Result<()> {
    let node = within(thread, old, |parent, name| thread.lookup(parent, name))?;
    let linked = within(thread, new, |parent, name| thread.link(node, parent, name));
    thread.release(node, 1);
    linked
}

pub(super) fn rename(thread: &ScheduledThread<'_>, old: &str, new: &str, flags: RenameFlags) -> Result<()> {
    within(thread, old, |from, name| {
        within(thread, new, |to, new_name| thread.rename((from, name), (to, new_name), flags, |_, _| Ok(())))
    })
}

/// Opens, reads, closes: a consistent content of the file.
pub(super) fn read(thread: &ScheduledThread<'_>, path: &str) -> Result<String> {
    let node = within(thread, path, |parent, name| thread.lookup(parent, name))?;
    let mut bytes = std::vec![0; 16 << 10];
    let count = thread.files().read(node, 0, &mut bytes);
    thread.release(node, 1);
    Ok(summary(&bytes[..count?]))
}

/// The length of a file two levels below the root; by the directories' validation stamps if they
/// match, else by their names.
pub(super) fn tread(thread: &ScheduledThread<'_>, directory: &[u8], name: &[u8]) -> Result<u64> {
    let visit = thread.visit();
    let below = |directory| match visit.find(directory, name)? {
        Some(file) => Ok(visit.stat(file)?.size_bytes),
        None => Err(Error::Busy),
    };
    if let Some(directory) =
        thread.stamps.take().and_then(|way| visit.validated_end(&way).inspect(|_| thread.stamps.set(Some(way))))
    {
        return below(directory);
    }
    let root = visit.begin_at(thread.held[""])?;
    let find = || visit.find(root, directory)?.ok_or(Error::Busy);
    let first = find()?;
    let stamps = visit.validation_stamp(root).zip(visit.validation_stamp(first));
    let again = find()?;
    thread.stamps.set(stamps.filter(|_| again.node() == first.node()).map(|(root, directory)| [root, directory]));
    below(again)
}

/// Bytes, shortened: runs of the same one.
pub(super) fn summary(bytes: &[u8]) -> String {
    bytes.chunk_by(|a, b| a == b).map(|run| format!("{}*{} ", run[0] as char, run.len())).collect()
}

pub(super) fn list(thread: &ScheduledThread<'_>, path: &str) -> Result<String> {
    let node = directory(thread, path)?;
    let mut names = Vec::new();
    let done = thread.read_directory(node, 0, &mut Default::default(), &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    });
    thread.release(node, 1);
    names.sort();
    done.map(|_| names.join(" "))
}

/// How often two names are listed if each call lists one name.
pub(super) fn list_in_pieces(thread: &ScheduledThread<'_>, path: &str, names: [&str; 2]) -> Result<[usize; 2]> {
    let node = directory(thread, path)?;
    let (mut counts, mut cookie, mut before) = ([0; 2], 0, u64::MAX);
    let mut hint = Default::default();
    while before != cookie {
        before = cookie;
        thread.read_directory(node, cookie, &mut hint, &mut |entry| {
            cookie = entry.cookie;
            (0..2).for_each(|index| counts[index] += usize::from(entry.name == names[index].as_bytes()));
            false
        })?;
    }
    thread.release(node, 1);
    Ok(counts)
}

/// The kind of a file by name; other attributes may mix several points in time.
pub(super) fn look(thread: &ScheduledThread<'_>, path: &str) -> Result<String> {
    let node = within(thread, path, |parent, name| thread.lookup(parent, name))?;
    let stat = thread.stat(node);
    thread.release(node, 1);
    stat.map(|stat| format!("{:?}", stat.kind))
}

pub(super) fn on_file<R>(thread: &ScheduledThread<'_>, path: &str, work: impl FnOnce(Node) -> Result<R>) -> Result<R> {
    let node = within(thread, path, |parent, name| thread.lookup(parent, name))?;
    let result = work(node);
    thread.release(node, 1);
    result
}

pub(super) fn write(thread: &ScheduledThread<'_>, path: &str, offset: u64, bytes: &[u8]) -> Result<()> {
    on_file(thread, path, |node| thread.files().write(node, offset, bytes).map(drop))
}

pub(super) fn append(thread: &ScheduledThread<'_>, path: &str, bytes: &[u8]) -> Result<u64> {
    on_file(thread, path, |node| thread.files().append(node, bytes))
}

pub(super) fn truncate(thread: &ScheduledThread<'_>, path: &str, length: u64) -> Result<()> {
    on_file(thread, path, |node| thread.files().truncate(node, length))
}

pub(super) fn compact(thread: &ScheduledThread<'_>, path: &str) -> Result<()> {
    let node = directory(thread, path)?;
    let done = thread.maintenance().compact(node);
    thread.release(node, 1);
    done
}

/// Evicts an unused directory, if there is one.
pub(super) fn evict(thread: &ScheduledThread<'_>) -> Result<()> {
    thread.maintenance().evict_some().map(drop)
}
