//! Races: threads make concurrent calls on the same few names, and their answers are checked for
//! linearizability.
//!
//! A history consists of the calls of a few threads between two quiescent points: each call with
//! its start time, its end time and its answer. It passes if the calls can be ordered consistently
//! with these times such that a small [`model`] of a file system gives the same answers. Afterwards
//! the names are listed, which determines the final state.
//!
//! Two things are not linearizable, as on Linux:
//! - While a name is being created, a file may have one link more than names that can be found.
//!   Link counts are therefore checked only afterwards.
//! - While a name is being removed, the name can still be found, but its file gets no new name if
//!   this was its last one, and nothing can be created in its directory: see [`check`].
//!
//! The schedule is the machine's, so a seed does not reproduce a history; the report of a failed
//! history contains everything about it.

pub mod check;
pub mod model;
pub mod run;

pub use check::Call;
pub use model::{Action, Answer, Model};
pub use run::{Outcome, Races, races};
