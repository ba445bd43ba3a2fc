//! Extended attributes.

use crate::error::Result;
use crate::fs::{Node, Thread};
use pmem::Memory;

impl<M: Memory> Thread<'_, M> {
    /// Copies the value of attribute `name` into `value`; its length. `TooSmall` with the length if it does not fit, unless `value` is empty: then
    /// only the length is told.
    pub fn xattr(&self, _node: Node, _name: &[u8], _value: &mut [u8]) -> Result<usize> {
        todo!()
    }

    /// Sets an attribute: `create` fails with `Exists` if it is there, `replace` with `NoAttribute` if it is not.
    pub fn set_xattr(&self, _node: Node, _name: &[u8], _value: &[u8], _create: bool, _replace: bool) -> Result<()> {
        todo!()
    }

    /// Removes an attribute.
    pub fn remove_xattr(&self, _node: Node, _name: &[u8]) -> Result<()> {
        todo!()
    }

    /// Gives the names of all attributes to `each`.
    pub fn xattr_names(&self, _node: Node, _each: &mut dyn FnMut(&[u8])) -> Result<()> {
        todo!()
    }
}
