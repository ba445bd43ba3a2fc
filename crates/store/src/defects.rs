//! Defects that tests inject, one at a time, to see that the model finds each.

/// A defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// A head names layers that are not in the store yet.
    HeadFirst,
    /// A sweep removes layers at once.
    NoGrace,
    /// A sweep does not announce itself in the head.
    SilentSweep,
    /// A merge takes the older block.
    OlderBlockWins,
    /// A writer goes on after another has taken over.
    EpochIgnored,
    /// A push on condition of a state goes on when another state is there.
    StateIgnored,
    /// The head is replaced whatever it is.
    Unconditional,
}

/// All of them.
#[cfg(test)]
pub const DEFECTS: &[Defect] = &[
    Defect::HeadFirst,
    Defect::NoGrace,
    Defect::SilentSweep,
    Defect::OlderBlockWins,
    Defect::EpochIgnored,
    Defect::StateIgnored,
    Defect::Unconditional,
];

#[cfg(test)]
thread_local! {
    static INJECTED: std::cell::Cell<Option<Defect>> = const { std::cell::Cell::new(None) };
}

/// Whether a defect is injected into the calling thread.
pub fn has(defect: Defect) -> bool {
    #[cfg(test)]
    return INJECTED.get() == Some(defect);
    #[cfg(not(test))]
    {
        let _ = defect;
        false
    }
}

/// Injects a defect into the calling thread; none: removes it.
#[cfg(test)]
pub fn inject(defect: Option<Defect>) {
    INJECTED.set(defect);
}
