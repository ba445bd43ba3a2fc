//! Death at a chosen step: see `crate::death`.

use std::boxed::Box;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

std::thread_local! {
    /// Remaining steps of this thread plus one; zero: it does not die.
    static LEFT: Cell<u64> = const { Cell::new(0) };
    static DEAD: Cell<bool> = const { Cell::new(false) };
    /// Action at the next step.
    static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

struct Death;

/// Runs an action at this thread's next step, before it.
pub(crate) fn at_next_step(meanwhile: impl FnOnce() + 'static) {
    MEANWHILE.set(Some(Box::new(meanwhile)));
}

/// Runs an action at the step of this thread that follows `steps` others.
pub(crate) fn at_step(steps: u64, meanwhile: impl FnOnce() + 'static) {
    at_next_step(move || match steps {
        0 => meanwhile(),
        _ => at_step(steps - 1, meanwhile),
    });
}

pub(crate) fn may_die_here() {
    if let Some(meanwhile) = MEANWHILE.take() {
        meanwhile();
    }
    let left = LEFT.get();
    if left > 0 {
        LEFT.set(left - 1);
        if left == 1 {
            DEAD.set(true);
            resume_unwind(Box::new(Death));
        }
    }
}

pub(crate) fn dead() -> bool {
    DEAD.get()
}

/// Runs `work` without counting its steps.
pub(crate) fn unharmed<R>(work: impl FnOnce() -> R) -> R {
    let left = LEFT.replace(0);
    let result = work();
    LEFT.set(left);
    result
}

/// Runs `work` and dies at its step number `step`, counted from zero; returns whether that step
/// was reached. A dead thread cannot be used again.
pub(crate) fn dies_at(step: u64, work: impl FnOnce()) -> bool {
    LEFT.set(step + 1);
    let result = catch_unwind(AssertUnwindSafe(work));
    LEFT.set(0);
    match result {
        Ok(()) => false,
        Err(cause) if cause.is::<Death>() => true,
        Err(cause) => resume_unwind(cause),
    }
}
