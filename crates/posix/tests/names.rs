//! Making, removing and renaming names: the errors, in the order of Linux.

use crate::common::{ALICE, ROOT, Session, assert_errno, inside};
use posix::{Errno, LINKS_MAX};

#[test]
fn what_exists_cannot_be_made() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        s.mkdir("d", 0o755).unwrap();
        s.touch("f", 0o644).unwrap();
        s.symlink("nowhere", "l").unwrap();
        for path in ["d", "f", "l", "d/", ".", "..", "/", "d/.", "d/.."] {
            assert_errno(s.mkdir(path, 0o755), Errno::EEXIST);
        }
        for path in ["d", "f", "l", "."] {
            assert_errno(s.symlink("x", path), Errno::EEXIST);
            assert_errno(s.mknod(path, libc::S_IFREG | 0o644), Errno::EEXIST);
            assert_errno(s.link("f", path), Errno::EEXIST);
            assert_errno(s.touch(path, 0o644), Errno::EEXIST);
        }
        s.mkdir("new/", 0o755).unwrap();
        assert_errno(s.symlink("x", "none/"), Errno::ENOENT);
        assert_errno(s.mknod("none/", libc::S_IFREG), Errno::ENOENT);
        assert_errno(s.symlink("x", "d/"), Errno::EEXIST);
        assert_errno(s.mkdir("f/x", 0o755), Errno::ENOTDIR);
        assert_errno(s.mkdir("none/x", 0o755), Errno::ENOENT);
        assert_errno(s.mknod("n", libc::S_IFDIR | 0o755), Errno::EPERM);
        assert_errno(s.mknod("n", libc::S_IFLNK | 0o755), Errno::EINVAL);
        assert_errno(s.link("d", "n"), Errno::EPERM);
        s.link("l", "l2").unwrap();
    });
}

#[test]
fn removal_reports_what_prevents_it() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        s.mkdir("d", 0o755).unwrap();
        s.touch("d/f", 0o644).unwrap();
        s.symlink("d", "l").unwrap();
        assert_errno(s.unlink("d"), Errno::EISDIR);
        assert_errno(s.unlink("d/"), Errno::EISDIR);
        assert_errno(s.unlink("."), Errno::EISDIR);
        assert_errno(s.unlink("d/.."), Errno::EISDIR);
        assert_errno(s.unlink("d/f/"), Errno::ENOTDIR);
        assert_errno(s.unlink("none"), Errno::ENOENT);
        assert_errno(s.unlink("none/"), Errno::ENOENT);
        assert_errno(s.rmdir("d"), Errno::ENOTEMPTY);
        assert_errno(s.rmdir("d/."), Errno::EINVAL);
        assert_errno(s.rmdir("d/.."), Errno::ENOTEMPTY);
        assert_errno(s.rmdir("/"), Errno::EBUSY);
        assert_errno(s.rmdir("d/f"), Errno::ENOTDIR);
        assert_errno(s.rmdir("l"), Errno::ENOTDIR);
        s.unlink("l").unwrap();
        s.unlink("d/f").unwrap();
        s.rmdir("d/").unwrap();
        assert_errno(s.stat("d"), Errno::ENOENT);
    });
}

#[test]
fn renames_follow_the_kinds() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        for directory in ["d", "e", "full", "d/sub"] {
            s.mkdir(directory, 0o755).unwrap();
        }
        for file in ["f", "g", "full/x"] {
            s.touch(file, 0o644).unwrap();
        }
        s.link("f", "f2").unwrap();
        for (from, to, flags, expected) in [
            ("f", "d", 0, Errno::EISDIR),
            ("d", "f", 0, Errno::ENOTDIR),
            ("d", "full", 0, Errno::ENOTEMPTY),
            ("d", "d/sub/x", 0, Errno::EINVAL),
            ("d", "d/x", 0, Errno::EINVAL),
            ("d/sub", "d", 0, Errno::ENOTEMPTY),
            ("d", "d/sub", libc::RENAME_EXCHANGE, Errno::EINVAL),
            ("none", "x", 0, Errno::ENOENT),
            ("f", "g", libc::RENAME_NOREPLACE, Errno::EEXIST),
            ("f", "none", libc::RENAME_EXCHANGE, Errno::ENOENT),
            ("f", "g", 8, Errno::EINVAL),
            ("f", "g", libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE, Errno::EINVAL),
            ("f", "g", libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE, Errno::EINVAL),
            (".", "x", 0, Errno::EBUSY),
            ("f", "d/..", 0, Errno::EBUSY),
            ("f", "d/..", libc::RENAME_NOREPLACE, Errno::EEXIST),
            ("/", "x", 0, Errno::EBUSY),
            ("f/", "x", 0, Errno::ENOTDIR),
            ("f", "x/", 0, Errno::ENOTDIR),
            ("f", "d/", 0, Errno::ENOTDIR),
        ] {
            let result = s.rename(from, to, flags);
            assert_eq!(result, Err(expected), "{from} -> {to}, flags {flags}");
        }
        s.rename("f", "f2", 0).unwrap();
        s.stat("f").expect("two names of one file: no change");
        s.rename("d/", "e/", 0).unwrap();
        s.stat("e/sub").unwrap();
        s.rename("e", "new/", 0).unwrap();
        s.rename("g", "new", libc::RENAME_EXCHANGE).unwrap();
        s.stat("g/sub").unwrap();
        assert_eq!(s.stat("new").unwrap().size_bytes, 0);
        s.rename("new", "moved", libc::RENAME_WHITEOUT).unwrap();
        let whiteout = s.stat("new").unwrap();
        assert_eq!((whiteout.mode & libc::S_IFMT, whiteout.device), (libc::S_IFCHR, 0));
    });
}

#[test]
fn a_removed_directory_takes_nothing_more() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        s.mkdir("d", 0o755).unwrap();
        let open = s.open("d", libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        s.rmdir("d").unwrap();
        let gone = open.node();
        assert_errno(s.caller.mkdir(gone, b"x", 0o755, 0).map(drop), Errno::ENOENT);
        assert_errno(s.caller.lookup(gone, b"x").map(drop), Errno::ENOENT);
        assert_errno(s.caller.read_directory(&open, &mut |_| true), Errno::ENOENT);
        assert_eq!(s.caller.stat(gone).unwrap().links, 0);
        s.caller.opens().close(&open);
    });
}

#[test]
fn a_file_has_so_many_names() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        s.mkdir("d", 0o755).unwrap();
        s.touch("f", 0o644).unwrap();
        let file = s.open("f", libc::O_RDONLY).unwrap();
        let directory = s.open("d", libc::O_RDONLY).unwrap();
        for index in 1..LINKS_MAX {
            s.caller.link(file.node(), directory.node(), format!("{index}").as_bytes(), false).unwrap();
        }
        let more = s.caller.link(file.node(), directory.node(), b"more", false);
        assert_errno(more, Errno::EMLINK);
        assert_eq!(s.stat("f").unwrap().links, LINKS_MAX);
        s.caller.opens().close(&file);
        s.caller.opens().close(&directory);
    });
}

#[test]
fn a_program_that_renames_what_it_lists_meets_each_file_once() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ALICE);
        s.mkdir("d", 0o755).unwrap();
        (0..600).for_each(|index| s.touch(&format!("d/{index}"), 0o644).unwrap());
        let directory = s.open("d", libc::O_RDONLY).unwrap();
        // The second listing begins with the first one's new names.
        for suffix in ["new", "newer"] {
            directory.set_position(0);
            let mut renamed = 0;
            loop {
                let mut portion = Vec::new();
                let mut take = |entry: posix::ListedName<'_>| {
                    let has_room = portion.len() < 7;
                    if has_room {
                        portion.push(String::from_utf8_lossy(entry.name).into_owned());
                    }
                    has_room
                };
                s.caller.read_directory(&directory, &mut take).unwrap();
                if portion.is_empty() {
                    break;
                }
                for name in portion.iter().filter(|name| !name.starts_with('.')) {
                    s.rename(&format!("d/{name}"), &format!("d/{name}.{suffix}"), 0).unwrap();
                    renamed += 1;
                }
                assert!(renamed <= 600, "{suffix}: a file was listed twice");
            }
            assert_eq!(renamed, 600, "{suffix}");
        }
        s.caller.opens().close(&directory);
    });
}

#[test]
fn directories_list_each_name_once_and_dots_first() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ALICE);
        s.mkdir("d", 0o755).unwrap();
        let names: Vec<_> = (0..500).map(|index| format!("d/name-{index}")).collect();
        names.iter().for_each(|name| s.touch(name, 0o644).unwrap());
        let listed = s.list("d").unwrap();
        assert_eq!(&listed[..2], [".", ".."]);
        let mut sorted = listed[2..].to_vec();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), 500);
        // In small portions, with removal of the listed names: the others are still listed once.
        let directory = s.open("d", libc::O_RDONLY).unwrap();
        let mut seen = Vec::new();
        loop {
            let mut portion = Vec::new();
            let mut take = |entry: posix::ListedName<'_>| {
                let room = portion.len() < 7;
                if room {
                    portion.push(String::from_utf8_lossy(entry.name).into_owned());
                }
                room
            };
            s.caller.read_directory(&directory, &mut take).unwrap();
            if portion.is_empty() {
                break;
            }
            for name in &portion {
                if name.starts_with("name") {
                    s.unlink(&format!("d/{name}")).unwrap();
                }
            }
            seen.extend(portion);
        }
        assert_eq!(seen.len(), 502);
        s.caller.opens().close(&directory);
        s.rmdir("d").unwrap();
    });
}
