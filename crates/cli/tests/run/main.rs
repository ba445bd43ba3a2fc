//! `directfs run` with real programs.
//!
//! - `launching`: how programs start and end
//! - `programs`: what they do, compared with the same on tmpfs
//! - `fuse_programs`: those into which nothing can be loaded
//! - `cache`: where the preload library comes from
//! - `storm`: those that are killed
//! - `truncation`: images that are truncated under them
//! - `sharing`: copies without copying
//! - `neighbours`: other users, namespaces, and copies of an image
//! - `figures`: what calls cost

#[path = "../support/mod.rs"]
mod support;

mod cache;
mod figures;
mod fuse_programs;
mod launching;
mod neighbours;
mod programs;
mod sharing;
mod storm;
mod tree;
mod truncation;
