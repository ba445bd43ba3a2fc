"""`fsspec` on an image: `fsspec.open("directfs://a/b", image="/dev/shm/work.img")`.

Needs the package `fsspec`. Paths begin at the root of the image.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import secrets
import stat as modes
from datetime import datetime, timezone
from typing import IO, Any, Dict, List, Optional, Union

from fsspec.spec import AbstractFileSystem

from . import _image
from ._io import File, flags_of

_BUFFER_BYTES = 128 << 10
_TYPES = {modes.S_IFREG: "file", modes.S_IFDIR: "directory", modes.S_IFLNK: "link"}


class _Deferred:
    """What the files of `fsspec` have beside a stream: their size, and the end of a transaction."""

    raw: File

    def __init__(self, fs: DirectFileSystem, raw: File, path: str, mode: str, deferred: bool) -> None:
        super().__init__(raw, _BUFFER_BYTES)  # type: ignore[call-arg]
        self._fs, self._deferred, self._mode = fs, deferred, mode
        self.path, self._temporary = path, raw.name
        if raw.writable():
            fs.image._buffers.add(self)  # type: ignore[arg-type]

    @property
    def size(self) -> int:
        """Bytes of the file, without what is still in the buffer."""
        return self.raw.stat().st_size if not self.raw.closed else self._fs.size(self.path)

    def commit(self) -> None:
        """Gives a file of a transaction its name, by an atomic rename."""
        self.close()  # type: ignore[attr-defined]
        if self._deferred:
            image = self._fs.image
            rename = image.rename_new if "x" in self._mode else image.rename
            rename(self._temporary, self.path)

    def discard(self) -> None:
        """Removes a file of a transaction."""
        self.close()  # type: ignore[attr-defined]
        if self._deferred:
            self._fs.image.unlink(self._temporary)


class _Reader(_Deferred, io.BufferedReader):  # type: ignore[misc]
    pass


class _Writer(_Deferred, io.BufferedWriter):  # type: ignore[misc]
    pass


class _Random(_Deferred, io.BufferedRandom):  # type: ignore[misc]
    pass


class DirectFileSystem(AbstractFileSystem):
    """The files of the image in the file `image`.

    `size`: make the image if the file does not exist. `auto_mkdir`: make the missing directories of
    a file that is written, as object stores do. Other options are those of `directfs.open`.
    Instances with the same options are the same object.

    In `with fs.transaction:` each file gets its name at the end, by an atomic rename. After an
    exception none gets it.
    """

    protocol = "directfs"
    root_marker = "/"

    def __init__(self, image: str, size: Optional[int] = None, auto_mkdir: bool = True, **options: Any) -> None:
        known = {name: options.pop(name) for name in list(options) if name in _OPTIONS}
        super().__init__(**options)
        self.auto_mkdir = auto_mkdir
        try:
            self.image = _image.open(image, **known)
        except FileNotFoundError:
            if size is None:
                raise
            _image.create(image, size).close()
            self.image = _image.open(image, **known)

    @property
    def fsid(self) -> str:
        return f"directfs-{id(self.image)}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(part) for part in path]
        path = os.fspath(path)
        if path.startswith("directfs://"):
            path = path[len("directfs://") :]
        return "/" + path.strip("/") if path.strip("/") else cls.root_marker

    # Reading.

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Union[List[str], List[Dict[str, Any]]]:
        path = self._strip_protocol(path)
        info = self.info(path)
        if info["type"] != "directory":
            return [info] if detail else [path]
        names = [posixpath.join(path, name) for name in self.image.listdir(path)]
        if not detail:
            return sorted(names)
        found = []
        for name in sorted(names):
            try:
                found.append(self.info(name))
            except FileNotFoundError:
                pass  # It was removed meanwhile.
        return found

    def info(self, path: str, **kwargs: Any) -> Dict[str, Any]:
        path = self._strip_protocol(path)
        status = self.image.lstat(path)
        info: Dict[str, Any] = {"name": path, "islink": modes.S_ISLNK(status.st_mode)}
        if info["islink"]:
            info["destination"] = self.image.readlink(path)
            try:
                status = self.image.stat(path)
            except FileNotFoundError:
                pass  # A link that leads nowhere is described itself.
        info["type"] = _TYPES.get(modes.S_IFMT(status.st_mode), "other")
        info["size"] = status.st_size
        info["created"] = status.st_ctime
        for name in ("mode", "uid", "gid", "mtime", "ino", "nlink"):
            info[name] = getattr(status, "st_" + name)
        return info

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self.image.exists(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        return self.image.isdir(self._strip_protocol(path))

    def isfile(self, path: str) -> bool:
        return self.image.isfile(self._strip_protocol(path))

    def islink(self, path: str) -> bool:
        return self.image.islink(self._strip_protocol(path))

    def created(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None, **kwargs: Any) -> bytes:
        path = self._strip_protocol(path)
        if start is None and end is None:
            return self.image.read_bytes(path)
        with self.image.open_raw(path, os.O_RDONLY) as file:
            length = file.stat().st_size
            first, last, _ = slice(start, end).indices(length)
            return file.pread(max(last - first, 0), first)

    # Writing.

    def _open(self, path: str, mode: str = "rb", autocommit: bool = True, **kwargs: Any) -> IO[bytes]:
        path = self._strip_protocol(path)
        if "r" in mode:
            return self._stream(path, path, mode)
        self._make_parent(path)
        if autocommit:
            return self._stream(path, path, mode)
        return self._stream(path, self._temporary(path, mode), mode)

    def _stream(self, path: str, name: str, mode: str) -> IO[bytes]:
        flags, _ = flags_of(mode)
        raw = self.image.open_raw(name, flags, name_of_mode=mode)
        try:
            if modes.S_ISDIR(raw.stat().st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if flags & os.O_APPEND:
                raw.seek(0, os.SEEK_END)
            kind = _Random if "+" in mode else _Writer if raw.writable() else _Reader
            return kind(self, raw, path, mode, name != path)
        except BaseException:
            raw.close()
            raise

    def _temporary(self, path: str, mode: str) -> str:
        """A new name beside `path`, with its content if the mode appends to it."""
        if "x" in mode and self.image.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        temporary = posixpath.join(posixpath.dirname(path), f".directfs-{secrets.token_hex(8)}")
        if "a" in mode and self.image.exists(path):
            self.image.copyfile(path, temporary)
        return temporary

    def _make_parent(self, path: str) -> None:
        if self.auto_mkdir:
            self.image.makedirs(posixpath.dirname(path), exist_ok=True)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if self._intrans:
            with self.open(path, "xb" if mode == "create" else "wb") as file:
                file.write(value)
            return
        self._make_parent(path)
        if mode == "create":
            with self.image.open(path, "xb", 0) as file:
                file.write(value)
        else:
            self.image.write_bytes(path, value)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self.image.makedirs(path)
        else:
            self.image.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.image.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self.image.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        self.image.unlink(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: Optional[int] = None) -> None:
        for each in path if isinstance(path, list) else [path]:
            each = self._strip_protocol(each)
            if any(letter in each for letter in "*?[") or maxdepth is not None:
                super().rm(each, recursive=recursive, maxdepth=maxdepth)
            elif self.isdir(each) and not self.islink(each):
                if not recursive:
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), each)
                self.image.rmtree(each)
            else:
                self.image.unlink(each)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(source):
            self.image.makedirs(target, exist_ok=True)
        else:
            self._make_parent(target)
            self.image.copyfile(source, target)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: Optional[int] = None, **kwargs: Any) -> None:
        """Renames, which is atomic also for directories."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        self._make_parent(target)
        self.image.rename(source, target)

    mv_file = mv

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        self._make_parent(path)
        with self.image.open(path, "wb" if truncate else "ab", 0) as file:
            file.utime()

    def link(self, source: str, target: str, **kwargs: Any) -> None:
        self.image.link(self._strip_protocol(source), self._strip_protocol(target))

    def symlink(self, source: str, target: str, **kwargs: Any) -> None:
        self.image.symlink(self._strip_protocol(source), self._strip_protocol(target))


_OPTIONS = frozenset(
    ("read_only", "exclusive", "timeout", "commit_interval", "no_commit", "memory", "cached_files", "shared_memory_directory")
)

__all__ = ["DirectFileSystem"]
