//! Locks, extended attributes, confined roots, durability, and the death of a process.

use crate::support::{Scratch, errno};
use directfs::{
    Closed, Credentials, Durability, FileFlags, FileSystem, FileTimes, Image, LockedRange, OpenOptions, SetXattr, View,
};
use std::fs::TryLockError;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn flags(set: impl FnOnce(&mut FileFlags)) -> FileFlags {
    let mut flags = FileFlags::default();
    set(&mut flags);
    flags
}

#[test]
fn locks_exclude_other_opens_and_not_clones() {
    let scratch = Scratch::new();
    let one = scratch.fs.create("file").unwrap();
    let two = scratch.fs.open("file").unwrap();
    one.lock_shared().unwrap();
    two.try_lock_shared().unwrap();
    assert!(matches!(one.try_lock(), Err(TryLockError::WouldBlock)));
    two.unlock().unwrap();
    one.try_lock().unwrap();
    let clone = one.try_clone().unwrap();
    clone.try_lock().unwrap();
    drop(one);
    assert!(matches!(two.try_lock(), Err(TryLockError::WouldBlock)));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| two.lock());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        drop(clone);
        waits.join().unwrap().unwrap();
    });
}

#[test]
fn clones_share_the_position() {
    let scratch = Scratch::new();
    let mut file = scratch.fs.create_new("file").unwrap();
    let mut clone = file.try_clone().unwrap();
    file.write_all(b"one ").unwrap();
    clone.write_all(b"two").unwrap();
    file.seek(SeekFrom::Start(2)).unwrap();
    let mut text = String::new();
    clone.read_to_string(&mut text).unwrap();
    assert_eq!(text, "e two");
    assert_eq!(file.stream_position().unwrap(), 7);
}

#[test]
fn a_removed_file_lives_until_it_is_closed() {
    let scratch = Scratch::new();
    let file = scratch.fs.create_new("file").unwrap();
    let free = scratch.fs.space().unwrap().files_free;
    file.write_all_at(b"still here", 0).unwrap();
    scratch.fs.remove_file("file").unwrap();
    let mut bytes = [0; 10];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 10);
    assert_eq!(&bytes, b"still here");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(scratch.fs.space().unwrap().files_free, free);
}

#[test]
fn a_file_larger_than_memory_is_refused() {
    let scratch = Scratch::new();
    scratch.fs.create("sparse").unwrap().set_len(1 << 47).unwrap();
    assert_eq!(errno(scratch.fs.read("sparse")), Some(libc::ENOMEM));
    assert_eq!(scratch.fs.metadata("sparse").unwrap().allocated_bytes(), 0);
    let mut end = [1; 2];
    assert_eq!(scratch.fs.open("sparse").unwrap().read_at(&mut end, (1 << 47) - 1).unwrap(), 1);
    assert_eq!(end, [0, 1]);
}

#[test]
fn extended_attributes() {
    let scratch = Scratch::new();
    let fs = scratch.as_root();
    fs.write("file", "").unwrap();
    assert_eq!(fs.xattr("file", "user.a").unwrap(), None);
    fs.set_xattr("file", "user.a", b"1").unwrap();
    fs.set_xattr("file", "user.b", vec![7; 10_000]).unwrap();
    fs.set_xattr("file", "user.a", b"").unwrap();
    assert_eq!(fs.xattr("file", "user.a").unwrap().as_deref(), Some(&[][..]));
    assert_eq!(fs.xattr("file", "user.b").unwrap(), Some(vec![7; 10_000]));
    let mut names = fs.xattrs("file").unwrap();
    names.sort();
    assert_eq!(names, ["user.a", "user.b"]);
    fs.remove_xattr("file", "user.a").unwrap();
    assert_eq!(errno(fs.remove_xattr("file", "user.a")), Some(libc::ENODATA));
    assert_eq!(errno(fs.set_xattr("file", "other.a", b"")), Some(libc::EOPNOTSUPP));
    assert_eq!(errno(fs.set_xattr("file", "user.c", vec![0; 65_537])), Some(libc::E2BIG));
    assert_eq!(errno(fs.xattr("missing", "user.a")), Some(libc::ENOENT));
}

#[test]
fn paths_stay_below_their_root() {
    let scratch = Scratch::new();
    let fs = &scratch.fs;
    fs.create_dir_all("jail/inner").unwrap();
    fs.write("secret", "outside").unwrap();
    fs.write("jail/secret", "inside").unwrap();
    fs.symlink("/secret", "jail/absolute").unwrap();
    fs.symlink("../../../secret", "jail/inner/up").unwrap();
    // An absolute target begins at the root of paths, in the middle of a path as well.
    assert_eq!(fs.read("jail/absolute").unwrap(), b"outside");
    assert_eq!(fs.read("../../secret").unwrap(), b"outside");
    assert_eq!(fs.read("/jail/secret").unwrap(), b"inside");
    let jail = fs.root_at("jail").unwrap();
    for path in ["secret", "/secret", "absolute", "inner/up", "../secret", "inner/../../secret"] {
        assert_eq!(jail.read(path).unwrap(), b"inside", "{path}");
    }
    jail.symlink("/inner", "to inner").unwrap();
    jail.write("to inner/file", "x").unwrap();
    jail.rename("to inner/file", "to inner/renamed").unwrap();
    jail.hard_link("to inner/renamed", "to inner/linked").unwrap();
    assert_eq!(fs.read("jail/inner/linked").unwrap(), b"x");
    jail.symlink("/loop", "loop").unwrap();
    assert_eq!(errno(jail.read("loop")), Some(libc::ELOOP));
    fs.rename("jail", "prison").unwrap();
    assert_eq!(jail.read("secret").unwrap(), b"inside");
    fs.remove_dir_all("prison").unwrap();
    assert_eq!(errno(jail.read("secret")), Some(libc::ENOENT));
    assert_eq!(errno(jail.create("new")), Some(libc::ENOENT));
    assert_eq!(fs.read("secret").unwrap(), b"outside");
}

#[test]
fn a_large_tree_is_removed_and_links_out_of_it_are_not_followed() {
    let scratch = Scratch::new();
    let fs = &scratch.fs;
    fs.create_dir_all("kept/below").unwrap();
    let mut deep = fs.clone();
    for level in 0..300 {
        deep.create_dir("d").unwrap();
        deep.symlink("/kept", "link").unwrap();
        deep.write(format!("file {level}"), "x").unwrap();
        deep = deep.root_at("d").unwrap();
    }
    for file in 0..2000 {
        fs.write(format!("d/{file}"), "").unwrap();
    }
    assert_eq!(fs.read_dir("d").unwrap().count(), 2003);
    fs.remove_dir_all("d").unwrap();
    assert!(fs.exists("kept/below").unwrap() && !fs.exists("d").unwrap());
}

#[test]
fn the_tree_of_the_root_stays() {
    let scratch = Scratch::new();
    let fs = &scratch.fs;
    fs.create_dir_all("kept/below").unwrap();
    for (files, root) in [(fs.clone(), "/"), (fs.clone(), "kept/.."), (fs.root_at("kept").unwrap(), ".")] {
        assert_eq!(errno(files.remove_dir_all(root)), Some(libc::EBUSY), "{root}");
        assert!(fs.exists("kept/below").unwrap());
    }
}

#[test]
fn a_copy_shares_blocks() {
    let scratch = Scratch::new();
    let content: Vec<u8> = (0..8u32 << 20).map(|index| (index % 253) as u8).collect();
    scratch.fs.write("large", &content).unwrap();
    let before = scratch.fs.space().unwrap().free_bytes;
    for copy in 0..10 {
        assert_eq!(scratch.fs.copy("large", format!("{copy}")).unwrap(), content.len() as u64);
    }
    assert!(before - scratch.fs.space().unwrap().free_bytes < 8 << 20);
    assert!(scratch.fs.read("9").unwrap() == content);
    assert_eq!(errno(scratch.fs.copy("large", "large")), Some(libc::EINVAL));
    assert!(scratch.fs.read("large").unwrap() == content);
}

#[test]
fn content_survives_a_close_and_durability_is_that_of_the_medium() {
    let Scratch { image, fs, path, directory: _directory } = Scratch::new();
    if path.starts_with("/dev/shm") {
        assert_eq!(image.durability(), Durability::ProcessDeath);
    }
    assert_eq!(Image::in_memory(8 << 20).unwrap().durability(), Durability::Nothing);
    let other = Image::open(&path).unwrap();
    other.file_system().write("file", "content").unwrap();
    assert_eq!(fs.read("file").unwrap(), b"content");
    fs.open("file").unwrap().sync_all().unwrap();
    image.sync().unwrap();
    assert_eq!(other.close().unwrap(), Closed::OthersRemain);
    assert_eq!(image.close().unwrap(), Closed::Clean);
    let image = Image::open(&path).unwrap();
    assert!(!image.was_recovered());
    assert_eq!(image.file_system().read("file").unwrap(), b"content");
}

/// The second process of `the_death_of_a_process`: not a test of its own.
#[test]
fn second_process() {
    let Some(path) = std::env::var_os("DIRECTFS_TEST_IMAGE") else { return };
    let image = Image::open(path).unwrap();
    let fs: FileSystem = image.file_system();
    let file = fs.create("locked").unwrap();
    file.lock().unwrap();
    let removed = fs.create("removed").unwrap();
    removed.write_all_at(&[1; 100_000], 0).unwrap();
    fs.remove_file("removed").unwrap();
    println!("\nlocked");
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn the_death_of_a_process_releases_its_locks_and_files() {
    let Scratch { image, fs, path, directory: _directory } = Scratch::new();
    let free = fs.space().unwrap().files_free;
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "files::second_process", "--nocapture"])
        .env("DIRECTFS_TEST_IMAGE", &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(other.stdout.take().unwrap()).lines();
    lines.map_while(Result::ok).find(|line| line == "locked").expect("the second process has the lock");
    let file = fs.open("locked").unwrap();
    assert!(matches!(file.try_lock(), Err(TryLockError::WouldBlock)));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| file.lock());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        other.kill().unwrap();
        other.wait().unwrap();
        waits.join().unwrap().unwrap();
    });
    drop(file);
    fs.remove_file("locked").unwrap();
    assert_eq!(image.close().unwrap(), Closed::Clean);
    let image = Image::open(&path).unwrap();
    assert_eq!(image.file_system().space().unwrap().files_free, free);
}

#[test]
fn ranges_are_locked_among_separate_opens() {
    let scratch = Scratch::new();
    let one = scratch.fs.create_new("file").unwrap();
    let two = scratch.fs.open("file").unwrap();
    one.lock_range(10..20, true).unwrap();
    assert!(matches!(two.try_lock_range(15.., false), Err(TryLockError::WouldBlock)));
    let held = LockedRange { start: 10, end: Some(20), exclusive: true };
    assert_eq!(two.range_conflict(.., false).unwrap(), Some(held));
    two.try_lock_range(20.., false).unwrap();
    two.try_lock_range(..=9, false).unwrap();
    // A part of a lock is released; ranges and the lock of the whole file are independent.
    one.unlock_range(..15).unwrap();
    two.try_lock_range(..15, false).unwrap();
    one.try_lock().unwrap();
    let open_end = LockedRange { start: 20, end: None, exclusive: false };
    assert_eq!(one.range_conflict(20..30, true).unwrap(), Some(open_end));
    assert_eq!(errno(two.lock_range(.., true)), Some(libc::EBADF), "not opened for writing");
    assert_eq!(errno(one.lock_range(5..5, true)), Some(libc::EINVAL));
    assert_eq!(errno(one.lock_range(u64::MAX.., true)), Some(libc::EINVAL));
    let short = Duration::from_millis(1);
    assert!(!one.lock_range_timeout(.., true, short).unwrap());
    assert!(!two.lock_timeout(false, short).unwrap());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| one.lock_range_timeout(0..8, true, Duration::from_secs(600)));
        two.unlock_range(..).unwrap();
        assert!(waits.join().unwrap().unwrap());
    });
}

#[test]
fn files_are_changed_by_handle_as_by_path() {
    let scratch = Scratch::new();
    let fs = scratch.as_root();
    let file = fs.create_new("file").unwrap();
    file.set_xattr("user.a", "1", SetXattr::New).unwrap();
    assert_eq!(errno(file.set_xattr("user.a", "2", SetXattr::New)), Some(libc::EEXIST));
    assert_eq!(errno(fs.set_xattr_with("file", "user.b", "2", SetXattr::Existing)), Some(libc::ENODATA));
    fs.set_xattr_with("file", "user.a", "3", SetXattr::Existing).unwrap();
    assert_eq!(file.xattr("user.a").unwrap().unwrap(), b"3");
    assert_eq!(file.xattrs().unwrap(), ["user.a"]);
    file.remove_xattr("user.a").unwrap();
    assert_eq!(fs.xattr("file", "user.a").unwrap(), None);

    file.set_owner(Some(7), Some(8)).unwrap();
    fs.symlink("file", "link").unwrap();
    fs.set_symlink_owner("link", Some(9), None).unwrap();
    let early = UNIX_EPOCH - Duration::from_secs(3);
    fs.set_symlink_times("link", FileTimes::new().set_accessed(early)).unwrap();
    let (link, found) = (fs.symlink_metadata("link").unwrap(), fs.metadata("link").unwrap());
    assert_eq!((found.uid(), found.gid(), link.uid()), (7, 8, 9));
    assert_eq!(link.accessed(), early);
    fs.set_times("file", FileTimes::new().set_accessed(early).set_modified(early)).unwrap();
    // Permission to write suffices for the present, not for another time.
    fs.set_permissions("file", 0o666).unwrap();
    let other = scratch.as_user(1000);
    assert_eq!(errno(other.set_times("file", FileTimes::new().set_modified(SystemTime::now()))), Some(libc::EPERM));
    other.touch("file").unwrap();
    assert!(fs.metadata("file").unwrap().modified() > UNIX_EPOCH);
    other.open_with("file", OpenOptions::new().append(true)).unwrap().touch().unwrap();
    assert_eq!(errno(other.access("file", 1)), Some(libc::EACCES));
    other.access("file", 4 | 2).unwrap();
}

#[test]
fn lengths_holes_and_exchanged_names() {
    let scratch = Scratch::new();
    let fs = &scratch.fs;
    fs.write("file", "content").unwrap();
    fs.create_dir("directory").unwrap();
    fs.set_len("file", 1 << 20).unwrap();
    assert_eq!(errno(fs.set_len("directory", 0)), Some(libc::EISDIR));
    let file = fs.open_flags("file", libc::O_RDWR | libc::O_NOFOLLOW, 0).unwrap();
    file.allocate(0, 1 << 18, 4096).unwrap();
    file.write_at(b"data", 1 << 19).unwrap();
    assert_eq!(file.next_hole(0).unwrap(), Some(4096));
    assert_eq!(file.next_data(4096).unwrap(), Some(1 << 19));
    assert_eq!(file.next_data((1 << 19) + 4096).unwrap(), None);
    assert_eq!(file.next_hole(1 << 20).unwrap(), None);
    fs.exchange("file", "directory").unwrap();
    assert!(fs.metadata("file").unwrap().is_dir() && fs.metadata("directory").unwrap().is_file());
    assert_eq!(errno(fs.exchange("file", "missing")), Some(libc::ENOENT));
    let mut list = fs.read_dir(".").unwrap();
    assert_eq!(list.by_ref().count(), 2);
    fs.create("third").unwrap();
    list.rewind();
    assert_eq!(list.count(), 3);
}

#[test]
fn a_snapshot_holds_the_moment() {
    let scratch = Scratch::new();
    scratch.fs.write("file", "before").unwrap();
    let copy = scratch.directory.path().join("copy");
    scratch.image.snapshot(&copy).unwrap();
    scratch.fs.write("file", "after").unwrap();
    assert_eq!(errno(scratch.image.snapshot(&copy)), Some(libc::EEXIST));
    assert_eq!(errno(Image::in_memory(16 << 20).unwrap().snapshot(&copy)), Some(libc::EOPNOTSUPP));
    let copied = Image::open(&copy).unwrap();
    assert!(copied.was_recovered());
    assert_eq!(copied.file_system().read("file").unwrap(), b"before");
}

#[test]
fn flags_forbid_what_they_say_also_to_root() {
    let scratch = Scratch::new();
    let refused = Some(libc::EPERM);
    let fs = scratch.fs.with_credentials(Credentials::new(0, 0, &[]));
    fs.write("file", "content").unwrap();
    fs.create_dir("directory").unwrap();
    assert_eq!(fs.flags("file").unwrap(), FileFlags::default());
    let immutable = flags(|flags| (flags.immutable, flags.no_access_time) = (true, true));
    fs.set_flags("file", immutable).unwrap();
    assert_eq!(fs.flags("file").unwrap(), immutable);
    assert_eq!(errno(fs.write("file", "other")), refused);
    assert_eq!(errno(fs.remove_file("file")), refused);
    assert_eq!(errno(fs.rename("file", "other")), refused);
    assert_eq!(errno(fs.hard_link("file", "other")), refused);
    assert_eq!(errno(fs.set_permissions("file", 0o600)), refused);
    assert_eq!(fs.read_to_string("file").unwrap(), "content");
    let append_only = flags(|flags| (flags.append_only, flags.no_dump) = (true, true));
    fs.set_flags("directory", append_only).unwrap();
    fs.write("directory/new", "").unwrap();
    assert_eq!(errno(fs.remove_file("directory/new")), refused);
    assert_eq!(fs.flags("directory/new").unwrap(), flags(|flags| flags.no_dump = true));
    fs.set_flags("file", append_only).unwrap();
    let mut file = fs.open_with("file", OpenOptions::new().append(true)).unwrap();
    file.write_all(b" and more").unwrap();
    assert_eq!(errno(fs.set_len("file", 0)), refused);
    assert_eq!(fs.read_to_string("file").unwrap(), "content and more");
    let user = fs.with_credentials(Credentials::new(1000, 100, &[]));
    assert_eq!(errno(user.set_flags("file", FileFlags::default())), refused);
    fs.symlink("file", "link").unwrap();
    fs.set_flags("link", FileFlags::default()).unwrap();
    fs.remove_file("file").unwrap();
}

/// What a view shows.
fn shown(view: &View) -> Vec<u8> {
    // SAFETY: the memory of the view, which no thread writes meanwhile.
    unsafe { std::slice::from_raw_parts(view.as_ptr(), view.len()) }.to_vec()
}

#[test]
fn a_view_keeps_its_blocks_and_its_image() {
    let Scratch { image, fs, path, directory: _directory } = Scratch::new();
    fs.write("file", vec![7; 100_000]).unwrap();
    let file = fs.open("file").unwrap();
    let view = file.view().unwrap();
    assert!(shown(&view) == vec![7; 100_000]);
    assert_eq!(errno(fs.create("empty").unwrap().view()), Some(libc::EBADF), "not opened for reading");
    drop(file);
    // Other files get no block of it, whatever becomes of it.
    fs.open_with("file", OpenOptions::new().write(true)).unwrap().set_len(5000).unwrap();
    fs.write("other", vec![9; 200_000]).unwrap();
    assert!(shown(&view) == [vec![7; 5000], vec![0; 95_000]].concat());
    fs.remove_file("file").unwrap();
    fs.write("third", vec![9; 200_000]).unwrap();
    assert!(shown(&view) == [vec![7; 5000], vec![0; 95_000]].concat());
    // Threads make and drop views at the same addresses.
    std::thread::scope(|scope| {
        for name in ["other", "third"] {
            let fs = &fs;
            scope.spawn(move || {
                for _ in 0..200 {
                    let view = fs.open(name).unwrap().view().unwrap();
                    assert!(shown(&view) == vec![9; 200_000]);
                }
            });
        }
    });
    assert_eq!(image.views(), 1);
    assert_eq!(errno(image.close()), Some(libc::EBUSY));
    assert!(fs.exists("other").unwrap(), "the view keeps the image open");
    drop((fs, view));
    let again = Image::options().exclusive(true).open(path).unwrap();
    assert!(!again.was_recovered());
    assert_eq!(again.close().unwrap(), Closed::Clean);
}

#[test]
fn a_synchronous_file_and_each_sync_reach_the_disk_before_they_return() {
    // The system's directory for temporary files may be in memory.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, copy) = (directory.path().join("image"), directory.path().join("copy"));
    drop(Image::create(&path).size(16 << 20).create().unwrap());
    let image = Image::options().commit_interval(Duration::ZERO).open(&path).unwrap();
    assert_eq!(image.durability(), Durability::Committed, "this test needs a build directory on a disk");
    let fs = image.file_system();
    // A copy of the image's file is another image: what a power failure would leave.
    let on_disk = |name: &str| {
        std::fs::copy(&path, &copy).unwrap();
        Image::open(&copy).unwrap().file_system().read(name).ok()
    };
    let new = libc::O_WRONLY | libc::O_CREAT;
    fs.open_flags("plain", new, 0o600).unwrap().write_all_at(b"plain", 0).unwrap();
    assert_eq!(on_disk("plain"), None, "nothing has asked for a commit");
    for (name, flags) in [("O_SYNC", libc::O_SYNC), ("O_DSYNC", libc::O_DSYNC)] {
        let mut file = fs.open_flags(name, new | flags, 0o600).unwrap();
        file.write_all_at(b"at", 0).unwrap();
        assert_eq!(on_disk(name).as_deref(), Some(&b"at"[..]), "{name}");
        file.write_all(b"by position").unwrap();
        assert_eq!(on_disk(name).as_deref(), Some(&b"by position"[..]), "{name}");
    }
    let file = fs.create("sync_all").unwrap();
    assert_eq!(on_disk("sync_all"), None);
    file.sync_all().unwrap();
    assert!(on_disk("sync_all").is_some());
    fs.write("sync", "").unwrap();
    image.sync().unwrap();
    assert!(on_disk("sync").is_some());
}
