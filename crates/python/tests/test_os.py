"""The functions of `os` and `open`: each does on an image what it does on the machine."""

import errno
import io
import os
import shutil
import stat
import unittest

from support import SIZE, Scratch

import directfs


class Host:
    """The same functions below a directory of the machine."""

    def __init__(self, root):
        self.root = root

    def at(self, path):
        return os.path.join(self.root, path.lstrip("/"))

    def open(self, path, *arguments, **options):
        return open(self.at(path), *arguments, **options)

    def __getattr__(self, name):
        if name in ("exists", "lexists", "isdir", "isfile", "islink", "getsize"):
            function = getattr(os.path, name)
        else:
            function = {"rmtree": shutil.rmtree}.get(name) or getattr(os, name)
        paths = {"rename": 2, "replace": 2, "link": 2}.get(name, 1)

        def call(*arguments, **options):
            if name == "symlink":
                return function(arguments[0], self.at(arguments[1]))
            found = [self.at(path) for path in arguments[:paths]]
            return function(*found, *arguments[paths:], **options)

        return call


def shown(result):
    if isinstance(result, os.stat_result):
        size = 0 if stat.S_ISDIR(result.st_mode) else result.st_size
        return oct(result.st_mode), size, result.st_nlink, result.st_uid, result.st_gid
    return sorted(result) if isinstance(result, list) else result


def outcome(call):
    try:
        return shown(call())
    except Exception as error:  # What is compared.
        return type(error).__name__, getattr(error, "errno", None)


def stream(files, path, mode, *arguments, **options):
    """Opens, reads, writes and seeks; the results of all."""
    seen = []
    with files.open(path, mode, *arguments, **options) as file:
        text = "b" not in mode
        for step in (
            file.readable,
            file.writable,
            lambda: file.read(3),
            lambda: file.write("one\ntwo\n" if text else b"one\ntwo\n"),
            lambda: file.tell() if not text else None,
            lambda: file.seek(0),
            file.readline,
            lambda: file.readlines(),
            lambda: file.seek(0, 2),
            lambda: file.truncate(5),
            lambda: file.seek(-1),
        ):
            seen.append(outcome(step))
    seen.append(outcome(lambda: file.read()))
    return repr(seen)


OPERATIONS = [
    lambda f: f.mkdir("a", 0o750),
    lambda f: f.mkdir("a"),
    lambda f: f.mkdir("missing/a"),
    lambda f: f.makedirs("a/b/c"),
    lambda f: f.makedirs("a/b/c"),
    lambda f: f.makedirs("a/b/c", exist_ok=True),
    lambda f: stream(f, "a/file", "r"),
    lambda f: stream(f, "a/file", "w"),
    lambda f: stream(f, "a/file", "w", encoding="latin-1"),
    lambda f: stream(f, "a/file", "r"),
    lambda f: stream(f, "a/file", "x"),
    lambda f: stream(f, "a/file", "r+"),
    lambda f: stream(f, "a/file", "a"),
    lambda f: stream(f, "a/file", "a+"),
    lambda f: stream(f, "a/file", "rb"),
    lambda f: stream(f, "a/file", "rb+", 0),
    lambda f: stream(f, "a/file", "w+", 1),
    lambda f: stream(f, "a/file", "wb", 8),
    lambda f: stream(f, "a/file", "xb"),
    lambda f: stream(f, "a", "r"),
    lambda f: stream(f, "a", "w"),
    lambda f: stream(f, "a/file", "rw"),
    lambda f: stream(f, "a/file", ""),
    lambda f: stream(f, "a/file", "rb", encoding="utf-8"),
    lambda f: stream(f, "a/file", "r", 0),
    lambda f: f.stat("a/file"),
    lambda f: f.stat("missing"),
    lambda f: f.stat("a/file/x"),
    lambda f: f.chmod("a/file", 0o4711),
    lambda f: f.symlink("file", "a/link"),
    lambda f: f.symlink("file", "a/link"),
    lambda f: f.symlink("nowhere", "a/dangling"),
    lambda f: f.readlink("a/link"),
    lambda f: f.readlink("a/file"),
    lambda f: f.lstat("a/link"),
    lambda f: f.stat("a/link", follow_symlinks=False),
    lambda f: f.stat("a/link"),
    lambda f: [f.exists(p) for p in ("a", "a/link", "a/dangling", "x", "a/file/x")],
    lambda f: [f.lexists(p) for p in ("a", "a/link", "a/dangling", "x")],
    lambda f: [f.isdir("a"), f.isfile("a"), f.isfile("a/link"), f.islink("a/link"), f.islink("a/file")],
    lambda f: f.link("a/file", "a/second"),
    lambda f: f.stat("a/second"),
    lambda f: f.listdir("a"),
    lambda f: f.listdir("a/file"),
    lambda f: [(e.name, e.is_dir(), e.is_file(), e.is_symlink()) for e in f.scandir("a")],
    lambda f: [(sorted(d), sorted(n)) for _, d, n in f.walk("a")],
    lambda f: [(sorted(d), sorted(n)) for _, d, n in f.walk("a", topdown=False)],
    lambda f: list(f.walk("missing")),
    lambda f: f.utime("a/file", (5, 7.25)),
    lambda f: (f.stat("a/file").st_mtime, f.stat("a/file").st_atime_ns, f.stat("a/file").st_mtime_ns),
    lambda f: f.utime("a/link", ns=(-5, 10**9), follow_symlinks=False),
    lambda f: (f.lstat("a/link").st_atime_ns, f.lstat("a/link").st_mtime, f.stat("a/file").st_mtime),
    lambda f: f.utime("a/file", (1, 2), ns=(1, 2)),
    lambda f: f.utime("a/file"),
    lambda f: f.stat("a/file").st_mtime > 10**9,
    lambda f: f.truncate("a/file", 100000),
    lambda f: f.getsize("a/file"),
    lambda f: f.truncate("a/file", -1),
    lambda f: f.access("a/file", os.R_OK),
    lambda f: f.access("missing", os.F_OK),
    lambda f: f.chown("a/file", -1, -1),
    lambda f: f.rename("a/file", "moved"),
    lambda f: f.rename("missing", "moved"),
    lambda f: f.replace("moved", "a/second"),
    lambda f: f.rename("a", "a/b/inside"),
    lambda f: f.rmdir("a"),
    lambda f: f.unlink("a"),
    lambda f: f.unlink("missing"),
    lambda f: f.remove("a/link"),
    lambda f: f.setxattr("a/second", "user.colour", b"blue", os.XATTR_CREATE),
    lambda f: f.setxattr("a/second", "user.colour", b"red", os.XATTR_CREATE),
    lambda f: f.setxattr("a/second", "user.none", b"", os.XATTR_REPLACE),
    lambda f: f.getxattr("a/second", "user.colour"),
    lambda f: f.getxattr("a/second", "user.none"),
    lambda f: f.setxattr("a/second", "colour", b""),
    lambda f: f.listxattr("a/second"),
    lambda f: f.removexattr("a/second", "user.colour"),
    lambda f: f.rmtree("a"),
    lambda f: f.rmtree("a"),
    lambda f: f.listdir("/"),
]


class AsTheMachine(Scratch):
    def test_each_function_in_turn(self):
        root = os.path.join(self.directory, "host")
        os.mkdir(root)
        host = Host(root)
        os.setxattr(root, "user.probe", b"")
        for step, operation in enumerate(OPERATIONS):
            expected = outcome(lambda: operation(host))
            seen = outcome(lambda: operation(self.image))
            self.assertEqual(seen, expected, f"step {step}")


class Errors(Scratch):
    def test_an_error_has_the_names_of_the_call_and_the_text_of_the_machine(self):
        image = self.image
        image.makedirs("a/b")
        image.write_bytes("file", b"")
        calls = [
            (errno.ENOENT, image.stat, "missing"),
            (errno.ENOTEMPTY, image.rmdir, "a"),
            (errno.EEXIST, image.mkdir, "a"),
            (errno.EISDIR, image.open, "a"),
            (errno.ENODATA, image.getxattr, "file", "user.none"),
            (errno.EINVAL, image.rename, "a", "a/b/c"),
            (errno.EINVAL, image.stat, "a\0b"),
            (errno.ENOENT, image.path("missing").unlink),
        ]
        for number, call, *arguments in calls:
            error = self.errno_of(number, call, *arguments)
            self.assertEqual(error.strerror, os.strerror(number))
            self.assertEqual(error.filename, arguments[0] if arguments else "missing")
            # Neither the text nor its remedy has a name of another language.
            text = str(error) + " ".join(getattr(error, "__notes__", []))
            self.assertNotRegex(text, "remove_dir_all|set_permissions|with_credentials|--")
        error = self.errno_of(errno.EINVAL, image.rename, "a", "a/b/c")
        self.assertEqual((error.filename, error.filename2), ("a", "a/b/c"))
        self.assertIn("below itself", error.__notes__[0])
        self.assertIn("zero byte", self.errno_of(errno.EINVAL, image.stat, "a\0b").__notes__[0])
        other = self.file + "2"
        directfs.create(other, SIZE).close()
        error = self.errno_of(errno.EEXIST, directfs.create, other, SIZE)
        self.assertEqual(error.filename, other)
        self.assertIn("overwrite=True", error.__notes__[0])

    def test_a_listing_is_a_context(self):
        self.image.mkdir("a")
        self.image.write_bytes("a/b", b"")
        with self.image.scandir("a") as entries:
            self.assertEqual(next(entries).name, "b")
            self.assertRaises(StopIteration, next, entries)
        with self.image.scandir("a") as entries:
            pass
        self.assertEqual(list(entries), [])


class Status(Scratch):
    def test_every_field_is_where_os_has_it(self):
        self.image.write_bytes("file", b"x" * 5000)
        self.image.utime("file", ns=(-1_500_000_000, 7_250_000_000))
        found = self.image.stat("file")
        self.assertIs(type(found), os.stat_result)
        self.assertEqual((len(found), found[6], found[7], found[8]), (10, 5000, -2, 7))
        self.assertEqual((found.st_atime, found.st_mtime), (-1.5, 7.25))
        self.assertEqual((found.st_atime_ns, found.st_mtime_ns), (-1_500_000_000, 7_250_000_000))
        self.assertEqual((found.st_blksize, found.st_blocks, found.st_rdev), (4096, 16, 0))
        self.assertAlmostEqual(found.st_ctime, found.st_ctime_ns / 1e9, places=3)
        entry = next(self.image.scandir("/"))
        self.assertEqual((entry.path, entry.stat(), entry.inode()), ("/file", found, found.st_ino))
        self.assertEqual(repr(entry), "<DirEntry 'file'>")


class Streams(Scratch):
    def test_text_has_an_encoding_and_line_ends(self):
        with self.image.open("text", "w", encoding="utf-16", newline="\r\n") as file:
            file.write("grün\nblau\n")
        self.assertEqual(self.image.read_bytes("text").decode("utf-16"), "grün\r\nblau\r\n")
        with self.image.open("text", encoding="utf-16") as file:
            self.assertEqual(list(file), ["grün\n", "blau\n"])
        with self.image.open("text") as file:
            self.assertRaises(UnicodeDecodeError, file.read)

    def test_a_long_file_is_read_and_written_in_any_pieces(self):
        content = os.urandom(3_000_001)
        with self.image.open("long", "wb") as file:
            for start in range(0, len(content), 70_001):
                file.write(memoryview(content)[start : start + 70_001])
        self.assertEqual(self.image.read_bytes("long"), content)
        with self.image.open("long", "rb") as file:
            self.assertIsInstance(file, io.BufferedReader)
            self.assertEqual(file.read(1000) + file.read(), content)
            file.seek(5)
            room = bytearray(2_000_000)
            self.assertEqual(file.readinto(room), len(room))
            self.assertEqual(room, content[5:2_000_005])

    def test_raw_files_have_the_calls_by_descriptor(self):
        with self.image.open_raw("raw", os.O_RDWR | os.O_CREAT, 0o640) as file:
            self.assertEqual(file.pwrite(bytearray(b"hello world"), 0), 11)
            self.assertEqual(file.pread(100, 6), b"world")
            self.assertEqual(file.pread(1 << 60, 6), b"world")
            self.assertEqual(file.tell(), 0)
            self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o640)
            with file.dup() as second:
                second.seek(6)
                self.assertEqual(file.read(), b"world")
            file.setxattr("user.a", b"1")
            self.assertEqual((file.getxattr("user.a"), file.listxattr()), (b"1", ["user.a"]))
            file.removexattr("user.a")
            self.errno_of(61, file.getxattr, "user.a")
            file.fallocate(0, 1 << 20)
            file.fsync()
            file.chmod(0o600)
            file.chown(-1, -1)
            file.utime(ns=(1, 2))
            self.assertEqual((file.stat().st_size, file.stat().st_mtime_ns), (1 << 20, 2))
            self.assertRaises(OSError, file.fileno)
        self.assertRaises(ValueError, file.pread, 1, 0)
        self.assertRaises(ValueError, file.tell)


if __name__ == "__main__":
    unittest.main()
