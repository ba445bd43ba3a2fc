//! The mindex.
