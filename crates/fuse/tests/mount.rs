//! A real mount: its behaviour for programs, compared with tmpfs.

use crate::common::{Mounted, can_mount, scratch, shell};
use fuse::{MountOptions, Server};
use image::{Closed, Image, OpenImage};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, SeekFrom, XattrFlags, flock,
    ioctl_ficlone, linkat, open, openat2, seek,
};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The results of calls, in order.
#[derive(Default)]
struct Log(Vec<String>);

impl Log {
    /// Logs a result: the errno of an error, nothing of a success.
    fn did<T, E: Into<std::io::Error>>(&mut self, what: impl Debug, result: Result<T, E>) {
        let error = result.err().map(|error| error.into().raw_os_error());
        self.0.push(format!("{what:?}: {error:?}"));
    }

    fn saw(&mut self, what: impl Debug, value: impl Debug) {
        self.0.push(format!("{what:?} = {value:?}"));
    }

    /// Logs the attributes that are the same on every file system.
    fn stat(&mut self, path: &Path) {
        let name = path.file_name().unwrap().to_owned();
        match fs::symlink_metadata(path) {
            Ok(found) => {
                let size = if found.is_dir() { 0 } else { found.len() };
                self.saw(name, (format!("{:o}", found.mode()), found.nlink(), found.uid(), found.gid(), size));
            }
            Err(error) => self.saw(name, error.raw_os_error()),
        }
    }
}

/// Runs the same calls on a mount and on tmpfs and compares the logs.
fn compare(test: &str, calls: impl Fn(&Path, &mut Log)) {
    if !can_mount(test) {
        return;
    }
    let reference = scratch();
    let mut expected = Log::default();
    calls(reference.path(), &mut expected);
    for options in ["cache=1", "cache=0"] {
        let mounted = Mounted::new(options);
        let mut found = Log::default();
        calls(&mounted.mount, &mut found);
        for (index, (expected, found)) in expected.0.iter().zip(&found.0).enumerate() {
            assert_eq!(found, expected, "call {index} with {options}");
        }
        assert_eq!(found.0.len(), expected.0.len());
    }
}

#[test]
fn names_behave_as_on_tmpfs() {
    compare("names_behave_as_on_tmpfs", |at, log| {
        let p = |name: &str| at.join(name);
        log.did("mkdir", fs::create_dir(p("d")));
        log.did("mkdir again", fs::create_dir(p("d")));
        log.did("mkdir below nothing", fs::create_dir(p("none/d")));
        log.did("file", File::create(p("f")));
        log.did("file in file", File::create(p("f/x")));
        log.did("file with slash", File::create(p("g/")));
        log.did("too long", File::create(p(&"n".repeat(256))));
        log.did("longest", File::create(p(&"n".repeat(255))));
        log.did("symlink", symlink("f", p("l")));
        log.did("symlink again", symlink("f", p("l")));
        log.did("loop", symlink("loop", p("loop")));
        log.did("stat loop", fs::metadata(p("loop")));
        log.saw("readlink", fs::read_link(p("l")).unwrap());
        log.did("link", fs::hard_link(p("f"), p("f2")));
        log.did("link again", fs::hard_link(p("f"), p("f2")));
        log.did("link of directory", fs::hard_link(p("d"), p("d2")));
        log.did("unlink directory", fs::remove_file(p("d")));
        log.did("rmdir file", fs::remove_dir(p("f")));
        log.did("rmdir nothing", fs::remove_dir(p("none")));
        log.did("fill", File::create(p("d/x")));
        log.did("rmdir full", fs::remove_dir(p("d")));
        log.did("fifo", rustix::fs::mknodat(CWD, p("fifo"), rustix::fs::FileType::Fifo, Mode::from(0o640), 0));
        let device = rustix::fs::makedev(1, 3);
        let null = rustix::fs::FileType::CharacterDevice;
        log.did("device", rustix::fs::mknodat(CWD, p("null"), null, Mode::from(0o600), device));
        log.saw("rdev", fs::metadata(p("null")).map(|found| found.rdev()).ok());
        for name in ["d", "f", "f2", "l", "fifo", "null"] {
            log.stat(&p(name));
        }
        log.did("unlink", fs::remove_file(p("f2")));
        log.did("unlink again", fs::remove_file(p("f2")));
        log.stat(&p("f"));
        log.did("unlink inside", fs::remove_file(p("d/x")));
        log.did("rmdir", fs::remove_dir(p("d")));
        log.stat(&p("d"));
    });
}

#[test]
fn renames_behave_as_on_tmpfs() {
    compare("renames_behave_as_on_tmpfs", |at, log| {
        let p = |name: &str| at.join(name);
        for directory in ["d", "e", "full", "d/sub"] {
            fs::create_dir(p(directory)).unwrap();
        }
        for file in ["f", "g", "full/x"] {
            fs::write(p(file), file).unwrap();
        }
        fs::hard_link(p("f"), p("f2")).unwrap();
        let none = RenameFlags::empty();
        let (keep, swap, white) = (RenameFlags::NOREPLACE, RenameFlags::EXCHANGE, RenameFlags::WHITEOUT);
        for (from, to, flags) in [
            ("f", "d", none),
            ("d", "f", none),
            ("d", "full", none),
            ("d", "d/sub/x", none),
            ("d/sub", "d", none),
            ("d", "d/sub", swap),
            ("none", "x", none),
            ("f", "g", keep),
            ("f", "none", swap),
            ("f", "g", keep | swap),
            ("f", "f2", none),
            ("f", "x/", none),
            ("f", "g", none),
            ("g", "h", keep),
            ("h", "e", swap),
            ("e", "e2", white),
            ("d", "full/d", none),
            ("full/d", "h", none),
            ("full", "h", none),
        ] {
            log.did((from, to, flags), rustix::fs::renameat_with(CWD, p(from), CWD, p(to), flags));
            for name in ["d", "e", "e2", "f", "f2", "g", "h", "full", "full/d", "h/sub", "d/sub"] {
                log.stat(&p(name));
            }
        }
        let unknown = RenameFlags::from_bits_retain(64);
        log.did("unknown", rustix::fs::renameat_with(CWD, p("f2"), CWD, p("x"), unknown));
    });
}

#[test]
fn content_behaves_as_on_tmpfs() {
    compare("content_behaves_as_on_tmpfs", |at, log| {
        let path = at.join("f");
        let mut open = OpenOptions::new();
        let file = open.read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let pattern: Vec<u8> = (0..300_000u32).map(|index| (index * 7 % 253) as u8).collect();
        log.did("write", file.write_all_at(&pattern, 1000));
        log.did("overwrite", file.write_all_at(&pattern[..5000], 200_000));
        log.did("far", file.write_all_at(b"end", 10 << 30));
        log.saw("size", file.metadata().unwrap().len());
        let mut buffer = vec![0; 301_000];
        log.did("read", file.read_exact_at(&mut buffer, 0));
        log.saw("sum", buffer.iter().map(|&byte| u64::from(byte)).sum::<u64>());
        log.saw("beyond", file.read_at(&mut buffer, 20 << 30).unwrap());
        log.did("truncate", file.set_len(150_001));
        log.did("grow", file.set_len(160_000));
        log.saw("tail", file.read_at(&mut buffer, 149_990).map(|count| buffer[..count].to_vec()).unwrap());
        let keep = FallocateFlags::KEEP_SIZE;
        log.did("allocate", rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 200_000));
        log.did("keep", rustix::fs::fallocate(&file, keep, 0, 400_000));
        log.did("punch", rustix::fs::fallocate(&file, keep | FallocateFlags::PUNCH_HOLE, 8192, 65_536));
        log.did("bad", rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE, 0, 1));
        log.saw("size", file.metadata().unwrap().len());
        file.read_at(&mut buffer, 0).unwrap();
        log.saw("sum", buffer.iter().map(|&byte| u64::from(byte)).sum::<u64>());
        log.saw("hole", rustix::fs::seek(&file, SeekFrom::Hole(0)).unwrap());
        log.saw("data", rustix::fs::seek(&file, SeekFrom::Data(8192)).unwrap());
        log.did("no data", rustix::fs::seek(&file, SeekFrom::Data(1 << 40)));
        let mut log_file = OpenOptions::new().append(true).open(&path).unwrap();
        log.did("append", log_file.write_all(b"appended"));
        log.saw("size", file.metadata().unwrap().len());
        let copy = File::create(at.join("copy")).unwrap();
        let (mut from, mut to) = (100, 0);
        let copied = rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), 100_000);
        log.saw("copied", copied);
        log.saw("copy", fs::read(at.join("copy")).unwrap() == pattern_of(&file, 100, 100_000));
        log.did("fsync", file.sync_all());
        log.did("unlink", fs::remove_file(&path));
        log.did("write unlinked", file.write_all_at(b"x", 0));
        log.saw("links", file.metadata().unwrap().nlink());
    });
}

fn pattern_of(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn attributes_behave_as_on_tmpfs() {
    compare("attributes_behave_as_on_tmpfs", |at, log| {
        let p = |name: &str| at.join(name);
        fs::write(p("f"), "x").unwrap();
        fs::create_dir(p("d")).unwrap();
        for (name, mode) in [("f", 0o4755), ("f", 0o000), ("d", 0o2770), ("d", 0o1777), ("f", 0o6777)] {
            log.did((name, mode), rustix::fs::chmodat(CWD, p(name), Mode::from(mode), AtFlags::empty()));
            log.stat(&p(name));
        }
        log.did("chown", std::os::unix::fs::chown(p("f"), Some(1000), Some(2000)));
        log.stat(&p("f"));
        rustix::fs::chmodat(CWD, p("d"), Mode::from(0o2777), AtFlags::empty()).unwrap();
        std::os::unix::fs::chown(p("d"), None, Some(77)).unwrap();
        fs::write(p("d/inherits"), "").unwrap();
        fs::create_dir(p("d/too")).unwrap();
        log.stat(&p("d/inherits"));
        log.stat(&p("d/too"));
        for (seconds, nanoseconds) in [(1_000_000_000, 123_456_789), (0, 0), (-2, 500_000_000), (-1, 0)] {
            let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
            let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
            log.did("utimens", rustix::fs::utimensat(CWD, p("f"), &times, AtFlags::empty()));
            let found = fs::metadata(p("f")).unwrap();
            log.saw("times", (found.atime(), found.atime_nsec(), found.mtime(), found.mtime_nsec()));
        }
        let f = p("f");
        log.did("set", rustix::fs::setxattr(&f, "user.a", b"value", XattrFlags::empty()));
        log.did("create", rustix::fs::setxattr(&f, "user.a", b"value", XattrFlags::CREATE));
        log.did("replace", rustix::fs::setxattr(&f, "user.b", b"value", XattrFlags::REPLACE));
        log.did("set", rustix::fs::setxattr(&f, "trusted.t", b"secret", XattrFlags::empty()));
        let mut room = [0u8; 100];
        log.saw("get", rustix::fs::getxattr(&f, "user.a", &mut room[..]).map(|count| room[..count].to_vec()));
        log.saw("length", rustix::fs::getxattr(&f, "user.a", &mut room[..0]));
        log.saw("short", rustix::fs::getxattr(&f, "user.a", &mut room[..2]));
        log.did("none", rustix::fs::getxattr(&f, "user.none", &mut room[..]));
        let listed = rustix::fs::listxattr(&f, &mut room[..]).unwrap();
        let names: BTreeSet<Vec<u8>> = room[..listed].split(|&byte| byte == 0).map(<[u8]>::to_vec).collect();
        log.saw("list", names);
        log.did("remove", rustix::fs::removexattr(&f, "user.a"));
        log.did("remove again", rustix::fs::removexattr(&f, "user.a"));
    });
}

#[test]
fn locks_behave_as_on_tmpfs() {
    compare("locks_behave_as_on_tmpfs", |at, log| {
        let path = at.join("f");
        fs::write(&path, "locked").unwrap();
        let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (one, two) = (open(), open());
        log.did("flock", flock(&one, FlockOperation::NonBlockingLockExclusive));
        log.did("flock again", flock(&two, FlockOperation::NonBlockingLockShared));
        log.did("unlock", flock(&one, FlockOperation::Unlock));
        log.did("flock at last", flock(&two, FlockOperation::NonBlockingLockShared));
        for (credentials, file, kind) in [("one", &one, libc::F_WRLCK), ("two", &two, libc::F_RDLCK)] {
            // SAFETY: all zeros is a lock description: the first byte of the file.
            let mut lock: libc::flock = unsafe { std::mem::zeroed() };
            (lock.l_type, lock.l_len) = (kind as libc::c_short, 1);
            // SAFETY: an open descriptor and a description that the call only reads.
            let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
            let error = std::io::Error::last_os_error().raw_os_error().filter(|_| result != 0);
            log.saw(format!("byte lock of {credentials}"), error);
        }
        drop(one);
        log.did("flock alone", flock(&two, FlockOperation::NonBlockingLockExclusive));
    });
}

#[test]
fn special_files_and_flags_behave_as_on_tmpfs() {
    compare("special_files_and_flags_behave_as_on_tmpfs", |at, log| {
        let p = |name: &str| at.join(name);
        let listener = UnixListener::bind(p("socket"));
        log.did("bind", listener.as_ref().map_err(|error| std::io::Error::from(error.kind())));
        log.did("connect", UnixStream::connect(p("socket")));
        log.did("bind again", UnixListener::bind(p("socket")));
        fs::write(p("f"), "content").unwrap();
        symlink("f", p("l")).unwrap();
        for (flags, name) in [
            (OFlags::NOFOLLOW, "l"),
            (OFlags::PATH | OFlags::NOFOLLOW, "l"),
            (OFlags::DIRECTORY, "f"),
            (OFlags::CREATE | OFlags::DIRECTORY, "new"),
            (OFlags::CREATE | OFlags::EXCL, "f"),
            (OFlags::CREATE | OFlags::EXCL, "l"),
            (OFlags::WRONLY, "."),
            (OFlags::DIRECT, "f"),
            (OFlags::NOATIME, "f"),
            (OFlags::WRONLY | OFlags::NONBLOCK, "socket"),
        ] {
            log.did((flags, name), open(p(name), flags, Mode::from(0o644)));
        }
        for (resolve, path) in [
            (ResolveFlags::NO_SYMLINKS, "l"),
            (ResolveFlags::BENEATH, "../f"),
            (ResolveFlags::IN_ROOT, "/f"),
            (ResolveFlags::NO_XDEV, "f"),
        ] {
            let directory = File::open(at).unwrap();
            log.did((resolve, path), openat2(&directory, path, OFlags::RDONLY, Mode::empty(), resolve));
        }
        let file = OpenOptions::new().read(true).write(true).open(p("f")).unwrap();
        log.did("link of a descriptor", linkat(&file, "", CWD, p("f2"), AtFlags::EMPTY_PATH));
        log.did("data", seek(&file, SeekFrom::Data(0)));
        log.did("data behind the end", seek(&file, SeekFrom::Data(100)));
        log.did("reflink", ioctl_ficlone(File::create(p("copy")).unwrap(), &file));
        log.saw("handle", shell(at, "stat -c '%F %h' f f2 l socket"));
    });
}

#[test]
fn other_users_meet_the_same_refusals() {
    // Programs of another user need a shell: setpriv is part of util-linux.
    compare("other_users_meet_the_same_refusals", |at, log| {
        fs::set_permissions(at, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        // That user must be able to reach the mount. The directory above may be the machine's own:
        // no bit of it is taken away.
        let above = at.parent().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(above).unwrap().permissions()) & 0o7777;
        if mode & 0o055 != 0o055 {
            let open = std::os::unix::fs::PermissionsExt::from_mode(mode | 0o055);
            fs::set_permissions(above, open).unwrap();
        }
        shell(at, "mkdir -m 1777 tmp; mkdir -m 700 closed; mkdir -m 755 open; echo x >open/f; echo x >tmp/roots");
        shell(at, "mkdir -m 2777 group; chgrp 77 group; cp /bin/true suid; chmod 6777 suid");
        let alice = "setpriv --reuid 1000 --regid 1000 --clear-groups sh -c";
        for script in [
            "echo x >new",
            "echo x >tmp/mine; cat tmp/mine; stat -c '%u %g %a' tmp/mine",
            "rm -f tmp/roots",
            "mv tmp/roots tmp/stolen",
            "ls closed; stat closed/x; cd closed",
            "cat open/f; echo y >>open/f; rm -f open/f; chmod 777 open/f",
            "mkdir group/d; touch group/f; stat -c '%u %g %a' group/d group/f",
            "ln open/f tmp/hard && stat -c %h open/f; ln -s open/f tmp/soft; cat tmp/soft",
            "touch -d '2001-01-01' tmp/mine; touch -d '2001-01-01' tmp/roots; touch tmp/roots",
            "test -w open/f; echo $?; test -r open/f; echo $?; test -x open; echo $?",
            "echo >>suid; stat -c %a suid",
            "chown 0 tmp/mine; chgrp 1 tmp/mine; chmod 4711 tmp/mine; stat -c %a tmp/mine",
            "mknod tmp/dev c 1 3; mknod tmp/pipe p; stat -c %F tmp/pipe",
        ] {
            let output = shell(at, &format!("umask 022; {alice} '{}'", script.replace('\'', "'\\''")));
            log.saw(script, output);
        }
    });
}

/// A list in the kernel's layout: tag, permissions and id of each entry.
fn access_list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |(tag, permissions, id): &(u16, u16, u32)| {
        let halves = [tag.to_le_bytes(), permissions.to_le_bytes()].concat();
        [halves, id.to_le_bytes().to_vec()].concat()
    };
    [vec![2, 0, 0, 0], entries.iter().flat_map(entry).collect()].concat()
}

#[test]
fn access_lists_decide_as_on_tmpfs() {
    // User 1000 may read and write, group 50 may read, and the mask allows both.
    let list = access_list(&[(1, 6, !0), (2, 7, 1000), (4, 0, !0), (8, 4, 50), (16, 6, !0), (32, 0, !0)]);
    let set = |path: &Path, name: &str, value: &[u8]| rustix::fs::setxattr(path, name, value, XattrFlags::empty());
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    let probe = scratch();
    if set(probe.path(), access, &list).is_err() {
        eprintln!("SKIPPED access_lists_decide_as_on_tmpfs: the tmpfs to compare with has no access control lists");
        return;
    }
    compare("access_lists_decide_as_on_tmpfs", |at, log| {
        let p = |name: &str| at.join(name);
        shell(at, "chmod 755 .; echo x >f; chmod 600 f; mkdir d plain; chmod 700 d");
        log.did("set", set(&p("f"), access, &list));
        log.did("set default", set(&p("d"), default, &list));
        log.did("set on directory", set(&p("d"), access, &list));
        log.did("default of a file", set(&p("f"), default, &list));
        log.did("nonsense", set(&p("f"), access, &list[..list.len() - 8]));
        for script in [
            "cat f; echo y >>f; stat -c %a f d",
            "chmod 640 f; cat f; echo y >>f",
            "cd d && ls",
            "umask 077; mkdir d/made; echo >d/new; mkfifo d/pipe; stat -c %a d/made d/new d/pipe",
        ] {
            let quoted = script.replace('\'', "'\\''");
            for credentials in
                ["setpriv --reuid=1000 --regid=1000 --groups=1000", "setpriv --reuid=1001 --regid=50 --groups=50"]
            {
                log.saw((credentials, script), shell(at, &format!("{credentials} sh -c '{quoted}'")));
            }
            log.saw(script, shell(at, script));
        }
        for name in ["f", "d", "d/made", "d/new", "d/pipe", "plain"] {
            for list in [access, default] {
                let mut value = [0u8; 200];
                let read = rustix::fs::getxattr(p(name), list, &mut value).map(|length| value[..length].to_vec());
                log.saw((name, list), read);
            }
        }
        log.did("remove", rustix::fs::removexattr(p("f"), access));
        log.did("remove again", rustix::fs::removexattr(p("f"), access));
        log.saw("after", shell(at, "stat -c %a f"));
    });
}

#[test]
fn programs_work_as_on_tmpfs() {
    compare("programs_work_as_on_tmpfs", |at, log| {
        for script in [
            "mkdir -p a/b/c && for i in $(seq 300); do echo $i >a/b/c/file-$i; done; ls a/b/c | wc -l; ls a/b/c | sort -V | tail -1",
            "cp -a a copy && diff -r a copy && find copy -type f | wc -l",
            "tar cf - a | tar xf - -C copy && diff -r a copy/a && du -s --apparent-size copy >/dev/null && echo same",
            "find . -name 'file-2*' -delete; find . -type f | wc -l",
            "mv copy moved && ln moved/b/c/file-1 hard && ln -s moved/b soft && ls soft/c | wc -l && stat -c %h hard",
            "ls -ld . a moved | awk '{print $1, $2}'",
            "dd if=/dev/urandom of=big bs=1M count=20 2>/dev/null; cp big big2; cmp big big2 && echo equal",
            "dd if=/dev/zero of=big bs=4096 seek=3 count=2 conv=notrunc 2>/dev/null; stat -c %s big; truncate -s 100 big; wc -c <big",
            "exec 3<>rw; echo hello >&3; rm rw; cat <rw; cat /proc/self/fd/3",
            "python3 -c \"import mmap,os; f=open('m','w+b'); f.truncate(8192); m=mmap.mmap(f.fileno(),8192); m[5000:5005]=b'hello'; m.flush(); m.close(); f.close(); print(open('m','rb').read().count(b'hello'))\"",
            "sort -R a/b/c/* | sort -n | md5sum",
            "rm -rf a moved && ls -A | sort",
        ] {
            log.saw(script, shell(at, script));
        }
    });
}

#[test]
fn a_mount_is_found_as_it_was_left() {
    if !can_mount("a_mount_is_found_as_it_was_left") {
        return;
    }
    let mut mounted = Mounted::new("");
    shell(&mounted.mount, "mkdir d; echo content >d/f; ln -s d/f l; chmod 640 d/f");
    let before = shell(&mounted.mount, "find . -printf '%p %M %u %s %T@ %l\\n' | sort; cat l");
    assert_eq!(mounted.unmount(), Closed::Last);
    assert_eq!(fs::read_dir(&mounted.mount).unwrap().count(), 0, "unmounted");
    mounted.mount();
    let report = shell(&mounted.mount, "find . -printf '%p %M %u %s %T@ %l\\n' | sort; cat l");
    assert_eq!(report, before);
    let info = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = info.lines().find(|line| line.contains(mounted.mount.to_str().unwrap())).unwrap();
    assert!(line.contains(" fuse.directfs rw,") && line.starts_with(mounted.image.to_str().unwrap()), "{line}");
    // Uses umount(8), as an administrator does.
    // Processes that other tests start have this test's files until their exec.
    let end = Instant::now() + Duration::from_secs(600);
    while !Command::new("umount").arg(&mounted.mount).status().unwrap().success() {
        assert!(Instant::now() < end, "the mount is in use");
    }
    assert_eq!(mounted.wait(), Closed::Last);
    let image = Image::open(&mounted.image, &mounted.opening()).unwrap();
    assert!(!image.report().unwrap().scanned, "left clean");
}

#[test]
fn files_in_use_outlive_the_unmount() {
    if !can_mount("files_in_use_outlive_the_unmount") {
        return;
    }
    let mut mounted = Mounted::new("");
    // The close that ends the mount meets the server's workers at a different time in each round.
    for _ in 0..30 {
        let (path, other) = (mounted.path("f"), mounted.path("stays"));
        fs::write(&other, "").unwrap();
        fs::write(&path, "still ").unwrap();
        let mut file = File::options().read(true).append(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        mounted.leave();
        assert!(!other.exists(), "hidden immediately");
        // Only a running server answers these.
        file.write_all(b"here").unwrap();
        file.sync_all().unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "still here");
        drop(file);
        assert_eq!(mounted.wait(), Closed::Last);
        mounted.mount();
        assert!(other.exists(), "visible again");
    }
}

#[test]
fn a_shared_image_is_coherent() {
    if !can_mount("a_shared_image_is_coherent") {
        return;
    }
    let mounted = Mounted::new("cache=0");
    let image = Image::open(&mounted.image, &mounted.opening()).unwrap();
    let thread = image.fs().enter().unwrap();
    let caller = posix::Caller::new(&thread, posix::Credentials::user(0, 0, &[]));
    let root = thread.root().unwrap();
    for round in 0..50u8 {
        let name = format!("file-{round}");
        let path = mounted.path(&name);
        assert!(!path.exists());
        let opened = caller.opens().open_name(root, name.as_bytes(), libc::O_CREAT | libc::O_RDWR, 0o644, 0).unwrap();
        assert_eq!(caller.data().write(&opened.file, &[round; 100]).unwrap(), 100);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert_eq!(pattern_of(&file, 0, 100), [round; 100]);
        caller.data().write_at(&opened.file, 50, &[!round; 10]).unwrap();
        assert_eq!(pattern_of(&file, 50, 10), [!round; 10], "same size, same tick of the clock");
        file.write_all_at(b"from the mount", 0).unwrap();
        let mut text = [0; 14];
        caller.data().read_at(&opened.file, 0, &mut text).unwrap();
        assert_eq!(&text, b"from the mount");
        caller.unlink(root, name.as_bytes()).unwrap();
        assert!(!path.exists());
        caller.opens().close(&opened.file);
    }
    thread.release(root, 1);
}

#[test]
fn concurrent_programs_do_not_disturb_each_other() {
    if !can_mount("many_at_once_do_not_disturb_each_other") {
        return;
    }
    let mut mounted = Mounted::new("");
    let at = mounted.mount.clone();
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let at = &at;
            scope.spawn(move || {
                for round in 0..200 {
                    let path = at.join(format!("{worker}-{round}"));
                    fs::write(&path, format!("{worker} {round}")).unwrap();
                    let moved = at.join(format!("moved-{worker}-{round}"));
                    fs::rename(&path, &moved).unwrap();
                    assert_eq!(fs::read_to_string(&moved).unwrap(), format!("{worker} {round}"));
                    if round % 2 == 0 {
                        fs::remove_file(&moved).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(fs::read_dir(&at).unwrap().count(), 800);
    mounted.unmount();
}

#[test]
fn options_reach_the_kernel() {
    if !can_mount("options_reach_the_kernel") {
        return;
    }
    let mut mounted = Mounted::new("uid=1234,gid=5678,nosuid,nodev,noexec,noatime,fsname=a name");
    fs::write(mounted.path("f"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(mounted.path("f"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let found = fs::metadata(mounted.path("f")).unwrap();
    assert_eq!((found.uid(), found.gid()), (1234, 5678));
    assert!(Command::new(mounted.path("f")).status().is_err(), "noexec");
    let info = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = info.lines().find(|line| line.contains(mounted.mount.to_str().unwrap())).unwrap();
    for option in ["nosuid", "nodev", "noexec", "noatime", "allow_other", "default_permissions", "a\\040name"] {
        assert!(line.contains(option), "{option} in {line}");
    }
    mounted.unmount();
    mounted.options.read_only = true;
    mounted.mount();
    let refused = fs::write(mounted.path("g"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read_to_string(mounted.path("f")).unwrap(), "#!/bin/sh\n");
    assert_eq!(mounted.unmount(), Closed::ReadOnly);
}

#[test]
fn a_mount_can_be_made_read_only_and_writable_again() {
    if !can_mount("a_mount_can_be_made_read_only_and_writable_again") {
        return;
    }
    let mut mounted = Mounted::new("");
    for (options, expected) in [("remount,ro", Some(libc::EROFS)), ("remount,rw", None)] {
        let options = MountOptions::parse(options).unwrap();
        assert!(options.remount);
        fuse::remount(&mounted.mount, &options, 0).unwrap();
        let error = fs::write(mounted.path("f"), "x").err();
        assert_eq!(error.and_then(|error| error.raw_os_error()), expected);
    }
    assert_eq!(mounted.unmount(), Closed::Last);
}

#[test]
fn access_times_follow_the_mount_options() {
    if !can_mount("access_times_follow_the_mount_options") {
        return;
    }
    for (options, expected) in [
        ("cache=0", [true, true, true]),
        ("cache=0,nodiratime", [true, false, true]),
        ("cache=0,noatime", [false, false, false]),
    ] {
        let mounted = Mounted::new(options);
        let paths = ["f", "d", "l"].map(|name| mounted.path(name));
        fs::write(&paths[0], "x").unwrap();
        fs::create_dir(&paths[1]).unwrap();
        symlink("f", &paths[2]).unwrap();
        shell(&mounted.mount, "touch -h -d 2001-01-01 f d l");
        fs::read(&paths[0]).unwrap();
        fs::read_dir(&paths[1]).unwrap().count();
        fs::read_link(&paths[2]).unwrap();
        let moved = paths.map(|path| fs::symlink_metadata(path).unwrap().atime() > 1_000_000_000);
        assert_eq!(moved, expected, "file, directory, link with {options}");
    }
}

#[test]
fn a_read_only_mount_shows_what_a_writing_mount_writes() {
    if !can_mount("a_read_only_mount_beside_a_writing_one_shows_what_is_written") {
        return;
    }
    let mut mounted = Mounted::new("cache=0");
    let second = mounted.scratch.path().join("second");
    fs::create_dir(&second).unwrap();
    let options = MountOptions::parse("ro,cache=0").unwrap();
    let opening = OpenImage { read_only: true, ..mounted.opening() };
    let reader = Server::start(Image::open(&mounted.image, &opening).unwrap(), &second, &options).unwrap();
    fs::write(mounted.path("f"), "one").unwrap();
    assert_eq!(fs::read_to_string(second.join("f")).unwrap(), "one");
    fs::rename(mounted.path("f"), mounted.path("g")).unwrap();
    assert!(!second.join("f").exists());
    assert_eq!(fs::write(second.join("g"), "two").unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert_eq!(mounted.unmount(), Closed::OthersRemain);
    assert_eq!(fs::read_to_string(second.join("g")).unwrap(), "one");
    reader.stopper().stop().unwrap();
    assert_eq!(reader.wait().unwrap(), Closed::Last);
}

#[test]
fn bad_mount_points_are_explained() {
    if !can_mount("bad_mount_points_are_explained") {
        return;
    }
    let mounted = Mounted::new("cache=0");
    let image = || Image::open(&mounted.image, &mounted.opening()).unwrap();
    let start = |path: &Path| fuse::Server::start(image(), path, &mounted.options).map(drop).unwrap_err().to_string();
    assert!(start(&mounted.scratch.path().join("none")).contains("create the directory first"));
    assert!(start(&mounted.image).contains("not a directory"));
}

#[test]
fn large_directories_are_listed_whole() {
    if !can_mount("large_directories_are_listed_whole") {
        return;
    }
    let mounted = Mounted::new("");
    for index in 0..3000 {
        File::create(mounted.path(&format!("a-rather-long-name-{index:06}"))).unwrap();
    }
    let names: BTreeSet<_> = fs::read_dir(&mounted.mount).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3000);
    let listing = shell(&mounted.mount, "ls -lU | wc -l");
    assert!(listing.starts_with("3001"), "{listing}");
    // Seeks back to an earlier position.
    let directory = File::open(&mounted.mount).unwrap();
    let names_from = |start: u64, count: usize| {
        rustix::fs::seek(&directory, SeekFrom::Start(start)).unwrap();
        let mut room = vec![std::mem::MaybeUninit::uninit(); 4096];
        let mut entries = rustix::fs::RawDir::new(&directory, &mut room);
        let mut next = || {
            let entry = entries.next().unwrap().unwrap();
            (entry.file_name().to_owned(), entry.next_entry_cookie())
        };
        (0..count).map(|_| next()).collect::<Vec<_>>()
    };
    let first = names_from(0, 30);
    assert_eq!(names_from(first[9].1, 20), first[10..]);
}

#[test]
fn a_program_that_runs_is_not_emptied() {
    compare("a_program_that_runs_is_not_emptied", |at, log| {
        let program = at.join("program");
        // The program is copied by another process. A process that another test starts meanwhile
        // inherits this test's descriptors until its exec, and a program that is open for writing
        // cannot be executed ("text file busy").
        shell(at, "cp /bin/sleep program");
        let length = fs::metadata(&program).unwrap().len();
        let mut running = Command::new(&program).arg("1000").spawn().unwrap();
        for flags in [OFlags::RDONLY | OFlags::TRUNC, OFlags::WRONLY, OFlags::RDWR | OFlags::TRUNC] {
            log.did(flags, open(&program, flags, Mode::empty()));
        }
        log.saw("whole", fs::metadata(&program).unwrap().len() == length);
        log.saw("runs", running.try_wait().unwrap().is_none());
        running.kill().unwrap();
        running.wait().unwrap();
        log.did("empties", open(&program, OFlags::RDONLY | OFlags::TRUNC, Mode::empty()));
        log.saw("empty", fs::metadata(&program).unwrap().len());
    });
}

#[test]
fn a_mount_without_extended_attributes_leaves_them_on_the_image() {
    if !can_mount("a_mount_without_extended_attributes_leaves_them_on_the_image") {
        return;
    }
    let mut mounted = Mounted::new("");
    let path = mounted.path("f");
    fs::write(&path, "content").unwrap();
    rustix::fs::setxattr(&path, "user.a", b"value", XattrFlags::empty()).unwrap();
    mounted.unmount();
    mounted.options = MountOptions::parse("noxattr").unwrap();
    mounted.mount();
    let mut room = [0; 16];
    let refused = Some(rustix::io::Errno::OPNOTSUPP);
    assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut room[..]).err(), refused);
    assert_eq!(rustix::fs::listxattr(&path, &mut room[..]).err(), refused);
    assert_eq!(rustix::fs::setxattr(&path, "user.b", b"value", XattrFlags::empty()).err(), refused);
    assert_eq!(rustix::fs::removexattr(&path, "user.a").err(), refused);
    fs::write(&path, "changed").unwrap();
    mounted.unmount();
    mounted.options = MountOptions::default();
    mounted.mount();
    assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut room[..]), Ok(5));
    assert_eq!(fs::read(&path).unwrap(), b"changed");
    mounted.unmount();
}

#[test]
fn flags_of_files_outlive_the_mount_and_opens_heed_them() {
    if !can_mount("flags_of_files_outlive_the_mount_and_opens_heed_them") {
        return;
    }
    let mut mounted = Mounted::new("");
    let listed = "lsattr -d * | tr -d -";
    let made = "echo content >f; echo content >log; mkdir d; chattr +i f d && chattr +a log";
    let set = shell(&mounted.mount, &format!("{made}; {listed}"));
    assert_eq!(set, "i d\ni f\na log\nSome(0)");
    mounted.unmount();
    // The kernel asks about opens, because the image has such files.
    mounted.mount();
    assert_eq!(shell(&mounted.mount, listed), set);
    let refused = Some(libc::EPERM);
    let open = |name: &str, options: &mut fs::OpenOptions| options.open(mounted.path(name)).err();
    for mut options in [File::options().write(true).clone(), File::options().append(true).clone()] {
        let error = open("f", &mut options);
        assert_eq!(error.and_then(|error| error.raw_os_error()), refused, "{options:?}");
    }
    let error = open("log", File::options().write(true));
    assert_eq!(error.and_then(|error| error.raw_os_error()), refused);
    let mut log = File::options().append(true).open(mounted.path("log")).unwrap();
    log.write_all(b"more\n").unwrap();
    assert_eq!(log.set_len(0).unwrap_err().raw_os_error(), refused);
    drop(log);
    let uses = "rm -f f log; mv d e; mkdir d/e; ln f g; touch -d @0 log; chmod 600 f";
    let errors = shell(&mounted.mount, uses);
    assert_eq!(errors.matches("Operation not permitted").count(), 7, "{errors}");
    let left = shell(&mounted.mount, "cat f log; touch log; chattr -i f d; chattr -a log; rm -r f log d; ls");
    assert_eq!(left, "content\ncontent\nmore\nSome(0)");
    mounted.unmount();
}

#[test]
fn an_access_list_of_another_group_clears_the_set_group_id_bit() {
    if !can_mount("an_access_list_of_another_group_clears_the_set_group_id_bit") {
        return;
    }
    use std::os::unix::fs::{PermissionsExt, chown};
    // Version 2; then owner, group and others with all permissions.
    let list: Vec<u8> = [[2, 0].as_slice(), &[0, 0]].concat();
    let entry = |tag: u8| [tag, 0, 7, 0, 0xff, 0xff, 0xff, 0xff];
    let list = [list, entry(1).to_vec(), entry(4).to_vec(), entry(32).to_vec()].concat();
    for options in ["", "cache=0"] {
        let mounted = Mounted::new(options);
        fs::set_permissions(&mounted.mount, fs::Permissions::from_mode(0o777)).unwrap();
        fs::set_permissions(mounted.scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = mounted.path("file");
        fs::write(&path, "").unwrap();
        chown(&path, Some(100), Some(100)).unwrap();
        let mode_after = |group: u32| {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o2755)).unwrap();
            let set = || {
                // SAFETY: numbers only; the raw calls change the ids of this thread alone.
                unsafe {
                    libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>());
                    libc::syscall(libc::SYS_setresgid, group, group, group);
                    libc::syscall(libc::SYS_setresuid, 100, 100, 100);
                }
                rustix::fs::setxattr(&path, "system.posix_acl_access", &list, rustix::fs::XattrFlags::empty()).unwrap();
            };
            std::thread::scope(|scope| scope.spawn(set).join().unwrap());
            fs::metadata(&path).unwrap().permissions().mode() & 0o7777
        };
        assert_eq!(mode_after(100), 0o2777, "{options}: the file's group");
        assert_eq!(mode_after(101), 0o777, "{options}: another group");
    }
}
