//! Death at any instruction: processes perform random operations on the same files, and one of them
//! is killed every few milliseconds.

use crate::kit::{compile, compiled};
use crate::support::{directfs, image_in, scratch, stderr, stdout};

const WORKERS: &str = "8";

fn storm(kills: u32, seed: u64, left_cleanly: bool, options: &[&str]) {
    let directory = scratch();
    let binary = directory.path().join("storm");
    if !compile("storm", &binary, options) {
        return;
    }
    let image = directory.path().join("image");
    let image = image.to_str().unwrap();
    assert!(directfs(&["mkfs", image, "--size", "2G", "--sparse"]).status.success());
    eprintln!("seed {seed}");
    let (kills, seed) = (kills.to_string(), seed.to_string());
    let run = ["run", "--image", image, "-C", "/mnt/directfs", "--"];
    let output = directfs(&[&run[..], &[binary.to_str().unwrap(), WORKERS, &kills, &seed]].concat());
    eprintln!("{}", stdout(&output));
    assert!(output.status.success(), "{}", stderr(&output));
    if left_cleanly {
        assert_sound(image);
    }
    let emptied = directfs(&[&run[..], &["find", ".", "-mindepth", "1", "-delete"]].concat());
    assert!(emptied.status.success(), "{}", stderr(&emptied));
    assert_sound(image);
    let info = directfs(&["info", image, "--json"]);
    let inodes_free = |info: &str| -> u64 {
        let value = info.lines().find_map(|line| line.trim().strip_prefix("\"inodes_free\":")).unwrap();
        value.trim().trim_end_matches(',').parse().unwrap()
    };
    let fresh = directory.path().join("fresh");
    let fresh = fresh.to_str().unwrap();
    assert!(directfs(&["mkfs", fresh, "--size", "2G", "--sparse"]).status.success());
    let fresh_info = directfs(&["info", fresh, "--json"]);
    assert_eq!(inodes_free(&stdout(&info)), inodes_free(&stdout(&fresh_info)), "inodes are leaked");
}

fn assert_sound(image: &str) {
    let check = directfs(&["fsck", "-n", image]);
    assert_eq!(check.status.code(), Some(0), "{}{}", stdout(&check), stderr(&check));
    assert!(stdout(&check).contains("left cleanly;"), "{}", stdout(&check));
    assert!(stdout(&check).contains("0 errors, 0 warnings"), "{}", stdout(&check));
}

/// After deaths inside operations the next process that opens the image recovers it.
#[test]
fn killed_processes_damage_neither_the_others_nor_the_image() {
    storm(40, 1, false, &[]);
}

#[test]
fn killed_static_processes_damage_neither_the_others_nor_the_image() {
    storm(40, 3, false, &["-static"]);
}

/// Without recovery at wait, about one of 1000 deaths shows the parent a half-done operation.
#[test]
fn what_a_killed_process_was_doing_is_over_when_its_parent_has_waited_for_it() {
    let directory = scratch();
    let Some(binary) = compiled("ended", directory.path()) else { return };
    const SEED: &str = "1";
    eprintln!("seed {SEED}");
    let output = directfs(&["run", "-C", "/mnt/directfs", "--", binary.to_str().unwrap(), "100", SEED]);
    eprintln!("{}", stdout(&output));
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
}

#[test]
fn a_store_over_an_end_of_a_region_ends_the_program_and_leaves_the_image_sound() {
    let memory = scratch();
    let disk = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(program) = compiled("over_the_end", memory.path()) else { return };
    for directory in [&memory, &disk] {
        let image = image_in(directory.path());
        let image = image.to_str().unwrap();
        let script = r#"seq 20000 >file && "$0" && seq 20000 | cmp - file"#;
        let run = ["run", "--image", image, "-C", "/mnt/directfs", "--", "sh", "-c", script];
        let output = directfs(&[&run[..], &[program.to_str().unwrap()]].concat());
        assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("regions\n", ""), "{image}");
        assert_sound(image);
    }
}

/// Long: run it with `--ignored`.
#[test]
#[ignore = "takes minutes"]
fn thousands_of_kills_leave_nothing_to_recover() {
    storm(2000, 2, true, &[]);
    storm(2000, 4, true, &["-static"]);
}
