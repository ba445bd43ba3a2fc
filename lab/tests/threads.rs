//! Threads at the same names, with caches too small for all of them, and dropped caches now and
//! then.

use crate::common::{Image, Random, any_call, mkfs, small_options, tree_of};
use engine::format::FileKind;
use lab::calls::Calls;
use lab::nova::Nova;
use lab::physical::PhysicalFs;
use lab::pmfs::Pmfs;
use lab::squirrelfs::SquirrelFs;
use lab::vfs::{ByVfsNames, DentryCache, Mindex, Names, Vfs, VfsOptions};
use pmem::Direct;
use posix::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

const THREADS: u64 = 4;
const CALLS: u64 = 4000;

fn tight() -> VfsOptions {
    VfsOptions { files_max: 200, names_max: 200, ..small_options() }
}

/// Of concurrent creates or removals of a name exactly one succeeds.
fn names_are_made_and_removed_by_one<P: PhysicalFs<Memory = Direct>, N: Names<P>>(options: VfsOptions) {
    let image = Image::new(64 << 20);
    mkfs::<P, _>(&image, Direct);
    let vfs = Vfs::<P, N>::mount(image.region(Direct), options).unwrap();
    vfs.mkdir(b"/shared", 0o755).unwrap();
    let balance: Vec<AtomicI64> = (0..40).map(|_| AtomicI64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (vfs, balance) = (&vfs, &balance);
            scope.spawn(move || {
                let mut random = Random(thread);
                for _ in 0..CALLS {
                    let index = random.below(40);
                    let path = format!("/shared/{index}");
                    let path = path.as_bytes();
                    match random.below(5) {
                        0 | 1 => match vfs.create(path, 0o644) {
                            Ok(()) => drop(balance[index as usize].fetch_add(1, Relaxed)),
                            Err(errno) => assert_eq!(errno, Errno::EEXIST),
                        },
                        2 | 3 => match vfs.unlink(path) {
                            Ok(()) => drop(balance[index as usize].fetch_sub(1, Relaxed)),
                            Err(errno) => assert_eq!(errno, Errno::ENOENT),
                        },
                        _ => match vfs.stat(path) {
                            Ok(found) => assert_eq!(found.kind, FileKind::Regular),
                            Err(errno) => assert_eq!(errno, Errno::ENOENT),
                        },
                    }
                    if random.below(500) == 0 {
                        vfs.drop_caches().unwrap();
                    }
                }
            });
        }
    });
    for (index, balance) in balance.iter().enumerate() {
        let exists = vfs.stat(format!("/shared/{index}").as_bytes()).is_ok();
        assert_eq!(balance.load(Relaxed), i64::from(exists), "/shared/{index}");
    }
    vfs.unmount().unwrap();
}

/// All calls concurrently. The resulting tree is consistent, and unchanged after a mount.
fn all_calls_at_once_leave_a_tree_that_makes_sense<P: PhysicalFs<Memory = Direct>, N: Names<P>>(options: VfsOptions) {
    let image = Image::new(64 << 20);
    mkfs::<P, _>(&image, Direct);
    let vfs = Vfs::<P, N>::mount(image.region(Direct), options).unwrap();
    for directory in ["/a", "/b", "/a/c", "/b/d"] {
        vfs.mkdir(directory.as_bytes(), 0o755).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let vfs = &vfs;
            scope.spawn(move || {
                let mut random = Random(thread * 77);
                for _ in 0..CALLS {
                    any_call(vfs, &mut random);
                    if random.below(1000) == 0 {
                        vfs.drop_caches().unwrap();
                    }
                }
            });
        }
    });
    let tree = tree_of(&vfs);
    let mut subdirectories: BTreeMap<String, u32> = BTreeMap::new();
    for (path, _) in tree.iter().filter(|(path, seen)| seen.kind == FileKind::Directory && *path != "/") {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        *subdirectories.entry(if parent.is_empty() { "/".into() } else { parent.into() }).or_default() += 1;
    }
    for (path, seen) in tree.iter().filter(|(_, seen)| seen.kind == FileKind::Directory) {
        assert_eq!(seen.links, 2 + subdirectories.get(path).copied().unwrap_or(0), "links of {path}");
    }
    vfs.unmount().unwrap();
    let vfs = Vfs::<P, N>::mount(image.region(Direct), options).unwrap();
    assert_eq!(tree_of(&vfs), tree);
    vfs.unmount().unwrap();
}

/// Names of unused directories are evicted for those of others.
fn more_names_than_there_is_room_for_are_made_and_found<P: PhysicalFs<Memory = Direct>, N: Names<P>>(
    options: VfsOptions,
) {
    let image = Image::new(64 << 20);
    mkfs::<P, _>(&image, Direct);
    let vfs = Vfs::<P, N>::mount(image.region(Direct), options).unwrap();
    let names = || (0..40).flat_map(|directory| (0..10).map(move |file| format!("/{directory}/{file}")));
    (0..40).for_each(|directory| vfs.mkdir(format!("/{directory}").as_bytes(), 0o755).unwrap());
    for name in names() {
        vfs.create(name.as_bytes(), 0o644).unwrap_or_else(|errno| panic!("{name}: {errno:?}"));
    }
    for name in names().chain(names()) {
        assert!(vfs.stat(name.as_bytes()).is_ok(), "{name}");
    }
    vfs.unmount().unwrap();
}

macro_rules! fronts {
    ($($module:ident $physical:ty, $names:ty;)*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn names_are_made_and_removed_by_one() {
                super::names_are_made_and_removed_by_one::<$physical, $names>(small_options());
                super::names_are_made_and_removed_by_one::<$physical, $names>(tight());
            }

            #[test]
            fn all_calls_at_once_leave_a_tree_that_makes_sense() {
                super::all_calls_at_once_leave_a_tree_that_makes_sense::<$physical, $names>(small_options());
                super::all_calls_at_once_leave_a_tree_that_makes_sense::<$physical, $names>(tight());
            }

            #[test]
            fn more_names_than_there_is_room_for_are_made_and_found() {
                let few_names = VfsOptions { names_max: 200, ..small_options() };
                super::more_names_than_there_is_room_for_are_made_and_found::<$physical, $names>(few_names);
            }
        }
    )*};
}

fronts! {
    conventional_nova Nova<Direct>, DentryCache;
    byvfs_nova Nova<Direct>, ByVfsNames;
    cachelet_nova Nova<Direct>, Mindex;
    conventional_pmfs Pmfs<Direct>, DentryCache;
    byvfs_pmfs Pmfs<Direct>, ByVfsNames;
    cachelet_pmfs Pmfs<Direct>, Mindex;
    conventional_squirrelfs SquirrelFs<Direct>, DentryCache;
    byvfs_squirrelfs SquirrelFs<Direct>, ByVfsNames;
    cachelet_squirrelfs SquirrelFs<Direct>, Mindex;
}
