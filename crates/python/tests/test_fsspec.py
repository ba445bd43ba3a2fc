"""`fsspec`: URLs, its functions, and copies between file systems."""

import os
import unittest

from support import SIZE, Scratch

try:
    import fsspec
except ImportError:
    fsspec = None


@unittest.skipIf(fsspec is None, "fsspec is not installed")
class Fsspec(Scratch):
    def setUp(self):
        super().setUp()
        self.fs = fsspec.filesystem("directfs", image=self.file)
        self.addCleanup(self.fs.image.close)
        self.addCleanup(fsspec.get_filesystem_class("directfs").clear_instance_cache)

    def test_urls_open_files(self):
        with fsspec.open("directfs://a.txt", "w", image=self.file) as file:
            file.write("hello")
        with fsspec.open("directfs:///a.txt", image=self.file) as file:
            self.assertEqual(file.read(), b"hello")
        with fsspec.open("directfs://b.gz", "wt", image=self.file, compression="gzip") as file:
            file.write("packed")
        with fsspec.open("directfs://b.gz", "rt", image=self.file, compression="infer") as file:
            self.assertEqual(file.read(), "packed")
        self.assertEqual(self.image.read_bytes("a.txt"), b"hello")

    def test_the_functions_of_a_file_system(self):
        fs = self.fs
        fs.makedirs("a/b", exist_ok=True)
        self.assertRaises(FileExistsError, fs.makedirs, "a/b")
        fs.pipe("a/one", b"0123456789")
        fs.pipe({"a/b/two": b"2", "a/b/three": b"33"})
        self.assertEqual(fs.ls("a", detail=False), ["/a/b", "/a/one"])
        kinds = {info["name"]: (info["type"], info["size"]) for info in fs.ls("directfs://a/b")}
        self.assertEqual(kinds, {"/a/b/two": ("file", 1), "/a/b/three": ("file", 2)})
        self.assertEqual(fs.find("a"), ["/a/b/three", "/a/b/two", "/a/one"])
        self.assertEqual(fs.glob("a/**/t*"), ["/a/b/three", "/a/b/two"])
        self.assertEqual((fs.cat_file("a/one", 2, 5), fs.cat_file("a/one", -3), fs.head("a/one", 2)), (b"234", b"789", b"01"))
        self.assertEqual(fs.cat("a/b/*"), {"/a/b/two": b"2", "/a/b/three": b"33"})
        self.assertEqual((fs.du("a"), fs.size("a/one"), fs.isdir("a"), fs.isfile("a")), (13, 10, True, False))
        fs.cp("a", "copy", recursive=True)
        self.assertEqual(fs.cat("copy/b/two"), b"2")
        fs.mv("copy", "moved")
        self.assertEqual((fs.exists("copy"), fs.exists("moved/one")), (False, True))
        fs.touch("a/one")
        self.assertEqual(fs.size("a/one"), 0)
        self.assertGreater(fs.modified("a/one").timestamp(), 10**9)
        fs.symlink("a/one", "link")
        self.assertTrue(fs.islink("link") and fs.info("link")["type"] == "file")
        self.assertRaises(IsADirectoryError, fs.rm, "moved")
        fs.rm("moved", recursive=True)
        fs.rm("a/b/t*")
        fs.rmdir("a/b")
        self.assertEqual(fs.find(""), ["/a/one", "/link"])
        self.assertRaises(FileNotFoundError, fs.info, "missing")
        self.assertRaises(FileNotFoundError, fs.ls, "missing")
        self.assertRaises(FileExistsError, fs.pipe_file, "a/one", b"", mode="create")

    def test_copies_to_and_from_the_machine(self):
        tree = os.path.join(self.directory, "tree")
        os.makedirs(os.path.join(tree, "sub"))
        for name in ("one", "sub/two"):
            with open(os.path.join(tree, name), "w") as file:
                file.write(name)
        self.fs.put(tree, "put", recursive=True)
        self.assertEqual(self.fs.cat("put/sub/two"), b"sub/two")
        back = os.path.join(self.directory, "back")
        self.fs.get("put", back, recursive=True)
        with open(os.path.join(back, "sub", "two")) as file:
            self.assertEqual(file.read(), "sub/two")

    def test_an_image_is_made_if_a_size_is_given(self):
        new = os.path.join(self.directory, "new")
        self.assertRaises(FileNotFoundError, fsspec.filesystem, "directfs", image=new)
        fs = fsspec.filesystem("directfs", image=new, size=SIZE)
        self.addCleanup(fs.image.close)
        fs.pipe("a", b"1")
        self.assertIs(fsspec.filesystem("directfs", image=new, size=SIZE), fs)

    def test_a_transaction_names_its_files_at_its_end(self):
        fs = self.fs
        fs.pipe("log", b"old")
        with fs.transaction:
            with fs.open("deep/new", "wb") as file:
                file.write(b"1")
            with fs.open("log", "ab") as file:
                file.write(b"+new")
            fs.pipe("piped", b"2")
            self.assertEqual((fs.exists("deep/new"), fs.exists("piped"), fs.cat("log")), (False, False, b"old"))
        self.assertEqual(fs.cat(["deep/new", "log", "piped"]), {"/deep/new": b"1", "/log": b"old+new", "/piped": b"2"})
        with self.assertRaises(KeyError):
            with fs.transaction:
                fs.pipe("log", b"lost")
                with self.assertRaises(FileExistsError):
                    fs.open("piped", "xb")
                raise KeyError
        self.assertEqual(fs.cat("log"), b"old+new")
        # No temporary file is left.
        self.assertEqual(fs.find("", withdirs=True), ["/", "/deep", "/deep/new", "/log", "/piped"])

    def test_files_know_their_size_and_make_their_directories(self):
        fs = self.fs
        fs.pipe("a/b/lines", b"one\ntwo\nthree\n")
        self.assertEqual(fs.read_block("a/b/lines", 2, 4, b"\n"), b"two\n")
        with fs.open("a/b/lines", "rb") as file:
            self.assertEqual(file.size, 14)
        with fs.open("c/d/e", "wb") as file:
            file.write(b"123")
        self.assertEqual(file.size, 3)
        strict = fsspec.filesystem("directfs", image=self.file, auto_mkdir=False)
        self.addCleanup(strict.image.close)
        self.assertRaises(FileNotFoundError, strict.pipe, "x/y", b"")
        self.assertRaises(FileNotFoundError, strict.open, "x/y", "wb")


if __name__ == "__main__":
    unittest.main()
