"""Paths: each does what `pathlib.Path` does."""

import os
import pathlib
import unittest

from support import Scratch

import directfs


def tree(path):
    (path / "src" / "deep").mkdir(parents=True)
    (path / "src" / "a.py").write_text("a")
    (path / "src" / "deep" / "b.py").write_text("b")
    (path / "src" / "deep" / "c.txt").write_bytes(b"c")
    (path / "top.py").touch()
    (path / "link.py").symlink_to("top.py")


class Paths(Scratch):
    def setUp(self):
        super().setUp()
        root = pathlib.Path(self.directory) / "host"
        root.mkdir()
        self.host, self.ours = root, self.image.path()
        tree(self.host)
        tree(self.ours)

    def test_patterns_find_the_same(self):
        for pattern in ("*.py", "**/*.py", "src/*", "src/**/c.*", "src/a.py", "*/deep/*", "**/deep", "none/*", "*.none"):
            expected = sorted(str(path.relative_to(self.host)) for path in self.host.glob(pattern))
            found = sorted(str(path.relative_to("/")) for path in self.ours.glob(pattern))
            self.assertEqual(found, expected, pattern)
        self.assertEqual(len(list(self.ours.rglob("*.py"))), len(list(self.host.rglob("*.py"))))
        self.assertRaises(ValueError, lambda: list(self.ours.glob("")))

    def test_parts_and_operators(self):
        path = self.ours / "src" / "deep" / "c.txt"
        pure = pathlib.PurePosixPath("/src/deep/c.txt")
        self.assertEqual(path.pure, pure)
        for name in ("name", "stem", "suffix", "suffixes", "parts"):
            self.assertEqual(getattr(path, name), getattr(pure, name))
        self.assertEqual([str(parent) for parent in path.parents], [str(parent) for parent in pure.parents])
        self.assertEqual(path.with_suffix(".py").name, "c.py")
        self.assertEqual(path.parent.parent / "a.py", self.ours.joinpath("src", "a.py"))
        self.assertEqual({path: 1}[self.image.path("/src/deep/c.txt")], 1)
        self.assertTrue(path.match("*.txt"))
        # The system's open must not take it for a file of the machine.
        self.assertRaises(TypeError, open, path)
        self.assertRaises(TypeError, os.stat, path)

    def test_contents_and_kinds(self):
        path = self.ours / "src" / "a.py"
        self.assertEqual((path.read_text(), path.stat().st_size, path.write_text("äö")), ("a", 1, 2))
        self.assertEqual(path.read_bytes(), "äö".encode())
        self.assertTrue(path.is_file() and path.parent.is_dir() and (self.ours / "link.py").is_symlink())
        self.assertEqual((self.ours / "link.py").readlink().name, "top.py")
        self.assertTrue((self.ours / "link.py").samefile(self.ours / "top.py"))
        self.assertEqual(sorted(found.name for found in self.ours.iterdir()), ["link.py", "src", "top.py"])

    def test_changes_and_their_errors(self):
        for root in (self.host, self.ours):
            self.assertRaises(FileExistsError, (root / "src").mkdir)
            (root / "src").mkdir(exist_ok=True)
            self.assertRaises(FileExistsError, (root / "top.py").mkdir, exist_ok=True)
            self.assertRaises(FileNotFoundError, (root / "x" / "y").mkdir)
            self.assertRaises(FileExistsError, (root / "top.py").touch, exist_ok=False)
            self.assertRaises(FileNotFoundError, (root / "missing").unlink)
            (root / "missing").unlink(missing_ok=True)
            self.assertRaises(OSError, (root / "src").rmdir)
            moved = (root / "top.py").rename(root / "moved.py")
            self.assertTrue(moved.exists() and not (root / "top.py").exists())
            (root / "again.py").hardlink_to(moved)
            self.assertEqual(moved.stat().st_nlink, 2)
            moved.chmod(0o600)
            self.assertEqual(moved.stat().st_mode & 0o777, 0o600)
        (self.ours / "src").rmtree()
        self.assertFalse((self.ours / "src").exists())
        self.assertIsInstance(self.ours, directfs.Path)


if __name__ == "__main__":
    unittest.main()
