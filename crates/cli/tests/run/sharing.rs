//! Copies by one call: those that share blocks (`cp --reflink`), with their effect on space and
//! content, and copies between files of the image and of the host.

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
    // The next check sees the image as it was left.
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}", stdout(&check));
    let said = script(
        &image,
        "seq 300000 | cmp - two; cp --reflink=always two three; cp --reflink=always two four; : >two
         seq 300000 | cmp - three; rm three two; seq 300000 | cmp - four; rm four; used",
    );
    // A file had 480 blocks; the rest are pages and dentries of the directory.
    let used = |text: &str| text.trim().parse::<u64>().unwrap();
    let fresh = scratch();
    let before = used(&script(&image_in(fresh.path()), "used"));
    assert!(used(&said) <= before + 16, "{} blocks are in use, {before} on a fresh image", said.trim());
}

#[test]
fn refusals_to_share_blocks_match_linux() {
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

#[test]
fn copy_file_range_goes_between_its_files_and_the_kernels() {
    let directory = scratch();
    let image = image_in(directory.path());
    let calls = r#"
import errno, os, sys
theirs, RW = sys.argv[1], os.O_RDWR | os.O_CREAT
def says(name, *arguments):
    try: print(name, os.copy_file_range(*arguments))
    except OSError as error: print(name, errno.errorcode[error.errno])
text = bytes(range(256)) * 5000
open(theirs, "wb").write(text)
open("ours", "wb").write(text[::-1])
source, target = os.open(theirs, os.O_RDONLY), os.open("copy", RW)
says("in", source, target, 1 << 30)
says("at its end", source, target, 1 << 30)
assert open("copy", "rb").read() == text and os.lseek(target, 0, os.SEEK_CUR) == os.lseek(source, 0, os.SEEK_CUR) == len(text)
says("a part", source, target, 100000, 1000, 2000)
assert open("copy", "rb").read() == text[:2000] + text[1000:101000] + text[102000:] and os.lseek(source, 0, os.SEEK_CUR) == len(text)
ours, out = os.open("ours", os.O_RDWR), os.open(theirs + " copy", RW)
says("out", ours, out, 1 << 30)
says("beyond", ours, out, 10, len(text) + 5)
assert open(theirs + " copy", "rb").read() == text[::-1]
big = os.open(theirs + " big", RW)
os.ftruncate(big, 20 << 20)
says("no more at a time", big, target, 20 << 20, 0, 0)
says("append", ours, os.open(theirs + " copy", os.O_WRONLY | os.O_APPEND), 10)
says("append to its", source, os.open("copy", os.O_WRONLY | os.O_APPEND), 10, 0)
says("unreadable", os.open(theirs, os.O_WRONLY), target, 10)
says("unwritable", source, os.open("copy", os.O_RDONLY), 10, 0)
says("directory", os.open("/", os.O_RDONLY), target, 10)
says("its directory", os.open(".", os.O_RDONLY), out, 10)
says("pipe", os.pipe()[0], target, 10)
says("far", source, target, 10, 0, (1 << 63) - 5)
says("none", 99, target, 10)
room = os.statvfs(".")
os.posix_fallocate(os.open("filler", RW), 0, (room.f_bavail - 40) * room.f_bsize)
os.lseek(source, 0, os.SEEK_SET)
count = os.copy_file_range(source, os.open("full", RW), 1 << 20)
print("without room some", 0 < count < 1 << 20, os.lseek(source, 0, os.SEEK_CUR) == count)
"#;
    let host = directory.path().join("theirs");
    let run = ["run", "--image", image.to_str().unwrap(), "-C", "/mnt/directfs", "--", "python3", "-c", calls];
    let said = directfs(&[&run[..], &[host.to_str().unwrap()]].concat());
    let expected = [
        "in 1280000",
        "at its end 0",
        "a part 100000",
        "out 1280000",
        "beyond 0",
        "no more at a time 8388608",
        "append EBADF",
        "append to its EBADF",
        "unreadable EBADF",
        "unwritable EBADF",
        "directory EISDIR",
        "its directory EISDIR",
        "pipe EINVAL",
        "far EOVERFLOW",
        "none EBADF",
        "without room some True True",
    ];
    assert_eq!(stdout(&said).lines().collect::<Vec<_>>(), expected, "{}", stderr(&said));
}
