//! Commands with few addresses (`ulimit -v`), and with a small stack (`ulimit -s`).

use crate::support::{copy_into, directfs, image_in, scratch, stderr};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

fn limited(kib: u64, words: &[&str]) -> Output {
    under(&format!("-v {kib}"), words)
}

fn under(limit: &str, words: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limit}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_directfs")]).args(words);
    command.output().unwrap()
}

#[test]
fn commands_for_which_the_stack_does_not_suffice_end_with_a_remedy() {
    for (words, code) in [(&["--version"][..], 1), (&["info", "image"], 1), (&["run", "--", "true"], 125)] {
        let output = under("-s 64", words);
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        assert!(stderr(&output).contains("`ulimit -s`"), "{words:?}: {}", stderr(&output));
    }
    assert!(under("-s 384", &["run", "--", "true"]).status.success());
}

#[test]
fn commands_for_which_memory_does_not_suffice_end_with_a_remedy() {
    let directory = scratch();
    let image = image_in(directory.path());
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let mut number = 1u64;
    let mut random = || {
        number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (number >> 56) as u8
    };
    fs::write(tree.join("content"), (0..6 << 20).map(|_| random()).collect::<Vec<_>>()).unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (image, url, new) = (image.to_str().unwrap(), format!("file://{}", place("store")), place("new"));
    assert!(copy_into(image, &tree).status.success());
    assert!(directfs(&["push", image, &url]).status.success());
    // Below that the kernel ends the program at its start.
    let starts = |kib: &u64| limited(*kib, &["--version"]).status.success();
    let least = (10_000..).step_by(5_000).find(starts).unwrap();
    let mut refused = 0;
    for kib in (0..7).map(|step| least + step * 20_000) {
        let commands: [&[&str]; 9] = [
            &["pull", &url, &new],
            &["push", image, &url],
            &["export", image],
            &["fsck", "-n", image],
            &["info", image],
            &["run", "--image", image, "--", "true"],
            &["mkfs", &new, "--size", "64M"],
            &["snapshot", image, &new],
            &["store", "list", &url],
        ];
        for words in commands {
            let output = limited(kib, words);
            let said = stderr(&output);
            assert_eq!(output.status.signal(), None, "{kib} {words:?}: {said}");
            assert!(output.status.success() || said.starts_with("error: "), "{kib} {words:?}: {said}");
            assert!(!said.contains("panicked"), "{kib} {words:?}: {said}");
            refused += u32::from(said.contains("ulimit -v"));
            let _ = fs::remove_file(&new);
        }
    }
    assert!(refused > 0, "memory always sufficed");
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}
