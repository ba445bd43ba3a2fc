//! Cuts the power at every instant of every operation, and looks whether the file system survives.
pub mod catalogue;
pub mod dump;
pub mod explore;
pub mod hand;
pub mod machine;
pub mod oracle;
pub mod planted;
pub mod workload;
