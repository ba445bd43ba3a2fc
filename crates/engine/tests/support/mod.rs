//! Shared parts of the engine's tests: a platform, images in anonymous memory, and attaching with
//! and without a crash in between.
#![allow(dead_code, reason = "each test file uses its own part")]

use engine::{
    AttachOptions, Error, Fs, MkfsOptions, NewNode, Node, Platform, RecoveryReport, Thread, format::FileKind, mkfs,
};
use pmem::{Direct, MappedRegion, Mapping, Memory, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A platform whose clock the test can set; a counter identifies threads.
pub struct TestPlatform;

static CLOCK_NS: AtomicI64 = AtomicI64::new(1_700_000_000_000_000_000);
static NEXT_TID: AtomicU32 = AtomicU32::new(1);
static RANDOM: AtomicU64 = AtomicU64::new(0x5eed);

impl Platform for TestPlatform {
    fn now_ns(&self) -> i64 {
        CLOCK_NS.fetch_add(1000, Ordering::Relaxed)
    }
    fn wait(&self, word: &AtomicU32, expected: u32, timeout_ms: u32) {
        if word.load(Ordering::Acquire) == expected {
            std::thread::sleep(Duration::from_micros(50.min(timeout_ms as u64 * 1000)));
        }
    }
    fn wake(&self, _: &AtomicU32) {}
    fn process_id(&self) -> u32 {
        1
    }
    fn thread_id(&self) -> u32 {
        NEXT_TID.fetch_add(1, Ordering::Relaxed)
    }
    fn is_thread_alive(&self, _: u32, _: u32) -> bool {
        true
    }
    fn random(&self) -> u64 {
        RANDOM.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed) | 1
    }
}

pub static PLATFORM: TestPlatform = TestPlatform;

/// An image in memory. Attaching maps it again as a region; dropping an attached file system
/// without `detach` is a crash.
pub struct Image {
    pub mapping: Arc<Mapping>,
}

/// An attached image: the file system and its memories.
pub struct Attached<M: Memory = Direct> {
    pub fs: Fs<M>,
    pub report: RecoveryReport,
    _dram: MappedRegion<Direct>,
    _image: Arc<Mapping>,
}

impl Image {
    pub fn new(length: u64) -> Image {
        let image = Image { mapping: Arc::new(Mapping::anonymous(length).expect("anonymous memory")) };
        let options = MkfsOptions {
            uuid: *b"test image uuid.",
            label: [0; 64],
            inodes_max: 0,
            owner: (0, 0),
            permissions: 0o755,
            now_ns: PLATFORM.now_ns(),
            zeroed: true,
        };
        mkfs(&image.region(Direct), &options).expect("mkfs");
        image
    }

    pub fn region<M: Memory>(&self, memory: M) -> Region<M> {
        // SAFETY: the mapping lives as long as the image, which every attached file system holds.
        unsafe { Region::new(self.mapping.address(), self.mapping.length(), memory) }
    }

    pub fn attach(&self) -> Attached {
        self.attach_with(Direct, AttachOptions::default(), 1).expect("attach")
    }

    pub fn attach_with<M: Memory>(
        &self,
        memory: M,
        options: AttachOptions,
        workers: usize,
    ) -> Result<Attached<M>, Error> {
        let pm = self.region(memory);
        let layout = Fs::<M>::dram_layout(&pm, &options)?;
        let dram = Arc::new(Mapping::anonymous(layout.length).expect("anonymous memory"));
        let dram = dram.region(Direct).expect("writable");
        // SAFETY: `_dram` keeps the mapping for as long as the file system.
        let region = unsafe { Region::new(dram.mapping().address(), dram.mapping().length(), Direct) };
        let recovery = Fs::attach_first(pm, region, &PLATFORM, engine::Liveness::alone(), &options)?;
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| recovery.work().expect("recovery"));
            }
        });
        let (fs, report) = recovery.finish()?;
        Ok(Attached { fs, report, _dram: dram, _image: self.mapping.clone() })
    }
}

impl<M: Memory> Attached<M> {
    /// Detaches cleanly.
    pub fn detach(self) {
        let Attached { fs, _dram, _image, .. } = self;
        fs.detach_last().expect("detach");
    }

    pub fn enter(&self) -> Thread<'_, M> {
        self.fs.enter().expect("a thread slot")
    }
}

pub fn new_file() -> NewNode<'static> {
    NewNode {
        kind: FileKind::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        device: 0,
        target: b"",
        extended: &[],
        flags: engine::FileFlags::NONE,
    }
}

pub fn new_directory() -> NewNode<'static> {
    NewNode { kind: FileKind::Directory, permissions: 0o755, ..new_file() }
}

/// Makes a file and releases its reference.
pub fn touch<M: Memory>(thread: &Thread<'_, M>, directory: Node, name: &str) -> u64 {
    let node = thread
        .create(directory, name.as_bytes(), &new_file())
        .unwrap_or_else(|error| panic!("create {name}: {error:?}"));
    thread.release(node, 1);
    node.number
}

/// Makes a directory; its reference is the caller's.
pub fn make_directory<M: Memory>(thread: &Thread<'_, M>, directory: Node, name: &str) -> Node {
    thread
        .create(directory, name.as_bytes(), &new_directory())
        .unwrap_or_else(|error| panic!("mkdir {name}: {error:?}"))
}

/// The names of a directory in scan order.
pub fn names<M: Memory>(thread: &Thread<'_, M>, directory: Node) -> Vec<String> {
    let mut names = Vec::new();
    thread
        .read_directory(directory, 0, &mut Default::default(), &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })
        .expect("read_directory");
    names
}

/// Permits everything.
pub fn permit(_: &engine::Attributes) -> engine::Result<()> {
    Ok(())
}

/// Permits every rename.
pub fn permit_rename(_: &engine::Attributes, _: Option<&engine::Attributes>) -> engine::Result<()> {
    Ok(())
}

/// A small deterministic generator (xorshift), so that a seed replays a test.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }
}
