//! Copies that share blocks: `cp --reflink`, and what becomes of space and content.

use crate::support::{directfs, image_in, scratch, stderr, stdout};

/// Blocks in use, by statfs.
const USED: &str = "used() { stat -f -c '%b %f' . | { read all free; echo $((all - free)); }; }";

fn script(image: &std::path::Path, script: &str) -> String {
    let script = format!("set -eu; {USED}; {script}");
    let image = image.to_str().unwrap();
    let output = directfs(&["run", "--image", image, "-C", "/mnt/directfs", "--", "bash", "-c", &script]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

#[test]
fn a_reflinked_copy_takes_no_room_and_keeps_its_content() {
    let directory = scratch();
    let image = image_in(directory.path());
    let said = script(
        &image,
        "seq 300000 >one; before=$(used); cp --reflink=always one two; after=$(used); cmp one two
         test $((after - before)) -le 8 || echo took $((after - before)) blocks
         echo more >>one; dd if=/dev/zero of=one bs=1000 count=3 seek=100 conv=notrunc status=none
         seq 300000 | cmp - two; rm one; seq 300000 | cmp - two; echo good",
    );
    assert_eq!(said, "good\n");
    // What was left is what the next one finds.
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}", stdout(&check));
    let said = script(
        &image,
        "seq 300000 | cmp - two; cp --reflink=always two three; cp --reflink=always two four; : >two
         seq 300000 | cmp - three; rm three two; seq 300000 | cmp - four; rm four; used",
    );
    // A file had 480 blocks; what is left are pages and dentries of the directory.
    let used = |text: &str| text.trim().parse::<u64>().unwrap();
    let fresh = scratch();
    let before = used(&script(&image_in(fresh.path()), "used"));
    assert!(used(&said) <= before + 16, "{} blocks are in use, {before} on a fresh image", said.trim());
}

#[test]
fn what_cannot_share_says_so_as_linux_does() {
    let directory = scratch();
    std::fs::write(directory.path().join("theirs"), "theirs").unwrap();
    let image = image_in(directory.path());
    let calls = r#"
import fcntl, os, struct, errno
CLONE, RANGE = 0x40049409, 0x4020940d
def says(name, call, *arguments):
    try: print(name, call(*arguments) and "done" or "done")
    except OSError as error: print(name, errno.errorcode[error.errno])
a = os.open("a", os.O_RDWR | os.O_CREAT); os.write(a, b"x" * 10000)
b = os.open("b", os.O_RDWR | os.O_CREAT); os.write(b, b"y" * 20000)
span = lambda source, offset, length, to: struct.pack("qQQQ", source, offset, length, to)
says("misaligned", fcntl.ioctl, b, RANGE, span(a, 100, 4096, 0))
says("beyond", fcntl.ioctl, b, RANGE, span(a, 4096, 8192, 0))
says("tail in the middle", fcntl.ioctl, b, CLONE, a)
says("overlap", fcntl.ioctl, a, RANGE, span(a, 0, 8192, 4096))
says("range", fcntl.ioctl, b, RANGE, span(a, 4096, 4096, 8192))
says("other file system", fcntl.ioctl, b, CLONE, os.open(os.environ["THEIRS"], os.O_RDONLY))
says("onto theirs", fcntl.ioctl, os.open(os.environ["THEIRS"], os.O_RDWR), CLONE, a)
says("read only", fcntl.ioctl, os.open("b", os.O_RDONLY), CLONE, a)
says("append", fcntl.ioctl, os.open("b", os.O_RDWR | os.O_APPEND), CLONE, a)
says("directory", fcntl.ioctl, b, CLONE, os.open(".", os.O_RDONLY))
says("whole", fcntl.ioctl, os.open("c", os.O_RDWR | os.O_CREAT), CLONE, a)
assert open("c").read() == "x" * 10000
assert open("b").read() == "y" * 8192 + "x" * 4096 + "y" * (20000 - 12288)
"#;
    let said = directfs(&[
        "run",
        "--image",
        image.to_str().unwrap(),
        "-C",
        "/mnt/directfs",
        "--",
        "env",
        &format!("THEIRS={}", directory.path().join("theirs").display()),
        "python3",
        "-c",
        calls,
    ]);
    let expected = [
        "misaligned EINVAL",
        "beyond EINVAL",
        "tail in the middle EINVAL",
        "overlap EINVAL",
        "range done",
        "other file system EXDEV",
        "onto theirs EXDEV",
        "read only EBADF",
        "append EBADF",
        "directory EISDIR",
        "whole done",
    ];
    assert_eq!(stdout(&said).lines().collect::<Vec<_>>(), expected, "{}", stderr(&said));
}
