//! Operations on more processors than there are: what each does to memory is recorded, and replayed in virtual time.
//!
//! ```text
//!   record      single-steps a call in this process: every instruction with the registers it found
//!   events      what of that matters between processors: lines read and written, locked instructions, flushes, fences, locks taken and left
//!   coherence   replays the events of 1 to 64 processors against a model of their caches and of the locks
//!   calibrate   what a line's way from memory and to another processor, a locked instruction, a flush and a fence cost on this machine
//!   places      whose line an address is, for people
//! ```
//!
//! The code that is recorded is the code that runs: nothing is compiled in for it, so nothing costs when nobody records. Locks are not told to the recorder either;
//! it recognises them by what is done to a word (see [`events`]).

pub mod calibrate;
pub mod coherence;
pub mod events;
pub mod places;
pub mod record;
