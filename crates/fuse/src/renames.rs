//! Renames that undo or destroy something if they are done twice, noted in memory that the servers
//! of a kept mount share.
//!
//! A second RENAME_EXCHANGE undoes the first one, and a second RENAME_WHITEOUT puts the whiteout in
//! the file's place. A server notes the file before it renames it. If the server dies before it
//! has answered, the kernel sends the request to the next one, which looks where the file is.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// More than the requests that threads of a server have at a time.
const NOTES: usize = 128;

/// The latest renames. Zero everywhere: none.
#[repr(C)]
pub(crate) struct Renames {
    next: AtomicU64,
    notes: [Note; NOTES],
}

#[repr(C)]
struct Note {
    /// The request, which has a number of its own in the session; zero: none.
    request: AtomicU64,
    /// The file that it renames.
    file: AtomicU64,
}

impl Renames {
    /// Notes that a request is about to rename a file.
    pub(crate) fn note(&self, request: u64, file: u64) {
        let note = &self.notes[self.next.fetch_add(1, Relaxed) as usize % NOTES];
        note.request.store(0, Release);
        note.file.store(file, Release);
        note.request.store(request, Release);
    }

    /// The file that a request was about to rename.
    pub(crate) fn file_of(&self, request: u64) -> Option<u64> {
        let note = self.notes.iter().find(|note| note.request.load(Acquire) == request)?;
        Some(note.file.load(Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_requests_are_found() {
        let notes = [const { Note { request: AtomicU64::new(0), file: AtomicU64::new(0) } }; NOTES];
        let renames = Renames { next: AtomicU64::new(0), notes };
        (1..=200).for_each(|request| renames.note(request, request + 1000));
        assert_eq!((renames.file_of(200), renames.file_of(73)), (Some(1200), Some(1073)));
        assert_eq!((renames.file_of(72), renames.file_of(201)), (None, None));
    }
}
