//! Permissions, as tables.

use crate::common::{ALICE, BOB, ROOT, Session, assert_errno, inside};
use engine::format::FileKind;
use posix::{Capabilities, Credentials, Errno, TimeToSet, Want};

const READ: i32 = libc::O_RDONLY;
const WRITE: i32 = libc::O_WRONLY;
const BOTH: i32 = libc::O_RDWR;

#[test]
fn the_first_class_that_fits_decides() {
    // A file of ALICE in group 50: the access of ALICE, of BOB (in group 50) and of a stranger.
    let stranger = Credentials::user(2000, 2000, &[]);
    let table = [
        (0o000, "---", "---", "---"),
        (0o400, "r--", "---", "---"),
        (0o200, "-w-", "---", "---"),
        (0o040, "---", "r--", "---"),
        (0o020, "---", "-w-", "---"),
        (0o004, "---", "---", "r--"),
        (0o002, "---", "---", "-w-"),
        (0o077, "---", "rwx", "rwx"),
        (0o707, "rwx", "---", "rwx"),
        (0o770, "rwx", "rwx", "---"),
        (0o751, "rwx", "r-x", "--x"),
        (0o666, "rw-", "rw-", "rw-"),
    ];
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        s.touch("f", 0o600).unwrap();
        s.chown("f", Some(1000), Some(50)).unwrap();
        for (mode, alice, bob, other) in table {
            s.chmod("f", mode).unwrap();
            for (credentials, may) in [(ALICE, alice), (BOB, bob), (stranger, other)] {
                let session = Session::new(thread, root, credentials);
                let granted = |want| session.at("f", |node| session.caller.access(node, want)).is_ok();
                let found = [(Want::READ, 'r'), (Want::WRITE, 'w'), (Want::EXECUTE, 'x')]
                    .map(|(want, letter)| if granted(want) { letter } else { '-' });
                assert_eq!(String::from_iter(found), may, "mode {mode:o}, user {}", credentials.uid);
                assert_eq!(session.try_open("f", READ).is_ok(), may.contains('r'), "open to read, {mode:o}");
                assert_eq!(session.try_open("f", WRITE).is_ok(), may.contains('w'), "open to write, {mode:o}");
                assert_eq!(session.try_open("f", BOTH).is_ok(), may.starts_with("rw"), "open for both, {mode:o}");
            }
        }
    });
}

#[test]
fn root_executes_only_executable_files() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        s.touch("f", 0o000).unwrap();
        s.mkdir("d", 0o000).unwrap();
        let access = |credentials, path: &str, want| {
            let session = Session::new(thread, root, credentials);
            session.at(path, |node| session.caller.access(node, want))
        };
        access(ROOT, "f", Want(6)).unwrap();
        assert_errno(access(ROOT, "f", Want::EXECUTE), Errno::EACCES);
        access(ROOT, "d", Want(7)).unwrap();
        s.chmod("f", 0o001).unwrap();
        access(ROOT, "f", Want(7)).unwrap();
        let reader = Credentials { capabilities: Capabilities::DAC_READ_SEARCH, ..ALICE };
        access(reader, "f", Want::READ).unwrap();
        access(reader, "d", Want(5)).unwrap();
        assert_errno(access(reader, "f", Want::WRITE), Errno::EACCES);
        assert_errno(access(reader, "d", Want::WRITE), Errno::EACCES);
        assert_errno(access(ALICE, "f", Want(8)), Errno::EINVAL);
    });
}

#[test]
fn chmod_and_chown_belong_to_owners() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        let alice = Session::new(thread, root, ALICE);
        let bob = Session::new(thread, root, BOB);
        alice.touch("f", 0o644).unwrap();
        assert_errno(bob.chmod("f", 0o777), Errno::EPERM);
        alice.chmod("f", 0o4755).unwrap();
        assert_eq!(s.stat("f").unwrap().mode, libc::S_IFREG | 0o4755);
        assert_errno(alice.chown("f", Some(1001), None), Errno::EPERM);
        assert_errno(alice.chown("f", None, Some(60)), Errno::EPERM);
        assert_errno(bob.chown("f", None, Some(60)), Errno::EPERM);
        alice.chown("f", Some(1000), Some(50)).unwrap();
        let after = s.stat("f").unwrap();
        assert_eq!((after.uid, after.gid, after.mode & 0o7777), (1000, 50, 0o755), "set-user-id is cleared");
        // Without membership the set-group-id bit is not set.
        s.chown("f", None, Some(60)).unwrap();
        alice.chmod("f", 0o2755).unwrap();
        assert_eq!(s.stat("f").unwrap().mode & 0o7777, 0o755);
        s.chmod("f", 0o6755).unwrap();
        s.chown("f", Some(1001), None).unwrap();
        assert_eq!(s.stat("f").unwrap().mode & 0o7777, 0o755, "cleared even by root's chown");
        s.mkdir("d", 0o755).unwrap();
        s.chmod("d", 0o6755).unwrap();
        s.chown("d", Some(1001), None).unwrap();
        assert_eq!(s.stat("d").unwrap().mode & 0o7777, 0o6755, "a directory keeps them");
        s.symlink("f", "l").unwrap();
        s.chown("l", Some(7), Some(8)).unwrap();
        assert_eq!(s.lstat("l").unwrap().uid, 7);
    });
}

#[test]
fn a_sticky_directory_protects_names() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        let alice = Session::new(thread, root, ALICE);
        let bob = Session::new(thread, root, BOB);
        s.mkdir("tmp", 0o777).unwrap();
        s.chmod("tmp", 0o1777).unwrap();
        alice.touch("tmp/a", 0o666).unwrap();
        alice.mkdir("tmp/ad", 0o777).unwrap();
        bob.touch("tmp/b", 0o666).unwrap();
        assert_errno(bob.unlink("tmp/a"), Errno::EPERM);
        assert_errno(bob.rmdir("tmp/ad"), Errno::EPERM);
        assert_errno(bob.unlink("tmp/ad"), Errno::EPERM);
        assert_errno(bob.rename("tmp/a", "tmp/c", 0), Errno::EPERM);
        assert_errno(bob.rename("tmp/b", "tmp/a", 0), Errno::EPERM);
        assert_errno(bob.rename("tmp/b", "tmp/a", libc::RENAME_EXCHANGE), Errno::EPERM);
        bob.rename("tmp/b", "tmp/b2", 0).unwrap();
        alice.unlink("tmp/a").unwrap();
        let keeper = Session::new(thread, root, Credentials { capabilities: Capabilities::FOWNER, ..BOB });
        keeper.rmdir("tmp/ad").unwrap();
        s.unlink("tmp/b2").unwrap();
    });
}

#[test]
fn a_set_group_id_directory_passes_its_group_on() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        let alice = Session::new(thread, root, ALICE);
        s.mkdir("shared", 0o777).unwrap();
        s.chown("shared", None, Some(60)).unwrap();
        s.chmod("shared", 0o2777).unwrap();
        alice.touch("shared/f", 0o644).unwrap();
        alice.mkdir("shared/d", 0o755).unwrap();
        let file = s.stat("shared/f").unwrap();
        let directory = s.stat("shared/d").unwrap();
        assert_eq!((file.uid, file.gid, file.mode & 0o7777), (1000, 60, 0o644));
        assert_eq!((directory.gid, directory.mode & 0o7777), (60, 0o2755));
        alice.touch("shared/evil", 0o2755).unwrap();
        assert_eq!(s.stat("shared/evil").unwrap().mode & 0o7777, 0o755, "no program with a foreign group");
        alice.touch("plain", 0o2755).unwrap();
        assert_eq!(s.stat("plain").unwrap().gid, 1000);
    });
}

#[test]
fn names_are_made_only_in_writable_directories() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        s.mkdir("d", 0o755).unwrap();
        s.touch("d/f", 0o666).unwrap();
        s.mkdir("d/sub", 0o777).unwrap();
        let alice = Session::new(thread, root, ALICE);
        alice.touch("mine", 0o644).unwrap();
        for refused in [
            alice.touch("d/new", 0o644),
            alice.mkdir("d/new", 0o755),
            alice.symlink("x", "d/new"),
            alice.mknod("d/new", libc::S_IFIFO | 0o644),
            alice.link("mine", "d/new"),
            alice.rename("mine", "d/new", 0),
            alice.rename("d/f", "stolen", 0),
            alice.unlink("d/f"),
            alice.rmdir("d/sub"),
        ] {
            assert_errno(refused, Errno::EACCES);
        }
        // An existing or missing name takes precedence over the refusal.
        for (result, expected) in [
            (alice.touch("d/f", 0o644), Errno::EEXIST),
            (alice.mkdir("d/f", 0o755), Errno::EEXIST),
            (alice.link("mine", "d/f"), Errno::EEXIST),
            (alice.unlink("d/none"), Errno::ENOENT),
            (alice.rmdir("d/none"), Errno::ENOENT),
            (alice.rename("d/none", "x", 0), Errno::ENOENT),
            (alice.rename("mine", "d/f", libc::RENAME_NOREPLACE), Errno::EEXIST),
            (alice.rename("mine", "d/none", libc::RENAME_EXCHANGE), Errno::ENOENT),
            (alice.mknod("mine", libc::S_IFCHR | 0o644), Errno::EEXIST),
            (alice.mknod("device", libc::S_IFCHR | 0o644), Errno::EPERM),
        ] {
            assert_errno(result, expected);
        }
        alice.mkdir("writable", 0o755).unwrap();
        s.mkdir("foreign", 0o755).unwrap();
        // Another parent changes `..`, which needs write permission on the directory.
        assert_errno(alice.rename("foreign", "writable/foreign", 0), Errno::EACCES);
        alice.rename("foreign", "foreign2", 0).unwrap();
    });
}

#[test]
fn set_id_bits_fall_when_content_changes() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        let bob = Session::new(thread, root, BOB);
        let reset = |path: &str, mode| {
            s.chmod(path, mode).unwrap();
        };
        s.touch("f", 0o777).unwrap();
        let mode = || s.stat("f").unwrap().mode & 0o7777;
        reset("f", 0o6777);
        let file = bob.open("f", libc::O_WRONLY).unwrap();
        bob.caller.data().write(&file, b"x").unwrap();
        assert_eq!(mode(), 0o777);
        reset("f", 0o6777);
        bob.caller.data().truncate_open(&file, 0).unwrap();
        assert_eq!(mode(), 0o777);
        bob.caller.opens().close(&file);
        reset("f", 0o6777);
        bob.try_open("f", libc::O_WRONLY | libc::O_TRUNC).unwrap();
        assert_eq!(mode(), 0o777);
        reset("f", 0o6777);
        let file = s.open("f", libc::O_WRONLY).unwrap();
        s.caller.data().write(&file, b"x").unwrap();
        s.caller.opens().close(&file);
        assert_eq!(mode(), 0o6777, "root keeps them");
    });
}

#[test]
fn times_are_set_by_owners_and_touched_by_writers() {
    inside(|thread, root| {
        let alice = Session::new(thread, root, ALICE);
        let bob = Session::new(thread, root, BOB);
        alice.touch("f", 0o666).unwrap();
        let set = |session: &Session<'_, '_>, accessed, modified| {
            session.at("f", |node| session.caller.set_times(node, accessed, modified))
        };
        let (now, omit) = (TimeToSet::Now, TimeToSet::Omit);
        set(&bob, now, now).unwrap();
        assert_errno(set(&bob, now, omit), Errno::EPERM);
        assert_errno(set(&bob, TimeToSet::At(0), TimeToSet::At(0)), Errno::EPERM);
        set(&bob, omit, omit).unwrap();
        alice.chmod("f", 0o644).unwrap();
        assert_errno(set(&bob, now, now), Errno::EACCES);
        let before = alice.stat("f").unwrap();
        let after = set(&alice, TimeToSet::At(-1_500_000_000), omit).unwrap();
        assert_eq!((after.accessed_ns, after.modified_ns), (-1_500_000_000, before.modified_ns));
        assert!(after.changed_ns >= before.changed_ns);
        assert_eq!(TimeToSet::from_timespec(1, 1_000_000_000), Err(Errno::EINVAL));
        assert_eq!(TimeToSet::from_timespec(i64::MAX, 0), Err(Errno::EINVAL));
        assert_eq!(TimeToSet::from_timespec(-2, 500_000_000), Ok(TimeToSet::At(-1_500_000_000)));
        assert_eq!(TimeToSet::from_timespec(7, libc::UTIME_OMIT), Ok(TimeToSet::Omit));
    });
}

#[test]
fn attributes_follow_the_rules_of_their_namespaces() {
    inside(|thread, root| {
        let s = Session::new(thread, root, ROOT);
        let alice = Session::new(thread, root, ALICE);
        let bob = Session::new(thread, root, BOB);
        alice.touch("f", 0o644).unwrap();
        let set = |session: &Session<'_, '_>, name: &str, flags| {
            session.at("f", |node| session.caller.xattrs().set_attribute(node, name.as_bytes(), b"value", flags))
        };
        let get = |session: &Session<'_, '_>, name: &str| {
            let mut value = [0; 16];
            let get = |node| session.caller.xattrs().get_attribute(node, name.as_bytes(), &mut value);
            let length = session.at("f", get)?;
            Ok::<_, Errno>(value[..length].to_vec())
        };
        set(&alice, "user.a", 0).unwrap();
        assert_eq!(get(&bob, "user.a").unwrap(), b"value");
        assert_errno(set(&bob, "user.a", 0), Errno::EACCES);
        assert_errno(set(&alice, "user.a", libc::XATTR_CREATE), Errno::EEXIST);
        assert_errno(set(&alice, "user.b", libc::XATTR_REPLACE), Errno::ENODATA);
        assert_errno(set(&alice, "user.b", 4), Errno::EINVAL);
        assert_errno(set(&alice, "trusted.t", 0), Errno::EPERM);
        assert_errno(set(&alice, "security.s", 0), Errno::EPERM);
        assert_errno(set(&alice, "system.s", 0), Errno::EOPNOTSUPP);
        assert_errno(set(&alice, "user.", 0), Errno::EINVAL);
        assert_errno(set(&alice, "odd", 0), Errno::EOPNOTSUPP);
        assert_errno(set(&alice, &format!("user.{}", "n".repeat(251)), 0), Errno::ERANGE);
        set(&s, "trusted.t", 0).unwrap();
        set(&s, "security.s", 0).unwrap();
        assert_errno(get(&alice, "trusted.t"), Errno::ENODATA);
        assert_eq!(get(&alice, "security.s").unwrap(), b"value");
        let names = |session: &Session<'_, '_>| {
            let mut names = [0; 128];
            let length = session.at("f", |node| session.caller.xattrs().list_attributes(node, &mut names)).unwrap();
            let mut names: Vec<_> = names[..length].split(|&byte| byte == 0).map(<[u8]>::to_vec).collect();
            names.retain(|name| !name.is_empty());
            names.sort();
            names
        };
        assert_eq!(names(&alice), [b"security.s".to_vec(), b"user.a".to_vec()]);
        assert_eq!(names(&s).len(), 3);
        let length = alice.at("f", |node| alice.caller.xattrs().list_attributes(node, &mut [])).unwrap();
        let mut short = vec![0; length - 1];
        assert_errno(alice.at("f", |node| alice.caller.xattrs().list_attributes(node, &mut short)), Errno::ERANGE);
        s.mknod("pipe", libc::S_IFIFO | 0o666).unwrap();
        assert_eq!(s.kind("pipe").unwrap(), FileKind::Fifo);
        assert_errno(s.at("pipe", |node| s.caller.xattrs().set_attribute(node, b"user.a", b"", 0)), Errno::EPERM);
        alice.at("f", |node| alice.caller.xattrs().remove_attribute(node, b"user.a")).unwrap();
        assert_errno(get(&alice, "user.a"), Errno::ENODATA);
    });
}
