//! Answers of scans for system calls, kept so that a file is scanned once.
//!
//! They lie in a file beside the tables of call sites, by the identity of what was scanned
//! ([`file_identity`]): buckets of records. A full bucket loses a record for each new one.
//!
//! Invariants
//! - A record counts only if its checksum is right: two processes may write one place at once.
//! - A file that other users can write is not read.
//!
//! A record names the build, and device, inode, size and times of the file, and of a library also a
//! checksum of its headers, because the loader may have mapped what the path no longer names.
//! Nothing is kept about a file that changed within the last two seconds, because its next change
//! may get an equal time. A program under a limit of file sizes keeps no result, since the write
//! would end it.
//!
//! *Reason:* finding earlier results took 26 calls in a start; that of grep fell from 376 to 278
//! µs. *Rejected:* a file per combination of program and libraries; a list of libraries (it has no
//! bound); the build-id (builds pin it and patched files keep it, so the calls of a second program
//! with it went to the machine's own files); a checksum of the content (it costs as much as the
//! scan).

use crate::abi::sys;
use crate::handoff;
use crate::loading::file_identity::{self, FileId};
use crate::loading::{patch, shared_text};
use crate::process::environment;
use pmem::{crc32c, crc32c_words};

/// The file's identity, then facts.
type Record = [u64; 4];
const BUCKET_RECORDS: usize = 4;
const BUCKETS: u64 = 512;

/// What was scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scanned {
    /// A program.
    Program = 0,
    /// A library.
    Library = 2,
}

/// The file with the answers, which is opened when it is needed first.
#[derive(Debug, Default)]
pub struct Answers {
    /// `None`: not opened yet. A file that cannot be used is not tried again.
    file: Option<Option<sys::Fd>>,
}

impl Answers {
    /// The answer of an earlier scan.
    pub fn find(&mut self, scanned: Scanned, id: FileId) -> Option<bool> {
        let file = self.file.get_or_insert_with(|| open(libc::O_RDONLY)).as_ref()?;
        let bucket = read_bucket(file, id);
        [false, true].into_iter().find(|answer| bucket.contains(&record(scanned, id, *answer)))
    }
}

/// Keeps an answer for later programs, if this user can.
pub fn remember(scanned: Scanned, id: FileId, answer: bool) {
    if !file_identity::is_settled(id) || shared_text::is_file_size_limited() {
        return;
    }
    let Some(file) = open(libc::O_RDWR | libc::O_CREAT) else { return };
    let bucket = read_bucket(&file, id);
    // What another build, or an earlier look, found out about the file is replaced.
    let kind = |found: &Record| found[3] & 0xfe;
    let new = record(scanned, id, answer);
    let is_free = |found: &Record| found[3] == 0 || found[..3] == id && kind(found) == kind(&new);
    let index = bucket.iter().position(is_free).unwrap_or(id[0] as usize % BUCKET_RECORDS);
    let bytes = new.map(u64::to_ne_bytes);
    file.write_at(offset_of(id) + (index * size_of::<Record>()) as u64, bytes.as_flattened());
}

fn record(scanned: Scanned, id: FileId, answer: bool) -> Record {
    let [first, second, third] = id;
    let facts = facts(environment::library(), scanned, answer);
    let checksum = crc32c_words(&[first, second, third, facts], None);
    [first, second, third, u64::from(checksum) << 32 | facts]
}

/// 32 bits: which library scanned what, with which answer. The library's name has a fingerprint of
/// its content, so another build, which may serve other calls, scans again.
fn facts(library: &[u8], scanned: Scanned, answer: bool) -> u64 {
    u64::from(crc32c(0, library) & !0xff) | (scanned as u64) << 1 | u64::from(answer)
}

fn offset_of(id: FileId) -> u64 {
    id[1] % BUCKETS * size_of::<[Record; BUCKET_RECORDS]>() as u64
}

/// Zeros stand for what the file does not have.
fn read_bucket(file: &sys::Fd, id: FileId) -> [Record; BUCKET_RECORDS] {
    let mut bucket = [Record::default(); BUCKET_RECORDS];
    let _ = file.read_words_at(offset_of(id), bucket.as_flattened_mut());
    bucket
}

/// Its buffer is not to enlarge the start's part of the stack.
#[inline(never)]
fn open(flags: i32) -> Option<sys::Fd> {
    const NAME: &[u8] = b"answers.calls\0";
    let mut path = [0u8; handoff::ENTRY_BYTES_MAX + 64];
    let library = environment::library();
    let start = library.iter().rposition(|&byte| byte == b'/')? + 1;
    let end = start + NAME.len();
    path.get_mut(..start)?.copy_from_slice(&library[..start]);
    path.get_mut(start..end)?.copy_from_slice(NAME);
    let file = sys::open(&path[..end], flags | libc::O_NOFOLLOW).ok()?;
    patch::is_trusted(&file.status().ok()?).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_do_not_count_for_another_build() {
        let answers = [false, true].map(|answer| facts(b"/cache/preload-1.so", Scanned::Library, answer));
        for answer in [false, true] {
            assert!(!answers.contains(&facts(b"/cache/preload-2.so", Scanned::Library, answer)));
            assert!(!answers.contains(&facts(b"/cache/preload-1.so", Scanned::Program, answer)));
        }
    }
}
