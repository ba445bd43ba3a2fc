"""Programs on an image that a power failure interrupts, and the checks after it.

work.py work KIND DIRECTORY         works until it is killed; prints a line for each thing that an
                                    fsync has acknowledged
work.py check KIND DIRECTORY        reads the acknowledged lines from standard input; prints what is
                                    missing or wrong, and nothing if all is there

The content of everything follows from its number, so a check needs no memory of it.
"""
import os
import random
import shutil
import sqlite3
import subprocess
import sys


def content(number, version=0):
    generator = random.Random(number * 1000 + version)
    return generator.randbytes(1 + generator.randrange(20000))


def put(path, data):
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def acknowledge(*words):
    print(*words, flush=True)


class Mail:
    """A mail spool: each message is written aside, synced, renamed, and its directory synced."""

    def work(self, home):
        os.makedirs(f"{home}/tmp", exist_ok=True)
        os.makedirs(f"{home}/new", exist_ok=True)
        number = max([int(name) for name in os.listdir(f"{home}/new")], default=0)
        while True:
            number += 1
            put(f"{home}/tmp/{number}", content(number))
            os.rename(f"{home}/tmp/{number}", f"{home}/new/{number}")
            sync_directory(f"{home}/new")
            acknowledge(number)
            # One file is replaced time and again: it is an acknowledged version or a later one.
            put(f"{home}/tmp/state", content(0, number))
            os.rename(f"{home}/tmp/state", f"{home}/state")
            sync_directory(home)
            acknowledge("state", number)

    def check(self, home, lines):
        state = 0
        for line in lines:
            if line[0] == "state":
                state = max(state, int(line[1]))
                continue
            expect(f"{home}/new/{line[0]}", content(int(line[0])))
        if state:
            found = read(f"{home}/state")
            if all(found != content(0, version) for version in range(state, state + 3)):
                wrong(f"{home}/state is neither version {state} nor a later one")


class Database:
    """SQLite with a rollback journal. Only synchronous=EXTRA syncs the removal of the journal, which
    is the moment of the commit; with FULL an acknowledged transaction may be rolled back."""

    SETTINGS = ["pragma journal_mode=delete", "pragma synchronous=extra"]

    def open(self, home):
        os.makedirs(home, exist_ok=True)
        database = sqlite3.connect(f"{home}/db", timeout=60)
        for setting in self.SETTINGS:
            database.execute(setting)
        return database

    def work(self, home):
        database = self.open(home)
        database.execute("create table if not exists t (number integer primary key, value blob)")
        database.commit()
        number = database.execute("select coalesce(max(number), 0) from t").fetchone()[0]
        while True:
            number += 1
            database.execute("insert into t values (?, ?)", (number, content(number)))
            if number % 7 == 0:
                database.execute("update t set value = value where number % 5 = 0 and number > ?", (number - 30,))
            database.commit()
            acknowledge(number)

    def check(self, home, lines):
        if not lines:
            return
        database = self.open(home)
        state = database.execute("pragma integrity_check").fetchone()[0]
        if state != "ok":
            wrong(f"{home}/db: {state}")
        for line in lines:
            row = database.execute("select value from t where number = ?", (int(line[0]),)).fetchone()
            if row is None or row[0] != content(int(line[0])):
                wrong(f"{home}/db: transaction {line[0]} is lost or damaged")


class LogDatabase(Database):
    """SQLite with a write-ahead log, whose index it maps."""

    SETTINGS = ["pragma journal_mode=wal", "pragma synchronous=full"]


class Repository:
    """git, which syncs all that it writes."""

    def git(self, home, *words):
        options = ["-c", "core.fsync=all", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "gc.auto=0"]
        done = subprocess.run(["git", "-C", home, *options, *words], capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"git {words}: {done.stderr}")
        return done.stdout.strip()

    def work(self, home):
        if not os.path.exists(f"{home}/.git/HEAD"):
            os.makedirs(home, exist_ok=True)
            self.git(home, "init", "-q")
        # What the last power failure interrupted.
        for lock in ["index.lock", "HEAD.lock", "refs/heads/master.lock"]:
            if os.path.exists(f"{home}/.git/{lock}"):
                os.remove(f"{home}/.git/{lock}")
        number = 0
        while True:
            number += 1
            for name in range(3):
                with open(f"{home}/{name}", "wb") as file:
                    file.write(content(number, name))
            self.git(home, "add", "-A")
            self.git(home, "commit", "-qm", str(number), "--allow-empty")
            acknowledge(self.git(home, "rev-parse", "HEAD"))

    def check(self, home, lines):
        if not lines:
            return
        try:
            self.git(home, "fsck", "--full", "--strict")
            for line in lines:
                self.git(home, "rev-list", "--objects", "-1", line[0])
        except OSError as error:
            wrong(error)


class Mirror:
    """rsync, which syncs each file; now and then all file systems."""

    SOURCE = "/usr/include/linux"

    def work(self, home):
        os.makedirs(home, exist_ok=True)
        number = 0
        while True:
            number += 1
            if os.path.exists(f"{home}/{number}"):
                continue
            subprocess.run(["rsync", "-a", "--fsync", "--include=n*", "--exclude=*", f"{self.SOURCE}/", f"{home}/.{number}"], check=True)
            os.rename(f"{home}/.{number}", f"{home}/{number}")
            # That waits for all disks of the machine, and cannot report a failure.
            if number % 4 == 0:
                os.sync()
            sync_directory(home)
            acknowledge(number)
            shutil.rmtree(f"{home}/{number - 2}", ignore_errors=True)

    def check(self, home, lines):
        if not lines:
            return
        last = lines[-1][0]
        done = subprocess.run(["rsync", "-anc", "--itemize-changes", "--include=n*", "--exclude=*", f"{self.SOURCE}/", f"{home}/{last}"], capture_output=True, text=True)
        changes = [line for line in done.stdout.splitlines() if line[0] in "<>c*"]
        if done.returncode != 0 or changes:
            # The copy after the next one removes it.
            if not os.path.exists(f"{home}/{int(last) + 1}"):
                wrong(f"{home}/{last} differs from its source: {changes[:3]} {done.stderr}")


class Churn:
    """A program that never syncs."""

    def work(self, home):
        os.makedirs(home, exist_ok=True)
        number = 0
        while True:
            number += 1
            with open(f"{home}/{number % 97}", "wb") as file:
                file.write(content(number))
            if number % 5 == 0:
                os.rename(f"{home}/{number % 97}", f"{home}/r{number % 31}")

    def check(self, home, lines):
        pass


class Untouched:
    """Files that are synced once and never touched again."""

    def work(self, home):
        os.makedirs(home, exist_ok=True)
        for number in range(40):
            put(f"{home}/{number}", content(number))
        sync_directory(home)

    def check(self, home, lines):
        for number in range(40):
            expect(f"{home}/{number}", content(number))


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        return error


def expect(path, data):
    found = read(path)
    if found != data:
        wrong(f"{path}: {found if isinstance(found, OSError) else 'wrong content'}")


def wrong(text):
    print(text, flush=True)


KINDS = {"mail": Mail, "sqlite": Database, "wal": LogDatabase, "git": Repository, "rsync": Mirror, "churn": Churn, "untouched": Untouched}

if __name__ == "__main__":
    _, what, kind, home = sys.argv
    if what == "work":
        KINDS[kind]().work(home)
    else:
        KINDS[kind]().check(home, [line.split() for line in sys.stdin])
