"""Files of a DirectFS image, inside the process.

    import directfs

    with directfs.create("/dev/shm/work.img", size=1 << 30) as image:
        image.makedirs("mail/new")
        with image.open("mail/draft", "w") as file:
            file.write("Subject: hello\\n")
        image.rename("mail/draft", "mail/new/1")

The functions of an image are those of `os` and `shutil`; `image.path(...)` is like `pathlib.Path`.
Errors are `OSError` as `os` raises them; a remedy is a note of the exception. Threads may share
everything, and calls run without the interpreter's lock. So async programs use threads:
`await asyncio.to_thread(image.read_bytes, "mail/draft")`. After a fork only the parent may use an image; the child opens it again.
"""

from ._files import DiskUsage, Entries, FileSystem, Space
from ._image import Image, create, in_memory, open
from ._io import File
from ._native import DirEntry, __version__
from ._path import Path

__all__ = [
    "DirEntry",
    "DiskUsage",
    "Entries",
    "File",
    "FileSystem",
    "Image",
    "Path",
    "Space",
    "__version__",
    "create",
    "in_memory",
    "open",
]
