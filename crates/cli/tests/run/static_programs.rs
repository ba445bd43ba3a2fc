//! Programs that cannot load the preload library, which it loads itself: static ones, those of
//! another C library, and in Go. They need neither /dev/fuse nor privileges.

use crate::fuse_programs::{as_nobody, assert_sees_the_image, compiled};
use crate::kit::with_new_build_id;
use crate::support::{copy_program, directfs, image_in, scratch, stderr, stdout, without_files};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program of the kit statically; none, with a message, if that fails.
fn kit(directory: &Path, name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/kit").join(name).with_extension("c");
    let binary = directory.join(name);
    let built = Command::new("cc").args(["-O1", "-w", "-pthread", "-static", "-o"]).arg(&binary).arg(source).output();
    if built.is_ok_and(|output| output.status.success()) {
        return Some(binary);
    }
    eprintln!("\n*** SKIPPED: no static program can be compiled here ***\n");
    None
}

#[test]
fn a_static_program_sees_the_image() {
    for option in ["-static", "-static-pie"] {
        let directory = scratch();
        if let Some(program) = compiled(directory.path(), &[option]) {
            assert_sees_the_image(directory.path(), &program, "");
        }
    }
}

/// Its C library reads the link to the program's file at the start: the image is not needed for
/// that.
#[test]
fn a_static_program_maps_the_image_once_it_has_something_of_it() {
    let directory = scratch();
    if kit(directory.path(), "show").is_none() {
        return;
    }
    let image = image_in(directory.path());
    // It waits at a FIFO, and the shell looks. Paths in /dev and /proc may be those of the image.
    let fifo = directory.path().join("fifo");
    assert!(Command::new("mkfifo").args(["-m", "600"]).arg(&fifo).status().unwrap().success());
    let run = |files: &str| {
        let waits = "while kill -0 $!; do grep -q 'show) S' /proc/$!/stat && break; done";
        let start = format!("cd {}; : >/mnt/directfs/file; ./show {files} fifo &", directory.path().display());
        let script = format!("{start} {waits}; cat /proc/$!/maps; kill $!");
        let output = directfs(&["run", "--image", image.to_str().unwrap(), "--", "sh", "-c", &script]);
        assert_eq!(stderr(&output), "");
        stdout(&output).lines().any(|line| line.ends_with(image.to_str().unwrap()))
    };
    assert!(!run(""), "nothing");
    assert!(run("/mnt/directfs/file"), "a path");
}

#[test]
fn a_program_of_another_c_library_sees_the_image() {
    let directory = scratch();
    // The usual loader under an unknown name counts as another loader, because only the name is
    // compared.
    let loader = directory.path().join("ld-other.so.1");
    let _ = copy_program("/lib64/ld-linux-x86-64.so.2", &loader);
    let option = format!("-Wl,--dynamic-linker={}", loader.display());
    if let Some(program) = compiled(directory.path(), &[&option]) {
        assert_sees_the_image(directory.path(), &program, "");
    }
}

/// The kernel would not find it. A program that was edited has its name behind the first page.
#[test]
fn a_program_with_its_interpreter_in_the_mount_sees_the_image() {
    for (name, is_edited) in [("ld-other.so.1", false), ("ld-linux-x86-64.so.2", false), ("ld-linux-x86-64.so.2", true)]
    {
        let directory = scratch();
        let option = format!("-Wl,--dynamic-linker=/mnt/directfs/{name}");
        if let Some(program) = compiled(directory.path(), &[&option]) {
            if is_edited {
                move_interpreter(&program);
            }
            let setup = format!("cp /lib64/ld-linux-x86-64.so.2 {name};");
            assert_sees_the_image(directory.path(), &program, &setup);
        }
    }
}

/// Puts the name of a program's interpreter at its end, as patchelf does with a longer one.
fn move_interpreter(program: &Path) {
    const PT_INTERP: u64 = 3;
    let mut bytes = fs::read(program).unwrap();
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let mut headers = (word(&bytes, 32) as usize..).step_by(56);
    let header = headers.find(|&header| word(&bytes, header) & 0xffff_ffff == PT_INTERP).unwrap();
    let (start, length) = (word(&bytes, header + 8) as usize, word(&bytes, header + 32) as usize);
    let end = bytes.len();
    assert!(end > 4096);
    bytes.extend_from_within(start..start + length);
    bytes[start..start + length].fill(b'x');
    bytes[header + 8..header + 16].copy_from_slice(&(end as u64).to_le_bytes());
    fs::write(program, bytes).unwrap();
}

/// Its calls are not analysed: the first program of the run has the machine's library.
#[test]
fn a_program_with_another_build_of_glibc_sees_the_image() {
    let directory = scratch();
    let own = directory.path().join("own");
    fs::create_dir(&own).unwrap();
    let (loader, library) = (own.join("ld-linux-x86-64.so.2"), own.join("libc.so.6"));
    let machine = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/usr/lib/libc.so.6"];
    let Some(bytes) = machine.iter().find_map(|path| fs::read(path).ok()) else {
        eprintln!("\n*** SKIPPED: the C library of this machine is in no usual place ***\n");
        return;
    };
    let _ = copy_program("/lib64/ld-linux-x86-64.so.2", &loader);
    fs::write(&library, with_new_build_id(bytes)).unwrap();
    let options = [format!("-Wl,--dynamic-linker={}", loader.display()), format!("-Wl,-rpath,{}", own.display())];
    if let Some(program) = compiled(directory.path(), &[&options[0], &options[1]]) {
        assert_sees_the_image(directory.path(), &program, "");
    }
}

#[test]
fn programs_for_musl_see_the_image() {
    let directory = scratch();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/kit/fuse_program.c");
    for option in ["-static", "-pie"] {
        let program = directory.path().join(format!("program{option}"));
        let built = Command::new("musl-gcc").args(["-O1", option, "-fPIE", "-o"]).arg(&program).arg(&source).output();
        if !built.is_ok_and(|output| output.status.success()) {
            eprintln!("\n*** SKIPPED: no program for musl can be compiled here with {option} ***\n");
            continue;
        }
        let place = directory.path().join(option);
        fs::create_dir(&place).unwrap();
        assert_sees_the_image(&place, &program, "");
        if option == "-pie" {
            let place = directory.path().join("edited");
            fs::create_dir(&place).unwrap();
            move_interpreter(&program);
            assert_sees_the_image(&place, &program, "");
        }
    }
}

/// Threads, signals and children of musl.
#[test]
fn programs_for_musl_do_what_they_do_on_tmpfs() {
    let directory = scratch();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/kit/static_program.c");
    for option in ["-static", "-pie"] {
        let program = directory.path().join("program");
        let mut compiler = Command::new("musl-gcc");
        compiler.args(["-O1", "-w", option, "-fPIE", "-o"]).arg(&program).arg(&source);
        if !compiler.output().is_ok_and(|output| output.status.success()) {
            eprintln!("\n*** SKIPPED: no program for musl can be compiled here with {option} ***\n");
            continue;
        }
        let (plain, name) = (directory.path().join(format!("plain{option}")), program.to_str().unwrap());
        fs::create_dir(&plain).unwrap();
        let wanted = Command::new("timeout").args(["600", name]).current_dir(&plain).output().unwrap();
        assert!(wanted.status.success(), "{}{}", stdout(&wanted), stderr(&wanted));
        let found = directfs(&["run", "-C", "/mnt/directfs", "--", "timeout", "600", name]);
        assert_eq!(stdout(&found), stdout(&wanted), "{option} {}", stderr(&found));
    }
}

#[test]
fn a_static_program_of_a_user_without_privileges_sees_the_image_without_the_device() {
    let directory = scratch();
    let Some(program) = compiled(directory.path(), &["-static"]) else { return };
    let arguments = ["-C", "/mnt/directfs", "--", program.to_str().unwrap()];
    let Some(output) = as_nobody(directory.path(), &arguments) else { return };
    assert_eq!(stdout(&output), "in directfs\nread \nby the outsider\n", "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(5));
    let mut hidden = without_files(&["/dev/fuse".into()]);
    hidden.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]).arg(directory.path().join("directfs"));
    hidden.arg("run").args(arguments).env("XDG_CACHE_HOME", directory.path().join("home")).current_dir("/");
    let output = hidden.output().unwrap();
    assert_eq!(stdout(&output), "in directfs\nread \nby the outsider\n", "{}", stderr(&output));
}

/// Execution needs the right to it, and one to read.
#[test]
fn a_static_program_without_the_right_to_execute_it_is_not_started() {
    let directory = scratch();
    let Some(program) = compiled(directory.path(), &["-static"]) else { return };
    let copy = directory.path().join("copy");
    assert!(copy_program(&program, &copy));
    let script = format!("chmod 644 {0}; {0}; echo $?; chmod 755 {0}", copy.display());
    let output = directfs(&["run", "--", "sh", "-c", &script]);
    assert_eq!(stdout(&output), "126\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("ermission denied"), "{}", stderr(&output));
}

#[test]
fn a_signal_handler_after_vfork_acts_for_the_parent_in_a_static_program() {
    let directory = scratch();
    let Some(program) = kit(directory.path(), "vfork_signals") else { return };
    let output = directfs(&["run", "--", program.to_str().unwrap(), "/mnt/directfs/file"]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("200\n", ""));
}

#[test]
fn many_threads_and_children_of_static_programs_use_the_file_system_at_once() {
    let directory = scratch();
    let Some(program) = kit(directory.path(), "limits") else { return };
    let program = program.to_str().unwrap();
    for (kind, count) in [("threads", "500"), ("children", "500")] {
        let run = directfs(&["run", "-C", "/mnt/directfs", "--", program, kind, count]);
        assert_eq!(stdout(&run), format!("{count} {kind} at once, 0 failed\n"), "{}", stderr(&run));
    }
}

/// Calls that are made again and again do not trap.
#[test]
fn hot_calls_of_a_static_program_are_replaced() {
    let directory = scratch();
    let Some(program) = kit(directory.path(), "hot_calls") else { return };
    let run = directfs(&["run", "-C", "/mnt/directfs", "--", program.to_str().unwrap()]);
    assert_eq!((stdout(&run).as_str(), run.status.code()), ("few traps\n", Some(0)), "{}", stderr(&run));
}

#[test]
fn library_paths_of_a_static_program_concern_its_children_only() {
    let directory = scratch();
    let (source, program) = (directory.path().join("show.c"), directory.path().join("show"));
    fs::write(&source, "#include <stdio.h>\n#include <stdlib.h>\nint main(void) { puts(getenv(\"LD_LIBRARY_PATH\")); puts(getenv(\"LD_PRELOAD\")); }").unwrap();
    let built = Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source).output();
    if !built.is_ok_and(|output| output.status.success()) {
        return;
    }
    fs::write(directory.path().join("libc.so.6"), "no library").unwrap();
    let place = directory.path().to_str().unwrap();
    let script = format!(
        "echo >/mnt/directfs/f; export LD_LIBRARY_PATH={place}; LD_PRELOAD={place}/libc.so.6 exec {place}/show /mnt/directfs/f"
    );
    let output = directfs(&["run", "--", "sh", "-c", &script]);
    assert_eq!((stdout(&output), stderr(&output)), (format!("{place}\n{place}/libc.so.6\n"), String::new()));
}

/// The kernel would start the interpreter of a registered format without the library, and finds no
/// program in the image.
#[test]
fn programs_of_registered_formats_are_started_by_their_interpreters() {
    let directory = scratch();
    let Some(emulator) = kit(directory.path(), "emulator") else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/kit/emulator.c");
    let dynamic = directory.path().join("dynamic");
    assert!(Command::new("cc").args(["-w", "-o"]).arg(&dynamic).arg(source).status().unwrap().success());
    let formats = "/proc/sys/fs/binfmt_misc";
    // Registrations of a user namespace of its own, since Linux 6.7.
    let register = format!(
        "mount -t binfmt_misc none {formats} && echo ':one:M::FORMAT1::{}:' >{formats}/register \
         && echo ':two:M:1:ORMAT2:\\xff\\xff\\xff\\xff\\xff\\xff:{}:' >{formats}/register \
         && echo ':three:E::third::{}:' >{formats}/register",
        emulator.display(),
        dynamic.display(),
        emulator.display()
    );
    let apart = |then: &str| {
        let script = format!("{register} && {then}");
        Command::new("timeout").args(["600", "unshare", "-Urm", "sh", "-c", &script]).output().unwrap()
    };
    if !apart("true").status.success() {
        eprintln!("\n*** SKIPPED: registered formats: {} ***\n", stderr(&apart("true")));
        return;
    }
    let host = directory.path().join("host");
    let make = "echo FORMAT1 >one; echo FORMAT2 >two; echo text >a.third; echo FORMAT3 >four; chmod 755 *; cp one denied; \
                chmod 644 denied; ./one 1 2; ./two 3; ./a.third; ./denied; ./four; cat made";
    fs::create_dir(&host).unwrap();
    fs::write(directory.path().join("script"), make).unwrap();
    let script = directory.path().join("script");
    let wanted = apart(&format!("cd {} && bash {} 2>/dev/null", host.display(), script.display()));
    let run = env!("CARGO_BIN_EXE_directfs");
    let found = apart(&format!("{run} run -C /mnt/directfs -- bash {} 2>/dev/null", script.display()));
    assert_eq!(stdout(&found), stdout(&wanted), "{}", stderr(&found));
    assert!(stdout(&found).starts_with("./one 1 2 FORMAT1\n./two 3 FORMAT2\n./a.third text\n"), "{}", stdout(&found));
    // A program of the machine, with a name in the image.
    let found = apart(&format!(
        "cd {} && {run} run -- sh -c 'cd $DIRECTFS_MOUNT; {}/one; cat made'",
        host.display(),
        host.display()
    ));
    assert!(stdout(&found).ends_with("/one FORMAT1\nmade\n"), "{}{}", stdout(&found), stderr(&found));
}
