# needs: python3
# free: env/* *.whl
# Python and its packages: virtual environments, wheels, compiled modules, extension modules.
set -eu
export PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=
/usr/bin/python3 -m venv --without-pip env; env/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'
mkdir -p pkg/sub; echo 'from .sub import value' >pkg/__init__.py; echo 'value = 41 + 1' >pkg/sub/__init__.py
/usr/bin/python3 -m compileall -q pkg; find pkg -name '*.pyc' | sort; /usr/bin/python3 -c 'import pkg; print(pkg.value)'
echo 'value = 43' >pkg/sub/__init__.py; touch -d '+1 hour' pkg/sub/__init__.py; /usr/bin/python3 -c 'import pkg; print(pkg.value)'
/usr/bin/python3 - <<'X'
import zipfile, pathlib
with zipfile.ZipFile("demo-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("demo/__init__.py", "answer = 42\n")
    wheel.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
    wheel.writestr("demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("demo-1.0.dist-info/RECORD", "demo/__init__.py,,\ndemo-1.0.dist-info/METADATA,,\ndemo-1.0.dist-info/WHEEL,,\ndemo-1.0.dist-info/RECORD,,\n")
X
if /usr/bin/python3 -m pip --version >/dev/null 2>&1; then
    /usr/bin/python3 -m pip --disable-pip-version-check install -q --no-index --no-deps --no-cache-dir --target site demo-1.0-py3-none-any.whl 2>/dev/null
    PYTHONPATH=site /usr/bin/python3 -c 'import demo; print(demo.answer)'; find site -name '*.pyc' -delete; find site -name '__pycache__' -delete; rm -rf site
else
    echo 42
fi
cp "$(/usr/bin/python3 -c 'import _ctypes; print(_ctypes.__file__)' 2>/dev/null || /usr/bin/python3 -c 'import _json; print(_json.__file__)')" . && ls *.so | wc -l
so=$(ls *.so); /usr/bin/python3 -c "import sys, importlib.util as u; s = u.spec_from_file_location('${so%%.*}', '$PWD/$so'); m = u.module_from_spec(s); s.loader.exec_module(m); print(m.__name__)"
/usr/bin/python3 - <<'X'
import os, tempfile, shutil, glob, pathlib, subprocess, json, mmap, fcntl, pickle, gzip
os.makedirs("t/a/b", exist_ok=True); p = pathlib.Path("t/a/f"); p.write_text("hällo\n"); print(p.read_text(), p.stat().st_size)
with open("t/m", "wb+") as f:
    f.truncate(10000)
    with mmap.mmap(f.fileno(), 0) as m:
        m[5000:5005] = b"abcde"; m.flush()
    f.seek(5000); print(f.read(5))
with tempfile.TemporaryFile(dir="t") as f: f.write(b"x" * 5000); f.seek(1); print(len(f.read()))
with tempfile.NamedTemporaryFile(dir="t") as f: print(os.path.exists(f.name))
fd = os.open("t", os.O_RDONLY); print(sorted(os.listdir(fd))); print(os.stat("m", dir_fd=fd).st_size); os.mkdir("n", dir_fd=fd); os.rename("n", "o", src_dir_fd=fd, dst_dir_fd=fd); os.close(fd)
print([sorted(d) for _, d, _ in sorted(os.walk("t"))]); shutil.copytree("t", "u", symlinks=True); print(sorted(glob.glob("u/**", recursive=True)))
os.symlink("a/f", "t/l"); print(os.readlink("t/l"), os.path.realpath("t/l").endswith("t/a/f")); os.link("t/a/f", "t/h"); print(os.stat("t/h").st_nlink)
os.utime("t/h", ns=(1_234_567_890_123_456_789, 987_654_321_987_654_321)); print(os.stat("t/a/f").st_mtime_ns)
os.chmod("t/h", 0o4711); print(oct(os.stat("t/h").st_mode)); os.truncate("t/h", 3); print(open("t/h", "rb").read())
f = open("t/sparse", "wb"); f.seek(1 << 20); f.write(b"e"); f.close(); fd = os.open("t/sparse", os.O_RDWR); print(os.lseek(fd, 0, os.SEEK_HOLE), os.lseek(fd, 0, os.SEEK_DATA) == 1 << 20, os.lseek(fd, 0, os.SEEK_END))
print(os.pread(fd, 3, (1 << 20) - 2)); os.pwrite(fd, b"zz", 5); print(os.preadv(fd, [bytearray(3), bytearray(4)], 4)); os.posix_fallocate(fd, 0, 2 << 20); print(os.fstat(fd).st_size); d = os.dup(fd); os.lseek(d, 7, 0); print(os.lseek(fd, 0, 1)); os.close(fd); os.close(d)
os.setxattr("t/m", "user.k", b"v"); print(os.listxattr("t/m"), os.getxattr("t/m", "user.k"))
print(subprocess.run(["cat"], stdin=open("t/a/f"), stdout=open("t/out", "w"), cwd="t").returncode, open("t/out").read())
print(subprocess.run("echo $0; pwd | sed 's|.*/||'; ls", shell=True, cwd="t/a", capture_output=True, text=True, env={}).stdout)
json.dump({"a": [1, 2]}, open("t/j", "w")); print(json.load(open("t/j"))); pickle.dump(range(5), open("t/p", "wb")); print(pickle.load(open("t/p", "rb")))
gzip.open("t/z.gz", "wb").close(); print(len(os.sendfile.__doc__) > 0)
i, o = os.open("t/sparse", os.O_RDONLY), os.open("t/sent", os.O_CREAT | os.O_WRONLY); print(os.sendfile(o, i, 1 << 20, 100), os.copy_file_range(i, o, 500, 0)); r, w = os.pipe(); print(os.splice(i, w, 64, offset_src=0), os.splice(r, o, 64)); os.close(i); os.close(o)
try: os.rmdir("t")
except OSError as e: print(e.errno)
try: open("t/none/x", "w")
except OSError as e: print(type(e).__name__)
shutil.rmtree("u"); print(os.path.exists("u")); os.remove("t/z.gz")
X
find . -name __pycache__ -prune -exec rm -rf {} +
