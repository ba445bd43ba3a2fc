//! The allocator of this program: the system's. While calls are recorded, objects come from an
//! arena instead, in which each has its lines for itself and the block that was freed last is used
//! first. So neither the lines that objects share, nor whether a block was just in use, depends on
//! what was allocated before.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::spin_loop;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

const LINE_BYTES: usize = 64;
/// Blocks have powers of two, up to this one. Larger objects come from the system.
const BLOCK_BYTES_MAX: usize = 1 << 22;
const CLASSES: usize = (BLOCK_BYTES_MAX / LINE_BYTES).ilog2() as usize + 1;
/// The arena's addresses, far from those that the kernel chooses. A block is recognised by them.
const ARENA_BITS: u32 = 36;
const ARENA: usize = 0x155 << ARENA_BITS;

static SPREAD: AtomicU32 = AtomicU32::new(0);
/// Whether the arena is mapped, and its first unused byte.
static MAPPED: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicUsize = AtomicUsize::new(ARENA);
/// The last freed block of each class; each holds the address of the one freed before it.
static FREE: [AtomicUsize; CLASSES] = [const { AtomicUsize::new(0) }; CLASSES];
/// Guards the lists.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Objects come from the arena while this exists.
pub(super) struct Spread(());

impl Spread {
    /// None without address space for the arena.
    pub(super) fn new() -> Option<Spread> {
        if !map() {
            return None;
        }
        SPREAD.fetch_add(1, Relaxed);
        Some(Spread(()))
    }
}

impl Drop for Spread {
    fn drop(&mut self) {
        SPREAD.fetch_sub(1, Relaxed);
    }
}

/// The arena's addresses.
pub(super) const fn arena() -> Range<u64> {
    ARENA as u64..ARENA as u64 + (1 << ARENA_BITS)
}

/// Entry points of the arena, which recordings pass over.
pub(super) fn entries() -> [u64; 2] {
    [take as *const () as u64, give as *const () as u64]
}

fn map() -> bool {
    locked(|| {
        if MAPPED.load(Relaxed) {
            return true;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping that replaces none; its addresses are only used by this module.
        let mapped = unsafe { libc::mmap(ARENA as *mut _, 1 << ARENA_BITS, access, flags, -1, 0) };
        MAPPED.store(mapped.addr() == ARENA, Relaxed);
        mapped.addr() == ARENA
    })
}

fn locked<T>(work: impl FnOnce() -> T) -> T {
    while BUSY.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
        spin_loop();
    }
    let result = work();
    BUSY.store(false, Release);
    result
}

/// The class of a layout; none if the object comes from the system.
fn class_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(LINE_BYTES).next_power_of_two();
    (bytes <= BLOCK_BYTES_MAX).then(|| (bytes / LINE_BYTES).ilog2() as usize)
}

/// Takes a block of a class; zero if there is none.
#[inline(never)]
fn take(class: usize) -> usize {
    locked(|| {
        let block = FREE[class].load(Relaxed);
        if block != 0 {
            // SAFETY: a free block holds a word, and no other thread uses it under the lock.
            FREE[class].store(unsafe { *(block as *const usize) }, Relaxed);
            return block;
        }
        let bytes = LINE_BYTES << class;
        let start = NEXT.load(Relaxed).next_multiple_of(bytes);
        if start + bytes > ARENA + (1 << ARENA_BITS) {
            return 0;
        }
        NEXT.store(start + bytes, Relaxed);
        start
    })
}

/// Frees a block of a class.
#[inline(never)]
fn give(block: usize, class: usize) {
    locked(|| {
        // SAFETY: the block is no longer in use, and has room for a word.
        unsafe { *(block as *mut usize) = FREE[class].load(Relaxed) };
        FREE[class].store(block, Relaxed);
    });
}

fn is_in_arena(block: *mut u8) -> bool {
    (block.addr() ^ ARENA) >> ARENA_BITS == 0
}

struct Lines;

#[global_allocator]
static ALLOCATOR: Lines = Lines;

impl Lines {
    #[cold]
    fn alloc_spread(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some(class) => take(class) as *mut u8,
            // SAFETY: the caller of `alloc` gave a layout that is not empty.
            None => unsafe { System.alloc(layout) },
        }
    }
}

// SAFETY: a block comes from the arena or from the system, and goes back to where its address says
// it came from, with the layout that it was allocated with. Blocks of the arena are as large and
// as aligned as their layout asks, since their size is a power of two that they are aligned to.
unsafe impl GlobalAlloc for Lines {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if SPREAD.load(Relaxed) > 0 {
            return self.alloc_spread(layout);
        }
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if SPREAD.load(Relaxed) > 0 && class_of(layout).is_some() {
            let block = self.alloc_spread(layout);
            if !block.is_null() {
                // SAFETY: the block has at least this size.
                unsafe { block.write_bytes(0, layout.size()) };
            }
            return block;
        }
        // SAFETY: the caller's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of_block(block, layout) {
            Some(class) => give(block.addr(), class),
            // SAFETY: the block came from the system.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !is_in_arena(block) {
            // SAFETY: the block came from the system.
            return unsafe { System.realloc(block, layout, size) };
        }
        let Ok(new) = Layout::from_size_align(size, layout.align()) else { return std::ptr::null_mut() };
        if class_of(new) == class_of(layout) {
            return block;
        }
        // SAFETY: the new block has `size` bytes and is another one than the old, which has
        // `layout.size()`.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                std::ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

/// The class of a block of the arena.
#[inline]
fn class_of_block(block: *mut u8, layout: Layout) -> Option<usize> {
    if is_in_arena(block) { class_of(layout) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_the_arena_share_no_line_and_go_back_to_it() {
        let spread = Spread::new().expect("address space");
        let boxes: Vec<Box<u16>> = (0..100).map(Box::new).collect();
        let mut lines: Vec<usize> = boxes.iter().map(|one| std::ptr::from_ref(&**one).addr()).collect();
        assert!(lines.iter().all(|at| at % LINE_BYTES == 0 && arena().contains(&(*at as u64))));
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), boxes.len());
        let mut grown: Vec<u8> = Vec::new();
        (0..10_000u32).for_each(|index| grown.push(index as u8));
        assert!(grown.as_ptr().addr().is_multiple_of(LINE_BYTES));
        drop(spread);
        // Blocks of the arena grow in the system's heap, and are freed later.
        grown.extend_from_slice(&[7; 100_000]);
        assert!(grown.iter().take(10_000).enumerate().all(|(index, byte)| *byte == index as u8));
        assert!(!arena().contains(&(grown.as_ptr().addr() as u64)));
        drop(boxes);
    }
}
