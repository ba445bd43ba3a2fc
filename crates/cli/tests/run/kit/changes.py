# Prints the answer to each kind of call that changes a file system, and to some that only read it.
# The current directory has: file, directory/inner, link -> file.
import ctypes
import errno
import fcntl
import mmap
import os

libc = ctypes.CDLL(None, use_errno=True)


def says(what, call, *arguments):
    try:
        result = call(*arguments)
        print(what, "ok" if result is None or isinstance(result, int) else result)
    except OSError as error:
        print(what, errno.errorcode[error.errno])


def closing(*arguments):
    os.close(os.open(*arguments))


def exchanged():
    if libc.renameat2(-100, b"file", -100, b"link", 2) != 0:
        raise OSError(ctypes.get_errno(), "")


says("open to write", closing, "file", os.O_WRONLY)
says("open to read and write", closing, "file", os.O_RDWR)
says("open to append", closing, "file", os.O_WRONLY | os.O_APPEND)
says("truncate at open", closing, "file", os.O_RDONLY | os.O_TRUNC)
says("create", closing, "new", os.O_RDONLY | os.O_CREAT)
says("create what exists", closing, "file", os.O_RDONLY | os.O_CREAT)
says("create exclusively what exists", closing, "file", os.O_RDONLY | os.O_CREAT | os.O_EXCL)
says("create without a name", closing, ".", os.O_RDWR | os.O_TMPFILE)
says("create below nothing", closing, "nothing/new", os.O_WRONLY | os.O_CREAT)
says("truncate", os.truncate, "file", 1)
says("mkdir", os.mkdir, "new")
says("mkdir what exists", os.mkdir, "directory")
says("rmdir", os.rmdir, "directory")
says("rmdir nothing", os.rmdir, "nothing")
says("unlink", os.unlink, "file")
says("unlink nothing", os.unlink, "nothing")
says("rename", os.rename, "file", "new")
says("rename nothing", os.rename, "nothing", "new")
says("exchange", exchanged)
says("link", os.link, "file", "new")
says("symlink", os.symlink, "file", "new")
says("fifo", os.mkfifo, "new")
says("chmod", os.chmod, "file", 0o600)
says("chown", os.chown, "file", os.getuid(), os.getgid())
says("chown link", os.lchown, "link", os.getuid(), os.getgid())
says("times", os.utime, "file", (1, 2))
says("set attribute", os.setxattr, "file", "user.name", b"value")
says("remove attribute", os.removexattr, "file", "user.name")
says("access to write", lambda: os.access("file", os.W_OK) and "yes" or "no")
says("access to read", lambda: os.access("file", os.R_OK) and "yes" or "no")
says("read only", lambda: "yes" if os.statvfs(".").f_flag & os.ST_RDONLY else "no")

fd = os.open("file", os.O_RDONLY)
says("read", lambda: os.read(fd, 100))
says("write", os.write, fd, b"x")
says("change the mode of an open file", os.fchmod, fd, 0o600)
says("change the times of an open file", lambda: os.utime(fd, (1, 2)))
says("allocate", os.posix_fallocate, fd, 0, 10)
says("sync", os.fsync, fd)
says("lock", fcntl.flock, fd, fcntl.LOCK_EX)
shared = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
says("mapped", lambda: shared[:7])
private = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
private[:1] = b"C"
says("changed privately", lambda: private[:7])
says("map to store", lambda: mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE).close())
says("read a link", os.readlink, "link")
says("list", lambda: sorted(os.listdir(".")))
says("read below", lambda: open("directory/inner").read())
os.chdir("directory")
says("leave", lambda: os.path.basename(os.getcwd()))
if os.fork() == 0:
    says("read in a child", lambda: open("../link").read())
    os._exit(0)
os.wait()
