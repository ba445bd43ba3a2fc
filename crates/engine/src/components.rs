//! The components of a thread and of a file system, each with the methods of one task. A call such
//! as `thread.allocator().allocate_blocks(…)` names the component in which to read on. A component
//! is one reference, so it costs nothing:
//!
//! - to the owner of the thread's slot, which reaches the DRAM region and other such components,
//!   but no call on names and directories;
//! - to the thread, for tasks that make such calls;
//! - to the two regions, without slots that are claimed, threads, and other processes.
//!
//! A component of a thread reaches its holder only by the field's name. One of the regions derefs
//! to them, which are four fields. [`Processes`](crate::Processes) has fields of its own.

use crate::fs::Thread;
use crate::regions::Regions;
use crate::slot_owner::SlotOwner;
use core::ops::Deref;
use pmem::{Direct, Memory};

macro_rules! components {
    ($holder:ident, $field:ident: $($(#[$doc:meta])* $component:ident $accessor:ident)*) => {
        $(
            $(#[$doc])*
            pub struct $component<'t, 'f, M: Memory = Direct> {
                pub(crate) $field: &'t $holder<'f, M>,
            }

            impl<M: Memory> Clone for $component<'_, '_, M> {
                #[inline(always)]
                fn clone(&self) -> Self {
                    *self
                }
            }

            impl<M: Memory> Copy for $component<'_, '_, M> {}
        )*

        impl<'f, M: Memory> $holder<'f, M> {
            $(
                $(#[$doc])*
                #[inline(always)]
                pub fn $accessor(&self) -> $component<'_, 'f, M> {
                    $component { $field: self }
                }
            )*
        }
    };
}

macro_rules! of_regions {
    ($($(#[$doc:meta])* $component:ident $accessor:ident)*) => {
        $(
            $(#[$doc])*
            pub struct $component<'f, M: Memory = Direct>(pub(crate) &'f Regions<M>);

            impl<M: Memory> Clone for $component<'_, M> {
                #[inline(always)]
                fn clone(&self) -> Self {
                    *self
                }
            }

            impl<M: Memory> Copy for $component<'_, M> {}

            impl<M: Memory> Deref for $component<'_, M> {
                type Target = Regions<M>;

                #[inline(always)]
                fn deref(&self) -> &Regions<M> {
                    self.0
                }
            }
        )*

        impl<M: Memory> Regions<M> {
            $(
                $(#[$doc])*
                #[inline(always)]
                pub fn $accessor(&self) -> $component<'_, M> {
                    $component(self)
                }
            )*
        }
    };
}

components! {
    SlotOwner, owner:

    /// Takes inodes, dentry lines, blocks and cachelets from the thread's shard or, if that has
    /// none, from what all threads share, and gives them back. See `alloc`.
    Allocator allocator

    /// Retires what was removed, and frees it once no thread can see it. See `recycle`.
    Recycler recycler

    /// Holds names in the global index and changes them. See `mindex`.
    NameIndex names

    /// Makes and finds the cachelets of files, counts references to them, and writes the property
    /// entries that persist them. See `cache`, `property` and `times`.
    Cachelets cachelets

    /// Reads and writes bodies and extended attributes of files. See `file`.
    Files files
}

components! {
    Thread, thread:

    /// Recovers the slot of a dead thread, which this thread has taken over. See `reap`.
    Reaper reaper

    /// Compacts the logs of directories, and evicts the names of unused ones. See
    /// `directory::compact` and `directory::evict`.
    Maintenance maintenance

    /// Renames: which names change, in which order, and what a crash leaves of it. See
    /// `directory::rename`.
    Renames renames
}

of_regions! {
    /// Makes a new DRAM region agree with the image: completes or rolls back what a crash
    /// interrupted, and counts what is in use. See `attach::recovery`.
    ImageRecovery recovery

    /// Provides memory and disk space ahead of their use, so that no store can fail. See
    /// `provide`.
    Provider provider

    /// Which blocks are in use, and what owns them. See `alloc::blocks`.
    BlockMap block_map
}
