//! Random operations behave like a model, across unmounts and whatever the persisters do.

use super::machine::{formatted, mount, mount_alone, quiet, region};
use super::model::{Drawer, Operation, dump, perform, persist};
use lab::calls::Calls;
use lab::physical::PhysicalFs;
use lab::soupfs::SoupFs;
use lab::vfs::{Cachelet, Conventional};
use pmem::Direct;
use posix::Errno;

const IMAGE: u64 = 4 << 20;

#[test]
fn random_operations_agree_with_the_model() {
    for seed in 0..30 {
        let mapping = formatted(IMAGE);
        let mut drawer = Drawer::new(seed);
        let mut model = dump(&mount_alone(&mapping)).expect("a fresh tree");
        for round in 0..4 {
            let fs = mount(&mapping, Direct);
            for step in 0..200 {
                let operation = drawer.draw(&model);
                let made =
                    perform(&fs, &operation).unwrap_or_else(|error| panic!("seed {seed}: {operation:?}: {error}"));
                persist(fs.physical(), &operation).expect("persisted");
                model.apply(&operation, made);
                if step % 50 == 49 {
                    fs.drop_caches().expect("dropped");
                }
            }
            fs.unmount().expect("unmounted");
            let fs = mount_alone(&mapping);
            let found = dump(&fs).unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            assert_eq!(found, model, "seed {seed}, round {round}");
            assert_eq!(fs.scan(), Ok(None), "no scan is due after a clean unmount");
            fs.unmount().expect("unmounted");
            let bytes = super::machine::bytes(&mapping);
            let image = super::image::Image(&bytes);
            let reachable = image.reachable();
            assert!(reachable.shared.is_empty() && reachable.stale.is_empty(), "seed {seed}: {reachable:?}");
            assert!(image.marked().into_iter().eq(reachable.lines.into_keys()), "seed {seed}: the table is exact");
        }
    }
}

#[test]
fn everything_removed_leaves_the_space_of_a_fresh_image() {
    let mapping = formatted(IMAGE);
    let fs = mount(&mapping, Direct);
    let before = fs.physical().space().expect("figures");
    for round in 0..3 {
        for number in 0..2000 {
            fs.create(format!("/file{number}").as_bytes(), 0o600).expect("created");
        }
        let file = fs.open(b"/file7", libc::O_RDWR, 0).expect("opened");
        fs.write(file, 100_000, &[7; 300_000]).expect("written");
        fs.close(file).expect("closed");
        if round > 0 {
            fs.sync().expect("synced");
        }
        for number in 0..2000 {
            fs.unlink(format!("/file{number}").as_bytes()).expect("removed");
        }
        fs.sync().expect("synced");
    }
    // The root's bucket pages stay; one page of lines may be partially used.
    let after = fs.physical().space().expect("figures");
    assert!(before.blocks_free - after.blocks_free <= 8, "{before:?} {after:?}");
    fs.unmount().expect("unmounted");
}

#[test]
fn a_large_directory_keeps_its_names_across_unmounts_and_its_walks_short() {
    let mapping = formatted(64 << 20);
    let options = quiet();
    let big = lab::vfs::VfsOptions { files_max: 1 << 17, names_max: 1 << 17, ..options };
    let fs = Conventional::<SoupFs<Direct>>::mount(region(&mapping, Direct), big).expect("mounted");
    let name = |number: u64| format!("/d/{number:x}");
    fs.mkdir(b"/d", 0o755).expect("made");
    for number in 0..40_000 {
        fs.create(name(number).as_bytes(), 0o600).expect("created");
        if number % 9000 == 0 {
            fs.sync().expect("synced");
        }
    }
    fs.unmount().expect("unmounted");
    let fs = Conventional::<SoupFs<Direct>>::mount(region(&mapping, Direct), big).expect("mounted");
    for number in (0..40_000).step_by(2) {
        fs.unlink(name(number).as_bytes()).expect("removed");
    }
    let mut count = 0;
    Calls::read_directory(&fs, b"/d", &mut |_, _| count += 1).expect("read");
    assert_eq!(count, 20_000);
    fs.unmount().expect("unmounted");
    let fs = mount_alone(&mapping);
    let volume = fs.volume();
    let loaded = fs.load(fs.root()).expect("the root");
    drop(loaded);
    let tree = dump(&fs).expect("a tree");
    assert_eq!(tree.files.len(), 20_002);
    let directory = *tree.names.keys().find(|id| **id != tree.root).expect("the directory");
    let directory = lab::soupfs::list::Directory { inode: directory.0 * 64 };
    let level = volume.consistent_level(directory).expect("a level");
    assert!((12..=17).contains(&level), "2^{level} buckets for 40,000 names");
}

#[test]
fn all_vfs_kinds_see_the_same() {
    let mapping = formatted(IMAGE);
    let first = Cachelet::<SoupFs<Direct>>::mount(region(&mapping, Direct), quiet()).expect("mounted");
    let mut drawer = Drawer::new(77);
    let mut model = dump(&mount_alone(&formatted(IMAGE))).expect("a tree");
    for _ in 0..600 {
        let operation = drawer.draw(&model);
        let made = perform(&first, &operation).unwrap_or_else(|error| panic!("{operation:?}: {error}"));
        persist(first.physical(), &operation).expect("persisted");
        model.apply(&operation, made);
    }
    first.unmount().expect("unmounted");
    let second = Conventional::<SoupFs<Direct>>::mount(region(&mapping, Direct), quiet()).expect("mounted");
    for _ in 0..600 {
        let operation = drawer.draw(&model);
        let made = perform(&second, &operation).unwrap_or_else(|error| panic!("{operation:?}: {error}"));
        persist(second.physical(), &operation).expect("persisted");
        model.apply(&operation, made);
    }
    second.unmount().expect("unmounted");
    assert_eq!(dump(&mount_alone(&mapping)).expect("a tree"), model);
}

#[test]
fn a_full_image_is_reported_and_works_again_when_there_is_room() {
    let mapping = formatted(64 * 4096);
    let fs = mount(&mapping, Direct);
    fs.create(b"/big", 0o600).expect("created");
    let file = fs.open(b"/big", libc::O_RDWR, 0).expect("opened");
    let mut written = 0;
    let error = loop {
        match fs.write(file, written, &[5; 4096]) {
            Ok(_) => written += 4096,
            Err(error) => break error,
        }
    };
    assert_eq!(error, Errno::ENOSPC);
    assert!(written > 40 * 4096, "{written}");
    assert_eq!(Calls::stat(&fs, b"/big").expect("there").size_bytes, written);
    let mut byte = [0];
    fs.read(file, written - 1, &mut byte).expect("read");
    assert_eq!(byte, [5]);
    fs.truncate(file, 0).expect("cut");
    fs.write(file, 0, &[6; 20 * 4096]).expect("the truncation frees space once it is persisted");
    fs.close(file).expect("closed");
    fs.unlink(b"/big").expect("removed");
    fs.mkdir(b"/directory", 0o755).expect("made");
    fs.unmount().expect("unmounted");
    assert_eq!(dump(&mount_alone(&mapping)).expect("a tree").files.len(), 2);
}

#[test]
fn a_file_that_is_open_lives_without_a_name_and_is_gone_after() {
    let mapping = formatted(IMAGE);
    let fs = mount(&mapping, Direct);
    let free = fs.physical().space().expect("figures").blocks_free;
    for is_persisted in [false, true] {
        fs.create(b"/file", 0o600).expect("created");
        let file = fs.open(b"/file", libc::O_RDWR, 0).expect("opened");
        fs.write(file, 0, &[1; 10_000]).expect("written");
        if is_persisted {
            fs.sync().expect("synced");
        }
        fs.unlink(b"/file").expect("removed");
        fs.sync().expect("synced");
        fs.write(file, 10_000, &[2; 10_000]).expect("written");
        fs.sync().expect("synced");
        let mut bytes = vec![0; 20_000];
        assert_eq!(fs.read(file, 0, &mut bytes), Ok(20_000));
        assert!(bytes[..10_000].iter().all(|byte| *byte == 1) && bytes[10_000..].iter().all(|byte| *byte == 2));
        fs.close(file).expect("closed");
        fs.sync().expect("synced");
        // One page of lines may be partially used.
        assert!(free - fs.physical().space().expect("figures").blocks_free <= 1);
    }
    fs.unmount().expect("unmounted");
}

#[test]
fn holes_and_cuts_read_as_zeros() {
    let mapping = formatted(IMAGE);
    let fs = mount(&mapping, Direct);
    fs.create(b"/file", 0o600).expect("created");
    let file = fs.open(b"/file", libc::O_RDWR, 0).expect("opened");
    for is_persisted in [false, true, true] {
        let persist = || {
            if is_persisted {
                fs.sync().expect("synced")
            }
        };
        fs.write(file, 0, &[9; 5000]).expect("written");
        persist();
        fs.truncate(file, 100).expect("cut");
        persist();
        fs.truncate(file, 6000).expect("grown");
        persist();
        fs.write(file, 4_000_000, &[8; 10]).expect("written far behind");
        persist();
        let mut bytes = vec![1; 6000];
        fs.read(file, 0, &mut bytes).expect("read");
        assert!(bytes[..100].iter().all(|byte| *byte == 9) && bytes[100..].iter().all(|byte| *byte == 0));
        let mut bytes = vec![1; 20];
        assert_eq!(fs.read(file, 3_999_990, &mut bytes), Ok(20));
        assert_eq!(bytes, [[0; 10], [8; 10]].concat());
        assert_eq!(Calls::stat(&fs, b"/file").expect("there").blocks, 2);
        fs.truncate(file, 0).expect("cut");
        assert_eq!(Calls::stat(&fs, b"/file").expect("there").blocks, 0);
    }
    fs.close(file).expect("closed");
    fs.unmount().expect("unmounted");
}

#[test]
fn bad_images_are_refused_with_the_reason() {
    let mapping = formatted(IMAGE);
    let image = region(&mapping, Direct);
    let try_mount = || SoupFs::mount_with(region(&mapping, Direct), std::time::Duration::ZERO, 0).map(|_| ());
    image.write_bytes(0, b"LabNOVA\0").expect("inside").unflushed();
    assert!(matches!(try_mount(), Err(lab::Error::OtherSystem { wanted: "soupfs", found: "nova" })));
    image.write_bytes(0, b"LabSOUP\0").expect("inside").unflushed();
    image.write_bytes(24, &3u64.to_le_bytes()).expect("inside").unflushed();
    assert!(matches!(try_mount(), Err(lab::Error::Damaged { .. })));
}

#[test]
fn damage_is_an_error_not_a_panic_or_a_loop() {
    let mapping = formatted(1 << 20);
    let fs = mount(&mapping, Direct);
    let mut drawer = Drawer::new(5);
    let mut model = dump(&mount_alone(&formatted(1 << 20))).expect("a tree");
    for _ in 0..150 {
        let operation = drawer.draw(&model);
        let made = perform(&fs, &operation).expect("done");
        model.apply(&operation, made);
    }
    fs.unmount().expect("unmounted");
    let good = super::machine::bytes(&mapping);
    let lines: Vec<u64> = super::image::Image(&good).reachable().lines.into_keys().collect();
    let mut random = super::machine::Random(11);
    for _ in 0..3000 {
        super::machine::load(&mapping, &good);
        let line = lines[random.below(lines.len() as u64) as usize];
        let value = match random.below(4) {
            0 => random.next(),
            1 => 0,
            2 => lines[random.below(lines.len() as u64) as usize],
            _ => (random.next() % (2 << 20)) & !63,
        };
        let at = line + random.below(8) * 8;
        region(&mapping, Direct).write_bytes(at, &value.to_le_bytes()).expect("inside").unflushed();
        let alone = mount_alone(&mapping);
        // Any result is valid as long as the call returns.
        let _ = dump(&alone);
        drop(alone);
        let fs = mount(&mapping, Direct);
        let operation = Operation::Create(b"/a/new".to_vec());
        let _ = perform(&fs, &operation);
        let _ = perform(&fs, &Operation::Unlink(b"/b".to_vec()));
        let _ = fs.sync();
        let _ = fs.unmount();
    }
}
