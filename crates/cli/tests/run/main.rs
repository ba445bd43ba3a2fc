//! `directfs run` with real programs.
//!
//! `launching`: how programs start and end. `programs`: what they do, compared with the same on tmpfs.

#[path = "../support/mod.rs"]
mod support;

mod launching;
mod programs;
mod tree;
