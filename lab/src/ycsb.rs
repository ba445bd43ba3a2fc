//! YCSB's core workloads A to F (Cooper et al., SoCC 2010) on a LevelDB in Rust, in one thread.
//!
//! Records have 10 fields of 100 bytes, which the store sees as one value. Keys are hashes of
//! their numbers. Popularity follows a Zipf distribution with the constant 0.99; workload D prefers
//! what was inserted last. Writes are not synced, as in YCSB's own binding. The store merges its
//! tables in the writing thread, where LevelDB has a thread for it.

use crate::experiments::Random;
pub use rusty_leveldb::Status;
use rusty_leveldb::{DB, LdbIterator, Options};
use std::path::Path;

/// Bytes of a record.
const RECORD_BYTES: usize = 1000;
/// Most records of a scan.
const SCANNED_MAX: u64 = 100;
const ZIPF: f64 = 0.99;

/// A workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads.
    C,
    /// 95 % reads of the latest, 5 % inserts.
    D,
    /// 95 % scans, 5 % inserts.
    E,
    /// Half reads, half reads and updates of the same record.
    F,
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Read,
    Update,
    Insert,
    Scan,
    ReadAndUpdate,
}

impl Workload {
    /// All, with their names on the command line.
    pub const ALL: [(&'static str, Workload); 6] = [
        ("ycsb-a", Workload::A),
        ("ycsb-b", Workload::B),
        ("ycsb-c", Workload::C),
        ("ycsb-d", Workload::D),
        ("ycsb-e", Workload::E),
        ("ycsb-f", Workload::F),
    ];

    /// The frequent operation, the other one, and the other one's share in per cent.
    const fn mix(self) -> (Operation, Operation, u64) {
        match self {
            Workload::A => (Operation::Read, Operation::Update, 50),
            Workload::B => (Operation::Read, Operation::Update, 5),
            Workload::C => (Operation::Read, Operation::Read, 0),
            Workload::D => (Operation::Read, Operation::Insert, 5),
            Workload::E => (Operation::Scan, Operation::Insert, 5),
            Workload::F => (Operation::Read, Operation::ReadAndUpdate, 50),
        }
    }
}

/// Numbers below a count, of which the small ones are frequent (Gray et al., SIGMOD 1994).
struct Zipf {
    count: u64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(count: u64) -> Zipf {
        let zeta_of = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-ZIPF)).sum::<f64>();
        let zeta = zeta_of(count);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - ZIPF)) / (1.0 - zeta_of(2) / zeta);
        Zipf { count, zeta, eta }
    }

    fn next(&self, random: &mut Random) -> u64 {
        let share = random.fraction();
        let scaled = share * self.zeta;
        match () {
            _ if scaled < 1.0 => 0,
            _ if scaled < 1.0 + 0.5f64.powf(ZIPF) => 1,
            _ => {
                let rank = self.count as f64 * (self.eta * share - self.eta + 1.0).powf(1.0 / (1.0 - ZIPF));
                (rank as u64).min(self.count - 1)
            }
        }
    }
}

/// A store with records.
pub struct Store {
    store: DB,
    records: u64,
    zipf: Zipf,
    random: Random,
}

/// FNV-1a, which YCSB takes to scatter keys.
fn scattered(number: u64) -> u64 {
    number
        .to_le_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

fn key(number: u64) -> Vec<u8> {
    format!("user{:020}", scattered(number)).into_bytes()
}

impl Store {
    /// A new store in a directory, with so many records.
    pub fn load(directory: &Path, records: u64) -> Result<Store, Status> {
        let store = DB::open(directory, Options::default())?;
        let mut loaded = Store { store, records: 0, zipf: Zipf::new(records.max(2)), random: Random(1) };
        (0..records).try_for_each(|_| loaded.insert())?;
        loaded.store.flush()?;
        Ok(loaded)
    }

    fn put(&mut self, number: u64) -> Result<(), Status> {
        // Not all the same, so that compression does not remove them.
        let value: Vec<u8> = (0..RECORD_BYTES / 8).flat_map(|_| self.random.below(u64::MAX).to_le_bytes()).collect();
        self.store.put(&key(number), &value)
    }

    fn insert(&mut self) -> Result<(), Status> {
        self.put(self.records)?;
        self.records += 1;
        Ok(())
    }

    /// The number of a record by its popularity.
    fn chosen(&mut self, workload: Workload) -> u64 {
        let rank = self.zipf.next(&mut self.random);
        match workload {
            Workload::D => self.records - 1 - rank.min(self.records - 1),
            _ => scattered(rank) % self.records,
        }
    }

    fn read(&mut self, number: u64) -> Result<(), Status> {
        let found = self.store.get(&key(number)).map(|value| value.len());
        let missing = || Status::new(rusty_leveldb::StatusCode::NotFound, "a record is missing");
        found.filter(|length| *length == RECORD_BYTES).map(drop).ok_or_else(missing)
    }

    /// Some operations of a workload.
    pub fn run(&mut self, workload: Workload, operations: u64) -> Result<(), Status> {
        let (frequent, other, share) = workload.mix();
        for _ in 0..operations {
            let operation = if self.random.below(100) < share { other } else { frequent };
            let number = self.chosen(workload);
            match operation {
                Operation::Read => self.read(number)?,
                Operation::Update => self.put(number)?,
                Operation::Insert => self.insert()?,
                Operation::ReadAndUpdate => {
                    self.read(number)?;
                    self.put(number)?;
                }
                Operation::Scan => {
                    let length = 1 + self.random.below(SCANNED_MAX);
                    let mut records = self.store.new_iter()?;
                    records.seek(&key(number));
                    for _ in 0..length {
                        std::hint::black_box(records.current());
                        if !records.advance() {
                            break;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends it: everything is written.
    pub fn close(mut self) -> Result<(), Status> {
        self.store.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_popular_tenth_of_the_records_gets_most_reads() {
        let (zipf, mut random) = (Zipf::new(1000), Random(3));
        let mut counts = vec![0u32; 1000];
        (0..100_000).for_each(|_| counts[zipf.next(&mut random) as usize] += 1);
        let zeta: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-ZIPF)).sum();
        let expected = |rank: u32| 100_000.0 * f64::from(rank).powf(-ZIPF) / zeta;
        assert!((f64::from(counts[0]) / expected(1) - 1.0).abs() < 0.05, "{}", counts[0]);
        assert!(counts[..100].iter().sum::<u32>() > 60_000, "{}", counts[..100].iter().sum::<u32>());
        assert!(counts.iter().filter(|count| **count > 0).count() > 950, "the rest is read, too");
    }

    #[test]
    fn each_workload_finds_what_it_reads_and_only_two_insert() {
        for (name, workload) in Workload::ALL {
            let scratch = tempfile::tempdir().expect("a directory");
            let mut store =
                Store::load(&scratch.path().join("store"), 300).unwrap_or_else(|why| panic!("{name}: {why}"));
            store.run(workload, 400).unwrap_or_else(|why| panic!("{name}: {why}"));
            let inserts = matches!(workload, Workload::D | Workload::E);
            assert_eq!(store.records > 300, inserts, "{name}: {} records", store.records);
            let (_, _, share) = workload.mix();
            assert!(store.records <= 300 + 400 * share / 50, "{name}: {} records", store.records);
            store.close().unwrap_or_else(|why| panic!("{name}: {why}"));
        }
    }
}
