//! The programs in C of `kit/`.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Compiles a program of the kit, `NAME.c`, into a directory. `None`, with a message: there is no
/// compiler on this machine.
pub fn compiled(name: &str, directory: &Path) -> Option<PathBuf> {
    let program = directory.join(name);
    compile(name, &program, &[]).then_some(program)
}

/// Compiles a source of the kit with further arguments for the compiler. `false`, with a message:
/// there is none on this machine.
pub fn compile(name: &str, into: &Path, arguments: &[&str]) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/kit").join(name).with_extension("c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-w", "-pthread", "-o"]).arg(into).arg(source).args(arguments);
    let Ok(status) = compiler.status() else {
        eprintln!("\n*** SKIPPED: {name}: there is no C compiler on this machine ***\n");
        return false;
    };
    assert!(status.success(), "{name} does not compile");
    true
}

/// A program's or library's file with a build-id that no other has. The analysis of a library is
/// kept by its build-id, for later runs and other tests.
pub fn with_new_build_id(mut file: Vec<u8>) -> Vec<u8> {
    const NOTE: &[u8] = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    let note = file.windows(NOTE.len()).position(|part| part == NOTE).expect("it has a build-id");
    let random = RandomState::new().hash_one(std::process::id());
    file[note + NOTE.len()..][..8].copy_from_slice(&random.to_ne_bytes());
    file
}

/// Waits until the last change of a file is some time ago: before, nothing is kept about it.
pub fn settle(path: &Path) {
    const SETTLED: Duration = Duration::from_millis(2500);
    let changed = std::fs::metadata(path).unwrap().ctime();
    let is_settled = || {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        now > Duration::from_secs(changed as u64 + 1) + SETTLED
    };
    while !is_settled() {
        std::thread::sleep(Duration::from_millis(50));
    }
}
