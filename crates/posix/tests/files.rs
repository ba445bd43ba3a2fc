//! Opening files, and their content.

use crate::common::{ALICE, ROOT, Session, assert_errno, inside};
use libc::{
    O_APPEND, O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_PATH, O_RDONLY, O_RDWR, O_TMPFILE, O_TRUNC, O_WRONLY,
};
use posix::path::LastLink;
use posix::{Errno, Whence};

#[test]
fn open_reports_errors_in_the_order_of_linux() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        s.mkdir("d", 0o755).unwrap();
        s.touch("f", 0o644).unwrap();
        s.symlink("f", "l").unwrap();
        s.symlink("d", "ld").unwrap();
        s.symlink("nowhere", "dangling").unwrap();
        for (path, flags, expected) in [
            ("none", O_RDONLY, Errno::ENOENT),
            ("", O_RDONLY, Errno::ENOENT),
            ("f/", O_RDONLY, Errno::ENOTDIR),
            ("f", O_DIRECTORY, Errno::ENOTDIR),
            ("d", O_WRONLY, Errno::EISDIR),
            ("d", O_RDWR, Errno::EISDIR),
            ("d", O_CREAT, Errno::EISDIR),
            ("d", O_TRUNC, Errno::EISDIR),
            ("d", O_CREAT | O_EXCL, Errno::EEXIST),
            (".", O_CREAT, Errno::EISDIR),
            ("/", O_CREAT, Errno::EISDIR),
            ("new/", O_CREAT | O_WRONLY, Errno::EISDIR),
            ("f", O_CREAT | O_EXCL, Errno::EEXIST),
            ("l", O_CREAT | O_EXCL, Errno::EEXIST),
            ("dangling", O_CREAT | O_EXCL, Errno::EEXIST),
            ("l", O_NOFOLLOW, Errno::ELOOP),
            ("l", O_NOFOLLOW | O_CREAT, Errno::ELOOP),
            ("ld", O_NOFOLLOW | O_DIRECTORY, Errno::ENOTDIR),
            ("dangling", O_RDONLY, Errno::ENOENT),
            ("f", O_CREAT | O_DIRECTORY, Errno::EINVAL),
            ("d", O_TMPFILE, Errno::EINVAL),
            ("f", O_TMPFILE | O_RDWR, Errno::ENOTDIR),
            ("none", O_TMPFILE | O_RDWR, Errno::ENOENT),
        ] {
            let result = s.try_open(path, flags);
            assert_eq!(result, Err(expected), "{path:?}, flags {flags:#o}");
        }
        s.try_open("ld", O_DIRECTORY).unwrap();
        s.try_open("l", O_NOFOLLOW | O_PATH).unwrap();
        s.try_open("ld/", O_NOFOLLOW | O_DIRECTORY).unwrap();
        s.try_open("dangling", O_CREAT | O_WRONLY).unwrap();
        s.stat("nowhere").expect("created at the link's target");
    });
}

#[test]
fn the_creator_of_a_file_may_use_it() {
    inside(|thread, root| {
        let alice = Session::new(thread, root, ALICE);
        let file = alice.open_mode("f", O_CREAT | O_RDWR, 0o000).unwrap();
        assert_eq!(alice.caller.data().write(&file, b"secret").unwrap(), 6);
        alice.caller.opens().close(&file);
        assert_errno(alice.try_open("f", O_RDONLY), Errno::EACCES);
    });
}

#[test]
fn a_description_reads_and_writes_at_its_position() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ALICE);
        let c = &s.caller;
        let file = s.open("f", O_CREAT | O_RDWR).unwrap();
        assert_eq!(c.data().write(&file, b"hello world").unwrap(), 11);
        assert_eq!(c.data().seek(&file, -5, Whence::Current).unwrap(), 6);
        let mut buffer = [0; 64];
        assert_eq!(c.data().read(&file, &mut buffer).unwrap(), 5);
        assert_eq!(&buffer[..5], b"world");
        assert_eq!(c.data().read(&file, &mut buffer).unwrap(), 0);
        assert_eq!(c.data().read_at(&file, 0, &mut buffer).unwrap(), 11);
        assert_eq!(c.data().write_at(&file, 0, b"J").unwrap(), 1);
        assert_eq!(c.data().seek(&file, 2, Whence::End).unwrap(), 13);
        assert_errno(c.data().seek(&file, -1, Whence::Set), Errno::EINVAL);
        assert_errno(c.data().seek(&file, i64::MAX, Whence::Current), Errno::EINVAL);
        assert_errno(c.data().read_at(&file, -1, &mut buffer), Errno::EINVAL);
        // No offset names the end.
        assert_errno(c.data().write_at(&file, i64::MAX, b"xy"), Errno::EINVAL);
        assert_errno(c.data().read_at(&file, i64::MAX, &mut buffer), Errno::EINVAL);
        assert_errno(c.data().write_at(&file, i64::MAX - 1, b"x"), Errno::EFBIG);
        assert_eq!(c.data().read_at(&file, i64::MAX - 100, &mut buffer).unwrap(), 0);
        assert_eq!(c.data().write(&file, b"!").unwrap(), 1);
        assert_eq!(c.data().read_at(&file, 0, &mut buffer).unwrap(), 14);
        assert_eq!(&buffer[..14], b"Jello world\0\0!");
        c.data().truncate_open(&file, 4).unwrap();
        assert_eq!(c.stat(file.node()).unwrap().size_bytes, 4);
        c.opens().close(&file);
        let file = s.open("f", O_RDONLY).unwrap();
        assert_errno(c.data().write(&file, b"x"), Errno::EBADF);
        assert_errno(c.data().truncate_open(&file, 0), Errno::EINVAL);
        assert_errno(c.data().allocate(&file, 0, 0, 1), Errno::EBADF);
        c.opens().close(&file);
        let file = s.open("f", O_WRONLY | O_TRUNC).unwrap();
        assert_errno(c.data().read(&file, &mut buffer), Errno::EBADF);
        assert_eq!(c.stat(file.node()).unwrap().size_bytes, 0);
        c.opens().close(&file);
        let directory = s.open("/", O_RDONLY).unwrap();
        assert_errno(c.data().read(&directory, &mut buffer), Errno::EISDIR);
        c.opens().close(&directory);
        let path = s.open("f", O_PATH).unwrap();
        assert_errno(c.data().read(&path, &mut buffer), Errno::EBADF);
        assert_errno(c.data().seek(&path, 0, Whence::Set), Errno::EBADF);
        c.opens().close(&path);
    });
}

#[test]
fn appends_of_two_descriptions_do_not_overlap() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ALICE);
        let one = s.open("log", O_CREAT | O_WRONLY | O_APPEND).unwrap();
        let two = s.open("log", O_RDWR | O_APPEND).unwrap();
        s.caller.data().write(&one, b"aa").unwrap();
        s.caller.data().write(&two, b"bb").unwrap();
        s.caller.data().write_at(&one, 0, b"cc").unwrap();
        let mut text = [0; 8];
        assert_eq!(s.caller.data().read_at(&two, 0, &mut text).unwrap(), 6);
        assert_eq!(&text[..6], b"aabbcc");
        s.caller.opens().close(&one);
        s.caller.opens().close(&two);
    });
}

#[test]
fn files_live_on_without_a_name() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ALICE);
        let file = s.open("f", O_CREAT | O_RDWR).unwrap();
        s.unlink("f").unwrap();
        s.caller.data().write(&file, b"still here").unwrap();
        let mut text = [0; 10];
        assert_eq!(s.caller.data().read_at(&file, 0, &mut text).unwrap(), 10);
        assert_eq!(s.caller.stat(file.node()).unwrap().links, 0);
        assert_errno(s.caller.link(file.node(), root, b"again", file.is_linkable()), Errno::ENOENT);
        s.caller.opens().close(&file);

        s.mkdir("d", 0o755).unwrap();
        let unnamed = s.open_mode("d", O_TMPFILE | O_RDWR, 0o640).unwrap();
        s.caller.data().write(&unnamed, b"new").unwrap();
        assert_eq!(s.list("d").unwrap().len(), 2);
        s.caller.link(unnamed.node(), root, b"named", unnamed.is_linkable()).unwrap();
        s.caller.opens().close(&unnamed);
        let named = s.stat("named").unwrap();
        assert_eq!((named.size_bytes, named.links, named.mode & 0o7777), (3, 1, 0o640));
        let private = s.open_mode("d", O_TMPFILE | O_RDWR | O_EXCL, 0o640).unwrap();
        assert_errno(s.caller.link(private.node(), root, b"no", private.is_linkable()), Errno::ENOENT);
        s.caller.opens().close(&private);
    });
}

#[test]
fn truncate_and_fallocate_check_their_arguments() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ALICE);
        let c = &s.caller;
        s.mkdir("d", 0o755).unwrap();
        s.touch("f", 0o644).unwrap();
        let truncate = |path: &str, length| s.at(path, |node| c.data().truncate(node, length));
        assert_errno(truncate("d", 0), Errno::EISDIR);
        assert_errno(truncate("f", -1), Errno::EINVAL);
        truncate("f", 10_000).unwrap();
        assert_eq!(s.stat("f").unwrap().size_bytes, 10_000);
        let file = s.open("f", O_RDWR).unwrap();
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let punch = libc::FALLOC_FL_PUNCH_HOLE;
        for (mode, offset, length, expected) in [
            (0, -1, 10, Errno::EINVAL),
            (0, 0, 0, Errno::EINVAL),
            (0x80, 0, 1, Errno::EOPNOTSUPP),
            (punch, 0, 1, Errno::EOPNOTSUPP),
            (libc::FALLOC_FL_COLLAPSE_RANGE | keep, 0, 4096, Errno::EOPNOTSUPP),
            (0, i64::MAX, 1, Errno::EFBIG),
        ] {
            assert_eq!(
                c.data().allocate(&file, mode, offset, length),
                Err(expected),
                "mode {mode:#x} {offset} {length}"
            );
        }
        c.data().allocate(&file, 0, 0, 20_000).unwrap();
        assert_eq!(s.stat("f").unwrap().size_bytes, 20_000);
        c.data().allocate(&file, keep, 0, 30_000).unwrap();
        assert_eq!(s.stat("f").unwrap().size_bytes, 20_000);
        c.data().write_at(&file, 0, &[7; 12_288]).unwrap();
        c.data().allocate(&file, punch | keep, 4096, 4096).unwrap();
        let mut byte = [1];
        c.data().read_at(&file, 5000, &mut byte).unwrap();
        assert_eq!(byte, [0]);
        assert_eq!(c.data().seek(&file, 0, Whence::Hole).unwrap(), 4096);
        assert_eq!(c.data().seek(&file, 4096, Whence::Data).unwrap(), 8192);
        assert_errno(c.data().seek(&file, 20_000, Whence::Data), Errno::ENXIO);
        c.opens().close(&file);
    });
}

#[test]
fn ranges_are_copied() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ALICE);
        let c = &s.caller;
        let from = s.open("from", O_CREAT | O_RDWR).unwrap();
        let to = s.open("to", O_CREAT | O_RDWR).unwrap();
        let content: Vec<u8> = (0..100_000u32).map(|index| (index % 251) as u8).collect();
        c.data().write_at(&from, 0, &content).unwrap();
        let mut buffer = vec![0; 16_384];
        assert_eq!(c.data().copy_range((&from, 10), (&to, 5), 1 << 30, &mut buffer).unwrap(), 99_990);
        let mut copied = vec![0; 99_990];
        assert_eq!(c.data().read_at(&to, 5, &mut copied).unwrap(), 99_990);
        assert_eq!(copied, content[10..]);
        assert_errno(c.data().copy_range((&from, 0), (&from, 10), 100, &mut buffer), Errno::EINVAL);
        assert_eq!(c.data().copy_range((&from, 0), (&from, 100_000), 100, &mut buffer).unwrap(), 100);
        c.opens().close(&from);
        c.opens().close(&to);
    });
}

#[test]
fn reading_is_noted_now_and_then() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        let c = &s.caller;
        let file = s.open("f", O_CREAT | O_RDWR).unwrap();
        c.data().write(&file, b"x").unwrap();
        let modified = c.stat(file.node()).unwrap().modified_ns;
        let long_ago = posix::TimeToSet::At(modified - 1_000_000_000);
        c.set_times(file.node(), long_ago, posix::TimeToSet::Omit).unwrap();
        let mut byte = [0];
        c.data().read_at(&file, 0, &mut byte).unwrap();
        assert!(c.stat(file.node()).unwrap().accessed_ns >= modified, "updated if older than the last change");
        c.opens().close(&file);
        s.symlink("target", "l").unwrap();
        let mut target = [0; 64];
        let length = s.at_link("l", LastLink::Stay, |node| c.readlink(node, &mut target)).unwrap();
        assert_eq!(&target[..length], b"target");
        assert_errno(s.at("f", |node| c.readlink(node, &mut target)), Errno::EINVAL);
    });
}
