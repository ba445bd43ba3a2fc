//! Which changes raise which events for watches, in the order of Linux: those of inotify here,
//! those of fanotify in `marked_changes`.
//!
//! Calls that change something check [`Fs::is_watched`](engine::Fs::is_watched) and come here only
//! then. A change of names knows both. A change through an open file knows the file and perhaps the
//! directory in which it was found; a watch on the directory gets the name, which is looked for
//! there only if such a watch exists.

use super::marked_changes::{self as marks, By, id_of};
use super::{Change, NameHint, Watches, event};
use crate::open_file::OpenFile;
use engine::format::FileKind;
use engine::{Attributes, Node, RenameFlags, Thread};
use pmem::{Direct, Memory};

/// A directory and a name in it.
pub(crate) struct Place {
    pub directory: u64,
    name: [u8; 256],
    length: usize,
}

impl Place {
    fn new(directory: u64, name: &[u8]) -> Place {
        let mut place = Place { directory, name: [0; 256], length: name.len().min(255) };
        place.name[..place.length].copy_from_slice(&name[..place.length]);
        place
    }

    pub fn name(&self) -> &[u8] {
        &self.name[..self.length]
    }
}

/// The bit of a directory's events.
pub(crate) fn kind_bit(is_directory: bool) -> u32 {
    if is_directory { event::IS_DIRECTORY } else { 0 }
}

/// Notifies the watches on an inode.
fn notify<M: Memory>(thread: &Thread<'_, M>, number: u64, mask: u32) {
    // Events about the watched file itself do not say that it is a directory.
    let shown = if mask & (event::DELETE_SELF | event::MOVE_SELF) != 0 { mask & !event::IS_DIRECTORY } else { mask };
    Watches::of(thread).notify_watches(&Change { number, mask: shown, cookie: 0, name: b"", unlinked: false });
}

/// Notifies the watches on a directory.
fn notify_name<M: Memory>(thread: &Thread<'_, M>, directory: u64, name: &[u8], mask: u32, cookie: u32) {
    Watches::of(thread).notify_watches(&Change { number: directory, mask, cookie, name, unlinked: false });
}

/// The inode number behind a name, if the directory can be reached.
fn number_at<M: Memory>(thread: &Thread<'_, M>, directory: u64, name: &[u8]) -> Option<u64> {
    let node = thread.node(directory, None).ok()?;
    let found = thread.stat_name(node, name).map(|file| file.number);
    thread.release(node, 1);
    found.ok()
}

/// Looks through a directory for a file's name, and keeps the result as a hint.
fn search<M: Memory>(thread: &Thread<'_, M>, number: u64, directory: u64) -> Option<Place> {
    let node = thread.node(directory, None).ok()?;
    let mut name = [0; 255];
    let found = thread.name_of(node, number, &mut name);
    thread.release(node, 1);
    let length = found.unwrap_or(0);
    Watches::of(thread).record_name(number, directory, &name[..length]);
    (length != 0).then(|| Place::new(directory, &name[..length]))
}

/// Where an open file has a name that a watch would get, and whether it has lost that name.
/// `wanted`: whether there is such a watch, by directory.
pub(crate) fn place_of<M: Memory>(
    thread: &Thread<'_, M>,
    file: Node,
    found_in: u64,
    wanted: &dyn Fn(u64) -> bool,
) -> Option<(Place, bool)> {
    let number = file.number;
    let links = thread.stat(file).map_or(0, |file| file.links);
    if let Some(hint) = Watches::of(thread).name_hint(number) {
        let name = &hint.name[..hint.length];
        let fits = found_in == 0 || hint.directory == found_in || links <= 1;
        if fits && !wanted(hint.directory) {
            return None;
        }
        if fits && hint.length == 0 && !hint.is_unknown {
            return None;
        }
        if fits && hint.is_unknown && links != 0 {
            return search(thread, number, hint.directory).map(|place| (place, false));
        }
        if hint.length != 0 && links == 0 {
            return Some((Place::new(hint.directory, name), true));
        }
        if fits && hint.length != 0 && number_at(thread, hint.directory, name) == Some(number) {
            return Some((Place::new(hint.directory, name), false));
        }
    }
    if found_in == 0 || links == 0 || !wanted(found_in) {
        return None;
    }
    search(thread, number, found_in).map(|place| (place, false))
}

/// [`place_of`] for a directory: its parent is known.
fn place_of_directory<M: Memory>(thread: &Thread<'_, M>, directory: Node, mask: u32) -> Option<Place> {
    let parent = thread.parent(directory).ok()?;
    if parent == directory.number
        || parent == 0
        || !Watches::of(thread).is_wanted(parent, mask)
        || thread.is_removed(directory)
    {
        return None;
    }
    let hint =
        Watches::of(thread).name_hint(directory.number).filter(|hint| hint.directory == parent && hint.length != 0);
    match hint {
        Some(hint) if number_at(thread, parent, &hint.name[..hint.length]) == Some(directory.number) => {
            Some(Place::new(parent, &hint.name[..hint.length]))
        }
        _ => search(thread, directory.number, parent),
    }
}

/// Notifies watches of a change of a file: those on the directory with its name first.
#[cold]
fn notify_file<M: Memory>(
    thread: &Thread<'_, M>,
    file: Node,
    found_in: u64,
    (is_directory, mask): (bool, u32),
    by: By,
) {
    if Watches::of(thread).has_watches() {
        notify_file_watches(thread, file, found_in, is_directory, mask & event::ALL | kind_bit(is_directory));
    }
    if Watches::of(thread).has_marks() {
        marks::notify_file(thread, file, found_in, (is_directory, mask), by);
    }
}

fn notify_file_watches<M: Memory>(thread: &Thread<'_, M>, file: Node, found_in: u64, is_directory: bool, mask: u32) {
    let place = match is_directory {
        // A visit must not start what may wait. It ends descriptions only where another thread
        // closed the descriptor meanwhile.
        _ if thread.pinned() => None,
        true => place_of_directory(thread, file, mask).map(|place| (place, false)),
        false => place_of(thread, file, found_in, &|directory| Watches::of(thread).is_wanted(directory, mask)),
    };
    if let Some((place, unlinked)) = &place {
        let name = place.name();
        Watches::of(thread).notify_watches(&Change {
            number: place.directory,
            mask,
            cookie: 0,
            name,
            unlinked: *unlinked,
        });
    }
    let unlinked = mask & (event::OPEN | event::ACCESS | event::MODIFY | event::CLOSE_WRITE | event::CLOSE_NOWRITE)
        != 0
        && thread.is_removed(file);
    Watches::of(thread).notify_watches(&Change { number: file.number, mask, cookie: 0, name: b"", unlinked });
}

/// A change through a description. (Not a method: a caller whose address is passed on is kept in
/// memory, which costs each read 20 instructions.)
#[cold]
fn notify_described<M: Memory>(thread: &Thread<'_, M>, file: &OpenFile, mask: u32, by: By) {
    if !file.is_silent() {
        notify_file(thread, file.node(), file.found_in(), (file.kind() == FileKind::Directory, mask), by);
    }
}

/// Reports what a thread does to files, for the watches on them.
pub struct Reports<'c, 'f, M: Memory = Direct> {
    /// The thread.
    pub thread: &'c Thread<'f, M>,
}

impl<M: Memory> Clone for Reports<'_, '_, M> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Memory> Copy for Reports<'_, '_, M> {}

impl<'c, 'f, M: Memory> Reports<'c, 'f, M> {
    /// Whether any watch exists.
    #[inline(always)]
    pub fn is_watched(self) -> bool {
        self.thread.fs().is_watched()
    }

    /// A change through an open file.
    #[inline(always)]
    pub fn notify_open(self, file: &OpenFile, mask: u32) {
        if self.is_watched() {
            notify_described(self.thread, file, mask, By::Descriptor);
        }
    }

    /// ftruncate, or an open that truncates.
    #[inline(always)]
    pub fn notify_truncated(self, file: &OpenFile) {
        if self.is_watched() {
            notify_described(self.thread, file, event::MODIFY, By::Name);
        }
    }

    /// A file is run: the kernel opens it, reads its start, and closes it.
    #[cold]
    pub fn notify_run(self, file: Node) {
        for mask in [event::OPEN | event::OPEN_EXEC, event::ACCESS, event::CLOSE_NOWRITE] {
            notify_file(self.thread, file, 0, (false, mask), By::Descriptor);
        }
    }

    /// A change of a file.
    #[inline(always)]
    pub fn notify_node(self, file: Node, is_directory: bool, mask: u32) {
        if self.is_watched() {
            notify_file(self.thread, file, 0, (is_directory, mask), By::Name);
        }
    }

    /// A successful change of a file of any kind.
    #[cold]
    pub fn notify_any(self, file: Node, mask: u32) {
        if let Ok(attributes) = self.thread.stat(file) {
            notify_file(self.thread, file, 0, (attributes.kind == FileKind::Directory, mask), By::Name);
        }
    }

    /// A file was opened, and cut if it had O_TRUNC.
    #[cold]
    pub fn notify_opened(self, file: &OpenFile, created: bool) {
        if file.is_path() {
            return;
        }
        self.notify_open(file, event::OPEN);
        if !created && file.kind() == FileKind::Regular && file.flags() & libc::O_TRUNC != 0 {
            self.notify_truncated(file);
        }
    }

    /// The end of an open file description.
    #[cold]
    pub fn notify_closed(self, file: &OpenFile) {
        if file.is_path() || file.is_watcher() {
            return;
        }
        let mask = if file.writes() { event::CLOSE_WRITE } else { event::CLOSE_NOWRITE };
        notify_described(self.thread, file, mask, By::Descriptor);
    }

    /// A path led to a file in a directory.
    #[cold]
    pub fn record_found(self, file: Node, directory: u64) {
        let is_known = |hint: &NameHint| hint.directory == directory && !hint.is_unknown;
        if (Watches::of(self.thread).is_wanted(directory, event::ALL)
            || marks::wants_place(self.thread, file.number, directory))
            && !Watches::of(self.thread).name_hint(file.number).as_ref().is_some_and(is_known)
        {
            Watches::of(self.thread).record_directory(file.number, directory);
        }
    }

    /// A path led to a name.
    #[cold]
    pub fn record_name(self, file: u64, directory: u64, name: &[u8]) {
        if Watches::of(self.thread).is_wanted(directory, event::ALL) || marks::wants_place(self.thread, file, directory)
        {
            Watches::of(self.thread).record_name(file, directory, name);
        }
    }

    /// A new name of a new file.
    #[cold]
    pub fn notify_created(self, directory: Node, name: &[u8], file: Node, is_directory: bool) {
        Watches::of(self.thread).record_name(file.number, directory.number, name);
        let mask = event::CREATE | kind_bit(is_directory);
        notify_name(self.thread, directory.number, name, mask, 0);
        marks::notify_created(self.thread, directory, name, mask, file);
    }

    /// A new name of a file that exists.
    #[cold]
    pub fn notify_linked(self, file: Node, directory: Node, name: &[u8]) {
        notify(self.thread, file.number, event::ATTRIB);
        marks::notify_node(self.thread, file, event::ATTRIB);
        self.notify_created(directory, name, file, false);
    }

    /// Removes a name by `remove`, which returns the attributes of the removed file.
    #[cold]
    pub fn remove_watched(
        self,
        directory: Node,
        name: &[u8],
        remove: impl FnOnce() -> crate::Result<Option<Attributes>>,
    ) -> crate::Result<()> {
        let held = self.hold(directory, name);
        let removed = remove();
        let thread = self.thread;
        if let Ok(Some(file)) = &removed {
            let is_directory = file.kind == FileKind::Directory;
            match is_directory {
                // At once, even if a process is in it.
                true => {
                    Watches::of(thread).end_watches(file.number);
                    marks::notify_end(thread, file);
                }
                false => {
                    notify(thread, file.number, event::ATTRIB);
                    marks::notify_inode(thread, id_of(file), event::ATTRIB);
                }
            }
            // An open file keeps its last name.
            Watches::of(thread).record_name(file.number, directory.number, name);
        }
        drop(held);
        if let Ok(Some(file)) = &removed {
            let mask = event::DELETE | kind_bit(file.kind == FileKind::Directory);
            notify_name(thread, directory.number, name, mask, 0);
            marks::notify_name(thread, directory, name, mask, id_of(file));
        }
        removed.map(drop)
    }

    /// Renames by `rename`, which returns the attributes of the moved file and of the one at the
    /// new name.
    #[cold]
    pub fn rename_watched(
        self,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
        flags: RenameFlags,
        rename: impl FnOnce() -> crate::Result<Option<(Attributes, Option<Attributes>)>>,
    ) -> crate::Result<()> {
        let held = self.hold(to.0, to.1);
        let renamed = rename();
        let moved = renamed.as_ref().ok().copied().flatten();
        if let Some((file, other)) = moved
            && other.is_none_or(|other| other.number != file.number)
        {
            let replaced = other.filter(|_| !flags.exchange);
            self.notify_moved(from, to, &file);
            if let Some(replaced) = replaced {
                let mask = event::ATTRIB | kind_bit(replaced.kind == FileKind::Directory);
                notify(self.thread, replaced.number, mask);
                marks::notify_inode(self.thread, id_of(&replaced), mask);
            }
            self.notify_moved_self(&file);
            match replaced {
                Some(replaced) if replaced.kind == FileKind::Directory => {
                    Watches::of(self.thread).end_watches(replaced.number);
                    marks::notify_end(self.thread, &replaced);
                }
                Some(replaced) => Watches::of(self.thread).record_name(replaced.number, to.0.number, to.1),
                None => {}
            }
            if let Some(other) = other.filter(|_| flags.exchange) {
                self.notify_moved(to, from, &other);
                self.notify_moved_self(&other);
            }
        }
        drop(held);
        renamed.map(drop)
    }

    /// Keeps the file of a name, if there is one.
    fn hold(self, directory: Node, name: &[u8]) -> Option<Held<'c, 'f, M>> {
        let file = self.thread.lookup(directory, name).ok()?;
        // If this thread dies within the call, recovery of its slot releases the reference.
        self.thread.record_reference(file);
        Some(Held { thread: self.thread, file })
    }

    fn notify_moved_self(self, file: &Attributes) {
        notify(self.thread, file.number, event::MOVE_SELF);
        let mask = event::MOVE_SELF | kind_bit(file.kind == FileKind::Directory);
        marks::notify_inode(self.thread, id_of(file), mask);
    }

    fn notify_moved(self, from: (Node, &[u8]), to: (Node, &[u8]), file: &Attributes) {
        let (cookie, bit) = (Watches::of(self.thread).next_move_cookie(), kind_bit(file.kind == FileKind::Directory));
        Watches::of(self.thread).record_name(file.number, to.0.number, to.1);
        notify_name(self.thread, from.0.number, from.1, event::MOVED_FROM | bit, cookie);
        notify_name(self.thread, to.0.number, to.1, event::MOVED_TO | bit, cookie);
        marks::notify_renamed(self.thread, from, to, file);
        marks::notify_name(self.thread, from.0, from.1, event::MOVED_FROM | bit, id_of(file));
        marks::notify_name(self.thread, to.0, to.1, event::MOVED_TO | bit, id_of(file));
    }
}

/// A reference to a file until this is dropped, so that the file ends only after the events that
/// precede its end.
struct Held<'c, 'f, M: Memory> {
    thread: &'c Thread<'f, M>,
    file: Node,
}

impl<M: Memory> Drop for Held<'_, '_, M> {
    fn drop(&mut self) {
        self.thread.release_recorded(self.file);
    }
}
