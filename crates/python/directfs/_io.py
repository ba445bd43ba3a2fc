"""Open files: a raw stream for `io`, with the calls that a stream does not have."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import pickle
import weakref
from typing import IO, TYPE_CHECKING, Any, List, Optional, Tuple

from . import _native

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


def times_of(times: Optional[Tuple[float, float]], ns: Optional[Tuple[int, int]]) -> Optional[Tuple[int, int]]:
    """The arguments of `os.utime` as ns."""
    if times is not None and ns is not None:
        raise ValueError("utime: specify times or ns, not both")
    if ns is not None:
        return (ns[0], ns[1])
    if times is not None:
        return (round(times[0] * 1_000_000_000), round(times[1] * 1_000_000_000))
    return None


def owner_of(number: int) -> Optional[int]:
    """-1 leaves an owner unchanged."""
    return None if number == -1 else number


class Buffers:
    """The open files of an image whose buffers may hold what is not written yet."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._streams: weakref.WeakSet[IO[Any]] = weakref.WeakSet()

    def add(self, stream: IO[Any]) -> None:
        self._streams.add(stream)

    def _present(self) -> List[IO[Any]]:
        while True:
            try:
                return list(self._streams)
            except RuntimeError:
                pass  # Another thread opened a file meanwhile.

    def are_own(self) -> bool:
        """Whether this process opened the image. In the child of a fork they are the parent's."""
        return self._process == os.getpid()

    def write(self) -> Optional[OSError]:
        """Writes them, and returns the first error."""
        failure = None
        for stream in self._present():
            try:
                stream.flush()
            except OSError as error:
                failure = failure or error
            except ValueError:
                pass  # It was closed or detached.
        return failure

    def forget(self) -> None:
        self._streams.clear()


class File(io.RawIOBase):
    """An open file: a raw stream, without a descriptor of the kernel.

    Of a buffered file it is `file.raw`, of a text file `file.buffer.raw`.
    """

    def __init__(self, native: _native.File, name: str, mode: str, flags: int) -> None:
        super().__init__()
        self._native = native
        self.name = name
        self.mode = mode
        access = flags & os.O_ACCMODE
        self._reads = access != os.O_WRONLY
        self._writes = access != os.O_RDONLY

    # A stream.

    def readable(self) -> bool:
        self._check()
        return self._reads

    def writable(self) -> bool:
        self._check()
        return self._writes

    def seekable(self) -> bool:
        self._check()
        return True

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def close(self) -> None:
        if not self.closed:
            self._native.close()
        super().close()

    def read(self, size: Optional[int] = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        self._check_reads()
        return self._native.read(size)

    def _check_reads(self) -> None:
        self._check()
        if not self._reads:
            raise io.UnsupportedOperation("not readable")

    def readall(self) -> bytes:
        self._check_reads()
        return self._native.read_all()

    def readinto(self, buffer: "WriteableBuffer") -> int:
        self._check_reads()
        with memoryview(buffer).cast("B") as room:
            found = self._native.read(len(room))
            room[: len(found)] = found
        return len(found)

    def write(self, data: "ReadableBuffer") -> int:
        self._check()
        if not self._writes:
            raise io.UnsupportedOperation("not writable")
        return self._native.write(as_bytes(data))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check()
        return self._native.seek(offset, whence)

    def tell(self) -> int:
        return self.seek(0, os.SEEK_CUR)

    def truncate(self, size: Optional[int] = None) -> int:
        size = self.tell() if size is None else size
        self._native.truncate(size)
        return size

    def view(self) -> memoryview:
        """The content as read-only memory, without a copy: `numpy.frombuffer(file.view())`.

        It has the present length, stays when the file is closed or removed, and shows what is
        written later, but for holes that are filled. What is cut off later reads as zeros. The
        image cannot be closed (`BufferError`) before the view and all that was made of it are
        released.
        """
        self._check_reads()
        native = self._native.view()
        if len(native) == 0:
            return memoryview(b"")
        room: Any = (ctypes.c_ubyte * len(native)).from_address(native.address())
        # Each view of the array keeps the array, and so the memory. Its pages are private: a store
        # through the array itself does not reach the image.
        room._native = native
        return pickle.PickleBuffer(room).raw().toreadonly()

    # Calls by descriptor.

    def pread(self, size: int, offset: int) -> bytes:
        """Reads at an offset; the position does not change."""
        return self._native.pread(size, offset)

    def pwrite(self, data: "ReadableBuffer", offset: int) -> int:
        """Writes at an offset; the position does not change."""
        return self._native.pwrite(as_bytes(data), offset)

    def fsync(self) -> None:
        """Commits the image to its disk, with all that was written before, also to other files.

        What a buffered file still holds is not written: flush it first.
        """
        self._native.sync()

    def is_directory(self) -> bool:
        return self._native.is_directory()

    def stat(self) -> os.stat_result:
        return self._native.stat()

    def chmod(self, mode: int) -> None:
        self._native.chmod(mode)

    def chown(self, uid: int, gid: int) -> None:
        self._native.chown(owner_of(uid), owner_of(gid))

    def utime(
        self, times: Optional[Tuple[float, float]] = None, *, ns: Optional[Tuple[int, int]] = None
    ) -> None:
        self._native.utime(times_of(times, ns))

    def fallocate(self, offset: int, length: int, mode: int = 0) -> None:
        """Reserves space; other modes of fallocate(2) free or move it."""
        self._native.allocate(mode, offset, length)

    def dup(self) -> File:
        """Another stream of the same open file: they share position and locks."""
        flags = os.O_RDWR if self._reads and self._writes else os.O_WRONLY if self._writes else os.O_RDONLY
        return File(self._native.dup(), self.name, self.mode, flags)

    def lock(self, *, exclusive: bool = True, timeout: Optional[float] = None) -> bool:
        """Locks the file, as flock(2), among all processes that use the image.

        Returns whether it was locked within `timeout` seconds: 0 does not wait, None waits.
        """
        return self._native.lock(exclusive, timeout)

    def unlock(self) -> None:
        self._native.unlock()

    def lock_range(
        self, start: int, end: Optional[int] = None, *, exclusive: bool = True, timeout: Optional[float] = None
    ) -> bool:
        """Locks the bytes from `start` to before `end`; without an end, to that of the file."""
        return self._native.lock_range(start, end, exclusive, timeout)

    def unlock_range(self, start: int = 0, end: Optional[int] = None) -> None:
        self._native.unlock_range(start, end)

    def getxattr(self, name: str) -> bytes:
        return present(self._native.getxattr(name), self.name)

    def setxattr(self, name: str, value: bytes, flags: int = 0) -> None:
        self._native.setxattr(name, bytes(value), flags)

    def removexattr(self, name: str) -> None:
        self._native.removexattr(name)

    def listxattr(self) -> List[str]:
        return self._native.listxattr()


def as_bytes(data: "ReadableBuffer") -> bytes:
    return data if isinstance(data, bytes) else bytes(memoryview(data).cast("B"))


def present(value: Optional[bytes], path: str) -> bytes:
    """ENODATA for an attribute that a file does not have."""
    if value is None:
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), path)
    return value


def flags_of(mode: str) -> Tuple[int, bool]:
    """The flags of open(2) for a mode of `open`, and whether it is a text mode."""
    kinds = [letter for letter in mode if letter in "rwxa"]
    if len(kinds) != 1 or len(set(mode)) != len(mode) or set(mode) - set("rwxabt+") or ("b" in mode and "t" in mode):
        raise ValueError(f"invalid mode: {mode!r}")
    kind = kinds[0]
    if "+" in mode:
        access = os.O_RDWR
    else:
        access = os.O_RDONLY if kind == "r" else os.O_WRONLY
    extra = {
        "r": 0,
        "w": os.O_CREAT | os.O_TRUNC,
        "x": os.O_CREAT | os.O_EXCL,
        "a": os.O_CREAT | os.O_APPEND,
    }[kind]
    return access | extra, "b" not in mode
