"""Attributes of FIFOs by descriptor; rights of FIFOs and sockets that change after their use."""
import os
import socket

STRANGER = 1234


def attributes(status):
    return status.st_ino, status.st_dev, oct(status.st_mode), status.st_uid, status.st_nlink, status.st_mtime_ns


def compare(name, descriptor):
    by_name = attributes(os.stat(name))
    ways = [os.fstat(descriptor), os.stat(f"/proc/self/fd/{descriptor}"), os.stat(f"/dev/fd/{descriptor}")]
    print(oct(os.stat(name).st_mode), [attributes(way) == by_name for way in ways])


def as_stranger(act):
    """What another user's process gets; as the same user without the right to be another."""
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
        try:
            act()
            result = 0
        except OSError as error:
            result = error.errno
        os._exit(result)
    print("another user:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def connect():
    socket.socket(socket.AF_UNIX).connect("socket")


def fifos():
    os.mkfifo("fifo", 0o600)
    opened = os.open("fifo", os.O_RDWR | os.O_NONBLOCK)
    copies = [os.dup(opened), os.dup2(opened, 50), os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)]
    for descriptor in [opened, *copies]:
        compare("fifo", descriptor)
    os.write(opened, b"through")
    print(os.read(copies[2], 100))
    os.fchmod(opened, 0o640)
    compare("fifo", copies[0])
    os.utime(opened, ns=(10**18, 10**18))
    compare("fifo", opened)
    os.chmod("fifo", 0o604)
    compare("fifo", copies[1])
    as_stranger(lambda: os.open("fifo", os.O_RDONLY | os.O_NONBLOCK))
    os.chmod("fifo", 0o666)
    as_stranger(lambda: os.open("fifo", os.O_RDWR | os.O_NONBLOCK))
    os.fchmod(opened, 0o600)
    if os.getuid() == 0:
        as_stranger(lambda: os.open("fifo", os.O_RDONLY | os.O_NONBLOCK))
        os.fchown(opened, STRANGER, STRANGER)
        as_stranger(lambda: os.open("fifo", os.O_RDWR | os.O_NONBLOCK))
    for descriptor in [opened, *copies]:
        os.close(descriptor)
    # The number is another file's now.
    file = os.open("file", os.O_RDWR | os.O_CREAT, 0o644)
    print(file == opened, oct(os.fstat(file).st_mode), oct(os.fstat(os.pipe()[0]).st_mode))


def sockets():
    os.umask(0o077)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("socket")
    listening.listen(5)
    if os.getuid() == 0:
        as_stranger(connect)
        os.chown("socket", STRANGER, -1)
        as_stranger(connect)
        os.chown("socket", 0, -1)
    os.chmod("socket", 0o666)
    as_stranger(connect)
    os.chmod("socket", 0o600)
    if os.getuid() == 0:
        as_stranger(connect)


os.umask(0o022)
os.chmod(".", 0o755)
fifos()
sockets()
