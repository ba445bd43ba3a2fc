//! Images in memory, and file systems on them.

use lab::physical::{MkfsOptions, MountOptions, PhysicalFs, SyncFile};
use lab::soupfs::SoupFs;
use lab::vfs::{ByVfs, VfsOptions};
use pmem::{Direct, MappedRegion, Mapping, Memory};
use std::sync::Arc;
use std::time::Duration;

/// Small, so that thousands of crashes can be checked.
pub const IMAGE_BYTES: u64 = 96 * 4096;
pub const START_NS: i64 = 1_700_000_000_000_000_000;

pub type Soup = SoupFs<Direct>;

pub fn mapping(bytes: u64) -> Arc<Mapping> {
    Arc::new(Mapping::anonymous(bytes).expect("memory"))
}

pub fn region<M: Memory>(mapping: &Arc<Mapping>, memory: M) -> MappedRegion<M> {
    mapping.region(memory).expect("a region")
}

/// A fresh file system on memory that is not zeroed.
pub fn formatted(bytes: u64) -> Arc<Mapping> {
    let mapping = mapping(bytes);
    let image = region(&mapping, Direct);
    let dirt: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 4096) as u8).collect();
    image.write_bytes(0, &dirt).expect("inside").unflushed();
    let options = MkfsOptions { owner: (0, 0), permissions: 0o755, now_ns: START_NS };
    SoupFs::mkfs(&image, &options).expect("a file system");
    mapping
}

/// Without threads: nothing runs in the background.
pub fn quiet() -> VfsOptions {
    let mount = MountOptions { persist_period_ms: 0, ..MountOptions::default() };
    VfsOptions { files_max: 1 << 12, names_max: 1 << 12, mount, ..VfsOptions::default() }
}

/// Every lookup asks the file system. A synced file has its names.
pub fn mount<M: Memory>(mapping: &Arc<Mapping>, memory: M) -> ByVfs<SoupFs<M>> {
    mount_syncing(mapping, memory, SyncFile::Names)
}

/// `mount` with the given promise of `sync_file`.
pub fn mount_syncing<M: Memory>(mapping: &Arc<Mapping>, memory: M, sync_file: SyncFile) -> ByVfs<SoupFs<M>> {
    let quiet = quiet();
    let options = VfsOptions { mount: MountOptions { sync_file, ..quiet.mount }, ..quiet };
    ByVfs::mount(region(mapping, memory), options).expect("a mount")
}

/// Without a VFS layer.
pub fn mount_alone(mapping: &Arc<Mapping>) -> Soup {
    SoupFs::mount_with(region(mapping, Direct), Duration::ZERO, 0).expect("a mount")
}

pub fn bytes(mapping: &Arc<Mapping>) -> Vec<u8> {
    let mut bytes = vec![0; mapping.length() as usize];
    region(mapping, Direct).read_bytes(0, &mut bytes).expect("all of it");
    bytes
}

pub fn load(mapping: &Arc<Mapping>, bytes: &[u8]) {
    region(mapping, Direct).write_bytes(0, bytes).expect("as long").unflushed();
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
