//! Programs with a file system inside them get the same results as on any other file system.

use hook::handoff::HandoffRecord;
use image::{Handoff, Image, MakeOptions, OpenImage};
use launcher::launch::{self, Serving};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const MOUNT: &str = "/mnt/directfs-test";

/// A file system in memory, for the life of this value.
struct FileSystem {
    image: (OwnedFd, u64),
    region: (OwnedFd, u64),
    placeholder: OwnedFd,
    meeting: OwnedFd,
    _handoff: Handoff,
    /// Held while the file system is in use.
    _image: Image,
}

impl FileSystem {
    fn new() -> FileSystem {
        let make = MakeOptions { length: 64 << 20, ..MakeOptions::default() };
        let image = Image::in_memory(&make, &OpenImage::default()).unwrap();
        let handoff = image.hand_off().unwrap();
        let handed = |(fd, bytes)| (launch::high_duplicate(&fd).unwrap(), bytes);
        let (image_fd, region) = (handed(handoff.image()), handed(handoff.region()));
        let placeholder = launch::placeholder().unwrap();
        let meeting = launch::high_duplicate(&handoff.meeting()).unwrap();
        FileSystem { _image: image, _handoff: handoff, image: image_fd, region, placeholder, meeting }
    }

    fn command(&self, program: &Path) -> Command {
        let handoff = HandoffRecord {
            apparmor: false,
            image: self.image.0.as_raw_fd(),
            image_bytes: self.image.1,
            region: self.region.0.as_raw_fd(),
            region_bytes: self.region.1,
            placeholder: self.placeholder.as_raw_fd(),
            meeting: self.meeting.as_raw_fd(),
            cached_files_max: 0,
            read_only: false,
            image_read_only: false,
            flushes: false,
            in_place: false,
            memory_errors: false,
            journal: 0,
            processor: pmem::features(),
        };
        let mut command = launch::command(program.as_os_str(), None).unwrap();
        let start = Some(Path::new("/"));
        Serving { handoff, mount: Path::new(MOUNT), start, binary: None }.apply(&mut command);
        command
    }
}

/// Builds one of the programs beside this file; `None` if there is no compiler.
fn program(scratch: &Path, name: &str) -> Option<PathBuf> {
    let source = format!("{}/tests/programs/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let binary = scratch.join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-w", "-pthread", "-o"]).arg(&binary).arg(source);
    match compiler.status() {
        Ok(status) => {
            assert!(status.success());
            Some(binary)
        }
        Err(_) => {
            eprintln!("SKIPPED: there is no C compiler on this machine");
            None
        }
    }
}

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// The output of a program that exits successfully.
fn expect_output(output: Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{:?}: {}{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// The output of a program in a directory of the host, and in the mount. Its arguments are the
/// directory and its own file. `None` without a C compiler.
fn output_in_both(name: &str) -> Option<(String, String)> {
    let scratch = tempfile::tempdir().unwrap();
    let program = program(scratch.path(), name)?;
    let there = scratch.path().join("there");
    std::fs::create_dir(&there).unwrap();
    let expected = expect_output(output(Command::new(&program).arg(&there).arg(&program)));
    let system = FileSystem::new();
    let served = expect_output(output(system.command(&program).arg(MOUNT).arg(&program)));
    Some((expected, served))
}

/// Every call of tests/programs/files.c gives the same result as in a directory of the host: names,
/// descriptors, mappings, children, sockets.
#[test]
fn calls_give_what_they_give_elsewhere() {
    let Some((expected, served)) = output_in_both("files") else { return };
    for (expected, served) in expected.lines().zip(served.lines()) {
        // Inode numbers and sizes of directories differ between file systems; nothing else does.
        assert_eq!(expected, served);
    }
    assert_eq!(expected.lines().count(), served.lines().count());
}

/// Every descriptor gets the same number as elsewhere, whichever side serves its neighbours; and a
/// free number is not usable.
#[test]
fn numbers_of_descriptors_are_the_lowest_that_are_free() {
    let Some((expected, served)) = output_in_both("fd_numbers") else { return };
    for (line, (expected, served)) in expected.lines().zip(served.lines()).enumerate() {
        assert_eq!(expected, served, "line {line}");
    }
    assert_eq!(expected.lines().count(), served.lines().count());
}

/// Numbers of the host among those of the image are asked for once: after that, opening and closing
/// beside them needs no kernel call for a number. The program forbids itself such calls, so that
/// one would end it.
#[test]
fn numbers_of_the_kernel_are_known_after_one_question() {
    let Some((expected, served)) = output_in_both("concurrent_calls") else { return };
    assert_eq!(served, expected);
    assert!(expected.contains("known: 3 6"), "{expected}");
}

/// Stores into a mapping appear in the file's times when the mapping ends, however it ends, and at
/// msync; times that are set later persist. The next user detects that a process was killed.
#[test]
fn what_is_stored_into_a_mapping_changes_the_times() {
    let Some((expected, served)) = output_in_both("stored") else { return };
    assert_eq!(served, expected);
}

/// Threads keep a reference to their last directory. No thread keeps a removed directory, and
/// children release their own references.
#[test]
fn removed_directories_that_a_thread_cached_are_released() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(kept) = program(scratch.path(), "cached_directories") else { return };
    let system = FileSystem::new();
    let result = expect_output(output(system.command(&kept).arg(MOUNT)));
    assert_eq!(result.matches("nothing kept").count(), 6, "{result}");
}

/// Handlers that perform their own calls, on the same names, thousands of times; that leave by a
/// jump; and that end a wait.
#[test]
fn handlers_of_signals_may_make_any_call() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(signals) = program(scratch.path(), "signals") else { return };
    let expected = expect_output(output(Command::new(&signals).current_dir(scratch.path())));
    let system = FileSystem::new();
    assert_eq!(expect_output(output(&mut system.command(&signals))), expected);
}

/// A handler's data on an alternate stack stays intact, also while it performs calls and further
/// signals use that stack.
#[test]
fn handlers_on_a_stack_of_their_own_keep_it() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(alternate) = program(scratch.path(), "alternate") else { return };
    let expected = expect_output(output(Command::new(&alternate).current_dir(scratch.path())));
    let system = FileSystem::new();
    assert_eq!(expect_output(output(&mut system.command(&alternate))), expected);
}

/// Inline syscalls of a program, at any place.
#[test]
fn calls_that_bypass_the_c_library_are_served() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(strays) = program(scratch.path(), "inline_syscalls") else { return };
    let whole = |output: Output| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (result, said) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(7), "{:?} {result}{said}", output.status);
        result
    };
    let expected = whole(output(Command::new(&strays).current_dir(scratch.path())));
    let system = FileSystem::new();
    assert_eq!(whole(output(&mut system.command(&strays))), expected);
}

/// Paths that lead into the mount from outside, and out of it, in all forms.
#[test]
fn paths_lead_into_the_mount_and_out() {
    let system = FileSystem::new();
    let script = r#"
        M=$DIRECTFS_MOUNT; set -e
        echo inside > file; cat $M/file /$M//./file $M/../directfs-test/file
        cd ..; test "$PWD" = /mnt; cat directfs-test/file ./directfs-test/file
        cd /; cat .$M/file ${M#/}/file; cd /tmp; cat ../$M/file ..$M/file
        cd $M; test ! -e ../file; cat ../directfs-test/file; ls -d ../../etc; mkdir -p $M/a/b; cd a/b; pwd; cat ../../file
        env -i /bin/cat $M/file; env -i /bin/sh -c "cat $M/file; /bin/pwd"
        exec 7< $M/file; test "$(readlink /proc/self/fd/7)" = $M/file; readlink /proc/self/cwd; cat <&7; cat /proc/self/fd/7 </dev/null
    "#;
    let result = expect_output(output(system.command(Path::new("sh")).args(["-c", script])));
    let inside = result.lines().filter(|line| *line == "inside").count();
    assert_eq!(inside, 15, "{result}");
    assert!(result.contains(&format!("{MOUNT}/a/b\n")) && result.contains("/etc"), "{result}");
    assert!(!Path::new("/mnt/directfs-test").exists(), "nothing is made on the machine itself");
}

/// The descriptors that the library needs are hidden from the program.
#[test]
fn descriptors_of_the_library_stay() {
    let system = FileSystem::new();
    let script = r#"
        import os
        open("kept", "w").write("kept")
        os.closerange(3, 4096)
        print(open("kept").read())
        # Numbers that the library has, and hides.
        held = range(1000, 1010)
        seen = [fd for fd in held if os.path.islink("/proc/self/fd/%d" % fd)]
        fd = os.open("kept", os.O_RDONLY)
        for other in held: os.dup2(fd, other)
        print(seen, os.read(held[-1], 10), os.popen("cat kept").read())
    "#;
    let script: String =
        script.lines().map(|line| format!("{}\n", line.strip_prefix("        ").unwrap_or(""))).collect();
    if Command::new("python3").arg("-V").output().is_err() {
        eprintln!("SKIPPED: python3 is not on this machine");
        return;
    }
    let result = expect_output(output(system.command(Path::new("/usr/bin/python3")).args(["-c", &script])));
    assert_eq!(result, "kept\n[] b'kept' kept\n");
}

/// A program that the library cannot be in is not started with an argument in the mount: here it
/// lies at a far address, as one that arranges the memory of its process.
#[test]
fn a_program_that_would_not_see_the_mount_is_not_started() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("s.c");
    std::fs::write(&source, "int main(void) { return 3; }").unwrap();
    let binary = scratch.path().join("s");
    let far = ["-static", "-no-pie", "-Wl,-Ttext-segment=0x58000000", "-o"];
    let built = Command::new("cc").args(far).arg(&binary).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: there is no C compiler on this machine");
        return;
    }
    let system = FileSystem::new();
    let script = format!("cd /; {0}; echo $?; {0} {MOUNT}/x; echo $?; cd {MOUNT}; {0}; echo $?", binary.display());
    let output = output(system.command(Path::new("sh")).args(["-c", &script]));
    let (result, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(result, "3\n126\n126\n", "{said}");
    assert!(said.contains("a static program, which cannot use"), "{said}");
}
