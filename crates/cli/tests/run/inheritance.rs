//! What a started program inherits: nothing of the library, unless it loads the library.

use crate::kit::compile;
use crate::support::{image_in, scratch, stderr, stdout};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The owner of images; a stranger whose rights a program gets.
const OWNER: u32 = 1234;
const STRANGER: u32 = 64321;

/// Whether programs here get the rights of their files; if not, prints that the test is skipped.
fn can(test: &str, probe: &[&str]) -> bool {
    let works = Command::new(probe[0]).args(&probe[1..]).output().is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("\n*** SKIPPED: {test}: `{}` does not work here ***\n", probe.join(" "));
    }
    works
}

/// An image of mode 0600 that belongs to an ordinary user, a copy of `directfs` that the user can
/// execute, and programs.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    /// `None`: this is not root, or there is no compiler.
    fn new(test: &str) -> Option<Place> {
        if !can(test, &["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", "true"]) {
            return None;
        }
        let directory = scratch();
        let place = Place { directory };
        for (name, source, options) in [
            ("inherited", "inherited", &[][..]),
            ("inherited-static", "inherited", &["-static"]),
            ("starts", "starts", &[]),
        ] {
            if !compile(source, &place.path(name), options) {
                return None;
            }
        }
        std::fs::copy(env!("CARGO_BIN_EXE_directfs"), place.path("directfs")).unwrap();
        std::fs::create_dir(place.path("home")).unwrap();
        let image = image_in(&place.path("home"));
        std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o600)).unwrap();
        for path in [place.path("home"), image] {
            std::os::unix::fs::chown(path, Some(OWNER), Some(OWNER)).unwrap();
        }
        std::fs::set_permissions(place.path("home"), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::set_permissions(place.directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Some(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A copy of a program with other rights.
    fn with_rights(&self, program: &str, rights: &str) -> PathBuf {
        let path = self.path(&format!("{program}-{rights}"));
        std::fs::copy(self.path(program), &path).unwrap();
        let set_mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        match rights {
            "user" => {
                std::os::unix::fs::chown(&path, Some(STRANGER), None).unwrap();
                set_mode(0o4755);
            }
            "group" => {
                std::os::unix::fs::chown(&path, None, Some(STRANGER)).unwrap();
                set_mode(0o2755);
            }
            _ => {
                set_mode(0o755);
                assert!(Command::new("setcap").arg("cap_net_raw+ep").arg(&path).status().unwrap().success());
            }
        }
        path
    }

    /// What the owner's run of a command prints.
    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1234", "--regid", "1234", "--clear-groups", "env", "-C", "/"]);
        command.arg(format!("HOME={}", self.path("home").display())).arg(self.path("directfs"));
        command.args(["run", "--image"]).arg(self.path("home/image")).arg("--").args(words);
        with_standard_descriptors(&mut command).output().unwrap()
    }
}

/// Lets a command inherit no descriptors but the first three, whatever other tests open meanwhile.
fn with_standard_descriptors(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;
    let close = || {
        // SAFETY: one system call between fork and exec, without memory.
        match unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: `close` allocates nothing and takes no lock.
    unsafe { command.pre_exec(close) }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_program_with_other_rights_inherits_nothing_of_the_library() {
    let Some(place) = Place::new("programs with other rights") else { return };
    let starts = place.path("starts");
    let mut kinds = vec![("user", STRANGER, OWNER), ("group", OWNER, STRANGER)];
    if can("programs with capabilities", &["setcap", "-h"]) {
        kinds.push(("capability", OWNER, OWNER));
    }
    for (rights, user, group) in kinds {
        let expected = format!("user {user} group {group} secure 1:\n");
        for program in ["inherited", "inherited-static"] {
            let program = place.with_rights(program, rights);
            let script = program.with_extension("sh");
            std::fs::write(&script, format!("#!{}\n", text(&program))).unwrap();
            std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
            // The kernel starts no script by a descriptor that exec closes.
            let ways = ["exec", "vfork", "posix_spawn", "execveat", "fexecve"];
            for (program, ways) in [(text(&program), &ways[..]), (text(&script), &ways[..3])] {
                let first = place.run(&[program]);
                assert_eq!(stdout(&first), expected, "first: {program}: {}", stderr(&first));
                for &way in ways {
                    let output = place.run(&[text(&starts), way, program]);
                    assert_eq!(stdout(&output), expected, "{way}: {program}: {}", stderr(&output));
                }
            }
        }
    }
}

#[test]
fn a_program_that_cannot_reach_the_library_inherits_nothing_of_it() {
    let Some(place) = Place::new("programs without the library") else { return };
    if !can("programs without the library", &["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/var/cache"]) {
        return;
    }
    for program in ["inherited", "inherited-static"] {
        let hide = format!("mount -t tmpfs none /var/cache && {}; :", text(&place.path(program)));
        let mut command = Command::new(place.path("directfs"));
        command.args(["run", "--image"]).arg(place.path("home/image"));
        command.args(["--", "unshare", "--mount", "sh", "-c", &hide]).current_dir("/");
        let output = with_standard_descriptors(&mut command).output().unwrap();
        assert_eq!(stdout(&output), "user 0 group 0 secure 0:\n", "{program}: {}", stderr(&output));
    }
}

/// The kernel closes them, whichever way the program has found around the library.
#[test]
fn a_start_that_the_library_does_not_see_hands_nothing_over() {
    let Some(place) = Place::new("starts that the library does not see") else { return };
    let output = place.run(&["python3", "-c", UNSEEN, text(&place.path("inherited-static"))]);
    assert_eq!(stdout(&output), "user 1234 group 1234 secure 0:\n", "{}", stderr(&output));
}

/// Calls execve by code that it has just generated, with an empty environment.
const UNSEEN: &str = r#"
import ctypes, mmap, sys
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\xb8\x3b\x00\x00\x00\x0f\x05\xc3")
execve = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p)(
    ctypes.addressof(ctypes.c_char.from_buffer(code)))
path = sys.argv[1].encode()
words, none = (ctypes.c_char_p * 2)(path, None), (ctypes.c_char_p * 1)(None)
print(execve(path, words, none))
"#;
