//! System calls by instructions of libraries reach the image, whichever way a library is loaded.

use crate::kit::{compile, settle};
use crate::support::{directfs, scratch, stderr, stdout};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The library, and the program, linked with it or not.
fn compiled(directory: &Path, linked: bool) -> Option<(PathBuf, PathBuf)> {
    compiled_as("raw", directory, linked, &[])
}

/// `compiled` for a library of this name, with further arguments for the compiler.
fn compiled_as(name: &str, directory: &Path, linked: bool, arguments: &[&str]) -> Option<(PathBuf, PathBuf)> {
    let (library, program) = (directory.join(format!("lib{name}.so")), directory.join("program"));
    if !compile("raw_library", &library, &[&["-shared", "-fPIC"], arguments].concat()) {
        return None;
    }
    let (place, path) = (format!("-L{}", directory.display()), format!("-Wl,-rpath,{}", directory.display()));
    let name = format!("-l{name}");
    let options: &[&str] = if linked { &["-DLINKED", &place, &name, &path] } else { &["-ldl"] };
    compile("raw_program", &program, options).then_some((library, program))
}

fn run(arguments: &[&str]) -> Output {
    directfs(&[&["run", "--"], arguments].concat())
}

fn check(output: &Output) {
    assert_eq!((stdout(output).as_str(), stderr(output).as_str()), ("done\n", ""));
    assert!(output.status.success());
}

/// A record of an answer: the identity of the content; facts, with their checksum above.
fn record_of_library(preload: &Path, identity: [u64; 3], has_sites: bool) -> [u64; 4] {
    let build = u64::from(pmem::crc32c(0, preload.as_os_str().as_bytes()) & !0xff);
    let facts = build | 2 << 1 | u64::from(has_sites);
    let [first, second, third] = identity;
    let checksum = pmem::crc32c_words(&[first, second, third, facts], None);
    [first, second, third, u64::from(checksum) << 32 | facts]
}

/// A library is searched for calls once. A damaged answer counts as none.
#[test]
fn a_library_is_searched_again_only_if_it_has_changed() {
    let (directory, cache) = (scratch(), scratch());
    let Some((library, program)) = compiled(directory.path(), true) else { return };
    let answers = cache.path().join("directfs/answers.calls");
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["run", "--"]).arg(&program).arg("/mnt/directfs/file").env("XDG_CACHE_HOME", cache.path());
        command.output().unwrap()
    };
    let words = || -> Vec<u64> {
        let bytes = std::fs::read(&answers).unwrap();
        bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect()
    };
    let write = |words: &[u64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        std::fs::write(&answers, bytes).unwrap();
    };
    check(&run());
    let entries = std::fs::read_dir(cache.path().join("directfs")).unwrap().map(|entry| entry.unwrap().path());
    let preload = &*entries.into_iter().find(|path| path.extension().is_some_and(|end| end == "so")).unwrap();
    settle(&library);
    check(&run());
    let mut found = words();
    let records = || (0..found.len()).step_by(4).filter(|at| found[at + 3] & 7 == 5);
    let at = records().next().unwrap();
    assert_eq!(records().count(), 1, "the C library is not searched");
    let identity = [found[at], found[at + 1], found[at + 2]];
    assert_eq!(found[at..at + 4], record_of_library(preload, identity, true));
    // Without its checksum.
    found[at + 3] &= !1;
    write(&found);
    check(&run());
    assert!(words().chunks(4).any(|record| record == record_of_library(preload, identity, true)), "searched again");
    // With it: the library's calls go to the machine.
    found[at..at + 4].copy_from_slice(&record_of_library(preload, identity, false));
    write(&found);
    assert!(stdout(&run()).contains("wrong: "), "the answer is not read");
    // The content and the build-id are the old ones; the times say that it was written.
    std::fs::write(&library, std::fs::read(&library).unwrap()).unwrap();
    check(&run());
    // A file that others can write.
    std::fs::remove_file(&answers).unwrap();
    settle(&library);
    check(&run());
    let mut found = words();
    let at = (0..found.len()).step_by(4).find(|at| found[at + 3] & 7 == 5).unwrap();
    let identity = [found[at], found[at + 1], found[at + 2]];
    found[at..at + 4].copy_from_slice(&record_of_library(preload, identity, false));
    write(&found);
    std::fs::set_permissions(&answers, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    check(&run());
}

/// A build can pin it, and a file that is patched keeps it.
#[test]
fn a_program_with_the_build_id_of_another_one_is_not_taken_for_it() {
    let (directory, cache) = (scratch(), scratch());
    let path = |name: &str| directory.path().join(name);
    const PINNED: &str = "-Wl,--build-id=0x1111111111111111111111111111111111111111";
    if !compile("pinned", &path("silent"), &[PINNED]) || !compile("pinned", &path("calling"), &[PINNED, "-DCALLS"]) {
        return;
    }
    settle(&path("calling"));
    let mount = path("mount");
    std::fs::create_dir(&mount).unwrap();
    let run = |script: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["run", "--at", mount.to_str().unwrap(), "--", "sh", "-c", script]);
        command.current_dir(directory.path()).env("XDG_CACHE_HOME", cache.path()).output().unwrap()
    };
    assert!(run("./silent && ./silent").status.success());
    let output = run("./calling mount/file && ./calling mount/file; echo $?; cat mount/file");
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("0\ninline", ""));
    assert!(!mount.join("file").exists(), "the calls went to the machine's own files");
}

/// Its calls would go to the machine's own files. Linux before 5.11 has no such redirection.
#[test]
fn a_program_whose_calls_the_kernel_cannot_redirect_is_refused() {
    let directory = scratch();
    let path = |name: &str| directory.path().join(name);
    if !compile("no_dispatch", &path("no_dispatch"), &[]) || !compile("pinned", &path("calling"), &["-DCALLS"]) {
        return;
    }
    let mut command = Command::new(path("no_dispatch"));
    command.arg(env!("CARGO_BIN_EXE_directfs")).args(["run", "--", "sh", "-c"]);
    let output = command.arg("cat /dev/null; ./calling file; echo $?").current_dir(directory.path()).output().unwrap();
    if output.status.code() == Some(77) {
        eprintln!("\n*** SKIPPED: this kernel has no seccomp filters ***\n");
        return;
    }
    assert_eq!(stdout(&output), "126\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("Syscall User Dispatch"), "{}", stderr(&output));
    assert!(!path("file").exists());
}

/// The code that processes share is that of one content.
#[test]
fn a_patched_c_library_with_its_old_build_id_is_the_one_that_runs() {
    let (directory, cache) = (scratch(), scratch());
    let path = |name: &str| directory.path().join(name);
    let Ok(mut bytes) = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6") else {
        eprintln!("\n*** SKIPPED: the C library is elsewhere ***\n");
        return;
    };
    // abs: mov eax, edi; neg eax; cmovs eax, edi; ret
    const USUAL: [u8; 8] = [0x89, 0xf8, 0xf7, 0xd8, 0x0f, 0x48, 0xc7, 0xc3];
    // mov eax, 42; ret
    const PATCHED: [u8; 8] = [0xb8, 42, 0, 0, 0, 0xc3, 0x90, 0x90];
    let Some(at) = bytes.windows(USUAL.len()).position(|part| part == USUAL) else {
        eprintln!("\n*** SKIPPED: this C library's abs has other instructions ***\n");
        return;
    };
    if !compile("absolute", &path("absolute"), &[]) {
        return;
    }
    for name in ["usual", "patched"] {
        std::fs::create_dir(path(name)).unwrap();
        std::fs::write(path(name).join("libc.so.6"), &bytes).unwrap();
        bytes[at..at + PATCHED.len()].copy_from_slice(&PATCHED);
    }
    settle(&path("patched/libc.so.6"));
    for (name, wanted) in [("usual", "1\n"), ("patched", "42\n")] {
        let mut command = Command::new(path("absolute"));
        let found = command.env("LD_LIBRARY_PATH", path(name)).output().unwrap();
        assert_eq!(stdout(&found), wanted, "alone");
    }
    let script = "for name in usual usual patched patched usual; do LD_LIBRARY_PATH=$PWD/$name ./absolute; done";
    let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
    command.args(["run", "--", "sh", "-c", script]).current_dir(directory.path());
    let output = command.env("XDG_CACHE_HOME", cache.path()).output().unwrap();
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("1\n1\n42\n42\n1\n", ""));
}

/// Open, read, unlink; threads, signal handlers, faults, bad pointers, children.
#[test]
fn calls_of_a_linked_library_are_served() {
    let directory = scratch();
    let Some((_, program)) = compiled(directory.path(), true) else { return };
    check(&run(&[program.to_str().unwrap(), "/mnt/directfs/file"]));
}

/// The child of its posix_spawn, which has its parent's memory, resets the signal of the traps.
#[test]
fn a_second_c_library_opens_files_and_starts_programs() {
    let directory = scratch();
    let program = directory.path().join("second_libc");
    if !compile("second_libc", &program, &["-ldl"]) {
        return;
    }
    let output = run(&[program.to_str().unwrap(), "/mnt/directfs/file"]);
    assert_eq!(
        (stdout(&output).as_str(), output.status.code()),
        ("/mnt/directfs/file\n", Some(0)),
        "{}",
        stderr(&output)
    );
}

/// Each of them traps, and gets a place of its own.
#[test]
fn a_program_with_hundreds_of_inline_calls_is_served() {
    const CALLS: usize = 900;
    let directory = scratch();
    let (source, program) = (directory.path().join("many.c"), directory.path().join("many"));
    let call = |index: usize| {
        format!(
            "__attribute__((noinline)) long f{index}(const char *path) {{ long result; \
             __asm__ volatile(\"syscall\" : \"=a\"(result) : \"a\"(21L), \"D\"(path), \"S\"(0L) : \"rcx\", \"r11\", \"memory\"); \
             return result + {index}; }}\n"
        )
    };
    let used = |index: usize| format!("if (f{index}(arguments[1]) != {index}) return {};\n", 1 + index % 100);
    let calls: String = (0..CALLS).map(call).chain(["int main(int count, char **arguments) {\n".to_owned()]).collect();
    let body: String = (0..CALLS).map(used).collect();
    std::fs::write(&source, format!("{calls}{body}return 0; }}\n")).unwrap();
    let compiler = std::process::Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(&source).status();
    let Ok(status) = compiler else {
        eprintln!("\n*** SKIPPED: there is no C compiler on this machine ***\n");
        return;
    };
    assert!(status.success());
    let script = format!("echo > /mnt/directfs/file && {} /mnt/directfs/file; echo $?", program.display());
    let output = run(&["sh", "-c", &script]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("0\n", ""));
}

/// It has no table of its calls, unlike the C library's own libraries.
#[test]
fn a_library_whose_name_begins_like_one_of_the_c_library_is_a_usual_one() {
    for name in ["pthreadpool", "c-2d", "pthread_workqueue"] {
        let directory = scratch();
        let Some((_, program)) = compiled_as(name, directory.path(), true, &[]) else { return };
        check(&run(&[program.to_str().unwrap(), "/mnt/directfs/file"]));
    }
}

/// Also when it is unloaded and loaded again, more often than there are slots.
#[test]
fn calls_of_a_library_that_is_loaded_later_are_served() {
    let directory = scratch();
    let Some((library, program)) = compiled(directory.path(), false) else { return };
    let (library, program) = (library.to_str().unwrap(), program.to_str().unwrap());
    check(&run(&[program, "/mnt/directfs/file", library]));
    let script = format!("cp {library} /mnt/directfs/l.so && {program} /mnt/directfs/file /mnt/directfs/l.so");
    check(&run(&["sh", "-c", &script]));
}

/// Each edit of a library can add one.
#[test]
fn calls_of_a_library_with_many_segments_are_served() {
    const SEGMENTS: usize = 50;
    let sources = scratch();
    let source = sources.path().join("sections.s");
    let mut text = String::from(".section .note.GNU-stack,\"\"\n");
    let mut arguments = vec![source.display().to_string()];
    for index in 1..=SEGMENTS {
        text += &format!(".section apart{index},\"a\"\n.quad 1\n");
        arguments.push(format!("-Wl,--section-start=apart{index}={:#x}", index << 24));
    }
    std::fs::write(&source, text).unwrap();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    for linked in [true, false] {
        let directory = scratch();
        let Some((library, program)) = compiled_as("raw", directory.path(), linked, &arguments) else { return };
        let (library, program) = (library.to_str().unwrap(), program.to_str().unwrap());
        let words = [program, "/mnt/directfs/file", library];
        check(&run(if linked { &words[..2] } else { &words }));
    }
}

/// The trap is an instruction that ends other programs.
#[test]
fn an_instruction_of_the_kernel_still_ends_a_program() {
    let directory = scratch();
    let Some((library, program)) = compiled(directory.path(), false) else { return };
    let script = format!("{} /mnt/directfs/file {} end; echo $?", program.display(), library.display());
    assert_eq!(stdout(&run(&["sh", "-c", &script])), "done\n139\n");
}

/// A runtime that makes all its calls itself.
#[test]
fn a_go_library_in_a_python_program_sees_the_mount() {
    let directory = scratch();
    let (source, library) = (directory.path().join("l.go"), directory.path().join("l.so"));
    let text = "package main\nimport \"C\"\nimport \"os\"\n\n//export Count\nfunc Count(p *C.char) C.int {\n\
        results := make(chan int)\n\
        for i := 0; i < 8; i++ { go func() { b, _ := os.ReadFile(C.GoString(p)); results <- len(b) }() }\n\
        sum := 0\nfor i := 0; i < 8; i++ { sum += <-results }\nreturn C.int(sum)\n}\n\nfunc main() {}\n";
    std::fs::write(&source, text).unwrap();
    let path = format!("{}:/usr/local/go/bin", std::env::var("PATH").unwrap());
    let mut go = Command::new("sh");
    go.args(["-c", "go build -buildmode=c-shared -o l.so l.go"]).current_dir(directory.path());
    go.env("PATH", path).env("GOCACHE", directory.path().join("cache")).env("GO111MODULE", "off");
    let built = go.output().unwrap();
    if !built.status.success() || Command::new("python3").arg("-V").output().is_err() {
        eprintln!("\n*** SKIPPED: Go or Python is missing: {} ***\n", stderr(&built));
        return;
    }
    let script = "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); open('/mnt/directfs/f', 'w').write('hello'); \
        print([l.Count(b'/mnt/directfs/f') for _ in range(50)] == [40] * 50)";
    let output = run(&["python3", "-c", script, library.to_str().unwrap()]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("True\n", ""));
}

/// liburing makes its calls itself, and its ring serves files of the image.
#[test]
fn a_ring_of_its_own_library_serves_files() {
    let directory = scratch();
    let program = directory.path().join("ring");
    if !Path::new("/usr/include/liburing.h").exists() || !compile("ring", &program, &["-luring"]) {
        eprintln!("\n*** SKIPPED: liburing's headers are not on this machine ***\n");
        return;
    }
    let output = directfs(&["run", "-C", "/mnt/directfs", "--", program.to_str().unwrap()]);
    assert_eq!(stdout(&output), "2 7 7 written\n", "{}", stderr(&output));
}

/// In the program itself, and in a library that it is linked with.
#[test]
fn calls_that_are_made_again_and_again_do_not_trap() {
    let directory = scratch();
    let place = |name: &str| directory.path().join(name);
    let (alone, library, linked) = (place("alone"), place("libhot.so"), place("linked"));
    if !compile("hot_inline", &alone, &["-O2"]) {
        return;
    }
    assert!(compile("hot_inline", &library, &["-O2", "-shared", "-fPIC", "-DLIBRARY"]));
    let (search, path) =
        (format!("-L{}", directory.path().display()), format!("-Wl,-rpath,{}", directory.path().display()));
    assert!(compile("hot_inline", &linked, &["-O2", "-DPROGRAM", &search, "-lhot", &path]));
    for program in [alone, linked] {
        let output = directfs(&["run", "-C", "/mnt/directfs", "--", program.to_str().unwrap()]);
        assert_eq!((stdout(&output).as_str(), output.status.code()), ("few traps\n", Some(0)), "{}", stderr(&output));
    }
}
