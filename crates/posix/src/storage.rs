//! Syncs: what makes an image safe, and which calls wait for it.
//!
//! Fronts translate their calls to a [`Scope`] and call [`Storage::sync`], which decides all else.
//! For a working copy [`Commits::commit`] then decides which process commits: the committer of a
//! run, or the calling thread's.
//!
//! | call | under `run` | on a mount | in a library | here |
//! | --- | --- | --- | --- | --- |
//! | fsync, fdatasync | yes | yes | `File::sync_all` | [`Scope::File`] |
//! | sync, syncfs | yes | never sent by the kernel | `Image::sync` | [`Scope::All`] |
//! | write with O_SYNC, O_DSYNC, RWF_DSYNC | yes | as fsync | with such flags | [`Scope::Calls`] |
//! | msync with MS_SYNC | after `Process::sync_mappings` | as fsync | none | [`Scope::Calls`] |
//! | sync_file_range that waits | yes | never sent by the kernel | none | [`Scope::Calls`] |
//! | sync_file_range that does not wait | yes | never sent by the kernel | none | [`Scope::Start`] |
//!
//! Commits without such a call: at intervals (`image::service`), when a process that uses the image
//! leaves while others remain, and when the last one closes it (`image::Image::close`).

use crate::commits::{Commits, ImageFile};
use engine::{Node, Thread};
use pmem::Memory;
use tables::Result;

/// What makes the calls on an image safe.
#[derive(Debug, Clone, Copy)]
pub enum Storage {
    /// The memory itself: a call that has returned is as safe as it gets. The image is in memory or
    /// on DAX, or this process cannot change it.
    Memory,
    /// A disk, to which a working copy is committed.
    Committed(Commits),
    /// A disk whose file is used in place: the kernel writes its pages.
    InPlace(ImageFile),
}

/// What a sync is to make safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All calls that have returned, and what the engine keeps for later (access times, stores
    /// through mappings) of this file.
    File(Node),
    /// All calls that have returned, and what the engine keeps for later of all files.
    All,
    /// All calls that have returned.
    Calls,
    /// [`Scope::Calls`] without waiting: the work only starts.
    Start,
}

impl Storage {
    /// Whether a sync has work to do beyond memory.
    pub fn is_disk(&self) -> bool {
        !matches!(self, Storage::Memory)
    }

    /// Returns when what `scope` names is safe from a power failure, as far as the storage allows.
    pub fn sync<M: Memory>(&self, thread: &Thread<'_, M>, scope: Scope) -> Result<()> {
        match scope {
            Scope::File(node) => thread.sync(node)?,
            Scope::All => thread.sync_all()?,
            Scope::Calls | Scope::Start => {}
        }
        match (self, scope) {
            (Storage::Committed(commits), Scope::Start) => commits.start(),
            (Storage::Committed(commits), _) => commits.commit(thread)?,
            // The kernel starts by itself to write the pages of a file in place.
            (Storage::Memory, _) | (Storage::InPlace(_), Scope::Start) => {}
            (Storage::InPlace(file), _) => file.sync()?,
        }
        Ok(())
    }
}
