//! io_uring: the kernel's rings, with entries on files of the image.
//!
//! At io_uring_enter the library performs each entry that concerns the image as the call that it
//! stands for, and turns it into an operation without effect that completes with the result
//! (IORING_NOP_INJECT_RESULT). So the kernel stays the only producer of completions: their order,
//! their layout, links and the ring's eventfd are its own. All other entries stay as they are.
//!
//! A chain of linked entries is performed in order. Where an entry of the kernel precedes one of
//! the library, the library performs both, the former by the call that it stands for.
//!
//! Invariants
//! - Only io_uring_enter submits. A ring gets no thread of the kernel (SQPOLL): it looks as if
//!   that thread slept, so the program calls. Ways to a ring that this module does not see are
//!   refused.
//! - Tables of registered files hold placeholders of the image's files: see [`ring_files`].
//! - An entry is changed after it was performed, and has its content again when the kernel has
//!   taken it, unless the program has changed it meanwhile. One that the kernel has not taken
//!   stays changed: it is not performed again.
//! - A ring's lock is held from the look at an entry until the kernel has taken it.
//!
//! Decision: docs/decisions/run-rings.md, "Entries of io_uring become NOPs with a result".

mod buffers;
mod files;
mod operations;
mod selection;

use crate::abi::entry::{NATIVE, Next, Verdict, done};
use crate::abi::{sys, user_memory};
use crate::call::{Call, blocking_call, native_with};
use crate::descriptors::fd_numbers;
use crate::descriptors::marks::{self, host_verdict, kernel};
use crate::extensions::rings::entries::serve_entry;
use crate::extensions::rings::message_ring::Message;
use crate::extensions::rings::ring_files;
use crate::extensions::rings::ring_parameters::{Parameters, setup_flag};
use crate::large_table::{self, LargeTable};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};
use files::{List, Place};
use operations::{Buffer, CHANGING, ENTRY_BYTES, Entry, NO_OFFSET, Request, Words, in_kernel, is_open};
use posix::{Errno, Result};
use selection::Selection;

/// Rings that a process may have at a time.
const RINGS_MAX: usize = 4096;
/// Entries that one call of the kernel takes, if no chain is longer.
const BATCH: usize = 64;

/// A ring of this process.
struct Ring {
    /// The number of its descriptor, plus one. If that is no ring any more, the record is free.
    descriptor: AtomicU32,
    /// Where the program has mapped the ring, and its entries.
    queue: AtomicU64,
    entries: AtomicU64,
    /// The thread that submits: process and thread.
    lock: AtomicU64,
    /// Whether an entry has asked to wait for all before it: then the kernel may take entries
    /// later than when they are submitted.
    drains: AtomicU32,
    /// See [`buffers`].
    buffers: AtomicU64,
    buffer_count: AtomicU32,
    count: AtomicU32,
    flags: AtomicU32,
    head: AtomicU32,
    tail: AtomicU32,
    state: AtomicU32,
    array: AtomicU32,
}

// SAFETY: atomic integers.
unsafe impl large_table::Entry for Ring {}

static RINGS: LargeTable<Ring, RINGS_MAX> = LargeTable::unmapped();

/// The records in the order in which one for a descriptor is sought.
fn records(fd: u32) -> impl Iterator<Item = &'static Ring> {
    let rings = RINGS.entries();
    (0..rings.len()).map(move |index| &rings[(fd as usize + index) % RINGS_MAX])
}

fn ring(fd: u32) -> Option<&'static Ring> {
    if !marks::is_ring(fd) {
        return None;
    }
    let mut in_use = records(fd).take_while(|ring| ring.descriptor.load(Acquire) != 0);
    in_use.find(|ring| ring.descriptor.load(Relaxed) == fd + 1)
}

/// A record for a descriptor, which is marked as a ring.
fn claim(fd: u32) -> Option<&'static Ring> {
    RINGS.entries_for_change();
    let claimed = |ring: &&Ring| {
        let holder = ring.descriptor.load(Relaxed);
        let is_free = holder == 0 || !marks::is_ring(holder - 1);
        is_free && ring.descriptor.compare_exchange(holder, fd + 1, SeqCst, Relaxed).is_ok()
    };
    ring(fd).or_else(|| records(fd).find(claimed))
}

/// io_uring_setup(entries, parameters).
pub fn setup(call: &mut Call<'_>) -> Result<Verdict> {
    /// A feature of kernels whose operation without effect completes with any result, Linux 6.12.
    const FEATURE_MIN_TIMEOUT: u32 = 1 << 15;
    let address = call.frame.rsi;
    let wanted: Parameters = user_memory::read(address)?;
    let is_polled = wanted.flags & setup_flag::SQPOLL != 0;
    if is_polled && wanted.flags & setup_flag::NOT_POLLED != 0 {
        return Err(Errno::EINVAL);
    }
    if wanted.flags & !(setup_flag::KNOWN & !setup_flag::REGISTERED_FD_ONLY) != 0 {
        return Err(Errno::EINVAL);
    }
    fd_numbers::release_cached();
    let unpolled = Parameters { flags: wanted.flags & !setup_flag::POLLED, ..wanted };
    if is_polled {
        user_memory::write(address, &unpolled)?;
    }
    let verdict = native_with(call.frame, call.arguments());
    let Ok(fd) = u32::try_from(verdict.result) else {
        if is_polled {
            user_memory::write(address, &wanted)?;
        }
        return Ok(verdict);
    };
    let refused = |error| {
        marks::close_placeholder(fd);
        Err(error)
    };
    let made = user_memory::read::<Parameters>(address);
    let shown = made.map(|made| Parameters { flags: made.flags | wanted.flags, ..made });
    let (Ok(made), Ok(())) = (made, shown.and_then(|shown| user_memory::write(address, &shown))) else {
        return refused(user_memory::EFAULT);
    };
    if made.features & FEATURE_MIN_TIMEOUT == 0 {
        return refused(Errno(libc::ENOSYS));
    }
    marks::mark_ring(fd);
    let Some(ring) = claim(fd).filter(|_| marks::is_ring(fd)) else {
        fd_numbers::unmark(fd);
        return refused(Errno(libc::EMFILE));
    };
    // Files that are registered for this number belong to a ring that had it before.
    if let Ok(inside) = call.begin() {
        ring_files::release_all(&inside.session, fd);
    }
    buffers::forget(ring);
    ring.lock.store(0, Relaxed);
    ring.drains.store(0, Relaxed);
    let is_mapped = wanted.flags & setup_flag::NO_MMAP != 0;
    let place = |address: u64| if is_mapped { address } else { 0 };
    ring.queue.store(place(wanted.completion.address), Relaxed);
    ring.entries.store(place(wanted.submission.address), Relaxed);
    ring.count.store(made.entries, Relaxed);
    ring.flags.store(wanted.flags, Relaxed);
    ring.head.store(made.submission.head, Relaxed);
    ring.tail.store(made.submission.tail, Relaxed);
    ring.array.store(made.submission.array, Relaxed);
    ring.state.store(made.submission.flags, Relaxed);
    if is_mapped {
        ring.ask_for_calls();
    }
    Ok(verdict)
}

/// Maps a ring, or its entries, unless that is done, and records where they are.
#[cold]
pub fn record_mapping(call: &mut Call<'_>, verdict: Verdict) -> Verdict {
    const QUEUE: u64 = 0;
    const ENTRIES: u64 = 0x1000_0000;
    let [.., fd, offset] = call.arguments();
    let verdict = if verdict == NATIVE { native_with(call.frame, call.arguments()) } else { verdict };
    if verdict.next != Next::Done || (-4095..0).contains(&verdict.result) {
        return verdict;
    }
    if let Some(ring) = ring(fd as u32) {
        match offset {
            QUEUE => {
                ring.queue.store(verdict.result as u64, Release);
                ring.ask_for_calls();
            }
            ENTRIES => ring.entries.store(verdict.result as u64, Release),
            _ => {}
        }
    }
    verdict
}

/// io_uring_register(fd, operation, argument, count).
pub fn register(call: &mut Call<'_>) -> Result<Verdict> {
    const FILES: u32 = 2;
    const FILES_UPDATE: u32 = 6;
    const RESTRICTIONS: u32 = 11;
    const ENABLE_RINGS: u32 = 12;
    const FILES2: u32 = 13;
    const FILES_UPDATE2: u32 = 14;
    const RING_FDS: u32 = 20;
    const UNREGISTER_RING_FDS: u32 = 21;
    const RESIZE_RINGS: u32 = 33;
    /// From here on unknown to this library.
    const UNKNOWN: u32 = 36;
    let [fd, operation, argument, count, ..] = call.arguments();
    host_verdict(fd as u32)?;
    fd_numbers::release_cached();
    let (first, list) = match operation as u32 {
        RESTRICTIONS | RING_FDS | UNREGISTER_RING_FDS | RESIZE_RINGS | UNKNOWN.. => return Err(Errno::EINVAL),
        FILES => (0, List { address: argument, count: count as u32 }),
        FILES_UPDATE => {
            let [first, address]: [u64; 2] = user_memory::read(argument)?;
            (first, List { address, count: count as u32 })
        }
        FILES2 => {
            let [head, _, address]: [u64; 3] = user_memory::read(argument)?;
            (0, List { address, count: head as u32 })
        }
        FILES_UPDATE2 => {
            let [first, address, _, numbers]: [u64; 4] = user_memory::read(argument)?;
            (first, List { address, count: numbers as u32 })
        }
        files::UNREGISTER => {
            let verdict = native_with(call.frame, call.arguments());
            if verdict.result >= 0 {
                ring_files::release_all(&call.begin()?.session, fd as u32);
            }
            return Ok(verdict);
        }
        ENABLE_RINGS => {
            let verdict = native_with(call.frame, call.arguments());
            if let Some(ring) = ring(fd as u32).filter(|_| verdict.result >= 0) {
                ring.flags.fetch_and(!setup_flag::DISABLED, Relaxed);
            }
            return Ok(verdict);
        }
        _ => return buffers::register(call, operation as u32),
    };
    if ring(fd as u32).is_none() {
        return if list.holds_own() { Err(Errno::EOPNOTSUPP) } else { Ok(NATIVE) };
    }
    let is_whole = matches!(operation as u32, FILES | FILES2);
    let (frame, arguments) = (call.frame, call.arguments());
    files::put(call, fd as u32, (first as u32, list, is_whole), || native_with(frame, arguments).result).map(done)
}

/// io_uring_enter(fd, count, completions, flags, argument, bytes).
pub fn enter(call: &mut Call<'_>) -> Result<Verdict> {
    const GET_EVENTS: u32 = 1;
    const REGISTERED_RING: u32 = 1 << 4;
    let [fd, count, completions, flags, argument, bytes] = call.arguments();
    let flags = flags as u32;
    let count = count as u32;
    host_verdict(fd as u32)?;
    if flags & REGISTERED_RING != 0 {
        return Err(Errno::EINVAL);
    }
    let Some(ring) = ring(fd as u32) else {
        return Err(if is_open(fd as u32) { Errno::EOPNOTSUPP } else { Errno::EBADF });
    };
    fd_numbers::release_cached();
    let (is_polled, is_disabled) = (ring.has(setup_flag::SQPOLL), ring.has(setup_flag::DISABLED));
    if count == 0 && !is_polled || is_disabled {
        return Ok(NATIVE);
    }
    let submitted = match is_polled {
        true => submit_all(call, ring, fd as u32).map(|()| count)?,
        false => submit(call, ring, fd as u32, count)?,
    };
    if count == 0 {
        return Ok(NATIVE);
    }
    if submitted != count || flags & GET_EVENTS == 0 {
        return Ok(done(submitted.into()));
    }
    // SAFETY: the program's own call, which submits nothing more; the kernel checks the pointer.
    unsafe { blocking_call(libc::SYS_io_uring_enter, [fd, 0, completions, flags.into(), argument, bytes]) };
    Ok(done(submitted.into()))
}

/// Submits all entries, as a thread of the kernel would: it goes on behind one that is invalid.
fn submit_all(call: &mut Call<'_>, ring: &Ring, fd: u32) -> Result<()> {
    loop {
        let (head, tail) = ring.range()?;
        if head == tail || submit(call, ring, fd, tail.wrapping_sub(head))? == 0 {
            return Ok(());
        }
    }
}

/// A ring's lock, until it is dropped.
struct Held<'a>(&'a Ring);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.lock.store(0, Release);
    }
}

impl Ring {
    fn has(&self, flag: u32) -> bool {
        self.flags.load(Relaxed) & flag != 0
    }

    /// For a ring without the thread of the kernel that the program requested: has the program call
    /// io_uring_enter for its entries, as it must when that thread sleeps.
    fn ask_for_calls(&self) {
        const NEED_WAKEUP: u32 = 1;
        let address = self.queue.load(Relaxed) + u64::from(self.state.load(Relaxed));
        if !self.has(setup_flag::SQPOLL) || !address.is_multiple_of(4) {
            return;
        }
        if user_memory::check_writable(address, 4).is_ok() {
            // SAFETY: an aligned word of the ring, accessed just now.
            unsafe { &*(address as *const AtomicU32) }.fetch_or(NEED_WAKEUP, SeqCst);
        }
    }

    /// EBUSY in a signal handler of the thread that holds the lock.
    fn hold(&self) -> Result<Held<'_>> {
        let process = sys::process_id() as u32;
        let own = u64::from(process) << 32 | u64::from(sys::thread_id() as u32);
        loop {
            match self.lock.compare_exchange(0, own, Acquire, Relaxed) {
                Ok(_) => return Ok(Held(self)),
                Err(holder) if holder == own => return Err(Errno(libc::EBUSY)),
                // From before a fork: that thread is the parent's.
                Err(holder) if (holder >> 32) as u32 != process => {
                    if self.lock.compare_exchange(holder, own, Acquire, Relaxed).is_ok() {
                        return Ok(Held(self));
                    }
                }
                Err(_) => drop(kernel(libc::SYS_sched_yield, 0, 0, 0)),
            }
        }
    }

    /// Positions of the first entry that the kernel has not taken, and behind the last.
    fn range(&self) -> Result<(u32, u32)> {
        let queue = self.queue.load(Acquire);
        if queue == 0 || self.entries.load(Acquire) == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let head = user_memory::read(queue + u64::from(self.head.load(Relaxed)))?;
        let tail = user_memory::read(queue + u64::from(self.tail.load(Relaxed)))?;
        Ok((head, tail))
    }

    /// The address of the entry at a position. `None`: the program's array leads nowhere, and the
    /// kernel drops it.
    fn entry(&self, position: u32) -> Result<Option<u64>> {
        let (count, flags) = (self.count.load(Relaxed), self.flags.load(Relaxed));
        let slot = position & (count.wrapping_sub(1));
        let index = match flags & setup_flag::NO_ARRAY {
            0 => {
                let array = self.queue.load(Relaxed) + u64::from(self.array.load(Relaxed));
                user_memory::read::<u32>(array + 4 * u64::from(slot))?
            }
            _ => slot,
        };
        let bytes = if flags & setup_flag::LARGE_ENTRIES == 0 { ENTRY_BYTES } else { 2 * ENTRY_BYTES };
        Ok((index < count).then(|| self.entries.load(Relaxed) + bytes * u64::from(index)))
    }
}

/// A changed entry: its position and address, and the words that changed, before and after.
#[derive(Clone, Copy)]
struct Changed {
    position: u32,
    address: u64,
    before: Words,
    after: Words,
}

/// Changed entries of one batch. Those of a longer chain keep their change.
struct Batch {
    changed: [Changed; BATCH],
    count: usize,
    /// The selection of the only read into a selected buffer, which is never one of those.
    selection: Option<(Changed, Selection)>,
}

impl Batch {
    fn new() -> Batch {
        let none = Changed { position: 0, address: 0, before: [0; 3], after: [0; 3] };
        Batch { changed: [none; BATCH], count: 0, selection: None }
    }

    fn complete(&mut self, (position, address): (u32, u64), entry: &Entry, outcome: Outcome) -> Result<()> {
        let after = match outcome.is_invalid {
            true => entry.refusal(),
            false => entry.completion(outcome.result, outcome.is_shown),
        };
        let changed = Changed { position, address, before: entry.changing_words(), after };
        changed.apply()?;
        if let Some(place) = self.changed.get_mut(self.count) {
            *place = changed;
            self.count += 1;
        }
        Ok(())
    }

    /// Makes an entry a read of a selection.
    fn select(&mut self, (position, address): (u32, u64), entry: &Entry, selection: Selection) -> Result<()> {
        let after = entry.selection(selection.fd(), selection.length());
        let changed = Changed { position, address, before: entry.changing_words(), after };
        // Also if it cannot be applied: then it was not performed.
        let (changed, _) = self.selection.insert((changed, selection));
        changed.apply()
    }

    /// Restores the entries before `head`, which the kernel has taken. A read into a selected
    /// buffer that it has not taken was not performed.
    fn restore(&mut self, call: &mut Call<'_>, head: u32) {
        let is_taken = |changed: &&Changed| (head.wrapping_sub(changed.position) as i32) > 0;
        self.changed[..self.count].iter().filter(is_taken).for_each(Changed::undo);
        if let Some((changed, selection)) = self.selection.take() {
            changed.undo();
            selection.settle(call);
        }
    }
}

impl Changed {
    fn apply(&self) -> Result<()> {
        // The operation changes last: only then the others count.
        for (at, offset) in CHANGING.into_iter().enumerate().rev() {
            user_memory::write_words(self.address + offset, &[self.after[at]])?;
        }
        Ok(())
    }

    /// Restores each word unless the program has changed it.
    fn undo(&self) {
        for (at, offset) in CHANGING.into_iter().enumerate() {
            let address = self.address + offset;
            if !address.is_multiple_of(8) || user_memory::check_writable(address, 8).is_err() {
                continue;
            }
            // SAFETY: an aligned word of the program's memory, accessed just now.
            let word = unsafe { &*(address as *const AtomicU64) };
            let _ = word.compare_exchange(self.after[at], self.before[at], SeqCst, Relaxed);
        }
    }
}

/// Submits up to `count` entries; returns how many the kernel took.
fn submit(call: &mut Call<'_>, ring: &Ring, fd: u32, count: u32) -> Result<u32> {
    let _held = ring.hold()?;
    let mut submitted = 0;
    while submitted < count {
        let (head, tail) = ring.range()?;
        let available = tail.wrapping_sub(head).min(ring.count.load(Relaxed)).min(count - submitted);
        let mut batch = Batch::new();
        let prepared = prepare(call, (ring, fd), &mut batch, (head, available));
        // Not a blocking call: no signal handler runs while the lock is held.
        let result = prepared.map(|length| kernel(libc::SYS_io_uring_enter, fd.into(), length.into(), 0));
        batch.restore(call, ring.range().map_or(head, |range| range.0));
        let (length, result) = (prepared?, result?);
        let taken = match u32::try_from(result) {
            Ok(taken) => taken,
            Err(_) if submitted > 0 => break,
            Err(_) => return Err(Errno(-result as i32)),
        };
        submitted += taken;
        if taken != length || length == available {
            break;
        }
    }
    Ok(submitted)
}

/// Performs the library's entries among those from a position on; returns how many entries the
/// kernel shall take, which end with a chain.
fn prepare(
    call: &mut Call<'_>,
    (ring, fd): (&Ring, u32),
    batch: &mut Batch,
    (head, available): (u32, u32),
) -> Result<u32> {
    let mut chain = Chain::default();
    for index in 0..available {
        let position = head.wrapping_add(index);
        let Some(address) = ring.entry(position)? else { continue };
        let entry = Entry::read(address, fd)?;
        if entry.drains() {
            ring.drains.store(1, Relaxed);
        }
        let own_follows = || own_follows((ring, fd), position, available - index - 1);
        match chain.advance(call, (ring, fd, &entry), own_follows) {
            Step::Kernel => {}
            Step::Done(outcome) => batch.complete((position, address), &entry, outcome)?,
            Step::Selected(selection) => batch.select((position, address), &entry, selection)?,
        }
        if !entry.is_linked() {
            chain = Chain::default();
            if index as usize + 1 >= BATCH || batch.selection.is_some() {
                return Ok(index + 1);
            }
        }
    }
    Ok(available)
}

/// Whether an entry of the library follows in the chain of the entry at a position, which is linked
/// to the next.
fn own_follows((ring, fd): (&Ring, u32), position: u32, count: u32) -> bool {
    for index in 1..=count {
        let Ok(Some(address)) = ring.entry(position.wrapping_add(index)) else { return false };
        let Ok(entry) = Entry::read(address, fd) else { return false };
        if entry.request().is_own() {
            return true;
        }
        if !entry.is_linked() {
            return false;
        }
    }
    false
}

/// How an entry that the library performed completes.
#[derive(Clone, Copy)]
struct Outcome {
    result: i32,
    /// Ends a chain: also a read or write that is not complete.
    is_failure: bool,
    /// Whether the program gets the completion, if the entry's flags do not decide that.
    is_shown: Option<bool>,
    /// The kernel refuses the entry, and what that entails.
    is_invalid: bool,
}

impl Outcome {
    fn new(result: i32, is_failure: bool, is_shown: Option<bool>) -> Outcome {
        Outcome { result, is_failure, is_shown, is_invalid: false }
    }

    /// The outcome of a call that succeeds whole or fails.
    fn of(result: Result<i64>) -> Outcome {
        match result {
            Ok(result) => Outcome::new(result as i32, result < 0, None),
            Err(error) => Outcome::error(error),
        }
    }

    fn error(Errno(errno): Errno) -> Outcome {
        Outcome::new(-errno, true, None)
    }

    fn invalid() -> Outcome {
        Outcome { is_invalid: true, ..Outcome::error(Errno::EINVAL) }
    }

    /// The outcome of an entry behind one that failed. The kernel shows none if that one asked for
    /// none.
    fn cancelled(is_hidden: bool) -> Outcome {
        match is_hidden {
            true => Outcome::new(0, true, Some(false)),
            false => Outcome::error(Errno(libc::ECANCELED)),
        }
    }
}

/// A chain of linked entries, up to one of them.
#[derive(Default)]
struct Chain {
    /// An entry has failed, so the others are cancelled; and whether those have no completions.
    broken: Option<bool>,
    /// An entry runs in the kernel, perhaps for long.
    waits: bool,
    /// It has a first entry.
    started: bool,
}

impl Chain {
    /// Performs an entry.
    fn advance(
        &mut self,
        call: &mut Call<'_>,
        (ring, fd, entry): (&Ring, u32, &Entry),
        own_follows: impl FnOnce() -> bool,
    ) -> Step {
        if let Some(is_hidden) = self.broken {
            return Step::Done(Outcome::cancelled(is_hidden));
        }
        let has_started = core::mem::replace(&mut self.started, true);
        let step = match entry.request() {
            Request::KernelAtOnce => Step::Kernel,
            Request::Kernel => {
                self.waits |= entry.is_linked();
                replace(call, fd, entry);
                Step::Kernel
            }
            Request::Refused(error) => Step::Done(Outcome::error(error)),
            Request::Invalid => Step::Done(Outcome::invalid()),
            // It would run before what it waits for.
            request if self.waits && request.is_own() => Step::Done(Outcome::error(Errno::EOPNOTSUPP)),
            Request::OpenInto { number, arguments, place } => {
                Step::Done(Outcome::of(open_into(call, (fd, place), number, arguments)))
            }
            Request::Update { place, list } => Step::Done(Outcome::of(files::update(call, fd, place, list))),
            Request::Send { number, ring, place, data, is_shown } => {
                Step::Done(Outcome::of(send(call, number, (ring, place), is_shown.then_some(data))))
            }
            // The kernel may take it later, when the selection has ended.
            Request::Selected { .. } if has_started || ring.drains.load(Relaxed) != 0 => {
                Step::Done(Outcome::error(Errno::EOPNOTSUPP))
            }
            Request::Selected { fd, offset, length, flags } => {
                self.waits |= entry.is_linked();
                match Selection::of(call, fd, (offset, length), flags) {
                    Ok(Some(selection)) => Step::Selected(selection),
                    Ok(None) => Step::Kernel,
                    Err(error) => Step::Done(Outcome::error(error)),
                }
            }
            Request::Call { number, arguments, buffer, is_own } => {
                let is_needed = || entry.is_linked() && own_follows();
                let step = perform(call, entry, (number, arguments, buffer), (is_own, self.waits), is_needed);
                self.waits |= matches!(step, Step::Kernel) && entry.is_linked();
                step
            }
        };
        let is_failure = matches!(step, Step::Done(outcome) if outcome.is_failure);
        if is_failure && entry.is_linked() && !entry.is_hard_linked() {
            self.broken = Some(entry.skips_success());
        }
        step
    }
}

/// What becomes of an entry.
enum Step {
    /// It stays, for the kernel.
    Kernel,
    /// It was performed.
    Done(Outcome),
    /// The kernel reads this.
    Selected(Selection),
}

/// The kernel is about to perform an entry that may replace files of the ring's table.
fn replace(call: &mut Call<'_>, ring: u32, entry: &Entry) {
    let Some((first, count)) = entry.replaced() else { return };
    if let Ok(inside) = call.begin() {
        (0..count).for_each(|index| ring_files::release(&inside.session, ring, first.wrapping_add(index)));
    }
}

/// Opens a file into a ring's table, by way of a descriptor; returns the entry's result.
fn open_into(call: &mut Call<'_>, (ring, place): (u32, Place), number: i64, arguments: [u64; 6]) -> Result<i64> {
    let fd = descriptor(call, number, arguments)?;
    let result = files::put_opened(call, ring, place, fd);
    close(call, fd)?;
    result
}

/// Sends a registered file, by its number in the descriptor table, to another ring; then that ring
/// gets a completion with these data.
fn send(call: &mut Call<'_>, number: u32, (to, place): (u32, Place), data: Option<u64>) -> Result<i64> {
    if ring(to).is_none() {
        return Err(if marks::is_served(to) || is_open(to) { Errno::EOPNOTSUPP } else { Errno::EBADF });
    }
    let duplicate = [number.into(), libc::F_DUPFD_CLOEXEC as u64, 0, 0, 0, 0];
    let fd = descriptor(call, libc::SYS_fcntl, duplicate)?;
    let sent = files::send(call, to, place, fd);
    close(call, fd)?;
    let result = sent? as i32;
    if let Some(data) = data {
        call.context.of_extensions().message_ring.send(to, Message::Completion { data, result })?;
    }
    Ok(result.into())
}

/// Makes a descriptor by a call, in the kernel if it is not the library's.
fn descriptor(call: &mut Call<'_>, number: i64, arguments: [u64; 6]) -> Result<u32> {
    let result = match serve_entry(call, number, arguments)? {
        Some(result) => result,
        None => in_kernel(number, arguments),
    };
    u32::try_from(result).map_err(|_| Errno(-result as i32))
}

fn close(call: &mut Call<'_>, fd: u32) -> Result<()> {
    let arguments = [fd.into(), 0, 0, 0, 0, 0];
    if serve_entry(call, libc::SYS_close, arguments)?.is_none() {
        in_kernel(libc::SYS_close, arguments);
    }
    Ok(())
}

/// Performs an entry's call, in the kernel if an entry of the library waits for it.
fn perform(
    call: &mut Call<'_>,
    entry: &Entry,
    (number, mut arguments, buffer): (i64, [u64; 6], Buffer),
    (is_own, waits): (bool, bool),
    is_needed: impl FnOnce() -> bool,
) -> Step {
    let single = [arguments[1], arguments[2]];
    if buffer == Buffer::Single {
        (arguments[1], arguments[2]) = (single.as_ptr() as u64, 1);
    }
    let mut offsets = [arguments[1], arguments[3]];
    if buffer == Buffer::Offsets {
        for (at, offset) in [1, 3].into_iter().zip(&mut offsets) {
            arguments[at] = if *offset == NO_OFFSET { 0 } else { &raw mut *offset as u64 };
        }
    }
    let whole = entry.whole(buffer);
    let served = if is_own { serve_entry(call, number, arguments) } else { Ok(None) };
    let result = match served {
        Ok(Some(result)) => result,
        Ok(None) if !waits && is_needed() => in_kernel(number, arguments),
        Ok(None) => return Step::Kernel,
        Err(Errno(errno)) => i64::from(-errno),
    };
    let is_failure = result < 0 || whole.is_some_and(|whole| result as u64 != whole);
    // An incomplete one is no success.
    Step::Done(Outcome::new(result as i32, is_failure, is_failure.then_some(true)))
}
