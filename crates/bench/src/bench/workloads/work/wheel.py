"""A wheel with as many modules as the argument says."""
import sys, zipfile

INFO = "generated-1.dist-info/"
with zipfile.ZipFile("generated-1-py3-none-any.whl", "w") as wheel:
    names = []
    def add(name, text):
        wheel.writestr(name, text)
        names.append(name)
    add("generated/__init__.py", "")
    for number in range(int(sys.argv[1])):
        add(f"generated/module_{number}.py", f"def function(x):\n    return x * {number}\n" * 20)
    add(INFO + "METADATA", "Metadata-Version: 2.1\nName: generated\nVersion: 1\n")
    add(INFO + "WHEEL", "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    add(INFO + "RECORD", "".join(name + ",,\n" for name in names + [INFO + "RECORD"]))
