//! Support for the engine's tests: a platform on the standard library, and images in anonymous
//! memory that survive simulated power cuts.

pub(crate) mod mortal_thread;
pub(crate) mod mortality;
pub(crate) mod schedule;

use crate::attach::{AttachOptions, MkfsOptions, RecoveryReport, mkfs};
use crate::directory::NewNode;
use crate::dram::Owner;
use crate::error::Result;
use crate::format::FileKind;
use crate::fs::Fs;
use crate::platform::Platform;
use crate::sync::{AtomicI64, AtomicU32};
use core::sync::atomic::{AtomicBool, Ordering};
use pmem::{Direct, Mapping, Region, UserBytes};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::vec::Vec;

/// Time, sleep and liveness under control of the tests. [`TestPlatform::kill`] kills threads.
pub(crate) struct TestPlatform {
    /// All threads that died: concurrent tests may kill many.
    dead: Mutex<BTreeSet<u32>>,
    /// How often a thread has waited.
    pub waits: AtomicU32,
    /// Waits do not end.
    pub holds_waits: AtomicBool,
    /// The time of a stopped clock; zero: the clock runs.
    pub now_ns: AtomicI64,
    /// Memory that was not provided before is refused.
    pub is_full: AtomicBool,
    /// The long waits that threads reported.
    pub reports: Mutex<Vec<(Option<Owner>, std::string::String)>>,
}

/// The platform of all tests that kill no thread.
pub(crate) static PLATFORM: TestPlatform = TestPlatform::new();

static NEXT_TID: AtomicU32 = AtomicU32::new(1);

std::thread_local! {
    static TID: u32 = NEXT_TID.fetch_add(1, Ordering::Relaxed);
}

impl TestPlatform {
    /// All threads live.
    pub(crate) const fn new() -> Self {
        TestPlatform {
            dead: Mutex::new(BTreeSet::new()),
            waits: AtomicU32::new(0),
            holds_waits: AtomicBool::new(false),
            now_ns: AtomicI64::new(0),
            is_full: AtomicBool::new(false),
            reports: Mutex::new(Vec::new()),
        }
    }

    /// The calling thread counts as dead from now on.
    pub(crate) fn kill(&self) {
        self.dead().insert(TID.with(|tid| *tid));
    }

    fn dead(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.dead.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Platform for TestPlatform {
    fn now_ns(&self) -> i64 {
        if let Some(now_ns) = schedule::now_ns() {
            return now_ns;
        }
        if let now_ns @ 1.. = self.now_ns.load(Ordering::Relaxed) {
            return now_ns;
        }
        SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as i64
    }
    fn wait(&self, word: &AtomicU32, expected: u32, timeout_ms: u32) {
        self.waits.fetch_add(1, Ordering::SeqCst);
        while self.holds_waits.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        if schedule::is_on() {
            schedule::pause();
        } else if word.load(Ordering::SeqCst) == expected {
            thread::sleep(Duration::from_micros(100 * timeout_ms.min(5) as u64));
        }
    }
    fn wake(&self, _: &AtomicU32) {}
    fn report_wait(&self, owner: Option<Owner>, reason: &str) {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).push((owner, reason.into()));
    }
    fn process_id(&self) -> u32 {
        1
    }
    fn thread_id(&self) -> u32 {
        TID.with(|tid| *tid)
    }
    fn is_thread_alive(&self, _: u32, thread_id: u32) -> bool {
        !self.dead().contains(&thread_id)
    }
    fn provide(&self, _address: *mut u8, _length: usize) -> bool {
        !self.is_full.load(Ordering::SeqCst)
    }
    fn random(&self) -> u64 {
        0x1234_5678_9abc_def1
    }
}

/// Zeroed memory, which costs nothing until it is touched.
pub(crate) struct Memory(Mapping);

impl Memory {
    pub(crate) fn new(length: u64) -> Memory {
        Memory(Mapping::anonymous(length).expect("memory"))
    }

    /// A region over the memory; the tests keep the memory alive for longer.
    pub(crate) fn region(&self) -> Region {
        self.region_in(Direct)
    }

    /// `region` with another kind of memory.
    pub(crate) fn region_in<M: pmem::Memory>(&self, memory: M) -> Region<M> {
        // SAFETY: a mapping, and every test drops its file systems before its memories.
        unsafe { Region::new(self.0.address(), self.0.length(), memory) }
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = std::vec![0; self.0.length() as usize];
        self.region().read_bytes(0, &mut bytes).expect("all of it");
        bytes
    }

    /// Another memory with the same bytes: what a power cut leaves.
    pub(crate) fn copy(&self) -> Memory {
        let copy = Memory::new(self.0.length());
        let _ = copy.region().write_bytes(0, &self.bytes()).expect("the same length");
        copy
    }
}

/// A fresh image.
pub(crate) fn new_image(length: u64, inodes_max: u64) -> Memory {
    let image = Memory::new(length);
    let options = MkfsOptions {
        uuid: *b"a uuid of sixtee",
        label: [b'l'; 64],
        inodes_max,
        owner: (1000, 100),
        permissions: 0o755,
        now_ns: 1_000_000_000,
        zeroed: true,
    };
    mkfs(&image.region(), &options).expect("an image");
    image
}

/// A new node of a kind, with attributes that differ from all defaults.
pub(crate) fn new_node(kind: FileKind) -> NewNode<'static> {
    NewNode {
        kind,
        permissions: 0o644,
        uid: 1,
        gid: 2,
        device: 0,
        target: if kind == FileKind::Symlink { b"somewhere/short" } else { b"" },
        extended: &[],
        flags: crate::FileFlags::NONE,
    }
}

/// An attached image: first the view, then the memory of its DRAM region, in the order in which
/// they are dropped.
pub(crate) struct Attached {
    fs: Option<Fs>,
    pub(crate) report: RecoveryReport,
    _dram: Memory,
}

impl Attached {
    pub(crate) fn new(image: &Memory) -> Result<Attached> {
        Self::with(image, &PLATFORM, &AttachOptions::default(), 1)
    }

    pub(crate) fn with(
        image: &Memory,
        platform: &'static TestPlatform,
        options: &AttachOptions,
        workers: usize,
    ) -> Result<Attached> {
        let layout = Fs::dram_layout(&image.region(), options)?;
        let dram = Memory::new(layout.length);
        let recovery = Fs::attach_first(image.region(), dram.region(), platform, crate::Liveness::alone(), options)?;
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| recovery.work().expect("recovery works"));
            }
        });
        let (fs, report) = recovery.finish()?;
        Ok(Attached { fs: Some(fs), report, _dram: dram })
    }

    /// Detaches cleanly.
    pub(crate) fn detach(mut self) -> Result<()> {
        self.fs.take().expect("attached").detach_last()
    }
}

impl core::ops::Deref for Attached {
    type Target = Fs;
    fn deref(&self) -> &Fs {
        self.fs.as_ref().expect("attached")
    }
}

/// Memory in which every store, flush and fence is a step.
pub(crate) struct Mortal;

impl pmem::Memory for Mortal {
    const WATCHED: bool = true;
    fn stored(&self, _: u64, _: &[u8]) {
        mortality::may_die_here();
    }
    fn streamed(&self, _: u64, _: UserBytes<'_>) {
        mortality::may_die_here();
    }
    fn flushed(&self, _: u64, _: u64) {
        mortality::may_die_here();
    }
    fn fenced(&self) {
        mortality::may_die_here();
    }
    fn read(&self, _: u64, _: u64) {}
}
