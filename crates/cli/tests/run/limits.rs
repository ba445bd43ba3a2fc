//! Many processes and threads in one image, and a `/dev/shm` that is small or full.

use crate::kit::compiled;
use crate::support::{directfs, scratch, stderr, stdout};
use std::path::Path;
use std::process::{Command, Output};

/// Whether this machine permits that many tasks.
fn permits(tasks: u64) -> bool {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let permitted = number("/proc/sys/kernel/pid_max").into_iter().chain(number("/proc/sys/kernel/threads-max")).min();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a complete structure, which the call fills.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NPROC, &raw mut limit) } == 0;
    let permitted = permitted.unwrap_or(0).min(if known { limit.rlim_cur } else { 0 });
    if permitted < tasks {
        eprintln!("\n*** SKIPPED: this machine permits {permitted} tasks, and the test needs {tasks} ***\n");
    }
    permitted >= tasks
}

/// Runs a script in a mount namespace with an empty `/dev/shm` of that size. None where that is not
/// possible.
fn in_small_memory(directory: &Path, size: &str, script: &str) -> Option<Output> {
    let setup = format!("mount -t tmpfs -o size={size} none /dev/shm || exit 77; {script}");
    let directfs = env!("CARGO_BIN_EXE_directfs");
    let shell = ["-m", "sh", "-c", &setup];
    let output = Command::new("unshare").args(shell).env("directfs", directfs).current_dir(directory).output();
    let output = output.ok().filter(|output| !matches!(output.status.code(), Some(77 | 1)));
    if output.is_none() {
        eprintln!("\n*** SKIPPED: mounts in a namespace of its own do not work here ***\n");
    }
    output
}

#[test]
fn five_thousand_children_use_the_file_system_at_once() {
    let directory = scratch();
    let Some(program) = compiled("limits", directory.path()).filter(|_| permits(12_000)) else { return };
    let run = directfs(&["run", "-C", "/mnt/directfs", "--", program.to_str().unwrap(), "children", "5000"]);
    assert_eq!(stdout(&run), "5000 children at once, 0 failed\n", "{}", stderr(&run));
}

#[test]
fn three_thousand_threads_use_the_file_system_at_once() {
    let directory = scratch();
    let Some(program) = compiled("limits", directory.path()).filter(|_| permits(8_000)) else { return };
    let run = directfs(&["run", "-C", "/mnt/directfs", "--", program.to_str().unwrap(), "threads", "3000"]);
    assert_eq!(stdout(&run), "3000 threads at once, 0 failed\n", "{}", stderr(&run));
}

#[test]
fn calls_fail_while_dev_shm_is_full_and_succeed_when_there_is_room() {
    // Not in /dev/shm, which the namespace covers.
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled("limits", directory.path()) else { return };
    let script = format!(
        "$directfs mkfs image --size 512M --sparse >/dev/null && \
         $directfs run -C /mnt/directfs --image image -- {} full; echo ended: $?; \
         $directfs fsck -n image >/dev/null; echo fsck: $?; \
         $directfs run --image image -- sh -c 'ls /mnt/directfs/old | wc -l'; ls /dev/shm",
        program.display()
    );
    let Some(run) = in_small_memory(directory.path(), "32m", &script) else { return };
    let expected = "refused: without room\nreadable: 300\nfork: no crash\n\
                    with room again: 1000 made, 300 readable\nended: 0\nfsck: 0\n300\n";
    assert_eq!((stdout(&run).as_str(), stderr(&run).as_str()), (expected, ""));
}

#[test]
fn a_large_image_needs_little_shared_memory() {
    let directory = scratch();
    let script = "$directfs mkfs image --size 1G --sparse >/dev/null && \
                  $directfs run -C /mnt/directfs --image image -- sh -c 'echo content >file; cat file'; echo ended: $?";
    let Some(run) = in_small_memory(directory.path(), "8m", script) else { return };
    assert_eq!((stdout(&run).as_str(), stderr(&run).as_str()), ("content\nended: 0\n", ""));
}

#[test]
fn an_image_that_needs_more_shared_memory_than_there_is_reports_that_and_stays_sound() {
    let directory = scratch();
    let script = "$directfs mkfs image --size 256M --sparse >/dev/null && \
                  $directfs run --image image -- true; echo ended: $?; $directfs fsck -n image >/dev/null; echo fsck: $?; \
                  mount -o remount,size=16m /dev/shm; $directfs run --image image -- true; echo ended: $?";
    let Some(run) = in_small_memory(directory.path(), "512k", script) else { return };
    assert_eq!(stdout(&run), "ended: 125\nfsck: 0\nended: 0\n", "{}", stderr(&run));
    assert!(stderr(&run).contains("/dev/shm is too full"), "{}", stderr(&run));
}

#[test]
fn a_sparse_image_on_a_full_file_system_gives_enospc() {
    let directory = scratch();
    let script = "mkdir disk && mount -t tmpfs -o size=24m none disk && \
                  $directfs mkfs disk/image --size 512M --sparse >/dev/null && \
                  $directfs run -C /mnt/directfs --image disk/image -- sh -c \
                  'echo kept >kept; dd if=/dev/zero of=large bs=64k 2>&1 | grep -o \"No space left on device\"; \
                   rm large; echo again >kept; cat kept'; echo ended: $?; \
                  mount -o remount,size=64m disk; $directfs fsck -n disk/image >/dev/null; echo fsck: $?";
    let Some(run) = in_small_memory(directory.path(), "64m", script) else { return };
    let expected = "No space left on device\nagain\nended: 0\nfsck: 0\n";
    assert_eq!((stdout(&run).as_str(), stderr(&run).as_str()), (expected, ""));
}

#[test]
fn a_working_copy_that_fills_dev_shm_gives_enospc() {
    // On a disk, so that the image is used in a working copy.
    let directory = tempfile::tempdir().unwrap();
    let script = "$directfs mkfs image --size 512M --sparse >/dev/null && \
                  $directfs run -C /mnt/directfs --image image -- sh -c \
                  'echo kept >kept; dd if=/dev/zero of=large bs=64k 2>&1 | grep -o \"No space left on device\"; \
                   rm large; echo again >kept; cat kept'; echo ended: $?; \
                  $directfs fsck -n image >/dev/null; echo fsck: $?; ls /dev/shm";
    let Some(run) = in_small_memory(directory.path(), "48m", script) else { return };
    let expected = "No space left on device\nagain\nended: 0\nfsck: 0\n";
    assert_eq!((stdout(&run).as_str(), stderr(&run).as_str()), (expected, ""));
}

#[test]
fn zeros_that_a_file_system_does_not_store_have_their_space_in_a_full_one() {
    let directory = tempfile::tempdir().unwrap();
    // In a working copy, and in place; the image's own copy in memory has holes where it is zero.
    // So few files that the first chunk of the index has room for them, whatever shards keep ready.
    let script = "$directfs mkfs image --size 64M --sparse >/dev/null && \
                  $directfs run -C /mnt/directfs --image image -- sh -c 'fallocate -l 4M prepared; mkdir d; echo 0 >d/0; echo 1 >a'; \
                  cp --sparse=always image /dev/shm/image; \
                  for image in image /dev/shm/image; do \
                      $directfs run -C /mnt/directfs --image $image -- bash -c \
                      'head -1 a; dd if=/dev/zero of=/dev/shm/filler bs=4k status=none 2>/dev/null; \
                       for n in {1..150}; do echo again >>a; echo $n >d/$n; ln a d/link$n; done; \
                       dd if=/dev/urandom of=prepared bs=64k count=64 conv=notrunc status=none; head -1 a' \
                      2>errors; echo ended: $?; grep -v \"No space left\" errors | head -5; rm -f /dev/shm/filler; \
                      $directfs fsck -n $image >/dev/null; echo fsck: $?; \
                  done";
    let Some(run) = in_small_memory(directory.path(), "48m", script) else { return };
    let expected = "1\n1\nended: 0\nfsck: 0\n";
    assert_eq!((stdout(&run).as_str(), stderr(&run).as_str()), (format!("{expected}{expected}").as_str(), ""));
}
