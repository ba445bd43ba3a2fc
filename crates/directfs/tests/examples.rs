//! The examples run and report what they should. `cargo test` builds them beside the tests.

use std::process::Command;

fn run(name: &str, arguments: &[&str]) -> String {
    let tests = std::env::current_exe().expect("the path of this test");
    let path = tests.ancestors().nth(2).expect("the build directory").join("examples").join(name);
    assert!(path.exists(), "{} is not built: `cargo test -p directfs` builds it", path.display());
    let output = Command::new(path).args(arguments).output().expect("starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn mail_spool() {
    let output = run("mail_spool", &[]);
    assert!(output.starts_with("20000 messages") && output.contains("closed: Clean"), "{output}");
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a scratch directory");
    let image = directory.path().join("mail.img");
    for _ in 0..2 {
        let output = run("mail_spool", &[image.to_str().expect("text")]);
        assert!(output.contains("closed: Clean"), "{output}");
    }
}

#[test]
fn index_tree() {
    let output = run("index_tree", &[concat!(env!("CARGO_MANIFEST_DIR"), "/src"), "directory"]);
    assert!(output.contains("'directory' occurs in") && output.contains("tree/read_dir.rs"), "{output}");
}

#[test]
fn share() {
    let output = run("share", &[]);
    assert!(output.contains("two processes counted to 20000") && output.contains("closed: Clean"), "{output}");
}

#[test]
fn backup() {
    let output = run("backup", &[]);
    let under_way = ["which 0 under way", "which 1 under way"];
    assert!(under_way.iter().any(|text| output.contains(text)) && output.contains("closed: Clean"), "{output}");
}
