//! Names: making, finding, linking, moving, removing and listing them, before and after a crash.

use crate::support::*;
use engine::format::FileKind;
use engine::{Corruption, Error, NewNode, RenameFlags};
use pmem::Direct;
use std::collections::{BTreeMap, HashSet};

const MIB: u64 = 1 << 20;

#[test]
fn a_created_file_is_found_with_its_attributes_and_a_second_creation_is_refused() {
    let image = Image::new(16 * MIB);
    let attached = image.attach();
    let thread = attached.enter();
    let root = thread.root().unwrap();
    let new = NewNode { permissions: 0o4751, uid: 7, gid: 8, ..new_file() };
    let node = thread.create(root, b"file", &new).unwrap();
    let attributes = thread.stat_name(root, b"file").unwrap();
    assert_eq!((attributes.number, attributes.mode, attributes.uid, attributes.gid), (node.number, 0o104751, 7, 8));
    assert_eq!((attributes.links, attributes.size_bytes, attributes.kind), (1, 0, FileKind::Regular));
    assert_eq!(thread.create(root, b"file", &new_file()).unwrap_err(), Error::Exists);
    assert_eq!(thread.lookup(root, b"other").unwrap_err(), Error::NotFound);
    thread.release(node, 1);
    thread.release(root, 1);
}

#[test]
fn names_of_every_length_and_every_byte_survive_a_crash() {
    let image = Image::new(16 * MIB);
    let attached = image.attach();
    let mut expected = HashSet::new();
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        for length in 1..=255usize {
            let name: Vec<u8> = (0..length)
                .map(|at| [1 + ((at * 7 + length) % 255) as u8, b'x'][usize::from((1 + (at * 7 + length) % 255) == 47)])
                .collect();
            let node = thread.create(root, &name, &new_file()).unwrap_or_else(|error| panic!("{length}: {error:?}"));
            expected.insert((name, node.number));
        }
        assert_eq!(thread.create(root, &[b'n'; 256], &new_file()).unwrap_err(), Error::NameTooLong);
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(thread.create(root, bad, &new_file()).unwrap_err(), Error::Invalid);
        }
    }
    drop(attached); // the crash
    let attached = image.attach();
    assert!(attached.report.scanned);
    let thread = attached.enter();
    let root = thread.root().unwrap();
    let mut found = HashSet::new();
    thread
        .read_directory(root, 0, &mut Default::default(), &mut |entry| {
            found.insert((entry.name.to_vec(), entry.number))
        })
        .unwrap();
    assert_eq!(found, expected);
}

#[test]
fn a_removed_name_is_gone_and_its_file_lives_until_the_last_user_leaves() {
    let image = Image::new(16 * MIB);
    let attached = image.attach();
    let thread = attached.enter();
    let root = thread.root().unwrap();
    let node = thread.create(root, b"file", &new_file()).unwrap();
    thread.unlink(root, b"file", permit).unwrap();
    assert_eq!(thread.lookup(root, b"file").unwrap_err(), Error::NotFound);
    assert_eq!(thread.unlink(root, b"file", permit).unwrap_err(), Error::NotFound);
    assert_eq!(thread.stat(node).unwrap().links, 0);
    assert_eq!(thread.link(node, root, b"again").unwrap_err(), Error::NotFound);
    thread.release(node, 1);
    while thread.recycler().recycle(64).unwrap() != 0 {}
    assert_eq!(thread.node(node.number, None).unwrap_err(), Error::NotFound);
}

#[test]
fn hard_links_share_a_cachelet_and_a_count_that_recovery_recounts() {
    let image = Image::new(16 * MIB);
    let attached = image.attach();
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        let directory = make_directory(&thread, root, "d");
        let node = thread.create(root, b"one", &new_file()).unwrap();
        thread.link(node, directory, b"two").unwrap();
        thread.link(node, root, b"three").unwrap();
        assert_eq!(thread.lookup(directory, b"two").unwrap(), node);
        assert_eq!(thread.stat_name(root, b"three").unwrap().links, 3);
        thread.unlink(root, b"one", permit).unwrap();
        assert_eq!(thread.stat_name(root, b"three").unwrap().links, 2);
        assert_eq!(thread.link(directory, root, b"no").unwrap_err(), Error::IsADirectory);
    }
    drop(attached);
    let attached = image.attach();
    let thread = attached.enter();
    let root = thread.root().unwrap();
    let directory = thread.lookup(root, b"d").unwrap();
    assert_eq!(thread.stat_name(directory, b"two").unwrap().links, 2);
    thread.unlink(directory, b"two", permit).unwrap();
    assert_eq!(thread.stat_name(root, b"three").unwrap().links, 1);
}

#[test]
fn directories_count_their_subdirectories_and_go_only_when_empty() {
    let image = Image::new(16 * MIB);
    let attached = image.attach();
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        let parent = make_directory(&thread, root, "parent");
        make_directory(&thread, parent, "child");
        touch(&thread, parent, "file");
        assert_eq!(thread.stat(parent).unwrap().links, 3);
        assert_eq!(thread.remove_directory(root, b"parent", permit).unwrap_err(), Error::NotEmpty);
        assert_eq!(thread.remove_directory(parent, b"file", permit).unwrap_err(), Error::NotADirectory);
        assert_eq!(thread.unlink(parent, b"child", permit).unwrap_err(), Error::IsADirectory);
        thread.remove_directory(parent, b"child", permit).unwrap();
        assert_eq!(thread.stat(parent).unwrap().links, 2);
        thread.unlink(parent, b"file", permit).unwrap();
        thread.remove_directory(root, b"parent", permit).unwrap();
        assert_eq!(thread.create(parent, b"late", &new_file()).unwrap_err(), Error::NotFound);
    }
    attached.detach();
    let attached = image.attach();
    assert!(!attached.report.scanned, "left clean");
    let thread = attached.enter();
    assert_eq!(names(&thread, thread.root().unwrap()), Vec::<String>::new());
}

#[test]
fn symlinks_of_every_length_keep_their_target() {
    let image = Image::new(16 * MIB);
    let attached = image.attach();
    let lengths = [1, 47, 48, 49, 255, 1000, 4095];
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        for length in lengths {
            let target: Vec<u8> = (0..length).map(|at| b'a' + (at % 26) as u8).collect();
            let new = NewNode { kind: FileKind::Symlink, permissions: 0o777, target: &target, ..new_file() };
            thread.create(root, format!("link{length}").as_bytes(), &new).unwrap();
        }
    }
    drop(attached);
    let attached = image.attach();
    let thread = attached.enter();
    let root = thread.root().unwrap();
    for length in lengths {
        let node = thread.lookup(root, format!("link{length}").as_bytes()).unwrap();
        let mut target = [0u8; 4096];
        let got = thread.read_link(node, &mut target).unwrap();
        assert_eq!(got, length);
        assert!(target[..length].iter().enumerate().all(|(at, byte)| *byte == b'a' + (at % 26) as u8));
    }
}

#[test]
fn a_rename_moves_replaces_and_exchanges_and_its_outcome_survives_a_crash() {
    let image = Image::new(16 * MIB);
    let attached = image.attach();
    let (moved, kept);
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        let (a, b) = (make_directory(&thread, root, "a"), make_directory(&thread, root, "b"));
        moved = touch(&thread, a, "x");
        touch(&thread, b, "y");
        kept = touch(&thread, b, "z");
        let no_replace = RenameFlags { no_replace: true, ..Default::default() };
        assert_eq!(thread.rename((a, b"x"), (b, b"y"), no_replace, permit_rename).unwrap_err(), Error::Exists);
        thread.rename((a, b"x"), (b, b"y"), RenameFlags::default(), permit_rename).unwrap();
        assert_eq!(thread.stat_name(b, b"y").unwrap().number, moved);
        assert_eq!(thread.stat_name(a, b"x").unwrap_err(), Error::NotFound);
        let exchange = RenameFlags { exchange: true, ..Default::default() };
        thread.rename((b, b"y"), (b, b"z"), exchange, permit_rename).unwrap();
        let whiteout = RenameFlags { whiteout: Some((0, 0)), ..Default::default() };
        thread.rename((b, b"z"), (a, b"w"), whiteout, permit_rename).unwrap();
        assert_eq!(thread.stat_name(b, b"z").unwrap().kind, FileKind::Character);
        assert_eq!(
            thread.rename((a, b"none"), (b, b"q"), RenameFlags::default(), permit_rename).unwrap_err(),
            Error::NotFound
        );
    }
    drop(attached);
    let attached = image.attach();
    let thread = attached.enter();
    let root = thread.root().unwrap();
    let (a, b) = (thread.lookup(root, b"a").unwrap(), thread.lookup(root, b"b").unwrap());
    assert_eq!(names(&thread, a), ["w"]);
    assert_eq!(thread.stat_name(a, b"w").unwrap().number, moved);
    assert_eq!(thread.stat_name(b, b"y").unwrap().number, kept);
}

#[test]
fn a_directory_moves_with_its_dotdot_but_never_into_itself() {
    let image = Image::new(16 * MIB);
    let attached = image.attach();
    let thread = attached.enter();
    let root = thread.root().unwrap();
    let a = make_directory(&thread, root, "a");
    let b = make_directory(&thread, a, "b");
    let c = make_directory(&thread, root, "c");
    let plain = RenameFlags::default();
    assert_eq!(thread.rename((root, b"a"), (b, b"x"), plain, permit_rename).unwrap_err(), Error::Loop);
    thread.rename((a, b"b"), (c, b"b2"), plain, permit_rename).unwrap();
    assert_eq!(thread.parent(b).unwrap(), c.number);
    assert_eq!((thread.stat(a).unwrap().links, thread.stat(c).unwrap().links), (2, 3));
    let mut name = [0; 255];
    let length = thread.name_of(c, b.number, &mut name).unwrap();
    assert_eq!(&name[..length], b"b2");
    // Onto an empty directory: replaced. Onto one with names: refused.
    touch(&thread, a, "file");
    assert_eq!(thread.rename((c, b"b2"), (root, b"a"), plain, permit_rename).unwrap_err(), Error::NotEmpty);
    thread.unlink(a, b"file", permit).unwrap();
    thread.rename((c, b"b2"), (root, b"a"), plain, permit_rename).unwrap();
    assert_eq!(thread.parent(b).unwrap(), root.number);
    assert_eq!(thread.stat(root).unwrap().links, 4);
}

#[test]
fn random_operations_agree_with_a_map_through_crashes_and_clean_detaches() {
    for seed in [1, 2, 3u64] {
        println!("seed {seed}");
        let image = Image::new(64 * MIB);
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut model: BTreeMap<String, u64> = BTreeMap::new();
        for round in 0..6 {
            let attached = image.attach();
            {
                let thread = attached.enter();
                let root = thread.root().unwrap();
                for _ in 0..4000 {
                    one_random_operation(&thread, root, &mut random, &mut model);
                }
                let mut listed = names(&thread, root);
                listed.sort();
                assert_eq!(listed, model.keys().cloned().collect::<Vec<_>>());
                thread.release(root, 1);
            }
            if round % 2 == 0 { drop(attached) } else { attached.detach() }
        }
        let attached = image.attach();
        let thread = attached.enter();
        let root = thread.root().unwrap();
        for (name, number) in &model {
            assert_eq!(thread.stat_name(root, name.as_bytes()).unwrap().number, *number, "{name}");
        }
    }
}

fn one_random_operation(
    thread: &engine::Thread<'_>,
    root: engine::Node,
    random: &mut Random,
    model: &mut BTreeMap<String, u64>,
) {
    let long = "long".repeat(random.below(3) as usize * 20);
    let name = |random: &mut Random| format!("{long}{}", random.below(700));
    let (one, two) = (name(random), name(random));
    match random.below(4) {
        0 | 1 => match thread.create(root, one.as_bytes(), &new_file()) {
            Ok(node) => {
                thread.release(node, 1);
                assert!(model.insert(one, node.number).is_none());
            }
            Err(error) => assert!(error == Error::Exists && model.contains_key(&one), "{error:?}"),
        },
        2 => match thread.unlink(root, one.as_bytes(), permit) {
            Ok(()) => assert!(model.remove(&one).is_some()),
            Err(error) => assert!(error == Error::NotFound && !model.contains_key(&one), "{error:?}"),
        },
        _ => match thread.rename((root, one.as_bytes()), (root, two.as_bytes()), RenameFlags::default(), permit_rename)
        {
            Ok(()) => {
                let number = model.remove(&one).expect("was there");
                model.insert(two, number);
            }
            Err(error) => assert!(error == Error::NotFound && !model.contains_key(&one), "{error:?}"),
        },
    }
}

#[test]
fn a_scan_gives_every_lasting_name_once_while_others_come_and_go_and_the_log_is_compacted() {
    let image = Image::new(64 * MIB);
    let attached = image.attach();
    let thread = attached.enter();
    let root = thread.root().unwrap();
    for number in 0..3000 {
        touch(&thread, root, &format!("lasting{number}"));
        touch(&thread, root, &format!("passing{number}"));
    }
    let mut seen: Vec<String> = Vec::new();
    let (mut cookie, mut hint) = (0, Default::default());
    for step in 0.. {
        let mut batch = 0;
        thread
            .read_directory(root, cookie, &mut hint, &mut |entry| {
                cookie = entry.cookie;
                seen.push(String::from_utf8_lossy(entry.name).into_owned());
                batch += 1;
                batch < 200
            })
            .unwrap();
        if batch == 0 {
            break;
        }
        // Names keep their identity if they get another file, are exchanged with another name, or
        // leave a whiteout, before or behind the cookie.
        for place in [step, 3000 - 1 - step] {
            let lasting = |number: usize| format!("lasting{}", number % 3000);
            let rename = |from: String, to: String, flags| {
                thread.rename((root, from.as_bytes()), (root, to.as_bytes()), flags, permit_rename).unwrap();
            };
            touch(&thread, root, "temporary");
            rename("temporary".into(), lasting(place), RenameFlags::default());
            rename(
                lasting(place + 7),
                lasting(1500 - place % 1500),
                RenameFlags { exchange: true, ..Default::default() },
            );
            let whiteout = RenameFlags { whiteout: Some((0, 0)), ..Default::default() };
            rename(lasting(place + 9), "temporary".into(), whiteout);
            thread.unlink(root, b"temporary", permit).unwrap();
        }
        // Enough removals to compact the log repeatedly, and new names; but bounded, or the scan
        // would never end.
        for number in 0..if step < 50 { 60 } else { 0 } {
            let index = step * 60 + number;
            let _ = thread.unlink(root, format!("passing{index}").as_bytes(), permit);
            touch(&thread, root, &format!("new{index}"));
            let _ = thread.unlink(root, format!("new{}", index / 2).as_bytes(), permit);
        }
    }
    let lasting: Vec<_> = seen.iter().filter(|name| name.starts_with("lasting")).collect();
    assert_eq!(lasting.len(), 3000);
    assert_eq!(lasting.iter().collect::<HashSet<_>>().len(), 3000);
    let other = seen.iter().filter(|name| *name != "temporary");
    assert_eq!(other.clone().collect::<HashSet<_>>().len(), other.count(), "a name was given twice");
}

#[test]
fn a_damaged_name_is_an_error_and_not_listed() {
    const NAME: &[u8] = b"it has this name";
    let image = Image::new(16 * MIB);
    let attached = image.attach();
    let thread = attached.enter();
    touch(&thread, thread.root().unwrap(), "it has this name");
    drop(thread);
    attached.detach();

    let region = image.region(Direct);
    let mut bytes = vec![0; 16 * MIB as usize];
    region.read_bytes(0, &mut bytes).unwrap();
    let place = bytes.windows(NAME.len()).position(|window| window == NAME).expect("the name is on the image");
    region.write_bytes(place as u64, b"at").unwrap().unflushed();

    // Nothing has been looked up, so the names come from the image.
    let attached = image.attach();
    let thread = attached.enter();
    let root = thread.root().unwrap();
    let read = thread.read_directory(root, 0, &mut Default::default(), &mut |entry| panic!("{:?}", entry.name));
    assert!(matches!(read, Err(Error::Corrupt(Corruption::Dentry(_)))), "{read:?}");
}

#[test]
fn two_threads_making_the_same_names_share_them_out_exactly() {
    let image = Image::new(64 * MIB);
    let attached = image.attach();
    let counts: Vec<usize> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let thread = attached.enter();
                    let root = thread.root().unwrap();
                    (0..3000)
                        .filter(|number| match thread.create(root, format!("n{number}").as_bytes(), &new_file()) {
                            Ok(node) => {
                                thread.release(node, 1);
                                true
                            }
                            Err(error) => {
                                assert_eq!(error, Error::Exists);
                                false
                            }
                        })
                        .count()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(counts.iter().sum::<usize>(), 3000);
    let thread = attached.enter();
    let listed = names(&thread, thread.root().unwrap());
    assert_eq!(listed.iter().collect::<HashSet<_>>().len(), 3000);
    assert_eq!(listed.len(), 3000);
}

#[test]
fn threads_that_create_remove_and_rename_in_one_directory_leave_exactly_what_they_kept() {
    let image = Image::new(64 * MIB);
    let attached = image.attach();
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let attached = &attached;
            scope.spawn(move || {
                let thread = attached.enter();
                let root = thread.root().unwrap();
                for number in 0..4000 {
                    let name = format!("w{worker}-{number}");
                    touch(&thread, root, &name);
                    if number % 3 == 0 {
                        thread.unlink(root, name.as_bytes(), permit).unwrap();
                    } else if number % 3 == 1 {
                        let to = format!("r{worker}-{number}");
                        thread
                            .rename(
                                (root, name.as_bytes()),
                                (root, to.as_bytes()),
                                RenameFlags::default(),
                                permit_rename,
                            )
                            .unwrap();
                    }
                }
            });
        }
    });
    let check = |attached: &Attached| {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        let listed: HashSet<String> = names(&thread, root).into_iter().collect();
        for worker in 0..3 {
            for number in 0..4000 {
                let (plain, renamed) = (format!("w{worker}-{number}"), format!("r{worker}-{number}"));
                assert_eq!(listed.contains(&plain), number % 3 == 2, "{plain}");
                assert_eq!(listed.contains(&renamed), number % 3 == 1, "{renamed}");
                assert_eq!(thread.stat_name(root, plain.as_bytes()).is_ok(), number % 3 == 2);
            }
        }
    };
    check(&attached);
    drop(attached);
    check(&image.attach());
}

#[test]
fn a_small_dram_region_evicts_directories_and_loses_nothing() {
    let image = Image::new(256 * MIB);
    let options = engine::AttachOptions { cached_files_max: 1024, ..Default::default() };
    let attached = image.attach_with(pmem::Direct, options, 1).unwrap();
    let thread = attached.enter();
    let root = thread.root().unwrap();
    for directory in 0..40 {
        let node = make_directory(&thread, root, &format!("d{directory}"));
        for file in 0..200 {
            touch(&thread, node, &format!("f{file}"));
        }
        thread.release(node, 1);
    }
    for directory in 0..40 {
        let node = thread.lookup(root, format!("d{directory}").as_bytes()).unwrap();
        assert_eq!(names(&thread, node).len(), 200);
        for file in 0..200 {
            thread
                .stat_name(node, format!("f{file}").as_bytes())
                .unwrap_or_else(|error| panic!("d{directory}/f{file}: {error:?}"));
        }
        thread.release(node, 1);
    }
}

#[test]
fn a_directory_in_use_may_have_more_files_than_fit_into_memory() {
    const FILES: u32 = 4000;
    let image = Image::new(256 * MIB);
    let options = engine::AttachOptions { cached_files_max: 1024, ..Default::default() };
    let attached = image.attach_with(pmem::Direct, options, 1).unwrap();
    let permissions = |file| 0o400 | (file % 0o200);
    let check = |thread: &engine::Thread<'_>, root, file| {
        let name = format!("f{file}");
        let found = thread.lookup(root, name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert_eq!(thread.stat(found).unwrap().mode & 0o7777, permissions(file), "{name}");
        thread.release(found, 1);
    };
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        // Other threads keep cachelets ready for themselves.
        let others: Vec<_> = (0..8).map(|_| attached.enter()).collect();
        for (index, other) in others.iter().enumerate() {
            touch(other, root, &format!("other {index}"));
        }
        for file in 0..FILES {
            touch(&thread, root, &format!("f{file}"));
            let node = thread.lookup(root, format!("f{file}").as_bytes()).unwrap();
            let changes = engine::Changes { permissions: Some(permissions(file)), ..Default::default() };
            thread.change(node, |_| Ok(changes)).unwrap();
            thread.release(node, 1);
        }
        let open = thread.lookup(root, b"f7").unwrap();
        std::thread::scope(|scope| {
            for worker in 0..2 {
                let (attached, check) = (&attached, &check);
                scope.spawn(move || {
                    let thread = attached.enter();
                    (0..FILES).for_each(|file| check(&thread, root, (file * 7 + worker * 1500) % FILES));
                });
            }
        });
        assert_eq!(thread.lookup(root, b"f7").unwrap(), open, "an open file stays");
        thread.release(open, 2);
        thread.release(root, 1);
    }
    attached.detach();
    let attached = image.attach();
    let thread = attached.enter();
    let root = thread.root().unwrap();
    (0..FILES).for_each(|file| check(&thread, root, file));
    thread.release(root, 1);
}

#[test]
fn a_directory_keeps_the_time_that_was_set_even_if_the_clock_goes_back_and_the_machine_crashes() {
    let image = Image::new(16 * MIB);
    let attached = image.attach();
    let set_ns = 1_000_000_000;
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        let directory = make_directory(&thread, root, "d");
        touch(&thread, directory, "file");
        let changes = engine::Changes { modified_ns: Some(set_ns), ..Default::default() };
        thread.change(directory, |_| Ok(changes)).unwrap();
        assert_eq!(thread.stat(directory).unwrap().modified_ns, set_ns);
    }
    drop(attached);
    let attached = image.attach();
    let thread = attached.enter();
    let directory = thread.lookup(thread.root().unwrap(), b"d").unwrap();
    assert_eq!(thread.stat(directory).unwrap().modified_ns, set_ns);
    // A later change advances it.
    thread.unlink(directory, b"file", permit).unwrap();
    assert!(thread.stat(directory).unwrap().modified_ns > set_ns);
}

#[test]
fn a_whiteout_that_fails_leaves_no_inode_behind() {
    let image = Image::new(16 * MIB);
    let attached = image.attach();
    let thread = attached.enter();
    let root = thread.root().unwrap();
    touch(&thread, root, "file");
    let full = make_directory(&thread, root, "full");
    touch(&thread, full, "inside");
    let whiteout = RenameFlags { whiteout: Some((0, 0)), ..Default::default() };
    let free = |thread: &engine::Thread<'_>| {
        while thread.recycler().recycle(64).unwrap() != 0 {}
        thread.space().unwrap().inodes_free
    };
    let before = free(&thread);
    let refuse = |_: &engine::Attributes, _: Option<&engine::Attributes>| Err(Error::Refused(1));
    for _ in 0..3 {
        assert_eq!(thread.rename((root, b"file"), (root, b"other"), whiteout, refuse).unwrap_err(), Error::Refused(1));
    }
    assert_eq!(free(&thread), before);
    assert!(thread.stat_name(root, b"file").is_ok());
}

#[test]
fn two_names_of_one_file_can_be_renamed_at_once_with_what_they_replace() {
    let image = Image::new(64 * MIB);
    let attached = image.attach();
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        let node = thread.create(root, b"a0", &new_file()).unwrap();
        thread.link(node, root, b"b0").unwrap();
        thread.release(node, 1);
    }
    std::thread::scope(|scope| {
        for side in ["a", "b"] {
            let attached = &attached;
            scope.spawn(move || {
                let thread = attached.enter();
                let root = thread.root().unwrap();
                for step in 0..2000 {
                    let (from, to) = (format!("{side}{step}"), format!("{side}{}", step + 1));
                    touch(&thread, root, &to);
                    thread
                        .rename((root, from.as_bytes()), (root, to.as_bytes()), RenameFlags::default(), permit_rename)
                        .unwrap();
                }
            });
        }
    });
    let thread = attached.enter();
    let root = thread.root().unwrap();
    let mut left = names(&thread, root);
    left.sort();
    assert_eq!(left, ["a2000", "b2000"]);
    let (a, b) = (thread.stat_name(root, b"a2000").unwrap(), thread.stat_name(root, b"b2000").unwrap());
    assert_eq!((a.number, a.links), (b.number, 2));
}
