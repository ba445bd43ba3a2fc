//! Mounts of processes that may not start as many threads as they want.

use crate::common::{Mounted, can_mount};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// For the process that serves: the image, and the mount point.
const IMAGE: &str = "DIRECTFS_TEST_IMAGE";
const POINT: &str = "DIRECTFS_TEST_POINT";
/// What it says when the mount answers.
const READY: &str = "the mount answers";

/// Not a test, but the process that the test starts.
#[test]
fn serves_on_request() {
    let (Ok(image), Ok(point)) = (std::env::var(IMAGE), std::env::var(POINT)) else { return };
    let options = fuse::MountOptions::parse("threads=6").unwrap();
    let served = fuse::serve(Path::new(&image), Path::new(&point), &options, |_| println!("{READY}"));
    if let Err(error) = served {
        println!("{error}");
        std::process::exit(1);
    }
}

/// Numbers of threads that are enough for the workers and all services.
const ENOUGH: [i32; 2] = [24, 32];

/// A library that refuses threads; `None`, with a message: there is no compiler on this machine.
fn hook(directory: &Path) -> Option<std::path::PathBuf> {
    let (source, hook) = (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/few_threads.c"), directory.join("few.so"));
    let compiler = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&hook).args([source, "-ldl"]).status();
    match compiler {
        Ok(status) => assert!(status.success(), "few_threads.c does not compile"),
        Err(_) => {
            eprintln!("\n*** SKIPPED: few threads: there is no C compiler on this machine ***\n");
            return None;
        }
    }
    Some(hook)
}

fn is_mounted(point: &Path) -> bool {
    fs::read_to_string("/proc/self/mounts").unwrap().contains(point.to_str().unwrap())
}

#[test]
fn a_mount_that_cannot_start_all_threads_serves_with_fewer_or_ends() {
    if !can_mount("a_mount_that_cannot_start_all_threads_serves_with_fewer_or_ends") {
        return;
    }
    let mut mounted = Mounted::new("");
    mounted.unmount();
    let Some(hook) = hook(mounted.scratch.path()) else { return };
    let mut served = 0;
    for most in (0..8).chain(ENOUGH) {
        let mut server = Command::new(std::env::current_exe().unwrap());
        // With one thread the tests run in the first one.
        server.args(["--exact", "threads::serves_on_request", "--nocapture", "--test-threads=1"]);
        server.env(IMAGE, &mounted.image).env(POINT, &mounted.mount).env("LD_PRELOAD", &hook);
        let mut server = server.env("THREADS_MOST", most.to_string()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut said = Vec::new();
        for line in lines {
            said.push(line);
            if said.last().is_some_and(|line| line.ends_with(READY)) {
                fs::write(mounted.path("file"), format!("{most}")).unwrap();
                assert_eq!(fs::read_to_string(mounted.path("file")).unwrap(), format!("{most}"));
                served += 1;
                let unmounted = Command::new("umount").arg(&mounted.mount).status().unwrap();
                assert!(unmounted.success(), "{most} threads");
            }
        }
        let said = said.join("\n");
        let status = server.wait().unwrap();
        assert!(!is_mounted(&mounted.mount), "{most} threads: {said}");
        assert_eq!(status.success(), said.contains(READY), "{most} threads: {said}");
        if !status.success() {
            assert!(said.contains("raise the limit of processes"), "{most} threads: {said}");
        }
    }
    // Services beside the workers take of the same threads, in an order of their own: so more
    // threads may serve worse, and of the small numbers perhaps none is enough.
    assert!(served >= ENOUGH.len(), "{served}");
}
