"""Paths in an image, with the functions of `pathlib.Path`."""

from __future__ import annotations

import fnmatch
import os
import posixpath
import stat as modes
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Iterator, List, Optional, Tuple, Union

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from ._files import FileSystem

Other = Union[str, PurePosixPath, "Path"]


def _pure(part: Union[Other, "os.PathLike[str]"]) -> PurePosixPath:
    return part.pure if isinstance(part, Path) else PurePosixPath(part)


class Path:
    """A path in an image.

    It has no `__fspath__`: `open(path)` of the system would use another file of this name.
    `path.pure` is the `PurePosixPath`.
    """

    __slots__ = ("_fs", "_pure")

    def __init__(self, fs: FileSystem, *parts: Union[Other, "os.PathLike[str]"]) -> None:
        self._fs = fs
        self._pure = PurePosixPath(*map(_pure, parts)) if parts else PurePosixPath("/")

    def _with(self, pure: PurePosixPath) -> Path:
        return Path(self._fs, pure)

    # The path itself.

    @property
    def pure(self) -> PurePosixPath:
        return self._pure

    @property
    def filesystem(self) -> FileSystem:
        return self._fs

    @property
    def name(self) -> str:
        return self._pure.name

    @property
    def stem(self) -> str:
        return self._pure.stem

    @property
    def suffix(self) -> str:
        return self._pure.suffix

    @property
    def suffixes(self) -> List[str]:
        return self._pure.suffixes

    @property
    def parts(self) -> Tuple[str, ...]:
        return self._pure.parts

    @property
    def parent(self) -> Path:
        return self._with(self._pure.parent)

    @property
    def parents(self) -> List[Path]:
        return [self._with(parent) for parent in self._pure.parents]

    def __truediv__(self, other: Other) -> Path:
        return self._with(self._pure / _pure(other))

    def joinpath(self, *others: Other) -> Path:
        return self._with(self._pure.joinpath(*map(_pure, others)))

    def with_name(self, name: str) -> Path:
        return self._with(self._pure.with_name(name))

    def with_suffix(self, suffix: str) -> Path:
        return self._with(self._pure.with_suffix(suffix))

    def relative_to(self, other: Other) -> PurePosixPath:
        return self._pure.relative_to(_pure(other))

    def match(self, pattern: str) -> bool:
        return self._pure.match(pattern)

    def __str__(self) -> str:
        return str(self._pure)

    def __repr__(self) -> str:
        return f"directfs.Path({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and self._fs is other._fs and self._pure == other._pure

    def __lt__(self, other: Path) -> bool:
        return self._pure < other._pure

    def __hash__(self) -> int:
        return hash((id(self._fs), self._pure))

    # What is there.

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._fs.stat(self, follow_symlinks=follow_symlinks)

    def lstat(self) -> os.stat_result:
        return self._fs.lstat(self)

    def exists(self) -> bool:
        return self._fs.exists(self)

    def is_dir(self) -> bool:
        return self._fs.isdir(self)

    def is_file(self) -> bool:
        return self._fs.isfile(self)

    def is_symlink(self) -> bool:
        return self._fs.islink(self)

    def samefile(self, other: Other) -> bool:
        mine, its = self.stat(), self._fs.stat(other)
        return mine.st_ino == its.st_ino

    def iterdir(self) -> Iterator[Path]:
        for name in self._fs.listdir(self):
            yield self / name

    def glob(self, pattern: str) -> Iterator[Path]:
        """Paths below this one that match; `**` stands for any number of directories."""
        wanted = PurePosixPath(pattern)
        if not pattern or wanted.is_absolute():
            raise ValueError(f"Unacceptable pattern: {pattern!r}")
        seen = set()
        for found in self._select(list(wanted.parts)):
            if found not in seen:
                seen.add(found)
                yield found

    def rglob(self, pattern: str) -> Iterator[Path]:
        return self.glob(posixpath.join("**", pattern))

    def _select(self, parts: List[str]) -> Iterator[Path]:
        if not parts:
            yield self
            return
        part, rest = parts[0], parts[1:]
        if part == "**":
            for directory, _, _ in self._fs.walk(self):
                below = self._with(PurePosixPath(directory))
                yield from below._select(rest)
        elif not any(letter in part for letter in "*?["):
            below = self / part
            if self._fs.lexists(below):
                yield from below._select(rest)
        else:
            yield from self._select_names(part, rest)

    def _select_names(self, part: str, rest: List[str]) -> Iterator[Path]:
        if not self.is_dir():
            return
        for entry in self._fs.scandir(self):
            if fnmatch.fnmatchcase(entry.name, part) and (not rest or entry.is_dir()):
                yield from (self / entry.name)._select(rest)

    # Content.

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> IO[Any]:
        return self._fs.open(self, mode, buffering, encoding, errors, newline)

    def read_bytes(self) -> bytes:
        return self._fs.read_bytes(self)

    def write_bytes(self, data: "ReadableBuffer") -> int:
        self._fs.write_bytes(self, data)
        return memoryview(data).nbytes

    def read_text(self, encoding: Optional[str] = None, errors: Optional[str] = None) -> str:
        with self.open("r", encoding=encoding, errors=errors) as file:
            text: str = file.read()
            return text

    def write_text(self, data: str, encoding: Optional[str] = None, errors: Optional[str] = None) -> int:
        with self.open("w", encoding=encoding, errors=errors) as file:
            return file.write(data)

    # Changes.

    def touch(self, mode: int = 0o666, exist_ok: bool = True) -> None:
        flags = os.O_WRONLY | os.O_CREAT | (0 if exist_ok else os.O_EXCL)
        with self._fs.open_raw(self, flags, mode) as file:
            file.utime()

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        try:
            if parents and self.parent != self:
                self._fs.makedirs(self.parent, exist_ok=True)
            self._fs.mkdir(self, mode)
        except FileExistsError:
            if not exist_ok or not self.is_dir():
                raise

    def rmdir(self) -> None:
        self._fs.rmdir(self)

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._fs.unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rename(self, target: Other) -> Path:
        self._fs.rename(self, target)
        return self._with(_pure(target))

    replace = rename

    def symlink_to(self, target: Other) -> None:
        self._fs.symlink(target, self)

    def hardlink_to(self, target: Other) -> None:
        self._fs.link(target, self)

    def readlink(self) -> Path:
        return self._with(PurePosixPath(self._fs.readlink(self)))

    def chmod(self, mode: int) -> None:
        self._fs.chmod(self, modes.S_IMODE(mode))

    def rmtree(self) -> None:
        """Removes this directory and everything in it."""
        self._fs.rmtree(self)
