//! Hidden descriptors that a child in its parent's memory has at other numbers than that memory
//! says.
//!
//! Such a child (vfork, posix_spawn) shares the memory with its parent, but has its own table of
//! descriptors. If its program takes the number of a hidden descriptor, the descriptor moves in the
//! child's table only, and what the memory says stays true for the parent. The move is recorded
//! here, and whatever is about to use a hidden descriptor asks for its number in this process.
//!
//! Invariants
//! - Only the child itself adds and changes its moves. Its parent removes them when it resumes, and
//!   a child of that child, which has a copy of the memory, makes them its own.
//! - Without moves a question costs one load.
//!
//! Example: glusterd calls `dup2(0, n)` for all `n`. *Rejected:* moving the parent's descriptor
//! (its table cannot be reached); hiding the numbers in /proc/self/fd (other programs count up to
//! the limit). A child that keeps all numbers up to a hard limit open gets EBUSY for the last ones.

use core::sync::atomic::AtomicI32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Moves at a time: six of each of some children.
const MOVES_MAX: usize = 48;
/// In place of a process: the move is being written or removed.
const CHANGING: i32 = -1;

/// Where a child has a descriptor.
struct Move {
    /// The child; zero: no move.
    process: AtomicI32,
    /// The number that the memory says.
    usual: AtomicI32,
    /// The child's number.
    own: AtomicI32,
}

static MOVES: [Move; MOVES_MAX] =
    [const { Move { process: AtomicI32::new(0), usual: AtomicI32::new(0), own: AtomicI32::new(0) } }; MOVES_MAX];
/// Moves recorded.
static COUNT: AtomicI32 = AtomicI32::new(0);

fn this_process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// The moves of a process.
fn moves_of(process: i32) -> impl Iterator<Item = &'static Move> {
    MOVES.iter().filter(move |moved| moved.process.load(Acquire) == process)
}

/// Whether there are any.
#[inline(always)]
pub fn are_any() -> bool {
    COUNT.load(Acquire) != 0
}

/// The number of a hidden descriptor in this process.
#[inline(always)]
pub fn own(usual: i32) -> i32 {
    if are_any() { find_own(usual) } else { usual }
}

#[cold]
fn find_own(usual: i32) -> i32 {
    let moved = moves_of(this_process()).find(|moved| moved.usual.load(Relaxed) == usual);
    moved.map_or(usual, |moved| moved.own.load(Relaxed))
}

/// The number that the memory says of the hidden descriptor that this process has at a number.
pub fn usual(own: i32) -> i32 {
    let moved = moves_of(this_process()).find(|moved| moved.own.load(Relaxed) == own);
    moved.map_or(own, |moved| moved.usual.load(Relaxed))
}

/// Whether this process has something hidden at a number that is hidden in some process of this
/// memory.
#[inline(always)]
pub fn is_hidden_here(fd: i32) -> bool {
    !are_any() || find_hidden(fd)
}

#[cold]
fn find_hidden(fd: i32) -> bool {
    let process = this_process();
    if moves_of(process).any(|moved| moved.own.load(Relaxed) == fd) {
        return true;
    }
    let is_taken = moves_of(process).any(|moved| moved.usual.load(Relaxed) == fd);
    let is_of_another = MOVES.iter().any(|moved| moved.process.load(Acquire) > 0 && moved.own.load(Relaxed) == fd);
    !is_taken && !is_of_another
}

/// Records that this process has a descriptor at another number. Returns its number until now, or
/// `None` if there is no room for the record.
pub fn record(usual: i32, own: i32) -> Option<i32> {
    let process = this_process();
    if let Some(moved) = moves_of(process).find(|moved| moved.usual.load(Relaxed) == usual) {
        return Some(moved.own.swap(own, Relaxed));
    }
    let is_free = |moved: &&Move| moved.process.compare_exchange(0, CHANGING, AcqRel, Relaxed).is_ok();
    let moved = MOVES.iter().find(is_free)?;
    moved.usual.store(usual, Relaxed);
    moved.own.store(own, Relaxed);
    COUNT.fetch_add(1, AcqRel);
    moved.process.store(process, Release);
    Some(usual)
}

/// Removes the moves of a process, and passes each (usual, own number) to `each`.
pub fn remove(process: i32, mut each: impl FnMut(i32, i32)) {
    for moved in moves_of(process) {
        let (usual, own) = (moved.usual.load(Relaxed), moved.own.load(Relaxed));
        moved.process.store(0, Release);
        COUNT.fetch_sub(1, AcqRel);
        each(usual, own);
    }
}

/// In a new memory: removes the moves of all processes, which are not in it.
pub fn remove_all(mut each: impl FnMut(i32, i32)) {
    for moved in &MOVES {
        if moved.process.swap(0, AcqRel) > 0 {
            each(moved.usual.load(Relaxed), moved.own.load(Relaxed));
        }
    }
    COUNT.store(0, Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test, because the table is one of the process.
    #[test]
    fn a_moved_descriptor_is_hidden_at_its_own_number_and_known_by_its_usual_one() {
        assert_eq!((own(1000), usual(1005), is_hidden_here(1000)), (1000, 1005, true));
        assert_eq!(record(1000, 1005), Some(1000));
        assert_eq!((own(1000), usual(1005), own(1001)), (1005, 1000, 1001));
        assert_eq!([1000, 1001, 1005].map(is_hidden_here), [false, true, true]);
        assert_eq!(record(1000, 1006), Some(1005), "its number until now");
        assert_eq!((own(1000), usual(1006)), (1006, 1000));
        // One of another process: here its number is the program's.
        let other = MOVES.iter().find(|moved| moved.process.load(Relaxed) == 0).unwrap();
        other.usual.store(1000, Relaxed);
        other.own.store(2000, Relaxed);
        other.process.store(i32::MAX, Relaxed);
        COUNT.fetch_add(1, Relaxed);
        assert_eq!((own(1000), is_hidden_here(2000)), (1006, false));
        let mut removed = Vec::new();
        remove(this_process(), |usual, own| removed.push((usual, own)));
        assert_eq!(removed, [(1000, 1006)]);
        assert!(are_any() && is_hidden_here(1000) && !is_hidden_here(2000));
        remove_all(|usual, own| removed.push((usual, own)));
        assert_eq!(removed, [(1000, 1006), (1000, 2000)]);
        assert!(!are_any());
        for fd in 0..MOVES_MAX as i32 {
            assert!(record(fd, fd + 100).is_some());
        }
        assert_eq!(record(99, 98), None, "there is no room");
        remove_all(|_, _| {});
    }
}
