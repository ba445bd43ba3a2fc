//! Calls with odd arguments, limits of the process, 32-bit calls and locked memory: the answers are
//! those of tmpfs.

use crate::kit::compiled;
use crate::support::{directfs, scratch, stderr, stdout};
use std::path::Path;
use std::process::{Command, Output};

/// Runs a shell's commands in an empty directory of tmpfs.
fn on_tmpfs(script: &str) -> Output {
    let directory = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
    Command::new("sh").args(["-c", script]).current_dir(directory.path()).output().unwrap()
}

/// `on_tmpfs` in the mount of a run, which starts after the commands in `before`.
fn under_run(before: &str, script: &str) -> Output {
    let outer = format!("{before} exec {} run -C /mnt/directfs -- sh -c '{script}'", env!("CARGO_BIN_EXE_directfs"));
    Command::new("sh").args(["-c", &outer]).output().unwrap()
}

fn assert_same(program: &Path, before: &str) {
    let script = format!("{before} {}", program.display());
    let (expected, found) = (on_tmpfs(&script), under_run(before, &program.display().to_string()));
    assert!(expected.status.success(), "{}", stderr(&expected));
    assert_eq!(stdout(&found), stdout(&expected), "{}", stderr(&found));
    assert_eq!((stderr(&found).as_str(), found.status.code()), ("", Some(0)));
}

#[test]
fn calls_with_odd_arguments_have_the_answers_of_tmpfs() {
    let directory = scratch();
    let Some(program) = compiled("answers", directory.path()) else { return };
    assert_same(&program, "");
}

#[test]
fn a_working_directory_with_a_path_that_is_too_long_is_found_as_elsewhere() {
    let directory = scratch();
    let Some(program) = compiled("long_directory", directory.path()) else { return };
    assert_same(&program, "");
}

/// It sees none of the library's.
#[test]
fn a_program_sees_its_own_descriptors() {
    let directory = scratch();
    let Some(program) = compiled("own_view", directory.path()) else { return };
    assert_same(&program, "");
}

/// Firefox has such a child change the root directory of its sandboxed processes.
#[test]
fn a_child_shares_the_kernels_directories_and_the_umask() {
    let directory = scratch();
    let Some(program) = compiled("clone_fs", directory.path()) else { return };
    assert_same(&program, "");
    if !rustix::process::geteuid().is_root() {
        eprintln!("\n*** SKIPPED: only root changes the root directory ***\n");
        return;
    }
    let confined = under_run("", &format!("{} confine", program.display()));
    let expected = "directory \ncreated 0\npermissions 640\netc -1\nenter -1 EOPNOTSUPP\n";
    assert_eq!((stdout(&confined).as_str(), stderr(&confined).as_str()), (expected, ""));
}

#[test]
fn files_do_not_grow_beyond_the_limit_on_their_length() {
    let directory = scratch();
    let Some(program) = compiled("file_limit", directory.path()) else { return };
    assert_same(&program, "");
    // A limit from before the program started.
    let write = "dd if=/dev/zero of=f bs=1000 count=3 2>&1; stat -c %s f";
    let limited = under_run("", &format!("ulimit -f 2; {write}"));
    assert_eq!(stdout(&limited).lines().last(), Some("1024"), "{}", stdout(&limited));
}

/// The library's own descriptors are above the soft limit.
#[test]
fn a_program_has_as_many_descriptors_as_its_limit_permits() {
    let directory = scratch();
    let Some(program) = compiled("descriptor_limit", directory.path()) else { return };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a complete structure, which the call fills.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    if !known || limit.rlim_max < 2048 {
        eprintln!("\n*** SKIPPED: this machine permits {} descriptors, and the test needs more ***\n", limit.rlim_max);
        return;
    }
    for soft in ["64", "1024"] {
        assert_same(&program, &format!("ulimit -Sn {soft};"));
    }
}

/// The library's own descriptors lie below the new limit, and move above it.
#[test]
fn a_program_that_lowers_a_high_limit_has_all_numbers_below_it() {
    const HIGH: u64 = 8192;
    let directory = scratch();
    let Some(program) = compiled("descriptor_limit", directory.path()) else { return };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < HIGH) {
        eprintln!("\n*** SKIPPED: this machine permits {:?} descriptors, and the test needs more ***\n", limit.maximum);
        return;
    }
    let script = format!("ulimit -Sn 1024; {}", program.display());
    let (expected, run) = (on_tmpfs(&script), under_run(&format!("ulimit -Sn {HIGH};"), &script));
    assert_eq!((stdout(&run), stderr(&run)), (stdout(&expected), String::new()));
}

#[test]
fn a_narrow_call_ends_a_wide_program() {
    let directory = scratch();
    let Some(program) = compiled("narrow_calls", directory.path()) else { return };
    let narrow = on_tmpfs(&format!("{} 122", program.display()));
    if !narrow.status.success() {
        eprintln!("\n*** SKIPPED: this kernel has no 32-bit calls ***\n");
        return;
    }
    // exit, fork, open, execve, stat, uname
    for number in [1, 2, 5, 11, 106, 122] {
        let refused = under_run("", &format!("{} {number}; echo $?", program.display()));
        assert_eq!(stdout(&refused), "begins\n126\n", "{}", stderr(&refused));
        assert!(stderr(&refused).contains(&format!("32-bit system call {number} ")), "{}", stderr(&refused));
    }
}

#[test]
fn locking_all_memory_locks_neither_the_image_nor_its_index() {
    let directory = scratch();
    let Some(program) = compiled("lock_memory", directory.path()) else { return };
    let expected = on_tmpfs(&program.display().to_string());
    if !stdout(&expected).starts_with("all 0") {
        eprintln!("\n*** SKIPPED: this machine does not permit to lock memory ***\n");
        return;
    }
    let script = format!("touch file; {}", program.display());
    let run = directfs(&["run", "--size", "1G", "-C", "/mnt/directfs", "--", "sh", "-c", &script]);
    assert_eq!((stdout(&run), stderr(&run)), (stdout(&expected), String::new()));
}

#[test]
fn all_numbers_below_a_low_hard_limit_are_the_program_s() {
    let script = "for i in 1 2 3; do echo $i >$i; done; ulimit -n 6; sort -n -m 1 2 3; echo $?";
    let expected = on_tmpfs(script);
    assert_eq!((stdout(&expected), stderr(&expected)), ("1\n2\n3\n0\n".into(), String::new()));
    let run = under_run("", script);
    assert_eq!((stdout(&run), stderr(&run)), (stdout(&expected), String::new()));
}
