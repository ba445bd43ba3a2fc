//! The log: opening, recovery, which ends at a chunk that does not verify, and checkpoints.

use crate::chunk::{CHUNK_BYTES_MIN, ChunkHeader};
use crate::disk::{Disk, DiskError};
use crate::header::{Header, HeaderError};
use crate::is_injected;
use pmem::{BLOCK_BYTES, BadOffset};

/// Zeros that are written at once.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Why a call of the journal failed. Nothing that was durable is lost; the call can be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalError {
    /// A call of the file failed.
    Disk(DiskError),
    /// The journal cannot be used with this image.
    Header(HeaderError),
    /// The log names bytes outside of the image, under valid checksums: it was not written by this
    /// program.
    Hostile,
    /// The region does not track its changes, or is shorter than the image.
    NotTracked,
    /// The log has a longer chunk than the buffer.
    ShortBuffer {
        /// Bytes of the chunk.
        needed: u32,
    },
    /// Threads cancelled the cut time and again, because this process gets no processor time.
    Starved,
}

impl From<DiskError> for JournalError {
    fn from(error: DiskError) -> JournalError {
        JournalError::Disk(error)
    }
}

impl From<HeaderError> for JournalError {
    fn from(error: HeaderError) -> JournalError {
        JournalError::Header(error)
    }
}

impl From<BadOffset> for JournalError {
    fn from(_: BadOffset) -> JournalError {
        JournalError::NotTracked
    }
}

/// A journal behind an image, in the same file.
#[derive(Debug, Clone, Copy)]
pub struct Journal<D> {
    pub(crate) disk: D,
    uuid: [u8; 16],
    pub(crate) image_bytes: u64,
    log_bytes: u64,
}

/// Where the log ends, and the newest header. All processes of an image share it; it changes only
/// under the lock of commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Bytes of the log in use.
    pub used_bytes: u64,
    /// Number of the next commit.
    pub sequence: u64,
    /// Checksum of the last chunk.
    pub chain: u32,
    /// Number of the newest header.
    pub generation: u64,
    /// Number of the first commit in the log.
    pub first_sequence: u64,
    /// The checksum that the first chunk carries.
    pub first_chain: u32,
    /// A header may have been written or not. The image holds all commits; nothing is appended
    /// before the header is known to be on the disk.
    pub needs_trim: bool,
}

/// Where the processes of an image keep the state of its journal. A process that dies inside a call
/// leaves it as it was stored last.
pub trait StateStore {
    /// The state that was stored last.
    fn load(&self) -> State;
    /// Stores a state, whole or not at all.
    fn store(&self, state: &State);
}

impl StateStore for core::cell::Cell<State> {
    fn load(&self) -> State {
        self.get()
    }

    fn store(&self, state: &State) {
        self.set(*state);
    }
}

impl State {
    /// The number of words of a state.
    pub const WORDS: usize = 7;

    /// The state as words, for a store in shared memory.
    pub fn words(&self) -> [u64; State::WORDS] {
        [
            self.used_bytes,
            self.sequence,
            self.chain.into(),
            self.generation,
            self.first_sequence,
            self.first_chain.into(),
            self.needs_trim.into(),
        ]
    }

    /// The state of such words.
    pub fn from_words(words: &[u64; State::WORDS]) -> State {
        let [used_bytes, sequence, chain, generation, first_sequence, first_chain, needs_trim] = *words;
        State {
            used_bytes,
            sequence,
            chain: chain as u32,
            generation,
            first_sequence,
            first_chain: first_chain as u32,
            needs_trim: needs_trim != 0,
        }
    }
}

/// What recovery did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Commits that were applied.
    pub commits: u64,
    /// Bytes of their chunks.
    pub bytes: u64,
}

impl<D: Disk> Journal<D> {
    /// Bytes that a journal adds to an image's file.
    pub fn area_bytes(log_bytes: u64) -> u64 {
        2 * BLOCK_BYTES + log_bytes.next_multiple_of(BLOCK_BYTES)
    }

    /// Makes an empty journal. Its log is written with zeros, so that later writes change no
    /// metadata of the file system below.
    pub fn create(
        disk: D,
        uuid: [u8; 16],
        image_bytes: u64,
        log_bytes: u64,
    ) -> Result<(Journal<D>, State), JournalError> {
        let log_bytes = log_bytes.next_multiple_of(BLOCK_BYTES);
        let journal = Journal { disk, uuid, image_bytes, log_bytes };
        // The headers as well: an older journal in the same place must not count.
        let (start, end) = (journal.header_at(0), journal.log_at(log_bytes));
        for at in (start..end).step_by(ZEROS.len()) {
            journal.disk.write(at, &ZEROS[..ZEROS.len().min((end - at) as usize)])?;
        }
        journal.disk.flush()?;
        let state = core::cell::Cell::new(State {
            used_bytes: 0,
            sequence: 1,
            chain: 0,
            generation: 0,
            first_sequence: 1,
            first_chain: 0,
            needs_trim: false,
        });
        journal.trim(&state)?;
        Ok((journal, state.get()))
    }

    /// The journal of an image that another process opened. `log_bytes`: of that one.
    pub const fn opened(disk: D, uuid: [u8; 16], image_bytes: u64, log_bytes: u64) -> Journal<D> {
        Journal { disk, uuid, image_bytes, log_bytes }
    }

    /// Bytes of the image.
    pub fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    /// The file.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// Opens the journal of an image. The log is not read: see [`Journal::recover`].
    pub fn open(disk: D, uuid: [u8; 16], image_bytes: u64) -> Result<(Journal<D>, State), JournalError> {
        let mut journal = Journal { disk, uuid, image_bytes, log_bytes: 0 };
        let mut found: Result<Header, HeaderError> = Err(HeaderError::Absent);
        for index in 0..2 {
            let mut block = [0; BLOCK_BYTES as usize];
            let length = journal.disk.read(journal.header_at(index), &mut block)?;
            let other = Header::decode(&block[..length]);
            found = match (found, other) {
                (Ok(one), Ok(other)) if other.generation > one.generation => Ok(other),
                (Ok(one), Ok(_) | Err(HeaderError::Absent | HeaderError::Damaged)) => Ok(one),
                // A newer version is not taken for damage.
                (Ok(_), Err(error)) => Err(error),
                (Err(version @ HeaderError::Version { .. }), _) => Err(version),
                (Err(HeaderError::Damaged), Err(HeaderError::Absent)) => Err(HeaderError::Damaged),
                (Err(_), other) => other,
            };
        }
        let header = found?;
        if header.uuid != uuid || header.image_bytes != image_bytes {
            return Err(HeaderError::Foreign.into());
        }
        journal.log_bytes = header.log_bytes;
        let state = State {
            used_bytes: 0,
            sequence: header.sequence,
            chain: header.chain,
            generation: header.generation,
            first_sequence: header.sequence,
            first_chain: header.chain,
            needs_trim: false,
        };
        Ok((journal, state))
    }

    /// Bytes of the log. A single commit may be longer; then the file is, too, until the next
    /// checkpoint.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// Applies the whole commits of the log to the image, and trims it. `buffer`: as long as the
    /// longest buffer of the commits; [`CHUNK_BYTES_MAX`](crate::CHUNK_BYTES_MAX) always suffices.
    pub fn recover(&self, store: &dyn StateStore, buffer: &mut [u8]) -> Result<Recovered, JournalError> {
        let recovered = self.find_end(store, buffer)?;
        if recovered.commits > 0 {
            self.checkpoint(store, buffer)?;
        }
        Ok(recovered)
    }

    /// Moves the state behind the last whole commit of the log, and changes nothing on the disk.
    pub fn find_end(&self, store: &dyn StateStore, buffer: &mut [u8]) -> Result<Recovered, JournalError> {
        let mut recovered = Recovered::default();
        let mut next = store.load();
        while let Some(header) = self.read_chunk(&next, buffer)? {
            next.used_bytes += header.bytes as u64;
            next.chain = header.checksum;
            if header.is_last || is_injected!(PartialCommitsCount) {
                next.sequence += 1;
                store.store(&next);
                recovered.commits += 1;
                recovered.bytes = next.used_bytes;
            }
        }
        Ok(recovered)
    }

    /// Whether the disk is where a process of this image left it that stored `stored` as its last
    /// state. `opened`: the state of [`Journal::open`]. Changes nothing.
    ///
    /// The disk may be one step further than the state: a commit is stored after its flush, and a
    /// header after it was written. A commit that failed may be whole in the log, too, and a header
    /// may follow it. The disk is never further, and never behind. Every commit and every header
    /// changes the state. So an older copy of the file is recognized.
    pub fn is_where_left(&self, opened: &State, stored: &State, buffer: &mut [u8]) -> Result<bool, JournalError> {
        let begins_at = |sequence, chain| opened.first_sequence == sequence && opened.first_chain == chain;
        let is_trimmed = stored.needs_trim && opened.generation == stored.generation + 1;
        let (place, is_begun) = match is_trimmed {
            true => (opened, begins_at(stored.sequence, stored.chain)),
            false => (stored, begins_at(stored.first_sequence, stored.first_chain)),
        };
        if !is_begun || !is_trimmed && opened.generation != stored.generation {
            return Ok(false);
        }
        Ok(self.commits_behind(opened, place, buffer)?.is_some_and(|commits| commits <= 1))
    }

    /// Whether the journal is as [`Journal::create`] leaves it.
    pub fn is_new(&self, opened: &State, buffer: &mut [u8]) -> Result<bool, JournalError> {
        let is_first = (opened.generation, opened.first_sequence, opened.first_chain) == (1, 1, 0);
        Ok(is_first && self.commits_behind(opened, opened, buffer)? == Some(0))
    }

    /// Whole commits of the log behind that place; `None`: the log does not lead there.
    fn commits_behind(&self, opened: &State, place: &State, buffer: &mut [u8]) -> Result<Option<u64>, JournalError> {
        let is_there =
            |at: &State| (at.used_bytes, at.sequence, at.chain) == (place.used_bytes, place.sequence, place.chain);
        let (mut next, mut end) = (*opened, *opened);
        let mut passed = is_there(&next);
        while let Some(header) = self.read_chunk(&next, buffer)? {
            next.used_bytes += header.bytes as u64;
            next.chain = header.checksum;
            if header.is_last {
                next.sequence += 1;
                end = next;
                passed |= is_there(&next);
            }
        }
        Ok(passed.then(|| end.sequence - place.sequence))
    }

    /// Reads the chunk at a state's end, if one is there that continues the log.
    fn read_chunk(&self, at: &State, buffer: &mut [u8]) -> Result<Option<ChunkHeader>, JournalError> {
        debug_assert!(buffer.len() >= CHUNK_BYTES_MIN);
        let place = self.log_at(at.used_bytes);
        let start = &mut buffer[..BLOCK_BYTES as usize];
        let length = self.disk.read(place, start)?;
        let Some(header) = ChunkHeader::decode(&buffer[..length]) else { return Ok(None) };
        let continues = header.sequence == at.sequence;
        if !continues || header.chain != at.chain && !is_injected!(ChainIgnored) {
            return Ok(None);
        }
        // Not the end of the log: what follows may have been acknowledged.
        if header.bytes as usize > buffer.len() {
            return Err(JournalError::ShortBuffer { needed: header.bytes });
        }
        let chunk = &mut buffer[..header.bytes as usize];
        let length = self.disk.read(place, chunk)?;
        let is_whole = length == chunk.len() && header.verifies(chunk) || is_injected!(ChecksumIgnored);
        Ok(is_whole.then_some(header))
    }

    /// Writes all commits of the log to their places in the image, and trims the log.
    pub fn checkpoint(&self, store: &dyn StateStore, buffer: &mut [u8]) -> Result<(), JournalError> {
        let state = store.load();
        if is_injected!(TrimBeforeApply) && !state.needs_trim {
            self.trim(&core::cell::Cell::new(state))?;
        }
        // After a failed trim the header may say that the log is empty. Applying the log once more
        // would then leave older lines in the image for a moment.
        if !state.needs_trim || is_injected!(AppliedAfterTrim) {
            self.apply(&state, buffer)?;
        }
        self.trim(store)
    }

    /// Writes the lines of all commits to their places in the image, and flushes.
    fn apply(&self, state: &State, buffer: &mut [u8]) -> Result<(), JournalError> {
        let mut at = State { used_bytes: 0, sequence: state.first_sequence, chain: state.first_chain, ..*state };
        while at.used_bytes < state.used_bytes {
            // Chunks that were written or found before do not vanish but by a fault of the disk.
            let Some(header) = self.read_chunk(&at, buffer)? else {
                return Err(DiskError::LOST.into());
            };
            let chunk = &buffer[..header.bytes as usize];
            let mut skipped = is_injected!(FirstRunSkipped);
            let applied = header.runs(chunk, self.image_bytes, |offset, bytes| {
                if core::mem::take(&mut skipped) { Ok(()) } else { self.disk.write(offset, bytes) }
            });
            applied.ok_or(JournalError::Hostile)??;
            at.used_bytes += header.bytes as u64;
            at.chain = header.checksum;
            at.sequence += u64::from(header.is_last);
        }
        if !is_injected!(ImageNotFlushed) {
            self.disk.flush()?;
        }
        Ok(())
    }

    /// Writes a header that says: the log begins again. The image holds all commits.
    fn trim(&self, store: &dyn StateStore) -> Result<(), JournalError> {
        let mut state = store.load();
        state.needs_trim = !is_injected!(FailedTrimForgotten);
        // Before the header: a process that dies in between must not leave a log that the next one
        // continues.
        store.store(&state);
        let generation = state.generation + 1;
        let header = Header {
            uuid: self.uuid,
            image_bytes: self.image_bytes,
            log_bytes: self.log_bytes,
            generation,
            sequence: state.sequence,
            chain: state.chain,
        };
        self.disk.write(self.header_at(generation % 2), &header.encode())?;
        if !is_injected!(HeaderNotFlushed) {
            self.disk.flush()?;
        }
        store.store(&State {
            used_bytes: 0,
            generation,
            first_sequence: state.sequence,
            first_chain: state.chain,
            needs_trim: false,
            ..state
        });
        if state.used_bytes > self.log_bytes {
            self.disk.shorten(self.log_at(self.log_bytes));
        }
        Ok(())
    }

    fn header_at(&self, index: u64) -> u64 {
        self.image_bytes.next_multiple_of(BLOCK_BYTES) + index * BLOCK_BYTES
    }

    /// Offset in the file of a byte of the log.
    pub(crate) fn log_at(&self, offset: u64) -> u64 {
        self.header_at(2) + offset
    }
}
