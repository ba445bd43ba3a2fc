"""Makes a file durable in each way that a program can, and after each way keeps a copy of the image's
file: what a power failure would have left. Also ways that promise nothing.

syncs.py IMAGE DIRECTORY_FOR_COPIES"""
import ctypes
import mmap
import os
import shutil
import sys

image, copies = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)


def opened(name, flags=0):
    return os.open(name, os.O_CREAT | os.O_RDWR | flags, 0o644)


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "sync")


def plain(name, sync):
    fd = opened(name)
    os.write(fd, name.encode())
    sync(fd)
    os.close(fd)


def by_mapping(name, sync):
    fd = opened(name)
    os.ftruncate(fd, 8192)
    memory = mmap.mmap(fd, 8192)
    memory[: len(name)] = name.encode()
    sync(fd, memory)
    return fd, memory


def by_directory(name):
    plain(name, lambda fd: None)
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def vector_synced(name, flag):
    fd = opened(name)
    os.pwritev(fd, [name.encode()], 0, flag)
    os.close(fd)


def synchronous(name, flag):
    fd = opened(name, flag)
    os.write(fd, name.encode())
    os.close(fd)


def copied(name):
    source, target = opened("source"), opened(name, os.O_SYNC)
    os.pwrite(source, name.encode(), 0)
    os.ftruncate(source, len(name))
    os.lseek(source, 0, os.SEEK_SET)
    os.sendfile(target, source, 0, len(name))


def copied_inside(name):
    source, target = opened("source"), opened(name, os.O_SYNC)
    os.pwrite(source, name.encode(), 0)
    os.copy_file_range(source, target, len(name), 0)


WAYS = {
    "fsync": lambda name: plain(name, os.fsync),
    "fdatasync": lambda name: plain(name, os.fdatasync),
    "sync": lambda name: plain(name, lambda fd: os.sync()),
    "syncfs": lambda name: plain(name, lambda fd: checked(libc.syncfs(fd))),
    "sync_file_range": lambda name: plain(name, lambda fd: checked(libc.sync_file_range(fd, ctypes.c_long(0), ctypes.c_long(0), 7))),
    "fsync-of-the-directory": by_directory,
    "O_SYNC": lambda name: synchronous(name, os.O_SYNC),
    "O_DSYNC": lambda name: synchronous(name, os.O_DSYNC),
    "RWF_SYNC": lambda name: vector_synced(name, os.RWF_SYNC),
    "RWF_DSYNC": lambda name: vector_synced(name, os.RWF_DSYNC),
    "sendfile-to-O_SYNC": copied,
    "copy_file_range-to-O_SYNC": copied_inside,
    "msync": lambda name: by_mapping(name, lambda fd, memory: memory.flush()),
    "fsync-of-a-mapped-file": lambda name: by_mapping(name, lambda fd, memory: os.fsync(fd)),
    "sync-of-a-mapped-file": lambda name: by_mapping(name, lambda fd, memory: os.sync()),
}

kept = []
plain("never-synced-before-the-first", lambda fd: None)
shutil.copy(image, f"{copies}/nothing")
for way, make in WAYS.items():
    kept.append(make(way))
    shutil.copy(image, f"{copies}/{way}")
plain("never-synced", lambda fd: None)
# Stores that end with their mapping, then a sync of something else.
fd, memory = by_mapping("munmap", lambda fd, memory: None)
memory.close()
plain("other", os.fsync)
shutil.copy(image, f"{copies}/munmap")
