//! Operations on more processors than the machine has: the memory accesses of each are recorded and
//! replayed in virtual time.
//!
//! ```text
//!   record      runs a call as a copy of its code that writes down each instruction and registers
//!   events      the accesses that matter between processors: lines read and written, locked
//!               instructions, flushes, fences, locks acquired and released
//!   coherence   replays the events of 1 to 64 processors against a model of caches and locks
//!   calibrate   the costs on this machine: a line from memory or from another processor, a
//!               locked instruction, a flush and a fence
//!   places      names of memory areas, for reports
//! ```
//!
//! The recorded code is the production code: no instrumentation is compiled in, so there is no cost
//! without recording. Locks are not announced to the recorder; it recognises them by the accesses
//! to a word (see [`events`]).

pub mod calibrate;
pub mod coherence;
pub mod events;
pub mod named_memory;
pub mod record;
