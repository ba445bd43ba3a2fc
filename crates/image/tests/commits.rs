//! Images on a disk: what is on the disk after a sync, after a while, and after a death. A copy of
//! the image's file, which has another identity, stands for what a power failure leaves. (Real
//! power failures are simulated elsewhere.)

#[path = "../../posix/tests/common/mod.rs"]
mod common;

use common::IMAGE_BYTES;
use common::disk::{Disk, has, killed, touch, with_root};
use image::{Closed, CommitPolicy, ExclusiveImage, Image, ImageError, MakeOptions, OpenImage, make, snapshot};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[test]
fn what_was_synced_is_on_the_disk_and_what_was_not_is_in_memory() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let image = disk.open();
    touch(&image, "synced");
    image.sync().unwrap();
    touch(&image, "later");
    let after = disk.after_power_failure();
    assert!(has(&after, "synced") && !has(&after, "later"));
    assert!(image.commit_status().unwrap().changed_bytes > 0);
    drop(after);
    assert_eq!(image.close().unwrap(), Closed::Last);
    assert_eq!(disk.runtime_directories(), 0);
    let after = disk.after_power_failure();
    assert!(has(&after, "synced") && has(&after, "later"), "the last process commits all");
    assert!(!after.report().unwrap().scanned, "and leaves the image clean");
}

#[test]
fn a_sync_of_what_is_on_the_disk_makes_no_commit() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let image = disk.open();
    let commits = || image.commit_status().unwrap().commits;
    touch(&image, "synced");
    image.sync().unwrap();
    let before = commits();
    for _ in 0..3 {
        image.sync().unwrap();
    }
    assert_eq!(commits(), before);
    touch(&image, "later");
    image.sync().unwrap();
    assert_eq!(commits(), before + 1);
    assert!(has(&disk.after_power_failure(), "later"));
}

#[test]
fn an_interval_commits_without_a_sync() {
    let disk = Disk::new(CommitPolicy::Every(Duration::from_millis(20)));
    let image = disk.open();
    touch(&image, "never synced");
    let end = Instant::now() + Duration::from_secs(600);
    while image.commit_status().unwrap().changed_bytes > 0 && Instant::now() < end {
        std::thread::yield_now();
    }
    // The last mark is taken before the commit is on the disk.
    image.sync().unwrap();
    assert!(has(&disk.after_power_failure(), "never synced"));
    assert!(image.commit_status().unwrap().commits >= 1);
}

#[test]
fn processes_share_a_working_copy_and_its_commits() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let (one, other) = (disk.open(), disk.open());
    touch(&one, "one");
    assert!(has(&other, "one"));
    touch(&other, "other");
    one.sync().unwrap();
    let after = disk.after_power_failure();
    assert!(has(&after, "one") && has(&after, "other"), "a sync covers every process");
    drop(after);
    touch(&one, "last words");
    assert_eq!(one.close().unwrap(), Closed::OthersRemain);
    assert!(has(&disk.after_power_failure(), "last words"), "a process commits when it leaves");
    assert_eq!(other.close().unwrap(), Closed::Last);
}

#[test]
fn many_threads_that_sync_share_commits() {
    const THREADS: u64 = 4;
    const SYNCS: u64 = 50;
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let image = disk.open();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let image = &image;
            scope.spawn(move || {
                for sync in 0..SYNCS {
                    touch(image, &format!("{thread}-{sync}"));
                    image.sync().unwrap();
                }
            });
        }
    });
    let commits = image.commit_status().unwrap().commits;
    assert!(commits < THREADS * SYNCS, "{commits}");
    let after = disk.after_power_failure();
    assert!((0..THREADS).all(|thread| (0..SYNCS).all(|sync| has(&after, &format!("{thread}-{sync}")))));
}

#[test]
fn after_the_death_of_all_processes_nothing_is_lost() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    for round in 0..3 {
        killed(|| {
            let image = disk.open();
            touch(&image, &format!("synced {round}"));
            image.sync().unwrap();
            touch(&image, &format!("only in memory {round}"));
            image
        });
        assert_eq!(disk.runtime_directories(), 1, "the newest state");
    }
    // Another image of this user is opened meanwhile: it removes leftovers, but not this.
    let other = disk.directory.path().join("other");
    make(&other, &MakeOptions { length: IMAGE_BYTES, ..MakeOptions::default() }).unwrap();
    drop(Image::open(&other, &disk.options).unwrap());
    let image = disk.open();
    for round in 0..3 {
        assert!(has(&image, &format!("synced {round}")) && has(&image, &format!("only in memory {round}")));
    }
    assert_eq!(image.close().unwrap(), Closed::Last);
    assert_eq!(disk.runtime_directories(), 0);
}

#[test]
fn what_a_dead_process_left_of_another_image_is_not_believed() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    killed(|| {
        let image = disk.open();
        touch(&image, "synced");
        image.sync().unwrap();
        touch(&image, "only in memory");
        image
    });
    // A copy names the same runtime directory, and is another file.
    let after = disk.after_power_failure();
    assert!(has(&after, "synced") && !has(&after, "only in memory"));
    touch(&after, "in the copy");
    drop(after);
    let image = disk.open();
    assert!(has(&image, "only in memory") && !has(&image, "in the copy"));
}

#[test]
fn a_reader_recovers_in_memory_and_leaves_the_image_as_it_is() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    killed(|| {
        let image = disk.open();
        touch(&image, "only in memory");
        image
    });
    let reading = OpenImage { read_only: true, ..disk.options.clone() };
    let before = fs::read(&disk.path).unwrap();
    for _ in 0..2 {
        let image = Image::open(&disk.path, &reading).unwrap();
        assert!(has(&image, "only in memory"));
        assert!(image.fs().is_read_only() && image.report().unwrap().scanned);
    }
    assert!(fs::read(&disk.path).unwrap() == before, "reading changes no byte of the image's file");
    drop(disk.open());
    assert!(has(&Image::open(&disk.path, &reading).unwrap(), "only in memory"));
}

#[test]
fn exclusive_use_recovers_the_journal() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let image = disk.open();
    touch(&image, "synced");
    image.sync().unwrap();
    let copy = disk.directory.path().join("copy");
    fs::copy(&disk.path, &copy).unwrap();
    let length = {
        let alone = ExclusiveImage::open(&copy).unwrap();
        alone.mapping().length()
    };
    assert_eq!(length, IMAGE_BYTES, "without the journal");
    assert!(fs::metadata(&copy).unwrap().len() > IMAGE_BYTES);
    assert!(has(&Image::open(&copy, &disk.options).unwrap(), "synced"));
}

#[test]
fn without_commits_an_image_is_used_in_place() {
    let disk = Disk::new(CommitPolicy::Never);
    let image = disk.open();
    assert!(image.commit_status().is_none());
    touch(&image, "in place");
    assert!(has(&disk.after_power_failure(), "in place"), "the file itself is mapped");
    // The first process decides.
    let second = Image::open(&disk.path, &OpenImage { commits: CommitPolicy::WhenSynced, ..disk.options.clone() });
    assert!(second.unwrap().commit_status().is_none());
    drop(image);
    let committed = Image::open(&disk.path, &OpenImage { commits: CommitPolicy::WhenSynced, ..disk.options.clone() });
    assert!(committed.unwrap().commit_status().is_some());
}

#[test]
fn an_image_of_one_process_is_committed_as_well() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let alone = OpenImage { exclusive: true, ..disk.options.clone() };
    let image = Image::open(&disk.path, &alone).unwrap();
    touch(&image, "synced");
    image.sync().unwrap();
    touch(&image, "later");
    let after = disk.after_power_failure();
    assert!(has(&after, "synced") && !has(&after, "later"));
    drop((after, image));
    killed(|| {
        let image = Image::open(&disk.path, &alone).unwrap();
        touch(&image, "only in memory");
        image
    });
    assert!(has(&disk.open(), "only in memory"));
}

#[test]
fn a_journal_of_another_image_is_refused() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    drop(disk.open());
    let file = File::options().read(true).write(true).open(&disk.path).unwrap();
    let mut uuid = [0];
    file.read_exact_at(&mut uuid, 8).unwrap();
    file.write_all_at(&[uuid[0] ^ 1], 8).unwrap();
    let refused = Image::open(&disk.path, &disk.options).map(drop).unwrap_err();
    assert!(matches!(refused, ImageError::Journal { .. }), "{refused}");
    assert!(refused.to_string().contains("belongs to another image"), "{refused}");
}

#[test]
fn an_image_that_another_version_of_the_program_uses_is_refused_as_such() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let image = disk.open();
    let names = fs::read_dir(disk.directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let region = names.map(|path| path.join("region")).find(|region| region.exists()).unwrap();
    let region = File::options().read(true).write(true).open(region).unwrap();
    // The version is the second word of the DRAM region.
    let mut version = [0];
    region.read_exact_at(&mut version, 8).unwrap();
    region.write_all_at(&[version[0] + 1], 8).unwrap();
    let refused = Image::open(&disk.path, &disk.options).map(drop).unwrap_err();
    assert!(refused.to_string().contains("made by another version of this program"), "{refused}");
    region.write_all_at(&version, 8).unwrap();
    assert_eq!(image.close().unwrap(), Closed::Last);
}

#[test]
fn an_image_whose_file_lost_its_end_acknowledges_nothing() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let image = disk.open();
    touch(&image, "one");
    File::options().write(true).open(&disk.path).unwrap().set_len(IMAGE_BYTES / 2).unwrap();
    assert!(image.sync().is_err());
    assert!(matches!(image.close(), Err(ImageError::Truncated { .. })));
}

#[test]
fn a_process_whose_files_may_not_grow_has_its_commits_made_by_another() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let image = disk.open();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the child makes only the calls of this test, in its only thread, and does not return.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let options = OpenImage { commits: CommitPolicy::Every(Duration::from_millis(1)), ..disk.options.clone() };
        let own = Image::open(&disk.path, &options).unwrap();
        let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
        // SAFETY: a complete limit. The signal would end the process at a write behind the limit.
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
        touch(&own, "by the child");
        let answer = own.sync().map_or_else(|error| error.raw_os_error().unwrap_or(1) as u8, |()| 0);
        let _ = writer.write_all(&[answer]);
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(0) };
    }
    drop(writer);
    let mut answer = [255];
    reader.read_exact(&mut answer).unwrap();
    // SAFETY: waits for a child of this test.
    unsafe { libc::waitpid(child, &mut 0, 0) };
    assert_eq!(answer, [0]);
    drop(image);
    assert!(has(&disk.after_power_failure(), "by the child"));
}

#[test]
fn a_working_copy_without_room_for_more_is_recovered_and_the_next_one_has_room() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    // A process with a limit of file sizes makes one as earlier versions did.
    killed(|| {
        let limit = libc::rlimit { rlim_cur: 1 << 40, rlim_max: 1 << 40 };
        // SAFETY: a complete limit, of a child.
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
        let image = disk.open();
        touch(&image, "only in memory");
        assert!(matches!(image.grow(2 * IMAGE_BYTES), Err(ImageError::BeyondCapacity { most: IMAGE_BYTES, .. })));
        image
    });
    let image = disk.open();
    assert!(has(&image, "only in memory"));
    image.grow(2 * IMAGE_BYTES).unwrap();
    let other = disk.open();
    assert_eq!((image.length(), other.length()), (2 * IMAGE_BYTES, 2 * IMAGE_BYTES));
    touch(&other, "later");
    other.sync().unwrap();
    let after = disk.after_power_failure();
    assert!(has(&after, "later") && after.length() == 2 * IMAGE_BYTES);
}

#[test]
fn a_process_commits_what_others_did_in_space_of_which_it_does_not_know() {
    const LENGTH: usize = 40 << 20;
    let content: Vec<u8> = (0..LENGTH).map(|at| (at / 4096 + at) as u8).collect();
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let (writer, mut committer) = (disk.open(), disk.open());
    let _paused = committer.pause_services();
    writer.grow(2 * IMAGE_BYTES).unwrap();
    with_root(&writer, |session| {
        let file = session.open("file", libc::O_CREAT | libc::O_WRONLY).unwrap();
        assert_eq!(session.caller.data().write_at(&file, 0, &content), Ok(LENGTH));
        session.caller.opens().close(&file);
    });
    committer.sync().unwrap();
    with_root(&disk.after_power_failure(), |session| {
        let file = session.open("file", libc::O_RDONLY).unwrap();
        let mut found = vec![0; LENGTH];
        assert_eq!(session.caller.data().read(&file, &mut found), Ok(LENGTH));
        assert!(found == content);
        session.caller.opens().close(&file);
    });
}

#[test]
fn an_image_does_not_grow_while_its_file_is_copied_and_not_as_a_whole() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let image = disk.open();
    touch(&image, "one");
    let copy = disk.directory.path().join("snapshot");
    let mut grown = None;
    snapshot(&disk.path, &copy, None, &disk.options, &mut |_, _| {
        grown.get_or_insert_with(|| image.grow(2 * IMAGE_BYTES).map(drop));
        true
    })
    .unwrap();
    assert!(matches!(grown, Some(Err(ImageError::Changing { .. }))), "{grown:?}");
    image.grow(2 * IMAGE_BYTES).unwrap();
    let copied = Image::open(&copy, &disk.options).unwrap();
    assert!(has(&copied, "one") && copied.length() == IMAGE_BYTES);
    drop((copied, image));
    let whole = Image::open_atomic(&disk.path, &disk.options).unwrap();
    assert!(matches!(whole.grow(3 * IMAGE_BYTES), Err(ImageError::GrowsUnused { .. })));
}

#[test]
fn changes_that_are_held_back_are_committed_only_on_request() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let image = Image::open_atomic(&disk.path, &disk.options).unwrap();
    touch(&image, "dropped");
    image.sync().unwrap();
    drop(image);
    assert_eq!(disk.runtime_directories(), 0);
    assert!(!has(&disk.open(), "dropped"), "a value that is dropped, as after an error, commits nothing");
    let image = Image::open_atomic(&disk.path, &disk.options).unwrap();
    touch(&image, "closed");
    assert_eq!(image.close_atomic().unwrap(), Closed::Last);
    assert!(has(&disk.open(), "closed"));
}

#[test]
fn a_copy_to_discard_is_not_made_of_an_image_that_is_being_written() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let options = OpenImage { timeout: Duration::ZERO, ..disk.options.clone() };
    let image = disk.open();
    let refused = Image::open_discarding(&disk.path, &options).map(drop).unwrap_err();
    assert!(matches!(refused, ImageError::Written { .. }), "{refused}");
    drop(image);
    let copies = [0; 2].map(|_| Image::open_discarding(&disk.path, &options).unwrap());
    touch(&copies[0], "one");
    assert!(!has(&copies[1], "one"));
}

/// A directory with a mount on it, until the value is dropped.
struct Mounted(PathBuf);

fn c_path(path: &Path) -> std::ffi::CString {
    std::ffi::CString::new(path.to_str().unwrap()).unwrap()
}

impl Mounted {
    /// A file system in memory; `None`: this user may not mount.
    fn tmpfs(at: &Path, options: &std::ffi::CStr) -> Option<Mounted> {
        let (target, kind) = (c_path(at), c"tmpfs".as_ptr());
        // SAFETY: strings that end in zeros; mounts on a directory of this test.
        let mounted = unsafe { libc::mount(kind, target.as_ptr(), kind, 0, options.as_ptr().cast()) };
        if mounted != 0 {
            eprintln!("SKIPPED: mounting needs root");
        }
        (mounted == 0).then(|| Mounted(at.to_owned()))
    }

    fn bind(file: &Path, at: &Path) -> Mounted {
        let (source, target) = (c_path(file), c_path(at));
        // SAFETY: as above.
        let bound =
            unsafe { libc::mount(source.as_ptr(), target.as_ptr(), std::ptr::null(), libc::MS_BIND, std::ptr::null()) };
        assert_eq!(bound, 0);
        Mounted(at.to_owned())
    }

    fn forbid_writes(&self) {
        let (target, flags) = (c_path(&self.0), libc::MS_REMOUNT | libc::MS_RDONLY);
        // SAFETY: as above.
        let done =
            unsafe { libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), std::ptr::null(), flags, std::ptr::null()) };
        assert_eq!(done, 0);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // SAFETY: unmounts what this value mounted.
        unsafe { libc::umount2(c_path(&self.0).as_ptr(), libc::MNT_DETACH) };
    }
}

#[test]
fn where_memory_is_small_the_working_copy_lies_on_the_disk_or_is_refused_with_a_way_out() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let (small, closed) = (disk.directory.path().join("small"), disk.directory.path().join("closed"));
    fs::create_dir(&small).unwrap();
    fs::create_dir(&closed).unwrap();
    let Some(_memory) = Mounted::tmpfs(&small, c"size=128m") else { return };
    let Some(unwritable) = Mounted::tmpfs(&closed, c"size=1m") else { return };
    let options = OpenImage { dram_directory: small.clone(), ..disk.options.clone() };
    let large = disk.directory.path().join("large");
    let sparse = MakeOptions { length: 1 << 30, inodes_max: 1000, sparse: true, ..MakeOptions::default() };
    make(&large, &sparse).unwrap();
    let image = Image::open(&large, &options).unwrap();
    assert!(image.works_on_disk());
    drop(image);
    // Neither there nor beside the image.
    let inside = closed.join("image");
    File::create(&inside).unwrap();
    let _bound = Mounted::bind(&large, &inside);
    unwritable.forbid_writes();
    fs::write(small.join("filler"), vec![1; 120 << 20]).unwrap();
    let refused = Image::open(&inside, &options).map(drop).unwrap_err().to_string();
    assert!(refused.contains("--no-commit") && refused.contains("--shm-size"), "{refused}");
    assert!(refused.contains("Read-only file system"), "{refused}");
    assert_eq!(fs::read_dir(&small).unwrap().count(), 1, "the filler");
}

/// An image that may take a page of memory, and the hidden files beside it.
fn larger_than_its_memory() -> Disk {
    let mut disk = Disk::new(CommitPolicy::WhenSynced);
    disk.options.memory_bytes_max = Some(4096);
    disk
}

fn hidden_files(directory: &Path) -> usize {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(".directfs-")).count()
}

#[test]
fn the_hidden_file_goes_although_its_directory_was_renamed() {
    let disk = larger_than_its_memory();
    let [before, after] = ["before", "after"].map(|name| disk.directory.path().join(name));
    fs::create_dir(&before).unwrap();
    fs::rename(&disk.path, before.join("image")).unwrap();
    let image = Image::open(before.join("image"), &disk.options).unwrap();
    assert_eq!(hidden_files(&before), 1);
    fs::rename(&before, &after).unwrap();
    assert_eq!(image.close().unwrap(), Closed::Last);
    assert_eq!((hidden_files(&after), disk.runtime_directories()), (0, 0));
}

#[test]
fn an_image_larger_than_its_memory_has_its_working_copy_on_the_disk() {
    let disk = larger_than_its_memory();
    let directory = disk.directory.path();
    {
        let image = disk.open();
        touch(&image, "before");
    }
    let image = disk.open();
    assert!(image.works_on_disk() && hidden_files(directory) == 1);
    assert!(has(&image, "before"), "the working copy begins as the image");
    // The name of the image does not matter to the processes that come later, nor their options.
    let (renamed, below) = (directory.join("renamed"), directory.join("below"));
    fs::rename(&disk.path, &renamed).unwrap();
    fs::create_dir(&below).unwrap();
    fs::hard_link(&renamed, below.join("linked")).unwrap();
    let unbounded = OpenImage { memory_bytes_max: None, ..disk.options.clone() };
    for path in [renamed.clone(), below.join("linked")] {
        let other = Image::open(&path, &unbounded).unwrap();
        assert!(other.works_on_disk());
        touch(&other, path.file_name().unwrap().to_str().unwrap());
        assert_eq!(other.close().unwrap(), Closed::OthersRemain);
    }
    fs::rename(&renamed, &disk.path).unwrap();
    assert!(has(&image, "renamed") && has(&image, "linked"));
    touch(&image, "synced");
    image.sync().unwrap();
    touch(&image, "later");
    let after = disk.after_power_failure();
    assert!(has(&after, "synced") && !has(&after, "later"));
    drop(after);
    assert_eq!(image.close().unwrap(), Closed::Last);
    assert_eq!((hidden_files(directory), disk.runtime_directories()), (0, 0));
    assert!(has(&disk.after_power_failure(), "later"));
}

#[test]
fn an_image_that_is_removed_or_replaced_while_it_is_in_use_is_another_one() {
    for disk in [Disk::new(CommitPolicy::WhenSynced), larger_than_its_memory()] {
        let directory = disk.directory.path();
        let old = disk.open();
        touch(&old, "old");
        let other = directory.join("other");
        make(&other, &MakeOptions { length: IMAGE_BYTES, ..MakeOptions::default() }).unwrap();
        fs::rename(&other, &disk.path).unwrap();
        let new = disk.open();
        assert!(!has(&new, "old"));
        touch(&new, "new");
        for image in [&old, &new] {
            image.sync().unwrap();
        }
        assert_eq!(old.close().unwrap(), Closed::Last);
        assert!(has(&disk.after_power_failure(), "new"));
        fs::remove_file(&disk.path).unwrap();
        touch(&new, "later");
        new.sync().unwrap();
        assert!(has(&new, "new") && has(&new, "later"));
        assert_eq!(new.close().unwrap(), Closed::Last);
        assert_eq!((hidden_files(directory), disk.runtime_directories()), (0, 0));
        assert!(!disk.path.exists(), "a close makes no file");
    }
}

#[test]
fn what_dead_processes_left_on_the_disk_is_committed_or_removed() {
    let disk = larger_than_its_memory();
    let directory = disk.directory.path();
    let die_after = |name: &str| {
        killed(|| {
            let image = disk.open();
            touch(&image, name);
            image
        });
        assert_eq!(hidden_files(directory), 1);
    };
    die_after("first");
    assert!(has(&disk.open(), "first"), "the next process commits what the dead one had done");
    assert_eq!((hidden_files(directory), disk.runtime_directories()), (0, 0));
    // A machine that has just booted has no runtime directories.
    die_after("second");
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()) {
        if entry.file_name().to_string_lossy().starts_with("directfs-") {
            fs::remove_dir_all(entry.path()).unwrap();
        }
    }
    let image = disk.open();
    assert!(has(&image, "first") && !has(&image, "second"));
    drop(image);
    assert_eq!(hidden_files(directory), 0, "what is left of a working copy is removed");
    // When an image is gone, another image's process removes it.
    die_after("third");
    let other = Disk::new(CommitPolicy::WhenSynced);
    fs::remove_file(&disk.path).unwrap();
    let path = directory.join("other");
    fs::copy(&other.path, &path).unwrap();
    drop(Image::open(&path, &disk.options).unwrap());
    assert_eq!((hidden_files(directory), disk.runtime_directories()), (1, 1), "it may have been moved");
}

#[test]
fn copies_that_are_discarded_or_held_back_can_be_larger_than_the_memory() {
    let disk = larger_than_its_memory();
    let image = Image::open_discarding(&disk.path, &disk.options).unwrap();
    touch(&image, "discarded");
    drop(image);
    let image = Image::open_atomic(&disk.path, &disk.options).unwrap();
    touch(&image, "whole");
    image.sync().unwrap();
    assert!(!has(&disk.after_power_failure(), "whole"));
    assert_eq!(image.close_atomic().unwrap(), Closed::Last);
    let image = disk.open();
    assert!(has(&image, "whole") && !has(&image, "discarded"));
    assert_eq!(hidden_files(disk.directory.path()), 1, "that of the image in use");
}
