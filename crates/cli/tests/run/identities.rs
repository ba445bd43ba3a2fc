//! Identities: user namespaces, and threads with ids of their own. Each script does the same on
//! tmpfs, where the kernel decides.

use crate::support::{directfs, image_in, scratch, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Whether this is root and may create user namespaces; if not, prints that the test is skipped.
fn has_namespaces(test: &str) -> bool {
    can(test, &["sh", "-c", "test $(id -u) = 0 && unshare -r true && setpriv --reuid 1234 unshare -r true"])
}

fn can(test: &str, probe: &[&str]) -> bool {
    let works = Command::new(probe[0]).args(&probe[1..]).output().is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("\n*** SKIPPED: {test}: `{}` does not work here ***\n", probe.join(" "));
    }
    works
}

/// Runs a script in an empty directory of tmpfs, and under `run`; both must write the same. `$KIT`
/// is the directory with the tests' programs. Returns what they wrote.
fn same_as_on_tmpfs(script: &str) -> String {
    let directory = scratch();
    // Other users must reach what is below.
    Command::new("chmod").arg("755").arg(directory.path()).status().unwrap();
    let host = directory.path().join("host");
    std::fs::create_dir(&host).unwrap();
    let image = image_in(directory.path());
    let script = format!("exec 2>&1; umask 022; chmod 777 .\n{script}");
    let kit = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/kit");
    let shell = |command: &mut Command, at: &Path| -> Output {
        command.current_dir(at).env("KIT", kit).env("IMAGE", &image).stdin(Stdio::null()).output().unwrap()
    };
    let expected = shell(Command::new("timeout").args(["600", "sh", "-c", &script]), &host);
    let run = ["600", env!("CARGO_BIN_EXE_directfs"), "run", "-C", "/mnt/directfs", "--image"];
    let command = ["--", "sh", "-c", &script];
    let seen = shell(Command::new("timeout").args(run).arg(&image).args(command), directory.path());
    assert_eq!(stdout(&seen), stdout(&expected), "{}", stderr(&seen));
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
    stdout(&expected)
}

/// What a user namespace changes, for the process that runs it.
const ACTS: &str = r#"
    id -u; stat -c '%u %g %a %n' f mine shared; cat f; cat shared; chmod 644 f; chown 4321 mine
    chown 1 mine; chgrp 1 mine; test -r f && echo readable; : >new; mkdir dir; rm -f sticky/f; mv f g
    python3 $KIT/lists.py get listed; python3 $KIT/lists.py set mine 4321; python3 $KIT/lists.py set mine 0
    chmod 2755 mine; stat -c '%u %g %a %n' mine new dir
    python3 $KIT/lists.py trusted mine; mknod device c 1 3; rm -rf dir new"#;

/// Files of several owners.
const FILES: &str = r#"
    echo secret >f; chown 1234:1234 f; chmod 600 f; echo mine >mine; chown $ME:$ME mine
    echo shared >shared; chown 1234:50 shared; chmod 640 shared; mkdir -m 1777 sticky; : >sticky/f
    chown 1234:1234 sticky/f; : >listed; chown $ME:$ME listed; python3 $KIT/lists.py set listed 1234"#;

fn acts(me: u32, entering: &str) -> String {
    let acts = ACTS.replace('\n', "; ").replace("'", r#"'"'"'"#);
    let acts = acts.trim_start_matches([';', ' ']);
    let script = format!("ME={me}; {FILES}\n{entering} sh -c '{acts}'; ls -ln | tail -n +2 | cut -d' ' -f1,3,4");
    same_as_on_tmpfs(&script)
}

#[test]
fn root_of_a_user_namespace_has_no_rights_over_owners_without_a_number_there() {
    if !has_namespaces("user namespaces") {
        return;
    }
    let seen = acts(0, "unshare -r");
    assert!(seen.contains("65534 65534 600 f\n"), "{seen}");
    assert!(seen.contains("cat: f: Permission denied"), "{seen}");
    assert!(seen.contains("chown: changing ownership of 'mine': Invalid argument"), "{seen}");
}

#[test]
fn a_user_works_in_a_namespace_of_its_own_and_keeps_its_groups() {
    if !has_namespaces("user namespaces of a user") {
        return;
    }
    let seen = acts(1000, "setpriv --reuid 1000 --regid 1000 --groups 50,60 unshare -r");
    assert!(seen.contains("\nshared\n"), "the group that has no number in the namespace counts: {seen}");
    acts(1234, "setpriv --reuid 1234 --regid 1234 --clear-groups unshare -r");
}

#[test]
fn a_namespace_without_maps_gives_no_rights() {
    if !has_namespaces("user namespaces without maps") {
        return;
    }
    acts(0, "unshare -U");
    acts(1000, "setpriv --reuid 1000 --regid 1000 --groups 50 unshare -U");
}

#[test]
fn ids_are_translated_by_maps_of_several_lines_and_levels() {
    if !has_namespaces("maps of user namespaces") {
        return;
    }
    let enter = "python3 $KIT/namespace.py";
    acts(100_000, &format!("{enter} '0 100000 1000,1000 1234 1' '0 100000 1000,1000 1234 1' 0:0:"));
    acts(100_000, &format!("{enter} '0 100000 1000' '0 100000 1000,5000 50 1' 0:0:5000"));
    let inner =
        format!("{enter} '0 100000 1000,1234 1234 1' '0 100000 1000' 0:0: {enter} '7 1234 1,0 0 2' '0 0 10' 7:0:");
    acts(100_000, &inner);
    let inner = format!("{enter} '0 100000 1000,1234 1234 1' '0 100000 1000' 0:0: unshare -r");
    acts(100_000, &inner);
    // Ids that are set before there is a map.
    acts(0, &format!("{enter} '0 0 1' '0 0 1' -"));
    // All ids have numbers, as in the initial namespace.
    acts(0, &format!("{enter} '0 0 4294967295' '0 0 4294967295' 0:0:"));
}

#[test]
fn threads_and_children_in_a_namespace_have_its_rights() {
    if !has_namespaces("threads in user namespaces") {
        return;
    }
    let seen = same_as_on_tmpfs(&format!("ME=0; {FILES}\nunshare -r python3 -u $KIT/in_threads.py"));
    assert_eq!(seen.matches("f Permission denied").count(), 3, "{seen}");
}

#[test]
fn a_namespace_is_entered_by_setns_and_by_bubblewrap() {
    if !has_namespaces("setns into user namespaces") {
        return;
    }
    let enter = |how: &str| {
        format!(
            "unshare -r sleep 1000 & sleeper=$!; until grep -q . /proc/$sleeper/uid_map && grep -q 'sleep' /proc/$sleeper/comm; do :; done; {how}; kill $sleeper"
        )
    };
    let acts = "id -u; cat f; chmod 644 f; stat -c '%u %n' f mine; : >new; chown 4321 mine";
    let script =
        format!("ME=0; {FILES}\n{}; stat -c '%u %n' new", enter(&format!("nsenter -U -t $sleeper sh -c \"{acts}\"")));
    let seen = same_as_on_tmpfs(&script);
    assert!(seen.contains("cat: f: Permission denied"), "{seen}");
    if can("bubblewrap", &["bwrap", "--dev-bind", "/", "/", "--unshare-user", "true"]) {
        let bwrap = "bwrap --dev-bind / / --unshare-all --uid 5 --gid 5 --chdir \"$PWD\"";
        let script = format!("ME=0; {FILES}\n{bwrap} sh -c \"{acts}\"; stat -c '%u %n' new");
        same_as_on_tmpfs(&script);
    }
}

/// Compiles a program of the kit into a directory; `None`: there is no compiler.
fn compiled(name: &str, more: &[&str], directory: &Path) -> Option<PathBuf> {
    let source = format!("{}/tests/run/kit/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let program = directory.join(name);
    match Command::new("cc").args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(source).args(more).status() {
        Ok(status) => status.success().then_some(program),
        Err(_) => {
            eprintln!("\n*** SKIPPED: there is no C compiler on this machine ***\n");
            None
        }
    }
}

#[test]
fn a_thread_that_changes_its_identity_alone_acts_alone_with_it() {
    if !can("threads with ids of their own", &["setpriv", "--reuid", "1234", "--clear-groups", "true"]) {
        return;
    }
    let directory = scratch();
    Command::new("chmod").arg("755").arg(directory.path()).status().unwrap();
    let Some(program) = compiled("thread_ids", &[], directory.path()) else { return };
    let seen = same_as_on_tmpfs(&program.display().to_string());
    for refused in ["setresuid-again: secret refused", "capset-child: secret read", "all-thread: secret refused"] {
        assert!(seen.contains(refused), "{refused}: {seen}");
    }
    assert!(seen.contains("setgroups: secret refused, shared read"), "{seen}");
}

#[test]
fn a_thread_has_no_directory_and_no_descriptors_of_its_own() {
    let directory = scratch();
    if !can("mount namespaces", &["unshare", "--mount", "--uts", "true"]) {
        return;
    }
    let image = image_in(directory.path());
    let alone = "CLONE_FS: done\nCLONE_FILES: done\nCLONE_NEWNS: done\nCLONE_NEWUTS: done\n";
    let refused = "CLONE_FS: Invalid argument\nCLONE_FILES: Invalid argument\nCLONE_NEWNS: Invalid argument\nCLONE_NEWUTS: done\n";
    let expected = format!("{alone}{refused}chdir 0\n/mnt/directfs/below\nclone: Invalid argument\n{alone}");
    for (options, namespace) in [(&[][..], ""), (&["-static"], ""), (&["-static"], "unshare -r")] {
        let Some(program) = compiled("thread_apart", options, directory.path()) else { return };
        let script = format!("mkdir -p below; {namespace} {}", program.display());
        let run = ["run", "-C", "/mnt/directfs", "--image", image.to_str().unwrap(), "--", "sh", "-c", &script];
        assert_eq!(stdout(&directfs(&run)), expected, "{options:?} {namespace}");
    }
}

#[test]
fn a_set_user_id_program_follows_one_rule_as_first_command_and_from_a_shell() {
    let user = ["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", "env"];
    if !can("set-user-ID programs", &[&user[..], &["true"]].concat()) {
        return;
    }
    let directory = scratch();
    let home = directory.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let script = "cp /usr/bin/id id; chmod 4755 id; chmod 755 .; cp \"$0\" directfs; chown 1234 home";
    let arguments = ["-c", script, env!("CARGO_BIN_EXE_directfs")];
    assert!(Command::new("sh").args(arguments).current_dir(directory.path()).status().unwrap().success());
    let [program, own] = ["id", "directfs"].map(|name| directory.path().join(name).display().to_string());
    let run = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(&user[1..]).arg(format!("HOME={}", home.display())).arg(&own).args(["run", "--"]).args(words);
        command.current_dir("/").output().unwrap()
    };
    for words in [&[program.as_str()][..], &[&program, "-u", "/mnt/directfs/x"], &[&program, "-u"]] {
        let first = run(words);
        let from_shell = run(&["sh", "-c", &words.join(" ")]);
        assert_eq!((stdout(&first), first.status.code()), (stdout(&from_shell), from_shell.status.code()), "{words:?}");
        let is_refused = words.len() == 3;
        assert_eq!(first.status.code(), Some(if is_refused { 126 } else { 0 }), "{}", stderr(&first));
        for output in [first, from_shell] {
            assert_eq!(stderr(&output).contains("set-user-ID"), is_refused, "{}", stderr(&output));
            assert!(is_refused || stdout(&output).starts_with('0') || stdout(&output).contains("euid=0"));
        }
    }
    let inside = run(&["sh", "-c", &format!("cd /mnt/directfs; {program}")]);
    assert_eq!(inside.status.code(), Some(126), "the working directory is in the mount");
}

/// The child's identity is not the parent's, which runs in the same memory.
#[test]
fn a_child_in_its_parents_memory_changes_its_own_identity_alone() {
    if !can("identity of a child in its parent's memory", &["setpriv", "--reuid", "1234", "true"]) {
        return;
    }
    let directory = scratch();
    let Some(program) = compiled("vfork_identity", &[], directory.path()) else { return };
    let output = directfs(&["run", "-C", "/mnt/directfs", "--", program.to_str().unwrap()]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("1234 0\n", ""));
}

#[test]
fn programs_of_a_process_whose_effective_ids_are_not_its_real_ones_work_in_the_mount() {
    if !can("other ids", &["sh", "-c", "test $(id -u) = 0 && python3 -c 'import os; os.seteuid(1234)'"]) {
        return;
    }
    let seen = same_as_on_tmpfs("python3 $KIT/secure_start.py");
    assert_eq!(seen.matches("inside").count(), 15, "{seen}");
}

/// Their loaders would ignore the library.
#[test]
fn a_run_by_two_users_at_once_is_refused() {
    if !can("other ids", &["sh", "-c", "test $(id -u) = 0 && which python3"]) {
        return;
    }
    let directory = scratch();
    for change in ["os.seteuid(1234)", "os.setegid(1234)", "os.setresuid(1234, 0, 0)", "os.setresgid(1234, 0, 0)"] {
        let code = format!("import os, sys; {change}; os.execv(sys.argv[1], sys.argv[1:])");
        let mut command = std::process::Command::new("python3");
        command.args(["-c", &code, env!("CARGO_BIN_EXE_directfs"), "run", "--", "sh", "-c", "echo >made"]);
        let output = command.current_dir(directory.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{change}: {}", stderr(&output));
        assert!(stderr(&output).contains("setpriv --reuid"), "{change}: {}", stderr(&output));
        assert!(!directory.path().join("made").exists(), "{change}");
    }
}
