"""Trees: copied inside an image, and between it and the machine."""

import os
import shutil
import unittest

from support import Scratch


def seen(files, top):
    """Everything that a copy keeps, of the machine (`os`) or of an image."""
    found, numbers = {}, {}
    for directory, directories, names in files.walk(top):
        for name in directories + names:
            path = directory + "/" + name
            status = files.lstat(path)
            number = numbers.setdefault(status.st_ino, path[len(top) :])
            link = files.readlink(path) if os.path.stat.S_ISLNK(status.st_mode) else None
            content = None
            if os.path.stat.S_ISREG(status.st_mode):
                with (open if files is os else files.open)(path, "rb") as file:
                    content = hash(file.read())
            attributes = [] if link else [(n, files.getxattr(path, n)) for n in files.listxattr(path)]
            found[path[len(top) :]] = (status.st_mode, status.st_mtime_ns, number, link, content, attributes)
    return found


class Trees(Scratch):
    def setUp(self):
        super().setUp()
        self.tree = os.path.join(self.directory, "tree")
        os.makedirs(self.tree + "/sub/empty")
        with open(self.tree + "/one", "wb") as file:
            file.write(os.urandom(100_000))
        os.link(self.tree + "/one", self.tree + "/sub/again")
        os.symlink("../one", self.tree + "/sub/link")
        os.symlink("nowhere", self.tree + "/sub/dangling")
        with open(self.tree + "/holes", "wb") as file:
            file.truncate(1 << 30)
            file.seek(500 << 20)
            file.write(b"in the middle")
        os.setxattr(self.tree + "/one", "user.colour", b"blue")
        os.chmod(self.tree + "/one", 0o640)
        os.utime(self.tree + "/one", ns=(1, 123_456_789))
        os.chmod(self.tree + "/sub", 0o750)
        os.utime(self.tree + "/sub", ns=(5, 6))
        self.addCleanup(os.unlink, self.tree + "/holes")

    def test_a_tree_comes_in_and_out_unchanged(self):
        os.truncate(self.tree + "/holes", 4096)  # A comparison reads it; its holes have a test below.
        self.image.put_tree(self.tree, "/in")
        self.assertEqual(seen(self.image, "/in"), seen(os, self.tree))
        out = os.path.join(self.directory, "out")
        self.image.get_tree("/in", out)
        self.assertEqual(seen(os, out), seen(os, self.tree))
        self.image.copytree("/in", "/copy", symlinks=True)
        self.assertEqual(seen(self.image, "/copy"), seen(os, self.tree))

    def test_a_program_of_another_owner_loses_its_privileges(self):
        self.image.mkdir("/programs")
        own = (os.geteuid(), os.getegid())
        for name, owner in [("own", own), ("other", (4001, 4001)), ("group", (own[0], 4001))]:
            self.image.path("/programs", name).write_bytes(b"")
            self.image.chown("/programs/" + name, *owner)
            self.image.chmod("/programs/" + name, 0o6755)
        out = os.path.join(self.directory, "programs")
        self.image.get_tree("/programs", out)
        self.image.as_user(*own).copytree("/programs", "/copied")
        for files, top in [(os, out), (self.image, "/copied")]:
            found = {name: files.stat(top + "/" + name).st_mode & 0o7777 for name in os.listdir(out)}
            self.assertEqual(found, {"own": 0o6755, "other": 0o755, "group": 0o755})

    def test_holes_stay_holes(self):
        # The file is larger than the image.
        self.image.put_tree(self.tree, "/in")
        self.assertEqual(self.image.getsize("/in/holes"), 1 << 30)
        with self.image.open("/in/holes", "rb", 0) as file:
            self.assertEqual(file.pread(13, 500 << 20), b"in the middle")
        self.assertLess(self.image.stat("/in/holes").st_blocks * 512, 1 << 20)

    def test_options_are_those_of_shutil(self):
        self.image.put_tree(self.tree, "in", ignore=shutil.ignore_patterns("holes", "dangling"))
        self.assertEqual(sorted(self.image.listdir("in/sub")), ["again", "empty", "link"])
        self.assertRaises(FileExistsError, self.image.put_tree, self.tree, "in")
        self.image.put_tree(self.tree + "/sub/empty", "in", dirs_exist_ok=True)
        self.image.copytree("in", "followed")
        self.assertFalse(self.image.islink("followed/sub/link"))
        self.assertEqual(self.image.getsize("followed/sub/link"), 100_000)
        os.mkfifo(self.tree + "/pipe")
        self.errno_of(95, self.image.put_tree, self.tree, "pipes")

    def test_move_and_disk_usage(self):
        self.image.makedirs("a/b")
        self.image.write_bytes("file", b"1")
        self.assertEqual(self.image.move("file", "a"), "a/file")
        self.assertEqual(self.image.move("a/file", "renamed"), "renamed")
        self.image.write_bytes("a/renamed", b"2")
        self.errno_of(17, self.image.move, "renamed", "a")
        usage = self.image.disk_usage()
        self.assertEqual(usage.used + usage.free, usage.total)


if __name__ == "__main__":
    unittest.main()
