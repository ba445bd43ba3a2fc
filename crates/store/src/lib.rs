//! Images of DirectFS in object stores: S3, Google, Azure, or a directory.
//!
//! ```text
//!  image --(one moment, at rest)--> push --> layers, then head      sweep, merge: behind the head
//!    |      stamp: has it changed?    replica: pushes in one term
//!  file  <--(verified)------------- pull <-- head, then layers
//!  reads <--(verified)------------- lazy <-- head, then indexes, then blocks as they are used
//! ```
//!
//! A prefix of a store holds one image: a `head` that names states, and immutable layers of which
//! they consist. Used by the command only: programs under `run` have neither this crate nor its
//! runtime.
//!
//! Invariants
//! - Each change counts by one conditional replacement of the head (`head`).
//! - A reader verifies everything from the head on (`layer`).
//! - A command that is killed at any moment leaves the old state or the new one, whole (`push`).
//! - A sweep removes nothing that a kept state needs (`sweep`).
//!
//! What this relies on in a store: an object is written whole or not at all, a read after a write
//! finds it, and conditions are heeded. The format is in docs/format.md.

mod cache;
mod defects;
mod directory;
mod error;
mod head;
#[cfg(test)]
mod hostile_tests;
mod image;
mod layer;
mod lazy;
#[cfg(test)]
mod lazy_tests;
mod location;
mod merge;
#[cfg(test)]
mod model;
#[cfg(test)]
mod model_tests;
mod objects;
mod pull;
mod push;
mod replica;
mod session;
mod stamp;
mod sweep;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod writers_tests;

pub use cache::Cache;
pub use error::StoreError;
pub use head::{At, Head, State, is_tag};
pub use image::Source;
pub use lazy::{Lazy, Limits, Part, Say, Unread};
pub use location::{is_url, shown};
pub use objects::{Event, Watch};
pub use push::{Condition, PushOptions, Pushed};
pub use replica::Replica;
pub use session::{Cached, Opened, Store, seconds_now, this_writer};
pub use stamp::{Follower, Seen};
pub use sweep::Swept;
