//! SoupFS: against a model, through crashes, and with defects planted into what it does to the memory.

mod concurrent;
mod crash;
mod defects;
mod explore;
mod image;
mod machine;
mod model;
mod operations;
mod views;
