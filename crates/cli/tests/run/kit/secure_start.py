"""Starts programs with effective ids that are not the real ones, which the kernel then runs with
AT_SECURE: loaders ignore LD_PRELOAD."""
import os
import subprocess
import sys

STRANGER = 1234
WAYS = {
    "effective user": lambda: os.seteuid(STRANGER),
    "effective group": lambda: os.setegid(STRANGER),
    "real user": lambda: os.setresuid(STRANGER, 0, 0),
    "real group": lambda: os.setresgid(STRANGER, 0, 0),
    "both": lambda: (os.setresgid(STRANGER, STRANGER, 0), os.setresuid(0, STRANGER, 0)),
}


def show(command):
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.returncode, done.stdout.strip(), done.stderr.strip())


here = os.getcwd()
with open("file", "w") as file:
    file.write("inside\n")
with open("script", "w") as script:
    script.write("#!/bin/sh\ncat file; echo made >>made; ls; id -u -r; id -u; id -g -r; id -g\n")
os.chmod("script", 0o755)
for way, change in WAYS.items():
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        change()
        print(way)
        show(["cat", "file"])
        show(["cat", here + "/file"])
        show(["./script"])
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    os.unlink("made")
