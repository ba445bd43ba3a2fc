//! What all physical file systems of the lab share: the superblock, pointers that are live for one
//! mount, lists of free blocks, the blocks of a file, and shard numbers.

mod blocks;
mod extents;
mod nv_pointer;
mod shard;
mod superblock;

pub use blocks::{BlockRange, FreeBlocks};
pub use extents::Extents;
pub use nv_pointer::NvPointer;
pub use shard::{pin_shard, shard};
pub use superblock::{
    FIRST_FREE, FORMAT_VERSION, IDENTITY_BYTES, Identity, PARAMETERS, Superblock, System, format, identify, leave,
    open, record_vfs, recorded_vfs,
};
