//! A simulated machine that loses power: an image and a DRAM region in memory, reset thousands of
//! times a second.
//!
//! Resets are cheap. [`Watch`] records which pages of the image were written, and only those are
//! copied back. Of the DRAM region, only the parts that an attach of a small image can touch are
//! zeroed.

use engine::dram::{Bucket, Cachelet, DramHeader, DramLayout, GROUP_BLOCKS, ThreadSlot};
use engine::{AttachOptions, Error, Fs, MkfsOptions, Platform, RecoveryReport, mkfs};
use pmem::{CrashState, Direct, Mapping, Memory, Recorder, Region, UserBytes};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

const PAGE_BYTES: u64 = 4096;
/// Start time of every run.
const START_NS: i64 = 1_700_000_000_000_000_000;

/// Time between two readings of the clock, by default.
const TICK_NS: i64 = 1000;

/// The engine's environment, the same in every run: a clock that ticks at every reading, no
/// randomness, no process deaths.
#[derive(Debug)]
pub struct Clock {
    now_ns: AtomicI64,
    tick_ns: AtomicI64,
}

impl Clock {
    /// A separate clock for a worker. It lives as long as the process, because the engine requires
    /// that of its platform.
    pub fn leaked() -> &'static Clock {
        Box::leak(Box::new(Clock { now_ns: AtomicI64::new(START_NS), tick_ns: AtomicI64::new(TICK_NS) }))
    }

    /// Resets the clock: the same calls then read the same times.
    pub fn rewind(&self) {
        self.set(START_NS, TICK_NS);
    }
}

impl Clock {
    /// Sets the time, and the step between readings, which may be negative.
    pub fn set(&self, now_ns: i64, tick_ns: i64) {
        self.now_ns.store(now_ns, Relaxed);
        self.tick_ns.store(tick_ns, Relaxed);
    }
}

impl Platform for Clock {
    fn now_ns(&self) -> i64 {
        self.now_ns.fetch_add(self.tick_ns.load(Relaxed), Relaxed)
    }
    fn wait(&self, _: &AtomicU32, _: u32, _: u32) {
        std::thread::yield_now();
    }
    fn wake(&self, _: &AtomicU32) {}
    fn process_id(&self) -> u32 {
        1
    }
    fn thread_id(&self) -> u32 {
        1
    }
    fn is_thread_alive(&self, _: u32, _: u32) -> bool {
        true
    }
    fn random(&self) -> u64 {
        0x5eed_0000_0001
    }
}

/// Records the image's events on request, and always records which pages are written.
#[derive(Debug)]
pub struct Watch {
    /// The log.
    pub recorder: Recorder,
    pages: Vec<AtomicU64>,
}

impl Watch {
    /// For an image of this length.
    pub fn new(length: u64) -> Watch {
        let words = length.div_ceil(PAGE_BYTES).div_ceil(64);
        Watch { recorder: Recorder::new(), pages: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    fn record(&self, offset: u64, length: u64) {
        for page in offset / PAGE_BYTES..(offset + length).div_ceil(PAGE_BYTES) {
            let (word, bit) = (&self.pages[page as usize / 64], 1 << (page % 64));
            if word.load(Relaxed) & bit == 0 {
                word.fetch_or(bit, Relaxed);
            }
        }
    }
}

impl Memory for Watch {
    const WATCHED: bool = true;
    fn stored(&self, offset: u64, bytes: &[u8]) {
        self.record(offset, bytes.len() as u64);
        self.recorder.stored(offset, bytes);
    }
    fn streamed(&self, offset: u64, bytes: UserBytes<'_>) {
        self.record(offset, bytes.len() as u64);
        self.recorder.streamed(offset, bytes);
    }
    fn flushed(&self, offset: u64, length: u64) {
        self.recorder.flushed(offset, length);
    }
    fn fenced(&self) {
        self.recorder.fenced();
    }
    fn read(&self, _: u64, _: u64) {}
}

/// The memory that the engine works on in this crate.
pub type Watched = Arc<Watch>;

/// One image and one DRAM region.
pub struct Machine {
    mapping: Arc<Mapping>,
    dram: Arc<Mapping>,
    layout: DramLayout,
    options: AttachOptions,
    clock: &'static Clock,
    /// The recorder of the image.
    pub watch: Watched,
}

impl Machine {
    /// A machine with a fresh file system of `length` bytes.
    pub fn new(length: u64, options: AttachOptions, clock: &'static Clock) -> Machine {
        Machine::with_inodes(length, 0, options, clock)
    }

    /// A machine with room for this many inodes; zero means the default.
    pub fn with_inodes(length: u64, inodes_max: u64, options: AttachOptions, clock: &'static Clock) -> Machine {
        let mapping = Arc::new(Mapping::anonymous(length).expect("memory for an image"));
        // SAFETY: the mapping outlives this region, which ends with the function; nothing else
        // knows it.
        let region = unsafe { Region::new(mapping.address(), mapping.length(), Direct) };
        let made = MkfsOptions {
            uuid: *b"torture's image.",
            label: [0; 64],
            inodes_max,
            owner: (0, 0),
            permissions: 0o755,
            now_ns: START_NS,
            zeroed: true,
        };
        mkfs(&region, &made).expect("a file system");
        let layout = Fs::<Direct>::dram_layout(&region, &options).expect("a layout");
        let dram = Arc::new(Mapping::anonymous(layout.length).expect("memory for a DRAM region"));
        let watch = Arc::new(Watch::new(length));
        Machine { mapping, dram, layout, options, clock, watch }
    }

    /// Length of the image in bytes.
    pub fn length(&self) -> u64 {
        self.mapping.length()
    }

    /// The image as a region.
    pub fn region(&self) -> Region<Watched> {
        // SAFETY: the mapping lives as long as this machine, and no code of this crate keeps a
        // region longer. References to its bytes exist only through regions.
        unsafe { Region::new(self.mapping.address(), self.mapping.length(), Arc::clone(&self.watch)) }
    }

    /// The image as a region that nothing observes.
    pub fn unwatched(&self) -> Region<Direct> {
        // SAFETY: as in `region`.
        unsafe { Region::new(self.mapping.address(), self.mapping.length(), Direct) }
    }

    /// The image's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length() as usize];
        self.unwatched().read_bytes(0, &mut bytes).expect("all of it");
        bytes
    }

    /// Replaces the image by these bytes.
    pub fn load(&self, bytes: &[u8]) {
        let _ = self.unwatched().write_bytes(0, bytes).expect("an image of the same length");
        self.watch.pages.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// Turns the loaded image into a crash state.
    pub fn apply(&self, state: &CrashState) {
        let region = self.region();
        for change in state.changes() {
            let _ = region.write_bytes(change.offset, &change.after).expect("inside the image");
        }
    }

    /// Restores the image to these bytes, from which it differs only in the pages written since.
    pub fn restore(&self, bytes: &[u8]) {
        let region = self.unwatched();
        for (index, word) in self.watch.pages.iter().enumerate() {
            let mut rest = word.swap(0, Relaxed);
            while rest != 0 {
                let start = (index as u64 * 64 + rest.trailing_zeros() as u64) * PAGE_BYTES;
                rest &= rest - 1;
                let page = &bytes[start as usize..bytes.len().min((start + PAGE_BYTES) as usize)];
                let _ = region.write_bytes(start, page).expect("inside the image");
            }
        }
    }

    /// Attaches with a DRAM region that is all zero, as after a restart of the machine.
    pub fn attach(&self) -> Result<(Fs<Watched>, RecoveryReport), Error> {
        self.attach_to(self.region())
    }

    /// [`Machine::attach`] without an observer: the engine as programs use it on persistent memory.
    pub fn attach_unwatched(&self) -> Result<(Fs<Direct>, RecoveryReport), Error> {
        self.attach_to(self.unwatched())
    }

    fn attach_to<M: Memory>(&self, image: Region<M>) -> Result<(Fs<M>, RecoveryReport), Error> {
        self.clear_dram();
        // SAFETY: the mapping lives as long as this machine, which outlives every file system that
        // this crate attaches.
        let dram = unsafe { Region::new(self.dram.address(), self.dram.length(), Direct) };
        Fs::attach_first(image, dram, self.clock, engine::Liveness::alone(), &self.options)?.finish()
    }

    /// Zeroes the used parts only: areas begin at huge pages, and most thread slots, cachelets and
    /// overflow buckets are never touched.
    fn clear_dram(&self) {
        // SAFETY: as in `attach`.
        let region = unsafe { Region::new(self.dram.address(), self.dram.length(), Direct) };
        let header = region.first::<DramHeader>().expect("a header");
        let used = |count: &AtomicU64, size: usize| count.load(Relaxed) * size as u64;
        let layout = &self.layout;
        let areas = [
            // Bits, groups, slabs, links, shares: adjacent areas.
            (layout.block_bits, layout.block_shares + layout.groups_max * GROUP_BLOCKS * 4 - layout.block_bits),
            (layout.block_owners, layout.groups_max * GROUP_BLOCKS * 8),
            (layout.cachelets, used(&header.cachelets_next, size_of::<Cachelet>())),
            (layout.buckets, layout.buckets_max * size_of::<Bucket>() as u64),
            (layout.overflow, used(&header.overflow_next, size_of::<Bucket>()) + size_of::<Bucket>() as u64),
            // Last, because the header says how much of the other areas was used.
            (layout.slots, used(&header.slots_high, size_of::<ThreadSlot>())),
            (0, layout.upper),
        ];
        for (offset, length) in areas {
            let address = region.address(offset, length).expect("inside the region");
            // SAFETY: inside the mapping by the check of `address`; no file system uses the region
            // now, so nothing else accesses it.
            unsafe { address.write_bytes(0, length as usize) };
        }
    }

    /// Checks every invariant of the image.
    pub fn check(&self, clean: Option<bool>) -> fsck::Report {
        fsck::check(
            &self.unwatched(),
            &fsck::Options { findings_max: 20, clean, ..fsck::Options::default() },
            &mut |_| {},
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_thread::TestThread;

    #[test]
    fn a_dram_region_that_was_used_is_all_zero_when_it_is_cleared() {
        let machine = Machine::new(1 << 20, AttachOptions::default(), Clock::leaked());
        let (fs, _) = machine.attach().expect("attaches");
        {
            let thread = TestThread::new(&fs).expect("enters");
            crate::catalogue::set_up(&thread).expect("furnished");
            let others: Vec<_> = (0..3).map(|_| TestThread::new(&fs).expect("enters")).collect();
            // Enough names for overflow buckets.
            (0..2000).for_each(|index| others[index % 3].link("/g", &format!("/a/{index}")).expect("links"));
            thread.unlink("/f").expect("unlinks");
        }
        fs.detach_last().expect("leaves");
        machine.clear_dram();
        // SAFETY: as in `attach`.
        let region = unsafe { Region::new(machine.dram.address(), machine.dram.length(), Direct) };
        let layout = &machine.layout;
        // The slots of threads that never ran are left out.
        for area in [0..layout.upper, layout.block_bits..layout.upper_files, layout.cachelets..layout.slots + (1 << 20)]
        {
            let mut bytes = vec![0; (area.end - area.start) as usize];
            region.read_bytes(area.start, &mut bytes).expect("all of it");
            assert_eq!(bytes.iter().position(|byte| *byte != 0), None, "from {}", area.start);
        }
    }
}
