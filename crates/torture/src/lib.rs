//! Fault tests: power failures at every point of every operation, killed processes, races, random
//! calls, and hostile images.
//!
//! A [`workload`] prepares a small file system and runs one or two operations from the
//! [`catalogue`] on recorded memory. For every fence and for the end, the [`explore`]r then builds
//! the images that a power failure could have left. It lets the engine recover each, and asks the
//! [`oracle`] whether the tree ([`dump`]) is the one before the operation or the one after it. Then
//! it uses the file system, detaches it, checks every invariant, and also cuts the power inside
//! recoveries.
//!
//! What a workload stores, flushes and fences is seen in two ways ([`recording::Source`]): by the
//! recorder that the engine calls, and by the [`instructions`] that the processor executes.
//!
//! An explorer without findings proves something only if it can find defects: the injected defects
//! ([`injected`]) show that it does.
//!
//! Every failure has an id that reproduces it: the workload and, after each `@`, the state that a
//! crash left.

pub mod agreement;
pub mod campaign;
pub mod catalogue;
pub mod dump;
pub mod explore;
pub mod hostile;
pub mod injected;
pub mod instructions;
pub mod line_kinds;
pub mod machine;
pub mod model;
pub mod oracle;
pub mod races;
mod random;
pub mod recording;
pub mod stepper;
pub mod storm;
pub mod test_thread;
pub mod workload;
