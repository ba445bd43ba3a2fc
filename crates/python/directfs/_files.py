"""The functions of `os` and `shutil`, on the files of an image."""

from __future__ import annotations

import errno
import io
import os
import posixpath
import stat as modes
from typing import (
    IO,
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Callable,
    Iterator,
    List,
    Literal,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
    overload,
)

from . import _native
from ._native import DirEntry
from ._io import Buffers, File, as_bytes, flags_of, owner_of, present, times_of
from ._trees import Copy, Ignore, Machine, move

if TYPE_CHECKING:
    from _typeshed import OpenBinaryMode, OpenTextMode, ReadableBuffer

    from ._path import Path

AnyPath = Union[str, "os.PathLike[str]"]
#: A path in an image: a string, a `pathlib.PurePath`, or a `Path` of an image.
ImagePath = Union[str, "os.PathLike[str]", "Path"]


class DiskUsage(NamedTuple):
    """Bytes of an image, as of `shutil.disk_usage`."""

    total: int
    used: int
    free: int


class Space(NamedTuple):
    """Space of an image."""

    total: int
    free: int
    files: int
    files_free: int


def name_of(path: ImagePath) -> str:
    if type(path) is str:
        return path
    from ._path import Path

    return str(path) if isinstance(path, Path) else os.fspath(path)


def leads_to_directory(entry: DirEntry) -> bool:
    """A link that leads in a circle leads to none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


class Entries(Iterator[DirEntry]):
    """An iterator over a directory, as `os.scandir` returns it."""

    def __init__(self, entries: Iterator[DirEntry]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[DirEntry]:
        return self._entries

    def __next__(self) -> DirEntry:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class FileSystem:
    """The files of an image. Paths begin at its root, with or without a slash.

    The functions are those of `os` and `shutil`, with the same errors. There is no working
    directory.
    """

    def __init__(self, files: _native.Files, buffers: Optional[Buffers] = None) -> None:
        self._files = files
        self._buffers = Buffers() if buffers is None else buffers

    def path(self, *parts: ImagePath) -> Path:
        """A path in this image, with the functions of `pathlib.Path`."""
        from ._path import Path

        return Path(self, *(name_of(part) for part in parts))

    def as_user(self, uid: int, gid: int, groups: Sequence[int] = (), umask: int = 0o022) -> FileSystem:
        """The same files, used as another user."""
        return FileSystem(self._files.as_user(uid, gid, list(groups), umask), self._buffers)

    def subtree(self, path: ImagePath) -> FileSystem:
        """The files below a directory, which paths cannot leave."""
        return FileSystem(self._files.subtree(name_of(path)), self._buffers)

    # Files.

    @overload
    def open(
        self,
        path: ImagePath,
        mode: OpenTextMode = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
        *,
        permissions: int = 0o666,
    ) -> io.TextIOWrapper: ...
    @overload
    def open(  # type: ignore[overload-overlap]
        self, path: ImagePath, mode: OpenBinaryMode, buffering: Literal[0], *, permissions: int = 0o666
    ) -> File: ...
    @overload
    def open(
        self, path: ImagePath, mode: OpenBinaryMode, buffering: int = -1, *, permissions: int = 0o666
    ) -> BinaryIO: ...
    @overload
    def open(
        self,
        path: ImagePath,
        mode: str,
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
        *,
        permissions: int = 0o666,
    ) -> IO[Any]: ...
    def open(
        self,
        path: ImagePath,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
        *,
        permissions: int = 0o666,
    ) -> Any:
        """Opens a file, as the function `open`. The umask reduces `permissions`."""
        flags, is_text = flags_of(mode)
        if not is_text and (encoding is not None or errors is not None or newline is not None):
            raise ValueError("binary mode takes no encoding, errors or newline")
        if is_text and buffering == 0:
            raise ValueError("text needs buffering")
        raw = self.open_raw(path, flags, permissions, mode)
        if flags & os.O_APPEND:
            raw.seek(0, os.SEEK_END)
        if buffering == 0:
            return raw
        try:
            return self._buffered(raw, mode, buffering, is_text, encoding, errors, newline)
        except BaseException:
            raw.close()
            raise

    def _buffered(
        self,
        raw: File,
        mode: str,
        buffering: int,
        is_text: bool,
        encoding: Optional[str],
        errors: Optional[str],
        newline: Optional[str],
    ) -> IO[Any]:
        if raw.is_directory():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), raw.name)
        size = buffering if buffering > 1 else 128 << 10
        buffered: Any
        if "+" in mode:
            buffered = io.BufferedRandom(raw, size)
        elif raw.writable():
            buffered = io.BufferedWriter(raw, size)
        else:
            buffered = io.BufferedReader(raw, size)
        if raw.writable():
            self._buffers.add(buffered)
        if not is_text:
            return buffered  # type: ignore[no-any-return]
        text = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
        text.mode = mode  # type: ignore[misc]
        if raw.writable():
            self._buffers.add(text)
        return text

    def open_raw(self, path: ImagePath, flags: int, mode: int = 0o666, name_of_mode: str = "") -> File:
        """Opens a file without a buffer, by the flags of open(2)."""
        name = name_of(path)
        return File(self._files.open(name, flags, mode), name, name_of_mode, flags)

    def read_bytes(self, path: ImagePath) -> bytes:
        return self._files.read(name_of(path))

    def write_bytes(self, path: ImagePath, content: "ReadableBuffer") -> None:
        """Creates or empties a file, and writes its whole content by one atomic call."""
        self._files.write(name_of(path), as_bytes(content))

    def truncate(self, path: ImagePath, length: int) -> None:
        self._files.truncate(name_of(path), length)

    def copyfile(self, source: ImagePath, target: ImagePath) -> int:
        """Copies content and permissions inside the image; long files share their blocks.

        Returns the number of bytes.
        """
        return self._files.copy(name_of(source), name_of(target))

    # Trees.

    def copytree(
        self,
        source: ImagePath,
        target: ImagePath,
        symlinks: bool = False,
        ignore: Optional[Ignore] = None,
        dirs_exist_ok: bool = False,
    ) -> str:
        """Copies a directory in the image, as `shutil.copytree`; long files share their blocks."""
        Copy(self, self, symlinks, ignore, dirs_exist_ok).tree(name_of(source), name_of(target))
        return name_of(target)

    def put_tree(
        self,
        source: AnyPath,
        target: ImagePath,
        *,
        symlinks: bool = True,
        ignore: Optional[Ignore] = None,
        dirs_exist_ok: bool = False,
    ) -> None:
        """Copies a directory of the machine into the image.

        With content and holes, symbolic and hard links, permissions, times and attributes `user.*`.
        The copy belongs to the user of the calls; programs of other owners lose their set-user-ID
        and set-group-ID bits. `symlinks=False` copies what the links lead to.
        `ignore` is that of `shutil.copytree`.
        """
        Copy(Machine(), self, symlinks, ignore, dirs_exist_ok).tree(os.fspath(source), name_of(target))

    def get_tree(
        self,
        source: ImagePath,
        target: AnyPath,
        *,
        symlinks: bool = True,
        ignore: Optional[Ignore] = None,
        dirs_exist_ok: bool = False,
    ) -> None:
        """Copies a directory of the image to the machine, with all that `put_tree` copies."""
        Copy(self, Machine(), symlinks, ignore, dirs_exist_ok).tree(name_of(source), os.fspath(target))

    def move(self, source: ImagePath, target: ImagePath) -> str:
        """Renames, into `target` if that is a directory, as `shutil.move`; returns the new path."""
        return move(self, name_of(source), name_of(target))

    def disk_usage(self) -> DiskUsage:
        """Total, used and free bytes, as `shutil.disk_usage`."""
        space = self.space()
        return DiskUsage(space.total, space.total - space.free, space.free)

    # Names.

    def listdir(self, path: ImagePath = "/") -> List[str]:
        return self._files.listdir(name_of(path))

    def scandir(self, path: ImagePath = "/") -> Entries:
        """The entries of a directory, as `os.scandir`: `with image.scandir("mail") as entries`."""
        return Entries(iter(self._files.scandir(name_of(path))))

    def walk(
        self,
        top: ImagePath,
        topdown: bool = True,
        onerror: Optional[Callable[[OSError], Any]] = None,
        followlinks: bool = False,
    ) -> Iterator[Tuple[str, List[str], List[str]]]:
        """The tree below a directory, as `os.walk`."""
        directory = name_of(top)
        try:
            entries = list(self.scandir(directory))
        except OSError as error:
            if onerror is not None:
                onerror(error)
            return
        directories = [entry.name for entry in entries if leads_to_directory(entry)]
        links = {entry.name for entry in entries if entry.is_symlink()}
        files = [entry.name for entry in entries if entry.name not in set(directories)]
        if topdown:
            yield directory, directories, files
        for name in directories:
            if followlinks or name not in links:
                yield from self.walk(posixpath.join(directory, name), topdown, onerror, followlinks)
        if not topdown:
            yield directory, directories, files

    def mkdir(self, path: ImagePath, mode: int = 0o777) -> None:
        self._files.mkdir(name_of(path), mode)

    def makedirs(self, path: ImagePath, exist_ok: bool = False) -> None:
        """Creates a directory and all its missing parents."""
        name = name_of(path)
        if exist_ok:
            self._files.mkdirs(name)
            return
        parent = posixpath.dirname(name.rstrip("/"))
        if parent.strip("/"):
            self._files.mkdirs(parent)
        self._files.mkdir(name, 0o777)

    def rmdir(self, path: ImagePath) -> None:
        self._files.rmdir(name_of(path))

    def unlink(self, path: ImagePath) -> None:
        self._files.unlink(name_of(path))

    remove = unlink

    def rmtree(self, path: ImagePath) -> None:
        """Removes a directory and everything in it; a symbolic link is not followed."""
        self._files.remove_tree(name_of(path))

    def rename(self, source: ImagePath, target: ImagePath) -> None:
        """Renames a file; an existing target is replaced atomically."""
        self._files.rename(name_of(source), name_of(target))

    replace = rename

    def rename_new(self, source: ImagePath, target: ImagePath) -> None:
        """Renames a file; `FileExistsError` if the target exists."""
        self._files.rename_new(name_of(source), name_of(target))

    def exchange(self, one: ImagePath, other: ImagePath) -> None:
        """Exchanges two files of any kind, atomically."""
        self._files.exchange(name_of(one), name_of(other))

    def link(self, source: ImagePath, target: ImagePath) -> None:
        self._files.link(name_of(source), name_of(target))

    def symlink(self, source: ImagePath, target: ImagePath) -> None:
        """Creates the symbolic link `target` with the content `source`."""
        self._files.symlink(name_of(source), name_of(target))

    def readlink(self, path: ImagePath) -> str:
        return self._files.readlink(name_of(path))

    # Attributes.

    def stat(self, path: ImagePath, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._files.stat(name_of(path), follow_symlinks)

    def lstat(self, path: ImagePath) -> os.stat_result:
        return self.stat(path, follow_symlinks=False)

    def access(self, path: ImagePath, mode: int) -> bool:
        try:
            self._files.access(name_of(path), mode)
            return True
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise
            return False

    def exists(self, path: ImagePath) -> bool:
        return self._mode(path) != 0

    def lexists(self, path: ImagePath) -> bool:
        return self._mode(path, False) != 0

    def isdir(self, path: ImagePath) -> bool:
        return modes.S_ISDIR(self._mode(path))

    def isfile(self, path: ImagePath) -> bool:
        return modes.S_ISREG(self._mode(path))

    def islink(self, path: ImagePath) -> bool:
        return modes.S_ISLNK(self._mode(path, False))

    def _mode(self, path: ImagePath, follow_symlinks: bool = True) -> int:
        """0 for a path that leads to no file. Other failures are none of `os.path.exists`."""
        return self._files.mode(name_of(path), follow_symlinks)

    def getsize(self, path: ImagePath) -> int:
        return self.stat(path).st_size

    def chmod(self, path: ImagePath, mode: int) -> None:
        self._files.chmod(name_of(path), mode)

    def chown(self, path: ImagePath, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        self._files.chown(name_of(path), owner_of(uid), owner_of(gid), follow_symlinks)

    def utime(
        self,
        path: ImagePath,
        times: Optional[Tuple[float, float]] = None,
        *,
        ns: Optional[Tuple[int, int]] = None,
        follow_symlinks: bool = True,
    ) -> None:
        self._files.utime(name_of(path), times_of(times, ns), follow_symlinks)

    def getxattr(self, path: ImagePath, name: str) -> bytes:
        return present(self._files.getxattr(name_of(path), name), name_of(path))

    def setxattr(self, path: ImagePath, name: str, value: bytes, flags: int = 0) -> None:
        self._files.setxattr(name_of(path), name, bytes(value), flags)

    def removexattr(self, path: ImagePath, name: str) -> None:
        self._files.removexattr(name_of(path), name)

    def listxattr(self, path: ImagePath) -> List[str]:
        return self._files.listxattr(name_of(path))

    def space(self) -> Space:
        """Total and free bytes, and numbers of files."""
        return Space(*self._files.space())
