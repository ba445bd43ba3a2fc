"""splice between pipes and a file: waiting, amounts, positions."""
import errno, fcntl, os, signal

def splice(source, target, length, flags=0, **offsets):
    try:
        return os.splice(source, target, length, flags=flags, **offsets)
    except OSError as error:
        return errno.errorcode[error.errno]

NONBLOCK = 2
content = bytes(i * 7 % 251 for i in range(300_000))
r, w = os.pipe()
f = os.open("f", os.O_CREAT | os.O_RDWR)
read_only = os.open("f", os.O_RDONLY)
append = os.open("f", os.O_WRONLY | os.O_APPEND)
# These must not wait. If one does, the test ends here.
signal.alarm(600)
print(splice(r, f, 1, NONBLOCK), splice(r, read_only, 1, NONBLOCK), splice(r, read_only, 1), splice(r, append, 1))
os.set_blocking(r, False)
print(splice(r, f, 1))
os.set_blocking(r, True)

# One call moves what a pipe holds.
os.write(w, content[:60_000])
print(splice(r, f, 1 << 20), splice(r, f, 1 << 20, NONBLOCK), os.lseek(f, 0, 1))
os.write(w, b"end")
print(splice(r, f, 2, offset_dst=100), splice(r, f, 5), os.pread(f, 4, 99), os.lseek(f, 0, 1), os.fstat(f).st_size)

# One call fills a pipe.
os.pwrite(f, content, 0)
os.lseek(f, 10, 0)
capacity = fcntl.fcntl(w, 1032)
moved = splice(f, w, 1 << 20)
print(60_000 < moved <= capacity, os.lseek(f, 0, 1) == 10 + moved, splice(f, w, 1, NONBLOCK), os.lseek(f, 0, 1) == 10 + moved)
seen = b""
while len(seen) < moved: seen += os.read(r, 1 << 16)
print(seen == content[10 : 10 + moved])
print(splice(f, w, 5000, offset_src=299_000), os.read(r, 9999) == content[299_000:], splice(f, w, 1, offset_src=300_000))

# A whole file through a pipe, by two processes.
os.lseek(f, 0, 0)
if os.fork() == 0:
    os.close(r)
    while splice(f, w, 1 << 20): pass
    os._exit(0)
os.close(w)
g = os.open("g", os.O_CREAT | os.O_RDWR)
while splice(r, g, 1 << 20): pass
os.wait()
print(os.pread(g, 1 << 20, 0) == content, splice(r, g, 1))
