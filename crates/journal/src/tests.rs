//! The explorer of the journal: every crash state of a simulated disk must recover to the state of
//! the last acknowledged commit, or to that of the commit in flight.
//!
//! The disk keeps what was flushed. Of each later write it keeps any subset of sectors. A crash is
//! examined after each call of the disk, and again during the recovery from it.

use crate::planted::{DEFECTS, plant};
use crate::{CHUNK_BYTES_MIN, Disk, DiskError, HeaderError, Journal, JournalError, State};
use pmem::{Direct, Region, Sleeping, Tracking};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

const IMAGE_BYTES: usize = 64 << 10;
const LOG_BYTES: u64 = 64 << 10;
const SECTOR: usize = 512;
const UUID: [u8; 16] = *b"journal explorer";
const EIO: i32 = 5;

/// A generator of reproducible numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[derive(Debug, Clone)]
enum Event {
    Write(u64, Vec<u8>),
    Flush,
    /// The commit with this number began; its state is `snapshots[number]`.
    Began(usize),
    /// It was acknowledged.
    Acknowledged(usize),
}

/// A disk that records its calls, and fails the ones that it is told to.
#[derive(Default)]
struct SimulatedDisk {
    bytes: RefCell<Vec<u8>>,
    events: RefCell<Vec<Event>>,
    /// Calls until one fails; zero: none does.
    fails_in: Cell<u64>,
    /// Flushes until one fails; zero: none does.
    flush_fails_in: Cell<u64>,
}

impl SimulatedDisk {
    fn of(bytes: Vec<u8>) -> SimulatedDisk {
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

    fn image(&self) -> Vec<u8> {
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
struct World {
    region: Region<Direct>,
    disk: SimulatedDisk,
    state: Cell<State>,
    snapshots: Vec<Vec<u8>>,
    random: Random,
    buffer: Vec<u8>,
}

impl World {
    fn new(seed: u64) -> World {
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
    fn change(&mut self) {
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

    fn commit(&mut self) -> Result<(), JournalError> {
        let number = self.snapshots.len();
        self.snapshots.push(content(&self.region));
        self.disk.note(Event::Began(number));
        journal_of(&self.disk).commit(&self.state, &self.region, &mut self.buffer)?;
        self.disk.note(Event::Acknowledged(number));
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), JournalError> {
        journal_of(&self.disk).checkpoint(&self.state, &mut self.buffer)
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

/// Takes a crash state, the commits begun and acknowledged before it, and the generator. `false`: a
/// violation.
type Examine<'e> = &'e mut dyn FnMut(Vec<u8>, usize, usize, &mut Random) -> bool;

/// Passes states of each point of a recorded sequence to `each`, with the commits begun and
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

fn recover(disk: &SimulatedDisk) -> Result<(), JournalError> {
    let mut buffer = vec![0; CHUNK_BYTES_MIN];
    let (journal, state) = Journal::open(disk, UUID, IMAGE_BYTES as u64)?;
    journal.recover(&Cell::new(state), &mut buffer).map(drop)
}

/// Runs a workload and examines its crash states. Returns their number, or none after a violation.
fn examine(seed: u64, failures: bool) -> Option<u64> {
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

/// Seeds that a run of the tests examines; `JOURNAL_SEEDS` sets another number.
fn seeds() -> u64 {
    std::env::var("JOURNAL_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(8)
}

#[test]
fn every_crash_state_recovers_to_a_committed_one() {
    let mut states = 0;
    for seed in 1..=seeds() {
        for failures in [false, true] {
            states += examine(seed, failures).unwrap_or_else(|| panic!("seed {seed}, failing calls: {failures}"));
        }
    }
    println!("{states} crash states, 0 violations");
    assert!(states > 10_000);
}

#[test]
fn each_planted_defect_is_found() {
    let missed: Vec<_> = DEFECTS
        .iter()
        .filter(|&&defect| {
            plant(Some(defect));
            // A defect may also end in a panic or an error.
            let found = (1..=60).any(|seed| {
                let holds = |failures| std::panic::catch_unwind(|| examine(seed, failures).is_some()).unwrap_or(false);
                !holds(false) || !holds(true)
            });
            plant(None);
            !found
        })
        .collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn an_unchanged_region_writes_nothing() {
    let mut world = World::new(3);
    world.change();
    world.commit().expect("commits");
    let before = world.disk.events.borrow().len();
    world.commit().expect("commits");
    assert_eq!(world.disk.events.borrow().len(), before + 2, "only the notes of the test");
}

#[test]
fn a_small_change_is_one_block_and_one_flush() {
    let mut world = World::new(3);
    let _ = world.region.persist(world.region.write_bytes(640, &[7; 200]).expect("inside"));
    world.commit().expect("commits");
    let events = world.disk.events.borrow();
    let [Event::Began(_), Event::Write(_, bytes), Event::Flush, Event::Acknowledged(_)] = &events[..] else {
        panic!("{} events", events.len());
    };
    assert_eq!(bytes.len(), 4096);
}

#[test]
fn a_commit_longer_than_the_log_is_whole() {
    let mut world = World::new(3);
    let bytes: Vec<u8> = (0..IMAGE_BYTES).map(|index| (index * 7) as u8).collect();
    for _ in 0..2 {
        let _ = world.region.stream_bytes(0, &bytes).expect("inside");
        world.commit().expect("commits");
    }
    assert!(world.state.get().used_bytes > LOG_BYTES);
    let disk = SimulatedDisk::of(world.disk.bytes.borrow().clone());
    recover(&disk).expect("recovers");
    assert_eq!(disk.image(), bytes);
}

#[test]
fn a_chunk_that_exceeds_the_buffer_is_not_taken_for_the_end_of_the_log() {
    let mut world = World::new(3);
    world.buffer = vec![0; 4 * CHUNK_BYTES_MIN];
    let bytes = vec![7; 2 * CHUNK_BYTES_MIN];
    let _ = world.region.stream_bytes(0, &bytes).expect("inside");
    world.commit().expect("commits");
    let error = recover(&world.disk).expect_err("the buffer is short");
    assert!(matches!(error, JournalError::ShortBuffer { needed } if needed as usize > CHUNK_BYTES_MIN), "{error:?}");
    let (journal, state) = Journal::open(&world.disk, UUID, IMAGE_BYTES as u64).expect("opens");
    journal.recover(&Cell::new(state), &mut world.buffer).expect("recovers");
    assert_eq!(world.disk.image()[..bytes.len()], bytes);
}

#[test]
fn a_journal_that_is_not_the_images_is_refused() {
    let world = World::new(3);
    let open = |uuid, length| Journal::open(&world.disk, uuid, length).map(drop).expect_err("refused");
    assert_eq!(open(*b"another uuid....", IMAGE_BYTES as u64), HeaderError::Foreign.into());
    assert_eq!(open(UUID, IMAGE_BYTES as u64 / 2), HeaderError::Absent.into());
    let newest = IMAGE_BYTES + 4096;
    world.disk.bytes.borrow_mut()[newest + 8] = 2;
    assert_eq!(open(UUID, IMAGE_BYTES as u64), HeaderError::Version { found: 2, features: 0 }.into());
    world.disk.bytes.borrow_mut()[newest + 8] = 1;
    world.disk.bytes.borrow_mut()[newest + 20] ^= 1;
    assert_eq!(open(UUID, IMAGE_BYTES as u64), HeaderError::Damaged.into());
    world.disk.bytes.borrow_mut().truncate(IMAGE_BYTES);
    assert_eq!(open(UUID, IMAGE_BYTES as u64), HeaderError::Absent.into());
}

#[test]
fn a_log_of_arbitrary_bytes_is_never_applied_and_never_panics() {
    let mut random = Random(0x5eed);
    for _ in 0..300 {
        let mut world = World::new(random.next());
        world.change();
        world.commit().expect("commits");
        let log = IMAGE_BYTES + 2 * 4096;
        let before = world.disk.image();
        for _ in 0..1 + random.below(4) {
            let at = log + random.below(4096) as usize;
            world.disk.bytes.borrow_mut()[at] ^= 1 << random.below(8);
        }
        recover(&world.disk).expect("recovers");
        let after = world.disk.image();
        assert!(after == before || after == world.snapshots[1], "half of a commit was applied");
    }
}
