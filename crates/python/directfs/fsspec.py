"""`fsspec` on an image: `fsspec.open("directfs://a/b", image="/dev/shm/work.img")`.

Needs the package `fsspec`. Paths begin at the root of the image.
"""

from __future__ import annotations

import os
import posixpath
import stat as modes
from datetime import datetime, timezone
from typing import IO, Any, Dict, List, Optional, Union

from fsspec.spec import AbstractFileSystem

from . import _image

_TYPES = {modes.S_IFREG: "file", modes.S_IFDIR: "directory", modes.S_IFLNK: "link"}


class DirectFileSystem(AbstractFileSystem):
    """The files of the image in the file `image`.

    `size`: make the image if the file does not exist. Other options are those of `directfs.open`.
    Instances with the same options are the same object.
    """

    protocol = "directfs"
    root_marker = "/"

    def __init__(self, image: str, size: Optional[int] = None, **options: Any) -> None:
        known = {name: options.pop(name) for name in list(options) if name in _OPTIONS}
        super().__init__(**options)
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
        if not autocommit:
            raise NotImplementedError("transactions: write to a new name, and rename it, which is atomic")
        path = self._strip_protocol(path)
        return self.image.open(path, mode)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        path = self._strip_protocol(path)
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
                    raise IsADirectoryError(f"{each} is a directory: use recursive=True")
                self.image.rmtree(each)
            else:
                self.image.unlink(each)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(source):
            self.image.makedirs(target, exist_ok=True)
        else:
            self.image.makedirs(posixpath.dirname(target), exist_ok=True)
            self.image.copyfile(source, target)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: Optional[int] = None, **kwargs: Any) -> None:
        """Renames, which is atomic also for directories."""
        self.image.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    mv_file = mv

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        with self.image.open(path, "wb" if truncate else "ab", 0) as file:
            file.utime()  # type: ignore[attr-defined]

    def link(self, source: str, target: str, **kwargs: Any) -> None:
        self.image.link(self._strip_protocol(source), self._strip_protocol(target))

    def symlink(self, source: str, target: str, **kwargs: Any) -> None:
        self.image.symlink(self._strip_protocol(source), self._strip_protocol(target))


_OPTIONS = frozenset(
    ("read_only", "exclusive", "timeout", "commit_interval", "no_commit", "memory", "cached_files", "shared_memory_directory")
)

__all__ = ["DirectFileSystem"]
