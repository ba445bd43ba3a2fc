# Makes every pair of changes, in directories of the image and of tmpfs. The second one, which
# begins after the first has returned, must show no earlier time. Arguments: a directory in the
# image, one on tmpfs. Prints each pair that does.
import mmap
import os
import sys

image, other = sys.argv[1:]


def written(path):
    with open(path, "wb") as file:
        file.write(b"x" * 5000)


def opened(path, act):
    fd = os.open(path, os.O_RDWR)
    try:
        act(fd)
    finally:
        os.close(fd)


def stored(fd):
    with mmap.mmap(fd, 0) as mapping:
        mapping[0] = 1
        mapping.flush()


# Each change acts in directory d, which has `file`, `gone`, `folder` and `full`. It returns what
# shows its time: paths and fields.
def create(d): os.close(os.open(d + "/made", os.O_CREAT | os.O_RDWR)); return [(d + "/made", "mc"), (d, "mc")]
def mkdir(d): os.mkdir(d + "/dir"); return [(d + "/dir", "mc"), (d, "mc")]
def symlink(d): os.symlink("x", d + "/link"); return [(d + "/link", "mc"), (d, "mc")]
def mkfifo(d): os.mkfifo(d + "/fifo"); return [(d + "/fifo", "mc"), (d, "mc")]
def link(d): os.link(d + "/file", d + "/name"); return [(d + "/name", "c"), (d, "mc")]
def rename(d): os.rename(d + "/file", d + "/moved"); return [(d + "/moved", "c"), (d, "mc")]
def rename_over(d): os.rename(d + "/file", d + "/gone"); return [(d + "/gone", "c"), (d, "mc")]
def rename_directory(d): os.rename(d + "/folder", d + "/full/folder"); return [(d + "/full/folder", "c"), (d, "mc"), (d + "/full", "mc")]
def unlink(d): os.unlink(d + "/gone"); return [(d, "mc")]
def rmdir(d): os.rmdir(d + "/folder"); return [(d, "mc")]
def write(d): opened(d + "/file", lambda fd: os.pwrite(fd, b"y" * 5000, 100)); return [(d + "/file", "mc")]
def append(d): opened(d + "/file", lambda fd: os.pwrite(fd, b"y", 5000)); return [(d + "/file", "mc")]
def truncate(d): os.truncate(d + "/file", 10); return [(d + "/file", "mc")]
def fallocate(d): opened(d + "/file", lambda fd: os.posix_fallocate(fd, 0, 9000)); return [(d + "/file", "mc")]
def store(d): opened(d + "/file", stored); return [(d + "/file", "mc")]
def chmod(d): os.chmod(d + "/file", 0o600); return [(d + "/file", "c")]
def chmod_directory(d): os.chmod(d, 0o700); return [(d, "c")]
def utime_now(d): os.utime(d + "/file"); return [(d + "/file", "mc")]
def utime(d): os.utime(d + "/file", (1, 2)); return [(d + "/file", "c")]
def utime_directory(d): os.utime(d, (1, 2)); return [(d, "c")]
def setxattr(d): os.setxattr(d + "/file", "user.a", b"b"); return [(d + "/file", "c")]


changes = [create, mkdir, symlink, mkfifo, link, rename, rename_over, rename_directory, unlink, rmdir, write, append,
           truncate, fallocate, store, chmod, chmod_directory, utime_now, utime, utime_directory, setxattr]
count = 0


def place(top):
    global count
    count += 1
    d = "%s/%d" % (top, count)
    os.mkdir(d)
    os.mkdir(d + "/folder")
    os.mkdir(d + "/full")
    written(d + "/file")
    written(d + "/gone")
    return d


def shown(places):
    for path, fields in places:
        stat = os.lstat(path)
        if "m" in fields: yield stat.st_mtime_ns
        if "c" in fields: yield stat.st_ctime_ns


for first in changes:
    for second in changes:
        for tops in [(image, image), (other, image), (image, other)]:
            one, two = place(tops[0]), place(tops[1])
            before, after = first(one), second(two)
            late = max(shown(before)) - min(shown(after))
            # tmpfs takes a finer time while others look at files, which is more than rounding.
            if late > 0 and (tops == (image, image) or late < 100):
                print(first.__name__, "on", tops[0], "then", second.__name__, "on", tops[1], "is older by", late, "ns")
# One file: its times never go back, whatever changes it.
for first in changes:
    for second in changes:
        d = place(image)
        before = first(d)
        seen = [(path, field, value) for path, fields in before for field, value in zip(fields, shown([(path, fields)]))]
        try:
            second(d)
        except OSError:
            continue
        for path, field, value in seen:
            if os.path.lexists(path) and not (field == "m" and second in (utime, utime_directory)):
                now = next(iter(shown([(path, field)])))
                if now < value:
                    print(field + "time of", path, "goes back by", value - now, "ns:", first.__name__, second.__name__)
