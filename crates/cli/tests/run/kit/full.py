# Fills the image until nothing fits, and then does what needs no space. Arguments: a directory in
# the image, and whether it is a mount. Prints what fails.
import errno
import mmap
import os
import sys

os.chdir(sys.argv[1])
is_mount = sys.argv[2] == "mount"


def fill():
    for name, length in [("hog", 1 << 20), ("hog", 65536), ("hog", 4096), ("hog", 1)]:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while os.write(fd, b"F" * length) == length:
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
        os.close(fd)
    try:
        for index in range(100_000):
            os.close(os.open("small%d" % index, os.O_CREAT | os.O_WRONLY))
    except OSError as error:
        assert error.errno == errno.ENOSPC, error


def works(what, call):
    try:
        call()
    except OSError as error:
        print(what, "fails:", errno.errorcode[error.errno])


def is_refused(what, call):
    try:
        call()
        print(what, "succeeds")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            print(what, "fails:", errno.errorcode[error.errno])


size, hole_size = 60_000, 300_000
fds = {}
for name in ["data", "zeros", "mapped", "log"]:
    fds[name] = os.open(name, os.O_RDWR | os.O_CREAT)
    os.write(fds[name], (b"\0" if name == "zeros" else b"o") * size)
fds["reserved"] = os.open("reserved", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(fds["reserved"], 0, size)
fds["hole"] = os.open("hole", os.O_RDWR | os.O_CREAT)
os.ftruncate(fds["hole"], hole_size)
os.mkdir("directory")
os.setxattr("data", "user.a", b"1" * 20)
fill()

for name in ["data", "zeros", "reserved"]:
    works("overwriting " + name, lambda: os.pwrite(fds[name], b"a" * size, 0))
    works("overwriting a part of " + name, lambda: os.pwrite(fds[name], b"b" * 100, 5000))
    works("overwriting a block of " + name, lambda: os.pwrite(fds[name], b"c" * 4096, 8192))
    if os.pread(fds[name], size, 0) != b"a" * 5000 + b"b" * 100 + b"a" * 3092 + b"c" * 4096 + b"a" * (size - 12288):
        print(name, "has other bytes")
mapping = mmap.mmap(fds["mapped"], size)
mapping[:] = b"n" * size
mapping.close()
works("closing a mapped file", lambda: os.close(fds["mapped"]))
if open("mapped", "rb").read() != b"n" * size:
    print("stores through a mapping are lost")
is_refused("filling a hole", lambda: os.pwrite(fds["hole"], b"x", 100_000))
if is_mount:
    # The kernel takes the store, and finds out when it writes the page.
    mapping = mmap.mmap(fds["hole"], hole_size)
    mapping[200_000] = 1
    is_refused("msync of a store into a hole", mapping.flush)
    mapping.close()
    fd = os.open("hole", os.O_RDWR)
    mapping = mmap.mmap(fd, hole_size)
    mapping[100_000] = 1
    is_refused("fsync of a store into a hole", lambda: os.fsync(fd))
    mapping[50_000] = 1
    mapping.close()
    is_refused("fsync after the mapping has gone", lambda: os.fsync(fd))
    os.close(fd)
works("rename", lambda: os.rename("log", "log.1"))
works("rename into another directory", lambda: os.rename("log.1", "directory/log"))
works("setxattr", lambda: os.setxattr("data", "user.a", b"2" * 20))
works("fallocate of what there is", lambda: os.posix_fallocate(fds["reserved"], 0, 1))
works("truncate", lambda: os.truncate("data", 12345))
works("unlink", lambda: os.unlink("data"))
for name in os.listdir("."):
    if name.startswith("small") or name == "hog":
        works("unlink of " + name, lambda: os.unlink(name))
works("the space is back", lambda: open("after", "wb").write(b"x" * 100_000))
