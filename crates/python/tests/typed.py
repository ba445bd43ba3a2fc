"""A program whose types mypy and pyright check; it need not run."""

import io
import os
from typing import IO, BinaryIO, List

from typing_extensions import assert_type

import directfs


def types(image: directfs.Image) -> None:
    assert_type(image.open("a"), io.TextIOWrapper)
    assert_type(image.open("a", "w", encoding="utf-8"), io.TextIOWrapper)
    assert_type(image.open("a", "rb"), BinaryIO)
    assert_type(image.open("a", "wb"), BinaryIO)
    assert_type(image.open("a", "r+b", 0), directfs.File)
    assert_type(image.read_bytes("a"), bytes)
    assert_type(image.listdir(), List[str])
    assert_type(image.stat("a"), os.stat_result)
    with image.scandir("mail") as entries:
        for entry in entries:
            assert_type(entry, directfs.DirEntry)
            assert_type(entry.name, str)
    path = image.path("mail") / "new"
    assert_type(path, directfs.Path)
    assert_type(path.parent.joinpath("x").read_text(), str)
    assert_type(image.disk_usage().free, int)
    assert_type(image.open_raw("a", os.O_RDONLY).view(), memoryview)
    assert_type(image.as_user(1000, 1000).subtree("mail"), directfs.FileSystem)


with directfs.create("/dev/shm/work.img", size=1 << 30) as created:
    types(created)
with directfs.open("/dev/shm/work.img", read_only=True) as opened:
    types(opened)


def takes_any_stream(image: directfs.Image) -> List[IO[bytes]]:
    return [image.open("a", "rb"), image.open("b", "wb")]
