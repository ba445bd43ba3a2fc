"""Scratch directories and images."""

import os
import shutil
import tempfile
import unittest

import directfs

SIZE = 32 << 20


class Scratch(unittest.TestCase):
    """A directory in memory, and an image in it."""

    def setUp(self) -> None:
        parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.directory = tempfile.mkdtemp(dir=parent)
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.file = os.path.join(self.directory, "image")
        self.image = directfs.create(self.file, SIZE, sparse=True)
        self.addCleanup(self.image.close)

    def errno_of(self, number, call, *arguments, **options):
        with self.assertRaises(OSError) as caught:
            call(*arguments, **options)
        self.assertEqual(caught.exception.errno, number, caught.exception)
        return caught.exception
