//! Slots of call sites that are found while the program runs: each site that traps has one.
//!
//! Invariant: a slot is claimed for one site and keeps it. All slots are written when they are
//! prepared; later only the word with a slot's return address changes. A program that loads others
//! has its slots written in its file: to write them copied 28 pages at each start.

use crate::abi::entry::{self, SLOT_BYTES, directfs_slots};
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// Distance of the instruction that performs calls from the start of the slot of a site that is
/// found later.
pub const NATIVE: i64 = 12;
/// Distance between the two instructions that perform calls in the slot of a site that is found
/// later.
pub const NATIVE_OF_CHILDREN: u64 = 8;

/// Maximum number of sites in a program. A program that the library loads leaves all slots to
/// them.
pub const SITES_MAX: usize = if cfg!(feature = "loader") { entry::SLOTS } else { 1024 };

/// The return address of each slot: the address after the site's instruction. Zero: the slot is
/// free; [`RELEASED`]: it was in use.
pub static BACK: [AtomicU64; SITES_MAX] = [const { AtomicU64::new(0) }; SITES_MAX];
/// In place of the address of a site that is gone.
const RELEASED: u64 = 1;
/// The first slot, and the number of slots: zero until they are prepared.
static SLOTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// Held by the thread that prepares them.
static IS_PREPARING: AtomicBool = AtomicBool::new(false);
/// Whether a library has sites.
pub static HAS_SITES: AtomicBool = AtomicBool::new(false);

/// Whether a library has sites, so that its code raises SIGSEGV.
pub fn has_sites() -> bool {
    HAS_SITES.load(Relaxed)
}

/// For the constructor: slots from `first` on are free. They begin a page.
pub fn set_first(first: usize) {
    SLOTS[0].store(first, Relaxed);
}

/// In the child of a fork: the thread that was preparing them is not there.
pub fn begin_in_child() {
    IS_PREPARING.store(false, Relaxed);
}

/// Prepares the slots by `fill`, unless they are; false if that is not possible. `fill` writes the
/// slots from its argument on, and returns their number.
pub fn prepare(fill: impl FnOnce(usize) -> Option<usize>) -> bool {
    if SLOTS[1].load(Acquire) != 0 {
        return true;
    }
    while IS_PREPARING.swap(true, AcqRel) {
        core::hint::spin_loop();
    }
    if SLOTS[1].load(Acquire) == 0
        && let Some(count) = fill(SLOTS[0].load(Relaxed))
    {
        SLOTS[1].store(count, Release);
    }
    IS_PREPARING.store(false, Release);
    SLOTS[1].load(Acquire) != 0
}

/// Where a call that creates a child in shared memory is performed, if `native` performs calls for
/// a site that is not one of the C library: the child prepares itself there.
pub fn native_of_children(native: u64) -> Option<u64> {
    let first = slot_address(0) as u64;
    let slots = first..first + (SLOTS[1].load(Acquire) * SLOT_BYTES) as u64;
    slots.contains(&native).then_some(native + NATIVE_OF_CHILDREN)
}

/// The address of a slot.
pub fn slot_address(index: usize) -> i64 {
    (&raw const directfs_slots as usize + (SLOTS[0].load(Relaxed) + index) * SLOT_BYTES) as i64
}

/// The search for a site begins at one of so many slots: programs have few sites, and each page of
/// [`BACK`] costs two page faults.
const FIRST_SLOTS: usize = 256;

/// The indices of slots in the order in which a site may have one.
fn candidates(back: u64) -> impl Iterator<Item = usize> {
    let count = SLOTS[1].load(Acquire);
    let start = (back.wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize >> 32) % FIRST_SLOTS;
    (0..count).map(move |step| (start + step) % count)
}

/// The slot of a site.
pub fn find(back: u64) -> Option<usize> {
    candidates(back)
        .map(|index| (index, BACK[index].load(Acquire)))
        .take_while(|&(_, found)| found != 0)
        .find(|&(_, found)| found == back)
        .map(|(index, _)| index)
}

/// Claims a slot for a site that has none. Another thread may claim one for it at the same time;
/// either serves.
pub fn claim_slot(back: u64) -> Option<usize> {
    candidates(back).find(|&index| {
        let found = BACK[index].load(Acquire);
        found <= RELEASED && BACK[index].compare_exchange(found, back, AcqRel, Acquire).is_ok()
    })
}

/// Claims a slot for a site of a library, by its return address; false if there is none.
pub fn claim(back: u64) -> bool {
    find(back).or_else(|| claim_slot(back)).is_some()
}

/// Releases the slots of sites in a range that is being mapped again.
pub fn release(addresses: &Range<usize>) {
    for back in BACK.iter().take(SLOTS[1].load(Acquire)) {
        if addresses.contains(&(back.load(Relaxed) as usize)) {
            back.store(RELEASED, Release);
        }
    }
}
