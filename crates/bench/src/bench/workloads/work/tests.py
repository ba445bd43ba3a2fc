"""Tests for pytest, in the directory `tests`: ten files that write files of their own."""
import os, sys

os.mkdir("tests")
for number in range(10):
    with open(f"tests/test_{number}.py", "w") as file:
        file.write(f"import pytest\n\n@pytest.mark.parametrize('x', range({int(sys.argv[1]) // 10}))\n")
        file.write("def test(x, tmp_path):\n    (tmp_path / 'file').write_text(str(x))\n")
        file.write("    assert (tmp_path / 'file').read_text() == str(x)\n")
