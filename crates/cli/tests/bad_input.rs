//! Bad input: each case gives a message with cause and remedy, and a nonzero exit code, and writes
//! nothing.

mod support;

use image::{Image, OpenImage};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use support::{directfs, image_in, scratch, stderr};

/// Offsets of superblock fields (docs/format.md).
const VERSION: usize = 88;
const FEATURES_RO_COMPAT: usize = 104;
const FEATURES_INCOMPAT: usize = 112;
const DESCRIPTION: std::ops::Range<usize> = 8..200;
const CHECKSUM: usize = 200;

/// A defective image, and the expected message.
struct Case {
    name: &'static str,
    spoil: fn(&mut Vec<u8>),
    cause: &'static str,
    remedy: &'static str,
}

fn seal(image: &mut [u8]) {
    let checksum = pmem::crc32c(0, &image[DESCRIPTION]) as u64;
    image[CHECKSUM..CHECKSUM + 8].copy_from_slice(&checksum.to_le_bytes());
}

const CASES: &[Case] = &[
    Case {
        name: "empty",
        spoil: |image| image.clear(),
        cause: "not a DirectFS image: it has only 0 bytes",
        remedy: "directfs mkfs",
    },
    Case {
        name: "a short text",
        spoil: |image| image.truncate(1221),
        cause: "not a DirectFS image: it has only 1,221 bytes",
        remedy: "directfs mkfs",
    },
    Case { name: "too short", spoil: |image| image.truncate(8192), cause: "", remedy: "" },
    Case {
        name: "not an image",
        spoil: |image| image[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0"),
        cause: "not a DirectFS image",
        remedy: "directfs mkfs",
    },
    Case { name: "zeros", spoil: |image| image.fill(0), cause: "not a DirectFS image", remedy: "directfs mkfs" },
    Case {
        name: "another version",
        spoil: |image| image[VERSION] = 99,
        cause: "format version 99",
        remedy: "use a program of that version",
    },
    Case {
        name: "an unknown feature",
        spoil: |image| {
            image[FEATURES_INCOMPAT + 1] = 0x80;
            seal(image);
        },
        cause: "incompat 0x8000",
        remedy: "newer program",
    },
    Case {
        name: "torn superblock",
        spoil: |image| image[40] ^= 1,
        cause: "superblock is damaged",
        remedy: "copy in the last block is intact",
    },
    Case {
        name: "torn superblock and copy",
        spoil: |image| {
            let copy = image.len() - 4096;
            image[40] ^= 1;
            image[copy + 40] ^= 1;
        },
        cause: "superblock is damaged",
        remedy: "backup",
    },
    Case {
        name: "truncated",
        spoil: |image| image.truncate(image.len() / 2),
        cause: "truncated",
        remedy: "restore it from a backup",
    },
    Case {
        name: "areas that do not fit",
        spoil: |image| {
            image[136] ^= 1;
            seal(image);
        },
        cause: "areas that do not fit",
        remedy: "backup",
    },
];

fn assert_refused(case: &str, arguments: &[&str], image: &Path, cause: &str, remedy: &str) {
    let before = fs::read(image).unwrap();
    let times = fs::metadata(image).map(|metadata| (metadata.mtime(), metadata.mtime_nsec())).unwrap();
    let output = directfs(arguments);
    let said = stderr(&output);
    assert!(!output.status.success(), "{case}: {arguments:?} succeeded");
    assert!(said.contains(cause) && said.contains(remedy), "{case}: {arguments:?} says {said:?}");
    assert!(!said.contains("panicked"), "{case}: {said}");
    assert!(fs::read(image).unwrap() == before, "{case}: {arguments:?} changed the file");
    assert_eq!(
        fs::metadata(image).map(|metadata| (metadata.mtime(), metadata.mtime_nsec())).unwrap(),
        times,
        "{case}: written"
    );
}

/// Spells a name of an image differently, below seals that verify. Both spellings have one length.
fn respell(image: &Path, from: &str, to: &[u8]) {
    use engine::format::{DENTRY_HEADER_BYTES, DentryFacts, FileKind};
    const NAME: usize = DENTRY_HEADER_BYTES as usize;
    let mut bytes = fs::read(image).unwrap();
    let mut found = 0;
    for at in (0..bytes.len() - 4096).step_by(64) {
        let word = |index: usize| u64::from_le_bytes(bytes[at + index * 8..][..8].try_into().unwrap());
        let (seal, name) = (word(1), at + NAME..at + NAME + from.len());
        let Some(kind) = FileKind::from_bits((seal >> 8) as u32 & 0xff) else { continue };
        let facts = DentryFacts {
            inode: word(2) & ((1 << 40) - 1),
            generation: (word(2) >> 40) as u32,
            parent: word(3),
            cookie: word(4),
            kind,
            name_length: from.len() as u8,
            reuse_generation: (seal >> 24) as u8,
        };
        if bytes[name.clone()] == *from.as_bytes() && seal == facts.seal(from.as_bytes()) {
            bytes[name].copy_from_slice(to);
            bytes[at + 8..at + 16].copy_from_slice(&facts.seal(to).to_le_bytes());
            found += 1;
        }
    }
    assert_eq!(found, 1, "{from}");
    fs::write(image, bytes).unwrap();
}

/// What a shell script prints in an image, and whether it succeeds.
fn script_in(image: &Path, script: &str) -> (bool, String) {
    let output = directfs(&["run", "--image", image.to_str().unwrap(), "--", "sh", "-c", script]);
    (output.status.success(), support::stdout(&output) + &stderr(&output))
}

#[test]
fn a_name_that_is_a_path_reaches_no_program() {
    let directory = scratch();
    let home = directory.path().join("home");
    let outside = format!("../../../../../../../..{}", home.join("profile").display());
    let spellings: [&[u8]; 6] = [outside.as_bytes(), b"../profile", b"/ab", b"..", b".", b"a\0b"];
    for spelling in spellings {
        let shown = spelling.escape_ascii();
        fs::create_dir_all(home.join("destination")).unwrap();
        fs::write(home.join("profile"), "precious").unwrap();
        let image = image_in(directory.path());
        let name = "Q".repeat(spelling.len());
        let (made, said) = script_in(&image, &format!("cd $DIRECTFS_MOUNT && mkdir d && echo evil > d/{name}"));
        assert!(made, "{said}");
        respell(&image, &name, spelling);

        let copy = format!("cp -r $DIRECTFS_MOUNT/d {}/destination", home.display());
        for script in ["ls -a $DIRECTFS_MOUNT/d", &copy, "rm -rf $DIRECTFS_MOUNT/d", "cat $DIRECTFS_MOUNT/d/other"] {
            let (done, said) = script_in(&image, script);
            assert!(!done && said.contains("Structure needs cleaning"), "{shown}: {script}: {said}");
        }
        let export = directfs(&["export", image.to_str().unwrap()]);
        assert!(stderr(&export).contains("Structure needs cleaning"), "{shown}: {}", stderr(&export));
        assert!(!export.stdout.windows(4).any(|bytes| bytes == b"evil"), "{shown}: it is exported");
        if support::can_mount("a name that is a path, on a mount") {
            let point = directory.path().join("mount");
            fs::create_dir_all(&point).unwrap();
            support::mount(&image, &point, "ro");
            let listed = fs::read_dir(point.join("d")).and_then(|names| names.collect::<Result<Vec<_>, _>>());
            let failed = listed.map_err(|error| error.raw_os_error());
            support::unmount(&point);
            assert_eq!(failed.map(|names| names.len()), Err(Some(libc::EUCLEAN)), "{shown}: on a mount");
        }
        assert_eq!(fs::read_to_string(home.join("profile")).unwrap(), "precious", "{shown}");
        assert_eq!(fs::read_dir(&home).unwrap().count(), 2, "{shown}: something came beside the target");

        let found = directfs(&["fsck", "-n", image.to_str().unwrap()]);
        assert!(support::stdout(&found).contains("name-invalid"), "{shown}: {}", support::stdout(&found));
        let repaired = directfs(&["fsck", "-y", image.to_str().unwrap()]);
        assert_eq!(repaired.status.code(), Some(1), "{shown}: {}", support::stdout(&repaired));
        assert_eq!(
            script_in(&image, "find $DIRECTFS_MOUNT/d -type f -exec cat {} +"),
            (true, "evil\n".to_owned()),
            "{shown}"
        );
        fs::remove_file(&image).unwrap();
        fs::remove_dir_all(&home).unwrap();
    }
}

#[test]
fn what_is_no_usable_image_is_refused_by_every_command() {
    let directory = scratch();
    let whole = fs::read(image_in(directory.path())).unwrap();
    let mount_point = directory.path().join("mount");
    fs::create_dir(&mount_point).unwrap();
    for case in CASES {
        let path = directory.path().join("spoilt");
        let mut bytes = whole.clone();
        (case.spoil)(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        let (image, point) = (path.to_str().unwrap(), mount_point.to_str().unwrap());
        for arguments in [&["info", image][..], &["mount", image, point], &["run", "--image", image, "--", "true"]] {
            assert_refused(case.name, arguments, &path, case.cause, case.remedy);
        }
        // fsck reports it in its findings, on standard output.
        assert_refused(case.name, &["fsck", "-n", image], &path, "", "");
        // dump shows damaged images, too, but must not write.
        directfs(&["dump", image, "/"]);
        let _ = directfs(&["dump", image, "superblock"]);
        assert!(fs::read(&path).unwrap() == bytes, "{}: dump changed the file", case.name);
    }
}

#[test]
fn what_only_writers_must_know_still_lets_one_look() {
    let directory = scratch();
    let image = image_in(directory.path());
    let mut bytes = fs::read(&image).unwrap();
    bytes[FEATURES_RO_COMPAT] = 4;
    seal(&mut bytes);
    fs::write(&image, &bytes).unwrap();
    let image_text = image.to_str().unwrap();
    assert!(directfs(&["info", image_text]).status.success());
    assert_refused(
        "ro-compat",
        &["run", "--image", image_text, "--", "true"],
        &image,
        "ro-compat 0x4",
        "newer program",
    );
}

#[test]
fn an_image_in_use_is_left_alone() {
    let directory = scratch();
    let path = image_in(directory.path());
    let _used = Image::open(&path, &OpenImage { exclusive: true, ..OpenImage::default() }).unwrap();
    let image = path.to_str().unwrap();
    let own = format!("process {}", std::process::id());
    for (arguments, remedy) in [
        (&["fsck", "-n", image][..], "unmount"),
        (&["mkfs", image, "--size", "16M", "--force"], &own),
        (&["mount", image, directory.path().to_str().unwrap()], "end them first"),
    ] {
        assert_refused("in use", arguments, &path, "in use", remedy);
    }
    // info is allowed, and lists the users.
    let info = directfs(&["info", image]);
    assert!(info.status.success(), "{}", stderr(&info));
    assert!(support::stdout(&info).contains(&std::process::id().to_string()), "{}", support::stdout(&info));
}

#[test]
fn nothing_is_overwritten_unasked() {
    let directory = scratch();
    let image = image_in(directory.path());
    assert_refused(
        "an image",
        &["mkfs", image.to_str().unwrap(), "--size", "16M"],
        &image,
        "a DirectFS image already",
        "--force",
    );
    let file = directory.path().join("letter");
    fs::write(&file, "dear").unwrap();
    assert_refused("a file", &["mkfs", file.to_str().unwrap(), "--size", "16M"], &file, "4 bytes already", "--force");
}

#[test]
fn what_mkfs_cannot_make_is_explained_and_leaves_nothing() {
    let directory = scratch();
    let path = directory.path().join("new");
    let image = path.to_str().unwrap();
    let long = "x".repeat(65);
    for (arguments, cause, remedy) in [
        (&["--size", "64T"][..], "are free", "free space"),
        (&["--size", "999T"], "999 TiB and ", "free space"),
        (&["--size", "4K"], "4 KiB is too small: the minimum is 1 MiB", "larger"),
        (&["--size", "0"], "0 B is too small", "larger"),
        (&[], "needs a size", "--size 4G"),
        (&["--size", "16M", "--label", &long], "65 bytes", "shorter"),
        (&["--size", "16M", "--inodes", "1000000000"], "do not fit", "fewer"),
        (&["--size", "many"], "is not a unit of size", "4G"),
    ] {
        let output = directfs(&[&["mkfs", image], arguments].concat());
        let said = stderr(&output);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(said.contains(cause) && said.contains(remedy), "{arguments:?} says {said:?}");
        assert!(!path.exists(), "{arguments:?} left a file");
    }
    let output = directfs(&["mkfs", directory.path().to_str().unwrap(), "--size", "16M"]);
    assert!(!output.status.success() && stderr(&output).contains("directory"), "{}", stderr(&output));
}

#[test]
fn a_full_image_is_reported() {
    let directory = scratch();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("large"), vec![7; 32 << 20]).unwrap();
    let image = image_in(directory.path());
    let output = support::copy_into(image.to_str().unwrap(), &tree);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("No space left on device"), "{}", stderr(&output));
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}", support::stdout(&check));
}

#[test]
fn an_image_without_free_inodes_is_reported() {
    let directory = scratch();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    (0..600).for_each(|index| fs::write(tree.join(format!("file{index}")), "").unwrap());
    let path = directory.path().join("few");
    let image = path.to_str().unwrap();
    assert!(directfs(&["mkfs", image, "--size", "16M", "--inodes", "256"]).status.success());
    let output = support::copy_into(image, &tree);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("No space left on device"), "{}", stderr(&output));
}

#[test]
fn paths_that_lead_nowhere_are_explained() {
    for (arguments, cause) in [
        (&["info", "/nowhere/image"][..], "does not exist"),
        (&["mount", "/nowhere/image", "/mnt"], "cannot find the image"),
        (&["umount", "/usr"], "nothing is mounted"),
        (&["fsck", "-n", "/nowhere/image"], "does not exist"),
        (&["dump", "/nowhere/image", "/"], "does not exist"),
        (&["demo", "/nowhere"], "cannot find"),
        (&["demo", "/etc/passwd"], "not a directory"),
        (&["demo", "/etc", "--scratch", "/nowhere"], "--scratch"),
        (&["demo", "/etc", "--scratch", "/proc"], "--scratch"),
        (&["demo", "--through", "mount"], "unexpected argument"),
        (&["bench", "/nowhere"], "cannot read"),
        (&["info", "/usr"], "a directory"),
    ] {
        let output = directfs(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(stderr(&output).contains(cause), "{arguments:?} says {}", stderr(&output));
    }
}

#[test]
fn a_command_with_a_mistake_is_not_taken_for_an_image() {
    for (arguments, meant) in
        [(&["moutn", "a.img"][..], "mount"), (&["snapshto", "a.img", "b.img"], "snapshot"), (&["infoo", "x"], "info")]
    {
        let output = directfs(arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(said.contains("unrecognized subcommand") && said.contains(meant), "{arguments:?} says {said}");
    }
}

#[test]
fn options_without_effect_are_refused() {
    let directory = scratch();
    let image = image_in(directory.path());
    let image = image.to_str().unwrap();
    for (arguments, cause) in [
        (&["tune", image][..], "<--label <LABEL>|--uuid <UUID>|--reserved <SIZE|PERCENT>>"),
        (&["mount", image, "/mnt", "--memory", "1"], "at least 1M"),
        (&["mount", image, "/mnt", "-o", "memory=1"], "at least 1M"),
        (&["run", "--image", image, "--memory", "1", "--", "true"], "at least 1M"),
    ] {
        let output = directfs(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(stderr(&output).contains(cause), "{arguments:?} says {}", stderr(&output));
    }
}

#[test]
fn a_file_system_that_holds_no_such_file_is_named_as_the_limit() {
    // ext4 has files of 16 TiB at most; other file systems hold more.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = image_in(directory.path());
    let output = directfs(&["resize", image.to_str().unwrap(), "999T"]);
    let said = stderr(&output);
    assert!(!output.status.success() && !said.contains("ulimit"), "{said}");
}

#[test]
fn a_low_limit_on_open_files_is_named_by_every_command() {
    let directory = scratch();
    let image = image_in(directory.path());
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let archive = directory.path().join("tree.tar");
    fs::write(&archive, [0; 1024]).unwrap();
    let mut refused = 0;
    for command in [
        "info $0",
        "fsck -n $0",
        "stats $0",
        "export $0",
        "snapshot $0 $0.$limit",
        "import $0",
        "run --image $0 -- true",
        "mkfs $0.new --size 8M --from $1 --force",
    ] {
        // From a limit with which nothing works to one with which all does.
        for limit in (4..=40).step_by(2) {
            let script = format!("limit={limit}; ulimit -n $limit; exec $2 {command}");
            let mut shell = Command::new("sh");
            shell.args(["-c", &script]).args([&image, &tree]).arg(env!("CARGO_BIN_EXE_directfs"));
            let output = shell.stdin(fs::File::open(&archive).unwrap()).output().unwrap();
            let said = stderr(&output);
            assert!(output.status.success() || said.contains("ulimit -n"), "{limit}: {command}: {said}");
            assert!(!said.contains("permission"), "{limit}: {command}: {said}");
            refused += i32::from(!output.status.success());
        }
    }
    assert!(refused > 8, "{refused}");
}

#[test]
fn names_and_paths_that_are_too_long_are_refused() {
    let directory = scratch();
    let image = image_in(directory.path());
    let before = fs::read(&image).unwrap();
    for path in ["x".repeat(256), "d/".repeat(3000)] {
        let output = directfs(&["dump", image.to_str().unwrap(), &path]);
        assert!(!output.status.success(), "{}", path.len());
    }
    assert!(fs::read(&image).unwrap() == before);
}
