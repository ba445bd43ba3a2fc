"""Copies of trees: in an image, and between it and the machine."""

from __future__ import annotations

import errno
import os
import posixpath
import stat as modes
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Tuple

if TYPE_CHECKING:
    from ._files import FileSystem

#: `ignore` of `shutil.copytree`: a directory and its names to the names that are left out.
Ignore = Callable[[str, List[str]], Iterable[str]]

_STEP_BYTES = 1 << 20


class Machine:
    """The functions of `FileSystem` that a copy needs, on the files of the machine."""

    lstat = staticmethod(os.lstat)
    stat = staticmethod(os.stat)
    mkdir = staticmethod(os.mkdir)
    isdir = staticmethod(os.path.isdir)
    readlink = staticmethod(os.readlink)
    symlink = staticmethod(os.symlink)
    link = staticmethod(os.link)
    chmod = staticmethod(os.chmod)
    utime = staticmethod(os.utime)
    listdir = staticmethod(os.listdir)
    listxattr = staticmethod(os.listxattr)
    getxattr = staticmethod(os.getxattr)
    setxattr = staticmethod(os.setxattr)

    @staticmethod
    def open(path: str, mode: str, buffering: int) -> Any:
        return open(path, mode, buffering)


class Copy:
    """One copy of a tree. Files with several names in it have them in the copy, too."""

    def __init__(
        self, source: Any, target: Any, symlinks: bool, ignore: Optional[Ignore], dirs_exist_ok: bool
    ) -> None:
        self._source, self._target = source, target
        self._symlinks, self._ignore, self._dirs_exist_ok = symlinks, ignore, dirs_exist_ok
        self._copied: Dict[Tuple[int, int], str] = {}

    def tree(self, source: str, target: str) -> None:
        """Copies a directory. Its attributes come last, since its files change its times."""
        names = self._source.listdir(source)
        left_out = set(self._ignore(source, names)) if self._ignore is not None else set()
        try:
            self._target.mkdir(target, 0o700)
        except FileExistsError:
            if not self._dirs_exist_ok or not self._target.isdir(target):
                raise
        for name in names:
            if name not in left_out:
                self._entry(posixpath.join(source, name), posixpath.join(target, name))
        self._attributes(source, target, self._source.stat(source))

    def _entry(self, source: str, target: str) -> None:
        found = self._source.lstat(source)
        if modes.S_ISLNK(found.st_mode):
            if self._symlinks:
                self._target.symlink(self._source.readlink(source), target)
                times = (found.st_atime_ns, found.st_mtime_ns)
                self._target.utime(target, ns=times, follow_symlinks=False)
                return
            found = self._source.stat(source)
        if modes.S_ISDIR(found.st_mode):
            self.tree(source, target)
        elif modes.S_ISREG(found.st_mode):
            self._file(source, target, found)
        else:
            # Named pipes, sockets and devices have no content that could be copied.
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), source)

    def _file(self, source: str, target: str, found: os.stat_result) -> None:
        known = self._copied.get((found.st_dev, found.st_ino))
        if known is not None:
            self._target.link(known, target)
            return
        if found.st_nlink > 1:
            self._copied[found.st_dev, found.st_ino] = target
        if self._source is self._target:
            self._source.copyfile(source, target)
        else:
            self._content(source, target)
        self._attributes(source, target, found)

    def _content(self, source: str, target: str) -> None:
        with self._source.open(source, "rb", 0) as reads, self._target.open(target, "wb", 0) as writes:
            length = reads.seek(0, os.SEEK_END)
            writes.truncate(length)
            at = 0
            while at < length:
                begin, end = _data(reads, at, length)
                reads.seek(begin)
                writes.seek(begin)
                while begin < end:
                    part = reads.read(min(_STEP_BYTES, end - begin))
                    if not part:
                        return  # It was truncated meanwhile.
                    _write_all(writes, part)
                    begin += len(part)
                at = end

    def _attributes(self, source: str, target: str, found: os.stat_result) -> None:
        for name in self._source.listxattr(source):
            if name.startswith("user."):
                self._target.setxattr(target, name, self._source.getxattr(source, name))
        self._target.chmod(target, self._mode(target, found))
        self._target.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


    def _mode(self, target: str, found: os.stat_result) -> int:
        """The permissions of a copy. A program has no rights of an owner that it did not have."""
        mode, privileges = modes.S_IMODE(found.st_mode), modes.S_ISUID | modes.S_ISGID
        if mode & privileges and not modes.S_ISDIR(found.st_mode):
            copy = self._target.stat(target)
            if (copy.st_uid, copy.st_gid) != (found.st_uid, found.st_gid):
                mode &= ~privileges
        return mode


def _data(file: Any, at: int, length: int) -> Tuple[int, int]:
    """The next bytes that are no hole; an empty range at the end if there are none."""
    try:
        begin = file.seek(at, os.SEEK_DATA)
        return begin, min(file.seek(begin, os.SEEK_HOLE), length)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return length, length
        return at, length  # The file system of the machine knows no holes.


def _write_all(file: Any, part: bytes) -> None:
    while part:
        part = part[file.write(part) :]


def move(files: FileSystem, source: str, target: str) -> str:
    """Renames, into `target` if it is a directory, as `shutil.move`; returns the new path."""
    if files.isdir(target):
        name = posixpath.basename(source.rstrip("/"))
        target = posixpath.join(target, name)
        if files.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    files.rename(source, target)
    return target
