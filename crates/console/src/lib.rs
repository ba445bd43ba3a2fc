//! What the commands of `directfs` and the programs that measure it share: output on a terminal,
//! units, interrupts, and mounts with their servers.

#[macro_use]
pub mod output;

pub mod asking;
pub mod images;
pub mod interrupt;
pub mod mounts;
pub mod screen;
pub mod server;
pub mod terminal;
pub mod units;
