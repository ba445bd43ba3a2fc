//! The components of a [`Caller`]: views of it, each with the calls of one kind. A component is the
//! reference to its caller, and derefs to it. It names a kind of call but keeps nothing out of
//! reach: most kinds use the thread, the credentials and each other.

use crate::caller::Caller;
use core::ops::Deref;
use pmem::{Direct, Memory};

macro_rules! components {
    ($($(#[$doc:meta])* $component:ident $accessor:ident)*) => {
        $(
            $(#[$doc])*
            pub struct $component<'c, 't, 'f, M: Memory = Direct>(pub(crate) &'c Caller<'t, 'f, M>);

            impl<M: Memory> Clone for $component<'_, '_, '_, M> {
                #[inline(always)]
                fn clone(&self) -> Self {
                    *self
                }
            }

            impl<M: Memory> Copy for $component<'_, '_, '_, M> {}

            impl<'t, 'f, M: Memory> Deref for $component<'_, 't, 'f, M> {
                type Target = Caller<'t, 'f, M>;

                #[inline(always)]
                fn deref(&self) -> &Caller<'t, 'f, M> {
                    self.0
                }
            }
        )*

        impl<'t, 'f, M: Memory> Caller<'t, 'f, M> {
            $(
                $(#[$doc])*
                #[inline(always)]
                pub fn $accessor(&self) -> $component<'_, 't, 'f, M> {
                    $component(self)
                }
            )*
        }
    };
}

components! {
    /// Finds the files of paths.
    Paths paths

    /// Opens and closes files.
    Opens opens

    /// Reads, writes, seeks, resizes and copies content.
    Data data

    /// Decides accesses by mode and access lists, and changes access lists.
    AccessLists access_lists

    /// Reads and changes extended attributes.
    Xattrs xattrs

    /// Reports what was done to watches.
    Reports reports
}
