//! The explorer of the journal: every crash state of a simulated disk must recover to the state of
//! the last acknowledged commit, or to that of the commit in flight.
//!
//! The disk keeps what was flushed. Of each later write it keeps any subset of sectors. A crash is
//! examined after each call of the disk, and again during the recovery from it.

use crate::{CHUNK_BYTES_MIN, Disk, DiskError, Journal, JournalError, State, StateStore};
use pmem::{Direct, Region, Sleeping, Tracking};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

pub(crate) const IMAGE_BYTES: usize = 64 << 10;
pub(crate) const LOG_BYTES: u64 = 64 << 10;
const SECTOR: usize = 512;
pub(crate) const UUID: [u8; 16] = *b"journal explorer";
const EIO: i32 = 5;

/// A generator of reproducible numbers (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Event {
    Write(u64, Vec<u8>),
    Flush,
    /// The commit with this number began; its state is `snapshots[number]`.
    Began(usize),
    /// It was acknowledged.
    Acknowledged(usize),
    /// The state was stored.
    Stored(State),
}

/// A state whose stores are recorded.
struct Noted<'w>(&'w World);

impl StateStore for Noted<'_> {
    fn load(&self) -> State {
        self.0.state.get()
    }

    fn store(&self, state: &State) {
        self.0.state.set(*state);
        self.0.disk.note(Event::Stored(*state));
    }
}

/// A disk that records its calls, and fails those that a test chooses.
#[derive(Default)]
pub(crate) struct SimulatedDisk {
    pub(crate) bytes: RefCell<Vec<u8>>,
    pub(crate) events: RefCell<Vec<Event>>,
    /// Calls until one fails; zero: none does.
    fails_in: Cell<u64>,
    /// Flushes until one fails; zero: none does.
    flush_fails_in: Cell<u64>,
}

impl SimulatedDisk {
    pub(crate) fn of(bytes: Vec<u8>) -> SimulatedDisk {
        SimulatedDisk { bytes: RefCell::new(bytes), ..Default::default() }
    }

    fn note(&self, event: Event) {
        self.events.borrow_mut().push(event);
    }

    /// The call or the flush with that number from now on fails; zero: none does.
    fn fail_in(&self, calls: u64, flushes: u64) {
        self.fails_in.set(calls);
        self.flush_fails_in.set(flushes);
    }

    pub(crate) fn image(&self) -> Vec<u8> {
        self.bytes.borrow()[..IMAGE_BYTES].to_vec()
    }
}

/// Counts down to a failure.
fn may_fail(left: &Cell<u64>) -> Result<(), DiskError> {
    let calls = left.get();
    left.set(calls.saturating_sub(1));
    if calls == 1 { Err(DiskError(EIO)) } else { Ok(()) }
}

fn store(bytes: &mut Vec<u8>, offset: usize, part: &[u8]) {
    if bytes.len() < offset + part.len() {
        bytes.resize(offset + part.len(), 0);
    }
    bytes[offset..offset + part.len()].copy_from_slice(part);
}

impl Disk for SimulatedDisk {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, DiskError> {
        let bytes = self.bytes.borrow();
        let start = (offset as usize).min(bytes.len());
        let length = into.len().min(bytes.len() - start);
        into[..length].copy_from_slice(&bytes[start..start + length]);
        Ok(length)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        // A call that fails may have written all the same.
        self.note(Event::Write(offset, bytes.to_vec()));
        store(&mut self.bytes.borrow_mut(), offset as usize, bytes);
        may_fail(&self.fails_in)
    }

    fn flush(&self) -> Result<(), DiskError> {
        may_fail(&self.fails_in)?;
        may_fail(&self.flush_fails_in)?;
        self.note(Event::Flush);
        Ok(())
    }
}

fn pages(bytes: usize) -> *mut u8 {
    let layout = std::alloc::Layout::from_size_align(bytes, 4096).expect("a page");
    // SAFETY: the size is not zero. The memory is never freed.
    unsafe { std::alloc::alloc_zeroed(layout) }
}

fn tracked() -> Region<Direct> {
    static SLEEPING: Sleeping = Sleeping {
        wait: |_, _, ms| std::thread::sleep(std::time::Duration::from_millis(ms.into())),
        wake: |_| {},
        now_ns: || 0,
    };
    let (base, area) = (pages(IMAGE_BYTES), pages(Tracking::area_bytes(IMAGE_BYTES as u64) as usize));
    // SAFETY: both are leaked, zeroed and of the right size.
    unsafe {
        let tracking = Tracking::new(NonNull::new(area).expect("memory"), IMAGE_BYTES as u64, &SLEEPING);
        Region::new(base, IMAGE_BYTES as u64, Direct).without_flushes().tracked(tracking).expect("fits")
    }
}

fn content(region: &Region<Direct>) -> Vec<u8> {
    let mut bytes = vec![0; IMAGE_BYTES];
    region.read_bytes(0, &mut bytes).expect("inside");
    bytes
}

fn journal_of(disk: &SimulatedDisk) -> Journal<&SimulatedDisk> {
    Journal::open(disk, UUID, IMAGE_BYTES as u64).expect("opens").0
}

/// A region, its journal, and the states that were to be committed.
pub(crate) struct World {
    pub(crate) region: Region<Direct>,
    pub(crate) disk: SimulatedDisk,
    pub(crate) state: Cell<State>,
    pub(crate) snapshots: Vec<Vec<u8>>,
    pub(crate) random: Random,
    pub(crate) buffer: Vec<u8>,
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let disk = SimulatedDisk::of(vec![0; IMAGE_BYTES]);
        let (_, state) = Journal::create(&disk, UUID, IMAGE_BYTES as u64, LOG_BYTES).expect("creates");
        disk.events.borrow_mut().clear();
        let region = tracked();
        let snapshots = vec![content(&region)];
        World {
            region,
            disk,
            state: Cell::new(state),
            snapshots,
            random: Random(seed | 1),
            buffer: vec![0; CHUNK_BYTES_MIN],
        }
    }

    /// Changes a few lines, sometimes many.
    pub(crate) fn change(&mut self) {
        let pieces = 1 + self.random.below(8);
        for _ in 0..pieces {
            let most = if self.random.below(4) == 0 { 12_000 } else { 100 };
            let length = 1 + self.random.below(most) as usize;
            let offset = self.random.below((IMAGE_BYTES - length) as u64);
            let bytes: Vec<u8> = (0..length).map(|_| self.random.next() as u8).collect();
            let dirty = self.region.write_bytes(offset, &bytes).expect("inside");
            let _ = self.region.persist(dirty);
        }
    }

    pub(crate) fn commit(&mut self) -> Result<(), JournalError> {
        let number = self.snapshots.len();
        self.snapshots.push(content(&self.region));
        self.disk.note(Event::Began(number));
        let mut buffer = std::mem::take(&mut self.buffer);
        let committed = journal_of(&self.disk).commit(&Noted(self), &self.region, &mut buffer);
        self.buffer = buffer;
        committed?;
        self.disk.note(Event::Acknowledged(number));
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), JournalError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let written = journal_of(&self.disk).checkpoint(&Noted(self), &mut buffer);
        self.buffer = buffer;
        written
    }

    /// A step of a workload: a change, and often a commit or a checkpoint.
    fn step(&mut self) -> Result<(), JournalError> {
        self.change();
        if self.random.below(3) > 0 {
            self.commit()?;
        }
        if self.state.get().used_bytes * 2 > LOG_BYTES || self.random.below(12) == 0 {
            self.checkpoint()?;
        }
        Ok(())
    }
}

/// A state that a crash may leave: of each write since the last flush any subset of sectors.
fn crash(durable: &[u8], pending: &[(u64, Vec<u8>)], random: &mut Random) -> Vec<u8> {
    let mut bytes = durable.to_vec();
    let kind = random.below(4);
    for (offset, written) in pending {
        // Whole writes, none, or single sectors: ordered disks and reordering ones.
        let is_whole = kind == 0 || kind == 1 && random.below(2) == 0;
        for (index, sector) in written.chunks(SECTOR).enumerate() {
            if is_whole || kind > 1 && random.below(2) == 0 {
                store(&mut bytes, *offset as usize + index * SECTOR, sector);
            }
        }
    }
    bytes
}

/// Takes a crash state, the commits started and acknowledged before it, and the generator. `false`:
/// a violation.
type Examine<'e> = &'e mut dyn FnMut(Vec<u8>, usize, usize, &mut Random) -> bool;

/// Passes states of each point of a recorded sequence to `each`, with the commits started and
/// acknowledged before it. Stops at the first `false`.
fn explore(initial: Vec<u8>, events: &[Event], states: usize, random: &mut Random, each: Examine<'_>) -> bool {
    let (mut durable, mut pending) = (initial, Vec::new());
    let (mut began, mut acknowledged) = (0, 0);
    for event in events {
        match event {
            Event::Write(offset, bytes) => pending.push((*offset, bytes.clone())),
            Event::Flush => pending.drain(..).for_each(|(offset, bytes)| store(&mut durable, offset as usize, &bytes)),
            Event::Began(number) => began = *number,
            Event::Acknowledged(number) => acknowledged = *number,
            Event::Stored(_) => {}
        }
        for _ in 0..states {
            let state = crash(&durable, &pending, random);
            if !each(state, began, acknowledged, random) {
                return false;
            }
        }
    }
    true
}

pub(crate) fn recover(disk: &SimulatedDisk) -> Result<(), JournalError> {
    let mut buffer = vec![0; CHUNK_BYTES_MIN];
    let (journal, state) = Journal::open(disk, UUID, IMAGE_BYTES as u64)?;
    journal.recover(&Cell::new(state), &mut buffer).map(drop)
}

/// Runs a workload, with failing calls of the disk if `failures`, and examines crash states of it.
/// Returns their number, or none after a violation.
pub fn examine(seed: u64, failures: bool) -> Option<u64> {
    let mut world = World::new(seed);
    let initial = world.disk.bytes.borrow().clone();
    for _ in 0..12 {
        if failures && world.random.below(2) == 0 {
            let (calls, flushes) = (1 + world.random.below(6), 1 + world.random.below(3));
            if world.random.below(2) == 0 { world.disk.fail_in(calls, 0) } else { world.disk.fail_in(0, flushes) }
        }
        // A failed call is repeated by a later one.
        let _ = world.step();
        world.disk.fail_in(0, 0);
    }
    world.commit().expect("commits");
    let (events, snapshots) = (world.disk.events.borrow().clone(), &world.snapshots);
    let is_legal = |image: &[u8], began: usize, acknowledged: usize| {
        (acknowledged..=began).any(|number| snapshots[number] == image)
    };
    let mut states = 0;
    let mut random = Random(seed ^ 0x9e37_79b9);
    let held = explore(initial, &events, 3, &mut random, &mut |state, began, acknowledged, random| {
        states += 1;
        let disk = SimulatedDisk::of(state.clone());
        if recover(&disk).is_err() || !is_legal(&disk.image(), began, acknowledged) {
            return false;
        }
        let recovered = disk.image();
        let again = disk.events.borrow().clone();
        explore(state, &again, 1, random, &mut |state, _, _, _| {
            states += 1;
            let disk = SimulatedDisk::of(state);
            recover(&disk).is_ok() && disk.image() == recovered
        })
    });
    held.then_some(states)
}

/// A moment of a workload: the disk with all that was written, since the machine goes on, and the
/// state that a process which dies now leaves in its memory.
struct Moment {
    disk: Vec<u8>,
    stored: State,
    /// Commits started and acknowledged.
    began: usize,
    acknowledged: usize,
}

/// Runs a workload, and examines each moment of it as the last one of its process: the disk must
/// pass for what the process left, and of its earlier states only those that hold the last
/// acknowledged commit, or the one in flight. Returns how many states of the disk were refused, or
/// none after a violation.
pub fn examine_deaths(seed: u64, failures: bool) -> Option<u64> {
    let mut world = World::new(seed);
    let (mut disk, mut stored) = (world.disk.bytes.borrow().clone(), world.state.get());
    for _ in 0..12 {
        if failures && world.random.below(2) == 0 {
            let (calls, flushes) = (1 + world.random.below(6), 1 + world.random.below(3));
            if world.random.below(2) == 0 { world.disk.fail_in(calls, 0) } else { world.disk.fail_in(0, flushes) }
        }
        let _ = world.step();
        world.disk.fail_in(0, 0);
    }
    let (mut began, mut acknowledged, mut moments) = (0, 0, Vec::new());
    for event in world.disk.events.borrow().iter() {
        match event {
            Event::Write(offset, bytes) => store(&mut disk, *offset as usize, bytes),
            Event::Flush => continue,
            Event::Began(number) => began = *number,
            Event::Acknowledged(number) => acknowledged = *number,
            Event::Stored(state) => stored = *state,
        }
        moments.push(Moment { disk: disk.clone(), stored, began, acknowledged });
    }
    let mut buffer = vec![0; CHUNK_BYTES_MIN];
    let mut refused = 0;
    for (number, death) in moments.iter().enumerate() {
        for (earlier, moment) in moments[..=number].iter().enumerate() {
            let disk = SimulatedDisk::of(moment.disk.clone());
            let (journal, opened) = Journal::open(&disk, UUID, IMAGE_BYTES as u64).ok()?;
            if !journal.is_where_left(&opened, &death.stored, &mut buffer).ok()? {
                refused += 1;
                // What the process left itself is never refused.
                if earlier == number {
                    return None;
                }
                continue;
            }
            recover(&disk).ok()?;
            let mut legal = death.acknowledged..=death.began;
            if !legal.any(|number| world.snapshots[number] == disk.image()) {
                return None;
            }
        }
    }
    Some(refused)
}
