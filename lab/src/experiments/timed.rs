//! A physical file system that records how long its operations take, by kind.
//!
//! Records are per thread. Reading the clock costs as much as a short operation, so its cost is
//! measured first and subtracted.

use crate::error::Result;
use crate::multicore::named_memory::NamedMemory;
use crate::physical::{
    DirectoryEntry, Exclusive, Found, Loaded, Made, MkfsOptions, MountOptions, Name, NewFile, PhysicalFs, Renamed,
    Renaming, Shared, Space,
};
use crate::substrate::NvPointer;
use engine::{Attributes, Changes};
use pmem::MappedRegion;
use std::cell::Cell;
use std::time::Instant;

/// Kinds of operations of a physical file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperationKind {
    /// Finding a name and loading its inode.
    Lookup,
    /// Changing names, attributes, logs; reading directories; freeing.
    Metadata,
    /// Content.
    Data,
}

/// The recorded times.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OperationTimes {
    /// Nanoseconds of looking up names and inodes.
    pub lookup_ns: f64,
    /// Nanoseconds of all other operations except content.
    pub metadata_ns: f64,
    /// Nanoseconds of content.
    pub data_ns: f64,
    /// Operations.
    pub operations: u64,
    /// Names looked up.
    pub names: u64,
}

thread_local! {
    static NS: [Cell<u64>; 3] = const { [Cell::new(0), Cell::new(0), Cell::new(0)] };
    static COUNTS: [Cell<u64>; 3] = const { [Cell::new(0), Cell::new(0), Cell::new(0)] };
    static NAMES: Cell<u64> = const { Cell::new(0) };
}

/// The cost of a record: the part within the recorded time, and the total.
#[derive(Debug, Clone, Copy)]
pub struct ClockCost {
    inside_ns: f64,
    /// The total, for subtraction from a time measured around operations.
    pub whole_ns: f64,
}

impl ClockCost {
    /// Measures the cost.
    pub fn measure() -> ClockCost {
        const TIMES: u32 = 20_000;
        let mut least = ClockCost { inside_ns: f64::MAX, whole_ns: f64::MAX };
        for _ in 0..5 {
            let mut inside = 0;
            let start = Instant::now();
            for _ in 0..TIMES {
                let begin = Instant::now();
                inside += begin.elapsed().as_nanos() as u64;
            }
            least.whole_ns = least.whole_ns.min(start.elapsed().as_nanos() as f64 / TIMES as f64);
            least.inside_ns = least.inside_ns.min(inside as f64 / TIMES as f64);
        }
        least
    }
}

/// Returns and resets the thread's records.
pub fn take_times(cost: ClockCost) -> OperationTimes {
    let counts: [u64; 3] = COUNTS.with(|counts| counts.each_ref().map(Cell::take));
    let ns: [u64; 3] = NS.with(|ns| ns.each_ref().map(Cell::take));
    let own = |kind: OperationKind| (ns[kind as usize] as f64 - counts[kind as usize] as f64 * cost.inside_ns).max(0.0);
    OperationTimes {
        lookup_ns: own(OperationKind::Lookup),
        metadata_ns: own(OperationKind::Metadata),
        data_ns: own(OperationKind::Data),
        operations: counts.iter().sum(),
        names: NAMES.take(),
    }
}

fn timed<T>(kind: OperationKind, operation: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = operation();
    let ns = start.elapsed().as_nanos() as u64;
    NS.with(|cells| cells[kind as usize].set(cells[kind as usize].get() + ns));
    COUNTS.with(|cells| cells[kind as usize].set(cells[kind as usize].get() + 1));
    result
}

/// A physical file system whose operations are timed.
pub struct Timed<P>(P);

impl<P: PhysicalFs> PhysicalFs for Timed<P> {
    type Memory = P::Memory;
    type Info = P::Info;

    const NAME: &'static str = P::NAME;
    const NAME_MAX: usize = P::NAME_MAX;

    fn mkfs(region: &MappedRegion<P::Memory>, options: &MkfsOptions) -> Result<()> {
        P::mkfs(region, options)
    }
    fn mount(region: MappedRegion<P::Memory>, options: &MountOptions) -> Result<Self> {
        P::mount(region, options).map(Timed)
    }
    fn unmount(&self) -> Result<()> {
        self.0.unmount()
    }
    fn region(&self) -> &MappedRegion<P::Memory> {
        self.0.region()
    }
    fn mounts(&self) -> u64 {
        self.0.mounts()
    }
    fn root(&self) -> u64 {
        self.0.root()
    }
    fn named_memory(&self) -> Vec<NamedMemory> {
        self.0.named_memory()
    }
    fn inode_place(&self, number: u64) -> Result<u64> {
        timed(OperationKind::Lookup, || self.0.inode_place(number))
    }
    fn nv_pointer(&self, inode: u64) -> Result<&NvPointer> {
        self.0.nv_pointer(inode)
    }
    fn load(&self, number: u64) -> Result<Loaded<P::Info>> {
        timed(OperationKind::Lookup, || self.0.load(number))
    }
    fn forget(&self, number: u64, info: P::Info) -> Result<()> {
        timed(OperationKind::Metadata, || self.0.forget(number, info))
    }
    fn evict(&self, number: u64, attributes: &Attributes, info: P::Info) -> Result<()> {
        timed(OperationKind::Metadata, || self.0.evict(number, attributes, info))
    }
    fn lookup(&self, directory: Shared<'_, P::Info>, name: &[u8]) -> Result<Option<Found>> {
        NAMES.set(NAMES.get() + 1);
        timed(OperationKind::Lookup, || self.0.lookup(directory, name))
    }
    fn entry_is_named(&self, entry: u64, name: &[u8]) -> bool {
        self.0.entry_is_named(entry, name)
    }
    fn parent(&self, directory: Shared<'_, P::Info>) -> Result<u64> {
        timed(OperationKind::Lookup, || self.0.parent(directory))
    }
    fn read_directory(
        &self,
        directory: Shared<'_, P::Info>,
        cookie: u64,
        visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        timed(OperationKind::Metadata, || self.0.read_directory(directory, cookie, visit))
    }
    fn create(
        &self,
        directory: &mut Exclusive<'_, P::Info>,
        name: Name<'_>,
        new: &NewFile<'_>,
        now_ns: i64,
    ) -> Result<Made<P::Info>> {
        timed(OperationKind::Metadata, || self.0.create(directory, name, new, now_ns))
    }
    fn link(
        &self,
        file: &mut Exclusive<'_, P::Info>,
        directory: &mut Exclusive<'_, P::Info>,
        name: Name<'_>,
        now_ns: i64,
    ) -> Result<u64> {
        timed(OperationKind::Metadata, || self.0.link(file, directory, name, now_ns))
    }
    fn unlink(
        &self,
        directory: &mut Exclusive<'_, P::Info>,
        name: Name<'_>,
        file: &mut Exclusive<'_, P::Info>,
        now_ns: i64,
    ) -> Result<()> {
        timed(OperationKind::Metadata, || self.0.unlink(directory, name, file, now_ns))
    }
    fn rmdir(
        &self,
        directory: &mut Exclusive<'_, P::Info>,
        name: Name<'_>,
        removed: &mut Exclusive<'_, P::Info>,
        now_ns: i64,
    ) -> Result<()> {
        timed(OperationKind::Metadata, || self.0.rmdir(directory, name, removed, now_ns))
    }
    fn rename(&self, renaming: Renaming<'_, '_, P::Info>) -> Result<Renamed> {
        timed(OperationKind::Metadata, || self.0.rename(renaming))
    }
    fn change(&self, file: &mut Exclusive<'_, P::Info>, changes: &Changes, now_ns: i64) -> Result<()> {
        timed(OperationKind::Metadata, || self.0.change(file, changes, now_ns))
    }
    fn read(&self, file: Shared<'_, P::Info>, offset: u64, into: &mut [u8]) -> Result<usize> {
        timed(OperationKind::Data, || self.0.read(file, offset, into))
    }
    fn write(&self, file: &mut Exclusive<'_, P::Info>, offset: u64, bytes: &[u8], now_ns: i64) -> Result<()> {
        timed(OperationKind::Data, || self.0.write(file, offset, bytes, now_ns))
    }
    fn truncate(&self, file: &mut Exclusive<'_, P::Info>, size_bytes: u64, now_ns: i64) -> Result<()> {
        timed(OperationKind::Data, || self.0.truncate(file, size_bytes, now_ns))
    }
    fn read_link(&self, link: Shared<'_, P::Info>, into: &mut [u8]) -> Result<usize> {
        timed(OperationKind::Data, || self.0.read_link(link, into))
    }
    fn sync_file(&self, file: &mut Exclusive<'_, P::Info>) -> Result<()> {
        timed(OperationKind::Data, || self.0.sync_file(file))
    }
    fn sync(&self) -> Result<()> {
        timed(OperationKind::Data, || self.0.sync())
    }
    fn space(&self) -> Result<Space> {
        self.0.space()
    }
}
