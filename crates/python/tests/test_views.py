"""Views: files as memory, without a copy."""

import errno
import gc
import os
import subprocess
import sys
import unittest

from support import Scratch

import directfs

try:
    import numpy
except ImportError:
    numpy = None

TRUNCATE = """
import directfs, sys
with directfs.open(sys.argv[1]) as image:
    with image.open("file", "r+b", 0) as file:
        file.truncate(0)
    image.write_bytes("other", b"o" * 1000000)
"""


class Views(Scratch):
    def view(self, path="file"):
        with self.image.open(path, "rb", 0) as file:
            return file.view()

    def test_a_view_has_the_content_and_cannot_be_written(self):
        content = os.urandom(300_001)
        self.image.write_bytes("file", content)
        view = self.view()
        self.assertEqual((view.readonly, view.format, view.nbytes), (True, "B", len(content)))
        self.assertEqual(bytes(view), content)
        with self.assertRaises(TypeError):
            view[0] = 1
        # The object behind it can be written, which changes neither image nor file.
        view.obj[0] = content[0] ^ 1
        self.assertEqual(self.image.read_bytes("file"), content)

    def test_pieces_and_holes_of_a_file_stand_in_their_places(self):
        with self.image.open("file", "w+b", 0) as file, self.image.open("between", "wb", 0) as between:
            for number in range(20):
                file.pwrite(bytes([number + 1]) * 4096, number * 12288)
                between.pwrite(b"x" * 4096, number * 4096)
            content = file.pread(1 << 20, 0)
            self.assertEqual(bytes(file.view()), content)

    def test_an_empty_file_has_an_empty_view(self):
        self.image.write_bytes("file", b"")
        self.assertEqual(bytes(self.view()), b"")
        self.assertEqual(self.image.close(), "clean")

    def test_what_cannot_be_read_has_no_view(self):
        with self.image.open("file", "wb", 0) as file:
            self.assertRaises(OSError, file.view)
        self.image.mkdir("directory")
        with self.image.open_raw("directory", os.O_RDONLY) as directory:
            self.errno_of(errno.EISDIR, directory.view)
        closed = self.image.open("file", "rb", 0)
        closed.close()
        self.assertRaises(ValueError, closed.view)

    def test_a_view_outlives_truncation_removal_and_reuse_of_the_file(self):
        self.image.write_bytes("file", b"a" * 1_000_000)
        view = self.view()
        program = [sys.executable, "-c", TRUNCATE, self.file]
        subprocess.run(program, check=True, timeout=600)
        self.assertEqual(bytes(view), bytes(1_000_000), "zeros, and no other file")
        self.image.unlink("file")
        self.image.write_bytes("third", b"t" * 1_000_000)
        self.assertEqual(bytes(view[-5:]), bytes(5))
        view.release()
        self.assertEqual(self.image.close(), "clean")
        with directfs.open(self.file) as image:
            self.assertEqual(image.read_bytes("other"), b"o" * 1_000_000)

    def test_writes_show_in_a_view(self):
        self.image.write_bytes("file", b"a" * 10_000)
        view = self.view()
        with self.image.open("file", "r+b", 0) as file:
            file.pwrite(b"new", 5000)
        self.assertEqual(bytes(view[4999:5004]), b"anewa")

    def test_an_image_is_not_closed_below_a_view_or_what_was_made_of_it(self):
        self.image.write_bytes("file", b"content")
        part = self.view()[2:5]
        gc.collect()
        self.assertRaises(BufferError, self.image.close)
        self.assertEqual(bytes(part), b"nte")
        self.assertEqual(self.image.read_bytes("file"), b"content", "it is still open")
        part.release()
        gc.collect()
        self.assertEqual(self.image.close(), "clean")

    def test_a_view_is_readable_when_nothing_else_of_the_image_is_left(self):
        image = directfs.open(self.file)
        image.write_bytes("file", b"content")
        view = image.open("file", "rb", 0).view()
        del image
        gc.collect()
        self.assertEqual(bytes(view), b"content")

    def test_a_child_of_a_fork_may_read_and_drop_a_view(self):
        self.image.write_bytes("file", b"content")
        view = self.view()
        child = os.fork()
        if child == 0:
            is_right = bytes(view) == b"content"
            view.release()
            os._exit(0 if is_right else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(bytes(view), b"content")

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_numpy_works_on_a_view(self):
        self.image.write_bytes("file", numpy.arange(100_000, dtype="<u4").tobytes())
        array = numpy.frombuffer(self.view(), dtype="<u4")
        gc.collect()
        self.assertEqual((int(array.sum()), array.flags.writeable), (99_999 * 50_000, False))
        self.assertRaises(BufferError, self.image.close)
        del array
        gc.collect()
        self.assertEqual(self.image.close(), "clean")
