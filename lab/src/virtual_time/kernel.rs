//! What a call costs in a kernel beside what the lab's systems do.
//!
//! The papers' systems are parts of a kernel. There each call also copies the path and the
//! attributes, and passes hooks of security modules, accounting and notification. A lookup through
//! the VFS serves all file systems, and asks the security modules at each component. The lab has
//! none of that, so its warm stat takes a seventh of a kernel's. [`KERNEL`] is the difference,
//! measured once. It is stored as a number of instructions, so virtual time gives the same digits
//! everywhere. The experiment `kernel` measures the running kernel beside it.

use super::memories::Processor;

/// Instructions of a kernel that the lab's systems do not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// Instructions that each call adds, in any file system.
    pub call_instructions: u64,
    /// Instructions that a lookup by path in the VFS adds.
    pub lookup_instructions: u64,
}

/// Linux on the reference processor (70 ps an instruction).
///
/// A warm stat on tmpfs takes 620 to 740 ns (docs/performance.md) and an empty call 111 ns, so
/// there are 570 ns of work. Of these, 54 % are in each call: fstat has 25 % of them (attributes),
/// and a call whose path is copied but not looked up has 29 %. The other 46 % are the lookup. The
/// lab's conventional layer does 78 ns of them.
pub const KERNEL: Kernel = Kernel { call_instructions: 4_400, lookup_instructions: 2_630 };

impl Kernel {
    /// Picoseconds of a call. A system that does not look names up in the VFS has a lookup of its
    /// own, which is part of the recorded call.
    pub const fn call_ps(&self, processor: &Processor, has_vfs: bool) -> u64 {
        let lookup = if has_vfs { self.lookup_instructions } else { 0 };
        (self.call_instructions + lookup) * processor.instruction_ps
    }
}

#[cfg(test)]
mod tests {
    use super::super::memories::{EPYC, XEON_GOLD};
    use super::*;

    #[test]
    fn a_call_without_the_vfs_saves_the_lookup_and_a_slower_processor_takes_longer() {
        let [with, without] = [true, false].map(|has_vfs| KERNEL.call_ps(&EPYC, has_vfs));
        assert_eq!((with, without), (492_100, 308_000), "570 ns less the 78 ns of the lab's stat; 54 % of 570 ns");
        assert_eq!(KERNEL.call_ps(&XEON_GOLD, true) * EPYC.instruction_ps, with * XEON_GOLD.instruction_ps);
    }
}
