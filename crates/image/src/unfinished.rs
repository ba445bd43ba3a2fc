//! Directories in which imports build their trees, and what is left of them after a death.
//!
//! Such a directory is in the root, and its name has the number of the process. It is removed by
//! the import, after the death of its process by the next import, and when an image is recovered
//! that no process has left cleanly.

use engine::format::FileKind;
use engine::{DirectoryHint, Error, Fs, Node, Platform, Thread};
use pmem::Memory;
use posix::{Caller, Credentials, NodeRef};
use posix::{Errno, Result};
use std::collections::HashSet;
use tables::host::PLATFORM;

const PREFIX: &str = ".directfs-import-";

/// A name for the directory of an import by this process.
pub fn unfinished_name<M: Memory>(thread: &Thread<'_, M>) -> Result<String> {
    let number = thread.fs().processes().process_number()?;
    Ok(format!("{PREFIX}{number}-{:016x}", PLATFORM.random()))
}

/// Removes the directories of imports whose processes are dead.
pub fn remove_unfinished<M: Memory>(thread: &Thread<'_, M>) -> Result<()> {
    remove_those(thread, |number| !thread.fs().processes().is_process_alive(number))
}

/// [`remove_unfinished`] in an image that was just recovered: no earlier process lives. An error
/// leaves them to the next import.
pub(super) fn remove_all_unfinished<M: Memory>(fs: &Fs<M>) {
    if let Ok(thread) = fs.enter() {
        let _ = remove_those(&thread, |_| true);
    }
}

fn remove_those<M: Memory>(thread: &Thread<'_, M>, is_dead: impl Fn(u32) -> bool) -> Result<()> {
    let root = NodeRef::owned(thread, thread.root()?);
    let mut found = Vec::new();
    thread.read_directory(root.node(), 0, &mut DirectoryHint::default(), &mut |entry| {
        let rest = entry.name.strip_prefix(PREFIX.as_bytes()).and_then(|rest| std::str::from_utf8(rest).ok());
        let number = rest.and_then(|rest| rest.split_once('-')?.0.parse::<u32>().ok());
        if entry.kind == FileKind::Directory && number.is_some_and(&is_dead) {
            found.push(entry.name.to_vec());
        }
        true
    })?;
    let caller = Caller::new(thread, Credentials::user(0, 0, &[]));
    found.iter().try_for_each(|name| remove_tree(&caller, root.node(), name))
}

/// Removes a name and everything below it. A name that does not exist is no error.
pub fn remove_tree<M: Memory>(caller: &Caller<'_, '_, M>, directory: Node, name: &[u8]) -> Result<()> {
    let thread = caller.thread;
    let mut above = vec![Emptied { number: directory.number, name: Vec::new(), names: vec![name.to_vec()] }];
    // A directory below itself, on a hostile image, would have no end.
    let mut numbers_above = HashSet::from([directory.number]);
    while let Some(emptied) = above.last_mut() {
        let here = NodeRef::owned(thread, thread.node(emptied.number, None)?);
        let Some(child) = emptied.names.pop() else {
            numbers_above.remove(&emptied.number);
            let name = above.pop().map(|emptied| emptied.name).unwrap_or_default();
            let Some(parent) = above.last() else { break };
            drop(here);
            let parent = NodeRef::owned(thread, thread.node(parent.number, None)?);
            caller.rmdir(parent.node(), &name)?;
            continue;
        };
        let file = match thread.lookup(here.node(), &child) {
            Ok(node) => NodeRef::owned(thread, node),
            Err(Error::NotFound) => continue,
            Err(error) => return Err(error.into()),
        };
        if thread.stat(file.node())?.kind != FileKind::Directory {
            caller.unlink(here.node(), &child)?;
            continue;
        }
        let number = file.node().number;
        if !numbers_above.insert(number) {
            return Err(Errno::EUCLEAN);
        }
        let mut names = Vec::new();
        thread.read_directory(file.node(), 0, &mut DirectoryHint::default(), &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })?;
        above.push(Emptied { number, name: child, names });
    }
    Ok(())
}

/// A directory whose names are removed one by one.
struct Emptied {
    number: u64,
    name: Vec<u8>,
    names: Vec<Vec<u8>>,
}
