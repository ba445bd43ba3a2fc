//! Programs that the preload library cannot be in see the image through a private mount, or are
//! refused with a message; users without privileges.

use crate::support::{can_mount, copy_program, directfs, image_in, say_hidden, scratch, stderr, stdout};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const NOBODY: u32 = 65534;

/// Compiles the kit's program with these arguments; none, with a message, if that fails.
pub fn compiled(directory: &Path, arguments: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/kit/fuse_program.c");
    let binary = directory.join("fuse_program");
    let built = Command::new("cc").args(["-O1", "-o"]).arg(&binary).arg(source).args(arguments).output();
    if built.is_ok_and(|output| output.status.success()) {
        return Some(binary);
    }
    eprintln!("\n*** SKIPPED: no program can be compiled here with {arguments:?} ***\n");
    None
}

/// The program does its usual work, however it is started. `setup`: commands in the mount before.
pub fn assert_sees_the_image(directory: &Path, program: &Path, setup: &str) {
    let image = image_in(directory);
    let image = image.to_str().unwrap();
    let program = program.to_str().unwrap();
    let script = format!(
        "cd $DIRECTFS_MOUNT && {setup} mkdir sub && printf 0123456789 >in && cd sub && \
         (echo before; {program}; echo $?; cat) <../in >../out; cat ../out made; \
         cp {program} own && ./own </dev/null; echo $?; \
         exec 7<>gone; echo 12345 >&7; rm gone; {program} 7 </dev/null | tail -2"
    );
    let output = directfs(&["run", "--image", image, "--", "sh", "-c", &script]);
    let one = "in sub\nread 01234\nby the outsider\n5\n";
    let wanted = format!(
        "before\n{one}56789by the outsider\nmore\nin sub\nread \nby the outsider\n5\n\
         descriptor 7 has 6 bytes and 0 names\nby the outsider\n"
    );
    assert_eq!(stdout(&output), wanted, "{}", stderr(&output));
    assert!(output.status.success());
    // Named directly, and from a directory outside.
    let output = directfs(&["run", "--image", image, "-C", "/mnt/directfs/sub", "--", program]);
    assert_eq!(stdout(&output), "in sub\nread \nby the outsider\n", "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(5));
    // The server of the program's mount may end after it.
    let patient =
        image::OpenImage { exclusive: true, timeout: std::time::Duration::from_secs(600), ..Default::default() };
    drop(image::Image::open(Path::new(image), &patient).unwrap());
    let check = directfs(&["fsck", "-n", image]);
    assert!(stdout(&check).contains("left cleanly;"), "{}{}", stdout(&check), stderr(&check));
    assert!(!Path::new("/mnt/directfs/sub").exists(), "nothing of it is seen outside");
}

/// Its calls have other numbers, which the library does not see.
#[test]
fn a_program_of_32_bits_sees_the_image_or_is_not_started() {
    let directory = scratch();
    let program = directory.path().join("narrow");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/kit/narrow_program.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-m32", "-O1", "-w", "-static", "-nostdlib", "-fno-pic", "-no-pie", "-fno-stack-protector", "-o"]);
    if !compiler.arg(&program).arg(source).output().is_ok_and(|output| output.status.success()) {
        eprintln!("\n*** SKIPPED: no program of 32 bits can be compiled here ***\n");
        return;
    }
    let outside = directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let script =
        format!("{0} $DIRECTFS_MOUNT/one; echo $?; cd $DIRECTFS_MOUNT; {0} two; echo $?; cat *", program.display());
    if can_mount("programs of 32 bits") {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        let output = command.args(["run", "--", "sh", "-c", &script]).current_dir(&outside).output().unwrap();
        assert_eq!(stdout(&output), "0\n0\nnarrow\nnarrow\n", "{}", stderr(&output));
    }
    let mut command = crate::support::without_files(&["/dev/fuse".into()]);
    command.arg(env!("CARGO_BIN_EXE_directfs")).args(["run", "--", "sh", "-c", &script]);
    let output = command.current_dir(&outside).output().unwrap();
    assert!(stdout(&output).starts_with("126\n126\n"), "{}{}", stdout(&output), stderr(&output));
    assert!(stderr(&output).contains("narrow was not run"), "{}", stderr(&output));
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "nothing was written outside");
}

/// Runs `directfs run` as a user without privileges, with a cache of its own.
pub fn as_nobody(directory: &Path, arguments: &[&str]) -> Option<Output> {
    if rustix::process::geteuid().as_raw() != 0 {
        eprintln!("\n*** SKIPPED: only root can become another user ***\n");
        return None;
    }
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    let (binary, home) = (directory.join("directfs"), directory.join("home"));
    if !home.exists() {
        assert!(copy_program(env!("CARGO_BIN_EXE_directfs"), &binary));
        fs::create_dir(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut command = Command::new(&binary);
    command.arg("run").args(arguments).uid(NOBODY).gid(NOBODY).current_dir("/");
    command.env("XDG_CACHE_HOME", &home).env("HOME", &home);
    Some(command.output().unwrap())
}

#[test]
fn a_user_without_privileges_runs_programs() {
    let directory = scratch();
    let script = "cd $DIRECTFS_MOUNT && mkdir a && echo text >a/b && cat a/b && id -u && stat -c %u a/b";
    let Some(output) = as_nobody(directory.path(), &["--", "sh", "-c", script]) else { return };
    assert_eq!(stdout(&output), format!("text\n{NOBODY}\n{NOBODY}\n"), "{}", stderr(&output));
}

#[test]
fn users_share_an_image_that_both_may_write_and_no_other() {
    let directory = scratch();
    let image = crate::support::image_in(directory.path());
    let name = image.to_str().unwrap();
    let script = "cd $DIRECTFS_MOUNT && id -u >by-$(id -u) && cat by-* && ls -l /proc/self/fd >/dev/null";
    let Some(refused) = as_nobody(directory.path(), &["--image", name, "--", "sh", "-c", script]) else { return };
    assert_eq!(refused.status.code(), Some(125), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("permission") || stderr(&refused).contains("may"), "{}", stderr(&refused));
    fs::set_permissions(&image, fs::Permissions::from_mode(0o666)).unwrap();
    let open = ["run", "--image", name, "--", "sh", "-c", "chmod 1777 $DIRECTFS_MOUNT; read line"];
    let mut root = Command::new(env!("CARGO_BIN_EXE_directfs"));
    let mut root = root.args(open).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let _held = root.stdin.take();
    // The program has the image once an exclusive open fails.
    let is_taken = || {
        let alone =
            image::OpenImage { exclusive: true, timeout: std::time::Duration::ZERO, ..image::OpenImage::default() };
        image::Image::open(&image, &alone).is_err()
    };
    while !is_taken() {
        std::thread::yield_now();
    }
    let wait = "until [ \"$(stat -c %a $DIRECTFS_MOUNT)\" = 1777 ]; do :; done; ";
    let output = as_nobody(directory.path(), &["--image", name, "--", "sh", "-c", &format!("{wait}{script}")]).unwrap();
    assert_eq!(stdout(&output), format!("{NOBODY}\n"), "{}", stderr(&output));
    let output = crate::support::directfs(&["run", "--image", name, "--", "sh", "-c", script]);
    assert_eq!(stdout(&output), format!("0\n{NOBODY}\n"), "{}", stderr(&output));
    drop(_held);
    assert!(root.wait().unwrap().code().is_some());
    // The other order: root opens an image that the user opened first.
    if !users_can_share() {
        let output = as_nobody(directory.path(), &["--image", name, "--", "true"]).unwrap();
        assert_eq!(output.status.code(), Some(125));
        assert!(stderr(&output).contains("mode 1777"), "{}", stderr(&output));
        return;
    }
    let output = as_nobody(directory.path(), &["--image", name, "--", "sh", "-c", script]).unwrap();
    assert_eq!(stdout(&output), format!("0\n{NOBODY}\n"), "{}", stderr(&output));
    let check = crate::support::directfs(&["fsck", "-n", name]);
    assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
}

/// Whether users other than root can create what the users of an image share.
fn users_can_share() -> bool {
    let mode = fs::metadata("/dev/shm").unwrap().permissions().mode();
    if mode & 0o002 == 0 {
        eprintln!("\n*** SKIPPED: only root may write /dev/shm on this machine ***\n");
    }
    mode & 0o002 != 0
}

/// Work of all kinds: compiled programs, children, archives, databases, libraries of the mount.
#[test]
fn a_user_without_privileges_does_real_work() {
    let directory = scratch();
    let script = "set -e; cd $DIRECTFS_MOUNT; cp -r /usr/include/linux . ; find linux -type f | sort | xargs cat | cksum >a; \
         tar cf - linux | (mkdir copy; cd copy; tar xf -); find copy/linux -type f | sort | xargs cat | cksum >b; cmp a b; \
         printf '#!/bin/sh\\necho script\\n' >s; chmod +x s; ./s; cp /bin/echo e; ./e program; \
         (flock 9; echo locked) 9>lock; ls -ln a | cut -d' ' -f3; rm -r linux copy; ls";
    let Some(output) = as_nobody(directory.path(), &["--", "sh", "-c", script]) else { return };
    let wanted = format!("script\nprogram\nlocked\n{NOBODY}\na\nb\ne\nlock\ns\n");
    assert_eq!(stdout(&output), wanted, "{}", stderr(&output));
    let pipe = "cd $DIRECTFS_MOUNT; mkfifo p; (echo pipe >p) & cat p";
    if users_can_share() {
        let output = as_nobody(directory.path(), &["--", "sh", "-c", pipe]).unwrap();
        assert_eq!(stdout(&output), "pipe\n", "{}", stderr(&output));
    }
}

#[test]
fn a_program_that_changes_the_user_is_refused() {
    let directory = scratch();
    let Some(privileged) = ["/usr/bin/su", "/bin/su", "/usr/bin/passwd"].iter().find(|path| Path::new(path).exists())
    else {
        eprintln!("\n*** SKIPPED: no set-user-ID program is on this machine ***\n");
        return;
    };
    // As the first command, and within a script, with a path of the mount as argument.
    let arguments = ["--", privileged, "--help", "/mnt/directfs/file"];
    let Some(output) = as_nobody(directory.path(), &arguments) else { return };
    assert_eq!(output.status.code(), Some(126), "{}", stderr(&output));
    assert!(stderr(&output).contains("set-user-ID"), "{}", stderr(&output));
    let script = format!("{privileged} --help $DIRECTFS_MOUNT/file; echo status $?");
    let Some(output) = as_nobody(directory.path(), &["--", "sh", "-c", &script]) else { return };
    assert!(stdout(&output).contains("status 126"), "{}{}", stdout(&output), stderr(&output));
}

/// A run by root which becomes another user; the cache is in a directory with this mode.
fn as_root_then_nobody(directory: &Path, cache_mode: u32, script: &str) -> Option<Output> {
    let can = rustix::process::geteuid().as_raw() == 0
        && Command::new("setpriv").arg("--version").output().is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("\n*** SKIPPED: this needs root and setpriv ***\n");
        return None;
    }
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    let cache = directory.join("cache");
    if !cache.exists() {
        fs::create_dir(&cache).unwrap();
    }
    fs::set_permissions(&cache, fs::Permissions::from_mode(cache_mode)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.args(["run", "--", "sh", "-c", script]).env("XDG_CACHE_HOME", cache);
    Some(command.output().unwrap())
}

const BECOME_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

#[test]
fn a_program_that_goes_on_as_another_user_sees_the_mount_with_that_users_rights() {
    let directory = scratch();
    let script = format!(
        "cd $DIRECTFS_MOUNT && echo secret >mine && chmod 600 mine && echo text >all && mkdir -m 1777 tmp && \
         {BECOME_NOBODY} sh -c 'cat all; cat mine || echo refused; echo own >tmp/own; id -u; cat tmp/own' 2>/dev/null; \
         stat -c %u tmp/own; {BECOME_NOBODY} env -i /bin/cat $DIRECTFS_MOUNT/tmp/own"
    );
    // If other users cannot read root's cache, the library is elsewhere.
    for cache_mode in [0o755, 0o700] {
        let Some(output) = as_root_then_nobody(directory.path(), cache_mode, &script) else { return };
        let wanted = format!("text\nrefused\n{NOBODY}\nown\n{NOBODY}\nown\n");
        assert_eq!(stdout(&output), wanted, "{cache_mode:o}: {}", stderr(&output));
    }
}

/// It is refused, or has a mount of its own where its user may mount. A shell and its like try
/// each directory of PATH, where the program is not.
#[test]
fn a_program_that_does_not_get_to_the_library_any_more_never_works_elsewhere() {
    let directory = scratch();
    let script = format!(
        "PATH=/nowhere:$PATH; echo text >$DIRECTFS_MOUNT/file; library=$({}); chmod 700 ${{library%/*}}; \
         {BECOME_NOBODY} cat $DIRECTFS_MOUNT/file; echo status $?; {BECOME_NOBODY} echo elsewhere",
        say_hidden("DIRECTFS_RUN")
    );
    let Some(output) = as_root_then_nobody(directory.path(), 0o755, &script) else { return };
    let (answer, said) = (stdout(&output), stderr(&output));
    let can_mount = fs::metadata("/dev/fuse").is_ok_and(|device| device.permissions().mode() & 0o006 == 0o006);
    if can_mount && answer == "text\nstatus 0\nelsewhere\n" {
        return;
    }
    assert!(answer == "status 126\nelsewhere\n", "{answer}{said}");
    assert!(said.contains("preload library") && !said.contains("LD_PRELOAD"), "{said}");
}

#[test]
fn a_program_below_another_root_is_refused_where_it_would_not_see_the_mount() {
    let directory = scratch();
    let root = directory.path().join("root");
    for file in ["bin/cat", "lib64/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/libc.so.6"] {
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        if !copy_program(Path::new("/").join(file), &root.join(file)) {
            eprintln!("\n*** SKIPPED: /{file} is not on this machine ***\n");
            return;
        }
    }
    fs::write(root.join("file"), "below the root\n").unwrap();
    let root = root.display();
    let script = format!(
        "echo text >$DIRECTFS_MOUNT/file; chroot {root} cat $DIRECTFS_MOUNT/file; echo status $?; chroot {root} cat /file; \
         chroot $DIRECTFS_MOUNT cat /file || echo status $?"
    );
    let Some(output) = as_root_then_nobody(directory.path(), 0o755, &script) else { return };
    assert_eq!(stdout(&output), "status 126\nbelow the root\nstatus 125\n", "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("preload library") && said.contains("not supported"), "{said}");
}
