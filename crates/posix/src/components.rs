//! The components of a [`Caller`], each with the calls of one kind. A component touches what its
//! fields name. Only those that take paths hold the caller, with its caches of directories.

use crate::caller::Caller;
use crate::credentials::Credentials;
use engine::Thread;
use pmem::{Direct, Memory};
use tables::watch::Reports;

macro_rules! components {
    ($($(#[$doc:meta])* $component:ident $accessor:ident [$($lifetime:lifetime)*] $caller:ident:
        { $($field:ident: $type:ty = $value:expr),* })*) => {
        $(
            $(#[$doc])*
            pub struct $component<$($lifetime,)* M: Memory = Direct> {
                $(pub(crate) $field: $type,)*
            }

            impl<$($lifetime,)* M: Memory> Clone for $component<$($lifetime,)* M> {
                #[inline(always)]
                fn clone(&self) -> Self {
                    *self
                }
            }

            impl<$($lifetime,)* M: Memory> Copy for $component<$($lifetime,)* M> {}

            impl<'t, 'f, M: Memory> Caller<'t, 'f, M> {
                $(#[$doc])*
                #[inline(always)]
                pub fn $accessor<'c>(&'c self) -> $component<$($lifetime,)* M> {
                    let $caller = self;
                    $component { $($field: $value),* }
                }
            }
        )*
    };
}

components! {
    /// Finds the files of paths.
    Paths paths ['c 't 'f] caller: { caller: &'c Caller<'t, 'f, M> = caller }

    /// Opens and closes files.
    Opens opens ['c 't 'f] caller: { caller: &'c Caller<'t, 'f, M> = caller }

    /// Reads, writes, seeks, resizes and copies content.
    Data data ['c 'f] caller:
        { thread: &'c Thread<'f, M> = caller.thread, credentials: &'c Credentials<'c> = &caller.credentials }

    /// Reads and changes extended attributes.
    Xattrs xattrs ['c 'f] caller:
        { thread: &'c Thread<'f, M> = caller.thread, credentials: &'c Credentials<'c> = &caller.credentials }

    /// Decides accesses by mode and access lists, and changes access lists.
    Permissions permissions ['c 'f] caller:
        { thread: &'c Thread<'f, M> = caller.thread, credentials: &'c Credentials<'c> = &caller.credentials }
}

impl<'f, M: Memory> Caller<'_, 'f, M> {
    /// Reports what was done to watches.
    #[inline(always)]
    pub(crate) fn reports(&self) -> Reports<'_, 'f, M> {
        Reports { thread: self.thread }
    }
}
