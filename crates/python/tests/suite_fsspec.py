"""The tests that `fsspec` brings for file systems, on an image."""

import os
import shutil
import tempfile

import fsspec
import fsspec.tests.abstract as abstract
import pytest
from support import SIZE


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self):
        directory = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        fs = fsspec.filesystem("directfs", image=os.path.join(directory, "image"), size=SIZE)
        yield fs
        fs.image.close()
        fs.clear_instance_cache()
        shutil.rmtree(directory)

    @pytest.fixture
    def fs_path(self):
        return "/"


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


def test_zarr_stores_arrays(tmp_path):
    zarr = pytest.importorskip("zarr")
    url, options = "directfs://deep/z.zarr", {"image": str(tmp_path / "image"), "size": SIZE}
    group = zarr.open_group(url, mode="w", storage_options=options)
    group.create_array("a", shape=(100, 100), chunks=(10, 10), dtype="i4")[:] = 7
    again = zarr.open_group(url, mode="r", storage_options={"image": str(tmp_path / "image"), "size": SIZE})
    assert int(again["a"][:].sum()) == 70_000
    fsspec.filesystem("directfs", **options).image.close()
