//! Samples of the campaigns that `torture` runs for hours.
//!
//! One program is built in a fraction of the time of many.

mod corpus;
mod crashes;
mod exhaustion;
mod hostile;
mod model;
mod races;
