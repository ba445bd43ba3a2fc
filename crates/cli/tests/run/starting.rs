//! The start of a program: it shares patched code with others, and attaches only if it needs to.

use crate::kit::{compile, compiled};
use crate::support::{directfs, image_in, say_hidden, scratch, stderr, stdout};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cache of this test alone, which every user can search. It is on a disk, as the cache of most
/// users is: a kernel may choose other addresses for files there than for those in memory.
struct Cache(tempfile::TempDir);

impl Cache {
    fn new() -> Cache {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Cache(directory)
    }

    /// The mappings of the second of two programs in one run that load the same libraries.
    fn maps_of_second_program(&self) -> String {
        let script = "cat /proc/self/maps >/dev/null; cat /proc/self/maps";
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["run", "--", "sh", "-c", script]).env("XDG_CACHE_HOME", self.0.path());
        let output = command.output().unwrap();
        assert_eq!(stderr(&output), "");
        stdout(&output)
    }

    /// The files with shared code.
    fn files(&self) -> Vec<PathBuf> {
        let entries = |place: &Path| fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
        let directories = entries(&self.0.path().join("directfs")).filter(|path| path.is_dir());
        directories.flat_map(|directory| entries(&directory).collect::<Vec<_>>()).collect()
    }
}

/// Whether code of a process comes from a shared file.
fn shares(maps: &str) -> bool {
    maps.lines().any(|line| line.contains(" r-xp ") && line.contains("/directfs/text-"))
}

#[test]
fn programs_with_the_same_libraries_share_patched_code() {
    let cache = Cache::new();
    let maps = cache.maps_of_second_program();
    assert!(shares(&maps), "{maps}");
    for file in cache.files() {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644, "{}", file.display());
    }
}

/// Each is replaced by the first program that finds it so.
#[test]
fn shared_code_that_others_can_write_or_that_is_incomplete_is_replaced() {
    let cache = Cache::new();
    cache.maps_of_second_program();
    type Spoil = fn(&Path);
    let spoil: [(&str, Spoil); 3] = [
        ("writable", |file| fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap()),
        ("cut", |file| fs::File::options().write(true).open(file).unwrap().set_len(100_000).unwrap()),
        ("empty", |file| fs::write(file, "").unwrap()),
    ];
    for (how, spoil) in spoil {
        let files = cache.files();
        assert!(!files.is_empty());
        files.iter().for_each(|file| spoil(file));
        let maps = cache.maps_of_second_program();
        assert!(shares(&maps), "{how}: {maps}");
        for file in cache.files() {
            let metadata = fs::metadata(&file).unwrap();
            assert!(metadata.permissions().mode() & 0o777 == 0o644 && metadata.len() > 100_000, "{how}");
        }
    }
}

/// The kernel places a large library at random, so no other start has the distances of one start.
#[test]
fn programs_with_a_large_library_write_no_shared_code_at_each_start() {
    const STARTS: usize = 6;
    let (cache, directory) = (Cache::new(), scratch());
    let built = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (library, program) = (built.path().join("liblarge.so"), built.path().join("program"));
    let [path, own_path] = ["-L", "-Wl,-rpath,"].map(|option| format!("{option}{}", built.path().display()));
    if !compile("large_library", &library, &["-DLIBRARY", "-shared", "-fPIC"])
        || !compile("large_library", &program, &[&path, &own_path, "-llarge"])
    {
        return;
    }
    let log = directory.path().join("log");
    let script = format!(
        "text=$({}); for start in $(seq {STARTS}); do {} || exit; stat -c %y \"$text\" >> {}; done",
        say_hidden("DIRECTFS_TEXT"),
        program.display(),
        log.display()
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.args(["run", "--", "sh", "-c", &script]).env("XDG_CACHE_HOME", cache.0.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    // Where the kernel does not choose at random, the first start writes a file for all. By chance
    // two starts can have the same distances.
    let log = fs::read_to_string(log).unwrap();
    let mut changes: Vec<&str> = log.lines().collect();
    assert_eq!(changes.len(), STARTS);
    changes.dedup();
    assert!(changes.len() <= 2, "{log}");
}

/// A limit on the size of files would end the program that writes such a file.
#[test]
fn programs_start_under_a_limit_on_the_size_of_files() {
    let cache = Cache::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    let text = say_hidden("DIRECTFS_TEXT");
    // Nor may the one that looks for system calls in a large program, or in libraries.
    let script = format!(
        r#"text=$({text}); rm "$text"/* "${{text%/*}}/answers.calls"; ulimit -f 0; bash -c : && ls / >/dev/null && cat /proc/self/maps"#
    );
    command.args(["run", "--", "sh", "-c", &script]).env("XDG_CACHE_HOME", cache.0.path());
    let output = command.output().unwrap();
    assert!(output.status.success() && stdout(&output).contains("libc"), "{}", stderr(&output));
}

#[test]
fn a_program_maps_the_image_once_it_has_something_of_it() {
    let directory = scratch();
    let image = image_in(directory.path());
    let run = |script: &str| {
        let script = format!("file=/mnt/directfs/file; : >$file; {script}");
        let output = directfs(&["run", "--image", image.to_str().unwrap(), "--", "sh", "-c", &script]);
        assert_eq!(stderr(&output), "");
        stdout(&output).lines().any(|line| line.ends_with(image.to_str().unwrap()))
    };
    assert!(!run("cat /proc/self/maps"), "nothing");
    assert!(run("cat $file /proc/self/maps"), "a path");
    assert!(run("cat /proc/self/maps <$file"), "a descriptor");
    // To look by itself, it would use a path that may concern its directory. So the shell looks.
    let asleep = "sleep 1000 & until grep -q 'sleep) S' /proc/$!/stat; do :; done; cat /proc/$!/maps; kill $!";
    assert!(!run(&format!("cd /mnt/directfs; {asleep}")), "the working directory alone");
    assert!(run(&format!("{{ {asleep}; }} 3<$file")), "a descriptor that is not used");
    assert!(run("cd /mnt/directfs && cat file /proc/self/maps"), "a relative path");
    assert!(run("cd /mnt/directfs && cat /proc/self/cwd/file /proc/self/maps"), "a link to the working directory");
    assert!(run("cp /bin/cat $file; chmod +x $file; exec $file /proc/self/maps"), "the program itself");
}

#[test]
fn a_signal_handler_after_vfork_acts_for_the_parent() {
    let directory = scratch();
    let Some(program) = compiled("vfork_signals", directory.path()) else { return };
    let output = directfs(&["run", "--", program.to_str().unwrap(), "/mnt/directfs/file"]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("200\n", ""));
}

#[test]
fn a_child_in_its_parents_memory_takes_the_numbers_of_hidden_descriptors() {
    let directory = scratch();
    let Some(program) = compiled("hidden_numbers", directory.path()) else { return };
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let images = [image_in(directory.path()), image_in(disk.path())];
    // The library has its descriptors above the limit, or, if that cannot be raised, within it.
    for limits in ["ulimit -Sn 256", "ulimit -n 256", "ulimit -Sn 1500", "ulimit -n 1500", "ulimit -n 4500"] {
        let script = format!(
            "mkdir -p hidden && cd hidden && for how in close keep nested; do {} $how $(ulimit -n); done",
            program.display()
        );
        let limited = |command: &[&str]| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("{limits} && exec \"$@\""), "sh"]).args(command);
            shell.current_dir(directory.path()).output().unwrap()
        };
        let expected = limited(&["sh", "-c", &script]);
        assert!(stdout(&expected).contains("nested: parent: data 1, 0 more open"), "{expected:?}");
        for image in &images {
            let image = image.to_str().unwrap();
            let binary = env!("CARGO_BIN_EXE_directfs");
            let run = limited(&[binary, "run", "--image", image, "-C", "/mnt/directfs", "--", "sh", "-c", &script]);
            assert_eq!((stdout(&run), stderr(&run).as_str()), (stdout(&expected), ""), "{image}, {limits}");
            assert!(directfs(&["fsck", "-n", image]).status.success());
        }
    }
}

#[test]
fn a_core_dump_holds_the_program_and_not_the_image() {
    // The program itself looks at what a dump of it would hold of large mappings.
    let script = r#"cd /mnt/directfs; : >file
        awk '/^[0-9a-f]+-[0-9a-f]+ /{ name = $0 }
             /^Size:/{ kib = $2 }
             /^VmFlags:/{ if (kib > 32768) { seen++; if (!/ dd/) print name } }
             END { print (seen >= 2 ? "image and region are mapped" : "they are not mapped") }' /proc/self/smaps file"#;
    let output = directfs(&["run", "--size", "1G", "--", "sh", "-c", script]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("image and region are mapped\n", ""));
}

/// A program that ends without having attached leaves its slot to others.
#[test]
fn the_slots_of_programs_that_never_attached_are_reclaimed() {
    // As many as there are slots.
    let script = "i=0; while [ $i -lt 4200 ]; do /bin/true || exit 1; i=$((i+1)); done; echo done";
    let output = directfs(&["run", "--", "sh", "-c", script]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("done\n", ""));
}

/// `mkdir -p` makes what is missing from the top: the first directories are the machine's.
#[test]
fn a_mount_directory_below_missing_ones_leaves_none_of_them_behind() {
    let directory = scratch();
    let image = image_in(directory.path());
    let at = directory.path().join("none/deep/er");
    let script = r#"mkdir -p "$0/p/q" && cd "$0" && cd .. && test -d "$OLDPWD" && ls -d "$0/p/q""#;
    let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
    let output = directfs(&["run", "--image", image, "--at", at, "--", "sh", "-c", script, at]);
    assert_eq!(stdout(&output), format!("{at}/p/q\n"), "{}", stderr(&output));
    assert!(!directory.path().join("none").exists());
}
