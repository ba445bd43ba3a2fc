//! The path walk: dots, slashes, links, lengths, and paths that leave the mount.

use crate::common::{ALICE, ROOT, Scratch, Session, assert_errno, inside};
use engine::format::FileKind;
use posix::path::{Exit, LastLink, Outcome, PathBuffer, WalkStart};
use posix::{Caller, Errno};

#[test]
fn dots_and_slashes_lead_where_they_should() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        s.mkdir("a", 0o755).unwrap();
        s.mkdir("a/b", 0o755).unwrap();
        s.touch("a/f", 0o644).unwrap();
        let b = s.stat("a/b").unwrap().number;
        for same in ["/a/b", "a//b", "./a/./b", "a/b/", "a/b/.", "a/b/../b", "../../a/b", "a/../a/b//"] {
            assert_eq!(s.stat(same).unwrap().number, b, "{same}");
        }
        for root_too in ["/", ".", "..", "//", "a/..", "a/b/../..", "../.."] {
            assert_eq!(s.stat(root_too).unwrap().number, root.number, "{root_too}");
        }
        for (path, errno) in [
            ("", Errno::ENOENT),
            ("x", Errno::ENOENT),
            ("x/", Errno::ENOENT),
            ("x/y", Errno::ENOENT),
            ("a/f/", Errno::ENOTDIR),
            ("a/f/.", Errno::ENOTDIR),
            ("a/f/..", Errno::ENOTDIR),
            ("a/f/x", Errno::ENOTDIR),
        ] {
            assert_errno(s.stat(path), errno);
        }
    });
}

#[test]
fn names_and_paths_have_limits() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        let longest = "n".repeat(255);
        s.touch(&longest, 0o644).unwrap();
        s.stat(&longest).unwrap();
        let too_long = "n".repeat(256);
        assert_errno(s.stat(&too_long), Errno::ENAMETOOLONG);
        assert_errno(s.stat(&format!("{too_long}/x")), Errno::ENAMETOOLONG);
        assert_errno(s.touch(&too_long, 0o644), Errno::ENAMETOOLONG);
        assert_errno(s.mkdir(&too_long, 0o755), Errno::ENAMETOOLONG);
        assert_errno(s.unlink(&too_long), Errno::ENAMETOOLONG);
        let dots = "./".repeat(2047);
        assert_eq!(s.stat(&format!("{dots}.")).unwrap().number, root.number, "4095 bytes");
        assert_errno(s.stat(&format!("{dots}./")), Errno::ENAMETOOLONG);
    });
}

#[test]
fn links_are_followed_where_they_are_meant() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        s.mkdir("d", 0o755).unwrap();
        s.touch("d/f", 0o644).unwrap();
        s.symlink("d", "to_d").unwrap();
        s.symlink("d/f", "to_f").unwrap();
        s.symlink("../to_f", "d/back").unwrap();
        s.symlink("nowhere", "dangling").unwrap();
        s.symlink("d/", "slashed").unwrap();
        let f = s.stat("d/f").unwrap().number;
        let d = s.stat("d").unwrap().number;
        assert_eq!(s.stat("to_d/f").unwrap().number, f);
        assert_eq!(s.stat("to_f").unwrap().number, f);
        assert_eq!(s.stat("to_d/back").unwrap().number, f, "relative to the link's directory");
        assert_eq!(s.lstat("to_f").unwrap().kind, FileKind::Symlink);
        assert_eq!(s.lstat("to_d/").unwrap().number, d, "a slash means the target");
        assert_eq!(s.lstat("slashed").unwrap().kind, FileKind::Symlink);
        assert_eq!(s.stat("slashed").unwrap().number, d);
        assert_errno(s.stat("to_f/"), Errno::ENOTDIR);
        assert_errno(s.stat("dangling"), Errno::ENOENT);
        assert_errno(s.stat("dangling/x"), Errno::ENOENT);
        assert_errno(s.lstat("dangling/"), Errno::ENOENT);
    });
}

#[test]
fn forty_links_are_followed_and_no_more() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        s.touch("l0", 0o644).unwrap();
        for index in 1..=41 {
            s.symlink(&format!("l{}", index - 1), &format!("l{index}")).unwrap();
        }
        s.stat("l40").unwrap();
        assert_errno(s.stat("l41"), Errno::ELOOP);
        s.lstat("l41").unwrap();
        s.symlink("loop", "loop").unwrap();
        assert_errno(s.stat("loop"), Errno::ELOOP);
        assert_errno(s.stat("loop/x"), Errno::ELOOP);
        s.lstat("loop").unwrap();
    });
}

#[test]
fn long_targets_expand_without_a_heap() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        s.mkdir("d", 0o755).unwrap();
        s.touch("d/f", 0o644).unwrap();
        let long = format!("{}d", "./".repeat(2047));
        assert_eq!(long.len(), 4095);
        s.symlink(&long, "long").unwrap();
        s.symlink("long", "to_long").unwrap();
        s.stat("to_long/f").unwrap();
        s.stat(&format!("to_long/{}f", "./".repeat(2000))).unwrap();
        assert_errno(s.symlink(&format!("{long}x"), "longer"), Errno::ENAMETOOLONG);
        assert_errno(s.symlink("", "empty"), Errno::ENOENT);
    });
}

#[test]
fn a_path_that_leaves_the_mount_reports_its_exit() {
    let scratch = Scratch::new();
    let thread = scratch.image.fs().enter().unwrap();
    let root = thread.root().unwrap();
    let s = Session::new(&thread, root, ROOT);
    s.mkdir("d", 0o755).unwrap();
    s.symlink("/usr/include", "out").unwrap();
    s.symlink("../out/sys", "d/out2").unwrap();
    s.symlink("../../etc", "d/up").unwrap();
    let mut buffer = PathBuffer::new();
    let mut leaves = |path: &str, can_leave| {
        let place = WalkStart { root, start: root, can_leave };
        match s.caller.paths().resolve(&place, path.as_bytes(), LastLink::Follow, &mut buffer).unwrap() {
            Outcome::Inside(_) => panic!("{path} stays inside"),
            Outcome::Left(exit) => (exit, String::from_utf8_lossy(buffer.rest()).into_owned()),
        }
    };
    let absolute = |rest: &str| (Exit::Absolute, rest.to_owned());
    let above = |rest: &str| (Exit::AboveRoot, rest.to_owned());
    assert_eq!(leaves("out", false), absolute("/usr/include"));
    assert_eq!(leaves("out/stdio.h", false), absolute("/usr/include/stdio.h"));
    assert_eq!(leaves("out/../lib/", false), absolute("/usr/include/../lib/"));
    assert_eq!(leaves("d/out2/x", false), absolute("/usr/include/sys/x"));
    assert_eq!(leaves("out/", false), absolute("/usr/include//"));
    assert_eq!(leaves("..", true), above(""));
    assert_eq!(leaves("d/../../etc/passwd", true), above("etc/passwd"));
    assert_eq!(leaves("d/up/hosts", true), above("etc/hosts"));
    thread.release(root, 1);
}

#[test]
fn every_directory_of_a_path_must_be_searchable() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        s.mkdir("closed", 0o700).unwrap();
        s.mkdir("closed/in", 0o777).unwrap();
        s.touch("closed/in/f", 0o666).unwrap();
        s.mkdir("searched", 0o711).unwrap();
        s.touch("searched/f", 0o644).unwrap();
        s.symlink("closed/in/f", "way").unwrap();
        let alice = Session::new(thread, root, ALICE);
        assert_errno(alice.stat("closed/in/f"), Errno::EACCES);
        assert_errno(alice.stat("closed/nothing"), Errno::EACCES);
        assert_errno(alice.stat("closed/in/../in/f"), Errno::EACCES);
        assert_errno(alice.stat("way"), Errno::EACCES);
        assert_errno(alice.stat("closed/."), Errno::EACCES);
        alice.stat("closed").unwrap();
        alice.stat("closed/").unwrap();
        alice.stat("searched/f").unwrap();
        assert_errno(alice.list("searched"), Errno::EACCES);
        // A checked caller passes: the kernel has checked already.
        let checked = Caller::new(thread, posix::Credentials::kernel_checked(1000, 1000));
        checked.stat_name(root, b"closed").unwrap();
    });
}

#[test]
fn names_are_made_and_removed_behind_links() {
    inside(|thread, root| {
        let session = Session::new(thread, root, ROOT);
        session.mkdir("d", 0o755).unwrap();
        session.symlink("d", "link").unwrap();
        session.mkdir("link/made", 0o755).unwrap();
        session.touch("link/file", 0o644).unwrap();
        session.link("link/file", "link/second").unwrap();
        session.mknod("link/fifo", libc::S_IFIFO | 0o644).unwrap();
        session.symlink("x", "link/symlink").unwrap();
        session.rename("link/second", "d/third", 0).unwrap();
        session.rename("d/third", "link/fourth", 0).unwrap();
        assert_eq!(session.list("d").unwrap().len(), 2 + 5);
        for name in ["file", "fourth", "fifo", "symlink"] {
            session.unlink(&format!("link/{name}")).unwrap();
        }
        session.rmdir("link/made").unwrap();
        assert_eq!(session.list("d").unwrap().len(), 2);
        session.symlink("loop", "loop").unwrap();
        assert_errno(session.mkdir("loop/x", 0o755), Errno::ELOOP);
        assert_errno(session.touch("loop/x", 0o644), Errno::ELOOP);
        assert_errno(session.unlink("loop/x"), Errno::ELOOP);
        assert_errno(session.rename("d", "loop/x", 0), Errno::ELOOP);
        session.touch("file", 0o644).unwrap();
        assert_errno(session.mkdir("file/x", 0o755), Errno::ENOTDIR);
    });
}
