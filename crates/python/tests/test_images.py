"""Images: opening and closing, errors, users, locks, threads and processes."""

import asyncio
import errno
import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import unittest
import warnings
from concurrent.futures import ThreadPoolExecutor

from support import SIZE, Scratch

import directfs

COUNT = """
import directfs, sys
with directfs.open(sys.argv[1]) as image:
    for _ in range(int(sys.argv[2])):
        with image.open("counter", "r+b", 0) as file:
            file.lock()
            number = int(file.pread(20, 0) or b"0") + 1
            file.pwrite(str(number).encode(), 0)
"""


README = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "README.md")


class Images(Scratch):
    def test_the_examples_of_the_readme(self):
        with open(README, encoding="utf-8") as file:
            blocks = re.findall(r"(?:^(?:    .*)?\n)+", file.read(), re.MULTILINE)
        examples = [block for block in map(textwrap.dedent, blocks) if "image." in block]
        self.assertEqual(len(examples), 3, examples)
        for there, here in (("/dev/shm/work.img", "work.img"), ("/usr/include", "tree"), ("/tmp/include", "back")):
            here = os.path.join(self.directory, here)
            examples = [example.replace(there, here).replace("1 << 30", "1 << 25") for example in examples]
        os.makedirs(os.path.join(self.directory, "tree", "sub"))
        names = {}
        exec(examples[0], names)
        with directfs.open(os.path.join(self.directory, "work.img")) as image:
            self.assertEqual(image.read_bytes("mail/new/1"), b"Subject: hello\n")
            names["image"] = image
            exec(examples[1], names)
            self.assertTrue(os.path.isdir(os.path.join(self.directory, "back", "sub")))
            body = textwrap.indent(examples[2] + "return text\n", "    ")
            exec("import asyncio\nasync def example():\n" + body, names)
            self.assertEqual(asyncio.run(names["example"]()), b"Subject: hello\n")

    def test_what_was_written_is_there_again(self):
        self.image.path("dir").mkdir()
        self.image.write_bytes("dir/file", b"content")
        self.assertEqual(self.image.durability, "process-death" if self.file.startswith("/dev/shm") else "committed")
        self.assertFalse(self.image.was_recovered)
        self.assertEqual(self.image.close(), "clean")
        self.assertIsNone(self.image.close())
        with directfs.open(self.file, read_only=True) as image:
            self.assertEqual(image.read_bytes("dir/file"), b"content")
            self.errno_of(errno.EROFS, image.unlink, "dir/file")

    def test_mistakes_have_an_errno_and_a_sentence(self):
        self.assertRaises(FileNotFoundError, directfs.open, self.file + "-missing")
        self.errno_of(errno.EBUSY, directfs.open, self.file, exclusive=True, timeout=0.02)
        self.errno_of(errno.EINVAL, directfs.create, self.file + "2")
        self.errno_of(errno.EINVAL, directfs.create, self.file + "2", 100)
        self.assertFalse(os.path.exists(self.file + "2"))
        foreign = os.path.join(self.directory, "foreign")
        with open(foreign, "wb") as file:
            file.write(b"x" * (1 << 20))
        error = self.errno_of(errno.EUCLEAN, directfs.open, foreign)
        self.assertEqual((error.filename, error.strerror), (foreign, os.strerror(errno.EUCLEAN)))
        self.assertIn(foreign, error.__notes__[0])
        self.assertRaises(FileExistsError, directfs.create, foreign, SIZE)
        self.assertRaises(ValueError, directfs.open, self.file, timeout=-1)
        self.assertRaises(ValueError, directfs.open, self.file, timeout=float("nan"))
        self.assertRaises(TypeError, directfs.open, None)
        self.assertRaises(TypeError, self.image.stat, None)
        self.assertIn("check the path", self.errno_of(errno.ENOENT, self.image.stat, "x").__notes__[0])
        self.errno_of(errno.EINVAL, self.image.stat, "a\0b")
        self.errno_of(errno.ENAMETOOLONG, self.image.mkdir, "x" * 256)

    def test_names_that_are_not_utf_8_survive(self):
        name = os.fsdecode(b"\xff\xfe")
        self.image.write_bytes(name, b"1")
        self.assertEqual(self.image.listdir(), [name])
        self.assertEqual(self.image.read_bytes(name), b"1")

    def test_what_is_closed_says_so(self):
        file = self.image.open_raw("file", os.O_RDWR | os.O_CREAT)
        text = self.image.open("text", "w")
        text.write("kept")
        text.flush()
        self.image.close()
        self.errno_of(errno.ENODEV, file.pread, 1, 0)
        self.errno_of(errno.ENODEV, self.image.listdir)
        self.assertRaises(ValueError, self.image.sync)
        file.close()
        file.close()
        text.close()
        with directfs.open(self.file) as image:
            self.assertEqual(image.read_bytes("text"), b"kept")

    def test_a_full_image_is_usable_again_after_a_removal(self):
        with directfs.in_memory(8 << 20) as image:
            block = b"x" * 100_000
            with self.assertRaises(OSError) as caught:
                for number in range(1000):
                    image.write_bytes(str(number), block)
            self.assertEqual(caught.exception.errno, errno.ENOSPC)
            image.unlink("0")
            image.write_bytes("again", block)
            self.assertLess(image.space().free, image.space().total)

    def test_images_are_clean_without_a_close(self):
        script = "import directfs, sys; image = directfs.open(sys.argv[1]); image.write_bytes('f', b'1')"
        self.image.close()
        subprocess.run([sys.executable, "-c", script, self.file], check=True, timeout=600)
        with directfs.open(self.file) as image:
            self.assertFalse(image.was_recovered)

    def test_what_buffers_hold_is_written_before_an_image_is_closed(self):
        self.image.close()
        with directfs.open(self.file) as image:
            text, block = image.open("text", "w"), image.as_user(0, 0).open("block", "wb")
            text.write("of a text\n")
            block.write(b"of a block")
        self.assertRaises(OSError, text.buffer.raw.write, b"more")
        with directfs.open(self.file) as image:
            self.assertEqual(image.read_bytes("text") + image.read_bytes("block"), b"of a text\nof a block")

    def ends_in_silence(self, script):
        self.image.close()
        ended = subprocess.run([sys.executable, "-c", script, self.file], capture_output=True, timeout=600)
        self.assertEqual((ended.returncode, ended.stderr), (0, b""))

    def test_what_buffers_hold_is_written_at_the_interpreters_end(self):
        script = (
            "import directfs, sys; image = directfs.open(sys.argv[1]); file = image.open('f', 'w');"
            "file.write('text'); cycle = [file]; cycle.append(cycle); del file, cycle;"
            "file = image.open('g', 'wb'); file.write(b'block'); other = image.open('v', 'rb'); view = other.raw.view()"
        )
        self.image.write_bytes("v", b"view")
        self.ends_in_silence(script)
        with directfs.open(self.file) as image:
            self.assertEqual(image.read_bytes("f") + image.read_bytes("g"), b"textblock")

    def test_a_write_to_a_closed_image_at_the_interpreters_end_does_no_harm(self):
        script = (
            "import directfs, sys; image = directfs.open(sys.argv[1]); file = image.open('f', 'wb');"
            "image.close(); file.write(b'late')"
        )
        self.ends_in_silence(script)

    def test_a_full_image_is_closed_and_reports_what_was_not_written(self):
        image = directfs.in_memory(8 << 20)
        file = image.open("f", "wb", 16 << 20)
        file.write(bytes(10 << 20))
        self.errno_of(errno.ENOSPC, image.close)
        self.assertIsNone(image.close())

    def test_a_killed_process_loses_nothing(self):
        script = (
            "import directfs, os, sys; image = directfs.open(sys.argv[1]); image.write_bytes('f', b'1'); os.kill(os.getpid(), 9)"
        )
        self.image.close()
        killed = subprocess.run([sys.executable, "-c", script, self.file], timeout=600)
        self.assertEqual(killed.returncode, -signal.SIGKILL)
        with directfs.open(self.file) as image:
            self.assertTrue(image.was_recovered)
            self.assertEqual(image.read_bytes("f"), b"1")

    def test_snapshots_hold_the_moment(self):
        copy = os.path.join(self.directory, "copy")
        self.image.write_bytes("file", b"before")
        self.image.snapshot(copy)
        self.image.write_bytes("file", b"after")
        self.assertRaises(FileExistsError, self.image.snapshot, copy)
        with directfs.open(copy) as image:
            self.assertEqual(image.read_bytes("file"), b"before")

    @unittest.skipIf(os.getuid() != 0, "needs root")
    def test_users_and_roots(self):
        self.image.mkdir("home")
        self.image.chown("home", 1000, 50)
        alice = self.image.as_user(1000, 1000, [50], umask=0o077)
        alice.write_bytes("home/letter", b"dear diary")
        self.assertEqual(alice.stat("home/letter").st_mode & 0o777, 0o600)
        bob = self.image.as_user(1001, 1001)
        self.assertRaises(PermissionError, bob.read_bytes, "home/letter")
        self.assertFalse(bob.access("home/letter", os.R_OK))
        home = self.image.subtree("home")
        self.assertEqual(home.listdir("/.."), ["letter"])


class Sharing(Scratch):
    def test_threads_work_side_by_side(self):
        def work(number):
            for step in range(200):
                self.image.write_bytes(f"{number}-{step}", b"x" * step)
                self.assertEqual(len(self.image.read_bytes(f"{number}-{step}")), step)
            return number

        with ThreadPoolExecutor(8) as pool:
            self.assertEqual(list(pool.map(work, range(8))), list(range(8)))
        self.assertEqual(len(self.image.listdir()), 1600)

    def test_processes_count_under_a_lock(self):
        self.image.write_bytes("counter", b"")
        command = [sys.executable, "-c", COUNT, self.file, "200"]
        running = [subprocess.Popen(command) for _ in range(3)]
        self.assertEqual([process.wait(timeout=600) for process in running], [0, 0, 0])
        self.assertEqual(self.image.read_bytes("counter"), b"600")

    def test_locks_exclude_other_opens(self):
        one = self.image.open_raw("file", os.O_RDWR | os.O_CREAT)
        two = self.image.open_raw("file", os.O_RDWR)
        self.assertTrue(one.lock())
        self.assertFalse(two.lock(exclusive=False, timeout=0))
        self.assertFalse(two.lock(timeout=0.01))
        done = []
        waiter = threading.Thread(target=lambda: done.append(two.lock()))
        waiter.start()
        one.unlock()
        waiter.join(600)
        self.assertEqual(done, [True])
        two.unlock()
        self.assertTrue(one.lock_range(0, 10))
        self.assertFalse(two.lock_range(5, timeout=0))
        self.assertTrue(two.lock_range(10, timeout=0))
        one.unlock_range()
        self.assertTrue(two.lock_range(0, timeout=0))
        self.assertRaises(ValueError, two.lock, timeout=-1)
        self.errno_of(errno.EINVAL, two.lock_range, 5, 5)

    def test_an_interrupt_ends_a_wait(self):
        one = self.image.open_raw("file", os.O_RDWR | os.O_CREAT)
        two = self.image.open_raw("file", os.O_RDWR)
        one.lock()

        def interrupt(*_):
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

        previous = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, previous)
        with self.assertRaises(KeyboardInterrupt):
            # Signals repeat: the first may come before the wait.
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            two.lock()

    def test_the_child_of_a_fork_is_refused_and_opens_the_image_itself(self):
        self.image.write_bytes("file", b"parent")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # The image has a thread.
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self.image.read_bytes("file")
            except OSError as error:
                if error.errno == errno.EOWNERDEAD:
                    with directfs.open(self.file) as own:
                        own.write_bytes("file", b"child")
                    with self.image:
                        pass
                    try:
                        self.image.close()
                    except OSError as error:
                        code = 0 if error.errno == errno.EOWNERDEAD else 1
            finally:
                os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.assertEqual(self.image.read_bytes("file"), b"child")

    def test_other_threads_run_during_a_call(self):
        one = self.image.open_raw("file", os.O_RDWR | os.O_CREAT)
        two = self.image.open_raw("file", os.O_RDWR)
        one.lock()
        waiter = threading.Thread(target=two.lock)
        waiter.start()
        # The waiting call must not hold the interpreter.
        begin, steps = time.monotonic(), 0
        while time.monotonic() - begin < 0.3 or steps < 1000:
            steps += 1
        one.close()
        waiter.join(600)
        self.assertFalse(waiter.is_alive())

    def test_files_that_are_forgotten_are_closed(self):
        one = self.image.open_raw("file", os.O_RDWR | os.O_CREAT)
        one.lock()
        del one
        gc.collect()
        self.assertTrue(self.image.open_raw("file", os.O_RDWR).lock(timeout=0))


if __name__ == "__main__":
    unittest.main()
