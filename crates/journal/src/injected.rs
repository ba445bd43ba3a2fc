//! Defects that tests inject, one at a time, to see that the explorer finds each.

use std::cell::Cell;

macro_rules! defects {
    ($($defect:ident),* $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Defect {
            $($defect),*
        }

        /// All of them.
        pub(crate) const DEFECTS: &[Defect] = &[$(Defect::$defect),*];
    };
}

defects! {
    PartialCommitsCount,
    ChainIgnored,
    ChecksumIgnored,
    TrimBeforeApply,
    FirstRunSkipped,
    ImageNotFlushed,
    FailedTrimForgotten,
    AppliedAfterTrim,
    HeaderNotFlushed,
    DrainedForgotten,
    ForgottenBeforeWritten,
    EndMovedBeforeFlush,
    CommitNotFlushed,
}

thread_local! {
    static INJECTED: Cell<Option<Defect>> = const { Cell::new(None) };
}

pub(crate) fn is_injected(defect: Defect) -> bool {
    INJECTED.get() == Some(defect)
}

/// Injects a defect in the calling thread; none: removes it.
pub(crate) fn inject(defect: Option<Defect>) {
    INJECTED.set(defect);
}
