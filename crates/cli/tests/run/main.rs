//! `directfs run` with real programs.
//!
//! - `launching`: how programs start and end
//! - `programs`: what they do, compared with the same on tmpfs
//! - `outsiders`: those into which nothing can be loaded
//! - `cache`: where the preload library comes from
//! - `storm`: those that are killed
//! - `cut`: images that are truncated under them
//! - `sharing`: copies without copying
//! - `neighbours`: other users, namespaces, and copies of an image
//! - `figures`: what calls cost

#[path = "../support/mod.rs"]
mod support;

mod cache;
mod cut;
mod figures;
mod launching;
mod neighbours;
mod outsiders;
mod programs;
mod sharing;
mod storm;
mod tree;
