//! Which changes raise which events for marks (fanotify): the counterpart of `changes`, which calls
//! this module while marks exist.
//!
//! Linux notifies, of one change, the marks on the file, on its directory, on the mount and on the
//! file system at once, so a change says here all that it knows.

use super::changes::{kind_bit, place_of};
use super::{FileId, MarkChange, Watches, event};
use engine::format::FileKind;
use engine::{Attributes, Node, Thread};
use pmem::Memory;

/// Events that a mark can get.
const ALL: u32 = event::ALL | event::OPEN_EXEC | event::RENAME;

/// How a change reached a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// Through a descriptor: Linux knows the mount.
    Descriptor,
    /// By its name or inode only.
    Name,
}

pub(crate) fn id_of(file: &Attributes) -> FileId {
    FileId { number: file.number, generation: file.generation }
}

fn id<M: Memory>(thread: &Thread<'_, M>, file: Node) -> FileId {
    let generation = thread.protection(file).map_or(0, |file| file.generation);
    FileId { number: file.number, generation }
}

fn id_of_number<M: Memory>(thread: &Thread<'_, M>, number: u64) -> FileId {
    let Ok(node) = thread.node(number, None) else { return FileId { number, generation: 0 } };
    let id = id(thread, node);
    thread.release(node, 1);
    id
}

/// Whether a mark may want to know that a path led to a file in a directory.
pub(crate) fn wants_place<M: Memory>(thread: &Thread<'_, M>, file: u64, directory: u64) -> bool {
    let watches = Watches::of(thread);
    Watches::of(thread).has_marks() && (watches.is_marked_parent(directory, ALL) || watches.wants_directory(file, ALL))
}

/// A change of a file.
pub(crate) fn notify_file<M: Memory>(
    thread: &Thread<'_, M>,
    file: Node,
    found_in: u64,
    (is_directory, mask): (bool, u32),
    by: By,
) {
    let Ok(seen) = thread.protection(file) else { return };
    let own = FileId { number: file.number, generation: seen.generation };
    let mut told = MarkChange::of_file(mask | kind_bit(is_directory), own);
    told.has_path = by == By::Descriptor;
    told.can_open = matches!(seen.kind(), Some(FileKind::Regular | FileKind::Directory));
    if is_directory {
        // A visit must not start what may wait.
        let parent = (!thread.pinned() && !thread.is_removed(file)).then(|| thread.parent(file).ok()).flatten();
        told.parent = parent.filter(|&parent| parent != file.number).unwrap_or(0);
        Watches::of(thread).notify_marks(&told);
        return;
    }
    let needs_place = Watches::of(thread).wants_directory(file.number, mask);
    let wanted = |directory| needs_place || Watches::of(thread).is_marked_parent(directory, mask);
    match place_of(thread, file, found_in, &wanted) {
        None => Watches::of(thread).notify_marks(&told),
        Some((place, _)) => {
            told.parent = place.directory;
            told.directory = id_of_number(thread, place.directory);
            Watches::of(thread).notify_marks(&MarkChange { name: place.name(), ..told });
        }
    }
}

/// Notifies the marks on an inode of a change that its directory does not get.
pub(crate) fn notify_inode<M: Memory>(thread: &Thread<'_, M>, file: FileId, mask: u32) {
    if Watches::of(thread).has_marks() {
        Watches::of(thread).notify_marks(&MarkChange::of_file(mask, file));
    }
}

/// Like [`notify_inode`].
pub(crate) fn notify_node<M: Memory>(thread: &Thread<'_, M>, file: Node, mask: u32) {
    if Watches::of(thread).has_marks() {
        Watches::of(thread).notify_marks(&MarkChange::of_file(mask, id(thread, file)));
    }
}

/// A change of a name in a directory.
pub(crate) fn notify_name<M: Memory>(thread: &Thread<'_, M>, directory: Node, name: &[u8], mask: u32, file: FileId) {
    if Watches::of(thread).has_marks() {
        let told = MarkChange::of_file(mask, file);
        let directory = id(thread, directory);
        Watches::of(thread).notify_marks(&MarkChange { directory, name, on: directory.number, ..told });
    }
}

/// [`notify_name`] of a new file.
pub(crate) fn notify_created<M: Memory>(thread: &Thread<'_, M>, directory: Node, name: &[u8], mask: u32, file: Node) {
    if Watches::of(thread).has_marks() {
        notify_name(thread, directory, name, mask, id(thread, file));
    }
}

/// A rename.
pub(crate) fn notify_renamed<M: Memory>(
    thread: &Thread<'_, M>,
    from: (Node, &[u8]),
    to: (Node, &[u8]),
    file: &Attributes,
) {
    if Watches::of(thread).has_marks() {
        let told = MarkChange::of_file(event::RENAME | kind_bit(file.kind == FileKind::Directory), id_of(file));
        let (directory, target) = (id(thread, from.0), id(thread, to.0));
        let moved_to = Some((target, to.1));
        let own = directory.number;
        Watches::of(thread).notify_marks(&MarkChange { directory, name: from.1, moved_to, on: own, ..told });
    }
}

/// A removed directory.
pub(crate) fn notify_end<M: Memory>(thread: &Thread<'_, M>, directory: &Attributes) {
    if Watches::of(thread).has_marks() {
        Watches::of(thread).end_marks(id_of(directory), true);
    }
}
