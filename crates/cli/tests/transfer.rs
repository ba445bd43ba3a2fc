//! Trees into and out of images: `mkfs --from`, `export`, `import`.

mod support;

use rustix::fs::XattrFlags;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::killing::killed_at;
use support::terminal::Terminal;
use support::{directfs, scratch, stderr, stdout};

const MIB: u64 = 1 << 20;

/// Runs a shell script; `$1` and so on are the arguments.
fn shell(script: &str, arguments: &[&Path]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(arguments).env("directfs", env!("CARGO_BIN_EXE_directfs"));
    command.output().unwrap()
}

fn done(script: &str, arguments: &[&Path]) -> String {
    let output = shell(script, arguments);
    assert!(output.status.success(), "{script}: {}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

fn image_in(directory: &Path, name: &str) -> PathBuf {
    let image = directory.join(name);
    let made = directfs(&["mkfs", image.to_str().unwrap(), "--size", "64M", "--sparse"]);
    assert!(made.status.success(), "{}", stderr(&made));
    image
}

fn is_sound(image: &Path) {
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
}

/// Names, kinds, modes, owners, sizes, times, link counts and targets below a directory.
const LIST: &str = "find . -mindepth 1 -printf '%P|%y|%m|%U|%G|%s|%T@|%l|' \\( -type d -printf '\\n' -o -printf '%n\\n' \\) | sort | sed 's/|[0-9]*|\\([0-9.]*||\\)$/|\\1/'";

/// That list with the checksums of contents, of a directory of the host.
fn list_of(directory: &Path) -> String {
    done(&format!("cd \"$1\" && {LIST} && find . -type f -exec cksum {{}} + | sort"), &[directory])
}

fn list_in(image: &Path) -> String {
    let script = format!("{LIST} && find . -type f -exec cksum {{}} + | sort");
    let image = image.to_str().unwrap();
    let output =
        directfs(&["run", "--image", image, "--at", "/mnt/list", "-C", "/mnt/list", "--", "sh", "-c", &script]);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

fn run_in(image: &Path, script: &str) -> String {
    let image = image.to_str().unwrap();
    let output = directfs(&["run", "--image", image, "--at", "/mnt/list", "-C", "/mnt/list", "--", "sh", "-c", script]);
    assert!(output.status.success(), "{script}: {}", stderr(&output));
    stdout(&output)
}

/// A tree with everything.
fn make_tree(tree: &Path) {
    fs::create_dir_all(tree.join("deep/er/directory")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    fs::write(tree.join("file"), "content\n").unwrap();
    fs::write(tree.join("deep/no content"), "").unwrap();
    fs::write(tree.join("deep/er/large"), (0..300_000u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    fs::hard_link(tree.join("file"), tree.join("deep/second name")).unwrap();
    fs::hard_link(tree.join("file"), tree.join("third")).unwrap();
    symlink("../file", tree.join("deep/link")).unwrap();
    symlink("/nowhere/".repeat(40), tree.join("long link")).unwrap();
    let long = tree.join("a".repeat(200)).join("b".repeat(200));
    fs::create_dir_all(&long).unwrap();
    fs::write(long.join("ö".repeat(100)), "in a long path").unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    for at in [4096, 3 * MIB, 3 * MIB + 8192] {
        sparse.write_all_at(b"island", at).unwrap();
    }
    sparse.set_len(9 * MIB).unwrap();
    fs::File::create(tree.join("all hole")).unwrap().set_len(5 * MIB).unwrap();
    fs::set_permissions(tree.join("file"), PermissionsExt::from_mode(0o4751)).unwrap();
    fs::set_permissions(tree.join("empty"), PermissionsExt::from_mode(0o1777)).unwrap();
    done("mkfifo -m 640 \"$1/pipe\"", &[tree]);
    if rustix::process::geteuid().is_root() {
        let made = shell("mknod \"$1/device\" c 1 300 && chown 12345:3000000 \"$1/deep/no content\"", &[tree]);
        if !made.status.success() {
            eprintln!("\n*** SKIPPED: devices and owners: {} ***\n", stderr(&made));
        }
    }
    let script = "cd \"$1\" && touch -h -d '2001-02-03 04:05:06.123456789' file deep/link sparse && \
        touch -d '1969-12-31 23:59:58.5 UTC' deep/er/large && touch -d 2010-10-10 deep empty";
    done(script, &[tree]);
    // Not every file system of a test machine has them.
    let has_xattrs = rustix::fs::setxattr(tree.join("file"), "user.colour", b"green\0=", XattrFlags::empty()).is_ok();
    if !has_xattrs {
        eprintln!("\n*** SKIPPED: extended attributes: the scratch file system has none ***\n");
    }
}

fn has_xattrs(tree: &Path) -> bool {
    let mut value = [0; 16];
    rustix::fs::getxattr(tree.join("file"), "user.colour", &mut value[..]).is_ok()
}

/// listxattr has no buffer for so many names, so programs fail with E2BIG as on other systems.
#[test]
fn a_file_with_more_attributes_than_a_list_holds_is_exported_whole() {
    let directory = scratch();
    let (image, other) = (image_in(directory.path(), "image"), image_in(directory.path(), "other"));
    let fill = "import os; [open(name, 'w') for name in ('before', 'f', 'later')]; \
                [os.setxattr('f', 'user.%0240d' % number, b'value') for number in range(300)]\n\
                try: os.listxattr('f')\nexcept OSError as error: print(error.errno)";
    let script = written(&directory, fill);
    let listed = run_in(&image, &format!("python3 {}", script.display()));
    assert_eq!(listed, format!("{}\n", libc::E2BIG));
    done("\"$directfs\" export \"$1\" | \"$directfs\" import \"$2\"", &[&image, &other]);
    let last = "import os; print(os.getxattr('f', 'user.%0240d' % 299), *sorted(os.listdir('.')))";
    let last = written(&directory, last);
    assert_eq!(run_in(&other, &format!("python3 {}", last.display())), "b'value' before f later\n");
}

#[test]
fn names_of_attributes_go_along_whatever_their_bytes() {
    let directory = scratch();
    let (image, other) = (image_in(directory.path(), "image"), image_in(directory.path(), "other"));
    let names = "import os\nnames = [b'user.' + bytes([byte]) for byte in range(1, 256)]\n\
                 names += [b'user.%3D', b'user.%25', b'user.%253D=%', b'user.a%']\n";
    let fill = format!("{names}open('f', 'w')\nfor name in names: os.setxattr('f', name, b'value of ' + name)");
    run_in(&image, &format!("python3 {}", written(&directory, &fill).display()));
    done("\"$directfs\" export \"$1\" | \"$directfs\" import \"$2\"", &[&image, &other]);
    let check = format!(
        "{names}found = {{os.fsencode(name): os.getxattr('f', name) for name in os.listxattr('f')}}\n\
         print(found == {{name: b'value of ' + name for name in names}} or found)"
    );
    assert_eq!(run_in(&other, &format!("python3 {}", written(&directory, &check).display())), "True\n");
}

#[test]
fn access_lists_go_along() {
    let directory = scratch();
    let (tree, image) = (directory.path().join("tree"), directory.path().join("image"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "x").unwrap();
    let list = |bits: [u8; 5]| {
        let entries = [(1, u32::MAX), (2, 1234), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)];
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for ((tag, id), bits) in entries.into_iter().zip(bits) {
            bytes.extend([tag, 0, bits, 0]);
            bytes.extend(u32::to_le_bytes(id));
        }
        bytes
    };
    let set =
        rustix::fs::setxattr(tree.join("file"), "system.posix_acl_access", &list([6, 4, 0, 4, 0]), XattrFlags::empty());
    if let Err(errno) = set {
        eprintln!("\n*** SKIPPED: access lists: the scratch file system has none: {errno} ***\n");
        return;
    }
    let made =
        directfs(&["mkfs", image.to_str().unwrap(), "--size", "16M", "--sparse", "--from", tree.to_str().unwrap()]);
    assert!(made.status.success(), "{}", stderr(&made));
    let second = image_in(directory.path(), "second");
    done("\"$directfs\" export \"$1\" | \"$directfs\" import \"$2\"", &[&image, &second]);
    let third = image_in(directory.path(), "third");
    done("tar -C \"$1\" --acls -c . | \"$directfs\" import \"$2\"", &[&tree, &third]);
    let script =
        "python3 -c 'import os; print(os.getxattr(\"file\", \"system.posix_acl_access\").hex())'; stat -c %a file";
    let expected = done(&format!("cd \"$1\" && {script}"), &[&tree]);
    for image in [&image, &second, &third] {
        assert_eq!(run_in(image, script), expected, "{}", image.display());
        is_sound(image);
    }
}

/// The attribute of the tree, read by a program in the image.
fn check_xattrs(tree: &Path, image: &Path) {
    if has_xattrs(tree) {
        let script = "python3 -c 'import os; print(os.getxattr(\"file\", \"user.colour\"))'";
        assert_eq!(run_in(image, script), "b'green\\x00='\n");
    }
}

#[test]
fn an_image_made_from_a_directory_has_everything_of_it() {
    let directory = scratch();
    let (tree, image) = (directory.path().join("tree"), directory.path().join("image"));
    make_tree(&tree);
    for arguments in [&["--sparse"][..], &["--force", "--label", "again"]] {
        let base = ["mkfs", image.to_str().unwrap(), "--size", "64M", "--from", tree.to_str().unwrap()];
        let made = directfs(&[&base[..], arguments].concat());
        assert!(made.status.success(), "{}", stderr(&made));
        assert_eq!(list_in(&image), list_of(&tree));
        check_xattrs(&tree, &image);
        is_sound(&image);
    }
    let holes = run_in(&image, "stat -c %b 'all hole' sparse");
    let blocks: Vec<u64> = holes.lines().map(|line| line.parse().unwrap()).collect();
    assert!(blocks[0] == 0 && blocks[1] < 100, "holes stay holes: {holes}");
    assert_eq!(fs::metadata(&image).unwrap().mode() & 0o777, 0o600);
    // On a disk, too, and with the image in the directory that it is made from.
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::write(disk.path().join("one"), "1").unwrap();
    let image = disk.path().join("image");
    for force in ["--sparse", "--force"] {
        let path = disk.path().to_str().unwrap();
        let made = directfs(&["mkfs", image.to_str().unwrap(), "--size", "16M", force, "--from", path]);
        assert!(made.status.success(), "{}", stderr(&made));
        assert_eq!(run_in(&image, "ls"), "one\n");
        is_sound(&image);
    }
}

#[test]
fn tools_read_what_is_exported_and_an_import_gives_the_same_tree() {
    let directory = scratch();
    let (tree, image) = (directory.path().join("tree"), image_in(directory.path(), "image"));
    make_tree(&tree);
    let from = directfs(&[
        "mkfs",
        image.to_str().unwrap(),
        "--size",
        "64M",
        "--sparse",
        "--force",
        "--from",
        tree.to_str().unwrap(),
    ]);
    assert!(from.status.success(), "{}", stderr(&from));
    let archive = directory.path().join("archive.tar");
    done("\"$directfs\" export \"$1\" > \"$2\"", &[&image, &archive]);
    assert!(fs::metadata(&archive).unwrap().len() < 3 * MIB, "holes are not in it");
    let unpacked = directory.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    done("tar -C \"$2\" --xattrs --numeric-owner -xpSf \"$1\"", &[&archive, &unpacked]);
    assert_eq!(list_of(&unpacked), list_of(&tree));
    assert_eq!(has_xattrs(&unpacked), has_xattrs(&tree));
    let python = shell("python3 -m tarfile -l \"$1\" | wc -l", &[&archive]);
    let names = list_of(&tree).lines().filter(|line| line.contains('|')).count() + 1;
    assert_eq!(stdout(&python).trim(), names.to_string(), "{}", stderr(&python));

    let second = image_in(directory.path(), "second");
    done("\"$directfs\" export \"$1\" | \"$directfs\" import \"$2\"", &[&image, &second]);
    assert_eq!(list_in(&second), list_of(&tree));
    check_xattrs(&tree, &second);
    is_sound(&second);
    let holes = run_in(&second, "stat -c %b 'all hole'");
    assert_eq!(holes, "0\n");
    // A part, and a single file.
    assert_eq!(done("\"$directfs\" export \"$1\" deep/er | tar -t", &[&image]), "./\n./directory/\n./large\n");
    assert_eq!(done("\"$directfs\" export \"$1\" /file | tar -xO", &[&image]), "content\n");
}

#[test]
fn archives_of_gnu_tar_are_imported_in_all_formats() {
    let directory = scratch();
    let tree = directory.path().join("tree");
    make_tree(&tree);
    let formats = ["--format=gnu -S", "--format=pax -S", "--format=pax --sparse-version=0.0 -S"];
    let more = ["--format=pax --sparse-version=0.1 -S", "--format=pax --xattrs", "--format=oldgnu"];
    for format in formats.into_iter().chain(more) {
        let image = image_in(directory.path(), "image");
        let script = format!("tar -C \"$1\" {format} --numeric-owner -c . | \"$directfs\" import \"$2\"");
        done(&script, &[&tree, &image]);
        let (mut expected, mut found) = (list_of(&tree), list_in(&image));
        if !format.contains("pax") {
            // Whole seconds only.
            let cut =
                |list: &str| done("sed 's/\\(|-*[0-9]*\\)\\.[0-9]*|/\\1|/' \"$1\"", &[&written(&directory, list)]);
            (expected, found) = (cut(&expected), cut(&found));
        }
        let differences = difference(&expected, &found);
        // Before 1970 a time is rounded otherwise.
        assert!(differences.iter().all(|line| line.contains("deep/er/large|")), "{format}: {differences:?}");
        is_sound(&image);
        fs::remove_file(&image).unwrap();
    }
    // Directories are merged, files replaced, and a directory of the archive keeps what it had.
    let image = image_in(directory.path(), "image");
    run_in(&image, "mkdir -p deep/er other && echo old > file && echo kept > deep/kept");
    done("tar -C \"$1\" -c . | \"$directfs\" import \"$2\"", &[&tree, &image]);
    assert_eq!(run_in(&image, "cat file deep/kept && ls -A -d other .d* 2>/dev/null; true"), "content\nkept\nother\n");
    let into = done("cd \"$1\" && tar -c file | \"$directfs\" import \"$2\" --to other --json", &[&tree, &image]);
    assert!(into.contains("\"files\": 1"), "{into}");
    assert_eq!(run_in(&image, "cat other/file"), "content\n");
    is_sound(&image);
}

fn written(directory: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = directory.path().join("list");
    fs::write(&path, text).unwrap();
    path
}

fn difference(one: &str, other: &str) -> Vec<String> {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    lines(one).symmetric_difference(&lines(other)).cloned().collect()
}

/// Archives of an attacker: Python statements that add members to `t`.
const HOSTILE: [(&str, &str); 18] = [
    ("add('../outside')", "leads out of the archive"),
    ("add('a/../../outside')", "leads out of the archive"),
    ("add('link', tarfile.SYMTYPE, '/etc'); add('link/passwd')", "is no directory"),
    ("add('link', tarfile.SYMTYPE, '..'); add('link/x/y')", "is no directory"),
    ("add('hard', tarfile.LNKTYPE, '../../etc/passwd')", "leads out of the archive"),
    ("add('hard', tarfile.LNKTYPE, 'missing')", "which is no file of the archive"),
    ("add('d', tarfile.DIRTYPE); add('d')", "would replace a directory"),
    ("add('n' * 256)", "more than 255 bytes"),
    ("add('good'); add('fifo'); t.fileobj.write(b'x' * 1024)", "damaged"),
    ("i = tarfile.TarInfo('big'); i.size = 1 << 40; t.fileobj.write(i.tobuf(tarfile.PAX_FORMAT))", "ends too early"),
    ("add('no change', uid=4294967295)", "its owner is not a number"),
    ("add('no change', gid=4294967295)", "its group is not a number"),
    ("add('late', mtime=99999999999)", "its time is out of range"),
    ("add('early', pax_headers={'mtime': '-99999999999.5'})", "its time is out of range"),
    ("add('read late', pax_headers={'atime': '99999999999'})", "its access time is out of range"),
    ("add('never', pax_headers={'mtime': '12x'})", "its time is not a number"),
    ("add('link', tarfile.SYMTYPE, pax_headers={'linkpath': 'a\\0b'})", "or a zero byte"),
    (
        "i = tarfile.TarInfo('s'); i.pax_headers = {'GNU.sparse.map': '0,9,4,9', 'GNU.sparse.size': '20'}; \
         t.addfile(i)",
        "map of holes",
    ),
];

#[test]
fn hostile_and_damaged_archives_are_refused_and_leave_nothing() {
    let directory = scratch();
    let image = image_in(directory.path(), "image");
    run_in(&image, "echo before > before");
    let list = list_in(&image);
    let import = |script: &str| {
        let python = format!(
            "import io, sys, tarfile\nt = tarfile.open(fileobj=sys.stdout.buffer, mode='w|', format=tarfile.PAX_FORMAT)\n\
             def add(name, kind=tarfile.REGTYPE, link='', **more):\n    i = tarfile.TarInfo(name); i.type = kind; \
             i.linkname = link; [setattr(i, *one) for one in more.items()]; t.addfile(i)\nadd('first')\n{script}\nsys.stdout.flush()"
        );
        let script = written(&directory, &python);
        shell("python3 \"$1\" | \"$directfs\" import \"$2\"", &[&script, &image])
    };
    for (script, part) in HOSTILE {
        let refused = import(script);
        assert_eq!(refused.status.code(), Some(1), "{script}: {}", stdout(&refused));
        let text = stderr(&refused);
        assert!(text.contains(part) && text.contains("nothing was imported"), "{script}: {text}");
        assert_eq!(run_in(&image, "ls -A"), "before\n", "{script}");
    }
    let absolute = import("add('/absolute/file'); t.close()");
    assert!(absolute.status.success(), "{}", stderr(&absolute));
    assert_eq!(run_in(&image, "ls absolute && rm -r absolute first"), "file\n");
    // No archive, compressed ones, conflicts with what is there, and no space.
    let cases = [
        ("head -c 4096 /bin/sh | \"$directfs\" import \"$1\"", "not a tar archive"),
        ("tar -C / -c etc/passwd | gzip | \"$directfs\" import \"$1\"", "gzip -dc"),
        ("true | \"$directfs\" import \"$1\"", "not a tar archive"),
        // What wrote it ended between two files.
        (
            "tar -C / --format=ustar -c etc/hostname etc/passwd | head -c 1024 | \"$directfs\" import \"$1\"",
            "mark of an end",
        ),
        ("tar -C / -c etc/passwd | \"$directfs\" import \"$1\" --to /missing", "No such file"),
        ("tar -C / -c etc/passwd | \"$directfs\" import \"$1\" --to /before", "Not a directory"),
        (
            "cd \"$(mktemp -d)\" && mkdir before && tar -c before | \"$directfs\" import \"$1\"; e=$?; rmdir before; rmdir \"$PWD\"; exit $e",
            "remove it first",
        ),
        (
            "head -c 100M /dev/zero > \"$1.big\"; tar -C \"${1%/*}\" -c image.big | \"$directfs\" import \"$1\"; e=$?; rm \"$1.big\"; exit $e",
            "make a larger image",
        ),
    ];
    for (script, part) in cases {
        let refused = shell(script, &[&image]);
        assert_eq!(refused.status.code(), Some(1), "{script}");
        assert!(stderr(&refused).contains(part), "{script}: {}", stderr(&refused));
    }
    assert_eq!(run_in(&image, "ls -A"), "before\n");
    // Only the directory's times may have changed.
    assert_eq!(list_in(&image), list);
    is_sound(&image);
    let export = directfs(&["export", image.to_str().unwrap(), "/missing"]);
    assert!(stderr(&export).contains("missing"), "{}", stderr(&export));
    let text = directory.path().join("text");
    fs::write(&text, "no image ".repeat(1000)).unwrap();
    for command in ["export", "import"] {
        let refused = directfs(&[command, text.to_str().unwrap()]);
        assert!(stderr(&refused).contains("not a DirectFS image"), "{}", stderr(&refused));
    }
}

#[test]
fn a_failed_or_killed_mkfs_from_a_directory_leaves_no_image_and_no_change() {
    let directory = scratch();
    let (tree, image) = (directory.path().join("tree"), directory.path().join("image"));
    make_tree(&tree);
    let (path, source) = (image.to_str().unwrap(), tree.to_str().unwrap());
    let small = directfs(&["mkfs", path, "--size", "1M", "--from", source]);
    assert_eq!(small.status.code(), Some(1));
    assert!(stderr(&small).contains("make a larger image"), "{}", stderr(&small));
    assert!(!image.exists());
    let missing = directfs(&["mkfs", path, "--size", "16M", "--from", "/no/such/directory"]);
    assert!(stderr(&missing).contains("/no/such/directory") && !image.exists(), "{}", stderr(&missing));
    let file = tree.join("file");
    let file = directfs(&["mkfs", path, "--size", "16M", "--from", file.to_str().unwrap()]);
    assert!(stderr(&file).contains("Not a directory") && !image.exists(), "{}", stderr(&file));

    let names = || fs::read_dir(directory.path()).unwrap().count();
    for nth in 1.. {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["mkfs", path, "--size", "16M", "--sparse", "--from", source]);
        if !killed_at(command.stdout(Stdio::null()), nth) {
            break;
        }
        // Whole, or not there; and no other file beside it.
        if image.exists() {
            is_sound(&image);
            assert_eq!(list_in(&image), list_of(&tree));
            fs::remove_file(&image).unwrap();
        }
        assert_eq!(names(), 1);
    }
    // An image in use, and one that is there without --force, stay as they are.
    let kept = fs::read(&image).unwrap();
    let refused = directfs(&["mkfs", path, "--size", "16M", "--from", source]);
    assert!(stderr(&refused).contains("--force"), "{}", stderr(&refused));
    let script =
        format!("\"$directfs\" run --image \"$1\" -- \"$directfs\" mkfs \"$1\" --force --size 16M --from {source}");
    let refused = shell(&script, &[&image]);
    assert!(!refused.status.success() && stderr(&refused).contains("in use"), "{}", stderr(&refused));
    assert_eq!(list_in(&image), list_of(&tree));
    assert_eq!(kept.len(), fs::read(&image).unwrap().len());
}

#[test]
fn a_snapshot_of_an_image_in_use_is_exported_and_mounted_for_reading_as_it_is() {
    let directory = scratch();
    let image = image_in(directory.path(), "image");
    let snapshot = directory.path().join("snapshot");
    let script = r#"
        mkfifo "$3/ready" "$3/go"
        "$directfs" run --image "$1" -- sh -c 'echo a >"$DIRECTFS_MOUNT/f"; echo >"$1/ready"; read x <"$1/go"' sh "$3" &
        read x <"$3/ready"; "$directfs" snapshot "$1" "$2"; echo >"$3/go"; wait $!"#;
    done(script, &[&image, &snapshot, directory.path()]);
    let before = fs::read(&snapshot).unwrap();
    for _ in 0..2 {
        assert_eq!(done(r#""$directfs" export "$1" | tar -xOf - ./f"#, &[&snapshot]), "a\n");
    }
    if support::can_mount("a snapshot on a mount that only reads") {
        let script = r#"mkdir "$2"; "$directfs" mount -o ro "$1" "$2" && cat "$2/f" && "$directfs" umount "$2""#;
        assert_eq!(done(script, &[&snapshot, &directory.path().join("mount")]), "a\n");
    }
    assert!(fs::read(&snapshot).unwrap() == before, "reading changes no byte");
    done(r#""$directfs" resize "$1" 80M"#, &[&image]);
    assert_eq!(done(r#""$directfs" export "$1" | tar -xOf - ./f"#, &[&image]), "a\n");
}

#[test]
fn an_archive_that_names_a_file_twice_gives_the_later_file_or_one_more_name() {
    let directory = scratch();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "old").unwrap();
    fs::hard_link(tree.join("file"), tree.join("name")).unwrap();
    // GNU tar writes a link of the file to itself for each further time.
    let archive = directory.path().join("archive");
    done("cd \"$1\" && tar -cf \"$2\" file file name ./file . && echo -n later > file", &[&tree, &archive]);
    let image = image_in(directory.path(), "image");
    let import = "\"$directfs\" import \"$2\" < \"$1\"";
    done(import, &[&archive, &image]);
    let list = "ls; stat -c '%h' file; cat file name";
    assert_eq!(run_in(&image, list), "file\nname\n2\noldold");
    // Again into the image that has it, and with a newer file at the end.
    done(import, &[&archive, &image]);
    assert_eq!(run_in(&image, list), "file\nname\n2\noldold");
    done("cd \"$1\" && rm name && tar -rf \"$2\" file", &[&tree, &archive]);
    done(import, &[&archive, &image]);
    assert_eq!(run_in(&image, list), "file\nname\n1\nlaterold");
    is_sound(&image);
}

/// Neither recursion nor a walk from the top for each directory bounds the depth.
#[test]
fn a_tree_of_4500_levels_goes_out_and_in_and_its_half_leaves_nothing() {
    let directory = scratch();
    let archive = directory.path().join("archive");
    let script = "import sys, tarfile\nt = tarfile.open(sys.argv[1], 'w', format=tarfile.PAX_FORMAT)\n\
                  for level in range(1, 4501):\n    i = tarfile.TarInfo('d/' * level)\n    \
                  i.type, i.mode, i.mtime = tarfile.DIRTYPE, 0o750, level\n    t.addfile(i)\nt.close()";
    done("python3 \"$1\" \"$2\"", &[&written(&directory, script), &archive]);
    let (image, other) = (image_in(directory.path(), "image"), image_in(directory.path(), "other"));
    let cut = shell("head -c -20M \"$1\" | \"$directfs\" import \"$2\"", &[&archive, &image]);
    assert!(stderr(&cut).contains("ends too early"), "{}", stderr(&cut));
    assert_eq!(run_in(&image, "ls -A"), "", "nothing was imported");
    // Twice: the second time all directories exist.
    for _ in 0..2 {
        done("\"$directfs\" import \"$2\" <\"$1\"", &[&archive, &image]);
    }
    is_sound(&image);
    done("\"$directfs\" export \"$1\" | \"$directfs\" import \"$2\"", &[&image, &other]);
    let exported = "\"$directfs\" export \"$1\" | cksum";
    assert_eq!(done(exported, &[&image]), done(exported, &[&other]));
    let last = "\"$directfs\" export \"$1\" | tar -t | tail -n 1 | tr -d './\n' | wc -c";
    assert_eq!(done(last, &[&other]).trim(), "4500");
}

#[test]
fn links_pipes_and_devices_keep_their_attributes_and_the_top_directory_its_time() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("\n*** SKIPPED: attributes of links: only root may set them ***\n");
        return;
    }
    let directory = scratch();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    symlink("nowhere", tree.join("link")).unwrap();
    done("mkfifo \"$1/pipe\" && touch -d '2001-02-03 UTC' \"$1\"", &[&tree]);
    for name in ["link", "pipe", "."] {
        if let Err(errno) = rustix::fs::lsetxattr(tree.join(name), "trusted.of", name.as_bytes(), XattrFlags::empty()) {
            eprintln!("\n*** SKIPPED: attributes of links: the scratch file system has none: {errno} ***\n");
            return;
        }
    }
    let [made, second, third] = ["made", "second", "third"].map(|name| directory.path().join(name));
    let made_from = ["mkfs", made.to_str().unwrap(), "--size", "16M", "--sparse", "--from", tree.to_str().unwrap()];
    let output = directfs(&made_from);
    assert!(output.status.success(), "{}", stderr(&output));
    image_in(directory.path(), "second");
    done("\"$directfs\" export \"$1\" | \"$directfs\" import \"$2\"", &[&made, &second]);
    image_in(directory.path(), "third");
    done("tar -C \"$1\" --xattrs --xattrs-include='*' -c . | \"$directfs\" import \"$2\"", &[&tree, &third]);
    let script = "python3 -c 'import os\nfor n in (\"link\", \"pipe\", \".\"): \
        print(os.getxattr(n, \"trusted.of\", follow_symlinks=False))'; stat -c '%Y %A' . link";
    for image in [&made, &second, &third] {
        let expected = "b'link'\nb'pipe'\nb'.'\n981158400 drwxr-xr-x\n";
        let found = run_in(image, script);
        assert!(found.starts_with(expected) && found.ends_with("lrwxrwxrwx\n"), "{}: {found}", image.display());
        is_sound(image);
    }
}

#[test]
fn a_link_is_open_to_all_whatever_its_archive_says() {
    let directory = scratch();
    let script = written(
        &directory,
        "import sys, tarfile\nt = tarfile.open(fileobj=sys.stdout.buffer, mode='w|')\n\
         i = tarfile.TarInfo('link'); i.type = tarfile.SYMTYPE; i.linkname = 'x'; i.mode = 0o600; t.addfile(i); t.close()",
    );
    let image = image_in(directory.path(), "image");
    done("python3 \"$1\" | \"$directfs\" import \"$2\"", &[&script, &image]);
    assert_eq!(run_in(&image, "stat -c %A link"), "lrwxrwxrwx\n");
}

#[test]
fn an_interrupted_or_killed_import_leaves_the_image_as_it_was() {
    let directory = scratch();
    let (tree, image) = (directory.path().join("tree"), image_in(directory.path(), "image"));
    make_tree(&tree);
    run_in(&image, "echo before > before");
    let archive = directory.path().join("archive");
    done("tar -C \"$1\" -cf \"$2\" .", &[&tree, &archive]);
    let bytes = fs::read(&archive).unwrap();
    let start = |input: &[u8]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.arg("import").arg(&image).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(input).unwrap();
        child
    };
    // It has read all of this, and waits for more.
    let child = start(&bytes[..200 * 1024]);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut child = child;
    let held = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(held);
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stderr(&output).contains("nothing was imported"), "{}", stderr(&output));
    assert_eq!(run_in(&image, "ls -A"), "before\n");
    is_sound(&image);

    let mut child = start(&bytes[..200 * 1024]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(run_in(&image, "ls -A"), "before\n", "the next use finds what the import was building");
    is_sound(&image);

    // One that is under way is left alone by another, and one that is killed meanwhile is not.
    let mut slow = start(&bytes[..200 * 1024]);
    let mut killed = start(&bytes[..200 * 1024]);
    killed.kill().unwrap();
    killed.wait().unwrap();
    done("\"$directfs\" import \"$1\" < \"$2\"", &[&image, &archive]);
    assert_eq!(run_in(&image, "ls -A -d .d* | wc -l; cat file"), "1\ncontent\n");
    slow.stdin.take().unwrap().write_all(&bytes[200 * 1024..]).unwrap();
    let output = slow.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(run_in(&image, "ls -A -d .d* 2> /dev/null; cat file"), "content\n", "all leftovers are gone");
    is_sound(&image);
}

#[test]
fn an_export_shows_files_bytes_rate_and_the_time_that_is_left() {
    let directory = scratch();
    let image = image_in(directory.path(), "image");
    // A second name and a hole have no bytes of their own.
    run_in(&image, "head -c 8388608 /dev/zero | tr '\\0' x >file; ln file second; truncate -s 1G hole");
    let pipe = directory.path().join("pipe");
    done("mkfifo \"$1\"", &[&pipe]);
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$directfs\" export \"$1\" >\"$2\"", "sh"]).args([&image, &pipe]);
    let mut terminal = Terminal::start(command.env("directfs", env!("CARGO_BIN_EXE_directfs")), 100, 10);
    let mut archive = File::open(&pipe).unwrap();
    // It goes on when the pipe is read.
    archive.read_exact(&mut vec![0; 4 << 20]).unwrap();
    terminal.wait_for("how far it is", |terminal| {
        let shown = terminal.lines().join("\n");
        ["files, ", " MiB of 8 MiB, ", "/s, ", " left"].iter().all(|part| shown.contains(part))
    });
    std::io::copy(&mut archive, &mut std::io::sink()).unwrap();
    assert!(terminal.end().success(), "{:?}", terminal.lines());
}
