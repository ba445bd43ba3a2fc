//! C programs that use the library as its users do: found by pkg-config, linked with the shared and
//! the static one.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use tempfile::TempDir;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");
/// The most time that a program may take.
const LIMIT_SECONDS: &str = "600";

fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a scratch directory")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("\n*** SKIPPED: C programs are not tested: there is no {program} here ***\n");
    }
    found
}

/// Builds the libraries: `cargo test` itself builds none that no Rust program links. With the whole
/// workspace, and a test beside them, they have the features that `cargo test --workspace` gives
/// them: hardly anything is built again.
fn build_directory() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = std::env::current_exe().expect("the path of this test");
        let target = test.ancestors().nth(3).expect("the target directory").to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "--quiet", "--workspace", "--lib", "--test", "delay"]);
        cargo.arg("--target-dir").arg(&target);
        // With the variables that cargo sets for this test it would build much again.
        for (name, _) in std::env::vars_os() {
            if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                cargo.env_remove(name);
            }
        }
        let output = cargo.current_dir(CRATE).output().expect("cargo starts");
        assert!(output.status.success(), "{}", stderr(&output));
        let built = target.join("debug");
        // Another test binary may link at the same moment.
        let (shared, unfinished) = (built.join("libdirectfs.so"), built.join(format!("lib.{}.so", std::process::id())));
        let mut link = Command::new(Path::new(CRATE).join("link"));
        let output = link.arg(built.join("libdirectfs.a")).arg(&unfinished).output().expect("the script starts");
        assert!(output.status.success(), "{}", stderr(&output));
        std::fs::rename(&unfinished, &shared).expect("renames");
        built
    })
}

/// The files that a package installs, below a prefix of its own.
struct Installed(TempDir);

impl Installed {
    fn new() -> Installed {
        let (built, prefix) = (build_directory(), scratch());
        let [libraries, headers] = ["lib", "include"].map(|name| prefix.path().join(name));
        std::fs::create_dir_all(libraries.join("pkgconfig")).expect("creates");
        std::fs::create_dir(&headers).expect("creates");
        let versioned = concat!("libdirectfs.so.", env!("CARGO_PKG_VERSION"));
        symlink(built.join("libdirectfs.so"), libraries.join(versioned)).expect("links");
        symlink(versioned, libraries.join("libdirectfs.so.0")).expect("links");
        symlink("libdirectfs.so.0", libraries.join("libdirectfs.so")).expect("links");
        symlink(built.join("libdirectfs.a"), libraries.join("libdirectfs.a")).expect("links");
        symlink(Path::new(CRATE).join("include/directfs.h"), headers.join("directfs.h")).expect("links");
        let description = std::fs::read_to_string(Path::new(CRATE).join("directfs.pc")).expect("directfs.pc");
        let description = description.replace("prefix=/usr\n", &format!("prefix={}\n", prefix.path().display()));
        let description = description.replace("lib/x86_64-linux-gnu", "lib");
        let description = description.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
        std::fs::write(libraries.join("pkgconfig/directfs.pc"), description).expect("writes");
        Installed(prefix)
    }

    fn libraries(&self) -> PathBuf {
        self.0.path().join("lib")
    }

    /// Compiles a source with what pkg-config says.
    fn compile(&self, compiler: &[&str], source: &str, linked_static: bool) -> PathBuf {
        let mut ask = Command::new("pkg-config");
        ask.args(["--cflags", "--libs", "directfs"]).env("PKG_CONFIG_PATH", self.libraries().join("pkgconfig"));
        if linked_static {
            ask.arg("--static");
        }
        let answer = ask.output().expect("pkg-config starts");
        assert!(answer.status.success(), "{}", stderr(&answer));
        let flags = String::from_utf8(answer.stdout).expect("text");
        let flags = if linked_static { flags.replace("-ldirectfs", "-l:libdirectfs.a") } else { flags };
        let name = Path::new(source).file_stem().expect("a name").to_owned();
        let program = self.0.path().join(name);
        let mut command = Command::new(compiler[0]);
        command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
        let output =
            command.arg(Path::new(CRATE).join(source)).args(flags.split_whitespace()).output().expect("starts");
        assert!(output.status.success(), "{}", stderr(&output));
        program
    }

    /// Runs a program, which must succeed.
    fn run(&self, program: &Path, arguments: &[&Path]) -> String {
        let mut command = Command::new("timeout");
        command.arg(LIMIT_SECONDS).arg(program).args(arguments).env("LD_LIBRARY_PATH", self.libraries());
        let output = command.output().expect("timeout(1) starts");
        assert!(output.status.success(), "{}: {:?} {}", program.display(), output.status, stderr(&output));
        String::from_utf8(output.stdout).expect("text")
    }
}

fn can_compile() -> bool {
    has("cc") && has("pkg-config")
}

#[test]
fn the_example_runs_with_both_libraries() {
    if !can_compile() {
        return;
    }
    let installed = Installed::new();
    for linked_static in [false, true] {
        let program = installed.compile(&["cc", "-std=c11", "-pedantic"], "examples/spool.c", linked_static);
        let directory = scratch();
        let [image, copy] = ["mail.img", "copy.img"].map(|name| directory.path().join(name));
        assert_eq!(installed.run(&program, &[&image]), "100 messages, 2300 bytes\n");
        assert_eq!(installed.run(&program, &[&image, &copy]), "100 messages, 2300 bytes\n");
        assert_eq!(installed.run(&program, &[&copy]), "100 messages, 2300 bytes\n");
        // A mistake is answered with a sentence, not a crash.
        let output = Command::new(&program)
            .arg("/proc/version")
            .env("LD_LIBRARY_PATH", installed.libraries())
            .output()
            .expect("starts");
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).starts_with("spool: /proc/version: "), "{}", stderr(&output));
    }
}

#[test]
fn every_call_does_what_its_kin_in_the_c_library_does() {
    if !can_compile() {
        return;
    }
    let (installed, directory) = (Installed::new(), scratch());
    let program = installed.compile(&["cc", "-std=gnu11"], "tests/kit/calls.c", false);
    installed.run(&program, &[&directory.path().join("image"), &directory.path().join("snapshot")]);
}

#[test]
fn bad_input_is_refused_with_an_errno_and_a_message() {
    if !can_compile() {
        return;
    }
    let (installed, directory) = (Installed::new(), scratch());
    let program = installed.compile(&["cc", "-std=gnu11"], "tests/kit/refused.c", false);
    let foreign = directory.path().join("foreign");
    std::fs::write(&foreign, vec![7; 1 << 20]).expect("writes");
    installed.run(&program, &[&directory.path().join("image"), &foreign]);
}

#[test]
fn threads_and_processes_share_an_image() {
    if !can_compile() {
        return;
    }
    let (installed, directory) = (Installed::new(), scratch());
    let program = installed.compile(&["cc", "-std=gnu11"], "tests/kit/sharing.c", false);
    installed.run(&program, &[&directory.path().join("image")]);
}

#[test]
fn children_closed_standard_files_and_limits_do_an_image_no_harm() {
    if !can_compile() {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile(&["cc", "-std=gnu11"], "tests/kit/resources.c", false);
    for directory in [scratch(), tempfile::tempdir().expect("a directory on the disk")] {
        installed.run(&program, &[&directory.path().join("image"), &directory.path().join("snapshot")]);
    }
}

#[test]
fn the_header_suits_c_plus_plus() {
    if !can_compile() || !has("c++") {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile(&["c++", "-std=c++17"], "tests/kit/plus.cc", false);
    assert_eq!(installed.run(&program, &[]), concat!(env!("CARGO_PKG_VERSION"), " No such file or directory\n"));
}

#[test]
fn the_shared_library_has_a_versioned_name_and_only_its_own_symbols_each_with_a_version() {
    if !has("readelf") || !can_compile() {
        return;
    }
    let library = build_directory().join("libdirectfs.so");
    let read = |option: &str| {
        let output = Command::new("readelf").args(["-W", option]).arg(&library).output().expect("starts");
        String::from_utf8(output.stdout).expect("text")
    };
    assert!(read("--dynamic").contains("Library soname: [libdirectfs.so.0]"), "{}", read("--dynamic"));
    let symbols = read("--dyn-syms");
    let exported = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let exported = exported.filter(|words| words.len() == 8 && words[4] != "LOCAL" && words[6] != "UND");
    let exported: Vec<_> = exported.map(|words| words[7].to_owned()).filter(|name| *name != "Name").collect();
    assert!(exported.len() > 60, "{symbols}");
    // The version itself is a symbol, too.
    let is_right = |name: &&String| {
        name.strip_suffix("@@DIRECTFS_0.2").is_some_and(|name| name.starts_with("directfs_")) || *name == "DIRECTFS_0.2"
    };
    let strange: Vec<_> = exported.iter().filter(|name| !is_right(name)).collect();
    assert!(strange.is_empty(), "{strange:?}");
    let installed = Installed::new();
    let program = installed.compile(&["cc", "-std=c11"], "examples/spool.c", false);
    let output = Command::new("readelf").args(["-W", "--version-info"]).arg(program).output().expect("starts");
    assert!(String::from_utf8_lossy(&output.stdout).contains("Name: DIRECTFS_0.2"), "programs ask for the version");
}
