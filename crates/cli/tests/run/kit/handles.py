"""Handles of files name one life of a file, whatever its name."""
import ctypes, errno, os, struct

libc = ctypes.CDLL(None, use_errno=True)

def checked(result):
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]

def handle_of(path, directory=-100, flags=0, room=128):
    handle, mount = ctypes.create_string_buffer(struct.pack("Ii", room, 0) + bytes(128)), ctypes.c_int()
    result = checked(libc.name_to_handle_at(directory, path, handle, ctypes.byref(mount), flags))
    return handle if result == 0 else result

def opened(handle, flags=os.O_RDONLY, mount=None):
    directory = os.open(".", os.O_RDONLY) if mount is None else mount
    fd = checked(libc.open_by_handle_at(directory, handle, flags))
    if mount is None: os.close(directory)
    return fd

def content(handle):
    fd = opened(handle)
    if isinstance(fd, str): return fd
    text = os.read(fd, 9)
    os.close(fd)
    return text

open("f", "w").write("first")
os.mkdir("d")
os.symlink("f", "l")
f, d, l, through = handle_of(b"f"), handle_of(b"d"), handle_of(b"l"), handle_of(b"l", flags=0x400)
print(content(f), f.raw == through.raw, f.raw != l.raw, opened(l), isinstance(opened(l, os.O_PATH), int))
print(handle_of(b"missing"), handle_of(b"f", room=0), handle_of(b"f", room=129), handle_of(b"f", flags=0x100000))
os.rename("f", "d/g")
print(content(f), handle_of(b"d/g").raw == f.raw, handle_of(b"", os.open("d/g", os.O_PATH), 0x1000).raw == f.raw)
writer = opened(f, os.O_WRONLY | os.O_APPEND)
os.write(writer, b"+")
os.close(writer)
print(open("d/g").read(), opened(f, os.O_DIRECTORY), os.listdir(opened(d)), opened(d, os.O_RDWR))
print(opened(f, mount=-1), opened(f, mount=os.open(".", os.O_PATH)), isinstance(opened(f, mount=-100), int))
broken = ctypes.create_string_buffer(f.raw)
struct.pack_into("I", broken, 0, 0)
print(opened(broken))
for fd in range(3, 100):
    try: os.close(fd)
    except OSError: pass
kept = os.open("d/g", os.O_RDONLY)
os.unlink("d/g")
print(content(f))
os.close(kept)
for i in range(300): open(f"n{i}", "w").close()
print(content(f))
if os.fork() == 0:
    os.setgroups([]); os.setuid(65534)
    print(opened(d), handle_of(b"d").raw == d.raw, flush=True)
    os._exit(0)
os.wait()
