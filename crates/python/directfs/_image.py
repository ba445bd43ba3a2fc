"""Images: opening, creating and closing them."""

from __future__ import annotations

import atexit
import errno
import os
import weakref
from types import TracebackType
from typing import Optional, Tuple, Type

from . import _native
from ._files import AnyPath, FileSystem


class Image(FileSystem):
    """An image that this process has open, and its files.

    It is closed by `close`, by a `with` block, or at the interpreter's end. A process that ends
    otherwise leaves the image as a crash does: the next use recovers it.
    """

    def __init__(self, native: _native.Image) -> None:
        super().__init__(native.files())
        self._native = native
        _open_images.add(self)

    @property
    def durability(self) -> str:
        """What the effect of a returned call survives.

        `power-failure`; `process-death`; `committed`: also a power failure if it was synced or is
        older than the commit interval; `clean-close`: a power failure may destroy the image;
        `nothing`.
        """
        return self._native.durability()

    @property
    def was_recovered(self) -> bool:
        """Whether opening recovered the image, because its last use did not close it."""
        return self._native.was_recovered()

    def sync(self) -> None:
        """Commits the image to its disk: all calls so far survive a power failure."""
        self._native.sync()

    def snapshot(self, file: AnyPath) -> None:
        """Copies the image to a new file while programs use it: the state of one moment."""
        self._native.snapshot(file)

    def close(self) -> Optional[str]:
        """Writes what buffers of open files hold, closes all files, and detaches.

        It waits for calls in progress. Returns `clean`, `others-remain` or `read-only`; `None` if
        it was closed before. If a buffer cannot be written, the image is closed all the same.
        """
        if not self._buffers.are_own():
            raise OSError(errno.EOWNERDEAD, os.strerror(errno.EOWNERDEAD))
        failure: Optional[OSError] = None
        try:
            failure = self._buffers.write()
        finally:
            try:
                closed = self._native.close()
            except OSError as error:
                raise error from failure
        self._buffers.forget()
        if failure is not None:
            raise failure
        return closed

    def __enter__(self) -> Image:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        # The child of a fork leaves it to the parent.
        if self._buffers.are_own():
            self.close()


_open_images: weakref.WeakSet[Image] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for image in list(_open_images):
        try:
            if image._buffers.are_own():
                image.close()
        except (OSError, BufferError):
            pass  # It was truncated, or a view lives.


def open(
    path: AnyPath,
    *,
    read_only: bool = False,
    exclusive: bool = False,
    timeout: Optional[float] = None,
    commit_interval: Optional[float] = None,
    no_commit: bool = False,
    memory: Optional[int] = None,
    cached_files: int = 0,
    shared_memory_directory: Optional[AnyPath] = None,
) -> Image:
    """Opens an image, shared with other processes.

    `read_only`: refuse all changes. `exclusive`: keep other processes out. `timeout`: seconds to
    wait for a process that excludes this one (5). `commit_interval`: seconds between commits of an
    image on a disk (5; 0: only at a sync). `no_commit`: use it in place; a power failure may destroy
    it. `memory`: bytes for the working copy of an image on a disk.
    """
    return Image(
        _native.Image.open(
            path,
            read_only=read_only,
            exclusive=exclusive,
            timeout=timeout,
            commit_interval=commit_interval,
            no_commit=no_commit,
            memory=memory,
            cached_files=cached_files,
            shared_memory_directory=shared_memory_directory,
        )
    )


def create(
    path: AnyPath,
    size: int = 0,
    *,
    label: str = "",
    files: int = 0,
    overwrite: bool = False,
    sparse: bool = False,
    mode: int = 0o600,
    root_mode: int = 0o755,
    root_owner: Optional[Tuple[int, int]] = None,
) -> Image:
    """Makes an image of `size` bytes in a new or empty file, and opens it.

    `files`: how many it can hold (one per 2 KiB). `overwrite`: replace what the file holds.
    `sparse`: take space as the image fills. `mode`: of the image file.
    """
    return Image(
        _native.Image.create(
            path,
            size=size,
            label=label,
            files=files,
            overwrite=overwrite,
            sparse=sparse,
            mode=mode,
            root_mode=root_mode,
            root_owner=root_owner,
        )
    )


def in_memory(size: int) -> Image:
    """A new image in memory, for this process alone. It vanishes when it is closed."""
    return Image(_native.Image.in_memory(size))
