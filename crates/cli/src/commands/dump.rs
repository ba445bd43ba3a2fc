//! `directfs dump`: a file of an image in words, by crate `fsck`.
