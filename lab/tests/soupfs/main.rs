//! SoupFS: against a model, through crashes, and with defects injected into its memory accesses.

mod concurrent;
mod crash;
mod defects;
mod explore;
mod image;
mod machine;
mod model;
mod operations;
mod views;
