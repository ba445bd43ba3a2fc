//! Random schedules instead of the machine's. While one is on, another thread may continue at each
//! access to an atomic and each event of watched memory. See `crate::sync`.

use core::sync::atomic::Ordering;
use shuttle::sync::atomic::AtomicU32;
use std::cell::Cell;

/// An injected race, to check that schedules find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Race {
    /// A compare-and-swap is a load followed by a separate store.
    TornExchange,
    /// A thread that waits for a grace period does not see the pins.
    HiddenPins,
}

// All threads of a schedule are coroutines of one thread.
std::thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
    static INJECTED: Cell<Option<Race>> = const { Cell::new(None) };
    static NOW_NS: Cell<i64> = const { Cell::new(0) };
    /// The scheduler has no yield point of its own, but treats each access to its atomics as
    /// one.
    static INSTANT: AtomicU32 = const { AtomicU32::new(0) };
}

/// A point at which another thread may continue.
pub(crate) fn point() {
    if ON.get() {
        INSTANT.with(|instant| instant.load(Ordering::SeqCst));
    }
}

/// A point at which another thread should continue, because this one waits for it.
pub(crate) fn pause() {
    if ON.get() { shuttle::thread::yield_now() } else { core::hint::spin_loop() }
}

pub(crate) fn is_on() -> bool {
    ON.get()
}

pub(crate) fn is_injected(race: Race) -> bool {
    ON.get() && INJECTED.get() == Some(race)
}

/// The start of schedules: in the year 2100, later than all preparation.
const BEGIN_NS: i64 = 4_102_444_800_000_000_000;

/// A clock that advances at every call, so that a schedule is reproducible.
pub(crate) fn now_ns() -> Option<i64> {
    NOW_NS.set(NOW_NS.get() + 1000);
    ON.get().then(|| NOW_NS.get())
}

/// Scheduling is on while this lives.
pub(crate) struct On;

impl On {
    pub(crate) fn new(race: Option<Race>) -> On {
        NOW_NS.set(BEGIN_NS);
        INJECTED.set(race);
        ON.set(true);
        On
    }
}

impl Drop for On {
    fn drop(&mut self) {
        switch_off();
    }
}

/// Also called where a failed schedule left scheduling on.
pub(crate) fn switch_off() {
    ON.set(false);
}

/// Memory in which every store, flush, fence and read is such a point.
pub(crate) struct Scheduled;

impl pmem::Memory for Scheduled {
    const WATCHED: bool = true;
    fn stored(&self, _: u64, _: &[u8]) {
        point();
    }
    fn streamed(&self, _: u64, _: pmem::UserBytes<'_>) {
        point();
    }
    fn flushed(&self, _: u64, _: u64) {
        point();
    }
    fn fenced(&self) {
        point();
    }
    fn read(&self, _: u64, _: u64) {
        point();
    }
    fn reached(&self, _: u64) {
        point();
    }
}
