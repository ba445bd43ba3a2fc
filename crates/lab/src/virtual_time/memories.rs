//! The named memories, and the reference processor in front of them. Times are in picoseconds.

/// What an image lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Name in reports.
    pub name: &'static str,
    /// Where its numbers come from.
    pub source: &'static str,
    /// From a read of a line that no cache has until it arrives.
    pub read_ps: u64,
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
}

impl Memory {
    /// Its costs and their source.
    pub fn description(&self) -> String {
        let [read, sequence, stream, flush, fence] =
            [self.read_ps, self.sequence_ps, self.stream_ps, self.flush_ps, self.fence_ps].map(|ps| ps as f64 / 1e3);
        format!(
            "{}: a line read {read} ns, in sequence {sequence} ns, streamed {stream} ns, flushed {flush} ns, a fence {fence} ns ({})",
            self.name, self.source
        )
    }
}

/// An instruction that writes a line back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// `clwb`: the line stays in the cache, and the program goes on.
    Keeps,
    /// `clflush`: the line leaves the cache, and the next flush waits for it.
    Evicts,
}

/// The reference processor: a core of an EPYC of the fifth generation at about 4 GHz. Its lines,
/// flushes, fences and locked instructions are those that `lab multicore` measures there.
pub mod processor {
    /// Throughput of instructions: what the other costs leave of the time of warm calls there.
    pub const INSTRUCTION_PS: u64 = 70;
    /// Instructions that are under way at once: an instruction that waits for a line delays its
    /// followers no earlier than when this many have passed it.
    pub const WINDOW: usize = 320;
    /// Lines under way at once.
    pub const BUFFERS: usize = 16;
    /// A line from the last-level cache.
    pub const FAR_PS: u64 = 14_000;
    /// Bytes of the last-level cache.
    pub const FAR_BYTES: u64 = 32 << 20;
    /// A line of ordinary memory, which holds everything but images.
    pub const MEMORY_PS: u64 = 150_000;
    /// A locked instruction on a line in the nearest cache.
    pub const EXCHANGE_PS: u64 = 5_000;
}

/// An image in ordinary memory.
pub const DRAM: Memory = Memory {
    name: "DRAM",
    source: "measured on an EPYC of the fifth generation",
    read_ps: processor::MEMORY_PS,
    sequence_ps: 1_800,
    stream_ps: 1_600,
    flush_ps: 5_000,
    fence_ps: 145_000,
    flush: Flush::Keeps,
};

/// The memory of the SoupFS paper: as fast as DRAM, with the flush of its processor.
pub const NVDIMM: Memory = Memory {
    name: "NVDIMM",
    source: "SoupFS, section 3: \"the same access latency as DRAM\", and clflush",
    flush_ps: 40_000,
    flush: Flush::Evicts,
    ..DRAM
};

/// The memory of the DirectFS paper.
pub const OPTANE: Memory = Memory {
    name: "Optane",
    source: "DirectFS, section II-A: reads three to five times as slow as DRAM, writes alike; 2.5 and 2 GB/s for one processor",
    read_ps: 4 * processor::MEMORY_PS,
    sequence_ps: 25_000,
    stream_ps: 32_000,
    flush_ps: 32_000,
    ..DRAM
};

/// Memory behind a CXL link.
pub const CXL: Memory = Memory {
    name: "CXL",
    source: "twice the latency of DRAM, and half its bandwidth",
    read_ps: 2 * processor::MEMORY_PS,
    sequence_ps: 2 * DRAM.sequence_ps,
    stream_ps: 2 * DRAM.stream_ps,
    flush_ps: 2 * DRAM.flush_ps,
    fence_ps: DRAM.fence_ps + processor::MEMORY_PS,
    ..DRAM
};

/// The memories of every experiment with virtual time.
pub const MEMORIES: [Memory; 4] = [DRAM, NVDIMM, OPTANE, CXL];
