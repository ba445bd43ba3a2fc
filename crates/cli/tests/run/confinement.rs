//! Programs that have nothing of the image attach at their first call that needs it, and before
//! they give up what attaching takes.

use crate::kit::compiled;
use crate::support::{directfs, image_in, scratch, stderr, stdout};

#[test]
fn programs_that_confine_themselves_first_see_the_image_afterwards() {
    let directory = scratch();
    let Some(program) = compiled("confined", directory.path()) else { return };
    let image = image_in(directory.path());
    // The shell has used the image; the programs that it starts inherit nothing of it.
    let script = r#"file=/mnt/directfs/file; : >"$file"
        for way in prctl seccomp prlimit setrlimit; do "$0" "$way" "$file"; done"#;
    let arguments = ["run", "--image", image.to_str().unwrap(), "--", "sh", "-c", script, program.to_str().unwrap()];
    let output = directfs(&arguments);
    assert_eq!(stderr(&output), "");
    assert_eq!(stdout(&output), "prctl: seen\nseccomp: seen\nprlimit: seen\nsetrlimit: seen\n");
}

#[test]
fn a_program_under_a_filter_goes_on_with_its_open_files() {
    let directory = scratch();
    let Some(program) = compiled("filtered", directory.path()) else { return };
    // Sparse: each piece of new memory is provided while it is written.
    let image = directory.path().join("image");
    let image = image.to_str().unwrap();
    assert!(directfs(&["mkfs", image, "--size", "64M", "--sparse"]).status.success());
    let script =
        r#"cd /mnt/directfs; head -c 3000000 /dev/urandom >from; "$0" from to; echo $?; cmp from to && echo same"#;
    let output = directfs(&["run", "--image", image, "--", "sh", "-c", script, program.to_str().unwrap()]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("0\nsame\n", ""));
}

#[test]
fn threads_under_a_filter_make_no_calls_of_the_library_s_own_to_learn_who_they_are() {
    let directory = scratch();
    let Some(program) = compiled("filtered_threads", directory.path()) else { return };
    let script = r#"cd /mnt/directfs; "$0" before after; echo $?; cat before after; stat -c %U:%a before after"#;
    let output = directfs(&["run", "--", "sh", "-c", script, program.to_str().unwrap()]);
    let user = stdout(&std::process::Command::new("id").arg("-un").output().unwrap());
    let line = format!("{}:600\n", user.trim());
    assert_eq!((stdout(&output), stderr(&output)), (format!("0\nmade\nmade\n{line}{line}"), String::new()));
}

#[test]
fn a_filter_of_a_child_in_the_parent_s_memory_leaves_the_parent_its_identity() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("\n*** SKIPPED: a filter of a child: only root can become another user ***\n");
        return;
    }
    let directory = scratch();
    let Some(program) = compiled("filter_in_child", directory.path()) else { return };
    let script = r#"cd /mnt/directfs; "$0" made; echo $?; stat -c %u made"#;
    let output = directfs(&["run", "--", "sh", "-c", script, program.to_str().unwrap()]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("0\n0\n", ""));
}

#[test]
fn a_program_in_the_image_without_room_for_it_is_refused_in_one_line() {
    let directory = scratch();
    let image = image_in(directory.path());
    // The shell has attached. What it starts has only the directory in the image.
    let script = "cd /mnt/directfs; echo kept >file; ulimit -v 500000; cat file; echo $?; exec true";
    let output = directfs(&["run", "--image", image.to_str().unwrap(), "--", "sh", "-c", script]);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("126\n", Some(126)));
    let errors = stderr(&output);
    assert!(errors.lines().all(|line| line.contains("not enough address space; raise the limit")), "{errors}");
    assert_eq!(errors.lines().count(), 2, "{errors}");
    let script = script.replace("500000", "8000000");
    let output = directfs(&["run", "--image", image.to_str().unwrap(), "--", "sh", "-c", &script]);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("kept\n0\n", Some(0)), "{}", stderr(&output));
}

#[test]
fn a_program_without_room_to_attach_gets_errors_and_not_the_files_of_the_machine() {
    let directory = scratch();
    let image = image_in(directory.path());
    let mount = directory.path().join("mount");
    std::fs::create_dir(&mount).unwrap();
    std::fs::write(mount.join("file"), "of the machine\n").unwrap();
    // The shell has attached. The programs that it starts have nothing of the image and no room.
    let script = r#"echo "of the image" >"$0/file"; cat "$0/file"; ulimit -v 40000
        cat "$0/file"; cd /; cat ".$0/file"; rm -f "$0/file"; echo $?; cat /proc/self/comm"#;
    let (image, at) = (image.to_str().unwrap(), mount.to_str().unwrap());
    let output = directfs(&["run", "--image", image, "--at", at, "--", "sh", "-c", script, at]);
    assert_eq!(stdout(&output), "of the image\n1\ncat\n", "{}", stderr(&output));
    assert_eq!(stderr(&output).matches("not enough address space; raise the limit").count(), 4, "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(mount.join("file")).unwrap(), "of the machine\n");
}
