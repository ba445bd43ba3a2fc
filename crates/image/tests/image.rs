//! Making and opening images: sharing, exclusive use, crashes, and bad input.

#[path = "../../posix/tests/common/mod.rs"]
mod common;

use common::{ROOT, Scratch, Session, brief, options_in};
use engine::format::SuperblockError;
use image::{Closed, CommitPolicy, Image, ImageError, MakeOptions, OpenImage, make, make_watched};
use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

fn touch(image: &Image, name: &str) {
    let thread = image.fs().enter().unwrap();
    let root = thread.root().unwrap();
    Session::new(&thread, root, ROOT).touch(name, 0o644).unwrap();
    thread.release(root, 1);
}

fn has(image: &Image, name: &str) -> bool {
    let thread = image.fs().enter().unwrap();
    let root = thread.root().unwrap();
    let found = Session::new(&thread, root, ROOT).stat(name).is_ok();
    thread.release(root, 1);
    found
}

/// Files of DRAM regions in the scratch directory.
fn dram_files(scratch: &Scratch) -> usize {
    let entries = fs::read_dir(scratch.directory.path()).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("directfs-")).count()
}

#[test]
fn two_share_one_image_and_the_last_one_cleans_up() {
    let scratch = Scratch::new();
    assert!(scratch.image.report().is_some_and(|report| !report.scanned), "a fresh image is clean");
    let second = Image::open(&scratch.path, &scratch.options).unwrap();
    assert!(second.report().is_none() && second.is_shared());
    touch(&scratch.image, "one");
    assert!(has(&second, "one"), "visible at once");
    touch(&second, "two");
    assert!(has(&scratch.image, "two"));
    assert_eq!(dram_files(&scratch), 1);
    let Scratch { image, path, options, directory } = scratch;
    assert_eq!(image.close().unwrap(), Closed::OthersRemain);
    assert_eq!(second.close().unwrap(), Closed::Last);
    let image = Image::open(&path, &options).unwrap();
    assert!(!image.report().unwrap().scanned, "left clean");
    assert!(has(&image, "one") && has(&image, "two"));
    drop(image);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "only the image remains");
}

#[test]
fn exclusive_means_exclusive() {
    let scratch = Scratch::new();
    let alone = OpenImage { exclusive: true, ..brief(&scratch.options) };
    assert!(matches!(Image::open(&scratch.path, &alone), Err(ImageError::NotExclusive { .. })));
    let Scratch { image, path, options, directory: _directory } = scratch;
    image.close().unwrap();
    let image = Image::open(&path, &OpenImage { exclusive: true, ..options.clone() }).unwrap();
    assert!(!image.is_shared());
    assert!(matches!(Image::open(&path, &brief(&options)), Err(ImageError::InUse { .. })));
    assert!(matches!(Image::open(&path, &alone), Err(ImageError::NotExclusive { .. })));
    let reader = OpenImage { read_only: true, ..brief(&options) };
    assert!(matches!(Image::open(&path, &reader), Err(ImageError::InUse { .. })));
    let force = MakeOptions { length: common::IMAGE_BYTES, force: true, ..MakeOptions::default() };
    assert!(matches!(make(&path, &force), Err(ImageError::InUse { .. })), "not even with force");
    assert_eq!(image.close().unwrap(), Closed::Last);
    Image::open(&path, &options).unwrap();
}

#[test]
fn a_waiting_open_gets_the_image_when_it_is_free() {
    let Scratch { image, path, options, directory: _directory } = Scratch::new();
    let patient = OpenImage { exclusive: true, timeout: std::time::Duration::from_secs(600), ..options };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Image::open(&path, &patient).map(drop));
        std::thread::sleep(std::time::Duration::from_millis(100));
        image.close().unwrap();
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn readers_leave_no_trace() {
    let Scratch { image, path, options, directory: _directory } = Scratch::new();
    touch(&image, "f");
    image.close().unwrap();
    let before = fs::read(&path).unwrap();
    let reading = OpenImage { read_only: true, ..options.clone() };
    let one = Image::open(&path, &reading).unwrap();
    let two = Image::open(&path, &reading).unwrap();
    assert!(has(&one, "f") && has(&two, "f"));
    {
        let thread = one.fs().enter().unwrap();
        let root = thread.root().unwrap();
        let session = Session::new(&thread, root, ROOT);
        common::assert_errno(session.touch("g", 0o644), posix::Errno::EROFS);
        common::assert_errno(session.touch("f", 0o644), posix::Errno::EEXIST);
        common::assert_errno(session.unlink("none"), posix::Errno::EROFS);
        common::assert_errno(session.chmod("f", 0o600), posix::Errno::EROFS);
        common::assert_errno(session.try_open("f", libc::O_RDWR), posix::Errno::EROFS);
        session.try_open("f", libc::O_RDONLY).unwrap();
        thread.release(root, 1);
    }
    let writing = Image::open(&path, &brief(&options)).map(drop).unwrap_err();
    assert!(writing.to_string().contains("--read-only"), "a writer learns whom it waits for: {writing}");
    assert_eq!(one.close().unwrap(), Closed::ReadOnly);
    drop(two);
    assert!(fs::read(&path).unwrap() == before);
    Image::open(&path, &options).unwrap();
}

#[test]
fn what_a_dead_process_left_is_thrown_away() {
    let Scratch { image, path, options, directory } = Scratch::new();
    // A process that opens the image, changes it and dies.
    image.close().unwrap();
    // SAFETY: the child makes only calls of this test, in its only thread, and ends without
    // returning.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let image = Image::open(&path, &OpenImage { recovery_threads: 1, ..options.clone() });
        if let Ok(image) = &image {
            touch(image, "before-death");
        }
        // SAFETY: ends this process at once, whatever it holds.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "its DRAM region remains");
    let image = Image::open(&path, &options).unwrap();
    assert!(image.report().unwrap().scanned, "recovered");
    assert!(has(&image, "before-death"));
    touch(&image, "after");
    image.close().unwrap();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_forged_region_is_not_believed() {
    let scratch = Scratch::new();
    let runtime = runtime_directory(&scratch.directory);
    for planted in [runtime.join("region"), runtime] {
        if std::os::unix::fs::chown(&planted, Some(12345), Some(12345)).is_err() {
            println!("SKIPPED: a_forged_region_is_not_believed: needs root, to change an owner");
            return;
        }
        let refused = Image::open(&scratch.path, &scratch.options).map(drop).unwrap_err();
        assert!(matches!(refused, ImageError::CannotShare { .. }));
        assert!(refused.to_string().contains("user 12345"), "{refused}");
    }
}

#[test]
fn the_region_is_for_those_who_may_write_the_image() {
    for (mode, shared, entered) in [
        (0o600, 0o600, 0o700),
        (0o644, 0o600, 0o700),
        (0o660, 0o660, 0o710),
        (0o664, 0o660, 0o710),
        (0o666, 0o666, 0o711),
    ] {
        let Scratch { image, path, options, directory } = Scratch::new();
        image.close().unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let _image = Image::open(&path, &options).unwrap();
        let runtime = runtime_directory(&directory);
        let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode_of(&runtime.join("region")), shared, "image of mode {mode:o}");
        assert_eq!(mode_of(&runtime), entered, "its links are paths, which other users may not see");
    }
}

/// Its mode then shows the most that any named user or group may do, in place of what its group
/// may.
#[test]
fn an_access_list_that_gives_the_group_nothing_shares_nothing_with_it() {
    for (group, shared, copied) in [(0, 0o600, 0o600), (4, 0o600, 0o640), (6, 0o660, 0o660)] {
        let Scratch { image, path, options, directory } = Scratch::new();
        image.close().unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        // Root can give it to a group that is not its own.
        let _ = std::os::unix::fs::chown(&path, None, Some(54321));
        let gid = fs::metadata(&path).unwrap().gid();
        // The owner, user 12345, the group, the mask, others.
        let entries = [(1, 6, u32::MAX), (2, 6, 12345), (4, group, u32::MAX), (0x10, 6, u32::MAX), (0x20, 0, u32::MAX)];
        let entry = |(tag, permissions, id): (u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let list = [2u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat();
        let set = rustix::fs::setxattr(&path, "system.posix_acl_access", &list, rustix::fs::XattrFlags::empty());
        if set == Err(rustix::io::Errno::OPNOTSUPP) {
            println!(
                "SKIPPED: an_access_list_that_gives_the_group_nothing_shares_nothing_with_it: no access lists here"
            );
            return;
        }
        set.unwrap();
        let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode_of(&path), 0o660, "the mask");
        let image = Image::open(&path, &options).unwrap();
        assert_eq!(mode_of(&runtime_directory(&directory).join("region")), shared, "a group with {group}");
        image.close().unwrap();
        let copy = directory.path().join("copy");
        image::snapshot(&path, &copy, None, &options, &mut |_, _| true).unwrap();
        assert_eq!(mode_of(&copy), copied, "a group with {group}");
        assert!(copied == 0o600 || fs::metadata(&copy).unwrap().gid() == gid);
    }
}

/// The runtime directory of the only image in use in a directory.
fn runtime_directory(directory: &tempfile::TempDir) -> PathBuf {
    let entries = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut found = entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("directfs-"));
    let one = found.next().expect("a runtime directory");
    assert!(found.next().is_none());
    one
}

#[test]
fn a_copy_of_an_image_in_use_is_an_image_of_its_own() {
    let scratch = Scratch::new();
    touch(&scratch.image, "before");
    let copy = scratch.directory.path().join("copy");
    fs::copy(&scratch.path, &copy).unwrap();
    let other = Image::open(&copy, &scratch.options).unwrap();
    touch(&other, "in-the-copy");
    touch(&scratch.image, "in-the-original");
    // A third process of each finds the region of its image.
    let third = Image::open(&scratch.path, &scratch.options).unwrap();
    let fourth = Image::open(&copy, &scratch.options).unwrap();
    assert!(has(&third, "in-the-original") && !has(&third, "in-the-copy"));
    assert!(has(&fourth, "in-the-copy") && !has(&fourth, "in-the-original") && has(&fourth, "before"));
    drop((third, fourth));
    assert_eq!(other.close().unwrap(), Closed::Last);
    assert!(has(&scratch.image, "in-the-original"), "its region remains");
    let Scratch { image, path, options, directory } = scratch;
    assert_eq!(image.close().unwrap(), Closed::Last);
    for (path, name, others) in [(&path, "in-the-original", "in-the-copy"), (&copy, "in-the-copy", "in-the-original")] {
        let image = Image::open(path, &options).unwrap();
        assert!(!image.report().unwrap().scanned, "left clean");
        assert!(has(&image, name) && !has(&image, others));
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "the two images remain");
}

#[test]
fn a_copy_over_an_image_in_use_gets_no_region_of_another() {
    let scratch = Scratch::new();
    let path = scratch.directory.path().join("other");
    make(&path, &MakeOptions { length: common::IMAGE_BYTES, ..MakeOptions::default() }).unwrap();
    let other = Image::open(&path, &scratch.options).unwrap();
    // A file with the bytes of another image: its superblock names the other image's region.
    fs::copy(&scratch.path, &path).unwrap();
    let refused = Image::open(&path, &scratch.options).map(drop).unwrap_err();
    assert!(matches!(refused, ImageError::CannotShare { .. }), "{refused}");
    assert!(refused.to_string().contains("another image file"), "{refused}");
    std::mem::forget(other);
}

#[test]
fn an_image_that_is_renamed_or_linked_while_it_is_in_use_is_the_same() {
    let scratch = Scratch::new();
    let (renamed, linked) = (scratch.directory.path().join("renamed"), scratch.directory.path().join("linked"));
    fs::rename(&scratch.path, &renamed).unwrap();
    fs::hard_link(&renamed, &linked).unwrap();
    touch(&scratch.image, "one");
    for path in [&renamed, &linked] {
        assert!(has(&Image::open(path, &scratch.options).unwrap(), "one"));
    }
    // A new file with the old name is another image.
    make(&scratch.path, &MakeOptions { length: common::IMAGE_BYTES, ..MakeOptions::default() }).unwrap();
    assert!(!has(&Image::open(&scratch.path, &scratch.options).unwrap(), "one"));
}

#[test]
fn leftovers_of_other_images_are_removed_and_what_is_in_use_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let options = options_in(&directory);
    let image_at = |name: &str| {
        let path = directory.path().join(name);
        make(&path, &MakeOptions { length: common::IMAGE_BYTES, ..MakeOptions::default() }).unwrap();
        path
    };
    let used = Image::open(image_at("used"), &options).unwrap();
    let gone = directory.path().join("gone");
    fs::create_dir(&gone).unwrap();
    let dead = image_at("gone/dead");
    // SAFETY: the child makes only calls of this test, in its only thread, and ends without
    // returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // Without a working copy, which would be kept (see tests/left.rs).
        let in_place = OpenImage { recovery_threads: 1, commits: CommitPolicy::Never, ..options.clone() };
        let _image = Image::open(&dead, &in_place);
        // SAFETY: ends this process at once, whatever it holds.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    assert!(!ended_well(child));
    fs::remove_dir_all(&gone).unwrap();
    // A foreign directory with a matching name, and a foreign file in it.
    let precious = directory.path().join("directfs-00000000000000aa");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("precious"), "").unwrap();
    let count = || fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(count(), 4, "an image, two runtime directories, one other");
    let third = Image::open(image_at("third"), &options).unwrap();
    assert_eq!(count(), 5, "that of the dead process is removed");
    touch(&used, "still there");
    assert!(has(&Image::open(directory.path().join("used"), &options).unwrap(), "still there"));
    drop((used, third));
    assert!(precious.join("precious").exists());
}

/// Its maker may be between any two of its steps when another process looks for leftovers.
#[test]
fn a_runtime_directory_that_is_being_made_is_no_leftover() {
    let scratch = Scratch::new();
    let made = scratch.directory.path().join("directfs-0123456789abcdef");
    fs::create_dir(&made).unwrap();
    let maker = fs::File::open(&made).unwrap();
    rustix::fs::flock(&maker, rustix::fs::FlockOperation::LockShared).unwrap();
    // A process that looks at it now has seen no meeting directory.
    fs::write(made.join("region"), "").unwrap();
    let Scratch { image, path, options, directory: _directory } = scratch;
    image.close().unwrap();
    drop(Image::open(&path, &options).unwrap());
    assert!(made.join("region").exists());
    drop(maker);
    drop(Image::open(&path, &options).unwrap());
    assert!(!made.exists(), "its maker was killed");
}

#[test]
fn bad_images_are_refused_and_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let options = options_in(&directory);
    let open = || Image::open(&path, &options).map(drop).unwrap_err();
    assert!(open().to_string().contains("does not exist"));
    assert!(Image::open(directory.path(), &options).map(drop).unwrap_err().to_string().contains("directory"));

    fs::write(&path, vec![7u8; 1 << 20]).unwrap();
    assert!(matches!(open(), ImageError::NotUsable { cause: SuperblockError::NotAnImage, .. }));
    fs::write(&path, b"short").unwrap();
    open();

    let force = MakeOptions { length: common::IMAGE_BYTES, force: true, ..MakeOptions::default() };
    make(&path, &force).unwrap();
    let whole = fs::read(&path).unwrap();
    let damage = |offset: u64, bytes: &[u8]| {
        fs::write(&path, &whole).unwrap();
        let mut file = OpenOptions::new().write(true).open(&path).unwrap();
        file.seek(SeekFrom::Start(offset)).unwrap();
        file.write_all(bytes).unwrap();
    };
    damage(88, &[9]);
    assert!(matches!(open(), ImageError::NotUsable { cause: SuperblockError::Version { found: 9 }, .. }));
    damage(24, b"another label");
    let torn = open();
    assert!(matches!(torn, ImageError::NotUsable { cause: SuperblockError::Checksum { copy_is_good: true }, .. }));
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(matches!(open(), ImageError::NotUsable { cause: SuperblockError::Truncated { .. }, .. }));
    assert_eq!(fs::read(&path).unwrap(), whole[..whole.len() / 2], "nothing was written");
    fs::write(&path, &whole).unwrap();
    Image::open(&path, &options).unwrap();
}

#[test]
fn mkfs_overwrites_nothing_unasked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let plain = MakeOptions { length: common::IMAGE_BYTES, label: "a label".into(), ..MakeOptions::default() };
    let made = make(&path, &plain).unwrap();
    assert_eq!((made.length, made.reserved), (common::IMAGE_BYTES, true));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(make(&path, &plain), Err(ImageError::WouldOverwrite { .. })));
    fs::write(&path, b"precious").unwrap();
    assert!(matches!(make(&path, &plain), Err(ImageError::WouldOverwrite { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    let too_large = MakeOptions { length: 1 << 45, force: true, ..plain.clone() };
    assert!(matches!(make(&path, &too_large), Err(ImageError::NoSpace { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"precious", "not overwritten with bad parameters");
    let small = MakeOptions { length: 4096, force: true, ..plain.clone() };
    assert!(matches!(make(&path, &small), Err(ImageError::Size { .. })));
    let labelled = MakeOptions { label: "l".repeat(65), force: true, ..plain.clone() };
    assert!(matches!(make(&path, &labelled), Err(ImageError::Label { length: 65 })));
    make(&path, &MakeOptions { force: true, ..plain.clone() }).unwrap();
    let fresh = directory.path().join("fresh");
    assert!(make(&fresh, &too_large).is_err());
    assert!(!fresh.exists(), "no partial file");
    assert!(!make(&fresh, &MakeOptions { sparse: true, ..plain }).unwrap().reserved);
}

/// The maps of its blocks and inodes are zero but for their ends: 8 MiB.
#[test]
fn a_large_image_in_memory_takes_little_memory_before_it_is_used() {
    let make = MakeOptions { length: 64 << 30, ..MakeOptions::default() };
    let image = Image::in_memory(&make, &OpenImage::default()).unwrap();
    let taken_bytes = || image.mapping().file().unwrap().metadata().unwrap().blocks() * 512;
    assert!(taken_bytes() < 2 << 20, "{} bytes", taken_bytes());
    touch(&image, "file");
    assert!(has(&image, "file") && taken_bytes() < 4 << 20, "{} bytes", taken_bytes());
}

#[test]
fn an_image_in_memory_has_huge_pages_from_the_start() {
    // The kernel may have no huge page for the image right after it had one.
    for _ in 0..20 {
        if !huge_pages_can_be_had() {
            eprintln!(
                "SKIPPED an_image_in_memory_has_huge_pages_from_the_start: needs /dev/shm with huge pages (MADV_COLLAPSE)"
            );
            return;
        }
        let Scratch { path, image: _used, directory: _directory, .. } = Scratch::new();
        if huge_bytes(&path) > 0 {
            return;
        }
    }
    panic!("smaps shows no huge page where the image is mapped");
}

/// Bytes of a file that are mapped into this process as huge pages.
fn huge_bytes(path: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut here = false;
    let mut kib = 0;
    for line in maps.lines() {
        if let Some(count) = line.strip_prefix("ShmemPmdMapped:") {
            kib += if here { count.trim().trim_end_matches(" kB").parse::<u64>().unwrap() } else { 0 };
        } else if line.as_bytes()[0].is_ascii_hexdigit() && line.split(' ').next().unwrap().contains('-') {
            here = line.ends_with(path.to_str().unwrap());
        }
    }
    kib << 10
}

/// Whether the kernel provides a huge page for a file next to the images.
fn huge_pages_can_be_had() -> bool {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else { return false };
    let path = directory.path().join("probe");
    fs::File::create(&path).unwrap().set_len(4 << 20).unwrap();
    let probe = pmem::Mapping::open(&path, pmem::Access::ReadWrite).unwrap();
    let address = probe.address().map_addr(|address| address.next_multiple_of(2 << 20));
    tables::host::collapse(address, 2 << 20);
    // SAFETY: mapped; the collapsed page is mapped as a huge page from the first access on.
    unsafe { address.read_volatile() };
    huge_bytes(&path) > 0
}

#[test]
fn an_image_that_is_not_wanted_any_more_while_it_is_made_is_not_there() {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = directory.path().join("image");
    let options = MakeOptions { length: 256 << 20, force: true, ..MakeOptions::default() };
    let mut heard = Vec::new();
    let stopped = make_watched(&path, &options, &mut |done, total| {
        heard.push((done, total));
        heard.len() < 2
    });
    assert!(matches!(stopped, Err(ImageError::Stopped { .. })));
    assert_eq!(heard, [(64 << 20, 256 << 20), (128 << 20, 256 << 20)]);
    assert!(!path.exists(), "a new one is removed");
    fs::write(&path, b"precious").unwrap();
    assert!(matches!(make_watched(&path, &options, &mut |_, _| false), Err(ImageError::Stopped { .. })));
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 0, "no blocks remain reserved in an existing file");
}

#[test]
fn a_reader_sees_what_a_concurrent_writer_writes() {
    let Scratch { image, path, options, directory: _directory } = Scratch::new();
    let reading = OpenImage { read_only: true, ..options.clone() };
    touch(&image, "before");
    let reader = Image::open(&path, &reading).unwrap();
    assert!(reader.is_shared() && reader.fs().is_read_only());
    let alone = OpenImage { exclusive: true, ..brief(&reading) };
    assert!(matches!(Image::open(&path, &alone), Err(ImageError::NotExclusive { .. })), "other processes write it");
    touch(&image, "after");
    assert!(has(&reader, "before") && has(&reader, "after"));
    {
        let thread = reader.fs().enter().unwrap();
        let root = thread.root().unwrap();
        let session = Session::new(&thread, root, ROOT);
        common::assert_errno(session.touch("g", 0o644), posix::Errno::EROFS);
        common::assert_errno(session.unlink("before"), posix::Errno::EROFS);
        thread.release(root, 1);
    }
    // Processes that attach and detach beside a reader find the region that it keeps alive.
    assert_eq!(image.close().unwrap(), Closed::OthersRemain);
    let second = Image::open(&path, &options).unwrap();
    touch(&second, "later");
    assert!(has(&reader, "later"));
    assert_eq!(second.close().unwrap(), Closed::OthersRemain);
    assert_eq!(reader.close().unwrap(), Closed::Last, "the last one marks the image clean, even a reader");
    let again = Image::open(&path, &options).unwrap();
    assert!(!again.report().unwrap().scanned);
    assert!(has(&again, "later"));
}

/// A child that has only the handed-off descriptors, and ends when the pipe does.
fn receiver(handoff: &image::Handoff, options: &OpenImage) -> (libc::pid_t, fs::File, fs::File) {
    use std::io::Read;
    let copy = |fd: rustix::fd::BorrowedFd<'_>| fs::File::from(fd.try_clone_to_owned().unwrap());
    let (until, end) = std::io::pipe().unwrap();
    let (started, start) = std::io::pipe().unwrap();
    let handed_off = image::HandedOff {
        image: copy(handoff.image().0),
        journal: handoff.journal().map(copy),
        region: copy(handoff.region().0),
        meeting: handoff.meeting().try_clone_to_owned().unwrap(),
    };
    // SAFETY: the child uses its own resources in its only thread, and ends without returning.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        drop((end, started));
        let image = Image::open_handed_off(handed_off, options);
        if let Ok(image) = &image {
            touch(image, "by-the-borrower");
        }
        drop(start);
        let _ = fs::File::from(std::os::fd::OwnedFd::from(until)).read(&mut [0]);
        // SAFETY: ends this process at once, with the image in use.
        unsafe { libc::_exit(i32::from(image.is_err())) };
    }
    (child, fs::File::from(std::os::fd::OwnedFd::from(end)), fs::File::from(std::os::fd::OwnedFd::from(started)))
}

fn ended_well(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: waits for a child of this test.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status == 0
}

#[test]
fn an_image_in_memory_is_used_by_processes_that_inherit_it() {
    use std::io::Read;
    let make = MakeOptions { length: common::IMAGE_BYTES, ..MakeOptions::default() };
    let options = OpenImage::default();
    let image = Image::in_memory(&make, &options).unwrap();
    let handoff = image.hand_off().unwrap();
    let (child, end, mut started) = receiver(&handoff, &options);
    let meeting = handoff.meeting().try_clone_to_owned().unwrap();
    let handoff_id = handoff.into_id();
    started.read_to_end(&mut Vec::new()).unwrap();
    assert!(has(&image, "by-the-borrower"));
    assert!(!image.is_handoff_over(handoff_id).unwrap());
    drop(end);
    image.wait_for_handoff(handoff_id).unwrap();
    assert!(ended_well(child));
    // The object behind a FIFO is removed with its directory.
    let locks = fs::read_link(format!("/proc/self/fd/{}", meeting.as_raw_fd())).unwrap();
    let meeting = locks.parent().unwrap();
    fs::write(meeting.join("fifo-1"), "").unwrap();
    assert_eq!(image.close().unwrap(), Closed::Last);
    assert!(!meeting.parent().unwrap().exists(), "{}", meeting.display());
}

#[test]
fn a_handed_off_image_stays_in_use_after_its_owner_has_ended() {
    let Scratch { image, path, options, directory } = Scratch::new();
    let handoff = image.hand_off().unwrap();
    let (child, end, _) = receiver(&handoff, &options);
    let handoff_id = handoff.into_id();
    assert!(!image.is_handoff_over(handoff_id).unwrap());
    assert_eq!(image.close().unwrap(), Closed::OthersRemain);
    let alone = OpenImage { exclusive: true, ..brief(&options) };
    assert!(matches!(Image::open(&path, &alone), Err(ImageError::NotExclusive { .. })));
    let second = Image::open(&path, &options).unwrap();
    assert!(second.report().is_none(), "no recovery while a borrower uses it");
    drop(end);
    assert!(ended_well(child));
    assert_eq!(second.close().unwrap(), Closed::Last);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "only the image remains");
}

/// Puts memory without pages, as bad blocks are, in place of a range of a mapped image.
fn lose(image: &Image, offset: u64, length: u64) {
    let empty = tempfile::tempfile_in("/dev/shm").unwrap();
    let at = image.mapping().address().wrapping_add(offset as usize).cast();
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: replaces pages of the image, which only regions access.
    let mapped = unsafe { libc::mmap(at, length as usize, protection, flags, empty.as_raw_fd(), 0) };
    assert_eq!(mapped, at);
}

#[test]
fn memory_errors_below_content_are_errors_of_that_file_alone() {
    const PAGE: u64 = 4096;
    pmem::survive_truncations();
    let scratch = Scratch::new();
    let thread = scratch.image.fs().enter().unwrap();
    let root = thread.root().unwrap();
    let session = Session::new(&thread, root, ROOT);
    let node = |name: &str| session.stat(name).map(|found| thread.node(found.number, None).unwrap()).unwrap();
    let [lost, whole] = ["lost", "whole"].map(|name| {
        session.touch(name, 0o644).unwrap();
        let node = node(name);
        thread.files().write(node, 0, &[7; 8 * PAGE as usize]).unwrap();
        node
    });
    let place = thread.files().extent(lost, 0).unwrap().address.unwrap();
    lose(&scratch.image, place + 2 * PAGE, PAGE);
    // As where the kernel lists bad blocks.
    pmem::expect_memory_errors();
    let mut bytes = [0; 8 * PAGE as usize];
    let failed = Err(engine::Error::ContentLost);
    assert_eq!(thread.files().read(lost, 0, &mut bytes), failed);
    assert_eq!(thread.files().read(lost, 2 * PAGE + 9, &mut bytes[..1]), failed, "each time");
    assert_eq!(thread.files().read(lost, 3 * PAGE, &mut bytes), Ok(5 * PAGE as usize), "what is not lost");
    assert_eq!(
        thread.files().write(lost, 2 * PAGE + 9, b"x"),
        failed.map(|_: usize| 0),
        "the rest of the block is lost"
    );
    assert_eq!(thread.files().read(whole, 0, &mut bytes), Ok(bytes.len()));
    let copied = scratch.image.copy_into(&tempfile::tempfile().unwrap(), &mut |_, _| true);
    assert!(matches!(copied, Err(ImageError::LostContent { .. })), "a copy does not hold zeros instead: {copied:?}");
    assert_eq!(thread.files().read(whole, 0, &mut bytes), Ok(bytes.len()), "and the image can be used");
    // A new block takes the place of the lost one, which no file gets from now on.
    thread.files().write(lost, 2 * PAGE, &[8; PAGE as usize]).unwrap();
    assert_eq!(thread.files().read(lost, 0, &mut bytes), Ok(bytes.len()));
    let mut written = 0;
    while thread.files().append(whole, &[9; 64 * PAGE as usize]).is_ok() {
        written += 64;
    }
    assert!(written > 0);
    let mut at = 0;
    while let Ok(extent) = thread.files().extent(whole, at) {
        let address = extent.address.unwrap();
        assert!(!(address..address + extent.length).contains(&(place + 2 * PAGE)), "{extent:?}");
        at = extent.offset + extent.length;
    }
    assert!(pmem::any_content_lost() && pmem::any_loss().is_none() && !scratch.image.is_truncated());
    // Metadata has no other place: the image fails.
    lose(&scratch.image, 0, PAGE);
    let _ = scratch.image.fs().pm().first::<engine::format::Superblock>().unwrap().state();
    assert_eq!(scratch.image.mapping().loss(), Some(pmem::Loss::MemoryError));
}
