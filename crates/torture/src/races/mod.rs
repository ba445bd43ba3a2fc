//! Races: real threads do calls on the same few names at once, and what they were told is checked for linearizability.
//!
//! A history is what a few threads did between two quiet moments: each call with the moments of its beginning and its end, and its answer.
//! It passes if the calls can be put in an order that contradicts none of these moments and in which a small [`model`] of a file system gives the same
//! answers. After the history the names are listed, which pins down what the calls left.
//!
//! Two things are as on Linux, which is not linearizable in them either. While a name is being made, a file may have one link more than names that
//! can be found: numbers of links are looked at afterwards only. And while a name is being removed, the file that loses its last one gets no new one,
//! and in the directory nothing can be made, although the name can still be found: see [`check`].
//!
//! The schedule is the machine's own, so a history does not come back by its seed; but a history that failed says all that is to know.

pub mod check;
pub mod model;
pub mod run;

pub use check::Call;
pub use model::{Answer, Do, Model};
pub use run::{Outcome, Races, races};
