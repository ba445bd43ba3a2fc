//! Cuts the power at every instant of every operation, and looks whether the file system survives.
//!
//! A [`workload`] furnishes a small file system and does one or two operations from the [`catalogue`] while the memory is
//! watched. The [`explore`]r then makes the images that a power cut could have left, at every fence and at the end; lets
//! the engine recover each; and asks the [`oracle`] whether the tree ([`dump`]) is the one before the operation or the one after
//! it. Then it uses the file system, leaves it, has every invariant checked, and cuts the power inside of recoveries too.
//!
//! An explorer that finds nothing proves nothing unless it is able to find: [`planted`] defects show that.
//!
//! Whatever fails has an id that brings it back: the workload and, after each `@`, the state that a crash left.

pub mod campaign;
pub mod catalogue;
pub mod dump;
pub mod explore;
pub mod hand;
pub mod hostile;
pub mod machine;
pub mod model;
pub mod oracle;
pub mod places;
pub mod planted;
pub mod races;
pub mod storm;
pub mod workload;
