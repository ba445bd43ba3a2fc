//! `directfs dump`: a file of an image in words, by crate `fsck`.
use crate::arguments::Dump;
use anyhow::Result;
/// stub
pub fn run(_: &Dump) -> Result<()> {
    Ok(())
}
