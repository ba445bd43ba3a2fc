"""Paths in an image, with the functions of `pathlib.Path`."""

from __future__ import annotations

import errno
import fnmatch
import io
import os
import posixpath
import stat as modes
import sys
from pathlib import PurePosixPath
from typing import (
    IO,
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Callable,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
    Union,
    overload,
)

if TYPE_CHECKING:
    from _typeshed import OpenBinaryMode, OpenTextMode, ReadableBuffer

    from ._files import FileSystem

Other = Union[str, PurePosixPath, "Path"]


#: Symbolic links on the way of one path, as in Linux.
_LINKS_MAX = 40
#: A pattern that ends with `**` finds files from Python 3.13 on, before only directories.
_LAST_STARS_FIND_FILES = sys.version_info >= (3, 13)


def _pure(part: Union[Other, "os.PathLike[str]"]) -> PurePosixPath:
    return part.pure if isinstance(part, Path) else PurePosixPath(part)


def _name_matches(name: str, pattern: str, case_sensitive: Optional[bool]) -> bool:
    if case_sensitive is False:
        name, pattern = name.lower(), pattern.lower()
    return fnmatch.fnmatchcase(name, pattern)


def _parts_match(parts: Sequence[str], pattern: Sequence[str], case_sensitive: Optional[bool]) -> bool:
    """Whether names match, where `**` stands for any number: one row of a table for each name."""
    row = [True]
    for part in pattern:
        row.append(row[-1] and part == "**")
    for name in parts:
        above, row = row, [False]
        for index, part in enumerate(pattern):
            if part == "**":
                row.append(row[index] or above[index + 1])
            else:
                row.append(above[index] and _name_matches(name, part, case_sensitive))
    return row[-1]


class Path:
    """A path in an image, with all of `pathlib.Path` up to Python 3.14 that an image has.

    There is no working directory and no home: `cwd`, `home` and `expanduser` are missing. It has no `__fspath__`: `open(path)` of the system would use another file of this name.
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

    @property
    def anchor(self) -> str:
        return self._pure.anchor

    @property
    def drive(self) -> str:
        return ""

    @property
    def root(self) -> str:
        return self._pure.root

    def __truediv__(self, other: Other) -> Path:
        return self._with(self._pure / _pure(other))

    def __rtruediv__(self, other: Other) -> Path:
        return self._with(_pure(other) / self._pure)

    def joinpath(self, *others: Other) -> Path:
        return self._with(self._pure.joinpath(*map(_pure, others)))

    def with_name(self, name: str) -> Path:
        return self._with(self._pure.with_name(name))

    def with_suffix(self, suffix: str) -> Path:
        return self._with(self._pure.with_suffix(suffix))

    def with_stem(self, stem: str) -> Path:
        return self._with(self._pure.with_stem(stem))

    def with_segments(self, *segments: Other) -> Path:
        return Path(self._fs, *segments)

    def relative_to(self, other: Other, *, walk_up: bool = False) -> PurePosixPath:
        if not walk_up:
            return self._pure.relative_to(_pure(other))
        base = _pure(other)
        if base.is_absolute() != self.is_absolute():
            raise ValueError(f"{str(self)!r} and {str(base)!r} have different anchors")
        return PurePosixPath(posixpath.relpath(str(self), str(base)))

    def is_relative_to(self, other: Other) -> bool:
        base = _pure(other)
        return base == self._pure or base in self._pure.parents

    def is_absolute(self) -> bool:
        return self._pure.is_absolute()

    def is_reserved(self) -> bool:
        return False

    def as_posix(self) -> str:
        return str(self)

    def as_uri(self) -> str:
        """The URL by which `fsspec` opens the file, with the image as an option."""
        return "directfs:/" + str(self.absolute())

    def match(self, pattern: str, *, case_sensitive: Optional[bool] = None) -> bool:
        wanted = PurePosixPath(pattern)
        parts = self._pure.parts
        if not wanted.parts:
            raise ValueError("empty pattern")
        if wanted.is_absolute():
            is_long_enough = len(parts) == len(wanted.parts)
        else:
            is_long_enough = len(parts) >= len(wanted.parts)
        pairs = zip(reversed(parts), reversed(wanted.parts))
        return is_long_enough and all(_name_matches(name, part, case_sensitive) for name, part in pairs)

    def full_match(self, pattern: str, *, case_sensitive: Optional[bool] = None) -> bool:
        """Whether the whole path matches; `**` stands for any number of parts."""
        return _parts_match(self._pure.parts, PurePosixPath(pattern).parts, case_sensitive)

    def __str__(self) -> str:
        return str(self._pure)

    def __repr__(self) -> str:
        return f"directfs.Path({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and self._fs is other._fs and self._pure == other._pure

    def __lt__(self, other: Path) -> bool:
        return self._pure < other._pure

    def __le__(self, other: Path) -> bool:
        return self._pure <= other._pure

    def __gt__(self, other: Path) -> bool:
        return self._pure > other._pure

    def __ge__(self, other: Path) -> bool:
        return self._pure >= other._pure

    def __hash__(self) -> int:
        return hash((id(self._fs), self._pure))

    # What is there.

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._fs.stat(self, follow_symlinks=follow_symlinks)

    def lstat(self) -> os.stat_result:
        return self._fs.lstat(self)

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self._fs.exists(self) if follow_symlinks else self._fs.lexists(self)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(modes.S_IFDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(modes.S_IFREG, follow_symlinks)

    def is_symlink(self) -> bool:
        return self._is(modes.S_IFLNK, False)

    def is_fifo(self) -> bool:
        return self._is(modes.S_IFIFO)

    def is_socket(self) -> bool:
        return self._is(modes.S_IFSOCK)

    def is_block_device(self) -> bool:
        return self._is(modes.S_IFBLK)

    def is_char_device(self) -> bool:
        return self._is(modes.S_IFCHR)

    def is_mount(self) -> bool:
        """Whether it is the root of the image."""
        return self.exists() and self._fs.stat(self).st_ino == self._fs.stat("/").st_ino

    def is_junction(self) -> bool:
        return False

    def _is(self, kind: int, follow_symlinks: bool = True) -> bool:
        return modes.S_IFMT(self._fs._mode(self, follow_symlinks)) == kind

    @property
    def info(self) -> Path:
        """What `pathlib.Path.info` is: an object with `exists`, `is_dir`, `is_file`, `is_symlink`."""
        return self

    def owner(self, *, follow_symlinks: bool = True) -> str:
        import pwd

        return pwd.getpwuid(self.stat(follow_symlinks=follow_symlinks).st_uid).pw_name

    def group(self, *, follow_symlinks: bool = True) -> str:
        import grp

        return grp.getgrgid(self.stat(follow_symlinks=follow_symlinks).st_gid).gr_name

    def samefile(self, other: Other) -> bool:
        return self.stat().st_ino == self._fs.stat(other).st_ino

    def absolute(self) -> Path:
        """From the root of the image, since there is no working directory."""
        return self._with(PurePosixPath("/") / self._pure)

    def resolve(self, strict: bool = False) -> Path:
        """The path without symbolic links and `..`. `strict`: all of it must exist."""
        done, rest, links = PurePosixPath("/"), list(reversed(self.absolute().parts[1:])), 0
        while rest:
            part = rest.pop()
            if part == "..":
                done = done.parent
                continue
            path = done / part
            try:
                is_link = modes.S_ISLNK(self._fs.lstat(path).st_mode)
            except OSError:
                if strict:
                    raise
                is_link = False
            if not is_link:
                done = path
                continue
            links += 1
            if links > _LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self))
            target = PurePosixPath(self._fs.readlink(path))
            done = PurePosixPath("/") if target.is_absolute() else done
            rest.extend(reversed([part for part in target.parts if part != "/"]))
        if strict:
            self._fs.stat(done)
        return self._with(done)

    def walk(
        self,
        top_down: bool = True,
        on_error: Optional[Callable[[OSError], Any]] = None,
        follow_symlinks: bool = False,
    ) -> Iterator[Tuple[Path, List[str], List[str]]]:
        for directory, directories, files in self._fs.walk(self, top_down, on_error, follow_symlinks):
            if follow_symlinks:
                yield self._with(PurePosixPath(directory)), directories, files
                continue
            # A link to a directory counts as a file here, unlike in `os.walk`.
            links = [name for name in directories if self._fs.islink(posixpath.join(directory, name))]
            directories[:] = [name for name in directories if name not in links]
            yield self._with(PurePosixPath(directory)), directories, files + links

    def iterdir(self) -> Iterator[Path]:
        for name in self._fs.listdir(self):
            yield self / name

    def glob(
        self, pattern: str, *, case_sensitive: Optional[bool] = None, recurse_symlinks: bool = False
    ) -> Iterator[Path]:
        """Paths below this one that match; `**` stands for any number of directories."""
        wanted = PurePosixPath(pattern)
        if not wanted.parts:
            raise ValueError(f"Unacceptable pattern: {str(pattern)!r}")
        if wanted.is_absolute():
            raise NotImplementedError("Non-relative patterns are unsupported")
        seen = set()
        for found in self._select(list(wanted.parts), case_sensitive, recurse_symlinks):
            if found not in seen:
                seen.add(found)
                yield found

    def rglob(
        self, pattern: str, *, case_sensitive: Optional[bool] = None, recurse_symlinks: bool = False
    ) -> Iterator[Path]:
        below = posixpath.join("**", pattern)
        return self.glob(below, case_sensitive=case_sensitive, recurse_symlinks=recurse_symlinks)

    def _select(self, parts: List[str], case_sensitive: Optional[bool], links: bool) -> Iterator[Path]:
        if not parts:
            yield self
            return
        part, rest = parts[0], parts[1:]
        if part == "**":
            for directory, _, files in self._fs.walk(self, followlinks=links):
                below = self._with(PurePosixPath(directory))
                yield from below._select(rest, case_sensitive, links)
                if not rest and _LAST_STARS_FIND_FILES:
                    yield from (below / name for name in files)
        elif not any(letter in part for letter in "*?[") and case_sensitive is not False:
            below = self / part
            if self._fs.lexists(below):
                yield from below._select(rest, case_sensitive, links)
        elif self.is_dir():
            from ._files import leads_to_directory

            for entry in self._fs.scandir(self):
                if _name_matches(entry.name, part, case_sensitive) and (not rest or leads_to_directory(entry)):
                    yield from (self / entry.name)._select(rest, case_sensitive, links)

    # Content.

    @overload
    def open(
        self,
        mode: OpenTextMode = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> io.TextIOWrapper: ...
    @overload
    def open(self, mode: OpenBinaryMode, buffering: int = -1) -> BinaryIO: ...
    @overload
    def open(
        self,
        mode: str,
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> IO[Any]: ...
    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> Any:
        return self._fs.open(self, mode, buffering, encoding, errors, newline)

    def read_bytes(self) -> bytes:
        return self._fs.read_bytes(self)

    def write_bytes(self, data: "ReadableBuffer") -> int:
        self._fs.write_bytes(self, data)
        return memoryview(data).nbytes

    def read_text(
        self, encoding: Optional[str] = None, errors: Optional[str] = None, newline: Optional[str] = None
    ) -> str:
        with self.open("r", encoding=encoding, errors=errors, newline=newline) as file:
            return file.read()

    def write_text(
        self,
        data: str,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> int:
        with self.open("w", encoding=encoding, errors=errors, newline=newline) as file:
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

    def symlink_to(self, target: Other, target_is_directory: bool = False) -> None:
        self._fs.symlink(target, self)

    def hardlink_to(self, target: Other) -> None:
        self._fs.link(target, self)

    def readlink(self) -> Path:
        return self._with(PurePosixPath(self._fs.readlink(self)))

    def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None:
        if not follow_symlinks and self.is_symlink():
            raise NotImplementedError("symbolic links have no permissions")
        self._fs.chmod(self, modes.S_IMODE(mode))

    def lchmod(self, mode: int) -> None:
        self.chmod(mode, follow_symlinks=False)

    def copy(self, target: Other, *, follow_symlinks: bool = True, preserve_metadata: bool = False) -> Path:
        """Copies a file or a tree inside the image, as `pathlib.Path.copy` of Python 3.14."""
        copied = self._with(_pure(target))
        if not follow_symlinks and self.is_symlink():
            self._fs.symlink(self._fs.readlink(self), copied)
        elif self.is_dir():
            self._fs.copytree(self, copied, symlinks=not follow_symlinks)
        else:
            self._fs.copyfile(self, copied)
            if preserve_metadata:
                found = self.stat()
                self._fs.utime(copied, ns=(found.st_atime_ns, found.st_mtime_ns))
        return copied

    def copy_into(
        self, target_dir: Other, *, follow_symlinks: bool = True, preserve_metadata: bool = False
    ) -> Path:
        target = _pure(target_dir) / self.name
        return self.copy(target, follow_symlinks=follow_symlinks, preserve_metadata=preserve_metadata)

    def move(self, target: Other) -> Path:
        """Renames, which is atomic."""
        return self.rename(target)

    def move_into(self, target_dir: Other) -> Path:
        return self.rename(_pure(target_dir) / self.name)

    def rmtree(self) -> None:
        """Removes this directory and everything in it."""
        self._fs.rmtree(self)
