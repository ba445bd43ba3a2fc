//! Every system behaves like a model in memory: random calls on both, with unmounts and dropped
//! caches in between.

use crate::common::{compare_with_model, small_options};
use lab::nova::Nova;
use lab::pmfs::Pmfs;
use lab::soupfs::SoupFs;
use lab::squirrelfs::SquirrelFs;
use lab::vfs::{ByVfsNames, DentryCache, Mindex, VfsOptions};
use pmem::Direct;

const IMAGE_BYTES: u64 = 32 << 20;

macro_rules! systems {
    ($($module:ident $physical:ty;)*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn conventional_does_what_the_model_does() {
                for seed in 0..6 {
                    compare_with_model::<$physical, _, DentryCache>(seed, || Direct, IMAGE_BYTES, small_options());
                }
            }

            #[test]
            fn byvfs_does_what_the_model_does() {
                for seed in 10..16 {
                    compare_with_model::<$physical, _, ByVfsNames>(seed, || Direct, IMAGE_BYTES, small_options());
                }
            }

            #[test]
            fn cachelet_does_what_the_model_does_with_and_without_the_quick_path() {
                for seed in 20..26 {
                    let options = VfsOptions { inode_quick_path: seed % 2 == 0, ..small_options() };
                    compare_with_model::<$physical, _, Mindex>(seed, || Direct, IMAGE_BYTES, options);
                }
            }

            #[test]
            fn caches_that_are_too_small_lose_nothing() {
                for seed in 30..33 {
                    let options = VfsOptions { files_max: 100, names_max: 100, ..small_options() };
                    compare_with_model::<$physical, _, DentryCache>(seed, || Direct, IMAGE_BYTES, options);
                }
            }
        }
    )*};
}

systems! {
    nova Nova<Direct>;
    pmfs Pmfs<Direct>;
    soupfs SoupFs<Direct>;
    squirrelfs SquirrelFs<Direct>;
}
