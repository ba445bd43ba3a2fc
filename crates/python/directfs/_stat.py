"""Results of stat."""

from __future__ import annotations

import os
from typing import Tuple


def stat_result(found: Tuple[int, ...]) -> os.stat_result:
    mode, inode, links, uid, gid, size, accessed, modified, changed, rdev, allocated = found
    seconds = [ns // 1_000_000_000 for ns in (accessed, modified, changed)]
    return os.stat_result(
        (mode, inode, 0, links, uid, gid, size, *seconds),
        {
            "st_atime": accessed / 1e9,
            "st_mtime": modified / 1e9,
            "st_ctime": changed / 1e9,
            "st_atime_ns": accessed,
            "st_mtime_ns": modified,
            "st_ctime_ns": changed,
            "st_blksize": 4096,
            "st_blocks": allocated // 512,
            "st_rdev": rdev,
        },
    )
