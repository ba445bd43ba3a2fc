//! Descriptors of the kernel that open images have.
//!
//! - A child of a fork closes those of its parent, and does not get its mappings. They hold the
//!   locks by which other processes see that the parent lives. As long as the child had them, no
//!   process would complete the calls and release the locks of a parent that was killed. Not
//!   covered are a fork while another thread opens, copies or closes an image, and a child with a
//!   [`View`](crate::View) of an image that is used in place.
//! - None is 0, 1 or 2. A program without standard output would print into the image.

use crate::size_limit::NoSignal;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr};

/// The most descriptors of an image.
const IMAGE_MAX: usize = 12;
const NONE: i32 = -1;

/// The descriptors of an image. Rows are never freed, so a child finds them without a lock.
struct Row {
    is_taken: AtomicBool,
    numbers: [AtomicI32; IMAGE_MAX],
    next: AtomicPtr<Row>,
}

static FIRST: AtomicPtr<Row> = AtomicPtr::new(null_mut());

fn rows() -> impl Iterator<Item = &'static Row> {
    // SAFETY: rows are never freed, and whole when they are linked.
    let row = |place: &AtomicPtr<Row>| unsafe { place.load(Acquire).as_ref::<'static>() };
    std::iter::successors(row(&FIRST), move |last| row(&last.next))
}

fn take_row() -> &'static Row {
    let free = |row: &&Row| row.is_taken.compare_exchange(false, true, AcqRel, Relaxed).is_ok();
    if let Some(row) = rows().find(free) {
        return row;
    }
    let new = Box::leak(Box::new(Row {
        is_taken: AtomicBool::new(true),
        numbers: [const { AtomicI32::new(NONE) }; IMAGE_MAX],
        next: AtomicPtr::new(FIRST.load(Acquire)),
    }));
    while let Err(first) = FIRST.compare_exchange(*new.next.get_mut(), new, AcqRel, Acquire) {
        *new.next.get_mut() = first;
    }
    new
}

/// Descriptors that a child of a fork closes while this exists.
pub(crate) struct Recorded(&'static Row);

impl Recorded {
    pub fn new(numbers: &[i32]) -> Recorded {
        debug_assert!(numbers.len() <= IMAGE_MAX, "{numbers:?}");
        let row = take_row();
        for (place, number) in row.numbers.iter().zip(numbers) {
            place.store(*number, Release);
        }
        Recorded(row)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.0.numbers.iter().for_each(|place| place.store(NONE, Release));
        self.0.is_taken.store(false, Release);
    }
}

/// Closes what the parent had recorded. For the child of a fork, whose other threads are gone.
pub(crate) fn close_inherited() {
    for place in rows().flat_map(|row| &row.numbers) {
        let number = place.swap(NONE, Relaxed);
        if number != NONE {
            // SAFETY: the owner in this process is never used or dropped after the fork.
            unsafe { libc::close(number) };
        }
    }
}

/// Descriptors that fill the free numbers up to 2.
struct Plugs(Vec<i32>);

impl Plugs {
    fn new() -> Plugs {
        let mut plugs = Plugs(Vec::new());
        loop {
            // A read or write of such a descriptor is EBADF, as of a closed one.
            // SAFETY: the path ends with a zero byte.
            let number = unsafe { libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
            if number == -1 {
                return plugs;
            }
            plugs.0.push(number);
            if number > 2 {
                return plugs;
            }
        }
    }
}

impl Drop for Plugs {
    fn drop(&mut self) {
        for number in &self.0 {
            // Another thread may have put something in its place (dup2). SAFETY: otherwise this
            // value opened it.
            unsafe {
                let flags = libc::fcntl(*number, libc::F_GETFL);
                if flags != -1 && flags & libc::O_PATH != 0 {
                    libc::close(*number);
                }
            }
        }
    }
}

/// Runs what opens descriptors, of which none is 0, 1 or 2, and makes files.
pub(crate) fn above_standard<R>(open: impl FnOnce() -> R) -> R {
    let (_plugs, _no_signal) = (Plugs::new(), NoSignal::new());
    open()
}
