//! The location of the preload library: only root can change what a run of root loads.

use crate::support::{say_hidden, scratch, stderr, stdout};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const NOBODY: u32 = 65534;

/// A scratch directory that every user can search, with a home of another user in it.
fn other_home() -> Option<(tempfile::TempDir, PathBuf)> {
    if rustix::process::geteuid().as_raw() != 0 {
        eprintln!("\n*** SKIPPED: only root can be given the home of another user ***\n");
        return None;
    }
    let directory = scratch();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let home = directory.path().join("home");
    for place in [home.clone(), home.join(".cache")] {
        fs::create_dir(&place).unwrap();
        chown(&place, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    Some((directory, home))
}

fn run(home: &Path, script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.args(["run", "--", "sh", "-c", script]).env("HOME", home).env_remove("XDG_CACHE_HOME");
    command
}

/// A command with the rights of the other user.
fn as_nobody(script: &str, directory: &Path) {
    let mut command = Command::new("sh");
    command.args(["-e", "-c", script]).current_dir(directory).uid(NOBODY).gid(NOBODY);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

/// Checks a run that printed the library's path: each component belongs to root, and only root can
/// rename it.
fn assert_library_is_of_root(output: &Output) {
    let said = stdout(output);
    let library = Path::new(said.trim_end());
    assert!(library.is_absolute(), "{said}{}", stderr(output));
    for component in library.ancestors() {
        let metadata = fs::symlink_metadata(component).unwrap();
        let (mode, is_sticky) = (metadata.mode(), metadata.is_dir() && metadata.mode() & libc::S_ISVTX != 0);
        let is_safe = metadata.uid() == 0 && !metadata.is_symlink() && (mode & 0o022 == 0 || is_sticky);
        assert!(is_safe, "{} below {}: mode {mode:o}", library.display(), component.display());
    }
}

#[test]
fn root_takes_no_library_from_a_directory_that_another_user_can_rename() {
    let Some((directory, home)) = other_home() else { return };
    let source =
        "#include <unistd.h>\n__attribute__((constructor)) static void begin(void) { write(1, \"evil\\n\", 5); }";
    let (code, evil) = (directory.path().join("evil.c"), directory.path().join("evil.so"));
    fs::write(&code, source).unwrap();
    let compiler = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&evil).arg(&code).status();
    if !compiler.is_ok_and(|status| status.success()) {
        eprintln!("\n*** SKIPPED: there is no C compiler on this machine ***\n");
        return;
    }
    let mut command = run(&home, &format!("{}; read line; /bin/echo next", say_hidden("DIRECTFS_RUN")));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let library = PathBuf::from(output.next().unwrap().unwrap());
    // The owner of the home replaces the library, if it is there, and the run starts a new program.
    if let Ok(below) = library.strip_prefix(&home) {
        let directory = below.parent().unwrap().display();
        let script = format!("mv .cache old; mkdir -p {directory}; cp {} {}", evil.display(), below.display());
        as_nobody(&script, &home);
    }
    writeln!(child.stdin.take().unwrap(), "go on").unwrap();
    let said: Vec<String> = output.map(Result::unwrap).collect();
    assert_eq!(said, ["next"]);
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_dir(home.join(".cache")).unwrap().count(), 0, "root wrote in the home");
}

#[test]
fn root_takes_no_library_that_another_user_has_put_in_place() {
    let Some((directory, home)) = other_home() else { return };
    let output = run(&home, &say_hidden("DIRECTFS_RUN")).output().unwrap();
    assert_library_is_of_root(&output);
    // A directory of root's in the place of the cache, with a library of the other user.
    let name = Path::new(stdout(&output).trim_end()).file_name().unwrap().to_owned();
    let cache = home.join(".cache/directfs");
    fs::create_dir(&cache).unwrap();
    let library = cache.join(name);
    for (owner, mode) in [(NOBODY, 0o755), (0, 0o777), (0, 0o755)] {
        fs::write(&library, "evil").unwrap();
        chown(&library, Some(owner), None).unwrap();
        fs::set_permissions(&library, fs::Permissions::from_mode(mode)).unwrap();
        let output = run(&home, &say_hidden("DIRECTFS_RUN")).output().unwrap();
        assert_library_is_of_root(&output);
        assert_eq!(fs::read(&library).unwrap(), b"evil", "root wrote in the home");
    }
    // A link of root's that leads through the home.
    let link = directory.path().join("link");
    symlink(home.join(".cache"), &link).unwrap();
    let output = run(&home, &say_hidden("DIRECTFS_RUN")).env("XDG_CACHE_HOME", &link).output().unwrap();
    assert_library_is_of_root(&output);
}

#[test]
fn a_cache_that_others_can_write_makes_way_for_another() {
    let directory = scratch();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let shared = fs::canonicalize(directory.path()).unwrap().join("shared");
    fs::create_dir(&shared).unwrap();
    for (mode, is_used) in [(0o775, false), (0o755, true)] {
        fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
        let output = run(&shared, &say_hidden("DIRECTFS_RUN")).env("XDG_CACHE_HOME", &shared).output().unwrap();
        let said = stdout(&output);
        assert!(said.starts_with('/'), "{}", stderr(&output));
        assert_eq!(Path::new(&said).starts_with(&shared), is_used, "{mode:o}: {said}");
    }
}
