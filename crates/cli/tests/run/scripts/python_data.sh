# needs: python3
# free: *.db
# Shared state: multiprocessing, locks, a database, descriptor passing by sockets, threads.
set -eu
/usr/bin/python3 - <<'X'
import sqlite3, multiprocessing as mp, os, fcntl, threading, socket, array, mmap, time
db = sqlite3.connect("one.db"); db.execute("pragma journal_mode=wal"); db.execute("create table t(a integer primary key, b text)")
db.executemany("insert into t(b) values(?)", [(str(i) * 10,) for i in range(2000)]); db.commit()
print(db.execute("select count(*), sum(length(b)) from t").fetchone(), db.execute("pragma integrity_check").fetchone()); db.close()
def work(n):
    with open("counter", "r+") as f:
        for _ in range(50):
            fcntl.flock(f, fcntl.LOCK_EX); f.seek(0); v = int(f.read()); f.seek(0); f.truncate(); f.write(str(v + 1)); f.flush(); fcntl.flock(f, fcntl.LOCK_UN)
    return n * n
open("counter", "w").write("0")
if __name__ == "__main__":
    with mp.Pool(4) as pool: print(pool.map(work, range(8)))
    print(open("counter").read())
def record(n):
    with open("records", "r+b") as f:
        for _ in range(20):
            fcntl.lockf(f, fcntl.LOCK_EX, 8, 8 * (n % 2)); f.seek(8 * (n % 2)); v = int.from_bytes(f.read(8), "little"); f.seek(8 * (n % 2)); f.write((v + 1).to_bytes(8, "little")); f.flush(); fcntl.lockf(f, fcntl.LOCK_UN, 8, 8 * (n % 2))
open("records", "wb").write(bytes(16))
ps = [mp.Process(target=record, args=(n,)) for n in range(6)]; [p.start() for p in ps]; [p.join() for p in ps]
print([int.from_bytes(open("records", "rb").read()[i:i + 8], "little") for i in (0, 8)])
def threads(n):
    for i in range(50):
        name = f"d/{n}-{i}"; open(name, "w").write(name); os.rename(name, name + "x"); os.stat(name + "x")
os.mkdir("d"); ts = [threading.Thread(target=threads, args=(n,)) for n in range(6)]; [t.start() for t in ts]; [t.join() for t in ts]; print(len(os.listdir("d")))
a, b = socket.socketpair(); f = open("passed", "w+"); f.write("before "); f.flush(); socket.send_fds(a, [b"m"], [f.fileno()]); _, fds, _, _ = socket.recv_fds(b, 10, 1); os.write(fds[0], b"after"); f.seek(0); print(f.read()); print(os.fstat(fds[0]).st_ino == os.fstat(f.fileno()).st_ino)
s = open("shared", "w+b"); s.truncate(4096); m = mmap.mmap(s.fileno(), 4096); pid = os.fork()
if pid == 0: m[0:5] = b"child"; os._exit(0)
os.waitpid(pid, 0); print(m[0:5], os.pread(s.fileno(), 5, 0)); os.pwrite(s.fileno(), b"parent", 100); print(m[100:106])
r = os.fork()
if r == 0:
    os.chdir("d"); os.execvp("sh", ["sh", "-c", "ls | wc -l; echo exec >../exec"])
os.waitpid(r, 0); print(open("exec").read())
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(2) as e: print(sum(e.map(len, [open("counter").read(), "ab"])))
log = os.open("log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
kids = []
for n in range(4):
    k = os.fork()
    if k == 0:
        for i in range(100): os.write(log, f"{n}:{i:03d}\n".encode())
        os._exit(0)
    kids.append(k)
[os.waitpid(k, 0) for k in kids]; lines = sorted(open("log")); print(len(lines), lines[0], lines[-1]); open("log", "w").writelines(lines)
u = open("unlinked", "w+"); u.write("still here"); os.unlink("unlinked"); u.seek(0); print(u.read(), os.fstat(u.fileno()).st_nlink)
os.set_blocking(u.fileno(), False); import select; print(select.select([u], [u], [], 0) == ([u], [u], [])); p = select.poll(); p.register(u, select.POLLIN); print(p.poll(0)[0][1])
try: e = select.epoll(); e.register(u)
except PermissionError as x: print("epoll", x.errno)
X
rm -f one.db-*
