//! stub
use crate::arguments::{CopyTree, Demo};
use anyhow::Result;
/// stub
pub fn run(_: &Demo) -> Result<()> {
    Ok(())
}
/// stub
pub fn copy_tree(_: &CopyTree) -> Result<()> {
    Ok(())
}
