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
        for root in (self.host, self.ours):
            self.assertRaises(ValueError, lambda: list(root.glob("")))
            self.assertRaises(NotImplementedError, lambda: list(root.glob("/a")))

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

    def test_every_name_of_pathlib_is_there(self):
        newer = (
            "absolute anchor as_posix as_uri chmod copy copy_into drive exists full_match glob group hardlink_to info "
            "is_absolute is_block_device is_char_device is_dir is_fifo is_file is_junction is_mount is_relative_to "
            "is_reserved is_socket is_symlink iterdir joinpath lchmod lstat match mkdir move move_into name open owner "
            "parent parents parts read_bytes read_text readlink relative_to rename replace resolve rglob rmdir root "
            "samefile stat stem suffix suffixes symlink_to touch unlink walk with_name with_segments with_stem "
            "with_suffix write_bytes write_text"
        ).split()
        # What needs a working directory, a home, or the machine's names of files; removed in 3.12.
        missing = {"cwd", "home", "expanduser", "from_uri", "parser", "link_to"}
        here = {name for name in dir(pathlib.Path) if not name.startswith("_")}
        for name in sorted(here.union(newer) - missing):
            self.assertTrue(hasattr(directfs.Path, name), name)

    def test_pure_functions_agree_with_pathlib(self):
        for text in ("/", "/a", "/a/b.tar.gz", "a/b", "/a/../b"):
            pure, path = pathlib.PurePosixPath(text), self.image.path(text)
            for name in ("anchor", "drive", "root", "name", "stem", "parts"):
                self.assertEqual(getattr(path, name), getattr(pure, name), (text, name))
            self.assertEqual((path.is_absolute(), path.as_posix()), (pure.is_absolute(), pure.as_posix()))
            for pattern in ("*", "/*", "a/*", "*.gz", "/a/*", "b", "/", "?/b"):
                self.assertEqual(path.match(pattern), pure.match(pattern), (text, pattern))
            for other in ("/", "/a", "a", "/a/b"):
                if hasattr(pure, "is_relative_to"):
                    self.assertEqual(path.is_relative_to(other), pure.is_relative_to(other), (text, other))
        path = self.image.path("/a/b/c.py")
        self.assertEqual(str("/x" / self.image.path("y")), "/x/y")
        self.assertEqual(str(path.with_stem("d")), "/a/b/d.py")
        self.assertEqual(str(path.relative_to("/a/x", walk_up=True)), "../b/c.py")
        self.assertEqual(path.as_uri(), "directfs://a/b/c.py")
        found = [path.full_match(p) for p in ("/a/**/*.py", "/**", "**/c.py", "*.py", "/a/*/C.PY", "/a/**")]
        self.assertEqual(found, [True, True, True, False, False, True])
        self.assertTrue(path.full_match("/A/**", case_sensitive=False))

    def test_paths_are_resolved_and_walked(self):
        for root in (self.host, self.ours):
            (root / "src" / "up").symlink_to("../src/deep", target_is_directory=True)
            (root / "loop").symlink_to("loop")
            base = root.resolve()
            for text in ("src/up/b.py", "src/up/../a.py", "link.py", "none/x/../y", "src/./deep"):
                resolved = (root / text).resolve().relative_to(base)
                self.assertEqual(resolved, (self.host / text).resolve().relative_to(self.host.resolve()), text)
            self.assertRaises(FileNotFoundError, (root / "none").resolve, strict=True)
        self.assertRaises(OSError, (self.ours / "loop").resolve)
        walked = [(str(top.pure), sorted(dirs), sorted(files)) for top, dirs, files in self.ours.walk()]
        self.assertEqual(
            sorted(walked),
            [
                ("/", ["src"], ["link.py", "loop", "top.py"]),
                ("/src", ["deep"], ["a.py", "up"]),
                ("/src/deep", [], ["b.py", "c.txt"]),
            ],
        )
        self.assertEqual((self.ours / "src").owner(), (self.host / "src").owner())
        self.assertEqual((self.ours / "src").group(), (self.host / "src").group())
        self.assertTrue(self.ours.is_mount() and not (self.ours / "src").is_mount())
        self.assertFalse((self.ours / "link.py").is_file(follow_symlinks=False))
        self.assertTrue((self.ours / "loop").exists(follow_symlinks=False) and self.ours.info.is_dir())
        self.assertEqual([p.name for p in self.ours.glob("TOP.*", case_sensitive=False)], ["top.py"])

    def test_copies_and_moves(self):
        ours = self.ours
        self.assertEqual((ours / "src").copy("/copied"), ours / "copied")
        self.assertEqual((ours / "copied" / "deep" / "b.py").read_text(), "b")
        (ours / "top.py").copy_into("/copied", preserve_metadata=True)
        self.assertEqual((ours / "copied/top.py").stat().st_mtime_ns, (ours / "top.py").stat().st_mtime_ns)
        (ours / "link.py").copy("/link2", follow_symlinks=False)
        self.assertEqual(str((ours / "link2").readlink()), "top.py")
        self.assertEqual(str((ours / "top.py").move_into("/src")), "/src/top.py")
        self.assertEqual(str((ours / "copied").move("/moved")), "/moved")
        self.assertTrue((ours / "moved/a.py").is_file() and not (ours / "copied").exists())
        (ours / "lines").write_text("a\n", newline="\r\n")
        self.assertEqual((ours / "lines").read_bytes(), b"a\r\n")

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
