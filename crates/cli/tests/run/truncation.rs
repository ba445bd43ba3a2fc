//! An image that is truncated while it is in use: all its users get errors, and none dies.

use crate::kit::compiled;
use crate::support::{can_mount, directfs, image_in, scratch, stderr, stdout};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

fn truncate(image: &Path, length: u64) {
    File::options().write(true).open(image).unwrap().set_len(length).unwrap();
}

const ALL_LOST: &str = "lost: EIO\nread: EIO\nwrite: EIO\nstat: EIO\nfstat: EIO\nopen: EIO\nmkdir: EIO\nrename: EIO\nlist: EIO\nchdir: EIO\nfchdir: EIO\nlandlock: EOPNOTSUPP\nfsync: EIO\n\
     elsewhere: done\nchild: EIO\nchild ended: 7\nclose: done\nclose: done\n";

#[test]
fn a_program_gets_errors_when_the_image_is_truncated_under_it_and_ends_by_itself() {
    let directory = scratch();
    let Some(program) = compiled("truncated", directory.path()) else { return };
    for (length, handler) in [(4096, false), (0, false), (4 << 20, true)] {
        let image = image_in(directory.path());
        let mut run = Command::new(env!("CARGO_BIN_EXE_directfs"));
        run.args(["run", "-C", "/mnt/directfs", "--image"]).arg(&image).arg("--").arg(&program);
        run.args(handler.then_some("with-a-handler"));
        let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(run.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        truncate(&image, length);
        run.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut result = String::new();
        output.read_to_string(&mut result).unwrap();
        assert_eq!(result, ALL_LOST, "cut to {length} bytes");
        let ended = run.wait_with_output().unwrap();
        // The program has ended with its own status; the run reports that the image was not closed
        // cleanly.
        assert_eq!(ended.status.code(), Some(125), "{}", stderr(&ended));
        assert!(stderr(&ended).contains("was truncated"), "{}", stderr(&ended));
        let again = directfs(&["run", "--image", image.to_str().unwrap(), "--", "true"]);
        assert_eq!(again.status.code(), Some(125));
        std::fs::remove_file(&image).unwrap();
    }
}

#[test]
fn a_mount_gives_errors_when_its_image_is_truncated_and_can_be_unmounted() {
    if !can_mount("a_mount_gives_errors_when_its_image_is_truncated_and_can_be_unmounted") {
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let mount = directory.path().join("mount");
    std::fs::create_dir(&mount).unwrap();
    let (image_name, mount_name) = (image.to_str().unwrap(), mount.to_str().unwrap());
    let mounted = directfs(&["mount", image_name, mount_name, "-o", "cache=0"]);
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    std::fs::write(mount.join("file"), vec![1u8; 6 << 20]).unwrap();
    truncate(&image, 1 << 20);
    let errors: Vec<Option<i32>> = (0..3)
        .map(|_| std::fs::read(mount.join("file")).map(|content| content.len()))
        .map(|result| result.err().and_then(|error| error.raw_os_error()))
        .collect();
    let made = std::fs::create_dir(mount.join("directory")).unwrap_err().raw_os_error();
    let unmounted = directfs(&["umount", mount_name]);
    assert_eq!(errors, [Some(libc::EIO); 3]);
    assert_eq!(made, Some(libc::EIO));
    // It is unmounted, and its image is not what was written.
    assert_eq!(unmounted.status.code(), Some(1), "{}{}", stdout(&unmounted), stderr(&unmounted));
    assert!(!std::fs::exists(mount.join("file")).unwrap(), "{}", stderr(&unmounted));
    let check = directfs(&["info", image_name]);
    assert!(!check.status.success() || stdout(&check).contains("short"), "{}", stdout(&check));
}
