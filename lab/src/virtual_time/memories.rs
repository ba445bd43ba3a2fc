//! The named machines: a processor, and the memory that an image lies in. Times are in
//! picoseconds.
//!
//! Each paper has the machine that its authors used, on which its claims are judged. The others
//! stand beside it.

/// A core and the memory of everything but images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processor {
    /// Name in reports.
    pub name: &'static str,
    /// Throughput of instructions, with their misses in the nearest caches.
    pub instruction_ps: u64,
    /// Instructions that are under way at once: an instruction that waits for a line delays its
    /// followers no earlier than when this many have passed it.
    pub window: usize,
    /// Lines under way at once.
    pub buffers: usize,
    /// A line from the last-level cache.
    pub far_ps: u64,
    /// Bytes of the last-level cache.
    pub far_bytes: u64,
    /// A line of ordinary memory.
    pub memory_ps: u64,
    /// Between two lines of ordinary memory that are read in sequence.
    pub sequence_ps: u64,
    /// A locked instruction on a line in the nearest cache.
    pub exchange_ps: u64,
}

/// A core of an EPYC of the fifth generation at about 4 GHz. Lines, flushes, fences and locked
/// instructions are those that `lab multicore` measures there; the rate of instructions is what
/// they leave of the time of warm calls.
pub const EPYC: Processor = Processor {
    name: "EPYC, fifth generation",
    instruction_ps: 70,
    window: 320,
    buffers: 16,
    far_ps: 14_000,
    far_bytes: 32 << 20,
    memory_ps: 150_000,
    sequence_ps: 1_800,
    exchange_ps: 5_000,
};

/// The DirectFS paper's Xeon Gold 6271 (V-A): 33 MB of last-level cache there. Its memory answers
/// sequential reads in 81 ns (Izraelevitz et al., arXiv 1903.05714). Window and buffers are those
/// of its generation. The rate is an estimate: half the reference's, at two thirds of its clock.
pub const XEON_GOLD: Processor = Processor {
    name: "Xeon Gold 6271",
    instruction_ps: 135,
    window: 224,
    buffers: 12,
    far_ps: 20_000,
    far_bytes: 33 << 20,
    memory_ps: 81_000,
    sequence_ps: 5_000,
    exchange_ps: 7_000,
};

/// The Xeon E5-2620 v3 of the ByVFS paper (4.1), and a Xeon E5 of the SoupFS paper (3): a
/// generation earlier, with 15 MiB of last-level cache.
pub const XEON_E5: Processor =
    Processor { name: "Xeon E5", window: 192, buffers: 10, far_bytes: 15 << 20, memory_ps: 85_000, ..XEON_GOLD };

/// What an image lies in, and the processor in front of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Name in reports.
    pub name: &'static str,
    /// Where its numbers come from.
    pub source: &'static str,
    /// The processor.
    pub processor: Processor,
    /// From a read of a line that no cache has until it arrives.
    pub read_ps: u64,
    /// The buffer of blocks in the module, if it has one.
    pub module: Option<Module>,
    /// Between two lines that are read in sequence: the bandwidth of one processor.
    pub sequence_ps: u64,
    /// Between two lines that are written past the caches: likewise.
    pub stream_ps: u64,
    /// Between two lines that are written back from the cache.
    pub flush_ps: u64,
    /// From the last write until a fence completes.
    pub fence_ps: u64,
    /// How lines are written back.
    pub flush: Flush,
    /// How long the program stands still after a store to a line that no cache has.
    pub store_miss_ps: u64,
}

/// A module that reads its medium in blocks, and keeps the last ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Module {
    /// Lines of a block.
    pub block_lines: u64,
    /// Blocks that it keeps.
    pub blocks: usize,
    /// A read of a line of a kept block.
    pub read_ps: u64,
}

impl Memory {
    /// Its costs in nanoseconds: read, read in sequence, streamed, flushed, fence.
    pub fn costs_ns(&self) -> [f64; 5] {
        [self.read_ps, self.sequence_ps, self.stream_ps, self.flush_ps, self.fence_ps].map(|ps| ps as f64 / 1e3)
    }
}

/// An instruction that writes a line back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// The line stays in the cache.
    Keeps,
    /// The line leaves the cache: `clflush`, and `clwb` before the third generation of Xeons.
    Evicts,
}

/// An image in ordinary memory of the reference processor.
pub const DRAM: Memory = Memory {
    name: "DRAM",
    source: "measured with lab multicore",
    processor: EPYC,
    read_ps: EPYC.memory_ps,
    module: None,
    sequence_ps: EPYC.sequence_ps,
    stream_ps: 1_600,
    flush_ps: 5_000,
    fence_ps: 145_000,
    flush: Flush::Keeps,
    store_miss_ps: 0,
};

/// The memory of the DirectFS paper: reads of 305 ns, 169 ns if the module has the block of 256
/// bytes, and 6.6 and 2.3 GB/s for a module (Izraelevitz et al.). A line with its flush and fence
/// takes 62 to 100 ns (Yang et al., FAST 2020); 16 KiB of blocks are kept.
pub const OPTANE: Memory = Memory {
    name: "Optane",
    source: "the DirectFS paper's machine; Izraelevitz et al. 2019, Yang et al. 2020",
    processor: XEON_GOLD,
    read_ps: 305_000,
    module: Some(Module { block_lines: 4, blocks: 64, read_ps: 169_000 }),
    sequence_ps: 9_700,
    stream_ps: 27_800,
    flush_ps: 10_000,
    fence_ps: 70_000,
    flush: Flush::Evicts,
    store_miss_ps: 0,
};

/// The memory of the SoupFS paper: as fast as DRAM, flushed with clflush.
pub const NVDIMM: Memory = Memory {
    name: "NVDIMM",
    source: "the SoupFS paper's machine, section 3: \"the same access latency as DRAM\", and clflush",
    processor: XEON_E5,
    read_ps: XEON_E5.memory_ps,
    sequence_ps: XEON_E5.sequence_ps,
    stream_ps: 5_000,
    flush_ps: 40_000,
    fence_ps: 80_000,
    flush: Flush::Evicts,
    ..DRAM
};

/// The emulation of the ByVFS paper: memory of the other socket, and 600 ns for each store that
/// misses the last-level cache. Its processor has clflush only.
pub const REMOTE: Memory = Memory {
    name: "remote NUMA",
    source: "the ByVFS paper's emulation, section 4.1: reads 30 to 40 ns longer, 600 ns for each write that misses",
    read_ps: XEON_E5.memory_ps + 35_000,
    store_miss_ps: 600_000,
    ..NVDIMM
};

/// The fastest measured memory behind a CXL link, in front of the reference processor.
pub const CXL_NEAR: Memory = Memory {
    source: "the fastest of the measured cards: twice the latency of DRAM (Sun et al. 2023; arXiv 2405.14209), half its bandwidth",
    ..cxl("CXL x2", 2)
};

/// The slowest one.
pub const CXL_FAR: Memory = Memory {
    source: "the slowest of the measured cards: five times the latency of DRAM (arXiv 2405.14209), a fifth of its bandwidth",
    ..cxl("CXL x5", 5)
};

const fn cxl(name: &'static str, times: u64) -> Memory {
    Memory {
        name,
        read_ps: times * DRAM.read_ps,
        sequence_ps: times * DRAM.sequence_ps,
        stream_ps: times * DRAM.stream_ps,
        flush_ps: times * DRAM.flush_ps,
        // The acknowledgement passes the link.
        fence_ps: DRAM.fence_ps + (times - 1) * DRAM.read_ps,
        ..DRAM
    }
}

/// The memories of every experiment with virtual time.
pub const MEMORIES: [Memory; 6] = [OPTANE, REMOTE, NVDIMM, DRAM, CXL_NEAR, CXL_FAR];
