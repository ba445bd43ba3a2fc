//! The linearizability check: whether a history can be explained by executing its calls one after
//! the other.

use super::model::{Action, Answer, Model};
use std::collections::HashSet;

/// A call of a history.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The calling thread.
    pub thread: usize,
    /// The call.
    pub what: Action,
    /// Its answer.
    pub answer: Answer,
    /// Start time; any clock that is the same for all threads.
    pub began: u64,
    /// End time.
    pub ended: u64,
}

/// Maximum number of calls in a history: they are bits of a word.
pub const CALLS_MAX: usize = 32;

/// Whether the calls of a history can be ordered such that they lead from state `before` to a state
/// that `is_end` accepts.
///
/// Searches as Wing and Gong do: the next call must be one that no remaining call precedes. States
/// that were reached before with the same set of completed calls are skipped.
pub fn is_linearizable(before: &Model, calls: &[Call], is_end: &dyn Fn(&Model) -> bool) -> bool {
    assert!(calls.len() <= CALLS_MAX, "a history of {} calls", calls.len());
    let mut seen = HashSet::new();
    search(before, calls, 0, is_end, &mut seen)
}

fn search(
    state: &Model,
    calls: &[Call],
    done: u32,
    is_end: &dyn Fn(&Model) -> bool,
    seen: &mut HashSet<(u32, Model)>,
) -> bool {
    let open = || calls.iter().enumerate().filter(|(index, _)| done & 1 << index == 0);
    let Some(earliest_end) = open().map(|(_, call)| call.ended).min() else { return is_end(state) };
    open().filter(|(_, call)| call.began <= earliest_end).any(|(index, call)| {
        let mut next = state.clone();
        let done = done | 1 << index;
        let mut fits = next.allows(call.what, call.answer);
        if !fits && sees_dying_directory(calls, call) {
            // The call changed nothing.
            next.clone_from(state);
            fits = true;
        }
        fits && seen.insert((done, next.clone())) && search(&next, calls, done, is_end, seen)
    })
}

/// Whether a call was refused because its directory, or the file to be linked, was being removed.
/// The refusal may come before the name is removed.
fn sees_dying_directory(calls: &[Call], call: &Call) -> bool {
    let may_be_dying = match call.what {
        Action::Make((directory, _), _) | Action::Rename(_, (directory, _), _) => directory == 1,
        Action::Link(_) => true,
        _ => false,
    };
    let removes = |other: &Call| {
        matches!(other.what, Action::Rmdir(_) | Action::Unlink(_) | Action::Rename(..))
            && other.answer == Answer::Done
            && other.began < call.ended
            && call.began < other.ended
    };
    may_be_dying && call.answer == Answer::Refused(engine::Error::NotFound) && calls.iter().any(removes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Error;
    use engine::format::FileKind;

    fn call(thread: usize, what: Action, answer: Answer, began: u64, ended: u64) -> Call {
        Call { thread, what, answer, began, ended }
    }

    fn passes(calls: &[Call]) -> bool {
        is_linearizable(&Model::new(10, 11), calls, &|_| true)
    }

    const MAKE: Action = Action::Make((0, 1), FileKind::Regular);
    const MADE: Answer = Answer::File(20, FileKind::Regular);
    const MISSED: Answer = Answer::Refused(Error::NotFound);

    #[test]
    fn calls_at_once_may_be_seen_in_either_order() {
        for answer in [MADE, MISSED] {
            assert!(passes(&[call(0, MAKE, MADE, 0, 10), call(1, Action::Lookup((0, 1)), answer, 5, 6)]));
        }
    }

    #[test]
    fn a_later_call_sees_earlier_changes() {
        assert!(!passes(&[call(0, MAKE, MADE, 0, 10), call(1, Action::Lookup((0, 1)), MISSED, 11, 12)]));
        assert!(!passes(&[call(0, MAKE, MADE, 5, 10), call(1, Action::Lookup((0, 1)), MADE, 0, 4)]));
    }

    #[test]
    fn one_name_is_made_once() {
        let again = Answer::File(21, FileKind::Regular);
        assert!(!passes(&[call(0, MAKE, MADE, 0, 10), call(1, MAKE, again, 0, 10)]));
        assert!(passes(&[call(0, MAKE, MADE, 0, 10), call(1, MAKE, Answer::Refused(Error::Exists), 0, 10)]));
    }

    #[test]
    fn what_was_seen_is_not_unseen() {
        let look = |answer, began| call(1, Action::Lookup((0, 1)), answer, began, began + 1);
        assert!(passes(&[call(0, MAKE, MADE, 0, 100), look(MISSED, 10), look(MADE, 20)]));
        assert!(!passes(&[call(0, MAKE, MADE, 0, 100), look(MADE, 10), look(MISSED, 20)]));
    }

    #[test]
    fn the_end_has_to_fit() {
        let calls = [call(0, MAKE, MADE, 0, 10)];
        assert!(!is_linearizable(&Model::new(10, 11), &calls, &|end| end.names[0][1].is_none()));
    }
}
