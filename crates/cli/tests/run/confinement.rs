//! Programs that have nothing of the image attach at their first call that needs it, and before
//! they give up what attaching takes.

use crate::support::{directfs, image_in, scratch, stderr, stdout};
use std::process::Command;

#[test]
fn programs_that_confine_themselves_first_see_the_image_afterwards() {
    let directory = scratch();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/kit/confined.c");
    let program = directory.path().join("confined");
    let Ok(status) = Command::new("cc").args(["-O1", "-w", "-o"]).arg(&program).arg(source).status() else {
        eprintln!("\n*** SKIPPED: there is no C compiler on this machine ***\n");
        return;
    };
    assert!(status.success());
    let image = image_in(directory.path());
    // The shell has used the image; the programs that it starts inherit nothing of it.
    let script = r#"file=/mnt/directfs/file; : >"$file"
        for way in prctl seccomp prlimit setrlimit; do "$0" "$way" "$file"; done"#;
    let arguments = ["run", "--image", image.to_str().unwrap(), "--", "sh", "-c", script, program.to_str().unwrap()];
    let output = directfs(&arguments);
    assert_eq!(stderr(&output), "");
    assert_eq!(stdout(&output), "prctl: seen\nseccomp: seen\nprlimit: seen\nsetrlimit: seen\n");
}
